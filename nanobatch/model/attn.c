/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/attn.h"

#include "nanobatch/model/batch.h"
#include "nanobatch/model/tensor.h"

#include <math.h>

float hzp_attn_scale(const struct hzp_model *model)
{
    const struct hzp_model_config *c = model->config;
    return c->attn_scale ? c->attn_scale : 1.0f / sqrtf((float)c->heads.dim);
}

void hzp_attn_project(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *s)
{
    struct hzp_normed_product qkv = {.norm = HZP_ATTN_NORM,
                                     .role = HZP_QKV,
                                     .rstd = s->rstd_attn,
                                     .whole = s->x_whole,
                                     .bias = hzp_layer_weight(layer, HZP_QKV_BIAS)};
    hzp_normed_product(plan, layer, &qkv, s, s->x_in, s->qkv_bare);
}

static struct hzp_mat rope_table(const struct hzp_layer *layer)
{
    const struct hzp_model *model = layer->model;
    bool still = hzp_config_kind(model->config, layer->index)->no_rope;
    return still ? model->no_rope : model->rope;
}

/* kv NULL: keys and values go to no pages. */
static void add_rope(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s, const int32_t *pos, const int32_t *slot,
                     const struct hzp_kv *kv)
{
    const struct hzp_model *model = layer->model;
    struct hzp_rope_args args = {.x = s->qkv_bare,
                                 .y = s->qkv,
                                 .q_norm = hzp_layer_weight(layer, HZP_Q_NORM),
                                 .k_norm = hzp_layer_weight(layer, HZP_K_NORM),
                                 .table = rope_table(layer),
                                 .pos = pos,
                                 .heads = model->config->heads,
                                 .eps = model->config->norm_eps};
    if (kv) {
        args.kv = *kv;
        args.slot = slot;
    }
    hzp_plan_next(plan, HZP_OP_rope, &args);
}

void hzp_attn_append(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s, const int32_t *pos, const int32_t *slot,
                     const struct hzp_kv *kv)
{
    add_rope(plan, layer, s, pos, slot, kv);
}

void hzp_attn_paged(struct hzp_plan *plan, const struct hzp_layer *layer,
                    const struct hzp_layer_space *s, struct hzp_paged *paged)
{
    const struct hzp_nano *n = paged->nano;
    int32_t rows = n->decode_rows, end = n->rows - n->bare;
    struct hzp_needs needs = plan->needs;
    struct hzp_attn_paged_args args = {
        .kv = *paged->kv,
        .table = n->table ? n->table->table : NULL,
        .lines = n->table ? n->table->config.lines : 0,
        .page_stride = n->page_stride,
        .heads = layer->model->config->heads,
        .scale = hzp_attn_scale(layer->model),
    };
    paged->decode = paged->prefill = -1;
    if (rows > 0) {
        args.qkv = hzp_mat_rows(s->qkv, 0, rows);
        args.out = hzp_mat_rows(s->attn, 0, rows);
        args.segs = n->decode;
        args.page = n->decode_page;
        args.line = n->table ? n->decode_line : NULL;
        if (n->goes_on)
            plan->needs = hzp_needs_join(needs, paged->appends);
        paged->decode = hzp_plan_next(plan, HZP_OP_attn_decode, &args);
    }
    if (end > rows) {
        args.qkv = hzp_mat_rows(s->qkv, rows, end - rows);
        args.out = hzp_mat_rows(s->attn, rows, end - rows);
        args.segs = n->prefill;
        args.page = n->prefill_page;
        args.line = n->table ? n->prefill_line : NULL;
        plan->needs = hzp_needs_join(needs, paged->appends);
        paged->prefill = hzp_plan_next(plan, HZP_OP_attn_prefill, &args);
        hzp_plan_also(plan, paged->decode);
    }
}

void hzp_attn_packed(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s, const struct hzp_packed *packed)
{
    struct hzp_mat qkv = s->qkv; /* with the document's earlier rows, which lie before it */
    size_t row = (size_t)qkv.stride * hzp_dtype_size(qkv.type);
    qkv.ptr = (char *)qkv.ptr - (size_t)packed->before * row;
    qkv.rows += packed->before;
    add_rope(plan, layer, s, packed->pos, NULL, NULL);
    HZP_PLAN_NEXT(plan, attn_packed, .qkv = qkv, .out = s->attn, .lse = s->lse,
                  .segs = packed->segs, .heads = layer->model->config->heads,
                  .scale = hzp_attn_scale(layer->model));
}

void hzp_attn_output(struct hzp_plan *plan, const struct hzp_layer *layer,
                     const struct hzp_layer_space *s)
{
    hzp_stream_add(plan, layer, HZP_O, s, s->attn, false, s->x_in, s->x_mid);
}

/* dattn -> dqkv, with respect to qkv_bare. */
static void add_attention_bwd(struct hzp_plan *plan, const struct hzp_layer *layer,
                              const struct hzp_layer_space *k, const struct hzp_layer_grads *g,
                              const struct hzp_packed *packed)
{
    const struct hzp_model_config *config = layer->model->config;
    HZP_PLAN_NEXT(plan, attn_packed_bwd, .qkv = k->qkv, .out = k->attn, .dout = g->dattn,
                  .dqkv = g->dqkv, .lse = k->lse, .segs = packed->segs, .heads = config->heads,
                  .scale = hzp_attn_scale(layer->model));
    HZP_PLAN_NEXT(plan, rope_bwd, .dy = g->dqkv, .dx = g->dqkv, .x = k->qkv_bare,
                  .q_norm = hzp_layer_weight(layer, HZP_Q_NORM),
                  .k_norm = hzp_layer_weight(layer, HZP_K_NORM),
                  .dq_norm = hzp_layer_grad(layer, HZP_Q_NORM),
                  .dk_norm = hzp_layer_grad(layer, HZP_K_NORM), .table = rope_table(layer),
                  .pos = packed->pos, .heads = config->heads, .eps = config->norm_eps);
}

void hzp_attn_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                       const struct hzp_layer_space *k, const struct hzp_layer_grads *g,
                       const struct hzp_packed *packed)
{
    const struct hzp_model_config *config = layer->model->config;
    struct hzp_mat dy = hzp_stream_grad(plan, g);
    struct hzp_mat norm = hzp_layer_weight(layer, HZP_ATTN_NORM);

    hzp_product_backward(plan, layer, HZP_O, g->quantum_flops, dy, k->attn, g->dattn);
    add_attention_bwd(plan, layer, k, g, packed);
    if (config->qkv_bias)
        HZP_PLAN_NEXT(plan, colsum, .x = g->dqkv, .y = hzp_layer_grad(layer, HZP_QKV_BIAS));
    HZP_PLAN_NEXT(plan, rmsnorm, .x = k->x_in, .w = norm, .y = g->normed, .eps = config->norm_eps);
    hzp_product_backward_summed(plan, layer, HZP_QKV, HZP_TENSOR_D_QKV, g->quantum_flops, g->dqkv,
                                g->normed, g->dnormed);
    HZP_PLAN_NEXT(plan, rmsnorm_bwd, .dy = g->dnormed, .x = k->x_in, .w = norm, .dx = g->dx,
                  .dw = hzp_layer_grad(layer, HZP_ATTN_NORM), .rstd = k->rstd_attn);
}
