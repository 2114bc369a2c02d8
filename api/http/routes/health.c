/* SPDX-License-Identifier: Apache-2.0 */
/* GET /health: 200 while requests are taken, else 503.  "degraded": one of several ranks was lost
 * and has not come back, or training has stopped (the weights are not finite), or the disk cannot
 * be written, or a replica is not there: requests are served; or the newest ended because logits
 * are not finite. */
#include "api/http/routes/routes.h"

/* Whether no request could be answered since one of logits that are not finite. */
static bool logits_fail(const struct hzp_engine *engine)
{
    struct hzp_scheduler_stats own;
    struct hzp_front_rank is;
    hzp_scheduler_read_stats(engine->parts.scheduler, &own);
    bool fail = own.not_finite > 0;
    for (int r = 1; engine->front && hzp_front_rank(engine->front, r, &is) == HZP_OK; r++)
        fail |= is.up && is.not_finite;
    return fail;
}

int hzp_route_health(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    if (atomic_load(&x->server->state) != HZP_SERVER_UP)
        return hzp_reply_unavailable(x);
    struct hzp_ranks *ranks = x->server->engine->config.ranks;
    struct hzp_ranks_standing now = {.lost_rank = -1};
    if (ranks)
        hzp_ranks_standing(ranks, &now);
    if (now.lost_rank >= 0)
        return hzp_reply_pack(x, "{s:s, s:i, s:s}", "status", "degraded", "lost_rank",
                              now.lost_rank, "reason", now.why);
    struct hzp_trainer_stats trainer = {0};
    if (x->server->engine->parts.trainer)
        hzp_trainer_read_stats(x->server->engine->parts.trainer, &trainer);
    if (trainer.broken)
        return hzp_reply_pack(x, "{s:s, s:s}", "status", "degraded", "reason",
                              "training has stopped: weights that are not finite, a "
                              "damaged checkpoint, or an activation that failed half "
                              "way; the log says which");
    struct hzp_state *state = x->server->engine->state;
    const char *why = state ? hzp_state_unwritten(state) : NULL;
    if (!why && logits_fail(x->server->engine))
        why = "the logits of the newest requests are not finite: the weights, or the device, are "
              "damaged";
    if (why)
        return hzp_reply_pack(x, "{s:s, s:s}", "status", "degraded", "reason", why);
    char missing[256];
    int rank = hzp_replicas_missing(x->server->engine, missing, sizeof(missing));
    if (rank >= 0)
        return hzp_reply_pack(x, "{s:s, s:i, s:s}", "status", "degraded", "lost_rank", rank,
                              "reason", missing);
    return hzp_reply_pack(x, "{s:s}", "status", "ok");
}

/* GET /v1/mesh: the sites that this server averages its weights with. */

static json_t *site_json(const struct hzp_sites *s, const struct hzp_rounds_stats *now, int i,
                         int self)
{
    double silent = now->site[i].silent_s;
    return json_pack("{s:s, s:b, s:b, s:b, s:o, s:I, s:I, s:i}", "address", hzp_sites_name(s, i),
                     "self", i == self, "alive", now->site[i].alive, "leads", i == now->leader,
                     "silent_seconds", silent < 0 ? json_null() : json_real(silent), "round",
                     (json_int_t)now->site[i].round, "updates", (json_int_t)now->site[i].updates,
                     "rounds_until_counted", now->site[i].left);
}

int hzp_route_mesh(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_sites *s = x->server->engine->sites;
    struct hzp_rounds_stats now;
    json_t *list = json_array();
    int self, count = hzp_sites_count(s, &self);
    hzp_sites_read_stats(s, &now);
    for (int i = 0; i < count; i++)
        json_array_append_new(list, site_json(s, &now, i, self));
    return hzp_reply_pack(
        x, "{s:s, s:I, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "object",
        "mesh", "round", (json_int_t)now.round, "part", now.part, "stage", now.stage,
        "rounds_applied", (json_int_t)now.applied, "rounds_refused", (json_int_t)now.refused,
        "rounds_skipped", (json_int_t)now.skipped, "rounds_missed", (json_int_t)now.missed,
        "rounds_given_up", (json_int_t)now.given_up, "messages_refused",
        (json_int_t)now.bad_messages, "bytes_sent", (json_int_t)now.bytes_sent, "bytes_received",
        (json_int_t)now.bytes_received, "drift", now.drift, "sites", list);
}

/* GET /debug/timeline: what the threads of all ranks did in the last seconds, as a Chrome trace. */

int hzp_route_timeline(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    size_t bytes = 0;
    char *text = NULL;
    HZP_TRY(hzp_ranks_timeline(x->server->engine->config.ranks, hzp_query_number(x, "seconds"),
                               &text, &bytes, reterr));
    return hzp_reply_text(x, MHD_HTTP_OK, "application/json", text);
}
