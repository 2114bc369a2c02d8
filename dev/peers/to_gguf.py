#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a Llama model directory (Hugging Face form, bf16) as a GGUF file of the same weights.

    to_gguf.py MODEL_DIR OUT.gguf

llama.cpp's own converter recognizes tokenizers by a hash of their output and refuses the synthetic ones
of dev/make_shapes.py; this one accepts any byte-level BPE vocabulary, which is enough where
prompts are tokens and answers are only counted.  Matrices stay bf16, bit for bit; the rows of
the query and key projections are put into the order that GGUF has for rotary embeddings; norms
become f32.  Needs numpy and the gguf package.
"""
import argparse
import json
import math
import pathlib
import struct

import gguf
import numpy as np


def tensors(directory):
    """(name, shape, bf16 bits) of every tensor, one file after another."""
    for path in sorted(directory.glob("*.safetensors")):
        with open(path, "rb") as file:
            header_bytes, = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(header_bytes))
        data = np.memmap(path, np.uint8, "r", 8 + header_bytes)
        for name, about in header.items():
            if name == "__metadata__":
                continue
            assert about["dtype"] == "BF16", (name, about["dtype"])
            begin, end = about["data_offsets"]
            yield name, data[begin:end].view(np.uint16).reshape(about["shape"])


def rotary_order(bits, heads):
    """Reorders rows so that the pairs (i, i + half) of each head become neighbours."""
    rows, columns = bits.shape
    return bits.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def rope_factors(config, head_dim):
    """The factors by which llama3 scaling divides the frequencies."""
    scaling = config["rope_scaling"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    old = scaling["original_max_position_embeddings"]
    factors = []
    for i in range(0, head_dim, 2):
        wave = 2 * math.pi * config["rope_theta"] ** (i / head_dim)
        if wave < old / high:
            factors.append(1.0)
        elif wave > old / low:
            factors.append(scaling["factor"])
        else:
            smooth = (old / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def add_vocabulary(writer, directory, config):
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    names = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    special = {token["id"] for token in tokenizer.get("added_tokens", [])}
    names.update({token["id"]: token["content"] for token in tokenizer.get("added_tokens", [])})
    size = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([names.get(i, f"[unused{i}]") for i in range(size)])
    kind = gguf.TokenType
    writer.add_token_types([kind.CONTROL if i in special else kind.NORMAL if i in names
                            else kind.UNUSED for i in range(size)])
    merges = tokenizer["model"].get("merges") or ["\u0120 \u0120"]  # the list may not be empty
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out")
    given = parser.parse_args()
    config = json.loads((given.model / "config.json").read_text())
    assert config["model_type"] == "llama", config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads

    writer = gguf.GGUFWriter(given.out, "llama")
    writer.add_name(given.model.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    add_vocabulary(writer, given.model, config)
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config, head_dim))

    name_of = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, bits in tensors(given.model):
        target = name_of.get_name(name, try_suffixes=(".weight",))
        assert target, name
        if bits.ndim == 1:
            writer.add_tensor(target, (bits.astype(np.uint32) << 16).view(np.float32))
            continue
        if name.endswith("q_proj.weight"):
            bits = rotary_order(bits, heads)
        elif name.endswith("k_proj.weight"):
            bits = rotary_order(bits, kv_heads)
        writer.add_tensor(target, np.ascontiguousarray(bits).view(np.uint8),
                          raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
