/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/model_dir.h"

#include "device/philox.h"

static void store(enum hzp_dtype type, void *base, size_t i, float value)
{
    if (type == HZP_F32)
        ((float *)base)[i] = value;
    else
        ((uint16_t *)base)[i] = hzp_bf16_from_f32(value);
}

/* A uniform number in (0, 1] from the counter's 53 high bits. */
static double uniform(uint64_t key, uint64_t counter)
{
    uint64_t bits = hzp_mix64(key + (counter + 1) * 0x9e3779b97f4a7c15u);
    return (double)((bits >> 11) + 1) * 0x1p-53;
}

/* Box-Muller: r cos a and r sin a, with r = sqrt(-2 log u), a = 2 pi v, are two independent normal
 * numbers.  A pair depends on seed, tensor and position alone. */
static void fill_normal(enum hzp_dtype type, void *base, size_t n, uint64_t key, double std)
{
    for (size_t i = 0; i < n; i += 2) {
        double r = std * sqrt(-2 * log(uniform(key, i))), a = 2 * M_PI * uniform(key, i + 1);
        store(type, base, i, (float)(r * cos(a)));
        if (i + 1 < n)
            store(type, base, i + 1, (float)(r * sin(a)));
    }
}

struct init {
    const struct hzp_layout *layout;
    uint64_t seed;
    float std;
};

static void init_tensor(const struct init *init, int32_t i, enum hzp_dtype type, void *at)
{
    const struct hzp_tensor *t = &init->layout->tensor[i];
    size_t n = (size_t)t->rows * (size_t)t->cols;
    uint64_t key = hzp_mix64(init->seed ^ hzp_mix64((uint64_t)i + 1));
    switch (t->role) {
    case HZP_ATTN_NORM:
    case HZP_MLP_NORM:
    case HZP_FINAL_NORM:
    case HZP_Q_NORM:
    case HZP_K_NORM:
    case HZP_ATTN_POST:
    case HZP_MLP_POST:
        for (size_t j = 0; j < n && !init->layout->config.norm_plus_one; j++)
            store(type, at, j, 1);
        break;
    case HZP_QKV_BIAS:
    case HZP_SINK:
        break;
    /* the residual stream sums 2 * layers of these: this keeps its variance at about 1 */
    case HZP_O:
    case HZP_DOWN:
        fill_normal(type, at, n, key, init->std / sqrt(2.0 * init->layout->config.layers));
        break;
    default:
        fill_normal(type, at, n, key, init->std);
    }
}

static int init_unit(void *ctx, int32_t u, const struct hzp_unit_view *host)
{
    const struct init *init = ctx;
    const struct hzp_unit *unit = &init->layout->unit[u];
    memset(host->base, 0, hzp_unit_bytes(host)); /* biases and padding */
    for (int32_t i = unit->first; i < unit->first + unit->tensors; i++)
        init_tensor(init, i, host->type,
                    (char *)host->base +
                        init->layout->tensor[i].offset * hzp_dtype_size(host->type));
    return HZP_OK;
}

int hzp_model_init(struct hzp_device *dev, const struct hzp_units *units, uint64_t seed, float std)
{
    struct init init = {units->layout, seed, std};
    HZP_ASSERT(units->type == HZP_F32 || units->type == HZP_BF16);
    return hzp_units_fill(dev, units, init_unit, &init);
}
