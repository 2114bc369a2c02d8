#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers of rollouts as a table that judges, reference models and trainers of others take from and write to.

    test_samples.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py, jobs those of test_rollouts.py.
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import test_api
from test_api import Server, until
from test_rollouts import LEARNS, PROMPTS, begin, end, look, refused, rows

CLIENT = {"type": "client"}
ALL = "prompt,text,answer,prompt_tokens,tokens,logprobs,versions,reward,advantage"


def take(server, consumer, columns="tokens", status=200, **more):
    query = "&".join(f"{k}={v}" for k, v in {"consumer": consumer, "columns": columns, **more}.items())
    got = server.post("/v1/samples?" + query, "", method="GET")
    assert got[0] == status, got
    return got[2]


def put(server, sample, column, value, status=200, **more):
    got = server.post(f"/v1/samples/{sample}/{column}", {"value": value, **more}, method="PUT")
    assert got[0] == status, (column, value, got)
    return got[2] if status == 200 else got[2]["error"]["message"]


def done(server, lease, status=200):
    return take(server, "any", count=0, done=lease, status=status)


def await_rows(server, count):
    until(lambda: server.metric("hzpserve_samples_rows") == count)


def test_trainers_elsewhere():
    """Two workers of one trainer take whole groups, one loses every other lease; an archive takes rows one by one.
    Each sample is done once by each consumer, none is lost, and generation waits for both."""
    with Server(*LEARNS) as server:
        path = begin(server, train=False, consumers=["trainer", "archive"], n=4, batch=2, max_staleness=0,
                     reward={"type": "regex", "pattern": "^ green"}, prompts=PROMPTS * 3, seed=5)
        until(lambda: look(server, path)["groups"]["ready"] == 2)
        await_rows(server, 8)
        time.sleep(0.3)  # the table is full: nothing more is begun until a group has been taken
        job = look(server, path)
        assert job["groups"]["begun"] == 2 and job["groups"]["ready"] == 2 and job["status"] == "running", job
        assert job["consumers"] == ["trainer", "archive"], job
        had, lock = {"trainer": [], "archive": []}, threading.Lock()
        lost = [take(server, "trainer", groups="true", count=4, lease=0.5)["lease"]]  # by one that never comes back

        def work(consumer, number, count, groups="false"):
            turn, lease, rows = 0, 0, []
            where = f"/v1/samples?consumer={consumer}&columns={ALL}&count={count}&groups={groups}"
            while look(server, path)["status"] == "running":
                status, _, got = server.post(f"{where}&done={lease}&lease={0.5 if number else 60}", "", method="GET")
                if status == 409:  # it has run out, and its rows are another's
                    assert number, got
                    lease, rows = 0, []
                    continue
                with lock:  # what the lease before had is done now
                    had[consumer] += rows
                rows, lease, turn = got["data"], got["lease"] or 0, turn + bool(got["data"])
                if number and turn % 2 and lease:  # it is lost, and begins again
                    lost.append(lease)
                    rows, lease = [], 0
                time.sleep(0.02)

        workers = [threading.Thread(target=work, args=args)
                   for args in (("trainer", 0, 4, "true"), ("trainer", 1, 11, "true"), ("archive", 0, 3))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        job = end(server, path)
        assert job["samples"]["rewarded"] == 60 and job["samples"]["lost"] == 0 and job["groups"]["begun"] == 15, job
        samples = {row["sample"]: row for row in had["trainer"]}
        for consumer, its in had.items():
            assert len(its) == 60 and len({row["sample"] for row in its}) == 60, (consumer, len(its))
        assert server.metric("hzpserve_samples_leases_expired_total") >= len(lost) > 0
        assert server.metric("hzpserve_samples_rows") == 0 and take(server, "trainer")["data"] == []
        groups = {}
        for row in had["trainer"]:
            groups.setdefault(row["group"], []).append(row)
        for at, group in groups.items():
            assert sorted(row["member"] for row in group) == [0, 1, 2, 3], group
            mean = sum(row["reward"] for row in group) / 4
            std = (sum((row["reward"] - mean) ** 2 for row in group) / 3) ** 0.5
            for row in group:
                assert row["prompt"] == (PROMPTS * 3)[at - 1] and row["answer"] is None, row
                assert row["reward"] == row["text"].startswith(" green"), row
                assert abs(row["advantage"] - (row["reward"] - mean) / (std + 1e-4)) < 1e-6, (row, mean, std)
                assert len(row["tokens"]) == len(row["logprobs"]) == len(row["versions"]) <= 4, row
                assert all(lp <= 0 for lp in row["logprobs"]) and set(row["versions"]) == {1}, row
        assert {row["sample"]: row for row in had["archive"]}.keys() == samples.keys()
        row = had["trainer"][0]  # the log-probabilities are those of the tokens behind the prompt's
        choice = server.complete(prompt=row["prompt_tokens"] + row["tokens"], max_tokens=0, echo=True,
                                 logprobs=0).choices[0]
        for want, lp in zip(choice.logprobs.token_logprobs[len(row["prompt_tokens"]):], row["logprobs"]):
            assert abs(want - lp) < 1e-4, (row, want)


def test_leases():
    """A lease runs out with all its samples; until then it is the only one; a value needs the lease that it names."""
    with Server(*LEARNS) as server:
        path = begin(server, train=False, reward=CLIENT, consumers=["trainer"], n=4, prompts=PROMPTS[:2])
        await_rows(server, 8)
        assert server.metric("hzpserve_rollouts_waiting") == 8
        first = take(server, "judge", "prompt,text", count=3)
        assert first["rollout"] == "rollout-1" and first["seconds"] == 60, first
        numbers = [row["sample"] for row in first["data"]]
        assert len(numbers) == 3 and set(first["data"][0]) == {"sample", "group", "member", "prompt", "text"}, first
        other = take(server, "judge", count=256)
        assert len(other["data"]) == 5 and not {row["sample"] for row in other["data"]} & set(numbers), other
        assert take(server, "judge") == {**first, "lease": None, "data": []}
        assert len(take(server, "critic", count=256)["data"]) == 8  # another consumer has all
        assert "other samples" in put(server, numbers[0], "reward", 1, 409, lease=other["lease"])
        assert "never given" in put(server, numbers[0], "reward", 1, 409, lease=first["lease"] + 99)
        assert put(server, numbers[0], "reward", 1, lease=first["lease"]) == {
            "object": "sample", "sample": numbers[0], "reward": 1}
        slow = take(server, "slow", count=3, lease=0.2)
        assert [row["sample"] for row in slow["data"]] == numbers and slow["seconds"] == 0.2, slow
        time.sleep(0.3)
        assert "run out" in put(server, numbers[1], "reward", 0, 409, lease=slow["lease"])
        assert "run out" in done(server, slow["lease"], 409)["error"]["message"]
        again = take(server, "slow", count=3)
        assert [row["sample"] for row in again["data"]] == numbers, again
        assert server.metric("hzpserve_samples_leases_expired_total") == 1
        done(server, other["lease"])
        done(server, other["lease"])  # it may not have got the answer
        assert "is done" in put(server, other["data"][0]["sample"], "reward", 0, 409, lease=other["lease"])
        # The trainer gets what is complete, in the order that it asks for; its groups are whole.
        assert take(server, "trainer", "reward", groups="true")["data"] == []
        for row in again["data"]:
            put(server, row["sample"], "reward", float(row["sample"] == numbers[0]), lease=again["lease"])
        put(server, other["data"][0]["sample"], "reward", 0)  # without a lease, by its number
        until(lambda: look(server, path)["groups"]["ready"] == 1)
        assert "too small" in take(server, "trainer", "reward", groups="true", count=3, status=400)["error"]["message"]
        got = take(server, "trainer", "reward", groups="true")
        assert [row["reward"] for row in got["data"]] == [1, 0, 0, 0], got
        assert look(server, path)["status"] == "running"
        for row in other["data"][1:]:
            put(server, row["sample"], "reward", 0)
        until(lambda: look(server, path)["groups"]["ready"] == 2)
        rest = take(server, "trainer", order="newest", groups="true", count=256, done=got["lease"])
        assert len(rest["data"]) == 4, rest
        until(lambda: look(server, path)["groups"]["ready"] == 1)
        done(server, rest["lease"])
        assert end(server, path)["samples"]["rewarded"] == 8
        done(server, rest["lease"])
        for word, more in [("consumer", {"consumer": ""}), ("consumer", {"consumer": "x" * 64}),
                           ("columns", {"columns": "tokens,magic"}), ("count", {"count": 257}), ("lease", {"lease": 0}),
                           ("order", {"order": "best"}), ("groups", {"groups": 1})]:
            got = take(server, **{"consumer": "a", "status": 400, **more})
            assert got["error"]["param"] == word, (word, got)
        assert server.post("/v1/samples", "", method="GET")[0] == 400
        begin(server, train=False, reward=CLIENT, n=1, prompts=PROMPTS[:1])
        await_rows(server, 1)
        for i in range(16):
            take(server, f"c{i}")
        assert "at most 16 consumers" in take(server, "c16", status=429)["error"]["message"]


def test_columns_of_clients():
    """The loss of a job whose rewards, advantages and reference are clients' is made of their values, without a slot
    for a reference."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*LEARNS, state=state) as server:
            path = begin(server, reward=CLIENT, advantage="client", reference="client", kl=0.25, n=2, batch=1, updates=1,
                         prompts=PROMPTS[:1], max_staleness=0)
            await_rows(server, 2)
            got = take(server, "all", "tokens,logprobs")
            values = []  # of each member
            for row in got["data"]:
                sample, n = row["sample"], len(row["tokens"])
                for value in ("x", None, [1], {"a": 1}, True, 2e6):
                    put(server, sample, "reward", value, 400)
                put(server, sample, "reward", "1e999", 400)
                for wrong in (1, [], [0] * (n + 1), [-1] * (n - 1), [0.5] * n, ["a"] * n, [None] * n, [-2e6] * n):
                    put(server, sample, "reference_logprobs", wrong, 400)
                assert "group is not complete" in put(server, sample, "advantage", 1, 409)
                reference = [-0.1 * i - row["member"] for i in range(n)]
                values.append((reference, 1.5 - row["member"]))
                put(server, sample, "reference_logprobs", reference, lease=got["lease"])
                put(server, sample, "reference_logprobs", reference)
                assert "another" in put(server, sample, "reference_logprobs", [x - 1 for x in reference], 409)
                put(server, sample, "reward", row["member"], lease=got["lease"])
                put(server, sample, "reward", row["member"])
                assert "another" in put(server, sample, "reward", 0.5, 409)
            for column in ("tokens", "magic", "reward/1", ""):
                put(server, sample, column, 1, 404)
            put(server, sample + 100, "reward", 1, 404)
            until(lambda: look(server, path)["groups"]["ready"] == 1)
            full = take(server, "full", "reward,reference_logprobs", groups="true")["data"]
            assert [row["reward"] for row in full] == [0, 1] and take(server, "full", "advantage")["data"] == [], full
            for row in got["data"]:
                put(server, row["sample"], "advantage", values[row["member"]][1])
            job = end(server, path)
            assert job["samples"]["committed"] == 2 and job["updates"]["learned"] == 1 and job["curve"][0]["kl"] > 0, job
        learned = list(rows(state, 0))
        assert [list(tokens[min(losses):]) for tokens, losses in learned] == [row["tokens"] for row in got["data"]]
        for (_, losses), (reference, advantage) in zip(learned, values):
            assert len(losses) == len(reference), losses
            for want, (_, _, _, adv, ref, kl, _, _, _, _) in zip(reference, losses.values()):
                assert abs(ref - want) < 1e-6 and adv == advantage and kl == 0.25, (losses, reference)


def test_a_lost_client_blocks_no_group():
    """What a client does not give in time is lost: a reward, and a column that the job names; the rest goes on."""
    with Server(*LEARNS) as server:
        for seconds in (2, 20, 200):  # a machine that gives late what should come in time begins again with more
            begun = time.monotonic()
            path = begin(server, train=False, reward={"type": "client", "timeout": seconds}, reference="client", n=4,
                         consumers=["trainer"], prompts=PROMPTS[:1])
            until(lambda: look(server, path)["samples"]["answered"] == 4)
            got = take(server, "judge")["data"]
            in_time = len(got) == 4
            for i, row in enumerate(got):
                for column, value, given in [("reward", i, i != 3),
                                             ("reference_logprobs", [-1] * len(row["tokens"]), i != 1)]:
                    if given:
                        status = server.post(f"/v1/samples/{row['sample']}/{column}", {"value": value}, method="PUT")[0]
                        in_time = in_time and status == 200
            if in_time:
                break
            assert time.monotonic() - begun >= seconds, (seconds, got)
            server.post(path, "", method="DELETE")
        assert in_time
        until(lambda: look(server, path)["samples"]["lost"] == 2)
        kept = take(server, "trainer", "reward,reference_logprobs", groups="true")
        assert [row["reward"] for row in kept["data"]] == [0, 2], kept
        put(server, got[3]["sample"], "reward", 3, 404)
        done(server, kept["lease"])
        end(server, path)
        # Where rollouts train: no answer has its advantage, so the group teaches nothing, and another one begins.
        path = begin(server, reward={"type": "client", "timeout": 1}, advantage="client", n=1, batch=1, updates=1,
                     prompts=PROMPTS[:1])
        await_rows(server, 1)
        number = take(server, "judge")["data"][0]["sample"]
        server.post(f"/v1/samples/{number}/reward", {"value": 1}, method="PUT")
        until(lambda: look(server, path)["samples"]["lost"] >= 1 and look(server, path)["groups"]["begun"] > 1)
        server.post(path, "", method="DELETE")


def test_what_is_refused():
    with Server(*LEARNS) as server:
        refused(server, "consumers", "train false", consumers=["a"])
        for wrong in ([], "a", [1], [""], ["x" * 64], [str(i) for i in range(17)]):
            refused(server, "consumers", train=False, consumers=wrong)
        refused(server, "reference", "kl", reference="client")
        refused(server, "reference", reference="theirs")
        refused(server, "kl", "--slots 3", kl=0.1)
        # What the job makes itself is not a client's.
        path = begin(server, train=False, reward={"type": "length", "tokens": 4}, consumers=["a"], n=1, prompts=PROMPTS[:1],
                     advantage="none")
        await_rows(server, 1)
        row = take(server, "a", "tokens,reward,advantage")["data"][0]
        put(server, row["sample"], "reward", row["reward"])
        put(server, row["sample"], "reward", row["reward"] + 1, 409)
        put(server, row["sample"], "advantage", row["advantage"] + 1, 409)
        assert "from a client" in put(server, row["sample"], "reference_logprobs", [-1] * len(row["tokens"]), 409)
        server.post(path, "", method="DELETE")
    with Server(*LEARNS, "--api-key", "reader", "--admin-key", "teacher") as server:
        for method, path in [("GET", "/v1/samples?consumer=a"), ("PUT", "/v1/samples/1/reward")]:
            body = {"value": 1} if method == "PUT" else ""
            for headers, status in [({}, 401), ({"authorization": "Bearer reader"}, 403),
                                    ({"authorization": "Bearer teacher"}, 404 if body else 200)]:
                assert server.post(path, body, headers, method)[0] == status, (method, headers)


def test_after_a_kill():
    """The table is in memory: after kill -9 the job has failed, its samples are gone, and its leases hold nothing."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        server = Server(*LEARNS, state=state)
        server.__enter__()
        path = begin(server, train=False, consumers=["trainer"], prompts=PROMPTS[:1])
        await_rows(server, 8)
        old = take(server, "trainer", count=256)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(test_api.HANG)
        server.state.cleanup()
        with Server(*LEARNS, state=state) as again:
            assert look(again, path)["status"] == "failed", look(again, path)
            done(again, old["lease"], 409)
            put(again, old["data"][0]["sample"], "reward", 1, 404)
            begin(again, train=False, consumers=["trainer"], prompts=PROMPTS[:1])
            await_rows(again, 8)
            new = take(again, "trainer", count=256)
            assert new["lease"] > old["lease"] and new["data"][0]["sample"] > old["data"][-1]["sample"], (old, new)


def test_the_judge_of_the_manual():
    """The judge that OPERATIONS shows makes the model better."""
    text = pathlib.Path(__file__).parents[2].joinpath("docs", "OPERATIONS.md").read_text()
    part = text.split("**A judge elsewhere.**")[1].split("\n\n    import", 1)[1].split("\n\n")[0]
    code = "    import" + part
    program = "\n".join(line[4:] for line in code.splitlines())
    with Server(*LEARNS) as server:
        judge = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "URL": server.url})
        try:
            curve = end(server, begin(server, reward=CLIENT, updates=12))["curve"]
            assert curve[0]["reward_mean"] <= 0.1 and max(p["reward_mean"] for p in curve) >= 0.4, curve
            assert judge.poll() is None
        finally:
            judge.kill()
            judge.wait()


if __name__ == "__main__":
    sys.exit(test_api.main(globals()))
