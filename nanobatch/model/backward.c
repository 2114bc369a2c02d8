/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/backward.h"

#include "base/thread.h"
#include "nanobatch/model/train_space_state.h"
#include "nanobatch/model/update.h"

struct hzp_layer_range hzp_micro_range(const struct hzp_micro *micro,
                                       const struct hzp_model_config *config)
{
    return (struct hzp_layer_range){0, hzp_path_places(&micro->path, config->layers), true, true};
}

static void add_zero(struct hzp_plan *plan, struct hzp_mat y)
{
    HZP_PLAN_NEXT(plan, fill, .y = y);
}

/* From here on the chain gets items of the micro-batch. */
static void begin(struct hzp_plan *chain, const struct hzp_micro *micro, struct hzp_train_space *s)
{
    hzp_train_space_begin(s, micro->rows);
    chain->tenant = HZP_TENANT_TRAIN;
    chain->row0 = 0;
    chain->rows = micro->rows;
}

void hzp_micro_zero_fresh(struct hzp_plan *chain, struct hzp_train_space *s, int32_t u)
{
    hzp_assert_engine_thread();
    struct hzp_unit_view grad = hzp_unit_view(&s->grads, u);
    add_zero(chain, hzp_unit_piece(&grad, 0, grad.elements));
}

/* One chunk's rows through the range's layers. */
static void forward_chunk(struct hzp_plan *chain, const struct hzp_model *model,
                          const struct hzp_version *v, const struct hzp_micro *micro,
                          const struct hzp_packed *chunk, struct hzp_train_space *s,
                          const struct hzp_layer_range *range)
{
    struct hzp_layer layer = {model, v, NULL, -1};
    chain->row0 = chunk->row0;
    chain->rows = chunk->rows;
    if (range->embed)
        hzp_embed_forward(chain, &layer, micro->id + chunk->row0,
                          hzp_mat_rows(s->kept[0].x_in, chunk->row0, chunk->rows));
    for (int32_t p = range->first; p < range->last; p++) {
        layer.index = hzp_path_layer(&micro->path, p);
        struct hzp_layer_space space =
            hzp_train_layer_space(s, layer.index, p, chunk->row0, chunk->rows);
        hzp_layer_attend(chain, &layer, &space, chunk);
        hzp_layer_finish(chain, &layer, &space);
    }
}

static void forward_chunks(struct hzp_plan *chain, const struct hzp_model *model,
                           const struct hzp_version *v, const struct hzp_micro *micro,
                           struct hzp_train_space *s, const struct hzp_layer_range *range)
{
    for (int32_t i = 0; i < HZP_MAX(micro->chunks, 1); i++) {
        struct hzp_packed chunk = hzp_micro_packed(micro, i);
        forward_chunk(chain, model, v, micro, &chunk, s, range);
    }
}

/* The same layer by layer: where layers use one place for keys and values, a chunk's attention
 * finds those of the chunks before it only until the next layer begins. */
static void forward_layers(struct hzp_plan *chain, const struct hzp_model *model,
                           const struct hzp_version *v, const struct hzp_micro *micro,
                           struct hzp_train_space *s, const struct hzp_layer_range *range)
{
    struct hzp_layer_range one = {0, 0, .embed = range->embed};
    forward_chunks(chain, model, v, micro, s, &one);
    for (int32_t p = range->first; p < range->last; p++) {
        one = (struct hzp_layer_range){p, p + 1, false, false};
        forward_chunks(chain, model, v, micro, s, &one);
    }
}

/* The rows of all chunks at place p of the path.  The sums of O and Down of one chunk run beside
 * the products of the others. */
static void forward_layer_beside(struct hzp_plan *chain, const struct hzp_layer *layer, int32_t p,
                                 const struct hzp_micro *micro, struct hzp_train_space *s,
                                 const struct hzp_layer_range *range)
{
    const struct hzp_model *model = layer->model;
    struct hzp_layer_space space[HZP_LINK_BEGUN_MAX];
    for (int32_t i = 0; i < micro->chunks; i++) {
        struct hzp_packed chunk = hzp_micro_packed(micro, i);
        space[i] = hzp_train_layer_space(s, layer->index, p, chunk.row0, chunk.rows);
        space[i].sums_apart = true;
        chain->row0 = chunk.row0;
        chain->rows = chunk.rows;
        if (p > range->first) {
            chain->layer = (int16_t)hzp_path_layer(&micro->path, p - 1);
            hzp_tensor_end(chain, model, HZP_TENSOR_DOWN, space[i].x_in);
        }
        hzp_layer_attend(chain, layer, &space[i], &chunk);
        chain->layer = (int16_t)layer->index;
        hzp_attn_output(chain, layer, &space[i]);
        hzp_tensor_begin(chain, model, HZP_TENSOR_O, space[i].x_mid);
    }
    for (int32_t i = 0; i < micro->chunks; i++) {
        chain->row0 = micro->chunk[i].row0;
        chain->rows = micro->chunk[i].rows;
        hzp_tensor_end(chain, model, HZP_TENSOR_O, space[i].x_mid);
        hzp_mlp_forward(chain, layer, &space[i]);
        hzp_tensor_begin(chain, model, HZP_TENSOR_DOWN, space[i].x_out);
    }
    for (int32_t i = 0; i < micro->chunks && p == range->last - 1; i++) {
        chain->row0 = micro->chunk[i].row0;
        chain->rows = micro->chunk[i].rows;
        hzp_tensor_end(chain, model, HZP_TENSOR_DOWN, space[i].x_out);
    }
    chain->layer = -1;
}

/* The forward pass of a tensor-parallel group's micro-batch that is cut. */
static void forward_beside(struct hzp_plan *chain, const struct hzp_model *model,
                           const struct hzp_version *v, const struct hzp_micro *micro,
                           struct hzp_train_space *s, const struct hzp_layer_range *range)
{
    struct hzp_layer layer = {model, v, NULL, -1};
    HZP_ASSERT(micro->chunks <= HZP_LINK_BEGUN_MAX);
    if (range->embed)
        hzp_embed_forward(chain, &layer, micro->id, hzp_mat_rows(s->kept[0].x_in, 0, micro->rows));
    for (int32_t p = range->first; p < range->last; p++) {
        layer.index = hzp_path_layer(&micro->path, p);
        forward_layer_beside(chain, &layer, p, micro, s, range);
    }
}

void hzp_micro_forward(struct hzp_plan *chain, const struct hzp_model *model,
                       const struct hzp_version *v, const struct hzp_micro *micro,
                       struct hzp_train_space *s, const struct hzp_layer_range *range)
{
    hzp_assert_engine_thread();
    begin(chain, micro, s);
    if (model->tensor && micro->chunks > 1)
        forward_beside(chain, model, v, micro, s, range);
    else if (s->recompute == HZP_RECOMPUTE_LAYER)
        forward_layers(chain, model, v, micro, s, range);
    else
        forward_chunks(chain, model, v, micro, s, range);
    begin(chain, micro, s);
    s->forward_end = chain->items;
}

/* Head, loss and, if gradients are wanted, the head's backward pass for learned rows [row0, row0 +
 * rows).  forward false: the logits are there. */
static void add_head_rows(struct hzp_plan *chain, const struct hzp_layer *layer,
                          const struct hzp_micro *micro, const struct hzp_loss *loss,
                          struct hzp_train_space *s, int32_t row0, int32_t rows, bool forward,
                          bool backward)
{
    const int32_t *row = micro->learned_row + row0;
    int32_t layers = layer->model->config->layers;
    int32_t last = s->config.forward_only ? 0 : hzp_path_places(&micro->path, layers);
    struct hzp_head_space head = hzp_train_head_space(s, rows);
    if (!backward)
        head.dlogits = (struct hzp_mat){0};
    if (forward) {
        hzp_head_pick(chain, hzp_mat_rows(s->kept[last].x_in, 0, micro->rows), row, &head);
        hzp_head_forward(chain, layer, &head);
    }
    hzp_loss_build(chain, loss, row0, head.logits, head.dlogits, head.quantum_flops);
    if (backward)
        hzp_head_backward(chain, layer, row, &head, hzp_mat_rows(s->dx, 0, micro->rows));
}

static void add_head(struct hzp_plan *chain, const struct hzp_layer *layer,
                     const struct hzp_micro *micro, struct hzp_train_space *s, bool backward)
{
    /* Equal chunks: a last one of few rows would cost as much memory traffic as a full one. */
    int32_t chunks = HZP_DIV_UP(micro->learned, s->config.head_rows);
    int32_t chunk = HZP_DIV_UP(micro->learned, HZP_MAX(chunks, 1)), all = micro->learned;
    struct hzp_loss loss = micro->loss;
    loss.cap = layer->model->config->logit_cap;
    bool twice = backward && loss.shared; /* a loss of sequences needs the lp of all rows first */
    for (int32_t at = 0; twice && at < all; at += chunk)
        add_head_rows(chain, layer, micro, &loss, s, at, HZP_MIN(chunk, all - at), true, false);
    if (twice && all)
        hzp_loss_share(chain, &loss, all);
    for (int32_t at = 0; at < all; at += chunk)
        add_head_rows(chain, layer, micro, &loss, s, at, HZP_MIN(chunk, all - at),
                      !twice || chunks > 1, backward);
}

/* Computes again what the layer's forward pass has not kept: the same items of the same chunks, so
 * the same bits. */
static void add_again(struct hzp_plan *chain, const struct hzp_layer *layer, int32_t place,
                      const struct hzp_micro *micro, struct hzp_train_space *s)
{
    chain->again = true;
    for (int32_t i = 0; s->recompute && i < HZP_MAX(micro->chunks, 1); i++) {
        struct hzp_packed chunk = hzp_micro_packed(micro, i);
        struct hzp_layer_space space =
            hzp_train_layer_space(s, layer->index, place, chunk.row0, chunk.rows);
        if (s->recompute == HZP_RECOMPUTE_LAYER)
            hzp_layer_attend(chain, layer, &space, &chunk);
        chain->layer = (int16_t)layer->index;
        if (s->recompute == HZP_RECOMPUTE_LAYER && !layer->model->tensor &&
            !layer->model->config->parallel)
            hzp_attn_output(chain, layer, &space);
        hzp_mlp_again(chain, layer, &space);
        chain->layer = -1;
    }
    chain->again = false;
}

void hzp_micro_backward(struct hzp_plan *chain, const struct hzp_model *model,
                        const struct hzp_version *v, const struct hzp_micro *micro,
                        struct hzp_train_space *s, const struct hzp_layer_range *range)
{
    hzp_assert_engine_thread();
    struct hzp_packed whole = hzp_micro_whole(micro);
    struct hzp_layer layer = {model, v, &s->grads, -1};
    HZP_ASSERT(!s->config.forward_only);
    begin(chain, micro, s);
    struct hzp_layer_grads g = hzp_train_layer_grads(s, micro->rows);
    if (range->head) {
        add_zero(chain, g.dx);
        add_head(chain, &layer, micro, s, true);
    }
    for (int32_t p = range->last - 1; p >= range->first; p--) {
        layer.index = hzp_path_layer(&micro->path, p);
        struct hzp_layer_space kept = hzp_train_layer_space(s, layer.index, p, 0, micro->rows);
        add_again(chain, &layer, p, micro, s);
        hzp_layer_backward(chain, &layer, &kept, &g, &whole);
    }
    layer.index = -1;
    if (range->embed)
        hzp_embed_backward(chain, &layer, micro->id, g.dx);
}

/* --- Fresh gradients -------------------------------------------------------------------------- */

/* The range whose backward pass completes the gradient of unit i of `units` on the path. */
static struct hzp_layer_range range_of(int32_t i, int32_t units)
{
    int32_t last = HZP_MIN(i, units - 2);
    return (struct hzp_layer_range){HZP_MAX(i - 1, 0), last, i == 0, i == units - 1};
}

void hzp_micro_backward_unit(struct hzp_plan *chain, const struct hzp_model *model,
                             const struct hzp_version *v, const struct hzp_micro *micro,
                             struct hzp_train_space *s, int32_t i)
{
    hzp_assert_engine_thread();
    struct hzp_layer_range range = range_of(i, hzp_micro_units(micro, model->config));
    int32_t u = hzp_micro_unit(micro, model->config, i);
    bool tied = model->config->tied, fresh = hzp_shards_fresh(&s->config.shards);
    chain->tenant = HZP_TENANT_TRAIN;
    if (fresh && (u > 0 || !tied))
        hzp_micro_zero_fresh(chain, s, u);
    if (fresh && range.head && tied) /* the head adds to the embedding's gradient */
        hzp_micro_zero_fresh(chain, s, 0);
    if (micro->rows)
        hzp_micro_backward(chain, model, v, micro, s, &range);
}

void hzp_micro_zero_sums(struct hzp_plan *chain, struct hzp_train_space *s)
{
    hzp_assert_engine_thread();
    chain->tenant = HZP_TENANT_TRAIN;
    for (int32_t u = 0; u < s->sum->layout->units; u++) {
        struct hzp_unit_view sum = hzp_unit_view(s->sum, u);
        if (sum.part.count)
            add_zero(chain, hzp_unit_piece(&sum, sum.part.first, sum.part.count));
    }
}

/* sum += fresh gradient of the unit, element by element: the column sums of one row. */
static void add_to_sum(struct hzp_plan *chain, const struct hzp_train_space *s, int32_t u)
{
    struct hzp_unit_view fresh = hzp_unit_view(&s->grads, u), sum = hzp_unit_view(s->sum, u);
    size_t n = HZP_MIN(sum.elements, (size_t)1 << 16);
    struct hzp_colsum_args args = {hzp_unit_piece(&fresh, 0, n), hzp_unit_piece(&sum, 0, n)};
    size_t piece = hzp_update_piece(s, HZP_OP_colsum, &args, n);
    for (size_t at = 0; at < sum.elements; at += piece) {
        n = HZP_MIN(piece, sum.elements - at);
        HZP_PLAN_NEXT(chain, colsum, .x = hzp_unit_piece(&fresh, at, n),
                      .y = hzp_unit_piece(&sum, at, n));
    }
}

/* The whole chain with fresh gradients on one rank, or on the ranks of a slice.  The sums of what
 * is not on the path stay as they are. */
static void build_ordered(struct hzp_plan *chain, const struct hzp_model *model,
                          const struct hzp_version *v, const struct hzp_micro *micro,
                          struct hzp_train_space *s, bool first)
{
    struct hzp_layer_range all = hzp_micro_range(micro, model->config);
    if (first)
        hzp_micro_zero_sums(chain, s);
    if (micro->rows)
        hzp_micro_forward(chain, model, v, micro, s, &all);
    for (int32_t i = hzp_micro_units(micro, model->config) - 1; i >= 0; i--) {
        int32_t u = hzp_micro_unit(micro, model->config, i);
        hzp_micro_backward_unit(chain, model, v, micro, s, i);
        if (model->data)
            hzp_data_scatter(chain, model, &s->grads, s->sum, u);
        else
            add_to_sum(chain, s, u);
    }
}

/* --- Stages ----------------------------------------------------------------------------------- */

void hzp_micro_stage(struct hzp_plan *chain, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_micro *micro,
                     struct hzp_train_space *s, enum hzp_stage_work work, bool first)
{
    hzp_assert_engine_thread();
    const struct hzp_shards *shards = &s->config.shards;
    int32_t layers = model->config->layers;
    struct hzp_layer_range range = {shards->layer, shards->layer_end, shards->rank == 0, false};
    if (work == HZP_STAGE_HEAD)
        range = (struct hzp_layer_range){layers, layers, false, true};
    chain->tenant = HZP_TENANT_TRAIN;
    if (first)
        hzp_micro_zero_sums(chain, s);
    if (work == HZP_STAGE_FORWARD) {
        hzp_micro_forward(chain, model, v, micro, s, &range);
        return;
    }
    if (!hzp_shards_fresh(shards)) {
        hzp_micro_backward(chain, model, v, micro, s, &range);
        return;
    }
    int32_t end = range.embed ? 0 : range.first + 1; /* unit */
    for (int32_t u = range.last + range.head; u >= end; u--) {
        hzp_micro_backward_unit(chain, model, v, micro, s, u);
        add_to_sum(chain, s, u);
    }
}

/* --- All of it -------------------------------------------------------------------------------- */

void hzp_micro_build(struct hzp_plan *chain, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_micro *micro,
                     struct hzp_train_space *s, bool first)
{
    hzp_assert_engine_thread();
    struct hzp_layer_range all = hzp_micro_range(micro, model->config);
    chain->tenant = HZP_TENANT_TRAIN;
    if (micro->rows)
        begin(chain, micro, s);
    HZP_ASSERT(s->config.shards.groups.ranks == 1);
    if (hzp_shards_fresh(&s->config.shards)) {
        build_ordered(chain, model, v, micro, s, first);
        return;
    }
    if (first)
        hzp_micro_zero_sums(chain, s);
    if (!micro->rows)
        return;
    hzp_micro_forward(chain, model, v, micro, s, &all);
    hzp_micro_backward(chain, model, v, micro, s, &all);
}

/* --- Products alone --------------------------------------------------------------------------- */

static bool same_layout(const struct hzp_mat *a, const struct hzp_mat *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->stride == b->stride && a->type == b->type;
}

static bool same_shape(const struct hzp_matmul_args *a, const struct hzp_matmul_args *b)
{
    return same_layout(&a->a, &b->a) && same_layout(&a->b, &b->b) && same_layout(&a->c, &b->c) &&
           a->trans_a == b->trans_a && a->trans_b == b->trans_b && !a->bias.ptr == !b->bias.ptr;
}

static void add_new(struct hzp_plan *chain, struct hzp_matmul_args product)
{
    for (int32_t i = 0; i < chain->items; i++)
        if (same_shape(chain->item[i].args, &product))
            return;
    product.accumulate = 0;
    product.from = (struct hzp_mat){0};
    hzp_plan_next(chain, HZP_OP_matmul, &product);
}

void hzp_micro_products(struct hzp_plan *chain, const struct hzp_model *model,
                        const struct hzp_version *v, const struct hzp_micro *micro,
                        struct hzp_train_space *s)
{
    hzp_assert_engine_thread();
    struct hzp_layer_range all = hzp_micro_range(micro, model->config);
    struct hzp_plan whole;
    hzp_plan_init(&whole);
    hzp_micro_forward(&whole, model, v, micro, s, &all);
    hzp_micro_backward(&whole, model, v, micro, s, &all);
    chain->tenant = HZP_TENANT_TRAIN;
    for (int32_t i = 0; i < whole.items; i++)
        if (whole.item[i].op == HZP_OP_matmul)
            add_new(chain, *(const struct hzp_matmul_args *)whole.item[i].args);
    hzp_plan_fini(&whole);
}

void hzp_eval_build(struct hzp_plan *chain, const struct hzp_model *model,
                    const struct hzp_version *v, const struct hzp_micro *micro,
                    struct hzp_train_space *s)
{
    hzp_assert_engine_thread();
    struct hzp_layer_range all = hzp_micro_range(micro, model->config);
    struct hzp_layer layer = {model, v, NULL, -1};
    hzp_micro_forward(chain, model, v, micro, s, &all);
    add_head(chain, &layer, micro, s, false);
}
