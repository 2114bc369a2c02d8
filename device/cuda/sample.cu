/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/sample.cu - samples one token per row from logits, and the reported
 * log-probabilities: one block per row.
 *
 * Logits are only read.  A bitmap in shared memory has the candidates without an edit; a pass over
 * the candidates visits these among the logits and then the others through the edit list.
 *
 * top_k and top_p keep all candidates from some key upwards, where a key is the logit's bits in a
 * form that compares as an integer, then the token, lower first: unique, so ties need no special
 * case.  The key is found digit by digit from the top, by counting (top_k) or by summing the
 * weights (top_p) of the candidates of each digit. Weights are integers in units of 2^-45 of the
 * likeliest candidate's weight: sums do not depend on their order.
 */
#include "device/cuda/kernel.cuh"
#include "device/philox.h"

enum { THREADS = 512, DIGIT = 256, LIST = 3072, LEVELS = 15 };

/* The candidates that top_k and top_p can keep, if these are few. */
struct shortlist {
    int count;
    float logit[LIST];
    int token[LIST];
};

struct row_state {
    const float *logit;
    const uint32_t *plain; /* bitmap: candidates without an edit; NULL: every token is one */
    const uint32_t *mask;  /* the row's; NULL: every token is a candidate */
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
        if (threadIdx.x == 0) {
            int digit = DIGIT - 1;
            unsigned long long above = 0;
            while (digit > 0 && above + amount[digit] < need)
                above += amount[digit--];
            found[0] = (unsigned long long)digit;
            found[1] = above;
        }
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

/* Lists the candidates that can be kept, so that the search for the key need not scan the whole
 * vocabulary repeatedly. One pass counts and weighs the candidates down to each of several depths;
 * the first depth that suffices decides.  If that would be more than LIST candidates, s stays
 * unchanged.  Returns the weight of the whole vocabulary. */
static __device__ unsigned long long list_make(row_state &s, const weigher &weight, shortlist *list)
{
    constexpr float level[LEVELS] = {0.25f, 0.5f, 1, 1.5f, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 28};
    const struct hzp_sample_row *row = s.row;
    unsigned long long mass[LEVELS] = {}, all = 0;
    int count[LEVELS] = {}, chosen = -1, likely = 0; /* likely: candidates that can be drawn */
    each_candidate(s, [&](float logit, int token) {
        float at = depth(weight, logit);
        unsigned long long w = weight(logit);
        all += w;
        likely += w > 0;
#pragma unroll
        for (int i = 0; i < LEVELS; i++)
            if (at <= level[i]) {
                mass[i] += w;
                count[i]++;
            }
    });
    all = block_sum(all);
    likely = block_sum(likely);
    int wanted = row->top_k < likely ? row->top_k : likely;
    float floor = 0;
    unsigned long long need = (unsigned long long)ceil((double)row->top_p * (double)all);
#pragma unroll
    for (int i = 0; i < LEVELS; i++) {
        int c = block_sum(count[i]);
        unsigned long long m = block_sum(mass[i]);
        bool deep = row->top_k > 0 && row->top_k < s.vocab ? c >= wanted : m >= need;
        if (chosen < 0 && deep && c <= LIST) {
            chosen = i;
            floor = level[i];
        }
    }
    if (chosen < 0)
        return all;
    if (threadIdx.x == 0)
        list->count = 0;
    __syncthreads();
    each_candidate(s, [&](float logit, int token) {
        if (depth(weight, logit) <= floor) {
            int at = atomicAdd(&list->count, 1);
            list->logit[at] = logit;
            list->token[at] = token;
        }
    });
    __syncthreads();
    s.list = list;
    return all;
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

static __device__ int draw(row_state s, shortlist *list)
{
    const struct hzp_sample_row *row = s.row;
    best top = {-INFINITY, 0x7fffffff};
    each_candidate(s, [&](float logit, int token) { best_take(top, logit, token); });
    top = block_best(top);
    if (top.value == -INFINITY || !(row->temperature > 0)) /* ties by the lower token */
        return top.token < s.vocab ? top.token : 0;

    weigher weight = {top.value, 1.0 / (double)row->temperature};
    uint64_t from = 0;
    if ((row->top_k > 0 && row->top_k < s.vocab) || row->top_p < 1) {
        unsigned long long total = list_make(s, weight, list);
        from = cut_key(s, weight, total);
    }
    double least = row->min_p > 0 ? log((double)row->min_p) : -INFINITY;
    auto kept = [&](float logit, int token) {
        return key_of(logit, token) >= from && logit > -INFINITY &&
               (least == -INFINITY || ((double)logit - top.value) * weight.per_degree >= least);
    };
    /* Every float key is within `margin` of the double one; a token further below the maximum
     * cannot win. */
    float margin = 1e-4f + 1e-6f * (float)(fabs(top.value) * weight.per_degree), rough = -INFINITY;
    auto rough_key = [&](float logit, int token) {
        return (float)((double)logit * weight.per_degree) +
               rough_noise(row->seed, token, row->position, row->choice);
    };
    each_candidate(s, [&](float logit, int token) {
        if (kept(logit, token))
            rough = fmaxf(rough, rough_key(logit, token));
    });
    rough = block_max(rough);
    best winner = {-INFINITY, 0x7fffffff};
    each_candidate(s, [&](float logit, int token) {
        if (kept(logit, token) && rough_key(logit, token) >= rough - margin)
            best_take(winner,
                      (double)logit / (double)row->temperature +
                          hzp_draw_noise(row->seed, (uint32_t)token, row->position, row->choice),
                      token);
    });
    winner = block_best(winner);
    return winner.token == 0x7fffffff ? top.token : winner.token;
}

/* Makes the bitmap of candidates without an edit, if it is needed. */
static __device__ void plain_make(row_state &s, uint32_t *plain)
{
    if (s.row->edits == 0 && !s.mask)
        return;
    for (int i = threadIdx.x; i < hzp_mask_words(s.vocab); i += THREADS)
        plain[i] = s.mask ? s.mask[i] : ~0u;
    __syncthreads();
    for (int i = threadIdx.x; i < s.row->edits; i += THREADS) {
        int token = s.edit[s.row->edit0 + i].token;
        atomicAnd(&plain[token / 32], ~(1u << (token % 32)));
    }
    __syncthreads();
    s.plain = plain;
}

/* log sum exp of the raw logits; NaN if one of them is not finite. */
static __device__ double raw_lse(const row_state &s)
{
    float top = -INFINITY, sum = 0;
    int odd = 0;
    for (int i = threadIdx.x; i < s.vocab; i += THREADS) {
        float x = sane(s.logit[i]);
        odd += !isfinite(s.logit[i]);
        if (x > top) {
            sum *= expf(top - x);
            top = x;
        }
        if (x > -INFINITY)
            sum += expf(x - top);
    }
    float all = block_max(top);
    double mass = block_sum(top > -INFINITY ? (double)sum * exp((double)top - all) : 0.0);
    return block_sum(odd) ? (double)NAN : (double)all + log(mass);
}

/* The likeliest tokens by the raw logits, in descending order. */
static __device__ void report_tops(const row_state &s, double lse, int32_t *token, float *logprob)
{
    uint64_t below = ~(uint64_t)0;
    for (int k = 0; k < s.row->tops && k < s.vocab; k++) {
        best b = {-INFINITY, 0x7fffffff};
        bool any = false;
        for (int i = threadIdx.x; i < s.vocab; i += THREADS) {
            float x = sane(s.logit[i]);
            if (key_of(x, i) < below) {
                best_take(b, x, i);
                any = true;
            }
        }
        if (!any)
            b.token = 0x7fffffff;
        b = block_best(b);
        below = key_of((float)b.value, b.token);
        if (threadIdx.x == 0) {
            token[k] = b.token;
            logprob[k] = (float)(b.value - lse);
        }
    }
}

static __global__ void __launch_bounds__(THREADS) sample(struct hzp_sample_args a)
{
    HZP_SHARED_DYNAMIC(uint32_t, plain);
    HZP_SHARED(struct hzp_sample_row, row);
    HZP_SHARED(shortlist, list);
    int r = blockIdx.x;
    if (threadIdx.x == 0)
        row = a.row[r];
    __syncthreads();
    int vocab = a.logits.cols;
    const uint32_t *mask =
        row.mask ? a.mask + (int64_t)(row.mask - 1) * hzp_mask_words(vocab) : nullptr;
    row_state s = {row_of<float>(a.logits, r), nullptr, mask, &row, a.edit, vocab, nullptr};
    int token = row.given;
    if (token < 0) {
        plain_make(s, plain);
        token = draw(s, &list);
    }
    double lse = raw_lse(s);
    float logit = sane(s.logit[token]);
    int above = 0;
    for (int i = threadIdx.x; i < s.vocab; i += THREADS)
        above += sane(s.logit[i]) > logit;
    above = block_sum(above);
    if (threadIdx.x == 0) {
        a.token[r] = token;
        a.logprob[r] = (float)((double)logit - lse);
        a.rank[r] = 1 + above;
    }
    if (row.tops > 0)
        report_tops(s, lse, a.top_token + (int64_t)r * HZP_TOPS_MAX,
                    a.top_logprob + (int64_t)r * HZP_TOPS_MAX);
}

extern "C" int hzp_cuda_sample(struct hzp_lane *lane, const void *args)
{
    const struct hzp_sample_args *a = (const struct hzp_sample_args *)args;
    if (a->logits.rows == 0)
        return HZP_OK;
    size_t bitmap = (size_t)hzp_mask_words(a->logits.cols) * sizeof(uint32_t);
    static bool raised; /* static: there is one engine thread and one kind of device */
    if (!raised) {
        struct cudaFuncAttributes now;
        HZP_TRY(
            hzp_cuda_check(hzp_cuda_device(lane), cudaFuncGetAttributes(&now, sample), "sample"));
        int room = hzp_cuda_device(lane)->shared_max - (int)now.sharedSizeBytes;
        HZP_TRY(hzp_cuda_check(
            hzp_cuda_device(lane),
            cudaFuncSetAttribute(sample, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
            "sample"));
        raised = true;
    }
    start(lane, a->logits.rows, THREADS, bitmap, sample, *a);
    return hzp_cuda_launched(lane, "sample");
}
