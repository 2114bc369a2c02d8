/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/server.h - the HTTP server as commands start it: what is on the wire (wire/http.h), the
 * table of routes, and what the routes keep between requests.
 *
 * Thread: the one that starts the server also stops it.
 */
#pragma once

#include "api/http/routes/metrics.h"
#include "api/http/wire/http.h"

/* Starts to answer on the bound port; all pointers must outlive the server.  HZP_EIO: no thread or
 * descriptor is left. */
int hzp_http_start(const struct hzp_http_settings *settings, struct hzp_port *port,
                   struct hzp_engine *engine, struct hzp_metrics *metrics, struct hzp_server **ret,
                   struct hzp_err_text *reterr);

/* The same without an engine: requests are checked and forwarded (api/relay/relay.h). */
int hzp_http_forward(const struct hzp_http_settings *settings, struct hzp_port *port,
                     const struct hzp_forwarder *forward, struct hzp_metrics *metrics,
                     struct hzp_server **ret, struct hzp_err_text *reterr);

/* Refuses new connections, waits (at most so long) until answers in progress are sent, closes.
 * NULL: no effect. */
void hzp_http_stop(struct hzp_server *server, uint64_t wait_ns);
