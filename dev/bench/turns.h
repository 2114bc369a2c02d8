/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/turns.h - the loop's first source in `bench coserve`: measures how soon training gets
 * the device when requests pause, and splits the device by time slices for comparison.
 *
 * Slicing: in the first half of each period only serving runs, in the second half only training.
 *
 * Thread: created and read by the command's thread; the rest: engine.
 */
#pragma once

#include "nanobatch/source.h"
#include "train/conductor/trainer.h"

struct hzp_bench_turns;

/* Without slicing at first; outlives the loop that its source is given to. */
struct hzp_bench_turns *hzp_bench_turns_create(void);
void hzp_bench_turns_destroy(struct hzp_bench_turns *t); /* NULL: no effect */
struct hzp_source *hzp_bench_turns_source(struct hzp_bench_turns *t);

/* Thread: any. period_ns 0: no slicing.  The engine thread pauses and resumes the trainer. */
void hzp_bench_turns_slice(struct hzp_bench_turns *t, struct hzp_trainer *trainer,
                           uint64_t period_ns);

/* Thread: any.  Floating-point operations of the training work done since create; more precise than
 * counting micro-batches as they end. */
uint64_t hzp_bench_turns_trained(const struct hzp_bench_turns *t);

/* Pauses of requests observed while training had work: the time from the end of the last step that
 * served to the begin of the first one that trained, in seconds, and the number of steps in
 * between. */
enum { HZP_BENCH_SWITCHES_MAX = 4096 };
struct hzp_bench_switches {
    int64_t count, steps_between_max;
    double seconds[HZP_BENCH_SWITCHES_MAX];
    double step[HZP_BENCH_SWITCHES_MAX]; /* duration of the last step that served */
};
/* Thread: any, once the engine has stopped or no step runs. */
const struct hzp_bench_switches *hzp_bench_turns_switches(const struct hzp_bench_turns *t);
