#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All processes of a server are killed as soon as a client was told that its lesson is served: the next start with
the same state answers as taught from the first request on, with one rank, with several that learn, with replicas,
and with ranks that compute together.

    test_served.py HZPSERVE MODEL
"""
import json
import os
import pathlib
import signal
import sys
import tempfile

from tensor_server import HANG, LEARNING, LESSONS, Server

CASES = {"one": [], "ranks": ["--ranks", "2", "--link", "zmq"], "replicas": ["--ranks", "2", "--replicas", "--link", "zmq"],
         "tensor": ["--ranks", "2", "--tensor", "2", "--link", "zmq"]}


def kill(server):
    """The launcher first, so that it starts none again."""
    word = b"SCRATCH=" + server.scratch.name.encode()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(HANG)
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if word in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


def answers(server):
    return [server.complete({"prompt": prompt, "max_tokens": 16, "temperature": 0}) for prompt, _ in LESSONS]


def served(name, options):
    body = json.dumps([{"prompt": prompt, "completion": text} for prompt, text in LESSONS])
    with tempfile.TemporaryDirectory(prefix="hzpserve-served-") as state:
        server = Server(*options, *LEARNING, "--effect", "0", learns=True, state=state)
        untaught = answers(server)
        status, got = server.post(f"/v1/fine_tuning/examples?wait=served&timeout={HANG}", body)
        assert status == 200 and got["served"], got
        kill(server)
        kept = [path.name for path in pathlib.Path(state).glob("checkpoint-*")]  # written after some idle seconds
        lost = all(name.endswith(".tmp") for name in kept)
        server = Server(*options, *LEARNING, learns=True, state=state)
        # A request that names weights itself is not held.
        asked, first = server.post("/v1/completions", '{"prompt": "A", "max_tokens": 1, "min_version": 1}')
        after = answers(server)
        assert after == [text for _, text in LESSONS] != untaught, (name, after)
        assert asked == 200, first
        log = server.end()
        assert "was killed: version numbers go on from 4" in log, log
        assert lost == (" owed_through=3" in log), (kept, log)
    print(f"{name}: what was served is answered after a kill")


def main():
    for name, options in CASES.items():
        if not sys.argv[3:] or name in sys.argv[3:]:
            served(name, options)


main()
