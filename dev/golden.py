#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the golden models and numbers of tests/golden (its README.md describes their contents).

The numbers come from the simple forward pass below, in float64 with torch's autograd. Before anything is
written, each model is loaded from its directory by `transformers`, run in float64, and has to give
the same logits and the same gradients; the optimizer has to agree with torch.optim.AdamW.

    python3 dev/golden.py              writes tests/golden/<model>/
    python3 dev/golden.py --check      writes nothing; fails if the committed files differ

Also prints how far the same computation in float32 is from the numbers, which gives the
tolerance that a test in float32 can use.

Needs torch, transformers, safetensors and numpy.
"""
import argparse
import contextlib
import json
import math
import os
import re
import sys
import tempfile
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

# ------------------------------------------------------------------------------------------------
# The models. "bf16_exact" models have weights that bf16 holds exactly, so that they are the same
# model in either type; the others use all bits of F32, so that a reader that loses some is caught.
# rope_theta is small: with a large one the slow pairs hardly turn within so few positions, and a
# wrong angle would not show.

COMMON = {"hidden_act": "silu", "max_position_embeddings": 128, "torch_dtype": "float32",
          "bos_token_id": 1, "eos_token_id": 2}


def llama(**more):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False, **COMMON, **more}


def sizes(hidden, inner, layers, heads, kv_heads, vocab):
    return {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab}


MODELS = {
    "llama-tied": (True, llama(
        **sizes(32, 36, 2, 4, 2, 80), rope_scaling=None, tie_word_embeddings=True)),
    # Wavelengths 6, 30, 141 and 668 positions: one kept, one blended, two divided by the factor.
    "llama-llama3-rope": (False, llama(
        **sizes(24, 40, 1, 3, 1, 64), head_dim=8, tie_word_embeddings=False) | {
            "rope_theta": 500.0,
            "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                             "original_max_position_embeddings": 64, "rope_type": "llama3"}}),
    "llama-linear-rope": (False, llama(
        **sizes(16, 24, 2, 2, 1, 64), tie_word_embeddings=True,
        rope_scaling={"type": "linear", "factor": 4.0})),
    "qwen2": (True, {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6,
        "rope_theta": 1000.0, "use_sliding_window": False, "sliding_window": 128,
        "max_window_layers": 2, "tie_word_embeddings": False, **COMMON,
        **sizes(24, 40, 2, 3, 1, 64)}),
    "qwen3": (True, {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rms_norm_eps": 1e-6,
        "rope_theta": 1000.0, "rope_scaling": None, "attention_bias": False, "head_dim": 16,
        "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2,
        "tie_word_embeddings": True, **COMMON, **sizes(24, 32, 2, 4, 2, 64)}),
    "mistral": (False, {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "sliding_window": None, "tie_word_embeddings": False, **COMMON,
        **sizes(16, 24, 2, 2, 1, 64)}),
    "granite": (True, {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.25,
        "logits_scaling": 5.0, "tie_word_embeddings": True, **COMMON, **sizes(16, 20, 2, 2, 1, 48)}),
    "smollm3": (True, {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "rms_norm_eps": 1e-6,
        "rope_theta": 1000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "no_rope_layers": [0, 1, 0], "no_rope_layer_interval": 2, "use_sliding_window": False,
        "sliding_window": None, "tie_word_embeddings": True, "pad_token_id": 0, **COMMON,
        **sizes(16, 20, 3, 2, 1, 48)}),
    # 6 of a head's 8 elements turn; the divisors are numbers that float32 holds.
    "phi3": (True, {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "partial_rotary_factor": 0.75, "sliding_window": None,
        "original_max_position_embeddings": 1024, "tie_word_embeddings": False, "pad_token_id": 0,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.25, 1.5],
                         "long_factor": [1.5, 4.0, 9.0]},
        **COMMON, **sizes(16, 20, 2, 2, 1, 48), "max_position_embeddings": 4096}),
    "ministral3": (False, {
        "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3",
        "rms_norm_eps": 1e-5, "sliding_window": None, "tie_word_embeddings": False, "head_dim": 12,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 8.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64, "max_position_embeddings": 128},
        **COMMON, **sizes(16, 20, 2, 2, 1, 48)}),
}

GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "attention_bias": False,
         "query_pre_attn_scalar": 12, "pad_token_id": 0, "rope_scaling": None}
# Windows of 3 to 5 positions: the documents are longer.
MODELS |= {
    "mistral-window": (True, {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "sliding_window": 4, "tie_word_embeddings": True, **COMMON,
        **sizes(16, 20, 2, 2, 1, 48)}),
    "qwen2-window": (True, {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6,
        "rope_theta": 1000.0, "use_sliding_window": True, "sliding_window": 5,
        "max_window_layers": 1, "tie_word_embeddings": True, **COMMON,
        **sizes(16, 20, 2, 2, 1, 48)}),
    "olmo2": (True, {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "rope_scaling": None, "attention_bias": False, "pad_token_id": 0,
        "tie_word_embeddings": False, **COMMON, **sizes(24, 20, 2, 3, 1, 48)}),
    "gemma2": (True, {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "rope_theta": 1000.0,
        "sliding_window": 4, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0,
        "tie_word_embeddings": True, **COMMON, **GEMMA, **sizes(16, 20, 2, 2, 1, 48),
        "head_dim": 10}),
    "gemma3": (True, {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "rope_theta": 1000.0,
        "rope_local_base_freq": 100.0, "sliding_window": 3, "sliding_window_pattern": 2,
        "tie_word_embeddings": True, **COMMON, **GEMMA, **sizes(16, 20, 3, 2, 1, 48),
        "head_dim": 12}),
    # Neighbours turn together; of a head's 12 elements 6.  No biases, because those of keys that do not turn have a
    # gradient of 0, and rounding alone would say where AdamW takes them; glm has biases, and all of a head turns.
    "glm4": (True, {
        "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "attention_bias": False, "head_dim": 12, "pad_token_id": 0,
        "tie_word_embeddings": False, **COMMON, **sizes(16, 20, 2, 2, 1, 48)}),
    "glm": (True, {
        "architectures": ["GlmForCausalLM"], "model_type": "glm", "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "partial_rotary_factor": 1.0, "head_dim": 8, "pad_token_id": 0,
        "tie_word_embeddings": True, **COMMON, **sizes(16, 20, 2, 2, 1, 48)}),
    # the first layer sees all and turns by another theta than the second; the third does not turn
    "granite-swa": (True, {
        "architectures": ["GraniteSWAForCausalLM"], "model_type": "granite_swa", "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}, "attention_bias": False,
        "mlp_bias": False, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
        "attention_multiplier": 0.25, "logits_scaling": 2.0, "sliding_window": 4,
        "layer_rope_theta": [1000.0, 100.0, 0], "tie_word_embeddings": True, **COMMON,
        **sizes(16, 20, 3, 2, 1, 48)}),
    # every third layer sees all and does not rotate
    "cohere2": (True, {
        "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "layer_norm_eps": 1e-5,
        "rope_theta": 1000.0, "attention_bias": False, "logit_scale": 0.25, "sliding_window": 4,
        "sliding_window_pattern": 3, "pad_token_id": 0, "tie_word_embeddings": True, **COMMON,
        **sizes(16, 20, 3, 2, 1, 48)}),
    # every fourth layer sees all and is stretched
    "olmo3": (True, {
        "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "rms_norm_eps": 1e-5,
        "attention_bias": False, "pad_token_id": 0, "sliding_window": 5,
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
                               "beta_fast": 8.0, "beta_slow": 1.0,
                               "original_max_position_embeddings": 64},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}},
        "tie_word_embeddings": False, **COMMON, **sizes(12, 14, 4, 2, 1, 40)}),
}

BATCHES = {"a": (5, 13, 9), "b": (11, 3, 8)}  # lengths of the packed documents
ACCUMULATE_LENGTHS = (6, 2, 9, 4, 7, 3, 5, 8, 2, 6, 11, 4, 3, 7, 5, 10)

LR_PEAK, LR_FLOOR, WARMUP_STEPS, STEPS = 3e-3, 0.1, 3, 10
BETA1, BETA2, EPS, WEIGHT_DECAY = 0.9, 0.95, 1e-8, 0.1
CLIP_NORM = {"mistral": 4.0}  # some of its gradients are above, some below
CLIP_NORM_OTHERS = 1.0

# A model's numbers are drawn from its name, or from this one.  With these models' own names one gradient is so close to
# zero that its sign, which is all that the first steps of AdamW keep of it, is a matter of rounding.
DRAWN_FROM = {"mistral-window": "mistral-window 2", "cohere2": "cohere2 3"}


def head_dim_of(config):
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def rotary_dim(config):
    usual = 0.5 if glm(config) else 1.0
    return int(head_dim_of(config) * config.get("partial_rotary_factor", usual))


def glm(config):
    return config["model_type"].startswith("glm")


def gemma(config):
    return config["model_type"].startswith("gemma")


def cohere(config):
    return config["model_type"].startswith("cohere")


def norms_of(config):
    """Names of a layer's norms: before and after attention, before and after the MLP; or None."""
    post = ("post_attention_layernorm", "post_feedforward_layernorm")
    if config["model_type"].startswith("olmo"):
        return None, post[0], None, post[1]
    if cohere(config):  # the MLP reads attention's
        return "input_layernorm", None, None, None
    if gemma(config):
        return "input_layernorm", post[0], "pre_feedforward_layernorm", post[1]
    if config["model_type"] == "glm4":
        return "input_layernorm", "post_self_attn_layernorm", post[0], "post_mlp_layernorm"
    return "input_layernorm", None, "post_attention_layernorm", None


def window_of(config, layer):
    """How many positions a row of the layer sees; None: all before it."""
    kind, types = config["model_type"], config.get("layer_types")
    pattern = config.get("sliding_window_pattern")
    every = {"gemma2": 2, "gemma3_text": pattern or 6, "olmo3": 4, "cohere2": pattern or 4}
    slides = kind in ("mistral", "ministral", "phi3", "ministral3")
    if types:
        slides = types[layer] == "sliding_attention"
    elif kind == "granite_swa":
        slides = layer % 4 != 0
    elif kind in every:
        slides = (layer + 1) % every[kind] != 0
    elif kind in ("qwen2", "qwen3"):
        slides = config.get("use_sliding_window") and layer >= config.get("max_window_layers", 28)
    elif kind == "smollm3":
        slides = config.get("use_sliding_window") and not rotates(config, layer)
    return config.get("sliding_window") if slides else None


def make_weights(config, bf16_exact, generator):
    """Random weights large enough that attention is far from even and the logits differ."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = head_dim_of(config)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    weights = {}

    def draw(name, *shape, deviation=0.0, mean=0.0):
        values = torch.from_numpy(
            (mean + deviation * generator.standard_normal(shape)).astype(np.float32))
        weights[name] = values.bfloat16().float() if bf16_exact else values

    draw("model.embed_tokens.weight", config["vocab_size"], hidden, deviation=0.4)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        mean = 0.0 if gemma(config) else 1.0
        for name in norms_of(config)[:1]:
            if name:
                draw(f"{layer}{name}.weight", hidden, deviation=0.2, mean=mean)
        fused = config["model_type"] == "phi3"
        if fused:
            draw(layer + "self_attn.qkv_proj.weight", (heads + 2 * kv_heads) * head_dim, hidden,
                 deviation=0.3)
        for name, rows in () if fused else (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            draw(f"{layer}self_attn.{name}_proj.weight", rows * head_dim, hidden, deviation=0.3)
            switch = glm(config) or config["model_type"] == "seed_oss"
            if config["model_type"] == "qwen2" or switch and config.get("attention_bias", True):
                draw(f"{layer}self_attn.{name}_proj.bias", rows * head_dim, deviation=0.3)
            full = config["model_type"].startswith("olmo")
            if config["model_type"] in ("qwen3", "gemma3_text", "olmo2", "olmo3") and name != "v":
                draw(f"{layer}self_attn.{name}_norm.weight", head_dim * (rows if full else 1),
                     deviation=0.2, mean=mean)
        if config["model_type"] == "granite_swa":
            draw(layer + "self_attn.sinks", heads, deviation=1.0)
        draw(layer + "self_attn.o_proj.weight", hidden, heads * head_dim, deviation=0.2)
        for name in norms_of(config)[1:]:
            if name:
                draw(f"{layer}{name}.weight", hidden, deviation=0.2, mean=mean)
        if fused or glm(config):
            draw(layer + "mlp.gate_up_proj.weight", 2 * inner, hidden, deviation=0.2)
        else:
            draw(layer + "mlp.gate_proj.weight", inner, hidden, deviation=0.2)
            draw(layer + "mlp.up_proj.weight", inner, hidden, deviation=0.2)
        draw(layer + "mlp.down_proj.weight", hidden, inner, deviation=0.2)
    draw("model.norm.weight", hidden, deviation=0.2, mean=0.0 if gemma(config) else 1.0)
    if not config["tie_word_embeddings"]:
        draw("lm_head.weight", config["vocab_size"], hidden, deviation=0.3)
    return weights


# ------------------------------------------------------------------------------------------------
# The batches

def make_document(length, vocab, generator):
    """Token ids and which of them are to be learned; the first is never learned."""
    tokens = generator.integers(3, vocab, length).tolist()
    learn = (generator.random(length) < 0.6).astype(int)
    learn[0] = 0
    return tokens, learn.tolist()


def pack(documents):
    batch = {"doc_start": [0], "tokens": [], "positions": [], "learn": [], "target": []}
    for tokens, learn in documents:
        batch["tokens"] += tokens
        batch["positions"] += range(len(tokens))
        batch["learn"] += learn
        batch["target"] += [t if l else -1 for t, l in zip(tokens[1:], learn[1:])] + [-1]
        batch["doc_start"].append(len(batch["tokens"]))
    batch["learned"] = sum(t >= 0 for t in batch["target"])
    return batch


# ------------------------------------------------------------------------------------------------
# The forward

def rope_of(config):
    """The numbers of the rotation, wherever the file has them."""
    both = config.get("rope_parameters")
    return config.get("rope_scaling") or (both or {}).get("full_attention") or both


def local_rope(config):
    """The configuration of the rotation in layers with a window."""
    if config["model_type"] not in ("gemma3_text", "olmo3"):
        return config
    theta = config.get("rope_local_base_freq", config.get("rope_theta"))
    both = config.get("rope_parameters") or {}
    own = both.get("sliding_attention", {}).get("rope_theta", theta)
    return config | {"rope_scaling": None, "rope_parameters": None, "rope_theta": own}


def rope_at(config, layer):
    """The configuration of the layer's rotation."""
    if config.get("layer_rope_theta"):
        return config | {"rope_theta": config["layer_rope_theta"][layer]}
    return local_rope(config) if window_of(config, layer) else config


def yarn_ramp(scaling, dim, theta):
    """How far each pair's angle is stretched, [dim / 2], 0 to 1."""
    def pair_of(turns):
        length = scaling["original_max_position_embeddings"]
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_of(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(pair_of(scaling.get("beta_slow", 1))), dim - 1)
    pair = torch.arange(dim // 2, dtype=torch.float64)
    return ((pair - low) / (high - low if high > low else 0.001)).clamp(0, 1)


def amplitude(config):
    """The factor of cosines and sines."""
    scaling = rope_of(config) or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling.get("factor")
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if kind != "yarn":
        return 1.0
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return ((0.1 * scaling["mscale"] * math.log(factor) + 1)
                / (0.1 * scaling["mscale_all_dim"] * math.log(factor) + 1))
    return 0.1 * math.log(factor) + 1


def inverse_frequencies(config):
    """The angle that each pair of a head turns per position, [rotary_dim / 2], in float64."""
    dim = rotary_dim(config)
    pair = torch.arange(0, dim, 2, dtype=torch.float64)
    scaling = rope_of(config)
    theta = config.get("rope_theta") or scaling["rope_theta"]
    frequency = theta ** (-pair / dim)
    kind = scaling.get("rope_type", scaling.get("type", "default")) if scaling else "default"
    if kind == "default":
        return frequency
    if kind == "linear":
        return frequency / scaling["factor"]
    if kind == "longrope":  # the documents here are short
        return frequency / torch.tensor(scaling["short_factor"], dtype=torch.float64)
    if kind == "yarn":
        ramp = yarn_ramp(scaling, dim, theta)
        return frequency / scaling["factor"] * ramp + frequency * (1 - ramp)
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * frequency + (1.0 - keep) * frequency / scaling["factor"]


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x, angle, scale, neighbours=False):
    """x [rows, heads, head_dim], angle [rows, dim / 2]: of the first dim elements i turns with
    i + dim / 2, or with its neighbour."""
    cos, sin = angle.cos()[:, None, :] * scale, angle.sin()[:, None, :] * scale
    turned, rest = x.split((2 * angle.shape[1], x.shape[-1] - 2 * angle.shape[1]), dim=-1)
    if neighbours:
        first, second = turned[..., ::2], turned[..., 1::2]
        pairs = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat((torch.stack(pairs, dim=-1).flatten(-2), rest), dim=-1)
    first, second = turned.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def layer_norm(x, weight, eps):
    return rms_norm(x - x.mean(-1, keepdim=True), weight, eps)


def rotates(config, layer):
    if config["model_type"] == "cohere2":
        return window_of(config, layer) is not None
    if config.get("layer_rope_theta"):
        return config["layer_rope_theta"][layer] != 0
    listed = config.get("no_rope_layers")
    interval = config.get("no_rope_layer_interval")
    return listed[layer] if listed else not interval or (layer + 1) % interval != 0


def forward(config, weights, batch):
    """Logits [rows, vocab], and the residual stream before each layer and before the last norm."""
    rows, eps, head_dim = len(batch["tokens"]), config.get("rms_norm_eps"), head_dim_of(config)
    normed = rms_norm
    if cohere(config):
        normed, eps = layer_norm, config["layer_norm_eps"]
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    embedding = weights["model.embed_tokens.weight"]
    position = torch.tensor(batch["positions"], dtype=torch.float64)
    document = torch.bucketize(torch.arange(rows), torch.tensor(batch["doc_start"][1:]), right=True)
    index = torch.arange(rows)
    sees = (document[:, None] == document[None, :]) & (index[None, :] <= index[:, None])

    added = config.get("residual_multiplier", 1.0)
    scale = config.get("attention_multiplier", 1 / math.sqrt(head_dim))
    plus, times = 0.0, config.get("embedding_multiplier", 1.0)
    if gemma(config):
        scale, plus = config["query_pre_attn_scalar"] ** -0.5, 1.0
        times = math.sqrt(config["hidden_size"])

    x = embedding[torch.tensor(batch["tokens"])] * times
    residual = [x]
    for i in range(config["num_hidden_layers"]):
        layer = {name.split(f"model.layers.{i}.")[1]: value for name, value in weights.items()
                 if name.startswith(f"model.layers.{i}.")}

        def project(name, value):
            return F.linear(value, layer[f"self_attn.{name}_proj.weight"],
                            layer.get(f"self_attn.{name}_proj.bias"))

        def norm(name, value):
            return value if name is None else normed(value, plus + layer[name + ".weight"], eps)

        def cap(name, value):
            limit = config.get(name)
            return value if limit is None else limit * torch.tanh(value / limit)

        before, after, before_mlp, after_mlp = norms_of(config)
        window = window_of(config, i)
        seen = sees if window is None else sees & (index[None, :] > index[:, None] - window)
        h = norm(before, x)
        if "self_attn.qkv_proj.weight" in layer:
            counts = (config["num_attention_heads"],) + 2 * (config["num_key_value_heads"],)
            q, k, v = project("qkv", h).view(rows, -1, head_dim).split(counts, dim=1)
        else:
            q, k, v = (project(name, h).view(rows, -1, head_dim) for name in "qkv")
        if config["model_type"].startswith("olmo"):
            q, k = (norm(f"self_attn.{name}_norm", part.flatten(1)).view(part.shape)
                    for name, part in (("q", q), ("k", k)))
        elif "self_attn.q_norm.weight" in layer:
            q, k = norm("self_attn.q_norm", q), norm("self_attn.k_norm", k)
        if rotates(config, i):
            turn = rope_at(config, i)
            angle = (position[:, None] * inverse_frequencies(turn)).to(embedding.dtype)
            neighbours = glm(config) or cohere(config)
            q, k = (rope(part, angle, amplitude(turn), neighbours) for part in (q, k))
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        score = cap("attn_logit_softcapping", torch.einsum("ihd,jhd->hij", q, k) * scale)
        score = score.masked_fill(~seen, -math.inf)
        if "self_attn.sinks" in layer:
            score = torch.cat((score, layer["self_attn.sinks"][:, None, None].expand(-1, rows, 1)), dim=-1)
        weight = torch.softmax(score, dim=-1)[..., :rows]
        attended = torch.einsum("hij,jhd->ihd", weight, v).reshape(rows, -1)
        x = x + added * norm(after, project("o", attended))
        h = h if cohere(config) else norm(before_mlp, x)
        if "mlp.gate_up_proj.weight" in layer:
            gate, up = F.linear(h, layer["mlp.gate_up_proj.weight"]).chunk(2, dim=-1)
        else:
            gate = F.linear(h, layer["mlp.gate_proj.weight"])
            up = F.linear(h, layer["mlp.up_proj.weight"])
        gate = F.gelu(gate, approximate="tanh") if gemma(config) else F.silu(gate)
        x = x + added * norm(after_mlp, F.linear(gate * up, layer["mlp.down_proj.weight"]))
        residual.append(x)
    h = normed(x, plus + weights["model.norm.weight"], eps)
    logits = F.linear(h, weights.get("lm_head.weight", embedding)) * config.get("logit_scale", 1.0)
    return cap("final_logit_softcapping", logits / config.get("logits_scaling", 1.0)), residual


def row_losses(logits, batch):
    """-log p(target) of each row, [rows]; zero where a row has no target."""
    target = torch.tensor(batch["target"])
    log_p = torch.log_softmax(logits, dim=-1).gather(1, target.clamp(min=0)[:, None])[:, 0]
    return torch.where(target >= 0, -log_p, torch.zeros_like(log_p))


def gradients(config, weights, batch, learned=None):
    """Mean loss over `learned` tokens (the batch's own number unless given), its gradients."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    logits, residual = forward(config, leaves, batch)
    losses = row_losses(logits, batch)
    loss = losses.sum() / (learned or batch["learned"])
    grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))
    return {"loss": loss.item(), "grads": grads, "logits": logits.detach(),
            "row_loss": losses.detach(), "residual": [r.detach() for r in residual]}


def global_norm(grads):
    return math.sqrt(sum(g.double().pow(2).sum().item() for g in grads.values()))


def greedy(config, weights, prompt, count=32):
    """The likeliest continuation, token by token, without a cache."""
    tokens, logprobs = list(prompt), []
    for _ in range(count):
        logits, _ = forward(config, weights, pack([(tokens, [0] * len(tokens))]))
        best = torch.log_softmax(logits[-1], dim=-1).max(-1)
        tokens.append(best.indices.item())
        logprobs.append(round(best.values.item(), 6))
    return {"prompt_ids": list(prompt), "greedy_ids": tokens[len(prompt):],
            "greedy_logprobs": logprobs}


# ------------------------------------------------------------------------------------------------
# The optimizer

def learning_rate(step):
    """`step` counts from 1."""
    if step <= WARMUP_STEPS:
        return LR_PEAK * step / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
    return LR_PEAK * (LR_FLOOR + (1.0 - LR_FLOOR) * 0.5 * (1.0 + math.cos(math.pi * done)))


def ten_updates(config, weights, batches):
    clip_norm = CLIP_NORM.get(config["model_type"], CLIP_NORM_OTHERS)
    weights = {name: value.clone() for name, value in weights.items()}
    first = {name: torch.zeros_like(value) for name, value in weights.items()}
    second = {name: torch.zeros_like(value) for name, value in weights.items()}
    steps, clipped = [], []
    for step in range(1, STEPS + 1):
        name = "ab"[(step - 1) % 2]
        result = gradients(config, weights, batches[name])
        norm, rate = global_norm(result["grads"]), learning_rate(step)
        scale = clip_norm / norm if norm > clip_norm else 1.0
        clipped.append({k: g * scale for k, g in result["grads"].items()})
        for key, weight in weights.items():
            grad = clipped[-1][key]
            first[key] = BETA1 * first[key] + (1 - BETA1) * grad
            second[key] = BETA2 * second[key] + (1 - BETA2) * grad * grad
            direction = (first[key] / (1 - BETA1 ** step)) / (
                (second[key] / (1 - BETA2 ** step)).sqrt() + EPS)
            decay = WEIGHT_DECAY if weight.dim() >= 2 else 0.0
            weights[key] = weight - rate * decay * weight - rate * direction
        steps.append({"batch": name, "lr": rate, "loss": result["loss"], "grad_norm": norm,
                      "clip_scale": scale})
    return weights, steps, clipped


# ------------------------------------------------------------------------------------------------
# The checks

def require(what, ours, theirs, tolerance):
    worst = (ours - theirs).abs().max().item() / max(1.0, theirs.abs().max().item())
    if not worst <= tolerance:
        sys.exit(f"{what}: differs by {worst:.3g}, allowed {tolerance:.3g}")


@contextlib.contextmanager
def float32_means_float64():
    """transformers computes norms, softmax and angles in float32 whatever the model's type is.
    Inside this, the names that it uses for that mean float64."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved


def check_transformers(directory, batches, results):
    """`results`: {batch name: what gradients() gave}. Logits as transformers comes, and logits and
    gradients with its float32 islands lifted to float64."""
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float64, attn_implementation="eager").train()

    def run(batch):
        starts = batch["doc_start"]
        return torch.cat([model(torch.tensor([batch["tokens"][i:j]]), use_cache=False).logits[0]
                          for i, j in zip(starts, starts[1:])])

    with torch.no_grad():
        require(f"{directory}: logits", results["a"]["logits"], run(batches["a"]), 1e-5)
    with float32_means_float64():
        turn = model.model.rotary_emb
        model.model.rotary_emb = type(turn)(model.config)
        if hasattr(model.model, "rotary_embs"):
            model.model.rotary_embs = torch.nn.ModuleList(type(turn)(turn.config) for turn in model.model.rotary_embs)
        for name, batch in batches.items():
            model.zero_grad()
            logits = run(batch)
            loss = F.cross_entropy(logits, torch.tensor(batch["target"]), ignore_index=-1)
            loss.backward()
            require(f"{directory}: float64 logits", results[name]["logits"], logits, 1e-13)
            require(f"{directory}: loss", torch.tensor(results[name]["loss"], dtype=torch.float64),
                    loss.detach(), 1e-13)
            named = dict(model.named_parameters())
            grads = results[name]["grads"]
            if set(named) != set(grads):
                sys.exit(f"{directory}: other parameters: {set(named) ^ set(grads)}")
            for key, grad in grads.items():
                require(f"{directory}: gradient of {key}", grad, named[key].grad, 1e-13)


def check_adamw(directory, start, clipped, end):
    params = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
         {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}],
        betas=(BETA1, BETA2), eps=EPS)
    for step, grads in enumerate(clipped, 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        for name, param in params.items():
            param.grad = grads[name]
        optimizer.step()
    for name, param in params.items():
        require(f"{directory}: {name} after AdamW", end[name], param.detach(), 1e-13)


def accumulate(directory, config, weights, generator):
    documents = [make_document(n, config["vocab_size"], generator) for n in ACCUMULATE_LENGTHS]
    documents[1] = (documents[1][0], [0, 0])  # a document without anything to learn
    whole = pack(documents)
    packed = gradients(config, weights, whole)
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    for document in documents:
        part = gradients(config, weights, pack([document]), whole["learned"])
        for name, grad in part["grads"].items():
            total[name] += grad
    for name, grad in total.items():
        require(f"{directory}: accumulated gradient of {name}", packed["grads"][name], grad, 1e-13)
    return packed, {
        "documents": [{"tokens": t, "learn": l} for t, l in documents],
        "learned": whole["learned"], "loss": packed["loss"],
        "grad_norm": global_norm(packed["grads"]),
        "tensor_grad_norm": {n: global_norm({n: g}) for n, g in packed["grads"].items()}}


def report_float32(name, config, weights, batches, result, end):
    single = {key: value.float() for key, value in weights.items()}
    lower = gradients(config, single, batches["a"])
    after, _, _ = ten_updates(config, single, batches)

    def worst(ours, theirs):
        return max((ours[k].double() - theirs[k]).abs().max().item() for k in theirs)

    logits = (lower["logits"].double() - result["logits"]).abs().max().item()
    print(f"{name:18} float32 off by: logits {logits:.1e} "
          f"loss {abs(lower['loss'] - result['loss']):.1e}"
          f" gradients {worst(lower['grads'], result['grads']):.1e}"
          f" parameters after {STEPS} updates {worst(after, end):.1e}")


# ------------------------------------------------------------------------------------------------

def write_model(name, root):
    bf16_exact, config = MODELS[name]
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(DRAWN_FROM.get(name, name).encode())))
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    stored = make_weights(config, bf16_exact, generator)
    save_file({key: value.numpy() for key, value in stored.items()},
              os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    write_json(os.path.join(directory, "config.json"), config)

    weights = {key: value.double() for key, value in stored.items()}
    batches = {key: pack([make_document(n, config["vocab_size"], generator) for n in lengths])
               for key, lengths in BATCHES.items()}
    results = {key: gradients(config, weights, batch) for key, batch in batches.items()}
    check_transformers(directory, batches, results)
    end, steps, clipped = ten_updates(config, weights, batches)
    check_adamw(directory, weights, clipped, end)
    _, accumulated = accumulate(directory, config, weights, generator)
    report_float32(name, config, weights, batches, results["a"], end)

    result = results["a"]
    arrays = {"inv_freq": inverse_frequencies(config), "logits": result["logits"],
              "row_loss": result["row_loss"]}
    arrays |= {f"residual.{i}": value for i, value in enumerate(result["residual"])}
    arrays |= {f"grad.{key}": value for key, value in result["grads"].items()}
    arrays |= {f"after.{key}": value for key, value in end.items()}
    save_file({key: np.ascontiguousarray(value.numpy()) for key, value in arrays.items()},
              os.path.join(directory, "golden.safetensors"))
    write_json(os.path.join(directory, "golden.json"), {
        "bf16_exact": bf16_exact,
        "batches": batches,
        "loss": result["loss"],
        "grad_norm": global_norm(result["grads"]),
        "updates": {
            "lr_peak": LR_PEAK, "lr_floor": LR_FLOOR, "warmup_steps": WARMUP_STEPS,
            "total_steps": STEPS, "beta1": BETA1, "beta2": BETA2, "eps": EPS,
            "weight_decay": WEIGHT_DECAY,
            "clip_norm": CLIP_NORM.get(config["model_type"], CLIP_NORM_OTHERS), "steps": steps,
            "loss_after": {key: gradients(config, end, batch)["loss"]
                           for key, batch in batches.items()}},
        "accumulate": accumulated,
        "cases": [greedy(config, weights, batches["a"]["tokens"][:5])]})


def write_json(path, value):
    """Lists of numbers on one line each, so that a change can be read in a diff."""
    text = re.sub(r"\[\s*([^\[\]{}]*?)\s*\]",
                  lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]",
                  json.dumps(value, indent=1))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def differing(ours, theirs):
    """Names of the files of `ours` that `theirs` lacks or has with other contents."""
    for folder, _, names in os.walk(ours):
        for name in names:
            path = os.path.join(folder, name)
            other = os.path.join(theirs, os.path.relpath(path, ours))
            if not os.path.exists(other) or open(path, "rb").read() != open(other, "rb").read():
                yield os.path.relpath(path, ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    committed = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")
    parser.add_argument("--out", default=os.path.normpath(committed))
    parser.add_argument("--check", action="store_true",
                        help="compare with the files in --out, byte for byte, and write nothing")
    args = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if not args.check:
        for name in MODELS:
            write_model(name, args.out)
        return
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            write_model(name, scratch)
        different = sorted(differing(scratch, args.out))
    if different:
        sys.exit(f"{args.out}: other bytes: {', '.join(different)}")


if __name__ == "__main__":
    main()
