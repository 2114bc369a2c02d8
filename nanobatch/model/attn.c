/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/attn.h"

#include "nanobatch/model/batch.h"

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
    const struct hzp_layer_kind *kind = hzp_config_kind(model->config, layer->index);
    return kind->no_rope ? model->no_rope : kind->local ? model->rope_local : model->rope;
}

static int32_t window_of(const struct hzp_layer *layer)
{
    return hzp_config_kind(layer->model->config, layer->index)->window;
}

/* The columns of q, of k, or of v. */
static struct hzp_mat part_of(struct hzp_mat qkv, const struct hzp_heads *h, int part)
{
    int32_t q = h->heads * h->dim, kv = h->kv_heads * h->dim;
    return hzp_mat_cols(qkv, part ? q + (part - 1) * kv : 0, part ? kv : q);
}

/* One norm of all heads of q, and one of k: qkv_bare -> qkv. */
static void norm_full(struct hzp_plan *plan, const struct hzp_layer *layer,
                      const struct hzp_layer_space *s)
{
    static const enum hzp_role role[] = {HZP_Q_NORM, HZP_K_NORM};
    const struct hzp_model_config *c = layer->model->config;
    for (int i = 0; i < 2; i++) {
        struct hzp_mat x = part_of(s->qkv_bare, &c->heads, i), y = part_of(s->qkv, &c->heads, i);
        struct hzp_mat wide = hzp_mat_cols(s->wide, 0, x.cols);
        HZP_PLAN_NEXT(plan, cast, .x = x, .y = wide);
        HZP_PLAN_NEXT(plan, rmsnorm, .x = wide, .w = hzp_layer_weight(layer, role[i]), .y = y,
                      .eps = c->norm_eps, HZP_NORM_KIND(c));
    }
    if (s->qkv.ptr != s->qkv_bare.ptr)
        HZP_PLAN_NEXT(plan, cast, .x = part_of(s->qkv_bare, &c->heads, 2),
                      .y = part_of(s->qkv, &c->heads, 2));
}

/* Its backward pass, in place. */
static void norm_full_back(struct hzp_plan *plan, const struct hzp_layer *layer,
                           const struct hzp_layer_space *k, const struct hzp_layer_grads *g)
{
    static const enum hzp_role role[] = {HZP_Q_NORM, HZP_K_NORM};
    const struct hzp_heads *h = &layer->model->config->heads;
    for (int i = 0; i < 2; i++) {
        struct hzp_mat x = part_of(k->qkv_bare, h, i), dx = part_of(g->dqkv, h, i);
        struct hzp_mat wide = hzp_mat_cols(g->wide, 0, x.cols);
        HZP_PLAN_NEXT(plan, cast, .x = x, .y = wide);
        hzp_norm_backward(plan, layer, role[i], g, wide, dx, hzp_mat_cols(g->dattn, 0, x.cols));
        HZP_PLAN_NEXT(plan, cast, .x = hzp_mat_cols(g->dwide, 0, x.cols), .y = dx);
    }
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
                                 .eps = model->config->norm_eps,
                                 .plus_one = model->config->norm_plus_one};
    if (model->config->qk_norm_full) {
        norm_full(plan, layer, s);
        args.x = s->qkv;
        args.q_norm = args.k_norm = (struct hzp_mat){0};
    }
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
    bool same = hzp_device_same_rows(layer->model->dev); /* as attn_packed computes a row */
    struct hzp_needs needs = plan->needs;
    struct hzp_attn_paged_args args = {
        .kv = *paged->kv,
        .table = n->table ? n->table->table : NULL,
        .lines = n->table ? n->table->config.lines : 0,
        .page_stride = n->page_stride,
        .heads = layer->model->config->heads,
        .sink = hzp_layer_weight(layer, HZP_SINK),
        .scale = hzp_attn_scale(layer->model),
        .cap = layer->model->config->score_cap,
        .window = window_of(layer),
    };
    bool back = args.window && n->decode_back;
    paged->decode = paged->prefill = -1;
    if (rows > 0) {
        args.qkv = hzp_mat_rows(s->qkv, 0, rows);
        args.out = hzp_mat_rows(s->attn, 0, rows);
        args.segs = n->decode;
        args.page = back ? n->decode_back : n->decode_page;
        args.line = n->table ? n->decode_line : NULL;
        if (n->goes_on)
            plan->needs = hzp_needs_join(needs, paged->appends);
        paged->decode = hzp_plan_next(plan, same ? HZP_OP_attn_prefill : HZP_OP_attn_decode, &args);
    }
    if (end > rows) {
        args.qkv = hzp_mat_rows(s->qkv, rows, end - rows);
        args.out = hzp_mat_rows(s->attn, rows, end - rows);
        args.segs = n->prefill;
        args.page = back ? n->prefill_back : n->prefill_page;
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
                  .sink = hzp_layer_weight(layer, HZP_SINK), .segs = packed->segs,
                  .heads = layer->model->config->heads, .scale = hzp_attn_scale(layer->model),
                  .cap = layer->model->config->score_cap, .window = window_of(layer));
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
                  .dqkv = g->dqkv, .lse = k->lse, .sink = hzp_layer_weight(layer, HZP_SINK),
                  .dsink = hzp_layer_grad(layer, HZP_SINK), .segs = packed->segs,
                  .heads = config->heads, .scale = hzp_attn_scale(layer->model),
                  .cap = config->score_cap, .window = window_of(layer));
    struct hzp_rope_bwd_args args = {.dy = g->dqkv,
                                     .dx = g->dqkv,
                                     .x = k->qkv_bare,
                                     .table = rope_table(layer),
                                     .pos = packed->pos,
                                     .heads = config->heads,
                                     .eps = config->norm_eps,
                                     .plus_one = config->norm_plus_one};
    if (!config->qk_norm_full) {
        args.q_norm = hzp_layer_weight(layer, HZP_Q_NORM);
        args.k_norm = hzp_layer_weight(layer, HZP_K_NORM);
        args.dq_norm = hzp_layer_grad(layer, HZP_Q_NORM);
        args.dk_norm = hzp_layer_grad(layer, HZP_K_NORM);
    }
    hzp_plan_next(plan, HZP_OP_rope_bwd, &args);
    if (config->qk_norm_full)
        norm_full_back(plan, layer, k, g);
}

void hzp_attn_output_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                              const struct hzp_layer_space *k, const struct hzp_layer_grads *g)
{
    struct hzp_mat dy = hzp_stream_grad_of(plan, layer, HZP_O, g, k->attn);
    hzp_product_backward(plan, layer, HZP_O, g->quantum_flops, dy, k->attn, g->dattn);
}

void hzp_attn_backward(struct hzp_plan *plan, const struct hzp_layer *layer,
                       const struct hzp_layer_space *k, const struct hzp_layer_grads *g,
                       const struct hzp_packed *packed)
{
    const struct hzp_model_config *config = layer->model->config;
    add_attention_bwd(plan, layer, k, g, packed);
    if (config->qkv_bias)
        HZP_PLAN_NEXT(plan, colsum, .x = g->dqkv, .y = hzp_layer_grad(layer, HZP_QKV_BIAS));
    hzp_stream_back(plan, layer, HZP_ATTN_NORM, HZP_QKV, HZP_TENSOR_D_QKV, g, g->dqkv, k->x_in,
                    k->rstd_attn);
}
