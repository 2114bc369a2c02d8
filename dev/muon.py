#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/nanobatch/muon.h: what two updates of torch.optim.Muon, in float64, make of matrices that a formula
gives; for tests/nanobatch/test_update.c.

    dev/muon.py > tests/nanobatch/muon.h

PyTorch's own code runs; what it does in bfloat16 it does in float64 here. Of each matrix the header has two
sums of what it moved by, each element with a sign of its own, and the root of the sum of squares.
"""
import torch

LR, DECAY, MOMENTUM, SCALE = 1e-2, 0.1, 0.95, 0.25
HEADS, KV_HEADS, DIM, WIDTH, INNER = 4, 2, 16, 64, (96, 2048, 8)


def number(i, salt):
    return ((7919 * i * i + (104729 * salt + 31) * i) % 2003 - 1001) / 1001


def matrices(inner):
    """As the layout has them in a layer's unit."""
    return [("q", HEADS * DIM, WIDTH), ("k", KV_HEADS * DIM, WIDTH), ("v", KV_HEADS * DIM, WIDTH),
            ("o", WIDTH, HEADS * DIM), ("gate", inner, WIDTH), ("up", inner, WIDTH), ("down", WIDTH, inner)]


def moved(at, rows, cols, layer):
    place = range(at, at + rows * cols)
    begin = torch.tensor([number(i, 900 + layer) / 8 for i in place], dtype=torch.float64).reshape(rows, cols)
    p = torch.nn.Parameter(begin.clone())
    muon = torch.optim.Muon([p], lr=LR, weight_decay=DECAY, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw")
    for t in (1, 2):
        grad = torch.tensor([number(i, 10 * layer + t) for i in place], dtype=torch.float64)
        p.grad = grad.reshape(rows, cols) * SCALE
        muon.step()
    delta = (p.detach() - begin).flatten()
    sums = [sum(d * (1 if number(i, 500 + k) > 0 else -1) for i, d in zip(place, delta.tolist())) for k in (0, 1)]
    return sums + [float(delta.norm())]


torch.bfloat16 = torch.float64
print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* tests/nanobatch/muon.h - two updates of torch.optim.Muon in float64, PyTorch " + torch.__version__.split("+")[0])
print(" * (match_rms_adamw); written by dev/muon.py. */")
print(f"static const double muon_moved[{len(INNER)}][7][3] = {{")
for layer, inner in enumerate(INNER):
    at = 0
    print("    {")
    for name, rows, cols in matrices(inner):
        print("        {" + ", ".join(f"{x:.10e}" for x in moved(at, rows, cols, layer)) + f"}}, /* {name} */")
        at += rows * cols
    print("    },")
print("};")
