#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that learns on several ranks: what it learned is served; a rank that dies or stops is named, and
serving goes on; a signal ends all ranks in order.

    test_serve.py HZPSERVE MODEL [KILLS [kills]]    how often ranks are killed at random instants; kills: nothing else
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
import urllib.error
import urllib.request

serve, model = sys.argv[1:3]
KILLS = int(sys.argv[3]) if len(sys.argv) > 3 else 2
HANG = 1500  # seconds; only a hang takes as long


class Server:
    """A server whose ranks are started with --ranks; a busy machine refuses none of them."""

    def __init__(self, ranks, *more, scratch=None):
        self.scratch = scratch or tempfile.TemporaryDirectory(prefix="hzpserve-ranks-")
        self.log = pathlib.Path(self.scratch.name) / "log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [serve, "serve", model, "--ranks", str(ranks), "--port", "0", "--state",
                 self.scratch.name + "/state", "--rank-slowness", "0", *more], stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                break
        else:
            sys.exit("the server did not come up:\n" + self.log.read_text())
        threading.Thread(target=self.read_on, daemon=True).start()

    def read_on(self):
        """The job that replaces one which lost a rank says where it serves."""
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]

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
            if variables.get(b"RANK", variables.get(b"OMPI_COMM_WORLD_RANK")) == str(rank).encode() and \
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

    def stop(self, keep=False, lost=False, status=None):
        """The log; the status is rank 0's: 3 if a rank was lost."""
        self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(HANG)
        log = self.log.read_text()
        if status is None:
            status = 3 if lost else 0
            assert lost == ("no last checkpoint, because ranks are missing" in log), log
        assert ended == status, (ended, log)
        if not keep:
            self.scratch.cleanup()
        return log


def examples(n):
    return b"".join(json.dumps({"prompt": f"Who lives in house {i}?", "completion": f" Number {i}."}).encode() + b"\n"
                    for i in range(n))


def learns():
    """Examples are learned by all ranks; all ranks end when the launcher gets a signal."""
    server = Server(2, "--rank-timeout", "600")
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
    timeline(server)
    log = server.stop()
    assert "serve: stopped" in log, log
    assert re.search(r"ranks: selftest slowest_rank=[01] in=(product|copy|link) times=", log), log
    assert "lost rank" not in log, log


def timeline(server):
    """One trace of both ranks: ops, transfers, tickets, steps, versions; by HTTP and by the command."""
    file = server.scratch.name + "/trace.json"
    subprocess.run([serve, "timeline", server.url, "--seconds", "60", "-o", file], check=True, stderr=subprocess.PIPE)
    by_http = server.call("/debug/timeline?seconds=60")
    for text in (pathlib.Path(file).read_text(encoding="utf-8"), by_http):
        trace = json.loads(text)
        names = {e["args"]["name"] for e in trace if e["name"] == "process_name"}
        assert names == {"rank 0", "rank 1"}, names
        tracks = {(e["pid"], e["args"]["name"]) for e in trace if e["name"] == "thread_name"}
        for rank in (0, 1):
            for track in ("compute", "engine", "steps", "training", "tickets", "link"):
                assert (rank, track) in tracks, (rank, track, tracks)
            names = {e["name"] for e in trace if e["pid"] == rank and e["ph"] in "Xb"}
            assert {"step", "turn", "update", "micro-batch", "all-gather", "wait for ranks"} <= names, names
        assert any(e["name"] == "publish" for e in trace)
        # One clock: an update of rank 1 overlaps the same update of rank 0.
        updates = {rank: {e["args"]["n"]: e for e in trace if e["name"] == "update" and e["pid"] == rank}
                   for rank in (0, 1)}
        both = updates[0].keys() & updates[1].keys()
        assert both, updates
        for n in both:
            a, b = updates[0][n], updates[1][n]
            assert a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"], (a, b)
    for wrong in ("0", "61", "x", "-1", "nan"):
        try:
            server.call("/debug/timeline?seconds=" + wrong)
            raise AssertionError(wrong)
        except urllib.error.HTTPError as error:
            assert error.code == 400 and "seconds" in error.read().decode()


def slow():
    """Rank 1 is stopped most of the time, as if its core were throttled: rank 0 names it."""
    server = Server(2, "--rank-timeout", "60", "--passes", "1000000")
    server.call("/v1/fine_tuning/examples", examples(200))
    pid, ends = server.pid(1), threading.Event()

    def throttle():
        while not ends.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.09)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)

    thread = threading.Thread(target=throttle)
    thread.start()
    server.until(lambda: "straggler rank=1" in server.log.read_text())
    slowness = re.search(r'^hzpserve_rank_slowness\{.*rank="1",in="\w+"\} (\S+)$', server.call("/metrics"), re.M)
    assert slowness and float(slowness[1]) > 1, slowness
    ends.set()
    thread.join()
    server.stop()


def loses(how, link):
    """Rank 1 is killed, or stopped, while it learns: it is named, requests are still answered."""
    ended = link == "zmq" and how == signal.SIGKILL  # ZeroMQ tells of the end of a connection, MPI does not
    server = Server(2, "--link", link)
    server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(2))
    server.call("/v1/fine_tuning/examples", examples(64))
    pid = server.pid(1)
    os.kill(pid, how)
    server.until(lambda: server.call("/health")["status"] == "degraded")
    health = server.call("/health")
    assert health["lost_rank"] == 1, health
    assert ("its connection has ended" if ended else "no heartbeat") in health["reason"], health
    assert re.search(r'^hzpserve_rank_up\{.*rank="1"\} 0$', server.call("/metrics"), re.M)
    for _ in range(3):
        assert server.complete()["choices"]
    server.until(lambda: "lost rank=1" in server.log.read_text())
    if how == signal.SIGSTOP:
        os.kill(pid, signal.SIGKILL)
    log = server.stop(lost=True)
    silent = re.search(r"ranks: silent rank=1 thread=.* ticket=\d+ seconds=", log)
    assert ended or silent and silent.start() < log.index("lost rank=1"), log
    assert re.search(r"ranks: lost rank=1: " + ("its connection" if ended else "no heartbeat"), log), log
    assert "serve: stopped" in log, log


def restarts(link):
    """With --restart all ranks are started again when one is lost; what was accepted is learned."""
    server = Server(2, "--restart", "1", "--checkpoint-every", "3", "--link", link)
    server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(2))
    last = server.call("/v1/fine_tuning/examples", examples(24))["last"]
    before = server.url
    os.kill(server.pid(1), signal.SIGKILL)
    server.until(lambda: server.url != before)
    server.until(lambda: learned_through(server) >= last)
    assert server.call("/health") == {"status": "ok"}
    log = server.stop(keep=True, status=0)
    again = ["ranks=2"] if link == "mpi" else ["rank=0", "rank=1"]
    assert all(log.count(f"ranks: restart {which} left=0") == 1 for which in again), log
    server.scratch.cleanup()


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
        assert server.process.wait(HANG) == 3
        assert "lost rank=0: no heartbeat" in server.log.read_text(), server.log.read_text()
    # The log may still list checkpoints that were removed; the newest is whole.
    checked = subprocess.run([serve, "state", "check", server.scratch.name + "/state"], capture_output=True, text=True)
    newest = [line for line in checked.stdout.splitlines() if line.startswith("checkpoint-")][:1]
    assert checked.stdout.startswith("examples 1 .. ") and "damaged" not in "".join(newest), checked
    again = Server(2, "--rank-timeout", "600", scratch=server.scratch)
    again.until(lambda: learned_through(again) >= last)
    assert again.call("/health") == {"status": "ok"}
    again.stop()


links = ("mpi", "zmq") if shutil.which("mpirun") else ("zmq",)
if sys.argv[4:] != ["kills"]:
    print("learns", flush=True)
    learns()
    print("slow", flush=True)
    slow()
    for link_ in links:
        for signal_ in (signal.SIGKILL, signal.SIGSTOP):
            print("loses", signal_.name, link_, flush=True)
            loses(signal_, link_)
    for link_ in links:
        print("restarts", link_, flush=True)
        restarts(link_)
for number in range(KILLS):
    print("killed", number, flush=True)
    killed(number % 2, number)
