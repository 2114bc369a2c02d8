# SPDX-License-Identifier: Apache-2.0
"""Trains a small byte-level BPE vocabulary and writes it as Hugging Face's tokenizer files.

The words of the text are cut as GPT-2 cuts them (letters, digits and other signs apart, one space
kept with what follows), each word is its UTF-8 bytes, and the most frequent pair of neighbours
becomes a new token until the vocabulary is full.  Ties go to the pair that sorts first, so the
same text gives the same vocabulary.
"""

import json
import re
from collections import Counter, defaultdict

END = "<|end|>"  # token 0: ends every text

# GPT-2's pattern; the corpus is ASCII, where [A-Za-z] is what \p{L} means.
WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_letters() -> list:
    """The printable letter that stands for each byte in tokenizer.json (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = {b: chr(b) for b in printable}, 256
    for b in range(256):
        if b not in letters:
            letters[b] = chr(spare)
            spare += 1
    return [letters[b] for b in range(256)]


def train(texts, vocab_size: int):
    """Returns (vocabulary as {token: id}, merges as a list of pairs)."""
    letters = byte_letters()
    counts = Counter(w for text in texts for w in WORD.findall(text))
    words = [[letters[b] for b in w.encode()] for w in counts]
    weight = list(counts.values())
    pairs, where = Counter(), defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += weight[i]
            where[pair].add(i)
    vocab = {t: i for i, t in enumerate([END] + sorted(letters))}
    merges = []
    while len(vocab) < vocab_size and pairs:
        best = min(pairs, key=lambda p: (-pairs[p], p))
        if pairs[best] < 2:
            break
        merges.append(best)
        vocab[best[0] + best[1]] = len(vocab)
        for i in sorted(where[best]):
            old, new, j = words[i], [], 0
            while j < len(old):
                two = j + 1 < len(old) and (old[j], old[j + 1]) == best
                new.append(old[j] + old[j + 1] if two else old[j])
                j += 2 if two else 1
            for pair in zip(old, old[1:]):
                pairs[pair] -= weight[i]
                if pairs[pair] <= 0:
                    del pairs[pair]
            for pair in zip(new, new[1:]):
                pairs[pair] += weight[i]
                where[pair].add(i)
            words[i] = new
        pairs.pop(best, None)
    return vocab, merges


def files(vocab: dict, merges: list, context: int) -> dict:
    """{file name: JSON value} of a tokenizer directory."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    end = {"id": 0, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": vocab, "merges": [" ".join(m) for m in merges]}
    return {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end],
            "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
            "decoder": byte_level, "model": model},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END,
            "bos_token": None, "unk_token": None, "add_bos_token": False, "add_eos_token": False,
            "clean_up_tokenization_spaces": False, "model_max_length": context},
        "generation_config.json": {"eos_token_id": 0, "pad_token_id": 0, "do_sample": False},
    }


def write(directory, vocab: dict, merges: list, context: int) -> None:
    for name, value in files(vocab, merges, context).items():
        with open(directory / name, "w", encoding="utf-8", newline="\n") as out:
            indent = None if name == "tokenizer.json" else 1
            json.dump(value, out, ensure_ascii=False, indent=indent)
            out.write("\n")
