#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The goals of a run on one GPU, and what a step must move and compute for each: by arithmetic, not measured.

    arithmetic.py [COPY_GB_S SUSTAINED_TFLOPS]      a Markdown table; the defaults are those of an H200

Bytes are the least a step reads and writes (weights once, keys and values of each context once), operations those of
its products and attention.  `in turn` is the time of both one after the other, `side by side` the longer of the two:
a step that overlaps perfectly.
"""
import sys

# Layers, width, inner, heads, kv heads, head dimension, vocabulary, tied.
SHAPES = {"1b": (16, 2048, 8192, 32, 8, 64, 128256, True), "3b": (28, 3072, 8192, 24, 8, 128, 128256, True),
          "8b": (32, 4096, 14336, 32, 8, 128, 128256, False), "tiny": (2, 256, 512, 4, 2, 64, 4096, False)}
# As measured on one H200 in the first runs: copy bandwidth, and the bf16 product under the power limit.
COPY, SUSTAINED = 4256e9, 692e12
# Shares of the limit, tokens a second, or as named in run_goals.py.
GOALS = {"offline": 0.70, "output": 11000, "output, fp8": 18000, "attention": 0.85, "one sequence": 0.85,
         "64 sequences": 0.80, "prefill": 0.75, "training": 0.62, "drawn": 0.98, "KV beside training": 32, "co-serving": 1.2}


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


def offline(model, prompt, answer, memory, fp8=False):
    """A step of a load without end: as many run as the memory holds, each half way on average; each decode row comes
    with the prompt rows that keep the number of running sequences."""
    longest = prompt + answer
    running = int(memory / (longest * model.kv_bytes(1 if fp8 else 2)))
    prompts = running * prompt // answer
    return running, Step(model, running, prompt + answer // 2, prompts, prompt // 2, fp8)


def ms(seconds):
    return f"{seconds * 1e3:.1f} ms"


def rows(copy, sustained):
    """goal, what a step moves and computes, the limit, the goal as a share of it, what must hold"""
    m = Model("8b")
    per_token = sustained / (2 * m.macs)
    for prompt, answer in ((512, 512), (1024, 512)):
        running, step = offline(m, prompt, answer, 100e9)
        moving, computing, turn, beside = step.times(copy, sustained)
        total = running + running * prompt // answer
        yield (f"offline {prompt}/{answer}: {GOALS['offline']:.0%} of sustained / 2P", f"{running} running: {ms(moving)} "
               f"of reading, {ms(computing)} of computing", f"{per_token:,.0f} tokens/s",
               f"{GOALS['offline'] * per_token:,.0f} tokens/s; in turn {total / turn / per_token:.0%}, side by side "
               f"{total / beside / per_token:.0%}", "nano-batches that overlap, or fewer bytes of keys and values (above "
               "100 %: prompt rows have no logits)")
    running, step = offline(m, 512, 512, 100e9)
    turn, logits = step.times(copy, sustained)[2], running * m.vocab * 4 / copy
    yield (f"offline 512/512, drawn over greedy: {GOALS['drawn']:.0%}", f"{running} rows of logits in F32, "
           f"{running * m.vocab * 4 / 1e6:,.0f} MB: {ms(logits)} a pass", "100 %: a draw reads them as often as a greedy one",
           f"{ms(turn * (1 - GOALS['drawn']))} of {ms(turn)} in turn", f"{turn * (1 - GOALS['drawn']) / logits:.1f} more "
           "passes over the logits, or as much for random numbers and the list of what top_p keeps")
    for name, fp8 in (("output", False), ("output, fp8", True)):
        running, step = offline(m, 1000, 1000, 100e9, fp8)
        moving, computing, turn, beside = step.times(copy, sustained)
        yield (f"1000/1000{', weights and KV in fp8' if fp8 else ''}: {GOALS[name]:,} tokens/s of answers",
               f"{running} running: {ms(moving)} of reading, {ms(computing)} of computing",
               f"in turn {running / turn:,.0f}, side by side {running / beside:,.0f} tokens/s",
               f"{GOALS[name] / (running / turn):.0%} of in turn, {GOALS[name] / (running / beside):.0%} of side by side",
               "100 GB of KV; in fp8 twice as many sequences, products at twice the bf16 rate")
    for name, decodes, context in (("one sequence", 1, 512), ("64 sequences", 64, 1024)):
        step = Step(m, decodes, context)
        best = max(step.times(copy, sustained)[:2])
        share = GOALS[name]
        yield (f"decoding, {name} at {context}: {share:.0%} of copy", f"{step.bytes / 1e9:.1f} GB", ms(best),
               f"{ms(best / share)} a step, {decodes * share / best:,.0f} tokens/s",
               f"{ms(best / share - best)} for launches, gaps and what is not read at the copy's rate")
    kv = 64 * 1024 * m.kv_bytes()
    share = GOALS["attention"]
    yield (f"decode attention, 64 sequences at 1024: {share:.0%} of copy", f"{kv / 1e9:.1f} GB of keys and values in "
           f"{m.layers} layers", ms(kv / copy), f"{ms(kv / copy / share)}, {kv / copy / share / m.layers * 1e6:.0f} us a "
           "layer", f"{kv / copy / m.layers * 1e6 * (1 / share - 1):.0f} us a layer for its launch, the merge of pieces and "
           "the last blocks; "
           f"{64 * m.attention_flops(1024) / kv:.0f} operations a byte, products are idle")
    step = Step(m, 0, 0, 2048, 1024, logits=1)
    best = step.times(copy, sustained)[1]
    yield (f"prefill of 2048: {GOALS['prefill']:.0%} of sustained", f"{step.flops / 1e12:.1f} TFLOP", ms(best),
           ms(best / GOALS["prefill"]), "attention is {:.0%} of the operations".format(
               2048 * m.attention_flops(1024) / step.flops))
    t = Model("3b")
    flops = 6 * t.macs + 3 * t.attention_flops(2048)
    yield (f"training 3B, sequences of 4096: {GOALS['training']:.0%} of sustained", f"{flops / 1e9:.1f} GFLOP a token",
           f"{sustained / flops:,.0f} tokens/s", f"{GOALS['training'] * sustained / flops:,.0f} tokens/s",
           "the backward pass computes SwiGLU, norms and probabilities again, which is not counted; AdamW moves "
           f"{20 * t.parameters / 1e9:.0f} GB an update, {ms(20 * t.parameters / copy)}")
    p = m.parameters / 1e9
    state = {"two versions": 4 * p, "gradients in F32": 4 * p, "moments in bf16": 4 * p, "residuals": 2 * p}
    yield (f"full fine-tuning of 8B beside {GOALS['KV beside training']} GB of KV",
           "; ".join(f"{what} {gb:.1f} GB" for what, gb in state.items()), "149 GB of the device",
           f"{sum(state.values()) + GOALS['KV beside training']:.1f} GB", "activations, logits and lanes in the rest")
    step = Step(m, 64, 1024)
    yield (f"co-serving gain {GOALS['co-serving']} over turns, goals held",
           f"a step of 64 sequences reads {ms(step.times(copy, sustained)[0])} and computes "
           f"{ms(step.times(copy, sustained)[1])}", "2.0 if neither disturbed the other",
           f"the lab's best cell was 1.27 ({0.37} + {0.91} of alone)", "decode attention on few SMs beside products")
    yield ("worst gap at a swap: below one decode step", "a flip changes one pointer of the step; graphs of every slot "
           "are captured at the start", "0", f"below {ms(max(step.times(copy, sustained)[:2]))} (64 sequences at 1024)",
           "no capture and no copy between the last step of one version and the first of the next")


HEADS = ("goal", "a step", "limit", "the goal beside it", "what it takes")


def main():
    copy, sustained = (float(sys.argv[1]) * 1e9, float(sys.argv[2]) * 1e12) if len(sys.argv) > 2 else (COPY, SUSTAINED)
    print(f"Copy {copy / 1e9:.0f} GB/s, sustained bf16 product {sustained / 1e12:.0f} TFLOP/s.\n")
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|")
    for row in rows(copy, sustained):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
