/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/versions.h"

#include "api/learn/checkpoint.h"
#include "api/learn/state_private.h"
#include "base/file.h"
#include "base/log.h"
#include "base/words.h"
#include "train/history/trainer_suspend.h"

#include <fcntl.h>

enum { KEPT_ROOM = 2048, RECORDS_MAX = 4096 };

/* --- What is kept ----------------------------------------------------------------------------- */

int32_t hzp_state_kept(struct hzp_state *s, struct hzp_logged_checkpoint **ret,
                       struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    if (!s->dir) {
        *ret = NULL;
        return 0;
    }
    /* The log also names those that were removed, and what has a name may be older than many. */
    struct hzp_logged_checkpoint *all = NULL;
    int32_t n, kept = 0, room = KEPT_ROOM;
    do {
        room *= 2;
        free(all);
        all = hzp_xcalloc((size_t)room, sizeof(*all));
        n = hzp_sample_log_checkpoints(s->log, all, room, reterr);
    } while (n == room && room < INT32_MAX / 2);
    for (int32_t i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", s->dir, all[i].name);
        if (access(path, F_OK) == 0)
            all[kept++] = all[i];
    }
    if (n < 0) {
        free(all);
        return n;
    }
    *ret = all;
    return kept;
}

int hzp_state_record(struct hzp_state *s, uint64_t id, struct hzp_version_record *ret,
                     struct hzp_err_text *reterr)
{
    struct hzp_version_record *all = hzp_xcalloc(RECORDS_MAX, sizeof(*all));
    int32_t n = hzp_weights_list(s->model->weights, all, RECORDS_MAX);
    int r = HZP_ENOENT;
    for (int32_t i = 0; i < n && r < 0; i++)
        if (all[i].id == id) {
            *ret = all[i];
            r = HZP_OK;
        }
    free(all);
    if (r < 0 && hzp_sample_log_read_versions(s->log, id + 1, 1, ret, reterr) == 1 && ret->id == id)
        r = HZP_OK;
    return r < 0 ? hzp_fail(reterr, r, "there is no version %" PRIu64, id) : r;
}

int hzp_state_source(struct hzp_state *s, uint64_t id, char ret[HZP_VERSION_SOURCE_MAX + 1],
                     struct hzp_err_text *reterr)
{
    return hzp_sample_log_source(s->log, id, ret, HZP_VERSION_SOURCE_MAX + 1, reterr);
}

/* --- Names ------------------------------------------------------------------------------------ */

bool hzp_version_name_valid(const char *name)
{
    size_t n = strlen(name);
    if (!n || n > HZP_VERSION_NAME_MAX || !isalpha((unsigned char)*name) ||
        hzp_among("current original names", name))
        return false;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && !strchr("-_.", *name))
            return false;
    return true;
}

int32_t hzp_state_names(struct hzp_state *s, struct hzp_version_name **ret,
                        struct hzp_err_text *reterr)
{
    struct hzp_version_name *name = hzp_xcalloc(HZP_NAMES_MAX, sizeof(*name));
    int32_t n = hzp_sample_log_names(s->log, name, HZP_NAMES_MAX, reterr);
    if (n < 0) {
        free(name);
        return n;
    }
    *ret = name;
    return n;
}

static int find_original(struct hzp_state *s, uint64_t *ret, struct hzp_err_text *reterr)
{
    struct hzp_weights_stats stats;
    struct hzp_version_record record;
    struct hzp_logged_checkpoint none[1];
    uint64_t id, learned;
    hzp_weights_read_stats(s->model->weights, &stats);
    /* Versions that have just been published are not in the log yet: their parents are. */
    for (id = stats.serving_id, *ret = 0; !*ret; id = record.parent) {
        HZP_TRY(hzp_sample_log_before(s->log, id, 0, 0, &learned, ret, none, 0, reterr));
        if (!*ret &&
            (hzp_state_record(s, id, &record, reterr) < 0 || !record.parent || record.parent >= id))
            *ret = id;
    }
    return HZP_OK;
}

int hzp_state_find(struct hzp_state *s, const char *text, uint64_t *ret,
                   struct hzp_err_text *reterr)
{
    struct hzp_weights_stats stats;
    struct hzp_version_name *name;
    if (!strcmp(text, "current")) {
        hzp_weights_read_stats(s->model->weights, &stats);
        *ret = stats.serving_id;
        return HZP_OK;
    }
    if (!strcmp(text, "original"))
        return find_original(s, ret, reterr);
    if (isdigit((unsigned char)*text)) {
        char *end;
        errno = 0;
        unsigned long long id = strtoull(text, &end, 10);
        if (*end || errno || !id || id > INT64_MAX)
            return hzp_fail(reterr, HZP_ENOENT, "\"%.40s\" is no version's number", text);
        *ret = id;
        return HZP_OK;
    }
    int32_t n = hzp_state_names(s, &name, reterr);
    HZP_TRY(n);
    *ret = 0;
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(name[i].name, text))
            *ret = name[i].id;
    free(name);
    return *ret ? HZP_OK : hzp_fail(reterr, HZP_ENOENT, "no version is named \"%.64s\"", text);
}

int hzp_state_unname(struct hzp_state *s, const char *name, struct hzp_err_text *reterr)
{
    uint64_t id;
    if (!hzp_version_name_valid(name))
        return hzp_fail(reterr, HZP_ENOENT, "no version is named \"%.64s\"", name);
    HZP_TRY(hzp_state_find(s, name, &id, reterr));
    return hzp_sample_log_set_name(s->log, name, 0, reterr);
}

struct hzp_audit *hzp_state_audit(struct hzp_state *s)
{
    return s->audit;
}

/* --- Pruning ---------------------------------------------------------------------------------- */

/* Whether the log has the version itself, not only its checkpoint. */
static bool is_journaled(struct hzp_state *s, uint64_t id)
{
    struct hzp_version_record record;
    struct hzp_err_text text;
    return hzp_sample_log_read_versions(s->log, id + 1, 1, &record, &text) == 1 && record.id == id;
}

/* Checkpoints that were on disk and are not any more leave the log.  (One whose directory was moved
 * elsewhere stays in it, and is known when it is moved back.)  The checkpoint of a version that was
 * not journalled before a kill stays, too: only it says what the version was made from
 * (hzp_sample_log_before). */
static void forget_removed(struct hzp_state *s, const struct hzp_logged_checkpoint *kept, int32_t n)
{
    struct hzp_err_text text;
    char path[PATH_MAX];
    for (int32_t i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", s->dir, kept[i].name);
        if (access(path, F_OK) == 0 || errno != ENOENT || !is_journaled(s, kept[i].id))
            continue;
        if (hzp_sample_log_forget_checkpoint(s->log, kept[i].id, &text) < 0)
            hzp_log(HZP_LOG_WARN, "state", "%s is removed and still in the log: %s", kept[i].name,
                    text.text);
    }
}

void hzp_state_prune(struct hzp_state *s, const char *needed)
{
    struct hzp_err_text text;
    char original[PATH_MAX];
    HZP_FREED struct hzp_logged_checkpoint *kept = NULL;
    HZP_FREED struct hzp_version_name *name = NULL;
    int32_t n = hzp_state_kept(s, &kept, &text), names = hzp_state_names(s, &name, &text);
    if (n < 0 || names < 0) { /* what has a name is not known: nothing is removed */
        hzp_log(HZP_LOG_WARN, "state", "old checkpoints are not removed: %s", text.text);
        n = names = n < 0 || names < 0 ? -1 : 0;
    }
    const char **keep = hzp_xcalloc((size_t)HZP_MAX(names, 0) + 1, sizeof(*keep));
    int32_t count = 0;
    keep[count++] = needed;
    for (int32_t i = 0; i < names; i++)
        for (int32_t k = 0; k < n; k++)
            if (kept[k].id == name[i].id)
                keep[count++] = kept[k].name;
    struct hzp_retention policy = s->keep;
    int64_t copy = hzp_state_original_dir(s, original) ? hzp_checkpoint_bytes(original) : 0;
    if (policy.bytes)
        policy.bytes = HZP_MAX(policy.bytes - copy, 1);
    if (n >= 0)
        hzp_checkpoint_prune(s->dir, &policy, keep, count);
    forget_removed(s, kept, n);
    free(keep);
}

/* --- Jobs: asking ----------------------------------------------------------------------------- */

const char *hzp_job_kind_name(enum hzp_job_kind kind)
{
    static const char *const name[] = {"name", "activate", "forget", "export", "push", "undo"};
    return name[kind];
}

/* Under the lock.  NULL: it is not known. */
static struct hzp_version_job *job_of(struct hzp_state *s, uint64_t id)
{
    for (int i = 0; id && i < HZP_JOBS_KEPT; i++)
        if (s->job[i].id == id)
            return &s->job[i];
    return NULL;
}

/* Under the lock. */
static uint64_t asked_before(const struct hzp_state *s, uint64_t token)
{
    for (int i = 0; token && i < HZP_JOBS_KEPT; i++)
        if (s->job[i].token == token && s->job[i].state != HZP_JOB_FAILED)
            return s->job[i].id;
    return 0;
}

uint64_t hzp_state_job_of(struct hzp_state *s, uint64_t token)
{
    HZP_LOCKED(&s->lock);
    return asked_before(s, token);
}

/* Under the lock.  The place for another job, of one that may be forgotten; NULL: there is none. */
static struct hzp_version_job *free_job(struct hzp_state *s)
{
    struct hzp_version_job *oldest = NULL;
    for (int i = 0; i < HZP_JOBS_KEPT; i++) {
        struct hzp_version_job *job = &s->job[i];
        bool over = !job->id || job->state == HZP_JOB_DONE || job->state == HZP_JOB_FAILED;
        if (over && !s->job_held[i] && (!oldest || job->id < oldest->id))
            oldest = job;
    }
    return oldest;
}

/* Under the lock. */
static int appoint(struct hzp_state *s, const struct hzp_version_job *asked, int64_t touched,
                   uint64_t *ret_id, struct hzp_err_text *reterr)
{
    const struct hzp_version_job *last = job_of(s, s->jobs);
    if ((*ret_id = asked_before(s, asked->token)))
        return HZP_OK;
    if (last && (last->state == HZP_JOB_WAITS || last->state == HZP_JOB_RUNS))
        return hzp_fail(reterr, HZP_EBUSY, "job %" PRIu64 " has not ended: ask again when it has",
                        last->id);
    struct hzp_version_job *job = free_job(s);
    if (!job)
        return hzp_fail(reterr, HZP_EBUSY, "%d jobs have not ended: ask again when one has",
                        HZP_JOBS_KEPT);
    *job = *asked;
    *ret_id = job->id = ++s->jobs;
    job->touched = touched;
    job->state = HZP_JOB_WAITS;
    job->begun_unix_ms = hzp_unix_ms();
    return HZP_OK;
}

static void end_learned(struct hzp_state *s);

int hzp_state_ask(struct hzp_state *s, const struct hzp_version_job *asked, uint64_t *ret_id,
                  struct hzp_err_text *reterr)
{
    if (!s->dir)
        return hzp_fail(reterr, HZP_EINVAL,
                        "this server keeps no state (--state none), so it has no versions to go "
                        "back to");
    if (atomic_load(&s->read_only))
        return hzp_fail(reterr, HZP_EBUSY, "%s cannot be written", s->dir);
    bool replaces = asked->kind != HZP_JOB_NAME && asked->kind != HZP_JOB_EXPORT;
    if (replaces && hzp_trainer_whole_layout(s->trainer))
        return hzp_fail(reterr, HZP_EINVAL,
                        asked->kind == HZP_JOB_FORGET || asked->kind == HZP_JOB_UNDO
                            ? "with --tensor an example that was accepted cannot be taken back: "
                              "restart without --tensor for that"
                            : "with --tensor no other version can be made the serving one: restart "
                              "from its checkpoint");
    struct hzp_sample_queue_stats queue;
    hzp_sample_queue_read_stats(s->queue, &queue);
    end_learned(s);
    hzp_lock_take(&s->lock);
    int r = appoint(s, asked, queue.touched_through, ret_id, reterr);
    hzp_lock_release(&s->lock);
    if (r == HZP_OK)
        hzp_wake_poke(&s->wake);
    return r;
}

/* Each of the job's examples was learned again, or will not be: the gate may refuse the last. */
static bool is_learned(struct hzp_state *s, const struct hzp_version_job *job)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(s->model->weights, &stats);
    return hzp_state_settled(s, job->learn_from, job->learn_to, stats.learned_through);
}

bool hzp_state_job(struct hzp_state *s, uint64_t id, struct hzp_version_job *ret)
{
    hzp_lock_take(&s->lock);
    struct hzp_version_job *job = job_of(s, id);
    if (job)
        *ret = *job;
    hzp_lock_release(&s->lock);
    if (!job || ret->state != HZP_JOB_LEARNS || !is_learned(s, ret))
        return job != NULL;
    hzp_lock_take(&s->lock);
    job = job_of(s, id);
    if (job && job->state == HZP_JOB_LEARNS) {
        job->state = HZP_JOB_DONE;
        job->ended_unix_ms = hzp_unix_ms();
        *ret = *job;
    }
    hzp_lock_release(&s->lock);
    return true;
}

/* Ends the jobs whose last example is learned by now: no request may have asked since. */
static void end_learned(struct hzp_state *s)
{
    uint64_t id[HZP_JOBS_KEPT];
    struct hzp_version_job unused;
    hzp_lock_take(&s->lock);
    for (int i = 0; i < HZP_JOBS_KEPT; i++)
        id[i] = s->job[i].state == HZP_JOB_LEARNS ? s->job[i].id : 0;
    hzp_lock_release(&s->lock);
    for (int i = 0; i < HZP_JOBS_KEPT; i++)
        hzp_state_job(s, id[i], &unused);
}

void hzp_state_hold_job(struct hzp_state *s, uint64_t id, bool hold)
{
    HZP_LOCKED(&s->lock);
    struct hzp_version_job *job = job_of(s, id);
    if (job)
        s->job_held[job - s->job] += hold ? 1 : -1;
}

/* --- Jobs: the file thread -------------------------------------------------------------------- */

int hzp_state_find_kept(struct hzp_state *s, uint64_t id, struct hzp_logged_checkpoint *ret,
                        struct hzp_err_text *reterr)
{
    HZP_FREED struct hzp_logged_checkpoint *kept = NULL;
    int32_t n = hzp_state_kept(s, &kept, reterr);
    ret->id = 0;
    for (int32_t i = 0; i < n; i++)
        if (kept[i].id == id)
            *ret = kept[i];
    return HZP_MIN(n, 0);
}

static int replaced(const struct hzp_version_job *job, uint64_t now, struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EBUSY,
                    "version %" PRIu64 " is not on disk, and version %" PRIu64
                    " serves now: only versions on disk and the one that serves can be kept",
                    job->version, now);
}

/* Writes the serving version, if that is the one; true in *ret_written. */
static int keep_current(struct hzp_state *s, const struct hzp_version_job *job,
                        struct hzp_err_text *reterr)
{
    const struct hzp_version *v = hzp_trainer_frozen(s->trainer);
    char name[64];
    int r = v->record.id == job->version ? HZP_OK : replaced(job, v->record.id, reterr);
    if (r >= 0 && hzp_trainer_stopped(s->trainer)) /* moments may be damaged, or not read at all */
        r = hzp_fail(reterr, HZP_EBUSY,
                     "version %" PRIu64
                     " is not on disk, and training has stopped, as the log says: its moments "
                     "cannot be kept",
                     job->version);
    if (r >= 0)
        r = hzp_state_write_files(s, v, name, sizeof(name), reterr);
    if (r >= 0)
        r = hzp_state_enter_files(s, &v->record, name, reterr);
    if (r >= 0)
        r = hzp_sample_log_set_name(s->log, job->name, job->version, reterr);
    if (r >= 0)
        hzp_state_wrote(s, &v->record, name);
    return r;
}

/* The model as it was started, and another version serves now. */
static bool is_past_original(struct hzp_state *s, uint64_t id)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(s->model->weights, &stats);
    return id != stats.serving_id && hzp_state_is_original(s, id);
}

static int give_name(struct hzp_state *s, const struct hzp_version_job *job,
                     struct hzp_err_text *reterr)
{
    struct hzp_logged_checkpoint kept;
    struct hzp_version_name *name;
    bool known = false;
    int32_t names = hzp_state_names(s, &name, reterr);
    HZP_TRY(names);
    for (int32_t i = 0; i < names; i++)
        known = known || !strcmp(name[i].name, job->name);
    free(name);
    if (!known && names == HZP_NAMES_MAX)
        return hzp_fail(reterr, HZP_EBUSY, "there are %d names already: take one away first",
                        HZP_NAMES_MAX);
    HZP_TRY(hzp_state_find_kept(s, job->version, &kept, reterr));
    if (!kept.id && !is_past_original(s, job->version))
        return keep_current(s, job, reterr);
    if (!kept.id)
        HZP_TRY(hzp_state_keep_original(s, reterr));
    return hzp_sample_log_set_name(s->log, job->name, job->version, reterr);
}

/* A copy of the checkpoint's model: its files never change, so links to them will do. */
static int export_kept(struct hzp_state *s, const char *checkpoint, const char *to,
                       struct hzp_err_text *reterr)
{
    static const char *const left_out[] = {"trainer.safetensors", "keep"};
    char from[PATH_MAX];
    snprintf(from, sizeof(from), "%s/%s", s->dir, checkpoint);
    return hzp_checkpoint_link(from, to, left_out, HZP_COUNT(left_out), reterr);
}

static int export_current(struct hzp_state *s, const struct hzp_version_job *job, const char *to,
                          struct hzp_err_text *reterr)
{
    const struct hzp_version *v = hzp_trainer_frozen(s->trainer);
    struct hzp_train_state state;
    if (v->record.id != job->version)
        return replaced(job, v->record.id, reterr);
    hzp_trainer_state(s->trainer, v, &state);
    return hzp_checkpoint_save_model(to, &state.source, s->texts_dir, s->config.options, NULL,
                                     reterr);
}

static int export_version(struct hzp_state *s, const struct hzp_version_job *job,
                          struct hzp_err_text *reterr)
{
    char parent[PATH_MAX], place[PATH_MAX + 80], temporary[PATH_MAX + 90];
    struct hzp_logged_checkpoint kept;
    snprintf(parent, sizeof(parent), "%s/export", s->dir);
    snprintf(place, sizeof(place), "%s/%s", parent, job->name);
    snprintf(temporary, sizeof(temporary), "%s/.%s.tmp", parent, job->name); /* no job's name */
    if (access(place, F_OK) == 0)
        return hzp_fail(reterr, HZP_EINVAL, "%s: it exists already: name another directory", place);
    HZP_TRY(hzp_state_find_kept(s, job->version, &kept, reterr));
    if (!kept.id && is_past_original(s, job->version)) {
        HZP_TRY(hzp_state_keep_original(s, reterr));
        kept = (struct hzp_logged_checkpoint){.id = job->version, .name = "original"};
    }
    HZP_TRY(hzp_dir_make(parent, NULL, reterr));
    hzp_checkpoint_remove(temporary); /* left by an export that was interrupted */
    int r = kept.id ? export_kept(s, kept.name, temporary, reterr)
                    : export_current(s, job, temporary, reterr);
    if (r >= 0)
        r = hzp_checkpoint_put_in_place(parent, temporary, place, reterr);
    if (r < 0)
        hzp_checkpoint_remove(temporary);
    return r;
}

static int run_job(struct hzp_state *s, const struct hzp_version_job *job,
                   struct hzp_version_job *ret, struct hzp_err_text *reterr)
{
    switch (job->kind) {
    case HZP_JOB_NAME:
        return give_name(s, job, reterr);
    case HZP_JOB_EXPORT:
        return export_version(s, job, reterr);
    case HZP_JOB_ACTIVATE:
        return hzp_state_activate(s, job, ret, reterr);
    case HZP_JOB_FORGET:
    case HZP_JOB_UNDO:
        return hzp_state_take_back(s, job, ret, reterr);
    case HZP_JOB_PUSH:
        return hzp_state_push(s, job, ret, reterr);
    }
    return HZP_EINVAL;
}

/* Why a job failed, for clients too: files are named from the state's or the model's directory
 * on. */
static void tell_failure(const struct hzp_state *s, struct hzp_version_job *job, const char *why)
{
    const char *const dir[] = {s->dir, s->model_dir};
    size_t n = 0;
    while (*why && n + 1 < sizeof(job->error)) {
        size_t skip = 0;
        for (int i = 0; i < HZP_COUNT(dir); i++) {
            size_t prefix = strlen(dir[i]);
            if (prefix && !strncmp(why, dir[i], prefix) && why[prefix] == '/')
                skip = HZP_MAX(skip, prefix + 1);
        }
        why += skip;
        if (*why)
            job->error[n++] = *why++;
    }
    job->error[n] = 0;
}

static void log_job(const struct hzp_version_job *job)
{
    const char *kind = hzp_job_kind_name(job->kind);
    if (job->state == HZP_JOB_FAILED)
        hzp_log(HZP_LOG_WARN, "state", "job failed id=%" PRIu64 " kind=%s version=%" PRIu64 ": %s",
                job->id, kind, job->version, job->error);
    else
        hzp_log(HZP_LOG_INFO, "state",
                "job id=%" PRIu64 " kind=%s version=%" PRIu64 " made=%" PRIu64 " example=%" PRId64
                " name=%s",
                job->id, kind, job->version, job->made, job->example,
                job->name[0] ? job->name : "-");
}

/* What a job needs: nothing; that learning is suspended (train/history/trainer_suspend.h); the
 * trainer's state frozen. */
enum job_need { NEEDS_NOTHING, NEEDS_SUSPENSION, NEEDS_FREEZE };

static enum job_need need_of(struct hzp_state *s, const struct hzp_version_job *job)
{
    struct hzp_logged_checkpoint kept;
    struct hzp_err_text text;
    if (job->kind != HZP_JOB_NAME && job->kind != HZP_JOB_EXPORT)
        return NEEDS_SUSPENSION;
    bool on_disk = hzp_state_find_kept(s, job->version, &kept, &text) == HZP_OK && kept.id;
    return on_disk || is_past_original(s, job->version) ? NEEDS_NOTHING : NEEDS_FREEZE;
}

static void give_back(struct hzp_state *s, enum job_need need)
{
    if (need == NEEDS_SUSPENSION)
        hzp_state_release(s, hzp_trainer_resume);
    if (need == NEEDS_FREEZE)
        hzp_state_release(s, hzp_trainer_thaw);
}

/* A version that is not on disk can be kept while it serves, or once its trial has ended so. */
static int check_serves(struct hzp_state *s, const struct hzp_version_job *job,
                        struct hzp_err_text *reterr)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(s->model->weights, &stats);
    return job->version == stats.serving_id || job->version == stats.trial_id
               ? HZP_OK
               : replaced(job, stats.serving_id, reterr);
}

/* Whether the job can be done, as far as that is known yet. */
static int check(struct hzp_state *s, const struct hzp_version_job *job, enum job_need need,
                 struct hzp_err_text *reterr)
{
    bool parts = hzp_trainer_parting(s->trainer) && !hzp_trainer_rejoins(s->trainer);
    if (parts && need != NEEDS_NOTHING)
        return hzp_fail(reterr, HZP_EBUSY,
                        "the ranks cannot go on together, as the log says: restart the server");
    return need == NEEDS_FREEZE ? check_serves(s, job, reterr) : hzp_state_check(s, job, reterr);
}

/* While ranks are missing nothing is suspended or saved. */
static bool ranks_are_missing(struct hzp_state *s)
{
    return hzp_trainer_parting(s->trainer);
}

/* Waits for what the job needs.  < 0: another time. */
static int obtain(struct hzp_state *s, enum job_need need)
{
    if (need == NEEDS_NOTHING)
        return HZP_OK;
    if (ranks_are_missing(s))
        return HZP_EBUSY;
    int r = hzp_state_hold(s, need == NEEDS_FREEZE ? hzp_trainer_freeze : hzp_trainer_suspend,
                           ranks_are_missing);
    if (r < 0)
        give_back(s, need);
    return r;
}

/* *ret: the job that waits; id 0: none does. */
static void find_job(struct hzp_state *s, struct hzp_version_job *ret)
{
    *ret = (struct hzp_version_job){.id = 0};
    HZP_LOCKED(&s->lock);
    const struct hzp_version_job *job = job_of(s, s->jobs);
    if (job && job->state == HZP_JOB_WAITS)
        *ret = *job;
}

static void set_job(struct hzp_state *s, const struct hzp_version_job *job)
{
    HZP_LOCKED(&s->lock);
    struct hzp_version_job *kept = job_of(s, job->id);
    HZP_ASSERT(kept); /* it has not ended */
    *kept = *job;
}

bool hzp_state_job_waits(struct hzp_state *s)
{
    struct hzp_version_job job;
    find_job(s, &job);
    return job.id != 0;
}

void hzp_state_turn_jobs(struct hzp_state *s)
{
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_version_job asked;
    find_job(s, &asked);
    if (!asked.id)
        return;
    /* What cannot be done disturbs nothing: a suspension withdraws a trial. */
    enum job_need need = need_of(s, &asked);
    int r = check(s, &asked, need, &text);
    if (r >= 0 && obtain(s, need) < 0)
        return;
    struct hzp_version_job result = asked;
    result.state = HZP_JOB_RUNS;
    set_job(s, &result);
    hzp_state_journal(s);
    if (r >= 0) {
        r = run_job(s, &asked, &result, &text);
        give_back(s, need);
    }
    result.state = r < 0 ? HZP_JOB_FAILED : result.learn_to ? HZP_JOB_LEARNS : HZP_JOB_DONE;
    result.code = r;
    if (r < 0)
        tell_failure(s, &result, text.text[0] ? text.text : hzp_err_name(r));
    if (result.state != HZP_JOB_LEARNS)
        result.ended_unix_ms = hzp_unix_ms();
    log_job(&result);
    set_job(s, &result);
    hzp_wake_poke(&s->wake); /* state may have changed meanwhile */
}
