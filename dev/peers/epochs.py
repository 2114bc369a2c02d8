#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds of jobs of rollouts of two epochs, of several servers, in turns.

    epochs.py [--rounds N] [--prompts FILE.jsonl] [--tokens N] NAME=COMMAND ...

COMMAND is a server's command line with {port} in it. A round starts each server anew, in turns, with a job (POST
/v1/rollouts) of which every prompt is answered in both epochs. Prompts: beginnings of FILE's `text`s. Prints, of each
server, seconds of the first and of the second epoch, medians of the ratios to the first server, and guesses.
"""
import argparse
import json
import shlex
import statistics
import time
import urllib.request

from drafts import counted
from serving import Server, free_port


def call(port, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body and json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def job(command, prompts, tokens, seed):
    port = free_port()
    server = Server("server", shlex.split(command.replace("{port}", str(port))), port)
    server.wait()
    begin, half, batch = time.monotonic(), 0, 4
    updates = 2 * len(prompts) // batch
    told = call(port, "/v1/rollouts", {"prompts": prompts, "n": 4, "batch": batch, "updates": updates, "seed": seed,
                                       "max_tokens": tokens, "reward": {"type": "regex", "pattern": "said|happy"}})
    while told["status"] in ("queued", "running"):
        time.sleep(0.02)
        told = call(port, f"/v1/rollouts/{told['id']}")
        half = half or (told["updates"]["learned"] >= updates // 2 and time.monotonic())
    end = time.monotonic()
    assert told["status"] == "succeeded", told
    guesses = counted(port)
    server.stop()
    return half - begin, end - half, guesses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    with open(given.prompts) as file:
        prompts = [json.loads(line)["text"][:60] for line in file][:16]
    servers = [each.split("=", 1) for each in given.server]
    took = {name: [] for name, _ in servers}
    for number in range(given.rounds):
        for name, command in servers if number % 2 else servers[::-1]:
            took[name].append(job(command, prompts, given.tokens, number + 1))
    for name, _ in servers:
        ratio = [statistics.median(b[e] / a[e] for a, b in zip(took[name], took[servers[0][0]])) for e in (0, 1)]
        print(name, *(f"epoch {e + 1}: {statistics.median(each[e] for each in took[name]):.2f} s, {ratio[e]:.3f} times "
                      "as fast;" for e in (0, 1)), "guessed and right:", [each[2] for each in took[name]])


if __name__ == "__main__":
    main()
