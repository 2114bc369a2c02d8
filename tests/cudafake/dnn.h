/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/dnn.h - cuDNN's descriptors, as dnn.c keeps them and dnn_math.c reads them.
 *
 * Thread: any, under the lock of enter and leave.
 */
#pragma once

#include "device/cuda/cudnn_names.h"
#include "tests/cudafake/core.h"

enum { FAKE_DNN_ATTRIBUTES = 16, FAKE_DNN_BOUND = 64 };

struct fake_dnn_desc {
    struct fake_object object;
    int kind;
    bool final;
    struct fake_dnn_attribute {
        int name, type;
        int64_t count;
        unsigned char *bytes;
    } of[FAKE_DNN_ATTRIBUTES];
    int attributes;
    int number;                  /* of an engine's configuration: which of its graph's */
    struct fake_dnn_desc *graph; /* of a configuration and of a plan */
    size_t space;                /* of a plan */
};

/* The attribute; NULL: it was not set. */
const struct fake_dnn_attribute *fake_dnn_find(const struct fake_dnn_desc *d, int name);

/* A descriptor that is an attribute; NULL: it was not set. */
struct fake_dnn_desc *fake_dnn_at(const struct fake_dnn_desc *d, int name, int64_t i);

/* An attribute that is a number; otherwise if it was not set. */
int64_t fake_dnn_number(const struct fake_dnn_desc *d, int name, int64_t otherwise);

struct fake_dnn_tensor {
    struct fake_dnn_desc *desc, *ragged;
    int64_t dim[4], stride[4], id;
    int type;
    bool is_virtual, by_value;
};
struct fake_dnn_tensor fake_dnn_tensor_of(struct fake_dnn_desc *d);

/* A run of a plan, with a copy of what is bound. */
struct fake_dnn_run {
    struct fake_dnn_desc *plan;
    uint64_t plan_id;
    int64_t id[FAKE_DNN_BOUND];
    void *at[FAKE_DNN_BOUND];
    float value[FAKE_DNN_BOUND]; /* of those by value, which the library reads at once */
    int bound;
};

/* dnn_math.c: computes the graph. */
void fake_dnn_compute(const struct fake_dnn_run *run);
