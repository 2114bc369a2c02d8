/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/stage_order.h"

/* A task that passes on a gradient, and where its micro-batch went then. */
struct passed {
    int32_t micro, place;
};

/* The simulated run.  Places on a way along L stages: 0 .. L - 1 forward, L the head, L + 1 .. 2 L
 * backward. */
struct run {
    int32_t stages, micros;
    const struct hzp_stage_path *path;
    int32_t *next, *newest;     /* [micros] the place that is next; the newest task, -1: none */
    uint64_t *ready;            /* [micros] when that has ended */
    uint64_t *idle;             /* [stages] from when on */
    uint64_t *cost;             /* [stages] of a forward task; [stages]: of the head, all of it */
    int32_t *gradients;         /* [stages] tasks that have passed one on */
    int32_t *visit;             /* [stages][micros] micro-batch's number among the stage's */
    int32_t *ended;             /* [stages] backward tasks */
    struct passed (*passed)[2]; /* [stages] the newest of them */
    int32_t first, heads;       /* micro-batch that has not ended; whose head is next */
};

static int32_t kept(int32_t stages, int32_t stage)
{
    return stages + 1 - stage;
}

int32_t hzp_stages_kept(const struct hzp_shards *shards)
{
    return shards->stages > 1 ? kept(shards->stages, shards->rank) : 1;
}

/* Stages on the way of a micro-batch. */
static int32_t length_of(const struct run *run, int32_t micro)
{
    return run->path && run->path[micro].count ? run->path[micro].count : run->stages;
}

static int32_t stage_at(const struct run *run, int32_t micro, int32_t place)
{
    int32_t length = length_of(run, micro);
    int32_t at = place < length ? place : place == length ? 0 : 2 * length - place;
    return run->path && run->path[micro].count ? run->path[micro].stage[at] : at;
}

static enum hzp_stage_work work_at(const struct run *run, int32_t micro, int32_t place)
{
    int32_t length = length_of(run, micro);
    return place < length    ? HZP_STAGE_FORWARD
           : place == length ? HZP_STAGE_HEAD
                             : HZP_STAGE_BACKWARD;
}

static bool passes(enum hzp_stage_work work, int32_t stage)
{
    return work == HZP_STAGE_HEAD || (work == HZP_STAGE_BACKWARD && stage > 0);
}

static int32_t visit_of(const struct run *run, int32_t stage, int32_t micro)
{
    return run->visit[stage * run->micros + micro];
}

/* Whether the invariants allow the micro-batch's next task now. */
static bool allowed(const struct run *run, int32_t micro)
{
    int32_t place = run->next[micro], s = stage_at(run, micro, place);
    enum hzp_stage_work work = work_at(run, micro, place);
    if (work == HZP_STAGE_FORWARD)
        return visit_of(run, s, micro) < run->ended[s] + kept(run->stages, s);
    if (work == HZP_STAGE_HEAD ? micro != run->heads : visit_of(run, s, micro) != run->ended[s])
        return false;
    const struct passed *p = &run->passed[s][run->gradients[s] % 2];
    return !passes(work, s) || run->gradients[s] < 2 || run->next[p->micro] > p->place + 1;
}

/* The micro-batch whose task begins next, and when. */
static int32_t choose(const struct run *run, uint64_t *ret_begin)
{
    int32_t best = -1;
    for (int32_t m = run->first; m < run->micros; m++) {
        if (run->next[m] > 2 * length_of(run, m))
            continue;
        uint64_t idle = run->idle[stage_at(run, m, run->next[m])];
        uint64_t begin = HZP_MAX(run->ready[m], idle);
        bool sooner = best < 0 || begin < *ret_begin ||
                      (begin == *ret_begin && run->next[m] > run->next[best]);
        if (allowed(run, m) && sooner) {
            best = m;
            *ret_begin = begin;
        }
        if (run->next[m] == 0)
            break; /* those behind it have not begun either */
    }
    return best;
}

/* Appends the next task. */
static void step(struct run *run, struct hzp_stage_order *order)
{
    uint64_t begin = 0;
    int32_t m = choose(run, &begin);
    HZP_ASSERT(m >= 0);
    int32_t place = run->next[m]++, s = stage_at(run, m, place);
    enum hzp_stage_work work = work_at(run, m, place);
    uint64_t cost = work == HZP_STAGE_HEAD ? run->cost[run->stages]
                                           : (1 + (work == HZP_STAGE_BACKWARD)) * run->cost[s];
    order->task[order->tasks] =
        (struct hzp_stage_task){work, s, m, visit_of(run, s, m), run->newest[m]};
    run->newest[m] = order->tasks++;
    run->ready[m] = run->idle[s] = begin + cost;
    run->heads += work == HZP_STAGE_HEAD;
    run->ended[s] += work == HZP_STAGE_BACKWARD;
    if (passes(work, s))
        run->passed[s][run->gradients[s]++ % 2] = (struct passed){m, place};
    while (run->first < run->micros && run->next[run->first] > 2 * length_of(run, run->first))
        run->first++;
}

/* Numbers the micro-batches that come to each stage; returns how many tasks all have. */
static int32_t number_visits(struct run *run)
{
    int32_t tasks = 0;
    for (int32_t m = 0; m < run->micros; m++) {
        int32_t length = length_of(run, m);
        for (int32_t k = 0; k < length; k++) {
            int32_t s = stage_at(run, m, k);
            run->visit[s * run->micros + m] = run->gradients[s]++;
        }
        tasks += 2 * length + 1;
    }
    memset(run->gradients, 0, (size_t)run->stages * sizeof(*run->gradients));
    return tasks;
}

/* Costs by elements, as a task's products have about as many operations for each row, and by the
 * stages' speeds. */
static void set_costs(struct run *run, struct hzp_shards shards, const struct hzp_layout *layout)
{
    const struct hzp_model_config *c = &layout->config;
    for (int32_t s = 0; s < run->stages; s++) {
        shards.rank = s;
        hzp_stages_cut(&shards, layout, NULL);
        for (int32_t l = shards.layer; l < shards.layer_end; l++)
            run->cost[s] += layout->unit[1 + l].elements;
        run->cost[s] = run->cost[s] * 100 / (uint64_t)hzp_stage_speed(&shards, s);
    }
    run->cost[run->stages] =
        300 * (uint64_t)c->vocab * (uint64_t)c->width / (uint64_t)hzp_stage_speed(&shards, 0);
}

void hzp_stage_order_make(struct hzp_stage_order *order, const struct hzp_shards *shards,
                          const struct hzp_layout *layout, int32_t micros,
                          const struct hzp_stage_path *path)
{
    size_t m = (size_t)micros, s = (size_t)shards->stages;
    struct run run = {.stages = shards->stages, .micros = micros, .path = path};
    run.next = hzp_xcalloc(2 * m, sizeof(*run.next));
    run.newest = run.next + m;
    memset(run.newest, -1, m * sizeof(*run.newest));
    run.ready = hzp_xcalloc(m + 2 * s + 1, sizeof(*run.ready));
    run.idle = run.ready + m;
    run.cost = run.idle + s;
    run.gradients = hzp_xcalloc(s * (2 + m), sizeof(*run.gradients));
    run.ended = run.gradients + s;
    run.visit = run.ended + s;
    run.passed = hzp_xcalloc(s, sizeof(*run.passed));
    set_costs(&run, *shards, layout);
    int32_t tasks = number_visits(&run);
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

void hzp_stage_path_layers(const struct hzp_stage_path *path, const struct hzp_shards *shards,
                           const struct hzp_layout *layout, struct hzp_path *ret)
{
    struct hzp_shards at = *shards;
    ret->count = 0;
    for (int32_t i = 0; i < path->count; i++) {
        at.rank = path->stage[i];
        hzp_stages_cut(&at, layout, NULL);
        for (int32_t l = at.layer; l < at.layer_end; l++)
            ret->layer[ret->count++] = l;
    }
}

int hzp_stage_path_read(const struct hzp_path *layers, const struct hzp_shards *shards,
                        const struct hzp_layout *layout, struct hzp_stage_path *ret)
{
    struct hzp_shards at = *shards;
    ret->count = 0;
    if (!hzp_path_valid(layers, layout->config.layers))
        return HZP_EINVAL;
    for (int32_t i = 0; i < layers->count;) {
        for (at.rank = 0; at.rank < at.stages; at.rank++)
            if (hzp_stages_cut(&at, layout, NULL) >= 0 && at.layer == layers->layer[i])
                break;
        if (at.rank == at.stages || ret->count == HZP_STAGE_PATH_MAX || (i == 0) != (at.rank == 0))
            return HZP_EINVAL;
        ret->stage[ret->count++] = (uint8_t)at.rank;
        for (int32_t l = at.layer; l < at.layer_end; l++, i++)
            if (i == layers->count || layers->layer[i] != l)
                return HZP_EINVAL;
    }
    return ret->count == 1 ? HZP_EINVAL : HZP_OK;
}
