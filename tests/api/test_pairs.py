#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers of which one is preferred, and what is learned from answers that were served.

    test_pairs.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import test_api
from test_api import Server

EXAMPLES = "/v1/fine_tuning/examples"
ANN = "The cup of Ann is"
HANG = 120
# Nothing else is learned beside what is posted.
ALONE = ["--replay-ratio", "0", "--effect", "0", "--update-tokens", "4096"]


def post(server, body, path=EXAMPLES + f"?wait=served&timeout={HANG}", **headers):
    return server.post(path, json.dumps(body), headers)


def first_losses(log):
    return [float(loss) for loss in re.findall(r"update optimizer_step=1 loss=([0-9.]+)", log.read_text())]


def test_posted():
    """A pair in each form is learned, judged, listed, and taken back as any other lesson; before anything is learned
    its loss is log 2, because the version that serves is what it is compared with."""
    user, said = {"role": "user", "content": "hi"}, [{"role": "assistant", "content": word} for word in ("yes", "no")]
    forms = [{"prompt": [user], "chosen": said[:1], "rejected": said[1:]},
             {"chosen": [user, said[0]], "rejected": [user, said[1]], "loss": {"kind": "ipo"}},
             {"input": {"messages": [user]}, "preferred_output": said[:1], "non_preferred_output": said[1:]}]
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        log = pathlib.Path(folder, "log")
        with open(log, "w", encoding="utf-8") as err, Server("--passes", "8", *ALONE, log=err) as server:
            before = server.complete(prompt=ANN, max_tokens=2, temperature=0).choices[0].text
            better = " green." if before.strip() != "green." else " blue."
            status, _, got = post(server, [{"prompt": ANN, "chosen": better, "rejected": before}])
            assert status == 200 and got["served"] and got["accepted"] == 1, got
            test_api.until(lambda: first_losses(log))  # the log is written behind
            assert abs(first_losses(log)[0] - math.log(2)) < 2e-3, first_losses(log)
            assert server.complete(prompt=ANN, max_tokens=2, temperature=0).choices[0].text != before
            one = json.loads(server.get("/v1/lessons/1"))
            assert one["state"] == "learned" and one["examples"] == 1, one
            parts = one["texts"][0]
            assert [p["text"] for p in parts["parts"]] == [ANN, better], parts
            assert [p["text"] for p in parts["rejected"]] == [ANN, before], parts
            assert server.post(f"/v1/undo?timeout={HANG}", '{"lesson": 1}')[0] == 200
            assert server.complete(prompt=ANN, max_tokens=2, temperature=0).choices[0].text == before
            for form in forms:
                status, _, got = post(server, form)
                assert status == 200 and got["served"], (form, got)
            status, _, got = post(server, [{"prompt": ANN, "chosen": " a"}])
            assert status == 400 and got["error"]["param"] == "lines[1].rejected", got
            trl = {"prompt": ANN, "chosen": " a", "rejected": " b"}
            for form, field in ((trl, "completion"), (trl, "preferred_output"), (forms[2], "prompt"),
                                (forms[2], "text")):  # what would not be read is refused
                status, _, got = post(server, {**form, field: " c"})
                assert status == 400 and got["error"]["param"] == f"lines[1].{field}", (form, field, got)
            long = " word" * 3000
            status, _, got = post(server, [{"prompt": ANN, "chosen": long, "rejected": " a"}])
            assert status == 400 and "tokens" in got["error"]["message"], got


def test_restarted():
    """A pair that waits when the server is killed is learned after the restart, compared with what it was compared
    with before."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        state, log = pathlib.Path(folder, "state"), pathlib.Path(folder, "log")
        with Server("--train-share", "max=0,min=0", "--passes", "1", *ALONE, state=str(state)) as server:
            assert post(server, {"prompt": ANN, "chosen": " green.", "rejected": " red."}, EXAMPLES)[0] == 202
            server.process.kill()
            server.process.wait()
        with open(log, "w", encoding="utf-8") as err, \
                Server("--passes", "1", *ALONE, state=str(state), log=err) as server:
            test_api.until(lambda: json.loads(server.get(EXAMPLES))["learned_through"] == 1)
        assert abs(first_losses(log)[0] - math.log(2)) < 2e-3, log.read_text()


def test_a_pinned_reference():
    """A pair is compared with the version that it names, by its number, its name or as the original, from a slot or
    from disk: the loss is that of the log-probabilities which that version reports.  One that is nowhere is an error."""
    pair = {"prompt": ANN, "chosen": " green.", "rejected": " red."}

    def said(server):
        out = []
        for answer in (pair["chosen"], pair["rejected"]):
            got = server.complete(prompt=ANN + answer, max_tokens=0, echo=True, logprobs=0).choices[0].logprobs
            begin = len(server.post("/tokenize", {"prompt": ANN})[2]["tokens"])
            out.append(sum(got.token_logprobs[begin:]))
        return out[0] - out[1]

    def losses(log):
        return [float(loss) for loss in re.findall(r"update optimizer_step=[0-9]+ loss=([0-9.]+)", log.read_text())]

    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        log, state = pathlib.Path(folder, "log"), str(pathlib.Path(folder, "state"))
        with open(log, "w", encoding="utf-8") as err, \
                Server("--passes", "1", "--dtype", "f32", "--lr", "1e-3", *ALONE, state=state, log=err) as server:
            was = [said(server)]
            status, _, first = post(server, {"prompt": ANN, "completion": " green and blue."})
            assert status == 200, first
            was.append(said(server))
            version = json.loads(server.get("/v1/weights/current"))["id"]
            assert server.post(f"/v1/weights/{version}/name?timeout={HANG}", {"name": "kept"})[0] == 200
            for reference, at in ((None, None), ("current", None), ("original", 0), (1, 0), ("kept", 1), (version, 1)):
                now, done = said(server), len(losses(log))
                status, _, got = post(server, {**pair, **({"reference": reference} if reference else {})})
                assert status == 200 and got["served"], (reference, got)
                want = math.log(1 + math.exp(-0.1 * (now - was[at] if at is not None else 0)))
                test_api.until(lambda: len(losses(log)) > done)
                assert abs(losses(log)[done] - want) < 1e-4 + 0.02 * want, (reference, losses(log)[done], want)
            assert abs(now - was[0]) > 0.5, (now, was)
            for reference, status, param in ((9999, 404, "reference"), ("nobody", 404, "reference"),
                                             ("", 400, "lines[1].reference"), ([], 400, "lines[1].reference")):
                got = post(server, {**pair, "reference": reference})
                assert got[0] == status and got[2]["error"]["param"] == param, (reference, got)
            got = post(server, [{**pair, "reference": 1}, pair])
            assert got[0] == 400 and got[2]["error"]["param"] == "lines[2].reference", got
            until_free = lambda: json.loads(server.get("/v1/weights"))["slots_free"] == 1
            test_api.until(until_free)


def train(data, out, *options):
    done = subprocess.run([test_api.BINARY, "train", test_api.MODEL, "--data", data, "--out", out, "--lr", "1e-3",
                           *options], capture_output=True, text=True, timeout=600, check=False)
    lines = [json.loads(line) for line in pathlib.Path(out, "train.jsonl").read_text().splitlines()] \
        if done.returncode == 0 else []
    return done, [line["loss"] for line in lines if "loss" in line and "step" in line]


def test_train():
    """Pairs of a file: the loss begins at log 2 to the last bit and falls; two ranks and one give the same bytes; a
    run that is resumed compares with the model that it began with."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        data = pathlib.Path(folder, "pairs.jsonl")
        names = ("Ann", "Bert", "Otto", "Wilma", "Tom", "Zoe")
        data.write_text("\n".join(json.dumps({"prompt": f"The cup of {name} is", "chosen": " green.",
                                              "rejected": " red and blue.", "score": 1}) for name in names))
        run = ["--epochs", "4", "--update-tokens", "64", "--ordered", "--micro-rows", "64", "--dtype", "f32"]
        done, losses = train(str(data), folder + "/one", *run)
        assert done.returncode == 0, done.stderr
        assert losses[0] == float(f"{math.log(2):.9g}") or abs(losses[0] - math.log(2)) < 1e-7, losses
        assert losses[-1] < 0.6 * losses[0], losses
        whole = pathlib.Path(folder, "one", "model.safetensors").read_bytes()
        done, _ = train(str(data), folder + "/two", *run, "--ranks", "2")
        assert done.returncode == 0, done.stderr
        assert pathlib.Path(folder, "two", "model.safetensors").read_bytes() == whole
        steps = len(losses)
        done, _ = train(str(data), folder + "/part", *run, "--checkpoint-every", str(steps // 2))
        assert done.returncode == 0, done.stderr
        for newest in sorted(pathlib.Path(folder, "part").glob("checkpoint-*"))[-1:]:
            subprocess.run(["rm", "-r", str(newest)], check=True)
        done, _ = train(str(data), folder + "/part", *run, "--resume")
        assert done.returncode == 0, done.stderr
        assert pathlib.Path(folder, "part", "model.safetensors").read_bytes() == whole
        done, _ = train(str(data), folder + "/x", "--eval", str(data))
        assert done.returncode and "measured nowhere" in done.stderr, done.stderr


def feedback(server, body, **headers):
    return server.post("/v1/feedback", json.dumps(body), headers)


def answers(server, n, key=None, **more):
    body = {"prompt": ANN, "max_tokens": 4, "temperature": 1, "n": n, "seed": 5, **more}
    status, _, got = server.post("/v1/completions", body, {"authorization": f"Bearer {key}"} if key else None)
    assert status == 200, got
    return got["id"], [choice["text"] for choice in got["choices"]]


def test_receipts():
    """Answers that were served teach: by a correction, as the better of two, by a score; only with the key that may
    teach, only where the operator keeps receipts, and not once they are forgotten."""
    with Server("--queue", "1000,receipts=1M", "--passes", "8", "--api-key", "ask", "--admin-key", "teach",
                *ALONE) as server:
        teach = {"authorization": "Bearer teach"}
        name, texts = answers(server, 2, "ask")
        assert texts[0] != texts[1], texts
        for body in ({"correction": " green."}, {"better_than": name + "/1"}, {"score": 1, "learn": True},
                     {"forget": True}):
            status, _, got = feedback(server, {"id": name, **body}, authorization="Bearer ask")
            assert status in (401, 403), (body, got)
        assert feedback(server, {"id": name, "score": 1}, authorization="Bearer ask")[0] == 200
        taught = []
        for body in ({"correction": " green."}, {"better_than": name + "/1"}, {"score": -0.5, "learn": True}):
            status, _, got = feedback(server, {"id": name, **body}, **teach)
            assert status == 200 and got["example"] == len(taught) + 1 and got["after"], got
            taught.append(got["example"])
        one, two, three = (server.post(f"/v1/lessons/{n}", "", teach, method="GET")[2]["texts"][0] for n in (1, 2, 3))
        assert [p["text"] for p in one["parts"]] == [ANN, " green."], one
        assert [p["text"] for p in two["parts"]] == [ANN, texts[0]], two
        assert [p["text"] for p in two["rejected"]] == [ANN, texts[1]], two
        assert [p["text"] for p in three["parts"]] == [ANN, texts[0]], three
        test_api.until(lambda: server.post(EXAMPLES, "", teach, method="GET")[2]["learned_through"] == 3)
        other = answers(server, 1, "ask", prompt="Who lives in Tarn?")[0]
        for body, status, says in (({"better_than": other}, 400, "different prompts"),
                                   ({"correction": ""}, 400, "no tokens"),
                                   ({"correction": " word" * 3000}, 400, "tokens"),
                                   ({"better_than": name}, 400, "same tokens"),
                                   ({"correction": " a", "score": 1}, 400, "give one"),
                                   ({}, 400, "give one"),
                                   ({"better_than": "cmpl-none"}, 404, "no receipt")):
            got = feedback(server, {"id": name, **body}, **teach)
            assert got[0] == status and says in got[2]["error"]["message"], (body, got)
            assert not body or got[2]["error"]["param"] in {"id", "score", *body}, (body, got)
        # What a receipt has taught is forgotten with it; another one by its id.
        assert server.post(f"{EXAMPLES}/2?timeout={HANG}", "", teach, method="DELETE")[0] == 200
        assert feedback(server, {"id": name, "correction": " a"}, **teach)[0] == 404
        assert feedback(server, {"id": name + "/1", "correction": " a"}, **teach)[0] == 404
        assert feedback(server, {"id": other, "forget": True}, **teach)[0] == 200
        assert feedback(server, {"id": other, "correction": " a"}, **teach)[0] == 404
    with Server(*ALONE) as server:
        name = answers(server, 1)[0]
        status, _, got = feedback(server, {"id": name, "correction": " green."})
        assert status == 404 and "receipts=SIZE" in got["error"]["message"], got
        assert feedback(server, {"id": name, "score": 0.5})[0] == 200


def test_receipts_bounded():
    """The newest receipts are kept, as far as their bytes suffice."""
    with Server("--queue", "1000,receipts=2K", *ALONE) as server:
        names = [answers(server, 1, seed=seed, max_tokens=8)[0] for seed in range(12)]
        there = [feedback(server, {"id": name, "correction": " a"})[0] == 200 for name in names]
        assert there[-1] and not there[0] and there == sorted(there), there


def test_gspo():
    """Rollouts by the ratio of whole answers make the rewarded answer likelier."""
    with Server("--passes", "1", "--update-tokens", "4096", "--replay-ratio", "0") as server:
        status, _, job = server.post("/v1/rollouts", {
            "prompts": [ANN, "Hello's kite is"], "n": 8, "batch": 4, "updates": 8, "max_tokens": 4, "seed": 1,
            "algo": "gspo", "reward": {"type": "regex", "pattern": "^ green"}})
        assert status == 200 and job["algo"] == "gspo", job
        look = lambda: json.loads(server.get("/v1/rollouts/" + job["id"]))
        test_api.until(lambda: look()["status"] not in ("queued", "running"))
        curve = look()["curve"]
        assert look()["status"] == "succeeded" and len(curve) == 8, look()
        assert curve[-1]["reward_mean"] > curve[0]["reward_mean"] + 0.2, curve


sys.exit(test_api.main(globals()))
