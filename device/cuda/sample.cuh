/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/sample.cuh - the candidates of a row, and how one block cuts them and draws.
 *
 * top_k and top_p keep all candidates from some key upwards, where a key is the logit's bits in a
 * form that compares as an integer, then the token, lower first: unique, so ties need no special
 * case.  The key is found digit by digit from the top, by counting (top_k) or by summing the
 * weights (top_p) of the candidates of each digit. Weights are integers in units of 2^-45 of the
 * likeliest candidate's weight: sums do not depend on their order.
 *
 * Only sample.cu includes it.
 */
#ifndef HZP_DEVICE_CUDA_SAMPLE_CUH
#define HZP_DEVICE_CUDA_SAMPLE_CUH

#include "device/cuda/kernel.cuh"
#include "device/philox.h"

enum { THREADS = 512, DIGIT = 256, LIST = 3072, LEVELS = 15 };

/* The candidates that top_k and top_p can keep, if these are few. */
struct shortlist {
    int count;
    float logit[LIST];
    int token[LIST];
};

/* Candidates of a row by their distance below the likeliest. */
struct levels {
    unsigned long long all, mass[LEVELS]; /* weight of all; of those down to each level */
    int count[LEVELS];
    int likely; /* candidates that can be drawn */
};

struct row_state {
    const float *logit;
    const uint32_t
        *plain; /* bitmap: candidates without an edit; NULL: not made, or every token is one */
    const uint32_t *mask; /* the row's; NULL: every token is a candidate */
    const struct hzp_sample_row *row;
    const struct hzp_logit_edit *edit;
    int vocab;
    const shortlist *list; /* NULL: the whole vocabulary */
};

static __device__ __forceinline__ float sane(float x)
{
    return isnan(x) ? -INFINITY : x;
}

static __device__ float edited_logit(const row_state &s, const struct hzp_logit_edit &e)
{
    double l = (double)sane(s.logit[e.token]) + (double)e.bias;
    if (e.seen)
        l = l > 0 ? l / (double)s.row->repetition : l * (double)s.row->repetition;
    l -= (double)s.row->presence * (e.count_out > 0) + (double)s.row->frequency * e.count_out;
    return sane((float)l);
}

static __device__ __forceinline__ bool has(const uint32_t *bitmap, int token)
{
    return bitmap[token / 32] >> (token % 32) & 1;
}

/* Calls f(logit, token) for every candidate, each in one thread. */
template <class F> static __device__ __forceinline__ void each_candidate(const row_state &s, F f)
{
    if (s.list) {
        for (int i = threadIdx.x; i < s.list->count; i += THREADS)
            f(s.list->logit[i], s.list->token[i]);
        return;
    }
    if (!s.plain) {
        for (int i = threadIdx.x; i < s.vocab; i += THREADS)
            f(sane(s.logit[i]), i);
        return;
    }
    for (int i = threadIdx.x; i < s.vocab; i += THREADS)
        if (has(s.plain, i))
            f(sane(s.logit[i]), i);
    for (int i = threadIdx.x; i < s.row->edits; i += THREADS) {
        const struct hzp_logit_edit &e = s.edit[s.row->edit0 + i];
        if (!s.mask || has(s.mask, e.token))
            f(edited_logit(s, e), e.token);
    }
}

/* The larger value wins; ties by the lower token. */
struct best {
    double value;
    int token;
};

static constexpr best NO_TOKEN = {-INFINITY, 0x7fffffff};

static __device__ __forceinline__ void best_take(best &b, double value, int token)
{
    if (value > b.value || (value == b.value && token < b.token)) {
        b.value = value;
        b.token = token;
    }
}

static __device__ best block_best(best b)
{
    HZP_SHARED(best, part, [THREADS / 32]);
#pragma unroll
    for (int m = 16; m > 0; m /= 2)
        best_take(b, __shfl_xor_sync(~0u, b.value, m), __shfl_xor_sync(~0u, b.token, m));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = b;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        best_take(b, part[i].value, part[i].token);
    return b;
}

/* A greater logit has a greater key; of equal logits the lower token has the greater key. */
static __device__ __forceinline__ uint64_t key_of(float logit, int token)
{
    uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~token;
}

/* exp((logit - top) / temperature) in units of 2^-45. */
struct weigher {
    double top, per_degree;
    __device__ unsigned long long operator()(float logit) const
    {
        double x = ((double)logit - top) * per_degree;
        float hi = (float)x, lo = (float)(x - (double)hi);
        if (!(hi > -40))
            return 0;
        return (unsigned long long)((double)(expf(hi) * (1 + lo)) * 35184372088832.0);
    }
};

/* The digit at which the amounts, from the last one down, reach `need`, and their sum above it. */
static __device__ void digit_find(const unsigned long long *amount, unsigned long long need,
                                  unsigned long long *found)
{
    constexpr int EACH = DIGIT / 32;
    int lane = threadIdx.x, digit = DIGIT - 1 - EACH * lane;
    unsigned long long own = 0, sum;
    if (lane >= 32)
        return;
    for (int i = 0; i < EACH; i++)
        own += amount[digit - i];
    sum = own;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        unsigned long long before = __shfl_up_sync(~0u, sum, by);
        sum += lane >= by ? before : 0;
    }
    unsigned reached = __ballot_sync(~0u, sum >= need);
    if (lane != (reached ? __ffs((int)reached) - 1 : 31))
        return;
    unsigned long long above = sum - own;
    for (int last = digit - EACH + 1; digit > last && above + amount[digit] < need; digit--)
        above += amount[digit];
    found[0] = (unsigned long long)digit;
    found[1] = above;
}

/* The least key such that the candidates from it upwards, but not without it, reach `need`: by
 * number, or (BY_WEIGHT) by weight.  Only keys from `from` upwards count. */
template <bool BY_WEIGHT>
static __device__ uint64_t cut_find(const row_state &s, const weigher &weight, uint64_t from,
                                    unsigned long long need)
{
    HZP_SHARED(unsigned long long, amount, [DIGIT]);
    HZP_SHARED(unsigned long long, found, [2]);
    uint64_t prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < DIGIT; i += THREADS)
            amount[i] = 0;
        __syncthreads();
        each_candidate(s, [&](float logit, int token) {
            uint64_t key = key_of(logit, token);
            if (key < from || (shift < 56 && key >> (shift + 8) != prefix))
                return;
            unsigned long long w = BY_WEIGHT ? weight(logit) : 1;
            if (w)
                atomicAdd(&amount[key >> shift & 0xff], w);
        });
        __syncthreads();
        digit_find(amount, need, found);
        __syncthreads();
        prefix = prefix << 8 | found[0];
        need -= found[1];
    }
    return prefix;
}

/* The distance below the likeliest, in units of the temperature. */
static __device__ __forceinline__ float depth(const weigher &weight, float logit)
{
    return (float)((weight.top - (double)logit) * weight.per_degree);
}

static __device__ __forceinline__ constexpr float level_depth(int i)
{
    constexpr float depth[LEVELS] = {0.25f, 0.5f, 1, 1.5f, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 28};
    return depth[i];
}

/* Whether top_k or top_p leaves some out. */
static __device__ __forceinline__ bool cuts_some(const struct hzp_sample_row *row, int vocab)
{
    return (row->top_k > 0 && row->top_k < vocab) || row->top_p < 1;
}

/* Adds a thread's candidate to what it counts down to each level. */
struct counted {
    unsigned long long mass[LEVELS], all;
    int count[LEVELS], likely;
    __device__ __forceinline__ void add(const weigher &weight, float logit)
    {
        float at = depth(weight, logit);
        unsigned long long w = weight(logit);
        all += w;
        likely += w > 0;
#pragma unroll
        for (int i = 0; i < LEVELS; i++)
            if (at <= level_depth(i)) {
                mass[i] += w;
                count[i]++;
            }
    }
};

/* Called by all threads, which have `counted` each; levels in shared memory. */
static __device__ void levels_add(struct levels &to, const counted &mine)
{
    bool first = threadIdx.x % 32 == 0;
    unsigned long long all = warp_sum(mine.all);
    int likely = warp_sum(mine.likely);
    if (first && likely > 0) {
        atomicAdd(&to.all, all);
        atomicAdd(&to.likely, likely);
    }
#pragma unroll
    for (int i = 0; i < LEVELS; i++) {
        int count = warp_sum(mine.count[i]);
        unsigned long long mass = warp_sum(mine.mass[i]);
        if (first && count > 0) {
            atomicAdd(&to.count[i], count);
            atomicAdd(&to.mass[i], mass);
        }
    }
}

static __device__ void levels_clear(struct levels &l)
{
    int i = threadIdx.x;
    if (i == 0)
        l.all = 0, l.likely = 0;
    if (i < LEVELS)
        l.mass[i] = 0, l.count[i] = 0;
}

static __device__ void levels_merge(struct levels &to, const struct levels &from)
{
    int i = threadIdx.x;
    if (i == 0) {
        atomicAdd(&to.all, from.all);
        atomicAdd(&to.likely, from.likely);
    }
    if (i < LEVELS && from.count[i] > 0) {
        atomicAdd(&to.mass[i], from.mass[i]);
        atomicAdd(&to.count[i], from.count[i]);
    }
}

/* The first level whose candidates suffice and are at most LIST; false: there is none. */
static __device__ bool level_find(const struct hzp_sample_row *row, int vocab,
                                  const struct levels &of, float *ret_depth)
{
    int wanted = row->top_k < of.likely ? row->top_k : of.likely;
    unsigned long long need = (unsigned long long)ceil((double)row->top_p * (double)of.all);
    bool by_number = row->top_k > 0 && row->top_k < vocab;
    for (int i = 0; i < LEVELS; i++)
        if ((by_number ? of.count[i] >= wanted : of.mass[i] >= need) && of.count[i] <= LIST) {
            *ret_depth = level_depth(i);
            return true;
        }
    return false;
}

/* The least key that top_k and top_p keep.  total: the weight of the whole vocabulary. */
static __device__ uint64_t cut_key(const row_state &s, const weigher &weight,
                                   unsigned long long total)
{
    const struct hzp_sample_row *row = s.row;
    uint64_t from = 0;
    if (row->top_k > 0 && row->top_k < s.vocab)
        from = cut_find<false>(s, weight, 0, (unsigned long long)row->top_k);
    if (row->top_p < 1) {
        unsigned long long all = 0;
        each_candidate(s, [&](float logit, int token) {
            if (key_of(logit, token) >= from)
                all += weight(logit);
        });
        all = from ? block_sum(all) : total;
        unsigned long long need = (unsigned long long)ceil((double)row->top_p * (double)all);
        uint64_t key = cut_find<true>(s, weight, from, need ? need : 1);
        from = key > from ? key : from;
    }
    return from;
}

/* Keys of a draw in float differ from those in double by at most this. */
static constexpr float MARGIN = 1e-4f;

/* Gumbel noise in float, accurate enough to find the tokens that can win; 1 - u is exact if u is
 * near 1. */
static __device__ __forceinline__ float rough_noise(uint64_t seed, int token, uint32_t position,
                                                    uint32_t choice)
{
    uint32_t w = hzp_philox(seed, (uint32_t)token, position, choice, 0);
    float minus_log = w >= 0x80000000u ? -log1pf(-((float)~w + 0.5f) * 2.3283064e-10f)
                                       : -logf(((float)w + 0.5f) * 2.3283064e-10f);
    return -logf(minus_log);
}

/* The logarithm of min_p; -INFINITY: there is none. */
static __device__ __forceinline__ double least_of(const struct hzp_sample_row *row)
{
    return row->min_p > 0 ? log((double)row->min_p) : -INFINITY;
}

/* What the draw compares, as the reference computes it. */
static __device__ __forceinline__ double score_of(const struct hzp_sample_row *row, float logit,
                                                  int token)
{
    return (double)logit / (double)row->temperature +
           hzp_draw_noise(row->seed, (uint32_t)token, row->position, row->choice);
}

/* Draws among the candidates that top_k, top_p and min_p keep.  total: the weight of all. */
static __device__ int draw_kept(const row_state &s, const weigher &weight, const best &top,
                                unsigned long long total)
{
    const struct hzp_sample_row *row = s.row;
    uint64_t from = cuts_some(row, s.vocab) ? cut_key(s, weight, total) : 0;
    double least = least_of(row);
    auto kept = [&](float logit, int token) {
        return key_of(logit, token) >= from && logit > -INFINITY &&
               (least == -INFINITY || ((double)logit - top.value) * weight.per_degree >= least);
    };
    /* Every float key is within `MARGIN` of the double one, less the largest logit's; a token
     * further below the maximum cannot win. */
    float rough = -INFINITY;
    auto rough_key = [&](float logit, int token) {
        return (float)(((double)logit - top.value) * weight.per_degree) +
               rough_noise(row->seed, token, row->position, row->choice);
    };
    each_candidate(s, [&](float logit, int token) {
        if (kept(logit, token))
            rough = fmaxf(rough, rough_key(logit, token));
    });
    rough = block_max(rough);
    best winner = NO_TOKEN;
    each_candidate(s, [&](float logit, int token) {
        if (kept(logit, token) && rough_key(logit, token) >= rough - MARGIN)
            best_take(winner, score_of(row, logit, token), token);
    });
    winner = block_best(winner);
    return winner.token == NO_TOKEN.token ? top.token : winner.token;
}

#endif
