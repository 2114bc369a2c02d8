/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/pair_reference.c - computes pairs by the version that serves or another one, and what
 * teachers say, before they are kept. */
#include "api/learn/examples_parts.h"
#include "api/learn/lessons.h"
#include "serve/scheduler.h"

static const uint64_t full_ns = 10000000; /* until a full queue is tried again */
static const uint64_t piece_ns = 200000000;

struct asker {
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
    struct hzp_wake wake;
    struct hzp_version *reference; /* what pairs are compared with; NULL: the version that serves */
    struct hzp_err_text *reterr;
};

static void wake_up(void *ctx, bool more)
{
    (void)more;
    hzp_wake_poke(ctx);
}

/* Has n tokens computed as a prompt by one version, `by` or the one that serves (NULL); again,
 * where a swap came between.  *ret: the
 * request, the caller's, with their log-probabilities, and `tops` likeliest tokens of each. */
static int compute(struct asker *a, const int32_t *token, int32_t n, int32_t tops,
                   struct hzp_version *by, struct hzp_request **ret)
{
    int32_t state = HZP_REQUEST_CHANGED;
    int r = HZP_OK;
    while (r >= 0 && state == HZP_REQUEST_CHANGED) {
        struct hzp_request *rq;
        HZP_TRY(hzp_request_create(token, n, 0, tops, true, &rq));
        rq->own = true;
        rq->priority = HZP_PRIORITY_UNITS;
        rq->demands = (struct hzp_demands){.mode = HZP_ABORT, .max_staleness = -1, .fresh = true};
        rq->reference = by;
        rq->background = by != NULL;
        if (by)
            rq->demands.mode = HZP_CONTINUE;
        rq->wake = wake_up;
        rq->wake_ctx = &a->wake;
        while ((r = hzp_scheduler_submit(a->scheduler, rq, a->reterr)) == HZP_EBUSY)
            hzp_wake_wait(&a->wake, full_ns);
        hzp_loop_poke(a->loop);
        while (r >= 0 && !hzp_request_final(rq))
            hzp_wake_wait(&a->wake, UINT64_MAX);
        if (r >= 0)
            hzp_request_await_release(rq);
        state = atomic_load(&rq->state);
        if (r >= 0 && (state == HZP_REQUEST_FAILED || state == HZP_REQUEST_CANCELED))
            r = hzp_fail(a->reterr, HZP_ECANCELED, "the server stopped, or its device failed");
        if (r >= 0 && state != HZP_REQUEST_CHANGED)
            *ret = rq;
        else
            hzp_request_destroy(rq);
    }
    return HZP_MIN(r, 0);
}

/* Tokens [from, to) of a pair. */
static int refer(struct asker *a, const struct hzp_sample *s, int32_t from, int32_t to)
{
    struct hzp_request *rq;
    HZP_TRY(compute(a, s->token + from, to - from, 0, a->reference, &rq));
    for (int32_t t = from; t < to; t++)
        if (s->learn[t])
            s->how[t].reference = HZP_MIN(rq->prompt_out[t - from].logprob, 0);
    hzp_request_destroy(rq);
    return HZP_OK;
}

/* The likeliest tokens in place of one; false: all others together are likelier than that one. */
static bool soften(const int32_t *token, const float *logprob, int32_t tops, int32_t one,
                   struct hzp_soft *ret)
{
    double rest = 1;
    *ret = (struct hzp_soft){.count = tops};
    for (int32_t k = 0; k < tops; k++) {
        ret->token[k] = token[k];
        ret->p[k] = expf(logprob[k]);
        rest -= (double)ret->p[k];
    }
    ret->rest = (float)HZP_MAX(rest, 0.0);
    return token[0] == one && ret->p[0] >= 0.5f;
}

/* Puts a sample with soft targets in the place of *s, by what the teacher says. */
static int learn_from(struct asker *a, struct hzp_told *told, int32_t vocab, struct hzp_sample **s)
{
    const struct hzp_sample *read = told->sample;
    const int32_t tops = HZP_MIN(HZP_SOFT_MAX, vocab), n = (*s)->count;
    struct hzp_request *rq;
    int32_t begin, end, to;
    HZP_TRY(compute(a, read->token, read->count, tops, NULL, &rq));
    struct hzp_row_loss *how = hzp_xcalloc((size_t)n, sizeof(*how));
    struct hzp_soft *soft = hzp_xcalloc((size_t)n, sizeof(*soft));
    hzp_lesson_answer(read, &begin, &to);
    hzp_lesson_answer(*s, &begin, &end);
    told->tokens = end - begin;
    for (int32_t i = begin; i < end; i++) {
        size_t at = (size_t)(to - (end - i)) * (size_t)tops;
        bool says = soften(rq->prompt_top_token + at, rq->prompt_top_logprob + at, tops,
                           (*s)->token[i], &soft[told->soft]);
        told->soft += says;
        how[i] = (struct hzp_row_loss){.kind = says ? HZP_LOSS_SOFT : HZP_LOSS_XENT,
                                       .inv_temperature = 1};
    }
    struct hzp_sample *made = hzp_sample_create_soft((*s)->token, (*s)->learn, (*s)->weight,
                                                     told->soft ? how : NULL, soft, n);
    free(how);
    free(soft);
    hzp_request_destroy(rq);
    if (!made)
        return hzp_fail(a->reterr, HZP_ENOMEM, "no memory for soft targets");
    hzp_sample_destroy(*s);
    *s = made;
    return HZP_OK;
}

/* Both answers of a pair; of another example nothing. */
static int refer_pair(struct asker *a, const struct hzp_sample *s)
{
    int32_t first = hzp_sample_first(s), from[] = {0, first + 1}, to[] = {first, s->count};
    int r = HZP_OK;
    for (int h = 0; h < 2 && s->how && first < s->count && r >= 0; h++)
        r = refer(a, s, from[h], to[h]);
    return r;
}

int hzp_example_reader_refer(struct hzp_example_reader *reader, struct hzp_scheduler *scheduler,
                             struct hzp_loop *loop, struct hzp_version *reference,
                             struct hzp_err_text *reterr)
{
    struct hzp_parse *p = hzp_example_reader_parse(reader);
    struct asker a = {
        .scheduler = scheduler, .loop = loop, .reference = reference, .reterr = reterr};
    uint64_t until = hzp_now_ns() + piece_ns;
    int32_t pairs = p->paired ? p->count : 0, all = pairs + p->told_count;
    int r = HZP_OK;
    if (reference) /* the next turn takes the same one, even if another has its name by then */
        snprintf(p->reference, sizeof(p->reference), "%" PRIu64, reference->record.id);
    hzp_wake_init(&a.wake);
    while (p->referred < all && r >= 0 && hzp_now_ns() < until) {
        int32_t i = p->referred++;
        struct hzp_told *told = i < pairs ? NULL : &p->told[i - pairs];
        r = told ? learn_from(&a, told, p->ex->vocab, &p->sample[told->sample->sequence_number - 1])
                 : refer_pair(&a, p->sample[i]);
    }
    hzp_wake_fini(&a.wake);
    return r < 0 ? r : p->referred < all;
}
