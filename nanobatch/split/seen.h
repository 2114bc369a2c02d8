/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/seen.h - what the split observes of steps that have ended: inter-token latencies
 * (ITL), times to first token (TTFT), the miss rates of their goals, and each tenant's time on the
 * device.
 *
 * An ITL is the time between the ends of two consecutive steps, the later with decode rows in it:
 * every sequence that decodes is in every step, as far as a step has room.
 *
 *     miss rate     m += (missed - m) / 300 with each late ITL, or TTFT, that a goal applies to.
 *                   Misses because of training and misses of serving alone are counted apart; the
 *                   latter count for at most 0.015 and fade within 15 s, so that a time of too many
 *                   requests does not hold training back for long when it is over
 *     aim           aim.h, which part of a goal predictions may take; kept apart for ITLs with and
 *                   without training in them, or prompts would be delayed for lack of experience
 *                   with training; of the second kind only the 512 ITLs after training count: a
 *                   time without training says nothing about predictions with it
 *     alone         99th percentile of ITL without training, corrected because longer steps make
 *                   long ITLs more frequent: the quantile 1 - p of ITLs less the training in them,
 *                   p = 0.01 x mean ITL / mean ITL alone, the ratio at most 4.  (At the same
 *                   arrival rate, longer steps mean more requests that decode at a time, and each
 *                   prompt affects more ITLs.)  The 99th percentile of TTFT leaves out requests
 *                   that waited for a running slot: a burst would set the goal for minutes
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/plan/plan.h"
#include "nanobatch/split/aim.h"
#include "nanobatch/split/policy.h"
#include "nanobatch/split/window.h"

enum { HZP_SEEN_STEPS = 512, HZP_SEEN_SECONDS = 32 };

struct hzp_misses {
    double train; /* the part of ITLs, or TTFTs, that missed because of training */
    double alone; /* the part that would have missed without; bounded, and fades */
};

struct hzp_seen {
    struct hzp_window itl, ttft;
    struct hzp_window alone; /* ITLs less the training in them */
    uint64_t alone_p99_ns;   /* `alone` above; refreshed every 32 */
    double itl_mean_ns, alone_mean_ns;
    int64_t alone_count;
    struct hzp_aim itl_aim[HZP_TENANT_COUNT]; /* by tenant: of ITLs of serving alone, of all */
    int32_t since_trained;                    /* ITLs since one with training in it */
    struct hzp_aim ttft_aim;
    struct hzp_spread ttft_alone;              /* TTFTs less the training in them */
    int64_t ttfts;                             /* so many are in it */
    uint64_t crowded_ns;                       /* when a request last waited for a running slot */
    double missed_itl, missed_ttft;            /* miss rates, for the report */
    double missed_itl_alone;                   /* miss rate of ITLs less the training in them */
    struct hzp_misses itl_misses, ttft_misses; /* miss rates, for the throttle */
    double error;                              /* averaged relative error of predicted ITLs */
    struct {
        uint64_t begin_ns, end_ns;
        double trained_ns;  /* training's time in all steps up to its end */
    } step[HZP_SEEN_STEPS]; /* a ring */
    int64_t steps;
    struct hzp_seen_second {
        uint64_t second;
        double serve_ns, train_ns;
    } second[HZP_SEEN_SECONDS]; /* by the device's clock */
    double trained_ns;
};

void hzp_seen_init(struct hzp_seen *seen);

/* A step has ended. */
void hzp_seen_step(struct hzp_seen *seen, uint64_t begin_ns, uint64_t end_ns, uint64_t serve_ns,
                   uint64_t train_ns);

/* It brought `rows` sequences their next token, itl_ns after their last; without training that
 * would have been alone_ns.  with: HZP_TENANT_TRAIN if training was in it, else
 * HZP_TENANT_SERVE. */
void hzp_seen_itl(struct hzp_seen *seen, const struct hzp_policy *policy, enum hzp_tenant with,
                  uint64_t itl_ns, uint64_t alone_ns, int32_t rows);

/* The 99th percentiles of ITL and of TTFT without training (`alone` above); 0: not known yet. */
uint64_t hzp_seen_alone_p99(const struct hzp_seen *seen);
uint64_t hzp_seen_ttft_alone_p99(const struct hzp_seen *seen);

/* It brought a request that was submitted at since_ns its first token.  After hzp_seen_step. */
void hzp_seen_ttft(struct hzp_seen *seen, const struct hzp_policy *policy, uint64_t since_ns,
                   uint64_t end_ns);

/* The miss rate of the ITL goal or of the TTFT goal, the larger; 0 without goals. */
double hzp_seen_miss_rate(const struct hzp_seen *seen, const struct hzp_policy *policy);

/* The part of it that serving alone misses. */
double hzp_seen_alone_miss_rate(const struct hzp_seen *seen, const struct hzp_policy *policy);

/* The goals have changed: misses of the old ones are forgotten. */
void hzp_seen_forget(struct hzp_seen *seen, bool itl, bool ttft);

/* An ITL was predicted so, and measured. */
void hzp_seen_prediction(struct hzp_seen *seen, double itl_ns, double predicted_ns);

/* Serving's and training's parts of all time over the last `seconds` (at most HZP_SEEN_SECONDS - 1,
 * the present one not counted), 0 .. 1. */
void hzp_seen_shares(const struct hzp_seen *seen, uint64_t now_ns, int32_t seconds,
                     double *ret_serve, double *ret_train);
