/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/fields.h - reads the fields of a request's JSON object, and writes
 * text into an answer's.
 *
 * A field that is absent or null leaves *ret unchanged, so the caller presets the default.  A wrong
 * type or a value out of range is HZP_EINVAL, its text and param naming the field.
 *
 * Thread: any.
 */
#pragma once

#include "base/err.h"
#include "text/chars/textbuf.h"

/* The field's value, borrowed; NULL: it is absent or null. */
json_t *hzp_given(const json_t *body, const char *name);

int hzp_field_int(const json_t *body, const char *name, int64_t low, int64_t high, int64_t *ret,
                  struct hzp_err_text *reterr);
int hzp_field_number(const json_t *body, const char *name, double low, double high, float *ret,
                     struct hzp_err_text *reterr);
int hzp_field_bool(const json_t *body, const char *name, bool *ret, struct hzp_err_text *reterr);

/* The string, borrowed from body; *ret NULL: absent.  It is refused if it has \u0000, where a C
 * string would end. */
int hzp_field_string(const json_t *body, const char *name, const char **ret,
                     struct hzp_err_text *reterr);

/* The same from a body that hzp_fields_check() has passed (field_table.h): type and range are
 * right. */
void hzp_given_int(const json_t *body, const char *name, int64_t *ret);
void hzp_given_int32(const json_t *body, const char *name, int32_t *ret);
void hzp_given_number(const json_t *body, const char *name, float *ret);
void hzp_given_bool(const json_t *body, const char *name, bool *ret);
/* Whether the field's text is this one. */
bool hzp_given_word(const json_t *body, const char *name, const char *word);

/* A bound as an integer, the nearest there is. */
int64_t hzp_field_bound(double bound);

/* "a string", "an object": for messages. */
const char *hzp_json_kind(const json_t *value);
