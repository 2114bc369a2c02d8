/* SPDX-License-Identifier: Apache-2.0 */
/* tests/weights/tiny_models.h - config.json texts of a few small models, one per family.
 *
 * Thread: any.
 */
#pragma once

#define TINY(type, more)                                                                           \
    "{\"model_type\": \"" type "\", \"hidden_size\": 24, \"intermediate_size\": 20, "              \
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "           \
    "\"vocab_size\": 37, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-05, "               \
    "\"hidden_act\": \"silu\", \"bos_token_id\": 1, \"eos_token_id\": 2, "                         \
    "\"torch_dtype\": \"float32\"" more "}"

static const char *const tiny_models[] = {
    TINY("llama", ", \"tie_word_embeddings\": true"),
    TINY("llama", ", \"tie_word_embeddings\": false"),
    TINY("mistral", ", \"sliding_window\": null"),
    TINY("qwen2", ", \"tie_word_embeddings\": true"),
    TINY("qwen2", ", \"tie_word_embeddings\": false, \"use_sliding_window\": false"),
    TINY("qwen3", ", \"tie_word_embeddings\": true, \"head_dim\": 10"),
    TINY("qwen3", ", \"tie_word_embeddings\": false, \"head_dim\": 10"),
    TINY("granite", ", \"embedding_multiplier\": 12.0, \"residual_multiplier\": 0.22, "
                    "\"attention_multiplier\": 0.015625, \"logits_scaling\": 8.0"),
    TINY("granite_swa", ", \"tie_word_embeddings\": true, \"layer_rope_theta\": [0, 1e4, 1e4]"),
    TINY("smollm3", ", \"tie_word_embeddings\": true, \"no_rope_layers\": [1, 0, 1]"),
    TINY("phi3", ", \"partial_rotary_factor\": 0.7"),
    TINY("olmo2", ""),
    TINY("gemma2", ", \"tie_word_embeddings\": true, \"head_dim\": 10"),
    TINY("gemma3_text", ", \"tie_word_embeddings\": true, \"head_dim\": 10"),
    TINY("olmo3", ", \"sliding_window\": 8"),
    TINY("glm", ", \"head_dim\": 10, \"partial_rotary_factor\": 0.4, \"attention_bias\": false"),
    TINY("glm4", ", \"head_dim\": 10, \"partial_rotary_factor\": 0.6"),
    TINY("cohere", ", \"tie_word_embeddings\": true"),
    TINY("cohere2", ", \"tie_word_embeddings\": false, \"sliding_window\": 8"),
};
