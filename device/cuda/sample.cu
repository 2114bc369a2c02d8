/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/sample.cu - samples one token per row from logits, and the reported
 * log-probabilities.
 *
 * Logits are only read.  A row is divided into parts of SLICE tokens, a block each, so that a draw
 * uses many SMs; what the parts find is in the lane's scratch memory.  Five kernels:
 *
 *   sample_survey  of each part the largest logit, the sum of exponentials, and the likeliest
 *                  candidate; the winner of a draw without cuts
 *   sample_weigh   draws with cuts: how many candidates, and of what weight, are how far below the
 *                  row's likeliest; with min_p alone the winner
 *   sample_list    top_k and top_p: the row's candidates that these can keep; where they are more
 *                  than a list holds, the winner of a draw among them
 *   sample_settle  one block per row: the token from all that, and its log-probability
 *   sample_rank    the token's rank, where it is not the likeliest
 *
 * What is launched depends on rows and vocabulary only, so it can be captured; a block that a row
 * does not need ends at once.  Of a row with edits or a mask, each part has its candidates' logits
 * in shared memory, with the edits that fall into it.  Only where top_k and top_p keep more than a
 * list holds does sample_settle visit the whole vocabulary, most often once, for the weight of what
 * is likelier than the winner: a bitmap in shared memory has the candidates without an edit; a pass
 * visits these among the logits and then the others through the edit list.
 */
#include "device/cuda/sample.cuh"

enum { PER = 16, SLICE = THREADS * PER };

/* What a part of a row found. */
struct part {
    double mass;          /* sum of exp(logit - top) */
    double score;         /* the part's winner's; -INFINITY: it has none */
    float top, likeliest; /* the largest logit, and the largest of a candidate */
    float logit;          /* the winner's */
    int top_token, likeliest_token, winner;
    int odd; /* logits that are not finite */
};

/* How a token that is not the likeliest is ranked. */
struct ranking {
    int token; /* -1: it is the likeliest */
    int above, parts;
};

/* Arrays of the rows of one launch, in the lane's scratch memory. */
struct sample_args {
    struct hzp_sample_args a;
    struct part *part; /* [rows][parts] */
    struct levels *levels;
    struct shortlist *list;
    struct ranking *ranking;
    int parts;
};

static __device__ __forceinline__ row_state state_of(const struct hzp_sample_args &a, int r)
{
    const struct hzp_sample_row *row = a.row + r;
    int vocab = a.logits.cols;
    const uint32_t *mask =
        row->mask ? a.mask + (int64_t)(row->mask - 1) * hzp_mask_words(vocab) : nullptr;
    return {row_of<float>(a.logits, r), nullptr, mask, row, a.edit, vocab, nullptr};
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

/* ---- a part of a row ---- */

/* A row whose token is drawn at random. */
static __device__ __forceinline__ bool is_drawn(const struct hzp_sample_row *row)
{
    return row->given < 0 && row->temperature > 0;
}

/* A row whose candidates are not its logits. */
static __device__ __forceinline__ bool is_edited(const struct hzp_sample_row *row)
{
    return row->given < 0 && (row->edits > 0 || row->mask);
}

/* The block's part: the logits of its candidates, token `first` + i THREADS at i; -INFINITY or NaN
 * where there is none. */
struct slice {
    float x[PER];
    const float *value; /* the same in memory, [i THREADS] */
    int first, odd;     /* odd: of this thread's logits, how many are not finite */
};

/* Every token is a candidate, without edits. */
static __device__ __forceinline__ void slice_load(const struct hzp_mat &logits, slice &ret)
{
    ret.first = blockIdx.x * SLICE + threadIdx.x;
    ret.value = row_of<float>(logits, blockIdx.y) + ret.first;
    ret.odd = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        bool there = ret.first + i * THREADS < logits.cols;
        float x = there ? ret.value[i * THREADS] : 0;
        ret.odd += !isfinite(x);
        ret.x[i] = there ? sane(x) : -INFINITY;
    }
}

/* Takes the row's mask and edits into account. */
static __device__ void slice_edit(const struct hzp_sample_args &a, slice &x)
{
    HZP_SHARED(float, value, [SLICE]);
    row_state s = state_of(a, blockIdx.y);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int token = x.first + i * THREADS;
        bool candidate = token < s.vocab && (!s.mask || has(s.mask, token));
        value[threadIdx.x + i * THREADS] = candidate ? x.x[i] : NAN;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < s.row->edits; i += THREADS) {
        const struct hzp_logit_edit &e = s.edit[s.row->edit0 + i];
        int at = e.token - (int)blockIdx.x * SLICE;
        if (at >= 0 && at < SLICE && !isnan(value[at]))
            value[at] = edited_logit(s, e);
    }
    __syncthreads();
    x.value = value + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER; i++)
        x.x[i] = x.value[i * THREADS];
}

/* The part of the row's candidates. */
static __device__ __forceinline__ void slice_candidates(const struct hzp_sample_args &a, slice &ret)
{
    slice_load(a.logits, ret);
    if (is_edited(a.row + blockIdx.y))
        slice_edit(a, ret);
}

/* The part's token with the largest logit. */
static __device__ best slice_best(const slice &x)
{
    best top = NO_TOKEN;
#pragma unroll
    for (int i = 0; i < PER; i++)
        best_take(top, x.x[i], x.first + i * THREADS);
    return block_best(top);
}

/* Draws among the part's tokens that min_p keeps, and that are no deeper than `floor`. */
static __device__ __forceinline__ void slice_draw(const slice &s, const struct hzp_sample_row *row,
                                                  const weigher &weight, float floor,
                                                  struct part *part)
{
    double least = least_of(row);
    float rough[PER], most = -INFINITY;
    unsigned close = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        double below = ((double)s.x[i] - weight.top) * weight.per_degree;
        bool kept = s.x[i] > -INFINITY && (least == -INFINITY || below >= least) &&
                    depth(weight, s.x[i]) <= floor;
        rough[i] = kept ? (float)below + rough_noise(row->seed, s.first + i * THREADS,
                                                     row->position, row->choice)
                        : -INFINITY;
        most = fmaxf(most, rough[i]);
    }
    most = block_max(most);
    best winner = NO_TOKEN;
#pragma unroll
    for (int i = 0; i < PER; i++)
        close |= (unsigned)(rough[i] > -INFINITY && rough[i] >= most - MARGIN) << i;
    for (; close; close &= close - 1) {
        int at = (__ffs((int)close) - 1) * THREADS, token = s.first + at;
        best_take(winner, score_of(row, s.value[at], token), token);
    }
    winner = block_best(winner);
    if (threadIdx.x == 0 && winner.token != NO_TOKEN.token) {
        part->score = winner.value;
        part->winner = winner.token;
        part->logit = s.value[winner.token - s.first];
    }
}

/* The token with the largest logit of the whole row, or its likeliest candidate. */
static __device__ best row_top(const struct sample_args &s, int r, bool candidate)
{
    const struct part *part = s.part + (int64_t)r * s.parts;
    best top = NO_TOKEN;
    for (int i = 0; i < s.parts; i++)
        best_take(top, candidate ? part[i].likeliest : part[i].top,
                  candidate ? part[i].likeliest_token : part[i].top_token);
    return top;
}

static __global__ void __launch_bounds__(THREADS) sample_survey(struct sample_args s)
{
    wait_for_earlier();
    let_next_begin();
    int r = blockIdx.y;
    const struct hzp_sample_row *row = s.a.row + r;
    slice x;
    slice_load(s.a.logits, x);
    best top = slice_best(x), likeliest = top;
    struct part *part = s.part + (int64_t)r * s.parts + blockIdx.x;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++)
        sum += x.x[i] > -INFINITY ? expf(x.x[i] - (float)top.value) : 0;
    double mass = block_sum((double)sum);
    int odd = block_sum(x.odd);
    if (is_edited(row)) {
        slice_edit(s.a, x);
        likeliest = slice_best(x);
    }
    if (threadIdx.x == 0)
        *part = {mass, NO_TOKEN.value, (float)top.value, (float)likeliest.value,
                 0,    top.token,      likeliest.token,  NO_TOKEN.token,
                 odd};
    if (is_drawn(row) && isfinite(likeliest.value) && !cuts_some(row, s.a.logits.cols) &&
        !(row->min_p > 0))
        slice_draw(x, row, weigher{likeliest.value, 1.0 / (double)row->temperature}, INFINITY,
                   part);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        s.levels[r] = {};
        s.list[r].count = 0;
        s.ranking[r] = {-1, 0, 0};
    }
}

static __global__ void __launch_bounds__(THREADS, 2) sample_weigh(struct sample_args s)
{
    wait_for_earlier();
    let_next_begin();
    int r = blockIdx.y;
    const struct hzp_sample_row *row = s.a.row + r;
    bool cuts = cuts_some(row, s.a.logits.cols);
    if (!is_drawn(row) || !(cuts || row->min_p > 0))
        return;
    best top = row_top(s, r, true);
    if (!isfinite(top.value))
        return;
    weigher weight = {top.value, 1.0 / (double)row->temperature};
    slice x;
    slice_candidates(s.a, x);
    if (!cuts) {
        slice_draw(x, row, weight, INFINITY, s.part + (int64_t)r * s.parts + blockIdx.x);
        return;
    }
    counted mine = {};
#pragma unroll
    for (int i = 0; i < PER; i++)
        mine.add(weight, x.x[i]);
    levels_add(s.levels[r], mine);
}

static __global__ void __launch_bounds__(THREADS) sample_list(struct sample_args s)
{
    wait_for_earlier();
    let_next_begin();
    int r = blockIdx.y, vocab = s.a.logits.cols;
    const struct hzp_sample_row *row = s.a.row + r;
    if (!is_drawn(row) || !cuts_some(row, vocab))
        return;
    slice x;
    slice_candidates(s.a, x);
    best top = row_top(s, r, true);
    int count;
    if (!isfinite(top.value))
        return;
    weigher weight = {top.value, 1.0 / (double)row->temperature};
    float floor = level_find(row, vocab, s.levels[r], &count);
    if (count > LIST) {
        slice_draw(x, row, weight, floor, s.part + (int64_t)r * s.parts + blockIdx.x);
        return;
    }
    shortlist &list = s.list[r];
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (depth(weight, x.x[i]) <= floor) {
            int at = atomicAdd(&list.count, 1);
            list.logit[at] = x.x[i];
            list.token[at] = x.first + i * THREADS;
        }
}

/* ---- a row ---- */

/* The token of a row for which none is given.  plain: room for a bitmap. */
static __device__ int draw(row_state s, const struct sample_args &all, uint32_t *plain,
                           shortlist *list)
{
    const struct hzp_sample_row *row = s.row;
    int r = blockIdx.x;
    best top = row_top(all, r, true);
    if (!isfinite(top.value) || !(row->temperature > 0)) /* ties by the lower token */
        return top.token < s.vocab ? top.token : 0;
    const struct part *part = all.part + (int64_t)r * all.parts;
    best won = NO_TOKEN;
    for (int i = 0; i < all.parts; i++)
        best_take(won, part[i].score, part[i].winner);
    if (!cuts_some(row, s.vocab))
        return won.token == NO_TOKEN.token ? top.token : won.token;
    winner first = {won.token, won.token == NO_TOKEN.token ? 0 : part[won.token / SLICE].logit};
    const shortlist &kept = all.list[r];
    int count = kept.count;
    if (threadIdx.x == 0)
        list->count = count;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        list->logit[i] = kept.logit[i];
        list->token[i] = kept.token[i];
    }
    __syncthreads();
    if (count > 0)
        s.list = list;
    else
        plain_make(s, plain);
    return draw_kept(s, weigher{top.value, 1.0 / (double)row->temperature}, top, all.levels[r].all,
                     first);
}

/* log sum exp of the raw logits; NaN if one of them is not finite. */
static __device__ double raw_lse(const struct sample_args &s, int r, double top)
{
    const struct part *part = s.part + (int64_t)r * s.parts;
    double mass = 0;
    int odd = 0;
    for (int i = 0; i < s.parts; i++) {
        odd += part[i].odd;
        mass += part[i].top > -INFINITY ? part[i].mass * exp((double)part[i].top - top) : 0;
    }
    return odd ? (double)NAN : top + log(mass);
}

static __global__ void __launch_bounds__(THREADS, 2) sample_settle(struct sample_args all)
{
    wait_for_earlier();
    let_next_begin();
    HZP_SHARED_DYNAMIC(uint32_t, plain);
    HZP_SHARED(shortlist, list);
    const struct hzp_sample_args &a = all.a;
    int r = blockIdx.x;
    row_state s = state_of(a, r);
    int token = s.row->given < 0 ? draw(s, all, plain, &list) : s.row->given;
    best top = row_top(all, r, false);
    double lse = raw_lse(all, r, top.value);
    float logit = sane(s.logit[token]);
    if (threadIdx.x == 0) {
        a.token[r] = token;
        a.logprob[r] = (float)((double)logit - lse);
        if ((double)logit < top.value)
            all.ranking[r].token = token;
        else
            a.rank[r] = 1;
    }
    if (s.row->tops > 0)
        report_tops(s, lse, a.top_token + (int64_t)r * HZP_TOPS_MAX,
                    a.top_logprob + (int64_t)r * HZP_TOPS_MAX);
}

/* The last of a row's blocks knows the sum. */
static __global__ void __launch_bounds__(THREADS) sample_rank(struct sample_args s)
{
    wait_for_earlier();
    let_next_begin();
    int r = blockIdx.y, above = 0;
    struct ranking *ranking = s.ranking + r;
    int token = ranking->token;
    if (token < 0)
        return;
    slice x;
    slice_load(s.a.logits, x);
    float logit = sane(row_of<float>(s.a.logits, r)[token]);
#pragma unroll
    for (int i = 0; i < PER; i++)
        above += x.x[i] > logit;
    above = block_sum(above);
    if (threadIdx.x > 0)
        return;
    atomicAdd(&ranking->above, above);
    __threadfence();
    if (atomicAdd(&ranking->parts, 1) == s.parts - 1) {
        __threadfence();
        s.a.rank[r] = 1 + atomicAdd(&ranking->above, 0);
    }
}

/* ---- launching ---- */

/* sample_settle may use all of a block's shared memory. */
static int raise_shared(struct hzp_lane *lane)
{
    static bool raised; /* static: there is one engine thread and one kind of device */
    const struct hzp_cuda_device *dev = hzp_cuda_device(lane);
    struct cudaFuncAttributes now;
    if (raised)
        return HZP_OK;
    HZP_TRY(hzp_cuda_check(hzp_cuda_device(lane), cudaFuncGetAttributes(&now, sample_settle),
                           "sample"));
    int room = dev->shared_max - (int)now.sharedSizeBytes;
    HZP_TRY(hzp_cuda_check(
        hzp_cuda_device(lane),
        cudaFuncSetAttribute(sample_settle, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
        "sample"));
    raised = true;
    return HZP_OK;
}

/* Rows that the scratch memory has room for at a time. */
static int rows_at_once(const struct hzp_cuda_lane *lane, int parts)
{
    size_t row = (size_t)parts * sizeof(struct part) + sizeof(struct levels) + sizeof(shortlist) +
                 sizeof(struct ranking);
    return (int)HZP_MIN(lane->scratch_size / row, (size_t)32768);
}

static int launch(struct hzp_lane *lane, const struct sample_args &s)
{
    dim3 grid((unsigned)s.parts, (unsigned)s.a.logits.rows);
    int rows = s.a.logits.rows;
    start_few(lane, rows, grid, THREADS, 0, sample_survey, s);
    start_few(lane, rows, grid, THREADS, 0, sample_weigh, s);
    start_few(lane, rows, grid, THREADS, 0, sample_list, s);
    start_few(lane, rows, (unsigned)rows, THREADS,
              (size_t)hzp_mask_words(s.a.logits.cols) * sizeof(uint32_t), sample_settle, s);
    start_few(lane, rows, grid, THREADS, 0, sample_rank, s);
    return hzp_cuda_launched(lane, "sample");
}

extern "C" int hzp_cuda_sample(struct hzp_lane *lane, const void *args)
{
    const struct hzp_sample_args all = *(const struct hzp_sample_args *)args;
    if (all.logits.rows == 0)
        return HZP_OK;
    HZP_TRY(raise_shared(lane));
    struct sample_args s = {all};
    s.parts = HZP_DIV_UP(all.logits.cols, SLICE);
    int at_once = rows_at_once(hzp_cuda_lane(lane), s.parts);
    HZP_ASSERT(at_once > 0);
    s.levels = (struct levels *)hzp_cuda_lane(lane)->scratch;
    s.part = (struct part *)(s.levels + at_once);
    s.list = (shortlist *)(s.part + (size_t)at_once * (size_t)s.parts);
    s.ranking = (struct ranking *)(s.list + at_once);
    const struct hzp_sample_row *row = (const struct hzp_sample_row *)hzp_cuda_staged(
        lane, all.row, (size_t)all.logits.rows * sizeof(*all.row));
    for (int32_t r = 0; r < all.logits.rows; r += at_once) {
        int64_t tops = (int64_t)r * HZP_TOPS_MAX;
        s.a.logits = hzp_mat_rows(all.logits, r, HZP_MIN(all.logits.rows - r, at_once));
        s.a.row = row + r;
        s.a.token = all.token + r;
        s.a.logprob = all.logprob + r;
        s.a.rank = all.rank + r;
        s.a.top_token = all.top_token ? all.top_token + tops : nullptr;
        s.a.top_logprob = all.top_logprob ? all.top_logprob + tops : nullptr;
        HZP_TRY(launch(lane, s));
    }
    return HZP_OK;
}
