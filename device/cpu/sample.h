/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/sample.h - passes over a row of logits, for sampling.
 *
 * The passes are vectorized; the decisions (sample.c) are plain C and work on the few tokens that
 * remain, in double and with the reference's own noise, so that the same token is drawn as by the
 * reference.
 *
 * Thread: any of the team.
 */
#pragma once

#include "device/cpu/cpu.h"

enum { HZP_MAXIMA_BLOCK = 64 };

struct hzp_candidate {
    double logit, weight;
    int32_t token;
};

/* The best of a draw so far. */
struct hzp_drawn {
    double score; /* logit / temperature + noise */
    int32_t token;
};

/* NaN counts as minus infinity everywhere but in the log sum exp. */
struct hzp_scan {
    /* Largest logit, the lowest id that has it, log sum exp: NaN if a logit is not finite. */
    void (*top)(const float *x, int n, float *ret_top, int *ret_at, double *ret_lse);
    int (*above)(const float *x, int n, float v);      /* number of logits > v */
    void (*maxima)(const float *x, int n, float *ret); /* one for each block of HZP_MAXIMA_BLOCK */
    /* Logit and token of all logits >= v, ordered by id; returns how many. */
    int (*extract)(const float *x, int n, float v, struct hzp_candidate *ret);
    double (*mass)(const float *x, int n, float top,
                   float temperature); /* sum exp((x - top) / t) */
    /* Draws among all tokens; top: the largest x. */
    void (*draw)(const float *x, int n, float top, const struct hzp_sample_row *row,
                 struct hzp_drawn *drawn);
    /* ret[i]: x[i] if the mask has token i, otherwise minus infinity. */
    void (*mask)(const float *x, const uint32_t *mask, int n, float *ret);
};

/* Adds noise to a token's logit / temperature and keeps it if it is the best so far. */
void hzp_draw_try(const struct hzp_sample_row *row, double logit, int32_t token,
                  struct hzp_drawn *drawn);

/* No token of scaled logit <= top can win with a random word below the returned value. */
uint32_t hzp_draw_bound(const struct hzp_drawn *drawn, double top);

/* An upper bound of Gumbel noise. */
#define HZP_NOISE_MAX 22.95

int hzp_cpu_sample(struct hzp_lane *lane, const struct hzp_sample_args *args,
                   const struct hzp_scan *scan);
