/* SPDX-License-Identifier: Apache-2.0 */
/* device/collective.h - the transfer that the collective op stands for.
 *
 * Invariant: every backend makes the same transfer of the same arguments, so ranks on different
 * backends of one link agree.
 *
 * Thread: any.
 */
#pragma once

#include "device/device.h"
#include "mesh/link.h"

/* args are valid (hzp_op_validate).  Nothing is to be moved if ret->count is 0. */
void hzp_collective_transfer(const struct hzp_collective_args *args, struct hzp_transfer *ret);
