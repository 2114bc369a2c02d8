/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda.c - the CUDA device: memory, lanes, fences. */
#include "device/cuda/cuda.h"

#include "base/log.h"
#include "base/thread.h"
#include "device/about.h"
#include "device/cuda/nvml.h"
#include "device/fallback.h"
#include "mesh/link.h"

/* Excluded from the memory plan: for code that the driver and cuBLASLt load when it is first
 * needed. */
static const size_t RESERVE = (size_t)1 << 30;

/* What a device's first opening took for the context, which lives as long as the process: bytes +
 * 1; 0: the device was not opened yet.  Of the first so many devices. */
enum { DEVICES_KNOWN = 64 };
static atomic_size_t context_of[DEVICES_KNOWN];

/* Bytes of shared memory that a block with bulk copies may need. */
enum { BULK_SHARED = 232448 };

int hzp_cuda_check(struct hzp_cuda_device *dev, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return HZP_OK;
    if (dev->capturing)
        return HZP_EUNSUP; /* hzp_cuda_graph_end logs the reason */
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

void hzp_cuda_load_whole(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

/* *ret_free: its free memory before the context is made, which cudaSetDevice may do; 0: not
 * known. */
static int device_choose(const struct hzp_device_config *config, size_t *ret_free,
                         struct hzp_err_text *reterr)
{
    char bus[32];
    int count = 0;
    hzp_cuda_load_whole();
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        cudaGetLastError();
        return hzp_fail(reterr, HZP_EUNSUP, "device cuda: none: %s",
                        error != cudaSuccess ? cudaGetErrorString(error) : "no device");
    }
    if (config->ordinal < 0 || config->ordinal >= count)
        return hzp_fail_param(reterr, HZP_EINVAL, "device", "device cuda: no %d, there are %d",
                              config->ordinal, count);
    error = cudaDeviceGetPCIBusId(bus, sizeof(bus), config->ordinal);
    *ret_free = error == cudaSuccess ? hzp_cuda_nvml_free(bus) : 0;
    if (error != cudaSuccess)
        cudaGetLastError();
    error = cudaSetDevice(config->ordinal);
    if (error != cudaSuccess)
        return hzp_fail(reterr, HZP_EUNSUP, "device cuda: %s", cudaGetErrorString(error));
    return HZP_OK;
}

/* before, now: free bytes.  Of a part of a GPU NVML tells what the whole has free: not known. */
static void note_context(int ordinal, size_t before, size_t now, size_t total)
{
    size_t unknown = 0, bytes = before > now && before < total + total / 8 ? before - now : 0;
    if (ordinal < DEVICES_KNOWN)
        atomic_compare_exchange_strong(&context_of[ordinal], &unknown, bytes + 1);
}

static void cuda_overhead(struct hzp_device *base, struct hzp_overhead *ret)
{
    int ordinal = ((struct hzp_cuda_device *)base)->ordinal;
    size_t context = ordinal < DEVICES_KNOWN ? atomic_load(&context_of[ordinal]) : 0;
    *ret = (struct hzp_overhead){.context = context ? context - 1 : 0, .loading = RESERVE};
}

static int device_describe(struct hzp_cuda_device *dev, struct hzp_err_text *reterr)
{
    struct cudaDeviceProp prop;
    cudaError_t error = cudaGetDeviceProperties(&prop, dev->ordinal);
    if (error == cudaSuccess && prop.major < 8)
        return hzp_fail(reterr, HZP_EUNSUP,
                        "device cuda: %s has compute capability %d.%d, 8.0 is "
                        "the least",
                        prop.name, prop.major, prop.minor);
    if (error != cudaSuccess)
        return hzp_fail(reterr, HZP_EUNSUP, "device cuda: %s", cudaGetErrorString(error));
    dev->early = prop.major >= 9 ? dev->early : 0;
    const char *fuse = getenv("HZP_CUDA_FUSE");
    dev->fuses = !(fuse && strcmp(fuse, "0") == 0);
    dev->sms = prop.multiProcessorCount;
    dev->shared_max = (int)prop.sharedMemPerBlockOptin;
    const char *bulk = getenv("HZP_CUDA_BULK");
    dev->bulk =
        prop.major >= 9 && dev->shared_max >= BULK_SHARED && !(bulk && strcmp(bulk, "0") == 0);
    dev->base.threads = dev->sms;
    hzp_device_id_text(&prop.uuid, dev->id);
    snprintf(dev->base.label, sizeof(dev->base.label), "%.60s, %d SMs, sm_%d%d", prop.name,
             dev->sms, prop.major, prop.minor);
    return HZP_OK;
}

/* Issues one op, and times it if lane_time asked for that. */
static int issue(struct hzp_lane *base, hzp_op_fn *op, const void *args)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    if (!lane->ready)
        HZP_TRY(hzp_cuda_lane_ready(lane));
    HZP_TRY(hzp_cuda_graph_op(lane));
    if (base->most && hzp_cuda_by_grid(base))
        hzp_cuda_say_limits();
    if (!lane->span)
        return op(base, args);
    HZP_TRY(hzp_cuda_time_begin(lane));
    int r = op(base, args);
    int t = hzp_cuda_time_end(lane);
    return r < 0 ? r : t;
}

#define X(name, class_)                                                                            \
    static int issue_##name(struct hzp_lane *lane, const void *args)                               \
    {                                                                                              \
        return issue(lane, hzp_cuda_##name, args);                                                 \
    }
HZP_OPS(X)
#undef X

int hzp_cuda_env(const char *name, const char *const *word, int words, const char *these, int *ret,
                 struct hzp_err_text *reterr)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return HZP_OK;
    for (int i = 0; i < words; i++)
        if (strcmp(text, word[i]) == 0) {
            *ret = i;
            return HZP_OK;
        }
    return hzp_fail_param(reterr, HZP_EINVAL, name, "%s=%s: not %s", name, text, these);
}

static int settings_read(struct hzp_cuda_device *dev, struct hzp_err_text *reterr)
{
    static const char *const lanes[] = {"plain", "grid", "green"};
    static const char *const graphs[] = {"lanes", "whole"}, *const early[] = {"0", "few", "all"};
    static const int early_rows[] = {0, HZP_CUDA_FEW_ROWS, INT_MAX};
    int lane = HZP_CUDA_GREEN, graph = 0, rows = 1;
    HZP_TRY(hzp_cuda_env("HZP_CUDA_LANES", lanes, HZP_COUNT(lanes), "green, grid or plain", &lane,
                         reterr));
    HZP_TRY(hzp_cuda_env("HZP_CUDA_GRAPHS", graphs, HZP_COUNT(graphs), "lanes or whole", &graph,
                         reterr));
    HZP_TRY(
        hzp_cuda_env("HZP_CUDA_EARLY", early, HZP_COUNT(early), "0, few or all", &rows, reterr));
    dev->lanes = (enum hzp_cuda_lanes)lane;
    dev->graph_a_lane = graph == 0;
    dev->early = early_rows[rows];
    return HZP_OK;
}

/* Once the context and the libraries, whose kernels are loaded with it, have taken theirs.  before:
 * its free memory before that, 0: not known.  begin, loaded: when opening it began, and when the
 * context was there. */
static void memory_describe(struct hzp_cuda_device *dev, size_t before, uint64_t begin,
                            uint64_t loaded)
{
    size_t free_bytes = 0, total = 0;
    uint64_t now = hzp_now_ns();
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        cudaGetLastError();
    note_context(dev->ordinal, before, free_bytes, total);
    dev->base.mem_total = free_bytes > RESERVE ? free_bytes - RESERVE : 0;
    hzp_log(HZP_LOG_INFO, "cuda",
            "device opened number=%d kernels_load=%s load_ms=%.0f libraries_ms=%.0f "
            "free_bytes=%zu total_bytes=%zu",
            dev->ordinal, hzp_cuda_loading(), (double)(loaded - begin) / 1e6,
            (double)(now - loaded) / 1e6, free_bytes, total);
}

static int cuda_open(const struct hzp_device_config *config, struct hzp_device **ret,
                     struct hzp_err_text *reterr)
{
    size_t before = 0;
    uint64_t begin = hzp_now_ns(), loaded = begin;
    HZP_TRY(device_choose(config, &before, reterr));
    struct hzp_cuda_device *dev = calloc(1, sizeof(*dev));
    if (!dev)
        return hzp_fail(reterr, HZP_ENOMEM, "device cuda: out of memory");
    dev->base.backend = &hzp_backend_cuda;
    dev->ordinal = config->ordinal;
    dev->epoch = 1;
    int r = settings_read(dev, reterr);
    if (r == HZP_OK)
        r = device_describe(dev, reterr);
    loaded = hzp_now_ns();
    if (r == HZP_OK)
        r = hzp_cuda_products_open(dev, &dev->products, reterr);
    if (r == HZP_OK &&
        (r = hzp_cudnn_open(hzp_cuda_products_algos(dev->products), &dev->cudnn, reterr)) < 0)
        hzp_cuda_products_close(dev->products);
    if (r == HZP_OK && (r = hzp_cuda_graphs_open(dev)) < 0) {
        hzp_cudnn_close(dev->cudnn);
        hzp_cuda_products_close(dev->products);
        r = hzp_fail(reterr, r, "device cuda: cannot create an event");
    }
    if (r < 0) {
        free(dev);
        return r;
    }
#define X(name, class_) dev->base.op[HZP_OP_##name] = issue_##name;
    HZP_OPS(X)
#undef X
    memory_describe(dev, before, begin, loaded);
    *ret = &dev->base;
    return HZP_OK;
}

static void cuda_close(struct hzp_device *base)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    hzp_cudnn_close(dev->cudnn);
    hzp_cuda_products_close(dev->products);
    hzp_cuda_graphs_end(dev);
    hzp_cuda_time_close(dev);
    hzp_cuda_green_close(dev);
    free(dev->pinned);
    free(dev);
}

/* How many of the host's allocations begin at or before ptr. */
static int pinned_until(const struct hzp_cuda_device *dev, const void *ptr)
{
    int from = 0, to = dev->pinneds;
    while (from < to) {
        int middle = from + (to - from) / 2;
        if ((uintptr_t)dev->pinned[middle].ptr <= (uintptr_t)ptr)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static bool is_pinned(const struct hzp_cuda_device *dev, const void *ptr)
{
    int at = pinned_until(dev, ptr);
    return at > 0 && (uintptr_t)ptr - (uintptr_t)dev->pinned[at - 1].ptr < dev->pinned[at - 1].size;
}

static void pinned_add(struct hzp_cuda_device *dev, void *ptr, size_t size)
{
    int at = pinned_until(dev, ptr);
    dev->pinned =
        hzp_xgrow(dev->pinned, &dev->pinneds_room, dev->pinneds + 1, sizeof(*dev->pinned));
    memmove(dev->pinned + at + 1, dev->pinned + at,
            (size_t)(dev->pinneds++ - at) * sizeof(*dev->pinned));
    dev->pinned[at].ptr = ptr;
    dev->pinned[at].size = size;
}

static void pinned_remove(struct hzp_cuda_device *dev, const void *ptr)
{
    int at = pinned_until(dev, ptr) - 1;
    if (at >= 0 && dev->pinned[at].ptr == ptr)
        memmove(dev->pinned + at, dev->pinned + at + 1,
                (size_t)(--dev->pinneds - at) * sizeof(*dev->pinned));
}

static int cuda_mem_alloc(struct hzp_device *base, enum hzp_mem where, size_t size, void **ret)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    cudaError_t error = where == HZP_MEM_HOST
                            ? cudaHostAlloc(ret, size, cudaHostAllocMapped | cudaHostAllocPortable)
                            : cudaMalloc(ret, size);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* not final: more memory was requested than is free */
        return HZP_ENOMEM;
    }
    HZP_TRY(hzp_cuda_check(dev, error, "allocating memory"));
    if (where == HZP_MEM_HOST)
        pinned_add(dev, *ret, size);
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
    pinned_remove(dev, ptr);
    hzp_cuda_check(dev, cudaFreeHost(ptr), "freeing host memory");
}

const void *hzp_cuda_staged(struct hzp_lane *base, const void *ptr, size_t size)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    if (!is_pinned(dev, ptr))
        return ptr;
    if (lane->stage_epoch !=
        dev->epoch) { /* the stream orders earlier readers before the new copies */
        lane->stage_epoch = dev->epoch;
        lane->stage_used = 0;
        lane->stageds = 0;
    }
    for (int i = 0; i < lane->stageds; i++)
        if (lane->staged[i].ptr == ptr && lane->staged[i].size >= size)
            return lane->staged[i].copy;
    if (size > lane->stage_size - lane->stage_used || lane->stageds == HZP_CUDA_STAGED_MAX) {
        hzp_device_fallback(base->dev, HZP_FALLBACK_staging, 0, 0, 0,
                            "host arrays are larger than the lane's room for copies");
        return ptr;
    }
    char *copy = lane->stage + lane->stage_used;
    if (cudaMemcpyAsync(copy, ptr, size, cudaMemcpyHostToDevice, lane->stream) != cudaSuccess)
        return ptr; /* the launch that follows reports the error */
    lane->stage_used += HZP_ROUND_UP(size, (size_t)256);
    lane->staged[lane->stageds].ptr = ptr;
    lane->staged[lane->stageds].size = size;
    lane->staged[lane->stageds++].copy = copy;
    return copy;
}

void hzp_cuda_pages_staged(struct hzp_lane *lane, struct hzp_attn_paged_args *a)
{
    size_t count = (size_t)a->segs.count;
    a->segs.row0 = hzp_cuda_staged(lane, a->segs.row0, (count + 1) * sizeof(*a->segs.row0));
    a->segs.pos0 = hzp_cuda_staged(lane, a->segs.pos0, count * sizeof(*a->segs.pos0));
    if (a->table) {
        a->page = a->table;
        a->line = hzp_cuda_staged(lane, a->line, count * sizeof(*a->line));
    } else {
        a->page = hzp_cuda_staged(lane, a->page, count * (size_t)a->page_stride * sizeof(*a->page));
        a->line = NULL;
    }
}

static int cuda_copy(struct hzp_lane *base, void *dst, const void *src, size_t size)
{
    struct hzp_cuda_device *dev = hzp_cuda_device(base);
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    HZP_TRY(hzp_cuda_lane_ready(lane));
    HZP_TRY(hzp_cuda_graph_op(lane));
    bool timed = lane->span;
    if (is_pinned(dev, dst))
        dev->epoch++;
    if (timed)
        HZP_TRY(hzp_cuda_time_begin(lane));
    HZP_TRY(hzp_cuda_check(dev, cudaMemcpyAsync(dst, src, size, cudaMemcpyDefault, lane->stream),
                           "copying"));
    return timed ? hzp_cuda_time_end(lane) : HZP_OK;
}

/* Any thread: the runtime is thread-safe, but the current device is set per thread. */
static int cuda_host_copy(struct hzp_device *base, void *dst, const void *src, size_t size)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    cudaError_t error = cudaSetDevice(dev->ordinal);
    if (error == cudaSuccess)
        error = cudaMemcpy(dst, src, size, cudaMemcpyDefault);
    if (error == cudaSuccess) /* a copy from pageable memory may not have finished */
        error = cudaStreamSynchronize(cudaStreamLegacy);
    return hzp_cuda_check(dev, error, "copying");
}

static size_t cuda_bytes_free(struct hzp_device *base)
{
    size_t free_bytes = 0, total = 0;
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total);
    hzp_cuda_check((struct hzp_cuda_device *)base, error, "asking for free memory");
    return error == cudaSuccess ? free_bytes : 0;
}

static void cuda_steady(struct hzp_device *base)
{
    struct hzp_cuda_device *dev = (struct hzp_cuda_device *)base;
    hzp_cuda_products_steady(dev->products);
    hzp_cudnn_steady(dev->cudnn);
}

static bool cuda_has_codes(const struct hzp_device *dev)
{
    return ((const struct hzp_cuda_device *)dev)->fuses;
}

static const char *cuda_id(const struct hzp_device *base)
{
    return ((const struct hzp_cuda_device *)base)->id;
}

const struct hzp_backend hzp_backend_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .mem_alloc = cuda_mem_alloc,
    .mem_free = cuda_mem_free,
    .copy = cuda_copy,
    .host_copy = cuda_host_copy,
    .lane_open = hzp_cuda_lane_open,
    .lane_bytes = hzp_cuda_lane_bytes,
    .lane_close = hzp_cuda_lane_close,
    .lane_wait = hzp_cuda_lane_wait,
    .fence_open = hzp_cuda_fence_open,
    .fence_close = hzp_cuda_fence_close,
    .fence_record = hzp_cuda_fence_record,
    .fence_wait = hzp_cuda_fence_wait,
    .fence_poll = hzp_cuda_fence_poll,
    .lane_set_share = hzp_cuda_lane_set_share,
    .shares_prepare = hzp_cuda_shares_prepare,
    .bytes_free = cuda_bytes_free,
    .overhead = cuda_overhead,
    .attention_prepare = hzp_cudnn_prepare,
    .steady = cuda_steady,
    .times_prepare = hzp_cuda_times_prepare,
    .projects = hzp_cuda_projects,
    .has_codes = cuda_has_codes,
    .lane_time = hzp_cuda_lane_time,
    .graph_begin = hzp_cuda_graph_begin,
    .graph_end = hzp_cuda_graph_end,
    .graph_launch = hzp_cuda_graph_launch,
    .graph_close = hzp_cuda_graph_close,
    .id = cuda_id,
    .graphs_cut = hzp_cuda_graphs_cut,
    .graph_is_cut = hzp_cuda_graph_is_cut,
    .about = hzp_cuda_about,
};
