/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/forward.h"

#include "nanobatch/build/layer.h"
#include "nanobatch/build/ride.h"
#include "nanobatch/build/train_space.h"

#include <stdlib.h>
#include <string.h>

static size_t lay_out(struct hzp_serve_space *s, char *base, const struct hzp_model_config *c,
                      enum hzp_dtype act, bool fp8, int32_t rows, int32_t logits)
{
    int32_t packed = (c->heads.heads + 2 * c->heads.kv_heads) * c->heads.dim;
    size_t at = 0;
    s->x = hzp_mat_cut(base, &at, rows, c->width, HZP_F32);
    s->normed = hzp_mat_cut(base, &at, rows, c->width, act);
    s->qkv = hzp_mat_cut(base, &at, rows, packed, act);
    s->attn = hzp_mat_cut(base, &at, rows, c->heads.heads * c->heads.dim, act);
    s->gate_up = hzp_mat_cut(base, &at, rows, 2 * c->inner, act);
    s->inner = hzp_mat_cut(base, &at, rows, c->inner, act);
    s->picked = hzp_mat_cut(base, &at, logits, c->width, HZP_F32);
    s->picked_normed = hzp_mat_cut(base, &at, logits, c->width, act);
    s->logits = hzp_mat_cut(base, &at, logits, c->vocab, HZP_F32);
    if (fp8)
        s->narrow = hzp_narrow_cut(base, &at, c, rows, &s->narrow_scale);
    return at;
}

size_t hzp_serve_space_bytes(const struct hzp_model_config *config, enum hzp_dtype act, bool fp8,
                             int32_t rows_max, int32_t logits_max)
{
    struct hzp_serve_space s;
    return lay_out(&s, NULL, config, act, fp8, rows_max, logits_max);
}

int hzp_serve_space_create(const struct hzp_model *model, int32_t rows_max, int32_t logits_max,
                           struct hzp_serve_space **ret)
{
    struct hzp_serve_space *s = hzp_xcalloc(1, sizeof(*s));
    bool fp8 = hzp_weights_fp8(model->weights);
    s->dev = model->dev;
    s->bytes = hzp_serve_space_bytes(model->config, model->act, fp8, rows_max, logits_max);
    int r = hzp_device_alloc(model->dev, HZP_MEM_DEVICE, s->bytes, &s->memory);
    if (r < 0) {
        free(s);
        return r;
    }
    lay_out(s, s->memory, model->config, model->act, fp8, rows_max, logits_max);
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

/* Of the nano-batch that comes as number `nano`. */
static struct hzp_layer_space rows_of(const struct hzp_serve_space *s, int32_t nano, int32_t row0,
                                      int32_t rows)
{
    int32_t scale0 = HZP_ROUND_UP(row0, 4) + 4 * nano; /* behind all of the one before */
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

/* One nano-batch's chain while the plan is built. */
struct chain {
    struct hzp_nano nano;
    struct hzp_layer_space space;
    const uint8_t *lane_of;
    int32_t tail, also[2];
    int32_t *append;       /* [layers] its rope items, which append */
    struct hzp_ride *ride; /* NULL: it carries nobody */
};

static struct hzp_packed riding(const struct hzp_ride *ride)
{
    return hzp_micro_packed(ride->rider.micro, ride->chunk);
}

/* The residual stream of a riding chain's rows before layer `layer`, behind the chunk's. */
static struct hzp_mat behind(const struct chain *c, int32_t layer)
{
    struct hzp_packed chunk = riding(c->ride);
    return hzp_mat_rows(c->ride->rider.space->kept[layer].x_in, chunk.row0 + chunk.rows,
                        c->nano.rows);
}

static bool carries(const struct chain *c, int32_t layer)
{
    return c->ride && layer >= c->ride->layer0 && layer < c->ride->layer1;
}

/* Where the chain's rows of a layer are: in layers that carry a chunk, behind its rows. */
static struct hzp_layer_space space_of(const struct chain *c, int32_t layer)
{
    struct hzp_layer_space s = c->space;
    if (carries(c, layer)) {
        struct hzp_packed chunk = riding(c->ride);
        s = hzp_train_layer_space(c->ride->rider.space, layer, chunk.row0,
                                  chunk.rows + c->nano.rows);
        s.quantum_flops = 0;
        s.rides = chunk.rows;
        return s;
    }
    if (c->ride && layer == c->ride->layer1)
        s.x_in = behind(c, layer);
    if (carries(c, layer + 1))
        s.x_out = behind(c, layer + 1);
    return s;
}

static void add_head(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_batch *batch,
                     struct hzp_serve_space *space, struct hzp_mat x, const struct chain *chain,
                     int32_t chains)
{
    const struct hzp_weights *w = model->weights;
    int32_t count = batch->logits + batch->pads;
    struct hzp_mat picked = hzp_mat_rows(space->picked, 0, count);
    struct hzp_mat normed = hzp_mat_rows(space->picked_normed, 0, count);
    struct hzp_mat logits = hzp_mat_rows(space->logits, 0, count);
    plan->lane_of = chain[0].lane_of;
    plan->tail = plan->also[0] = plan->also[1] = -1;
    HZP_PLAN_NEXT(plan, gather, .x = x, .y = picked, .index = batch->logit_row);
    for (int32_t i = 0; i < chains; i++)
        hzp_plan_need(plan, chain[i].tail);
    if (chain[0].ride && chain[0].ride->layer1 == model->config->layers)
        chain[0].ride->end = plan->tail;
    HZP_PLAN_NEXT(plan, rmsnorm, .x = picked, .w = hzp_version_mat(w, v, HZP_FINAL_NORM, -1),
                  .y = normed, .eps = model->config->norm_eps);
    HZP_PLAN_NEXT(plan, matmul, .a = normed, .b = hzp_version_mat(w, v, HZP_HEAD, -1), .c = logits,
                  .trans_b = 1);
    HZP_PLAN_NEXT(plan, sample, .logits = logits, .row = batch->sample, .edit = batch->edit,
                  .token = batch->token, .logprob = batch->logprob, .rank = batch->rank,
                  .top_token = batch->tops_wanted ? batch->top_token : NULL,
                  .top_logprob = batch->tops_wanted ? batch->top_logprob : NULL);
}

/* Pieces 2 l and 2 l + 1 of a chain are the two halves of layer l; the first brings the embedding.
 */
static void add_piece(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_version *v, const struct hzp_kv *kv, const struct chain *all,
                      struct chain *c, int32_t piece)
{
    int32_t layer = piece / 2;
    if (piece == 0)
        HZP_PLAN_NEXT(plan, embed, .table = hzp_version_mat(model->weights, v, HZP_EMBED, -1),
                      .y = carries(c, 0) ? behind(c, 0) : c->space.x_in, .id = c->nano.id);
    struct hzp_layer_space own = space_of(c, layer);
    if (piece % 2) {
        hzp_layer_finish(plan, model, v, layer, &own);
        if (c->ride && layer == c->ride->layer1)
            c->ride->end = plan->tail;
        return;
    }
    struct hzp_packed packed, *with = NULL;
    if (carries(c, layer)) {
        packed = riding(c->ride);
        with = &packed;
        plan->also[1] = layer == c->ride->layer0 ? c->ride->need : -1;
    }
    int32_t need[HZP_NANO_MAX];
    struct hzp_paged paged = {.nano = &c->nano, .kv = &kv[layer], .need = need};
    for (const struct chain *b = all; b < c; b++)
        if (b->nano.row0 + b->nano.rows > c->nano.joins)
            need[paged.needs++] = b->append[layer];
    hzp_layer_attend(plan, model, v, layer, &own, &paged, with);
    c->append[layer] = paged.append;
}

/* Pieces of one chain's turn end before this one. */
static int32_t turn_end(uint8_t order, int32_t turn, int32_t pieces)
{
    int32_t end =
        order == HZP_ORDER_CHAINS ? pieces : 2 * turn + (order == HZP_ORDER_LAYERS ? 2 : 1);
    return HZP_MIN(end, pieces);
}

static void add_turn(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_kv *kv, const struct chain *all,
                     struct chain *c, int32_t from, int32_t to)
{
    plan->lane_of = c->lane_of;
    plan->tail = c->tail;
    memcpy(plan->also, c->also, sizeof(plan->also));
    plan->row0 = c->nano.row0;
    plan->rows = c->nano.rows;
    for (int32_t piece = from; piece < to; piece++)
        add_piece(plan, model, v, kv, all, c, piece);
    c->tail = plan->tail;
    memcpy(c->also, plan->also, sizeof(c->also));
}

/* Fetches the tokens that the step before draws.  Returns the item; -1: there are none. */
static int32_t add_refs(struct hzp_plan *plan, const struct hzp_batch *b, const uint8_t *lane_of)
{
    if (!b->refs)
        return -1;
    plan->lane_of = lane_of;
    plan->tail = plan->also[0] = plan->also[1] = -1;
    return HZP_PLAN_NEXT(plan, gather, .x = {b->from->token, b->from->logits, 1, 1, HZP_I32},
                         .y = {b->id, b->refs, 1, 1, HZP_I32}, .index = b->ref);
}

static int32_t make_chains(struct hzp_plan *plan, const struct hzp_model *model,
                           struct hzp_batch *batch, const struct hzp_serve_space *space,
                           const struct hzp_plan_shape *shape, struct hzp_ride *ride,
                           struct chain ret[HZP_NANO_MAX])
{
    int32_t cut[HZP_NANO_MAX + 1], nano = 0;
    struct hzp_nano nanos[HZP_NANO_MAX];
    hzp_plan_shape_cuts(shape, batch->rows + batch->pads, cut);
    int32_t count = hzp_batch_cut(batch, cut, shape->nanos, nanos);
    for (int32_t i = 0; i < count; i++, nano++) {
        while (cut[nano] == cut[nano + 1])
            nano++;
        ret[i] =
            (struct chain){.nano = nanos[i],
                           .space = rows_of(space, i, nanos[i].row0, nanos[i].rows),
                           .lane_of = shape->lane[nano],
                           .tail = -1,
                           .also = {-1, -1},
                           .ride = ride,
                           .append = HZP_ARENA_ARRAY(&plan->arena, int32_t, model->config->layers)};
    }
    return count;
}

void hzp_forward_build(struct hzp_plan *plan, const struct hzp_model *model,
                       const struct hzp_version *v, struct hzp_batch *batch,
                       const struct hzp_kv *kv, struct hzp_serve_space *space,
                       const struct hzp_plan_shape *shape)
{
    hzp_forward_build_with(plan, model, v, batch, kv, space, shape, NULL);
}

void hzp_forward_build_with(struct hzp_plan *plan, const struct hzp_model *model,
                            const struct hzp_version *v, struct hzp_batch *batch,
                            const struct hzp_kv *kv, struct hzp_serve_space *space,
                            const struct hzp_plan_shape *shape, struct hzp_ride *ride)
{
    struct chain chain[HZP_NANO_MAX];
    int32_t pieces = 2 * model->config->layers, from = 0;
    if (batch->rows == 0)
        return;
    if (!ride && hzp_device_has_graphs(model->dev)) /* steps of many sizes become graphs of few */
        hzp_batch_pad(batch);
    int32_t rows = batch->rows + batch->pads;
    if (!shape)
        shape = &hzp_plan_sequential;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        plan->share[l] = shape->share[l];
    int32_t chains = make_chains(plan, model, batch, space, shape, ride, chain);
    HZP_ASSERT(!ride || chains == 1);
    int32_t refs = add_refs(plan, batch, chain[0].lane_of);
    for (int32_t i = 0; i < chains && chain[i].nano.row0 < batch->refs; i++)
        chain[i].tail = refs;
    for (int32_t turn = 0; from < pieces; turn++) {
        int32_t to = turn_end(shape->order, turn, pieces);
        for (int32_t i = 0; i < chains; i++)
            add_turn(plan, model, v, kv, chain, &chain[i], from, to);
        from = to;
    }
    plan->row0 = 0;
    plan->rows = rows;
    if (ride && ride->layer1 == model->config->layers)
        ride->end = chain[0].tail;
    if (batch->logits > 0)
        add_head(plan, model, v, batch, space,
                 ride && ride->layer1 == model->config->layers ? behind(chain, ride->layer1)
                                                               : hzp_mat_rows(space->x, 0, rows),
                 chain, chains);
    plan->lane_of = NULL;
    plan->tail = plan->also[0] = plan->also[1] = -1;
    plan->row0 = plan->rows = 0;
}
