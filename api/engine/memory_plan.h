/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/memory_plan.h - computes how the device's memory is divided, before any is allocated.
 *
 * No device memory is allocated once the loop runs, so an engine that starts cannot run out of it
 * later.  A plan that does not fit is refused with an error that shows the sum.
 *
 * Thread: any; a plan is constant once made.
 */
#pragma once

#include "api/engine/settings.h"
#include "nanobatch/run/driver.h"
#include "nanobatch/run/exec.h"

enum { HZP_MEMORY_LINES_MAX = 16 };

struct hzp_memory_line {
    const char *what;
    char how[80]; /* "2 versions of 124.3 MB" */
    size_t bytes;
    bool host; /* beside a device: of its host's memory, not in the total */
};

struct hzp_memory_plan {
    struct hzp_memory_line line[HZP_MEMORY_LINES_MAX];
    int lines;
    size_t total, limit; /* bytes of device memory */
    size_t host;         /* a device's: bytes of its host's memory, which is locked for it */
    /* values that follow from the plan */
    enum hzp_dtype dtype;
    bool fp8;          /* each slot has a copy of the projections in e4m3 */
    enum hzp_dtype kv; /* type of keys and values in pages */
    int32_t positions; /* longest sequence */
    int32_t slots;
    int32_t kv_pages, kv_backs; /* backing pages of layers with windows; 0: none (kvpool.h) */
    struct hzp_batch_config batch;
    size_t graphs; /* bytes of the device's memory that graphs may take; 0: any */
    struct hzp_page_table_config pages; /* lines 0: the device keeps no table of pages */
    struct hzp_recipe recipe;
    struct hzp_train_space_config train; /* if trains */
    bool serves, trains;
    bool copies; /* there is memory for a copy of the state, from which checkpoints are written */
};

struct hzp_memory_request {
    const struct hzp_model_settings *model;
    const struct hzp_serving_settings *serving;   /* NULL: it does not serve */
    const struct hzp_training_settings *training; /* NULL: it does not train */
    int32_t slots;                                /* slots of weights, >= 1 */
    size_t limit;                                 /* bytes the device has */
    struct hzp_driver_memory driver;              /* what the driver takes for its own objects */
    size_t lanes; /* part of the limit that the executors' lanes take (hzp_exec_bytes) */
    bool gate;    /* or trials: a copy of the optimizer's state is kept */
    /* Checkpoints may be written from a copy in host memory.  It is planned where nine tenths of
     * the memory hold it: of the limit where that is host memory, else of host_limit. */
    bool copies;
    size_t host_limit; /* bytes of host memory; 0: that is the limit, the device's
                               * memory is the host's */
    int32_t shapes;    /* shapes of each step: hzp_plan_shapes_each; 0: 1 */
    int32_t links;     /* links of a tensor group that move the device's memory (axes.h) */
    bool rides;        /* training may ride in serving's products, which needs memory */
    struct hzp_shards
        shards; /* how weights and training are divided; the layout is padded for it */
};

/* HZP_ENOMEM: it does not fit; the text shows the sum and names the options to lower.  HZP_EINVAL:
 * settings that contradict each other, such as a KV cache that cannot hold a sequence of --context
 * tokens. */
int hzp_memory_plan(const struct hzp_memory_request *request, const struct hzp_layout *layout,
                    struct hzp_memory_plan *ret, struct hzp_err_text *reterr);

/* Prints the plan as a table, one line per part. */
void hzp_memory_plan_print(const struct hzp_memory_plan *plan, FILE *out);
/* The same as lines of the log. */
void hzp_memory_plan_log(const struct hzp_memory_plan *plan);

/* Formats a size as 12.3 MB and so on, in powers of 1024; text [16]. */
const char *hzp_size_text(size_t bytes, char *text);
