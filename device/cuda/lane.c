/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/lane.c - lanes as streams, with their memory and their shares of the SMs, and
 * fences. */
#include "device/cuda/cuda.h"

#include "base/log.h"
#include "device/fallback.h"

enum {
    SPACE = HZP_CUDA_SPACE,
    SCRATCH = 64 << 20,
    SCRATCH_SMALL = 4 << 20, /* lanes of copies and the network */
    STAGE = 16 << 20,
};

struct hzp_fence {
    struct hzp_cuda_device *dev;
    cudaEvent_t event;
    /* where it was recorded: the lane's id, and how many timings were before it */
    uint64_t lane, timed;
};

static const size_t COUNTERS = HZP_CUDA_COUNTERS * sizeof(int32_t);

static bool computes(enum hzp_bound use)
{
    return use == HZP_BOUND_COMPUTE || use == HZP_BOUND_MEMORY;
}

size_t hzp_cuda_lane_bytes(struct hzp_device *dev, enum hzp_bound use)
{
    size_t attn = use == HZP_BOUND_COMPUTE ? ((struct hzp_cuda_device *)dev)->attn_bytes : 0;
    return attn + COUNTERS + (computes(use) ? SPACE + SCRATCH + STAGE : 2 * SCRATCH_SMALL);
}

static void lane_free(struct hzp_cuda_lane *lane)
{
    cudaFree(lane->space);
    cudaFree(lane->attn);
    cudaFree(lane->scratch);
    cudaFree(lane->stage);
    cudaFree(lane->counter);
    lane->space = lane->attn = NULL;
    lane->scratch = lane->stage = NULL;
    lane->counter = NULL;
}

/* Waits until the memory is allocated: from then on any stream may be used for the lane. */
static cudaError_t lane_memory(struct hzp_cuda_lane *lane)
{
    const struct hzp_cuda_device *dev = (const struct hzp_cuda_device *)lane->base.dev;
    bool large = computes(lane->base.use);
    cudaError_t error = cudaSuccess;
    lane->space_size = large ? SPACE : 0;
    lane->scratch_size = large ? SCRATCH : SCRATCH_SMALL;
    lane->stage_size = large ? STAGE : SCRATCH_SMALL;
    lane->attn_size = lane->base.use == HZP_BOUND_COMPUTE ? dev->attn_bytes : 0;
    if (lane->space_size)
        error = cudaMalloc(&lane->space, lane->space_size);
    if (error == cudaSuccess && lane->attn_size)
        error = cudaMalloc((void **)&lane->attn, lane->attn_size);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->scratch, lane->scratch_size);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->stage, lane->stage_size);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->counter, COUNTERS);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(lane->counter, 0, COUNTERS, lane->own);
    return error == cudaSuccess ? cudaStreamSynchronize(lane->own) : error;
}

/* Lanes of copies have the lower priority: the work they wait for was issued early.  What another
 * rank waits for comes before everything. */
int hzp_cuda_priority(enum hzp_bound use)
{
    int low = 0, high = 0;
    cudaDeviceGetStreamPriorityRange(&low, &high);
    int middle = high < low ? high + 1 : low; /* the lower number is the higher priority */
    return use == HZP_BOUND_NETWORK ? high : computes(use) ? middle : low;
}

int hzp_cuda_lane_open(struct hzp_device *base, enum hzp_bound use, struct hzp_lane **ret)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    struct hzp_cuda_lane *lane = calloc(1, sizeof(*lane));
    if (!lane)
        return HZP_ENOMEM;
    lane->base = (struct hzp_lane){.dev = base, .use = use};
    lane->id = ++dev->lane_ids;
    cudaError_t error =
        cudaStreamCreateWithPriority(&lane->own, cudaStreamNonBlocking, hzp_cuda_priority(use));
    if (error == cudaSuccess)
        error = lane_memory(lane);
    if (error != cudaSuccess) {
        bool full = error == cudaErrorMemoryAllocation;
        if (full)
            /* not final: the device has less free memory than when it was opened */
            cudaGetLastError();
        lane_free(lane);
        if (lane->own)
            cudaStreamDestroy(lane->own);
        free(lane);
        return full ? HZP_ENOMEM : hzp_cuda_check(dev, error, "opening a lane");
    }
    lane->stream = lane->own;
    lane->next = dev->lane_list;
    dev->lane_list = lane;
    *ret = &lane->base;
    return HZP_OK;
}

void hzp_cuda_lane_close(struct hzp_lane *base)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    for (struct hzp_cuda_lane **at = &dev->lane_list; *at; at = &(*at)->next)
        if (*at == lane) {
            *at = lane->next;
            break;
        }
    cudaStreamSynchronize(lane->stream);
    for (int i = 0; i < lane->timings; i++) {
        cudaEventDestroy(lane->timing[i].begin);
        cudaEventDestroy(lane->timing[i].end);
    }
    lane_free(lane);
    cudaStreamDestroy(lane->own);
    free(lane->timing);
    free(lane);
}

/* ---- shares ---- */

static int lane_by_share(const void *a, const void *b)
{
    const struct hzp_cuda_lane *x = *(struct hzp_cuda_lane *const *)a,
                               *y = *(struct hzp_cuda_lane *const *)b;
    return x->share != y->share ? (x->share > y->share) - (x->share < y->share)
                                : (x->id > y->id) - (x->id < y->id);
}

/* The lanes with a share, the smallest share first; returns how many. */
static int sharing(struct hzp_cuda_device *dev, struct hzp_cuda_lane *ret[HZP_CUDA_PARTS_MAX])
{
    int count = 0;
    for (struct hzp_cuda_lane *lane = dev->lane_list; lane; lane = lane->next)
        if (lane->share > 0 && count < HZP_CUDA_PARTS_MAX)
            ret[count++] = lane;
    qsort(ret, (size_t)count, sizeof(ret[0]), lane_by_share);
    return count;
}

/* Adjusts the wanted numbers of SMs, the smallest first: each is at least the smallest part and a
 * whole number of steps, and the sum is at most what the device has. */
static void shares_fit(const struct hzp_cuda_device *dev, int *want, int count, int step)
{
    int sum = 0, most = dev->sms / count;
    int least = HZP_MAX(HZP_MIN((int)HZP_CUDA_PART_MIN, dev->sms / 2 / count), 1);
    for (int i = 0; i < count; i++) {
        want[i] = HZP_MAX((want[i] + step / 2) / step * step, least);
        sum += want[i];
    }
    for (int i = count - 1; sum > dev->sms && i >= 0; i--) { /* reduce the largest first */
        int less = HZP_MIN(sum - dev->sms, HZP_MAX(want[i] - most, 0));
        less = HZP_MIN(HZP_ROUND_UP(less, step), want[i] - least);
        sum -= HZP_MAX(less, 0);
        want[i] -= HZP_MAX(less, 0);
    }
}

/* Those with a block for each row, group of rows or tile; tests/cudafake/test_grids.c has both
 * lists. */
void hzp_cuda_say_limits(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        hzp_log(HZP_LOG_WARN, "cuda",
                "limits on blocks hold for cuBLASLt's products and those of few rows, decode "
                "attention and ops on single elements; norms, rotations, quantization, sampling, "
                "losses, gradients of norms and of embeddings, sums of squares, audits, attention "
                "of prompts and of training, and products that cuBLASLt refuses are not limited");
}

/* Finds green contexts for the shares, the smallest first.  HZP_EUNSUP: *ret_why says why there are
 * none. */
static int shares_split(struct hzp_cuda_device *dev, const int *share, const bool *urgent,
                        int count, cudaStream_t *ret_stream, int *ret_limit, const char **ret_why)
{
    int want[HZP_CUDA_PARTS_MAX];
    *ret_why = "the driver has no green contexts: shares limit grids";
    if (dev->lacks_green)
        return HZP_EUNSUP;
    *ret_why = "too few SMs for a green context each: shares limit grids";
    if (dev->sms < (count + 1) * HZP_CUDA_PART_MIN)
        return HZP_EUNSUP;
    *ret_why = "the driver refuses this split of the SMs: shares limit grids";
    memcpy(want, share, (size_t)count * sizeof(*want));
    shares_fit(dev, want, count, HZP_CUDA_PART_STEP);
    int r = hzp_cuda_green_split(dev, want, urgent, count, ret_stream, ret_limit);
    if (r != HZP_ENOENT)
        return r;
    dev->lanes = HZP_CUDA_GRID;
    dev->lacks_green = true;
    *ret_why = "the driver has no green contexts: shares limit grids";
    return HZP_EUNSUP;
}

/* Creates the streams and limits of lanes with these shares, the smallest first. */
static int shares_make(struct hzp_cuda_device *dev, const int *share, const bool *urgent, int count,
                       cudaStream_t *ret_stream, int *ret_limit)
{
    if (dev->lanes == HZP_CUDA_GREEN || dev->lacks_green) {
        const char *why;
        int r = shares_split(dev, share, urgent, count, ret_stream, ret_limit, &why);
        if (r != HZP_EUNSUP)
            return r;
        hzp_device_fallback(&dev->base, HZP_FALLBACK_share, count, share[0], 0, why);
    }
    hzp_cuda_say_limits();
    memset(ret_stream, 0, (size_t)count * sizeof(*ret_stream));
    memcpy(ret_limit, share, (size_t)count * sizeof(*ret_limit));
    shares_fit(dev, ret_limit, count, 1);
    return HZP_OK;
}

/* Sends the lane's later ops to this stream, which waits for the lane's ops on the one before: both
 * use the lane's workspace.  The host waits for nothing. */
static int lane_move(struct hzp_cuda_lane *lane, cudaStream_t stream, int limit)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    if (lane->stream != stream) {
        cudaError_t error = cudaEventRecord(dev->join, lane->stream);
        if (error == cudaSuccess)
            error = cudaStreamWaitEvent(stream, dev->join, 0);
        HZP_TRY(hzp_cuda_check(dev, error, "moving a lane"));
    }
    lane->stream = stream;
    lane->limit = limit;
    return HZP_OK;
}

/* Sets every lane's stream and limit by its share.  Lanes need not be idle: a lane that was opened
 * or closed since the last call may change the streams of the others. */
static int shares_apply(struct hzp_cuda_device *dev)
{
    struct hzp_cuda_lane *lane[HZP_CUDA_PARTS_MAX];
    cudaStream_t stream[HZP_CUDA_PARTS_MAX] = {NULL};
    int share[HZP_CUDA_PARTS_MAX], limit[HZP_CUDA_PARTS_MAX];
    bool urgent[HZP_CUDA_PARTS_MAX];
    int count = dev->lanes == HZP_CUDA_PLAIN ? 0 : sharing(dev, lane);
    for (int i = 0; i < count; i++) {
        share[i] = lane[i]->share;
        urgent[i] = lane[i]->base.use == HZP_BOUND_NETWORK;
    }
    if (count > 0)
        HZP_TRY(shares_make(dev, share, urgent, count, stream, limit));
    for (struct hzp_cuda_lane *l = dev->lane_list; l; l = l->next) {
        int part = 0;
        while (part < count && lane[part] != l)
            part++;
        bool own = part == count || !stream[part];
        HZP_TRY(lane_move(l, own ? l->own : stream[part], part < count ? limit[part] : 0));
    }
    return HZP_OK;
}

static int by_size(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Only splits take time.  An error here occurs again where the split is needed, and is reported
 * there; missing green contexts are logged here, once. */
void hzp_cuda_shares_prepare(struct hzp_device *base, const int *cores, int lanes)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    cudaStream_t stream[HZP_CUDA_PARTS_MAX];
    int share[HZP_CUDA_PARTS_MAX], limit[HZP_CUDA_PARTS_MAX], count = 0;
    static const bool urgent[HZP_CUDA_PARTS_MAX];
    for (int i = 0; i < lanes && count < HZP_CUDA_PARTS_MAX; i++)
        if (cores[i] > 0 && cores[i] < dev->sms)
            share[count++] = cores[i];
    qsort(share, (size_t)count, sizeof(share[0]), by_size);
    if (count > 0 && dev->lanes == HZP_CUDA_GREEN)
        shares_make(dev, share, urgent, count, stream, limit);
}

int hzp_cuda_lane_ready(struct hzp_cuda_lane *lane)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)lane->base.dev;
    if (lane->ready)
        return HZP_OK;
    HZP_TRY(shares_apply(dev));
    for (struct hzp_cuda_lane *l = dev->lane_list; l; l = l->next)
        l->ready = true;
    return HZP_OK;
}

/* Streams are assigned when the next op is issued: by then the shares of all lanes of the step are
 * set, and no split is made for an intermediate combination.  Work that was issued before keeps its
 * SMs until it ends, beside work with the new shares. */
int hzp_cuda_lane_set_share(struct hzp_lane *base, int cores)
{
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    cores = cores >= dev->sms ? 0 : cores;
    if (lane->share == cores || dev->sms < 2)
        return HZP_OK;
    for (struct hzp_cuda_lane *l = dev->lane_list; l; l = l->next)
        l->ready = false;
    lane->share = cores;
    return HZP_OK;
}

/* ---- fences ---- */

int hzp_cuda_lane_wait(struct hzp_lane *base, struct hzp_fence *fence)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    HZP_TRY(hzp_cuda_lane_ready(lane));
    if (fence->dev->making)
        return hzp_cuda_graph_wait(lane, fence->event);
    return hzp_cuda_check(fence->dev, cudaStreamWaitEvent(lane->stream, fence->event, 0),
                          "waiting for a fence");
}

int hzp_cuda_fence_open(struct hzp_device *base, struct hzp_fence **ret)
{
    struct hzp_fence *fence = calloc(1, sizeof(*fence));
    if (!fence)
        return HZP_ENOMEM;
    fence->dev = (struct hzp_cuda_device *)base;
    int r =
        hzp_cuda_check(fence->dev, cudaEventCreateWithFlags(&fence->event, cudaEventDisableTiming),
                       "opening a fence");
    if (r < 0) {
        free(fence);
        return r;
    }
    *ret = fence;
    return HZP_OK;
}

void hzp_cuda_fence_close(struct hzp_fence *fence)
{
    cudaEventDestroy(fence->event);
    free(fence);
}

int hzp_cuda_fence_record(struct hzp_fence *fence, struct hzp_lane *base)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    HZP_TRY(hzp_cuda_lane_ready(lane));
    fence->lane = lane->id;
    fence->timed = lane->timed;
    if (fence->dev->making)
        return hzp_cuda_graph_record(lane, fence->event);
    return hzp_cuda_check(fence->dev, cudaEventRecord(fence->event, lane->stream),
                          "recording a fence");
}

int hzp_cuda_fence_poll(struct hzp_fence *fence)
{
    struct hzp_err_text why;
    cudaError_t error = cudaEventQuery(fence->event);
    if (error != cudaErrorNotReady)
        return error == cudaSuccess ? 1 : hzp_cuda_check(fence->dev, error, "the device");
    cudaGetLastError(); /* it is no error: the launch after it must not find it */
    return hzp_cuda_links_work(fence->dev, &why) ? 0 : HZP_EDEVICE;
}

/* The host may now overwrite the arrays of the ops it waited for: staged copies are stale from here
 * on. */
int hzp_cuda_fence_wait(struct hzp_fence *fence)
{
    struct hzp_cuda_device *dev = fence->dev;
    dev->epoch++;
    HZP_TRY(hzp_cuda_await(dev, fence->event));
    for (struct hzp_cuda_lane *lane = dev->lane_list; lane; lane = lane->next)
        if (lane->id == fence->lane)
            return hzp_cuda_time_read(lane, fence->timed);
    return HZP_OK;
}
