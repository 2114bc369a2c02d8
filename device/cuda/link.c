/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/link.c - what a link by NCCL needs of the CUDA runtime (struct hzp_link_streams).
 *
 * The stream has the lowest priority: when cores are short, lanes of the device come first. */
#include "device/link.h"

#include <cuda_runtime.h>

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
    return (int)cudaStreamDestroy(stream);
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
    return code == cudaErrorNotReady ? -1 : (int)code;
}

const struct hzp_link_streams *hzp_cuda_link_streams(void)
{
    static const struct hzp_link_streams streams = {
        error_text, stream_open, stream_close, event_open, event_close, event_record, event_query};
    return &streams;
}
