#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--moments in=host on a recorded device: files have the bytes of a run without, and either goes on from the other's.

    test_host_moments.py FAKE_HZPSERVE MODEL EXAMPLES
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAM, MODEL, EXAMPLES = sys.argv[1:]
HOST = "in host memory: two of"


def train(out, data, moments, *options):
    command = [PROGRAM, "train", MODEL, "--device", "cuda", "--data", str(data), "--out", str(out), "--update-tokens", "128",
               "--micro-rows", "64", "--context", "64", "--moments", moments, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"FAIL: {' '.join(command)}: {done.stderr}")
    if (HOST in done.stderr) != ("in=host" in moments):
        sys.exit(f"FAIL: the plan with --moments {moments}: {done.stderr}")


def same(a, b):
    """Weights, and the newest checkpoint's state."""
    files = [sorted(p.relative_to(out) for p in out.rglob("*.safetensors")) for out in (a, b)]
    if files[0] != files[1] or not any(p.name == "trainer.safetensors" for p in files[0]):
        sys.exit(f"FAIL: {files}")
    for path in files[0]:
        if (a / path).read_bytes() != (b / path).read_bytes():
            sys.exit(f"FAIL: {a / path} and {b / path} differ")


with tempfile.TemporaryDirectory() as folder:
    there = pathlib.Path(folder)
    data = there / "data.jsonl"
    with open(EXAMPLES, encoding="utf-8") as file:
        data.write_text("".join(file.readlines()[:8]), encoding="utf-8")
    for moments, options in (("f32", []), ("q8", ["--optimizer", "nadam"])):
        device, host = there / f"{moments}-device", there / f"{moments}-host"
        train(device, data, moments, *options)
        train(host, data, moments + ",in=host", *options)
        same(device, host)
        for out, then in ((device, ",in=host"), (host, "")):
            went_on = pathlib.Path(f"{out}-went-on")
            shutil.copytree(out, went_on)
            train(went_on, data, moments + then, "--resume", "--epochs", "2", *options)
        same(pathlib.Path(f"{device}-went-on"), pathlib.Path(f"{host}-went-on"))
print("ok")
