#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers of a running server under random JSON schemas: all must parse, and validate by Python's
jsonschema.

    dev/structured.py URL [--count N] [--at-once M] [--seed S] [--combined]
    dev/structured.py URL --speed        tokens a second with 0, 1 and 16 of 16 requests constrained

An answer that max_tokens has cut (finish_reason length) is counted apart.  With --combined the schemas are of
keywords that act on one value together (allOf, not, if, oneOf, patternProperties ...): some of them admit
nothing, or need more undeclared members than can be counted; these are refused, and counted.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import statistics
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "serve" / "grammar"))
import jsonschema  # noqa: E402
import schemas  # noqa: E402

CHOICES = 10  # answers of one request


def one(url, combined, seed):
    """Whole, cut and refused answers under one schema."""
    rng = random.Random(seed)
    schema, values = schemas.combined(rng) if combined else (schemas.schema(rng), [])
    valid = schemas.judge(jsonschema, schema)
    body = {"prompt": "Zorin of Tarn: ", "max_tokens": 400, "n": CHOICES, "seed": seed, "temperature": 1.2,
            "structured_outputs": {"json": schema}}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            choices = json.load(answer)["choices"]
    except urllib.error.HTTPError as e:
        message = json.load(e)["error"]["message"]
        none = "no text" in message and not any(map(valid, values))
        assert combined and e.code == 400 and (none or "minProperties" in message), (schema, message)
        return 0, 0, CHOICES
    whole = 0
    for choice in choices:
        if choice["finish_reason"] == "length":
            continue
        whole += 1
        assert valid(json.loads(choice["text"])), (schema, choice["text"])
    return whole, len(choices) - whole, 0


LONG = {"type": "array", "minItems": 400, "items": {"type": "object", "properties": {
    "name": {"type": "string"}, "count": {"type": "integer"}}, "required": ["name", "count"],
    "additionalProperties": False}}


def generate(url, i, constrained):
    """Tokens of one request of a fixed length."""
    body = {"prompt": f"Tell me of Tarn, part {i}: ", "max_tokens": 256, "ignore_eos": True, "seed": i}
    if constrained:
        body["structured_outputs"] = {"json": LONG}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def speed(url):
    """Rounds in turns, so that other load of the machine falls on all alike."""
    rates = {0: [], 1: [], 16: []}
    generate(url, 0, True)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in range(7):
            for constrained, seen in rates.items():
                begin = time.monotonic()
                tokens = sum(pool.map(lambda i, c=constrained: generate(url, i, i < c), range(16)))
                seen.append(tokens / (time.monotonic() - begin))
    base = statistics.median(rates[0])
    for constrained, seen in rates.items():
        ratios = [a / b for a, b in zip(seen, rates[0])]
        print(f"{constrained:2} of 16 constrained: {statistics.median(seen):.0f} tokens/s (median of {len(seen)}, "
              f"{min(seen):.0f} to {max(seen):.0f}), {statistics.median(seen) / base:.3f} of unconstrained, "
              f"median of ratios {statistics.median(ratios):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--combined", action="store_true")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    if options.speed:
        return speed(options.url.rstrip("/"))
    begin, ends = time.monotonic(), [0, 0, 0]
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        seeds = range(options.seed, options.seed + options.count // CHOICES)
        for some in pool.map(lambda seed: one(options.url.rstrip("/"), options.combined, seed), seeds):
            ends = [a + b for a, b in zip(ends, some)]
    print(f"{ends[0]} answers parse and validate, {ends[1]} were cut by max_tokens, {ends[2]} of schemas that were "
          f"refused; {len(seeds)} schemas, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
