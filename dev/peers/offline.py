#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Throughput of hzpserve with all requests there from the begin, held against the machine's limits.

    offline.py --hzpserve BIN --model DIR [--concurrency 32] [--loads 1024x32,64x256] ...

For each load (prompt tokens x answer tokens), of the same run's measured limits:
  GEMM        all tokens/s over GEMM peak / (2 x parameters)
  roofline    output tokens/s over what the steps would make that did nothing but read: weights once
              a step, and the keys and values of every running sequence; and, because many rows at
              once are bound by arithmetic instead, the same where a step takes the longer of
              reading and multiplying
Limits are measured by `hzpserve bench` before and after; the better one counts.
"""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys

from serving import Server, free_port, load


def limits(given):
    done = subprocess.run([given.hzpserve, "bench", "serve", given.model, "--quick", "--json",
                           "--threads", str(given.threads)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    figures = {f["name"]: f["value"] for f in json.loads(done.stdout)["figures"] if "name" in f}
    return figures["limit: read bandwidth"] * 1e9, figures["limit: library GEMM, bf16"] * 1e9


def model_facts(directory):
    """Multiply-adds of one row in matrix products with and without the head; bytes of one token's
    keys and values; the same layers' attention work is left out, which favours the limit."""
    c = json.loads((pathlib.Path(directory) / "config.json").read_text())
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    kv = c["num_key_value_heads"]
    dim = c.get("head_dim") or hidden // heads
    layer = hidden * dim * (heads + 2 * kv) + heads * dim * hidden + 3 * hidden * c["intermediate_size"]
    body = layer * c["num_hidden_layers"]
    return body, body + hidden * c["vocab_size"], 2 * 2 * kv * dim * c["num_hidden_layers"]


def bound(given, facts, bandwidth, peak, inputs, outputs):
    """Output tokens/s of decoding alone, by reading and by the longer of the two."""
    _, with_head, kv_bytes = facts
    rows = given.concurrency
    reads = (2 * with_head + rows * (inputs + outputs / 2) * kv_bytes) / bandwidth
    multiplies = 2 * with_head * rows / peak
    return rows / reads, rows / max(reads, multiplies)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hzpserve", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests", type=int, default=0, help="0: as many as at once")
    parser.add_argument("--loads", default="1024x32,64x256")
    parser.add_argument("--hzpserve-args", default="")
    parser.add_argument("--json")
    given = parser.parse_args()
    facts = model_facts(given.model)
    bandwidth, peak = limits(given)
    port, found = free_port(), []
    loads = [tuple(int(n) for n in text.split("x")) for text in given.loads.split(",")]
    room = max(a + b for a, b in loads)
    server = Server("hzpserve", [given.hzpserve, "serve", given.model, "--port", str(port),
                                 "--no-train", "--state", "none", "--threads", str(given.threads),
                                 "--max-running", str(given.concurrency), "--context", str(room),
                                 *shlex.split(given.hzpserve_args)], port)
    try:
        server.wait()
        load(given, server, 1, 1, 64, 4, 999)
        for seed, (inputs, outputs) in enumerate(loads, 1):
            found.append((inputs, outputs,
                          load(given, server, given.requests or given.concurrency,
                               given.concurrency, inputs, outputs, seed)))
    finally:
        server.stop()
    again = limits(given)
    bandwidth, peak = max(bandwidth, again[0]), max(peak, again[1])
    print(f"read bandwidth {bandwidth * 1e-9:.1f} GB/s, bf16 GEMM {peak * 1e-9:.0f} GFLOP/s")
    kept = []
    for inputs, outputs, r in found:
        total, made = r["total_token_throughput"], r["output_throughput"]
        best = peak / (2 * facts[1])
        decoding = given.concurrency / r["mean_tpot_ms"] * 1e3
        reads, both = bound(given, facts, bandwidth, peak, inputs, outputs)
        print(f"{inputs} in, {outputs} out, {given.concurrency} at once: {total:.1f} tokens/s in all, "
              f"{100 * total / best:.1f} % of {best:.1f} (GEMM peak / 2 N)\n"
              f"  {made:.1f} output tokens/s; while all decode {decoding:.1f}: "
              f"{100 * decoding / reads:.1f} % of {reads:.1f} (weights and KV read), "
              f"{100 * decoding / both:.1f} % of {both:.1f} (reading or multiplying)")
        kept.append({"input": inputs, "output": outputs, "gemm_bound": best, "read_bound": reads,
                     "longer_bound": both, "decoding": decoding, **r})
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"bandwidth": bandwidth, "gemm_bf16": peak, "command": server.command,
                       "loads": kept}, file, indent=1)


if __name__ == "__main__":
    main()
