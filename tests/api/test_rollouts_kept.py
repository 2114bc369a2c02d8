#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of rollouts go on after a kill or a stop of the server, and learn each of their groups once.

    test_rollouts_kept.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import concurrent.futures
import pathlib
import signal
import sqlite3
import sys
import tempfile
import threading
import time

import test_api
from test_api import Server, until
from test_rollouts import LEARNS, begin, end, look, rows

UPDATES = 240  # of the job that is killed again and again


def test_a_kill_loses_no_sample_and_repeats_none():
    """After kill -9 the job goes on; what it had committed is learned once."""
    interrupt(signal.SIGKILL)


def test_a_stop_does_not_wait_for_jobs():
    """The same, in order."""
    assert interrupt(signal.SIGTERM) == 0


def test_each_group_is_learned_once():
    """However often the server is killed, a job has in the end learned each of its groups once, and shows the curve of
    all its updates."""
    prompts = [f"{name}'s {thing} is" for name in ("Bert", "Ann", "Otto", "Wilma", "Hello", "Rupert", "Helga", "Mercy")
               for thing in ("kite", "cup", "bell", "blanket", "basket", "shirt")]
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        options = [*LEARNS, "--effect", "0", "--checkpoint-every", "5", "--queue", "65536,rollouts=64K"]  # three groups
        path, before, seen, kills, holds = None, 0, [], 0, set()
        while True:
            with Server(*options, state=state) as server:
                path = path or begin(server, prompts=prompts, n=2, updates=UPDATES, batch=2, advantage="none",
                                     reward={"type": "regex", "pattern": "^"}, max_staleness=8)
                holds.add(held(server))
                job = look(server, path)
                assert job["status"] in ("queued", "running", "succeeded"), job
                assert job["updates"]["learned"] >= before and [p["update"] for p in job["curve"]] == list(
                    range(1, job["updates"]["learned"] + 1)), job
                while kills < 8 and job["status"] != "succeeded" and job["updates"]["learned"] < before + 5 + kills:
                    job = look(server, path)
                    holds.add(held(server))
                if kills < 8 and job["status"] != "succeeded":
                    before, seen = job["updates"]["learned"], job["curve"]
                    time.sleep(0.002 * kills)
                    server.process.kill()
                    server.process.wait(test_api.HANG)
                    kills += 1
                    continue
                job = end(server, path)
                assert job["curve"][:before] == seen and len(job["curve"]) == UPDATES and kills > 3, (job, kills)
                assert job["samples"]["committed"] == 4 * UPDATES and job["samples"]["stale"] == job["samples"]["late"] == 0, job
                until(lambda: look(server, test_api.EXAMPLES)["learned_through"] == 4 * UPDATES)
                check_learned_once(server, 4 * UPDATES)
                wanted = {tuple(server.post("/tokenize", {"prompt": p})[2]["tokens"]) for p in prompts}
            break
        assert len(holds) > 1 and max(holds) > 40000, holds  # it waits, and is never above
        learned = [tokens[:min(losses)] for tokens, losses in rows(state, 0)]
        assert sorted(learned) == sorted(4 * UPDATES // 48 * list(wanted)), learned
        with sqlite3.connect(pathlib.Path(state, "samples.db")) as log:
            assert not log.execute("SELECT key FROM meta WHERE key LIKE 'rollout%-%' AND key != 'rollouts-0'").fetchall()


def held(server):
    ret = server.metric("hzpserve_rollouts_bytes")
    assert ret <= server.metric("hzpserve_rollouts_bytes_max") == 65536, ret
    return ret


def test_an_ended_job_keeps_its_curve():
    """After a restart a job that has ended shows the curve that it had, as long as it is in the list; one that was
    cancelled says so at once, and does not go on, however soon the server is killed."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*LEARNS, state=state) as server:
            ended = end(server, begin(server, updates=2))
            path = begin(server, updates=1000)
            until(lambda: look(server, path)["updates"]["learned"])
            status, _, job = server.post(path, "", method="DELETE")
            assert status == 200 and job["status"] == "cancelled", job
            server.process.kill()
            server.process.wait(test_api.HANG)
        with Server(*LEARNS, state=state) as server:
            assert look(server, "/v1/rollouts/rollout-1") == ended and len(ended["curve"]) == 2, ended
            assert look(server, path)["status"] == "cancelled", look(server, path)
            until(server.idle)
            for _ in range(17):
                other = begin(server, reward={"type": "client"})
                assert server.post(other, "", method="DELETE")[2]["status"] == "cancelled"
            assert server.post("/v1/rollouts/rollout-1", "", method="GET")[0] == 404
        with sqlite3.connect(pathlib.Path(state, "samples.db")) as log:
            assert not log.execute("SELECT key FROM meta WHERE key LIKE 'curve-%'").fetchall()


def test_more_jobs_than_are_kept():
    """A job that runs goes on however many newer ones have ended."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*LEARNS, state=state) as server:
            path = begin(server, reward={"type": "client"})
            for _ in range(17):
                other = begin(server, reward={"type": "client"})
                assert server.post(other, "", method="DELETE")[0] == 200
            server.process.kill()
            server.process.wait(test_api.HANG)
        with Server(*LEARNS, state=state) as server:
            until(lambda: look(server, path)["status"] == "running")


def test_looked_at_while_it_ends():
    """The counts of a job are read while it is cancelled and its answers are freed."""
    stop = threading.Event()

    def scrape(server):
        while not stop.is_set():
            server.get("/metrics")

    words = {"type": "model", "template": "{text} Is it good?", "words": [" Yes", " No"]}
    with Server(*LEARNS) as server, concurrent.futures.ThreadPoolExecutor(3) as threads:
        scraping = [threads.submit(scrape, server) for _ in range(3)]
        try:
            for i in range(12):
                path = begin(server, prompts=["Tom lives in"] * 64, n=16, batch=16, max_tokens=8, train=False, updates=None,
                             reward=words)
                time.sleep(0.03 + 0.015 * i)
                server.post(path, "", method="DELETE")
                until(lambda: look(server, path)["status"] not in ("queued", "running"))
        finally:
            stop.set()
        for one in scraping:
            one.result()


def test_what_does_not_go_on():
    """A job whose reference was the version from its beginning has failed after a restart, and so has one that learns
    nothing; one that the next server cannot take says why."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*LEARNS, "--slots", "3", state=state) as server:
            client = {"type": "client"}
            paths = [begin(server, kl=0.1, reward=client), begin(server, train=False, reward=client),
                     begin(server, reward=client), begin(server, batch=30, reward=client, updates=1)]
            until(lambda: look(server, paths[0])["samples"]["waiting"])
            server.process.kill()
            server.process.wait(test_api.HANG)
        with Server(*LEARNS[:2], "--update-tokens", "2048", state=state) as server:
            jobs = [look(server, path) for path in paths]
            assert [job["status"] for job in jobs] == ["failed", "failed", "running", "failed"], jobs
            assert "the server stopped" in jobs[0]["reason"] and "the server stopped" in jobs[1]["reason"], jobs
            assert "--update-tokens" in jobs[3]["reason"], jobs
            server.post(paths[2], "", method="DELETE")
            end(server, paths[2], "cancelled")
        with Server(*LEARNS, state=state) as server:
            assert [look(server, path)["status"] for path in paths] == ["failed", "failed", "cancelled", "failed"]


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
            assert job["status"] in ("queued", "running", "succeeded"), job  # in the end all answers are green
            assert job["updates"]["learned"] >= 7 and len(job["curve"]) >= 7, job
            until(lambda: look(again, path)["updates"]["learned"] >= 9 or look(again, path)["status"] == "succeeded")
            gone = again.post(path, "", method="DELETE")[0] == 404
            job = end(again, path, "succeeded" if gone else "cancelled")
            assert job["samples"]["late"] == 0, job
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


if __name__ == "__main__":
    sys.exit(test_api.main(globals()))
