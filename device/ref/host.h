/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/host.h - memory and lanes of a device that is the host itself: for ref, cpu and sim.
 *
 * Device and host memory are both host memory.  The signatures are those of struct hzp_backend.
 *
 * Thread: engine.
 */
#pragma once

#include "device/device.h"

int hzp_host_mem_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret);
void hzp_host_mem_free(struct hzp_device *dev, enum hzp_mem where, void *ptr);

/* Opens a lane that has no state besides struct hzp_lane. */
int hzp_host_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret);
void hzp_host_lane_close(struct hzp_lane *lane);
