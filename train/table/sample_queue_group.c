/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_queue_group.c - lessons that are learned, and judged, together.
 *
 *     push -> later --draw--> the rounds of sample_queue.c -> kept --accept, reject--> freed
 *               ^                                               |
 *               +------------------ withdraw -------------------+ */
#include "train/table/sample_queue_state.h"

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

struct hzp_sample_group hzp_sample_queue_group(struct hzp_sample_queue *q)
{
    struct hzp_sample_group group = {0};
    HZP_LOCKED(&q->lock);
    const struct list *lists[] = {&q->waiting, &q->next, &q->drawn, &q->kept};
    for (int i = 0; i < HZP_COUNT(lists); i++)
        for (int32_t j = 0; j < lists[i]->count; j++) {
            int64_t number = lists[i]->entry[lists[i]->head + j].sample->sequence_number;
            if (!group.samples++ || number < group.first)
                group.first = number;
            group.last = HZP_MAX(group.last, number);
        }
    group.ended = group.samples && group.samples == q->kept.count;
    return group;
}

/* As if the group had never been drawn: all of it is in `kept`, with its work and its passes, and
 * replay samples are drawn as before. */
static void restore(struct hzp_sample_queue *q)
{
    struct list *lists[] = {&q->waiting, &q->next, &q->drawn};
    for (int i = 0; i < HZP_COUNT(lists); i++)
        while (lists[i]->count)
            list_push(&q->kept, list_pop(lists[i]));
    q->redraw = false;
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

int64_t hzp_sample_queue_judge(struct hzp_sample_queue *q, enum hzp_group_verdict verdict)
{
    hzp_assert_engine_thread();
    struct list *kept = &q->kept;
    HZP_LOCKED(&q->lock);
    if (verdict != HZP_GROUP_ACCEPTED)
        restore(q);
    if (verdict == HZP_GROUP_WITHDRAWN) { /* those that wait already are behind it */
        while (q->later.count)
            list_push(kept, list_pop(&q->later));
        qsort(kept->entry + kept->head, (size_t)kept->count, sizeof(*kept->entry), by_number);
        struct list empty = q->later;
        q->later = *kept;
        *kept = empty;
    }
    while (kept->count) {
        struct entry entry = list_pop(kept);
        bool accepted = verdict == HZP_GROUP_ACCEPTED;
        if (accepted)
            q->touched_through = HZP_MAX(q->touched_through, entry.sample->sequence_number);
        q->work -= (double)entry.left * entry.sample->count; /* accepted: none */
        hzp_sample_queue_leave(q, &entry, accepted ? LEARNED : REJECTED);
    }
    if (verdict != HZP_GROUP_WITHDRAWN)
        hzp_sample_queue_advance(q);
    return q->learned_through;
}
