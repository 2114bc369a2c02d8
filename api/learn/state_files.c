/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/state_files.c - the file thread: the journal of versions, checkpoints, and what has to
 * be read or written while the server runs. */
#include "api/learn/checkpoint.h"
#include "api/learn/outlook.h"
#include "api/learn/state_private.h"
#include "base/file.h"
#include "base/log.h"
#include "train/history/trainer_suspend.h"
#include "weights/model_dir.h"

#include <fcntl.h>
#include <sys/statvfs.h>

enum {
    RECORDS_MAX = 4096, /* as many as the store keeps */
    JOURNAL_PIECE = 8,
    QUIET_S = 3,         /* idle: nothing was learned for this long */
    DUTY = 10,           /* an idle checkpoint waits this many times the duration of the last one */
    STARVED_S = 60,      /* training starves: no progress for this long while examples wait */
    LOOKS = 12,          /* how often it is looked at within that time */
    SOON_NS = 500000000, /* what has failed is tried again */
    DOUBT_NS = 250000000, /* whether the trainer is still to be waited for */
};

/* Says when writing to the log begins to fail. */
static bool is_logged(struct hzp_state *s, int r, const char *what, const struct hzp_err_text *why)
{
    if (r < 0 && !s->journal_failed)
        hzp_log(HZP_LOG_ERROR, "state", "%s: %s, trying again", what, why->text);
    s->journal_failed = r < 0;
    return r >= 0;
}

/* Marks the samples that have failed since; before a checkpoint may cover them. */
static void log_failed(struct hzp_state *s)
{
    int64_t number[HZP_STATE_FAILED_PIECE];
    struct hzp_err_text text;
    int32_t n;
    while ((n = hzp_sample_queue_failed(s->queue, s->failed_logged, number,
                                        HZP_STATE_FAILED_PIECE)) > 0) {
        int r = hzp_sample_log_fail(s->log, number, n, s->tried_step, &text);
        if (!is_logged(s, r, "failed examples are not marked", &text))
            return;
        s->failed_logged += n;
    }
}

/* The same for those that the gate refused. */
static void log_rejected(struct hzp_state *s)
{
    int64_t number[HZP_STATE_FAILED_PIECE];
    struct hzp_mark mark[HZP_STATE_FAILED_PIECE];
    struct hzp_err_text text;
    struct hzp_weights_stats weights;
    int32_t n;
    hzp_weights_read_stats(s->model->weights, &weights);
    while ((n = hzp_sample_queue_rejected(s->queue, s->rejected_logged, number,
                                          HZP_STATE_FAILED_PIECE)) > 0) {
        int32_t marks = 0;
        for (int32_t i = 0; i < n; i++) {
            if (marks && mark[marks - 1].last + 1 == number[i])
                mark[marks - 1].last++;
            else
                mark[marks++] =
                    (struct hzp_mark){number[i], number[i], HZP_MARK_REJECTED, weights.serving_id};
        }
        int r = hzp_sample_log_add_marks(s->log, mark, marks, &text);
        if (!is_logged(s, r, "rejected examples are not marked", &text))
            return;
        s->rejected_logged += n;
    }
    hzp_state_log_reasons(s);
}

/* Writes the record to the log; says when that begins to fail and when it works again. */
static bool journal_version(struct hzp_state *s, const struct hzp_version_record *record)
{
    struct hzp_err_text text;
    char what[48];
    snprintf(what, sizeof(what), "version %" PRIu64 " is not journalled", record->id);
    int r = hzp_sample_log_version(s->log, record, &text);
    if (r >= 0 && s->journal_failed)
        hzp_log(HZP_LOG_INFO, "state", "versions are journalled again");
    return is_logged(s, r, what, &text);
}

/* Journals every version that the store still remembers and the log does not have, oldest first;
 * later ones must not come before one that fails. */
void hzp_state_journal(struct hzp_state *s)
{
    struct hzp_version_record record[JOURNAL_PIECE];
    int32_t n;
    log_failed(s);
    log_rejected(s);
    if (!s->dir)
        return;
    while ((n = hzp_weights_list_after(s->model->weights, s->journaled, record, JOURNAL_PIECE)) > 0)
        for (int32_t i = 0; i < n; i++) {
            if (!journal_version(s, &record[i]))
                return;
            s->journaled = record[i].id;
        }
}

/* Ended trials are in the audit log, however they ended. */
static void audit_trials(struct hzp_state *s)
{
    struct hzp_trials *trials = hzp_trainer_trials(s->trainer);
    struct hzp_trial trial;
    while (trials && hzp_trials_ended(trials, &s->trials_seen, &trial, 1) == 1)
        hzp_audit_write(s->audit, "none", "", "trial",
                        json_pack("{s:I, s:s, s:s}", "version", (json_int_t)trial.version, "end",
                                  hzp_trial_end_name(trial.end), "reason", trial.reason));
}

/* A version that was dropped has an id, which the journal does not have. */
static void keep_ids(struct hzp_state *s)
{
    struct hzp_weights_stats stats;
    struct hzp_err_text text;
    char ids[24];
    hzp_weights_read_stats(s->model->weights, &stats);
    if (!hzp_trainer_trials(s->trainer) || !s->dir || stats.next_id <= s->journaled + 1)
        return;
    snprintf(ids, sizeof(ids), "%" PRIu64, stats.next_id);
    if (hzp_sample_log_set_note(s->log, HZP_STATE_NOTE_IDS, ids, &text) < 0)
        hzp_log(HZP_LOG_WARN, "state", "ids of versions that were on trial may be used again: %s",
                text.text);
}

static void write_log(struct hzp_state *s)
{
    audit_trials(s);
    if (s->config.log_updates)
        hzp_update_log_write(s->updates, s->model->weights,
                             hzp_state_learned_through(s, INT64_MAX));
}

int hzp_state_write_files(struct hzp_state *s, const struct hzp_version *v, char *ret_name,
                          size_t size, struct hzp_err_text *reterr)
{
    uint64_t begin = hzp_now_ns(), id = v->record.id;
    struct hzp_train_state state;
    hzp_state_journal(s); /* the log must have every version that it refers to */
    hzp_state_note_passes(s);
    hzp_trainer_state(s->trainer, v, &state);
    int r = hzp_checkpoint_write(s->dir, id, &state, s->texts_dir, s->config.options, NULL, reterr);
    snprintf(ret_name, size, "checkpoint-%" PRIu64, id);
    s->saved_ns = hzp_now_ns();
    s->save_took_ns = s->saved_ns - begin;
    atomic_store(&s->merged, 0);
    s->tried_step = v->record.optimizer_step; /* a failed attempt is repeated after further updates,
                                               * and at the end */
    return r;
}

void hzp_state_note_passes(struct hzp_state *s)
{
    free(s->passes);
    s->passes_count = hzp_sample_queue_passes(s->queue, &s->passes);
}

int hzp_state_enter_files(struct hzp_state *s, const struct hzp_version_record *record,
                          const char *name, struct hzp_err_text *reterr)
{
    return hzp_sample_log_checkpoint(s->log, record->id, record->learned_through, name, s->passes,
                                     s->passes_count, reterr);
}

void hzp_state_wrote(struct hzp_state *s, const struct hzp_version_record *record, const char *name)
{
    s->saved_step = s->tried_step = record->optimizer_step;
    hzp_lock_take(&s->lock);
    s->stats.checkpoint_seconds = (double)s->save_took_ns * 1e-9;
    s->stats.checkpoints++;
    s->stats.checkpoint_id = record->id;
    hzp_lock_release(&s->lock);
    hzp_state_prune(s, name);
    hzp_log(HZP_LOG_INFO, "state",
            "checkpoint version=%" PRIu64 " optimizer_step=%" PRId64 " learned_through=%" PRId64
            " seconds=%.2f",
            record->id, record->optimizer_step,
            hzp_state_learned_through(s, record->learned_through), (double)s->save_took_ns * 1e-9);
}

void hzp_state_end_checkpoint(struct hzp_state *s, const struct hzp_version_record *record,
                              const char *name, int r, struct hzp_err_text *why)
{
    if (r >= 0)
        r = hzp_state_enter_files(s, record, name, why);
    atomic_store(&s->save_failed, r < 0);
    if (r >= 0) {
        hzp_state_wrote(s, record, name);
        return;
    }
    hzp_lock_take(&s->lock);
    s->stats.checkpoint_seconds = (double)s->save_took_ns * 1e-9;
    s->stats.checkpoint_failures++;
    hzp_lock_release(&s->lock);
    hzp_log(HZP_LOG_ERROR, "state", "checkpoint failed version=%" PRIu64 " %s", record->id,
            why->text);
}

/* The trainer has the state of v until this returns. */
static void write_checkpoint(struct hzp_state *s, const struct hzp_version *v)
{
    struct hzp_err_text text;
    char name[64];
    int r = hzp_state_write_files(s, v, name, sizeof(name), &text);
    hzp_state_end_checkpoint(s, &v->record, name, r, &text);
}

/* Writes one of the frozen trainer, which then goes on. */
static void checkpoint_frozen(struct hzp_state *s, const struct hzp_version *v)
{
    uint64_t begin = hzp_now_ns();
    if (s->copy)
        hzp_state_copy_and_write(s, v);
    else
        write_checkpoint(s, v);
    hzp_state_release(s, hzp_trainer_thaw);
    HZP_LOCKED(&s->lock);
    s->stats.checkpoint_pause_seconds = (double)(hzp_now_ns() - begin) * 1e-9;
}

/* A checkpoint is due while the one before is being written. */
static void note_late(struct hzp_state *s)
{
    struct hzp_trainer_stats trainer;
    hzp_trainer_read_stats(s->trainer, &trainer);
    int64_t every = s->config.checkpoint_every, updates = trainer.optimizer_step - s->tried_step;
    if (s->late || !every || updates < every)
        return;
    s->late = true;
    hzp_lock_take(&s->lock);
    s->stats.checkpoints_late++;
    hzp_lock_release(&s->lock);
    if (s->late_told)
        return;
    s->late_told = true;
    hzp_log(HZP_LOG_WARN, "state",
            "a checkpoint is due while version %" PRIu64 " is still being written: it follows "
            "then; more updates are learned again if the server is killed "
            "(--checkpoint-every, or a faster disk)",
            s->saved.id);
}

/* Whether the loop waits for a last checkpoint. */
static bool finished(struct hzp_state *s)
{
    int r;
    return s->finished.fn && hzp_loop_ended(s->loop, &s->finished, &r) && r == HZP_OK;
}

static bool checkpoint_due(struct hzp_state *s, bool *ret_later)
{
    struct hzp_trainer_stats trainer;
    struct hzp_sample_queue_stats queue;
    hzp_trainer_read_stats(s->trainer, &trainer);
    hzp_sample_queue_read_stats(s->queue, &queue);
    int64_t updates = trainer.optimizer_step - s->tried_step + atomic_load(&s->merged);
    *ret_later = false;
    if (!s->dir || updates <= 0 || trainer.broken)
        return false;
    if (finished(s))
        return true; /* the last one, for which the loop waits */
    if (s->config.checkpoint_every > 0 && updates >= s->config.checkpoint_every)
        return true;
    if (queue.samples > 0)
        return false; /* another update will follow and poke this thread */
    *ret_later = true;
    uint64_t now = hzp_now_ns();
    return now - atomic_load(&s->last_update_ns) >= (uint64_t)QUIET_S * 1000000000u &&
           now - s->saved_ns >= DUTY * s->save_took_ns;
}

/* The loop may end: there is no last checkpoint to be gathered, or it has failed. */
static void let_end(struct hzp_state *s)
{
    bool later;
    if (!finished(s))
        return;
    if (!atomic_load(&s->read_only) && checkpoint_due(s, &later))
        return;
    s->finished.fn = NULL;
    hzp_state_release(s, hzp_trainer_let_end);
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
                "training starves: %d examples wait, the oldest for %.0f s, nothing was learned "
                "for %.0f s; held back by: %s (--train-share min guarantees training a share)",
                queue.samples, outlook.oldest_seconds, limit, outlook.held_by);
        HZP_LOCKED(&s->lock);
        s->stats.starved++;
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
    snprintf(path, sizeof(path), "%s/%s", s->dir ? s->dir : "", HZP_STATE_TEXTS);
    bool kept = s->dir && !atomic_load(&s->read_only);
    if (kept && hzp_model_copy_texts(path, s->model_dir, &text) < 0) {
        hzp_log(HZP_LOG_WARN, "state", "%s", text.text);
        kept = false;
    }
    free(s->texts_dir);
    s->texts_dir = hzp_xstrdup(kept ? path : s->model_dir);
}

/* The log could not be written at start: tries again, and lets the trainer begin once it can
 * be. */
static void try_writing(struct hzp_state *s)
{
    struct hzp_err_text text;
    if (hzp_dir_make(s->dir, NULL, &text) < 0 || hzp_sample_log_mark(s->log, &text) < 0)
        return;
    hzp_log(HZP_LOG_INFO, "state", "%s can be written again: learning begins", s->dir);
    atomic_store(&s->read_only, false);
    hzp_trainer_pause(s->trainer, false);
    hzp_loop_poke(s->loop);
    keep_texts(s);
}

/* Some file systems cannot allocate: what is free tells, if nothing is reserved. */
static bool allocates(int fd, size_t bytes)
{
    struct statvfs disk;
    int r;
    do
        r = fallocate(fd, 0, 0, (off_t)bytes);
    while (r < 0 && errno == EINTR);
    if (r == 0 || errno != EOPNOTSUPP || fstatvfs(fd, &disk) < 0)
        return r == 0;
    errno = ENOSPC;
    return disk.f_bavail * disk.f_frsize >= bytes;
}

int hzp_state_has_room(const struct hzp_state *s, size_t bytes, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/.room", s->dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    bool room = fd >= 0 && allocates(fd, bytes);
    int error = errno;
    if (fd >= 0)
        close(fd);
    unlink(path);
    return room ? HZP_OK
                : hzp_fail(reterr, HZP_EIO, "%s: no room for %.1f MB: %s", s->dir,
                           (double)bytes * 1e-6, strerror(error));
}

enum { ROOM = 1 << 20 };

/* After examples could not be stored, tests whether they can be again: until then the server
 * refuses new examples, so no request would find out. */
static void look_for_room(struct hzp_state *s)
{
    if (atomic_load(&s->accept_failed) && s->dir && hzp_state_has_room(s, ROOM, NULL) >= 0)
        atomic_store(&s->accept_failed, false);
}

/* Keeps the fingerprint of all of the model's bytes, for the next start. */
static void keep_contents(struct hzp_state *s)
{
    char files[HZP_FINGERPRINT_SIZE], again[HZP_FINGERPRINT_SIZE], all[HZP_FINGERPRINT_SIZE];
    struct hzp_err_text text;
    s->contents_due = false;
    hzp_fingerprint_files(s->model_dir, files);
    int r = hzp_fingerprint_contents(s->model_dir, &s->stopping, all, &text);
    hzp_fingerprint_files(s->model_dir, again);
    if (r == HZP_ECANCELED || (r >= 0 && strcmp(files, again)))
        return; /* the next start tries again */
    if (r >= 0)
        r = hzp_sample_log_set_note(s->log, HZP_STATE_NOTE_CONTENTS, all, &text);
    if (r >= 0)
        r = hzp_sample_log_set_note(s->log, HZP_STATE_NOTE_FILES, files, &text);
    if (r < 0)
        hzp_log(HZP_LOG_WARN, "state", "%s: the model's contents are not recorded: %s, ignoring",
                s->model_dir, text.text);
}

/* Reads what the start has left: moments and residuals of the checkpoint.  Where they are damaged,
 * the checkpoint before serves again and what was learned since is learned again, as if the server
 * had begun with that one. */
static void read_rest(struct hzp_state *s)
{
    struct hzp_err_text text;
    uint64_t version;
    int r = hzp_trainer_load_rest(s->trainer, &s->stopping, &text);
    hzp_loop_poke(s->loop);
    if (r >= 0 || r == HZP_ECANCELED)
        return;
    hzp_log(HZP_LOG_ERROR, "train", "stopped: %s", text.text);
    if (r != HZP_EFORMAT || atomic_load(&s->read_only) || !hzp_state_set_aside(s, text.text))
        return;
    r = hzp_state_fall_back(s, &version, &text);
    if (r < 0)
        hzp_log(HZP_LOG_ERROR, "state", "%s", text.text);
    else
        hzp_log(HZP_LOG_WARN, "state",
                "checkpoint=%" PRIu64 " serves again, what was learned since is learned again",
                version);
}

static bool trial_runs(struct hzp_state *s)
{
    struct hzp_trainer_stats trainer;
    hzp_trainer_read_stats(s->trainer, &trainer);
    return trainer.on_trial;
}

/* What the thread does whatever it waits for, as soon as there is something, or after this
 * time. */
static void do_chores(struct hzp_state *s, uint64_t most_ns)
{
    uint64_t sleep_ns = watch_learning(s);
    bool soon = s->journal_failed || atomic_load(&s->read_only) || atomic_load(&s->accept_failed);
    sleep_ns = HZP_MIN(sleep_ns, most_ns);
    hzp_wake_wait(&s->wake, HZP_MIN(sleep_ns, soon ? (uint64_t)SOON_NS : UINT64_MAX));
    write_log(s);
    if (atomic_load(&s->read_only))
        return;
    if (s->contents_due)
        keep_contents(s);
    hzp_state_turn_original(s);
    look_for_room(s);
    hzp_state_journal(s);
    hzp_state_turn_saver(s, false);
}

int hzp_state_call(struct hzp_state *s, hzp_border_fn *fn, void *ctx, struct hzp_err_text *reterr)
{
    int r = hzp_loop_call(s->loop, fn, ctx);
    if (r == HZP_ECANCELED)
        return hzp_fail(reterr, r, "the server stops");
    if (r == HZP_EDEVICE || r == HZP_EIO)
        return hzp_fail(reterr, r, r == HZP_EIO ? "another rank failed" : "the device failed");
    return r;
}

int hzp_state_hold(struct hzp_state *s, hzp_border_fn *fn, bool (*in_vain)(struct hzp_state *s))
{
    struct hzp_border_call call = {.fn = fn, .ctx = s->trainer, .wake = &s->wake};
    int r;
    hzp_loop_post(s->loop, &call);
    while (!hzp_loop_ended(s->loop, &call, &r)) {
        if (in_vain(s))
            return hzp_loop_cancel(s->loop, &call);
        do_chores(s, DOUBT_NS);
    }
    return r;
}

void hzp_state_release(struct hzp_state *s, hzp_border_fn *fn)
{
    hzp_loop_await(s->loop, &s->release); /* the one before */
    s->release = (struct hzp_border_call){.fn = fn, .ctx = s->trainer};
    hzp_loop_post(s->loop, &s->release);
}

/* No checkpoint can be made now: ranks are missing; the trainer's state belongs to no version; or
 * a trial runs, which a job that waits ends. */
static bool no_checkpoint(struct hzp_state *s)
{
    return hzp_trainer_parting(s->trainer) || hzp_trainer_stopped(s->trainer) ||
           (trial_runs(s) && hzp_state_job_waits(s));
}

/* Makes a checkpoint if one is due.  Returns the time after which to look again. */
static uint64_t turn_checkpoint(struct hzp_state *s)
{
    bool later = false;
    if (hzp_trainer_parting(s->trainer) || !checkpoint_due(s, &later))
        return later ? (uint64_t)SOON_NS : UINT64_MAX;
    if (s->saving) {
        note_late(s);
        return UINT64_MAX;
    }
    int r = hzp_state_hold(s, hzp_trainer_freeze, no_checkpoint);
    bool vain = no_checkpoint(s);
    if (r >= 0 && !vain)
        checkpoint_frozen(s, hzp_trainer_frozen(s->trainer));
    else
        hzp_state_release(s, hzp_trainer_thaw);
    if (r >= 0 || vain)
        hzp_wake_poke(&s->wake); /* jobs have waited; the state may have changed meanwhile */
    return UINT64_MAX;
}

static void *file_main(void *arg)
{
    struct hzp_state *s = arg;
    uint64_t look_ns = UINT64_MAX;
    keep_texts(s);
    read_rest(s);
    while (!atomic_load(&s->stopping)) {
        let_end(s);
        do_chores(s, look_ns);
        hzp_state_turn_rejoin(s, false);
        if (atomic_load(&s->read_only)) {
            try_writing(s);
            continue;
        }
        if (!s->saving)
            hzp_state_turn_jobs(s);
        look_ns = turn_checkpoint(s);
    }
    hzp_state_turn_rejoin(s, true);
    hzp_state_turn_saver(s, true);
    return NULL;
}

/* Without the memory checkpoints are written as they are without a copy. */
static void make_copy(struct hzp_state *s)
{
    if (!s->dir || !s->copies)
        return;
    enum hzp_dtype type = hzp_weights_type(s->model->weights);
    enum hzp_dtype moments = hzp_train_space_m(hzp_trainer_space(s->trainer))->type;
    if (hzp_snapshot_create(s->config.layout, type, moments, &s->copy) < 0)
        hzp_log(HZP_LOG_WARN, "state",
                "no memory for a copy of the state: updates wait while a checkpoint is written");
}

/* Versions of earlier processes stay listed.  A history that cannot be read is no reason not to
 * serve. */
static void restore_history(struct hzp_state *s)
{
    struct hzp_err_text text;
    HZP_FREED struct hzp_version_record *record = malloc(RECORDS_MAX * sizeof(*record));
    int32_t n = HZP_ENOMEM;
    hzp_fail(&text, n, "not enough memory");
    if (record)
        n = hzp_sample_log_read_versions(s->log, s->resume.next_version_id, RECORDS_MAX, record,
                                         &text);
    if (n < 0)
        hzp_log(HZP_LOG_WARN, "state", "versions of earlier runs are not listed: %s", text.text);
    else
        hzp_weights_set_history(s->model->weights, record, n);
}

void hzp_state_copy_checkpoints(struct hzp_state *s)
{
    s->copies = true;
}

int hzp_state_start(struct hzp_state *s, struct hzp_trainer *trainer, const struct hzp_model *model,
                    struct hzp_loop *loop)
{
    s->trainer = trainer;
    s->model = model;
    s->loop = loop;
    s->examples.tokens_max = hzp_trainer_tokens_max(trainer);
    s->examples.piece_tokens = HZP_MIN(s->examples.piece_tokens, s->examples.tokens_max);
    s->journaled = s->resume.next_version_id - 1;
    s->saved_ns = hzp_now_ns();
    make_copy(s);
    restore_history(s);
    if (s->dir)
        HZP_TRY(hzp_trainer_keep_slices(trainer));
    if (hzp_trainer_whole_layout(trainer)) {
        s->finished =
            (struct hzp_border_call){.fn = hzp_trainer_finished, .ctx = trainer, .wake = &s->wake};
        hzp_loop_post(loop, &s->finished);
    }
    if (s->dir)
        s->upload = hzp_upload_create(s->dir, s->config.layout, hzp_weights_type(model->weights));
    hzp_trainer_set_failed(trainer, s->failed_before, s->failed_before_count);
    hzp_trainer_tell_marks(trainer, s->mark, s->marks);
    if (atomic_load(&s->read_only))
        hzp_trainer_pause(trainer, true);
    s->updates = hzp_update_log_create(s->journaled);
    HZP_TRY(hzp_thread_start(&s->thread, "hzp-file", file_main, s));
    s->started = true;
    hzp_wake_poke(&s->wake); /* journals the first version */
    return HZP_OK;
}

static void note_rejection(struct hzp_state *s, const struct hzp_update_report *report)
{
    char why[HZP_STATE_REASON];
    struct hzp_trials_stats trials;
    if (report->trial) {
        hzp_trials_read(hzp_trainer_trials(s->trainer), &trials);
        snprintf(why, sizeof(why), "version %" PRIu64 ", which was on trial, is dropped: %s",
                 report->trial, trials.newest.reason);
    } else {
        snprintf(why, sizeof(why),
                 "the gate's loss%s%s rose (all: %.4f to %.4f), the draft is discarded",
                 report->gate_tag ? " of tag " : "", report->gate_tag ? report->gate_tag : "",
                 report->gate_before, report->gate_after);
    }
    hzp_log(HZP_LOG_WARN, "train",
            "rejected optimizer_step=%" PRId64 " samples=%d sequence=%" PRId64 "..%" PRId64 ": %s",
            report->optimizer_step, report->samples, report->first_sequence, report->last_sequence,
            why);
    hzp_state_note_rejection(s, report->first_sequence, report->last_sequence, why);
}

void hzp_state_update(struct hzp_state *s, const struct hzp_update_report *report)
{
    if (report->alone) { /* the sites' thread says what became of it */
        atomic_fetch_add(&s->merged, !report->skipped);
        atomic_store(&s->last_update_ns, hzp_now_ns());
        hzp_wake_poke(&s->wake);
        return;
    }
    if (report->broken)
        hzp_log(HZP_LOG_ERROR, "train",
                "stopped: the weights are not finite; restart to resume from the last checkpoint");
    else if (report->dropped)
        hzp_log(HZP_LOG_ERROR, "train",
                "dropped optimizer_step=%" PRId64 " samples=%d sequence=%" PRId64 "..%" PRId64
                ": not finite the second time",
                report->optimizer_step, report->samples, report->first_sequence,
                report->last_sequence);
    else if (report->rejected)
        note_rejection(s, report);
    else if (report->skipped && !report->withdrawn)
        hzp_log(HZP_LOG_WARN, "train",
                "skipped optimizer_step=%" PRId64 ": not finite, trying again",
                report->optimizer_step);
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
    hzp_loop_close_borders(s->loop);
    hzp_wake_poke(&s->wake);
    pthread_join(s->thread, NULL);
    s->started = false;
    /* What it could not give back any more. */
    struct hzp_border border = hzp_loop_border(s->loop);
    hzp_trainer_thaw(s->trainer, &border);
    hzp_trainer_resume(s->trainer, &border);
    write_log(s);
    if (atomic_load(&s->read_only))
        return HZP_OK; /* nothing was learned */
    hzp_state_journal(s);
    keep_ids(s);
    struct hzp_version *v = hzp_weights_current(s->model->weights);
    bool newer = v && (v->record.optimizer_step > s->saved_step || atomic_load(&s->merged));
    if (save && s->dir && newer && hzp_trainer_idle(s->trainer) &&
        !hzp_trainer_stopped(s->trainer)) {
        write_checkpoint(s, v);
        if (v->record.optimizer_step > s->saved_step)
            return HZP_EIO;
    }
    return s->journal_failed ? HZP_EIO : HZP_OK;
}
