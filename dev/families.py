#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare random tiny models of every family with `transformers`.

    ninja -C build tests/golden/test_golden
    python3 dev/families.py build [--backend ref] [--seed N] [--rounds N] [FAMILY ...]

For each family and round a configuration is drawn (odd sizes, tied and untied, every kind of rotation
that the family has, windows shorter than the documents) and a golden directory written as dev/golden.py does, which compares logits and
gradients with transformers. test_golden then compares logits, every gradient, ten updates, 32 greedy
tokens and the saved tensors; last, transformers loads what was saved and has to give the same logits.
Prints a line per model; exits with 1 at the first difference.

Needs torch, transformers, safetensors and numpy.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile

import golden
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

CLASSES = {"llama": "Llama", "mistral": "Mistral", "ministral": "Ministral", "qwen2": "Qwen2", "qwen3": "Qwen3",
           "granite": "Granite", "granite_swa": "GraniteSWA", "smollm3": "SmolLM3", "phi3": "Phi3",
           "ministral3": "Ministral3", "olmo2": "Olmo2", "gemma2": "Gemma2", "gemma3_text": "Gemma3", "olmo3": "Olmo3",
           "glm": "Glm", "glm4": "Glm4", "seed_oss": "SeedOss", "cohere": "Cohere", "cohere2": "Cohere2"}
FAMILIES = tuple(CLASSES)


def yarn(draw, original):
    return {"rope_type": "yarn", "factor": draw.choice([1.5, 4.0, 16.0]),
            "beta_fast": draw.choice([4.0, 32.0]), "beta_slow": draw.choice([0.5, 1.0]),
            "original_max_position_embeddings": original}


def rotation(draw, family, rotated):
    """Fields of config.json for a kind of rotation."""
    if family == "phi3":
        pairs = rotated // 2
        lists = {name: [1 + draw.randrange(16) / 8 for _ in range(pairs)]
                 for name in ("short_factor", "long_factor")}
        return draw.choice([{"rope_scaling": None}, {"rope_scaling": {"type": "longrope", **lists}}])
    if family in ("gemma3_text", "olmo3"):
        scaled = draw.choice([{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.5},
                              yarn(draw, 64)])
        nested = {"full_attention": {"rope_theta": 500.0, **scaled},
                  "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}}
        own = {"rope_theta": 700.0, "rope_local_base_freq": 90.0}
        return draw.choice([{"rope_theta": None, "rope_parameters": nested},
                            own if family == "gemma3_text" else {"rope_theta": 500000.0}])
    if family == "ministral3":
        more = draw.choice([{}, {"mscale": 1.0, "mscale_all_dim": draw.choice([0.5, 1.0])}])
        return {"rope_theta": None, "rope_parameters": {
            "rope_theta": 500.0, "llama_4_scaling_beta": 0.1, **yarn(draw, 1024), **more}}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
              "original_max_position_embeddings": 64}
    return {"rope_scaling": draw.choice([
        None, {"rope_type": "linear", "factor": 2.5}, llama3, yarn(draw, 64)])}


def windows(draw, family, layers):
    """Fields of config.json for windows."""
    size = draw.choice([1, 3, 4, 7])
    types = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    if family in ("mistral", "phi3", "ministral3"):
        return draw.choice([{}, {"sliding_window": size}])
    if family == "ministral":
        return draw.choice([{}, {"sliding_window": size}, {"sliding_window": size, "layer_types": types}])
    if family in ("qwen2", "qwen3", "smollm3"):
        ways = [{}, {"layer_types": types}]
        if family != "smollm3":
            ways.append({"max_window_layers": draw.randrange(layers + 1)})
        return draw.choice([{}, {"sliding_window": size, "use_sliding_window": True,
                                 **draw.choice(ways)}])
    if family == "gemma3_text":
        return {"sliding_window": size,
                **draw.choice([{"layer_types": types}, {"sliding_window_pattern": 2}])}
    if family in ("gemma2", "olmo3", "cohere2", "granite_swa"):
        return {"sliding_window": size, **draw.choice([{}, {"layer_types": types}])}
    return {}


def configuration(draw, family, layers=None):
    # of the size of dev/golden.py's models: test_golden's tolerances are those of float32 for them
    heads, kv_heads = draw.choice([(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2)])
    dim = draw.choice([6, 8])
    gemma = family.startswith("gemma")
    nested = family in ("qwen3", "ministral", "ministral3", "glm", "glm4", "seed_oss") or gemma  # the head's width is its own
    width = draw.choice([18, 22]) if nested else heads * dim
    width = draw.choice([18, 24]) if gemma else width  # transformers wants a multiple of heads
    if gemma and width % heads:
        heads, kv_heads = 2, draw.choice([1, 2])
    layers = layers or draw.choice([2, 3])
    partial = draw.choice([1.0, 4 / dim]) if family in ("phi3", "glm", "glm4") else 1.0
    config = {
        "architectures": [CLASSES[family] + "ForCausalLM"], "model_type": family,
        "rms_norm_eps": draw.choice([1e-6, 1e-5]), "rope_theta": draw.choice([500.0, 10000.0]),
        **golden.COMMON, "sliding_window": None, "use_sliding_window": False, "pad_token_id": 0,
        "max_position_embeddings": 4096, "tie_word_embeddings": draw.random() < 0.5,
        **golden.sizes(width, draw.choice([21, 33]), layers, heads, kv_heads,
                       draw.choice([37, 53])),
        **rotation(draw, family, int(dim * partial)), **windows(draw, family, layers)}
    if gemma:
        config |= golden.GEMMA | {"query_pre_attn_scalar": draw.choice([5, 16]),
                                  "rope_scaling": config.get("rope_scaling")}
    if family == "gemma2":
        config |= {"attn_logit_softcapping": draw.choice([2.0, 50.0]),
                   "final_logit_softcapping": draw.choice([3.0, 30.0])}
    if nested:
        config["head_dim"] = dim
    if family == "granite_swa" and draw.random() < 0.6:
        both = draw.choice([(500.0, 90.0), (500.0, 0), (0, 90.0)])
        config |= {"rope_scaling": None, "layer_rope_theta": [
            both[golden.window_of(config, i) is not None] for i in range(layers)]}
    if family.startswith("granite"):
        config |= {"embedding_multiplier": draw.choice([1.0, 12.0]),
                   "residual_multiplier": draw.choice([0.22, 1.0]),
                   "attention_multiplier": draw.choice([0.125, 0.3]),
                   "logits_scaling": draw.choice([1.0, 3.0, 8.0])}
    if family == "smollm3":
        config |= draw.choice([{"no_rope_layers": [draw.randrange(2) for _ in range(layers)]},
                               {"no_rope_layer_interval": 2}])
    if family in ("glm", "glm4"):
        # where keys do not turn, their biases have a gradient of 0
        config |= {"partial_rotary_factor": partial, "attention_bias": partial == 1.0}
    if family.startswith("cohere"):
        config["layer_norm_eps"] = config.pop("rms_norm_eps")
        config["logit_scale"] = draw.choice([0.0625, 0.25, 1.0, 1.7])
    if family == "seed_oss":
        config |= {"attention_bias": draw.random() < 0.5, "attention_dropout": 0.0, "residual_dropout": 0.0}
    if family == "phi3":
        config |= {"partial_rotary_factor": partial, "original_max_position_embeddings": 1024}
    return {key: value for key, value in config.items()
            if value is not None or key in ("sliding_window", "rope_scaling")}


def same_logits(first, second):
    ids = torch.tensor([[5, 9, 11, 7, 30, 3, 12]])
    found = []
    for directory in (first, second):
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        wrong = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
        if wrong:
            sys.exit(f"{directory}: {wrong}")
        with torch.no_grad():
            found.append(model(ids, use_cache=False).logits)
    if not torch.equal(*found):
        sys.exit(f"{second}: other logits than {first}")


WRAPPERS = {"gemma3_text": "gemma3", "mistral": "mistral3", "ministral3": "mistral3"}


def compare(test, backend, directory, text):
    """test_golden on the directory; what it saves has the logits of the text model."""
    saved = directory + "-saved"
    done = subprocess.run([test, backend, directory], check=False,
                          env={**os.environ, "GOLDEN_SAVE": saved, "GOLDEN_AS": text})
    if done.returncode:
        sys.exit(f"{directory}: {golden.MODELS[os.path.basename(text)]}")
    same_logits(text, saved)


def wrap(source, directory, wrapper):
    """The model of `source` as the text model of a vision model with random other parts, and its numbers."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14, "head_dim": 4}
    kind = "siglip_vision_model" if wrapper == "gemma3" else "pixtral"
    whole = AutoModelForImageTextToText.from_config(AutoConfig.for_model(
        wrapper, text_config=model.config.to_dict(), vision_config={"model_type": kind, **vision},
        tie_word_embeddings=model.config.tie_word_embeddings))
    whole.model.language_model.load_state_dict(model.model.state_dict())
    whole.lm_head.load_state_dict(model.lm_head.state_dict())
    whole.save_pretrained(directory)
    for name in ("golden.json", "golden.safetensors"):
        shutil.copy(os.path.join(source, name), directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", metavar="BUILD_DIR")
    parser.add_argument("families", nargs="*", default=FAMILIES, metavar="FAMILY")
    parser.add_argument("--backend", default="ref")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    test = os.path.join(args.build, "tests", "golden", "test_golden")
    with tempfile.TemporaryDirectory() as root:
        for family in args.families:
            for i in range(args.rounds):
                name = f"{family}-{args.seed + i}"
                draw = random.Random(name)
                golden.MODELS[name] = (draw.random() < 0.5, configuration(draw, family))
                golden.write_model(name, root)
                compare(test, args.backend, os.path.join(root, name), os.path.join(root, name))
                if family in WRAPPERS:
                    wrapped = os.path.join(root, name + "-wrapped")
                    wrap(os.path.join(root, name), wrapped, WRAPPERS[family])
                    compare(test, args.backend, wrapped, os.path.join(root, name))


if __name__ == "__main__":
    main()
