/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/serve_relay.c - `serve` as the relay: holds clients' connections over the death of rank 0
 * (api/relay/relay.h).
 *
 * The launcher stops it when all ranks have ended.  A signal from elsewhere, as when the launcher
 * was killed, lets requests in flight end within --drain-timeout. */
#include "api/cli/commands.h"
#include "api/cli/signals.h"
#include "api/http/server.h"
#include "api/relay/relay.h"
#include "base/log.h"
#include "mesh/launch/launch.h"

#include <sys/resource.h>

static const uint64_t SEND_NS = 5000000000ull; /* time limit for sending the last answers */

static void reload(struct hzp_server *server)
{
    struct hzp_err_text err = {0};
    if (hzp_auth_reload(server->auth, &err) < 0)
        hzp_log(HZP_LOG_ERROR, "ranks", "relay: SIGHUP: %s: the keys stay as they were", err.text);
}

/* A request takes two descriptors here.  Clients' connections that took all would wait for those to
 * rank 0 for ever, so no more are accepted than there are descriptors for both. */
static void bound_connections(struct hzp_http_settings *http)
{
    enum { OTHER_FILES = 64 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    int64_t files = (int64_t)HZP_MIN(limit.rlim_cur, (rlim_t)INT32_MAX);
    int64_t most = HZP_MAX((files - OTHER_FILES) / 2 - HZP_DOOR_RESERVE, 1);
    if (most >= http->connections_max)
        return;
    hzp_log(HZP_LOG_WARN, "ranks",
            "relay: only %lld descriptors may be open, enough for --max-connections %lld, not "
            "%lld; raise the limit (ulimit -Hn)",
            (long long)files, (long long)most, (long long)http->connections_max);
    http->connections_max = most;
}

static void run(struct hzp_server *server, const struct hzp_signals *signals, double limit_s)
{
    enum hzp_signal signal;
    while (!hzp_signal_stops(signal = hzp_signals_next(signals, 1000000000ull)))
        if (signal == HZP_SIGNAL_RELOAD)
            reload(server);
    uint64_t end = hzp_now_ns() + (uint64_t)(limit_s * 1e9);
    while (atomic_load(&server->active) && hzp_now_ns() < end)
        if (hzp_signal_stops(hzp_signals_next(signals, 10000000ull)))
            return;
}

int hzp_cmd_serve_relay(const struct hzp_options *options, const char *path)
{
    struct hzp_http_settings http = options->http;
    struct hzp_signals signals;
    struct hzp_port port = {.fd = -1};
    struct hzp_relay *relay = NULL;
    struct hzp_server *server = NULL;
    struct hzp_err_text err = {0};
    int kept = hzp_launch_kept();
    hzp_life_begin(HZP_LIFE_RELAY);
    hzp_signals_take(&signals);
    signals.terminal = false; /* a SIGHUP is the launcher's (mesh/launch/processes.c) */
    bound_connections(&http);
    struct hzp_metrics *metrics = hzp_metrics_create();
    int r = kept < 0 ? hzp_fail(&err, HZP_EINVAL, "the relay has no socket from its launcher")
                     : hzp_relay_create(path, &relay, &err);
    if (r == HZP_OK) {
        struct hzp_forwarder forward = hzp_relay_forward(relay);
        hzp_port_take(&http, kept, NULL, &port);
        r = hzp_http_forward(&http, &port, &forward, metrics, &server, &err);
    }
    if (r == HZP_OK) {
        run(server, &signals, (double)options->serve.drain_seconds);
        hzp_relay_stop(relay);
        hzp_http_stop(server, SEND_NS);
    }
    hzp_relay_destroy(relay);
    hzp_port_close(&port);
    hzp_metrics_destroy(metrics);
    return r < 0 ? hzp_command_failed(r, &err) : 0;
}
