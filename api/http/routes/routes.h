/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/routes.h - the answers of all routes, each in a file of this folder.  Which
 * method and path leads to which: fields.json, of which the build makes field_table.c.
 *
 * Thread: as struct hzp_route says, by the row of the table.
 */
#pragma once

#include "api/http/wire/http.h"
#include "api/learn/versions.h"

typedef int hzp_route_of(struct hzp_exchange *x, struct hzp_err_text *reterr);
hzp_route_of hzp_route_completion, hzp_route_count_tokens, hzp_route_feedback, hzp_route_tokenize,
    hzp_route_detokenize, hzp_route_tokenizer_info, hzp_route_load, hzp_route_models,
    hzp_route_model, hzp_route_timeline, hzp_route_health, hzp_route_version, hzp_route_root,
    hzp_route_openapi, hzp_route_metrics, hzp_route_weights, hzp_route_ranks, hzp_route_rank_post,
    hzp_route_policy, hzp_route_policy_patch, hzp_route_examples, hzp_route_examples_list,
    hzp_route_lessons, hzp_route_lesson, hzp_route_undo, hzp_route_version_get,
    hzp_route_version_post, hzp_route_name_delete, hzp_route_replication, hzp_route_replication_get,
    hzp_route_replication_begin, hzp_route_replication_put, hzp_route_replication_activate,
    hzp_route_job, hzp_route_mesh, hzp_route_example_get, hzp_route_example_delete,
    hzp_route_rollouts_post, hzp_route_rollouts, hzp_route_rollout, hzp_route_rollout_delete,
    hzp_route_samples, hzp_route_sample_put;
bool hzp_feed_examples(struct hzp_exchange *x);

/* Begins the job that the body of POST /v1/rollouts asks for, whose fields were checked
 * (hzp_fields_check).  Errors of hzp_rollouts_add.  Thread: any. */
int hzp_rollouts_post(struct hzp_engine *engine, const json_t *body, uint64_t *ret_id,
                      struct hzp_err_text *reterr);

extern const struct hzp_route hzp_routes[]; /* the last row has no path */
extern const char hzp_openapi[];            /* the routes and their fields, OpenAPI 3.1 */

struct hzp_page;
/* Goes on with the rollouts of an earlier server. */
void hzp_rollouts_go_on(struct hzp_engine *engine);

/* Writes the metrics of rollouts. */
void hzp_rollouts_metrics(struct hzp_page *page, const struct hzp_engine *engine);

/* ---- route.c: what handlers of routes share: the checks that come before them, the arguments of
 * their paths, audit lines, answers that wait.
 *
 * Thread: as the handler's, where nothing else is said. */

/* The key that makes a repeated body recognisable; *ret NULL: it has none.  HZP_EINVAL. */
int hzp_read_key(struct hzp_exchange *x, const char **ret, struct hzp_err_text *reterr);

/* Checks what the exchange's route needs (hzp_route.needs), its arguments against hzp_route.query
 * and its body against hzp_route.body, and calls its handler. */
enum MHD_Result hzp_route_answer(struct hzp_exchange *x);

/* The value of an argument of the route, which hzp_route_answer() has checked; absent: the default
 * that the table of fields has, or the highest value if it has none. */
int64_t hzp_query_int(const struct hzp_exchange *x, const char *name);
double hzp_query_number(const struct hzp_exchange *x, const char *name);

/* The whole number that a text is, up to `end`, which follows it; -1: it is none. */
int64_t hzp_path_number(const char *text, char end);

/* 404: the path's tail leads nowhere. */
enum MHD_Result hzp_reply_no_route(struct hzp_exchange *x);

/* Writes an audit line, if there is a state directory; takes over what. */
void hzp_route_audit(struct hzp_exchange *x, const char *action, json_t *what);

/* hzp_exchange.resume of an exchange that is woken when its answer is there. */
bool hzp_keep_waiting(struct hzp_exchange *x);

/* ---- answers that wait ----
 *
 * The exchange is parked; the notifying thread looks again and again whether there is an answer. */

struct hzp_waiting {
    struct hzp_exchange *x;
    struct hzp_note note;
    uint64_t end_ns;
    _Atomic bool left; /* the client disconnected */
    /* Notifying thread.  over: nothing more is to be waited for, because the time has passed, the
     * client has left or the engine has ended.  False, unless over: it looks again later.  True: it
     * has answered, and *ret is the answer's result; if the client has left it must not answer. */
    bool (*look)(struct hzp_waiting *w, bool left, bool over, enum MHD_Result *ret);
};

/* Begins to wait, for so many seconds at most; returns what the handler has to return.  w is the
 * first member of an allocated object, zeroed but for its owner's fields; it is freed at the end.
 */
enum MHD_Result hzp_wait(struct hzp_exchange *x, double seconds, struct hzp_waiting *w,
                         bool (*look)(struct hzp_waiting *, bool, bool, enum MHD_Result *));

/* ---- replicas_route.c: what is shown of ranks that serve (api/front/front.h).
 *
 * Thread: any. */

/* The ranks as an array of objects; NULL: this process serves alone. */
json_t *hzp_replicas_json(const struct hzp_engine *engine);

/* The largest staleness of any rank that serves; at least `own`, rank 0's. */
int64_t hzp_replicas_staleness(const struct hzp_engine *engine, int64_t own);

/* The first rank that should serve and does not, and why; -1: none. */
int hzp_replicas_missing(const struct hzp_engine *engine, char *why, size_t size);

/* Writes the metrics of ranks, a line for each. */
struct hzp_page;
void hzp_replicas_metrics(struct hzp_page *page, const struct hzp_engine *engine);

/* ---- versions_route.c: a version as JSON, and where it is kept.
 *
 * Thread: any. */

/* What is on disk and has a name, read once for many versions. */
struct hzp_places {
    struct hzp_weights *weights;
    const struct hzp_sites *sites;      /* NULL: no --mesh */
    struct hzp_logged_checkpoint *kept; /* [keeps] */
    struct hzp_version_name *name;      /* [names] */
    int32_t keeps, names;
    uint64_t original; /* the version of that name; 0: none is known */
    int64_t most;      /* the largest number up to which all examples can have been learned */
};
int hzp_places_read(const struct hzp_engine *engine, struct hzp_places *ret,
                    struct hzp_err_text *reterr);
void hzp_places_fini(struct hzp_places *places);

/* null: < 0. */
json_t *hzp_through_json(int64_t through);

/* What GET /v1/weights says of a version. */
json_t *hzp_version_json(const struct hzp_version_record *record, const struct hzp_places *places);

/* As hzp_reply_fail, but what cannot be now is a 409, which clients need not send again. */
enum MHD_Result hzp_reply_conflict(struct hzp_exchange *x, int code,
                                   const struct hzp_err_text *err);
enum MHD_Result hzp_reply_job(struct hzp_exchange *x, const struct hzp_version_job *job);
/* Pool: answers when a job has ended, or after ?timeout= seconds. */
int hzp_job_wait(struct hzp_exchange *x, uint64_t id);
/* Pool: appoints the job, writes an audit line with `what`, which is taken over, and answers when
 * the job has ended, or after ?timeout= seconds. */
int hzp_job_run(struct hzp_exchange *x, const struct hzp_version_job *asked, const char *action,
                json_t *what, struct hzp_err_text *reterr);

/* ---- operator.c: what an operator has set over HTTP: the policy, ranks that are drained.  The
 * launcher of several ranks keeps it over the death of rank 0 (mesh/launch/launch.h),
 * as one JSON object:
 *
 *     {"policy": a body of PATCH /v1/policy, "drained": [ranks]}
 *
 * Without such a launcher nothing is kept.
 *
 * Thread: keep: any, under the server's policy lock; restore: main, before requests come. */

/* Keeps what is set now. */
void hzp_operator_keep(struct hzp_engine *engine);

/* A new rank 0: sets what was kept, and logs it. */
void hzp_operator_restore(struct hzp_engine *engine);

/* The policy as a body of PATCH /v1/policy. */
json_t *hzp_policy_kept(struct hzp_engine *engine);
/* Sets what such a body says, whole or not at all.  HZP_EINVAL as PATCH answers; *ret_staleness:
 * the bound that it sets, -1: none. */
int hzp_policy_set(struct hzp_engine *engine, const json_t *body, int64_t *ret_staleness,
                   struct hzp_err_text *reterr);
