/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/lessons[?limit=&before=]   what was taught, newest first, and what became of it
 * POST /v1/undo                      takes the newest lesson back
 *      {"lesson": N}                 that one
 *      {"lesson": N, "redo": true}   teaches it once more
 *      {"version": V}                makes a version serve again: a number, a name, or "original"
 *
 * Taking back is a job (api/learn/versions.h): the answer waits for it, for ?timeout= seconds. */
#include "api/http/routes/routes.h"
#include "api/http/routes/versions_route.h"

#include "api/http/wire/fields.h"
#include "api/learn/audit.h"
#include "api/learn/lessons.h"

#include <inttypes.h>
#include <string.h>

enum { LIMIT_DEFAULT = 20, LIMIT_MAX = 100 };

static json_t *lesson_json(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(x->server->engine->parts.weights, &stats);
    enum hzp_lesson_state status =
        hzp_lesson_state(x->server->engine->state, lesson, stats.learned_through);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:s, s:o?}", "object", "lesson", "id",
                     (json_int_t)lesson->id, "first", (json_int_t)lesson->first, "last",
                     (json_int_t)lesson->last, "examples",
                     (json_int_t)(lesson->last - lesson->first + 1), "taught_unix_ms",
                     lesson->unix_ms ? json_integer((json_int_t)lesson->unix_ms) : json_null(),
                     "session", lesson->session[0] ? json_string(lesson->session) : json_null(),
                     "state", hzp_lesson_state_name(status), "effect",
                     hzp_state_effect(x->server->engine->state, lesson->first));
}

/* A whole number from 1 to max in the query; absent: *ret stays. */
static int read_count(struct hzp_exchange *x, const char *name, int64_t max, int64_t *ret,
                      struct hzp_err_text *reterr)
{
    const char *text = hzp_exchange_query(x, name);
    char *end = NULL;
    if (!text)
        return HZP_OK;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < 1 || value > max)
        return hzp_fail_param(reterr, HZP_EINVAL, name,
                              "%s must be a whole number from 1 to %" PRId64, name, max);
    *ret = value;
    return HZP_OK;
}

enum MHD_Result hzp_route_lessons(struct hzp_exchange *x)
{
    enum MHD_Result answered;
    struct hzp_logged_lesson lesson[LIMIT_MAX + 1];
    struct hzp_err_text err = {.text = ""};
    int64_t limit = LIMIT_DEFAULT, before = INT64_MAX;
    if (hzp_no_state(x, &answered))
        return answered;
    int r = read_count(x, "limit", LIMIT_MAX, &limit, &err);
    if (r >= 0)
        r = read_count(x, "before", INT64_MAX, &before, &err);
    if (r >= 0)
        r = hzp_state_lessons(x->server->engine->state, before, (int32_t)limit + 1, lesson, &err);
    if (r < 0)
        return hzp_reply_fail(x, r, &err);
    json_t *list = json_array();
    for (int32_t i = 0; i < r && i < limit; i++)
        json_array_append_new(list, lesson_json(x, &lesson[i]));
    return hzp_reply_json(
        x, MHD_HTTP_OK,
        json_pack("{s:s, s:o, s:b}", "object", "list", "data", list, "has_more", r > limit));
}

/* What a body asks for. */
struct asked {
    int64_t lesson; /* 0: the newest that counts */
    const char *version;
    char number[24]; /* version, where the body has a number */
    bool redo;
};

static int read_version(const json_t *body, struct asked *ret, struct hzp_err_text *reterr)
{
    const json_t *version = json_object_get(body, "version");
    if (json_is_integer(version)) {
        snprintf(ret->number, sizeof(ret->number), "%lld", (long long)json_integer_value(version));
        ret->version = ret->number;
        return HZP_OK;
    }
    return hzp_field_string(body, "version", &ret->version, reterr);
}

static int read_asked(const json_t *body, struct asked *ret, struct hzp_err_text *reterr)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value)
    {
        if (strcmp(name, "lesson") && strcmp(name, "version") && strcmp(name, "redo"))
            return hzp_fail_param(reterr, HZP_EINVAL, name, "\"%.40s\" is not a field of this body",
                                  name);
    }
    const json_t *lesson = json_object_get(body, "lesson"), *redo = json_object_get(body, "redo");
    if (lesson && (!json_is_integer(lesson) || json_integer_value(lesson) < 1))
        return hzp_fail_param(reterr, HZP_EINVAL, "lesson", "lesson must be a lesson's number");
    if (redo && !json_is_boolean(redo))
        return hzp_fail_param(reterr, HZP_EINVAL, "redo", "redo must be true or false");
    ret->lesson = json_integer_value(lesson);
    ret->redo = json_is_true(redo);
    HZP_TRY(read_version(body, ret, reterr));
    if (ret->version && (lesson || ret->redo))
        return hzp_fail_param(reterr, HZP_EINVAL, "version", "either lesson or version, not both");
    if (ret->redo && !lesson)
        return hzp_fail_param(reterr, HZP_EINVAL, "redo", "redo needs the lesson's number");
    return HZP_OK;
}

static enum MHD_Result go_back(struct hzp_exchange *x, const char *version)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_version_job job = {.kind = HZP_JOB_ACTIVATE};
    int r = hzp_state_find(x->server->engine->state, version, &job.version, &err);
    if (r < 0)
        return hzp_reply_fail(x, r, &err);
    return hzp_job_run(x, &job, "undo", json_pack("{s:I}", "version", (json_int_t)job.version));
}

static enum MHD_Result teach_again(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson)
{
    struct hzp_state *s = x->server->engine->state;
    struct hzp_err_text err = {.text = ""};
    struct hzp_logged_lesson again = *lesson;
    if (hzp_lesson_counts(s, lesson))
        return hzp_reply_error(x, MHD_HTTP_CONFLICT, "lesson", NULL,
                               "lesson %" PRId64 " was not taken back: there is nothing to redo",
                               lesson->id);
    int r = hzp_state_teach_again(s, lesson, &again.first, &again.last, &err);
    if (r < 0)
        return hzp_reply_fail(x, r, &err);
    hzp_audit_write(hzp_state_audit(s), x->info.key, x->info.id, "redo",
                    json_pack("{s:I, s:I, s:I}", "lesson", (json_int_t)lesson->id, "first",
                              (json_int_t)again.first, "last", (json_int_t)again.last));
    r = hzp_state_lesson(s, 0, &again, &err);
    return r < 0 ? hzp_reply_fail(x, r, &err)
                 : hzp_reply_json(x, MHD_HTTP_ACCEPTED, lesson_json(x, &again));
}

static enum MHD_Result take_back(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson)
{
    struct hzp_state *s = x->server->engine->state;
    enum hzp_lesson_state status = hzp_lesson_state(s, lesson, INT64_MAX);
    if (!hzp_lesson_counts(s, lesson))
        return hzp_reply_error(
            x, MHD_HTTP_CONFLICT, "lesson", NULL, "lesson %" PRId64 " is %s already%s", lesson->id,
            hzp_lesson_state_name(status),
            status == HZP_LESSON_UNDONE ? ": {\"lesson\": N, \"redo\": true} teaches it again"
                                        : "");
    struct hzp_version_job job = {
        .kind = HZP_JOB_UNDO, .example = lesson->first, .example_last = lesson->last};
    return hzp_job_run(x, &job, "undo", json_pack("{s:I}", "lesson", (json_int_t)lesson->id));
}

static enum MHD_Result undo(struct hzp_exchange *x, const json_t *body)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_logged_lesson lesson;
    struct asked asked = {.lesson = 0};
    int r = read_asked(body, &asked, &err);
    if (r >= 0 && asked.version)
        return go_back(x, asked.version);
    if (r >= 0)
        r = hzp_state_lesson(x->server->engine->state, asked.lesson, &lesson, &err);
    if (r < 0)
        return hzp_reply_fail(x, r, &err);
    return asked.redo ? teach_again(x, &lesson) : take_back(x, &lesson);
}

enum MHD_Result hzp_route_undo(struct hzp_exchange *x)
{
    enum MHD_Result answered;
    if (atomic_load(&x->server->state) != HZP_SERVER_UP)
        return hzp_reply_unavailable(x);
    if (hzp_no_state(x, &answered))
        return answered;
    json_t *body = x->bytes ? hzp_exchange_json(x, &answered) : json_object();
    if (!body)
        return answered;
    answered = undo(x, body);
    json_decref(body);
    return answered;
}
