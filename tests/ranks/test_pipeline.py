#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A search on ranks that compute each step together, over a slow link: it prints the pipeline of a step, what each
choice is for, and its time in turns with the same step without overlap and with what limits both.

    test_pipeline.py HZPSERVE LINK
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

serve, link = sys.argv[1:3]
HANG = 1500  # seconds; only a hang takes as long

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
          "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
          "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu"}

with tempfile.TemporaryDirectory(prefix="hzpserve-pipeline-") as scratch:
    folder = pathlib.Path(scratch)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    command = [serve, "search", folder, "--ranks", "2", "--tensor", "2", "--link", link, "--no-train", "--device", "cpu",
               "--threads", "1", "--max-running", "1", "--step-rows", "256", "--tries", "4", "--link-throttle", "100M",
               "--max-others", "1", "--rank-timeout", "60", "--file", folder / "plans.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
assert done.returncode == 0, done.stderr
out = done.stdout
# Which shapes win is measured, and others use the processors: a pipeline is chosen or it is said that none was.
plans = out[:out.index("pipeline on 2 ranks")]
chosen = re.search(r"^ .*[:\d] in \w+,.* collectives on network", plans, re.M)
assert bool(chosen) != ("no pipeline was chosen for any step" in plans), out
report = out[len(plans):]
for line in ("nano-batch 0: rows 0 to ", "nano-batch 1: rows ", "because ", "order: ",
             "exchanges: on a lane of their own; turns are cut behind O and behind Down",
             "measured in turns on the ranks"):
    assert line in report, (line, report)
row = re.compile(r"^(one operation at a time|nano-batches, no overlap|this pipeline) +([\d.]+) +(\d+) +([\d.]+)x +"
                 r"([\d.]+) %$", re.M)
rows = {m[1]: [float(x) for x in m.groups()[1:]] for m in row.finditer(report)}
assert len(rows) == 3, report
limit = re.search(r"^limited by (compute|memory|network): ([\d.]+) ms at least; alone compute takes ([\d.]+) ms, memory "
                  r"([\d.]+) ms, network ([\d.]+) ms$", report, re.M)
assert limit, report
least, compute, memory, network = (float(limit[i]) for i in range(2, 6))
assert network > 0 and abs(least - max(compute + memory, network)) < 0.05, report
assert (limit[1] == "network") == (network > compute + memory), report
for ms, rate, gain, optimal in rows.values():
    assert abs(optimal - 100 * least / ms) < 1 and rate > 0 and gain > 0, report
# Generous, because the machine may be busy: whoever waited for an exchange to no use would be slower by far.
assert rows["this pipeline"][2] > 0.5, report
print(report)
