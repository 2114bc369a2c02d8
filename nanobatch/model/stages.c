/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/stages.h"

#include "nanobatch/model/ends.h"

/* --- Strands ---------------------------------------------------------------------------------- */

/* Whether the stage computes strands i and i + 1 as one: it joins all nano-batches between them,
 * of which those without rows have no strand. */
static bool joins(const struct hzp_forward *f, enum hzp_layer_stage stage, int32_t i)
{
    bool joined = !f->batch->shallow || stage != HZP_STAGE_ATTEND;
    joined &= f->strand[i].fp8 == f->strand[i + 1].fp8;
    for (int32_t n = f->strand[i].nano; n < f->strand[i + 1].nano; n++)
        joined &= f->shape->joined[stage] >> n & 1;
    return joined;
}

/* Attention's parts of the batch, of one strand or of several. */
static void cut_attention(struct hzp_forward *f)
{
    int32_t cut[HZP_STRANDS_MAX + 1] = {0}, parts = 0;
    for (int32_t i = 0; i < f->strands; i++) {
        f->strand[i].attend = parts;
        if (i + 1 == f->strands || !joins(f, HZP_STAGE_ATTEND, i))
            cut[++parts] = f->strand[i].row0 + f->strand[i].rows;
    }
    int32_t parts_cut = hzp_batch_cut(f->batch, cut, parts, f->attend);
    HZP_ASSERT(parts_cut == parts);
}

/* Which layers a path has; NULL: all. */
static const bool *layers_of(const struct hzp_forward *f, int32_t depth)
{
    int32_t layers = f->model->config->layers;
    struct hzp_path path;
    if (f->model->fp8_guesses)
        depth %= HZP_DEPTH_PARTS;
    if (!depth)
        return NULL;
    bool *goes = HZP_ARENA_ARRAY(&f->plan->arena, bool, layers);
    hzp_depth_path(depth, layers, &path);
    for (int32_t l = 0; l < layers; l++)
        goes[l] = hzp_path_has(&path, l);
    return goes;
}

static void add_strand(struct hzp_forward *f, int32_t nano, int32_t row0, int32_t end, bool fp8)
{
    f->strand[f->strands++] = (struct hzp_strand){
        .nano = nano,
        .row0 = row0,
        .rows = end - row0,
        .needs = hzp_needs_none,
        .fp8 = fp8,
        .append = HZP_ARENA_ARRAY(&f->plan->arena, int32_t, f->model->config->layers)};
}

/* A strand for each run of segments with one path, all of the shape's first nano-batch. */
static void cut_by_path(struct hzp_forward *f)
{
    const struct hzp_batch *b = f->batch;
    HZP_ASSERT(b->turns < HZP_STRANDS_MAX);
    for (int32_t seg = 0, first; seg < b->segs;) {
        for (first = seg; seg < b->segs && b->path[seg] == b->path[first];)
            seg++;
        int32_t end = seg < b->segs ? b->row0[seg] : b->rows + b->pads;
        bool guesses = b->path[first] >= HZP_DEPTH_GUESS && f->model->fp8_guesses;
        add_strand(f, 0, b->row0[first], end, guesses || hzp_model_serves_fp8(f->model));
        f->strand[f->strands - 1].goes = layers_of(f, b->path[first]);
    }
}

void hzp_strands_cut(struct hzp_forward *f)
{
    int32_t cut[HZP_NANO_MAX + 1];
    f->strands = 0;
    if (f->batch->shallow) {
        cut_by_path(f);
        cut_attention(f);
        return;
    }
    hzp_plan_shape_cuts(f->shape, f->batch->rows + f->batch->pads, f->model->layout->slice.ranks,
                        cut);
    for (int32_t n = 0; n < f->shape->nanos; n++)
        if (cut[n] < cut[n + 1])
            add_strand(f, n, cut[n], cut[n + 1], hzp_model_serves_fp8(f->model));
    cut_attention(f);
}

bool hzp_strands_overlap(const struct hzp_plan_shape *shape)
{
    return shape->network_lane != HZP_LANE_COMPUTE;
}

void hzp_strand_resume(struct hzp_forward *f, int32_t i)
{
    const struct hzp_strand *s = &f->strand[i];
    struct hzp_plan *plan = f->plan;
    plan->lane_of = f->shape->lane[s->nano];
    plan->cores_of = f->shape->cores[s->nano];
    plan->needs = s->needs;
    plan->row0 = s->row0;
    plan->rows = s->rows;
}

void hzp_strand_pause(struct hzp_forward *f, int32_t i)
{
    f->strand[i].needs = f->plan->needs;
}

/* --- Runs of strands -------------------------------------------------------------------------- */

/* Strands [first, end), and their rows. */
struct run {
    int32_t first, end, row0, rows;
};

static bool goes_through(const struct hzp_strand *s, int32_t step)
{
    return !step || !s->goes || s->goes[(step - 1) / HZP_STRAND_COUNT];
}

/* The run of strand i's nano-operation in this step. */
static struct run run_of(const struct hzp_forward *f, enum hzp_layer_stage stage, int32_t step,
                         int32_t i)
{
    struct run run = {i, i + 1, 0, 0};
    while (run.first > 0 && joins(f, stage, run.first - 1) &&
           goes_through(&f->strand[run.first - 1], step))
        run.first--;
    while (run.end < f->strands && joins(f, stage, run.end - 1) &&
           goes_through(&f->strand[run.end], step))
        run.end++;
    const struct hzp_strand *last = &f->strand[run.end - 1];
    run.row0 = f->strand[run.first].row0;
    run.rows = last->row0 + last->rows - run.row0;
    return run;
}

static struct hzp_mat rows_of(const struct run *run, struct hzp_mat x)
{
    return hzp_mat_rows(x, run->row0, run->rows);
}

/* The ranks divide the rows of runs that they can divide. */
static bool divided(const struct hzp_forward *f, const struct run *run)
{
    return f->model->tensor && run->rows % f->model->layout->slice.ranks == 0 &&
           f->shape->reduce[f->strand[run->first].nano] == HZP_REDUCE_SCATTERED;
}

/* The run's rows of the serving space, for a layer. */
static struct hzp_layer_space space_of(const struct hzp_forward *f, const struct run *run,
                                       int32_t layer)
{
    const struct hzp_serve_space *s = f->space;
    bool first = layer == f->range.first, last = layer == f->range.last - 1, divide;
    struct hzp_mat x = rows_of(run, s->x), qkv = rows_of(run, s->qkv);
    /* behind all scales of the strands before */
    int32_t scale0 = HZP_ROUND_UP(run->row0, 4) + 4 * run->first;
    divide = divided(f, run);
    bool fp8 = f->strand[run->first].fp8;
    return (struct hzp_layer_space){
        .x_in = first ? rows_of(run, f->x_in) : x,
        .x_mid = x,
        .x_out = last ? rows_of(run, f->x_out) : x,
        .normed = rows_of(run, s->normed),
        .qkv_bare = qkv,
        .qkv = qkv,
        .attn = rows_of(run, s->attn),
        .gate_up = rows_of(run, s->gate_up),
        .inner = rows_of(run, s->inner),
        .narrow = fp8 ? rows_of(run, s->narrow) : (struct hzp_mat){0},
        .narrow_scale = fp8 ? s->narrow_scale + scale0 : NULL,
        .wide = s->wide.ptr ? rows_of(run, s->wide) : s->wide,
        .part = divide ? rows_of(run, s->part) : (struct hzp_mat){0},
        /* With a lane of their own the norm of a sum and the all-gather of its rows stand behind
         * it: with the product that reads them the lane of products would wait for them, and
         * nothing of the other nano-batches could run meanwhile. */
        .ahead = divide && hzp_strands_overlap(f->shape),
        .sums_apart = true,
        .x_whole = first,
        .x_last = last,
    };
}

/* --- Nano-operations -------------------------------------------------------------------------- */

static void embed(struct hzp_forward *f, const struct run *run)
{
    struct hzp_layer layer = {f->model, f->version, NULL, -1};
    hzp_embed_forward(f->plan, &layer, f->batch->id + run->row0, rows_of(run, f->x_in));
}

static void project(struct hzp_forward *f, const struct run *run, const struct hzp_layer *layer)
{
    struct hzp_layer_space space = space_of(f, run, layer->index);
    hzp_attn_project(f->plan, layer, &space);
    const int32_t *slot =
        hzp_batch_slots(f->batch, hzp_config_kind(f->model->config, layer->index)->window);
    hzp_attn_append(f->plan, layer, &space, f->batch->pos + run->row0, slot + run->row0,
                    &f->kv[layer->index]);
    for (int32_t i = run->first; i < run->end; i++)
        f->strand[i].append[layer->index] = f->plan->items - 1;
}

/* Each strand's next item needs the attention that has rows of it. */
static void need_attention(struct hzp_forward *f, const struct run *run,
                           const struct hzp_paged *paged)
{
    int32_t decodes = run->row0 + paged->nano->decode_rows;
    int32_t prompts = run->row0 + paged->nano->rows - paged->nano->bare;
    for (int32_t i = run->first; i < run->end; i++) {
        struct hzp_strand *s = &f->strand[i];
        int32_t end = s->row0 + s->rows;
        bool decode = s->row0<decodes, prefill = end> decodes && s->row0 < prompts;
        if (!decode && !prefill)
            continue; /* padding rows: they still need what appended them */
        hzp_plan_after(f->plan, decode ? paged->decode : -1);
        hzp_plan_also(f->plan, prefill ? paged->prefill : -1);
        s->needs = f->plan->needs;
    }
}

static void attend(struct hzp_forward *f, const struct run *run, const struct hzp_layer *layer)
{
    struct hzp_layer_space space = space_of(f, run, layer->index);
    const struct hzp_nano *nano = &f->attend[f->strand[run->first].attend];
    struct hzp_paged paged = {.nano = nano, .kv = &f->kv[layer->index], .appends = hzp_needs_none};
    struct hzp_needs needs = f->plan->needs;
    for (int32_t i = 0; i < run->first; i++)
        if (f->strand[i].row0 + f->strand[i].rows > nano->joins) {
            hzp_plan_after(f->plan, f->strand[i].append[layer->index]);
            paged.appends = hzp_needs_join(paged.appends, f->plan->needs);
        }
    f->plan->needs = needs;
    hzp_attn_paged(f->plan, layer, &space, &paged);
    need_attention(f, run, &paged);
}

/* What the ranks' products gave, unless each rank has added up its own rows. */
static void sum(struct hzp_forward *f, const struct run *run, enum hzp_tensor_place place,
                struct hzp_mat x)
{
    if (!divided(f, run))
        hzp_tensor_reduce(f->plan, f->model, place, rows_of(run, x));
}

static void output(struct hzp_forward *f, const struct run *run, const struct hzp_layer *layer)
{
    struct hzp_layer_space space = space_of(f, run, layer->index);
    hzp_attn_output(f->plan, layer, &space);
}

static void mlp(struct hzp_forward *f, const struct run *run, const struct hzp_layer *layer)
{
    struct hzp_layer_space space = space_of(f, run, layer->index);
    hzp_mlp_forward(f->plan, layer, &space);
    f->plan->layer = -1;
    if (space.part.ptr && layer->index == f->range.last - 1)
        hzp_tensor_gather_rows(f->plan, f->model, HZP_TENSOR_STREAM, space.x_out);
}

static void issue(struct hzp_forward *f, const struct run *run, int32_t step)
{
    struct hzp_layer layer = {f->model, f->version, NULL, (step - 1) / HZP_STRAND_COUNT};
    if (step == 0) {
        embed(f, run);
        return;
    }
    bool last = layer.index == f->range.last - 1;
    f->plan->layer = (int16_t)layer.index;
    switch ((enum hzp_strand_step)((step - 1) % HZP_STRAND_COUNT)) {
    case HZP_STRAND_QKV:
        project(f, run, &layer);
        break;
    case HZP_STRAND_ATTEND:
        attend(f, run, &layer);
        break;
    case HZP_STRAND_OUTPUT:
        output(f, run, &layer);
        break;
    case HZP_STRAND_SUM_O:
        sum(f, run, HZP_TENSOR_O, f->space->x);
        break;
    case HZP_STRAND_MLP:
        mlp(f, run, &layer);
        break;
    case HZP_STRAND_SUM_DOWN:
        sum(f, run, HZP_TENSOR_DOWN, last ? f->x_out : f->space->x);
        break;
    default:
        HZP_ASSERT(!"no such step");
    }
    f->plan->layer = -1;
}

/* --- Order ------------------------------------------------------------------------------------ */

static enum hzp_layer_stage stage_of(int32_t step)
{
    static const uint8_t stage[HZP_STRAND_COUNT] = {
        [HZP_STRAND_QKV] = HZP_STAGE_QKV,        [HZP_STRAND_ATTEND] = HZP_STAGE_ATTEND,
        [HZP_STRAND_OUTPUT] = HZP_STAGE_REST,    [HZP_STRAND_MLP] = HZP_STAGE_REST,
        [HZP_STRAND_SUM_O] = HZP_STAGE_EXCHANGE, [HZP_STRAND_SUM_DOWN] = HZP_STAGE_EXCHANGE,
    };
    return step ? (enum hzp_layer_stage)stage[(step - 1) % HZP_STRAND_COUNT] : HZP_STAGE_REST;
}

/* Whether nothing is issued of the strand in this step: there are no other ranks, or it does not go
 * through the layer. */
static bool is_empty(const struct hzp_forward *f, const struct hzp_strand *s)
{
    bool alone = s->step && stage_of(s->step) == HZP_STAGE_EXCHANGE && !f->model->tensor;
    return alone || !goes_through(s, s->step);
}

/* Prompt rows read what earlier strands append, which must have been issued. */
static void advance_appends(struct hzp_forward *f, const struct run *run, int32_t step)
{
    const struct hzp_nano *nano = &f->attend[f->strand[run->first].attend];
    for (int32_t i = 0; i < run->first; i++)
        if (f->strand[i].row0 + f->strand[i].rows > nano->joins)
            hzp_strand_advance(f, i, step);
}

/* The strands of the next nano-operation that has rows of strand i reach it, and it is issued.
 * They need only earlier steps of each other, so this ends. */
static void issue_next(struct hzp_forward *f, int32_t i)
{
    int32_t step = f->strand[i].step;
    struct run run = run_of(f, stage_of(step), step, i);
    for (int32_t k = run.first; k < run.end; k++)
        hzp_strand_advance(f, k, step);
    if (stage_of(step) == HZP_STAGE_ATTEND)
        advance_appends(f, &run, step);
    f->plan->needs = hzp_needs_none;
    for (int32_t k = run.first; k < run.end; k++)
        f->plan->needs = hzp_needs_join(f->plan->needs, f->strand[k].needs);
    f->plan->lane_of = f->shape->lane[f->strand[run.first].nano];
    f->plan->cores_of = f->shape->cores[f->strand[run.first].nano];
    f->plan->row0 = run.row0;
    f->plan->rows = run.rows;
    int32_t items = f->plan->items;
    issue(f, &run, step);
    bool attended = stage_of(step) == HZP_STAGE_ATTEND; /* it has set what they need */
    for (int32_t k = run.first; k < run.end; k++) {
        if (f->plan->items > items && !attended)
            f->strand[k].needs = f->plan->needs;
        f->strand[k].step++;
    }
}

void hzp_strand_advance(struct hzp_forward *f, int32_t i, int32_t to)
{
    while (f->strand[i].step < to)
        if (is_empty(f, &f->strand[i]))
            f->strand[i].step++;
        else
            issue_next(f, i);
}
