/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/cpu.h - shared by the files of the CPU backend.
 *
 * Thread: engine.
 */
#pragma once

#include "device/cpu/choice.h"
#include "device/cpu/pool.h"

/* Instruction sets, each containing those before it. */
enum hzp_cpu_isa { HZP_CPU_BASE, HZP_CPU_AVX2, HZP_CPU_AVX512, HZP_CPU_AVX512_BF16, HZP_CPU_AMX };

enum { HZP_CPU_THREADS_MAX = 1024 };

struct hzp_cpu_matmul;
struct hzp_cpu_queue;
struct hzp_cpu_lane;

struct hzp_cpu_device {
    struct hzp_device base;
    enum hzp_cpu_isa isa;
    struct hzp_cpu_choice choice;    /* at level amx */
    hzp_op_fn *kernel[HZP_OP_COUNT]; /* runs an op on the calling thread */
    struct hzp_team *team; /* shared by all lanes without a share: it runs one op at a time */
    int cpu[HZP_CPU_THREADS_MAX]; /* [threads] the CPUs from which shares are assigned */
    struct hzp_cpu_lane *lanes;
    struct hzp_cpu_queue *led; /* the queue that the engine thread runs; NULL: none */
    _Atomic int failed;        /* HZP_OK, or the first failure of a queued op */
    cpu_set_t allowed;         /* the CPUs this process could use when the device was opened */
};

struct hzp_cpu_lane {
    struct hzp_lane base;
    struct hzp_team *team;           /* the device's; if the lane has a share, its own */
    struct hzp_cpu_matmul *products; /* this lane's library primitives */
    int cores;                       /* its share; 0: none */
    struct hzp_cpu_queue *queue;     /* NULL: the lane never had a share */
    struct hzp_span *span;           /* where the next op's times are stored */
    struct hzp_cpu_lane *next;
};

/* Lanes: lane.c. */
void hzp_cpu_fill_issue(hzp_op_fn *op[HZP_OP_COUNT]);
int hzp_cpu_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret);
void hzp_cpu_lane_close(struct hzp_lane *lane);
int hzp_cpu_lane_copy(struct hzp_lane *lane, void *dst, const void *src, size_t size);
int hzp_cpu_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence);
int hzp_cpu_lane_set_share(struct hzp_lane *lane, int cores);
int hzp_cpu_lane_time(struct hzp_lane *lane, struct hzp_span *span);
int hzp_cpu_fence_open(struct hzp_device *dev, struct hzp_fence **ret);
void hzp_cpu_fence_close(struct hzp_fence *fence);
int hzp_cpu_fence_record(struct hzp_fence *fence, struct hzp_lane *lane);
int hzp_cpu_fence_wait(struct hzp_fence *fence);
int hzp_cpu_fence_poll(struct hzp_fence *fence);

/* Whether this CPU has many more prefetches under way into its second cache than into its first:
 * AMD's Zen 4 was measured so (dev/kernels/matmul_lab.md).  False of CPUs that were not measured.
 * Zen 3 reads faster the more streams there are, up to 16 on a thread; Zen 4 does not. */
bool hzp_cpu_fetches_far(void);

/* Measures, or reads, dev->choice; the device is open but for it.  At level amx. */
void hzp_cpu_choose(struct hzp_cpu_device *dev);

static inline struct hzp_team *hzp_cpu_team(const struct hzp_lane *lane)
{
    return ((const struct hzp_cpu_lane *)lane)->team;
}

/* Row r of a matrix. */
static inline void *hzp_cpu_row(const struct hzp_mat *mat, int64_t r)
{
    size_t size = mat->type == HZP_F32 || mat->type == HZP_I32 ? 4 : mat->type == HZP_E4M3 ? 1 : 2;
    return (char *)mat->ptr + (size_t)r * (size_t)mat->stride * size;
}

/* Each replaces kernels in a table by those of one instruction set; the slower ones come first. */
#define HZP_CPU_FILLS(isa)                                                                         \
    void hzp_cpu_fill_matmul_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                   \
    void hzp_cpu_fill_decode_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                   \
    void hzp_cpu_fill_rows_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                     \
    void hzp_cpu_fill_fp8_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                      \
    void hzp_cpu_fill_flash_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                    \
    void hzp_cpu_fill_flash_bwd_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                \
    void hzp_cpu_fill_grad_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                     \
    void hzp_cpu_fill_sample_##isa(hzp_op_fn *op[HZP_OP_COUNT]);                                   \
    void hzp_cpu_fill_update_##isa(hzp_op_fn *op[HZP_OP_COUNT]);

HZP_CPU_FILLS(base)
HZP_CPU_FILLS(avx2)
HZP_CPU_FILLS(avx512)
HZP_CPU_FILLS(avx512_bf16)

/* Defines cpu_NAME, an op that runs NAME_PARTS for ranges of so many items, which access so many
 * bytes each: both are made of the op's arguments `a`. */
#define HZP_CPU_RANGES(name, parts, items, bytes)                                                  \
    static int cpu_##name(struct hzp_lane *lane, const void *args)                                 \
    {                                                                                              \
        const struct hzp_##name##_args *a = args;                                                  \
        hzp_team_range(hzp_cpu_team(lane), items, bytes, name##_##parts, (void *)args);            \
        return HZP_OK;                                                                             \
    }

/* The same for rows, by NAME_row, which is compiled once for each type that `of` may have. */
#define HZP_CPU_ROWS(name, of, count, bytes)                                                       \
    static void name##_rows(void *ctx, int begin, int end, int thread)                             \
    {                                                                                              \
        const struct hzp_##name##_args *a = ctx;                                                   \
        if (a->of.type == HZP_BF16)                                                                \
            for (int r = begin; r < end; r++)                                                      \
                name##_row(a, r, HZP_BF16);                                                        \
        else                                                                                       \
            for (int r = begin; r < end; r++)                                                      \
                name##_row(a, r, HZP_F32);                                                         \
    }                                                                                              \
    HZP_CPU_RANGES(name, rows, count, bytes)
