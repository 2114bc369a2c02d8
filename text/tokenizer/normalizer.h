/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/normalizer.h - the "normalizer" of a tokenizer.json.
 *
 * Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents; the others are
 * refused by name. Nested sequences become one list of steps.
 *
 * Invariant: never changes once loaded.
 * Thread: any; the buffers belong to the caller.
 */
#pragma once

#include "text/tokenizer/pattern.h"

struct hzp_normalizer;

/* json: the field, NULL or null for none. path: the file, for errors. HZP_EFORMAT, HZP_EUNSUP. */
int hzp_normalizer_load(const json_t *json, const char *path, struct hzp_normalizer **ret,
                        struct hzp_err_text *reterr);
void hzp_normalizer_free(struct hzp_normalizer *normalizer);

/* Normalises text (valid UTF-8). *ret and *ret_bytes get the result, which lies in text or in one
 * of the two buffers until they change. *first, if not NULL: cleared where the first character was
 * taken off. HZP_ENOMEM, HZP_EUNSUP (a pattern's limits). */
int hzp_normalizer_run(const struct hzp_normalizer *normalizer, struct hzp_matcher *matcher,
                       const char *text, size_t bytes, struct hzp_textbuf buffers[2],
                       const char **ret, size_t *ret_bytes, bool *first);
