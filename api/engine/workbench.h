/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/workbench.h - a model on a device without a server around it: what `plan` and `search`
 * work on.
 *
 * Thread: whoever opens it; it is the device's.
 */
#ifndef HZP_API_ENGINE_WORKBENCH_H
#define HZP_API_ENGINE_WORKBENCH_H

#include "api/cli/options.h"
#include "nanobatch/search/rig.h"

struct hzp_workbench_size {
    const char *device; /* NULL: as the options say */
    int32_t layers_max; /* 0: all; else the model is cut to so many */
    bool load;          /* the model's own weights; else noise */
    bool updates;       /* a second slot, for updates to write */
    bool rides;         /* there is room for training to ride in serving's products */
    int32_t decode, depth, prefill, train; /* the rig's rows */
    int64_t kv_tokens;                     /* 0: what the rows need */
};

struct hzp_workbench {
    struct hzp_model_config config; /* cut to layers_max */
    struct hzp_layout layout;
    bool layout_made;
    struct hzp_device *dev;
    struct hzp_weights *weights;
    struct hzp_model *model;
    struct hzp_rig *rig;
};

/* Opens all of it.  Without options->model the model is one of 135 million parameters. */
int hzp_workbench_open(const struct hzp_options *options, const struct hzp_workbench_size *size,
                       struct hzp_workbench **ret, struct hzp_err_text *reterr);
void hzp_workbench_close(struct hzp_workbench *bench); /* NULL: no effect */

/* The model that options name, or the built-in one. */
int hzp_workbench_config(const struct hzp_options *options, struct hzp_model_config *ret,
                         struct hzp_err_text *reterr);

#endif
