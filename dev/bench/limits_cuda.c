/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/limits_cuda.c - measures the GPU's copy bandwidth and its library's matrix products. */
#include "device/cuda/cuda.h"

#include "dev/bench/limits.h"

enum { TURNS = 7, SIDE = 8192, SIDE_F32 = 4096 };

struct bench {
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    char *block;
};
static const size_t COPY = (size_t)1 << 30;

static int finish(struct bench *b)
{
    HZP_TRY(hzp_fence_record(b->fence, b->lane));
    return hzp_fence_wait(b->fence);
}

static int copy_rate(struct bench *b, double *ret)
{
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t begin = hzp_device_now_ns(b->dev);
        for (int i = 0; i < 4; i++)
            HZP_TRY(hzp_lane_copy(b->lane, b->block + COPY, b->block, COPY));
        HZP_TRY(finish(b));
        double rate = 8.0 * (double)COPY / (double)(hzp_device_now_ns(b->dev) - begin) * 1e9;
        *ret = HZP_MAX(*ret, rate);
    }
    return HZP_OK;
}

/* Random values, not zeros: multiplying zeros takes less power and so runs at a higher clock. */
static int noise(struct bench *b, const struct hzp_mat *mat)
{
    return hzp_op_noise(b->lane, &(struct hzp_noise_args){.y = *mat, .seed = 1, .deviation = 1});
}

static int gemm_rate(struct bench *b, enum hzp_dtype type, int32_t side, double *ret)
{
    size_t bytes = (size_t)side * (size_t)side * hzp_dtype_size(type);
    struct hzp_mat a = {b->block, side, side, side, type};
    struct hzp_mat w = {b->block + bytes, side, side, side, type};
    struct hzp_mat y = {b->block + 2 * bytes, side, side, side, type};
    struct hzp_matmul_args args = {.a = a, .b = w, .c = y, .trans_b = 1};
    HZP_TRY(noise(b, &a));
    HZP_TRY(noise(b, &w));
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t begin = hzp_device_now_ns(b->dev);
        for (int i = 0; i < 5; i++)
            HZP_TRY(hzp_op_matmul(b->lane, &args));
        HZP_TRY(finish(b));
        double flops = 10.0 * side * side * side;
        double rate = flops / (double)(hzp_device_now_ns(b->dev) - begin) * 1e9;
        *ret = HZP_MAX(*ret, rate);
    }
    return HZP_OK;
}

int hzp_cuda_limits(struct hzp_device *dev, struct hzp_limits *ret)
{
    struct bench b = {.dev = dev};
    void *block = NULL;
    int r;
    *ret = (struct hzp_limits){0};
    HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &b.lane));
    HZP_TRY_GOTO(hzp_fence_open(dev, &b.fence));
    HZP_TRY_GOTO(hzp_device_alloc(dev, HZP_MEM_DEVICE, 2 * COPY, &block));
    b.block = block;
    HZP_TRY_GOTO(copy_rate(&b, &ret->read_bytes_per_s));
    HZP_TRY_GOTO(gemm_rate(&b, HZP_BF16, SIDE, &ret->gemm_bf16));
    HZP_TRY_GOTO(gemm_rate(&b, HZP_F32, SIDE_F32, &ret->gemm_f32));
out:
    hzp_device_free(dev, HZP_MEM_DEVICE, block);
    hzp_fence_close(b.fence);
    hzp_lane_close(b.lane);
    return r;
}
