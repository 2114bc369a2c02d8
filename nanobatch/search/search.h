/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/search.h - finds the shape of a step: simulates every shape of a list, then
 * small changes to the best of them.
 *
 * The search varies the number and sizes of nano-batches, the order they are issued in, the lane of
 * each kind of op, the shares of the lanes, and whether training follows serving on its lane or
 * runs beside it.  The sequential plan (one nano-batch on one lane) is always among the candidates,
 * and is chosen unless another shape is better by a margin.
 *
 * What counts:
 *     score without training   the step's duration
 *     score with training      the training rate relative to the whole device, in steps within the
 *                              goal; over slices from five places of the chain, from the start of
 *                              the forward pass to the end of the backward pass, because its items
 *                              differ
 *     slice size               as the split (split.h) would allow
 *         with a goal          the time serving leaves, in whole items
 *         without              a share of a usual step; an item that takes longer is repaid by the
 *                              following steps, unused time is saved for them, and the score is the
 *                              average over such steps
 *         on its own lanes     as long as the step's serving
 *         with prompts         most such steps carry no training; one that does gets what a step
 *                              without prompts would
 *     ignored                  train_max, train_min, the split's margin for its prediction errors,
 *                              the frequency of prompts
 *
 * Training may also ride in serving's matrix products (ride.h), in chunks of several sizes, if the
 * rig has room for it.  The forward pass then goes in chunks also where it does not ride, which
 * takes longer: training done is counted as the time it would take without chunks.
 *
 * Thread: one at a time.
 */
#pragma once

#include "nanobatch/plan/shape.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/search/crew.h"
#include "nanobatch/search/simulate.h"

struct hzp_search_config {
    struct hzp_rig *rig;             /* any device: nothing is computed on it */
    const struct hzp_tables *tables; /* borrowed */
    struct hzp_crew *crew;           /* ranks that run steps together; NULL: there is one */
    double goal_ns; /* longest step that trains; 0: a usual step plus train_share of it */
    double train_share;
    int32_t tries; /* number of small changes tried for each of the best shapes */
    uint64_t seed;
};

struct hzp_search;

/* The configuration is copied, what it points to is borrowed.  It cannot fail. */
int hzp_search_create(const struct hzp_search_config *config, struct hzp_search **ret);
void hzp_search_destroy(struct hzp_search *s); /* NULL: no effect */

/* Finds the best shape for a step of these rows, decode rows at position `depth`; train 0: the step
 * does not train.  HZP_EINVAL: the rig is too small for it. */
int hzp_search_step(struct hzp_search *s, int32_t decode, int32_t depth, int32_t prefill,
                    int32_t train, struct hzp_plan_entry *ret);

/* Runs the entry's shape and the sequential plan alternately on the search's rig, whose device must
 * compute: the shape with the best of many predictions likely has an optimistic one.  With several
 * ranks simpler shapes are run if that one does not win: one nano-batch that divides its rows, two
 * nano-batches with exchanges beside them; the best takes its place.  Sets entry->confirmed; if no
 * shape wins, or it misses the goal that the sequential plan meets, the sequential plan takes its
 * place.  most_ns: time limit for the runs; 0: none.  If not even the fewest runs fit into it, the
 * entry stays unconfirmed. HZP_EDEVICE is final. */
int hzp_search_confirm(struct hzp_search *s, struct hzp_exec *exec, int32_t depth, double most_ns,
                       struct hzp_plan_entry *entry);

/* The number of shapes tried since create. */
int64_t hzp_search_tried(const struct hzp_search *s);

/* ---- vary.c: small changes of a shape, from which the search climbs; and the usual ways in
 * which the stages of a layer are cut.
 *
 * What comes out may be no possible shape: the caller checks it (hzp_plan_shape_check). */

struct hzp_vary {
    uint64_t seed, drawn; /* the same seed: the same changes */
    bool trains;          /* training's lanes may change */
    bool group;           /* several ranks compute products together, and exchange */
    int32_t rows;         /* rows of serving's step */
    int32_t overlap;      /* cores that each lane may have, shared with others; 0: they have own */
};

/* One change, drawn at random: rows between nano-batches, the order, a lane, cores (SMs) of a lane
 * or of a nano-operation, the number of nano-batches, which of them a stage joins, how ranks
 * exchange. */
void hzp_vary_change(struct hzp_vary *v, struct hzp_plan_shape *shape);

/* A number below n. */
int32_t hzp_vary_draw(struct hzp_vary *v, int32_t n);

/* The shape with lanes that share all cores: each item is limited to what its lane had, but for
 * one kind of op, which has all.  False: there is nothing to share. */
bool hzp_vary_shared(const struct hzp_vary *v, const struct hzp_plan_shape *shape,
                     enum hzp_kind kind, struct hzp_plan_shape *ret);

enum { HZP_VARY_CUTS = 6 };

/* Shapes with the same nano-batches, whose stages are cut in ways of their own; shapes with one
 * nano-batch have none.  Returns how many. */
int hzp_vary_cuts(const struct hzp_vary *v, const struct hzp_plan_shape *shape,
                  struct hzp_plan_shape ret[HZP_VARY_CUTS]);
