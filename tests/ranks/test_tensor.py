#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server whose ranks compute each step together: the same answers as one process gives, to clients that stream,
leave and come at once; a rank that dies is named, and the server ends; a signal ends all in order; settings that
exclude it are refused by name. And a server that learns beside: the same losses as one process, the text that was
taught, while clients stream; a gate that refuses updates.

    test_tensor.py HZPSERVE MODEL LINK...    links: mpi, zmq
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from tensor_server import HANG, LEARNING, LESSONS, Server, model, serve, server_until, teach

GROUP = ["--ranks", "2", "--tensor", "2"]


def bodies():
    """Requests of several kinds, of which many begin alike."""
    luck = random.Random(5)
    starts = ["Where does", "Who lives in", "The river", "What is the"]
    for i in range(40):
        body = {"prompt": luck.choice(starts) + luck.choice([" the", " Anna", " a man", ""]), "max_tokens": luck.randint(1, 40),
                "temperature": luck.choice([0, 0, 0.9]), "seed": i}
        if i % 5 == 1:
            body["presence_penalty"] = 0.5
        if i % 7 == 2:
            body["logit_bias"] = {"9": 2}
        yield body


def at_once(server, what):
    """All of them from a few clients at a time; every sixth client leaves early."""
    texts, todo, lock = [None] * len(what), list(enumerate(what)), threading.Lock()

    def client():
        while True:
            with lock:
                if not todo:
                    return
                i, body = todo.pop()
            if i % 6 == 5:
                server.stream(body, leave=2)
            texts[i] = server.stream(body) if i % 2 else server.complete(body)

    clients = [threading.Thread(target=client) for _ in range(8)]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    return texts


def same_answers(link, expected):
    what = list(bodies())
    server = Server(*GROUP, "--link", link, "--run-ahead", "1" if link == "zmq" else "auto")
    before = server.number("hzpserve_rank_transfers", 1)
    got = at_once(server, what)
    for body, one, group in zip(what, expected, got):
        assert one == group, (body, one, group)
    assert server.number("hzpserve_ranks") == 2
    server_until(server, lambda: server.number("hzpserve_rank_transfers", 1) > before)
    assert json.loads(server.get("/health"))["status"] == "ok"
    time.sleep(6)  # longer than a rank may be silent: a group that waits is not one that is lost
    assert server.complete(what[0]) == expected[0]
    log = server.end()
    steps = re.search(r"computed rank=1 steps=(\d+) rows=(\d+)", log)
    assert steps and int(steps[1]) > 100 and int(steps[2]) > int(steps[1]), log
    print(f"{link}: the same {len(what)} answers; {steps[1]} steps of two ranks, in which {steps[2]} rows were computed")


def loses(link, busy):
    """Rank 1 is killed: requests get an error, the log names the rank, the server ends."""
    server = Server(*GROUP, "--link", link)
    errors = []

    def client():
        try:
            while True:
                server.complete({"prompt": "Where does", "max_tokens": 40, "temperature": 0.9})
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            errors.append(getattr(error, "code", None))

    clients = [threading.Thread(target=client) for _ in range(4 if busy else 0)]
    for c in clients:
        c.start()
    if busy:
        time.sleep(1)
    os.kill(server.pid(1), signal.SIGKILL)
    log = server.end(status=3, ask=False)
    for c in clients:
        c.join()
    assert len(errors) == len(clients) and all(e in (None, 500, 503) for e in errors), errors
    assert re.search(r"ranks failed: .*rank 1", log), log
    assert "device failed" not in log, log
    print(f"{link}: a lost rank ends the server, {'which was busy' if busy else 'which was idle'}; clients saw {errors}")


def starts_again(learns):
    """With --restart all ranks are started again, also those that learn: from the model, because nothing is kept.  The
    relay has the clients' connections meanwhile: answers that were asked for or have begun go on."""
    server = Server(*GROUP, "--link", "zmq", "--restart", "2", learns=learns)
    prompts = ["Where does", "Who lives", "The river", "Once"]
    ask = {"max_tokens": 450, "temperature": 0, "ignore_eos": True}
    if learns:
        assert server.post("/v1/fine_tuning/examples?wait=served&timeout=600", '{"text": "A dog saw a cat."}')[0] == 200
    before = [server.complete({"prompt": p, **ask}) for p in prompts]
    begun, ended = threading.Semaphore(0), []

    def whole(prompt):
        return server.complete({"prompt": prompt, **ask})

    def stream(prompt):
        text, end = "", None
        request = urllib.request.Request(f"http://{server.host}/v1/completions", json.dumps(
            {"prompt": prompt, "stream": True, **ask}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            for event in answer:
                if event.startswith(b"data: {"):
                    choice = json.loads(event[6:])["choices"][0]
                    text, end = text + choice["text"], choice["finish_reason"] or end
                    begun.release()
        ended.append(prompt)
        return text if end == "length" else f"{text} has no end"

    with concurrent.futures.ThreadPoolExecutor(2 * len(prompts)) as threads:
        streams = [threads.submit(stream, p) for p in prompts]
        wholes = [threads.submit(whole, p) for p in prompts]
        begun.acquire()
        os.kill(server.pid(1), signal.SIGKILL)
        held = len(prompts) - len(ended)
        for got in (streams, wholes):
            texts = [one.result() for one in got]
            assert texts == before or learns and all(texts), (texts, before)
    server_until(server, lambda: server.log.read_text().count("computes with rank=0") == 2)
    log = server.end()
    assert "restart rank=0" in log and "restart rank=1" in log, log
    assert not held or "sent again" in log, log
    print(f"a killed rank of a group: {held} of {len(prompts)} streams went on, {len(wholes)} whole answers came")


def hangs():
    """A rank that stands still and does not end is killed, and all start again."""
    server = Server(*GROUP, "--link", "zmq", "--restart", "2", "--rank-timeout", "2")
    # Rank 0 serves as soon as all have met; the line of rank 1 that is counted below may come later.
    server_until(server, lambda: server.log.read_text().count("computes with rank=0") == 1)
    stopped = server.pid(1)
    os.kill(stopped, signal.SIGSTOP)
    server_until(server, lambda: server.log.read_text().count("computes with rank=0") == 2)
    server_until(server, lambda: not pathlib.Path(f"/proc/{stopped}").exists())
    log = server.end()
    assert "rank=1 hangs" in log and "restart rank=0" in log and "restart rank=1" in log, log


def learns(link, expected):
    """The group learns what one process learns; what it cannot do it says."""
    server = Server(*GROUP, "--link", link, "--check-plans", *LEARNING, learns=True)
    before, after, updates = teach(server)
    assert before == expected[0] and after == expected[1], (before, after, expected)
    assert after == [text for _, text in LESSONS], after
    assert len(updates) == len(expected[2]) >= 8, updates
    for group, one in zip(updates, expected[2]):
        assert group[0] == one[0] and group[3:] == one[3:], (group, one)
        for a, b in zip(group[1:3], one[1:3]):
            assert abs(float(a) - float(b)) <= 0.01 * float(b) + 0.001, (group, one)
    now = json.loads(server.get("/v1/weights"))["serving"]
    for kind, body in (("activate", "{}"), ("export", '{"directory": "x"}')):
        status, got = server.post(f"/v1/weights/{now}/{kind}", body)
        assert status == 400 and "--state none" in got["error"]["message"], (kind, status, got)
    status, got = server.post("/v1/completions", '{"prompt": "A", "max_tokens": 2, "consistency": "pinned"}')
    assert status == 400 and "pinned" in got["error"]["message"], got
    log = server.end()
    found = re.search(r"computed rank=1 steps=\d+ rows=\d+ updates=(\d+) versions=(\d+)", log)
    assert found and int(found[1]) == len(updates) and int(found[2]) in (now - 1, now - 2), (log, now)
    print(f"{link}: {len(updates)} updates of two ranks as of one process, loss {updates[0][1]} to {updates[-1][1]}")
    return updates


def narrow(link, expected):
    """Requests are computed with each rank's slices in e4m3, and training is not: its losses are those without."""
    server = Server(*GROUP, "--link", link, "--check-plans", "--quantization", "fp8", *LEARNING, learns=True)
    _, after, updates = teach(server)
    assert updates == expected, (updates, expected)
    assert after == [text for _, text in LESSONS], after
    log = server.end()
    assert log.count("quantization=fp8") == 2, log
    print(f"{link}: {len(updates)} updates, served in e4m3 by two ranks")


HELD = '{"text": "A dog saw a cat and the cat ran home.", "tag": "pets"}\n{"text": "A bird sang of rain."}\n'


def gated(link, expected):
    """A gate that lets all pass changes nothing; one that refuses an update leaves answers and examples as it must."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-tensor-") as folder:
        held = pathlib.Path(folder) / "held.jsonl"
        held.write_text(HELD)
        server = Server(*GROUP, "--link", link, "--check-plans", *LEARNING, "--recompute", "layer", "--gate", str(held),
                        "--gate-max-rise", "1000", "--publish", "update", learns=True)
        before, after, updates = teach(server)
        assert (before, after) == expected[:2], (before, after, expected)
        assert [u[0] for u in updates] == [u[0] for u in expected[2]], updates
        weights = json.loads(server.get("/v1/weights"))
        assert weights["gate"]["evaluations"] == len(updates) and weights["gate"]["rejected"] == 0, weights
        newest = json.loads(server.get("/v1/weights/current"))
        assert newest["gate_loss_before"] > 0 and newest["gate_loss_after"] > 0, newest
        server.end()

        server = Server(*GROUP, "--link", link, "--check-plans", "--passes", "1", "--lr", "0.3", "--gate", str(held),
                        "--gate-max-rise", "0.5", learns=True)
        for lesson in (1, 2):
            status, got = server.post("/v1/fine_tuning/examples?wait=served&timeout=600",
                                      json.dumps({"text": "The moon is made of green cheese. " * 3}))
            assert status == 200 and not got["served"] and got["rejected"] == [lesson], got
            assert [server.complete({"prompt": prompt, "max_tokens": 16, "temperature": 0})
                    for prompt, _ in LESSONS] == before
        weights = json.loads(server.get("/v1/weights"))
        assert weights["gate"]["rejected"] == 2 and len(weights["data"]) == 1, weights
        log = server.end()
        assert re.search(r"computed rank=1 steps=\d+ rows=\d+ updates=2 versions=0", log), log
    print(f"{link}: {len(updates)} updates of two ranks passed the gate, 2 were refused")


def learns_under_load(link):
    """Clients stream while versions are swapped; each answer says which version drew which token."""
    server = Server(*GROUP, "--link", link, "--passes", "40", "--train-share", "1,stretch=0", learns=True)
    wrong, swapped, stop = [], [], threading.Event()

    def client(i):
        while not stop.is_set():
            status, got = server.post("/v1/completions", json.dumps(
                {"prompt": LESSONS[i % 3][0], "max_tokens": 60, "temperature": 0.9 if i % 2 else 0, "ignore_eos": True}))
            spans = got["hzpserve"]["spans"] if status == 200 else []
            if not spans or spans[-1]["end"] != 60 or got["hzpserve"]["staleness"] > 1 or \
                    any(a["end"] != b["start"] or a["version"] >= b["version"] for a, b in zip(spans, spans[1:])):
                wrong.append((status, got))
            swapped.append(len(spans) - 1)

    clients = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for c in clients:
        c.start()
    teach(server)
    stop.set()
    for c in clients:
        c.join()
    versions = json.loads(server.get("/v1/weights"))["serving"]
    server.end()
    assert not wrong, wrong[:3]
    assert versions > 40 and sum(swapped) > 10, (versions, swapped)
    print(f"{link}: {len(swapped)} answers while {versions - 1} versions were published; {sum(swapped)} swaps in answers")


def loses_while_learning(link):
    """Rank 1 is killed while it learns."""
    server = Server(*GROUP, "--link", link, "--passes", "100000", learns=True)
    status, _ = server.post("/v1/fine_tuning/examples", json.dumps({"text": "A dog saw a cat. " * 4}))
    assert status == 202
    server_until(server, lambda: server.number("hzpserve_weights_version") > 3)
    os.kill(server.pid(1), signal.SIGKILL)
    log = server.end(status=3, ask=False)
    assert re.search(r"ranks failed: .*rank 1", log), log


def keeps(link):
    """What a group has learned outlives it, in one process and in a group; a kill loses no example."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-tensor-state-") as state:
        server = Server(*GROUP, "--link", link, *LEARNING, learns=True, state=state)
        _, after, updates = teach(server)
        now = json.loads(server.get("/v1/weights"))["serving"]
        log = server.end()
        steps = int(updates[-1][0])
        found = re.search(r"checkpoint version=(\d+) optimizer_step=(\d+)", log)
        assert found and [int(n) for n in found.groups()] == [now, steps], (log, now, steps)
        checked = subprocess.run([serve, "state", "check", state], timeout=HANG, capture_output=True, text=True)
        assert checked.returncode == 0 and f"checkpoint-{now}" in checked.stdout, checked
        for options in ([*GROUP, "--link", link], []):
            server = Server(*options, "--threads", "1", *LEARNING, learns=True, state=state)
            weights = json.loads(server.get("/v1/weights"))
            assert weights["serving"] > now and weights["serving_optimizer_step"] == steps, (options, weights)
            now = weights["serving"]
            assert [server.complete({"prompt": prompt, "max_tokens": 16, "temperature": 0})
                    for prompt, _ in LESSONS] == after, options
            status, got = server.post(f"/v1/weights/{now}/export?timeout=600", json.dumps({"directory": f"of-{now}"}))
            assert status == 200, (options, status, got)
            if options:
                status, got = server.post(f"/v1/weights/{now}/activate", "{}")
                assert status == 400 and "--tensor" in got["error"]["message"], (status, got)
            server.end()
        group, one = (next(pathlib.Path(state).rglob(f"of-{n}")) / "model.safetensors" for n in (now - 1, now))
        assert group.read_bytes() == one.read_bytes()

        server = Server(*GROUP, "--link", link, "--passes", "100000", learns=True, state=state)
        taught = "A dog saw a cat. " * 4
        status, got = server.post("/v1/fine_tuning/examples", json.dumps({"text": taught}))
        assert status == 202, got
        server_until(server, lambda: server.number("hzpserve_weights_version") > now + 3)
        os.kill(server.pid(0), signal.SIGKILL)
        server.end(status=None, ask=False)
        server = Server(*GROUP, "--link", link, "--passes", "100000", learns=True, state=state)
        server_until(server, lambda: server.number("hzpserve_weights_version") > now + 6)
        assert json.loads(server.get(f"/v1/fine_tuning/examples/{got['last']}"))["status"], got
        log = server.end()
        assert re.search(rf"opened dir=.* queued_again=1 ", log), log
    print(f"{link}: what was learned serves again in a group and in one process")


def hurries(link):
    """A second signal ends requests at once; what was learned is kept all the same."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-tensor-state-") as state:
        server = Server(*GROUP, "--link", link, *LEARNING, learns=True, state=state)
        teach(server)
        ended = []

        def client():
            try:
                server.stream({"prompt": "The river", "max_tokens": 200, "ignore_eos": True})
            except (OSError, http.client.HTTPException, KeyError):  # an error, in the stream or before it
                pass
            ended.append(True)

        clients = [threading.Thread(target=client) for _ in range(6)]
        for c in clients:
            c.start()
        now = json.loads(server.get("/v1/weights"))["serving"]
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        log = server.end()
        for c in clients:
            c.join()
        assert len(ended) == len(clients) and re.search(rf"checkpoint version={now} ", log), (now, log)


def hurries_in_a_chain(link):
    """A second signal while training exchanges something over a slow link: the ranks end it, and then in good order."""
    text = " ".join("a dog saw a cat and ran home".split() * 8)
    for turn in range(5):
        server = Server(*GROUP, "--link", link, "--link-throttle", "3M,latency=2", "--threads", "1", "--micro-rows",
                        "500", "--update-tokens", "500", "--train-share", "0.5", learns=True)
        status, _ = server.post("/v1/fine_tuning/examples", f'{{"text": "{text}"}}\n' * 18, "application/x-ndjson")
        assert status == 202, status

        def client():
            try:
                server.stream({"prompt": "The river", "max_tokens": 200, "ignore_eos": True})
            except (OSError, http.client.HTTPException, KeyError):
                pass

        clients = [threading.Thread(target=client) for _ in range(3)]
        for c in clients:
            c.start()
        time.sleep(2.5 + 0.2 * turn)  # the first slices are long: nothing has been measured
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        server.end()
        for c in clients:
            c.join()


def refused():
    learning = ["--ranks", "2", "--tensor", "2"]
    cases = [(learning + ["--canary", "0.5"], "--canary cannot be used with --tensor"),
             (learning + ["--train-share", "ride=8"], "--train-share ride cannot be used with --tensor"),
             (learning + ["--train-share", "cores=1"], "--train-share cores cannot be used with --tensor"),
             (learning + ["--slots", "3"], "--slots above 2 cannot be used with --tensor"),
             (["--ranks", "2", "--tensor", "3", "--no-train"], "--tensor 3: there are 2 ranks"),
             (["--tensor", "2", "--no-train"], "--tensor 2: there are 1 ranks"),
             (["--ranks", "3", "--tensor", "2"], "--tensor 2: there are 3 ranks, which are not groups of 2"),
             (["--ranks", "4", "--tensor", "2", "--no-train"], "--no-train cannot be used with --ranks above --tensor"),
             (["--ranks", "3", "--tensor", "3", "--no-train"], "do not divide the model's attention heads, 4"),
             (GROUP + ["--no-train", "--prefix-bytes", "host=64M"], "--prefix-bytes host cannot be used with --tensor"),
             (GROUP + ["--no-train", "--link", "nccl"], "--link nccl moves the memory of GPUs"),
             (GROUP + ["--no-train", "--replicas", "--link", "zmq"], "--replicas cannot be used with --tensor")]
    for options, says in cases:
        state = [] if "--state" in options else ["--state", "none"]
        ended = subprocess.run([serve, "serve", model, "--port", "0", *state, *options], timeout=HANG,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert ended.returncode == 2 and says in ended.stdout, (options, ended.returncode, ended.stdout)


def two(folder, *options):
    """Two ranks over ZeroMQ, each with options of its own; the exit status and what each says."""
    ranks = [subprocess.Popen(
        [serve, "serve", model, "--port", "0", "--state", "none", "--link", "zmq", "--tensor", "2", *own],
        env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": "2",
             "MASTER_ADDR": "127.0.0.1", "HZP_RANKS_DIR": folder, **env},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for r, (own, env) in enumerate(options)]
    return [(rank.communicate(timeout=HANG)[0], rank.returncode) for rank in ranks]


def one_learns():
    """One rank learns and the other does not: refused by name."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-tensor-") as folder:
        for said, status in two(folder, ([], {}), (["--no-train"], {})):
            assert status == 1 and "rank 1 has learning (1: yes, 0: --no-train) 0, rank 0 has 1" in said, (status, said)


def levels():
    """Ranks whose kernels are of different instruction sets would draw different tokens: refused by name."""
    devices = subprocess.run([serve, "devices"], stdout=subprocess.PIPE, text=True, timeout=HANG, check=True).stdout
    if not re.search(r"\bavx2\b|avx512|\bamx\b", devices):
        return
    with tempfile.TemporaryDirectory(prefix="hzpserve-tensor-") as folder:
        own = [(["--no-train"], {"HZP_CPU_LEVEL": level}) for level in ("avx2", "base")]
        for said, status in two(folder, *own):
            assert status not in (0, None) and \
                "rank 1 has kernels of (--cpu-level) base, rank 0 has avx2" in said, said


def other_plans():
    """One rank has no plan table: the one that differs is named."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-tensor-") as folder:
        file = pathlib.Path(folder) / "plans.json"
        subprocess.run([serve, "search", model, *GROUP, "--link", "zmq", "--no-train", "--device", "cpu", "--threads", "1",
                        "--max-running", "2", "--step-rows", "8", "--tries", "1", "--seconds", "2", "--max-others", "1",
                        "--file", file], timeout=HANG, check=True, capture_output=True)
        own = [(["--no-train", "--device", "cpu", "--threads", "1", "--plans", plans], {}) for plans in (file, "off")]
        for said, status in two(folder, *own):
            assert status not in (0, None) and \
                re.search(r"--plans: rank 1 has other plans than rank 0 \(hash \w{16}, not \w{16}\)", said), said


alone = Server()
answers = at_once(alone, list(bodies()))
alone.end()
alone = Server(*LEARNING, learns=True)
taught_alone = teach(alone)
alone.end()
refused()
if "zmq" in sys.argv[3:]:
    levels()
    one_learns()
    other_plans()
for name in sys.argv[3:]:
    same_answers(name, answers)
    narrow(name, learns(name, taught_alone))
    gated(name, taught_alone)
    learns_under_load(name)
    keeps(name)
    hurries(name)
    hurries_in_a_chain(name)
    loses_while_learning(name)
    loses(name, True)
if "zmq" in sys.argv[3:]:
    loses("zmq", False)
    hangs()
    starts_again(False)
    starts_again(True)
