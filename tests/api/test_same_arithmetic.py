#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""With --same-arithmetic a token has the same bits when it is served, in any company, and when it is learned.

    test_same_arithmetic.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py, the rollouts those of test_rollouts.py.
"""
import concurrent.futures
import re
import subprocess
import sys

import test_api
from test_api import Server
from test_rollouts import LEARNS, PROMPTS, begin, end

SAME = "--same-arithmetic"
LEVELS = ["base", "avx2", "avx512", "avx512_bf16", "amx"]


def levels():
    """The instruction sets of this machine, or those up to the one that the environment allows."""
    said = subprocess.run([test_api.BINARY, "devices"], capture_output=True, text=True, check=True).stdout
    best = re.search(r"kernels used\s+(\w+)", said)[1]
    return LEVELS[:LEVELS.index(best) + 1]


def ratios(*options, **fields):
    """How far the log-probabilities of training are from those that were served, by the same version."""
    with Server(*LEARNS, "--no-prefix-cache", *options) as server:
        end(server, begin(server, prompts=PROMPTS * 2, updates=1, max_tokens=24, temperature=1, **fields))
        return [server.metric("hzpserve_train_ratio_" + name) for name in ("max", "k1", "k3")]


def test_learned_as_served():
    for level in levels():
        for dtype in ("f32", "bf16"):
            got = ratios("--dtype", dtype, "--cpu-level", level, SAME)
            assert got == [1, 0, 0], (level, dtype, got)
    most, _, k3 = ratios("--dtype", "f32")  # what would be found, if it were not so
    assert most > 1 and k3 > 0, (most, k3)


def mismatch(*options):
    """k3 between answers and what training computes of them, once so many of their tokens were compared."""
    with Server(*options) as server:
        for i in range(10000):
            server.complete(prompt=PROMPTS[i % 5], max_tokens=32, temperature=1, seed=i)
            if server.metric("hzpserve_mismatch_tokens_total") > 256:
                break
        return server.metric("hzpserve_mismatch_k3")


def test_mismatch():
    """Of plain answers: what differs in F32 is rounding; what e4m3 changes is seen; nothing where nothing differs."""
    f32, same = mismatch(), mismatch("--dtype", "bf16", SAME)
    weights, cache = mismatch("--quantization", "fp8"), mismatch("--kv-cache-dtype", "fp8")
    print(f"k3: F32 {f32:.1e}, {SAME} in BF16 {same:.1e}, fp8 {weights:.1e}, its cache {cache:.1e}")
    assert 0 <= f32 < 1e-10 and same == 0, (f32, same)
    assert weights > 1e-7 and cache > 1e-7, (weights, cache)
    with Server("--no-train") as server:
        server.complete()
        assert "hzpserve_mismatch" not in server.get("/metrics")


def test_what_fp8_served_is_corrected():
    """What is learned of it has a loss with the ratio of both probabilities, of each kind of rollouts and of feedback:
    the ratio is not 1, though the version that learns is the one that served."""
    for algorithm in ("grpo", "dapo", "cispo", "reinforce", "gspo"):
        most, _, k3 = ratios("--quantization", "fp8", algo=algorithm)
        assert most > 1.001 and k3 > 1e-6, (algorithm, most, k3)
    with Server(*LEARNS, "--quantization", "fp8", "--queue", "1000,receipts=1M") as server:
        said = server.complete(prompt=PROMPTS[0], max_tokens=24, temperature=1, seed=1)
        status, _, done = server.post("/v1/feedback", {"id": said.id, "score": 1, "learn": True})
        assert status == 200, done
        server.complete(after=done["after"])
        assert server.metric("hzpserve_train_ratio_k3") > 1e-6


def answer(server, i):
    prompt = (PROMPTS[i % 5] + " the cup of Ann is near the river, and Bert's kite is") * (1 + i % 3)
    done = server.complete(prompt=prompt, max_tokens=20, logprobs=3, temperature=0 if i % 2 else 1, seed=i)
    choice = done.choices[0]
    return choice.text, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs


def test_any_company():
    """An answer is the same alone, among others, and from the prefix cache; of BF16, where the kernels for few rows and
    for many round differently."""
    with Server("--dtype", "bf16", SAME, "--no-train", "--check-plans") as server:
        alone = [answer(server, i) for i in range(24)]
        again = [answer(server, i) for i in range(24)]  # now from the prefix cache
        with concurrent.futures.ThreadPoolExecutor(24) as clients:
            crowd = list(clients.map(lambda i: answer(server, i), range(24)))
    with Server("--dtype", "bf16", SAME, "--no-train", "--no-prefix-cache", "--draft", "ngram") as server:
        guessed = [answer(server, i) for i in range(24)]
    for i, one in enumerate(alone):
        assert one == again[i] == crowd[i] == guessed[i], (i, one, again[i], crowd[i], guessed[i])


def test_refused():
    for options, name in ((["--ranks", "2", "--tensor", "2"], "--tensor"), (["--quantization", "fp8", "--no-train"],
                           "--quantization fp8"), (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype fp8")):
        done = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--port", "0", SAME, *options],
                              capture_output=True, text=True, timeout=600)
        assert done.returncode == 2 and f"{SAME} cannot be used with {name}" in done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(test_api.main(globals()))
