/* SPDX-License-Identifier: Apache-2.0 */
/* tests/nanobatch/paper.h - a small model on the simulated device, with a rig.
 *
 * Thread: the test's.
 */
#pragma once

#include "nanobatch/search/rig.h"
#include "tests/fixture/model.h"

struct paper {
    struct fixture_model m;
    struct hzp_link *link[2]; /* NULL: one rank */
    struct hzp_rig *rig;
};

/* sim: what HZP_SIM is set to; device: "sim" or another.  train: rows of a micro-batch, 0: none. */
void paper_open(struct paper *p, const char *device, const char *sim, int32_t train);
/* The same, rank 0 of two that compute each step together; of the other there is only its end of
 * the link. */
void paper_open_group(struct paper *p, const char *device, const char *sim);
/* The same at this end of a link, of which it becomes the owner. */
void paper_open_rank(struct paper *p, const char *device, struct hzp_link *link);
void paper_close(struct paper *p);
