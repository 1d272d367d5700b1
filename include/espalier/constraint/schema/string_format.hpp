// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/schema/json_schema.cpp
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier::detail {

// A format of strings that JSON Schema names: the pattern of the texts that are written, all of which are valid, and
// their shortest and longest length in characters; longest == -1: there is none.
struct string_format {
  std::string pattern;
  std::int32_t shortest, longest;
};

inline constexpr std::string_view string_format_names =
    "date, time, date-time, uuid, ipv4, ipv6, email, hostname and uri";

// The format of this name; an empty pattern if it is not one of string_format_names.
//
// Source      RFC 3339 (without leap seconds and the year 0000, which many programs refuse), RFC 4122, RFC 4291
//             (without dotted parts), RFC 5321 (dot-strings at a host of two or three labels), RFC 1123, RFC 3986 (a
//             path, or a host with or without a port)
inline string_format string_format_of(std::string_view name) {
  const auto text = [](auto... pieces) { return (std::string() + ... + pieces); };
  const std::string year = "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})";
  const std::string leap = "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)";
  const std::string date = text("(", year, "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|",
                                "02-(0[1-9]|1\\d|2[0-8]))|", leap, "-02-29)");
  const std::string hour = "([01]\\d|2[0-3]):[0-5]\\d";
  const std::string time = text(hour, ":[0-5]\\d(\\.\\d{1,6})?(Z|[-+]", hour, ")");
  // Labels of at most 63 characters without two hyphens in a row; the last one begins with a letter.
  const std::string label = "[a-zA-Z0-9](-?[a-zA-Z0-9]){0,31}", last = "[a-zA-Z](-?[a-zA-Z0-9]){0,31}";
  const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  if (name == "date") return {date, 10, 10};
  if (name == "time") return {time, 9, 21};
  if (name == "date-time") return {text(date, "T", time), 20, 32};
  if (name == "uuid") {
    const std::string four = "[0-9a-fA-F]{4}";
    return {text(four, four, "-", four, "-", four, "-", four, "-", four, four, four), 36, 36};
  }
  if (name == "ipv4") return {text(byte, "(\\.", byte, "){3}"), 7, 15};
  if (name == "ipv6") {
    const std::string group = "[0-9a-fA-F]{1,4}";
    std::string all = text("(", group, ":){7}", group, "|::|:(:", group, "){1,7}");
    for (int before = 1; before < 8; ++before) {
      all += text("|(", group, ":){", std::to_string(before), "}");
      all += before == 7 ? ":" : text("(:|(:", group, "){1,", std::to_string(7 - before), "})");
    }
    return {all, 2, 39};
  }
  if (name == "hostname") return {text("(", label, "\\.){0,2}", last), 1, 191};
  if (name == "email") {
    const std::string atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]";
    return {text(atom, "(\\.?", atom, "){0,30}@(", label, "\\.){1,2}", last), 5, 253};
  }
  if (name == "uri") {
    const std::string simple = "-a-zA-Z0-9._~!$&'()*+,;=", percent = "|%[0-9a-fA-F]{2})";
    const std::string host = text("([", simple, "]", percent, "+"), p = text("([", simple, ":@]", percent),
                      rest = text("([", simple, ":@/?]", percent, "*");
    return {text("[a-zA-Z][a-zA-Z0-9.+-]*:(//", host, "(:[1-9]\\d{0,3})?(/", p, "*)*|/(", p, "+(/", p, "*)*)?|", p,
                 "+(/", p, "*)*)(\\?", rest, ")?(#", rest, ")?"),
            3, -1};
  }
  return {"", 0, 0};
}

}  // namespace espalier::detail
