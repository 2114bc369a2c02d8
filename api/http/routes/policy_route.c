/* SPDX-License-Identifier: Apache-2.0 */
/* GET and PATCH /v1/policy: latency goals and training's share, the staleness bound, and what the
 * split predicted and measured.
 *
 * A PATCH is checked whole before any of it is applied; it takes effect at the engine's next
 * step. */
#include "api/http/routes/field_table.h"
#include "api/http/routes/routes.h"
#include "api/http/wire/fields.h"
#include "nanobatch/split/split.h"

enum { BOUND_WAIT_MS = 1000 };

/* ---- GET ---- */

static json_t *ms_json(double ns)
{
    return isfinite(ns) ? json_real(ns * 1e-6) : json_null();
}

static json_t *goal_json(uint64_t ns)
{
    return ns ? ms_json((double)ns) : json_null();
}

static json_t *quantiles_json(const struct hzp_window *w)
{
    if (!w->count)
        return json_pack("{s:i, s:n, s:n}", "count", 0, "p50", "p99");
    return json_pack("{s:I, s:o, s:o}", "count", (json_int_t)hzp_window_weight(w), "p50",
                     ms_json((double)hzp_window_quantile(w, 0.5)), "p99",
                     ms_json((double)hzp_window_quantile(w, 0.99)));
}

static json_t *predicted_json(const struct hzp_split_report *r)
{
    return json_pack("{s:i, s:i, s:o, s:f, s:o, s:f, s:o, s:f}", "decode_rows",
                     r->shape.decode_rows, "prompt_rows", r->shape.prompt_rows, "alone_ms",
                     ms_json(r->alone_ns), "slowdown", r->slowdown, "itl_ms", ms_json(r->itl_ns),
                     "aim", r->aim, "train_allowed_ms", ms_json(r->slice_ns), "error", r->error);
}

static json_t *measured_json(const struct hzp_split_report *r)
{
    return json_pack("{s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:f}", "last_itl_ms",
                     ms_json(r->measured_itl_ns), "itl_ms", quantiles_json(&r->itl), "ttft_ms",
                     quantiles_json(&r->ttft), "itl_missed", r->missed_itl, "itl_missed_alone",
                     r->missed_itl_alone, "ttft_missed", r->missed_ttft, "serve_part",
                     r->serve_part, "train_part", r->train_part);
}

static json_t *policy_json(struct hzp_engine *e)
{
    struct hzp_weights_stats weights;
    HZP_FREED struct hzp_split_report *r = malloc(sizeof(*r));
    if (!r)
        return NULL;
    hzp_weights_read_stats(e->parts.weights, &weights);
    hzp_split_read(hzp_loop_split(e->parts.loop), hzp_now_ns(), r);
    json_t *limited = json_object();
    for (int i = 0; i < HZP_LIMIT_COUNT; i++)
        json_object_set_new(limited, hzp_split_limit_name(i),
                            json_integer((json_int_t)r->limited[i]));
    return json_pack(
        "{s:s, s:{s:o, s:o}, s:f, s:i, s:o, s:f, s:f, s:f, s:{s:I, s:I, s:f, s:o, s:o, s:o, s:o, "
        "s:o}}",
        "object", "policy", "slo", "ttft_ms", goal_json(r->policy.ttft_ns), "itl_ms",
        goal_json(r->policy.itl_ns), "itl_stretch", r->policy.itl_stretch, "max_staleness",
        weights.max_staleness, "max_staleness_from_step",
        weights.bound_step ? json_integer((json_int_t)weights.bound_step) : json_null(),
        "train_share", r->policy.train_share, "train_max", r->policy.train_max, "train_min",
        r->policy.train_min, "split", "steps", (json_int_t)r->steps, "trained_steps",
        (json_int_t)r->trained, "train_min_now", r->floor_part, "itl_follows_ms",
        goal_json(r->derived_itl_ns), "ttft_follows_ms", goal_json(r->derived_ttft_ns), "predicted",
        predicted_json(r), "measured", measured_json(r), "steps_by_limit", limited);
}

int hzp_route_policy(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    json_t *json = policy_json(x->server->engine);
    if (!json)
        return hzp_reply_error(x, MHD_HTTP_TOO_MANY_REQUESTS, NULL, NULL, "no memory now");
    return hzp_reply_json(x, MHD_HTTP_OK, json);
}

/* ---- PATCH ---- */

static int read_number(const json_t *body, const char *name, double *ret,
                       struct hzp_err_text *reterr)
{
    const json_t *value = json_object_get(body, name);
    if (!value)
        return HZP_OK;
    if (!json_is_number(value))
        return hzp_wrong(reterr, name, "must be a number, not %s", hzp_json_kind(value));
    *ret = json_number_value(value);
    return HZP_OK;
}

/* A goal in milliseconds; null: no goal; absent: unchanged. */
static int read_goal(const json_t *slo, const char *name, uint64_t *ret,
                     struct hzp_err_text *reterr)
{
    const json_t *value = json_object_get(slo, name);
    double ms = 0;
    char path[16];
    if (!value)
        return HZP_OK;
    snprintf(path, sizeof(path), "slo.%s", name);
    if (!json_is_null(value)) {
        if (!json_is_number(value))
            return hzp_wrong(reterr, path, "must be a number or null, not %s",
                             hzp_json_kind(value));
        ms = json_number_value(value);
        if (!(ms >= 0.001 && ms <= 3600e3))
            return hzp_wrong(reterr, path, "must be from 0.001 to 3600000 milliseconds, or null");
    }
    *ret = (uint64_t)llround(ms * 1e6);
    return HZP_OK;
}

static int read_goals(const json_t *slo, struct hzp_policy *ret, struct hzp_err_text *reterr)
{
    const char *name;
    json_t *value;
    size_t bytes;
    if (json_is_null(slo)) {
        ret->ttft_ns = ret->itl_ns = 0;
        return HZP_OK;
    }
    if (json_is_string(slo) && !hzp_json_is_text(slo))
        return hzp_wrong(reterr, "slo", "has a NUL in it");
    if (json_is_string(slo))
        return hzp_policy_parse_goals(json_string_value(slo), "slo", ret, reterr);
    if (!json_is_object(slo))
        return hzp_wrong(
            reterr, "slo",
            "must be an object, null, or a string such as \"ttft=500ms,itl=50ms\", not %s",
            hzp_json_kind(slo));
    json_object_keylen_foreach((json_t *)slo, name, bytes, value)
    {
        char path[48];
        snprintf(path, sizeof(path), "slo.%.40s", name);
        if (strlen(name) != bytes || (strcmp(name, "ttft_ms") && strcmp(name, "itl_ms")))
            return hzp_fail_param(reterr, HZP_EINVAL, path,
                                  "slo has ttft_ms and itl_ms, not \"%.40s\"", name);
    }
    HZP_TRY(read_goal(slo, "ttft_ms", &ret->ttft_ns, reterr));
    return read_goal(slo, "itl_ms", &ret->itl_ns, reterr);
}

/* The current policy with the body's changes.  Nothing is applied yet. */
static int read_policy(const json_t *body, struct hzp_policy *policy, int64_t *staleness,
                       struct hzp_err_text *reterr)
{
    json_t *ignored = NULL;
    HZP_TRY(hzp_fields_check(&hzp_fields_policy, body, &ignored, reterr));
    const json_t *slo = json_object_get(body, "slo");
    if (slo)
        HZP_TRY(read_goals(slo, policy, reterr));
    if (json_is_null(json_object_get(body, "max_staleness")))
        return hzp_wrong(reterr, "max_staleness", "must be an integer, not null");
    hzp_given_int(body, "max_staleness", staleness);
    HZP_TRY(read_number(body, "itl_stretch", &policy->itl_stretch, reterr));
    HZP_TRY(read_number(body, "train_share", &policy->train_share, reterr));
    HZP_TRY(read_number(body, "train_max", &policy->train_max, reterr));
    HZP_TRY(read_number(body, "train_min", &policy->train_min, reterr));
    return hzp_policy_check(policy, reterr);
}

/* Waits for the finished updates beyond a lowered bound to be published.  Usually that is the next
 * step; an update in progress, which writes into their memory, has to end first, and the answer
 * then says that the bound does not hold yet. */
static void wait_for_bound(struct hzp_engine *e)
{
    struct hzp_weights_stats weights;
    for (int ms = 0; ms < BOUND_WAIT_MS; ms++) {
        hzp_weights_read_stats(e->parts.weights, &weights);
        if (weights.bound_step)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

json_t *hzp_policy_kept(struct hzp_engine *e)
{
    struct hzp_weights_stats weights;
    struct hzp_policy p;
    hzp_weights_read_stats(e->parts.weights, &weights);
    hzp_split_policy(hzp_loop_split(e->parts.loop), &p);
    json_t *body =
        json_pack("{s:{s:o, s:o}, s:f, s:f, s:f, s:f}", "slo", "ttft_ms", goal_json(p.ttft_ns),
                  "itl_ms", goal_json(p.itl_ns), "itl_stretch", p.itl_stretch, "train_share",
                  p.train_share, "train_max", p.train_max, "train_min", p.train_min);
    if (!e->front || weights.max_staleness) /* replicas that do not train have none to set */
        json_object_set_new(body, "max_staleness", json_integer(weights.max_staleness));
    return body;
}

int hzp_policy_set(struct hzp_engine *e, const json_t *body, int64_t *ret_staleness,
                   struct hzp_err_text *reterr)
{
    struct hzp_split *split = hzp_loop_split(e->parts.loop);
    struct hzp_policy policy;
    *ret_staleness = -1;
    hzp_split_policy(split, &policy);
    HZP_TRY(read_policy(body, &policy, ret_staleness, reterr));
    if (e->front && *ret_staleness == 0)
        return hzp_wrong(reterr, "max_staleness",
                         "must be at least 1 with --replicas: each rank takes over a new version "
                         "at its own next step");
    hzp_split_set_policy(split, &policy);
    if (e->front)
        hzp_front_set_policy(e->front, &policy);
    if (*ret_staleness >= 0)
        hzp_weights_set_max_staleness(e->parts.weights, (int32_t)*ret_staleness);
    hzp_loop_poke(e->parts.loop);
    return HZP_OK;
}

int hzp_route_policy_patch(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_engine *e = x->server->engine;
    int64_t staleness;
    /* Serialises PATCHes: each changes the fields it names, and the later one wins. */
    hzp_lock_take(&x->server->policy_lock);
    int r = hzp_policy_set(e, x->asked, &staleness, reterr);
    if (r == HZP_OK)
        hzp_operator_keep(e);
    hzp_lock_release(&x->server->policy_lock);
    HZP_TRY(r);
    hzp_route_audit(x, "policy", json_pack("{s:O}", "set", x->asked));
    if (staleness >= 0)
        wait_for_bound(e);
    return hzp_route_policy(x, reterr);
}
