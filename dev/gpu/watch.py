# SPDX-License-Identifier: Apache-2.0
"""A log of a GPU's clocks, power and memory beside a run, by nvidia-smi: of the GPU that CUDA takes first.

Without nvidia-smi, or a GPU, the log is empty, and `why` says so.
"""
import os
import subprocess
import threading
import time

FIELDS = (("sm_mhz", "clocks.sm"), ("power_w", "power.draw"), ("temperature_c", "temperature.gpu"),
          ("memory_used_mib", "memory.used"), ("memory_free_mib", "memory.free"), ("throttled", "clocks_event_reasons.active"))
IDLE, SETTINGS = 0x1, 0x2  # reasons that are none: nothing to do; clocks as the operator has set them
EVERY_MS = 100


def this_gpu():
    """nvidia-smi's options for it: CUDA, too, numbers equal GPUs by their place on the bus."""
    return ["-i", os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"]


def number(text):
    """The value of a field; None: the device does not tell it."""
    word = text.strip().split(" ")[0]
    try:
        return float(int(word, 16) & ~(IDLE | SETTINGS)) if word.startswith("0x") else float(word)
    except ValueError:
        return None


def parse(line):
    """One line as a row; None: it is not one (a warning, a header)."""
    cells = line.split(",")
    if len(cells) != len(FIELDS):
        return None
    row = {name: number(cell) for (name, _), cell in zip(FIELDS, cells)}
    return row if any(value is not None for value in row.values()) else None


def summary(rows):
    """Lowest, median and highest of each column, the least free memory, and the share of the time in which clocks
    were held back."""
    found = {}
    for name, _ in FIELDS[:3]:
        column = sorted(row[name] for row in rows if row[name] is not None)
        if column:
            found[name] = [column[0], column[len(column) // 2], column[-1]]
    free = [row["memory_free_mib"] for row in rows if row["memory_free_mib"] is not None]
    if free:
        found["least_free_mib"] = min(free)
    held = [row["throttled"] for row in rows if row["throttled"] is not None]
    if held:
        found["throttled"] = round(sum(value > 0 for value in held) / len(held), 3)
    return found


class Watch:
    """The log from start to stop; one row every tenth of a second, with its time."""

    def __init__(self, program="nvidia-smi"):
        self.rows, self.why = [], ""
        try:
            self.process = subprocess.Popen(
                [program, "--query-gpu=" + ",".join(field for _, field in FIELDS), "--format=csv,noheader", "-lms",
                 str(EVERY_MS), *this_gpu()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError as error:
            self.process, self.why = None, f"{program}: {error.strerror}"
            return
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            row = parse(line)
            if row:
                self.rows.append((time.time(), row))
        if not self.rows:
            self.why = "nvidia-smi reports no GPU"

    def between(self, begin, end):
        return [row for at, row in list(self.rows) if begin <= at <= end]

    def memory(self):
        """MiB that are (used, free) now; None: not known."""
        row = self.rows[-1][1] if self.rows else {}
        now = row.get("memory_used_mib"), row.get("memory_free_mib")
        return None if None in now else now

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.thread.join()
