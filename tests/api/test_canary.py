#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Versions on trial (--canary) of a real server: which requests they answer, how trials end, and what is left of one
that was dropped, withdrawn or killed.

    test_canary.py HZPSERVE MODEL_DIR

The server and its client are those of test_api.py.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import test_api
from test_api import EXAMPLES, HANG, Server, until


def ask(server, headers=None, **fields):
    body = {"prompt": "A dog", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
    return server.post("/v1/completions", body, headers)


def call(server, method, path, body=None):
    status, _, got = server.post(path, "" if body is None else body, method=method)
    return status, got


def canary(server):
    return json.loads(server.get("/v1/weights"))["canary"]


def on_trial(server, version):
    """Waits until this version, or a newer one, is on trial; returns its number."""
    until(lambda: canary(server)["newest"] and canary(server)["newest"]["version"] >= version
          and canary(server)["newest"]["state"] == "runs")
    return canary(server)["newest"]["version"]


def ended(server, version):
    until(lambda: canary(server)["newest"]["version"] == version
          and canary(server)["newest"]["state"] != "runs")
    return canary(server)["newest"]


def switches(server, name):
    """How often threads of this name have begun to wait so far."""
    total = 0
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            total += int(re.search(r"voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text())[1])
    return total


def test_canary():
    """A new version answers a share of the conversations first, and is then promoted or dropped."""
    options = ("--passes", "1", "--lr", "1e-5", "--slots", "3", "--canary",
               "0.5,seconds=3600,max-drop=5", "--weights-timeout", "7200")
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*options, "--canary", "requests=1000", state=state) as server:

            def command(*words, status=0):
                done = subprocess.run([test_api.BINARY, "weights", *words, "--url", server.url],
                                      capture_output=True, text=True, timeout=HANG)
                assert done.returncode == status, done

            def version_of(session, **fields):
                status, headers, got = ask(server, {"x-hzpserve-session": session}, **fields)
                assert status == 200 and len(got["hzpserve"]["spans"]) == 1, got
                assert got["system_fingerprint"].endswith(f"-v{got['hzpserve']['weights_version']}"), got
                return got["hzpserve"]["weights_version"], got["id"]

            assert canary(server)["newest"] is None
            assert server.post(EXAMPLES, {"text": "A dog saw a cat. " * 4})[0] == 202
            second = on_trial(server, 2)
            assert second == 2 and json.loads(server.get("/v1/weights"))["serving"] == 1
            assert call(server, "GET", "/v1/weights/2")[1]["state"] == "trial"
            # What cannot be done does not withdraw it: a version that has not served, or does not exist, or serves.
            assert call(server, "POST", "/v1/weights/2/activate", {})[0] == 404
            assert call(server, "POST", "/v1/weights/7/activate", {"optimizer": "reset"})[0] == 404
            assert call(server, "POST", "/v1/weights/current/activate", {})[0] == 409
            assert call(server, "DELETE", f"{EXAMPLES}/9")[0] == 404
            assert canary(server)["newest"]["state"] == "runs" and canary(server)["withdrawn"] == 0, canary(server)
            assert on_trial(server, 2) == second
            sides = {name: version_of(name) for name in "abcdefghijkl"}
            assert {v for v, _ in sides.values()} == {1, second}, sides
            for name, (version, _) in sides.items():
                assert version_of(name)[0] == version
            mine, other = (next(n for n, (v, _) in sides.items() if v == w) for w in (second, 1))
            # What only the trial has learned: its side is answered at once, the other waits.
            assert version_of(mine, min_sequence=1)[0] == second
            status, _, got = ask(server, {"x-hzpserve-session": other}, min_sequence=1, weights_timeout=0.1)
            assert status == 409 and got["error"]["code"] == "weights_not_served", got
            newest = canary(server)["newest"]
            assert newest["trial"]["ended"] + newest["current"]["ended"] == 25, newest
            assert newest["trial"]["tokens"] == 8 * newest["trial"]["ended"] and newest["trial"]["logprob"] < 0
            # Scores, of which each answer has one.
            for score in (-1, 0.5):
                for name in (mine, other):
                    status, _, got = server.post("/v1/feedback", {"id": sides[name][1], "score": score})
                    assert status == 200 and got["trial"] == (name == mine), got
                    assert got["weights_version"] == sides[name][0], got
            newest = canary(server)["newest"]
            assert newest["trial"]["scores"] == 1 and newest["current"]["score"] == 0.5, newest
            assert server.post("/v1/feedback", {"id": "cmpl-none", "score": 1})[0] == 404
            for body in ({"id": sides[mine][1]}, {"id": sides[mine][1], "score": 2}, {"score": 1},
                         {"id": sides[mine][1], "score": 1, "more": 1}):
                assert server.post("/v1/feedback", body)[0] == 400, body
            assert server.metric("hzpserve_trial_version") == second
            assert server.metric("hzpserve_feedback_total") == 4
            assert json.loads(server.get(EXAMPLES))["learned_through"] < 1

            assert call(server, "POST", "/v1/weights/1/promote")[0] == 404
            command("promote", str(second))
            assert ended(server, second)["state"] == "promoted"
            until(lambda: json.loads(server.get("/v1/weights"))["serving"] == second)
            assert version_of(other, min_sequence=1)[0] == second
            assert call(server, "GET", "/v1/weights/current")[1]["parent"] == 1

            assert server.post(EXAMPLES, {"text": "The moon is made of cheese. " * 4})[0] == 202
            third = on_trial(server, second + 1)
            answered = version_of(mine)
            assert answered[0] == third
            # A checkpoint waits for the end of the trial, and does not look for it all the time.
            assert call(server, "POST", "/v1/weights/1/name?timeout=60", {"name": "first"})[0] == 200  # the model's files
            assert call(server, "POST", "/v1/weights/current/name?timeout=0", {"name": "second"})[0] == 202
            before = switches(server, "hzp-file")
            time.sleep(2)
            assert switches(server, "hzp-file") - before < 50
            command("drop", str(third))
            until(lambda: call(server, "GET", "/v1/weights/second")[0] == 200)
            assert ended(server, third)["state"] == "dropped"
            assert call(server, "POST", f"/v1/weights/{third}/drop")[0] == 404
            until(lambda: call(server, "GET", f"{EXAMPLES}/2")[1]["status"] == "rejected")
            assert version_of(mine)[0] == second
            assert call(server, "GET", f"/v1/weights/{third}")[1]["state"] == "dropped"
            assert ask(server, None, min_sequence=2)[0] == 409  # no version will have it
            # The answer can still be scored, which has no effect any more.
            assert server.post("/v1/feedback", {"id": answered[1], "score": 1})[2]["trial"]

            # Forgetting what only the trial has learned withdraws it.
            assert server.post(EXAMPLES, {"text": "A cow sang of rain. " * 4})[0] == 202
            fourth = on_trial(server, third + 1)
            assert call(server, "DELETE", f"{EXAMPLES}/3?timeout={HANG}")[1]["state"] == "done"
            assert ended(server, fourth)["state"] == "withdrawn"
            assert server.post(EXAMPLES, {"text": "A bird sang of rain. " * 4})[0] == 202
            fourth = on_trial(server, fourth + 1)
            before = call(server, "GET", "/v1/weights/current")[1]["checksum"]
            lines = [json.loads(line) for line in pathlib.Path(state, "audit.jsonl").read_text().splitlines()]
            acts = [(line["action"], line.get("version"), line.get("end")) for line in lines]
            assert ("promote", second, None) in acts and ("drop", third, None) in acts, acts
            assert ("trial", second, "promoted") in acts and ("trial", third, "dropped") in acts, acts
        # It was on trial when the server stopped, or was killed: nothing is lost, its number is not used again.
        with Server(*options, "--canary", "requests=2", state=state) as server:
            assert call(server, "GET", "/v1/weights/current")[1]["checksum"] == before
            fourth = on_trial(server, fourth + 1)
            server.process.kill()
            server.process.wait()
        with Server(*options, "--canary", "requests=2", state=state) as server:
            assert call(server, "GET", "/v1/weights/current")[1]["checksum"] == before
            assert json.loads(server.get("/v1/weights"))["serving"] > fourth
            fifth = on_trial(server, fourth + 1)
            assert call(server, "GET", f"{EXAMPLES}/4")[1]["status"] == "waiting"
            assert call(server, "GET", f"{EXAMPLES}/3")[1]["status"] == "deleted"
            assert call(server, "GET", f"{EXAMPLES}/2")[1]["status"] == "rejected"
            asked = 0
            while canary(server)["newest"]["state"] == "runs":
                asked += 1
                assert asked < 200 and ask(server, {"x-hzpserve-session": f"s{asked}"})[0] == 200
            newest = ended(server, fifth)
            assert newest["state"] == "promoted" and min(newest[s]["ended"] for s in ("current", "trial")) >= 2
            until(lambda: call(server, "GET", f"{EXAMPLES}/4")[1]["status"] == "learned")
            assert json.loads(server.get("/v1/weights"))["serving"] == fifth
    done = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--port", "0", "--state", "none", "--no-train",
                           "--no-prefix-cache", "--prefix-rewarm", "64"], capture_output=True, text=True,
                          timeout=HANG)
    assert done.returncode and "--prefix-rewarm" in done.stderr and "--no-prefix-cache" in done.stderr, done
    for wrong, says in ((("--slots", "2"), "--slots 3"), (("--slots", "3", "--publish", "every=2"), "--publish every"),
                        (("--slots", "3", "--pin-seconds", "0"), "--pin-seconds")):
        done = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--port", "0", "--state", "none",
                               "--canary", "0.1", *wrong], capture_output=True, text=True, timeout=HANG)
        assert done.returncode and says in done.stderr and "--canary" in done.stderr, done


test_api.BINARY, test_api.MODEL = sys.argv[1:3]
test_canary()
