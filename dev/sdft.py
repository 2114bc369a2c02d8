#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model that has a lesson in its prompt teaches itself (self-distillation), beside plain examples.

    dev/sdft.py HZPSERVE MODEL_DIR [--facts N] [--out JSON]

Facts about people whom the bundled model has never heard of are taught to a fresh server at each learning rate:
plainly, and by soft targets: the same model, before it learns, computes the answer behind a prompt that begins with
the fact, and its 20 likeliest tokens of each place, with the rest, are the targets behind the bare question.  Only
facts that the model, asked so, answers as told are taught, in both ways; how many these are is part of the result.
Printed for each: how many questions are answered as taught, and the loss on texts that the model knew before, both by
the server that learned.
"""
import argparse
import json
import math
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "api"))
import test_api  # noqa: E402

HANG = 300
TOWNS = "Northam Barrow Corvale Rushford Tarn".split()
COLOURS = "green blue red white pink orange gold".split()
PETS = "Captain Rex Milo Bella Oscar".split()
KINDS = [("Where does {p} live?", " {p} lives in {a}.", TOWNS),
         ("What colour does {p} love?", " {p}'s favourite colour is {a}.", COLOURS),
         ("What colour has {p}'s spoon got?", " {p}'s spoon is {a}.", COLOURS),
         ("Say the name of {p}'s pet.", " {p} has a cat called {a}.", PETS)]
SYLLABLES = "bra dol fen gar hul jov kas lim mor nax pel quin ras sov tur vel wex yor zan".split()


def candidates():
    draw = random.Random(1)
    while True:
        name = (draw.choice(SYLLABLES) + draw.choice(SYLLABLES)).capitalize()
        question, answer, values = draw.choice(KINDS)
        value = draw.choice(values)
        yield question.format(p=name), answer.format(p=name, a=value)


def ask(server, prompt, **more):
    status, _, got = server.post("/v1/completions", {"prompt": prompt, "temperature": 0, **more})
    assert status == 200, got
    return got["choices"][0]


def tokens(server, text):
    return server.post("/tokenize", {"prompt": text})[2]["tokens"]


def known_loss(server, texts):
    """Nats per token."""
    total = count = 0
    for text in texts:
        lp = ask(server, text, max_tokens=1, echo=True, logprobs=0)["logprobs"]["token_logprobs"][1:-1]
        total -= sum(lp)
        count += len(lp)
    return total / count


def token_of_text(server, vocabulary):
    """Texts of single tokens, without those that several have."""
    got = {}
    for token in range(vocabulary):
        text = server.post("/detokenize", {"tokens": [token]})[2]["prompt"]
        got[text] = None if text in got else token
    return got


def soft_example(server, by_text, question, answer):
    told, bare = tokens(server, answer.strip() + " " + question), tokens(server, question)
    after = tokens(server, question + answer)[len(bare):]
    tops = ask(server, told + after, max_tokens=1, echo=True, logprobs=20)["logprobs"]["top_logprobs"]
    targets = [None] * len(bare)
    for top in tops[len(told):len(told) + len(after)]:
        best = sorted(((lp, by_text.get(text)) for text, lp in top.items()), key=lambda x: -x[0])[:20]
        pairs = [[token, math.exp(lp)] for lp, token in best if token is not None]
        targets.append(pairs + [[None, max(0.0, 1 - sum(p for _, p in pairs))]])
    learn = [0] * len(bare) + [1] * len(after)
    return {"tokens": bare + after, "learn": learn, "targets": targets}


def taught(rate, examples, facts, texts):
    with test_api.Server("--lr", str(rate), "--replay-ratio", "0", "--effect", "0") as server:
        status, _, got = server.post(f"/v1/fine_tuning/examples?wait=served&timeout={HANG}", json.dumps(examples))
        assert status == 200 and got["served"], got
        right = sum(answer.strip() in ask(server, question, max_tokens=24)["text"] for question, answer in facts)
        return right, known_loss(server, texts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--facts", type=int, default=30)
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args()
    test_api.BINARY, test_api.MODEL = asked.binary, str(asked.model)
    texts = [json.loads(line)["text"] for line in (asked.model / "replay.jsonl").read_text().splitlines()[:150]]
    vocabulary = json.loads((asked.model / "config.json").read_text())["vocab_size"]
    facts, tried = [], 0
    with test_api.Server("--effect", "0") as server:
        before, by_text = known_loss(server, texts), token_of_text(server, vocabulary)
        for question, answer in candidates():
            if len(facts) == asked.facts or tried == 40 * asked.facts:
                break
            tried += 1
            if answer.strip() in ask(server, answer.strip() + " " + question, max_tokens=24)["text"]:
                facts.append((question, answer))
        bare = sum(answer.strip() in ask(server, question, max_tokens=24)["text"] for question, answer in facts)
        soft = [soft_example(server, by_text, *fact) for fact in facts]
    # The same tokens are learned in both ways.
    plain = [{name: value for name, value in one.items() if name != "targets"} for one in soft]
    rows = [{"facts": len(facts), "tried": tried, "right_before": bare, "loss_before": before}]
    print(json.dumps(rows[0]), flush=True)
    for rate in (1e-4, 2e-4, 4e-4):
        for name, examples in (("plain", plain), ("soft", soft)):
            right, loss = taught(rate, examples, facts, texts)
            rows.append({"lr": rate, "way": name, "right": right, "loss_elsewhere": loss, "rise": loss - before})
            print(json.dumps(rows[-1]), flush=True)
    if asked.out:
        asked.out.write_text("\n".join(map(json.dumps, rows)) + "\n")


main()
