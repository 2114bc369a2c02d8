/* SPDX-License-Identifier: Apache-2.0 */
/* GET /health: 200 while requests are taken, else 503.  "degraded": one of several ranks was lost
 * and has not come back, or training has stopped (the weights are not finite), or the disk cannot
 * be written, so nothing is learned, or a replica is not there; requests are served. */
#include "api/http/routes/replicas_route.h"
#include "api/http/routes/routes.h"

enum MHD_Result hzp_route_health(struct hzp_exchange *x)
{
    if (atomic_load(&x->server->state) != HZP_SERVER_UP)
        return hzp_reply_unavailable(x);
    struct hzp_ranks *ranks = x->server->engine->config.ranks;
    struct hzp_ranks_standing now = {.lost_rank = -1};
    if (ranks)
        hzp_ranks_standing(ranks, &now);
    if (now.lost_rank >= 0)
        return hzp_reply_json(x, MHD_HTTP_OK,
                              json_pack("{s:s, s:i, s:s}", "status", "degraded", "lost_rank",
                                        now.lost_rank, "reason", now.why));
    struct hzp_trainer_stats trainer = {0};
    if (x->server->engine->parts.trainer)
        hzp_trainer_read_stats(x->server->engine->parts.trainer, &trainer);
    if (trainer.broken)
        return hzp_reply_json(x, MHD_HTTP_OK,
                              json_pack("{s:s, s:s}", "status", "degraded", "reason",
                                        "training has stopped: weights that are not finite, a "
                                        "damaged checkpoint, or an activation that failed half "
                                        "way; the log says which"));
    struct hzp_state *state = x->server->engine->state;
    if (state && hzp_state_read_only(state))
        return hzp_reply_json(x, MHD_HTTP_OK,
                              json_pack("{s:s, s:s}", "status", "degraded", "reason",
                                        "nothing is accepted or learned: the disk cannot be "
                                        "written"));
    char missing[256];
    int rank = hzp_replicas_missing(x->server->engine, missing, sizeof(missing));
    if (rank >= 0)
        return hzp_reply_json(x, MHD_HTTP_OK,
                              json_pack("{s:s, s:i, s:s}", "status", "degraded", "lost_rank", rank,
                                        "reason", missing));
    return hzp_reply_json(x, MHD_HTTP_OK, json_pack("{s:s}", "status", "ok"));
}
