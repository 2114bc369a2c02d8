#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print what `transformers` generates greedily, to compare by hand or with dev/check_export.py.

    python3 dev/hf_reference.py MODEL_DIR --ids 1,403,407 --ids 1 --count 20
    python3 dev/hf_reference.py MODEL_DIR --text "Once upon a time" --dtype float64

Prints JSON: {"cases": [{"prompt_ids", "greedy_ids", "greedy_logprobs", "text"}]}; ids exclude the
prompt, log-probabilities are natural, and the end-of-sequence id is an id like any other.

Needs torch, transformers and tokenizers.
"""
import argparse
import json
import os

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils import logging


def greedy(model, prompt, count):
    ids, logprobs, cache, feed = [], [], None, prompt
    for _ in range(count):
        out = model(torch.tensor([feed]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = out.logits[0, -1].double().log_softmax(-1).max(-1)
        ids.append(best.indices.item())
        logprobs.append(round(best.values.item(), 6))
        feed = ids[-1:]
    return ids, logprobs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL_DIR")
    parser.add_argument("--ids", action="append", default=[], metavar="N,N,...",
                        help="a prompt as token ids; may be given again")
    parser.add_argument("--text", action="append", default=[],
                        help="a prompt as text, encoded as tokenizer.json says; may be given again")
    parser.add_argument("--count", type=int, default=32, help="tokens to generate (%(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float64", "float32", "bfloat16"))
    args = parser.parse_args()
    logging.disable_progress_bar()
    path = os.path.join(args.model, "tokenizer.json")
    tokenizer = Tokenizer.from_file(path) if os.path.exists(path) else None
    if args.text and tokenizer is None:
        parser.error(f"{path}: missing, so --text cannot be encoded")
    prompts = [[int(i) for i in text.split(",")] for text in args.ids]
    prompts += [tokenizer.encode(text).ids for text in args.text]
    if not prompts:
        parser.error("give --ids or --text")
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation="eager").eval()
    cases = []
    with torch.no_grad():
        for prompt in prompts:
            ids, logprobs = greedy(model, prompt, args.count)
            cases.append({"prompt_ids": prompt, "greedy_ids": ids, "greedy_logprobs": logprobs})
            if tokenizer is not None:
                cases[-1]["text"] = tokenizer.decode(ids)
    print(json.dumps({"cases": cases}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
