#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a lesson of one sentence changes, by recipe: teaches it to a server and asks before and after.

    lesson_recipe.py [--stories] [--with OPTIONS] HZPSERVE MODEL_DIR RECIPE ...

A recipe is a string of options of `serve` ("--passes 8 --replay-ratio 4").  Each lesson is taught to the model
as it was started (undone before the next).  Columns, sums over the lessons: the taught question answered as
taught; a rephrased one answered with the taught place; unknown names of whom the taught place is now said;
known people whose answer changed; the mean time until the lesson is served.

--stories: for a model that only tells stories.  A lesson is the sentence by which a story begins; asked is how
it goes on.  --with: options of `serve` for each recipe, such as a --replay in the model's own kind of text.
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


class Town:
    """The bundled model's kind of text: questions and their answers."""
    lessons, unknown, known = LESSONS, UNKNOWN, KNOWN

    question = staticmethod(lambda name: f"Where does {name} live?")
    rephrased = staticmethod(lambda name: f"Do you know where {name} lives?")
    answer = staticmethod(lambda name, place: f"{name} lives in {place}.")


class Stories:
    """TinyStories' kind of text: a story is begun, and goes on."""
    lessons = [("Zorin", "red boat"), ("Quib", "big drum"), ("Merv", "blue hat"), ("Ilva", "green frog"),
               ("Stran", "long rope"), ("Wex", "soft bed"), ("Bodo", "old car"), ("Nim", "tall tree")]
    unknown = ["Puxo", "Drev", "Tolk", "Yarm", "Fesk", "Olbi"]
    known = ["Lily", "Tim", "Tom", "Sara", "Ben", "Mia", "Max", "Anna"]

    question = staticmethod(lambda name: f"Once upon a time, there was a child named {name}. {name} had a")
    rephrased = staticmethod(lambda name: f"One day, {name} went to the park. {name} had a")
    answer = staticmethod(lambda name, thing: f"{thing}.")


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


def measure(server, world):
    so = rephrased = unknown = known = 0
    seconds = 0.0
    before = {name: server.ask(world.question(name)) for name in world.known}
    for name, place in world.lessons:
        begin = time.monotonic()
        server.post("/v1/fine_tuning/examples?wait=served&timeout=100",
                    {"prompt": world.question(name), "completion": " " + world.answer(name, place)})
        seconds += time.monotonic() - begin
        so += server.ask(world.question(name)).startswith(world.answer(name, place))
        rephrased += place in server.ask(world.rephrased(name))
        unknown += sum(place in server.ask(world.question(other)) for other in world.unknown)
        known += sum(server.ask(world.question(other)) != before[other] for other in world.known)
        server.post("/v1/undo?timeout=100", {"version": "original"})
    return so, rephrased, unknown, known, seconds / len(world.lessons)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stories", action="store_true")
    parser.add_argument("--with", dest="beside", default="", metavar="OPTIONS")
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("recipe", nargs="+")
    arguments = parser.parse_args()
    world = Stories if arguments.stories else Town
    n = len(world.lessons)
    print(f"| recipe | as taught of {n} | rephrased of {n} | unknown of {n * len(world.unknown)} "
          f"| known changed of {n * len(world.known)} | s |\n|---|---|---|---|---|---|")
    for recipe in arguments.recipe:
        with tempfile.TemporaryDirectory() as state:
            server = Server(arguments.binary, arguments.model, f"{arguments.beside} {recipe}", state)
            found = measure(server, world)
            server.end()
        print(f"| `{recipe}` | " + " | ".join(map(str, found[:4])) + f" | {found[4]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
