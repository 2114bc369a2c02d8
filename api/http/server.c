/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/server.h"

#include "api/http/routes/feedback.h"
#include "api/http/routes/field_table.h"
#include "api/http/routes/route.h"
#include "api/http/routes/routes.h"
#include "api/http/routes/operator.h"
#include "api/http/routes/taught.h"
#include "api/learn/fingerprint.h"
#include "base/log.h"

#define COMPLETE   HZP_RIGHT_COMPLETE
#define TEACH      HZP_RIGHT_TEACH
#define UP         HZP_NEEDS_UP
#define STATE      HZP_NEEDS_STATE
#define ROLLOUTS   HZP_NEEDS_ROLLOUTS
#define RANKS      HZP_NEEDS_RANKS
#define MESH       HZP_NEEDS_MESH
#define BODY       HZP_NEEDS_BODY
#define MAYBE_BODY HZP_TAKES_BODY

/* Method, path, what it does, handler, and what is not zero of the rest. */
static const struct hzp_route routes[] = {
    {"POST", "/v1/completions", "Complete a prompt", hzp_route_completion, .right = COMPLETE,
     .kind = HZP_ANSWER_STREAM, .body = &hzp_fields_completions},
    {"POST", "/v1/chat/completions", "Answer a conversation", hzp_route_completion,
     .right = COMPLETE, .kind = HZP_ANSWER_STREAM, .body = &hzp_fields_chat},
    {"POST", "/v1/responses", "Answer a conversation, in items", hzp_route_completion,
     .right = COMPLETE, .kind = HZP_ANSWER_STREAM, .body = &hzp_fields_responses},
    {"POST", "/v1/messages", "Answer a conversation, in Anthropic's shape", hzp_route_completion,
     .right = COMPLETE, .kind = HZP_ANSWER_STREAM, .body = &hzp_fields_messages},
    {"POST", "/v1/messages/count_tokens",
     "Count the tokens of a conversation, in Anthropic's shape", hzp_route_count_tokens,
     .right = COMPLETE, .body = &hzp_fields_count_tokens},
    {"POST", "/v1/embeddings", "Texts as vectors", hzp_route_completion, .right = COMPLETE,
     .kind = HZP_ANSWER_LATE, .body = &hzp_fields_embeddings},
    {"POST", "/v1/feedback", "Score an answer, or learn from it", hzp_route_feedback,
     .right = COMPLETE, .needs = BODY, .body = &hzp_fields_feedback},
    {"GET", "/v1/models", "The one model, as a list", hzp_route_models, .right = COMPLETE,
     .at_once = true},
    {"GET", "/v1/models/", "The one model that is served", hzp_route_model, .right = COMPLETE,
     .at_once = true},
    {"GET", "/v1/weights", "Versions of the weights", hzp_route_weights, .right = COMPLETE,
     .query = hzp_query_weights},
    {"GET", "/v1/weights/", "One version, or the list of names", hzp_route_version_get,
     .right = COMPLETE, .needs = STATE},
    {"POST", "/v1/weights/",
     "Activate, name or export a version, or end its trial: {id} is VERSION/activate, "
     "/name, /export, /promote or /drop",
     hzp_route_version_post, .right = TEACH, .needs = UP | STATE | MAYBE_BODY,
     .body = &hzp_fields_version, .query = hzp_query_job},
    {"DELETE", "/v1/weights/names/", "Take a version's name away", hzp_route_name_delete,
     .right = TEACH, .needs = STATE},
    {"GET", "/v1/replication", "What weights must agree with to be sent here",
     hzp_route_replication, .right = TEACH, .needs = STATE},
    {"GET", "/v1/replication/",
     "Parts of a version: {id} is VERSION/manifest, /units/N or /files/NAME",
     hzp_route_replication_get, .right = TEACH, .needs = STATE, .query = hzp_query_offset},
    {"POST", "/v1/replication", "Begin to send weights", hzp_route_replication_begin,
     .right = TEACH, .needs = UP | STATE | BODY, .body = &hzp_fields_manifest},
    {"PUT", "/v1/replication/", "Bytes of a unit: {id} is CHECKSUM/units/N",
     hzp_route_replication_put, .right = TEACH, .needs = UP | STATE, .query = hzp_query_offset},
    {"POST", "/v1/replication/", "Let weights serve that were sent: {id} is CHECKSUM/activate",
     hzp_route_replication_activate, .right = TEACH, .needs = UP | STATE | MAYBE_BODY,
     .body = &hzp_fields_push, .query = hzp_query_job},
    {"GET", "/v1/ranks", "Ranks that serve, with --replicas", hzp_route_ranks, .right = COMPLETE,
     .needs = RANKS},
    {"POST", "/v1/ranks/",
     "Give a rank no more requests, or some again: {id} is RANK/drain or RANK/resume",
     hzp_route_rank_post, .right = TEACH, .needs = RANKS},
    {"GET", "/v1/mesh", "Sites that average their weights with this one's, with --mesh",
     hzp_route_mesh, .right = TEACH, .needs = MESH},
    {"GET", "/v1/jobs/", "Progress of a job", hzp_route_job, .right = COMPLETE, .needs = STATE},
    {"GET", "/v1/policy", "Latency goals and training's share", hzp_route_policy,
     .right = COMPLETE},
    {"PATCH", "/v1/policy", "Change latency goals and training's share", hzp_route_policy_patch,
     .right = TEACH, .needs = BODY, .body = &hzp_fields_policy},
    {"POST", "/v1/fine_tuning/examples", "Examples to learn from", hzp_route_examples,
     .right = TEACH, .needs = UP | STATE, .body = &hzp_fields_example, .query = hzp_query_examples,
     .feed = hzp_feed_examples},
    {"GET", "/v1/fine_tuning/examples", "How far examples are learned", hzp_route_examples_list,
     .right = COMPLETE, .needs = STATE},
    {"GET", "/v1/fine_tuning/examples/", "What became of an example", hzp_route_example_get,
     .right = COMPLETE, .needs = STATE},
    {"DELETE", "/v1/fine_tuning/examples/", "Forget an example", hzp_route_example_delete,
     .right = TEACH, .needs = UP | STATE, .query = hzp_query_job},
    {"GET", "/v1/lessons", "What was taught, and what became of it", hzp_route_lessons,
     .right = COMPLETE, .needs = STATE, .query = hzp_query_lessons},
    {"GET", "/v1/lessons/", "One lesson: its texts, and what became of it", hzp_route_lesson,
     .right = TEACH, .needs = STATE},
    {"POST", "/v1/undo", "Take a lesson back, or go back to a version", hzp_route_undo,
     .right = TEACH, .needs = UP | STATE | MAYBE_BODY, .body = &hzp_fields_undo,
     .query = hzp_query_job},
    {"POST", "/v1/rollouts", "Learn from answers that are rewarded", hzp_route_rollouts_post,
     .right = TEACH, .needs = UP | ROLLOUTS | BODY, .body = &hzp_fields_rollout},
    {"GET", "/v1/rollouts", "Jobs that do", hzp_route_rollouts, .right = TEACH, .needs = ROLLOUTS},
    {"GET", "/v1/rollouts/", "One of them, with its curves", hzp_route_rollout, .right = TEACH,
     .needs = ROLLOUTS},
    {"DELETE", "/v1/rollouts/", "Cancel one", hzp_route_rollout_delete, .right = TEACH,
     .needs = ROLLOUTS},
    {"GET", "/v1/samples", "Answers of rollouts, for a judge or a trainer elsewhere",
     hzp_route_samples, .right = TEACH, .needs = ROLLOUTS, .query = hzp_query_samples},
    {"PUT", "/v1/samples/",
     "A column of such an answer: {id} is SAMPLE/reward, /advantage or /reference_logprobs",
     hzp_route_sample_put, .right = TEACH, .needs = ROLLOUTS | BODY, .body = &hzp_fields_sample},
    {"POST", "/tokenize", "Text to tokens", hzp_route_tokenize, .right = COMPLETE,
     .body = &hzp_fields_tokenize},
    {"POST", "/detokenize", "Tokens to text", hzp_route_detokenize, .right = COMPLETE,
     .body = &hzp_fields_detokenize},
    {"GET", "/tokenizer_info", "The tokenizer's configuration", hzp_route_tokenizer_info,
     .right = COMPLETE},
    {"GET", "/debug/timeline", "What all ranks did in the last seconds, as a Chrome trace",
     hzp_route_timeline, .right = TEACH, .query = hzp_query_timeline},
    {"GET", "/", "A line of text", hzp_route_root, .at_once = true, .type = "text/plain"},
    {"GET", "/load", "Requests being answered", hzp_route_load, .right = COMPLETE, .at_once = true},
    {"GET", "/health", "Whether requests are taken", hzp_route_health, .at_once = true},
    {"GET", "/ping", "As /health", hzp_route_health, .at_once = true},
    {"POST", "/ping", "As /health", hzp_route_health, .at_once = true},
    {"GET", "/version", "The program's version", hzp_route_version, .at_once = true},
    {"GET", "/metrics", "Figures for Prometheus", hzp_route_metrics,
     .type = "text/plain; version=0.0.4"},
    {"GET", "/openapi.json", "This description", hzp_route_openapi, .right = HZP_RIGHT_NONE},
    {0},
};

static struct hzp_taught *open_taught(const struct hzp_engine *engine)
{
    char model[HZP_FINGERPRINT_SIZE];
    struct hzp_err_text err;
    int64_t forgotten = 0;
    int32_t n = 0;
    hzp_fingerprint_shapes(hzp_assembly_whole(&engine->parts), engine->parts.tok, model);
    HZP_FREED struct hzp_session *session = hzp_xcalloc(HZP_SESSIONS_MAX, sizeof(*session));
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
    return taught;
}

int hzp_http_start(const struct hzp_http_settings *settings, struct hzp_port *port,
                   struct hzp_engine *engine, struct hzp_metrics *metrics, struct hzp_server **ret,
                   struct hzp_err_text *reterr)
{
    hzp_operator_restore(engine);
    struct hzp_taught *taught = open_taught(engine);
    struct hzp_feedback *feedback =
        hzp_feedback_create(engine->trials, (size_t)engine->config.settings->learning.receipts);
    int r = hzp_server_start(&(struct hzp_server_config){.settings = settings,
                                                         .port = port,
                                                         .routes = routes,
                                                         .answer = hzp_route_answer,
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
