/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/validate.h - compares the simulator's predictions with measured runs of random
 * plans.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_SEARCH_VALIDATE_H
#define HZP_NANOBATCH_SEARCH_VALIDATE_H

#include "nanobatch/search/rig.h"
#include "nanobatch/time/tables.h"

/* Runs `plans` random plans on the rig in two passes and prints one line each, then median and 95th
 * percentile of the error |predicted / measured - 1|. The measured time is the shorter of the two
 * passes' medians, as the tables hold the shortest of several.  *stop != 0, set by a signal
 * handler, ends it early. */
int hzp_search_validate(struct hzp_rig *rig, const struct hzp_tables *tables, int64_t plans,
                        uint64_t seed, const volatile int *stop, struct hzp_err_text *reterr);

#endif
