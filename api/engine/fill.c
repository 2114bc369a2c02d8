/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/fill.h"

#include "train/trainer.h"
#include "weights/model_dir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_norm(enum hzp_role role)
{
    return role == HZP_ATTN_NORM || role == HZP_MLP_NORM || role == HZP_FINAL_NORM ||
           role == HZP_Q_NORM || role == HZP_K_NORM;
}

int hzp_fill_noise(struct hzp_weights *weights, struct hzp_version *draft)
{
    struct hzp_device *dev = hzp_weights_device(weights);
    const struct hzp_layout *layout = hzp_weights_layout(weights);
    enum hzp_dtype type = hzp_weights_type(weights);
    const uint64_t piece = 1 << 28;
    struct hzp_lane *lane = NULL;
    struct hzp_fence *fence = NULL;
    int r;
    HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_MEMORY, &lane));
    HZP_TRY_GOTO(hzp_fence_open(dev, &fence));
    for (uint64_t at = 0; at < layout->elements; at += piece) {
        int32_t n = (int32_t)HZP_MIN(piece, layout->elements - at);
        char *part = (char *)draft->base + at * hzp_dtype_size(type);
        struct hzp_noise_args args = {{part, 1, n, n, type}, 1, at, 0.02f};
        HZP_TRY_GOTO(hzp_op_noise(lane, &args));
    }
    for (int32_t i = 0; i < layout->tensors; i++) {
        const struct hzp_tensor *t = &layout->tensor[i];
        struct hzp_fill_args one = {hzp_layout_mat(layout, draft->base, type, t->role, t->layer),
                                    1};
        if (is_norm(t->role))
            HZP_TRY_GOTO(hzp_op_fill(lane, &one));
    }
    HZP_TRY_GOTO(hzp_fence_record(fence, lane));
    HZP_TRY_GOTO(hzp_fence_wait(fence));
    draft->record.loss = NAN;
    draft->record.learned_through = -1;
out:
    hzp_fence_close(fence);
    hzp_lane_close(lane);
    return r;
}

int hzp_fill_load(struct hzp_weights *weights, struct hzp_version *draft, const char *dir,
                  struct hzp_err_text *reterr)
{
    struct hzp_device *dev = hzp_weights_device(weights);
    const struct hzp_layout *layout = hzp_weights_layout(weights);
    enum hzp_dtype type = hzp_weights_type(weights);
    size_t bytes = layout->elements * hzp_dtype_size(type);
    void *host = draft->base;
    struct hzp_lane *lane = NULL;
    struct hzp_fence *fence = NULL;
    const char *noise = getenv("HZP_NOISE");
    int r = HZP_OK;
    if (noise && *noise && strcmp(noise, "0") != 0)
        return hzp_fill_noise(weights, draft);
    if (!hzp_device_host_memory(dev))
        HZP_TRY_GOTO(hzp_device_alloc(dev, HZP_MEM_HOST, bytes, &host));
    HZP_TRY_GOTO(hzp_model_load(dir, layout, type, host, reterr));
    draft->record.loss = NAN;
    draft->record.learned_through = -1;
    draft->record.checksum = hzp_version_checksum(layout, type, host);
    if (!hzp_device_host_memory(dev)) {
        HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_COPY, &lane));
        HZP_TRY_GOTO(hzp_fence_open(dev, &fence));
        HZP_TRY_GOTO(hzp_lane_copy(lane, draft->base, host, bytes));
        HZP_TRY_GOTO(hzp_fence_record(fence, lane));
        HZP_TRY_GOTO(hzp_fence_wait(fence));
    }
out:
    if (!hzp_device_host_memory(dev) && host != draft->base) {
        hzp_fence_close(fence);
        hzp_lane_close(lane);
        hzp_device_free(dev, HZP_MEM_HOST, host);
    }
    return r;
}
