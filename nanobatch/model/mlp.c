/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/mlp.h"

/* The layer's columns of the buffers, which are wider where layers differ. */
struct columns {
    struct hzp_mat gate_up, inner;
};

static struct columns columns_of(const struct hzp_layer *layer, struct hzp_mat gate_up,
                                 struct hzp_mat inner)
{
    int32_t cols = hzp_layout_inner(layer->model->layout, layer->index);
    return (struct columns){hzp_mat_cols(gate_up, 0, 2 * cols), hzp_mat_cols(inner, 0, cols)};
}

/* inner absent: only gate_up is written. */
static bool add_gate_up(struct hzp_plan *plan, const struct hzp_layer *layer,
                        const struct hzp_layer_space *s, const struct columns *use,
                        struct hzp_mat inner)
{
    struct hzp_normed_product gate_up = {
        .norm = HZP_MLP_NORM, .role = HZP_GATE_UP, .rstd = s->rstd_mlp, .inner = inner};
    return hzp_normed_product(plan, layer, &gate_up, s, s->x_mid, use->gate_up);
}

void hzp_mlp_again(struct hzp_plan *plan, const struct hzp_layer *layer,
                   const struct hzp_layer_space *s)
{
    struct columns use = columns_of(layer, s->gate_up, s->inner);
    add_gate_up(plan, layer, s, &use, (struct hzp_mat){0});
}

void hzp_mlp_forward(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s)
{
    struct columns use = columns_of(layer, s->gate_up, s->inner);
    bool coded = add_gate_up(plan, layer, s, &use, use.inner);
    hzp_stream_add(plan, layer, HZP_DOWN, s, use.inner, coded, s->x_mid, s->x_out);
}

void hzp_mlp_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *k, const struct hzp_layer_grads *g)
{
    int32_t gelu = layer->model->config->gelu;
    struct columns use = columns_of(layer, k->gate_up, g->inner);
    struct columns grad = columns_of(layer, g->dgate_up, g->dinner);

    HZP_PLAN_NEXT(plan, swiglu, .x = use.gate_up, .y = use.inner, .gelu = gelu);
    struct hzp_mat dy = hzp_stream_grad_of(plan, layer, HZP_DOWN, g, use.inner);
    hzp_product_backward(plan, layer, HZP_DOWN, g->quantum_flops, dy, use.inner, grad.inner);
    HZP_PLAN_NEXT(plan, swiglu_bwd, .x = use.gate_up, .dy = grad.inner, .dx = grad.gate_up,
                  .gelu = gelu);
    hzp_stream_back(plan, layer, HZP_MLP_NORM, HZP_GATE_UP, HZP_TENSOR_D_GATE_UP, g, grad.gate_up,
                    k->x_mid, k->rstd_mlp);
}
