/* SPDX-License-Identifier: Apache-2.0 */
/* device/backend.h - the interface of a backend: a table of functions behind device/device.h.
 *
 * Included by device/ only; other folders call hzp_device_*.  A function marked optional may be
 * NULL; its comment says what that means.
 *
 * Thread: as device/device.h says for the function in front of it; engine where it says nothing.
 */
#pragma once

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hzp_overhead;
struct hzp_about;

struct hzp_backend {
    const char *name;
    bool host_memory; /* device memory is host memory: the host reads and writes it in place */

    int (*open)(const struct hzp_device_config *config, struct hzp_device **ret,
                struct hzp_err_text *reterr);
    void (*close)(struct hzp_device *dev);

    int (*mem_alloc)(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret);
    void (*mem_free)(struct hzp_device *dev, enum hzp_mem where, void *ptr);

    /* (optional) NULL: memcpy in the lane's order, that is, at once. */
    int (*copy)(struct hzp_lane *lane, void *dst, const void *src, size_t size);

    /* (optional) NULL: memcpy.  Any thread; the copy has ended when it returns. */
    int (*host_copy)(struct hzp_device *dev, void *dst, const void *src, size_t size);

    int (*lane_open)(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret);

    /* (optional) NULL: lanes use no device memory. */
    size_t (*lane_bytes)(struct hzp_device *dev, enum hzp_bound use);
    void (*lane_close)(struct hzp_lane *lane);

    /* (optional, all six together) NULL: ops end before issue returns, so every fence has
     * passed. */
    int (*lane_wait)(struct hzp_lane *lane, struct hzp_fence *fence); /* the lane waits */
    int (*fence_open)(struct hzp_device *dev, struct hzp_fence **ret);
    void (*fence_close)(struct hzp_fence *fence);
    int (*fence_record)(struct hzp_fence *fence, struct hzp_lane *lane);
    int (*fence_wait)(struct hzp_fence *fence); /* the host waits */
    int (*fence_poll)(struct hzp_fence *fence); /* 1: passed; 0: not yet */

    /* (optional) NULL: lanes have no shares. */
    int (*lane_set_share)(struct hzp_lane *lane, int cores);

    /* (optional) NULL: nothing to prepare. */
    void (*shares_prepare)(struct hzp_device *dev, const int *cores, int lanes);

    /* (optional) NULL: the driver takes no memory that was not asked for. */
    size_t (*bytes_free)(struct hzp_device *dev);
    /* (optional) NULL: none (device/device.h). */
    void (*overhead)(struct hzp_device *dev, struct hzp_overhead *ret);

    /* (optional) NULL: nothing to prepare. */
    void (*attention_prepare)(struct hzp_device *dev, const struct hzp_attention_use *use);

    /* (optional) NULL: steady changes nothing. */
    void (*steady)(struct hzp_device *dev);

    /* (optional) NULL: nothing to prepare for timing. */
    int (*times_prepare)(struct hzp_device *dev, int timings);

    /* (optional) NULL: false of every one. */
    bool (*projects)(const struct hzp_device *dev, const struct hzp_project_args *args);

    /* (optional) NULL: false. */
    bool (*has_codes)(const struct hzp_device *dev);

    /* (optional) NULL: single ops are not timed. */
    int (*lane_time)(struct hzp_lane *lane, struct hzp_span *span);

    /* (optional, all four together) NULL: the device has no graphs. */
    int (*graph_begin)(struct hzp_lane *const *lane, int lanes);
    int (*graph_end)(struct hzp_lane *lane, struct hzp_graph **ret);
    int (*graph_launch)(struct hzp_graph *graph, struct hzp_lane *lane);
    void (*graph_close)(struct hzp_graph *graph);

    /* (optional, both together) NULL: false. */
    bool (*graphs_cut)(const struct hzp_device *dev);
    bool (*graph_is_cut)(struct hzp_lane *const *lane, int lanes);

    /* (optional) NULL: it has no facts to report (device/about.h).  Opens no device; any thread. */
    void (*about)(struct hzp_about *ret);

    /* (optional) NULL: "".  The device's id, as in about. */
    const char *(*id)(const struct hzp_device *dev);

    /* (optional) NULL: the host's monotonic clock. */
    uint64_t (*now_ns)(struct hzp_device *dev);
};

/* The backends, in order of preference; one that is not compiled in is a stub whose open fails with
 * that message. */
extern const struct hzp_backend hzp_backend_cuda, hzp_backend_cpu, hzp_backend_ref, hzp_backend_sim;

/* What device/fallback.h counts; owned by the device that hzp_device_open returned. */
struct hzp_fallbacks *hzp_fallbacks_create(const char *backend, int ordinal, const char *id);
void hzp_fallbacks_destroy(struct hzp_fallbacks *fallbacks); /* NULL: no effect */

/* Whether a variable of the environment is set, and not 0. */
bool hzp_env_on(const char *name);

/* What the front end tells the trace of a device that has one (device/trace.h): a lane was opened;
 * an op was issued at begin_ns and gave r; a copy was.  The latter two return the outcome. */
void hzp_trace_lane(struct hzp_lane *lane);
int hzp_trace_op(struct hzp_lane *lane, enum hzp_op op, const void *args, uint64_t begin_ns, int r);
int hzp_trace_copy(struct hzp_lane *lane, size_t size, uint64_t begin_ns);

/* Fills a table with the reference implementation of every op; a host backend then replaces
 * some. */
void hzp_ref_fill(hzp_op_fn *op[HZP_OP_COUNT]);

#ifdef __cplusplus
}
#endif
