/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/train_space_state.h - what a train space consists of; for what builds chains.
 *
 * Two kinds: state that lives from update to update (gradients, moments, residuals, in the units of
 * the weights), and buffers of one micro-batch (kept activations, scratch).  backward.h says which
 * activations are kept and why.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/ends.h"
#include "nanobatch/model/layer.h"
#include "nanobatch/model/train_space.h"

/* Rows and floats of a row that one item of a copy of the optimizer's state has at most: 1 MB. */
enum { HZP_COPY_ROWS = 64, HZP_COPY_FLOATS = 4096 };

struct hzp_kept_layer {
    struct hzp_mat x_in, x_mid;   /* [rows][width] F32 */
    struct hzp_mat qkv_bare, qkv; /* [rows][(heads + 2 kv_heads) dim] act; one without q/k norms */
    struct hzp_mat attn;          /* [rows][heads dim] act */
    struct hzp_mat gate_up; /* [rows][2 inner] act, of the layer; forward_only: of the widest */
    float *rstd_attn, *rstd_mlp; /* [rows] */
    float *lse;                  /* [rows][heads] */
};

struct hzp_train_space {
    struct hzp_device *dev;
    struct hzp_train_space_config config;
    enum hzp_dtype act;
    /* Allocations: activations; gradients and, in the same memory or in the host's
     * (config.host_state), the optimizer's state.  By enum hzp_mem. */
    void *memory, *state[2];
    size_t memory_bytes, state_bytes[2];
    size_t zeroed_bytes[2]; /* the first bytes of the state, which hzp_train_space_prepare zeroes */
    struct hzp_update_result *result; /* host-visible */
    int32_t heads;
    int32_t rows_room;   /* rows of kept activations: those of the micro-batch, + ride_rows */
    int32_t forward_end; /* the newest chain's items before it belong to forward */

    /* F32: what backward adds to.  Whole units; if they are fresh (hzp_shards_fresh), in a ring:
     * units u and u + 2 have the same place, except a tied embedding, which has one of its own. */
    struct hzp_units grads;
    /* What micro-batches are added up in: grads; or, if those are fresh, `sums`, this rank's shard
     * of the gradients' level (ordered: of the level of all ranks). */
    struct hzp_units *sum, sums;
    /* What the optimizer reads, of which only this rank's shard of the state is complete: sum; or,
     * ordered with copies of the state, `totals`. */
    struct hzp_units *total, totals;
    struct hzp_units state_part[HZP_STATE_WEIGHTS]; /* this rank's shard; layout NULL: none */
    /* Where this rank's shard of each unit of the weights lies, as the optimizer updates it. */
    const struct hzp_layout *layout;
    /* Sharded state (otherwise NULL): sums of squares of this rank's shard, and those of all ranks
     * that share one copy of the state, rank by rank; host-visible.  Ordered: of each block of each
     * unit in turn; otherwise one number. */
    double *square, *squares;
    size_t square_count;

    /* config.backup: the parts of the state lie one behind the other, and their copy behind them;
     * they are copied as rows of floats, bit for bit */
    float *copied, *backup;
    size_t copied_floats;
    int32_t *copied_row; /* host-visible: 0, 1, 2, .. */

    /* config.muon: Muon's matrix before and after a Newton-Schulz step, and two squares of its
     * shorter side; [1][elements of the largest] act */
    struct hzp_mat muon[4];

    /* [layers + 1]; the last has only x_in, which of all goes by the place on the path, where the
     * rest is the layer's: what one layer writes the next on the path reads.  forward_only: [1].
     * What is computed again lies in the same place for every layer.  The micro-batch in progress
     * uses `kept` and `recompute`, which follow from its length; both lengths use the same
     * memory. */
    struct hzp_kept_layer *kept, *kept_usual, *kept_long;
    enum hzp_recompute recompute;
    /* A stage keeps several micro-batches (nanobatch/model/stage_order.h): of micro-batch m those
     * in slot m % slots, of its layers; kept_usual is [slots][layers + 1]. */
    int32_t slot, slots;
    struct hzp_mat dx, dx_act; /* [rows][width] F32, act; the same in F32 models */
    struct hzp_mat dx_of[3];   /* dx is one of them; [2]: of rank 0's backward tasks; without
                                * stages all are the same */
    float *tied;               /* the places of a tied embedding's fresh gradients, one a slot */
    struct hzp_mat dnormed;    /* [rows][width] F32 */
    /* [rows][...] act; where layers differ, of the widest */
    struct hzp_mat normed, inner, dinner, dgate_up, dattn, dqkv;
    struct hzp_mat picked, dpicked, dpicked_normed; /* [head_rows][width] F32 */
    struct hzp_mat picked_normed;                   /* [head_rows][width] act */
    struct hzp_mat logits, dlogits; /* [head_rows][vocab] F32, act; in the same place, row by row */
    struct hzp_mat gathered;        /* as in nanobatch/model/space.h */
    struct hzp_mat wide, dwide;     /* as in nanobatch/model/space.h */
    float *rstd;                    /* with them */
    float *picked_rstd;             /* [head_rows] */
    struct hzp_mat narrow;          /* fp8: as in nanobatch/model/space.h */
    float *narrow_scale;
};

/* Rows [row0, row0 + rows) of what a layer's forward pass reads and writes, at its place on the
 * path. */
struct hzp_layer_space hzp_train_layer_space(const struct hzp_train_space *s, int32_t layer,
                                             int32_t place, int32_t row0, int32_t rows);

/* What is built from here on is of the micro-batch in this slot, with its gradient in dx_of[dx]. */
void hzp_train_space_choose(struct hzp_train_space *s, int32_t slot, int dx);

/* A micro-batch of so many rows begins. */
void hzp_train_space_begin(struct hzp_train_space *s, int32_t rows);

/* What a layer's backward pass works in, for so many rows of the micro-batch. */
struct hzp_layer_grads hzp_train_layer_grads(const struct hzp_train_space *s, int32_t rows);

/* The rows of the matrices that a tensor of a layer holds one above the other: q, k and v; gate and
 * up; or itself.  Returns how many these are. */
int hzp_tensor_matrices(const struct hzp_layout *layout, const struct hzp_tensor *t,
                        int32_t rows[3]);

/* What the head works in, for so many learned rows (at most head_rows). */
struct hzp_head_space hzp_train_head_space(const struct hzp_train_space *s, int32_t rows);
