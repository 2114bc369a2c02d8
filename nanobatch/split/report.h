/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/report.h - what the split shows of itself to other threads.
 *
 * Thread: any; a value.
 */
#pragma once

#include "nanobatch/split/seen.h"
#include "nanobatch/time/step_times.h"

/* What holds training's slice where it is. */
enum hzp_split_limit {
    HZP_LIMIT_IDLE,   /* nothing: no request runs */
    HZP_LIMIT_SHARE,  /* train_share or train_max */
    HZP_LIMIT_ITL,    /* the ITL goal */
    HZP_LIMIT_TTFT,   /* the TTFT goal */
    HZP_LIMIT_MISSED, /* the miss rate of a goal */
    HZP_LIMIT_TURN,   /* a step without training: prompts, or the predictor's probe */
    HZP_LIMIT_SLOTS,  /* running slots are scarce, or a waiting request is overdue */
    HZP_LIMIT_COUNT
};
/* As metrics and answers name it: "share", "itl" and so on. */
const char *hzp_split_limit_name(enum hzp_split_limit limit);

struct hzp_split_report {
    struct hzp_policy policy;
    uint64_t derived_itl_ns; /* the goals derived from itl_stretch; 0: none */
    uint64_t derived_ttft_ns;
    uint64_t steps;                    /* that served */
    uint64_t trained;                  /* steps among these with training */
    uint64_t beside;                   /* steps among these with training beside serving */
    uint64_t held;                     /* steps of training alone while requests run */
    uint64_t limited[HZP_LIMIT_COUNT]; /* all steps, by what held training */
    double recent[HZP_LIMIT_COUNT];    /* the same as parts of about the last 64 steps */
    double floor_part;                 /* hzp_floor_part */
    /* the newest step that served */
    struct hzp_step_shape shape;
    double alone_ns, slowdown, itl_ns, slice_ns; /* predicted; what training was allowed */
    double measured_itl_ns;
    double aim;   /* the part of the ITL goal that a prediction may take (aim.h) */
    double error; /* mean relative error of predicted ITLs */
    double missed_itl, missed_itl_alone, missed_ttft; /* recent miss rates; 0 without goals */
    struct hzp_window itl, ttft;                      /* the newest */
    double serve_part, train_part;                    /* parts of the last half minute, 0 .. 1 */
    struct hzp_seen_second second[HZP_SEEN_SECONDS];
};
