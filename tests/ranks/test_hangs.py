#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that hangs is lost, killed and replaced; what an operator has set survives rank 0; no process of a run
listens beyond this machine; offline training by several ranks counts its last step, and its exit status says what
happened.

    test_hangs.py HZPSERVE MODEL
"""
import ipaddress
import json
import os
import pathlib
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
HANG = 900  # seconds; only a hang of the test itself takes as long
MPI = shutil.which("mpirun") is not None


def processes(root):
    """The processes that descend from root, itself included: {pid: (name, environment)}."""
    parent, found = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent[int(path.name)] = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    for pid in parent:
        at = pid
        while at in parent and at != root:
            at = parent[at]
        if at == root:
            try:
                variables = (pathlib.Path(f"/proc/{pid}/environ").read_bytes()).split(b"\0")
                found[pid] = (pathlib.Path(f"/proc/{pid}/comm").read_text().strip(),
                              dict(v.decode(errors="replace").split("=", 1) for v in variables if b"=" in v))
            except OSError:
                pass
    return found


def pid_of(root, rank):
    for pid, (name, env) in processes(root).items():
        if env.get("RANK", env.get("OMPI_COMM_WORLD_RANK")) == str(rank) and name.startswith("hzpserve"):
            return pid
    return None


def address(text):
    """An address of /proc/net/tcp or tcp6: words of the machine's byte order."""
    data = b"".join(int(text[i:i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(text), 8))
    ip = ipaddress.ip_address(data)
    return getattr(ip, "ipv4_mapped", None) or ip


def listening(pids):
    """The TCP sockets that listen, and the UDP ones that are bound: [(pid, address, port)]."""
    owner, found = {}, []
    for pid in pids:
        for fd in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                name = os.readlink(fd)
            except OSError:
                continue
            if name.startswith("socket:["):
                owner[name[8:-1]] = pid
    for family in ("tcp", "tcp6", "udp", "udp6"):
        for line in pathlib.Path(f"/proc/net/{family}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[9] in owner and words[3] == ("0A" if family.startswith("tcp") else "07"):
                ip, port = words[1].rsplit(":", 1)
                found.append((owner[words[9]], address(ip), int(port, 16)))
    return found


def stays_here(root, ports):
    """Every listening socket of the run is one of this machine alone; at least so many were seen."""
    all_ = processes(root)
    found = listening(all_)
    beyond = [(all_[pid][0], str(ip), port) for pid, ip, port in found if not ip.is_loopback]
    # mpirun cannot be told on which address it listens for its daemons, which do not exist here, and it does not run
    # without: docs/RANKS.md says so.  That is one socket of each IP; those of the ranks and of PMIx are this
    # machine's.
    own = [each for each in beyond if each[0].startswith(("mpirun", "mpiexec"))]
    assert beyond == own and len(own) == len({ip for _, ip, _ in own}) <= 2, beyond
    assert len(found) >= ports, (found, all_)


class Run:
    """A command whose ranks are started with --ranks."""

    def __init__(self, *args):
        self.scratch = tempfile.TemporaryDirectory(prefix="hzpserve-hangs-")
        self.log = pathlib.Path(self.scratch.name) / "log"
        self.url = None
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([serve, *(a.replace("@", self.scratch.name) for a in args)], text=True,
                                            stdout=subprocess.PIPE, stderr=log)

    def serves(self):
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return self
        sys.exit("the server did not come up:\n" + self.log.read_text())

    def call(self, path, body=None, method=None):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            return json.loads(answer.read())

    def says(self, text, times=1):
        return self.log.read_text().count(text) >= times

    def until(self, holds):
        end = time.monotonic() + HANG
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"ended or hangs ({self.process.poll()}):\n{self.log.read_text()}")
            time.sleep(0.05)

    def ends(self, status):
        assert self.process.wait(HANG) == status, (self.process.returncode, self.log.read_text())
        return self.log.read_text()


def examples(n):
    return b"".join(json.dumps({"prompt": f"Who lives in house {i}?", "completion": f" Number {i}."}).encode() + b"\n"
                    for i in range(n))


def server():
    """One server that learns on two ranks which both serve: each of them stops once."""
    run = Run("serve", model, "--ranks", "2", "--replicas", "--port", "0", "--state", "@/state", "--restart", "9",
              "--rank-timeout", "2", "--rank-slowness", "0", "--link", "zmq").serves()
    run.until(lambda: all(r["up"] for r in run.call("/v1/ranks")["data"]))
    stays_here(run.process.pid, 1)
    policy = {"slo": {"ttft_ms": 777.7, "itl_ms": None}, "train_share": 0.25, "train_max": 0.5, "max_staleness": 3}
    run.call("/v1/policy", policy, "PATCH")
    run.call("/v1/ranks/1/drain", b"", "POST")
    before = run.call("/v1/policy")
    first = pid_of(run.process.pid, 0)
    assert [r["pid"] for r in run.call("/v1/ranks")["data"]] == [first, pid_of(run.process.pid, 1)]
    assert {"hzpserve-r0", "hzpserve-r1", "hzpserve-relay"} <= {n for n, _ in processes(run.process.pid).values()}
    os.kill(first, signal.SIGSTOP)
    answers = []
    client = threading.Thread(target=lambda: answers.append(run.call("/v1/completions", {
        "prompt": "Where does", "max_tokens": 4, "temperature": 0})))
    client.start()
    health = run.call("/health")  # answered while nobody but the relay can
    assert health["status"] == "degraded" and health["lost_rank"] == 0 and "rank 0" in health["reason"], health
    client.join()
    assert answers[0]["usage"]["completion_tokens"] == 4, answers
    assert pid_of(run.process.pid, 0) != first
    after = run.call("/v1/policy")
    assert {k: after[k] for k in policy} == {k: before[k] for k in policy} == policy, (before, after)
    run.until(lambda: all(r["up"] for r in run.call("/v1/ranks")["data"]))
    assert [r["draining"] for r in run.call("/v1/ranks")["data"]] == [False, True]
    assert run.says("rank=0 hangs: no sign of life") and run.says("set again, as before rank 0 was lost"), \
        run.log.read_text()
    # Rank 1 has no client, but learning needs it.
    run.call("/v1/ranks/1/resume", b"", "POST")
    second = pid_of(run.process.pid, 1)
    os.kill(second, signal.SIGSTOP)
    run.until(lambda: run.says("rank=1 hangs: no sign of life"))
    run.until(lambda: run.call("/health") == {"status": "ok"} and pid_of(run.process.pid, 1) not in (None, second))
    run.call(f"/v1/fine_tuning/examples?wait=served&timeout={HANG}", examples(4))
    # One that was killed, and is to be started again after a while, does not hang.
    hung = run.log.read_text().count("hangs: no sign of life")
    while not re.search(r"restart rank=1 left=\d pause_s=4", run.log.read_text()):
        at = pid_of(run.process.pid, 1)
        if at:
            os.kill(at, signal.SIGKILL)
        time.sleep(0.05)
    run.until(lambda: run.call("/health") == {"status": "ok"} and pid_of(run.process.pid, 1))
    assert run.log.read_text().count("hangs: no sign of life") == hung, run.log.read_text()
    run.process.send_signal(signal.SIGTERM)
    run.ends(0)


def train(link, *more):
    """A run that goes on until it is ended."""
    data = pathlib.Path(tempfile.gettempdir()) / f"hzpserve-hangs-{os.getpid()}.jsonl"
    data.write_bytes(examples(24))
    return Run("train", model, "--data", str(data), "--out", "@/out", "--ranks", "2", "--link", link, "--threads", "1",
               "--rank-slowness", "0", "--update-tokens", "60", "--rank-timeout", "2", *more), data


def trainer(link, rank):
    """Without --restart a run of which a rank hangs ends, with status 3, and says why."""
    run, data = train(link, "--total-steps", "1000000")
    run.until(lambda: run.says("step="))
    stays_here(run.process.pid, 1 if link == "mpi" else 0)
    os.kill(pid_of(run.process.pid, rank), signal.SIGSTOP)
    log = run.ends(3)
    assert f"rank={rank} hangs: no sign of life" in log, log
    assert link == "mpi" or f"rank={rank} was lost, ended by signal 9, and is not started again" in log, log
    data.unlink()


def schedule(link):
    """Rank 0 counts the last step of a schedule in the data; sharded weights, too, go on from where they were."""
    for more in ((), ("--shard", "z3=2"), ("--shard", "stages=2")):
        run, data = train(link, "--schedule", "cosine", "--epochs", "2", "--checkpoint-every", "1", *more)
        log = run.ends(0)
        last = re.findall(r"step=(\d+)/(\d+) .*? lr=(\S+)", log)[-1]
        assert last[0] == last[1] and float(last[2]) == 1e-5, log  # a tenth of --lr
        # From the last but one checkpoint: the followers of sharded weights read it, too.
        steps = sorted(pathlib.Path(run.scratch.name, "out").glob("checkpoint-*"), key=lambda p: int(p.name[11:]))
        assert len(steps) > 1, steps
        shutil.rmtree(steps[-1])
        again, data = train(link, "--schedule", "cosine", "--epochs", "2", "--resume", "--out",
                            run.scratch.name + "/out", *more)
        assert f"step={last[1]}/{last[1]}" in again.ends(0)
        data.unlink()
    run, data = train(link, "--epochs", "1", "--shard", "z2=3")
    assert "does not divide" in run.ends(2)
    data.unlink()


links = ("zmq", "mpi") if MPI else ("zmq",)
print("server", flush=True)
server()
for link_ in links:
    print("trainer", link_, flush=True)
    trainer(link_, 0 if link_ == "zmq" else 1)
    print("schedule", link_, flush=True)
    schedule(link_)
