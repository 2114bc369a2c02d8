/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/flash_bwd_tmpl.c - attn_packed_bwd.
 *
 * A task is one document and one kv head.  For each block of keys and each block of queries that
 * sees it there are five products, arranged so that only operands are ever transposed:
 *   S^T  = K Q^T          P^T = exp(S^T scale - lse)
 *   dP^T = V dO^T         dS^T = P^T (dP^T - D) scale
 *   dV  += P^T dO         dK += dS^T Q         dQ^T += K^T dS
 * Operands are packed once per document and head; sums stay in F32 until the end.  The order of all
 * sums is fixed: the same bits for any number of threads.
 */
#include "device/cpu/tile_tmpl.h"

/* keys processed together with a block of queries: their scores stay in the cache */
enum { PART = 4 * TM };

struct bwd {
    const struct hzp_attn_packed_bwd_args *args;
    struct hzp_team *team;
};

/* A task's memory, for `blocks` blocks of BLOCK rows. */
struct bwd_work {
    float *k_rows, *v_rows;    /* [n][kd] rows form */
    float *k_turned;           /* [blocks][dim][kb] rows form of K^T, packed along the keys */
    float *x;                  /* [n][kd] q, then dout, in rows form */
    float *q_cols, *do_cols;   /* [blocks] panels of Q^T, dO^T */
    float *q_woven, *do_woven; /* [blocks] panels along the queries */
    float *dk, *dv;            /* [n][width] */
    float *dq;                 /* [blocks][dim][BLOCK]: dQ^T */
    float *lse, *d;            /* [n] */
    float *s, *dp, *p;         /* [PART][BLOCK], the last in rows form */
    float *ds;                 /* [BLOCK][kb] */
    float *turn;               /* [BLOCK][BLOCK] */
    int kd, kb, width;         /* dwords along dim and along a block; dim rounded up to panels */
};

static size_t bwd_work_make(bool pairs, int dim, int rows, float *base, struct bwd_work *ret)
{
    size_t blocks = (size_t)HZP_DIV_UP(rows, BLOCK), n = blocks * BLOCK, d = (size_t)dim;
    size_t kd = (size_t)k_dwords(pairs, dim), kb = (size_t)k_dwords(pairs, BLOCK);
    size_t width = (size_t)HZP_ROUND_UP(dim, W), square = BLOCK * BLOCK, at = 0;
    size_t band = PART * BLOCK;
    struct {
        float **ptr;
        size_t size;
    } part[] = {
        {&ret->k_rows, n * kd},
        {&ret->v_rows, n * kd},
        {&ret->k_turned, blocks * d * kb},
        {&ret->x, n * kd},
        {&ret->q_cols, n * kd},
        {&ret->do_cols, n * kd},
        {&ret->q_woven, blocks * width * kb},
        {&ret->do_woven, blocks * width * kb},
        {&ret->dk, n * width},
        {&ret->dv, n * width},
        {&ret->dq, n * d},
        {&ret->lse, n},
        {&ret->d, n},
        {&ret->s, band},
        {&ret->dp, band},
        {&ret->p, band},
        {&ret->ds, square},
        {&ret->turn, square},
    };

    for (int i = 0; i < HZP_COUNT(part); i++) {
        *part[i].ptr = base ? base + at : NULL;
        at += HZP_ROUND_UP(part[i].size, (size_t)16);
    }
    ret->kd = (int)kd;
    ret->kb = (int)kb;
    ret->width = (int)width;
    return at * sizeof(float);
}

/* Columns c0 .. c0+dim-1 of rows r0 .. r0+n-1 in rows form, zeros up to a whole block. */
INLINE void rows_take(bool pairs, const struct hzp_mat *mat, int r0, int n, int c0, int dim, int kd,
                      float *y)
{
    size_t size = mat->type == HZP_F32 ? 4 : 2;

    for (int r = 0; r < n; r++)
        row_copy(pairs, (const char *)hzp_cpu_row(mat, r0 + r) + (size_t)c0 * size, mat->type, dim,
                 y + (size_t)r * (size_t)kd);
    memset(y + (size_t)n * (size_t)kd, 0,
           (size_t)(HZP_ROUND_UP(n, BLOCK) - n) * (size_t)kd * sizeof(*y));
}

/* Packs K, V and K^T of the document's kv head. */
INLINE void keys_pack(const struct bwd *b, const struct bwd_work *w, bool pairs, int r0, int n,
                      int h)
{
    const struct hzp_attn_packed_bwd_args *a = b->args;
    int dim = a->heads.dim, k0 = (a->heads.heads + h) * dim, v0 = k0 + a->heads.kv_heads * dim;

    rows_take(pairs, &a->qkv, r0, n, k0, dim, w->kd, w->k_rows);
    rows_take(pairs, &a->qkv, r0, n, v0, dim, w->kd, w->v_rows);
    for (int j = 0; j < HZP_DIV_UP(n, BLOCK); j++) {
        const float *rows = w->k_rows + (size_t)(j * BLOCK) * (size_t)w->kd;
        float *turned = w->k_turned + (size_t)j * (size_t)(dim * w->kb);
        float *woven = w->q_woven; /* free until the first query head is packed */

        panels_of_cols(pairs, rows, (size_t)w->kd, dim, woven);
        for (int c = 0; c < dim; c += W)
            transpose(woven + (size_t)c * (size_t)w->kb, W, w->kb, HZP_MIN(W, dim - c),
                      turned + (size_t)(c * w->kb), (size_t)w->kb);
    }
    memset(w->dk, 0, (size_t)HZP_ROUND_UP(n, BLOCK) * (size_t)w->width * sizeof(float));
    memset(w->dv, 0, (size_t)HZP_ROUND_UP(n, BLOCK) * (size_t)w->width * sizeof(float));
}

/* Packs Q and dO of one query head, and its lse and D. */
INLINE void head_pack(const struct bwd *b, const struct bwd_work *w, bool pairs, int r0, int n,
                      int head)
{
    const struct hzp_attn_packed_bwd_args *a = b->args;
    int dim = a->heads.dim, blocks = HZP_DIV_UP(n, BLOCK);
    size_t size = a->out.type == HZP_F32 ? 4 : 2, block = (size_t)(BLOCK * w->kd);
    size_t woven = (size_t)(w->width * w->kb);

    rows_take(pairs, &a->qkv, r0, n, head * dim, dim, w->kd, w->x);
    for (int i = 0; i < blocks; i++) {
        panels_of_rows(w->x + (size_t)i * block, (size_t)w->kd, w->kd,
                       w->q_cols + (size_t)i * block);
        panels_of_cols(pairs, w->x + (size_t)i * block, (size_t)w->kd, dim,
                       w->q_woven + (size_t)i * woven);
    }
    rows_take(pairs, &a->dout, r0, n, head * dim, dim, w->kd, w->x);
    for (int i = 0; i < blocks; i++) {
        panels_of_rows(w->x + (size_t)i * block, (size_t)w->kd, w->kd,
                       w->do_cols + (size_t)i * block);
        panels_of_cols(pairs, w->x + (size_t)i * block, (size_t)w->kd, dim,
                       w->do_woven + (size_t)i * woven);
    }
    for (int r = 0; r < n; r++) {
        const char *o = (const char *)hzp_cpu_row(&a->out, r0 + r) + (size_t)(head * dim) * size;
        const char *g = (const char *)hzp_cpu_row(&a->dout, r0 + r) + (size_t)(head * dim) * size;
        vf sum = vzero();
        EACH(c, dim,
             sum = vfma(vget(o, (size_t)c, a->out.type, left),
                        vget(g, (size_t)c, a->out.type, left), sum););
        w->d[r] = vsum(sum);
        w->lse[r] = a->lse[(size_t)(r0 + r) * (size_t)a->heads.heads + (size_t)head] * unit(pairs);
    }
    for (int r = n; r < blocks * BLOCK; r++)
        w->d[r] = w->lse[r] = 0;
    memset(w->dq, 0, (size_t)(blocks * dim * BLOCK) * sizeof(float));
}

/* P^T and dS^T of keys j0 .. j0+m-1 and queries i0 + [0, BLOCK) in rows form, and dS woven. */
INLINE void scores_turn(const struct bwd *b, const struct bwd_work *w, bool pairs, int n, int j0,
                        int m, int i0, float *ds_rows)
{
    float scale = b->args->scale, cap = b->args->cap, count[VL];
    vf factor = vset(scale), base = vset(scale * unit(pairs)), ramp;
    int window = b->args->window > 0 ? b->args->window : n;

    for (int i = 0; i < VL; i++)
        count[i] = (float)i;
    ramp = vload(count, VL);
    for (int j = 0; j < m; j++) {
        float *s = w->s + j * BLOCK, *dp = w->dp + j * BLOCK;
        /* the first query of the block that sees this key, and the end of those */
        int first = HZP_MAX(j0 + j - i0, 0);
        int last = HZP_MIN(HZP_MIN(n, j0 + j + window) - i0, BLOCK);
        for (int i = 0; i < BLOCK; i += VL) {
            vf p = vzero(), ds = vzero();
            if (i + VL > first && i < last) {
                vf x = vmul(vload(s + i, VL), base), slope = factor;
                if (cap > 0) {
                    vf t = vtanh(vmul(vload(s + i, VL), vset(scale / cap)));
                    x = vmul(t, vset(cap * unit(pairs)));
                    slope = vmul(vfnma(t, t, vset(1.f)), factor);
                }
                p = unit_exp(pairs, vsub(x, vload(w->lse + i0 + i, VL)));
                if (i < first) /* queries before the key do not see it */
                    p = vselect_from(p, ramp, (float)(first - i));
                if (i + VL > last)
                    p = vkeep(p, 0, last - i);
                ds = vmul(vmul(p, vsub(vload(dp + i, VL), vload(w->d + i0 + i, VL))), slope);
            }
            vstore(s + i, p, VL);
            vstore(dp + i, ds, VL);
        }
        row_pack(pairs, s, BLOCK, w->p + j * w->kb);
        row_pack(pairs, dp, BLOCK, ds_rows + j * w->kb);
    }
}

INLINE void pair_run(const struct bwd *b, const struct bwd_work *w, bool pairs, int n, int jb,
                     int ib)
{
    int dim = b->args->heads.dim, j0 = jb * BLOCK, i0 = ib * BLOCK, keys = HZP_MIN(BLOCK, n - j0);
    size_t kd = (size_t)w->kd, kb = (size_t)w->kb, block = BLOCK * kd, width = (size_t)w->width;
    size_t woven = width * kb;

    for (int j = j0, m; j < j0 + keys; j += m) {
        float *ds = w->ds + (size_t)(j - j0) * kb;
        m = HZP_MIN(PART, j0 + keys - j);
        tile_product(pairs, m, BLOCK, w->kd, w->k_rows + (size_t)j * kd, kd,
                     w->q_cols + (size_t)ib * block, w->s, BLOCK, false);
        tile_product(pairs, m, BLOCK, w->kd, w->v_rows + (size_t)j * kd, kd,
                     w->do_cols + (size_t)ib * block, w->dp, BLOCK, false);
        scores_turn(b, w, pairs, n, j, m, i0, ds);
        tile_product(pairs, m, w->width, w->kb, w->p, kb, w->do_woven + (size_t)ib * woven,
                     w->dv + (size_t)j * width, width, true);
        tile_product(pairs, m, w->width, w->kb, ds, kb, w->q_woven + (size_t)ib * woven,
                     w->dk + (size_t)j * width, width, true);
    }
    memset(w->ds + (size_t)keys * kb, 0, (size_t)(BLOCK - keys) * kb * sizeof(float));
    /* dS packed along the keys */
    panels_of_cols(pairs, w->ds, kb, BLOCK, w->turn);
    tile_product(pairs, dim, BLOCK, w->kb, w->k_turned + (size_t)jb * (size_t)dim * kb, kb, w->turn,
                 w->dq + (size_t)ib * (size_t)dim * BLOCK, BLOCK, true);
}

static void grad_put(const struct hzp_mat *mat, int r0, int n, int c0, int dim, const float *x,
                     size_t ldx)
{
    size_t size = mat->type == HZP_F32 ? 4 : 2;

    for (int r = 0; r < n; r++) {
        char *y = (char *)hzp_cpu_row(mat, r0 + r) + (size_t)c0 * size;
        const float *from = x + (size_t)r * ldx;
        EACH(c, dim, vput(y, (size_t)c, mat->type, vload(from + c, left), left););
    }
}

INLINE void bwd_run(const struct bwd *b, const struct bwd_work *w, bool pairs, int r0, int n, int h)
{
    const struct hzp_attn_packed_bwd_args *a = b->args;
    int dim = a->heads.dim, group = a->heads.heads / a->heads.kv_heads;
    int blocks = HZP_DIV_UP(n, BLOCK), k0 = (a->heads.heads + h) * dim;
    size_t width = (size_t)w->width;

    keys_pack(b, w, pairs, r0, n, h);
    for (int g = 0; g < group; g++) {
        int head = h * group + g;
        head_pack(b, w, pairs, r0, n, head);
        for (int jb = 0; jb < blocks; jb++)
            for (int ib = jb; ib < blocks; ib++)
                if (hzp_attn_first(a->window, ib * BLOCK) < (jb + 1) * BLOCK)
                    pair_run(b, w, pairs, n, jb, ib);
        for (int ib = 0; ib < blocks; ib++) { /* `turn` receives dQ, transposed back */
            for (int c = 0; c < dim; c += BLOCK) {
                int part = HZP_MIN(BLOCK, dim - c);
                transpose(w->dq + (size_t)(ib * dim + c) * BLOCK, BLOCK, part, BLOCK, w->turn,
                          BLOCK);
                grad_put(&a->dqkv, r0 + ib * BLOCK, HZP_MIN(BLOCK, n - ib * BLOCK), head * dim + c,
                         part, w->turn, BLOCK);
            }
        }
    }
    grad_put(&a->dqkv, r0, n, k0, dim, w->dk, width);
    grad_put(&a->dqkv, r0, n, k0 + a->heads.kv_heads * dim, dim, w->dv, width);
}

static void bwd_task(void *ctx, int task, int thread)
{
    const struct bwd *b = ctx;
    const struct hzp_attn_packed_bwd_args *a = b->args;
    int seg = task / a->heads.kv_heads, h = task % a->heads.kv_heads;
    int r0 = a->segs.row0[seg], n = a->segs.row0[seg + 1] - r0;
    struct bwd_work w;

    if (n <= 0)
        return;
    bwd_work_make(HZP_PAIRS(a->qkv.type), a->heads.dim, n, hzp_team_own(b->team, thread), &w);
    if (HZP_PAIRS(a->qkv.type))
        bwd_run(b, &w, true, r0, n, h);
    else
        bwd_run(b, &w, false, r0, n, h);
}

static void sink_task(void *ctx, int head, int thread)
{
    const struct hzp_attn_packed_bwd_args *a = ((const struct bwd *)ctx)->args;
    int heads = a->heads.heads, dim = a->heads.dim;
    float sink = velement(&a->sink, head);
    double sum = 0;
    for (int r = a->segs.row0[0]; r < a->segs.row0[a->segs.count]; r++) {
        const void *out = hzp_cpu_row(&a->out, r), *dout = hzp_cpu_row(&a->dout, r);
        vf delta = vzero();
        EACH(c, dim, {
            size_t at = (size_t)head * (size_t)dim + (size_t)c;
            delta =
                vfma(vget(out, at, a->out.type, left), vget(dout, at, a->out.type, left), delta);
        });
        sum += expf(sink - a->lse[(size_t)r * (size_t)heads + (size_t)head]) * vsum(delta);
    }
    ((float *)a->dsink.ptr)[head] -= (float)sum;
}

static int cpu_attn_packed_bwd(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_packed_bwd_args *a = args;
    struct bwd b = {a, hzp_cpu_team(lane)};
    struct bwd_work w;

    HZP_TRY(hzp_team_reserve(b.team, 0,
                             bwd_work_make(HZP_PAIRS(a->qkv.type), a->heads.dim,
                                           HZP_MAX(a->segs.rows_max, 1), NULL, &w)));
    hzp_team_run(b.team, a->segs.count * a->heads.kv_heads, bwd_task, &b);
    if (a->dsink.ptr)
        hzp_team_run(b.team, a->heads.heads, sink_task, &b);
    return HZP_OK;
}

void HZP_ISA_NAME(hzp_cpu_fill_flash_bwd)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_attn_packed_bwd] = cpu_attn_packed_bwd;
}
