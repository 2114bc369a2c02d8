/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/server.h"

#include "api/http/routes/feedback.h"
#include "api/http/routes/routes.h"
#include "api/http/routes/taught.h"
#include "api/learn/fingerprint.h"
#include "base/log.h"

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
    hzp_rollouts_go_on(engine);
    struct hzp_taught *taught = open_taught(engine);
    struct hzp_feedback *feedback = hzp_feedback_create(engine);
    int r = hzp_server_start(&(struct hzp_server_config){.settings = settings,
                                                         .port = port,
                                                         .routes = hzp_routes,
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
                                                        .routes = hzp_routes,
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
