/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/marks.c - which examples are not learned any more: skipped, deleted, rejected. */
#include "api/learn/state_private.h"

#include <stdlib.h>

int hzp_state_read_marks(struct hzp_state *s, struct hzp_err_text *reterr)
{
    struct hzp_mark *mark = NULL;
    int32_t n = hzp_sample_log_marks(s->log, &mark, reterr);
    HZP_TRY(n);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) /* the queue has those of this run */
        if (mark[i].kind != HZP_MARK_REJECTED || mark[i].version < s->resume.next_version_id)
            mark[kept++] = mark[i];
    hzp_lock_take(&s->lock);
    struct hzp_mark *old = s->mark;
    s->mark = mark;
    s->marks = kept;
    hzp_lock_release(&s->lock);
    free(old);
    return HZP_OK;
}

int32_t hzp_state_marked(struct hzp_state *s, enum hzp_mark_kind kind, int64_t first, int64_t last,
                         int64_t *ret, int32_t max, int64_t *ret_count)
{
    int32_t n = 0;
    *ret_count = 0;
    hzp_lock_take(&s->lock);
    for (int32_t i = 0; i < s->marks; i++) {
        const struct hzp_mark *m = &s->mark[i];
        int64_t from = HZP_MAX(m->first, first), to = HZP_MIN(m->last, last);
        if (m->kind != kind || from > to)
            continue;
        *ret_count += to - from + 1;
        for (int64_t k = from; k <= to && n < max; k++)
            ret[n++] = k;
    }
    hzp_lock_release(&s->lock);
    if (kind == HZP_MARK_REJECTED)
        n += hzp_state_pick(s, hzp_sample_queue_rejected, first, last, ret + n, max - n, ret_count);
    return n;
}

static bool is_marked(struct hzp_state *s, int64_t number)
{
    bool found = false;
    hzp_lock_take(&s->lock);
    for (int32_t i = 0; i < s->marks && s->mark[i].first <= number && !found; i++)
        found = number <= s->mark[i].last;
    hzp_lock_release(&s->lock);
    return found;
}

enum hzp_example_state hzp_state_learned(struct hzp_state *s, int64_t number,
                                         int64_t learned_through)
{
    int64_t none[1], failed = 0, rejected = 0;
    hzp_state_pick(s, hzp_sample_queue_rejected, number, number, none, 0, &rejected);
    hzp_state_failed(s, number, number, none, 0, &failed);
    if (failed || rejected || is_marked(s, number))
        return HZP_EXAMPLE_NEVER;
    return number <= learned_through ? HZP_EXAMPLE_LEARNED : HZP_EXAMPLE_WAITS;
}

bool hzp_state_settled(struct hzp_state *s, int64_t first, int64_t last, int64_t learned_through)
{
    for (int64_t n = HZP_MAX(first, learned_through + 1); n <= last; n++)
        if (hzp_state_learned(s, n, learned_through) == HZP_EXAMPLE_WAITS)
            return false;
    return true;
}

int64_t hzp_state_first_mark(struct hzp_state *s)
{
    int64_t number[1], rejected = 0;
    hzp_lock_take(&s->lock);
    int64_t first = s->marks ? s->mark[0].first : INT64_MAX;
    hzp_lock_release(&s->lock);
    if (hzp_state_pick(s, hzp_sample_queue_rejected, 1, INT64_MAX, number, 1, &rejected) > 0)
        first = HZP_MIN(first, number[0]);
    return first;
}
