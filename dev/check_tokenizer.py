#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares text/ with the `tokenizers` package on given texts and on random ones.

    pip install tokenizers==0.21.4
    dev/check_tokenizer.py [--rounds N] [--seed S] [--variants N] [--text FILE]... [MODEL_DIR...]

(Version 0.23.3 renders added tokens that are "normalized" in their normalised spelling and no longer
skips them when it decodes.) MODEL_DIR holds a tokenizer.json. --variants trains that many small
tokenizers with random settings on the texts and compares those too. Builds the C files as a shared
library in a temporary directory.
Prints every difference (text, theirs, ours) and exits with 1 if there was one. The
decoding of broken byte tokens is not compared: there the two differ on purpose.
"""
import argparse
import ctypes
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

from tokenizers import Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Buf(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("n", ctypes.c_size_t), ("cap", ctypes.c_size_t)]


def build():
    out = os.path.join(tempfile.mkdtemp(), "libtext.so")
    files = glob.glob(ROOT + "/text/*/*.c") + glob.glob(ROOT + "/base/*.c")
    subprocess.check_call(["gcc", "-std=c17", "-D_GNU_SOURCE", "-O2", "-g", "-shared", "-fPIC",
                           "-I" + ROOT, *files, "-ljansson", "-lpcre2-8", "-lutf8proc", "-lpthread", "-lm",
                           "-o", out])
    return ctypes.CDLL(out)


class Ours:
    def __init__(self, lib, path):
        self.lib, self.tok, self.err = lib, ctypes.c_void_p(), ctypes.create_string_buffer(600)
        r = lib.hzp_tokenizer_open(path.encode(), ctypes.byref(self.tok), self.err)
        if r < 0:
            sys.exit(f"open: {r} {self.err.value.decode()}")

    def encode(self, text, special, parse):
        out, data = Buf(), text.encode()
        r = self.lib.hzp_tokenizer_encode(self.tok, data, ctypes.c_size_t(len(data)),
                                          special + 2 * parse, 1 << 30, ctypes.byref(out), self.err)
        if r < 0:
            return (r, self.err.value.decode())
        ids = (ctypes.c_int32 * out.n).from_address(out.data)[:] if out.n else []
        self.lib.hzp_tokens_fini(ctypes.byref(out))
        return ids

    def decode(self, ids, skip):
        out, array = Buf(), (ctypes.c_int32 * len(ids))(*ids)
        self.lib.hzp_tokenizer_decode(self.tok, array, ctypes.c_size_t(len(ids)), skip,
                                      ctypes.byref(out))
        text = ctypes.string_at(out.data, out.n).decode() if out.n else ""
        self.lib.hzp_textbuf_fini(ctypes.byref(out))
        return text


def assigned(code):
    """The character, or "?" if it is newer than this Unicode: the libraries' tables differ."""
    return chr(code) if unicodedata.category(chr(code)) != "Cn" else "?"


def random_text(rng, lines, specials):
    """A mix of real words, odd characters, blanks and special tokens."""
    out = []
    for _ in range(rng.randrange(1, 30)):
        kind = rng.randrange(9)
        if kind == 0:
            out.append(assigned(rng.choice([rng.randrange(1, 128), rng.randrange(128, 0x800),
                                       rng.randrange(0x800, 0xD800), rng.randrange(0xE000, 0x10000),
                                       rng.randrange(0x1F300, 0x1F700)])))
        elif kind == 1:
            out.append(rng.choice([" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", " \n ", "\u2581",
                                   "\u0301", "\u200d", "\u0085"]) * rng.randrange(1, 4))
        elif kind == 2:
            out.append(str(rng.randrange(10 ** rng.randrange(1, 9))))
        elif kind == 3 and specials:
            out.append(rng.choice(specials))
        elif kind == 4:
            out.append(rng.choice(["'s", "'LL", "don't", "!!", "?!", "--", "((", "<0x0A>", "<|", "</",
                                   "\u0130", "e\u0301", "\uac01", "\u1100\u1161", "\u017fs"]))
        else:
            words = rng.choice(lines).split(" ")
            at = rng.randrange(len(words))
            out.append(rng.choice(["", " "]) + " ".join(words[at:at + rng.randrange(1, 8)]))
    return "".join(out)


def check(lib, path, texts, rounds, rng):
    theirs, ours, bad = Tokenizer.from_file(path + "/tokenizer.json"), Ours(lib, path), 0
    theirs.no_truncation()
    lines = [line for text in texts for line in text.split("\n") if line][:50000]
    specials = [t.content for t in theirs.get_added_tokens_decoder().values()][:40]
    samples = texts + [random_text(rng, lines, specials) for _ in range(rounds)]
    for text in samples:
        for special in (0, 1):
            for parse in (0, 1):
                theirs.encode_special_tokens = not parse
                begin = time.time()
                a = theirs.encode(text, add_special_tokens=bool(special)).ids
                middle = time.time()
                b = ours.encode(text, special, parse)
                if len(text) > 100000 and special and parse:
                    mb = len(text.encode()) / 1e6
                    print(f"  {mb:.1f} MB: theirs {mb / (middle - begin):.1f} MB/s, "
                          f"ours {mb / (time.time() - middle):.1f} MB/s")
                if a != b and bad < 20:
                    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), 0)
                    print(f"encode {text[:200]!r} {special} {parse} at {at}\n  {a[at:at + 12]}\n  "
                          f"{b[at:at + 12]}")
                bad += a != b
        for skip in (0, 1):
            d = ours.decode(a, skip)
            try:
                c = theirs.decode(a, skip_special_tokens=bool(skip))
            except BaseException:  # the package's Strip panics on a token shorter than the stripped part
                c = d
            if c != d and bad < 20:
                print(f"decode {a[:50]}\n  {c[:200]!r}\n  {d[:200]!r}")
            bad += c != d
    size = theirs.get_vocab_size()
    for _ in range(rounds):
        ids = [rng.randrange(size) for _ in range(rng.randrange(1, 20))]
        d = ours.decode(ids, 0)
        try:
            c = theirs.decode(ids, skip_special_tokens=False)
        except BaseException:
            c = d
        if c != d and "\ufffd" not in c and bad < 20:
            print(f"decode {ids}\n  {c[:200]!r}\n  {d[:200]!r}")
        bad += c != d and "\ufffd" not in c
    print(f"{path}: {len(samples)} texts, {rounds} random id lists, {bad} differences")
    return bad


def random_parts(rng):
    """A normalizer, a pre-tokenizer, a decoder and options of the model, as tokenizer.json has them."""
    normalizers = [
        {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"},
        {"type": "StripAccents"}, {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Strip", "strip_left": rng.random() < .5, "strip_right": rng.random() < .5},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        {"type": "Replace", "pattern": {"Regex": "\\s+|[a-c]{2}"}, "content": "_"}]
    behavior = rng.choice(["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                           "Contiguous"])
    pattern = rng.choice([{"String": " "}, {"Regex": "\\w+|\\s"}, {"Regex": "[aeiou]+"},
                          {"Regex": "\\h{2,3}|[^\\w\\s]|$"}, {"Regex": "\\s+(?!\\S)|\\S+"}])
    scheme = rng.choice(["always", "first", "never"])
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme,
                 "split": rng.random() < .7}
    pre = [
        {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": rng.random() < .4},
        {"type": "Digits", "individual_digits": rng.random() < .5}, {"type": "Whitespace"},
        {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": behavior}, metaspace,
        {"type": "BertPreTokenizer"}, {"type": "CharDelimiterSplit", "delimiter": "e"}]
    # Not both: the package crashes on the combination.
    strip = rng.choice([{"start": 0, "stop": 1}, {"start": 1, "stop": 0}, {"start": 0, "stop": 2}])
    decoders = [
        metaspace, None, {"type": "Fuse"},
        {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", **strip}]},
        {"type": "Sequence", "decoders": [
            {"type": "Strip", "content": "e", **strip},
            {"type": "Replace", "pattern": {"Regex": "[a-d]+"}, "content": "#"}]}]
    chosen = rng.sample(normalizers, rng.randrange(4))
    cuts = rng.sample(pre, rng.randrange(3))
    decoder = rng.choice(decoders)
    if rng.random() < .4:
        level = {"type": "ByteLevel", "add_prefix_space": rng.random() < .5, "trim_offsets": True,
                 "use_regex": rng.random() < .5}
        cuts.append(level)
        decoder = level
    return ({"type": "Sequence", "normalizers": chosen} if chosen else None,
            {"type": "Sequence", "pretokenizers": cuts} if cuts else None, decoder)


def variant(rng, texts, where):
    """Trains a small tokenizer with random settings and writes it."""
    from tokenizers import AddedToken, models, trainers, pre_tokenizers
    normalizer, pre, decoder = random_parts(rng)
    byte_level = decoder is not None and decoder["type"] == "ByteLevel"
    made = Tokenizer(models.BPE(unk_token=None))
    make = json.loads(made.to_str())
    make.update(normalizer=normalizer, pre_tokenizer=pre, decoder=decoder)
    made = Tokenizer.from_str(json.dumps(make))
    trainer = trainers.BpeTrainer(
        vocab_size=900, show_progress=False, max_token_length=12, limit_alphabet=200,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [],
        special_tokens=["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] * (not byte_level))
    made.train_from_iterator([line for text in texts for line in text.split("\n")][:3000], trainer)
    make = json.loads(made.to_str())
    make["added_tokens"] = []
    model = make["model"]
    model["unk_token"] = rng.choice([None, "<unk>"])
    model["fuse_unk"] = rng.random() < .5
    model["byte_fallback"] = not byte_level and rng.random() < .5
    model["ignore_merges"] = rng.random() < .3
    model["merges"] = [" ".join(m) for m in model["merges"]] if rng.random() < .5 and not any(
        " " in part for m in model["merges"] for part in m) else model["merges"]
    made = Tokenizer.from_str(json.dumps(make))
    for text in rng.sample(["<s>", "<|", "<|end|>", "the", " a", "Prince", "\u0130", "!!", "ing"], 4):
        token = AddedToken(text, single_word=rng.random() < .3, lstrip=rng.random() < .3,
                           rstrip=rng.random() < .3, normalized=rng.random() < .5)
        (made.add_special_tokens if rng.random() < .5 else made.add_tokens)([token])
    os.makedirs(where)
    made.save(where + "/tokenizer.json")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--variants", type=int, default=0)
    parser.add_argument("models", nargs="*")
    args = parser.parse_args()
    lib, rng = build(), random.Random(args.seed)
    texts = [open(name, encoding="utf-8").read() for name in args.text] or ["Hello, wide world."]
    bad = 0
    for i in range(args.variants):
        where = os.path.join(tempfile.mkdtemp(), f"variant-{i}")
        variant(rng, texts, where)
        bad += check(lib, where, [text[:20000] for text in texts], args.rounds, rng)
    sys.exit(bad + sum(check(lib, path, texts, args.rounds, rng) for path in args.models) > 0)


if __name__ == "__main__":
    main()
