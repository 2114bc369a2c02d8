/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/mlp.h"

void hzp_mlp_forward(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s)
{
    const struct hzp_mat none = {0};
    HZP_PLAN_NEXT(plan, rmsnorm, .x = s->x_mid, .w = hzp_layer_weight(layer, HZP_MLP_NORM),
                  .y = s->normed, .rstd = s->rstd_mlp, .eps = layer->model->config->norm_eps);
    hzp_product_forward(plan, layer, HZP_GATE_UP, s, s->normed, none, s->gate_up, false);
    HZP_PLAN_NEXT(plan, swiglu, .x = s->gate_up, .y = s->inner);
    hzp_stream_copy(plan, s->x_mid, s->x_out);
    hzp_product_forward(plan, layer, HZP_DOWN, s, s->inner, none, s->x_out, true);
}

void hzp_mlp_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *k, const struct hzp_layer_grads *g)
{
    struct hzp_mat dy = hzp_stream_grad(plan, g);
    struct hzp_mat norm = hzp_layer_weight(layer, HZP_MLP_NORM);

    HZP_PLAN_NEXT(plan, swiglu, .x = k->gate_up, .y = g->inner);
    hzp_product_backward(plan, layer, HZP_DOWN, g->quantum_flops, dy, g->inner, g->dinner);
    HZP_PLAN_NEXT(plan, swiglu_bwd, .x = k->gate_up, .dy = g->dinner, .dx = g->dgate_up);
    HZP_PLAN_NEXT(plan, rmsnorm, .x = k->x_mid, .w = norm, .y = g->normed,
                  .eps = layer->model->config->norm_eps);
    hzp_product_backward(plan, layer, HZP_GATE_UP, g->quantum_flops, g->dgate_up, g->normed,
                         g->dnormed);
    HZP_PLAN_NEXT(plan, rmsnorm_bwd, .dy = g->dnormed, .x = k->x_mid, .w = norm, .dx = g->dx,
                  .dw = hzp_layer_grad(layer, HZP_MLP_NORM), .rstd = k->rstd_mlp);
}
