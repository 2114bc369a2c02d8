/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/sample.h - the passes over a row of logits that sampling is made of.
 *
 * The passes are vectorised; what decides (sample.c) is plain C and works on the few tokens that
 * they leave, in double and with the reference's own noise, so that it draws what the reference
 * draws.
 *
 * Thread: any of the team.
 */
#ifndef HZP_DEVICE_CPU_SAMPLE_H
#define HZP_DEVICE_CPU_SAMPLE_H

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

/* NaN counts as minus infinity everywhere. */
struct hzp_scan {
    /* Largest logit, the lowest id that has it, log sum exp. */
    void (*top)(const float *x, int n, float *ret_top, int *ret_at, double *ret_lse);
    int (*above)(const float *x, int n, float v);      /* how many are > v */
    void (*maxima)(const float *x, int n, float *ret); /* of each HZP_MAXIMA_BLOCK */
    /* Logit and token of all that are >= v, in order of id; returns how many. */
    int (*extract)(const float *x, int n, float v, struct hzp_candidate *ret);
    double (*mass)(const float *x, int n, float top,
                   float temperature); /* sum exp((x - top) / t) */
    /* Draws among all; top: the largest x. */
    void (*draw)(const float *x, int n, float top, const struct hzp_sample_row *row,
                 struct hzp_drawn *drawn);
};

/* Lets a token compete; logit is over temperature. */
void hzp_draw_try(const struct hzp_sample_row *row, double logit, int32_t token,
                  struct hzp_drawn *drawn);

/* No token of scaled logit <= top can win with a random word below this. */
uint32_t hzp_draw_bound(const struct hzp_drawn *drawn, double top);

/* More than Gumbel noise can be. */
#define HZP_NOISE_MAX 22.95

int hzp_cpu_sample(struct hzp_lane *lane, const struct hzp_sample_args *args,
                   const struct hzp_scan *scan);

#endif
