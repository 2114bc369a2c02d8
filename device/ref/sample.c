/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/sample.c - samples one token per row from logits, and the reported
 * log-probabilities. */
#include "device/philox.h"
#include "device/ref/ref.h"

struct candidate {
    double logit;
    int32_t token;
};

/* Descending by logit; ties by lower id. */
static int by_logit(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

/* The row's logits as candidates, ordered by id.  NaN counts as banned. */
static void candidates_make(const struct hzp_mat *logits, int32_t r, struct candidate *ret)
{
    for (int32_t c = 0; c < logits->cols; c++) {
        float logit = ref_get(logits, r, c);
        ret[c] = (struct candidate){isnan(logit) ? -INFINITY : logit, c};
    }
}

/* Whether all logits of the row are finite: log-probabilities are NaN if one is not, so that a
 * model with damaged weights is noticed whatever token is drawn. */
static bool is_finite(const struct hzp_mat *logits, int32_t r)
{
    for (int32_t c = 0; c < logits->cols; c++)
        if (!isfinite(ref_get(logits, r, c)))
            return false;
    return true;
}

static double log_sum_exp(const struct candidate *all, int32_t n)
{
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        top = fmax(top, all[i].logit);
    for (int32_t i = 0; i < n; i++)
        sum += exp(all[i].logit - top);
    return top + log(sum);
}

static void edits_apply(const struct hzp_sample_row *row, const struct hzp_logit_edit *edit,
                        struct candidate *all)
{
    for (int32_t i = row->edit0; i < row->edit0 + row->edits; i++) {
        double l = all[edit[i].token].logit + edit[i].bias;
        if (edit[i].seen)
            l = l > 0 ? l / row->repetition : l * row->repetition;
        l -= row->presence * (edit[i].count_out > 0) + (double)row->frequency * edit[i].count_out;
        all[edit[i].token].logit = isnan(l) ? -INFINITY : (float)l;
    }
}

/* Removes the tokens that the mask does not have; returns how many remain. */
static int32_t mask_apply(const uint32_t *mask, struct candidate *all, int32_t n)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (mask[all[i].token / 32] >> (all[i].token % 32) & 1)
            all[kept++] = all[i];
    return kept;
}

/* How many of the sorted candidates remain after top_k, top_p and min_p; each is applied to what
 * the one before left.  At least 1. */
static int32_t candidates_cut(const struct hzp_sample_row *row, const struct candidate *all,
                              int32_t n)
{
    if (row->top_k > 0 && row->top_k < n)
        n = row->top_k;
    if (row->top_p < 1) {
        double lse = log_sum_exp(all, n), reached = 0;
        int32_t kept = 0;
        do
            reached += exp(all[kept++].logit - lse);
        while (kept < n && reached < row->top_p);
        n = kept;
    }
    if (row->min_p > 0)
        while (n > 1 && exp(all[n - 1].logit - all[0].logit) < row->min_p)
            n--;
    return n;
}

/* The candidate with the largest logit, plus noise if it is drawn; ties by lower id. */
static int32_t pick(const struct hzp_sample_row *row, const struct candidate *all, int32_t n)
{
    struct candidate best = {-INFINITY, all[0].token};
    for (int32_t i = 0; i < n; i++) {
        struct candidate now = all[i];
        if (row->temperature > 0)
            now.logit += hzp_draw_noise(row->seed, (uint32_t)now.token, row->position, row->choice);
        if (now.logit > best.logit || (now.logit == best.logit && now.token < best.token))
            best = now;
    }
    return best.token;
}

/* all: ordered by id; sorted only if candidates are cut. */
static int32_t draw(const struct hzp_sample_row *row, struct candidate *all, int32_t n)
{
    if (!(row->temperature > 0))
        return pick(row, all, n);
    for (int32_t i = 0; i < n; i++)
        all[i].logit /= row->temperature;
    if (row->top_k > 0 || row->top_p < 1 || row->min_p > 0) {
        qsort(all, (size_t)n, sizeof(*all), by_logit);
        n = candidates_cut(row, all, n);
    }
    return pick(row, all, n);
}

static int ref_sample(struct hzp_lane *lane, const void *args)
{
    const struct hzp_sample_args *a = args;
    int32_t vocab = a->logits.cols;
    HZP_FREED struct candidate *all = hzp_xmalloc(sizeof(*all) * (size_t)vocab);

    for (int32_t r = 0; r < a->logits.rows; r++) {
        const struct hzp_sample_row *row = &a->row[r];
        int32_t token = row->given, rank = 1;

        if (token < 0) {
            int32_t n = vocab;
            candidates_make(&a->logits, r, all);
            edits_apply(row, a->edit, all);
            if (row->mask)
                n = mask_apply(a->mask + (int64_t)(row->mask - 1) * hzp_mask_words(vocab), all, n);
            token = draw(row, all, n);
        }
        candidates_make(&a->logits, r, all);
        double lse = is_finite(&a->logits, r) ? log_sum_exp(all, vocab) : NAN;
        double logit = all[token].logit;
        for (int32_t i = 0; i < vocab; i++)
            rank += all[i].logit > logit;
        a->token[r] = token;
        a->logprob[r] = (float)(logit - lse);
        a->rank[r] = rank;

        if (row->tops > 0)
            qsort(all, (size_t)vocab, sizeof(*all), by_logit);
        for (int32_t i = 0; i < HZP_MIN(row->tops, vocab); i++) {
            a->top_token[r * HZP_TOPS_MAX + i] = all[i].token;
            a->top_logprob[r * HZP_TOPS_MAX + i] = (float)(all[i].logit - lse);
        }
    }
    return HZP_OK;
}

void hzp_ref_fill_sample(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_sample] = ref_sample;
}
