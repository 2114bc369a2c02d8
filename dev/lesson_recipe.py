#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a lesson of one sentence changes, by recipe: teaches it to a server and asks before and after.

    lesson_recipe.py [--chain] [--series N] [--stories] [--with OPTIONS] HZPSERVE MODEL_DIR RECIPE ...

A recipe is a string of options of `serve` ("--passes 8 --replay-ratio 4").  Each lesson is taught to the model
as it was started (undone before the next).  Columns, sums over the lessons: the taught question answered as
taught; a rephrased one answered with the taught place; unknown names of whom the taught place is now said;
known people whose answer changed; the mean time until the lesson is served.

--chain: the lessons are taught one after another, none is undone, and everything is asked after the last.

--series N: instead, N random series of five lessons, taught one after another, with all undone between two series;
counted are the newest and the four before it that are answered as taught at the end of a series.

--stories: for a model that only tells stories.  A lesson is the sentence by which a story begins; asked is how
it goes on.  --with: options of `serve` for each recipe, such as a --replay in the model's own kind of text.
"""
import argparse
import json
import random
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


def measure(server, world, chain):
    found = {"so": 0, "rephrased": 0, "unknown": 0, "known": 0}
    seconds = 0.0
    before = {name: server.ask(world.question(name)) for name in world.known}
    places = {place for _, place in world.lessons}

    def ask_about(lessons, taught):
        for name, place in lessons:
            found["so"] += server.ask(world.question(name)).startswith(world.answer(name, place))
            found["rephrased"] += place in server.ask(world.rephrased(name))
        for name in world.unknown:
            answer = server.ask(world.question(name))
            found["unknown"] += any(place in answer for place in taught)
        found["known"] += sum(server.ask(world.question(name)) != before[name] for name in world.known)

    for name, place in world.lessons:
        begin = time.monotonic()
        server.post("/v1/fine_tuning/examples?wait=served&timeout=100",
                    {"prompt": world.question(name), "completion": " " + world.answer(name, place)})
        seconds += time.monotonic() - begin
        if not chain:
            ask_about([(name, place)], {place})
            server.post("/v1/undo?timeout=100", {"version": "original"})
    if chain:
        ask_about(world.lessons, places)
    return [*found.values(), seconds / len(world.lessons)]


def measure_series(server, world, n):
    """How many of the newest lessons of n series, and of the others, are answered as taught."""
    newest = earlier = 0
    places = sorted({place for _, place in world.lessons})
    for seed in range(n):
        draw = random.Random(seed)
        names = [name for name, _ in world.lessons] + ["Tilda", "Jarn"]
        draw.shuffle(names)
        lessons = [(name, draw.choice(places)) for name in names[:5]]
        for name, place in lessons:
            server.post("/v1/fine_tuning/examples?wait=served&timeout=100",
                        {"prompt": world.question(name), "completion": " " + world.answer(name, place)})
        so = [server.ask(world.question(name)).startswith(world.answer(name, place)) for name, place in lessons]
        newest += so[-1]
        earlier += sum(so[:-1])
        server.post("/v1/undo?timeout=100", {"version": "original"})
    return newest, earlier


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--series", type=int, default=0, metavar="N")
    parser.add_argument("--stories", action="store_true")
    parser.add_argument("--with", dest="beside", default="", metavar="OPTIONS")
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("recipe", nargs="+")
    arguments = parser.parse_args()
    world = Stories if arguments.stories else Town
    n = len(world.lessons)
    asked = 1 if arguments.chain else n
    if arguments.series:
        print(f"| recipe | newest of {arguments.series} | before it of {4 * arguments.series} |\n|---|---|---|")
    else:
        print(f"| recipe | as taught of {n} | rephrased of {n} | unknown of {asked * len(world.unknown)} "
              f"| known changed of {asked * len(world.known)} | s |\n|---|---|---|---|---|---|")
    for recipe in arguments.recipe:
        with tempfile.TemporaryDirectory() as state:
            server = Server(arguments.binary, arguments.model, f"{arguments.beside} {recipe}", state)
            found = (measure_series(server, world, arguments.series) if arguments.series
                     else measure(server, world, arguments.chain))
            server.end()
        print(f"| `{recipe}` | " + " | ".join(map(str, found[:4])) + (f" | {found[4]:.1f} |" if found[4:] else " |"),
              flush=True)


if __name__ == "__main__":
    main()
