/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/lessons[?limit=&before=&state=&session=]   what was taught, newest first, and its state
 * GET /v1/lessons/N                  one lesson, with its texts
 * POST /v1/undo                      takes the newest lesson back
 *      {"lesson": N}                 that one
 *      {"lesson": N, "redo": true}   teaches it once more
 *      {"version": V}                makes a version serve again: a number, a name, or "original"
 *
 * Taking back is a job (api/learn/versions.h): the answer waits for it, for ?timeout= seconds. */
#include "api/http/routes/routes.h"
#include "base/hash.h"

#include "api/http/wire/fields.h"
#include "api/learn/audit.h"
#include "api/learn/lessons.h"

enum {
    LIMIT_MAX = 100,    /* as the table of fields has it */
    SEEN_MAX = 2000,    /* lessons looked at for one page */
    TEXTS_MAX = 64,     /* examples shown for a lesson */
    TEXT_TOKENS = 4096, /* tokens shown for an example */
    VERSIONS_MAX = 4096
};

static json_t *lesson_json(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(x->server->engine->parts.weights, &stats);
    struct hzp_state *s = x->server->engine->state;
    enum hzp_lesson_state status = hzp_lesson_state(s, lesson, stats.learned_through);
    bool rejected = status == HZP_LESSON_REJECTED;
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:s, s:o, s:o}", "object", "lesson", "id",
        (json_int_t)lesson->id, "first", (json_int_t)lesson->first, "last",
        (json_int_t)lesson->last, "examples", (json_int_t)(lesson->last - lesson->first + 1),
        "taught_unix_ms", lesson->unix_ms ? json_integer((json_int_t)lesson->unix_ms) : json_null(),
        "session", lesson->session[0] ? json_string(lesson->session) : json_null(), "state",
        hzp_lesson_state_name(status), "reason",
        rejected ? hzp_state_reason(s, lesson->first, lesson->last) : json_null(), "effect",
        hzp_effects_tell(x->server->engine->effects, s, lesson->first,
                         status == HZP_LESSON_LEARNED));
}

static bool is_wanted(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson,
                      int64_t learned_through)
{
    const char *state = hzp_exchange_query(x, "state"), *session = hzp_exchange_query(x, "session");
    enum hzp_lesson_state is = hzp_lesson_state(x->server->engine->state, lesson, learned_through);
    return (!state || !strcmp(state, hzp_lesson_state_name(is))) &&
           (!session || !strcmp(session, lesson->session));
}

/* A page, and where it ended: next_before goes on, also where few of many lessons are wanted. */
int hzp_route_lessons(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_logged_lesson lesson[LIMIT_MAX + 1];
    size_t limit = (size_t)hzp_query_int(x, "limit"); /* at most LIMIT_MAX */
    int64_t before = hzp_query_int(x, "before");
    bool more = true;
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(x->server->engine->parts.weights, &stats);
    json_auto_t *list = json_array();
    for (int32_t seen = 0; more && seen < SEEN_MAX && json_array_size(list) < limit;) {
        int32_t n =
            hzp_state_lessons(x->server->engine->state, before, LIMIT_MAX + 1, lesson, reterr);
        HZP_TRY(n);
        int32_t i = 0;
        for (; i < HZP_MIN(n, LIMIT_MAX) && json_array_size(list) < limit; i++) {
            before = lesson[i].id;
            if (is_wanted(x, &lesson[i], stats.learned_through))
                json_array_append_new(list, lesson_json(x, &lesson[i]));
        }
        more = i < n;
        seen += i;
    }
    return hzp_reply_pack(x, "{s:s, s:O, s:b, s:o}", "object", "list", "data", list, "has_more",
                          more, "next_before", more ? json_integer(before) : json_null());
}

/* ---- one lesson ---- */

/* [{"text", "learned"}, ..]: tokens that are learned, and such that are not, by turns. */
static json_t *parts_json(const struct hzp_tokenizer *tok, const struct hzp_sample *sample,
                          int32_t begin, int32_t end)
{
    json_t *parts = json_array();
    int32_t count = HZP_MIN(end, begin + TEXT_TOKENS);
    for (int32_t from = begin, to; from < count; from = to) {
        HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {NULL, 0, 0};
        for (to = from + 1; to < count && !sample->learn[to] == !sample->learn[from];)
            to++;
        if (hzp_tokenizer_decode(tok, sample->token + from, (size_t)(to - from), true, &text) >= 0)
            json_array_append_new(parts,
                                  json_pack("{s:o, s:b}", "text",
                                            hzp_text_json(text.data ? text.data : "", text.bytes),
                                            "learned", sample->learn[from]));
    }
    return parts;
}

static json_t *texts_json(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson)
{
    struct hzp_sample *sample[TEXTS_MAX];
    json_t *list = json_array();
    int32_t n =
        hzp_state_samples(x->server->engine->state, lesson->first, lesson->last, TEXTS_MAX, sample);
    for (int32_t i = 0; i < n; i++) {
        const struct hzp_tokenizer *tok = x->server->engine->parts.tok;
        int32_t first = hzp_sample_first(sample[i]), all = sample[i]->count;
        json_t *text =
            json_pack("{s:I, s:b, s:i, s:o}", "example", (json_int_t)sample[i]->sequence_number,
                      "cut", HZP_MAX(first, all - first - 1) > TEXT_TOKENS, "soft_tokens",
                      sample[i]->softs, "parts", parts_json(tok, sample[i], 0, first));
        if (first < all)
            json_object_set_new(text, "rejected", parts_json(tok, sample[i], first + 1, all));
        json_array_append_new(list, text);
        hzp_sample_destroy(sample[i]);
    }
    return list;
}

static bool learned_any(const struct hzp_learned *learned, int64_t first, int64_t last)
{
    for (int32_t i = 0; i < learned->ranges; i++)
        if (learned->first[i] <= last && learned->last[i] >= first)
            return true;
    return false;
}

/* The versions that learned from it, as far as they are known: "from_version" is the one before
 * them. */
static void add_versions(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson,
                         json_t *json)
{
    struct hzp_version_record *record = hzp_xcalloc(VERSIONS_MAX, sizeof(*record));
    int32_t n = hzp_weights_list(x->server->engine->parts.weights, record, VERSIONS_MAX);
    uint64_t from = 0, to = 0;
    for (int32_t i = 0; i < n; i++) { /* newest first */
        if (!learned_any(&record[i].learned, lesson->first, lesson->last))
            continue;
        to = to ? to : record[i].id;
        from = record[i].parent == HZP_NO_PARENT ? 0 : record[i].parent;
    }
    free(record);
    json_object_set_new(json, "from_version", from ? json_integer((json_int_t)from) : json_null());
    json_object_set_new(json, "to_version", to ? json_integer((json_int_t)to) : json_null());
}

int hzp_route_lesson(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_logged_lesson lesson;
    struct hzp_audit_taught who = {.key = ""};
    struct hzp_state *s = x->server->engine->state;
    int64_t id = hzp_path_number(x->tail, 0);
    if (id < 1 || hzp_state_lesson(s, id, &lesson, reterr) < 0)
        return hzp_fail(reterr, HZP_ENOENT, "there is no lesson %.40s: GET /v1/lessons lists them",
                        x->tail);
    bool known = hzp_audit_find(hzp_state_audit(s), lesson.first, &who);
    json_t *json = lesson_json(x, &lesson);
    json_object_set_new(json, "key", known ? json_string(who.key) : json_null());
    json_object_set_new(json, "request", known ? json_string(who.request) : json_null());
    json_object_set_new(json, "passes",
                        json_integer(x->server->engine->config.settings->learning.passes));
    add_versions(x, &lesson, json);
    json_object_set_new(json, "texts", texts_json(x, &lesson));
    return hzp_reply_json(x, MHD_HTTP_OK, json);
}

/* ---- taking back ---- */

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
    hzp_given_int(body, "lesson", &ret->lesson);
    hzp_given_bool(body, "redo", &ret->redo);
    HZP_TRY(read_version(body, ret, reterr));
    if (ret->version && (ret->lesson || ret->redo))
        return hzp_fail_param(reterr, HZP_EINVAL, "version", "either lesson or version, not both");
    if (ret->redo && !ret->lesson)
        return hzp_wrong(reterr, "redo", "needs the lesson's number");
    return HZP_OK;
}

static int go_back(struct hzp_exchange *x, const char *version, uint64_t token,
                   struct hzp_err_text *reterr)
{
    struct hzp_version_job job = {.kind = HZP_JOB_ACTIVATE, .token = token};
    HZP_TRY(hzp_state_find(x->server->engine->state, version, &job.version, reterr));
    return hzp_job_run(x, &job, "undo", json_pack("{s:I}", "version", (json_int_t)job.version),
                       reterr);
}

static int teach_again(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson,
                       const struct hzp_body_key *key, struct hzp_err_text *reterr)
{
    struct hzp_state *s = x->server->engine->state;
    struct hzp_logged_lesson again = *lesson;
    if (hzp_lesson_counts(s, lesson))
        return hzp_reply_error(x, MHD_HTTP_CONFLICT, "lesson", NULL,
                               "lesson %" PRId64 " was not taken back: there is nothing to redo",
                               lesson->id);
    struct hzp_engine *engine = x->server->engine;
    hzp_effects_prepare(engine->effects);
    HZP_TRY(hzp_state_teach_again(s, lesson, key, &again.first, &again.last, reterr));
    hzp_effects_note(engine->effects, again.first, again.last, NULL, 0);
    hzp_loop_poke(engine->parts.loop);
    hzp_route_audit(x, "redo",
                    json_pack("{s:I, s:I, s:I}", "lesson", (json_int_t)lesson->id, "first",
                              (json_int_t)again.first, "last", (json_int_t)again.last));
    HZP_TRY(hzp_state_lesson_of(s, again.first, &again, reterr));
    return hzp_reply_json(x, MHD_HTTP_ACCEPTED, lesson_json(x, &again));
}

/* again: a body with this key has asked for it before. */
static int take_back(struct hzp_exchange *x, const struct hzp_logged_lesson *lesson,
                     const struct hzp_body_key *key, bool again, uint64_t token,
                     struct hzp_err_text *reterr)
{
    struct hzp_state *s = x->server->engine->state;
    enum hzp_lesson_state status = hzp_lesson_state(s, lesson, INT64_MAX);
    struct hzp_version_job job = {.kind = HZP_JOB_UNDO,
                                  .example = lesson->first,
                                  .example_last = lesson->last,
                                  .token = token};
    bool counts = hzp_lesson_counts(s, lesson);
    if (!counts && again) { /* by a job that is forgotten, or of an earlier process */
        job.state = HZP_JOB_DONE;
        job.skipped_from = lesson->first;
        job.skipped_to = lesson->last;
        return hzp_reply_job(x, &job);
    }
    if (!counts)
        return hzp_reply_error(x, MHD_HTTP_CONFLICT, "lesson", NULL,
                               "lesson %" PRId64 " is %s already%s", lesson->id,
                               hzp_lesson_state_name(status),
                               status == HZP_LESSON_UNDONE
                                   ? ": {\"lesson\": N, \"redo\": true}, or hzpserve undo N redo, "
                                     "teaches it again"
                                   : "");
    if (key->key && !again)
        HZP_TRY(hzp_state_note_undo(s, key, lesson->id, reterr));
    return hzp_job_run(x, &job, "undo", json_pack("{s:I}", "lesson", (json_int_t)lesson->id),
                       reterr);
}

int hzp_route_undo(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_logged_lesson lesson;
    struct asked asked = {.lesson = 0};
    struct hzp_state *s = x->server->engine->state;
    struct hzp_body_key key = {.digest = hzp_fnv(HZP_FNV, "undo", 4)};
    HZP_TRY(read_asked(x->asked, &asked, reterr));
    HZP_TRY(hzp_read_key(x, &key.key, reterr));
    if (x->body)
        key.digest = hzp_fnv(key.digest, x->body, x->bytes);
    uint64_t token = key.key ? hzp_fnv(key.digest, key.key, strlen(key.key)) : 0;
    uint64_t job = hzp_state_job_of(s, token);
    if (job)
        return hzp_job_wait(x, job);
    if (asked.version)
        return go_back(x, asked.version, token, reterr);
    int again = asked.redo ? 0 : hzp_state_undone_by(s, &key, &asked.lesson, reterr);
    HZP_TRY(again);
    HZP_TRY(hzp_state_lesson(s, asked.lesson, &lesson, reterr));
    return asked.redo ? teach_again(x, &lesson, &key, reterr)
                      : take_back(x, &lesson, &key, again, token, reterr);
}
