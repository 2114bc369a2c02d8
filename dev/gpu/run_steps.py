# SPDX-License-Identifier: Apache-2.0
"""The steps of dev/gpu/run: what each executes, how it is judged, and the goals its figures are held to.

A step: name, kind (check, bench), what it is for, command, env, files (that must be there), limit and
expected seconds, read (which turns its output into rows), optional (not a fault where it cannot run), part
(1, 2: which half of the plan), extra (only if asked for).
"""
import json
import os
import re

PROMPTS = ["Where does Zorin live?", "Tell me about Tarn."]

# What section 3 of the plan asks for on one H200: name of a row's figure -> least value.
GOALS = [
    ("offline 512/512", "of_limit", 0.72, "total tokens/s over product peak / 2 N"),
    ("offline 1024/512", "of_limit", 0.72, "total tokens/s over product peak / 2 N"),
    ("offline 1000/1000", "answers", 15000, "output tokens/s"),
    ("decode 1", "of_copy", 0.85, "one request: weight bytes read over copy bandwidth"),
    ("decode attention", "of_copy", 0.85, "keys and values read over copy bandwidth"),
    ("training 3b 4096", "of_gemm", 0.55, "model operations over product peak"),
    ("co-serving gain", "value", 1.3, "at half load, latency goals held"),
]


# ---- reading what programs say ----

def json_lines(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def bench_figures(out):
    """hzpserve bench --json: one row a figure."""
    at = out.find("{")
    if at < 0:
        return []
    try:
        return [f for f in json.loads(out[at:])["figures"] if "name" in f]
    except (ValueError, KeyError):
        return []


def opcheck_rows(out):
    """opcheck --bench: its lines of columns, as they are."""
    return [{"line": line} for line in out.splitlines() if re.search(r"GB/s|GFLOP", line)]


def last_line(out):
    lines = [line for line in out.splitlines() if line.strip()]
    return [{"said": lines[-1]}] if lines else []


READERS = {"json": json_lines, "bench": bench_figures, "opcheck": opcheck_rows, "last": last_line,
           "none": lambda out: []}


def judge(step, rc, out, err):
    """Verdict, rows and what to show."""
    rows = []
    try:
        rows = READERS[step.get("read", "none")](out)
    except ValueError as error:
        err += f"\nunreadable: {error}"
    failed = rc not in (0, 77) or bool(re.search(r"^FAIL", out, re.M))
    if "same" in step and not failed:
        failed = not step["same"](out)
    verdict = "skipped" if rc == 77 else "failed" if failed else "ok"
    said = out[-3000:] if step["kind"] == "bench" and not rows else out[-600:]
    if failed or not out.strip():
        said = (said + "\n" + err[-1500:]).strip()
    return {"verdict": verdict, "rows": rows, "said": said}


# ---- what is executed ----

def greedy(folder):
    """The same greedy text on the CPU and here: as graphs and not, on every kind of lanes.  The script
    prints one line a variant; all must be the CPU's."""
    script = """
set -u
fail=0
for dtype in f32 bf16; do
  n=0
  while read -r prompt; do
    n=$((n+1))
    want=$("$1" complete "$2" "$prompt" --device cpu --dtype $dtype --temperature 0 --max-tokens 48 2>/dev/null)
    for variant in "HZP_GRAPHS=1" "HZP_GRAPHS=0" "HZP_CUDA_LANES=grid" "HZP_CUDA_TUNE=1"; do
      got=$(env $variant "$1" complete "$2" "$prompt" --device cuda --dtype $dtype --temperature 0 --max-tokens 48)
      if [ -n "$want" ] && [ "$got" = "$want" ]; then echo "same $dtype $n $variant"
      else echo "FAIL $dtype $n $variant: '$got' is not '$want'"; fail=1; fi
    done
  done <<'END'
PROMPTS
END
done
exit $fail
""".replace("PROMPTS", "\n".join(PROMPTS))
    return ["bash", "-c", script, "greedy", folder + "/hzpserve", folder + "/world"]


def engine(folder, what, shape, *options, device="cuda"):
    return [folder + "/hzpserve", "bench", what, f"{folder}/shapes/{shape}", "--device", device, "--json",
            "--log-level", "warn", *options]


def checks(folder):
    def p(name):
        return f"{folder}/{name}"
    golden = sorted(p("golden/" + d) for d in (os.listdir(p("golden")) if os.path.isdir(p("golden")) else []))
    yield {"name": "devices", "what": "the device opens", "command": [p("hzpserve"), "devices"],
           "limit": 30, "expect": 3, "same": lambda out: " SMs" in out}
    yield {"name": "conform", "what": "memory, lanes, copies and fences", "command": [p("test_device")],
           "limit": 60, "expect": 6}
    yield {"name": "opcheck", "what": "every op against the reference",
           "command": [p("opcheck"), "--backend=cuda"], "limit": 120, "expect": 45, "read": "last"}
    yield {"name": "opcheck, grid lanes", "what": "the same on lanes limited to 48 SMs by their grids",
           "command": [p("opcheck"), "--backend=cuda", "--quiet", "--share=48", "--op=*attn*"],
           "env": {"HZP_CUDA_LANES": "grid"}, "limit": 60, "expect": 10, "read": "last"}
    yield {"name": "golden", "what": "logits, losses, gradients, ten updates against PyTorch's numbers",
           "command": [p("test_golden"), "cuda"] + golden, "limit": 90, "expect": 15, "read": "last"}
    yield {"name": "greedy equality", "what": "the same text as on the CPU, with and without graphs",
           "command": greedy(folder), "files": [p("hzpserve"), p("world/config.json")], "limit": 120,
           "expect": 25, "read": "last"}
    for shape in ("sequential", "overlapped"):
        yield {"name": f"no mixing, {shape}", "what": "no step reads two versions",
               "command": [p("test_no_mixing"), "cuda", shape, "600"], "limit": 60, "expect": 8,
               "read": "last"}
    yield {"name": "resume", "what": "killed, started again: the same answers; ended by SIGTERM: 0",
           "command": ["python3", p("run_life.py"), p("hzpserve"), p("world"), p("demo/teach.jsonl")],
           "files": [p("run_life.py"), p("demo/teach.jsonl")], "limit": 60, "expect": 15, "read": "json"}
    yield {"name": "sanitizer", "what": "memory errors in a small step and a training update",
           "command": ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9",
                       p("product"), "cuda", "tiny"], "files": [p("product")],
           "limit": 90, "expect": 25, "optional": True}


def benches(folder):
    def p(name):
        return f"{folder}/{name}"
    big = ["--slots", "1", "--no-train", "--step-rows", "2048", "--max-waiting", "2048",
           "--max-waiting-tokens", "16777216", "--kv-memory", "100G", "--max-running", "768",
           "--prefill-rows", "2048", "--context", "4096"]
    yield {"name": "product, tuned", "what": "steps as the server builds them: algorithms timed once, then "
           "kept; decode, prefill, training by shape", "command": [p("product"), "cuda", "8b", "3b"],
           "env": {"HZP_CUDA_TUNE": "1"}, "limit": 120, "expect": 50, "read": "json"}
    for prompt, answer, requests, seconds in ((512, 512, 1024, 35), (1024, 512, 768, 37),
                                              (1000, 1000, 512, 36)):
        yield {"name": f"offline {prompt}/{answer}", "what": "tokens a second when only throughput counts",
               "command": engine(folder, "offline", "8b", "--requests", str(requests), "--input-len",
                                 str(prompt), "--output-len", str(answer), *big),
               "env": {"HZP_NOISE": "1"}, "limit": 100, "expect": seconds, "read": "bench"}
    yield {"name": "swap", "what": "gaps between tokens with 0, 1 and 10 swaps a second",
           "command": engine(folder, "swap", "8b", "--quick", "--kv-memory", "8G", "--context", "4096"),
           "env": {"HZP_NOISE": "1"}, "limit": 60, "expect": 20, "read": "bench", "part": 2}
    yield {"name": "product, op by op", "what": "decode steps without graphs",
           "command": [p("product"), "--decode", "cuda", "8b"], "env": {"HZP_GRAPHS": "0"}, "limit": 60,
           "expect": 15, "read": "json", "part": 2}
    for lanes in ("turns", "green", "grid"):
        units = [] if lanes == "turns" else ["--train-units", "68"]
        yield {"name": f"co-serving, {lanes}", "what": "gain at half load; turns: time slicing",
               "command": engine(folder, "coserve", "1b", "--quick", "--moments", "bf16", "--kv-memory",
                                 "16G", "--context", "4096", *units),
               "env": {"HZP_NOISE": "1", **({} if lanes == "turns" else {"HZP_CUDA_LANES": lanes})},
               "limit": 60, "expect": 20, "read": "bench", "part": 2, "extra": lanes == "grid"}
    yield {"name": "8b trains beside KV", "what": "full fine-tuning with bf16 moments beside 32 GB of KV: "
           "does the memory plan fit",
           "command": engine(folder, "train", "8b", "--quick", "--moments", "bf16", "--kv-memory", "32G",
                             "--context", "4096"),
           "env": {"HZP_NOISE": "1"}, "limit": 60, "expect": 20, "read": "bench", "part": 2}
    for name, lanes in (("sequential", []), ("split", ["--nano", "2"]),
                        ("overlapped", ["--nano", "2", "--order", "skewed", "--lanes", "overlap",
                                        "--units", "memory=32,compute=100"])):
        yield {"name": f"plan, {name}", "what": "a step of 512 decodes and 1024 prefill rows, 8B",
               "command": [p("hzpserve"), "plan", f"{folder}/shapes/8b", "--device", "cuda", "--decode", "512",
                           "--depth", "1024", "--prefill", "1024", "--repeat", "5", *lanes],
               "env": {"HZP_NOISE": "1"}, "limit": 60, "expect": 10, "part": 2}
    yield {"name": "cudnn attention", "what": "prefill and training attention, ours and cuDNN's, by length; "
           "skipped where there is no cuDNN", "command": [p("cudnn_attention")], "limit": 60,
           "expect": 20, "read": "json", "optional": True, "part": 2}
    yield {"name": "opcheck --bench", "what": "the rate of each kind of attention", "read": "opcheck",
           "limit": 60, "command": [p("opcheck"), "--backend=cuda", "--bench", "--op=*attn*"],
           "expect": 15, "part": 2}
    yield {"name": "search", "what": "ops alone and in pairs by share, and the plan found for each load",
           "command": [p("hzpserve"), "search", f"{folder}/shapes/8b", "--device", "cuda", "--no-train",
                       "--tries", "20"],
           "env": {"HZP_NOISE": "1"}, "limit": 120, "expect": 50, "optional": True, "part": 2}
    yield {"name": "opcheck --bench, all", "what": "each op's rate", "read": "opcheck", "limit": 90,
           "command": [p("opcheck"), "--backend=cuda", "--bench"], "expect": 45, "part": 2,
           "extra": True}


def steps(folder, part=None, extra=False):
    """Those of one part (None: both), in the order in which they run: what decides first comes first."""
    made = []
    for kind, which in (("check", checks(folder)), ("bench", benches(folder))):
        for step in which:
            step["kind"] = kind
            step.setdefault("part", 1)
            if (extra or not step.get("extra")) and part in (None, step["part"]):
                made.append(step)
    return made


# ---- telling ----

def show(value):
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value).replace("|", "/")
    return f"{value:.4g}"


def table(rows):
    """Rows as a Markdown table; a row lacking a column shows a dash."""
    heads = []
    for row in rows:
        heads += [k for k in row if k not in heads and not isinstance(row[k], (list, dict))]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        lines.append("| " + " | ".join(show(row.get(h, "-")) for h in heads) + " |")
    return lines


def figures(results):
    """What the goals are about, by name: (figure, value)."""
    found = {}
    for step in results["steps"]:
        name = step["name"]
        for row in step["rows"]:
            value, limit = row.get("value"), row.get("limit")
            if name.startswith("offline") and row.get("name") == "offline, prompts and answers" and limit:
                found[(name, "of_limit")] = value / limit
            elif name.startswith("offline") and row.get("name") == "offline, answers":
                found[(name, "answers")] = value
            elif name.startswith("co-serving") and "gain" in str(row.get("name")) and value:
                found[("co-serving gain", "value")] = max(
                    value, found.get(("co-serving gain", "value"), 0))
            elif name == "product, tuned" and row.get("shape") == "8b" and row.get("t") == "serve":
                if row["sequences"] == 1 and row["rows"] == 1 and row["context"] == 512:
                    found[("decode 1", "of_copy")] = row["of_copy"]
            elif name == "product, tuned" and row.get("t") == "attention":
                found[("decode attention", "of_copy")] = max(
                    row["of_copy"], found.get(("decode attention", "of_copy"), 0))
            elif name == "product, tuned" and row.get("t") == "train" and row.get("shape") == "3b":
                if row["length"] == 4096:
                    found[("training 3b 4096", "of_gemm")] = row["of_gemm"]
    return found


def goals(results):
    """One row a goal: what was asked, what was measured, if it was."""
    found = figures(results)
    rows = []
    for name, figure, least, of in GOALS:
        value = found.get((name, figure))
        rows.append({"goal": name, "of": of, "asked": least, "measured": "-" if value is None else value,
                     "reached": "not measured" if value is None else value >= least})
    return rows
