/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/ranks: ranks that serve.  POST /v1/ranks/{rank}/drain, /resume. */
#include "api/http/routes/replicas_route.h"
#include "api/http/routes/operator.h"
#include "api/http/routes/routes.h"

#include "api/learn/audit.h"
#include "api/learn/versions.h"
#include "base/arena.h"
#include "mesh/launch/life.h"

#include <stdlib.h>
#include <string.h>

static json_t *rank_json(int rank, const struct hzp_front_rank *is)
{
    json_t *json = json_pack("{s:i, s:b, s:b, s:i, s:I, s:I}", "rank", rank, "up", is->up,
                             "draining", is->draining, "requests", is->requests, "requests_total",
                             (json_int_t)is->sent, "moved_total", (json_int_t)is->moved);
    if (hzp_life_pid(rank))
        json_object_set_new(json, "pid", json_integer(hzp_life_pid(rank)));
    if (!is->up) {
        json_object_set_new(json, "reason", json_string(is->why));
        return json;
    }
    json_object_set_new(json, "weights_version", json_integer((json_int_t)is->load.version));
    json_object_set_new(json, "optimizer_step", json_integer((json_int_t)is->load.optimizer_step));
    json_object_set_new(json, "staleness", json_integer((json_int_t)is->staleness));
    json_object_set_new(json, "kv_pages", json_integer(is->hello.kv_pages));
    json_object_set_new(json, "kv_pages_used", json_integer(is->load.kv_taken));
    return json;
}

json_t *hzp_replicas_json(const struct hzp_engine *engine)
{
    struct hzp_front_rank is;
    if (!engine->front)
        return NULL;
    json_t *list = json_array();
    for (int r = 0; hzp_front_rank(engine->front, r, &is) == HZP_OK; r++)
        json_array_append_new(list, rank_json(r, &is));
    return list;
}

int64_t hzp_replicas_staleness(const struct hzp_engine *engine, int64_t own)
{
    struct hzp_front_rank is;
    for (int r = 1; engine->front && hzp_front_rank(engine->front, r, &is) == HZP_OK; r++)
        own = HZP_MAX(own, is.staleness);
    return own;
}

int hzp_replicas_missing(const struct hzp_engine *engine, char *why, size_t size)
{
    struct hzp_front_rank is;
    for (int r = 1; engine->front && hzp_front_rank(engine->front, r, &is) == HZP_OK; r++)
        if (!is.up) {
            snprintf(why, size, "rank %d serves no requests: %s", r, is.why);
            return r;
        }
    return -1;
}

/* ---- routes ---- */

static enum MHD_Result none(struct hzp_exchange *x)
{
    return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, NULL, NULL,
                           "this server has no replicas: it was started without --replicas");
}

enum MHD_Result hzp_route_ranks(struct hzp_exchange *x)
{
    json_t *list = hzp_replicas_json(x->server->engine);
    if (!list)
        return none(x);
    return hzp_reply_json(x, MHD_HTTP_OK, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

/* The rank of "1/drain"; -1: it is none. */
static int rank_of(const char *tail, const char **ret_action)
{
    char *end = (char *)tail;
    long rank = *tail >= '0' && *tail <= '9' ? strtol(tail, &end, 10) : -1;
    *ret_action = *end == '/' ? end + 1 : "";
    return rank < HZP_LINK_RANKS_MAX ? (int)rank : -1;
}

enum MHD_Result hzp_route_rank_post(struct hzp_exchange *x)
{
    struct hzp_engine *e = x->server->engine;
    struct hzp_front_rank is;
    const char *action;
    if (!e->front)
        return none(x);
    int rank = rank_of(x->tail, &action);
    bool drain = !strcmp(action, "drain");
    if (!drain && strcmp(action, "resume"))
        return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, NULL, NULL,
                               "a rank is drained or resumed: /v1/ranks/RANK/drain, /resume");
    hzp_lock_take(&x->server->policy_lock);
    int r = hzp_front_drain(e->front, rank, drain);
    if (r == HZP_OK)
        hzp_operator_keep(e);
    hzp_lock_release(&x->server->policy_lock);
    if (r < 0)
        return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, NULL, NULL,
                               "there is no rank \"%.40s\": ranks are 0 to %d", x->tail,
                               hzp_front_ranks(e->front) - 1);
    if (e->state)
        hzp_audit_write(hzp_state_audit(e->state), x->info.key, x->info.id, action,
                        json_pack("{s:i}", "rank", rank));
    hzp_front_rank(e->front, rank, &is);
    return hzp_reply_json(x, MHD_HTTP_OK, rank_json(rank, &is));
}

/* ---- metrics ---- */

static double is_up(const struct hzp_front_rank *is)
{
    return is->up;
}

static double is_draining(const struct hzp_front_rank *is)
{
    return is->draining;
}

static double requests(const struct hzp_front_rank *is)
{
    return is->requests;
}

static double sent(const struct hzp_front_rank *is)
{
    return (double)is->sent;
}

static double moved(const struct hzp_front_rank *is)
{
    return (double)is->moved;
}

static double version(const struct hzp_front_rank *is)
{
    return (double)is->load.version;
}

static double staleness(const struct hzp_front_rank *is)
{
    return (double)is->staleness;
}

static double stale(const struct hzp_front_rank *is)
{
    return (double)is->stale;
}

static double running(const struct hzp_front_rank *is)
{
    return is->load.running;
}

static double waiting(const struct hzp_front_rank *is)
{
    return is->load.waiting;
}

static double kv_usage(const struct hzp_front_rank *is)
{
    return (double)is->load.kv_taken / HZP_MAX(is->hello.kv_pages, 1);
}

static double prompt_tokens(const struct hzp_front_rank *is)
{
    return (double)is->load.prompt_tokens;
}

static double generated_tokens(const struct hzp_front_rank *is)
{
    return (double)is->load.generated_tokens;
}

static const struct {
    const char *name, *type, *help;
    double (*value)(const struct hzp_front_rank *is);
    bool down; /* also of ranks that are not up */
} metrics[] = {
    {"hzpserve_replica_up", "gauge", "1: the rank serves requests.", is_up, true},
    {"hzpserve_replica_draining", "gauge", "1: the rank gets no new requests.", is_draining, true},
    {"hzpserve_replica_requests", "gauge", "Requests that the rank has and has not ended.",
     requests, true},
    {"hzpserve_replica_requests_total", "counter", "Requests that the rank was given.", sent, true},
    {"hzpserve_replica_moved_total", "counter",
     "Requests of the rank that began again on another one.", moved, true},
    {"hzpserve_replica_weights_version", "gauge", "The version that the rank serves.", version,
     false},
    {"hzpserve_replica_staleness_steps", "gauge",
     "Updates by which the rank's version trails the newest finished one.", staleness, false},
    {"hzpserve_replica_stale_total", "counter",
     "Versions of the rank that were seen to trail by more than one update.", stale, true},
    {"hzpserve_replica_running", "gauge", "Requests that run on the rank.", running, false},
    {"hzpserve_replica_waiting", "gauge", "Requests that wait on the rank.", waiting, false},
    {"hzpserve_replica_kv_usage", "gauge", "Part of the rank's KV pages that sequences use.",
     kv_usage, false},
    {"hzpserve_replica_prompt_tokens_total", "counter", "Prompt tokens of the rank's process.",
     prompt_tokens, false},
    {"hzpserve_replica_generated_tokens_total", "counter",
     "Tokens that the rank's process has generated.", generated_tokens, false},
};

void hzp_replicas_metrics(const struct hzp_engine *engine, const char *labels, FILE *out)
{
    if (!engine->front)
        return;
    int ranks = hzp_front_ranks(engine->front);
    struct hzp_front_rank *is = hzp_xcalloc((size_t)ranks, sizeof(*is));
    for (int r = 0; r < ranks; r++)
        hzp_front_rank(engine->front, r, &is[r]);
    for (int i = 0; i < HZP_COUNT(metrics); i++) {
        fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", metrics[i].name, metrics[i].help,
                metrics[i].name, metrics[i].type);
        for (int r = 0; r < ranks; r++)
            if (is[r].up || metrics[i].down)
                fprintf(out, "%s{%s,rank=\"%d\"} %.10g\n", metrics[i].name, labels, r,
                        metrics[i].value(&is[r]));
    }
    free(is);
}
