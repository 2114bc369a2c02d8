/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/build/layer.h - the one description of a transformer layer's forward pass.
 *
 *     normed  = rmsnorm(x_in)            qkv_bare = normed Wqkv^T + bias
 *     qkv     = rope(qkv_bare)           attn     = attention(qkv)
 *     x_mid   = x_in + attn Wo^T
 *     normed  = rmsnorm(x_mid)           gate_up  = normed Wgu^T
 *     inner   = swiglu(gate_up)          x_out    = x_mid + inner Wdown^T
 *
 * Serving gives one buffer for x_in, x_mid and x_out and one for qkv_bare and qkv; training gives
 * each its own, because the backward pass reads them again.  Where attention finds keys and values
 * is the only other difference: in pages, to which rope appends, or in the rows themselves.  A
 * layer may have rows of both: then its weights are read once (ride.h).
 *
 * No op adds a residual: the two products that end in the residual stream accumulate into it (beta
 * 1 of the library's), so the norm behind them reads the sum, and nothing is left to fuse into it.
 *
 * With fp8 (serving, and evaluation of it) each of the four products first quantises its rows into
 * one narrow buffer and reads the version's e4m3 matrices (weights/fp8.h); all else is as without.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_BUILD_LAYER_H
#define HZP_NANOBATCH_BUILD_LAYER_H

#include "nanobatch/build/model.h"
#include "nanobatch/plan/plan.h"
#include "weights/fp8.h"

struct hzp_nano;

struct hzp_layer_space {
    struct hzp_mat x_in, x_mid, x_out; /* [rows][width] F32 */
    struct hzp_mat normed;             /* [rows][width] act */
    struct hzp_mat qkv_bare, qkv;      /* [rows][(heads + 2 kv_heads) dim] act */
    struct hzp_mat attn;               /* [rows][heads dim] act */
    struct hzp_mat gate_up, inner;     /* [rows][2 inner], [rows][inner] act */
    struct hzp_mat narrow;             /* [rows][widest product's depth] E4M3; absent: not fp8 */
    float *narrow_scale;               /* [rows] */
    float *rstd_attn, *rstd_mlp;       /* [rows] F32, or NULL: not kept */
    float *lse;                        /* [rows][heads], or NULL */
    uint64_t quantum_flops;            /* matrix products are cut to about this; 0: whole */
    int32_t rides; /* the first so many rows are training's, the others serving's;
                                        * 0: all are of one tenant */
};

/* Serving's attention: the nano-batch's rows over this layer's pages.  Rows of one segment may lie
 * in several nano-batches; the later ones then need what the earlier ones append. */
struct hzp_paged {
    const struct hzp_nano *nano;
    const struct hzp_kv *kv;
    const int32_t *need; /* [needs] items of the plan */
    int32_t needs;
    int32_t append; /* out: its own rope, which appends to the pages */
};

/* Training's attention: documents, in the rows themselves and those before them. */
struct hzp_packed {
    struct hzp_segs segs;
    const int32_t *pos; /* [rows] */
    int32_t row0, rows; /* of the micro-batch */
    int32_t before;     /* rows before them that the first document begins in */
};

/* A layer in two halves, so that another nano-batch's items can stand between them: from x_in to
 * attn, and from there to x_out.  Given is paged (serving), packed (training), or both: then the
 * first s->rides rows are training's, and all but rotation and attention is one op for both. */
void hzp_layer_attend(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_version *v, int32_t layer, const struct hzp_layer_space *s,
                      struct hzp_paged *paged, const struct hzp_packed *packed);
void hzp_layer_finish(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_version *v, int32_t layer, const struct hzp_layer_space *s);

/* A matrix product in pieces of at most about quantum_flops each, cut along the longer side of c:
 * no sum is split, so the result does not depend on the cut. */
void hzp_plan_add_matmul(struct hzp_plan *plan, uint64_t quantum_flops,
                         const struct hzp_matmul_args *args);

/* 1 / sqrt(dim): the scale of attention scores. */
float hzp_model_attn_scale(const struct hzp_model *model);

/* The narrow buffer of so many rows over memory at *at, which advances; its scales too, four more
 * for each nano-batch there may be, so that each one's can begin at 16 bytes. */
struct hzp_mat hzp_narrow_cut(char *base, size_t *at, const struct hzp_model_config *config,
                              int32_t rows, float **ret_scale);

/* rows x cols over memory at *at, which advances (256-byte steps); base NULL: only counts. */
struct hzp_mat hzp_mat_cut(char *base, size_t *at, int32_t rows, int32_t cols, enum hzp_dtype type);

#endif
