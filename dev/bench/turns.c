/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/turns.h"

#include <stdatomic.h>
#include <stdlib.h>

struct hzp_bench_turns {
    struct hzp_source source;
    _Atomic uint64_t period_ns;
    struct hzp_trainer *_Atomic trainer;
    _Atomic uint64_t trained_flops;
    bool held[2];           /* step n had no rows for requests: held[n % 2] */
    uint64_t served_end_ns; /* end of the last step that served; 0: none, or training ran since */
    double served_s;
    int64_t between;
    struct hzp_bench_switches switches;
};

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer)
{
    struct hzp_bench_turns *t = HZP_CONTAINER_OF(source, struct hzp_bench_turns, source);
    uint64_t period = atomic_load(&t->period_ns);
    t->held[step->number % 2] = room->rows == 0;
    if (!period)
        return false;
    bool train = step->begin_ns % period >= period / 2;
    hzp_trainer_pause(atomic_load(&t->trainer), !train);
    if (train)
        room->rows = 0;
    t->held[step->number % 2] |= train;
    /* Always run a step, even an empty one, so that the loop does not sleep past the end of the
     * slice. */
    return true;
}

static uint64_t flops_of(const struct hzp_offer *offer)
{
    uint64_t flops = 0;
    for (int32_t k = 0; k < offer->slices; k++)
        for (int32_t i = offer->slice[k].from; i < offer->slice[k].to; i++) {
            const struct hzp_item *item = &offer->slice[k].chain->item[i];
            flops += hzp_op_cost(item->op, item->args).flops;
        }
    return flops;
}

static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct hzp_bench_turns *t = HZP_CONTAINER_OF(source, struct hzp_bench_turns, source);
    struct hzp_bench_switches *s = &t->switches;
    if (outcome->status < 0 || !offer->batch)
        return;
    atomic_fetch_add(&t->trained_flops, flops_of(offer));
    struct hzp_trainer *trainer = atomic_load(&t->trainer);
    struct hzp_trainer_stats stats = {.paused = true};
    if (trainer && !atomic_load(&t->period_ns))
        hzp_trainer_read_stats(trainer, &stats);
    if (stats.paused) {
        t->served_end_ns = 0;
        return;
    }
    if (offer->batch->rows == 0 && t->held[step->number % 2])
        return; /* requests run but are held up by training: not a pause */
    if (offer->batch->rows > 0) {
        t->served_end_ns = outcome->end_ns;
        t->served_s = (double)(outcome->end_ns - step->begin_ns) * 1e-9;
        t->between = 0;
        return;
    }
    if (!t->served_end_ns)
        return;
    if (!hzp_offer_trains(offer)) {
        t->between++;
        return;
    }
    if (s->count < HZP_BENCH_SWITCHES_MAX) {
        uint64_t begin = HZP_MAX(step->begin_ns, t->served_end_ns);
        s->step[s->count] = t->served_s;
        s->seconds[s->count++] = (double)(begin - t->served_end_ns) * 1e-9;
        s->steps_between_max = HZP_MAX(s->steps_between_max, t->between);
    }
    t->served_end_ns = 0;
}

struct hzp_bench_turns *hzp_bench_turns_create(void)
{
    struct hzp_bench_turns *t = hzp_xcalloc(1, sizeof(*t));
    t->source = (struct hzp_source){.name = "turns", .offer = offer, .deliver = deliver};
    return t;
}

void hzp_bench_turns_destroy(struct hzp_bench_turns *t)
{
    free(t);
}

struct hzp_source *hzp_bench_turns_source(struct hzp_bench_turns *t)
{
    return &t->source;
}

void hzp_bench_turns_slice(struct hzp_bench_turns *t, struct hzp_trainer *trainer,
                           uint64_t period_ns)
{
    atomic_store(&t->trainer, trainer);
    atomic_store(&t->period_ns, period_ns);
}

uint64_t hzp_bench_turns_trained(const struct hzp_bench_turns *t)
{
    return atomic_load(&((struct hzp_bench_turns *)t)->trained_flops);
}

const struct hzp_bench_switches *hzp_bench_turns_switches(const struct hzp_bench_turns *t)
{
    return &t->switches;
}
