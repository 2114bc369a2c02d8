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

sys.path.append(str(pathlib.Path(__file__).parents[1] / "api"))
import promlint  # noqa: E402

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

    def call(self, path, body=None, method=None):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def complete(self):
        return self.call("/v1/completions", {"prompt": "Where does", "max_tokens": 8, "temperature": 0})

    def pid(self, rank, state=True):
        """The process that the launcher started as this rank; state False: of a server without a state directory."""
        word = (self.scratch.name + "/state").encode() if state else b"none"
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = dict(v.split(b"=", 1) for v in path.read_bytes().split(b"\0") if b"=" in v)
                words = (path.parent / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if variables.get(b"RANK", variables.get(b"OMPI_COMM_WORLD_RANK")) == str(rank).encode() and \
                    word in words and b"serve" in words and self.is_child(int(path.parent.name)):
                return int(path.parent.name)
        sys.exit(f"there is no rank {rank}")

    def is_child(self, pid):
        """Whether the process descends from the launcher."""
        while pid > 1 and pid != self.process.pid:
            try:
                pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[1])
            except OSError:
                return False
        return pid == self.process.pid

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
        assert "updates=-" not in log, log
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
    assert not promlint.check(metrics), promlint.check(metrics)
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


def goes_back(links):
    """An older version serves again, what was learned after it is learned again to the same bits, an example is
    forgotten, and a gate rejects a draft: as on one rank."""
    def learn(examples):
        got = server.call(f"/v1/fine_tuning/examples?wait=served&timeout={HANG}", examples)
        return server.call("/v1/weights/current")["checksum"], got

    def activate(lessons):
        got = server.call(f"/v1/weights/first/activate?timeout={HANG}", {"lessons": lessons})
        assert got["state"] == "done", got
        return got

    def text(first, n):
        return b"".join(json.dumps({"text": f"House {i} is the house of keeper {i * 7}."}).encode() + b"\n"
                        for i in range(first, first + n))

    # One update a body: its micro-batches are dealt to both ranks.
    server = Server(2, "--link", links[0], "--replay-ratio", "0", "--passes", "1", "--lr", "1e-3", "--micro-rows", "64", "--update-tokens",
                    "4096", "--rank-timeout", "600")
    first, _ = learn(text(0, 8))
    server.call(f"/v1/weights/current/name?timeout={HANG}", {"name": "first"})
    second, _ = learn(text(20, 8))
    assert second != first
    got = activate("skip")
    current = server.call("/v1/weights/current")
    assert current["checksum"] == first and current["id"] == got["weights_version"], (current, got)
    assert got["skipped"] == [9, 16], got
    made = server.call(f"/v1/weights/{got['weights_version']}")
    assert made["parent"] == got["version"] and made["on_disk"], made
    activate("replay")
    server.until(lambda: learned_through(server) >= 16)
    assert server.call("/v1/weights/current")["checksum"] == second
    got = server.call(f"/v1/fine_tuning/examples/12?timeout={HANG}", method="DELETE")
    assert got["state"] == "done" and got["learned_again"] == [9, 16], got
    assert server.call("/v1/weights/current")["checksum"] not in (first, second)
    learn(text(40, 2))
    # One on disk, and the one that serves, of which each rank has a part of the optimizer's state.
    for version, directory in (("first", "one"), ("current", "other")):
        got = server.call(f"/v1/weights/{version}/export?timeout={HANG}", {"directory": directory})
        assert got["state"] == "done", got
        assert pathlib.Path(server.scratch.name, "state", "export", directory, "model.safetensors").exists()
    got = server.call(f"/v1/weights/current/name?timeout={HANG}", {"name": "last"})
    assert got["state"] == "done", got
    assert server.call("/health") == {"status": "ok"}
    log = server.stop(keep=True)
    assert log.count("restored version=") == 3 and "lost rank" not in log, log

    held = pathlib.Path(server.scratch.name, "held.jsonl")
    held.write_bytes(text(0, 3))
    # Such a learning rate leaves nothing of a model.
    server = Server(2, "--link", links[-1], "--passes", "3", "--lr", "0.3", "--micro-rows", "64", "--gate", str(held),
                    "--gate-max-rise", "0.5", "--rank-timeout", "600", scratch=server.scratch)
    before = server.call("/v1/weights/current")["checksum"]
    after, got = learn(text(60, 8))
    assert not got["served"] and got["rejected"] and after == before, got
    gate = server.call("/v1/weights")["gate"]
    assert gate["rejected"] == gate["evaluations"] == 1, gate # the lesson is judged, not each update
    after, got = learn(text(80, 8)) # the next one begins from what the ranks had before
    assert got["rejected"] and after == before, got
    assert server.call("/health") == {"status": "ok"}
    log = server.stop()
    assert "lost rank" not in log, log


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
        server.until(lambda: "rank=1 hangs: no sign of life" in server.log.read_text())
    log = server.stop(lost=True)
    silent = re.search(r"ranks: silent rank=1 thread=.* ticket=\d+ seconds=", log)
    assert ended or silent and silent.start() < log.index("lost rank=1"), log
    assert re.search(r"ranks: lost rank=1: " + ("its connection" if ended else "no heartbeat"), log), log
    assert "serve: stopped" in log, log


def restarts():
    """With MPI and --restart all ranks are started again when one is lost; what was accepted is learned."""
    server = Server(2, "--restart", "1", "--checkpoint-every", "3", "--link", "mpi")
    server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(2))
    last = server.call("/v1/fine_tuning/examples", examples(24))["last"]
    before = server.url
    os.kill(server.pid(1), signal.SIGKILL)
    server.until(lambda: server.url != before)
    server.until(lambda: learned_through(server) >= last)
    assert server.call("/health") == {"status": "ok"}
    log = server.stop(keep=True, status=0)
    assert log.count("ranks: restart ranks=2 left=0") == 1, log
    server.scratch.cleanup()


class Streams:
    """Requests that stream one after another until the end; each has to bring all its tokens."""
    TOKENS = 40

    def __init__(self, server):
        self.server, self.ends, self.whole, self.errors = server, threading.Event(), 0, []
        self.threads = [threading.Thread(target=self.run) for _ in range(2)]
        for thread in self.threads:
            thread.start()

    def run(self):
        body = json.dumps({"prompt": "Where does", "max_tokens": self.TOKENS, "temperature": 0, "stream": True,
                           "ignore_eos": True, "stream_options": {"include_usage": True}}).encode()
        while not self.ends.is_set() and not self.errors:
            request = urllib.request.Request(self.server.url + "/v1/completions", body,
                                             {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=HANG) as answer:
                    text = answer.read().decode()
                assert text.rstrip().endswith("data: [DONE]"), text[-300:]
                assert f'"completion_tokens":{self.TOKENS}' in text.replace(" ", ""), text[-600:]
                self.whole += 1
            except Exception as error:  # pylint: disable=broad-except
                self.errors.append(repr(error))

    def more(self, count=2):
        """Waits until further requests have been answered, which began after this call, or one has failed."""
        until = self.whole + count + len(self.threads)
        self.server.until(lambda: self.whole >= until or self.errors)
        assert not self.errors, (self.errors, self.server.log.read_text())

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, (self.errors, self.server.log.read_text())


def number(server, name):
    return float(re.search(rf"^{name}\{{.*\}} (\S+)$", server.call("/metrics"), re.M)[1])


def pid_if(server, rank):
    try:
        return server.pid(rank)
    except SystemExit:
        return None


def lose(server, rank):
    """Kills a rank while its launcher is held up, so that the loss lasts until resume."""
    server.process.send_signal(signal.SIGSTOP)
    pid = server.pid(rank)
    os.kill(pid, signal.SIGKILL)
    server.until(lambda: server.call("/health")["status"] == "degraded")
    return pid


def together(server, rejoins):
    server.until(lambda: server.call("/health") == {"status": "ok"} and
                 number(server, "hzpserve_rank_rejoins_total") >= rejoins)


def survives(ranks):
    """With ZeroMQ and --restart rank 0 serves on while a lost rank is replaced: no request fails; ranks are lost while
    they learn, while an update is gathered (the wire is slow, so mostly it is), and while they meet again."""
    server = Server(ranks, "--restart", "20", "--checkpoint-every", "3", "--link", "zmq", "--link-throttle", "30M",
                    "--rank-timeout", "10")
    server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(2))
    first, last = server.pid(0), server.call("/v1/fine_tuning/examples", examples(24))["last"]
    url, streams = server.url, Streams(server)
    lose(server, 1)
    health = server.call("/health")
    assert health["lost_rank"] == 1 and health["reason"], health
    streams.more()
    learned = learned_through(server)
    last = server.call("/v1/fine_tuning/examples", examples(8))["last"]  # accepted, and learned later
    streams.more()
    assert learned_through(server) == learned and server.call("/health")["status"] == "degraded"
    assert number(server, "hzpserve_rank_losses_total") == 1 and number(server, "hzpserve_rank_lost") == 1
    server.process.send_signal(signal.SIGCONT)
    together(server, 1)
    streams.more()
    # The last rank is lost, and while the others wait for it, another one, or the one that comes in its place.
    pid = lose(server, ranks - 1)
    if ranks > 2:
        os.kill(server.pid(1), signal.SIGKILL)
    server.process.send_signal(signal.SIGCONT)
    if ranks == 2:
        server.until(lambda: pid_if(server, 1) not in (None, pid))
        os.kill(server.pid(1), signal.SIGKILL)
    together(server, 2)
    streams.more()
    # At some instant, and for good: what was accepted has been learned.
    os.kill(server.pid(1), signal.SIGKILL)
    server.until(lambda: number(server, "hzpserve_rank_losses_total") >= 3)
    together(server, 3)
    server.until(lambda: learned_through(server) >= last)
    streams.stop()
    assert server.pid(0) == first and server.url == url
    # A signal while a rank is missing: the server ends in order; the launcher, once it goes on, starts none.
    lose(server, 1)
    server.process.send_signal(signal.SIGCONT)
    log = server.stop(keep=True, status=0)
    assert "lost rank=0" not in log and log.count("rejoined ranks=") >= 3 and "serve: stopped" in log, log
    checked = subprocess.run([serve, "state", "check", server.scratch.name + "/state"], capture_output=True, text=True)
    assert "damaged" not in checked.stdout and checked.returncode == 0, checked
    server.scratch.cleanup()


def from_model():
    """A rank is lost before anything was learned, and before the first checkpoint: the model serves again, and all is
    learned."""
    for state in ("/state", None):
        server = Server(2, "--restart", "5", "--checkpoint-every", "1000000", "--link", "zmq",
                        *(() if state else ("--state", "none")))
        os.kill(server.pid(1, state is not None), signal.SIGKILL)
        together(server, 1)
        last = server.call("/v1/fine_tuning/examples", examples(24))["last"]
        server.until(lambda: server.call("/v1/weights")["serving_optimizer_step"] >= 3)
        serving = server.call("/v1/weights")["serving"]
        os.kill(server.pid(1, state is not None), signal.SIGKILL)
        together(server, 2)
        versions = {v["id"]: v for v in server.call("/v1/weights?limit=1000")["data"]}
        begun = [v for v in versions.values() if v["id"] > serving and v["optimizer_step"] == 0]
        assert len(begun) == 1 and begun[0]["learned_through"] is None, versions
        server.until(lambda: learned_through(server) >= last)
        server.stop(status=0)


def newest(server):
    """Name and files of the newest checkpoint."""
    found = max(pathlib.Path(server.scratch.name, "state").glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    return found.name, [(found / file).read_bytes() for file in ("model.safetensors", "trainer.safetensors")]


def same_bytes():
    """A rank is lost when the newest checkpoint is of the serving version: the others go on with it, and learn what
    they would have learned without the loss, to the bit."""
    made = []
    for disturbed in (False, True):
        server = Server(2, "--restart", "2", "--checkpoint-every", "1", "--link", "zmq", "--ordered", "--threads", "1")
        server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(6))
        serving = server.call("/v1/weights")["serving"]
        server.until(lambda: f"state: checkpoint version={serving} " in server.log.read_text())
        if disturbed:
            os.kill(server.pid(1), signal.SIGKILL)
            server.until(lambda: number(server, "hzpserve_rank_losses_total") == 1)
            together(server, 1)
            assert server.call("/v1/weights")["serving"] == serving
        server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(9))
        log = server.stop(keep=True, status=0)
        assert "serves again" not in log, log
        made.append(newest(server))
        server.scratch.cleanup()
    assert made[0] == made[1], (made[0][0], made[1][0])


def lost_while_going_back():
    """A rank is lost while an older version is made to serve again, whatever that has come to: what serves in the end
    has learned all examples, those again that the older version had not."""
    server = Server(2, "--restart", "9", "--link", "zmq", "--replay-ratio", "0", "--passes", "1")
    server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(6))
    server.call(f"/v1/weights/current/name?timeout={HANG}", {"name": "first"})
    for turn in range(3):
        last = server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(6))["last"]
        killer = threading.Timer(0.008 * turn, os.kill, (server.pid(1), signal.SIGKILL))
        killer.start()
        try:
            server.call(f"/v1/weights/first/activate?timeout={HANG}", {"lessons": "replay"})
        except urllib.error.HTTPError as error:
            assert error.code >= 500, error
            assert "restart the server" not in error.read().decode()
        killer.join()
        together(server, turn + 1)
        server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(3))
        server.until(lambda: learned_through(server) >= last + 3)
    # In its middle: rank 0 serves the version, and a rank that is stopped does not take it.
    serving, pid = server.call("/v1/weights")["serving"], server.pid(1)
    os.kill(pid, signal.SIGSTOP)
    job = server.call("/v1/weights/first/activate?timeout=0", {"lessons": "replay"})["id"]
    server.until(lambda: server.call("/v1/weights")["serving"] > serving)
    os.kill(pid, signal.SIGKILL)
    server.until(lambda: server.call(f"/v1/jobs/{job}")["state"] == "failed")
    error = server.call(f"/v1/jobs/{job}")["error"]
    assert "until all ranks have met again, which completes the activation" in error, error
    together(server, 4)
    server.until(lambda: learned_through(server) >= last + 3)
    # What had been learned when it was asked for is skipped, although the loss has taken it back before.
    last = server.call("/v1/fine_tuning/examples?wait=served&timeout=600", examples(2))["last"]
    lose(server, 1)
    got = server.call(f"/v1/weights/first/export?timeout={HANG}", {"directory": "first"})  # waits for no rank
    assert got["state"] == "done", got
    try:
        job = server.call("/v1/weights/first/activate?timeout=0", {"lessons": "skip"})["id"]
    except urllib.error.HTTPError as error:  # it has failed before it was answered
        said = json.loads(error.read())["error"]
        assert error.code == 500 and said["code"] == "job_failed", said
        job = int(re.match(r"job (\d+) failed", said["message"])[1])
    server.process.send_signal(signal.SIGCONT)
    together(server, 5)
    server.until(lambda: server.call(f"/v1/jobs/{job}")["state"] in ("done", "failed"))
    ended = server.call(f"/v1/jobs/{job}")
    if ended["state"] == "failed":  # it began before the trainer had heard of the loss
        assert "which completes the activation" in ended["error"], ended
    assert ended["skipped"] == [7, last], ended
    assert len(server.call("/v1/fine_tuning/examples")["skipped"]) == last - 6
    server.stop()


def own_error():
    """A rank that ends by an error of its own is named, and not started again; the others do not wait for ever."""
    with tempfile.TemporaryDirectory() as top:
        wrapper = pathlib.Path(top, "state")
        server = subprocess.run(
            [serve, "serve", model, "--ranks", "2", "--link", "zmq", "--restart", "5", "--rank-wait", "3", "--port", "0",
             "--state", str(wrapper), "--threads", "1", "--shard", "z3=2"], capture_output=True, text=True, timeout=HANG)
        assert server.returncode == 2 and "--shard z3=2: a server reads its weights" in server.stderr, server
        assert "ranks: restart" not in server.stderr, server.stderr


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
        assert "rank=0 was lost" in server.log.read_text(), server.log.read_text()
    # The log may still list checkpoints that were removed; the newest is whole.
    checked = subprocess.run([serve, "state", "check", server.scratch.name + "/state"], capture_output=True, text=True)
    newest = [line for line in checked.stdout.splitlines() if line.startswith("checkpoint-")][:1]
    assert checked.stdout.startswith("examples 1 .. ") and "damaged" not in "".join(newest), checked
    again = Server(2, "--rank-timeout", "600", scratch=server.scratch)
    again.until(lambda: learned_through(again) >= last)
    assert again.call("/health") == {"status": "ok"}
    again.stop()


class Job(Server):
    """The same, but its ranks are started here, each by itself, as an operator of pods does it: without pauses."""

    def __init__(self, ranks, *more):  # pylint: disable=super-init-not-called
        self.scratch = tempfile.TemporaryDirectory(prefix="hzpserve-ranks-")
        self.log = pathlib.Path(self.scratch.name) / "log"
        self.command = [serve, "serve", model, "--port", "0", "--state", self.scratch.name + "/state", "--link", "zmq",
                        "--rank-slowness", "0", "--threads", "1", "--restart", "1000000", *more]
        self.environment = {**os.environ, "WORLD_SIZE": str(ranks), "HZP_LOG": "info,http=warn",
                            "HZP_RANKS_DIR": tempfile.mkdtemp(dir=self.scratch.name)}
        self.rank = [self.begin(rank) for rank in range(ranks)]
        self.process = self.rank[0]
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                break
        else:
            sys.exit("the server did not come up:\n" + self.log.read_text())
        threading.Thread(target=self.read_on, daemon=True).start()

    def begin(self, rank):
        with open(self.log, "a", encoding="utf-8") as log:
            return subprocess.Popen(self.command, env={**self.environment, "RANK": str(rank)}, text=True, stderr=log,
                                    stdout=log if rank else subprocess.PIPE)

    def kill(self, rank):
        """And begins another in its place."""
        self.rank[rank].kill()
        self.rank[rank].wait()
        self.rank[rank] = self.begin(rank)

    def again(self):
        """Begins those again that have ended by themselves, with status 3, as that asks for."""
        for rank, process in enumerate(self.rank):
            if rank and process.poll() is not None:
                assert process.returncode == 3, (rank, process.returncode, self.log.read_text()[-5000:])
                self.rank[rank] = self.begin(rank)

    def end(self):
        for process in self.rank[1:]:
            process.kill()
            process.wait()


def rejoins(kills):
    """Ranks other than 0 are killed at random instants, some while they meet again; streams go on all the while, and
    in the end everything that was accepted has been learned."""
    rng = random.Random(kills)
    job = Job(3, "--checkpoint-every", "3")
    streams, last = Streams(job), 0
    for done in range(kills):
        if rng.random() < 0.6:
            last = job.call("/v1/fine_tuning/examples", examples(rng.randrange(1, 6)))["last"]
        if rng.random() < 0.7:  # else while they meet
            def whole():
                job.again()
                return job.call("/health") == {"status": "ok"}
            job.until(whole)
        time.sleep(rng.choice((0, 0.05, rng.uniform(0, 1))))
        for rank in rng.choice(((1,), (2,), (1, 2))):
            job.kill(rank)
        if done % 10 == 9:
            print(done + 1, streams.whole, number(job, "hzpserve_rank_rejoins_total"), flush=True)

    def learned():
        job.again()
        return learned_through(job) >= last
    job.until(learned)
    streams.stop()
    seen = [n for n in re.findall(r"train: version id=(\d+)", job.log.read_text())]
    assert all(int(a) < int(b) for a, b in zip(seen, seen[1:])), seen  # versions only grow
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(HANG) == 0, job.log.read_text()[-5000:]
    job.end()
    job.scratch.cleanup()


links = ("mpi", "zmq") if shutil.which("mpirun") else ("zmq",)
if sys.argv[4:] != ["kills"]:
    print("learns", flush=True)
    learns()
    print("goes back", flush=True)
    lost_while_going_back()
    goes_back(links)
    print("slow", flush=True)
    slow()
    for link_ in links:
        for signal_ in (signal.SIGKILL, signal.SIGSTOP):
            print("loses", signal_.name, link_, flush=True)
            loses(signal_, link_)
    if "mpi" in links:
        print("restarts", flush=True)
        restarts()
    for ranks_ in (2, 3):
        print("survives", ranks_, flush=True)
        survives(ranks_)
    print("from the model", flush=True)
    from_model()
    print("same bytes", flush=True)
    same_bytes()
    print("own error", flush=True)
    own_error()
for seed_ in range(KILLS):
    print("killed", seed_, flush=True)
    killed(seed_ % 2, seed_)
if sys.argv[4:] == ["kills"]:
    print("rejoins", flush=True)
    rejoins(KILLS)
