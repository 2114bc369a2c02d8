/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/time/rates.h - the roofline of a device before anything was measured on it.
 *
 *     t(op) = max(flops / flops_per_ns, bytes / bytes_per_ns) + call_ns
 *
 * These are the only guessed durations of the program: every other module asks here.  The constants
 * and where they come from:
 *
 *     60 flops/ns per core (SM)        an AVX2 core: 2 FMA units x 8 lanes x 2 flops = 32 a cycle,
 *                                      at 2.5 GHz and three quarters of the peak
 *     15 bytes/ns of the device        one channel of DDR4 memory
 *     200 ns per op                    the call of an empty op on the CPU backend
 *
 * They are a slow device on purpose.  On a GPU both rates are too low by about two orders of
 * magnitude, by factors that differ by at most 4.  A prior that is too slow makes the first slice
 * of training too short; one that is too fast would make it miss a goal.  Both last for a few ops
 * and steps: op_times.h and step_times.h replace the prior by what they measured, and rescale all
 * of it after the first step.  Where only the proportion of two ops matters (exec.h's attribution
 * to tenants), the common factor cancels.
 *
 * Thread: any; values.
 */
#pragma once

#include "device/device.h"

struct hzp_rates {
    double flops_per_ns, bytes_per_ns; /* the whole device's */
    double call_ns;                    /* per op */
};

/* The prior of a device with that many cores (threads, SMs); < 1: as one. */
struct hzp_rates hzp_rates_of(int32_t cores);

/* Nanoseconds, > 0. */
double hzp_rates_ns(const struct hzp_rates *rates, struct hzp_cost cost);

/* One byte of memory traffic counts as so many flops where an op's size is a single number: size
 * classes, and measured times scaled to another size.  About what an op may do for each byte before
 * arithmetic limits it, on two of the threads above: 2 x 60 / 15 = 8. */
enum { HZP_FLOPS_PER_BYTE = 10 };

/* Training's work is cut into items that last about as long as `quantum_flops` of matrix product.
 * For other ops one byte counts as so many flops: the balance of the fastest CPU measured (AVX-512
 * BF16, two cores: 1.2 TFLOP/s of products, 40 GB/s), so that on no CPU they last longer. */
enum { HZP_QUANTUM_FLOPS_PER_BYTE = 30 };

/* How many elements such an item may have, of an op that costs `cost` for `elements` of them; as
 * many as fit in a size_t if quantum_flops is 0. */
size_t hzp_quantum_elements(uint64_t quantum_flops, struct hzp_cost cost, size_t elements);
