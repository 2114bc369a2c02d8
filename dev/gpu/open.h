/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/open.h - opens a model shape on a device, with noise for weights and for keys and
 * values: the base of the measurements in lanes.c, plans.c and fp8.c.
 *
 * They run on any device, so that they can be tried where there is no GPU.  A failure ends the
 * program with status 3 and its place, because a figure measured after a failure is worth
 * nothing.
 *
 * Thread: one.
 */
#pragma once

#include "api/engine/assembly.h"

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

/* What to open: a device, a model directory (config.json suffices) and the rows of the steps. */
struct gpu_config {
    struct hzp_device_settings device;
    struct hzp_model_settings model;
    struct hzp_assembly_rig rows;
    int32_t layers_max; /* 0: all */
};

/* Without rows; pages of 16 tokens, moments in BF16, training work not divided. */
void gpu_configure(const char *device, const char *model, struct gpu_config *ret);

/* Weights are noise, whatever the directory holds.  If the device does not open, the program
 * prints why and exits with 77.  config is borrowed until the assembly is closed. */
void gpu_open(const struct gpu_config *config, struct hzp_assembly *ret);

/* Fills all keys and values with the same noise. */
void gpu_fill_pages(struct hzp_assembly *parts);

/* Sorts the values and returns their median; n > 0. */
double gpu_median(double *value, int n);
/* The distance of the quartiles of sorted values over the median. */
double gpu_spread(const double *sorted, int n);

/* Parses a positive whole number; anything else ends the program with status 2. */
int32_t gpu_number(const char *text);
