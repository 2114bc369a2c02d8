#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as grammars beside Python's jsonschema: what a grammar makes is valid, and what is
valid is taken.

    check_schemas.py GRAMMAR_WALK [--schemas N] [--seed S]

Skips (77) where jsonschema (python3-jsonschema) is missing.
"""
import argparse
import itertools
import json
import pathlib
import random
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import schemas  # noqa: E402

try:
    import jsonschema
except ImportError:
    print("jsonschema is not installed")
    sys.exit(77)

# Cases of both drafts: schema, valid values, values that are not valid.
CASES = [
    ({"type": "integer"}, [0, -7, 123456789], [1.5, "1", None, True, []]),
    ({"type": "number"}, [0, -0.25, 1e20, 3], ["0", None, False]),
    ({"type": "number", "minimum": 0, "exclusiveMaximum": 10}, [0, 0.5, 9.999], [-0.1, 10, 11]),
    ({"type": "integer", "exclusiveMinimum": -5, "maximum": 1000}, [-4, 0, 1000], [-5, 1001]),
    ({"type": ["string", "null"]}, ["", "é\n\"", None], [1, []]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "日本é", "😀😀"], ["a", "abcde", ""]),
    ({"type": "string", "pattern": "^[a-f]+-\\d{2}$"}, ["abc-12"], ["abc-1", "x-12", "abc-123"]),
    ({"type": "string", "pattern": "b"}, ["abc", "b"], ["ac", ""]),
    ({"type": "string", "pattern": "c$", "not": {"pattern": "\\d"}}, ["c", "\u07c0c"], ["c\n", "7c"]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
     [[1], [1, 2, 3]], [[], [1, 2, 3, 4], ["a"]]),
    ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
     [[], ["a"], ["a", 1]], [["a", 1, 2], [1]]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
      "items": [{"type": "string"}], "additionalItems": {"type": "null"}},
     [[], ["a"], ["a", None, None]], [["a", 1], [1]]),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
     [{"a": 1}, {"a": 1, "b": [1]}], [{}, {"a": "x"}, {"b": 1}]),
    ({"type": "object", "additionalProperties": {"type": "boolean"}}, [{}, {"x": True}], [{"x": 1}]),
    ({"type": "object", "properties": {"a": {}, "ab": {}}, "additionalProperties": False},
     [{}, {"a": 1, "ab": 2}], [{"b": 1}, {"abc": 1}]),
    ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}, {}]),
    ({"enum": [1, "x", None, [True]]}, [1, "x", None, [True]], [2, "y", False]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}, [5, "ab"], ["abc", 1.5]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [5, "abc"], [None, 1.5]),
    ({"allOf": [{"type": "integer"}]}, [5], ["a"]),
    ({"definitions": {"n": {"type": "object", "properties": {"v": {"type": "integer"},
                                                             "next": {"$ref": "#/definitions/n"}},
                            "required": ["v"], "additionalProperties": False}},
      "$ref": "#/definitions/n"},
     [{"v": 1}, {"v": 1, "next": {"v": 2, "next": {"v": 3}}}], [{"next": {"v": 1}}, {"v": 1, "next": {}}]),
    ({"type": "array", "items": {"$ref": "#"}}, [[], [[], [[]]]], [[1], {}]),
    ({"$defs": {"a/b": {"type": "null"}}, "anyOf": [{"$ref": "#/$defs/a~1b"}]}, [None], [0]),
    ({}, [1, "a", {"b": [None]}], []),
    ({"minimum": 5}, [5, "a", None, {}], [4]),
    ({"type": "string", "format": "date-time"}, ["2024-02-29T23:59:59.5Z", "2023-01-01T00:00:00+01:30"],
     ["2023-02-29T00:00:00Z", "2024-01-01 00:00:00Z", "x"]),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
    ({"type": "number", "minimum": 0.1, "maximum": 99.95}, [0.1, 0.15, 1, 99.95, 99.94, 50.5],
     [0.09, 99.96, 100, 0, -0.1, -1]),
    ({"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": -0.001}, [-2.499, -1, -0.0011, -0.5],
     [-2.5, -0.001, 0, 1, -3]),
    ({"type": "integer", "minimum": -0.5, "maximum": 10.5}, [0, 10], [-1, 11]),
    ({"type": "integer", "multipleOf": 7, "minimum": -20}, [-14, 0, 7, 700], [-21, 1, 6]),
    ({"type": "number", "multipleOf": 10}, [0, -10, 100], [5, 0.5]),
    ({"type": "number", "multipleOf": 0.5, "minimum": -2}, [0, -1.5, 2, 100.5], [0.25, -2.5, 1.1]),
    ({"type": "object", "$defs": {"k": {"enum": ["a", "bc"]}}, "propertyNames": {"$ref": "#/$defs/k"},
      "additionalProperties": {"type": "integer"}}, [{}, {"a": 1}, {"bc": 1, "a": 2}], [{"b": 1}, {"a": "x"}]),
    ({"type": "string", "maxLength": 5000}, ["", "a" * 4097, "é" * 5000], ["a" * 5001]),
    ({"maximum": 1e30, "type": "number", "minimum": -1e-30}, [0, 5.5, 10**17], [-0.5]),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "string"}, "a": {"maximum": 5}}, "required": ["b"]}]},
     [{"a": 1, "b": "x"}, {"a": 5, "b": "", "c": [1]}], [{"a": 6, "b": "x"}, {"a": 1}, {"b": "x"}]),
    ({"$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
      "$ref": "#/$defs/base", "properties": {"name": {"type": "string"}}},
     [{"id": 1}, {"id": 1, "zz": 2}], [{}, {"name": 1, "id": 1}]),
    ({"type": "object", "patternProperties": {"^n_": {"type": "integer"}, "s$": {"type": "string"}},
      "additionalProperties": False},
     [{}, {"n_a": 1, "names": "x"}], [{"n_a": "x"}, {"other": 1}, {"n_s": 1}, {"n_s": "x"}]),
    ({"type": "object", "properties": {"n_b": {"minimum": 3}}, "patternProperties": {"^n_": {"type": "integer"}}},
     [{"n_b": 3}, {"n_b": 4, "n_c": 0, "zz": "x"}], [{"n_b": 2}, {"n_b": "x"}, {"n_c": "x"}]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"}, "additionalProperties": {"type": "integer"}},
     [{}, {"ab": 1, "cd": 2}], [{"abc": 1}, {"ab": "x"}, {"A": 1}]),
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False,
      "minProperties": 2, "maxProperties": 2}, [{"a": 1, "b": 2}, {"b": 1, "c": 2}], [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}]),
    ({"type": "object", "minProperties": 1}, [{"a": 1}, {"x": 1, "y": 2}], [{}]),
    ({"type": "object", "maxProperties": 1}, [{}, {"x": 1}], [{"x": 1, "y": 2}]),
    ({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}}, "required": ["kind"],
      "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["n"]},
      "else": {"properties": {"n": False}}},
     [{"kind": "a", "n": 1}, {"kind": "b"}, {"kind": "b", "z": 1}], [{"kind": "a"}, {"kind": "b", "n": 1}, {}]),
    ({"type": "string", "not": {"enum": ["a", "bc"]}}, ["", "ab", "b", "bcd", "x"], ["a", "bc", 1]),
    ({"type": ["integer", "string", "null"], "not": {"const": 3}}, [2, 4, -3, "3", None], [3, True]),
    ({"not": {"type": ["string", "number"]}}, [None, True, [1], {"a": 1}], ["x", 1, 1.5]),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd", "A1"]),
    ({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}], "not": {"pattern": "c"}},
     ["ab", "xbya"], ["a", "b", "abc"]),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
     [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    ({"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 10}]}, [4, 11], [5, 7, 10]),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}], "maxLength": 2, "minimum": 3}, ["ab", 3], ["abc", 2]),
    ({"type": "integer", "enum": [1, 2, 3, "x"], "minimum": 2}, [2, 3], [1, "x"]),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[], [1]], [[1, 1]]),
    ({"allOf": [{"type": "array", "items": {"type": "integer"}}, {"items": {"minimum": 3}, "maxItems": 2}]},
     [[], [3, 4]], [[2], [3, 3, 3], ["x"]]),
    ({"type": "object", "properties": {"property_with_a_rather_long_name_%d" % i: {"type": "integer"}
                                       for i in range(100)}},
     [{}, {"property_with_a_rather_long_name_7": 1, "property_with_a": 2}], [{"property_with_a_rather_long_name_99": "x"}]),
]


# Look-ahead, as programs write it (zod's email and duration, pydantic's decimals, rules of passwords), and small ones
# of which all texts of a few letters are tried.
LOOKS = [
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
    r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,5}0*$)\d{0,3}\.\d{0,2}0*$)",
    r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{4,}$", r"^(?!\s*$).+", r"^(?!a)", r"^(?!a)b|c$", r"(?!a)b",
    r"^(?=.*b)(?=.*a)[ab]{2,4}$", r"^(?!^a)(?!^b).*$", r"^a(?!b)c*", r"a(?=b)", r"^(?:a|(?=ab)b|(?!b)a)c$",
    r"^(?!.*aa)[abc]*$", r"^(?=a|b$)c|a", r"^(?!a$|b)", r"(?=a)b|c", r"^(a(?=b)|b(?!c))[abc]+$", r"^(?![(])a",
    r"^(?!a(b|c)$)a.*", r"^x(?:(?!a))b", r"^(?=)a$", r"(?!a)$", r"(?=a$)a", r"^((?!a).)$", r"^(?!(?=a)ab)a",
    r"^(?!(?!a))a", r"^(?:(?=a)a|b)(?:(?!c)a|b)$", r"[(?=a)]b", r"\(?=a(?!b)"]
TEXTS = ["a@b.co", "a..b@c.de", ".a@b.co", "a@b", "1.5", "-", "+.", "00012.50", "1234", "12.345", "aB3x", "aB3", "abcd",
         "  ", " x"]


class Walk:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, walks, texts):
        self.process.stdin.write(json.dumps({"schema": schema, "walks": walks, "texts": texts}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended at {json.dumps(schema)}"
        return json.loads(line)


def compare(walk, schema, good, bad, walks):
    """Values as texts in the three spellings that programs write, and random walks."""
    valid = schemas.judge(jsonschema, schema)
    texts, wanted = [], []
    for value in good + bad:
        right = valid(value)
        for text in schemas.spellings(value):
            texts.append(text)
            wanted.append(right)
    answer = walk.ask(schema, walks, texts)
    if "no text" in answer.get("refused", ""):
        assert True not in wanted, (schema, answer)
        return 0, 0
    assert "refused" not in answer, (schema, answer)
    for text, taken, want in zip(texts, answer["taken"], wanted):
        assert taken == want, f"{json.dumps(schema)}: {text} is {'' if want else 'not '}valid"
    done = 0
    for text in answer["made"]:
        if text is not None:
            done += 1
            assert valid(json.loads(text)), f"{json.dumps(schema)} makes {text}"
    return done, len(texts)


def check_looks(walk):
    """Python's re says the same of each text."""
    texts = TEXTS + ["".join(letters) for n in range(5) for letters in itertools.product("abc( ", repeat=n)]
    for pattern in LOOKS:
        answer = walk.ask({"type": "string", "pattern": pattern}, 20, [json.dumps(text) for text in texts])
        if "no text" in answer.get("refused", ""):
            answer = {"taken": [False] * len(texts), "made": []}
        for text, taken in zip(texts, answer["taken"]):
            assert taken == bool(re.search(pattern, text)), (pattern, text, taken)
        for text in filter(None, answer["made"]):
            assert re.search(pattern, json.loads(text)), (pattern, text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("walk")
    parser.add_argument("--schemas", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    walk, made, texts = Walk(options.walk), 0, 0
    for schema, good, bad in CASES:
        valid = schemas.judge(jsonschema, schema)
        assert all(map(valid, good)) and not any(map(valid, bad)), schema
        some = compare(walk, schema, good, bad, 20)
        made, texts = made + some[0], texts + some[1]
    check_looks(walk)
    rng = random.Random(options.seed)
    for _ in range(options.schemas):
        schema = schemas.schema(rng)
        good = [schemas.value(rng, schema, schema) for _ in range(12)]
        good = [value for value in good if value is not schemas.NONE]
        some = compare(walk, schema, good, [schemas.spoil(rng, value) for value in good], 12)
        made, texts = made + some[0], texts + some[1]
    refused = 0
    for _ in range(3 * options.schemas):
        schema, values = schemas.combined(rng)
        if "minProperties" in walk.ask(schema, 0, []).get("refused", ""):
            refused += 1  # above 1, and members that are not declared
            continue
        some = compare(walk, schema, values, [], 12)
        made, texts = made + some[0], texts + some[1]
    assert refused < options.schemas / 3, refused
    print(f"{made} texts made, {texts} judged")
    assert made > 5 * options.schemas


if __name__ == "__main__":
    main()
