#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that has nothing to do uses no processor time, with and without separate lanes.

    test_idle.py HZPSERVE MODEL_DIR

It first gets requests and samples, so that every thread has run once; then utime + stime of the whole
process are read from /proc over some seconds.  Which threads may interrupt others is checked too.  Skips (77) where there is no /proc or no model.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

SECONDS = 3
HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
ALLOWED = 0.05  # of one core


def ticks(pid):
    """utime + stime of the process, in seconds."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def call(port, path, body=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body and body.encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG) as answer:
        return answer.read().decode()


def metric(port, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in call(port, "/metrics").splitlines()
               if line.startswith(name) and not line.startswith("#"))


def teach_and_ask(port):
    example = json.dumps({"prompt": "The colour of the sky is", "completion": " blue."})
    call(port, "/v1/fine_tuning/examples", "\n".join([example] * 20))
    for _ in range(3):
        call(port, "/v1/completions",
             json.dumps({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}))


def until_quiet(port, taught):
    """Waits until no step ran for a second, and all samples are learned and in a checkpoint."""
    end = time.time() + HANG
    seen, since = -1, time.time()
    while time.time() < end:
        steps = metric(port, "hzpserve_steps_total")
        if steps != seen:
            seen, since = steps, time.time()
        elif time.time() - since > 1 and \
                metric(port, "hzpserve_checkpoints_total") >= taught:
            return
        time.sleep(0.2)
    raise AssertionError("the server does not come to rest")


def check_policies(pid):
    """Threads of the HTTP side and of the teams let a running thread run; the engine takes its turn at once, and so
    does the thread that leads a lane beside it (cpu-lane)."""
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name = re.sub(r"^(cpu|MHD)-(?!lane).*", r"\1", (task / "comm").read_text().strip())
        found.setdefault(name, set()).add(os.sched_getscheduler(int(task.name)))
    for name in "MHD", "hzp-http", "hzp-notify", "hzp-door", "cpu":
        assert found[name] == {os.SCHED_BATCH}, f"{name} preempts: {found}"
    assert found["hzp-engine"] == found.get("cpu-lane", {os.SCHED_OTHER}) == {os.SCHED_OTHER}, found


def check(options):
    with tempfile.TemporaryDirectory() as state:
        process = subprocess.Popen(
            [BINARY, "serve", MODEL, "--port", "0", "--state", state + "/state", "--threads",
             "2", "--passes", "1", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True)
        try:
            for line in process.stdout:
                found = re.search(r"at http://127\.0\.0\.1:(\d+)", line)
                if found:
                    break
            else:
                raise AssertionError("the server did not start")
            port = int(found[1])
            for round_ in ("before it was asked anything", "after its work"):
                for attempt in range(5): # on a machine that was suspended, any server looks idle
                    until_quiet(port, round_ == "after its work")
                    steps, begin, before = metric(port, "hzpserve_steps_total"), time.time(), \
                        ticks(process.pid)
                    time.sleep(SECONDS)
                    used = (ticks(process.pid) - before) / (time.time() - begin)
                    if metric(port, "hzpserve_steps_total") == steps:
                        break
                else:
                    raise AssertionError("it was not idle")
                print(f"{' '.join(options) or 'as it is':24} {round_}: {used:.2%} of a core")
                assert used <= ALLOWED, f"{used:.1%} of a core {round_} with {options}"
                if round_.startswith("before"):
                    teach_and_ask(port)
            assert metric(port, "hzpserve_train_steps_total") > 0, "nothing was learned"
            if not options:
                check_policies(process.pid)
        finally:
            process.terminate()
            process.wait(HANG)


if __name__ == "__main__":
    BINARY, MODEL = sys.argv[1:3]
    if not os.path.exists("/proc/self/stat") or not os.path.exists(f"{MODEL}/config.json"):
        sys.exit(77)
    check([])
    if os.cpu_count() > 1:
        check(["--train-share", "cores=0"])
        check(["--train-share", "cores=1", "--run-ahead", "1"])
