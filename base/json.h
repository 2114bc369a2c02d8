/* SPDX-License-Identifier: Apache-2.0 */
/* base/json.h - the one reader of JSON that comes from outside, and the writer that goes with it.
 *
 * JSON has no bounds that jansson's values have.  What they cannot hold is kept:
 *   a number beyond 64 bits, or beyond a double, stays as it is spelled (hzp_json_spelling), and is
 *     written so again;
 *   \u0000 may stand in strings and in names: a string has its length, a name the length that
 *     json_object_keylen_foreach tells;
 *   half a surrogate pair, which is no character, becomes U+FFFD.
 * Nesting is bounded (HZP_JSON_DEPTH_MAX).
 *
 * A spelled value is an object inside jansson, with one name that is not UTF-8, which no text can
 * contain; copies and comparisons keep it.  It is no object for who reads it: the macros below see
 * to that wherever jansson.h is included by way of this header, as tests/tidy wants it.  Only
 * hzp_json_dumps() writes it.
 *
 * Thread: any.
 */
#pragma once

#include "base/base.h"

#include <jansson.h>

enum { HZP_JSON_DEPTH_MAX = 2048 };

enum hzp_json_flags {
    HZP_JSON_ANY = 1, /* any value; without it an object or a list */
    HZP_JSON_UNIQUE =
        2, /* a name that is given twice is an error; without it the last one counts */
    HZP_JSON_PREFIX = 4, /* what follows the value is left unread */
    HZP_JSON_PYTHON = 8, /* NaN, Infinity and -Infinity are numbers, as Python's json writes them */
};

struct hzp_json_error {
    int line, column; /* from 1; columns are bytes */
    bool no_memory;
    char text[120];
};

/* The value in the text; the caller calls json_decref on it.  *ret_used, or NULL: how many bytes it
 * took.  NULL: the text is not JSON, and *reterr (or NULL) says why. */
json_t *hzp_json_load(const char *text, size_t bytes, int flags, size_t *ret_used,
                      struct hzp_json_error *reterr);

/* A value that is written as this text, which is JSON.  NULL: no memory. */
json_t *hzp_json_spelled(const char *text, size_t bytes);
/* The text of such a value, NUL-terminated, borrowed from it; NULL: it is another. */
const char *hzp_json_spelling(const json_t *value);

/* For a spelled value they answer as for a number: it is no object and has no members. */
bool hzp_json_is_object(const json_t *value);
#undef json_is_object
#define json_is_object(value)   hzp_json_is_object(value)
#define json_object_size(value) json_object_size(hzp_json_is_object(value) ? (value) : NULL)
#define json_object_iter(value) json_object_iter(hzp_json_is_object(value) ? (value) : NULL)

/* json_is_number() and json_number_value() for spelled numbers too: beyond a double they are
 * infinite. */
bool hzp_json_is_number(const json_t *value);
double hzp_json_real(const json_t *value);

/* How a number is written, for messages: at most size - 1 bytes. */
const char *hzp_json_number_text(const json_t *number, char *text, size_t size);

/* Whether text has no \u0000: it can be a C string.  value NULL, or no string: false. */
bool hzp_json_is_text(const json_t *value);
/* Whether no object in the value has a name with \u0000. */
bool hzp_json_names_are_text(const json_t *value);

/* A copy with all that is in it.  NULL: no memory.  (json_deep_copy() cuts names at a NUL.) */
json_t *hzp_json_copy(const json_t *value);

/* json_dumps() of a value of any kind, spelled ones in it included; the caller frees it.  flags are
 * jansson's.  NULL: no memory. */
char *hzp_json_dumps(const json_t *value, size_t flags);
