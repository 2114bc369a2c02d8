#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what dev/gpu/run reads of nvidia-smi, without a GPU.

    test_watch.py RUN
"""
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import time

HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_run", sys.argv[1])
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
loader.exec_module(run)


def check(fine, what):
    if not fine:
        sys.exit(f"FAIL: {what}")


FAKE_SMI = """#!/bin/sh
echo "clocks.sm [MHz], a header"
i=0
while :; do
  echo "$((1200 + i % 3 * 300)) MHz, $((500 + i % 2 * 180)).50 W, 61, $((400 + i / 4 * 100)) MiB, $((9000 - i % 4 * 1000)) MiB, 0x000000000000000$((i % 2 * 4 + 1))"
  i=$((i + 1)); sleep 0.05
done
"""


def clocks_are_logged(folder):
    """Rows of nvidia-smi; what is no row is left out; without the program, or a GPU, the log says why."""
    watch = run.watch
    row = watch.parse("1980 MHz, 699.12 W, 71, 1024 MiB, 2048 MiB, 0x0000000000000005")
    check(row == {"sm_mhz": 1980, "power_w": 699.12, "temperature_c": 71, "memory_used_mib": 1024, "memory_free_mib": 2048,
                  "throttled": 4}, f"{row}")
    check(watch.parse("[N/A], [N/A], 40, [N/A], [N/A], 0x1")["temperature_c"] == 40, "a field that is not told")
    check(watch.parse("Failed to initialize NVML") is None, "a warning is no row")
    fake = folder + "/nvidia-smi"
    with open(fake, "w", encoding="utf-8") as file:
        file.write(FAKE_SMI)
    os.chmod(fake, 0o755)
    log, begin = watch.Watch(fake), time.time()
    while len(log.rows) < 8 and time.time() < begin + HANG:
        time.sleep(0.05)
    told = watch.summary(log.between(begin, time.time()))
    log.stop()
    check(told["sm_mhz"][0] == 1200 and told["sm_mhz"][2] == 1800 and told["power_w"][2] == 680.5, f"{told}")
    check(told["least_free_mib"] == 6000, f"{told}")
    check(0 < told["throttled"] < 1, f"reasons that are none count: {told}")
    check("no-such-program" in watch.Watch("no-such-program").why, "a missing program is not named")
    empty = watch.Watch("true")
    empty.thread.join()
    check("no GPU" in empty.why and watch.summary(empty.rows) == {}, empty.why)


SMI_OF_TWO = """#!/bin/sh
which=both
while [ $# -gt 0 ]; do [ "$1" = -i ] && which=$2; shift; done
for gpu in 0 1; do
  [ $which = both ] || [ $which = $gpu ] && echo "$((80000 + gpu)) MiB, $((79000 + gpu)) MiB, MIG"
done
exit 0
"""


def one_gpu_is_read(folder):
    """Of several GPUs the one that CUDA takes first; a GPU that is divided says nothing of its parts."""
    os.makedirs(folder + "/two")
    env, kept = os.environ, dict(os.environ)
    env["PATH"] = folder + "/two:" + env["PATH"]

    def told(visible, mig):
        with open(folder + "/two/nvidia-smi", "w", encoding="utf-8") as file:
            file.write(SMI_OF_TWO.replace("MIG", mig))
        os.chmod(folder + "/two/nvidia-smi", 0o755)
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        return run.device_memory()
    check(told(None, "Disabled") == (80000 << 20, 79000 << 20), "the first GPU")
    check(told("1,0", "[N/A]") == (80001 << 20, 79001 << 20), "the one that the environment names first")
    check(run.smi("name").count("\n") == 0 and run.watch.Watch().process.args[-2:] == ["-i", "1"], "rows of several GPUs")
    check(told(None, "Enabled") is None, "the memory of a GPU that is divided is not that of a part")
    env.clear()
    env.update(kept)


with tempfile.TemporaryDirectory() as temporary:
    clocks_are_logged(temporary)
    one_gpu_is_read(temporary)
print("ok")
