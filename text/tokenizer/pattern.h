/* SPDX-License-Identifier: Apache-2.0 */
/* text/tokenizer/pattern.h - what tokenizer.json searches text for: a literal or a regular
 * expression.
 *
 * Hugging Face's tokenizers use Oniguruma; PCRE2 runs here. The source is translated where the two
 * differ in what a shared spelling means (\w, \s, \h); set algebra inside brackets, which PCRE2
 * lacks, is refused.
 *
 * Invariant: a compiled pattern never changes; what a search writes to is the matcher.
 * Thread: patterns any, a matcher one at a time.
 */
#pragma once

#include "base/err.h"

#include "text/chars/textbuf.h"

/* A word's characters as Rust's regex crate has them, for use inside brackets: what the tokenizers
 * package uses where it does not use Oniguruma. */
#define HZP_PATTERN_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}"

struct hzp_pattern;
struct hzp_matcher;

/* Compiles a regular expression. where: file and field, for the error. HZP_EFORMAT: it does not
 * compile; HZP_EUNSUP: it uses what is not supported. */
int hzp_pattern_regex(const char *source, size_t bytes, const char *where, struct hzp_pattern **ret,
                      struct hzp_err_text *reterr);

/* A literal of at least one byte. */
struct hzp_pattern *hzp_pattern_literal(const char *text, size_t bytes);

/* {"String": ...} or {"Regex": ...}. HZP_EFORMAT, HZP_EUNSUP. */
int hzp_pattern_json(const json_t *json, const char *where, struct hzp_pattern **ret,
                     struct hzp_err_text *reterr);
void hzp_pattern_free(struct hzp_pattern *pattern);

/* NULL: no memory. */
struct hzp_matcher *hzp_matcher_new(void);
void hzp_matcher_free(struct hzp_matcher *matcher);

/* The first match at or after `at` in text (valid UTF-8): 1 and its range, 0 if there is none;
 * HZP_EUNSUP: the expression needs more work on this text than the limits allow. */
int hzp_pattern_find(const struct hzp_pattern *pattern, struct hzp_matcher *matcher,
                     const char *text, size_t bytes, size_t at, size_t *from, size_t *to);

/* Appends the text with `by` in place of each match.  As above, or HZP_ENOMEM. */
int hzp_pattern_replace(const struct hzp_pattern *pattern, struct hzp_matcher *matcher,
                        const char *text, size_t bytes, const char *by, size_t by_bytes,
                        struct hzp_textbuf *out);
