#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ways for two ranks to train over a throttled link: tensor-parallel (a server that nobody asks anything, each
rank computes a part of every product), and by blocks over gathered units (`train --shard z3=2`, each rank its own
documents).  The same model, documents and tokens of an update; the two take turns.  Tokens a second are those of all
updates but the first.

    train.py HZPSERVE MODEL_DIR DATA.jsonl [TURNS [MB/s,MB/s... [MICRO_ROWS,... [UPDATE_TOKENS]]]]
"""
import json
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

serve, model, data = sys.argv[1:4]
TURNS = int(sys.argv[4]) if len(sys.argv) > 4 else 3
RATES = (sys.argv[5] if len(sys.argv) > 5 else "10,100").split(",")
MICRO = (sys.argv[6] if len(sys.argv) > 6 else "128,512").split(",")
TOKENS = sys.argv[7] if len(sys.argv) > 7 else "1024"
UPDATES = 5
UPDATE = re.compile(r"^(\S+)Z .*train: update optimizer_step=(\d+) loss=(\S+) .* tokens=(\d+)", re.M)


def options(rate, micro):
    return ["--ranks", "2", "--link", "zmq", "--threads", "1", "--device", "cpu", "--update-tokens", TOKENS,
            "--micro-rows", micro, "--link-throttle", rate + "M,latency=0.05"]


def rate_of(updates):
    """(time, tokens) of each update's end: tokens a second from the first to the last."""
    return sum(tokens for _, tokens in updates[1:]) / (updates[-1][0] - updates[0][0])


def gathered(rate, micro):
    """Tokens a second, and the loss of the last update."""
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([serve, "train", model, "--data", data, "--out", out + "/out", "--shard", "z3=2", "--total-steps",
                        str(UPDATES), *options(rate, micro)], check=True, capture_output=True)
        lines = [json.loads(line) for line in open(out + "/out/train.jsonl", encoding="utf-8")]
    return rate_of([(line["time"], line["learned_tokens"]) for line in lines]), lines[-1]["loss"]


def seconds(text):
    hours, minutes, rest = text.split("T")[1].split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(rest)


def tensor(rate, micro):
    """Tokens a second, the loss of the last update, and the bytes that rank 0 has sent for each update."""
    with tempfile.NamedTemporaryFile("r+", suffix=".log") as log:
        process = subprocess.Popen(
            [serve, "serve", model, "--port", "0", "--tensor", "2", "--state", "none", "--passes", "1", "--replay-ratio",
             "0", "--train-share", "1", "--kv-tokens", "1024", "--max-running", "2", *options(rate, micro)],
            stdout=subprocess.PIPE, stderr=log, text=True)
        for line in process.stdout:
            found = re.search(r"at http://(\S+:\d+)", line)
            if found:
                break

        def sent():
            with urllib.request.urlopen(f"http://{found[1]}/metrics") as answer:
                return float(re.search(r"^hzpserve_link_bytes_total(?:{[^}]*})? (\S+)", answer.read().decode(), re.M)[1])

        def updates():
            return UPDATE.findall(pathlib.Path(log.name).read_text(encoding="utf-8"))

        body = pathlib.Path(data).read_bytes()
        urllib.request.urlopen(urllib.request.Request(f"http://{found[1]}/v1/fine_tuning/examples", body,
                                                      {"Content-Type": "application/x-ndjson"})).close()
        marks = []
        while len(updates()) < UPDATES:
            if len(updates()) > len(marks):
                marks.append((len(updates()), sent()))
            time.sleep(0.01)
        marks.append((len(updates()), sent()))
        said = updates()
        process.send_signal(signal.SIGTERM)
        process.wait()
    per = (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0])
    return rate_of([(seconds(u[0]), int(u[3])) for u in said[:UPDATES]]), float(said[UPDATES - 1][2]), per


if not shutil.which(serve):
    sys.exit(f"there is no {serve}")
print(f"updates of {TOKENS} tokens, {TURNS} turns: medians (each turn)")
for micro_rows in MICRO:
    for link in RATES:
        turns = [(tensor(link, micro_rows), gathered(link, micro_rows)) for _ in range(TURNS)]
        a, b = [t[0][0] for t in turns], [t[1][0] for t in turns]
        ratio = [x / y for x, y in zip(a, b)]
        print(f"micro-batches of {micro_rows} rows, {link} MB/s: tensor-parallel {statistics.median(a):.0f} tokens/s, "
              f"gathered {statistics.median(b):.0f}, ratio {statistics.median(ratio):.2f} "
              f"({', '.join(f'{r:.2f}' for r in ratio)}); tensor-parallel sends {turns[0][0][2] / 1e6:.1f} MB an update; "
              f"loss of the last update {turns[0][0][1]:.4f}, {turns[0][1][1]:.4f}", flush=True)
