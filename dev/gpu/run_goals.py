# SPDX-License-Identifier: Apache-2.0
"""The goals for the figures of dev/gpu/run, and the report of a run.

Every figure of the plan's section on proof with a GPU is a row: the goal, the measured value, and
whether it suffices.  Shares are of the best copy bandwidth that any step of the same run measured, and of the
library's bf16 product as the device sustains it (the step "ceiling"; where that was not run, its best); of loads
without end, of what both allow in turn for as many sequences (arithmetic.py).  So the goals hold for any device.
"""
import re

import arithmetic
import run_sizes
from arithmetic import GOALS

SHARES = ("share of the sustained product rate", "share of the run's best copy bandwidth",
          "share of reading and computing in turn")


# ---- ceilings ----

def limits_of(step):
    """(copy GB/s, bf16 product TFLOP/s) that a step measured; None: not measured.

    A device without a bf16 product widens the operands: there the limit is the F32 product's, as for
    hzp_limits_gemm of dev/bench/limits.h."""
    copy = bf16 = f32 = None
    for row in step["rows"]:
        if row.get("t") == "device":
            copy, bf16, f32 = row["copy_gbytes_per_s"], row["gemm_bf16_tflops"], row["gemm_f32_tflops"]
        elif row.get("name") == "limit: read bandwidth":
            copy = row["value"]
        elif row.get("name") == "limit: library GEMM, bf16":
            bf16 = row["value"] * 1e-3
        elif row.get("name") == "limit: library GEMM, f32":
            f32 = row["value"] * 1e-3
    return copy or None, bf16 or f32 or None


def ceilings(results):
    """The best value of the run; 0: not measured."""
    every = [limits_of(step) for step in results["steps"]]
    return (max((c for c, _ in every if c), default=0), max((g for _, g in every if g), default=0))


def ceiling(results):
    """(burst, sustained) TFLOP/s of the bf16 product; None: not measured."""
    for step in results["steps"]:
        for row in step["rows"]:
            if row.get("t") == "ceiling":
                return row["burst_tflops"], row["sustained_tflops"]
    return None


# ---- lookup of figures ----

class Run:
    def __init__(self, results):
        self.steps = {step["name"]: step for step in results["steps"]}
        self.copy, self.gemm = ceilings(results)
        held = ceiling(results)
        if held:
            self.gemm = held[1]
        self.big, self.middle = results["shapes"]
        self.learns = "8B" if results["trial"] else results["learns"].upper()  # a trial's goals are named as the full ones
        self.sizes = run_sizes.TRIAL if results["trial"] else run_sizes.Full(results["profile"])

    def figure(self, step, name):
        """A figure of hzpserve bench."""
        for row in self.steps.get(step, {"rows": []})["rows"]:
            if row.get("name") == name:
                return row.get("value")
        return None

    def of_best(self, step, name, which):
        """A figure's share of the run's best ceiling; which 0: copy, 1: product."""
        for row in self.steps.get(step, {"rows": []})["rows"]:
            if row.get("name") == name and row.get("share") is not None:
                own, best = limits_of(self.steps[step])[which], (self.copy, self.gemm)[which]
                return row["share"] * (own / best if own and best else 1)
        return None

    def of_turn(self, step, load, fp8=False):
        """An offline load's tokens a second as a share of its limit in turn: (all tokens, answers alone)."""
        prompt, answer, _ = self.sizes.offline[load]
        told = self.figure(step, "offline, prompts and answers"), self.figure(step, "offline, answers")
        if not self.copy or not self.gemm:
            return None, None
        limit = arithmetic.in_turn(arithmetic.Model(self.big), self.sizes.running(prompt, answer, fp8), prompt, answer,
                                   self.copy * 1e9, self.gemm * 1e12, fp8)
        return tuple(t / most if t is not None else None for t, most in zip(told, limit))

    def rows(self, step, **wanted):
        return [row for row in self.steps.get(step, {"rows": []})["rows"]
                if all(row.get(k) == v for k, v in wanted.items())]

    def why(self, *steps):
        """The reason why a figure is missing."""
        told = [f"{s}: {self.steps[s]['verdict']}" for s in steps if s in self.steps]
        return "; ".join(told) if told else "was not part of this run"


# ---- the goals ----

def goal(run, name, asked, measured, reached, *steps, note=""):
    if measured is None:
        reached, note = "not measured", run.why(*steps)
    elif isinstance(reached, bool):
        reached = "yes" if reached else "NO"
    return {"goal": name, "asked": asked, "measured": "-" if measured is None else measured,
            "reached": reached, "note": note}


def at_least(run, name, least, value, of, *steps, note=""):
    return goal(run, name, f">= {least:g} {of}", value, value is not None and value >= least, *steps, note=note)


def check_rows(run):
    for step, what in (("opcheck", "opcheck of every op"), ("golden", "golden numbers"),
                       ("greedy equality", "greedy text equal to the CPU's"),
                       ("greedy, 1B", "1B text equal in graphs and op by op"),
                       ("sanitizer, memcheck", "compute-sanitizer on one op of each class")):
        verdict = run.steps[step]["verdict"] if step in run.steps else None
        ran = verdict in ("ok", "failed", "hung")
        yield goal(run, what, "passes", verdict if ran else None, verdict == "ok", step)


def fallbacks(results):
    """[(step, what, whether that is a failure)]: where the device took a slower way (device/fallback.h), as the log says
    it, and as `hzpserve bench` counts it."""
    found = []
    for step in results["steps"]:
        told = [f"{way['kind']}, {way['shape']}: {way['reason']}" for way in step.get("fallbacks", [])]
        told += [f"{row['name'].split(', ', 1)[1]}, {row['value']:.0f} times" for row in step["rows"]
                 if str(row.get("name", "")).startswith("fallbacks, ")]
        found += [(step["name"], what, step.get("slower_fails", True)) for what in told]
    return found


def serving_rows(run):
    for load in ("512/512", "1024/512"):
        step = f"offline {load}"
        yield at_least(run, f"8B offline {load}: tokens/s", GOALS["offline"], run.of_turn(step, load)[0], SHARES[2], step)
    for step, fp8 in (("offline 1000/1000", False), ("offline, fp8", True)):
        yield at_least(run, f"8B offline 1000/1000{', weights and KV cache in fp8' if fp8 else ''}: output tokens/s",
                       GOALS["output, fp8" if fp8 else "output"], run.of_turn(step, "1000/1000", fp8)[1], SHARES[2], step,
                       note=f"{run.figure(step, 'offline, answers') or 0:,.0f} tokens/s")
    greedy, drawn = (run.figure(step, "offline, prompts and answers") for step in ("offline 512/512", "offline, drawn"))
    yield at_least(run, "8B offline 512/512, drawn with top_p: tokens/s", GOALS["drawn"],
                   drawn / greedy if greedy and drawn is not None else None, "of the greedy load's", "offline, drawn",
                   "offline 512/512")
    attention = [row["gbytes_per_s"] for row in run.rows("product", t="attention") if row["sequences"] >= 64]
    yield at_least(run, "8B decode attention: bytes of keys and values a second", GOALS["attention"],
                   max(attention) / run.copy if attention and run.copy else None, SHARES[1], "product")
    yield at_least(run, "8B decoding, one request: weight bytes a second", GOALS["one sequence"],
                   run.of_best("serve", "decode, one sequence", 0), SHARES[1], "serve")
    many = [row["gbytes_per_s"] for row in run.rows("product", t="serve", shape=run.big, sequences=64, context=1024)]
    yield at_least(run, "8B decoding, 64 sequences at 1024: bytes of weights, keys and values a second", GOALS["64 sequences"],
                   many[0] / run.copy if many and run.copy else None, SHARES[1], "product")
    prefill = [run.of_best("serve", row["name"], 1) for row in run.rows("serve")
               if re.fullmatch(r"prefill, \d+ tokens", str(row.get("name")))]
    yield at_least(run, "8B prefill of a prompt: model operations", GOALS["prefill"], prefill[0] if prefill else None, SHARES[0],
                   "serve")
    steps = [row["gbytes_per_s"] for row in run.rows("product", t="serve", shape=run.big, sequences=1, rows=1,
                                                     context=512)]
    yield goal(run, "the same, the step alone", "told", steps[0] / run.copy if steps and run.copy else None,
               "told", "product")


def training_rows(run):
    trained = run.rows("training", t="train", shape=run.middle)
    longest = max((row["length"] for row in trained), default=0)
    rate = [row["of_gemm"] * (limits_of(run.steps["training"])[1] or 1) for row in trained
            if row["length"] == longest]
    yield at_least(run, "3B training, sequences of 4096: model operations", GOALS["training"],
                   rate[0] / run.gemm if rate and run.gemm else None, SHARES[0], "training")
    step, asked = "tuning beside KV", run.sizes.beside_kv / 1e9
    kv, planned = run.figure(step, "memory: KV cache"), run.figure(step, "memory: planned")
    update, there = run.figure(step, "seconds an update"), run.figure(step, "memory: available")
    whole = None not in (kv, planned, update, there)
    yield goal(run, f"{run.learns} full fine-tuning, bf16 moments, beside KV", f">= {asked:.3g} GB of KV, and updates run",
               kv if whole else None, bool(whole and kv >= 0.99 * asked), step,
               note=f"GB; {planned:.4g} of {there:.4g} GB planned, an update takes {update:.3g} s"
               if whole else "")


VARIANTS = (("op by op", "without graphs"), ("each kernel after the other", "without early starts"),
            ("all early", "with early starts above four rows, too"), ("norms and SwiGLU alone", "without fewer kernels"),
            ("loads by threads", "without the tensor copy engine"))


def part_rows(run):
    """What each part of decode steps gives: the time without it, or of one that is off with it, over the usual time."""
    def times(step):
        return {(r["sequences"], r["context"]): r["ms"] for r in run.rows(step, t="serve", shape=run.big, rows=1)}
    ours = times("product")
    for name, what in VARIANTS:
        other = times(f"product, {name}")
        told = [f"{n} at {context}: {other[n, context] / ms:.3f}" for (n, context), ms in sorted(ours.items())
                if other.get((n, context)) and ms]
        yield goal(run, f"8B decode step {what}, over the usual one", "told", "; ".join(told) or None, "told",
                   f"product, {name}", "product")


def swap_rows(run):
    for rate in (0, 1, 10):
        p50, p99 = (run.figure("swap", f"{rate} swaps/s: ITL {p}") for p in ("p50", "p99"))
        done = run.figure("swap", f"{rate} swaps/s: swaps done")
        yield goal(run, f"8B inter-token latency, {rate} swaps/s", "p50 / p99 told",
                   None if p99 is None else f"{p50:.4g} / {p99:.4g} ms", "told", "swap",
                   note="" if done is None else f"{done:.0f} swaps")
    added = [run.figure("swap", f"{rate} swaps/s: what a swap adds at worst, in steps") for rate in (1, 10)]
    added = [a for a in added if a is not None]
    worst = run.figure("swap", "0 swaps/s: worst ITL")
    yield goal(run, "8B worst inter-token latency at a swap: what it adds", "< 1 decode step", max(added, default=None),
               bool(added) and max(added) < 1, "swap",
               note="" if worst is None else f"steps; worst without swaps {worst:.4g} ms")


def coserve_one(run, step):
    """(gain, whether goals held, remark) for one way of sharing the device."""
    gain = run.figure(step, "training on: co-serving gain")
    gaps = run.figure(step, "training on: ITLs beyond the goal")
    firsts = run.figure(step, "training on: TTFTs beyond the goal")
    if gain is None:
        return None, False, ""
    held = gaps is not None and firsts is not None and gaps <= 1 and firsts <= 1
    slices = run.figure(step, "time-slicing: co-serving gain")
    note = f"ITLs beyond the goal {gaps:.3g} %, TTFTs {firsts:.3g} %" if None not in (gaps, firsts) \
        else "no goals told"
    return gain, held, note + ("" if slices is None else f"; time slicing {slices:.3g}")


def coserve_rows(run):
    ways = ("turns", "green", "grid")
    best = None
    for way in ways:
        gain, held, note = coserve_one(run, f"co-serving, {way}")
        if gain is not None and (best is None or (held, gain) > best[:2]):
            best = (held, gain, way)
        yield goal(run, f"{run.learns} co-serving gain at half load, {way}", "told", gain, "told", f"co-serving, {way}",
                   note=note)
    yield goal(run, f"{run.learns} co-serving gain at half load, goals held", f">= {GOALS['co-serving']}, 99 of 100 within",
               best[1] if best else None, bool(best and best[0] and best[1] >= GOALS["co-serving"]),
               *[f"co-serving, {way}" for way in ways],
               note=f"{best[2]}; goals {'held' if best[0] else 'NOT held'}" if best else "")


def overlap_rows(run):
    plans = run.rows("plans", t="plan") + run.rows("plans, training", t="plan")
    for shape in sorted({(r["decode"], r["depth"], r["prefill"], r["train"]) for r in plans}, reverse=True):
        told = [f"{r['plan']} " + (f"{r['ms']:.4g} ms" if r["plan"] == "sequential" else
                                   f"{r['over_sequential']:.3f}") for r in plans if "ms" in r and
                shape == (r["decode"], r["depth"], r["prefill"], r["train"])]
        yield goal(run, "8B plans over the sequential one: {} decodes at {}, {} prompt rows, training {}"
                   .format(*shape), "told", "; ".join(told) or None, "told", "plans")
    if not plans:
        yield goal(run, "8B plans side by side", "told", None, "", "plans")
    forms = [f"{r['form']} {r['ms']:.4g} ms in {r['graphs']} graphs" for r in run.rows("graphs of lanes", t="plan")
             if r["plan"] == "overlapped, by hand" and "ms" in r]
    yield goal(run, "3B decode step over two lanes, a graph a lane or one graph", "told", "; ".join(forms) or None,
               "told" if forms else "", "graphs of lanes")
    for lanes in ("green", "grid"):
        step = f"R to P, {lanes}"
        shares = [r for r in run.rows(step, t="share") if "R" in r]
        cells = " ".join(f"{r['R']:.2f}:{r['P']:.2f}+{r['products']:.2f}" for r in shares)
        best = max(shares, key=lambda r: r["sum"], default=None)
        yield goal(run, f"R -> P of decode attention + training's products, {lanes}", "told", cells or None,
                   "told", step, note=f"best sum {best['sum']:.2f} at {best['cores']} cores" if best else "")


def fp8_rows(run):
    for row in run.rows("fp8, steps", t="fp8"):
        yield goal(run, f"8B decode in fp8 over bf16, {row['sequences']} sequences", "told", row["times"],
                   "told", note=f"{row['bf16_tokens_per_s']:.5g} and {row['fp8_tokens_per_s']:.5g} tokens/s")
    logits = run.rows("fp8, steps", t="fp8 logits")
    yield goal(run, "8B logits in fp8 (noise): greatest difference", "told",
               logits[0]["max_difference"] if logits else None, "told", "fp8, steps",
               note="deviation {:.3g}, rms over it {:.3g}, greedy same {:.3g}".format(
                   *(logits[0][k] for k in ("deviation", "rms_over_deviation", "greedy_same")))
               if logits else "")
    loss = [r.get("mean_nll") for r in run.rows("fp8, trained")]
    yield goal(run, "trained model: loss in bf16, in fp8", "told",
               f"{loss[0]:.5f}, {loss[1]:.5f}" if len(loss) == 2 else None, "told", "fp8, trained")


def goals(results):
    """One row for each required figure."""
    run, rows = Run(results), []
    for which in (check_rows, serving_rows, part_rows, training_rows, swap_rows, coserve_rows, overlap_rows, fp8_rows):
        rows += which(run)
    for row in rows:
        if results["trial"] and row["reached"] != "not measured":
            row["reached"] = "a trial"
    return rows


# ---- the report ----

def show(value):
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value).replace("|", "/").replace("\n", " ")
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


STEPS = re.compile(r"(steps|time), (\S+) decodes, (\S+) prompt rows")


def steps_table(rows):
    """The steps of an offline load by their rows: the share of the time, number and milliseconds of each kind."""
    cells, columns = {}, []
    for row in rows:
        what = STEPS.fullmatch(str(row.get("name")))
        if what:
            cells.setdefault(what[2], {}).setdefault(what[3], {})[what[1]] = row["value"]
    if not cells:
        return []
    at = {key: int(re.match(r"\d+", key)[0]) for prompts in cells.values() for key in prompts}
    columns = sorted(at, key=at.get)
    whole = sum(cell.get("time", 0) for prompts in cells.values() for cell in prompts.values()) or 1
    lines = ["", "Share of the time, steps x ms of a step, by decode rows (lines) and prompt rows (columns):", "",
             "| decodes | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for decodes, prompts in cells.items():
        told = [f"{c['time'] / whole:.0%}, {c['steps']:.0f} x {c['time'] / c['steps']:.3g}"
                if (c := prompts.get(column)) else "-" for column in columns]
        lines.append(f"| {decodes} | " + " | ".join(told) + " |")
    return lines


def clocks_said(results):
    log = [s for s in results["steps"] if "sm_mhz" in s]
    if not log:
        return "Clocks and power were not logged" + (f": {results['log']}." if results.get("log") else ".")
    low, high = min(s["sm_mhz"][0] for s in log), max(s["sm_mhz"][2] for s in log)
    power = max((s["power_w"][2] for s in log if "power_w" in s), default=0)
    return f"Clocks of the SMs {low:.0f} to {high:.0f} MHz, power up to {power:.0f} W; by step below."


def sizes_said(results):
    if results["trial"]:
        return "Sizes: a trial's."
    bf16, fp8 = (n / 1e9 for n in results["kv_bytes"])
    return (f"Sizes: profile {results['profile']} ({results['why']}); keys and values of offline loads {bf16:.0f} GB, in fp8 "
            f"{fp8:.0f} GB; training beside requests is of {results['learns'].upper()}. Files of kept choices of algorithms "
            f"at the start: {results.get('kept_choices', 0)}.")


def repeated(step):
    """How often the figures of a step were taken, and the largest spread of one."""
    counts = sorted({row["repeats"] for row in step["rows"] if row.get("repeats", 1) > 1})
    spread = max((row.get("spread") or 0 for row in step["rows"]), default=0)
    if not step["rows"] or step["kind"] != "bench":
        return "-"
    whole = all(row.get("repeats", 1) > 1 for row in step["rows"] if row.get("t") not in ("device", "alone"))
    return (f"{'' if whole else 'some '}x {counts[0]}, spread to {spread:.1%}" if counts else "once")


def memory_left(results):
    """Steps after which more of the device's memory was in use than before, though their processes had ended."""
    told = []
    for s in results["steps"]:
        before, after = s.get("memory_used_mib", (0, 0))
        if after - before > NOT_BACK_MIB:
            told += ["", f"**Memory: {after - before:.0f} MiB more are in use after step {s['name']} than before.**"]
    return told


NOT_BACK_MIB = 64  # the driver's own may grow by so much


def span(values):
    return "-" if values is None else " / ".join(f"{v:.0f}" for v in values)


def ours(run):
    """Our figures by the names that peer.py gives to the same: (value, unit)."""
    found, lengths = {}, {}
    for row in run.rows("ceiling", t="matmul"):
        found[f"product {run.big} {row['product']} {row['rows']} rows bf16"] = row["us"], "us"
    for row in run.rows("product", t="serve", shape=run.big):
        if row["rows"] == 1:
            found.setdefault(f"decode {run.big} {row['sequences']}", (row["tokens_per_s"], "tokens/s"))
        elif not row["context"] and row["sequences"] == 1:
            found[f"prefill {run.big} {row['rows']}"] = row["tokens_per_s"], "tokens/s"
    for row in run.rows("training", t="train", shape=run.middle):  # of several documents of a length, the peer has one
        found[f"train {run.middle} {row['length']}"] = row["tokens_per_s"], "tokens/s"
    for shape in (run.middle, run.big):
        lengths[arithmetic.SHAPES[shape][3:6]] = shape
    for row in run.rows("cudnn attention, quick", t="cudnn"):
        shape, best = lengths.get((row["heads"], row["kv_heads"], row["dim"])), min(
            row["ours_ms"], row.get("cudnn_ms", row["ours_ms"]))
        if shape and row["pass"] in ("forward", "backward"):  # of 8192 rows; the step takes the faster of the two
            for backend in ("cudnn", "flash"):
                found[f"attention {shape} {row['length']} {row['pass']} {backend}"] = (
                    best * 1e3 * row["length"] / 8192, "us")
    return found


def beside_peer(results):
    """The peer's figures, with ours, and how many times as fast we are, where we have one of the same name."""
    run, rows = Run(results), []
    mine = ours(run)
    for row in run.rows("peer"):
        if "value" not in row:
            if "failed" in row:
                rows.append({"figure": row["name"], "peer": row["failed"]})
            continue
        value, unit = mine.get(row["name"], (None, None))
        told = bool(value and row["value"] and unit == row["unit"])
        faster = "-" if not told else value / row["value"] if unit == "tokens/s" else row["value"] / value
        rows.append({"figure": row["name"], "peer": row["value"], "unit": row["unit"], "repeats": row.get("repeats", 1),
                     "spread": row.get("spread", "-"), "ours": value if told else "-", "times as fast": faster})
    return ["", "## Beside PyTorch on the same device", ""] + table(rows) if rows else []


def report(results):
    """What failed first, then the goals, then each step's figures."""
    copy, gemm = ceilings(results)
    checks = [s for s in results["steps"] if s["kind"] == "check"]
    bad = [f"{s['name']} ({s['verdict']})" for s in checks if s["verdict"] != "ok"]
    asked = results["goals"]
    lines = ["# A run of dev/gpu/run", "",
             f"Device: {results['device']}; {results['cublaslt']}; commit {results['commit']}; "
             f"{results['when']}.", "", sizes_said(results), "", f"Command: `{results['command']}`; {results['seconds']:.0f} s.", "",
             f"{len(checks) - len(bad)} of {len(checks)} checks passed."
             + (f" Not passed: {', '.join(bad)}." if bad else ""),
             f"Goals: {sum(g['reached'] == 'yes' for g in asked)} reached, "
             f"{sum(g['reached'] == 'NO' for g in asked)} not, "
             f"{sum(g['reached'] == 'not measured' for g in asked)} figures not measured.", "",
             f"Ceilings, the best of the run: copy {copy:.4g} GB/s, bf16 product {gemm:.4g} TFLOP/s."
             + (" In the step \"ceiling\" the product ran at {:.4g} in a burst and {:.4g} sustained: goals are shares "
                "of that.".format(*held) if (held := ceiling(results)) else " What it sustains was not measured."), "",
             clocks_said(results)]
    lines += memory_left(results)
    for step, what, fails in fallbacks(results):
        lines += ["", f"**{'Fallback' if fails else 'Warning: fallback'} in step {step}: {what}.**"]
    if results["trial"]:
        lines += ["", "**A trial on the CPU with a tiny shape: its figures mean nothing.**"]
    lines += ["", "## Goals", ""] + table(asked)
    lines += beside_peer(results)
    lines += ["", "## Steps", "", "SM clock and power: lowest / median / highest; throttled: the share of the time; "
              "free: MiB of memory free before / after; least free: MiB at its lowest; repeated: how often each figure was "
              "taken, and the largest spread, the distance of the quartiles over the median (once: it was not repeated).", "",
              "| step | kind | verdict | s | of expected s | SM MHz | W | throttled | needs GB | free | least free | repeated "
              "| what it said |", "|" + "---|" * 13]
    for s in results["steps"]:
        said = s["said"].splitlines()[-1][:110].replace("|", "/") if s["said"].strip() else ""
        lines.append(f"| {s['name']} | {s['kind']} | {s['verdict']} | {s['wall_s']} | {s.get('expected_s', '-')} | "
                     f"{span(s.get('sm_mhz'))} | {span(s.get('power_w'))} | {s.get('throttled', '-')} | "
                     f"{s.get('need_bytes', 0) / 1e9:.1f} | {span(s.get('memory_free_mib'))} | {s.get('least_free_mib', '-')} | "
                     f"{repeated(s)} | {said} |")
    for s in results["steps"]:
        if s["rows"] and s["kind"] == "bench":
            plain = [row for row in s["rows"] if not STEPS.fullmatch(str(row.get("name")))]
            lines += ["", f"## {s['name']}", "", s["what"], ""] + table(plain) + steps_table(s["rows"])
        elif s["said"].strip() and (s["kind"] == "bench" or s["verdict"] in ("failed", "hung")):
            lines += ["", f"## {s['name']}", "", s["what"], "", "```", s["said"].strip(), "```"]
    return "\n".join(lines) + "\n"
