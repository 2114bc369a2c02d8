/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/sample.cuh - the candidates of a row, and how one block cuts them and draws.
 *
 * top_k and top_p keep all candidates from some key upwards, where a key is the logit's bits in a
 * form that compares as an integer, then the token, lower first: unique, so ties need no special
 * case.  top_k's is found digit by digit from the top, by counting the candidates of each digit.
 * top_p's is not needed: who wins among more candidates than it keeps, and is kept, wins among
 * those that it keeps; a winner that it leaves out rules out all from there downwards, and the
 * others draw again.  Weights are integers in units of 2^-45 of the likeliest candidate's weight: sums do not
 * depend on their order.
 *
 * Only sample.cu includes it.
 */
#pragma once

#include <float.h>

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
    unsigned long long all; /* weight of all */
    float mass[LEVELS];     /* weight of those down to each level, by about LEVEL_ERROR of it */
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

static constexpr float UNITS = 35184372088832.0f, LEVEL_ERROR = 1e-4f;

/* exp((logit - top) / temperature) in units of 2^-45. */
struct weigher {
    double top, per_degree;
    __device__ float share(float logit) const /* before it is rounded down to such a unit */
    {
        double x = ((double)logit - top) * per_degree;
        float hi = (float)x, lo = (float)(x - (double)hi);
        return hi > -40 ? expf(hi) * (1 + lo) * UNITS : 0;
    }
    __device__ unsigned long long operator()(float logit) const
    {
        return (unsigned long long)share(logit);
    }
};

/* The digit at which the amounts, from the last one down, reach `need`, and their sum above it. */
static __device__ void digit_find(const int *amount, int need, int *found)
{
    constexpr int EACH = DIGIT / 32;
    int lane = threadIdx.x, digit = DIGIT - 1 - EACH * lane, own = 0, sum;
    if (lane >= 32)
        return;
    for (int i = 0; i < EACH; i++)
        own += amount[digit - i];
    sum = own;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        int before = __shfl_up_sync(~0u, sum, by);
        sum += lane >= by ? before : 0;
    }
    unsigned reached = __ballot_sync(~0u, sum >= need);
    if (lane != (reached ? __ffs((int)reached) - 1 : 31))
        return;
    int above = sum - own;
    for (int last = digit - EACH + 1; digit > last && above + amount[digit] < need; digit--)
        above += amount[digit];
    found[0] = digit;
    found[1] = above;
}

/* The least of the `need` greatest keys. */
static __device__ uint64_t cut_find(const row_state &s, int need)
{
    HZP_SHARED(int, amount, [DIGIT]);
    HZP_SHARED(int, found, [2]);
    uint64_t prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < DIGIT; i += THREADS)
            amount[i] = 0;
        __syncthreads();
        each_candidate(s, [&](float logit, int token) {
            uint64_t key = key_of(logit, token);
            if (shift == 56 || key >> (shift + 8) == prefix)
                atomicAdd(&amount[key >> shift & 0xff], 1);
        });
        __syncthreads();
        digit_find(amount, need, found);
        __syncthreads();
        prefix = prefix << 8 | (uint64_t)found[0];
        need -= found[1];
    }
    return prefix;
}

/* The weight of the candidates from a key upwards. */
static __device__ unsigned long long mass_from(const row_state &s, const weigher &weight,
                                               uint64_t from)
{
    unsigned long long mass = 0;
    each_candidate(s, [&](float logit, int token) {
        if (key_of(logit, token) >= from)
            mass += weight(logit);
    });
    return block_sum(mass);
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

/* Adds a thread's candidate to what it counts down to each level.  Four numbers are in a word, that
 * of likely ones behind the levels', so that two blocks have room for all that on an SM. */
struct counted {
    unsigned long long all;
    float mass[LEVELS];
    uint32_t count[LEVELS / 4 + 1];
    __device__ __forceinline__ int number(int i) const
    {
        return (int)(count[i / 4] >> i % 4 * 8 & 0xff);
    }
    __device__ __forceinline__ void add(const weigher &weight, float logit)
    {
        float at = depth(weight, logit), w = weight.share(logit);
        unsigned long long whole = (unsigned long long)w;
        all += whole;
        count[LEVELS / 4] += (uint32_t)(whole > 0) << LEVELS % 4 * 8;
#pragma unroll
        for (int i = 0; i < LEVELS; i++)
            if (at <= level_depth(i)) {
                mass[i] += w;
                count[i / 4] += 1u << i % 4 * 8;
            }
    }
};

/* Called by all threads, which have `counted` each. */
static __device__ void levels_add(struct levels &to, const counted &mine)
{
    int lane = threadIdx.x % 32, count = 0, likely = warp_sum(mine.number(LEVELS));
    unsigned long long all = warp_sum(mine.all);
    float mass = 0;
#pragma unroll
    for (int i = 0; i < LEVELS; i++) {
        int n = warp_sum(mine.number(i));
        float m = warp_sum(mine.mass[i]);
        count = lane == i ? n : count;
        mass = lane == i ? m : mass;
    }
    if (count > 0) {
        atomicAdd(&to.count[lane], count);
        atomicAdd(&to.mass[lane], mass);
    }
    if (lane == 0 && likely > 0) {
        atomicAdd(&to.all, all);
        atomicAdd(&to.likely, likely);
    }
}

/* The depth of the first level that holds all that top_k and top_p keep, INFINITY if none does; and
 * how many candidates the level has. */
static __device__ float level_find(const struct hzp_sample_row *row, int vocab,
                                   const struct levels &of, int *ret_count)
{
    int wanted = row->top_k < of.likely ? row->top_k : of.likely;
    float need = row->top_p * (float)of.all * (1 + LEVEL_ERROR);
    bool by_number = row->top_k > 0 && row->top_k < vocab;
    float ret = INFINITY;
    *ret_count = vocab;
#pragma unroll
    for (int i = LEVELS - 1; i >= 0; i--)
        if (by_number ? of.count[i] >= wanted : of.mass[i] >= need) {
            ret = level_depth(i);
            *ret_count = of.count[i];
        }
    return ret;
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

/* Who wins a draw; NO_TOKEN's token: nobody takes part. */
struct winner {
    int token;
    float logit;
};

/* The winner among the candidates from a key upwards that min_p keeps. */
static __device__ winner winner_from(const row_state &s, const weigher &weight, uint64_t from)
{
    HZP_SHARED(float, found);
    const struct hzp_sample_row *row = s.row;
    double least = least_of(row);
    float most = -INFINITY, next = -INFINITY;
    winner first = {0, 0};
    auto rough = [&](float logit, int token) {
        double below = ((double)logit - weight.top) * weight.per_degree;
        bool kept = key_of(logit, token) >= from && logit > -INFINITY &&
                    (least == -INFINITY || below >= least);
        return kept ? (float)below + rough_noise(row->seed, token, row->position, row->choice)
                    : -INFINITY;
    };
    each_candidate(s, [&](float logit, int token) {
        float key = rough(logit, token);
        next = fmaxf(next, fminf(key, most));
        if (key > most) {
            most = key;
            first = {token, logit};
        }
    });
    /* Every float key is within `MARGIN` of the double one, less the largest logit's; a token
     * further below the maximum cannot win. */
    float close = fmaxf(block_max(most) - MARGIN, -FLT_MAX);
    best mine = NO_TOKEN;
    auto take = [&](float logit, int token) {
        best_take(mine, score_of(row, logit, token), token);
        if (mine.token == token)
            first = {token, logit};
    };
    if (block_max(next) >= close) /* a thread has two that are close */
        each_candidate(s, [&](float logit, int token) {
            if (rough(logit, token) >= close)
                take(logit, token);
        });
    else if (most >= close)
        take(first.logit, first.token);
    int token = block_best(mine).token;
    if (mine.token == token && token != NO_TOKEN.token)
        found = first.logit;
    __syncthreads();
    return {token, found};
}

/* Draws among the candidates that top_k, top_p and min_p keep.  total: the weight of all; first:
 * the winner among these and others that min_p keeps, if it is known. */
static __device__ int draw_kept(const row_state &s, const weigher &weight, const best &top,
                                unsigned long long total, winner first)
{
    const struct hzp_sample_row *row = s.row;
    uint64_t from = 0;
    unsigned long long need = ~0ull;
    if (row->top_k > 0 && row->top_k < s.vocab)
        from = cut_find(s, row->top_k);
    if (row->top_p < 1)
        need = (unsigned long long)fmax(
            ceil((double)row->top_p * (double)(from ? mass_from(s, weight, from) : total)), 1.0);
    for (bool known = first.token != NO_TOKEN.token;; known = false) {
        if (!known)
            first = winner_from(s, weight, from);
        if (first.token == NO_TOKEN.token)
            return top.token;
        uint64_t key = key_of(first.logit, first.token);
        if (key >= from) {
            if (need == ~0ull || mass_from(s, weight, key + 1) < need)
                return first.token;
            from = key + 1;
        }
    }
}
