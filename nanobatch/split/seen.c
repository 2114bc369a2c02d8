/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/seen.h"

/* A miss rate is averaged over about so many late ITLs, or TTFTs. */
static const double memory = 300;
/* The miss rate of serving alone is at most this, and fades by 1 / e in so many ns. */
static const double alone_max = 0.015, alone_fades_ns = 15e9;

/* The quantile of ITLs alone is known from so many on, and refreshed with every so many. */
enum { ALONE_FEW = 128, ALONE_EVERY = 32, TTFT_FEW = 32 };
/* The aim with training counts so many ITLs after one that had training in it: more than are
 * between two items that were allowed to be too long (exceptions.h). */
enum { TRAINED_LATELY = 512 };
static const double longer_max = 4;

void hzp_seen_init(struct hzp_seen *seen)
{
    memset(seen, 0, sizeof(*seen));
    for (int with = 0; with < HZP_TENANT_COUNT; with++)
        hzp_aim_init(&seen->itl_aim[with]);
    hzp_aim_init(&seen->ttft_aim);
    hzp_spread_init(&seen->ttft_alone, 1e5, 1.15, 0.99);
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

static void count_miss(struct hzp_misses *s, bool missed, bool missed_alone)
{
    miss(&s->train, missed && !missed_alone);
    miss(&s->alone, missed_alone);
    s->alone = HZP_MIN(s->alone, alone_max);
}

double hzp_seen_miss_rate(const struct hzp_seen *seen, const struct hzp_policy *policy)
{
    const struct hzp_misses *i = &seen->itl_misses, *t = &seen->ttft_misses;
    double itl = policy->itl_ns ? i->train + i->alone : 0;
    double ttft = policy->ttft_ns ? t->train + t->alone : 0;
    return HZP_MAX(itl, ttft);
}

double hzp_seen_alone_miss_rate(const struct hzp_seen *seen, const struct hzp_policy *policy)
{
    return HZP_MAX(policy->itl_ns ? seen->itl_misses.alone : 0,
                   policy->ttft_ns ? seen->ttft_misses.alone : 0);
}

void hzp_seen_forget(struct hzp_seen *seen, bool itl, bool ttft)
{
    if (itl) {
        seen->missed_itl = seen->missed_itl_alone = 0;
        seen->itl_misses = (struct hzp_misses){0, 0};
    }
    if (ttft) {
        seen->missed_ttft = 0;
        seen->ttft_misses = (struct hzp_misses){0, 0};
    }
}

static void note_alone(struct hzp_seen *seen, uint64_t itl_ns, uint64_t alone_ns, int32_t rows)
{
    double keep = seen->alone_count ? 1 - 1 / memory : 0;
    seen->itl_mean_ns = keep * seen->itl_mean_ns + (1 - keep) * (double)itl_ns;
    seen->alone_mean_ns = keep * seen->alone_mean_ns + (1 - keep) * (double)alone_ns;
    hzp_window_add(&seen->alone, alone_ns, rows);
    if (++seen->alone_count < ALONE_FEW || seen->alone_count % ALONE_EVERY)
        return;
    double longer = seen->itl_mean_ns / HZP_MAX(seen->alone_mean_ns, 1.0);
    double late = 0.01 * HZP_MAX(1.0, HZP_MIN(longer, longer_max));
    seen->alone_p99_ns = hzp_window_quantile(&seen->alone, 1 - late);
}

void hzp_seen_itl(struct hzp_seen *seen, const struct hzp_policy *policy, enum hzp_tenant with,
                  uint64_t itl_ns, uint64_t alone_ns, int32_t rows)
{
    hzp_window_add(&seen->itl, itl_ns, rows);
    note_alone(seen, itl_ns, alone_ns, rows);
    if (policy->itl_ns) {
        bool late = itl_ns > policy->itl_ns, late_alone = alone_ns > policy->itl_ns;
        miss(&seen->missed_itl, late);
        miss(&seen->missed_itl_alone, late_alone);
        count_miss(&seen->itl_misses, late, late_alone);
        seen->since_trained =
            with == HZP_TENANT_TRAIN ? 0 : HZP_MIN(seen->since_trained + 1, TRAINED_LATELY + 1);
        if (seen->since_trained <= TRAINED_LATELY)
            hzp_aim_note(&seen->itl_aim[HZP_TENANT_TRAIN], late && !late_alone);
        if (with == HZP_TENANT_SERVE)
            hzp_aim_note(&seen->itl_aim[HZP_TENANT_SERVE], late);
    }
    /* Where no prompts come any more, the misses of old ones must not hold training back. */
    seen->missed_ttft *= 1 - 1 / (20 * memory);
    seen->ttft_misses.train *= 1 - 1 / (20 * memory);
    seen->ttft_misses.alone *= exp(-HZP_MIN((double)itl_ns, alone_fades_ns) / alone_fades_ns);
}

uint64_t hzp_seen_alone_p99(const struct hzp_seen *seen)
{
    return seen->alone_p99_ns;
}

uint64_t hzp_seen_ttft_alone_p99(const struct hzp_seen *seen)
{
    if (seen->ttfts < TTFT_FEW)
        return 0;
    return (uint64_t)hzp_spread_quantile(&seen->ttft_alone, 0.99);
}

/* Training's time up to ns; steps that are no longer kept count as ended before it. */
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

void hzp_seen_ttft(struct hzp_seen *seen, const struct hzp_policy *policy, uint64_t since_ns,
                   uint64_t end_ns)
{
    uint64_t took = end_ns > since_ns ? end_ns - since_ns : 0;
    double alone = (double)took - (seen->trained_ns - trained_by(seen, since_ns));
    hzp_window_add(&seen->ttft, took, 1);
    if (since_ns > seen->crowded_ns) {
        hzp_spread_add(&seen->ttft_alone, HZP_MAX(alone, 1.0), 1);
        seen->ttfts++;
    }
    if (policy->ttft_ns) {
        bool late = took > policy->ttft_ns, late_alone = alone > (double)policy->ttft_ns;
        miss(&seen->missed_ttft, late);
        count_miss(&seen->ttft_misses, late, late_alone);
        hzp_aim_note(&seen->ttft_aim, late && !late_alone);
    }
}

void hzp_seen_prediction(struct hzp_seen *seen, double itl_ns, double predicted_ns)
{
    double off = fabs(itl_ns / HZP_MAX(predicted_ns, 1.0) - 1);
    seen->error += (HZP_MIN(off, 4.0) - seen->error) / 64;
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
