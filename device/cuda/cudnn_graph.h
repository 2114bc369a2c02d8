/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cudnn_graph.h - cuDNN's library, and attention as graphs of its operations.
 *
 * A class of attention is what a plan depends on: the op, the heads, the strides, and room for a
 * number of segments and of rows of one.  How many segments and rows there are, and where, the
 * plan's kernels read on the device: sequence lengths, and offsets of the segments' first rows
 * (cuDNN's "ragged" tensors, with a padding mask).  So one plan computes every batch that has room
 * in its class.
 *
 *     forward   S = Q K^T scale, masked; P = softmax(S); O = P V; log of the sums
 *     backward  D = sum(dO O); P = exp(S - log sum); dV = P^T dO; dS = P (dO V^T - D) scale;
 *               dQ = dS K; dK = dS^T Q; the query heads that share keys summed
 *
 * cuDNN only fuses graphs whose form it knows, which is that of NVIDIA's cudnn-frontend; the order
 * of the operations here follows it.
 *
 * Builds need no header of cuDNN: the names and numbers used are declared in cudnn_names.h.
 *
 * Invariant: a plan that was made needs no more than its `space`; nothing here touches a stream,
 * or memory of the device.
 * Thread: engine.
 */
#pragma once

#include "base/err.h"
#include "device/cuda/cudnn_names.h"

enum hzp_cudnn_kind {
    HZP_CUDNN_PACKED,     /* attn_packed */
    HZP_CUDNN_PACKED_BWD, /* attn_packed_bwd */
    HZP_CUDNN_PAGED,      /* attn_prefill */
    HZP_CUDNN_KINDS,
};

/* Has no padding: it is compared, and stored, as bytes. */
struct hzp_cudnn_class {
    int32_t kind; /* enum hzp_cudnn_kind */
    int32_t heads, kv_heads, dim;
    int32_t segs, rows;                    /* room */
    int32_t qkv_stride, out_stride;        /* elements of a row */
    int32_t dqkv_stride, dout_stride;      /* backward; else 0 */
    int32_t pages, page_rows, page_stride; /* paged; else 0 */
};

/* What is bound to a plan when it runs: tensors by number. */
enum hzp_cudnn_id {
    HZP_CUDNN_Q = 1,
    HZP_CUDNN_K,
    HZP_CUDNN_V,
    HZP_CUDNN_O,
    HZP_CUDNN_LSE,
    HZP_CUDNN_DO,
    HZP_CUDNN_DQ,
    HZP_CUDNN_DK,
    HZP_CUDNN_DV,
    HZP_CUDNN_SUM,    /* backward: F32 [rows][heads] */
    HZP_CUDNN_DQ_SUM, /* backward: F32 of dqkv's stride, zeros when the plan begins */
    HZP_CUDNN_ROWS,   /* I32 [segs] rows of each segment */
    HZP_CUDNN_CTX,    /* I32 [segs] positions that its last row sees */
    HZP_CUDNN_AT_QKV, /* I32 [segs + 1] element at which a segment begins in each matrix */
    HZP_CUDNN_AT_OUT,
    HZP_CUDNN_AT_LSE,
    HZP_CUDNN_AT_DQKV,
    HZP_CUDNN_AT_DOUT,
    HZP_CUDNN_PAGES_K, /* I32 [segs][page_stride]; K's and V's are the same memory */
    HZP_CUDNN_PAGES_V,
    HZP_CUDNN_SCALE, /* F32 by value, as the two below */
    HZP_CUDNN_LOW,   /* what masked scores become */
    HZP_CUDNN_ONE,   /* backward: 1 */
    HZP_CUDNN_IDS,
};

struct hzp_cudnn_library {
    void *library;
    size_t version; /* 91900: 9.19.0 */
#define X(name, type, args) type(*name) args;
    HZP_CUDNN_FUNCTIONS(X)
#undef X
};

/* Loads HZP_CUDNN, or cuDNN 9 from its usual places.  false: there is none, or not one of a
 * version that is used (9.10.2 on); why: of `room` bytes, says which. */
bool hzp_cudnn_library_open(struct hzp_cudnn_library *ret, char *why, size_t room);
void hzp_cudnn_library_close(struct hzp_cudnn_library *lib);

struct hzp_cudnn_plan {
    hzp_cudnn_descriptor plan;
    size_t space;                  /* bytes of workspace */
    bool used[HZP_CUDNN_IDS];      /* the tensors that are bound */
    hzp_cudnn_descriptor own[320]; /* everything it consists of */
    int owns;
};

/* Makes the plan of a class, with a handle of the library, or for a device described by
 * `device` (hzp_cudnn_device_make), which can be asked about but not run.  HZP_EUNSUP: cuDNN has
 * none; why says what it said. */
int hzp_cudnn_plan_make(struct hzp_cudnn_library *lib, void *handle, hzp_cudnn_descriptor device,
                        const struct hzp_cudnn_class *c, struct hzp_cudnn_plan *ret, char *why,
                        size_t room);
void hzp_cudnn_plan_free(struct hzp_cudnn_library *lib, struct hzp_cudnn_plan *plan);

/* A description of a device in the library's JSON.  NULL: the library does not take it. */
hzp_cudnn_descriptor hzp_cudnn_device_make(struct hzp_cudnn_library *lib, const char *json);
