/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/seen.h"

#include <math.h>
#include <string.h>

/* Misses are remembered over so many steps that had gaps, or first tokens. */
static const double memory = 300;
/* What gaps are thought to be over predictions where nothing is known. */
static const double usual_off = 1.15;
/* What serving missed alone counts for so much at most, and loses most of it in so many ns. */
static const double alone_max = 0.015, alone_fades_ns = 15e9;

/* The quantile of gaps without training is known from so many on, and looked up anew so often. */
enum { ALONE_FEW = 128, ALONE_EVERY = 32 };
static const double longer_max = 4;

void hzp_seen_init(struct hzp_seen *seen)
{
    memset(seen, 0, sizeof(*seen));
    for (int train = 0; train < 2; train++) {
        hzp_spread_init(&seen->off[train], 0.25, 1.04, 0.998);
        hzp_spread_init(&seen->excess[train], 1e4, 1.1, 0.998);
        /* Until something is known, some more than predicted.  A single late one among few must not
         * look like one in a hundred. */
        hzp_spread_add(&seen->off[train], usual_off, 100);
    }
    hzp_spread_init(&seen->first_alone, 1e5, 1.15, 0.99);
}

static struct hzp_seen_second *second_of(struct hzp_seen *seen, uint64_t ns)
{
    uint64_t second = ns / 1000000000u;
    struct hzp_seen_second *s = &seen->second[second % HZP_SEEN_SECONDS];
    if (s->second != second)
        *s = (struct hzp_seen_second){.second = second};
    return s;
}

void hzp_seen_step(struct hzp_seen *seen, uint64_t begin_ns, uint64_t end_ns, uint64_t serve_ns,
                   uint64_t train_ns)
{
    struct hzp_seen_second *second = second_of(seen, end_ns);
    second->serve_ns += (double)serve_ns;
    second->train_ns += (double)train_ns;
    seen->trained_ns += (double)train_ns;
    int64_t at = seen->steps++ % HZP_SEEN_STEPS;
    seen->step[at].begin_ns = begin_ns;
    seen->step[at].end_ns = end_ns;
    seen->step[at].trained_ns = seen->trained_ns;
}

static void miss(double *part, bool missed)
{
    *part += ((missed ? 1 : 0) - *part) / memory;
}

static void strain(struct hzp_strain *s, bool missed, bool missed_alone)
{
    miss(&s->train, missed && !missed_alone);
    miss(&s->alone, missed_alone);
    s->alone = HZP_MIN(s->alone, alone_max);
}

double hzp_seen_strain(const struct hzp_seen *seen, const struct hzp_policy *policy)
{
    const struct hzp_strain *gap = &seen->gap_strain, *first = &seen->first_strain;
    double gaps = policy->itl_ns ? gap->train + gap->alone : 0;
    double firsts = policy->ttft_ns ? first->train + first->alone : 0;
    return HZP_MAX(gaps, firsts);
}

void hzp_seen_forget(struct hzp_seen *seen, bool gaps, bool firsts)
{
    if (gaps) {
        seen->missed_gaps = seen->missed_gaps_alone = 0;
        seen->gap_strain = (struct hzp_strain){0, 0};
    }
    if (firsts) {
        seen->missed_firsts = 0;
        seen->first_strain = (struct hzp_strain){0, 0};
    }
}

void hzp_seen_gap(struct hzp_seen *seen, const struct hzp_policy *policy, uint64_t gap_ns,
                  uint64_t train_ns, int32_t rows)
{
    hzp_window_add(&seen->gap, gap_ns, rows);
    if (policy->itl_ns) {
        miss(&seen->missed_gaps, gap_ns > policy->itl_ns);
        bool alone = gap_ns - HZP_MIN(train_ns, gap_ns) > policy->itl_ns;
        miss(&seen->missed_gaps_alone, alone);
        strain(&seen->gap_strain, gap_ns > policy->itl_ns, alone);
    }
    /* Where no prompts come any more, old ones must not hold training back for ever. */
    seen->missed_firsts *= 1 - 1 / (20 * memory);
    seen->first_strain.train *= 1 - 1 / (20 * memory);
    seen->first_strain.alone *= exp(-HZP_MIN((double)gap_ns, alone_fades_ns) / alone_fades_ns);
}

void hzp_seen_alone(struct hzp_seen *seen, uint64_t gap_ns, uint64_t alone_ns, int32_t rows)
{
    double keep = seen->alone_count ? 1 - 1 / memory : 0;
    seen->gap_mean_ns = keep * seen->gap_mean_ns + (1 - keep) * (double)gap_ns;
    seen->alone_mean_ns = keep * seen->alone_mean_ns + (1 - keep) * (double)alone_ns;
    hzp_window_add(&seen->alone, alone_ns, rows);
    if (++seen->alone_count < ALONE_FEW || seen->alone_count % ALONE_EVERY)
        return;
    double longer = seen->gap_mean_ns / HZP_MAX(seen->alone_mean_ns, 1.0);
    double late = 0.01 * HZP_MAX(1.0, HZP_MIN(longer, longer_max));
    seen->alone_p99_ns = hzp_window_quantile(&seen->alone, 1 - late);
}

uint64_t hzp_seen_alone_p99(const struct hzp_seen *seen)
{
    return seen->alone_p99_ns;
}

/* Training's time up to a moment; steps that are no longer known count as over before it. */
static double trained_by(const struct hzp_seen *seen, uint64_t ns)
{
    double later = seen->trained_ns;
    for (int64_t k = seen->steps - 1; k >= 0 && k >= seen->steps - HZP_SEEN_STEPS; k--) {
        uint64_t begin = seen->step[k % HZP_SEEN_STEPS].begin_ns;
        uint64_t end = seen->step[k % HZP_SEEN_STEPS].end_ns;
        double now = seen->step[k % HZP_SEEN_STEPS].trained_ns;
        if (end <= ns)
            return now;
        if (begin <= ns && k > 0 && k - 1 > seen->steps - HZP_SEEN_STEPS) {
            double before = seen->step[(k - 1) % HZP_SEEN_STEPS].trained_ns;
            return before + (now - before) * ((double)(ns - begin) / (double)(end - begin));
        }
        later = now;
    }
    return seen->steps <= HZP_SEEN_STEPS ? 0 : later;
}

void hzp_seen_first(struct hzp_seen *seen, const struct hzp_policy *policy, uint64_t since_ns,
                    uint64_t end_ns)
{
    uint64_t took = end_ns > since_ns ? end_ns - since_ns : 0;
    double alone = (double)took - (seen->trained_ns - trained_by(seen, since_ns));
    hzp_window_add(&seen->first, took, 1);
    hzp_spread_add(&seen->first_alone, HZP_MAX(alone, 1.0), 1);
    if (policy->ttft_ns) {
        miss(&seen->missed_firsts, took > policy->ttft_ns);
        strain(&seen->first_strain, took > policy->ttft_ns, alone > (double)policy->ttft_ns);
    }
}

void hzp_seen_prediction(struct hzp_seen *seen, const struct hzp_policy *policy, bool train,
                         double gap_ns, double predicted_ns)
{
    double off = gap_ns / HZP_MAX(predicted_ns, 1.0);
    uint64_t goal = policy->itl_ns ? policy->itl_ns : policy->ttft_ns / 4;
    if (predicted_ns >= (double)goal / 4)
        hzp_spread_add(&seen->off[train], off, 1);
    else
        hzp_spread_add(&seen->excess[train], HZP_MAX(gap_ns - predicted_ns, 1.0), 1);
    seen->error += (HZP_MIN(fabs(off - 1), 4.0) - seen->error) / 64;
}

void hzp_seen_no_prediction(struct hzp_seen *seen, bool margin)
{
    hzp_spread_add(&seen->off[true], margin ? usual_off : 1, 1);
    hzp_spread_add(&seen->excess[true], 1, 1);
}

double hzp_seen_p99(const struct hzp_seen *seen, bool train, double predicted_ns)
{
    double off = HZP_MAX(hzp_spread_quantile(&seen->off[train], 0.99), 1.0);
    double excess = hzp_spread_quantile(&seen->excess[train], 0.99);
    return HZP_MAX(off * predicted_ns, predicted_ns + excess);
}

double hzp_seen_within(const struct hzp_seen *seen, bool train, double goal_ns)
{
    double off = HZP_MAX(hzp_spread_quantile(&seen->off[train], 0.99), 1.0);
    double excess = hzp_spread_quantile(&seen->excess[train], 0.99);
    return HZP_MIN(goal_ns / off, goal_ns - excess);
}

void hzp_seen_shares(const struct hzp_seen *seen, uint64_t now_ns, int32_t seconds,
                     double *ret_serve, double *ret_train)
{
    uint64_t now = now_ns / 1000000000u;
    double serve = 0, train = 0, all = 1e9 * HZP_MIN(seconds, HZP_SEEN_SECONDS - 1);
    for (int i = 0; i < HZP_SEEN_SECONDS; i++) {
        const struct hzp_seen_second *s = &seen->second[i];
        if (s->second >= now || now - s->second > (uint64_t)seconds)
            continue;
        serve += s->serve_ns;
        train += s->train_ns;
    }
    *ret_serve = HZP_MIN(serve / all, 1.0);
    *ret_train = HZP_MIN(train / all, 1.0);
}
