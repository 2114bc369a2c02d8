#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of dev/gpu/peer.py without a GPU.

    test_peer.py plan|tiny PEER

plan: what is measured, its names, the arguments and the lines, none of which needs PyTorch.
tiny: every measurement runs on the CPU with a tiny shape, and its model computes what transformers' does.
Skipped (77) where the Python that runs this, or the one that HZP_PEER_PYTHON names, has no torch.
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

WHAT, PEER = sys.argv[1:3]
PYTHON = os.environ.get("HZP_PEER_PYTHON") or sys.executable
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(PEER))
import peer  # noqa: E402


def check(fine, what):
    if not fine:
        sys.exit(f"FAIL: {what}")


def call(*args, python=sys.executable, **env):
    return subprocess.run([python, PEER, *args], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **env})


def listed(*args):
    done = call("--list", *args)
    check(done.returncode == 0, f"--list {args}: {done.stderr}")
    return done.stdout.splitlines()


# ---- plan ----

AGREED = ["product 8b qkv 64 rows bf16", "product 8b down 1 rows fp8", "product 8b head 256 rows bf16",
          "product 8b gate_up 2048 rows fp8", "product 8b o 4096 rows bf16", "product 3b down 4096 rows bf16",
          "product 3b head 4096 rows wgrad bf16", "product 8b qkv 4096 rows dgrad bf16",
          "attention 8b 2048 forward cudnn", "attention 8b 4096 forward flash", "attention 3b 4096 backward cudnn",
          "attention 8b 4096 backward flash", "attention 8b decode 64 at 1024", "decode 8b 1", "decode 8b 64",
          "prefill 8b 2048", "prefill 8b 4096", "train 3b 4096", "train 3b 4096 f32 master"]


def names():
    every, quick = listed(), listed("--quick")
    check(len(set(every)) == len(every), "a name is there twice")
    check(not set(AGREED) - set(every), f"not measured: {set(AGREED) - set(every)}")
    check(set(AGREED) - set(quick) == {"train 3b 4096 f32 master"}, f"left out by --quick: {set(AGREED) - set(quick)}")
    check(listed("--only", "decode*, train 3b 4096") == ["decode 8b 1", "decode 8b 64", "train 3b 4096"], "--only")
    kinds = {name.split()[0] for name in every}
    check({name.split()[0] for name in listed("--tiny")} == kinds, "--tiny has other kinds of measurements")
    for kind in {c["kind"] for c in peer.cases(peer.Full)}:
        check(callable(getattr(peer.Lab, kind, None)), f"{kind} is measured by nothing")


def shapes_by_hand():
    check(peer.matrices("8b") == {"qkv": (4096, 6144), "o": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096),
                                  "head": (4096, 128256)}, "8b")
    check(peer.matrices("3b")["qkv"] == (3072, 5120) and peer.matrices("3b")["o"] == (3072, 3072), "3b")


def arguments():
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/torch.py", "w", encoding="utf-8") as file:
            file.write("raise ImportError('none here')\n")
        for args, status, said in ((["--device", "cpu"], 2, "--tiny"), (["--only", "nothing"], 2, "nothing is named"),
                                   (["--no-such"], 2, "--no-such"), (["--device", "tpu"], 2, "tpu"),
                                   (["--quick"], 77, "none here"), (["--device", "cpu", "--tiny"], 77, "none here")):
            done = call(*args, PYTHONPATH=folder)
            check(done.returncode == status and said in done.stderr, f"{args}: {done.returncode}, {done.stderr}")
            check(not done.stdout, f"{args}: {done.stdout}")


def figures_by_hand():
    seconds = [1e-3, 2e-3, 3e-3, 4e-3, 5e-3]
    check(peer.spread(seconds) == 2 / 3 and peer.spread([1.0]) == 0, "quartiles 2 and 4, median 3")
    check(peer.row("x", seconds) == {"name": "x", "value": 3000.0, "unit": "us", "repeats": 5, "spread": 0.6667}, "a time")
    check(peer.row("x", seconds, 64)["value"] == 21333 and peer.row("x", seconds, 64)["unit"] == "tokens/s", "a rate")


class Odd:
    """Stands in for a device on which one measurement fails, and for which time runs short."""
    spare = 100

    def left(self):
        return self.spare

    def forget(self):
        pass

    def works(self, what):
        yield peer.row(what["name"], [1.0])

    def breaks(self, what):
        yield peer.row(what["name"] + " eager", [1.0])
        raise RuntimeError("out of\nmemory")


def failures_are_told():
    def told(spare):
        lab = Odd()
        lab.spare = spare
        with contextlib.redirect_stdout(io.StringIO()) as out:
            peer.perform(lab, [peer.case("a", "breaks", 5), peer.case("b", "works", 50), peer.case("c", "works", 5)])
        return [json.loads(line) for line in out.getvalue().splitlines()]
    lines = told(100)
    check([line["name"] for line in lines] == ["a eager", "a", "b", "c"], f"{lines}")
    check(lines[1] == {"name": "a", "failed": "RuntimeError: out of"} and "value" in lines[3], f"{lines}")
    lines = told(20)
    check("no time" in lines[2]["failed"] and "value" in lines[3], f"too little time for b alone: {lines}")


def plan():
    names()
    shapes_by_hand()
    arguments()
    figures_by_hand()
    failures_are_told()


# ---- tiny ----

def measured(*args):
    done = call("--device", "cpu", "--tiny", *args, python=PYTHON)
    check(done.returncode == 0, f"{args}: {done.returncode}, {done.stdout[-500:]} {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def everything_runs():
    first, *rows, last = measured("--seconds", "100000")  # no machine is too slow for it
    check(first["tiny"] and first["torch"] and last["done"] is True, f"{first} {last}")
    bad = [row for row in rows if "failed" in row]
    check(not bad, f"{bad}")
    for row in rows:
        check(row["value"] > 0 and row["repeats"] >= 3 and row["spread"] >= 0 and row["unit"] in ("us", "tokens/s"), f"{row}")
    names_ = [row["name"] for row in rows]
    check(len(set(names_)) == len(names_), "a name is there twice")
    check(not set(listed("--tiny")) - set(names_), f"not measured: {set(listed('--tiny')) - set(names_)}")
    for row in rows:
        if row["name"].startswith(("decode", "prefill", "train")) and "how" in row and not row["name"].endswith(row["how"]):
            both = [r["value"] for r in rows if r["name"] in (row["name"] + " eager", row["name"] + " compiled")]
            check(len(both) == 2 and row["value"] == max(both), f"not the faster of both: {row}, {both}")
    check(len([row for row in rows if row["name"].endswith(" compiled")]) == 6, "each step is compiled, too")


# Logits of the first two rows' continuation and the loss, by both; run by the Python that has torch.
COMPARE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import peer
try:
    import transformers
except ImportError:
    sys.exit(77)
torch.manual_seed(3)
ours = peer.Llama("tiny", "cpu", torch.float32)
layers, width, inner, heads, kv_heads, dim, vocab, tied = peer.SHAPES["tiny"]
for w in ours.parameters():
    w.normal_(1 if w.dim() == 1 else 0, 0.3 if w.dim() == 1 else 0.05)
config = transformers.LlamaConfig(num_hidden_layers=layers, hidden_size=width, intermediate_size=inner, num_attention_heads=heads,
    num_key_value_heads=kv_heads, head_dim=dim, vocab_size=vocab, rms_norm_eps=1e-5, tie_word_embeddings=tied,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, attn_implementation="eager")
theirs = transformers.LlamaForCausalLM(config).eval()
with torch.no_grad():
    theirs.model.embed_tokens.weight.copy_(ours.embed)
    theirs.lm_head.weight.copy_(ours.head)
    theirs.model.norm.weight.copy_(ours.norm)
    for w, layer in zip(ours.layer, theirs.model.layers):
        q, k, v = w["qkv"].split((heads * dim, kv_heads * dim, kv_heads * dim))
        gate, up = w["gate_up"].split((inner, inner))
        for to, value in ((layer.self_attn.q_proj, q), (layer.self_attn.k_proj, k), (layer.self_attn.v_proj, v),
                          (layer.self_attn.o_proj, w["o"]), (layer.mlp.gate_proj, gate), (layer.mlp.up_proj, up),
                          (layer.mlp.down_proj, w["down"]), (layer.input_layernorm, w["norm"]),
                          (layer.post_attention_layernorm, w["norm2"])):
            to.weight.copy_(value)
    ids = torch.randint(vocab, (1, 12))
    want = theirs(input_ids=ids).logits[0]
    cache = ours.cache(1, 12)
    first = ours.prefill(ids[:, :11], ours.angles(0, 11), cache)[0, 0]
    second = ours.decode(ids[:, 11:], ours.angles(11, 1), cache)[0, 0]
    loss = ours.loss(ids[:, :-1], ids[0, 1:], ours.angles(0, 11))
    wanted = torch.nn.functional.cross_entropy(want[:-1], ids[0, 1:])
scale = want.std()
for what, a, b in (("prefill", first, want[10]), ("decode", second, want[11]), ("loss", loss, wanted)):
    difference = ((a - b).abs().max() / scale).item()
    print(what, difference)
    assert difference < 1e-4, (what, difference)
assert scale > 0.1, scale
"""


def the_model_is_a_llama():
    done = subprocess.run([PYTHON, "-B", "-c", COMPARE, os.path.dirname(PEER)], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        print("transformers is not there: the model is not compared")
    else:
        check(done.returncode == 0, f"the model's logits are not transformers': {done.stdout} {done.stderr[-2000:]}")


def tiny():
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        print("skip: there is no torch")
        sys.exit(77)
    the_model_is_a_llama()
    everything_runs()


{"plan": plan, "tiny": tiny}[WHAT]()
print("ok")
