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
