/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/stage_order.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/* A task that passes on a gradient, and where its micro-batch went then. */
struct passed {
    int32_t micro, place;
};

/* The simulated run.  Places on a micro-batch's way: 0 .. S - 1 forward, S the head, S + 1 .. 2 S
 * backward. */
struct run {
    int32_t stages, micros;
    int32_t *next, *newest;     /* [micros] the place that is next; the newest task, -1: none */
    uint64_t *ready;            /* [micros] when that has ended */
    uint64_t *idle;             /* [stages] from when on */
    uint64_t *cost;             /* [stages] of a forward task; [stages]: of the head, all of it */
    int32_t *gradients;         /* [stages] tasks that have passed one on */
    struct passed (*passed)[2]; /* [stages] the newest of them */
    int32_t first;              /* micro-batch that has not ended */
};

static int32_t kept(int32_t stages, int32_t stage)
{
    return stages + 1 - stage;
}

int32_t hzp_stages_kept(const struct hzp_shards *shards)
{
    return shards->stages > 1 ? kept(shards->stages, shards->rank) : 1;
}

static int32_t stage_at(const struct run *run, int32_t place)
{
    int32_t stages = run->stages;
    return place < stages ? place : place == stages ? 0 : 2 * stages - place;
}

static enum hzp_stage_work work_at(const struct run *run, int32_t place)
{
    return place < run->stages    ? HZP_STAGE_FORWARD
           : place == run->stages ? HZP_STAGE_HEAD
                                  : HZP_STAGE_BACKWARD;
}

/* Whether the invariants allow the micro-batch's next task now. */
static bool allowed(const struct run *run, int32_t micro)
{
    int32_t place = run->next[micro], s = stage_at(run, place), k = kept(run->stages, s);
    if (micro > 0 && run->next[micro - 1] <= place)
        return false;
    if (place < run->stages)
        return micro < k || run->next[micro - k] > 2 * run->stages - s;
    const struct passed *p = &run->passed[s][run->gradients[s] % 2];
    return run->gradients[s] < 2 || run->next[p->micro] > HZP_MIN(p->place + 1, 2 * run->stages);
}

/* The micro-batch whose task begins next, and when. */
static int32_t choose(const struct run *run, uint64_t *ret_begin)
{
    int32_t best = -1;
    for (int32_t m = run->first; m < run->micros; m++) {
        uint64_t idle = run->idle[stage_at(run, run->next[m])];
        uint64_t begin = HZP_MAX(run->ready[m], idle);
        bool sooner = best < 0 || begin < *ret_begin ||
                      (begin == *ret_begin && run->next[m] > run->next[best]);
        if (run->next[m] <= 2 * run->stages && allowed(run, m) && sooner) {
            best = m;
            *ret_begin = begin;
        }
        if (run->next[m] == 0)
            break; /* those behind it have not begun either */
    }
    return best;
}

static uint64_t cost_at(const struct run *run, int32_t place)
{
    int32_t stages = run->stages, s = stage_at(run, place);
    return place < stages ? run->cost[s] : place == stages ? run->cost[stages] : 2 * run->cost[s];
}

/* Appends the next task. */
static void step(struct run *run, struct hzp_stage_order *order)
{
    uint64_t begin = 0;
    int32_t m = choose(run, &begin);
    HZP_ASSERT(m >= 0);
    int32_t place = run->next[m]++, s = stage_at(run, place);
    order->task[order->tasks] = (struct hzp_stage_task){work_at(run, place), s, m, run->newest[m]};
    run->newest[m] = order->tasks++;
    run->ready[m] = run->idle[s] = begin + cost_at(run, place);
    if (place >= run->stages)
        run->passed[s][run->gradients[s]++ % 2] = (struct passed){m, place};
    while (run->first < run->micros && run->next[run->first] > 2 * run->stages)
        run->first++;
}

/* Costs by elements: a task's products have about as many operations for each row. */
static void set_costs(struct run *run, const struct hzp_layout *layout)
{
    struct hzp_shards shards = {.stages = run->stages};
    const struct hzp_model_config *c = &layout->config;
    for (int32_t s = 0; s < run->stages; s++) {
        shards.rank = s;
        hzp_stages_cut(&shards, layout, NULL);
        for (int32_t l = shards.layer; l < shards.layer_end; l++)
            run->cost[s] += layout->unit[1 + l].elements;
    }
    run->cost[run->stages] = 3 * (uint64_t)c->vocab * (uint64_t)c->width;
}

void hzp_stage_order_make(struct hzp_stage_order *order, const struct hzp_shards *shards,
                          const struct hzp_layout *layout, int32_t micros)
{
    size_t m = (size_t)micros, s = (size_t)shards->stages;
    struct run run = {.stages = shards->stages, .micros = micros};
    int32_t tasks = micros * (2 * run.stages + 1);
    run.next = hzp_xcalloc(2 * m, sizeof(*run.next));
    run.newest = run.next + m;
    memset(run.newest, -1, m * sizeof(*run.newest));
    run.ready = hzp_xcalloc(m + 2 * s + 1, sizeof(*run.ready));
    run.idle = run.ready + m;
    run.cost = run.idle + s;
    run.gradients = hzp_xcalloc(s, sizeof(*run.gradients));
    run.passed = hzp_xcalloc(s, sizeof(*run.passed));
    set_costs(&run, layout);
    order->task = hzp_xgrow(order->task, &order->room, tasks, sizeof(*order->task));
    order->tasks = 0;
    while (order->tasks < tasks)
        step(&run, order);
    free(run.next);
    free(run.ready);
    free(run.gradients);
    free(run.passed);
}

void hzp_stage_order_free(struct hzp_stage_order *order)
{
    free(order->task);
    memset(order, 0, sizeof(*order));
}
