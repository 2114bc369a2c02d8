/* SPDX-License-Identifier: Apache-2.0 */
/* Samples are learned in rounds: in a round each sample is drawn once, in the order of pushing
 * (shuffle: in a new random order).  A sample pushed during a round is added to its end (shuffle:
 * to the next round).  Three lists hold them:
 *
 *     push -> waiting --draw--> drawn --done--> next round, or freed
 *                ^                |                |
 *                |                +--undo: drawn again as it is
 *                +---- the round is over ----------+
 *
 * A drawn sample is in no other list, so an update cannot contain it twice.  What is drawn for the
 * update after the drawn one is in a list of its own, `ahead`, which becomes `drawn` when the drawn
 * one is done. */
#include "train/table/sample_queue_state.h"

#include "device/philox.h"

static uint64_t mix(uint64_t x)
{
    return hzp_mix64(x + 0x9e3779b97f4a7c15u);
}

/* The i-th random number of order `round`; a function of the seed and these two only.  The
 * multiplication maps it to 0 .. bound-1; its bias is negligible for any queue that fits in
 * memory. */
static int32_t random_below(uint64_t seed, uint64_t round, int32_t i, int32_t bound)
{
    uint64_t word = mix(mix(mix(seed) + round) + (uint64_t)i);
    return (int32_t)((word >> 32) * (uint64_t)bound >> 32);
}

static void list_free(struct list *list)
{
    for (int32_t i = 0; i < list->count; i++)
        hzp_sample_destroy(list->entry[list->head + i].sample);
    free(list->entry);
}

/* --- Creation and destruction ----------------------------------------------------------------- */

int hzp_sample_queue_create(const struct hzp_sample_queue_config *config,
                            struct hzp_sample_queue **ret)
{
    if (config->samples_max < 1 || config->tokens_max < 1 || config->passes < 1 ||
        !(config->replay_ratio >= 0 && config->replay_ratio <= 1000) ||
        !(config->rehearse_ratio >= 0 && config->rehearse_ratio <= 1000))
        return HZP_EINVAL;
    struct hzp_sample_queue *q = hzp_xcalloc(1, sizeof(*q));
    q->config = *config;
    q->learned_through = config->learned_through > 0 ? config->learned_through : -1;
    q->pushed_through = q->learned_through;
    q->touched_through = HZP_MAX(q->learned_through, 0);
    hzp_lock_init(&q->lock, HZP_LOCK_QUEUE);
    *ret = q;
    return HZP_OK;
}

static void free_gone(struct hzp_sample_queue *q)
{
    for (int32_t i = 0; i < q->gones; i++)
        hzp_sample_destroy(q->gone[i].sample);
    q->gones = 0;
}

void hzp_sample_queue_destroy(struct hzp_sample_queue *q)
{
    if (!q)
        return;
    free_gone(q);
    free(q->gone);
    hzp_sample_queue_drop_earlier(q, 1, INT64_MAX);
    list_free(&q->retired);
    free(q->failed.number);
    free(q->rejected.number);
    for (int i = 0; i < HZP_COUNT(q->list); i++)
        list_free(&q->list[i]);
    for (int32_t i = 0; i < q->replays; i++)
        hzp_sample_destroy(q->replay[i].sample);
    free(q->replay);
    free(q->replay_order);
    free(q->replay_drawn.index);
    free(q->replay_ahead.index);
    hzp_lock_fini(&q->lock);
    free(q);
}

/* --- Space and hand-over ---------------------------------------------------------------------- */

int hzp_sample_queue_reserve(struct hzp_sample_queue *q, int32_t samples, int64_t tokens)
{
    if (samples < 0 || tokens < 0 || samples > q->config.samples_max ||
        tokens > q->config.tokens_max)
        return HZP_EINVAL;
    HZP_LOCKED(&q->lock);
    /* restore() may have exceeded the bounds, so compare with the remaining room */
    if (samples > q->config.samples_max - q->samples || tokens > q->config.tokens_max - q->tokens)
        return HZP_EBUSY;
    q->samples += samples;
    q->tokens += tokens;
    return HZP_OK;
}

void hzp_sample_queue_unreserve(struct hzp_sample_queue *q, int32_t samples, int64_t tokens)
{
    HZP_LOCKED(&q->lock);
    q->samples -= samples;
    q->tokens -= tokens;
    HZP_ASSERT(q->samples >= 0 && q->tokens >= 0);
}

static void push_locked(struct hzp_sample_queue *q, struct hzp_sample *sample)
{
    HZP_ASSERT(sample->sequence_number <= 0 || sample->sequence_number > q->pushed_through);
    if (sample->sequence_number > 0)
        q->pushed_through = sample->sequence_number;
    struct entry entry = {
        .sample = sample, .left = q->config.passes - sample->passes, .learned = sample->learned};
    entry.left_then = entry.left;
    entry.learned_then = entry.learned;
    if (q->config.rehearse_ratio > 0)
        entry.prompt = hzp_sample_queue_prompt(sample);
    list_push(q->config.by_lesson                   ? &q->later
              : q->config.shuffle || sample->passes ? &q->next
                                                    : &q->waiting,
              entry);
    q->work += (double)entry.left * sample->count;
}

/* The same for samples of the log, whose space is not reserved; those that have had all their
 * passes are freed.  Returns how many are left. */
static int32_t push_again(struct hzp_sample_queue *q, struct hzp_sample **sample, int32_t count)
{
    int32_t left = 0;
    for (int32_t i = 0; i < count; i++) {
        if (sample[i]->passes >= q->config.passes) {
            q->pushed_through = HZP_MAX(q->pushed_through, sample[i]->sequence_number);
            if (sample[i]->learned)
                hzp_sample_queue_keep(q, sample[i]);
            else
                hzp_sample_destroy(sample[i]);
            continue;
        }
        q->samples++;
        q->tokens += sample[i]->count;
        push_locked(q, sample[i]);
        left++;
    }
    return left;
}

void hzp_sample_queue_push(struct hzp_sample_queue *q, struct hzp_sample **sample, int32_t count)
{
    HZP_LOCKED(&q->lock);
    for (int32_t i = 0; i < count; i++)
        push_locked(q, sample[i]);
}

int32_t hzp_sample_queue_restore(struct hzp_sample_queue *q, struct hzp_sample **sample,
                                 int32_t count)
{
    HZP_LOCKED(&q->lock);
    return push_again(q, sample, count);
}

void hzp_sample_queue_set_replay(struct hzp_sample_queue *q, struct hzp_sample **sample,
                                 int32_t count)
{
    HZP_ASSERT(!q->replay);
    if (count <= 0)
        return;
    q->replays = count;
    q->replay = hzp_xcalloc((size_t)count, sizeof(*q->replay));
    q->replay_order = hzp_xcalloc((size_t)count, sizeof(*q->replay_order));
    q->replay_drawn.index = hzp_xcalloc((size_t)count, sizeof(*q->replay_drawn.index));
    q->replay_ahead.index = hzp_xcalloc((size_t)count, sizeof(*q->replay_ahead.index));
    for (int32_t i = 0; i < count; i++)
        q->replay[i] = (struct entry){.sample = sample[i]};
    q->replay_at = count; /* forces the first draw to shuffle a new order */
}

struct hzp_sample *hzp_sample_queue_replay(const struct hzp_sample_queue *q, int32_t index)
{
    return index < q->replays ? q->replay[index].sample : NULL;
}

/* --- Drawing ---------------------------------------------------------------------------------- */

/* Sets the time of entries that came since the last call, and returns that of the oldest. */
static uint64_t stamp(struct list *list, uint64_t now_ns)
{
    struct entry *first = list->entry + list->head;
    for (int32_t i = list->count - 1; i >= 0 && !first[i].since_ns; i--)
        first[i].since_ns = now_ns;
    return list->count && first->since_ns ? first->since_ns : now_ns;
}

uint64_t hzp_sample_queue_age(struct hzp_sample_queue *q, uint64_t now_ns)
{
    hzp_assert_engine_thread();
    now_ns = HZP_MAX(now_ns, 1);
    HZP_LOCKED(&q->lock);
    uint64_t oldest = now_ns;
    for (int i = 0; i < HZP_COUNT(q->list); i++) {
        uint64_t since = stamp(&q->list[i], now_ns);
        oldest = HZP_MIN(oldest, since);
    }
    return now_ns > oldest ? now_ns - oldest : 0;
}

bool hzp_sample_queue_ready(struct hzp_sample_queue *q)
{
    HZP_LOCKED(&q->lock);
    return q->redraw || q->ahead_undone || q->waiting.count || q->next.count || q->later.count;
}

static void begin_round(struct hzp_sample_queue *q)
{
    struct list empty = q->waiting;
    q->waiting = q->next;
    q->next = empty;
    if (!q->config.shuffle)
        return;
    struct entry *entry = q->waiting.entry + q->waiting.head;
    uint64_t round = q->rounds++;
    for (int32_t i = q->waiting.count - 1; i > 0; i--) {
        int32_t j = random_below(q->config.seed, 2 * round, i, i + 1);
        struct entry swap = entry[i];
        entry[i] = entry[j];
        entry[j] = swap;
    }
}

static int32_t draw_new(struct hzp_sample_queue *q, int64_t tokens_max, struct list *to,
                        const struct hzp_sample **ret, int32_t max)
{
    int32_t n = 0;
    int64_t tokens = 0;
    hzp_lock_take(&q->lock);
    if (q->config.by_lesson && !q->waiting.count && !q->next.count)
        hzp_sample_queue_begin_group(q, tokens_max);
    while (n < max) {
        if (!q->waiting.count && q->next.count && !(n && q->config.shuffle))
            begin_round(q); /* an epoch's last update stays short; a stream's continues with the
                             * next round */
        if (!q->waiting.count)
            break;
        const struct hzp_sample *sample = q->waiting.entry[q->waiting.head].sample;
        if (n && tokens + sample->count > tokens_max)
            break;
        tokens += sample->count;
        list_push(to, list_pop(&q->waiting));
        ret[n++] = sample;
    }
    hzp_lock_release(&q->lock);
    q->replay_debt += q->config.replay_ratio * (double)tokens;
    return n;
}

void hzp_sample_queue_shuffle_replay(struct hzp_sample_queue *q, uint64_t round)
{
    for (int32_t i = 0; i < q->replays; i++) {
        int32_t j = random_below(q->config.seed, 2 * round + 1, i, i + 1);
        q->replay_order[i] = q->replay_order[j];
        q->replay_order[j] = i;
    }
}

/* Draws replay samples in a random order, each once before any is repeated. */
static void draw_replay(struct hzp_sample_queue *q, struct replay_draw *ret, int32_t room)
{
    int32_t draws_max = HZP_MIN(room, q->replays);
    ret->count = 0;
    while (q->replay_debt > 0 && ret->count < draws_max) {
        if (q->replay_at == q->replays) {
            if (ret->count)
                break; /* a new order could repeat a sample of this update */
            hzp_sample_queue_shuffle_replay(q, q->replay_rounds++);
            q->replay_at = 0;
        }
        int32_t index = q->replay_order[q->replay_at++];
        ret->index[ret->count++] = index;
        q->replay_debt -= q->replay[index].sample->count;
    }
    if (ret->count == draws_max && q->replay_debt > 0)
        q->replay_debt = 0; /* tokens that could not be drawn are not carried over */
}

/* The samples of `from` again, at most max. */
static int32_t draw_again(const struct list *from, const struct hzp_sample **ret, int32_t max)
{
    int32_t n = HZP_MIN(max, from->count);
    for (int32_t i = 0; i < n; i++)
        ret[i] = from->entry[from->head + i].sample;
    return n;
}

/* Draws into the list, or what it holds once more, with replay samples.  Clears *again. */
static int32_t draw_into(struct hzp_sample_queue *q, struct list *to, struct replay_draw *replay,
                         bool *again, int64_t tokens_max, const struct hzp_sample **ret,
                         int32_t max)
{
    int32_t n;
    hzp_lock_take(&q->lock);
    bool redraw = *again;
    *again = false;
    hzp_lock_release(&q->lock);
    if (redraw) {
        n = draw_again(to, ret, max);
    } else {
        HZP_ASSERT(!to->count);
        n = draw_new(q, tokens_max, to, ret, max);
        replay->rehearsals = -1;
    }
    if (replay->rehearsals < 0)
        hzp_sample_queue_rehearse(q, to, max - n, replay);
    if (!redraw && q->replays && n)
        draw_replay(q, replay, max - n - replay->rehearsals);
    for (int32_t i = 0; n && i < replay->rehearsals && n < max; i++)
        ret[n++] = replay->rehearsal[i];
    for (int32_t i = 0; q->replays && n && i < replay->count && n < max; i++)
        ret[n++] = q->replay[replay->index[i]].sample;
    return n;
}

int32_t hzp_sample_queue_draw(struct hzp_sample_queue *q, int64_t tokens_max,
                              const struct hzp_sample **ret, int32_t max)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(max > 0);
    free_gone(q);
    return draw_into(q, &q->drawn, &q->replay_drawn, &q->redraw, tokens_max, ret, max);
}

/* Whether a draw takes the same samples now as when the drawn ones are done: not if it would go
 * beyond the round, to whose end new samples may be added until then. */
static bool draw_is_known(struct hzp_sample_queue *q, int64_t tokens_max)
{
    int64_t tokens = 0;
    HZP_LOCKED(&q->lock);
    for (int32_t i = 0; i < q->waiting.count; i++) {
        tokens += q->waiting.entry[q->waiting.head + i].sample->count;
        if (i && tokens > tokens_max)
            return true;
    }
    return false;
}

int32_t hzp_sample_queue_draw_ahead(struct hzp_sample_queue *q, int64_t tokens_max,
                                    const struct hzp_sample **ret, int32_t max)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(max > 0 && q->drawn.count && !q->redraw);
    if (!q->ahead_undone && !draw_is_known(q, tokens_max))
        return 0;
    free_gone(q);
    hzp_lock_take(&q->lock);
    for (int32_t i = 0; i < q->drawn.count && !q->ahead_undone; i++) /* as done() will keep them */
        if (q->drawn.entry[q->drawn.head + i].left == 1)
            hzp_sample_queue_keep_copy(q, q->drawn.entry[q->drawn.head + i].sample);
    hzp_lock_release(&q->lock);
    return draw_into(q, &q->ahead, &q->replay_ahead, &q->ahead_undone, tokens_max, ret, max);
}

/* Samples are pushed in the order of their numbers, so every sample below the smallest unlearned
 * number is done. */
static int64_t find_learned_through(const struct hzp_sample_queue *q)
{
    int64_t through = q->pushed_through;
    const struct list *lists[] = {&q->waiting, &q->next, &q->ahead, &q->later};
    for (int i = 0; i < HZP_COUNT(lists); i++)
        for (int32_t j = 0; j < lists[i]->count; j++) {
            int64_t number = lists[i]->entry[lists[i]->head + j].sample->sequence_number;
            if (number > 0 && number - 1 < through)
                through = number - 1;
        }
    return through;
}

int32_t hzp_sample_queue_passes(struct hzp_sample_queue *q, struct hzp_passes **ret)
{
    hzp_lock_take(&q->lock);
    int64_t after = HZP_MAX(q->learned_through, 0), count = HZP_MAX(q->pushed_through - after, 0);
    /* [count] each sample; what is in no list has left, with all its passes */
    struct hzp_passes *each = hzp_xcalloc((size_t)count + 1, sizeof(*each));
    for (int64_t i = 0; i < count; i++)
        each[i] = (struct hzp_passes){after + i + 1, after + i + 1, q->config.passes, true};
    for (int i = 0; i < HZP_COUNT(q->list); i++)
        for (int32_t j = 0; j < q->list[i].count; j++) {
            const struct entry *entry = &q->list[i].entry[q->list[i].head + j];
            int64_t at = entry->sample->sequence_number - after - 1;
            if (entry->sample->sequence_number <= 0 || at < 0)
                continue;
            /* no published version has a part of a group */
            bool then = q->config.by_lesson;
            each[at].done = q->config.passes - (then ? entry->left_then : entry->left);
            each[at].learned = then ? entry->learned_then : entry->learned;
        }
    hzp_lock_release(&q->lock);
    int32_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (n && each[n - 1].last + 1 == each[i].first && each[n - 1].done == each[i].done &&
            each[n - 1].learned == each[i].learned)
            each[n - 1].last++;
        else if (each[i].done)
            each[n++] = each[i];
    *ret = each;
    return n;
}

static void note(struct numbers *list, int64_t number)
{
    list->number = hzp_xgrow(list->number, &list->room, list->count + 1, sizeof(*list->number));
    list->number[list->count++] = number;
}

/* The lock is held. */
static void note_failed(struct hzp_sample_queue *q, int64_t number)
{
    for (int32_t i = 0; i < q->failed.count; i++) /* few, or training is of no use */
        if (q->failed.number[i] == number)
            return;
    note(&q->failed, number);
}

void hzp_sample_queue_leave(struct hzp_sample_queue *q, const struct entry *entry,
                            enum result result)
{
    int64_t number = entry->sample->sequence_number;
    q->samples--;
    q->tokens -= entry->sample->count;
    if (number > 0 && result == REJECTED)
        note(&q->rejected, number);
    else if (number > 0 && !entry->learned)
        note_failed(q, number);
    q->gone = hzp_xgrow(q->gone, &q->gones_room, q->gones + 1, sizeof(*q->gone));
    if (entry->learned && result != REJECTED)
        hzp_sample_queue_keep_copy(q, entry->sample);
    else
        hzp_sample_queue_drop_earlier(q, number, number);
    q->gone[q->gones++] = *entry;
}

/* What was drawn ahead is the drawn now.  The lock is held. */
static void promote(struct hzp_sample_queue *q)
{
    struct list empty = q->drawn;
    struct replay_draw replay = q->replay_drawn;
    q->drawn = q->ahead;
    q->ahead = empty;
    q->replay_drawn = q->replay_ahead;
    q->replay_ahead = replay;
    q->redraw = q->ahead_undone;
    q->ahead_undone = false;
}

void hzp_sample_queue_advance(struct hzp_sample_queue *q)
{
    int64_t through = find_learned_through(q);
    q->learned_through = HZP_MAX(q->learned_through, through > 0 ? through : -1);
}

static int64_t end_pass(struct hzp_sample_queue *q, enum result result)
{
    hzp_assert_engine_thread();
    bool left = false;
    HZP_LOCKED(&q->lock);
    while (q->drawn.count) {
        struct entry entry = list_pop(&q->drawn);
        entry.learned |= result == LEARNED;
        if (!q->config.by_lesson)
            q->touched_through = HZP_MAX(q->touched_through, entry.sample->sequence_number);
        q->work -= (double)entry.sample->count * (result == REJECTED ? entry.left : 1);
        if (--entry.left > 0 && result != REJECTED) {
            list_push(&q->next, entry);
            continue;
        }
        if (q->config.by_lesson) {
            list_push(&q->kept, entry);
            continue;
        }
        left = left || entry.sample->sequence_number > 0;
        hzp_sample_queue_leave(q, &entry, result);
    }
    if (left)
        hzp_sample_queue_advance(q);
    if (result != LEARNED) /* what was foreseen to be learned may not be */
        q->replay_ahead.rehearsals = -1;
    promote(q);
    return q->learned_through;
}

int64_t hzp_sample_queue_foresee(struct hzp_sample_queue *q)
{
    hzp_assert_engine_thread();
    HZP_LOCKED(&q->lock);
    bool left = q->kept.count > 0;
    int64_t through = find_learned_through(q);
    for (int32_t i = 0; i < q->drawn.count; i++) {
        const struct entry *entry = &q->drawn.entry[q->drawn.head + i];
        int64_t number = entry->sample->sequence_number;
        if (number > 0 && entry->left > 1)
            through = HZP_MIN(through, number - 1);
        left = left || (number > 0 && entry->left <= 1);
    }
    return left ? HZP_MAX(q->learned_through, through > 0 ? through : -1) : q->learned_through;
}

void hzp_sample_queue_fail(struct hzp_sample_queue *q, int64_t number)
{
    HZP_LOCKED(&q->lock);
    note_failed(q, number);
}

int64_t hzp_sample_queue_done(struct hzp_sample_queue *q)
{
    return end_pass(q, LEARNED);
}

int64_t hzp_sample_queue_give_up(struct hzp_sample_queue *q)
{
    return end_pass(q, GIVEN_UP);
}

int64_t hzp_sample_queue_reject(struct hzp_sample_queue *q)
{
    return end_pass(q, REJECTED);
}

static int32_t read_numbers(struct hzp_sample_queue *q, const struct numbers *list, int32_t from,
                            int64_t *ret, int32_t max)
{
    HZP_LOCKED(&q->lock);
    int32_t n = HZP_MIN(list->count - HZP_MIN(from, list->count), max);
    for (int32_t i = 0; i < n; i++)
        ret[i] = list->number[from + i];
    return n;
}

int32_t hzp_sample_queue_failed(struct hzp_sample_queue *q, int32_t from, int64_t *ret, int32_t max)
{
    return read_numbers(q, &q->failed, from, ret, max);
}

int32_t hzp_sample_queue_rejected(struct hzp_sample_queue *q, int32_t from, int64_t *ret,
                                  int32_t max)
{
    return read_numbers(q, &q->rejected, from, ret, max);
}

/* --- While nothing is drawn ------------------------------------------------------------------- */

/* Removes entries whose numbers are in [first, last] and frees their samples; returns how many. */
static int32_t drop(struct hzp_sample_queue *q, struct list *list, int64_t first, int64_t last)
{
    int32_t kept = 0;
    struct entry *entry = list->entry + list->head;
    for (int32_t i = 0; i < list->count; i++) {
        int64_t number = entry[i].sample->sequence_number;
        if (number < first || number > last) {
            entry[kept++] = entry[i];
            continue;
        }
        q->samples--;
        q->tokens -= entry[i].sample->count;
        q->work -= (double)entry[i].left * entry[i].sample->count;
        hzp_sample_destroy(entry[i].sample);
    }
    int32_t dropped = list->count - kept;
    list->count = kept;
    return dropped;
}

static int32_t drop_all(struct hzp_sample_queue *q, int64_t first, int64_t last)
{
    int32_t dropped = 0;
    for (int i = 0; i < HZP_COUNT(q->list); i++)
        dropped += drop(q, &q->list[i], first, last);
    hzp_sample_queue_drop_earlier(q, first, last);
    q->redraw = q->redraw && q->drawn.count;
    q->ahead_undone = q->ahead_undone && q->ahead.count;
    return dropped;
}

void hzp_sample_queue_replace(struct hzp_sample_queue *q, struct hzp_sample **sample, int32_t count,
                              int64_t learned_through, int64_t pushed_through)
{
    HZP_LOCKED(&q->lock);
    drop_all(q, 1, INT64_MAX);
    q->learned_through = learned_through > 0 ? learned_through : -1;
    q->pushed_through = q->learned_through;
    q->touched_through = HZP_MAX(learned_through, 0);
    push_again(q, sample, count);
    q->pushed_through = HZP_MAX(q->pushed_through, pushed_through);
}

bool hzp_sample_queue_remove(struct hzp_sample_queue *q, int64_t number)
{
    HZP_LOCKED(&q->lock);
    return drop_all(q, number, number) > 0;
}

void hzp_sample_queue_undo(struct hzp_sample_queue *q)
{
    hzp_assert_engine_thread();
    HZP_LOCKED(&q->lock);
    q->redraw = q->drawn.count > 0;
    q->ahead_undone = q->ahead.count > 0;
}

void hzp_sample_queue_undo_ahead(struct hzp_sample_queue *q)
{
    hzp_assert_engine_thread();
    HZP_LOCKED(&q->lock);
    q->ahead_undone = q->ahead.count > 0;
}

void hzp_sample_queue_read_stats(struct hzp_sample_queue *q, struct hzp_sample_queue_stats *ret)
{
    HZP_LOCKED(&q->lock);
    *ret = (struct hzp_sample_queue_stats){
        .samples = q->samples,
        .samples_max = q->config.samples_max,
        .tokens = q->tokens,
        .tokens_max = q->config.tokens_max,
        .learned_through = q->learned_through,
        .touched_through = q->touched_through,
        .rows = HZP_MAX(q->work, 0.0) * (1 + (q->replays ? q->config.replay_ratio : 0) +
                                         (q->earliers ? q->config.rehearse_ratio : 0)),
    };
}

int64_t hzp_sample_queue_count_draws(const struct hzp_sample_queue_config *config,
                                     const int32_t *tokens, int32_t samples, int64_t tokens_max,
                                     int32_t max)
{
    struct hzp_sample_queue *q = NULL;
    if (hzp_sample_queue_create(config, &q) < 0)
        return HZP_EINVAL;
    const struct hzp_sample **ret = hzp_xcalloc((size_t)max, sizeof(*ret));
    for (int32_t i = 0; i < samples; i++) {
        /* draw() only reads the token count */
        struct hzp_sample *sample = hzp_xcalloc(1, sizeof(*sample));
        sample->count = tokens[i];
        hzp_sample_queue_restore(q, &sample, 1);
    }
    int64_t draws = 0;
    while (hzp_sample_queue_draw(q, tokens_max, ret, max)) {
        hzp_sample_queue_done(q);
        draws++;
    }
    free(ret);
    hzp_sample_queue_destroy(q);
    return draws;
}
