#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Makes, and checks, the schemas of bench_micro_schemas. Needs jsonschema[format] from PyPI.

  schemas.py make > schemas.jsonl     300 schemas, each with texts that it describes and texts that it does not; each
                                      keyword as often as in the schemas of JSONSchemaBench (of 11,305, by count)
  schemas.py check FILE               reads what bench_micro_schemas wrote: each text must be of its schema
"""
import copy
import json
import random
import sys

import jsonschema

random.seed(36)
NAMES = ("id name title kind count size tags owner email url created state items note version path host port level "
         "code label group weight color").split()
FORMATS = {"date-time": "2024-05-01T10:00:00Z", "uri": "https://example.org/a?b=1", "date": "2024-02-29",
           "email": "a.b@example.org", "uuid": "123e4567-e89b-12d3-a456-426614174000", "hostname": "a.example.org",
           "time": "10:00:00Z", "ipv4": "10.0.0.1", "ipv6": "2001:db8::1", "uri-reference": "/a/b"}
FORMAT_WEIGHTS = [30, 22, 10, 6, 4, 2, 1, 1, 1, 2]
PATTERNS = {"^[a-z][a-z0-9-]*$": "ab-1", "^\\d{4}-\\d{2}$": "2024-05", "[A-Z]{2,3}": "xABy", "^#[0-9a-fA-F]{6}$": "#00ff00",
            "^(a|b)+c?$": "abac", "^v\\d+(\\.\\d+){0,2}$": "v1.2", "\\S": "x", "^[^,]+$": "a b"}


def chance(percent):
    return random.random() * 100 < percent


def text():
    return random.choice(["", "a", "hello", "two words", "\u00e4\u20ac", "a \"b\" \\ c", "x" * 40, "line\nbreak"])


def string():
    """A schema of strings, and a value of it."""
    kind = random.random()
    if kind < 0.30:
        values = random.sample(["red", "green", "blue", "a b", "\u00fc", "on", "off", "x\"y"], random.randint(1, 5))
        return {"type": "string", "enum": values}, random.choice(values)
    if kind < 0.42:
        name = random.choices(list(FORMATS), FORMAT_WEIGHTS)[0]
        return {"type": "string", "format": name}, FORMATS[name]
    if kind < 0.53:
        pattern = random.choice(list(PATTERNS))
        one = {"type": "string", "pattern": pattern}
        if chance(25):
            one["maxLength"] = random.choice([20, 63, 253])
        return one, PATTERNS[pattern]
    one, value = {"type": "string"}, text()
    if chance(16):
        one["minLength"] = random.choice([1, 1, 1, 2])
        value += "ab"
    if chance(14):
        one["maxLength"] = random.choice([50, 100, 255, 1024, 16000])
    return one, value


def number():
    one = {"type": random.choice(["integer", "integer", "number"])}
    value = random.randint(0, 40)
    if chance(25):
        one["minimum"] = random.choice([0, 0, 1])
        value += 1
    if chance(14):
        one["maximum"] = random.choice([100, 1000, 65535])
    if chance(4):
        one["multipleOf"] = random.choice([1, 5, 10])
        value = 10
    if chance(2):
        one["exclusiveMinimum"] = -1
    if one["type"] == "number" and "multipleOf" not in one and chance(40):
        value += 0.5
    return one, value


def value_of(depth, definitions):
    kind = random.random()
    if depth > 0 and definitions and kind < 0.06:
        name = random.choice(list(definitions))
        return {"$ref": "#/definitions/" + name}, copy.deepcopy(definitions[name][1])
    if depth > 0 and kind < 0.26:
        return thing(depth - 1, definitions)
    if depth > 0 and kind < 0.42:
        return array(depth - 1, definitions)
    if kind < 0.48:
        return {"type": "boolean"}, chance(50)
    if kind < 0.64:
        return number()
    if depth > 0 and kind < 0.69:
        other = thing(depth - 1, definitions)
        choices = [string(), other]
        return {random.choice(["oneOf", "oneOf", "anyOf"]): [c[0] for c in choices]}, random.choice(choices)[1]
    if kind < 0.72:
        return {"type": ["string", "null"]}, random.choice([None, "a"])
    if kind < 0.73:
        return {"const": "fixed"}, "fixed"
    if kind < 0.74:
        return {}, [1, {"a": None}]
    return string()


def array(depth, definitions):
    item, value = value_of(depth, definitions)
    one, values = {"type": "array", "items": item}, [value] * random.randint(1, 3)
    if chance(20):
        one["minItems"] = 1
    if chance(9):
        one["maxItems"] = random.choice([3, 10, 16000])
    if chance(4) and "enum" in item:
        one["uniqueItems"] = True
        values = values[:1]
    if chance(3):
        first, other = value_of(0, definitions), value_of(0, definitions)
        return {"type": "array", "items": [first[0], other[0]], "additionalItems": False}, [first[1], other[1]]
    return one, values


def thing(depth, definitions):
    one, value = {"type": "object", "properties": {}}, {}
    names = random.sample(NAMES, random.randint(1, 6))
    for name in names:
        one["properties"][name], value[name] = value_of(depth, definitions)
    required = [name for name in names if chance(50)]
    if required:
        one["required"] = required
    for name in names:
        if name not in required and chance(40):
            del value[name]
    if chance(40):
        one["additionalProperties"] = False
    elif chance(15):
        one["additionalProperties"] = {"type": "string"}
        value["extra"] = "more"
    if chance(3):
        one["patternProperties"] = {"^x-": {"type": "integer"}}
        value = {k: v for k, v in value.items() if k != "extra"}
        value["x-a"] = 1
    if chance(1.5):
        one["minProperties"] = 1
        if not value:
            value[names[0]] = None
    if chance(1):
        one["maxProperties"] = len(names) + 2
    if chance(0.8) and len(names) > 1:
        one["dependencies"] = {names[0]: [names[1]]}
    if chance(0.5):
        one["propertyNames"] = {"pattern": "^[a-z-]+$"}
    return one, value


def root():
    definitions = {}
    if chance(26):
        for name in ("part", "link")[:random.randint(1, 2)]:
            definitions[name] = thing(1, {})
    one, value = thing(2, definitions)
    one = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "a case", **one}
    if definitions:
        one["definitions"] = {name: d[0] for name, d in definitions.items()}
        one["properties"]["ref"] = {"$ref": "#/definitions/part", "description": "a part"}
    if chance(7):
        inner = thing(1, definitions)
        both = {"allOf": [one.pop("properties") and {"type": "object", "properties": {"base": {"type": "string"}}}, inner[0]]}
        one = {k: v for k, v in one.items() if k in ("$schema", "title", "definitions")} | both
        value = {"base": "b", **inner[1]}
    elif chance(6):
        a, b = random.sample(NAMES, 2)
        one["oneOf"] = [{"required": [a]}, {"required": [b]}]
    elif chance(6):
        one["not"] = random.choice([{"required": ["gone"]}, {"required": ["gone", "old"]}])
    elif chance(2):
        one["properties"]["kind"] = {"enum": ["p", "q"]}
        one["if"] = {"properties": {"kind": {"const": "p"}}, "required": ["kind"]}
        one["then"] = {"required": ["pp"]}
        value["kind"] = "q"
    elif chance(1):
        one["properties"]["list"] = {"type": "array", "contains": {"type": "null"}}
    elif chance(1.5):
        one["properties"]["tree"] = {"$ref": "#"}
    return one, value


def changed(value):
    """Values near this one, of which most are not of its schema."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            for other in changed(value[key]):
                yield {**value, key: other}
        yield {**value, "zz": []}
    elif isinstance(value, list):
        for i, one in enumerate(value):
            for other in changed(one):
                yield value[:i] + [other] + value[i + 1:]
        yield value * 9 if value else [None]
    else:
        yield from ({"a": 1}, -5, 1.25, "!", None)


def validator_of(schema):
    kind = jsonschema.validators.validator_for(schema)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def make():
    n = 0
    while n < 300:
        schema, value = root()
        try:
            check = validator_of(schema)
        except jsonschema.SchemaError:
            continue
        near = list(changed(value))
        random.shuffle(near)
        texts = [(v, check.is_valid(v)) for v in [value] + near[:40]]
        good, bad = [v for v, ok in texts if ok][:3], [v for v, ok in texts if not ok][:3]
        if not good or not bad:
            continue
        write = lambda v: json.dumps(v, ensure_ascii=False)
        print(json.dumps({"schema": json.dumps(schema), "valid": [write(v) for v in good],
                          "invalid": [write(v) for v in bad]}))
        n += 1


def check(path):
    n = wrong = 0
    for line in open(path, encoding="utf-8"):
        one = json.loads(line)
        schema = json.loads(one["schema"])
        checker = validator_of(schema)
        for written in one["written"]:
            n += 1
            try:
                error = next(checker.iter_errors(json.loads(written)), None)
            except ValueError as e:
                error = e
            if error is not None:
                wrong += 1
                print(one["schema"], written, error, sep="\n", file=sys.stderr)
    print(f"{n} texts written, {wrong} not of their schema")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(make() if sys.argv[1] == "make" else check(sys.argv[2]))
