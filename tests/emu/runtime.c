/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/runtime.c - the part of CUDA's runtime that the backend uses, on the emulator.
 *
 * Work put on a stream has ended when the call returns; while the stream is captured, it is kept
 * for the graph instead.  The order of streams is not tested here (tests/cudafake does that).
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/thread.h"

/* One piece of work on a stream. */
struct work {
    struct hzp_emu_launch launch; /* body NULL: a copy, or (from NULL) a fill */
    void *to;
    const void *from;
    size_t size;
    int value;
};

struct hzp_emu_graph {
    struct work *work;
    int works, room;
};

struct hzp_emu_stream {
    struct hzp_emu_graph *capture; /* NULL: work runs at once */
};
struct hzp_emu_event {
    uint64_t ns;
};

static cudaError_t last_error;

static cudaError_t fail(cudaError_t error)
{
    last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorIllegalState:
        return "not while capturing, or not without";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    default:
        return "unspecified launch failure";
    }
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* Everything before it has ended. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*run)(void *ctx), void *ctx)
{
    if (stream->capture)
        return fail(cudaErrorIllegalState);
    run(ctx);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : fail(cudaErrorInvalidValue);
}

/* Few SMs, so that loops over the grid take more than one round. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    *prop = (struct cudaDeviceProp){.name = "block emulator",
                                    .major = 9,
                                    .minor = 0,
                                    .multiProcessorCount = 2,
                                    .sharedMemPerBlockOptin = HZP_EMU_SHARED_MAX};
    return device == 0 ? cudaSuccess : fail(cudaErrorInvalidValue);
}

/* On no bus: what a driver knows of its memory is not asked. */
cudaError_t cudaDeviceGetPCIBusId(char *ret, int size, int device)
{
    return fail(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = (size_t)2 << 30;
    *total = (size_t)3 << 30;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **ret, size_t size)
{
    *ret = hzp_emu_alloc(size);
    return *ret ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *ptr)
{
    return !ptr || hzp_emu_free(ptr) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **ret, size_t size, unsigned flags)
{
    return cudaMalloc(ret, size);
}

cudaError_t cudaFreeHost(void *ptr)
{
    return cudaFree(ptr);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind)
{
    if (size > 0 && (!hzp_emu_range(dst, size) || !hzp_emu_range(src, size)))
        return fail(cudaErrorInvalidValue);
    memmove(dst, src, size);
    return cudaSuccess;
}

static cudaError_t work_do(const struct work *work)
{
    if (work->launch.body)
        return hzp_emu_run(&work->launch) ? cudaSuccess : fail(cudaErrorLaunchFailure);
    if (work->from)
        return cudaMemcpy(work->to, work->from, work->size, cudaMemcpyDefault);
    if (work->size > 0 && !hzp_emu_range(work->to, work->size))
        return fail(cudaErrorInvalidValue);
    memset(work->to, work->value, work->size);
    return cudaSuccess;
}

/* The stream owns the launch's arguments from here on. */
static cudaError_t stream_put(cudaStream_t stream, struct work work)
{
    struct hzp_emu_graph *graph = stream ? stream->capture : NULL;
    if (!graph)
        return work_do(&work);
    if (graph->works == graph->room) {
        graph->room = HZP_MAX(16, 2 * graph->room);
        graph->work = hzp_xrealloc(graph->work, (size_t)graph->room * sizeof(*graph->work));
    }
    if (work.launch.body) {
        void *own = hzp_xmalloc(work.launch.closure_size);
        memcpy(own, work.launch.closure, work.launch.closure_size);
        work.launch.closure = own;
    }
    graph->work[graph->works++] = work;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return stream_put(stream, (struct work){.to = dst, .from = src, .size = size});
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t size, cudaStream_t stream)
{
    return stream_put(stream, (struct work){.to = ptr, .size = size, .value = value});
}

void hzp_emu_start(const struct hzp_emu_launch *launch, cudaStream_t stream)
{
    stream_put(stream, (struct work){.launch = *launch});
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    if (stream->capture)
        return fail(cudaErrorIllegalState);
    stream->capture = hzp_xcalloc(1, sizeof(*stream->capture));
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *ret)
{
    *ret = stream->capture;
    stream->capture = NULL;
    return *ret ? cudaSuccess : fail(cudaErrorIllegalState);
}

/* The graph hands its work to the executable graph. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t graph, unsigned long long flags)
{
    *ret = hzp_xcalloc(1, sizeof(**ret));
    **ret = *graph;
    *graph = (struct hzp_emu_graph){0};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    return stream->capture ? fail(cudaErrorIllegalState) : cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (stream->capture)
        return fail(cudaErrorIllegalState);
    for (int i = 0; i < exec->works; i++) {
        cudaError_t error = work_do(&exec->work[i]);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    for (int i = 0; i < graph->works; i++)
        if (graph->work[i].launch.body)
            free((void *)graph->work[i].launch.closure);
    free(graph->work);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return cudaGraphDestroy(exec);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority)
{
    *ret = calloc(1, sizeof(**ret));
    if (!*ret)
        return fail(cudaErrorMemoryAllocation);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream != cudaStreamLegacy && stream->capture)
        return fail(cudaErrorIllegalState);
    return last_error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    *ret = calloc(1, sizeof(**ret));
    return *ret ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreate(cudaEvent_t *ret)
{
    return cudaEventCreateWithFlags(ret, 0);
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->ns || !to->ns)
        return fail(cudaErrorInvalidValue);
    *ret_ms = (float)((double)(int64_t)(to->ns - from->ns) * 1e-6);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    event->ns = hzp_now_ns();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return last_error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return last_error;
}

cudaError_t hzp_emu_func_set(const void *kernel, enum cudaFuncAttribute which, int value)
{
    HZP_ASSERT(which == cudaFuncAttributeMaxDynamicSharedMemorySize);
    return value >= 0 && hzp_emu_set_shared(kernel, (size_t)value) ? cudaSuccess
                                                                   : fail(cudaErrorInvalidValue);
}

/* A kernel's shared variables are known once it has run; before that, the maximum is assumed. */
cudaError_t hzp_emu_func_get(struct cudaFuncAttributes *ret, const void *kernel)
{
    ret->sharedSizeBytes = HZP_EMU_SHARED_DEFAULT;
    return cudaSuccess;
}
