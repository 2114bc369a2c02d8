#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the effect of admission and of the budget on a real server.

    admission_load.py HZPSERVE MODEL pool       throughput with a small KV pool, by --admission
    admission_load.py HZPSERVE MODEL few        one request that streams while prompts arrive,
                                                by --prefill-rows
    admission_load.py HZPSERVE MODEL one        one request alone

Answers end by stop tokens: 64 of them are biased so that an answer of random weights is some tens
of tokens long (max_tokens is 512), and the same for the same seed."""
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time

VOCAB = 40000


class Server:
    def __init__(self, binary, model, *options):
        self.p = subprocess.Popen([binary, "serve", model, "--port", "0", "--no-train", "--state",
                                   "none", *options], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        self.said = []
        for line in self.p.stdout:
            self.said.append(line)
            found = re.search(r"http://[\d.]+:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        threading.Thread(target=lambda: self.said.extend(self.p.stdout), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.terminate()
        self.p.wait()

    def post(self, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        return c.getresponse()

    def cpu_seconds(self):
        with open(f"/proc/{self.p.pid}/stat", encoding="ascii") as f:
            return sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:13]) / 100

    def metric(self, name):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("GET", "/metrics")
        for line in c.getresponse().read().decode().splitlines():
            if line.startswith(name + "{"):
                return float(line.split()[-1])
        raise SystemExit(f"no metric {name}")


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(10, VOCAB) for _ in range(n)]


def one_of_many(server, seed, lengths):
    body = {"prompt": prompt(seed, 128), "max_tokens": 512, "seed": seed,
            "stop_token_ids": list(range(100, 164)),
            "logit_bias": {str(t): 2.0 for t in range(100, 164)}}
    answer = json.loads(server.post(body).read())
    lengths.append(answer["usage"]["completion_tokens"])


def pool(binary, model):
    print(f"{'admission':12} {'KV tokens':>9} {'tokens/s':>9} {'mean length':>11} {'pushed':>7} "
          f"{'again':>6} {'seconds':>8} {'CPU s':>7} {'steps':>6}")
    for kv in ("4096", "8192"):
        for rule in ("worst-case", "predicted"):
            with Server(binary, model, "--admission", rule, "--kv-tokens", kv, "--max-running",
                        "64") as s:
                lengths = []
                threads = [threading.Thread(target=one_of_many, args=(s, i, lengths))
                           for i in range(64)]
                begin, cpu = time.monotonic(), s.cpu_seconds()
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                took = time.monotonic() - begin
                print(f"{rule:12} {kv:>9} {sum(lengths) / took:9.1f} {statistics.mean(lengths):11.1f} "
                      f"{s.metric('vllm:num_preemptions_total'):7.0f} "
                      f"{s.metric('hzpserve_recomputed_tokens_total'):6.0f} {took:8.1f} "
                      f"{s.cpu_seconds() - cpu:7.1f} {s.metric('hzpserve_serve_steps_total'):6.0f}",
                      flush=True)


def stream(server, body, at):
    answer = server.post({**body, "stream": True, "ignore_eos": True, "temperature": 0})
    begin = time.monotonic()
    for line in answer:
        if line.startswith(b"data: {"):
            at.append(time.monotonic())
    return begin


def few(binary, model, rounds=3):
    print(f"{'prompt rows':14} {'ITL alone ms':>12} {'ITL max ms':>10} {'mean ITL ms':>11} "
          f"{'TTFT ms':>8}   medians of {rounds}, 1024-token prompt beside one that streams")
    for rows in ("128", "256", "0"):
        with Server(binary, model, "--prefill-rows", rows) as s:
            seen = []
            for k in range(rounds + 1):
                at, first = [], []
                t = threading.Thread(target=stream, args=(
                    s, {"prompt": prompt(k, 64), "max_tokens": 200}, at))
                t.start()
                while len(at) < 40:
                    time.sleep(0.01)
                begin = time.monotonic()
                stream(s, {"prompt": prompt(1000 + k, 1024), "max_tokens": 1}, first)
                t.join()
                end = first[0]
                gaps = [(b - a) * 1e3 for a, b in zip(at, at[1:])]
                beside = [(b - a) * 1e3 for a, b in zip(at, at[1:]) if begin < b and a < end]
                seen.append((statistics.median(gaps[5:35]), max(beside), statistics.mean(beside),
                             (end - begin) * 1e3))
            m = [statistics.median(x) for x in zip(*seen[1:])]
            name = "by budget" if rows == "0" else f"fixed {rows}"
            print(f"{name:14} {m[0]:12.1f} {m[1]:10.1f} {m[2]:11.1f} {m[3]:8.1f}", flush=True)


def one(binary, model, rounds=5):
    print(f"{'prompt rows':14} {'TTFT ms':>8} {'ITL ms':>7}   medians of {rounds}, one request alone, "
          "512 in, 64 out")
    for rows in ("128", "0", "128", "0"):
        with Server(binary, model, "--prefill-rows", rows) as s:
            seen = []
            for k in range(rounds + 1):
                at = []
                begin = time.monotonic()
                stream(s, {"prompt": prompt(k, 512), "max_tokens": 64}, at)
                seen.append(((at[0] - begin) * 1e3, (at[-1] - at[0]) * 1e3 / (len(at) - 1)))
            m = [statistics.median(x) for x in zip(*seen[1:])]
            name = "by budget" if rows == "0" else f"fixed {rows}"
            print(f"{name:14} {m[0]:8.1f} {m[1]:7.2f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in ("pool", "few", "one"):
        sys.exit(__doc__)
    {"pool": pool, "few": few, "one": one}[sys.argv[3]](sys.argv[1], sys.argv[2])
