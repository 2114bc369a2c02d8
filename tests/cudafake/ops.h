/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/ops.h - a CUDA device on the recording runtime whose ops have their results:
 * behind the kernels an op launches runs its reference, on what those kernels would read and write.
 *
 * Products are left to the recorder's cuBLASLt wherever the backend gave it one.
 *
 * Thread: engine.
 */
#ifndef HZP_TESTS_CUDAFAKE_OPS_H
#define HZP_TESTS_CUDAFAKE_OPS_H

#include "device/cuda/cuda.h"
#include "tests/cudafake/fake.h"

/* Gives the ops of a CUDA device their results. */
void fake_attach(struct hzp_device *dev);

/* Opens the device; cache: where algorithms are kept, NULL: nowhere. */
struct hzp_device *fake_open(unsigned seed, const char *lanes, const char *cache);

/* Closes it; asserts that nothing leaked and no mistake was made. */
void fake_close(struct hzp_device *dev);

#endif
