/* SPDX-License-Identifier: Apache-2.0 */
#include "lab.h"

#include <stdlib.h>
#include <time.h>

/* A stream accepts about a thousand launches before the host has to wait: OPEN_AT is well below. */
enum { MAX_CALLS = 2000, OPEN_AT = 300, SAMPLES = 7, ROUNDS = 3 };

double lab_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int lab_compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double lab_time(lab_run run, void *arg, const struct lab_lane *lane, double ms)
{
    cudaEvent_t e[2];
    double samples[SAMPLES];
    float span = 0;
    int reps = 2;
    int call = 0;

    for (int i = 0; i < 2; i++)
        LAB_CUDA(cudaEventCreate(&e[i]));
    for (int s = -2; s < SAMPLES; s++) {
        LAB_CUDA(cudaEventRecord(e[0], lane->stream));
        for (int i = 0; i < reps; i++)
            run(arg, lane, call++);
        LAB_CUDA(cudaEventRecord(e[1], lane->stream));
        LAB_CUDA(cudaEventSynchronize(e[1]));
        LAB_CUDA(cudaEventElapsedTime(&span, e[0], e[1]));
        if (s == -1) {
            double each = span / reps;
            reps = (int)(ms / each) + 1;
            if (reps > 400)
                reps = 400;
        }
        if (s >= 0)
            samples[s] = span * 1e3 / reps;
    }
    for (int i = 0; i < 2; i++)
        LAB_CUDA(cudaEventDestroy(e[i]));
    qsort(samples, SAMPLES, sizeof *samples, lab_compare);
    return samples[SAMPLES / 2];
}

/* Milliseconds after the gate at which each call of a side ended; at[0] is the earliest begin. */
struct trace {
    double at[MAX_CALLS + 1];
    int calls;
    cudaEvent_t e[MAX_CALLS + 1];
};

static struct trace traces[2];
static cudaEvent_t opened;

static void traces_open(void)
{
    if (opened)
        return;
    LAB_CUDA(cudaEventCreate(&opened));
    for (int s = 0; s < 2; s++)
        for (int i = 0; i <= MAX_CALLS; i++)
            LAB_CUDA(cudaEventCreate(&traces[s].e[i]));
}

static void gate_shut(const struct lab_side *const *sides)
{
    *(volatile int *)lab.flag = 0;
    LAB_CUDA(lab_gate(lab.flag, lab.gate));
    LAB_CUDA(cudaEventRecord(opened, lab.gate));
    for (int s = 0; s < 2; s++)
        LAB_CUDA(cudaStreamWaitEvent(sides[s]->lane->stream, opened, 0));
}

/* Issues both sides' calls in proportion, opens the gate, waits, reads the times. */
static void issue(const struct lab_side *const *sides, const int *calls)
{
    int done[2] = {0, 0};
    float ms;

    gate_shut(sides);
    for (int s = 0; s < 2; s++)
        LAB_CUDA(cudaEventRecord(traces[s].e[0], sides[s]->lane->stream));
    while (done[0] < calls[0] || done[1] < calls[1]) {
        int s = done[1] >= calls[1] ||
                        (done[0] < calls[0] && (long)done[0] * calls[1] <= (long)done[1] * calls[0])
                    ? 0
                    : 1;
        sides[s]->run(sides[s]->arg, sides[s]->lane, done[s]);
        done[s]++;
        LAB_CUDA(cudaEventRecord(traces[s].e[done[s]], sides[s]->lane->stream));
        if (done[0] + done[1] == OPEN_AT)
            *(volatile int *)lab.flag = 1;
    }
    *(volatile int *)lab.flag = 1;
    LAB_CUDA(cudaDeviceSynchronize());
    for (int s = 0; s < 2; s++) {
        traces[s].calls = calls[s];
        for (int i = 0; i <= calls[s]; i++) {
            LAB_CUDA(cudaEventElapsedTime(&ms, opened, traces[s].e[i]));
            traces[s].at[i] = ms;
        }
    }
}

static double worth(const struct trace *t, const struct lab_side *side, double from, double to)
{
    double sum = 0;
    for (int i = 0; i < t->calls; i++) {
        double a = t->at[i];
        double b = t->at[i + 1];
        double lo = a > from ? a : from;
        double hi = b < to ? b : to;
        if (hi > lo && b > a)
            sum += side->alone[i % side->pieces] * (hi - lo) / (b - a);
    }
    return sum * 1e-3 / (to - from);
}

static void once(const struct lab_side *const *sides, const int *calls, double p[2])
{
    bool shared = sides[0]->lane->stream == sides[1]->lane->stream;
    issue(sides, calls);
    if (shared) {
        double from = traces[0].at[0];
        double to = from;
        for (int s = 0; s < 2; s++)
            if (traces[s].at[calls[s]] > to)
                to = traces[s].at[calls[s]];
        for (int s = 0; s < 2; s++) {
            p[s] = 0;
            for (int i = 0; i < calls[s]; i++)
                p[s] += sides[s]->alone[i % sides[s]->pieces] * 1e-3 / (to - from);
        }
        return;
    }
    double from = traces[0].at[1] > traces[1].at[1] ? traces[0].at[1] : traces[1].at[1];
    double to = traces[0].at[calls[0]];
    if (traces[1].at[calls[1]] < to)
        to = traces[1].at[calls[1]];
    for (int s = 0; s < 2; s++)
        p[s] = to > from ? worth(&traces[s], sides[s], from, to) : 0;
}

/* Lengthens the shorter side (or shortens the longer one) where one ran a fifth longer than the
 * other; returns whether it changed anything. */
static bool uneven(const struct lab_side *const *sides, int *calls)
{
    double span[2];
    if (sides[0]->lane->stream == sides[1]->lane->stream)
        return false;
    for (int s = 0; s < 2; s++)
        span[s] = traces[s].at[calls[s]] - traces[s].at[0];
    int brief = span[0] < span[1] ? 0 : 1;
    double ratio = span[!brief] / span[brief];
    if (ratio < 1.2)
        return false;
    int more = (int)(calls[brief] * ratio) + 1;
    if (more <= MAX_CALLS) {
        calls[brief] = more;
        return true;
    }
    int fewer = (int)(calls[!brief] / ratio) + 1;
    if (fewer < 4 || fewer >= calls[!brief])
        return false;
    calls[!brief] = fewer;
    return true;
}

void lab_together(const struct lab_side *a, const struct lab_side *b, double window_ms, double p[2])
{
    const struct lab_side *sides[2] = {a, b};
    double got[2][ROUNDS];
    double mean[2];
    int calls[2];

    traces_open();
    for (int s = 0; s < 2; s++)
        calls[s] = sides[s]->pieces > 3 ? sides[s]->pieces : 3;
    issue(sides, calls);
    for (int s = 0; s < 2; s++) {
        mean[s] = (traces[s].at[calls[s]] - traces[s].at[0]) / calls[s];
        double least = mean[s] * (sides[s]->pieces > 4 ? sides[s]->pieces : 4);
        if (window_ms < least)
            window_ms = least;
    }
    if (a->lane->stream == b->lane->stream) {
        /* In turns on one stream: as many of each as take half of the window alone. */
        for (int s = 0; s < 2; s++) {
            mean[s] = 0;
            for (int i = 0; i < sides[s]->pieces; i++)
                mean[s] += sides[s]->alone[i] * 2e-3 / sides[s]->pieces;
        }
    }
    for (int s = 0; s < 2; s++) {
        calls[s] = (int)(window_ms / mean[s]) + 4;
        if (calls[s] > MAX_CALLS)
            calls[s] = MAX_CALLS;
    }
    for (int r = 0, tries = 0; r < ROUNDS; tries++) {
        double q[2];
        once(sides, calls, q);
        if (tries < 5 && uneven(sides, calls))
            continue;
        got[0][r] = q[0];
        got[1][r] = q[1];
        r++;
    }
    for (int s = 0; s < 2; s++) {
        qsort(got[s], ROUNDS, sizeof(double), lab_compare);
        p[s] = got[s][ROUNDS / 2];
    }
}

struct attn_try {
    struct lab_attn a;
    int variant, blocks;
};

static void run_try(void *arg, const struct lab_lane *lane, int i)
{
    struct attn_try *t = arg;
    (void)i;
    LAB_CUDA(lab_attn_launch(&t->a, t->variant, t->blocks, lane->stream));
}

int lab_variant;

void lab_attn_choose(const struct lab_cache *c)
{
    struct attn_try t;
    double best = 1e30;
    lab_attn_open(&t.a, c, 256, 1024, 0);
    for (t.variant = 0; t.variant < lab_attn_variants(); t.variant++) {
        double cost = 1;
        for (int i = 0; i < 2; i++) {
            t.blocks = lab_attn_blocks(t.variant, i ? lab.sms : lab.sms / 4);
            cost *= lab_time(run_try, &t, &lab.main, 4);
        }
        if (cost < best) {
            best = cost;
            lab_variant = t.variant;
        }
    }
    lab_attn_close(&t.a);
    lab_record("attn_chosen", "\"variant\":%d", lab_variant);
}
