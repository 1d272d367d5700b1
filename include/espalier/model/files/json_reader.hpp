// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_config.cpp
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// Parses one JSON object. `where` names the file in messages. Nesting is bounded, and no key may occur twice in an
// object: the JSON library alone would accept any depth and repeated keys.
inline nlohmann::json parse_json_object(std::string_view text, const std::string& where) {
  constexpr int deepest = 16;
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  bool too_deep = false;
  using event = nlohmann::json::parse_event_t;
  const auto watch = [&](int depth, event what, nlohmann::json& value) {
    if (depth > deepest) {
      too_deep = true;
      return false;
    }
    if (what == event::object_start) keys.emplace_back();
    if (what == event::object_end && !keys.empty()) keys.pop_back();
    if (what == event::key && !keys.empty() && !keys.back().insert(value.get_ref<const std::string&>()).second) {
      duplicate = value.get_ref<const std::string&>();
    }
    return true;
  };
  nlohmann::json parsed = nlohmann::json::parse(text.begin(), text.end(), watch, false);
  if (too_deep) raise<model_error>(where, " is nested more than ", deepest, " levels deep.");
  if (parsed.is_discarded() || !parsed.is_object()) raise<model_error>(where, " is not a JSON object.");
  if (!duplicate.empty()) raise<model_error>(where, " has the key \"", duplicate, "\" twice.");
  return parsed;
}

// Typed look-up in a JSON object, which must outlive the reader. Messages name the file and the key. A key with the
// value null counts as absent.
class json_reader {
 public:
  json_reader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool has(const char* key) const { return find(key) != nullptr; }
  // True if the object has the key, even with the value null.
  bool mentions(const char* key) const { return object_.contains(key); }

  // A whole number in [low, high].
  int integer(const char* key, int low, int high) const { return integer_of(key, need(key), low, high); }
  int integer_or(const char* key, int fallback, int low, int high) const {
    const nlohmann::json* value = find(key);
    return value ? integer_of(key, *value, low, high) : fallback;
  }

  double number(const char* key, double low, double high) const { return number_of(key, need(key), low, high); }
  double number_or(const char* key, double fallback, double low, double high) const {
    const nlohmann::json* value = find(key);
    return value ? number_of(key, *value, low, high) : fallback;
  }

  bool flag_or(const char* key, bool fallback) const {
    const nlohmann::json* value = find(key);
    if (!value) return fallback;
    if (!value->is_boolean()) refuse(key, *value, "true or false");
    return value->get<bool>();
  }

  std::string text_or(const char* key, const char* fallback) const {
    const nlohmann::json* value = find(key);
    if (!value) return fallback;
    if (!value->is_string()) refuse(key, *value, "a string");
    return value->get<std::string>();
  }

  const nlohmann::json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  template <class... PiecesT>
  [[noreturn]] void refuse(const char* key, const nlohmann::json& value, const PiecesT&... allowed) const {
    std::string shown = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
    raise<model_error>(where_, ": \"", key, "\" is ", shown, ", but must be ", allowed..., ".");
  }

 private:
  const nlohmann::json& need(const char* key) const {
    const nlohmann::json* value = find(key);
    if (!value) raise<model_error>(where_, " lacks \"", key, "\".");
    return *value;
  }

  int integer_of(const char* key, const nlohmann::json& value, int low, int high) const {
    const bool fits = value.is_number_integer() && value >= low && value <= high;
    if (!fits) refuse(key, value, "a whole number from ", low, " to ", high);
    return value.get<int>();
  }

  double number_of(const char* key, const nlohmann::json& value, double low, double high) const {
    const double number = value.is_number() ? value.get<double>() : low - 1;
    if (!(number >= low && number <= high)) refuse(key, value, "a number from ", low, " to ", high);
    return number;
  }

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace espalier::detail
