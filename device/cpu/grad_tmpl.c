/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/grad_tmpl.c - the loss, and backward ops on single rows or columns.
 *
 * Gradients of weights are sums over rows.  Rows are summed in chunks whose size depends on the
 * number of rows only, and the chunks are added in order: the same bits for any number of threads.
 */
#include "device/cpu/vec_tmpl.h"
#include "device/objective.h"

enum { XENT_BLOCK = 1024, CHUNKS_MAX = 64, CHUNK_ROWS_MIN = 16, STRIP = 8 * VL };

static int chunk_rows(int rows)
{
    return HZP_MAX(CHUNK_ROWS_MIN, HZP_DIV_UP(rows, CHUNKS_MAX));
}

/* log sum exp of a row in one pass over memory: each block is still in the cache when it is
 * summed. */
static double row_lse(const float *x, int cols, float scale)
{
    vf by = vset(scale); /* 1 changes no bit */
    float top = -INFINITY;
    double sum = 0;

    for (int c0 = 0; c0 < cols; c0 += XENT_BLOCK) {
        int n = HZP_MIN(XENT_BLOCK, cols - c0);
        vf block = vset(-INFINITY), acc = vzero();
        EACH(c, n, block = vmax(vkeep(vload(x + c0 + c, left), -INFINITY, left), block););
        float high = scale * vtop(block);
        if (high > top) {
            sum *= exp((double)top - high);
            top = high;
        }
        vf shift = vset(top == -INFINITY ? 0 : -top);
        EACH(c, n, {
            vf e = vexp(vfma(vload(x + c0 + c, left), by, shift));
            acc = vadd(acc, vkeep(e, 0, left));
        });
        sum += vsum(acc);
    }
    return top + log(sum);
}

/* What the backward pass of a row multiplies by, and its outputs other than dx. */
static double row_loss(const struct hzp_xent_args *a, int r, double lp)
{
    double weight = a->weight ? a->weight[r] : 1;
    struct hzp_objective o = {.value = -lp, .slope = 1};
    if (a->how)
        o = hzp_objective_of(&a->how[r], lp);
    a->loss[r] = (float)(weight * o.value);
    if (a->lp)
        a->lp[r] = (float)lp;
    return weight * o.slope;
}

/* -sum p log p; the row is read once more. */
static float row_entropy(const float *x, int cols, float scale, double lse)
{
    double sum = 0;
    vf by = vset(scale), high = vset(-(float)lse), low = vset((float)(lse - (float)lse));
    for (int c0 = 0; c0 < cols; c0 += XENT_BLOCK) {
        int n = HZP_MIN(XENT_BLOCK, cols - c0);
        vf acc = vzero(), least = vset(-1e4f); /* exp() of it is 0, and 0 times it, too */
        EACH(c, n, {
            vf z = vmax(vsub(vfma(vload(x + c0 + c, left), by, high), low), least);
            acc = vadd(acc, vkeep(vmul(vexp(z), z), 0, left));
        });
        sum += vsum(acc);
    }
    return (float)-sum;
}

static void no_loss(const struct hzp_xent_args *a, int r, void *dx)
{
    a->loss[r] = 0;
    if (a->lp)
        a->lp[r] = 0;
    if (a->entropy)
        a->entropy[r] = 0;
    if (dx)
        memset(dx, 0, (size_t)a->x.cols * (a->dx.type == HZP_F32 ? 4 : 2));
}

/* dx of a row of capped logits, ascending as in xent_row. */
static void gradient_capped(const struct hzp_xent_args *a, const float *x, void *dx, vf each,
                            vf times, vf high, vf low)
{
    vf cap = vset(a->cap);
    EACH(c, a->x.cols, {
        vf v = vload(x + c, left), t = vdiv(v, cap);
        vf e = vmul(each, vexp(vsub(vfma(v, times, high), low)));
        vput(dx, (size_t)c, a->dx.type, vmul(vfnma(t, t, vset(1.f)), e), left);
    });
}

/* The elements of dx that are not what the others are. */
struct hits {
    int count, at[HZP_SOFT_MAX];
    float value[HZP_SOFT_MAX];
};

INLINE double cap_factor(const struct hzp_xent_args *a, double x)
{
    return a->cap > 0 ? 1 - x / (double)a->cap * (x / (double)a->cap) : 1;
}

/* As row_loss, of a row of SOFT: what the probabilities of other tokens are multiplied by. */
static double soft_row(const struct hzp_xent_args *a, int r, const float *x, double lse,
                       struct hits *hits)
{
    const struct hzp_soft *s = &a->soft[r];
    double weight = a->weight ? a->weight[r] : 1, scale = a->how[r].inv_temperature;
    double lp[HZP_SOFT_MAX];
    for (int k = 0; k < s->count; k++)
        lp[k] = scale * x[s->token[k]] - lse;
    struct hzp_soft_objective o = hzp_soft_objective_of(s, lp);
    a->loss[r] = (float)(weight * o.value);
    if (a->lp)
        a->lp[r] = (float)(scale * x[a->target[r]] - lse);
    hits->count = s->count;
    for (int k = 0; k < s->count; k++) {
        double slope = o.inside * exp(lp[k]) - (double)s->p[k];
        hits->at[k] = s->token[k];
        hits->value[k] = (float)(weight * scale * slope * cap_factor(a, x[s->token[k]]));
    }
    return weight * o.outside;
}

static void xent_row(const struct hzp_xent_args *a, int r)
{
    const float *x = hzp_cpu_row(&a->x, r);
    void *dx = a->dx.ptr ? hzp_cpu_row(&a->dx, r) : NULL;
    int target = a->target[r], cols = a->x.cols;
    float scale = a->how ? a->how[r].inv_temperature : 1;

    if (target < 0) {
        no_loss(a, r, dx);
        return;
    }
    struct hits hits = {.count = 1, .at = {target}};
    double lse = row_lse(x, cols, scale), lp = (double)scale * x[target] - lse, by;
    /* Before dx is written, which may lie on x, in BF16, too. */
    if (a->soft && a->how[r].kind == HZP_LOSS_SOFT) {
        by = soft_row(a, r, x, lse, &hits) * scale;
    } else {
        by = row_loss(a, r, lp) * scale;
        hits.value[0] = (float)(by * (exp(lp) - 1) * cap_factor(a, x[target]));
    }
    if (a->entropy)
        a->entropy[r] = row_entropy(x, cols, scale, lse);
    if (!dx)
        return;
    /* lse is split into high and low: the rounding error of a float near 200 would be a relative
     * error of 8e-6 in every probability, while x - high is exact where it matters. */
    vf high = vset(-(float)lse), low = vset((float)(lse - (float)lse));
    vf each = vset((float)by), times = vset(scale);
    if (a->cap > 0) {
        gradient_capped(a, x, dx, each, times, high, low);
    } else if (a->dx.type ==
               HZP_BF16) { /* ascending: what is written lies below what is still to be read */
        EACH(c, cols,
             vstore_bf16((uint16_t *)dx + c,
                         vmul(each, vexp(vsub(vfma(vload(x + c, left), times, high), low))),
                         left););
    } else {
        EACH(c, cols,
             vstore((float *)dx + c,
                    vmul(each, vexp(vsub(vfma(vload(x + c, left), times, high), low))), left););
    }
    for (int k = 0; k < hits.count; k++)
        vput(dx, (size_t)hits.at[k], a->dx.type, vset(hits.value[k]), 1);
}

static void xent_rows(void *ctx, int begin, int end, int thread)
{
    for (int r = begin; r < end; r++)
        xent_row(ctx, r);
}

HZP_CPU_RANGES(xent, rows, a->x.rows, 6 * (size_t)a->x.cols)

/* Works on ranges of columns, so that repeated ids are added in row order. */
static void embed_bwd_strips(void *ctx, int begin, int end, int thread)
{
    const struct hzp_embed_bwd_args *a = ctx;
    int c0 = begin * STRIP, n = HZP_MIN(end * STRIP, a->dy.cols) - c0;

    for (int r = 0; r < a->dy.rows; r++) {
        int64_t row = (int64_t)a->id[r] - a->first;
        if (row < 0 || row >= a->dtable.rows)
            continue;
        const float *dy = (const float *)hzp_cpu_row(&a->dy, r) + c0;
        float *into = (float *)hzp_cpu_row(&a->dtable, (int)row) + c0;
        EACH(c, n, vstore(into + c, vadd(vload(into + c, left), vload(dy + c, left)), left););
    }
}

HZP_CPU_RANGES(embed_bwd, strips, HZP_DIV_UP(a->dy.cols, STRIP), 12 * (size_t)a->dy.rows * STRIP)

static void colsum_strips(void *ctx, int begin, int end, int thread)
{
    const struct hzp_colsum_args *a = ctx;

    for (int c0 = begin * STRIP; c0 < HZP_MIN(end * STRIP, a->x.cols); c0 += VL) {
        int left = HZP_MIN(VL, a->x.cols - c0);
        float *y = (float *)a->y.ptr + c0;
        vf sum = vzero();
        for (int r = 0; r < a->x.rows; r++)
            sum = vadd(sum, vget(hzp_cpu_row(&a->x, r), (size_t)c0, a->x.type, left));
        vstore(y, vadd(vload(y, left), sum), left);
    }
}

static int cpu_colsum(struct hzp_lane *lane, const void *args)
{
    const struct hzp_colsum_args *a = args;
    if (a->x.rows > 0)
        hzp_team_range(hzp_cpu_team(lane), HZP_DIV_UP(a->x.cols, STRIP),
                       4 * (size_t)a->x.rows * STRIP, colsum_strips, (void *)args);
    return HZP_OK;
}

/* Partial gradients of weights, [chunks][width], and the row chunks they come from. */
struct partial {
    const void *args;
    float *sum;
    int rows, width, step;
};

/* Adds the chunks' sums to into[c], in order. */
static void partial_add(const struct partial *part, int from, int width, float *into)
{
    int chunks = HZP_DIV_UP(part->rows, part->step);

    for (int c = 0; c < width; c++) {
        double sum = 0;
        for (int i = 0; i < chunks; i++)
            sum += part->sum[(size_t)i * (size_t)part->width + (size_t)(from + c)];
        into[c] += (float)sum;
    }
}

INLINE void rmsnorm_bwd_row(const struct hzp_rmsnorm_bwd_args *a, int r, enum hzp_dtype dy_type,
                            enum hzp_dtype w_type, float *dw)
{
    const float *x = hzp_cpu_row(&a->x, r);
    const void *dy = hzp_cpu_row(&a->dy, r);
    float *dx = hzp_cpu_row(&a->dx, r);
    int cols = a->x.cols;
    vf rstd = vset(a->rstd[r]), dot = vzero(), sum = vzero();
    vf centre = vcentre(x, cols, a->centred);

    EACH(c, cols, {
        vf n = vmul(vsub(vload(x + c, left), centre), rstd), d = vget(dy, (size_t)c, dy_type, left);
        vf g = vmul(d, n), w = vweight(&a->w, (size_t)c, w_type, a->plus_one, left);
        dot = vfma(g, w, dot);
        sum = vfma(d, w, sum);
        if (dw)
            vstore(dw + c, vadd(vload(dw + c, left), g), left);
    });
    vf mean = vset(vsum(dot) / (float)cols);
    vf mean_dn = a->centred ? vset(vsum(sum) / (float)cols) : vzero();
    EACH(c, cols, {
        vf n = vmul(vsub(vload(x + c, left), centre), rstd);
        vf dn = vmul(vget(dy, (size_t)c, dy_type, left),
                     vweight(&a->w, (size_t)c, w_type, a->plus_one, left));
        vstore(dx + c, vfma(rstd, vsub(vfnma(n, mean, dn), mean_dn), vload(dx + c, left)), left);
    });
}

static void rmsnorm_bwd_chunk(void *ctx, int task, int thread)
{
    const struct partial *part = ctx;
    const struct hzp_rmsnorm_bwd_args *a = part->args;
    float *dw = a->dw.ptr ? part->sum + (size_t)task * (size_t)part->width : NULL;
    int begin = task * part->step, end = HZP_MIN(begin + part->step, part->rows);
    bool half = a->dy.type == HZP_BF16;

    if (dw)
        memset(dw, 0, (size_t)part->width * sizeof(*dw));
    for (int r = begin; r < end; r++) {
        if (half && a->w.type == HZP_BF16)
            rmsnorm_bwd_row(a, r, HZP_BF16, HZP_BF16, dw);
        else if (!half && a->w.type == HZP_F32)
            rmsnorm_bwd_row(a, r, HZP_F32, HZP_F32, dw);
        else
            rmsnorm_bwd_row(a, r, a->dy.type, a->w.type, dw);
    }
}

static void rmsnorm_bwd_add(void *ctx, int begin, int end, int thread)
{
    const struct partial *part = ctx;
    const struct hzp_rmsnorm_bwd_args *a = part->args;
    int c0 = begin * STRIP, c1 = HZP_MIN(end * STRIP, part->width);

    partial_add(part, c0, c1 - c0, (float *)a->dw.ptr + c0);
}

static int cpu_rmsnorm_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_bwd_args *a = args;
    struct hzp_team *team = hzp_cpu_team(lane);
    struct partial part = {args, NULL, a->x.rows, a->x.cols, chunk_rows(a->x.rows)};
    int chunks = HZP_DIV_UP(part.rows, part.step);

    if (part.rows == 0)
        return HZP_OK;
    HZP_TRY(hzp_team_reserve(team, (size_t)chunks * (size_t)part.width * sizeof(float), 0));
    part.sum = hzp_team_shared(team);
    hzp_team_run(team, chunks, rmsnorm_bwd_chunk, &part);
    if (a->dw.ptr)
        hzp_team_range(team, HZP_DIV_UP(part.width, STRIP), (size_t)chunks * STRIP * 4,
                       rmsnorm_bwd_add, &part);
    return HZP_OK;
}

/* dn: scratch for dy rotated back, [dim]; dw [dim] is added to. */
INLINE void rope_bwd_head(const struct hzp_rope_bwd_args *a, const struct hzp_mat *norm,
                          const float *cs, const void *dy, const void *x, void *dx,
                          enum hzp_dtype type, float *dn, float *dw)
{
    int dim = a->heads.dim, half = dim / 2;

    EACH(j, half, {
        size_t lo = (size_t)j;
        size_t hi = (size_t)(j + half);
        vf p = vget(dy, lo, type, left);
        vf q = vget(dy, hi, type, left);
        vf c = vload(cs + lo, left);
        vf s = vload(cs + hi, left);
        vstore(dn + lo, vfma(q, s, vmul(p, c)), left);
        vstore(dn + hi, vfnma(p, s, vmul(q, c)), left);
    });
    if (!norm->ptr) {
        EACH(j, dim, vput(dx, (size_t)j, type, vload(dn + j, left), left););
        return;
    }
    vf sum = vzero(), dot = vzero();
    EACH(j, dim, {
        vf v = vget(x, (size_t)j, type, left);
        sum = vfma(v, v, sum);
    });
    vf rstd = vset(1.f / sqrtf(vsum(sum) / (float)dim + a->eps));
    EACH(j, dim, {
        vf n = vmul(vget(x, (size_t)j, type, left), rstd);
        vf g = vload(dn + j, left);
        vstore(dw + j, vfma(g, n, vload(dw + j, left)), left);
        g = vmul(g, vweight(norm, (size_t)j, type, a->plus_one, left));
        vstore(dn + j, g, left);
        dot = vfma(g, n, dot);
    });
    vf mean = vset(vsum(dot) / (float)dim);
    EACH(j, dim, {
        vf n = vmul(vget(x, (size_t)j, type, left), rstd);
        vput(dx, (size_t)j, type, vmul(rstd, vfnma(n, mean, vload(dn + j, left))), left);
    });
}

INLINE void rope_bwd_row(const struct hzp_rope_bwd_args *a, int r, enum hzp_dtype type, float *dn,
                         float *dw)
{
    size_t size = type == HZP_F32 ? 4 : 2, head = (size_t)a->heads.dim * size;
    const float *cs = hzp_cpu_row(&a->table, a->pos[r]);
    bool norms = a->q_norm.ptr || a->k_norm.ptr;
    const char *dy = hzp_cpu_row(&a->dy, r), *x = norms ? hzp_cpu_row(&a->x, r) : dy;
    char *dx = hzp_cpu_row(&a->dx, r);
    int heads = a->heads.heads, turned = heads + a->heads.kv_heads;

    for (int h = 0; h < turned; h++)
        rope_bwd_head(a, h < heads ? &a->q_norm : &a->k_norm, cs, dy + (size_t)h * head,
                      x + (size_t)h * head, dx + (size_t)h * head, type, dn,
                      h < heads ? dw : dw + a->heads.dim);
    if (dx != dy)
        memcpy(dx + (size_t)turned * head, dy + (size_t)turned * head,
               (size_t)a->heads.kv_heads * head);
}

/* The memory of one chunk: dw of q, dw of k, and scratch for dn. */
static void rope_bwd_chunk(void *ctx, int task, int thread)
{
    const struct partial *part = ctx;
    const struct hzp_rope_bwd_args *a = part->args;
    float *dw = part->sum + (size_t)task * (size_t)part->width, *dn = dw + 2 * a->heads.dim;
    int begin = task * part->step, end = HZP_MIN(begin + part->step, part->rows);

    memset(dw, 0, (size_t)part->width * sizeof(*dw));
    for (int r = begin; r < end; r++) {
        if (a->dy.type == HZP_BF16)
            rope_bwd_row(a, r, HZP_BF16, dn, dw);
        else
            rope_bwd_row(a, r, HZP_F32, dn, dw);
    }
}

static int cpu_rope_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rope_bwd_args *a = args;
    struct hzp_team *team = hzp_cpu_team(lane);
    int dim = a->heads.dim;
    struct partial part = {args, NULL, a->dy.rows, HZP_ROUND_UP(3 * dim, 32),
                           chunk_rows(a->dy.rows)};
    int chunks = HZP_DIV_UP(part.rows, part.step);

    if (part.rows == 0)
        return HZP_OK;
    HZP_TRY(hzp_team_reserve(team, (size_t)chunks * (size_t)part.width * sizeof(float), 0));
    part.sum = hzp_team_shared(team);
    hzp_team_run(team, chunks, rope_bwd_chunk, &part);
    if (a->dq_norm.ptr)
        partial_add(&part, 0, dim, a->dq_norm.ptr);
    if (a->dk_norm.ptr)
        partial_add(&part, dim, dim, a->dk_norm.ptr);
    return HZP_OK;
}

INLINE void swiglu_bwd_row(const struct hzp_swiglu_bwd_args *a, int r, enum hzp_dtype type)
{
    const void *x = hzp_cpu_row(&a->x, r), *dy = hzp_cpu_row(&a->dy, r);
    void *dx = hzp_cpu_row(&a->dx, r);
    size_t width = (size_t)a->dy.cols;
    vf one = vset(1.f);

    EACH(c, a->dy.cols, {
        size_t i = (size_t)c;
        vf g = vget(x, i, type, left);
        vf u = vget(x, width + i, type, left);
        vf d = vget(dy, i, type, left);
        vf z = a->gelu ? gelu_sigmoid_of(g) : g, by = g;
        if (a->gelu)
            by = vmul(g, vfma(vmul(g, g), vset(3 * HZP_GELU_3), vset(HZP_GELU_1)));
        vf s = vdiv(one, vadd(one, vexp(vsub(vzero(), z))));
        vf ds = vmul(d, s);
        vput(dx, i, type, vmul(vmul(ds, u), vfma(by, vsub(one, s), one)), left);
        vput(dx, width + i, type, vmul(ds, g), left);
    });
}

HZP_CPU_ROWS(swiglu_bwd, x, a->dy.rows, 10 * (size_t)a->dy.cols)

void HZP_ISA_NAME(hzp_cpu_fill_grad)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_xent] = cpu_xent;
    op[HZP_OP_embed_bwd] = cpu_embed_bwd;
    op[HZP_OP_rmsnorm_bwd] = cpu_rmsnorm_bwd;
    op[HZP_OP_rope_bwd] = cpu_rope_bwd;
    op[HZP_OP_swiglu_bwd] = cpu_swiglu_bwd;
    op[HZP_OP_colsum] = cpu_colsum;
}
