/* SPDX-License-Identifier: Apache-2.0 */
#include "train/learner/stages.h"

#include "base/thread.h"
#include "train/learner/collectives_state.h"

/* What a transfer waits for: that so many of this rank's tasks have ended, and a transfer, which
 * uses the same place; -1: none. */
struct gate {
    const struct hzp_stages *stages;
    int32_t ended, behind;
};

/* A task of this rank. */
struct own {
    int32_t task;    /* in the order */
    int32_t waits;   /* for this transfer; -1: for none */
    int32_t sends;   /* the transfer of its output; -1: none */
    int32_t dx;      /* which of the places its gradient has */
    int32_t last_dx; /* the task of this rank that had it before; -1: none */
};

struct hzp_stages {
    struct hzp_collectives *x;
    struct hzp_train_space *space;
    struct hzp_stage_order order;
    struct own *own;
    int32_t *own_of; /* [order.tasks] index of this rank's tasks in own */
    struct gate *gate;
    int32_t owns, gates, ended, own_room, own_of_room, gate_room;
};

/* --- Neighbours ------------------------------------------------------------------------------- */

int hzp_collectives_open_pairs(struct hzp_collectives *x, struct hzp_err_text *reterr)
{
    int32_t stages = x->config.shards.stages, rank = x->config.shards.rank;
    for (int a = 0; a < stages; a++)
        for (int b = a + 1; b < stages; b++) {
            bool neighbours = b == a + 1 || b - a == stages - 1;
            if ((a != rank && b != rank) || (stages > HZP_STAGE_PATH_MAX && !neighbours))
                continue;
            int group = hzp_link_group(x->config.link, (int[]){a, b}, 2, reterr);
            HZP_TRY(group);
            x->pair[a == rank ? b : a] = group;
        }
    return HZP_OK;
}

struct hzp_transfer hzp_collectives_pass(const struct hzp_collectives *x, int32_t other, bool sends,
                                         void *data, size_t bytes, uint64_t tag)
{
    return (struct hzp_transfer){.op = HZP_BROADCAST,
                                 .type = HZP_WIRE_BYTE,
                                 .group = x->pair[other],
                                 .root = (x->config.shards.rank > other) == sends,
                                 .count = bytes,
                                 .recv = data,
                                 .host = true,
                                 .tag = tag};
}

/* --- The list --------------------------------------------------------------------------------- */

struct hzp_stages *hzp_stages_create(struct hzp_collectives *x, struct hzp_train_space *space)
{
    struct hzp_stages *s = hzp_xcalloc(1, sizeof(*s));
    s->x = x;
    s->space = space;
    return s;
}

void hzp_stages_destroy(struct hzp_stages *s)
{
    if (!s)
        return;
    hzp_stage_order_free(&s->order);
    free(s->own);
    free(s->own_of);
    free(s->gate);
    free(s);
}

static bool open_gate(void *ctx)
{
    const struct gate *g = ctx;
    return g->stages->ended >= g->ended && g->stages->x->list.done > g->behind;
}

static int32_t rank_of(const struct hzp_stages *s)
{
    return s->space->config.shards.rank;
}

/* Enters the task as this rank's next one. */
static void add_own(struct hzp_stages *s, int32_t i, int32_t *gradients, int32_t (*newest)[3])
{
    struct own *own = &s->own[s->owns];
    *own = (struct own){.task = i, .waits = -1, .sends = -1, .last_dx = -1};
    s->own_of[i] = s->owns++;
    if (s->order.task[i].work == HZP_STAGE_FORWARD)
        return;
    bool last = rank_of(s) == 0 && s->order.task[i].work == HZP_STAGE_BACKWARD;
    own->dx = last ? 2 : (*gradients)++ % 2;
    own->last_dx = (*newest)[own->dx];
    (*newest)[own->dx] = s->own_of[i];
    if (own->last_dx >= 0)
        own->waits = s->own[own->last_dx].sends;
}

/* When the place that a task's input is received into is free. */
static struct gate place_free(const struct hzp_stages *s, const struct own *own)
{
    const struct hzp_stage_task *task = &s->order.task[own->task];
    struct gate g = {s, 0, -1};
    if (task->work == HZP_STAGE_BACKWARD && own->last_dx >= 0)
        return (struct gate){s, own->last_dx + 1, s->own[own->last_dx].sends};
    for (int32_t i = 0; i < s->owns && task->work != HZP_STAGE_BACKWARD; i++) {
        const struct hzp_stage_task *other = &s->order.task[s->own[i].task];
        if (other->work == HZP_STAGE_BACKWARD && other->visit == task->visit - s->space->slots)
            g.ended = i + 1;
    }
    return g;
}

/* The place of the stream, or of its gradient, of a task of this rank. */
static struct hzp_mat place_of(const struct hzp_stages *s, const struct own *own, bool input)
{
    const struct hzp_shards *shards = &s->space->config.shards;
    const struct hzp_stage_task *task = &s->order.task[own->task];
    int32_t layers = s->x->config.model->config->layers;
    int32_t l = task->work == HZP_STAGE_HEAD ? layers : input ? shards->layer : shards->layer_end;
    if (task->work == HZP_STAGE_BACKWARD || (task->work == HZP_STAGE_HEAD && !input))
        return s->space->dx_of[own->dx];
    return s->space->kept_usual[task->visit % s->space->slots * (layers + 1) + l].x_in;
}

/* Appends the transfer of the input of task i, of so many rows, if this rank has a part in it. */
static void add_transfer(struct hzp_stages *s, int32_t i, int32_t rows)
{
    const struct hzp_stage_task *task = &s->order.task[i];
    bool receives = task->stage == rank_of(s);
    if (task->input < 0 || (!receives && s->order.task[task->input].stage != rank_of(s)))
        return;
    struct own *own = &s->own[s->own_of[receives ? i : task->input]];
    struct hzp_mat place = place_of(s, own, receives);
    int32_t from = s->order.task[task->input].stage;
    struct hzp_transfer what = hzp_collectives_pass(
        s->x, receives ? from : task->stage, !receives, place.ptr,
        (size_t)rows * (size_t)place.cols * sizeof(float), hzp_collectives_tag(HZP_TAG_STAGE, i));
    int32_t index = hzp_transfers_add(&s->x->list, &what, 0);
    struct gate *gate = &s->gate[s->gates++];
    *gate = receives ? place_free(s, own) : (struct gate){s, s->own_of[task->input] + 1, -1};
    hzp_transfers_newest(&s->x->list)->ready = open_gate;
    hzp_transfers_newest(&s->x->list)->ctx = gate;
    if (receives)
        own->waits = HZP_MAX(own->waits, index);
    else
        own->sends = index;
}

void hzp_stages_begin(struct hzp_stages *s, const int32_t *rows, const struct hzp_stage_path *path,
                      int32_t micros)
{
    hzp_assert_engine_thread();
    int32_t gradients = 0, newest[3] = {-1, -1, -1};
    hzp_stage_order_make(&s->order, &s->space->config.shards, s->x->config.model->layout, micros,
                         path);
    s->own = hzp_xgrow(s->own, &s->own_room, 3 * micros, sizeof(*s->own));
    s->own_of = hzp_xgrow(s->own_of, &s->own_of_room, s->order.tasks, sizeof(*s->own_of));
    s->gate = hzp_xgrow(s->gate, &s->gate_room, 4 * micros, sizeof(*s->gate));
    s->owns = s->gates = s->ended = 0;
    s->x->rounds = 0;
    hzp_collectives_append(s->x);
    for (int32_t m = 0; m < micros && rank_of(s); m++)
        hzp_collectives_note_loss(s->x, 0); /* rank 0 has them, as heads end */
    for (int32_t i = 0; i < s->order.tasks; i++) {
        if (s->order.task[i].stage == rank_of(s))
            add_own(s, i, &gradients, &newest);
        add_transfer(s, i, rows[s->order.task[i].micro]);
    }
}

/* --- Tasks ------------------------------------------------------------------------------------ */

const struct hzp_stage_task *hzp_stages_task(const struct hzp_stages *s)
{
    return s->ended < s->owns ? &s->order.task[s->own[s->ended].task] : NULL;
}

void hzp_stages_build(struct hzp_stages *s, struct hzp_plan *chain, const struct hzp_version *v,
                      const struct hzp_micro *micro)
{
    const struct hzp_stage_task *task = hzp_stages_task(s);
    if (!task) {
        hzp_micro_zero_sums(chain, s->space);
        return;
    }
    const struct own *own = &s->own[s->ended];
    hzp_train_space_choose(s->space, task->visit % s->space->slots, own->dx);
    hzp_transfers_begin(&s->x->list);
    hzp_transfers_depend(&s->x->list, 0, own->waits);
    hzp_micro_stage(chain, s->x->config.model, v, micro, s->space, task->work, s->ended == 0);
}

void hzp_stages_end(struct hzp_stages *s, double loss)
{
    const struct hzp_stage_task *task = hzp_stages_task(s);
    if (task && task->work == HZP_STAGE_HEAD)
        hzp_collectives_note_loss(s->x, loss);
    s->ended++;
}
