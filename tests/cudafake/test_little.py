#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server on a recorded device with little memory, whose driver takes some for graphs and for code.

    test_little.py FAKE_HZPSERVE MODEL NVML_FOLDER

With exactly what the memory plan asks for, and nearly all that the plan leaves for code taken by code, it starts, evicts
graphs, serves, captures nothing that the driver refuses, and never uses more than there is.  With less it is refused,
with the driver's line of the plan.  What the context takes is told, and code that takes more than was left for it.
bench ops, which writes to the memory that it measures with, is refused.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request

PROGRAM, MODEL, NVML = sys.argv[1:]
LOADING = 1 << 30  # bytes that no plan gives out (device/cuda/cuda.c)
SPARE = 256 << 10  # of them, for nodes: some ops have more kernels than the one that their items are counted as
CONTEXT, GRAPH, NODE = 3 << 20, 1 << 20, 2000
OPTIONS = ["--device", "cuda", "--no-train", "--max-running", "64", "--kv-memory", "8M", "--context", "512",
           "--step-rows", "128", "--prefill-rows", "128", "--log-format", "json"]
HANG = 600  # seconds


def check(fine, what):
    if not fine:
        sys.exit(f"FAIL: {what}")


def environment(memory, loaded, **more):
    folders = [NVML, os.environ.get("LD_LIBRARY_PATH", "")]
    return dict(os.environ, HZP_FAKE_MEMORY=f"{memory} {CONTEXT} {GRAPH} {NODE} {loaded}",
                LD_LIBRARY_PATH=":".join(f for f in folders if f), **more)


def told(log, event):
    """The fields of the log's lines of this event."""
    rows = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [row for row in rows if row["event"] == event]


def ask(url, number, failures):
    """Adds what went wrong to failures: it runs in a thread, which cannot end the test."""
    try:
        complete(url, number)
    except Exception as error:  # of any kind: of the connection, the status or the reply
        failures.append(f"request {number}: {error!r}")


def complete(url, number):
    body = {"prompt": "The capital of country " + "x" * number, "max_tokens": 4 + number % 5, "temperature": 0}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG) as reply:
        answer = json.load(reply)
    if not answer["choices"]:
        raise ValueError(f"no answer: {answer}")


def serve(memory, loaded, **more):
    """A server's exit and log, after answers to a few loads of several requests at once."""
    with tempfile.TemporaryDirectory() as folder, open(folder + "/log", "w+", encoding="utf-8") as log:
        server = subprocess.Popen([PROGRAM, "serve", MODEL, "--port", "0", "--state", folder + "/state", *OPTIONS],
                                  env=environment(memory, loaded, **more), stdout=subprocess.PIPE, stderr=log, text=True)
        url = None
        for line in server.stdout:
            url = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if url:
                break
        failures = []
        if url:
            threading.Thread(target=server.stdout.read, daemon=True).start()
            for many in (1, 3, 9, 2, 1):
                load = [threading.Thread(target=ask, args=(url[1], i, failures)) for i in range(many)]
                for one in load:
                    one.start()
                for one in load:
                    one.join()
            server.terminate()
        code = server.wait(timeout=HANG)
        check(not failures, f"{failures}")
        log.seek(0)
        return code, log.read(), url is not None


def plan(memory):
    """The lines of a server's memory plan, and its total."""
    _, log, _ = serve(memory, 0)
    parts = {row["part"]: row["bytes"] for row in told(log, "memory") if "part" in row}
    total = [row["total_bytes"] for row in told(log, "memory") if "total_bytes" in row]
    check(parts and total, log)
    return parts, total[0]


parts, total = plan(LOADING + (1 << 30))
check("driver" in parts, f"{parts}")
# Where not all graphs fit, a 32nd of the limit is for them: the least memory that holds the plan.
rest = total - parts["driver"]
least = (rest * 32 + 30) // 31 + 4096
code, log, served = serve(LOADING + least, LOADING - SPARE, HZP_FAKE_NVML=str(LOADING + least + 12345678))
check(served and code == 0, f"with what the plan asks for: exit {code}: {log}")
check("fallback kind=" not in log, "the driver refused something: " + log)
driver = told(log, "memory driver")[0]
check(driver["evictions"] > 0, f"all graphs fit: {driver}")
check(driver["graphs_bytes"] <= driver["graphs_planned_bytes"], f"{driver}")
check(driver["context_bytes"] == 12345678, f"the context's memory: {driver}")
check(abs(driver["loaded_bytes"] - LOADING) < 1 << 22, f"what was loaded: {driver}")
most = int(re.search(r"most used (\d+) bytes", log)[1])
check(least * 0.9 + LOADING < most <= LOADING + least, f"used {most} of {LOADING + least}")
opened = told(log, "device opened")[0]
check(opened["kernels_load"] == "at-once" and opened["load_ms"] >= 0 and opened["free_bytes"] > 0, f"{opened}")
check("memory driver: the start has loaded" not in log, f"a warning without cause: {driver}, most {most} of {LOADING + least}")

code, log, served = serve(LOADING + least - (1 << 20), 0)
check(not served and code not in (0, None), f"with less it starts: {log}")
check("not enough memory" in log and "driver" in log.split("not enough memory", 1)[1].split("=")[0], log)

code, log, served = serve(LOADING + least + (1 << 29), LOADING + (1 << 28), HZP_FAKE_NVML=str(1 << 40))
check(served and code == 0 and "memory driver: the start has loaded" in log, f"code beyond what was left: {log}")
check(told(log, "memory driver")[0]["context_bytes"] == 0, "what another GPU has free tells nothing of the context")

done = subprocess.run([PROGRAM, "bench", "ops", MODEL, "--device", "cuda"], capture_output=True, text=True, check=False,
                      env=environment(16 << 30, 0))
check(done.returncode == 1 and "--device cpu" in done.stderr, f"bench ops on a GPU: {done}")
print("ok")
