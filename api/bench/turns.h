/* SPDX-License-Identifier: Apache-2.0 */
/* api/bench/turns.h - the loop's first source in `bench coserve`: watches how soon training has the
 * device when requests pause, and, for comparison, splits the device the plain way, by time.
 *
 * Slicing: for half of each period serving runs and training does not, for the other half nothing
 * serves and training has the device.
 *
 * Thread: made and read by the command's; the rest is the engine's.
 */
#ifndef HZP_API_BENCH_TURNS_H
#define HZP_API_BENCH_TURNS_H

#include "nanobatch/source.h"
#include "train/trainer.h"

struct hzp_bench_turns;

struct hzp_bench_turns *hzp_bench_turns_create(void);
void hzp_bench_turns_destroy(struct hzp_bench_turns *t); /* NULL: no effect */
struct hzp_source *hzp_bench_turns_source(struct hzp_bench_turns *t);

/* Thread: any.  period_ns 0: no slicing.  The trainer is paused and let go by the engine thread. */
void hzp_bench_turns_slice(struct hzp_bench_turns *t, struct hzp_trainer *trainer,
                           uint64_t period_ns);

/* Thread: any.  Floating-point operations of the training issued since create: finer than counting
 * micro-batches as they end. */
uint64_t hzp_bench_turns_trained(const struct hzp_bench_turns *t);

/* Pauses of requests that were seen while training had work: from the end of the last step that
 * served to the begin of the first that trained, in seconds, and the steps between. */
enum { HZP_BENCH_SWITCHES_MAX = 4096 };
struct hzp_bench_switches {
    int64_t count, steps_between_max;
    double seconds[HZP_BENCH_SWITCHES_MAX];
    double step[HZP_BENCH_SWITCHES_MAX]; /* how long the last step that served took */
};
/* Thread: any, once the engine has stopped or nothing runs. */
const struct hzp_bench_switches *hzp_bench_turns_switches(const struct hzp_bench_turns *t);

#endif
