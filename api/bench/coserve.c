/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/coserve.c - what training costs those who are being served, and what it gets done.
 *
 * Capacity first: as many requests as run at once, back to back. Then requests arrive steadily
 * (exponential gaps, the same ones every time) at half of that rate, with training off and on in
 * turns, so that both see the same machine; and with the device split the plain way, half of the
 * time to each in slices of 50 ms. Training alone is measured in the end, for the gain:
 * serve / serve alone + train / train alone.
 *
 * With --slo training is held to those goals, and how often they were missed is told.
 */
#include "api/bench/bench.h"
#include "api/bench/samples.h"
#include "api/bench/turns.h"
#include "api/state.h"

#include "base/arena.h"
#include "base/thread.h"
#include "nanobatch/split.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 64, TOKENS = 48, LIVE_MAX = 256, GAPS_MAX = 1 << 18, FIRST_MAX = 1 << 14 };

static const uint64_t slices_ns = 100000000; /* one of each */

/* Who has the device. */
enum turn { ALONE, TOGETHER, SLICED };

struct load {
    double *gap, *first; /* gaps between tokens; times to the first token */
    int64_t gaps, firsts;
    double seconds;
    uint64_t tokens, trained_rows;
};

static void load_open(struct load *load)
{
    *load = (struct load){.gap = hzp_xmalloc(GAPS_MAX * sizeof(double)),
                          .first = hzp_xmalloc(FIRST_MAX * sizeof(double))};
}

static void load_close(struct load *load)
{
    free(load->gap);
    free(load->first);
}

static void harvest(struct load *load, struct hzp_request **live, int *lives)
{
    for (int i = 0; i < *lives;) {
        struct hzp_request *rq = live[i];
        if (!hzp_request_final(rq)) {
            i++;
            continue;
        }
        int32_t count = atomic_load(&rq->out_count);
        load->tokens += (uint64_t)count;
        load->gaps = hzp_bench_gaps(rq, load->gap, load->gaps, GAPS_MAX);
        if (count && load->firsts < FIRST_MAX)
            load->first[load->firsts++] = (double)(rq->out[0].at_ns - rq->submitted_ns) * 1e-9;
        hzp_request_destroy(rq);
        live[i] = live[--*lives];
    }
}

/* Requests per second when `at_once` of them always run. */
static int capacity(struct hzp_bench *b, struct hzp_bench_client *client, int at_once,
                    double seconds, double *ret, struct hzp_err_text *reterr)
{
    struct hzp_request *live[LIVE_MAX];
    struct load load;
    int lives = 0;
    load_open(&load);
    uint64_t begin = hzp_now_ns(), end = begin + (uint64_t)(seconds * 1e9);
    int r = HZP_OK;
    while (r == HZP_OK && (hzp_now_ns() < end || lives)) {
        while (r == HZP_OK && lives < at_once && hzp_now_ns() < end) {
            r = hzp_bench_submit(client, PROMPT, TOKENS, &live[lives], reterr);
            lives += r == HZP_OK;
        }
        hzp_wake_wait(client->wake, 100000000);
        harvest(&load, live, &lives);
    }
    *ret = (double)load.firsts / ((double)(hzp_now_ns() - begin) * 1e-9);
    load_close(&load);
    return r;
}

static uint64_t trained_rows(struct hzp_bench *b)
{
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(b->engine->trainer, &stats);
    return stats.rows;
}

/* Enough samples in the queue that training never waits for one. */
static void keep_fed(struct hzp_bench *b, struct hzp_bench_samples *feed)
{
    struct hzp_sample_queue_stats stats;
    hzp_sample_queue_read_stats(hzp_state_queue(b->engine->state), &stats);
    if (stats.samples < 32)
        hzp_bench_samples_push(feed, 32, HZP_MIN(256, b->engine->plan.recipe.micro_rows));
}

/* Steady arrivals at `rate` for `seconds`, added to load. */
static int steady(struct hzp_bench *b, struct hzp_bench_client *client,
                  struct hzp_bench_samples *feed, enum turn turn, double rate, double seconds,
                  struct load *load, struct hzp_err_text *reterr)
{
    struct hzp_request *live[LIVE_MAX];
    int lives = 0, r = HZP_OK;
    uint32_t seed = 99;
    hzp_trainer_pause(b->engine->trainer, turn == ALONE);
    hzp_bench_turns_slice(b->turns, b->engine->trainer, turn == SLICED ? slices_ns : 0);
    hzp_loop_poke(b->engine->loop);
    uint64_t rows = trained_rows(b), begin = hzp_now_ns(), next = begin;
    uint64_t end = begin + (uint64_t)(seconds * 1e9);
    while (r == HZP_OK && hzp_now_ns() < end) {
        uint64_t now = hzp_now_ns();
        while (r == HZP_OK && next <= now && lives < LIVE_MAX) {
            r = hzp_bench_submit(client, PROMPT, TOKENS, &live[lives], reterr);
            lives += r == HZP_OK;
            seed = seed * 1664525u + 1013904223u;
            next += (uint64_t)(-log(((seed >> 8) + 1) / 16777217.0) / rate * 1e9);
        }
        if (turn != ALONE)
            keep_fed(b, feed);
        now = hzp_now_ns();
        hzp_wake_wait(client->wake, next > now ? HZP_MIN(next - now, 20000000u) : 0);
        harvest(load, live, &lives);
    }
    load->trained_rows += trained_rows(b) - rows;
    load->seconds += (double)(hzp_now_ns() - begin) * 1e-9;
    hzp_bench_turns_slice(b->turns, b->engine->trainer, 0);
    hzp_trainer_pause(b->engine->trainer, true);
    while (lives) {
        hzp_wake_wait(client->wake, 100000000);
        struct load late = {
            .gap = load->gap, .first = load->first, .gaps = GAPS_MAX, .firsts = FIRST_MAX};
        harvest(&late, live, &lives);
    }
    return r;
}

static double train_alone(struct hzp_bench *b, struct hzp_bench_samples *feed, double seconds)
{
    uint64_t rows = trained_rows(b), begin = hzp_now_ns();
    hzp_trainer_pause(b->engine->trainer, false);
    hzp_loop_poke(b->engine->loop);
    while ((double)(hzp_now_ns() - begin) * 1e-9 < seconds) {
        struct timespec nap = {.tv_nsec = 5000000};
        keep_fed(b, feed);
        nanosleep(&nap, NULL);
    }
    double rate = (double)(trained_rows(b) - rows) / ((double)(hzp_now_ns() - begin) * 1e-9);
    hzp_trainer_pause(b->engine->trainer, true);
    return rate;
}

static void report(struct hzp_bench *b, const char *what, struct load *load)
{
    char name[80];
    const struct {
        const char *text;
        double *value;
        int64_t n;
        double p;
    } row[] = {
        {"gap p50", load->gap, load->gaps, 0.5},
        {"gap p99", load->gap, load->gaps, 0.99},
        {"first token p50", load->first, load->firsts, 0.5},
        {"first token p99", load->first, load->firsts, 0.99},
    };
    for (int i = 0; i < HZP_COUNT(row); i++) {
        snprintf(name, sizeof(name), "%s: %s", what, row[i].text);
        hzp_bench_plain(b, name, 1e3 * hzp_bench_quantile(row[i].value, row[i].n, row[i].p), "ms");
    }
    struct hzp_policy policy;
    hzp_split_policy(hzp_loop_split(b->engine->loop), &policy);
    for (int i = 0; i < 2; i++) {
        double goal = (double)(i ? policy.ttft_ns : policy.itl_ns) * 1e-9, missed = 0;
        const double *value = i ? load->first : load->gap;
        int64_t n = i ? load->firsts : load->gaps;
        for (int64_t k = 0; k < n; k++)
            missed += value[k] > goal;
        snprintf(name, sizeof(name), "%s: %s beyond the goal", what, i ? "first tokens" : "gaps");
        if (goal > 0 && n)
            hzp_bench_plain(b, name, 100 * missed / (double)n, "%");
    }
    snprintf(name, sizeof(name), "%s: served", what);
    hzp_bench_plain(b, name, (double)load->tokens / load->seconds, "tokens/s");
}

/* One way of splitting the device, against serving alone and training alone. */
static void compare(struct hzp_bench *b, const char *what, struct load *off, struct load *on,
                    double alone)
{
    char name[80];
    double trained = (double)on->trained_rows / on->seconds;
    double p99_off = hzp_bench_quantile(off->gap, off->gaps, 0.99);
    double p99_on = hzp_bench_quantile(on->gap, on->gaps, 0.99);
    report(b, what, on);
    snprintf(name, sizeof(name), "%s: trained", what);
    hzp_bench_figure(b, name, trained, "tokens/s", HZP_BENCH_OTHER, alone, "training alone");
    snprintf(name, sizeof(name), "%s: gap p99 over training off", what);
    hzp_bench_plain(b, name, p99_on / p99_off, "x");
    double served = (double)on->tokens / on->seconds / ((double)off->tokens / off->seconds);
    snprintf(name, sizeof(name), "%s: served over training off", what);
    hzp_bench_plain(b, name, served, "x");
    /* Serving alone at full load is twice the half load that `off` saw. */
    snprintf(name, sizeof(name), "%s: co-serving gain", what);
    hzp_bench_plain(b, name, served / 2 + trained / alone, "x");
}

/* What held training where it was, over all steps that had requests and training. */
static void tell_limits(struct hzp_bench *b)
{
    struct hzp_split_report *r = hzp_xmalloc(sizeof(*r));
    char name[80];
    uint64_t all = 0;
    hzp_split_read(hzp_loop_split(b->engine->loop), hzp_now_ns(), r);
    for (int i = HZP_LIMIT_IDLE + 1; i < HZP_LIMIT_COUNT; i++)
        all += r->limited[i];
    for (int i = HZP_LIMIT_IDLE + 1; all && i < HZP_LIMIT_COUNT; i++) {
        snprintf(name, sizeof(name), "steps in which training was limited by: %s",
                 hzp_split_limit_name((enum hzp_split_limit)i));
        hzp_bench_plain(b, name, 100 * (double)r->limited[i] / (double)all, "%");
    }
    hzp_bench_plain(b, "predicted gaps: mean error", 100 * r->error, "%");
    free(r);
}

/* How soon training had the device when requests paused. */
static void tell_switches(struct hzp_bench *b)
{
    struct hzp_bench_switches *s = hzp_xmalloc(sizeof(*s));
    *s = *hzp_bench_turns_switches(b->turns);
    hzp_bench_plain(b, "pauses of requests seen", (double)s->count, "");
    if (s->count) {
        hzp_bench_plain(b, "pause to training: steps between, most", (double)s->steps_between_max,
                        "steps");
        hzp_bench_plain(b, "pause to training p50",
                        1e3 * hzp_bench_quantile(s->seconds, s->count, 0.5), "ms");
        hzp_bench_plain(b, "pause to training p99",
                        1e3 * hzp_bench_quantile(s->seconds, s->count, 0.99), "ms");
        hzp_bench_plain(b, "step before the pause p50",
                        1e3 * hzp_bench_quantile(s->step, s->count, 0.5), "ms");
    }
    free(s);
}

/* Off and on in turns, so that both see the same machine. */
static int measure(struct hzp_bench *b, struct hzp_bench_client *client,
                   struct hzp_bench_samples *feed, double rate, double seconds,
                   struct load load[3], struct hzp_err_text *reterr)
{
    int r = HZP_OK;
    /* What goals leave is learned first. */
    if (b->options->load_slo) {
        struct load lost;
        load_open(&lost);
        r = steady(b, client, feed, TOGETHER, rate / 2, seconds / 2, &lost, reterr);
        load_close(&lost);
    }
    for (int turn = 0; r == HZP_OK && turn < (b->quick ? 1 : 3); turn++)
        for (int who = ALONE; r == HZP_OK && who <= SLICED; who++)
            r = steady(b, client, feed, (enum turn)who, rate / 2, seconds, &load[who], reterr);
    return r;
}

int hzp_bench_coserve(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    if (!b->engine->trainer)
        return hzp_fail(reterr, HZP_EINVAL, "bench coserve: the engine has no trainer");
    struct hzp_bench_client client;
    struct hzp_bench_samples feed;
    struct load load[3];
    int at_once = (int)HZP_MIN(b->options->running_max, 16);
    double rate = 0, seconds = b->quick ? 3 : 10;
    hzp_bench_client_open(b, &client);
    hzp_bench_samples_open(b, &feed);
    for (int i = 0; i < HZP_COUNT(load); i++)
        load_open(&load[i]);
    hzp_trainer_pause(b->engine->trainer, true);
    int r = capacity(b, &client, at_once, seconds, &rate, reterr);
    if (r == HZP_OK) {
        hzp_bench_plain(b, "capacity, 64 tokens in, 48 out", rate, "requests/s");
        r = measure(b, &client, &feed, rate, seconds, load, reterr);
    }
    if (r == HZP_OK) {
        double alone = train_alone(b, &feed, seconds);
        report(b, "training off", &load[ALONE]);
        compare(b, "training on", &load[ALONE], &load[TOGETHER], alone);
        compare(b, "time-slicing", &load[ALONE], &load[SLICED], alone);
        tell_limits(b);
        tell_switches(b);
    }
    for (int i = 0; i < HZP_COUNT(load); i++)
        load_close(&load[i]);
    hzp_bench_samples_close(&feed);
    hzp_bench_client_close(&client);
    return r;
}
