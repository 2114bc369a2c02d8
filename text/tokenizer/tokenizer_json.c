/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_parts.h"

#include "base/utf8.h"

#define NESTING_MAX 8

void hzp_tokjson_where(char *where, size_t size, const char *path, const char *field)
{
    /* The end of a long path tells more than its beginning. */
    size_t n = strlen(path), room = size - strlen(field) - 3;
    snprintf(where, size, "%s: %s", n > room ? path + (n - room) : path, field);
}

struct parts {
    const char *where, *list;
    hzp_tokjson_part *take;
    void *ctx;
    struct hzp_err_text *reterr;
};

static int take_parts(const struct parts *p, const json_t *json, int depth)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    const json_t *list = json_object_get(json, p->list);
    if (type == NULL)
        return hzp_fail(p->reterr, HZP_EFORMAT, "%s: must be an object with a \"type\"", p->where);
    if (strcmp(type, "Sequence") != 0)
        return p->take(p->ctx, type, json, p->where, p->reterr);
    if (!json_is_array(list) || depth == NESTING_MAX)
        return hzp_fail(p->reterr, HZP_EFORMAT, "%s: a Sequence without a list, or nested deeply",
                        p->where);
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) HZP_TRY(take_parts(p, item, depth + 1));
    return HZP_OK;
}

int hzp_tokjson_parts(const json_t *json, const char *path, const char *field, const char *list,
                      hzp_tokjson_part *take, void *ctx, struct hzp_err_text *reterr)
{
    char where[300];
    struct parts parts = {where, list, take, ctx, reterr};
    hzp_tokjson_where(where, sizeof(where), path, field);
    return json == NULL || json_is_null(json) ? HZP_OK : take_parts(&parts, json, 0);
}

int hzp_tokjson_bool(const json_t *json, const char *name, bool absent, const char *where,
                     bool *ret, struct hzp_err_text *reterr)
{
    const json_t *value = json_object_get(json, name);
    if (value != NULL && !json_is_null(value) && !json_is_boolean(value))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %s must be true or false", where, name);
    *ret = json_is_boolean(value) ? json_is_true(value) : absent;
    return HZP_OK;
}

int hzp_tokjson_string(const json_t *json, const char *name, const char *where, const json_t **ret,
                       struct hzp_err_text *reterr)
{
    *ret = json_object_get(json, name);
    if (!json_is_string(*ret))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %s must be a string", where, name);
    return HZP_OK;
}

int hzp_tokjson_character(const json_t *json, const char *name, const char *where,
                          const json_t **ret, struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_tokjson_string(json, name, where, ret, reterr));
    size_t bytes = json_string_length(*ret);
    if (bytes == 0 || bytes != (size_t)hzp_utf8_step((uint8_t)*json_string_value(*ret)))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %s must be one character", where, name);
    return HZP_OK;
}

char *hzp_tokjson_copy(const json_t *string, size_t *ret_bytes)
{
    *ret_bytes = json_string_length(string);
    return memcpy(hzp_xmalloc(*ret_bytes + 1), json_string_value(string), *ret_bytes + 1);
}

int hzp_tokjson_id(const json_t *json, const char *where, const char *token, int32_t *ret,
                   struct hzp_err_text *reterr)
{
    json_int_t id = json_integer_value(json);
    if (!json_is_integer(json) || id < 0 || id >= HZP_TOKENIZER_ID_MAX)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: the id of token \"%.60s\" must be a number from 0 to %d", where, token,
                        HZP_TOKENIZER_ID_MAX - 1);
    *ret = (int32_t)id;
    return HZP_OK;
}
