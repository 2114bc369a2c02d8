#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/rollout_rows.json: frozen rollouts, and what TRL's loss makes of the bundled model with them.

    dev/rollout_rows.py models/world > tests/data/rollout_rows.json

The formulas are those of TRL's GRPOTrainer (loss_type grpo and dapo, scale_rewards group), with its names.  One update
by PyTorch's AdamW with eps 1 and rate 1, whose step is g / (|g| + 1), so that a step shows the gradient.  In double.
Needs PyTorch and transformers; the test reads the stored numbers only.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = ["The cup of Ann is", "Bert's favourite colour is"]
ANSWERS = [[" green", " red.", " blue and"], [" yellow", " green.", " not known to me"]]
REWARDS = [[1.0, 0.0, 0.25], [0.0, 1.0, 1.0]]
SAMPLES = 6  # of each tensor's values


def log_probs(model, prompt, answer):
    logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1:-1]
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(answer)[:, None])[:, 0]


def main():
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    torch.manual_seed(3)
    out = {"rows": [], "cases": []}
    for prompt, answers, rewards in zip(PROMPTS, ANSWERS, REWARDS):
        rewards = torch.tensor(rewards).double()
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for answer, advantage in zip(answers, advantages):
            out["rows"].append({"prompt": tokenizer(prompt).input_ids, "answer": tokenizer(answer).input_ids,
                                "advantage": round(advantage.item(), 6)})
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).double()
    for row in out["rows"]:  # the old policy and the reference are near the model, some ratios beyond the clip
        with torch.no_grad():
            lp = log_probs(model, row["prompt"], row["answer"])
        row["old"] = [round(min(x, -1e-3), 4) for x in (lp + 0.3 * torch.randn(len(lp))).tolist()]
        row["reference"] = [round(min(x, -1e-3), 4) for x in (lp + 0.3 * torch.randn(len(lp))).tolist()]
    for kind, epsilon_low, epsilon_high, beta in [("grpo", 0.2, 0.2, 0.0), ("dapo", 0.2, 0.28, 0.0),
                                                  ("grpo", 0.2, 0.2, 0.5)]:
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1, betas=(0.9, 0.95), eps=1, weight_decay=0)
        losses, clipped = [], 0
        for row in out["rows"]:
            per_token_logps = log_probs(model, row["prompt"], row["answer"])
            coef_1 = torch.exp(per_token_logps - torch.tensor(row["old"]).double())
            coef_2 = torch.clamp(coef_1, 1 - epsilon_low, 1 + epsilon_high)
            per_token_loss = -torch.min(coef_1 * row["advantage"], coef_2 * row["advantage"])
            clipped += (coef_1 * row["advantage"] > coef_2 * row["advantage"]).sum().item()
            d = torch.tensor(row["reference"]).double() - per_token_logps
            losses.append(per_token_loss + beta * (torch.exp(d) - d - 1))
        if kind == "grpo":
            loss = torch.stack([x.mean() for x in losses]).mean()
        else:
            loss = torch.cat(losses).mean()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        loss.backward()
        optimizer.step()
        case = {"kind": kind, "low": epsilon_low, "high": epsilon_high, "kl": beta, "clipped": clipped, "moved": {}}
        for name, p in model.named_parameters():
            moved = (p.detach() - before[name]).flatten()
            at = [moved.abs().argmax().item()] + torch.randint(len(moved), (SAMPLES,)).tolist()
            case["moved"][name] = {"at": at, "by": [float(f"{moved[i].item():.9g}") for i in at]}
        out["cases"].append(case)
    print(json.dumps(out))


main()
