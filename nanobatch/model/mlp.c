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

/* What the half reads: the stream behind attention, or in parallel layers the one before it, whose
 * norm attention's forward pass has left in `normed`. */
struct input {
    enum hzp_role norm;
    struct hzp_mat x;
    float *rstd;
};

static struct input input_of(const struct hzp_layer *layer, const struct hzp_layer_space *s)
{
    if (layer->model->config->parallel)
        return (struct input){HZP_ATTN_NORM, s->x_in, s->rstd_attn};
    return (struct input){HZP_MLP_NORM, s->x_mid, s->rstd_mlp};
}

/* inner absent: only gate_up is written. */
static bool add_gate_up(struct hzp_plan *plan, const struct hzp_layer *layer,
                        const struct hzp_layer_space *s, const struct columns *use,
                        struct hzp_mat inner)
{
    struct input in = input_of(layer, s);
    struct hzp_normed_product gate_up = {.norm = in.norm,
                                         .role = HZP_GATE_UP,
                                         .rstd = in.rstd,
                                         .kept = layer->model->config->parallel && inner.ptr,
                                         .inner = inner};
    return hzp_normed_product(plan, layer, &gate_up, s, in.x, use->gate_up);
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
    struct input in = input_of(layer, k);

    HZP_PLAN_NEXT(plan, swiglu, .x = use.gate_up, .y = use.inner, .gelu = gelu);
    struct hzp_mat dy = hzp_stream_grad_of(plan, layer, HZP_DOWN, g, use.inner);
    hzp_product_backward(plan, layer, HZP_DOWN, g->quantum_flops, dy, use.inner, grad.inner);
    HZP_PLAN_NEXT(plan, swiglu_bwd, .x = use.gate_up, .dy = grad.inner, .dx = grad.gate_up,
                  .gelu = gelu);
    hzp_stream_back(plan, layer, in.norm, HZP_GATE_UP, HZP_TENSOR_D_GATE_UP, g, grad.gate_up, in.x,
                    in.rstd);
}
