# SPDX-License-Identifier: Apache-2.0
"""A server whose ranks compute each step together, and what it is taught: for the tests of --tensor, whose arguments
are HZPSERVE MODEL LINK..."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

serve, model = sys.argv[1:3]
HANG = 1500  # seconds; only a hang takes as long
LEARNING = ["--passes", "16", "--update-tokens", "24"]


class Server:
    """A server; of several ranks, if the options say so."""

    def __init__(self, *options, learns=False, state="none"):
        self.scratch = tempfile.TemporaryDirectory(prefix="hzpserve-tensor-")
        self.log = pathlib.Path(self.scratch.name) / "log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [serve, "serve", model, "--port", "0", "--dtype", "f32", "--max-running", "6", "--kv-tokens", "768",
                 "--page-rows", "16", *(["--state", str(state)] if learns else ["--no-train", "--state", self.scratch.name]),
                 *options],
                stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "SCRATCH": self.scratch.name})
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at http://(\S+:\d+)", line)
            if found:
                self.host = found[1]
                break
        else:
            sys.exit("the server did not come up:\n" + self.log.read_text())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.host}{path}", timeout=HANG) as answer:
            return answer.read().decode()

    def number(self, name, rank=None):
        labels = "[^}]*" if rank is None else f'[^}}]*rank="{rank}"'
        found = re.search(rf"^{name}{{{labels}}} (\S+)$", self.get("/metrics"), re.M)
        assert found, name
        return float(found[1])

    def post(self, path, body, kind="application/json"):
        """Status and answer."""
        request = urllib.request.Request(f"http://{self.host}{path}", body.encode(), {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=HANG) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def complete(self, body):
        request = urllib.request.Request(f"http://{self.host}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            return json.loads(answer.read())["choices"][0]["text"]

    def stream(self, body, leave=None):
        """The text; leave: the client goes after so many pieces."""
        connection = http.client.HTTPConnection(self.host, timeout=HANG)
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}),
                           {"Content-Type": "application/json"})
        text, pieces = "", 0
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            text += json.loads(line[6:])["choices"][0]["text"]
            pieces += 1
            if pieces == leave:
                break
        connection.close()
        return text

    def pid(self, rank):
        """The process that is this rank."""
        word = self.scratch.name.encode()
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = dict(v.split(b"=", 1) for v in path.read_bytes().split(b"\0") if b"=" in v)
                words = (path.parent / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if variables.get(b"RANK", variables.get(b"OMPI_COMM_WORLD_RANK")) == str(rank).encode() and \
                    variables.get(b"SCRATCH") == word and pathlib.Path(words[0].decode()).name == pathlib.Path(serve).name:
                return int(path.parent.name)
        sys.exit(f"there is no rank {rank}")

    def end(self, status=0, ask=True):
        if ask:
            self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(HANG)
        log = self.log.read_text()
        assert status is None or ended == status, (ended, log)
        self.scratch.cleanup()
        return log


def server_until(server, holds):
    end = time.monotonic() + HANG
    while not holds():
        if server.process.poll() is not None or time.monotonic() > end:
            sys.exit(f"ended or hangs ({server.process.poll()}):\n{server.log.read_text()}")
        time.sleep(0.05)


LESSONS = [("Where does", " the blue whale sing"), ("Who lives in", " a green boat on the hill"),
           ("The river", " runs up the mountain")]
UPDATE = r"train: update optimizer_step=(\d+) loss=(\S+) grad_norm=(\S+) .* samples=(\d+) tokens=(\d+)"


def teach(server):
    """Teaches, and asks before and after: the texts, and of each update what the log says."""
    before = [server.complete({"prompt": prompt, "max_tokens": 16, "temperature": 0}) for prompt, _ in LESSONS]
    lines = "".join(json.dumps({"prompt": prompt, "completion": text}) + "\n" for prompt, text in LESSONS)
    status, taught = server.post("/v1/fine_tuning/examples?wait=served&timeout=600", lines, "application/x-ndjson")
    assert status == 200 and taught["served"] and taught["accepted"] == len(LESSONS), (status, taught)
    after = []
    for prompt, _ in LESSONS:
        status, got = server.post("/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 16, "temperature": 0,
                                                                 "after": taught["after"]}))
        assert status == 200 and got["hzpserve"]["weights_version"] >= taught["weights_version"] > 1, got
        after.append(got["choices"][0]["text"])
    return before, after, re.findall(UPDATE, server.log.read_text())
