/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/tokenizer_json.h - reading the fields of tokenizer.json with errors that name
 * them.
 *
 * `where` is file and field, as hzp_tokjson_where wrote it. Values are borrowed from the document.
 *
 * Thread: the one that loads.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

#define HZP_TOKENIZER_FILE_MAX ((size_t)256 << 20)
#define HZP_TOKENIZER_ID_MAX   (1 << 21) /* exclusive: far above any vocabulary */

/* "path: field", cut to fit. */
void hzp_tokjson_where(char *where, size_t size, const char *path, const char *field);

/* The "type" of an object. */
int hzp_tokjson_type(const json_t *json, const char *where, const char **ret,
                     struct hzp_err_text *reterr);

/* A boolean field, or `absent` where it is missing or null. */
int hzp_tokjson_bool(const json_t *json, const char *name, bool absent, const char *where,
                     bool *ret, struct hzp_err_text *reterr);

/* A string field that must be there. */
int hzp_tokjson_string(const json_t *json, const char *name, const char *where, const json_t **ret,
                       struct hzp_err_text *reterr);

/* A token id: 0 to HZP_TOKENIZER_ID_MAX - 1. */
int hzp_tokjson_id(const json_t *json, const char *where, const char *token, int32_t *ret,
                   struct hzp_err_text *reterr);
