#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data: small synthetic traces, a text, tokenizers with vectors, and reference answers of the
bundled model, for tests where recorded ones are absent.

    pip install tokenizers==0.21.4 numpy
    dev/make_test_data.py

Every run writes the same files, but for tokenizers that are not there: the package's training breaks ties at
random, so those that are there are kept.  Lengths are lognormal, arrivals a Poisson process whose rate alternately
doubles and halves; the form is that of Azure's traces (with times), of NanoFlow's (without) and of
Mooncake's (with blocks that prompts share).  The text is documents of tests/demo/heldout.jsonl, separated by
<|endoftext|>.  The tokenizers are trained on it and on dev/test_texts.py; the vectors are what the
`tokenizers` package makes of those texts.  The answers are greedy continuations in float64, computed here from
the weights on disk.
"""
import json
import math
import pathlib
import random
import struct

import numpy as np
from test_texts import DECODED, TEXTS
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

REQUESTS = 800
DOCUMENTS = 24
ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
DATA = TESTS / "data"
PLACE = DATA / "traces"
MODEL = ROOT / "models" / "world"
PROMPTS = ["Where does Nela live?", "Once upon a time", "Who is", "A", "The house is red. The", "Tell me"]
ANSWER_TOKENS = 40
MARGIN = 2e-3  # a reference token is this much likelier than the next, so F32 must choose it too


def length(draw, median, sigma, most):
    return min(max(round(median * math.exp(draw.gauss(0, sigma))), 1), most)


def bursts(draw):
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    at = 0.0
    for i in range(REQUESTS):
        at += draw.expovariate(10.0 if i // 100 % 2 else 2.5)
        minutes, seconds = divmod(at, 60)
        yield f"2026-01-01 09:{int(minutes):02}:{seconds:010.7f},{length(draw, 450, 1.1, 6000)}," \
              f"{length(draw, 90, 0.9, 1000)}"


def chat(draw):
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for _ in range(REQUESTS):
        yield f"XXX,{length(draw, 55, 1.4, 4000)},{length(draw, 130, 1.1, 1024)}"


def talks(draw):
    """Several conversations side by side; a prompt begins with the blocks of its conversation's last one."""
    at, block, known = 0, 0, [[] for _ in range(8)]
    for _ in range(120):
        at += round(draw.expovariate(1 / 3000))
        talk = draw.choice(known)
        new = length(draw, 700, 0.8, 8000)
        tokens = 512 * len(talk) + new
        fresh = -(-new // 512)
        talk.extend(range(block, block + fresh))
        block += fresh
        yield json.dumps({"timestamp": at, "input_length": tokens,
                          "output_length": length(draw, 150, 0.9, 1000), "hash_ids": talk})
        del talk[len(talk) - 1:]  # the last block was not full


GPT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LEVEL = {**GPT, "use_regex": False}
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" \
        r"\s*[\r\n]+|\s+(?!\S)|\s+"


def split(digits):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": WORDS % digits}, "behavior": "Isolated", "invert": False},
        LEVEL]}


def starts_with(token):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [0], "tokens": [token]}}}


METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
BYTES_TO_TEXT = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}

# Name: parts of tokenizer.json, as the families of this kind have them.
KINDS = {
    "gpt2": {"pre_tokenizer": GPT, "decoder": GPT},
    "llama3": {"pre_tokenizer": split("{1,3}"), "decoder": LEVEL, "post_processor": starts_with("<s>"),
               "ignore_merges": True},
    "qwen": {"normalizer": {"type": "NFC"}, "pre_tokenizer": split(""), "decoder": LEVEL},
    "llama2": {"normalizer": {"type": "Sequence", "normalizers": [
                   {"type": "Prepend", "prepend": "\u2581"},
                   {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
               "decoder": BYTES_TO_TEXT, "post_processor": starts_with("<s>"), "byte_fallback": True},
    "metaspace": {"pre_tokenizer": METASPACE, "decoder": METASPACE, "byte_fallback": True},
}


def make_tokenizer(parts, texts):
    """A vocabulary of a few hundred tokens trained on the texts."""
    byte_level = not parts.get("byte_fallback")
    parts = {"byte_fallback": False, "ignore_merges": False, "normalizer": None, "pre_tokenizer": None,
             "post_processor": None, **parts}
    made = json.loads(Tokenizer(models.BPE()).to_str())
    made.update({k: parts[k] for k in ("normalizer", "pre_tokenizer", "decoder")})
    made = Tokenizer.from_str(json.dumps(made))
    special = ["<s>", "</s>", "<unk>"]
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=600, show_progress=False, max_token_length=12, limit_alphabet=256 if byte_level else 100,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if byte_level else [],
        special_tokens=special + ([] if byte_level else [f"<0x{b:02X}>" for b in range(256)])))
    made = json.loads(made.to_str())
    made["post_processor"] = parts["post_processor"]
    made["added_tokens"] = [t for t in made["added_tokens"] if t["content"] in special]
    made["model"].update(byte_fallback=not byte_level, ignore_merges=parts["ignore_merges"],
                         unk_token=None if byte_level else "<unk>", fuse_unk=not byte_level)
    made = Tokenizer.from_str(json.dumps(made))
    made.add_special_tokens([AddedToken("<|turn|>", normalized=False)])
    made.add_tokens([AddedToken("<tool>", normalized=False, lstrip=True),
                     AddedToken("[end]", normalized=False, rstrip=True)])
    return made


def vectors(tokenizer):
    """For each text its ids plain, with and without special tokens recognised, and decoded again."""
    for text in TEXTS:
        one = {"text": text}
        for name, special, parse in (("ids", True, True), ("plain", False, False)):
            tokenizer.encode_special_tokens = not parse
            one[name] = tokenizer.encode(text, add_special_tokens=special).ids
        one["decoded"] = tokenizer.decode(one["ids"], skip_special_tokens=False)
        one["skipped"] = tokenizer.decode(one["ids"], skip_special_tokens=True)
        yield json.dumps(one, ensure_ascii=False, separators=(",", ":"))


def tokenizers():
    texts = [text.replace("\0", "") for text in TEXTS]  # JSON readers refuse NUL in a key
    texts += (DATA / "world.txt").read_text().split("\n") + DECODED
    for name, parts in KINDS.items():
        place = DATA / "tokenizers" / name
        place.mkdir(parents=True, exist_ok=True)
        file = place / "tokenizer.json"
        if not file.exists():
            made = make_tokenizer(parts, texts)
            file.write_text(json.dumps(json.loads(made.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        made = Tokenizer.from_file(str(file))
        (place / "vectors.jsonl").write_text("\n".join(vectors(made)) + "\n")


def read_weights(path):
    """{name: float64 array} of a safetensors file of BF16 tensors."""
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16", name
        begin, end = (8 + size + at for at in t["data_offsets"])
        bits = np.frombuffer(raw[begin:end], "<u2").astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).astype(np.float64).reshape(t["shape"])
    return tensors


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def logits(config, w, ids):
    """Of the last of ids: Llama's forward pass, as its paper and transformers' modeling_llama have it."""
    n, heads, groups, dim = len(ids), config["num_attention_heads"], config["num_key_value_heads"], \
        config["head_dim"]
    angle = np.outer(np.arange(n), config["rope_theta"] ** (-np.arange(0, dim, 2) / dim))
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def turn(x):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        p = {k.split(".", 3)[3]: v for k, v in w.items() if k.startswith(f"model.layers.{layer}.")}
        y = norm(x, p["input_layernorm.weight"], config["rms_norm_eps"])
        q = turn((y @ p["self_attn.q_proj.weight"].T).reshape(n, heads, dim))
        k = turn((y @ p["self_attn.k_proj.weight"].T).reshape(n, groups, dim)).repeat(heads // groups, 1)
        v = (y @ p["self_attn.v_proj.weight"].T).reshape(n, groups, dim).repeat(heads // groups, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        part = np.exp(scores - scores.max(-1, keepdims=True))
        part /= part.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", part, v).reshape(n, -1) @ p["self_attn.o_proj.weight"].T
        y = norm(x, p["post_attention_layernorm.weight"], config["rms_norm_eps"])
        gate = y @ p["mlp.gate_proj.weight"].T
        x = x + gate / (1 + np.exp(-gate)) * (y @ p["mlp.up_proj.weight"].T) @ p["mlp.down_proj.weight"].T
    return norm(x[-1], w["model.norm.weight"], config["rms_norm_eps"]) @ w["model.embed_tokens.weight"].T


def greedy(config, w, tokenizer, prompt):
    """Up to ANSWER_TOKENS tokens, beyond the end of the text too; fewer where two are nearly as likely."""
    ids, more, logprobs = tokenizer.encode(prompt).ids, [], []
    while len(more) < ANSWER_TOKENS:
        values = logits(config, w, ids + more)
        values -= values.max()
        values -= np.log(np.exp(values).sum())
        second, first = np.argsort(values)[-2:]
        if values[first] - values[second] < MARGIN:
            break
        more.append(int(first))
        logprobs.append(round(float(values[first]), 6))
    return {"prompt": prompt, "prompt_ids": ids, "greedy_ids": more, "greedy_logprobs": logprobs,
            "text": tokenizer.decode(ids + more)}


def reference():
    config = json.loads((MODEL / "config.json").read_text())
    weights = read_weights(MODEL / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    cases = [json.dumps(greedy(config, weights, tokenizer, prompt)) for prompt in PROMPTS]
    (DATA / "world_expected.json").write_text('{"cases": [\n' + ",\n".join(cases) + "\n]}\n")


def main():
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, make in (("synthetic_bursts.csv", bursts), ("synthetic_chat.csv", chat),
                       ("synthetic_talks.jsonl", talks)):
        (PLACE / name).write_text("\n".join(make(random.Random(name))) + "\n")
    lines = (TESTS / "demo" / "heldout.jsonl").read_text().splitlines()[:DOCUMENTS]
    (DATA / "world.txt").write_text(
        "\n<|endoftext|>\n".join(json.loads(line)["text"] for line in lines) + "\n")
    tokenizers()
    reference()


if __name__ == "__main__":
    main()
