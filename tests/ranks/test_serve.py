#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that learns on several ranks: what it learned is served; a rank that dies or stops is named, and
serving goes on; a signal ends all ranks in order.

    test_serve.py HZPSERVE MODEL [KILLS]     how often ranks are killed at random instants
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

serve, model = sys.argv[1:3]
KILLS = int(sys.argv[3]) if len(sys.argv) > 3 else 2
HANG = 1500  # seconds; only a hang takes as long


class Server:
    """A server whose ranks are started with --ranks."""

    def __init__(self, ranks, *more, scratch=None):
        self.scratch = scratch or tempfile.TemporaryDirectory(prefix="hzpserve-ranks-")
        self.log = pathlib.Path(self.scratch.name) / "log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [serve, "serve", model, "--ranks", str(ranks), "--port", "0", "--state",
                 self.scratch.name + "/state", *more], stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                break
        else:
            sys.exit("the server did not come up:\n" + self.log.read_text())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def call(self, path, body=None):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def complete(self):
        return self.call("/v1/completions", {"prompt": "Where does", "max_tokens": 8, "temperature": 0})

    def pid(self, rank):
        """The process that the launcher started as this rank."""
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = dict(v.split(b"=", 1) for v in path.read_bytes().split(b"\0") if b"=" in v)
                words = (path.parent / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if variables.get(b"OMPI_COMM_WORLD_RANK") == str(rank).encode() and \
                    (self.scratch.name + "/state").encode() in words and b"serve" in words:
                return int(path.parent.name)
        sys.exit(f"there is no rank {rank}")

    def until(self, holds):
        """No limit but a hang's: the condition has to come, whenever."""
        end = time.monotonic() + HANG
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"ended or hangs ({self.process.poll()}):\n{self.log.read_text()}")
            time.sleep(0.05)

    def stop(self, keep=False, lost=False):
        """The log; the status is rank 0's: 1 if the last checkpoint fails, as it does when a rank whose
        shards are needed was lost."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(HANG)
        log = self.log.read_text()
        assert status == 0 or (lost and status == 1 and "checkpoint failed" in log), (status, log)
        if not keep:
            self.scratch.cleanup()
        return log


def examples(n):
    return b"".join(json.dumps({"prompt": f"Who lives in house {i}?", "completion": f" Number {i}."}).encode() + b"\n"
                    for i in range(n))


def learns():
    """Examples are learned by all ranks; all ranks end when the launcher gets a signal."""
    server = Server(2)
    before = server.call("/v1/weights")
    server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(16))
    after = server.call("/v1/weights")
    assert after != before
    assert server.call("/health") == {"status": "ok"}
    metrics = server.call("/metrics")
    for line in ('hzpserve_ranks{', 'rank="0"} 1', 'rank="1"} 1'):
        assert line in metrics, line
    lost = re.search(r"^hzpserve_rank_lost\{.*\} (\S+)$", metrics, re.M)
    assert lost[1] == "-1", lost
    done = re.findall(r'^hzpserve_rank_transfers\{.*rank="(\d)"\} (\d+)$', metrics, re.M)
    assert len(done) == 2 and all(int(n) > 10 for _, n in done), done
    server.complete()
    log = server.stop()
    assert "serve: stopped" in log, log
    assert "lost rank" not in log, log


def loses(how):
    """Rank 1 is killed, or stopped, while it learns: it is named, requests are still answered."""
    server = Server(2)
    server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(2))
    server.call("/v1/fine_tuning/examples", examples(64))
    pid = server.pid(1)
    os.kill(pid, how)
    server.until(lambda: server.call("/health")["status"] == "degraded")
    health = server.call("/health")
    assert health["lost_rank"] == 1 and "no heartbeat" in health["reason"], health
    assert re.search(r'^hzpserve_rank_up\{.*rank="1"\} 0$', server.call("/metrics"), re.M)
    for _ in range(3):
        assert server.complete()["choices"]
    if how == signal.SIGSTOP:
        os.kill(pid, signal.SIGKILL)
    log = server.stop(lost=True)
    assert re.search(r"ranks: lost rank=1: no heartbeat", log), log
    assert "serve: stopped" in log, log


def learned_through(server):
    found = re.search(r"^hzpserve_learned_through\{.*\} (\S+)$", server.call("/metrics"), re.M)
    return int(found[1])


def killed(rank, seed):
    """A rank is killed at some instant while it learns.  What was accepted is learned after a restart."""
    rng = random.Random(seed)
    server = Server(2, "--checkpoint-every", "3")
    server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(2))
    last = server.call("/v1/fine_tuning/examples", examples(24))["last"]
    pid = server.pid(rank)
    time.sleep(rng.uniform(0, 1.5))
    os.kill(pid, signal.SIGKILL)
    if rank:
        server.until(lambda: server.call("/health")["status"] == "degraded")
        assert server.complete()["choices"]
        server.stop(keep=True, lost=True)
    else:  # the other rank notices, and ends
        assert server.process.wait(HANG) == 1
        assert "lost rank=0: no heartbeat" in server.log.read_text(), server.log.read_text()
    again = Server(2, scratch=server.scratch)
    again.until(lambda: learned_through(again) >= last)
    assert again.call("/health") == {"status": "ok"}
    again.stop()


if not shutil.which("mpirun"):
    print("no mpirun: skipped")
    sys.exit(77)
print("learns", flush=True)
learns()
for signal_ in (signal.SIGKILL, signal.SIGSTOP):
    print("loses", signal_.name, flush=True)
    loses(signal_)
for number in range(KILLS):
    print("killed", number, flush=True)
    killed(number % 2, number)
