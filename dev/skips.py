#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare training with layers left out (--skip) with PyTorch, where those layers are removed.

    ninja -C build hzpserve
    python3 dev/skips.py build/hzpserve [FAMILY ...] [--device ref] [--seed N] [--rounds N]

For each family and round a configuration of eight layers is drawn as dev/families.py does.  `hzpserve
train` does one update of three micro-batches, each along a path of its own, at a rate and with
constants of the optimizer from which the new weights tell the gradients: beta1 = beta2 = 0 and eps = 1 make
AdamW's step lr g / (|g| + 1), which is compared.  transformers computes the same documents with the layers removed that the
log names, in float64.  Losses and gradients have to agree, and weights of layers that no micro-batch went
through have to be as they were, bit for bit.  Prints a line per model; exits with 1 at the first difference.

Needs torch, transformers, safetensors and numpy, and the tokenizer of models/world.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import zlib

import families
import golden
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

LAYERS, ROWS, MICROS, RATE = 8, 24, 3, 10.0
WORLD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "world")


def write_model(directory, config, generator):
    os.makedirs(directory)
    stored = golden.make_weights(config, False, generator)
    save_file({key: value.float().contiguous() for key, value in stored.items()},
              os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    golden.write_json(os.path.join(directory, "config.json"), config)
    shutil.copy(os.path.join(WORLD, "tokenizer.json"), directory)


def train(program, directory, device, skip, tokens):
    """What the log says of the update, and the weights behind it."""
    data, out = os.path.join(directory, "data.jsonl"), os.path.join(directory, "out")
    with open(data, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"tokens": tokens}) + "\n" for _ in range(MICROS))
    done = subprocess.run(
        [program, "train", directory, "--data", data, "--out", out, "--device", device, "--dtype", "f32",
         "--lr", str(RATE), "--adamw", "beta1=0,beta2=0,eps=1", "--clip", "0", "--skip", str(skip),
         "--update-tokens", str(MICROS * (ROWS + 1)), "--micro-rows", str(ROWS), "--total-steps", "1"],
        check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    with open(os.path.join(out, "train.jsonl"), encoding="utf-8") as file:
        return json.loads(file.readline()), load_file(os.path.join(out, "model.safetensors"))


def expected(directory, tokens, left_out):
    """Mean loss and its gradients over the paths."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")
    layers, total = model.model.layers, 0
    ids = torch.tensor([tokens])
    kinds = getattr(model.config, "layer_types", None)
    for path in left_out:
        kept = [i for i in range(LAYERS) if i not in path]
        model.model.layers = torch.nn.ModuleList(layers[i] for i in kept)
        model.config.num_hidden_layers = len(kept)
        if kinds:
            model.config.layer_types = [kinds[i] for i in kept]
        logits = model(ids, use_cache=False).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, ids[0, 1:]) / len(left_out)
    total.backward()
    model.model.layers = layers
    return total.item(), {name: p.grad for name, p in model.named_parameters()}


def compare(name, program, directory, device, skip):
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        vocab = json.load(file)["vocab_size"]
    tokens = draw.integers(1, vocab, ROWS + 1).tolist()  # torch learns nothing of the padding, 0
    log, after = train(program, directory, device, skip, tokens)
    left_out = [[int(layer) for layer in path.split(",")] for path in log["left_out"].split("/")]
    if len(left_out) != MICROS:
        sys.exit(f"{name}: {log}")
    loss, grads = expected(directory, tokens, left_out)
    before = load_file(os.path.join(directory, "model.safetensors"))
    worst, largest, still = 0.0, 1.0, 0
    for key, grad in grads.items():
        if grad is None:  # a layer that no path has
            still += 1
            if not torch.equal(before[key], after[key]):
                sys.exit(f"{name}: {key} has changed, and no micro-batch went through it")
            continue
        largest = max(largest, grad.abs().max().item())
        found = (before[key].double() - after[key].double()) / RATE
        worst = max(worst, (found - grad / (grad.abs() + 1)).abs().max().item())
    off = abs(log["loss"] - loss)
    print(f"{name:14} skip {skip}: {log['layers']} of {LAYERS} layers, without {log['left_out']}: loss off by"
          f" {off:.1e}, steps {worst:.1e}, {still} tensors as they were", flush=True)
    if off > 1e-5 or worst > 3e-5 * largest:  # float32 is as far off without --skip
        sys.exit(f"{name}: too far off")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", metavar="HZPSERVE")
    parser.add_argument("families", nargs="*", default=families.FAMILIES, metavar="FAMILY")
    parser.add_argument("--device", default="ref")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    golden.logging.set_verbosity_error()
    golden.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as root:
        for family in args.families:
            for i in range(args.rounds):
                name = f"{family}-{args.seed + i}"
                config = families.configuration(random.Random(name), family, LAYERS)
                config["max_position_embeddings"] = 1024  # phi3: the short ones of its two rotations
                directory = os.path.join(root, name)
                write_model(directory, config, np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))))
                # five layers may be left out; with 0.5 two of them are in all three micro-batches
                compare(name, args.program, directory, args.device, 0.5 if i % 2 else 0.25)


if __name__ == "__main__":
    main()
