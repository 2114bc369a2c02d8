/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/config.h"

#include "weights/families.h"
#include "weights/json_file.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A config.json is a few kilobytes. */
enum { CONFIG_BYTES_MAX = 1 << 20 };

/* Upper bounds of the numbers.  All sizes that follow from them, (heads + 2 kv_heads) dim * width,
 * 2 inner * width, vocab * width, 1024 layers of those, fit easily into 63 bits of bytes, and every
 * row count fits into an int32_t. */
enum {
    LAYERS_MAX = 1024,
    WIDTH_MAX = 1 << 16,
    INNER_MAX = 1 << 19,
    VOCAB_MAX = 1 << 22,
    HEADS_MAX = 1024,
    DIM_MAX = 512,
    POSITIONS_MAX = 1 << 24,
    WINDOW_LAYERS = 28, /* max_window_layers where it is absent */
};

/* The file being read, for error messages. */
struct source {
    const char *path;
    const json_t *root;
    struct hzp_err_text *reterr;
};

#define FAIL(src, code, field, ...) hzp_fail_param((src)->reterr, code, field, __VA_ARGS__)

/* The value of a key; null counts as absent, as it does in transformers. */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* Reads a whole number min..max; 4096.0 counts as one.  fallback INT64_MIN: the field is
 * required. */
static int read_int(const struct source *src, const json_t *object, const char *key, int64_t min,
                    int64_t max, int64_t fallback, int32_t *ret)
{
    const json_t *value = get(object, key);
    int64_t number = 0;
    if (!value) {
        if (fallback == INT64_MIN)
            return FAIL(src, HZP_EFORMAT, key, "%s: %s is missing", src->path, key);
        *ret = (int32_t)fallback;
        return HZP_OK;
    }
    double real = hzp_json_is_number(value) ? hzp_json_real(value) : NAN;
    bool held = json_is_integer(value) || fabs(real) < 1e15;
    if (isnan(real) || (held && real != floor(real)))
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is not a whole number", src->path, key);
    if (held)
        number = json_is_integer(value) ? json_integer_value(value) : (int64_t)real;
    char text[40];
    if (!held || number < min || number > max)
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is %s; possible are %lld to %lld", src->path,
                    key, hzp_json_number_text(value, text, sizeof(text)), (long long)min,
                    (long long)max);
    *ret = (int32_t)number;
    return HZP_OK;
}

/* Whether the file has the key with null, which is not the same as an absent one: the family's
 * default is for the latter. */
static bool is_null(const struct source *src, const char *key)
{
    return json_is_null(json_object_get(src->root, key));
}

/* A number that has no meaning when it is null. */
static int refuse_null(const struct source *src, const char *key)
{
    return is_null(src, key) ? FAIL(src, HZP_EFORMAT, key, "%s: %s is null", src->path, key)
                             : HZP_OK;
}

/* Reads a number min..max.  fallback NAN: the field is required. */
static int read_real(const struct source *src, const json_t *object, const char *key, double min,
                     double max, double fallback, double *ret)
{
    const json_t *value = get(object, key);
    if (!value && isnan(fallback))
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is missing", src->path, key);
    if (value && !hzp_json_is_number(value))
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is not a number", src->path, key);
    double number = value ? hzp_json_real(value) : fallback;
    if (!(number >= min && number <= max))
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is %g; possible are %g to %g", src->path, key,
                    number, min, max);
    *ret = number;
    return HZP_OK;
}

static int read_bool(const struct source *src, const char *key, bool fallback, bool *ret)
{
    const json_t *value = get(src->root, key);
    if (value && !json_is_boolean(value))
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is neither true nor false", src->path, key);
    *ret = value ? json_is_true(value) : fallback;
    return HZP_OK;
}

/* Reads a string; NULL if absent. */
static int read_text(const struct source *src, const json_t *object, const char *key,
                     const char **ret)
{
    const json_t *value = get(object, key);
    if (value && !hzp_json_is_text(value))
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is not a string, or it has \\u0000", src->path,
                    key);
    *ret = value ? json_string_value(value) : NULL;
    return HZP_OK;
}

static int read_sizes(const struct source *src, const struct hzp_family *family,
                      struct hzp_model_config *c)
{
    const json_t *root = src->root;
    int64_t required = INT64_MIN;
    HZP_TRY(read_int(src, root, "num_hidden_layers", 1, LAYERS_MAX, required, &c->layers));
    HZP_TRY(read_int(src, root, "hidden_size", 1, WIDTH_MAX, required, &c->width));
    HZP_TRY(read_int(src, root, "intermediate_size", 1, INNER_MAX, required, &c->inner));
    HZP_TRY(read_int(src, root, "vocab_size", 1, VOCAB_MAX, required, &c->vocab));
    HZP_TRY(read_int(src, root, "num_attention_heads", 1, HEADS_MAX, required, &c->heads.heads));
    bool every = !family->kv_heads || is_null(src, "num_key_value_heads");
    HZP_TRY(read_int(src, root, "num_key_value_heads", 1, HEADS_MAX,
                     every ? c->heads.heads : family->kv_heads, &c->heads.kv_heads));
    if (c->heads.heads % c->heads.kv_heads)
        return FAIL(src, HZP_EFORMAT, "num_key_value_heads",
                    "%s: num_attention_heads %d is no multiple of num_key_value_heads %d",
                    src->path, c->heads.heads, c->heads.kv_heads);
    bool quotient = !family->dim || is_null(src, "head_dim");
    if (!get(root, "head_dim") && quotient && c->width % c->heads.heads)
        return FAIL(src, HZP_EFORMAT, "head_dim",
                    "%s: hidden_size %d is no multiple of num_attention_heads %d, and there is no "
                    "head_dim",
                    src->path, c->width, c->heads.heads);
    HZP_TRY(read_int(src, root, "head_dim", 2, DIM_MAX,
                     quotient ? c->width / c->heads.heads : family->dim, &c->heads.dim));
    /* The fallback is a quotient and has not been checked against the bounds. */
    if (c->heads.dim < 2 || c->heads.dim > DIM_MAX || c->heads.dim % 2)
        return FAIL(src, HZP_EFORMAT, "head_dim",
                    "%s: head_dim is %d; possible are even numbers "
                    "from 2 to %d",
                    src->path, c->heads.dim, DIM_MAX);
    HZP_TRY(refuse_null(src, "max_position_embeddings"));
    HZP_TRY(refuse_null(src, "rms_norm_eps"));
    HZP_TRY(read_int(src, root, "max_position_embeddings", 1, POSITIONS_MAX, family->positions,
                     &c->positions));
    double eps;
    /* eps prevents the division by zero for a row of zeros, in float: it must not round to 0
     * there. */
    HZP_TRY(read_real(src, root, "rms_norm_eps", 1e-30, 0.1, 1e-6, &eps));
    c->norm_eps = (float)eps;
    return read_bool(src, "tie_word_embeddings", false, &c->tied);
}

/* Rejects settings that change the arithmetic to something that no op computes. */
static int refuse_unknown(const struct source *src, const struct hzp_family *family)
{
    const char *act;
    bool on;
    HZP_TRY(read_text(src, src->root, "hidden_act", &act));
    if (act && strcmp(act, "silu") && strcmp(act, "swish"))
        return FAIL(src, HZP_EUNSUP, "hidden_act",
                    "%s: hidden_act \"%.40s\" is not supported; "
                    "only silu is",
                    src->path, act);
    HZP_TRY(read_bool(src, "attention_bias", false, &on));
    if (on && family->bias_switch)
        return FAIL(src, HZP_EUNSUP, "attention_bias",
                    "%s: attention_bias true is not supported "
                    "for model_type %s",
                    src->path, family->model_type);
    HZP_TRY(read_bool(src, "mlp_bias", false, &on));
    if (on)
        return FAIL(src, HZP_EUNSUP, "mlp_bias", "%s: mlp_bias true is not supported", src->path);
    if (get(src->root, "quantization_config"))
        return FAIL(src, HZP_EUNSUP, "quantization_config",
                    "%s: quantization_config: quantized weights are not supported", src->path);
    return HZP_OK;
}

/* A sliding window has no effect on sequences no longer than the window, so such a model is served
 * up to that length. */
static int read_window(const struct source *src, const struct hzp_family *family,
                       struct hzp_model_config *c)
{
    int32_t window, first = 0;
    bool slides;
    if (!family->window)
        return HZP_OK;
    bool null = is_null(src, "sliding_window");
    HZP_TRY(read_int(src, src->root, "sliding_window", 1, INT32_MAX, null ? 0 : family->window,
                     &window));
    HZP_TRY(read_bool(src, "use_sliding_window", !family->window_switch, &slides));
    if (!family->window_switch)
        slides = true;
    else /* the window is of the layers from this one on */
        HZP_TRY(read_int(src, src->root, "max_window_layers", 0, INT32_MAX, WINDOW_LAYERS, &first));
    slides = slides && first < c->layers;
    const json_t *types = get(src->root, "layer_types");
    if (types && !json_is_array(types))
        return FAIL(src, HZP_EFORMAT, "layer_types", "%s: layer_types is not a list", src->path);
    if (types && json_array_size(types) != (size_t)c->layers)
        return FAIL(src, HZP_EFORMAT, "layer_types",
                    "%s: layer_types has %zu entries, num_hidden_layers is %d", src->path,
                    json_array_size(types), c->layers);
    if (types)
        slides = false;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && !strcmp(type, "sliding_attention"))
            slides = true;
        else if (!type || strcmp(type, "full_attention"))
            return FAIL(src, HZP_EUNSUP, "layer_types",
                        "%s: layer_types: \"%.40s\" is not "
                        "supported",
                        src->path, type ? type : "?");
    }
    if (types && slides && null)
        return FAIL(src, HZP_EFORMAT, "sliding_window",
                    "%s: sliding_window is null, and layer_types has sliding_attention", src->path);
    if (slides && window > 0 && window < c->positions)
        c->positions = window;
    return HZP_OK;
}

/* An object that the arithmetic reads has no member without an effect on it. */
static int check_rope_keys(const struct source *src, const char *where)
{
    static const char *const known[] = {"rope_type",        "type",
                                        "rope_theta",       "partial_rotary_factor",
                                        "factor",           "low_freq_factor",
                                        "high_freq_factor", "original_max_position_embeddings"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)get(src->root, where), key, value)
    {
        int i = 0;
        while (i < HZP_COUNT(known) && strcmp(key, known[i]))
            i++;
        if (i == HZP_COUNT(known) && !json_is_null(value))
            return FAIL(src, HZP_EUNSUP, where, "%s: %s: \"%.40s\" is not supported", src->path,
                        where, key);
    }
    return HZP_OK;
}

/* A number of the rotation, wherever the file has it: at the top, or in either object.  Files that
 * have it twice have the same one. */
static int read_rope_number(const struct source *src, const char *key, double min, double max,
                            double fallback, double *ret)
{
    static const char *const where[] = {"rope_scaling", "rope_parameters", NULL};
    bool found = false;
    *ret = fallback;
    for (int i = 0; i < HZP_COUNT(where); i++) {
        const json_t *object = where[i] ? get(src->root, where[i]) : src->root;
        double value;
        if (!get(object, key))
            continue;
        HZP_TRY(read_real(src, object, key, min, max, fallback, &value));
        if (found && value != *ret)
            return FAIL(src, HZP_EFORMAT, key, "%s: %s is %g in one place and %g in another",
                        src->path, key, *ret, value);
        *ret = value;
        found = true;
    }
    return HZP_OK;
}

static int read_llama3(const struct source *src, const json_t *scaling, struct hzp_model_config *c)
{
    const char *original = "original_max_position_embeddings";
    HZP_TRY(read_real(src, scaling, "low_freq_factor", 1e-3, 1e6, NAN, &c->rope_low_factor));
    HZP_TRY(read_real(src, scaling, "high_freq_factor", 1e-3, 1e6, NAN, &c->rope_high_factor));
    if (c->rope_high_factor <= c->rope_low_factor)
        return FAIL(src, HZP_EFORMAT, "high_freq_factor",
                    "%s: high_freq_factor %g is not above "
                    "low_freq_factor %g",
                    src->path, c->rope_high_factor, c->rope_low_factor);
    return read_int(src, get(scaling, original) ? scaling : src->root, original, 1, POSITIONS_MAX,
                    INT64_MIN, &c->rope_original_positions);
}

/* transformers up to version 4: rope_theta and rope_scaling; from 5 on: both in rope_parameters. */
static int read_rope(const struct source *src, struct hzp_model_config *c)
{
    const char *where = get(src->root, "rope_scaling") ? "rope_scaling" : "rope_parameters";
    const json_t *parameters = get(src->root, "rope_parameters"), *scaling = get(src->root, where);
    const char *type, *other;
    double partial;
    if (parameters && !json_is_object(parameters))
        return FAIL(src, HZP_EFORMAT, "rope_parameters", "%s: rope_parameters is not an object",
                    src->path);
    if (scaling && !json_is_object(scaling))
        return FAIL(src, HZP_EFORMAT, where, "%s: %s is not an object", src->path, where);
    HZP_TRY(check_rope_keys(src, "rope_scaling"));
    HZP_TRY(check_rope_keys(src, "rope_parameters"));
    HZP_TRY(read_rope_number(src, "rope_theta", 1e-3, 1e15, 10000, &c->rope_theta));
    HZP_TRY(read_rope_number(src, "partial_rotary_factor", 0, 1, 1, &partial));
    if (partial != 1)
        return FAIL(src, HZP_EUNSUP, "partial_rotary_factor",
                    "%s: partial_rotary_factor %g is "
                    "not supported; only 1 is",
                    src->path, partial);
    c->rope_factor = c->rope_low_factor = c->rope_high_factor = 1;
    c->rope_original_positions = c->positions;
    c->rope_scaling = HZP_ROPE_PLAIN;
    if (!scaling)
        return HZP_OK;
    HZP_TRY(read_text(src, scaling, get(scaling, "rope_type") ? "rope_type" : "type", &type));
    HZP_TRY(
        read_text(src, parameters, get(parameters, "rope_type") ? "rope_type" : "type", &other));
    if (type && other && strcmp(type, other))
        return FAIL(src, HZP_EFORMAT, "rope_type",
                    "%s: rope_type is \"%.40s\" in rope_scaling and \"%.40s\" in rope_parameters",
                    src->path, type, other);
    type = type ? type : other;
    if (!type && get(scaling, "factor"))
        return FAIL(src, HZP_EFORMAT, where, "%s: %s has no rope_type", src->path, where);
    if (!type || !strcmp(type, "default"))
        return HZP_OK;
    if (!strcmp(type, "linear"))
        c->rope_scaling = HZP_ROPE_LINEAR;
    else if (!strcmp(type, "llama3"))
        c->rope_scaling = HZP_ROPE_LLAMA3;
    else
        return FAIL(src, HZP_EUNSUP, where,
                    "%s: %s: rope_type \"%.40s\" is not supported; "
                    "default, linear and llama3 are",
                    src->path, where, type);
    HZP_TRY(read_real(src, scaling, "factor", 1, 1e6, NAN, &c->rope_factor));
    return c->rope_scaling == HZP_ROPE_LLAMA3 ? read_llama3(src, scaling, c) : HZP_OK;
}

static int read_type(const struct source *src, enum hzp_dtype *ret)
{
    const char *type;
    const char *key = get(src->root, "dtype") ? "dtype" : "torch_dtype";
    HZP_TRY(read_text(src, src->root, key, &type));
    *ret = HZP_F32;
    if (type && !strcmp(type, "bfloat16"))
        *ret = HZP_BF16;
    else if (type && strcmp(type, "float32") && strcmp(type, "float16") && strcmp(type, "float64"))
        return FAIL(src, HZP_EUNSUP, key,
                    "%s: %s \"%.40s\" is not supported; float32, float16 "
                    "and bfloat16 are",
                    src->path, key, type);
    return HZP_OK;
}

/* Reads an id, which must be in the vocabulary: otherwise the files belong to different models. */
static int read_id(const struct source *src, const char *key, const json_t *value,
                   const struct hzp_model_config *c, int32_t *ret)
{
    json_int_t id = json_integer_value(value);
    if (json_is_real(value))
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is %g; it must be a whole number", src->path,
                    key, json_real_value(value));
    if (id < 0 || id >= c->vocab)
        return FAIL(src, HZP_EFORMAT, key, "%s: %s is %lld; the vocabulary has 0 to %d", src->path,
                    key, (long long)id, c->vocab - 1);
    *ret = (int32_t)id;
    return HZP_OK;
}

static int add_eos(const struct source *src, const json_t *value, struct hzp_model_config *c)
{
    int32_t id;
    if (!json_is_number(value))
        return FAIL(src, HZP_EFORMAT, "eos_token_id",
                    "%s: eos_token_id is neither a whole number "
                    "nor a list of them",
                    src->path);
    HZP_TRY(read_id(src, "eos_token_id", value, c, &id));
    if (c->eos_count == HZP_COUNT(c->eos))
        return FAIL(src, HZP_EUNSUP, "eos_token_id", "%s: eos_token_id lists more than %d tokens",
                    src->path, HZP_COUNT(c->eos));
    c->eos[c->eos_count++] = id;
    return HZP_OK;
}

/* Reads the special ids; a later file's ids replace an earlier one's. */
static int read_special(const struct source *src, struct hzp_model_config *c)
{
    const json_t *bos = get(src->root, "bos_token_id"), *eos = get(src->root, "eos_token_id");
    if (bos && !json_is_number(bos))
        return FAIL(src, HZP_EFORMAT, "bos_token_id", "%s: bos_token_id is not a whole number",
                    src->path);
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

static int read_all(const struct source *src, struct hzp_model_config *c)
{
    const char *type;
    HZP_TRY(read_text(src, src->root, "model_type", &type));
    if (!type)
        return FAIL(src, HZP_EFORMAT, "model_type", "%s: model_type is missing", src->path);
    const struct hzp_family *family = hzp_family_find(type);
    if (!family)
        return FAIL(src, HZP_EUNSUP, "model_type",
                    "%s: model_type \"%.40s\" is not supported; "
                    "these are: %s",
                    src->path, type, hzp_family_list());
    snprintf(c->family, sizeof(c->family), "%s", family->model_type);
    c->qkv_bias = family->qkv_bias;
    c->qk_norm = family->qk_norm;
    HZP_TRY(refuse_unknown(src, family));
    HZP_TRY(read_sizes(src, family, c));
    HZP_TRY(read_rope(src, c));
    HZP_TRY(read_window(src, family, c));
    HZP_TRY(read_type(src, &c->disk_type));
    return read_special(src, c);
}

int hzp_config_read(const char *dir, struct hzp_model_config *ret, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    struct hzp_model_config c = {.bos = -1};
    struct source src = {.path = path, .reterr = reterr};
    json_t *root;
    if (snprintf(path, sizeof(path), "%s/config.json", dir) >= (int)sizeof(path) - 32)
        return hzp_fail(reterr, HZP_EINVAL, "the model directory's path is too long");
    HZP_TRY(hzp_json_read(path, CONFIG_BYTES_MAX, &root, reterr));
    src.root = root;
    int r = read_all(&src, &c);
    json_decref(root);
    HZP_TRY(r);

    snprintf(path, sizeof(path), "%s/generation_config.json", dir);
    struct hzp_err_text text = {.text = ""};
    r = hzp_json_read(path, CONFIG_BYTES_MAX, &root, &text);
    if (r == HZP_OK) {
        src.root = root;
        src.reterr = &text;
        r = read_special(&src, &c);
        json_decref(root);
    } else if (r == HZP_ENOENT) {
        r = HZP_OK; /* the file is optional */
    }
    if (r < 0 && reterr)
        *reterr = text;
    HZP_TRY(r);
    *ret = c;
    return HZP_OK;
}

/* Radians per position of pair j. Before scaling: theta^(-2j/dim). Then
 *   linear: / factor
 *   llama3: with wavelength L = 2 pi / frequency and N the original positions, unchanged if
 *     L < N / high, / factor if L > N / low, and in between a mixture of the two with weight
 *     s = (N / L - low) / (high - low) for the unchanged one. */
static double frequency(const struct hzp_model_config *c, int32_t j)
{
    double f = pow(c->rope_theta, -2.0 * j / c->heads.dim);
    if (c->rope_scaling == HZP_ROPE_LINEAR)
        return f / c->rope_factor;
    if (c->rope_scaling == HZP_ROPE_PLAIN)
        return f;
    double turns = c->rope_original_positions * f / (2 * M_PI); /* N / L */
    if (turns > c->rope_high_factor)
        return f;
    if (turns < c->rope_low_factor)
        return f / c->rope_factor;
    double s = (turns - c->rope_low_factor) / (c->rope_high_factor - c->rope_low_factor);
    return (1 - s) * f / c->rope_factor + s * f;
}

void hzp_rope_table(const struct hzp_model_config *config, int32_t positions, float *table)
{
    int32_t dim = config->heads.dim, half = dim / 2;
    for (int32_t j = 0; j < half; j++) {
        double f = frequency(config, j);
        for (int32_t p = 0; p < positions; p++) {
            table[(size_t)p * (size_t)dim + (size_t)j] = (float)cos(p * f);
            table[(size_t)p * (size_t)dim + (size_t)(half + j)] = (float)sin(p * f);
        }
    }
}

int64_t hzp_config_parameters(const struct hzp_model_config *config)
{
    const struct hzp_heads *h = &config->heads;
    int64_t width = config->width, q = (int64_t)h->heads * h->dim;
    int64_t qkv = q + 2 * (int64_t)h->kv_heads * h->dim;
    int64_t layer = qkv * width + width * q + 3 * (int64_t)config->inner * width + 2 * width;
    if (config->qkv_bias)
        layer += qkv;
    if (config->qk_norm)
        layer += 2 * h->dim;
    int64_t vocab = (int64_t)config->vocab * width;
    return layer * config->layers + vocab * (config->tied ? 1 : 2) + width;
}
