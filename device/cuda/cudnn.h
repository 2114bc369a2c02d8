/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cudnn.h - attention of prompts and of training: by cuDNN where it is faster, else by
 * our own kernels.
 *
 * An op's segments are divided by their lengths into classes (cudnn_graph.h) of at most 256, 1024,
 * 4096 and 16384 rows; each class of an op is one or more runs of its plan.  The class that has
 * most of the op's work decides who computes the op.  For each class the first op of it before
 * the device is steady is computed by both, compared, and timed; the choice is kept with the
 * algorithms of products (algos.h).  Plans are made then too, at most PLANS_MAX: once the device is
 * steady nothing is built, and a class without a plan is computed by our kernels.
 *
 * What cuDNN does not compute: E4M3 pages, documents that continue earlier rows (chunks of
 * training that rides), segments of more than 16384 rows, gradients where bits must repeat
 * (its sums have no fixed order), gradients on a device that was not prepared for training.
 *
 * Invariant: what is queued of an op uses only the lane's memory besides its operands.
 * Thread: engine.
 */
#pragma once

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes attn_prefill, attn_packed or attn_packed_bwd, whose types and alignment our kernels
 * take: by cuDNN, or by own(lane, args). */
int hzp_cudnn_attention(struct hzp_lane *lane, enum hzp_op op, const void *args, hzp_op_fn *own);

/* The version of the cuDNN that would be loaded, as GetVersion counts; 0: why says why not. */
size_t hzp_cudnn_version(char *why, size_t room);

/* For cudnn_prepare.c.  class_rows: of the i-th class, 0 past the last.  trains: what a training is
 * like, NULL: none is prepared; false: there is no cuDNN, or it is too late.  gradient_room: bytes
 * of workspace that the op needs, whose plan is made; 0: there is no plan.  choice: who computes
 * the op.  plans_make: makes the plans of the op's classes that are not there yet. */
enum hzp_cudnn_choice { HZP_CUDNN_UNKNOWN, HZP_CUDNN_OURS, HZP_CUDNN_THEIRS };
int32_t hzp_cudnn_class_rows(int i);
bool hzp_cudnn_trains(struct hzp_cudnn *dnn, const struct hzp_attention_use *use);
size_t hzp_cudnn_gradient_room(struct hzp_device *dev, const struct hzp_attn_packed_bwd_args *args);
enum hzp_cudnn_choice hzp_cudnn_choice(struct hzp_device *dev, enum hzp_op op, const void *args);
void hzp_cudnn_plans_make(struct hzp_device *dev, enum hzp_op op, const void *args);

/* ---- attn_lay.cu ---- */

enum {
    HZP_ATTN_LAY_SEGS = 32,
    HZP_ATTN_LAY_ROW = 64, /* entries from one list to the next */
    HZP_ATTN_LAY_MATS = 5,
    HZP_ATTN_LAY_LISTS = 2 + HZP_ATTN_LAY_MATS,
};

/* Lists for one run of a plan.  `to`: rows and positions of each of `room` segments, then for each
 * matrix the element at which each segment begins, and where the last one ends; those past the
 * first `segs` are empty.  pages (NULL: none) gets the page numbers of each segment, those past
 * its last page repeat its first. */
struct hzp_attn_lay {
    int32_t *to; /* [LISTS][ROW] */
    int32_t segs, room;
    int32_t stride[HZP_ATTN_LAY_MATS]; /* elements of a row of each matrix */
    int32_t row0[HZP_ATTN_LAY_SEGS], rows[HZP_ATTN_LAY_SEGS], ctx[HZP_ATTN_LAY_SEGS];
    int32_t seg[HZP_ATTN_LAY_SEGS]; /* which segment of the op it is */
    int32_t *pages;                 /* [room][page_stride] */
    const int32_t *page, *line;     /* as in hzp_attn_paged_args; line NULL: none */
    int32_t page_stride, page_rows;
};
int hzp_cuda_attn_lay(struct hzp_lane *lane, const struct hzp_attn_lay *lay);

#ifdef __cplusplus
}
#endif
