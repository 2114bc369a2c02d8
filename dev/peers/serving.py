#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same requests against hzpserve and llama.cpp's server, in turns, in one run.

    serving.py --hzpserve BIN --model DIR --llama-server BIN --gguf FILE [--what 16,32,alone] ...

Both servers run all the time (an idle one uses no CPU) and get the same load from the same client,
`hzpserve bench replay`: random tokens, new ones in each round, so that no prefix cache has an
effect. 16 and 32 are requests at once; `alone` is one request after another: prompts of --input
tokens with one token of answer (prefill), short prompts with long answers (decode). Prints each
round, medians and ratios; --json keeps every figure. make_shapes.py and to_gguf.py make the models.
"""
import argparse
import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command, port):
        self.name, self.command, self.port = name, command, port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)

    def wait(self):
        for _ in range(1200):
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended: {shlex.join(self.command)}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as r:
                    if r.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit(f"{self.name} does not come up")

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def load(given, server, requests, concurrency, inputs, outputs, seed):
    cpu = server.cpu_seconds()
    done = subprocess.run(
        [given.hzpserve, "bench", "replay", "--json", "--url", f"http://127.0.0.1:{server.port}",
         "--requests", str(requests), "--max-concurrency", str(concurrency), "--input-len", str(inputs),
         "--output-len", str(outputs), "--seed", str(seed), "--log-level", "error"],
        capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{server.name}: {done.stderr}")
    result = json.loads(done.stdout)
    assert result["completed"] == requests and not result["failed"], result
    result["cpu_per_s"] = (server.cpu_seconds() - cpu) / result["duration"]
    return result


def figures(given, server, what, seed):
    """{name: value} of one round; larger is better."""
    if what == "alone":
        prefill = load(given, server, 3, 1, given.input, 1, seed)
        decode = load(given, server, 1, 1, 16, given.output, seed)
        prefill_rate = given.input / prefill["median_ttft_ms"] * 1e3
        return {f"prefill of {given.input}, tokens/s": prefill_rate,
                "decode alone, tokens/s": 1e3 / decode["median_tpot_ms"]}, [prefill, decode]
    n = int(what)
    r = load(given, server, n * given.batches, n, given.input, given.output, seed)
    return {f"{n} at once, total tokens/s": r["total_token_throughput"],
            f"{n} at once, output tokens/s": r["output_throughput"],
            f"{n} at once, 1 / mean TTFT": 1e3 / r["mean_ttft_ms"],
            f"{n} at once, 1 / mean TPOT": 1e3 / r["mean_tpot_ms"]}, [r]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hzpserve", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--hzpserve-args", default="", help="more of its options")
    parser.add_argument("--llama-args", default="-fa on", help="more of its options")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--what", default="16,32,alone")
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--batches", type=int, default=1, help="requests per client in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for every figure")
    given = parser.parse_args()
    kinds = given.what.split(",")
    most = max([1, *(int(k) for k in kinds if k != "alone")])
    room = given.input + given.output + 16
    ports = free_port(), free_port()
    servers = [
        Server("hzpserve", [given.hzpserve, "serve", given.model, "--port", str(ports[0]),
                            "--no-train", "--state", "none", "--threads", str(given.threads),
                            "--max-running", str(most), "--context", str(room), "--log-level",
                            "error", *shlex.split(given.hzpserve_args)], ports[0]),
        Server("llama.cpp", [given.llama_server, "-m", given.gguf, "--port", str(ports[1]),
                             "-t", str(given.threads), "-tb", str(given.threads), "-np", str(most),
                             "-c", str(most * room), "--no-cache-prompt", "--cache-ram", "0",
                             "--no-webui", *shlex.split(given.llama_args)], ports[1])]
    values, raw = {}, []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        run(given, servers, kinds, values, raw)
    finally:
        for server in servers:
            server.stop()
        report(given, servers, values, raw)


def run(given, servers, kinds, values, raw):
    for server in servers:
        server.wait()
        load(given, server, 1, 1, 64, 4, 999)
        load(given, server, 1, 1, given.input, 4, 999)
    for kind, what in enumerate(kinds):
        for turn in range(given.rounds):
            for server in servers if turn % 2 == 0 else servers[::-1]:
                found, results = figures(given, server, what, 1000 * (kind + 1) + turn)
                raw += [{"server": server.name, "what": what, "round": turn, **r} for r in results]
                for name, value in found.items():
                    values.setdefault(name, {}).setdefault(server.name, []).append(value)
                    print(f"{server.name:10} {name:32} {value:10.2f}", flush=True)


def report(given, servers, values, raw):
    """Prints the results so far, also of a run that was ended early."""
    values = {name: both for name, both in values.items() if len(both) == 2}
    medians = {name: {who: statistics.median(v) for who, v in both.items()}
               for name, both in values.items()}
    print(f"\n{f'median of {given.rounds}':34} {'hzpserve':>10} {'llama.cpp':>10} {'ratio':>7}")
    for name, m in medians.items():
        print(f"{name:34} {m['hzpserve']:10.2f} {m['llama.cpp']:10.2f} "
              f"{m['hzpserve'] / m['llama.cpp']:7.2f}", flush=True)
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"machine": platform.processor() or platform.machine(),
                       "commands": {s.name: s.command for s in servers}, "values": values,
                       "medians": medians, "runs": raw}, file, indent=1)


if __name__ == "__main__":
    main()
