/* SPDX-License-Identifier: Apache-2.0 */
#include "api/bench/turns.h"

#include "base/arena.h"

#include <stdatomic.h>
#include <stdlib.h>

struct hzp_bench_turns {
    struct hzp_source source;
    _Atomic uint64_t period_ns;
    struct hzp_trainer *_Atomic trainer;
    _Atomic uint64_t trained_flops;
    uint64_t served_end_ns; /* 0: the last step did not serve, or nothing has */
    double served_s;
    int64_t between;
    struct hzp_bench_switches switches;
};

static bool offer(struct hzp_source *source, struct hzp_step *step)
{
    struct hzp_bench_turns *t = HZP_CONTAINER_OF(source, struct hzp_bench_turns, source);
    uint64_t period = atomic_load(&t->period_ns);
    if (!period)
        return false;
    bool train = step->begin_ns % period >= period / 2;
    hzp_trainer_pause(atomic_load(&t->trainer), !train);
    if (train)
        step->rows_left = 0;
    /* A turn of nothing, so that the loop does not sleep through the other's half. */
    return true;
}

static uint64_t flops_of(const struct hzp_step *step)
{
    uint64_t flops = 0;
    for (int32_t i = step->from; step->chain && i < step->to; i++)
        flops += hzp_op_cost(step->chain->item[i].op, step->chain->item[i].args).flops;
    return flops;
}

static void deliver(struct hzp_source *source, const struct hzp_step *step, int status)
{
    struct hzp_bench_turns *t = HZP_CONTAINER_OF(source, struct hzp_bench_turns, source);
    struct hzp_bench_switches *s = &t->switches;
    if (status < 0 || !step->batch)
        return;
    atomic_fetch_add(&t->trained_flops, flops_of(step));
    struct hzp_trainer *trainer = atomic_load(&t->trainer);
    struct hzp_trainer_stats stats = {.paused = true};
    if (trainer && !atomic_load(&t->period_ns))
        hzp_trainer_read_stats(trainer, &stats);
    if (stats.paused) {
        t->served_end_ns = 0;
        return;
    }
    if (step->batch->rows == 0 && step->rows_left == 0)
        return; /* requests run, and wait for training: no pause */
    if (step->batch->rows > 0) {
        t->served_end_ns = step->end_ns;
        t->served_s = (double)(step->end_ns - step->begin_ns) * 1e-9;
        t->between = 0;
        return;
    }
    if (!t->served_end_ns)
        return;
    if (step->to == step->from) {
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
