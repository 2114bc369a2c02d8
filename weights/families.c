/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/families.h"

#define LAYER "model.layers.*."

/* What distinguishes how families store the same tensors. */
enum {
    ALL = 0,
    QKV_APART = 1, /* q, k and v are a tensor each, or rows of one */
    QKV_JOINED = 2,
    GATE_APART = 4, /* so are gate and up */
    GATE_JOINED = 8,
    NORMS = 16, /* norms in front of attention and MLP, maybe others behind them (GLM-4), or: */
    NORMS_AFTER = 32, /* norms behind attention and MLP, maybe others before them (Gemma) */
    LLAMA = QKV_APART | GATE_APART | NORMS,
    PHI = QKV_JOINED | GATE_JOINED | NORMS,
    GLM = QKV_APART | GATE_JOINED | NORMS,
    OLMO = QKV_APART | GATE_APART | NORMS_AFTER,
};

/* A row is of the families that store tensors so; of a role that a model lacks none is used.  Both
 * kinds of norms have one tensor's name, with another role. */
static const struct {
    int of;
    struct hzp_family_row row;
} all_rows[] = {
    {ALL, {"model.embed_tokens.weight", HZP_EMBED, HZP_PART_ALL}},
    {QKV_APART, {LAYER "self_attn.q_proj.weight", HZP_QKV, HZP_PART_Q}},
    {QKV_APART, {LAYER "self_attn.k_proj.weight", HZP_QKV, HZP_PART_K}},
    {QKV_APART, {LAYER "self_attn.v_proj.weight", HZP_QKV, HZP_PART_V}},
    {QKV_APART, {LAYER "self_attn.q_proj.bias", HZP_QKV_BIAS, HZP_PART_Q}},
    {QKV_APART, {LAYER "self_attn.k_proj.bias", HZP_QKV_BIAS, HZP_PART_K}},
    {QKV_APART, {LAYER "self_attn.v_proj.bias", HZP_QKV_BIAS, HZP_PART_V}},
    {QKV_JOINED, {LAYER "self_attn.qkv_proj.weight", HZP_QKV, HZP_PART_Q}},
    {QKV_JOINED, {LAYER "self_attn.qkv_proj.weight", HZP_QKV, HZP_PART_K}},
    {QKV_JOINED, {LAYER "self_attn.qkv_proj.weight", HZP_QKV, HZP_PART_V}},
    {ALL, {LAYER "self_attn.q_norm.weight", HZP_Q_NORM, HZP_PART_ALL}},
    {ALL, {LAYER "self_attn.k_norm.weight", HZP_K_NORM, HZP_PART_ALL}},
    {ALL, {LAYER "self_attn.o_proj.weight", HZP_O, HZP_PART_ALL}},
    {ALL, {LAYER "self_attn.sinks", HZP_SINK, HZP_PART_ALL}},
    {GATE_APART, {LAYER "mlp.gate_proj.weight", HZP_GATE_UP, HZP_PART_GATE}},
    {GATE_APART, {LAYER "mlp.up_proj.weight", HZP_GATE_UP, HZP_PART_UP}},
    {GATE_JOINED, {LAYER "mlp.gate_up_proj.weight", HZP_GATE_UP, HZP_PART_GATE}},
    {GATE_JOINED, {LAYER "mlp.gate_up_proj.weight", HZP_GATE_UP, HZP_PART_UP}},
    {ALL, {LAYER "mlp.down_proj.weight", HZP_DOWN, HZP_PART_ALL}},
    {ALL, {LAYER "input_layernorm.weight", HZP_ATTN_NORM, HZP_PART_ALL}},
    {NORMS, {LAYER "post_attention_layernorm.weight", HZP_MLP_NORM, HZP_PART_ALL}},
    {NORMS, {LAYER "post_self_attn_layernorm.weight", HZP_ATTN_POST, HZP_PART_ALL}},
    {NORMS, {LAYER "post_mlp_layernorm.weight", HZP_MLP_POST, HZP_PART_ALL}},
    {NORMS_AFTER, {LAYER "post_attention_layernorm.weight", HZP_ATTN_POST, HZP_PART_ALL}},
    {NORMS_AFTER, {LAYER "pre_feedforward_layernorm.weight", HZP_MLP_NORM, HZP_PART_ALL}},
    {NORMS_AFTER, {LAYER "post_feedforward_layernorm.weight", HZP_MLP_POST, HZP_PART_ALL}},
    {ALL, {"model.norm.weight", HZP_FINAL_NORM, HZP_PART_ALL}},
    {ALL, {"lm_head.weight", HZP_HEAD, HZP_PART_ALL}},
};

/* What absent fields mean in both configuration classes of GLM. */
#define GLM_CLASS                                                                                  \
    .qkv_bias = true, .bias_field = true, .partial = true, .neighbours = true, .rotary = 0.5,      \
    .kv_heads = 2, .dim = 128, .positions = 131072, .eps = 1.5625e-7

/* The same of Cohere's. */
#define COHERE_CLASS                                                                               \
    .stores = LLAMA, .bias_switch = true, .norm_centred = true, .parallel = true,                  \
    .neighbours = true, .logit_scale = 0.0625, .positions = 8192, .tied = true, .eps = 1e-5

static const struct hzp_family families[] = {
    {.model_type = "llama", .stores = LLAMA, .bias_switch = true, .positions = 2048},
    {.model_type = "mistral",
     .stores = LLAMA,
     .bias_switch = true,
     .kv_heads = 8,
     .positions = 131072,
     .window = 4096},
    {.model_type = "ministral",
     .stores = LLAMA,
     .bias_switch = true,
     .kv_heads = 8,
     .positions = 131072,
     .window = 4096},
    {.model_type = "qwen2",
     .stores = LLAMA,
     .qkv_bias = true,
     .kv_heads = 32,
     .positions = 32768,
     .window = 4096,
     .window_layers = 28,
     .window_switch = true},
    {.model_type = "qwen3",
     .stores = LLAMA,
     .qk_norm = true,
     .bias_switch = true,
     .kv_heads = 32,
     .dim = 128,
     .positions = 32768,
     .window = 4096,
     .window_layers = 28,
     .window_switch = true},
    {.model_type = "granite",
     .stores = LLAMA,
     .bias_switch = true,
     .scalars = true,
     .positions = 2048},
    {.model_type = "granite_swa",
     .stores = LLAMA,
     .bias_switch = true,
     .scalars = true,
     .sinks = true,
     .window = 128,
     .window_every = 4,
     .full_first = true,
     .layer_thetas = true,
     .kv_heads = 4,
     .positions = 8192,
     .tied = true,
     .eps = 1e-5},
    {.model_type = "smollm3",
     .stores = LLAMA,
     .bias_switch = true,
     .kv_heads = 4,
     .positions = 32768,
     .window = -1,
     .window_switch = true,
     .no_rope_interval = 4,
     .theta = 2000000,
     .tied = true},
    {.model_type = "phi3",
     .stores = PHI,
     .partial = true,
     .fused = true,
     .positions = 4096,
     .window = -1,
     .original = 4096},
    {.model_type = "ministral3",
     .stores = LLAMA,
     .query_beta = true,
     .kv_heads = 8,
     .dim = 128,
     .positions = 262144,
     .window = -1},
    {.model_type = "olmo2",
     .stores = OLMO,
     .norm_after = true,
     .no_norm_before = true,
     .qk_norm_full = true,
     .bias_switch = true,
     .positions = 2048,
     .eps = 1e-5},
    {.model_type = "gemma2",
     .stores = OLMO,
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
     .stores = OLMO,
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
     .stores = OLMO,
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
    {.model_type = "glm", .stores = GLM, GLM_CLASS},
    {.model_type = "glm4", .stores = GLM, .norm_after = true, GLM_CLASS},
    {.model_type = "seed_oss",
     .stores = LLAMA,
     .qkv_bias = true,
     .bias_field = true,
     .kv_heads = 8,
     .dim = 128,
     .positions = 524288},
    {.model_type = "cohere", COHERE_CLASS},
    {.model_type = "cohere2", .window = 4096, .window_every = 4, .window_rope = true, COHERE_CLASS},
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
    return "llama, mistral, ministral, qwen2, qwen3, granite, granite_swa, smollm3, phi3, "
           "ministral3, "
           "olmo2, gemma2, gemma3_text, olmo3, glm, glm4, seed_oss, cohere, cohere2";
}

void hzp_family_name(const struct hzp_family_row *row, int32_t layer, char *ret, size_t size)
{
    const char *star = strchr(row->name, '*');
    if (star)
        snprintf(ret, size, "%.*s%d%s", (int)(star - row->name), row->name, layer, star + 1);
    else
        snprintf(ret, size, "%s", row->name);
}

int hzp_family_rows(const struct hzp_family *family, enum hzp_role role,
                    const struct hzp_family_row *ret[HZP_FAMILY_ROWS_MAX])
{
    int n = 0;
    for (int i = 0; i < HZP_COUNT(all_rows); i++)
        if (all_rows[i].row.role == role && (all_rows[i].of & family->stores) == all_rows[i].of) {
            HZP_ASSERT(n < HZP_FAMILY_ROWS_MAX);
            ret[n++] = &all_rows[i].row;
        }
    return n;
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
