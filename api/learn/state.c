/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/state.c - opening a state, restoring it, accepting examples. */
#include "api/learn/checkpoint.h"
#include "api/learn/state_private.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

#include <sys/stat.h>

enum {
    BACKLOG_PIECE = 256,
    FAILED_MAX = 1 << 20, /* failed examples of earlier runs that are known by number */
    CHECKPOINTS_MAX = 64, /* looked at for one that is whole */
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

/* No other user should read examples and weights.  A directory that exists keeps its mode, because
 * its owner may have wanted it so. */
static void warn_of_wide_mode(const char *dir)
{
    struct stat st;
    if (stat(dir, &st) == 0 && (st.st_mode & 077))
        hzp_log(HZP_LOG_WARN, "state",
                "%s is open to other users (mode %03o), so they may read examples and weights: "
                "chmod 700 it",
                dir, (unsigned)st.st_mode & 0777);
}

/* *ret_full: there is no space to make it, and reterr says so; it is made later. */
static int choose_dir(struct hzp_state *s, bool *ret_full, struct hzp_err_text *reterr)
{
    char dir[PATH_MAX];
    if (s->config.state_dir && !strcmp(s->config.state_dir, "none"))
        return HZP_OK;
    if (s->config.state_dir)
        snprintf(dir, sizeof(dir), "%s", s->config.state_dir);
    else
        HZP_TRY(hzp_state_default_dir(s->config.model_dir, dir, sizeof(dir), reterr));
    s->dir = hzp_xstrdup(dir);
    int r = hzp_dir_make(dir, &s->dir_existed, reterr);
    *ret_full = r == HZP_EIO && (errno == ENOSPC || errno == EDQUOT);
    if (r == HZP_OK)
        warn_of_wide_mode(dir);
    return *ret_full ? HZP_OK : r;
}

/* Checkpoints whose log is lost: their examples are not known, and new versions would take their
 * numbers. */
static int check_log_is_there(const struct hzp_state *s, const char *log,
                              struct hzp_err_text *reterr)
{
    uint64_t newest = hzp_checkpoint_newest(s->dir);
    if (!newest || !hzp_sample_log_lost(log))
        return HZP_OK;
    return hzp_fail(reterr, HZP_EFORMAT,
                    "%s: it is missing or empty, but %s holds checkpoint-%" PRIu64
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
                        "%s; no checkpoint in %s is whole: restore one, or let `hzpserve state "
                        "repair` set them aside, so that the next start learns the log again",
                        why[0].text, s->dir);
    for (int i = 0; i < whole; i++)
        HZP_TRY(set_aside(s, &all[i], why[i].text, reterr));
    return HZP_MIN(n, 0);
}

/* The log and the checkpoint both say up to which number it has learned.  If they differ, one of
 * them is damaged: the examples after the smaller number are learned again, none is lost. */
static void compare_learned(struct hzp_state *s)
{
    struct hzp_trainer_numbers numbers;
    if (hzp_trainer_read_numbers(s->weights_dir, &numbers, NULL) < 0 ||
        numbers.learned_through == s->resume.learned_through)
        return; /* what cannot be read is found when it is loaded */
    hzp_log(HZP_LOG_WARN, "state",
            "%s/samples.db says that %s has learned examples up to %" PRId64
            ", its trainer.safetensors says %" PRId64
            ": one is damaged, examples after the smaller number are learned again",
            s->dir, s->resume.checkpoint_name, s->resume.learned_through, numbers.learned_through);
    s->resume.learned_through = HZP_MIN(s->resume.learned_through, numbers.learned_through);
}

static int choose_weights(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    if (s->dir)
        HZP_TRY(set_damaged_aside(s, reterr));
    HZP_TRY(hzp_sample_log_resume(s->log, s->dir ? hzp_checkpoint_newest(s->dir) : 0, &s->resume,
                                  reterr));
    if (s->resume.killed)
        hzp_log(HZP_LOG_INFO, "state",
                "the process before was killed: version numbers go on from %" PRIu64
                ", behind those that clients may have seen of it",
                s->resume.next_version_id);
    if (s->resume.unmarked) {
        hzp_log(HZP_LOG_WARN, "state",
                "read-only: %s; serving goes on, nothing is accepted or learned until the log can "
                "be written",
                s->resume.why.text);
        atomic_store(&s->read_only, true);
    }
    if (!s->dir || !s->resume.checkpoint_id) {
        s->weights_dir = hzp_xstrdup(s->config.model_dir);
        return HZP_OK;
    }
    snprintf(path, sizeof(path), "%s/%s", s->dir, s->resume.checkpoint_name);
    s->weights_dir = hzp_xstrdup(path);
    compare_learned(s);
    return HZP_OK;
}

/* A log that is not damaged may still contain token ids that this model does not have. */
static int check_tokens(const struct hzp_state *s, const struct hzp_sample *sample,
                        struct hzp_err_text *reterr)
{
    int32_t vocab = s->config.layout->config.vocab;
    int32_t cut = sample->how ? hzp_sample_first(sample) : -1; /* where a pair is divided */
    for (int32_t i = 0; i < sample->count; i++)
        if (i != cut && (sample->token[i] < 0 || sample->token[i] >= vocab))
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

/* Queues the accepted examples that no checkpoint covers, for the passes that it does not have. */
static int restore_backlog(struct hzp_state *s, struct hzp_err_text *reterr)
{
    struct hzp_sample *piece[BACKLOG_PIECE];
    int64_t after = HZP_MAX(s->resume.learned_through, 0);
    int32_t n;
    while ((n = hzp_sample_log_read(s->log, after, BACKLOG_PIECE, piece, reterr)) > 0) {
        int r = HZP_OK;
        after = piece[n - 1]->sequence_number;
        for (int32_t i = 0; i < n && r == HZP_OK; i++)
            r = check_tokens(s, piece[i], reterr);
        /* bad ones too: it frees them */
        s->stats.restored += hzp_sample_queue_restore(s->queue, piece, n);
        HZP_TRY(r);
    }
    if (n < 0)
        return n;
    s->stats.last_sequence_number = s->resume.last_sequence_number;
    s->stats.checkpoint_id = s->resume.checkpoint_id;
    s->stats.trained_again = s->resume.retrain_count;
    if (s->dir)
        hzp_log(HZP_LOG_INFO, "state",
                "opened dir=%s checkpoint=%" PRIu64 " accepted=%" PRId64 " learned_through=%" PRId64
                " queued_again=%" PRId64 " trained_again=%" PRId64 " owed_through=%" PRId64,
                s->dir, s->resume.checkpoint_id, s->resume.last_sequence_number,
                s->resume.learned_through, s->stats.restored, s->stats.trained_again,
                hzp_state_owed(s, s->resume.learned_through));
    return HZP_OK;
}

void hzp_state_read_earlier(struct hzp_state *s, int64_t learned_through)
{
    enum {
        LOOKED_AT = 1024,
        PIECE = 32
    }; /* more than are kept: some are taken back, or no lessons */
    struct hzp_sample *piece[PIECE];
    struct hzp_err_text text = {{0}, {0}};
    int64_t after = HZP_MAX(learned_through - LOOKED_AT, 0);
    int32_t n = s->config.queue.rehearse_ratio > 0;
    while (n > 0 && after < learned_through) {
        int64_t damaged = 0;
        n = hzp_sample_log_read(s->log, after, PIECE, piece, &text);
        if (n < 0 && hzp_sample_log_find_damaged(s->log, after, &damaged, NULL) >= 0 && damaged)
            n = 1; /* goes on behind it */
        if (damaged || n < 0)
            hzp_log(HZP_LOG_WARN, "state", "not learned again beside new lessons: %s", text.text);
        after = damaged ? damaged : after;
        for (int32_t i = 0; i < n && !damaged; i++) {
            after = piece[i]->sequence_number;
            bool good = check_tokens(s, piece[i], &text) >= 0;
            if (!good && after <= learned_through)
                hzp_log(HZP_LOG_WARN, "state", "not learned again beside new lessons: %s",
                        text.text);
            if (good && after <= learned_through)
                hzp_sample_queue_add_earlier(s->queue, piece[i]);
            else
                hzp_sample_destroy(piece[i]);
        }
    }
}

static int load_replay(struct hzp_state *s, struct hzp_err_text *reterr)
{
    struct hzp_sample **sample;
    int32_t count;
    if (!s->config.replay)
        return HZP_OK;
    s->examples.samples_max = 0; /* the bound is for request bodies; this is a file */
    int r = hzp_examples_load_option(&s->examples, s->config.replay, "--replay", &sample, &count,
                                     reterr);
    s->examples.samples_max = s->config.body_samples_max;
    HZP_TRY(r);
    hzp_sample_queue_set_replay(s->queue, sample, count);
    free(sample);
    return HZP_OK;
}

/* The state was begun with another model or tokenizer. */
static int refuse_source(const struct hzp_state *s, int r, const char *why,
                         struct hzp_err_text *reterr)
{
    char copy[PATH_MAX], how[PATH_MAX + 80] = "";
    if (hzp_state_original_dir(s, copy))
        snprintf(how, sizeof(how), " (hzpserve serve %s --state %.*s)", copy,
                 (int)(strrchr(copy, '/') - copy), copy);
    return hzp_fail(reterr, r,
                    "%s: use the one it was begun with%s, or name another directory with --state",
                    why, how);
}

static int pin(struct hzp_state *s, const char *name, const char *what, const char *value,
               struct hzp_err_text *reterr)
{
    struct hzp_err_text err;
    int r = strcmp(value, "none") ? hzp_sample_log_pin(s->log, name, what, value, &err) : HZP_OK;
    return r < 0 ? refuse_source(s, r, err.text, reterr) : HZP_OK;
}

/* Compares all of the model's bytes with those the state was begun with.  That reads the whole
 * model, so it is done only if size or time of a file has changed since; the first time, the file
 * thread does it. */
static int check_contents(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char files[HZP_FINGERPRINT_SIZE], then[HZP_FINGERPRINT_SIZE];
    char all[HZP_FINGERPRINT_SIZE], begun[HZP_FINGERPRINT_SIZE];
    struct hzp_err_text text;
    HZP_TRY(hzp_sample_log_note(s->log, HZP_STATE_NOTE_FILES, then, sizeof(then), reterr));
    HZP_TRY(hzp_sample_log_note(s->log, HZP_STATE_NOTE_CONTENTS, begun, sizeof(begun), reterr));
    hzp_fingerprint_files(s->model_dir, files);
    s->contents_due = !*begun;
    if (!*begun || !strcmp(files, then))
        return HZP_OK;
    hzp_log(HZP_LOG_INFO, "state", "%s: files have changed since the last start, reading all",
            s->model_dir);
    HZP_TRY(hzp_fingerprint_contents(s->model_dir, NULL, all, reterr));
    if (strcmp(all, begun)) {
        hzp_fail(&text, HZP_EINVAL,
                 "%s/samples.db: the sample log was begun with another model (contents %s, now %s)",
                 s->dir, begun, all);
        return refuse_source(s, HZP_EINVAL, text.text, reterr);
    }
    if (hzp_sample_log_set_note(s->log, HZP_STATE_NOTE_FILES, files, &text) < 0)
        hzp_log(HZP_LOG_WARN, "state", "%s, ignoring", text.text);
    return HZP_OK;
}

/* Refuses another model or tokenizer than the state was begun with, also of the same shapes. */
static int check_source(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char value[HZP_FINGERPRINT_SIZE];
    if (!s->dir)
        return HZP_OK;
    HZP_TRY(hzp_fingerprint_weights(s->model_dir, value, reterr));
    HZP_TRY(pin(s, "weights", "model", value, reterr));
    if (strcmp(value, "none"))
        HZP_TRY(check_contents(s, reterr));
    HZP_TRY(hzp_fingerprint_tokenizer(s->model_dir, value, reterr));
    snprintf(s->tokenizer, sizeof(s->tokenizer), "%s", value);
    return pin(s, "tokenizer", "tokenizer", value, reterr);
}

static int open_gate(struct hzp_state *s, struct hzp_err_text *reterr)
{
    const char *rises = s->config.gate_max_rise ? s->config.gate_max_rise : "0.02";
    s->examples.samples_max = 0; /* the bound is for request bodies; this is a file */
    int r = hzp_gate_file_open(&s->examples, s->config.gate, rises, &s->gate, reterr);
    s->examples.samples_max = s->config.body_samples_max;
    return r;
}

/* The log knows the ids of versions that were published. */
static int read_ids(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char ids[24];
    HZP_TRY(hzp_sample_log_note(s->log, HZP_STATE_NOTE_IDS, ids, sizeof(ids), reterr));
    uint64_t next = strtoull(ids, NULL, 10);
    s->resume.next_version_id = HZP_MAX(s->resume.next_version_id, next);
    return HZP_OK;
}

static int read_owed(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char told[24];
    HZP_TRY(hzp_sample_log_note(s->log, HZP_STATE_NOTE_SERVED, told, sizeof(told), reterr));
    s->told = s->owed = strtoll(told, NULL, 10);
    return HZP_OK;
}

/* A new log for which there is no space is made later (hzp_sample_log_open_later). */
static int open_log(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char path[PATH_MAX] = ":memory:", fingerprint[HZP_FINGERPRINT_SIZE];
    const struct hzp_state_config *config = &s->config;
    struct hzp_err_text why;
    bool fresh = false, full = false;
    int r = choose_dir(s, &full, &why);
    if (r < 0)
        return hzp_fail(reterr, r, "%s", why.text);
    if (s->dir) {
        snprintf(path, sizeof(path), "%s/samples.db", s->dir);
        HZP_TRY(check_log_is_there(s, path, reterr));
        fresh = config->provisional && access(path, F_OK) < 0 && errno == ENOENT;
    }
    hzp_fingerprint_shapes(config->layout, config->tok, fingerprint);
    r = hzp_sample_log_open_later(path, fingerprint, full ? &why : NULL, &s->log, reterr);
    atomic_store(&s->fresh, fresh && r != HZP_EBUSY); /* busy: created by another process */
    return r;
}

static int open_all(struct hzp_state *s, struct hzp_err_text *reterr)
{
    const struct hzp_state_config *config = &s->config;
    HZP_TRY(open_log(s, reterr));
    HZP_TRY(check_source(s, reterr));
    HZP_TRY(choose_weights(s, reterr));
    HZP_TRY(read_ids(s, reterr));
    if (s->resume.last_sequence_number > 0)
        atomic_store(&s->fresh, false); /* another process used it and has ended */
    struct hzp_sample_queue_config queue = config->queue;
    queue.learned_through = s->resume.learned_through;
    if (hzp_sample_queue_create(&queue, &s->queue) < 0)
        return hzp_fail(reterr, HZP_EINVAL, "the queue's settings are out of range");
    hzp_examples_init(&s->examples, config->tok, &config->layout->config,
                      config->layout->config.positions + 1, config->body_samples_max);
    s->examples.piece_tokens = s->config.micro_rows + 1;
    s->examples.chat = config->chat;
    s->examples.sdft = config->sdft;
    s->examples.log = s->log;
    s->examples.queue = s->queue;
    s->examples_made = true;
    HZP_TRY(read_failed(s, reterr));
    HZP_TRY(hzp_state_read_marks(s, reterr));
    HZP_TRY(read_owed(s, reterr));
    if (s->dir)
        HZP_TRY(hzp_audit_open(s->dir, atomic_load(&s->read_only), &s->audit, reterr));
    hzp_state_read_earlier(s, s->resume.learned_through);
    HZP_TRY(restore_backlog(s, reterr));
    if (config->gate)
        HZP_TRY(open_gate(s, reterr));
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
    hzp_wake_init(&s->rejoin_ended);
    hzp_lock_init(&s->lock, HZP_LOCK_STATE);
    s->said = hzp_said_create();
    int r = hzp_retention_parse(config->keep, &s->keep, reterr);
    if (r >= 0 && s->keep.best)
        r = hzp_wrong(reterr, "--keep",
                      ": best is of hzpserve train; a server checks versions by --gate");
    if (r >= 0)
        r = open_all(s, reterr);
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
    hzp_audit_remove(s->dir);
    snprintf(path, sizeof(path), "%s/%s", s->dir, HZP_STATE_TEXTS);
    hzp_checkpoint_remove(path);
    hzp_dir_unmake(s->dir, s->dir_existed);
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
    hzp_snapshot_destroy(s->copy);
    hzp_sample_queue_destroy(s->queue);
    hzp_sample_log_close(s->log);
    hzp_audit_close(s->audit);
    hzp_gate_file_close(s->gate);
    hzp_upload_destroy(s->upload);
    for (int i = 0; i < HZP_STATE_MANIFESTS; i++)
        hzp_manifest_fini(&s->manifest[i]);
    if (atomic_load(&s->fresh))
        remove_fresh(s);
    hzp_said_destroy(s->said);
    hzp_lock_fini(&s->lock);
    hzp_wake_fini(&s->wake);
    hzp_wake_fini(&s->rejoin_ended);
    free(s->dir);
    free(s->model_dir);
    free(s->weights_dir);
    free(s->failed_before);
    free(s->texts_dir);
    free(s->mark);
    free(s->passes);
    free(s);
}

const char *hzp_state_weights_dir(const struct hzp_state *s)
{
    return s->weights_dir;
}

bool hzp_state_resumes(const struct hzp_state *s)
{
    return s->dir && s->resume.checkpoint_id;
}

uint64_t hzp_state_first_id(const struct hzp_state *s)
{
    return s->resume.next_version_id;
}

struct hzp_sample_queue *hzp_state_queue(struct hzp_state *s)
{
    return s->queue;
}

const struct hzp_gate *hzp_state_gate(const struct hzp_state *s)
{
    return hzp_gate_file_gate(s->gate);
}

int hzp_state_restore(struct hzp_state *s, struct hzp_trainer *trainer, struct hzp_version *draft,
                      struct hzp_err_text *reterr)
{
    if (!hzp_state_resumes(s)) {
        /* The versions of earlier runs are lost, and it does not descend from them. */
        draft->record.parent = s->resume.next_version_id > 1 ? HZP_NO_PARENT : 0;
        return HZP_OK;
    }
    HZP_TRY(hzp_trainer_load_begin(trainer, draft, s->weights_dir, reterr));
    draft->record.parent = s->resume.checkpoint_id;
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
    for (int32_t i = 1; i < n && !older; i++) /* an activation names a directory a second time */
        older = strcmp(all[i].name, all[0].name) && check_whole(s, &all[i], &text) == HZP_OK;
    if (!older)
        hzp_log(
            HZP_LOG_ERROR, "state",
            "no checkpoint in %s is whole: restore one, or let `hzpserve state repair` set them "
            "aside, so that the next start learns the log again",
            s->dir);
    if (!older || all[0].id != s->resume.checkpoint_id)
        return false;
    if (set_aside(s, &all[0], why, &text) == HZP_OK)
        return true;
    hzp_log(HZP_LOG_ERROR, "state", "%s", text.text);
    return false;
}

/* --- Acceptance ------------------------------------------------------------------------------- */

const struct hzp_examples *hzp_state_examples(const struct hzp_state *s)
{
    return &s->examples;
}

int hzp_state_count_accepted(struct hzp_state *s, int r, int64_t first, int64_t last)
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
    if (r >= 0 || r == HZP_EIO)
        atomic_store(&s->accept_failed, r < 0);
    if (r == HZP_EIO)
        hzp_wake_poke(&s->wake); /* looks whether there is room again */
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
    hzp_state_count_accepted(s, HZP_EINVAL, 0, 0);
}

int hzp_state_accept_read(struct hzp_state *s, struct hzp_example_reader *reader, const char *key,
                          const char *session, int64_t *ret_first, int64_t *ret_last,
                          struct hzp_err_text *reterr)
{
    int r =
        hzp_examples_accept_read(&s->examples, reader, key, session, ret_first, ret_last, reterr);
    return hzp_state_count_accepted(s, r, *ret_first, *ret_last);
}

int hzp_state_accept_samples(struct hzp_state *s, struct hzp_sample **sample, int32_t count,
                             const struct hzp_body_key *key, int64_t *ret_first, int64_t *ret_last,
                             struct hzp_err_text *reterr)
{
    int r = hzp_examples_commit(&s->examples, sample, count, key, ret_first, ret_last, reterr);
    return hzp_state_count_accepted(s, r, *ret_first, *ret_last);
}

int32_t hzp_state_sessions(struct hzp_state *s, struct hzp_session *ret, int32_t max,
                           int64_t *ret_forgotten, struct hzp_err_text *reterr)
{
    return hzp_sample_log_sessions(s->log, ret, max, ret_forgotten, reterr);
}

void hzp_state_tell(struct hzp_state *s, int64_t last)
{
    char told[24];
    snprintf(told, sizeof(told), "%" PRId64, last);
    HZP_LOCKED(&s->examples.lock);
    if (last > s->told && hzp_sample_log_set_note(s->log, HZP_STATE_NOTE_SERVED, told, NULL) >= 0)
        s->told = last;
}

int64_t hzp_state_owed(struct hzp_state *s, int64_t learned_through)
{
    if (s->owed && hzp_state_finished_through(s, learned_through) >= s->owed)
        s->owed = 0;
    return s->owed;
}

int32_t hzp_state_pick(struct hzp_state *s, hzp_state_reader *reader, int64_t first, int64_t last,
                       int64_t *ret, int32_t max, int64_t *count)
{
    int64_t number[HZP_STATE_FAILED_PIECE];
    int32_t n, found = 0;
    for (int32_t from = 0;; from += n) {
        n = reader(s->queue, from, number, HZP_STATE_FAILED_PIECE);
        for (int32_t i = 0; i < n; i++) {
            if (number[i] < first || number[i] > last)
                continue;
            ++*count;
            if (found < max)
                ret[found++] = number[i];
        }
        if (n < HZP_STATE_FAILED_PIECE)
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
    n += hzp_state_pick(s, hzp_sample_queue_failed, first, last, ret + n, max - n, &now);
    *ret_count += now;
    return n;
}

void hzp_state_read_stats(struct hzp_state *s, struct hzp_state_stats *ret)
{
    int64_t none[1], failed, skipped, deleted, rejected;
    hzp_state_failed(s, 1, INT64_MAX, none, 0, &failed);
    hzp_state_marked(s, HZP_MARK_SKIPPED, 1, INT64_MAX, none, 0, &skipped);
    hzp_state_marked(s, HZP_MARK_DELETED, 1, INT64_MAX, none, 0, &deleted);
    hzp_state_marked(s, HZP_MARK_REJECTED, 1, INT64_MAX, none, 0, &rejected);
    hzp_lock_take(&s->lock);
    *ret = s->stats;
    hzp_lock_release(&s->lock);
    ret->failed = failed;
    ret->skipped = skipped;
    ret->deleted = deleted;
    ret->rejected = rejected;
}

bool hzp_state_read_only(const struct hzp_state *s)
{
    return atomic_load(&s->read_only);
}

const char *hzp_state_unwritten(const struct hzp_state *s)
{
    return atomic_load(&s->read_only)       ? "nothing is accepted or learned: the disk cannot be "
                                              "written"
           : atomic_load(&s->accept_failed) ? "examples cannot be stored: the log says why"
           : atomic_load(&s->save_failed)   ? "the newest checkpoint could not be written: the log "
                                              "says why"
           : atomic_load(&s->journal_failed) ? "samples.db cannot be written: the log says why"
                                             : NULL;
}

int64_t hzp_state_learned_through(struct hzp_state *s, int64_t finished_through)
{
    int64_t through = finished_through;
    if (s->failed_before_count) /* ascending */
        through = HZP_MIN(through, s->failed_before[0] - 1);
    int64_t failed = hzp_state_smallest(s, hzp_sample_queue_failed) - 1;
    int64_t marked = hzp_state_first_mark(s) - 1;
    through = HZP_MIN(through, HZP_MIN(failed, marked));
    return through > 0 ? through : -1;
}
