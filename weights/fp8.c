/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/fp8.h"

static int quantize_all(struct hzp_lane *lane, const struct hzp_weights *w,
                        const struct hzp_version *v)
{
    for (int32_t l = 0; l < hzp_weights_layout(w)->config.layers; l++)
        for (int i = 0; i < HZP_FP8_ROLES; i++) {
            struct hzp_quantize_args args = {.x = hzp_version_mat(w, v, hzp_fp8_role[i], l)};
            args.y = hzp_version_fp8(w, v, hzp_fp8_role[i], l, &args.scale);
            HZP_TRY(hzp_op_quantize(lane, &args));
        }
    return HZP_OK;
}

int hzp_version_quantize(struct hzp_weights *w, struct hzp_version *draft)
{
    struct hzp_device *dev = hzp_weights_device(w);
    struct hzp_lane *lane = NULL;
    struct hzp_fence *fence = NULL;
    int r = HZP_OK;
    if (!hzp_weights_fp8(w))
        return HZP_OK;
    HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_MEMORY, &lane));
    HZP_TRY_GOTO(hzp_fence_open(dev, &fence));
    HZP_TRY_GOTO(quantize_all(lane, w, draft));
    HZP_TRY_GOTO(hzp_fence_record(fence, lane));
    HZP_TRY_GOTO(hzp_fence_wait(fence));
    draft->fp8_made = true;
out:
    hzp_fence_close(fence);
    hzp_lane_close(lane);
    return r;
}
