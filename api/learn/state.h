/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/state.h - what a server learned and has yet to learn, kept across restarts.
 *
 *     STATE/samples.db           the log: accepted examples, published versions, checkpoints
 *     STATE/checkpoint-ID/       a model directory with trainer.safetensors; the newest few
 *
 * The weights a server starts from are the newest checkpoint's, or the model's where there is none.
 * Examples the checkpoint does not cover are queued again; those a lost version had learned from
 * already are counted and said ("trained again").
 *
 * A thread of its own ("hzp-file") journals each published version and writes checkpoints; SQLite
 * and the disk are never waited for on the engine thread.  While a checkpoint is written serving
 * and gradients go on, only the next optimizer update waits (hzp_trainer_freeze).
 *
 *     open -> hzp_weights_create(.first_id = hzp_state_first_id())
 *          -> a draft, filled by hzp_model_load(hzp_state_weights_dir()); trainer created
 *          -> restore -> the draft published -> loop created
 *          -> start -> (loop runs; update* from on_update; accept* from HTTP) -> stop -> close
 *
 * Thread: as each function says.
 */
#ifndef HZP_API_LEARN_STATE_H
#define HZP_API_LEARN_STATE_H

#include "api/text/tokenizer.h"
#include "nanobatch/loop.h"
#include "train/trainer.h"

struct hzp_state;

struct hzp_state_config {
    const char *state_dir; /* NULL: hzp_state_default_dir(); "none": nothing outlives the process */
    const char *model_dir;
    struct hzp_tokenizer *tok;            /* borrowed */
    const struct hzp_layout *layout;      /* borrowed */
    struct hzp_sample_queue_config queue; /* learned_through is set here */
    const char *replay;                   /* a file of examples; NULL: none */
    int32_t micro_rows; /* longest example: so many tokens + 1, and no more than the model takes */
    int32_t body_samples_max; /* examples in one body */
    int64_t checkpoint_every; /* updates; 0: only when idle and at the end */
    int64_t keep_checkpoints;
    bool provisional; /* what open makes on disk goes again at close, unless hzp_state_keep() */
};

/* Opens or makes the state directory, reads what is to be learned again into a new queue.  Any
 * thread, once, before the weights are loaded.  Errors name file and reason. */
int hzp_state_open(const struct hzp_state_config *config, struct hzp_state **ret,
                   struct hzp_err_text *reterr);

/* The process has come up: what a provisional open made stays.  Any thread, once. */
void hzp_state_keep(struct hzp_state *s);

/* Where the weights come from (a checkpoint or model_dir), the id of the first version to publish
 * (hzp_weights_config.first_id), and the queue (lives as long as the state). */
const char *hzp_state_weights_dir(const struct hzp_state *s);
uint64_t hzp_state_first_id(const struct hzp_state *s);
struct hzp_sample_queue *hzp_state_queue(struct hzp_state *s);

/* Engine thread, once: draft holds weights_dir's weights and is not published yet; trainer and the
 * draft's record get the checkpoint's state.  Nothing to do where there is no checkpoint. */
int hzp_state_restore(struct hzp_state *s, struct hzp_trainer *trainer, struct hzp_version *draft,
                      struct hzp_err_text *reterr);

/* Starts the thread.  All three are borrowed until stop; the model's weights are what is saved. */
int hzp_state_start(struct hzp_state *s, struct hzp_trainer *trainer, const struct hzp_model *model,
                    struct hzp_loop *loop);

/* Engine thread, from the trainer's on_update: pokes the thread, logs what must be said. */
void hzp_state_update(struct hzp_state *s, const struct hzp_update_report *report);

/* Engine thread, after the loop has ended: ends the thread; save: journals what is left and writes
 * a last checkpoint if there is anything new.  A failure is logged. */
void hzp_state_stop(struct hzp_state *s, bool save);

/* Any thread but the engine's, when nobody uses it any more; NULL: no effect. */
void hzp_state_close(struct hzp_state *s);

/* Checks, commits and queues a body of examples (api/learn/examples.h says which shapes), and pokes
 * the loop.  Any thread.  HZP_EINVAL: a bad line, named; HZP_EBUSY: the queue is full. */
int hzp_state_accept(struct hzp_state *s, const char *body, size_t bytes, const char *content_type,
                     int64_t *ret_first, int64_t *ret_last, struct hzp_err_text *reterr);

struct hzp_state_stats {
    uint64_t accepted, refused; /* examples; bodies */
    uint64_t checkpoints, checkpoint_failures;
    uint64_t checkpoint_id;       /* newest on disk; 0: none */
    int64_t last_sequence_number; /* accepted so far */
    int64_t trained_again;        /* examples a lost version had learned from, at start */
    int64_t restored;             /* examples queued again at start */
    double checkpoint_seconds;    /* how long the newest took */
};
void hzp_state_read_stats(struct hzp_state *s, struct hzp_state_stats *ret);

/* $XDG_DATA_HOME or ~/.local/share, /hzpserve/NAME-HASH: by the model directory's real path.
 * HZP_ENOENT: there is no home. */
int hzp_state_default_dir(const char *model_dir, char *ret, size_t size,
                          struct hzp_err_text *reterr);

#endif
