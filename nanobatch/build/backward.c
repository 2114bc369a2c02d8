/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/backward.h"

#include "nanobatch/build/train_space.h"

static void add_cast(struct hzp_plan *plan, struct hzp_mat x, struct hzp_mat y)
{
    HZP_PLAN_NEXT(plan, cast, .x = x, .y = y);
}

static void add_zero(struct hzp_plan *plan, struct hzp_mat y)
{
    HZP_PLAN_NEXT(plan, fill, .y = y);
}

/* dW += dY^T X. */
static void add_weight_grad(struct hzp_plan *plan, uint64_t quantum, struct hzp_mat dy,
                            struct hzp_mat x, struct hzp_mat dw)
{
    struct hzp_matmul_args args = {.a = dy, .b = x, .c = dw, .trans_a = 1, .accumulate = 1};
    hzp_plan_add_matmul(plan, quantum, &args);
}

/* dX = dY W. */
static void add_input_grad(struct hzp_plan *plan, uint64_t quantum, struct hzp_mat dy,
                           struct hzp_mat w, struct hzp_mat dx)
{
    struct hzp_matmul_args args = {.a = dy, .b = w, .c = dx};
    hzp_plan_add_matmul(plan, quantum, &args);
}

/* What one micro-batch sees of the train space: the buffers, cut to its rows. */
struct rows {
    struct hzp_mat dx, dx_act, dnormed, normed, inner, dinner, dgate_up, dattn, dqkv;
};

static struct rows rows_of(const struct hzp_train_space *s, int32_t rows)
{
    return (struct rows){
        .dx = hzp_mat_rows(s->dx, 0, rows),
        .dx_act = hzp_mat_rows(s->dx_act, 0, rows),
        .dnormed = hzp_mat_rows(s->dnormed, 0, rows),
        .normed = hzp_mat_rows(s->normed, 0, rows),
        .inner = hzp_mat_rows(s->inner, 0, rows),
        .dinner = hzp_mat_rows(s->dinner, 0, rows),
        .dgate_up = hzp_mat_rows(s->dgate_up, 0, rows),
        .dattn = hzp_mat_rows(s->dattn, 0, rows),
        .dqkv = hzp_mat_rows(s->dqkv, 0, rows),
    };
}

static struct hzp_mat grad_of(const struct hzp_train_space *s, enum hzp_role role, int32_t layer)
{
    return hzp_units_mat(&s->grads, role, layer);
}

/* Chunk by chunk: while one goes through the layers, the rows behind it are nobody's. */
static void add_forward(struct hzp_plan *chain, const struct hzp_model *model,
                        const struct hzp_version *v, const struct hzp_micro *micro,
                        struct hzp_train_space *s)
{
    for (int32_t i = 0; i < HZP_MAX(micro->chunks, 1); i++) {
        struct hzp_packed packed = hzp_micro_packed(micro, i);
        chain->row0 = packed.row0;
        chain->rows = packed.rows;
        HZP_PLAN_NEXT(chain, embed, .table = hzp_version_mat(model->weights, v, HZP_EMBED, -1),
                      .y = hzp_mat_rows(s->kept[0].x_in, packed.row0, packed.rows),
                      .id = micro->id + packed.row0);
        for (int32_t l = 0; l < model->config->layers; l++) {
            struct hzp_layer_space space = hzp_train_layer_space(s, l, packed.row0, packed.rows);
            hzp_layer_attend(chain, model, v, l, &space, NULL, &packed);
            hzp_layer_finish(chain, model, v, l, &space);
        }
    }
    chain->row0 = 0;
    chain->rows = micro->rows;
    s->forward_end = chain->items;
}

/* The last residual stream: what the head reads. */
static struct hzp_mat last_x(const struct hzp_model *model, const struct hzp_train_space *s,
                             int32_t rows)
{
    int32_t last = s->config.forward_only ? 0 : model->config->layers;
    return hzp_mat_rows(s->kept[last].x_in, 0, rows);
}

/* Rows' losses do not meet, so they are cut as products are: a logit takes about as long as
 * xent_flops operations of a product. */
static void add_xent(struct hzp_plan *chain, uint64_t quantum, struct hzp_mat logits,
                     struct hzp_mat dlogits, const int32_t *target, float *loss)
{
    const uint64_t xent_flops = 300;
    int32_t rows = logits.rows, each = rows;
    if (quantum)
        each = (int32_t)HZP_MIN((uint64_t)rows,
                                HZP_MAX(quantum / (xent_flops * (uint64_t)logits.cols), 16u));
    for (int32_t r = 0, n; r < rows; r += n) {
        n = HZP_MIN(each, rows - r);
        struct hzp_mat dx = dlogits.ptr ? hzp_mat_rows(dlogits, r, n) : dlogits;
        HZP_PLAN_NEXT(chain, xent, .x = hzp_mat_rows(logits, r, n), .dx = dx, .target = target + r,
                      .loss = loss + r);
    }
}

/* Head, loss and, if wanted, their backward for learned rows [c0, c0 + n). */
static void add_head_chunk(struct hzp_plan *chain, const struct hzp_model *model,
                           const struct hzp_version *v, const struct hzp_micro *micro,
                           struct hzp_train_space *s, int32_t c0, int32_t n)
{
    uint64_t quantum = s->config.quantum_flops;
    bool learn = !s->config.forward_only;
    const int32_t *row = micro->learned_row + c0;
    struct hzp_mat x = last_x(model, s, micro->rows);
    struct hzp_mat head = hzp_version_mat(model->weights, v, HZP_HEAD, -1);
    struct hzp_mat norm = hzp_version_mat(model->weights, v, HZP_FINAL_NORM, -1);
    struct hzp_mat picked = hzp_mat_rows(s->picked, 0, n);
    struct hzp_mat normed = hzp_mat_rows(s->picked_normed, 0, n);
    struct hzp_mat logits = hzp_mat_rows(s->logits, 0, n);
    struct hzp_mat dlogits = learn ? hzp_mat_rows(s->dlogits, 0, n) : (struct hzp_mat){0};

    HZP_PLAN_NEXT(chain, gather, .x = x, .y = picked, .index = row);
    HZP_PLAN_NEXT(chain, rmsnorm, .x = picked, .w = norm, .y = normed, .rstd = s->picked_rstd,
                  .eps = model->config->norm_eps);
    struct hzp_matmul_args product = {.a = normed, .b = head, .c = logits, .trans_b = 1};
    hzp_plan_add_matmul(chain, quantum, &product);
    add_xent(chain, quantum, logits, dlogits, micro->target + c0, micro->loss + c0);
    if (!learn)
        return;

    struct hzp_mat dnormed = hzp_mat_rows(s->dpicked_normed, 0, n);
    struct hzp_mat dpicked = hzp_mat_rows(s->dpicked, 0, n);
    add_weight_grad(chain, quantum, dlogits, normed, grad_of(s, HZP_HEAD, -1));
    add_input_grad(chain, quantum, dlogits, head, dnormed);
    add_zero(chain, dpicked);
    HZP_PLAN_NEXT(chain, rmsnorm_bwd, .dy = dnormed, .x = picked, .w = norm, .dx = dpicked,
                  .dw = grad_of(s, HZP_FINAL_NORM, -1), .rstd = s->picked_rstd);
    /* Scatter: the transpose of gather is the transpose of a table look-up. */
    HZP_PLAN_NEXT(chain, embed_bwd, .dtable = hzp_mat_rows(s->dx, 0, micro->rows), .dy = dpicked,
                  .id = row);
}

static void add_head(struct hzp_plan *chain, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_micro *micro,
                     struct hzp_train_space *s)
{
    /* Equal chunks: a last one of few rows would cost as much memory traffic as a full one. */
    int32_t chunks = HZP_DIV_UP(micro->learned, s->config.head_rows);
    int32_t chunk = HZP_DIV_UP(micro->learned, HZP_MAX(chunks, 1));
    for (int32_t c0 = 0; c0 < micro->learned; c0 += chunk)
        add_head_chunk(chain, model, v, micro, s, c0, HZP_MIN(chunk, micro->learned - c0));
}

/* The gradient of the residual stream as the matrix products want it. */
static struct hzp_mat dx_for_products(struct hzp_plan *chain, const struct rows *r)
{
    if (r->dx_act.ptr == r->dx.ptr)
        return r->dx;
    add_cast(chain, r->dx, r->dx_act);
    return r->dx_act;
}

static void add_mlp_bwd(struct hzp_plan *chain, const struct hzp_model *model,
                        const struct hzp_version *v, int32_t layer, struct hzp_train_space *s,
                        const struct rows *r, const struct hzp_layer_space *k)
{
    const struct hzp_weights *w = model->weights;
    uint64_t quantum = s->config.quantum_flops;
    struct hzp_mat dy = dx_for_products(chain, r);
    struct hzp_mat norm = hzp_version_mat(w, v, HZP_MLP_NORM, layer);

    HZP_PLAN_NEXT(chain, swiglu, .x = k->gate_up, .y = r->inner);
    add_weight_grad(chain, quantum, dy, r->inner, grad_of(s, HZP_DOWN, layer));
    add_input_grad(chain, quantum, dy, hzp_version_mat(w, v, HZP_DOWN, layer), r->dinner);
    HZP_PLAN_NEXT(chain, swiglu_bwd, .x = k->gate_up, .dy = r->dinner, .dx = r->dgate_up);
    HZP_PLAN_NEXT(chain, rmsnorm, .x = k->x_mid, .w = norm, .y = r->normed,
                  .eps = model->config->norm_eps);
    add_weight_grad(chain, quantum, r->dgate_up, r->normed, grad_of(s, HZP_GATE_UP, layer));
    add_input_grad(chain, quantum, r->dgate_up, hzp_version_mat(w, v, HZP_GATE_UP, layer),
                   r->dnormed);
    HZP_PLAN_NEXT(chain, rmsnorm_bwd, .dy = r->dnormed, .x = k->x_mid, .w = norm, .dx = r->dx,
                  .dw = grad_of(s, HZP_MLP_NORM, layer), .rstd = k->rstd_mlp);
}

static void add_attention_bwd(struct hzp_plan *chain, const struct hzp_model *model,
                              const struct hzp_version *v, int32_t layer,
                              const struct hzp_micro *micro, struct hzp_train_space *s,
                              const struct rows *r, const struct hzp_layer_space *k)
{
    const struct hzp_weights *w = model->weights;
    const struct hzp_model_config *config = model->config;
    uint64_t quantum = s->config.quantum_flops;
    struct hzp_mat dy = dx_for_products(chain, r);
    struct hzp_mat norm = hzp_version_mat(w, v, HZP_ATTN_NORM, layer);

    add_weight_grad(chain, quantum, dy, k->attn, grad_of(s, HZP_O, layer));
    add_input_grad(chain, quantum, dy, hzp_version_mat(w, v, HZP_O, layer), r->dattn);
    HZP_PLAN_NEXT(
        chain, attn_packed_bwd, .qkv = k->qkv, .out = k->attn, .dout = r->dattn, .dqkv = r->dqkv,
        .lse = k->lse,
        .segs = {micro->row0, micro->pos0, micro->docs, micro->doc_rows_max, micro->doc_rows_max},
        .heads = config->heads, .scale = hzp_model_attn_scale(model));
    HZP_PLAN_NEXT(chain, rope_bwd, .dy = r->dqkv, .dx = r->dqkv, .x = k->qkv_bare,
                  .q_norm = hzp_version_mat(w, v, HZP_Q_NORM, layer),
                  .k_norm = hzp_version_mat(w, v, HZP_K_NORM, layer),
                  .dq_norm = grad_of(s, HZP_Q_NORM, layer),
                  .dk_norm = grad_of(s, HZP_K_NORM, layer), .table = model->rope, .pos = micro->pos,
                  .heads = config->heads, .eps = config->norm_eps);
    if (config->qkv_bias)
        HZP_PLAN_NEXT(chain, colsum, .x = r->dqkv, .y = grad_of(s, HZP_QKV_BIAS, layer));
    HZP_PLAN_NEXT(chain, rmsnorm, .x = k->x_in, .w = norm, .y = r->normed, .eps = config->norm_eps);
    add_weight_grad(chain, quantum, r->dqkv, r->normed, grad_of(s, HZP_QKV, layer));
    add_input_grad(chain, quantum, r->dqkv, hzp_version_mat(w, v, HZP_QKV, layer), r->dnormed);
    HZP_PLAN_NEXT(chain, rmsnorm_bwd, .dy = r->dnormed, .x = k->x_in, .w = norm, .dx = r->dx,
                  .dw = grad_of(s, HZP_ATTN_NORM, layer), .rstd = k->rstd_attn);
}

void hzp_micro_build(struct hzp_plan *chain, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_micro *micro,
                     struct hzp_train_space *s, bool first)
{
    HZP_ASSERT(micro->rows > 0 && micro->rows <= s->config.rows_max && !s->config.forward_only);
    chain->tenant = HZP_TENANT_TRAIN;
    chain->rows = micro->rows;
    if (first)
        for (int32_t u = 0; u < model->layout->units; u++) {
            struct hzp_unit_view grad = hzp_unit_view(&s->grads, u);
            add_zero(chain, hzp_unit_piece(&grad, 0, grad.elements));
        }
    struct rows r = rows_of(s, micro->rows);
    add_forward(chain, model, v, micro, s);
    add_zero(chain, r.dx);
    add_head(chain, model, v, micro, s);
    for (int32_t l = model->config->layers - 1; l >= 0; l--) {
        struct hzp_layer_space k = hzp_train_layer_space(s, l, 0, micro->rows);
        chain->layer = (int16_t)l;
        add_mlp_bwd(chain, model, v, l, s, &r, &k);
        add_attention_bwd(chain, model, v, l, micro, s, &r, &k);
    }
    chain->layer = -1;
    HZP_PLAN_NEXT(chain, embed_bwd, .dtable = grad_of(s, HZP_EMBED, -1), .dy = r.dx,
                  .id = micro->id);
}

void hzp_eval_build(struct hzp_plan *chain, const struct hzp_model *model,
                    const struct hzp_version *v, const struct hzp_micro *micro,
                    struct hzp_train_space *s)
{
    HZP_ASSERT(micro->rows > 0 && micro->rows <= s->config.rows_max && s->config.forward_only);
    chain->tenant = HZP_TENANT_TRAIN;
    chain->rows = micro->rows;
    add_forward(chain, model, v, micro, s);
    add_head(chain, model, v, micro, s);
}
