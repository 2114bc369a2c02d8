/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/fp8_tmpl.c - quantizes rows to e4m3. */
#include "device/cpu/fp8_tmpl.h"

INLINE void quantize_row(const struct hzp_quantize_args *a, int r, enum hzp_dtype type)
{
    const void *x = hzp_cpu_row(&a->x, r);
    uint8_t *y = hzp_cpu_row(&a->y, r);
    vi largest = vnone();

    EACH(c, a->x.cols, largest = vlargest(largest, vget(x, (size_t)c, type, left)););
    float scale = a->scale[r] = hzp_e4m3_scale(vlargest_of(largest));
    if (isnan(scale)) {
        memset(y, 0, (size_t)a->y.cols);
        return;
    }
    vf by = vset(scale);
    EACH(c, a->x.cols, vstore_e4m3(y + c, vdiv(vget(x, (size_t)c, type, left), by), left););
}

static void quantize_rows(void *ctx, int begin, int end, int thread)
{
    const struct hzp_quantize_args *a = ctx;
    if (a->x.type == HZP_BF16)
        for (int r = begin; r < end; r++)
            quantize_row(a, r, HZP_BF16);
    else
        for (int r = begin; r < end; r++)
            quantize_row(a, r, HZP_F32);
}

static int cpu_quantize(struct hzp_lane *lane, const void *args)
{
    const struct hzp_quantize_args *a = args;
    hzp_team_range(hzp_cpu_team(lane), a->x.rows, 4 * (size_t)a->x.cols, quantize_rows,
                   (void *)args);
    return HZP_OK;
}

void HZP_ISA_NAME(hzp_cpu_fill_fp8)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_quantize] = cpu_quantize;
}
