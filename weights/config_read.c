/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/config_read.h"

int hzp_config_fail(const struct hzp_config_source *src, int code, const char *field,
                    const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return hzp_fail_param(src->reterr, code, field, "%s: %s", src->path, text);
}

const json_t *hzp_config_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

int hzp_config_int(const struct hzp_config_source *src, const json_t *object, const char *key,
                   int64_t min, int64_t max, int64_t fallback, int32_t *ret)
{
    const json_t *value = hzp_config_get(object, key);
    int64_t number = 0;
    if (!value) {
        if (fallback == INT64_MIN)
            return hzp_config_fail(src, HZP_EFORMAT, key, "%s is missing", key);
        *ret = (int32_t)fallback;
        return HZP_OK;
    }
    double real = hzp_json_is_number(value) ? hzp_json_real(value) : NAN;
    bool held = json_is_integer(value) || fabs(real) < 1e15;
    if (isnan(real) || (held && real != floor(real)))
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is not a whole number", key);
    if (held)
        number = json_is_integer(value) ? json_integer_value(value) : (int64_t)real;
    char text[40];
    if (!held || number < min || number > max)
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is %s; possible are %lld to %lld", key,
                               hzp_json_number_text(value, text, sizeof(text)), (long long)min,
                               (long long)max);
    *ret = (int32_t)number;
    return HZP_OK;
}

bool hzp_config_null(const struct hzp_config_source *src, const char *key)
{
    return json_is_null(json_object_get(src->root, key));
}

int hzp_config_real(const struct hzp_config_source *src, const json_t *object, const char *key,
                    double min, double max, double fallback, double *ret)
{
    const json_t *value = hzp_config_get(object, key);
    if (!value && isnan(fallback))
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is missing", key);
    if (value && !hzp_json_is_number(value))
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is not a number", key);
    double number = value ? hzp_json_real(value) : fallback;
    if (!(number >= min && number <= max))
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is %g; possible are %g to %g", key,
                               number, min, max);
    *ret = number;
    return HZP_OK;
}

int hzp_config_bool(const struct hzp_config_source *src, const char *key, bool fallback, bool *ret)
{
    const json_t *value = hzp_config_get(src->root, key);
    if (value && !json_is_boolean(value))
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is neither true nor false", key);
    *ret = value ? json_is_true(value) : fallback;
    return HZP_OK;
}

int hzp_config_text(const struct hzp_config_source *src, const json_t *object, const char *key,
                    const char **ret)
{
    const json_t *value = hzp_config_get(object, key);
    if (value && !hzp_json_is_text(value))
        return hzp_config_fail(src, HZP_EFORMAT, key, "%s is not a string, or it has \\u0000", key);
    *ret = value ? json_string_value(value) : NULL;
    return HZP_OK;
}
