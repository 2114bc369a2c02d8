/* SPDX-License-Identifier: Apache-2.0 */
/* GET /health: 200 while requests are taken, else 503.  "degraded": one of several ranks was lost
 * and has not come back, or training has stopped (the weights are not finite), or the disk cannot
 * be written, or a replica is not there: requests are served; or the newest ended because logits
 * are not finite. */
#include "api/http/routes/replicas_route.h"
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

enum MHD_Result hzp_route_health(struct hzp_exchange *x)
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
