/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_log.h - the durable log of samples and of published versions (SQLite).
 *
 * A sample is accepted when its transaction is committed (synchronous = FULL); sequence numbers
 * start at 1 and have no holes; each row carries a checksum.  A version's row lists the samples it
 * learned from; a checkpoint's row has the number up to which all samples are contained in that
 * checkpoint, and which passes of later samples are.  After a restart, samples beyond the newest
 * checkpoint are queued again for the passes that it does not contain, so no accepted sample is
 * lost and none is learned more often than it was to be; samples that a lost version had already
 * learned from are counted (hzp_sample_log_resume).
 *
 * Thread: any (one lock inside) except the engine, because SQLite may wait for the disk.
 */
#pragma once

#include "nanobatch/model/loss.h"
#include "weights/versions.h"

struct hzp_sample {
    int64_t sequence_number; /* set by append; <= 0: not from the log (replay, offline) */
    int32_t count;
    int32_t passes; /* those that the log's newest checkpoint contains; 0: of a new sample */
    bool learned;   /* from one of them at least: it was not given up in all */
    int64_t lesson; /* the first sample that was committed with it, as read from the log */
    int32_t *token; /* [count], owned */
    float *weight;  /* [count] how much a token's loss counts, finite, not 0; NULL: each 1 */
    struct hzp_row_loss *how; /* [count] the loss of a token; NULL: cross-entropy */
    struct hzp_soft *soft;    /* [softs] of the learned tokens of kind SOFT, in their order */
    int32_t softs;
    uint8_t *learn; /* [count] 1: train on this token as a target; same allocation as token */
};

/* One allocation for the sample and its arrays; contents are copied.  weight [count] is read where
 * learn is 1; NULL, or each of these 1: the sample has none.  how [count], valid
 * (nanobatch/model/loss.h) where learn is 1, and read there; NULL: the sample has none.  soft: one,
 * valid, for each learned token behind the first whose kind is SOFT; NULL: there is none of that
 * kind.  NULL: out of memory. */
struct hzp_sample *hzp_sample_create_soft(const int32_t *token, const uint8_t *learn,
                                          const float *weight, const struct hzp_row_loss *how,
                                          const struct hzp_soft *soft, int32_t count);
static inline struct hzp_sample *hzp_sample_create_losses(const int32_t *token,
                                                          const uint8_t *learn, const float *weight,
                                                          const struct hzp_row_loss *how,
                                                          int32_t count)
{
    return hzp_sample_create_soft(token, learn, weight, how, NULL, count);
}
void hzp_sample_destroy(struct hzp_sample *sample); /* NULL: no effect */
/* A pair is one sample: the chosen sequence, HZP_PAIR_CUT, the rejected one, each with its prompt.
 * The number of tokens in front of the cut; of another sample all. */
static inline int32_t hzp_sample_first(const struct hzp_sample *sample)
{
    return hzp_before_cut(sample->token, sample->count);
}

struct hzp_sample_log;

/* The file is not there, or empty, as a copy that failed leaves it: opening it would begin one. */
bool hzp_sample_log_lost(const char *path);
/* Opens or creates the file. fingerprint: of model configuration and vocabulary; the log of another
 * model is refused (HZP_EINVAL), naming the file.  NULL: the log of any model, which must exist. */
int hzp_sample_log_open(const char *path, const char *fingerprint, struct hzp_sample_log **ret,
                        struct hzp_err_text *reterr);
/* The same, but where there is no log yet and no space to make one, it is in memory, and resume
 * says that it is not marked; hzp_sample_log_mark() makes the file.  why: it is known that no file
 * can be made now, for this reason; NULL: it is tried. */
int hzp_sample_log_open_later(const char *path, const char *fingerprint,
                              const struct hzp_err_text *why, struct hzp_sample_log **ret,
                              struct hzp_err_text *reterr);
void hzp_sample_log_close(struct hzp_sample_log *log); /* NULL: no effect */

/* Names a body that its client may send again because the answer was lost. */
struct hzp_body_key {
    const char *key;     /* chosen by the client; kept for a day at least; NULL: none */
    uint64_t digest;     /* the body's */
    const char *session; /* the session that taught it (sample_log_lessons.c); NULL: none */
    /* A note that is committed with it: note_text, and the first number behind it; NULL: none. */
    const char *note, *note_text;
};
/* The same for a body with a key, a session, or both.  1: it was committed before, *ret_first is
 * its first number, and no sample was added.  HZP_EINVAL: the key names another body. */
int hzp_sample_log_append_once(struct hzp_sample_log *log, struct hzp_sample **sample,
                               int32_t count, const struct hzp_body_key *key, int64_t *ret_first,
                               struct hzp_err_text *reterr);
/* Whether that body was committed before: 1, with its first number and its count; 0: no, or it has
 * no key. */
int hzp_sample_log_find_body(struct hzp_sample_log *log, const struct hzp_body_key *key,
                             int64_t *ret_first, int64_t *ret_count, struct hzp_err_text *reterr);

/* A body that adds no samples, known from here on by its key, with the number of what it is about:
 * hzp_sample_log_find_body gives that, and count 0. */
int hzp_sample_log_add_body(struct hzp_sample_log *log, const struct hzp_body_key *key,
                            int64_t number, struct hzp_err_text *reterr);

/* Compares what the log says under `name` with value, which identifies `what` ("tokenizer"); a log
 * that says nothing yet takes it over.  HZP_EINVAL: another. */
int hzp_sample_log_pin(struct hzp_sample_log *log, const char *name, const char *what,
                       const char *value, struct hzp_err_text *reterr);

/* A note: a text under a name.  ret "": there is none. */
int hzp_sample_log_note(struct hzp_sample_log *log, const char *name, char *ret, size_t size,
                        struct hzp_err_text *reterr);
/* value NULL: there is none any more. */
int hzp_sample_log_set_note(struct hzp_sample_log *log, const char *name, const char *value,
                            struct hzp_err_text *reterr);
/* All of it, owned by the caller; NULL: there is none, or it cannot be read. */
char *hzp_sample_log_whole_note(struct hzp_sample_log *log, const char *name);

/* Marks samples that were given up in all their passes, because their updates were not finite. */
int hzp_sample_log_fail(struct hzp_sample_log *log, const int64_t *number, int32_t count,
                        int64_t optimizer_step, struct hzp_err_text *reterr);
/* The numbers of the failed samples in [first, last], in ascending order, max at most; returns how
 * many were written.  *ret_count (may be NULL): how many there are. */
int32_t hzp_sample_log_failed(struct hzp_sample_log *log, int64_t first, int64_t last, int64_t *ret,
                              int32_t max, int64_t *ret_count, struct hzp_err_text *reterr);

/* The newest sequence number; 0: none. */
int64_t hzp_sample_log_last(struct hzp_sample_log *log);

/* A new log begins with the number after `last`: the samples up to it are known only to a
 * checkpoint. */
int hzp_sample_log_begin_after(struct hzp_sample_log *log, int64_t last,
                               struct hzp_err_text *reterr);

/* The first sample with a number > after whose row is damaged and that is not marked as failed;
 * *ret 0: none. */
int hzp_sample_log_find_damaged(struct hzp_sample_log *log, int64_t after, int64_t *ret,
                                struct hzp_err_text *reterr);

/* Loads up to max samples with numbers > after, in ascending order, without those that are marked
 * as failed; the caller owns them.  Returns their number. */
int32_t hzp_sample_log_read(struct hzp_sample_log *log, int64_t after, int32_t max,
                            struct hzp_sample **ret, struct hzp_err_text *reterr);

/* Journals a published version. */
int hzp_sample_log_version(struct hzp_sample_log *log, const struct hzp_version_record *record,
                           struct hzp_err_text *reterr);

/* Reads the newest `max` journalled versions with ids below `below`, newest first; returns their
 * number.  Their state is FREE: this process has no memory of them. */
int32_t hzp_sample_log_read_versions(struct hzp_sample_log *log, uint64_t below, int32_t max,
                                     struct hzp_version_record *ret, struct hzp_err_text *reterr);

/* Samples first .. last have had `done` passes, > 0, or have left the queue. */
struct hzp_passes {
    int64_t first, last;
    int32_t done;
    bool learned; /* as a sample's */
};
/* A checkpoint of version `id` (directory `name` under the state directory) is on disk, and with it
 * everything learned from samples <= learned_through, and these passes [count] of later ones, in
 * the order of their numbers.  One transaction. */
int hzp_sample_log_checkpoint(struct hzp_sample_log *log, uint64_t id, int64_t learned_through,
                              const char *name, const struct hzp_passes *passes, int32_t count,
                              struct hzp_err_text *reterr);

/* A checkpoint as the log has it. */
struct hzp_logged_checkpoint {
    uint64_t id;
    int64_t learned_through;
    char name[64];
};
/* The newest max checkpoints, newest first; returns their number. */
int32_t hzp_sample_log_checkpoints(struct hzp_sample_log *log, struct hzp_logged_checkpoint *ret,
                                   int32_t max, struct hzp_err_text *reterr);
/* The checkpoint is not used any more: its samples beyond an older one are queued again. */
int hzp_sample_log_forget_checkpoint(struct hzp_sample_log *log, uint64_t id,
                                     struct hzp_err_text *reterr);

/* Where to continue after a restart: the newest checkpoint (id 0: none), the next version id, which
 * is larger than all in the log and than ids_used, and the number of samples that lost versions,
 * those after the checkpoint, had learned from.  If the process was killed, 4096 ids are skipped:
 * clients may have seen versions that were not journalled. */
struct hzp_sample_log_resume {
    uint64_t checkpoint_id, next_version_id;
    int64_t learned_through, last_sequence_number, retrain_count;
    bool killed; /* these ids are skipped now */
    char checkpoint_name[64];
    /* The log can be read and not written, or is not on disk yet; `why` says why: only the first
     * version may be published until hzp_sample_log_mark() has succeeded. */
    bool unmarked;
    struct hzp_err_text why;
};
int hzp_sample_log_resume(struct hzp_sample_log *log, uint64_t ids_used,
                          struct hzp_sample_log_resume *ret, struct hzp_err_text *reterr);
/* Writes what resume could not write; makes the file of a log that is in memory. */
int hzp_sample_log_mark(struct hzp_sample_log *log, struct hzp_err_text *reterr);

/* --- Sessions: sample_log_lessons.c ----------------------------------------------------------
 * Names under which clients teach, each with the newest sample that it taught.  The log keeps
 * HZP_SESSIONS_MAX of them; the one whose newest sample is the oldest makes room. */

enum { HZP_SESSIONS_MAX = 4096, HZP_SESSION_BYTES = 128 };
struct hzp_session {
    char name[HZP_SESSION_BYTES + 1];
    int64_t newest;
};
/* Samples up to `newest` were taught in the session. */
int hzp_sample_log_note_session(struct hzp_sample_log *log, const char *name, int64_t newest,
                                struct hzp_err_text *reterr);
/* All sessions that are kept, at most max; returns their number.  *ret_forgotten: the newest sample
 * that a session which is not kept may have taught. */
int32_t hzp_sample_log_sessions(struct hzp_sample_log *log, struct hzp_session *ret, int32_t max,
                                int64_t *ret_forgotten, struct hzp_err_text *reterr);

/* --- sample_log_lessons.c ---------------------------------------------------------------------
 * A lesson is what was committed together: the examples of one body. */

struct hzp_logged_lesson {
    int64_t id;                          /* from 1 on */
    int64_t first, last;                 /* its samples */
    int64_t unix_ms;                     /* when it was committed; 0: not known */
    char session[HZP_SESSION_BYTES + 1]; /* that taught it; "": none */
};
/* The newest `max` lessons with ids below `below`, newest first; returns their number. */
int32_t hzp_sample_log_lessons(struct hzp_sample_log *log, int64_t below, int32_t max,
                               struct hzp_logged_lesson *ret, struct hzp_err_text *reterr);
/* HZP_ENOENT: there is no such lesson. */
int hzp_sample_log_lesson(struct hzp_sample_log *log, int64_t id, struct hzp_logged_lesson *ret,
                          struct hzp_err_text *reterr);
/* The one whose first sample that is.  HZP_ENOENT. */
int hzp_sample_log_lesson_of(struct hzp_sample_log *log, int64_t first,
                             struct hzp_logged_lesson *ret, struct hzp_err_text *reterr);
/* Sets the note `name`N of each lesson of samples first .. last, where N is its first sample. */
int hzp_sample_log_note_lessons(struct hzp_sample_log *log, const char *name, int64_t first,
                                int64_t last, const char *value, struct hzp_err_text *reterr);
/* The samples first .. last that still have their tokens, whatever marks they have; at most max.
 * The caller owns them.  Returns their number. */
int32_t hzp_sample_log_read_range(struct hzp_sample_log *log, int64_t first, int64_t last,
                                  int32_t max, struct hzp_sample **ret,
                                  struct hzp_err_text *reterr);
/* Marks samples first .. last as skipped, because what they taught was taken back. */
int hzp_sample_log_skip(struct hzp_sample_log *log, int64_t first, int64_t last, uint64_t version,
                        struct hzp_err_text *reterr);

/* --- sample_log_marks.c -----------------------------------------------------------------------
 * Samples that the versions to come do not learn, names of versions, and the way back. */

/* Why a sample is not learned any more: it was skipped when an older version was activated, or its
 * lesson was taken back; it was deleted, tokens and all; the gate refused the draft that had
 * learned it. */
enum hzp_mark_kind { HZP_MARK_SKIPPED = 1, HZP_MARK_DELETED, HZP_MARK_REJECTED };

struct hzp_mark {
    int64_t first, last; /* sequence numbers */
    enum hzp_mark_kind kind;
    /* skipped: the version that the activation made; else the one that served then */
    uint64_t version;
};
/* Appends them; they are on disk when it returns.  HZP_EIO. */
int hzp_sample_log_add_marks(struct hzp_sample_log *log, const struct hzp_mark *mark, int32_t count,
                             struct hzp_err_text *reterr);
/* All marks; the caller frees *ret.  Returns their number. */
int32_t hzp_sample_log_marks(struct hzp_sample_log *log, struct hzp_mark **ret,
                             struct hzp_err_text *reterr);

enum { HZP_VERSION_NAME_MAX = 64 };
struct hzp_version_name {
    char name[HZP_VERSION_NAME_MAX + 1];
    uint64_t id;
    int64_t unix_ms; /* when it was given */
};
/* Gives the name to version id, and takes it from the one that had it; id 0: takes it away. */
int hzp_sample_log_set_name(struct hzp_sample_log *log, const char *name, uint64_t id,
                            struct hzp_err_text *reterr);
/* All names, sorted; at most max.  Returns their number. */
int32_t hzp_sample_log_names(struct hzp_sample_log *log, struct hzp_version_name *ret, int32_t max,
                             struct hzp_err_text *reterr);

/* An older version serves again under a new id. */
struct hzp_activation {
    uint64_t id, of;         /* the new id, and the version whose weights it has */
    int64_t learned_through; /* that version's */
    const char *source;      /* where weights that were sent here (of: 0) came from; NULL: none */
    const char *checkpoint;  /* a directory that holds it: with that a restart begins */
    int64_t skip_through; /* samples after learned_through, up to this one, are skipped; 0: none */
    int64_t forget;       /* the sample that is deleted by this; 0: none */
    int64_t undo_first, undo_last; /* those that are taken back by this, and skipped; 0: none */
    bool replay; /* samples are not skipped any more that were skipped later than `of`; else that
                  * holds for those that it has learned, and the others stay skipped */
};
/* Where version id was sent from; "": it was made here.  id 0: any version. */
int hzp_sample_log_source(struct hzp_sample_log *log, uint64_t id, char *ret, size_t size,
                          struct hzp_err_text *reterr);

/* All of it in one transaction. */
int hzp_sample_log_activate(struct hzp_sample_log *log, const struct hzp_activation *a,
                            struct hzp_err_text *reterr);
/* Marks a sample as deleted and removes its tokens. */
int hzp_sample_log_delete(struct hzp_sample_log *log, int64_t number, uint64_t version,
                          struct hzp_err_text *reterr);

/* Looks at a version and its ancestors: *ret_learned is the oldest that learned from one of samples
 * first .. last (0: none); ret [max] are the checkpoints of older ones, newest first; *ret_root is
 * the oldest ancestor.  Returns their number. */
int32_t hzp_sample_log_before(struct hzp_sample_log *log, uint64_t version, int64_t first,
                              int64_t last, uint64_t *ret_learned, uint64_t *ret_root,
                              struct hzp_logged_checkpoint *ret, int32_t max,
                              struct hzp_err_text *reterr);
