/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/notify.h"

static const double OF_PROCESSORS = 0.05, OF_THREADS = 0.5;

static double half_new(double old, double new)
{
    return old > 0 ? (old + new) / 2 : new;
}

void hzp_join_learn(struct hzp_join *join, const struct hzp_join_seen *seen)
{
    join->flush_ns = half_new(join->flush_ns, (double)seen->spent_ns / (double)seen->flushes);
    join->step_ns = half_new(join->step_ns, (double)seen->time_ns / (double)seen->steps);
}

int32_t hzp_join_steps(const struct hzp_join *join)
{
    if (join->step_ns <= 0)
        return 1;
    double load = join->flush_ns / join->step_ns;
    double machine = load / (OF_PROCESSORS * join->processors);
    double threads = load / (OF_THREADS * join->threads);
    double most = 1 + floor((double)join->bound_ns / join->step_ns);
    double wanted = ceil(HZP_MAX(machine, threads));
    double steps = HZP_MIN(wanted, most);
    return (int32_t)HZP_MIN(HZP_MAX(steps, 1.0), (double)INT32_MAX);
}

uint64_t hzp_join_window(const struct hzp_join *join)
{
    return (uint64_t)((double)(hzp_join_steps(join) - 1) * join->step_ns);
}
