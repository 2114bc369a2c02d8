/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/fp8_tmpl.c - quantizes rows to e4m3. */
#include "device/cpu/fp8_tmpl.h"

INLINE void quantize_row(const struct hzp_quantize_args *a, int r, enum hzp_dtype type)
{
    a->scale[r] = to_e4m3(hzp_cpu_row(&a->x, r), type, a->x.cols, hzp_cpu_row(&a->y, r));
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
