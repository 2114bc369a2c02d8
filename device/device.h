/* SPDX-License-Identifier: Apache-2.0 */
/* device/device.h - the interface for computing: devices, lanes, fences and graphs.
 *
 * Backends: ref (plain C, the specification), cpu, cuda, sim (no arithmetic, virtual clock);
 * device/backend.h is the interface of a backend.  Callers use hzp_device_*, hzp_lane_* and
 * hzp_fence_*; those check arguments once (debug builds: every op through hzp_op_validate), so a
 * backend may assume valid arguments.
 *
 * A lane is an ordered queue with a share of the device's cores (SMs); lanes run in parallel. At
 * issue, an op's arguments are copied, or the op has ended when issue returns; the memory its
 * pointers refer to must stay valid until the op has run.
 *
 * Thread: engine.  A device belongs to one thread for life.
 */
#pragma once

#include "base/err.h"
#include "device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hzp_device;
struct hzp_backend; /* device/backend.h, for backends */
struct hzp_fence;   /* a point in a lane */
struct hzp_graph;   /* ops captured from lanes, for repeated launches */

/* When an op ran, on the device's clock. */
struct hzp_span {
    uint64_t begin_ns, end_ns;
};

enum hzp_mem { HZP_MEM_DEVICE, HZP_MEM_HOST }; /* HOST: pinned if the device supports that */

typedef int hzp_op_fn(struct hzp_lane *lane, const void *args);

struct hzp_device_config {
    /* "ref", "cpu", "cuda", "sim"; NULL: the first of cuda, cpu that opens; "cuda:1" also sets the
     * ordinal */
    const char *name;
    int ordinal;       /* which of several devices */
    int threads;       /* CPU: worker threads; 0: as many as the process may use */
    const char *level; /* CPU: highest instruction set, "base", "avx2", "avx512"; NULL: the best */
    bool same_rows;    /* hzp_device_same_rows is to hold */
};

/* The first member of every backend's own device struct. */
struct hzp_device {
    const struct hzp_backend *backend;
    hzp_op_fn *op[HZP_OP_COUNT];     /* filled by open, then fixed; no NULLs */
    size_t mem_total;                /* bytes that one memory plan may use */
    int threads;                     /* number of cores: threads, SMs */
    char label[96];                  /* "AMD EPYC, 2 threads, avx512" */
    bool same_rows;                  /* hzp_device_same_rows */
    struct hzp_fallbacks *fallbacks; /* device/fallback.h; NULL while it is opened or closed */
    struct hzp_trace *trace;         /* device/trace.h; NULL: none */
};

/* The first member of every backend's own lane struct. */
struct hzp_lane {
    struct hzp_device *dev;
    enum hzp_bound use;
    bool inlined; /* currently: its ops end before issue returns */
    int16_t most; /* cores (SMs) that its next ops use at most: hzp_lane_limit; 0: all it has */
    int number;   /* in a trace */
};

/* HZP_EUNSUP: not compiled in, or the hardware is missing; HZP_EINVAL: no such backend. */
int hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                    struct hzp_err_text *reterr);
void hzp_device_close(struct hzp_device *dev); /* NULL: no effect */

/* ---- what a device can do; constant while it is open, any thread ---- */

/* "ref", "cpu", "cuda", "sim". */
const char *hzp_device_backend(const struct hzp_device *dev);

/* Device memory is host memory: the host may read and write it in place. */
bool hzp_device_host_memory(const struct hzp_device *dev);

/* Ops compute.  False: only their durations are simulated, and device memory holds no values. */
bool hzp_device_computes(const struct hzp_device *dev);

/* Ops may still be running when their issue returns.  False: a fence has passed as soon as it is
 * recorded, and the host's clock around an issue times its op. */
bool hzp_device_queues(const struct hzp_device *dev);

/* A lane can be given a share of the cores: hzp_lane_set_share has an effect. */
bool hzp_device_has_shares(const struct hzp_device *dev);

/* Single ops can be timed: hzp_lane_time works. */
bool hzp_device_times_ops(const struct hzp_device *dev);

/* Allocates size bytes aligned to 512, contents undefined (NaN with HZP_POISON=1).  Only at start:
 * no device memory is allocated once the loop runs.  HZP_ENOMEM. */
int hzp_device_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret);
void hzp_device_free(struct hzp_device *dev, enum hzp_mem where, void *ptr);

/* Zeroes device memory, size a multiple of 4, with the device's own op, and waits.  HZP_ENOMEM,
 * HZP_EDEVICE. */
int hzp_device_zero(struct hzp_device *dev, void *ptr, size_t size);

/* If device memory is host memory: forces the operating system to back the memory now instead of at
 * first write. It is then 0, or with HZP_POISON=1 still NaN.  Otherwise no effect. */
int hzp_device_touch(struct hzp_device *dev, void *ptr, size_t size);

/* Allocates all memory that the lane's ops will need besides their operands: no op allocates.
 * HZP_ENOMEM. */
int hzp_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret);
void hzp_lane_close(struct hzp_lane *lane);

/* For the memory plan: bytes of device memory that an open lane of this use holds. */
size_t hzp_lane_bytes(struct hzp_device *dev, enum hzp_bound use);
int hzp_lane_copy(struct hzp_lane *lane, void *dst, const void *src, size_t size);
int hzp_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence);

/* Gives the lane `cores` cores (SMs) of its own; it then runs in parallel with the other lanes that
 * have a share. 0, the initial state: it may use the whole device, and if the host computes, its
 * ops end before issue returns.  The lane's later ops run behind its earlier ones; the host may
 * wait for those: call it between steps.  On a device without shares, or with one core, it has no
 * effect.  HZP_ENOMEM. */
int hzp_lane_set_share(struct hzp_lane *lane, int cores);

/* The ops issued on the lane from here on use at most so many of its cores (SMs); 0, the initial
 * state: all. A CPU's shares may sum to more than the cores: the first lane has them from the
 * front, others from the back, so limits on what runs at the same time keep lanes apart. On CUDA it
 * limits what HZP_CUDA_LANES=grid limits. It waits for nothing. On a CPU it changes no results; on
 * CUDA a library may choose another algorithm for fewer SMs, which rounds otherwise. */
void hzp_lane_limit(struct hzp_lane *lane, int cores);

/* Creates in advance what lanes with these shares in parallel will need (hzp_lane_set_share), if
 * that takes time.  Call it at the start; at most HZP_GRAPH_LANES_MAX lanes. */
void hzp_device_prepare_shares(struct hzp_device *dev, const int *cores, int lanes);

/* Bytes of the device's memory that are free now; 0: the driver takes none that was not asked for.
 * What the driver takes for a partition of the SMs or for a graph is the difference between
 * before and after; it takes whole blocks, so several are measured together. */
size_t hzp_device_bytes_free(struct hzp_device *dev);

/* Creates in advance what is needed to time this many ops whose fences were not yet waited for.
 * Call it at the start; more is created when needed.  HZP_EDEVICE. */
int hzp_device_prepare_times(struct hzp_device *dev, int timings);

/* Whether the device has a kernel for this op that is faster than norm, product and SwiGLU one
 * after another.  Depends on shapes, types, strides and the alignment of pointers. */
bool hzp_device_projects(const struct hzp_device *dev, const struct hzp_project_args *args);

/* The products of a row have the same bits whatever rows share the op, for all types but E4M3: no
 * kernel is chosen by the number of rows.  attn_prefill and attn_packed are the same arithmetic on
 * every device that says so; attn_decode need not be. */
bool hzp_device_same_rows(const struct hzp_device *dev);

/* Whether the device has a kernel for the op codes. */
bool hzp_device_has_codes(const struct hzp_device *dev);

/* Says what attention a training will compute, so that a device with several ways chooses among
 * them.  Call it at the start before the memory plan is made, because a lane opened later may need
 * more (hzp_lane_bytes); it takes memory and gives it back. */
struct hzp_attention_use {
    struct hzp_heads heads;
    int32_t rows; /* most rows of a micro-batch, BF16 */
    float scale;
    bool repeats; /* results must be the same bits each time */
};
void hzp_device_prepare_attention(struct hzp_device *dev, const struct hzp_attention_use *use);

/* Bytes of the device's memory that no plan gives out; 0: none, or not known. */
struct hzp_overhead {
    size_t context; /* what the driver took for this process's context */
    size_t loading; /* left for code that it and the libraries load later, not in mem_total */
};
void hzp_device_overhead(struct hzp_device *dev, struct hzp_overhead *ret);

/* Marks the end of the start: from here on a request may be waiting for any op.  Ops no longer
 * spend time on choosing algorithms or on anything else that only pays off later. */
void hzp_device_steady(struct hzp_device *dev);

/* The next op or copy issued on the lane stores its times in *span. *span must stay valid until a
 * fence recorded behind that op has passed, and may be read then.  HZP_EUNSUP: the device does not
 * time single ops. */
int hzp_lane_time(struct hzp_lane *lane, struct hzp_span *span);

/* Captures a graph. Between begin and end the lanes run nothing: the ops issued on them (ops only)
 * are recorded as a graph, together with the lanes' waits for fences recorded on one another in
 * between, which order it.  Launch runs the graph as if its ops had been issued then: pointers keep
 * their captured values, and the memory they refer to is read when the lanes reach the ops. The
 * graph runs behind everything issued before on any of its lanes, and before everything issued
 * later on any of them.  Launch it on lane[0], with each lane's share as it was at capture; close
 * it before those lanes.  begin and end (of lane[0]) come in pairs, even if an op in between
 * failed. HZP_EUNSUP: the device has no graphs, or cannot capture these ops; the lanes are as
 * before. lanes: 1 .. HZP_GRAPH_LANES_MAX. */
enum { HZP_GRAPH_LANES_MAX = 8 };
bool hzp_device_has_graphs(const struct hzp_device *dev);

/* Whether a graph captured from several lanes is several graphs to the driver: one for each run of
 * a lane's ops between its waits for fences and its records of them.  This matters only to those
 * who count the driver's memory.  The answer may change when the first shares are applied, and is
 * for any lanes; hzp_graph_is_cut answers it for these lanes, with the shares that they have. */
bool hzp_device_cuts_graphs(const struct hzp_device *dev);
bool hzp_graph_is_cut(struct hzp_lane *const *lane, int lanes);
int hzp_graph_begin(struct hzp_lane *const *lane, int lanes);
int hzp_graph_end(struct hzp_lane *lane, struct hzp_graph **ret);
int hzp_graph_launch(struct hzp_graph *graph, struct hzp_lane *lane);
void hzp_graph_close(struct hzp_device *dev, struct hzp_graph *graph); /* NULL: no effect */

int hzp_fence_open(struct hzp_device *dev, struct hzp_fence **ret);
void hzp_fence_close(struct hzp_fence *fence);
int hzp_fence_record(struct hzp_fence *fence, struct hzp_lane *lane);
int hzp_fence_wait(struct hzp_fence *fence);

/* 1: it has passed; 0: not yet; < 0: the device failed.  Never waits, and makes no progress where
 * the host itself runs ops while it waits (cpu). */
int hzp_fence_poll(struct hzp_fence *fence);

/* Copies between or within host and device memory, independent of the lanes; it has ended when it
 * returns.  Any thread: the caller makes sure that nothing writes to that memory meanwhile (files
 * of held versions, pages of the prefix cache). */
int hzp_device_copy(struct hzp_device *dev, void *dst, const void *src, size_t size);

/* The contents of device memory, readable by the host: ptr itself with *ret_owned NULL if device
 * memory is host memory, else a copy in *ret_owned, which the caller frees.  HZP_ENOMEM: no memory
 * for the copy; HZP_EDEVICE: the device failed; *ret and *ret_owned are then NULL.  Any thread. */
int hzp_device_view(struct hzp_device *dev, const void *ptr, size_t size, const void **ret,
                    void **ret_owned);

uint64_t hzp_device_now_ns(struct hzp_device *dev);

#ifdef __cplusplus
}
#endif
