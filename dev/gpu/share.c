/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and matrix products on shares of the SMs, alone and side by side. */
#include "lab.h"

#include <stdio.h>

enum { MAX_PIECES = 8, BATCH = 256, CONTEXT = 1024 };

struct partner {
    const char *name;
    int rows;
    int pieces;
    enum lab_op op[MAX_PIECES];
    int shape[MAX_PIECES];
    double alone[MAX_PIECES];
};

static struct partner partners[] = {
    {"forward 64", 64, 4, {0}, {0, 1, 2, 3}, {0}},
    {"forward 256", 256, 4, {0}, {0, 1, 2, 3}, {0}},
    {"forward 1024", 1024, 4, {0}, {0, 1, 2, 3}, {0}},
    {"dgrad 2048", 2048, 4, {LAB_DGRAD, LAB_DGRAD, LAB_DGRAD, LAB_DGRAD}, {3, 2, 1, 0}, {0}},
    {"wgrad 2048", 2048, 4, {LAB_WGRAD, LAB_WGRAD, LAB_WGRAD, LAB_WGRAD}, {3, 2, 1, 0}, {0}},
    {"backward 4096",
     4096,
     8,
     {LAB_DGRAD, LAB_WGRAD, LAB_DGRAD, LAB_WGRAD, LAB_DGRAD, LAB_WGRAD, LAB_DGRAD, LAB_WGRAD},
     {3, 3, 2, 2, 1, 1, 0, 0},
     {0}},
};

enum { PARTNERS = sizeof partners / sizeof *partners };

struct attn_run {
    struct lab_attn a;
    int blocks;
};

static void run_attn(void *arg, const struct lab_lane *lane, int i)
{
    struct attn_run *r = arg;
    (void)i;
    LAB_CUDA(lab_attn_launch(&r->a, lab_variant, r->blocks, lane->stream));
}

static void run_partner(void *arg, const struct lab_lane *lane, int i)
{
    struct partner *p = arg;
    int piece = i % p->pieces;
    lab_gemm_shape(p->op[piece], p->rows, p->shape[piece], i / p->pieces, lane);
}

struct one {
    struct partner *p;
    int piece;
};

static void run_one(void *arg, const struct lab_lane *lane, int i)
{
    struct one *o = arg;
    lab_gemm_shape(o->p->op[o->piece], o->p->rows, o->p->shape[o->piece], i, lane);
}

/* Sum over a partner's products, each alone on this lane. */
static double partner_alone(struct partner *p, const struct lab_lane *lane, double *each)
{
    double sum = 0;
    for (int i = 0; i < p->pieces; i++) {
        struct one o = {p, i};
        lab_gemm_shape(p->op[i], p->rows, p->shape[i], 0, lane);
        double us = lab_time(run_one, &o, lane, 3);
        if (each)
            each[i] = us;
        sum += us;
    }
    return sum;
}

static double sum_alone(const struct partner *p)
{
    double sum = 0;
    for (int i = 0; i < p->pieces; i++)
        sum += p->alone[i];
    return sum;
}

static void alone_by_share(void)
{
    struct lab_lane few, rest;
    const int which[] = {0, 1, 2, 3};
    for (int k = 16; k < lab.sms; k += 16) {
        struct lab_lane told = lab.main;
        bool green = lab_green_open(k, &few, &rest);
        told.target = k;
        for (int i = 0; i < 4; i++) {
            struct partner *p = &partners[which[i]];
            double us = partner_alone(p, &told, NULL);
            int most = 0;
            for (int j = 0; j < p->pieces; j++) {
                const struct lab_shape *s = &lab_shapes[p->shape[j]];
                int b = lab_gemm(p->op[j], p->rows, s->n, s->k, &told)->blocks;
                most = b > most ? b : most;
            }
            lab_record("gemm_alone",
                       "\"mech\":\"target\",\"what\":\"%s\",\"sms\":%d,\"us\":%.1f,\"p\":%.3f,"
                       "\"most_blocks\":%d",
                       p->name, k, us, sum_alone(p) / us, most);
            if (!green)
                continue;
            us = partner_alone(p, &few, NULL);
            lab_record("gemm_alone",
                       "\"mech\":\"green\",\"what\":\"%s\",\"sms\":%d,\"us\":%.1f,\"p\":%.3f",
                       p->name, few.sms, us, sum_alone(p) / us);
        }
        if (green)
            lab_green_close(&few, &rest);
    }
}

static void pair(const char *mech, int k, struct attn_run *r, const struct lab_lane *la,
                 struct partner *p, const struct lab_lane *lb, const double *alone)
{
    struct lab_side a = {run_attn, r, la, alone, 1};
    struct lab_side b = {run_partner, p, lb, p->alone, p->pieces};
    static double turn = 1;
    double got[2];
    for (int i = 0; i < p->pieces; i++)
        run_partner(p, lb, i); /* tunes what is not tuned yet */
    LAB_CUDA(cudaDeviceSynchronize());
    lab_together(&a, &b, 10, got);
    if (la->stream == lb->stream)
        turn = got[0] + got[1]; /* the later ones are compared with it: same clocks, same heat */
    lab_record("pair",
               "\"with\":\"%s\",\"mech\":\"%s\",\"attn_sms\":%d,\"p_attn\":%.3f,\"p_gemm\":%.3f,"
               "\"gain\":%.3f,\"gain_over_turns\":%.3f",
               p->name, mech, k, got[0], got[1], got[0] + got[1], (got[0] + got[1]) / turn);
}

static void unlimited(struct attn_run *r, struct partner *p, const double *alone)
{
    struct lab_lane other = lab.low;
    r->blocks = lab_attn_blocks(lab_variant, lab.sms);
    pair("in turn", lab.sms, r, &lab.main, p, &lab.main, alone);
    pair("two streams", lab.sms, r, &lab.main, p, &other, alone);
    pair("two streams, attention first", lab.sms, r, &lab.high, p, &other, alone);
    pair("two streams, products first", lab.sms, r, &lab.low, p, &lab.high, alone);
}

static void shares(struct attn_run *r, const double *alone)
{
    static const int ks[] = {8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        struct lab_lane few, rest;
        bool green = lab_green_open(ks[i], &few, &rest);
        for (int j = 0; j < PARTNERS; j++) {
            struct partner *p = &partners[j];
            struct lab_lane told = lab.low;
            told.target = lab.sms - ks[i];
            r->blocks = lab_attn_blocks(lab_variant, lab.sms);
            pair("in turn", lab.sms, r, &lab.main, p, &lab.main, alone);
            r->blocks = lab_attn_blocks(lab_variant, ks[i]);
            pair("grid both", ks[i], r, &lab.high, p, &told, alone);
            pair("grid attention", ks[i], r, &lab.high, p, &lab.low, alone);
            if (green) {
                r->blocks = lab_attn_blocks(lab_variant, few.sms);
                pair("green", few.sms, r, &few, p, &rest, alone);
            }
        }
        if (green)
            lab_green_close(&few, &rest);
    }
}

int lab_section_share(void)
{
    struct lab_cache c;
    struct attn_run r;
    double alone;

    lab_cache_open(&c, BATCH * CONTEXT, 16);
    lab_attn_choose(&c);
    lab_tensors_open(8, 4096);
    lab_attn_open(&r.a, &c, BATCH, CONTEXT, 0);
    r.blocks = lab_attn_blocks(lab_variant, lab.sms);
    alone = lab_time(run_attn, &r, &lab.main, 40);
    lab_record("pair_alone", "\"what\":\"attention %d x %d\",\"us\":%.1f", BATCH, CONTEXT, alone);
    for (int i = 0; i < PARTNERS; i++) {
        /* Each alone for its weight, then all in turn for the sum, because clocks differ between
           the two. */
        double sum = partner_alone(&partners[i], &lab.main, partners[i].alone);
        double us = lab_time(run_partner, &partners[i], &lab.main, 40) * partners[i].pieces;
        for (int j = 0; j < partners[i].pieces; j++)
            partners[i].alone[j] *= us / sum;
        lab_record("pair_alone", "\"what\":\"%s\",\"us\":%.1f", partners[i].name, us);
    }
    for (int i = 0; i < PARTNERS; i++)
        unlimited(&r, &partners[i], &alone);
    shares(&r, &alone);
    alone_by_share();
    return 0;
}
