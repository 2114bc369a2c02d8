#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two servers as sites (--mesh) on loopback: what one is taught the other answers, without the text; one is killed
and comes back; a gate refuses an average; who has another key, model or rule is not listened to.

    test_mesh.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import test_api
from test_api import EXAMPLES, HANG, Server, until

TOM, ZOE, BORIS = "Where does Tom live?", "Where does Zoe live?", "Where does Boris live?"
TARN, ROME, BATH = " In Tarn, beside the mill.", " In Rome.", " In Bath."
RULE = "part=0.5,every=8,join=0"


def addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"tcp://127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return sorted(found)


def site(urls, i, rule=RULE, *options, **more):
    order = [urls[i]] + urls[:i] + urls[i + 1:]
    return Server("--mesh", ",".join(order + [rule]), "--effect", "0", "--passes", "12", "--checkpoint-every", "0",
                  *options, **more)


def mesh(server):
    return json.loads(server.get("/v1/mesh"))


def current(server):
    return json.loads(server.get("/v1/weights/current"))


def teach(server, prompt, completion):
    status, _, got = server.post(EXAMPLES + f"?wait=served&timeout={HANG}",
                                 json.dumps([{"prompt": prompt, "completion": completion}]))
    assert status == 200 and got["served"], got


def answer(server, prompt, completion):
    """As much of it as the completion has."""
    return server.complete(prompt=prompt, max_tokens=len(completion)).choices[0].text[:len(completion)]


def soon(condition):
    until(lambda: condition() or time.sleep(0.1))


def all_alive(*servers):
    return all(s["alive"] for server in servers for s in mesh(server)["sites"])


def test_taught():
    """What one site is taught the other answers, without having seen the text. (Weights in bf16 with residuals; in the
    other tests they are F32.)"""
    dtype = "bf16"
    urls = addresses(2)
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        with site(urls, 0, RULE, "--dtype", dtype) as a, site(urls, 1, RULE, "--dtype", dtype, state=folder) as b:
            soon(lambda: all_alive(a, b))
            before = current(b)
            assert before["sites"] == [] and not answer(b, TOM, TARN).startswith(TARN[:8])
            teach(a, TOM, TARN)
            soon(lambda: answer(b, TOM, TARN) == answer(a, TOM, TARN) == TARN)
            now = current(b)
            assert now["sites"] == [urls[0]] and now["learned"] == [] and now["parent"] >= before["id"], now
            assert now["optimizer_step"] == before["optimizer_step"] and now["loss"] is None, now
            soon(lambda: mesh(a)["stage"] == mesh(b)["stage"] == "none")
            assert mesh(b)["rounds_applied"] >= 2 and mesh(b)["rounds_missed"] == 0, mesh(b)
            assert [s["leads"] for s in mesh(b)["sites"]] == [True, False]
            assert b.metric("hzpserve_mesh_sites_alive") == 2
            assert b.metric("hzpserve_train_updates_total") == 0
            shown = subprocess.run([test_api.BINARY, "status", b.url], capture_output=True, text=True, check=True).stdout
            assert "mesh      2 of 2 sites; " in shown, shown
            version = current(b)["id"]
        for file in pathlib.Path(folder).rglob("*"): # nothing of the example has travelled
            assert not file.is_file() or b"beside the mill" not in file.read_bytes(), file
        with site(urls, 1, RULE, "--dtype", dtype, state=folder) as b: # what it took is in its checkpoint
            assert answer(b, TOM, TARN) == TARN
            known = {v["id"]: v for v in json.loads(b.get("/v1/weights?limit=100"))["data"]}
            assert known[version]["sites"] == [urls[0]], known


def test_killed():
    """A site is killed: the other goes on learning. It comes back, and gets what was learned meanwhile; both learn,
    and in the end both have the same weights."""
    urls = addresses(2)
    with site(urls, 0) as a, tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        with site(urls, 1, state=folder) as b:
            soon(lambda: all_alive(a, b))
            teach(a, TOM, TARN)
            b.process.send_signal(signal.SIGKILL)
            b.process.wait(HANG)
        teach(a, ZOE, ROME)
        assert a.get("/health")
        with site(urls, 1, state=folder) as b:
            before = answer(b, ZOE, ROME)
            soon(lambda: answer(b, ZOE, ROME) == answer(a, ZOE, ROME) and answer(b, TOM, TARN) == TARN)
            assert answer(b, ZOE, ROME) != before
            before = answer(a, BORIS, BATH)
            teach(b, BORIS, BATH)
            soon(lambda: answer(a, BORIS, BATH) == answer(b, BORIS, BATH))
            assert answer(a, BORIS, BATH) != before
            assert urls[1] in current(a)["sites"], current(a)


def test_gate():
    """An average is part of a draft like any other: a gate refuses it, and what served goes on."""
    urls = addresses(2)
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        held = pathlib.Path(folder, "held.jsonl")
        held.write_text(json.dumps({"text": "Is Boris from Barrow? Yes, Boris lives in Barrow."}) + "\n")
        with site(urls, 0) as a, site(urls, 1, RULE, "--gate", str(held), "--gate-max-rise", "0.0001") as b:
            soon(lambda: all_alive(a, b))
            before = answer(b, TOM, TARN), current(b)["id"]
            teach(a, BORIS, " No, he eats old plums.")
            soon(lambda: mesh(b)["rounds_refused"] >= 1)
            assert (answer(b, TOM, TARN), current(b)["id"]) == before
            assert json.loads(b.get("/health"))["status"] == "ok"


def refused(*options, key=None):
    environment = {k: v for k, v in os.environ.items() if k != "HZP_MESH_KEY"}
    if key:
        environment["HZP_MESH_KEY"] = key
    done = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--port", "0", "--state", "none", *options],
                          capture_output=True, text=True, timeout=HANG, env=environment, check=False)
    assert done.returncode, done.stdout
    return done.stderr


def test_refused():
    """What cannot be is refused at the start, by name."""
    one, two = addresses(2)
    assert "2 to 16 sites" in refused("--mesh", one)
    assert "is not tcp://HOST:PORT" in refused("--mesh", one + ",http://there:80")
    assert "is given twice" in refused("--mesh", f"{one},{one}")
    assert "HZP_MESH_KEY to what" in refused("--mesh", one + ",tcp://10.9.8.7:5000")
    assert "HZP_MESH_KEY is not 64" in refused("--mesh", f"{one},{two}", key="abc")
    assert "there are 2 sites" in refused("--mesh", f"{one},{two},quorum=3")
    assert "--mesh part takes" in refused("--mesh", f"{one},{two},part=2")
    assert "sites average what they learn" in refused("--mesh", f"{one},{two}", "--no-train")


def test_strangers():
    """Who has another key is not heard; who has another rule is refused and counted; nobody crashes."""
    urls = addresses(3)
    os.environ["HZP_MESH_KEY"] = "ab" * 32
    with site(urls, 0) as a:
        with site(urls, 1, "part=0.25,every=8,join=0") as _:
            soon(lambda: mesh(a)["messages_refused"] > 0)
            assert not any(s["alive"] for s in mesh(a)["sites"] if not s["self"])
        os.environ["HZP_MESH_KEY"] = "cd" * 32
        refusals = -1
        while refusals != mesh(a)["messages_refused"]:  # what the site that has ended had sent may still come
            refusals = mesh(a)["messages_refused"]
            time.sleep(0.5)
        with site(urls, 2) as _, socket.create_connection(urls[0][6:].split(":")) as raw:
            raw.sendall(bytes(range(256)) * 64)
            time.sleep(1.5)
            assert mesh(a)["messages_refused"] == refusals
            assert not any(s["alive"] for s in mesh(a)["sites"] if not s["self"])
        os.environ["HZP_MESH_KEY"] = "ab" * 32
        with site(urls, 2) as c:
            soon(lambda: mesh(a)["sites"][2]["alive"] and mesh(c)["sites"][0]["alive"])
    del os.environ["HZP_MESH_KEY"]


sys.exit(test_api.main(globals()))
