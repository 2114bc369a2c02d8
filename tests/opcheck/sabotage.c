/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/sabotage.c - broken kernels that opcheck must detect: each breaks rmsnorm in one
 * way. */
#include <math.h>
#include <signal.h>
#include <string.h>

#include "tests/opcheck/opcheck.h"

static hzp_op_fn *sound;

static int honest(struct hzp_lane *lane, const void *args)
{
    return sound(lane, args);
}

/* Writes one element past the width: visible only where rows have gaps, or after the last row. */
static int overrun(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_args *a = args;
    if (a->y.rows > 0) {
        size_t size = hzp_dtype_size(a->y.type);
        memset((char *)a->y.ptr + (size_t)a->y.cols * size, 0, size);
    }
    return sound(lane, args);
}

static int input(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_args *a = args;
    int r = sound(lane, args);
    if (a->x.rows > 0)
        ((float *)a->x.ptr)[0] += 1;
    return r;
}

static int off(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_args *a = args;
    int r = sound(lane, args);
    if (a->y.rows > 6)
        oc_put(&a->y, 5, 3, oc_get(&a->y, 5, 3) * 1.02f + 0.01f);
    return r;
}

static int nans(struct hzp_lane *lane, const void *args)
{
    const struct hzp_rmsnorm_args *a = args;
    int r = sound(lane, args);
    if (a->y.rows > 0)
        oc_put(&a->y, a->y.rows - 1, a->y.cols - 1, NAN);
    return r;
}

static int unwritten(struct hzp_lane *lane, const void *args)
{
    struct hzp_rmsnorm_args a = *(const struct hzp_rmsnorm_args *)args;
    if (a.x.rows > 1) {
        a.x.rows--;
        a.y.rows--;
    }
    return sound(lane, &a);
}

/* Each run differs in a last bit, well within the bounds. */
static int fickle(struct hzp_lane *lane, const void *args)
{
    static int turn;
    const struct hzp_rmsnorm_args *a = args;
    int r = sound(lane, args);
    if (a->y.rows > 0 && a->y.type == HZP_F32)
        ((uint32_t *)a->y.ptr)[0] ^= (uint32_t)(turn++ & 1);
    return r;
}

static int crash(struct hzp_lane *lane, const void *args)
{
    signal(SIGSEGV, SIG_DFL); /* a sanitizer would only add its own report */
    raise(SIGSEGV);
    return HZP_OK;
}

static const struct {
    const char *name;
    hzp_op_fn *kernel;
} kinds[] = {
    {"honest", honest}, {"overrun", overrun},     {"input", input},   {"off", off},
    {"nan", nans},      {"unwritten", unwritten}, {"fickle", fickle}, {"crash", crash},
};

const char *oc_sabotage_name(int kind)
{
    return kind < HZP_COUNT(kinds) ? kinds[kind].name : NULL;
}

void oc_sabotage(struct oc_target *target, int kind)
{
    sound = target->dev->op[HZP_OP_rmsnorm];
    target->dev->op[HZP_OP_rmsnorm] = kinds[kind].kernel;
}
