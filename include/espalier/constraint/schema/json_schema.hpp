// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/automaton/character_set.hpp"
#include "espalier/constraint/automaton/regex_parser.hpp"
#include "espalier/constraint/schema/decimal_range.hpp"
#include "espalier/constraint/schema/flat_schema.hpp"
#include "espalier/constraint/schema/string_format.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/error.hpp"

namespace espalier {

//! Options of json_schema().
struct json_schema_options {
  bool ignore_other_formats = false;  //!< formats of strings that are not supported are passed over, and not refused
};

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

// Makes the part of an automaton that accepts the values of a JSON schema: see json_schema().
//
// A schema that no value satisfies has no part; where it is optional, it is left out.
class schema_parser {
 public:
  static constexpr int max_nesting = 4;

  schema_parser(byte_nfa& nfa, std::string_view schema, const json_schema_options& options)
      : nfa_(nfa), schemas_(parse_schema_text(schema)), options_(options) {}

  nfa_part parse() {
    const maybe_part all = value(schemas_.root(), "#", 0);
    if (!all) raise<input_error>("nothing satisfies the JSON schema: no value is possible at ", none_at_, ".");
    return *all;
  }

 private:
  using json = schema_json;
  using maybe_part = std::optional<nfa_part>;
  static constexpr int any_depth = 2;
  static constexpr std::int32_t many = -1;

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

  maybe_part value(const json& schema, const std::string& path, int depth) {
    schemas_.count(depth);
    if (schema.is_boolean()) return schema.get<bool>() ? maybe_part(any(any_depth)) : none(path);
    std::vector<std::string> followed;
    const json own = schemas_.restrictions(schema, path);
    if (own.is_object() && own.size() == 1 && own.contains("$ref")) {
      const json& target = schemas_.target(own["$ref"], path);
      followed.push_back(own["$ref"].get<std::string>());
      return following(followed, path, [&] { return value(target, followed[0], depth + 1); });
    }
    const json flat = schemas_.flat(schema, path, depth, followed);
    return following(followed, path, [&] { return of_flat(flat, path, depth); });
  }

  // Returns the part that add() makes while references of these names are being followed; none if one of the names is
  // followed within itself too often.
  template <class AddT>
  maybe_part following(const std::vector<std::string>& names, const std::string& path, const AddT& add) {
    for (const std::string& name : names) {
      if (nesting_[name] >= max_nesting) return none(path);
    }
    for (const std::string& name : names)
      ++nesting_[name];
    const maybe_part part = add();
    for (const std::string& name : names)
      --nesting_[name];
    return part;
  }

  maybe_part of_flat(const json& flat, const std::string& path, int depth) {
    if (flat.is_boolean()) return flat.get<bool>() ? maybe_part(any(any_depth)) : none(path);
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (flat.contains(keyword)) return any_of(flat, keyword, path, depth);
    }
    if (flat.contains("enum")) return one_of(flat, path, depth);
    if (flat.empty()) return any(any_depth);
    const json types = schema_flattener::written_types(flat, path);
    maybe_part all;
    for (const json& type : types)
      all = either(all, of_type(flat, type, path, depth));
    return all;
  }

  // The result for a schema that no value satisfies. The error for the whole schema names the last path that was noted
  // here.
  maybe_part none(const std::string& path) {
    none_at_ = path;
    return std::nullopt;
  }

  maybe_part either(maybe_part a, maybe_part b) { return a && b ? nfa_.either(*a, *b) : a ? a : b; }

  // The values of one of the branches, and of the other keywords beside them.
  maybe_part any_of(const json& flat, const char* keyword, const std::string& path, int depth) {
    const json& branches = flat[keyword];
    if (!branches.is_array() || branches.empty()) refuse(path, keyword, "which must be a list of one schema or more.");
    const json rest = schema_flattener::without(flat, keyword);
    std::vector<json> all;
    for (const json& branch : branches)
      all.push_back(schema_flattener::both(rest, branch));
    for (std::size_t i = 0; i < all.size() && keyword == std::string_view("oneOf"); ++i) {
      for (std::size_t j = 0; j < all.size(); ++j) {
        if (i == j || schemas_.excludes(all[i], all[j], path)) continue;
        refuse(path, keyword, "of which the schemas ", (std::min)(i, j), " and ", (std::max)(i, j),
               " may have values in common: it needs different types, or values of a required property.");
      }
    }
    maybe_part part;
    for (std::size_t i = 0; i < all.size(); ++i)
      part = either(part, value(all[i], path + "/" + keyword + "/" + std::to_string(i), depth + 1));
    return part;
  }

  // The values of a list, without those that the other keywords do not write.
  maybe_part one_of(const json& flat, const std::string& path, int depth) {
    const json& values = flat["enum"];
    if (!values.is_array() || values.empty()) refuse(path, "enum", "which must be a list of one value or more.");
    if (flat.contains("type")) {
      for (const json& type : schema_flattener::written_types(flat, path))
        (void)schema_flattener::type_name(type, path);
    }
    const json rest = schema_flattener::without(flat, "enum");
    const bool is_restricted = rest.size() > (rest.contains("type") ? 1U : 0U);
    const maybe_part allowed = is_restricted ? of_flat(rest, path, depth) : std::nullopt;
    maybe_part part;
    for (const json& v : values) {
      if (flat.contains("type") && !has_type(v, flat["type"])) continue;
      if (is_restricted && !(allowed && accepts(*allowed, v.dump()))) continue;
      part = either(part, nfa_.bytes(v.dump()));
    }
    return part ? part : none(path);
  }

  // True if a part accepts a text.
  bool accepts(nfa_part part, std::string_view text) const {
    std::set<std::int32_t> now{part.begin}, next;
    for (std::size_t i = 0; i <= text.size(); now = std::exchange(next, {}), ++i) {
      for (std::vector<std::int32_t> left(now.begin(), now.end()); !left.empty();) {
        const byte_nfa::state& s = nfa_[left.back()];
        left.pop_back();
        const auto byte = i < text.size() ? static_cast<std::uint8_t>(text[i]) : 0;
        if (s.takes_byte && i < text.size() && s.low <= byte && byte <= s.high) next.insert(s.to);
        for (const std::int32_t to : {s.to, s.other}) {
          if (!s.takes_byte && to >= 0 && now.insert(to).second) left.push_back(to);
        }
      }
      if (i == text.size()) return now.count(part.end) > 0;
    }
    return false;
  }

  // The values of one type; keywords that belong to other types do nothing.
  maybe_part of_type(const json& flat, const json& type, const std::string& path, int depth) {
    constexpr std::string_view known[] = {"additionalProperties",
                                          "exclusiveMaximum",
                                          "exclusiveMinimum",
                                          "format",
                                          "items",
                                          "maxItems",
                                          "maxLength",
                                          "maximum",
                                          "minItems",
                                          "minLength",
                                          "minimum",
                                          "multipleOf",
                                          "pattern",
                                          "prefixItems",
                                          "properties",
                                          "required",
                                          "type"};
    for (const auto& [keyword, _] : flat.items()) {
      if (std::find(std::begin(known), std::end(known), keyword) == std::end(known))
        refuse(path, keyword, "which is not supported there.");
    }
    const std::string name = schema_flattener::type_name(type, path);
    if (name == "null") return nfa_.bytes("null");
    if (name == "boolean") return nfa_.either(nfa_.bytes("true"), nfa_.bytes("false"));
    if (name == "string") return string(flat, path);
    if (name == "integer" || name == "number") return number(flat, name == "integer", path);
    return name == "array" ? array(flat, path, depth) : object(flat, path, depth);
  }

  // ------ how values are written

  nfa_part pattern(std::string_view text, character_form form = character_form::utf8) {
    return regex_parser(nfa_, text, form).parse();
  }

  nfa_part number() { return pattern("-?(0|[1-9]\\d{0,14})(\\.\\d{1,15})?([eE][-+]?\\d{1,2})?"); }

  maybe_part number(const json& flat, bool is_whole, const std::string& path) {
    decimal_range range(nfa_);
    for (const char* keyword : {"minimum", "exclusiveMinimum"})
      add_bound(range.lows, flat, keyword, path);
    for (const char* keyword : {"maximum", "exclusiveMaximum"})
      add_bound(range.highs, flat, keyword, path);
    range.multiple = whole_number(flat, "multipleOf", 1, path, 1, 1000000);
    range.is_whole = is_whole || flat.contains("multipleOf");
    if (!range.is_whole && range.lows.empty() && range.highs.empty()) return number();
    const maybe_part part = range.part();
    if (range.is_too_large()) refuse(path, "multipleOf", "which is too large: its automaton has too many states.");
    return part ? part : none(path);
  }

  static void add_bound(std::vector<decimal_bound>& all, const json& flat, const char* keyword,
                        const std::string& path) {
    const auto at = flat.find(keyword);
    if (at == flat.end()) return;
    if (!at->is_number()) refuse(path, keyword, "which is ", shortened(*at), "; expected a number.");
    decimal_bound bound;
    bound.is_excluded = std::string_view(keyword).substr(0, 9) == "exclusive";
    if (at->is_number_unsigned()) {
      constexpr std::uint64_t most = (std::numeric_limits<std::int64_t>::max)();
      bound.digits = static_cast<std::int64_t>((std::min)(most, at->get<std::uint64_t>()));
    } else if (at->is_number_integer()) {
      bound.digits = at->get<std::int64_t>();
    } else {
      const std::string text = at->dump();  // the shortest one of this number, of at most 17 digits
      const std::size_t e = text.find('e'), point = text.find('.');
      if (e != std::string::npos) bound.exponent = std::stoi(text.substr(e + 1));
      std::string digits = text.substr(0, e);
      if (point != std::string::npos) {
        bound.exponent -= static_cast<int>(digits.size() - point) - 1;
        digits.erase(point, 1);
      }
      bound.digits = std::stoll(digits);
    }
    all.push_back(bound);
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

  static string_format format_of(const json& schema) {
    const json& name = schema["format"];
    return string_format_of(name.is_string() ? name.get<std::string>() : std::string());
  }

  maybe_part string(const json& schema, const std::string& path) {
    const auto least = static_cast<std::int32_t>(whole_number(schema, "minLength", 0, path, 0, 10000));
    const auto most = static_cast<std::int32_t>(whole_number(schema, "maxLength", many, path, 0, 1 << 30));
    nfa_part all = nfa_.bytes("\"");
    if (schema.contains("format") && !(options_.ignore_other_formats && format_of(schema).pattern.empty())) {
      const string_format format = format_of(schema);
      if (format.pattern.empty()) {
        refuse(path, "format", "which is ", shortened(schema["format"]), "; expected ", string_format_names,
               ", unless json_schema_options::ignore_other_formats is set.");
      }
      const bool fits = least <= format.shortest && (most == many || (format.longest >= 0 && most >= format.longest));
      if (schema.contains("pattern") || !fits)
        refuse(path, "format", "which is not supported together with a pattern or a length that restricts it.");
      all = nfa_.then(all, pattern(format.pattern, character_form::json_string));
    } else if (!schema.contains("pattern")) {
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
    if (schema.contains("prefixItems")) return tuple(schema["prefixItems"], items, least, most, path, depth);
    return listed(
        "[", "]", least, most, [&] { return value(items, path + "/items", depth + 1); }, path);
  }

  // A list whose first elements have schemas of their own. It is made from its end: `after` is what may follow the
  // first `i` elements.
  maybe_part tuple(const json& first, const json& items, std::int32_t least, std::int32_t most, const std::string& path,
                   int depth) {
    if (!first.is_array() || first.empty()) refuse(path, "prefixItems", "which must be a list of one schema or more.");
    if (most != many && most < least) return none(path);
    const auto n = static_cast<std::int32_t>((std::min)(first.size(), std::size_t{1} << 20));
    maybe_part after;
    if (most == many || most > n) {
      after = add_after(mark(","), [&] { return value(items, path + "/items", depth + 1); });
      if (!after && least > n) return std::nullopt;
      if (after) {
        after =
            repeated(*after, (std::max)(least - n, 0), most == many ? many : most - n, "minItems", "maxItems", path);
      }
    }
    for (std::int32_t i = most == many ? n : (std::min)(n, most); i > 0; --i) {
      const std::string place = path + "/prefixItems/" + std::to_string(i - 1);
      maybe_part one = add_after(i > 1 ? mark(",") : nfa_.nothing(),
                                 [&] { return value(first[static_cast<std::size_t>(i - 1)], place, depth + 1); });
      if (!one && least >= i) return std::nullopt;
      if (one && after) one = nfa_.then(*one, *after);
      after = one && least < i ? nfa_.optional(*one, false) : one;
    }
    const nfa_part begin = nfa_.bytes("[");
    return nfa_.then(after ? nfa_.then(begin, *after) : begin, nfa_.bytes("]"));
  }

  maybe_part object(const json& schema, const std::string& path, int depth) {
    json properties = schema.contains("properties") ? schema["properties"] : json::object();
    const json required = schema.contains("required") ? schema["required"] : json::array();
    if (!properties.is_object()) refuse(path, "properties", "which must be an object.");
    if (!required.is_array()) refuse(path, "required", "which must be a list of names.");
    const json others = schema.contains("additionalProperties") ? schema["additionalProperties"] : json(true);
    if (!others.is_boolean() && !others.is_object())
      refuse(path, "additionalProperties", "which must be true, false or a schema.");
    for (const json& name : required) {
      if (!name.is_string()) refuse(path, "required", "which names ", shortened(name), "; expected a string.");
      const auto key = name.get<std::string>();
      if (!properties.contains(key)) properties[key] = others;
    }
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
  schema_flattener schemas_;
  json_schema_options options_;
  std::map<std::string, int> nesting_;  // by name of a reference: how many of it are being followed
  std::string none_at_;                 // path of the last schema that no value satisfies: see none()
};

}  // namespace detail

//! Makes the constraint that allows values in JSON that a schema describes: every finished text is such a value.
//!
//! Objects are written in the order of `properties`, on one line, with or without a space after each comma and colon;
//! numbers have at most 15 digits before and after the point, and between bounds 15 in all and no exponent; strings
//! have no \u escapes. So not every text of the schema can be written, but no other text can.
//!
//! A schema may have these keywords, those of older drafts in their sense:
//!   any value      type (one or a list; without it, the type that the keywords belong to), enum (values that keywords
//!                  beside it do not allow are left out), const, anyOf, allOf, oneOf (its schemas must exclude each
//!                  other by types, values, or a required property), $ref into the schema itself; other keywords may
//!                  stand beside each of these. nullable as in OpenAPI 3.0, beside a type and without $schema
//!   numbers        minimum, maximum, exclusiveMinimum, exclusiveMaximum (numbers, or draft 4's true and false),
//!                  multipleOf (a whole number: only whole numbers are written); format int32
//!   strings        minLength, maxLength, pattern (as regular_expression; any text may stand before it unless it begins
//!                  with ^, and after it unless it ends with $; not together with a length), format (date, time,
//!                  date-time, uuid, ipv4, ipv6, email, hostname and uri; not together with a pattern, or a length that
//!                  restricts it). Other formats are refused unless options.ignore_other_formats is set
//!   lists          items, prefixItems (and items as a list, with additionalItems), minItems, maxItems
//!   objects        properties, required, additionalProperties
//! Keywords of another type than the schema's do nothing.
//! Keywords that annotate (title, $comment, ...) and those that no draft from 4 to 2020-12 knows are passed over; other
//! ones of these drafts are refused. If a schema names properties of an object, also as required, no others are
//! written; if it names none, keys have one character or more and may occur twice, and values are as
//! additionalProperties says.
//! Nesting is bounded: at most 4 references to the same schema are followed within each other, and where any value is
//! allowed, lists and objects are at most two levels deep.
//!
//! Complexity  O(size of the schema with all repetitions, references, and combinations of anyOf within allOf written
//!             out); a multipleOf has about as many states as its largest divisor that is prime to 10, times 450
//! Errors      input_error for a text that is no JSON (line and column) or more than 200 levels deep, integers beyond
//!             64 bits, a keyword that has the wrong type or is not supported with the others (the keyword and its
//!             path), a schema that no value satisfies, and one that is too large
//! Source      JSON Schema, draft 2020-12
inline token_automaton json_schema(std::string_view schema, vocabulary_trie vocabulary,
                                   const json_schema_options& options = {}) {
  detail::byte_nfa nfa;
  const detail::nfa_part all = detail::schema_parser(nfa, schema, options).parse();
  return token_automaton(std::move(nfa), all, std::move(vocabulary));
}

}  // namespace espalier
