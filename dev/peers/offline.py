#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Throughput of hzpserve with all requests present from the start, relative to the machine's limits.

    offline.py --hzpserve BIN --model DIR [--loads 32x1024x32,4x64x256,...]

A load is sequences at once x prompt tokens x answer tokens. Each is one `hzpserve bench offline`,
compared with the limits of the same run (measured before and after; the better one counts):
  GEMM        all tokens/s over GEMM peak / (2 x parameters)
  roofline    tokens/s while all decode (sequences / median ITL) over that of steps that only
              read: the weights once, keys and values of every sequence at half of its answer;
              and over that of steps that take the longer of this time and the products' time
"""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys


def model_facts(directory):
    """Multiply-adds of one row in matrix products; bytes of one token's keys and values."""
    c = json.loads((pathlib.Path(directory) / "config.json").read_text())
    hidden, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    dim = c.get("head_dim") or hidden // heads
    layer = hidden * dim * (2 * heads + 2 * kv) + 3 * hidden * c["intermediate_size"]
    return (layer * c["num_hidden_layers"] + hidden * c["vocab_size"],
            2 * 2 * kv * dim * c["num_hidden_layers"])


def measure(given, rows, inputs, outputs):
    done = subprocess.run(
        [given.hzpserve, "bench", "offline", given.model, "--json", "--threads", str(given.threads),
         "--requests", str(rows * given.batches), "--max-running", str(rows), "--input-len",
         str(inputs), "--output-len", str(outputs), "--context", str(inputs + outputs),
         *shlex.split(given.hzpserve_args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["figures"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hzpserve", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batches", type=int, default=1, help="requests per sequence at once")
    parser.add_argument("--loads", default="32x1024x32,4x64x256,16x64x256,32x64x256")
    parser.add_argument("--hzpserve-args", default="")
    parser.add_argument("--json", help="file for every figure")
    given = parser.parse_args()
    macs, kv_bytes = model_facts(given.model)
    kept = {}
    for text in given.loads.split(","):
        rows, inputs, outputs = (int(n) for n in text.split("x"))
        figures = kept[text] = measure(given, rows, inputs, outputs)
        value = {f["name"]: f["value"] for f in figures if "name" in f}
        bandwidth = value["limit: read bandwidth"] * 1e9
        peak = max(value.get(f"limit: library GEMM, {t}", 0) for t in ("bf16", "f32")) * 1e9
        total, best = value["offline, prompts and answers"], peak / (2 * macs)
        decoding = rows / value["ITL median"] * 1e3
        reads = (2 * macs + rows * (inputs + outputs / 2) * kv_bytes) / bandwidth
        longer = max(reads, 2 * macs * rows / peak)
        print(f"{rows} at once, {inputs} in, {outputs} out   ({bandwidth * 1e-9:.1f} GB/s, "
              f"{peak * 1e-9:.0f} GFLOP/s)\n"
              f"  {total:9.1f} tokens/s in all       {100 * total / best:5.1f} % of {best:.0f}, "
              f"GEMM peak / 2 N\n"
              f"  {decoding:9.1f} tokens/s decoding     {100 * decoding * reads / rows:5.1f} % of "
              f"{rows / reads:.0f}, weights and KV read\n"
              f"{'':36}{100 * decoding * longer / rows:5.1f} % of {rows / longer:.0f}, the longer "
              f"of reading and multiplying", flush=True)
        for f in figures:
            if "profile" in f and f["seconds"] > 0.02 * sum(g.get("seconds", 0) for g in figures):
                print(f"    {f['op']:16} {f['seconds']:8.2f} s {f['gflops']:8.0f} GFLOP/s "
                      f"{f['gbytes']:8.1f} GB/s")
    if given.json:
        with open(given.json, "w") as file:
            json.dump(kept, file, indent=1)


if __name__ == "__main__":
    main()
