#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server of a model in which five of six layers have a window, beside one that keeps all pages of all layers
(--prefix-file): in F32 every answer has the same tokens and log-probabilities, alone and among others, under the
pressure of few pages, from the prefix cache, guessed, with half of the layers, and with e4m3 pages; far fewer bytes
hold the same requests, and nothing is held in the end.

    test_windows.py HZPSERVE MODEL_DIR

Skips (77) where there is no model.
"""
import concurrent.futures
import json
import pathlib
import random
import re
import sys
import tempfile

import test_depth
import test_draft

WINDOW, POSITIONS = 32, 2048
FLAGS = [*test_draft.FLAGS, "--no-train", "--max-running", "8", "--step-rows", "128"]
WHOLE = ["--prefix-file", tempfile.gettempdir(), "--prefix-bytes", "file=1M"]


def write_model(source, target):
    test_depth.write_model(source, target, [0, 1, 2, 1, 2, 3])
    config = json.loads((target / "config.json").read_text())
    config.update(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=WINDOW,
                  max_position_embeddings=POSITIONS,
                  layer_types=["full_attention" if i == 2 else "sliding_attention" for i in range(6)])
    (target / "config.json").write_text(json.dumps(config))
    return str(target)


def bodies(count):
    dice, made = random.Random(5), []
    words = ("Zorin", "lives", "in", "the", "house", "of", "Mira", "and", "reads", "books")
    system = " ".join(dice.choice(words) for _ in range(300))
    for i in range(count):
        own = " ".join(dice.choice(words) for _ in range(dice.randint(1, 300)))
        made.append({"prompt": system + own if i % 3 == 0 else own, "max_tokens": dice.randint(1, 250), "seed": i,
                     "temperature": (0, 0.7)[i % 2], "logprobs": 2, "ignore_eos": True, "n": 3 if i % 7 == 0 else 1})
        if i % 5 == 4:
            made[-1]["depth"] = 0.5
    return made


def ask(server, asked):
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda each: server.call("/v1/completions", each), asked))
    return [test_draft.choices(each) for each in answers]


def metric(server, name):
    return float(re.search(rf"^hzpserve_{name}{{.*}} (\S+)$", server.text("/metrics"), re.M)[1])


def plan(program, model, *flags):
    """The KV cache by the memory plan: its bytes, pages, backing pages."""
    with test_draft.Server(program, model, *FLAGS, *flags) as server:
        server.call("/v1/completions", {"prompt": "Zorin", "max_tokens": 1})
        return [metric(server, name) for name in ("kv_pages", "kv_backing_pages")]


def test_same(program, model, asked):
    few = ("--kv-tokens", "3072", "--same-arithmetic")  # a request that begins again has the same bits then
    for name, more in {"plain": (), "few pages": few, "guesses": ("--draft", "ngram"), "fp8": ("--kv-cache-dtype", "fp8"),
                       "one ahead": ("--run-ahead", "1", *few), "worst case": ("--admission", "worst-case", *few),
                       "few pages, guesses": ("--draft", "ngram", *few), "ref": ("--device", "ref", *few[:2])}.items():
        some = asked[:6] if name == "ref" else asked
        found = {}
        for how, whole in (("windows", ()), ("whole", WHOLE)):
            with test_draft.Server(program, model, *FLAGS, *more, *whole) as server:
                found[how] = ask(server, some) + ask(server, some[:3])  # these are in the cache
                pages, backs = metric(server, "kv_pages"), metric(server, "kv_backing_pages")
                assert backs == 0 if whole else 0 < backs < pages, (name, backs, pages)
                held, taken = metric(server, "kv_backing_pages_held"), metric(server, "kv_pages_taken")
                assert held == taken == 0, (name, held, taken)
                hits = float(re.search(r"^vllm:prefix_cache_hits_total\S* (\S+)$", server.text("/metrics"), re.M)[1])
                preempted = float(re.search(r"^vllm:num_preemptions_total\S* (\S+)$", server.text("/metrics"), re.M)[1])
                print(f"{name}, {how}: {pages:.0f} pages, {backs:.0f} backing; {hits:.0f} tokens found, "
                      f"{preempted:.0f} preemptions")
        for one, other, each in zip(found["windows"], found["whole"], some + some[:3]):
            assert one == other, (name, each["seed"], [(a[0], b[0]) for a, b in zip(one, other)])


def test_memory(program, model):
    """The same bytes hold more of the longest requests."""
    fits = {}
    for how, whole in (("windows", ()), ("whole", WHOLE)):
        pages, backs = plan(program, model, "--kv-memory", "8M", *whole)
        fits[how] = pages * 16 / POSITIONS
        print(f"{how}: 8 MB hold {pages:.0f} pages of 16 tokens, {backs:.0f} backing: {fits[how]:.1f} requests of "
              f"{POSITIONS} tokens")
    assert fits["windows"] > 2.5 * fits["whole"], fits


def main():
    program, model = sys.argv[1], pathlib.Path(sys.argv[2])
    if not (model / "model.safetensors").exists():
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        windowed = write_model(model, pathlib.Path(folder) / "windows")
        test_memory(program, windowed)
        test_same(program, windowed, bodies(24))


if __name__ == "__main__":
    main()
