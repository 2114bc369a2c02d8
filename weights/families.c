/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/families.h"

#include <stdio.h>
#include <string.h>

#define LAYER "model.layers.*."

/* The rows that all families share which store each matrix on its own. */
#define MATRIX_ROWS                                                                                \
    {"model.embed_tokens.weight", HZP_EMBED, HZP_PART_ALL},                                        \
        {LAYER "self_attn.q_proj.weight", HZP_QKV, HZP_PART_Q},                                    \
        {LAYER "self_attn.k_proj.weight", HZP_QKV, HZP_PART_K},                                    \
        {LAYER "self_attn.v_proj.weight", HZP_QKV, HZP_PART_V},                                    \
        {LAYER "self_attn.o_proj.weight", HZP_O, HZP_PART_ALL},                                    \
        {LAYER "mlp.gate_proj.weight", HZP_GATE_UP, HZP_PART_GATE},                                \
        {LAYER "mlp.up_proj.weight", HZP_GATE_UP, HZP_PART_UP},                                    \
        {LAYER "mlp.down_proj.weight", HZP_DOWN, HZP_PART_ALL},                                    \
        {"model.norm.weight", HZP_FINAL_NORM, HZP_PART_ALL},                                       \
    {                                                                                              \
        "lm_head.weight", HZP_HEAD, HZP_PART_ALL                                                   \
    }

#define DECODER_ROWS                                                                               \
    MATRIX_ROWS, {LAYER "input_layernorm.weight", HZP_ATTN_NORM, HZP_PART_ALL},                    \
    {                                                                                              \
        LAYER "post_attention_layernorm.weight", HZP_MLP_NORM, HZP_PART_ALL                        \
    }

static const struct hzp_family_row llama_rows[] = {DECODER_ROWS};

static const struct hzp_family_row qwen2_rows[] = {
    DECODER_ROWS,
    {LAYER "self_attn.q_proj.bias", HZP_QKV_BIAS, HZP_PART_Q},
    {LAYER "self_attn.k_proj.bias", HZP_QKV_BIAS, HZP_PART_K},
    {LAYER "self_attn.v_proj.bias", HZP_QKV_BIAS, HZP_PART_V},
};

static const struct hzp_family_row qwen3_rows[] = {
    DECODER_ROWS,
    {LAYER "self_attn.q_norm.weight", HZP_Q_NORM, HZP_PART_ALL},
    {LAYER "self_attn.k_norm.weight", HZP_K_NORM, HZP_PART_ALL},
};

/* q, k and v are rows of one tensor; so are gate and up. */
static const struct hzp_family_row phi3_rows[] = {
    {"model.embed_tokens.weight", HZP_EMBED, HZP_PART_ALL},
    {LAYER "self_attn.qkv_proj.weight", HZP_QKV, HZP_PART_Q},
    {LAYER "self_attn.qkv_proj.weight", HZP_QKV, HZP_PART_K},
    {LAYER "self_attn.qkv_proj.weight", HZP_QKV, HZP_PART_V},
    {LAYER "self_attn.o_proj.weight", HZP_O, HZP_PART_ALL},
    {LAYER "mlp.gate_up_proj.weight", HZP_GATE_UP, HZP_PART_GATE},
    {LAYER "mlp.gate_up_proj.weight", HZP_GATE_UP, HZP_PART_UP},
    {LAYER "mlp.down_proj.weight", HZP_DOWN, HZP_PART_ALL},
    {LAYER "input_layernorm.weight", HZP_ATTN_NORM, HZP_PART_ALL},
    {LAYER "post_attention_layernorm.weight", HZP_MLP_NORM, HZP_PART_ALL},
    {"model.norm.weight", HZP_FINAL_NORM, HZP_PART_ALL},
    {"lm_head.weight", HZP_HEAD, HZP_PART_ALL},
};

/* gate and up are rows of one tensor; glm4 has norms behind attention and MLP, too, and the one in
 * front of the MLP keeps its old name. */
#define GLM_ROWS                                                                                   \
    {"model.embed_tokens.weight", HZP_EMBED, HZP_PART_ALL},                                        \
        {LAYER "self_attn.q_proj.weight", HZP_QKV, HZP_PART_Q},                                    \
        {LAYER "self_attn.k_proj.weight", HZP_QKV, HZP_PART_K},                                    \
        {LAYER "self_attn.v_proj.weight", HZP_QKV, HZP_PART_V},                                    \
        {LAYER "self_attn.q_proj.bias", HZP_QKV_BIAS, HZP_PART_Q},                                 \
        {LAYER "self_attn.k_proj.bias", HZP_QKV_BIAS, HZP_PART_K},                                 \
        {LAYER "self_attn.v_proj.bias", HZP_QKV_BIAS, HZP_PART_V},                                 \
        {LAYER "self_attn.o_proj.weight", HZP_O, HZP_PART_ALL},                                    \
        {LAYER "mlp.gate_up_proj.weight", HZP_GATE_UP, HZP_PART_GATE},                             \
        {LAYER "mlp.gate_up_proj.weight", HZP_GATE_UP, HZP_PART_UP},                               \
        {LAYER "mlp.down_proj.weight", HZP_DOWN, HZP_PART_ALL},                                    \
        {LAYER "input_layernorm.weight", HZP_ATTN_NORM, HZP_PART_ALL},                             \
        {LAYER "post_attention_layernorm.weight", HZP_MLP_NORM, HZP_PART_ALL},                     \
        {"model.norm.weight", HZP_FINAL_NORM, HZP_PART_ALL},                                       \
    {                                                                                              \
        "lm_head.weight", HZP_HEAD, HZP_PART_ALL                                                   \
    }

static const struct hzp_family_row glm_rows[] = {GLM_ROWS};

static const struct hzp_family_row glm4_rows[] = {
    GLM_ROWS,
    {LAYER "post_self_attn_layernorm.weight", HZP_ATTN_POST, HZP_PART_ALL},
    {LAYER "post_mlp_layernorm.weight", HZP_MLP_POST, HZP_PART_ALL},
};

/* Norms only of what attention and MLP give, and of all heads of q and of k. */
static const struct hzp_family_row olmo2_rows[] = {
    MATRIX_ROWS,
    {LAYER "self_attn.q_norm.weight", HZP_Q_NORM, HZP_PART_ALL},
    {LAYER "self_attn.k_norm.weight", HZP_K_NORM, HZP_PART_ALL},
    {LAYER "post_attention_layernorm.weight", HZP_ATTN_POST, HZP_PART_ALL},
    {LAYER "post_feedforward_layernorm.weight", HZP_MLP_POST, HZP_PART_ALL},
};

/* The rows that both Gemmas have. */
#define GEMMA_ROWS                                                                                 \
    MATRIX_ROWS, {LAYER "input_layernorm.weight", HZP_ATTN_NORM, HZP_PART_ALL},                    \
        {LAYER "post_attention_layernorm.weight", HZP_ATTN_POST, HZP_PART_ALL},                    \
        {LAYER "pre_feedforward_layernorm.weight", HZP_MLP_NORM, HZP_PART_ALL},                    \
    {                                                                                              \
        LAYER "post_feedforward_layernorm.weight", HZP_MLP_POST, HZP_PART_ALL                      \
    }

static const struct hzp_family_row gemma2_rows[] = {GEMMA_ROWS};

static const struct hzp_family_row gemma3_rows[] = {
    GEMMA_ROWS,
    {LAYER "self_attn.q_norm.weight", HZP_Q_NORM, HZP_PART_ALL},
    {LAYER "self_attn.k_norm.weight", HZP_K_NORM, HZP_PART_ALL},
};

#define ROWS(table) .row = table, .rows = HZP_COUNT(table)

/* What absent fields mean in both configuration classes of GLM. */
#define GLM                                                                                        \
    .qkv_bias = true, .bias_field = true, .partial = true, .neighbours = true, .rotary = 0.5,      \
    .kv_heads = 2, .dim = 128, .positions = 131072, .eps = 1.5625e-7

static const struct hzp_family families[] = {
    {.model_type = "llama", ROWS(llama_rows), .bias_switch = true, .positions = 2048},
    {.model_type = "mistral",
     ROWS(llama_rows),
     .bias_switch = true,
     .kv_heads = 8,
     .positions = 131072,
     .window = 4096},
    {.model_type = "qwen2",
     ROWS(qwen2_rows),
     .qkv_bias = true,
     .kv_heads = 32,
     .positions = 32768,
     .window = 4096,
     .window_layers = 28,
     .window_switch = true},
    {.model_type = "qwen3",
     ROWS(qwen3_rows),
     .qk_norm = true,
     .bias_switch = true,
     .kv_heads = 32,
     .dim = 128,
     .positions = 32768,
     .window = 4096,
     .window_layers = 28,
     .window_switch = true},
    {.model_type = "granite",
     ROWS(llama_rows),
     .bias_switch = true,
     .scalars = true,
     .positions = 2048},
    {.model_type = "smollm3",
     ROWS(llama_rows),
     .bias_switch = true,
     .kv_heads = 4,
     .positions = 32768,
     .window = -1,
     .window_switch = true,
     .no_rope_interval = 4,
     .theta = 2000000,
     .tied = true},
    {.model_type = "phi3",
     ROWS(phi3_rows),
     .partial = true,
     .fused = true,
     .positions = 4096,
     .window = -1,
     .original = 4096},
    {.model_type = "ministral3",
     ROWS(llama_rows),
     .query_beta = true,
     .kv_heads = 8,
     .dim = 128,
     .positions = 262144,
     .window = -1},
    {.model_type = "olmo2",
     ROWS(olmo2_rows),
     .norm_after = true,
     .no_norm_before = true,
     .qk_norm_full = true,
     .bias_switch = true,
     .positions = 2048,
     .eps = 1e-5},
    {.model_type = "gemma2",
     ROWS(gemma2_rows),
     .gemma = true,
     .norm_after = true,
     .norm_plus_one = true,
     .bias_switch = true,
     .kv_heads = 4,
     .dim = 256,
     .positions = 8192,
     .window = 4096,
     .window_every = 2,
     .caps_scores = true,
     .score_cap = 50,
     .logit_cap = 30,
     .tied = true},
    {.model_type = "gemma3_text",
     ROWS(gemma3_rows),
     .gemma = true,
     .norm_after = true,
     .norm_plus_one = true,
     .qk_norm = true,
     .bias_switch = true,
     .kv_heads = 4,
     .dim = 256,
     .positions = 131072,
     .window = 4096,
     .window_every = 6,
     .theta = 1000000,
     .local_theta = 10000,
     .tied = true},
    {.model_type = "olmo3",
     ROWS(olmo2_rows),
     .norm_after = true,
     .no_norm_before = true,
     .qk_norm_full = true,
     .bias_switch = true,
     .positions = 2048,
     .window = 4096,
     .window_every = 4,
     .theta = 500000,
     .local_theta = 500000,
     .eps = 1e-5},
    {.model_type = "glm", ROWS(glm_rows), GLM},
    {.model_type = "glm4", ROWS(glm4_rows), .norm_after = true, GLM},
};

const struct hzp_family *hzp_family_find(const char *model_type)
{
    for (int i = 0; i < HZP_COUNT(families); i++)
        if (!strcmp(families[i].model_type, model_type))
            return &families[i];
    return NULL;
}

const char *hzp_family_list(void)
{
    return "llama, mistral, qwen2, qwen3, granite, smollm3, phi3, ministral3, olmo2, gemma2, "
           "gemma3_text, olmo3, glm, glm4";
}

void hzp_family_name(const struct hzp_family_row *row, int32_t layer, char *ret, size_t size)
{
    const char *star = strchr(row->name, '*');
    if (star)
        snprintf(ret, size, "%.*s%d%s", (int)(star - row->name), row->name, layer, star + 1);
    else
        snprintf(ret, size, "%s", row->name);
}

const struct hzp_family_row *hzp_family_row_of(const struct hzp_family *family, enum hzp_role role)
{
    for (int i = 0; i < family->rows; i++)
        if (family->row[i].role == role)
            return &family->row[i];
    return NULL;
}

bool hzp_family_is_leftover(const char *name)
{
    static const char *const tails[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached",
                                        "rotary_emb.sin_cached"};
    size_t length = strlen(name);
    for (int i = 0; i < HZP_COUNT(tails); i++) {
        size_t tail = strlen(tails[i]);
        if (length >= tail && !strcmp(name + length - tail, tails[i]))
            return true;
    }
    return false;
}
