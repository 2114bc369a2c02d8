/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_queue_group.c - lessons that are learned, and judged, together.
 *
 *     push -> later --draw--> the rounds of sample_queue.c -> kept --accept, reject--> freed
 *               ^                                               |
 *               +------------------ withdraw -------------------+ */
#include "train/table/sample_queue_state.h"

#include <stdlib.h>

bool hzp_sample_queue_by_lesson(const struct hzp_sample_queue *q)
{
    return q->config.by_lesson;
}

/* The number of samples of the first lesson in the list, from entry `at` on; adds their tokens. */
static int32_t count_lesson(const struct list *list, int32_t at, int64_t *tokens)
{
    const struct entry *entry = list->entry + list->head;
    int32_t n = 0;
    while (at + n < list->count && entry[at + n].sample->lesson == entry[at].sample->lesson)
        *tokens += entry[at + n++].sample->count;
    return n;
}

void hzp_sample_queue_begin_group(struct hzp_sample_queue *q, int64_t tokens_max)
{
    HZP_ASSERT(!q->kept.count && !q->drawn.count);
    int64_t tokens = 0;
    int32_t n = 0;
    while (n < q->later.count) {
        int32_t more = count_lesson(&q->later, n, &tokens);
        if (n && tokens > tokens_max)
            break;
        n += more;
    }
    while (n-- > 0) {
        struct entry entry = list_pop(&q->later);
        entry.left_then = entry.left;
        entry.learned_then = entry.learned;
        list_push(&q->waiting, entry);
    }
    q->then.replay_at = q->replay_at;
    q->then.replay_rounds = q->replay_rounds;
    q->then.replay_debt = q->replay_debt;
}

bool hzp_sample_queue_group_ended(struct hzp_sample_queue *q)
{
    hzp_lock_take(&q->lock);
    bool ended = q->kept.count && !q->waiting.count && !q->next.count && !q->drawn.count;
    hzp_lock_release(&q->lock);
    return ended;
}

struct hzp_sample_group hzp_sample_queue_group(struct hzp_sample_queue *q)
{
    struct hzp_sample_group group = {0};
    hzp_lock_take(&q->lock);
    const struct list *lists[] = {&q->waiting, &q->next, &q->drawn, &q->kept};
    for (int i = 0; i < HZP_COUNT(lists); i++)
        for (int32_t j = 0; j < lists[i]->count; j++) {
            int64_t number = lists[i]->entry[lists[i]->head + j].sample->sequence_number;
            if (!group.samples++ || number < group.first)
                group.first = number;
            group.last = HZP_MAX(group.last, number);
        }
    hzp_lock_release(&q->lock);
    return group;
}

/* Nothing of the group is drawn, or left to draw: what there is of it is in `kept`. */
static void collect(struct hzp_sample_queue *q)
{
    struct list *lists[] = {&q->waiting, &q->next, &q->drawn};
    for (int i = 0; i < HZP_COUNT(lists); i++)
        while (lists[i]->count)
            list_push(&q->kept, list_pop(lists[i]));
    q->redraw = false;
}

/* As if it had never been drawn: work, passes, and the draws of replay samples. */
static void restore(struct hzp_sample_queue *q)
{
    for (int32_t i = 0; i < q->kept.count; i++) {
        struct entry *entry = &q->kept.entry[q->kept.head + i];
        q->work += (double)(entry->left_then - entry->left) * entry->sample->count;
        entry->left = entry->left_then;
        entry->learned = entry->learned_then;
    }
    if (q->replay_rounds != q->then.replay_rounds && q->then.replay_rounds)
        hzp_sample_queue_shuffle_replay(q, q->then.replay_rounds - 1);
    q->replay_rounds = q->then.replay_rounds;
    q->replay_at = q->then.replay_at;
    q->replay_debt = q->then.replay_debt;
}

static int by_number(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int64_t i = x->sample->sequence_number, j = y->sample->sequence_number;
    return i < j ? -1 : i > j;
}

static void sort(struct list *list)
{
    qsort(list->entry + list->head, (size_t)list->count, sizeof(*list->entry), by_number);
}

static int64_t let_leave(struct hzp_sample_queue *q, enum result result)
{
    sort(&q->kept);
    while (q->kept.count) {
        struct entry entry = list_pop(&q->kept);
        if (result == LEARNED)
            q->touched_through = HZP_MAX(q->touched_through, entry.sample->sequence_number);
        else
            q->work -= (double)entry.left * entry.sample->count;
        hzp_sample_queue_leave(q, &entry, result);
    }
    hzp_sample_queue_advance(q);
    return q->learned_through;
}

int64_t hzp_sample_queue_accept(struct hzp_sample_queue *q)
{
    hzp_assert_engine_thread();
    hzp_lock_take(&q->lock);
    int64_t r = let_leave(q, LEARNED);
    hzp_lock_release(&q->lock);
    return r;
}

int64_t hzp_sample_queue_reject_group(struct hzp_sample_queue *q)
{
    hzp_assert_engine_thread();
    hzp_lock_take(&q->lock);
    collect(q);
    restore(q);
    int64_t r = let_leave(q, REJECTED);
    hzp_lock_release(&q->lock);
    return r;
}

void hzp_sample_queue_withdraw(struct hzp_sample_queue *q)
{
    hzp_assert_engine_thread();
    hzp_lock_take(&q->lock);
    collect(q);
    restore(q);
    while (q->later.count) /* they are behind the group's */
        list_push(&q->kept, list_pop(&q->later));
    struct list empty = q->later;
    q->later = q->kept;
    q->kept = empty;
    sort(&q->later);
    hzp_lock_release(&q->lock);
}
