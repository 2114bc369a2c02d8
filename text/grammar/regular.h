/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/regular.h - regular languages over bytes, as deterministic automata that can be
 * intersected and subtracted: what several conditions on one string or number leave.
 *
 * Invariant: a language never changes once made; from each of its states a final one is reached.
 * Thread: one at a time while it is made; afterwards any.
 */
#pragma once

#include "text/grammar/rules.h"

enum {
    HZP_REGULAR_STATES_MAX = 1 << 14,
    HZP_REGULAR_WORK_MAX = 1 << 27,
    /* Steps of all languages of one grammar: some seconds.  What one grammar's languages may take
     * is counted by effort.h. */
    HZP_REGULAR_TOTAL_MAX = 1 << 30,
};

struct hzp_regular;

/* What the nodes between `from` and `to` take, which call no rules.  NULL: it is too large: more
 * than HZP_REGULAR_STATES_MAX states, HZP_REGULAR_WORK_MAX steps, or what effort.h has left. */
struct hzp_regular *hzp_regular_create(const struct hzp_rules *rules, int32_t from, int32_t to);
void hzp_regular_destroy(struct hzp_regular *a); /* NULL: no effect */

/* What both take; what a takes and b does not.  NULL: too large. */
struct hzp_regular *hzp_regular_both(const struct hzp_regular *a, const struct hzp_regular *b);
struct hzp_regular *hzp_regular_without(const struct hzp_regular *a, const struct hzp_regular *b);
/* Leaves of *a what b takes too, or (without) does not take; takes b over.  False: too large, or
 * one of them is NULL; *a is NULL then. */
bool hzp_regular_limit(struct hzp_regular **a, struct hzp_regular *b, bool without);

bool hzp_regular_empty(const struct hzp_regular *a);
int32_t hzp_regular_states(const struct hzp_regular *a);
bool hzp_regular_takes(const struct hzp_regular *a, const char *bytes, size_t size);

/* Appends the language behind `from`; returns the node behind it. */
int32_t hzp_regular_add(struct hzp_rules *rules, int32_t from, const struct hzp_regular *a);

/* ---- regex.c: regular expressions as rules.
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
 * Thread: any. */

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
