/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/weights: all kept version records, newest first, and the current staleness. */
#include "api/http/routes/routes.h"

enum { RECORDS_MAX = 4096 };

/* What the gate did last; null: there is none. */
static json_t *gate_json(const struct hzp_engine *engine)
{
    struct hzp_trainer_stats t;
    const struct hzp_gate *gate = engine->state ? hzp_state_gate(engine->state) : NULL;
    if (!gate)
        return json_null();
    hzp_trainer_read_stats(engine->parts.trainer, &t);
    json_t *rejection = json_null();
    if (t.gate_rejected)
        rejection = json_pack(
            "{s:I, s:[I, I], s:I, s:o, s:o, s:o}", "optimizer_step",
            (json_int_t)t.rejection.optimizer_step, "sequence",
            (json_int_t)t.rejection.first_sequence, (json_int_t)t.rejection.last_sequence,
            "unix_ms", (json_int_t)t.rejection.unix_ms, "tag",
            t.rejection.tag ? json_string(t.rejection.tag) : json_null(), "loss_before",
            isfinite(t.rejection.before) ? json_real(t.rejection.before) : json_null(),
            "loss_after", isfinite(t.rejection.after) ? json_real(t.rejection.after) : json_null());
    return json_pack("{s:i, s:f, s:I, s:I, s:f, s:o}", "examples", gate->count, "max_rise",
                     gate->max_rise, "evaluations", (json_int_t)t.gate_evaluations, "rejected",
                     (json_int_t)t.gate_rejected, "seconds", (double)t.gate_device_ns * 1e-9,
                     "last_rejection", rejection);
}

static json_t *mean_json(double sum, int64_t count)
{
    return count ? json_real(sum / (double)count) : json_null();
}

static json_t *side_json(const struct hzp_trial_side *side)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:o}", "requests",
                     (json_int_t)side->requests, "ended", (json_int_t)side->ended, "failed",
                     (json_int_t)side->failed, "length", (json_int_t)side->cut, "tokens",
                     (json_int_t)side->tokens, "logprob", mean_json(side->logprob, side->tokens),
                     "scores", (json_int_t)side->scores, "score",
                     mean_json(side->score, side->scores));
}

/* null: there was none. */
static json_t *trial_json(const struct hzp_trial *trial)
{
    if (!trial->version)
        return json_null();
    return json_pack(
        "{s:I, s:I, s:s, s:s, s:I, s:o, s:o, s:o}", "version", (json_int_t)trial->version, "parent",
        (json_int_t)trial->parent, "state", hzp_trial_end_name(trial->end), "reason", trial->reason,
        "begun_unix_ms", (json_int_t)trial->begun_unix_ms, "ended_unix_ms",
        trial->ended_unix_ms ? json_integer((json_int_t)trial->ended_unix_ms) : json_null(),
        "current", side_json(&trial->side[0]), "trial", side_json(&trial->side[1]));
}

/* null: versions are published at once. */
static json_t *canary_json(const struct hzp_engine *engine)
{
    struct hzp_trials_stats stats;
    if (!engine->trials)
        return json_null();
    const struct hzp_trials_config *bounds = hzp_trials_bounds(engine->trials);
    hzp_trials_read(engine->trials, &stats);
    return json_pack(
        "{s:f, s:f, s:I, s:f, s:f, s:I, s:I, s:I, s:o}", "share", bounds->share, "seconds",
        (double)bounds->time_ns * 1e-9, "requests", (json_int_t)bounds->requests, "max_drop",
        bounds->max_drop, "max_score_drop", bounds->max_score_drop, "promoted",
        (json_int_t)stats.ended[HZP_TRIAL_PROMOTED], "dropped",
        (json_int_t)stats.ended[HZP_TRIAL_DROPPED], "withdrawn",
        (json_int_t)stats.ended[HZP_TRIAL_WITHDRAWN], "newest", trial_json(&stats.newest));
}

int hzp_route_weights(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_weights *weights = x->server->engine->parts.weights;
    int64_t asked = hzp_query_int(x, "limit");
    int32_t limit = (int32_t)HZP_MIN(asked, (int64_t)RECORDS_MAX);
    HZP_FREED struct hzp_version_record *record = malloc(RECORDS_MAX * sizeof(*record));
    if (!record)
        return hzp_reply_error(x, MHD_HTTP_TOO_MANY_REQUESTS, NULL, NULL, "no memory now");
    struct hzp_weights_stats stats;
    struct hzp_places places;
    HZP_TRY(hzp_places_read(x->server->engine, &places, reterr));
    hzp_weights_read_stats(weights, &stats);
    int32_t n = hzp_weights_list(weights, record, limit);
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(list, hzp_version_json(&record[i], &places));
    int64_t through = HZP_MIN(stats.learned_through, places.most);
    struct hzp_state *state = x->server->engine->state;
    if (state)
        stats.learned_through = hzp_state_finished_through(state, stats.learned_through);
    hzp_places_fini(&places);
    json_t *seen = json_array();
    for (int i = 0; i < HZP_COUNT(stats.staleness_seen); i++)
        json_array_append_new(seen, json_integer((json_int_t)stats.staleness_seen[i]));
    json_t *ranks = hzp_replicas_json(x->server->engine);
    stats.staleness = hzp_replicas_staleness(x->server->engine, stats.staleness);
    return hzp_reply_pack(
        x, "{s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:I, s:o, s:o, s:o, s:o, s:o*}",
        "object", "list", "gate", gate_json(x->server->engine), "canary",
        canary_json(x->server->engine), "serving", (json_int_t)stats.serving_id,
        "serving_optimizer_step", (json_int_t)stats.serving_optimizer_step,
        "finished_optimizer_step", (json_int_t)stats.finished_optimizer_step, "staleness",
        (json_int_t)stats.staleness, "max_staleness", stats.max_staleness, "slots", stats.slots,
        "slots_free", stats.slots_free, "publications", (json_int_t)stats.publications,
        "learned_through", hzp_through_json(through), "finished_through",
        hzp_through_json(stats.learned_through), "staleness_histogram", seen, "data", list, "ranks",
        ranks);
}
