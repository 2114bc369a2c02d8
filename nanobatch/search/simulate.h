/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/simulate.h - how long a plan would take: the plan run on paper, event by event,
 * with the times of tables.h.
 *
 * Items of one lane follow each other; an item begins when its lane is free, it has been issued and
 * what it waits for has ended, plus what handing over costs.  While items of several lanes run,
 * each advances by the product of its class' rates beside the others.  A plan of one lane has the
 * whole device, as in exec.c.
 *
 * Thread: one at a time.
 */
#ifndef HZP_NANOBATCH_SEARCH_SIMULATE_H
#define HZP_NANOBATCH_SEARCH_SIMULATE_H

#include "nanobatch/plan/plan.h"
#include "nanobatch/time/tables.h"

struct hzp_simulator;

struct hzp_simulated {
    double ns;                         /* from the first issue to the last end */
    double serve_end_ns, train_end_ns; /* the last end of each; 0: none */
    double train_ran_ns;               /* of training's items, as they ran, one after another */
    double train_alone_ns;          /* of training's items, on the whole device and undisturbed */
    double busy_ns[HZP_LANE_COUNT]; /* while an item ran */
};

/* The tables are borrowed and must not change. */
int hzp_simulator_create(const struct hzp_tables *tables, struct hzp_simulator **ret);
void hzp_simulator_destroy(struct hzp_simulator *sim); /* NULL: no effect */

/* The plan must be one that hzp_plan_check passes: waits point back. */
void hzp_simulate(struct hzp_simulator *sim, const struct hzp_plan *plan,
                  struct hzp_simulated *ret);

/* How long item i of the plan takes alone on so many units. */
double hzp_simulator_alone_ns(struct hzp_simulator *sim, const struct hzp_item *item, bool again,
                              int32_t units);

/* Which products read weights that another nano-batch read just before: again [plan->items]. */
void hzp_plan_find_again(const struct hzp_plan *plan, bool *again);

#endif
