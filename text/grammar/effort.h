/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/effort.h - what making a grammar may cost, and whether it is still wanted.
 *
 * The bounds of grammar.h and regular.h allow seconds of work and hundreds of megabytes.  Who makes
 * a grammar may allow less: then it is given up as soon as that is spent, and whoever asked learns
 * that more would have been allowed.  It is given up as well when nobody waits for it any more.
 *
 * Thread: any; each has its own effort, from hzp_effort_begin() on.  A thread that never calls it
 * may spend all that the bounds allow.
 */
#pragma once

#include "base/base.h"

struct hzp_effort {
    int64_t bytes; /* of languages (regular.h) at a time */
    int32_t part;  /* the steps are a part-th of what each bound allows; 1: all of it */
    /* Whether nobody waits for the grammar any more; NULL: somebody does. */
    bool (*abandoned)(void *ctx);
    void *ctx;
};

enum hzp_effort_lack {
    HZP_EFFORT_ENOUGH,
    HZP_EFFORT_BYTES, /* with more bytes, or more steps, it might be made */
    HZP_EFFORT_STEPS,
    HZP_EFFORT_ABANDONED,
};

/* effort: copied; its ctx is borrowed until the next call. */
void hzp_effort_begin(const struct hzp_effort *effort);
/* What was lacking first since then.  Where something was, the grammar is not what was asked for,
 * even if no error says so. */
enum hzp_effort_lack hzp_effort_lack(void);

/* Whether so many steps are more than the thread may spend of a bound, or nobody waits. */
bool hzp_effort_over(int64_t steps, int64_t bound);
/* Spends steps, of which all since hzp_effort_begin() are counted.  False: they are more than the
 * bound allows, or nobody waits.  A thread that has never begun has any number. */
bool hzp_effort_spend(int64_t steps, int64_t bound);
/* Takes bytes of languages.  False: there are not so many. */
bool hzp_effort_take(int64_t bytes);
void hzp_effort_give(int64_t bytes);
