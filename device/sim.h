/* SPDX-License-Identifier: Apache-2.0 */
/* device/sim.h - the virtual clock of the simulated device, for what else is simulated.
 *
 * Thread: the device's.
 */
#pragma once

#include "device/device.h"

/* Whether this is the simulated device. */
bool hzp_sim_is(const struct hzp_device *dev);

/* Advances the clock to at_ns if that is later than now: the host has waited for something that is
 * not an op. */
void hzp_sim_wait_until(struct hzp_device *dev, uint64_t at_ns);
