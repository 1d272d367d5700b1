// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/schema/json_schema.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/constraint/automaton/byte_dfa.hpp"
#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/schema/flat_schema.hpp"
#include "espalier/constraint/schema/scalar_parts.hpp"
#include "espalier/core/error.hpp"

namespace espalier::detail {

// Readings of a schema's keywords. Each raises input_error, with the keyword and its path, for a value that the keyword
// cannot have.
class keyword_reader {
 protected:
  using json = schema_json;

  template <class... PiecesT>
  [[noreturn]] static void refuse(const std::string& path, std::string_view keyword, const PiecesT&... why) {
    schema_flattener::refuse(path, keyword, why...);
  }

  static std::int64_t whole_number(const json& schema, const char* keyword, std::int64_t otherwise,
                                   const std::string& path, std::int64_t low, std::int64_t high) {
    const auto at = schema.find(keyword);
    if (at == schema.end()) return otherwise;
    const double number = at->is_number() ? at->get<double>() : 0;
    if (!at->is_number() || !(number >= static_cast<double>(low) && number <= static_cast<double>(high)) ||
        number != static_cast<double>(static_cast<std::int64_t>(number)))
      refuse(path, keyword, "which must be a whole number from ", low, " to ", high, ".");
    return static_cast<std::int64_t>(number);
  }

  // Returns the number of times, 0 to 2^30, that a keyword such as minItems gives; `otherwise` if the schema lacks it.
  static std::int32_t times(const json& schema, const char* keyword, std::int32_t otherwise, const std::string& path) {
    return static_cast<std::int32_t>(whole_number(schema, keyword, otherwise, path, 0, 1 << 30));
  }

  // Refuses a keyword that is not one of these: type, `excepted`, and the keywords of one type, such as minLength.
  static void require_known(const std::string& keyword, const std::string& path) {
    constexpr std::string_view known =
        " additionalProperties exclusiveMaximum exclusiveMinimum format items maxItems maxLength maxProperties maximum "
        "minItems minLength minProperties minimum multipleOf pattern patternProperties prefixItems properties "
        "propertyNames required type uniqueItems \1except ";
    if (known.find(" " + keyword + " ") == std::string_view::npos)
      refuse(path, keyword, "which is not supported there.");
  }

  static void require_number(const json& what, const char* keyword, const std::string& path) {
    if (!what.is_number()) refuse(path, keyword, "which is ", shortened(what), "; expected a number.");
  }
  static const json& one_or_more(const json& what, std::string_view keyword, const char* of, const std::string& path) {
    if (!what.is_array() || what.empty()) refuse(path, keyword, "which must be a list of one ", of, " or more.");
    return what;
  }
  static const json& object_at(const json& schema, const char* keyword, const std::string& path) {
    static const json none = json::object();
    const json& what = schema.contains(keyword) ? schema[keyword] : none;
    if (!what.is_object()) refuse(path, keyword, "which must be an object.");
    return what;
  }
  static json required_of(const json& schema, const std::string& path) {
    json required = schema.contains("required") ? schema["required"] : json::array();
    if (!required.is_array()) refuse(path, "required", "which must be a list of names.");
    for (const json& name : required) {
      if (!name.is_string()) refuse(path, "required", "which names ", shortened(name), "; expected a string.");
    }
    return required;
  }
};

// Checks the values of an enum against the keywords that stand beside the enum. It looks at the values themselves. The
// automaton of these keywords cannot be used: it does not accept every form in which the values of an enum may be
// written, and it may contain the same enum again.
class schema_check : private keyword_reader {
 public:
  // Makes the part of an automaton that accepts the strings that these keywords allow.
  using string_parts = std::function<nfa_part(byte_nfa&, const schema_json& keywords, const std::string& path)>;

  schema_check(schema_flattener& schemas, string_parts string_part)
      : schemas_(&schemas), has_decimals_(schemas.has_decimals()), string_part_(std::move(string_part)) {}

  // True if these keywords, which stand beside the enum, allow a value. They must live as long as the call.
  //
  // Errors      input_error for a keyword that is not supported, and if the check takes too long or goes too deep
  bool operator()(const schema_json& keywords, const schema_json& v, const std::string& path) {
    known_.clear();
    return allows_flat(keywords, v, path, 0);
  }

 private:
  // True if a schema allows a value by its restrictions `own`, which schema_flattener::restrictions() gives.
  bool allows_flat(const json& own, const json& v, const std::string& path, int depth) {
    for (const auto& [keyword, what] : own.items()) {
      if (!allows_by(keyword, what, v, path, depth)) return false;
    }
    if (v.is_string()) return allows_string(own, v.get<std::string>(), path);
    if (v.is_number()) return allows_number(own, v, path);
    if (v.is_array()) return allows_array(own, v, path, depth);
    return !v.is_object() || allows_object(own, v, path, depth);
  }

  // True if a schema allows a value.
  bool allows(const json& schema, const json& v, const std::string& path, int depth) {
    constexpr int most_levels = 256;
    if (schema.is_boolean()) return schema.get<bool>();
    if (depth > most_levels) {
      raise<input_error>("the JSON schema is nested more than ", most_levels, " levels deep at ", path,
                         ", where the values of an enum are checked.");
    }
    count_check(0);
    const json*& known = known_[&schema];
    if (known == nullptr) {
      std::string text = schema.dump();
      count_check(text.size());
      const auto [at, is_new] = restricted_.try_emplace(std::move(text));
      if (is_new) at->second = schemas_->restrictions(schema, path);
      known = &at->second;
    }
    const json& own = *known;
    if (own.is_boolean()) return own.get<bool>();
    // A schema that leads back to itself for the same value would be checked without end, so it allows nothing, as in
    // schema_parser::rule().
    const std::pair<const json*, const json*> check{&own, &v};
    if (std::find(checks_.begin(), checks_.end(), check) != checks_.end()) return false;
    checks_.push_back(check);
    const bool is_allowed = allows_flat(own, v, path, depth);
    checks_.pop_back();
    return is_allowed;
  }

  // Counts a check that reads so many bytes.
  void count_check(std::size_t bytes) {
    constexpr std::size_t most = std::size_t{1} << 26;
    n_checked_ += bytes + 64;
    if (n_checked_ > most)
      raise<input_error>("the JSON schema is too large: the values of an enum take more than ", most / 64,
                         " steps to check by the keywords beside it.");
  }

  // True if one keyword allows a value. True also for a keyword of one type, such as minLength: allows_string() and so
  // on check these together.
  bool allows_by(const std::string& keyword, const json& what, const json& v, const std::string& path, int depth) {
    if (keyword == "type") {
      const json types = what.is_array() ? what : json::array({what});
      for (const json& type : types)
        (void)schema_flattener::type_name(type, path);
      return has_type(v, types, has_decimals_);
    }
    if (keyword == "enum") {
      count_check(what.size());
      return schema_flattener::is_in(v, one_or_more(what, "enum", "value", path));
    }
    if (keyword == excepted) return !schema_flattener::is_in(v, what);
    if (keyword == "$ref") return allows(schemas_->target(what, path), v, what.get<std::string>(), depth + 1);
    if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") {
      const json& branches = one_or_more(what, keyword, "schema", path);
      const auto n = static_cast<std::size_t>(std::count_if(branches.begin(), branches.end(), [&](const json& branch) {
        return allows(branch, v, path + "/" + keyword, depth + 1);
      }));
      return keyword == "allOf" ? n == branches.size() : keyword == "anyOf" ? n > 0 : n == 1;
    }
    require_known(keyword, path);
    return true;
  }

  bool allows_string(const json& own, const std::string& text, const std::string& path) {
    json only = json::object();
    for (const char* keyword : {"minLength", "maxLength", "pattern", "format"}) {
      if (own.contains(keyword)) only[keyword] = own[keyword];
    }
    if (only.empty()) return true;
    const std::string key = only.dump();
    count_check(key.size() + text.size());
    auto at = checked_strings_.find(key);
    if (at == checked_strings_.end()) {
      byte_nfa strings;
      const nfa_part part = string_part_(strings, only, path);
      at = checked_strings_.emplace(key, byte_dfa(std::move(strings), part)).first;
    }
    std::int32_t state = at->second.start();
    for (const char c : json_text(text))
      state = at->second.next(state, static_cast<std::uint8_t>(c));
    return at->second.accepts(state);
  }

  static bool allows_number(const json& own, const json& v, const std::string& path) {
    const auto is_beyond = [&](const char* keyword, bool is_low, bool is_excluded) {
      const auto at = own.find(keyword);
      if (at == own.end()) return false;
      require_number(*at, keyword, path);
      return is_excluded ? !(is_low ? is_less(*at, v) : is_less(v, *at)) : is_low ? is_less(v, *at) : is_less(*at, v);
    };
    if (is_beyond("minimum", true, false) || is_beyond("exclusiveMinimum", true, true) ||
        is_beyond("maximum", false, false) || is_beyond("exclusiveMaximum", false, true))
      return false;
    const std::int64_t multiple = whole_number(own, "multipleOf", 1, path, 1, 1000000);
    if (!own.contains("multipleOf")) return true;
    if (v.is_number_unsigned()) return v.get<std::uint64_t>() % static_cast<std::uint64_t>(multiple) == 0;
    if (v.is_number_integer()) return v.get<std::int64_t>() % multiple == 0;
    return std::fmod(v.get<double>(), static_cast<double>(multiple)) == 0;
  }

  // True if a number is less than another; whole numbers are compared as such.
  static bool is_less(const json& a, const json& b) {
    if (!a.is_number_integer() || !b.is_number_integer()) return a.get<long double>() < b.get<long double>();
    const auto is_less_than_b = [&](auto x) {
      return b.is_number_unsigned() ? std::cmp_less(x, b.get<std::uint64_t>())
                                    : std::cmp_less(x, b.get<std::int64_t>());
    };
    return a.is_number_unsigned() ? is_less_than_b(a.get<std::uint64_t>()) : is_less_than_b(a.get<std::int64_t>());
  }

  bool allows_array(const json& own, const json& v, const std::string& path, int depth) {
    const auto n = static_cast<std::int64_t>(v.size());
    if (n < times(own, "minItems", 0, path) || n > times(own, "maxItems", 1 << 30, path)) return false;
    static const json none = json::array();
    const json& prefix =
        own.contains("prefixItems") ? one_or_more(own["prefixItems"], "prefixItems", "schema", path) : none;
    for (std::size_t i = 0; i < v.size(); ++i) {
      if (i < prefix.size() && !allows(prefix[i], v[i], path + "/prefixItems/" + std::to_string(i), depth + 1))
        return false;
      if (i >= prefix.size() && own.contains("items") && !allows(own["items"], v[i], path + "/items", depth + 1))
        return false;
    }
    if (!own.contains("uniqueItems")) return true;
    if (own["uniqueItems"] != true) refuse(path, "uniqueItems", "which must be true or false.");
    std::set<nlohmann::json> different;
    for (const json& one : v)
      different.insert(nlohmann::json(one));
    return different.size() == v.size();
  }

  bool allows_object(const json& own, const json& v, const std::string& path, int depth) {
    const auto n = static_cast<std::int64_t>(v.size());
    if (n < times(own, "minProperties", 0, path) || n > times(own, "maxProperties", 1 << 30, path)) return false;
    for (const json& name : required_of(own, path)) {
      if (!v.contains(name.get<std::string>())) return false;
    }
    const json& properties = object_at(own, "properties", path);
    const json& patterns = object_at(own, "patternProperties", path);
    for (const auto& [name, one] : v.items()) {
      bool is_named = properties.contains(name);
      if (is_named && !allows(properties[name], one, path + "/properties/" + name, depth + 1)) return false;
      for (const auto& [text, what] : patterns.items()) {
        count_check(64 * (text.size() + name.size()));
        if (!finds(text, name)) continue;
        is_named = true;
        if (!allows(what, one, path + "/patternProperties/" + text, depth + 1)) return false;
      }
      if (!is_named && own.contains("additionalProperties") &&
          !allows(own["additionalProperties"], one, path + "/additionalProperties", depth + 1))
        return false;
      if (own.contains("propertyNames") &&
          !allows(own["propertyNames"], json(name), path + "/propertyNames", depth + 1))
        return false;
    }
    return true;
  }

  schema_flattener* schemas_;
  bool has_decimals_;  // whether 1.0 is a whole number
  string_parts string_part_;
  std::map<std::string, json> restricted_;                   // restrictions of schemas, by their text
  std::map<const json*, const json*> known_;                 // restrictions of schemas in one call, by the schemas
  std::map<std::string, byte_dfa> checked_strings_;          // automata of strings, by the text of their keywords
  std::vector<std::pair<const json*, const json*>> checks_;  // restrictions and values that are being checked
  std::size_t n_checked_ = 0;                                // bytes that all checks have read, plus 64 for each check
};

}  // namespace espalier::detail
