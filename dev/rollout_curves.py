#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reward over updates and seconds of jobs of rollouts, beside requests, for each bound of staleness.

    dev/rollout_curves.py build/hzpserve models/world [--task cups] [--staleness 0,2,8] [--seeds 1,2,3] [--updates 40]
                          [--idle] [--body '{"algo": "dapo"}'] [ARGUMENTS of serve]

Each run is a server of its own with a fresh state. A client asks for 16 tokens, waits 20 ms and asks again, unless
--idle. It prints a line of JSON for each run, then a table: the mean reward of the answers to the first update, the
first update with a reward of 0.5 and of 0.9, the best of a window of five updates and the last update's reward, seconds, samples left out as stale, and the largest staleness.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

# Prompts of the bundled model's world. A pattern is checked against the whole answer.
TASKS = {
    "green": (["Bert's favourite colour is", "The cup of Ann is", "Hello's kite is", "Wilma owns a bell, and it is",
               "The blanket of Otto is"], {"type": "regex", "pattern": "^ green"}, 4),
    "cups": ([f"The {thing} of {name} is" for name in ("Ann", "Otto", "Bert", "Wilma")
              for thing in ("cup", "kite", "bell", "basket")], {"type": "regex", "pattern": "^ (red|blue)"}, 3),
}


def call(url, path, body=None, method=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=600) as got:
        return json.loads(got.read())


def ask(url, prompt, stop, counted):
    while not stop.is_set():
        call(url, "/v1/completions", {"prompt": prompt, "max_tokens": 16})
        counted.append(1)
        time.sleep(0.02)


def reached(curve, least):
    return next((i + 1 for i, reward in enumerate(curve) if reward >= least), 9999)


def run(args, more, staleness, seed):
    prompts, reward, tokens = TASKS[args.task]
    port = 20000 + os.getpid() % 20000
    url = f"http://127.0.0.1:{port}"
    body = {"prompts": prompts, "reward": reward, "max_tokens": tokens, "n": 8, "batch": 4, "updates": args.updates,
            "max_staleness": staleness, "seed": seed, **json.loads(args.body)}
    with tempfile.TemporaryDirectory() as state:
        command = [args.program, "serve", args.model, "--port", str(port), "--state", state, "--passes", "1",
                   "--update-tokens", "4096", "--replay-ratio", "0", "--effect", "0", *more]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            while True:
                try:
                    call(url, "/health")
                    break
                except OSError:
                    time.sleep(0.1)
                    if server.poll() is not None:
                        sys.exit(f"{' '.join(command)} has ended")
            stop, counted = threading.Event(), []
            client = threading.Thread(target=ask, args=(url, prompts[0], stop, counted))
            if not args.idle:
                client.start()
            job = call(url, "/v1/rollouts", body)
            while job["status"] in ("queued", "running"):
                time.sleep(0.2)
                job = call(url, "/v1/rollouts/" + job["id"])
            stop.set()
            if not args.idle:
                client.join()
            server.terminate()
    curve = [point["reward_mean"] for point in job["curve"]]
    window = [statistics.mean(curve[i:i + 5]) for i in range(max(len(curve) - 4, 1))] if curve else [0]
    return {"staleness": staleness, "seed": seed, "status": job["status"], "reason": job["reason"], "updates": len(curve),
            "first": curve[0] if curve else 0, "best": max(window), "last": curve[-1] if curve else 0,
            "half": reached(curve, 0.5), "most": reached(curve, 0.9),
            "seconds": job["curve"][-1]["seconds"] if curve else 0, "answered": len(counted),
            "stale": job["samples"]["stale"], "seen": max((p["staleness"] for p in job["curve"]), default=0),
            "curve": [round(r, 3) for r in curve]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--task", default="cups", choices=TASKS)
    parser.add_argument("--staleness", default="0,2,8")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--body", default="{}")
    args, more = parser.parse_known_args()
    rows = []
    for staleness in map(int, args.staleness.split(",")):
        for seed in map(int, args.seeds.split(",")):
            rows.append(run(args, more, staleness, seed))
            print(json.dumps(rows[-1]), flush=True)
    print("\n| max_staleness | seeds | first | 0.5 in update | 0.9 in update | best of five | last, least to most | seconds | "
          "updates | stale | largest staleness |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for staleness in sorted({row["staleness"] for row in rows}):
        of = [row for row in rows if row["staleness"] == staleness]
        mid = {name: statistics.median(row[name] for row in of) for name in ("first", "half", "most", "best", "seconds", "updates")}
        print(f"| {staleness} | {len(of)} | {mid['first']:.2f} | {mid['half']:.0f} | {mid['most']:.0f} | "
              f"{mid['best']:.2f} | {min(r['last'] for r in of):.2f} to {max(r['last'] for r in of):.2f} | "
              f"{mid['seconds']:.0f} | {mid['updates']:.0f} | {sum(row['stale'] for row in of)} | "
              f"{max(row['seen'] for row in of)} |")


if __name__ == "__main__":
    main()
