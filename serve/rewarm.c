/* SPDX-License-Identifier: Apache-2.0 */
/* serve/rewarm.c - computes the most used beginnings of prompts again after a swap, so that they
 * are in the prefix cache under the new version before the next request needs them.
 *
 * The lowest of all work: it has rows only in steps formed while no request runs or waits, few of
 * them, so a request that arrives waits for one short step.  For the split these are rows of
 * serving, beside which training has the share that it has beside requests.
 *
 * Thread: engine. */
#include "serve/scheduler_state.h"

static int32_t rows_left(const struct hzp_scheduler *s, const struct hzp_prefix_hot *hot,
                         int32_t count)
{
    int32_t left = s->config.rewarm_rows;
    for (int32_t i = 0; i < count; i++)
        left -= hot[i].count;
    return left;
}

/* What an earlier swap has left to compute, and is in the cache no longer, is kept with half its
 * hits, as those in the cache are. */
void hzp_rewarm_plan(struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    struct hzp_rewarm *w = &s->warm;
    struct hzp_prefix_hot hot[HZP_REWARM_MAX];
    if (!s->config.rewarm_rows)
        return;
    hzp_rewarm_stop(s);
    int32_t count = hzp_prefix_hottest(s->prefix, s->config.rewarm_rows, hot, HZP_REWARM_MAX);
    for (int32_t i = 0; i < w->count; i++) {
        struct hzp_prefix_hot *old = &w->hot[i];
        bool stays = i >= w->next && old->hits > 1 && count < HZP_REWARM_MAX &&
                     old->count <= rows_left(s, hot, count);
        if (!stays) {
            free(old->token);
            continue;
        }
        hot[count] = *old;
        hot[count++].hits /= 2;
    }
    for (int32_t i = 0; i < count; i++)
        w->hot[i] = hot[i];
    w->count = count;
    w->next = 0;
}

static bool due(const struct hzp_scheduler *s)
{
    const struct hzp_rewarm *w = &s->warm;
    return w->next < w->count && !w->leaving && !s->drains && !s->running && !s->wait_count &&
           !s->later_count;
}

/* Opens the sequence of the next prefix, with the pages that the cache has of it already. */
static bool start(struct hzp_scheduler *s)
{
    struct hzp_rewarm *w = &s->warm;
    const struct hzp_prefix_hot *hot = &w->hot[w->next];
    int32_t used;
    if (hzp_request_create(hot->token, hot->count, 0, 0, false, &w->rq) < 0)
        return false;
    w->rq->demands.depth = hot->depth;
    w->seq =
        (struct hzp_seq){.rq = w->rq, .used = true, .page = w->seq.page, .prompt_end = hot->count};
    struct hzp_prefix_tokens tokens = hzp_request_tokens(w->rq);
    tokens.oldest = s->version;
    w->seq.kept = w->seq.taken =
        hzp_prefix_match(s->prefix, &tokens, 0, hot->count / s->page_rows, w->seq.page, &used);
    w->seq.fed = w->seq.kept * s->page_rows;
    hzp_pass_pages(s, &w->seq, w->seq.fed);
    w->seq.prompt_version = s->version;
    return true;
}

static bool computed(const struct hzp_rewarm *w)
{
    return w->seq.fed == w->seq.prompt_end || w->seq.alone;
}

void hzp_rewarm_step(struct hzp_scheduler *s, const struct hzp_step *step, struct hzp_room *room,
                     struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_rewarm *w = &s->warm;
    while (due(s)) {
        if (!w->rq && !start(s)) {
            w->next++;
            continue;
        }
        if (!computed(w))
            break;
        hzp_prefix_count(s->prefix, w->seq.page, w->seq.kept, w->hot[w->next].hits / 2);
        hzp_rewarm_stop(s);
        w->next++;
    }
    if (due(s))
        hzp_fill_warm(s, step, room, offer);
}

void hzp_rewarm_stop(struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    struct hzp_rewarm *w = &s->warm;
    if (!w->rq)
        return;
    hzp_request_destroy(w->rq);
    w->rq = w->seq.rq = NULL;
    w->leaving = true;
    hzp_rewarm_ended(s);
}

void hzp_rewarm_ended(struct hzp_scheduler *s)
{
    struct hzp_rewarm *w = &s->warm;
    if (w->rq)
        hzp_pass_ended(s, &w->seq);
    if (!w->leaving || w->seq.step > s->ended)
        return;
    hzp_release_pages(s, &w->seq);
    w->leaving = false;
}

void hzp_rewarm_free(struct hzp_scheduler *s)
{
    hzp_rewarm_stop(s);
    hzp_rewarm_ended(s); /* also of a sequence that was stopped before */
    for (int32_t i = 0; i < s->warm.count; i++)
        free(s->warm.hot[i].token);
    s->warm.count = 0;
    free(s->warm.seq.page);
}
