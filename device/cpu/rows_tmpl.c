/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/rows_tmpl.c - forward ops on single rows. */
#include "device/cpu/fp8_tmpl.h"
#include "device/philox.h"

static size_t row_bytes(const struct hzp_mat *mat)
{
    return (size_t)mat->cols * (mat->type == HZP_F32 ? 4 : 2);
}

static void embed_rows(void *ctx, int begin, int end, int thread)
{
    const struct hzp_embed_args *a = ctx;
    for (int r = begin; r < end; r++) {
        int64_t row = (int64_t)a->id[r] - a->first;
        bool there = row >= 0 && row < a->table.rows;
        const void *from = hzp_cpu_row(&a->table, there ? (int)row : 0);
        float *y = hzp_cpu_row(&a->y, r);
        if (!there)
            memset(y, 0, (size_t)a->y.cols * sizeof(*y));
        else if (a->table.type == HZP_F32)
            memcpy(y, from, (size_t)a->y.cols * sizeof(*y));
        else
            EACH(c, a->y.cols, vstore(y + c, vload_bf16((const uint16_t *)from + c, left), left););
    }
}

HZP_CPU_RANGES(embed, rows, a->y.rows, 2 * row_bytes(&a->y))

INLINE void rmsnorm_row(const struct hzp_rmsnorm_args *a, int r, enum hzp_dtype type)
{
    const float *x = hzp_cpu_row(&a->x, r);
    void *y = hzp_cpu_row(&a->y, r);
    int cols = a->x.cols, c = 0;
    vf s0 = vzero(), s1 = vzero(), centre = vcentre(x, cols, a->centred);

    for (; c + 2 * VL <= cols; c += 2 * VL) {
        vf p = vsub(vload(x + c, VL), centre), q = vsub(vload(x + c + VL, VL), centre);
        s0 = vfma(p, p, s0);
        s1 = vfma(q, q, s1);
    }
    for (; c < cols; c += VL) {
        int left = HZP_MIN(VL, cols - c);
        vf p = vkeep(vsub(vload(x + c, left), centre), 0, left);
        s0 = vfma(p, p, s0);
    }
    float rstd = 1.f / sqrtf(vsum(vadd(s0, s1)) / (float)cols + a->eps);
    vf scale = vset(rstd);
    const float *add = a->add.ptr ? hzp_cpu_row(&a->add, r) : NULL;
    EACH(i, cols, {
        vf w = vweight(&a->w, (size_t)i, type, a->plus_one, left);
        vf n = vmul(vmul(vsub(vload(x + i, left), centre), scale), w);
        if (add)
            vstore((float *)y + i, vadd(vload(add + i, left), n), left);
        else
            vput(y, (size_t)i, type, n, left);
    });
    if (a->rstd)
        a->rstd[r] = rstd;
}

HZP_CPU_ROWS(rmsnorm, w, a->x.rows, 2 * row_bytes(&a->x))

/* The factor of the RMS norm. */
INLINE float head_rstd(const void *x, int dim, enum hzp_dtype type, float eps)
{
    vf sum = vzero();
    EACH(j, dim, {
        vf v = vget(x, (size_t)j, type, left);
        sum = vfma(v, v, sum);
    });
    return 1.f / sqrtf(vsum(sum) / (float)dim + eps);
}

INLINE void rope_head(const struct hzp_rope_args *a, const struct hzp_mat *norm, const float *cs,
                      const void *x, void *y, enum hzp_dtype type)
{
    int half = a->heads.dim / 2;
    vf scale = norm->ptr ? vset(head_rstd(x, 2 * half, type, a->eps)) : vset(1.f);

    EACH(j, half, {
        size_t lo = (size_t)j;
        size_t hi = (size_t)(j + half);
        vf p = vget(x, lo, type, left);
        vf q = vget(x, hi, type, left);
        vf c = vload(cs + lo, left);
        vf s = vload(cs + hi, left);
        if (norm->ptr) {
            p = vmul(vmul(p, scale), vweight(norm, lo, type, a->plus_one, left));
            q = vmul(vmul(q, scale), vweight(norm, hi, type, a->plus_one, left));
        }
        vput(y, lo, type, vfnma(q, s, vmul(p, c)), left);
        vput(y, hi, type, vfma(p, s, vmul(q, c)), left);
    });
}

/* Appends k and v of a row that was just rotated, while they are in the cache. */
INLINE void append_row(const struct hzp_rope_args *a, int r, enum hzp_dtype type, const char *k)
{
    size_t kv_heads = (size_t)a->heads.kv_heads, page_rows = (size_t)a->kv.page_rows;
    size_t dim = (size_t)a->heads.dim, head = dim * (type == HZP_F32 ? 4 : 2);
    const char *v = k + kv_heads * head;

    if (a->slot[r] < 0)
        return;
    size_t page = (size_t)a->slot[r] / page_rows, at = (size_t)a->slot[r] % page_rows;
    for (size_t h = 0; h < kv_heads; h++) {
        size_t to = (page * kv_heads + h) * page_rows + at;
        if (a->kv.type == HZP_E4M3) {
            uint8_t *codes = a->kv.k, *values = a->kv.v;
            a->kv.k_scale[to] = to_e4m3(k + h * head, type, (int)dim, codes + to * dim);
            a->kv.v_scale[to] = to_e4m3(v + h * head, type, (int)dim, values + to * dim);
        } else {
            memcpy((char *)a->kv.k + to * head, k + h * head, head);
            memcpy((char *)a->kv.v + to * head, v + h * head, head);
        }
    }
}

INLINE void rope_row(const struct hzp_rope_args *a, int r, enum hzp_dtype type)
{
    size_t size = type == HZP_F32 ? 4 : 2, head = (size_t)a->heads.dim * size;
    const float *cs = hzp_cpu_row(&a->table, a->pos[r]);
    const char *x = hzp_cpu_row(&a->x, r);
    char *y = hzp_cpu_row(&a->y, r);
    int heads = a->heads.heads, turned = heads + a->heads.kv_heads;

    for (int h = 0; h < turned; h++)
        rope_head(a, h < heads ? &a->q_norm : &a->k_norm, cs, x + (size_t)h * head,
                  y + (size_t)h * head, type);
    if (x != y)
        memcpy(y + (size_t)turned * head, x + (size_t)turned * head,
               (size_t)a->heads.kv_heads * head);
    if (a->kv.k)
        append_row(a, r, type, y + (size_t)heads * head);
}

HZP_CPU_ROWS(rope, x, a->x.rows, 2 * row_bytes(&a->x))

INLINE void swiglu_row(const struct hzp_swiglu_args *a, int r, enum hzp_dtype type)
{
    const void *x = hzp_cpu_row(&a->x, r);
    void *y = hzp_cpu_row(&a->y, r);
    size_t width = (size_t)a->y.cols;

    EACH(c, a->y.cols, {
        vf g = vget(x, (size_t)c, type, left);
        vf u = vget(x, width + (size_t)c, type, left);
        vf z = a->gelu ? gelu_sigmoid_of(g) : g;
        vf s = vdiv(g, vadd(vset(1.f), vexp(vsub(vzero(), z))));
        vput(y, (size_t)c, type, vmul(s, u), left);
    });
}

HZP_CPU_ROWS(swiglu, x, a->x.rows, 2 * row_bytes(&a->x))

static void gather_rows(void *ctx, int begin, int end, int thread)
{
    const struct hzp_gather_args *a = ctx;
    size_t size = row_bytes(&a->y);
    if (a->y.type == HZP_I32)
        size *= 2;
    for (int r = begin; r < end; r++)
        memcpy(hzp_cpu_row(&a->y, r), hzp_cpu_row(&a->x, a->index[r]), size);
}

HZP_CPU_RANGES(gather, rows, a->y.rows, 2 * row_bytes(&a->y))

static void scatter_rows(void *ctx, int begin, int end, int thread)
{
    const struct hzp_scatter_args *a = ctx;
    size_t size = (size_t)a->x.cols * hzp_dtype_size(a->x.type);
    for (int r = begin; r < end; r++)
        memcpy(hzp_cpu_row(&a->y, a->index[r]), hzp_cpu_row(&a->x, r), size);
}

HZP_CPU_RANGES(scatter, rows, a->x.rows, 2 * (size_t)a->x.cols * hzp_dtype_size(a->x.type))

/* cast and fill work on pieces of rows: a whole buffer may be passed as one row. */
enum { PIECE = 16384 };

static void scale_piece(const struct hzp_cast_args *a, int n, const char *x, char *y)
{
    double by = a->scale != 0 ? a->scale : 1;
    if (a->squares)
        by /= fmax(sqrt(*a->squares), 1e-7);
    bool from = a->x.type == HZP_F32, to = a->y.type == HZP_F32;
    EACH(c, n,
         vf v =
             from ? vload((const float *)x + c, left) : vload_bf16((const uint16_t *)x + c, left);
         v = vmul(v, vset((float)by));
         if (a->cap > 0) v = vmul(vset(a->cap), vtanh(vdiv(v, vset(a->cap))));
         if (to) vstore((float *)y + c, v, left); else vstore_bf16((uint16_t *)y + c, v, left););
}

static void cast_pieces(void *ctx, int begin, int end, int thread)
{
    const struct hzp_cast_args *a = ctx;
    int across = HZP_DIV_UP(a->y.cols, PIECE);

    for (int i = begin; i < end; i++) {
        int c0 = i % across * PIECE, n = HZP_MIN(PIECE, a->y.cols - c0);
        const char *x = hzp_cpu_row(&a->x, i / across);
        char *y = hzp_cpu_row(&a->y, i / across);
        x += (size_t)c0 * (a->x.type == HZP_F32 ? 4 : 2);
        y += (size_t)c0 * (a->y.type == HZP_F32 ? 4 : 2);
        if ((a->scale && a->scale != 1) || a->cap > 0 || a->squares)
            scale_piece(a, n, x, y);
        else if (a->x.type == a->y.type)
            memmove(y, x, (size_t)n * (a->x.type == HZP_F32 ? 4 : 2));
        else if (a->x.type == HZP_F32)
            EACH(c, n, vstore_bf16((uint16_t *)y + c, vload((const float *)x + c, left), left););
        else
            EACH(c, n, vstore((float *)y + c, vload_bf16((const uint16_t *)x + c, left), left););
    }
}

HZP_CPU_RANGES(cast, pieces, HZP_DIV_UP(a->y.cols, PIECE) * a->y.rows,
               6 * (size_t)HZP_MIN(PIECE, a->y.cols))

static void fill_pieces(void *ctx, int begin, int end, int thread)
{
    const struct hzp_fill_args *a = ctx;
    int across = HZP_DIV_UP(a->y.cols, PIECE);
    uint16_t half = hzp_bf16_from_f32(a->value);

    for (int i = begin; i < end; i++) {
        int c0 = i % across * PIECE, n = HZP_MIN(PIECE, a->y.cols - c0);
        void *y = hzp_cpu_row(&a->y, i / across);
        if (a->y.type == HZP_F32)
            EACH(c, n, vstore((float *)y + c0 + c, vset(a->value), left););
        else
            for (int c = 0; c < n; c++)
                ((uint16_t *)y)[c0 + c] = half;
    }
}

HZP_CPU_RANGES(fill, pieces, HZP_DIV_UP(a->y.cols, PIECE) * a->y.rows,
               4 * (size_t)HZP_MIN(PIECE, a->y.cols))

enum { NOISE_BLOCKS = 16 };

/* hzp_noise_four of consecutive blocks, in a form that the compiler vectorizes. */
static void noise_blocks(uint64_t seed, uint64_t first, float scale, float *ret)
{
    uint32_t c[4][NOISE_BLOCKS], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < NOISE_BLOCKS; i++) {
        c[0][i] = (uint32_t)(first + (uint64_t)i);
        c[1][i] = (uint32_t)((first + (uint64_t)i) >> 32);
        c[2][i] = 0;
        c[3][i] = 1;
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < NOISE_BLOCKS; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c[0][i], p1 = (uint64_t)0xCD9E8D57u * c[2][i];
            c[0][i] = (uint32_t)(p1 >> 32) ^ c[1][i] ^ k0;
            c[1][i] = (uint32_t)p1;
            c[2][i] = (uint32_t)(p0 >> 32) ^ c[3][i] ^ k1;
            c[3][i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < NOISE_BLOCKS; i++)
        for (int k = 0; k < 4; k++)
            ret[4 * i + k] = scale * (float)((int32_t)((c[k][i] & 255) + (c[k][i] >> 8 & 255) +
                                                       (c[k][i] >> 16 & 255) + (c[k][i] >> 24)) -
                                             510);
}

static void noise_pieces(void *ctx, int begin, int end, int thread)
{
    const struct hzp_noise_args *a = ctx;
    int across = HZP_DIV_UP(a->y.cols, PIECE);
    float scale = hzp_noise_scale(a->deviation);

    for (int i = begin; i < end; i++) {
        int c0 = i % across * PIECE, n = HZP_MIN(PIECE, a->y.cols - c0);
        uint64_t at = a->first + (uint64_t)(i / across) * (uint64_t)a->y.cols + (uint64_t)c0;
        char *y = hzp_cpu_row(&a->y, i / across);
        int c = 0;
        for (; at % 4 == 0 && c + 4 * NOISE_BLOCKS <= n; c += 4 * NOISE_BLOCKS) {
            float some[4 * NOISE_BLOCKS], *to = a->y.type == HZP_F32 ? (float *)y + c0 + c : some;
            noise_blocks(a->seed, (at + (uint64_t)c) / 4, scale, to);
            if (a->y.type != HZP_F32)
                EACH(k, 4 * NOISE_BLOCKS,
                     vstore_bf16((uint16_t *)y + c0 + c + k, vload(some + k, left), left););
        }
        while (c < n) {
            float four[4];
            hzp_noise_four(a->seed, (at + (uint64_t)c) / 4, four);
            for (int k = (int)((at + (uint64_t)c) % 4); k < 4 && c < n; k++, c++) {
                if (a->y.type == HZP_F32)
                    ((float *)y)[c0 + c] = four[k] * scale;
                else
                    ((uint16_t *)y)[c0 + c] = hzp_bf16_from_f32(four[k] * scale);
            }
        }
    }
}

HZP_CPU_RANGES(noise, pieces, HZP_DIV_UP(a->y.cols, PIECE) * a->y.rows,
               32 * (size_t)HZP_MIN(PIECE, a->y.cols))

void HZP_ISA_NAME(hzp_cpu_fill_rows)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_embed] = cpu_embed;
    op[HZP_OP_rmsnorm] = cpu_rmsnorm;
    op[HZP_OP_rope] = cpu_rope;
    op[HZP_OP_swiglu] = cpu_swiglu;
    op[HZP_OP_gather] = cpu_gather;
    op[HZP_OP_scatter] = cpu_scatter;
    op[HZP_OP_cast] = cpu_cast;
    op[HZP_OP_fill] = cpu_fill;
    op[HZP_OP_noise] = cpu_noise;
}
