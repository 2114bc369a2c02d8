/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/chain_work.h - what a chain of training is made from, as bytes: so ranks that
 * compute each step together build the same chain (nanobatch/step_record.h).
 *
 *     micro-batch   its documents, with weights; whether it is the first of its update
 *     update        the numbers of AdamW; whether moments and residuals are copied before it
 *     evaluation    the documents of a gate's micro-batch; whether the draft is evaluated
 *     restore       nothing: the update's moments and residuals are copied back
 *     gather        which piece of the state comes together, for a checkpoint (gather.h)
 *
 * Pointers and sizes of a rank's own slice are not part of it, nor are versions, which the steps'
 * records name.  What is read is checked before it is used; the bytes are in the machine's order,
 * as those of the record around them.
 *
 * Thread: engine.
 */
#ifndef HZP_NANOBATCH_MODEL_CHAIN_WORK_H
#define HZP_NANOBATCH_MODEL_CHAIN_WORK_H

#include "nanobatch/model/backward.h"
#include "nanobatch/model/gather.h"
#include "nanobatch/model/update.h"

enum hzp_chain_kind {
    HZP_CHAIN_MICRO,
    HZP_CHAIN_UPDATE,
    HZP_CHAIN_GATHER,
    HZP_CHAIN_EVAL,
    HZP_CHAIN_RESTORE
};

struct hzp_chain_work {
    enum hzp_chain_kind kind;
    bool first;                    /* MICRO: of its update */
    bool saves;                    /* UPDATE: it may be undone */
    bool draft;                    /* EVAL: of the draft, not of the current version */
    bool halved;                   /* MICRO: its halves take turns (hzp_micro_halve) */
    struct hzp_update_hyper hyper; /* UPDATE */
    struct hzp_gather gather;      /* GATHER; what is read is not compared with the model */
};

/* Bytes of the longest work, where micro-batches have at most so many rows. */
size_t hzp_chain_work_room(int32_t rows_max);

/* Writes it into data, which has room for the longest; returns its bytes.  MICRO, EVAL: of this
 * micro-batch, cut or not; others: micro is not used. */
size_t hzp_chain_work_write(const struct hzp_chain_work *work, const struct hzp_micro *micro,
                            char *data);

/* Reads it; MICRO, EVAL: into micro, which is cleared first, and cut into halves where the work
 * says so.  Tokens are below vocab, documents have at most `positions` rows.  HZP_EFORMAT says what
 * is wrong; micro is then undefined. */
int hzp_chain_work_read(const void *data, size_t bytes, int32_t vocab, int32_t positions,
                        struct hzp_chain_work *ret, struct hzp_micro *micro,
                        struct hzp_err_text *reterr);

/* Appends its items: of the micro-batch or the evaluation, reading v; of the update, from v into
 * draft; of a valid piece of v or of the state that belongs to it.  The space has a backup where
 * that is copied, or copied back. */
void hzp_chain_work_build(struct hzp_plan *chain, const struct hzp_chain_work *work,
                          const struct hzp_model *model, const struct hzp_version *v,
                          struct hzp_version *draft, const struct hzp_micro *micro,
                          struct hzp_train_space *space);

#endif
