/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/ends.h"

#include "device/bf16.h"

/* y times a scalar of the model, in place; 0: none. */
static void scale_by(struct hzp_plan *plan, struct hzp_mat y, float scale)
{
    if (scale && scale != 1)
        HZP_PLAN_NEXT(plan, cast, .x = y, .y = y, .scale = scale);
}

/* Gemma's is a number of the weights' type. */
static float embed_scale(const struct hzp_model *model)
{
    const struct hzp_model_config *c = model->config;
    bool rounds = c->norm_plus_one && model->act == HZP_BF16;
    return rounds ? hzp_bf16_to_f32(hzp_bf16_from_f32(c->embed_scale)) : c->embed_scale;
}

void hzp_embed_forward(struct hzp_plan *plan, const struct hzp_layer *layer, const int32_t *id,
                       struct hzp_mat y)
{
    HZP_PLAN_NEXT(plan, embed, .table = hzp_layer_weight(layer, HZP_EMBED), .y = y, .id = id,
                  .first = hzp_tensor_vocab_first(layer->model));
    scale_by(plan, y, embed_scale(layer->model));
    hzp_tensor_reduce(plan, layer->model, HZP_TENSOR_EMBED, y);
}

void hzp_embed_backward(struct hzp_plan *plan, const struct hzp_layer *layer, const int32_t *id,
                        struct hzp_mat dy)
{
    scale_by(plan, dy, embed_scale(layer->model));
    HZP_PLAN_NEXT(plan, embed_bwd, .dtable = hzp_layer_grad(layer, HZP_EMBED), .dy = dy, .id = id,
                  .first = hzp_tensor_vocab_first(layer->model));
}

int32_t hzp_head_pick(struct hzp_plan *plan, struct hzp_mat x, const int32_t *row,
                      const struct hzp_head_space *s)
{
    return HZP_PLAN_NEXT(plan, gather, .x = x, .y = s->picked, .index = row);
}

void hzp_head_forward(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_head_space *s)
{
    struct hzp_matmul_args product = {
        .a = s->normed,
        .b = hzp_layer_weight(layer, HZP_HEAD),
        .c = hzp_tensor_own_logits(layer->model, s->gathered, s->logits),
        .trans_b = 1};
    struct hzp_project_args both = {.product = product,
                                    .norm = hzp_layer_weight(layer, HZP_FINAL_NORM),
                                    .eps = layer->model->config->norm_eps};
    float scale = layer->model->config->logits_scale;
    const struct hzp_model_config *c = layer->model->config;
    bool kept = s->normed_kept || s->rstd || s->quantum_flops || scale || c->norm_plus_one ||
                c->norm_centred;
    both.product.a = s->picked;
    if (kept || !hzp_plan_project(plan, layer->model, &both)) {
        HZP_PLAN_NEXT(plan, rmsnorm, .x = s->picked, .w = both.norm, .y = s->normed,
                      .rstd = s->rstd, .eps = both.eps, HZP_NORM_KIND(c));
        scale_by(plan, s->normed, scale);
        hzp_plan_add_matmul(plan, s->quantum_flops, &product);
    }
    hzp_tensor_gather_logits(plan, layer->model, s->gathered, s->logits);
    if (c->logit_cap > 0)
        HZP_PLAN_NEXT(plan, cast, .x = s->logits, .y = s->logits, .cap = c->logit_cap);
}

void hzp_head_hidden(struct hzp_plan *plan, const struct hzp_model *model, struct hzp_mat normed,
                     const int32_t *index, struct hzp_mat hidden)
{
    float scale = model->config->logits_scale;
    HZP_PLAN_NEXT(plan, gather, .x = normed, .y = hidden, .index = index);
    scale_by(plan, hidden, scale ? 1 / scale : 0);
}

void hzp_head_backward(struct hzp_plan *plan, const struct hzp_layer *layer, const int32_t *row,
                       const struct hzp_head_space *s, struct hzp_mat dx)
{
    hzp_product_backward_summed(plan, layer, HZP_HEAD, HZP_TENSOR_D_HEAD, s->quantum_flops,
                                hzp_tensor_own_cols(layer->model, s->dlogits), s->normed,
                                s->dnormed);
    scale_by(plan, s->dnormed, layer->model->config->logits_scale);
    HZP_PLAN_NEXT(plan, fill, .y = s->dpicked);
    HZP_PLAN_NEXT(plan, rmsnorm_bwd, .dy = s->dnormed, .x = s->picked,
                  .w = hzp_layer_weight(layer, HZP_FINAL_NORM), .dx = s->dpicked,
                  .dw = hzp_layer_grad(layer, HZP_FINAL_NORM), .rstd = s->rstd,
                  HZP_NORM_KIND(layer->model->config));
    /* Scatter: the transpose of a gather is the backward pass of a table look-up. */
    HZP_PLAN_NEXT(plan, embed_bwd, .dtable = dx, .dy = s->dpicked, .id = row);
}
