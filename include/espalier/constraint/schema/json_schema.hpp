// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/automaton/character_set.hpp"
#include "espalier/constraint/automaton/regex_parser.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/error.hpp"

namespace espalier {

namespace detail {

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

// Parses the text of a schema; properties keep their order.
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

// Makes the part of an automaton that accepts the integers from `low` to `high`, without leading zeros.
class integer_range {
 public:
  static constexpr std::int64_t most = 999'999'999'999'999;

  // Notes the range; part() then adds the part to the automaton.
  //
  // Pre         -most <= low <= high <= most
  integer_range(byte_nfa& nfa, std::int64_t low, std::int64_t high) : nfa_(nfa), low_(low), high_(high) {}

  nfa_part part() {
    std::optional<nfa_part> all;
    if (low_ < 0) {
      const nfa_part minus = nfa_.byte('-', '-');
      all = nfa_.then(minus, natural((std::max)(std::int64_t{1}, -high_), -low_));
    }
    if (high_ < 0) return *all;
    const nfa_part rest = natural((std::max)(std::int64_t{0}, low_), high_);
    return all ? nfa_.either(*all, rest) : rest;
  }

 private:
  nfa_part natural(std::int64_t low, std::int64_t high) {
    std::optional<nfa_part> all;
    std::int64_t first = 0, last = 9;  // smallest and largest number of equally many digits
    for (; first <= high; first = last + 1, last = last * 10 + 9) {
      if (last < low) continue;
      const nfa_part one = between(std::to_string((std::max)(first, low)), std::to_string((std::min)(last, high)));
      all = all ? nfa_.either(*all, one) : one;
    }
    return *all;
  }

  // The part that accepts the numbers from `low` to `high`, which have equally many digits.
  nfa_part between(std::string_view low, std::string_view high) {
    if (low.empty()) return nfa_.nothing();
    const bool is_free = std::all_of(low.begin(), low.end(), [](char c) { return c == '0'; }) &&
                         std::all_of(high.begin(), high.end(), [](char c) { return c == '9'; });
    if (is_free || low[0] == high[0]) return digit(low[0], high[0], low.substr(1), high.substr(1));
    const std::string zeros(low.size() - 1, '0'), nines(low.size() - 1, '9');
    nfa_part all = digit(low[0], low[0], low.substr(1), nines);
    if (low[0] + 1 < high[0])
      all = nfa_.either(all, digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1), zeros, nines));
    return nfa_.either(all, digit(high[0], high[0], zeros, high.substr(1)));
  }

  nfa_part digit(char from, char to, std::string_view low, std::string_view high) {
    const nfa_part first = nfa_.byte(static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to));
    return nfa_.then(first, between(low, high));
  }

  byte_nfa& nfa_;
  std::int64_t low_, high_;
};

// Makes the part of an automaton that accepts the values of a JSON schema: see json_schema().
//
// A schema that no value satisfies has no part; where it is optional, it is left out.
class schema_parser {
 public:
  static constexpr int max_nesting = 4;

  schema_parser(byte_nfa& nfa, std::string_view schema) : nfa_(nfa), root_(parse_schema_text(schema)) {}

  nfa_part parse() {
    const maybe_part all = value(root_, "#", 0);
    if (!all) raise<input_error>("nothing satisfies the JSON schema: no value is possible at ", none_at_, ".");
    return *all;
  }

 private:
  using json = nlohmann::ordered_json;
  using maybe_part = std::optional<nfa_part>;
  static constexpr int max_depth = 64;
  static constexpr int max_values = 1 << 16;
  static constexpr int any_depth = 2;
  static constexpr std::int32_t many = -1;

  template <class... PiecesT>
  [[noreturn]] static void refuse(const std::string& path, std::string_view keyword, const PiecesT&... why) {
    raise<input_error>("the JSON schema has \"", keyword, "\" at ", path, ", ", why...);
  }

  // Checks that each keyword is one of these, or one that does not restrict the values.
  static void require_known(const json& schema, const std::string& path, std::vector<std::string_view> known) {
    for (const char* passed_over :
         {"title", "description", "default", "examples", "example", "format", "$schema", "$id", "$comment", "$defs",
          "definitions", "deprecated", "readOnly", "writeOnly", "$anchor", "contentMediaType", "contentEncoding"})
      known.emplace_back(passed_over);
    for (const auto& [keyword, _] : schema.items()) {
      if (std::find(known.begin(), known.end(), keyword) == known.end())
        refuse(path, keyword, "which is not supported there.");
    }
  }

  static std::int64_t whole_number(const json& schema, const char* keyword, std::int64_t otherwise,
                                   const std::string& path, std::int64_t low, std::int64_t high) {
    const auto at = schema.find(keyword);
    if (at == schema.end()) return otherwise;
    const double number = at->is_number() ? at->get<double>() : static_cast<double>(low) - 1;
    if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high)) ||
        number != static_cast<double>(static_cast<std::int64_t>(number)))
      refuse(path, keyword, "which must be a whole number from ", low, " to ", high, ".");
    return at->is_number_integer() ? at->get<std::int64_t>() : static_cast<std::int64_t>(number);
  }

  maybe_part value(const json& schema, const std::string& path, int depth) {
    if (depth > max_depth) raise<input_error>("the JSON schema is nested more than ", max_depth, " levels deep.");
    if (++n_values_ > max_values) {
      raise<input_error>("the JSON schema is too large: with all references written out it has more than ", max_values,
                         " schemas.");
    }
    if (schema.is_boolean()) return schema.get<bool>() ? maybe_part(any(any_depth)) : none(path);
    if (!schema.is_object())
      raise<input_error>("the JSON schema has ", shortened(schema), " at ", path,
                         "; expected an object, true or false.");
    if (schema.contains("$ref")) return reference(schema, path, depth);
    if (schema.contains("anyOf")) return any_of(schema, path, depth);
    if (schema.contains("const") || schema.contains("enum")) return one_of(schema, path);
    if (schema.contains("type")) {
      const json& type = schema["type"];
      if (!type.is_array()) return of_type(schema, type, path, depth);
      maybe_part all;
      for (const json& t : type)
        all = either(all, of_type(schema, t, path, depth));
      return all;
    }
    // Without a type: the type that its keywords belong to, or any value.
    for (const char* keyword : {"properties", "required", "additionalProperties"}) {
      if (schema.contains(keyword)) return of_type(schema, "object", path, depth);
    }
    if (schema.contains("items")) return of_type(schema, "array", path, depth);
    require_known(schema, path, {});
    return any(any_depth);
  }

  // The result for a schema that no value satisfies. The error for the whole schema names the last path that was noted
  // here.
  maybe_part none(const std::string& path) {
    none_at_ = path;
    return std::nullopt;
  }

  maybe_part either(maybe_part a, maybe_part b) { return a && b ? nfa_.either(*a, *b) : a ? a : b; }

  maybe_part reference(const json& schema, const std::string& path, int depth) {
    require_known(schema, path, {"$ref"});
    const json& target = schema["$ref"];
    const std::string name = target.is_string() ? target.get<std::string>() : std::string();
    const json* at = find_schema(root_, name);
    if (at == nullptr)
      refuse(path, "$ref", "which is ", shortened(target), "; expected # or #/... and a place of the schema.");
    int& nesting = nesting_[name];
    if (nesting >= max_nesting) return none(path);
    ++nesting;
    const maybe_part part = value(*at, name, depth + 1);
    --nesting_[name];
    return part;
  }

  maybe_part any_of(const json& schema, const std::string& path, int depth) {
    require_known(schema, path, {"anyOf"});
    const json& all = schema["anyOf"];
    if (!all.is_array() || all.empty()) refuse(path, "anyOf", "which must be a list of one schema or more.");
    maybe_part part;
    for (std::size_t i = 0; i < all.size(); ++i)
      part = either(part, value(all[i], path + "/anyOf/" + std::to_string(i), depth + 1));
    return part;
  }

  maybe_part one_of(const json& schema, const std::string& path) {
    require_known(schema, path, {"const", "enum", "type"});
    const bool is_const = schema.contains("const");
    if (is_const && schema.contains("enum")) refuse(path, "const", "which does not go with enum.");
    const json values = is_const ? json::array({schema["const"]}) : schema["enum"];
    if (!values.is_array() || values.empty()) refuse(path, "enum", "which must be a list of one value or more.");
    if (schema.contains("type")) {
      const json types = schema["type"].is_array() ? schema["type"] : json::array({schema["type"]});
      for (const json& type : types)
        (void)type_name(type, path);
    }
    maybe_part part;
    for (const json& v : values) {
      if (schema.contains("type") && !has_type(v, schema["type"])) continue;
      part = either(part, nfa_.bytes(v.dump()));
    }
    return part ? part : none(path);
  }

  static std::string type_name(const json& type, const std::string& path) {
    for (const char* name : {"string", "number", "integer", "boolean", "null", "array", "object"}) {
      if (type == name) return name;
    }
    refuse(path, "type", "which is ", shortened(type),
           "; expected string, number, integer, boolean, null, array or object.");
  }

  maybe_part of_type(const json& schema, const json& type, const std::string& path, int depth) {
    const std::string name = type_name(type, path);
    const bool is_list = schema.contains("type") && schema["type"].is_array();
    // In a list of types, keywords may belong to any of the types.
    const auto require = [&](std::vector<std::string_view> known) {
      known.emplace_back("type");
      if (!is_list) require_known(schema, path, std::move(known));
    };
    if (is_list) {
      require_known(
          schema, path,
          {"type", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
           "items", "minItems", "maxItems", "properties", "required", "additionalProperties"});
    }
    if (name == "null") return require({}), nfa_.bytes("null");
    if (name == "boolean") return require({}), nfa_.either(nfa_.bytes("true"), nfa_.bytes("false"));
    if (name == "string") return require({"pattern", "minLength", "maxLength"}), string(schema, path);
    if (name == "integer") {
      require({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
      return integer(schema, path);
    }
    if (name == "number") {
      for (const char* bound : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
        if (schema.contains(bound)) refuse(path, bound, "which is supported for integers alone.");
      }
      return require({}), number();
    }
    if (name == "array") return require({"items", "minItems", "maxItems"}), array(schema, path, depth);
    return require({"properties", "required", "additionalProperties"}), object(schema, path, depth);
  }

  // ------ how values are written

  nfa_part pattern(std::string_view text, character_form form = character_form::utf8) {
    return regex_parser(nfa_, text, form).parse();
  }

  nfa_part number() { return pattern("-?(0|[1-9]\\d{0,14})(\\.\\d{1,15})?([eE][-+]?\\d{1,2})?"); }

  maybe_part integer(const json& schema, const std::string& path) {
    // Bounds in the schema may be wider than the range that is written.
    constexpr std::int64_t most = integer_range::most, limit = std::int64_t{1} << 62;
    std::int64_t low = (std::max)(-most, whole_number(schema, "minimum", -most, path, -limit, limit));
    std::int64_t high = (std::min)(most, whole_number(schema, "maximum", most, path, -limit, limit));
    low = (std::max)(low, whole_number(schema, "exclusiveMinimum", -most - 1, path, -limit, limit) + 1);
    high = (std::min)(high, whole_number(schema, "exclusiveMaximum", most + 1, path, -limit, limit) - 1);
    if (low > high) return none(path);
    return integer_range(nfa_, low, high).part();
  }

  // The part `one` repeated `least` to `most` times, as two keywords of the schema say; most == many: any number from
  // `least` on.
  nfa_part repeated(nfa_part one, std::int32_t least, std::int32_t most, std::string_view least_keyword,
                    std::string_view most_keyword, const std::string& path) {
    if (!nfa_.has_room(one, least, most)) {
      refuse(path, most == many ? least_keyword : most_keyword, "which is too large: an automaton has at most ",
             byte_nfa::max_states, " states, and what it repeats has ", one.last - one.first, ".");
    }
    return nfa_.times(one, least, most);
  }

  nfa_part any_character() {
    return character_set({{0, character_set::last}})
        .in(character_form::json_string)
        .add_to(nfa_, character_form::json_string);
  }

  // True if a pattern ends in a $ that no backslash escapes.
  static bool ends_in_anchor(std::string_view text) {
    if (text.empty() || text.back() != '$') return false;
    text.remove_suffix(1);
    const std::size_t last = text.find_last_not_of('\\');
    const std::size_t n_backslashes = text.size() - (last == std::string_view::npos ? 0 : last + 1);
    return n_backslashes % 2 == 0;
  }

  maybe_part string(const json& schema, const std::string& path) {
    const auto least = static_cast<std::int32_t>(whole_number(schema, "minLength", 0, path, 0, 10000));
    const auto most = static_cast<std::int32_t>(whole_number(schema, "maxLength", many, path, 0, 1 << 30));
    nfa_part all = nfa_.bytes("\"");
    if (!schema.contains("pattern")) {
      if (most != many && most < least) return none(path);
      all = nfa_.then(all, repeated(any_character(), least, most, "minLength", "maxLength", path));
    } else {
      const json& given = schema["pattern"];
      if (!given.is_string()) refuse(path, "pattern", "which must be a string.");
      if (schema.contains("minLength") || schema.contains("maxLength"))
        refuse(path, "pattern", "which is not supported together with a length.");
      const auto text = given.get<std::string>();
      const bool begins = !text.empty() && text.front() == '^';
      const bool ends = ends_in_anchor(text);
      if (!begins) all = nfa_.then(all, nfa_.optional(any_character(), true));
      all = nfa_.then(all, pattern(text, character_form::json_string));
      if (!ends) all = nfa_.then(all, nfa_.optional(any_character(), true));
    }
    return nfa_.then(all, nfa_.bytes("\""));
  }

  // A mark between two values, followed by at most one space.
  nfa_part mark(std::string_view text) { return nfa_.then(nfa_.bytes(text), nfa_.optional(nfa_.bytes(" "), false)); }

  // [ ] or { } around at least `least` and at most `most` values, each made by add().
  template <class AddT>
  maybe_part listed(std::string_view open, std::string_view close, std::int32_t least, std::int32_t most,
                    const AddT& add, const std::string& path = "#") {
    if (most != many && most < least) return none(path);
    const nfa_part begin = nfa_.bytes(open);
    maybe_part inside;
    if (most != 0) inside = add();
    if (inside && most != 1) {
      const maybe_part next = add_after(mark(","), add);
      const nfa_part more =
          repeated(*next, (std::max)(least - 1, 0), most == many ? many : most - 1, "minItems", "maxItems", path);
      inside = nfa_.then(*inside, more);
    }
    if (!inside && least > 0) return std::nullopt;
    const nfa_part none_or_some = !inside ? nfa_.nothing() : least == 0 ? nfa_.optional(*inside, false) : *inside;
    return nfa_.then(nfa_.then(begin, none_or_some), nfa_.bytes(close));
  }

  template <class AddT>
  maybe_part add_after(nfa_part before, const AddT& add) {
    const maybe_part part = add();
    return part ? maybe_part(nfa_.then(before, *part)) : std::nullopt;
  }

  maybe_part array(const json& schema, const std::string& path, int depth) {
    const auto least = static_cast<std::int32_t>(whole_number(schema, "minItems", 0, path, 0, 10000));
    const auto most = static_cast<std::int32_t>(whole_number(schema, "maxItems", many, path, 0, 1 << 30));
    const json items = schema.contains("items") ? schema["items"] : json(true);
    return listed(
        "[", "]", least, most, [&] { return value(items, path + "/items", depth + 1); }, path);
  }

  maybe_part object(const json& schema, const std::string& path, int depth) {
    const json properties = schema.contains("properties") ? schema["properties"] : json::object();
    const json required = schema.contains("required") ? schema["required"] : json::array();
    if (!properties.is_object()) refuse(path, "properties", "which must be an object.");
    if (!required.is_array()) refuse(path, "required", "which must be a list of names.");
    for (const json& name : required) {
      if (!name.is_string() || !properties.contains(name.get<std::string>()))
        refuse(path, "required", "which names ", shortened(name), "; expected one of the properties.");
    }
    const json others = schema.contains("additionalProperties") ? schema["additionalProperties"] : json(true);
    if (!others.is_boolean() && !others.is_object())
      refuse(path, "additionalProperties", "which must be true, false or a schema.");
    if (properties.empty()) {
      if (others.is_boolean() && !others.get<bool>()) return nfa_.bytes("{}");
      return listed("{", "}", 0, many, [&]() -> maybe_part {
        nfa_part key = nfa_.bytes("\"");
        key = nfa_.then(key, nfa_.times(any_character(), 1, many));
        key = nfa_.then(key, mark("\":"));
        return add_after(key, [&] { return value(others, path + "/additionalProperties", depth + 1); });
      });
    }
    // There are two states between properties: `empty`, if no property is written yet, and `filled`, if one is, so that
    // a comma comes next.
    const nfa_part begin = nfa_.bytes("{"), end = nfa_.bytes("}");
    std::int32_t empty = begin.end, filled = -1;
    for (const auto& [name, one] : properties.items()) {
      const bool is_required = std::find(required.begin(), required.end(), json(name)) != required.end();
      const nfa_part comma = mark(","), key = nfa_.then(nfa_.bytes(json(name).dump()), mark(":"));
      const maybe_part what = value(one, path + "/properties/" + name, depth + 1);
      if (!what && is_required) return std::nullopt;
      if (!what) continue;
      const std::int32_t after = nfa_.nothing().begin, next_empty = nfa_.nothing().begin;
      nfa_.link(comma.end, key.begin);
      nfa_.link(key.end, what->begin);
      nfa_.link(what->end, after);
      if (empty >= 0) nfa_.link(empty, key.begin);
      if (filled >= 0) nfa_.link(filled, comma.begin);
      if (!is_required && empty >= 0) nfa_.link(empty, next_empty);
      if (!is_required && filled >= 0) nfa_.link(filled, after);
      empty = is_required ? -1 : empty >= 0 ? next_empty : -1;
      filled = after;
    }
    if (empty >= 0) nfa_.link(empty, end.begin);
    if (filled >= 0) nfa_.link(filled, end.begin);
    return nfa_part{begin.first, nfa_.size(), begin.begin, end.end};
  }

  // Any value with at most this many levels of lists and objects.
  nfa_part any(int levels) {
    nfa_part all = nfa_.either(pattern("null|true|false"), number());
    all = nfa_.either(all, *string(json::object(), "#"));
    if (levels == 0) return all;
    all = nfa_.either(all, *listed("[", "]", 0, many, [&]() -> maybe_part { return any(levels - 1); }));
    return nfa_.either(all, *listed("{", "}", 0, many, [&]() -> maybe_part {
                         nfa_part key = nfa_.then(nfa_.bytes("\""), nfa_.times(any_character(), 1, many));
                         key = nfa_.then(key, mark("\":"));
                         return nfa_.then(key, any(levels - 1));
                       }));
  }

  byte_nfa& nfa_;
  json root_;
  std::map<std::string, int> nesting_;  // by name of a reference: how many of it are being followed
  std::string none_at_;                 // path of the last schema that no value satisfies: see none()
  int n_values_ = 0;                    // schemas that were read; one that is referred to counts each time
};

}  // namespace detail

//! Makes the constraint that allows values in JSON that a schema describes: every finished text is such a value.
//!
//! Objects are written in the order of `properties`, on one line, with or without a space after each comma and colon;
//! numbers have at most 15 digits before and after the point; strings have no \u escapes. So not every text of the
//! schema can be written, but no other text can.
//!
//! A schema may have these keywords: type (one or a list), enum, const, properties, required, additionalProperties,
//! items, minItems, maxItems, pattern (as regular_expression; any text may stand before it unless it begins with ^, and
//! after it unless it ends with $; not together with a length), minLength, maxLength, minimum, maximum,
//! exclusiveMinimum and exclusiveMaximum of integers, anyOf, $ref into the schema itself, $defs, definitions. Keywords
//! that describe or annotate (title, format, ...) are passed over. If a schema names properties of an object, no others
//! are written; if it names none, keys have one character or more and may occur twice, and values are as
//! additionalProperties says. Nesting is bounded: at most 4 references to the same schema are followed within each
//! other, and where any value is allowed, lists and objects are at most two levels deep.
//!
//! Complexity  O(size of the schema with all repetitions and references written out)
//! Errors      input_error for a text that is no JSON (line and column) or more than 200 levels deep, integers beyond
//!             64 bits, a keyword that is not known or not supported with the others (the keyword and its path), a
//!             schema that no value satisfies, and one that is too large
//! Source      JSON Schema, draft 2020-12
inline token_automaton json_schema(std::string_view schema, vocabulary_trie vocabulary) {
  detail::byte_nfa nfa;
  const detail::nfa_part all = detail::schema_parser(nfa, schema).parse();
  return token_automaton(std::move(nfa), all, std::move(vocabulary));
}

}  // namespace espalier
