/* SPDX-License-Identifier: Apache-2.0 */
/* tests/nanobatch/paper.h - a small model on the simulated device, with a rig.
 *
 * Thread: the test's.
 */
#ifndef HZP_TESTS_PAPER_H
#define HZP_TESTS_PAPER_H

#include "nanobatch/search/rig.h"
#include "tests/fixture/model.h"

struct paper {
    struct fixture_model m;
    struct hzp_rig *rig;
};

/* sim: what HZP_SIM is set to; device: "sim" or another.  train: rows of a micro-batch, 0: none. */
void paper_open(struct paper *p, const char *device, const char *sim, int32_t train);
void paper_close(struct paper *p);

#endif
