# SPDX-License-Identifier: Apache-2.0
"""The steps of dev/gpu/run: their commands, and how their outputs are read and judged.

A step: part, name, kind (check, bench), purpose, command, env, files (that must exist), expected seconds, limit, need
(bytes of the device's memory), read (turns its output into rows), same (whether the output is right), optional (not a
failure where it cannot run), extra (run only on request), fallbacks: what slower ways mean (device/fallback.h), `fail`,
`warn`, or `allowed` where it asks for shapes that the device is not built for.
Programs log to standard error.  Sizes are those of run_sizes.py.

Part 1 is what tells the most in ten minutes; 2 the other checks and loads, 3 attention and plans in detail.  A step is
given four times what it is expected to take, because nothing of it is known before the first run, but no more than what
is left of the part's time, and begins only where its expected time is left.  So a part ends in time whatever its steps
do, those that come first (the most decisive) may be late at the cost of the last, and since no step's limit is more than
a third of the time, no single one that hangs takes all the others with it.
"""
import csv
import json
import os
import re

import libraries
import run_sizes


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


def profiled(out):
    """Reads ncu --csv: each kernel's launches, its median time in us and share of the memory's rate in %."""
    lines = [line for line in out.splitlines() if line.startswith('"')]
    found = {}
    for cell in csv.DictReader(lines):
        scale = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3}.get(cell["Metric Unit"], 1)
        kernel = found.setdefault(cell["Kernel Name"].split("(")[0], {})
        kernel.setdefault(cell["Metric Name"], []).append(float(cell["Metric Value"].replace(",", "")) * scale)
    rows = []
    for name, metric in found.items():
        time, share = (sorted(metric[key]) for key in ("gpu__time_duration.sum",
                                                       "dram__throughput.avg.pct_of_peak_sustained_elapsed"))
        rows.append({"t": "kernel", "kernel": name, "repeats": len(time), "us": time[len(time) // 2],
                     "memory_percent": share[len(share) // 2], "spread": round((time[-1] - time[0]) / time[len(time) // 2], 3)})
    return rows


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
           "last": last_line, "ncu": profiled, "none": lambda out: []}
HUNG = 124


def judge(step, rc, out, err):
    """Returns verdict, rows, the slower ways that were taken, and the text to show."""
    rows, broken = [], False
    slower = [] if step.get("fallbacks") == "allowed" else slower_ways(err)
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


def whole(out):
    """Whether a program that ends its lines with one that says done has come to its end."""
    lines = json_lines(out)
    return bool(lines) and lines[-1].get("done") is True


def step(name, what, command, expect, need, read, **more):
    """need: a kind of step of run_sizes.py, or bytes."""
    return {"name": name, "what": what, "command": command, "expect": expect, "need": need, "read": read, **more}


def product(folder, size, name, what, *words, expect=8, **more):
    return step(name, what, [f"{folder}/product", *words[:-1], *size.once, size.device, words[-1]], expect, "product", "json",
                **more)


def opcheck(folder, size, op, *words):
    """opcheck of some ops; on trial, of the one that a trial checks."""
    return [folder + "/opcheck", *words, *size.opcheck[:1], *(size.opcheck[1:] or ([f"--op={op}"] if op else []))]


def offline(folder, size, name, load, expect, what, *options, fp8=False, running=None, shape=None, **more):
    prompt, answer, _ = size.offline[load]
    running = running or size.running(prompt, answer, fp8)
    memory = size.kv_fp8 if fp8 else size.kv
    return step(name, what, engine(
        folder, size, "offline", shape or size.big, "--steady", size.offline_seconds, "--input-len", str(prompt),
        "--output-len", str(answer), "--max-running", str(running), "--step-rows", str(size.offline_rows),
        "--prefill-rows", str(size.offline_rows), "--kv-memory", run_sizes.mebibytes(memory), "--max-waiting",
        "2048,tokens=16777216", *(["--quantization", "fp8", "--kv-cache-dtype", "fp8"] if fp8 else []),
        *options), expect, "offline, fp8" if fp8 else "offline", "bench", env=noise(), **more)


def serve(folder, size, name, what, *options, need="serve", read="bench", **more):
    return step(name, what, engine(folder, size, "serve", size.big, "--quick", "--kv-memory",
                                   run_sizes.mebibytes(size.serve_kv), *size.context, *options),
                10, need, read, env=noise(), **more)


def coserve(folder, size, lanes):
    cores = [] if lanes == "turns" else ["--train-share", f"cores={size.train_cores}"]
    return step(f"co-serving, {lanes}", "gain at half load with goals; time slicing beside it. " +
                ("Training takes turns with requests" if lanes == "turns" else
                 f"Training has lanes of its own, limited by {lanes}"),
                engine(folder, size, "coserve", size.learn, "--quick", "--moments", "bf16", "--kv-memory",
                       run_sizes.mebibytes(size.coserve_kv), *size.context, *size.coserve, *cores), 27, "coserve", "bench",
                env=noise(**({} if lanes == "turns" else {"HZP_CUDA_LANES": lanes})))


def texts(folder, size):
    """A model of 1B without trained weights writes the same text in graphs, op by op and with kernels one after the
    other; its vocabulary is the small tokenizer's, so that every token is text."""
    script = """
set -u
first=
for variant in HZP_GRAPHS=1 HZP_GRAPHS=0 HZP_CUDA_EARLY=0 HZP_CUDA_EARLY=all; do
  got=$(env $variant "$1" complete "$2" "Where does Zorin live?" --device "$3" --temperature 0 --max-tokens 48) || exit
  if [ -z "$got" ] || [ "$got" != "${first:=$got}" ]; then echo "FAIL $variant: '$got' is not '$first'"; exit 1; fi
  echo "same $variant"
done
"""
    return ["bash", "-c", script, "texts", folder + "/hzpserve", f"{folder}/shapes/{size.small}-text", size.device]


def first(folder, size):
    """What tells the most in ten minutes: correctness, ceilings, decode steps with each new part on and off, cuDNN, fp8,
    the two loads of throughput, PyTorch beside us, versions that change, training."""
    def p(name):
        return f"{folder}/{name}"
    golden = sorted(p("golden/" + d) for d in (os.listdir(p("golden")) if os.path.isdir(p("golden")) else []))
    yield step("devices", "the device opens", [p("hzpserve"), "devices"], 2, "small", "none", kind="check",
               same=lambda out: " SMs" in out or size.trial and "cpu" in out)
    yield step("conform", "memory, lanes, copies and fences", [p("test_device")], 5, "small", "none", kind="check",
               fallbacks="allowed")
    yield step("opcheck", "every op against the reference", [p("opcheck"), *size.opcheck], 15, "small", "last", kind="check")
    yield step("opcheck, host", "every op of the CPU backend at this machine's level",
               [p("opcheck"), "--quiet", "--backend=cpu", *size.opcheck[1:]], 30, "small", "last", kind="check",
               fallbacks="allowed")
    yield step("opcheck, loads by threads", "decode attention without the tensor copy engine",
               opcheck(folder, size, "attn_decode", "--quiet"), 3, "small", "last", kind="check", env={"HZP_CUDA_BULK": "0"})
    yield step("opcheck, grid lanes", "attention on lanes limited to 48 SMs by their grids",
               opcheck(folder, size, "*attn*", "--quiet", "--share=48"), 5, "small", "last", kind="check",
               env={"HZP_CUDA_LANES": "grid"})
    yield step("golden", "logits, losses, gradients, ten updates against PyTorch's numbers",
               [p("test_golden"), size.device] + golden[:size.golden], 4, "small", "last", kind="check", fallbacks="allowed")
    yield step("greedy equality", "the same text as on the CPU, with and without graphs", greedy(folder, size), 25, "small",
               "last", kind="check", files=[p("hzpserve"), p("world/config.json")])
    yield step("greedy, 1B", "the same text in graphs, op by op, with kernels one after the other, and all begun early",
               texts(folder, size), 16, "small", "last", kind="check", env=noise())
    yield step("ceiling", "the bf16 product in a burst, and sustained under the power limit: the goals are shares of the "
               "second; and a model's products alone", [p("ceiling"), size.device, *size.ceiling], 12, "small", "json")
    yield product(folder, size, "product", "steps as the server builds them, in graphs: decode and prefill", size.big,
                  expect=16)
    for name, variable, what in (
            ("op by op", "HZP_GRAPHS=0", "decode steps without graphs"),
            ("each kernel after the other", "HZP_CUDA_EARLY=0", "decode steps whose kernels begin only once the one before "
             "has ended; the difference to \"product\" is what beginning early gives"),
            ("all early", "HZP_CUDA_EARLY=all", "decode steps of more than four rows whose kernels begin early, too"),
            ("norms and SwiGLU alone", "HZP_CUDA_FUSE=0", "decode steps of few rows with more kernels; the difference to "
             "\"product\" is what having them in the products gives"),
            ("loads by threads", "HZP_CUDA_BULK=0", "decode steps whose attention does not use the tensor copy engine")):
        yield product(folder, size, f"product, {name}", what, "--decode", size.big, env=dict([variable.split("=")]))
    yield step("cudnn attention, quick", "training attention of the middle and big shape, ours and cuDNN's; skipped where "
               "there is no cuDNN", [p("cudnn_attention"), *size.attention], 15, "attention", "json", optional=True)
    yield step("fp8, offers", "how many algorithms cuBLASLt has for each product of e4m3, by rows, output and way of adding "
               "up, and the best one's time; skipped where there is no GPU", [p("fp8_offers")], 6, "small", "json",
               optional=True)
    yield step("fp8, steps", "decode steps with e4m3 projections beside bf16, and their logits",
               [p("fp8"), size.device, p("shapes/" + size.big), *size.fp8], 10, "fp8 steps", "json")
    expect = size.offline["1000/1000"][2]
    yield offline(folder, size, "offline 1000/1000", "1000/1000", expect, LOAD)
    yield offline(folder, size, "offline, fp8", "1000/1000", expect, "the load of 1000/1000 with weights and KV cache in fp8",
                  fp8=True)
    yield step("peer", "PyTorch on this device: products, attention, decode, prefill and training at our shapes; skipped "
               "where there is no PyTorch", ["python3", p("peer.py"), "--quick", *size.peer], 80, "peer", "json", optional=True,
               files=[p("peer.py")], same=whole, env={"LD_LIBRARY_PATH": libraries.own_path()})
    yield step("swap", "inter-token latencies with 0, 1 and 10 swaps a second, and at swaps",
               engine(folder, size, "swap", size.big, "--quick", "--kv-memory", run_sizes.mebibytes(size.swap_kv),
                      *size.context), 18, "swap", "bench", env=noise())
    yield coserve(folder, size, "green")
    yield step("training", "a training step of the middle shape: forward, backward, update",
               [p("product"), *size.once, size.device, size.middle], 14, "training", "json")
    yield step("profile", "kernels of a decode step of one row by the profiler: times, and the share of the memory's rate",
               ["ncu", "--csv", "--clock-control", "none", "--target-processes", "all", "--kernel-name",
                "regex:project|attn_decode|rope|rmsnorm|swiglu|codes", "--launch-count", "200", "--metrics",
                "gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed", p("product"), "--decode", "--once",
                size.device, size.big], 25, "product", "ncu", optional=True, env={"HZP_GRAPHS": "0", "HZP_CUDA_TUNE": "0"})


def second(folder, size):
    """What is left of the checks, the other loads, training beside requests."""
    def p(name):
        return f"{folder}/{name}"
    for shape in ("sequential", "overlapped"):
        yield step(f"no mixing, {shape}", "no step reads two versions", [p("test_no_mixing"), size.device, shape, size.mixing],
                   6, "small", "last", kind="check", fallbacks="allowed")
    yield step("resume", "killed, started again: the same answers; ended by SIGTERM: 0",
               ["python3", p("run_life.py"), p("hzpserve"), p("world"), p("demo/teach.jsonl"), *size.resume], 12, "small",
               "json", kind="check", files=[p("run_life.py"), p("demo/teach.jsonl")])
    for op in ("attn_packed", "attn_prefill"):
        yield step(f"opcheck, cuDNN, {op}", "the op by cuDNN against the reference; gradients, whose bits do not repeat, are "
                   "compared with ours in the step cudnn attention", opcheck(folder, size, op, "--quiet"), 45, "small", "last",
                   kind="check", env={"HZP_CUDA_ATTENTION": "cudnn"})
    yield serve(folder, size, "serve", "one request alone, a prompt, several: through the whole engine")
    yield serve(folder, size, "fp8, serve", "one request alone, several, with --quantization fp8", "--quantization", "fp8",
                need="serve, fp8")
    line = """said=$("$@" 2>&1 >/dev/null)
status=$?
printf '%s\\n' "$said" >&2
printf '%s\\n' "$said" | grep "memory driver" || NONE
exit $status
""".replace("NONE", 'echo "none: not a GPU"' if size.trial else 'exit 1')
    memory = serve(folder, size, "driver memory", "what the driver takes for partitions of the SMs and for graphs, and what "
                   "is free then", "--log-level", "info", read="last")
    memory["command"] = ["bash", "-c", line, "plan", *memory["command"]]
    yield memory
    evaluate = 'for q in none fp8; do "$1" eval "$2" --data "$3" --device "$4" --json --quantization $q || exit; done'
    yield step("fp8, trained", "the trained model's loss on held-out text in bf16, then in fp8",
               ["bash", "-c", evaluate, "eval", p("hzpserve"), p("world"), p("demo/heldout.jsonl"), size.device], 4, "small",
               "eval", files=[p("hzpserve"), p("demo/heldout.jsonl")])
    for load in ("512/512", "1024/512"):
        yield offline(folder, size, f"offline {load}", load, size.offline[load][2], LOAD)
    yield offline(folder, size, "offline, drawn", "512/512", size.offline["512/512"][2],
                  "the load of 512/512 at a temperature, with top_p: beside it, what drawing costs", "--temperature", "0.8",
                  "--top-p", "0.95")
    yield step("tuning beside KV", "full fine-tuning with bf16 moments in a server's memory, two versions and a KV cache: "
               "planned, taken, updates run",
               engine(folder, size, "train", size.learn, "--quick", "--moments", "bf16", "--kv-memory",
                      run_sizes.mebibytes(size.beside_kv), *size.context, "--train-quantum", "100"), 18, "beside", "bench",
               env=noise())
    yield coserve(folder, size, "turns")
    yield step("opcheck --bench", "the rate of attention of prompts and of training",
               opcheck(folder, size, "attn_p*", "--bench"), 9, "small", "opcheck", fallbacks="allowed")
    shape, context, running = size.long
    yield offline(folder, size, "offline, long context", "512/512", 26, "the load of 512/512 with a page table for many times "
                  "the positions: beside it, what the table costs", "--context", context, running=running, shape=shape,
                  extra=True)
    yield step("search", "the whole search: ops alone and in pairs by share, and the plan found for each load",
               [p("hzpserve"), "search", p("shapes/" + size.big), "--device", size.device, "--max-others", "1", "--file",
                p("found.json"), *size.search],
               300, "search", "none", env=noise(), optional=True, extra=True)


def third(folder, size):
    """Attention and plans in detail, compute-sanitizer, two ranks."""
    def p(name):
        return f"{folder}/{name}"
    yield step("plans", "steps by the sequential plan, nano-batches alone, an overlap drawn by hand, the plan searched",
               [p("plans"), size.device, p("shapes/" + size.big), *size.plans], 45, "plans", "json")
    yield step("plans, training", "the same of a step beside training",
               [p("plans"), size.device, p("shapes/" + size.learn), *size.plans_training], 20, "plans, training", "json")
    script = """set -o pipefail
fail=0
for form in lanes whole; do
  HZP_CUDA_GRAPHS=$form "$@" | sed 's/^{/{"form":"'$form'",/' || fail=1
done; exit $fail
"""
    yield step("graphs of lanes", "a decode step over two green lanes whose graphs are each of one lane, ordered by events "
               "(lanes), and as one graph (whole)",
               ["bash", "-c", script, "forms", p("plans"), size.device, p("shapes/" + size.middle), *size.decodes], 14,
               "decodes", "json")
    for lanes in ("green", "grid"):
        yield step(f"R to P, {lanes}", "decode attention and training's products by share of the SMs, alone and together",
                   [p("lanes"), size.device, p("shapes/" + size.big), *size.lanes], 9, "lanes", "json",
                   env={"HZP_CUDA_LANES": lanes}, extra=lanes == "grid")
    if "grid" in size.ways:
        yield coserve(folder, size, "grid")
    script = """set -o pipefail
opcheck=$1; shift
fail=0
for bulk in 1 0; do for share in SHARES; do
  HZP_CUDA_BULK=$bulk "$opcheck" --bench --share=$share "$@" | sed "s/^/engine $bulk, $share SMs: /" || fail=1
done; done; exit $fail
""".replace("SHARES", size.shares)
    yield step("decode attention, two kernels", "its rate with keys and values fetched by the tensor copy engine (1) and by "
               "threads (0), on shares of the SMs (0: all)",
               ["bash", "-c", script, "rates", *opcheck(folder, size, "attn_decode")], 12, "small", "opcheck",
               env={"HZP_CUDA_LANES": "grid"}, fallbacks="allowed")
    yield step("cudnn attention", "prefill and training attention, ours and cuDNN's, by length; skipped where there is no "
               "cuDNN", [p("cudnn_attention")], 60, "attention", "json", optional=True)
    script = """fail=0
for op in OPS; do
  "$@" --op=$op || { echo "FAIL $op"; fail=1; }
done; exit $fail
""".replace("OPS", size.sanitized)
    sanitizer = libraries.sanitizer() or "compute-sanitizer"
    for tool, what in (("memcheck", "reads and writes out of bounds"), ("racecheck", "races in shared memory")):
        yield step(f"sanitizer, {tool}", f"one op of each class: {what}",
                   ["bash", "-c", script, "sanitize", sanitizer, "--tool", tool, "--error-exitcode", "9",
                    *opcheck(folder, size, None, "--quiet")[:3]], 70, "small", "last", kind="check",
                   env={"HZP_CUDA_TUNE": "0"}, optional=True, extra=tool != "memcheck", fallbacks="allowed",
                   files=[sanitizer])
    yield step("two ranks", "two ranks on one device, by NCCL over sockets: the losses of one rank, and a trace of both; "
               "skipped where there is no NCCL",
               ["python3", p("run_ranks.py"), p("hzpserve"), p("world"), p("demo/teach.jsonl"), size.device], 30, "small",
               "json", kind="check", files=[p("run_ranks.py"), p("demo/teach.jsonl")], optional=True)
    yield step("opcheck --bench, column sums", "the norm's backward with and without the weight's gradient; the difference "
               "is the column sums", opcheck(folder, size, "rmsnorm_bwd", "--bench"), 5, "small", "opcheck", extra=True)
    yield step("opcheck --bench, all", "each op's rate", [p("opcheck"), *size.opcheck, "--bench"], 45, "small", "opcheck",
               fallbacks="allowed", extra=True)


LOAD = "tokens a second when only throughput counts, in a window of a load without end"
PARTS = {1: first, 2: second, 3: third}
SECONDS = 570  # of a part: a command of ten minutes, with its begin and its end
TIMES = 4      # what a step may take of what is expected of it,
MOST = SECONDS // 3  # but for what is expected to take long


def steps(folder, part=None, extra=False, size=None):
    """The steps of one part (None: of all, with extra those on request) in the order of execution: the most
    decisive come first."""
    made = []
    for number, which in PARTS.items():
        for made_step in which(folder, size) if part in (None, number) else ():
            made_step.setdefault("kind", "bench")
            # In part 1 a slower way is a warning; later it is a failure of the steps that measure a large model.
            large = made_step["kind"] == "bench" and made_step["need"] != "small"
            made_step.setdefault("fallbacks", "fail" if number > 1 and large else "warn")
            made_step["part"] = number
            made_step["need"] = size.need(made_step["need"])
            made_step["limit"] = max(20, min(TIMES * made_step["expect"], MOST), 2 * made_step["expect"])
            if size.trial:
                made_step["limit"] *= 30  # a trial's machine is shared with other work
            if extra or not made_step.get("extra"):
                made.append(made_step)
    return made
