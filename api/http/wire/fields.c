/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/fields.h"

const char *hzp_json_kind(const json_t *value)
{
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "a boolean",
        [JSON_FALSE] = "a boolean",    [JSON_NULL] = "null"};
    return hzp_json_spelling(value) ? "a number" : kinds[json_typeof(value)];
}

json_t *hzp_given(const json_t *body, const char *name)
{
    json_t *value = json_object_get(body, name);
    return json_is_null(value) ? NULL : value;
}

static int wrong_kind(const char *name, const char *what, const json_t *value,
                      struct hzp_err_text *reterr)
{
    return hzp_wrong(reterr, name, "must be %s, not %s", what, hzp_json_kind(value));
}

int hzp_field_int(const json_t *body, const char *name, int64_t low, int64_t high, int64_t *ret,
                  struct hzp_err_text *reterr)
{
    const json_t *value = hzp_given(body, name);
    if (!value)
        return HZP_OK;
    /* 3.0 counts as an integer: some clients have only one kind of number. */
    double real = hzp_json_real(value);
    if (!hzp_json_is_number(value) || (isfinite(real) && real != floor(real)))
        return wrong_kind(name, "an integer", value, reterr);
    char text[40];
    int64_t n = json_is_integer(value) ? json_integer_value(value) : 0;
    bool held = json_is_integer(value) || fabs(real) < 0x1p53;
    if (held && !json_is_integer(value))
        n = (int64_t)real;
    if (!held || n < low || n > high)
        return hzp_wrong(reterr, name, "must be from %lld to %lld, not %s", (long long)low,
                         (long long)high, hzp_json_number_text(value, text, sizeof(text)));
    *ret = n;
    return HZP_OK;
}

int hzp_field_number(const json_t *body, const char *name, double low, double high, float *ret,
                     struct hzp_err_text *reterr)
{
    const json_t *value = hzp_given(body, name);
    if (!value)
        return HZP_OK;
    if (!hzp_json_is_number(value))
        return wrong_kind(name, "a number", value, reterr);
    double n = hzp_json_real(value);
    char text[40];
    if (!(n >= low && n <= high) || !isfinite(n))
        return hzp_wrong(reterr, name, "must be from %g to %g, not %s", low, high,
                         hzp_json_number_text(value, text, sizeof(text)));
    *ret = (float)n;
    return HZP_OK;
}

int hzp_field_bool(const json_t *body, const char *name, bool *ret, struct hzp_err_text *reterr)
{
    const json_t *value = hzp_given(body, name);
    if (!value)
        return HZP_OK;
    if (!json_is_boolean(value))
        return wrong_kind(name, "true or false", value, reterr);
    *ret = json_is_true(value);
    return HZP_OK;
}

int hzp_field_string(const json_t *body, const char *name, const char **ret,
                     struct hzp_err_text *reterr)
{
    const json_t *value = hzp_given(body, name);
    if (!value)
        return HZP_OK;
    if (!json_is_string(value))
        return wrong_kind(name, "a string", value, reterr);
    if (!hzp_json_is_text(value))
        return hzp_wrong(reterr, name, "must not have \\u0000 in it");
    *ret = json_string_value(value);
    return HZP_OK;
}

void hzp_given_int(const json_t *body, const char *name, int64_t *ret)
{
    int r = hzp_field_int(body, name, INT64_MIN, INT64_MAX, ret, NULL);
    HZP_ASSERT(r == HZP_OK);
}

void hzp_given_int32(const json_t *body, const char *name, int32_t *ret)
{
    int64_t n = *ret;
    hzp_given_int(body, name, &n);
    *ret = (int32_t)n;
}

void hzp_given_number(const json_t *body, const char *name, float *ret)
{
    int r = hzp_field_number(body, name, -HUGE_VAL, HUGE_VAL, ret, NULL);
    HZP_ASSERT(r == HZP_OK);
}

void hzp_given_bool(const json_t *body, const char *name, bool *ret)
{
    int r = hzp_field_bool(body, name, ret, NULL);
    HZP_ASSERT(r == HZP_OK);
}

bool hzp_given_word(const json_t *body, const char *name, const char *word)
{
    const char *text = json_string_value(json_object_get(body, name));
    return text && !strcmp(text, word);
}

int64_t hzp_field_bound(double bound)
{
    return bound >= 0x1p63 ? INT64_MAX : bound <= -0x1p63 ? INT64_MIN : (int64_t)bound;
}
