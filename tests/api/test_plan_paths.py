#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hzpserve plan NODES.json: paths of micro-batches over slow links, and errors that name the member.

    test_plan_paths.py HZPSERVE
"""
import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

GOOD = {
    "micro_batches": 8, "skip": 0.33, "bytes": 8e6, "kept": 1,
    "nodes": [{"stage": s, "memory": 3, "forward": 0.4, "head": 0.1} for s in (0, 0, 1, 1, 2, 2)],
    "links": [{"from": a, "to": b, "latency": 0.05, "rate": 1e7 if (a + b) % 2 else 1e8}
              for a in range(6) for b in range(a)],
}


def plan(problem):
    with tempfile.TemporaryDirectory() as there:
        path = pathlib.Path(there) / "nodes.json"
        path.write_text(json.dumps(problem))
        return subprocess.run([BINARY, "plan", str(path)], capture_output=True, text=True, timeout=600)


def check_plan():
    done = plan(GOOD)
    out = done.stdout
    assert done.returncode == 0 and out == plan(GOOD).stdout, done
    paths = [list(map(int, line.split(":")[1].split())) for line in out.splitlines()
             if line.startswith("micro-batch")]
    assert len(paths) == 8 and all(len(path) == 2 and path[0] in (0, 1) for path in paths), out
    visits = [sum(path[1] // 2 == stage for path in paths) for stage in (1, 2)]
    assert visits == [4, 4], visits
    for n in range(6):
        ops = re.search(fr"^node {n}, stage {n // 2}:(.*)$", out, re.M)[1].split()
        wanted = [f"{kind}{m}" for m, path in enumerate(paths) if n in path
                  for kind in ("FHB" if n < 2 else "FB")]
        assert sorted(ops) == sorted(wanted), (n, ops)
    seconds = re.search(r"^([\d.]+) s; the full pipeline ([\d.]+) s, with planned paths ([\d.]+) s$",
                        out, re.M)
    mine, full, best_full = map(float, seconds.groups())
    assert mine < best_full <= full, out


def check_errors():
    def bad(says, change):
        problem = copy.deepcopy(GOOD)
        change(problem)
        done = plan(problem)
        assert done.returncode in (1, 2), done
        assert says in done.stderr and ".json: " in done.stderr and done.stderr.count("\n") == 1, (says, done.stderr)

    bad("nodes: no list", lambda p: p.pop("nodes"))
    bad("links: there is no list", lambda p: p.pop("links"))
    bad("links[0]: from, to", lambda p: p["links"][0].update({"to": 6}))
    bad("from node 0 to 1", lambda p: p["links"].pop(0))
    bad("from node 0 to 1", lambda p: p["links"][0].update({"rate": 0}))
    bad("node 2: memory 0", lambda p: p["nodes"][2].update({"memory": 0}))
    bad("node 2: a forward", lambda p: p["nodes"][2].update({"forward": "soon"}))
    bad("stage 1 is on no node", lambda p: [n.update({"stage": 2}) for n in p["nodes"][2:4]])
    bad("micro-batches", lambda p: p.pop("micro_batches"))
    bad("skip", lambda p: p.update({"skip": 1}))
    bad("swaps", lambda p: p.update({"swaps": 3}))
    missing = subprocess.run([BINARY, "plan", "/nowhere/nodes.json"], capture_output=True, text=True, timeout=600)
    assert missing.returncode == 1 and "/nowhere/nodes.json" in missing.stderr, missing


BINARY = sys.argv[1]
check_plan()
check_errors()
print("paths are planned")
