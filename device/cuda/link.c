/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/link.c - what a link by NCCL needs of the CUDA runtime (struct hzp_link_streams).
 *
 * The stream has the lowest priority: when cores are short, lanes of the device come first. */
#include "device/cuda/link.h"

#include "device/cuda/cuda.h"

#include <cuda_runtime_api.h>

static const char *error_text(int code)
{
    return cudaGetErrorString((cudaError_t)code);
}

static int stream_open(void **stream)
{
    int lowest = 0, highest = 0;
    cudaError_t code = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    return (int)(code ? code
                      : cudaStreamCreateWithPriority((cudaStream_t *)stream, cudaStreamNonBlocking,
                                                     lowest));
}

static int stream_close(void *stream)
{
    cudaError_t code = cudaStreamSynchronize(stream), closed = cudaStreamDestroy(stream);
    return (int)(code ? code : closed);
}

static int event_open(void **event)
{
    return (int)cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming);
}

static int event_close(void *event)
{
    return (int)cudaEventDestroy(event);
}

static int event_record(void *event, void *stream)
{
    return (int)cudaEventRecord(event, stream);
}

static int event_query(void *event)
{
    cudaError_t code = cudaEventQuery(event);
    if (code != cudaErrorNotReady)
        return (int)code;
    cudaGetLastError(); /* it is no error: the launch after it must not find it */
    return -1;
}

static int memory_open(void **memory, size_t size)
{
    return (int)cudaMalloc(memory, size);
}

static int memory_close(void *memory)
{
    return (int)cudaFree(memory);
}

static int call(void *stream, void (*run)(void *ctx), void *ctx)
{
    return (int)cudaLaunchHostFunc(stream, run, ctx);
}

static int device_count(int *ret)
{
    cudaError_t code = cudaGetDeviceCount(ret);
    if (code != cudaSuccess)
        cudaGetLastError();
    return (int)code;
}

static int device_name(char *ret, size_t size)
{
    struct cudaDeviceProp prop;
    int ordinal = 0;
    cudaError_t code = cudaGetDevice(&ordinal);
    if (code == cudaSuccess)
        code = cudaGetDeviceProperties(&prop, ordinal);
    for (size_t i = 0; code == cudaSuccess && i < sizeof(prop.uuid.bytes); i++)
        snprintf(ret + HZP_MIN(2 * i, size - 1), size - HZP_MIN(2 * i, size - 1), "%02x",
                 (unsigned char)prop.uuid.bytes[i]);
    return (int)code;
}

const struct hzp_link_streams *hzp_cuda_link_streams(void)
{
    static const struct hzp_link_streams streams = {
        .error_text = error_text,
        .stream_open = stream_open,
        .stream_close = stream_close,
        .event_open = event_open,
        .event_close = event_close,
        .event_record = event_record,
        .event_query = event_query,
        .memory_open = memory_open,
        .memory_close = memory_close,
        .sum = hzp_cuda_link_sum,
        .call = call,
        .device_count = device_count,
        .device_name = device_name,
        .lane_sms = HZP_CUDA_PART_MIN,
    };
    return &streams;
}
