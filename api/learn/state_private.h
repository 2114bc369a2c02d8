/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/state_private.h - the state's struct, private to the files that implement it: state.c
 * (opening, accepting), state_files.c (the file thread).
 *
 * Thread: as the comments in the struct say.
 */
#ifndef HZP_API_LEARN_STATE_PRIVATE_H
#define HZP_API_LEARN_STATE_PRIVATE_H

#include "api/learn/state.h"
#include "api/learn/update_log.h"
#include "base/thread.h"

#include <stdatomic.h>

enum {
    HZP_STATE_FAILED_PIECE = 256, /* failed samples looked at together */
};

/* In the state directory: configuration and tokenizer of the model. */
#define HZP_STATE_TEXTS "model"

/* Notes in the log: of size and time of the model's files, and of all their bytes. */
#define HZP_STATE_NOTE_FILES    "weights_files"
#define HZP_STATE_NOTE_CONTENTS "weights_contents"

struct hzp_state {
    /* fixed after open */
    struct hzp_state_config config;
    char *dir, *model_dir, *weights_dir; /* dir NULL: nothing is saved */
    size_t dir_existed;                  /* number of bytes of dir's path that existed before */
    struct hzp_sample_log *log;
    struct hzp_sample_queue *queue;
    struct hzp_examples examples;
    bool examples_made;
    int64_t
        *failed_before; /* [failed_before_count] samples that failed in earlier runs, ascending */
    int64_t failed_before_count;
    struct hzp_sample_log_resume resume;

    /* fixed after start */
    struct hzp_trainer *trainer;
    const struct hzp_model *model;
    struct hzp_loop *loop;
    struct hzp_update_log *updates;
    pthread_t thread;
    bool started;

    /* file thread; the engine thread once that has ended */
    char *texts_dir;    /* where checkpoints take configuration and tokenizer from */
    uint64_t journaled; /* newest version in the log */
    int64_t saved_step; /* optimizer step of the newest checkpoint */
    int64_t tried_step; /* optimizer step of the newest attempt, which may have failed */
    uint64_t saved_ns, save_took_ns;
    bool asked, journal_failed, starves;
    bool contents_due;     /* the model's weights have to be read whole, once */
    int32_t failed_logged; /* of the queue's failed samples, how many the log has */

    /* any thread */
    atomic_bool fresh; /* remove the new state directory at close */
    struct hzp_wake wake;
    atomic_bool stopping;
    atomic_bool read_only; /* the log cannot be written: nothing is accepted or learned */
    _Atomic uint64_t last_update_ns;

    /* under lock */
    struct hzp_lock lock;
    struct hzp_state_stats stats;
};

#endif
