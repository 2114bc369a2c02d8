/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/ride.h"

#include "nanobatch/model/train_space_state.h"

/* --- Which layers ----------------------------------------------------------------------------- */

/* Whether two items belong to one layer of one chunk. */
static bool same_layer(const struct hzp_plan *chain, int32_t a, int32_t b)
{
    const struct hzp_item *x = &chain->item[a], *y = &chain->item[b];
    return x->layer >= 0 && x->layer == y->layer && x->row0 == y->row0;
}

static int32_t chunk_at(const struct hzp_micro *micro, int32_t row0)
{
    int32_t i = 0;
    while (i < micro->chunks && micro->chunk[i].row0 != row0)
        i++;
    return i;
}

bool hzp_ride_find(const struct hzp_rider *rider, const struct hzp_version *serving,
                   const struct hzp_plan *chain, int32_t from, int32_t to, int32_t rows,
                   struct hzp_ride *ret)
{
    if (!rider || rider->version != serving || rows <= 0 || rider->micro->path.count ||
        rider->space->recompute == HZP_RECOMPUTE_LAYER)
        return false;
    int32_t forward = rider->space->forward_end, end = HZP_MIN(to, forward), next;
    struct hzp_ride run = {.layer0 = 0}, best = run;
    for (int32_t i = from; i < end; i = next) {
        const struct hzp_item *item = &chain->item[i];
        for (next = i + 1; next < forward && same_layer(chain, i, next);)
            next++;
        bool whole = item->layer >= 0 && next <= end && !(i > 0 && same_layer(chain, i - 1, i));
        if (!whole || item->row0 + item->rows + rows > rider->space->rows_room)
            continue;
        if (run.to != i || item->layer == 0)
            run = (struct hzp_ride){.chunk = item->row0, .layer0 = item->layer, .from = i};
        run.layer1 = item->layer + 1;
        run.to = next;
        if (run.layer1 - run.layer0 > best.layer1 - best.layer0)
            best = run;
    }
    if (best.layer1 == best.layer0)
        return false;
    best.rider = *rider;
    best.chunk = chunk_at(rider->micro, best.chunk);
    *ret = best;
    return true;
}

/* --- Times ------------------------------------------------------------------------------------ */

/* Items [from, to) of a chain, as far as they are ops of rows, share those ops with so many rows of
 * serving. */
struct shared {
    int32_t rows, from, to;
};

/* Such an item takes what the op of both tenants takes longer than serving's alone. */
static double shared_ns(const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t i,
                        const void *ctx)
{
    const struct shared *s = ctx;
    const struct hzp_item *item = &chain->item[i];
    double alone = hzp_op_ns(times, item->op, item->args);
    int32_t rows = hzp_item_rows(item);
    if (i < s->from || i >= s->to || item->layer < 0 || !rows)
        return alone;
    double more =
        hzp_item_ns_with(times, item, rows + s->rows) - hzp_item_ns_with(times, item, s->rows);
    /* The factors of two size classes may differ by more than the op does. */
    return HZP_MIN(HZP_MAX(more, alone / 4), alone);
}

int32_t hzp_ride_cut(const struct hzp_rider *rider, const struct hzp_version *serving,
                     const struct hzp_op_times *times, const struct hzp_plan *chain, int32_t from,
                     uint64_t ns, uint64_t item_ns, int32_t rows)
{
    struct hzp_ride ride;
    if (!rider || rider->version != serving || rows <= 0)
        return hzp_slice_end(times, chain, from, ns, item_ns, NULL);
    struct shared forward = {rows, 0, rider->space->forward_end};
    struct hzp_item_time time = {shared_ns, &forward};
    int32_t to = hzp_slice_end(times, chain, from, ns, item_ns, &time);
    if (!hzp_ride_find(rider, serving, chain, from, to, rows, &ride))
        return hzp_slice_end(times, chain, from, ns, item_ns, NULL);
    while (to > ride.to && to < forward.to && same_layer(chain, to - 1, to))
        to--;
    return to;
}

double hzp_ride_slice_ns(const struct hzp_rider *rider, const struct hzp_version *serving,
                         const struct hzp_op_times *times, const struct hzp_plan *chain,
                         int32_t from, int32_t to, int32_t rows, double *ret_ride_ns)
{
    struct hzp_ride ride;
    *ret_ride_ns = 0;
    if (!hzp_ride_find(rider, serving, chain, from, to, rows, &ride))
        return hzp_slice_ns(times, chain, from, to, NULL);
    struct shared part = {rows, ride.from, ride.to};
    struct hzp_item_time time = {shared_ns, &part};
    *ret_ride_ns = hzp_slice_ns(times, chain, ride.from, ride.to, &time);
    return hzp_slice_ns(times, chain, from, to, &time);
}

/* --- Layers of both tenants ------------------------------------------------------------------- */

/* The residual stream of serving's rows before layer `layer`, where they lie behind the chunk's. */
static struct hzp_mat behind(const struct hzp_ride *ride, int32_t layer, int32_t rows)
{
    struct hzp_packed chunk = hzp_micro_packed(ride->rider.micro, ride->chunk);
    return hzp_mat_rows(ride->rider.space->kept[layer].x_in, chunk.row0 + chunk.rows, rows);
}

/* Rows [row0, row0 + rows) of what rope and attention read and write. */
static struct hzp_layer_space tenant_rows(const struct hzp_layer_space *s, int32_t row0,
                                          int32_t rows)
{
    struct hzp_layer_space of = *s;
    of.qkv_bare = hzp_mat_rows(s->qkv_bare, row0, rows);
    of.qkv = hzp_mat_rows(s->qkv, row0, rows);
    of.attn = hzp_mat_rows(s->attn, row0, rows);
    if (s->wide.ptr)
        of.wide = hzp_mat_rows(s->wide, row0, rows);
    return of;
}

/* Training's rope and attention, as items of training between serving's.  Returns the last. */
static int32_t add_train_attention(struct hzp_plan *plan, const struct hzp_layer *layer,
                                   const struct hzp_layer_space *s, const struct hzp_packed *chunk)
{
    int32_t row0 = plan->row0, rows = plan->rows;
    plan->tenant = HZP_TENANT_TRAIN;
    plan->row0 = chunk->row0;
    plan->rows = chunk->rows;
    hzp_attn_packed(plan, layer, s, chunk);
    plan->tenant = HZP_TENANT_SERVE;
    plan->row0 = row0;
    plan->rows = rows;
    return plan->items - 1;
}

/* A layer with the chunk's rows first and serving's behind them.  The two attentions need only the
 * product before them; the product behind needs both. */
static void add_layer(struct hzp_forward *f, const struct hzp_ride *ride, int32_t index)
{
    struct hzp_plan *plan = f->plan;
    const struct hzp_nano *nano = &f->attend[0];
    struct hzp_packed chunk = hzp_micro_packed(ride->rider.micro, ride->chunk);
    struct hzp_layer layer = {f->model, f->version, NULL, index};
    struct hzp_layer_space both =
        hzp_train_layer_space(ride->rider.space, index, index, chunk.row0, chunk.rows + nano->rows);
    both.quantum_flops = 0;
    struct hzp_layer_space train = tenant_rows(&both, 0, chunk.rows);
    struct hzp_layer_space serve = tenant_rows(&both, chunk.rows, nano->rows);
    struct hzp_paged paged = {.nano = nano, .kv = &f->kv[index], .appends = hzp_needs_none};

    plan->layer = (int16_t)index;
    plan->rides = chunk.rows;
    hzp_attn_project(plan, &layer, &both);
    plan->rides = 0;
    struct hzp_needs product = plan->needs;
    int32_t trained = add_train_attention(plan, &layer, &train, &chunk);
    plan->needs = product;
    const int32_t *slot =
        hzp_batch_slots(f->batch, hzp_config_kind(f->model->config, index)->window);
    hzp_attn_append(plan, &layer, &serve, nano->pos, slot + nano->row0, paged.kv);
    hzp_attn_paged(plan, &layer, &serve, &paged);
    hzp_plan_also(plan, trained);
    plan->rides = chunk.rows;
    hzp_attn_output(plan, &layer, &both);
    hzp_mlp_forward(plan, &layer, &both);
    plan->rides = 0;
    plan->layer = -1;
}

int32_t hzp_ride_build(struct hzp_forward *f, const struct hzp_ride *ride, int32_t need)
{
    int32_t layers = f->model->config->layers, rows = f->batch->rows + f->batch->pads;
    struct hzp_layer_range before = {0, ride->layer0, true, false};
    struct hzp_layer_range next = {ride->layer1, ride->layer1 + 1, false, false};
    struct hzp_layer_range rest = {HZP_MIN(next.last, layers), layers, false, true};
    struct hzp_mat in = behind(ride, ride->layer0, rows), out = behind(ride, ride->layer1, rows);
    hzp_forward_begin(f);
    HZP_ASSERT(f->strands == 1);

    hzp_forward_range(f, &before, NULL, &in);
    hzp_strand_resume(f, 0);
    for (int32_t l = ride->layer0; l < ride->layer1; l++) {
        if (l == ride->layer0)
            hzp_plan_also(f->plan, need);
        add_layer(f, ride, l);
    }
    hzp_strand_pause(f, 0);

    int32_t end, head;
    if (ride->layer1 < layers) {
        hzp_forward_range(f, &next, &out, NULL);
        end = hzp_needs_newest(&f->strand[0].needs);
        hzp_forward_range(f, &rest, NULL, NULL);
    } else {
        head = f->plan->items; /* if there is one, its first item reads the rows behind the chunk */
        hzp_forward_range(f, &rest, &out, NULL);
        end = head < f->plan->items ? head : hzp_needs_newest(&f->strand[0].needs);
    }
    hzp_forward_end(f);
    return end;
}
