#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare training with layers left out and swapped (--skip) with PyTorch, where those layers are removed, and stand in
that order.

    ninja -C build hzpserve
    python3 dev/skips.py build/hzpserve [FAMILY ...] [--device ref] [--seed N] [--rounds N]

For each family and round a configuration of eight layers is drawn as dev/families.py does.  `hzpserve
train` does one update of three micro-batches, each along a path of its own, at a rate and with
constants of the optimizer from which the new weights tell the gradients: beta1 = beta2 = 0 and eps = 1 make
AdamW's step lr g / (|g| + 1), which is compared.  transformers computes the same documents with the layers removed that the
log names, in float64; which neighbours change places (swap=1) is dealt again here.  Losses and gradients have to agree, and weights of layers that no micro-batch went
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
# five layers may be left out; with 0.5 two of them are in all three micro-batches, and the rest has no neighbours
CASES = (0.25, 0), (0.5, 0), (0.25, 1), (0, 1)
SEED, UPDATE = 1, 1
WORLD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "world")


def philox(key, counter):
    """Word 0 of Philox4x32-10."""
    c, k, low = list(counter), [key & 0xFFFFFFFF, key >> 32], 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & low, p >> 32 ^ c[3] ^ k[1], p & low]
        k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
    return c[0]


def path_of(left_out, place, swap):
    """The layers of the place-th micro-batch in their order; the first two and the last stay where they are."""
    path = [i for i in range(LAYERS) if i not in left_out]
    pairs, before = len(path) - 4, -2
    for i in range(2 if swap and pairs > 0 else 0):
        at = 2 + (philox(SEED, (UPDATE, 0, place, i)) * pairs >> 32)
        if abs(at - before) > 1:
            path[at], path[at + 1] = path[at + 1], path[at]
            before = at
    return path


def write_model(directory, config, generator):
    os.makedirs(directory)
    stored = golden.make_weights(config, False, generator)
    save_file({key: value.float().contiguous() for key, value in stored.items()},
              os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    golden.write_json(os.path.join(directory, "config.json"), config)
    shutil.copy(os.path.join(WORLD, "tokenizer.json"), directory)


def train(program, directory, device, skip, swap, tokens):
    """What the log says of the update, and the weights behind it."""
    data, out = os.path.join(directory, "data.jsonl"), os.path.join(directory, "out")
    with open(data, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"tokens": tokens}) + "\n" for _ in range(MICROS))
    done = subprocess.run(
        [program, "train", directory, "--data", data, "--out", out, "--device", device, "--dtype", "f32",
         "--lr", str(RATE), "--adamw", "beta1=0,beta2=0,eps=1", "--clip", "0", "--skip", f"{skip},swap={swap}", "--train-seed", str(SEED),
         "--update-tokens", str(MICROS * (ROWS + 1)), "--micro-rows", str(ROWS), "--total-steps", "1"],
        check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    with open(os.path.join(out, "train.jsonl"), encoding="utf-8") as file:
        return json.loads(file.readline()), load_file(os.path.join(out, "model.safetensors"))


def expected(directory, tokens, paths):
    """Mean loss and its gradients over the paths."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")
    layers, total = model.model.layers, 0
    ids = torch.tensor([tokens])
    kinds = getattr(model.config, "layer_types", None)
    for kept in paths:
        model.model.layers = torch.nn.ModuleList(layers[i] for i in kept)
        model.config.num_hidden_layers = len(kept)
        if kinds:
            model.config.layer_types = [kinds[i] for i in kept]
        logits = model(ids, use_cache=False).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, ids[0, 1:]) / len(paths)
    total.backward()
    model.model.layers = layers
    return total.item(), {name: p.grad for name, p in model.named_parameters()}


def compare(name, program, directory, device, skip, swap):
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        vocab = json.load(file)["vocab_size"]
    tokens = draw.integers(1, vocab, ROWS + 1).tolist()  # torch learns nothing of the padding, 0
    log, after = train(program, directory, device, skip, swap, tokens)
    left_out = log["left_out"].split("/") if skip else [""] * MICROS
    left_out = [[int(layer) for layer in path.split(",") if layer] for path in left_out]
    paths = [path_of(path, place, swap) for place, path in enumerate(left_out)]
    swapped = sum(path != sorted(path) for path in paths)
    if len(left_out) != MICROS or swapped == 0 and swap:
        sys.exit(f"{name}: {log} {paths}")
    loss, grads = expected(directory, tokens, paths)
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
    print(f"{name:14} skip {skip}, {swapped} paths with swaps: {paths}: loss off by {off:.1e}, steps"
          f" {worst:.1e}, {still} tensors as they were", flush=True)
    if off > 1e-5 or worst > 3e-5 * largest:  # float32 is as far off without --skip
        sys.exit(f"{name}: too far off")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", metavar="HZPSERVE")
    parser.add_argument("families", nargs="*", default=families.FAMILIES, metavar="FAMILY")
    parser.add_argument("--device", default="ref")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=len(CASES))
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
                compare(name, args.program, directory, args.device, *CASES[i % len(CASES)])


if __name__ == "__main__":
    main()
