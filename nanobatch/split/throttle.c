/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/throttle.h"

static const double alone_missed_max = 0.01, rarely = 0.007 / 3;
static const double slots_free = 0.5, slots_taken = 0.95;
static const double overdue_decrease = 0.75, overdue_increase = 0.05;
static const uint64_t overdue_ns = 250000000;

double hzp_throttle_missed(double alone_miss_rate)
{
    return HZP_MAX(0.0, HZP_MIN(1.0, 2 - 2 * alone_miss_rate / alone_missed_max));
}

bool hzp_throttle_rarely_missed(double miss_rate)
{
    return miss_rate <= rarely;
}

double hzp_throttle_slots(int32_t running, int32_t slots)
{
    if (slots <= 0)
        return 1;
    double taken = (double)running / slots;
    return HZP_MAX(HZP_MIN((slots_taken - taken) / (slots_taken - slots_free), 1.0), 0.0);
}

bool hzp_crowded(const struct hzp_waits *waits)
{
    if (!waits || waits->slots <= 0 || waits->running < waits->slots)
        return false;
    for (int32_t i = 0; i < waits->count; i++)
        if (waits->of[i].rows_now == 0)
            return true;
    return false;
}

double hzp_throttle_overdue(double factor, bool overdue)
{
    return overdue ? factor * overdue_decrease : HZP_MIN(factor + overdue_increase, 1.0);
}

bool hzp_overdue(const struct hzp_waits *waits, uint64_t begin_ns, uint64_t ttft_goal_ns,
                 bool beside)
{
    uint64_t age = beside ? ttft_goal_ns ? ttft_goal_ns / 4 : overdue_ns : 0;
    for (int32_t i = 0; waits && i < waits->count; i++)
        if (waits->of[i].rows_now == 0 && begin_ns > waits->of[i].since_ns + age)
            return true;
    return false;
}
