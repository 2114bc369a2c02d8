#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The goals of a run on one GPU, and what a step must move and compute for each: by arithmetic, not measured.

    arithmetic.py                 a Markdown table for each device: docs/measurements/2026-11-gpu-goals.md has them

Bytes are the least a step reads and writes (weights once, keys and values of each context once), operations those of
its products and attention.  `in turn` is the time of both one after the other, `side by side` the longer of the two:
a step that overlaps perfectly.
"""

# Layers, width, inner, heads, kv heads, head dimension, vocabulary, tied.
SHAPES = {"1b": (16, 2048, 8192, 32, 8, 64, 128256, True), "3b": (28, 3072, 8192, 24, 8, 128, 128256, True),
          "8b": (32, 4096, 14336, 32, 8, 128, 128256, False), "tiny": (2, 256, 512, 4, 2, 64, 4096, False)}

class Model:
    def __init__(self, name):
        (self.layers, self.width, self.inner, self.heads, self.kv_heads, self.dim, self.vocab, self.tied) = SHAPES[name]
        attention = self.width * (2 * self.heads + 2 * self.kv_heads) * self.dim
        self.layer_macs = self.layers * (attention + 3 * self.width * self.inner)
        self.head_macs = self.vocab * self.width
        self.macs = self.layer_macs + self.head_macs  # a token's, with its logits
        self.parameters = self.macs + (0 if self.tied else self.head_macs)

    def kv_bytes(self, width=2):
        """Of one position."""
        return 2 * width * self.layers * self.kv_heads * self.dim

    def attention_flops(self, positions):
        """Of one row that attends to so many positions."""
        return 4 * self.layers * self.heads * self.dim * positions


class Step:
    """What a step reads, and computes; fp8: weights, products and keys and values in e4m3."""

    def __init__(self, model, decodes, context, prompt_rows=0, prompt_context=0, fp8=False, logits=None):
        width = 1 if fp8 else 2
        rows = decodes + prompt_rows
        self.bytes = width * model.macs + decodes * context * model.kv_bytes(width)
        products = 2 * (model.layer_macs * rows + model.head_macs * (decodes if logits is None else logits))
        attention = decodes * model.attention_flops(context) + prompt_rows * model.attention_flops(prompt_context)
        self.flops = products / (2 if fp8 else 1) + attention  # e4m3 products run at twice the rate

    def times(self, copy, sustained):
        moving, computing = self.bytes / copy, self.flops / sustained
        return moving, computing, moving + computing, max(moving, computing)


def offline(model, running, prompt, answer, fp8=False):
    """A step of a load without end: the running are half way on average; each decode row comes with the prompt rows that
    keep their number."""
    return Step(model, running, prompt + answer // 2, running * prompt // answer, prompt // 2, fp8)


# ---- goals ----

# What was measured of each device.  H100: the copy by PyTorch on an H100 80GB HBM3, bytes read and written; what its
# product sustains was not measured, and is taken to be the H200's: the same SMs under the same power limit.
DEVICES = {"H100": {"copy": 3000e9, "sustained": 692e12, "profile": 80},
           "H200": {"copy": 4256e9, "sustained": 692e12, "profile": 141}}
# Shares of a limit, or as named in run_goals.py.  Of the loads without end the limit is reading and computing in turn.
GOALS = {"offline": 0.90, "output": 0.90, "output, fp8": 0.75, "attention": 0.85, "one sequence": 0.85,
         "64 sequences": 0.80, "prefill": 0.75, "training": 0.62, "drawn": 0.98, "co-serving": 1.2}
# What is expected, as shares of the same limits, and why.
EXPECTED = {
    "offline": (0.88, 0.93, "as 1000/1000"),
    "output": (0.89, 0.94, "products of 400 rows at 80 to 85 % of their bytes, attention at 85 to 90 %, launches"),
    "output, fp8": (0.67, 0.74, "products of e4m3 at 75 to 85 % of their rate, partial sums of attention 13 % more bytes"),
    "one sequence": (0.83, 0.90, "products of few rows at 83 to 93 %, attention, merge and rope 10 us a layer"),
    "64 sequences": (0.74, 0.78, "cuBLASLt at 80 to 85 % of the bytes, 2 to 3 us between two of 224 products"),
    "attention": (0.85, 0.90, "rings of the tensor copy engine; untested"),
    "prefill": (0.78, 0.84, "81 % was measured on an H200 before cuDNN"),
    "training": (0.58, 0.68, "the first with our attention, the second with cuDNN's"),
}
PEERS = {
    "offline": "none found for this load",
    "output": "SGLang and vLLM on an H100: about 10,000 to 11,000 tokens/s of answers, ShareGPT's lengths (sglang#1639)",
    "output, fp8": "TensorRT-LLM v1.0, 1000/1000: 15,220 tokens/s on an H100, 17,744 on an H200",
    "one sequence": "vLLM on an A100 reaches 77 % of its bytes a second",
    "64 sequences": "none found",
    "attention": "none found at this shape",
    "prefill": "attention alone, TFLOP/s on an H100: FlashAttention-2 370, cuDNN 600 to 617, FlashAttention-3 640 to 648",
    "training": "45 to 48 % of 989 TFLOP/s is common on H100s, 64 to 69 % of what is sustained (from memory, no source)",
    "drawn": "none found", "beside": "none: no peer trains and serves from one copy",
    "co-serving": "none: as above", "swap": "none: peers stop, or reload",
}


def ms(seconds):
    return f"{seconds * 1e3:.1f} ms"


def in_turn(model, running, prompt, answer, copy, sustained, fp8=False):
    """(tokens a second of prompts and answers, of answers alone) of a load without end, each step reading and computing
    one after the other."""
    seconds = offline(model, running, prompt, answer, fp8).times(copy, sustained)[2]
    return (running + running * prompt // answer) / seconds, running / seconds


def reached(goal, limit, unit="tokens/s"):
    """The goal's value, and what is expected, by shares of a limit."""
    least, most, why = EXPECTED[goal]
    return (f"{GOALS[goal]:.0%}: {GOALS[goal] * limit:,.0f} {unit}",
            f"{least:.0%} to {most:.0%}, {least * limit:,.0f} to {most * limit:,.0f}: {why}")


def loads(m, sizes, copy, sustained):
    for prompt, answer, goal, fp8 in ((512, 512, "offline", False), (1024, 512, "offline", False),
                                      (1000, 1000, "output", False), (1000, 1000, "output, fp8", True)):
        memory, running = sizes.kv_fp8 if fp8 else sizes.kv, sizes.running(prompt, answer, fp8)
        moving, computing, turn, beside = offline(m, running, prompt, answer, fp8).times(copy, sustained)
        every, answers = in_turn(m, running, prompt, answer, copy, sustained, fp8)
        limit = every if goal == "offline" else answers
        yield (f"{prompt}/{answer}{', weights and KV in fp8' if fp8 else ''}: tokens/s"
               f"{'' if goal == 'offline' else ' of answers'}", f"{running} running in {memory / 1e9:.0f} GB: {ms(moving)} of "
               f"reading, {ms(computing)} of computing", f"in turn {limit:,.0f}, side by side {limit * turn / beside:,.0f}",
               *reached(goal, limit), PEERS[goal])


def table(device):
    """goal, what a step moves and computes, the limit, the goal, what is expected, what peers publish"""
    import run_sizes  # which needs the shapes from here
    copy, sustained, sizes = DEVICES[device]["copy"], DEVICES[device]["sustained"], run_sizes.Full(DEVICES[device]["profile"])
    m = Model("8b")
    yield from loads(m, sizes, copy, sustained)
    running = sizes.running(512, 512)
    turn, logits = offline(m, running, 512, 512).times(copy, sustained)[2], running * m.vocab * 4 / copy
    yield ("512/512, drawn over greedy", f"{running} rows of logits in F32, {running * m.vocab * 4 / 1e6:,.0f} MB: "
           f"{ms(logits)} a pass", "100 %: a draw reads them as often as a greedy one", f"{GOALS['drawn']:.0%}",
           f"over 99 %: the goal leaves {turn * (1 - GOALS['drawn']) / logits:.1f} more passes over the logits", PEERS["drawn"])
    for name, decodes, context in (("one sequence", 1, 512), ("64 sequences", 64, 1024)):
        step = Step(m, decodes, context)
        best = step.bytes / copy
        yield (f"decoding, {name} at {context}", f"{step.bytes / 1e9:.1f} GB", f"{ms(best)}, {decodes / best:,.0f} tokens/s",
               *reached(name, decodes / best), PEERS[name])
    kv = 64 * 1024 * m.kv_bytes()
    yield ("decode attention, 64 sequences at 1024", f"{kv / 1e9:.1f} GB of keys and values in {m.layers} layers",
           f"{ms(kv / copy)}, {kv / copy / m.layers * 1e6:.0f} us a layer", *reached("attention", copy / 1e9, "GB/s"),
           PEERS["attention"])
    step = Step(m, 0, 0, 2048, 1024, logits=1)
    best = step.times(copy, sustained)[1]
    yield ("prefill of 2048", f"{step.flops / 1e12:.1f} TFLOP", f"{ms(best)}, {2048 / best:,.0f} tokens/s",
           *reached("prefill", 2048 / best), PEERS["prefill"])
    t = Model("3b")
    flops = 6 * t.macs + 3 * t.attention_flops(2048)
    yield ("training 3B, sequences of 4096", f"{flops / 1e9:.1f} GFLOP a token; AdamW moves {20 * t.parameters / 1e9:.0f} GB an "
           f"update, {ms(20 * t.parameters / copy)}", f"{sustained / flops:,.0f} tokens/s", *reached("training", sustained / flops),
           PEERS["training"])
    p = Model(sizes.learn).parameters / 1e9
    state = {"two versions": 4 * p, "gradients in F32": 4 * p, "moments in bf16": 4 * p, "residuals": 2 * p}
    kept = sizes.beside_kv / 1e9
    yield (f"full fine-tuning of {sizes.learn.upper()} beside keys and values", "; ".join(
        f"{what} {gb:.1f} GB" for what, gb in state.items()), f"{sizes.room / 1e9:.0f} GB, with 6 left to the driver",
        f"{kept:.1f} GB of KV, {sum(state.values()) + kept:.1f} GB in all", "fits: activations, logits and lanes in the rest",
        PEERS["beside"])
    step = Step(m, 64, 1024)
    yield (f"co-serving gain over turns, goals held ({sizes.learn.upper()})", f"a step of 64 sequences (8B) reads "
           f"{ms(step.bytes / copy)} and computes {ms(step.flops / sustained)}", "2.0 if neither disturbed the other",
           f"{GOALS['co-serving']}", "the lab's best cell was 1.27 (0.37 + 0.91 of alone), on an H200", PEERS["co-serving"])
    yield ("worst gap at a swap", "a flip changes one pointer of the step; graphs of every slot are captured at the start",
           "0", f"below a decode step, {ms(step.bytes / copy)} (64 sequences at 1024)",
           "far below: no capture and no copy between the last step of one version and the first of the next", PEERS["swap"])


HEADS = ("goal", "a step", "limit", "the goal", "expected, and why", "published by peers")


def main():
    for device, has in DEVICES.items():
        print(f"## {device}\n\nCopy {has['copy'] / 1e9:.0f} GB/s, sustained bf16 product {has['sustained'] / 1e12:.0f} TFLOP/s, "
              f"sizes of profile {has['profile']}.\n")
        print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|")
        for row in table(device):
            print("| " + " | ".join(row) + " |")
        print()


if __name__ == "__main__":
    main()
