/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/split/share.h - training's share of the device's time while requests run: the most it
 * may have (credit) and the least it gets (floor), kept over many steps as balances in nanoseconds.
 *
 * s = training time / serving time; a fraction p of the total gives s = p / (1 - p).  With
 *     U      serving's usual time in a step that only decodes: an average over 16 of them
 *     next   how long training's next item will take
 *
 *     credit    C = min(C + s serve - train, next)    when a step has ended; C = 0 while none runs
 *               O += max(slice - s U, 0)              while a step with that slice is in flight
 *               slice <= C - O + s U                  may be used by the next step
 *
 * So an item longer than one step's share needs credit from several steps, and the following steps
 * pay back what it took beyond the share.  Credit is capped at one item: a trainer that had nothing
 * to do must not delay a later step.  A long step earns a usual step's share only.  Over any run of
 * steps training takes at most s times serving's time, two items and one usual step's share.
 *
 * Beside serving, without train_max, `train` is the time by which serving takes longer for it, and
 * `serve` what it would take alone.  So in both ways training makes ITLs longer by s on average.
 *
 *     floor     F = clamp(F + s serve - train, 0, max(next, serve)),  s by the part
 *                   min(train_min x clamp(age / 30 s, 1, 5), train_max)
 *               the slice is at least F, once F >= next; age: of the oldest work that waits
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/split/policy.h"

/* A part of all time, 0 .. 1, as a multiple of serving's time; INFINITY for 1. */
double hzp_share_of_part(double part);

/* What the operator allows. */
struct hzp_time_share {
    double turn;   /* s where training and serving take turns; INFINITY: no bound */
    double beside; /* s where training runs beside serving on its own lanes: train_max only */
};

/* itl_goal: the operator has set one; it then replaces train_share. */
struct hzp_time_share hzp_share_of(const struct hzp_policy *policy, bool itl_goal);

struct hzp_credit {
    double credit_ns; /* C; < 0: to be paid back */
    double owed_ns;   /* O */
    double usual_ns;  /* U; 0: no such step yet */
};

/* How long training may run in a step whose serving is predicted to take alone_ns; INFINITY: no
 * bound. */
double hzp_credit_allows(const struct hzp_credit *credit, const struct hzp_time_share *share,
                         bool beside, double alone_ns);

/* What a slice takes beyond the usual share: to be added to owed_ns while its step is in flight. */
double hzp_credit_owes(const struct hzp_credit *credit, const struct hzp_time_share *share,
                       bool beside, double slice_ns);

/* A step has ended. */
void hzp_credit_settle(struct hzp_credit *credit, const struct hzp_time_share *share, bool beside,
                       double serve_ns, double train_ns, double next_ns);

/* Serving took so long in a step that only decodes, or would have without training beside it. */
void hzp_credit_usual(struct hzp_credit *credit, double serve_ns);

/* The least part of all time that training gets now, 0 .. 1. */
double hzp_floor_part(const struct hzp_policy *policy, uint64_t age_ns);

/* F after a step.  part: hzp_floor_part; next_ns: of training's next item, 0: not known. */
double hzp_floor_settle(double floor_ns, double part, double serve_ns, double train_ns,
                        double next_ns);

/* The least that the next slice gets whatever the goals say; 0: nothing is due. */
double hzp_floor_due(double floor_ns, double next_ns);
