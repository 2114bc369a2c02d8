/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda.h - what the files of the CUDA backend share.
 *
 * A lane is a stream with memory of its own: scratch for kernels that need room between two
 * launches, a workspace for matrix products, and room for staged copies of what kernels would
 * otherwise read from the host again and again.  It is taken when the lane is opened, and the
 * memory plan counts it (hzp_lane_bytes): no op allocates anything.
 *
 * A lane with a share of the SMs has either a stream of a green context, which holds whatever its
 * kernels do, or its own stream and kernels that start no more blocks than fit (HZP_CUDA_LANES).
 *
 * What an op launches depends on its arguments' bytes, the lane's memory and its share: never on
 * what its pointers point to.  So a captured graph can be launched again while the host writes new
 * rows into the same arrays.
 *
 * The CUDA runtime is linked in; the driver is looked for when a device is opened, and
 * cuBLASLt is loaded then: a program built with CUDA starts on machines that have neither.
 *
 * Thread: engine.  C17 and CUDA C++17.
 */
#ifndef HZP_DEVICE_CUDA_CUDA_H
#define HZP_DEVICE_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hzp_cuda_products; /* matmul.c */
struct hzp_cuda_green;    /* green.c */
struct hzp_cuda_lane;

/* How a lane's share is enforced: not at all; by the blocks its kernels start; by green
 * contexts. */
enum hzp_cuda_lanes { HZP_CUDA_PLAIN, HZP_CUDA_GRID, HZP_CUDA_GREEN };

enum { HZP_CUDA_PINNED_MAX = 256, HZP_CUDA_STAGED_MAX = 32, HZP_CUDA_COUNTERS = 1 << 16 };

struct hzp_cuda_device {
    struct hzp_device base;
    int ordinal, sms, shared_max; /* shared_max: bytes of shared memory a block may have */
    bool failed;                  /* said once, then silent */
    uint64_t epoch;               /* counts the moments at which the host may have written */
    struct {
        char *ptr;
        size_t size;
    } pinned[HZP_CUDA_PINNED_MAX]; /* host memory handed out */
    int pinneds;
    struct hzp_cuda_products *products;
    enum hzp_cuda_lanes lanes;
    struct hzp_cuda_green *green;    /* NULL: no share was asked for yet */
    struct hzp_cuda_lane *lane_list; /* all open lanes */
    uint64_t lane_ids;
    bool capturing; /* a graph is being made: errors end the graph, not the device */
    struct hzp_cuda_lane *capture[HZP_GRAPH_LANES_MAX]; /* of these lanes, while it is */
    int captures;
    cudaEvent_t join; /* by which lanes of a graph follow one another */
    struct {          /* time.c: events that are not in use, and the device's clock */
        cudaEvent_t *spare;
        int spares, room;
        cudaEvent_t last;   /* the newest whose time is known; NULL: none */
        double last_ns;     /* since the first */
        double offset_ns;   /* host clock - that */
        uint64_t offset_at; /* host clock when it was measured */
    } clock;
};

struct hzp_cuda_timing {
    struct hzp_span *span;
    cudaEvent_t begin, end;
};

struct hzp_cuda_lane {
    struct hzp_lane base;
    struct hzp_cuda_lane *next;
    uint64_t id;
    cudaStream_t stream; /* where ops go: own, or a green context's */
    cudaStream_t own;
    int share;                      /* as asked for; 0: none */
    int limit;                      /* SMs its kernels may use; 0: all */
    bool ready;                     /* its stream is the one of its share */
    struct hzp_span *span;          /* of the next op; NULL: it is not timed */
    struct hzp_cuda_timing *timing; /* [timings] not yet read */
    int timings, timings_room;
    uint64_t timed; /* how many there were ever */
    void *space;    /* of the matrix products */
    size_t space_size;
    char *scratch;
    size_t scratch_size;
    int32_t *counter; /* [HZP_CUDA_COUNTERS], all 0 between launches */
    char *stage;
    size_t stage_size, stage_used;
    uint64_t stage_epoch;
    struct {
        const void *ptr;
        size_t size;
        void *copy;
    } staged[HZP_CUDA_STAGED_MAX];
    int stageds;
};

static inline struct hzp_cuda_lane *hzp_cuda_lane(struct hzp_lane *lane)
{
    return (struct hzp_cuda_lane *)lane;
}

static inline struct hzp_cuda_device *hzp_cuda_device(struct hzp_lane *lane)
{
    return (struct hzp_cuda_device *)lane->dev;
}

/* SMs that the lane's kernels may fill. */
static inline int hzp_cuda_sms(struct hzp_lane *lane)
{
    int limit = hzp_cuda_lane(lane)->limit;
    return limit ? limit : hzp_cuda_device(lane)->sms;
}

/* The lane's share holds only as far as its kernels start no more blocks than fit on its SMs. */
static inline bool hzp_cuda_by_grid(struct hzp_lane *lane)
{
    return hzp_cuda_lane(lane)->limit && hzp_cuda_device(lane)->lanes == HZP_CUDA_GRID;
}

/* HZP_OK, or HZP_EDEVICE with the text of the error logged once; HZP_EUNSUP while a graph is
 * made. */
int hzp_cuda_check(struct hzp_cuda_device *dev, cudaError_t error, const char *what);

/* After the launches of an op: HZP_OK or HZP_EDEVICE. */
int hzp_cuda_launched(struct hzp_lane *lane, const char *op);

/* What stands at ptr, for kernels that read it more than once: ptr itself if the device's, else a
 * copy on the device, made when the lane's turn comes and kept until the host has waited for a
 * fence (only then may it write there again).  Falls back to ptr, which works, slowly. */
const void *hzp_cuda_staged(struct hzp_lane *lane, const void *ptr, size_t size);

/* lane.c */
int hzp_cuda_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret);
size_t hzp_cuda_lane_bytes(struct hzp_device *dev, enum hzp_bound use);
void hzp_cuda_lane_close(struct hzp_lane *lane);
int hzp_cuda_lane_ready(struct hzp_cuda_lane *lane); /* before anything is put on its stream */
int hzp_cuda_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence);
int hzp_cuda_lane_set_share(struct hzp_lane *lane, int units);
void hzp_cuda_shares_prepare(struct hzp_device *dev, const int *units, int lanes);
int hzp_cuda_fence_open(struct hzp_device *dev, struct hzp_fence **ret);
void hzp_cuda_fence_close(struct hzp_fence *fence);
int hzp_cuda_fence_record(struct hzp_fence *fence, struct hzp_lane *lane);
int hzp_cuda_fence_wait(struct hzp_fence *fence);

/* green.c: streams that hold `parts` disjoint sets of SMs, as many of each as `want` says (at least
 * 16, in steps of 8; the last of several takes all that is left).  Made once for the same wants, at
 * the start for the shares that plans have (hzp_cuda_shares_prepare), then kept: graphs were
 * captured on them.  When there are as many as may be kept, the nearest of them serves.  ret_sms:
 * what each got. HZP_EUNSUP, with one line logged: no green contexts. */
enum { HZP_CUDA_PARTS_MAX = 4, HZP_CUDA_PART_MIN = 16, HZP_CUDA_PART_STEP = 8 };
int hzp_cuda_green_split(struct hzp_cuda_device *dev, const int *want, int parts,
                         cudaStream_t *ret_stream, int *ret_sms);
void hzp_cuda_green_close(struct hzp_cuda_device *dev);

/* time.c.  begin and end around what lane_time was asked for; read fills the spans of the lane's
 * first `upto` timings, all of which have ended. */
int hzp_cuda_lane_time(struct hzp_lane *lane, struct hzp_span *span);
int hzp_cuda_times_prepare(struct hzp_device *dev, int timings);
int hzp_cuda_time_begin(struct hzp_cuda_lane *lane);
int hzp_cuda_time_end(struct hzp_cuda_lane *lane);
int hzp_cuda_time_read(struct hzp_cuda_lane *lane, uint64_t upto);
void hzp_cuda_time_close(struct hzp_cuda_device *dev);

/* graph.c */
int hzp_cuda_graph_begin(struct hzp_lane *const *lane, int lanes);
int hzp_cuda_graph_end(struct hzp_lane *lane, struct hzp_graph **ret);
int hzp_cuda_graph_launch(struct hzp_graph *graph, struct hzp_lane *lane);
void hzp_cuda_graph_close(struct hzp_graph *graph);
int hzp_cuda_graphs_open(struct hzp_cuda_device *dev);
void hzp_cuda_graphs_end(struct hzp_cuda_device *dev); /* when the device closes */

/* matmul.c.  HZP_EUNSUP: there is no cuBLASLt.  library: as dlopen says; NULL: it is not found. */
void *hzp_cuda_library_open(void);
int hzp_cuda_products_open(struct hzp_cuda_device *dev, struct hzp_cuda_products **ret,
                           struct hzp_err_text *reterr);
void hzp_cuda_products_close(struct hzp_cuda_products *products);
void hzp_cuda_products_steady(struct hzp_cuda_products *products); /* nothing is timed any more */

/* about.c */
void hzp_cuda_about(struct hzp_about *ret);

/* limits.c */
int hzp_cuda_limits(struct hzp_device *dev, struct hzp_limits *ret);

/* The product by plain arithmetic: shapes and alignments the library refuses. */
int hzp_cuda_matmul_plain(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* The product of at most four rows with bf16 weights, where memory is all that counts. */
bool hzp_cuda_few_fits(const struct hzp_matmul_args *a);
int hzp_cuda_matmul_few(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* The product of e4m3 by our own kernels: any number of rows, 16-byte alignment. */
bool hzp_cuda_e4m3_fits(const struct hzp_matmul_args *a);
int hzp_cuda_matmul_e4m3(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* Attention by plain arithmetic: any type, width, stride. */
int hzp_cuda_attn_paged_plain(struct hzp_lane *lane, const struct hzp_attn_paged_args *a);
int hzp_cuda_attn_packed_plain(struct hzp_lane *lane, const struct hzp_attn_packed_args *a);
int hzp_cuda_attn_packed_bwd_plain(struct hzp_lane *lane, const struct hzp_attn_packed_bwd_args *a);

#define X(name, class_) int hzp_cuda_##name(struct hzp_lane *lane, const void *args);
HZP_OPS(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
