# SPDX-License-Identifier: Apache-2.0
"""The steps of dev/gpu/run: their commands, and how their outputs are read and judged.

A step: name, kind (check, bench), purpose, command, env, files (that must exist), limit and expected
seconds, read (turns its output into rows), optional (not a failure where it cannot run), part
(1, 2: which half of the plan; 3: cuDNN, a run of its own), extra (run only on request).

The same steps exist in two sizes: FULL, for one GPU of 140 GB, and TRIAL, the same commands on the CPU with a
shape of two thin layers, which proves that each runs and its output is readable, and measures nothing.
"""
import json
import os
import re

import libraries

PROMPTS = ["Where does Zorin live?", "Tell me about Tarn."]


class FULL:
    """Sizes for one H200."""
    trial, device, opcheck = False, "cuda", ["--backend=cuda"]
    ways = ("turns", "green", "grid")  # ways of sharing the device
    big, middle, small = "8b", "3b", "1b"
    prompts, golden, mixing, resume = PROMPTS, None, "600", []
    # Beside two versions, gradients, moments and residuals, little more than these 32e9 bytes is left.
    beside = ["--kv-memory", "30600M", "--context", "4096", "--train-quantum", "100"]
    offline = {"512/512": (512, 512, 768, 26), "1024/512": (1024, 512, 512, 27),
               "1000/1000": (1000, 1000, 448, 28)}
    offline_memory, offline_rows, offline_seconds = "100G", "2048", "6"
    long = ("8b-long", "131072", "512")  # shape, context, running requests
    swap = ["--kv-memory", "8G", "--context", "4096"]
    coserve = ["--kv-memory", "8G", "--context", "4096", "--concurrency", "64", "--input-len", "256",
               "--output-len", "48", "--micro-rows", "1024", "--train-quantum", "100", "--seconds", "2",
               "--slo", "ttft=500ms,itl=40ms"]
    train_cores = "68"
    lanes, fp8 = [], []
    shares = "0 32"
    plans = ["--seconds", "20", "512,768,512,0", "448,1500,448,0", "64,1024,0,1024"]
    decodes = ["--seconds", "0", "--repeat", "31", "64,1024,0,0"]
    search = ["--no-train", "--max-running", "256", "--step-rows", "512", "--tries", "20", "--seconds", "200"]


class TRIAL:
    """Sizes for any machine."""
    trial, device, opcheck = True, "cpu", ["--backend=cpu", "--op=rmsnorm"]
    ways = ("turns", "green")
    big = middle = small = "tiny"
    prompts, golden, mixing = PROMPTS[:1], 1, "60"
    resume = ["--device", "cpu", "--passes", "1", "--replay-ratio", "0", "--update-tokens", "256",
              "--micro-rows", "128"]
    beside = ["--kv-memory", "8M", "--context", "640", "--train-quantum", "100"]
    offline = {"512/512": (32, 32, 8, 5), "1024/512": (64, 32, 8, 5), "1000/1000": (60, 60, 8, 5)}
    offline_memory, offline_rows, offline_seconds = "8M", "64", "0.5"
    long = ("tiny-long", "4096", "8")
    swap = ["--kv-memory", "8M", "--context", "512"]
    coserve = ["--kv-memory", "8M", "--context", "512", "--concurrency", "4", "--input-len", "16",
               "--output-len", "8", "--micro-rows", "128", "--train-quantum", "100", "--seconds", "0.5",
               "--slo", "ttft=500ms,itl=40ms"]
    train_cores = "1"
    lanes, fp8 = ["8", "32", "64"], ["32", "1", "8"]
    shares = "0 1"
    plans = ["--seconds", "2", "--repeat", "3", "8,32,16,0", "8,60,16,0", "4,32,0,64"]
    decodes = ["--seconds", "0", "--repeat", "3", "8,32,0,0"]
    search = ["--no-train", "--max-running", "2", "--step-rows", "8", "--tries", "1", "--seconds", "2"]


# ---- reading the programs' output ----

def json_lines(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def bench_figures(out):
    """Reads hzpserve bench --json: one row per figure."""
    at = out.find("{")
    if at < 0:
        return []
    return [f for f in json.loads(out[at:])["figures"] if "name" in f]


def eval_rows(out):
    """Reads hzpserve eval --json, one object after another."""
    rows, at, decoder = [], 0, json.JSONDecoder()
    while (at := out.find("{", at)) >= 0:
        row, at = decoder.raw_decode(out, at)
        rows.append({k: v for k, v in row.items() if not isinstance(v, (list, dict))})
    return rows


def opcheck_rows(out):
    """Reads opcheck --bench: its lines of columns, unchanged."""
    return [{"line": line} for line in out.splitlines() if re.search(r"GB/s|GFLOP", line)]


def last_line(out):
    lines = [line for line in out.splitlines() if line.strip()]
    return [{"said": lines[-1]}] if lines else []


READERS = {"json": json_lines, "bench": bench_figures, "eval": eval_rows, "opcheck": opcheck_rows,
           "last": last_line, "none": lambda out: []}
HUNG = 124


def judge(step, rc, out, err):
    """Returns verdict, rows and the text to show."""
    rows, broken = [], False
    try:
        rows = READERS[step.get("read", "none")](out)
    except (ValueError, KeyError, TypeError) as error:
        broken = rc == 0
        err += f"\nits output is not understood: {error}"
    failed = broken or rc not in (0, 77) or bool(re.search(r"^FAIL", out, re.M))
    if "same" in step and not failed:
        failed = not step["same"](out)
    if step["kind"] == "bench" and rc == 0 and step.get("read", "none") != "none" and not rows:
        failed, err = True, err + "\nit measured nothing"
    verdict = "hung" if rc == HUNG else "skipped" if rc == 77 else "failed" if failed else "ok"
    said = out[-3000:] if step["kind"] == "bench" and not rows else out[-600:]
    if failed or not out.strip():
        said = (said + "\n" + err[-1500:]).strip()
    return {"verdict": verdict, "rows": rows, "said": said}


# ---- commands ----

def greedy(folder, size):
    """The same greedy text on the CPU and on the device: with graphs and without, on every kind of lanes.
    The script prints one line per variant; all must equal the CPU's text."""
    script = """
set -u
fail=0
for dtype in f32 bf16; do
  n=0
  while read -r prompt; do
    n=$((n+1))
    want=$("$1" complete "$2" "$prompt" --device cpu --dtype $dtype --temperature 0 --max-tokens 48 2>/dev/null)
    for variant in "HZP_GRAPHS=1" "HZP_GRAPHS=0" "HZP_CUDA_LANES=grid" "HZP_CUDA_TUNE=0" "HZP_CUDA_EARLY=0" "HZP_CUDA_FUSE=0"; do
      got=$(env $variant "$1" complete "$2" "$prompt" --device "$3" --dtype $dtype --temperature 0 --max-tokens 48)
      if [ -n "$want" ] && [ "$got" = "$want" ]; then echo "same $dtype $n $variant"
      else echo "FAIL $dtype $n $variant: '$got' is not '$want'"; fail=1; fi
    done
  done <<'END'
PROMPTS
END
done
exit $fail
""".replace("PROMPTS", "\n".join(size.prompts))
    return ["bash", "-c", script, "greedy", folder + "/hzpserve", folder + "/world", size.device]


def engine(folder, size, what, shape, *options):
    return [folder + "/hzpserve", "bench", what, f"{folder}/shapes/{shape}", "--device", size.device,
            "--json", "--log-level", "warn", *options]


def noise(**more):
    return {"HZP_NOISE": "1", **more}


def checks(folder, size):
    def p(name):
        return f"{folder}/{name}"
    golden = sorted(p("golden/" + d) for d in (os.listdir(p("golden")) if os.path.isdir(p("golden")) else []))
    yield {"name": "devices", "what": "the device opens", "command": [p("hzpserve"), "devices"],
           "limit": 30, "expect": 2, "same": lambda out: " SMs" in out or size.trial and "cpu" in out}
    yield {"name": "conform", "what": "memory, lanes, copies and fences", "command": [p("test_device")],
           "limit": 60, "expect": 5}
    yield {"name": "opcheck", "what": "every op against the reference",
           "command": [p("opcheck"), *size.opcheck], "limit": 90, "expect": 12, "read": "last"}
    yield {"name": "opcheck, grid lanes", "what": "attention on lanes limited to 48 SMs by their grids",
           "command": [p("opcheck"), "--quiet", "--share=48", *size.opcheck[:1],
                       *(size.opcheck[1:] or ["--op=*attn*"])],
           "env": {"HZP_CUDA_LANES": "grid"}, "limit": 45, "expect": 5, "read": "last"}
    for op in ("attn_packed", "attn_prefill"):
        yield {"name": f"opcheck, cuDNN, {op}", "what": "the op by cuDNN against the reference; gradients, whose bits "
               "do not repeat, are compared with ours in the step cudnn attention",
               "command": [p("opcheck"), "--quiet", *size.opcheck[:1], "--op=" + op],
               "env": {"HZP_CUDA_ATTENTION": "cudnn"}, "limit": 90, "expect": 45, "read": "last", "part": 3}
    yield {"name": "opcheck, loads by threads", "what": "decode attention without the tensor copy engine",
           "command": [p("opcheck"), "--quiet", *size.opcheck[:1], *(size.opcheck[1:] or ["--op=attn_decode"])],
           "env": {"HZP_CUDA_BULK": "0"}, "limit": 45, "expect": 2, "read": "last"}
    yield {"name": "golden", "what": "logits, losses, gradients, ten updates against PyTorch's numbers",
           "command": [p("test_golden"), size.device] + golden[:size.golden], "limit": 60, "expect": 4,
           "read": "last"}
    yield {"name": "greedy equality", "what": "the same text as on the CPU, with and without graphs",
           "command": greedy(folder, size), "files": [p("hzpserve"), p("world/config.json")], "limit": 90,
           "expect": 25, "read": "last"}
    for shape in ("sequential", "overlapped"):
        yield {"name": f"no mixing, {shape}", "what": "no step reads two versions",
               "command": [p("test_no_mixing"), size.device, shape, size.mixing], "limit": 45, "expect": 6,
               "read": "last"}
    yield {"name": "resume", "what": "killed, started again: the same answers; ended by SIGTERM: 0",
           "command": ["python3", p("run_life.py"), p("hzpserve"), p("world"), p("demo/teach.jsonl"),
                       *size.resume],
           "files": [p("run_life.py"), p("demo/teach.jsonl")], "limit": 60, "expect": 12, "read": "json"}
    yield {"name": "two ranks", "what": "two ranks on one device, by NCCL over sockets: the losses of one rank, and "
           "a trace of both; skipped where there is no NCCL",
           "command": ["python3", p("run_ranks.py"), p("hzpserve"), p("world"), p("demo/teach.jsonl"), size.device],
           "files": [p("run_ranks.py"), p("demo/teach.jsonl")], "limit": 90, "expect": 12, "read": "json",
           "optional": True}
    for tool, what in (("memcheck", "reads and writes out of bounds, leaks aside"),
                       ("racecheck", "races in shared memory")):
        sanitizer = libraries.sanitizer()
        yield {"name": f"sanitizer, {tool}", "what": f"a small step and a training update: {what}",
               "command": [sanitizer or "compute-sanitizer", "--tool", tool, "--error-exitcode", "9",
                           p("product"), "--once", size.device, "tiny"], "files": [p("product")],
               "limit": 60 if tool == "memcheck" else 90, "expect": 20, "read": "last", "optional": True,
               "extra": tool != "memcheck"}


def serving(folder, size):
    """The goals of serving and of training alone."""
    def p(name):
        return f"{folder}/{name}"
    shapes = ["tiny"] if size.trial else [size.big, size.middle]
    yield {"name": "product", "what": "steps as the server builds them: decode, prefill, training by shape",
           "command": [p("product"), *(["--once"] if size.trial else []), size.device, *shapes],
           "limit": 100, "expect": 28, "read": "json"}
    yield {"name": "serve", "what": "one request alone, a prompt, several: through the whole engine",
           "command": engine(folder, size, "serve", size.big, "--quick", "--kv-memory",
                             size.swap[1], "--context", size.swap[3]),
           "env": noise(), "limit": 45, "expect": 10, "read": "bench"}
    for load, (prompt, answer, running, seconds) in size.offline.items():
        yield {"name": f"offline {load}",
               "what": "tokens a second when only throughput counts, in a window of a load without end",
               "command": engine(folder, size, "offline", size.big, "--steady", size.offline_seconds,
                                 "--input-len", str(prompt), "--output-len", str(answer), "--max-running",
                                 str(running), "--step-rows", size.offline_rows, "--prefill-rows",
                                 size.offline_rows, "--kv-memory", size.offline_memory, "--max-waiting",
                                 "2048", "--max-waiting-tokens", "16777216"),
               "env": noise(), "limit": 55, "expect": seconds, "read": "bench"}
    prompt, answer, running, seconds = size.offline["512/512"]
    yield {"name": "offline, drawn",
           "what": "the load of 512/512 at a temperature, with top_p: beside it, what drawing costs",
           "command": engine(folder, size, "offline", size.big, "--steady", size.offline_seconds,
                             "--temperature", "0.8", "--top-p", "0.95", "--input-len", str(prompt),
                             "--output-len", str(answer), "--max-running", str(running), "--step-rows",
                             size.offline_rows, "--prefill-rows", size.offline_rows, "--kv-memory",
                             size.offline_memory, "--max-waiting", "2048", "--max-waiting-tokens", "16777216"),
           "env": noise(), "limit": 55, "expect": seconds, "read": "bench", "part": 2, "extra": True}
    shape, context, running = size.long
    prompt, answer = size.offline["512/512"][:2]
    yield {"name": "offline, long context",
           "what": "the load of 512/512 with a page table for many times the positions: beside it, what the "
                   "table costs",
           "command": engine(folder, size, "offline", shape, "--steady", size.offline_seconds, "--input-len",
                             str(prompt), "--output-len", str(answer), "--max-running", running,
                             "--context", context, "--step-rows", size.offline_rows, "--prefill-rows",
                             size.offline_rows, "--kv-memory", size.offline_memory, "--max-waiting", "2048",
                             "--max-waiting-tokens", "16777216"),
           "env": noise(), "limit": 55, "expect": 26, "read": "bench", "part": 2}
    yield {"name": "8b beside KV", "what": "full fine-tuning with bf16 moments in a server's memory, two "
           "versions and 32 GB of KV: planned, taken, updates run",
           "command": engine(folder, size, "train", size.big, "--quick", "--moments", "bf16", *size.beside),
           "env": noise(), "limit": 60, "expect": 18, "read": "bench"}


def sharing(folder, size):
    """Training and serving on one device."""
    def p(name):
        return f"{folder}/{name}"
    yield {"name": "swap", "what": "inter-token latencies with 0, 1 and 10 swaps a second, and at swaps",
           "command": engine(folder, size, "swap", size.big, "--quick", *size.swap),
           "env": noise(), "limit": 50, "expect": 18, "read": "bench", "part": 2}
    for lanes in size.ways:
        cores = [] if lanes == "turns" else ["--train-cores", size.train_cores]
        yield {"name": f"co-serving, {lanes}",
               "what": "gain at half load with goals; time slicing beside it. " +
                       ("Training takes turns with requests" if lanes == "turns" else
                        f"Training has lanes of its own, limited by {lanes}"),
               "command": engine(folder, size, "coserve", size.big, "--quick", "--moments", "bf16",
                                 *size.coserve, *cores),
               "env": noise(**({} if lanes == "turns" else {"HZP_CUDA_LANES": lanes})),
               "limit": 55, "expect": 27, "read": "bench", "part": 2}
    for lanes in ("green", "grid"):
        yield {"name": f"R to P, {lanes}",
               "what": "decode attention and training's products by share of the SMs, alone and together",
               "command": [p("lanes"), size.device, p("shapes/" + size.big), *size.lanes],
               "env": {"HZP_CUDA_LANES": lanes}, "limit": 45, "expect": 9, "read": "json", "part": 2}
    yield {"name": "plans", "what": "steps by the sequential plan, nano-batches alone, an overlap drawn by "
           "hand, the plan searched", "command": [p("plans"), size.device, p("shapes/" + size.big), *size.plans],
           "limit": 90, "expect": 48, "read": "json", "part": 2}
    script = """set -o pipefail
fail=0
for form in lanes whole; do
  HZP_CUDA_GRAPHS=$form "$@" | sed 's/^{/{"form":"'$form'",/' || fail=1
done; exit $fail
"""
    yield {"name": "graphs of lanes", "what": "a decode step over two green lanes whose graphs are each of one lane, "
           "ordered by events (lanes), and as one graph (whole)", "read": "json", "limit": 60, "expect": 14,
           "command": ["bash", "-c", script, "forms", p("plans"), size.device, p("shapes/" + size.middle),
                       *size.decodes], "part": 2}


def others(folder, size):
    def p(name):
        return f"{folder}/{name}"
    line = '"$@" 2>&1 >/dev/null | grep "memory driver" || echo "none: not a GPU"'
    yield {"name": "driver memory",
           "what": "what the driver takes for partitions of the SMs and for graphs, and what is free then",
           "command": ["bash", "-c", line, "plan",
                       *engine(folder, size, "serve", size.big, "--quick", "--kv-memory", size.swap[1],
                               "--context", size.swap[3], "--log-level", "info")],
           "env": noise(), "limit": 45, "expect": 10, "read": "last", "part": 2}
    yield {"name": "fp8, steps", "what": "decode steps with e4m3 projections beside bf16, and their logits",
           "command": [p("fp8"), size.device, p("shapes/" + size.big), *size.fp8], "limit": 45,
           "expect": 10, "read": "json", "part": 2}
    yield {"name": "fp8, serve", "what": "one request alone, several, with --quantization fp8",
           "command": engine(folder, size, "serve", size.big, "--quick", "--quantization", "fp8",
                             "--kv-memory", size.swap[1], "--context", size.swap[3]),
           "env": noise(), "limit": 45, "expect": 10, "read": "bench", "part": 2}
    evaluate = 'for q in none fp8; do "$1" eval "$2" --data "$3" --device "$4" --json --quantization $q || exit; done'
    yield {"name": "fp8, trained", "what": "the trained model's loss on held-out text in bf16, then in fp8",
           "command": ["bash", "-c", evaluate, "eval", p("hzpserve"), p("world"), p("demo/heldout.jsonl"),
                       size.device],
           "files": [p("hzpserve"), p("demo/heldout.jsonl")], "limit": 30, "expect": 4, "read": "eval",
           "part": 2}
    yield {"name": "product, op by op", "what": "decode steps without graphs",
           "command": [p("product"), "--decode", *(["--once"] if size.trial else []), size.device,
                       size.big], "env": {"HZP_GRAPHS": "0"}, "limit": 45, "expect": 12, "read": "json",
           "part": 2}
    yield {"name": "product, each kernel after the other", "what": "decode steps whose kernels begin only once "
           "the one before has ended; the difference to \"product\" is what beginning early gives",
           "command": [p("product"), "--decode", *(["--once"] if size.trial else []), size.device, size.big],
           "env": {"HZP_CUDA_EARLY": "0"}, "limit": 45, "expect": 12, "read": "json", "part": 2,
           "extra": True}
    yield {"name": "product, norms and SwiGLU alone", "what": "decode steps of few rows with more kernels; the "
           "difference to \"product\" is what having them in the products gives",
           "command": [p("product"), "--decode", *(["--once"] if size.trial else []), size.device, size.big],
           "env": {"HZP_CUDA_FUSE": "0"}, "limit": 45, "expect": 12, "read": "json", "part": 2,
           "extra": True}
    yield {"name": "cudnn attention", "what": "prefill and training attention, ours and cuDNN's, by length; "
           "skipped where there is no cuDNN", "command": [p("cudnn_attention")], "limit": 90,
           "expect": 60, "read": "json", "optional": True, "part": 3}
    yield {"name": "opcheck --bench", "what": "the rate of attention of prompts and of training", "read": "opcheck",
           "limit": 45, "command": [p("opcheck"), *size.opcheck[:1], "--bench",
                                    *(size.opcheck[1:] or ["--op=attn_p*"])],
           "expect": 9, "part": 2}
    script = """set -o pipefail
opcheck=$1; shift
fail=0
for bulk in 1 0; do for share in SHARES; do
  HZP_CUDA_BULK=$bulk "$opcheck" --bench --share=$share "$@" | sed "s/^/engine $bulk, $share SMs: /" || fail=1
done; done; exit $fail
""".replace("SHARES", size.shares)
    yield {"name": "decode attention, two kernels", "what": "its rate with keys and values fetched by the tensor "
           "copy engine (1) and by threads (0), on shares of the SMs (0: all)", "read": "opcheck", "limit": 60,
           "command": ["bash", "-c", script, "rates", p("opcheck"), *size.opcheck[:1],
                       *(size.opcheck[1:] or ["--op=attn_decode"])],
           "env": {"HZP_CUDA_LANES": "grid"}, "expect": 6, "part": 2}
    yield {"name": "opcheck --bench, column sums", "what": "the norm's backward with and without the weight's "
           "gradient; the difference is the column sums", "read": "opcheck", "limit": 30,
           "command": [p("opcheck"), *size.opcheck[:1], "--bench",
                       *(size.opcheck[1:] or ["--op=rmsnorm_bwd"])], "expect": 5, "part": 2, "extra": True}
    yield {"name": "search", "what": "the whole search: ops alone and in pairs by share, and the plan found "
           "for each load", "command": [p("hzpserve"), "search", p("shapes/" + size.big), "--device",
                                        size.device, "--max-others", "1", *size.search],
           "env": noise(), "limit": 400, "expect": 300, "optional": True, "part": 2, "extra": True}
    yield {"name": "opcheck --bench, all", "what": "each op's rate", "read": "opcheck", "limit": 90,
           "command": [p("opcheck"), *size.opcheck, "--bench"], "expect": 45, "part": 2, "extra": True}


def steps(folder, part=None, extra=False, size=FULL):
    """The steps of one part (None: 1 and 2, with extra all) in the order of execution: the most decisive come
    first."""
    made = []
    for kind, which in (("check", checks), ("bench", serving), ("bench", sharing), ("bench", others)):
        for step in which(folder, size):
            step["kind"] = kind
            step.setdefault("part", 1)
            if size.trial:
                step["limit"] *= 30  # a machine shared with other work
            wanted = (part,) if part else (1, 2, 3) if extra else (1, 2)
            if (extra or not step.get("extra")) and step["part"] in wanted:
                made.append(step)
    return made
