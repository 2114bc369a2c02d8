/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/config.h"
#include "weights/config_read.h"

/* An object that the arithmetic reads has no member without an effect on it. */
static int check_rope_keys(const struct hzp_config_source *src, const struct hzp_family *family,
                           const char *where, enum hzp_rope_scaling kind)
{
    enum { ANY = -1, ATTENUATED = -2 };
    const struct {
        const char *key;
        int kind; /* that has it */
    } known[] = {{"rope_type", ANY},
                 {"type", ANY},
                 {"rope_theta", ANY},
                 {"partial_rotary_factor", ANY},
                 {"factor", ANY},
                 {"low_freq_factor", ANY},
                 {"high_freq_factor", ANY},
                 {"original_max_position_embeddings", ANY},
                 {"beta_fast", HZP_ROPE_YARN},
                 {"beta_slow", HZP_ROPE_YARN},
                 {"mscale", HZP_ROPE_YARN},
                 {"mscale_all_dim", HZP_ROPE_YARN},
                 {"truncate", HZP_ROPE_YARN},
                 {"attention_factor", HZP_ROPE_YARN},
                 {"attention_factor", HZP_ROPE_LONG},
                 {"short_factor", HZP_ROPE_LONG},
                 {"long_factor", HZP_ROPE_LONG},
                 {"llama_4_scaling_beta", ATTENUATED},
                 {"max_position_embeddings", ATTENUATED}};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)hzp_config_get(src->root, where), key, value)
    {
        bool reads = json_is_null(value);
        for (int i = 0; i < HZP_COUNT(known); i++)
            reads |=
                !strcmp(key, known[i].key) && (known[i].kind == ANY || known[i].kind == (int)kind ||
                                               (known[i].kind == ATTENUATED && family->query_beta));
        if (!reads)
            return hzp_config_fail(src, HZP_EUNSUP, where, "%s: \"%.40s\" is not supported", where,
                                   key);
    }
    return HZP_OK;
}

/* A number of the rotation, wherever the file has it: at the top, or in either object.  Files that
 * have it twice have the same one. */
static int read_rope_number(const struct hzp_config_source *src, const char *key, double min,
                            double max, double fallback, double *ret)
{
    static const char *const where[] = {"rope_scaling", "rope_parameters", NULL};
    bool found = false;
    *ret = fallback;
    for (int i = 0; i < HZP_COUNT(where); i++) {
        const json_t *object = where[i] ? hzp_config_get(src->root, where[i]) : src->root;
        double value;
        if (!hzp_config_get(object, key))
            continue;
        HZP_TRY(hzp_config_real(src, object, key, min, max, fallback, &value));
        if (found && value != *ret)
            return hzp_config_fail(src, HZP_EFORMAT, key, "%s is %g in one place and %g in another",
                                   key, *ret, value);
        *ret = value;
        found = true;
    }
    return HZP_OK;
}

static int read_llama3(const struct hzp_config_source *src, const json_t *scaling,
                       struct hzp_model_config *c)
{
    const char *original = "original_max_position_embeddings";
    HZP_TRY(hzp_config_real(src, scaling, "low_freq_factor", 1e-3, 1e6, NAN, &c->rope_low_factor));
    HZP_TRY(
        hzp_config_real(src, scaling, "high_freq_factor", 1e-3, 1e6, NAN, &c->rope_high_factor));
    if (c->rope_high_factor <= c->rope_low_factor)
        return hzp_config_fail(src, HZP_EFORMAT, "high_freq_factor",
                               "high_freq_factor %g is not above low_freq_factor %g",
                               c->rope_high_factor, c->rope_low_factor);
    return hzp_config_int(src, hzp_config_get(scaling, original) ? scaling : src->root, original, 1,
                          POSITIONS_MAX, INT64_MIN, &c->rope_original_positions);
}

/* The angle per position by which each pair is divided beyond the original positions, or below. */
static int read_factors(const struct hzp_config_source *src, const json_t *scaling, const char *key,
                        int32_t pairs, float *ret)
{
    const json_t *list = hzp_config_get(scaling, key);
    if (!json_is_array(list) || json_array_size(list) != (size_t)pairs)
        return hzp_config_fail(src, HZP_EFORMAT, key,
                               "%s is no list of %d numbers, one per rotated pair", key, pairs);
    for (int32_t j = 0; j < pairs; j++) {
        double value = hzp_json_real(json_array_get(list, (size_t)j));
        if (!hzp_json_is_number(json_array_get(list, (size_t)j)) || !(value >= 1e-3) || value > 1e6)
            return hzp_config_fail(src, HZP_EFORMAT, key,
                                   "%s has an entry that is no number from 0.001 to 1e6", key);
        ret[j] = (float)value;
    }
    return HZP_OK;
}

/* Attention's scale of a context that is `factor` times as long (Peng et al. 2023, YaRN). */
static double yarn_scale(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

/* The numbers of yarn and longrope; factor absent: the quotient of the lengths. */
static int read_stretch(const struct hzp_config_source *src, const struct hzp_family *family,
                        const json_t *scaling, struct hzp_model_config *c)
{
    const char *original = "original_max_position_embeddings", *factor = "factor";
    const json_t *at = hzp_config_get(src->root, original) ? src->root : scaling;
    double given = 0, all = 0, one = 0;
    bool lists = c->rope_scaling == HZP_ROPE_LONG;
    int32_t pairs = c->rotary / 2, inside;
    HZP_TRY(hzp_config_int(src, at, original, 1, POSITIONS_MAX,
                           family->original ? family->original : c->positions,
                           &c->rope_original_positions));
    HZP_TRY(hzp_config_int(src, scaling, original, 1, POSITIONS_MAX, c->rope_original_positions,
                           &inside));
    if (inside != c->rope_original_positions)
        return hzp_config_fail(src, HZP_EFORMAT, original,
                               "%s is %d in one place and %d in another", original,
                               c->rope_original_positions, inside);
    HZP_TRY(hzp_config_real(src, scaling, factor, 1e-3, 1e6,
                            (double)c->positions / c->rope_original_positions, &c->rope_factor));
    if (hzp_config_get(scaling, "attention_factor"))
        HZP_TRY(hzp_config_real(src, scaling, "attention_factor", 1e-3, 1e3, NAN, &given));
    if (lists) {
        double l = log(c->rope_original_positions);
        HZP_TRY(read_factors(src, scaling, "short_factor", pairs, c->rope_short));
        HZP_TRY(read_factors(src, scaling, "long_factor", pairs, c->rope_long));
        c->rope_amplitude = c->rope_factor <= 1 ? 1 : sqrt(1 + log(c->rope_factor) / l);
    } else {
        HZP_TRY(hzp_config_real(src, scaling, "beta_fast", 1e-3, 1e6, 32, &c->rope_beta_fast));
        HZP_TRY(hzp_config_real(src, scaling, "beta_slow", 1e-3, 1e6, 1, &c->rope_beta_slow));
        HZP_TRY(hzp_config_real(src, scaling, "mscale", 0, 1e3, 0, &one));
        HZP_TRY(hzp_config_real(src, scaling, "mscale_all_dim", 0, 1e3, 0, &all));
        const json_t *cut = hzp_config_get(scaling, "truncate");
        if (cut && !json_is_boolean(cut))
            return hzp_config_fail(src, HZP_EFORMAT, "truncate",
                                   "truncate is neither true nor false");
        c->rope_untruncated = cut && !json_is_true(cut);
        c->rope_amplitude = yarn_scale(c->rope_factor, 1);
        if (one != 0 && all != 0)
            c->rope_amplitude = yarn_scale(c->rope_factor, one) / yarn_scale(c->rope_factor, all);
        /* files that name a factor often keep the length without it */
        double longest = c->rope_factor * c->rope_original_positions;
        if (longest > c->positions && longest <= POSITIONS_MAX)
            c->positions = (int32_t)longest;
    }
    c->rope_amplitude = given != 0 ? given : c->rope_amplitude;
    if (!(c->rope_amplitude > 0 && c->rope_amplitude < 1e6)) /* of one original position */
        return hzp_config_fail(src, HZP_EFORMAT, original,
                               "%s %d and factor %g make attention's factor %g", original,
                               c->rope_original_positions, c->rope_factor, c->rope_amplitude);
    return HZP_OK;
}

static int read_kind(const struct hzp_config_source *src, const struct hzp_family *family,
                     const char *where, enum hzp_rope_scaling *ret)
{
    static const struct {
        const char *name;
        enum hzp_rope_scaling kind;
    } kinds[] = {{"default", HZP_ROPE_PLAIN}, {"linear", HZP_ROPE_LINEAR},
                 {"llama3", HZP_ROPE_LLAMA3}, {"yarn", HZP_ROPE_YARN},
                 {"longrope", HZP_ROPE_LONG}, {"su", HZP_ROPE_LONG}};
    const json_t *parameters = hzp_config_get(src->root, "rope_parameters");
    const json_t *scaling = hzp_config_get(src->root, where);
    const char *type, *other;
    HZP_TRY(hzp_config_text(src, scaling,
                            hzp_config_get(scaling, "rope_type") ? "rope_type" : "type", &type));
    HZP_TRY(hzp_config_text(
        src, parameters, hzp_config_get(parameters, "rope_type") ? "rope_type" : "type", &other));
    if (type && other && strcmp(type, other))
        return hzp_config_fail(
            src, HZP_EFORMAT, "rope_type",
            "rope_type is \"%.40s\" in rope_scaling and \"%.40s\" in rope_parameters", type, other);
    type = type ? type : other;
    if (!type && hzp_config_get(scaling, "factor"))
        return hzp_config_fail(src, HZP_EFORMAT, where, "%s has no rope_type", where);
    *ret = HZP_ROPE_PLAIN;
    for (int i = 0; type && i < HZP_COUNT(kinds); i++)
        if (!strcmp(type, kinds[i].name)) {
            *ret = kinds[i].kind;
            if (family->fused && *ret == HZP_ROPE_YARN) /* what Phi-3's first files call it */
                *ret = HZP_ROPE_LONG;
            return HZP_OK;
        }
    return type ? hzp_config_fail(src, HZP_EUNSUP, where,
                                  "%s: rope_type \"%.40s\" is not supported; default, linear, "
                                  "llama3, yarn and longrope are",
                                  where, type)
                : HZP_OK;
}

/* How many elements of a head turn. */
static int read_rotary(const struct hzp_config_source *src, const struct hzp_family *family,
                       struct hzp_model_config *c)
{
    double partial;
    HZP_TRY(read_rope_number(src, "partial_rotary_factor", 0, 1,
                             family->rotary != 0 ? family->rotary : 1, &partial));
    c->neighbours = family->neighbours;
    c->rotary = (int32_t)(c->heads.dim * partial);
    if (partial != 1 && !family->partial)
        return hzp_config_fail(
            src, HZP_EUNSUP, "partial_rotary_factor",
            "partial_rotary_factor %g is not supported for model_type %s; only 1 is", partial,
            family->model_type);
    if (c->rotary < 2 || c->rotary % 2)
        return hzp_config_fail(
            src, HZP_EFORMAT, "partial_rotary_factor",
            "partial_rotary_factor %g of head_dim %d is %d; possible are even numbers from 2 on",
            partial, c->heads.dim, c->rotary);
    return HZP_OK;
}

/* Queries beyond the original positions are multiplied by 1 + beta log(1 + floor(p / original)):
 * up to there by 1, and so far such a model is served. */
static int read_query_beta(const struct hzp_config_source *src, const struct hzp_family *family,
                           const json_t *scaling, struct hzp_model_config *c)
{
    double beta;
    if (!family->query_beta)
        return HZP_OK;
    HZP_TRY(hzp_config_real(src, scaling, "llama_4_scaling_beta", 0, 1e3, NAN, &beta));
    HZP_TRY(hzp_config_int(src, scaling, "original_max_position_embeddings", 1, POSITIONS_MAX,
                           INT64_MIN, &c->rope_original_positions));
    if (beta != 0 && c->rope_original_positions < c->positions)
        c->positions = c->rope_original_positions;
    return HZP_OK;
}

/* transformers up to version 4: rope_theta and rope_scaling; from 5 on: both in rope_parameters. */
static int read_rope(const struct hzp_config_source *src, const struct hzp_family *family,
                     struct hzp_model_config *c)
{
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    const char *where = hzp_config_get(src->root, objects[0]) ? objects[0] : objects[1];
    const json_t *scaling = hzp_config_get(src->root, where);
    for (int i = 0; i < HZP_COUNT(objects); i++) {
        const json_t *object = hzp_config_get(src->root, objects[i]);
        if (object && !json_is_object(object))
            return hzp_config_fail(src, HZP_EFORMAT, objects[i], "%s is not an object", objects[i]);
    }
    HZP_TRY(read_kind(src, family, where, &c->rope_scaling));
    for (int i = 0; i < HZP_COUNT(objects); i++)
        HZP_TRY(check_rope_keys(src, family, objects[i], c->rope_scaling));
    HZP_TRY(read_rope_number(src, "rope_theta", 1e-3, 1e15, family->theta ? family->theta : 10000,
                             &c->rope_theta));
    HZP_TRY(read_rotary(src, family, c));
    c->rope_factor = c->rope_low_factor = c->rope_high_factor = c->rope_amplitude = 1;
    c->rope_original_positions = c->positions;
    switch (c->rope_scaling) {
    case HZP_ROPE_PLAIN:
        break;
    case HZP_ROPE_LINEAR:
    case HZP_ROPE_LLAMA3:
        HZP_TRY(hzp_config_real(src, scaling, "factor", 1, 1e6, NAN, &c->rope_factor));
        if (c->rope_scaling == HZP_ROPE_LLAMA3)
            HZP_TRY(read_llama3(src, scaling, c));
        break;
    case HZP_ROPE_YARN:
    case HZP_ROPE_LONG:
        HZP_TRY(read_stretch(src, family, scaling, c));
        break;
    }
    return read_query_beta(src, family, scaling, c);
}

/* The rotation of layers with a window, which is plain. *ret_flat becomes the file with the other
 * layers' where a family without such layers has it, or NULL: it is there already. */
static int read_local(const struct hzp_config_source *src, const struct hzp_family *family,
                      struct hzp_model_config *c, json_t **ret_flat)
{
    static const char *const names[] = {"full_attention", "sliding_attention"};
    const char *where = "rope_parameters", *theta = "rope_theta", *type, *key;
    const json_t *both = hzp_config_get(src->root, where), *object[2];
    double fallback = family->local_theta;
    json_t *value;
    for (int i = 0; i < 2; i++) {
        object[i] = hzp_config_get(both, names[i]);
        if (object[i] && !json_is_object(object[i]))
            return hzp_config_fail(src, HZP_EFORMAT, where, "%s: %s is not an object", where,
                                   names[i]);
    }
    if (family->local_theta == family->theta) /* one number, unless the file has two */
        HZP_TRY(hzp_config_real(src, src->root, theta, 1e-3, 1e15, fallback, &fallback));
    else
        HZP_TRY(hzp_config_real(src, src->root, "rope_local_base_freq", 1e-3, 1e15, fallback,
                                &fallback));
    HZP_TRY(hzp_config_text(src, object[1], "rope_type", &type));
    bool plain = !type || !strcmp(type, "default");
    json_object_foreach((json_t *)(uintptr_t)object[1], key, value)
    {
        plain &= !strcmp(key, "rope_type") || !strcmp(key, theta) || json_is_null(value);
    }
    if (!plain)
        return hzp_config_fail(src, HZP_EUNSUP, where,
                               "%s: %s has more than a rope_theta, which is not supported", where,
                               names[1]);
    HZP_TRY(hzp_config_real(src, object[1], theta, 1e-3, 1e15, fallback, &c->rope_local_theta));
    if (object[0] || object[1]) {
        *ret_flat = json_copy((json_t *)(uintptr_t)src->root);
        json_object_del(*ret_flat, where);
        if (object[0])
            json_object_set(*ret_flat, where, (json_t *)(uintptr_t)object[0]);
    }
    return HZP_OK;
}

int hzp_config_read_rope(const struct hzp_config_source *src, const struct hzp_family *family,
                         struct hzp_model_config *c)
{
    struct hzp_config_source own = *src;
    json_auto_t *flat = NULL;
    if (family->local_theta != 0)
        HZP_TRY(read_local(src, family, c, &flat));
    own.root = flat ? flat : src->root;
    return read_rope(&own, family, c);
}

/* The pair that turns `turns` times within the original positions. */
static double yarn_pair(const struct hzp_model_config *c, double turns)
{
    double pair =
        c->rotary * log(c->rope_original_positions / (turns * 2 * M_PI)) / (2 * log(c->rope_theta));
    return pair;
}

/* The weight of the stretched angle of pair j: 0 for pairs that turn fast, 1 for slow ones. */
static double yarn_weight(const struct hzp_model_config *c, int32_t j)
{
    double low = yarn_pair(c, c->rope_beta_fast), high = yarn_pair(c, c->rope_beta_slow);
    if (!c->rope_untruncated) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->rotary - 1);
    if (low == high)
        high += 0.001;
    return fmin(fmax((j - low) / (high - low), 0), 1);
}

/* Radians per position of pair j. Before scaling: theta^(-2j/rotary). Then
 *   linear: / factor
 *   llama3: with wavelength L = 2 pi / frequency and N the original positions, unchanged if
 *     L < N / high, / factor if L > N / low, and in between a mixture of the two with weight
 *     s = (N / L - low) / (high - low) for the unchanged one
 *   yarn: (1 - w) frequency + w frequency / factor, w as above
 *   longrope: / short[j], or / long[j] where the process takes texts beyond N.  transformers
 *     chooses by the length of each text, which would turn keys that are cached already. */
static double frequency(const struct hzp_model_config *c, int32_t j, int32_t positions)
{
    double f = pow(c->rope_theta, -2.0 * j / c->rotary);
    switch (c->rope_scaling) {
    case HZP_ROPE_PLAIN:
        return f;
    case HZP_ROPE_LINEAR:
        return f / c->rope_factor;
    case HZP_ROPE_YARN: {
        double w = yarn_weight(c, j);
        return (1 - w) * f + w * f / c->rope_factor;
    }
    case HZP_ROPE_LONG:
        return f /
               (double)(positions > c->rope_original_positions ? c->rope_long : c->rope_short)[j];
    case HZP_ROPE_LLAMA3:
        break;
    }
    double turns = c->rope_original_positions * f / (2 * M_PI); /* N / L */
    if (turns > c->rope_high_factor)
        return f;
    if (turns < c->rope_low_factor)
        return f / c->rope_factor;
    double s = (turns - c->rope_low_factor) / (c->rope_high_factor - c->rope_low_factor);
    return (1 - s) * f / c->rope_factor + s * f;
}

void hzp_rope_table(const struct hzp_model_config *config, bool local, int32_t positions,
                    float *table)
{
    struct hzp_model_config c = *config;
    if (local) {
        c.rope_scaling = HZP_ROPE_PLAIN;
        c.rope_theta = c.rope_local_theta;
        c.rope_amplitude = 1;
    }
    int32_t dim = c.heads.dim, half = dim / 2;
    c.rotary = c.rotary ? c.rotary : dim;
    double amplitude = c.rope_amplitude != 0 ? c.rope_amplitude : 1;
    for (int32_t j = 0; j < half; j++) {
        bool turns = j < c.rotary / 2;
        double f = turns ? frequency(&c, j, positions) : 0, scale = turns ? amplitude : 1;
        for (int32_t p = 0; p < positions; p++) {
            table[(size_t)p * (size_t)dim + (size_t)j] = (float)(scale * cos(p * f));
            table[(size_t)p * (size_t)dim + (size_t)(half + j)] = (float)(scale * sin(p * f));
        }
    }
}
