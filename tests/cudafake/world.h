/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/world.h - a model of two layers with weights of two versions, pages and rows: its
 * steps run on the recorder, and on the reference beside it.
 *
 * Invariant: what is in a world is on the device it was opened with.  Thread: the test's.
 */
#pragma once

#include "nanobatch/model/forward.h"
#include "nanobatch/run/exec.h"
#include "tests/fixture/model.h"

enum {
    LAYERS = 2,
    WIDTH = 128,
    VOCAB = 96,
    PAGE_ROWS = 16,
    STRIDE = 24,
    SEGS = 8,
    PAGES = 96,
    PROMPT = 5,
    ROWS = 96
};

struct world {
    struct fixture_model m;
    struct hzp_version *version[2];
    struct hzp_page_table *table; /* NULL: on the reference */
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_kv kv[LAYERS];
    struct hzp_exec *exec;
    struct hzp_plan plan;
};

extern bool world_fp8;    /* the worlds that are opened have e4m3 projections */
extern float world_apart; /* how far logarithms of probabilities may be apart */

void world_open(struct world *w, struct hzp_device *dev); /* dev is borrowed */
void world_close(struct world *w);
struct hzp_device *world_reference(void); /* to open the other world on */

/* Makes w->plan, step `step` of `segs` sequences: step 0 holds prompts, later ones one row per
 * sequence with its last token.  slot: 0 or 1, of the weights.  shape NULL: the sequential one. */
void world_build(struct world *w, int step, int segs, const int32_t *token, int slot,
                 const struct hzp_plan_shape *shape);
void world_run(struct world *w); /* runs w->plan to its end */

/* Both must draw the same tokens with about the same probabilities; `token` receives them for the
 * next step. */
void world_agree(const struct world *a, const struct world *b, int segs, int32_t *token);
