/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/marks.c - which examples are not learned any more: skipped, deleted, rejected. */
#include "api/learn/state_private.h"

int hzp_state_read_marks(struct hzp_state *s, struct hzp_err_text *reterr)
{
    struct hzp_mark *mark = NULL;
    int32_t n = hzp_sample_log_marks(s->log, &mark, reterr);
    HZP_TRY(n);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) /* the queue has those of this run */
        if (mark[i].kind != HZP_MARK_REJECTED || mark[i].version < s->resume.next_version_id)
            mark[kept++] = mark[i];
    HZP_LOCKED(&s->lock);
    HZP_FREED struct hzp_mark *old = s->mark;
    s->mark = mark;
    s->marks = kept;
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
    HZP_LOCKED(&s->lock);
    for (int32_t i = 0; i < s->marks && s->mark[i].first <= number && !found; i++)
        found = number <= s->mark[i].last;
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

int64_t hzp_state_smallest(struct hzp_state *s, hzp_state_reader *reader)
{
    int64_t number[HZP_STATE_FAILED_PIECE], smallest = INT64_MAX;
    int32_t n, from = 0;
    do { /* they are in the order in which they left the queue */
        n = reader(s->queue, from, number, HZP_STATE_FAILED_PIECE);
        for (int32_t i = 0; i < n; i++)
            smallest = HZP_MIN(smallest, number[i]);
        from += n;
    } while (n == HZP_STATE_FAILED_PIECE);
    return smallest;
}

/* Goes on from `through` over the queue's numbers that follow it. */
static int64_t pass_numbers(struct hzp_state *s, hzp_state_reader *reader, int64_t through)
{
    int64_t number[HZP_STATE_FAILED_PIECE];
    int32_t n, from = 0;
    do {
        n = reader(s->queue, from, number, HZP_STATE_FAILED_PIECE);
        for (int32_t i = 0; i < n; i++)
            through += number[i] == through + 1;
        from += n;
    } while (n == HZP_STATE_FAILED_PIECE);
    return through;
}

int64_t hzp_state_finished_through(struct hzp_state *s, int64_t through)
{
    int64_t before;
    through = HZP_MAX(through, 0);
    do {
        before = through;
        hzp_lock_take(&s->lock);
        for (int32_t i = 0; i < s->marks && s->mark[i].first <= through + 1; i++)
            through = HZP_MAX(through, s->mark[i].last);
        hzp_lock_release(&s->lock);
        for (int64_t i = 0; i < s->failed_before_count; i++) /* ascending */
            through += s->failed_before[i] == through + 1;
        through = pass_numbers(s, hzp_sample_queue_rejected, through);
        through = pass_numbers(s, hzp_sample_queue_failed, through);
    } while (through > before);
    return through > 0 ? through : -1;
}

int64_t hzp_state_first_mark(struct hzp_state *s)
{
    hzp_lock_take(&s->lock);
    int64_t first = s->marks ? s->mark[0].first : INT64_MAX;
    hzp_lock_release(&s->lock);
    int64_t rejected = hzp_state_smallest(s, hzp_sample_queue_rejected);
    return HZP_MIN(first, rejected);
}
