/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/work.h - what rank 0 has decided that ranks are to do, as bytes.  A learner
 * (train/learner/learner.h) executes it, on rank 0 as on every other rank.
 *
 *     micro      forward, loss and backward of its documents, along its path
 *     none       a round in which others have a micro-batch and this group has not; their path
 *     update     AdamW, into the draft; whether moments and residuals are copied before it, and
 *                whether the draft is published at its end or stays open
 *     eval       the loss of its documents, by the draft or by the current version
 *     undo       moments and residuals are copied back, the draft is given up
 *     gather     a piece of the state comes together, by a chain (gather.h)
 *
 * and between ranks that do not compute each step together, where publication follows from no step:
 *
 *     deal       the micro-batches of an update, as works that follow it
 *     publish    the open draft is published
 *     read       whole units of the state come together, for a checkpoint
 *     clear      an older version is to serve again: a draft is begun, moments and residuals are
 *                zeroed
 *     write      whole units of it, or of its state, are sent
 *     adopt      all has been sent: it is compared, and published
 *     end        there is no more work
 *
 * Work travels with a step's record (nanobatch/step_record.h) or over a link beside the steps
 * (train/learner/collectives.h): the bytes are the same.  Pointers and sizes of a rank's own slice
 * are not part of it, nor are versions, which the steps' records name.  What is read is checked
 * before it is used; the bytes are in the machine's order, as those of the record around them.
 *
 * Thread: engine.
 */
#pragma once

#include "nanobatch/model/backward.h"
#include "nanobatch/model/gather.h"
#include "nanobatch/model/update.h"

enum hzp_work_kind {
    HZP_WORK_MICRO,
    HZP_WORK_UPDATE,
    HZP_WORK_GATHER,
    HZP_WORK_EVAL,
    HZP_WORK_UNDO,
    HZP_WORK_DEAL,
    HZP_WORK_PUBLISH,
    HZP_WORK_READ,
    HZP_WORK_CLEAR,
    HZP_WORK_WRITE,
    HZP_WORK_ADOPT,
    HZP_WORK_NONE,
    HZP_WORK_END
};

struct hzp_work {
    enum hzp_work_kind kind;
    bool first;                    /* MICRO, NONE: of its update */
    bool saves;                    /* UPDATE: moments and residuals are copied, for UNDO */
    bool open;                     /* UPDATE: PUBLISH, UNDO or a further update follows */
    bool draft;                    /* EVAL: of the draft, not of the current version */
    bool halved;                   /* MICRO: its halves take turns (hzp_micro_halve) */
    struct hzp_update_hyper hyper; /* UPDATE */
    struct hzp_gather gather;      /* GATHER; what is read is not compared with the model */
    int32_t units;                 /* READ, WRITE: units of gather.part, from gather.unit on */
    /* Works of micro-batches that follow, and their bytes.  DEAL: of the update that begins;
     * UPDATE: of the next one, if it is known. */
    int32_t micros;
    int64_t follow;
    int64_t optimizer_step; /* UPDATE: from 1; ADOPT: of the version */
    uint64_t version;       /* ADOPT: its id on rank 0 */
    uint64_t checksum;      /* ADOPT: of its weights */
};

enum {
    HZP_WORK_HEAD = 144,          /* bytes of a work without documents */
    HZP_WORK_FOLLOW_MAX = 1 << 30 /* bytes of the works that follow one */
};

/* Bytes of the longest work, where micro-batches have at most so many rows. */
size_t hzp_work_room(int32_t rows_max);

/* Writes it into data, which has room for the longest; returns its bytes.  MICRO, EVAL: of this
 * micro-batch, cut or not; NONE: its path, NULL: all layers; others: micro is not used. */
size_t hzp_work_write(const struct hzp_work *work, const struct hzp_micro *micro, char *data);

/* What a work may name: tokens below vocab, documents of so many rows, layers of the model. */
struct hzp_work_limits {
    int32_t vocab, positions, layers;
};

/* Reads it; MICRO, NONE, EVAL: into micro, which is cleared first, and cut into halves where the
 * work says so.  HZP_EFORMAT says what is wrong; micro is then undefined. */
int hzp_work_read(const void *data, size_t bytes, const struct hzp_work_limits *limits,
                  struct hzp_work *ret, struct hzp_micro *micro, struct hzp_err_text *reterr);

/* Works of micro-batches, one behind the other. */
struct hzp_works {
    char *data;
    size_t bytes, room;
    int32_t count;
};
void hzp_works_clear(struct hzp_works *works);
void hzp_works_free(struct hzp_works *works);
void hzp_works_reserve(struct hzp_works *works, size_t bytes); /* room for so many */
/* Appends that of a micro-batch, which is cut or not. */
void hzp_works_add(struct hzp_works *works, const struct hzp_work *work,
                   const struct hzp_micro *micro);
/* Replaces the contents by bytes that were received; they are not read yet. */
void hzp_works_receive(struct hzp_works *works, const void *data, size_t bytes, int32_t count);
/* The i-th; HZP_EFORMAT: there is none, or one before it is longer than what is left. */
int hzp_works_find(const struct hzp_works *works, int32_t i, const char **ret, size_t *ret_bytes,
                   struct hzp_err_text *reterr);

/* The checksum of a work's bytes and of what follows it (NULL: nothing). */
uint64_t hzp_work_sum(const void *work, size_t bytes, const void *follow, size_t follow_bytes);

/* Appends its items: of the micro-batch or the evaluation, reading v; of the update, from v into
 * draft; of a valid piece of v or of the state that belongs to it.  The space has a backup where
 * that is copied, or copied back. */
void hzp_work_build(struct hzp_plan *chain, const struct hzp_work *work,
                    const struct hzp_model *model, const struct hzp_version *v,
                    struct hzp_version *draft, const struct hzp_micro *micro,
                    struct hzp_train_space *space);
