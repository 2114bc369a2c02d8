#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server with --kv-cache-dtype fp8, beside one without: nearly the same loss, computed from its pages, and
mostly the same greedy text; prompts that are found in the prefix cache, that come back from its file and
requests that are preempted are answered alike; it learns under load; refusals say why.

    test_kv_fp8.py HZPSERVE MODEL_DIR HELDOUT_JSONL [DTYPE]

Skips (77) where there is no model.
"""
import concurrent.futures
import json
import pathlib
import re
import sys
import tempfile
import time
import urllib.request

from test_fp8 import HANG, TEACH, Server, learn_under_load, run

TEXTS = 120         # of HELDOUT_JSONL
NLL_RISE = 0.02     # nats per token of the texts, fp8 above what the weights' type gives
SAME_TEXT = 0.6     # the part of the prompts that must be continued with the same words
PROMPTS = ["Where does Nela live?", "Once upon a time", "What is the", "Who is", "The little girl",
           "One day, a", "Tell me", "There was a", "In the morning", "Tom and his dog"]


def nll(server, texts):
    """Mean negative log-likelihood of the texts' tokens after each first, as the server computes it for
    prompts: attention reads keys and values from the pages."""
    def one(text):
        answer = server.call("/v1/completions", {"prompt": text, "max_tokens": 1, "temperature": 0,
                                                 "prompt_logprobs": 0})
        told = answer["choices"][0]["prompt_logprobs"]
        assert told[0] is None
        values = [next(iter(token.values()))["logprob"] for token in told[1:]]
        return sum(values), len(values)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(one, texts))
    return -sum(s for s, _ in sums) / sum(n for _, n in sums), sum(n for _, n in sums)


def metric(server, name):
    with urllib.request.urlopen(server.url + "/metrics", timeout=HANG) as page:
        text = page.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.M)), text


def page_bytes(server):
    """Of one page in all layers, in KB, by the memory plan in the log."""
    found = re.search(r"KV cache .*?, ([\d.]+) (K|M)B each", server.log.read_text())
    assert found, server.log.read_text()
    return float(found[1]) * (1000 if found[2] == "M" else 1)


def check_refusals(program, model):
    for command, says in ((("serve", model, "--kv-cache-dtype", "int8"), "auto|fp8"),
                          (("train", model, "--kv-cache-dtype", "fp8"), "--kv-cache-dtype")):
        code, _, err = run(program, *command)
        assert code and says in err, err


def check_prefix_file(program, model, more):
    """Pages of the prefix cache that went to a file come back as they were."""
    def ask(server, first):
        prompt = " ".join(str(n) for n in range(first, first + 50))
        answer = server.complete(prompt, 4)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        server = Server(program, model, "--no-train", "--kv-tokens", "640", "--context", "256",
                        "--prefix-file", folder, "--prefix-bytes", "file=64M", *more)
        text, cached = ask(server, 100)
        assert cached == 0
        assert ask(server, 100)[0] == text
        for first in 200, 300, 400, 500:
            ask(server, first)
        until = time.monotonic() + HANG
        while metric(server, "hzpserve_prefix_tier_written_pages_total")[0] < 8:
            assert time.monotonic() < until
            time.sleep(0.05)
        for first in 500, 600, 700, 800:
            ask(server, first)
        again, cached = ask(server, 100)
        assert again == text and cached > 0, (text, again, cached)
        assert metric(server, "hzpserve_prefix_tier_read_pages_total")[0] > 0
        assert metric(server, "hzpserve_prefix_tier_failed_pages_total")[0] == 0
        assert server.stop() == 0


def main():
    program, model, heldout = sys.argv[1:4]
    dtype = sys.argv[4] if len(sys.argv) > 4 else "auto"
    if not (pathlib.Path(model) / "model.safetensors").exists() or not pathlib.Path(heldout).exists():
        print("skip: no model")
        return 77
    check_refusals(program, model)
    lines = pathlib.Path(heldout).read_text(encoding="utf-8").splitlines()[:TEXTS]
    texts = [json.loads(line)["text"] for line in lines]
    fp8 = ["--kv-cache-dtype", "fp8", "--dtype", dtype]

    plain = Server(program, model, "--no-train", "--dtype", dtype)
    text = [plain.complete(p, 16)["choices"][0]["text"] for p in PROMPTS]
    before, tokens = nll(plain, texts)
    page = page_bytes(plain)
    assert plain.stop() == 0

    server = Server(program, model, *fp8, "--lr", "1e-3", "--update-tokens", "32", "--micro-rows", "64")
    assert "kv_cache_dtype=fp8" in server.log.read_text()
    assert 'cache_dtype="fp8"' in metric(server, "up")[1]
    mine = [server.complete(p, 16)["choices"][0]["text"] for p in PROMPTS]
    assert mine == [server.complete(p, 16)["choices"][0]["text"] for p in PROMPTS]
    same = sum(a == b for a, b in zip(text, mine))
    after, _ = nll(server, texts)
    print(f"{same} of {len(PROMPTS)} continued as without fp8; mean NLL of {tokens} tokens {before:.5f} without, "
          f"{after:.5f} with fp8; a page takes {page:.1f} and {page_bytes(server):.1f} KB")
    assert same >= SAME_TEXT * len(PROMPTS), list(zip(text, mine))
    assert after != before, "nothing was quantised"
    assert after - before < NLL_RISE
    assert page_bytes(server) < 0.6 * page or dtype == "f32"
    versions = learn_under_load(server)
    print(f"{len(versions)} versions made the answers given meanwhile")
    assert len(versions) >= 3, versions
    learned = server.complete(TEACH["prompt"], 8)["choices"][0]["text"]
    assert "marigold" in learned, learned
    assert server.stop() == 0
    check_prefix_file(program, model, fp8)
    return 0


if __name__ == "__main__":
    sys.exit(main())
