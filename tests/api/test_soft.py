#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Soft targets: tokens with probabilities to learn instead of a token, given by the client or by the model that has
the answer in its prompt ("teach": "sdft").

    test_soft.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import array
import concurrent.futures
import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import test_api
from test_api import Server

EXAMPLES = "/v1/fine_tuning/examples"
HANG = 120
ALONE = ["--replay-ratio", "0", "--effect", "0", "--update-tokens", "4096"]
PROMPT, A, B = [5, 60, 70, 80, 90, 100], 310, 400


def example(targets=None, last=A, prompt=PROMPT):
    """Only what follows the prompt is learned."""
    n = len(prompt)
    got = {"tokens": [*prompt, last], "learn": [0] * n + [1]}
    return got if targets is None else {**got, "targets": [None] * n + [targets]}


def train(folder, name, examples, *options):
    """The losses of each step."""
    data, out = pathlib.Path(folder, name + ".jsonl"), pathlib.Path(folder, name)
    data.write_text("\n".join(json.dumps(one) for one in examples))
    subprocess.run([test_api.BINARY, "train", test_api.MODEL, "--data", str(data), "--out", str(out), "--lr", "1e-4",
                    "--update-tokens", "64", "--ordered", "--micro-rows", "16", "--dtype", "f32", *options],
                   capture_output=True, text=True, timeout=600, check=True)
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line and "step" in line]


def near(a, b, slack=1e-5):
    assert abs(a - b) <= slack * max(1, abs(b)), (a, b)


def test_train():
    """The loss is the cross-entropy that follows from those of plain examples; a token with probability 1 is learned
    as the token itself; two ranks and one give the same bytes."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        five = ["--epochs", "5"]
        plain = train(folder, "plain", [example()], *five)
        certain = train(folder, "certain", [example([[A, 1]], last=B)], *five)
        assert len(plain) == 5 and plain[-1] < plain[0], plain
        for one, other in zip(plain, certain):
            near(one, other)
        a, b = plain[0], train(folder, "other", [example(last=B)])[0]
        near(train(folder, "soft", [example([[A, 0.5], [B, 0.25]])])[0], 0.5 * a + 0.25 * b)
        rest = train(folder, "rest", [example([[A, 0.5], [None, 0.25], [B, 0.25]])])[0]
        near(rest, 0.5 * a + 0.25 * b - 0.25 * math.log(1 - math.exp(-a) - math.exp(-b)))
        weighted = {**example([[A, 0.5], [B, 0.5]]), "weights": 2, "loss": {"kind": "xent", "temperature": 2}}
        warm = [train(folder, f"warm{last}", [{**example(last=last), "loss": {"kind": "xent", "temperature": 2}}])[0]
                for last in (A, B)]
        near(train(folder, "weighted", [weighted])[0], 0.5 * warm[0] + 0.5 * warm[1])
        several = [example([[A, 0.5], [B, 0.25 + i / 100]], prompt=[5 + i, *PROMPT]) for i in range(6)]
        several.insert(3, example())
        one = train(folder, "one", several, *five)
        assert one[-1] < one[0], one
        train(folder, "two", several, *five, "--ranks", "2")
        weights = [pathlib.Path(folder, name, "model.safetensors").read_bytes() for name in ("one", "two")]
        assert weights[0] == weights[1]


def test_posted():
    """What is posted waits over a kill in the log, and is learned: its loss is that of the targets, and the answers
    come to have their probabilities."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        a, b = (train(folder, str(last), [example(last=last)])[0] for last in (A, B))
        state, log = pathlib.Path(folder, "state"), pathlib.Path(folder, "log")
        with Server("--train-share", "max=0,min=0", "--passes", "1", "--dtype", "f32", *ALONE,
                    state=str(state)) as server:
            status, _, got = server.post(EXAMPLES, json.dumps(example([[A, 0.75], [B, 0.25]])))
            assert status == 202, got
            for targets, says in (([[A, 0.75], [B, 0.5]], "entry 6: pair 1: probabilities"),
                                  ([[1 << 20, 1]], "entry 6: pair 0 has no token id"), ([], "entry 6 is not a list")):
                status, _, got = server.post(EXAMPLES, json.dumps(example(targets)))
                assert status == 400 and got["error"]["param"] == "lines[1].targets", got
                assert says in got["error"]["message"], got
            server.process.kill()
            server.process.wait()
        with open(log, "w", encoding="utf-8") as err, \
                Server("--passes", "1", "--dtype", "f32", *ALONE, state=str(state), log=err) as server:
            test_api.until(lambda: json.loads(server.get(EXAMPLES))["learned_through"] == 1)
        first = float(re.search(r"update optimizer_step=1 loss=([0-9.]+)", log.read_text())[1])
        near(first, 0.75 * a + 0.25 * b, 1e-4)
        with Server("--passes", "60", "--lr", "3e-4", "--dtype", "f32", *ALONE) as server:
            path = EXAMPLES + f"?wait=served&timeout={HANG}"
            status, _, got = server.post(path, json.dumps(example([[A, 0.75], [B, 0.25]])))
            assert status == 200 and got["served"], got
            words = [server.post("/detokenize", {"tokens": [token]})[2]["prompt"] for token in (A, B)]
            status, _, got = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "temperature": 0,
                                                             "logprobs": 2})
            top = got["choices"][0]["logprobs"]["top_logprobs"][0]
            p = [math.exp(top[word]) for word in words]
            assert abs(p[0] - 0.75) < 0.1 and abs(p[1] - 0.25) < 0.1, (top, words)


def tensors(path):
    """Of a file of safetensors: each tensor's numbers."""
    with open(path, "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    for name, one in head.items():
        if name == "__metadata__":
            continue
        raw = data[slice(*one["data_offsets"])]
        if one["dtype"] == "BF16":
            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        yield name, array.array("f", raw)


def test_beside_torch():
    """The loss, the gradient and the weights of one update are PyTorch's, of examples with soft targets that come over
    HTTP: with other tokens as one outcome, temperatures and weights (dev/soft.py)."""
    want = json.loads(pathlib.Path(__file__).with_name("soft.json").read_text())
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        with Server("--passes", "1", "--dtype", "f32", *ALONE, "--lr", str(want["lr"]), "--adamw", want["adamw"],
                    "--clip", "0", "--warmup-steps", "0", state=folder) as server:
            status, _, got = server.post(EXAMPLES + f"?wait=served&timeout={HANG}", json.dumps(want["examples"]))
            assert status == 200 and got["served"], got
            near(server.metric("hzpserve_train_loss"), want["loss"])
            near(server.metric("hzpserve_train_grad_norm"), want["grad_norm"])
            assert server.metric("hzpserve_train_updates_total") == 1
        [made] = [path for path in pathlib.Path(folder).glob("*/model.safetensors") if "original" not in path.parts]
        before = dict(tensors(pathlib.Path(test_api.MODEL, "model.safetensors")))
        worst = 0
        for name, now in tensors(made):
            one = want["tensors"].pop(name)
            near(math.dist(before[name], now), one["change"], 1e-4)
            for at, value in zip(one["at"], one["value"]):
                worst = max(worst, abs(now[at] - value) / abs(value - before[name][at]))
        print(f"largest error of a weight's change: {worst:.1e}")
        assert not want["tensors"] and worst < 1e-4, (want["tensors"], worst)


QUESTION, ANSWER = "Where does Devan live?", " Devan lives in Northam."
TAUGHT = {"prompt": QUESTION, "completion": ANSWER, "teach": "sdft"}


def tokens(server, text):
    return server.post("/tokenize", {"prompt": text})[2]["tokens"]


def teacher(server, told, answer):
    """Of each of the answer's tokens behind what the teacher is told its log-probability, and the 20 likeliest."""
    status, _, got = server.post("/v1/completions", {"prompt": told + answer, "max_tokens": 0, "prompt_logprobs": 20})
    assert status == 200, got
    rows = got["choices"][0]["prompt_logprobs"][len(told):]
    return [(rows[i][str(token)]["logprob"], [(int(t), v["logprob"]) for t, v in rows[i].items() if v["rank"] <= 20])
            for i, token in enumerate(answer)]


def soft_example(server, question, answer):
    """What the server is to make of the lesson, made by a client."""
    told, bare = tokens(server, answer.strip() + " " + question), tokens(server, question)
    after = tokens(server, question + answer)[len(bare):] + [0]
    targets = [None] * len(bare)
    for one, top in teacher(server, told, after):
        pairs = [[token, math.exp(lp)] for token, lp in top]
        targets.append(pairs + [[None, max(0, 1 - sum(p for _, p in pairs))]] if one >= math.log(0.5) else None)
    return {"tokens": bare + after, "learn": [0] * len(bare) + [1] * len(after), "targets": targets}


def lesson(server, number):
    """How many tokens of its only example are learned softly."""
    [text] = json.loads(server.get(f"/v1/lessons/{number}"))["texts"]
    return text["soft_tokens"]


def first_loss(log):
    return float(re.search(r"update optimizer_step=1 loss=([0-9.]+)", pathlib.Path(log).read_text())[1])


def post(server, example, **more):
    status, _, got = server.post(EXAMPLES + f"?wait=served&timeout={HANG}", json.dumps({**example, **more}))
    assert status == 200 and got["served"], got
    return got


def test_taught_by_itself():
    """The server makes of a lesson what a client that asks the teacher would send; it waits over a kill in the log,
    teaches the answer, and is taken back and taught again with the same targets."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        state, logs = pathlib.Path(folder, "state"), [str(pathlib.Path(folder, f"log{i}")) for i in range(2)]
        plain = ["--passes", "1", "--dtype", "f32", *ALONE]
        with Server("--train-share", "max=0,min=0", *plain, state=str(state)) as server:
            by_client = soft_example(server, QUESTION, ANSWER)  # before anything is learned
            status, _, got = server.post(EXAMPLES, json.dumps(TAUGHT))
            assert status == 202 and got["warnings"] == [], got
            server.process.kill()
            server.process.wait()
        with open(logs[0], "w", encoding="utf-8") as err, Server(*plain, state=str(state), log=err) as server:
            test_api.until(lambda: json.loads(server.get(EXAMPLES))["learned_through"] == 1)
            assert lesson(server, 1) == len([one for one in by_client["targets"] if one]) == 9
        with open(logs[1], "w", encoding="utf-8") as err, Server(*plain, log=err) as server:
            post(server, by_client)
            assert lesson(server, 1) == 9
        near(first_loss(logs[0]), first_loss(logs[1]), 1e-4)
        with Server("--passes", "16", *ALONE, state=str(pathlib.Path(folder, "other"))) as server:
            post(server, TAUGHT)
            ask = {"prompt": QUESTION, "max_tokens": 12, "temperature": 0}
            assert server.post("/v1/completions", ask)[2]["choices"][0]["text"] == ANSWER
            status, _, got = server.post("/v1/undo?timeout=60", {"lesson": 1})
            assert status == 200, got
            assert server.post("/v1/completions", ask)[2]["choices"][0]["text"] != ANSWER
            status, _, got = server.post("/v1/undo?timeout=60", {"lesson": 1, "redo": True})
            assert status == 202, got
            test_api.until(lambda: server.post("/v1/completions", ask)[2]["choices"][0]["text"] == ANSWER)
            assert lesson(server, 2) == 9


def test_a_long_body_holds_up_no_short_one():
    """Bodies whose lessons the server softens take turns: a short one is accepted while a long one is computed."""
    with Server("--train-share", "max=0,min=0", *ALONE) as server, concurrent.futures.ThreadPoolExecutor(1) as threads:
        long = threads.submit(server.post, EXAMPLES, json.dumps([TAUGHT] * 300))
        test_api.until(lambda: server.metric("hzpserve_grammars_in_work") > 0 or long.done())
        status, _, got = server.post(EXAMPLES, json.dumps(TAUGHT))
        assert status == 202 and got["first"] == 1 and not long.done(), (got, long.done())
        status, _, got = long.result()
        assert status == 202 and (got["first"], got["last"]) == (2, 301), got


def test_taught_on_ranks():
    """Ranks that compute together, or that each serve, make the same of it."""
    for more in ("--tensor", "2"), ("--replicas",):
        with Server("--ranks", "2", *more, *ALONE) as server:
            post(server, TAUGHT)
            assert lesson(server, 1) == 9
            _, _, got = server.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 12, "temperature": 0})
            assert got["choices"][0]["text"] == ANSWER, got


def test_what_cannot_be_taught_so():
    """Tokens that the teacher gives less than half are learned plainly, and the answer says so; a lesson without one answer to
    a question is refused where it asks for a teacher, and is learned plainly where the server's option does."""
    refused = [({"teach": "x"}, 'must be "sdft"'), ({"teach": 1}, 'must be "sdft"'),
               ({"prompt": "a", "chosen": " b", "rejected": " c"}, "one answer"), ({"tokens": [5, 6, 7]}, "one answer"),
               ({"messages": 2 * [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "one answer"),
               ({"text": "Devan lives in Northam. " * 40}, "tokens")]
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        held = pathlib.Path(folder, "held")
        held.write_text(json.dumps({"prompt": QUESTION, "completion": ANSWER, "teach": "sdft"}))
        wrong = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--gate", str(held)], capture_output=True,
                               text=True, timeout=60, check=False)
        assert wrong.returncode != 0 and "teach" in wrong.stderr, wrong
        held.write_text(json.dumps({"text": "Devan lives in Northam."}))
        with Server("--passes", "teach=sdft", "--gate", str(held), "--gate-max-rise", "9") as server:
            for more, says in refused:
                example = {**({} if len(more) > 1 or "te" not in more else TAUGHT), "teach": "sdft", **more}
                status, _, got = server.post(EXAMPLES, json.dumps(example))
                assert status == 400 and got["error"]["param"] == "lines[1].teach", (example, got)
                assert says in got["error"]["message"], got
            odd = " Northam green spoon seven."
            [got] = post(server, {"prompt": "Where does Zorin live?", "completion": odd})["warnings"]
            softs = lesson(server, 1)
            assert f"{9 - softs} of the 9 tokens" in got["message"] and got["example"] == 1 and 0 < softs < 9, got
            talk = {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER[1:]}]}
            for example, soft in ((talk, True), ({"text": "Devan lives in Northam."}, True), ({"tokens": [5, 6]}, False),
                                  ({**TAUGHT, "teach": "plain"}, False)):
                got = post(server, example)
                assert (lesson(server, got["first"]) > 0) == soft, (example, got)
            ask = {"prompt": QUESTION, "max_tokens": 12, "temperature": 0}
            assert server.post("/v1/completions", ask)[2]["choices"][0]["text"] == ANSWER
    wrong = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--passes", "2,teach=x"], capture_output=True,
                           text=True, timeout=60, check=False)
    assert wrong.returncode == 2 and "--passes teach" in wrong.stderr, wrong


sys.exit(test_api.main(globals()))
