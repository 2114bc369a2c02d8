/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/offline.c - measures throughput: --requests requests of --input-len random tokens, each
 * generating --output-len tokens, as many at once as may run.
 *
 * With --steady requests are submitted endlessly and a window of that many seconds is measured.  It
 * begins when all running slots have been taken.  To reach the steady state at once, the first
 * --max-running requests start evenly spread over the length of an answer: request i of n has i/n
 * of its answer's length as additional prompt, and generates only the rest.  Counted are the tokens
 * generated in the window, and the prompts of requests whose first token was generated in it.
 *
 * Steps in it are counted by their rows.
 *
 * The total counts prompt and generated tokens.  The limit is GEMM peak / (2 * weights), as if only
 * the matrix products with weights were computed.
 */
#include "dev/bench/bench.h"

#include "base/thread.h"
#include "nanobatch/loop.h"

#include <stdio.h>
#include <stdlib.h>

enum { ITLS_MAX = 1 << 20, OFFLINE_INPUT = 512, OFFLINE_OUTPUT = 128 };

struct offline {
    struct hzp_bench_client client;
    struct hzp_request **live;
    int32_t lives;
    int64_t input, output; /* tokens of a request */
    int64_t left;          /* still to be submitted */
    int64_t sent;
    bool steady, stopped;
    int64_t first_wave, ended; /* steady: requests that start part-way; requests that have ended */
    uint64_t from_ns, to_ns;   /* the measured window; 0: not known yet */
    double answered, prompted; /* tokens in the window */
    double *itl;
    int64_t itls;
    struct hzp_loop_rows from, to; /* steps at the begin and the end of what is measured */
};

/* Submits one more request; one of the first wave starts part-way. */
static int submit(struct hzp_bench *b, struct offline *o, struct hzp_err_text *reterr)
{
    int64_t prompt = o->input, answer = o->output;
    if (o->sent < o->first_wave) {
        int64_t rest = HZP_MAX(answer * (o->first_wave - o->sent) / o->first_wave, 1);
        prompt += answer - rest;
        answer = rest;
    }
    HZP_TRY(
        hzp_bench_submit(&o->client, (int32_t)prompt, (int32_t)answer, &o->live[o->lives], reterr));
    o->lives++;
    o->sent++;
    o->left--;
    return HZP_OK;
}

/* Submits as many requests as may run, and some that wait.  A full queue is filled again when the
 * engine has taken some; it is an error only if it has none to take. */
static int fill(struct hzp_bench *b, struct offline *o, struct hzp_err_text *reterr)
{
    const struct hzp_serving_settings *s = &b->started->serving;
    int64_t most = s->running_max + HZP_MIN(s->waiting_max, s->running_max / 4);
    while (o->lives < most && o->left > 0) {
        int r = submit(b, o, reterr);
        if (r == HZP_EBUSY && o->lives > 0)
            return HZP_OK;
        HZP_TRY(r);
    }
    return HZP_OK;
}

/* Counts the request's tokens within the window. */
static void count(struct offline *o, const struct hzp_bench *b, struct hzp_request *rq)
{
    int32_t tokens = atomic_load(&rq->out_count);
    for (int32_t i = 0; i < tokens; i++) {
        if (rq->out[i].at_ns < o->from_ns || rq->out[i].at_ns >= o->to_ns)
            continue;
        o->answered++;
        if (i == 0)
            o->prompted += (double)o->input;
        else if (o->itls < ITLS_MAX)
            o->itl[o->itls++] = (double)(rq->out[i].at_ns - rq->out[i - 1].at_ns) * 1e-9;
    }
}

static void harvest(struct hzp_bench *b, struct offline *o)
{
    for (int32_t i = 0; i < o->lives;) {
        if (!hzp_request_final(o->live[i])) {
            i++;
            continue;
        }
        if (o->steady)
            count(o, b, o->live[i]);
        else
            o->itls = hzp_bench_itls(o->live[i], o->itl, o->itls, ITLS_MAX);
        hzp_request_destroy(o->live[i]);
        o->live[i] = o->live[--o->lives];
        o->ended++;
    }
}

/* Opens the window once as many answers have begun as requests may run; at its end cancels all
 * requests. */
static void keep_window(struct hzp_bench *b, struct offline *o)
{
    uint64_t now = hzp_now_ns();
    if (!o->from_ns) {
        int64_t begun = o->ended;
        for (int32_t i = 0; i < o->lives; i++)
            begun += atomic_load(&o->live[i]->out_count) > 0;
        if (begun >= o->first_wave) {
            hzp_loop_read_rows(b->engine->parts.loop, &o->from);
            o->from_ns = now;
            o->to_ns = now + (uint64_t)(b->settings->steady_seconds * 1e9);
        }
    } else if (now >= o->to_ns && !o->stopped) {
        o->stopped = true;
        o->left = 0;
        hzp_loop_read_rows(b->engine->parts.loop, &o->to);
        for (int32_t i = 0; i < o->lives; i++)
            atomic_store(&o->live[i]->cancel, true);
        hzp_loop_poke(b->engine->parts.loop);
    }
}

/* "0", "1", "2-3", "4-7" ... "1024+" */
static const char *rows_text(int at, char text[24])
{
    int least = at ? 1 << (at - 1) : 0, most = 2 * least - 1;
    if (at == HZP_LOOP_ROWS - 1)
        snprintf(text, 24, "%d+", least);
    else if (most > least)
        snprintf(text, 24, "%d-%d", least, most);
    else
        snprintf(text, 24, "%d", least);
    return text;
}

/* The steps by their rows: how many, and their time. */
static void report_steps(struct hzp_bench *b, const struct offline *o)
{
    char name[96], decodes[24], prompts[24];
    for (int d = 0; d < HZP_LOOP_ROWS; d++)
        for (int p = 0; p < HZP_LOOP_ROWS; p++) {
            uint64_t steps = o->to.steps[d][p] - o->from.steps[d][p];
            if (!steps)
                continue;
            snprintf(name, sizeof(name), "steps, %s decodes, %s prompt rows", rows_text(d, decodes),
                     rows_text(p, prompts));
            hzp_bench_plain(b, name, (double)steps, "steps");
            snprintf(name, sizeof(name), "time, %s decodes, %s prompt rows", decodes, prompts);
            hzp_bench_plain(b, name, (double)(o->to.ns[d][p] - o->from.ns[d][p]) * 1e-6, "ms");
        }
}

static void report(struct hzp_bench *b, struct offline *o, double seconds)
{
    const struct hzp_load_settings *load = &b->settings->load;
    double answers = (double)(load->requests * o->output);
    double prompts = (double)(load->requests * o->input);
    if (o->steady) {
        hzp_bench_plain(b, "offline, ramp-up until all slots are in use",
                        seconds - b->settings->steady_seconds, "s");
        seconds = b->settings->steady_seconds;
        answers = o->answered;
        prompts = o->prompted;
    }
    double flops = 2 * hzp_bench_row_macs(&b->engine->parts.config, true);
    hzp_bench_figure(b, "offline, prompts and answers", (prompts + answers) / seconds, "tokens/s",
                     HZP_BENCH_GEMM, 1 / flops, "GEMM peak / 2 N");
    hzp_bench_plain(b, "offline, tokens of a prompt", (double)o->input, "tokens");
    hzp_bench_plain(b, "offline, tokens of an answer", (double)o->output, "tokens");
    hzp_bench_plain(b, "offline, answers", answers / seconds, "tokens/s");
    hzp_bench_plain(b, o->steady ? "offline, measured window" : "offline, duration", seconds, "s");
    hzp_bench_plain(b, "ITL median", 1e3 * hzp_bench_quantile(o->itl, o->itls, 0.5), "ms");
    hzp_bench_plain(b, "ITL p99", 1e3 * hzp_bench_quantile(o->itl, o->itls, 0.99), "ms");
    report_steps(b, o);
}

/* Lengths that are not given: 512 and 128 tokens, or a half and a quarter of a shorter context. */
static int choose_lengths(const struct hzp_bench *b, struct offline *o, struct hzp_err_text *reterr)
{
    const struct hzp_load_settings *load = &b->settings->load;
    int64_t positions = b->engine->parts.plan.positions;
    bool fits = OFFLINE_INPUT + OFFLINE_OUTPUT <= positions;
    o->output = load->output ? load->output : fits ? OFFLINE_OUTPUT : HZP_MAX(positions / 4, 1);
    o->input = load->input ? load->input : fits ? OFFLINE_INPUT : HZP_MAX(positions / 2, 1);
    if (o->input + o->output <= positions)
        return HZP_OK;
    return hzp_fail_param(reterr, HZP_EINVAL, "--input-len",
                          "bench offline: --input-len %lld + --output-len %lld, but a sequence has "
                          "%lld tokens at most",
                          (long long)o->input, (long long)o->output, (long long)positions);
}

int hzp_bench_offline(struct hzp_bench *b, struct hzp_err_text *reterr)
{
    const struct hzp_load_settings *load = &b->settings->load;
    struct offline o = {.left = load->requests};
    HZP_TRY(choose_lengths(b, &o, reterr));
    o.steady = b->settings->steady_seconds > 0;
    if (o.steady) {
        o.left = INT64_MAX;
        o.first_wave = b->started->serving.running_max;
    }
    o.live =
        hzp_xcalloc((size_t)(2 * b->started->serving.running_max), sizeof(struct hzp_request *));
    o.itl = hzp_xmalloc(ITLS_MAX * sizeof(*o.itl));
    hzp_bench_client_open(b, &o.client);
    hzp_loop_read_rows(b->engine->parts.loop, &o.from);
    uint64_t begin = hzp_now_ns();
    int r = fill(b, &o, reterr);
    while (o.lives > 0) {
        if (o.steady)
            keep_window(b, &o);
        hzp_wake_wait(o.client.wake, o.steady ? 20000000 : 1000000000);
        harvest(b, &o);
        if (r == HZP_OK && !o.stopped)
            r = fill(b, &o, reterr);
        if (r < 0 && o.steady && !o.stopped) { /* end the endless load now */
            o.from_ns = o.from_ns ? o.from_ns : 1;
            o.to_ns = 1;
        }
    }
    uint64_t end = o.steady ? o.to_ns : hzp_now_ns();
    hzp_bench_client_close(&o.client);
    if (!o.steady)
        hzp_loop_read_rows(b->engine->parts.loop, &o.to);
    if (r == HZP_OK)
        report(b, &o, (double)(end - begin) * 1e-9);
    free(o.itl);
    free(o.live);
    return r;
}
