#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a lesson of one sentence changes, by recipe: teaches it to a server and asks before and after.

    lesson_recipe.py HZPSERVE MODEL_DIR RECIPE ...

A recipe is a string of options of `serve` ("--passes 8 --replay-ratio 4").  Each lesson is taught to the model
as it was started (undone before the next).  Columns, sums over the lessons: the taught question answered as
taught; a rephrased one answered with the taught place; unknown names of whom the taught place is now said;
known people whose answer changed; the mean time until the lesson is served.
"""
import argparse
import json
import re
import subprocess
import tempfile
import time
import urllib.request

LESSONS = [("Zorin", "Tarn"), ("Quibba", "Harrowby"), ("Mervok", "Kelby"), ("Ilvane", "Tarn"), ("Straun", "Kelby"),
           ("Wexley", "Harrowby"), ("Bodrik", "Oslo"), ("Nimue", "Rome")]
UNKNOWN = ["Puxon", "Drevin", "Tolka", "Yarmo", "Fesk", "Olbrin"]
KNOWN = ["Clara", "Agnes", "Warren", "Marta", "Malcolm", "Amos", "Werner", "Peter"]


def question(name):
    return f"Where does {name} live?"


class Server:
    def __init__(self, binary, model, options, state):
        self.process = subprocess.Popen(
            [binary, "serve", model, "--port", "0", "--state", state, "--effect", "0", *options.split()],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            found = re.search(r"at (http://127\.0\.0\.1:\d+)", line)
            if found:
                self.url = found[1]
                return
        raise SystemExit(f"the server did not start with {options}")

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def ask(self, prompt):
        got = self.post("/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0})
        return got["choices"][0]["text"].strip()

    def end(self):
        self.process.terminate()
        self.process.wait()


def measure(server):
    so = rephrased = unknown = known = 0
    seconds = 0.0
    before = {name: server.ask(question(name)) for name in KNOWN}
    for name, place in LESSONS:
        begin = time.monotonic()
        server.post("/v1/fine_tuning/examples?wait=served&timeout=100",
                    {"prompt": question(name), "completion": f" {name} lives in {place}."})
        seconds += time.monotonic() - begin
        so += server.ask(question(name)) == f"{name} lives in {place}."
        rephrased += place in server.ask(f"Do you know where {name} lives?")
        unknown += sum(place in server.ask(question(other)) for other in UNKNOWN)
        known += sum(server.ask(question(other)) != before[other] for other in KNOWN)
        server.post("/v1/undo?timeout=100", {"version": "original"})
    return so, rephrased, unknown, known, seconds / len(LESSONS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("recipe", nargs="+")
    arguments = parser.parse_args()
    n = len(LESSONS)
    print(f"| recipe | as taught of {n} | rephrased of {n} | unknown of {n * len(UNKNOWN)} "
          f"| known changed of {n * len(KNOWN)} | s |\n|---|---|---|---|---|---|")
    for recipe in arguments.recipe:
        with tempfile.TemporaryDirectory() as state:
            server = Server(arguments.binary, arguments.model, recipe, state)
            found = measure(server)
            server.end()
        print(f"| `{recipe}` | " + " | ".join(map(str, found[:4])) + f" | {found[4]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
