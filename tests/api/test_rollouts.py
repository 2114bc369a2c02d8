#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model gets better at what can be checked, by its own answers, while the server answers others.

    test_rollouts.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import json
import math
import os
import pathlib
import shlex
import signal
import sqlite3
import struct
import subprocess
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
    assert status == 200 and job["status"] in ("queued", "running", "succeeded"), job  # it may be a short one
    return "/v1/rollouts/" + job["id"]


def look(server, path):
    return json.loads(server.get(path))


def waiting(server, path, count, consumer="judge"):
    """The answers that a client is to reward, in their order, once there are so many."""
    until(lambda: look(server, path)["samples"]["waiting"] == count)
    return json.loads(server.get(f"/v1/samples?consumer={consumer}&count=256&columns=prompt,text"))["data"]


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
        assert len(curve) >= 6 and [p["update"] for p in curve] == list(range(1, len(curve) + 1)), job
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


def command(server, *words, **popen):
    return subprocess.Popen([test_api.BINARY, *words, "--url", server.url], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **popen)


def run(server, *words, status=0):
    process = command(server, *words)
    out, err = process.communicate(timeout=test_api.HANG)
    assert process.returncode == status, (words, process.returncode, out, err)
    return out, err


def readme():
    """The commands of the README's section, as words without the program."""
    text = pathlib.Path(__file__).parents[2].joinpath("README.md").read_text()
    section = text.split("## Learning from its own answers\n")[1].split("\n## ")[0].replace("\\\n", "")
    program = "    build/hzpserve "
    return [shlex.split(line[len(program):]) for line in section.splitlines() if line.startswith(program)]


def test_a_new_user():
    """The walk of the README, by its own commands: the model gets better at a task while it answers others, the curve
    is drawn, and the model goes back to what it was; then a job from a file, and back to a version that no directory
    has."""
    (_, *serve), learn = readme()
    with Server(*serve) as server, tempfile.TemporaryDirectory() as there:
        first, answered, stop = greedy(server), [], threading.Event()

        def ask():
            while not stop.is_set():
                answered.append(server.complete(max_tokens=8).choices[0].text)
                time.sleep(0.02)

        others = threading.Thread(target=ask)
        others.start()
        out, _ = run(server, *learn)
        stop.set()
        others.join()
        assert len(answered) > 10, len(answered)
        lines = out.splitlines()
        assert lines[0].startswith("rollout-1: 8 answers to each prompt, 12 updates") and "update" in lines[1], out
        points = [line.split() for line in lines[2:] if line.lstrip()[:1].isdigit()]
        curve = look(server, "/v1/rollouts/rollout-1")["curve"]
        assert len(points) == len(curve) >= 6, out
        assert [p[:2] for p in points] == [[str(c["update"]), f"{c['reward_mean']:.3f}"] for c in curve], (out, curve)
        bars = [line.count("#") for line in lines[2:2 + len(curve)]]
        assert bars == [round(32 * c["reward_mean"]) for c in curve] and max(bars) >= 10, (bars, curve)
        assert lines[-2].startswith("rollout-1 succeeded") and lines[-1].endswith("hzpserve undo original"), out
        better = greedy(server)
        assert any(text.startswith(" green") for text in better), better
        # A second job, from a file: the version before it has a name.
        data = pathlib.Path(there, "tasks.jsonl")
        data.write_text("".join(json.dumps({"q": p, "a": "red"}) + "\n\n" for p in PROMPTS))
        out, _ = run(server, "rollout", "exact", "--data", str(data), "--prompt-field", "q", "--completion-field", "a",
                     "--extra-body", '{"reward": {"type": "length", "tokens": 2}, "batch": 2}', "--total-steps", "2",
                     "--max-tokens", "4", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["object"] for line in lines] == ["rollout.update"] * 2 + ["rollout"], lines
        assert lines[-1]["batch"] == 2 and lines[-1]["back"] == "before-rollouts", lines
        assert [line["update"] for line in lines[:-1]] == [1, 2] and lines[0]["id"] == "rollout-2", lines
        # A job that is refused takes the name from no version.
        run(server, "rollout", "exact", "a", status=1)
        run(server, "undo", "before-rollouts")
        assert greedy(server) == better
        run(server, "undo", "original")
        assert greedy(server) == first


def begun(process):
    """Its job's number, when it has printed that it has posted it."""
    line = process.stdout.readline()
    assert line.startswith("rollout-"), (line, process.stderr.read())
    return "/v1/rollouts/" + line.split(":")[0]


def test_the_command_ends():
    """Ctrl-C cancels the command's own job and leaves another's; SIGTERM leaves it; a job that fails is status 1."""
    with Server(*LEARNS) as server:
        words = ["rollout", "regex=^ green", *PROMPTS, "--max-tokens", "4", "--total-steps", "4000"]
        for number, status, job in [(signal.SIGINT, 130, "cancelled"), (signal.SIGTERM, 143, "running")]:
            process = command(server, *words)
            path = begun(process)
            until(lambda: look(server, path)["updates"]["learned"] >= 1)
            process.send_signal(number)
            out, err = process.communicate(timeout=test_api.HANG)
            assert process.returncode == status and look(server, path)["status"] == job, (out, err, look(server, path))
            assert (" goes on; " in err) == (job == "running"), err
        process = command(server, "rollout", "rollout-2")
        assert "update" in process.stdout.readline() and process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=test_api.HANG)
        assert process.returncode == 130 and " goes on; " in err and look(server, path)["status"] == "running", err
        process = command(server, "rollout", "rollout-2", "--json")
        server.post(path, "", method="DELETE")
        out, err = process.communicate(timeout=test_api.HANG)
        assert process.returncode == 1 and json.loads(out.splitlines()[-1])["status"] == "cancelled", (out, err)
        with tempfile.TemporaryDirectory() as there:
            data = pathlib.Path(there, "tasks.jsonl")
            for text, says in [('{"prompt": "a"}\nx\n', ":2: it is no JSON"), ('{"question": "a"}\n', ':1: it has neither'),
                               ('{"prompt": "a"}\n{"messages": []}\n', ":2: it has messages")]:
                data.write_text(text)
                assert says in run(server, "rollout", "json", "--data", str(data), status=1)[1], says
            assert "cannot be read" in run(server, "rollout", "json", "--data", there, status=1)[1]
        for words, status, says in [(["none"], 1, "reward.type"), (["number=3", "a"], 2, "is no reward"), ([], 2, "usage"),
                                    (["exact", "a"], 1, "answers"), (["json"], 1, "prompts or messages"),
                                    (["json", "a", "--extra-body", "[]"], 2, "--extra-body"),
                                    (["rollout-77"], 1, "no job")]:
            assert says in run(server, "rollout", *words, status=status)[1], says


def test_train_without_a_server():
    """One command makes the model better by its own answers, and writes it.  Ended by a signal, or killed, it goes on
    with --resume; what is wrong is named, and leaves nothing behind."""
    with tempfile.TemporaryDirectory() as there:
        data, out, other = (pathlib.Path(there, name) for name in ("tasks.jsonl", "out", "other"))
        data.write_text("".join(json.dumps({"prompt": p, "reward": TASK["reward"]}) + "\n" for p in PROMPTS))
        program = [test_api.BINARY, "train", test_api.MODEL]
        own = ["--data", str(data), "--max-tokens", "4", "--update-tokens", "4096"]

        def train(*words):
            return subprocess.run([*program, *own, *words], capture_output=True, text=True, timeout=test_api.HANG)

        done = train("regex=^ green", "--algo", "reinforce", "--out", str(out), "--lr", "2e-4", "--total-steps", "12",
                     "--json")
        *curve, job = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0 and job["status"] == "succeeded" and job["algo"] == "reinforce", done
        assert [json.loads(line) for line in (out / "train.jsonl").open()] == curve and len(curve) >= 5, done
        assert curve[0]["reward_mean"] <= 0.1 and max(p["reward_mean"] for p in curve) >= 0.3, curve
        said = [subprocess.run([program[0], "complete", str(out), prompt, "--max-tokens", "4", "--temperature", "0"],
                               capture_output=True, text=True, check=True, timeout=test_api.HANG).stdout
                for prompt in PROMPTS]
        assert any(text.startswith(" green") for text in said), said
        log, words = other / "train.jsonl", ["--algo", "gspo", "--out", str(other), "--lr", "1e-5"]
        for number in (signal.SIGINT, signal.SIGKILL):
            process = subprocess.Popen([*program, *own, *words, "--total-steps", "4000"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            seen = log.read_text().count("\n") if log.exists() else 0
            until(lambda: process.poll() is not None or (log.exists() and log.read_text().count("\n") > seen + 2))
            process.send_signal(number)
            err = process.communicate(timeout=test_api.HANG)[1]
            assert process.returncode == (130 if number == signal.SIGINT else -number), err
            assert number == signal.SIGKILL or "--resume" in err.splitlines()[-1], err
            words += ["--resume"] if number == signal.SIGINT else []
        last = json.loads(log.read_text().splitlines()[-1])["optimizer_step"] + 2
        assert "--out" in train(*words[:-1]).stderr and not (other / "model.safetensors").exists()
        done = train(*words, "--total-steps", str(last))
        steps = [json.loads(line)["optimizer_step"] for line in log.open()]
        assert done.returncode == 0 and steps[-1] == last and (other / "model.safetensors").exists(), (done, steps)
        with sqlite3.connect(other / "state" / "samples.db") as log:  # a server goes on with none of its jobs
            assert not log.execute("SELECT key FROM meta WHERE key LIKE 'rollout_body-%'").fetchall()
            assert "running" not in log.execute("SELECT value FROM meta WHERE key = 'rollouts-0'").fetchone()[0]
        good = ["--algo", "grpo", "--out", f"{there}/none"]
        for wrong, says in [(["--resume"], "--resume"), (["--eval", "x"], "--eval"), (["--epochs", "2"], "--epochs"),
                            (["--ranks", "2"], "--ranks"), (["--too-long", "cut"], "--too-long"),
                            (["json"], ":1: its reward"), (["none=1"], "is no reward"),
                            (["--extra-body", '{"reference": "client"}'], "needs a server"),
                            (["--extra-body", '{"environment": {"type": "client"}}'], "needs a server"), (["--algo", "ppo"], "--algo"),
                            (["--extra-body", '{"reward": {"type": "exact"}}'], "answers"),
                            (["--algo", "none", "--n", "4"], "--n"),
                            (["--extra-body", '{"batc": 1}'], "batc"), (["--update-tokens", "9"], "--update-tokens"),
                            (["--total-steps", "9999"], "updates"), (["--algo", "none", "json"], "--algo")]:
            done = train(*good, *wrong)
            assert done.returncode in (1, 2) and says in done.stderr, (wrong, done)
        long = data.read_text() + "\n" + json.dumps({"prompt": "word " * 4000}) + "\n"
        (pathlib.Path(there) / "long.jsonl").write_text(long)
        done = train(*good, "--data", f"{there}/long.jsonl")
        assert done.returncode == 1 and f"{there}/long.jsonl:{len(PROMPTS) + 2}: " in done.stderr, done
        done = train(*good, "--extra-body", '{"reward": {"type": "regex", "pattern": "^never said$"}}')  # teaches nothing
        assert done.returncode == 1 and "nothing more to learn" in done.stdout, done
        assert not os.path.exists(f"{there}/none")


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


def tensors(directory):
    """The values of the model's F32 tensors, by name."""
    data = pathlib.Path(directory, "model.safetensors").read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    for name, about in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            assert about["dtype"] == "F32", about
            begin, stop = about["data_offsets"]
            yield name, memoryview(data)[8 + size + begin:8 + size + stop].cast("f")


def test_frozen_rows():
    """Rows as a job writes them move each parameter as TRL's loss does in PyTorch (dev/rollout_rows.py)."""
    known = json.loads(pathlib.Path(__file__).parents[1].joinpath("data", "rollout_rows.json").read_text())
    assert sum(case["clipped"] for case in known["cases"]) > 5  # beyond the clip
    mean = sum(len(row["answer"]) for row in known["rows"]) / len(known["rows"])
    for case in known["cases"]:
        with Server(*LEARNS, "--lr", "1", "--adamw", "eps=1", "--clip", "0", "--warmup-steps", "0",
                    "--effect", "0") as server:
            status, _, got = server.post("/v1/weights/current/export", {"directory": "before"})
            assert status == 200, got
            lines = []
            for row in known["rows"]:
                before, n = len(row["prompt"]), len(row["answer"])
                lines.append({"tokens": row["prompt"] + row["answer"], "learn": [0] * before + [1] * n,
                              "weights": mean / n if case["kind"] == "grpo" else 1,
                              "loss": {"kind": "ppo", "low": case["low"], "high": case["high"], "kl": case["kl"]},
                              "logprobs": [0] * before + row["old"], "advantages": row["advantage"]})
                if case["kl"]:
                    lines[-1]["reference_logprobs"] = [0] * before + row["reference"]
            status, _, got = server.post(test_api.EXAMPLES + "?wait=served&timeout=120",
                                         "\n".join(json.dumps(line) for line in lines))
            assert status in (200, 202) and got["served"], got
            assert server.metric("hzpserve_train_updates_total") == 1
            status, _, got = server.post("/v1/weights/current/export", {"directory": "after"})
            assert status == 200, got
            export = pathlib.Path(server.state.name, "export")
            old, new = dict(tensors(export / "before")), dict(tensors(export / "after"))
            for name, moved in case["moved"].items():
                for at, by in zip(moved["at"], moved["by"]):
                    assert abs(new[name][at] - old[name][at] - by) < 1e-5, (case["kind"], name, at, by)


def test_rows_are_those_of_the_job():
    """What a job commits: the tokens as they were drawn, advantages by the formula, weights by which each answer
    counts alike."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*LEARNS, state=state) as server:
            path = begin(server, reward={"type": "client"}, n=4, batch=2, updates=1, prompts=PROMPTS[:2], max_staleness=0)
            given = waiting(server, path, 8)
            rewards = {one["sample"]: (i * 7 % 5) / 4 for i, one in enumerate(given)}
            for sample, value in rewards.items():
                assert server.post(f"/v1/samples/{sample}/reward", {"value": value}, method="PUT")[0] == 200
            end(server, path)
        learned = list(rows(state, 0))
    assert len(learned) == 8, learned
    with Server("--no-train") as server:
        mean = sum(len(losses) for _, losses in learned) / 8
        for prompt in (0, 1):
            group = [one for one in given if one["prompt"] == PROMPTS[prompt]]
            worth = [rewards[one["sample"]] for one in group]
            average = sum(worth) / 4
            std = (sum((x - average) ** 2 for x in worth) / 3) ** 0.5
            for one, value, (tokens, losses) in zip(group, worth, learned[4 * prompt:4 * prompt + 4]):
                first = min(losses)
                assert sorted(losses) == list(range(first, len(tokens))), losses
                text = server.post("/detokenize", {"tokens": list(tokens[first:])})[2]["prompt"]
                assert text.startswith(one["text"]), (text, one)
                choice = server.complete(prompt=list(tokens), max_tokens=0, echo=True, logprobs=0).choices[0]
                for at, (kind, scale, old, advantage, _, kl, low, high, _, weight) in losses.items():
                    assert (kind, scale, kl) == (2, 1, 0) and abs(low - 0.2) < 1e-6 and abs(high - 0.2) < 1e-6, losses
                    assert abs(advantage - (value - average) / (std + 1e-4)) < 1e-5, (advantage, worth)
                    assert abs(weight - mean / len(losses)) < 1e-5, (weight, mean)
                    assert abs(old - choice.logprobs.token_logprobs[at]) < 1e-4, (old, at)


def test_no_sample_is_older_than_the_bound():
    """Each token that an update learned was drawn, by its logged log-probability, by one of the versions that the bound
    allows it; some by an older one than the newest."""
    updates, bound = 5, 2
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*LEARNS, "--effect", "0", "--lr", "1e-3", state=state) as server:
            path = begin(server, reward={"type": "client"}, n=4, batch=1, updates=updates, prompts=PROMPTS[:1],
                         max_staleness=bound)
            models = [test_api.MODEL]
            for update in range(1, updates + 1):  # one at a time, when all that may begin has been answered
                open_groups = min(bound + 1, updates - update + 1)
                for i, one in enumerate(waiting(server, path, 4 * open_groups, f"judge-{update}")[:4]):
                    server.post(f"/v1/samples/{one['sample']}/reward", {"value": i % 2}, method="PUT")
                until(lambda: look(server, path)["updates"]["learned"] == update)
                status, _, got = server.post("/v1/weights/current/export", {"directory": f"u{update}"})
                assert status == 200, got
                models.append(str(pathlib.Path(state, "export", f"u{update}")))
            job = end(server, path)
            assert job["samples"]["stale"] == job["samples"]["late"] == 0, job
            assert [p["staleness"] for p in job["curve"]] == [0, 1, 2, 2, 2], job
        learned = list(rows(state, 0))
        assert len(learned) == 4 * updates, learned
        by = []  # by each model: for each row what it says of each token
        for test_api.MODEL in models:
            with Server("--no-train") as server:
                by.append([server.complete(prompt=list(tokens), max_tokens=0, echo=True,
                                           logprobs=0).choices[0].logprobs.token_logprobs for tokens, _ in learned])
        test_api.MODEL = models[0]
    older = 0
    for row, (_, losses) in enumerate(learned):
        newest = row // 4  # the model that the update began from
        for at, how in losses.items():
            fits = [m for m in range(len(models)) if abs(by[m][row][at] - how[2]) < 1e-4]
            assert any(newest - bound <= m <= newest for m in fits), (row, at, how, [b[row][at] for b in by])
            older += fits == [newest - bound]
    assert older > 8, older


def rows(state, last):
    """Tokens, and of those that are learned the terms of their loss and the weight, of the log's samples behind one."""
    with sqlite3.connect(pathlib.Path(state, "samples.db")) as log:
        for count, data in log.execute("SELECT count, data FROM samples WHERE sequence_number > ?", (last,)):
            tokens = struct.unpack_from(f"<{count}i", data)
            bits = data[4 * count:]
            weighted = len(data) > 40 * count + (count + 7) // 8
            weights = struct.unpack_from(f"<{count}f", data, len(data) - 40 * count) if weighted else [1.0] * count
            how = [struct.unpack_from("<i8f", data, len(data) - 36 * (count - i)) + (weights[i],) for i in range(count)]
            yield tokens, {i: how[i] for i in range(count) if bits[i // 8] >> i % 8 & 1}


def test_each_point_has_a_reward():
    """Updates that follow each other without an answer between them show the reward of their own answers, not 0."""
    with Server(*LEARNS) as server:
        path = begin(server, batch=1, n=2, updates=9, max_staleness=8, reward={"type": "client"}, advantage="none")
        for one in waiting(server, path, 18):
            assert server.post(f"/v1/samples/{one['sample']}/reward", {"value": 0.5}, method="PUT")[0] == 200
        job = end(server, path)
        assert len(job["curve"]) == 9 and all(p["reward_mean"] == 0.5 for p in job["curve"]), job


def test_a_reference():
    """With kl each row has the log-probability of the version from before the job, which keeps its slot as long; a large
    coefficient holds the model near it."""
    ends = []
    for kl in (1e-6, 2):
        with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
            with Server(*LEARNS, "--slots", "3", state=state) as server:
                curve = end(server, begin(server, kl=kl, updates=10))["curve"]
                assert curve[0]["kl"] < 1e-6 and all(p["kl"] >= 0 for p in curve), curve
                ends.append(curve[-1]["kl"])
                until(lambda: look(server, "/v1/weights")["slots_free"] == 2)
                last = look(server, test_api.EXAMPLES)["last"]
            learned = list(rows(state, last - 16))
        checked = 0
        with Server("--no-train") as server:
            for tokens, losses in learned:
                choice = server.complete(prompt=list(tokens), max_tokens=0, echo=True, logprobs=0).choices[0]
                for at, how in losses.items():
                    want = choice.logprobs.token_logprobs[at]
                    assert abs(how[4] - want) < 1e-4 and abs(how[5] / kl - 1) < 1e-6, (at, how, want)
                    checked += abs(how[2] - want) > 0.01  # the policy has moved away from it
        assert checked > 10, checked
    assert ends[1] < ends[0] / 3 and ends[0] > 0.01, ends
    with Server(*LEARNS) as server:
        refused(server, "kl", "--slots 3", kl=0.1)
        refused(server, "kl", kl=-1)
        end(server, begin(server, kl=0.1, train=False, n=1))
    with Server(*LEARNS, "--slots", "3") as server:  # a job that is cancelled gives its slot back; so does a stop
        path = begin(server, kl=0.1, updates=1000)
        while look(server, path)["updates"]["learned"] < 5:  # beside requests, between which it computes answers again
            assert len(server.complete(max_tokens=8).choices) == 1
            time.sleep(0.01)
        assert look(server, "/v1/weights")["slots_free"] <= 1
        server.post(path, "", method="DELETE")
        until(lambda: look(server, "/v1/weights")["slots_free"] == 2)
        end(server, path, "cancelled")
        assert server.metric("hzpserve_rollouts_running") == 0
        begin(server, kl=0.1, updates=1000)


def test_a_client_rewards():
    """Each answer waits for its reward; those that get none in time are lost, and hold up no group."""
    with Server(*LEARNS) as server:
        path = begin(server, reward={"type": "client", "timeout": 3}, n=4, batch=2, updates=1, prompts=PROMPTS[:2],
                     algo="reinforce", max_staleness=0)
        given = waiting(server, path, 8)
        assert {one["prompt"] for one in given} == set(PROMPTS[:2]) and all(one["text"] for one in given), given
        assert server.metric("hzpserve_rollouts_waiting") == 8
        for i, one in enumerate(given):
            where = f"/v1/samples/{one['sample']}/reward"
            assert server.post(where, {"value": "1"}, method="PUT")[0] == 400
            if i % 4 != 3:
                status, _, got = server.post(where, {"value": i % 2}, method="PUT")
                assert status == 200 and got["reward"] == i % 2, got
                assert server.post(where, {"value": 2}, method="PUT")[0] == 409  # it has one
        job = end(server, path)
        assert job["samples"]["lost"] == 2 and job["samples"]["committed"] == 6, job
        assert job["updates"]["learned"] == 1 and abs(job["reward_mean"] - 1 / 3) < 1e-9, job
        assert server.post("/v1/samples/1/reward", {"value": 1}, method="PUT")[0] == 404
        assert server.post("/v1/samples/1", {"value": 1}, method="PUT")[0] == 404


JUDGE = """
import json, os, sys, time
for number, line in enumerate(sys.stdin, 1):
    asked = json.loads(line)
    assert asked["prompt"] and set(asked) == {"id", "prompt", "text", "answer"}, asked
    %s
    print(json.dumps({"id": asked["id"], "reward": float(asked["text"].startswith(" green"))}), flush=True)
"""


def judged(there, more="pass", options=(), **environment):
    """A server with this reward command, which does `more` before it answers."""
    script = pathlib.Path(there, "judge.py")
    script.write_text(JUDGE % more)
    os.environ.update(HZP_REWARD_COMMAND=f"exec {sys.executable} {script}", **environment)
    try:
        return Server(*LEARNS, *options).__enter__()
    finally:
        for name in ("HZP_REWARD_COMMAND", *environment):
            del os.environ[name]


def close(server):
    server.__exit__(None, None, None)


def test_a_command_rewards():
    """The operator's command says what answers are worth.  One that ends now and then loses an answer each time, and
    no more; its end, its silence, and a line that is no JSON fail the job when they do not stop."""
    with tempfile.TemporaryDirectory() as there:
        server = judged(there)
        job = end(server, begin(server, reward={"type": "command"}, updates=12))
        assert job["curve"][0]["reward_mean"] <= 0.1 and max(p["reward_mean"] for p in job["curve"]) >= 0.4, job
        assert job["samples"]["lost"] == 0, job
        refused(server, "reward", "no field", reward={"type": "command", "command": "true"})
        assert server.post("/v1/rollouts", {**TASK, "reward": {"type": "command", "timeout": 0}})[0] == 400
        close(server)
        # It ends at each hundredth line, with questions open.
        server = judged(there, "if number == 100: sys.exit(3)")
        job = end(server, begin(server, reward={"type": "command"}, updates=3))
        assert 0 < job["samples"]["lost"] <= job["samples"]["answered"] / 50, job
        close(server)
        # It has no keys, is killed with its server, and answers no client's questions.
        server = judged(there, "number == 1 and open(sys.argv[0] + '.pid', 'w').write(f'{os.getpid()} {sorted(os.environ)}')",
                        ["--api-key", "reader"], HZP_ADMIN_KEY="secret")
        teacher = {"authorization": "Bearer secret"}
        path = begin(server, teacher, reward={"type": "command"}, updates=1000)
        until(lambda: server.post(path, "", teacher, "GET")[2]["samples"]["rewarded"] > 8)
        there_now = server.post("/v1/samples?consumer=meddler", "", teacher, "GET")[2]["data"]
        for sample in [row["sample"] for row in there_now] or [1]:  # 409: the job says what it is; 404: learned
            assert server.post(f"/v1/samples/{sample}/reward", {"value": 0.25}, teacher, "PUT")[0] in (404, 409)
        pid, names = pathlib.Path(there, "judge.py.pid").read_text().split(" ", 1)
        assert "HZP_ADMIN_KEY" not in names and "PATH" in names, names
        close(server)
        until(lambda: not pathlib.Path("/proc", pid).exists())
        for more, says in [("sys.exit(3)", "has ended, with status 3"), ("print('{')", "no JSON object"),
                           ("time.sleep(600)", "has not answered in time"), ("os.kill(os.getpid(), 9)", "with signal 9"),
                           ("sys.stdout.write('x' * 100000); sys.stdout.flush()", "too long")]:
            server = judged(there, more)
            how = {"type": "command", "timeout": 0.4 if "sleep" in more else 60}  # where others start slowly
            job = end(server, begin(server, reward=how, updates=1), "failed")
            assert says in job["reason"] and "5 times in a row" in job["reason"], (says, job)
            assert server.complete(max_tokens=1).choices
            close(server)


SCORES = {"type": "model", "template": "{prompt}{text} I like {it}, says {answer}, and {", "words": [" green", " red."]}


def scored(server, path, judge):
    """The rows of a job, whose rewards are what `judge` computes of the same texts; and how far apart two are."""
    answer = dict(zip(PROMPTS, "abcde"))
    until(lambda: look(server, path)["samples"]["rewarded"] == 20)
    take = "/v1/samples?consumer=judge&count=256&columns=prompt,text,reward"
    got = json.loads(server.get(take))
    server.get(f"{take}&done={got['lease']}")
    end(server, path)
    assert len(got["data"]) == 20, got
    for row in got["data"]:
        text = SCORES["template"].replace("{text}", row["text"]).replace("{answer}", answer[row["prompt"]])
        said = []
        for word in SCORES["words"]:
            choice = judge.complete(prompt=text.replace("{prompt}", row["prompt"]) + word, max_tokens=0, echo=True,
                                    logprobs=0).choices[0]
            said.append(sum(choice.logprobs.token_logprobs[1:]))
        want = 1 / (1 + math.exp(said[1] - said[0]))
        assert abs(row["reward"] - want) < 1e-3, (row, want)
    status, _, scores = judge.post("/v1/score", {  # the same, asked for by a client
        "template": SCORES["template"], "words": SCORES["words"], "model": judge.model,
        **{name: [row[name] for row in got["data"]] for name in ("text", "prompt")},
        "answer": [answer[row["prompt"]] for row in got["data"]]})
    assert status == 200 and [one["index"] for one in scores["data"]] == list(range(20)), scores
    assert all(abs(one["score"] - row["reward"]) < 1e-3 and len(set(one["weights_versions"])) == 1
               for one, row in zip(scores["data"], got["data"])), (scores, got)
    return [row["reward"] for row in got["data"]]


def test_scores():
    """What cannot be judged is refused by its name; a text is for all, a list for each; words that are not behind any
    token have no score."""
    good = {"template": "{text} is{prompt}", "text": ["Ann", "Bert"], "prompt": " so", "words": [" green", " red"]}
    with Server("--no-train") as server:
        def score(**fields):
            body = {k: v for k, v in {**good, **fields}.items() if v is not None}
            status, _, answer = server.post("/v1/score", body)
            return status, answer

        both = [one["score"] for one in score()[1]["data"]]
        each = [score(text=text)[1]["data"][0]["score"] for text in good["text"]]
        assert all(abs(a - b) < 1e-4 for a, b in zip(both, each)) and both[0] != both[1], (both, each)
        other = score(words=good["words"][::-1])[1]
        assert all(abs(a + b["score"] - 1) < 1e-4 for a, b in zip(both, other["data"])), (both, other)
        tokens = sum(len(server.post("/tokenize", {"prompt": f"{text} is so{word}"})[2]["tokens"])
                     for text in good["text"] for word in good["words"])
        assert other["usage"]["prompt_tokens"] == other["usage"]["total_tokens"] == tokens, (other, tokens)
        assert score(template="{text}", text="", prompt=None)[1]["data"][0]["score"] is None
        for fields, param in [({"text": []}, "text"), ({"text": None}, "text"), ({"text": 1}, "text"),
                              ({"text": ["a"] * 513}, "text"), ({"text": ["a"] * 129}, "text"),
                              ({"text": ["a", None]}, "text[1]"),
                              ({"text": "a\0"}, "text"), ({"text": "word " * 4 * server.context}, "text"),
                              ({"prompt": None}, "prompt"), ({"prompt": ["a"]}, "prompt"), ({"answer": "a"}, "answer"),
                              ({"template": "{prompt}"}, "template"), ({"template": None}, "template"),
                              ({"template": "{text}{text}"}, "template"), ({"words": ["a"]}, "words"),
                              ({"words": ["a", "ab"]}, "words"), ({"pinned": True}, "pinned")]:
            status, answer = score(**fields)
            assert status == 400 and answer["error"]["param"] == param, (fields, answer)
        assert len(score(text=["a"] * 128)[1]["data"]) == 128
    with Server("--no-train", "--max-waiting", "256,tokens=2000") as server:  # the text is short, the prompts are not
        status, answer = score(text=["a"] * 100, prompt=" word" * 100)
        assert status == 400 and answer["error"]["param"] == "text" and "2000" in answer["error"]["message"], answer


def test_a_model_rewards():
    """The served model says how much likelier one word is than another behind a text with the answer.  A pinned one stays
    what it was when the job began; what cannot be asked is refused, or lost, and holds up no group."""
    asked = {"train": False, "consumers": ["judge"], "n": 4, "answers": list("abcde"), "reward": SCORES}
    with Server(*LEARNS, "--slots", "3") as server, Server("--no-train") as judge:
        got = scored(server, begin(server, **asked), judge)
        assert max(got) > 2 * min(got) and all(0 < reward < 1 for reward in got), got
        path = begin(server, updates=4, answers=list("abcde"), reward={**SCORES, "pinned": True})
        curve = end(server, path)["curve"]
        assert len(curve) == 4, curve
        until(lambda: look(server, "/v1/weights")["slots_free"] == 2)
        try:
            scored(server, begin(server, **asked), judge)
            raise RuntimeError("rewards are of the model from before it learned")
        except AssertionError:
            pass
        scored(server, begin(server, **asked), server)  # of the one that serves now
        job = end(server, begin(server, train=False, answers=list("abcde"), reward={**SCORES, "timeout": 1e-6}))
        assert job["samples"]["lost"] == job["samples"]["answered"] == 40 and job["reward_mean"] is None, job
        for field, value in (("template", None), ("template", "no answer"), ("template", "{text}{text}"),
                             ("template", "{text}" + "x" * 8192), ("template", "{text}" + " word" * 1600),
                             ("words", ["a"]), ("words", ["a", "ab"]), ("words", ["a", ""]), ("words", "ab"),
                             ("pinned", 1), ("timeout", 0)):
            refused(server, "reward." + field, reward={**SCORES, field: value}, answers=list("abcde"))
        refused(server, "answers", "one for each prompt", reward=SCORES)
        refused(server, "reward", "no field", reward={**SCORES, "version": 1})
    with Server(*LEARNS) as server:
        refused(server, "reward.pinned", "--slots 3", reward={**SCORES, "pinned": True}, answers=list("abcde"))


def test_jobs_take_turns_and_are_cancelled():
    with Server(*LEARNS) as server:
        client = {"type": "client"}
        paths = [begin(server, reward=client, train=False) for _ in range(8)]
        refused(server, None, "8 jobs", status=429)
        until(lambda: look(server, paths[0])["samples"]["waiting"])
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
        refused(server, "reward.type", "HZP_REWARD_COMMAND", reward={"type": "command"})
        refused(server, "reward.type", reward={"type": "magic"})
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
        refused(server, "algo", algo="dpo")
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


if __name__ == "__main__":
    sys.exit(test_api.main(globals()))
