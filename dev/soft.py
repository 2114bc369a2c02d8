#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/api/soft.json: examples with soft targets as a client posts them, and what PyTorch makes of them: the
loss, the gradient's norm, and the weights after one update.

    dev/soft.py models/world > tests/api/soft.json

In float64, by the implementation of `transformers`.  AdamW's eps is 1, so that a first step shows how large each
gradient is; what comes of the weights is kept as each tensor's change, and its elements that change most.  Needs
PyTorch and transformers; tests/api/test_soft.py reads the stored numbers only.
"""
import json
import random
import sys

import torch
import transformers

LR, BETA1, BETA2, EPS, KEPT = 1.0, 0.9, 0.95, 1.0, 4
EXAMPLES = ((12, 1, None, False), (7, 1, None, True), (20, 2.5, None, True), (9, 0.5, 2.0, True), (5, 1, 0.7, False))


def make(count, weight, temperature, rest, vocab, rng):
    """An example of so many tokens, whose second half is learned, all but one token softly."""
    tokens = [rng.randrange(1, vocab) for _ in range(count)]
    targets = [None] * count
    for i in range(count // 2 + 1, count):
        names = rng.sample(range(vocab), rng.choice((1, 2, 5, 20)))
        parts = [rng.random() for _ in names] + [rng.random()]
        pairs = [[name, round(part / sum(parts), 4)] for name, part in zip(names, parts)]
        targets[i] = pairs[:19] + [[None, round(parts[-1] / sum(parts), 4)]] if rest else pairs
    got = {"tokens": tokens, "learn": [int(i >= count // 2) for i in range(count)], "targets": targets,
           "weights": weight}
    return {**got, "loss": {"kind": "xent", "temperature": temperature}} if temperature else got


def loss_of(model, one):
    """The sum over its learned tokens, and that of their weights."""
    logits = model(torch.tensor([one["tokens"]])).logits[0] / one.get("loss", {}).get("temperature", 1)
    lp, loss, weights = torch.log_softmax(logits, -1), 0, 0
    for i, pairs in enumerate(one["targets"]):
        if not one["learn"][i]:
            continue
        row, weights = lp[i - 1], weights + one["weights"]
        for token, p in pairs or [[one["tokens"][i], 1]]:
            others = torch.log1p(-sum(row[named].exp() for named, _ in pairs if named is not None)) if pairs else None
            loss = loss - one["weights"] * p * (others if token is None else row[token])
    return loss, weights


def main():
    rng = random.Random(7)
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float64)
    examples = [make(*how, model.config.vocab_size, rng) for how in EXAMPLES]
    parts = [loss_of(model, one) for one in examples]
    loss = sum(part[0] for part in parts) / sum(part[1] for part in parts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(BETA1, BETA2), eps=EPS, weight_decay=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss.backward()
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in model.parameters()))
    optimizer.step()
    tensors = {}
    for name, p in model.named_parameters():
        change = (p.detach() - before[name]).flatten()
        most = change.abs().topk(KEPT).indices
        tensors[name] = {"change": change.norm().item(), "at": most.tolist(),
                         "value": p.detach().flatten()[most].tolist()}
    found = {"torch": torch.__version__, "transformers": transformers.__version__,
             "adamw": f"beta1={BETA1},beta2={BETA2},eps={EPS:g},decay=0", "lr": LR, "loss": loss.item(),
             "grad_norm": norm.item()}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
    shown = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in tensors.items()]
    lines.append('"examples": [\n' + ",\n".join(map(json.dumps, examples)) + "\n]")
    lines.append('"tensors": {\n' + ",\n".join(shown) + "\n}")
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
