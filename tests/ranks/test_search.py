#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A search on ranks that compute each step together: a signal ends it in order, and the same command continues; the
file says what it is of; a rank that dies is named, and the file stays whole.

    test_search.py HZPSERVE MODEL LINK...    links: mpi, zmq
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

serve, model = sys.argv[1:3]
HANG = 1500  # seconds; only a hang takes as long


class Search:
    """A search that writes into this folder."""

    def __init__(self, folder, link):
        self.file, self.log = folder / "plans.json", folder / f"log-{time.monotonic_ns()}"
        # other tests may run at the same time: their share of the processors does not count
        command = [serve, "search", model, "--ranks", "2", "--tensor", "2", "--link", link, "--no-train", "--device",
                   "cpu", "--threads", "1", "--max-running", "2", "--step-rows", "8", "--tries", "1", "--seconds", "4",
                   "--max-others", "1", "--rank-timeout", "60", "--file", self.file]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def measures(self):
        """Waits until both ranks have met."""
        end = time.monotonic() + HANG
        while "met rank=0" not in self.log.read_text() or "met rank=1" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)

    def pid(self, rank):
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
                variables = (path.parent / "environ").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue
            if parent == self.process.pid and b"RANK=%d" % rank in variables:
                return int(path.parent.name)
        return None  # it has ended

    def end(self):
        return self.process.wait(HANG), self.log.read_text()

    def read(self):
        return json.loads(self.file.read_text())


def disturbed(folder, link, disturb):
    """The status and the log of a search to which that was done before it had ended."""
    status, search = 0, None
    while status == 0:  # it was over already
        (folder / "plans.json").unlink(missing_ok=True)
        search = Search(folder, link)
        search.measures()
        disturb(search)
        status, log = search.end()
    return status, log, search


def continues(folder, link):
    status, log, first = disturbed(folder, link, lambda search: search.process.send_signal(signal.SIGTERM))
    assert status == 130 and "the same command continues from here" in log, (status, log)
    begun = json.dumps(first.read())
    second = Search(folder, link)
    status, log = second.end()
    assert status == 0 and "where serve finds it" in log, (status, log)
    done = json.dumps(second.read())
    assert "on 2 ranks" in done and len(done) > len(begun), (begun, done)


def loses(folder):
    def kill(search):
        pid = search.pid(1)
        if pid:
            os.kill(pid, signal.SIGKILL)

    status, log, search = disturbed(folder, "zmq", kill)
    assert status == 1 and "hzpserve: rank 1: " in log, (status, log)
    assert not search.file.exists() or "on 2 ranks" in json.dumps(search.read())


for name in sys.argv[3:]:
    with tempfile.TemporaryDirectory(prefix="hzpserve-search-") as scratch:
        continues(pathlib.Path(scratch), name)
        if name == "zmq":
            loses(pathlib.Path(scratch))
    print(f"{name}: done", flush=True)
