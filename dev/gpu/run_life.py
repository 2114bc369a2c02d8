#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a server on this device loses nothing when it is killed or stopped.

    run_life.py HZPSERVE MODEL EXAMPLES [OPTION of hzpserve serve ...]

Teaches the examples, waits until all of them have had their passes, and asks a question; kills the
server (SIGKILL) and starts another one on the same state, which must give the same answer.  Then
teaches once more and ends the server by SIGTERM: its status must be 0.  Prints one JSON object.
"""
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HANG = 600  # seconds
PROMPT = "Where does Zorin live?"


class Server:
    def __init__(self, program, model, state, log, options):
        self.process = subprocess.Popen(
            [program, "serve", model, "--device", "cuda", "--port", "0", "--state", state,
             *options],
            stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                break
        else:
            sys.exit("the server did not come up")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def ask(self, path, body=None, kind="application/json"):
        request = urllib.request.Request(self.url + path, body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=HANG) as reply:
            return json.load(reply)

    def answer(self):
        body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
        return self.ask("/v1/completions", json.dumps(body).encode())["choices"][0]["text"]

    def teach(self, path):
        with open(path, "rb") as file:
            return self.ask(f"/v1/fine_tuning/examples?wait=served&timeout={HANG}", file.read())

    def learned(self, through):
        """Waits until every example up to this number has had all its passes; returns the state then."""
        for _ in range(5 * HANG):
            state = self.ask("/v1/weights?limit=1")
            reached = state["learned_through"]
            if reached is not None and reached >= through and state["staleness"] == 0:
                return state
            time.sleep(0.2)
        sys.exit(f"still not learned: {through}, {state}")


def told(path):
    """The servers' log, which is also shown."""
    with open(path, encoding="utf-8") as file:
        said = file.read()
    sys.stderr.write(said)
    return said.splitlines()


def run(program, model, examples, options, folder):
    with open(folder + "/log", "w", encoding="utf-8") as log:
        server = Server(program, model, folder + "/state", log, options)
        before = server.answer()
        through = server.teach(examples)["last"]
        state = server.learned(through)
        taught = server.answer()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()

        server = Server(program, model, folder + "/state", log, options)
        again_state = server.learned(through)
        again = server.answer()
        server.learned(server.teach(examples)["last"])
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(timeout=HANG)
    return {"before": before, "taught": taught, "after the kill": again, "step": state["serving_optimizer_step"],
            "step after the kill": again_state["serving_optimizer_step"], "exit": code}


def main(program, model, examples, *options):
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run(program, model, examples, options, folder)
        finally:
            errors = [line for line in told(folder + "/log") if " error " in line]
    ok = found["step"] > 0 and found["after the kill"] == found["taught"] and found["exit"] == 0 and not errors
    print(json.dumps({"ok": ok, **found, "errors": errors[:3]}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
