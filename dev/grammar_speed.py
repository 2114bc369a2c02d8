#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long grammars take to make, and a mask per token: this program's beside llguidance's.

    dev/grammar_speed.py GRAMMAR_SPEED TOKENIZER_DIR ...

GRAMMAR_SPEED is tests/serve/grammar/grammar_speed of a build.  llguidance is measured where it is
installed, in this process, after ours; both go along the same text.
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import llguidance
except ImportError:
    llguidance = None

PERSON = {"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer"}, "email": {"type": "string"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
                "required": ["street", "city"], "additionalProperties": False}},
    "required": ["name", "age", "email", "tags", "address"], "additionalProperties": False}
NODE = {"$defs": {"n": {"type": "object", "properties": {
    "kind": {"enum": ["leaf", "branch"]}, "value": {"type": "number"},
    "children": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
    "required": ["kind"], "additionalProperties": False}}, "$ref": "#/$defs/n"}
LIMITED = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 200},
                                            "count": {"type": "integer", "minimum": 1, "maximum": 5000}},
           "required": ["title", "count"], "additionalProperties": False}
CASES = {
    "any object": ({"type": "object"}, {"a": [1, 2.5, {"b": "some text here, and more"}], "c": None, "d": True}),
    "person": (PERSON, {"name": "Zorin of Tarn", "age": 41, "email": "zorin@tarn.example", "tags": ["keeper", "north"],
                        "address": {"street": "Harbour street 4", "city": "Tarn"}}),
    "tree": (NODE, {"kind": "branch", "value": 1.5, "children": [
        {"kind": "leaf", "value": 2}, {"kind": "branch", "children": [{"kind": "leaf"}]}]}),
    "limited": (LIMITED, {"title": "The lighthouse keeper and the storm of the long winter", "count": 4711}),
}


def theirs(directory, schema, text):
    tokenizer = llguidance.LLTokenizer((pathlib.Path(directory) / "tokenizer.json").read_text())
    tokens = tokenizer.tokenize_str(text)
    begin = time.perf_counter()
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    made = (time.perf_counter() - begin) * 1e6
    assert not matcher.is_error(), matcher.get_error()
    times = []
    for _ in range(20):
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        for token in tokens:
            begin = time.perf_counter()
            matcher.compute_bitmask()
            if not matcher.consume_token(token):
                return made, None
            times.append((time.perf_counter() - begin) * 1e6)
    return made, times


def main():
    print("| tokenizer | schema | tokens | states | make, ms | mask mean, us | median | p99 | llguidance make, ms | mask mean, us | median | p99 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for directory in sys.argv[2:]:
        for name, (schema, value) in CASES.items():
            text = json.dumps(value, separators=(",", ":"))
            with tempfile.TemporaryDirectory() as place:
                files = pathlib.Path(place) / "schema", pathlib.Path(place) / "text"
                files[0].write_text(json.dumps(schema))
                files[1].write_text(text)
                ours = json.loads(subprocess.check_output([sys.argv[1], directory, *map(str, files)]))
            row = [pathlib.Path(directory).name, name, ours["tokens"], ours["states"], f"{ours['make_us'] / 1e3:.1f}",
                   f"{ours['mask_mean_us']:.1f}", f"{ours['mask_median_us']:.1f}", f"{ours['mask_p99_us']:.1f}"]
            if llguidance:
                made, times = theirs(directory, json.dumps(schema), text)
                row.append(f"{made / 1e3:.1f}")
                row += ["refused"] * 3 if times is None else [
                    f"{statistics.mean(times):.1f}", f"{statistics.median(times):.1f}",
                    f"{sorted(times)[len(times) * 99 // 100]:.1f}"]
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
