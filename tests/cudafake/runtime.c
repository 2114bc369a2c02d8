/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/runtime.c - the functions of the CUDA runtime that the backend uses, on the
 * fake's streams. */
#include "tests/cudafake/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread cudaError_t last;

void fake_set_last(cudaError_t error)
{
    last = error;
}

static cudaError_t answer(cudaError_t error)
{
    if (error != cudaSuccess)
        last = error;
    fake_leave();
    return error;
}

/* Enters the fake; returns true if fake_fail wants this call to fail. */
static bool begins(const char *function, cudaError_t *ret)
{
    int error = 0;
    fake_enter();
    if (!fake_fails(function, &error))
        return false;
    *ret = answer((cudaError_t)error);
    return true;
}

#define BEGIN(function)                                                                            \
    do {                                                                                           \
        cudaError_t wanted;                                                                        \
        if (begins(function, &wanted))                                                             \
            return wanted;                                                                         \
    } while (0)

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "an error the fake answered";
}

const char *cudaGetErrorName(cudaError_t error)
{
    static __thread char name[32];
    snprintf(name, sizeof(name), "error %d", (int)error);
    return name;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

/* ---- the device ---- */

static __thread int current_device;

/* HZP_FAKE_GPUS of them, which are alike; not set: one. */
static int devices(void)
{
    const char *value = getenv("HZP_FAKE_GPUS");
    return value ? atoi(value) : 1;
}

static char loading[16];

const char *fake_loading(void)
{
    return loading;
}

/* A process calls it first: the driver starts, and reads its environment. */
cudaError_t cudaGetDeviceCount(int *count)
{
    const char *how = getenv("CUDA_MODULE_LOADING");
    BEGIN("cudaGetDeviceCount");
    snprintf(loading, sizeof(loading), "%s", how ? how : "");
    *count = devices();
    return answer(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    BEGIN("cudaGetDevice");
    *device = current_device;
    return answer(cudaSuccess);
}

cudaError_t cudaSetDevice(int device)
{
    BEGIN("cudaSetDevice");
    if (device < 0 || device >= devices())
        return answer(cudaErrorInvalidDevice);
    current_device = device;
    return answer(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    BEGIN("cudaGetDeviceProperties");
    memset(prop, 0, sizeof(*prop));
    snprintf(prop->name, sizeof(prop->name), "Recorder");
    prop->major = 9;
    prop->multiProcessorCount = fake_sms;
    prop->totalGlobalMem = fake_memory;
    prop->sharedMemPerBlockOptin = 232448;
    prop->l2CacheSize = 1 << 16;
    prop->uuid.bytes[0] = (char)device;
    prop->uuid.bytes[15] = 1;
    return answer(device >= 0 && device < devices() ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetPCIBusId(char *ret, int size, int device)
{
    BEGIN("cudaDeviceGetPCIBusId");
    snprintf(ret, (size_t)size, "0000:%02x:00.0", device);
    return answer(device >= 0 && device < devices() ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    BEGIN("cudaMemGetInfo");
    size_t used = fake_used();
    *total = fake_memory;
    *free_bytes = fake_memory > used ? fake_memory - used : 0;
    return answer(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    BEGIN("cudaDriverGetVersion");
    *version = 13000;
    return answer(cudaSuccess);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    BEGIN("cudaDeviceGetStreamPriorityRange");
    *least = 0;
    *greatest = -5;
    return answer(cudaSuccess);
}

/* ---- memory ---- */

#define UNSAFE(function)                                                                           \
    do {                                                                                           \
        if (fake_unsafe_in_capture(function))                                                      \
            return answer(cudaErrorStreamCaptureUnsupported);                                      \
    } while (0)

cudaError_t cudaMalloc(void **ptr, size_t size)
{
    BEGIN("cudaMalloc");
    fake_make("cudaMalloc");
    UNSAFE("cudaMalloc");
    if (fake_used() + size > fake_memory)
        return answer(cudaErrorMemoryAllocation);
    *ptr = fake_device_alloc(size);
    fake_exceeds(); /* remembers the most */
    return answer(cudaSuccess);
}

cudaError_t cudaFree(void *ptr)
{
    BEGIN("cudaFree");
    if (!ptr)
        return answer(cudaSuccess);
    UNSAFE("cudaFree");
    fake_run_stream(NULL); /* like the runtime, it waits for the device */
    fake_clock_host_all();
    if (fake_device_free(ptr))
        return answer(cudaSuccess);
    fake_mistake("cudaFree: memory that was never given out, or is gone");
    return answer(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags)
{
    BEGIN("cudaHostAlloc");
    fake_make("cudaHostAlloc");
    UNSAFE("cudaHostAlloc");
    *ptr = fake_host_alloc(size);
    return answer(cudaSuccess);
}

cudaError_t cudaFreeHost(void *ptr)
{
    BEGIN("cudaFreeHost");
    if (!ptr)
        return answer(cudaSuccess);
    UNSAFE("cudaFreeHost");
    fake_run_stream(NULL);
    fake_clock_host_all();
    if (fake_host_free(ptr))
        return answer(cudaSuccess);
    fake_mistake("cudaFreeHost: memory that was never given out, or is gone");
    return answer(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t handle)
{
    BEGIN("cudaMemcpyAsync");
    struct fake_stream *stream = fake_stream_find(handle, "cudaMemcpyAsync");
    if (!stream)
        return answer(cudaErrorInvalidResourceHandle);
    if (!fake_is_readable(dst, size) || !fake_is_readable(src, size)) {
        fake_mistake("cudaMemcpyAsync: %zu bytes leave their allocation", size);
        return answer(cudaErrorInvalidValue);
    }
    bool to = fake_is_device(dst), from = fake_is_device(src);
    if ((kind == cudaMemcpyHostToDevice && (!to || from)) ||
        (kind == cudaMemcpyDeviceToHost && (to || !from)) ||
        (kind == cudaMemcpyDeviceToDevice && (!to || !from)))
        fake_mistake("cudaMemcpyAsync: the direction is another");
    struct fake_task *task = fake_put(stream, FAKE_COPY);
    task->call.dst = dst;
    task->call.src = src;
    task->call.size = size;
    fake_touch_copy(stream, "a copy", src, size, false);
    fake_touch_copy(stream, "a copy", dst, size, true);
    fake_put_done(task);
    return answer(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t size, cudaStream_t handle)
{
    BEGIN("cudaMemsetAsync");
    struct fake_stream *stream = fake_stream_find(handle, "cudaMemsetAsync");
    if (!stream)
        return answer(cudaErrorInvalidResourceHandle);
    if (!fake_is_ours(dst, size)) {
        fake_mistake("cudaMemsetAsync: %zu bytes leave their allocation", size);
        return answer(cudaErrorInvalidValue);
    }
    struct fake_task *task = fake_put(stream, FAKE_SET);
    task->call.dst = dst;
    task->call.size = size;
    task->value = value;
    fake_touch_copy(stream, "a set", dst, size, true);
    fake_put_done(task);
    return answer(cudaSuccess);
}

/* Runs on the null stream, which is not ordered with non-blocking streams. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind)
{
    BEGIN("cudaMemcpy");
    UNSAFE("cudaMemcpy");
    if (!fake_is_readable(dst, size) || !fake_is_readable(src, size)) {
        fake_mistake("cudaMemcpy: %zu bytes leave their allocation", size);
        return answer(cudaErrorInvalidValue);
    }
    fake_leave();
    fake_peek(dst, src, size);
    return cudaSuccess;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned int flags, int priority)
{
    BEGIN("cudaStreamCreateWithPriority");
    fake_make("cudaStreamCreateWithPriority");
    if (flags != cudaStreamNonBlocking)
        fake_mistake("a stream that waits for the null stream");
    struct fake_stream *stream = fake_object_new(FAKE_STREAM, sizeof(*stream));
    stream->priority = priority;
    stream->index = fake_index_take();
    *ret = (cudaStream_t)stream;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    BEGIN("cudaStreamDestroy");
    struct fake_stream *stream = fake_stream_find(handle, "cudaStreamDestroy");
    if (!stream)
        return answer(cudaErrorInvalidResourceHandle);
    if (stream->capture)
        fake_mistake("cudaStreamDestroy: a graph is being captured on it");
    fake_run_stream(stream);
    if (stream->context)
        stream->context->streams--;
    fake_index_give(stream->index);
    fake_object_free(stream);
    return answer(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    BEGIN("cudaStreamSynchronize");
    UNSAFE("cudaStreamSynchronize");
    if (handle == cudaStreamLegacy)
        return answer(cudaSuccess);
    struct fake_stream *stream = fake_stream_find(handle, "cudaStreamSynchronize");
    if (!stream)
        return answer(cudaErrorInvalidResourceHandle);
    fake_run_stream(stream);
    fake_clock_host(&stream->clock);
    return answer(cudaSuccess);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t run, void *ctx)
{
    BEGIN("cudaLaunchHostFunc");
    fake_leave();
    fake_call_host(stream, run, ctx);
    return cudaSuccess;
}

/* ---- events ---- */

static cudaError_t event_new(cudaEvent_t *ret, bool timing)
{
    struct fake_event *event = fake_object_new(FAKE_EVENT, sizeof(*event));
    event->timing = timing;
    *ret = (cudaEvent_t)event;
    return answer(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *ret)
{
    BEGIN("cudaEventCreate");
    fake_make("cudaEventCreate");
    return event_new(ret, true);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned int flags)
{
    BEGIN("cudaEventCreateWithFlags");
    fake_make("cudaEventCreateWithFlags");
    return event_new(ret, !(flags & cudaEventDisableTiming));
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    BEGIN("cudaEventDestroy");
    struct fake_event *event = fake_object_find(handle, FAKE_EVENT, "cudaEventDestroy");
    if (!event)
        return answer(cudaErrorInvalidResourceHandle);
    fake_record_drop(event->last); /* tasks that still need it hold a reference */
    fake_object_free(event);
    return answer(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle)
{
    BEGIN("cudaEventRecord");
    struct fake_event *event = fake_object_find(handle, FAKE_EVENT, "cudaEventRecord");
    struct fake_stream *stream = fake_stream_find(stream_handle, "cudaEventRecord");
    if (!event || !stream)
        return answer(cudaErrorInvalidResourceHandle);
    struct fake_task *task = fake_put(stream, FAKE_RECORD);
    event->capture = stream->capture ? stream->capture->object.id : 0;
    event->node = task->node;
    event->clock = *fake_clock_of(stream);
    if (!stream->capture) {
        fake_record_drop(event->last);
        event->last = fake_record_use(NULL);
        task->record = fake_record_use(event->last);
    }
    task->call.event = handle;
    fake_put_done(task);
    return answer(cudaSuccess);
}

/* A stream that waits for an event of a capture joins that capture. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned int flags)
{
    BEGIN("cudaStreamWaitEvent");
    struct fake_event *event = fake_object_find(handle, FAKE_EVENT, "cudaStreamWaitEvent");
    struct fake_stream *stream = fake_stream_find(stream_handle, "cudaStreamWaitEvent");
    if (!event || !stream)
        return answer(cudaErrorInvalidResourceHandle);
    struct fake_graph *graph = fake_capture_find(event->capture);
    if (graph && !stream->capture)
        fake_capture_enter(stream, graph);
    if (stream->capture != graph || (event->capture && !graph)) {
        fake_mistake("cudaStreamWaitEvent: a wait across the edge of a capture");
        if (stream->capture)
            stream->capture->broken = true;
        return answer(cudaErrorStreamCaptureIsolation);
    }
    if (!event->last && !graph) {
        fake_mistake("cudaStreamWaitEvent: the event was never recorded: the wait has no effect");
        return answer(cudaSuccess);
    }
    struct fake_task *task = fake_put(stream, FAKE_WAIT);
    fake_clock_wait(stream, event);
    if (!graph)
        task->record = fake_record_use(event->last);
    task->after = graph ? event->node : -1;
    task->call.event = handle;
    fake_put_done(task);
    return answer(cudaSuccess);
}

/* A caller that polls would see the event pass at last: it passes at once, unless its stream waits
 * for another process. */
cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    BEGIN("cudaEventQuery");
    struct fake_event *event = fake_object_find(handle, FAKE_EVENT, "cudaEventQuery");
    if (!event)
        return answer(cudaErrorInvalidResourceHandle);
    if (event->capture) {
        fake_mistake("cudaEventQuery: the event was recorded in a capture");
        return answer(cudaErrorCapturedEvent);
    }
    if (!event->last)
        return answer(cudaSuccess);
    if (!fake_run_event(event, false))
        return answer(cudaErrorNotReady);
    fake_clock_host(&event->clock);
    return answer(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    BEGIN("cudaEventSynchronize");
    struct fake_event *event = fake_object_find(handle, FAKE_EVENT, "cudaEventSynchronize");
    if (!event)
        return answer(cudaErrorInvalidResourceHandle);
    if (event->capture) {
        fake_mistake("cudaEventSynchronize: the event was recorded in a capture");
        return answer(cudaErrorCapturedEvent);
    }
    if (!event->last) {
        fake_mistake("cudaEventSynchronize: the event was never recorded: the wait has no effect");
        return answer(cudaSuccess);
    }
    fake_run_event(event, true);
    fake_clock_host(&event->clock);
    return answer(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from_handle, cudaEvent_t to_handle)
{
    BEGIN("cudaEventElapsedTime");
    struct fake_event *from = fake_object_find(from_handle, FAKE_EVENT, "cudaEventElapsedTime");
    struct fake_event *to = fake_object_find(to_handle, FAKE_EVENT, "cudaEventElapsedTime");
    if (!from || !to || !from->timing || !to->timing || !from->last || !to->last) {
        fake_mistake("cudaEventElapsedTime: an event without a time");
        return answer(cudaErrorInvalidResourceHandle);
    }
    if (!from->last->done || !to->last->done) {
        fake_mistake("cudaEventElapsedTime: an event that has not ended");
        return answer(cudaErrorNotReady);
    }
    *ms = (float)((to->last->ns - from->last->ns) * 1e-6);
    return answer(cudaSuccess);
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    BEGIN("cudaStreamBeginCapture");
    struct fake_stream *stream = fake_stream_find(handle, "cudaStreamBeginCapture");
    if (!stream)
        return answer(cudaErrorInvalidResourceHandle);
    if (stream->capture) {
        fake_mistake("cudaStreamBeginCapture: already begun");
        return answer(cudaErrorIllegalState);
    }
    if (mode == cudaStreamCaptureModeGlobal)
        fake_mistake("cudaStreamBeginCapture: other threads' copies would break the graph");
    struct fake_graph *graph = fake_object_new(FAKE_GRAPH_MADE, sizeof(*graph));
    graph->users = 1;
    graph->origin = stream;
    fake_capture_enter(stream, graph);
    fake_capture_count(1);
    return answer(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *ret)
{
    int wanted = 0;
    fake_enter();
    bool fails = fake_fails("cudaStreamEndCapture", &wanted); /* the capture ends all the same */
    struct fake_stream *stream = fake_stream_find(handle, "cudaStreamEndCapture");
    *ret = NULL;
    if (!stream || !stream->capture) {
        fake_mistake("cudaStreamEndCapture: no capture was begun");
        return answer(cudaErrorIllegalState);
    }
    struct fake_graph *graph = stream->capture;
    if (graph->origin != stream) {
        fake_mistake("cudaStreamEndCapture: not the stream that began it");
        graph->broken = true;
        return answer(cudaErrorStreamCaptureUnmatched);
    }
    cudaError_t error = graph->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (fails) {
        error = (cudaError_t)wanted;
    } else if (!graph->broken && !fake_clock_joined(stream)) {
        fake_mistake("cudaStreamEndCapture: a stream has not come back to the one that began");
        error = cudaErrorStreamCaptureUnjoined;
    }
    fake_capture_leave(graph);
    fake_capture_count(-1);
    if (error != cudaSuccess) {
        fake_graph_drop(graph);
        return answer(error);
    }
    *ret = (cudaGraph_t)graph;
    return answer(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t handle, unsigned long long flags)
{
    BEGIN("cudaGraphInstantiate");
    struct fake_graph *graph = fake_object_find(handle, FAKE_GRAPH_MADE, "cudaGraphInstantiate");
    if (!graph)
        return answer(cudaErrorInvalidValue);
    struct fake_graph *exec = fake_object_new(FAKE_GRAPH_EXEC, sizeof(*exec));
    exec->users = 1;
    exec->from = graph->object.id;
    fake_queue_copy(&exec->nodes, &graph->nodes);
    fake_touched_copy(&exec->touched, &graph->touched);
    if (fake_exceeds()) {
        fake_graph_drop(exec);
        return answer(cudaErrorMemoryAllocation);
    }
    *ret = (cudaGraphExec_t)exec;
    return answer(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle)
{
    BEGIN("cudaGraphDestroy");
    struct fake_graph *graph = fake_object_find(handle, FAKE_GRAPH_MADE, "cudaGraphDestroy");
    if (graph)
        fake_graph_drop(graph);
    return answer(graph ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream)
{
    BEGIN("cudaGraphUpload");
    bool ok = fake_object_find(handle, FAKE_GRAPH_EXEC, "cudaGraphUpload") &&
              fake_stream_find(stream, "cudaGraphUpload");
    return answer(!ok              ? cudaErrorInvalidValue
                  : fake_exceeds() ? cudaErrorMemoryAllocation
                                   : cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle)
{
    BEGIN("cudaGraphLaunch");
    struct fake_graph *exec = fake_object_find(handle, FAKE_GRAPH_EXEC, "cudaGraphLaunch");
    struct fake_stream *stream = fake_stream_find(stream_handle, "cudaGraphLaunch");
    if (!exec || !stream)
        return answer(cudaErrorInvalidResourceHandle);
    if (stream->capture) {
        fake_mistake("cudaGraphLaunch: while a graph is captured");
        stream->capture->broken = true;
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    struct fake_task *task = fake_put(stream, FAKE_GRAPH);
    task->graph = exec;
    task->call.nodes = exec->nodes.count;
    task->call.graph = exec->from;
    exec->users++;
    fake_touch_graph(stream, exec);
    fake_put_done(task);
    return answer(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle)
{
    BEGIN("cudaGraphExecDestroy");
    struct fake_graph *exec = fake_object_find(handle, FAKE_GRAPH_EXEC, "cudaGraphExecDestroy");
    if (exec) {
        fake_run_stream(NULL);
        fake_graph_drop(exec);
    }
    return answer(exec ? cudaSuccess : cudaErrorInvalidValue);
}
