/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/ops.h - a CUDA device on the recording runtime whose ops produce results:
 * behind the kernels that an op launches runs the op's reference, on the memory those kernels
 * would use.
 *
 * Products that the backend gives to cuBLASLt are computed by the recorder's cuBLASLt (lt.c).
 *
 * Thread: engine.
 */
#pragma once

#include "device/cuda/cuda.h"
#include "tests/cudafake/fake.h"

/* Makes the ops of a CUDA device produce their results. */
void fake_attach(struct hzp_device *dev);

/* Opens the device; cache: the folder in which algorithms are kept, NULL: none. */
struct hzp_device *fake_open(unsigned seed, const char *lanes, const char *cache);

/* Closes it; asserts that nothing leaked and no mistake was made. */
void fake_close(struct hzp_device *dev);
