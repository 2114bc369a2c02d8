/* SPDX-License-Identifier: Apache-2.0 */
/* device/device.c - the front end of an open device: checks arguments, and implements what the
 * backend leaves out.
 *
 * A fence given to callers is a front_fence: fence_close and fence_wait have no device argument to
 * find their backend by, and each backend defines its own struct hzp_fence.
 */
#include "device/device.h"

#include "device/account.h"
#include "device/backend.h"

#include "base/log.h"
#include "base/thread.h"

struct front_fence {
    struct hzp_device *dev;
    struct hzp_fence *inner; /* the backend's; NULL: its ops end at issue */
};

bool hzp_env_on(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

/* Fills device memory with an op, because the host may not be able to write there. */
static int fill(struct hzp_device *dev, void *ptr, size_t size, float value)
{
    const size_t piece = (size_t)1 << 30;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    HZP_TRY(hzp_lane_open(dev, HZP_BOUND_MEMORY, &lane));
    int r = hzp_fence_open(dev, &fence);
    if (r >= 0) {
        for (size_t at = 0; at < size && r >= 0; at += piece) {
            int32_t n = (int32_t)(HZP_MIN(piece, size - at) / sizeof(float));
            struct hzp_fill_args args = {{(char *)ptr + at, 1, n, n, HZP_F32}, value};
            r = hzp_op_fill(lane, &args);
        }
        if (r >= 0)
            r = hzp_fence_record(fence, lane);
        if (r >= 0)
            r = hzp_fence_wait(fence);
        hzp_fence_close(fence);
    }
    hzp_lane_close(lane);
    return r;
}

int hzp_device_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret)
{
    void *ptr;
    if (size > SIZE_MAX - 4096)
        return HZP_ENOMEM;
    size = HZP_ROUND_UP(HZP_MAX(size, (size_t)1), (size_t)4096);
    HZP_TRY(dev->backend->mem_alloc(dev, where, size, &ptr));
    if (hzp_env_on("HZP_POISON")) {
        int r = HZP_OK;
        if (where == HZP_MEM_HOST)
            memset(ptr, 0xff, size); /* NaN in every floating-point type */
        else
            r = fill(dev, ptr, size, NAN);
        if (r < 0) {
            dev->backend->mem_free(dev, where, ptr);
            return r;
        }
    }
    if (where == HZP_MEM_DEVICE)
        hzp_account_add(ptr, size);
    *ret = ptr;
    return HZP_OK;
}

int hzp_device_zero(struct hzp_device *dev, void *ptr, size_t size)
{
    return fill(dev, ptr, size, 0);
}

int hzp_device_touch(struct hzp_device *dev, void *ptr, size_t size)
{
    bool there = !dev->backend->host_memory || hzp_env_on("HZP_POISON");
    return there ? HZP_OK : hzp_device_zero(dev, ptr, size);
}

void hzp_device_free(struct hzp_device *dev, enum hzp_mem where, void *ptr)
{
    if (ptr && where == HZP_MEM_DEVICE)
        hzp_account_remove(ptr);
    if (ptr)
        dev->backend->mem_free(dev, where, ptr);
}

int hzp_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret)
{
    struct hzp_lane *lane;
    HZP_TRY(dev->backend->lane_open(dev, use, &lane));
    lane->dev = dev;
    lane->use = use;
    if (!dev->backend->fence_record)
        lane->inlined = true;
    if (dev->trace)
        hzp_trace_lane(lane);
    *ret = lane;
    return HZP_OK;
}

const char *hzp_device_backend(const struct hzp_device *dev)
{
    return dev->backend->name;
}

bool hzp_device_host_memory(const struct hzp_device *dev)
{
    return dev->backend->host_memory;
}

bool hzp_device_computes(const struct hzp_device *dev)
{
    return dev->backend != &hzp_backend_sim;
}

bool hzp_device_queues(const struct hzp_device *dev)
{
    return dev->backend->fence_record != NULL;
}

bool hzp_device_has_shares(const struct hzp_device *dev)
{
    return dev->backend->lane_set_share != NULL;
}

bool hzp_device_times_ops(const struct hzp_device *dev)
{
    return dev->backend->lane_time != NULL;
}

size_t hzp_lane_bytes(struct hzp_device *dev, enum hzp_bound use)
{
    return dev->backend->lane_bytes ? dev->backend->lane_bytes(dev, use) : 0;
}

void hzp_lane_close(struct hzp_lane *lane)
{
    if (lane)
        lane->dev->backend->lane_close(lane);
}

#ifdef HZP_DEBUG
/* HZP_VALIDATE=0 turns validation off, to measure with a build that has tests. */
static bool validates(void)
{
    static atomic_int on = -1;
    int now = atomic_load_explicit(&on, memory_order_relaxed);
    if (now < 0) {
        const char *text = getenv("HZP_VALIDATE");
        now = !text || strcmp(text, "0") != 0;
        atomic_store_explicit(&on, now, memory_order_relaxed);
    }
    return now;
}
#endif

int hzp_lane_issue(struct hzp_lane *lane, enum hzp_op op, const void *args)
{
    hzp_assert_engine_thread();
#ifdef HZP_DEBUG
    const char *broken = validates() ? hzp_op_validate(op, args) : NULL;
    if (broken) {
        hzp_log(HZP_LOG_ERROR, "device", "invalid op: %s", broken);
        HZP_ASSERT(!"a valid op");
    }
#endif
    struct hzp_trace *trace = lane->dev->trace;
    uint64_t begin_ns = trace ? hzp_device_now_ns(lane->dev) : 0;
    int r = lane->dev->op[op](lane, args);
    return trace ? hzp_trace_op(lane, op, args, begin_ns, r) : r;
}

int hzp_lane_copy(struct hzp_lane *lane, void *dst, const void *src, size_t size)
{
    hzp_assert_engine_thread();
    const struct hzp_backend *backend = lane->dev->backend;
    if (size == 0)
        return HZP_OK;
    uint64_t begin_ns = lane->dev->trace ? hzp_device_now_ns(lane->dev) : 0;
    if (backend->copy)
        HZP_TRY(backend->copy(lane, dst, src, size));
    else
        memmove(dst, src, size);
    return lane->dev->trace ? hzp_trace_copy(lane, size, begin_ns) : HZP_OK;
}

int hzp_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence)
{
    struct front_fence *f = (struct front_fence *)fence;
    HZP_DEBUG_ASSERT(f->dev == lane->dev);
    return f->inner ? lane->dev->backend->lane_wait(lane, f->inner) : HZP_OK;
}

void hzp_lane_limit(struct hzp_lane *lane, int cores)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(cores >= 0);
    lane->most = (int16_t)HZP_MIN(cores, INT16_MAX);
}

int hzp_lane_set_share(struct hzp_lane *lane, int cores)
{
    const struct hzp_backend *backend = lane->dev->backend;
    HZP_DEBUG_ASSERT(cores >= 0);
    return backend->lane_set_share ? backend->lane_set_share(lane, cores) : HZP_OK;
}

int hzp_lane_time(struct hzp_lane *lane, struct hzp_span *span)
{
    const struct hzp_backend *backend = lane->dev->backend;
    return backend->lane_time ? backend->lane_time(lane, span) : HZP_EUNSUP;
}

void hzp_device_prepare_shares(struct hzp_device *dev, const int *cores, int lanes)
{
    HZP_ASSERT(lanes >= 0 && lanes <= HZP_GRAPH_LANES_MAX);
    if (dev->backend->shares_prepare && lanes > 0)
        dev->backend->shares_prepare(dev, cores, lanes);
}

size_t hzp_device_bytes_free(struct hzp_device *dev)
{
    return dev->backend->bytes_free ? dev->backend->bytes_free(dev) : 0;
}

int hzp_device_prepare_times(struct hzp_device *dev, int timings)
{
    HZP_ASSERT(timings >= 0);
    return dev->backend->times_prepare ? dev->backend->times_prepare(dev, timings) : HZP_OK;
}

void hzp_device_prepare_attention(struct hzp_device *dev, const struct hzp_attention_use *use)
{
    if (dev->backend->attention_prepare && use->rows > 0)
        dev->backend->attention_prepare(dev, use);
}

void hzp_device_steady(struct hzp_device *dev)
{
    if (dev->backend->steady)
        dev->backend->steady(dev);
}

bool hzp_device_projects(const struct hzp_device *dev, const struct hzp_project_args *args)
{
    return dev->backend->projects && dev->backend->projects(dev, args);
}

bool hzp_device_same_rows(const struct hzp_device *dev)
{
    return dev->same_rows;
}

bool hzp_device_has_codes(const struct hzp_device *dev)
{
    return dev->backend->has_codes && dev->backend->has_codes(dev);
}

bool hzp_device_has_graphs(const struct hzp_device *dev)
{
    return dev->backend->graph_begin && !dev->trace;
}

bool hzp_device_cuts_graphs(const struct hzp_device *dev)
{
    return dev->backend->graphs_cut && dev->backend->graphs_cut(dev);
}

bool hzp_graph_is_cut(struct hzp_lane *const *lane, int lanes)
{
    const struct hzp_backend *backend = lane[0]->dev->backend;
    return backend->graph_is_cut && backend->graph_is_cut(lane, lanes);
}

int hzp_graph_begin(struct hzp_lane *const *lane, int lanes)
{
    HZP_ASSERT(lanes >= 1 && lanes <= HZP_GRAPH_LANES_MAX);
    const struct hzp_backend *backend = lane[0]->dev->backend;
    return hzp_device_has_graphs(lane[0]->dev) ? backend->graph_begin(lane, lanes) : HZP_EUNSUP;
}

int hzp_graph_end(struct hzp_lane *lane, struct hzp_graph **ret)
{
    return lane->dev->backend->graph_end(lane, ret);
}

int hzp_graph_launch(struct hzp_graph *graph, struct hzp_lane *lane)
{
    return lane->dev->backend->graph_launch(graph, lane);
}

void hzp_graph_close(struct hzp_device *dev, struct hzp_graph *graph)
{
    if (graph)
        dev->backend->graph_close(graph);
}

int hzp_fence_open(struct hzp_device *dev, struct hzp_fence **ret)
{
    struct hzp_fence *inner = NULL;
    if (dev->backend->fence_open)
        HZP_TRY(dev->backend->fence_open(dev, &inner));
    struct front_fence *f = hzp_xcalloc(1, sizeof(*f));
    f->dev = dev;
    f->inner = inner;
    *ret = (struct hzp_fence *)f;
    return HZP_OK;
}

void hzp_fence_close(struct hzp_fence *fence)
{
    struct front_fence *f = (struct front_fence *)fence;
    if (f && f->inner)
        f->dev->backend->fence_close(f->inner);
    free(f);
}

int hzp_fence_record(struct hzp_fence *fence, struct hzp_lane *lane)
{
    struct front_fence *f = (struct front_fence *)fence;
    HZP_DEBUG_ASSERT(f->dev == lane->dev);
    return f->inner ? f->dev->backend->fence_record(f->inner, lane) : HZP_OK;
}

int hzp_fence_wait(struct hzp_fence *fence)
{
    struct front_fence *f = (struct front_fence *)fence;
    return f->inner ? f->dev->backend->fence_wait(f->inner) : HZP_OK;
}

int hzp_fence_poll(struct hzp_fence *fence)
{
    struct front_fence *f = (struct front_fence *)fence;
    return f->inner ? f->dev->backend->fence_poll(f->inner) : 1;
}

int hzp_device_copy(struct hzp_device *dev, void *dst, const void *src, size_t size)
{
    if (size == 0)
        return HZP_OK;
    if (dev->backend->host_copy)
        return dev->backend->host_copy(dev, dst, src, size);
    memmove(dst, src, size);
    return HZP_OK;
}

int hzp_device_view(struct hzp_device *dev, const void *ptr, size_t size, const void **ret,
                    void **ret_owned)
{
    *ret = *ret_owned = NULL;
    if (!dev->backend->host_copy || !ptr) {
        *ret = ptr;
        return HZP_OK;
    }
    void *copy = malloc(HZP_MAX(size, (size_t)1));
    if (!copy)
        return HZP_ENOMEM;
    int r = hzp_device_copy(dev, copy, ptr, size);
    if (r < 0) {
        free(copy);
        return r;
    }
    *ret = *ret_owned = copy;
    return HZP_OK;
}

uint64_t hzp_device_now_ns(struct hzp_device *dev)
{
    return dev->backend->now_ns ? dev->backend->now_ns(dev) : hzp_now_ns();
}
