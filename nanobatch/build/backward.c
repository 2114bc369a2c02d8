/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/backward.h"

#include "nanobatch/build/ends.h"
#include "nanobatch/build/train_space.h"

static void add_zero(struct hzp_plan *plan, struct hzp_mat y)
{
    HZP_PLAN_NEXT(plan, fill, .y = y);
}

/* From here on the chain gets items of the micro-batch. */
static void begin(struct hzp_plan *chain, const struct hzp_micro *micro,
                  const struct hzp_train_space *s)
{
    HZP_ASSERT(micro->rows > 0 && micro->rows <= s->config.rows_max);
    chain->tenant = HZP_TENANT_TRAIN;
    chain->row0 = 0;
    chain->rows = micro->rows;
}

static void zero_unit(struct hzp_plan *chain, const struct hzp_train_space *s, int32_t unit)
{
    struct hzp_unit_view grad = hzp_unit_view(&s->grads, unit);
    add_zero(chain, hzp_unit_piece(&grad, 0, grad.elements));
}

void hzp_micro_zero(struct hzp_plan *chain, const struct hzp_model *model,
                    struct hzp_train_space *s, const struct hzp_layer_range *range)
{
    if (range->embed)
        zero_unit(chain, s, 0);
    for (int32_t l = range->first; l < range->last; l++)
        zero_unit(chain, s, 1 + l);
    if (range->head)
        zero_unit(chain, s, 1 + model->config->layers);
}

/* One chunk's rows through the range's layers. */
static void forward_chunk(struct hzp_plan *chain, const struct hzp_model *model,
                          const struct hzp_version *v, const int32_t *id,
                          const struct hzp_packed *chunk, struct hzp_train_space *s,
                          const struct hzp_layer_range *range)
{
    struct hzp_layer layer = {model, v, NULL, -1};
    chain->row0 = chunk->row0;
    chain->rows = chunk->rows;
    if (range->embed)
        hzp_embed_forward(chain, &layer, id + chunk->row0,
                          hzp_mat_rows(s->kept[0].x_in, chunk->row0, chunk->rows));
    for (layer.index = range->first; layer.index < range->last; layer.index++) {
        struct hzp_layer_space space =
            hzp_train_layer_space(s, layer.index, chunk->row0, chunk->rows);
        hzp_layer_attend_packed(chain, &layer, &space, chunk);
        hzp_layer_finish(chain, &layer, &space);
    }
}

void hzp_micro_forward(struct hzp_plan *chain, const struct hzp_model *model,
                       const struct hzp_version *v, const struct hzp_micro *micro,
                       struct hzp_train_space *s, const struct hzp_layer_range *range)
{
    begin(chain, micro, s);
    for (int32_t i = 0; i < HZP_MAX(micro->chunks, 1); i++) {
        struct hzp_packed chunk = hzp_micro_packed(micro, i);
        forward_chunk(chain, model, v, micro->id, &chunk, s, range);
    }
    begin(chain, micro, s);
    s->forward_end = chain->items;
}

/* Head, loss and, if gradients are wanted, the head's backward pass for learned rows [row0, row0 +
 * rows). */
static void add_head_rows(struct hzp_plan *chain, const struct hzp_layer *layer,
                          const struct hzp_micro *micro, struct hzp_train_space *s, int32_t row0,
                          int32_t rows)
{
    const int32_t *row = micro->learned_row + row0;
    int32_t last = s->config.forward_only ? 0 : layer->model->config->layers;
    struct hzp_head_space head = hzp_train_head_space(s, rows);
    hzp_head_pick(chain, hzp_mat_rows(s->kept[last].x_in, 0, micro->rows), row, &head);
    hzp_head_forward(chain, layer, &head);
    hzp_loss_build(chain, &micro->loss, row0, head.logits, head.dlogits, head.quantum_flops);
    if (!s->config.forward_only)
        hzp_head_backward(chain, layer, row, &head, hzp_mat_rows(s->dx, 0, micro->rows));
}

static void add_head(struct hzp_plan *chain, const struct hzp_layer *layer,
                     const struct hzp_micro *micro, struct hzp_train_space *s)
{
    /* Equal chunks: a last one of few rows would cost as much memory traffic as a full one. */
    int32_t chunks = HZP_DIV_UP(micro->learned, s->config.head_rows);
    int32_t chunk = HZP_DIV_UP(micro->learned, HZP_MAX(chunks, 1));
    for (int32_t at = 0; at < micro->learned; at += chunk)
        add_head_rows(chain, layer, micro, s, at, HZP_MIN(chunk, micro->learned - at));
}

void hzp_micro_backward(struct hzp_plan *chain, const struct hzp_model *model,
                        const struct hzp_version *v, const struct hzp_micro *micro,
                        struct hzp_train_space *s, const struct hzp_layer_range *range)
{
    struct hzp_layer_grads g = hzp_train_layer_grads(s, micro->rows);
    struct hzp_packed whole = hzp_micro_whole(micro);
    struct hzp_layer layer = {model, v, &s->grads, -1};
    HZP_ASSERT(!s->config.forward_only);
    begin(chain, micro, s);
    if (range->head) {
        add_zero(chain, g.dx);
        add_head(chain, &layer, micro, s);
    }
    for (int32_t l = range->last - 1; l >= range->first; l--) {
        struct hzp_layer_space kept = hzp_train_layer_space(s, l, 0, micro->rows);
        layer.index = l;
        hzp_layer_backward(chain, &layer, &kept, &g, &whole);
    }
    layer.index = -1;
    if (range->embed)
        hzp_embed_backward(chain, &layer, micro->id, g.dx);
}

void hzp_micro_build(struct hzp_plan *chain, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_micro *micro,
                     struct hzp_train_space *s, bool first)
{
    struct hzp_layer_range all = hzp_layer_range_all(model->config);
    begin(chain, micro, s);
    if (first)
        hzp_micro_zero(chain, model, s, &all);
    hzp_micro_forward(chain, model, v, micro, s, &all);
    hzp_micro_backward(chain, model, v, micro, s, &all);
}

void hzp_eval_build(struct hzp_plan *chain, const struct hzp_model *model,
                    const struct hzp_version *v, const struct hzp_micro *micro,
                    struct hzp_train_space *s)
{
    struct hzp_layer_range all = hzp_layer_range_all(model->config);
    struct hzp_layer layer = {model, v, NULL, -1};
    HZP_ASSERT(s->config.forward_only);
    hzp_micro_forward(chain, model, v, micro, s, &all);
    add_head(chain, &layer, micro, s);
}
