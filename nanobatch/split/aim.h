/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/aim.h - which part of a goal a step is predicted to take at most, steered by how
 * often training makes the goal missed.
 *
 * The goals are for the 99th percentile.  A prediction is a mean, and how far measurements scatter
 * above it depends on the machine, so the part a of the goal G is found by feedback:
 *
 *     limit = a G                        of the predicted ITL, or TTFT
 *     a = a exp(-g)                      after each that is late because of training: longer than
 *                                        G, and not longer than G without the training in it
 *     a = a exp(g b r)                   after each other one, r = clamp(n / 200 - 1, 1, 20) with
 *                                        n the number of them since the last late one
 *     a in 0.05 .. 1                     g = 0.05, b = 0.002
 *
 * It rests where the part b is late because of training.  What serving alone makes late comes on
 * top and is not training's: throttle.h.  r restores the aim within some thousand ITLs after a
 * disturbance that made many of them late.
 *
 * Thread: engine.
 */
#pragma once

#include "base/base.h"

struct hzp_aim {
    double part;        /* a */
    int32_t since_late; /* n */
};

void hzp_aim_init(struct hzp_aim *aim);
void hzp_aim_note(struct hzp_aim *aim, bool late);
