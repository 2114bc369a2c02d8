/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/tensor_parallel.h - on paper: how a step's layers could run on several GPUs that
 * hold a slice of every matrix each, and the search for a good pipeline.
 *
 * Ranks on CPUs compute that way (nanobatch/model/tensor.h); this is about GPUs.  A layer's
 * products are cut by columns (q, k, v, gate, up) and rows (o, down), so the sums after o and down
 * go over the network.  For each nano-batch that is an all-reduce, after which every GPU adds the
 * residual and normalises all rows; or a reduce-scatter, the same on a GPU's own rows, and an
 * all-gather.
 *
 *     sizes     q, k, v and attention are cut in their own way, all else in another; a
 *               nano-operation waits for those of the stage before whose rows meet its own
 *     lanes     compute: products, attention of prompts, rows; memory: attention of decode rows;
 *               network
 *     shares    of each nano-operation of memory and network: what it takes of the device while
 *               something computes beside it, which gets the rest (hzp_tp_divide)
 *     time      a fixed time for each nano-operation, and its work by the stated rate
 *
 * What a share yields is taken from NanoFlow's published profile (arXiv 2408.12757, Table 3, and
 * the profile in its repository, which disagree).  The time of a layer is that of the steady state:
 * from the end of the fourth to that of the eighth.
 *
 * Thread: any; pure.
 */
#ifndef HZP_NANOBATCH_SEARCH_TENSOR_PARALLEL_H
#define HZP_NANOBATCH_SEARCH_TENSOR_PARALLEL_H

#include "weights/config.h"

enum { HZP_TP_NANOS = 4, HZP_TP_ATTN_NANOS = 8 };

/* Of one GPU, a second.  Efficiencies: of what is beyond the fixed time. */
struct hzp_tp_rates {
    double flops, memory, link;             /* link: bytes that a GPU sends */
    double products, prompts, reads, sends; /* efficiencies */
    double fixed_ns;                        /* of each nano-operation */
    bool table3; /* the profile is Table 3 of the paper, else that of the repository */
};

/* An A100 SXM 80 GB, 312 TFLOP/s in BF16, 2.0 TB/s, NVLink 300 GB/s each way.  Efficiencies and the
 * fixed time are such that the published times of Llama-2-70B's operations on eight of them at 2048
 * rows come out, and nano-batches without overlap cost 14 %, published are 13.2 %. */
extern const struct hzp_tp_rates hzp_tp_a100;

struct hzp_tp_step {
    const struct hzp_model_config *model;
    int32_t gpus, decode, depth, prefill; /* rows; depth: tokens before a decode row */
};

struct hzp_tp_shape {
    int32_t nanos, attn_nanos;
    int32_t end[HZP_TP_NANOS], attn_end[HZP_TP_ATTN_NANOS]; /* of rows; the last is all rows */
    bool gathers[HZP_TP_NANOS]; /* reduce-scatter and all-gather, else all-reduce */
    bool overlaps;              /* false: one operation at a time */
    int32_t lag; /* by how many stages each nano-batch is issued behind the one before */
    float read_share[HZP_TP_ATTN_NANOS]; /* of attention of decode rows */
    float send_share[HZP_TP_NANOS];
};

struct hzp_tp_result {
    double layer_ns;
    double compute_ns, memory_ns, network_ns; /* of a layer: time in which such an operation ran */
};

/* rows <= 2^20, gpus 1 .. 1024; the shape's ends ascend. */
struct hzp_tp_result hzp_tp_simulate(const struct hzp_tp_rates *rates,
                                     const struct hzp_tp_step *step,
                                     const struct hzp_tp_shape *shape);

/* How the device is divided between what runs at one time: ret = of compute, memory, network.  Read
 * and send are the shares of the nano-operations of memory and network, 0: none runs.  While
 * something computes it gets what they leave, but at least a twentieth: where they ask for more
 * than the rest, each gets the same fraction of what it asked for.  While nothing computes they
 * divide all of the device in the ratio of their shares. */
void hzp_tp_divide(double read, double send, bool computes, double ret[3]);

/* One operation at a time, not cut; nano-batches cut as NanoFlow does, one operation at a time. */
struct hzp_tp_shape hzp_tp_sequential(const struct hzp_tp_step *step);
struct hzp_tp_shape hzp_tp_cut_only(const struct hzp_tp_step *step);

/* The best of some thousand shapes; *ret_tried of them. */
struct hzp_tp_shape hzp_tp_search(const struct hzp_tp_rates *rates, const struct hzp_tp_step *step,
                                  int32_t *ret_tried);

#endif
