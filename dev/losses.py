#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/opcheck/losses.h: rows of every loss, and what PyTorch's autograd makes of them.

    dev/losses.py > tests/opcheck/losses.h

The formulas stand here as their papers have them, so that the ops are compared with something that
was not written from them.  Needs PyTorch; the test reads the stored numbers only.
"""
import torch

ROWS, VOCAB = 36, 7
SOFT_ROWS = 6
KINDS = ["XENT", "IS", "PPO", "CISPO", "DPPO", "DRO"]


def loss(kind, lp, old, adv, low, high, beta):
    ratio = torch.exp(lp - old)
    held = torch.clamp(ratio, 1 - low, 1 + high)
    if kind == "XENT":
        return -lp
    if kind == "IS":
        return -ratio * adv
    if kind == "PPO":
        return -torch.minimum(ratio * adv, held * adv)
    if kind == "CISPO":
        return -held.detach() * adv * lp
    if kind == "DPPO":
        moved = (torch.exp(lp) - torch.exp(old)).detach()
        keep = 1 - ((adv > 0) & (moved > high) | (adv < 0) & (moved < -low)).double()
        return -keep * ratio * adv + beta * (lp - old) ** 2
    return -adv * lp + beta / 2 * (lp - old) ** 2


def soft_rows(number, f32):
    """Rows of soft targets: the teacher's likeliest tokens, and all others as one outcome."""
    print("static const struct {\n    float x[LOSSES_VOCAB], weight, inv_temperature;\n    struct hzp_soft soft;\n"
          "    float loss, dx[LOSSES_VOCAB];\n} soft_losses[SOFT_LOSSES] = {")
    for row in range(SOFT_ROWS):
        x = (torch.randn(VOCAB) * 2).double().requires_grad_()
        teacher = torch.softmax(torch.randn(VOCAB) * 2, 0)
        p, token = torch.topk(teacher, [1, 3, 5][row % 3])
        p = [f32(v) for v in p.tolist()]
        rest = f32(1 - sum(p)) if row % 2 else 0.0
        weight, inverse = f32([1.0, -0.6, 2.5][row // 2]), f32(1 / 0.7) if row % 3 == 1 else 1.0
        lp = torch.log_softmax(x * inverse, 0)
        value = -(torch.tensor(p).double() * lp[token]).sum()
        if rest:
            others = [i for i in range(VOCAB) if i not in token.tolist()]
            value = value - rest * torch.logsumexp(lp[others], 0)
        value = weight * value
        value.backward()
        print("    {{" + ", ".join(number(v) for v in x.tolist()) + f"}},\n     {number(weight)}, {number(inverse)},\n"
              f"     {{{len(p)}, {{" + ", ".join(str(t) for t in token.tolist()) + "}, {"
              + ", ".join(number(v) for v in p) + f"}}, {number(rest)}}},\n     {number(value.item())},\n     {{"
              + ", ".join(number(v) for v in x.grad.tolist()) + "}},")
    print("};")


def main():
    torch.manual_seed(7)
    f32 = lambda x: torch.tensor(x).float().double().item()
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* tests/opcheck/losses.h - losses, log-probabilities, entropies and gradients of rows, by PyTorch")
    print(f" * {torch.__version__.split('+')[0]}; written by dev/losses.py. */")
    print(f"enum {{ LOSSES = {ROWS}, LOSSES_VOCAB = {VOCAB}, SOFT_LOSSES = {SOFT_ROWS} }};")
    print("static const struct {\n    float x[LOSSES_VOCAB], weight;\n    int32_t target;\n"
          "    struct hzp_row_loss how;\n    float loss, lp, entropy, dx[LOSSES_VOCAB];\n} losses[LOSSES] = {")
    for row in range(ROWS):
        kind = KINDS[row % len(KINDS)]
        x = (torch.randn(VOCAB) * 2).double().requires_grad_()
        target = int(torch.randint(VOCAB, ()))
        inverse = f32(1 / 0.7) if row % 5 == 4 else 1.0
        weight = f32([1.0, -0.6, 2.5][row // 6 % 3])
        z = x * inverse
        lp = torch.log_softmax(z, 0)[target]
        # on both sides of each bound, with advantages of either sign
        old = f32(lp.item() + [-1.1, 0.9, 0.04, -0.4, 0.5, -0.06][row // 6])
        adv = f32([1.3, -0.7, 0.9, -1.6, 0.5, -1.1][(row + row // 6) % 6])
        low, high, beta, kl = f32(0.2), f32(0.28), f32(0.1), f32(0.3) if row % 4 == 3 else 0.0
        reference = f32(lp.item() + [0.5, -0.8][row % 2])
        value = loss(kind, lp, torch.tensor(old).double(), torch.tensor(adv).double(), low, high, beta)
        value = weight * (value + kl * (torch.exp(reference - lp) - (reference - lp) - 1))
        value.backward()
        p = torch.softmax(z.detach(), 0)
        entropy = -(p * torch.log(p)).sum().item()
        number = lambda v: f"{v:.9e}f"
        print("    {{" + ", ".join(number(v) for v in x.tolist()) + f"}},\n     {number(weight)},\n     {target},\n"
              f"     {{HZP_LOSS_{kind}, {number(inverse)}, {number(old)}, {number(adv)}, {number(reference)},\n"
              f"      {number(kl)}, {number(low)}, {number(high)}, {number(beta)}}},\n"
              f"     {number(value.item())}, {number(lp.item())}, {number(entropy)},\n     {{"
              + ", ".join(number(v) for v in x.grad.tolist()) + "}},")
    print("};")
    soft_rows(number, f32)


if __name__ == "__main__":
    main()
