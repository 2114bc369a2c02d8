#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/opcheck/losses.h: rows of every loss, and sequences, and what PyTorch's autograd makes of them.

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


# kind, rows of each document, beta; a pair has two documents, the chosen one first
SEQUENCES = [("DPO", (5, 3), 0.1), ("IPO", (4, 6), 0.1), ("GSPO", (4,), 0), ("DPO", (1, 2), 0.7), ("GSPO", (3,), 0),
             ("IPO", (2, 2), 0.5), ("GSPO", (6,), 0), ("GSPO", (2,), 0)]


def sequence_loss(kind, lp, old, reference, adv, low, high, beta, kl):
    """As TRL 1.16 has them (DPOTrainer's losses sigmoid and ipo; GRPOTrainer with importance_sampling_level
    "sequence"); lp: of each document."""
    if kind == "GSPO":
        log_ratio = (lp[0] - old).mean()
        ratio = torch.exp(log_ratio)
        loss = -torch.minimum(ratio * adv, torch.clamp(ratio, 1 - low, 1 + high) * adv)
        d = reference - lp[0]
        return loss + (kl * (torch.exp(d) - d - 1)).mean()
    chosen, rejected = (l.sum() - r.sum() if kind == "DPO" else (l - r).mean() for l, r in zip(lp, reference))
    delta = chosen - rejected
    if kind == "DPO":
        return -torch.nn.functional.logsigmoid(beta * delta)
    return (delta - 1 / (2 * beta)) ** 2


def sequences():
    f32 = lambda x: torch.tensor(x).float().double()
    number = lambda v: f"{float(torch.as_tensor(v).detach()):.9e}f"
    rows, documents, first = [], 0, 0
    for i, (kind, sizes, beta) in enumerate(SEQUENCES):
        beta, low, high = f32(beta), f32(0.05), f32(0.08)
        lp = [f32((-torch.rand(n) * 3).tolist()).requires_grad_() for n in sizes]
        gspo = kind == "GSPO"
        shift = [0, 0, 0.02, 0, 0.3, 0, -0.4, 0.2][i]
        adv = [0, 0, 1.3, 0, 0.7, 0, 0.9, -1.1][i]
        kl = f32(0.3 if i == 4 else 0)
        old = f32((lp[0].detach() - shift + 0.01 * torch.randn(sizes[0])).tolist()) if gspo else None
        reference = [f32((l.detach() + torch.randn(len(l))).tolist()) for l in lp]
        value = sequence_loss(kind, lp, old, reference[0] if gspo else reference, f32(adv), low, high, beta, kl)
        value.backward()
        for at, (l, r) in enumerate(zip(lp, reference)):
            for k in range(len(l)):
                a = f32(adv) if gspo else -1.0 if at else 1.0
                rows.append(f"    {{{documents + at}, {number(l[k])}, {{HZP_LOSS_{kind}, 1, {number(old[k] if gspo else 0)}, "
                            f"{number(a)},\n      {number(r[k])}, {number(kl)}, {number(low)}, {number(high)}, {number(beta)}}},\n"
                            f"     {number(value) if not at and not k else '0'}, {number(-l.grad[k])}}},")
        documents += len(sizes)
    print(f"enum {{ SEQUENCE_ROWS = {len(rows)}, SEQUENCES = {documents} }};")
    print("static const struct {\n    int32_t document;\n    float lp;\n    struct hzp_row_loss how;\n"
          "    float loss, slope; /* its sequence's, in the first row of a loss; -dloss/dlp */\n"
          "} sequences[SEQUENCE_ROWS] = {")
    print("\n".join(rows))
    print("};")


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
    sequences()
    soft_rows(number, f32)


if __name__ == "__main__":
    main()
