#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as grammars beside Python's jsonschema: what a grammar makes is valid, and what is
valid is taken.

    check_schemas.py GRAMMAR_WALK [--schemas N] [--seed S]

Skips (77) where jsonschema (python3-jsonschema) is missing.
"""
import argparse
import json
import pathlib
import random
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
]


class Walk:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, walks, texts):
        self.process.stdin.write(json.dumps({"schema": schema, "walks": walks, "texts": texts}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended at {json.dumps(schema)}"
        return json.loads(line)


def judge(schema):
    """Whether a value is valid, formats too."""
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator) \
        if isinstance(schema, dict) else jsonschema.Draft202012Validator
    checker = schemas.formats(jsonschema)
    return cls(schema, format_checker=checker).is_valid


def compare(walk, schema, good, bad, walks):
    """Values as texts in the three spellings that programs write, and random walks."""
    valid = judge(schema)
    texts, wanted = [], []
    for value in good + bad:
        right = valid(value)
        for text in schemas.spellings(value):
            texts.append(text)
            wanted.append(right)
    answer = walk.ask(schema, walks, texts)
    assert "refused" not in answer, (schema, answer)
    for text, taken, want in zip(texts, answer["taken"], wanted):
        assert taken == want, f"{json.dumps(schema)}: {text} is {'' if want else 'not '}valid"
    done = 0
    for text in answer["made"]:
        if text is not None:
            done += 1
            assert valid(json.loads(text)), f"{json.dumps(schema)} makes {text}"
    return done, len(texts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("walk")
    parser.add_argument("--schemas", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    walk, made, texts = Walk(options.walk), 0, 0
    for schema, good, bad in CASES:
        valid = judge(schema)
        assert all(map(valid, good)) and not any(map(valid, bad)), schema
        some = compare(walk, schema, good, bad, 20)
        made, texts = made + some[0], texts + some[1]
    rng = random.Random(options.seed)
    for _ in range(options.schemas):
        schema = schemas.schema(rng)
        good = [schemas.value(rng, schema, schema) for _ in range(12)]
        good = [value for value in good if value is not schemas.NONE]
        some = compare(walk, schema, good, [schemas.spoil(rng, value) for value in good], 12)
        made, texts = made + some[0], texts + some[1]
    print(f"{made} texts made, {texts} judged")
    assert made > 5 * options.schemas


if __name__ == "__main__":
    main()
