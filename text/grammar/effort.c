/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar/effort.h"

static _Thread_local struct hzp_effort now = {.bytes = INT64_MAX, .part = 1};
static _Thread_local enum hzp_effort_lack lack;
static _Thread_local bool begun;
static _Thread_local int64_t spent;

void hzp_effort_begin(const struct hzp_effort *effort)
{
    now = *effort;
    lack = HZP_EFFORT_ENOUGH;
    begun = true;
    spent = 0;
}

enum hzp_effort_lack hzp_effort_lack(void)
{
    return lack;
}

/* The first one counts: what follows it may be its consequence. */
static void lacks(enum hzp_effort_lack what)
{
    if (lack == HZP_EFFORT_ENOUGH)
        lack = what;
}

static bool abandoned(void)
{
    if (!now.abandoned || !now.abandoned(now.ctx))
        return false;
    lack = HZP_EFFORT_ABANDONED;
    return true;
}

bool hzp_effort_over(int64_t steps, int64_t bound)
{
    if (steps > bound / now.part) {
        if (now.part > 1)
            lacks(HZP_EFFORT_STEPS);
        return true;
    }
    return abandoned();
}

bool hzp_effort_spend(int64_t steps, int64_t bound)
{
    if (!begun)
        return true;
    spent += steps;
    return !hzp_effort_over(spent, bound);
}

bool hzp_effort_take(int64_t bytes)
{
    bool fits = bytes <= now.bytes;
    if (fits)
        now.bytes -= bytes;
    else
        lacks(HZP_EFFORT_BYTES);
    return fits;
}

void hzp_effort_give(int64_t bytes)
{
    if (now.bytes <= INT64_MAX - bytes)
        now.bytes += bytes;
}
