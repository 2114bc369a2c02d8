/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/coserve.c - what training costs those who are being served, and what it gets done.
 *
 * Capacity first: as many requests as run at once, back to back. Then requests arrive steadily
 * (exponential gaps, the same ones every time) at half of that rate, with training off and on in
 * turns, so that both see the same machine. Training alone is measured in the end, for the gain:
 * serve / serve alone + train / train alone.
 */
#include "api/bench/bench.h"
#include "api/bench/samples.h"
#include "api/state.h"

#include "base/arena.h"
#include "base/thread.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 64, TOKENS = 48, LIVE_MAX = 256, GAPS_MAX = 1 << 18, FIRST_MAX = 1 << 14 };

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
                  struct hzp_bench_samples *feed, bool train, double rate, double seconds,
                  struct load *load, struct hzp_err_text *reterr)
{
    struct hzp_request *live[LIVE_MAX];
    int lives = 0, r = HZP_OK;
    uint32_t seed = 99;
    hzp_trainer_pause(b->engine->trainer, !train);
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
        if (train)
            keep_fed(b, feed);
        now = hzp_now_ns();
        hzp_wake_wait(client->wake, next > now ? HZP_MIN(next - now, 20000000u) : 0);
        harvest(load, live, &lives);
    }
    load->trained_rows += trained_rows(b) - rows;
    load->seconds += (double)(hzp_now_ns() - begin) * 1e-9;
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
    snprintf(name, sizeof(name), "%s: served", what);
    hzp_bench_plain(b, name, (double)load->tokens / load->seconds, "tokens/s");
}

static void conclude(struct hzp_bench *b, struct load *off, struct load *on, double alone)
{
    double trained = (double)on->trained_rows / on->seconds;
    double p99_off = hzp_bench_quantile(off->gap, off->gaps, 0.99);
    double p99_on = hzp_bench_quantile(on->gap, on->gaps, 0.99);
    report(b, "training off", off);
    report(b, "training on", on);
    hzp_bench_figure(b, "training on: trained", trained, "tokens/s", HZP_BENCH_OTHER, alone,
                     "training alone");
    hzp_bench_plain(b, "gap p99, training on over off", p99_on / p99_off, "x");
    double served = (double)on->tokens / on->seconds / ((double)off->tokens / off->seconds);
    hzp_bench_plain(b, "served, training on over off", served, "x");
    /* Serving alone at full load is twice the half load that `off` saw. */
    hzp_bench_plain(b, "co-serving gain", served / 2 + trained / alone, "x");
}

int hzp_bench_coserve(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    if (!b->engine->trainer)
        return hzp_fail(reterr, HZP_EINVAL, "bench coserve: the engine has no trainer");
    struct hzp_bench_client client;
    struct hzp_bench_samples feed;
    struct load off, on;
    int at_once = (int)HZP_MIN(b->options->running_max, 16);
    double rate = 0, seconds = b->quick ? 3 : 10;
    hzp_bench_client_open(b, &client);
    hzp_bench_samples_open(b, &feed);
    load_open(&off);
    load_open(&on);
    hzp_trainer_pause(b->engine->trainer, true);
    int r = capacity(b, &client, at_once, seconds, &rate, reterr);
    if (r == HZP_OK)
        hzp_bench_plain(b, "capacity, 64 tokens in, 48 out", rate, "requests/s");
    for (int turn = 0; r == HZP_OK && turn < (b->quick ? 1 : 3); turn++) {
        r = steady(b, &client, &feed, false, rate / 2, seconds, &off, reterr);
        if (r == HZP_OK)
            r = steady(b, &client, &feed, true, rate / 2, seconds, &on, reterr);
    }
    if (r == HZP_OK)
        conclude(b, &off, &on, train_alone(b, &feed, seconds));
    load_close(&off);
    load_close(&on);
    hzp_bench_samples_close(&feed);
    hzp_bench_client_close(&client);
    return r;
}
