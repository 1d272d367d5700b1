// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/constraint/automaton/byte_dfa.hpp"
#include "espalier/constraint/automaton/byte_nfa.hpp"
#include "espalier/constraint/automaton/character_set.hpp"
#include "espalier/constraint/automaton/regex_parser.hpp"
#include "espalier/constraint/schema/flat_schema.hpp"
#include "espalier/constraint/schema/scalar_parts.hpp"
#include "espalier/constraint/schema/schema_check.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/error.hpp"

namespace espalier {

//! Options of json_schema().
struct json_schema_options {
  bool ignore_other_formats = false;  //!< formats that are not supported are ignored, not refused
  bool allow_lines = false;           //!< line breaks with indents may stand within brackets, and after , and :
};

namespace detail {

// A reader of JSON events that keeps the parser's first complaint instead of throwing it. More than max_depth levels
// are a complaint, too, because the code that copies and writes a value calls itself for each level; and so is a key
// that an object has twice, of which the parser would keep the last.
struct json_complaint {
  using json = nlohmann::ordered_json;
  static constexpr std::size_t max_depth = 200;
  std::string text;
  std::vector<std::set<std::string>> keys{};  // the keys of each list and object that is open; a list has none

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(json::number_integer_t) { return true; }
  bool number_unsigned(json::number_unsigned_t) { return true; }
  // The parser also calls this for an integer that 64 bits do not hold. Its text has neither a point nor an exponent.
  bool number_float(json::number_float_t, const std::string& digits) {
    if (digits.find_first_of(".eE") != std::string::npos) return true;
    text = "has the integer " + digits + ", which 64 bits do not hold";
    return false;
  }
  bool string(std::string&) { return true; }
  bool binary(json::binary_t&) { return true; }
  bool start_object(std::size_t) { return enter(); }
  bool key(std::string& name) {
    if (keys.back().insert(name).second) return true;
    text = "has the key " + json(name).dump(-1, ' ', true, json::error_handler_t::replace) + " twice in one object";
    return false;
  }
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
    keys.emplace_back();
    if (keys.size() <= max_depth) return true;
    text = "has lists and objects more than " + std::to_string(max_depth) + " levels deep";
    return false;
  }
  bool leave() { return keys.pop_back(), true; }
};

// Parses the text of a schema; properties keep their order.
//
// Errors      input_error that names line and column, the depth, an integer that is too large, or a key that stands
//             twice in an object
inline nlohmann::ordered_json parse_schema_text(std::string_view text) {
  json_complaint complaint;
  if (!nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &complaint))
    raise<input_error>("the JSON schema ", complaint.text, ".");
  return nlohmann::ordered_json::parse(text.begin(), text.end(), nullptr, false);
}

// Parser of a JSON schema: makes the part of an automaton that accepts the values of the schema. See json_schema().
//
// A schema that no value satisfies becomes a part that accepts no text. Where the text can go on without this part, the
// part is never entered, because the state that it begins with does not live (byte_nfa::live).
class schema_parser : private keyword_reader {
 public:
  schema_parser(byte_nfa& nfa, std::string_view schema, const json_schema_options& options)
      : nfa_(&nfa), schemas_(parse_schema_text(schema), options.ignore_other_formats), options_(options) {}
  schema_parser(const schema_parser&) = delete;

  nfa_part parse() {
    const nfa_part all = value(schemas_.root(), "#", 0);
    if (nfa_->live(all.end)[static_cast<std::size_t>(all.begin)] == 0)
      raise<input_error>("nothing satisfies the JSON schema: no value is possible at ", none_at_, ".");
    return all;
  }

 private:
  static constexpr std::int32_t many = byte_nfa::many;
  static constexpr std::int32_t most_entries = 1 << 14;

  // A rule, the number of lists and objects that were open when its content was begun, and whether the content is
  // complete. A schema that a $ref names, and a schema with an allOf or with keywords beside a $ref, become rules.
  struct known_rule {
    nfa_part part;
    int n_open;
    bool is_done;
  };

  nfa_part value(const json& schema, const std::string& path, int depth) {
    schemas_.count(depth);
    if (schema.is_boolean()) return schema.get<bool>() ? any() : none(path);
    const json own = schemas_.restrictions(schema, path, depth);
    if (!own.is_object() || !(own.contains("$ref") || own.contains("allOf"))) return of_flat(own, path, depth);
    if (own.size() == 1 && own.contains("$ref")) {
      const json& target = schemas_.target(own["$ref"], path);
      const auto name = own["$ref"].get<std::string>();
      return rule(name, path, [&] { return value(target, name, depth + 1); });
    }
    return rule("=" + own.dump(), path, [&] {
      std::vector<std::string> followed;
      return of_flat(schemas_.flat(own, path, depth, followed), path, depth);
    });
  }

  // Returns a part that calls the rule of this name. When the rule is first asked for, make() makes its content.
  template <class MakeT>
  nfa_part rule(const std::string& name, const std::string& path, const MakeT& make) {
    const auto [at, is_new] = rules_.try_emplace(name);
    known_rule& one = at->second;
    if (is_new) {
      one = {nfa_->rule(), n_open_, false};
      const nfa_part content = make();
      nfa_->link(one.part.begin, content.begin);
      nfa_->link(content.end, one.part.end);
      one.is_done = true;
    }
    // A rule that leads back to itself without opening a list or an object would never end: no value satisfies it.
    if (!one.is_done && one.n_open == n_open_) return none(path);
    return nfa_->call(one.part);
  }

  nfa_part of_flat(const json& flat, const std::string& path, int depth) {
    if (flat.is_boolean()) return flat.get<bool>() ? any() : none(path);
    if (flat.contains("enum")) return one_of(flat, path);
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (flat.contains(keyword)) return any_of(flat, keyword, path, depth);
    }
    if (flat.empty()) return any();
    std::vector<nfa_part> parts;
    for (const json& type : schema_flattener::written_types(flat, path))
      parts.push_back(of_type(flat, type, path, depth));
    return nfa_->any_of(parts);
  }

  // The part of a schema that no value satisfies. The error for the whole schema names the last path that was noted
  // here.
  nfa_part none(const std::string& path) {
    none_at_ = path;
    return nfa_->never();
  }

  // The part that accepts the values that the keywords beside the branches allow and that a branch allows, too: for
  // anyOf at least one branch, for oneOf exactly one.
  nfa_part any_of(const json& flat, const char* keyword, const std::string& path, int depth) {
    const json& branches = one_or_more(flat[keyword], keyword, "schema", path);
    const json rest = schema_flattener::without(flat, keyword);
    std::vector<json> all;
    const bool leads = schema_flattener::stands_before(flat, keyword, "properties");
    for (const json& branch : branches)
      all.push_back(leads ? schema_flattener::both(branch, rest) : schema_flattener::both(rest, branch));
    if (keyword == std::string_view("oneOf")) {
      std::vector<json> alone = all;
      for (std::size_t i = 0; i < all.size(); ++i) {
        std::size_t n_ways = 1;
        for (std::size_t j = 0; j < all.size(); ++j) {
          if (i == j || schemas_.excludes(all[i], all[j], path)) continue;
          const std::vector<json> others = schemas_.negated(branches[j], path, depth + 1);
          n_ways *= others.size();
          if (others.empty() || n_ways > 64) {
            refuse(path, keyword, "of which the schemas ", (std::min)(i, j), " and ", (std::max)(i, j),
                   " may have values in common: it needs different types, or values of a required property.");
          }
          alone[i] = schema_flattener::both(alone[i], json{{"anyOf", others}});
        }
      }
      all = alone;
    }
    std::vector<nfa_part> parts;
    for (std::size_t i = 0; i < all.size(); ++i)
      parts.push_back(value(all[i], path + "/" + keyword + "/" + std::to_string(i), depth + 1));
    return nfa_->any_of(parts);
  }

  // The part that accepts those values of an enum that the keywords beside it allow.
  nfa_part one_of(const json& flat, const std::string& path) {
    const json& values = one_or_more(flat["enum"], "enum", "value", path);
    const json rest = schema_flattener::without(flat, "enum");
    std::vector<nfa_part> parts;
    for (const json& v : values) {
      if (allows_(rest, v, path)) parts.push_back(literal(v));
    }
    return parts.empty() ? none(path) : nfa_->any_of(parts);
  }

  // The part that accepts one value. An object with up to four properties may have them in any order; one with more has
  // them in the order of their names.
  nfa_part literal(const json& v) {
    if (v.is_number_float() && v.get<double>() == std::floor(v.get<double>()) && std::abs(v.get<double>()) < 1e15) {
      const auto whole = std::to_string(static_cast<std::int64_t>(v.get<double>()));
      return nfa_->then(nfa_->bytes(whole), nfa_->optional(nfa_->bytes(".0"), false));
    }
    if (v.is_number_integer() && has_decimals_)
      return nfa_->then(nfa_->bytes(v.dump()), nfa_->optional(nfa_->bytes(".0"), false));
    if (v.empty() || !v.is_structured()) return nfa_->bytes(v.dump());
    std::vector<std::string> keys;
    for (const auto& [key, _] : v.items())
      keys.push_back(key);
    std::vector<nfa_part> orders;
    if (v.is_object()) std::sort(keys.begin(), keys.end());
    do {
      nfa_part all = open(v.is_object() ? "{" : "[");
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (i > 0) all = nfa_->then(all, mark(","));
        if (v.is_object()) all = nfa_->then(nfa_->then(all, nfa_->bytes(json_text(keys[i]))), mark(":"));
        all = nfa_->then(all, literal(v.is_object() ? v[keys[i]] : v[i]));
      }
      orders.push_back(nfa_->then(all, close(v.is_object() ? "}" : "]")));
    } while (v.is_object() && keys.size() <= 4 && std::next_permutation(keys.begin(), keys.end()));
    return nfa_->any_of(orders);
  }

  // ------ types

  // The part that accepts the values of one type. Keywords that belong to other types do nothing.
  nfa_part of_type(const json& flat, const json& type, const std::string& path, int depth) {
    for (const auto& [keyword, _] : flat.items())
      require_known(keyword, path);
    const std::string name = schema_flattener::type_name(type, path);
    const json except = flat.value(excepted, json::array());
    const auto is_excepted = [&](const json& v) { return schema_flattener::is_in(v, except); };
    if (name == "null") return is_excepted(nullptr) ? none(path) : nfa_->bytes("null");
    if (name == "boolean") {
      return nfa_->any_of({is_excepted(true) ? none(path) : nfa_->bytes("true"),
                           is_excepted(false) ? none(path) : nfa_->bytes("false")});
    }
    if (name == "string") return string(flat, path);
    for (const json& v : except) {
      if (v.type_name() == (name == "integer" ? "number" : name))
        refuse(path, "not", "which excepts ", shortened(v), "; only strings, null, true and false can be excepted.");
    }
    if (name == "integer" || name == "number") return number(flat, name == "integer", path);
    ++n_open_;
    const nfa_part all = name == "array" ? array(flat, path, depth) : object(flat, path, depth);
    --n_open_;
    return all;
  }

  // ------ how values are written

  nfa_part pattern(std::string_view text, character_form form = character_form::utf8) {
    return regex_parser(*nfa_, text, form).parse();
  }

  nfa_part number(const json& flat, bool is_whole, const std::string& path) {
    decimal_range range(*nfa_);
    for (const char* keyword : {"minimum", "exclusiveMinimum"})
      add_bound(range.lows, flat, keyword, path);
    for (const char* keyword : {"maximum", "exclusiveMaximum"})
      add_bound(range.highs, flat, keyword, path);
    range.multiple = whole_number(flat, "multipleOf", 1, path, 1, 1000000);
    const bool has_multiple = flat.contains("multipleOf") && range.multiple > 1;
    range.is_whole = is_whole || flat.contains("multipleOf");
    const char* const fraction = "(\\.0)?";
    if (range.lows.empty() && range.highs.empty() && !has_multiple) {
      if (range.is_whole) return pattern(std::string("0|-?[1-9]\\d*") + (has_decimals_ ? fraction : ""));
      return pattern("-?(0|[1-9]\\d{0,39})(\\.\\d{1,40})?([eE][-+]?1?\\d{1,2})?");
    }
    const std::optional<nfa_part> part = range.part();
    if (range.is_too_large()) refuse(path, "multipleOf", "which is too large: its automaton has too many states.");
    if (!part) return none(path);
    return range.is_whole && has_decimals_ ? nfa_->then(*part, pattern(fraction)) : *part;
  }

  static void add_bound(std::vector<decimal_bound>& all, const json& flat, const char* keyword,
                        const std::string& path) {
    const auto at = flat.find(keyword);
    if (at == flat.end()) return;
    require_number(*at, keyword, path);
    decimal_bound bound;
    bound.is_excluded = std::string_view(keyword).substr(0, 9) == "exclusive";
    if (at->is_number_unsigned()) {
      constexpr std::uint64_t most = (std::numeric_limits<std::int64_t>::max)();
      bound.digits = static_cast<std::int64_t>((std::min)(most, at->get<std::uint64_t>()));
    } else if (at->is_number_integer()) {
      bound.digits = at->get<std::int64_t>();
    } else {
      const std::string text = at->dump();  // the shortest text of this number, with at most 17 digits
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

  // Returns whether a pattern is one of the usual ones that restrict nothing.
  static bool is_open(const std::string& text) {
    for (const char* open : {"", "^", "$", ".*", "^.*", ".*$"}) {
      if (text == open) return true;
    }
    return false;
  }

  // The part that accepts a string, its quotation marks included. `group` and `rank` are those of the closing mark: see
  // byte_nfa::closing. If group < 0, the mark gets a new group if the schema excepts strings, else none.
  nfa_part string(const json& schema, const std::string& path, std::int32_t group = -1, std::int32_t rank = 0) {
    std::int32_t least = times(schema, "minLength", 0, path), most = times(schema, "maxLength", many, path);
    if (most != many && most < least) return none(path);
    json patterns = schema.value("pattern", json::array());
    if (!patterns.is_array()) patterns = json::array({patterns});
    std::vector<std::pair<std::string, bool>> all;  // patterns; true: a match in the text is enough, false: all of it
    for (const json& one : patterns) {
      if (!one.is_string()) refuse(path, "pattern", "which must be a string.");
      if (!is_open(one.get<std::string>())) all.emplace_back(one.get<std::string>(), true);
    }
    if (schema.contains("format")) {
      const json& name = schema["format"];
      const string_format format =
          string_format_of(name.is_string() ? name.get<std::string>() : std::string(), most != many && most < 64);
      if (format.pattern.empty() && !options_.ignore_other_formats) {
        refuse(path, "format", "which is ", shortened(name), "; expected ", string_format_names,
               ", unless json_schema_options::ignore_other_formats is set.");
      }
      if (!format.pattern.empty()) all.emplace_back(format.pattern, false);
      if (!format.pattern.empty() && least <= format.shortest) least = 0;
      if (!format.pattern.empty() && most != many && format.longest >= 0 && most >= format.longest) most = many;
    }
    const bool has_length = least > 0 || most != many;
    std::vector<std::string> except;
    for (const json& v : schema.value(excepted, json::array())) {
      if (!v.is_string() || !is_string_of(schema_flattener::without(schema, excepted), v.get<std::string>(), path))
        continue;
      require_more(schema, v.get<std::string>(), path, "not");
      except.push_back(json_text(v.get<std::string>()).substr(1));
    }
    if (group < 0 && !except.empty()) group = n_groups_++, rank = 1;
    nfa_part inside = nfa_->nothing();
    if (all.empty()) {
      inside = free_text(*nfa_, least, most, group < 0);
    } else if (all.size() == 1 && (all[0].first == "^.*$" || all[0].first == "^(.*)$")) {
      // Any text without line breaks, whose length is counted without a state for each character.
      inside = nfa_->times(regex_parser(*nfa_, ".", character_form::json_string).parse(), least, most);
    } else if (all.size() == 1 && !has_length) {
      inside = regex_parser(*nfa_, all[0].first, character_form::json_string).parse(all[0].second);
    } else {
      common_patterns together;
      for (const auto& [text, searches] : all)
        together.add(text, searches);
      const std::optional<nfa_part> part = together.part(*nfa_, least, most);
      if (!part) {
        refuse(path,
               schema.contains("maxLength")   ? "maxLength"
               : schema.contains("minLength") ? "minLength"
                                              : "pattern",
               "which is too large together with the pattern or format: they have more than ",
               common_patterns::most_states, " states.");
      }
      inside = *part;
    }
    const nfa_part end = group < 0 ? nfa_->bytes("\"") : nfa_->closing('"', group, rank);
    nfa_part text = nfa_->then(inside, end);
    for (const std::string& one : except)
      text = nfa_->any_of({text, ghost(one, group)});
    return nfa_->then(nfa_->bytes("\""), text);
  }

  // True if a schema of strings allows a text.
  bool is_string_of(const json& schema, const std::string& text, const std::string& path) {
    return part_accepts(json_text(text), [&](byte_nfa& own) {
      byte_nfa* const outer = std::exchange(nfa_, &own);
      const nfa_part part = string(schema, path);
      nfa_ = outer;
      return part;
    });
  }

  // Refuses a schema of strings if a string may begin with `text`, but no further character may follow `text`. The
  // caller takes `text` itself out of the strings, so nothing at all could follow.
  void require_more(const json& schema, const std::string& text, const std::string& path, const char* keyword) {
    if (!schema.contains("pattern") && !schema.contains("format") && !schema.contains("maxLength")) return;
    byte_nfa own;
    byte_nfa* const outer = std::exchange(nfa_, &own);
    const nfa_part part = string(schema_flattener::without(schema, excepted), path);
    nfa_ = outer;
    byte_dfa dfa(std::move(own), part);
    std::int32_t state = dfa.start();
    const std::string begin = json_text(text);
    for (std::size_t i = 0; i + 1 < begin.size(); ++i)
      state = dfa.next(state, static_cast<std::uint8_t>(begin[i]));
    if (state == byte_dfa::dead) return;
    for (const byte_dfa::config& c : dfa.configs(state)) {
      if (dfa.nfa()[c.s].low != '"') return;
    }
    refuse(path, keyword, "which leaves no way to go on after ", begin.substr(0, begin.size() - 1), ".");
  }

  // Returns a part that reads a text, which is given with its closing mark, and then leads nowhere. Its closing state
  // of rank 0 keeps the other parts of the group from closing after this text.
  nfa_part ghost(std::string text, std::int32_t group) {
    text.pop_back();
    const nfa_part all = nfa_->then(nfa_->bytes(text), nfa_->closing('"', group, 0));
    return {all.begin, nfa_->never().end};
  }

  // The part that accepts the white space beside a mark: nothing; one space if `may_be_one`; if options_.allow_lines,
  // also a line break with an indent of up to 64 spaces or 16 tabs.
  nfa_part space(bool may_be_one) {
    nfa_part all = may_be_one ? nfa_->optional(nfa_->bytes(" "), false) : nfa_->nothing();
    if (!options_.allow_lines) return all;
    const nfa_part indent = nfa_->times(nfa_->bytes(" "), 0, 64), tabs = nfa_->times(nfa_->bytes("\t"), 1, 16);
    return nfa_->either(all, nfa_->then(nfa_->bytes("\n"), nfa_->either(indent, tabs)));
  }
  // The parts that accept a mark between two values, or a mark that opens or closes a list or an object, with the white
  // space beside it.
  nfa_part mark(std::string_view text) { return nfa_->then(nfa_->bytes(text), space(true)); }
  nfa_part open(std::string_view text) { return nfa_->then(nfa_->bytes(text), space(false)); }
  nfa_part close(std::string_view text) { return nfa_->then(space(false), nfa_->bytes(text)); }

  nfa_part array(const json& schema, const std::string& path, int depth) {
    const std::int32_t least = times(schema, "minItems", 0, path), most = times(schema, "maxItems", many, path);
    if (most != many && most < least) return none(path);
    const json items = schema.contains("items") ? schema["items"] : json(true);
    const json prefix = schema.contains("prefixItems") ? schema["prefixItems"] : json::array();
    if (!prefix.is_array() || (prefix.empty() && schema.contains("prefixItems")))
      refuse(path, "prefixItems", "which must be a list of one schema or more.");
    if (schema.contains("uniqueItems") && (most == many || most > 1)) {
      if (schema["uniqueItems"] != true) refuse(path, "uniqueItems", "which must be true or false.");
      return distinct(items, prefix, least, most, path, depth);
    }
    // The list is made from its end: `after` accepts the text that may follow the first `i` elements.
    const auto n = static_cast<std::int32_t>((std::min)(prefix.size(), std::size_t{1} << 20));
    const auto item = [&](std::int32_t i) {
      return i < n ? value(prefix[static_cast<std::size_t>(i)], path + "/prefixItems/" + std::to_string(i), depth + 1)
                   : value(items, path + "/items", depth + 1);
    };
    nfa_part after = nfa_->nothing();
    std::int32_t i = most == many ? n : (std::min)(n, most);
    if (most == many || most > n) {
      // The elements after those of prefixItems. Without prefixItems, the first of them has no comma before it.
      const std::int32_t rest_least = (std::max)(least - n, 0), rest_most = most == many ? many : most - n;
      const nfa_part again = nfa_->then(mark(","), item(n));
      if (n > 0) {
        after = nfa_->times(again, rest_least, rest_most);
      } else {
        const nfa_part more =
            nfa_->times(again, (std::max)(rest_least - 1, 0), rest_most == many ? many : rest_most - 1);
        after = nfa_->then(item(n), more);
        if (least == 0) after = nfa_->optional(after, false);
      }
    }
    for (; i > 0; --i) {
      const nfa_part one = i > 1 ? nfa_->then(mark(","), item(i - 1)) : item(i - 1);
      after = nfa_->then(one, after);
      if (least < i) after = nfa_->optional(after, false);
    }
    return nfa_->then(nfa_->then(open("["), after), close("]"));
  }

  // The part that accepts a list of different values of an enum: in any order if the enum has at most six values, else
  // in the order of the enum.
  nfa_part distinct(const json& items, const json& prefix, std::int32_t least, std::int32_t most,
                    const std::string& path, int depth) {
    std::vector<std::string> followed;
    const json flat = schemas_.flat(items, path + "/items", depth, followed);
    if (!prefix.empty() || !flat.is_object() || !flat.contains("enum") || !flat["enum"].is_array())
      refuse(path, "uniqueItems", "which is supported where items have an enum, or at most one item is allowed.");
    std::vector<nfa_part> values;
    for (std::size_t i = 0; i < flat["enum"].size(); ++i) {
      const json& v = flat["enum"][i];
      if (std::any_of(flat["enum"].begin(), flat["enum"].begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const json& other) { return schema_flattener::are_same(other, v); }))
        continue;
      const json one = schema_flattener::both(schema_flattener::without(flat, "enum"), json{{"const", v}});
      const nfa_part content = value(one, path + "/items", depth + 1);
      values.push_back(nfa_->rule());
      nfa_->link(values.back().begin, content.begin);
      nfa_->link(content.end, values.back().end);
    }
    const std::size_t n = values.size();
    if (n > 6 && (least > 1 || (most != many && static_cast<std::size_t>(most) < n)))
      refuse(path, "uniqueItems", "which is supported with minItems and maxItems for at most six values.");
    // states[s] is the state after some values were taken. Up to six values: bit v of s says whether value v was taken.
    // More: s is 1 + the index of the last value taken. 0: none was taken.
    const std::size_t n_states = n > 6 ? n + 1 : std::size_t{1} << n;
    std::vector<std::int32_t> states;
    for (std::size_t s = 0; s < n_states; ++s)
      states.push_back(nfa_->nothing().begin);
    const nfa_part begin = open("["), end = close("]");
    nfa_->link(begin.end, states[0]);
    for (std::size_t s = 0; s < n_states; ++s) {
      const auto taken = static_cast<std::int32_t>(n > 6 ? s > 0 : std::popcount(s));
      std::vector<nfa_part> next;
      if (taken >= least) next.push_back({end.begin, nfa_->nothing().end});
      for (std::size_t v = 0; v < n && (most == many || taken < most); ++v) {
        if (n > 6 ? v < s : (s >> v & 1U) != 0) continue;
        const nfa_part one = taken > 0 ? nfa_->then(mark(","), nfa_->call(values[v])) : nfa_->call(values[v]);
        nfa_->link(one.end, states[n > 6 ? v + 1 : s | std::size_t{1} << v]);
        next.push_back({one.begin, nfa_->nothing().end});
      }
      nfa_->link(states[s], nfa_->any_of(next).begin);
    }
    return {begin.begin, end.end};
  }

  // ------ objects

  // A named property: its key with the colon, its value, and whether it is required.
  struct entry {
    nfa_part key, what;
    bool is_required;
  };

  nfa_part object(const json& schema, const std::string& path, int depth) {
    json properties = object_at(schema, "properties", path);
    const json patterns = object_at(schema, "patternProperties", path);
    const json required = required_of(schema, path);
    json others = schema.contains("additionalProperties") ? schema["additionalProperties"] : json(true);
    if (!others.is_boolean() && !others.is_object())
      refuse(path, "additionalProperties", "which must be true, false or a schema.");
    for (const json& name : required) {
      const auto key = name.get<std::string>();
      if (!properties.contains(key)) properties[key] = schema_flattener::others(schema, key);
    }
    json names = true;  // the schema that the names must satisfy
    if (schema.contains("propertyNames")) {
      std::vector<std::string> followed;
      names = schemas_.flat(schemas_.both(json{{"type", "string"}}, schema["propertyNames"]), path + "/propertyNames",
                            depth, followed);
      if (!patterns.empty()) refuse(path, "propertyNames", "which is not supported beside patternProperties.");
      if (names.is_object() && names.contains("enum")) {
        for (const json& name : names["enum"]) {
          if (name.is_string() && !properties.contains(name.get<std::string>()))
            properties[name.get<std::string>()] = others;
        }
        others = false;
      } else if (names.is_object()) {
        for (const auto& [keyword, _] : names.items())
          require_known(keyword, path + "/propertyNames");
      }
      for (auto& [name, what] : properties.items()) {
        const bool fits = names != false && part_accepts(json_text(name), [&](byte_nfa& own) {
                            byte_nfa* const outer = std::exchange(nfa_, &own);
                            const nfa_part part = names == true            ? string(json::object(), path)
                                                  : names.contains("enum") ? one_of(names, path)
                                                                           : string(names, path);
                            nfa_ = outer;
                            return part;
                          });
        if (!fits) what = false;
      }
      if (names == false) others = false;
    }
    std::vector<entry> named;
    std::size_t n_required = 0;
    for (const auto& [name, one] : properties.items()) {
      const bool is_required = std::find(required.begin(), required.end(), json(name)) != required.end();
      json all = one;
      for (const auto& [text, what] : patterns.items()) {
        if (schema.contains("properties") && schema["properties"].contains(name) && finds(text, name))
          all = schema_flattener::both(all, what);
      }
      n_required += is_required ? 1U : 0U;
      const std::string none_at = none_at_;
      if (all == false && !is_required) continue;
      const nfa_part what = value(all, path + "/properties/" + name, depth + 1);
      named.push_back({nfa_->then(nfa_->bytes(json_text(name)), mark(":")), what, is_required});
      // The object can be written without this property, so the error must not name the property's path: see none().
      if (!is_required) none_at_ = none_at;
    }
    return entries(named, free_entries(properties, patterns, others, names, path, depth), n_required, schema, path);
  }

  // Returns the parts for properties whose keys are free to choose, and the ghosts that keep such a key from being the
  // name of a named property; empty if there are no such properties.
  std::vector<nfa_part> free_entries(const json& properties, const json& patterns, const json& others,
                                     const json& names, const std::string& path, int depth) {
    const std::int32_t group = n_groups_++;
    std::vector<nfa_part> all;
    std::vector<std::string> texts;
    for (const auto& [text, what] : patterns.items()) {
      if (what == false && others == false) continue;
      if (what == false)
        refuse(path, "patternProperties", "of which ", shortened(text), " is false beside other properties.");
      for (const std::string& other : texts) {
        common_patterns two;
        two.add(other, true);
        two.add(text, true);
        if (patterns[other] != what && two.have_text()) {
          refuse(path, "patternProperties", "of which ", shortened(other), " and ", shortened(text),
                 " may be found in the same key.");
        }
      }
      texts.push_back(text);
      for (const auto& [name, _] : properties.items())
        require_more(json{{"pattern", text}}, name, path, "patternProperties");
      const nfa_part key = string(json{{"pattern", text}}, path, group, 1);
      all.push_back(
          nfa_->then(nfa_->then(key, mark(":")), value(what, path + "/patternProperties/" + text, depth + 1)));
    }
    if (others != false) {
      for (const auto& [name, _] : properties.items()) {
        if (names.is_object()) require_more(names, name, path, "propertyNames");
      }
      const nfa_part key = string(names.is_object() ? names : json::object(), path, group, 2);
      all.push_back(nfa_->then(nfa_->then(key, mark(":")), value(others, path + "/additionalProperties", depth + 1)));
    }
    for (const auto& [name, _] : properties.items()) {
      // A name gets a ghost only if a free key could be that name. The ghost of any other name would let a key begin
      // like that name, and then nothing could follow.
      bool is_free = others != false && (!names.is_object() || is_string_of(names, name, path));
      for (const std::string& text : texts)
        is_free = is_free || finds(text, name);
      if (is_free) all.push_back(nfa_->then(nfa_->bytes("\""), ghost(json_text(name).substr(1), group)));
    }
    return all;
  }

  // The part that accepts an object with the named properties, in their order, and then properties with free keys. It
  // has states before each key and after each value for every number of properties written so far, up to the largest
  // number that makes a difference.
  nfa_part entries(const std::vector<entry>& named, const std::vector<nfa_part>& free, std::size_t n_required,
                   const json& schema, const std::string& path) {
    auto least = static_cast<std::size_t>(times(schema, "minProperties", 0, path));
    const auto given = static_cast<std::size_t>(times(schema, "maxProperties", 1 << 30, path));
    least = least <= n_required ? 0 : least;
    const bool is_bounded = given < (free.empty() ? named.size() : std::size_t{1} << 30);
    if (least > n_required + 1 && !free.empty())
      refuse(path, "minProperties",
             "which is above the number of required ones plus one, where keys are free to choose and may repeat.");
    const std::size_t most = is_bounded ? given : (std::max)(least, std::size_t{1});
    if (most == 0) return n_required > 0 ? none(path) : nfa_->then(open("{"), close("}"));
    if ((named.size() + 1) * most > most_entries)
      refuse(path, is_bounded ? "maxProperties" : "minProperties", "which is too large for so many properties.");
    const nfa_part begin = open("{"), end = close("}");
    // Each property is needed once for every number of properties before it. If there is more than one such number, the
    // property is made a rule, and called.
    const auto as_rule = [&](nfa_part part) {
      if (most == 1) return part;
      const nfa_part one = nfa_->rule();
      nfa_->link(one.begin, part.begin);
      nfa_->link(part.end, one.end);
      return one;
    };
    // before[n] is the state before the next key, after n properties; -1 if there is no such state.
    std::vector<std::int32_t> before(most + 1, -1);
    before[0] = begin.end;
    std::size_t left = n_required;
    const auto add = [&](nfa_part content, bool may_skip, bool repeats) {
      std::vector<std::int32_t> next(most + 1, -1), after(most + 1, -1);
      if (repeats) {
        for (std::size_t n = 0; n <= most; ++n) {
          next[n] = nfa_->nothing().begin;
          if (before[n] >= 0) nfa_->link(before[n], next[n]);
        }
      }
      const std::vector<std::int32_t>& from = repeats ? next : before;
      for (std::size_t n = 1; n <= most; ++n) {
        std::vector<nfa_part> sources;
        const bool saturates = n == most && !is_bounded;
        if (from[n - 1] < 0 && !(saturates && from[n] >= 0)) continue;
        const nfa_part entered = most == 1 ? content : nfa_->call(content);
        after[n] = nfa_->nothing().begin;
        nfa_->link(entered.end, after[n]);
        for (const std::size_t m : {n - 1, saturates ? n : n - 1}) {
          if (from[m] < 0 || (m == n - 1 && !sources.empty())) continue;
          const std::int32_t fork = nfa_->nothing().begin;
          nfa_->link(from[m], fork);
          nfa_->link(fork, entered.begin);
          if (!repeats) before[m] = fork;
          sources.push_back(entered);
        }
      }
      for (std::size_t n = 0; n <= most; ++n) {
        if (!repeats) next[n] = -1;
        std::int32_t skipped = may_skip && !repeats ? before[n] : -1;
        std::int32_t written = -1;
        if (after[n] >= 0) {
          const nfa_part comma = mark(",");
          written = comma.end;
          nfa_->link(after[n], comma.begin);
          if (left == 0 && n >= least) nfa_->link(after[n], end.begin);
        }
        if (repeats) {
          if (written >= 0) nfa_->link(written, next[n]);
          continue;
        }
        if (skipped < 0 && written < 0) continue;
        next[n] = nfa_->nothing().begin;
        for (const std::int32_t one : {skipped, written}) {
          if (one >= 0) nfa_->link(one, next[n]);
        }
      }
      before = next;
    };
    if (n_required == 0 && least == 0) {
      const std::int32_t fork = nfa_->nothing().begin;
      nfa_->link(begin.end, fork);
      nfa_->link(begin.end, end.begin);
      before[0] = fork;
    }
    for (const entry& one : named) {
      left -= one.is_required ? 1U : 0U;
      add(as_rule(nfa_->then(one.key, one.what)), !one.is_required, false);
    }
    if (!free.empty()) add(as_rule(nfa_->any_of(free)), true, true);
    return {begin.begin, end.end};
  }

  // The part that accepts any value.
  nfa_part any() {
    return rule("any", "#", [&] {
      json all = json::object();
      ++n_open_;
      std::vector<nfa_part> parts{pattern("null|true|false"), number(all, false, "#"), string(all, "#"),
                                  array(all, "#", 0), object(all, "#", 0)};
      --n_open_;
      return nfa_->any_of(parts);
    });
  }

  byte_nfa* nfa_;
  schema_flattener schemas_;
  json_schema_options options_;
  bool has_decimals_ = schemas_.has_decimals();  // whether 1.0 is a whole number
  std::map<std::string, known_rule> rules_;
  schema_check allows_{schemas_, [this](byte_nfa& strings, const json& keywords, const std::string& path) {
                         byte_nfa* const outer = std::exchange(nfa_, &strings);
                         const nfa_part part = string(keywords, path);
                         nfa_ = outer;
                         return part;
                       }};
  int n_open_ = 0;             // number of lists and objects that are being made
  std::int32_t n_groups_ = 0;  // number of groups of closing marks
  std::string none_at_ = "#";  // path of the last schema that no value satisfies: see none()
};

}  // namespace detail

//! Makes the constraint that allows values in JSON that a schema describes: every finished text is such a value.
//!
//! An object has the properties that the schema names, in the order of `properties`, and then, if the schema allows
//! them, others. A value is written on one line, with or without a space after each comma and colon, or, if
//! options.allow_lines, with line breaks and indents. Numbers with bounds, or with a multipleOf above 1, have at most
//! 15 digits and no exponent. Where a whole number is required, 1.0 may be written for 1, except in drafts 3 and 4.
//! Strings may have \u escapes, but not those with a pattern, a format or excluded values, and not names of properties.
//! Properties that the schema does not name may occur twice. So not every text that the schema allows can be written,
//! but every text that is written is allowed.
//!
//! A schema may have these keywords. Keywords of older drafts have the meaning that they have there:
//!   any value      type (one or a list; without it and without enum, the type that the keywords belong to), enum
//!                  (values that keywords beside it do not allow are left out), const, anyOf, allOf, oneOf, $ref (into
//!                  the schema itself, also to a schema around it), not, if, then, else; other keywords may stand
//!                  beside each of these. In enum and const, an object with at most four properties may have them in
//!                  any order. nullable as in OpenAPI 3.0, beside a type and without $schema
//!   numbers        minimum, maximum, exclusiveMinimum, exclusiveMaximum (numbers, or draft 4's true and false),
//!                  multipleOf (a whole number: only whole numbers are written), format (int32, int64, and float and
//!                  double, which restrict nothing) beside a type
//!   strings        minLength, maxLength, pattern (as regular_expression; any text may stand before an alternative
//!                  unless it begins with ^, and after it unless it ends with $), format (date, time, date-time, uuid,
//!                  ipv4, ipv6, email, hostname and uri)
//!   lists          items, prefixItems (and items as a list, with additionalItems), minItems, maxItems, uniqueItems
//!                  if items have an enum (more than six values are then written in the enum's order) or at most one
//!                  item is allowed
//!   objects        properties, required, additionalProperties, patternProperties (patterns that may be found in the
//!                  same key must have equal schemas), propertyNames (not beside patternProperties, and without anyOf
//!                  and oneOf unless they have an enum), minProperties, maxProperties, dependencies,
//!                  dependentRequired, dependentSchemas
//! A schema must be negated for not, for if, and for two schemas of oneOf that do not exclude each other by types,
//! values, patterns or a required property. The negation allows a value that breaks one of these keywords: type (unless
//! it is integer), enum (of strings, null, true and false), required, minimum and maximum, and properties and anyOf as
//! far as the schemas in them can be negated. A value that breaks only other keywords is not written. A schema that has
//! only other keywords is refused if it must be negated.
//! Keywords of another type than the schema's do nothing. Other formats of strings and numbers are refused unless
//! options.ignore_other_formats is set.
//! Ignored are keywords that no draft from 4 to 2020-12 knows, and those that annotate or name (title, $comment, $id,
//! $anchor, $defs, ...). Refused are contains, unevaluatedItems, unevaluatedProperties, $dynamicRef and $recursiveRef.
//! ebnf_grammar, which uses xgrammar, can describe more texts, but takes no schema.
//!
//! Complexity  O(size of the schema with all combinations of anyOf within allOf written out). The values of minLength,
//!             maxLength, minItems and maxItems add nothing to it; minProperties and maxProperties may multiply the
//!             states of their object; a multipleOf has about as many states as its largest divisor that is coprime to
//!             10, times 450; a length beside a pattern multiplies the states of the pattern
//! Errors      input_error for a text that is no JSON (line and column) or more than 200 levels deep, integers beyond
//!             64 bits, a key that an object has twice, a keyword that has the wrong type or is not supported with the
//!             others (the keyword and its path), a schema that no value satisfies, a schema that is too large, and
//!             schemas more than 64 levels inside each other
//! Source      JSON Schema, draft 2020-12
inline token_automaton json_schema(std::string_view schema, vocabulary_trie vocabulary,
                                   const json_schema_options& options = {}) {
  detail::byte_nfa nfa;
  const detail::nfa_part all = detail::schema_parser(nfa, schema, options).parse();
  return token_automaton(std::move(nfa), all, std::move(vocabulary));
}

}  // namespace espalier
