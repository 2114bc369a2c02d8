/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/decode_tmpl.c - attn_decode: one query per sequence, keys and values in pages.
 *
 * It is limited by memory, so a task reads one stream: it processes the pages of a piece of a
 * context, the kv heads of a page one after another in memory order, and prefetches what follows
 * FETCH_BYTES later in this order.  Query heads that share a kv head are processed together, so
 * keys and values are read once.
 *
 * Codes of E4M3 pages are multiplied without their scales; scores are multiplied by the keys',
 * weights by the values' scales.
 *
 * A context is divided into chunks of fixed size whose results are merged in order.  The assignment
 * of chunks and heads to tasks depends on the other sequences and on the team, but does not change
 * a bit of the result.
 */
#include "device/cpu/decode_tmpl.h"

/* The state of a chunk, or of a context so far, per query head of a task: the largest score, the
 * sum of exp(score - top), and the sum of the values with those weights.  With pairs the elements
 * of that sum are in the order of values_pairs. */
struct state {
    float *top, *sum, *value; /* [heads], [heads], [heads][wide] */
};

/* Chunks first .. last-1 of a segment, counted from the one in which its window begins. */
struct piece {
    int32_t seg, first, last;
    int32_t part; /* index of its first chunk state in decode.part; -1: it is the whole context */
};

struct decode {
    const struct hzp_attn_paged_args *args;
    struct hzp_team *team;
    struct piece *piece; /* longest first */
    int pieces;
    int group, wide; /* query heads per kv head; floats of a value's sum */
    int kv_each;     /* kv heads per task */
    int cuts;        /* tasks per piece: the kv heads over kv_each */
    float *part;     /* [parts][cuts] states */
    bool pairs, far; /* hzp_cpu_fetches_far() */
};

/* The place of a block of rows of one kv head. A task reads, for each chunk, first the keys, then
 * the values; page by page, head by head. */
struct place {
    int p0, p1, end; /* positions of this chunk; end of the piece */
    /* first position of this page within the chunk; kv head; row of the block from there */
    int p, h, row;
    bool value;
};

struct task {
    const struct decode *w;
    int seg, h0, h1; /* kv heads h0 .. h1-1 */
    float *q,
        *score; /* [heads][dim], with pairs [heads][dim / 16][16] twice each; [heads][SCORES] */
    struct state all, more;
    struct place ahead;
};

/* A segment's first chunk that is read, and how many are. */
static int chunk_first(const struct hzp_attn_paged_args *a, int seg)
{
    return hzp_attn_first(a->window, a->segs.pos0[seg]) / CHUNK;
}

/* Where the segment's c-th chunk begins: the first at the block in which its window does. */
static int chunk_begin(const struct hzp_attn_paged_args *a, int seg, int c)
{
    int first = hzp_attn_first(a->window, a->segs.pos0[seg]) / HZP_ATTN_BLOCK * HZP_ATTN_BLOCK;
    int begin = (chunk_first(a, seg) + c) * CHUNK;
    return HZP_MAX(begin, first);
}

static int chunks_of(const struct hzp_attn_paged_args *a, int seg)
{
    return HZP_DIV_UP(a->segs.pos0[seg] + 1, CHUNK) - chunk_first(a, seg);
}

static size_t row_bytes(const struct decode *w)
{
    return (size_t)w->args->heads.dim * size_of(w->args->kv.type);
}

/* The index of position p of kv head h, in rows of a head. */
static size_t row_index(const struct task *t, int h, int p)
{
    const struct hzp_attn_paged_args *a = t->w->args;
    int64_t page = hzp_attn_pages(a, t->seg)[p / a->kv.page_rows];
    return ((size_t)page * (size_t)a->heads.kv_heads + (size_t)h) * (size_t)a->kv.page_rows +
           (size_t)(p % a->kv.page_rows);
}

static const char *row_at(const struct task *t, bool value, int h, int p)
{
    const struct hzp_kv *kv = &t->w->args->kv;
    return (const char *)(value ? kv->v : kv->k) + row_index(t, h, p) * row_bytes(t->w);
}

/* NULL: the pages have no scales. */
static const float *scale_at(const struct task *t, bool value, int h, int p)
{
    const struct hzp_kv *kv = &t->w->args->kv;
    const float *scale = value ? kv->v_scale : kv->k_scale;
    return scale ? scale + row_index(t, h, p) : NULL;
}

/* The number of positions of one page from p on, below p1. */
INLINE int page_left(const struct task *t, int p, int p1)
{
    int page_rows = t->w->args->kv.page_rows;
    return HZP_MIN(p1 - p, page_rows - p % page_rows);
}

/* Returns the next block to prefetch and advances past it. */
INLINE struct wanted ahead(struct task *t)
{
    struct place *a = &t->ahead;

    if (a->p0 >= a->end)
        return (struct wanted){NULL, 0, false};
    int left = page_left(t, a->p, a->p1), n = HZP_MIN(left - a->row, ROWS);
    struct wanted want = {row_at(t, a->value, a->h, a->p + a->row), n, t->w->far};
    const float *scale = scale_at(t, a->value, a->h, a->p + a->row);

    if (scale)
        fetch_near(scale);
    a->row += n;
    if (a->row < left)
        return want;
    a->row = 0;
    if (++a->h < t->h1)
        return want;
    a->h = t->h0;
    a->p += left;
    if (a->p < a->p1)
        return want;
    if (a->value) {
        a->p0 = a->p1;
        a->p1 = HZP_MIN(a->p0 + CHUNK, a->end);
    }
    a->p = a->p0;
    a->value = !a->value;
    return want;
}

/* Turns scores into exp(score - top), with `words` as bf16 in the same place, and writes zeros up
 * to a whole vector, with words at least one: an odd number of values ends in half a pair, whose
 * other half may not be NaN.  Returns the sum. */
INLINE float chunk_softmax(bool words, float *score, int n, float *ret_top)
{
    vf top = vset(-INFINITY), sum = vzero();

    EACH(c, n, top = vmax(vkeep(vload(score + c, left), -INFINITY, left), top););
    float high = vtop(top);
    vf shift = vset(high == -INFINITY ? 0 : high);
    EACH(c, n, {
        vf e = vkeep(vexp(vsub(vload(score + c, left), shift)), 0, left);
#if HAS_PAIRS
        if (words)
            _mm256_storeu_si256((__m256i *)((uint16_t *)score + c), (__m256i)_mm512_cvtneps_pbh(e));
        else
#endif
            vstore(score + c, e, left);
        sum = vadd(sum, e);
    });
    if (words)
        ((uint16_t *)score)[n] = 0;
    *ret_top = high;
    return vsum(sum);
}

/* Processes heads i .. i+g-1 of the task, all of kv head h, with n keys or values, at position `at`
 * of the chunk.  scale: of the rows; used if type is E4M3. */
INLINE void block_run(const struct task *t, int g, bool pairs, enum hzp_dtype type, int dim,
                      bool value, int i, const char *rows, const float *scale, int n, int at,
                      struct wanted want, struct state out)
{
    const struct hzp_attn_paged_args *a = t->w->args;
    bool narrow = type == HZP_E4M3;
    float *score = t->score + i * SCORES;

    if (!pairs && !value) /* keys_plain and values prefetch only so many rows */
        fetch_rest(want, HZP_ROUND_UP(n, NR), row_bytes(t->w));
    else if (value)
        fetch_rest(want, HZP_ROUND_UP(n, 2), row_bytes(t->w));

    if (value) {
        float *sum = out.value + (size_t)i * (size_t)t->w->wide;
        if (narrow)
            rows_scale(g, pairs, scale, n, score + at);
        if (pairs)
            values_pairs(g, narrow, dim, rows, n,
                         narrow ? score + at : (float *)((uint16_t *)score + at), want, sum);
        else
            values_plain(g, type, dim, rows, n, score + at, want, sum);
    } else if (pairs) {
        keys_pairs(g, narrow, dim, t->q + (size_t)i * (size_t)HZP_ROUND_UP(dim, 16), rows, n,
                   a->scale, want, score + at);
    } else {
        keys_plain(g, type, dim, t->q + (size_t)i * (size_t)dim, rows, n, a->scale, want,
                   score + at);
    }
    if (narrow && !value)
        rows_scale(g, false, scale, n, score + at);
}

/* Processes all keys, or all values, of positions p0 .. p1-1. */
INLINE void rows_run(struct task *t, bool pairs, enum hzp_dtype type, int dim, bool value, int p0,
                     int p1, struct state out)
{
    int group = t->w->group;

    for (int p = p0, left; p < p1; p += left) {
        left = page_left(t, p, p1);
        for (int h = t->h0; h < t->h1; h++) {
            const char *rows = row_at(t, value, h, p);
            const float *scale = scale_at(t, value, h, p);
            for (int r = 0, n; r < left; r += n, rows += (size_t)n * row_bytes(t->w)) {
                int i = (h - t->h0) * group, end = i + group, at = p - p0 + r;
                n = HZP_MIN(left - r, ROWS);
                struct wanted want = ahead(t);
                const float *by = scale ? scale + r : NULL;
                for (; i + 4 <= end; i += 4, want.n = 0)
                    block_run(t, 4, pairs, type, dim, value, i, rows, by, n, at, want, out);
                switch (end - i) {
                case 1:
                    block_run(t, 1, pairs, type, dim, value, i, rows, by, n, at, want, out);
                    break;
                case 2:
                    block_run(t, 2, pairs, type, dim, value, i, rows, by, n, at, want, out);
                    break;
                case 3:
                    block_run(t, 3, pairs, type, dim, value, i, rows, by, n, at, want, out);
                    break;
                }
            }
        }
    }
}

/* Each kind of rows is a function of its own, with common widths known to the compiler: as parts of
 * one function they take the compiler a minute.  One is called for a chunk, not for a row. */
typedef void rows_fn(struct task *t, int p0, int p1, struct state out);

#define ROWS(name, pairs, type, dim)                                                               \
    static __attribute__((noinline)) void name##_keys(struct task *t, int p0, int p1,              \
                                                      struct state out)                            \
    {                                                                                              \
        rows_run(t, pairs, type, dim, false, p0, p1, out);                                         \
    }                                                                                              \
    static __attribute__((noinline)) void name##_values(struct task *t, int p0, int p1,            \
                                                        struct state out)                          \
    {                                                                                              \
        rows_run(t, pairs, type, dim, true, p0, p1, out);                                          \
    }

ROWS(f32_any, false, HZP_F32, t->w->args->heads.dim)
ROWS(bf16_64, HAS_PAIRS, HZP_BF16, 64)
ROWS(bf16_128, HAS_PAIRS, HZP_BF16, 128)
ROWS(bf16_any, HAS_PAIRS, HZP_BF16, t->w->args->heads.dim)
ROWS(e4m3_64, HAS_PAIRS, HZP_E4M3, 64)
ROWS(e4m3_128, HAS_PAIRS, HZP_E4M3, 128)
ROWS(e4m3_any, HAS_PAIRS, HZP_E4M3, t->w->args->heads.dim)
#if HAS_PAIRS
ROWS(e4m3_plain, false, HZP_E4M3, t->w->args->heads.dim)
#else
#define e4m3_plain_keys   e4m3_any_keys
#define e4m3_plain_values e4m3_any_values
#endif

/* Chooses the functions for keys and for values. */
static void choose_rows(const struct decode *w, rows_fn *ret[2])
{
    static rows_fn *const wide[2][3][2] = {
        {{bf16_64_keys, bf16_64_values},
         {bf16_128_keys, bf16_128_values},
         {bf16_any_keys, bf16_any_values}},
        {{e4m3_64_keys, e4m3_64_values},
         {e4m3_128_keys, e4m3_128_values},
         {e4m3_any_keys, e4m3_any_values}},
    };
    const struct hzp_attn_paged_args *a = w->args;
    int dim = a->heads.dim == 64 ? 0 : a->heads.dim == 128 ? 1 : 2;
    bool narrow = a->kv.type == HZP_E4M3;

    memcpy(ret, wide[narrow][dim], sizeof(wide[narrow][dim]));
    if (a->kv.type == HZP_F32) {
        ret[0] = f32_any_keys;
        ret[1] = f32_any_values;
    } else if (narrow && HAS_PAIRS && !w->pairs) {
        ret[0] = e4m3_plain_keys;
        ret[1] = e4m3_plain_values;
    }
}

/* Caps scores of positions p0 .. p1-1; those before the window become -inf. */
static void scores_bound(const struct task *t, float *score, int p0, int p1)
{
    const struct hzp_attn_paged_args *a = t->w->args;
    int n = p1 - p0, first = hzp_attn_first(a->window, a->segs.pos0[t->seg]) - p0;
    vf cap = vset(a->cap);

    if (a->cap > 0)
        EACH(c, n, vstore(score + c, vmul(cap, vtanh(vdiv(vload(score + c, left), cap))), left););
    for (int c = 0; c < HZP_MIN(first, n); c++)
        score[c] = -INFINITY;
}

/* Processes positions p0 .. p1-1, p1 - p0 <= CHUNK. */
static void chunk_run(struct task *t, int p0, int p1, struct state out)
{
    const struct decode *w = t->w;
    int heads = (t->h1 - t->h0) * w->group;
    bool pairs = HAS_PAIRS && w->args->kv.type == HZP_BF16;
    rows_fn *rows[2];

    choose_rows(w, rows);
    rows[0](t, p0, p1, out);
    for (int i = 0; i < heads; i++)
        scores_bound(t, t->score + i * SCORES, p0, p1);
    for (int i = 0; i < heads; i++)
        out.sum[i] = chunk_softmax(pairs, t->score + i * SCORES, p1 - p0, &out.top[i]);
    memset(out.value, 0, (size_t)heads * (size_t)w->wide * sizeof(*out.value));
    rows[1](t, p0, p1, out);
}

/* x = x a + y b, n floats. */
INLINE void blend(float *x, const float *y, int n, float a, float b)
{
    EACH(d, n, {
        vf v = vmul(vload(x + d, left), vset(a));
        vstore(x + d, vfma(vload(y + d, left), vset(b), v), left);
    });
}

/* Merges `more` into `all`, for `heads` heads. */
static void state_merge(const struct decode *w, int heads, struct state all, struct state more)
{
    EACH(g, heads, {
        vf x = vload(all.top + g, left), y = vload(more.top + g, left), top = vmax(x, y);
        /* a finite shift: if both are -inf, exp(-inf - shift) is 0, and -inf - (-inf) would be
         * NaN */
        vf shift = vmax(top, vset(-3.4e38f));
        vf a = vexp(vsub(x, shift)), b = vexp(vsub(y, shift));
        vf sum = vmul(vload(all.sum + g, left), a);
        float scale[2][VL];
        vstore(all.sum + g, vfma(vload(more.sum + g, left), b, sum), left);
        vstore(all.top + g, top, left);
        vstore(scale[0], a, VL);
        vstore(scale[1], b, VL);
        for (int i = 0; i < left; i++) {
            size_t at = (size_t)(g + i) * (size_t)w->wide;
            blend(all.value + at, more.value + at, w->wide, scale[0][i], scale[1][i]);
        }
    });
}

/* Writes the outputs of query heads head0 .. head0+heads-1. */
static void state_finish(const struct decode *w, struct state all, int seg, int head0, int heads)
{
    const struct hzp_attn_paged_args *a = w->args;
    int dim = a->heads.dim;
    size_t size = a->out.type == HZP_F32 ? 4 : 2;

    for (int g = 0; g < heads; g++) {
        char *y =
            (char *)hzp_cpu_row(&a->out, a->segs.row0[seg]) + (size_t)((head0 + g) * dim) * size;
        const float *value = all.value + (size_t)g * (size_t)w->wide;
        float sink = a->sink.ptr ? expf(velement(&a->sink, head0 + g) - all.top[g]) : 0;
        vf scale = vset(1.f / (all.sum[g] + sink));
        EACH(d, dim, {
            vf v = w->pairs ? value_turned(value, d) : vload(value + d, left);
            vput(y, (size_t)d, a->out.type, vmul(v, scale), left);
        });
    }
}

static size_t state_floats(const struct decode *w)
{
    size_t heads = (size_t)(w->kv_each * w->group);
    return 2 * HZP_ROUND_UP(heads, (size_t)16) + HZP_ROUND_UP(heads * (size_t)w->wide, (size_t)16);
}

static struct state state_at(const struct decode *w, float *base)
{
    size_t heads = HZP_ROUND_UP((size_t)(w->kv_each * w->group), (size_t)16);
    return (struct state){base, base + heads, base + 2 * heads};
}

static struct state part_at(const struct decode *w, int part, int cut)
{
    return state_at(w, w->part + ((size_t)part * (size_t)w->cuts + (size_t)cut) * state_floats(w));
}

/* Floats of a thread's memory: two states, queries, scores. */
static size_t own_floats(const struct decode *w)
{
    size_t heads = (size_t)(w->kv_each * w->group);
    size_t q = heads * (size_t)HZP_ROUND_UP(w->args->heads.dim, 16);
    return 2 * state_floats(w) + q + heads * SCORES;
}

/* The task's queries, with pairs groups of sixteen elements of each twice, so that one vector is
 * multiplied with two keys; else as floats. */
static void queries_copy(const struct task *t, int heads)
{
    const struct hzp_attn_paged_args *a = t->w->args;
    const char *row = hzp_cpu_row(&a->qkv, a->segs.row0[t->seg]);
    int dim = a->heads.dim, first = t->h0 * t->w->group * dim;
    float *to = t->q;

#if HAS_PAIRS
    if (t->w->pairs) {
        const uint16_t *q = (const uint16_t *)(const void *)row + first;
        for (int i = 0; i < heads; i++, q += dim)
            for (int d = 0; d < dim; d += 16, to += 16) {
                __m256i x = _mm256_maskz_loadu_epi16(lanes(HZP_MIN(16, dim - d)), q + d);
                _mm512_storeu_si512(to, _mm512_broadcast_i64x4(x));
            }
        return;
    }
#endif
    EACH(d, heads * dim, vstore(to + d, vget(row, (size_t)(first + d), a->qkv.type, left), left););
}

static struct task task_make(const struct decode *w, const struct piece *piece, int cut, int thread)
{
    float *own = hzp_team_own(w->team, thread);
    size_t floats = state_floats(w);
    int h0 = cut * w->kv_each, h1 = HZP_MIN(h0 + w->kv_each, w->args->heads.kv_heads);
    int heads = (h1 - h0) * w->group, context = w->args->segs.pos0[piece->seg] + 1;
    int skip = chunk_first(w->args, piece->seg), p0 = (skip + piece->first) * CHUNK;
    int end = HZP_MIN((skip + piece->last) * CHUNK, context);
    int first = chunk_begin(w->args, piece->seg, piece->first);
    struct task t = {
        .w = w,
        .seg = piece->seg,
        .h0 = h0,
        .h1 = h1,
        .all = state_at(w, own),
        .more = state_at(w, own + floats),
        .score = own + 2 * floats,
        .q = own + 2 * floats + heads * SCORES,
        .ahead = {.p0 = first, .p1 = HZP_MIN(p0 + CHUNK, end), .end = end, .p = first, .h = h0}};

    for (size_t bytes = 0; bytes < FETCH_BYTES; bytes += ROWS * row_bytes(w))
        fetch_rest(ahead(&t), 0, row_bytes(w));
    queries_copy(&t, heads);
    return t;
}

static void piece_task(void *ctx, int task, int thread)
{
    const struct decode *w = ctx;
    const struct piece *piece = &w->piece[task / w->cuts];
    int cut = task % w->cuts;
    struct task t = task_make(w, piece, cut, thread);
    int heads = (t.h1 - t.h0) * w->group, context = w->args->segs.pos0[piece->seg] + 1;
    int skip = chunk_first(w->args, piece->seg);

    for (int c = piece->first; c < piece->last; c++) {
        int p0 = chunk_begin(w->args, piece->seg, c);
        int p1 = HZP_MIN((skip + c + 1) * CHUNK, context);
        if (piece->part >= 0) {
            chunk_run(&t, p0, p1, part_at(w, piece->part + c - piece->first, cut));
        } else if (c == 0) {
            chunk_run(&t, p0, p1, t.all);
        } else {
            chunk_run(&t, p0, p1, t.more);
            state_merge(w, heads, t.all, t.more);
        }
    }
    if (piece->part < 0)
        state_finish(w, t.all, t.seg, t.h0 * w->group, heads);
}

/* Merges the states of a context's chunks, in order, into the first; runs for the context's first
 * piece only. */
static void merge_task(void *ctx, int task, int thread)
{
    const struct decode *w = ctx;
    const struct piece *piece = &w->piece[task / w->cuts];
    int cut = task % w->cuts, h0 = cut * w->kv_each;
    int heads = (HZP_MIN(h0 + w->kv_each, w->args->heads.kv_heads) - h0) * w->group;
    int chunks = chunks_of(w->args, piece->seg);
    struct state all;

    (void)thread;
    if (piece->part < 0 || piece->first > 0)
        return;
    all = part_at(w, piece->part, cut);
    for (int c = 1; c < chunks; c++)
        state_merge(w, heads, all, part_at(w, piece->part + c, cut));
    state_finish(w, all, piece->seg, h0 * w->group, heads);
}

static int by_length(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int longer = (y->last - y->first) - (x->last - x->first);

    if (longer != 0)
        return longer;
    return x->seg != y->seg ? x->seg - y->seg : x->first - y->first;
}

/* Divides contexts into pieces of at most `most` chunks, in ret (NULL: they are only counted);
 * returns how many, and in *ret_parts how many chunk states they need. */
static int pieces_cut(const struct hzp_attn_paged_args *a, int most, struct piece *ret,
                      int *ret_parts)
{
    int count = 0, parts = 0;

    for (int s = 0; s < a->segs.count; s++) {
        int chunks = chunks_of(a, s), part = parts;
        for (int c = 0; c < chunks; c += most, count++)
            if (ret)
                ret[count] =
                    (struct piece){s, c, HZP_MIN(c + most, chunks), chunks > most ? part + c : -1};
        parts += chunks > most ? chunks : 0;
    }
    *ret_parts = parts;
    return count;
}

static int cpu_attn_decode(struct hzp_lane *lane, const void *args)
{
    const struct hzp_attn_paged_args *a = args;
    struct hzp_team *team = hzp_cpu_team(lane);
    bool pairs = HAS_PAIRS && a->qkv.type == HZP_BF16;
    struct decode w = {.args = a,
                       .team = team,
                       .pairs = pairs,
                       .far = hzp_cpu_fetches_far(),
                       .cuts = 1,
                       .group = a->heads.heads / a->heads.kv_heads,
                       .wide = pairs ? HZP_ROUND_UP(a->heads.dim, 32) : a->heads.dim,
                       .kv_each = a->heads.kv_heads};
    int threads = hzp_team_threads(team), most = INT32_MAX, parts;
    int64_t chunks = 0;

    for (int i = 0; i < a->segs.count; i++)
        chunks += chunks_of(a, i);
    if (threads > 1 && chunks > 0) {
        most = (int)HZP_MAX(chunks / (8 * threads), 1);
        w.cuts = (int)HZP_MIN(HZP_DIV_UP(4 * threads, chunks), a->heads.kv_heads);
        w.kv_each = HZP_DIV_UP(a->heads.kv_heads, w.cuts);
        w.cuts = HZP_DIV_UP(a->heads.kv_heads, w.kv_each);
    }
    w.pieces = pieces_cut(a, most, NULL, &parts);
    size_t list = HZP_ROUND_UP((size_t)w.pieces * sizeof(*w.piece), (size_t)64);
    size_t part = (size_t)parts * (size_t)w.cuts * state_floats(&w) * sizeof(float);
    HZP_TRY(hzp_team_reserve(team, list + part, own_floats(&w) * sizeof(float)));
    w.piece = hzp_team_shared(team);
    w.part = (float *)((char *)hzp_team_shared(team) + list);
    pieces_cut(a, most, w.piece, &parts);
    qsort(w.piece, (size_t)w.pieces, sizeof(*w.piece), by_length);
    hzp_team_run(team, w.pieces * w.cuts, piece_task, &w);
    if (parts > 0)
        hzp_team_run(team, w.pieces * w.cuts, merge_task, &w);
    return HZP_OK;
}

void HZP_ISA_NAME(hzp_cpu_fill_decode)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_attn_decode] = cpu_attn_decode;
}
