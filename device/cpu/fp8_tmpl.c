/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/fp8_tmpl.c - quantizes rows to e4m3. */
#include "device/cpu/fp8_tmpl.h"

INLINE void quantize_row(const struct hzp_quantize_args *a, int r, enum hzp_dtype type)
{
    a->scale[r] = to_e4m3(hzp_cpu_row(&a->x, r), type, a->x.cols, hzp_cpu_row(&a->y, r));
}

HZP_CPU_ROWS(quantize, x, a->x.rows, 4 * (size_t)a->x.cols)

void HZP_ISA_NAME(hzp_cpu_fill_fp8)(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_quantize] = cpu_quantize;
}
