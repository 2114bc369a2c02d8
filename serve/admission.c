/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/admission.h"

#include "base/err.h"
#include "base/thread.h"

/* Classes of sequence lengths, and of steps from now: 0 .. 7 one each, then four per octave up to
 * 2^24. */
enum { CLASSES = 8 + 4 * 21 };

/* Prior of the estimate: every length counts this many additional sequences that went on, because a
 * single early end is weak evidence. */
static const double doubt = 2;
/* Safety margin in standard deviations.  On request traces with a tight pool, a margin of 0
 * recomputed 2 to 25 % of all rows, 1 up to 6 %, 1.5 about 1 %, 2 next to none; 2 cost throughput
 * while lengths were still unknown. docs/measurements/2026-11-admission.md. */
static const double margin = 1.5;
/* Number of ended requests after which all counts are halved. */
static const double memory = 1000;

struct hzp_admission {
    enum hzp_admission_rule rule;
    int32_t pages, page_rows;
    int32_t bound; /* pages of a sequence at most */

    /* ended requests by class of their length */
    double ended[CLASSES], cut[CLASSES], ends;

    /* sums over the running sequences since the last hzp_admission_look() */
    int32_t count;
    int64_t worst;
    double goes_on[CLASSES + 1];             /* S at the beginning of each class */
    double mean[CLASSES], variance[CLASSES]; /* pages needed, by class of steps from now */
    int32_t classes;                         /* classes that at least one sequence reaches */
};

static int32_t class_begin(int32_t class)
{
    return class < 8 ? class : (8 + 2 * ((class - 8) % 4)) << ((class - 8) / 4);
}

static int32_t class_of(int32_t n)
{
    if (n < 8)
        return n;
    int32_t octave = 31 - __builtin_clz((unsigned)n) - 3;
    return HZP_MIN(8 + 4 * octave + ((n >> (octave + 1)) & 3), CLASSES - 1);
}

int hzp_admission_create(enum hzp_admission_rule rule, int32_t pages, int32_t page_rows,
                         struct hzp_admission **ret)
{
    HZP_ASSERT(pages > 0 && page_rows > 0);
    struct hzp_admission *a = hzp_xcalloc(1, sizeof(*a));
    a->rule = rule;
    a->pages = pages;
    a->page_rows = page_rows;
    a->bound = INT32_MAX;
    hzp_admission_look(a, NULL, 0);
    *ret = a;
    return HZP_OK;
}

void hzp_admission_bound(struct hzp_admission *a, int32_t pages)
{
    a->bound = pages;
}

void hzp_admission_destroy(struct hzp_admission *a)
{
    free(a);
}

void hzp_admission_ended(struct hzp_admission *a, const struct hzp_growth *at, bool cut)
{
    hzp_assert_engine_thread();
    if (at->least >= at->most)
        return; /* its length was set by the request: nothing learned */
    if (cut)
        a->cut[class_of(at->drawn)]++;
    else
        a->ended[class_of(HZP_MAX(at->drawn - 1, 0))]++; /* tokens drawn before the last */
    if (++a->ends < memory)
        return;
    a->ends /= 2;
    for (int32_t c = 0; c < CLASSES; c++) {
        a->ended[c] /= 2;
        a->cut[c] /= 2;
    }
}

/* Computes S at the beginning of each class.  Half of the requests cut in a class are assumed to
 * have left before its ends. */
static void learn_lengths(struct hzp_admission *a, const struct hzp_growth *running, int32_t count)
{
    double gone_on[CLASSES], risk = 0;
    memcpy(gone_on, a->cut, sizeof(gone_on));
    for (int32_t i = 0; i < count; i++)
        if (running[i].least < running[i].most)
            gone_on[class_of(running[i].drawn)]++;
    double part[CLASSES];
    for (int32_t c = CLASSES - 1; c >= 0; c--) {
        risk += a->ended[c] + gone_on[c];
        part[c] = a->ended[c] / (risk - gone_on[c] / 2 + doubt);
    }
    a->goes_on[0] = 1;
    for (int32_t c = 0; c < CLASSES; c++)
        a->goes_on[c + 1] = a->goes_on[c] * (1 - part[c]);
}

static double survives(const struct hzp_admission *a, int32_t n)
{
    int32_t c = class_of(n), begin = class_begin(c);
    double within = (double)(n - begin) / (class_begin(c + 1) - begin);
    return a->goes_on[c] + HZP_MIN(within, 1) * (a->goes_on[c + 1] - a->goes_on[c]);
}

double hzp_admission_goes_on(const struct hzp_admission *a, int32_t from, int32_t to)
{
    double now = survives(a, from);
    return to <= from || now <= 0 ? 1 : survives(a, to) / now;
}

static int32_t draws_left(const struct hzp_growth *g)
{
    return HZP_MAX(g->most - g->drawn, 1); /* a request for 0 tokens stores its prompt, too */
}

static int32_t pages_of(const struct hzp_admission *a, int64_t rows)
{
    uint32_t pages = ((uint32_t)rows + (uint32_t)a->page_rows - 1) / (uint32_t)a->page_rows;
    return (int32_t)HZP_MIN(pages, (uint32_t)a->bound);
}

static int32_t worst_of(const struct hzp_admission *a, const struct hzp_growth *g)
{
    /* The keys and values of the last token drawn are never stored. */
    return pages_of(a, (int64_t)g->rows + draws_left(g) - 1);
}

/* A sequence's expected pages, class by class of steps from now. */
struct outlook {
    const struct hzp_growth *of;
    int32_t left, from; /* draws left; the length from which on it may end */
    double now;         /* S at length `from` */
};

static struct outlook outlook_of(const struct hzp_admission *a, const struct hzp_growth *g)
{
    int32_t from = HZP_MAX(g->drawn, g->least);
    return (struct outlook){g, draws_left(g), from, survives(a, from)};
}

/* *pages: pages the sequence holds in steps of class c from now; *chance: the probability that it
 * still runs then.  False: it has ended by then in any case. */
static bool expect(const struct hzp_admission *a, const struct outlook *o, int32_t c, double *pages,
                   double *chance)
{
    int32_t begin = class_begin(c), at = o->of->drawn + begin;
    if (begin >= o->left)
        return false;
    int32_t end = class_begin(c + 1), last = HZP_MIN(end, o->left) - 1;
    *pages = pages_of(a, (int64_t)o->of->rows + last);
    *chance = at <= o->from || o->now <= 0 ? 1 : survives(a, at) / o->now;
    return true;
}

void hzp_admission_add(struct hzp_admission *a, const struct hzp_growth *one)
{
    hzp_assert_engine_thread();
    double pages, chance;
    a->count++;
    a->worst += worst_of(a, one);
    struct outlook o = outlook_of(a, one);
    for (int32_t c = 0; c < CLASSES && expect(a, &o, c, &pages, &chance); c++) {
        a->mean[c] += chance * pages;
        a->variance[c] += chance * (1 - chance) * pages * pages;
        a->classes = HZP_MAX(a->classes, c + 1);
    }
}

void hzp_admission_look(struct hzp_admission *a, const struct hzp_growth *running, int32_t count)
{
    hzp_assert_engine_thread();
    a->count = a->classes = 0;
    a->worst = 0;
    memset(a->mean, 0, sizeof(a->mean));
    memset(a->variance, 0, sizeof(a->variance));
    learn_lengths(a, running, count);
    for (int32_t i = 0; i < count; i++)
        hzp_admission_add(a, &running[i]);
}

bool hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one)
{
    if (a->count == 0)
        return true;
    if (a->rule == HZP_ADMIT_WORST_CASE)
        return a->worst + worst_of(a, one) <= a->pages;
    double pages, chance;
    struct outlook o = outlook_of(a, one);
    for (int32_t c = 0; c < CLASSES; c++) {
        if (!expect(a, &o, c, &pages, &chance))
            pages = chance = 0;
        if (c >= a->classes && pages <= 0)
            return true;
        double mean = a->mean[c] + chance * pages;
        double variance = a->variance[c] + chance * (1 - chance) * pages * pages;
        if (mean + margin * sqrt(variance) > a->pages)
            return false;
    }
    return true;
}

int32_t hzp_admission_peak(const struct hzp_admission *a)
{
    if (a->rule == HZP_ADMIT_WORST_CASE)
        return (int32_t)HZP_MIN(a->worst, INT32_MAX);
    double peak = 0;
    for (int32_t c = 0; c < a->classes; c++) {
        double likely = a->mean[c] + margin * sqrt(a->variance[c]);
        peak = HZP_MAX(peak, likely);
    }
    peak = ceil(peak);
    return (int32_t)HZP_MIN(peak, INT32_MAX);
}
