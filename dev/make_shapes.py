#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a model directory of a known public shape with random bf16 weights.

Speed and memory of a server depend on the shape of a model and hardly on its values, so benchmarks
run on these: every config value is that of the public model, the weights are noise of standard
deviation 0.02 (norm weights are ones). The tokenizer is synthetic: byte-level BPE with no merges,
where 256 tokens are the bytes, the special tokens stand at the ids that the config names, and
fillers make up the rest, so that every id a random model emits can be turned into text.

    python3 dev/make_shapes.py smollm-135m OUT_DIR

Needs numpy and the standard library. The safetensors files are written by hand, one tensor at a
time, so that memory stays small; a model above --shard-bytes is split and gets an index.
"""
import argparse
import json
import os
import statistics
import sys

import numpy as np

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")

SHAPES = {
    "smollm-135m": {
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "torch_dtype": "bfloat16",
        },
        "special": {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2},
    },
    "qwen2.5-0.5b": {
        "config": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "max_position_embeddings": 32768,
            "max_window_layers": 24,
            "sliding_window": 32768,
            "use_sliding_window": False,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "bos_token_id": 151643,
            "eos_token_id": 151643,
            "torch_dtype": "bfloat16",
        },
        "special": {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645},
    },
    "llama-3.2-1b": {
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "torch_dtype": "bfloat16",
        },
        "special": {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001,
                    "<|im_start|>": 128006, "<|im_end|>": 128009},
    },
}


def tensors_of(config):
    """(name, shape) of every tensor, in the order of the forward pass."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows * head_dim, hidden)
            if config["model_type"] == "qwen2":
                yield f"{layer}self_attn.{name}_proj.bias", (rows * head_dim,)
        yield layer + "self_attn.o_proj.weight", (hidden, heads * head_dim)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (inner, hidden)
        yield layer + "mlp.up_proj.weight", (inner, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def bytes_of(shape):
    return 2 * int(np.prod(shape, dtype=np.int64))


def normal_table(deviation):
    """65536 bf16 bit patterns at the quantiles of a normal distribution: a uniform 16-bit number
    looked up here is a normal one, which is far faster than drawing normals."""
    quantile = statistics.NormalDist(0.0, deviation).inv_cdf
    values = np.array([quantile((i + 0.5) / 65536) for i in range(65536)], dtype=np.float32)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")  # round to nearest even


def write_shard(path, tensors, table, generator):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        end = at + bytes_of(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, shape in tensors:
            left = bytes_of(shape) // 2
            if name.endswith("norm.weight"):
                file.write(np.full(left, 0x3F80, dtype="<u2").tobytes())  # 1.0
                continue
            while left > 0:
                count = min(left, 1 << 24)
                drawn = np.frombuffer(generator.bytes(2 * count), dtype="<u2")
                file.write(table[drawn].data)
                left -= count


def write_weights(out, config, shard_bytes, seed):
    shards, filled = [[]], 0
    for name, shape in tensors_of(config):
        if shards[-1] and filled + bytes_of(shape) > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append((name, shape))
        filled += bytes_of(shape)
    table = normal_table(0.02)
    generator = np.random.Generator(np.random.SFC64(seed))
    where, total = {}, 0
    for i, tensors in enumerate(shards):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_shard(os.path.join(out, name), tensors, table, generator)
        for tensor, shape in tensors:
            where[tensor] = name
            total += bytes_of(shape)
    if len(shards) > 1:
        write_json(os.path.join(out, "model.safetensors.index.json"),
                   {"metadata": {"total_size": total}, "weight_map": where})
    return total, len(shards)


def byte_characters():
    """The printable character by which byte-level BPE writes each byte (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters, next_code = [], 0x100
    for byte in range(256):
        if byte in plain:
            characters.append(chr(byte))
        else:
            characters.append(chr(next_code))
            next_code += 1
    return characters


def write_tokenizer(out, config, special):
    by_id = {number: text for text, number in special.items()}
    pending = byte_characters()[::-1]
    vocab = {}
    for number in range(config["vocab_size"]):
        text = by_id.get(number)  # an added token keeps its id only if the vocabulary has it too
        if text is None:
            text = pending.pop() if pending else f"t{number}"
        vocab[text] = number
    added = [{"id": number, "content": text, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True}
             for number, text in sorted(by_id.items())]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    write_json(os.path.join(out, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": []}})
    write_json(os.path.join(out, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False,
        "bos_token": by_id[config["bos_token_id"]], "eos_token": by_id[config["eos_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE}, indent=2)


def write_json(path, value, indent=None):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=indent)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("out", metavar="OUT_DIR", help="created; must not hold a model yet")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard-bytes", type=int, default=10**9,
                        help="most tensor bytes in one file (default %(default)s)")
    args = parser.parse_args()
    if os.path.exists(os.path.join(args.out, "config.json")):
        sys.exit(f"{args.out}: holds a config.json already; give an empty directory")
    os.makedirs(args.out, exist_ok=True)
    shape = SHAPES[args.shape]
    config = shape["config"]
    write_tokenizer(args.out, config, shape["special"])
    write_json(os.path.join(args.out, "generation_config.json"),
               {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
               indent=2)
    total, shards = write_weights(args.out, config, args.shard_bytes, args.seed)
    write_json(os.path.join(args.out, "config.json"), config, indent=2)  # last: it marks a complete directory
    print(f"{args.out}: {total // 2} parameters, {total} bytes in {shards} file(s)")


if __name__ == "__main__":
    main()
