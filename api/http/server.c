/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/server.h"

#include "api/http/routes/feedback.h"
#include "api/http/routes/routes.h"
#include "api/http/routes/operator.h"
#include "api/http/routes/taught.h"
#include "api/learn/fingerprint.h"
#include "base/arena.h"
#include "base/log.h"

#include <stdlib.h>

/* Method, path, right, pooled, kind, answer, feed. */
static const struct hzp_route routes[] = {
    {"POST", "/v1/completions", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_STREAM, hzp_route_completions,
     NULL},
    {"POST", "/v1/chat/completions", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_STREAM, hzp_route_chat,
     NULL},
    {"POST", "/v1/responses", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_STREAM, hzp_route_responses,
     NULL},
    {"POST", "/v1/messages", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_STREAM, hzp_route_messages, NULL},
    {"POST", "/v1/messages/count_tokens", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON,
     hzp_route_count_tokens, NULL},
    {"POST", "/v1/embeddings", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_LATE, hzp_route_embeddings,
     NULL},
    {"POST", "/v1/feedback", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_feedback, NULL},
    {"GET", "/v1/models", HZP_RIGHT_COMPLETE, false, HZP_ANSWER_SOON, hzp_route_models, NULL},
    {"GET", "/v1/models/", HZP_RIGHT_COMPLETE, false, HZP_ANSWER_SOON, hzp_route_model, NULL},
    {"GET", "/v1/weights", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_weights, NULL},
    {"GET", "/v1/weights/", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_version_get, NULL},
    {"POST", "/v1/weights/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_version_post, NULL},
    {"DELETE", "/v1/weights/names/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_name_delete,
     NULL},
    {"GET", "/v1/replication", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_replication, NULL},
    {"GET", "/v1/replication/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_replication_get,
     NULL},
    {"POST", "/v1/replication", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_replication_begin,
     NULL},
    {"PUT", "/v1/replication/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_replication_put,
     NULL},
    {"POST", "/v1/replication/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON,
     hzp_route_replication_activate, NULL},
    {"GET", "/v1/ranks", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_ranks, NULL},
    {"POST", "/v1/ranks/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_rank_post, NULL},
    {"GET", "/v1/jobs/", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_job, NULL},
    {"GET", "/v1/policy", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_policy, NULL},
    {"PATCH", "/v1/policy", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_policy_patch, NULL},
    {"POST", "/v1/fine_tuning/examples", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_examples,
     hzp_feed_examples},
    {"GET", "/v1/fine_tuning/examples", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON,
     hzp_route_examples_list, NULL},
    {"GET", "/v1/fine_tuning/examples/", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON,
     hzp_route_example_get, NULL},
    {"DELETE", "/v1/fine_tuning/examples/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON,
     hzp_route_example_delete, NULL},
    {"GET", "/v1/lessons", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_lessons, NULL},
    {"GET", "/v1/lessons/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_lesson, NULL},
    {"POST", "/v1/undo", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_undo, NULL},
    {"POST", "/v1/rollouts", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_rollouts_post, NULL},
    {"GET", "/v1/rollouts", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_rollouts, NULL},
    {"GET", "/v1/rollouts/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_rollout, NULL},
    {"DELETE", "/v1/rollouts/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_rollout_delete,
     NULL},
    {"PUT", "/v1/samples/", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_sample_reward, NULL},
    {"POST", "/tokenize", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_tokenize, NULL},
    {"POST", "/detokenize", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_detokenize, NULL},
    {"GET", "/tokenizer_info", HZP_RIGHT_COMPLETE, true, HZP_ANSWER_SOON, hzp_route_tokenizer_info,
     NULL},
    {"GET", "/debug/timeline", HZP_RIGHT_TEACH, true, HZP_ANSWER_SOON, hzp_route_timeline, NULL},
    {"GET", "/", HZP_RIGHT_NONE, false, HZP_ANSWER_SOON, hzp_route_root, NULL},
    {"GET", "/load", HZP_RIGHT_COMPLETE, false, HZP_ANSWER_SOON, hzp_route_load, NULL},
    {"GET", "/health", HZP_RIGHT_NONE, false, HZP_ANSWER_SOON, hzp_route_health, NULL},
    {"GET", "/ping", HZP_RIGHT_NONE, false, HZP_ANSWER_SOON, hzp_route_health, NULL},
    {"POST", "/ping", HZP_RIGHT_NONE, false, HZP_ANSWER_SOON, hzp_route_health, NULL},
    {"GET", "/version", HZP_RIGHT_NONE, false, HZP_ANSWER_SOON, hzp_route_version, NULL},
    {"GET", "/metrics", HZP_RIGHT_NONE, true, HZP_ANSWER_SOON, hzp_route_metrics, NULL},
    {"GET", "/openapi.json", HZP_RIGHT_NONE, true, HZP_ANSWER_SOON, hzp_route_openapi, NULL},
    {0},
};

static struct hzp_taught *open_taught(const struct hzp_engine *engine)
{
    char model[HZP_FINGERPRINT_SIZE];
    struct hzp_err_text err;
    int64_t forgotten = 0;
    int32_t n = 0;
    hzp_fingerprint_shapes(hzp_assembly_whole(&engine->parts), engine->parts.tok, model);
    struct hzp_session *session = hzp_xcalloc(HZP_SESSIONS_MAX, sizeof(*session));
    if (engine->state)
        n = hzp_state_sessions(engine->state, session, HZP_SESSIONS_MAX, &forgotten, &err);
    if (n < 0) { /* each counts as having taught everything */
        struct hzp_state_stats stats;
        hzp_state_read_stats(engine->state, &stats);
        hzp_log(HZP_LOG_WARN, "http", "sessions of earlier runs are not known: %s", err.text);
        forgotten = stats.last_sequence_number;
    }
    struct hzp_taught *taught = hzp_taught_create(model, forgotten);
    for (int32_t i = n - 1; i >= 0; i--) /* the one with the newest example is forgotten last */
        hzp_session_restore(taught, &session[i]);
    free(session);
    return taught;
}

int hzp_http_start(const struct hzp_http_settings *settings, struct hzp_port *port,
                   struct hzp_engine *engine, struct hzp_metrics *metrics, struct hzp_server **ret,
                   struct hzp_err_text *reterr)
{
    hzp_operator_restore(engine);
    struct hzp_taught *taught = open_taught(engine);
    struct hzp_feedback *feedback = hzp_feedback_create(engine->trials);
    int r = hzp_server_start(&(struct hzp_server_config){.settings = settings,
                                                         .port = port,
                                                         .routes = routes,
                                                         .engine = engine,
                                                         .metrics = metrics,
                                                         .count = hzp_metrics_http,
                                                         .taught = taught,
                                                         .feedback = feedback},
                             ret, reterr);
    if (r < 0) {
        hzp_taught_destroy(taught);
        hzp_feedback_destroy(feedback);
    }
    return r;
}

int hzp_http_forward(const struct hzp_http_settings *settings, struct hzp_port *port,
                     const struct hzp_forwarder *forward, struct hzp_metrics *metrics,
                     struct hzp_server **ret, struct hzp_err_text *reterr)
{
    return hzp_server_start(&(struct hzp_server_config){.settings = settings,
                                                        .port = port,
                                                        .routes = routes,
                                                        .forward = *forward,
                                                        .metrics = metrics,
                                                        .count = hzp_metrics_http},
                            ret, reterr);
}

void hzp_http_stop(struct hzp_server *server, uint64_t wait_ns)
{
    if (!server)
        return;
    struct hzp_taught *taught = server->taught;
    struct hzp_feedback *feedback = server->feedback;
    hzp_server_stop(server, wait_ns);
    hzp_taught_destroy(taught);
    hzp_feedback_destroy(feedback);
}
