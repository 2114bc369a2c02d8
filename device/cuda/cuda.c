/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda.c - the GPU as a device: memory, lanes, fences. */
#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum {
    SPACE = 64 << 20,  /* what cuBLASLt's fastest algorithms ask for on Hopper is half of it */
    SCRATCH = 64 << 20,
    SCRATCH_SMALL = 4 << 20, /* lanes of copies and the network */
    STAGE = 16 << 20,
};
static const size_t RESERVE = (size_t)1 << 30; /* of the driver, the libraries and the lanes */

struct hzp_fence {
    struct hzp_cuda_device *dev;
    cudaEvent_t event;
};

int hzp_cuda_check(struct hzp_cuda_device *dev, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return HZP_OK;
    if (!dev->failed)
        hzp_log(HZP_LOG_ERROR, "cuda", "%s failed: %s (%s)", what, cudaGetErrorString(error),
                cudaGetErrorName(error));
    dev->failed = true;
    return HZP_EDEVICE;
}

int hzp_cuda_launched(struct hzp_lane *lane, const char *op)
{
    return hzp_cuda_check(hzp_cuda_device(lane), cudaGetLastError(), op);
}

static int device_choose(const struct hzp_device_config *config, struct hzp_err_text *reterr)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        cudaGetLastError();
        return hzp_fail(reterr, HZP_EUNSUP, "device cuda: none: %s",
                        error != cudaSuccess ? cudaGetErrorString(error) : "no device");
    }
    if (config->ordinal < 0 || config->ordinal >= count)
        return hzp_fail_param(reterr, HZP_EINVAL, "device", "device cuda: no %d, there are %d",
                              config->ordinal, count);
    error = cudaSetDevice(config->ordinal);
    if (error != cudaSuccess)
        return hzp_fail(reterr, HZP_EUNSUP, "device cuda: %s", cudaGetErrorString(error));
    return HZP_OK;
}

static int device_describe(struct hzp_cuda_device *dev, struct hzp_err_text *reterr)
{
    struct cudaDeviceProp prop;
    size_t free_bytes = 0, total = 0;
    cudaError_t error = cudaGetDeviceProperties(&prop, dev->ordinal);
    if (error == cudaSuccess && prop.major < 8)
        return hzp_fail(reterr, HZP_EUNSUP, "device cuda: %s has compute capability %d.%d, 8.0 is "
                                            "the least", prop.name, prop.major, prop.minor);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &total);
    if (error != cudaSuccess)
        return hzp_fail(reterr, HZP_EUNSUP, "device cuda: %s", cudaGetErrorString(error));
    dev->sms = prop.multiProcessorCount;
    dev->shared_max = (int)prop.sharedMemPerBlockOptin;
    dev->base.threads = dev->sms;
    dev->base.mem_total = free_bytes > RESERVE ? free_bytes - RESERVE : 0;
    snprintf(dev->base.label, sizeof(dev->base.label), "%.60s, %d SMs, sm_%d%d", prop.name, dev->sms,
             prop.major, prop.minor);
    return HZP_OK;
}

static int cuda_open(const struct hzp_device_config *config, struct hzp_device **ret,
                     struct hzp_err_text *reterr)
{
    HZP_TRY(device_choose(config, reterr));
    struct hzp_cuda_device *dev = calloc(1, sizeof(*dev));
    if (!dev)
        return hzp_fail(reterr, HZP_ENOMEM, "device cuda: out of memory");
    dev->base.backend = &hzp_backend_cuda;
    dev->ordinal = config->ordinal;
    dev->epoch = 1;
    int r = device_describe(dev, reterr);
    if (r == HZP_OK)
        r = hzp_cuda_products_open(dev, &dev->products, reterr);
    if (r < 0) {
        free(dev);
        return r;
    }
#define X(name, bound) dev->base.op[HZP_OP_##name] = hzp_cuda_##name;
    HZP_OPS(X)
#undef X
    *ret = &dev->base;
    return HZP_OK;
}

static void cuda_close(struct hzp_device *base)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    hzp_cuda_products_close(dev->products);
    free(dev);
}

static int cuda_mem_alloc(struct hzp_device *base, enum hzp_mem where, size_t size, void **ret)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    cudaError_t error = where == HZP_MEM_HOST
                            ? cudaHostAlloc(ret, size, cudaHostAllocMapped | cudaHostAllocPortable)
                            : cudaMalloc(ret, size);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* not final: the caller asked for too much */
        return HZP_ENOMEM;
    }
    HZP_TRY(hzp_cuda_check(dev, error, "allocating memory"));
    if (where == HZP_MEM_HOST && dev->pinneds < HZP_CUDA_PINNED_MAX) {
        dev->pinned[dev->pinneds].ptr = *ret;
        dev->pinned[dev->pinneds++].size = size;
    }
    return HZP_OK;
}

static void cuda_mem_free(struct hzp_device *base, enum hzp_mem where, void *ptr)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    dev->epoch++;
    if (where == HZP_MEM_DEVICE) {
        hzp_cuda_check(dev, cudaFree(ptr), "freeing memory");
        return;
    }
    for (int i = 0; i < dev->pinneds; i++)
        if (dev->pinned[i].ptr == ptr) {
            dev->pinned[i] = dev->pinned[--dev->pinneds];
            break;
        }
    hzp_cuda_check(dev, cudaFreeHost(ptr), "freeing host memory");
}

static bool is_pinned(const struct hzp_cuda_device *dev, const void *ptr)
{
    for (int i = 0; i < dev->pinneds; i++)
        if ((const char *)ptr >= dev->pinned[i].ptr &&
            (const char *)ptr < dev->pinned[i].ptr + dev->pinned[i].size)
            return true;
    return false;
}

const void *hzp_cuda_staged(struct hzp_lane *base, const void *ptr, size_t size)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    if (!is_pinned(dev, ptr))
        return ptr;
    if (lane->stage_epoch != dev->epoch) { /* the stream itself orders old readers before new copies */
        lane->stage_epoch = dev->epoch;
        lane->stage_used = 0;
        lane->stageds = 0;
    }
    for (int i = 0; i < lane->stageds; i++)
        if (lane->staged[i].ptr == ptr && lane->staged[i].size >= size)
            return lane->staged[i].copy;
    if (size > lane->stage_size - lane->stage_used || lane->stageds == HZP_CUDA_STAGED_MAX)
        return ptr;
    char *copy = lane->stage + lane->stage_used;
    if (cudaMemcpyAsync(copy, ptr, size, cudaMemcpyHostToDevice, lane->stream) != cudaSuccess)
        return ptr; /* the launch that follows reports it */
    lane->stage_used += HZP_ROUND_UP(size, (size_t)256);
    lane->staged[lane->stageds].ptr = ptr;
    lane->staged[lane->stageds].size = size;
    lane->staged[lane->stageds++].copy = copy;
    return copy;
}

static int cuda_copy(struct hzp_lane *base, void *dst, const void *src, size_t size)
{
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    if (is_pinned(dev, dst))
        dev->epoch++;
    return hzp_cuda_check(dev,
                          cudaMemcpyAsync(dst, src, size, cudaMemcpyDefault,
                                          hzp_cuda_lane(base)->stream),
                          "copying");
}

/* Any thread: the runtime is thread-safe, and knows the device by thread. */
static int cuda_host_copy(struct hzp_device *base, void *dst, const void *src, size_t size)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    cudaError_t error = cudaSetDevice(dev->ordinal);
    if (error == cudaSuccess)
        error = cudaMemcpy(dst, src, size, cudaMemcpyDefault);
    if (error == cudaSuccess) /* the copy of pageable memory may still be on its way */
        error = cudaStreamSynchronize(cudaStreamLegacy);
    return hzp_cuda_check(dev, error, "copying");
}

static void cuda_lane_close(struct hzp_lane *base)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    cudaFree(lane->space);
    cudaFree(lane->scratch);
    cudaFree(lane->stage);
    cudaFree(lane->counter);
    if (lane->stream)
        cudaStreamDestroy(lane->stream);
    free(lane);
}

static cudaError_t lane_memory(struct hzp_cuda_lane *lane, enum hzp_bound use)
{
    bool ops = use == HZP_BOUND_COMPUTE || use == HZP_BOUND_MEMORY;
    size_t counters = HZP_CUDA_COUNTERS * sizeof(*lane->counter);
    lane->space_size = ops ? SPACE : 0;
    lane->scratch_size = ops ? SCRATCH : SCRATCH_SMALL;
    lane->stage_size = ops ? STAGE : SCRATCH_SMALL;
    cudaError_t error = cudaSuccess;
    if (lane->space_size)
        error = cudaMalloc(&lane->space, lane->space_size);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->scratch, lane->scratch_size);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->stage, lane->stage_size);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->counter, counters);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(lane->counter, 0, counters, lane->stream);
    return error;
}

/* Copies and the network give way: what waits for them was issued early. */
static int cuda_lane_open(struct hzp_device *base, enum hzp_bound use, struct hzp_lane **ret)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    struct hzp_cuda_lane *lane = calloc(1, sizeof(*lane));
    int low = 0, high = 0;
    if (!lane)
        return HZP_ENOMEM;
    lane->base = (struct hzp_lane){.dev = base, .use = use};
    cudaDeviceGetStreamPriorityRange(&low, &high);
    cudaError_t error =
        cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking,
                                     use == HZP_BOUND_COMPUTE || use == HZP_BOUND_MEMORY ? high
                                                                                         : low);
    if (error == cudaSuccess)
        error = lane_memory(lane, use);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        cuda_lane_close(&lane->base);
        return HZP_ENOMEM;
    }
    int r = hzp_cuda_check(dev, error, "opening a lane");
    if (r < 0) {
        cuda_lane_close(&lane->base);
        return r;
    }
    *ret = &lane->base;
    return HZP_OK;
}

static int cuda_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence)
{
    return hzp_cuda_check(fence->dev, cudaStreamWaitEvent(hzp_cuda_lane(lane)->stream, fence->event, 0),
                          "waiting for a fence");
}

static int cuda_fence_open(struct hzp_device *base, struct hzp_fence **ret)
{
    struct hzp_fence *fence = calloc(1, sizeof(*fence));
    if (!fence)
        return HZP_ENOMEM;
    fence->dev = (struct hzp_cuda_device *)base;
    int r = hzp_cuda_check(fence->dev,
                           cudaEventCreateWithFlags(&fence->event, cudaEventDisableTiming),
                           "opening a fence");
    if (r < 0) {
        free(fence);
        return r;
    }
    *ret = fence;
    return HZP_OK;
}

static void cuda_fence_close(struct hzp_fence *fence)
{
    cudaEventDestroy(fence->event);
    free(fence);
}

static int cuda_fence_record(struct hzp_fence *fence, struct hzp_lane *lane)
{
    return hzp_cuda_check(fence->dev, cudaEventRecord(fence->event, hzp_cuda_lane(lane)->stream),
                          "recording a fence");
}

/* What the host waited for it may overwrite: staged copies are stale from here on. */
static int cuda_fence_wait(struct hzp_fence *fence)
{
    fence->dev->epoch++;
    return hzp_cuda_check(fence->dev, cudaEventSynchronize(fence->event), "the device");
}

const struct hzp_backend hzp_backend_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .mem_alloc = cuda_mem_alloc,
    .mem_free = cuda_mem_free,
    .copy = cuda_copy,
    .host_copy = cuda_host_copy,
    .lane_open = cuda_lane_open,
    .lane_close = cuda_lane_close,
    .lane_wait = cuda_lane_wait,
    .fence_open = cuda_fence_open,
    .fence_close = cuda_fence_close,
    .fence_record = cuda_fence_record,
    .fence_wait = cuda_fence_wait,
    .limits = hzp_cuda_limits,
};
