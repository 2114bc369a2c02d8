#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that learns has timed the products of its micro-batches when it is ready, and `train` times no others.

    test_tuned.py FAKE_HZPSERVE MODEL EXAMPLES

Read from the file that keeps algorithms (device/cuda/algos.h): each matrix of a layer, and the head, forward and
backward.
"""
import glob
import importlib.util
import os
import signal
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
spec = importlib.util.spec_from_file_location("run_life", os.path.join(ROOT, "dev", "gpu", "run_life.py"))
run_life = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_life)

ROWS = 256  # of a micro-batch; half of it, too, are timed
WIDTH, INNER, QKV, HEADS, VOCAB = 128, 384, 512, 256, 1024  # of models/world
MATRICES = {(QKV, WIDTH), (WIDTH, HEADS), (2 * INNER, WIDTH), (WIDTH, INNER), (VOCAB, WIDTH)}


def timed(folder):
    """{(m, n, k, first operand transposed, second)} of the entries that were timed."""
    (path,) = glob.glob(folder + "/hzpserve/cublaslt-*.algos")
    with open(path, "rb") as file:
        data = file.read()
    entry_bytes, count = struct.unpack_from("<II", data, 8)
    found = set()
    for i in range(count):
        at = len(data) - (count - i) * entry_bytes
        m, n, k = struct.unpack_from("<iii", data, at)
        trans_a, trans_b = data[at + 30], data[at + 31]
        if struct.unpack_from("<Q", data, at + 56)[0]:
            found.add((m, n, k, trans_a, trans_b))
    return found


def learnt(found):
    """The rows of the gradients of layers' weights among them: serving has none."""
    return {k for m, n, k, trans_a, trans_b in found if trans_a and m != VOCAB}


with tempfile.TemporaryDirectory() as folder, open(folder + "/log", "w", encoding="utf-8") as log:
    os.environ.update(XDG_CACHE_HOME=folder, HZP_CUDA_TUNE="")
    server = run_life.Server(sys.argv[1], sys.argv[2], folder + "/state", log,
                             ["--max-running", "2", "--step-rows", "8", "--micro-rows", str(ROWS)])
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=run_life.HANG) == 0
    found = timed(folder)
wanted = set()
for rows in (ROWS, ROWS // 2):
    for out, of in MATRICES:
        wanted |= {(rows, out, of, 0, 1), (rows, of, out, 0, 0), (out, of, rows, 1, 0)}
for learned in (64, 32, 16, 8):  # the head has as many rows as are learned
    wanted.add((VOCAB, WIDTH, learned, 1, 0))
assert wanted <= found, f"not timed: {sorted(wanted - found)} of {sorted(found)}"
assert learnt(found) == {ROWS, ROWS // 2}, learnt(found)

with tempfile.TemporaryDirectory() as folder:
    os.environ.update(XDG_CACHE_HOME=folder)
    with open(sys.argv[3], encoding="utf-8") as file, open(folder + "/some", "w", encoding="utf-8") as some:
        some.writelines(file.readlines()[:3])
    subprocess.run([sys.argv[1], "train", sys.argv[2], "--data", folder + "/some", "--out", folder + "/out", "--device",
                    "cuda", "--micro-rows", "128"], check=True, timeout=run_life.HANG)
    assert learnt(timed(folder)) == {128}, learnt(timed(folder))
print("ok")
