/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda.h - shared by the files of the CUDA backend.
 *
 * A lane is a stream with its own memory: scratch for kernels that need memory between two
 * launches, a workspace for matrix products, and room for staged copies of host arrays that kernels
 * would otherwise read from the host repeatedly.  It is allocated when the lane is opened, and the
 * memory plan counts it (hzp_lane_bytes): no op allocates anything.
 *
 * A lane with a share of the SMs has either a stream of a green context, which confines all its
 * kernels, or its own stream and kernels that start no more blocks than fit (HZP_CUDA_LANES).
 *
 * What an op launches depends on its arguments' bytes, the lane's memory and its share, never on
 * the memory its pointers refer to.  So a captured graph can be launched again after the host has
 * written new rows into the same arrays.
 *
 * The CUDA runtime is linked in; the driver, cuBLASLt and cuDNN are loaded when a device is opened:
 * a program built with CUDA starts on machines that have none of them.
 *
 * Thread: engine.  C17 and CUDA C++17.
 */
#pragma once

#include <cuda_runtime_api.h>

#include "device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hzp_cuda_products; /* matmul.c */
struct hzp_cudnn;         /* cudnn.c */
struct hzp_cuda_algos;    /* algos.c */
struct hzp_cuda_green;    /* green.c */
struct hzp_cuda_lane;

/* How a lane's share is enforced: not at all; by the number of blocks its kernels start; by green
 * contexts. */
enum hzp_cuda_lanes { HZP_CUDA_PLAIN, HZP_CUDA_GRID, HZP_CUDA_GREEN };

/* STAGED_MAX: eight nano-batches on one lane have eight arrays each; training has some more. */
enum { HZP_CUDA_SPACE = 64 << 20 }; /* a lane's workspace: twice what cuBLASLt's fastest need */
enum { HZP_CUDA_STAGED_MAX = 96, HZP_CUDA_COUNTERS = 1 << 16 };

struct hzp_cuda_device {
    struct hzp_device base;
    int ordinal, sms, shared_max; /* shared_max: bytes of shared memory a block may have */
    bool bulk;                    /* kernels may use the tensor copy engine (HZP_CUDA_BULK) */
    int early;      /* most rows of a step whose kernels may begin before the preceding kernel has
                     * ended (HZP_CUDA_EARLY) */
    bool fuses;     /* hzp_device_projects and has_codes may be true (HZP_CUDA_FUSE) */
    bool failed;    /* true: the failure was logged, later ones are not */
    uint64_t epoch; /* incremented whenever the host may have written to its memory */
    struct {
        char *ptr;
        size_t size;
    } * pinned; /* [pinneds] host memory that was allocated, by address */
    int pinneds, pinneds_room;
    struct hzp_cuda_products *products;
    struct hzp_cudnn *cudnn; /* NULL: not wanted */
    size_t attn_bytes;       /* size of a lane's `attn` */
    enum hzp_cuda_lanes lanes;
    bool lacks_green;                /* lanes is GRID because the driver has no green contexts */
    struct hzp_cuda_green *green;    /* NULL: no share was requested yet */
    struct hzp_cuda_lane *lane_list; /* all open lanes */
    uint64_t lane_ids;
    bool capturing; /* a graph is being captured: errors end the capture, not the device */
    struct hzp_cuda_lane *capture[HZP_GRAPH_LANES_MAX]; /* the lanes of the capture */
    int captures;
    /* Links of the newest collectives, each tenant's and that between groups; NULL: none. */
    struct hzp_link *link[3];
    cudaEvent_t join; /* orders the lanes of a graph behind one another */
    struct {          /* time.c: unused events, and the device's clock */
        cudaEvent_t *spare;
        int spares, room;
        cudaEvent_t last;   /* the newest whose time is known; NULL: none */
        double last_ns;     /* time of `last`, since the first event */
        double offset_ns;   /* host clock - event time */
        uint64_t offset_at; /* host clock when offset_ns was measured */
    } clock;
    char id[40];              /* its UUID */
    bool graph_a_lane;        /* wanted: green lanes have graphs of their own (HZP_CUDA_GRAPHS) */
    struct hzp_graph *making; /* one that is being captured lane by lane; NULL: none */
};

struct hzp_cuda_timing {
    struct hzp_span *span;
    cudaEvent_t begin, end;
};

struct hzp_cuda_lane {
    struct hzp_lane base;
    struct hzp_cuda_lane *next;
    uint64_t id;
    cudaStream_t stream; /* the stream for ops: own, or a green context's */
    cudaStream_t own;
    int share;                      /* as requested; 0: none */
    int limit;                      /* SMs its kernels may use; 0: all */
    bool ready;                     /* `stream` is the one of its share */
    struct hzp_span *span;          /* the next op's; NULL: the op is not timed */
    struct hzp_cuda_timing *timing; /* [timings] those not yet read */
    int timings, timings_room;
    uint64_t timed; /* number of timings ever made */
    void *space;    /* workspace of the matrix products */
    size_t space_size;
    char *attn; /* workspace of cuDNN's gradients; NULL: theirs is `space` */
    size_t attn_size;
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
    bool cutting; /* a piece of dev->making is being captured on its stream */
};

static inline struct hzp_cuda_lane *hzp_cuda_lane(struct hzp_lane *lane)
{
    return (struct hzp_cuda_lane *)lane;
}

static inline struct hzp_cuda_device *hzp_cuda_device(struct hzp_lane *lane)
{
    return (struct hzp_cuda_device *)lane->dev;
}

/* The number of SMs that the lane's next kernels are limited to, by its share and by
 * hzp_lane_limit; 0: it is not. */
static inline int hzp_cuda_limit(struct hzp_lane *lane)
{
    int share = hzp_cuda_lane(lane)->limit, most = lane->most;
    if (most >= hzp_cuda_device(lane)->sms || hzp_cuda_device(lane)->lanes == HZP_CUDA_PLAIN)
        most = 0;
    return share && most ? HZP_MIN(share, most) : share + most;
}

/* The number of SMs that the lane's kernels may fill. */
static inline int hzp_cuda_sms(struct hzp_lane *lane)
{
    int limit = hzp_cuda_limit(lane);
    return limit ? limit : hzp_cuda_device(lane)->sms;
}

/* Whether the limit is enforced only by the lane's kernels: they must start no more blocks than fit
 * on its SMs.  A lane has its own stream if it has no green context. */
static inline bool hzp_cuda_by_grid(struct hzp_lane *base)
{
    const struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    int limit = hzp_cuda_limit(base);
    return limit && (limit != lane->limit || lane->stream == lane->own);
}

/* HZP_OK, or HZP_EDEVICE with the error logged once; HZP_EUNSUP during a capture. */
int hzp_cuda_check(struct hzp_cuda_device *dev, cudaError_t error, const char *what);

/* Checks the launches of an op: HZP_OK or HZP_EDEVICE. */
int hzp_cuda_launched(struct hzp_lane *lane, const char *op);

/* For arrays that kernels read more than once: returns ptr itself if it is device memory, else a
 * copy on the device. The copy is made in the lane's order and kept until the host has waited for a
 * fence (only then may the host write to ptr again).  If there is no room it returns ptr, which
 * works but is slow. */
const void *hzp_cuda_staged(struct hzp_lane *lane, const void *ptr, size_t size);

/* Before attention over pages: stages what its kernels read of the segments.  Of page numbers only
 * those that are not in a table: a->page is then the table, and a->line the staged lines; else
 * a->line is NULL. */
void hzp_cuda_pages_staged(struct hzp_lane *lane, struct hzp_attn_paged_args *a);

/* lane.c */
/* The priority of a lane's stream. */
int hzp_cuda_priority(enum hzp_bound use);
int hzp_cuda_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret);
size_t hzp_cuda_lane_bytes(struct hzp_device *dev, enum hzp_bound use);
void hzp_cuda_lane_close(struct hzp_lane *lane);
/* call it before anything is put on the lane's stream */
int hzp_cuda_lane_ready(struct hzp_cuda_lane *lane);
int hzp_cuda_lane_wait(struct hzp_lane *lane, struct hzp_fence *fence);
int hzp_cuda_lane_set_share(struct hzp_lane *lane, int cores);
void hzp_cuda_shares_prepare(struct hzp_device *dev, const int *cores, int lanes);
void hzp_cuda_say_limits(void); /* says once which kernels a limit on blocks does not limit */
int hzp_cuda_fence_open(struct hzp_device *dev, struct hzp_fence **ret);
void hzp_cuda_fence_close(struct hzp_fence *fence);
int hzp_cuda_fence_record(struct hzp_fence *fence, struct hzp_lane *lane);
int hzp_cuda_fence_wait(struct hzp_fence *fence);
int hzp_cuda_fence_poll(struct hzp_fence *fence);

/* collective.c.  Waits until the event has passed; also for transfers between ranks.  HZP_EDEVICE:
 * the device failed, or a rank is lost. */
int hzp_cuda_await(struct hzp_cuda_device *dev, cudaEvent_t event);
/* False: a link of the collectives that were issued has failed; what they left on streams is given
 * up. */
bool hzp_cuda_links_work(const struct hzp_cuda_device *dev, struct hzp_err_text *reterr);

/* green.c: streams that own `parts` disjoint sets of SMs, with the numbers of SMs in `want` (at
 * least 16, in steps of 8; if there are several, the last gets all SMs that are left).  A split is
 * made once per `want`, at the start for the shares in the plans (hzp_cuda_shares_prepare), and
 * kept, because graphs were captured on it.  When the maximum number of splits exists, or the
 * driver has no memory for this one, the nearest one is returned, and that is counted; a split that
 * failed three times is not tried again.  urgent: which parts' streams have the highest priority.
 * ret_sms: the SMs of each part.  HZP_EUNSUP: this split cannot be made, and there is no other to
 * use; HZP_ENOENT: the driver has no functions for it. */
enum { HZP_CUDA_PARTS_MAX = 4, HZP_CUDA_PART_MIN = 16, HZP_CUDA_PART_STEP = 8 };
int hzp_cuda_green_split(struct hzp_cuda_device *dev, const int *want, const bool *urgent,
                         int parts, cudaStream_t *ret_stream, int *ret_sms);
void hzp_cuda_green_close(struct hzp_cuda_device *dev);
/* When kernels are loaded, as the driver says: a process may have started it before
 * hzp_cuda_load_whole.  "at-once", "when-launched" or "unknown". */
const char *hzp_cuda_loading(void);

/* time.c.  begin and end enclose an op that lane_time asked to time; read fills the spans of the
 * lane's first `upto` timings, all of which have ended. */
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
bool hzp_cuda_graphs_cut(const struct hzp_device *dev);
bool hzp_cuda_graph_is_cut(struct hzp_lane *const *lane, int lanes);
/* While a graph is captured lane by lane: op begins a piece on the lane, if none is begun; record
 * and wait end it, and note that the event is recorded or waited for there.  At other times op has
 * no effect, and record and wait may not be called. */
int hzp_cuda_graph_op(struct hzp_cuda_lane *lane);
int hzp_cuda_graph_record(struct hzp_cuda_lane *lane, cudaEvent_t event);
int hzp_cuda_graph_wait(struct hzp_cuda_lane *lane, cudaEvent_t event);
int hzp_cuda_graphs_open(struct hzp_cuda_device *dev);
void hzp_cuda_graphs_end(struct hzp_cuda_device *dev); /* when the device closes */

/* Which of the words the environment variable is, *ret unchanged where it is unset or empty.
 * HZP_EINVAL: none of them; these: how the error lists them. */
int hzp_cuda_env(const char *name, const char *const *word, int words, const char *these, int *ret,
                 struct hzp_err_text *reterr);

/* matmul.c.  HZP_EUNSUP: cuBLASLt is missing.  library: from dlopen; NULL: not found. */
void *hzp_cuda_library_open(void);
int hzp_cuda_products_open(struct hzp_cuda_device *dev, struct hzp_cuda_products **ret,
                           struct hzp_err_text *reterr);
void hzp_cuda_products_close(struct hzp_cuda_products *products);
void hzp_cuda_products_steady(struct hzp_cuda_products *products); /* stops timing algorithms */
struct hzp_cuda_algos *hzp_cuda_products_algos(struct hzp_cuda_products *products); /* borrowed */

/* cudnn.c.  open: loads cuDNN; without it *ret is NULL, or only counts that it is missing; algos is
 * borrowed.  HZP_EINVAL: HZP_CUDA_ATTENTION is not one of its values.  close, steady: NULL has no
 * effect.  prepare: see hzp_device_prepare_attention. */
int hzp_cudnn_open(struct hzp_cuda_algos *algos, struct hzp_cudnn **ret,
                   struct hzp_err_text *reterr);
void hzp_cudnn_close(struct hzp_cudnn *dnn);
void hzp_cudnn_steady(struct hzp_cudnn *dnn);
void hzp_cudnn_prepare(struct hzp_device *dev, const struct hzp_attention_use *use);

/* Before any call that starts the driver: all kernels of a program, and of the libraries it loads,
 * are then loaded with the context and not when each is first launched, unless CUDA_MODULE_LOADING
 * says otherwise. */
void hzp_cuda_load_whole(void);

/* about.c */
void hzp_cuda_about(struct hzp_about *ret);

/* The product by plain arithmetic, for shapes and alignments that the library rejects. */
int hzp_cuda_matmul_plain(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* Steps of so few rows are limited by reading weights and by the gaps between kernels. */
enum { HZP_CUDA_FEW_ROWS = 4 };

/* The product of at most four rows with bf16 weights, which is limited by memory. */
bool hzp_cuda_few_fits(const struct hzp_matmul_args *a);
int hzp_cuda_matmul_few(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* Projections of at most four rows with the norm, SwiGLU or both.  Whether there is a kernel. */
bool hzp_cuda_projects(const struct hzp_device *dev, const struct hzp_project_args *args);

/* SwiGLU behind a product of e4m3; HZP_CUDA_FEW_ROWS at most, hzp_cuda_e4m3_fits. */
int hzp_cuda_gated_e4m3(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* Any projection by plain arithmetic. */
int hzp_cuda_project_plain(struct hzp_lane *lane, const struct hzp_project_args *a);

/* c = half, or added to what the product's arguments say; half [rows][cols] BF16, c F32. */
int hzp_cuda_add_half(struct hzp_lane *lane, const struct hzp_mat *half,
                      const struct hzp_matmul_args *a);

/* The product of e4m3 by our own kernels: any number of rows, 16-byte alignment. */
bool hzp_cuda_e4m3_fits(const struct hzp_matmul_args *a);
int hzp_cuda_matmul_e4m3(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* Decode attention of bf16 rows over pages that the tensor copy engine fetches (decode_bulk.cu).
 * `a` is what decode.cu can do, with its arrays staged.  HZP_EUNSUP: the driver cannot describe the
 * pages. */
bool hzp_cuda_decode_bulk_fits(struct hzp_lane *lane, const struct hzp_attn_paged_args *a);
int hzp_cuda_decode_bulk(struct hzp_lane *lane, const struct hzp_attn_paged_args *a);

/* Attention by plain arithmetic: any type, width and stride. */
int hzp_cuda_attn_paged_plain(struct hzp_lane *lane, const struct hzp_attn_paged_args *a);
int hzp_cuda_attn_packed_plain(struct hzp_lane *lane, const struct hzp_attn_packed_args *a);
int hzp_cuda_attn_packed_bwd_plain(struct hzp_lane *lane, const struct hzp_attn_packed_bwd_args *a);

#define X(name, class_) int hzp_cuda_##name(struct hzp_lane *lane, const void *args);
HZP_OPS(X)
#undef X

#ifdef __cplusplus
}
#endif
