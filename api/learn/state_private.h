/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/state_private.h - the state's struct, private to the files that implement it: state.c
 * (opening, accepting), state_files.c (the file thread), write_behind.c (checkpoints from a copy),
 * marks.c (what is not learned), said.c (what
 * was said otherwise), versions.c (what is kept, names, jobs), rollback.c (older
 * versions), original.c (the model as it was started), rejoin.c (other ranks that were lost),
 * replication.c (versions that travel).
 *
 * Thread: as the comments in the struct say.
 */
#pragma once

#include "api/learn/audit.h"
#include "api/learn/gate_file.h"
#include "api/learn/retention.h"
#include "api/learn/update_log.h"
#include "api/learn/upload.h"
#include "api/learn/versions.h"

enum {
    HZP_STATE_FAILED_PIECE = 256, /* failed samples looked at together */
    HZP_STATE_MANIFESTS = 4,      /* kept */
    HZP_STATE_REJECTIONS = 64,    /* rejected lessons whose reasons are kept in memory */
    HZP_STATE_REASON = 320,       /* bytes of a reason */
};

/* In the state directory: configuration and tokenizer of the model. */
#define HZP_STATE_TEXTS "model"

/* Notes in the log: of size and time of the model's files, and of all their bytes. */
#define HZP_STATE_NOTE_FILES    "weights_files"
#define HZP_STATE_NOTE_CONTENTS "weights_contents"
/* Note in the log: a client was told that examples up to this one are served. */
#define HZP_STATE_NOTE_SERVED "served_through"
/* Note in the log, written at an orderly end: ids below it were given to versions, also such that
 * were only on trial and are not in the log. */
#define HZP_STATE_NOTE_IDS "version_ids"

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
    struct hzp_gate_file *gate; /* NULL: none */
    struct hzp_upload *upload;  /* NULL: nothing is saved; it has a lock of its own */
    char tokenizer[HZP_FINGERPRINT_SIZE];

    /* fixed after start */
    struct hzp_trainer *trainer;
    const struct hzp_model *model;
    struct hzp_loop *loop;
    struct hzp_update_log *updates;
    bool copies; /* a copy is wanted */
    pthread_t thread;
    bool started;

    /* file thread; the engine thread once that has ended */
    char *texts_dir;    /* where checkpoints take configuration and tokenizer from */
    uint64_t journaled; /* newest version in the log */
    int64_t saved_step; /* optimizer step of the newest checkpoint */
    atomic_int merged;  /* versions of an average alone since the newest attempt at one */
    int64_t tried_step; /* optimizer step of the newest attempt, which may have failed */
    uint64_t saved_ns, save_took_ns, save_begin_ns;
    bool starves;
    struct hzp_border_call release; /* the newest of hzp_state_release */
    /* the loop is to end, and waits for a last checkpoint; fn NULL: it would not wait */
    struct hzp_border_call finished;
    /* a checkpoint in two stages (write_behind.c) */
    struct hzp_snapshot *copy; /* NULL: checkpoints are written while the trainer is frozen */
    pthread_t saver;
    bool saving;                     /* the saver thread runs, or has ended and is not joined */
    struct hzp_version_record saved; /* the record of the version that it writes */
    struct hzp_passes *passes;       /* [passes_count] those of the state that was frozen last */
    int32_t passes_count;
    bool late, late_told;  /* the next checkpoint is due meanwhile; that is logged */
    bool contents_due;     /* the model's weights have to be read whole, once */
    bool original_seen;    /* whether a copy of the model is to be kept has been decided */
    int32_t failed_logged; /* how many of the queue's failed samples the log has */
    int32_t rejected_logged;
    uint64_t reasons_logged;
    uint64_t trials_seen; /* ended ones in the audit log */

    /* any thread, once opened */
    struct hzp_audit *audit; /* NULL: nothing is saved */
    struct hzp_retention keep;
    struct hzp_said *said; /* it has a lock of its own */

    /* any thread */
    atomic_bool fresh; /* remove the new state directory at close */
    struct hzp_wake wake;
    atomic_bool stopping;
    atomic_bool saver_ended;
    /* What could not be written, and is tried again: marks and versions, examples, a checkpoint.
     * Each is false again once that works. */
    atomic_bool journal_failed, accept_failed, save_failed;
    _Atomic int64_t told;  /* the note of what clients were told is served */
    _Atomic int64_t owed;  /* hzp_state_owed; 0: none */
    atomic_bool read_only; /* the log cannot be written: nothing is accepted or learned */
    _Atomic uint64_t last_update_ns;

    /* under lock */
    struct hzp_lock lock;
    struct hzp_state_stats stats;
    struct hzp_rejection {
        int64_t first, last; /* examples that were rejected together; 0: none */
        char why[HZP_STATE_REASON];
    } rejection[HZP_STATE_REJECTIONS]; /* the n-th: [n % HZP_STATE_REJECTIONS] */
    _Atomic uint64_t rejections;       /* so far */
    struct hzp_mark *mark;             /* [marks] as the log has them; ascending */
    int32_t marks;
    struct hzp_version_job job[HZP_JOBS_KEPT]; /* id 0: none */
    int32_t job_held[HZP_JOBS_KEPT];           /* the number of requests that wait for it */
    uint64_t jobs;                             /* the newest job's number; 0: none */
    struct hzp_manifest
        manifest[HZP_STATE_MANIFESTS]; /* manifests of versions on disk; unit NULL: free */
    uint64_t manifests;                /* made so far */
    atomic_bool manifest_busy;         /* one is being made; any thread */

    struct {
        bool wanted, ended;
        bool closed; /* the file thread has ended: nothing is done any more */
        hzp_state_joiner *join;
        void *ctx;
        int result;
        struct hzp_err_text why;
    } rejoin; /* rejoin.c; under lock */
    struct hzp_wake rejoin_ended;

    /* saver thread, and the file thread once that has ended */
    int saver_result;
    struct hzp_err_text saver_why;
};

/* Engine thread: examples first .. last were rejected together.  File thread: keeps the reasons
 * with their lessons. */
void hzp_state_note_rejection(struct hzp_state *s, int64_t first, int64_t last, const char *why);
void hzp_state_log_reasons(struct hzp_state *s);

/* Prompts that were taught (said.c). */
struct hzp_said *hzp_said_create(void);
void hzp_said_destroy(struct hzp_said *said); /* NULL: no effect */

/* Counts examples that were accepted, r >= 0, or refused; returns 0, or the error. */
int hzp_state_count_accepted(struct hzp_state *s, int r, int64_t first, int64_t last);

/* Marks rejected and failed samples in the log, and journals every version that it does not have.
 * File thread. */
void hzp_state_journal(struct hzp_state *s);

/* HZP_EIO: the state's disk has no room for so many bytes now.  File thread. */
int hzp_state_has_room(const struct hzp_state *s, size_t bytes, struct hzp_err_text *reterr);

/* Writes checkpoint-ID of version v, which is held, and whose state the trainer has; does not
 * enter it in the log.  File thread. */
int hzp_state_write_files(struct hzp_state *s, const struct hzp_version *v, char *ret_name,
                          size_t size, struct hzp_err_text *reterr);
/* Takes note of which passes the frozen trainer's weights contain, for the log's entry of the
 * checkpoint that is written then.  File thread. */
void hzp_state_note_passes(struct hzp_state *s);
/* Enters a checkpoint that was written in the log, with those passes.  File thread. */
int hzp_state_enter_files(struct hzp_state *s, const struct hzp_version_record *record,
                          const char *name, struct hzp_err_text *reterr);
/* Enters a checkpoint that was written in the log and counts it; r < 0: it failed, `why` says why.
 * File thread. */
void hzp_state_end_checkpoint(struct hzp_state *s, const struct hzp_version_record *record,
                              const char *name, int r, struct hzp_err_text *why);
/* Counts a checkpoint that is in the log, and removes old ones.  File thread. */
void hzp_state_wrote(struct hzp_state *s, const struct hzp_version_record *record,
                     const char *name);

/* hzp_sample_queue_failed or _rejected. */
typedef int32_t hzp_state_reader(struct hzp_sample_queue *q, int32_t from, int64_t *ret,
                                 int32_t max);
/* Writes those of this run's numbers that lie from first to last, at most max, and adds how many
 * there are to *count; returns how many it wrote.  They are read from the queue, because the log,
 * as of its newest reading, does not have them.  Any thread. */
int32_t hzp_state_pick(struct hzp_state *s, hzp_state_reader *reader, int64_t first, int64_t last,
                       int64_t *ret, int32_t max, int64_t *count);

/* The smallest of this run's numbers; INT64_MAX: there is none.  Any thread. */
int64_t hzp_state_smallest(struct hzp_state *s, hzp_state_reader *reader);
/* The smallest number with a mark, or of the gate's rejections so far; INT64_MAX: none.  Any
 * thread. */
int64_t hzp_state_first_mark(struct hzp_state *s);

/* Reads the marks of the log again.  The caller has changed them, or opens the state. */
int hzp_state_read_marks(struct hzp_state *s, struct hzp_err_text *reterr);
/* Adds the newest samples of the log up to this number to the queue's earlier ones, which it has
 * none of.  The caller makes sure that nothing is drawn.  What cannot be read is logged and left
 * out. */
void hzp_state_read_earlier(struct hzp_state *s, int64_t learned_through);

/* Border calls (nanobatch/border.h) of the file thread.
 * Call: waits until the function is done.  HZP_EDEVICE, HZP_EIO, HZP_ECANCELED: the loop has
 * ended.
 * Hold: calls it with the trainer, for which it may wait long; the thread's other work goes on
 * meanwhile.  HZP_ECANCELED: the loop has ended, or in_vain said that it is not to be waited for,
 * and it is to be released all the same.
 * Release: calls it with the trainer, without waiting. */
int hzp_state_call(struct hzp_state *s, hzp_border_fn *fn, void *ctx, struct hzp_err_text *reterr);
int hzp_state_hold(struct hzp_state *s, hzp_border_fn *fn, bool (*in_vain)(struct hzp_state *s));
void hzp_state_release(struct hzp_state *s, hzp_border_fn *fn);

/* --- write_behind.c: file thread -------------------------------------------------------------- */

/* Copies version v, whose state the trainer has and which is frozen, and writes the copy behind:
 * the trainer may go on when this returns. */
void hzp_state_copy_and_write(struct hzp_state *s, const struct hzp_version *v);
/* If the copy is on disk, or with wait as soon as it is, enters it in the log. */
void hzp_state_turn_saver(struct hzp_state *s, bool wait);

/* --- versions.c, rollback.c: file thread ------------------------------------------------------ */

/* The checkpoint of the version; ret->id 0: it is not on disk.  Any thread. */
int hzp_state_find_kept(struct hzp_state *s, uint64_t id, struct hzp_logged_checkpoint *ret,
                        struct hzp_err_text *reterr);

/* Does the job that waits: waits for what it needs from the trainer, as hzp_state_hold does. */
void hzp_state_turn_jobs(struct hzp_state *s);
/* Whether a job waits to be run. */
bool hzp_state_job_waits(struct hzp_state *s);
/* Removes checkpoints that the policy does not keep; never `needed`. */
void hzp_state_prune(struct hzp_state *s, const char *needed);

/* Whether that can be done, as far as files and log say, before learning is suspended for it. */
int hzp_state_check(struct hzp_state *s, const struct hzp_version_job *job,
                    struct hzp_err_text *reterr);
/* Makes job->version serve again; or takes the job's examples back, that is, forgets or skips them.
 * Learning is suspended. */
int hzp_state_activate(struct hzp_state *s, const struct hzp_version_job *job,
                       struct hzp_version_job *ret, struct hzp_err_text *reterr);
int hzp_state_take_back(struct hzp_state *s, const struct hzp_version_job *job,
                        struct hzp_version_job *ret, struct hzp_err_text *reterr);
/* Makes the weights of the upload job->checksum serve. */
int hzp_state_push(struct hzp_state *s, const struct hzp_version_job *job,
                   struct hzp_version_job *ret, struct hzp_err_text *reterr);

/* Makes the checkpoint serve again, or where *from has id 0 the model, and has what was learned
 * since learned again.  Learning is suspended. */
int hzp_state_go_back(struct hzp_state *s, const struct hzp_logged_checkpoint *from,
                      struct hzp_err_text *reterr);
/* The newest whole checkpoint; id 0: there is none. */
int hzp_state_newest_whole(struct hzp_state *s, struct hzp_logged_checkpoint *ret,
                           struct hzp_err_text *reterr);

/* --- original.c ------------------------------------------------------------------------------- */

/* Whether the version is the model as it was started: nothing was learned, or sent here.  Any
 * thread. */
bool hzp_state_is_original(struct hzp_state *s, uint64_t id);
/* Where it is.  True: that is a copy in the state.  Any thread. */
bool hzp_state_original_dir(const struct hzp_state *s, char ret[PATH_MAX]);
/* File thread: reads it, HZP_ENOENT: it is not there any more; copies it into the state, where that
 * was not done; the same where it is due, once. */
int hzp_state_load_original(struct hzp_state *s, const struct hzp_units *units, uint64_t checksum,
                            struct hzp_err_text *reterr);
int hzp_state_keep_original(struct hzp_state *s, struct hzp_err_text *reterr);
void hzp_state_turn_original(struct hzp_state *s);

/* --- rejoin.c: file thread -------------------------------------------------------------------- */

/* Does what a call of hzp_state_rejoin waits for.  last: the thread ends, and so does the wait. */
void hzp_state_turn_rejoin(struct hzp_state *s, bool last);

/* --- rollback.c ------------------------------------------------------------------------------- */

/* Suspends learning, makes the newest whole checkpoint on disk serve again, *ret_version, and has
 * what was learned since learned again. */
int hzp_state_fall_back(struct hzp_state *s, uint64_t *ret_version, struct hzp_err_text *reterr);
