/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/space.h - the buffers that the builders of a layer read and write, as matrices.
 *
 * A space is a set of views; the memory belongs to hzp_serve_space (serve_space.h) or
 * hzp_train_space (train_space_state.h). Serving uses one buffer for x_in, x_mid and x_out and one
 * for qkv_bare and qkv, and the same buffers for every layer in turn. Training gives each layer its
 * own, because the backward pass reads them again.
 *
 * Thread: engine.
 */
#pragma once

#include "device/device.h"
#include "weights/layout.h"

/* Forward pass. */
struct hzp_layer_space {
    struct hzp_mat x_in, x_mid, x_out; /* [rows][width] F32: the residual stream */
    struct hzp_mat normed;             /* [rows][width] act */
    struct hzp_mat qkv_bare, qkv; /* [rows][(heads + 2 kv_heads) dim] act; before, after rope */
    struct hzp_mat attn;          /* [rows][heads dim] act */
    /* [rows][2 inner], [rows][inner] act; of the layer, or wider where layers differ: the first
     * columns are used */
    struct hzp_mat gate_up, inner;
    struct hzp_mat narrow; /* [rows][widest product's depth] E4M3; absent: not fp8 */
    float *narrow_scale;   /* [rows] */
    /* [rows][width] F32: where the ranks of slices divide the rows among them, what the products of
     * O and Down give (model/tensor.h); absent: they do not */
    struct hzp_mat part;
    bool x_whole; /* with part: x_in is complete on every rank, not only this rank's rows of it */
    /* With part: the norm that reads a sum and the all-gather of its rows are issued behind the
     * sum, on the lane of collectives, and not with the product that reads them. */
    bool ahead;
    bool sums_apart; /* the caller adds up what the ranks' products of O and Down give */
    bool x_last;     /* with ahead: no norm of this pass reads x_out */
    /* [rows][width or heads dim] F32: what is normed behind a product; absent: nothing is */
    struct hzp_mat wide;
    float *rstd_attn, *rstd_mlp; /* [rows] F32, or NULL: not kept */
    float *lse;                  /* [rows][heads], or NULL: not kept */
    uint64_t quantum_flops;      /* matrix products are cut to about this; 0: whole */
};

/* Backward pass: buffers that every layer uses in turn.  dx carries the gradient of the residual
 * stream from one layer to the layer before it. */
struct hzp_layer_grads {
    struct hzp_mat dx, dx_act;       /* [rows][width] F32, act; one buffer in F32 models */
    struct hzp_mat dnormed;          /* [rows][width] F32 */
    struct hzp_mat normed, inner;    /* as in the forward pass: computed again */
    struct hzp_mat dinner, dgate_up; /* [rows][inner], [rows][2 inner] act */
    struct hzp_mat dattn, dqkv;      /* as attn and qkv */
    struct hzp_mat wide, dwide;      /* as in the forward pass, and its gradient; or absent */
    float *rstd;                     /* [rows], with them */
    uint64_t quantum_flops;          /* as above */
};

/* Columns [col0, col0 + cols) of mat. */
struct hzp_mat hzp_mat_cols(struct hzp_mat mat, int32_t col0, int32_t cols);

/* A rows x cols matrix over memory at base + *at; *at advances by its size, rounded up to 256
 * bytes.  base NULL: only counts. */
struct hzp_mat hzp_mat_cut(char *base, size_t *at, int32_t rows, int32_t cols, enum hzp_dtype type);

/* `wide` of so many rows, cut as by hzp_mat_cut; absent, of no size, where the model needs none. */
struct hzp_mat hzp_wide_cut(char *base, size_t *at, const struct hzp_layout *layout, int32_t rows);

/* Where ranks that compute products together gather so many rows' logits, [ranks rows][vocab /
 * ranks] F32, cut as by hzp_mat_cut; absent, of no size, where the layout is not a slice's. */
struct hzp_mat hzp_gathered_cut(char *base, size_t *at, const struct hzp_layout *layout,
                                int32_t rows);

/* The narrow buffer for so many rows, cut as by hzp_mat_cut, and its scales.  There are four more
 * scales for each possible nano-batch, so that the scales of each can begin at 16 bytes. */
struct hzp_mat hzp_narrow_cut(char *base, size_t *at, const struct hzp_layout *layout, int32_t rows,
                              float **ret_scale);
