/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/forward.h"

#include "base/thread.h"
#include "nanobatch/model/ends.h"

/* --- Strands ---------------------------------------------------------------------------------- */

static int32_t rows_with_pads(const struct hzp_forward *f)
{
    return f->batch->rows + f->batch->pads;
}

void hzp_forward_begin(struct hzp_forward *f)
{
    HZP_ASSERT(f->batch->rows > 0);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        f->plan->share[l] = f->shape->share[l];
    f->plan->network_lane = f->shape->network_lane;
    hzp_strands_cut(f);
}

void hzp_forward_end(struct hzp_forward *f)
{
    struct hzp_plan *plan = f->plan;
    plan->lane_of = NULL;
    plan->cores_of = NULL;
    plan->row0 = plan->rows = 0;
    hzp_plan_after(plan, -1);
}

/* --- A range ---------------------------------------------------------------------------------- */

/* Items of the whole batch follow, on the lanes of the first strand; they need nothing. */
static void whole_batch(struct hzp_forward *f, int32_t rows)
{
    f->plan->lane_of = f->shape->lane[f->strand[0].nano];
    f->plan->cores_of = f->shape->cores[f->strand[0].nano];
    f->plan->row0 = 0;
    f->plan->rows = rows;
    hzp_plan_after(f->plan, -1);
}

/* Changes the table of pages, before any strand reads it. */
static void add_changes(struct hzp_forward *f)
{
    struct hzp_plan *plan = f->plan;
    const struct hzp_batch *b = f->batch;
    const struct hzp_page_table *t = b->max.table;
    if (!b->changes)
        return;
    whole_batch(f, 0);
    int32_t cells = t->config.lines * t->config.stride;
    HZP_PLAN_NEXT(plan, scatter, .x = {b->change_page, b->changes, 1, 1, HZP_I32},
                  .y = {t->table, cells, 1, 1, HZP_I32}, .index = b->change_at);
    for (int32_t i = 0; i < f->strands; i++)
        f->strand[i].needs = plan->needs;
}

/* Copies the tokens that the step before draws; the strands that embed them need the copy. */
static void add_refs(struct hzp_forward *f)
{
    struct hzp_plan *plan = f->plan;
    const struct hzp_batch *b = f->batch;
    if (!b->refs)
        return;
    whole_batch(f, 0);
    HZP_PLAN_NEXT(plan, gather, .x = {b->from->token, b->from->logits, 1, 1, HZP_I32},
                  .y = {b->id, b->refs, 1, 1, HZP_I32}, .index = b->ref);
    for (int32_t i = 0; i < f->strands && f->strand[i].row0 < b->refs; i++)
        f->strand[i].needs = plan->needs;
}

/* Turns are made of pieces: 2 l and 2 l + 1 are the two of layer l.  Where sums can overlap, each
 * ends with one; else the first ends behind attention.  Returns the piece's first step. */
static int32_t piece_step(const struct hzp_plan_shape *shape, int32_t piece)
{
    enum hzp_strand_step second = hzp_strands_overlap(shape) ? HZP_STRAND_MLP : HZP_STRAND_OUTPUT;
    return hzp_strand_step(piece / 2, piece % 2 ? second : HZP_STRAND_QKV);
}

/* Where the turn of each strand ends that begins with piece `from`. */
static int32_t turn_end(const struct hzp_plan_shape *shape, int32_t from, int32_t end)
{
    if (shape->order == HZP_ORDER_STRANDS)
        return end;
    if (hzp_strands_overlap(shape))
        return HZP_MIN(from + 1, end);
    /* Skewed turns end behind attention: the first is half a layer, or ends half a layer early. */
    bool half = shape->order == HZP_ORDER_SKEWED && from % 2 == 0;
    return HZP_MIN(from + (half ? 1 : 2), end);
}

static void add_head(struct hzp_forward *f, struct hzp_mat x)
{
    struct hzp_plan *plan = f->plan;
    const struct hzp_batch *batch = f->batch;
    struct hzp_layer layer = {f->model, f->version, NULL, -1};
    int32_t count = batch->logits + batch->pad_logits;
    struct hzp_head_space head = {
        .picked = hzp_mat_rows(f->space->picked, 0, count),
        .normed = hzp_mat_rows(f->space->picked_normed, 0, count),
        .logits = hzp_mat_rows(f->space->logits, 0, count),
        .gathered = f->space->gathered,
        .normed_kept = batch->hiddens > 0,
    };
    whole_batch(f, rows_with_pads(f));
    for (int32_t i = 0; i < f->strands; i++)
        plan->needs = hzp_needs_join(plan->needs, f->strand[i].needs);
    hzp_head_pick(plan, x, batch->logit_row, &head);
    hzp_head_forward(plan, &layer, &head);
    if (batch->hiddens)
        hzp_head_hidden(plan, f->model, head.normed, batch->hidden_logit,
                        hzp_mat_rows(batch->hidden, 0, batch->hiddens));
    HZP_PLAN_NEXT(plan, sample, .logits = head.logits, .row = batch->sample, .edit = batch->edit,
                  .mask = batch->max.masks_max ? batch->mask : NULL, .token = batch->token,
                  .logprob = batch->logprob, .rank = batch->rank,
                  .top_token = batch->tops_wanted ? batch->top_token : NULL,
                  .top_logprob = batch->tops_wanted ? batch->top_logprob : NULL);
}

void hzp_forward_range(struct hzp_forward *f, const struct hzp_layer_range *range,
                       const struct hzp_mat *x_in, const struct hzp_mat *x_out)
{
    struct hzp_mat x = hzp_mat_rows(f->space->x, 0, rows_with_pads(f));
    bool layers = range->first < range->last;
    int32_t from = 2 * range->first, end = 2 * range->last;
    /* The sums of the embedding go first: none waits for another nano-batch's first layer. */
    bool apart = range->embed && layers && hzp_strands_overlap(f->shape) && f->model->tensor;
    f->range = *range;
    f->x_in = x_in && !range->embed ? *x_in : x;
    f->x_out = x_out ? *x_out : x;
    if (!layers && range->embed)
        f->x_in = f->x_out;
    for (int32_t i = 0; i < f->strands; i++)
        f->strand[i].step = range->embed ? 0 : piece_step(f->shape, from);
    if (range->embed) {
        add_changes(f);
        add_refs(f); /* on the same lane: behind the changes */
    }
    for (bool more = range->embed || layers; more; more = from < end) {
        int32_t to = apart ? from : turn_end(f->shape, from, end);
        for (int32_t i = 0; i < f->strands; i++)
            hzp_strand_advance(f, i, piece_step(f->shape, to));
        apart = false;
        from = to;
    }
    if (range->head && f->batch->logits > 0)
        add_head(f, layers ? f->x_out : f->x_in);
}

void hzp_forward_build(struct hzp_plan *plan, const struct hzp_model *model,
                       const struct hzp_version *v, struct hzp_batch *batch,
                       const struct hzp_kv *kv, struct hzp_serve_space *space,
                       const struct hzp_plan_shape *shape)
{
    hzp_assert_engine_thread();
    struct hzp_layer_range all = {0, model->config->layers, true, true};
    struct hzp_forward f = {.plan = plan,
                            .model = model,
                            .version = v,
                            .batch = batch,
                            .kv = kv,
                            .space = space,
                            .shape = shape ? shape : &hzp_plan_sequential};
    if (batch->rows == 0)
        return;
    if (hzp_device_has_graphs(model->dev)) /* a few sizes of steps make few graphs */
        hzp_batch_pad(batch);
    hzp_forward_begin(&f);
    hzp_forward_range(&f, &all, NULL, NULL);
    hzp_forward_end(&f);
}
