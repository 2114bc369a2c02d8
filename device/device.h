/* SPDX-License-Identifier: Apache-2.0 */
/* device/device.h - what computes: devices, lanes, fences and graphs, as their users see them.
 *
 * Backends: ref (plain C, the specification), cpu, cuda, sim (no arithmetic, virtual clock), and
 * trace, which wraps any other; what one provides is in device/backend.h.  Callers use
 * hzp_device_*, hzp_lane_* and hzp_fence_*; those check arguments once (debug builds: every op
 * through hzp_op_validate), so a backend may assume that what reaches it is valid.
 *
 * A lane is an ordered queue with a share of the device's cores (SMs); lanes run side by side.
 * An op's arguments are copied at issue or the op has ended when issue returns; what its pointers
 * point to must live until the lane has passed it.
 *
 * Thread: engine.  A device belongs to one thread for life.
 */
#ifndef HZP_DEVICE_DEVICE_H
#define HZP_DEVICE_DEVICE_H

#include "base/err.h"
#include "device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hzp_device;
struct hzp_backend; /* device/backend.h, for backends */
struct hzp_fence;   /* a point in a lane */
struct hzp_graph;   /* ops captured from lanes, to be launched again together */

/* When an op ran, on the device's clock. */
struct hzp_span {
    uint64_t begin_ns, end_ns;
};

enum hzp_mem { HZP_MEM_DEVICE, HZP_MEM_HOST }; /* HOST: pinned where that exists */

typedef int hzp_op_fn(struct hzp_lane *lane, const void *args);

struct hzp_device_config {
    const char
        *name;   /* "ref", "cpu", "cuda", "sim"; NULL: the first of cuda, cpu that opens; "cuda:1"
                       * says the ordinal too */
    int ordinal; /* which of several */
    int threads; /* CPU: worker threads; 0: as many as the process may use */
    const char *level; /* CPU: highest instruction set, "base", "avx2", "avx512"; NULL: the best */
};

/* The first member of every backend's own device struct. */
struct hzp_device {
    const struct hzp_backend *backend;
    hzp_op_fn *op[HZP_OP_COUNT]; /* filled by open, then fixed; no NULLs */
    size_t mem_total;            /* bytes; what one memory plan may use */
    int threads;                 /* its cores: threads, SMs */
    char label[96];              /* "AMD EPYC, 2 threads, avx512" */
};

/* The first member of every backend's own lane struct. */
struct hzp_lane {
    struct hzp_device *dev;
    enum hzp_bound use;
    bool inlined; /* now: its ops end before issue returns */
};

/* HZP_EUNSUP: not compiled in, or no such hardware; HZP_EINVAL: no such backend. */
int hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                    struct hzp_err_text *reterr);
void hzp_device_close(struct hzp_device *dev); /* NULL: no effect */

/* ---- what a device can do; constant while it is open, any thread ---- */

/* "ref", "cpu", "cuda", "sim". */
const char *hzp_device_backend(const struct hzp_device *dev);

/* Device memory is the host's: the host may read and write it in place. */
bool hzp_device_host_memory(const struct hzp_device *dev);

/* Ops compute.  False: only their durations are simulated, and device memory holds no values. */
bool hzp_device_computes(const struct hzp_device *dev);

/* Ops may still be running when their issue returns.  False: every fence has passed once it is
 * recorded, and the host's clock around an issue times its op. */
bool hzp_device_queues(const struct hzp_device *dev);

/* A lane can be given a share of the cores: hzp_lane_set_share has an effect. */
bool hzp_device_has_shares(const struct hzp_device *dev);

/* Single ops can be timed: hzp_lane_time works. */
bool hzp_device_times_ops(const struct hzp_device *dev);

/* size bytes aligned to 4096, contents undefined (NaN with HZP_POISON=1).  Only at start: nothing
 * on a device is allocated once the loop runs.  HZP_ENOMEM. */
int hzp_device_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret);
void hzp_device_free(struct hzp_device *dev, enum hzp_mem where, void *ptr);

/* Zeroes device memory, size a multiple of 4, by the device's own op, and waits.  HZP_ENOMEM,
 * HZP_EDEVICE. */
int hzp_device_zero(struct hzp_device *dev, void *ptr, size_t size);

/* Where device memory is the host's, the system backs it page by page when it is first written;
 * here it has to now.  It is then 0, and with HZP_POISON=1 still NaN.  Elsewhere: no effect. */
int hzp_device_touch(struct hzp_device *dev, void *ptr, size_t size);

/* Takes whatever memory the lane's ops will need beside their operands: no op allocates.
 * HZP_ENOMEM. */
int hzp_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret);
void hzp_lane_close(struct hzp_lane *lane);

/* Bytes of device memory that an open lane of this use holds: for the memory plan. */
size_t hzp_lane_bytes(struct hzp_device *dev, enum hzp_bound use);
int hzp_lane_copy(struct hzp_lane *lane, void *dst, const void *src, size_t size);
int hzp_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence);

/* Gives the lane so many cores (SMs) of its own; it then runs beside the other lanes with a share.
 * 0, as opened: it may use the whole device, and where the host computes its ops end before issue
 * returns.  If anything changes, waits until every lane is idle: for use between steps.  A device
 * without shares, or with one core, changes nothing.  HZP_ENOMEM. */
int hzp_lane_set_share(struct hzp_lane *lane, int units);

/* Makes now what lanes with these shares side by side will need (hzp_lane_set_share), if that takes
 * time.  For the start; at most HZP_GRAPH_LANES_MAX lanes. */
void hzp_device_prepare_shares(struct hzp_device *dev, const int *units, int lanes);

/* Makes now what it takes to time so many ops whose fences were not yet waited for.  For the
 * start; more is made when it is needed.  HZP_EDEVICE. */
int hzp_device_prepare_times(struct hzp_device *dev, int timings);

/* The start has ended: from here on a request may be waiting for any op.  Ops no longer spend time
 * on choosing algorithms or on anything else that only pays off later. */
void hzp_device_steady(struct hzp_device *dev);

/* The next op or copy issued on the lane leaves its times in *span, which must live, and may be
 * read, as a fence recorded behind it says.  HZP_EUNSUP: the device does not time single ops. */
int hzp_lane_time(struct hzp_lane *lane, struct hzp_span *span);

/* Between begin and end the lanes run nothing: what is issued on them, ops alone, is kept as a
 * graph instead, and so are their waits for fences recorded on one another meanwhile, which order
 * it.  Launch runs it as if it had been issued then: pointers are as they were, what they point to
 * is as it is when the lanes' turn comes; all of it runs behind what any of the lanes has had
 * before, and before what any has after.  Launch it on lane[0], each lane with the share it had;
 * close it before those lanes.  begin and end (of lane[0]) come in pairs, whatever was issued
 * between them failed or not; HZP_EUNSUP: no graphs here, or not of this; the lanes are as before.
 * 1 .. HZP_GRAPH_LANES_MAX. */
enum { HZP_GRAPH_LANES_MAX = 8 };
bool hzp_device_has_graphs(const struct hzp_device *dev);
int hzp_graph_begin(struct hzp_lane *const *lane, int lanes);
int hzp_graph_end(struct hzp_lane *lane, struct hzp_graph **ret);
int hzp_graph_launch(struct hzp_graph *graph, struct hzp_lane *lane);
void hzp_graph_close(struct hzp_device *dev, struct hzp_graph *graph); /* NULL: no effect */

int hzp_fence_open(struct hzp_device *dev, struct hzp_fence **ret);
void hzp_fence_close(struct hzp_fence *fence);
int hzp_fence_record(struct hzp_fence *fence, struct hzp_lane *lane);
int hzp_fence_wait(struct hzp_fence *fence);

/* Copies between host and device memory, beside whatever the lanes do; ends before it returns.  Any
 * thread: the caller sees to it that nothing writes there meanwhile (files of held versions). */
int hzp_device_copy(struct hzp_device *dev, void *dst, const void *src, size_t size);

/* The contents of device memory, readable by the host: ptr itself and *ret_owned NULL where device
 * memory is the host's, else a copy for the caller to free.  NULL: no memory, or the device failed.
 * Any thread. */
const void *hzp_device_view(struct hzp_device *dev, const void *ptr, size_t size, void **ret_owned);

uint64_t hzp_device_now_ns(struct hzp_device *dev);

#ifdef __cplusplus
}
#endif
#endif
