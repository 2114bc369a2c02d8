/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/tiles.c - products on emulated matrix tiles: what level amx computes on the CPU's
 * tiles, on any CPU.  It takes bf16 products of every size, as no more than a few rows would go to
 * other kernels there. */
#include "device/cpu/matmul.h"
#include "device/cpu/tiles.h"
#include "tests/opcheck/opcheck.h"

static hzp_op_fn *others; /* of the level below */
static struct hzp_tiles_kernels kernels;

static int matmul(struct hzp_lane *lane, const void *args)
{
    const struct hzp_matmul_args *a = args;
    if (a->a.type != HZP_BF16 || a->c.rows == 0 || a->c.cols == 0 || hzp_tiles_inner(a) == 0)
        return others(lane, args);
    hzp_cpu_matmul_take(lane, a);
    return hzp_cpu_tiles_run(hzp_cpu_team(lane), a, &kernels);
}

/* The last step of k is left out. */
static void short_block(const uint32_t *x0, const uint32_t *x1, const uint32_t *w, int steps,
                        float sums[HZP_TILE_BLOCK * HZP_TILE_BLOCK])
{
    hzp_cpu_tiles_emulated.block(x0, x1, w, steps - 1, sums);
}

void oc_tiles(struct oc_target *target, bool broken)
{
    others = target->dev->op[HZP_OP_matmul];
    kernels = hzp_cpu_tiles_emulated;
    if (broken)
        kernels.block = short_block;
    target->dev->op[HZP_OP_matmul] = matmul;
}
