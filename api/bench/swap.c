/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/swap.c - measures what a swap of versions costs the running requests.
 *
 * Four sequences decode while 0, 1 or 10 versions per second are published, interleaved, so that
 * slow changes of the machine affect all three rates alike.  All slots hold the same weights, so a
 * publication is the same as in production, a flip between two steps, but without the training
 * before it.  --consistency says what a swap does to the sequences; with pinned ones (--slots 3 or
 * more) a publication that finds no slot is made later.
 */
#include "api/bench/bench.h"

#include "base/arena.h"
#include "base/thread.h"
#include "weights/fp8.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SWAPS_KEPT = 256 /* more than one turn makes */, SLOTS_MAX = 16 };

struct hzp_bench_swapper {
    struct hzp_source source;
    struct hzp_device *dev;
    struct hzp_weights *weights;
    /* engine thread */
    const struct hzp_version *prepared[SLOTS_MAX]; /* slots that hold the same weights */
    const struct hzp_version *first;               /* the one loaded at the start */
    int slots;
    uint64_t next_ns;
    /* any thread */
    _Atomic uint64_t every_ns; /* 0: no swaps */
    _Atomic uint64_t swaps;
    _Atomic uint64_t at_ns[SWAPS_KEPT]; /* time of swap i, i modulo SWAPS_KEPT */
};

static bool no_offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                     struct hzp_offer *offer)
{
    return false;
}

static bool is_prepared(const struct hzp_bench_swapper *s, const struct hzp_version *draft)
{
    if (draft == s->first)
        return true;
    for (int i = 0; i < s->slots; i++)
        if (s->prepared[i] == draft)
            return true;
    return false;
}

static void swap_when_due(struct hzp_source *source, const struct hzp_step *step,
                          const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct hzp_bench_swapper *s = HZP_CONTAINER_OF(source, struct hzp_bench_swapper, source);
    uint64_t every = atomic_load(&s->every_ns), now = hzp_now_ns();
    struct hzp_version *draft;
    if (outcome->status < 0 || every == 0)
        return;
    s->next_ns = HZP_MIN(s->next_ns, now + every); /* the turn before may have had a slower rate */
    if (now < s->next_ns || hzp_weights_begin(s->weights, &draft) < 0)
        return;
    const struct hzp_version *current = hzp_weights_current(s->weights);
    if (!s->first)
        s->first = current;
    if (!is_prepared(s, draft)) {
        if (hzp_units_copy(s->dev, hzp_version_units(s->weights, draft),
                           hzp_version_units(s->weights, current)) < 0 ||
            hzp_version_quantize(s->weights, draft) < 0) {
            hzp_weights_abandon(s->weights, draft);
            return;
        }
        s->prepared[s->slots++] = draft;
    }
    draft->fp8_made = true; /* both slots' e4m3 copies are made and stay valid */
    draft->record.optimizer_step = current->record.optimizer_step;
    draft->record.loss = current->record.loss;
    draft->record.checksum = current->record.checksum;
    draft->record.learned_through = current->record.learned_through;
    hzp_weights_publish(s->weights, draft, step->number);
    atomic_store(&s->at_ns[atomic_load(&s->swaps) % SWAPS_KEPT], now);
    atomic_fetch_add(&s->swaps, 1);
    s->next_ns = now + every;
}

struct hzp_bench_swapper *hzp_bench_swapper_create(void)
{
    struct hzp_bench_swapper *s = hzp_xcalloc(1, sizeof(*s));
    s->source = (struct hzp_source){.name = "swap", .offer = no_offer, .deliver = swap_when_due};
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

enum { RATES = 3, SEQUENCES = 4, ITLS_MAX = 1 << 20, TURN_NS = 1000000000 };
static const double swaps_a_second[RATES] = {0, 1, 10};

struct itls {
    double *itl; /* seconds, of all turns */
    int64_t n;
    double at_swap; /* longest ITL with a swap in it or in the one before; 0: none */
    uint64_t swaps;
};

/* True: a swap took place between the two times. */
static bool swapped(struct hzp_bench_swapper *s, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t swaps = atomic_load(&s->swaps);
    for (uint64_t i = swaps - HZP_MIN(swaps, (uint64_t)SWAPS_KEPT); i < swaps; i++) {
        uint64_t at = atomic_load(&s->at_ns[i % SWAPS_KEPT]);
        if (at >= from_ns && at <= to_ns)
            return true;
    }
    return false;
}

/* A step formed before the swap may still be in flight, so the first step that reads the new
 * version belongs to the ITL in which the swap took place, or to the next one. */
static void count_at_swaps(struct hzp_bench_swapper *s, const struct hzp_request *rq,
                           struct itls *g)
{
    int32_t count = atomic_load(&((struct hzp_request *)rq)->out_count);
    for (int32_t i = 1; i < count; i++) {
        double itl = (double)(rq->out[i].at_ns - rq->out[i - 1].at_ns) * 1e-9;
        if (itl > g->at_swap && swapped(s, rq->out[i > 1 ? i - 2 : 0].at_ns, rq->out[i].at_ns))
            g->at_swap = itl;
    }
}

/* Runs groups of sequences one after another until the turn is long enough to contain swaps. */
static int one_turn(struct hzp_bench *b, struct hzp_bench_client *client, double rate,
                    struct itls *g, struct hzp_err_text *reterr)
{
    struct hzp_request *rq[SEQUENCES];
    uint64_t before = atomic_load(&b->swapper->swaps);
    atomic_store(&b->swapper->every_ns, rate > 0 ? (uint64_t)(1e9 / rate) : 0);
    uint64_t begin = hzp_now_ns();
    do {
        HZP_TRY(hzp_bench_submit_all(client, SEQUENCES, 16, b->quick ? 24 : 96, rq, reterr));
        for (int i = 0; i < SEQUENCES; i++) {
            hzp_bench_wait(client, rq[i]);
            g->n = hzp_bench_itls(rq[i], g->itl, g->n, ITLS_MAX);
            count_at_swaps(b->swapper, rq[i], g);
            hzp_request_destroy(rq[i]);
        }
    } while (hzp_now_ns() - begin < TURN_NS);
    g->swaps += atomic_load(&b->swapper->swaps) - before;
    return HZP_OK;
}

static void tell(struct hzp_bench *b, double rate, const char *what, double value, const char *unit)
{
    char name[80];
    snprintf(name, sizeof(name), "%g swaps/s: %s", rate, what);
    hzp_bench_plain(b, name, value, unit);
}

/* step: the duration of a step, the median itl without swaps. */
static void report(struct hzp_bench *b, double rate, struct itls *g, double step)
{
    tell(b, rate, "swaps done", (double)g->swaps, "");
    tell(b, rate, "ITL p50", 1e3 * hzp_bench_quantile(g->itl, g->n, 0.5), "ms");
    tell(b, rate, "ITL p99", 1e3 * hzp_bench_quantile(g->itl, g->n, 0.99), "ms");
    tell(b, rate, "worst ITL", 1e3 * hzp_bench_quantile(g->itl, g->n, 1), "ms");
    if (g->at_swap > 0) {
        tell(b, rate, "worst ITL at a swap", 1e3 * g->at_swap, "ms");
        tell(b, rate, "what a swap adds at worst, in steps", (g->at_swap - step) / step, "x");
    }
}

int hzp_bench_swap(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    struct hzp_bench_client client;
    struct itls itls[RATES] = {{0}};
    int r = HZP_OK;
    b->swapper->dev = b->engine->parts.dev;
    b->swapper->weights = b->engine->parts.weights;
    hzp_bench_client_open(b, &client);
    for (int i = 0; i < RATES; i++)
        itls[i].itl = hzp_xmalloc(ITLS_MAX * sizeof(*itls[i].itl));
    /* A first turn with swaps fills the second slot; it is not counted. */
    r = one_turn(b, &client, 10, &itls[0], reterr);
    itls[0] = (struct itls){.itl = itls[0].itl};
    for (int turn = 0; r == HZP_OK && turn < (b->quick ? 3 : 8); turn++)
        for (int i = 0; r == HZP_OK && i < RATES; i++)
            r = one_turn(b, &client, swaps_a_second[i], &itls[i], reterr);
    atomic_store(&b->swapper->every_ns, 0);
    double step = r == HZP_OK ? hzp_bench_quantile(itls[0].itl, itls[0].n, 0.5) : 0;
    for (int i = 0; r == HZP_OK && i < RATES; i++)
        report(b, swaps_a_second[i], &itls[i], step);
    for (int i = 0; i < RATES; i++)
        free(itls[i].itl);
    hzp_bench_client_close(&client);
    return r;
}
