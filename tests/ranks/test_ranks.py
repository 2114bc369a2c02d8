#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes: started by hzpserve itself and by mpirun, ranks that do not agree, and ranks
that die or stop.

    test_ranks.py HZPSERVE RANKS_MPI
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

serve, job = sys.argv[1:3]
RUN = ["mpirun", "--mca", "plm", "isolated", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def run(*command, env=None, status=0):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if status is not None and done.returncode != status:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}")
    return done


def says(done, *texts):
    for text in texts:
        if text not in done.stdout + done.stderr:
            sys.exit(f"{text!r} is not in\n{done.stdout}\n{done.stderr}")


def own_launcher():
    """--ranks starts the ranks; every operation is measured, once, by rank 0."""
    for ranks in (2, 4):
        done = run(serve, "bench", "link", "--ranks", str(ranks), "--link", "mpi", "--quick", "--json")
        figures = json.loads(done.stdout)
        names = [f["name"] for f in figures]
        assert len(names) == len(set(names)) == 24, names
        assert all(f["value"] > 0 for f in figures), figures
        says(done, f"met rank=0 ranks={ranks}", f"met rank={ranks - 1} ranks={ranks}",
             "from=OMPI_COMM_WORLD_RANK,OMPI_COMM_WORLD_SIZE")
    says(run(serve, "bench", "link", "--ranks", "2", "--link", "mpi", "--quick",
             "--link-throttle", "500M"), "2 ranks, link mpi")


def link_rate():
    """A link of 50 MB/s takes at least as long as one."""
    done = run(serve, "bench", "link", "--ranks", "2", "--link", "mpi", "--quick", "--json", "--link-throttle",
               "200M,latency=3")
    for figure in json.loads(done.stdout):
        if figure["unit"] == "GB/s":
            assert figure["value"] <= 0.2 * 1.048576 * 1.001, figure
        else:
            assert figure["value"] >= 3, figure


def one_rank():
    says(run(serve, "bench", "link", status=2), "one rank has no link")
    says(run(serve, "bench", "train", "--ranks", "2", status=2), "--ranks: only bench link runs on several ranks")
    says(run(serve, "bench", "link", "--ranks", "2", "--link", "mpi", env={"PATH": "/nowhere"}, status=1),
         "--ranks 2: neither mpirun nor mpiexec is installed")


def no_ssh():
    """Containers often have none."""
    with tempfile.TemporaryDirectory() as folder:
        for program in ("mpirun", "orted"):
            if shutil.which(program):
                os.symlink(os.path.realpath(shutil.which(program)), f"{folder}/{program}")
        run(serve, "bench", "link", "--ranks", "2", "--link", "mpi", "--quick", env={"PATH": folder})


def disagreements():
    """One clear line for each; the launcher adds its own."""
    for args, text in (
        (["-n", "2", serve, "bench", "link", "--ranks", "3"], "--ranks 3, but the launcher started 2"),
        (["-n", "1", serve, "bench", "link", ":", "-n", "1", serve, "bench", "link", "--lr", "0.5"],
         "the ranks do not agree: rank 1 has --lr 0.5, rank 0 has --lr 0.0001"),
        (["-n", "1", serve, "bench", "link", ":", "-n", "1", serve, "bench", "link", models + "/llama-tied"],
         "the ranks do not agree: rank 1 has model "),
        (["-n", "2", "-x", "RANK=0", "-x", "WORLD_SIZE=4", serve, "bench", "link"],
         "the environment contradicts itself: OMPI_COMM_WORLD_RANK says rank "),
    ):
        says(run(*RUN, *args, status=None), "hzpserve: " + text)


def slow_link():
    """Of two ranks one has a link of 4 MB/s: rank 0 names it, and in what it is slow."""
    with tempfile.TemporaryDirectory() as top:
        data = os.path.join(top, "data.txt")
        with open(data, "w", encoding="utf-8") as file:
            file.write("The keeper of the lamps writes a line in the book of the harbour.\n\n" * 60)
        train = [serve, "train", os.path.join(models, "..", "..", "models", "world"), "--data", data, "--out",
                 os.path.join(top, "out"), "--threads", "1", "--epochs", "1000000", "--rank-slowness", "0"]
        job_ = subprocess.Popen([*RUN, "-n", "1", *train, ":", "-n", "1", *train, "--link-throttle", "4M"],
                                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        seen = []
        for line in job_.stderr:
            seen.append(line)
            if "straggler rank=1 in=link times=" in line:
                break
        else:
            sys.exit("no straggler was named:\n" + "".join(seen[-50:]))
        job_.terminate()
        job_.communicate()


def losses():
    """The others name the rank that died or stopped, and go on."""
    for how in ("die", "stop"):
        for ranks in (2, 4):
            done = run(*RUN, "--enable-recovery", "-n", str(ranks), job, how, status=None)
            for rank in range(ranks - 1):
                says(done, f"rank {rank}: EIO: rank {ranks - 1}: no heartbeat for ")


models = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
if not shutil.which("mpirun"):
    print("no mpirun: skipped")
    sys.exit(77)
for test in (one_rank, own_launcher, no_ssh, link_rate, disagreements, slow_link, losses):
    print(test.__name__, flush=True)
    test()
