# SPDX-License-Identifier: Apache-2.0
"""The steps of dev/gpu/run: their commands, and how their outputs are read and judged.

A step: part, name, kind (check, bench), purpose, command, env, files (that must exist), expected seconds, read
(turns its output into rows), optional (not a failure where it cannot run), extra (run only on request),
fallbacks_allowed (it asks for shapes that the device is not built for, so slower ways are no fault).
Programs log to standard error.
Part 1 is the checks, memory, ceilings, attention and steps of the 8B shape; 2 cuDNN beside our attention, plans,
lanes and steps in fp8; 3 offline loads, what there is for fp8, decode attention by share, co-serving, swaps.

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
    shares = "0 64 48 32"
    ceiling = []
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
    ceiling = ["256", "1"]
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


def slower_ways(err):
    """The lines of device/fallback.h in a step's log: each kind, shape and reason once, with its number of lines."""
    found = {}
    for line in re.findall(r"fallback kind=(\S+) shape=(\S+): (.*)", err):
        found[line] = found.get(line, 0) + 1
    return [{"kind": kind, "shape": shape, "reason": reason.rstrip(), "lines": n}
            for (kind, shape, reason), n in found.items()]


READERS = {"json": json_lines, "bench": bench_figures, "eval": eval_rows, "opcheck": opcheck_rows,
           "last": last_line, "none": lambda out: []}
HUNG = 124


def judge(step, rc, out, err):
    """Returns verdict, rows, the slower ways that were taken, and the text to show."""
    rows, broken = [], False
    slower = [] if step.get("fallbacks_allowed") else slower_ways(err)
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
    return {"verdict": verdict, "rows": rows, "fallbacks": slower, "said": said}


# ---- commands ----

def greedy(folder, size):
    """The same greedy text on the CPU and on the device: with graphs and without, on every kind of lanes.
    The script prints one line per variant; all must equal the CPU's text.  Attention in F32 is for comparing: that
    it has no kernel of its own is no slower way."""
    script = """
set -u
fail=0
declare -A allowed=([f32]=attention [bf16]=none)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for dtype in f32 bf16; do
  n=0
  while read -r prompt; do
    n=$((n+1))
    want=$("$1" complete "$2" "$prompt" --device cpu --dtype $dtype --temperature 0 --max-tokens 48 2>/dev/null)
    for variant in "HZP_GRAPHS=1" "HZP_GRAPHS=0" "HZP_CUDA_LANES=grid" "HZP_CUDA_TUNE=0" "HZP_CUDA_EARLY=0" "HZP_CUDA_FUSE=0"; do
      got=$(env $variant "$1" complete "$2" "$prompt" --device "$3" --dtype $dtype --temperature 0 --max-tokens 48 2>"$log")
      grep -v "fallback kind=${allowed[$dtype]} " "$log" >&2
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
           "expect": 2, "same": lambda out: " SMs" in out or size.trial and "cpu" in out}
    yield {"name": "conform", "what": "memory, lanes, copies and fences", "command": [p("test_device")],
           "expect": 5, "fallbacks_allowed": True}
    yield {"name": "opcheck", "what": "every op against the reference",
           "command": [p("opcheck"), *size.opcheck], "expect": 12, "read": "last"}
    yield {"name": "opcheck, grid lanes", "what": "attention on lanes limited to 48 SMs by their grids",
           "command": [p("opcheck"), "--quiet", "--share=48", *size.opcheck[:1],
                       *(size.opcheck[1:] or ["--op=*attn*"])],
           "env": {"HZP_CUDA_LANES": "grid"}, "expect": 5, "read": "last"}
    for op in ("attn_packed", "attn_prefill"):
        yield {"part": 2, "name": f"opcheck, cuDNN, {op}", "what": "the op by cuDNN against the reference; gradients, whose bits "
               "do not repeat, are compared with ours in the step cudnn attention",
               "command": [p("opcheck"), "--quiet", *size.opcheck[:1], "--op=" + op],
               "env": {"HZP_CUDA_ATTENTION": "cudnn"}, "expect": 45, "read": "last"}
    yield {"name": "opcheck, loads by threads", "what": "decode attention without the tensor copy engine",
           "command": [p("opcheck"), "--quiet", *size.opcheck[:1], *(size.opcheck[1:] or ["--op=attn_decode"])],
           "env": {"HZP_CUDA_BULK": "0"}, "expect": 2, "read": "last"}
    yield {"name": "golden", "what": "logits, losses, gradients, ten updates against PyTorch's numbers",
           "command": [p("test_golden"), size.device] + golden[:size.golden], "expect": 4,
           "read": "last", "fallbacks_allowed": True}
    yield {"name": "greedy equality", "what": "the same text as on the CPU, with and without graphs",
           "command": greedy(folder, size), "files": [p("hzpserve"), p("world/config.json")], "expect": 25, "read": "last"}
    for shape in ("sequential", "overlapped"):
        yield {"name": f"no mixing, {shape}", "what": "no step reads two versions",
               "command": [p("test_no_mixing"), size.device, shape, size.mixing], "expect": 6,
               "read": "last", "fallbacks_allowed": True}
    yield {"name": "resume", "what": "killed, started again: the same answers; ended by SIGTERM: 0",
           "command": ["python3", p("run_life.py"), p("hzpserve"), p("world"), p("demo/teach.jsonl"),
                       *size.resume],
           "files": [p("run_life.py"), p("demo/teach.jsonl")], "expect": 12, "read": "json"}
    yield {"name": "two ranks", "what": "two ranks on one device, by NCCL over sockets: the losses of one rank, and "
           "a trace of both; skipped where there is no NCCL",
           "command": ["python3", p("run_ranks.py"), p("hzpserve"), p("world"), p("demo/teach.jsonl"), size.device],
           "files": [p("run_ranks.py"), p("demo/teach.jsonl")], "expect": 12, "read": "json",
           "optional": True}
    for tool, what in (("memcheck", "reads and writes out of bounds, leaks aside"),
                       ("racecheck", "races in shared memory")):
        sanitizer = libraries.sanitizer()
        yield {"name": f"sanitizer, {tool}", "what": f"a small step and a training update: {what}",
               "command": [sanitizer or "compute-sanitizer", "--tool", tool, "--error-exitcode", "9",
                           p("product"), "--once", size.device, "tiny"], "files": [p("product")],
               "expect": 20, "read": "last", "optional": True,
               "extra": tool != "memcheck"}


def serving(folder, size):
    """The goals of serving and of training alone."""
    def p(name):
        return f"{folder}/{name}"
    shapes = ["tiny"] if size.trial else [size.big, size.middle]
    yield {"part": 1, "name": "ceiling", "what": "the bf16 product in a burst, and sustained under the power limit: the "
           "goals are shares of the second", "command": [p("ceiling"), size.device, *size.ceiling],
           "expect": 9, "read": "json"}
    yield {"part": 1, "name": "ops", "what": "each op of the big shape alone, beside the limit that binds it",
           "command": engine(folder, size, "ops", size.big, "--quick"), "env": noise(), "expect": 15, "read": "bench"}
    yield {"part": 1, "name": "product", "what": "steps as the server builds them: decode, prefill, training by shape",
           "command": [p("product"), *(["--once"] if size.trial else []), size.device, *shapes],
           "expect": 28, "read": "json"}
    yield {"part": 1, "name": "serve", "what": "one request alone, a prompt, several: through the whole engine",
           "command": engine(folder, size, "serve", size.big, "--quick", "--kv-memory",
                             size.swap[1], "--context", size.swap[3]),
           "env": noise(), "expect": 10, "read": "bench"}
    for load, (prompt, answer, running, seconds) in size.offline.items():
        yield {"part": 3, "name": f"offline {load}",
               "what": "tokens a second when only throughput counts, in a window of a load without end",
               "command": engine(folder, size, "offline", size.big, "--steady", size.offline_seconds,
                                 "--input-len", str(prompt), "--output-len", str(answer), "--max-running",
                                 str(running), "--step-rows", size.offline_rows, "--prefill-rows",
                                 size.offline_rows, "--kv-memory", size.offline_memory, "--max-waiting",
                                 "2048", "--max-waiting-tokens", "16777216"),
               "env": noise(), "expect": seconds, "read": "bench"}
    prompt, answer, running, seconds = size.offline["1000/1000"]
    yield {"part": 3, "name": "offline, fp8",
           "what": "the load of 1000/1000 with weights and KV cache in fp8",
           "command": engine(folder, size, "offline", size.big, "--steady", size.offline_seconds,
                             "--quantization", "fp8", "--kv-cache-dtype", "fp8", "--input-len", str(prompt),
                             "--output-len", str(answer), "--max-running", str(running * 2), "--step-rows",
                             size.offline_rows, "--prefill-rows", size.offline_rows, "--kv-memory",
                             size.offline_memory, "--max-waiting", "2048", "--max-waiting-tokens", "16777216"),
           "env": noise(), "expect": seconds, "read": "bench"}
    prompt, answer, running, seconds = size.offline["512/512"]
    yield {"part": 3, "name": "offline, drawn",
           "what": "the load of 512/512 at a temperature, with top_p: beside it, what drawing costs",
           "command": engine(folder, size, "offline", size.big, "--steady", size.offline_seconds,
                             "--temperature", "0.8", "--top-p", "0.95", "--input-len", str(prompt),
                             "--output-len", str(answer), "--max-running", str(running), "--step-rows",
                             size.offline_rows, "--prefill-rows", size.offline_rows, "--kv-memory",
                             size.offline_memory, "--max-waiting", "2048", "--max-waiting-tokens", "16777216"),
           "env": noise(), "expect": seconds, "read": "bench"}
    shape, context, running = size.long
    prompt, answer = size.offline["512/512"][:2]
    yield {"part": 3, "extra": True, "name": "offline, long context",
           "what": "the load of 512/512 with a page table for many times the positions: beside it, what the "
                   "table costs",
           "command": engine(folder, size, "offline", shape, "--steady", size.offline_seconds, "--input-len",
                             str(prompt), "--output-len", str(answer), "--max-running", running,
                             "--context", context, "--step-rows", size.offline_rows, "--prefill-rows",
                             size.offline_rows, "--kv-memory", size.offline_memory, "--max-waiting", "2048",
                             "--max-waiting-tokens", "16777216"),
           "env": noise(), "expect": 26, "read": "bench"}
    yield {"part": 3, "name": "8b beside KV", "what": "full fine-tuning with bf16 moments in a server's memory, two "
           "versions and 32 GB of KV: planned, taken, updates run",
           "command": engine(folder, size, "train", size.big, "--quick", "--moments", "bf16", *size.beside),
           "env": noise(), "expect": 18, "read": "bench"}


def sharing(folder, size):
    """Training and serving on one device."""
    def p(name):
        return f"{folder}/{name}"
    yield {"part": 3, "name": "swap", "what": "inter-token latencies with 0, 1 and 10 swaps a second, and at swaps",
           "command": engine(folder, size, "swap", size.big, "--quick", *size.swap),
           "env": noise(), "expect": 18, "read": "bench"}
    for lanes in size.ways:
        cores = [] if lanes == "turns" else ["--train-cores", size.train_cores]
        yield {"part": 2 if lanes == "grid" else 3, "name": f"co-serving, {lanes}",
               "what": "gain at half load with goals; time slicing beside it. " +
                       ("Training takes turns with requests" if lanes == "turns" else
                        f"Training has lanes of its own, limited by {lanes}"),
               "command": engine(folder, size, "coserve", size.big, "--quick", "--moments", "bf16",
                                 *size.coserve, *cores),
               "env": noise(**({} if lanes == "turns" else {"HZP_CUDA_LANES": lanes})),
               "expect": 27, "read": "bench"}
    for lanes in ("green", "grid"):
        yield {"part": 2, "extra": lanes == "grid", "name": f"R to P, {lanes}",
               "what": "decode attention and training's products by share of the SMs, alone and together",
               "command": [p("lanes"), size.device, p("shapes/" + size.big), *size.lanes],
               "env": {"HZP_CUDA_LANES": lanes}, "expect": 9, "read": "json"}
    yield {"part": 2, "name": "plans", "what": "steps by the sequential plan, nano-batches alone, an overlap drawn by "
           "hand, the plan searched", "command": [p("plans"), size.device, p("shapes/" + size.big), *size.plans],
           "expect": 48, "read": "json"}
    script = """set -o pipefail
fail=0
for form in lanes whole; do
  HZP_CUDA_GRAPHS=$form "$@" | sed 's/^{/{"form":"'$form'",/' || fail=1
done; exit $fail
"""
    yield {"part": 2, "name": "graphs of lanes", "what": "a decode step over two green lanes whose graphs are each of one lane, "
           "ordered by events (lanes), and as one graph (whole)", "read": "json", "expect": 14,
           "command": ["bash", "-c", script, "forms", p("plans"), size.device, p("shapes/" + size.middle),
                       *size.decodes]}


def others(folder, size):
    def p(name):
        return f"{folder}/{name}"
    line = """said=$("$@" 2>&1 >/dev/null)
status=$?
printf '%s\\n' "$said" >&2
printf '%s\\n' "$said" | grep "memory driver" || NONE
exit $status
""".replace("NONE", 'echo "none: not a GPU"' if size.trial else 'exit 1')
    yield {"part": 1, "name": "driver memory",
           "what": "what the driver takes for partitions of the SMs and for graphs, and what is free then",
           "command": ["bash", "-c", line, "plan",
                       *engine(folder, size, "serve", size.big, "--quick", "--kv-memory", size.swap[1],
                               "--context", size.swap[3], "--log-level", "info")],
           "env": noise(), "expect": 10, "read": "last"}
    yield {"part": 3, "name": "fp8, offers", "what": "how many algorithms cuBLASLt has for each product of e4m3, by rows, "
           "output and way of adding up, and the best one's time; skipped where there is no GPU",
           "command": [p("fp8_offers")], "expect": 6, "read": "json", "optional": True}
    yield {"part": 2, "name": "fp8, steps", "what": "decode steps with e4m3 projections beside bf16, and their logits",
           "command": [p("fp8"), size.device, p("shapes/" + size.big), *size.fp8], "expect": 10, "read": "json"}
    yield {"part": 3, "name": "fp8, serve", "what": "one request alone, several, with --quantization fp8",
           "command": engine(folder, size, "serve", size.big, "--quick", "--quantization", "fp8",
                             "--kv-memory", size.swap[1], "--context", size.swap[3]),
           "env": noise(), "expect": 10, "read": "bench"}
    evaluate = 'for q in none fp8; do "$1" eval "$2" --data "$3" --device "$4" --json --quantization $q || exit; done'
    yield {"part": 1, "name": "fp8, trained", "what": "the trained model's loss on held-out text in bf16, then in fp8",
           "command": ["bash", "-c", evaluate, "eval", p("hzpserve"), p("world"), p("demo/heldout.jsonl"),
                       size.device],
           "files": [p("hzpserve"), p("demo/heldout.jsonl")], "expect": 4, "read": "eval"}
    yield {"part": 1, "name": "product, op by op", "what": "decode steps without graphs",
           "command": [p("product"), "--decode", *(["--once"] if size.trial else []), size.device,
                       size.big], "env": {"HZP_GRAPHS": "0"}, "expect": 12, "read": "json"}
    yield {"part": 1, "name": "product, each kernel after the other", "what": "decode steps whose kernels begin only once "
           "the one before has ended; the difference to \"product\" is what beginning early gives",
           "command": [p("product"), "--decode", *(["--once"] if size.trial else []), size.device, size.big],
           "env": {"HZP_CUDA_EARLY": "0"}, "expect": 12, "read": "json",
           "extra": True}
    yield {"part": 1, "name": "product, norms and SwiGLU alone", "what": "decode steps of few rows with more kernels; the "
           "difference to \"product\" is what having them in the products gives",
           "command": [p("product"), "--decode", *(["--once"] if size.trial else []), size.device, size.big],
           "env": {"HZP_CUDA_FUSE": "0"}, "expect": 12, "read": "json",
           "extra": True}
    yield {"part": 2, "name": "cudnn attention", "what": "prefill and training attention, ours and cuDNN's, by length; "
           "skipped where there is no cuDNN", "command": [p("cudnn_attention")], "expect": 60, "read": "json", "optional": True}
    yield {"part": 1, "name": "opcheck --bench", "what": "the rate of attention of prompts and of training", "read": "opcheck",
           "command": [p("opcheck"), *size.opcheck[:1], "--bench",
                                    *(size.opcheck[1:] or ["--op=attn_p*"])],
           "expect": 9}
    script = """set -o pipefail
opcheck=$1; shift
fail=0
for bulk in 1 0; do for share in SHARES; do
  HZP_CUDA_BULK=$bulk "$opcheck" --bench --share=$share "$@" | sed "s/^/engine $bulk, $share SMs: /" || fail=1
done; done; exit $fail
""".replace("SHARES", size.shares)
    yield {"part": 3, "name": "decode attention, two kernels", "what": "its rate with keys and values fetched by the tensor "
           "copy engine (1) and by threads (0), on shares of the SMs (0: all)", "read": "opcheck", "command": ["bash", "-c", script, "rates", p("opcheck"), *size.opcheck[:1],
                       *(size.opcheck[1:] or ["--op=attn_decode"])],
           "env": {"HZP_CUDA_LANES": "grid"}, "expect": 12}
    yield {"part": 3, "name": "opcheck --bench, column sums", "what": "the norm's backward with and without the weight's "
           "gradient; the difference is the column sums", "read": "opcheck", "command": [p("opcheck"), *size.opcheck[:1], "--bench",
                       *(size.opcheck[1:] or ["--op=rmsnorm_bwd"])], "expect": 5, "extra": True}
    yield {"part": 2, "name": "search", "what": "the whole search: ops alone and in pairs by share, and the plan found "
           "for each load", "command": [p("hzpserve"), "search", p("shapes/" + size.big), "--device",
                                        size.device, "--max-others", "1", *size.search],
           "env": noise(), "expect": 300, "optional": True, "extra": True}
    yield {"part": 3, "name": "opcheck --bench, all", "what": "each op's rate", "read": "opcheck", "command": [p("opcheck"), *size.opcheck, "--bench"], "expect": 45, "extra": True}


PARTS = (1, 2, 3)


def limit_of(step, size):
    """Seconds after which a step is killed: twice what it is expected to take, and a start.  So a part's limits
    together fit the time that a machine is lent for, and one step that hangs costs no other its turn."""
    limit = max(15, 2 * step["expect"]) + 5
    return 30 * limit if size.trial else limit  # a trial's machine is shared with other work


def steps(folder, part=None, extra=False, size=FULL):
    """The steps of one part (None: of all, with extra those on request) in the order of execution: the most
    decisive come first."""
    made = []
    for kind, which in (("check", checks), ("bench", serving), ("bench", sharing), ("bench", others)):
        for step in which(folder, size):
            step["kind"] = kind
            step.setdefault("part", 1)
            step.setdefault("fallbacks_allowed", folder + "/opcheck" in step["command"])
            step["limit"] = limit_of(step, size)
            if (extra or not step.get("extra")) and step["part"] in ((part,) if part else PARTS):
                made.append(step)
    return sorted(made, key=lambda step: step["part"])
