/* SPDX-License-Identifier: Apache-2.0 */
/* device/trace.c - a device that wraps another device.
 *
 * Fences are the inner device's own (as its front end returns them), passed through; lanes are
 * wrapped, because an op finds its device through its lane. */
#include "device/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "base/arena.h"
#include "base/chrome.h"
#include "base/log.h"
#include "device/backend.h"
#include "device/bf16.h"
#include "device/operand.h"

enum { NANS_LOGGED = 20 };

struct trace_device {
    struct hzp_device base;
    struct hzp_backend backend; /* the inner one's name with this file's functions */
    struct hzp_device *inner;
    FILE *file; /* NULL: no trace */
    struct hzp_chrome chrome;
    bool wait, check;
    uint64_t begin_ns;
    int lanes, nans;
    void *staging; /* host memory for the NaN check */
    size_t staging_size;
};

struct trace_lane {
    struct hzp_lane base;
    struct hzp_lane *inner;
    struct hzp_fence *fence;
    int id;
};

static bool env_on(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

bool hzp_trace_wanted(void)
{
    return env_on("HZP_TRACE") || env_on("HZP_SYNC") || env_on("HZP_CHECK");
}

static struct trace_device *device_of(struct hzp_lane *lane)
{
    return (struct trace_device *)lane->dev;
}

static int lane_finish(struct trace_lane *lane)
{
    HZP_TRY(hzp_fence_record(lane->fence, lane->inner));
    return hzp_fence_wait(lane->fence);
}

static void event(struct trace_device *dev, const struct trace_lane *lane, const char *name,
                  uint64_t begin_ns, struct hzp_cost cost)
{
    uint64_t end_ns = hzp_device_now_ns(dev->inner);
    char args[80];
    if (!dev->file)
        return;
    snprintf(args, sizeof(args), "\"bytes\":%llu,\"flops\":%llu", (unsigned long long)cost.bytes,
             (unsigned long long)cost.flops);
    hzp_chrome_span(&dev->chrome,
                    &(struct hzp_chrome_span){.name = name,
                                              .tid = lane->id,
                                              .begin_us = (double)(begin_ns - dev->begin_ns) / 1e3,
                                              .length_us = (double)(end_ns - begin_ns) / 1e3,
                                              .args = args});
}

/* The index of the first NaN of a matrix that was copied to host memory; -1: none. */
static int64_t nan_find(const struct hzp_mat *mat, const void *host)
{
    for (int64_t r = 0; r < mat->rows; r++)
        for (int64_t c = 0; c < mat->cols; c++) {
            int64_t i = r * mat->stride + c;
            float x = mat->type == HZP_BF16 ? hzp_bf16_to_f32(((const uint16_t *)host)[i])
                                            : ((const float *)host)[i];
            if (isnan(x))
                return i;
        }
    return -1;
}

static int staging_grow(struct trace_device *dev, size_t size)
{
    if (size <= dev->staging_size)
        return HZP_OK;
    hzp_device_free(dev->inner, HZP_MEM_HOST, dev->staging);
    dev->staging = NULL;
    dev->staging_size = 0;
    HZP_TRY(hzp_device_alloc(dev->inner, HZP_MEM_HOST, size, &dev->staging));
    dev->staging_size = size;
    return HZP_OK;
}

/* Scratch may contain NaN, and a fill with NaN is deliberate. */
static bool nan_may_be(enum hzp_op op, const void *args)
{
    return op == HZP_OP_sample ||
           (op == HZP_OP_fill && isnan(((const struct hzp_fill_args *)args)->value));
}

static int nan_check(struct trace_lane *lane, enum hzp_op op, const void *args)
{
    struct trace_device *dev = device_of(&lane->base);
    struct hzp_operand operand[HZP_ACCESS_MAX];
    int count = hzp_op_operands(op, args, operand);
    for (int i = 0; i < count && !nan_may_be(op, args); i++) {
        const struct hzp_mat *mat = operand[i].mat;
        if (!mat || !operand[i].writes || hzp_operand_empty(&operand[i]) ||
            (mat->type != HZP_F32 && mat->type != HZP_BF16))
            continue;
        size_t size = hzp_operand_end(&operand[i]) - operand[i].ptr;
        HZP_TRY(staging_grow(dev, size));
        HZP_TRY(hzp_lane_copy(lane->inner, dev->staging, mat->ptr, size));
        HZP_TRY(lane_finish(lane));
        int64_t at = nan_find(mat, dev->staging);
        if (at >= 0 && dev->nans++ < NANS_LOGGED)
            hzp_log(HZP_LOG_ERROR, "device", "nan op=%s output=%s row=%d col=%d of=%dx%d",
                    hzp_op_name(op), operand[i].name, (int)(at / mat->stride),
                    (int)(at % mat->stride), mat->rows, mat->cols);
    }
    return HZP_OK;
}

static int trace_op(struct hzp_lane *base, enum hzp_op op, const void *args)
{
    struct trace_lane *lane = (struct trace_lane *)base;
    struct trace_device *dev = device_of(base);
    uint64_t begin_ns = hzp_device_now_ns(dev->inner);
    lane->inner->most = lane->base.most;
    int r = dev->inner->op[op](lane->inner, args);
    if (r >= 0 && dev->wait)
        r = lane_finish(lane);
    if (r < 0) {
        hzp_log(HZP_LOG_ERROR, "device", "failed op=%s code=%s", hzp_op_name(op), hzp_err_name(r));
        return r;
    }
    event(dev, lane, hzp_op_name(op), begin_ns, hzp_op_cost(op, args));
    return dev->check ? nan_check(lane, op, args) : HZP_OK;
}

#define X(name, class_)                                                                            \
    static int trace_##name(struct hzp_lane *lane, const void *args)                               \
    {                                                                                              \
        return trace_op(lane, HZP_OP_##name, args);                                                \
    }
HZP_OPS(X)
#undef X

static void trace_close(struct hzp_device *base)
{
    struct trace_device *dev = (struct trace_device *)base;
    if (dev->file) {
        hzp_chrome_end(&dev->chrome);
        fclose(dev->file);
    }
    hzp_device_free(dev->inner, HZP_MEM_HOST, dev->staging);
    dev->inner->fallbacks = NULL; /* shared with this device, which frees them */
    hzp_device_close(dev->inner);
    free(dev);
}

static int trace_mem_alloc(struct hzp_device *base, enum hzp_mem where, size_t size, void **ret)
{
    struct hzp_device *inner = ((struct trace_device *)base)->inner;
    return inner->backend->mem_alloc(inner, where, size, ret);
}

static void trace_mem_free(struct hzp_device *base, enum hzp_mem where, void *ptr)
{
    struct hzp_device *inner = ((struct trace_device *)base)->inner;
    inner->backend->mem_free(inner, where, ptr);
}

static int trace_host_copy(struct hzp_device *base, void *dst, const void *src, size_t size)
{
    return hzp_device_copy(((struct trace_device *)base)->inner, dst, src, size);
}

static int trace_copy(struct hzp_lane *base, void *dst, const void *src, size_t size)
{
    struct trace_lane *lane = (struct trace_lane *)base;
    struct trace_device *dev = device_of(base);
    uint64_t begin_ns = hzp_device_now_ns(dev->inner);
    HZP_TRY(hzp_lane_copy(lane->inner, dst, src, size));
    if (dev->wait)
        HZP_TRY(lane_finish(lane));
    event(dev, lane, "copy", begin_ns, (struct hzp_cost){2 * (uint64_t)size, 0});
    return HZP_OK;
}

static int trace_lane_open(struct hzp_device *base, enum hzp_bound use, struct hzp_lane **ret)
{
    static const char *const uses[] = {"compute", "memory", "network", "copy"};
    struct trace_device *dev = (struct trace_device *)base;
    struct trace_lane *lane = hzp_xcalloc(1, sizeof(*lane));
    int r;
    HZP_TRY_GOTO(hzp_lane_open(dev->inner, use, &lane->inner));
    HZP_TRY_GOTO(hzp_fence_open(dev->inner, &lane->fence));
    lane->id = dev->lanes++;
    lane->base.inlined = lane->inner->inlined;
    if (dev->file) {
        char text[32];
        snprintf(text, sizeof(text), "lane %d %s", lane->id, uses[use]);
        hzp_chrome_thread(&dev->chrome, 0, lane->id, text);
    }
    *ret = &lane->base;
    return HZP_OK;
out:
    hzp_lane_close(lane->inner);
    free(lane);
    return r;
}

static size_t trace_lane_bytes(struct hzp_device *base, enum hzp_bound use)
{
    return hzp_lane_bytes(((struct trace_device *)base)->inner, use);
}

static void trace_lane_close(struct hzp_lane *base)
{
    struct trace_lane *lane = (struct trace_lane *)base;
    hzp_fence_close(lane->fence);
    hzp_lane_close(lane->inner);
    free(lane);
}

static int trace_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence)
{
    return hzp_lane_wait(((struct trace_lane *)lane)->inner, fence);
}

static void trace_shares_prepare(struct hzp_device *base, const int *cores, int lanes)
{
    hzp_device_prepare_shares(((struct trace_device *)base)->inner, cores, lanes);
}

static void trace_overhead(struct hzp_device *base, struct hzp_overhead *ret)
{
    hzp_device_overhead(((struct trace_device *)base)->inner, ret);
}

static size_t trace_bytes_free(struct hzp_device *base)
{
    return hzp_device_bytes_free(((struct trace_device *)base)->inner);
}

static void trace_attention_prepare(struct hzp_device *base, const struct hzp_attention_use *use)
{
    hzp_device_prepare_attention(((struct trace_device *)base)->inner, use);
}

static void trace_steady(struct hzp_device *base)
{
    hzp_device_steady(((struct trace_device *)base)->inner);
}

static int trace_times_prepare(struct hzp_device *base, int timings)
{
    return hzp_device_prepare_times(((struct trace_device *)base)->inner, timings);
}

static bool trace_projects(const struct hzp_device *base, const struct hzp_project_args *args)
{
    return hzp_device_projects(((const struct trace_device *)base)->inner, args);
}

static bool trace_has_codes(const struct hzp_device *base)
{
    return hzp_device_has_codes(((const struct trace_device *)base)->inner);
}

static int trace_lane_set_share(struct hzp_lane *base, int cores)
{
    struct trace_lane *lane = (struct trace_lane *)base;
    int r = hzp_lane_set_share(lane->inner, cores);
    base->inlined = lane->inner->inlined;
    return r;
}

static int trace_lane_time(struct hzp_lane *lane, struct hzp_span *span)
{
    return hzp_lane_time(((struct trace_lane *)lane)->inner, span);
}

static int trace_fence_open(struct hzp_device *base, struct hzp_fence **ret)
{
    return hzp_fence_open(((struct trace_device *)base)->inner, ret);
}

static int trace_fence_record(struct hzp_fence *fence, struct hzp_lane *lane)
{
    return hzp_fence_record(fence, ((struct trace_lane *)lane)->inner);
}

static uint64_t trace_now_ns(struct hzp_device *base)
{
    return hzp_device_now_ns(((struct trace_device *)base)->inner);
}

static const struct hzp_backend functions = {
    .close = trace_close,
    .mem_alloc = trace_mem_alloc,
    .mem_free = trace_mem_free,
    .copy = trace_copy,
    .host_copy = trace_host_copy,
    .lane_open = trace_lane_open,
    .lane_bytes = trace_lane_bytes,
    .lane_close = trace_lane_close,
    .lane_wait = trace_lane_wait,
    .fence_open = trace_fence_open,
    .fence_close = hzp_fence_close,
    .fence_record = trace_fence_record,
    .fence_wait = hzp_fence_wait,
    .fence_poll = hzp_fence_poll,
    .lane_set_share = trace_lane_set_share,
    .shares_prepare = trace_shares_prepare,
    .bytes_free = trace_bytes_free,
    .overhead = trace_overhead,
    .attention_prepare = trace_attention_prepare,
    .steady = trace_steady,
    .times_prepare = trace_times_prepare,
    .projects = trace_projects,
    .has_codes = trace_has_codes,
    .lane_time = trace_lane_time,
    .now_ns = trace_now_ns,
};

/* Opens the trace file; a second device of the process writes to file.json.1, and so on. */
static FILE *file_open(char *path, size_t size)
{
    static int opened;
    snprintf(path, size, "%s", getenv("HZP_TRACE"));
    if (opened++)
        snprintf(path, size, "%s.%d", getenv("HZP_TRACE"), opened - 1);
    return fopen(path, "w");
}

int hzp_trace_open(struct hzp_device *inner, struct hzp_device **ret, struct hzp_err_text *reterr)
{
    FILE *file = NULL;
    const char *check = env_on("HZP_CHECK") ? getenv("HZP_CHECK") : NULL;
    if (check && strcmp(check, "nan") != 0)
        return hzp_fail_param(reterr, HZP_EINVAL, "HZP_CHECK", "HZP_CHECK=%s: not nan", check);
    if (env_on("HZP_TRACE")) {
        char path[4096];
        file = file_open(path, sizeof(path));
        if (!file)
            return hzp_fail_param(reterr, HZP_EIO, "HZP_TRACE", "%s: %s", path, strerror(errno));
    }

    struct trace_device *dev = hzp_xcalloc(1, sizeof(*dev));
    dev->base = *inner;
    dev->backend = functions;
    dev->backend.name = inner->backend->name;
    dev->backend.host_memory = inner->backend->host_memory;
    dev->base.backend = &dev->backend;
#define X(name, class_) dev->base.op[HZP_OP_##name] = trace_##name;
    HZP_OPS(X)
#undef X
    dev->inner = inner;
    dev->file = file;
    if (file)
        hzp_chrome_begin(&dev->chrome, file);
    dev->check = check;
    dev->wait = file || check || env_on("HZP_SYNC");
    dev->begin_ns = hzp_device_now_ns(inner);
    *ret = &dev->base;
    return HZP_OK;
}
