#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data: small synthetic traces and a text, for tests where recorded ones are absent.

    dev/make_test_data.py

Lengths are lognormal, arrivals a Poisson process whose rate alternately doubles and halves; every run
writes the same files.  The form is that of Azure's traces (with times) and of NanoFlow's (without).
The text is documents of tests/demo/heldout.jsonl, separated by <|endoftext|>.
"""
import json
import math
import pathlib
import random

REQUESTS = 800
DOCUMENTS = 24
TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
PLACE = TESTS / "data" / "traces"


def length(draw, median, sigma, most):
    return min(max(round(median * math.exp(draw.gauss(0, sigma))), 1), most)


def bursts(draw):
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    at = 0.0
    for i in range(REQUESTS):
        at += draw.expovariate(10.0 if i // 100 % 2 else 2.5)
        minutes, seconds = divmod(at, 60)
        yield f"2026-01-01 09:{int(minutes):02}:{seconds:010.7f},{length(draw, 450, 1.1, 6000)}," \
              f"{length(draw, 90, 0.9, 1000)}"


def chat(draw):
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for _ in range(REQUESTS):
        yield f"XXX,{length(draw, 55, 1.4, 4000)},{length(draw, 130, 1.1, 1024)}"


def main():
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, make in (("synthetic_bursts.csv", bursts), ("synthetic_chat.csv", chat)):
        (PLACE / name).write_text("\n".join(make(random.Random(name))) + "\n")
    lines = (TESTS / "demo" / "heldout.jsonl").read_text().splitlines()[:DOCUMENTS]
    (TESTS / "data" / "world.txt").write_text(
        "\n<|endoftext|>\n".join(json.loads(line)["text"] for line in lines) + "\n")


if __name__ == "__main__":
    main()
