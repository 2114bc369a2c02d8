/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/layer.h"

void hzp_layer_attend(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *s, const struct hzp_packed *packed)
{
    plan->layer = (int16_t)layer->index;
    hzp_attn_project(plan, layer, s);
    hzp_attn_packed(plan, layer, s, packed);
    plan->layer = -1;
}

void hzp_layer_finish(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *s)
{
    plan->layer = (int16_t)layer->index;
    hzp_attn_output(plan, layer, s);
    hzp_mlp_forward(plan, layer, s);
    plan->layer = -1;
}

void hzp_layer_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                        const struct hzp_layer_space *kept, const struct hzp_layer_grads *g,
                        const struct hzp_packed *packed)
{
    plan->layer = (int16_t)layer->index;
    bool parallel = layer->model->config->parallel; /* attention's product had the same dx */
    if (parallel)
        hzp_attn_output_backward(plan, layer, kept, g);
    hzp_mlp_backward(plan, layer, kept, g);
    if (!parallel)
        hzp_attn_output_backward(plan, layer, kept, g);
    hzp_attn_backward(plan, layer, kept, g, packed);
    plan->layer = -1;
}
