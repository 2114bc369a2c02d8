/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/amx.c - products of level amx: those of avx512_bf16, and for bf16 of more than a few
 * rows whichever of panels, tiles and the library was measured to be fastest.
 *
 * Without such a machine the tiles' kernels and the choice are tested with an emulation
 * (tests/device/test_tiles.c, opcheck --tiles). */
#include "base/thread.h"
#include "device/bf16.h"
#include "device/cpu/matmul.h"
#include "device/cpu/tiles.h"

#include <sys/syscall.h>

#if defined(__x86_64__)

#include <cpuid.h>

bool hzp_cpu_amx_allowed(void)
{
    enum { BF16 = 1 << 22, TILES = 1 << 24, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BF16) || !(d & TILES))
        return false;
    /* the state is large: a process asks for it once, before its first tile */
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

static int run_as(struct hzp_lane *lane, const struct hzp_matmul_args *a, enum hzp_cpu_way way)
{
    if (way == HZP_WAY_TILES)
        return hzp_cpu_tiles_run(hzp_cpu_team(lane), a, &hzp_cpu_tiles_amx);
    if (way == HZP_WAY_LIBRARY) {
        int r = hzp_cpu_matmul_library(lane, a);
        if (r != HZP_EUNSUP)
            return r;
    }
    return hzp_cpu_matmul(lane, a, &hzp_cpu_product_avx512_bf16);
}

static int amx_matmul(struct hzp_lane *lane, const void *args)
{
    const struct hzp_cpu_device *dev = (const struct hzp_cpu_device *)lane->dev;
    const struct hzp_matmul_args *a = args;
    bool few = !a->trans_a && a->trans_b && a->c.rows <= HZP_THIN_ROWS_MAX;

    hzp_cpu_matmul_take(lane, a);
    if (a->a.type != HZP_BF16 || few || a->c.rows == 0 || a->c.cols == 0 || hzp_tiles_inner(a) == 0)
        return hzp_cpu_matmul(lane, a, &hzp_cpu_product_avx512_bf16);
    return run_as(lane, a, (enum hzp_cpu_way)dev->choice.way[hzp_choice_class(a)]);
}

void hzp_cpu_fill_matmul_amx(hzp_op_fn *op[HZP_OP_COUNT])
{
    op[HZP_OP_matmul] = amx_matmul;
}

/* ---- the measurement ---- */

enum { SIDE = 1024, FEW = 96, MANY = 512 };

struct lab {
    struct hzp_lane *lane;
    uint16_t *a, *b; /* [SIDE][SIDE] */
    float *c;
};

static double time_of(void *ctx, int class, enum hzp_cpu_way way)
{
    struct lab *lab = ctx;
    int rows = class % 2 ? MANY : FEW, form = class / 2;
    struct hzp_matmul_args args = {
        .a = {lab->a, rows, SIDE, SIDE, HZP_BF16},
        .b = {lab->b, SIDE, SIDE, SIDE, HZP_BF16},
        .c = {lab->c, rows, SIDE, SIDE, HZP_F32},
        .trans_b = form == 0,
        .trans_a = form == 2,
        .accumulate = form == 2,
    };
    uint64_t begin = hzp_now_ns();

    if (form == 2)
        args.a = (struct hzp_mat){lab->a, SIDE, rows, SIDE, HZP_BF16};
    if (way == HZP_WAY_LIBRARY ? hzp_cpu_matmul_library(lab->lane, &args) < 0
                               : run_as(lab->lane, &args, way) < 0)
        return -1;
    return (double)(hzp_now_ns() - begin) * 1e-9;
}

/* The first time on a machine about a second. */
void hzp_cpu_choose(struct hzp_cpu_device *dev)
{
    char path[4096], version[32], identity[256];
    bool kept = hzp_choice_path(path, sizeof(path));
    struct lab lab = {0};

    snprintf(identity, sizeof(identity), "%s, oneDNN %s", dev->base.label,
             hzp_cpu_library_version(version));
    if (kept && hzp_choice_read(path, identity, &dev->choice))
        return;
    lab.a = calloc((size_t)SIDE * SIDE, sizeof(*lab.a));
    lab.b = calloc((size_t)SIDE * SIDE, sizeof(*lab.b));
    lab.c = calloc((size_t)SIDE * SIDE, sizeof(*lab.c));
    if (lab.a && lab.b && lab.c &&
        hzp_cpu_lane_open(&dev->base, HZP_BOUND_COMPUTE, &lab.lane) == HZP_OK) {
        dev->choice = hzp_choice_measure(time_of, &lab);
        hzp_cpu_lane_close(lab.lane);
        if (kept)
            hzp_choice_write(path, identity, &dev->choice);
    }
    free(lab.a);
    free(lab.b);
    free(lab.c);
}

#else

bool hzp_cpu_amx_allowed(void)
{
    return false;
}

void hzp_cpu_fill_matmul_amx(hzp_op_fn *op[HZP_OP_COUNT])
{
    (void)op;
}

void hzp_cpu_choose(struct hzp_cpu_device *dev)
{
    (void)dev;
}

#endif
