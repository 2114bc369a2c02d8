#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check that `transformers` loads a model directory that hzpserve wrote, and gets the same results.

    python3 dev/check_export.py DIR                             loads, every tensor in its place
    python3 dev/check_export.py DIR REF_JSON                    agrees with recorded continuations
    python3 dev/check_export.py DIR --text FILE --split '<|endoftext|>'  mean NLL, as `eval`
    python3 dev/check_export.py DIR --ids FILE                  mean NLL; one document a line

REF_JSON is {"cases": [{"prompt_ids", "greedy_ids", "greedy_logprobs"}]}, as dev/hf_reference.py
prints it. Mean NLL: each document is stripped, empty ones are dropped, BOS is put before its
tokens, and the negative log-likelihood of every token after BOS is averaged over all documents.
A line of --ids is taken as it is, its first id as the BOS. Exits with 1 if anything disagrees.

Needs torch, transformers and tokenizers.
"""
import argparse
import json
import os
import sys

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils import logging


def load(directory, dtype):
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    wrong = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if wrong:
        sys.exit(f"{directory}: {wrong}")
    count = sum(p.numel() for p in model.parameters())
    print(f"{directory}: {type(model).__name__}, {count} parameters, all in place")
    return model.eval()


def log_probabilities(model, ids):
    """[len(ids) - 1, vocab]: row i is the model's prediction of ids[i + 1]."""
    return model(torch.tensor([ids]), use_cache=False).logits[0, :-1].double().log_softmax(-1)


def check_cases(model, path, tolerance):
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    worst, other, total = 0.0, 0, 0
    for case in cases:
        ids = torch.tensor(case["greedy_ids"])
        rows = log_probabilities(model, case["prompt_ids"] + case["greedy_ids"])[-len(ids):]
        expected = torch.tensor(case["greedy_logprobs"], dtype=torch.float64)
        chosen = rows.gather(1, ids[:, None])[:, 0]
        worst = max(worst, (chosen - expected).abs().max().item())
        other += ((rows.max(-1).values - chosen) > tolerance).sum().item()
        total += len(ids)
    print(f"{path}: {total} tokens, {other} not the likeliest, "
          f"log-probabilities off by {worst:.2g}")
    return other == 0 and worst <= tolerance


def documents_of(args, model):
    if args.ids:
        with open(args.ids, encoding="utf-8") as file:
            lines = [line.replace(",", " ").split() for line in file]
        return [[int(i) for i in line] for line in lines if line]
    tokenizer = Tokenizer.from_file(os.path.join(args.directory, "tokenizer.json"))
    with open(args.text, encoding="utf-8") as file:
        text = file.read()
    parts = text.split(args.split) if args.split else [text]
    bos = model.config.bos_token_id
    if bos is None:
        sys.exit(f"{args.directory}: config.json names no bos_token_id; use --ids")
    return [[bos] + tokenizer.encode(part.strip(), add_special_tokens=False).ids
            for part in parts if part.strip()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("reference", metavar="REF_JSON", nargs="?")
    parser.add_argument("--text", metavar="FILE")
    parser.add_argument("--split", help="what stands between two documents of --text")
    parser.add_argument("--ids", metavar="FILE")
    parser.add_argument("--dtype", default="float32", choices=("float64", "float32", "bfloat16"))
    parser.add_argument("--tolerance", type=float, default=1e-3,
                        help="largest error of a log-probability (%(default)s)")
    args = parser.parse_args()
    logging.disable_progress_bar()
    model = load(args.directory, getattr(torch, args.dtype))
    good = True
    with torch.no_grad():
        if args.reference:
            good = check_cases(model, args.reference, args.tolerance)
        if args.text or args.ids:
            total, count = 0.0, 0
            for ids in documents_of(args, model):
                rows = log_probabilities(model, ids)
                total -= rows.gather(1, torch.tensor(ids[1:])[:, None]).sum().item()
                count += len(ids) - 1
            print(f"mean NLL {total / max(count, 1):.5f} over {count} tokens")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
