// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// A reader of JSON events that keeps the parser's first complaint instead of throwing it. Deep nesting is a complaint,
// too, because code that copies and writes a value calls itself for each level.
struct json_complaint {
  using json = nlohmann::ordered_json;
  static constexpr int max_depth = 200;
  std::string text;
  int depth = 0;

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(json::number_integer_t) { return true; }
  bool number_unsigned(json::number_unsigned_t) { return true; }
  // The parser also calls this for an integer that 64 bits do not hold, which has neither a point nor an exponent.
  bool number_float(json::number_float_t, const std::string& digits) {
    if (digits.find_first_of(".eE") != std::string::npos) return true;
    text = "has the integer " + digits + ", which 64 bits do not hold";
    return false;
  }
  bool string(std::string&) { return true; }
  bool binary(json::binary_t&) { return true; }
  bool start_object(std::size_t) { return enter(); }
  bool key(std::string&) { return true; }
  bool end_object() { return leave(); }
  bool start_array(std::size_t) { return enter(); }
  bool end_array() { return leave(); }
  template <class ErrorT>
  bool parse_error(std::size_t, const std::string&, const ErrorT& error) {
    std::string_view what = error.what();
    what.remove_prefix((std::min)(what.find("] ") + 2, what.size()));  // removes the name and number of the error
    text = "is no JSON: " + std::string(what);
    return false;
  }

  bool enter() {
    if (++depth <= max_depth) return true;
    text = "has lists and objects more than " + std::to_string(max_depth) + " levels deep";
    return false;
  }
  bool leave() { return --depth, true; }
};

// The parsed text of a schema, its properties in order.
//
// Errors      input_error that names line and column, the depth, or an integer that is too large
inline nlohmann::ordered_json parse_schema_text(std::string_view text) {
  json_complaint complaint;
  if (!nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &complaint))
    raise<input_error>("the JSON schema ", complaint.text, ".");
  return nlohmann::ordered_json::parse(text.begin(), text.end(), nullptr, false);
}

// A value as text for a message, cut after 60 characters.
inline std::string shortened(const nlohmann::ordered_json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

// The part of a schema that "#" or "#/a/b" names; nullptr if there is none.
inline const nlohmann::ordered_json* find_schema(const nlohmann::ordered_json& root, std::string_view name) {
  if (name.empty() || name[0] != '#') return nullptr;
  const nlohmann::ordered_json* at = &root;
  for (name.remove_prefix(1); !name.empty();) {
    if (name[0] != '/') return nullptr;
    name.remove_prefix(1);
    std::string key(name.substr(0, name.find('/')));
    name.remove_prefix(key.size());
    for (const auto& [escape, character] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}}) {
      for (std::size_t i = key.find(escape); i != std::string::npos; i = key.find(escape, i + 1))
        key.replace(i, 2, character);
    }
    const bool is_index = !key.empty() && key.size() < 7 && key.find_first_not_of("0123456789") == std::string::npos;
    if (at->is_object() && at->contains(key)) {
      at = &(*at)[key];
    } else if (at->is_array() && is_index && std::stoul(key) < at->size()) {
      at = &(*at)[std::stoul(key)];
    } else {
      return nullptr;
    }
  }
  return at;
}

// True if a value has a type, or one of a list of types.
inline bool has_type(const nlohmann::ordered_json& value, const nlohmann::ordered_json& type) {
  if (type.is_array())
    return std::any_of(type.begin(), type.end(), [&](const auto& one) { return has_type(value, one); });
  if (!type.is_string()) return false;
  const auto name = type.get<std::string>();
  return name == value.type_name() || (name == "integer" && value.is_number_integer());
}

}  // namespace espalier::detail
