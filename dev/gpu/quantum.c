/* SPDX-License-Identifier: Apache-2.0 */
/* The delay that one piece of training causes to the decode step it shares the device with. */
#include "step.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIECES = 8, ROUNDS = 7 };

struct decode {
    struct lab_step *step;
    const uint16_t *weights;
    cudaGraphExec_t graph;
    int attn_sms;
};

/* The matrix products of one layer's backward pass over `rows` rows. */
struct backward {
    int rows;
    double alone[PIECES];
    double sum;
};

static void run_decode(void *arg, const struct lab_lane *lane, int i)
{
    struct decode *d = arg;
    (void)i;
    if (d->graph)
        LAB_CUDA(cudaGraphLaunch(d->graph, lane->stream));
    else
        lab_step_run(d->step, d->weights, lane, d->attn_sms);
}

static void run_backward(void *arg, const struct lab_lane *lane, int i)
{
    struct backward *b = arg;
    lab_gemm_shape(i & 1 ? LAB_WGRAD : LAB_DGRAD, b->rows, 3 - (i % PIECES) / 2, i / PIECES, lane);
}

struct single {
    struct backward *b;
    int piece;
};

static void run_single(void *arg, const struct lab_lane *lane, int i)
{
    struct single *s = arg;
    run_backward(s->b, lane, s->piece + PIECES * i);
}

static void backward_open(struct backward *b, int rows)
{
    b->rows = rows;
    b->sum = 0;
    for (int i = 0; i < PIECES; i++) {
        struct single s = {b, i};
        run_backward(b, &lab.main, i);
        b->alone[i] = lab_time(run_single, &s, &lab.main, 3);
        b->sum += b->alone[i];
    }
    double us = lab_time(run_backward, b, &lab.main, 40) * PIECES;
    for (int i = 0; i < PIECES; i++)
        b->alone[i] *= us / b->sum;
    b->sum = us;
}

/* One step and one layer's backward pass begin together; out: microseconds until each is done. */
static void one_each(struct decode *d, const struct lab_lane *ld, struct backward *b,
                     const struct lab_lane *lb, double out[2])
{
    static cudaEvent_t from, end[2];
    double got[2][ROUNDS];
    float ms;

    if (!from) {
        LAB_CUDA(cudaEventCreate(&from));
        LAB_CUDA(cudaEventCreate(&end[0]));
        LAB_CUDA(cudaEventCreate(&end[1]));
    }
    for (int r = -1; r < ROUNDS; r++) {
        *(volatile int *)lab.flag = 0;
        LAB_CUDA(lab_gate(lab.flag, lab.gate));
        LAB_CUDA(cudaEventRecord(from, lab.gate));
        LAB_CUDA(cudaStreamWaitEvent(ld->stream, from, 0));
        LAB_CUDA(cudaStreamWaitEvent(lb->stream, from, 0));
        run_decode(d, ld, 0);
        LAB_CUDA(cudaEventRecord(end[0], ld->stream));
        for (int i = 0; i < PIECES; i++)
            run_backward(b, lb, (r + 1) * PIECES + i);
        LAB_CUDA(cudaEventRecord(end[1], lb->stream));
        *(volatile int *)lab.flag = 1;
        LAB_CUDA(cudaDeviceSynchronize());
        for (int s = 0; s < 2 && r >= 0; s++) {
            LAB_CUDA(cudaEventElapsedTime(&ms, from, end[s]));
            got[s][r] = ms * 1e3;
        }
    }
    for (int s = 0; s < 2; s++) {
        qsort(got[s], ROUNDS, sizeof(double), lab_compare);
        out[s] = got[s][ROUNDS / 2];
    }
}

static void both(const char *mech, int k, struct decode *d, const struct lab_lane *ld,
                 struct backward *b, const struct lab_lane *lb, double alone)
{
    struct lab_side sd = {run_decode, d, ld, &alone, 1};
    struct lab_side sb = {run_backward, b, lb, b->alone, PIECES};
    static double turn = 1;
    double one[2], p[2];

    for (int i = 0; i < PIECES; i++)
        run_backward(b, lb, i);
    LAB_CUDA(cudaDeviceSynchronize());
    one_each(d, ld, b, lb, one);
    double all = one[0] > one[1] ? one[0] : one[1];
    lab_record("quantum",
               "\"batch\":%d,\"rows\":%d,\"mech\":\"%s\",\"decode_sms\":%d,\"step_alone_us\":%.0f,"
               "\"piece_alone_us\":%.0f,\"step_us\":%.0f,\"piece_done_us\":%.0f,\"added_us\":%.0f,"
               "\"added_of_piece\":%.3f,\"step_slowdown\":%.3f",
               d->step->batch, b->rows, mech, k, alone, b->sum, one[0], one[1], all - alone,
               (all - alone) / b->sum, one[0] / alone);
    lab_together(&sd, &sb, 40, p);
    if (ld->stream == lb->stream)
        turn = p[0] + p[1];
    lab_record("coserve",
               "\"batch\":%d,\"rows\":%d,\"mech\":\"%s\",\"decode_sms\":%d,\"p_serve\":%.3f,"
               "\"p_train\":%.3f,\"gain\":%.3f,\"gain_over_turns\":%.3f",
               d->step->batch, b->rows, mech, k, p[0], p[1], p[0] + p[1], (p[0] + p[1]) / turn);
}

static void green(struct decode *d, struct backward *b, int count, double alone)
{
    /* On fewer than 16 remaining SMs, cuBLASLt's clusters of blocks may not fit and fail to
       launch. */
    static const int ks[] = {16, 24, 32, 40, 48, 56, 64, 80, 96, 112};
    for (size_t i = d->step->batch > 64 ? 3 : 0; i < sizeof ks / sizeof *ks; i++) {
        struct lab_lane few, rest;
        struct decode e = *d;
        if (!lab_green_open(ks[i], &few, &rest))
            continue;
        lab_step_tune(d->step, d->weights, &few);
        e.attn_sms = few.sms;
        e.graph = NULL;
        double direct = lab_time(run_decode, &e, &few, 30);
        e.graph = lab_step_graph(d->step, d->weights, &few, few.sms);
        double graph = e.graph ? lab_time(run_decode, &e, &few, 30) : 0;
        lab_record("step_by_sms",
                   "\"batch\":%d,\"mech\":\"green\",\"sms\":%d,\"graph_us\":%.0f,\"direct_us\":%."
                   "0f,\"p\":%.3f",
                   d->step->batch, few.sms, graph, direct, alone / (e.graph ? graph : direct));
        for (int j = 0; j < count; j++) {
            both("in turn", lab.sms, d, &lab.main, &b[j], &lab.main, alone);
            both("green", few.sms, &e, &few, &b[j], &rest, alone);
        }
        if (e.graph)
            LAB_CUDA(cudaGraphExecDestroy(e.graph));
        lab_green_close(&few, &rest);
    }
}

/* Plain streams; both sides are told their share, but the device does not enforce it. */
static void both_limited(struct decode *d, struct backward *b, int count, double alone)
{
    static const int ks[] = {32, 48, 56, 64, 80, 96};
    for (size_t i = d->step->batch > 64 ? 1 : 0; i < sizeof ks / sizeof *ks; i++) {
        struct lab_lane part = lab.high;
        struct lab_lane told = lab.low;
        struct decode e = *d;
        part.target = ks[i];
        told.target = lab.sms - ks[i];
        lab_step_tune(d->step, d->weights, &part);
        e.attn_sms = ks[i];
        e.graph = lab_step_graph(d->step, d->weights, &part, ks[i]);
        double us = lab_time(run_decode, &e, &part, 30);
        lab_record("step_by_sms",
                   "\"batch\":%d,\"mech\":\"told\",\"sms\":%d,\"graph_us\":%.0f,\"direct_us\":0,"
                   "\"p\":%.3f",
                   d->step->batch, ks[i], us, alone / us);
        for (int j = 0; j < count; j++)
            both("both limited", ks[i], &e, &part, &b[j], &told, alone);
        LAB_CUDA(cudaGraphExecDestroy(e.graph));
    }
}

static void limited(struct decode *d, struct backward *b, int count, double alone)
{
    static const int ks[] = {32, 64, 96};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        struct lab_lane told = lab.low;
        told.target = lab.sms - ks[i];
        for (int j = 0; j < count; j++)
            both("products limited", ks[i], d, &lab.high, &b[j], &told, alone);
    }
}

static void batch(int rows, int context, const struct lab_cache *c, const uint16_t *weights)
{
    struct lab_step step;
    struct decode d = {&step, weights, NULL, lab.sms};
    struct decode first = d;
    static struct backward b[2];
    static const int sizes[] = {512, 2048};

    lab_step_open(&step, c, rows, context);
    lab_step_tune(&step, weights, &lab.main);
    d.graph = lab_step_graph(&step, weights, &lab.main, lab.sms);
    /* A graph's kernels keep the priority of the stream they were captured from. */
    first.graph = lab_step_graph(&step, weights, &lab.high, lab.sms);
    double alone = lab_time(run_decode, &d, &lab.main, 50);
    lab_record("step_by_sms",
               "\"batch\":%d,\"mech\":\"all\",\"sms\":%d,\"graph_us\":%.0f,\"direct_us\":0,\"p\":1",
               rows, lab.sms, alone);
    for (int i = 0; i < 2; i++)
        backward_open(&b[i], sizes[i]);
    for (int i = 0; i < 2; i++) {
        struct lab_lane low = lab.low;
        both("in turn", lab.sms, &d, &lab.main, &b[i], &lab.main, alone);
        both("two streams", lab.sms, &d, &lab.main, &b[i], &low, alone);
        both("decode first", lab.sms, &first, &lab.high, &b[i], &low, alone);
    }
    limited(&first, b, 2, alone);
    both_limited(&d, b, 2, alone);
    green(&d, b, 2, alone);
    LAB_CUDA(cudaGraphExecDestroy(d.graph));
    LAB_CUDA(cudaGraphExecDestroy(first.graph));
    lab_step_close(&step);
}

int lab_section_quantum(void)
{
    struct lab_cache c;
    uint16_t *weights = lab_memory(lab_version_bytes(), 0.02f);
    lab_tensors_open(8, 2048);
    LAB_CUDA(cudaFree(lab_t.y));
    lab_t.y = lab_memory(256UL * STEP_VOCABULARY * 2, 0); /* the head's output during tuning */
    lab_cache_open(&c, 256L * 1024 * STEP_LAYERS, 16);
    lab_attn_choose(&c);
    batch(64, 1024, &c, weights);
    batch(256, 1024, &c, weights);
    return 0;
}
