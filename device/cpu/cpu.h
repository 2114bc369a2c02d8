/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/cpu.h - what the files of the CPU backend share.
 *
 * Thread: engine.
 */
#ifndef HZP_DEVICE_CPU_CPU_H
#define HZP_DEVICE_CPU_CPU_H

#include "device/cpu/pool.h"
#include "device/device.h"

/* Instruction sets, each containing those before it. */
enum hzp_cpu_isa { HZP_CPU_BASE, HZP_CPU_AVX2, HZP_CPU_AVX512, HZP_CPU_AVX512_BF16 };

struct hzp_cpu_matmul;

struct hzp_cpu_device {
    struct hzp_device base;
    enum hzp_cpu_isa isa;
    struct hzp_team *team; /* of every lane: ops end before issue returns, so one at a time runs */
};

struct hzp_cpu_lane {
    struct hzp_lane base;
    struct hzp_team *team;           /* borrowed from the device */
    struct hzp_cpu_matmul *products; /* this lane's library primitives */
};

/* What the machine can do at most: device/limits.h. */
struct hzp_limits;
int hzp_cpu_limits(struct hzp_device *dev, struct hzp_limits *ret);

static inline struct hzp_team *hzp_cpu_team(const struct hzp_lane *lane)
{
    return ((const struct hzp_cpu_lane *)lane)->team;
}

/* Row r of a matrix. */
static inline void *hzp_cpu_row(const struct hzp_mat *mat, int64_t r)
{
    size_t size = mat->type == HZP_F32 || mat->type == HZP_I32 ? 4 : 2;
    return (char *)mat->ptr + (size_t)r * (size_t)mat->stride * size;
}

/* Each lays one instruction set's kernels over a table that already holds slower ones. */
#define HZP_CPU_FILLS(isa)                                                                         \
    void hzp_cpu_fill_matmul_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                   \
    void hzp_cpu_fill_decode_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                   \
    void hzp_cpu_fill_rows_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                     \
    void hzp_cpu_fill_flash_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                    \
    void hzp_cpu_fill_flash_bwd_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                \
    void hzp_cpu_fill_grad_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                     \
    void hzp_cpu_fill_sample_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                   \
    void hzp_cpu_fill_update_##isa(hzp_op_fn *op[HZP_OP_COUNT]);

HZP_CPU_FILLS(avx2)
HZP_CPU_FILLS(avx512)
HZP_CPU_FILLS(avx512_bf16)

#endif
