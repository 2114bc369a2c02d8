/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/ranks: ranks that serve.  POST /v1/ranks/{rank}/drain, /resume. */
#include "api/http/routes/routes.h"

#include "api/http/routes/metrics.h"

#include "mesh/launch/launch.h"

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

int hzp_route_ranks(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return hzp_reply_pack(x, "{s:s, s:o}", "object", "list", "data",
                          hzp_replicas_json(x->server->engine));
}

/* The rank of "1/drain"; -1: it is none. */
static int rank_of(const char *tail, const char **ret_action)
{
    const char *slash = strchr(tail, '/');
    int64_t rank = hzp_path_number(tail, '/');
    *ret_action = slash ? slash + 1 : "";
    return rank < HZP_LINK_RANKS_MAX ? (int)rank : -1;
}

int hzp_route_rank_post(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    struct hzp_engine *e = x->server->engine;
    struct hzp_front_rank is;
    const char *action;
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
    hzp_route_audit(x, action, json_pack("{s:i}", "rank", rank));
    hzp_front_rank(e->front, rank, &is);
    return hzp_reply_json(x, MHD_HTTP_OK, rank_json(rank, &is));
}

/* ---- metrics ---- */

static const struct {
    const char *name;
    bool down; /* also of ranks that are not up */
} metrics[] = {
    {"hzpserve_replica_up", true},
    {"hzpserve_replica_draining", true},
    {"hzpserve_replica_requests", true},
    {"hzpserve_replica_requests_total", true},
    {"hzpserve_replica_moved_total", true},
    {"hzpserve_replica_weights_version", false},
    {"hzpserve_replica_staleness_steps", false},
    {"hzpserve_replica_stale_total", true},
    {"hzpserve_replica_running", false},
    {"hzpserve_replica_waiting", false},
    {"hzpserve_replica_kv_usage", false},
    {"hzpserve_replica_prompt_tokens_total", false},
    {"hzpserve_replica_generated_tokens_total", false},
};

/* The rank's value of a metric of the table. */
static double value_of(const struct hzp_front_rank *is, int metric)
{
    const struct hzp_replica_load *load = &is->load;
    const double value[HZP_COUNT(metrics)] = {
        is->up,
        is->draining,
        is->requests,
        (double)is->sent,
        (double)is->moved,
        (double)load->version,
        (double)is->staleness,
        (double)is->stale,
        load->running,
        load->waiting,
        (double)load->kv_taken / HZP_MAX(is->hello.kv_pages, 1),
        (double)load->prompt_tokens,
        (double)load->generated_tokens,
    };
    return value[metric];
}

void hzp_replicas_metrics(struct hzp_page *page, const struct hzp_engine *engine)
{
    if (!engine->front)
        return;
    int ranks = hzp_front_ranks(engine->front);
    HZP_FREED struct hzp_front_rank *is = hzp_xcalloc((size_t)ranks, sizeof(*is));
    for (int r = 0; r < ranks; r++)
        hzp_front_rank(engine->front, r, &is[r]);
    for (int i = 0; i < HZP_COUNT(metrics); i++) {
        hzp_page_head(page, metrics[i].name);
        for (int r = 0; r < ranks; r++)
            if (is[r].up || metrics[i].down)
                fprintf(page->out, "%s{%s,rank=\"%d\"} %.10g\n", page->name, page->labels, r,
                        value_of(&is[r], i));
    }
}
