/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/group_links.h - the links of a rank that computes each step together with others, of
 * one process: each has an order of its own. */
#pragma once

#include "mesh/link.h"

enum { RECORDS, SERVE, TRAIN, LINKS };

/* In a server the links of a rank fail together (hzp_link_split): call it when one has failed. */
static inline void fail_together(struct hzp_link *link[LINKS])
{
    struct hzp_link_state state = {0};
    for (int i = 0; i < LINKS && !state.failed; i++)
        hzp_link_state(link[i], &state);
    for (int i = 0; i < LINKS && state.failed; i++)
        hzp_link_abort(link[i], state.failed_rank, state.why);
}
