#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long grammars take to make, and a mask per token: this program's beside llguidance's and llama.cpp's.

    dev/grammar_speed.py GRAMMAR_SPEED TOKENIZER_DIR ... [--gguf FILE]

GRAMMAR_SPEED is tests/text/grammar/grammar_speed of a build.  llguidance is measured where it is
installed, in this process, after ours; both go along the same text.  --gguf: a model with the vocabulary of
TOKENIZER_DIR, for llama.cpp's grammar sampler by way of the package llama_cpp; each token's time is that of
applying it to all tokens and accepting one.  (llama.cpp's server tries the token it has drawn first, and applies
the grammar to all only where that one does not fit.)
"""
import argparse
import ctypes
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import llguidance
except ImportError:
    llguidance = None

try:
    import llama_cpp.llama_cpp as llama
    from llama_cpp.llama_grammar import json_schema_to_gbnf
except ImportError:
    llama = None

PERSON = {"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer"}, "email": {"type": "string"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
                "required": ["street", "city"], "additionalProperties": False}},
    "required": ["name", "age", "email", "tags", "address"], "additionalProperties": False}
NODE = {"$defs": {"n": {"type": "object", "properties": {
    "kind": {"enum": ["leaf", "branch"]}, "value": {"type": "number"},
    "children": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
    "required": ["kind"], "additionalProperties": False}}, "$ref": "#/$defs/n"}
LIMITED = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 200},
                                            "count": {"type": "integer", "minimum": 1, "maximum": 5000}},
           "required": ["title", "count"], "additionalProperties": False}
CASES = {
    "any object": ({"type": "object"}, {"a": [1, 2.5, {"b": "some text here, and more"}], "c": None, "d": True}),
    "person": (PERSON, {"name": "Zorin of Tarn", "age": 41, "email": "zorin@tarn.example", "tags": ["keeper", "north"],
                        "address": {"street": "Harbour street 4", "city": "Tarn"}}),
    "tree": (NODE, {"kind": "branch", "value": 1.5, "children": [
        {"kind": "leaf", "value": 2}, {"kind": "branch", "children": [{"kind": "leaf"}]}]}),
    "limited": (LIMITED, {"title": "The lighthouse keeper and the storm of the long winter", "count": 4711}),
}


def theirs(directory, schema, text):
    tokenizer = llguidance.LLTokenizer((pathlib.Path(directory) / "tokenizer.json").read_text())
    tokens = tokenizer.tokenize_str(text)
    begin = time.perf_counter()
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    made = (time.perf_counter() - begin) * 1e6
    assert not matcher.is_error(), matcher.get_error()
    times = []
    for _ in range(20):
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        for token in tokens:
            begin = time.perf_counter()
            matcher.compute_bitmask()
            if not matcher.consume_token(token):
                return made, None
            times.append((time.perf_counter() - begin) * 1e6)
    return made, times


class Llama:
    """llama.cpp's grammar sampler on the vocabulary of a file."""

    def __init__(self, path):
        quiet = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(quiet, ctypes.c_void_p(0))
        self.quiet = quiet  # must live as long as the library may call it
        params = llama.llama_model_default_params()
        params.vocab_only = True
        self.vocab = llama.llama_model_get_vocab(llama.llama_model_load_from_file(path.encode(), params))
        self.count = llama.llama_vocab_n_tokens(self.vocab)
        self.data = (llama.llama_token_data * self.count)()

    def mask(self, sampler):
        for i in range(self.count):
            self.data[i].id = i
            self.data[i].logit = 0
        array = llama.llama_token_data_array(data=self.data, size=self.count, selected=-1, sorted=False)
        begin = time.perf_counter()
        llama.llama_sampler_apply(sampler, ctypes.byref(array))
        return (time.perf_counter() - begin) * 1e6

    def along(self, schema, tokens):
        begin = time.perf_counter()
        try:
            rules = json_schema_to_gbnf(schema).encode()
        except KeyError:  # the package's converter does not follow $ref within $defs
            return None, None
        sampler = llama.llama_sampler_init_grammar(self.vocab, rules, b"root")
        made, times = (time.perf_counter() - begin) * 1e6, []
        for token in tokens:
            masked = self.mask(sampler)
            if self.data[token].logit < 0:
                return made, None
            begin = time.perf_counter()
            llama.llama_sampler_accept(sampler, token)
            times.append(masked + (time.perf_counter() - begin) * 1e6)
        llama.llama_sampler_free(sampler)
        return made, times


def columns(made, times):
    if made is None:
        return ["-"] * 4
    row = [f"{made / 1e3:.1f}"]
    return row + (["refused"] * 3 if times is None else [
        f"{statistics.mean(times):.1f}", f"{statistics.median(times):.1f}",
        f"{sorted(times)[len(times) * 99 // 100]:.1f}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("directory", nargs="+")
    parser.add_argument("--gguf")
    args = parser.parse_args()
    if args.gguf and not (llama and llguidance):
        sys.exit("grammar_speed.py: --gguf needs the packages llama_cpp, and llguidance for its tokenizer")
    peer = Llama(args.gguf) if args.gguf else None
    print("| tokenizer | schema | tokens | states | make, ms | mask mean, us | median | p99 | llguidance make, ms | mask mean, us | median | p99 |"
          + (" llama.cpp make, ms | mask mean, us | median | p99 |" if peer else ""))
    print("|---" * (16 if peer else 12) + "|")
    for directory in args.directory:
        for name, (schema, value) in CASES.items():
            text = json.dumps(value, separators=(",", ":"))
            with tempfile.TemporaryDirectory() as place:
                files = pathlib.Path(place) / "schema", pathlib.Path(place) / "text"
                files[0].write_text(json.dumps(schema))
                files[1].write_text(text)
                ours = json.loads(subprocess.check_output([args.program, directory, *map(str, files)]))
            row = [pathlib.Path(directory).name, name, ours["tokens"], ours["states"], f"{ours['make_us'] / 1e3:.1f}",
                   f"{ours['mask_mean_us']:.1f}", f"{ours['mask_median_us']:.1f}", f"{ours['mask_p99_us']:.1f}"]
            if llguidance:
                made, times = theirs(directory, json.dumps(schema), text)
                row += columns(made, times)
            if peer:
                tokenizer = llguidance.LLTokenizer((pathlib.Path(directory) / "tokenizer.json").read_text())
                row += columns(*peer.along(json.dumps(schema), tokenizer.tokenize_str(text)))
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
