/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/swap.c - measures what a swap of versions costs the running requests.
 *
 * Four sequences of staggered lengths decode, and each that ends is followed by another one, while
 * 0, 1 or 10 versions per second are published.  The rates take turns, and with --consistency all
 * the modes too, so that slow changes of the machine affect all alike.  All slots hold the same
 * weights, so a publication is the same as in production, a flip between two steps, but without the
 * training before it.  Where pins leave no slot free, a publication is made when one is.
 */
#include "dev/bench/bench.h"

#include "base/thread.h"
#include "weights/fp8.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copies every unit; both are in the device's memory and have the same layout and type. */
static int copy_units(struct hzp_device *dev, const struct hzp_units *to,
                      const struct hzp_units *from)
{
    HZP_ASSERT(to->layout == from->layout && to->type == from->type);
    for (int32_t u = 0; u < to->layout->units; u++) {
        struct hzp_unit_view a = hzp_unit_view(to, u), b = hzp_unit_view(from, u);
        HZP_ASSERT(a.base && b.base && a.part.first == b.part.first &&
                   a.part.count == b.part.count);
        HZP_TRY(hzp_device_copy(dev, a.base, b.base, hzp_unit_bytes(&a)));
    }
    return HZP_OK;
}

enum { SWAPS_KEPT = 256 /* more than one turn makes */, SLOTS_MAX = 16 };

struct hzp_bench_swapper {
    struct hzp_source source;
    struct hzp_device *dev;
    struct hzp_weights *weights;
    struct hzp_scheduler *scheduler;
    /* engine thread */
    const struct hzp_version *prepared[SLOTS_MAX]; /* slots that hold the same weights */
    const struct hzp_version *first;               /* the one loaded at the start */
    int slots;
    uint64_t next_ns;
    /* any thread */
    _Atomic uint64_t every_ns; /* 0: no swaps */
    _Atomic uint64_t swaps;
    _Atomic uint64_t at_ns[SWAPS_KEPT]; /* time of swap i, i modulo SWAPS_KEPT */
    _Atomic int32_t pinned;             /* slots that pins hold, the most since it was cleared */
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

static void note_pins(struct hzp_bench_swapper *s)
{
    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(s->scheduler, &stats);
    if (stats.pinned_slots > atomic_load(&s->pinned))
        atomic_store(&s->pinned, stats.pinned_slots);
}

static void swap_when_due(struct hzp_source *source, const struct hzp_step *step,
                          const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct hzp_bench_swapper *s = HZP_CONTAINER_OF(source, struct hzp_bench_swapper, source);
    uint64_t every = atomic_load(&s->every_ns), now = hzp_now_ns();
    struct hzp_version *draft;
    if (outcome->status < 0 || every == 0)
        return;
    note_pins(s);
    s->next_ns = HZP_MIN(s->next_ns, now + every); /* the turn before may have had a slower rate */
    if (now < s->next_ns || hzp_weights_begin(s->weights, &draft) < 0)
        return;
    const struct hzp_version *current = hzp_weights_current(s->weights);
    if (!s->first)
        s->first = current;
    if (!is_prepared(s, draft)) {
        if (copy_units(s->dev, hzp_version_units(s->weights, draft),
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

enum { RATES = 3, MODES = HZP_PINNED + 1, SEQUENCES = 4, ITLS_MAX = 1 << 18, JOINS_KEPT = 1024 };
static const double swaps_a_second[RATES] = {0, 1, 10};
static const uint64_t turn_ns = 1000000000;

/* What was measured in one mode at one rate, in all turns. */
struct cell {
    enum hzp_consistency mode;
    double rate;
    double *itl; /* seconds */
    int64_t n;
    double at_swap; /* longest ITL with a swap in it or in the one before; 0: none */
    uint64_t swaps, ended, recomputes; /* ended: at a swap, before their last token */
    int32_t pinned;                    /* slots that pins held at most */
};

/* One turn: which requests run, and when sequences joined, which makes a step longer, too. */
struct turn {
    struct hzp_bench_swapper *swapper;
    struct hzp_bench_client *client;
    struct cell *cell;
    struct hzp_request *rq[SEQUENCES];
    uint64_t joined[JOINS_KEPT];
    int joins;
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

/* True: a sequence that runs, or ran before, got its first token between the two times. */
static bool joined(const struct turn *t, uint64_t from_ns, uint64_t to_ns)
{
    for (int i = 0; i < SEQUENCES; i++) {
        struct hzp_request *rq = t->rq[i];
        if (rq && atomic_load(&rq->out_count) && rq->out[0].at_ns > from_ns &&
            rq->out[0].at_ns <= to_ns)
            return true;
    }
    for (int i = 0; i < t->joins; i++)
        if (t->joined[i] > from_ns && t->joined[i] <= to_ns)
            return true;
    return false;
}

/* A step formed before the swap may still be in flight, so the first step that reads the new
 * version belongs to the ITL in which the swap took place, or to the next one. */
static void count_at_swaps(struct turn *t, struct hzp_request *rq)
{
    int32_t count = atomic_load(&rq->out_count);
    for (int32_t i = 1; i < count; i++) {
        uint64_t before = rq->out[i > 1 ? i - 2 : 0].at_ns, from = rq->out[i - 1].at_ns;
        double itl = (double)(rq->out[i].at_ns - from) * 1e-9;
        if (itl > t->cell->at_swap && swapped(t->swapper, before, rq->out[i].at_ns) &&
            !joined(t, from, rq->out[i].at_ns))
            t->cell->at_swap = itl;
    }
}

/* Takes over what a request that has ended has shown. */
static void harvest(struct turn *t, int i)
{
    struct hzp_request *rq = t->rq[i];
    struct cell *c = t->cell;
    hzp_bench_wait(t->client, rq);
    c->n = hzp_bench_itls(rq, c->itl, c->n, ITLS_MAX);
    count_at_swaps(t, rq);
    c->ended += rq->state == HZP_REQUEST_CHANGED;
    c->recomputes += (uint64_t)rq->recomputes;
    if (atomic_load(&rq->out_count) && t->joins < JOINS_KEPT)
        t->joined[t->joins++] = rq->out[0].at_ns;
    t->rq[i] = NULL;
    hzp_request_destroy(rq);
}

static int keep_running(struct turn *t, int32_t tokens, struct hzp_err_text *reterr)
{
    for (uint64_t begin = hzp_now_ns(); hzp_now_ns() - begin < turn_ns;) {
        for (int i = 0; i < SEQUENCES; i++) {
            if (t->rq[i] && !hzp_request_final(t->rq[i]))
                continue;
            bool first = !t->rq[i];
            if (t->rq[i])
                harvest(t, i);
            HZP_TRY(hzp_bench_submit(t->client, 16, first ? tokens * (i + 1) / SEQUENCES : tokens,
                                     &t->rq[i], reterr));
        }
        hzp_wake_wait(t->client->wake, 10000000);
    }
    return HZP_OK;
}

static int one_turn(struct hzp_bench *b, struct hzp_bench_client *client, struct cell *c,
                    struct hzp_err_text *reterr)
{
    struct turn t = {.swapper = b->swapper, .client = client, .cell = c};
    uint64_t before = atomic_load(&b->swapper->swaps);
    client->mode = c->mode;
    atomic_store(&b->swapper->pinned, 0);
    atomic_store(&b->swapper->every_ns, c->rate > 0 ? (uint64_t)(1e9 / c->rate) : 0);
    int r = keep_running(&t, b->quick ? 24 : 96, reterr);
    for (int i = 0; i < SEQUENCES; i++)
        if (t.rq[i])
            atomic_store(&t.rq[i]->cancel, true);
    hzp_loop_poke(b->engine->parts.loop);
    for (int i = 0; i < SEQUENCES; i++)
        if (t.rq[i])
            harvest(&t, i);
    c->swaps += atomic_load(&b->swapper->swaps) - before;
    int32_t pinned = atomic_load(&b->swapper->pinned);
    c->pinned = HZP_MAX(c->pinned, pinned);
    return r;
}

/* several: figures name their mode. */
static void tell(struct hzp_bench *b, const struct cell *c, bool several, const char *what,
                 double value, const char *unit)
{
    char name[96];
    snprintf(name, sizeof(name), "%s%s%g swaps/s: %s", several ? hzp_consistency_name(c->mode) : "",
             several ? ", " : "", c->rate, what);
    hzp_bench_plain(b, name, value, unit);
}

/* step: the duration of a step, the median ITL without swaps. */
static void report(struct hzp_bench *b, struct cell *c, bool several, double step)
{
    tell(b, c, several, "swaps done", (double)c->swaps, "");
    tell(b, c, several, "ITL p50", 1e3 * hzp_bench_quantile(c->itl, c->n, 0.5), "ms");
    tell(b, c, several, "ITL p99", 1e3 * hzp_bench_quantile(c->itl, c->n, 0.99), "ms");
    tell(b, c, several, "worst ITL", 1e3 * hzp_bench_quantile(c->itl, c->n, 1), "ms");
    if (c->at_swap > 0) {
        tell(b, c, several, "worst ITL at a swap", 1e3 * c->at_swap, "ms");
        tell(b, c, several, "what a swap adds at worst, in steps", (c->at_swap - step) / step, "x");
    }
    if (c->mode == HZP_ABORT)
        tell(b, c, several, "answers ended by a swap", (double)c->ended, "");
    if (c->mode == HZP_RECOMPUTE)
        tell(b, c, several, "sequences computed again", (double)c->recomputes, "");
    if (c->mode == HZP_PINNED)
        tell(b, c, several, "replaced versions pinned at most", c->pinned, "");
}

/* What slots cost, and what pins may hold of it. */
static void report_memory(struct hzp_bench *b, bool pinned)
{
    const struct hzp_memory_plan *plan = &b->engine->parts.plan;
    size_t bytes = 0;
    for (int i = 0; i < plan->lines; i++)
        if (!strcmp(plan->line[i].what, "weights") || !strcmp(plan->line[i].what, "fp8"))
            bytes += plan->line[i].bytes;
    double slot = (double)bytes / plan->slots * 1e-6;
    hzp_bench_plain(b, "memory: slots of weights", (double)plan->slots, "");
    hzp_bench_plain(b, "memory: one slot", slot, "MB");
    hzp_bench_plain(b, "memory: all slots", (double)bytes * 1e-6, "MB");
    if (pinned)
        hzp_bench_plain(b, "memory: slots that pins may hold", (plan->slots - 2) * slot, "MB");
}

static int measure(struct hzp_bench *b, struct hzp_bench_client *client, struct cell *cell,
                   int cells, struct hzp_err_text *reterr)
{
    /* A first turn with swaps fills the other slots; it is not counted. */
    struct cell first = {.mode = HZP_CONTINUE, .rate = 10, .itl = cell[0].itl};
    HZP_TRY(one_turn(b, client, &first, reterr));
    for (int turn = 0; turn < (b->quick ? 3 : 8); turn++)
        for (int i = 0; i < cells; i++)
            HZP_TRY(one_turn(b, client, &cell[i], reterr));
    atomic_store(&b->swapper->every_ns, 0);
    return HZP_OK;
}

int hzp_bench_swap(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    struct hzp_bench_client client;
    struct cell cell[MODES * RATES];
    int64_t asked = b->settings->consistency;
    bool several = asked == MODES;
    int cells = 0, r;
    b->swapper->dev = b->engine->parts.dev;
    b->swapper->weights = b->engine->parts.weights;
    b->swapper->scheduler = b->engine->parts.scheduler;
    for (int mode = 0; mode < MODES; mode++)
        for (int i = 0; (several || mode == asked) && i < RATES; i++)
            cell[cells++] = (struct cell){.mode = (enum hzp_consistency)mode,
                                          .rate = swaps_a_second[i],
                                          .itl = hzp_xmalloc(ITLS_MAX * sizeof(double))};
    hzp_bench_client_open(b, &client);
    r = measure(b, &client, cell, cells, reterr);
    for (int i = 0; r == HZP_OK && i < cells; i++) {
        struct cell *still = &cell[i / RATES * RATES]; /* the same mode without swaps */
        report(b, &cell[i], several, hzp_bench_quantile(still->itl, still->n, 0.5));
    }
    if (r == HZP_OK)
        report_memory(b, several || asked == HZP_PINNED);
    for (int i = 0; i < cells; i++)
        free(cell[i].itl);
    hzp_bench_client_close(&client);
    return r;
}
