/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/vec.h"

void HZP_ISA_NAME(hzp_cpu_fill)(hzp_op_fn *op[HZP_OP_COUNT])
{
    (void)op;
}
