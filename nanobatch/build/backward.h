/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/build/backward.h - a micro-batch to ops: forward with what must be kept, loss,
 * backward.
 *
 * Kept per layer: its input, the rotated q|k|v (and, with q/k norms, the bare one), attention's
 * output and log-sum-exp, the residual after attention, gate|up.  Norms and SwiGLU are computed
 * again in the backward pass: they cost a pass over memory, keeping them would cost the memory.
 * Only rows with a target reach the head, at most head_rows at a time, the whole vocabulary of
 * each: the logits take head_rows x vocab x 4 bytes, their gradient in a BF16 model 2 more (in F32
 * it is written over them), however many rows a micro-batch has.  The trainer's head_rows is half
 * the model's width, so that they take less than the head's own gradient (128k words, 8B shape, 4 x
 * 4096 tokens: 1.6 GB of
 * 12.6); in small models, where that is less than it is worth, one chunk may be the whole
 * micro-batch.
 *
 * Gradients are sums over learned tokens, not means: the division by the learned tokens of the
 * whole update happens in AdamW, so accumulating 1 x 16 equals 16 x 1.
 *
 * The forward pass goes chunk by chunk: one chunk's rows through all layers, then the next one's,
 * whose attention finds the keys and values of a document's earlier chunks in their rows.  So while
 * a chunk is under way, the rows behind it in the buffers are free: ride.h.
 *
 * Big matrix products are cut by output rows so that no item costs much more than `quantum_flops`:
 * that is what lets the trainer give way to serving.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_BUILD_BACKWARD_H
#define HZP_NANOBATCH_BUILD_BACKWARD_H

#include "nanobatch/build/layer.h"
#include "nanobatch/build/model.h"
#include "nanobatch/plan/plan.h"

/* What goes forward together: rows [row0, row0 + rows) of the micro-batch, parts of `docs`
 * documents, of which the first may have begun before. */
struct hzp_chunk {
    int32_t row0, rows, docs, doc_rows_max, ctx_max;
    int32_t at; /* of its documents in chunk_row0 and chunk_pos0 */
};

/* The rows of a micro-batch: whole documents, one after another.  All arrays in memory that host
 * and device both see. */
struct hzp_micro {
    /* fixed after create */
    struct hzp_device *dev;
    void *memory;
    int32_t rows_max;
    struct hzp_chunk *chunk; /* [chunks] */
    int32_t chunks_room;

    int32_t rows, docs, learned;
    int32_t chunks;       /* hzp_micro_cut; 0: all is one */
    int32_t *id, *pos;    /* [rows_max] */
    int32_t *row0, *pos0; /* [rows_max + 1]; documents, pos0 all 0 */
    int32_t *chunk_row0,
        *chunk_pos0;      /* [3 (rows_max + 1)] documents chunk by chunk, from its first row */
    int32_t doc_rows_max; /* the longest document's */
    int32_t *learned_row; /* [rows_max] the rows that have a target, ascending */
    int32_t *target;      /* [rows_max] of those rows: the next token */
    float *loss;          /* [rows_max] of those rows, once the chain has run */
};
int hzp_micro_create(struct hzp_device *dev, int32_t rows_max, struct hzp_micro **ret);
void hzp_micro_destroy(struct hzp_micro *micro); /* NULL: no effect */
void hzp_micro_clear(struct hzp_micro *micro);

/* Appends a document of `count` tokens; learn[i] says whether token i is to be predicted (learn[0]
 * is ignored: nothing precedes it).  The last token is only a target, so a document takes
 * count - 1 rows.  HZP_EBUSY: they do not fit any more. */
int hzp_micro_add(struct hzp_micro *micro, const int32_t *token, const uint8_t *learn,
                  int32_t count);

/* Cuts what was added into equal chunks of about so many rows; 0: into one. */
void hzp_micro_cut(struct hzp_micro *micro, int32_t chunk_rows);

/* Chunk `chunk` as attention sees it, if it was cut; else all, as chunk 0. */
struct hzp_packed hzp_micro_packed(const struct hzp_micro *micro, int32_t chunk);

/* The memory of training beside the weights: gradients, moments, residuals in the units of the
 * weights; activations of one micro-batch; scratch. */
struct hzp_train_space;

struct hzp_train_space_config {
    int32_t rows_max;           /* of a micro-batch */
    int32_t head_rows;          /* most rows whose logits there are at a time */
    enum hzp_dtype moment_type; /* F32 or BF16 */
    uint64_t quantum_flops;     /* 0: never cut */
    bool forward_only;          /* evaluation: no gradients, moments, kept activations */
    int32_t ride_rows;          /* of serving, for which there is room behind the micro-batch */
    bool fp8;                   /* forward_only alone: products as serving's under fp8 */
};
size_t hzp_train_space_bytes(const struct hzp_layout *layout, enum hzp_dtype act,
                             const struct hzp_train_space_config *config);
int hzp_train_space_create(const struct hzp_model *model,
                           const struct hzp_train_space_config *config,
                           struct hzp_train_space **ret);
void hzp_train_space_destroy(struct hzp_train_space *space); /* NULL: no effect */

/* Gradients F32, first and second moments, residuals I16 (NULL in F32 models), in the units of the
 * weights and in device memory.  For checkpoints and tests; valid between chains. */
const struct hzp_units *hzp_train_space_grads(const struct hzp_train_space *space);
const struct hzp_units *hzp_train_space_m(const struct hzp_train_space *space);
const struct hzp_units *hzp_train_space_v(const struct hzp_train_space *space);
const struct hzp_units *hzp_train_space_residual(const struct hzp_train_space *space);

/* Forward, loss and backward of a micro-batch, reading version v, adding to the gradients (the
 * first micro-batch of an update zeroes them: first = true). */
void hzp_micro_build(struct hzp_plan *chain, const struct hzp_model *model,
                     const struct hzp_version *v, const struct hzp_micro *micro,
                     struct hzp_train_space *space, bool first);

/* Forward and loss only: fills micro->loss. */
void hzp_eval_build(struct hzp_plan *chain, const struct hzp_model *model,
                    const struct hzp_version *v, const struct hzp_micro *micro,
                    struct hzp_train_space *space);

#endif
