#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long going back to an older version takes, what it does to inter-token latency, and what the gate costs.

    dev/publication.py HZPSERVE MODEL [--examples N] [--tokens N] [--rounds N] [--gate N] [--streams N] [--ranks N]

Starts servers of its own, of --ranks ranks (1).  A rollback is measured from the request to the publication of
the version (both by the wall clock, which the server reports in milliseconds) and to the end of the job, which
for a version in a slot includes writing it to disk; streams run meanwhile, and beside them for as long before
it.  Training's speed is learned tokens by the time from the request to the version that has learned them, of
one server with the gate and one without, which take turns; --gate 0 leaves that out.
"""
import argparse
import json
import re
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request


class Server:
    def __init__(self, program, model, *options):
        self.state = tempfile.TemporaryDirectory(prefix="hzpserve-publication-")
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--state", self.state.name, *options],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            found = re.search(r"at (http://127\.0\.0\.1:\d+)", line)
            if found:
                self.url = found[1]
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise SystemExit("the server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.state.cleanup()

    def call(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=3600) as answer:
            return json.loads(answer.read())

    def learn(self, count, tokens, seed):
        """Teaches and waits; returns the seconds."""
        body = [{"tokens": [(seed + 17 * i + 31 * k) % 1000 + 1 for k in range(tokens)]} for i in range(count)]
        begin = time.monotonic()
        assert self.call("/v1/fine_tuning/examples?wait=served&timeout=3600", body)["served"]
        return time.monotonic() - begin

    def stream(self, tokens, times):
        """Appends the time at which each token comes."""
        body = {"prompt": [1, 2, 3, 4], "max_tokens": tokens, "temperature": 1, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())


def gaps(streams, begin, end):
    """Gaps between a stream's tokens that overlap [begin, end], in milliseconds."""
    return sorted(1e3 * (b - a) for times in streams for a, b in zip(times, times[1:]) if b > begin and a < end)


def show(name, ms):
    if ms:
        print(f"  ITL {name}: median {statistics.median(ms):.0f}, p99 {ms[min(len(ms) - 1, int(len(ms) * 0.99))]:.0f}, "
              f"longest {ms[-1]:.0f} ms, {len(ms)} gaps")


def go_back(server, version, optimizer, streams_wanted):
    streams = [[] for _ in range(streams_wanted)]
    threads = [threading.Thread(target=server.stream, args=(150, times)) for times in streams]
    for thread in threads:
        thread.start()
    while any(len(times) < 20 for times in streams):
        time.sleep(0.01)
    began, unix = time.monotonic(), time.time()
    job = server.call(f"/v1/weights/{version}/activate?timeout=3600", {"optimizer": optimizer})
    ended = time.monotonic()
    made = server.call(f"/v1/weights/{job['weights_version']}")
    for thread in threads:
        thread.join()
    serves = made["published_unix_ms"] / 1e3 - unix
    first = min(times[0] for times in streams)
    print(f"  {optimizer}: serves after {serves * 1e3:.0f} ms, job done after {(ended - began) * 1e3:.0f} ms")
    show("before", gaps(streams, max(first, began - (ended - began)), began))
    show("during", gaps(streams, began, ended))
    return job["weights_version"]


def rollback(a):
    with Server(a.hzpserve, a.model, *a.more, "--passes", "1", "--keep", "last=9", "--slots", "3", "--context",
                "256") as server:
        server.learn(1, 64, 1)
        kept = server.call("/v1/weights/current/name?timeout=3600", {"name": "kept"})["version"]
        server.learn(1, 64, 2)
        for turn in range(a.rounds):
            print(f"rollback {turn + 1}, {a.streams} streams, from disk with the optimizer's state")
            newest = go_back(server, kept, "restore", a.streams)
            before = server.learn(1, 64, 3 + turn) and server.call("/v1/weights/current")["id"]
            print(f"rollback {turn + 1}, {a.streams} streams, version {newest} before {before}, optimizer reset")
            go_back(server, newest, "reset", a.streams)


def gate(a):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as held:
        for i in range(a.gate):
            print(json.dumps({"tokens": [(11 * i + 13 * k) % 1000 + 1 for k in range(a.tokens)]}), file=held)
        held.flush()
        common = (a.hzpserve, a.model, *a.more, "--passes", "1", "--update-tokens", str(a.tokens * 4), "--lr", "1e-6",
                  "--context", "256")
        with Server(*common) as plain, Server(*common, "--gate", held.name, "--gate-max-rise", "100") as gated:
            for server in (plain, gated):
                server.learn(4, a.tokens, 5)  # the serving version is evaluated once
            speed = {"without": [], "with": []}
            for turn in range(a.rounds):
                for name, server in (("without", plain), ("with", gated)):
                    speed[name].append(a.examples * a.tokens / server.learn(a.examples, a.tokens, 100 + turn))
            for name, values in speed.items():
                print(f"gate: {name}: {', '.join(f'{v:.1f}' for v in values)} tokens/s learned, updates of "
                      f"{4 * a.tokens} tokens, {a.gate * a.tokens} tokens held out")
            print(f"gate: ratio {statistics.median(speed['with']) / statistics.median(speed['without']):.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hzpserve")
    parser.add_argument("model")
    for name, value in (("examples", 8), ("tokens", 128), ("rounds", 2), ("gate", 4), ("streams", 2), ("ranks", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    a.more = ("--ranks", str(a.ranks), "--rank-slowness", "0") if a.ranks > 1 else ()
    rollback(a)
    if a.gate:
        gate(a)


main()
