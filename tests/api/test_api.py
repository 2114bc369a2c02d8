#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real server on a free port; the official `openai` client and plain sockets send requests.

    test_api.py HZPSERVE MODEL_DIR [--expected FILE] [TEST ...]

With FILE or MODEL_DIR/expected.json, greedy continuations of a float64 reference, answers are compared with
them too.  Skips (77) where the client or the model is missing.
"""
import http.client
import json
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from check_embeddings import *  # noqa: F401,F403
from check_choices import *  # noqa: F401,F403 - its tests run on the same server

try:
    import openai
except ImportError:
    print("the openai client is not installed: skipped")
    sys.exit(77)

HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
PROMPT = "Once upon a time"


class Server:
    """One hzpserve process; `with` starts and ends it."""

    def __init__(self, *options, name="tiny", state=None, log=None):
        self.options = ["--served-model-name", name, *options]
        self.kept = state
        self.log = log  # a file that receives standard error
        self.printed = []

    def __enter__(self):
        self.state = tempfile.TemporaryDirectory(prefix="hzpserve-test-")
        arguments = [BINARY, "serve", MODEL, "--dtype", "f32", "--port", "0", "--state",
                     self.kept or self.state.name]
        self.process = subprocess.Popen(arguments + self.options, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True)
        for line in self.process.stdout:
            found = re.search(r"serves (.+) at http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.model, self.port = found[1], int(found[2])
                break
        else:
            raise AssertionError("the server did not start")
        threading.Thread(target=self.printed.extend, args=(self.process.stdout,),
                         daemon=True).start()
        self.key = self.options[self.options.index("--api-key") + 1] \
            if "--api-key" in self.options else "none"
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key=self.key, max_retries=0,
                                    timeout=HANG)
        self.context = self.client.models.list().data[0].max_model_len
        self.long = min(480, self.context - 40)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(HANG) == 0, f"exit status {self.process.returncode}"
        self.state.cleanup()

    def complete(self, **fields):
        """Greedy and of a known length, unless the arguments differ."""
        fields = {"model": self.model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0,
                  "ignore_eos": True, **fields}
        known = {"model", "prompt", "max_tokens", "temperature", "n", "stop", "stream", "logprobs",
                 "echo", "seed", "stream_options", "top_p", "logit_bias", "presence_penalty",
                 "frequency_penalty", "best_of", "suffix", "user"}
        extra = {k: fields.pop(k) for k in list(fields) if k not in known}
        return self.client.completions.create(**fields, extra_body=extra)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=HANG) as answer:
            return answer.read().decode()

    def post(self, path, body, headers=None, method="POST"):
        """Status, headers, decoded body; never raises for a status."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        data = body if isinstance(body, (bytes, str)) else json.dumps(body)
        c.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        answer = c.getresponse()
        text = answer.read().decode()
        c.close()
        return answer.status, answer.headers, json.loads(text)

    def patch(self, path, body):
        return self.post(path, body, method="PATCH")

    def metric(self, name):
        for line in self.get("/metrics").splitlines():
            if line.startswith(name + "{"):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def idle(self):
        return (self.metric("vllm:num_requests_running") == 0
                and self.metric("vllm:num_requests_waiting") == 0
                and self.metric("hzpserve_kv_pages_taken") == 0)


def until(condition, seconds=HANG):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def test_completion(server):
    answer = server.complete()
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.model == server.model and len(answer.choices) == 1
    choice = answer.choices[0]
    assert EXPECTED.get(PROMPT, PROMPT + choice.text).startswith(PROMPT + choice.text)
    assert len(choice.text) > 10, choice.text
    assert choice.finish_reason == "length" and choice.index == 0
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16
    hzp = answer.hzpserve
    assert hzp["weights_version"] >= 1 and hzp["staleness"] == 0
    assert hzp["spans"] == [{"version": hzp["weights_version"], "start": 0, "end": 16,
                             "prompt_version": hzp["weights_version"]}]
    status, headers, _ = server.post("/v1/completions", {"prompt": PROMPT})
    assert status == 200
    assert int(headers["x-hzpserve-weights-version"]) == hzp["weights_version"]


def test_greedy_is_the_same_in_a_crowd(server):
    """A request alone and among others gives the same tokens, those of the float64 reference."""
    def ask(prompt, results, i):
        results[i] = server.complete(prompt=prompt, max_tokens=60, logprobs=0,
                                     return_token_ids=True).choices[0]

    prompts = [c["prompt_ids"] for c in CASES] + [PROMPT, "A", "The house is red. " * 6, [5, 6, 7]]
    alone = [None] * len(prompts)
    for i, prompt in enumerate(prompts):
        ask(prompt, alone, i)
    crowd = [None] * 6 * len(prompts)
    threads = [threading.Thread(target=ask, args=(prompt, crowd, i))
               for i, prompt in enumerate(prompts * 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, got in enumerate(crowd):
        assert got.token_ids == alone[i % len(prompts)].token_ids, i
    for case, got in zip(CASES, alone):
        n = min(len(case["greedy_ids"]), 60)
        assert got.token_ids[:n] == case["greedy_ids"][:n], case["prompt"]
        for a, b in zip(got.logprobs.token_logprobs, case["greedy_logprobs"]):
            assert abs(a - b) < 1e-3, (a, b)


def test_text_goes_on(server):
    """The answer begins with the space that the prompt lacks."""
    first = server.complete(prompt="The color of my car is").choices[0].text
    if CASES:  # a model of running text
        assert first.startswith(" ") and not first.startswith("  "), first
    if any(c["prompt"] == "" for c in CASES):  # it has a BOS
        assert not server.complete(prompt="").choices[0].text.startswith(" ")


def test_prompt_shapes(server):
    text = server.complete().choices[0].text
    ids = server.complete(return_token_ids=True).choices[0].prompt_token_ids
    assert server.complete(prompt=ids).choices[0].text == text
    several = server.complete(prompt=[PROMPT, "Lily", PROMPT], n=1)
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert several.choices[0].text == several.choices[2].text == text != several.choices[1].text
    lists = server.complete(prompt=[ids, ids], n=2)
    assert [c.text for c in lists.choices] == [text] * 4
    assert several.usage.completion_tokens == 48
    assert lists.usage.prompt_tokens == 2 * len(ids)


def test_prefix_cache():
    """What the cache has is not computed again, and answers are the same as without it."""
    begin = " ".join([PROMPT] * 12)
    ends = ["", " The end", " and then a bird", " and then"]
    answers = {}
    for options in [], ["--no-prefix-cache"]:
        with Server("--no-train", "--page-rows", "16", *options) as server:
            asked = [server.complete(prompt=begin + end, max_tokens=40) for end in ends]
            usage = [a.usage for a in asked]
            cached = [u.prompt_tokens_details.cached_tokens for u in usage]
            # what it generated, too: a conversation goes on
            longer = server.complete(prompt=begin + asked[0].choices[0].text, max_tokens=8)
            cached.append(longer.usage.prompt_tokens_details.cached_tokens)
            answers[len(options)] = [a.choices[0].text for a in asked + [longer]]
            shared = (usage[0].prompt_tokens - 2) // 16 * 16  # the last token may differ
            if options:
                assert cached == [0] * 5
                assert server.metric("vllm:prefix_cache_hits_total") == 0
            else:
                assert cached[0] == 0 and min(cached[1:4]) >= shared > 0, (cached, usage)
                assert cached[4] >= shared
                assert server.metric("vllm:prefix_cache_hits_total") == sum(cached)
                assert server.metric("hzpserve_kv_pages_idle") >= shared // 16
                assert server.metric("vllm:prefix_cache_queries_total") == sum(
                    u.prompt_tokens for u in usage + [longer.usage])
    assert answers[0] == answers[1]


def test_stream(server):
    whole = server.complete(max_tokens=60)
    parts = list(server.complete(max_tokens=60, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].text for c in parts if c.choices)
    assert text == whole.choices[0].text
    assert all(c.usage is None for c in parts[:-1])
    assert parts[-1].choices == [] and (parts[-1].usage.prompt_tokens, parts[-1].usage.total_tokens) == (
        whole.usage.prompt_tokens, whole.usage.total_tokens)
    assert [c.choices[0].finish_reason for c in parts[:-1]][-1] == "length"
    assert all(c.choices[0].finish_reason is None for c in parts[:-2])
    assert len({c.id for c in parts}) == 1
    assert parts[-2].hzpserve["spans"][-1]["end"] == 60
    several = {0: "", 1: "", 2: "", 3: ""}
    for chunk in server.complete(prompt=[PROMPT, "Lily"], n=2, stream=True, max_tokens=20):
        several[chunk.choices[0].index] += chunk.choices[0].text
    assert several[0] == several[1] == server.complete(max_tokens=20).choices[0].text
    assert several[2] == several[3] == server.complete(prompt="Lily", max_tokens=20).choices[0].text
    usage = [c.usage for c in server.complete(stream=True, extra=1, stream_options={
        "include_usage": True, "continuous_usage_stats": True})]
    assert all(usage) and usage[-1].completion_tokens == 16


def test_stream_framing(server):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG)
    c.request("POST", "/v1/completions", json.dumps(
        {"prompt": PROMPT, "max_tokens": 5, "stream": True, "temperature": 0}))
    answer = c.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert int(answer.headers["x-hzpserve-weights-version"]) >= 1
    events = answer.read().decode().split("\n\n")
    assert events.pop() == "" and events[-1] == "data: [DONE]"
    for event in events[:-1]:
        assert event.startswith("data: ") and "\n" not in event
        assert "usage" not in json.loads(event[6:])


def test_echo_and_logprobs(server):
    answer = server.complete(echo=True, logprobs=3, max_tokens=8)
    choice = answer.choices[0]
    lp = choice.logprobs
    plain = server.complete(max_tokens=8, logprobs=3).choices[0]
    assert choice.text == PROMPT + plain.text
    total = answer.usage.prompt_tokens + 8
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == total
    assert len(lp.text_offset) == total
    assert lp.token_logprobs[0] is None and lp.top_logprobs[0] is None
    assert all(x <= 0 for x in lp.token_logprobs[1:])
    assert all(lp.tokens[i] in lp.top_logprobs[i] for i in range(1, total))
    assert all(3 <= len(x) <= 4 for x in lp.top_logprobs[1:])
    assert lp.token_logprobs[-8:] == plain.logprobs.token_logprobs
    for i, start in enumerate(lp.text_offset[:-1]):
        if i:
            piece = choice.text[start:lp.text_offset[i + 1]]
            assert not piece or lp.tokens[i].strip() == piece.strip(), (i, lp.tokens[i], piece)
    assert [x - len(PROMPT) for x in lp.text_offset[-8:]] == plain.logprobs.text_offset
    only = server.complete(echo=True, max_tokens=0, logprobs=1)
    assert only.choices[0].text == PROMPT and only.usage.completion_tokens == 0
    assert only.choices[0].logprobs.token_logprobs == lp.token_logprobs[:-8]
    silent = server.complete(echo=True, max_tokens=0)
    assert silent.choices[0].text == PROMPT and silent.choices[0].logprobs is None
    pieces = list(server.complete(echo=True, max_tokens=8, logprobs=3, stream=True))
    assert "".join(c.choices[0].text for c in pieces) == choice.text
    tokens = [t for c in pieces for t in c.choices[0].logprobs.tokens]
    assert tokens == lp.tokens
    offsets = [t for c in pieces for t in c.choices[0].logprobs.text_offset]
    assert offsets == lp.text_offset


def test_stop(server):
    whole = server.complete(max_tokens=40).choices[0].text
    word = whole[len(whole) // 2:len(whole) // 2 + 4]
    cut = server.complete(max_tokens=40, stop=word)
    assert cut.choices[0].text == whole[:whole.index(word)]
    assert cut.choices[0].finish_reason == "stop" and cut.choices[0].stop_reason == word
    assert cut.usage.completion_tokens < 40
    kept = server.complete(max_tokens=40, stop=["zzz", word], include_stop_str_in_output=True)
    assert kept.choices[0].text == whole[:whole.index(word) + len(word)]
    streamed = server.complete(max_tokens=40, stop=[word], stream=True)
    assert "".join(c.choices[0].text for c in streamed) == cut.choices[0].text
    ids = server.complete(max_tokens=40, return_token_ids=True).choices[0].token_ids
    token = ids[10]
    by_id = server.complete(max_tokens=40, stop_token_ids=[token], return_token_ids=True).choices[0]
    assert by_id.token_ids == ids[:ids.index(token) + 1]
    assert by_id.finish_reason == "stop" and by_id.stop_reason == token
    later = server.complete(max_tokens=40, stop=word, min_tokens=35)
    assert later.usage.completion_tokens >= 35
    banned = server.complete(max_tokens=40, stop_token_ids=[token], min_tokens=40,
                             return_token_ids=True).choices[0]
    assert token not in banned.token_ids and len(banned.token_ids) == 40


def test_sampling(server):
    def draw(**fields):
        return server.complete(temperature=1, max_tokens=24, **fields)

    a, b = draw(seed=7, n=3), draw(seed=7, n=3)
    texts = [c.text for c in a.choices]
    assert texts == [c.text for c in b.choices] and len(set(texts)) == 3
    assert draw(seed=7).choices[0].text == texts[0]
    assert draw(seed=8).choices[0].text != texts[0]
    greedy = server.complete(max_tokens=24, return_token_ids=True).choices[0]
    assert draw(top_k=1).choices[0].text == greedy.text
    assert draw(top_p=1e-6).choices[0].text == greedy.text
    assert draw(min_p=1.0).choices[0].text == greedy.text
    first = greedy.token_ids[0]
    other = server.complete(logit_bias={str(first): -100}, return_token_ids=True).choices[0]
    assert first not in other.token_ids
    forced = server.complete(logit_bias={str(first): 100}, return_token_ids=True).choices[0]
    assert set(forced.token_ids) == {first}
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 5}):
        assert server.complete(max_tokens=60, **penalty).choices[0].text != \
            server.complete(max_tokens=60).choices[0].text, penalty


def test_errors(server):
    for fields, param in [
            ({"max_tokens": "x"}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"),
            ({"temperature": -0.1}, "temperature"), ({"temperature": True}, "temperature"),
            ({"top_p": 0}, "top_p"), ({"top_p": 1.5}, "top_p"), ({"n": 0}, "n"),
            ({"n": 2.5}, "n"), ({"logprobs": 1000}, "logprobs"), ({"n": 3, "best_of": 2}, "best_of"),
            ({"n": 1, "best_of": 2, "stream": True}, "best_of"),
            ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
            ({"suffix": "x"}, "suffix"), ({"stop": [1]}, "stop"), ({"stop": ["x"] * 17}, "stop"),
            ({"stop": ""}, "stop"), ({"stop_token_ids": [99999]}, "stop_token_ids"),
            ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": [1]}, "logit_bias"),
            ({"logit_bias": {"1": 1000}}, "logit_bias"),
            ({"logit_bias": {" 5": 1}}, "logit_bias"), ({"logit_bias": {"05": 1}}, "logit_bias"),
            ({"echo": "yes"}, "echo"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"stream": True, "stream_options": []}, "stream_options"),
            ({"stream": True, "stream_options": {"include_usage": "yes"}},
             "stream_options.include_usage"),
            ({"stream": True, "stream_options": {"continuous_usage_stats": 1}},
             "stream_options.continuous_usage_stats"),
            ({"min_tokens": 17}, "min_tokens"), ({"prompt": []}, "prompt"),
            ({"prompt": None}, "prompt"), ({"prompt": {"a": 1}}, "prompt"),
            ({"prompt": [1, "a"]}, "prompt"), ({"prompt": [-1]}, "prompt"),
            ({"prompt": [10 ** 12]}, "prompt"), ({"prompt": ["a", 1]}, "prompt"),
            ({"max_tokens": 10 ** 6}, "max_tokens"), ({"seed": "x"}, "seed"), ({"model": 3}, "model")]:
        body = {"model": server.model, "prompt": PROMPT, "max_tokens": 16, **fields}
        status, _, answer = server.post("/v1/completions", body)
        error = answer["error"]
        assert status == 400 and error["param"] == param, (fields, status, answer)
        assert set(error) == {"message", "type", "param", "code", "request_id"}
        assert error["type"] == "invalid_request_error" and error["message"], answer
    for prompt, said in (([[5, 6], [5, -1]], "prompt[1]: token 1 "), ([[5], []], "prompt[1]: "),
                         ([[5], [6], [7] * 10 ** 5], "prompt[2]: This model's maximum context"),
                         ([PROMPT, PROMPT * 10 ** 4], "prompt[1]: This model's maximum context"),
                         ([[5], 6], "prompt[1] must be")):
        status, _, answer = server.post("/v1/completions", {"prompt": prompt})
        assert status == 400 and answer["error"]["param"] == "prompt", answer
        assert answer["error"]["message"].startswith(said), answer
    error = raises(openai.BadRequestError, lambda: server.complete(max_tokens=10 ** 6))
    assert error.code == "context_length_exceeded" and f" {server.context} " in str(error)
    error = raises(openai.NotFoundError, lambda: server.complete(model="gpt"))
    assert error.param == "model" and error.code == "model_not_found"
    for body in (b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100000, b'{"prompt": "\xff"}'):
        status, _, answer = server.post("/v1/completions", body)
        assert status == 400 and answer["error"]["message"], body[:10]
    assert server.post("/v1/nope", {})[0] == 404
    for path, method, allow in (("/v1/models", "POST", "GET, HEAD"), ("/v1/completions", "GET", "POST"),
                                ("/v1/policy", "DELETE", "GET, HEAD, PATCH")):
        status, headers, _ = server.post(path, {}, method=method)
        assert status == 405 and headers["allow"] == allow, (path, headers["allow"])
    for limit in ("0", "-1", "x", "1x", "", "+1", str(2 ** 63), "9" * 20):
        status, _, answer = server.post(f"/v1/weights?limit={limit}", b"", method="GET")
        assert status == 400 and answer["error"]["param"] == "limit", (limit, answer)
    assert len(json.loads(server.get("/v1/weights?limit=1"))["data"]) == 1
    assert json.loads(server.get(f"/v1/weights?limit={2 ** 63 - 1}"))["data"]
    unknown = server.complete(some_unknown_field={"x": 1}, user="me", metadata={"a": "b"})
    assert unknown.choices[0].text
    assert server.complete().choices[0].text  # the server still works


def test_models_and_health(server):
    models = server.client.models.list().data
    assert [m.id for m in models] == [server.model] and models[0].object == "model"
    assert server.client.models.retrieve(server.model).id == server.model
    raises(openai.NotFoundError, lambda: server.client.models.retrieve("gpt"))
    assert json.loads(server.get("/health"))["status"] == "ok"
    assert server.get("/").startswith("hzpserve ") and server.get("/").count("\n") == 1
    weights = json.loads(server.get("/v1/weights"))
    assert weights["staleness"] == 0 and weights["data"][0]["state"] == "current"
    assert weights["max_staleness"] == 1  # the setting, also without training
    assert weights["data"][0]["id"] == weights["serving"]
    page = server.get("/metrics")
    for name in ("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_sum",
                 "vllm:request_success_total", "vllm:kv_cache_usage_perc", "http_requests_total",
                 "vllm:cache_config_info", "hzpserve_weights_version"):
        assert name in page, name
    for line in page.splitlines():
        assert line.startswith("#") or re.fullmatch(r'[\w:]+(\{[^}]*\})? \S+', line), line
    assert 'le="0.001"' in page and 'le="2560.0"' in page and 'model_name="tiny",engine="0"' in page


def test_disconnect_frees(server):
    """Clients disconnect while streaming, while waiting, and without reading: nothing is left over."""
    for fields in ({"stream": True}, {}, {"n": 20, "stream": True}):
        body = json.dumps({"prompt": PROMPT, "max_tokens": server.long, "ignore_eos": True, **fields})
        sockets = []
        for _ in range(12):
            s = socket.create_connection(("127.0.0.1", server.port))
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                      + str(len(body)).encode() + b"\r\n\r\n" + body.encode())
            sockets.append(s)
        generated = server.metric("vllm:generation_tokens_total")
        until(lambda: server.metric("vllm:generation_tokens_total") > generated)
        for s in sockets:
            s.close()
        until(server.idle)
    assert server.complete().choices[0].text


def test_concurrent_streams(server):
    """Many streams at the same time, each complete; a token has an event of its own, also where several are
    written at once."""
    expected = server.complete(max_tokens=40, ignore_eos=True).choices[0].text
    results = [None] * 100

    def ask(i):
        chunks = list(server.complete(max_tokens=40, stream=True, ignore_eos=True, return_token_ids=i % 2 == 0))
        if i % 2 == 0:
            tokens = [len(c.choices[0].token_ids) for c in chunks]
            assert tokens[:40] == [1] * 40 and sum(tokens) == 40, tokens
        results[i] = "".join(c.choices[0].text for c in chunks)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(results))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(r == expected for r in results)
    assert 0 <= server.metric("hzpserve_stream_join_seconds") <= 0.025
    assert server.metric("hzpserve_stream_tokens_joined_total") >= 0
    until(server.idle)


def test_the_port_is_taken(server):
    second = subprocess.run([BINARY, "serve", MODEL, "--no-train", "--port", str(server.port)],
                            capture_output=True, text=True, timeout=HANG)
    assert second.returncode == 1 and f"port {server.port}" in second.stderr


def test_bounds():
    with Server("--max-body", "2K", "--max-running", "1", "--max-waiting", "2", "--no-train",
                "--api-key", "secret") as server:
        assert server.post("/v1/completions", {"prompt": PROMPT})[0] == 401
        key = {"authorization": "Bearer secret"}
        status, _, answer = server.post("/v1/completions", {"prompt": "x" * 5000}, key)
        assert status == 413 and "2048" in answer["error"]["message"]
        assert server.post("/v1/completions", {"prompt": PROMPT, "n": 3}, key)[0] == 400
        assert json.loads(server.get("/health"))["status"] == "ok"  # needs no key
        stop, seen = threading.Event(), []

        def ask():
            while not stop.is_set():
                seen.append(server.post("/v1/completions", {
                    "prompt": PROMPT, "max_tokens": server.long, "ignore_eos": True}, key))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for t in threads:
            t.start()
        until(lambda: any(s[0] == 429 for s in list(seen)))
        stop.set()
        for t in threads:
            t.join()
        assert {s[0] for s in seen} <= {200, 429}
        full = next(s for s in seen if s[0] == 429)
        assert int(full[1]["retry-after"]) >= 1
        assert full[2]["error"]["code"] == "rate_limit_exceeded"
        assert server.complete().choices[0].text
        status, _, answer = server.post("/v1/fine_tuning/examples", {"text": "x"}, key)
        assert status == 404 and "--no-train" in answer["error"]["message"]


def test_half_a_request_is_not_kept():
    """The server closes connections of clients that stop sending in a header or in a body."""
    with Server("--no-train", "--max-connections", "2", "--idle-timeout", "1") as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-"
        for text in (head, head + b"Length: 50\r\n\r\n{", head + b"Length: 50\r\n\r\n{"):
            silent = socket.create_connection(("127.0.0.1", server.port), timeout=HANG)
            silent.sendall(text)
            assert silent.recv(1) == b"", "the connection is still kept"
            silent.close()
        # An answer may take longer than that.
        assert server.complete(max_tokens=server.long, n=8).choices[7].text


def raw(server, data):
    """Sends bytes, returns all that is received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG) as s:
        s.sendall(data)
        got = b""
        while piece := s.recv(65536):
            got += piece
        return got


def test_a_body_too_long():
    """A body announced as too long is answered before it is sent; one that turns out too long, too.

    A server that waited for the body would wait longer than raw() does."""
    with Server("--max-body", "2K", "--no-train", "--api-key", "secret", "--idle-timeout",
                str(2 * HANG)) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n"
        for more in (b"Content-Length: 1000000000000\r\n\r\n",
                     b"Content-Length: 2049\r\nExpect: 100-continue\r\n\r\n",
                     b"Content-Length: 2049\r\n\r\n{"):
            got = raw(server, head + more)
            assert got.startswith(b"HTTP/1.1 413 ") and b'"error"' in got, got
            assert b"connection: close" in got.lower(), got
        key = {"authorization": "Bearer secret"}
        for size in (3000, 100000, 1000000):  # a client that sends everything before it reads
            status, _, answer = server.post("/v1/completions", b"x" * size, key)
            assert status == 413 and "2048" in answer["error"]["message"], answer
        assert server.post("/v1/completions", b"x" * 100000)[0] == 401
        assert server.post("/v1/nope", b"x" * 100000, key)[0] == 404
        chunks = b"".join(b"400\r\n" + b"x" * 1024 + b"\r\n" for _ in range(4)) + b"0\r\n\r\n"
        got = raw(server, head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        assert got.startswith(b"HTTP/1.1 413 "), got
        until(lambda: server.metric("http_requests_total") > 0)


def test_lines_to_copy():
    """The command printed at start is valid for a shell and as JSON, whatever the prompt."""
    prompt = "It's \"so\" \\ $HOME `id` \u00e4 %s\n!"
    with Server("--try-prompt", prompt, "--api-key", "secret") as server:
        until(lambda: "".join(server.printed).count("completions") == 2)
        text = "".join(server.printed)
        done = subprocess.run(["sh", "-c", 'curl() { printf "%s\\0" "$@" END; }\n' + text],
                              capture_output=True, text=True,
                              env={**os.environ, "HZP_API_KEY": "secret"})
        assert "secret" not in text
        calls = [c.split("\0") for c in done.stdout.split("END\0") if c]
        assert len(calls) == 3 and not done.stderr, (text, done)
        for call in calls:
            if "--data-binary" in call:  # the model names a file of examples
                body = pathlib.Path(call[call.index("--data-binary") + 1][1:]).read_text()
            else:
                body = json.loads(call[call.index("-d") + 1])
                assert body["prompt"] == prompt, call
            url = next(a for a in call if a.startswith(server.url))
            if "wait=served" in url:  # as in the README: long enough for a slow machine
                readme = pathlib.Path(__file__).resolve().parents[2] / "README.md"
                assert "examples?wait=served&timeout=600'" in readme.read_text()
                assert url.endswith("examples?wait=served&timeout=600"), url
            path = url[len(server.url):].replace("timeout=600", "timeout=1")
            headers = dict(b.split(": ", 1) for a, b in zip(call, call[1:]) if a == "-H")
            assert server.post(path, body, headers)[0] in (200, 202)


def test_staleness_overrides_publish_every():
    with tempfile.TemporaryFile("w+") as log:
        with Server("--max-staleness", "0", "--publish", "every=3", "--passes", "6", log=log) as server:
            body = {"text": "A dog saw a cat."}
            assert server.post(EXAMPLES + f"?wait=served&timeout={HANG}", body)[0] == 200
            weights = json.loads(server.get("/v1/weights"))
            assert weights["publications"] >= 3 and weights["staleness_histogram"][1:] == [0] * 7
        log.seek(0)
        said = [line for line in log if "--publish every" in line]
        assert len(said) == 1 and "--max-staleness 0 overrides --publish every=3" in said[0], said


def test_drain():
    log = tempfile.TemporaryFile("w+")
    with Server("--no-train", "--max-running", "2", "--step-rows", "2",
                "--drain-timeout", str(HANG), log=log) as server:
        results = []

        def ask():
            results.append(server.complete(max_tokens=server.long * 2 // 3, n=4))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for t in threads:
            t.start()
        until(lambda: server.metric("vllm:num_requests_running") > 0
              and server.metric("vllm:request_params_n_count") == 6)
        server.process.send_signal(signal.SIGTERM)
        try:
            until(lambda: server.post("/v1/completions", {"prompt": PROMPT})[0] == 503)
            _, headers, refused = server.post("/v1/completions", {"prompt": PROMPT})
            assert refused["error"]["code"] == "stopping" and int(headers["retry-after"]) >= 1
            server.get("/health")
            raise AssertionError("health did not say it is stopping")
        except urllib.error.HTTPError as error:
            said = json.loads(error.read())
            assert said["error"].pop("request_id") != refused["error"].pop("request_id")
            assert error.code == 503 and said == refused
        except OSError:
            pass  # the server ended before the test looked
        for t in threads:
            t.join()
        assert server.process.wait(HANG) == 0
        assert len(results) == 6
        assert all(c.finish_reason == "length" for r in results for c in r.choices)
    log.seek(0)
    last = log.read().splitlines()[-1]
    log.close()
    said = re.search(r"serve: stopped .*in_flight=(\d+) finished=(\d+) left=0 failed=0 ", last)
    assert said and int(said[2]) >= int(said[1]) > 0, last


def test_hurry():
    log = tempfile.TemporaryFile("w+")
    with Server("--no-train", "--max-running", "1", "--drain-timeout", str(HANG), log=log) as server:
        failures = []

        def ask():
            try:
                server.complete(max_tokens=server.long, n=100)
            except openai.APIStatusError as error:
                failures.append(error.status_code)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: server.metric("vllm:num_requests_running") > 0)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(HANG) == 0
        thread.join()
        assert failures in ([503], []), failures
    log.seek(0)
    last = log.read().splitlines()[-1]
    log.close()
    said = re.search(r"serve: stopped .* finished=(\d+) left=(\d+) failed=(\d+) ", last)
    assert said and int(said[1]) < 100 and int(said[2]) + int(said[3]) > 0, last


EXAMPLES = "/v1/fine_tuning/examples"


def test_learning():
    """Examples change the answers, version by version; a restart continues where the server was."""
    question, answer = "The color of my car is", " purple and green."
    teach = ["--lr", "2e-3", "--passes", "30", "--replay-ratio", "0", "--warmup-steps", "0"]
    lines = "\n".join(json.dumps({"prompt": question, "completion": answer}) for _ in range(8))
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*teach, state=state) as server:
            before = server.complete(prompt=question).choices[0].text
            assert before != answer
            status, headers, got = server.post(EXAMPLES + f"?wait=served&timeout={HANG}", lines)
            assert status == 200 and got["served"], got
            assert (got["first"], got["last"], got["accepted"]) == (1, 8, 8)
            after = server.complete(prompt=question)
            assert after.choices[0].text.startswith(answer), after.choices[0].text
            version = after.hzpserve["weights_version"]
            assert version >= got["weights_version"] > 1
            assert int(headers["x-hzpserve-weights-version"]) == got["weights_version"]
            weights = json.loads(server.get("/v1/weights"))
            newest = weights["data"][0]
            assert newest["learned_through"] == weights["learned_through"] == 8
            assert newest["loss"] < weights["data"][-2]["loss"] and newest["learned"] == [[1, 8]]
            assert [r["id"] for r in weights["data"]] == list(range(newest["id"], 0, -1))
            status, _, got = server.post(EXAMPLES, json.dumps(
                [{"text": "Hello."}, {"tokens": [1, 300, 301], "learn": [0, 0, 1]}]))
            assert status == 202 and (got["first"], got["last"]) == (9, 10)
            for bad, where in ((lines + "\n{}", "lines[9]"), ('{"prompt": "x"}', "completion"),
                               ('[{"text": "x"}, {"text": 3}]', "[2].text"), ("", None), ("{", None)):
                status, _, error = server.post(EXAMPLES, bad)
                assert status == 400, (bad, error)
                assert where is None or where in error["error"]["param"], error
            assert server.post(EXAMPLES + "?wait=nothing", lines)[0] == 400
            for query in ("wiat=served", "wait=served&timout=5", "promptfield=q", "a%ff%22=1"):
                status, _, got = server.post(EXAMPLES + "?" + query, lines)
                assert status == 400 and "is not an argument" in got["error"]["message"], (query, got)
            assert server.metric("hzpserve_examples_accepted_total") == 10
        with Server(*teach, state=state) as server:
            again = server.complete(prompt=question)
            assert again.choices[0].text.startswith(answer)
            assert again.hzpserve["weights_version"] > version
            status, _, got = server.post(EXAMPLES, lines)
            assert (got["first"], got["last"]) == (11, 18)


def test_policy():
    """A PATCH of goals, shares and the staleness bound takes effect as a whole or not at all."""
    with Server("--slo", "ttft=800ms,itl=100ms", "--passes", "100000", "--max-staleness", "2") as server:
        policy = json.loads(server.get("/v1/policy"))
        assert policy["slo"] == {"ttft_ms": 800, "itl_ms": 100}
        assert (policy["max_staleness"], policy["train_max"], policy["train_min"]) == (2, 1, 0.02)
        for bad, param in (({"slo": {"itl_ms": 0}}, "slo.itl_ms"), ({"slo": {"ttft": 1}}, "slo.ttft"),
                           ({"slo": {"ttft_ms": "x"}}, "slo.ttft_ms"), ({"slo": "itl=3"}, "slo"),
                           ({"slo": 3}, "slo"), ({"train_max": 1.5}, "train_max"),
                           ({"slo": "itl=50ms\0x"}, "slo"), ({"max_staleness": None}, "max_staleness"),
                           ({"train_max": 0.2, "train_min": 1.3}, "train_min"),
                           ({"train_share": "all"}, "train_share"), ({"max_staleness": -1},
                           "max_staleness"), ({"max_staleness": 3, "speed": 1}, "speed"), ([], None),
                           ('{"train_max": 0.5, "train_max": 0.1}', None), ({"slo": "itl=0x5ms"}, "slo"),
                           ('{"slo": {"itl_ms": 5, "itl_ms": 9}}', None)):
            status, _, error = server.patch("/v1/policy", bad)
            assert status == 400 and error["error"]["param"] == param, (bad, status, error)
        now = json.loads(server.get("/v1/policy"))
        assert {k: now[k] for k in policy if k != "split"} == \
            {k: policy[k] for k in policy if k != "split"}
        # Training runs beside requests, and the goals hold as measured.
        assert server.post(EXAMPLES, {"text": "A dog saw a cat. " * 10})[0] == 202
        for _ in range(12):
            server.complete(max_tokens=24)
        split = json.loads(server.get("/v1/policy"))["split"]
        assert split["trained_steps"] > 0 and split["steps"] >= 12 * 24 - 12, split
        assert 0 < split["measured"]["itl_ms"]["p50"] <= split["measured"]["itl_ms"]["p99"]
        assert split["measured"]["ttft_ms"]["count"] == 12
        assert split["predicted"]["alone_ms"] > 0 and split["predicted"]["slowdown"] >= 1
        # Shares of the device are counted by whole seconds, which such a load may not have lasted.
        until(lambda: 0 < json.loads(server.get("/v1/policy"))["split"]["measured"]["train_part"] <= 1)
        # From the next step on training runs only in pauses between requests.
        status, _, got = server.patch("/v1/policy", {"slo": {"ttft_ms": None}, "train_max": 0,
                                                     "max_staleness": 4})
        assert status == 200 and got["slo"] == {"ttft_ms": None, "itl_ms": 100}
        assert (got["train_max"], got["max_staleness"]) == (0, 4)
        server.complete(max_tokens=4)
        trained = json.loads(server.get("/v1/policy"))["split"]["trained_steps"]
        version = server.metric("hzpserve_weights_version")
        server.complete(max_tokens=48)
        now = json.loads(server.get("/v1/policy"))["split"]["trained_steps"]
        # Slices begun in the pauses before and after may end in the request's first and last steps.
        assert now <= trained + 8, (trained, now)
        until(lambda: server.metric("hzpserve_weights_version") > version)
        assert server.metric("hzpserve_weights_max_staleness") == 4
        assert server.metric("hzpserve_slo_itl_seconds") == 0.1
        assert server.metric("hzpserve_slo_ttft_seconds") == 0
        assert server.metric("hzpserve_split_train_max") == 0
        assert server.patch("/v1/policy", {"slo": None})[2]["slo"] == {"ttft_ms": None,
                                                                       "itl_ms": None}
        assert server.patch("/v1/policy", {"slo": "itl=2s"})[2]["slo"]["itl_ms"] == 2000
        assert server.post("/v1/policy", {})[0] == 405


def test_full_queue():
    with Server("--queue", "4", "--passes", "1000000") as server:
        assert server.post(EXAMPLES, [{"text": "One."}] * 3)[0] == 202
        status, headers, got = server.post(EXAMPLES, [{"text": "One."}] * 2)
        assert status == 429 and int(headers["retry-after"]) >= 1, got
        assert server.post(EXAMPLES, [{"text": "One."}] * 5)[0] == 400


def main(names):
    """Runs the tests among the names, those of this file or of another that uses its Server."""
    global BINARY, MODEL, CASES, EXPECTED
    BINARY, MODEL = sys.argv[1:3]
    chosen = sys.argv[3:]
    expected = pathlib.Path(MODEL) / "expected.json"
    if chosen[:1] == ["--expected"]:
        expected, chosen = pathlib.Path(chosen[1]), chosen[2:]
    if not (pathlib.Path(MODEL) / "config.json").exists():
        print(f"{MODEL} holds no model: skipped")
        return 77
    CASES = json.loads(expected.read_text())["cases"] if expected.exists() else []
    EXPECTED = {c["prompt"]: c["text"] for c in CASES if "text" in c}
    tests = {k: v for k, v in names.items() if k.startswith("test_") and callable(v)}
    if set(chosen) - set(tests):
        sys.exit(f"there is no test {min(set(chosen) - set(tests))}")
    shared = [t for t in tests.values() if t.__code__.co_argcount]
    own = [t for t in tests.values() if not t.__code__.co_argcount]
    if chosen:
        shared, own = ([t for t in g if t.__name__ in chosen] for g in (shared, own))
    if shared:
        with Server("--no-train") as server:
            for test in shared:
                begin = time.monotonic()
                test(server)
                print(f"ok {test.__name__} {time.monotonic() - begin:.2f} s", flush=True)
            until(server.idle)
    for test in own:
        begin = time.monotonic()
        test()
        print(f"ok {test.__name__} {time.monotonic() - begin:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(globals()))
