/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/build/model.h - what the builders of plans know of the model: its layout, its versions,
 * its rotary table.  The engine knows tokens; text exists only in api/.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_BUILD_MODEL_H
#define HZP_NANOBATCH_BUILD_MODEL_H

#include "weights/versions.h"

struct hzp_model {
    struct hzp_device *dev;
    struct hzp_weights *weights;
    const struct hzp_layout *layout;
    const struct hzp_model_config *config; /* layout's */
    enum hzp_dtype act;                    /* type of weights, activations and KV */
    struct hzp_mat rope;                   /* [positions][dim] F32, device memory, owned */
    int32_t positions;                     /* longest sequence this process accepts */
};

/* Computes the rotary table for `positions` positions.  dev and weights are borrowed.  HZP_ENOMEM,
 * HZP_EDEVICE. */
int hzp_model_create(struct hzp_device *dev, struct hzp_weights *weights, int32_t positions,
                     struct hzp_model **ret);
void hzp_model_destroy(struct hzp_model *model); /* NULL: no effect */

#endif
