/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/dense.c - embed, rmsnorm, matmul, project, quantize, codes, rope, swiglu, gather,
 * cast, fill, noise. */
#include "device/philox.h"
#include "device/ref/ref.h"

static int ref_embed(struct hzp_lane *lane, const void *args)
{
    const struct hzp_embed_args *a = args;
    for (int32_t r = 0; r < a->y.rows; r++)
        for (int32_t c = 0; c < a->y.cols; c++) {
            int64_t row = (int64_t)a->id[r] - a->first;
            bool there = row >= 0 && row < a->table.rows;
            ref_put(&a->y, r, c, there ? (double)ref_get(&a->table, (int32_t)row, c) : 0);
        }
    return HZP_OK;
}

static int ref_rmsnorm(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_args *a = args;
    for (int32_t r = 0; r < a->x.rows; r++) {
        double sum = 0, centre = ref_centre(&a->x, r, a->centred);
        for (int32_t c = 0; c < a->x.cols; c++)
            sum += (ref_get(&a->x, r, c) - centre) * (ref_get(&a->x, r, c) - centre);
        double rstd = 1 / sqrt(sum / a->x.cols + a->eps);
        for (int32_t c = 0; c < a->x.cols; c++)
            ref_put(&a->y, r, c,
                    rstd * (ref_get(&a->x, r, c) - centre) * ref_weight(&a->w, c, a->plus_one) +
                        (a->add.ptr ? ref_get(&a->add, r, c) : 0));
        if (a->rstd)
            a->rstd[r] = (float)rstd;
    }
    return HZP_OK;
}

static int ref_matmul(struct hzp_lane *lane, const void *args)
{
    const struct hzp_matmul_args *a = args;
    int32_t depth = a->trans_a ? a->a.rows : a->a.cols;
    double *row = hzp_xmalloc(sizeof(*row) * (size_t)HZP_MAX(depth, 1)); /* row i of op(a) */

    for (int32_t i = 0; i < a->c.rows; i++) {
        for (int32_t k = 0; k < depth; k++)
            row[k] = a->trans_a ? ref_get(&a->a, k, i) : ref_get(&a->a, i, k);
        for (int32_t j = 0; j < a->c.cols; j++) {
            double sum = 0;
            for (int32_t k = 0; k < depth; k++)
                sum += row[k] * (a->trans_b ? ref_get(&a->b, j, k) : ref_get(&a->b, k, j));
            if (a->scale_a)
                sum *= (double)a->scale_a[i] * (double)a->scale_b[j];
            if (a->bias.ptr)
                sum += ref_get(&a->bias, 0, j);
            if (a->accumulate)
                sum += ref_get(a->from.ptr ? &a->from : &a->c, i, j);
            ref_put(&a->c, i, j, sum);
        }
    }
    free(row);
    return HZP_OK;
}

/* Row i of the product's first factor: of a, normed if there is a norm. */
static void project_row(const struct hzp_project_args *a, int32_t i, double *ret)
{
    const struct hzp_mat *x = &a->product.a;
    double sum = 0;
    for (int32_t k = 0; k < x->cols; k++) {
        ret[k] = ref_get(x, i, k);
        sum += ret[k] * ret[k];
    }
    for (int32_t k = 0; a->norm.ptr && k < x->cols; k++)
        ret[k] *= ref_get(&a->norm, 0, k) / sqrt(sum / x->cols + a->eps);
}

static double project_sum(const struct hzp_matmul_args *a, const double *row, int32_t i, int32_t j)
{
    double sum = 0;
    for (int32_t k = 0; k < a->a.cols; k++)
        sum += row[k] * ref_get(&a->b, j, k);
    if (a->scale_a)
        sum *= (double)a->scale_a[i] * (double)a->scale_b[j];
    return a->bias.ptr ? sum + ref_get(&a->bias, 0, j) : sum;
}

static int ref_project(struct hzp_lane *lane, const void *args)
{
    const struct hzp_project_args *a = args;
    const struct hzp_mat *c = &a->product.c;
    HZP_FREED double *row = hzp_xmalloc(sizeof(*row) * (size_t)HZP_MAX(a->product.a.cols, 1));
    for (int32_t i = 0; i < c->rows; i++) {
        project_row(a, i, row);
        for (int32_t j = 0; j < c->cols; j++) {
            double y = project_sum(&a->product, row, i, j);
            if (a->gated)
                y = y / (1 + exp(-y)) * project_sum(&a->product, row, i, c->cols + j);
            ref_put(c, i, j, y);
        }
    }
    return HZP_OK;
}

void hzp_ref_quantize_row(const struct hzp_mat *x, int32_t r, int32_t c0, int32_t count,
                          uint8_t *code, float *ret_scale)
{
    uint32_t largest = 0;
    for (int32_t c = 0; c < count; c++) {
        uint32_t bits = hzp_f32_bits(ref_get(x, r, c0 + c)) & 0x7fffffffu;
        largest = HZP_MAX(largest, bits);
    }
    float scale = *ret_scale = hzp_e4m3_scale(largest);
    for (int32_t c = 0; c < count; c++)
        code[c] = isnan(scale) ? 0 : hzp_e4m3_from_f32(ref_get(x, r, c0 + c) / scale);
}

static int ref_quantize(struct hzp_lane *lane, const void *args)
{
    const struct hzp_quantize_args *a = args;
    for (int32_t r = 0; r < a->x.rows; r++)
        hzp_ref_quantize_row(&a->x, r, 0, a->x.cols, ref_at(&a->y, r), &a->scale[r]);
    return HZP_OK;
}

/* One head of one row, columns c0 .. c0+dim-1: norm, then rotation. */
static void rope_head(const struct hzp_rope_args *a, const struct hzp_mat *norm, int32_t r,
                      int32_t c0, double *x)
{
    int32_t dim = a->heads.dim, half = dim / 2;
    double sum = 0;
    for (int32_t j = 0; j < dim; j++) {
        x[j] = ref_get(&a->x, r, c0 + j);
        sum += x[j] * x[j];
    }
    if (norm->ptr)
        for (int32_t j = 0; j < dim; j++)
            x[j] *= ref_weight(norm, j, a->plus_one) / sqrt(sum / dim + a->eps);
    for (int32_t j = 0; j < half; j++) {
        double c = ref_get(&a->table, a->pos[r], j);
        double s = ref_get(&a->table, a->pos[r], half + j);
        ref_put(&a->y, r, c0 + j, x[j] * c - x[j + half] * s);
        ref_put(&a->y, r, c0 + half + j, x[j + half] * c + x[j] * s);
    }
}

static int ref_rope(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rope_args *a = args;
    int32_t turned = a->heads.heads + a->heads.kv_heads, dim = a->heads.dim;
    double *x = hzp_xmalloc(sizeof(*x) * (size_t)dim);

    for (int32_t r = 0; r < a->x.rows; r++) {
        for (int32_t h = 0; h < turned; h++)
            rope_head(a, h < a->heads.heads ? &a->q_norm : &a->k_norm, r, h * dim, x);
        for (int32_t c = turned * dim; c < a->x.cols; c++)
            ref_put(&a->y, r, c, ref_get(&a->x, r, c));
    }
    free(x);
    if (a->kv.k)
        hzp_ref_append(a);
    return HZP_OK;
}

static int ref_swiglu(struct hzp_lane *lane, const void *args)
{
    const struct hzp_swiglu_args *a = args;
    for (int32_t r = 0; r < a->y.rows; r++)
        for (int32_t c = 0; c < a->y.cols; c++) {
            double gate = ref_get(&a->x, r, c), up = ref_get(&a->x, r, a->y.cols + c);
            double cube = gate * gate * gate, root = sqrt(8 / M_PI);
            double z = a->gelu ? root * (gate + 0.044715 * cube) : gate;
            ref_put(&a->y, r, c, gate / (1 + exp(-z)) * up);
        }
    return HZP_OK;
}

static int ref_codes(struct hzp_lane *lane, const void *args)
{
    const struct hzp_codes_args *a = args;
    enum hzp_dtype type = a->norm.ptr ? a->norm.type : a->x.type;
    int32_t cols = a->y.cols;
    HZP_FREED float *h = hzp_xmalloc(sizeof(*h) * (size_t)HZP_MAX(cols, 1));
    for (int32_t r = 0; r < a->x.rows; r++) {
        struct hzp_mat x = hzp_mat_rows(a->x, r, 1), y = {h, 1, cols, cols, type};
        struct hzp_rmsnorm_args norm = {.x = x, .w = a->norm, .y = y, .eps = a->eps};
        struct hzp_swiglu_args gate = {.x = x, .y = y};
        if (a->norm.ptr)
            ref_rmsnorm(lane, &norm);
        else
            ref_swiglu(lane, &gate);
        hzp_ref_quantize_row(&y, 0, 0, cols, ref_at(&a->y, r), &a->scale[r]);
    }
    return HZP_OK;
}

static int ref_gather(struct hzp_lane *lane, const void *args)
{
    const struct hzp_gather_args *a = args;
    size_t width = (size_t)a->y.cols * hzp_dtype_size(a->y.type);
    for (int32_t r = 0; r < a->y.rows; r++)
        memcpy(ref_at(&a->y, r), ref_at(&a->x, a->index[r]), width);
    return HZP_OK;
}

static int ref_scatter(struct hzp_lane *lane, const void *args)
{
    const struct hzp_scatter_args *a = args;
    size_t width = (size_t)a->x.cols * hzp_dtype_size(a->x.type);
    for (int32_t r = 0; r < a->x.rows; r++)
        memcpy(ref_at(&a->y, a->index[r]), ref_at(&a->x, r), width);
    return HZP_OK;
}

static int ref_cast(struct hzp_lane *lane, const void *args)
{
    const struct hzp_cast_args *a = args;
    float scale = a->scale ? a->scale : 1;
    if (a->squares)
        scale = (float)(scale / fmax(sqrt(*a->squares), 1e-7));
    for (int32_t r = 0; r < a->y.rows; r++)
        for (int32_t c = 0; c < a->y.cols; c++) {
            float x = (float)ref_get(&a->x, r, c) * scale;
            ref_put(&a->y, r, c, a->cap > 0 ? a->cap * tanh((double)x / a->cap) : x);
        }
    return HZP_OK;
}

static int ref_fill(struct hzp_lane *lane, const void *args)
{
    const struct hzp_fill_args *a = args;
    for (int32_t r = 0; r < a->y.rows; r++)
        for (int32_t c = 0; c < a->y.cols; c++)
            ref_put(&a->y, r, c, a->value);
    return HZP_OK;
}

static int ref_noise(struct hzp_lane *lane, const void *args)
{
    const struct hzp_noise_args *a = args;
    for (int32_t r = 0; r < a->y.rows; r++)
        for (int32_t c = 0; c < a->y.cols; c++) {
            uint64_t i = a->first + (uint64_t)r * (uint64_t)a->y.cols + (uint64_t)c;
            float four[4];
            hzp_noise_four(a->seed, i / 4, four);
            ref_put(&a->y, r, c, four[i % 4] * hzp_noise_scale(a->deviation));
        }
    return HZP_OK;
}

void hzp_ref_fill_dense(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_embed] = ref_embed;
    op[HZP_OP_rmsnorm] = ref_rmsnorm;
    op[HZP_OP_matmul] = ref_matmul;
    op[HZP_OP_project] = ref_project;
    op[HZP_OP_quantize] = ref_quantize;
    op[HZP_OP_codes] = ref_codes;
    op[HZP_OP_rope] = ref_rope;
    op[HZP_OP_swiglu] = ref_swiglu;
    op[HZP_OP_gather] = ref_gather;
    op[HZP_OP_scatter] = ref_scatter;
    op[HZP_OP_cast] = ref_cast;
    op[HZP_OP_fill] = ref_fill;
    op[HZP_OP_noise] = ref_noise;
}
