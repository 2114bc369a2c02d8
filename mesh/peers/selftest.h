/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/selftest.h - the start-up self-test of several ranks: a matrix product, a copy in
 * device memory and an all-gather, whose speeds are compared, so that a rank with a slow core,
 * memory or link is known before it holds up all others.
 *
 * Each figure is the best of several runs.  A rank is compared with the lower median of all: of two
 * ranks with the faster one.
 *
 * Thread: engine.
 */
#pragma once

#include "device/device.h"
#include "mesh/link.h"

enum { HZP_SELFTEST_PRODUCT, HZP_SELFTEST_COPY, HZP_SELFTEST_LINK, HZP_SELFTEST_COUNT };

/* What one rank measured. */
struct hzp_selftest {
    double seconds[HZP_SELFTEST_COUNT];
};

/* Runs it on all ranks, which call it together, and logs the slowest rank: as a warning from three
 * times as slow on.  type: of the product's matrices, as in the model.  ret_all [ranks]: what all
 * ranks have measured; NULL: not wanted.  HZP_EIO: a rank is more than `most` times slower than the
 * others (0: no limit), which all ranks return and name; or the link failed.  HZP_ENOMEM,
 * HZP_EDEVICE. */
int hzp_selftest_run(struct hzp_device *dev, struct hzp_link *link, enum hzp_dtype type,
                     double most, struct hzp_selftest *ret_all, struct hzp_err_text *reterr);

/* How fast the first `count` ranks compute the product, in tenths of the fastest one rounded, as
 * hundredths: from 10 to 100. */
void hzp_selftest_speeds(const struct hzp_selftest *all, int count, uint8_t *ret);

/* The rank that is slowest, compared with the others: in what (*ret_which), and how many times
 * slower (*ret_times). */
int hzp_selftest_slowest(const struct hzp_selftest *all, int ranks, int *ret_which,
                         double *ret_times);
