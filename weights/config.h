/* SPDX-License-Identifier: Apache-2.0 */
/* weights/config.h - the description of a model, read from the config.json of a Hugging Face
 * directory.
 *
 * One struct covers every family (Llama, Mistral, Qwen2, Qwen3); the differences are data.  Every
 * value is checked: after hzp_config_read() all numbers are in ranges for which later arithmetic on
 * sizes cannot overflow, and anything the engine cannot compute (another activation, another rope
 * scaling) is an error that names the field.
 *
 * Thread: any.
 */
#pragma once

#include "base/err.h"
#include "device/ops.h"

enum hzp_rope_scaling {
    HZP_ROPE_PLAIN,
    HZP_ROPE_LINEAR,
    HZP_ROPE_LLAMA3,
    HZP_ROPE_YARN,
    HZP_ROPE_LONG
};

enum { HZP_LAYERS_MAX = 1024, HZP_LAYER_KINDS_MAX = 4, HZP_PAIRS_MAX = 256 };

/* What differs between the layers of one model. */
struct hzp_layer_kind {
    bool no_rope;   /* queries and keys are not rotated (SmolLM3) */
    bool local;     /* they are by rope_local_theta (Gemma 3) */
    int32_t window; /* a row sees so many positions, its own included; 0: all before it */
};

struct hzp_model_config {
    char family[16]; /* config.json's model_type: "llama", "mistral", "qwen2", "qwen3" */
    int32_t layers, width, inner, vocab;
    struct hzp_heads heads;
    int32_t positions; /* the longest sequence of the model */
    float norm_eps;
    /* Scalars; 0: none, attention's is then 1 / sqrt(dim).  Where a family multiplies what a layer
     * adds to the residual stream by r, the stream here is 1 / r of that family's: norms divide
     * what their input is multiplied by, so norm_eps is 1 / r^2 of the file's, embed_scale has the
     * factor 1 / r, and nothing else changes. */
    float embed_scale, attn_scale, logits_scale;
    double rope_theta, rope_local_theta;
    enum hzp_rope_scaling rope_scaling;
    double rope_factor, rope_low_factor, rope_high_factor; /* the last two: llama3 only */
    int32_t rope_original_positions;
    int32_t rotary;  /* elements of a head that turn; 0: all, dim */
    bool neighbours; /* on disk, those that turn together are neighbours (GLM); hzp_disk_row */
    double rope_amplitude;                 /* factor of cosines and sines (yarn, longrope); 0: 1 */
    double rope_beta_fast, rope_beta_slow; /* yarn: turns of the first and the last mixed pair */
    bool rope_untruncated;                 /* yarn: those pairs are not whole numbers */
    float rope_short[HZP_PAIRS_MAX], rope_long[HZP_PAIRS_MAX]; /* longrope: divisors of angles */
    bool tied;                                                 /* the head is the embedding */
    bool qkv_bias;                                             /* Qwen2 */
    bool qk_norm;                                              /* Qwen3 */
    bool qk_norm_full;   /* one norm of all heads of q, and one of k, each (OLMo 2) */
    bool norm_after;     /* what attention and MLP add to the stream is normed (OLMo 2, Gemma) */
    bool no_norm_before; /* what they read is not (OLMo 2) */
    bool norm_plus_one;  /* norms multiply by 1 + w (Gemma) */
    bool norm_centred;   /* norms subtract the mean: LayerNorm without biases (Cohere) */
    bool parallel;       /* attention and MLP read one norm of the stream (Cohere) */
    bool sinks;          /* each head has one more score, without a value (Granite SWA) */
    bool gelu;           /* the MLP's gate is GELU by tanh, not silu (Gemma) */
    float score_cap, logit_cap; /* of cap tanh(x / cap) (Gemma 2); 0: none */
    struct hzp_layer_kind kind[HZP_LAYER_KINDS_MAX];
    uint8_t layer_kind[HZP_LAYERS_MAX]; /* index into kind */
    /* torch_dtype; F32 if absent or F16. */
    enum hzp_dtype disk_type;
    /* -1, 0: none; generation_config.json takes precedence; all of them are in the vocabulary */
    int32_t bos, eos[8], eos_count;
};

/* Reads dir/config.json, and dir/generation_config.json if it is there.
 * HZP_ENOENT, HZP_EFORMAT, HZP_EUNSUP; the text names file and field. */
int hzp_config_read(const char *dir, struct hzp_model_config *ret, struct hzp_err_text *reterr);

static inline const struct hzp_layer_kind *hzp_config_kind(const struct hzp_model_config *config,
                                                           int32_t layer)
{
    return &config->kind[config->layer_kind[layer]];
}

/* Whether some layer does not rotate; whether some layer rotates by rope_local_theta. */
bool hzp_config_has_no_rope(const struct hzp_model_config *config);
bool hzp_config_has_local(const struct hzp_model_config *config);

/* Fills table [positions][dim] F32 in the rope op's format: dim/2 cosines, then dim/2 sines of pos
 * * frequency(j), frequency as in Hugging Face's modeling_rope_utils for the three kinds; local: of
 * the layers that rotate by rope_local_theta. */
void hzp_rope_table(const struct hzp_model_config *config, bool local, int32_t positions,
                    float *table);

/* The number of parameters of the model, each counted once. */
int64_t hzp_config_parameters(const struct hzp_model_config *config);
