#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second with and without guesses of next tokens, of several servers, in turns, in one run.

    drafts.py --kind edit|summary|chat --streams N [--rounds N] NAME=COMMAND ...

COMMAND is a server's command line with {port} in it; all of them run all the time (an idle one uses no processor time),
and get the same requests in turns, whose prompts are tokens. edit and summary are for models of dev/make_copier.py: a
text of Zipf-distributed words, whose first two tokens stand again at its end, is repeated at temperature 0, or at 1,
where it goes on at another place now and then. chat is random tokens at temperature 1. --again asks every prompt of a
round twice, with another seed, and counts the second time: for --draft history. Prints tokens/s of each round, medians,
and the medians of the ratios to the first server of each round.
"""
import argparse
import concurrent.futures
import json
import os
import random
import re
import shlex
import statistics
import time
import urllib.request

from serving import Server, free_port


def prompt_of(dice, kind, length, vocabulary):
    if kind == "chat":
        return [dice.randint(vocabulary // 40, vocabulary - 1) for _ in range(20)]
    words = [int(4000 * dice.paretovariate(1.1)) % 8000 + 1000 if dice.random() < 0.5 else dice.randint(9000, 40000)
             for _ in range(length)]
    return words + words[:2]


def complete(port, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def counted(port):
    """Tokens guessed and accepted so far, by a server that tells them as vLLM does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    found = [re.search(rf"^vllm:spec_decode_num_{name}_tokens_total(?:{{.*}})? (\S+)$", text, re.M)
             for name in ("draft", "accepted")]
    return [float(each[1]) for each in found] if all(found) else None


def timed(port, bodies):
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        tokens = sum(pool.map(lambda each: complete(port, each), bodies))
    return tokens / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", nargs="+")
    parser.add_argument("--kind", choices=("edit", "summary", "chat"), required=True)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--length", type=int, default=160, help="tokens of a text, and of an answer")
    parser.add_argument("--vocabulary", type=int, default=40000, help="tokens that a chat may have in its prompt")
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    servers = []
    for each in given.server:
        name, command = each.split("=", 1)
        port = free_port()
        servers.append(Server(name, shlex.split(command.replace("{port}", str(port))), port))
    for server in servers:
        server.wait()
    speed = {server.name: [] for server in servers}
    dice = random.Random(1)
    for number in range(given.rounds + 1):
        bodies = [{"prompt": prompt_of(dice, given.kind, given.length, given.vocabulary), "max_tokens": given.length, "ignore_eos": True,
                   "temperature": 0 if given.kind == "edit" else 1, "seed": 1000 * number + i}
                  for i in range(given.streams)]
        for server in servers:
            if given.again:
                timed(server.port, bodies)
            found = timed(server.port, [{**each, "seed": each["seed"] + 500 * given.again} for each in bodies])
            if number:  # the first round warms up
                speed[server.name].append(found)
        servers = servers[1:] + servers[:1] if len(servers) > 2 else servers[::-1]
    first = given.server[0].split("=")[0]
    print(f"{given.kind}, {given.streams} streams, load {os.getloadavg()[0]:.1f}")
    for server in sorted(servers, key=lambda each: each.name != first):
        mine = speed[server.name]
        ratio = statistics.median(a / b for a, b in zip(mine, speed[first]))
        print(f"  {server.name:12} {statistics.median(mine):8.1f} tokens/s, ratio {ratio:.3f}, "
              f"{' '.join(f'{each:.0f}' for each in mine)}, guessed and right: {counted(server.port)}")
        server.stop()


if __name__ == "__main__":
    main()
