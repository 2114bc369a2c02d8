/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/tokenizer_json.h - reading the fields of tokenizer.json with errors that name
 * them.
 *
 * `where` is file and field, as hzp_tokjson_where wrote it. Values are borrowed from the document.
 *
 * Thread: the one that loads.
 */
#pragma once

#include "base/err.h"
#include "base/json.h"

#define HZP_TOKENIZER_FILE_MAX ((size_t)256 << 20)
#define HZP_TOKENIZER_ID_MAX   (1 << 21) /* exclusive: far above any vocabulary */

/* "path: field", cut to fit. */
void hzp_tokjson_where(char *where, size_t size, const char *path, const char *field);

/* Takes a part of a field, an object of this type. */
typedef int hzp_tokjson_part(void *ctx, const char *type, const json_t *json, const char *where,
                             struct hzp_err_text *reterr);

/* Hands over the parts of a field: itself, or where it is a Sequence, those of its `list`, however
 * nested.  NULL or null has none. */
int hzp_tokjson_parts(const json_t *json, const char *path, const char *field, const char *list,
                      hzp_tokjson_part *take, void *ctx, struct hzp_err_text *reterr);

/* A boolean field, or `absent` where it is missing or null. */
int hzp_tokjson_bool(const json_t *json, const char *name, bool absent, const char *where,
                     bool *ret, struct hzp_err_text *reterr);

/* A string field that must be there. */
int hzp_tokjson_string(const json_t *json, const char *name, const char *where, const json_t **ret,
                       struct hzp_err_text *reterr);

/* A string field of exactly one character. */
int hzp_tokjson_character(const json_t *json, const char *name, const char *where,
                          const json_t **ret, struct hzp_err_text *reterr);

/* A copy of a string, which the caller frees, and its length. */
char *hzp_tokjson_copy(const json_t *string, size_t *ret_bytes);

/* A token id: 0 to HZP_TOKENIZER_ID_MAX - 1. */
int hzp_tokjson_id(const json_t *json, const char *where, const char *token, int32_t *ret,
                   struct hzp_err_text *reterr);
