/* SPDX-License-Identifier: Apache-2.0 */
/* train/state/state_file.h - the optimizer's state on disk: trainer.safetensors in a checkpoint's
 * directory, with moments, residuals, the recipe, the numbers of the run, and checksums of these
 * and of the weights it belongs to.  Exact: a resumed run continues the same loss curve bit for
 * bit.
 *
 * Units come from a source and go to a sink, so the file does not know where they are: in this
 * rank's memory, in a copy, or in parts on several ranks.  In the file they are whole and in the
 * order of one rank, whatever the number of ranks.
 *
 * Thread: any, one at a time for each source, sink and file.
 */
#pragma once

#include "nanobatch/model/gather.h"
#include "train/state/recipe.h"

enum { HZP_TRAINER_NOTE_MAX = 1000 }; /* bytes of the string that describes the training data */

/* The numbers that are saved with the state. */
struct hzp_trainer_numbers {
    int64_t optimizer_step, draws, learned_through;
    int64_t reset_step; /* the step after which the moments were last zeroed; 0: never */
    double loss;        /* < 0: none */
    uint64_t checksum;  /* the weights' */
};

/* A version with the optimizer's state that belongs to it: what a checkpoint is written of. */
struct hzp_train_state {
    struct hzp_unit_source source;
    struct hzp_trainer_numbers numbers; /* checksum 0: not known yet */
    struct hzp_recipe recipe;
    void *owner; /* for the source */
};

/* Where moments and residuals go. */
struct hzp_state_sink {
    const struct hzp_units *part[HZP_STATE_WEIGHTS]; /* gets its resident part of each unit */
    struct hzp_device *dev;                          /* whose memory that is; NULL: the host's */
    int threads;            /* that read at the same time, each another unit */
    hzp_unit_take_fn *take; /* is handed each whole unit, too, by those threads; NULL: nothing is */
    void *ctx;
};

/* Writes trainer.safetensors in dir.  note: at most HZP_TRAINER_NOTE_MAX bytes; NULL: none.
 * HZP_EIO: it cannot be written; errors of the source. */
int hzp_state_file_write(const struct hzp_train_state *state, const char *dir, const char *note,
                         struct hzp_err_text *reterr);

struct hzp_state_file;

/* Opens dir's trainer.safetensors and checks everything but its contents' checksums: that it has
 * the parts that the sink has, in their types and sizes (HZP_EFORMAT), and that it was written with
 * the same recipe (same_recipe), or else with moments of the same type (HZP_EINVAL, naming what
 * differs).  *ret: its numbers, with the checksum in the file; ret_note [HZP_TRAINER_NOTE_MAX + 1],
 * NULL: not wanted. */
int hzp_state_file_open(const char *dir, const struct hzp_state_sink *sink,
                        const struct hzp_recipe *recipe, bool same_recipe,
                        struct hzp_state_file **ret_file, struct hzp_trainer_numbers *ret,
                        char *ret_note, struct hzp_err_text *reterr);
void hzp_state_file_close(struct hzp_state_file *file); /* NULL: no effect */
/* HZP_EFORMAT: it belongs to other weights than those of this checksum. */
int hzp_state_file_belongs(const struct hzp_state_file *file, uint64_t checksum,
                           struct hzp_err_text *reterr);
/* Reads moments and residuals, and compares their checksums (HZP_EFORMAT).  stop: HZP_ECANCELED
 * soon after it is raised; NULL: nothing stops it.  After an error the sink's units are
 * undefined. */
int hzp_state_file_read(const struct hzp_state_file *file, const struct hzp_state_sink *sink,
                        const atomic_bool *stop, struct hzp_err_text *reterr);

/* The space's own units as a sink. */
struct hzp_state_sink hzp_state_space_sink(const struct hzp_model *model,
                                           const struct hzp_train_space *space);
/* The version's record gets optimizer step, loss, learned_through and checksum. */
void hzp_state_fill_record(struct hzp_version *v, const struct hzp_trainer_numbers *n);
/* Opens the file for a space, and checks that it belongs to v; *ret has its checksum.  in_use: the
 * space has been prepared; else it is given its memory here, on the engine's thread. */
int hzp_state_file_open_for(const struct hzp_model *model, const struct hzp_recipe *recipe,
                            struct hzp_train_space *space, bool in_use, const struct hzp_version *v,
                            const char *dir, bool same_recipe, struct hzp_state_file **ret_file,
                            struct hzp_trainer_numbers *ret, char *ret_note,
                            struct hzp_err_text *reterr);
/* All of it, into the space, and into v's record. */
int hzp_state_load(const struct hzp_model *model, const struct hzp_recipe *recipe,
                   struct hzp_train_space *space, struct hzp_version *v, const char *dir,
                   bool same_recipe, struct hzp_trainer_numbers *ret, char *ret_note,
                   struct hzp_err_text *reterr);

/* The numbers in a checkpoint's trainer.safetensors. */
int hzp_trainer_read_numbers(const char *dir, struct hzp_trainer_numbers *ret,
                             struct hzp_err_text *reterr);

/* Compares the checksums in dir's trainer.safetensors with its contents and with that of the
 * weights in dir (hzp_model_load), without a device.  HZP_EFORMAT: damaged.  *ret_learned_through:
 * as in the version's record. */
int hzp_trainer_verify(const char *dir, const struct hzp_layout *layout, uint64_t weights_checksum,
                       int64_t *ret_learned_through, struct hzp_err_text *reterr);
