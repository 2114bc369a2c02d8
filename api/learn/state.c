/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/state.h"

#include "api/learn/checkpoint.h"
#include "api/learn/examples.h"
#include "api/learn/fingerprint.h"
#include "api/learn/outlook.h"
#include "api/learn/update_log.h"
#include "base/arena.h"
#include "base/log.h"
#include "base/thread.h"
#include "weights/model_dir.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BACKLOG_PIECE = 256,
    RECORDS_MAX = 4096, /* as many as the store keeps */
    JOURNAL_PIECE = 8,
    QUIET_S = 3, /* idle: nothing was learned for this long */
    FAILED_PIECE = 256,
    FAILED_MAX = 1 << 20, /* of earlier runs, known by number */
    CHECKPOINTS_MAX = 64, /* looked at for one that is whole */
    DUTY = 10,      /* an idle checkpoint waits this many times the duration of the last one */
    STARVED_S = 60, /* training starves: no progress for this long while examples wait */
    LOOKS = 12,     /* how often it is looked at within that time */
};

/* In the state directory: configuration and tokenizer of the model. */
static const char texts_name[] = "model";

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
    int32_t failed_logged; /* of the queue's failed samples, how many the log has */

    /* any thread */
    atomic_bool fresh; /* remove the new state directory at close */
    struct hzp_wake wake;
    atomic_bool stopping;
    _Atomic uint64_t last_update_ns;

    /* under lock */
    struct hzp_lock lock;
    struct hzp_state_stats stats;
};

/* --- Opening ---------------------------------------------------------------------------------- */

int hzp_state_default_dir(const char *model_dir, char *ret, size_t size,
                          struct hzp_err_text *reterr)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    char real[PATH_MAX];
    if (!realpath(model_dir, real))
        return hzp_fail(reterr, HZP_ENOENT, "%s: %s", model_dir, strerror(errno));
    if (!(data && *data == '/') && !(home && *home == '/'))
        return hzp_fail(reterr, HZP_ENOENT,
                        "neither HOME nor XDG_DATA_HOME is set: name a directory with --state");
    const char *name = strrchr(real, '/');
    uint64_t hash = hzp_fnv(HZP_FNV, real, strlen(real));
    bool own = data && *data == '/';
    snprintf(ret, size, "%s%s/hzpserve/%s-%08x", own ? data : home, own ? "" : "/.local/share",
             name ? name + 1 : real, (unsigned)(hash ^ hash >> 32));
    return HZP_OK;
}

static int choose_dir(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char dir[PATH_MAX];
    if (s->config.state_dir && !strcmp(s->config.state_dir, "none"))
        return HZP_OK;
    if (s->config.state_dir)
        snprintf(dir, sizeof(dir), "%s", s->config.state_dir);
    else
        HZP_TRY(hzp_state_default_dir(s->config.model_dir, dir, sizeof(dir), reterr));
    s->dir = hzp_xstrdup(dir);
    return hzp_checkpoint_make_dir(dir, &s->dir_existed, reterr);
}

/* Checkpoints whose log is lost: their examples are not known, and new versions would take their
 * numbers. */
static int check_log_is_there(const struct hzp_state *s, const char *log,
                              struct hzp_err_text *reterr)
{
    uint64_t newest = hzp_checkpoint_newest(s->dir);
    if (!newest || access(log, F_OK) == 0 || errno != ENOENT)
        return HZP_OK;
    return hzp_fail(reterr, HZP_EFORMAT,
                    "%s: it is missing, but %s holds checkpoint-%" PRIu64
                    ": restore the file, let `hzpserve state repair` begin one from the newest "
                    "checkpoint, or name another directory with --state",
                    log, s->dir, newest);
}

/* The checkpoint is damaged: it stays on disk under another name, and the log forgets it. */
static int set_aside(struct hzp_state *s, const struct hzp_logged_checkpoint *c, const char *why,
                     struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_checkpoint_set_aside(s->dir, c->name, reterr));
    HZP_TRY(hzp_sample_log_forget_checkpoint(s->log, c->id, reterr));
    hzp_log(HZP_LOG_WARN, "state", "checkpoint is damaged, renamed to %s/%s.damaged: %s", s->dir,
            c->name, why);
    return HZP_OK;
}

static int check_whole(const struct hzp_state *s, const struct hzp_logged_checkpoint *c,
                       struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", s->dir, c->name);
    return hzp_checkpoint_whole(path, reterr);
}

/* Sets aside the checkpoints that are newer than the newest whole one.  If none is whole, none is
 * set aside, and the newest one's failure is the result. */
static int set_damaged_aside(struct hzp_state *s, struct hzp_err_text *reterr)
{
    struct hzp_logged_checkpoint all[CHECKPOINTS_MAX];
    struct hzp_err_text why[CHECKPOINTS_MAX];
    int first = HZP_OK, whole = 0;
    int32_t n = hzp_sample_log_checkpoints(s->log, all, CHECKPOINTS_MAX, reterr);
    for (; whole < n; whole++) {
        int r = check_whole(s, &all[whole], &why[whole]);
        if (r == HZP_OK)
            break;
        first = whole ? first : r;
        if (r != HZP_EFORMAT && r != HZP_ENOENT) /* it may be whole, and only out of reach */
            return hzp_fail(reterr, r, "%s", why[whole].text);
    }
    if (n > 0 && whole == n)
        return hzp_fail(reterr, first,
                        "%s; no checkpoint in %s is whole: restore one, or move samples.db and the "
                        "checkpoints away to begin from the model",
                        why[0].text, s->dir);
    for (int i = 0; i < whole; i++)
        HZP_TRY(set_aside(s, &all[i], why[i].text, reterr));
    return HZP_MIN(n, 0);
}

static int choose_weights(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    if (s->dir)
        HZP_TRY(set_damaged_aside(s, reterr));
    HZP_TRY(hzp_sample_log_resume(s->log, s->dir ? hzp_checkpoint_newest(s->dir) : 0, &s->resume,
                                  reterr));
    if (!s->dir || !s->resume.checkpoint_id) {
        s->weights_dir = hzp_xstrdup(s->config.model_dir);
        return HZP_OK;
    }
    snprintf(path, sizeof(path), "%s/%s", s->dir, s->resume.checkpoint_name);
    s->weights_dir = hzp_xstrdup(path);
    return HZP_OK;
}

/* A log that is not damaged may still contain token ids that this model does not have. */
static int check_tokens(const struct hzp_state *s, const struct hzp_sample *sample,
                        struct hzp_err_text *reterr)
{
    int32_t vocab = s->config.layout->config.vocab;
    for (int32_t i = 0; i < sample->count; i++)
        if (sample->token[i] < 0 || sample->token[i] >= vocab)
            return hzp_fail(reterr, HZP_EFORMAT,
                            "%s/samples.db: sample %" PRId64
                            " is damaged: token %d of a vocabulary "
                            "of %d",
                            s->dir ? s->dir : "", sample->sequence_number, sample->token[i], vocab);
    return HZP_OK;
}

static int read_failed(struct hzp_state *s, struct hzp_err_text *reterr)
{
    int64_t none[1], count;
    HZP_TRY(hzp_sample_log_failed(s->log, 1, INT64_MAX, none, 0, &count, reterr));
    count = HZP_MIN(count, FAILED_MAX);
    s->failed_before = hzp_xcalloc((size_t)HZP_MAX(count, 1), sizeof(*s->failed_before));
    int32_t n =
        hzp_sample_log_failed(s->log, 1, INT64_MAX, s->failed_before, (int32_t)count, NULL, reterr);
    s->failed_before_count = HZP_MAX(n, 0);
    return HZP_MIN(n, 0);
}

/* Queues the accepted examples that no checkpoint covers, with all their passes. */
static int restore_backlog(struct hzp_state *s, struct hzp_err_text *reterr)
{
    struct hzp_sample *piece[BACKLOG_PIECE];
    int64_t after = HZP_MAX(s->resume.learned_through, 0), too_long = 0;
    int32_t n;
    while ((n = hzp_sample_log_read(s->log, after, BACKLOG_PIECE, piece, reterr)) > 0) {
        int r = HZP_OK;
        after = piece[n - 1]->sequence_number;
        for (int32_t i = 0; i < n && r == HZP_OK; i++) {
            too_long += piece[i]->count > s->config.micro_rows + 1;
            r = check_tokens(s, piece[i], reterr);
        }
        hzp_sample_queue_restore(s->queue, piece, n); /* bad ones too: it frees them */
        HZP_TRY(r);
        s->stats.restored += n;
    }
    if (n < 0)
        return n;
    s->stats.last_sequence_number = s->resume.last_sequence_number;
    s->stats.checkpoint_id = s->resume.checkpoint_id;
    s->stats.trained_again = s->resume.retrain_count;
    if (s->dir)
        hzp_log(HZP_LOG_INFO, "state",
                "opened dir=%s checkpoint=%" PRIu64 " accepted=%" PRId64 " learned_through=%" PRId64
                " queued_again=%" PRId64 " trained_again=%" PRId64,
                s->dir, s->resume.checkpoint_id, s->resume.last_sequence_number,
                s->resume.learned_through, s->stats.restored, s->stats.trained_again);
    if (too_long)
        hzp_log(HZP_LOG_WARN, "state",
                "%" PRId64 " accepted examples are longer than --micro-rows now allows, ignoring",
                too_long);
    return HZP_OK;
}

static int load_replay(struct hzp_state *s, struct hzp_err_text *reterr)
{
    struct hzp_sample **sample;
    int32_t count;
    if (!s->config.replay)
        return HZP_OK;
    s->examples.samples_max = 0; /* the bound is for request bodies; this is a file */
    int r = hzp_examples_load(&s->examples, s->config.replay, &sample, &count, reterr);
    s->examples.samples_max = s->config.body_samples_max;
    HZP_TRY(r);
    hzp_sample_queue_set_replay(s->queue, sample, count);
    free(sample);
    return HZP_OK;
}

static int pin(struct hzp_state *s, const char *name, const char *what, const char *value,
               struct hzp_err_text *reterr)
{
    struct hzp_err_text err;
    int r = strcmp(value, "none") ? hzp_sample_log_pin(s->log, name, what, value, &err) : HZP_OK;
    return r < 0 ? hzp_fail(reterr, r,
                            "%s: use the one it was begun with, or name another directory with "
                            "--state",
                            err.text)
                 : HZP_OK;
}

/* Refuses another model or tokenizer than the state was begun with, also of the same shapes. */
static int check_source(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char value[HZP_FINGERPRINT_SIZE];
    if (!s->dir)
        return HZP_OK;
    HZP_TRY(hzp_fingerprint_weights(s->model_dir, value, reterr));
    HZP_TRY(pin(s, "weights", "model", value, reterr));
    HZP_TRY(hzp_fingerprint_tokenizer(s->model_dir, value, reterr));
    return pin(s, "tokenizer", "tokenizer", value, reterr);
}

static int open_all(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char path[PATH_MAX] = ":memory:", fingerprint[HZP_FINGERPRINT_SIZE];
    const struct hzp_state_config *config = &s->config;
    bool fresh = false;
    HZP_TRY(choose_dir(s, reterr));
    if (s->dir) {
        snprintf(path, sizeof(path), "%s/samples.db", s->dir);
        HZP_TRY(check_log_is_there(s, path, reterr));
        fresh = config->provisional && access(path, F_OK) < 0 && errno == ENOENT;
    }
    hzp_fingerprint_shapes(config->layout, config->tok, fingerprint);
    int r = hzp_sample_log_open(path, fingerprint, &s->log, reterr);
    atomic_store(&s->fresh, fresh && r != HZP_EBUSY); /* busy: created by another process */
    HZP_TRY(r);
    HZP_TRY(check_source(s, reterr));
    HZP_TRY(choose_weights(s, reterr));
    if (s->resume.last_sequence_number > 0)
        atomic_store(&s->fresh, false); /* another process used it and has ended */
    struct hzp_sample_queue_config queue = config->queue;
    queue.learned_through = s->resume.learned_through;
    if (hzp_sample_queue_create(&queue, &s->queue) < 0)
        return hzp_fail(reterr, HZP_EINVAL, "the queue's settings are out of range");
    hzp_examples_init(&s->examples, config->tok, &config->layout->config, s->config.micro_rows + 1,
                      config->body_samples_max);
    s->examples.chat = config->chat;
    s->examples.log = s->log;
    s->examples.queue = s->queue;
    s->examples_made = true;
    HZP_TRY(read_failed(s, reterr));
    HZP_TRY(restore_backlog(s, reterr));
    return load_replay(s, reterr);
}

int hzp_state_open(const struct hzp_state_config *config, struct hzp_state **ret,
                   struct hzp_err_text *reterr)
{
    struct hzp_state *s = hzp_xcalloc(1, sizeof(*s));
    s->config = *config;
    s->model_dir = hzp_xstrdup(config->model_dir);
    s->config.model_dir = s->model_dir;
    s->config.micro_rows = HZP_MIN(config->micro_rows, config->layout->config.positions);
    hzp_wake_init(&s->wake);
    hzp_lock_init(&s->lock, HZP_LOCK_STATE);
    int r = open_all(s, reterr);
    if (r < 0) {
        hzp_state_close(s);
        return r;
    }
    *ret = s;
    return HZP_OK;
}

void hzp_state_keep(struct hzp_state *s)
{
    atomic_store(&s->fresh, false);
}

/* Removes the state directory of a server that did not start: its log is empty, and a mistyped
 * option should not leave a directory behind. */
static void remove_fresh(struct hzp_state *s)
{
    static const char *const tails[] = {"", "-wal", "-shm", "-journal"};
    char path[PATH_MAX];
    for (int i = 0; i < HZP_COUNT(tails); i++) {
        snprintf(path, sizeof(path), "%s/samples.db%s", s->dir, tails[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/%s", s->dir, texts_name);
    hzp_checkpoint_remove(path);
    hzp_checkpoint_unmake_dir(s->dir, s->dir_existed);
}

void hzp_state_close(struct hzp_state *s)
{
    if (!s)
        return;
    if (s->started)
        hzp_state_stop(s, false);
    if (s->examples_made)
        hzp_examples_fini(&s->examples);
    hzp_update_log_destroy(s->updates);
    hzp_sample_queue_destroy(s->queue);
    hzp_sample_log_close(s->log);
    if (atomic_load(&s->fresh))
        remove_fresh(s);
    hzp_lock_fini(&s->lock);
    hzp_wake_fini(&s->wake);
    free(s->dir);
    free(s->model_dir);
    free(s->weights_dir);
    free(s->failed_before);
    free(s->texts_dir);
    free(s);
}

const char *hzp_state_weights_dir(const struct hzp_state *s)
{
    return s->weights_dir;
}

uint64_t hzp_state_first_id(const struct hzp_state *s)
{
    return s->resume.next_version_id;
}

struct hzp_sample_queue *hzp_state_queue(struct hzp_state *s)
{
    return s->queue;
}

int hzp_state_restore(struct hzp_state *s, struct hzp_trainer *trainer, struct hzp_version *draft,
                      struct hzp_err_text *reterr)
{
    if (!s->dir || !s->resume.checkpoint_id)
        return HZP_OK;
    HZP_TRY(hzp_trainer_load(trainer, draft, s->weights_dir, false, NULL, reterr));
    s->saved_step = s->tried_step = draft->record.optimizer_step;
    return HZP_OK;
}

bool hzp_state_set_aside(struct hzp_state *s, const char *why)
{
    struct hzp_logged_checkpoint all[CHECKPOINTS_MAX];
    struct hzp_err_text text;
    if (!s->dir || !s->resume.checkpoint_id)
        return false;
    int32_t n = hzp_sample_log_checkpoints(s->log, all, CHECKPOINTS_MAX, &text);
    bool older = false;
    for (int32_t i = 1; i < n && !older; i++)
        older = check_whole(s, &all[i], &text) == HZP_OK;
    if (!older || all[0].id != s->resume.checkpoint_id)
        return false;
    if (set_aside(s, &all[0], why, &text) == HZP_OK)
        return true;
    hzp_log(HZP_LOG_ERROR, "state", "%s", text.text);
    return false;
}

/* --- The file thread -------------------------------------------------------------------------- */

/* Marks the samples that have failed since; before a checkpoint may cover them. */
static void log_failed(struct hzp_state *s)
{
    int64_t number[FAILED_PIECE];
    struct hzp_err_text text;
    int32_t n;
    while ((n = hzp_sample_queue_failed(s->queue, s->failed_logged, number, FAILED_PIECE)) > 0) {
        int r = hzp_sample_log_fail(s->log, number, n, s->tried_step, &text);
        if (r < 0 && !s->journal_failed)
            hzp_log(HZP_LOG_ERROR, "state", "failed examples are not marked: %s, trying again",
                    text.text);
        s->journal_failed = r < 0;
        if (r < 0)
            return;
        s->failed_logged += n;
    }
}

/* Writes the record to the log; says when that begins to fail and when it works again. */
static bool journal_version(struct hzp_state *s, const struct hzp_version_record *record)
{
    struct hzp_err_text text;
    int r = hzp_sample_log_version(s->log, record, &text);
    if (r < 0 && !s->journal_failed)
        hzp_log(HZP_LOG_ERROR, "state",
                "version %" PRIu64 " is not journalled: %s, trying again later", record->id,
                text.text);
    if (r >= 0 && s->journal_failed)
        hzp_log(HZP_LOG_INFO, "state", "versions are journalled again");
    s->journal_failed = r < 0;
    return r >= 0;
}

/* Journals every version that the store still remembers and the log does not have, oldest first;
 * later ones must not come before one that fails. */
static void journal(struct hzp_state *s)
{
    struct hzp_version_record record[JOURNAL_PIECE];
    int32_t n;
    log_failed(s);
    if (!s->dir)
        return;
    while ((n = hzp_weights_list_after(s->model->weights, s->journaled, record, JOURNAL_PIECE)) > 0)
        for (int32_t i = 0; i < n; i++) {
            if (!journal_version(s, &record[i]))
                return;
            s->journaled = record[i].id;
        }
}

static void write_log(struct hzp_state *s)
{
    if (s->config.log_updates)
        hzp_update_log_write(s->updates, s->model->weights);
}

static void write_checkpoint(struct hzp_state *s, const struct hzp_version *v)
{
    struct hzp_err_text text;
    char name[64];
    uint64_t begin = hzp_now_ns(), id = v->record.id;
    int64_t step = v->record.optimizer_step, through = v->record.learned_through;
    journal(s); /* the log must have every version that it refers to */
    int r = hzp_checkpoint_write(s->dir, id, s->model, s->trainer, v, s->texts_dir,
                                 s->config.options, NULL, &text);
    snprintf(name, sizeof(name), "checkpoint-%" PRIu64, id);
    if (r >= 0)
        r = hzp_sample_log_checkpoint(s->log, id, through, name, &text);
    s->saved_ns = hzp_now_ns();
    s->save_took_ns = s->saved_ns - begin;
    s->tried_step = step; /* a failed attempt is repeated after further updates, and at the end */
    s->saved_step = r >= 0 ? step : s->saved_step;
    hzp_lock_take(&s->lock);
    s->stats.checkpoint_seconds = (double)s->save_took_ns * 1e-9;
    s->stats.checkpoints += r >= 0;
    s->stats.checkpoint_failures += r < 0;
    if (r >= 0)
        s->stats.checkpoint_id = id;
    hzp_lock_release(&s->lock);
    if (r < 0) {
        hzp_log(HZP_LOG_ERROR, "state", "checkpoint failed version=%" PRIu64 " %s", id, text.text);
        return;
    }
    hzp_checkpoint_prune(s->dir, s->config.keep_checkpoints, s->config.keep_hourly, name);
    hzp_log(HZP_LOG_INFO, "state",
            "checkpoint version=%" PRIu64 " step=%" PRId64 " learned_through=%" PRId64
            " seconds=%.2f",
            id, step, through, (double)s->save_took_ns * 1e-9);
}

static bool checkpoint_due(struct hzp_state *s, bool *ret_later)
{
    struct hzp_trainer_stats trainer;
    struct hzp_sample_queue_stats queue;
    hzp_trainer_read_stats(s->trainer, &trainer);
    hzp_sample_queue_read_stats(s->queue, &queue);
    int64_t updates = trainer.step - s->tried_step;
    *ret_later = false;
    if (!s->dir || updates <= 0 || trainer.broken)
        return false;
    if (s->config.checkpoint_every > 0 && updates >= s->config.checkpoint_every)
        return true;
    if (queue.samples > 0)
        return false; /* another update will follow and poke this thread */
    *ret_later = true;
    uint64_t now = hzp_now_ns();
    return now - atomic_load(&s->last_update_ns) >= (uint64_t)QUIET_S * 1000000000u &&
           now - s->saved_ns >= DUTY * s->save_took_ns;
}

/* Warns once when nothing has been learned for a minute although examples wait.  Returns how long
 * the thread may sleep. */
static uint64_t watch_learning(struct hzp_state *s)
{
    struct hzp_sample_queue_stats queue;
    struct hzp_outlook outlook;
    double limit = s->config.starved_s > 0 ? s->config.starved_s : STARVED_S;
    hzp_sample_queue_read_stats(s->queue, &queue);
    if (!queue.samples) {
        s->starves = false;
        return UINT64_MAX;
    }
    if (!hzp_outlook_read(s->trainer, s->queue, s->loop, &outlook))
        return (uint64_t)(limit / LOOKS * 1e9);
    bool starves = outlook.stalled_seconds >= limit && outlook.held_by;
    if (starves && !s->starves) {
        hzp_log(HZP_LOG_WARN, "train",
                "starves: %d examples wait, the oldest for %.0f s, nothing was learned for %.0f s; "
                "held back by: %s (--train-min is the share that training gets in any case)",
                queue.samples, outlook.oldest_seconds, limit, outlook.held_by);
        hzp_lock_take(&s->lock);
        s->stats.starved++;
        hzp_lock_release(&s->lock);
    }
    s->starves = starves;
    return (uint64_t)(limit / LOOKS * 1e9);
}

/* Copies configuration and tokenizer into the state directory: checkpoints have them even if the
 * model's directory vanishes meanwhile. */
static void keep_texts(struct hzp_state *s)
{
    struct hzp_err_text text;
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", s->dir ? s->dir : "", texts_name);
    if (s->dir && hzp_model_copy_texts(path, s->model_dir, &text) < 0)
        hzp_log(HZP_LOG_WARN, "state", "%s", text.text);
    else if (s->dir)
        s->texts_dir = hzp_xstrdup(path);
    if (!s->texts_dir)
        s->texts_dir = hzp_xstrdup(s->model_dir);
}

static void *file_main(void *arg)
{
    struct hzp_state *s = arg;
    bool later = false;
    keep_texts(s);
    while (!atomic_load(&s->stopping)) {
        uint64_t sleep_ns = watch_learning(s);
        bool soon = later || s->journal_failed;
        hzp_wake_wait(&s->wake, s->asked ? 2000000u : soon ? 500000000u : sleep_ns);
        write_log(s);
        journal(s);
        if (!s->asked && checkpoint_due(s, &later)) {
            s->asked = true;
            hzp_trainer_freeze(s->trainer);
            hzp_loop_poke(s->loop);
        }
        const struct hzp_version *v = s->asked ? hzp_trainer_frozen(s->trainer) : NULL;
        if (!v)
            continue;
        write_checkpoint(s, v);
        s->asked = later = false;
        hzp_trainer_thaw(s->trainer);
        hzp_loop_poke(s->loop);
        hzp_wake_poke(&s->wake); /* state may have changed during the write */
    }
    if (s->asked)
        hzp_trainer_thaw(s->trainer);
    s->asked = false;
    return NULL;
}

/* Versions of earlier processes stay listed.  A history that cannot be read is no reason not to
 * serve. */
static void restore_history(struct hzp_state *s)
{
    struct hzp_err_text text;
    struct hzp_version_record *record = malloc(RECORDS_MAX * sizeof(*record));
    int32_t n = HZP_ENOMEM;
    hzp_fail(&text, n, "not enough memory");
    if (record)
        n = hzp_sample_log_read_versions(s->log, s->resume.next_version_id, RECORDS_MAX, record,
                                         &text);
    if (n < 0)
        hzp_log(HZP_LOG_WARN, "state", "versions of earlier runs are not listed: %s", text.text);
    else
        hzp_weights_set_history(s->model->weights, record, n);
    free(record);
}

int hzp_state_start(struct hzp_state *s, struct hzp_trainer *trainer, const struct hzp_model *model,
                    struct hzp_loop *loop)
{
    s->trainer = trainer;
    s->model = model;
    s->loop = loop;
    s->journaled = s->resume.next_version_id - 1;
    s->saved_ns = hzp_now_ns();
    restore_history(s);
    s->updates = hzp_update_log_create(s->journaled);
    HZP_TRY(hzp_thread_start(&s->thread, "hzp-file", file_main, s));
    s->started = true;
    hzp_wake_poke(&s->wake); /* journals the first version */
    return HZP_OK;
}

void hzp_state_update(struct hzp_state *s, const struct hzp_update_report *report)
{
    if (report->broken)
        hzp_log(HZP_LOG_ERROR, "train",
                "stopped: the weights are not finite; restart to resume from the last checkpoint");
    else if (report->dropped)
        hzp_log(HZP_LOG_ERROR, "train",
                "dropped step=%" PRId64 " samples=%d sequence=%" PRId64 "..%" PRId64
                ": not finite the second time",
                report->step, report->samples, report->first_sequence, report->last_sequence);
    else if (report->skipped)
        hzp_log(HZP_LOG_WARN, "train", "skipped step=%" PRId64 ": not finite, trying again",
                report->step);
    if (s->updates && s->config.log_updates)
        hzp_update_log_push(s->updates, report);
    atomic_store(&s->last_update_ns, hzp_now_ns());
    hzp_wake_poke(&s->wake);
}

int hzp_state_stop(struct hzp_state *s, bool save)
{
    if (!s->started)
        return HZP_OK;
    atomic_store(&s->stopping, true);
    hzp_wake_poke(&s->wake);
    pthread_join(s->thread, NULL);
    s->started = false;
    write_log(s);
    journal(s);
    struct hzp_version *v = hzp_weights_current(s->model->weights);
    if (save && s->dir && v && v->record.optimizer_step > s->saved_step &&
        hzp_trainer_idle(s->trainer)) {
        write_checkpoint(s, v);
        if (v->record.optimizer_step > s->saved_step)
            return HZP_EIO;
    }
    return s->journal_failed ? HZP_EIO : HZP_OK;
}

/* --- Acceptance ------------------------------------------------------------------------------- */

const struct hzp_examples *hzp_state_examples(const struct hzp_state *s)
{
    return &s->examples;
}

/* Counts what examples.c has accepted, r >= 0, or refused. */
static int count_accepted(struct hzp_state *s, int r, int64_t first, int64_t last)
{
    hzp_lock_take(&s->lock);
    if (r > 0) {
        s->stats.repeated++;
    } else if (r == 0) {
        s->stats.accepted += (uint64_t)(last - first + 1);
        s->stats.last_sequence_number = HZP_MAX(s->stats.last_sequence_number, last);
    } else {
        s->stats.refused++;
    }
    hzp_lock_release(&s->lock);
    if (r < 0)
        return r;
    hzp_log(HZP_LOG_INFO, "train", "accepted examples=%" PRId64 " first=%" PRId64 " last=%" PRId64,
            last - first + 1, first, last);
    if (s->loop)
        hzp_loop_poke(s->loop);
    hzp_wake_poke(&s->wake); /* the thread watches over what waits */
    return HZP_OK;
}

void hzp_state_refuse(struct hzp_state *s)
{
    count_accepted(s, HZP_EINVAL, 0, 0);
}

int hzp_state_accept(struct hzp_state *s, const char *body, size_t bytes, const char *content_type,
                     const char *key, int64_t *ret_first, int64_t *ret_last,
                     struct hzp_err_text *reterr)
{
    struct hzp_body_key once = {.key = key, .digest = hzp_fnv(HZP_FNV, body, bytes)};
    int r = hzp_examples_accept_once(&s->examples, body, bytes, content_type, key ? &once : NULL,
                                     ret_first, ret_last, reterr);
    return count_accepted(s, r, *ret_first, *ret_last);
}

int hzp_state_accept_read(struct hzp_state *s, struct hzp_example_reader *reader, const char *key,
                          int64_t *ret_first, int64_t *ret_last, struct hzp_err_text *reterr)
{
    int r = hzp_examples_accept_read(&s->examples, reader, key, ret_first, ret_last, reterr);
    return count_accepted(s, r, *ret_first, *ret_last);
}

/* Of this run's failures, read from the queue, because the log may not have them yet. */
static int32_t failed_now(struct hzp_state *s, int64_t first, int64_t last, int64_t *ret,
                          int32_t max, int64_t *count)
{
    int64_t number[FAILED_PIECE];
    int32_t n, found = 0;
    for (int32_t from = 0;; from += n) {
        n = hzp_sample_queue_failed(s->queue, from, number, FAILED_PIECE);
        for (int32_t i = 0; i < n; i++) {
            if (number[i] < first || number[i] > last)
                continue;
            ++*count;
            if (found < max)
                ret[found++] = number[i];
        }
        if (n < FAILED_PIECE)
            return found;
    }
}

int32_t hzp_state_failed(struct hzp_state *s, int64_t first, int64_t last, int64_t *ret,
                         int32_t max, int64_t *ret_count)
{
    int64_t now = 0;
    int32_t n = 0;
    *ret_count = 0;
    for (int64_t i = 0; i < s->failed_before_count; i++) {
        if (s->failed_before[i] < first || s->failed_before[i] > last)
            continue;
        ++*ret_count;
        if (n < max)
            ret[n++] = s->failed_before[i];
    }
    n += failed_now(s, first, last, ret + n, max - n, &now);
    *ret_count += now;
    return n;
}

void hzp_state_read_stats(struct hzp_state *s, struct hzp_state_stats *ret)
{
    int64_t failed, none[1];
    hzp_state_failed(s, 1, INT64_MAX, none, 0, &failed);
    hzp_lock_take(&s->lock);
    *ret = s->stats;
    hzp_lock_release(&s->lock);
    ret->failed = failed;
}
