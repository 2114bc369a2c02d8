#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Give a model directory of dev/make_shapes.py (smollm-135m) weights that copy: what followed the newest three tokens
where they stood before is what the model expects next.

    python3 dev/make_copier.py SHAPE_DIR OUT_DIR

Edits and summaries repeat what they were given, which a model of random weights does not, and how much guesses of
repeated text bring depends on that. All layers are computed, as of any model of this shape, but only two of them write
to the residual stream: the first one's heads copy the code of the token before and of the one before that (rotary
embeddings turn a constant query so that it meets the key one, or two, positions back); the second's look for the place
whose two tokens before are the newest two, and add the code of the token there. Codes are random signs; the final norm's
weight makes the expected token's logit --logit higher than an average one, so at temperature 1 and the default of 15
about one token in 35 is another one, and the text goes on somewhere else.
"""
import argparse
import json
import math
import pathlib
import shutil
import struct

import numpy as np

CODE, CONST, DIM, KV, HEADS = 188, 12, 64, 3, 9
ONES = slice(3 * CODE, 576)
HERE = slice(0, CODE)
THETA = 1e7  # so that half of each head hardly turns


def bits(x):
    """float32 -> bf16, to nearest."""
    x = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((x + 0x7FFF + (x >> 16 & 1)) >> 16).astype(np.uint16)


def looks_back(q, k, head, back, scale):
    """Head `head` meets the position so many before its own: by pairs that turn fast."""
    for i in range(16):
        angle = THETA ** (-i / 32) * back
        q[head * DIM + i, ONES] = scale * math.cos(angle) / CONST
        q[head * DIM + i + 32, ONES] = -scale * math.sin(angle) / CONST
        k[head // 3 * DIM + i, ONES] = 1 / CONST


def weights(shape, dice, logit):
    width = 576
    zero = {name: np.zeros(size, np.float32) for name, size in shape.items()
            if name.startswith(("model.layers.0.", "model.layers.1.")) and "self_attn" in name}
    for name in shape:
        if name.endswith(("o_proj.weight", "down_proj.weight")) and name not in zero:
            zero[name] = np.zeros(shape[name], np.float32)
    table = np.zeros((shape["model.embed_tokens.weight"][0], width), np.float32)
    table[:, HERE] = dice.choice([-1.0, 1.0], (len(table), CODE))
    table[:, ONES] = 4
    zero["model.embed_tokens.weight"] = table
    first, second = "model.layers.0.self_attn.", "model.layers.1.self_attn."
    rms = math.sqrt((CODE + CONST * 16) / width)
    share = [range(j * DIM, min((j + 1) * DIM, CODE)) for j in range(KV)]  # of the code, that each head carries
    for j in range(KV):
        for head, back, to in ((3 * j, 1, CODE), (3 * j + 1, 2, 2 * CODE)):
            looks_back(zero[first + "q_proj.weight"], zero[first + "k_proj.weight"], head, back, 10 * rms)
            for n, c in enumerate(share[j]):
                zero[first + "o_proj.weight"][to + c, head * DIM + n] = rms
        for n, c in enumerate(share[j]):
            zero[first + "v_proj.weight"][j * DIM + n, c] = 1
    # k of looks_back is 4 / rms then, q is 40
    rms2 = math.sqrt((3 * CODE + CONST * 16) / width)
    for j in range(KV):
        slow = [pair + half * 32 for pair in range(16, 32) for half in (0, 1)]
        for n, row in enumerate(slow):
            last = n < 20  # the newest token; else the one before it
            c = n if last else 100 + n - 20  # all heads look for the same, so they find one place
            zero[second + "k_proj.weight"][j * DIM + row, (CODE if last else 2 * CODE) + c] = rms2
            for head in range(3 * j, 3 * j + 3):
                zero[second + "q_proj.weight"][head * DIM + row, (0 if last else CODE) + c] = 24 * rms2
        for n, c in enumerate(share[j]):
            zero[second + "v_proj.weight"][j * DIM + n, c] = rms2
            for head in range(3 * j, 3 * j + 3):
                zero[second + "o_proj.weight"][c, head * DIM + n] = 2
    out = math.sqrt((CODE * 37 + 2 * CODE + CONST * 16) / width)
    norm = np.full(width, logit * out / (6 * CODE), np.float32)
    norm[CODE:] = 0
    zero["model.norm.weight"] = norm
    return zero


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--logit", type=float, default=15)
    given = parser.parse_args()
    shutil.copytree(given.shape, given.out)
    config = json.loads((given.out / "config.json").read_text())
    assert config["hidden_size"] == 576 and config["num_attention_heads"] == HEADS, config
    config["rope_theta"] = THETA
    (given.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    path = given.out / "model.safetensors"
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    shape = {name: about["shape"] for name, about in header.items() if name != "__metadata__"}
    with open(path, "r+b") as file:
        for name, values in weights(shape, np.random.default_rng(1), given.logit).items():
            begin, end = header[name]["data_offsets"]
            data = bits(values).tobytes()
            assert len(data) == end - begin, name
            file.seek(8 + size + begin)
            file.write(data)


if __name__ == "__main__":
    main()
