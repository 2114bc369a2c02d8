/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/deadline.h - how long a step may last for the goals to hold, and what of that is
 * left for training.
 *
 * a is the aim, the part of a goal that predictions may take (aim.h); G the goal, H the host's time
 * between steps.
 *
 *     ITL     limit = a G
 *     TTFT    requests wait, oldest first, i with r_i prompt rows left, submitted t_i ago:
 *                 n_i   = max(ceil((r_1 + ... + r_i) / pace), 1)      steps until its first token
 *                 limit = min over i of  a (G - t_i - u) / n_i        u: of in-flight steps
 *             none waits: one that is submitted when this step begins waits for the step and then
 *             takes F, the usual TTFT without training:
 *                 limit = a (G - F) + serve + H
 *     idle    while no request runs, training holds the device for at most
 *                 max(min(idle, a (G - F)), min(idle, G / 16))
 *     F       min(q90, 0.6 G), q90 the 0.9 quantile of recent TTFTs without training; G / 4 while
 *             none is known
 *
 *     slice   of a step that may last `limit`, with left = limit - H:
 *                 slice = (left - serve) x clamp(3 - 4 serve / left, 0, 1)
 *             The factor (ease), 1 up to serve = left / 2, reduces training early, before the limit
 *             is reached: longer steps mean that more requests run at a time, and those make steps
 *             longer.
 *
 * Thread: any; pure functions.
 */
#pragma once

#include "nanobatch/split/seen.h"
#include "nanobatch/split/waits.h"

/* The step that a TTFT limit is for. */
struct hzp_deadline_step {
    uint64_t begin_ns;
    double pace;         /* prompt rows of a step with prompts, >= 1 */
    double in_flight_ns; /* what the steps before it will still take */
    double serve_ns;     /* predicted: serving's part of it */
    double host_ns;      /* H */
};

/* Nanoseconds; may come out negative.  waits NULL: none waits. */
double hzp_deadline_ttft(const struct hzp_seen *seen, uint64_t goal_ns,
                         const struct hzp_deadline_step *step, const struct hzp_waits *waits);

/* goal_ns 0: no TTFT goal, idle_ns. */
double hzp_deadline_idle(const struct hzp_seen *seen, uint64_t goal_ns, double idle_ns);

/* The factor.  The search uses it for the same purpose, on predicted steps. */
double hzp_deadline_ease(double left_ns, double serve_ns);

/* ease: the factor counts. */
double hzp_deadline_slice(double limit_ns, double host_ns, double serve_ns, bool ease);
