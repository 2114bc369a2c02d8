/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/train_log.h - the progress output of offline training: a progress bar and a file of
 * JSON lines.
 *
 *     {"step":1,"loss":4.1,"lr":1e-4,"grad_norm":0.7,"tokens":512,"tokens_per_second":9000.0,
 *      "time":1700000000.123}
 *     {"step":100,"eval_loss":2.31,"eval_tokens":4000,"time":...}
 *
 * With --skip an update also has "layers" and "left_out", as struct hzp_paths has them.
 * "operations" has "model" and "hardware" (nanobatch/model/operations.h), "mfu" and "hfu" are those
 * over the update's time as a part of "peak_gflops", the fastest product of training timed so far;
 * they are absent before one was, or where the device does not time single ops.
 * "tokens" counts the rows computed for the update, "learned_tokens" those that have a target.
 *
 * Thread: one.
 */
#pragma once

#include "train/conductor/trainer.h"

struct hzp_train_log;

/* Appends to path; first removes the lines of steps after `step`, left by a run that was
 * interrupted there. total: the last step, for the bar; steps continue from `step`. */
int hzp_train_log_open(const char *path, int64_t step, int64_t total, struct hzp_train_log **ret,
                       struct hzp_err_text *reterr);
void hzp_train_log_close(struct hzp_train_log *log); /* NULL: no effect */

/* A line for an update, and one for an evaluation: the mean loss over so many tokens, null if it is
 * not finite. */
void hzp_train_log_update(struct hzp_train_log *log, const struct hzp_update_report *report);
void hzp_train_log_eval(struct hzp_train_log *log, int64_t step, double loss, int64_t tokens);

/* The evaluation with the lowest loss after an update, also of runs that this one continues, and
 * how many came after it.  step 0: there is none. */
struct hzp_train_best {
    int64_t step, since;
    double loss;
};
struct hzp_train_best hzp_train_log_best(const struct hzp_train_log *log);

/* What the updates made of the device, to stderr: goodput, the part of the time since the start in
 * updates that count; operations over the updates' duration, as a part of the peak.  No effect
 * before the first update. */
void hzp_train_log_use(const struct hzp_train_log *log);

/* Ends the progress bar's line, so that other output can be printed. */
void hzp_train_log_line(struct hzp_train_log *log);
