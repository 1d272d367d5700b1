// SPDX-License-Identifier: BSL-1.0
#include "espalier/constraint/schema/json_schema.hpp"

#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;
using nlohmann::json;

namespace {

// Each byte is a token; the last one ends texts.
vocabulary_trie bytes() {
  std::vector<std::string> pieces;
  for (int c = 0; c < 256; ++c)
    pieces.push_back(std::string(1, static_cast<char>(c)));
  pieces.emplace_back();
  return vocabulary_trie(pieces, {256});
}

bool accepts(const token_automaton& c, const std::string& text) {
  auto state = c.start();
  for (const char byte : text)
    state = c.advance(state, static_cast<unsigned char>(byte));
  return c.accepts(state);
}

struct judged {
  const char* schema;
  std::vector<const char*> yes, no;
};

}  // namespace

TEST_CASE("schemas accept their values, and no others") {
  const judged all[] = {
      {R"({"type": "boolean"})", {"true", "false"}, {"null", "tru", "true ", "\"true\""}},
      {R"({"type": ["null", "boolean"]})", {"true", "null"}, {"0"}},
      {R"({"type": "integer"})",
       {"0", "-7", "123456", "1.0", "123456789012345678901234567890"},
       {"00", "-0", "1.5", "+1", ""}},
      {R"({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"})", {"1"}, {"1.0"}},
      {R"({"type": "integer", "minimum": -12, "maximum": 105})",
       {"-12", "-9", "-1", "0", "9", "10", "99", "100", "105"},
       {"-13", "-20", "-100", "106", "110", "200", "1000", "010"}},
      {R"({"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 1000})",
       {"8", "9", "10", "99", "100", "999"},
       {"7", "1000", "0", "-8"}},
      {R"({"type": "number"})", {"0", "-1.5", "1e9", "2.5E-3", "10"}, {".5", "1.", "01", "1e", "--1", "NaN"}},
      {R"({"type": "string"})",
       {"\"\"", "\"abc\"", "\"\xc3\xa4\"", R"("a\"b\\c\n")"},
       {"\"", "abc", "\"a\"b\"", "\"\n\"", R"("\x")", "\"\xff\""}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {"\"ab\"", "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"", R"("a\n")"},
       {"\"a\"", "\"abcd\"", "\"\""}},
      {R"({"type": "string", "pattern": "^[a-z]{2}-\\d+$"})", {"\"ab-1\"", "\"ab-123\""}, {"\"ab-\"", "\"xab-1\""}},
      {R"({"type": "string", "pattern": "[0-9]"})", {"\"5\"", "\"ab1c\""}, {"\"abc\""}},
      {R"({"type": "string", "pattern": "^.[\"\\\\]$"})", {R"("a\"")", R"("x\\")"}, {"\"a\"\"", "\"ab\""}},
      {R"({"type": "string", "pattern": "^a\\\\$"})", {R"("a\\")"}, {R"("a\\x")", R"("a")"}},
      {R"({"type": "string", "pattern": "^a\\$"})", {R"("a$")", R"("a$x")"}, {R"("a")"}},
      {R"({"type": "string", "pattern": "^.$"})", {R"("x")"}, {R"("\r")", "\"\xe2\x80\xa8\""}},
      {R"({"type": "string", "pattern": "^.*$"})", {R"("")", R"("a.b")"}, {R"("a\nb")", R"("\n")", R"("\r")"}},
      {R"({"type": "string", "pattern": "^(.*)$"})", {R"("a")"}, {R"("\u2028")", R"("a\n")"}},
      {R"({"type": "string", "pattern": "^.*$", "minLength": 2, "maxLength": 16000})",
       {R"("ab")"},
       {R"("a")", R"("a\nb")"}},
      {R"({"type": "string", "pattern": "^(.*)$", "minLength": 2})", {R"("ab")"}, {R"("a")", R"("a\nb")"}},
      {R"({"type": "string", "pattern": "^.*$", "allOf": [{"pattern": "a"}]})", {R"("ab")"}, {R"("b")", R"("a\nb")"}},
      {R"({"type": "string", "pattern": "^.*"})", {R"("a")", R"("a\nb")"}, {}},
      {R"({"type": "string", "pattern": "^\\S$"})", {R"("x")"}, {R"(" ")", "\"\xc2\xa0\""}},
      {R"({"type": "integer", "minimum": 5, "maximum": 9007199254740991})", {"5", "123456789012345"}, {"4"}},
      {R"({"enum": ["red", 1, null, {"a": [1, 2]}]})", {"\"red\"", "1", "null", R"({"a":[1,2]})"}, {"\"blue\"", "2"}},
      {R"({"enum": ["red", 1, 1.5], "type": "integer"})", {"1"}, {"\"red\"", "1.5"}},
      {R"({"enum": ["a", "bc", 2, "2024-01-01"], "type": "string", "minLength": 2})", {"\"bc\""}, {"\"a\"", "2"}},
      {R"({"enum": ["2024-01-01", "2024"], "format": "date"})", {"\"2024-01-01\""}, {"\"2024\""}},
      // An enum whose values are checked by a reference back to it, from which smaller ones are allowed in their turn.
      {R"({"enum": [{"a": null}], "properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}})",
       {R"({"a":null})", R"({"a": null})"},
       {R"({"a":{"a":null}})", "{}"}},
      {R"({"enum": [[[1], 2], [1], [[2]], [[[1], 2]], 1], "items": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}})",
       {"[[1],2]", "[1]", "[[[1],2]]", "1"},
       {"[[2]]", "[2]", "2"}},
      {R"({"enum": [{"a": {"b": 1}}, {"a": 1}, {"a": 2}, {"b": {"a": 1}}], "properties": {"a": {"$ref": "#/$defs/x"}},
           "$defs": {"x": {"enum": [1, {"b": 1}], "properties": {"b": {"$ref": "#/$defs/x"}}}}})",
       {R"({"a":{"b":1}})", R"({"a":1})", R"({"b":{"a":1}})"},
       {R"({"a":2})"}},
      {R"({"enum": [{"a": 1}, {"a": null}, {}], "properties": {"a": {"$ref": "#/$defs/x"}},
           "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}}})",
       {R"({"a":null})", "{}"},
       {R"({"a":1})"}},
      // What an enum lists may have a form in which the keywords beside it alone are not written.
      {R"({"enum": [{"b": 1, "a": 2}, {"b": "x", "a": 2}, {"a": 2}], "required": ["b"],
           "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})",
       {R"({"b":1,"a":2})", R"({"a":2,"b":1})"},
       {R"({"b":"x","a":2})", R"({"a":2})"}},
      {R"({"type": "integer", "minimum": 0, "enum": [12345678901234567, -12345678901234567, 18446744073709551615]})",
       {"12345678901234567", "18446744073709551615"},
       {"-12345678901234567"}},
      {R"({"type": "number", "exclusiveMaximum": 1e300, "enum": [1e299, 1e300, 2.5]})", {"1e+299", "2.5"}, {"1e+300"}},
      {R"({"type": "integer", "enum": [1.0, 2.5, 3]})", {"1", "1.0", "3"}, {"2.5"}},
      {R"({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "enum": [1.0, 3]})", {"3"}, {"1"}},
      {R"({"enum": [1, "ab", "a", null, [1], {}], "minLength": 2, "minItems": 2, "minProperties": 1})",
       {"1", "\"ab\"", "null"},
       {"\"a\"", "[1]", "{}"}},
      {R"({"enum": [4, 6, 6.0, 9, 4.5, -6], "multipleOf": 3})", {"6", "9", "-6"}, {"4", "4.5"}},
      {R"({"type": "number", "format": "int32", "enum": [2147483647, 2147483648, 1]})", {"2147483647"}, {"2147483648"}},
      {R"({"enum": [[1, 1], [1, 2, 3], [1, "x"], [1, 2]], "uniqueItems": true, "maxItems": 2, "prefixItems": [{"const": 1}],
           "items": {"type": "integer"}})",
       {"[1,2]"},
       {"[1,1]", "[1,2,3]", "[1,\"x\"]"}},
      {R"({"enum": [{"x1": 1}, {"x1": "s"}, {"y": true}, {"y": 1}, {"long": true}, {"y": true, "z": true}],
           "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "boolean"},
           "allOf": [{"maxProperties": 1}, {"not": {"required": ["long"]}}]})",
       {R"({"x1":1})", R"({"y":true})"},
       {R"({"x1":"s"})", R"({"y":1})", R"({"long":true})", R"({"y":true,"z":true})"}},
      {R"({"enum": [{"ab": 1}, {"a": 1}], "propertyNames": {"minLength": 2}})", {R"({"ab":1})"}, {R"({"a":1})"}},
      {R"({"enum": [{"a": 1}, {"a": 5}, {"a": "x"}, {"a": null}, {"a": []}], "properties":
           {"a": {"oneOf": [{"type": "integer"}, {"minimum": 3, "type": ["number", "string"]}, {"type": "null"}]}}})",
       {R"({"a":1})", R"({"a":"x"})", R"({"a":null})"},
       {R"({"a":5})", R"({"a":[]})"}},
      {R"({"enum": ["abc", 1, "x"], "oneOf": [{"minimum": 1, "maxLength": 2}, true]})", {"\"abc\""}, {"1", "\"x\""}},
      {R"({"const": "x\"y"})", {R"("x\"y")"}, {"\"x\""}},
      {R"({"type": "array", "items": {"type": "integer"}})",
       {"[]", "[1]", "[1,2]", "[1, 2, 3]"},
       {"[1,]", "[ 1]", "[true]"}},
      {R"({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3})",
       {"[null,null]", "[null, null, null]"},
       {"[]", "[null]", "[null,null,null,null]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "items": {"type": "null"}, "maxItems": 1})", {"[]", "[null]"}, {"[null,null]"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
           "required": ["b"], "additionalProperties": false})",
       {R"({"a":null,"b":null,"c":null})", R"({"b": null})", R"({"a": null, "b": null})", R"({"b":null,"c":null})"},
       {"{}", R"({"a":null})", R"({"b":null,"a":null})", R"({"b":null,})", R"({,"b":null})", R"({"b":null,"d":1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}})",
       {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
       {R"({"a":null"b":null})"}},
      {R"({"type": "object", "additionalProperties": {"type": "boolean"}})",
       {"{}", R"({"x": true})", R"({"x":true, "y":false})"},
       {R"({"x": 1})"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a":1})"}},
      {R"({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 5, "maximum": 6}, false]})",
       {"null", "5"},
       {"7"}},
      {R"({"$ref": "#/$defs/p", "$defs": {"p": {"type": "object", "properties": {"q": {"$ref": "#/$defs/~1q"}},
           "required": ["q"]}, "/q": {"const": 1}}})",
       {R"({"q":1})"},
       {"{}"}},
      {R"({"type": "object", "properties": {"next": {"$ref": "#"}}})",
       {"{}", R"({"next":{}})", R"({"next":{"next":{"next":{}}}})"},
       {R"({"next":1})"}},
      {R"({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]})", {"null", "[[], null]"}, {"1"}},
      {"true", {"1", "[]", R"({"a": [1, "b"]})", "\"x\""}, {"[1 , 2]", ""}},
      {R"({"title": "anything", "default": 3})", {"null", "[{}]"}, {"nul"}},
      // Keywords that no draft knows, and those that do nothing where they stand.
      {R"({"type": "null", "x-order": 1, "nullabel": true})", {"null"}, {"1"}},
      {R"({"type": "null", "minimum": 1, "required": ["a"]})", {"null"}, {"1"}},
      {R"({"type": "array", "items": {"type": "null"}, "uniqueItems": false, "additionalItems": 3})",
       {"[null]"},
       {"[1]"}},
      {R"({"type": "integer", "minimum": 5, "exclusiveMinimum": true, "maximum": 7, "exclusiveMaximum": false})",
       {"6", "7"},
       {"5", "8"}},
      {R"({"type": "integer", "minimum": 0.5, "maximum": 2.5})", {"1", "2"}, {"0", "3"}},
      {R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 18446744073709551615})",
       {"-999999999999999", "999999999999999"},
       {"1e3"}},
      {R"({"type": "integer", "format": "int32", "minimum": 0})", {"0", "2147483647"}, {"-1", "2147483648"}},
      {R"({"type": ["number", "null"], "format": "int32"})", {"-2147483648", "7.0", "null"}, {"1.5", "2147483648"}},
      {R"({"type": "integer", "format": "int64"})", {"-123456789012345", "0"}, {"9223372036854775808", "1.5"}},
      {R"({"type": "integer", "format": "int64", "enum": [9223372036854775807, 9223372036854775808]})",
       {"9223372036854775807"},
       {"9223372036854775808"}},
      {R"({"type": "number", "format": "double"})", {"1.5", "-1e9"}, {"null"}},
      {R"({"type": "array", "format": "int64"})", {"[1]"}, {"1"}},
      {R"({"type": "number", "minimum": 0, "maximum": 1})",
       {"0", "0.0", "1", "1.0", "1.00", "0.99999999999999"},
       {"-0.1", "-0", "1.01", "2", "0.", "1e0", "0.123456789012345"}},
      {R"({"type": "number", "exclusiveMinimum": -0.25, "exclusiveMaximum": 1e3})",
       {"-0.24999999999999", "-0.1", "0", "12.5", "999.999999999999"},
       {"-0.25", "-0.250", "-0.3", "1000", "1000.1"}},
      {R"({"type": "number", "minimum": 1e-7})", {"0.0000001", "123456789.5"}, {"0.00000009", "0"}},
      {R"({"minimum": 3})", {"3", "4.5"}, {"2", "null"}},
      {R"({"type": "number", "multipleOf": 12, "minimum": -24})", {"-24", "-12", "0", "144"}, {"-36", "1", "0.5"}},
      {R"({"oneOf": [{"type": "string"}, {"type": "integer"}, {"enum": [null, true]}]})",
       {"\"\"", "3", "true"},
       {"false"}},
      {R"({"oneOf": [{"type": "string", "pattern": "^s+$"}, {"type": "string", "pattern": "^f"}, {"enum": ["x.y", "k"]},
           {"type": "string", "format": "date", "pattern": "^20"}]})",
       {"\"ss\"", "\"fa\"", "\"x.y\"", "\"k\"", "\"2024-05-01\""},
       {"\"\"", "\"a\"", "\"xy\"", "\"1999-05-01\""}},
      {R"({"type": "object", "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
           "a": {"required": ["s"], "properties": {"s": {"type": "string", "pattern": "^good$"}, "d": {}}},
           "b": {"required": ["s"], "properties": {"s": {"type": "string", "pattern": "^bad$"},
                                                   "d": {"type": "array"}}}}})",
       {R"({"s":"good","d":1})", R"({"s":"bad","d":[]})", R"({"s":"bad"})"},
       {R"({"s":"bad","d":1})", R"({"s":"ugly"})", "{}"}},
      {R"({"properties": {"z": {"type": "null"}}, "oneOf": [
           {"properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
           {"properties": {"k": {"const": "b"}, "v": {"type": "string"}}, "required": ["k"]}], "type": "object"})",
       {R"({"k":"a","v":1})", R"({"z":null,"k":"b"})", R"({"k":"b","v":"x"})"},
       {R"({"k":"a","v":"x"})", R"({"k":"a"})", R"({"z":1,"k":"b"})"}},
      {R"({"allOf": [{"$ref": "#/$defs/x"}], "maxLength": 2, "$defs": {"x": {"type": "string", "minLength": 1}}})",
       {"\"a\"", "\"ab\""},
       {"\"\"", "\"abc\""}},
      {R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                     {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "additionalProperties": false}]})",
       {R"({"a":3})", R"({"a":4,"b":null})"},
       {R"({"a":2})", R"({"b":null})", R"({"a":3.5})"}},
      {R"({"allOf": [{"additionalProperties": {"type": "integer"}}, {"properties": {"a": {"enum": [1, "x"]}}}]})",
       {"{}", R"({"a":1})"},
       {R"({"a":"x"})"}},
      {R"({"allOf": [{"anyOf": [{"minimum": 3}, {"const": 1}]}, {"anyOf": [{"maximum": 4}, {"const": 9}]}],
           "type": "integer"})",
       {"1", "3", "4", "9"},
       {"2", "5"}},
      {R"({"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"type": "integer", "minimum": 3}}})",
       {"3", "5"},
       {"2", "6"}},
      {R"({"type": ["string", "null"], "anyOf": [{"minLength": 2}, {"enum": ["", null, 1]}]})",
       {"\"ab\"", "\"\"", "null"},
       {"\"a\"", "1"}},
      {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
           "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":1})", R"({"b":2})", R"({"a":1,"b":2})"},
       {"{}"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "boolean"}, "minItems": 1,
           "maxItems": 3})",
       {"[1]", "[1,null]", "[1, null, true]"},
       {"[]", "[null]", "[1,true]", "[1,null,null]", "[1,null,true,true]"}},
      {R"({"type": "array", "items": [{"type": "null"}, {"type": "integer"}], "additionalItems": false})",
       {"[]", "[null]", "[null,1]"},
       {"[1]", "[null,1,1]"}},
      {R"({"prefixItems": [{"type": "null"}, false], "minItems": 1})", {"[null]"}, {"[]", "[null,1]"}},
      {R"({"type": "string", "nullable": true})", {"null", "\"\""}, {"1"}},
      {R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "string", "nullable": true})",
       {"\"\""},
       {"null"}},
      {R"({"required": ["a", "b"], "additionalProperties": {"type": "integer"}})",
       {R"({"a":1,"b":2})"},
       {"{}", R"({"a":1})", R"({"a":1,"b":null})"}},
      {R"({"type": "string", "format": "date"})",
       {"\"2024-02-29\"", "\"2000-02-29\"", "\"0001-12-31\""},
       {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"0000-01-01\"", "\"2024-13-01\"", "\"not a date\""}},
      {R"({"type": "string", "format": "time"})",
       {"\"23:59:59Z\"", "\"00:00:00.25-01:30\""},
       {"\"24:00:00Z\"", "\"12:00:00\"", "\"12:00:60Z\""}},
      {R"({"type": "string", "format": "date-time", "maxLength": 32})",
       {"\"2024-02-29T12:00:00+02:00\""},
       {"\"2024-02-29 12:00:00Z\"", "\"2023-02-29T12:00:00Z\""}},
      {R"({"format": "uuid", "type": ["string", "null"]})",
       {"null", "\"123e4567-e89b-12d3-A456-426614174000\""},
       {"\"123e4567e89b12d3a456426614174000\""}},
      {R"({"format": "ipv4"})", {"\"0.10.199.255\""}, {"\"256.1.1.1\"", "\"01.1.1.1\"", "\"1.1.1\"", "1"}},
      {R"({"format": "ipv6"})",
       {"\"::\"", "\"::1\"", "\"2001:db8::ff\"", "\"1:2:3:4:5:6:7:8\"", "\"1::\"", "\"1:2:3:4:5:6:7::\""},
       {"\"1:2:3:4:5:6:7\"", "\"1::2::3\"", "\"1:2:3:4:5:6:7:8:9\"", "\"12345::\"", "\"1:2:3:4:5:6:7::8\""}},
      {R"({"format": "email"})",
       {"\"a.b+c@example.org\""},
       {"\"a\"", "\"@b.c\"", "\"a..b@c.de\"", "\".a@c.de\"", "\"a@c-.de\"", "\"a@b\""}},
      {R"({"format": "hostname"})", {"\"localhost\"", "\"a-1.b.org\""}, {"\"-a.b\"", "\"a..b\"", "\"a_b\"", "\"\""}},
      {R"({"type": "string", "format": "date", "pattern": "^2"})", {"\"2024-01-01\""}, {"\"1999-01-01\""}},
      {R"({"type": "string", "format": "uri", "maxLength": 6})", {"\"ab:cde\""}, {"\"ab:cdef\""}},
      {R"({"type": "string", "pattern": "^(ab)+$", "minLength": 3, "maxLength": 7})",
       {"\"abab\"", "\"ababab\""},
       {"\"ab\"", "\"abababab\"", "\"aba\""}},
      {R"({"pattern": "[\u00e4b]$", "maxLength": 2})",
       {"\"\xc3\xa4\"", "\"x\xc3\xa4\"", R"("\"b")"},
       {"\"xxb\"", "\"xx\""}},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", {"\"ab\"", "\"xbxa\""}, {"\"a\"", "\"b\""}},
      {R"({"pattern": "^a$|^b"})", {"\"a\"", "\"bc\""}, {"\"ac\""}},
      {R"({"type": "string"})",
       {R"("\u00e4\/")", R"("\ud83d\ude00")"},
       {R"("\ud83d")", R"("\u00g0")", R"("\ude00\ud83d")"}},
      {R"({"type": "string", "maxLength": 1})", {R"("\ud83d\ude00")"}, {R"("\u0041\u0041")"}},
      {R"({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": {"type": "integer"},
           "required": ["a"]})",
       {R"({"a":null,"c":1})", R"({"a":null, "b":null, "bb":1, "d":2})", R"({"a":null,"":1})"},
       {R"({"a":null,"a":1})", R"({"a":null,"b":1})", R"({"c":1})", R"({"a":null,"c":null})"}},
      {R"({"patternProperties": {"^x": {"type": "integer"}, "^y": {"type": "null"}}, "additionalProperties": false,
           "properties": {"xa": {"minimum": 3}}})",
       {"{}", R"({"xa":3,"xb":1,"y":null,"xc":2})"},
       {R"({"xa":2})", R"({"z":1})", R"({"y":1})", R"({"xb":1,"xa":2})"}},
      {R"({"patternProperties": {"^x": {"type": "integer"}}})",
       {R"({"x":1,"y":null})", R"({"":[]})"},
       {R"({"x":null})", R"({"xy":"a"})"}},
      {R"({"propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "null"}})",
       {"{}", R"({"ab":null})"},
       {R"({"A":null})"}},
      {R"({"propertyNames": {"enum": ["p", "q"]}, "additionalProperties": {"type": "null"}})",
       {"{}", R"({"p":null,"q":null})"},
       {R"({"r":null})"}},
      {R"({"propertyNames": {"allOf": [{"enum": ["p", "q"]}, {"pattern": "^p"}], "not": {"const": "px"}}})",
       {"{}", R"({"p":1})"},
       {R"({"q":1})", R"({"px":1})"}},
      {R"({"properties": {"a": {"const": 1}}, "required": ["ab"], "propertyNames": {"pattern": "^a"}})",
       {R"({"a":1,"ab":2})"},
       {R"({"a":1})", R"({"ab":2,"b":1})"}},
      {R"({"type": "object", "minProperties": 1})", {R"({"a":1})"}, {"{}"}},
      {R"({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "minProperties": 2,
           "additionalProperties": false})",
       {R"({"a":1,"b":2})", R"({"b":2,"c":3})", R"({"a":1,"b":2,"c":3})"},
       {"{}", R"({"a":1})", R"({"c":3})"}},
      {R"({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "maxProperties": 2})",
       {"{}", R"({"a":1,"c":3})", R"({"a":1,"x":[]})", R"({"x":1,"y":2})"},
       {R"({"a":1,"b":2,"c":3})", R"({"x":1,"y":2,"z":3})", R"({"b":2,"c":3,"z":3})"}},
      {R"({"items": {"enum": ["a", "b", 3]}, "uniqueItems": true, "minItems": 1})",
       {"[3]", R"(["b","a"])", R"([3, "b", "a"])"},
       {"[]", "[3,3]", R"(["a","b","a"])"}},
      {R"({"items": {"enum": [1, 2, 3, 4, 5, 6, 7, 8]}, "uniqueItems": true})",
       {"[]", "[1,3,8]"},
       {"[1,1]", "[1,3,1]"}},
      {R"({"const": {"b": [1, 2.0], "a": "x"}})",
       {R"({"a":"x","b":[1,2]})", R"({"b": [1.0, 2.0], "a": "x"})"},
       {R"({"b":[1,2]})"}},
      {R"({"type": "string", "not": {"enum": ["ab", "abc"]}})", {"\"a\"", "\"abcd\"", "\"\""}, {"\"ab\"", "\"abc\""}},
      {R"({"type": "object", "properties": {"a": true, "b": true}, "not": {"required": ["a", "b"]}})",
       {"{}", R"({"a":1})", R"({"b":1,"c":2})"},
       {R"({"a":1,"b":1})"}},
      {R"({"properties": {"a": {"const": 1}, "b": {"const": 2}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":1})", R"({"b":2,"c":3})"},
       {"{}", R"({"a":1,"b":2})"}},
      {R"({"type": "object", "properties": {"k": {"enum": ["a", "b"]}}, "required": ["k"],
           "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}, "else": {"required": ["y"]}})",
       {R"({"k":"a","x":1})", R"({"k":"b","y":1})"},
       {R"({"k":"a","y":1})", R"({"k":"b"})"}},
      {R"({"properties": {"a": {"not": {}}, "b": {"const": 1}}})", {R"({"b":1})"}, {R"({"a":1})", R"({"b":1,"a":2})"}},
      {R"({"type": "object", "dependencies": {"a": ["b"]}})",
       {"{}", R"({"b":1})", R"({"a":1,"b":2})"},
       {R"({"a":1})", R"({"a":1,"c":2})"}},
      {R"({"format": "uri"})",
       {"\"https://example.org:80/a/b?c=d#e\"", "\"mailto:a@b.c\"", "\"urn:a:b\"", "\"http://a/%20\""},
       {"\"/a/b\"", "\"http://\"", "\"http://a b\"", "\"http://a/%2\"", "\"1a:b\"", "\"http://a/<b>\""}},
  };
  for (const judged& j : all) {
    INFO(j.schema);
    const token_automaton c = json_schema(j.schema, bytes());
    for (const char* text : j.yes) {
      INFO(text);
      CHECK(accepts(c, text));
      CHECK(json::accept(std::string(text)));
    }
    for (const char* text : j.no) {
      INFO(text);
      CHECK(!accepts(c, text));
    }
  }
}

TEST_CASE("integers between bounds are those") {
  for (const auto& [low, high] : {std::pair{-123, 45}, {0, 0}, {-5, -2}, {7, 7}, {98, 1203}, {-1000, -99}}) {
    const token_automaton c =
        json_schema(json({{"type", "integer"}, {"minimum", low}, {"maximum", high}}).dump(), bytes());
    for (int i = -1300; i <= 1300; ++i) {
      if (accepts(c, std::to_string(i)) != (low <= i && i <= high)) FAIL(i << " in " << low << ".." << high);
    }
  }
}

TEST_CASE("numbers between bounds, and multiples, are those") {
  const double bounds[] = {-10.5, -1.25, -0.1, 0, 0.05, 0.3, 7, 9.99};
  for (const double low : bounds) {
    for (const double high : bounds) {
      if (low >= high) continue;
      for (const char* lower : {"minimum", "exclusiveMinimum"}) {
        const token_automaton c =
            json_schema(json({{"type", "number"}, {lower, low}, {"maximum", high}}).dump(), bytes());
        for (int i = -1200; i <= 1200; ++i) {
          const double x = i / 100.0;
          const std::string text = json(x).dump();
          const bool is_in = x <= high && (lower == std::string("minimum") ? x >= low : x > low);
          if (accepts(c, text) != (is_in && text != "-0.0")) FAIL(text << " in " << low << ".." << high << lower);
        }
      }
    }
  }
  for (const int m : {2, 7, 10, 24, 97, 128, 1000}) {
    const token_automaton c = json_schema(
        json({{"type", "integer"}, {"multipleOf", m}, {"minimum", -1234}, {"exclusiveMaximum", 98765}}).dump(),
        bytes());
    for (int i = -1500; i <= 100000; i += i % m == 0 ? 1 : 3) {
      if (accepts(c, std::to_string(i)) != (i % m == 0 && -1234 <= i && i < 98765)) FAIL(i << " of " << m);
    }
  }
}

TEST_CASE("formats that are not supported are passed over on demand alone") {
  const char* schema = R"({"type": "string", "format": "duration", "maxLength": 2})";
  CHECK(accepts(json_schema(schema, bytes(), {.ignore_other_formats = true}), "\"P\""));
  CHECK(!accepts(json_schema(R"({"format": "date"})", bytes(), {.ignore_other_formats = true}), "\"P\""));
  schema = R"({"type": "integer", "format": "uint8"})";
  CHECK(accepts(json_schema(schema, bytes(), {.ignore_other_formats = true}), "-256"));
}

TEST_CASE("whatever is written at random, a text that ends is JSON of its schema") {
  const char* schema = R"({"type": "object", "properties": {
      "name": {"type": "string", "maxLength": 4}, "tags": {"type": "array", "items": {"enum": ["x", "y\""]}, "maxItems": 2},
      "more": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/point"}, true]}},
      "required": ["name"], "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}}}})";
  const token_automaton c = json_schema(schema, bytes());
  std::uint64_t seed = 1;
  int ended = 0;
  for (int text = 0; text < 300; ++text) {
    std::string written;
    auto state = c.start();
    for (int i = 0; i < 3000; ++i) {
      const auto mask = c.allowed(state);
      std::vector<token_id> choices;
      for (token_id t = 0; t <= 256; ++t) {
        if ((mask[static_cast<std::size_t>(t) / 32] >> t % 32 & 1U) != 0) choices.push_back(t);
      }
      REQUIRE(!choices.empty());  // no dead end
      seed = seed * 6364136223846793005U + 1442695040888963407U;
      const bool ends = choices.back() == 256;
      // Closing marks often, so that texts end.
      token_id next = choices[(seed >> 33) % choices.size()];
      for (const token_id t : choices) {
        if ((t == '"' || t == '}' || t == ']') && (seed >> 20) % 4 == 0) next = t;
      }
      if (ends) next = 256;
      if (next == 256) break;
      written += static_cast<char>(static_cast<unsigned char>(next));
      state = c.advance(state, next);
    }
    if (!c.accepts(state)) continue;
    ++ended;
    INFO(written);
    const json value = json::parse(written, nullptr, false);
    REQUIRE(value.is_object());
    REQUIRE(value["name"].is_string());
    if (value.contains("tags")) CHECK(value["tags"].size() <= 2);
  }
  CHECK(ended > 250);
}

TEST_CASE("an error in a schema names the keyword and its path, or line and column") {
  const auto message = [](const char* schema) {
    return message_of<input_error>([&] { json_schema(schema, bytes()); });
  };
  CHECK(message(R"({"type": "array", "items": {"not": {"const": 2}, "type": "integer"}})") ==
        "the JSON schema has \"not\" at #/items, which excepts 2; only strings, null, true and false can be excepted.");
  CHECK(says(message("{\"type\":\n 1,}"), "no JSON", "line 2, column 4"));
  CHECK(says(message(""), "no JSON"));
  CHECK(says(message("3"), "has 3 at #", "expected an object"));
  CHECK(message("false") == "nothing satisfies the JSON schema: no value is possible at #.");
  const auto says_none_at = [&](const char* schema, const std::string& place) {
    return says(message(schema), "nothing satisfies", "at " + place + ".");
  };
  CHECK(says_none_at(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "#"));
  CHECK(says_none_at(R"({"type": "integer", "minimum": 3, "maximum": 2})", "#"));
  CHECK(says_none_at(R"({"enum": ["a"], "type": "null"})", "#"));
  CHECK(says_none_at(R"({"type": "string", "minLength": 3, "maxLength": 2})", "#"));
  // A property that may be left out is no reason.
  CHECK(says_none_at(R"({"properties": {"a": false, "b": {"items": {"enum": ["c"], "type": "null"}, "minItems": 1},
                        "d": false}, "required": ["b"]})",
                     "#/properties/b/items"));
  CHECK(says(message(R"({"enum": []})"), "\"enum\" at #, which must be a list of one value or more"));
  CHECK(says(message(R"({"anyOf": []})"), "\"anyOf\" at #, which must be a list of one schema or more"));
  CHECK(says(message(R"({"oneOf": []})"), "\"oneOf\" at #"));
  CHECK(says(message(R"({"type": "text"})"), "\"type\" at #, which is \"text\"", "boolean"));
  CHECK(message(R"({"properties": {"a": {"type": "integer", "minimum": "18"}}})") ==
        "the JSON schema has \"minimum\" at #/properties/a, which is \"18\"; expected a number.");
  CHECK(says(message(R"({"type": "number", "exclusiveMaximum": true})"), "\"exclusiveMaximum\" at #", "maximum"));
  CHECK(says(message(R"({"type": "number", "multipleOf": 0.01})"), "\"multipleOf\" at #", "whole number"));
  CHECK(says(message(R"({"type": "string", "maxLength": "2"})"), "\"maxLength\" at #", "whole number"));
  CHECK(says(message(R"({"multipleOf": 999983})"), "\"multipleOf\" at #", "too large"));
  CHECK(says(message(R"({"items": {"type": "string", "format": "duration"}})"), "\"format\" at #/items", "\"duration\"",
             "date-time", "ignore_other_formats"));
  CHECK(says(message(R"({"items": {"type": "integer", "format": "uint8"}})"), "\"format\" at #/items", "\"uint8\"",
             "int64", "ignore_other_formats"));
  CHECK(says(message(R"({"type": "number", "format": 3, "enum": [1]})"), "\"format\" at #", "which is 3"));
  CHECK(says(message(R"({"propertyNames": {"anyOf": [{"const": "a"}, {"const": "b"}]}})"),
             "\"anyOf\" at #/propertyNames, which is not supported there"));
  CHECK(says(message(R"({"propertyNames": {"if": {"const": "a"}, "then": false}})"), "Of\" at #/propertyNames"));
  CHECK(says_none_at(R"({"type": "object", "required": ["b"], "propertyNames": {"pattern": "^a"}})", "#/properties/b"));
  CHECK(says_none_at(R"({"required": ["b"], "propertyNames": {"enum": ["a"]}})", "#/properties/b"));
  CHECK(message(R"({"a": {"type": "string", "b": {"a": 1}, "type": "integer"}})") ==
        "the JSON schema has the key \"type\" twice in one object.");
  CHECK(says(message(R"({"oneOf": [{"type": "null"}, {"type": "number"}, {"type": "integer"}]})"), "\"oneOf\" at #",
             "1 and 2"));
  CHECK(says(message(R"({"allOf": [{"items": true, "prefixItems": [true]}, {"items": {"type": "null"}}]})"),
             "\"prefixItems\" at #", "items of another"));
  CHECK(says(message(R"({"$ref": "#", "minLength": 1})"), "64 levels"));
  CHECK(
      says(message(R"({"type": "string", "pattern": "(a", "title": ""})"), "\"(a\" has its end at position 2", "')'"));
  CHECK(says(message(R"({"type": "string", "pattern": "a", "minLength": 100000})"), "\"minLength\" at #", "together"));
  CHECK(says(message(R"({"type": "string", "pattern": "^[a-z]{2}$", "minLength": 3})"), "nothing satisfies"));
  CHECK(says(message(R"({"$ref": "#/$defs/x"})"), "#/$defs/x", "a place of the schema"));
  CHECK(says(message(R"({"$ref": "http://a"})"), "http://a"));
  CHECK(says(message(R"({"type": "object", "required": [3]})"), "\"required\" at #", "names 3"));
  CHECK(says(message(R"({"type": "array", "minItems": -1})"), "minItems", "from 0 to"));
  CHECK(says(message(R"({"type": "array", "minItems": 1.5})"), "whole number"));
  CHECK(says(message(R"({"items": {"type": "null"}, "uniqueItems": true})"), "\"uniqueItems\" at #", "enum"));
  CHECK(says(message(R"({"type": "string", "maxLength": 2, "not": {"const": "ab"}})"), "\"not\" at #", "after \"ab"));
  CHECK(says(message(R"({"patternProperties": {"^[ab]$": true}, "properties": {"a": {"type": "null"}}})"),
             "\"patternProperties\" at #", "after \"a"));
  CHECK(says(message(R"({"minProperties": 2})"), "\"minProperties\" at #", "may repeat"));
  CHECK(says(message(R"({"patternProperties": {"a": {"type": "null"}, "b": {"type": "string"}}})"),
             "\"patternProperties\" at #", "\"a\"", "\"b\"", "same key"));
  CHECK(says(message(R"({"contains": {"type": "null"}, "type": "array"})"), "\"contains\" at #", "not supported"));
  CHECK(says(message(R"({"contains": {"type": "null"}, "enum": [[1]]})"), "\"contains\" at #", "not supported"));
  CHECK(says(message(R"({"enum": [{"a": [1]}], "properties": {"a": {"items": 3}}})"), "has 3 at #/properties/a/items"));
  CHECK(says(message(R"({"enum": [1], "minimum": "0"})"), "\"minimum\" at #", "expected a number"));
  CHECK(says(message(R"({"not": {"minLength": 3}})"), "\"not\" at #", "another way"));
  CHECK(says(message(R"({"enum": ["a"], "type": "strng"})"), "\"type\" at #, which is \"strng\"", "boolean"));
  CHECK(says(message(R"({"const": 1, "type": ["integer", 3]})"), "\"type\" at #, which is 3"));
  CHECK(message(R"({"const": 18446744073709551616})") ==
        "the JSON schema has the integer 18446744073709551616, which 64 bits do not hold.");
  std::string deep = "true";
  for (int i = 0; i < 70; ++i)
    deep = R"({"type": "array", "items": )" + deep + "}";
  CHECK(says(message(deep.c_str()), "64 levels"));
}

TEST_CASE("deep nesting is refused before anything follows it") {
  const auto message = [](const std::string& schema) {
    return message_of<input_error>([&] { json_schema(schema, bytes()); });
  };
  const std::string lists = std::string(100000, '[') + std::string(100000, ']');
  for (const std::string& schema :
       {lists, "{\"enum\": [" + lists + "]}", "{\"const\": " + lists + "}", "{\"default\": " + lists + "}"})
    CHECK(message(schema) == "the JSON schema has lists and objects more than 200 levels deep.");
  const std::string allowed = std::string(199, '[') + std::string(199, ']');
  CHECK(accepts(json_schema("{\"const\": " + allowed + "}", bytes()), allowed));
}

TEST_CASE("checks of an enum's values end, however deep they go and however many there are") {
  const auto message = [](const std::string& schema) {
    return message_of<input_error>([&] { json_schema(schema, bytes()); });
  };
  const auto of_lists = [](std::size_t n) {
    return "{\"enum\": [" + std::string(n, '[') + std::string(n, ']') + "], \"items\": {\"$ref\": \"#/$defs/x\"}, " +
           R"("$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}})";
  };
  CHECK(accepts(json_schema(of_lists(100), bytes()), std::string(100, '[') + std::string(100, ']')));
  CHECK(says(message(of_lists(150)), "more than 256 levels deep at #/$defs/x", "values of an enum"));
  std::string twice = R"({"enum": [{"a": 1}], "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {)";
  for (int i = 0; i < 40; ++i) {
    const std::string next = "{\"$ref\": \"#/$defs/" + std::to_string(i + 1) + "\"}";
    twice += "\"" + std::to_string(i) + R"(": {"anyOf": [)" + next + ", " + next + "]}, ";
  }
  CHECK(says(message(twice + R"("40": false}})"), "too large", "1048576 steps"));
}

TEST_CASE("references that lead nowhere but to each other have no value") {
  std::string all = R"({"anyOf": [)", definitions;
  for (const char* name : {"a", "b", "c", "d"})
    all += std::string(name == std::string("a") ? "" : ", ") + "{\"$ref\": \"#/$defs/" + name + "\"}";
  all += "]}";
  for (const char* name : {"a", "b", "c", "d"})
    definitions += std::string(name == std::string("a") ? "" : ", ") + "\"" + name + "\": " + all;
  CHECK(says(message_of<input_error>(
                 [&] { json_schema("{\"$ref\": \"#/$defs/a\", \"$defs\": {" + definitions + "}}", bytes()); }),
             "nothing satisfies"));
}

TEST_CASE("references that lead to each other, and elsewhere, have the values of where else they lead") {
  const char* schema = R"({"$ref": "#/$defs/a", "$defs": {
      "a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/b"}}, {"$ref": "#/$defs/b"}]},
      "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}})";
  const token_automaton c = json_schema(schema, bytes());
  for (const char* text : {"null", "[]", "[[null], null]", "[[[]]]"})
    CHECK(accepts(c, text));
  for (const char* text : {"1", "[1]", "[[]", "[]]"})
    CHECK(!accepts(c, text));
}

TEST_CASE("values nest as deeply as a text likes, and lengths cost nothing") {
  std::string lists, links;
  for (int i = 0; i < 1000; ++i) {
    lists = "[" + lists + "]";
    links = R"({"next": )" + (links.empty() ? "null" : links) + "}";
  }
  CHECK(accepts(json_schema("true", bytes()), lists));
  CHECK(!accepts(json_schema("true", bytes()), lists + "]"));
  const token_automaton list = json_schema(
      R"({"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]})", bytes());
  CHECK(accepts(list, links));
  CHECK(!accepts(list, links.substr(0, links.size() - 1)));
  const token_automaton text = json_schema(R"({"type": "string", "minLength": 3, "maxLength": 16000})", bytes());
  for (const auto& [n, is_allowed] : {std::pair{2, false}, {3, true}, {16000, true}, {16001, false}})
    CHECK(accepts(text, "\"" + std::string(static_cast<std::size_t>(n), 'x') + "\"") == is_allowed);
  const token_automaton items = json_schema(R"({"items": {"const": 1}, "minItems": 2, "maxItems": 16000})", bytes());
  for (const auto& [n, is_allowed] : {std::pair{1, false}, {2, true}, {16000, true}, {16001, false}}) {
    std::string all = "[1";
    for (int i = 1; i < n; ++i)
      all += ",1";
    CHECK(accepts(items, all + "]") == is_allowed);
  }
}

TEST_CASE("line breaks are allowed on demand alone") {
  const std::string text = "{\n  \"a\": [\n\t1,\n\t2\n  ]\n}";
  const char* schema = R"({"properties": {"a": {"type": "array", "items": {"type": "integer"}}}})";
  CHECK(accepts(json_schema(schema, bytes(), {.allow_lines = true}), text));
  CHECK(accepts(json_schema(schema, bytes(), {.allow_lines = true}), R"({"a": [1,2]})"));
  CHECK(!accepts(json_schema(schema, bytes()), text));
}

TEST_CASE("masks inside strings are those of a walk over all tokens") {
  std::vector<std::string> pieces;
  for (int c = 0; c < 256; ++c)
    pieces.push_back(std::string(1, static_cast<char>(c)));
  for (const char* more : {"ab",
                           "abc",
                           "abcdefgh",
                           "a\"",
                           "ab\",",
                           "\": ",
                           "\":\"",
                           "\xc3\xa4x",
                           "\xe2\x82",
                           "\xac"
                           "b",
                           "\"}",
                           "\"]",
                           "\\n",
                           "\\u",
                           "00",
                           "name",
                           "\"name\"",
                           "e\": 1",
                           "}}",
                           "x\"}]",
                           " 12",
                           "true",
                           "\\\"a"})
    pieces.emplace_back(more);
  pieces.emplace_back();
  const auto end = static_cast<token_id>(pieces.size()) - 1;
  const vocabulary_trie words(pieces, {end});
  std::uint64_t seed = 3;
  for (const char* schema :
       {R"({"properties": {"name": {"type": "string", "maxLength": 5}, "x": {"pattern": "^a*b|c$"}}})",
        R"({"additionalProperties": {"type": "string", "minLength": 2}, "properties": {"name": {"const": 1}}})",
        R"({"items": {"type": "string", "minLength": 1, "maxLength": 30}, "maxItems": 3})", "true",
        R"({"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"enum": ["ab", "abc"]}})",
        R"({"patternProperties": {"^a": {"type": "integer"}}, "properties": {"b": true, "ab": true},
            "additionalProperties": false, "not": {"required": ["c"]}})",
        R"({"propertyNames": {"pattern": "^[a-z]+$"}, "properties": {"B": {"const": 1}, "b": {"const": 2}}})",
        R"({"type": "string", "pattern": "^[b-z]+$", "not": {"enum": ["ab", "bc"]}})",
        R"({"type": "string", "not": {"enum": ["ab", "abc"]}})"}) {
    INFO(schema);
    const token_automaton c = json_schema(schema, words);
    for (int text = 0; text < 30; ++text) {
      auto state = c.start();
      for (int i = 0; i < 25; ++i) {
        const auto mask = c.allowed(state);
        std::vector<token_id> able;
        for (std::size_t t = 0; t < pieces.size(); ++t) {
          const auto token = static_cast<token_id>(t);
          const bool leads_on = token == end ? c.accepts(state) : c.advance(state, token) >= 0;
          if ((mask[t / 32] >> t % 32 & 1U) != static_cast<unsigned>(leads_on)) FAIL("token " << t << " of " << i);
          if (leads_on && token != end) able.push_back(token);
        }
        if (able.empty() && !c.accepts(state)) FAIL("no way on after " << i << " tokens");
        if (able.empty()) break;
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        state = c.advance(state, able[(seed >> 33) % able.size()]);
      }
    }
  }
}

TEST_CASE("what other properties are is true, false or a schema") {
  CHECK(message_of<input_error>([] {
          json_schema(R"({"properties": {"a": true}, "additionalProperties": 5})", bytes());
        }).find("additionalProperties") != std::string::npos);
}
