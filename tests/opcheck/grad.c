/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/grad.c - every backward op against finite differences of its forward op.
 *
 * The loss is sum(weight * y), where weight is what the backward op gets as dy.  Each input
 * element is moved by h = 2^-5 and 2h both ways and the four losses combined,
 *     (8 (L(+h) - L(-h)) - (L(+2h) - L(-2h))) / 12h,
 * whose error is h^4 / 30 times the fifth derivative: about 3e-8 here.  Inputs are multiples of
 * 2^-6, so the moves are exact in float.  What remains is the rounding of y to float, 6e-8 of
 * each element over h: some 1e-5 of the gradient.  Hence: nmse 1e-8, no element off by more than
 * 1e-3 of itself plus the gradient's rms.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/opcheck/opcheck.h"

#define STEP 0x1p-5f
enum { RESULT = 4 << 20 };

struct probe {
    struct oc_target *target;
    enum hzp_op op, forward;
    struct oc_io *f, *b; /* the forward's and the backward's case */
    uint8_t *f_result, *b_result;
    struct hzp_mat y, weight; /* in f */
    float cap;                /* of the forward's input; 0: none */
    int failures;
};

/* Multiples of 2^-6 between -1.5 and 1.5. */
static void fill_nice(struct oc_io *io, const struct hzp_mat *mat)
{
    for (int32_t r = 0; r < mat->rows; r++)
        for (int32_t c = 0; c < mat->cols; c++)
            oc_put(mat, r, c, (float)(oc_below(io, 193) - 96) / 64);
}

static struct hzp_mat gentle(struct oc_io *io, const char *name, int32_t rows, int32_t cols)
{
    struct hzp_mat mat = oc_mat(io, name, rows, cols, HZP_F32, OC_IN);
    fill_nice(io, &mat);
    return mat;
}

/* A buffer of the backward's case with the contents of one of the forward's. */
static struct hzp_mat same(struct oc_io *io, const char *name, const struct hzp_mat *from)
{
    struct hzp_mat mat = oc_mat(io, name, from->rows, from->cols, from->type, OC_IN);
    memcpy(mat.ptr, from->ptr, (size_t)mat.rows * (size_t)mat.cols * sizeof(float));
    return mat;
}

static struct hzp_mat in_result(const struct oc_io *io, const uint8_t *result, struct hzp_mat mat)
{
    mat.ptr = (void *)(result + ((const uint8_t *)mat.ptr - io->image));
    return mat;
}

static void probe_begin(struct probe *p, enum hzp_op op, enum hzp_op forward, uint64_t seed)
{
    p->op = op;
    p->forward = forward;
    p->cap = 0;
    oc_io_reset(p->f, seed, false);
    oc_io_reset(p->b, seed + 1, false);
}

static double loss(struct probe *p)
{
    double sum = 0;
    HZP_ASSERT(oc_target_run(p->target, p->forward, p->f, p->f_result) >= 0);
    struct hzp_mat y = in_result(p->f, p->f_result, p->y);
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t c = 0; c < y.cols; c++)
            sum += (double)oc_get(&p->weight, r, c) * oc_get(&y, r, c);
    return sum;
}

static double slope(struct probe *p, const struct hzp_mat *x, int32_t r, int32_t c)
{
    static const float moves[] = {1, -1, 2, -2};
    double at[4];
    float keep = oc_get(x, r, c);
    for (int i = 0; i < 4; i++) {
        oc_put(x, r, c, keep + moves[i] * STEP);
        at[i] = loss(p);
    }
    oc_put(x, r, c, keep);
    return (8 * (at[0] - at[1]) - (at[2] - at[3])) / (12 * STEP);
}

/* x: the forward's input; dx: where the backward op added its gradient to what was there. */
static void check(struct probe *p, const char *what, const struct hzp_mat *x,
                  const struct hzp_mat *dx, bool added)
{
    struct hzp_mat got = in_result(p->b, p->b_result, *dx);
    double diff2 = 0, sum2 = 0, worst = 0;
    int32_t count = x->rows * x->cols;
    double *want = hzp_xmalloc(sizeof(*want) * (size_t)count);

    for (int32_t i = 0; i < count; i++) {
        want[i] = slope(p, x, i / x->cols, i % x->cols);
        if (p->cap > 0) /* dx is with respect to what was capped */
            want[i] *= 1 - pow(oc_get(x, i / x->cols, i % x->cols) / p->cap, 2);
        sum2 += want[i] * want[i];
    }
    double rms = sqrt(sum2 / count);
    for (int32_t i = 0; i < count; i++) {
        int32_t r = i / x->cols, c = i % x->cols;
        double g = oc_get(&got, r, c) - (added ? (double)oc_get(dx, r, c) : 0);
        diff2 += (g - want[i]) * (g - want[i]);
        worst = fmax(worst, fabs(g - want[i]) / (fabs(want[i]) + rms));
    }
    free(want);
    bool ok = sum2 > 0 && diff2 <= 1e-8 * sum2 && worst <= 1e-3;
    p->failures += !ok;
    oc_report(ok, hzp_op_name(p->op), "grad", what, "nmse %.1e, worst %.1e", diff2 / sum2, worst);
}

static void backward(struct probe *p, const void *args, size_t size)
{
    oc_args(p->b, args, size);
    HZP_ASSERT(oc_target_run(p->target, p->op, p->b, p->b_result) >= 0);
}

static void grad_embed(struct probe *p)
{
    static const int32_t ids[] = {6, 0, 3, 3, 6, 3};
    struct hzp_embed_args f = {.table = gentle(p->f, "table", 7, 5)};
    int32_t *id = oc_array(p->f, "id", OC_I32, 6, OC_IN);
    memcpy(id, ids, sizeof(ids));
    f.id = id;
    f.y = p->y = oc_mat(p->f, "y", 6, 5, HZP_F32, OC_OUT);
    p->weight = gentle(p->f, "weight", 6, 5);
    oc_args(p->f, &f, sizeof(f));

    struct hzp_embed_bwd_args b = {gentle(p->b, "dtable", 7, 5), same(p->b, "dy", &p->weight), NULL,
                                   0};
    id = oc_array(p->b, "id", OC_I32, 6, OC_IN);
    memcpy(id, ids, sizeof(ids));
    b.id = id;
    backward(p, &b, sizeof(b));
    check(p, "dtable", &f.table, &b.dtable, true);
}

static void grad_rmsnorm(struct probe *p, bool plus_one, bool centred)
{
    struct hzp_rmsnorm_args f = {.eps = 1e-3f, .plus_one = plus_one, .centred = centred};
    f.x = gentle(p->f, "x", 5, 13);
    f.w = gentle(p->f, "w", 1, 13);
    f.y = p->y = oc_mat(p->f, "y", 5, 13, HZP_F32, OC_OUT);
    f.rstd = oc_array(p->f, "rstd", OC_F32, 5, OC_OUT);
    p->weight = gentle(p->f, "weight", 5, 13);
    oc_args(p->f, &f, sizeof(f));
    loss(p);

    struct hzp_rmsnorm_bwd_args b = {.plus_one = plus_one, .centred = centred};
    float *rstd = oc_array(p->b, "rstd", OC_F32, 5, OC_IN);
    memcpy(rstd, p->f_result + ((uint8_t *)f.rstd - p->f->image), 5 * sizeof(float));
    b.dy = same(p->b, "dy", &p->weight);
    b.x = same(p->b, "x", &f.x);
    b.w = same(p->b, "w", &f.w);
    b.dx = gentle(p->b, "dx", 5, 13);
    b.dw = gentle(p->b, "dw", 1, 13);
    b.rstd = rstd;
    backward(p, &b, sizeof(b));
    check(p, "dx", &f.x, &b.dx, true);
    check(p, "dw", &f.w, &b.dw, true);
}

static void grad_rope(struct probe *p, bool norms, bool plus_one)
{
    enum { ROWS = 4, DIM = 6, WIDTH = 4 * DIM };
    static const int32_t positions[ROWS] = {0, 9, 3, 3};
    struct hzp_rope_args f = {.heads = {2, 1, DIM}, .eps = 1e-3f, .plus_one = plus_one};
    f.x = gentle(p->f, "x", ROWS, WIDTH);
    f.y = p->y = oc_mat(p->f, "y", ROWS, WIDTH, HZP_F32, OC_OUT);
    f.table = gentle(p->f, "table", 10, DIM); /* any linear map will do */
    int32_t *pos = oc_array(p->f, "pos", OC_I32, ROWS, OC_IN);
    memcpy(pos, positions, sizeof(positions));
    f.pos = pos;
    if (norms) {
        f.q_norm = gentle(p->f, "q_norm", 1, DIM);
        f.k_norm = gentle(p->f, "k_norm", 1, DIM);
    }
    p->weight = gentle(p->f, "weight", ROWS, WIDTH);
    oc_args(p->f, &f, sizeof(f));

    struct hzp_rope_bwd_args b = {.heads = f.heads, .eps = f.eps, .plus_one = plus_one};
    b.dy = same(p->b, "dy", &p->weight);
    b.dx = oc_mat(p->b, "dx", ROWS, WIDTH, HZP_F32, OC_OUT);
    b.table = same(p->b, "table", &f.table);
    pos = oc_array(p->b, "pos", OC_I32, ROWS, OC_IN);
    memcpy(pos, positions, sizeof(positions));
    b.pos = pos;
    if (norms) {
        b.x = same(p->b, "x", &f.x);
        b.q_norm = same(p->b, "q_norm", &f.q_norm);
        b.k_norm = same(p->b, "k_norm", &f.k_norm);
        b.dq_norm = gentle(p->b, "dq_norm", 1, DIM);
        b.dk_norm = gentle(p->b, "dk_norm", 1, DIM);
    }
    backward(p, &b, sizeof(b));
    check(p, norms ? "dx, norms" : "dx", &f.x, &b.dx, false);
    if (norms) {
        check(p, "dq_norm", &f.q_norm, &b.dq_norm, true);
        check(p, "dk_norm", &f.k_norm, &b.dk_norm, true);
    }
}

static struct hzp_segs documents(struct oc_io *io)
{
    static const int32_t starts[] = {0, 1, 6, 9}, zeros[] = {0, 0, 0};
    int32_t *row0 = oc_array(io, "row0", OC_I32, 4, OC_IN);
    int32_t *pos0 = oc_array(io, "pos0", OC_I32, 3, OC_IN);
    memcpy(row0, starts, sizeof(starts));
    memcpy(pos0, zeros, sizeof(zeros));
    return (struct hzp_segs){row0, pos0, 3, 5, 5};
}

static void grad_attn(struct probe *p, int32_t heads, int32_t kv_heads, int32_t window, float cap,
                      bool sink)
{
    enum { ROWS = 9, DIM = 4 };
    int32_t width = (heads + 2 * kv_heads) * DIM;
    struct hzp_attn_packed_args f = {
        .heads = {heads, kv_heads, DIM}, .scale = 0.5f, .cap = cap, .window = window};
    f.qkv = gentle(p->f, "qkv", ROWS, width);
    f.out = p->y = oc_mat(p->f, "out", ROWS, heads * DIM, HZP_F32, OC_OUT);
    if (sink)
        f.sink = gentle(p->f, "sink", 1, heads);
    f.lse = oc_array(p->f, "lse", OC_F32, ROWS * heads, OC_OUT);
    f.segs = documents(p->f);
    p->weight = gentle(p->f, "weight", ROWS, heads * DIM);
    oc_args(p->f, &f, sizeof(f));
    loss(p);

    struct hzp_attn_packed_bwd_args b = {
        .heads = f.heads, .scale = f.scale, .cap = cap, .window = window};
    struct hzp_mat out = in_result(p->f, p->f_result, f.out);
    float *lse = oc_array(p->b, "lse", OC_F32, ROWS * heads, OC_IN);
    memcpy(lse, p->f_result + ((uint8_t *)f.lse - p->f->image), sizeof(float) * ROWS * heads);
    b.qkv = same(p->b, "qkv", &f.qkv);
    b.out = same(p->b, "out", &out);
    b.dout = same(p->b, "dout", &p->weight);
    b.dqkv = oc_mat(p->b, "dqkv", ROWS, width, HZP_F32, OC_OUT);
    if (sink) {
        b.sink = same(p->b, "sink", &f.sink);
        b.dsink = gentle(p->b, "dsink", 1, heads);
    }
    b.lse = lse;
    b.segs = documents(p->b);
    backward(p, &b, sizeof(b));
    check(p,
          sink                ? "dqkv, sink"
          : cap > 0           ? "dqkv, window, cap"
          : window            ? "dqkv, window"
          : heads == kv_heads ? "dqkv"
                              : "dqkv, grouped",
          &f.qkv, &b.dqkv, false);
    if (sink)
        check(p, "dsink", &f.sink, &b.dsink, true);
}

static void grad_swiglu(struct probe *p, bool gelu)
{
    struct hzp_swiglu_args f = {.x = gentle(p->f, "x", 3, 14), .gelu = gelu};
    f.y = p->y = oc_mat(p->f, "y", 3, 7, HZP_F32, OC_OUT);
    p->weight = gentle(p->f, "weight", 3, 7);
    oc_args(p->f, &f, sizeof(f));

    struct hzp_swiglu_bwd_args b = {same(p->b, "x", &f.x), same(p->b, "dy", &p->weight),
                                    oc_mat(p->b, "dx", 3, 14, HZP_F32, OC_OUT), gelu};
    backward(p, &b, sizeof(b));
    check(p, "dx", &f.x, &b.dx, false);
}

static const float *xent_weights(struct oc_io *io, int32_t rows)
{
    float *weight = oc_array(io, "weights", OC_F32, rows, OC_IN);
    for (int32_t r = 0; r < rows; r++)
        weight[r] = 0.5f + (float)r * 0.75f;
    return weight;
}

/* lp is about -log(11): within and beyond the bounds.  Where cispo holds its ratio fixed, only rows
 * beyond them can be compared. */
static const struct hzp_row_loss *xent_losses(struct oc_io *io, int32_t rows, int kind, float kl)
{
    struct hzp_row_loss *how =
        oc_bytes(io, "how", (size_t)rows * sizeof(struct hzp_row_loss), OC_IN);
    for (int32_t r = 0; r < rows; r++)
        how[r] = (struct hzp_row_loss){.kind = kind,
                                       .inv_temperature = r ? 1 : 0.8f,
                                       .old = r == 3 ? -0.05f : -6,
                                       .advantage = r ? -1.4f : 0.6f,
                                       .reference = -2,
                                       .kl = kl,
                                       .low = 0.2f,
                                       .high = r ? 1e6f : 0.2f,
                                       .beta = 0.1f};
    if (kind == HZP_LOSS_CISPO)
        how[1].high = 0.28f;
    return how;
}

static const struct hzp_soft *xent_soft(struct oc_io *io, int32_t rows)
{
    static const struct hzp_soft soft = {
        .count = 3, .token = {10, 3, 5}, .p = {0.5f, 0.2f, 0.05f}, .rest = 0.25f};
    struct hzp_soft *all = oc_bytes(io, "soft", (size_t)rows * sizeof(soft), OC_IN);
    for (int32_t r = 0; r < rows; r++) {
        all[r] = soft;
        all[r].rest = r ? 0.25f : 0;
    }
    return all;
}

static void grad_xent(struct probe *p, bool weighted, int kind, float kl, float cap)
{
    enum { ROWS = 4, VOCAB = 11 };
    static const int32_t targets[ROWS] = {10, 0, -1, 5};
    struct hzp_xent_args f = {.x = gentle(p->f, "x", ROWS, VOCAB), .cap = cap}, b = {.cap = cap};
    int32_t *target = oc_array(p->f, "target", OC_I32, ROWS, OC_IN);
    memcpy(target, targets, sizeof(targets));
    f.target = target;
    if (weighted)
        f.weight = xent_weights(p->f, ROWS);
    if (kind || kl != 0)
        f.how = xent_losses(p->f, ROWS, kind, kl);
    if (kind == HZP_LOSS_SOFT)
        f.soft = xent_soft(p->f, ROWS);
    f.loss = oc_array(p->f, "loss", OC_F32, ROWS, OC_OUT);
    p->y = (struct hzp_mat){f.loss, 1, ROWS, ROWS, HZP_F32};
    p->weight = oc_mat(p->f, "weight", 1, ROWS, HZP_F32, OC_IN);
    for (int i = 0; i < ROWS; i++)
        oc_put(&p->weight, 0, i, 1);
    oc_args(p->f, &f, sizeof(f));

    b.x = same(p->b, "x", &f.x);
    b.dx = oc_mat(p->b, "dx", ROWS, VOCAB, HZP_F32, OC_OUT);
    target = oc_array(p->b, "target", OC_I32, ROWS, OC_IN);
    memcpy(target, targets, sizeof(targets));
    b.target = target;
    if (weighted)
        b.weight = xent_weights(p->b, ROWS);
    if (kind || kl != 0)
        b.how = xent_losses(p->b, ROWS, kind, kl);
    if (kind == HZP_LOSS_SOFT)
        b.soft = xent_soft(p->b, ROWS);
    b.loss = oc_array(p->b, "loss", OC_F32, ROWS, OC_OUT);
    p->cap = cap;
    backward(p, &b, sizeof(b));
    check(p, "dx", &f.x, &b.dx, false);
}

/* y = x W^T + bias: dx = dy W, dW += dy^T x, dbias += column sums of dy. */
static void grad_matmul(struct probe *p, uint64_t seed)
{
    enum { ROWS = 3, IN = 7, OUT = 5 };
    struct hzp_matmul_args f = {.trans_b = 1}, dx = {0}, dw = {.trans_a = 1, .accumulate = 1};
    f.a = gentle(p->f, "x", ROWS, IN);
    f.b = gentle(p->f, "w", OUT, IN);
    f.bias = gentle(p->f, "bias", 1, OUT);
    f.c = p->y = oc_mat(p->f, "y", ROWS, OUT, HZP_F32, OC_OUT);
    p->weight = gentle(p->f, "weight", ROWS, OUT);
    oc_args(p->f, &f, sizeof(f));

    dx.a = same(p->b, "dy", &p->weight);
    dx.b = same(p->b, "w", &f.b);
    dx.c = oc_mat(p->b, "dx", ROWS, IN, HZP_F32, OC_OUT);
    backward(p, &dx, sizeof(dx));
    check(p, "dx = dy W", &f.a, &dx.c, false);

    oc_io_reset(p->b, seed, false);
    dw.a = same(p->b, "dy", &p->weight);
    dw.b = same(p->b, "x", &f.a);
    dw.c = gentle(p->b, "dw", OUT, IN);
    backward(p, &dw, sizeof(dw));
    check(p, "dW += dy^T x", &f.b, &dw.c, true);

    oc_io_reset(p->b, seed, false);
    p->op = HZP_OP_colsum;
    struct hzp_colsum_args sum = {same(p->b, "dy", &p->weight), gentle(p->b, "dbias", 1, OUT)};
    backward(p, &sum, sizeof(sum));
    check(p, "dbias", &f.bias, &sum.y, true);
}

int oc_grad(struct oc_target *target, const char *pattern, uint64_t seed)
{
    struct probe p = {.target = target, .f = oc_io_create(), .b = oc_io_create()};
    p.f_result = hzp_xmalloc(RESULT);
    p.b_result = hzp_xmalloc(RESULT);

#define GRAD(op, forward, call)                                                                    \
    if (oc_wanted(pattern, HZP_OP_##op)) {                                                         \
        probe_begin(&p, HZP_OP_##op, HZP_OP_##forward, seed);                                      \
        call;                                                                                      \
    }
    GRAD(embed_bwd, embed, grad_embed(&p))
    GRAD(rmsnorm_bwd, rmsnorm, grad_rmsnorm(&p, false, false))
    GRAD(rmsnorm_bwd, rmsnorm, grad_rmsnorm(&p, true, false))
    GRAD(rmsnorm_bwd, rmsnorm, grad_rmsnorm(&p, false, true))
    GRAD(rope_bwd, rope, grad_rope(&p, false, false))
    GRAD(rope_bwd, rope, grad_rope(&p, true, false))
    GRAD(rope_bwd, rope, grad_rope(&p, true, true))
    GRAD(attn_packed_bwd, attn_packed, grad_attn(&p, 2, 2, 0, 0, false))
    GRAD(attn_packed_bwd, attn_packed, grad_attn(&p, 4, 2, 0, 0, false))
    GRAD(attn_packed_bwd, attn_packed, grad_attn(&p, 4, 2, 2, 0, false))
    GRAD(attn_packed_bwd, attn_packed, grad_attn(&p, 2, 1, 3, 0.7f, false))
    GRAD(attn_packed_bwd, attn_packed, grad_attn(&p, 4, 2, 3, 0, true))
    GRAD(swiglu_bwd, swiglu, grad_swiglu(&p, false))
    GRAD(swiglu_bwd, swiglu, grad_swiglu(&p, true))
    GRAD(xent, xent, grad_xent(&p, false, HZP_LOSS_XENT, 0, 0))
    GRAD(xent, xent, grad_xent(&p, true, HZP_LOSS_XENT, 0, 3))
    for (int kind = HZP_LOSS_XENT; kind < HZP_LOSS_KINDS; kind++)
        for (int kl = 0; kl < 2; kl++)
            GRAD(xent, xent, grad_xent(&p, true, kind, kl ? 0.3f : 0, 0))
    GRAD(xent, xent, grad_xent(&p, true, HZP_LOSS_SOFT, 0, 3))
    GRAD(matmul, matmul, grad_matmul(&p, seed))
#undef GRAD
    free(p.f_result);
    free(p.b_result);
    oc_io_destroy(p.f);
    oc_io_destroy(p.b);
    return p.failures;
}
