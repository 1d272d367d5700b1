// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/schema/json_schema.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/constraint/schema/scalar_parts.hpp"
#include "espalier/core/error.hpp"

namespace espalier::detail {

using schema_json = nlohmann::ordered_json;

// A value as text for a message, cut after 60 characters.
inline std::string shortened(const schema_json& value) {
  std::string text = value.dump(-1, ' ', true, schema_json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

// The part of a schema that "#" or "#/a/b" names; nullptr if there is none.
inline const schema_json* find_schema(const schema_json& root, std::string_view name) {
  if (name.empty() || name[0] != '#') return nullptr;
  const schema_json* at = &root;
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

// True if a value has this type or, if `type` is a list, one of its types. 1.0 is an integer if `has_decimals`.
inline bool has_type(const schema_json& value, const schema_json& type, bool has_decimals = true) {
  if (type.is_array())
    return std::any_of(type.begin(), type.end(), [&](const auto& one) { return has_type(value, one, has_decimals); });
  if (!type.is_string()) return false;
  const auto name = type.get<std::string>();
  const auto is_whole = [&] {
    return value.is_number_integer() ||
           (has_decimals && value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
  };
  return name == value.type_name() || (name == "integer" && is_whole());
}

// A keyword of this library alone: a list of values that are not allowed.
inline constexpr const char* excepted = "\1except";

// The keywords that restrict values, in drafts 4 to 2020-12, and `excepted`, with a space before and after each. All
// other keywords are ignored.
inline constexpr std::string_view restricting =
    " \1except $dynamicRef $recursiveRef $ref additionalItems additionalProperties allOf anyOf const contains "
    "dependencies dependentRequired dependentSchemas else enum exclusiveMaximum exclusiveMinimum format if "
    "items maxContains maxItems maxLength maxProperties maximum minContains minItems minLength minProperties "
    "minimum multipleOf not oneOf pattern patternProperties prefixItems properties propertyNames required then "
    "type unevaluatedItems unevaluatedProperties uniqueItems ";

// Flattener of schemas: puts the keywords of a schema and of its $ref and allOf into one schema, see flat(), and tells
// which schemas exclude each other.
class schema_flattener {
 public:
  using json = schema_json;
  static constexpr int max_depth = 64;
  static constexpr int max_values = 1 << 16;

  schema_flattener(json root, bool ignores_other_formats)
      : root_(std::move(root)), ignores_other_formats_(ignores_other_formats) {}

  const json& root() const { return root_; }

  // Whether 1.0 is a whole number, as it is from draft 6 on.
  bool has_decimals() const {
    const std::string draft = root_.is_object() && root_.contains("$schema") ? root_["$schema"].dump() : "";
    return draft.find("draft-03") == std::string::npos && draft.find("draft-04") == std::string::npos;
  }

  template <class... PiecesT>
  [[noreturn]] static void refuse(const std::string& path, std::string_view keyword, const PiecesT&... why) {
    raise<input_error>("the JSON schema has \"", keyword, "\" at ", path, ", ", why...);
  }

  static std::string type_name(const json& type, const std::string& path) {
    for (const char* name : {"string", "number", "integer", "boolean", "null", "array", "object"}) {
      if (type == name) return name;
    }
    refuse(path, "type", "which is ", shortened(type),
           "; expected string, number, integer, boolean, null, array or object.");
  }

  // The schema of the values that two schemas both allow.
  static json both(const json& a, const json& b) {
    if (a == b || b == true || (b.is_object() && b.empty())) return a;
    if (a == true || (a.is_object() && a.empty())) return b;
    json all = json::object();
    all["allOf"] = json::array({a, b});
    return all;
  }

  // True if two values are equal, whatever the order of their properties.
  static bool are_same(const json& a, const json& b) {
    if (a.type() != b.type() || !a.is_structured()) return a == b;
    if (a.size() != b.size()) return false;
    if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), are_same);
    return std::all_of(a.items().begin(), a.items().end(), [&](const auto& one) {
      const auto at = b.find(one.key());
      return at != b.end() && are_same(one.value(), *at);
    });
  }
  static bool is_in(const json& value, const json& list) {
    return std::any_of(list.begin(), list.end(), [&](const json& one) { return are_same(one, value); });
  }

  // The schema of a property whose name is not in the `properties` of the object's schema.
  static json others(const json& s, const std::string& name) {
    json all = true;
    bool is_found = false;
    const json patterns = s.value("patternProperties", json::object());
    for (const auto& [pattern, what] : patterns.items()) {
      if (!finds(pattern, name)) continue;
      all = both(all, what);
      is_found = true;
    }
    return is_found || !s.contains("additionalProperties") ? all : s["additionalProperties"];
  }

  // True if a schema has keyword `first`, and keyword `second` does not stand before it. The order matters because
  // properties are written in the order in which the schema names them.
  static bool stands_before(const json& schema, const char* first, const char* second) {
    for (const auto& [keyword, _] : schema.items()) {
      if (keyword == first || keyword == second) return keyword == first;
    }
    return false;
  }

  // A schema without one of its keywords.
  static json without(json schema, const char* keyword) { return schema.erase(keyword), schema; }

  // Counts one more schema that is read; a schema that is referred to counts each time.
  //
  // Errors      input_error if the schema is nested too deep, or if there are too many schemas
  void count(int depth) {
    if (depth > max_depth) raise<input_error>("the JSON schema is nested more than ", max_depth, " levels deep.");
    if (++n_values_ > max_values) {
      raise<input_error>("the JSON schema is too large: with all references written out it has more than ", max_values,
                         " schemas.");
    }
  }

  // The schema that a $ref names.
  const json& target(const json& ref, const std::string& path) const {
    const json* at = find_schema(root_, ref.is_string() ? ref.get<std::string>() : std::string());
    if (at == nullptr)
      refuse(path, "$ref", "which is ", shortened(ref), "; expected # or #/... and a place of the schema.");
    return *at;
  }

  // A schema reduced to the keywords that restrict values, with older keywords in today's form; false if no value is
  // allowed by its const and its enum.
  json restrictions(const json& schema, const std::string& path, int depth = 0) {
    if (schema.is_boolean()) return schema;
    if (!schema.is_object())
      raise<input_error>("the JSON schema has ", shortened(schema), " at ", path,
                         "; expected an object, true or false.");
    const auto has = [&](const char* keyword) { return schema.contains(keyword); };
    json all = json::object();
    for (const auto& [keyword, what] : schema.items()) {
      const bool is_idle = (keyword == "uniqueItems" && what == false) || (keyword == "minProperties" && what == 0) ||
                           (keyword == "if" && !has("then") && !has("else")) ||
                           ((keyword == "then" || keyword == "else") && !has("if")) || keyword == "additionalItems" ||
                           ((keyword == "minContains" || keyword == "maxContains") && !has("contains"));
      if (!is_idle && restricting.find(" " + keyword + " ") != std::string_view::npos) all[keyword] = what;
    }
    if (all.contains("const")) {
      const json value = all["const"];
      if (all.contains("enum") && !is_in(value, all["enum"])) return false;
      all["enum"] = json::array({value});
      all.erase("const");
    }
    // In draft 4, exclusiveMinimum is true or false, and says whether `minimum` itself is excluded.
    for (const auto& [bound, excludes] :
         {std::pair{"minimum", "exclusiveMinimum"}, std::pair{"maximum", "exclusiveMaximum"}}) {
      if (!all.contains(excludes) || !all[excludes].is_boolean()) continue;
      if (!all.contains(bound)) refuse(path, excludes, "which is true or false and needs ", bound, " beside it.");
      if (all[excludes] == true) all[excludes] = all[bound];
      all.erase(all[excludes].is_boolean() ? excludes : bound);
    }
    if (has("items") && all["items"].is_array()) {
      if (has("prefixItems")) refuse(path, "items", "which must be a schema beside prefixItems.");
      all["prefixItems"] = all["items"];
      all["items"] = has("additionalItems") ? schema["additionalItems"] : json(true);
    } else if (has("prefixItems") && has("items") && root_.is_object() && root_.contains("$schema") &&
               root_["$schema"].dump().find("2020-12") == std::string::npos) {
      refuse(path, "prefixItems", "which $schema does not know, and which does not go with items.");
    }
    write_out(all, path, depth);
    if (!all.contains("type")) return all;
    // nullable belongs to OpenAPI 3.0, in which no schema has $schema.
    json& type = all["type"];
    if (has("nullable") && schema["nullable"] == true && !root_.contains("$schema") && !has_type(nullptr, type)) {
      type = type.is_array() ? type : json::array({type});
      type.push_back("null");
    }
    if (all.contains("format") && !has_type("", type)) {
      const json format = all["format"];
      all.erase("format");
      if (has_type(1, type)) return merged(all, numbers_of(format, path), path);
    }
    return all;
  }

  // The restrictions of a schema and of the schemas in its $ref and allOf, merged into one schema; false if one of them
  // is false, or if their types or enums have nothing in common. If several of them have an anyOf, the first anyOf
  // stays and the others are put into an allOf; so it is with oneOf. The name in each $ref is added to `followed`.
  json flat(const json& schema, const std::string& path, int depth, std::vector<std::string>& followed) {
    json all = restrictions(schema, path, depth);
    if (!all.is_object()) return all;
    if (all.contains("$ref")) {
      const json ref = all["$ref"];
      count(depth);
      const json& named = target(ref, path);
      const auto name = ref.get<std::string>();
      followed.push_back(name);
      const json rest = without(all, "$ref");
      all = merged(flat(named, name, depth + 1, followed), rest, path);
    }
    if (!all.is_object() || !all.contains("allOf")) return all;
    const json members = all["allOf"];
    if (!members.is_array() || members.empty()) refuse(path, "allOf", "which must be a list of one schema or more.");
    const bool leads = stands_before(all, "allOf", "properties");
    all.erase("allOf");
    json together = leads ? json(true) : all;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::string place = path + "/allOf/" + std::to_string(i);
      count(depth);
      together = merged(together, flat(members[i], place, depth + 1, followed), path);
    }
    return leads ? merged(together, all, path) : together;
  }

  // The types of the values that are written for a flat schema. Without `type`, this is the first of object, array,
  // string and number that one of its keywords belongs to, though the schema allows other types, too; if its keywords
  // belong to none of these, all types.
  static json written_types(const json& flat, const std::string& path) {
    if (flat.contains("type")) return flat["type"].is_array() ? flat["type"] : json::array({flat["type"]});
    const std::pair<const char*, std::vector<const char*>> types[] = {
        {"object",
         {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
          "maxProperties"}},
        {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
        {"string", {"pattern", "minLength", "maxLength", "format"}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
    for (const auto& [type, keywords] : types) {
      for (const char* keyword : keywords) {
        if (flat.contains(keyword)) return json::array({type});
      }
    }
    for (const auto& [keyword, _] : flat.items()) {
      if (keyword != "enum" && keyword != excepted) refuse(path, keyword, "which is not supported there.");
    }
    return {"string", "number", "boolean", "null", "array", "object"};
  }

  // Returns schemas, none of which allows a value that the given schema allows. Together they allow the values that
  // break its type (unless it is_whole), enum, required, minimum or maximum, and those that break its properties or
  // anyOf as far as the schemas in them can be negated. Returns an empty list if the schema has other keywords only.
  std::vector<json> negated(const json& schema, const std::string& path, int depth) {
    count(depth);
    std::vector<std::string> followed;
    const json one = flat(schema, path, depth + 1, followed);
    if (one.is_boolean() || one.empty()) return {json(one == false)};
    std::vector<json> all;
    for (const auto& [keyword, what] : one.items()) {
      if (keyword == "type" && !is_whole(what)) {
        json others = json::array();
        for (const char* type : {"string", "number", "boolean", "null", "array", "object"}) {
          if (!is_of(type, what)) others.push_back(type);
        }
        if (!others.empty()) all.push_back({{"type", others}});
      } else if (keyword == "enum" && what.is_array()) {
        all.push_back(json{{excepted, what}});
      } else if (keyword == "required" && what.is_array()) {
        for (const json& name : what) {
          if (name.is_string()) all.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
        }
      } else if (keyword == "properties" && what.is_object()) {
        for (const auto& [name, property] : what.items()) {
          for (const json& other : negated(property, path, depth + 1)) {
            if (other != false)
              all.push_back({{"type", "object"}, {"required", json::array({name})}, {"properties", {{name, other}}}});
          }
        }
      } else if (keyword == "anyOf" && what.is_array()) {
        json none = json::array();
        for (const json& branch : what) {
          const std::vector<json> others = negated(branch, path, depth + 1);
          if (others.empty())
            none.push_back(false);
          else
            none.push_back({{"anyOf", others}});
        }
        all.push_back({{"allOf", none}});
      } else if (keyword == "minimum" || keyword == "maximum") {
        all.push_back({{"type", "number"}, {keyword == "minimum" ? "exclusiveMaximum" : "exclusiveMinimum", what}});
      }
    }
    return all;
  }

  // True if types, lists of values, patterns or properties show that no value that is written for `a` is allowed by
  // `b`.
  bool excludes(const json& a, const json& b, const std::string& path, int depth = 0) {
    if (depth > 16) return false;
    std::vector<std::string> followed;
    const json one = flat(a, path, depth, followed), other = flat(b, path, depth, followed);
    if (one == false || other == false) return true;
    if (one == true || other == true) return false;
    for (const char* keyword : {"anyOf", "oneOf"}) {
      for (const json* choice : {&one, &other}) {
        if (!choice->contains(keyword) || !(*choice)[keyword].is_array()) continue;
        const json rest = without(*choice, keyword);
        const auto& branches = (*choice)[keyword];
        return std::all_of(branches.begin(), branches.end(), [&](const json& branch) {
          return choice == &one ? excludes(both(rest, branch), other, path, depth + 1)
                                : excludes(one, both(rest, branch), path, depth + 1);
        });
      }
    }
    if (one.contains("enum")) {
      return std::all_of(one["enum"].begin(), one["enum"].end(), [&](const json& v) {
        return (one.contains("type") && !has_type(v, one["type"])) || rules_out(other, v);
      });
    }
    if (other.contains("enum")) {
      // True if no value of the enum has a type that is written for `one`.
      const json types = written_types(one, path);
      return std::none_of(other["enum"].begin(), other["enum"].end(),
                          [&](const json& v) { return has_type(v, types) || (v.is_number() && has_type(1, types)); });
    }
    for (const json& type : written_types(one, path)) {
      const bool is_possible = !other.contains("type") || is_of(type, other["type"]);
      if (is_possible && !(type == "object" && excludes_objects(one, other, path, depth)) &&
          !(type == "string" && excludes_strings(one, other)))
        return false;
    }
    return true;
  }

 private:
  // True if a value may be of `type` and also of `types`, a type or a list of types.
  static bool is_of(const json& type, const json& types) {
    if (types.is_array())
      return std::any_of(types.begin(), types.end(), [&](const json& one) { return is_of(type, one); });
    const auto is_number = [](const json& one) { return one == "number" || one == "integer"; };
    return type == types || (is_number(type) && is_number(types));
  }

  // The restrictions of the numbers of a format.
  json numbers_of(const json& format, const std::string& path) const {
    constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
    if (format == "int32") return {{"minimum", -2147483648LL}, {"maximum", 2147483647}, {"multipleOf", 1}};
    if (format == "int64") return {{"minimum", -most - 1}, {"maximum", most}, {"multipleOf", 1}};
    if (format != "float" && format != "double" && !ignores_other_formats_) {
      refuse(
          path, "format", "which is ", shortened(format),
          "; expected int32, int64, float or double for a number, unless json_schema_options::ignore_other_formats is "
          "set.");
    }
    return json::object();
  }

  static bool rules_out(const json& flat, const json& value) {
    if (flat.contains("type") && !has_type(value, flat["type"]) && !(value.is_number() && has_type(1, flat["type"])))
      return true;
    if ((flat.contains("enum") && !is_in(value, flat["enum"])) ||
        (flat.contains(excepted) && is_in(value, flat[excepted])))
      return true;
    if (!value.is_string()) return false;
    std::string text;  // as a pattern
    for (const char c : value.get<std::string>()) {
      if (std::string_view("\\^$.|?*+()[]{}/-").find(c) != std::string_view::npos) text += '\\';
      text += c;
    }
    common_patterns together;
    together.add(std::move(text), false);
    return add_patterns(flat, together) && !together.have_text();
  }

  // Adds the patterns of a flat schema. Returns whether there are any.
  static bool add_patterns(const json& flat, common_patterns& to) {
    const json given = flat.value("pattern", json::array());
    const json patterns = given.is_array() ? given : json::array({given});
    for (const json& one : patterns)
      if (one.is_string()) to.add(one.get<std::string>(), true);
    return !patterns.empty();
  }

  // True if no text that is written for `one` matches the patterns of `other`. If `one` has a format, not all texts of
  // the format are written: see string_format.
  static bool excludes_strings(const json& one, const json& other) {
    common_patterns together;
    if (!add_patterns(other, together)) return false;
    const json format = one.value("format", json());
    const std::string written = format.is_string() ? string_format_of(format.get<std::string>(), false).pattern : "";
    if (!written.empty()) together.add(written, false);
    return (add_patterns(one, together) || !written.empty()) && !together.have_text();
  }

  // Replaces the keywords dependencies, dependentRequired, dependentSchemas, not and if by schemas in allOf.
  void write_out(json& all, const std::string& path, int depth) {
    json more = json::array();
    const auto take = [&](const char* keyword) {
      const json what = all.contains(keyword) ? all[keyword] : json();
      all.erase(keyword);
      return what;
    };
    const auto has_none = [](const std::string& name) { return json{{"properties", {{name, false}}}}; };
    for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
      const json what = take(keyword);
      if (!what.is_object() && !what.is_null()) refuse(path, keyword, "which must be an object.");
      for (const auto& [name, needs] : what.items()) {
        json then = needs;
        if (needs.is_string()) then = json{{"required", json::array({needs})}};
        if (needs.is_array()) then = json{{"required", needs}};
        const json with = both(json{{"required", json::array({name})}}, then);
        more.push_back({{"anyOf", json::array({has_none(name), with})}});
      }
    }
    const auto none_of = [&](const json& what, const char* keyword) {
      const std::vector<json> others = negated(what, path, depth + 1);
      if (others.empty())
        refuse(path, keyword, "which cannot be said in another way: see what json_schema() supports.");
      return others.size() == 1 ? others[0] : json{{"anyOf", others}};
    };
    if (all.contains("not")) more.push_back(none_of(take("not"), "not"));
    if (all.contains("if")) {
      const json condition = take("if"), then = take("then"), otherwise = take("else");
      const json others = none_of(condition, "if");
      more.push_back({{"anyOf", json::array({then.is_null() ? condition : both(condition, then),
                                             otherwise.is_null() ? others : both(others, otherwise)})}});
    }
    if (more.empty()) return;
    if (all.contains("allOf") && all["allOf"].is_array())
      more.insert(more.begin(), all["allOf"].begin(), all["allOf"].end());
    all["allOf"] = more;
  }

  bool excludes_objects(const json& one, const json& other, const std::string& path, int depth) {
    const json ours = one.value("properties", json::object()), theirs = other.value("properties", json::object());
    const json needed = one.value("required", json::array()), demanded = other.value("required", json::array());
    const bool is_closed = other.contains("additionalProperties") && other["additionalProperties"] == false;
    for (const json& name : needed) {
      if (!name.is_string()) return false;
      const auto key = name.get<std::string>();
      if (!theirs.contains(key) && is_closed && !other.contains("patternProperties")) return true;
      if (theirs.contains(key) && theirs[key] == false) return true;
      if (ours.contains(key) && theirs.contains(key) && excludes(ours[key], theirs[key], path, depth + 1)) return true;
    }
    // True if a property that `other` requires cannot be in an object of `one`.
    return std::any_of(demanded.begin(), demanded.end(), [&](const json& name) {
      if (!name.is_string()) return false;
      const auto key = name.get<std::string>();
      if (ours.contains(key)) return ours[key] == false;
      return one.contains("additionalProperties") && one["additionalProperties"] == false && !is_in(name, needed) &&
             !one.contains("patternProperties");
    });
  }

  // The flat schema of the values that two flat schemas both allow; false if no type or no value of their enums is
  // common to both.
  static json merged(json a, const json& b, const std::string& path) {
    if (a == false || b == false) return false;
    if (a == true || b == true) return a == true ? b : a;
    const auto is_only_in = [](const json& one, const json& other) {
      return one.contains("prefixItems") && !other.contains("prefixItems") && other.contains("items");
    };
    if (is_only_in(a, b) || is_only_in(b, a))
      refuse(path, "prefixItems", "which is not supported together with items of another schema.");
    if (a.contains("properties") || b.contains("properties")) {
      // A property that only one schema names must also satisfy the other schema's rule for unnamed properties.
      const auto names = [&](const json& schema) {
        const json all = schema.contains("properties") ? schema["properties"] : json::object();
        if (!all.is_object()) refuse(path, "properties", "which must be an object.");
        return all;
      };
      json all = names(a);
      const json more = names(b);
      for (auto& [name, what] : all.items())
        what = both(what, more.contains(name) ? more[name] : others(b, name));
      for (const auto& [name, what] : more.items()) {
        if (!all.contains(name)) all[name] = both(what, others(a, name));
      }
      a["properties"] = all;
    }
    if (a.contains("patternProperties") || b.contains("patternProperties")) {
      const auto patterns = [](const json& s) { return s.value("patternProperties", json::object()); };
      const auto rest = [](const json& s) {
        return s.contains("additionalProperties") ? s["additionalProperties"] : json(true);
      };
      json all = patterns(a);
      const json more = patterns(b);
      if (!all.is_object() || !more.is_object()) refuse(path, "patternProperties", "which must be an object.");
      for (auto& [pattern, what] : all.items())
        what = both(what, more.contains(pattern) ? more[pattern] : rest(b));
      for (const auto& [pattern, what] : more.items()) {
        if (!all.contains(pattern)) all[pattern] = both(what, rest(a));
      }
      a["patternProperties"] = all;
    }
    for (const auto& [keyword, what] : b.items()) {
      if (keyword == "properties" || keyword == "patternProperties") continue;
      if (!a.contains(keyword)) {
        a[keyword] = what;
        continue;
      }
      json& mine = a[keyword];
      if (mine == what) continue;
      const auto is_one_of = [&name = keyword](std::initializer_list<std::string_view> names) {
        return std::find(names.begin(), names.end(), name) != names.end();
      };
      if (keyword == "type") {
        const json theirs = what.is_array() ? what : json::array({what});
        json common = json::array();
        for (const json& type : mine.is_array() ? mine : json::array({mine})) {
          for (const json& t : theirs) {
            (void)type_name(type, path), (void)type_name(t, path);
            if (is_of(type, t)) common.push_back(type == "integer" ? type : t);
          }
        }
        if (common.empty()) return false;
        mine = common.size() == 1 ? common[0] : common;
      } else if (is_one_of({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})) {
        if (!mine.is_number() || !what.is_number()) refuse(path, keyword, "which must be a number.");
        if (mine < what) mine = what;
      } else if (is_one_of({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})) {
        if (!mine.is_number() || !what.is_number()) refuse(path, keyword, "which must be a number.");
        if (what < mine) mine = what;
      } else if (keyword == "multipleOf" && is_small(mine) && is_small(what)) {
        mine = std::lcm(mine.get<std::int64_t>(), what.get<std::int64_t>());
      } else if (keyword == "required" && mine.is_array() && what.is_array()) {
        for (const json& name : what) {
          if (!is_in(name, mine)) mine.push_back(name);
        }
      } else if (keyword == "enum" && mine.is_array() && what.is_array()) {
        json common = json::array();
        for (const json& value : mine) {
          if (is_in(value, what)) common.push_back(value);
        }
        if (common.empty()) return false;
        mine = common;
      } else if (keyword == excepted) {
        mine.insert(mine.end(), what.begin(), what.end());
      } else if (keyword == "pattern") {
        // Several patterns are kept as a list.
        mine = mine.is_array() ? mine : json::array({mine});
        for (const json& one : what.is_array() ? what : json::array({what})) {
          if (!is_in(one, mine)) mine.push_back(one);
        }
      } else if (keyword == "additionalProperties" || keyword == "propertyNames" ||
                 (keyword == "items" && !a.contains("prefixItems") && !b.contains("prefixItems"))) {
        mine = both(mine, what);
      } else if (is_one_of({"anyOf", "oneOf"})) {
        if (!a.contains("allOf")) a["allOf"] = json::array();
        json one = json::object();
        one[keyword] = what;
        a["allOf"].push_back(one);
      } else if (keyword == "allOf" && mine.is_array() && what.is_array()) {
        mine.insert(mine.end(), what.begin(), what.end());
      } else {
        refuse(path, keyword, "which is not supported together with another one of allOf, anyOf, oneOf or $ref.");
      }
    }
    return a;
  }

  // True if a type, or a list of types, allows integers but no other numbers. Such types are not negated: there is no
  // type for the numbers that are not integers.
  static bool is_whole(const json& type) {
    return type == "integer" || (type.is_array() && is_in("integer", type) && !is_in("number", type));
  }

  static bool is_small(const json& number) { return number.is_number_integer() && number >= 1 && number <= 1000000; }

  json root_;
  bool ignores_other_formats_;
  int n_values_ = 0;
};

}  // namespace espalier::detail
