/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/forward.h"

#include "base/thread.h"
#include "nanobatch/build/ends.h"
#include "nanobatch/build/tensor.h"

#include <stdlib.h>
#include <string.h>

static size_t lay_out(struct hzp_serve_space *s, char *base, const struct hzp_layout *layout,
                      enum hzp_dtype act, bool fp8, int32_t rows, int32_t logits)
{
    const struct hzp_model_config *c = &layout->config;
    int32_t inner = hzp_layout_inner_max(layout);
    int32_t packed = (c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim;
    size_t at = 0;
    s->x = hzp_mat_cut(base, &at, rows, c->width, HZP_F32);
    s->normed = hzp_mat_cut(base, &at, rows, c->width, act);
    s->qkv = hzp_mat_cut(base, &at, rows, packed, act);
    s->attn = hzp_mat_cut(base, &at, rows, c->heads.heads * c->heads.dim, act);
    s->gate_up = hzp_mat_cut(base, &at, rows, 2 * inner, act);
    s->inner = hzp_mat_cut(base, &at, rows, inner, act);
    s->picked = hzp_mat_cut(base, &at, logits, c->width, HZP_F32);
    s->picked_normed = hzp_mat_cut(base, &at, logits, c->width, act);
    s->logits = hzp_mat_cut(base, &at, logits, c->vocab, HZP_F32);
    s->gathered = hzp_gathered_cut(base, &at, layout, logits);
    if (layout->slice.ranks > 1)
        s->part = hzp_mat_cut(base, &at, rows, c->width, HZP_F32);
    if (fp8)
        s->narrow = hzp_narrow_cut(base, &at, layout, rows, &s->narrow_scale);
    return at;
}

size_t hzp_serve_space_bytes(const struct hzp_layout *layout, enum hzp_dtype act, bool fp8,
                             int32_t rows_max, int32_t logits_max)
{
    struct hzp_serve_space s;
    return lay_out(&s, NULL, layout, act, fp8, rows_max, logits_max);
}

/* Attention leaves out the padding rows of steps with prompts: what the rows' later ops read there
 * must be numbers. */
static int clear_attention(struct hzp_serve_space *s)
{
    size_t bytes = (size_t)s->attn.rows * (size_t)s->attn.stride * hzp_dtype_size(s->attn.type);
    void *zero = calloc(1, bytes);
    if (!zero)
        return HZP_ENOMEM;
    int r = hzp_device_copy(s->dev, s->attn.ptr, zero, bytes);
    free(zero);
    return r;
}

int hzp_serve_space_create(const struct hzp_model *model, int32_t rows_max, int32_t logits_max,
                           struct hzp_serve_space **ret)
{
    struct hzp_serve_space *s = hzp_xcalloc(1, sizeof(*s));
    bool fp8 = hzp_weights_fp8(model->weights);
    s->dev = model->dev;
    s->bytes = hzp_serve_space_bytes(model->layout, model->act, fp8, rows_max, logits_max);
    int r = hzp_device_alloc(model->dev, HZP_MEM_DEVICE, s->bytes, &s->memory);
    if (r < 0) {
        free(s);
        return r;
    }
    lay_out(s, s->memory, model->layout, model->act, fp8, rows_max, logits_max);
    r = hzp_device_has_graphs(model->dev) ? clear_attention(s) : HZP_OK;
    if (r < 0) {
        hzp_serve_space_destroy(s);
        return r;
    }
    *ret = s;
    return HZP_OK;
}

void hzp_serve_space_destroy(struct hzp_serve_space *s)
{
    if (!s)
        return;
    hzp_device_free(s->dev, HZP_MEM_DEVICE, s->memory);
    free(s);
}

/* Rows [row0, row0 + rows) of the space, of nano-batch `nano`. */
static struct hzp_layer_space rows_of(const struct hzp_serve_space *s, int32_t nano, int32_t row0,
                                      int32_t rows)
{
    int32_t scale0 = HZP_ROUND_UP(row0, 4) + 4 * nano; /* behind all of the nano-batch before */
    struct hzp_mat x = hzp_mat_rows(s->x, row0, rows), qkv = hzp_mat_rows(s->qkv, row0, rows);
    return (struct hzp_layer_space){
        .x_in = x,
        .x_mid = x,
        .x_out = x,
        .normed = hzp_mat_rows(s->normed, row0, rows),
        .qkv_bare = qkv,
        .qkv = qkv,
        .attn = hzp_mat_rows(s->attn, row0, rows),
        .gate_up = hzp_mat_rows(s->gate_up, row0, rows),
        .inner = hzp_mat_rows(s->inner, row0, rows),
        .narrow = s->narrow.ptr ? hzp_mat_rows(s->narrow, row0, rows) : s->narrow,
        .narrow_scale = s->narrow.ptr ? s->narrow_scale + scale0 : NULL,
    };
}

/* Whether pieces end with collectives, so that they can run beside the next nano-batch's. */
static bool halves(const struct hzp_plan_shape *shape)
{
    return shape->network_lane != HZP_LANE_COMPUTE;
}

/* The ranks divide the rows of nano-batches that they can divide. */
static void scatter_rows(const struct hzp_forward *f, int32_t nano, struct hzp_strand *s)
{
    if (f->shape->reduce[nano] != HZP_REDUCE_SCATTERED || !f->model->tensor ||
        s->nano.rows % f->model->layout->slice.ranks != 0)
        return;
    s->space.part = hzp_mat_rows(f->space->part, s->nano.row0, s->nano.rows);
    /* With a lane of their own the norm of a sum and the all-gather of its rows stand behind it:
     * with the product that reads them the lane of products would wait for them, and nothing of the
     * other nano-batches could run meanwhile. */
    s->space.ahead = halves(f->shape);
}

/* Ranks can divide the rows of nano-batches that are to be divided, but the last. */
static void round_cuts(const struct hzp_forward *f, int32_t *cut)
{
    int32_t ranks = HZP_MAX(f->model->layout->slice.ranks, 1);
    for (int32_t i = 1; i < f->shape->nanos; i++)
        if (f->shape->reduce[i - 1] == HZP_REDUCE_SCATTERED ||
            f->shape->reduce[i] == HZP_REDUCE_SCATTERED)
            cut[i] = HZP_MAX(cut[i] - cut[i] % ranks, cut[i - 1]);
}

/* --- Strands ---------------------------------------------------------------------------------- */

static int32_t rows_with_pads(const struct hzp_forward *f)
{
    return f->batch->rows + f->batch->pads;
}

void hzp_forward_begin(struct hzp_forward *f)
{
    int32_t cut[HZP_NANO_MAX + 1], nano = 0;
    struct hzp_nano nanos[HZP_NANO_MAX];
    HZP_ASSERT(f->batch->rows > 0);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        f->plan->share[l] = f->shape->share[l];
    f->plan->network_lane = f->shape->network_lane;
    hzp_plan_shape_cuts(f->shape, rows_with_pads(f), cut);
    round_cuts(f, cut);
    f->strands = hzp_batch_cut(f->batch, cut, f->shape->nanos, nanos);
    for (int32_t i = 0; i < f->strands; i++, nano++) {
        while (cut[nano] == cut[nano + 1]) /* of no rows: it was left out */
            nano++;
        f->strand[i] = (struct hzp_strand){
            .nano = nanos[i],
            .space = rows_of(f->space, i, nanos[i].row0, nanos[i].rows),
            .lane_of = f->shape->lane[nano],
            .tail = -1,
            .also = {-1, -1},
            .append = HZP_ARENA_ARRAY(&f->plan->arena, int32_t, f->model->config->layers)};
        scatter_rows(f, nano, &f->strand[i]);
    }
}

void hzp_forward_end(struct hzp_forward *f)
{
    struct hzp_plan *plan = f->plan;
    plan->lane_of = NULL;
    plan->tail = plan->also[0] = plan->also[1] = -1;
    plan->row0 = plan->rows = 0;
}

void hzp_forward_resume(struct hzp_forward *f, int32_t i)
{
    const struct hzp_strand *s = &f->strand[i];
    struct hzp_plan *plan = f->plan;
    plan->lane_of = s->lane_of;
    plan->tail = s->tail;
    memcpy(plan->also, s->also, sizeof(plan->also));
    plan->row0 = s->nano.row0;
    plan->rows = s->nano.rows;
}

void hzp_forward_pause(struct hzp_forward *f, int32_t i)
{
    struct hzp_strand *s = &f->strand[i];
    s->tail = f->plan->tail;
    memcpy(s->also, f->plan->also, sizeof(s->also));
}

/* --- A range ---------------------------------------------------------------------------------- */

/* A range while it is built: the residual stream of all rows at its two ends. */
struct part {
    struct hzp_layer_range range;
    struct hzp_mat x_in, x_out;
    bool embeds; /* the next turn of each strand begins with the embedding */
};

static struct hzp_mat strand_rows(const struct hzp_strand *s, struct hzp_mat x)
{
    return hzp_mat_rows(x, s->nano.row0, s->nano.rows);
}

/* Changes the table of pages, before any strand reads it. */
static void add_changes(struct hzp_forward *f)
{
    struct hzp_plan *plan = f->plan;
    const struct hzp_batch *b = f->batch;
    const struct hzp_page_table *t = b->max.table;
    if (!b->changes)
        return;
    plan->lane_of = f->strand[0].lane_of;
    plan->tail = plan->also[0] = plan->also[1] = -1;
    plan->row0 = plan->rows = 0;
    int32_t cells = t->config.lines * t->config.stride;
    int32_t changes = HZP_PLAN_NEXT(plan, scatter, .x = {b->change_page, b->changes, 1, 1, HZP_I32},
                                    .y = {t->table, cells, 1, 1, HZP_I32}, .index = b->change_at);
    for (int32_t i = 0; i < f->strands; i++)
        f->strand[i].tail = changes;
}

/* Copies the tokens that the step before draws; the strands that embed them need the copy. */
static void add_refs(struct hzp_forward *f)
{
    struct hzp_plan *plan = f->plan;
    const struct hzp_batch *b = f->batch;
    if (!b->refs)
        return;
    plan->lane_of = f->strand[0].lane_of;
    plan->tail = plan->also[0] = plan->also[1] = -1;
    plan->row0 = plan->rows = 0;
    int32_t refs =
        HZP_PLAN_NEXT(plan, gather, .x = {b->from->token, b->from->logits, 1, 1, HZP_I32},
                      .y = {b->id, b->refs, 1, 1, HZP_I32}, .index = b->ref);
    for (int32_t i = 0; i < f->strands && f->strand[i].nano.row0 < b->refs; i++)
        f->strand[i].tail = refs;
}

/* Pieces 2 l and 2 l + 1 of a strand are the two pieces of layer l. */
static void add_piece(struct hzp_forward *f, const struct part *part, int32_t i, int32_t piece)
{
    struct hzp_strand *s = &f->strand[i];
    struct hzp_layer layer = {f->model, f->version, NULL, piece / 2};
    struct hzp_layer_space space = s->space;
    int32_t need[HZP_NANO_MAX];
    if (layer.index == part->range.first)
        space.x_in = strand_rows(s, part->x_in);
    if (layer.index == part->range.last - 1)
        space.x_out = strand_rows(s, part->x_out);
    space.x_whole = layer.index == part->range.first;
    space.x_last = layer.index == part->range.last - 1;
    if (piece % 2) {
        hzp_layer_finish(f->plan, &layer, &space, halves(f->shape));
        return;
    }
    struct hzp_paged paged = {.nano = &s->nano, .kv = &f->kv[layer.index], .need = need};
    for (const struct hzp_strand *b = f->strand; b < s; b++)
        if (b->nano.row0 + b->nano.rows > s->nano.joins)
            need[paged.needs++] = b->append[layer.index];
    hzp_layer_attend_paged(f->plan, &layer, &space, &paged, halves(f->shape));
    s->append[layer.index] = paged.append;
}

/* Pieces [from, to) of strand i; the first turn includes the embedding, if the range has it and it
 * was no turn of its own. */
static void add_turn(struct hzp_forward *f, const struct part *part, int32_t i, int32_t from,
                     int32_t to)
{
    const struct hzp_strand *s = &f->strand[i];
    struct hzp_layer layer = {f->model, f->version, NULL, -1};
    hzp_forward_resume(f, i);
    if (part->embeds)
        hzp_embed_forward(f->plan, &layer, s->nano.id, strand_rows(s, part->x_in));
    for (int32_t piece = from; piece < to; piece++)
        add_piece(f, part, i, piece);
    if (s->space.part.ptr && to == 2 * part->range.last && part->range.first < part->range.last)
        hzp_tensor_gather_rows(f->plan, f->model, HZP_TENSOR_STREAM, strand_rows(s, part->x_out));
    hzp_forward_pause(f, i);
}

/* Where the turn of each strand ends that begins with piece `from`. */
static int32_t turn_end(const struct hzp_plan_shape *shape, int32_t from, int32_t end)
{
    if (shape->order == HZP_ORDER_STRANDS)
        return end;
    if (halves(shape))
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
    int32_t count = batch->logits + batch->pad_segs;
    struct hzp_head_space head = {
        .picked = hzp_mat_rows(f->space->picked, 0, count),
        .normed = hzp_mat_rows(f->space->picked_normed, 0, count),
        .logits = hzp_mat_rows(f->space->logits, 0, count),
        .gathered = f->space->gathered,
        .normed_kept = batch->hiddens > 0,
    };
    plan->lane_of = f->strand[0].lane_of;
    plan->tail = plan->also[0] = plan->also[1] = -1;
    plan->row0 = 0;
    plan->rows = rows_with_pads(f);
    hzp_head_pick(plan, x, batch->logit_row, &head);
    for (int32_t i = 0; i < f->strands; i++)
        hzp_plan_need(plan, f->strand[i].tail);
    hzp_head_forward(plan, &layer, &head);
    if (batch->hiddens)
        HZP_PLAN_NEXT(plan, gather, .x = head.normed,
                      .y = hzp_mat_rows(batch->hidden, 0, batch->hiddens),
                      .index = batch->hidden_logit);
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
    struct part part = {*range, x_in && !range->embed ? *x_in : x, x_out ? *x_out : x,
                        range->embed};
    bool layers = range->first < range->last;
    int32_t from = 2 * range->first, end = 2 * range->last;
    if (!layers && range->embed)
        part.x_in = part.x_out;
    if (range->embed) {
        add_changes(f);
        add_refs(f); /* on the same lane: behind the changes */
    }
    for (bool more = range->embed || layers; more; more = from < end) {
        /* The sums of the embedding go first: none waits for another nano-batch's first layer. */
        bool apart = part.embeds && layers && halves(f->shape) && f->model->tensor;
        int32_t to = apart ? from : turn_end(f->shape, from, end);
        for (int32_t i = 0; i < f->strands; i++)
            add_turn(f, &part, i, from, to);
        part.embeds = false;
        from = to;
    }
    if (range->head && f->batch->logits > 0)
        add_head(f, layers ? part.x_out : part.x_in);
}

void hzp_forward_build(struct hzp_plan *plan, const struct hzp_model *model,
                       const struct hzp_version *v, struct hzp_batch *batch,
                       const struct hzp_kv *kv, struct hzp_serve_space *space,
                       const struct hzp_plan_shape *shape)
{
    hzp_assert_engine_thread();
    struct hzp_layer_range all = hzp_layer_range_all(model->config);
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
