#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a server many times, each time with a different allocation that fails.

    test_alloc.py HZPSERVE LIBFAIL MODEL_DIR [TRIES]

libfail (fail.c) is preloaded and makes the N-th allocation fail, for TRIES values of N among all
allocations, and as many among those of 64 KB and more (buffers of a device, files, tables).  Each start must
end in one of these ways:

    serves      the failure is tolerated; SIGTERM then ends the server with status 0
    refuses     status 1 or 2, and a line on standard error
    aborts      by design, for small allocations (base/arena.h) and within libraries: SIGABRT, and a line
                on standard error that says what ran out

and never by another signal, by a failed assertion, or not at all.  A refused start leaves nothing in its state
directory, and the next start in the same directory serves in every case.
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

HANG = 600  # seconds
LARGE = 64 << 10


def start(server, library, model, folder, **settings):
    """Starts a server and ends it when it is ready; returns its status and its standard error."""
    env = dict(os.environ, LD_PRELOAD=library, HZP_LOG="info", XDG_CACHE_HOME=str(folder / "cache"),
               **{name: str(value) for name, value in settings.items()})
    process = subprocess.Popen(
        [server, "serve", model, "--port", "0", "--state", str(folder / "state"), "--threads", "1",
         "--kv-tokens", "1024", "--device", "cpu"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    timer = threading.Timer(HANG, process.kill)
    timer.start()
    errors = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
    reader.start()
    ready = False
    for line in process.stdout:
        if "http://" in line and not ready:
            ready = True
            process.send_signal(signal.SIGTERM)
    status = process.wait()
    reader.join()
    timer.cancel()
    return ready, status, errors[0]


def judge(ready, status, errors, folder):
    """Returns a word for how the start ended, and what is wrong with it."""
    if status == -signal.SIGKILL:
        return "hangs", "it did not end"
    if "assertion failed" in errors or "hzpserve: bug" in errors:
        return "asserts", "an assertion failed"
    if status == 0:
        return "serves", None if ready else "status 0, and it never served"
    if status == -signal.SIGABRT:
        return "aborts", None if "emory" in errors or "bad_alloc" in errors else "no word about memory"
    if status < 0:
        return "crashes", f"signal {-status}"
    if status not in (1, 2):
        return "refuses", f"status {status}"
    if not errors.strip():
        return "refuses", "without a word"
    if not ready and (folder / "state").exists():
        return "refuses", "and leaves " + ", ".join(str(p) for p in (folder / "state").rglob("*"))
    return "refuses", None


def main():
    server, library, model = sys.argv[1:4]
    tries = int(sys.argv[4]) if len(sys.argv) > 4 else 24
    bad, ended = [], {}
    for minimum in (0, LARGE):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            ready, status, errors = start(server, library, model, folder, HZP_FAIL_MIN=minimum,
                                          HZP_FAIL_COUNT=folder / "count")
            assert ready and status == 0, f"it does not serve at all: {status}\n{errors}"
            count = int((folder / "count").read_text())
        assert count > 10, f"only {count} allocations of {minimum} bytes are seen"
        chosen = sorted({1 + i * (count - 1) // max(tries - 1, 1) for i in range(min(tries, count))})
        for n in chosen:
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                result = start(server, library, model, folder, HZP_FAIL_MIN=minimum, HZP_FAIL_AT=n)
                how, wrong = judge(*result, folder)
                ended[how] = ended.get(how, 0) + 1
                if wrong is None and how == "aborts":
                    ready, status, errors = start(server, library, model, folder)
                    if not ready or status != 0:
                        wrong = f"and the next start does not serve: {errors}"
                if wrong:
                    bad.append(f"allocation {n} of {count} (>= {minimum} bytes): {how}: {wrong}\n"
                               + "\n".join(result[2].splitlines()[-6:]))
    print(", ".join(f"{n} {how}" for how, n in sorted(ended.items())))
    for text in bad:
        print(text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
