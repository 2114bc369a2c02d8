#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model that has a lesson in its prompt teaches itself (self-distillation), beside plain examples.

    dev/sdft.py HZPSERVE MODEL_DIR [--facts N] [--told] [--ways A,B] [--rates X,Y] [--out JSON] [-- OPTION ...]

Facts about people whom the bundled model has never heard of are taught to a fresh server at each learning rate,
plainly and with "teach": "sdft", all in one body.  --told: only facts that the model, with the answer in front of the
question, answers as told; how many these are is part of the result.  Ways: plain, sdft.  Options are the server's.
Printed for each: how many tokens are learned by soft targets, how many questions are answered as taught, and the loss
on texts that the model knew before, both by the server that learned.
"""
import argparse
import json
import pathlib
import random
import sqlite3
import sys
import tempfile
import time

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


def known_loss(server, texts):
    """Nats per token."""
    total = count = 0
    for text in texts:
        lp = ask(server, text, max_tokens=1, echo=True, logprobs=0)["logprobs"]["token_logprobs"][1:-1]
        total -= sum(lp)
        count += len(lp)
    return total / count


def taught(rate, way, facts, texts, options):
    """All facts are one body, so one teacher has them all, and nothing is learned before it is accepted."""
    examples = [{"prompt": question, "completion": answer, "teach": way} for question, answer in facts]
    with tempfile.TemporaryDirectory(prefix="hzpserve-sdft-") as folder:
        state = str(pathlib.Path(folder, "state"))
        with test_api.Server("--lr", str(rate), "--effect", "0", *options, state=state) as server:
            begun = time.monotonic()
            status, _, got = server.post("/v1/fine_tuning/examples", json.dumps(examples))
            assert status == 202, got
            seconds = time.monotonic() - begun
            test_api.until(lambda: json.loads(server.get("/v1/fine_tuning/examples"))["learned_through"] == len(facts),
                           HANG)
            right = sum(answer.strip() in ask(server, question, max_tokens=24)["text"] for question, answer in facts)
            loss = known_loss(server, texts)
        [[soft]] = sqlite3.connect(pathlib.Path(state, "samples.db")).execute("SELECT sum(softs) FROM samples")
        return right, loss, soft, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--facts", type=int, default=30)
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--ways", default="plain,sdft")
    parser.add_argument("--rates", default="1e-4,2e-4,4e-4")
    parser.add_argument("--out", type=pathlib.Path)
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, options = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1:]
    test_api.BINARY, test_api.MODEL = asked.binary, str(asked.model)
    texts = [json.loads(line)["text"] for line in (asked.model / "replay.jsonl").read_text().splitlines()[:150]]
    facts, tried = {}, 0
    with test_api.Server("--effect", "0") as server:
        before = known_loss(server, texts)
        for question, answer in candidates():
            if len(facts) == asked.facts or tried == 40 * asked.facts:
                break
            tried += 1
            told = ask(server, answer.strip() + " " + question, max_tokens=24)["text"] if asked.told else answer
            if answer.strip() in told:
                facts.setdefault(question, answer)
        facts = list(facts.items())
        bare = sum(answer.strip() in ask(server, question, max_tokens=24)["text"] for question, answer in facts)
    rows = [{"facts": len(facts), "tried": tried, "right_before": bare, "loss_before": before}]
    print(json.dumps(rows[0]), flush=True)
    for rate in map(float, asked.rates.split(",")):
        for way in asked.ways.split(","):
            right, loss, soft, seconds = taught(rate, way, facts, texts, options)
            rows.append({"lr": rate, "way": way, "right": right, "loss_elsewhere": loss, "rise": loss - before,
                         "soft_tokens": soft, "seconds_to_post": round(seconds, 2)})
            print(json.dumps(rows[-1]), flush=True)
    if asked.out:
        asked.out.write_text("\n".join(map(json.dumps, rows)) + "\n")


main()
