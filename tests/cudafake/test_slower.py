#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `hzpserve devices` shows of the slower ways that the last run took.

    test_slower.py FAKE_HZPSERVE MODEL
"""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM, MODEL = sys.argv[1:]


def check(fine, what):
    if not fine:
        sys.exit(f"FAIL: {what}")


def run(*args):
    done = subprocess.run([PROGRAM, *args], env=ENV, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{args}: {done.stdout}{done.stderr}")
    return done.stdout


def complete(dtype):
    return run("complete", MODEL, "The capital", "--max-tokens", "4", "--device", "cuda", "--dtype", dtype)


def shown():
    """The slower ways in both forms."""
    text = run("devices")
    backend = next(b for b in json.loads(run("devices", "--json"))["backends"] if b["backend"] == "cuda")
    check(len(backend["devices"]) == 1, f"{backend}")
    return text, backend["devices"][0]["fallbacks"]


with tempfile.TemporaryDirectory() as folder:
    ENV = dict(os.environ, XDG_CACHE_HOME=folder)
    path = folder + "/hzpserve/fallbacks-cuda-" + "00" * 15 + "01"  # the recorder's UUID
    text, ways = shown()
    check(not ways and "slower" not in text, "no run, but slower ways: " + text)

    complete("f32")  # attention has no kernels for it
    text, ways = shown()
    check(any(w["kind"] == "attention" and w["shape"][2] == 64 and w["count"] > 0 and w["last"] > 1e9 and
              "without a kernel" in w["reason"] for w in ways), f"{ways}")
    check("slower ways taken in the last run" in text, text)
    for way in ways:
        line = "{} {}x{}x{}, {} time".format(way["kind"], *way["shape"], way["count"])
        check(line in text and way["reason"] in text, f"{line}: {text}")
    check(len(ways) <= 64 and os.path.getsize(path) < 65536, "the file is bounded")

    with open(path, encoding="utf-8") as file:
        good = file.read()
    for bad in ("", "another file\n" + good, good[:-30].replace("attention ", "attention x"), "\0" * 5000):
        with open(path, "w", encoding="utf-8") as file:
            file.write(bad)
        text, ways = shown()
        check(not ways and "slower" not in text, f"{bad[:60]}: {ways}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(good * 100 + "x" * 100000)
    check(len(shown()[1]) <= 64, "a long file")

    complete("bf16")  # takes none: the run before is forgotten
    check(not shown()[1] and not os.path.exists(path), "a run without slower ways leaves the older ones")
print("ok")
