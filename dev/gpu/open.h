/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/open.h - a shape with noise for weights and for keys and values on a device: what
 * lanes.c, plans.c and fp8.c measure on.
 *
 * They run on any device, so that they are tried where there is no GPU.  A failure ends the program
 * with status 3 and its place, because a figure measured after a failure is worth nothing.
 *
 * Thread: one.
 */
#ifndef HZP_DEV_GPU_OPEN_H
#define HZP_DEV_GPU_OPEN_H

#include "api/engine/workbench.h"

#include <stdio.h>
#include <stdlib.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, hzp_err_name(must_));    \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

/* Options as `hzpserve plan` has them, for this model directory (config.json suffices) and
 * device. */
void gpu_options(const char *device, const char *model, struct hzp_options *ret);

/* Weights are noise, whatever the directory holds.  Where the device does not open the program says
 * so and ends with 77. */
struct hzp_workbench *gpu_open(const struct hzp_options *options,
                               const struct hzp_workbench_size *size);

/* The same noise in all keys and values, whoever reads them. */
void gpu_fill_pages(struct hzp_workbench *bench);

/* Sorts; n > 0. */
double gpu_median(double *value, int n);

/* A positive whole number; else the program ends with 2. */
int32_t gpu_number(const char *text);

#endif
