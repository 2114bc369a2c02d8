/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/pair_reference.c - computes pairs by the version that serves, before they are kept. */
#include "api/learn/examples.h"
#include "nanobatch/loop.h"
#include "serve/scheduler.h"

static const uint64_t full_ns = 10000000; /* until a full queue is tried again */

static void wake_up(void *ctx, bool more)
{
    (void)more;
    hzp_wake_poke(ctx);
}

/* Tokens [from, to) as a prompt, which one version computes.  0: a swap came between; 1: done. */
static int refer(struct hzp_scheduler *scheduler, struct hzp_loop *loop, struct hzp_wake *wake,
                 const struct hzp_sample *s, int32_t from, int32_t to, struct hzp_err_text *reterr)
{
    struct hzp_request *rq;
    int r;
    HZP_TRY(hzp_request_create(s->token + from, to - from, 0, 0, true, &rq));
    rq->own = true;
    rq->priority = HZP_PRIORITY_UNITS;
    rq->demands = (struct hzp_demands){.mode = HZP_ABORT, .max_staleness = -1, .fresh = true};
    rq->wake = wake_up;
    rq->wake_ctx = wake;
    while ((r = hzp_scheduler_submit(scheduler, rq, reterr)) == HZP_EBUSY)
        hzp_wake_wait(wake, full_ns);
    hzp_loop_poke(loop);
    while (r >= 0 && !hzp_request_final(rq))
        hzp_wake_wait(wake, UINT64_MAX);
    int32_t state = atomic_load(&rq->state);
    if (r >= 0)
        hzp_request_await_release(rq);
    if (r >= 0 && (state == HZP_REQUEST_FAILED || state == HZP_REQUEST_CANCELED))
        r = hzp_fail(reterr, HZP_ECANCELED, "the server stopped, or its device failed");
    bool done = r >= 0 && state != HZP_REQUEST_CHANGED;
    for (int32_t t = from; t < to && done; t++)
        if (s->learn[t])
            s->how[t].reference = HZP_MIN(rq->prompt_out[t - from].logprob, 0);
    hzp_request_destroy(rq);
    return r < 0 ? r : done;
}

int hzp_pairs_refer(struct hzp_scheduler *scheduler, struct hzp_loop *loop,
                    struct hzp_sample *const *sample, int32_t count, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_wake_fini) struct hzp_wake wake;
    int r = HZP_OK;
    hzp_wake_init(&wake);
    for (int32_t i = 0; i < count && r >= 0; i++) {
        const struct hzp_sample *s = sample[i];
        int32_t first = hzp_sample_first(s), from[] = {0, first + 1}, to[] = {first, s->count};
        for (int h = 0; h < 2 && s->how && first < s->count && r >= 0; h += r)
            r = refer(scheduler, loop, &wake, s, from[h], to[h], reterr);
    }
    return HZP_MIN(r, HZP_OK);
}
