/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/state.h - keeps accepted examples and trained weights across restarts.
 *
 *     STATE/samples.db           the log: accepted examples, published versions, checkpoints
 *     STATE/checkpoint-ID/       a model directory with trainer.safetensors; the newest ones
 *     STATE/model/               configuration and tokenizer of the model, for checkpoints
 *
 * A server starts from the weights of the newest whole checkpoint, or of the model if there is
 * none; damaged ones are renamed to checkpoint-ID.damaged and logged.  Examples that the checkpoint
 * does not cover are queued again; those that a lost version had already learned from are counted
 * and logged ("trained again").  Checkpoints without their log are refused, and so is another model
 * or tokenizer than the state was begun with.  If the log cannot be written, or on a first start
 * not be made, for lack of space, the state is read-only: the trainer is paused until it can be.
 *
 * A separate thread ("hzp-file") journals each published version and writes checkpoints, so the
 * engine thread never waits for SQLite or the disk.  A checkpoint is written from a copy of the
 * state (train/history/snapshot.h): while it is copied, serving and micro-batches continue, and
 * only the next optimizer update waits (hzp_trainer_freeze).  Without a copy it waits for the disk.
 *
 *     open -> hzp_weights_create(.first_id = hzp_state_first_id())
 *          -> a draft, filled by hzp_model_load(hzp_state_weights_dir()); trainer created
 *          -> restore -> the draft published -> loop created
 *          -> start -> (loop runs; update* from on_update; accept* from HTTP) -> stop -> close
 *
 * Thread: as each function says.
 */
#pragma once

#include "api/learn/examples.h"
#include "train/conductor/trainer.h"

struct hzp_state;

struct hzp_state_config {
    const char *state_dir; /* NULL: hzp_state_default_dir(); "none": nothing is saved */
    const char *model_dir;
    struct hzp_tokenizer *tok;            /* borrowed */
    const struct hzp_chat *chat;          /* borrowed; NULL: no chat template */
    const struct hzp_layout *layout;      /* borrowed */
    struct hzp_sample_queue_config queue; /* learned_through is set by open */
    const char *gate;                     /* a file of held-out examples; NULL: no gate */
    const char *gate_max_rise;            /* hzp_gate_file_open */
    const char *replay;                   /* a file of examples; NULL: none */
    int32_t micro_rows;       /* a text of a file is split into pieces of this many tokens + 1 */
    bool sdft;                /* as hzp_examples has it */
    int32_t body_samples_max; /* maximum number of examples in one body */
    int64_t checkpoint_every; /* updates; 0: only when idle and at the end */
    const char *keep;         /* hzp_retention_parse */
    const char *options;      /* serve.options of checkpoints; NULL: none */
    double starved_s;         /* no progress for so long while examples wait is logged; 0: 60 */
    bool provisional; /* close removes what open created, unless hzp_state_keep() was called */
    bool log_updates; /* write a line of the log for each update and version */
};

/* Opens or creates the state directory and reads the examples to be learned again into a new queue.
 * Any thread, once, before the weights are loaded.  Errors name file and reason. */
int hzp_state_open(const struct hzp_state_config *config, struct hzp_state **ret,
                   struct hzp_err_text *reterr);

/* The process has started successfully: what a provisional open created is kept.  Any thread,
 * once. */
void hzp_state_keep(struct hzp_state *s);

/* The directory to load the weights from (a checkpoint or model_dir), the id of the first version
 * to publish (hzp_weights_config.first_id), and the queue (lives as long as the state). */
const char *hzp_state_weights_dir(const struct hzp_state *s);
uint64_t hzp_state_first_id(const struct hzp_state *s);
/* Whether that directory is a checkpoint, whose state of the optimizer hzp_state_restore loads. */
bool hzp_state_resumes(const struct hzp_state *s);
struct hzp_sample_queue *hzp_state_queue(struct hzp_state *s);

/* For the trainer: what drafts are checked with; NULL: nothing.  Lives as long as the state. */
const struct hzp_gate *hzp_state_gate(const struct hzp_state *s);

/* Engine thread, once: draft holds weights_dir's weights and is not published yet; restores the
 * checkpoint's state into the trainer and the draft's record.  No effect if there is no
 * checkpoint. */
int hzp_state_restore(struct hzp_state *s, struct hzp_trainer *trainer, struct hzp_version *draft,
                      struct hzp_err_text *reterr);

/* After a failure to load or restore (HZP_EFORMAT, `why`): the checkpoint is set aside if an older
 * one is whole.  True: it was, and close and open again begin from that one.  Engine thread. */
bool hzp_state_set_aside(struct hzp_state *s, const char *why);

/* Checkpoints are written from a copy of the state: there is memory for it.  Before start. */
void hzp_state_copy_checkpoints(struct hzp_state *s);

/* Starts the thread.  All three are borrowed until stop; checkpoints save the model's weights. */
int hzp_state_start(struct hzp_state *s, struct hzp_trainer *trainer, const struct hzp_model *model,
                    struct hzp_loop *loop);

/* Engine thread, called from the trainer's on_update: pokes the thread and logs skipped updates and
 * failures. */
void hzp_state_update(struct hzp_state *s, const struct hzp_update_report *report);

/* Engine thread, after the loop has ended: ends the thread, journals the remaining versions, and
 * with save writes a last checkpoint if anything is new.  A failure is logged, and HZP_EIO: what
 * was learned since the newest checkpoint will be learned again. */
int hzp_state_stop(struct hzp_state *s, bool save);

/* Any thread but the engine's, when no other thread uses the state any more; NULL: no effect. */
void hzp_state_close(struct hzp_state *s);

/* Commits and queues a body of examples that arrived in pieces (api/learn/examples.h: a reader is
 * made for these examples), and pokes the loop.  key (NULL: none): a body that was accepted with
 * this key before is not accepted again, and gets the same numbers.  session (NULL: none): who
 * teaches it, kept across restarts.  A body that is refused before its end is counted by
 * hzp_state_refuse().  Any thread.  HZP_EINVAL: a key that came with another body; HZP_EBUSY: the
 * queue is full. */
const struct hzp_examples *hzp_state_examples(const struct hzp_state *s);
int hzp_state_accept_read(struct hzp_state *s, struct hzp_example_reader *reader, const char *key,
                          const char *session, int64_t *ret_first, int64_t *ret_last,
                          struct hzp_err_text *reterr);
void hzp_state_refuse(struct hzp_state *s);
/* The same for samples made here, which it takes over with their array, also on failure. */
int hzp_state_accept_samples(struct hzp_state *s, struct hzp_sample **sample, int32_t count,
                             const struct hzp_body_key *key, int64_t *ret_first, int64_t *ret_last,
                             struct hzp_err_text *reterr);
/* As hzp_sample_log_sessions: of this run and earlier ones. */
int32_t hzp_state_sessions(struct hzp_state *s, struct hzp_session *ret, int32_t max,
                           int64_t *ret_forgotten, struct hzp_err_text *reterr);

/* After the loss of another rank, when the ranks have met again and no data are on the link:
 * calls join(ctx) on the file thread, which has the trainer work with them (hzp_trainer_join),
 * decides what is learned from (rejoin.c), sends the other ranks version and state, and lets
 * learning go on.  It waits.  HZP_ECANCELED: the state is stopped.
 * Thread: one other than the engine's, after start. */
typedef int hzp_state_joiner(void *ctx, struct hzp_err_text *reterr);
int hzp_state_rejoin(struct hzp_state *s, hzp_state_joiner *join, void *ctx,
                     struct hzp_err_text *reterr);

/* --- What is not learned ---------------------------------------------------------------------- */

/* The numbers of the examples in [first, last] that were given up in all their passes because their
 * updates were not finite; max at most.  Returns how many were written; *ret_count: how many there
 * are.  Any thread; no disk. */
int32_t hzp_state_failed(struct hzp_state *s, int64_t first, int64_t last, int64_t *ret,
                         int32_t max, int64_t *ret_count);

/* The number up to which every example was learned: finished_through, a version's learned_through,
 * counts examples that were given up too; this one stops before the first of them.  -1: none.  Any
 * thread. */
int64_t hzp_state_learned_through(struct hzp_state *s, int64_t finished_through);
/* The number up to which every example was learned or never will be: `through`, a version's
 * learned_through, and what was rejected, given up or taken back behind it, for which no version is
 * published.  Any thread. */
int64_t hzp_state_finished_through(struct hzp_state *s, int64_t through);

/* Whether the log could not be written when the state was opened (a full disk), and cannot be yet:
 * no example is accepted or learned.  Any thread. */
bool hzp_state_read_only(const struct hzp_state *s);

/* What could not be written when that was tried last; NULL: nothing.  Any thread. */
const char *hzp_state_unwritten(const struct hzp_state *s);

/* The same as hzp_state_failed for examples that were skipped, deleted or rejected
 * (train/table/sample_log.h). */
int32_t hzp_state_marked(struct hzp_state *s, enum hzp_mark_kind kind, int64_t first, int64_t last,
                         int64_t *ret, int32_t max, int64_t *ret_count);

/* Whether weights that say learned_through have learned the example: it has had all its passes, and
 * was neither given up nor skipped, deleted or rejected.  Any thread; no disk. */
enum hzp_example_state { HZP_EXAMPLE_WAITS, HZP_EXAMPLE_LEARNED, HZP_EXAMPLE_NEVER };
enum hzp_example_state hzp_state_learned(struct hzp_state *s, int64_t number,
                                         int64_t learned_through);
/* Whether each of [first, last] is learned, or never will be. */
bool hzp_state_settled(struct hzp_state *s, int64_t first, int64_t last, int64_t learned_through);

/* Lists {"example", "earlier", "message"} for those of examples first .. last, which are in the
 * log, whose prompt has another answer in an earlier example that is learned or waits.  It looks
 * back over 16384 examples at most and lists 10 at most.  A new reference.  Any thread but the
 * engine's. */
json_t *hzp_state_contradictions(struct hzp_state *s, int64_t first, int64_t last);

/* A client is told that examples up to `last` are served: the log keeps that.  Any thread but the
 * engine's. */
void hzp_state_tell(struct hzp_state *s, int64_t last);
/* The number up to which a client of an earlier process was told so, and weights that say
 * learned_through have not learned again; 0: none.  Any thread. */
int64_t hzp_state_owed(struct hzp_state *s, int64_t learned_through);

struct hzp_state_stats {
    uint64_t accepted, refused, repeated; /* examples; bodies; bodies that came again */
    uint64_t checkpoints, checkpoint_failures;
    uint64_t checkpoint_id;             /* newest on disk; 0: none */
    int64_t last_sequence_number;       /* newest accepted */
    int64_t trained_again;              /* examples a lost version had learned from, at start */
    int64_t restored;                   /* examples queued again at start */
    uint64_t starved;                   /* times that training made no progress for long (logged) */
    int64_t failed;                     /* examples given up, in all runs: hzp_state_failed */
    int64_t skipped, deleted, rejected; /* hzp_state_marked */
    double checkpoint_seconds;          /* duration of the newest checkpoint's write */
    double checkpoint_pause_seconds;    /* how long it kept the next update from beginning */
    uint64_t checkpoints_late;          /* due while the one before was still being written */
};
void hzp_state_read_stats(struct hzp_state *s, struct hzp_state_stats *ret);

/* $XDG_DATA_HOME/hzpserve/NAME-HASH, or the same under ~/.local/share; NAME and HASH are of the
 * model directory's real path.  HZP_ENOENT: there is no home directory. */
int hzp_state_default_dir(const char *model_dir, char *ret, size_t size,
                          struct hzp_err_text *reterr);
