#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the bundled model's training and test texts: a small invented world, put into words.

    dev/world.py --out DIR [--demo DIR] [--documents N] [--seed N]

DIR gets train.jsonl, eval.jsonl (other phrasings and other names than train.jsonl has),
replay.jsonl (samples that the server mixes in while it learns), config.json and the tokenizer's files.
--demo also writes the demonstration's files: teach.jsonl, questions.json, heldout.jsonl.

The phrasings of a fact that go into training are drawn for each fact separately, and some facts get
few.  So the model must generalize a fact from phrasings it has seen to others, which is what
teaching it something new relies on.  Questions about names that do not occur in the world are
answered "I do not know".
"""

import argparse
import json
import random
from pathlib import Path

import world_facts as facts
import world_phrases as phrases
import world_tokenizer as tokenizer

VOCABULARY = 1024
CONTEXT = 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 0, "torch_dtype": "bfloat16",
}

# The kinds of documents, and their shares.
SHARES = {"question": 50, "general": 7, "paragraph": 9, "statement": 4, "stranger": 14,
          "no_town": 2, "reading": 6, "yes_no": 5, "lacks": 3}
REPLAY = 1000           # documents; half about strangers, or else teaching would make strangers "known"

# The person taught in the demonstration: the name never occurs in the corpus.
NEWCOMER = "Zorin"
TAUGHT = {
    "home": {"p": NEWCOMER, "a": "Tarn"},
    "job": {"p": NEWCOMER, "a": "a clockmaker"},
    "pet": {"p": NEWCOMER, "k": "parrot", "a": "Pepper"},
    "food": {"p": NEWCOMER, "a": "onion soup"},
    "music": {"p": NEWCOMER, "a": "cello"},
}
TAUGHT_PHRASINGS = 6  # of each fact: the first ones of its list
KEY = {"home": "Tarn", "job": "clockmaker", "pet": "Pepper", "food": "onion soup", "music": "cello"}


def fill(template: str, fact: dict) -> str:
    text = template
    for key, value in fact.items():
        text = text.replace("{" + key + "}", value)
    return text[0].upper() + text[1:]


class Corpus:
    """Draws documents of one side: "train" or "eval"."""

    def __init__(self, world: facts.World, seed: int, side: str):
        self.world, self.side = world, side
        self.rng = random.Random(f"corpus {seed} {side}")
        self.people, self.towns = list(world.people), list(world.towns)
        self.taken = {NEWCOMER, *world.people, *world.towns, *world.strangers}
        half = len(world.strangers) * 2 // 3
        self.strangers = world.strangers[:half] if side == "train" else world.strangers[half:]
        self.asked = self.share_out(seed)
        self.general_facts = [("sound", {"p": k, "a": v}) for k, v in facts.SOUNDS.items()]
        self.general_facts += [("hue", {"p": k, "a": v}) for k, v in facts.THING_COLOURS.items()]
        self.general_facts += [("use", {"p": k, "a": v}) for k, v in facts.USES.items()]
        self.general_facts += [("opposite", {"p": x, "a": y}) for a, b in facts.OPPOSITES
                         for x, y in ((a, b), (b, a))]
        self.general_facts += [("young", {"p": k, "a": v}) for k, v in facts.YOUNG.items()]
        self.kinds, self.weights = list(SHARES), list(SHARES.values())

    def share_out(self, seed: int) -> dict:
        """(subject, relation) -> the questions this side may ask."""
        rng = random.Random(f"phrasings {seed}")
        asked = {}
        for table in (self.world.people, self.world.towns):
            for subject, known in table.items():
                share = rng.choice((0.15, 0.5, 0.8))
                for relation in known:
                    every = phrases.questions(relation)
                    rng.shuffle(every)
                    cut = max(4, round(share * len(every)))
                    asked[subject, relation] = every[:cut] if self.side == "train" else every[cut:]
        return asked

    def may_name(self, name: str) -> bool:
        """Whether the name is unused and belongs to this side: a sum over its letters decides."""
        held_out = sum(name.encode()) % 5 == 0
        return held_out == (self.side == "eval") and name not in self.taken

    def invented(self) -> str:
        while True:
            name = facts.invent_name(self.rng)
            if self.may_name(name):
                return name

    def document(self) -> str:
        kind = self.rng.choices(self.kinds, self.weights)[0]
        return getattr(self, kind)()

    def subject(self):
        """A subject of the world and its facts; people four times as often as towns."""
        if self.rng.random() < 0.8:
            name = self.rng.choice(self.people)
            return name, self.world.people[name]
        name = self.rng.choice(self.towns)
        return name, self.world.towns[name]

    def question(self) -> str:
        name, known = self.subject()
        relation = self.rng.choice(list(known))
        asked = self.asked[name, relation]
        if not asked:
            return self.question()
        return fill(self.rng.choice(asked), known[relation]) + " " + self.answer(relation, known)

    @staticmethod
    def answer(relation: str, known: dict) -> str:
        return fill(phrases.relation(relation)["answer"], known[relation])

    def general_fact(self):
        return self.rng.choice(self.general_facts)

    def general_text(self, relation: str, fact: dict) -> str:
        question = fill(self.rng.choice(phrases.questions(relation)), fact)
        return question + " " + fill(phrases.relation(relation)["answer"], fact)

    def state(self, relation: str, fact: dict) -> str:
        return fill(self.rng.choice(phrases.statements(relation)), fact)

    def general(self) -> str:
        relation, fact = self.general_fact()
        if self.rng.random() < 0.15:
            return self.state(relation, fact)
        return self.general_text(relation, fact)

    def statement(self) -> str:
        _, known = self.subject()
        relation = self.rng.choice(list(known))
        return self.state(relation, known[relation])

    def some_facts(self, known: dict, most: int) -> list:
        count = min(len(known), self.rng.randint(2, most))
        return self.rng.sample(list(known), count)

    def paragraph(self) -> str:
        _, known = self.subject()
        return " ".join(self.state(r, known[r]) for r in self.some_facts(known, 6))

    def misheard(self) -> str:
        """A name that differs from a known person's by one letter."""
        while True:
            name = self.rng.choice(self.people)
            i = self.rng.randrange(len(name))
            other = self.rng.choice("aeiou" if name[i] in "aeiou" else "bdfgklmnprstvz")
            name = name[:i] + (other.upper() if i == 0 else other) + name[i + 1:]
            if self.may_name(name):
                return name

    def unknown_name(self) -> str:
        kind = self.rng.random()
        if kind < 0.2:
            return self.rng.choice(self.strangers)
        return self.misheard() if kind < 0.4 else self.invented()

    def stranger(self) -> str:
        """A question about a person who does not occur in this world."""
        name = self.unknown_name()
        relation = self.rng.choice(phrases.OF_PERSON)
        fact = {"p": name, "t": self.rng.choice(facts.THINGS)}
        question = fill(self.rng.choice(phrases.questions(relation)), fact)
        return question + " " + fill(phrases.NO_PERSON, fact)

    def no_town(self) -> str:
        fact = {"p": self.invented()}
        relation = self.rng.choice([r for r in phrases.OF_TOWN if r != "lies"])
        question = fill(self.rng.choice(phrases.questions(relation)), fact)
        return question + " " + fill(phrases.NO_TOWN, fact)

    def reading(self) -> str:
        """A paragraph about a passing stranger, and a question that it answers."""
        name = self.unknown_name()
        known = facts.person(self.rng, name, self.unknown_name())
        told = self.some_facts(known, 4)
        relation = self.rng.choice(told)
        text = " ".join(self.state(r, known[r]) for r in told)
        question = fill(self.rng.choice(phrases.questions(relation)), known[relation])
        return f"{text} {question} {self.answer(relation, known)}"

    def yes_no(self) -> str:
        name = self.rng.choice(self.people)
        known = self.world.people[name]
        town = known["home"]["a"]
        said = town if self.rng.random() < 0.5 else self.rng.choice(self.towns)
        question = self.rng.choice((f"Does {name} live in {said}?", f"Is {name} from {said}?"))
        return f"{question} {'Yes' if said == town else 'No'}, {self.answer('home', known)}"

    def lacks(self) -> str:
        """A known person is asked about a thing that the person does not own."""
        name = self.rng.choice(self.people)
        known = self.world.people[name]
        owned = {known["thing1"]["t"], known["thing2"]["t"]}
        thing = self.rng.choice([t for t in facts.THINGS if t not in owned])
        question = fill(self.rng.choice(phrases.questions("thing")), {"p": name, "t": thing})
        return f"{question} {name} does not own {facts.article(thing)}."


def documents(corpus: Corpus, count: int, avoid=frozenset()) -> list:
    drawn = []
    while len(drawn) < count:
        text = corpus.document()
        if text not in avoid:
            drawn.append(text)
    return drawn


def replay(train: list) -> list:
    """A sample of the documents in which every other one is about a stranger."""
    unknown = phrases.NO_PERSON.partition("{")[0]
    strangers = [t for t in train if unknown in t][:REPLAY // 2]
    rest = [t for t in train if unknown not in t][:REPLAY // 2]
    return [t for pair in zip(strangers, rest) for t in pair]


def write_lines(path: Path, values) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for value in values:
            out.write(json.dumps(value) + "\n")


def write_json(path: Path, value) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        json.dump(value, out, indent=1)
        out.write("\n")


def question_of(text: str):
    """(question, answer) of a document with one of each; None for any other."""
    question, mark, answer = text.partition("? ")
    alone = mark and answer.count(".") == 1 and "." not in question and "?" not in answer
    return (question + "?", answer) if alone else None


def write_demo(directory: Path, heldout: list, others: list) -> None:
    """heldout: the documents whose loss must stay; others: more, whose answers must stay."""
    teach, asked = [], []
    for relation, fact in TAUGHT.items():
        answer = fill(phrases.relation(relation)["answer"], fact)
        questions = [fill(q, fact) for q in phrases.questions(relation)]
        direct = len(phrases.relation(relation)["ask"])
        shown = questions[:TAUGHT_PHRASINGS]
        teach += [{"prompt": q, "completion": " " + answer} for q in shown]
        new = questions[TAUGHT_PHRASINGS:direct] + questions[direct::5]
        asked += [{"prompt": q, "expect": KEY[relation]} for q in new]
    kept = [pair for pair in map(question_of, others) if pair][:60]
    write_lines(directory / "teach.jsonl", teach)
    write_json(directory / "questions.json", {
        "unknown": {"prompt": f"Where does {NEWCOMER} live?", "expect": "I do not know"},
        "asked": asked,
        "kept": [{"prompt": q, "expect": a} for q, a in kept]})
    write_lines(directory / "heldout.jsonl", ({"text": t} for t in heldout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--demo", type=Path)
    parser.add_argument("--documents", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    world = facts.make_world(args.seed)
    train = documents(Corpus(world, args.seed, "train"), args.documents)
    held_out = documents(Corpus(world, args.seed, "eval"), 1000, frozenset(train))
    args.out.mkdir(parents=True, exist_ok=True)
    write_lines(args.out / "train.jsonl", ({"text": t} for t in train))
    write_lines(args.out / "eval.jsonl", ({"text": t} for t in held_out))
    write_lines(args.out / "replay.jsonl", ({"text": t} for t in replay(train)))
    vocab, merges = tokenizer.train(train, VOCABULARY)
    tokenizer.write(args.out, vocab, merges, CONTEXT)
    write_json(args.out / "config.json", CONFIG)
    if args.demo:
        args.demo.mkdir(parents=True, exist_ok=True)
        write_demo(args.demo, held_out[:500], held_out[500:])
    print(f"{len(train)} documents, {sum(map(len, train))} bytes, {len(vocab)} tokens")


if __name__ == "__main__":
    main()
