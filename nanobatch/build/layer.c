/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/build/layer.h"

#include "nanobatch/build/batch.h"

#include <math.h>

float hzp_model_attn_scale(const struct hzp_model *model)
{
    return 1.0f / sqrtf((float)model->config->heads.dim);
}

struct hzp_mat hzp_mat_cut(char *base, size_t *at, int32_t rows, int32_t cols, enum hzp_dtype type)
{
    struct hzp_mat mat = {base ? base + *at : NULL, rows, cols, cols, type};
    *at += HZP_ROUND_UP((size_t)rows * (size_t)cols * hzp_dtype_size(type), (size_t)256);
    return mat;
}

struct hzp_mat hzp_narrow_cut(char *base, size_t *at, const struct hzp_model_config *c,
                              int32_t rows, float **ret_scale)
{
    int32_t deepest = HZP_MAX(c->width, HZP_MAX(c->heads.heads * c->heads.dim, c->inner));
    struct hzp_mat mat =
        hzp_mat_cut(base, at, rows, HZP_ROUND_UP(deepest, (int32_t)HZP_UNIT_ALIGN), HZP_E4M3);
    *ret_scale = hzp_mat_cut(base, at, 1, rows + 4 * (HZP_NANO_MAX + 1), HZP_F32).ptr;
    return mat;
}

static struct hzp_mat cols_of(struct hzp_mat mat, int32_t c0, int32_t cols)
{
    mat.ptr = (char *)mat.ptr + (size_t)c0 * hzp_dtype_size(mat.type);
    mat.cols = cols;
    return mat;
}

void hzp_plan_add_matmul(struct hzp_plan *plan, uint64_t quantum_flops,
                         const struct hzp_matmul_args *args)
{
    uint64_t flops = hzp_op_cost(HZP_OP_matmul, args).flops;
    bool by_rows = args->c.rows > args->c.cols;
    int32_t length = by_rows ? args->c.rows : args->c.cols;
    int64_t pieces = quantum_flops ? (int64_t)(flops / quantum_flops) + 1 : 1;
    /* Pieces of a multiple of 64 keep the kernels' tiles whole. */
    int32_t piece = (int32_t)HZP_ROUND_UP(HZP_DIV_UP((int64_t)length, pieces), (int64_t)64);
    for (int32_t at = 0; at < length; at += piece) {
        int32_t n = HZP_MIN(piece, length - at);
        struct hzp_matmul_args a = *args;
        if (by_rows) {
            a.a = args->trans_a ? cols_of(args->a, at, n) : hzp_mat_rows(args->a, at, n);
            a.c = hzp_mat_rows(args->c, at, n);
            if (args->scale_a)
                a.scale_a = args->scale_a + at;
        } else {
            a.b = args->trans_b ? hzp_mat_rows(args->b, at, n) : cols_of(args->b, at, n);
            a.c = cols_of(args->c, at, n);
            if (args->bias.ptr)
                a.bias = cols_of(args->bias, at, n);
            if (args->scale_b)
                a.scale_b = args->scale_b + at;
        }
        hzp_plan_next(plan, HZP_OP_matmul, &a);
    }
}

/* Where a layer's products find their weights. */
struct from {
    const struct hzp_weights *w;
    const struct hzp_version *v;
    int32_t layer;
};

/* y = x W^T + bias (+ y). */
static void add_projection(struct hzp_plan *plan, const struct hzp_layer_space *s,
                           const struct from *from, enum hzp_role role, struct hzp_mat x,
                           struct hzp_mat bias, struct hzp_mat y, bool accumulate)
{
    struct hzp_matmul_args args = {
        .a = x, .c = y, .bias = bias, .trans_b = 1, .accumulate = accumulate};
    if (s->narrow.ptr) {
        float *scale;
        args.a = cols_of(s->narrow, 0, x.cols);
        args.b = hzp_version_fp8(from->w, from->v, role, from->layer, &scale);
        args.scale_a = s->narrow_scale;
        args.scale_b = scale;
        HZP_PLAN_NEXT(plan, quantize, .x = x, .y = args.a, .scale = s->narrow_scale);
    } else {
        args.b = hzp_version_mat(from->w, from->v, role, from->layer);
    }
    hzp_plan_add_matmul(plan, s->quantum_flops, &args);
}

/* Training keeps the residual stream at three points; serving has one buffer and copies nothing. */
static void carry(struct hzp_plan *plan, struct hzp_mat from, struct hzp_mat to)
{
    if (from.ptr != to.ptr)
        HZP_PLAN_NEXT(plan, cast, .x = from, .y = to);
}

/* Decode rows and pieces of prompts need not wait for each other. */
static void add_paged_attention(struct hzp_plan *plan, const struct hzp_model *model,
                                const struct hzp_layer_space *s, struct hzp_paged *paged)
{
    struct hzp_heads heads = model->config->heads;
    const struct hzp_nano *n = paged->nano;
    int32_t decode = -1, rows = n->decode_rows;
    struct hzp_attn_paged_args args = {
        .kv = *paged->kv,
        .page_stride = n->page_stride,
        .heads = heads,
        .scale = hzp_model_attn_scale(model),
    };
    if (rows > 0) {
        args.qkv = hzp_mat_rows(s->qkv, 0, rows);
        args.out = hzp_mat_rows(s->attn, 0, rows);
        args.segs = n->decode;
        args.page = n->decode_page;
        decode = hzp_plan_next(plan, HZP_OP_attn_decode, &args);
    }
    if (n->rows > rows) {
        args.qkv = hzp_mat_rows(s->qkv, rows, n->rows - rows);
        args.out = hzp_mat_rows(s->attn, rows, n->rows - rows);
        args.segs = n->prefill;
        args.page = n->prefill_page;
        plan->tail = paged->append;
        hzp_plan_next(plan, HZP_OP_attn_prefill, &args);
        for (int32_t i = 0; i < paged->needs; i++)
            hzp_plan_need(plan, paged->need[i]);
        plan->also[0] = decode;
    }
}

static void add_packed_attention(struct hzp_plan *plan, const struct hzp_model *model,
                                 const struct hzp_layer_space *s, const struct hzp_packed *packed)
{
    struct hzp_mat qkv = s->qkv; /* with what came before, in the same buffer */
    size_t row = (size_t)qkv.stride * hzp_dtype_size(qkv.type);
    qkv.ptr = (char *)qkv.ptr - (size_t)packed->before * row;
    qkv.rows += packed->before;
    HZP_PLAN_NEXT(plan, attn_packed, .qkv = qkv, .out = s->attn, .lse = s->lse,
                  .segs = packed->segs, .heads = model->config->heads,
                  .scale = hzp_model_attn_scale(model));
}

/* Rows [row0, row0 + rows) of what rotation and attention see. */
static struct hzp_layer_space tenant_of(const struct hzp_layer_space *s, int32_t row0, int32_t rows)
{
    struct hzp_layer_space of = *s;
    of.qkv_bare = hzp_mat_rows(s->qkv_bare, row0, rows);
    of.qkv = hzp_mat_rows(s->qkv, row0, rows);
    of.attn = hzp_mat_rows(s->attn, row0, rows);
    return of;
}

/* Serving's rows go to their pages on the way. */
static void add_rope(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_version *v, int32_t layer, const struct hzp_layer_space *s,
                     const int32_t *pos, struct hzp_paged *paged)
{
    const struct hzp_weights *w = model->weights;
    struct hzp_rope_args args = {.x = s->qkv_bare,
                                 .y = s->qkv,
                                 .q_norm = hzp_version_mat(w, v, HZP_Q_NORM, layer),
                                 .k_norm = hzp_version_mat(w, v, HZP_K_NORM, layer),
                                 .table = model->rope,
                                 .pos = pos,
                                 .heads = model->config->heads,
                                 .eps = model->config->norm_eps};
    if (paged) {
        args.kv = *paged->kv;
        args.slot = paged->nano->slot;
    }
    int32_t item = hzp_plan_next(plan, HZP_OP_rope, &args);
    if (paged)
        paged->append = item;
}

/* Training's rotation and attention in a plan of serving's; returns their last item. */
static int32_t add_riding_attention(struct hzp_plan *plan, const struct hzp_model *model,
                                    const struct hzp_version *v, int32_t layer,
                                    const struct hzp_layer_space *s,
                                    const struct hzp_packed *packed)
{
    int32_t row0 = plan->row0, rows = plan->rows;
    struct hzp_layer_space first = tenant_of(s, 0, packed->rows);
    plan->tenant = HZP_TENANT_TRAIN;
    plan->row0 = packed->row0;
    plan->rows = packed->rows;
    add_rope(plan, model, v, layer, &first, packed->pos, NULL);
    add_packed_attention(plan, model, &first, packed);
    plan->tenant = HZP_TENANT_SERVE;
    plan->row0 = row0;
    plan->rows = rows;
    return plan->tail;
}

void hzp_layer_attend(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_version *v, int32_t layer, const struct hzp_layer_space *s,
                      struct hzp_paged *paged, const struct hzp_packed *packed)
{
    const struct hzp_model_config *config = model->config;
    const struct hzp_weights *w = model->weights;
    struct hzp_layer_space own = *s; /* serving's, or all there is */
    int32_t rider = -1;
    HZP_ASSERT(s->rides == (paged && packed ? packed->rows : 0));
    plan->layer = (int16_t)layer;

    plan->rides = s->rides;
    HZP_PLAN_NEXT(plan, rmsnorm, .x = s->x_in, .w = hzp_version_mat(w, v, HZP_ATTN_NORM, layer),
                  .y = s->normed, .rstd = s->rstd_attn, .eps = config->norm_eps);
    add_projection(plan, s, &(struct from){w, v, layer}, HZP_QKV, s->normed,
                   hzp_version_mat(w, v, HZP_QKV_BIAS, layer), s->qkv_bare, false);
    plan->rides = 0;

    if (s->rides) {
        int32_t product = plan->tail;
        rider = add_riding_attention(plan, model, v, layer, s, packed);
        plan->tail = product;
        own = tenant_of(s, s->rides, s->qkv.rows - s->rides);
    }
    add_rope(plan, model, v, layer, &own, paged ? paged->nano->pos : packed->pos, paged);
    if (paged)
        add_paged_attention(plan, model, &own, paged);
    else
        add_packed_attention(plan, model, &own, packed);
    plan->also[1] = rider;
    plan->layer = -1;
}

void hzp_layer_finish(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_version *v, int32_t layer, const struct hzp_layer_space *s)
{
    const struct hzp_weights *w = model->weights;
    const struct hzp_mat none = {0};
    const struct from from = {w, v, layer};
    plan->layer = (int16_t)layer;
    plan->rides = s->rides;

    carry(plan, s->x_in, s->x_mid);
    add_projection(plan, s, &from, HZP_O, s->attn, none, s->x_mid, true);

    HZP_PLAN_NEXT(plan, rmsnorm, .x = s->x_mid, .w = hzp_version_mat(w, v, HZP_MLP_NORM, layer),
                  .y = s->normed, .rstd = s->rstd_mlp, .eps = model->config->norm_eps);
    add_projection(plan, s, &from, HZP_GATE_UP, s->normed, none, s->gate_up, false);
    HZP_PLAN_NEXT(plan, swiglu, .x = s->gate_up, .y = s->inner);
    carry(plan, s->x_mid, s->x_out);
    add_projection(plan, s, &from, HZP_DOWN, s->inner, none, s->x_out, true);
    plan->layer = -1;
    plan->rides = 0;
}
