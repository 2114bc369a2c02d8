/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/model_dir.h"

#include "device/philox.h"

#include <math.h>
#include <string.h>

static void store(enum hzp_dtype type, void *base, size_t i, float value)
{
    if (type == HZP_F32)
        ((float *)base)[i] = value;
    else
        ((uint16_t *)base)[i] = hzp_bf16_from_f32(value);
}

/* A uniform number above 0, at most 1, from the counter's 53 high bits. */
static double uniform(uint64_t key, uint64_t counter)
{
    uint64_t bits = hzp_mix64(key + (counter + 1) * 0x9e3779b97f4a7c15u);
    return (double)((bits >> 11) + 1) * 0x1p-53;
}

/* Pairs by Box and Muller: r cos a and r sin a, with r = sqrt(-2 log u), a = 2 pi v, are two
 * independent normal numbers.  A pair is a function of seed, tensor and place alone. */
static void fill_normal(enum hzp_dtype type, void *base, size_t n, uint64_t key, double std)
{
    for (size_t i = 0; i < n; i += 2) {
        double r = std * sqrt(-2 * log(uniform(key, i))), a = 2 * M_PI * uniform(key, i + 1);
        store(type, base, i, (float)(r * cos(a)));
        if (i + 1 < n)
            store(type, base, i + 1, (float)(r * sin(a)));
    }
}

void hzp_model_init(const struct hzp_layout *layout, enum hzp_dtype type, void *base, uint64_t seed,
                    float std)
{
    HZP_ASSERT(type == HZP_F32 || type == HZP_BF16);
    size_t size = hzp_dtype_size(type);
    memset(base, 0, layout->elements * size); /* biases and padding */
    for (int32_t i = 0; i < layout->tensors; i++) {
        const struct hzp_tensor *t = &layout->tensor[i];
        char *at = (char *)base + t->offset * size;
        size_t n = (size_t)t->rows * (size_t)t->cols;
        uint64_t key = hzp_mix64(seed ^ hzp_mix64((uint64_t)i + 1));
        switch (t->role) {
        case HZP_ATTN_NORM:
        case HZP_MLP_NORM:
        case HZP_FINAL_NORM:
        case HZP_Q_NORM:
        case HZP_K_NORM:
            for (size_t j = 0; j < n; j++)
                store(type, at, j, 1);
            break;
        case HZP_QKV_BIAS:
            break;
        case HZP_O: /* the residual stream sums 2 layers of these: its variance stays about 1 */
        case HZP_DOWN:
            fill_normal(type, at, n, key, std / sqrt(2.0 * layout->config.layers));
            break;
        default:
            fill_normal(type, at, n, key, std);
        }
    }
}
