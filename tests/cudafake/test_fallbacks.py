#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a server on the recorder says of the slower ways that its device took.

    test_fallbacks.py FAKE_HZPSERVE MODEL

Its cuDNN is missing, and its pages are too small for the tensor copy engine: the metrics count both, and no other
kind.
"""
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
spec = importlib.util.spec_from_file_location("run_life", os.path.join(ROOT, "dev", "gpu", "run_life.py"))
run_life = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_life)

KINDS = {"product", "attention", "cudnn", "staging", "share", "graph"}


def counts(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=run_life.HANG) as answer:
        page = answer.read().decode()
    return {kind: int(value) for kind, value in
            re.findall(r'^hzpserve_device_fallbacks_total\{.*kind="(\w+)"\} (\d+)$', page, re.M)}


def serve(cudnn, *options):
    """The counts before and after one answer."""
    os.environ["HZP_CUDNN"] = cudnn
    with tempfile.TemporaryDirectory() as folder, open(folder + "/log", "w", encoding="utf-8") as log:
        server = run_life.Server(sys.argv[1], sys.argv[2], folder + "/state", log, ["--no-train", *options])
        start = counts(server)
        ask = json.dumps({"prompt": "The lamps of", "max_tokens": 6, "temperature": 0}).encode()
        server.ask("/v1/completions", ask)
        end = counts(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=run_life.HANG) == 0
    assert set(start) == set(end) == KINDS, (start, end)
    return start, end


start, end = serve("0")
assert not any(end.values()), end
start, end = serve("/nowhere/libcudnn.so", "--page-rows", "8")
assert end["cudnn"] > start["cudnn"] and end["attention"] > 0, (start, end)
assert not any(end[kind] for kind in KINDS - {"cudnn", "attention"}), end
