/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/rollback.c - an older version serves again: on the file thread, while learning is
 * suspended.
 *
 * From disk, with the optimizer's state of then:
 *
 *     check the files -> read the weights into a draft -> enter it in the log
 *     -> publish -> requeue what is to be learned, read moments and residuals
 *
 * The entry says that the checkpoint's directory is also that of the new version, and which
 * samples are skipped or deleted: one transaction, before the version serves.  A process killed
 * before it has activated nothing; one killed after it starts from the checkpoint.
 *
 * From a slot, or with the optimizer reset, no checkpoint on disk is that state: it is published,
 * written as a checkpoint of its own, and then entered in the same way; the job is done only then.
 * A process killed before starts from the checkpoint before the activation.  Weights that were
 * sent here (api/learn/upload.h) go the same way: they have learned none of this server's
 * examples, and descend from none of its versions.
 *
 * With several ranks the others get moments, residuals and the version once it serves on rank 0;
 * no other rank decides anything.  One that is lost meanwhile ends learning, and the log says
 * what the next start, or the next meeting of the ranks (rejoin.c), goes on from. */
#include "api/learn/checkpoint.h"
#include "api/learn/state_private.h"
#include "train/history/trainer_suspend.h"
#include "weights/model_dir.h"

enum { PIECE = 256, CANDIDATES = 256 };

struct rollback {
    struct hzp_state *s;
    const struct hzp_version_job *job;
    struct hzp_version_job *result;
    struct hzp_err_text *reterr;
    struct hzp_logged_checkpoint from; /* id 0: it is not on disk as a checkpoint */
    bool model;                        /* the version is the model as it was started (original.c) */
    char dir[PATH_MAX];                /* its checkpoint */
    struct hzp_version *draft;
    bool revived, entered;
    struct hzp_trainer_numbers numbers;
    uint64_t made;   /* the new version */
    int64_t touched; /* samples up to this one have been learned from, since */
};

/* --- On the engine thread --------------------------------------------------------------------- */

/* The slot that still holds the version, or a free one.  It waits while that slot has readers, or
 * no slot is free. */
static int take_draft(void *ctx, const struct hzp_border *border)
{
    struct rollback *r = ctx;
    struct hzp_weights *w = r->s->model->weights;
    bool sent = r->job->kind == HZP_JOB_PUSH;
    /* a slot is all there is of it */
    bool only = !r->from.id && !r->model && !sent && r->job->version;
    int code = hzp_weights_revive(w, sent ? UINT64_MAX : r->job->version, &r->draft);
    r->revived = code == HZP_OK;
    if (code != HZP_OK && !only) /* it has readers: the version is on disk, too */
        code = hzp_weights_begin(w, &r->draft);
    if (code != HZP_OK)
        r->draft = NULL;
    return code;
}

static int abandon_draft(void *ctx, const struct hzp_border *border)
{
    struct rollback *r = ctx;
    hzp_weights_abandon(r->s->model->weights, r->draft);
    r->draft = NULL;
    return HZP_OK;
}

static int set_marks(void *ctx, const struct hzp_border *border)
{
    struct hzp_state *s = ctx;
    hzp_trainer_tell_marks(s->trainer, s->mark, s->marks); /* the file thread alone changes them */
    return HZP_OK;
}

/* --- By the engine thread --------------------------------------------------------------------- */

static int get_draft(struct rollback *r)
{
    int code = hzp_state_call(r->s, take_draft, r, r->reterr);
    return code == HZP_ENOENT
               ? hzp_fail(r->reterr, HZP_ENOENT,
                          "version %" PRIu64 " is neither on disk nor in a slot any more",
                          r->job->version)
               : code;
}

static int publish(struct rollback *r)
{
    struct hzp_trainer_older older = {
        .trainer = r->s->trainer, .draft = r->draft, .numbers = r->numbers};
    r->draft = NULL;
    HZP_TRY(hzp_state_call(r->s, hzp_trainer_publish_older, &older, r->reterr));
    HZP_ASSERT(older.published == r->made);
    r->result->made = older.published;
    return HZP_OK;
}

/* --- The version and its numbers -------------------------------------------------------------- */

/* Where the version is, and whether it may serve. */
static int find_source(struct rollback *r)
{
    struct hzp_state *s = r->s;
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(s->model->weights, &stats);
    if (r->job->id && r->job->version == stats.serving_id)
        return hzp_fail(r->reterr, HZP_EBUSY, "version %" PRIu64 " serves already",
                        r->job->version);
    HZP_TRY(hzp_state_find_kept(s, r->job->version, &r->from, r->reterr));
    r->model = !r->from.id && hzp_state_is_original(s, r->job->version);
    if (r->from.id)
        snprintf(r->dir, sizeof(r->dir), "%s/%s", s->dir, r->from.name);
    else if (!r->model && !hzp_weights_resident(s->model->weights, r->job->version))
        return hzp_fail(r->reterr, HZP_ENOENT,
                        "version %" PRIu64 " is neither on disk nor in a slot", r->job->version);
    else if (!r->model && !r->job->reset)
        return hzp_fail(r->reterr, HZP_ENOENT,
                        "version %" PRIu64
                        " is in a slot only, and its moments are not kept: ask for "
                        "\"optimizer\": \"reset\"",
                        r->job->version);
    return HZP_OK;
}

/* A version that learned from an example that was deleted since does not come back. */
static int check_deleted(struct rollback *r, const struct hzp_version_record *record)
{
    struct hzp_state *s = r->s;
    uint64_t learned = 0, root;
    struct hzp_logged_checkpoint none[1];
    hzp_lock_take(&s->lock);
    int32_t marks = s->marks;
    HZP_FREED struct hzp_mark *mark = hzp_xcalloc((size_t)marks + 1, sizeof(*mark));
    if (marks)
        memcpy(mark, s->mark, (size_t)marks * sizeof(*mark));
    hzp_lock_release(&s->lock);
    int code = HZP_OK;
    for (int32_t i = 0; i < marks && code >= 0; i++) {
        if (mark[i].kind != HZP_MARK_DELETED || mark[i].version < record->id)
            continue;
        code = hzp_sample_log_before(s->log, record->id, mark[i].first, mark[i].last, &learned,
                                     &root, none, 0, r->reterr);
        if (code >= 0 && learned)
            code =
                hzp_fail(r->reterr, HZP_EINVAL,
                         "version %" PRIu64 " learned from example %" PRId64 ", which was deleted",
                         record->id, mark[i].first);
    }
    return code;
}

/* The new version's number, and what has been learned from. */
static void find_next(struct rollback *r)
{
    struct hzp_weights_stats stats;
    struct hzp_sample_queue_stats queue;
    hzp_weights_read_stats(r->s->model->weights, &stats);
    hzp_sample_queue_read_stats(r->s->queue, &queue);
    r->made = stats.next_id; /* nothing else gets an id meanwhile */
    r->touched = HZP_MAX(queue.touched_through, r->job->touched);
}

/* The numbers that the trainer continues from. */
static int find_numbers(struct rollback *r)
{
    struct hzp_version_record record;
    HZP_TRY(hzp_state_record(r->s, r->job->version, &record, r->reterr));
    HZP_TRY(check_deleted(r, &record));
    if (r->from.id) {
        HZP_TRY(hzp_trainer_read_numbers(r->dir, &r->numbers, r->reterr));
    } else if (r->model) {
        r->numbers = (struct hzp_trainer_numbers){
            .learned_through = -1, .loss = -1, .checksum = record.checksum};
    } else {
        struct hzp_trainer_stats trainer;
        hzp_trainer_read_stats(r->s->trainer, &trainer);
        r->numbers = (struct hzp_trainer_numbers){.optimizer_step = record.optimizer_step,
                                                  .draws = trainer.draws,
                                                  .learned_through = record.learned_through,
                                                  .loss = isfinite(record.loss) ? record.loss : -1,
                                                  .checksum = record.checksum};
    }
    if (r->job->reset)
        r->numbers.reset_step = r->numbers.optimizer_step;
    find_next(r);
    return HZP_OK;
}

/* --- Contents --------------------------------------------------------------------------------- */

static int fill_weights(struct rollback *r)
{
    struct hzp_state *s = r->s;
    const struct hzp_units *units = hzp_version_units(s->model->weights, r->draft);
    struct hzp_version_record *record = &r->draft->record;
    uint64_t sum = r->numbers.checksum;
    int64_t through;
    if (!r->revived && r->model)
        HZP_TRY(hzp_state_load_original(s, units, sum, r->reterr));
    else if (!r->revived)
        HZP_TRY(hzp_model_load(r->dir, s->model->dev, units, &sum, r->reterr));
    if (sum != r->numbers.checksum)
        return hzp_fail(r->reterr, HZP_EFORMAT, "%s: the weights are damaged (checksum)", r->dir);
    if (r->from.id && !r->job->reset) /* before anything is overwritten */
        HZP_TRY(hzp_trainer_verify(r->dir, s->config.layout, sum, &through, r->reterr));
    record->parent = r->job->version;
    record->loss = r->numbers.loss >= 0 ? r->numbers.loss : NAN;
    return HZP_OK;
}

/* The optimizer's state, once the version's number is in the log or needs none. */
static int fill_state(struct rollback *r, const struct hzp_version *v)
{
    struct hzp_trainer_numbers numbers;
    int code = HZP_OK;
    if (!r->job->reset && !r->model)
        HZP_TRY(hzp_trainer_load_suspended(r->s->trainer, v, r->dir, &numbers, r->reterr));
    else
        code = hzp_trainer_clear_suspended(r->s->trainer);
    return code < 0 ? hzp_fail(r->reterr, code, "cannot reset the optimizer's state: %s",
                               hzp_err_name(code))
                    : hzp_trainer_restore_ranks(r->s->trainer, v, NULL, r->reterr);
}

/* --- Examples --------------------------------------------------------------------------------- */

/* The job takes examples back: the others are learned again. */
static bool relearns(const struct rollback *r)
{
    return r->job->kind == HZP_JOB_FORGET || r->job->kind == HZP_JOB_UNDO;
}

/* Reads what no version to come has learned yet from the log, which says what is skipped. */
static int read_backlog(struct rollback *r, struct hzp_sample ***ret, int32_t *ret_count)
{
    struct hzp_sample **all = NULL;
    int32_t count = 0, room = 0, n = 0;
    int64_t after = HZP_MAX(r->numbers.learned_through, 0);
    struct hzp_sample *piece[PIECE];
    while ((n = hzp_sample_log_read(r->s->log, after, PIECE, piece, r->reterr)) > 0) {
        all = hzp_xgrow(all, &room, count + n, sizeof(*all));
        memcpy(all + count, piece, (size_t)n * sizeof(*all));
        count += n;
        after = piece[n - 1]->sequence_number;
    }
    *ret = all;
    *ret_count = count;
    return n;
}

/* The queue holds what is to be learned after this version.  No example is accepted meanwhile. */
static int requeue(struct rollback *r)
{
    struct hzp_state *s = r->s;
    HZP_FREED struct hzp_sample **all = NULL;
    int32_t count = 0;
    hzp_lock_take(&s->examples.lock);
    int code = read_backlog(r, &all, &count);
    for (int32_t i = 0; i < count && !r->from.id; i++)
        all[i]->passes = 0; /* weights of no checkpoint: which passes they have is not known */
    for (int32_t i = 0; i < count && relearns(r); i++) {
        int64_t n = all[i]->sequence_number;
        if (n > r->touched)
            break;
        r->result->learn_from = r->result->learn_from ? r->result->learn_from : n;
        r->result->learn_to = n; /* 0: it was the last; nothing is to be learned again */
    }
    if (code >= 0)
        hzp_sample_queue_replace(s->queue, all, count, r->numbers.learned_through,
                                 hzp_sample_log_last(s->log));
    hzp_lock_release(&s->examples.lock);
    for (int32_t i = 0; i < count && code < 0; i++)
        hzp_sample_destroy(all[i]);
    if (code >= 0)
        hzp_state_read_earlier(s, r->numbers.learned_through);
    return code;
}

/* Whether lessons that the version has not learned, and others have, are skipped. */
static bool skips(const struct rollback *r)
{
    return !relearns(r) && !r->job->replay;
}

static void note_examples(struct rollback *r)
{
    int64_t first = HZP_MAX(r->numbers.learned_through, 0) + 1;
    if (r->job->kind == HZP_JOB_UNDO) {
        r->result->skipped_from = r->job->example;
        r->result->skipped_to = r->job->example_last;
    } else if (r->touched >= first && skips(r)) {
        r->result->skipped_from = first;
        r->result->skipped_to = r->touched;
    }
}

/* --- Entering it in the log ------------------------------------------------------------------- */

/* Requests for weights that have learned an example are refused if it has a mark. */
static int tell_marks(struct rollback *r)
{
    HZP_TRY(hzp_state_read_marks(r->s, r->reterr));
    return hzp_state_call(r->s, set_marks, r->s, r->reterr);
}

static int enter(struct rollback *r, const char *checkpoint)
{
    struct hzp_activation a = {.id = r->made,
                               .of = r->job->version,
                               .learned_through = r->numbers.learned_through,
                               .checkpoint = checkpoint,
                               .skip_through = skips(r) ? r->touched : 0,
                               .source = r->job->kind == HZP_JOB_PUSH ? r->job->source : NULL,
                               .replay = r->job->replay,
                               .forget = r->job->kind == HZP_JOB_FORGET ? r->job->example : 0};
    if (r->job->kind == HZP_JOB_UNDO) {
        a.undo_first = r->job->example;
        a.undo_last = r->job->example_last;
    }
    HZP_TRY(hzp_sample_log_activate(r->s->log, &a, r->reterr));
    r->entered = true;
    note_examples(r);
    return tell_marks(r);
}

/* Writes the version, which serves, as a checkpoint, and enters that. */
static int write_and_enter(struct rollback *r)
{
    struct hzp_state *s = r->s;
    char name[64];
    HZP_TRY(hzp_state_call(s, hzp_trainer_freeze, s->trainer, r->reterr));
    const struct hzp_version *v = hzp_trainer_frozen(s->trainer);
    int code = hzp_state_write_files(s, v, name, sizeof(name), r->reterr);
    if (code >= 0)
        code = enter(r, name);
    if (code >= 0)
        hzp_state_wrote(s, &v->record, name);
    hzp_state_release(s, hzp_trainer_thaw);
    return code;
}

/* --- All of it -------------------------------------------------------------------------------- */

static int from_disk(struct rollback *r)
{
    const struct hzp_version *v = r->draft;
    HZP_TRY(enter(r, r->from.name));
    HZP_TRY(publish(r));
    r->s->saved_step = r->s->tried_step = r->numbers.optimizer_step;
    HZP_TRY(requeue(r)); /* also for ranks that meet again: one may be lost from here on */
    return fill_state(r, v);
}

/* Once the version serves, a checkpoint of it must be written: a full disk is found before. */
static int find_room(const struct rollback *r)
{
    const struct hzp_state *s = r->s;
    enum { LOG = 1 << 20 };
    if (!s->dir)
        return HZP_OK;
    enum hzp_dtype moments = hzp_train_space_m(hzp_trainer_space(s->trainer))->type;
    size_t bytes =
        hzp_snapshot_bytes(s->config.layout, hzp_weights_type(s->model->weights), moments);
    return hzp_state_has_room(s, bytes + LOG, r->reterr);
}

static int from_slot(struct rollback *r)
{
    const struct hzp_version *v = r->draft;
    HZP_TRY(find_room(r));
    HZP_TRY(publish(r));
    r->s->saved_step = r->s->tried_step = -1;
    HZP_TRY(fill_state(r, v));
    HZP_TRY(write_and_enter(r));
    return requeue(r);
}

static int roll_back(struct rollback *r)
{
    HZP_TRY(find_source(r));
    HZP_TRY(find_numbers(r));
    HZP_TRY(get_draft(r));
    HZP_TRY(fill_weights(r));
    return r->job->reset || r->model ? from_slot(r) : from_disk(r);
}

/* The version serves and could not be kept: what a restart would begin from serves instead, and is
 * learned with.  A job without id does that itself. */
static bool falls_back(struct rollback *r)
{
    struct hzp_logged_checkpoint from;
    struct hzp_err_text text;
    struct hzp_state *s = r->s;
    if (r->entered || !r->job->id || hzp_trainer_rejoins(s->trainer) ||
        hzp_state_newest_whole(s, &from, &text) < 0 || hzp_state_go_back(s, &from, &text) < 0)
        return false;
    r->result->made = 0;
    return true;
}

/* After a failure. */
static int clean_up(struct rollback *r, int code)
{
    struct hzp_err_text why = *r->reterr;
    if (code < 0 && r->draft)
        hzp_state_call(r->s, abandon_draft, r, NULL);
    if (code >= 0 || !(r->entered || r->result->made))
        return code;
    if (falls_back(r))
        return hzp_fail(r->reterr, code, "%.300s; what was on disk before serves again", why.text);
    /* Half of it: the rest is done by a restart, or when ranks that were lost are there again. */
    hzp_trainer_stop_learning(r->s->trainer);
    return hzp_fail(r->reterr, code, "%.300s; learning %s, which %s", why.text,
                    hzp_trainer_rejoins(r->s->trainer) ? "stops until all ranks have met again"
                                                       : "has stopped: restart the server",
                    r->entered ? "completes the activation" : "continues from before it");
}

int hzp_state_activate(struct hzp_state *s, const struct hzp_version_job *job,
                       struct hzp_version_job *ret, struct hzp_err_text *reterr)
{
    struct rollback r = {.s = s, .job = job, .result = ret, .reterr = reterr};
    return clean_up(&r, roll_back(&r));
}

/* --- Weights that were sent here -------------------------------------------------------------- */

static int fill_sent(struct rollback *r)
{
    struct hzp_state *s = r->s;
    struct hzp_upload_fill fill = {.up = s->upload, .reterr = r->reterr};
    struct hzp_version_record *record = &r->draft->record;
    int code = hzp_units_fill(s->model->dev, hzp_version_units(s->model->weights, r->draft),
                              hzp_upload_fill, &fill);
    if (code < 0)
        return r->reterr->text[0] ? code
                                  : hzp_fail(r->reterr, code, "the weights cannot be read: %s",
                                             hzp_err_name(code));
    HZP_ASSERT(fill.checksum == r->numbers.checksum); /* the manifest's is the sum of its units' */
    record->parent = HZP_NO_PARENT;
    record->loss = NAN;
    return HZP_OK;
}

static int push(struct rollback *r)
{
    struct hzp_trainer_stats trainer;
    hzp_trainer_read_stats(r->s->trainer, &trainer);
    r->numbers = (struct hzp_trainer_numbers){.optimizer_step = trainer.optimizer_step,
                                              .reset_step = trainer.optimizer_step,
                                              .draws = trainer.draws,
                                              .learned_through = -1,
                                              .loss = -1,
                                              .checksum = r->job->checksum};
    find_next(r);
    HZP_TRY(get_draft(r));
    HZP_TRY(fill_sent(r));
    return from_slot(r);
}

static int hold_upload(struct hzp_state *s, uint64_t checksum, struct hzp_err_text *reterr)
{
    return s->upload ? hzp_upload_hold(s->upload, checksum, reterr)
                     : hzp_fail(reterr, HZP_EINVAL, "this server takes no weights");
}

int hzp_state_push(struct hzp_state *s, const struct hzp_version_job *job,
                   struct hzp_version_job *ret, struct hzp_err_text *reterr)
{
    struct rollback r = {.s = s, .job = job, .result = ret, .reterr = reterr};
    HZP_ASSERT(job->reset);
    HZP_TRY(hold_upload(s, job->checksum, reterr));
    int code = clean_up(&r, push(&r));
    hzp_upload_release(s->upload, code >= 0);
    return code;
}

/* --- Falling back ----------------------------------------------------------------------------- */

static bool is_kept(struct hzp_state *s, const struct hzp_logged_checkpoint *c)
{
    char path[PATH_MAX];
    struct hzp_err_text text;
    snprintf(path, sizeof(path), "%s/%s", s->dir, c->name);
    return hzp_checkpoint_whole(path, &text) == HZP_OK;
}

int hzp_state_newest_whole(struct hzp_state *s, struct hzp_logged_checkpoint *ret,
                           struct hzp_err_text *reterr)
{
    HZP_FREED struct hzp_logged_checkpoint *kept = NULL;
    int32_t n = hzp_state_kept(s, &kept, reterr);
    ret->id = 0;
    for (int32_t i = 0; i < n && !ret->id; i++)
        if (is_kept(s, &kept[i]))
            *ret = kept[i];
    return HZP_MIN(n, 0);
}

/* No version was written to disk yet: a process that is killed now begins from the model, too, so
 * nothing is entered in the log. */
static int from_model(struct rollback *r)
{
    struct hzp_state *s = r->s;
    r->numbers = (struct hzp_trainer_numbers){.learned_through = -1, .loss = -1};
    r->model = true;
    find_next(r);
    HZP_TRY(get_draft(r));
    hzp_state_original_dir(s, r->dir);
    HZP_TRY(hzp_model_load(r->dir, s->model->dev, hzp_version_units(s->model->weights, r->draft),
                           &r->numbers.checksum, r->reterr));
    r->draft->record.parent = HZP_NO_PARENT;
    r->draft->record.loss = NAN;
    const struct hzp_version *v = r->draft;
    HZP_TRY(publish(r));
    s->saved_step = s->tried_step = 0;
    HZP_TRY(requeue(r));
    return fill_state(r, v);
}

int hzp_state_go_back(struct hzp_state *s, const struct hzp_logged_checkpoint *from,
                      struct hzp_err_text *reterr)
{
    struct hzp_version_job done = {.id = 0};
    /* No example is named: none is skipped. */
    struct hzp_version_job job = {.kind = HZP_JOB_FORGET, .version = from->id};
    struct rollback r = {.s = s, .job = &job, .result = &done, .reterr = reterr};
    return from->id ? hzp_state_activate(s, &job, &done, reterr) : clean_up(&r, from_model(&r));
}

int hzp_state_fall_back(struct hzp_state *s, uint64_t *ret_version, struct hzp_err_text *reterr)
{
    struct hzp_logged_checkpoint from;
    int code = hzp_state_newest_whole(s, &from, reterr);
    if (code >= 0 && !from.id)
        code = hzp_fail(reterr, HZP_ENOENT, "no checkpoint in %s is whole", s->dir);
    HZP_TRY(code);
    *ret_version = from.id;
    code = hzp_state_call(s, hzp_trainer_suspend, s->trainer, reterr);
    hzp_state_journal(s);
    if (code >= 0)
        code = hzp_state_go_back(s, &from, reterr);
    hzp_state_release(s, hzp_trainer_resume);
    return code;
}

/* --- Forgetting, and taking back -------------------------------------------------------------- */

/* The last example of the job. */
static int64_t last_of(const struct hzp_version_job *job)
{
    return HZP_MAX(job->example, job->example_last);
}

/* The newest version that can serve again, of the serving one and those it descends from, that has
 * learned from none of the job's examples: on disk, or the model as it was started.  *ret 0: none
 * has to, because the serving one has not either. */
static int find_before(struct hzp_state *s, const struct hzp_version_job *job, uint64_t *ret,
                       struct hzp_err_text *reterr)
{
    struct hzp_weights_stats stats;
    HZP_FREED struct hzp_logged_checkpoint *c = NULL;
    uint64_t learned = 0, root = 0;
    int32_t n, room = CANDIDATES;
    hzp_weights_read_stats(s->model->weights, &stats);
    do { /* the log also names checkpoints that were removed */
        room *= 2;
        free(c);
        c = hzp_xcalloc((size_t)room, sizeof(*c));
        n = hzp_sample_log_before(s->log, stats.serving_id, job->example, last_of(job), &learned,
                                  &root, c, room, reterr);
    } while (n == room && room < INT32_MAX / 2);
    *ret = 0;
    for (int32_t i = 0; i < n && learned && !*ret; i++)
        if (is_kept(s, &c[i]))
            *ret = c[i].id;
    HZP_TRY(n);
    if (learned && !*ret && root < learned && hzp_state_is_original(s, root))
        *ret = root;
    return !learned || *ret
               ? HZP_OK
               : hzp_fail(reterr, HZP_ENOENT,
                          "example %" PRId64 " was learned by version %" PRIu64
                          ", and no checkpoint from before it is on disk (--keep says which stay)",
                          job->example, learned);
}

static int check_example(struct hzp_state *s, const struct hzp_version_job *job,
                         struct hzp_err_text *reterr)
{
    return last_of(job) > hzp_sample_log_last(s->log) || job->example < 1
               ? hzp_fail(reterr, HZP_ENOENT, "there is no example %" PRId64, last_of(job))
               : HZP_OK;
}

/* What no version that serves has learned: its examples leave the queue. */
static int take_out(struct hzp_state *s, const struct hzp_version_job *job,
                    struct hzp_err_text *reterr)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(s->model->weights, &stats);
    if (job->kind == HZP_JOB_FORGET)
        HZP_TRY(hzp_sample_log_delete(s->log, job->example, stats.serving_id, reterr));
    else
        HZP_TRY(hzp_sample_log_skip(s->log, job->example, last_of(job), stats.serving_id, reterr));
    for (int64_t n = job->example; n <= last_of(job); n++)
        hzp_sample_queue_remove(s->queue, n);
    return HZP_OK;
}

int hzp_state_take_back(struct hzp_state *s, const struct hzp_version_job *job,
                        struct hzp_version_job *ret, struct hzp_err_text *reterr)
{
    struct rollback r = {.s = s, .job = job, .result = ret, .reterr = reterr};
    struct hzp_version_job of = *job;
    HZP_TRY(check_example(s, job, reterr));
    HZP_TRY(find_before(s, job, &of.version, reterr));
    if (of.version) {
        ret->version = of.version;
        return hzp_state_activate(s, &of, ret, reterr);
    }
    HZP_TRY(take_out(s, job, reterr));
    if (job->kind == HZP_JOB_UNDO) {
        ret->skipped_from = job->example;
        ret->skipped_to = job->example_last;
    }
    return tell_marks(&r);
}

/* --- Before it is done ------------------------------------------------------------------------ */

int hzp_state_check(struct hzp_state *s, const struct hzp_version_job *job,
                    struct hzp_err_text *reterr)
{
    struct hzp_version_job of = *job;
    struct rollback r = {.s = s, .job = &of, .reterr = reterr};
    if (job->kind == HZP_JOB_NAME || job->kind == HZP_JOB_EXPORT)
        return HZP_OK;
    if (job->kind == HZP_JOB_PUSH) {
        HZP_TRY(hold_upload(s, job->checksum, reterr));
        hzp_upload_release(s->upload, false);
        return HZP_OK;
    }
    if (job->kind == HZP_JOB_FORGET || job->kind == HZP_JOB_UNDO) {
        HZP_TRY(check_example(s, job, reterr));
        HZP_TRY(find_before(s, job, &of.version, reterr));
        if (!of.version)
            return HZP_OK;
    }
    HZP_TRY(find_source(&r));
    return find_numbers(&r);
}
