/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/answer.h"

#include "api/http/routes/taught.h"
#include "api/http/wire/fields.h"
#include "base/decimal.h"
#include "base/hash.h"

/* A client knows ids of versions that have served; it may also wait for one to come. */
enum { VERSIONS_AHEAD = 4096 };

/* ---- reading ---- */

/* A whole number from the body, or else from the header. */
static int read_number(const struct hzp_exchange *x, const json_t *body, const char *field,
                       const char *header, int64_t high, int64_t *ret, struct hzp_err_text *reterr)
{
    const char *text = hzp_exchange_header(x, header);
    const json_t *value = json_object_get(body, field);
    if ((value && !json_is_null(value)) || !text)
        return hzp_field_int(body, field, 0, high, ret, reterr);
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < 0 || n > high)
        return hzp_wrong(reterr, header, "must be a whole number from 0 to %lld, not \"%.40s\"",
                         (long long)high, text);
    *ret = n;
    return HZP_OK;
}

/* A text from the body, or else from the header; *ret NULL: absent. */
static int read_text(const struct hzp_exchange *x, const json_t *body, const char *field,
                     const char *header, const char **ret, struct hzp_err_text *reterr)
{
    *ret = NULL;
    HZP_TRY(hzp_field_string(body, field, ret, reterr));
    if (!*ret)
        *ret = hzp_exchange_header(x, header);
    return HZP_OK;
}

static int read_mode(const struct hzp_exchange *x, const json_t *body, struct hzp_demands *ret,
                     struct hzp_err_text *reterr)
{
    const char *name;
    HZP_TRY(read_text(x, body, "consistency", "x-hzpserve-consistency", &name, reterr));
    int mode = name ? hzp_consistency_find(name) : (int)ret->mode;
    if (mode < 0)
        return hzp_wrong(
            reterr, "consistency",
            "must be \"continue\", \"abort\", \"recompute\" or \"pinned\", not \"%.40s\"", name);
    ret->mode = (enum hzp_consistency)mode;
    return HZP_OK;
}

static int limit_timeout(const char *name, double seconds, double most, uint64_t *ret_ns,
                         struct hzp_err_text *reterr)
{
    if (!(seconds >= 0 && seconds <= most))
        return hzp_wrong(
            reterr, name,
            "of %g seconds: this server lets requests wait for weights for %g (--weights-timeout)",
            seconds, most);
    *ret_ns = (uint64_t)(seconds * 1e9);
    return HZP_OK;
}

static int read_timeout(const struct hzp_exchange *x, const json_t *body, struct hzp_demands *ret,
                        struct hzp_err_text *reterr)
{
    static const char header[] = "x-hzpserve-weights-timeout";
    double most = x->server->engine->config.settings->serving.weights_timeout, seconds = most;
    const char *text = hzp_exchange_header(x, header);
    const json_t *value = json_object_get(body, "weights_timeout");
    if ((value && !json_is_null(value)) || !text) {
        float given = 0;
        HZP_TRY(hzp_field_number(body, "weights_timeout", 0, 86400, &given, reterr));
        if (value && !json_is_null(value))
            seconds = json_number_value(value); /* given is rounded, perhaps above the maximum */
        return limit_timeout("weights_timeout", seconds, most, &ret->wait_ns, reterr);
    }
    const char *end = hzp_decimal(text, &seconds);
    if (!end || *end)
        return hzp_wrong(reterr, header, "must be a number of seconds, not \"%.40s\"", text);
    return limit_timeout(header, seconds, most, &ret->wait_ns, reterr);
}

static int read_session(const struct hzp_exchange *x, struct hzp_demands *ret,
                        struct hzp_err_text *reterr)
{
    const char *name = hzp_exchange_header(x, "x-hzpserve-session");
    const char *key = name ? name : x->info.id;
    ret->draw_key = hzp_fnv(HZP_FNV, key, strlen(key));
    if (!name)
        return HZP_OK;
    HZP_TRY(hzp_session_check(name, reterr));
    if (x->server->engine->state)
        ret->through = hzp_session_newest(x->server->taught, name);
    return HZP_OK;
}

/* Whether new requests get a smaller depth: a quarter of those that may wait do. */
static bool sheds(const struct hzp_exchange *x)
{
    const struct hzp_serving_settings *s = &x->server->engine->config.settings->serving;
    struct hzp_scheduler_stats stats;
    if (s->shed_depth >= 1)
        return false;
    hzp_scheduler_read_stats(x->server->engine->parts.scheduler, &stats);
    return 4 * (int64_t)(stats.waiting - stats.waiting_weights) >= s->waiting_max;
}

/* Which of the model's layers compute it. */
static int read_depth(struct hzp_exchange *x, const json_t *body, bool may_shed,
                      struct hzp_demands *ret, struct hzp_err_text *reterr)
{
    static const char header[] = "x-hzpserve-depth";
    const struct hzp_engine *engine = x->server->engine;
    const char *text = hzp_exchange_header(x, header);
    const json_t *value = json_object_get(body, "depth");
    bool given = value && !json_is_null(value);
    double share = 1;
    if (given) {
        float number = 0;
        HZP_TRY(hzp_field_number(body, "depth", 0, 1, &number, reterr));
        share = (double)number;
    } else if (text) {
        const char *end = hzp_decimal(text, &share);
        share = end && !*end ? share : 0;
    } else if (may_shed && sheds(x)) {
        share = engine->config.settings->serving.shed_depth;
    }
    if (!((float)share > 0 && share <= 1))
        return hzp_wrong(reterr, given ? "depth" : header,
                         "must be a number above 0, at most 1: a share of the layers");
    ret->depth = hzp_depth_of((float)share, engine->parts.config.layers);
    ret->shed = ret->depth && !given && !text;
    atomic_fetch_add(&x->server->shed, ret->shed);
    return HZP_OK;
}

/* A request that names no weights itself, and did not begin before a restart, waits for what was
 * served before it. */
static void add_owed(const struct hzp_exchange *x, struct hzp_demands *ret)
{
    const struct hzp_engine *e = x->server->engine;
    struct hzp_weights_stats weights;
    struct hzp_trainer_stats trainer;
    if (!e->state || x->journal || ret->min_version || ret->min_sequence)
        return;
    hzp_weights_read_stats(e->parts.weights, &weights);
    int64_t owed = hzp_state_owed(e->state, weights.learned_through);
    if (owed <= ret->through)
        return;
    hzp_trainer_read_stats(e->parts.trainer, &trainer);
    ret->owed = !trainer.broken; /* else nothing is learned again */
    ret->through = ret->owed ? owed : ret->through;
}

int hzp_demands_read(struct hzp_exchange *x, const json_t *body, bool may_shed,
                     struct hzp_demands *ret, struct hzp_err_text *reterr)
{
    int64_t version = 0, staleness = -1, after = 0;
    const char *token;
    *ret = (struct hzp_demands){
        .mode = (enum hzp_consistency)x->server->engine->config.settings->serving.consistency,
        .max_staleness = -1};
    HZP_TRY(read_mode(x, body, ret, reterr));
    HZP_TRY(
        read_number(x, body, "min_version", "x-hzpserve-min-version", INT64_MAX, &version, reterr));
    HZP_TRY(read_number(x, body, "min_sequence", "x-hzpserve-min-sequence", INT64_MAX,
                        &ret->min_sequence, reterr));
    HZP_TRY(read_number(x, body, "max_staleness", "x-hzpserve-max-staleness", 1000000, &staleness,
                        reterr));
    HZP_TRY(read_text(x, body, "after", "x-hzpserve-after", &token, reterr));
    if (token)
        HZP_TRY(hzp_after_read(x->server->taught, token, &after, reterr));
    ret->min_version = (uint64_t)version;
    ret->min_sequence = HZP_MAX(ret->min_sequence, after);
    ret->max_staleness = (int32_t)staleness;
    HZP_TRY(read_session(x, ret, reterr));
    add_owed(x, ret);
    HZP_TRY(read_depth(x, body, may_shed, ret, reterr));
    return read_timeout(x, body, ret, reterr);
}

/* ---- what can never be met ---- */

enum MHD_Result hzp_reply_unmet(struct hzp_exchange *x, int status, json_t *error)
{
    bool final = status == MHD_HTTP_CONFLICT;
    return hzp_reply_json_with(x, status, error, "x-should-retry", final ? "false" : NULL);
}

static json_t *failed_json(int64_t number)
{
    char text[128];
    snprintf(text, sizeof(text),
             "example %lld was given up, skipped, deleted or rejected: no version will have it",
             (long long)number);
    return hzp_error_json(MHD_HTTP_CONFLICT, text, "min_sequence", "example_failed");
}

static bool refuse_sequence(struct hzp_exchange *x, int64_t number, enum MHD_Result *ret)
{
    struct hzp_engine *e = x->server->engine;
    struct hzp_state_stats stats;
    struct hzp_weights_stats weights;
    if (!e->state) {
        *ret = hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, "min_sequence", NULL,
                               "this server does not learn: it was started with --no-train");
        return true;
    }
    hzp_state_read_stats(e->state, &stats);
    if (number > stats.last_sequence_number) {
        *ret = hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, "min_sequence", NULL,
                               "example %lld was not accepted yet: the newest is %lld",
                               (long long)number, (long long)stats.last_sequence_number);
        return true;
    }
    hzp_weights_read_stats(e->parts.weights, &weights);
    /* given up, skipped, deleted or rejected, also by an earlier run */
    bool never = hzp_state_learned(e->state, number, weights.learned_through) == HZP_EXAMPLE_NEVER;
    if (never)
        *ret = hzp_reply_unmet(x, MHD_HTTP_CONFLICT, failed_json(number));
    return never;
}

bool hzp_demands_refused(struct hzp_exchange *x, const struct hzp_demands *d, enum MHD_Result *ret)
{
    struct hzp_engine *e = x->server->engine;
    struct hzp_weights_stats weights;
    struct hzp_trainer_stats trainer = {0};
    if (d->min_sequence && refuse_sequence(x, d->min_sequence, ret))
        return true;
    hzp_weights_read_stats(e->parts.weights, &weights);
    if (d->min_version > weights.serving_id + VERSIONS_AHEAD) {
        *ret = hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, "min_version", NULL,
                               "version %llu is far ahead of the one that serves, %llu",
                               (unsigned long long)d->min_version,
                               (unsigned long long)weights.serving_id);
        return true;
    }
    if (e->parts.trainer)
        hzp_trainer_read_stats(e->parts.trainer, &trainer);
    if (!hzp_demands_wait(d) || (e->parts.trainer && !trainer.broken))
        return false;
    /* as the scheduler does, it steps over examples that no version will have learned */
    int64_t through = HZP_MAX(d->min_sequence, d->through);
    bool unlearned = e->state && !hzp_state_settled(e->state, 1, through, weights.learned_through);
    bool later = weights.serving_id < d->min_version || unlearned;
    if (!later)
        return false;
    if (!e->parts.trainer)
        *ret = hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, "min_version", NULL,
                               "this server does not learn, and serves version %llu",
                               (unsigned long long)weights.serving_id);
    else
        *ret = hzp_reply_unmet(
            x, MHD_HTTP_CONFLICT,
            hzp_error_json(MHD_HTTP_CONFLICT,
                           "training has stopped: no newer weights come before a restart, or "
                           "before an older version is activated",
                           NULL, "weights_not_served"));
    return true;
}

/* ---- what was not met ---- */

json_t *hzp_unmet_json(const struct hzp_request *rq)
{
    const struct hzp_demands *d = &rq->demands;
    long long through = (long long)HZP_MAX(d->min_sequence, d->through);
    char text[400], what[96] = "";
    if (rq->unmet == HZP_UNMET_UNLEARNED)
        return failed_json(d->min_sequence);
    if (rq->unmet == HZP_UNMET_FULL)
        return hzp_error_json(MHD_HTTP_TOO_MANY_REQUESTS,
                              "the queue is full: too many requests wait for weights", NULL,
                              "rate_limit_exceeded");
    if (rq->unmet == HZP_UNMET_LOST)
        snprintf(text, sizeof(text),
                 "weights of an earlier state were put back: they are not those asked for");
    if (rq->unmet == HZP_UNMET_TIME) {
        if (d->min_version)
            snprintf(what, sizeof(what), ", version %llu", (unsigned long long)d->min_version);
        if (through)
            snprintf(what + strlen(what), sizeof(what) - strlen(what),
                     ", learned through example %lld", through);
        snprintf(text, sizeof(text), "%s%s%s did not serve within %g seconds%s",
                 d->owed ? "what was served before the restart" : "the weights asked for", what,
                 d->max_staleness >= 0 ? ", within max_staleness" : "", (double)d->wait_ns * 1e-9,
                 d->owed ? "; ask again, or with \"min_version\": 1, which does not wait; hzpserve "
                           "status says what holds learning back, hzpserve undo gives it up"
                         : "");
    }
    return hzp_error_json(d->owed ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_CONFLICT, text, NULL,
                          "weights_not_served");
}
