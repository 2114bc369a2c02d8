/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/outlook.h"

#include "nanobatch/split/split.h"

enum { FAILED, PAUSED, TRIAL, SLOT, STALENESS, OWN };

const char *hzp_outlook_reason(int i)
{
    static const char *const own[OWN] = {"failed", "paused", "trial", "version_slot", "staleness"};
    if (i < OWN)
        return own[i];
    i += 1 - OWN; /* past HZP_LIMIT_IDLE, which holds nothing back */
    return i < HZP_LIMIT_COUNT ? hzp_split_limit_name((enum hzp_split_limit)i) : NULL;
}

/* What limited training in most of the newest steps; NULL: nothing, no request ran. */
static const char *limit_of(const struct hzp_split_report *report)
{
    int most = HZP_LIMIT_IDLE;
    for (int i = 0; i < HZP_LIMIT_COUNT; i++)
        if (report->recent[i] > report->recent[most])
            most = i;
    return most == HZP_LIMIT_IDLE ? NULL : hzp_split_limit_name((enum hzp_split_limit)most);
}

bool hzp_outlook_read(struct hzp_trainer *trainer, struct hzp_sample_queue *queue,
                      struct hzp_loop *loop, struct hzp_outlook *ret)
{
    struct hzp_trainer_stats t;
    struct hzp_sample_queue_stats q;
    *ret = (struct hzp_outlook){.seconds = INFINITY};
    HZP_FREED struct hzp_split_report *report = malloc(sizeof(*report)); /* large */
    if (!report)
        return false;
    hzp_split_read(hzp_loop_split(loop), hzp_now_ns(), report);
    hzp_trainer_read_stats(trainer, &t);
    hzp_sample_queue_read_stats(queue, &q);
    ret->rows = q.rows;
    ret->rows_per_second = t.rows_per_second;
    if (q.rows <= 0)
        ret->seconds = 0;
    else if (t.rows_per_second > 0 && !t.broken)
        ret->seconds = q.rows / t.rows_per_second;
    if (q.rows > 0) {
        ret->oldest_seconds = (double)t.oldest_ns * 1e-9;
        ret->stalled_seconds = (double)t.stalled_ns * 1e-9;
        ret->held_by = t.broken             ? hzp_outlook_reason(FAILED)
                       : t.paused           ? hzp_outlook_reason(PAUSED)
                       : t.on_trial         ? hzp_outlook_reason(TRIAL)
                       : t.waiting_for_slot ? hzp_outlook_reason(SLOT)
                       : t.waiting_for_swap ? hzp_outlook_reason(STALENESS)
                                            : limit_of(report);
    }
    return true;
}
