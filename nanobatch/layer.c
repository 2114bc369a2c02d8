/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/layer.h"

#include "nanobatch/backward.h"
#include "nanobatch/batch.h"

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
        } else {
            a.b = args->trans_b ? hzp_mat_rows(args->b, at, n) : cols_of(args->b, at, n);
            a.c = cols_of(args->c, at, n);
            if (args->bias.ptr)
                a.bias = cols_of(args->bias, at, n);
        }
        hzp_plan_add(plan, HZP_OP_matmul, HZP_LANE_COMPUTE, &a);
    }
}

static void add_projection(struct hzp_plan *plan, uint64_t quantum, struct hzp_mat x,
                           struct hzp_mat w, struct hzp_mat bias, struct hzp_mat y, bool accumulate)
{
    struct hzp_matmul_args args = {
        .a = x, .b = w, .c = y, .bias = bias, .trans_b = 1, .accumulate = accumulate};
    hzp_plan_add_matmul(plan, quantum, &args);
}

/* Training keeps the residual stream at three points; serving has one buffer and copies nothing. */
static void carry(struct hzp_plan *plan, struct hzp_mat from, struct hzp_mat to)
{
    if (from.ptr != to.ptr)
        HZP_PLAN_ADD(plan, cast, HZP_LANE_COMPUTE, .x = from, .y = to);
}

static void add_paged_attention(struct hzp_plan *plan, const struct hzp_model *model,
                                const struct hzp_layer_space *s, const struct hzp_batch *batch,
                                const struct hzp_kv *kv)
{
    struct hzp_heads heads = model->config->heads;
    HZP_PLAN_ADD(plan, kv_append, HZP_LANE_COMPUTE, .qkv = s->qkv, .kv = *kv, .slot = batch->slot,
                 .heads = heads);
    struct hzp_attn_paged_args args = {
        .qkv = s->qkv,
        .out = s->attn,
        .kv = *kv,
        .page = batch->page,
        .page_stride = batch->max.page_stride,
        .heads = heads,
        .scale = hzp_model_attn_scale(model),
    };
    int32_t decode = batch->decode_segs;
    if (decode > 0) {
        /* Decode rows come first; the op takes no other. */
        args.qkv = hzp_mat_rows(s->qkv, 0, decode);
        args.out = hzp_mat_rows(s->attn, 0, decode);
        args.segs = (struct hzp_segs){batch->row0, batch->pos0, decode, 1, batch->decode_ctx_max};
        hzp_plan_add(plan, HZP_OP_attn_decode, HZP_LANE_COMPUTE, &args);
    }
    if (batch->segs > decode) {
        args.segs = (struct hzp_segs){batch->row0 + decode, batch->pos0 + decode,
                                      batch->segs - decode, batch->prefill_rows_max,
                                      batch->prefill_ctx_max};
        args.qkv = s->qkv;
        args.out = s->attn;
        args.page = batch->page + (size_t)decode * (size_t)batch->max.page_stride;
        hzp_plan_add(plan, HZP_OP_attn_prefill, HZP_LANE_COMPUTE, &args);
    }
}

static void add_packed_attention(struct hzp_plan *plan, const struct hzp_model *model,
                                 const struct hzp_layer_space *s, const struct hzp_micro *micro)
{
    HZP_PLAN_ADD(plan, attn_packed, HZP_LANE_COMPUTE, .qkv = s->qkv, .out = s->attn, .lse = s->lse,
                 .segs = {micro->row0, micro->pos0, micro->docs, micro->doc_rows_max,
                          micro->doc_rows_max},
                 .heads = model->config->heads, .scale = hzp_model_attn_scale(model));
}

void hzp_layer_build(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_version *v, int32_t layer, const struct hzp_layer_space *s,
                     const struct hzp_batch *batch, const struct hzp_kv *kv,
                     const struct hzp_micro *micro)
{
    const struct hzp_model_config *config = model->config;
    const struct hzp_weights *w = model->weights;
    const struct hzp_mat none = {0};
    plan->layer = (int16_t)layer;

    HZP_PLAN_ADD(plan, rmsnorm, HZP_LANE_COMPUTE, .x = s->x_in,
                 .w = hzp_version_mat(w, v, HZP_ATTN_NORM, layer), .y = s->normed,
                 .rstd = s->rstd_attn, .eps = config->norm_eps);
    add_projection(plan, s->quantum_flops, s->normed, hzp_version_mat(w, v, HZP_QKV, layer),
                   hzp_version_mat(w, v, HZP_QKV_BIAS, layer), s->qkv_bare, false);
    HZP_PLAN_ADD(plan, rope, HZP_LANE_COMPUTE, .x = s->qkv_bare, .y = s->qkv,
                 .q_norm = hzp_version_mat(w, v, HZP_Q_NORM, layer),
                 .k_norm = hzp_version_mat(w, v, HZP_K_NORM, layer), .table = model->rope,
                 .pos = batch ? batch->pos : micro->pos, .heads = config->heads,
                 .eps = config->norm_eps);
    if (batch)
        add_paged_attention(plan, model, s, batch, kv);
    else
        add_packed_attention(plan, model, s, micro);
    carry(plan, s->x_in, s->x_mid);
    add_projection(plan, s->quantum_flops, s->attn, hzp_version_mat(w, v, HZP_O, layer), none,
                   s->x_mid, true);

    HZP_PLAN_ADD(plan, rmsnorm, HZP_LANE_COMPUTE, .x = s->x_mid,
                 .w = hzp_version_mat(w, v, HZP_MLP_NORM, layer), .y = s->normed,
                 .rstd = s->rstd_mlp, .eps = config->norm_eps);
    add_projection(plan, s->quantum_flops, s->normed, hzp_version_mat(w, v, HZP_GATE_UP, layer),
                   none, s->gate_up, false);
    HZP_PLAN_ADD(plan, swiglu, HZP_LANE_COMPUTE, .x = s->gate_up, .y = s->inner);
    carry(plan, s->x_mid, s->x_out);
    add_projection(plan, s->quantum_flops, s->inner, hzp_version_mat(w, v, HZP_DOWN, layer), none,
                   s->x_out, true);
    plan->layer = -1;
}
