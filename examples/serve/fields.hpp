// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api_error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/util/nearest_name.hpp"
#include "known_fields.hpp"

// Reading of the JSON of requests: each function refuses what it cannot read with an api_error that names the field.
namespace serve::reading {

using espalier::token_id;
using nlohmann::json;

[[noreturn]] inline void refuse(const std::string& param, const std::string& message, const std::string& code) {
  throw api_error(400, message, param, code);
}

// A value for a message, cut to one line.
inline std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

[[noreturn]] inline void refuse_type(const std::string& name, const std::string& allowed, const json& given) {
  refuse(name, fmt::format("{} must be {}, but is {}.", name, allowed, shown(given)), "invalid_type");
}

[[noreturn]] inline void refuse_value(const std::string& name, const std::string& allowed, const json& given) {
  refuse(name, fmt::format("{} must be {}, but is {}.", name, allowed, shown(given)), "invalid_value");
}

// The fields of an object; a field that is null counts as absent.
class fields {
 public:
  explicit fields(const json& object, std::string within = {}) : object_(object), within_(std::move(within)) {}

  const json* find(const char* name) const {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  std::string full_name(const char* name) const { return within_.empty() ? name : within_ + "." + name; }

  bool flag(const char* name) const {
    const json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse_type(full_name(name), "true or false", *value);
    return value->get<bool>();
  }

  double number(const char* name, double low, double high, double otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    const std::string allowed = fmt::format("a number from {} to {}", low, high);
    if (!value->is_number()) refuse_type(full_name(name), allowed, *value);
    const auto found = value->get<double>();
    if (!(found >= low && found <= high)) refuse_value(full_name(name), allowed, *value);
    return found;
  }

  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high, std::int64_t otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    const std::string allowed = fmt::format("a whole number from {} to {}", low, high);
    if (!value->is_number_integer()) refuse_type(full_name(name), allowed, *value);
    const bool too_large = value->is_number_unsigned() &&
                           value->get<std::uint64_t>() > std::uint64_t{(std::numeric_limits<std::int64_t>::max)()};
    const std::int64_t found = too_large ? high : value->get<std::int64_t>();
    if (too_large || found < low || found > high) refuse_value(full_name(name), allowed, *value);
    return found;
  }

 private:
  const json& object_;
  std::string within_;
};

// Parses a body. Deep nesting is refused while it is read, since code that copies and writes a value calls itself for
// each level; so is a member that stands twice in an object, since one of the two would be passed over.
inline json parse(std::string_view body) {
  static constexpr int max_depth = 200;
  std::array<std::set<std::string>, max_depth + 1> names;  // of the objects that are being read, by depth
  const auto check = [&](int depth, json::parse_event_t event, const json& value) {
    const bool begins = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (begins && depth >= max_depth) {
      refuse("", fmt::format("The body is too deep: it has arrays and objects more than {} levels deep.", max_depth),
             "invalid_value");
    }
    const auto level = static_cast<std::size_t>(depth);
    if (event == json::parse_event_t::object_start) names[level + 1].clear();
    if (event == json::parse_event_t::key && !names[level].insert(value.get<std::string>()).second) {
      refuse(level == 1 ? value.get<std::string>() : std::string(),
             fmt::format("The member {} stands twice in one object of the body.", shown(value)), "invalid_value");
    }
    return true;
  };
  json object;
  try {
    object = json::parse(body, check);
  } catch (const json::out_of_range&) {
    refuse("", "The body has a number that is too large.", "invalid_value");
  } catch (const json::parse_error& error) {
    refuse("", fmt::format("The body is not JSON: it cannot be read from byte {} of {} on.", error.byte, body.size()),
           "invalid_json");
  }
  if (!object.is_object()) refuse("", "The body must be a JSON object, but is " + shown(object) + ".", "invalid_type");
  return object;
}

inline void check_model(const fields& body, const std::string& served) {
  const json* model = body.find("model");
  if (model == nullptr) return;
  if (!model->is_string()) refuse_type("model", "a string", *model);
  if (*model == served) return;
  throw api_error(404, fmt::format("There is no model {}; this server has \"{}\".", shown(*model), served), "model",
                  "model_not_found");
}

// Refuses a field that is not known: what it asks for would be passed over.
[[noreturn]] inline void refuse_name(const std::string& name, const std::string& within,
                                     std::span<const known_field> known, endpoint to) {
  constexpr std::size_t longest_name = 64;  // bytes of a name that is compared with others
  const std::string shown_name = shown(name);
  const std::string param = within.empty() ? name : within;
  const std::string field = within.empty() ? "field" : "member of " + within;
  std::vector<std::string_view> names;
  for (const known_field& one : known) {
    if (one.name == name) {
      refuse(param,
             fmt::format("{} is a field of {} alone, not of {}.", name,
                         to == endpoint::chat ? "/v1/completions" : "/v1/chat/completions",
                         to == endpoint::chat ? "/v1/chat/completions" : "/v1/completions"),
             "unknown_parameter");
    }
    if (one.belongs_to(to)) names.push_back(one.name);
  }
  const std::string_view nearest =
      name.size() > longest_name ? std::string_view() : espalier::nearest_name(name, names);
  refuse(name.size() > longest_name ? within : param,
         fmt::format("There is no {} {}", field, shown_name) +
             (nearest.empty() ? std::string(".") : fmt::format("; the nearest name is \"{}\".", nearest)),
         "unknown_parameter");
}

// Checks the names of all fields, and the values of those that are not supported.
inline void check_fields(const json& object, const std::string& within, std::span<const known_field> known,
                         endpoint to) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    const auto found = std::find_if(known.begin(), known.end(), [&, &name = name](const known_field& one) {
      return one.name == name && one.belongs_to(to);
    });
    if (found == known.end()) refuse_name(name, within, known, to);
    if (found->is != known_field::use::unsupported) continue;
    std::string allowed;
    bool is_neutral = false;
    for (const json& neutral : json::parse(found->neutral)) {
      is_neutral = is_neutral || neutral == value;
      allowed += neutral.dump() + " or ";
    }
    if (is_neutral) continue;
    const std::string full_name = within.empty() ? name : within + "." + name;
    refuse(full_name,
           fmt::format("{} is not supported: it must be {}left out, but is {}.", full_name, allowed, shown(value)),
           "unsupported_value");
  }
}

inline std::vector<token_id> tokens_of(const json& list, const std::string& field, std::int32_t vocab_size) {
  std::vector<token_id> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& token = list[i];
    const std::string name = fmt::format("{}[{}]", field, i);
    const std::string allowed = fmt::format("a token id from 0 to {}", vocab_size - 1);
    if (!token.is_number_integer()) refuse_type(name, allowed, token);
    if (token < 0 || token >= vocab_size) refuse_value(name, allowed, token);
    tokens.push_back(token.get<token_id>());
  }
  return tokens;
}

}  // namespace serve::reading
