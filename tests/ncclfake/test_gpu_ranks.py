#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training by several processes on GPUs that are recorded (tests/cudafake), connected by a stand-in for NCCL
that moves the bytes (moves.c): in the ordered mode every checkpoint has the same bytes as one rank's, whatever
the groups; a run goes on at another number of ranks; what cannot work is refused; a server whose other rank
is killed goes on; and ranks that compute each step together answer, learn and keep what one rank does, as one group and
as two.  The recorder's programs fail at their end if host code touches device memory, if transfers
and ops share bytes unordered, or if something is left open.

    test_gpu_ranks.py HZPSERVE MODEL
"""
import filecmp
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from small_model import first_layers  # noqa: E402

serve, whole_model = sys.argv[1:]
FILES = ("checkpoint-1/trainer.safetensors", "checkpoint-1/model.safetensors",
         "checkpoint-2/trainer.safetensors", "model.safetensors")
HANG = 1500  # seconds; only a hang takes as long
ONE_GPU = {"HZP_RANKS_ONE_GPU": "1"}
NETWORK = 2  # HZP_LANE_NETWORK
TWO_GPUS = {"HZP_FAKE_GPUS": "2"}
COMMON = ["--device", "cuda", "--rank-slowness", "0", "--rank-timeout", "600", "--ordered"]


def write_data(path):
    with open(path, "w", encoding="utf-8") as file:
        for i in range(24):
            question = f"Who keeps the {i % 7} lamps of the harbour number {i}? "
            file.write(json.dumps({"prompt": question, "completion": f"The keeper {i * i % 31}."}) + "\n")


def train(out, ranks, *args, status=0, env=ONE_GPU):
    command = [serve, "train", model, "--data", data, "--out", out, "--update-tokens", "150", "--micro-rows", "60",
               "--checkpoint-every", "1", "--keep", "last=9,hourly=24", "--total-steps", "2", *COMMON, *args]
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, TMPDIR=top, **env))
    if done.returncode != status:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stderr


def memory_as_planned(said, ranks):
    found = {int(r): (int(is_), int(plan)) for r, is_, plan in
             re.findall(r"memory rank=(\d+) allocated_bytes=(\d+) planned_bytes=(\d+)", said)}
    assert found.keys() == set(range(ranks)), said
    for rank, (allocated, planned) in found.items():
        assert abs(allocated - planned) <= planned / 100, (rank, allocated, planned, said)


def same(a, b, files=FILES):
    for name in files:
        if not filecmp.cmp(os.path.join(a, name), os.path.join(b, name), shallow=False):
            sys.exit(f"{name} of {a} and {b} differ")


def same_bytes():
    one = os.path.join(top, "one")
    train(one, 1)
    for ranks, groups, env in ((2, ("--link", "nccl", "--shard", "z3=2"), TWO_GPUS),
                               (4, ("--shard", "z1=4,z2=2"), ONE_GPU)):
        name = "-".join((str(ranks),) + groups)
        print(name, flush=True)
        out = os.path.join(top, name)
        said = train(out, ranks, *groups, env=env)
        assert said.count("link=nccl rank=") == ranks, said
        memory_as_planned(said, ranks)
        same(one, out)
    for ranks, begun in ((2, "4---shard-z1=4,z2=2"),):
        print(f"{begun}, goes on with {ranks}", flush=True)
        half = os.path.join(top, f"{begun}-{ranks}")
        os.mkdir(half)
        shutil.copytree(os.path.join(top, begun, "checkpoint-1"), os.path.join(half, "checkpoint-1"))
        train(half, ranks, "--resume")
        same(one, half, FILES[2:])


def refusals():
    print("refusals", flush=True)
    out = os.path.join(top, "no")
    said = train(out, 2, status=2, env={})
    assert "ranks 0 and 1 have the same GPU" in said, said
    said = train(out, 3, status=2, env=TWO_GPUS)
    assert "3 ranks are on this machine, this one as number 0, and it has 2 GPUs" in said, said
    said = train(out, 2, "--device", "cuda:1", status=2, env=TWO_GPUS)
    assert "ranks 0 and 1 have the same GPU (01" in said, said
    said = train(out, 2, "--link", "zmq", status=2)
    assert "--link zmq moves host memory, this rank computes on a GPU" in said, said
    said = train(out, 2, "--link", "nccl", "--device", "cpu", status=2)
    assert "--link nccl moves the memory of GPUs, this rank computes on cpu" in said, said
    said = train(out, 2, status=1, env=dict(ONE_GPU, HZP_NCCL="/nowhere/libnccl.so"))
    assert "/nowhere/libnccl.so" in said, said


class Server:
    """A server that learns; by default of two ranks, and without end."""

    def __init__(self, *options, name="", ranks=2, passes=1000000, **more):
        self.log = os.path.join(top, "serve.log")
        self.state = os.path.join(top, "state" + name)
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [serve, "serve", model, "--ranks", str(ranks), "--port", "0", "--state", self.state, "--device",
                 "cuda", "--rank-slowness", "0", "--update-tokens", "120", "--micro-rows", "60", "--max-running", "1",
                 "--context", "64", "--kv-tokens", "64", "--step-rows", "16", "--passes", str(passes), *options],
                stdout=log, stderr=log, env=dict(os.environ, TMPDIR=top, HZP_GRAPHS="0", **ONE_GPU, **more))
        self.until(lambda: "serves " in self.said())
        self.url = re.search(r"serves \S+ at (http://\S+:\d+)", self.said())[1]

    def said(self):
        with open(self.log, encoding="utf-8") as log:
            return log.read()

    def until(self, holds):
        end = time.monotonic() + HANG
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"ended or hangs ({self.process.poll()}):\n{self.said()}")
            time.sleep(0.05)

    def call(self, path, body=None):
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            return json.loads(answer.read())

    def pid(self, rank):
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = dict(v.split(b"=", 1) for v in path.read_bytes().split(b"\0") if b"=" in v)
                words = (path.parent / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if variables.get(b"RANK", variables.get(b"OMPI_COMM_WORLD_RANK")) == str(rank).encode() and \
                    self.state.encode() in words:
                return int(path.parent.name)
        sys.exit(f"there is no rank {rank}:\n{self.said()}")


def loses():
    """kill -9 of rank 1 while both train: rank 0 says so, aborts NCCL's kernels and goes on serving."""
    print("a lost rank", flush=True)
    server = Server()
    with open(data, "rb") as file:
        server.call("/v1/fine_tuning/examples", file.read())
    server.until(lambda: server.call("/v1/weights")["serving"] > 1)
    os.kill(server.pid(1), signal.SIGKILL)
    server.until(lambda: server.call("/health")["status"] == "degraded")
    ask = json.dumps({"prompt": "The lamps", "max_tokens": 4, "temperature": 0}).encode()
    for _ in range(2):
        assert server.call("/v1/completions", ask)["choices"]
    server.process.send_signal(signal.SIGTERM)
    ended = server.process.wait(HANG)
    assert ended == 3, (ended, server.said())  # 1: the recorder has found mistakes
    assert server.said().count("link=nccl rank=") == 2 and re.search(r"lost rank=1|rank=1 was lost", server.said()), \
        server.said()


def text(server):
    ask = json.dumps({"prompt": "The lamps of", "max_tokens": 20, "temperature": 0}).encode()
    return server.call("/v1/completions", ask)["choices"][0]["text"]


def stop(server):
    server.process.send_signal(signal.SIGTERM)
    ended = server.process.wait(HANG)
    assert ended == 0, (ended, server.said())  # 1: the recorder has found mistakes
    return server.said()


def own_lane(expected):
    """By a plan in which exchanges have a lane: the same text, with no more of NCCL's blocks than the lane has SMs."""
    print("tensor parallelism, exchanges on a lane of their own", flush=True)
    file = os.path.join(top, "plans.json")
    done = subprocess.run([serve, "search", model, "--no-train", "--device", "cuda", "--max-running", "1", "--step-rows",
                           "16", "--tries", "1", "--seconds", "2", "--max-others", "1", "--fresh", "--file", file],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(file, encoding="utf-8") as found:
        plans = json.load(found)
    plans["model"] += ", on 2 ranks"
    for plan in plans["plans"]:
        plan.update(nanos=[1], lanes=[[0] * 4], most_cores=[[0] * 4], joined=[0] * 4, reduce=[0], cores=[116, 0, 0, 0, 0],
                    network_lane=NETWORK)
        plan["predicted"]["confirmed"] = 2  # else it would not be used
    with open(file, "w", encoding="utf-8") as found:
        json.dump(plans, found)
    server = Server("--tensor", "2", "--no-train", "--plans", file, "--check-plans", name="-none")
    assert text(server) == expected, server.said()
    assert re.findall(r"link=nccl .* ctas=(\d+)", stop(server)) == ["16", "16"], server.said()


def together():
    """Ranks that compute each step together: what one rank answers, learned and kept; a lost one ends them."""
    print("tensor parallelism", flush=True)
    server = Server("--no-train", ranks=1, name="-none")
    expected = text(server)
    stop(server)
    own_lane(expected)
    server = Server("--tensor", "2", name="-group", passes=1)
    assert text(server) == expected, server.said()
    with open(data, "rb") as file:
        last = server.call("/v1/fine_tuning/examples", file.read())["last"]
    server.until(lambda: server.call("/v1/weights")["learned_through"] == last)
    taught = text(server)
    losses = [float(x) for x in re.findall(r"update .*loss=(\S+)", server.said())]
    assert losses and losses[-1] < losses[0], losses
    with urllib.request.urlopen(server.url + "/metrics", timeout=HANG) as answer:
        ahead = re.search(r"^hzpserve_ahead_steps_total(?:{[^}]*})? (\S+)$", answer.read().decode(), re.M)
    assert ahead and float(ahead[1]) > 0, ahead  # records travel while the step before them runs
    assert stop(server).count("link=nccl rank=") == 4  # serving's collectives have their own link, training's too
    for options, ranks in ((("--tensor", "2"), 2), ((), 1)):
        server = Server(*options, ranks=ranks, name="-group", passes=1)
        assert text(server) == taught, (ranks, server.said())
        stop(server)
    server = Server("--tensor", "2", "--no-train", name="-none")
    memory_as_planned(server.said(), 1)  # members do not say
    os.kill(server.pid(1), signal.SIGKILL)
    end = server.process.wait(HANG)
    assert end == 3 and re.search(r"ranks failed: .*rank 1", server.said()), (end, server.said())


def beside():
    """Two groups of ranks that compute together learn, in the ordered mode, byte by byte what one group learns."""
    print("tensor parallelism, two groups", flush=True)
    kept = []
    for ranks in (2, 4):
        server = Server("--tensor", "2", "--ordered", "--check-plans", name=f"-beside-{ranks}", ranks=ranks, passes=1)
        with open(data, "rb") as file:
            last = server.call("/v1/fine_tuning/examples", b"".join(file.readlines()[:6]))["last"]
        server.until(lambda: server.call("/v1/weights")["learned_through"] == last)
        said = stop(server)
        # a group's two, and with two groups the one between them
        assert said.count("link=nccl rank=") == (4 if ranks == 2 else 12), said
        found = re.findall(r"memory rank=(\d+) allocated_bytes=(\d+) planned_bytes=(\d+)", said)
        assert [int(rank) for rank, _, _ in sorted(found)] == ([0] if ranks == 2 else [0, 2]), said
        for _, allocated, planned in found:
            assert abs(int(allocated) - int(planned)) <= int(planned) / 100, said
        newest = re.findall(r"checkpoint version=(\d+)", said)[-1]
        kept.append(next(pathlib.Path(server.state).rglob(f"checkpoint-{newest}")))
    same(kept[0], kept[1], ("model.safetensors", "trainer.safetensors"))


def steady():
    """Products are timed on each rank, by steps that all run before the first request, and none later: the recorder
    fails where an event is made then."""
    print("tensor parallelism, timed", flush=True)
    kept = os.path.join(top, "kept")
    server = Server("--tensor", "2", "--max-running", "4", "--kv-tokens", "256", "--check-plans", name="-timed", passes=1,
                    HZP_CUDA_TUNE="", HZP_FAKE_SAY="1", XDG_CACHE_HOME=kept)
    first = text(server)
    products = [int(n) for n in re.findall(r"recorder: steady after (\d+) products", server.said())]
    assert len(products) == 2 and min(products) > 100, (products, server.said())
    told = set(re.findall(r"warm-up .*told_steps=(\d+)", server.said()))
    assert len(told) == 1 and int(told.pop()) > 4, server.said()
    with open(data, "rb") as file:
        last = server.call("/v1/fine_tuning/examples", file.read())["last"]
    server.until(lambda: server.call("/v1/weights")["learned_through"] == last)
    text(server)
    stop(server)
    server = Server("--no-train", ranks=1, name="-timed-alone")
    assert text(server) == first, server.said()
    stop(server)


with tempfile.TemporaryDirectory() as top:
    data = os.path.join(top, "data.jsonl")
    write_data(data)
    model = first_layers(whole_model, os.path.join(top, "model"), 2)  # emulated kernels take most of the time
    same_bytes()
    refusals()
    loses()
    together()
    beside()
    steady()
