/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_queue_earlier.c - samples that have been learned, kept to be learned again
 * beside new ones.
 *
 *     drawn --done--> gone
 *             +-----> a copy: earlier --no room, taught anew, taken back--> freed
 *
 * One that a draw has borrowed waits in `retired` until that draw is over. */
#include "train/table/sample_queue_state.h"

#include "base/hash.h"

uint64_t hzp_sample_queue_prompt(const struct hzp_sample *sample)
{
    int32_t n = 0;
    while (n < sample->count && !sample->learn[n])
        n++;
    return n > 1 ? hzp_fnv(HZP_FNV, sample->token, (size_t)n * sizeof(*sample->token)) : 0;
}

static bool is_kept(const struct hzp_sample_queue *q, const struct hzp_sample *sample)
{
    for (int32_t i = 0; i < q->failed.count; i++) /* few, or training is of no use */
        if (q->failed.number[i] == sample->sequence_number)
            return false;
    if (q->config.rehearse_ratio <= 0 || sample->sequence_number <= 0 ||
        (sample->how && !sample->softs) || sample->count > HZP_EARLIER_TOKENS ||
        hzp_sample_first(sample) < sample->count)
        return false;
    for (int32_t i = 0; sample->weight && i < sample->count; i++)
        if (sample->learn[i] && sample->weight[i] < 0)
            return false;
    return true;
}

static bool borrows(const struct replay_draw *draw, const struct hzp_sample *sample)
{
    for (int32_t i = 0; i < draw->rehearsals; i++)
        if (draw->rehearsal[i] == sample)
            return true;
    return false;
}

static bool is_borrowed(const struct hzp_sample_queue *q, const struct hzp_sample *sample)
{
    return borrows(&q->replay_drawn, sample) || borrows(&q->replay_ahead, sample);
}

static void release(struct hzp_sample_queue *q, struct hzp_sample *sample)
{
    if (is_borrowed(q, sample))
        list_push(&q->retired, (struct entry){.sample = sample});
    else
        hzp_sample_destroy(sample);
}

static void take_out(struct hzp_sample_queue *q, int32_t at)
{
    struct hzp_sample *sample = q->earlier[at].sample;
    q->earliers--;
    memmove(q->earlier + at, q->earlier + at + 1, (size_t)(q->earliers - at) * sizeof(*q->earlier));
    release(q, sample);
}

void hzp_sample_queue_keep(struct hzp_sample_queue *q, struct hzp_sample *sample)
{
    bool kept = is_kept(q, sample);
    uint64_t prompt = kept ? hzp_sample_queue_prompt(sample) : 0;
    int64_t number = sample->sequence_number;
    for (int32_t i = q->earliers - 1; i >= 0 && prompt && kept; i--)
        if (q->earlier[i].prompt == prompt && -q->earlier[i].sample->sequence_number >= number)
            kept = false;
        else if (q->earlier[i].prompt == prompt)
            take_out(q, i);
    int32_t at = q->earliers;
    while (at > 0 && -q->earlier[at - 1].sample->sequence_number > number)
        at--;
    if (at > 0 && -q->earlier[at - 1].sample->sequence_number == number)
        kept = false;
    if (!at && q->earliers == HZP_EARLIER_MAX)
        kept = false; /* older than all of them */
    if (!kept) {
        hzp_sample_destroy(sample);
        return;
    }
    if (q->earliers == HZP_EARLIER_MAX) {
        take_out(q, 0);
        at--;
    }
    memmove(q->earlier + at + 1, q->earlier + at, (size_t)(q->earliers - at) * sizeof(*q->earlier));
    sample->sequence_number = -number; /* an update that draws it again is none of its passes */
    q->earlier[at] = (struct earlier){sample, prompt};
    q->earliers++;
}

void hzp_sample_queue_keep_copy(struct hzp_sample_queue *q, const struct hzp_sample *sample)
{
    if (!is_kept(q, sample))
        return;
    struct hzp_sample *copy = hzp_sample_create_soft(sample->token, sample->learn, sample->weight,
                                                     sample->how, sample->soft, sample->count);
    if (!copy)
        return; /* no memory: it is not learned again */
    copy->sequence_number = sample->sequence_number;
    hzp_sample_queue_keep(q, copy);
}

static void unborrow(struct replay_draw *draw, const struct hzp_sample *sample)
{
    int32_t n = HZP_MIN(draw->rehearsals, 0); /* -1 stays */
    for (int32_t i = 0; i < draw->rehearsals; i++)
        if (draw->rehearsal[i] != sample)
            draw->rehearsal[n++] = draw->rehearsal[i];
    draw->rehearsals = n;
}

void hzp_sample_queue_drop_earlier(struct hzp_sample_queue *q, int64_t first, int64_t last)
{
    for (int32_t i = q->earliers - 1; i >= 0; i--) {
        struct hzp_sample *sample = q->earlier[i].sample;
        if (-sample->sequence_number < first || -sample->sequence_number > last)
            continue;
        unborrow(&q->replay_drawn, sample);
        unborrow(&q->replay_ahead, sample);
        take_out(q, i);
    }
}

void hzp_sample_queue_add_earlier(struct hzp_sample_queue *q, struct hzp_sample *sample)
{
    HZP_LOCKED(&q->lock);
    hzp_sample_queue_keep(q, sample);
}

int32_t hzp_sample_queue_earlier(struct hzp_sample_queue *q)
{
    HZP_LOCKED(&q->lock);
    return q->earliers;
}

static bool is_taught(const struct list *list, uint64_t prompt)
{
    for (int32_t i = 0; i < list->count && prompt; i++)
        if (list->entry[list->head + i].prompt == prompt)
            return true;
    return false;
}

/* The earlier samples as a circle of tokens: each pass of a sample begins where the one before it
 * has ended, and the next sample behind it, so that all take their turn. */
void hzp_sample_queue_rehearse(struct hzp_sample_queue *q, const struct list *to, int32_t room,
                               struct replay_draw *ret)
{
    double budget = 0, circle = 0, spent = 0;
    int32_t at = 0;
    ret->rehearsals = 0;
    HZP_LOCKED(&q->lock);
    for (int32_t n = q->retired.count; n > 0; n--)
        release(q, list_pop(&q->retired).sample);
    room = HZP_MIN(room, HZP_REHEARSED_MAX);
    for (int32_t i = 0; i < to->count; i++)
        budget += q->config.rehearse_ratio * to->entry[to->head + i].sample->count;
    for (int32_t i = 0; i < q->earliers; i++)
        circle += q->earlier[i].sample->count;
    if (!to->count || circle <= 0)
        return;
    const struct entry *first = &to->entry[to->head];
    double before = (double)(first->sample->sequence_number % (1 << 30)) * q->config.passes;
    double skip = fmod((before + q->config.passes - first->left) * budget, circle);
    while ((skip -= q->earlier[at].sample->count) >= 0 && at < q->earliers - 1)
        at++;
    for (int32_t i = 0; i < q->earliers && spent < budget && ret->rehearsals < room; i++) {
        const struct earlier *e = &q->earlier[(at + i) % q->earliers];
        if (e->sample->count > HZP_MAX(2 * budget, 64) || is_taught(to, e->prompt))
            continue;
        spent += e->sample->count;
        ret->rehearsal[ret->rehearsals++] = e->sample;
    }
}
