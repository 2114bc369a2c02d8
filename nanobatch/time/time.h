/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/time/time.h - the model of time: how long will this take.
 *
 * Every module that needs a duration before it is known asks here:
 *
 *     question                               answered by    asked by
 *     a device not measured yet              rates.h        the others, as their prior
 *     an op, a slice of training's items     op_times.h     trainer: where to cut a slice; loop:
 *                                                           what a slice takes; exec: how a run's
 *                                                           duration divides between tenants
 *     serving's part of a step, by shape     step_times.h   split: what the goals leave to
 *                                                           training; scheduler: the prompt rows
 *                                                           that keep a goal
 *     the same, by its number of rows        rows_times.h   scheduler: throughput by step size
 *     an op on a share of the device, and    tables.h       the search's simulator; op_times.h, for
 *     ops side by side, as `search` measured                ops not yet measured here
 *
 * One struct holds what a running engine learns.  Ops have two sets of times: those measured on the
 * whole device, and those measured on lanes side by side, which are longer.
 *
 * Nothing correct depends on an answer; how long steps and slices are does.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/time/op_times.h"
#include "nanobatch/time/rows_times.h"
#include "nanobatch/time/step_times.h"

struct hzp_time {
    struct hzp_op_times whole, beside;
    struct hzp_step_times step;
    struct hzp_rows_times rows;
};

/* cores: of the device (hzp_device.threads).  config NULL: a model of no size in
 * particular; act: type of its weights and KV. */
void hzp_time_init(struct hzp_time *time, int32_t cores, const struct hzp_model_config *config,
                   enum hzp_dtype act);

/* Ops on the whole device that were not yet measured here take the tables' time, where they have
 * one.  Borrowed for the life of `time`; NULL: none. */
void hzp_time_use_tables(struct hzp_time *time, const struct hzp_tables *tables);
