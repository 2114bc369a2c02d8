/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

void hzp_tokjson_where(char *where, size_t size, const char *path, const char *field)
{
    /* The end of a long path tells more than its beginning. */
    size_t n = strlen(path), room = size - strlen(field) - 3;
    snprintf(where, size, "%s: %s", n > room ? path + (n - room) : path, field);
}

int hzp_tokjson_type(const json_t *json, const char *where, const char **ret,
                     struct hzp_err_text *reterr)
{
    *ret = json_string_value(json_object_get(json, "type"));
    if (*ret == NULL)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: must be an object with a \"type\"", where);
    return HZP_OK;
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
