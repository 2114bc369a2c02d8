#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model gets better at what can be checked, by its own answers, while the server answers others.

    test_rollouts.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import json
import signal
import sys
import tempfile
import threading
import time

import test_api
from test_api import Server, until

# What a server needs to train on rollouts; without replay its updates are those of the rollouts alone.
LEARNS = ["--passes", "1", "--update-tokens", "4096", "--replay-ratio", "0"]
# At first about one answer in twenty to them is green.
PROMPTS = ["Bert's favourite colour is", "The cup of Ann is", "Hello's kite is", "Wilma owns a bell, and it is",
           "The blanket of Otto is"]
TASK = {"prompts": PROMPTS, "n": 8, "batch": 4, "updates": 10, "max_tokens": 4, "seed": 1,
        "reward": {"type": "regex", "pattern": "^ green"}}


def begin(server, headers=None, **fields):
    body = {k: v for k, v in {**TASK, **fields}.items() if v is not None}
    status, _, job = server.post("/v1/rollouts", body, headers)
    assert status == 200 and job["status"] in ("queued", "running"), job
    return "/v1/rollouts/" + job["id"]


def look(server, path):
    return json.loads(server.get(path))


def end(server, path, status="succeeded"):
    until(lambda: look(server, path)["status"] not in ("queued", "running"))
    job = look(server, path)
    assert job["status"] == status, job
    return job


def greedy(server):
    return [server.complete(prompt=prompt, max_tokens=4).choices[0].text for prompt in PROMPTS]


def refused(server, param, says="", status=400, **fields):
    body = {**TASK, **fields}
    got, _, answer = server.post("/v1/rollouts", {k: v for k, v in body.items() if v is not None})
    assert got == status, (fields, got, answer)
    assert answer["error"]["param"] == param and says in answer["error"]["message"], (fields, answer)


def test_reward_rises_beside_requests():
    """Within twelve updates the reward rises from a tenth at most to more than four, while other clients are answered;
    then the server goes back to what it was."""
    with Server(*LEARNS) as server:
        first = greedy(server)
        assert not any(text.startswith(" green") for text in first), first
        answered, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                answered.append(server.complete(max_tokens=8).choices[0].text)
                time.sleep(0.02)

        others = threading.Thread(target=ask)
        others.start()
        path = begin(server, updates=12)
        job = end(server, path)
        stop.set()
        others.join()
        curve = job["curve"]
        assert len(answered) > 10, len(answered)
        assert len(curve) >= 10 and [p["update"] for p in curve] == list(range(1, len(curve) + 1)), job
        assert curve[0]["reward_mean"] <= 0.1 and max(p["reward_mean"] for p in curve) >= 0.4, curve
        assert all(p["staleness"] <= 1 for p in curve) and any(p["staleness"] for p in curve), curve
        versions = [p["weights_version"] for p in curve]
        assert versions == sorted(set(versions)), versions
        assert job["samples"]["committed"] == sum(p["samples"] for p in curve), job
        assert job["samples"]["late"] == job["samples"]["lost"] == 0, job
        assert job["groups"]["dropped"] > 0 and job["groups"]["open"] == 0, job
        lessons = look(server, "/v1/lessons?limit=100")["data"]
        assert len(lessons) == len(curve) and {one["session"] for one in lessons} == {"rollout-1"}, lessons
        assert server.metric("hzpserve_rollouts_updates_total") == len(curve)
        until(lambda: server.metric("hzpserve_rollouts_running") == 0)  # those that were left over are cancelled
        # Asked once each, without learning, it is as good as at the end.
        test = end(server, begin(server, train=False, n=16))
        assert test["reward_mean"] >= 0.4 and test["curve"] == [] and test["samples"]["committed"] == 0, test
        now = greedy(server)
        assert any(text.startswith(" green") for text in now), now
        status, _, got = server.post("/v1/undo?timeout=120", {"version": "original"})
        assert status == 200, got
        assert greedy(server) == first
        until(server.idle)


def test_on_policy_is_repeatable():
    """With max_staleness 0 and a seed, two servers draw, reward and learn the same."""
    curves = []
    for _ in range(2):
        with Server(*LEARNS, "--ordered") as server:
            job = end(server, begin(server, max_staleness=0, updates=5, algo="dapo"))
            curves.append([(p["reward_mean"], p["samples"], p["staleness"]) for p in job["curve"]])
            assert all(p["staleness"] == 0 for p in job["curve"]), job
    assert curves[0] == curves[1], curves
    assert curves[0][0][0] < curves[0][-1][0], curves


def test_a_client_rewards():
    """Each answer waits for its reward; those that get none in time are lost, and hold up no group."""
    with Server(*LEARNS) as server:
        path = begin(server, reward={"type": "client", "timeout": 3}, n=4, batch=2, updates=1, prompts=PROMPTS[:2],
                     algo="reinforce", max_staleness=0)
        until(lambda: len(look(server, path)["waiting"]) == 8)
        waiting = look(server, path)["waiting"]
        assert {one["prompt"] for one in waiting} == {0, 1} and all(one["text"] for one in waiting), waiting
        assert server.metric("hzpserve_rollouts_waiting") == 8
        for i, one in enumerate(waiting):
            where = f"/v1/samples/{one['sample']}/reward"
            assert server.post(where, {"value": "1"}, method="PUT")[0] == 400
            if i % 4 != 3:
                status, _, got = server.post(where, {"value": i % 2}, method="PUT")
                assert status == 200 and got["reward"] == i % 2, got
                assert server.post(where, {"value": 1}, method="PUT")[0] == 404  # it has one
        job = end(server, path)
        assert job["samples"]["lost"] == 2 and job["samples"]["committed"] == 6, job
        assert job["updates"]["learned"] == 1 and abs(job["reward_mean"] - 1 / 3) < 1e-9, job
        assert server.post("/v1/samples/1/reward", {"value": 1}, method="PUT")[0] == 404
        assert server.post("/v1/samples/1", {"value": 1}, method="PUT")[0] == 404


def test_jobs_take_turns_and_are_cancelled():
    with Server(*LEARNS) as server:
        client = {"type": "client"}
        paths = [begin(server, reward=client, train=False) for _ in range(8)]
        refused(server, None, "8 jobs", status=429)
        until(lambda: look(server, paths[0])["waiting"])
        assert [look(server, path)["status"] for path in paths] == ["running"] + ["queued"] * 7
        for path in reversed(paths):
            status, _, job = server.post(path, "", method="DELETE")
            assert status == 200, job
        for path in paths:
            end(server, path, "cancelled")
            assert server.post(path, "", method="DELETE")[0] == 404
        jobs = look(server, "/v1/rollouts")["data"]
        assert [job["id"] for job in jobs] == [f"rollout-{n}" for n in range(8, 0, -1)], jobs
        until(server.idle)
        assert server.post("/v1/rollouts/rollout-99", "", method="GET")[0] == 404
        end(server, begin(server, updates=1))


def test_what_is_refused():
    with Server(*LEARNS) as server:
        refused(server, "temperature", temperature=0.7)
        refused(server, "top_p", top_p=0.9)
        refused(server, "top_k", top_k=20)
        refused(server, "repetition_penalty", repetition_penalty=1.1)
        refused(server, "response_format", response_format={"type": "json_object"})
        refused(server, "reward", reward=None)
        refused(server, "reward.type", reward={"type": "command"})
        refused(server, "reward.pattern", reward={"type": "regex", "pattern": "("})
        refused(server, "answers", "one for each prompt", reward={"type": "exact"})
        refused(server, "answers", answers=["a"])
        refused(server, "answers[1]", answers=["a", "b" * 2000, "c", "d", "e"])
        refused(server, "prompts", prompts=None)
        refused(server, "prompts", prompts=[])
        refused(server, "prompts", messages=[[{"role": "user", "content": "Hello"}]])
        refused(server, "prompts[1]", prompts=["a", ""])
        refused(server, "n", n=1)
        refused(server, "n", n=64, batch=256)
        refused(server, "batch", "--update-tokens", batch=60)
        refused(server, "prompts[0]", max_tokens=2000)
        refused(server, "algo", algo="gspo")
        refused(server, "no_such", no_such=1)
        # What only trains is not refused where nothing is learned.
        end(server, begin(server, train=False, n=1, temperature=0.5, batch=60))
        job = end(server, begin(server, prompts=None, messages=[[{"role": "user", "content": "Hello"}]], train=False))
        assert job["samples"]["rewarded"] == 8, job
    with Server("--passes", "2") as server:
        refused(server, "train", "--passes 1")
    with Server("--no-train") as server:
        refused(server, "train", "--no-train")
        end(server, begin(server, train=False))


def test_who_may():
    """What is learned changes the model for all: only the key that may teach begins a job, or sees its texts."""
    with Server(*LEARNS, "--api-key", "reader", "--admin-key", "teacher") as server:
        reader, teacher = ({"authorization": "Bearer " + key} for key in ("reader", "teacher"))
        for method, path, body in [("POST", "/v1/rollouts", TASK), ("GET", "/v1/rollouts", ""),
                                   ("GET", "/v1/rollouts/rollout-1", ""), ("DELETE", "/v1/rollouts/rollout-1", ""),
                                   ("PUT", "/v1/samples/1/reward", {"value": 1})]:
            assert server.post(path, body, reader, method)[0] == 403, path
            assert server.post(path, body, {}, method)[0] == 401, path
        path = begin(server, teacher, updates=1)
        until(lambda: server.post(path, "", teacher, "GET")[2]["status"] == "succeeded")


def test_a_kill_loses_no_sample_and_repeats_none():
    """After kill -9 the job has failed and says so; what it had committed is learned once."""
    interrupt(signal.SIGKILL)


def test_a_stop_does_not_wait_for_jobs():
    """The same, in order."""
    assert interrupt(signal.SIGTERM) == 0


def interrupt(how):
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        server = Server(*LEARNS, "--checkpoint-every", "3", state=state)
        server.__enter__()
        path = begin(server, updates=1000)
        until(lambda: look(server, path)["updates"]["learned"] >= 7)
        server.process.send_signal(how)
        status = server.process.wait(test_api.HANG)
        server.state.cleanup()
        with Server(*LEARNS, state=state) as again:
            job = look(again, path)
            assert job["status"] == "failed" and "the server stopped" in job["reason"], job
            assert job["updates"]["learned"] >= 6, job
            examples = look(again, test_api.EXAMPLES)
            assert examples["last"] >= job["samples"]["committed"] > 0, (job, examples)
            until(lambda: look(again, test_api.EXAMPLES)["learned_through"] == examples["last"])
            check_learned_once(again, examples["last"])
            # The numbers of jobs go on, and a job goes on where the model is.
            assert begin(again, updates=1) == "/v1/rollouts/rollout-2"
    return status


def check_learned_once(server, last):
    """The versions from the serving one back have each example once."""
    weights = look(server, "/v1/weights?limit=4096")
    version = {v["id"]: v for v in weights["data"]}
    line, at = [], weights["serving"]
    while at in version:
        line.append(version[at])
        at = version[at]["parent"]
    assert not any(v["learned_more"] for v in line), line
    numbers = sorted(n for v in line for low, high in v["learned"] for n in range(low, high + 1))
    assert numbers == list(range(1, last + 1)), [(v["id"], v["parent"], v["learned"]) for v in line]


def main():
    test_api.BINARY, test_api.MODEL = sys.argv[1:3]
    chosen = sys.argv[3:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and callable(test) and (not chosen or name in chosen):
            begun = time.monotonic()
            test()
            print(f"ok {name} {time.monotonic() - begun:.2f} s", flush=True)
    return 0


sys.exit(main())
