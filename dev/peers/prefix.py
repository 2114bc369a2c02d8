#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a prefix cache saves: hzpserve, hzpserve without one, and llama.cpp's server with its cache.

    prefix.py --hzpserve BIN --model DIR --llama-server BIN --gguf FILE [--trace MOONCAKE.jsonl] ...

All servers run all the time (an idle one uses no CPU) and get the same loads from the same client,
`hzpserve bench replay`, in turns: prompts of --input random tokens of which the first --shares
per cent are the same in all of them, other ones in each round; and, once, conversations of a trace
in Mooncake's format: the first --conversations ones that have at least --turns requests among its
first --limit, with all lengths divided by --shrink. llama.cpp's server has its default settings of
the cache: each slot keeps its last prompt, and host memory those before. Prints requests a second
of each round, medians and ratios. make_shapes.py and to_gguf.py make the models.
"""
import argparse
import collections
import json
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile

from serving import Server, free_port


def load(given, server, arguments):
    done = subprocess.run(
        [given.hzpserve, "bench", "replay", "--json", "--url", f"http://127.0.0.1:{server.port}",
         "--max-concurrency", str(given.concurrency), "--log-level", "error", *map(str, arguments)],
        capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{server.name}: {done.stderr}")
    result = json.loads(done.stdout)
    assert result["completed"] == result["num_prompts"] and not result["failed"], result
    return result


def conversations(given, file):
    """Writes the trace's conversations; their requests have the second block of the prompt in common."""
    with open(given.trace, encoding="utf-8") as trace:
        requests = [json.loads(line) for _, line in zip(range(given.limit), trace)]
    requests = [r for r in requests if len(r["hash_ids"]) > 1]
    of = collections.Counter(r["hash_ids"][1] for r in requests)
    wanted = [name for name in of if of[name] >= given.turns][:given.conversations]
    kept = [r for r in requests if r["hash_ids"][1] in wanted]
    seen, shared = set(), 0
    for r in kept:
        fresh = next((i for i, name in enumerate(r["hash_ids"]) if name not in seen), len(r["hash_ids"]))
        shared += min(512 * fresh, r["input_length"])
        seen.update(r["hash_ids"])
        file.write(json.dumps(r) + "\n")
    file.flush()
    total = sum(r["input_length"] for r in kept)
    print(f"trace: {len(kept)} requests, {100 * shared / total:.0f} % of {total // given.shrink} prompt "
          f"tokens shared, {sum(r['output_length'] for r in kept) // given.shrink} of answers", flush=True)


def loads(given, trace, seed):
    """{name: arguments}."""
    found = {}
    for percent in map(int, given.shares.split(",")):
        found[f"{percent} % shared"] = [
            "--requests", given.requests, "--input-len", given.input, "--output-len", given.output,
            "--prefix-len", given.input * percent // 100, "--seed", seed]
    if given.trace and seed == 1:
        found["trace"] = ["--trace", trace.name, "--shrink", given.shrink, "--scale", 1000000,
                          "--seed", seed]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hzpserve", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--trace")
    parser.add_argument("--limit", type=int, default=1600)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--shares", default="50,90")
    parser.add_argument("--shrink", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=16)
    parser.add_argument("--context", type=int, default=2048, help="of each sequence")
    parser.add_argument("--kv-tokens", type=int, default=65536, help="of hzpserve's cache")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--llama-args", default="-fa on", help="more of its options")
    given = parser.parse_args()
    ports = [free_port() for _ in range(3)]
    hzpserve = [given.hzpserve, "serve", given.model, "--no-train", "--state", "none", "--threads",
                str(given.threads), "--max-running", str(given.concurrency), "--context",
                str(given.context), "--kv-tokens", str(given.kv_tokens), "--log-level", "error"]
    servers = [
        Server("hzpserve", [*hzpserve, "--port", str(ports[0])], ports[0]),
        Server("no cache", [*hzpserve, "--no-prefix-cache", "--port", str(ports[1])], ports[1]),
        Server("llama.cpp", [given.llama_server, "-m", given.gguf, "--port", str(ports[2]), "-t",
                             str(given.threads), "-tb", str(given.threads), "-np",
                             str(given.concurrency), "-c", str(given.concurrency * given.context),
                             "--no-webui", *shlex.split(given.llama_args)], ports[2])]
    values, trace = {}, tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    if given.trace:
        conversations(given, trace)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for server in servers:
            server.wait()
            load(given, server, ["--requests", 2, "--input-len", 64, "--output-len", 4, "--seed", 999])
        for turn in range(given.rounds):
            for name, arguments in loads(given, trace, turn + 1).items():
                for server in servers if turn % 2 == 0 else servers[::-1]:
                    rate = load(given, server, arguments)["request_throughput"]
                    values.setdefault(name, {}).setdefault(server.name, []).append(rate)
                    print(f"{name:12} {server.name:10} {rate:8.3f} requests/s", flush=True)
    finally:
        for server in servers:
            server.stop()
        report(values)


def report(values):
    """Prints medians and ratios of the rounds so far."""
    print(f"\n{'median, requests/s':20} {'hzpserve':>9} {'no cache':>9} {'llama.cpp':>9} "
          f"{'over none':>10} {'over llama.cpp':>15}")
    for name, by in values.items():
        if len(by) < 3:
            continue
        m = {who: statistics.median(v) for who, v in by.items()}
        print(f"{name:20} {m['hzpserve']:9.3f} {m['no cache']:9.3f} {m['llama.cpp']:9.3f} "
              f"{m['hzpserve'] / m['no cache']:10.2f} {m['hzpserve'] / m['llama.cpp']:15.2f}",
              flush=True)


if __name__ == "__main__":
    main()
