/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/deadline.h"

static const double usual_quantile = 0.9, usual_part_max = 0.6;

/* F */
static double usual_ttft(const struct hzp_seen *seen, double goal)
{
    double alone = hzp_spread_quantile(&seen->ttft_alone, usual_quantile);
    return alone > 0 ? HZP_MIN(alone, usual_part_max * goal) : goal / 4;
}

double hzp_deadline_ttft(const struct hzp_seen *seen, uint64_t goal_ns,
                         const struct hzp_deadline_step *step, const struct hzp_waits *waits)
{
    double goal = (double)goal_ns, limit = INFINITY, rows = 0;
    if (!waits || !waits->count)
        return seen->ttft_aim.part * (goal - usual_ttft(seen, goal)) + step->serve_ns +
               step->host_ns;
    for (int32_t i = 0; i < waits->count; i++) {
        const struct hzp_wait *wait = &waits->of[i];
        rows += wait->rows_left;
        double whole = ceil(rows / step->pace), steps = HZP_MAX(whole, 1.0);
        double age =
            step->begin_ns > wait->since_ns ? (double)(step->begin_ns - wait->since_ns) : 0;
        double left = goal - age - step->in_flight_ns;
        limit = HZP_MIN(limit, seen->ttft_aim.part * left / steps);
    }
    return limit;
}

double hzp_deadline_idle(const struct hzp_seen *seen, uint64_t goal_ns, double idle_ns)
{
    double goal = (double)goal_ns;
    if (!goal_ns)
        return idle_ns;
    double within = seen->ttft_aim.part * (goal - usual_ttft(seen, goal));
    return HZP_MAX(HZP_MIN(idle_ns, within), HZP_MIN(idle_ns, goal / 16));
}

double hzp_deadline_ease(double left_ns, double serve_ns)
{
    return HZP_MAX(0.0, HZP_MIN(1.0, 3 - 4 * serve_ns / HZP_MAX(left_ns, 1.0)));
}

double hzp_deadline_slice(double limit_ns, double host_ns, double serve_ns, bool ease)
{
    double left = limit_ns - host_ns;
    return (ease ? hzp_deadline_ease(left, serve_ns) : 1) * (left - serve_ns);
}
