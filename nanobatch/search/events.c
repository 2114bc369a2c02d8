/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/events.h"

#include "nanobatch/time/tables.h"

#include <math.h>
#include <string.h>

struct lane {
    int32_t *task;     /* [count] its tasks, in order */
    int32_t count, at; /* number of tasks; the next task to run, or the running one */
    bool runs;
    double left;    /* nanoseconds that the rest of the running task would take alone */
    double free_at; /* when the lane's previous task ended */
};

struct run {
    const struct hzp_events *events;
    struct lane lane[HZP_LANE_COUNT];
    double *begin, *end, *busy_ns;
};

/* Distributes the tasks over their lanes. */
static void deal(struct run *r, int32_t *order)
{
    const struct hzp_events *e = r->events;
    int32_t at = 0;
    for (int32_t i = 0; i < e->tasks; i++)
        r->lane[e->task[i].lane].count++;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        r->lane[l].task = order + at;
        at += r->lane[l].count;
        r->lane[l].count = 0;
    }
    for (int32_t i = 0; i < e->tasks; i++) {
        struct lane *lane = &r->lane[e->task[i].lane];
        lane->task[lane->count++] = i;
    }
}

/* When the lane's next task may begin; INFINITY: a task it waits for has not ended yet. */
static double ready(const struct run *r, int l)
{
    const struct hzp_events *e = r->events;
    const struct lane *lane = &r->lane[l];
    int32_t i = lane->task[lane->at];
    double free_at = lane->free_at, at = free_at + (lane->at > 0 ? e->gap_ns : 0);
    double issued_at = e->issued ? e->issued(e->ctx, i) : at;
    at = HZP_MAX(at, issued_at);
    for (int32_t k = 0; k < e->task[i].waits; k++) {
        int32_t w = e->wait[e->task[i].wait0 + k];
        if (r->end[w] < 0)
            return INFINITY;
        if (e->task[w].lane == l || r->end[w] <= free_at)
            continue;
        bool asleep = r->end[w] - free_at > HZP_POLL_NS;
        at = HZP_MAX(at, r->end[w] + (asleep ? e->wakeup_ns : e->handover_ns));
    }
    return at;
}

/* The rate at which the lane's task advances. */
static double speed(const struct run *r, int l)
{
    int32_t others[HZP_LANE_COUNT];
    int count = 0;
    for (int k = 0; k < HZP_LANE_COUNT; k++)
        if (k != l && r->lane[k].runs)
            others[count++] = r->lane[k].task[r->lane[k].at];
    double rate = r->events->rate(r->events->ctx, r->lane[l].task[r->lane[l].at], others, count);
    return HZP_MAX(rate, 0.02);
}

/* One event: starts the tasks that can start at `now`, then advances to the next event. False: all
 * tasks have ended. */
static bool advance(struct run *r, double *now)
{
    double next = INFINITY, rate[HZP_LANE_COUNT], ends[HZP_LANE_COUNT];
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        struct lane *lane = &r->lane[l];
        if (lane->runs || lane->at == lane->count)
            continue;
        double at = ready(r, l);
        if (at <= *now) {
            int32_t i = lane->task[lane->at];
            lane->runs = true;
            lane->left = r->events->task[i].alone_ns;
            r->begin[i] = *now;
        } else {
            next = HZP_MIN(next, at);
        }
    }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (r->lane[l].runs) {
            rate[l] = speed(r, l);
            ends[l] = *now + r->lane[l].left / rate[l];
            next = HZP_MIN(next, ends[l]);
        }
    if (next == INFINITY)
        return false;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        struct lane *lane = &r->lane[l];
        if (!lane->runs)
            continue;
        r->busy_ns[l] += next - *now;
        lane->left -= (next - *now) * rate[l];
        /* Compare end times, not only the remainder: beside large times the remainder may be too
         * small to advance the clock. */
        if (ends[l] <= next || lane->left <= 1e-6 * rate[l] + 1e-9) {
            r->end[lane->task[lane->at++]] = lane->free_at = next;
            lane->runs = false;
        }
    }
    *now = next;
    return true;
}

void hzp_events_run(const struct hzp_events *events, double *begin, double *end, int32_t *order,
                    double busy_ns[HZP_LANE_COUNT])
{
    struct run r = {.events = events, .begin = begin, .end = end, .busy_ns = busy_ns};
    double now = 0;
    memset(busy_ns, 0, sizeof(*busy_ns) * HZP_LANE_COUNT);
    for (int32_t i = 0; i < events->tasks; i++)
        end[i] = -1;
    deal(&r, order);
    while (advance(&r, &now))
        ;
    for (int32_t i = 0; i < events->tasks; i++)
        HZP_ASSERT(end[i] >= 0); /* waits point back */
}
