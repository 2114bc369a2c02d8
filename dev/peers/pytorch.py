#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same training and generation on hzpserve and on PyTorch + Transformers, in turns.

    pytorch.py --hzpserve BIN --model DIR [--what train,generate] [--compile] ...

train: full AdamW updates of 4 documents of 512 tokens, bf16 weights; on PyTorch with fused AdamW
and torch's own attention. Its simplest form keeps weights, gradients and moments in bf16: less work
than hzpserve does, which keeps moments and the exact sum of weights in 32 bits. --f32-master gives
PyTorch fp32 weights under bf16 autocast, which is the same arithmetic. --f32 trains in F32 on both
sides.
generate: --batch sequences at once, 512 in and 128 out, with generate() and a static batch on
PyTorch, and over HTTP on hzpserve. Prints each round, medians and ratios.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch
import transformers

from serving import Server, free_port, load


def ours_train(given, _):
    done = subprocess.run([given.hzpserve, "bench", "train", given.model, "--json", "--quick",
                           *(["--dtype", "f32"] if given.f32 else []),
                           "--threads", str(given.threads)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found = json.loads(done.stdout)["figures"]
    return next(f["value"] for f in found if f.get("name", "").startswith("training"))


class Peer:
    def __init__(self, given):
        self.given = given
        dtype = torch.float32 if given.f32_master or given.f32 else torch.bfloat16
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            given.model, dtype=dtype, attn_implementation="sdpa")
        self.vocab = self.model.config.vocab_size
        self.step = torch.compile(self.loss) if given.compile else self.loss
        self.optimizer = None

    def loss(self, rows):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.given.f32_master):
            return self.model(input_ids=rows, labels=rows, use_cache=False).loss

    def update(self):
        rows = torch.randint(self.vocab, (4, 512))
        begin = time.perf_counter()
        self.step(rows).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return rows.numel() / (time.perf_counter() - begin)

    def train(self):
        if self.optimizer is None:
            self.model.train()
            self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-5, (0.9, 0.95),
                                               fused=True)
            self.update()
        return statistics.median(self.update() for _ in range(self.given.updates))

    @torch.inference_mode()
    def generate(self):
        self.model.eval()
        rows = torch.randint(self.vocab, (self.given.batch, 512))
        begin = time.perf_counter()
        self.model.generate(rows, attention_mask=torch.ones_like(rows), max_new_tokens=128,
                            min_new_tokens=128, do_sample=False, pad_token_id=0)
        return self.given.batch * (512 + 128) / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hzpserve", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--what", default="train")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["hzpserve", "PyTorch"], help="no turns: one side alone")
    parser.add_argument("--updates", type=int, default=2, help="of PyTorch in a round")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--f32-master", action="store_true")
    parser.add_argument("--f32", action="store_true")
    parser.add_argument("--json", help="file for every figure")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    peer, server = None if given.only == "hzpserve" else Peer(given), None
    values = {}
    try:
        for what in given.what.split(","):
            if what == "generate" and given.only != "PyTorch":
                port = free_port()
                server = Server("hzpserve", [given.hzpserve, "serve", given.model, "--port",
                                             str(port), "--no-train", "--state", "none",
                                             "--threads", str(given.threads)], port)
                server.wait()
            for turn in range(given.rounds):
                sides = [("hzpserve", lambda: ours(given, what, server, turn)),
                         ("PyTorch", peer and getattr(peer, what))]
                for who, measure in sides if turn % 2 == 0 else sides[::-1]:
                    if given.only and who != given.only:
                        continue
                    value = measure()
                    values.setdefault(what, {}).setdefault(who, []).append(value)
                    print(f"{who:10} {what:10} {value:10.2f} tokens/s", flush=True)
    finally:
        if server:
            server.stop()
    report(given, values)


def ours(given, what, server, turn):
    if what == "train":
        return ours_train(given, turn)
    r = load(given, server, given.batch, given.batch, 512, 128, turn + 1)
    return r["total_token_throughput"]


def report(given, values):
    print(f"\ntorch {torch.__version__}, transformers {transformers.__version__}, "
          f"{'compiled' if given.compile else 'eager'}, "
          f"{'fp32 weights, bf16 autocast' if given.f32_master else 'f32' if given.f32 else 'all bf16'}")
    for what, both in values.items():
        median = {who: statistics.median(v) for who, v in both.items()}
        print(f"{what:10}", "  ".join(f"{who} {v:.2f}" for who, v in median.items()))
        if len(median) == 2:
            print(f"{'':10} ratio {median['hzpserve'] / median['PyTorch']:.2f}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"machine": platform.machine(), "torch": torch.__version__,
                       "transformers": transformers.__version__, "compile": given.compile,
                       "f32_master": given.f32_master,
                       "f32": given.f32, "values": values}, file, indent=1)


if __name__ == "__main__":
    main()
