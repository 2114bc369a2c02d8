/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/fp8_layout.h"

enum { ALIGN = 256 };

const enum hzp_role hzp_fp8_role[HZP_FP8_ROLES] = {HZP_QKV, HZP_O, HZP_GATE_UP, HZP_DOWN};

static const struct hzp_tensor *tensor_of(const struct hzp_layout *layout, int32_t layer, int i)
{
    const struct hzp_tensor *t = hzp_layout_find(layout, hzp_fp8_role[i], layer);
    HZP_ASSERT(t);
    return t;
}

static size_t code_bytes(const struct hzp_tensor *t)
{
    return HZP_ROUND_UP((size_t)t->rows * (size_t)t->cols, (size_t)HZP_UNIT_ALIGN);
}

static size_t scale_bytes(const struct hzp_tensor *t)
{
    return HZP_ROUND_UP((size_t)t->rows * sizeof(float), (size_t)HZP_UNIT_ALIGN);
}

size_t hzp_fp8_layer_bytes(const struct hzp_layout *layout, int32_t layer)
{
    size_t bytes = 0;
    for (int i = 0; i < HZP_FP8_ROLES; i++) {
        const struct hzp_tensor *t = tensor_of(layout, layer, i);
        bytes += code_bytes(t) + scale_bytes(t);
    }
    return HZP_ROUND_UP(bytes, (size_t)ALIGN);
}

size_t hzp_fp8_bytes(const struct hzp_layout *layout)
{
    size_t bytes = 0;
    for (int32_t l = 0; l < layout->config.layers; l++)
        bytes += hzp_fp8_layer_bytes(layout, l);
    return bytes;
}

struct hzp_mat hzp_fp8_mat(const struct hzp_layout *layout, void *base, enum hzp_role role,
                           int32_t layer, float **ret_scale)
{
    const struct hzp_tensor *wanted = hzp_layout_find(layout, role, layer);
    size_t codes = 0, scales = 0, code_at = 0, scale_at = 0;
    bool found = false;
    for (int i = 0; i < HZP_FP8_ROLES; i++) {
        const struct hzp_tensor *t = tensor_of(layout, layer, i);
        if (t == wanted) {
            code_at = codes;
            scale_at = scales;
            found = true;
        }
        codes += code_bytes(t);
        scales += scale_bytes(t);
    }
    HZP_ASSERT(found);
    *ret_scale = (float *)(void *)((char *)base + codes + scale_at);
    return (struct hzp_mat){(char *)base + code_at, wanted->rows, wanted->cols, wanted->cols,
                            HZP_E4M3};
}
