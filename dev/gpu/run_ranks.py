#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks two ranks on one device.

    run_ranks.py HZPSERVE MODEL EXAMPLES DEVICE

NCCL wants a GPU for each rank, unless the ranks say that they are on different machines (HZP_RANKS_ONE_GPU sets
NCCL_HOSTID): then it uses sockets, so this checks results and order and measures nothing.

First a few updates in the ordered mode on one rank, and the same on two: the losses must agree, and it is
reported whether all bytes of the checkpoint do.  Then a server of two ranks learns, and its trace must show the
transfers of both.  Prints one JSON object.  77: there is no NCCL.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request

import libraries

HANG = 600  # seconds
SIZES = ["--update-tokens", "256", "--micro-rows", "128"]
FILES = ("trainer.safetensors", "model.safetensors")


def show(said):
    """Shows the warnings and errors of a log."""
    sys.stderr.writelines(line + "\n" for line in said.splitlines() if re.match(r"\S+ (warn|error) ", line))


def train(program, model, examples, device, env, out, ranks):
    """The losses of its updates, and what it said."""
    command = [program, "train", model, "--data", examples, "--out", out, "--device", device, "--ordered",
               "--total-steps", "4", "--checkpoint-every", "4", "--rank-slowness", "0", "--log-level", "info", *SIZES]
    done = subprocess.run(command + (["--ranks", str(ranks)] if ranks > 1 else []), capture_output=True, text=True,
                          env=env, timeout=HANG, check=False)
    if done.returncode:
        sys.exit(f"{ranks} ranks: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    show(done.stderr)
    with open(out + "/train.jsonl", encoding="utf-8") as log:
        rows = [json.loads(line) for line in log]
    return [row["loss"] for row in rows if "loss" in row], done.stderr


def same_bytes(one, two):
    for name in FILES:
        with open(f"{one}/checkpoint-4/{name}", "rb") as a, open(f"{two}/checkpoint-4/{name}", "rb") as b:
            if a.read() != b.read():
                return False
    return True


def serve(program, model, examples, device, env, folder):
    """The trace of a server of two ranks that has learned."""
    with open(folder + "/log", "w", encoding="utf-8") as log:
        server = subprocess.Popen([program, "serve", model, "--ranks", "2", "--port", "0", "--state", folder + "/state",
                                   "--device", device, "--rank-slowness", "0", "--context", "512", *SIZES],
                                  stdout=subprocess.PIPE, stderr=log, text=True, env=env)
    url = None
    for line in server.stdout:
        url = re.search(r"serves \S+ at (http://\S+:\d+)", line)
        if url:
            break
    if not url:
        with open(folder + "/log", encoding="utf-8") as log:
            sys.exit("the server did not come up:\n" + log.read())
    threading.Thread(target=server.stdout.read, daemon=True).start()

    def ask(path, body=None):
        with urllib.request.urlopen(urllib.request.Request(url[1] + path, body), timeout=HANG) as reply:
            return json.load(reply)

    with open(examples, "rb") as file:
        ask(f"/v1/fine_tuning/examples?wait=served&timeout={HANG}", file.read())
    trace = ask("/debug/timeline?seconds=60")
    server.send_signal(signal.SIGTERM)
    status = server.wait(timeout=HANG)
    with open(folder + "/log", encoding="utf-8") as log:
        show(log.read())
    return trace, status


def tickets(trace):
    """Transfers of each rank in the trace."""
    tracks = {(e["pid"], e["tid"]) for e in trace
              if e["name"] == "thread_name" and e["args"]["name"] == "tickets"}
    return [sum((e["pid"], e.get("tid")) in tracks and e["pid"] == rank and e["ph"] in "Xb" for e in trace)
            for rank in (0, 1)]


def main(program, model, examples, device):
    env = dict(os.environ, HZP_RANKS_ONE_GPU="1", HZP_CUDA_TUNE="0", HZP_LOG="info")
    gpu = device.startswith("cuda")
    nccl = libraries.nccl()
    if gpu and not nccl:
        print("there is no NCCL on this machine")
        return 77
    if gpu:
        env["HZP_NCCL"] = nccl
    with tempfile.TemporaryDirectory() as top:
        one, _ = train(program, model, examples, device, env, top + "/one", 1)
        two, said = train(program, model, examples, device, env, top + "/two", 2)
        far = max(abs(a - b) / abs(a) for a, b in zip(one, two))
        same = same_bytes(top + "/one", top + "/two")
        trace, status = serve(program, model, examples, device, env, top)
    seen = tickets(trace)
    print(json.dumps({"link": "nccl" if "link=nccl rank=1" in said else "host", "updates": len(two),
                      "loss_difference": far, "same_bytes": same, "transfers_in_trace": seen, "status": status}))
    good = len(one) == len(two) > 0 and far < 1e-3 and min(seen) > 0 and status == 0
    return 0 if good and (not gpu or "link=nccl rank=1" in said) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
