/* SPDX-License-Identifier: Apache-2.0 */
/* weights/config_read.h - reading the fields of a config.json, with errors that name file and
 * field.  For weights/config.c and weights/rope.c.
 *
 * All of them: HZP_EFORMAT, and *ret is written only on success.
 *
 * Thread: any.
 */
#pragma once

#include "base/err.h"
#include "weights/families.h"

#include "base/json.h"

struct hzp_model_config;

/* Upper bounds of the numbers.  All sizes that follow from them, (heads + 2 kv_heads) dim * width,
 * 2 inner * width, vocab * width, 1024 layers of those, fit easily into 63 bits of bytes, and every
 * row count fits into an int32_t. */
enum {
    LAYERS_MAX = 1024,
    WIDTH_MAX = 1 << 16,
    INNER_MAX = 1 << 19,
    VOCAB_MAX = 1 << 22,
    HEADS_MAX = 1024,
    DIM_MAX = 512,
    POSITIONS_MAX = 1 << 24,
};

/* The file being read, for error messages. */
struct hzp_config_source {
    const char *path;
    const json_t *root;
    struct hzp_err_text *reterr;
};

/* An error of a field: names the file, and then what the text says. */
int hzp_config_fail(const struct hzp_config_source *src, int code, const char *field,
                    const char *format, ...) HZP_PRINTF(4, 5);

/* The value of a key; null counts as absent, as it does in transformers. */
const json_t *hzp_config_get(const json_t *object, const char *key);

/* Reads a whole number min..max; 4096.0 counts as one.  fallback INT64_MIN: the field is
 * required. */
int hzp_config_int(const struct hzp_config_source *src, const json_t *object, const char *key,
                   int64_t min, int64_t max, int64_t fallback, int32_t *ret);

/* Reads a number min..max.  fallback NAN: the field is required. */
int hzp_config_real(const struct hzp_config_source *src, const json_t *object, const char *key,
                    double min, double max, double fallback, double *ret);

int hzp_config_bool(const struct hzp_config_source *src, const char *key, bool fallback, bool *ret);

/* Reads a string; NULL if absent. */
int hzp_config_text(const struct hzp_config_source *src, const json_t *object, const char *key,
                    const char **ret);

/* Whether the file has the key with null, which is not the same as an absent one: the family's
 * default is for the latter. */
bool hzp_config_null(const struct hzp_config_source *src, const char *key);

/* The rotation, from rope_theta, rope_scaling and rope_parameters; sizes and positions have been
 * read.  Also HZP_EUNSUP. */
int hzp_config_read_rope(const struct hzp_config_source *src, const struct hzp_family *family,
                         struct hzp_model_config *c);
