#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several groups of ranks that compute each step together (--ranks above --tensor): they learn beside each other what one
group learns, in the ordered mode byte by byte; a gate, checkpoints and signals as with one group; the death of any rank
ends all, or with --restart all start again.

    test_mesh.py HZPSERVE MODEL LINK...    links: mpi, zmq
"""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error

from tensor_server import HANG, LEARNING, LESSONS, Server, serve, server_until, teach

ROUNDS = ["--passes", "16", "--micro-rows", "16", "--update-tokens", "60"]  # several micro-batches in an update


def mesh(ranks, link, *options):
    return ["--ranks", str(ranks), "--tensor", "2", "--link", link, "--threads", "1", *options]


def computed(log, ranks, updates):
    """Every rank has learned each update, and has published it."""
    for rank in range(1, ranks):
        found = re.search(rf"computed rank={rank} steps=\d+ rows=\d+ updates=(\d+) versions=(\d+)", log) or \
            re.search(rf"learned rank={rank} rows=\d+ optimizer_step=((\d+))", log)
        assert found and found[1] == found[2] == str(updates), (rank, updates, log)


def learned(link, ranks, options):
    """What a mesh of so many ranks has learned: the updates, and the bytes of weights and of the optimizer's state."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-mesh-") as state:
        server = Server(*mesh(ranks, link, "--ordered", "--check-plans"), *options, learns=True, state=state)
        _, after, updates = teach(server)
        now = json.loads(server.get("/v1/weights"))["serving"]
        status, got = server.post(f"/v1/weights/{now}/export?timeout=600", '{"directory": "mesh"}')
        assert status == 200, (status, got)
        weights = next(pathlib.Path(state).rglob("mesh/model.safetensors")).read_bytes()
        log = server.end()
        computed(log, ranks, len(updates))
        moments = next(pathlib.Path(state).rglob(f"checkpoint-{now}/trainer.safetensors")).read_bytes()
        return updates, after, weights, moments, sum(int(rows) for rows in re.findall(r"learned rank=\d+ rows=(\d+)", log))


def ordered(link):
    """The same bytes, whatever the number of groups, also where a group has no micro-batch in a round."""
    for options in (ROUNDS, LEARNING):
        one = learned(link, 2, options)
        for ranks in (4, 6) if link == "zmq" and options == ROUNDS else (4,):
            got = learned(link, ranks, options)
            assert got[:4] == one[:4], (ranks, options, got[:2], one[:2])
            assert got[4] > 0 or options == LEARNING, "the other groups computed nothing"
    print(f"{link}: {len(one[0])} updates, their weights and moments have one group's bytes")


def learns(link):
    """Without an order of the sums the losses are those of one group but for rounding, while clients stream."""
    seen = []
    for ranks in (2, 4):
        server = Server(*mesh(ranks, link), *ROUNDS, learns=True)
        wrong, stop = [], threading.Event()

        def client():
            while not stop.is_set():
                status, got = server.post("/v1/completions", json.dumps(
                    {"prompt": "The river", "max_tokens": 30, "temperature": 0.9, "ignore_eos": True}))
                if status != 200 or got["usage"]["completion_tokens"] != 30 or got["hzpserve"]["staleness"] > 1:
                    wrong.append((status, got))

        clients = [threading.Thread(target=client) for _ in range(2)]
        for c in clients:
            c.start()
        seen.append(teach(server))
        stop.set()
        for c in clients:
            c.join()
        computed(server.end(), ranks, len(seen[-1][2]))
        assert not wrong, wrong[:3]
    assert seen[0][:2] == seen[1][:2] and len(seen[0][2]) == len(seen[1][2]), seen
    for one, two in zip(seen[0][2], seen[1][2]):
        assert one[0] == two[0] and one[3:] == two[3:], (one, two)
        for a, b in zip(one[1:3], two[1:3]):
            assert abs(float(a) - float(b)) <= 0.01 * float(b) + 0.001, (one, two)
    print(f"{link}: {len(seen[1][2])} updates of two groups as of one, loss {seen[1][2][0][1]} to {seen[1][2][-1][1]}")


def gated(link):
    """Rank 0's group evaluates; a lesson that its gate refuses all groups give up, all updates of it."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-mesh-") as folder:
        held = pathlib.Path(folder) / "held.jsonl"
        held.write_text('{"text": "A dog saw a cat and the cat ran home.", "tag": "pets"}\n{"text": "A bird sang of rain."}\n')
        server = Server(*mesh(4, link, "--passes", "2", "--micro-rows", "64", "--gate", str(held), "--gate-max-rise", "0.5",
                              "--lr", "0.3"), learns=True)
        ask = {"prompt": "The river", "max_tokens": 16, "temperature": 0}
        before = server.complete(ask)
        for lesson in (1, 2):
            status, got = server.post("/v1/fine_tuning/examples?wait=served&timeout=600",
                                      json.dumps({"text": "The moon is made of green cheese. " * 3}))
            assert status == 200 and not got["served"] and got["rejected"] == [lesson], got
            assert server.complete(ask) == before
        log = server.end()
        for rank in (1, 3):
            assert re.search(rf"computed rank={rank} steps=\d+ rows=\d+ updates=4 versions=0", log), log
    print(f"{link}: two groups gave up 2 lessons of 2 updates that the gate refused")


def keeps(link):
    """What two groups have learned serves in one process and in two groups again; a kill of any rank loses no example."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-mesh-state-") as state:
        server = Server(*mesh(4, link), *ROUNDS, learns=True, state=state)
        _, after, updates = teach(server)
        server.end()
        for options in (mesh(4, link), ["--threads", "1"]):
            server = Server(*options, *ROUNDS, learns=True, state=state)
            weights = json.loads(server.get("/v1/weights"))
            assert weights["serving_optimizer_step"] == len(updates), (options, weights)
            assert [server.complete({"prompt": prompt, "max_tokens": 16, "temperature": 0})
                    for prompt, _ in LESSONS] == after, options
            server.end()
        for rank in range(4):
            server = Server(*mesh(4, link, "--passes", "100000", "--micro-rows", "64"), learns=True, state=state)
            now = server.number("hzpserve_weights_version")
            if rank == 0:
                status, got = server.post("/v1/fine_tuning/examples", json.dumps({"text": "A dog saw a cat. " * 4}))
                assert status == 202, got
            server_until(server, lambda: server.number("hzpserve_weights_version") > now + 3)
            os.kill(server.pid(rank), signal.SIGKILL)
            log = server.end(status=None if rank == 0 or link == "mpi" else 3, ask=False)
            assert rank == 0 or link == "mpi" or re.search(rf"rank[ =]{rank}\b", log), log
            assert not re.search("device failed", log), log
        server = Server(*mesh(4, link, "--passes", "100000", "--micro-rows", "64"), learns=True, state=state)
        now = server.number("hzpserve_weights_version")
        server_until(server, lambda: server.number("hzpserve_weights_version") > now + 3)
        assert json.loads(server.get(f"/v1/fine_tuning/examples/{got['last']}"))["status"], got
        log = server.end()
        assert re.search(r"opened dir=.* queued_again=1 ", log), log
    print(f"{link}: what two groups learned serves again; four kills lost no example")


def starts_again():
    """With --restart the death of any rank, also of a group that only learns, starts all again: clients' answers come."""
    server = Server(*mesh(4, "zmq", "--restart", "5", "--micro-rows", "64"), learns=True)
    ask = {"prompt": "Once", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    for turn, rank in enumerate((3, 2, 1, 0)):
        status, got = server.post("/v1/fine_tuning/examples?wait=served&timeout=600", '{"text": "A dog saw a cat."}')
        assert status == 200, got
        os.kill(server.pid(rank), signal.SIGKILL)
        assert server.complete(ask)
        server_until(server, lambda: server.log.read_text().count("learns with rank=0 as rank=2") == turn + 2)
    log = server.end()
    assert all(log.count(f"restart rank={rank} ") == 4 for rank in range(4)), log
    print("zmq: all ranks of two groups started again after each of four kills")


def hurries(link):
    """A second signal ends requests at once; the groups end what they compute together, and then in good order."""
    for turn in range(2):
        server = Server(*mesh(4, link, "--micro-rows", "200", "--link-throttle", "20M,latency=1"), learns=True)
        text = " ".join("a dog saw a cat and ran home".split() * 5)
        status, _ = server.post("/v1/fine_tuning/examples", f'{{"text": "{text}"}}\n' * 9, "application/x-ndjson")
        assert status == 202, status

        def client():
            try:
                server.stream({"prompt": "The river", "max_tokens": 200, "ignore_eos": True})
            except (OSError, urllib.error.URLError, http.client.HTTPException, KeyError):
                pass

        clients = [threading.Thread(target=client) for _ in range(3)]
        for c in clients:
            c.start()
        time.sleep(0.6 + 0.3 * turn)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        log = server.end()
        for c in clients:
            c.join()
        assert "ended by an error" not in log and not re.search("hzpserve: rank [123]:", log), log
    print(f"{link}: hurried stops in the middle of what two groups compute")


for name in sys.argv[3:]:
    ordered(name)
    learns(name)
    gated(name)
    keeps(name)
    hurries(name)
if "zmq" in sys.argv[3:]:
    starts_again()
