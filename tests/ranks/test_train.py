#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Offline training by several processes: in the ordered mode every checkpoint has the same bytes as one
rank's, whatever the groups, and a run goes on at another number of ranks where it was stopped.

    test_train.py HZPSERVE
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

serve = sys.argv[1]
model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "world")
FILES = ("checkpoint-3/trainer.safetensors", "checkpoint-3/model.safetensors",
         "checkpoint-6/trainer.safetensors", "model.safetensors")


def write_data(path):
    with open(path, "w") as file:
        for i in range(60):
            question = f"Who keeps the {i % 7} lamps of the harbour number {i}? "
            file.write(json.dumps({"prompt": question, "completion": f"The keeper {i * i % 31}."}) + "\n")


def train(out, ranks, *args, status=0):
    begin = [] if "--from-scratch" in args else [model]
    command = [serve, "train", *begin, "--data", data, "--out", out, "--update-tokens", "600",
               "--micro-rows", "120", "--checkpoint-every", "3", "--keep", "last=9,hourly=24", "--ordered",
               "--threads", "1", "--device", "cpu", "--rank-slowness", "0",
               "--rank-timeout", "600", *args]
    if ranks > 1:
        command += ["--ranks", str(ranks), "--link", "mpi"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stderr


def memory_as_planned(said, ranks):
    """Every rank has allocated what the lines of its memory plan add up to, within a hundredth (a fiftieth of the
    little that a stage of this model takes: micro-batches' tokens are not planned)."""
    found = {int(r): (int(is_), int(plan)) for r, is_, plan in
             re.findall(r"memory rank=(\d+) allocated_bytes=(\d+) planned_bytes=(\d+)", said)}
    assert found.keys() == set(range(ranks)), said
    for rank, (allocated, planned) in found.items():
        assert abs(allocated - planned) <= planned / (50 if "of stage" in said else 100), (rank, allocated, planned, said)


def same(a, b, files=FILES):
    for name in files:
        if not filecmp.cmp(os.path.join(a, name), os.path.join(b, name), shallow=False):
            sys.exit(f"{name} of {a} and {b} differ")


def pid_of(rank, top):
    """The process of this rank of the run that writes below top."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables and top.encode() in (path / "cmdline").read_bytes():
                return int(path.name)
        except OSError:
            pass
    return None


def killed(rank, like="long", ranks=2, *more):
    """A stage is killed: the run goes on from its newest checkpoint, to the same end."""
    out = os.path.join(top, f"killed-{rank}-{ranks}")
    run = subprocess.Popen([serve, "train", model, "--data", data, "--out", out, "--update-tokens", "600", "--micro-rows",
                            "120", "--checkpoint-every", "3", "--ordered", "--threads", "1", "--device", "cpu",
                            "--rank-slowness", "0", "--total-steps", "40", "--ranks", str(ranks), "--link", "zmq",
                            "--restart", "3", "--shard", f"stages={ranks}", *more], stderr=subprocess.PIPE, text=True)
    while run.poll() is None and not os.path.isdir(os.path.join(out, "checkpoint-6")):
        time.sleep(0.01)
    os.kill(pid_of(rank, out), signal.SIGKILL)
    said = run.communicate(timeout=600)[1]
    assert run.returncode == 0 and "done: 40 updates" in said, said
    assert re.search(r"restart rank=|waiting rank=", said), said
    same(os.path.join(top, like), out, ("model.safetensors",))


if not shutil.which("mpirun"):
    print("no mpirun: skipped")
    sys.exit(77)
with tempfile.TemporaryDirectory() as top:
    data = os.path.join(top, "data.jsonl")
    write_data(data)
    one = os.path.join(top, "one")
    train(one, 1, "--total-steps", "6")
    for ranks, groups in ((2, ()), (2, ("--shard", "z3=2", "--recompute", "layer")), (4, ("--shard", "z1=2")),
                          (4, ("--shard", "z2=2,z3=2")), (2, ("--shard", "stages=2", "--recompute", "mlp")),
                          (4, ("--shard", "stages=4")),
                          (3, ("--shard", "stages=3,speeds=measured"))):
        name = "-".join((str(ranks),) + groups)
        print(name, flush=True)
        out = os.path.join(top, name)
        said = train(out, ranks, "--total-steps", "6", *groups)
        if "stages" in name:
            assert f"of stage {ranks - 1} of {ranks}" in said, said
        else:
            assert f"groups of {ranks} ranks" in said and "; chosen" in said, said
        memory_as_planned(said, ranks)
        same(one, out)
        if ranks == 4:  # goes on with another number of ranks, from the middle
            for other in (1, 2):
                half = os.path.join(top, f"{name}-{other}")
                os.mkdir(half)
                shutil.copytree(os.path.join(out, "checkpoint-3"), os.path.join(half, "checkpoint-3"))
                train(half, other, "--total-steps", "6", "--resume")
                same(one, half, FILES[2:])
    half = os.path.join(top, "half")  # one rank's run goes on in stages
    os.mkdir(half)
    shutil.copytree(os.path.join(one, "checkpoint-3"), os.path.join(half, "checkpoint-3"))
    train(half, 3, "--total-steps", "6", "--resume", "--shard", "stages=3")
    same(one, half, FILES[2:])
    print("from scratch", flush=True)
    scratch = ("--total-steps", "6", "--from-scratch", os.path.join(model, "config.json"), "--tokenizer", model)
    train(os.path.join(top, "scratch-1"), 1, *scratch)
    for groups in ((), ("--shard", "z3=2")):
        out = os.path.join(top, "-".join(("scratch-2",) + groups))
        train(out, 2, *scratch, *groups)
        same(os.path.join(top, "scratch-1"), out, FILES + ("tokenizer.json", "config.json"))
    print("killed", flush=True)
    train(os.path.join(top, "long"), 1, "--total-steps", "40")
    for rank_ in (1, 0):
        killed(rank_)
    print("paths of stages", flush=True)
    skip = ("--skip", "0.25,swap=1", "--shard", "stages=4")
    train(os.path.join(top, "skip"), 4, "--total-steps", "40", *skip)
    updates = [json.loads(line) for line in pathlib.Path(top, "skip", "train.jsonl").read_text().splitlines()]
    assert len(updates) == 40, updates
    for one in updates:
        assert one["layers"] == 3 and re.fullmatch(r"[123](/[123])*", one["left_out"]), one
    killed(2, "skip", 4, *skip)
    print("refusals", flush=True)
    said = train(os.path.join(top, "no"), 2, "--total-steps", "6", "--shard", "z2=3", status=2)
    assert "--shard z2 3 does not divide --ranks 2" in said, said
    for shard, why in (("stages=3", "there are 2 ranks, of which each is a stage"),
                       ("stages=2,z1=2", "cannot be used with --shard z1, z2 or z3")):
        said = train(os.path.join(top, "no"), 2, "--total-steps", "6", "--shard", shard, status=2)
        assert why in said, said
    said = train(os.path.join(top, "no"), 2, "--total-steps", "6", "--rank-slowness", "0.5", status=1)
    assert "times slower than the others (self-test: " in said and "more than --rank-slowness 0.5" in said, said
