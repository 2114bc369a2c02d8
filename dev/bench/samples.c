/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/samples.h"
#include "api/learn/state.h"

#include "base/thread.h"
#include "tests/train/samples.h"

#include <pthread.h>
#include <stdlib.h>

enum { REPORTS = 64 };

struct hzp_bench_reports {
    struct hzp_lock lock;
    pthread_cond_t changed;
    /* under lock: the newest reports, written by the engine thread */
    struct hzp_update_report report[REPORTS];
    uint64_t count;
};

struct hzp_bench_reports *hzp_bench_reports_create(void)
{
    struct hzp_bench_reports *box = hzp_xcalloc(1, sizeof(*box));
    hzp_lock_init(&box->lock, HZP_LOCK_BENCH);
    pthread_cond_init(&box->changed, NULL);
    return box;
}

void hzp_bench_reports_destroy(struct hzp_bench_reports *box)
{
    if (!box)
        return;
    pthread_cond_destroy(&box->changed);
    hzp_lock_fini(&box->lock);
    free(box);
}

void hzp_bench_on_update(void *ctx, const struct hzp_update_report *report)
{
    struct hzp_bench_reports *box = ctx;
    hzp_lock_take(&box->lock);
    box->report[box->count++ % REPORTS] = *report;
    pthread_cond_signal(&box->changed);
    hzp_lock_release(&box->lock);
}

void hzp_bench_samples_open(struct hzp_bench *b, struct hzp_bench_samples *ret)
{
    ret->bench = b;
    ret->seed = 777;
    hzp_lock_take(&b->reports->lock);
    ret->seen = b->reports->count;
    hzp_lock_release(&b->reports->lock);
}

void hzp_bench_samples_close(struct hzp_bench_samples *feed)
{
    feed->bench = NULL;
}

void hzp_bench_samples_push(struct hzp_bench_samples *feed, int32_t count, int32_t rows)
{
    struct hzp_engine *engine = feed->bench->engine;
    uint32_t vocab = (uint32_t)engine->parts.config.vocab;
    int32_t tokens = rows + 1;
    int32_t *token = hzp_xmalloc((size_t)tokens * sizeof(*token));
    uint8_t *learn = hzp_xmalloc((size_t)tokens);
    for (int32_t i = 0; i < count; i++) {
        if (hzp_sample_queue_reserve(hzp_state_queue(engine->state), 1, tokens) < 0)
            break;
        for (int32_t k = 0; k < tokens; k++) {
            feed->seed = feed->seed * 1664525u + 1013904223u;
            token[k] = (int32_t)((feed->seed >> 8) % vocab);
            learn[k] = 1;
        }
        struct hzp_sample *sample = hzp_sample_create(token, learn, tokens);
        if (!sample) {
            hzp_sample_queue_unreserve(hzp_state_queue(engine->state), 1, tokens);
            break;
        }
        hzp_sample_queue_push(hzp_state_queue(engine->state), &sample, 1);
    }
    free(token);
    free(learn);
    hzp_loop_poke(engine->parts.loop);
}

int hzp_bench_samples_next(struct hzp_bench_samples *feed, struct hzp_update_report *ret,
                           struct hzp_err_text *reterr)
{
    struct hzp_bench_reports *box = feed->bench->reports;
    hzp_lock_take(&box->lock);
    while (box->count == feed->seen) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&box->changed, &box->lock.mutex, &until);
        if (!hzp_engine_running(feed->bench->engine)) {
            hzp_lock_release(&box->lock);
            return hzp_fail(reterr, HZP_EDEVICE, "bench: the engine has stopped");
        }
    }
    *ret = box->report[feed->seen++ % REPORTS];
    hzp_lock_release(&box->lock);
    return HZP_OK;
}
