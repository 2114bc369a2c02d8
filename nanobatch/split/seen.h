/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/seen.h - what the split has seen of steps: gaps between tokens, times to first
 * tokens, how often they missed their goals, how far predictions were off, who had the device.
 *
 * A gap is the time between the ends of two steps that follow each other, the later with decode
 * rows in it: every sequence that decodes is in every step, as far as a step has room.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_SPLIT_SEEN_H
#define HZP_NANOBATCH_SPLIT_SEEN_H

#include "nanobatch/split/policy.h"
#include "nanobatch/split/window.h"

enum { HZP_SEEN_STEPS = 512, HZP_SEEN_SECONDS = 32 };

struct hzp_seen {
    struct hzp_window gap, first;
    struct hzp_window alone; /* gaps as they would have been without training */
    uint64_t alone_p99_ns;   /* of those, as below; refreshed now and then */
    double gap_mean_ns, alone_mean_ns;
    int64_t alone_count;
    struct hzp_spread off[2];      /* gaps over predicted ones, of long ones; [1]: with training */
    struct hzp_spread excess[2];   /* gaps beyond predicted ones in ns, of short ones; the same */
    struct hzp_spread first_alone; /* times to first tokens, less the training in them */
    double missed_gaps, missed_firsts; /* the parts of late that missed, a few hundred back */
    double missed_gaps_alone;          /* the same, had there been no training in the gap */
    struct hzp_strain {
        double train; /* the part that missed because of training */
        double alone; /* the part that missed without; bounded, and forgotten in seconds:
                                    * a time of too many requests must not hold training back for
                                    * long when it is over */
    } gap_strain, first_strain;
    double error; /* of predicted gaps, relative, averaged */
    struct {
        uint64_t begin_ns, end_ns;
        double trained_ns;  /* since the beginning, up to its end */
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

/* It brought `rows` sequences their next token, gap_ns after their last, train_ns of it
 * training. */
void hzp_seen_gap(struct hzp_seen *seen, const struct hzp_policy *policy, uint64_t gap_ns,
                  uint64_t train_ns, int32_t rows);

/* The same gap, had no step had training in it. */
void hzp_seen_alone(struct hzp_seen *seen, uint64_t gap_ns, uint64_t alone_ns, int32_t rows);

/* What 99 of 100 gaps would stay within had there been no training; 0: not known yet.  Requests
 * that come at the same pace decode more at a time where steps take longer, and a prompt is then in
 * more gaps: of the gaps seen, so many more are long, by as much as training lengthens them on
 * average. */
uint64_t hzp_seen_alone_p99(const struct hzp_seen *seen);

/* It brought one its first token, which had been asked for at since_ns.  After hzp_seen_step. */
void hzp_seen_first(struct hzp_seen *seen, const struct hzp_policy *policy, uint64_t since_ns,
                    uint64_t end_ns);

/* The parts of late gaps, or of late first tokens, that missed their goal, the larger of the two:
 * how near training is to making one fail. */
double hzp_seen_strain(const struct hzp_seen *seen, const struct hzp_policy *policy);

/* The policy has changed: what missed the old goals says nothing about the new ones. */
void hzp_seen_forget(struct hzp_seen *seen, bool gaps, bool firsts);

/* What 99 of 100 gaps stay within that are predicted so; and the longest prediction that so stays
 * within goal_ns, which may come out negative.  Errors of long gaps grow with them, those of short
 * ones (the host, other processes) do not: each is learned where it shows, on either side of a
 * quarter of the goal; and apart for gaps with training in them, or prompts would be slowed down
 * for how little is known of training. */
void hzp_seen_prediction(struct hzp_seen *seen, const struct hzp_policy *policy, bool train,
                         double gap_ns, double predicted_ns);
/* A step was to have training in it, and had none since too little was left for an item: what made
 * predictions look that bad is forgotten bit by bit, or nothing could ever show that they are
 * better. margin: down to what is thought of predictions where nothing is known; else to nothing,
 * for where steps are so steady that this margin is all that leaves no room. */
void hzp_seen_no_prediction(struct hzp_seen *seen, bool margin);
double hzp_seen_p99(const struct hzp_seen *seen, bool train, double predicted_ns);
double hzp_seen_within(const struct hzp_seen *seen, bool train, double goal_ns);

/* How training's and serving's time over the last `seconds` (at most HZP_SEEN_SECONDS - 1, the one
 * at hand not counted) compare with all time, 0 .. 1. */
void hzp_seen_shares(const struct hzp_seen *seen, uint64_t now_ns, int32_t seconds,
                     double *ret_serve, double *ret_train);

#endif
