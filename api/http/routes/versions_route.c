/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/weights/{version}            what a version learned, and where it is kept
 * POST /v1/weights/{version}/activate  it serves again
 * POST /v1/weights/{version}/name      it gets a name
 * POST /v1/weights/{version}/export    it is written as a model directory
 * POST /v1/weights/{version}/promote   its trial ends: it becomes the current version
 * POST /v1/weights/{version}/drop      its trial ends: it never will
 * GET, DELETE /v1/weights/names[/{name}]
 * GET, DELETE /v1/fine_tuning/examples/{number}
 * GET /v1/jobs/{number}
 *
 * {version} is a number, a name or "current".  What takes time is a job (api/learn/versions.h): the
 * answer waits for it, for ?timeout= seconds, and is 200 when it is done, 202 when it is not. */
#include "api/http/routes/feedback.h"
#include "api/http/routes/field_table.h"
#include "api/http/routes/routes.h"

#include "api/http/wire/fields.h"
#include "api/learn/audit.h"

/* ---- a version as JSON ---- */

int hzp_places_read(const struct hzp_engine *engine, struct hzp_places *ret,
                    struct hzp_err_text *reterr)
{
    *ret = (struct hzp_places){
        .weights = engine->parts.weights, .sites = engine->sites, .most = INT64_MAX};
    if (!engine->state)
        return HZP_OK;
    ret->most = hzp_state_learned_through(engine->state, INT64_MAX);
    ret->keeps = hzp_state_kept(engine->state, &ret->kept, reterr);
    ret->names = ret->keeps < 0 ? 0 : hzp_state_names(engine->state, &ret->name, reterr);
    int r = HZP_MIN(ret->keeps, ret->names);
    if (r >= 0)
        r = hzp_state_find(engine->state, "original", &ret->original, reterr);
    if (r < 0)
        hzp_places_fini(ret);
    return HZP_MIN(r, 0);
}

void hzp_places_fini(struct hzp_places *places)
{
    free(places->kept);
    free(places->name);
    *places = (struct hzp_places){.weights = places->weights};
}

static const char *state_name(enum hzp_version_state state)
{
    switch (state) {
    case HZP_VERSION_DRAFT:
        return "draft";
    case HZP_VERSION_CURRENT:
        return "current";
    case HZP_VERSION_RETIRED:
        return "retired";
    case HZP_VERSION_TRIAL:
        return "trial";
    case HZP_VERSION_DROPPED:
        return "dropped";
    default:
        return "freed";
    }
}

static json_t *loss_json(double loss)
{
    return isfinite(loss) ? json_real(loss) : json_null();
}

static json_t *number_json(int64_t number)
{
    return number > 0 ? json_integer((json_int_t)number) : json_null();
}

json_t *hzp_through_json(int64_t through)
{
    return through < 0 ? json_null() : json_integer((json_int_t)through);
}

json_t *hzp_version_json(const struct hzp_version_record *record, const struct hzp_places *places)
{
    json_t *learned = json_array(), *names = json_array();
    for (int32_t i = 0; i < record->learned.ranges; i++)
        json_array_append_new(learned, json_pack("[I, I]", (json_int_t)record->learned.first[i],
                                                 (json_int_t)record->learned.last[i]));
    bool on_disk = false;
    for (int32_t i = 0; i < places->keeps; i++)
        on_disk = on_disk || places->kept[i].id == record->id;
    if (places->original == record->id)
        json_array_append_new(names, json_string("original"));
    for (int32_t i = 0; i < places->names; i++)
        if (places->name[i].id == record->id)
            json_array_append_new(names, json_string(places->name[i].name));
    json_t *sites = json_array();
    int self, count = places->sites ? hzp_sites_count(places->sites, &self) : 0;
    for (int i = 0; i < HZP_SITES_MAX; i++)
        if (record->sites >> i & 1) /* an earlier run may have had other sites */
            json_array_append_new(sites, i < count ? json_string(hzp_sites_name(places->sites, i))
                                                   : json_integer(i));
    int64_t through = HZP_MIN(record->learned_through, places->most);
    char checksum[20];
    snprintf(checksum, sizeof(checksum), "%016llx", (unsigned long long)record->checksum);
    return json_pack(
        "{s:I, s:o, s:o, s:I, s:s, s:I, s:o, s:o, s:o, s:s, s:o, s:b, s:o, s:o, s:b, s:b, s:o}",
        "id", (json_int_t)record->id, "parent", number_json((int64_t)record->parent), "sites",
        sites, "optimizer_step", (json_int_t)record->optimizer_step, "state",
        state_name(record->state), "published_unix_ms", (json_int_t)record->published_unix_ms,
        "loss", loss_json(record->loss), "gate_loss_before", loss_json(record->gate_before),
        "gate_loss_after", loss_json(record->gate_after), "checksum", checksum, "learned", learned,
        "learned_more", record->learned.more, "learned_through", hzp_through_json(through),
        "finished_through", hzp_through_json(record->learned_through), "on_disk", on_disk,
        "in_slot", hzp_weights_resident(places->weights, record->id), "names", names);
}

/* ---- errors ---- */

enum MHD_Result hzp_reply_conflict(struct hzp_exchange *x, int code, const struct hzp_err_text *err)
{
    if (code != HZP_EBUSY && code != HZP_EUNSUP)
        return hzp_reply_fail(x, code, err);
    return hzp_reply_json_with(x, MHD_HTTP_CONFLICT,
                               hzp_error_json(MHD_HTTP_CONFLICT, err->text,
                                              err->param[0] ? err->param : NULL,
                                              code == HZP_EBUSY ? "busy" : "not_supported"),
                               "x-should-retry", "false");
}

/* ---- jobs ---- */

static json_t *range_json(int64_t first, int64_t last)
{
    return last > 0 ? json_pack("[I, I]", (json_int_t)first, (json_int_t)last) : json_null();
}

static json_t *job_json(struct hzp_exchange *x, const struct hzp_version_job *job)
{
    static const char *const state[] = {"waiting", "running", "learning", "done", "failed"};
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(x->server->engine->parts.weights, &stats);
    return json_pack(
        "{s:s, s:I, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:I, s:o}", "object", "job",
        "id", (json_int_t)job->id, "kind", hzp_job_kind_name(job->kind), "state", state[job->state],
        "version", number_json((int64_t)job->version), "weights_version",
        number_json((int64_t)job->made), "example", number_json(job->example), "name",
        job->name[0] ? json_string(job->name) : json_null(), "learned_again",
        range_json(job->learn_from, job->learn_to), "skipped",
        range_json(job->skipped_from, job->skipped_to), "finished_through",
        (json_int_t)HZP_MAX(stats.learned_through, 0), "error",
        job->error[0] ? json_string(job->error) : json_null(), "begun_unix_ms",
        (json_int_t)job->begun_unix_ms, "ended_unix_ms", number_json(job->ended_unix_ms));
}

static bool ended(const struct hzp_version_job *job)
{
    return job->state == HZP_JOB_DONE || job->state == HZP_JOB_FAILED;
}

enum MHD_Result hzp_reply_job(struct hzp_exchange *x, const struct hzp_version_job *job)
{
    struct hzp_err_text err = {.param = ""};
    int status = job->state == HZP_JOB_FAILED ? hzp_http_status(job->code) : MHD_HTTP_OK;
    if (status == MHD_HTTP_INTERNAL_SERVER_ERROR)
        return hzp_reply_error(x, status, NULL, "job_failed", "job %" PRIu64 " failed: %s", job->id,
                               job->error);
    if (job->state == HZP_JOB_FAILED) {
        snprintf(err.text, sizeof(err.text), "%s", job->error);
        return hzp_reply_conflict(x, job->code, &err);
    }
    return hzp_reply_json(x, job->state == HZP_JOB_DONE ? MHD_HTTP_OK : MHD_HTTP_ACCEPTED,
                          job_json(x, job));
}

/* A request that waits for its job. */
struct waiter {
    struct hzp_waiting waiting;
    uint64_t job;
};

static bool look(struct hzp_waiting *waiting, bool left, bool over, enum MHD_Result *ret)
{
    struct waiter *w = HZP_CONTAINER_OF(waiting, struct waiter, waiting);
    struct hzp_state *state = waiting->x->server->engine->state;
    struct hzp_version_job job = {.state = HZP_JOB_FAILED, .code = HZP_ECANCELED};
    bool known = hzp_state_job(state, w->job, &job);
    if (known && !ended(&job) && !over)
        return false;
    hzp_state_hold_job(state, w->job, false);
    if (!left)
        *ret = hzp_reply_job(waiting->x, &job);
    return true;
}

int hzp_job_wait(struct hzp_exchange *x, uint64_t id)
{
    struct waiter *w = hzp_xcalloc(1, sizeof(*w));
    w->job = id;
    hzp_state_hold_job(x->server->engine->state, id, true);
    return hzp_wait(x, hzp_query_number(x, "timeout"), &w->waiting, look);
}

int hzp_job_run(struct hzp_exchange *x, const struct hzp_version_job *asked, const char *action,
                json_t *what, struct hzp_err_text *reterr)
{
    struct hzp_state *state = x->server->engine->state;
    uint64_t id = 0;
    int r = hzp_state_ask(state, asked, &id, reterr);
    if (r < 0) {
        json_decref(what);
        return hzp_reply_conflict(x, r, reterr);
    }
    json_object_set_new(what, "job", json_integer((json_int_t)id));
    hzp_route_audit(x, action, what);
    return hzp_job_wait(x, id);
}

int hzp_route_job(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_version_job job;
    int64_t id = hzp_path_number(x->tail, 0);
    if (id < 1 || !hzp_state_job(x->server->engine->state, (uint64_t)id, &job))
        return hzp_fail(reterr, HZP_ENOENT, "there is no job %.40s, or it was too long ago",
                        x->tail);
    return hzp_reply_json(x, MHD_HTTP_OK, job_json(x, &job));
}

/* ---- one version ---- */

static int list_names(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_places places;
    HZP_TRY(hzp_places_read(x->server->engine, &places, reterr));
    json_t *list = json_array();
    for (int32_t i = 0; i < places.names; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "name", places.name[i].name, "id",
                                              (json_int_t)places.name[i].id, "since_unix_ms",
                                              (json_int_t)places.name[i].unix_ms));
    hzp_places_fini(&places);
    return hzp_reply_pack(x, "{s:s, s:o}", "object", "list", "data", list);
}

int hzp_route_version_get(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_version_record record;
    struct hzp_places places;
    struct hzp_state *s = x->server->engine->state;
    char source[HZP_VERSION_SOURCE_MAX + 1];
    uint64_t id = 0;
    if (!strcmp(x->tail, "names"))
        return list_names(x, reterr);
    if (strchr(x->tail, '/'))
        return hzp_reply_no_route(x);
    HZP_TRY(hzp_state_find(s, x->tail, &id, reterr));
    HZP_TRY(hzp_state_record(s, id, &record, reterr));
    HZP_TRY(hzp_state_source(s, id, source, reterr));
    HZP_TRY(hzp_places_read(x->server->engine, &places, reterr));
    json_t *json = hzp_version_json(&record, &places);
    hzp_places_fini(&places);
    json_object_set_new(json, "source", *source ? json_string(source) : json_null());
    return hzp_reply_json(x, MHD_HTTP_OK, json);
}

/* Refuses fields of other actions than this one's, which are listed with blanks between them. */
static int check_names(const json_t *body, const char *names, struct hzp_err_text *reterr)
{
    const char *name;
    json_t *value;
    bool ignored;
    json_object_foreach((json_t *)(uintptr_t)body, name, value)
    {
        if (!hzp_members_find(names, name, &ignored))
            return hzp_fail_param(reterr, HZP_EINVAL, name, "\"%.40s\" is not a field of this body",
                                  name);
    }
    return HZP_OK;
}

static int read_name(const json_t *body, const char *field, struct hzp_version_job *job,
                     struct hzp_err_text *reterr)
{
    const char *text = NULL;
    HZP_TRY(hzp_field_string(body, field, &text, reterr));
    if (!text || !hzp_version_name_valid(text))
        return hzp_wrong(reterr, field,
                         "must be given: 1 to %d letters, digits, \"-\", \"_\" and \".\", "
                         "beginning with a letter, and not \"current\", \"original\" or \"names\"",
                         HZP_VERSION_NAME_MAX);
    snprintf(job->name, sizeof(job->name), "%s", text);
    return HZP_OK;
}

static int read_asked(const json_t *body, struct hzp_version_job *job, json_t *what,
                      struct hzp_err_text *reterr)
{
    const char *field = job->kind == HZP_JOB_EXPORT ? "directory" : "name";
    if (job->kind != HZP_JOB_ACTIVATE) {
        HZP_TRY(check_names(body, field, reterr));
        HZP_TRY(read_name(body, field, job, reterr));
        json_object_set_new(what, field, json_string(job->name));
        return HZP_OK;
    }
    HZP_TRY(check_names(body, "lessons optimizer", reterr));
    job->replay = hzp_given_word(body, "lessons", "replay");
    job->reset = hzp_given_word(body, "optimizer", "reset");
    json_object_set_new(what, "lessons", json_string(job->replay ? "replay" : "skip"));
    json_object_set_new(what, "optimizer", json_string(job->reset ? "reset" : "restore"));
    return HZP_OK;
}

/* The trial of the version that the path names ends at the next step. */
static int end_trial(struct hzp_exchange *x, const char *text, bool promote,
                     struct hzp_err_text *reterr)
{
    struct hzp_engine *e = x->server->engine;
    uint64_t version = 0;
    HZP_TRY(check_names(x->asked, "", reterr));
    HZP_TRY(hzp_state_find(e->state, text, &version, reterr));
    if (!e->trials)
        return hzp_fail(reterr, HZP_ENOENT, "no version is on trial: this server has no --canary");
    HZP_TRY(hzp_trials_ask(e->trials, version, promote, reterr));
    hzp_loop_poke(e->parts.loop);
    const char *action = promote ? "promote" : "drop";
    hzp_route_audit(x, action, json_pack("{s:I}", "version", (json_int_t)version));
    return hzp_reply_json(x, MHD_HTTP_ACCEPTED,
                          json_pack("{s:s, s:I, s:s}", "object", "trial", "version",
                                    (json_int_t)version, "asked", action));
}

int hzp_route_version_post(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    static const struct {
        const char *action;
        enum hzp_job_kind kind;
    } actions[] = {
        {"activate", HZP_JOB_ACTIVATE}, {"name", HZP_JOB_NAME}, {"export", HZP_JOB_EXPORT}};
    struct hzp_version_job job = {.id = 0};
    struct hzp_version_record record;
    struct hzp_state *s = x->server->engine->state;
    char version[HZP_VERSION_NAME_MAX + 1];
    const char *slash = strchr(x->tail, '/');
    int i = 0;
    while (slash && i < HZP_COUNT(actions) && strcmp(slash + 1, actions[i].action))
        i++;
    bool promotes = slash && !strcmp(slash + 1, "promote");
    bool ends = promotes || (slash && !strcmp(slash + 1, "drop"));
    if (!slash || (i == HZP_COUNT(actions) && !ends) ||
        slash - x->tail >= (ptrdiff_t)sizeof(version))
        return hzp_reply_no_route(x);
    snprintf(version, sizeof(version), "%.*s", (int)(slash - x->tail), x->tail);
    if (ends)
        return end_trial(x, version, promotes, reterr);
    json_auto_t *what = json_object();
    job.kind = actions[i].kind;
    HZP_TRY(hzp_state_find(s, version, &job.version, reterr));
    HZP_TRY(hzp_state_record(s, job.version, &record, reterr));
    HZP_TRY(read_asked(x->asked, &job, what, reterr));
    json_object_set_new(what, "version", json_integer((json_int_t)job.version));
    return hzp_job_run(x, &job, actions[i].action, json_incref(what), reterr);
}

int hzp_route_name_delete(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_state_unname(x->server->engine->state, x->tail, reterr));
    hzp_route_audit(x, "unname", json_pack("{s:s}", "name", x->tail));
    return hzp_reply_pack(x, "{s:s, s:s, s:b}", "object", "name", "name", x->tail, "deleted", true);
}

/* ---- one example ---- */

static const char *example_status(struct hzp_engine *e, int64_t n, int64_t learned_through)
{
    int64_t none[1], count;
    static const struct {
        enum hzp_mark_kind kind;
        const char *name;
    } marks[] = {{HZP_MARK_DELETED, "deleted"},
                 {HZP_MARK_REJECTED, "rejected"},
                 {HZP_MARK_SKIPPED, "skipped"}};
    for (int i = 0; i < HZP_COUNT(marks); i++) {
        hzp_state_marked(e->state, marks[i].kind, n, n, none, 0, &count);
        if (count)
            return marks[i].name;
    }
    hzp_state_failed(e->state, n, n, none, 0, &count);
    return count ? "failed" : n <= learned_through ? "learned" : "waiting";
}

/* The example that the path names, and its status. */
static int read_example(struct hzp_exchange *x, int64_t *ret, const char **ret_status,
                        struct hzp_err_text *reterr)
{
    struct hzp_state_stats stats;
    struct hzp_weights_stats weights;
    *ret = hzp_path_number(x->tail, 0);
    hzp_state_read_stats(x->server->engine->state, &stats);
    if (*ret < 1 || *ret > stats.last_sequence_number)
        return hzp_fail(reterr, HZP_ENOENT, "there is no example %.40s", x->tail);
    hzp_weights_read_stats(x->server->engine->parts.weights, &weights);
    *ret_status = example_status(x->server->engine, *ret, weights.learned_through);
    return HZP_OK;
}

int hzp_route_example_get(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const char *status;
    int64_t n;
    HZP_TRY(read_example(x, &n, &status, reterr));
    struct hzp_audit_taught who = {.key = ""};
    bool known = hzp_audit_find(hzp_state_audit(x->server->engine->state), n, &who);
    return hzp_reply_pack(x, "{s:s, s:I, s:s, s:s?, s:s?, s:s?}", "object", "fine_tuning.example",
                          "number", (json_int_t)n, "status", status, "key", known ? who.key : NULL,
                          "request", known ? who.request : NULL, "taught", known ? who.time : NULL);
}

int hzp_route_example_delete(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const char *status;
    int64_t n;
    HZP_TRY(read_example(x, &n, &status, reterr));
    if (!strcmp(status, "deleted"))
        return hzp_fail(reterr, HZP_ENOENT, "example %lld is deleted already", (long long)n);
    hzp_feedback_forget(x->server->feedback, n);
    struct hzp_version_job job = {.kind = HZP_JOB_FORGET, .example = n};
    return hzp_job_run(x, &job, "forget", json_pack("{s:I}", "example", (json_int_t)n), reterr);
}
