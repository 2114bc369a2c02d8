#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server with --draft ngram, beside one without: in F32 each answer has the same tokens, log-probabilities and end,
whatever is asked for and whichever requests share its steps; where answers repeat what was there, guesses are right;
versions that change meanwhile leave a pinned answer in one version.

    test_draft.py HZPSERVE MODEL_DIR

Skips (77) where there is no model.
"""
import concurrent.futures
import pathlib
import random
import re
import sys
import urllib.request

import test_fp8

WORDS = "Zorin lives in Tarn and the lamps of harbour keep Who Where does a story once upon time red blue".split()
FLAGS = ["--dtype", "f32", "--check-plans"]


class Server(test_fp8.Server):
    def __enter__(self):
        return self

    def __exit__(self, *failure):
        assert self.stop() == 0 or failure[0], "it did not end well"

    def text(self, path):
        with urllib.request.urlopen(self.url + path, timeout=test_fp8.HANG) as answer:
            return answer.read().decode()


def body(dice, i):
    piece = " ".join(dice.choice(WORDS) for _ in range(dice.randint(3, 40)))
    again = f"{piece} {piece} {piece[:len(piece) // 2]}"
    asked = {"prompt": again if i % 3 == 0 else piece, "max_tokens": dice.randint(1, 80), "seed": i, "logprobs": 2,
             "temperature": dice.choice([0, 0, 0.3, 0.7, 1]), "top_p": dice.choice([1, 0.9]), "n": dice.choice([1, 1, 3])}
    for every, fields in ((7, {"frequency_penalty": 0.5}), (11, {"stop": ["a"]}), (5, {"ignore_eos": True}),
                          (13, {"min_tokens": min(5, asked["max_tokens"])}), (9, {"logit_bias": {"65": 2}}),
                          (17, {"guided_regex": "[a-z ]{8,40}"})):
        if i % every == 0:
            asked.update(fields)
    return asked


def ask(server, bodies):
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda each: server.call("/v1/completions", each), bodies))
    return [[(c["text"], c["finish_reason"], c["logprobs"]) for c in answer["choices"]] for answer in answers]


def counted(server, name):
    return float(re.search(rf"^vllm:spec_decode_num_{name}_total{{.*}} (\S+)$", server.text("/metrics"), re.M)[1])


def test_same_answers(program, model, bodies):
    with Server(program, model, *FLAGS, "--no-train") as plain:
        want = ask(plain, bodies)
        assert counted(plain, "drafts") == 0
    for more in ((), ("--max-running", "2", "--kv-tokens", "1024"), ("--draft", "ngram,max=1")):
        with Server(program, model, *FLAGS, "--no-train", "--draft", "ngram", *more) as server:
            got = ask(server, bodies)
            for each, one, other in zip(bodies, want, got):
                assert one == other, (more, each, one, other)
            drafts, guessed, right = (counted(server, name) for name in ("drafts", "draft_tokens", "accepted_tokens"))
            assert 0 < right < guessed and guessed >= drafts, (more, drafts, guessed, right)


def test_repeats(program, model):
    """What repeats itself takes fewer steps than it has tokens."""
    with Server(program, model, *FLAGS, "--no-train", "--draft", "ngram") as server:
        asked = {"prompt": "one two three four five six " * 12, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
        steps = float(re.search(r"^vllm:iteration_tokens_total_count{.*} (\S+)$", server.text("/metrics"), re.M)[1])
        tokens = server.call("/v1/completions", asked)["usage"]["completion_tokens"]
        after = float(re.search(r"^vllm:iteration_tokens_total_count{.*} (\S+)$", server.text("/metrics"), re.M)[1])
        right = counted(server, "accepted_tokens")
        assert tokens == 100 and (right < 20 or after - steps < 90), (tokens, steps, after, right)


def test_swaps(program, model, bodies):
    """Versions change while drafts are in flight."""
    with Server(program, model, *FLAGS, "--draft", "ngram", "--slots", "4") as server:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            lesson = pool.submit(server.call, "/v1/fine_tuning/examples?wait=served&timeout=600",
                                 {"prompt": "Where does Vanda live?", "completion": " In Tarn."})
            answers = [server.call("/v1/completions", {**each, "consistency": how})
                       for each in bodies for how in ("pinned", "recompute", "continue")]
            lesson.result()
        assert len({answer["hzpserve"]["weights_version"] for answer in answers}) > 1, answers
        for answer in answers:
            spans = answer["hzpserve"]["spans"]
            assert answer["hzpserve"]["consistency"] != "pinned" or len(spans) == 1, answer


def main():
    program, model = sys.argv[1:]
    if not (pathlib.Path(model) / "config.json").exists():
        print("there is no model: skipped")
        return 77
    dice = random.Random(4)
    bodies = [body(dice, i) for i in range(70)]
    test_same_answers(program, model, bodies)
    test_repeats(program, model)
    test_swaps(program, model, bodies[:12])
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
