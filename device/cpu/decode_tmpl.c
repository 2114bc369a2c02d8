/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/decode_tmpl.c - attn_decode: one query a sequence, keys and values in pages.
 *
 * The query heads that share a kv head go together, so keys and values are read from memory once.
 * The context is cut into chunks of fixed size whose partial results are merged in order; with few
 * sequences the chunks are tasks of their own, which changes no bit of the result.
 */
#include "device/cpu/vec_tmpl.h"

enum { CHUNK = 256, HEADS_AT_ONCE = 4, NR = 4, FETCH_BYTES = 8192 };

#ifdef __AVX512F__
enum { NV = 4 }; /* vectors of a value summed at once */
#else
enum { NV = 2 };
#endif

#ifdef __AVX512BF16__
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

/* What a chunk, or a sequence so far, comes to, per query head of the group: the largest score,
 * the sum of exp(score - top), and the values' sum with those weights. */
struct state {
    float *top, *sum, *value; /* [group], [group], [group][dim] */
};

struct decode {
    const struct hzp_attn_paged_args *args;
    struct hzp_team *team;
    int chunks;  /* tasks a head is cut into: 1, or the most any sequence has */
    float *part; /* [sequences][kv heads][chunks] states, when cut */
    int group;
};

static size_t state_floats(int group, int dim)
{
    return HZP_ROUND_UP((size_t)group * (size_t)(dim + 2), (size_t)16);
}

static struct state state_at(float *base, int group)
{
    return (struct state){base, base + group, base + 2 * group};
}

static const char *page_at(const struct hzp_attn_paged_args *a, const void *base, int seg, int h,
                           int p)
{
    int64_t page = a->page[(size_t)seg * (size_t)a->page_stride + (size_t)(p / a->kv.page_rows)];
    size_t row = ((size_t)page * (size_t)a->heads.kv_heads + (size_t)h) * (size_t)a->kv.page_rows +
                 (size_t)(p % a->kv.page_rows);
    return (const char *)base + row * (size_t)a->heads.dim * (a->kv.type == HZP_F32 ? 4 : 2);
}

/* score[i][0..NR) of heads i = 0 .. g-1 with NR keys. */
INLINE void score_four(int g, bool pairs, enum hzp_dtype type, const char *q, size_t head,
                       const char *const key[NR], int dim, float scale, __m128 ret[HEADS_AT_ONCE])
{
    vf acc[HEADS_AT_ONCE][NR];

    for (int i = 0; i < g; i++)
        for (int j = 0; j < NR; j++)
            acc[i][j] = vzero();
#if HAS_PAIRS
    if (pairs) {
        for (int d = 0; d < dim; d += 2 * VL) {
            __mmask32 k = dim - d >= 2 * VL ? ~0u : (1u << (dim - d)) - 1;
            __m512bh kv[NR];
            for (int j = 0; j < NR; j++)
                kv[j] = (__m512bh)_mm512_maskz_loadu_epi16(k, key[j] + 2 * d);
            for (int i = 0; i < g; i++) {
                __m512bh qv = (__m512bh)_mm512_maskz_loadu_epi16(k, q + (size_t)i * head + 2 * d);
                for (int j = 0; j < NR; j++)
                    acc[i][j] = _mm512_dpbf16_ps(acc[i][j], qv, kv[j]);
            }
        }
    } else
#endif
        EACH(d, dim, {
            vf kv[NR];
            for (int j = 0; j < NR; j++)
                kv[j] = vget(key[j], (size_t)d, type, left);
            for (int i = 0; i < g; i++) {
                vf qv = vget(q + (size_t)i * head, (size_t)d, type, left);
                for (int j = 0; j < NR; j++)
                    acc[i][j] = vfma(qv, kv[j], acc[i][j]);
            }
        });
    for (int i = 0; i < g; i++) {
        __m128 a = vfold4(acc[i][0]), b = vfold4(acc[i][1]);
        __m128 c = vfold4(acc[i][2]), d = vfold4(acc[i][3]);
        __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
        __m128 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
        __m128 sum = _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
        ret[i] = _mm_mul_ps(sum, _mm_set1_ps(scale));
    }
}

/* Scores of heads g0 .. g0+g-1 with positions p0 .. p0+n-1 of one page. */
INLINE void page_scores(const struct decode *w, int g, enum hzp_dtype type, const char *q,
                        const char *keys, int n, float *score)
{
    const struct hzp_attn_paged_args *a = w->args;
    size_t row = (size_t)a->heads.dim * (type == HZP_F32 ? 4 : 2);
    bool pairs = HAS_PAIRS && type == HZP_BF16;

    for (int p = 0; p < n; p += NR) {
        const char *key[NR];
        __m128 s[HEADS_AT_ONCE];
        for (int j = 0; j < NR; j++)
            key[j] = keys + (size_t)HZP_MIN(p + j, n - 1) * row;
        score_four(g, pairs, type, q, row, key, a->heads.dim, a->scale, s);
        for (int i = 0; i < g; i++)
            _mm_storeu_ps(score + i * (CHUNK + NR) + p, s[i]);
    }
}

/* value[i][d0 ..) += sum over p of score[i][p] v[p][d0 ..), up to NV vectors wide. */
INLINE void page_values(int g, enum hzp_dtype type, const char *values, int n, int dim,
                        const float *score, float *value)
{
    size_t row = (size_t)dim * (type == HZP_F32 ? 4 : 2);

    for (int d0 = 0; d0 < dim; d0 += NV * VL) {
        vf acc[HEADS_AT_ONCE][NV];
        bool whole = d0 + NV * VL <= dim;
        for (int i = 0; i < g; i++)
            for (int v = 0; v < NV; v++) {
                int left = HZP_MIN(VL, dim - d0 - v * VL);
                acc[i][v] = left > 0 ? vload(value + i * dim + d0 + v * VL, left) : vzero();
            }
        for (int p = 0; p < n; p++) {
            vf vv[NV];
            for (int v = 0; v < NV; v++) {
                int left = whole ? VL : HZP_MIN(VL, dim - d0 - v * VL);
                vv[v] = left > 0 ? vget(values + (size_t)p * row, (size_t)(d0 + v * VL), type, left)
                                 : vzero();
            }
            for (int i = 0; i < g; i++) {
                vf s = vset(score[i * (CHUNK + NR) + p]);
                for (int v = 0; v < NV; v++)
                    acc[i][v] = vfma(s, vv[v], acc[i][v]);
            }
        }
        for (int i = 0; i < g; i++)
            for (int v = 0; v < NV; v++) {
                int left = HZP_MIN(VL, dim - d0 - v * VL);
                if (left > 0)
                    vstore(value + i * dim + d0 + v * VL, acc[i][v], left);
            }
    }
}

/* Scores become exp(score - top); returns their sum. */
INLINE float chunk_softmax(float *score, int n, float *ret_top)
{
    vf top = vset(-INFINITY), sum = vzero();

    EACH(c, n, top = vmax(vkeep(vload(score + c, left), -INFINITY, left), top););
    float high = vtop(top);
    vf shift = vset(high == -INFINITY ? 0 : high);
    EACH(c, n, {
        vf e = vexp(vsub(vload(score + c, left), shift));
        vstore(score + c, e, left);
        sum = vadd(sum, vkeep(e, 0, left));
    });
    *ret_top = high;
    return vsum(sum);
}

/* Pages lie anywhere: the hardware does not guess the next one. */
INLINE void fetch(const struct decode *w, const void *base, int seg, int h, int p)
{
    const struct hzp_attn_paged_args *a = w->args;
    const char *at = page_at(a, base, seg, h, p);
    size_t rows = (size_t)(a->kv.page_rows - p % a->kv.page_rows);
    size_t bytes = rows * (size_t)a->heads.dim * (a->kv.type == HZP_F32 ? 4 : 2);

    for (size_t i = 0; i < HZP_MIN(bytes, (size_t)FETCH_BYTES); i += 64)
        _mm_prefetch(at + i, _MM_HINT_T0);
}

/* g heads from head g0 of the group, positions p0 .. p1-1, p1 - p0 <= CHUNK. */
INLINE void chunk_heads(const struct decode *w, int g, int g0, enum hzp_dtype type, int seg, int h,
                        int p0, int p1, float *score, struct state out)
{
    const struct hzp_attn_paged_args *a = w->args;
    int dim = a->heads.dim, page_rows = a->kv.page_rows;
    size_t row = (size_t)dim * (type == HZP_F32 ? 4 : 2);
    const char *q = (const char *)hzp_cpu_row(&a->qkv, a->segs.row0[seg]) +
                    (size_t)(h * w->group + g0) * row;
    float *value = out.value + g0 * dim;

    for (int p = p0, n; p < p1; p += n) {
        n = HZP_MIN(p1 - p, page_rows - p % page_rows);
        if (p + n < p1)
            fetch(w, a->kv.k, seg, h, p + n);
        fetch(w, a->kv.v, seg, h, p);
        page_scores(w, g, type, q, page_at(a, a->kv.k, seg, h, p), n, score + (p - p0));
    }
    for (int i = 0; i < g; i++)
        out.sum[g0 + i] = chunk_softmax(score + i * (CHUNK + NR), p1 - p0, &out.top[g0 + i]);
    memset(value, 0, (size_t)(g * dim) * sizeof(*value));
    for (int p = p0, n; p < p1; p += n) {
        n = HZP_MIN(p1 - p, page_rows - p % page_rows);
        if (p + CHUNK < w->args->segs.pos0[seg] + 1)
            fetch(w, a->kv.k, seg, h, p + CHUNK);
        page_values(g, type, page_at(a, a->kv.v, seg, h, p), n, dim, score + (p - p0), value);
    }
}

INLINE void chunk_typed(const struct decode *w, enum hzp_dtype type, int seg, int h, int p0, int p1,
                        float *score, struct state out)
{
    int g0 = 0;

    for (; g0 + 4 <= w->group; g0 += 4)
        chunk_heads(w, 4, g0, type, seg, h, p0, p1, score, out);
    switch (w->group - g0) {
    case 1: chunk_heads(w, 1, g0, type, seg, h, p0, p1, score, out); break;
    case 2: chunk_heads(w, 2, g0, type, seg, h, p0, p1, score, out); break;
    case 3: chunk_heads(w, 3, g0, type, seg, h, p0, p1, score, out); break;
    }
}

static void chunk_run(const struct decode *w, int seg, int h, int p0, int p1, float *score,
                      struct state out)
{
    if (w->args->kv.type == HZP_BF16)
        chunk_typed(w, HZP_BF16, seg, h, p0, p1, score, out);
    else
        chunk_typed(w, HZP_F32, seg, h, p0, p1, score, out);
}

/* all = all and more; the first chunk finds top = -inf. */
static void state_merge(const struct decode *w, struct state all, struct state more)
{
    int dim = w->args->heads.dim;

    for (int g = 0; g < w->group; g++) {
        float top = fmaxf(all.top[g], more.top[g]);
        float a = all.top[g] == -INFINITY ? 0 : expf(all.top[g] - top);
        float b = more.top[g] == -INFINITY ? 0 : expf(more.top[g] - top);
        float *x = all.value + g * dim, *y = more.value + g * dim;
        all.sum[g] = all.sum[g] * a + more.sum[g] * b;
        all.top[g] = top;
        EACH(d, dim, {
            vf v = vmul(vload(x + d, left), vset(a));
            vstore(x + d, vfma(vload(y + d, left), vset(b), v), left);
        });
    }
}

static void state_begin(const struct decode *w, struct state all)
{
    for (int g = 0; g < w->group; g++) {
        all.top[g] = -INFINITY;
        all.sum[g] = 0;
    }
    memset(all.value, 0, (size_t)(w->group * w->args->heads.dim) * sizeof(*all.value));
}

static void state_finish(const struct decode *w, struct state all, int seg, int h)
{
    const struct hzp_attn_paged_args *a = w->args;
    int dim = a->heads.dim;
    size_t size = a->out.type == HZP_F32 ? 4 : 2;

    for (int g = 0; g < w->group; g++) {
        char *y = (char *)hzp_cpu_row(&a->out, a->segs.row0[seg]) +
                  (size_t)((h * w->group + g) * dim) * size;
        vf scale = vset(1.f / all.sum[g]);
        EACH(d, dim,
             vput(y, (size_t)d, a->out.type, vmul(vload(all.value + g * dim + d, left), scale),
                  left););
    }
}

/* A thread's memory: scores of HEADS_AT_ONCE heads, two states. */
static size_t own_floats(const struct decode *w)
{
    return HEADS_AT_ONCE * (CHUNK + NR) + NR + 12 + 2 * state_floats(w->group, w->args->heads.dim);
}

/* One kv head of one sequence, from first to last chunk. */
static void whole_task(void *ctx, int task, int thread)
{
    const struct decode *w = ctx;
    int seg = task / w->args->heads.kv_heads, h = task % w->args->heads.kv_heads;
    int n = w->args->segs.pos0[seg] + 1, group = w->group;
    size_t floats = state_floats(group, w->args->heads.dim);
    float *own = hzp_team_own(w->team, thread), *score = own + 2 * floats;
    struct state all = state_at(own, group), more = state_at(own + floats, group);

    state_begin(w, all);
    for (int p = 0; p < n; p += CHUNK) {
        chunk_run(w, seg, h, p, HZP_MIN(p + CHUNK, n), score, more);
        state_merge(w, all, more);
    }
    state_finish(w, all, seg, h);
}

static struct state part_at(const struct decode *w, int pair, int chunk)
{
    size_t at = (size_t)pair * (size_t)w->chunks + (size_t)chunk;
    return state_at(w->part + at * state_floats(w->group, w->args->heads.dim), w->group);
}

static void chunk_task(void *ctx, int task, int thread)
{
    const struct decode *w = ctx;
    int pair = task / w->chunks, chunk = task % w->chunks;
    int seg = pair / w->args->heads.kv_heads, h = pair % w->args->heads.kv_heads;
    int n = w->args->segs.pos0[seg] + 1, p = chunk * CHUNK;

    if (p < n)
        chunk_run(w, seg, h, p, HZP_MIN(p + CHUNK, n), hzp_team_own(w->team, thread),
                  part_at(w, pair, chunk));
}

static void merge_task(void *ctx, int pair, int thread)
{
    const struct decode *w = ctx;
    int seg = pair / w->args->heads.kv_heads, h = pair % w->args->heads.kv_heads;
    int n = w->args->segs.pos0[seg] + 1;
    struct state all = state_at(hzp_team_own(w->team, thread), w->group);

    state_begin(w, all);
    for (int chunk = 0; chunk * CHUNK < n; chunk++)
        state_merge(w, all, part_at(w, pair, chunk));
    state_finish(w, all, seg, h);
}

static int cpu_attn_decode(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_paged_args *a = args;
    struct hzp_team *team = hzp_cpu_team(lane);
    struct decode w = {.args = a, .team = team, .chunks = 1,
                       .group = a->heads.heads / a->heads.kv_heads};
    int pairs = a->segs.count * a->heads.kv_heads, most = 1;
    size_t part = 0, own = own_floats(&w) * sizeof(float);

    for (int i = 0; i < a->segs.count; i++)
        most = HZP_MAX(most, HZP_DIV_UP(a->segs.pos0[i] + 1, CHUNK));
    if (pairs < 4 * hzp_team_threads(team) && hzp_team_threads(team) > 1)
        w.chunks = most;
    if (w.chunks > 1)
        part = (size_t)pairs * (size_t)w.chunks * state_floats(w.group, a->heads.dim);
    HZP_TRY(hzp_team_reserve(team, part * sizeof(float), own));
    w.part = hzp_team_shared(team);
    if (w.chunks == 1) {
        hzp_team_run(team, pairs, whole_task, &w);
    } else {
        hzp_team_run(team, pairs * w.chunks, chunk_task, &w);
        hzp_team_run(team, pairs, merge_task, &w);
    }
    return HZP_OK;
}

void HZP_ISA_NAME(hzp_cpu_fill_decode)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_attn_decode] = cpu_attn_decode;
}
