#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of dev/gpu/run without a GPU.

    test_run.py logic|pack|trial BUILD RUN [FAKE_HZPSERVE]

logic: this build understands every command of hzpserve that a run on a GPU would use; a step that
fails, hangs with a child that holds its output, prints nonsense or is missing is reported as such, and
the steps after it run; from outputs such as a GPU would give, the report makes every row of the goals,
judged by the ceilings measured in the same run.
pack: what `pack` makes is small enough to travel, and works where it is unpacked.
trial: all steps run on the CPU with a tiny shape, and every goal has a figure.
"""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

WHAT, BUILD, RUN = sys.argv[1:4]
FAKE = sys.argv[4] if len(sys.argv) > 4 else None
HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_run", RUN)
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
loader.exec_module(run)


def check(fine, what):
    if not fine:
        sys.exit(f"FAIL: {what}")


def call(*args):
    return subprocess.run([sys.executable, RUN, *args], capture_output=True, text=True, check=False)


def linked(folder):
    done = call("link", BUILD, folder + "/pack")
    check(done.returncode == 0, "link: " + done.stdout + done.stderr)
    return folder + "/pack"


# ---- logic ----

FULL = run.run_sizes.Full(141)
NOT_EVERYWHERE = ("cudnn_attention", "fp8_offers", "peer.py", "found.json")  # without CUDA, or made by the step


def commands_are_understood(folder):
    """Options are read one by one and --help comes last, so errors appear before anything is opened."""
    seen = 0
    for step in run.run_steps.steps(folder, extra=True, size=FULL):
        command = step["command"]
        for word in command + step.get("files", []):
            inside = word.startswith(folder) and not word.endswith(NOT_EVERYWHERE)
            check(not inside or os.path.exists(word), f"{step['name']}: {word} is not there")
        if not command[0].endswith("/hzpserve"):
            continue
        done = subprocess.run(command + ["--help"], capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"{step['name']}: {done.stderr.strip()}")
        wrong = subprocess.run(command + ["--no-such-option", "--help"], capture_output=True, check=False)
        check(wrong.returncode == 2, f"{step['name']}: an unknown option was not noticed")
        seen += 1
    check(seen >= 10, f"only {seen} commands of hzpserve")


LENT = 600  # seconds for one command, with the start and the end of its run
TOLD_FIRST = ["devices", "opcheck", "greedy equality", "ceiling", "product", "product, op by op", "cudnn attention, quick",
              "fp8, steps", "offline 1000/1000", "offline, fp8", "peer", "swap", "co-serving, green", "training"]


def time_suffices(folder):
    """What each part is expected to take fits into one command, with room; no step that hangs takes more than a third."""
    everything = []
    check(run.run_steps.SECONDS < LENT - 20, "no time for the start and the end of a run")
    for part in run.run_steps.PARTS:
        steps = run.run_steps.steps(folder, part, size=FULL)
        took = sum(s["expect"] for s in steps)
        check(0 < took <= 0.8 * run.run_steps.SECONDS, f"part {part} is expected to take {took} s")
        check(max(s["limit"] for s in steps) <= run.run_steps.SECONDS / 3, f"part {part}: one step may take it all")
        check(all(s["limit"] >= min(4 * s["expect"], run.run_steps.MOST) for s in steps), "four times what is expected")
        everything += [s["name"] for s in steps]
    check(everything == [s["name"] for s in run.run_steps.steps(folder, size=FULL)], "parts are not the whole, in order")
    check(len(everything) == len(set(everything)), "two steps of one name")
    first = [s for s in run.run_steps.steps(folder, 1, size=FULL)]
    at = [[s["name"] for s in first].index(name) for name in TOLD_FIRST]
    check(at == sorted(at), f"the first part is in another order: {at}")
    check(not any(s["fallbacks"] == "fail" for s in first), "in the first part a slower way is a warning")
    later = {s["name"]: s["fallbacks"] for s in run.run_steps.steps(folder, size=FULL) if s["part"] > 1}
    check(later["offline 512/512"] == later["serve"] == "fail" and later["resume"] == "warn", f"{later}")


# ---- memory ----

HAVE = {80: 81559, 96: 95830, 141: 143771}  # MiB that nvidia-smi tells of an H100, an H100 NVL and an H200
CONTEXT_MIB = 700                           # of them a context and its code take
MEMORY_OPTIONS = {"--kv-memory", "--context", "--max-running", "--step-rows", "--prefill-rows", "--quantization",
                  "--kv-cache-dtype", "--moments", "--micro-rows", "--train-quantum", "--train-share"}


def planned(command, fake):
    """Bytes of the memory plan that a server with a step's options makes, as one too small a device's refusal tells."""
    options = [word for pair in zip(command, command[1:]) if pair[0] in MEMORY_OPTIONS for word in pair]
    if "--max-concurrency" in command:
        options += ["--max-running", command[command.index("--max-concurrency") + 1]]
    options += [] if command[2] in ("train", "coserve") else ["--no-train"]
    with tempfile.TemporaryDirectory() as own:
        env = dict(os.environ, HZP_CUBLASLT=os.path.dirname(fake) + "/libcudafake.so", HZP_CUDNN="0", HZP_CUDA_TUNE="0",
                   HZP_FAKE_MEMORY=f"{4 << 30} {3 << 20} {1 << 20} 65536 0", XDG_CACHE_HOME=own)
        done = subprocess.run([fake, "serve", command[3], "--device", "cuda", "--port", "0", "--state", "none", *options],
                              capture_output=True, text=True, env=env, check=False)
    told = re.search(r"not enough memory: (.*) = [\d.]+ .B, but", done.stderr)
    check(told, f"{command}: {done.stderr}")
    parts = {}
    for part in told[1].split(" + "):
        name, number, unit = part.rsplit(" ", 2)
        parts[name] = float(number) * {"K": 1e3, "M": 1e6, "G": 1e9}[unit[0]]
    # bench swap has two versions, a server that does not train one.
    return sum(parts.values()) + (parts["weights"] if command[2] == "swap" else 0)


def sizes_fit(folder, fake):
    """The profile follows from the device, every step fits into it, and into the product's own arithmetic."""
    sizes = run.run_sizes
    for profile, mib in HAVE.items():
        total = mib << 20
        check(sizes.choose(total, total - (CONTEXT_MIB << 20)) == profile, f"{mib} MiB are not profile {profile}")
        full = sizes.Full(profile)
        check(full.room + sizes.RESERVE <= total - (CONTEXT_MIB << 20) and sizes.RESERVE == 6e9, f"room of {profile}")
        for step in run.run_steps.steps(folder, extra=True, size=full):
            check(0 < step["need"] <= full.room, f"{profile}: {step['name']} needs {step['need'] / 1e9:.1f} GB")
            command = step["command"][4:] if step["name"] == "driver memory" else step["command"]
            if fake and command[0].endswith("/hzpserve") and command[1] == "bench":
                plan = planned(command, fake)
                check(plan <= step["need"] <= 1.05 * plan + 3e9,
                      f"{profile}: {step['name']} needs {step['need'] / 1e9:.1f} GB, {plan / 1e9:.1f} are planned")
    loose = sizes.Full(80).room + sizes.RESERVE
    check(loose <= 77 << 30, f"{loose / 2**30:.1f} GiB: an H100 of which a few hundred MB are taken has less free")
    check(sizes.choose(151 << 30, 90 << 30) == 80 and sizes.choose(24 << 30, 24 << 30) == 80, "by free memory")
    small, large = sizes.Full(80), sizes.Full(141)
    check((small.learn, large.learn) == ("3b", "8b") and small.kv < large.kv == 100e9, "sizes follow from the memory")
    # By hand: 8B has 8.03e9 parameters; 6 of 82 GB are the driver's.
    check(abs(small.kv - (76e9 - 2 * 8.03e9 - 2.7e9)) < 1e9, f"{small.kv}")
    check(abs(large.beside_kv - (142e9 - 14 * 8.03e9 - 4e9)) < 1.5e9, f"{large.beside_kv}")


def arithmetic_by_hand():
    """Some of the figures that goals are compared with, worked out apart."""
    arithmetic = run.arithmetic
    model = arithmetic.Model("8b")
    check(model.macs == 32 * 218103808 + 525336576, f"multiplications of a token: {model.macs}")
    check(model.parameters == model.macs + 525336576 and model.kv_bytes() == 131072, "parameters, bytes of a position")
    check(run.run_sizes.weights(model, 2) == 4 * model.parameters, "two versions")
    check(abs(run.run_sizes.learning(model, 0) - 10 * 8.03e9) < 1e8, "gradients, moments, lower halves")
    step = arithmetic.Step(model, 1, 512)
    check(step.bytes == 2 * 7504658432 + 512 * 131072, f"bytes of a step: {step.bytes}")
    check(round(step.times(4256e9, 692e12)[0] * 1e3, 2) == 3.54, "milliseconds of that")
    step = arithmetic.offline(model, 448, 1000, 1000)
    check(FULL.running(1000, 1000) == 448 and step.bytes == 2 * 7504658432 + 448 * 1500 * 131072, "448 of 1000/1000")
    longer = arithmetic.offline(model, 512, 1024, 512)
    check(FULL.running(1024, 512) == 512 and longer.bytes == 2 * 7504658432 + 512 * 1280 * 131072, "512 of 1024/512")
    narrow = arithmetic.offline(model, 864, 1000, 1000, fp8=True)
    check(narrow.bytes == 7504658432 + 864 * 1500 * 65536, "fp8 reads one byte")
    turn = arithmetic.in_turn(model, 448, 1000, 1000, 4256e9, 692e12)
    check(abs(turn[1] - 448 / sum(step.times(4256e9, 692e12)[:2])) < 1e-6 and turn[0] == 2 * turn[1], f"in turn: {turn}")
    done = subprocess.run([sys.executable, os.path.dirname(RUN) + "/arithmetic.py"], capture_output=True, text=True,
                          check=True).stdout
    page = os.path.dirname(RUN) + "/../../docs/measurements/2026-11-gpu-goals.md"
    with open(page, encoding="utf-8") as file:
        check(done.count("\n## ") == 1 and done in file.read(), "2026-11-gpu-goals.md does not hold what arithmetic.py prints")


def memory_is_told(folder):
    """A step after which the device's memory stays in use is named, and clocks stand beside each step."""
    results, _ = report_of(folder, recorded(True))
    results["steps"][1].update(memory_used_mib=[500.0, 900.0], memory_free_mib=[9500.0, 9100.0], least_free_mib=1234.0, sm_mhz=[1200.0, 1500.0, 1980.0], power_w=[300.0, 600.0, 699.0],
                               throttled=0.25)
    report = run.run_goals.report(results)
    check(f"400 MiB more are in use after step {results['steps'][1]['name']}" in report, report[:2000])
    check("1200 / 1500 / 1980" in report and "1200 to 1980 MHz" in report, "clocks are not in the report")
    check("| 9500 / 9100 | 1234.0 |" in report, "the free memory is not in the report")
    check("profile 141 (asked for)" in report, "the profile is not in the report")
    rows = {line.split(" | ")[0]: line for line in report.splitlines() if line.startswith("| ")}
    check("x 15, spread to 2.5%" in rows["| fp8, steps"] and "| once |" in rows["| swap"], "how often figures were taken")
    check("| decode 8b 1 | 200 | tokens/s | 15 | 0.01 | 240 | 1.2 |" in report and
          "| product 8b qkv 64 rows bf16 | 30 | us | 15 | 0.02 | 20 | 1.5 |" in report and "| no time |" in report,
          "our figures are not beside the peer's: " + report[report.find("## Beside"):][:900])
    check("820" in report and "692" in report, "ceilings are not in the report")


def parts_become_one_report(folder):
    for part, commit in ((1, "c0ffee"), (2, "c0ffee"), (3, "other")):
        results, _ = report_of(folder, recorded(True))
        names = {s["name"] for s in run.run_steps.steps(folder, part, size=FULL)}
        results.update(commit=commit, device="a GPU", steps=[s for s in results["steps"] if s["name"] in names])
        os.makedirs(f"{folder}/part{part}", exist_ok=True)
        run.write_all(f"{folder}/part{part}", results)
    done = call("report", *(f"{folder}/part{n}" for n in (1, 2)))
    check(done.returncode == 0, done.stderr)
    with open(folder + "/part1/results.json", encoding="utf-8") as file:
        names = {s["name"] for s in json.load(file)["steps"]}
    check({"opcheck", "serve"} <= names and "plans" not in names, f"{names}")
    done = call("report", *(f"{folder}/part{n}" for n in (1, 3)))
    check(done.returncode != 0 and "other" in done.stderr, "parts of two commits became one report")


def loops_are_told(folder):
    """A program that fails in one turn of a step's loop fails the step."""
    fake = folder + "/opcheck"
    with open(fake, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\necho "$HZP_CUDA_BULK $*"; case "$HZP_CUDA_BULK $*" in $FAILS) exit 1;; esac\n')
    os.chmod(fake, 0o755)
    step = next(s for s in run.run_steps.steps(folder, size=FULL) if s["name"] == "decode attention, two kernels")
    command = [fake if word.endswith("/opcheck") else word for word in step["command"]]
    for fails, status in (("1*--share=0*", 1), ("1*--share=32*", 1), ("0*--share=32*", 1), ("none", 0)):
        done = subprocess.run(command, env={**os.environ, "FAILS": fails}, capture_output=True, text=True, check=False)
        check(done.returncode == status, f"{step['name']}, {fails}: status {done.returncode}")
        check(done.stdout.count("engine ") == 8, f"{step['name']}: {done.stdout}")
    step = next(s for s in run.run_steps.steps(folder, size=FULL) if s["name"] == "sanitizer, memcheck")
    at = step["command"].index("--tool")
    command = [*step["command"][:at - 1], fake, *step["command"][at:]]
    for fails, status in (("*--op=sample", 1), ("*--op=rmsnorm", 1), ("none", 0)):
        done = subprocess.run(command, env={**os.environ, "FAILS": fails}, capture_output=True, text=True, check=False)
        check(done.returncode == status and done.stdout.count("--tool memcheck") == len(FULL.sanitized.split()), done.stdout)


def bad_steps_are_told(folder):
    """In order: fine, fails, hangs, unreadable output, no output, missing program, no time."""
    def step(name, script, **more):
        return dict({"name": name, "kind": "bench", "what": name, "command": ["bash", "-c", script],
                     "limit": HANG, "expect": 0, "need": 0, "fallbacks": "warn", "read": "json"}, **more)
    steps = [
        step("fine", 'echo \'{"t":"x","value":1}\''),
        step("fails", 'echo \'{"t":"x"}\'; echo broken >&2; exit 3', kind="check"),
        step("hangs", 'echo \'{"t":"before"}\'; sleep 6000 & wait', limit=3),
        step("leaves a child", 'sleep 6000 & echo \'{"t":"x"}\''),
        step("nonsense", "echo '{nonsense'"),
        step("nothing", "true"),
        step("killed", "kill -9 $$"),
        step("without its tool", "", command=["no-such-tool-of-this-machine"], optional=True),
        step("without its file", "", files=["/no/such/file"]),
        step("too long", "true", expect=5 * HANG),
        step("the last", 'echo \'{"t":"x","value":2}\''),
    ]
    out = folder + "/bad"
    os.makedirs(out)
    results = run.empty_results("c0ffee", "", FULL, "asked for")
    begun = time.time()
    with open(os.devnull, "w", encoding="utf-8") as sink:
        sys.stdout, kept = sink, sys.stdout
        run.perform(steps, dict(os.environ), out, results, 2 * HANG, run.watch.Watch("no-such-program"))
        sys.stdout = kept
    check(time.time() - begun < HANG, "a step that hangs holds up the run")
    with open(out + "/results.json", encoding="utf-8") as file:
        written = json.load(file)
    verdict = {s["name"]: s["verdict"] for s in written["steps"]}
    wanted = {"fine": "ok", "fails": "failed", "hangs": "hung", "leaves a child": "ok", "nonsense": "failed",
              "nothing": "failed", "killed": "failed", "without its tool": "skipped",
              "without its file": "left out", "too long": "left out", "the last": "ok"}
    check(verdict == wanted, f"verdicts are {verdict}")
    said = {s["name"]: s["said"] for s in written["steps"]}
    check("broken" in said["fails"], "what a step said of its failure is lost")
    check("past its limit" in said["hangs"], f"hangs: {said['hangs']}")
    check(written["steps"][2]["rows"] == [{"t": "before"}], "what a hanging step had printed is lost")
    check("no-such-tool-of-this-machine" in said["without its tool"], "the missing tool is not named")
    with open(out + "/report.md", encoding="utf-8") as file:
        report = file.read()
    for text in ("fails (failed)", "| hangs | bench | hung |", "not on this machine: no-such-tool", "no time:"):
        check(text in report, f"the report does not say \"{text}\"")
    check(all(g["reached"] == "not measured" for g in written["goals"]), "goals without a figure")


class Log:
    """A log of a device with this much free memory."""
    rows, why = [], ""

    def __init__(self, mib):
        self.mib = mib

    def memory(self):
        return 1000.0, self.mib

    @staticmethod
    def between(begin, end):
        return []


def time_and_memory_are_kept(folder):
    """A step ends when the run's time is over, whatever its limit; one begins only where what it is expected to take is
    left, and its memory is free."""
    def step(name, script, **more):
        return dict({"name": name, "kind": "bench", "what": name, "command": ["bash", "-c", script], "limit": HANG,
                     "expect": 0, "need": 0, "fallbacks": "warn", "read": "json"}, **more)
    out = folder + "/kept"
    os.makedirs(out)
    results = run.empty_results("c0ffee", "", FULL, "asked for")
    fine = 'echo \'{"t":"x","value":1}\''
    steps = [step("fits", fine, need=3_900_000_000), step("too large", fine, need=4_100_000_000),
             step("hangs", "sleep 6000", limit=HANG), step("no time", fine, expect=1), step("at once", fine, expect=-HANG)]
    begun = time.time()
    with contextlib.redirect_stdout(io.StringIO()):
        run.perform(steps, dict(os.environ), out, results, 3, Log(10e9 / 2**20))
    told = {s["name"]: (s["verdict"], s["said"]) for s in results["steps"]}
    check(time.time() - begun < HANG / 2, "a step goes on when the run's time is over")
    check([told[n][0] for n in ("fits", "too large", "hangs", "no time")] == ["ok", "left out", "hung", "left out"], f"{told}")
    check("it needs 4.1 GB, 10.0 are free" in told["too large"][1] and "no time" in told["no time"][1], f"{told}")
    check(results["steps"][0]["memory_free_mib"][0] == 10e9 / 2**20, "the free memory is not logged")


class LateLog(Log):
    """Memory that processes held which were killed comes back after some rows."""
    count = 0

    @property
    def rows(self):
        self.count += 1
        return [None] * self.count

    def memory(self):
        return 1000.0, self.mib if self.count > 40 else 7e9 / 2**20


def memory_comes_back(folder):
    def step(name, script, need, limit=HANG):
        return {"name": name, "kind": "bench", "what": name, "command": ["bash", "-c", script], "limit": limit, "expect": 0,
                "need": need, "fallbacks": "warn", "read": "none"}
    results = run.empty_results("c0ffee", "", FULL, "asked for")
    os.makedirs(folder + "/late")
    with contextlib.redirect_stdout(io.StringIO()):
        run.perform([step("hangs", "sleep 6000", 0, 1), step("fits", "true", 3_000_000_000)], dict(os.environ),
                    folder + "/late", results, HANG, LateLog(10e9 / 2**20))
    told = [s["verdict"] for s in results["steps"]]
    check(told == ["hung", "ok"], f"after a step that was killed: {told}")


def mistakes_cost_nothing(folder, pack):
    """No run of no steps; results that are there are not lost."""
    out = folder + "/again"
    done = call("here", pack, out, "--trial", "--only", "no-such-step")
    check(done.returncode == 1 and "no-such-step" in done.stderr and not os.path.exists(out), f"--only: {done.stderr}")
    os.makedirs(out)
    with open(out + "/results.json", "w", encoding="utf-8") as file:
        file.write("kept")
    done = call("here", pack, out, "--trial", "--only", "devices")
    with open(out + "/results.json", encoding="utf-8") as file:
        check(done.returncode == 1 and "is there" in done.stderr and file.read() == "kept", f"OUT: {done.stderr}")


SLOWER = "2026-01-01T00:00:00.000Z warn  cuda: fallback kind={} shape=7x8x9: the library has no algorithm\n"


def replaced(folder, pack, name, script):
    """A pack with this program replaced."""
    if os.path.exists(folder):
        shutil.rmtree(folder)
    shutil.copytree(pack, folder, symlinks=True)
    os.unlink(f"{folder}/{name}")
    with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
        file.write("#!/bin/bash\n" + script)
    os.chmod(f"{folder}/{name}", 0o755)
    return folder


def trial_of(folder, pack, only):
    """A trial of one step: its exit, what it printed, its results."""
    if os.path.exists(folder + "/slower-out"):
        shutil.rmtree(folder + "/slower-out")
    done = call("here", pack, folder + "/slower-out", "--trial", "--only", only)
    with open(folder + "/slower-out/results.json", encoding="utf-8") as file:
        return done.returncode, done.stdout + done.stderr, json.load(file)["steps"][0]


def slower_ways_are_told(folder, pack):
    """A fallback in any step is printed with shape and reason, whether the log says it or bench counts it; in steps of a
    large model of later parts it makes exit 1, else it is a warning; not in steps that ask for odd shapes, and not
    attention in F32 where text is compared."""
    said = f"printf '%s' '{SLOWER.format('product')}' >&2\n"
    fine = "echo '" + '{"t":"ceiling","burst_tflops":1,"sustained_tflops":1}' + "'\n"
    for script, wanted in ((fine, 0), (said + fine, 1)):
        code, out, step = trial_of(folder, replaced(folder + "/slower", pack, "ceiling", script), "ceiling")
        check(step["verdict"] == "ok" and code == 0, f"{script}: exit {code}, {step}")
        check(("warning: fallback in step ceiling: product, 7x8x9: the library has no algorithm" in out) == bool(wanted), out)
        with open(folder + "/slower-out/report.md", encoding="utf-8") as file:
            check(("Warning: fallback in step ceiling" in file.read()) == bool(wanted), "the report")
    for name, figures, wanted in (("serve", bench(), 0), ("serve", bench(figure("fallbacks, graph", 2.0)), 1),
                                  ("swap", bench(figure("fallbacks, graph", 2.0)), 0)):
        script = f"echo '{figures}'\n"
        code, out, _ = trial_of(folder, replaced(folder + "/slower", pack, "hzpserve", script), name)
        check(code == wanted and ("graph, 2 times" in out) == ("fallbacks" in figures), f"{name}: exit {code}, {out}")
    code, out, _ = trial_of(folder, replaced(folder + "/slower", pack, "hzpserve", said + f"echo '{bench()}'\n"), "serve")
    check(code == 1 and "\nfallback in step serve: product, 7x8x9" in out, f"serve: exit {code}, {out}")
    odd = replaced(folder + "/slower", pack, "test_golden", said + "echo fine\n")
    check("fallback" not in trial_of(folder, odd, "golden")[1], "golden asks for odd shapes")
    for kind, dtype, wanted in (("attention", "f32", 0), ("attention", "bf16", 1), ("product", "f32", 1)):
        script = f"""case "$*" in *"--dtype {dtype} "*) printf '%s' '{SLOWER.format(kind)}' >&2;; esac\necho a text\n"""
        code, out, step = trial_of(folder, replaced(folder + "/slower", pack, "hzpserve", script), "greedy equality")
        check(step["verdict"] == "ok" and code == 0 and ("warning" in out) == bool(wanted), f"{kind} in {dtype}: {code}, {out}")
    for script, wanted in (("exit 3\n", "failed"), ("echo 'memory driver: 1 MB' >&2; exit 3\n", "failed"),
                           ("echo 'memory driver: 1 MB' >&2\n", "ok")):
        pack_ = replaced(folder + "/slower", pack, "hzpserve", script)
        check(trial_of(folder, pack_, "driver memory")[2]["verdict"] == wanted, f"driver memory: {script}")
    full = next(s for s in run.run_steps.steps(folder + "/slower", size=FULL) if s["name"] == "driver memory")
    replaced(folder + "/slower", pack, "hzpserve", "exit 0\n")
    check(subprocess.run(full["command"], capture_output=True, check=False).returncode, "a GPU without the line")
    for script, wanted in (("echo a text\n", "ok"), ("echo $HZP_GRAPHS\n", "failed"), ("exit 0\n", "failed")):
        pack_ = replaced(folder + "/slower", pack, "hzpserve", script)
        check(trial_of(folder, pack_, "greedy, 1B")[2]["verdict"] == wanted, f"texts: {script}")


def choices_are_kept(folder, pack):
    """What a step leaves in its cache is there for the next run; its other state is not."""
    keeps = 'mkdir -p $XDG_CACHE_HOME/hzpserve; touch $XDG_CACHE_HOME/hzpserve/x.algos $XDG_DATA_HOME/y; echo cpu\n'
    for kept in (0, 1):
        trial_of(folder, replaced(folder + "/slower", pack, "hzpserve", keeps), "devices")
        with open(folder + "/slower-out/results.json", encoding="utf-8") as file:
            check(json.load(file)["kept_choices"] == kept, f"choices kept from one run to the next: {kept}")
        check(sorted(os.listdir(folder + "/slower-out")) == ["clocks.csv", "report.md", "results.json"], "files left in OUT")
    check(os.path.exists(folder + "/build-gpu-cache/hzpserve/x.algos"), "the choices are not beside the pack")


PROFILED = '''==PROF== Connected
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Metric Name","Metric Unit","Metric Value"
"0","7","product","h","project(args)","1","7","gpu__time_duration.sum","nsecond","13,500"
"0","7","product","h","project(args)","1","7","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","87.5"
"1","7","product","h","project(args)","1","7","gpu__time_duration.sum","us","13.9"
"1","7","product","h","project(args)","1","7","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","88.5"
'''


def profiles_are_read():
    rows = run.run_steps.profiled(PROFILED)
    check(rows == [{"t": "kernel", "kernel": "project", "repeats": 2, "us": 13.9, "memory_percent": 88.5,
                    "spread": 0.029}], f"{rows}")


def logs_are_passed_on(folder, pack):
    """The scripts that start servers show what these have logged."""
    fake = replaced(folder + "/slower", pack, "hzpserve", f"printf '%s' '{SLOWER.format('share')}' >&2\n") + "/hzpserve"
    done = subprocess.run([sys.executable, os.path.dirname(RUN) + "/run_life.py", fake, "model", "examples"],
                          capture_output=True, text=True, check=False)
    check(done.returncode and "kind=share" in done.stderr, f"run_life.py: {done.stderr}")
    with contextlib.redirect_stderr(io.StringIO()) as log:
        __import__("run_ranks").show("x\n" + SLOWER.format("share") + "2026 info  loop: fine\n")
    check("kind=share" in log.getvalue() and "fine" not in log.getvalue(), f"run_ranks.py: {log.getvalue()}")


def verdicts(out):
    with open(out + "/results.json", encoding="utf-8") as file:
        return [step["verdict"] for step in json.load(file)["steps"]]


def marked(mark):
    """The processes with this in their environment: of this run, and of no other that runs beside it."""
    found = []
    for file in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in file.read_bytes():
                found.append(file.parent.name)
        except OSError:  # ended meanwhile, or another user's
            pass
    return found


def killed_runs_keep_what_they_had(folder):
    """A run killed within a step: its files are complete and name the step, and the step ends, too."""
    out = folder + "/killed"
    mark = "HZP_TEST_RUN=" + out
    child = subprocess.Popen([sys.executable, RUN, "here", folder + "/pack", out, "--trial", "--only",
                              "devices,swap"], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "HZP_TEST_RUN": out})
    check("devices" in child.stdout.readline(), "no step ran")
    end = time.time() + HANG
    while ("begun" not in verdicts(out) or len(marked(mark)) < 2) and time.time() < end:
        time.sleep(0.02)
    child.terminate()
    child.communicate()
    check(child.returncode == 143, f"ended with {child.returncode}")
    check(verdicts(out) == ["ok", "begun"], f"left behind: {verdicts(out)}")
    while (left := marked(mark)) and time.time() < end:  # a killed process may take a moment to go
        time.sleep(0.02)
    check(not left, f"the step goes on without the run: {left}")


def figure(name, value, share=None):
    row = {"name": name, "value": value, "unit": ""}
    return row if share is None else dict(row, limit=value / share, share=share)


def bench(*figures, copy=4000.0, gemm=700000.0):
    """Output like that of hzpserve bench --json, with ceilings lower than the run's best."""
    return json.dumps({"bench": "x", "model": "y", "figures": [
        *figures, figure("limit: read bandwidth", copy), figure("limit: library GEMM, f32", 50000.0),
        figure("limit: library GEMM, bf16", gemm),
        {"profile": "serve", "op": "matmul"}]})


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows)


def recorded(good):
    """Possible outputs of each step on a GPU; not good: everything slightly misses its goal."""
    less = 1 if good else 0.8
    swaps = [figure(f"{rate} swaps/s: {what}", value) for rate in (0, 1, 10) for what, value in
             (("swaps done", rate * 3), ("ITL p50", 5.0), ("ITL p99", 5.5), ("worst ITL", 6.0))]
    swaps += [figure(f"{rate} swaps/s: what a swap adds at worst, in steps", 0.2 / less ** 8)
              for rate in (1, 10)]

    def coserve(gain, missed):
        return bench(figure("training on: co-serving gain", gain), figure("time-slicing: co-serving gain", 1.0),
                     figure("training on: ITLs beyond the goal", missed),
                     figure("training on: TTFTs beyond the goal", 0.0))
    return {
        "product": lines({"t": "device", "label": "x", "copy_gbytes_per_s": 4200, "gemm_bf16_tflops": 800.0,
                          "gemm_f32_tflops": 50.0},
                         {"t": "serve", "shape": "8b", "sequences": 1, "context": 512, "rows": 1,
                          "gbytes_per_s": 3600.0, "ms": 4.0, "tokens_per_s": 240},
                         {"t": "serve", "shape": "8b", "sequences": 64, "context": 1024, "rows": 1,
                          "gbytes_per_s": 3500.0 * less, "ms": 7.0, "tokens_per_s": 9000},
                         {"t": "attention", "shape": "8b", "sequences": 64, "gbytes_per_s": 3700.0 * less},
                         ),
        "training": lines({"t": "device", "label": "x", "copy_gbytes_per_s": 4200, "gemm_bf16_tflops": 800.0,
                           "gemm_f32_tflops": 50.0},
                          {"t": "train", "shape": "3b", "documents": 8, "length": 1024, "of_gemm": 0.3, "tokens_per_s": 20000},
                          {"t": "train", "shape": "3b", "documents": 2, "length": 4096, "of_gemm": 0.6 * less,
                           "tokens_per_s": 20000}),
        **{f"product, {name}": lines({"t": "serve", "shape": "8b", "sequences": 1, "context": 512, "rows": 1, "ms": 4.5})
           for name, _ in run.run_goals.VARIANTS},
        "cudnn attention, quick": lines({"t": "cudnn", "pass": "forward", "heads": 24, "kv_heads": 8, "dim": 128,
                                         "length": 4096, "ours_ms": 2.0, "cudnn_ms": 1.0, "repeats": 7, "spread": 0.1}),
        "peer": lines({"torch": "2"}, {"name": "decode 8b 1", "value": 200, "unit": "tokens/s", "repeats": 15, "spread": 0.01},
                      {"name": "product 8b qkv 64 rows bf16", "value": 30, "unit": "us", "repeats": 15, "spread": 0.02},
                      {"name": "train 3b 4096", "failed": "no time"}, {"done": True, "seconds": 80.0}),
        "profile": PROFILED,
        "ceiling": lines({"t": "ceiling", "burst_tflops": 820.0, "sustained_tflops": 692.0},
                         {"t": "matmul", "product": "qkv", "rows": 64, "us": 20, "repeats": 15, "spread": 0.02}),
        "serve": bench(figure("decode, one sequence", 240.0, 0.95 * less), figure("prefill, 511 tokens", 9.0, 0.78 * less),
                       copy=4000.0),
        "offline 512/512": bench(figure("offline, prompts and answers", 26000.0 * less)),
        "offline 1024/512": bench(figure("offline, prompts and answers", 25500.0 * less)),
        "offline, drawn": bench(figure("offline, prompts and answers", 25700.0 * less ** 2)),
        "offline 1000/1000": bench(figure("offline, answers", 9500.0 * less), figure("steps, 64-127 decodes, 0 prompt rows", 30.0),
                                   figure("time, 64-127 decodes, 0 prompt rows", 300.0),
                                   figure("steps, 64-127 decodes, 1024+ prompt rows", 4.0),
                                   figure("time, 64-127 decodes, 1024+ prompt rows", 100.0)),
        "offline, fp8": bench(figure("offline, answers", 16500.0 * less)),
        "tuning beside KV": bench(figure("memory: KV cache", 25.42 * less), figure("memory: available", 149.0),
                              figure("memory: planned", 147.0), figure("seconds an update", 0.5)),
        "swap": bench(*swaps),
        "co-serving, turns": coserve(1.1, 0.0),
        "co-serving, green": coserve(1.4, 0.5 / less ** 8),
        "co-serving, grid": coserve(1.6, 3.0),
        "R to P, green": lines({"t": "alone"}, {"t": "share", "cores": 32, "R": 0.24, "P": 0.5,
                                                "products": 0.65, "sum": 1.15}),
        "R to P, grid": lines({"t": "share", "cores": 32, "R": 0.24, "P": 0.5, "products": 0.6, "sum": 1.1}),
        "plans": lines(*[{"t": "plan", "decode": 512, "depth": 768, "prefill": 512, "train": 0, "plan": plan,
                          "ms": 40.0, "over_sequential": over} for plan, over in
                         (("sequential", 1.0), ("nano-batches alone", 0.95), ("searched", 1.1))]),
        "graphs of lanes": lines(*[{"form": form, "t": "plan", "decode": 64, "depth": 1024, "prefill": 0, "train": 0,
                                    "plan": "overlapped, by hand", "ms": ms, "graphs": graphs}
                                   for form, ms, graphs in (("lanes", 5.0, 113), ("whole", 6.0, 1))]),
        "fp8, offers": lines({"t": "offers", "product": "qkv", "rows": 16, "out": "f32 +", "fast": 1, "offers": 8, "us": 9.0}),
        "fp8, steps": lines({"t": "fp8", "sequences": 1, "times": 1.6, "bf16_tokens_per_s": 200.0,
                             "fp8_tokens_per_s": 320.0, "repeats": 15, "spread": 0.025},
                            {"t": "fp8 logits", "max_difference": 0.1, "deviation": 1.0,
                             "rms_over_deviation": 0.02, "greedy_same": 0.97}),
        "fp8, trained": '{"mean_nll": 0.67}\n{"mean_nll": 0.68}\n',
    }


def report_of(folder, outputs):
    """The rows for the recorded outputs, read and judged by the same code."""
    results = run.empty_results("c0ffee", "", FULL, "asked for")
    for step in run.run_steps.steps(folder, extra=True, size=FULL):
        out = outputs.get(step["name"], "all fine\n132 SMs\n" if step["kind"] == "check" else "")
        if step["kind"] == "check":
            step = {**step, "read": "last"}
        row = {"name": step["name"], "kind": step["kind"], "what": step["what"], "wall_s": 1, "rc": 0}
        row.update(run.run_steps.judge(step, 0, out, ""))
        results["steps"].append(row)
    results["goals"] = run.run_goals.goals(results)
    return results, run.run_goals.report(results)


ASKED = ["opcheck of every op", "golden numbers", "greedy text equal", "1B text equal", "compute-sanitizer", "8B offline 512/512",
         "8B offline 1024/512", "8B offline 1000/1000", "8B offline 1000/1000, weights and KV cache in fp8",
         "8B offline 512/512, drawn", "8B decode attention", "8B decoding, one request", "8B decoding, 64 sequences",
         "8B prefill", "8B decode step without graphs", "8B decode step without early", "8B decode step without fewer",
         "8B decode step without the tensor", "8B decode step with early", "3B training", "8B full fine-tuning", "8B inter-token latency, 0 swaps", "8B inter-token latency, 1 swaps",
         "8B inter-token latency, 10 swaps", "8B worst inter-token latency at a swap", "8B co-serving gain at half load, goals held",
         "8B plans over", "3B decode step over two lanes", "R -> P of decode attention + training's products, green",
         "R -> P of decode attention + training's products, grid", "8B decode in fp8", "8B logits in fp8",
         "trained model: loss"]
HELD = ["8B offline 512/512", "8B offline 1024/512", "8B offline 1000/1000",
        "8B offline 1000/1000, weights and KV cache in fp8", "8B offline 512/512, drawn", "8B decode attention", "8B decoding, 64 sequences",
        "8B prefill", "8B decoding, one request", "3B training", "8B full fine-tuning", "8B worst inter-token latency at a swap",
        "8B co-serving gain at half load, goals held"]


def the_limit_without_bf16(folder):
    """A device without a bf16 product is judged by its F32 product, and every goal still has a figure."""
    def without(rows):
        zero = ("gemm_bf16_tflops", "limit: library GEMM, bf16")
        return [{k: 0.0 if k == zero[0] or k == "value" and r.get("name") == zero[1] else v for k, v in r.items()}
                for r in rows]
    results, _ = report_of(folder, recorded(True))
    for step in results["steps"]:
        step["rows"] = without(step["rows"])
    check(run.run_goals.ceilings(results) == (4200, 50.0), "the limit is not the F32 product's")
    missing = [g for g in run.run_goals.goals(results) if g["reached"] == "not measured"]
    check(not missing, f"without a bf16 product: {missing}")


def goals_are_judged(folder):
    for good in (True, False):
        results, report = report_of(folder, recorded(good))
        check(run.run_goals.ceilings(results) == (4200, 800.0), "ceilings are not the run's best")
        for name in ASKED:
            found = [g for g in results["goals"] if g["goal"].startswith(name)]
            check(found, f"no row of {name}")
            check(found[0]["reached"] != "not measured", f"{name}: {found[0]}")
            check(f"| {found[0]['goal']} |" in report, f"{name} is not in the report")
            if name == "8B offline 1000/1000":
                check("| 64-127 | 75%, 30 x 10 | 25%, 4 x 25 |" in report and "| steps, 64" not in report,
                      "the steps by their rows: " + report)
            if name in HELD:
                check(found[0]["reached"] == ("yes" if good else "NO"), f"good {good}: {found[0]}")
    results, _ = report_of(folder, recorded(True))
    def measured(name):
        return next(g["measured"] for g in run.run_goals.goals(results) if g["goal"].startswith(name))
    turn = run.arithmetic.in_turn(run.arithmetic.Model("8b"), 768, 512, 512, 4200e9, 692e12)[0]
    check(abs(measured("8B offline 512/512") - 26000 / turn) < 1e-9, "not a share of what the device sustains in turn")
    check(abs(measured("8B prefill") - 0.78 * 700 / 692) < 1e-9, "the share is not of what the device sustains")
    results["steps"] = [s for s in results["steps"] if s["name"] != "ceiling"]
    check(abs(measured("8B prefill") - 0.78 * 700 / 800) < 1e-9, "the share is of its own step's ceiling, not the run's")
    results, _ = report_of(folder, recorded(True))
    gain = next(g for g in results["goals"] if g["goal"].endswith("goals held"))
    check(gain["measured"] == 1.4, f"the best way that holds its goals is green: {gain}")


# ---- trial ----

def trial(folder):
    pack, out = linked(folder), folder + "/out"
    done = call("here", pack, out, "--trial")
    with open(out + "/results.json", encoding="utf-8") as file:
        results = json.load(file)
    for step in results["steps"]:
        absent = step["verdict"] == "skipped" and any(
            word in step["name"] for word in ("sanitizer", "cudnn", "offers", "peer", "profile"))
        check(step["verdict"] == "ok" or absent, f"{step['name']} ({step['verdict']}): {step['said']}")
    check(done.returncode == 0, done.stdout + done.stderr)
    loads = [s for s in results["steps"] if s["name"].startswith("offline")]
    check(loads and all(run.run_goals.steps_table(s["rows"]) for s in loads), "no steps by their rows")
    for goal in results["goals"]:
        can = "sanitizer" not in goal["goal"] and not goal["goal"].endswith(", grid")
        check(goal["reached"] == "a trial" or not can, f"{goal}")
    for name in ASKED:
        check(any(g["goal"].startswith(name) for g in results["goals"]), f"no row of {name}")
    with open(out + "/report.md", encoding="utf-8") as file:
        check("its figures mean nothing" in file.read(), "a trial's report says what it is")


def logic(folder):
    pack = linked(folder)
    for profile in run.run_sizes.PROFILES:
        dry = call("here", pack, folder + "/dry", "--dry", "--profile", str(profile))
        check(dry.returncode == 0 and f"profile {profile}: asked for" in dry.stdout, "dry: " + dry.stdout)
    check(not os.path.exists(folder + "/dry"), "a dry run leaves files")
    commands_are_understood(pack)
    time_suffices(pack)
    sizes_fit(pack, FAKE)
    time_and_memory_are_kept(folder)
    memory_comes_back(folder)
    mistakes_cost_nothing(folder, pack)
    profiles_are_read()
    arithmetic_by_hand()
    memory_is_told(pack)
    parts_become_one_report(pack)
    loops_are_told(folder)
    bad_steps_are_told(folder)
    slower_ways_are_told(folder, pack)
    choices_are_kept(folder, pack)
    logs_are_passed_on(folder, pack)
    killed_runs_keep_what_they_had(folder)
    goals_are_judged(pack)
    the_limit_without_bf16(pack)


# ---- pack ----

MOST_MIB = 48  # of pack and tracked files: 12 below what `pack` refuses


def refusal(function, *args):
    """What it says as it ends the program; "": it does not."""
    try:
        function(*args)
    except SystemExit as end:
        return str(end)
    return ""


def pack(folder):
    made = folder + "/pack.txz"
    done = call("pack", BUILD, made, "--commit", "c0ffee")
    check(done.returncode == 0, "pack: " + done.stdout + done.stderr)
    total = float(re.search(r"= ([\d.]+) MiB", done.stdout)[1])
    check(0 < total <= MOST_MIB, f"{total} MiB: {done.stdout}")
    travels = refusal(lambda: run.within(pack=50 << 20, objects=8 << 20, tree=3 << 20))
    check("50.0 MiB of pack + 8.0 MiB of objects + 3.0 MiB of tree = 61.0 MiB" in travels, f"refused with: {travels}")

    place, empty = folder + "/unpacked", folder + "/empty"
    os.makedirs(empty)
    with tarfile.open(made) as tar:
        tar.extractall(place)
    os.unlink(made)
    env = {"PATH": os.environ["PATH"], "HOME": empty, "LD_LIBRARY_PATH": place + "/lib"}

    def works(*command):
        done = subprocess.run(command, cwd=empty, env=env, capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"{command}: {done.returncode}: {done.stdout[-2000:]}{done.stderr}")
        return done.stdout
    check("cpu" in works(place + "/hzpserve", "devices"), "hzpserve devices")
    check(" 0 failed" in works(place + "/opcheck", "--quiet", "--backend=cpu", "--op=rmsnorm"), "opcheck")
    check("0 steps cannot run" in works(sys.executable, "-B", place + "/run", "here", place, empty + "/out", "--dry"), "dry")
    for program in os.listdir(place):
        with open(f"{place}/{program}", "rb") if os.path.isfile(f"{place}/{program}") else io.BytesIO() as file:
            if file.read(4) != b"\x7fELF":
                continue
        listed = works("ldd", f"{place}/{program}")
        check("not found" not in listed and BUILD not in listed, f"{program} needs what is not in the pack: {listed}")


with tempfile.TemporaryDirectory() as temporary:
    {"logic": logic, "pack": pack, "trial": trial}[WHAT](temporary)
print("ok")
