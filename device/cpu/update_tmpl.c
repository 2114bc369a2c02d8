/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/update_tmpl.c - adamw, muon, sumsq, audit: one pass over memory each.
 *
 * Sums are over pieces of fixed size that are added in order: the same bits for any number of
 * threads.
 */
#include "device/cpu/vec_tmpl.h"
#include "device/philox.h"
#include "device/q8.h"

enum { PIECE = 16384 };

struct adamw {
    const struct hzp_adamw_args *args;
    float scale, beta1, rest1, beta2, rest2, keep, step, undo_v, eps;
    float ahead; /* NAdam: the gradient's part of a step over the first moment's; 0: AdamW */
    bool skip;   /* the norm is not finite: the update is skipped */
};

/* p and its residual: bits(p) = hi * 2^16 + residual. */
#ifdef __AVX512F__
INLINE vf master_load(const uint16_t *hi, const int16_t *rest, int left)
{
    __mmask16 k = lanes(left);
    vi h = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(k, hi));
    vi r = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(k, rest));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(h, 16), r));
}
INLINE void master_store(uint16_t *hi, int16_t *rest, vf p, int left)
{
    __mmask16 k = lanes(left);
    vi bits = _mm512_castps_si512(p);
    vi up = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
    _mm256_mask_storeu_epi16(hi, k, _mm512_cvtepi32_epi16(up));
    _mm256_mask_storeu_epi16(rest, k, _mm512_cvtepi32_epi16(bits));
}
#else
INLINE vf master_load(const uint16_t *hi, const int16_t *rest, int left)
{
    float p[VL] = {0};
    for (int i = 0; i < left; i++)
        p[i] = hzp_master_join(hi[i], rest[i]);
    return vload(p, VL);
}
INLINE void master_store(uint16_t *hi, int16_t *rest, vf x, int left)
{
    float p[VL];
    vstore(p, x, VL);
    for (int i = 0; i < left; i++)
        hzp_master_split(p[i], hi + i, rest + i);
}
#endif

INLINE void adamw_piece(const struct adamw *w, size_t n, const void *from, void *to, void *residual,
                        const void *grad, void *m, void *v, enum hzp_dtype type,
                        enum hzp_dtype g_type, enum hzp_dtype m_type, enum hzp_dtype v_type)
{
    vf scale = vset(w->scale), beta1 = vset(w->beta1), rest1 = vset(w->rest1);
    vf beta2 = vset(w->beta2), rest2 = vset(w->rest2), keep = vset(w->keep), step = vset(w->step);
    vf undo_v = vset(w->undo_v), eps = vset(w->eps), ahead = vset(w->ahead);
    bool nadam = w->ahead > 0;

    EACH(c, (int)n, {
        size_t i = (size_t)c;
        vf g = vmul(vget(grad, i, g_type, left), scale);
        vf p = type == HZP_F32
                   ? vload((const float *)from + i, left)
                   : master_load((const uint16_t *)from + i, (const int16_t *)residual + i, left);
        vf mm = vfma(beta1, vget(m, i, m_type, left), vmul(rest1, g));
        vf vv = vfma(beta2, vget(v, i, v_type, left), vmul(vmul(rest2, g), g));
        vf under = vadd(vsqrt(vmul(vv, undo_v)), eps);
        vf along = nadam ? vfma(ahead, g, mm) : mm;
        p = vfnma(step, vdiv(along, under), vmul(p, keep));
        vput(m, i, m_type, mm, left);
        vput(v, i, v_type, vv, left);
        if (type == HZP_F32)
            vstore((float *)to + i, p, left);
        else
            master_store((uint16_t *)to + i, (int16_t *)residual + i, p, left);
    });
}

/* Vectors of codes and of whole numbers, as wide as vf. */
typedef int8_t vs8 __attribute__((vector_size(VL)));
typedef uint8_t vu8 __attribute__((vector_size(VL)));
typedef int32_t vs32 __attribute__((vector_size(4 * VL), may_alias));
typedef uint32_t vu32 __attribute__((vector_size(4 * VL), may_alias));
typedef float vf32 __attribute__((vector_size(4 * VL), may_alias));

INLINE vf vabs(vf x)
{
    return (vf)((vs32)x & 0x7fffffff);
}
INLINE vf codes_first(const int8_t *p)
{
    vs8 code;
    memcpy(&code, p, sizeof(code));
    return (vf) __builtin_convertvector(code, vf32);
}
INLINE vf codes_second(const uint8_t *p)
{
    vu8 code;
    memcpy(&code, p, sizeof(code));
    return (vf) __builtin_convertvector(code, vf32);
}
INLINE void store_codes(void *p, vf whole)
{
    vs8 code = __builtin_convertvector(__builtin_convertvector((vf32)whole, vs32), vs8);
    memcpy(p, &code, sizeof(code));
}

/* A block while it is updated: first moments, and the roots of the second ones. */
struct block8 {
    float m[HZP_Q8_BLOCK], root[HZP_Q8_BLOCK];
};

/* The codes and scales of what device/q8.h says, n a multiple of VL. */
INLINE void block8_put(const struct block8 *b, int n, float largest, float largest_root, int8_t *m,
                       uint8_t *v, float *m_scale, float *v_scale)
{
    *m_scale = hzp_q8_scale(largest);
    *v_scale = hzp_q8_scale(largest_root);
    vf by_m = vset(*m_scale > 0 ? HZP_Q8_FIRST * HZP_Q8_FIRST / sqrtf(*m_scale) : 0);
    vf by_v = vset(*v_scale > 0 ? HZP_Q8_SECOND * HZP_Q8_SECOND / *v_scale : 0);
    for (int i = 0; i < n; i += VL) {
        vf x = vload(b->m + i, VL), root = vload(b->root + i, VL);
        vf y = vmin(vsqrt(vmul(vsqrt(vabs(x)), by_m)), vset(HZP_Q8_FIRST));
        vs32 sign = (vs32)x & INT32_MIN;
        store_codes(m + i, (vf)((vs32)vround(y) | sign));
        vu32 hash = ((vu32)root >> 6) * 0x9e3779b1u;
        vf dither =
            vsub(vmul((vf) __builtin_convertvector((vs32)(hash >> 8), vf32), vset(0x1p-24f)),
                 vset(0.5f));
        vf k = vsqrt(vmul(root, by_v)), least = vmin(vmul(k, vset(1e30f)), vset(1));
        k = vmin(vround(vadd(k, dither)), vset(HZP_Q8_SECOND));
        store_codes(v + i, vmax(k, least));
    }
}

/* One block of n elements, a multiple of 64; those from `decayed` on do not decay. */
INLINE void adamw_block8(const struct adamw *w, int n, int decayed, const void *from, void *to,
                         void *residual, const float *grad, int8_t *m, uint8_t *v, float *m_scale,
                         float *v_scale, enum hzp_dtype type)
{
    vf scale = vset(w->scale), beta1 = vset(w->beta1), rest1 = vset(w->rest1), step = vset(w->step);
    vf beta2 = vset(w->beta2), rest2 = vset(w->rest2), eps = vset(w->eps), ahead = vset(w->ahead);
    vf first = vset(*m_scale), second = vset(*v_scale), undo_root = vset(sqrtf(w->undo_v));
    vf top = vzero(), top_root = vzero();
    struct block8 b;
    for (int i = 0; i < n; i += VL) {
        vf g = vmul(vload(grad + i, VL), scale);
        vf p = type == HZP_F32
                   ? vload((const float *)from + i, VL)
                   : master_load((const uint16_t *)from + i, (const int16_t *)residual + i, VL);
        vf q = vmul(codes_first(m + i), vset(1 / HZP_Q8_FIRST));
        vf old = vmul(first, vmul(vmul(q, q), vmul(q, vabs(q))));
        q = vmul(codes_second(v + i), vset(1 / HZP_Q8_SECOND));
        vf root = vmul(second, vmul(q, q));
        vf mm = vfma(beta1, old, vmul(rest1, g));
        vf vv = vfma(beta2, vmul(root, root), vmul(vmul(rest2, g), g));
        root = vsqrt(vv);
        vf along = w->ahead > 0 ? vfma(ahead, g, mm) : mm;
        vf keep = i < decayed ? vset(w->keep) : vset(1);
        p = vfnma(step, vdiv(along, vfma(root, undo_root, eps)), vmul(p, keep));
        top = vmax(vabs(mm), top);
        top_root = vmax(root, top_root);
        vstore(b.m + i, mm, VL);
        vstore(b.root + i, root, VL);
        if (type == HZP_F32)
            vstore((float *)to + i, p, VL);
        else
            master_store((uint16_t *)to + i, (int16_t *)residual + i, p, VL);
    }
    block8_put(&b, n, vtop(top), vtop(top_root), m, v, m_scale, v_scale);
}

/* Elements [c, c + n) of the row, where c begins a block. */
static void adamw_blocks8(const struct adamw *w, int c, int n, const void *from, void *to,
                          void *rest, const float *g, int8_t *m, uint8_t *v)
{
    const struct hzp_adamw_args *a = w->args;
    int decayed = a->decayed ? a->decayed - c : n;
    size_t size = a->from.type == HZP_F32 ? 4 : 2;
    for (int i = 0; i < n; i += HZP_Q8_BLOCK) {
        int block = (c + i) / HZP_Q8_BLOCK, some = HZP_MIN(n - i, HZP_Q8_BLOCK);
        const char *f = (const char *)from + (size_t)i * size;
        char *t = (char *)to + (size_t)i * size;
        if (size == 4)
            adamw_block8(w, some, decayed - i, f, t, NULL, g + i, m + i, v + i, a->m_scale + block,
                         a->v_scale + block, HZP_F32);
        else
            adamw_block8(w, some, decayed - i, f, t, (int16_t *)rest + i, g + i, m + i, v + i,
                         a->m_scale + block, a->v_scale + block, HZP_BF16);
    }
}

static void *piece_at(const struct hzp_mat *mat, int r, int c)
{
    size_t size = mat->type == HZP_F32 ? 4 : mat->type == HZP_Q8 ? 1 : 2;
    return mat->ptr ? (char *)hzp_cpu_row(mat, r) + (size_t)c * size : NULL;
}

static void adamw_pieces(void *ctx, int begin, int end, int thread)
{
    const struct adamw *w = ctx;
    const struct hzp_adamw_args *a = w->args;
    int across = HZP_DIV_UP(a->from.cols, PIECE);
    enum hzp_dtype type = a->from.type;

    for (int i = begin; i < end; i++) {
        int r = i / across, c = i % across * PIECE;
        size_t n = (size_t)HZP_MIN(PIECE, a->from.cols - c);
        void *from = piece_at(&a->from, r, c), *to = piece_at(&a->to, r, c);
        void *rest = piece_at(&a->residual, r, c), *g = piece_at(&a->grad, r, c);
        void *m = piece_at(&a->m, r, c), *v = piece_at(&a->v, r, c);
        bool f32 = a->grad.type == HZP_F32 && a->m.type == HZP_F32 && a->v.type == HZP_F32;

        if (w->skip)
            memmove(to, from, n * (type == HZP_F32 ? 4 : 2));
        else if (a->m.type == HZP_Q8)
            adamw_blocks8(w, c, (int)n, from, to, rest, g, m, v);
        else if (f32 && type == HZP_BF16)
            adamw_piece(w, n, from, to, rest, g, m, v, HZP_BF16, HZP_F32, HZP_F32, HZP_F32);
        else if (f32)
            adamw_piece(w, n, from, to, rest, g, m, v, HZP_F32, HZP_F32, HZP_F32, HZP_F32);
        else if (type == HZP_BF16 && a->grad.type == HZP_F32 && a->m.type == HZP_BF16 &&
                 a->v.type == HZP_BF16)
            adamw_piece(w, n, from, to, rest, g, m, v, HZP_BF16, HZP_F32, HZP_BF16, HZP_BF16);
        else
            adamw_piece(w, n, from, to, rest, g, m, v, type, a->grad.type, a->m.type, a->v.type);
    }
}

/* What gradients are multiplied by; NaN: the norm is not finite. */
static double gradient_scale(const double *sumsq, float grad_scale, float clip)
{
    double norm = sqrt(*sumsq) * grad_scale;
    if (!isfinite(norm))
        return NAN;
    return clip > 0 ? grad_scale * fmin(1, clip / (norm + 1e-6)) : grad_scale;
}

static int cpu_adamw(struct hzp_lane *lane, const void *args)
{
    const struct hzp_adamw_args *a = args;
    double scale = gradient_scale(a->sumsq, a->grad_scale, a->clip);
    struct adamw w = {
        .args = a,
        .skip = isnan(scale),
        .scale = (float)scale,
        .beta1 = a->beta1,
        .rest1 = (float)(1 - (double)a->beta1),
        .beta2 = a->beta2,
        .rest2 = (float)(1 - (double)a->beta2),
        .keep = (float)(1 - (double)a->lr * a->decay),
        .step =
            (float)(a->part_m > 0 ? (double)a->lr * a->part_m : a->lr / (1 - pow(a->beta1, a->t))),
        .ahead = a->part_m > 0 ? a->part_g / a->part_m : 0,
        .undo_v = (float)(1 / (1 - pow(a->beta2, a->t))),
        .eps = a->eps,
    };

    hzp_team_range(hzp_cpu_team(lane), a->from.rows * HZP_DIV_UP(a->from.cols, PIECE),
                   (size_t)HZP_MIN(PIECE, a->from.cols) * 26, adamw_pieces, &w);
    return HZP_OK;
}

struct muon {
    const struct hzp_muon_args *args;
    double scale;
};

INLINE void muon_before(const struct hzp_muon_args *a, int r, int c0, int n, float scale)
{
    const float *g = piece_at(&a->grad, r, c0);
    float *x = piece_at(&a->x, r, c0);
    void *m = piece_at(&a->m, r, c0);
    vf keep = vset(a->momentum), by = vset((1 - a->momentum) * scale);
    EACH(c, n, {
        vf add = vmul(by, vload(g + c, left));
        vf mm = vfma(keep, vget(m, (size_t)c, a->m.type, left), add);
        vput(m, (size_t)c, a->m.type, mm, left);
        vstore(x + c, vfma(keep, mm, add), left);
    });
}

INLINE void muon_after(const struct hzp_muon_args *a, int r, int c0, int n)
{
    const void *x = piece_at(&a->x, r, c0), *from = piece_at(&a->from, r, c0);
    void *to = piece_at(&a->to, r, c0), *rest = piece_at(&a->residual, r, c0);
    vf keep = vset(a->keep), step = vset(a->step);
    EACH(c, n, {
        vf p = a->from.type == HZP_F32
                   ? vload((const float *)from + c, left)
                   : master_load((const uint16_t *)from + c, (const int16_t *)rest + c, left);
        p = vfnma(step, vget(x, (size_t)c, a->x.type, left), vmul(p, keep));
        if (a->from.type == HZP_F32)
            vstore((float *)to + c, p, left);
        else
            master_store((uint16_t *)to + c, (int16_t *)rest + c, p, left);
    });
}

static void muon_pieces(void *ctx, int begin, int end, int thread)
{
    const struct muon *w = ctx;
    const struct hzp_muon_args *a = w->args;
    int across = HZP_DIV_UP(a->x.cols, PIECE);

    for (int i = begin; i < end; i++) {
        int r = i / across, c = i % across * PIECE, n = HZP_MIN(PIECE, a->x.cols - c);
        if (isnan(w->scale) && a->from.ptr)
            memmove(piece_at(&a->to, r, c), piece_at(&a->from, r, c),
                    (size_t)n * (a->from.type == HZP_F32 ? 4 : 2));
        else if (isnan(w->scale))
            memset(piece_at(&a->x, r, c), 0, (size_t)n * sizeof(float));
        else if (a->from.ptr)
            muon_after(a, r, c, n);
        else
            muon_before(a, r, c, n, (float)w->scale);
    }
}

static int cpu_muon(struct hzp_lane *lane, const void *args)
{
    const struct hzp_muon_args *a = args;
    struct muon w = {a, gradient_scale(a->sumsq, a->grad_scale, a->clip)};

    hzp_team_range(hzp_cpu_team(lane), a->x.rows * HZP_DIV_UP(a->x.cols, PIECE),
                   (size_t)HZP_MIN(PIECE, a->x.cols) * 16, muon_pieces, &w);
    return HZP_OK;
}

/* The two reductions: each piece stores its own sum. */
struct sums {
    struct hzp_mat x;
    double *square;
    uint64_t *check;
    int64_t *bad;
};

/* In double: a float's square can overflow even if the root of the sum would not. */
static double piece_sumsq(const float *x, int n)
{
    double lane[2 * VL] = {0}, sum = 0;
    int c = 0;

    for (; c + 2 * VL <= n; c += 2 * VL)
        for (int j = 0; j < 2 * VL; j++)
            lane[j] += (double)x[c + j] * x[c + j];
    for (int j = 0; c + j < n; j++)
        lane[j] += (double)x[c + j] * x[c + j];
    for (int j = 0; j < 2 * VL; j++)
        sum += lane[j];
    return sum;
}

static void sumsq_pieces(void *ctx, int begin, int end, int thread)
{
    const struct sums *s = ctx;
    int across = HZP_DIV_UP(s->x.cols, PIECE);

    for (int i = begin; i < end; i++) {
        int c = i % across * PIECE;
        s->square[i] = piece_sumsq(piece_at(&s->x, i / across, c), HZP_MIN(PIECE, s->x.cols - c));
    }
}

static int cpu_sumsq(struct hzp_lane *lane, const void *args)
{
    const struct hzp_sumsq_args *a = args;
    struct hzp_team *team = hzp_cpu_team(lane);
    struct sums s = {.x = a->x};
    int pieces = a->x.rows * HZP_DIV_UP(a->x.cols, PIECE);

    HZP_TRY(hzp_team_reserve(team, (size_t)pieces * sizeof(double), 0));
    s.square = hzp_team_shared(team);
    hzp_team_range(team, pieces, (size_t)HZP_MIN(PIECE, a->x.cols) * 4, sumsq_pieces, &s);
    for (int i = 0; i < pieces; i++)
        *a->sum += s.square[i];
    return HZP_OK;
}

/* Counts NaN and infinite elements: all bits of the exponent are set.  Plain loops: the compiler
 * vectorizes them well enough. */
static int64_t piece_bad(const char *p, size_t bytes, enum hzp_dtype type)
{
    int64_t bad = 0;

    if (type == HZP_BF16)
        for (size_t i = 0; i < bytes / 2; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * i, sizeof(h));
            bad += (h & 0x7f80u) == 0x7f80u;
        }
    else if (type == HZP_F32)
        for (size_t i = 0; i < bytes / 4; i++) {
            uint32_t u;
            memcpy(&u, p + 4 * i, sizeof(u));
            bad += (u & 0x7f800000u) == 0x7f800000u;
        }
    return bad;
}

static void audit_pieces(void *ctx, int begin, int end, int thread)
{
    const struct sums *s = ctx;
    size_t size = s->x.type == HZP_F32 || s->x.type == HZP_I32 ? 4 : 2;
    size_t bytes = (size_t)s->x.rows * (size_t)s->x.cols * size;

    for (int i = begin; i < end; i++) {
        size_t at = (size_t)i * PIECE * 8, n = HZP_MIN((size_t)PIECE * 8, bytes - at);
        const char *p = (const char *)s->x.ptr + at;
        uint64_t sum = 0;
        for (size_t j = 0; j < n / 8; j++) {
            uint64_t word;
            memcpy(&word, p + 8 * j, sizeof(word));
            sum += hzp_audit_mix(at / 8 + j, word);
        }
        s->check[i] = sum;
        s->bad[i] = piece_bad(p, n, s->x.type);
    }
}

static int cpu_audit(struct hzp_lane *lane, const void *args)
{
    const struct hzp_audit_args *a = args;
    struct hzp_team *team = hzp_cpu_team(lane);
    struct sums s = {.x = a->x};
    size_t size = a->x.type == HZP_F32 || a->x.type == HZP_I32 ? 4 : 2;
    size_t bytes = (size_t)a->x.rows * (size_t)a->x.cols * size;
    size_t pieces = HZP_DIV_UP(bytes, (size_t)PIECE * 8);

    HZP_TRY(hzp_team_reserve(team, pieces * 2 * sizeof(uint64_t), 0));
    s.check = hzp_team_shared(team);
    s.bad = (int64_t *)(s.check + pieces);
    hzp_team_range(team, (int)pieces, (size_t)PIECE * 8, audit_pieces, &s);
    for (size_t i = 0; i < pieces; i++) {
        *a->checksum += s.check[i];
        *a->nonfinite += s.bad[i];
    }
    return HZP_OK;
}

void HZP_ISA_NAME(hzp_cpu_fill_update)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_sumsq] = cpu_sumsq;
    op[HZP_OP_adamw] = cpu_adamw;
    op[HZP_OP_muon] = cpu_muon;
    op[HZP_OP_audit] = cpu_audit;
}
