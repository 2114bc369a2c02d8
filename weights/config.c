/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/config.h"

#include "weights/config_read.h"
#include "weights/wrapper.h"
#include "base/json_file.h"

_Static_assert((int)LAYERS_MAX <= (int)HZP_LAYERS_MAX, "struct hzp_model_config has all layers");
_Static_assert((int)DIM_MAX <= 2 * (int)HZP_PAIRS_MAX, "struct hzp_model_config has all pairs");

/* A config.json is a few kilobytes. */
enum { CONFIG_BYTES_MAX = 1 << 20 };

/* A number that has no meaning when it is null. */
static int refuse_null(const struct hzp_config_source *src, const char *key)
{
    return hzp_config_null(src, key) ? hzp_config_fail(src, HZP_EFORMAT, key, "%s is null", key)
                                     : HZP_OK;
}

static int read_sizes(const struct hzp_config_source *src, const struct hzp_family *family,
                      struct hzp_model_config *c)
{
    const json_t *root = src->root;
    int64_t required = INT64_MIN;
    HZP_TRY(hzp_config_int(src, root, "num_hidden_layers", 1, LAYERS_MAX, required, &c->layers));
    HZP_TRY(hzp_config_int(src, root, "hidden_size", 1, WIDTH_MAX, required, &c->width));
    HZP_TRY(hzp_config_int(src, root, "intermediate_size", 1, INNER_MAX, required, &c->inner));
    HZP_TRY(hzp_config_int(src, root, "vocab_size", 1, VOCAB_MAX, required, &c->vocab));
    HZP_TRY(
        hzp_config_int(src, root, "num_attention_heads", 1, HEADS_MAX, required, &c->heads.heads));
    bool every = !family->kv_heads || hzp_config_null(src, "num_key_value_heads");
    HZP_TRY(hzp_config_int(src, root, "num_key_value_heads", 1, HEADS_MAX,
                           every ? c->heads.heads : family->kv_heads, &c->heads.kv_heads));
    if (c->heads.heads % c->heads.kv_heads)
        return hzp_config_fail(src, HZP_EFORMAT, "num_key_value_heads",
                               "num_attention_heads %d is no multiple of num_key_value_heads %d",
                               c->heads.heads, c->heads.kv_heads);
    bool quotient = !family->dim || hzp_config_null(src, "head_dim");
    if (!hzp_config_get(root, "head_dim") && quotient && c->width % c->heads.heads)
        return hzp_config_fail(
            src, HZP_EFORMAT, "head_dim",
            "hidden_size %d is no multiple of num_attention_heads %d, and there is no head_dim",
            c->width, c->heads.heads);
    HZP_TRY(hzp_config_int(src, root, "head_dim", 2, DIM_MAX,
                           quotient ? c->width / c->heads.heads : family->dim, &c->heads.dim));
    /* The fallback is a quotient and has not been checked against the bounds. */
    if (c->heads.dim < 2 || c->heads.dim > DIM_MAX || c->heads.dim % 2)
        return hzp_config_fail(src, HZP_EFORMAT, "head_dim",
                               "head_dim is %d; possible are even numbers from 2 to %d",
                               c->heads.dim, DIM_MAX);
    HZP_TRY(refuse_null(src, "max_position_embeddings"));
    const char *eps_key = family->norm_centred ? "layer_norm_eps" : "rms_norm_eps";
    HZP_TRY(refuse_null(src, eps_key));
    HZP_TRY(hzp_config_int(src, root, "max_position_embeddings", 1, POSITIONS_MAX,
                           family->positions, &c->positions));
    double eps;
    /* eps prevents the division by zero for a row of zeros, in float: it must not round to 0
     * there. */
    HZP_TRY(hzp_config_real(src, root, eps_key, 1e-30, 0.1, family->eps != 0 ? family->eps : 1e-6,
                            &eps));
    c->norm_eps = (float)eps;
    return hzp_config_bool(src, "tie_word_embeddings", family->tied, &c->tied);
}

/* Bits of a layer's kind. */
enum { NO_ROPE = 1, WINDOW = 2 };

/* Which layers do not rotate: by a list of 0 and 1, 1 for those that do, or each i-th. */
static int read_kinds(const struct hzp_config_source *src, const struct hzp_family *family,
                      struct hzp_model_config *c)
{
    const char *key = "no_rope_layers", *each = "no_rope_layer_interval";
    const json_t *list = hzp_config_get(src->root, key);
    int32_t interval, rotates;
    if (!family->no_rope_interval) {
        const char *found = list ? key : hzp_config_get(src->root, each) ? each : NULL;
        return found ? hzp_config_fail(src, HZP_EUNSUP, found,
                                       "%s is not supported for model_type %s", found,
                                       family->model_type)
                     : HZP_OK;
    }
    c->kind[NO_ROPE].no_rope = c->kind[NO_ROPE | WINDOW].no_rope = true;
    HZP_TRY(
        hzp_config_int(src, src->root, each, 1, INT32_MAX, family->no_rope_interval, &interval));
    if (list && (!json_is_array(list) || json_array_size(list) < (size_t)c->layers))
        return hzp_config_fail(src, HZP_EFORMAT, key,
                               "%s is no list of at least num_hidden_layers %d numbers", key,
                               c->layers);
    for (int32_t i = 0; i < c->layers; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        rotates = (i + 1) % interval != 0;
        if (list && (!json_is_integer(item) || json_integer_value(item) >> 1))
            return hzp_config_fail(src, HZP_EFORMAT, key, "%s has an entry other than 0 and 1",
                                   key);
        if (list)
            rotates = (int32_t)json_integer_value(item);
        c->layer_kind[i] = rotates ? 0 : NO_ROPE;
    }
    return HZP_OK;
}

/* Granite's scalars; their absence means 1. */
static int read_scalars(const struct hzp_config_source *src, const struct hzp_family *family,
                        struct hzp_model_config *c)
{
    static const char *const keys[] = {"embedding_multiplier", "residual_multiplier",
                                       "attention_multiplier", "logits_scaling"};
    enum { EMBEDDING, RESIDUAL, ATTENTION, LOGITS };
    double scalar[HZP_COUNT(keys)];
    for (int i = 0; i < HZP_COUNT(keys); i++) {
        HZP_TRY(refuse_null(src, keys[i]));
        HZP_TRY(hzp_config_real(src, src->root, keys[i], 1e-3, 1e3, 1, &scalar[i]));
        if (!family->scalars && scalar[i] != 1)
            return hzp_config_fail(src, HZP_EUNSUP, keys[i],
                                   "%s %g is not supported for model_type %s", keys[i], scalar[i],
                                   family->model_type);
    }
    double logits;
    HZP_TRY(refuse_null(src, "logit_scale"));
    HZP_TRY(hzp_config_real(src, src->root, "logit_scale", 1e-3, 1e3,
                            family->logit_scale != 0 ? family->logit_scale : 1, &logits));
    if (family->logit_scale == 0 && logits != 1)
        return hzp_config_fail(src, HZP_EUNSUP, "logit_scale",
                               "logit_scale %g is not supported for model_type %s", logits,
                               family->model_type);
    c->logits_scale = logits == 1 ? 0 : (float)logits;
    if (!family->scalars)
        return HZP_OK;
    c->embed_scale = (float)(scalar[EMBEDDING] / scalar[RESIDUAL]);
    c->norm_eps = (float)((double)c->norm_eps / (scalar[RESIDUAL] * scalar[RESIDUAL]));
    c->attn_scale = (float)scalar[ATTENTION];
    c->logits_scale = scalar[LOGITS] == 1 ? 0 : (float)(1 / scalar[LOGITS]);
    return HZP_OK;
}

/* Rejects settings that change the arithmetic to something that no op computes. */
static int refuse_unknown(const struct hzp_config_source *src, const struct hzp_family *family)
{
    static const char *const off[] = {"use_bidirectional_attention", "use_qk_norm", "mlp_bias",
                                      "attention_out_bias"};
    const char *act;
    bool on;
    const char *key = family->gemma ? "hidden_activation" : "hidden_act";
    HZP_TRY(hzp_config_text(src, src->root, key, &act));
    bool gates = family->gemma ? !act || !strcmp(act, "gelu_pytorch_tanh")
                               : !act || !strcmp(act, "silu") || !strcmp(act, "swish");
    if (!gates)
        return hzp_config_fail(src, HZP_EUNSUP, key, "%s \"%.40s\" is not supported; only %s is",
                               key, act, family->gemma ? "gelu_pytorch_tanh" : "silu");
    for (int i = 0; i < HZP_COUNT(off); i++) {
        HZP_TRY(hzp_config_bool(src, off[i], false, &on));
        if (on)
            return hzp_config_fail(src, HZP_EUNSUP, off[i], "%s true is not supported", off[i]);
    }
    HZP_TRY(hzp_config_bool(src, "attention_bias", false, &on));
    if (on && family->bias_switch)
        return hzp_config_fail(src, HZP_EUNSUP, "attention_bias",
                               "attention_bias true is not supported for model_type %s",
                               family->model_type);
    if (hzp_config_get(src->root, "quantization_config"))
        return hzp_config_fail(src, HZP_EUNSUP, "quantization_config",
                               "quantization_config: take the model that it was made of");
    return HZP_OK;
}

/* Whether layer i has a window where layer_types does not say so. */
static bool usually_slides(const struct hzp_family *family, const struct hzp_model_config *c,
                           int32_t i, int32_t first, int32_t every)
{
    if (family->no_rope_interval)
        return c->layer_kind[i] & NO_ROPE;
    if (family->full_first)
        return i % every != 0;
    return every ? (i + 1) % every != 0 : i >= first;
}

/* Layers with a window of positions; one as long as the longest text has no effect. */
static int read_window(const struct hzp_config_source *src, const struct hzp_family *family,
                       struct hzp_model_config *c)
{
    int32_t window, first = 0, every;
    bool slides, some = false;
    if (!family->window)
        return HZP_OK;
    HZP_TRY(hzp_config_int(src, src->root, "sliding_window_pattern", 1, INT32_MAX,
                           family->window_every, &every));
    bool null = hzp_config_null(src, "sliding_window");
    HZP_TRY(hzp_config_int(src, src->root, "sliding_window", 1, INT32_MAX,
                           null ? 0 : HZP_MAX(family->window, 0), &window));
    HZP_TRY(hzp_config_bool(src, "use_sliding_window", !family->window_switch, &slides));
    slides = slides || !family->window_switch;
    if (family->window_layers) /* the window is of the layers from this one on */
        HZP_TRY(hzp_config_int(src, src->root, "max_window_layers", 0, INT32_MAX,
                               family->window_layers, &first));
    const json_t *types = hzp_config_get(src->root, "layer_types");
    if (types && !json_is_array(types))
        return hzp_config_fail(src, HZP_EFORMAT, "layer_types", "layer_types is not a list");
    if (types && json_array_size(types) != (size_t)c->layers)
        return hzp_config_fail(src, HZP_EFORMAT, "layer_types",
                               "layer_types has %zu entries, num_hidden_layers is %d",
                               json_array_size(types), c->layers);
    for (int32_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool has = type && !strcmp(type, "sliding_attention");
        if (types && !has && (!type || strcmp(type, "full_attention")))
            return hzp_config_fail(src, HZP_EUNSUP, "layer_types",
                                   "layer_types: \"%.40s\" is not supported", type ? type : "?");
        has = types ? has : slides && usually_slides(family, c, i, first, every);
        c->layer_kind[i] |= has ? WINDOW : family->window_rope ? NO_ROPE : 0;
        some |= has;
    }
    if ((types || family->window_rope) && some && null)
        return hzp_config_fail(src, HZP_EFORMAT, "sliding_window",
                               "sliding_window is null, and some layers have a window");
    c->kind[WINDOW].window = window < c->positions ? window : 0;
    c->kind[WINDOW].local = c->rope_local_theta != 0;
    c->kind[NO_ROPE | WINDOW].window = c->kind[WINDOW].window;
    c->kind[NO_ROPE].no_rope |= family->window_rope;
    return HZP_OK;
}

/* Thetas by layer: one of those with a window, one of the others. */
static int read_layer_thetas(const struct hzp_config_source *src, const struct hzp_family *family,
                             struct hzp_model_config *c)
{
    const char *key = "layer_rope_theta";
    const json_t *list = hzp_config_get(src->root, key);
    double theta[2] = {0}; /* full, window; 0: not known yet */
    if (!list)
        return HZP_OK;
    if (!family->layer_thetas)
        return hzp_config_fail(src, HZP_EUNSUP, key, "%s is not supported for model_type %s", key,
                               family->model_type);
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return hzp_config_fail(src, HZP_EFORMAT, key,
                               "%s is no list of num_hidden_layers %d numbers", key, c->layers);
    for (int32_t i = 0; i < c->layers; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        double value = hzp_json_is_number(item) ? hzp_json_real(item) : -1;
        double *of = &theta[c->layer_kind[i] & WINDOW ? 1 : 0];
        if (!(value == 0 || (value >= 1e-3 && value <= 1e15)))
            return hzp_config_fail(src, HZP_EFORMAT, key,
                                   "%s has an entry that is neither 0 nor a theta", key);
        if (value != 0 && *of != 0 && value != *of)
            return hzp_config_fail(src, HZP_EUNSUP, key,
                                   "%s: %g and %g of layers of one kind are not supported", key,
                                   *of, value);
        if (value != 0)
            *of = value;
        else
            c->layer_kind[i] |= NO_ROPE;
    }
    c->kind[NO_ROPE].no_rope = c->kind[NO_ROPE | WINDOW].no_rope = true;
    c->rope_theta = theta[0] != 0 ? theta[0] : c->rope_theta;
    if (theta[1] == 0 || theta[1] == c->rope_theta)
        return HZP_OK;
    if (c->rope_scaling != HZP_ROPE_PLAIN)
        return hzp_config_fail(src, HZP_EUNSUP, key, "%s beside a rope_type is not supported", key);
    c->rope_local_theta = theta[1];
    c->kind[WINDOW].local = true;
    return HZP_OK;
}

/* Gemma's scalars and caps. */
static int read_gemma(const struct hzp_config_source *src, const struct hzp_family *family,
                      struct hzp_model_config *c)
{
    const char *keys[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    double cap[2] = {family->score_cap, family->logit_cap}, scalar, width = c->width;
    if (!family->gemma)
        return HZP_OK;
    HZP_TRY(refuse_null(src, "query_pre_attn_scalar"));
    HZP_TRY(hzp_config_real(src, src->root, "query_pre_attn_scalar", 1e-3, 1e6, 256, &scalar));
    c->attn_scale = (float)(1 / sqrt(scalar));
    c->gelu = true;
    for (int i = 0; i < 2; i++) {
        if (hzp_config_null(src, keys[i]))
            cap[i] = 0;
        else if (hzp_config_get(src->root, keys[i]))
            HZP_TRY(hzp_config_real(src, src->root, keys[i], 1e-3, 1e6, NAN, &cap[i]));
    }
    if (cap[0] != 0 && !family->caps_scores)
        return hzp_config_fail(src, HZP_EUNSUP, keys[0], "%s is not supported for model_type %s",
                               keys[0], family->model_type);
    c->score_cap = (float)cap[0];
    c->logit_cap = (float)cap[1];
    c->embed_scale = (float)sqrt(width);
    return HZP_OK;
}

static int read_type(const struct hzp_config_source *src, enum hzp_dtype *ret)
{
    const char *type;
    const char *key = hzp_config_get(src->root, "dtype") ? "dtype" : "torch_dtype";
    HZP_TRY(hzp_config_text(src, src->root, key, &type));
    *ret = HZP_F32;
    if (type && !strcmp(type, "bfloat16"))
        *ret = HZP_BF16;
    else if (type && strcmp(type, "float32") && strcmp(type, "float16") && strcmp(type, "float64"))
        return hzp_config_fail(src, HZP_EUNSUP, key,
                               "%s \"%.40s\" is not supported; float32, float16 and bfloat16 are",
                               key, type);
    return HZP_OK;
}

/* Reads an id, which must be in the vocabulary: otherwise the files belong to different models. */
static int read_id(const struct hzp_config_source *src, const char *key, const json_t *value,
                   const struct hzp_model_config *c, int32_t *ret)
{
    json_int_t id = json_integer_value(value);
    if (json_is_real(value))
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is %g; it must be a whole number", key,
                               json_real_value(value));
    if (id < 0 || id >= c->vocab)
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is %lld; the vocabulary has 0 to %d", key,
                               (long long)id, c->vocab - 1);
    *ret = (int32_t)id;
    return HZP_OK;
}

static int add_eos(const struct hzp_config_source *src, const json_t *value,
                   struct hzp_model_config *c)
{
    int32_t id;
    if (!json_is_number(value))
        return hzp_config_fail(src, HZP_EFORMAT, "eos_token_id",
                               "eos_token_id is neither a whole number nor a list of them");
    HZP_TRY(read_id(src, "eos_token_id", value, c, &id));
    if (c->eos_count == HZP_COUNT(c->eos))
        return hzp_config_fail(src, HZP_EUNSUP, "eos_token_id",
                               "eos_token_id lists more than %d tokens", HZP_COUNT(c->eos));
    c->eos[c->eos_count++] = id;
    return HZP_OK;
}

/* Reads the special ids; a later file's ids replace an earlier one's. */
static int read_special(const struct hzp_config_source *src, struct hzp_model_config *c)
{
    const json_t *bos = hzp_config_get(src->root, "bos_token_id"),
                 *eos = hzp_config_get(src->root, "eos_token_id");
    if (bos && !json_is_number(bos))
        return hzp_config_fail(src, HZP_EFORMAT, "bos_token_id",
                               "bos_token_id is not a whole number");
    if (bos)
        HZP_TRY(read_id(src, "bos_token_id", bos, c, &c->bos));
    if (!eos)
        return HZP_OK;
    c->eos_count = 0;
    if (!json_is_array(eos))
        return add_eos(src, eos, c);
    for (size_t i = 0; i < json_array_size(eos); i++)
        HZP_TRY(add_eos(src, json_array_get(eos, i), c));
    return HZP_OK;
}

/* Names the parts that the file has numbers for and no family here has. */
static int refuse_family(const struct hzp_config_source *src, const char *type)
{
    static const struct {
        const char *key, *needs;
    } parts[] = {{"text_config", "a nested text_config"},
                 {"num_experts", "experts"},
                 {"num_local_experts", "experts"},
                 {"n_routed_experts", "experts"},
                 {"kv_lora_rank", "latent attention"},
                 {"attn_logit_softcapping", "a cap of scores"},
                 {"final_logit_softcapping", "a cap of logits"},
                 {"query_pre_attn_scalar", "a scale of queries"},
                 {"sliding_window", "windows of attention"},
                 {"linear_num_key_heads", "linear attention"},
                 {"mamba_d_state", "state-space layers"},
                 {"conv_L_cache", "short convolutions"}};
    char missing[160] = "";
    for (int i = 0; i < HZP_COUNT(parts); i++) {
        size_t used = strlen(missing);
        if (hzp_config_get(src->root, parts[i].key) && !strstr(missing, parts[i].needs))
            snprintf(missing + used, sizeof(missing) - used, "%s%s", used ? ", " : "",
                     parts[i].needs);
    }
    return hzp_config_fail(src, HZP_EUNSUP, "model_type",
                           "model_type \"%.40s\" is not supported%s%s; these are: %s", type,
                           missing[0] ? "; it needs " : "", missing, hzp_family_list());
}

static int read_all(const struct hzp_config_source *src, struct hzp_model_config *c)
{
    const char *type;
    HZP_TRY(hzp_config_text(src, src->root, "model_type", &type));
    if (!type)
        return hzp_config_fail(src, HZP_EFORMAT, "model_type", "model_type is missing");
    const struct hzp_family *family = hzp_family_find(type);
    if (!family)
        return refuse_family(src, type);
    snprintf(c->family, sizeof(c->family), "%s", family->model_type);
    c->qkv_bias = family->qkv_bias;
    if (family->bias_field)
        HZP_TRY(hzp_config_bool(src, "attention_bias", true, &c->qkv_bias));
    c->qk_norm = family->qk_norm;
    c->qk_norm_full = family->qk_norm_full;
    c->norm_after = family->norm_after;
    c->no_norm_before = family->no_norm_before;
    c->norm_plus_one = family->norm_plus_one;
    c->norm_centred = family->norm_centred;
    c->parallel = family->parallel;
    c->sinks = family->sinks;
    HZP_TRY(refuse_unknown(src, family));
    HZP_TRY(read_sizes(src, family, c));
    HZP_TRY(read_scalars(src, family, c));
    HZP_TRY(read_kinds(src, family, c));
    HZP_TRY(hzp_config_read_rope(src, family, c));
    HZP_TRY(read_window(src, family, c));
    HZP_TRY(read_layer_thetas(src, family, c));
    HZP_TRY(read_type(src, &c->disk_type));
    HZP_TRY(read_gemma(src, family, c));
    return read_special(src, c);
}

int hzp_config_read(const char *dir, struct hzp_model_config *ret, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_model_config c = {.bos = -1};
    struct hzp_config_source src = {.path = path, .reterr = reterr};
    json_auto_t *root = NULL, *text_model = NULL, *generation = NULL;
    if (snprintf(path, sizeof(path), "%s/config.json", dir) >= (int)sizeof(path) - 32)
        return hzp_fail(reterr, HZP_EINVAL, "the model directory's path is too long");
    HZP_TRY(hzp_json_read(path, CONFIG_BYTES_MAX, HZP_JSON_UNIQUE, &root, reterr));
    HZP_TRY(hzp_wrapper_text(path, root, &text_model, reterr));
    src.root = text_model ? text_model : root;
    HZP_TRY(read_all(&src, &c));

    snprintf(path, sizeof(path), "%s/generation_config.json", dir);
    struct hzp_err_text text = {.text = ""};
    int r = hzp_json_read(path, CONFIG_BYTES_MAX, HZP_JSON_UNIQUE, &generation, &text);
    if (r < 0 && r != HZP_ENOENT) /* the file is optional */
        return hzp_fail_param(reterr, r, text.param, "%s", text.text);
    src.root = generation;
    if (r == HZP_OK)
        HZP_TRY(read_special(&src, &c));
    *ret = c;
    return HZP_OK;
}

bool hzp_config_has_no_rope(const struct hzp_model_config *config)
{
    for (int32_t l = 0; l < config->layers; l++)
        if (hzp_config_kind(config, l)->no_rope)
            return true;
    return false;
}

bool hzp_config_has_local(const struct hzp_model_config *config)
{
    for (int32_t l = 0; l < config->layers; l++)
        if (hzp_config_kind(config, l)->local)
            return true;
    return false;
}

int64_t hzp_config_parameters(const struct hzp_model_config *config)
{
    const struct hzp_heads *h = &config->heads;
    int64_t width = config->width, q = (int64_t)h->heads * h->dim;
    int64_t qkv = q + 2 * (int64_t)h->kv_heads * h->dim;
    int64_t layer = qkv * width + width * q + 3 * (int64_t)config->inner * width;
    layer += width * (2 * config->norm_after + !config->no_norm_before * (2 - config->parallel));
    if (config->qkv_bias)
        layer += qkv;
    if (config->qk_norm)
        layer += 2 * h->dim;
    if (config->sinks)
        layer += h->heads;
    if (config->qk_norm_full)
        layer += q + (int64_t)h->kv_heads * h->dim;
    int64_t vocab = (int64_t)config->vocab * width;
    return layer * config->layers + vocab * (config->tied ? 1 : 2) + width;
}
