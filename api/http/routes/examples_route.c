/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/fine_tuning/examples[?wait=served&timeout=SECONDS]: accepts examples to learn from.
 *
 * 202 once they are committed to the log, also if a version that learned them serves by then; with
 * wait=served, 200 as soon as such a version serves, or 202 when the time is over. */
#include "api/http/routes/routes.h"
#include "api/http/routes/taught.h"
#include "api/http/wire/target.h"
#include "api/learn/lessons.h"
#include "api/learn/outlook.h"
#include "api/learn/versions.h"

/* How long wait=served waits for what the lesson changed; how long a lesson waits to be accepted
 * for the answers that it is compared with, where they are not known yet. */
static const uint64_t effect_wait_ns = 2000000000u;
enum { KEY_BYTES_MAX = 255, FAILED_SHOWN = 1000 };

/* A request that waits for its examples to be served. */
struct waiter {
    struct hzp_waiting waiting;
    int64_t first, last;
    json_t *warnings;       /* owned */
    uint64_t effect_end_ns; /* 0 until they are served */
};

/* True: a version serves that is done with everything from first to last that is learned at all. */
static bool served(struct hzp_server *server, int64_t first, int64_t last, uint64_t *ret_version)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(server->engine->parts.weights, &stats);
    *ret_version = stats.serving_id;
    return hzp_state_settled(server->engine->state, first, last, stats.learned_through);
}

/* Adds when everything accepted so far is expected to be learned, and what holds it back. */
static void add_outlook(const struct hzp_engine *engine, bool done, json_t *json)
{
    struct hzp_outlook o = {.seconds = 0};
    if (!done)
        hzp_outlook_read(engine->parts.trainer, hzp_state_queue(engine->state), engine->parts.loop,
                         &o);
    json_object_set_new(json, "estimated_seconds",
                        isfinite(o.seconds) ? json_real(o.seconds) : json_null());
    json_object_set_new(json, "held_back_by", o.held_by ? json_string(o.held_by) : json_null());
}

/* Adds the numbers of the examples in [first, last] that were given up, and of those that have each
 * mark; returns how many. */
static int64_t add_unlearned(const struct hzp_engine *engine, int64_t first, int64_t last,
                             json_t *json)
{
    static const char *const name[] = {[HZP_MARK_SKIPPED] = "skipped",
                                       [HZP_MARK_DELETED] = "deleted",
                                       [HZP_MARK_REJECTED] = "rejected"};
    int64_t number[FAILED_SHOWN], count, all = 0;
    for (int kind = 0; kind < HZP_COUNT(name); kind++) {
        int32_t n =
            kind ? hzp_state_marked(engine->state, (enum hzp_mark_kind)kind, first, last, number,
                                    FAILED_SHOWN, &count)
                 : hzp_state_failed(engine->state, first, last, number, FAILED_SHOWN, &count);
        json_t *list = json_array();
        for (int32_t i = 0; i < n; i++)
            json_array_append_new(list, json_integer((json_int_t)number[i]));
        json_object_set_new(json, kind ? name[kind] : "failed", list);
        all += count;
    }
    return all;
}

/* warnings: it takes the reference. */
static enum MHD_Result reply(struct hzp_exchange *x, unsigned status, int64_t first, int64_t last,
                             bool done, uint64_t version, json_t *warnings)
{
    const struct hzp_engine *engine = x->server->engine;
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(engine->parts.weights, &stats);
    x->version = version;
    x->staleness = stats.staleness;
    if (done)
        hzp_state_tell(engine->state, last);
    json_t *json = json_pack("{s:s, s:I, s:I, s:I, s:b, s:I}", "object", "fine_tuning.examples",
                             "first", (json_int_t)first, "last", (json_int_t)last, "accepted",
                             (json_int_t)(last - first + 1), "served", done, "weights_version",
                             (json_int_t)version);
    char after[HZP_AFTER_BYTES];
    json_object_set_new(json, "after", json_string(hzp_after_text(x->server->taught, last, after)));
    add_outlook(engine, done, json);
    json_object_set_new(json, "effect",
                        hzp_effects_tell(engine->effects, engine->state, first, done));
    json_object_set_new(json, "warnings", warnings);
    json_object_set_new(json, "reason", hzp_state_reason(engine->state, first, last));
    if (add_unlearned(engine, first, last, json) > 0)
        json_object_set_new(json, "served", json_false());
    struct hzp_logged_lesson lesson;
    struct hzp_err_text err;
    if (json_is_null(json_object_get(json, "reason")) &&
        json_array_size(json_object_get(json, "skipped")) &&
        hzp_state_lesson_of(engine->state, first, &lesson, &err) == HZP_OK)
        json_object_set_new(json, "reason",
                            json_sprintf("lesson %" PRId64 " was taken back: POST /v1/undo "
                                         "{\"lesson\": %" PRId64
                                         ", \"redo\": true} teaches it again",
                                         lesson.id, lesson.id));
    return hzp_reply_json(x, status, json);
}

/* Answers when the examples are served, and what they changed is measured. */
static bool look(struct hzp_waiting *waiting, bool left, bool over, enum MHD_Result *ret)
{
    struct waiter *w = HZP_CONTAINER_OF(waiting, struct waiter, waiting);
    struct hzp_server *server = waiting->x->server;
    uint64_t version, now = hzp_now_ns();
    bool done = served(server, w->first, w->last, &version);
    if (done && !w->effect_end_ns)
        w->effect_end_ns = HZP_MIN(now + effect_wait_ns, waiting->end_ns);
    bool measured = done && (now >= w->effect_end_ns ||
                             !hzp_effects_pending(server->engine->effects, w->first));
    if (!measured && !over)
        return false;
    if (left)
        json_decref(w->warnings);
    else
        *ret = reply(waiting->x, done ? MHD_HTTP_OK : MHD_HTTP_ACCEPTED, w->first, w->last, done,
                     version, w->warnings);
    return true;
}

static enum MHD_Result wait_served(struct hzp_exchange *x, int64_t first, int64_t last,
                                   json_t *warnings)
{
    struct waiter *w = hzp_xcalloc(1, sizeof(*w));
    w->first = first;
    w->last = last;
    w->warnings = warnings;
    return hzp_wait(x, hzp_query_number(x, "timeout"), &w->waiting, look);
}

int hzp_read_key(struct hzp_exchange *x, const char **ret, struct hzp_err_text *reterr)
{
    static const char name[] = "idempotency-key";
    *ret = hzp_exchange_header(x, name);
    size_t length = *ret ? strlen(*ret) : 1;
    return length > 0 && length <= KEY_BYTES_MAX
               ? HZP_OK
               : hzp_wrong(reterr, name, "must have 1 to %d bytes", KEY_BYTES_MAX);
}

/* Pool or I/O thread: the exchange ends before its answer. */
static void drop_reader(struct hzp_exchange *x)
{
    hzp_example_reader_destroy(x->later);
    x->later = NULL;
}

/* Reads the next piece of the body.  False: an error was answered. */
static bool read_piece(struct hzp_exchange *x, bool last, enum MHD_Result *ret)
{
    struct hzp_state *state = x->server->engine->state;
    struct hzp_err_text err = {0};
    if (!x->later) {
        x->later = hzp_example_reader_create(hzp_state_examples(state),
                                             hzp_exchange_header(x, MHD_HTTP_HEADER_CONTENT_TYPE));
        struct hzp_example_fields fields = {hzp_exchange_query(x, "prompt_field"),
                                            hzp_exchange_query(x, "completion_field")};
        hzp_example_reader_fields(x->later, &fields);
        x->leave = drop_reader;
    }
    int r = hzp_example_reader_feed(x->later, x->body ? x->body : "", x->bytes, last, &err);
    if (r >= 0 && hzp_exchange_charge(x, hzp_example_reader_bytes(x->later)))
        return true;
    hzp_state_refuse(state);
    *ret = r < 0 ? hzp_reply_fail(x, r, &err) : hzp_reply_no_memory(x);
    return false;
}

bool hzp_feed_examples(struct hzp_exchange *x)
{
    enum MHD_Result answered;
    return !x->server->engine->state || read_piece(x, false, &answered);
}

/* Commits the examples that were read, and answers.  *ret_parked: the answer comes later. */
static enum MHD_Result accept_read(struct hzp_exchange *x, bool *ret_parked)
{
    struct hzp_engine *engine = x->server->engine;
    int64_t first = 0, last = 0;
    const char *key, *session = hzp_exchange_header(x, "x-hzpserve-session");
    struct hzp_err_text err = {0};
    *ret_parked = false;
    if (session && hzp_session_check(session, &err) < 0)
        return hzp_reply_fail(x, HZP_EINVAL, &err);
    if (hzp_read_key(x, &key, &err) < 0)
        return hzp_reply_fail(x, HZP_EINVAL, &err);
    hzp_effects_prepare(engine->effects);
    int r = hzp_state_accept_read(engine->state, x->later, key, session, &first, &last, &err);
    int32_t count;
    struct hzp_sample **asks = hzp_example_reader_take_asks(x->later, &count);
    json_auto_t *plain = hzp_example_reader_plain(x->later, first);
    x->leave = NULL;
    drop_reader(x);
    if (r < 0) {
        hzp_examples_free(asks, count);
        return hzp_reply_fail(x, r, &err);
    }
    if (session)
        hzp_session_note(x->server->taught, session, last);
    for (int32_t i = 0; i < count; i++)
        asks[i]->sequence_number += first - 1;
    hzp_effects_note(engine->effects, first, last, asks, count);
    hzp_loop_poke(engine->parts.loop);
    hzp_route_audit(x, "teach",
                    json_pack("{s:I, s:I}", "first", (json_int_t)first, "last", (json_int_t)last));

    json_t *warnings = hzp_state_contradictions(engine->state, first, last);
    json_array_extend(warnings, plain);
    if (hzp_exchange_query(x, "wait")) {
        *ret_parked = true;
        return wait_served(x, first, last, warnings);
    }
    uint64_t version = 0;
    bool done = served(x->server, first, last, &version);
    return reply(x, MHD_HTTP_ACCEPTED, first, last, done, version, warnings);
}

/* A lane: has examples computed by the version that serves, before they are accepted. */
static bool run_refer(void *ctx)
{
    struct hzp_exchange *x = ctx;
    struct hzp_engine *engine = x->server->engine;
    struct hzp_err_text err = {0};
    bool parked = false;
    struct hzp_version *reference = NULL;
    const char *name = hzp_example_reader_reference(x->later);
    int r = name ? hzp_state_borrow(engine->state, name, &reference, &err) : HZP_OK;
    if (r < 0 && !*err.param)
        snprintf(err.param, sizeof(err.param), "reference");
    if (r >= 0)
        r = hzp_example_reader_refer(x->later, engine->parts.scheduler, engine->parts.loop,
                                     reference, &err);
    hzp_state_give_back(engine->state, reference);
    if (r > 0) { /* behind the bodies that came meanwhile */
        hzp_pool_post(x->server->lane[HZP_SERVER_LANES - 1], &x->task);
        return false;
    }
    enum MHD_Result answered = r < 0 ? hzp_reply_fail(x, r, &err) : accept_read(x, &parked);
    if (r < 0)
        hzp_state_refuse(engine->state);
    if (parked)
        return true; /* x is another thread's now */
    x->closing = answered == MHD_NO;
    hzp_exchange_wake(x);
    return true;
}

int hzp_route_examples(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_engine *engine = x->server->engine;
    struct hzp_trainer_stats trainer;
    hzp_trainer_read_stats(engine->parts.trainer, &trainer);
    if (trainer.broken)
        return hzp_reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, NULL,
                               "training has stopped, as the log says (weights that are not "
                               "finite, a damaged checkpoint, or an activation that failed half "
                               "way): restart the server, which continues from the newest "
                               "checkpoint that is whole");
    if (hzp_state_read_only(engine->state))
        return hzp_reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "read_only",
                               "this server cannot keep examples now: its disk cannot be written");
    enum MHD_Result answered;
    bool parked;
    if (!read_piece(x, true, &answered))
        return answered;
    if (hzp_example_reader_reference(x->later) && (engine->config.link || engine->front))
        return hzp_fail_param(reterr, HZP_EINVAL, "reference",
                              "several ranks compare pairs with the version that serves only");
    if (hzp_example_reader_refers(x->later)) {
        if (!hzp_exchange_keep(x, hzp_example_reader_bytes(x->later)))
            return hzp_reply_no_memory(x);
        x->resume = hzp_keep_waiting;
        x->task = (struct hzp_pool_task){.run = run_refer, .ctx = x};
        hzp_pool_post(x->server->lane[HZP_SERVER_LANES - 1], &x->task);
        return MHD_YES;
    }
    return accept_read(x, &parked);
}

int hzp_route_examples_list(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_engine *engine = x->server->engine;
    struct hzp_state_stats stats;
    struct hzp_weights_stats weights;
    hzp_state_read_stats(engine->state, &stats);
    hzp_weights_read_stats(engine->parts.weights, &weights);
    json_t *json = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "object", "fine_tuning.examples", "last",
        (json_int_t)stats.last_sequence_number, "learned_through",
        (json_int_t)hzp_state_learned_through(engine->state, weights.learned_through),
        "finished_through",
        (json_int_t)hzp_state_finished_through(engine->state, weights.learned_through),
        "failed_count", (json_int_t)stats.failed, "skipped_count", (json_int_t)stats.skipped,
        "deleted_count", (json_int_t)stats.deleted, "rejected_count", (json_int_t)stats.rejected);
    add_unlearned(engine, 1, INT64_MAX, json);
    return hzp_reply_json(x, MHD_HTTP_OK, json);
}
