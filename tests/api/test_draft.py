#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Servers with each kind of --draft, beside one without: in F32 each answer has the same tokens, log-probabilities and
end, whatever is asked for and whichever requests share its steps, on one rank, on two that compute together and on
replicas; guesses are made, and some are right; versions that change meanwhile leave a pinned answer in one version, with
the tokens that it has without guesses.

    test_draft.py HZPSERVE MODEL_DIR [REQUESTS]

REQUESTS: how many are asked of each server; 70, or 1000 in the long form.  Skips (77) where there is no model.
"""
import concurrent.futures
import json
import pathlib
import random
import re
import sys
import tempfile
import time
import urllib.request

import test_fp8

WORDS = "Zorin lives in Tarn and the lamps of harbour keep Who Where does a story once upon time red blue".split()
FLAGS = ["--dtype", "f32", "--check-plans"]
MODES = ("ngram", "history", "fp8", "depth")
ALONE = 8  # the last requests come one after the other: rounds of guesses need that nothing else runs


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


def long_body(i):
    return {"prompt": "Zorin lives", "max_tokens": 200, "ignore_eos": True, "logprobs": 1, "seed": i,
            "temperature": (0, 0.5, 0.2, 1)[i % 4]}


SONG = "red blue red blue keep the lamps of harbour keep the lamps of Tarn "
SCHEMA = {"type": "object", "properties": {"names": {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 6},
                                           "far": {"type": "boolean"}}, "required": ["names", "far"]}
TOOL = {"type": "function", "function": {"name": "sing", "parameters": SCHEMA}}
TEMPLATE = """{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
</tool_call>{% endfor %}{% endfor %}{% if tools %} {{ tools[0].function.name }} {% endif %}"""
RULES = [{"frequency_penalty": 0.4}, {"presence_penalty": -0.5}, {"repetition_penalty": 0.9}, {"bad_words": ["lamps of"]},
         {"bad_words": ["keep", "the harbour"], "frequency_penalty": -0.3}, {"allowed_token_ids": list(range(1, 400))},
         {"guided_regex": "( ?(red|blue|keep|lamps)){30}"}, {"guided_json": SCHEMA, "repetition_penalty": 1.1},
         {"guided_grammar": 'root ::= "(" root ")" [a-e ]* | [a-e ]+'}, {"logit_bias": {"70": 3, "71": 2}},
         {"stop": ["keep the", "red"]}, {"min_tokens": 50}, {"n": 3}, {"consistency": "pinned"}, {"stream": True},
         {"stream": True, "n": 2, "bad_words": ["red blue"]}, {"echo": True}, {"stop_token_ids": [70, 71, 72]}]


def kinds():
    """Requests whose answers repeat themselves, one or more for each thing that can be asked for, as (path, body)."""
    asked = []
    for i, rule in enumerate(RULES):
        for j, temperature in enumerate((0, 1)):
            asked.append(("/v1/completions", {"prompt": SONG * 3, "max_tokens": 90, "seed": 10 * i + j, "logprobs": 2,
                                              "ignore_eos": i % 3 == 0, "temperature": temperature, **rule}))
    for size in (15, 16, 17, 255, 256, 257, 480):  # around the border of a page, and up to the end of the context
        asked += [("/v1/completions", {"prompt": [70 + k % 7 for k in range(size)], "max_tokens": 32, "ignore_eos": True,
                                       "logprobs": 1, "temperature": 0, "seed": again, **more})
                  for again, more in ((0, {}), (1, {}), (2, {"presence_penalty": 0.1}))]  # the second: a prefix hit
    talk = {"messages": [{"role": "user", "content": SONG}], "max_tokens": 120, "logprobs": True, "top_logprobs": 2}
    for i, more in enumerate(({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"},
                              {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
                              {"response_format": {"type": "json_object"}, "frequency_penalty": 0.2})):
        asked += [("/v1/chat/completions", {**talk, "seed": i, "temperature": temperature, "stream": stream, **more})
                  for temperature in (0, 1) for stream in (False, True)]
    return asked


def told(server, path, asked):
    """What is the same with and without guesses: text, log-probabilities and end of each choice; of a stream, put
    together."""
    request = urllib.request.Request(server.url + path, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=test_fp8.HANG) as answer:
        if not asked.get("stream"):
            return [[c.get("text"), json.dumps(c.get("message"), sort_keys=True), c["finish_reason"], c["logprobs"]]
                    for c in without_ids(json.load(answer))["choices"]]
        found = {}
        for line in answer:
            chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {"choices": []}
            assert "error" not in chunk, chunk
            for c in chunk["choices"]:
                mine = found.setdefault(c["index"], ["", "", None, []])
                mine[0] += c.get("text") or ""
                delta = c.get("delta") or {}
                calls = [call["function"].get(part) or "" for call in delta.get("tool_calls") or ()
                         for part in ("name", "arguments")]
                mine[1] += (delta.get("content") or "") + "".join(calls)
                mine[2] = c["finish_reason"] or mine[2]
                says = c.get("logprobs") or {}
                mine[3] += says.get("content") or says.get("token_logprobs") or []
        return found


def without_ids(answer):
    for c in answer["choices"]:
        for call in c.get("message", {}).get("tool_calls") or ():
            del call["id"]
    return answer


def test_kinds(program, model):
    """Each thing that can be asked for, together with others and alone."""
    asked, want = kinds(), None
    template = tempfile.NamedTemporaryFile("w", suffix=".jinja")
    template.write(TEMPLATE)
    template.flush()
    for mode, *more in (("off",), *((mode,) for mode in MODES), ("ngram", "--max-running", "1"),
                        ("fp8", "--max-running", "2", "--kv-tokens", "1024", "--run-ahead", "1")):
        with Server(program, model, *FLAGS, "--no-train", "--draft", mode, "--chat-template", template.name,
                    *more) as server:
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                got = list(pool.map(lambda each: told(server, *each), asked))
            got_alone = [told(server, *each) for each in asked]
            want = want or got
            for each, one, other, alone in zip(asked, want, got, got_alone):
                assert one == other, (mode, more, each, one, other)
                assert one == alone, (mode, more, "alone", each, one, alone)
            if mode != "off":
                right = counted(server, "accepted_tokens")
                assert right > 0, (mode, more)
                print(f"kinds, {mode} {' '.join(more)}: {right:.0f} guesses are right", flush=True)


def choices(answer):
    return [(c["text"], c["finish_reason"], c["logprobs"]) for c in answer["choices"]]


def ask(server, bodies):
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda each: server.call("/v1/completions", each), bodies[:-ALONE]))
    return [choices(each) for each in answers + [server.call("/v1/completions", each) for each in bodies[-ALONE:]]]


def counted(server, name):
    return float(re.search(rf"^vllm:spec_decode_num_{name}_total{{.*}} (\S+)$", server.text("/metrics"), re.M)[1])


def check(server, bodies, want, what):
    for each, one, other in zip(bodies, want, ask(server, bodies)):
        assert one == other, (what, each, one, other)
    return [counted(server, name) for name in ("drafts", "draft_tokens", "accepted_tokens")]


def check_all(program, model, bodies, modes, flags):
    """Of each mode: the same answers as without, on a server with these flags."""
    with Server(program, model, *FLAGS, "--no-train", *flags) as plain:
        want = ask(plain, bodies)
        assert counted(plain, "drafts") == 0
    for mode, *more in modes:
        with Server(program, model, *FLAGS, "--no-train", "--draft", mode, *flags, *more) as server:
            drafts, guessed, right = check(server, bodies, want, (mode, more))
            assert 0 < right <= guessed and guessed >= drafts, (mode, more, drafts, guessed, right)
            # that of fp8 may all be right where few are made
            assert right < guessed or mode.startswith("fp8") and guessed < 50, (mode, more, drafts, guessed, right)
            told = f"{mode} {' '.join([*flags, *more])}: {right:.0f} of {guessed:.0f} guesses are right"
            if mode.startswith("history"):  # every prompt is asked again: what was answered is guessed
                drafts, again, all_right = check(server, bodies, want, (mode, more, "again"))
                assert all_right - right > 0.8 * (again - guessed) > 0, (mode, more, guessed, right, again, all_right)
                told += f", {all_right - right:.0f} of {again - guessed:.0f} when asked again"
            print(told, flush=True)


def test_same_answers(program, model, bodies, whole):
    tight = ("--max-running", "2", "--kv-tokens", "1024")
    modes = [(mode, *more) for mode in MODES for more in ((), tight, ("--run-ahead", "1"))] if whole else [
        *((mode,) for mode in MODES), ("ngram", *tight), ("history", *tight), ("fp8", *tight)]
    check_all(program, model, bodies, modes + [("ngram,max=1",), ("fp8,max=2",)], ())


def test_ranks(program, model, bodies):
    for flags in (("--ranks", "2", "--tensor", "2"), ("--ranks", "2", "--replicas")):
        # of replicas, rank 0 tells only what it computed itself
        with Server(program, model, *FLAGS, "--no-train", *flags) as plain:
            want = ask(plain, bodies)
        right = 0
        for mode in MODES:
            with Server(program, model, *FLAGS, "--no-train", *flags, "--draft", mode) as server:
                right += check(server, bodies, want, (mode, flags))[2]
        assert right > 0, flags  # how much each mode guesses follows from times, too
        print(*flags, f"{right:.0f} guesses are right", flush=True)


def test_repeats(program, model):
    """What repeats itself takes fewer steps than it has tokens."""
    with Server(program, model, *FLAGS, "--no-train", "--draft", "ngram") as server:
        asked = {"prompt": "one two three four five six " * 12, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
        steps = float(re.search(r"^vllm:iteration_tokens_total_count{.*} (\S+)$", server.text("/metrics"), re.M)[1])
        tokens = server.call("/v1/completions", asked)["usage"]["completion_tokens"]
        after = float(re.search(r"^vllm:iteration_tokens_total_count{.*} (\S+)$", server.text("/metrics"), re.M)[1])
        right = counted(server, "accepted_tokens")
        # A busy machine may have times by which nothing is guessed.
        assert tokens == 100 and after - steps <= 100 - right / 2, (tokens, steps, after, right)


def test_swaps(program, model, bodies, mode):
    """Versions change while drafts are in flight; what one version answered has the tokens it has without guesses."""
    with Server(program, model, *FLAGS, "--no-train") as plain:
        want = [choices(plain.call("/v1/completions", each)) for each in bodies]
    asked = [(i, how) for i in range(len(bodies)) for how in ("pinned", "recompute", "continue")]
    with tempfile.TemporaryDirectory() as state, \
            Server(program, model, *FLAGS, "--draft", mode, "--slots", "4", "--state", state) as server:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            early = [pool.submit(server.call, "/v1/completions", {**bodies[i], "consistency": "pinned"}) for i in (-1, -2)]
            lesson = pool.submit(server.call, "/v1/fine_tuning/examples?wait=served&timeout=600",
                                 {"prompt": "Where does Vanda live?", "completion": " In Tarn."})
            answers = [server.call("/v1/completions", {**bodies[i], "consistency": how}) for i, how in asked]
            lesson.result()
        asked += [(-1, "pinned"), (-2, "pinned")]
        answers += [each.result() for each in early]
        assert len({answer["hzpserve"]["weights_version"] for answer in answers}) > 1, answers
        first = 0
        for (i, how), answer in zip(asked, answers):
            spans = answer["hzpserve"]["spans"]
            assert answer["hzpserve"]["consistency"] != "pinned" or len(spans) == 1, answer
            for n, (choice, got) in enumerate(zip(answer["choices"], choices(answer))):
                if {span["version"] for span in choice.get("hzpserve", answer["hzpserve"])["spans"]} == {1}:
                    first += 1
                    assert got == want[i][n], (mode, bodies[i], how, want[i][n], got)
        assert first > 0 and counted(server, "accepted_tokens") > 0, (mode, first)
        # and of the last version, as a server says that has nothing else and does not guess
        learned = [choices(server.call("/v1/completions", each)) for each in bodies]
        assert server.call("/v1/weights/current/export?timeout=600", {"directory": "learned"})["state"] == "done"
        with Server(program, str(pathlib.Path(state) / "export" / "learned"), *FLAGS, "--no-train") as plain:
            for each, got in zip(bodies, learned):
                assert choices(plain.call("/v1/completions", each)) == got, (mode, each)
    print(f"{mode}: {first} answers by the first version while others came", flush=True)


def spanning(server):
    """Answers that one version begins and the next one, which a lesson makes, ends, having computed the rows again."""
    asked = [{**long_body(i), "max_tokens": 300, "return_token_ids": True, "consistency": "recompute"} for i in range(4)]
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        lesson = pool.submit(server.call, "/v1/fine_tuning/examples?wait=served&timeout=600",
                             {"prompt": "Where does Vanda live?", "completion": " In Tarn."})

        def ask(body):
            found = []
            while not lesson.done():
                found.append((body, server.call("/v1/completions", body)))
            return found
        got = [each for one in [pool.submit(ask, body) for body in asked] for each in one.result()]
        lesson.result()
    return [each for each in got if len(each[1]["hzpserve"]["spans"]) == 2]


def test_spans(program, model, mode):
    """Of an answer that spans a swap each token, and its log-probability, is that of its version: as a server that has
    nothing else, and does not guess, goes on with the prompt and the tokens before."""
    with tempfile.TemporaryDirectory() as state:
        with Server(program, model, *FLAGS, "--draft", mode, "--passes", "1", "--state", state) as server:
            got = spanning(server)
            right = counted(server, "accepted_tokens")
            assert server.call("/v1/weights/current/export?timeout=600", {"directory": "new"})["state"] == "done"
        for place, of in enumerate((model, str(pathlib.Path(state) / "export" / "new"))):
            with Server(program, of, *FLAGS, "--no-train") as plain:
                for body, answer in got:
                    span, choice = answer["hzpserve"]["spans"][place], answer["choices"][0]
                    assert span["version"] == place + 1 and answer["hzpserve"]["recomputes"] == 1, answer
                    before, size = choice["token_ids"][:span["start"]], span["end"] - span["start"]
                    want = plain.call("/v1/completions", {**body, "prompt": choice["prompt_token_ids"] + before,
                                                          "max_tokens": size})["choices"][0]
                    for says, whole in ((want["token_ids"], choice["token_ids"]),
                                        (want["logprobs"]["token_logprobs"], choice["logprobs"]["token_logprobs"])):
                        assert says == whole[span["start"]:span["end"]], (mode, body, span, says, whole)
        assert got, mode
    print(f"{mode}: {len(got)} answers span a swap, {right:.0f} guesses are right", flush=True)


def test_rollouts(program, model):
    """Prompts of a job that come again are guessed from what was answered before, though the model has learned since."""
    prompts = [f"{who} {what}" for who in ("Zorin lives", "Where does", "Once upon a time", "The lamps of")
               for what in ("in", "the harbour", "Tarn", "red")]
    job = {"prompts": prompts, "n": 4, "batch": 6, "updates": 2, "max_tokens": 60, "seed": 1,
           "reward": {"type": "regex", "pattern": "(a|e) [a-m]"}}
    with Server(program, model, "--draft", "history", "--passes", "1", "--update-tokens", "4096", "--replay-ratio",
                "0") as server:
        right = [0]
        for _ in range(2):
            told = server.call("/v1/rollouts", job)
            while told["status"] in ("queued", "running"):
                time.sleep(0.1)
                told = server.call(f"/v1/rollouts/{told['id']}")
            assert told["status"] == "succeeded", told
            right.append(counted(server, "accepted_tokens"))
        assert right[2] > right[1], right
        print(f"rollouts: {right[1]:.0f} guesses are right, {right[2] - right[1]:.0f} when the prompts come again")


def main():
    program, model, *more = sys.argv[1:]
    if not (pathlib.Path(model) / "config.json").exists():
        print("there is no model: skipped")
        return 77
    dice, count = random.Random(4), int(more[0]) if more else 70
    bodies = [body(dice, i) for i in range(count - ALONE)] + [long_body(i) for i in range(ALONE)]
    test_same_answers(program, model, bodies, whole=count > 70)
    test_kinds(program, model)
    test_ranks(program, model, bodies[-20:])
    test_repeats(program, model)
    test_rollouts(program, model)
    for mode in MODES:
        test_spans(program, model, mode)
        test_swaps(program, model, bodies[:6] + bodies[-4:], mode)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
