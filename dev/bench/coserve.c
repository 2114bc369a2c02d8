/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/coserve.c - measures what training costs the requests served at the same time, and how
 * much it trains meanwhile.
 *
 * Rounds of five phases, interleaved, so that slow changes of the machine affect all of them alike:
 *
 *     capacity   the maximum number of requests in flight, back to back, training off
 *     off, on    requests arrive at a fraction of the throughput of the first round's capacity
 *                phase, training off and on.  The intervals between arrivals are exponential, from
 *                a fixed seed, scaled so that every eight of them sum to eight mean intervals.  At
 *                most as many requests run as in `capacity`, further ones wait in the server
 *     slices     the same, but the device alternates between both in slices of 50 ms
 *     alone      training alone
 *
 *     gain = served / served at capacity + trained / trained alone
 *
 * Each in tokens per second over all rounds.  `served` counts the tokens generated within the
 * measured part of a phase, no matter when their request arrived; a warm-up of half its length
 * precedes it.  So a longer response is not a loss as long as the server keeps up: `carried` is
 * generated tokens / requested tokens in that time.  `trained` is the floating-point operations
 * done, converted to the tokens that training alone processes with as many.
 *
 * Before the rounds single requests alternate with pauses, to measure how many steps and how much
 * time pass until training gets the device.
 *
 * With --slo training keeps to these goals, and their miss rates are reported.
 */
#include "dev/bench/bench.h"
#include "dev/bench/samples.h"
#include "dev/bench/turns.h"
#include "api/cli/quiet.h"
#include "api/learn/state.h"

#include "base/thread.h"
#include "nanobatch/loop.h"
#include "nanobatch/split/split.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LIVE_MAX = 256, ITLS_MAX = 1 << 20, FIRST_MAX = 1 << 16, SAMPLE_ROWS = 256, BLOCK = 8 };

/* A machine counts as disturbed from here on: its own speed moved, or others took that much. */
static const double disturbed = 1.1;

/* Number and length of the pauses between requests that measure how soon training gets the
 * device. */
enum { SWITCHES = 24, WARM_PHASES = 16 };
static const uint64_t pause_ns = 40000000;

static const uint64_t slices_ns = 100000000; /* period: one slice of serving, one of training */

enum phase { FULL, ALONE, TOGETHER, SLICED, TRAINING, PHASES };
static const char *const phase_name[PHASES] = {"capacity", "training off", "training on",
                                               "time-slicing", "training alone"};

/* Results of one phase, summed over all rounds. */
struct load {
    double *itl, *first; /* inter-token latencies; times to first token */
    int64_t itls, firsts;
    double seconds, flops, least, most; /* least, most: rate of the slowest and fastest round */
    uint64_t tokens, asked, rows;
    double serve_s, train_s;
    uint64_t steps;
    int64_t in_flight; /* requests in flight at the end of each phase, summed */
};

struct coserve {
    struct hzp_bench *b;
    struct hzp_bench_client client;
    struct hzp_bench_samples feed;
    struct load load[PHASES];
    struct hzp_request *live[LIVE_MAX];
    int lives;
    int32_t prompt, tokens, at_once;
    double seconds, rate;    /* length of a phase; arrivals per second */
    uint64_t from_ns, to_ns; /* measured part of the phase */
    /* CPU time of the phases so far: all there was, what others took, and the hypervisor's part of
     * that */
    double watched_ns, others_ns, stolen_ns;
    double interval[BLOCK];
    int interval_at;
};

static void load_open(struct load *load)
{
    *load = (struct load){.itl = hzp_xmalloc(ITLS_MAX * sizeof(double)),
                          .first = hzp_xmalloc(FIRST_MAX * sizeof(double)),
                          .least = INFINITY};
}

static void load_close(struct load *load)
{
    free(load->itl);
    free(load->first);
}

/* ---- one phase ---- */

static bool counts(const struct coserve *c, uint64_t at_ns)
{
    return at_ns >= c->from_ns && at_ns < c->to_ns;
}

static void count_request(struct coserve *c, struct load *load, struct hzp_request *rq)
{
    int32_t count = atomic_load(&rq->out_count);
    for (int32_t i = 0; i < count; i++) {
        uint64_t at = rq->out[i].at_ns;
        if (!counts(c, at))
            continue;
        load->tokens++;
        if (i && load->itls < ITLS_MAX)
            load->itl[load->itls++] = (double)(at - rq->out[i - 1].at_ns) * 1e-9;
        else if (!i && load->firsts < FIRST_MAX)
            load->first[load->firsts++] = (double)(at - rq->submitted_ns) * 1e-9;
    }
}

static void harvest(struct coserve *c, struct load *load)
{
    for (int i = 0; i < c->lives;) {
        struct hzp_request *rq = c->live[i];
        if (!hzp_request_final(rq)) {
            i++;
            continue;
        }
        count_request(c, load, rq);
        hzp_request_destroy(rq);
        c->live[i] = c->live[--c->lives];
    }
}

static int submit(struct coserve *c, struct load *load, struct hzp_err_text *reterr)
{
    int r = hzp_bench_submit(&c->client, c->prompt, c->tokens, &c->live[c->lives], reterr);
    if (r < 0)
        return r;
    if (counts(c, c->live[c->lives]->submitted_ns))
        load->asked += (uint64_t)c->tokens;
    c->lives++;
    return HZP_OK;
}

static uint64_t trained_rows(struct hzp_bench *b)
{
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(b->engine->parts.trainer, &stats);
    return stats.rows;
}

static uint64_t trained_updates(struct hzp_bench *b)
{
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(b->engine->parts.trainer, &stats);
    return stats.updates;
}

/* Keeps enough samples queued that training never waits for one. */
static void keep_fed(struct coserve *c)
{
    struct hzp_sample_queue_stats stats;
    struct hzp_engine *e = c->b->engine;
    hzp_sample_queue_read_stats(hzp_state_queue(e->state), &stats);
    if (stats.samples < 32)
        hzp_bench_samples_push(&c->feed, 32, HZP_MIN(SAMPLE_ROWS, e->parts.plan.recipe.micro_rows));
}

/* A snapshot of the engine's counters. */
struct progress {
    struct hzp_loop_stats loop;
    uint64_t flops, rows, at_ns;
};

static struct progress progress_of(struct coserve *c)
{
    struct progress p = {.flops = hzp_bench_turns_trained(c->b->turns),
                         .rows = trained_rows(c->b),
                         .at_ns = hzp_now_ns()};
    hzp_loop_read_stats(c->b->engine->parts.loop, &p.loop);
    return p;
}

/* tokens: generated in the measured part of the phase. */
static void count_progress(struct load *load, const struct progress *from,
                           const struct progress *to, uint64_t tokens)
{
    double seconds = (double)(to->at_ns - from->at_ns) * 1e-9;
    double flops = (double)(to->flops - from->flops);
    double rate = (tokens ? (double)tokens : flops) / seconds;
    load->seconds += seconds;
    load->flops += flops;
    load->rows += to->rows - from->rows;
    load->steps += to->loop.serve_steps - from->loop.serve_steps;
    load->serve_s += (double)(to->loop.serve_ns - from->loop.serve_ns) * 1e-9;
    load->train_s += (double)(to->loop.train_ns - from->loop.train_ns) * 1e-9;
    load->least = HZP_MIN(load->least, rate);
    load->most = HZP_MAX(load->most, rate);
}

static void let_train(struct coserve *c, enum phase phase)
{
    struct hzp_engine *e = c->b->engine;
    hzp_trainer_pause(e->parts.trainer, phase == FULL || phase == ALONE);
    hzp_bench_turns_slice(c->b->turns, e->parts.trainer, phase == SLICED ? slices_ns : 0);
    hzp_loop_poke(e->parts.loop);
}

/* Ends the requests still in flight, which may be more than a phase can answer; their tokens within
 * the measured part count. */
static void drain(struct coserve *c, struct load *load)
{
    hzp_bench_turns_slice(c->b->turns, c->b->engine->parts.trainer, 0);
    hzp_trainer_pause(c->b->engine->parts.trainer, true);
    for (int i = 0; i < c->lives; i++)
        atomic_store(&c->live[i]->cancel, true);
    hzp_loop_poke(c->b->engine->parts.loop);
    while (c->lives) {
        hzp_wake_wait(c->client.wake, 100000000);
        harvest(c, load);
    }
}

/* Draws the next BLOCK intervals between arrivals in seconds: exponential, scaled so that their sum
 * is BLOCK / rate.  So even a short phase has the intended load. */
static void draw_intervals(struct coserve *c, uint32_t *seed)
{
    double all = 0;
    for (int i = 0; i < BLOCK; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        c->interval[i] = -log(((*seed >> 8) + 1) / 16777217.0);
        all += c->interval[i];
    }
    for (int i = 0; i < BLOCK; i++)
        c->interval[i] *= BLOCK / (c->rate * all);
}

/* Submits the requests that are due: up to the maximum in flight (capacity), or those that have
 * arrived. */
static int arrive(struct coserve *c, enum phase phase, struct load *load, uint32_t *seed,
                  uint64_t *next_ns, struct hzp_err_text *reterr)
{
    int most = phase == FULL ? c->at_once : phase == TRAINING ? 0 : LIVE_MAX;
    while (c->lives < most && (phase == FULL || *next_ns <= hzp_now_ns())) {
        HZP_TRY(submit(c, load, reterr));
        if (c->interval_at % BLOCK == 0)
            draw_intervals(c, seed);
        *next_ns += (uint64_t)(c->interval[c->interval_at++ % BLOCK] * 1e9);
    }
    return HZP_OK;
}

/* Runs the phase until to_ns; *ret_from: the counters at the begin of its measured part. */
static int keep_up(struct coserve *c, enum phase phase, uint32_t seed, struct load *load,
                   struct progress *ret_from, struct hzp_err_text *reterr)
{
    uint64_t next = hzp_now_ns();
    c->interval_at = 0;
    ret_from->at_ns = 0;
    while (hzp_now_ns() < c->to_ns) {
        if (!ret_from->at_ns && hzp_now_ns() >= c->from_ns)
            *ret_from = progress_of(c);
        HZP_TRY(arrive(c, phase, load, &seed, &next, reterr));
        if (phase >= TOGETHER)
            keep_fed(c);
        uint64_t now = hzp_now_ns();
        uint64_t until = HZP_MIN(now + 20000000u, ret_from->at_ns ? c->to_ns : c->from_ns);
        if (phase != FULL && phase != TRAINING)
            until = HZP_MIN(until, next);
        hzp_wake_wait(c->client.wake, until > now ? until - now : 0);
        harvest(c, load);
    }
    return HZP_OK;
}

/* The time that a hypervisor took from all processors so far, in ns. */
static double stolen_now(void)
{
    double ticks = 0;
    FILE *file = fopen("/proc/stat", "re");
    if (file && fscanf(file, "cpu %*f %*f %*f %*f %*f %*f %*f %lf", &ticks) != 1)
        ticks = 0;
    if (file)
        fclose(file);
    return ticks * 1e9 / (double)sysconf(_SC_CLK_TCK);
}

static int run_phase(struct coserve *c, enum phase phase, double seconds, uint32_t seed,
                     struct load *load, struct hzp_err_text *reterr)
{
    struct progress from, to;
    struct hzp_quiet quiet;
    double stolen = stolen_now();
    uint64_t before = load->tokens;
    hzp_quiet_begin(&quiet);
    c->from_ns = hzp_now_ns() + (uint64_t)(seconds * 5e8);
    c->to_ns = c->from_ns + (uint64_t)(seconds * 1e9);
    let_train(c, phase);
    int r = keep_up(c, phase, seed, load, &from, reterr);
    to = progress_of(c);
    load->in_flight += c->lives;
    hzp_quiet_end(&quiet, &c->watched_ns, &c->others_ns);
    c->stolen_ns += stolen_now() - stolen;
    drain(c, load);
    if (r == HZP_OK && from.at_ns)
        count_progress(load, &from, &to, load->tokens - before);
    return r;
}

/* Runs one short request at a time, with pauses in which training should get the device. */
static int measure_switches(struct coserve *c, struct hzp_err_text *reterr)
{
    struct load lost;
    int r = HZP_OK;
    load_open(&lost);
    let_train(c, TOGETHER);
    for (int i = 0; r == HZP_OK && i < SWITCHES; i++) {
        keep_fed(c);
        r = hzp_bench_submit(&c->client, c->prompt, HZP_MIN(c->tokens, 8), &c->live[0], reterr);
        c->lives = r == HZP_OK;
        while (c->lives) {
            hzp_wake_wait(c->client.wake, 100000000);
            harvest(c, &lost);
        }
        for (uint64_t now, until = hzp_now_ns() + pause_ns; (now = hzp_now_ns()) < until;)
            hzp_wake_wait(c->client.wake, until - now);
    }
    hzp_trainer_pause(c->b->engine->parts.trainer, true);
    load_close(&lost);
    return r;
}

/* The seconds that the warm-up takes, if a first update ends within one phase of it. */
static double warm_up(const struct coserve *c)
{
    return 1.5 * c->seconds * (1.0 / 8 + 1.0 / 4 + 1.0 / 2) + SWITCHES * 2e-9 * (double)pause_ns;
}

/* rounds: that have not ended, of the first from `phase` on; more: seconds before them. */
static void say_left(const struct coserve *c, int rounds, int phase, const char *what, double more)
{
    fprintf(stderr, "%s; about %.0f s left\n", what,
            more + 1.5 * c->seconds * (double)(PHASES * rounds - phase));
}

/* Runs the warm-up and then the rounds. */
static int measure(struct coserve *c, double load_part, int rounds, struct hzp_err_text *reterr)
{
    struct load lost;
    load_open(&lost);
    struct hzp_split *split = hzp_loop_split(c->b->engine->parts.loop);
    struct hzp_policy policy, none;
    hzp_split_policy(split, &policy);
    none = policy;
    none.itl_ns = none.ttft_ns = 0;
    say_left(c, rounds, FULL, "warming up", warm_up(c));
    /* Warm-up without goals: chooses kernels and learns prices and prediction errors; the first
     * requests are slow for that reason. */
    hzp_split_set_policy(split, &none);
    int r = run_phase(c, FULL, c->seconds / 8, 1, &lost, reterr);
    /* At least a small rate, for a phase too short to generate a token. */
    c->rate = HZP_MAX(load_part * (double)lost.tokens / lost.seconds / c->tokens, 0.01);
    /* A whole update: the first run of each of its operations is slow, on memory never touched. */
    for (int i = 0; r == HZP_OK && i < WARM_PHASES && (!i || !trained_updates(c->b)); i++) {
        if (i)
            say_left(c, rounds, FULL, "warming up, until a first update has ended", warm_up(c));
        r = run_phase(c, TRAINING, c->seconds / 4, 1, &lost, reterr);
    }
    hzp_split_set_policy(split, &policy);
    if (r == HZP_OK)
        r = run_phase(c, TOGETHER, c->seconds / 2, 7, &lost, reterr);
    load_close(&lost);
    if (r == HZP_OK)
        r = measure_switches(c, reterr);
    c->watched_ns = c->others_ns = c->stolen_ns = 0;
    for (int turn = 0; r == HZP_OK && turn < rounds; turn++)
        for (int phase = FULL; r == HZP_OK && phase < PHASES; phase++) {
            char what[64];
            snprintf(what, sizeof(what), "round %d of %d, %s", turn + 1, rounds, phase_name[phase]);
            say_left(c, rounds - turn, phase, what, 0);
            r = run_phase(c, (enum phase)phase, c->seconds, 99 + (uint32_t)turn, &c->load[phase],
                          reterr);
            if (phase == FULL && turn == 0)
                c->rate = HZP_MAX(load_part * (double)c->load[FULL].tokens / c->load[FULL].seconds /
                                      c->tokens,
                                  0.01);
        }
    return r;
}

/* ---- reporting ---- */

static void tell(struct hzp_bench *b, const char *what, const char *of, double value,
                 const char *unit)
{
    char name[80];
    snprintf(name, sizeof(name), "%s: %s", what, of);
    hzp_bench_plain(b, name, value, unit);
}

static void tell_goals(struct hzp_bench *b, const char *what, const struct load *load)
{
    struct hzp_policy policy;
    hzp_split_policy(hzp_loop_split(b->engine->parts.loop), &policy);
    for (int i = 0; i < 2; i++) {
        double goal = (double)(i ? policy.ttft_ns : policy.itl_ns) * 1e-9, missed = 0;
        const double *value = i ? load->first : load->itl;
        int64_t n = i ? load->firsts : load->itls;
        for (int64_t k = 0; k < n; k++)
            missed += value[k] > goal;
        if (goal > 0 && n)
            tell(b, what, i ? "TTFTs beyond the goal" : "ITLs beyond the goal",
                 100 * missed / (double)n, "%");
    }
}

/* Reports where a step's time went. */
static void tell_steps(struct hzp_bench *b, const char *what, const struct load *load)
{
    if (!load->steps)
        return;
    double steps = (double)load->steps;
    tell(b, what, "tokens a step", (double)load->tokens / steps, "");
    tell(b, what, "wall time a step", 1e3 * load->seconds / steps, "ms");
    tell(b, what, "device time of serving a step", 1e3 * load->serve_s / steps, "ms");
    tell(b, what, "device time of training a step", 1e3 * load->train_s / steps, "ms");
}

static void report(struct coserve *c, enum phase phase)
{
    struct hzp_bench *b = c->b;
    struct load *load = &c->load[phase];
    const char *what = phase_name[phase];
    const struct {
        const char *text;
        double *value;
        int64_t n;
        double p;
    } row[] = {
        {"ITL p50", load->itl, load->itls, 0.5},
        {"ITL p99", load->itl, load->itls, 0.99},
        {"first token p50", load->first, load->firsts, 0.5},
        {"first token p99", load->first, load->firsts, 0.99},
    };
    for (int i = 0; i < HZP_COUNT(row); i++)
        tell(b, what, row[i].text, 1e3 * hzp_bench_quantile(row[i].value, row[i].n, row[i].p),
             "ms");
    tell_goals(b, what, load);
    tell(b, what, "served", (double)load->tokens / load->seconds, "tokens/s");
    tell(b, what, "served, fastest over slowest round", load->most / load->least, "x");
    if (phase != FULL)
        tell(b, what, "carried: generated over requested",
             (double)load->tokens / (double)load->asked, "x");
    tell(b, what, "running or waiting at the end",
         (double)load->in_flight / (double)b->settings->coserve.rounds, "requests");
    tell_steps(b, what, load);
}

/* Reports one way of splitting the device, compared with serving alone and training alone. */
static void compare(struct coserve *c, enum phase phase)
{
    char name[80];
    struct hzp_bench *b = c->b;
    struct load *on = &c->load[phase], *off = &c->load[ALONE];
    const struct load *full = &c->load[FULL], *alone = &c->load[TRAINING];
    const char *what = phase_name[phase];
    report(c, phase);
    double part = on->flops / on->seconds / (alone->flops / alone->seconds);
    double rows = (double)alone->rows / alone->seconds;
    snprintf(name, sizeof(name), "%s: trained", what);
    hzp_bench_figure(b, name, part * rows, "tokens/s", HZP_BENCH_OTHER, rows, "training alone");
    double p99_on = hzp_bench_quantile(on->itl, on->itls, 0.99);
    double p99_off = hzp_bench_quantile(off->itl, off->itls, 0.99);
    tell(b, what, "ITL p99 over training off", p99_on / p99_off, "x");
    double rate = (double)on->tokens / on->seconds;
    tell(b, what, "served over training off", rate / ((double)off->tokens / off->seconds), "x");
    double served = rate / ((double)full->tokens / full->seconds);
    tell(b, what, "served over capacity", served, "x");
    tell(b, what, "co-serving gain", served + part, "x");
}

/* Reports what limited training, over all steps that had both requests and training. */
static void tell_limits(struct hzp_bench *b)
{
    struct hzp_split_report *r = hzp_xmalloc(sizeof(*r));
    char name[80];
    uint64_t all = 0;
    hzp_split_read(hzp_loop_split(b->engine->parts.loop), hzp_now_ns(), r);
    for (int i = HZP_LIMIT_IDLE + 1; i < HZP_LIMIT_COUNT; i++)
        all += r->limited[i];
    for (int i = HZP_LIMIT_IDLE + 1; all && i < HZP_LIMIT_COUNT; i++) {
        snprintf(name, sizeof(name), "steps in which training was limited by: %s",
                 hzp_split_limit_name((enum hzp_split_limit)i));
        hzp_bench_plain(b, name, 100 * (double)r->limited[i] / (double)all, "%");
    }
    double served = HZP_MAX((double)r->steps, 1.0);
    hzp_bench_plain(b, "steps that trained and served", 100 * (double)r->trained / served, "%");
    hzp_bench_plain(b, "steps that trained beside serving", 100 * (double)r->beside / served, "%");
    hzp_bench_plain(b, "steps in which serving waited for training", 100 * (double)r->held / served,
                    "%");
    if (r->derived_itl_ns)
        hzp_bench_plain(b, "ITL goal from --train-share stretch", 1e-6 * (double)r->derived_itl_ns,
                        "ms");
    if (r->derived_ttft_ns)
        hzp_bench_plain(b, "TTFT goal from --train-share stretch",
                        1e-6 * (double)r->derived_ttft_ns, "ms");
    hzp_bench_plain(b, "newest step: serving alone, predicted", 1e-6 * r->alone_ns, "ms");
    hzp_bench_plain(b, "newest step: slowdown by training, predicted", r->slowdown, "x");
    hzp_bench_plain(b, "newest step: ITL, predicted", 1e-6 * r->itl_ns, "ms");
    hzp_bench_plain(b, "newest step: part of the ITL goal aimed at", 100 * r->aim, "%");
    hzp_bench_plain(b, "predicted ITL: mean error", 100 * r->error, "%");
    free(r);
}

/* Reports how soon training got the device when requests paused. */
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

/* What one sees of it: p of ITL or first tokens with training, over without. */
static double longer(struct coserve *c, bool first, double p)
{
    struct load *on = &c->load[TOGETHER], *off = &c->load[ALONE];
    if (first)
        return hzp_bench_quantile(on->first, on->firsts, p) /
               hzp_bench_quantile(off->first, off->firsts, p);
    return hzp_bench_quantile(on->itl, on->itls, p) / hzp_bench_quantile(off->itl, off->itls, p);
}

static double gain_of(const struct coserve *c, enum phase phase)
{
    const struct load *on = &c->load[phase], *full = &c->load[FULL], *alone = &c->load[TRAINING];
    return (double)on->tokens / on->seconds / ((double)full->tokens / full->seconds) +
           on->flops / on->seconds / (alone->flops / alone->seconds);
}

/* What training costs the requests, what it yields, what to change; and how disturbed the machine
 * was: what others took of it, and how far its own speed moved between repeated phases. */
static void verdict(struct coserve *c)
{
    const struct load *full = &c->load[FULL], *alone = &c->load[TRAINING];
    const struct load *on = &c->load[TOGETHER];
    struct load *off = &c->load[ALONE];
    double moved = HZP_MAX(full->most / full->least, alone->most / alone->least);
    double others = c->others_ns / HZP_MAX(c->watched_ns, 1);
    double stolen = c->stolen_ns / HZP_MAX(c->watched_ns, 1);
    hzp_bench_plain(c->b, "the machine: taken by others", 100 * others, "%");
    hzp_bench_plain(c->b, "the machine: taken by the hypervisor", 100 * stolen, "%");
    hzp_bench_plain(c->b, "the machine: its own speed, fastest over slowest", moved, "x");
    snprintf(c->b->verdict, sizeof(c->b->verdict),
             "you pay: inter-token latency %.2f x at the median and %.2f x at p99, first tokens "
             "%.2f x at p99\n"
             "you get: %.0f %% of what training alone does, and all requests: together %.2f of the "
             "device (in time slices %.2f)\n"
             "to set: --train-share 0.25 for less latency; --slo itl=%.0fms (twice the p99 without "
             "training), or what your users do not notice, for more training\n"
             "the machine: others took %.1f %% of the processors, the hypervisor %.1f %%; its own "
             "speed moved by %.2f x between rounds: %s\n",
             longer(c, false, 0.5), longer(c, false, 0.99), longer(c, true, 0.99),
             100 * on->flops / on->seconds / (alone->flops / alone->seconds), gain_of(c, TOGETHER),
             gain_of(c, SLICED), ceil(2e3 * hzp_bench_quantile(off->itl, off->itls, 0.99)),
             100 * others, 100 * stolen, moved,
             others > disturbed - 1 || moved > disturbed
                 ? "disturbed, and these figures move as much; measure when it is idle"
             : c->b->settings->coserve.rounds > 1 && !c->b->quick ? "quiet"
                                                                  : "not known with one round");
}

int hzp_bench_coserve(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    const struct hzp_load_settings *o = &b->settings->load;
    const struct hzp_coserve_settings *s = &b->settings->coserve;
    if (!b->engine->parts.trainer)
        return hzp_fail(reterr, HZP_EINVAL, "bench coserve: the engine has no trainer");
    if (o->input + o->output > b->engine->parts.model->positions)
        return hzp_fail(reterr, HZP_EINVAL,
                        "bench coserve: --input-len and --output-len are more "
                        "than the context's %d tokens",
                        b->engine->parts.model->positions);
    struct coserve *c = hzp_xcalloc(1, sizeof(*c));
    c->b = b;
    c->prompt = (int32_t)o->input;
    c->tokens = (int32_t)o->output;
    c->at_once = (int)HZP_MIN(b->started->serving.running_max, LIVE_MAX);
    c->seconds = b->quick ? HZP_MIN(s->seconds, 3) : s->seconds;
    hzp_bench_client_open(b, &c->client);
    hzp_bench_samples_open(b, &c->feed);
    for (int i = 0; i < PHASES; i++)
        load_open(&c->load[i]);
    hzp_trainer_pause(b->engine->parts.trainer, true);
    int r = measure(c, s->load, b->quick ? 1 : (int)s->rounds, reterr);
    if (r == HZP_OK) {
        report(c, FULL);
        report(c, ALONE);
        compare(c, TOGETHER);
        compare(c, SLICED);
        const struct load *alone = &c->load[TRAINING];
        tell(b, phase_name[TRAINING], "fastest over slowest round", alone->most / alone->least,
             "x");
        tell_limits(b);
        tell_switches(b);
        verdict(c);
    }
    for (int i = 0; i < PHASES; i++)
        load_close(&c->load[i]);
    hzp_bench_samples_close(&c->feed);
    hzp_bench_client_close(&c->client);
    free(c);
    return r;
}
