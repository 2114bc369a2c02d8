/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/regex.h - regular expressions as rules.
 *
 * Taken, in the syntax that Python and ECMAScript share: literals; . (no line break); classes
 * [a-z], [^a-z] and, in and outside of classes, \d \D \w \W \s \S (ASCII, as in ECMAScript);
 * escapes \t \n \r \f \v \0 \xHH \uHHHH \u{H...} and \ before punctuation; groups (...), (?:...),
 * (?P<name>...), (?<name>...); |; * + ? {m} {m,} {m,n}, also followed by ? (which changes no match
 * of the whole text); look-ahead (?=...) and (?!...) in groups that nothing repeats.  ^ and $ only
 * at the beginning and the end of the expression, or of a branch outside of groups (with
 * look-ahead: $ at the end of any branch).
 *
 * Refused by name: look-behind, back references, \b, \B, \p, flags, possessive quantifiers.
 *
 * Thread: any.
 */
#pragma once

#include "text/grammar/codes.h"
#include "text/grammar/regular.h"

enum { HZP_REGEX_BYTES_MAX = 1 << 16, HZP_REGEX_DEPTH_MAX = 200 };

/* Appends behind `from` what the expression takes; *ret: the node behind it.  search: as JSON
 * Schema's pattern, the text may have anything before and behind, where ^ or $ do not forbid it;
 * otherwise the expression takes the whole text.  HZP_EINVAL: reterr names the place. */
int hzp_regex_rules(struct hzp_rules *rules, int32_t from, const char *text, size_t bytes,
                    enum hzp_spelling spelling, bool search, int32_t *ret,
                    struct hzp_err_text *reterr);

/* What the expression takes by itself, owned by the caller; NULL: too large.  HZP_EINVAL: likewise.
 */
int hzp_regex_regular(const char *text, size_t bytes, enum hzp_spelling spelling, bool search,
                      struct hzp_regular **ret, struct hzp_err_text *reterr);
