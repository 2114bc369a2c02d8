/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/link.h - `bench link`: how fast the ranks of a run exchange data.
 *
 * Thread: the one that opened the link.
 */
#pragma once

#include "api/cli/options.h"
#include "device/device.h"
#include "mesh/link.h"

/* Every rank calls it; rank 0 prints the figures.  What is exchanged is dev's memory, which the
 * link moves; NULL: host memory. */
int hzp_bench_link(struct hzp_link *link, struct hzp_device *dev,
                   const struct hzp_bench_settings *settings, struct hzp_err_text *reterr);
