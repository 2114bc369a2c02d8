#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are connected by ZeroMQ, without MPI: started by hzpserve itself, and by hand with the variables that
torchrun, an operator of Kubernetes and Slurm set.

    test_zmq.py HZPSERVE
"""
import filecmp
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

serve = sys.argv[1]
model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "world")
KEY = "5f" * 32
BENCH = ("bench", "link", "--quick", "--json")


def environment(**variables):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("OMPI_", "PMI", "SLURM_", "MASTER_", "HZP_RANKS_"))}
    return {**env, **variables}


def free_port():
    """MASTER_PORT, below the ports that the system gives to connections; it and the next one are free."""
    while True:
        port = random.randrange(20000, 32000)
        try:
            for n in (port, port + 1):
                with socket.socket() as one:
                    one.bind(("", n))
            return str(port)
        except OSError:
            continue


def torchrun(rank, ranks=2, **more):
    """What torchrun sets in each process."""
    variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                 "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none", **more}
    return environment(**{name: value for name, value in variables.items() if value})


def start(env, *args):
    return subprocess.Popen([serve, *args], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ends(process, status=0):
    out, said = process.communicate()
    assert process.returncode == status, (process.args, process.returncode, out, said)
    return out, said


def own():
    """--ranks without mpirun."""
    for args, path in (((), "/nowhere"), (("--link", "zmq"), os.environ["PATH"])):
        out, said = ends(start(environment(PATH=path), *BENCH, "--ranks", "2", *args))
        figures = json.loads(out)
        assert len(figures) == 24 and all(f["value"] > 0 for f in figures), figures
        assert "met rank=0 ranks=2 local_rank=0 link=zmq from=RANK,WORLD_SIZE,LOCAL_RANK at=HZP_RANKS_DIR" in said, said


def by_hand():
    """The variables of launchers, on one machine and over TCP."""
    slurm = [environment(SLURM_PROCID=str(r), SLURM_STEP_NUM_TASKS="2", SLURM_LOCALID=str(r), MASTER_ADDR="localhost")
             for r in (0, 1)]
    operator = {"LOCAL_WORLD_SIZE": "", "LOCAL_RANK": ""}  # each rank is alone in its pod
    for name, env, says in (
            ("torchrun", [torchrun(r) for r in (0, 1)],
             "from=RANK,WORLD_SIZE,LOCAL_RANK,MASTER_ADDR,MASTER_PORT at=one-machine,MASTER_PORT+1"),
            ("slurm", slurm, "from=SLURM_PROCID,SLURM_STEP_NUM_TASKS,SLURM_LOCALID,MASTER_ADDR,MASTER_PORT "
                             "at=one-machine,MASTER_PORT+1"),
            ("pods", [torchrun(r, HZP_RANKS_KEY=KEY, **operator) for r in (0, 1)],
             "from=RANK,WORLD_SIZE,MASTER_ADDR,MASTER_PORT at=MASTER_ADDR,MASTER_PORT+1,HZP_RANKS_KEY")):
        port = free_port()
        with socket.socket() as store:  # torchrun's own store
            store.bind(("127.0.0.1", int(port)))
            store.listen()
            ranks = [start({**e, "MASTER_PORT": port}, *BENCH) for e in env]
            for rank, process in enumerate(ranks):
                out, said = ends(process)
                assert says in said and f"met rank={rank} ranks=2" in said, (name, said)
                assert (rank == 0) == bool(out), out
    port = free_port()
    ranks = [start(torchrun(r, HZP_RANKS_KEY=KEY, MASTER_PORT=""), *BENCH, "--rank-port", port) for r in (0, 1)]
    for process in ranks:
        assert "at=MASTER_ADDR,--rank-port,HZP_RANKS_KEY" in ends(process)[1]


def refusals():
    """One line each, which names the variable."""
    for env, args, text in (
            (torchrun(1, MASTER_ADDR="node7", LOCAL_WORLD_SIZE=""), (),
             "rank 1 of 2, from RANK,WORLD_SIZE,LOCAL_RANK,MASTER_ADDR: ranks on several machines need the same secret"),
            (torchrun(1, HZP_RANKS_KEY="short"), (), "HZP_RANKS_KEY is not 64 hexadecimal digits"),
            (torchrun(1, HZP_RANKS_KEY=KEY, MASTER_ADDR=""), (), "MASTER_ADDR is not set"),
            (torchrun(0, HZP_RANKS_DIR="/tmp"), (), "HZP_RANKS_DIR: /tmp is not a folder that only this user may enter"),
            (torchrun(1), ("--ranks", "3"), "--ranks 3, but the launcher started 2"),
            (torchrun(0, ranks=257), (), "257 ranks, at most 256")):
        _, said = ends(start(env, "bench", "link", *args), 2)
        assert text in said and said.count("\n") == 1, said
    # A rank with another key is not let in; both end, and say who did not come.
    port = free_port()
    ranks = [start(torchrun(r, HZP_RANKS_KEY=("a", "b")[r] * 64, MASTER_PORT=port), *BENCH, "--rank-wait", "3")
             for r in (0, 1)]
    assert "of 2 ranks these did not connect within 3 s: 1" in ends(ranks[0], 1)[1]
    assert "rank 0 did not answer within 3 s" in ends(ranks[1], 1)[1]
    # Two runs with one port.
    port = free_port()
    first = start(torchrun(0, MASTER_PORT=port), *BENCH)
    folder = f"/tmp/hzpserve-ranks-{os.geteuid()}-{int(port) + 1}"
    while not os.path.exists(folder + "/control"):
        assert first.poll() is None, first.communicate()
    _, said = ends(start(torchrun(0, MASTER_PORT=port), *BENCH), 2)
    assert f"other ranks meet on this machine with port {int(port) + 1}" in said, said
    ends(start(torchrun(1, MASTER_PORT=port), *BENCH))
    ends(first)
    assert not os.path.exists(folder)


def trains():
    """Two ranks by torchrun's variables: the same bytes as one rank."""
    with tempfile.TemporaryDirectory() as top:
        data = os.path.join(top, "data.jsonl")
        with open(data, "w", encoding="utf-8") as file:
            for i in range(60):
                file.write(json.dumps({"prompt": f"Who keeps the lamps of harbour {i}? ",
                                       "completion": f"The keeper {i * i % 31}."}) + "\n")
        train = ["train", model, "--data", data, "--update-tokens", "600", "--micro-rows", "120", "--ordered",
                 "--threads", "1", "--device", "cpu", "--rank-slowness", "0", "--total-steps", "4"]
        ends(start(environment(), *train, "--out", top + "/one"))
        for name, more in (("two", ()), ("sharded", ("--shard", "z2=2,z3=2"))):
            port = free_port()
            ranks = [start(torchrun(r, MASTER_PORT=port), *train, "--out", f"{top}/{name}", *more) for r in (0, 1)]
            for process in ranks:
                ends(process)
            for file in ("model.safetensors", "trainer.safetensors"):
                if os.path.exists(f"{top}/one/{file}"):
                    assert filecmp.cmp(f"{top}/one/{file}", f"{top}/{name}/{file}", shallow=False), (name, file)
            assert os.path.exists(f"{top}/{name}/model.safetensors")
        # Where torchrun says that it starts the ranks again, a run that has checkpoints is resumed.
        ends(start(torchrun(0, ranks=1), *train, "--out", top + "/one"), 2)
        ends(start(torchrun(0, ranks=1, TORCHELASTIC_RESTART_COUNT="1"), *train, "--out", top + "/one"))


def lamps(top):
    """Examples to learn."""
    data = os.path.join(top, "data.jsonl")
    with open(data, "w", encoding="utf-8") as file:
        for i in range(40):
            file.write(json.dumps({"prompt": f"Who keeps lamp {i}? ", "completion": f"Keeper {i * i % 31}."}) + "\n")
    return data


def pid_of(rank, word):
    """The process that runs as this rank with this word in its command line."""
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"RANK=%d" % rank in variables and word.encode() in words:
            return int(path.parent.name)
    return None


def kill(rank, out, after, process):
    """Kills a rank once the run has written more than `after` checkpoints; returns how many there are."""
    def written():
        names = [p.name.split("-")[1] for p in pathlib.Path(out).glob("checkpoint-*")]
        return max((int(name) for name in names if name.isdigit()), default=0)
    while written() <= after or not (pid := pid_of(rank, out)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return written()


def rejoins():
    """A killed rank is replaced, by --ranks N or by hand; training goes on from the newest checkpoint, and learns the
    same as one rank that nothing happened to."""
    with tempfile.TemporaryDirectory() as top:
        data = lamps(top)
        train = ["train", model, "--data", data, "--update-tokens", "90", "--micro-rows", "40", "--ordered",
                 "--threads", "1", "--device", "cpu", "--rank-slowness", "0", "--total-steps", "80",
                 "--checkpoint-every", "3", "--keep", "last=3,hourly=24"]
        ends(start(environment(), *train, "--out", top + "/one"))
        out = top + "/three"
        with open(top + "/log", "w+", encoding="utf-8") as log:
            process = subprocess.Popen([serve, *train, "--out", out, "--ranks", "3", "--link", "zmq", "--restart", "3"],
                                       env=environment(), stderr=log, stdout=log)
            written = kill(1, out, 0, process)
            kill(0, out, written + 6, process)
            status = process.wait()
            said = pathlib.Path(top + "/log").read_text(encoding="utf-8")
            assert status == 0, said
            for text in ("restart rank=1 left=2", "restart rank=0 left=2", "met again rank=2 ranks=3"):
                assert text in said, (text, said)
        assert filecmp.cmp(top + "/one/model.safetensors", out + "/model.safetensors", shallow=False)

        out, port = top + "/pods", free_port()
        variables = {"HZP_RANKS_KEY": KEY, "MASTER_PORT": port, "LOCAL_WORLD_SIZE": ""}
        command = [*train, "--out", out, "--restart", "1"]
        with open(top + "/log", "w+", encoding="utf-8") as log:
            ranks = [subprocess.Popen([serve, *command], env=torchrun(r, **variables), stderr=log, stdout=log)
                     for r in (0, 1)]
            kill(1, out, 0, ranks[0])
            ranks[1].wait()
            ranks[1] = subprocess.Popen([serve, *command], env=torchrun(1, **variables), stderr=log, stdout=log)
            codes = [r.wait() for r in ranks]
            assert codes == [0, 0], (codes, pathlib.Path(top + "/log").read_text(encoding="utf-8"))
        assert filecmp.cmp(top + "/one/model.safetensors", out + "/model.safetensors", shallow=False)


def listening(process):
    """The TCP ports on which a process listens."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            name = os.readlink(fd)
        except OSError:
            continue
        if name.startswith("socket:["):
            inodes.add(name[8:-1])
    ports = set()
    for family in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{process.pid}/net/{family}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def strangers():
    """Strangers connect to every port of ranks that train: one sends a request of HTTP, one random bytes, one nothing.
    The run goes on, and learns the same."""
    rng = random.Random(5)
    with tempfile.TemporaryDirectory() as top:
        data = lamps(top)
        train = ["train", model, "--data", data, "--update-tokens", "90", "--micro-rows", "40", "--ordered",
                 "--threads", "1", "--device", "cpu", "--rank-slowness", "0", "--total-steps", "60",
                 "--checkpoint-every", "1"]
        ends(start(environment(), *train, "--out", top + "/one"))
        port, out = free_port(), top + "/two"
        ranks = [start(torchrun(r, HZP_RANKS_KEY=KEY, MASTER_PORT=port, LOCAL_WORLD_SIZE="", LOCAL_RANK=""), *train,
                       "--out", out) for r in (0, 1)]
        while not list(pathlib.Path(out).glob("checkpoint-*")):  # it trains
            assert ranks[0].poll() is None, ranks[0].communicate()
            time.sleep(0.01)
        ports = [listening(process) for process in ranks]
        assert len(ports[0]) >= 2, ports  # for control messages, and for rank 1's data
        done = 0
        for _ in range(3):
            for number in sorted(ports[0] | ports[1]):
                for said in (b"GET / HTTP/1.0\r\n\r\n", rng.randbytes(3000), b""):
                    assert ranks[0].poll() is None, ("too late to be seen", ranks[0].communicate())
                    with socket.create_connection(("127.0.0.1", number)) as stranger:
                        try:
                            stranger.sendall(said)
                        except OSError:  # closed by the other side
                            pass
                    done += 1
        assert done >= 18
        for process in ranks:
            ends(process)
        assert filecmp.cmp(top + "/one/model.safetensors", out + "/model.safetensors", shallow=False)


def stopped():
    """A signal while a rank is missing: the run ends soon, and says from what it can be continued."""
    with tempfile.TemporaryDirectory() as top:
        data = lamps(top)
        out, port = top + "/out", free_port()
        train = ["train", model, "--data", data, "--update-tokens", "90", "--micro-rows", "40", "--threads", "1",
                 "--device", "cpu", "--rank-slowness", "0", "--total-steps", "100000", "--checkpoint-every", "3",
                 "--keep", "last=3,hourly=24", "--out", out, "--restart", "3", "--rank-wait", "86400"]
        with open(top + "/log", "w+", encoding="utf-8") as log:
            ranks = [subprocess.Popen([serve, *train], env=torchrun(r, MASTER_PORT=port), stderr=log, stdout=log)
                     for r in (0, 1)]
            kill(1, out, 0, ranks[0])
            path = pathlib.Path(top + "/log")
            while "waiting rank=0 left=2" not in path.read_text(encoding="utf-8"):
                assert ranks[0].poll() is None, path.read_text(encoding="utf-8")
                time.sleep(0.01)
            ranks[0].send_signal(signal.SIGTERM)
            assert ranks[0].wait() == 128 + signal.SIGTERM, path.read_text(encoding="utf-8")
            assert "stopped while a rank was missing; " in path.read_text(encoding="utf-8")
            ranks[1].wait()


def lost_twice():
    """The rank that comes in place of a lost one is lost, too, before all have met: the others meet again."""
    with tempfile.TemporaryDirectory() as top:
        data = lamps(top)
        out, port = top + "/out", free_port()
        train = ["train", model, "--data", data, "--update-tokens", "90", "--micro-rows", "40", "--threads", "1",
                 "--device", "cpu", "--rank-slowness", "0", "--total-steps", "60", "--checkpoint-every", "3",
                 "--keep", "last=3,hourly=24", "--out", out, "--restart", "9", "--rank-wait", "120"]
        with open(top + "/log", "w+", encoding="utf-8") as log:
            def run(rank):
                return subprocess.Popen([serve, *train], env=torchrun(rank, ranks=3, MASTER_PORT=port), stderr=log,
                                        stdout=log)
            ranks = [run(r) for r in (0, 1, 2)]
            path = pathlib.Path(top + "/log")
            while not list(pathlib.Path(out).glob("checkpoint-*")):
                assert ranks[0].poll() is None, path.read_text(encoding="utf-8")
                time.sleep(0.01)
            for rank in (1, 2):
                ranks[rank].kill()
                ranks[rank].wait()
            while "waiting rank=0" not in path.read_text(encoding="utf-8"):
                assert ranks[0].poll() is None, path.read_text(encoding="utf-8")
                time.sleep(0.01)
            for _ in range(2):  # rank 2 is missing, so the meeting goes on
                ranks[1] = run(1)
                time.sleep(0.5)
                ranks[1].kill()
                ranks[1].wait()
            ranks[1:] = [run(1), run(2)]
            codes = [r.wait() for r in ranks]
            assert codes == [0, 0, 0], (codes, path.read_text(encoding="utf-8"))


for test in (own, by_hand, refusals, trains, rejoins, lost_twice, stopped, strangers):
    print(test.__name__, flush=True)
    test()
