/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/search_validate.h - is what the simulator predicts what happens?  Random plans are run
 * and timed.
 *
 * Thread: the device's.
 */
#ifndef HZP_API_ENGINE_SEARCH_VALIDATE_H
#define HZP_API_ENGINE_SEARCH_VALIDATE_H

#include "api/engine/workbench.h"
#include "nanobatch/time/tables.h"

/* Runs `plans` random plans on the bench, twice, and prints one line each, then median and 95th
 * percentile of the error |predicted / measured - 1|; measured is the shorter of two medians, as
 * the tables hold the shortest of several.  *stop: raised by a signal, ends it early. */
int hzp_search_validate(struct hzp_workbench *bench, const struct hzp_tables *tables, int64_t plans,
                        uint64_t seed, const volatile int *stop, struct hzp_err_text *reterr);

#endif
