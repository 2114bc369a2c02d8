/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/swap.c - what a swap of versions costs those who are being served.
 *
 * Four sequences decode while 0, 1 or 10 versions a second are published, in turns, so that all
 * three see the same machine. Both slots hold the same weights, so a publication is what it is in
 * production, a flip between two steps, without the training that would come before it.
 */
#include "api/bench/bench.h"

#include "base/arena.h"
#include "base/thread.h"
#include "weights/fp8.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hzp_bench_swapper {
    struct hzp_source source;
    struct hzp_device *dev;
    struct hzp_weights *weights;
    /* engine thread */
    bool prepared; /* every slot holds the same weights */
    uint64_t next_ns;
    /* any thread */
    _Atomic uint64_t every_ns; /* 0: no swaps */
    _Atomic uint64_t swaps;
};

static bool no_offer(struct hzp_source *source, struct hzp_step *step)
{
    return false;
}

static void swap_when_due(struct hzp_source *source, const struct hzp_step *step, int status)
{
    struct hzp_bench_swapper *s = HZP_CONTAINER_OF(source, struct hzp_bench_swapper, source);
    uint64_t every = atomic_load(&s->every_ns), now = hzp_now_ns();
    struct hzp_version *draft;
    if (status < 0 || every == 0)
        return;
    s->next_ns = HZP_MIN(s->next_ns, now + every); /* the turn before may have been a slower one */
    if (now < s->next_ns || hzp_weights_begin(s->weights, &draft) < 0)
        return;
    const struct hzp_version *current = hzp_weights_current(s->weights);
    if (!s->prepared) {
        const struct hzp_layout *layout = hzp_weights_layout(s->weights);
        if (hzp_device_copy(s->dev, draft->base, current->base,
                            layout->elements * hzp_dtype_size(hzp_weights_type(s->weights))) < 0 ||
            hzp_version_quantize(s->weights, draft) < 0) {
            hzp_weights_abandon(s->weights, draft);
            return;
        }
        s->prepared = true;
    }
    draft->fp8_made = true; /* the slots take turns: either's are the same as when they were made */
    draft->record.optimizer_step = current->record.optimizer_step;
    draft->record.loss = current->record.loss;
    draft->record.checksum = current->record.checksum;
    draft->record.learned_through = current->record.learned_through;
    hzp_weights_publish(s->weights, draft, step->number);
    atomic_fetch_add(&s->swaps, 1);
    s->next_ns = now + every;
}

struct hzp_bench_swapper *hzp_bench_swapper_create(void)
{
    struct hzp_bench_swapper *s = hzp_xcalloc(1, sizeof(*s));
    s->source = (struct hzp_source){
        .name = "swap", .offer = no_offer, .deliver = swap_when_due};
    return s;
}

void hzp_bench_swapper_destroy(struct hzp_bench_swapper *swapper)
{
    free(swapper);
}

struct hzp_source *hzp_bench_swapper_source(struct hzp_bench_swapper *swapper)
{
    return &swapper->source;
}

enum { RATES = 3, SEQUENCES = 4, GAPS_MAX = 1 << 20 };
static const double swaps_a_second[RATES] = {0, 1, 10};

/* Sequences one after another until a turn has lasted so long that swaps fall into it. */
static int one_turn(struct hzp_bench *b, struct hzp_bench_client *client, double rate, double *gap,
                    int64_t *n, struct hzp_err_text *reterr)
{
    struct hzp_request *rq[SEQUENCES];
    atomic_store(&b->swapper->every_ns, rate > 0 ? (uint64_t)(1e9 / rate) : 0);
    uint64_t begin = hzp_now_ns(), long_enough = b->quick ? 600000000u : 1000000000u;
    do {
        HZP_TRY(hzp_bench_submit_all(client, SEQUENCES, 16, b->quick ? 24 : 96, rq, reterr));
        for (int i = 0; i < SEQUENCES; i++) {
            hzp_bench_wait(client, rq[i]);
            *n = hzp_bench_gaps(rq[i], gap, *n, GAPS_MAX);
            hzp_request_destroy(rq[i]);
        }
    } while (hzp_now_ns() - begin < long_enough);
    return HZP_OK;
}

int hzp_bench_swap(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    struct hzp_bench_client client;
    double *gap[RATES];
    int64_t n[RATES] = {0};
    uint64_t swaps[RATES] = {0};
    int r = HZP_OK;
    b->swapper->dev = b->engine->dev;
    b->swapper->weights = b->engine->weights;
    hzp_bench_client_open(b, &client);
    for (int i = 0; i < RATES; i++)
        gap[i] = hzp_xmalloc(GAPS_MAX * sizeof(*gap[i]));
    /* A first turn with swaps fills the second slot; its gaps are thrown away. */
    r = one_turn(b, &client, 10, gap[0], &n[0], reterr);
    n[0] = 0;
    for (int turn = 0; r == HZP_OK && turn < (b->quick ? 2 : 8); turn++)
        for (int i = 0; r == HZP_OK && i < RATES; i++) {
            uint64_t before = atomic_load(&b->swapper->swaps);
            r = one_turn(b, &client, swaps_a_second[i], gap[i], &n[i], reterr);
            swaps[i] += atomic_load(&b->swapper->swaps) - before;
        }
    atomic_store(&b->swapper->every_ns, 0);
    for (int i = 0; r == HZP_OK && i < RATES; i++) {
        char name[80];
        snprintf(name, sizeof(name), "%g swaps/s (%llu done): gap p50", swaps_a_second[i],
                 (unsigned long long)swaps[i]);
        hzp_bench_plain(b, name, 1e3 * hzp_bench_quantile(gap[i], n[i], 0.5), "ms");
        snprintf(name, sizeof(name), "%g swaps/s: gap p99", swaps_a_second[i]);
        hzp_bench_plain(b, name, 1e3 * hzp_bench_quantile(gap[i], n[i], 0.99), "ms");
    }
    for (int i = 0; i < RATES; i++)
        free(gap[i]);
    hzp_bench_client_close(&client);
    return r;
}
