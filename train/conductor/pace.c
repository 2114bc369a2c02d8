/* SPDX-License-Identifier: Apache-2.0 */
#include "train/conductor/pace.h"

static const double tau_ns = 30e9;

static double since(const struct hzp_pace *pace, uint64_t now_ns)
{
    return now_ns > pace->since_ns ? (double)(now_ns - pace->since_ns) : 0;
}

void hzp_pace_note(struct hzp_pace *pace, uint64_t now_ns, bool works)
{
    if (works && !pace->works)
        pace->since_ns = now_ns;
    pace->works = works;
}

void hzp_pace_done(struct hzp_pace *pace, uint64_t now_ns, int32_t rows)
{
    double t = since(pace, now_ns), d = exp(-t / tau_ns);
    pace->rows = pace->rows * d + rows;
    pace->ns = pace->ns * d + HZP_MAX(t, 1.0);
    pace->since_ns = now_ns;
}

double hzp_pace_rate(const struct hzp_pace *pace, uint64_t now_ns)
{
    if (pace->rows <= 0)
        return 0;
    double t = pace->works ? since(pace, now_ns) : 0, d = exp(-t / tau_ns);
    return pace->rows * d / (pace->ns * d + t) * 1e9;
}

uint64_t hzp_pace_stalled(const struct hzp_pace *pace, uint64_t now_ns)
{
    return pace->works ? (uint64_t)since(pace, now_ns) : 0;
}
