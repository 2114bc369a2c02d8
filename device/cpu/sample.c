/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/sample.h"

#include "device/philox.h"

#include <float.h>

enum { SMALL = 24 }; /* up to this many candidates are sorted instead of divided */

/* A thread's memory for sampling a row. */
struct desk {
    const struct hzp_sample_args *args;
    const struct hzp_scan *scan;
    float *x;
    int vocab;
    struct hzp_candidate *cand; /* [vocab + edits] */
    struct hzp_candidate *edit; /* [edits] the edited tokens' logits; weight: the raw logit */
    float *maxima;
    int edits;
    const uint32_t *mask; /* the row's; NULL: none */
    float *masked;        /* [vocab] */
};

static bool before(const struct hzp_candidate *a, const struct hzp_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

static int by_logit(const void *a, const void *b)
{
    return before(b, a) - before(a, b);
}

void hzp_draw_try(const struct hzp_sample_row *row, double logit, int32_t token,
                  struct hzp_drawn *drawn)
{
    double score = logit + hzp_draw_noise(row->seed, (uint32_t)token, row->position, row->choice);

    if (score > drawn->score || (score == drawn->score && token < drawn->token)) {
        drawn->score = score;
        drawn->token = token;
    }
}

uint32_t hzp_draw_bound(const struct hzp_drawn *drawn, double top)
{
    double least = drawn->score - top; /* the noise that the likeliest token would need */
    double word = exp(-exp(-least)) * 4294967296.0 - 8; /* a few words of slack for rounding */

    return word > 0 ? (uint32_t)HZP_MIN(word, 4294967295.0) : 0;
}

/* Finds the fewest candidates, likeliest first, that are `count` in number or whose weights reach
 * `mass`, and moves them to the front, in no order.  Expected time linear in n. */
static int divide(struct hzp_candidate *c, int n, int count, double mass)
{
    int lo = 0, hi = n;
    double sum = 0;

    while (hi - lo > SMALL) {
        struct hzp_candidate pivot = c[lo + (hi - lo) / 2];
        int mid = lo;
        double part = 0;
        for (int i = lo; i < hi; i++) {
            if (before(&pivot, &c[i]))
                continue;
            struct hzp_candidate t = c[i];
            c[i] = c[mid];
            c[mid++] = t;
            part += t.weight;
        }
        if (mid < hi && mid < count && sum + part < mass) {
            sum += part;
            lo = mid;
        } else if (mid < hi) {
            hi = mid;
        } else { /* the pivot is last: exclude it and divide the rest */
            int at = lo;
            for (int i = lo; i < hi; i++)
                if (c[i].token == pivot.token)
                    at = i;
            c[at] = c[hi - 1];
            c[hi - 1] = pivot;
            if (hi - 1 < count && sum + (part - pivot.weight) < mass)
                return hi;
            hi--;
        }
    }
    qsort(c + lo, (size_t)(hi - lo), sizeof(*c), by_logit);
    while (lo < hi && lo < count && sum < mass)
        sum += c[lo++].weight;
    return HZP_MAX(lo, 1);
}

static int by_value(const void *a, const void *b)
{
    return (*(const float *)a < *(const float *)b) - (*(const float *)a > *(const float *)b);
}

/* A logit that at least k logits reach, and not many more: the k-th largest of the blocks'
 * maxima. */
static float floor_of_top(struct desk *d, int k)
{
    int blocks = HZP_DIV_UP(d->vocab, HZP_MAXIMA_BLOCK);

    if (k > blocks)
        return -INFINITY;
    d->scan->maxima(d->x, d->vocab, d->maxima);
    qsort(d->maxima, (size_t)blocks, sizeof(*d->maxima), by_value);
    return d->maxima[k - 1];
}

/* Removes the edited tokens from the row: they are candidates of their own. */
static void edits_take(struct desk *d, const struct hzp_sample_row *row)
{
    d->edits = row->edits;
    for (int i = 0; i < row->edits; i++) {
        const struct hzp_logit_edit *e = &d->args->edit[row->edit0 + i];
        float raw = d->x[e->token];
        double l = (double)(isnan(raw) ? -INFINITY : raw) + e->bias;
        if (e->seen)
            l = l > 0 ? l / row->repetition : l * row->repetition;
        l -= row->presence * (e->count_out > 0) + (double)row->frequency * e->count_out;
        d->edit[i] = (struct hzp_candidate){isnan(l) ? -INFINITY : (float)l, raw, e->token};
        d->x[e->token] = -INFINITY;
    }
}

static void edits_restore(struct desk *d)
{
    for (int i = 0; i < d->edits; i++)
        d->x[d->edit[i].token] = (float)d->edit[i].weight;
}

/* The likeliest candidate, edited tokens included. */
static struct hzp_candidate likeliest(const struct desk *d)
{
    float top;
    int at;
    double lse;

    d->scan->top(d->x, d->vocab, &top, &at, &lse);
    struct hzp_candidate best = {top, 0, at};
    for (int i = 0; i < d->edits; i++)
        if (before(&d->edit[i], &best))
            best = d->edit[i];
    return best;
}

/* From here on x is a copy of the row without the tokens that are no candidates. */
static void mask_take(struct desk *d, const struct hzp_sample_row *row)
{
    if (!row->mask)
        return;
    d->mask = d->args->mask + (size_t)(row->mask - 1) * (size_t)hzp_mask_words(d->vocab);
    d->scan->mask(d->x, d->mask, d->vocab, d->masked);
    d->x = d->masked;
}

/* The candidate with the lowest id. */
static int first(const struct desk *d)
{
    int word = 0;

    while (d->mask && word < hzp_mask_words(d->vocab) - 1 && !d->mask[word])
        word++;
    return d->mask && d->mask[word] ? 32 * word + __builtin_ctz(d->mask[word]) : 0;
}

/* Writes the candidates that top_k, top_p and min_p can keep to d->cand, with logits / temperature.
 * Every token left out is less likely than all that they keep. */
static int candidates_take(struct desk *d, const struct hzp_sample_row *row, double top,
                           double *ret_mass)
{
    double t = row->temperature, least = -INFINITY;
    int n;

    *ret_mass = 0;
    if (row->top_k > 0 && row->top_k < d->vocab) {
        least = floor_of_top(d, row->top_k);
    } else {
        if (row->top_p < 1) { /* the tokens below `least` together weigh less than 1 - top_p */
            *ret_mass = d->scan->mass(d->x, d->vocab, (float)top, row->temperature);
            for (int i = 0; i < d->edits; i++)
                *ret_mass += exp((d->edit[i].logit - top) / t);
            double tail = 0.5 * (1 - (double)row->top_p) * *ret_mass / d->vocab;
            least = top + t * log(tail);
        }
        if (row->min_p > 0)
            least = fmax(least, top + t * log(row->min_p));
        if (isfinite(least))
            least -= 1e-3 + 1e-5 * fabs(least);
    }
    /* tokens of -INFINITY cannot be drawn: others are there */
    n = d->scan->extract(d->x, d->vocab, fmaxf((float)least, -FLT_MAX), d->cand);
    memcpy(d->cand + n, d->edit, (size_t)d->edits * sizeof(*d->cand));
    n += d->edits;
    for (int i = 0; i < n; i++)
        d->cand[i].logit /= t;
    return n;
}

/* Applies top_k, top_p and min_p to the candidates, with the same results as the reference. */
static int candidates_cut(struct desk *d, const struct hzp_sample_row *row, int n, double top,
                          double mass)
{
    struct hzp_candidate *c = d->cand;
    bool some = row->top_k > 0 && row->top_k < d->vocab;

    for (int i = 0; i < n; i++)
        c[i].weight = 0;
    if (some)
        n = divide(c, n, HZP_MIN(row->top_k, n), INFINITY);
    if (row->top_p < 1) {
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += c[i].weight = exp(c[i].logit - top);
        n = divide(c, n, n, row->top_p * (some ? sum : mass));
    }
    if (row->min_p > 0) {
        int kept = 0;
        for (int i = 0; i < n; i++)
            if (c[i].logit == top || exp(c[i].logit - top) >= row->min_p)
                c[kept++] = c[i];
        n = HZP_MAX(kept, 1);
    }
    return n;
}

static int draw(struct desk *d, const struct hzp_sample_row *row)
{
    struct hzp_candidate best = likeliest(d);
    struct hzp_drawn drawn = {-INFINITY, best.token};
    double t = row->temperature, mass;
    bool cuts = row->top_k > 0 || row->top_p < 1 || row->min_p > 0;

    if (!(best.logit > -INFINITY))
        return first(d);
    if (!(t > 0))
        return best.token;
    hzp_draw_try(row, best.logit / t, best.token, &drawn);
    if (!cuts) {
        for (int i = 0; i < d->edits; i++)
            hzp_draw_try(row, d->edit[i].logit / t, d->edit[i].token, &drawn);
        d->scan->draw(d->x, d->vocab, (float)best.logit, row, &drawn);
        return drawn.token;
    }
    int n = candidates_take(d, row, best.logit, &mass);
    n = candidates_cut(d, row, n, best.logit / t, mass);
    for (int i = 0; i < n; i++)
        if (d->cand[i].logit + HZP_NOISE_MAX >= drawn.score)
            hzp_draw_try(row, d->cand[i].logit, d->cand[i].token, &drawn);
    return drawn.token;
}

/* Reports the likeliest tokens by raw logits. */
static void tops_report(struct desk *d, int r, int tops, double lse)
{
    int n = d->scan->extract(d->x, d->vocab, floor_of_top(d, tops), d->cand);
    int32_t *token = d->args->top_token + (size_t)r * HZP_TOPS_MAX;
    float *logprob = d->args->top_logprob + (size_t)r * HZP_TOPS_MAX;

    for (int i = 0; i < n; i++)
        d->cand[i].weight = 0;
    if (n > 0)
        divide(d->cand, n, HZP_MIN(tops, n), INFINITY);
    qsort(d->cand, (size_t)HZP_MIN(tops, n), sizeof(*d->cand), by_logit);
    for (int i = 0; i < HZP_MIN(tops, n); i++) {
        token[i] = d->cand[i].token;
        logprob[i] = (float)(d->cand[i].logit - lse);
    }
}

static void row_sample(struct desk *d, int r)
{
    const struct hzp_sample_row *row = &d->args->row[r];
    float top, logit;
    int at;
    double lse;

    float *raw = d->x = hzp_cpu_row(&d->args->logits, r);
    d->edits = 0;
    d->scan->top(d->x, d->vocab, &top, &at, &lse);
    int token = row->given >= 0 ? row->given : at;
    if (row->given < 0 && (row->edits > 0 || row->mask || row->temperature > 0)) {
        mask_take(d, row);
        edits_take(d, row);
        token = draw(d, row);
        edits_restore(d);
        d->x = raw;
    }
    logit = isnan(d->x[token]) ? -INFINITY : d->x[token];
    d->args->token[r] = token;
    d->args->logprob[r] = (float)(logit - lse);
    d->args->rank[r] = 1 + (token == at ? 0 : d->scan->above(d->x, d->vocab, logit));
    if (row->tops > 0)
        tops_report(d, r, HZP_MIN(row->tops, d->vocab), lse);
}

struct job {
    const struct hzp_sample_args *args;
    const struct hzp_scan *scan;
    struct hzp_team *team;
    int edits; /* the largest number of edits of a row */
    bool masked;
};

static void sample_task(void *ctx, int r, int thread)
{
    const struct job *job = ctx;
    struct desk desk = {.args = job->args, .scan = job->scan, .vocab = job->args->logits.cols};

    desk.cand = hzp_team_own(job->team, thread);
    desk.edit = desk.cand + desk.vocab + job->edits;
    desk.maxima = (float *)(desk.edit + job->edits);
    desk.masked = desk.maxima + HZP_DIV_UP(desk.vocab, HZP_MAXIMA_BLOCK);
    row_sample(&desk, r);
}

int hzp_cpu_sample(struct hzp_lane *lane, const struct hzp_sample_args *args,
                   const struct hzp_scan *scan)
{
    struct job job = {.args = args, .scan = scan, .team = hzp_cpu_team(lane)};
    size_t vocab = (size_t)args->logits.cols, need;

    if (vocab == 0)
        return HZP_OK;
    for (int r = 0; r < args->logits.rows; r++) {
        job.edits = HZP_MAX(job.edits, args->row[r].edits);
        job.masked |= args->row[r].mask > 0;
    }
    need = (vocab + 2 * (size_t)job.edits) * sizeof(struct hzp_candidate) +
           (HZP_DIV_UP(vocab, (size_t)HZP_MAXIMA_BLOCK) + (job.masked ? vocab : 0)) * sizeof(float);
    HZP_TRY(hzp_team_reserve(job.team, 0, need));
    hzp_team_run(job.team, args->logits.rows, sample_task, &job);
    return HZP_OK;
}
