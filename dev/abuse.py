#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long small requests take beside each abuse of a server, and what it holds meanwhile.

    dev/abuse.py HZPSERVE MODEL_DIR [--rounds N] [--requests N] [--only NAME ...] [-- OPTION ...]

Small requests (a prompt of one word, one token) are sent one behind the other, `requests` of them in each round, while
the abuse goes on; the figures are medians over the rounds of each round's percentiles.  tests/api/test_abuse.py
asserts a p99 beside each, tests/api/test_bounds.py the same without a clock.  `peak` is the largest resident memory
of the server so far in that round.
"""
import argparse
import contextlib
import gzip
import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

LONG = "a b c d e " * 1600000  # 16 MB


class Server:
    def __init__(self, binary, model, options):
        self.state = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen([binary, "serve", model, "--port", "0", "--state", self.state.name, *options],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            found = re.search(r"at http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.state.cleanup()

    def post(self, path, body, header=b""):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        s = socket.create_connection(("127.0.0.1", self.port))
        s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                  b"%sContent-Length: %d\r\n\r\n" % (path.encode(), header, len(data)) + data)
        return s

    def small(self):
        begin = time.perf_counter()
        with self.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}) as s:
            got = s.recv(65536)
            while s.recv(65536):
                pass
        assert got.startswith(b"HTTP/1.1 200"), got[:300]
        return (time.perf_counter() - begin) * 1e3

    def peak_mb(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def large(i):
    """Many states while the names are told apart."""
    patterns = {f"^{c}(e|f)*e(e|f){{10}}{i}$": {"type": "null"} for c in "uvwxyz"}
    return {"prompt": "a", "max_tokens": 2, "structured_outputs": {
        "json": {"type": "object", "patternProperties": patterns, "additionalProperties": False}}}


def ambiguous(i):
    """A text is in it in many ways, so each mask takes long."""
    rules = "\n".join(f'a{k} ::= [a-z] a{(k * 7 + 1) % 60}? [a-z] | [a-y ] a | "{i}"' for k in range(60))
    text = "root ::= a*\na ::= " + " | ".join(f"a{k}" for k in range(60)) + "\n" + rules
    return {"prompt": "a", "max_tokens": 400, "structured_outputs": {"grammar": text}}


def left(server):
    """Large grammars whose clients have left."""
    for s in [server.post("/v1/completions", large(i)) for i in range(30)]:
        s.close()
    return []


def many_ways(server):
    """The grammar is made first, so all of them run."""
    with server.post("/v1/completions", {**ambiguous(0), "max_tokens": 1}) as s:
        s.recv(65536)
    return [server.post("/v1/completions", ambiguous(0)) for _ in range(8)]


def kept(path, body, count):
    data = json.dumps(body).encode()
    return lambda server: [server.post(path, data) for _ in range(count)]


def bombs(server):
    """Bodies in gzip of which the text is hundreds of times as long, and too long."""
    data = gzip.compress(b'{"prompt": "' + b"a" * 60000000 + b'"}')
    return [server.post("/v1/completions", data, b"Content-Encoding: gzip\r\n") for _ in range(8)]


ABUSES = {
    "nothing": lambda server: [],
    "large grammars, clients left": left,
    "large grammars": lambda server: [server.post("/v1/completions", large(100 + i)) for i in range(30)],
    "ambiguous grammars": many_ways,
    "prompts beyond the context": kept("/v1/completions", {"prompt": LONG}, 8),
    "tokenize": kept("/tokenize", {"prompt": LONG, "return_token_strs": True}, 8),
    "gzip": bombs,
    "detokenize": kept("/detokenize", {"tokens": [5] * 3000000}, 8),
    "log-probabilities": kept("/v1/completions", {"prompt": "Once", "n": 30, "max_tokens": 300, "logprobs": 20}, 2),
    "weights that do not come": kept("/v1/completions", {"prompt": "Once", "n": 100, "max_tokens": 1,
                                                         "min_version": 99}, 3),
}


def one(arguments, name):
    server = Server(arguments.hzpserve, arguments.model, arguments.options)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        for _ in range(10):
            server.small()
        held = ABUSES[name](server)
        times = sorted(server.small() for _ in range(arguments.requests))
        for s in held:
            s.close()
        return times[len(times) // 2], times[min(len(times) * 99 // 100, len(times) - 1)], times[-1], server.peak_mb()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hzpserve")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=list(ABUSES), default=list(ABUSES))
    parser.add_argument("options", nargs="*", help="further options of serve")
    arguments = parser.parse_args()
    print(f"{'beside':30} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'peak MB':>8}")
    for name in arguments.only:
        figures = [one(arguments, name) for _ in range(arguments.rounds)]
        print(f"{name:30} " + " ".join(f"{statistics.median(f):8.1f}" for f in zip(*figures)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
