/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/config_read.h"

#include <math.h>
#include <string.h>

/* An object that the arithmetic reads has no member without an effect on it. */
static int check_rope_keys(const struct hzp_config_source *src, const char *where)
{
    static const char *const known[] = {"rope_type",        "type",
                                        "rope_theta",       "partial_rotary_factor",
                                        "factor",           "low_freq_factor",
                                        "high_freq_factor", "original_max_position_embeddings"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)hzp_config_get(src->root, where), key, value)
    {
        int i = 0;
        while (i < HZP_COUNT(known) && strcmp(key, known[i]))
            i++;
        if (i == HZP_COUNT(known) && !json_is_null(value))
            return HZP_CONFIG_FAIL(src, HZP_EUNSUP, where, "%s: %s: \"%.40s\" is not supported",
                                   src->path, where, key);
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
            return HZP_CONFIG_FAIL(src, HZP_EFORMAT, key,
                                   "%s: %s is %g in one place and %g in another", src->path, key,
                                   *ret, value);
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
        return HZP_CONFIG_FAIL(src, HZP_EFORMAT, "high_freq_factor",
                               "%s: high_freq_factor %g is not above "
                               "low_freq_factor %g",
                               src->path, c->rope_high_factor, c->rope_low_factor);
    return hzp_config_int(src, hzp_config_get(scaling, original) ? scaling : src->root, original, 1,
                          POSITIONS_MAX, INT64_MIN, &c->rope_original_positions);
}

/* transformers up to version 4: rope_theta and rope_scaling; from 5 on: both in rope_parameters. */
int hzp_config_read_rope(const struct hzp_config_source *src, const struct hzp_family *family,
                         struct hzp_model_config *c)
{
    const char *where =
        hzp_config_get(src->root, "rope_scaling") ? "rope_scaling" : "rope_parameters";
    const json_t *parameters = hzp_config_get(src->root, "rope_parameters"),
                 *scaling = hzp_config_get(src->root, where);
    const char *type, *other;
    double partial;
    if (parameters && !json_is_object(parameters))
        return HZP_CONFIG_FAIL(src, HZP_EFORMAT, "rope_parameters",
                               "%s: rope_parameters is not an object", src->path);
    if (scaling && !json_is_object(scaling))
        return HZP_CONFIG_FAIL(src, HZP_EFORMAT, where, "%s: %s is not an object", src->path,
                               where);
    HZP_TRY(check_rope_keys(src, "rope_scaling"));
    HZP_TRY(check_rope_keys(src, "rope_parameters"));
    HZP_TRY(read_rope_number(src, "rope_theta", 1e-3, 1e15, 10000, &c->rope_theta));
    HZP_TRY(read_rope_number(src, "partial_rotary_factor", 0, 1, 1, &partial));
    if (partial != 1)
        return HZP_CONFIG_FAIL(src, HZP_EUNSUP, "partial_rotary_factor",
                               "%s: partial_rotary_factor %g is "
                               "not supported; only 1 is",
                               src->path, partial);
    c->rope_factor = c->rope_low_factor = c->rope_high_factor = 1;
    c->rope_original_positions = c->positions;
    c->rope_scaling = HZP_ROPE_PLAIN;
    if (!scaling)
        return HZP_OK;
    HZP_TRY(hzp_config_text(src, scaling,
                            hzp_config_get(scaling, "rope_type") ? "rope_type" : "type", &type));
    HZP_TRY(hzp_config_text(
        src, parameters, hzp_config_get(parameters, "rope_type") ? "rope_type" : "type", &other));
    if (type && other && strcmp(type, other))
        return HZP_CONFIG_FAIL(
            src, HZP_EFORMAT, "rope_type",
            "%s: rope_type is \"%.40s\" in rope_scaling and \"%.40s\" in rope_parameters",
            src->path, type, other);
    type = type ? type : other;
    if (!type && hzp_config_get(scaling, "factor"))
        return HZP_CONFIG_FAIL(src, HZP_EFORMAT, where, "%s: %s has no rope_type", src->path,
                               where);
    if (!type || !strcmp(type, "default"))
        return HZP_OK;
    if (!strcmp(type, "linear"))
        c->rope_scaling = HZP_ROPE_LINEAR;
    else if (!strcmp(type, "llama3"))
        c->rope_scaling = HZP_ROPE_LLAMA3;
    else
        return HZP_CONFIG_FAIL(src, HZP_EUNSUP, where,
                               "%s: %s: rope_type \"%.40s\" is not supported; "
                               "default, linear and llama3 are",
                               src->path, where, type);
    HZP_TRY(hzp_config_real(src, scaling, "factor", 1, 1e6, NAN, &c->rope_factor));
    return c->rope_scaling == HZP_ROPE_LLAMA3 ? read_llama3(src, scaling, c) : HZP_OK;
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
