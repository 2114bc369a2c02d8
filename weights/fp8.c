/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/fp8.h"

enum { ALIGN = 256 };

const enum hzp_role hzp_fp8_role[HZP_FP8_ROLES] = {HZP_QKV, HZP_O, HZP_GATE_UP, HZP_DOWN};

/* Where things of one role lie, in bytes from the begin of their layer. */
struct place {
    size_t codes, scales, layer; /* layer: bytes of all of it */
    int32_t rows, cols;
};

/* Every layer has as many tensors of the same shapes. */
static const struct hzp_tensor *tensor_of(const struct hzp_layout *layout, enum hzp_role role)
{
    for (int32_t i = 0; i < layout->tensors; i++)
        if (layout->tensor[i].layer == 0 && layout->tensor[i].role == role)
            return &layout->tensor[i];
    HZP_ASSERT(!"a projection");
    return NULL;
}

static struct place place_of(const struct hzp_layout *layout, enum hzp_role role)
{
    struct place place = {0};
    size_t codes = 0, scales = 0;
    for (int i = 0; i < HZP_FP8_ROLES; i++) {
        const struct hzp_tensor *t = tensor_of(layout, hzp_fp8_role[i]);
        if (t->role == role)
            place = (struct place){codes, scales, 0, t->rows, t->cols};
        codes += HZP_ROUND_UP((size_t)t->rows * (size_t)t->cols, (size_t)HZP_UNIT_ALIGN);
        scales += HZP_ROUND_UP((size_t)t->rows * sizeof(float), (size_t)HZP_UNIT_ALIGN);
    }
    place.scales += codes;
    place.layer = HZP_ROUND_UP(codes + scales, (size_t)ALIGN);
    return place;
}

size_t hzp_fp8_bytes(const struct hzp_layout *layout)
{
    return place_of(layout, HZP_QKV).layer * (size_t)layout->config.layers;
}

struct hzp_mat hzp_fp8_mat(const struct hzp_layout *layout, void *base, enum hzp_role role,
                           int32_t layer, float **ret_scale)
{
    struct place place = place_of(layout, role);
    HZP_ASSERT(place.rows > 0 && layer >= 0 && layer < layout->config.layers);
    char *at = (char *)base + place.layer * (size_t)layer;
    *ret_scale = (float *)(void *)(at + place.scales);
    return (struct hzp_mat){at + place.codes, place.rows, place.cols, place.cols, HZP_E4M3};
}

struct hzp_mat hzp_version_fp8(const struct hzp_weights *w, const struct hzp_version *v,
                               enum hzp_role role, int32_t layer, float **ret_scale)
{
    HZP_ASSERT(v->fp8);
    return hzp_fp8_mat(hzp_weights_layout(w), v->fp8, role, layer, ret_scale);
}

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
    if (!draft->fp8)
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
