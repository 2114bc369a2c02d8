/* SPDX-License-Identifier: Apache-2.0 */
/* api/relay/relay.h - holds clients' connections over the death of rank 0.
 *
 * With `serve --ranks N --restart R` clients do not speak to rank 0 but to a process of its own,
 * the relay, which forwards every request to rank 0 over a Unix socket:
 *
 *     client -> http.h (the door, bodies, keys, origins) -> relay.c -> upstream.c -> rank 0
 *     client <- relay.c <- incoming.h <- upstream.c <- rank 0
 *
 * When rank 0 is lost, a request that has no answer yet is sent again to the next rank 0, and a
 * stream goes on behind the tokens that its client has (api/http/routes/answer.h).  The launcher
 * keeps rank 0's socket open (mesh/launch/launch.h): requests wait there until the next rank 0
 * accepts them.  When the socket is closed there will be none, and the answer is a 503.
 *
 * What is sent again: GET; whatever the key for completions allows; PATCH of the policy, which says
 * what shall be; examples, which are accepted once because each body has an idempotency key.  Other
 * requests may have been done when rank 0 was lost: the client gets a 503 that says so.  A request
 * with which rank 0 was lost LOSSES_MAX times in a row without a token gets a 503, too: it may be
 * what ends it.
 *
 * A request that was sent again and finds no room (429, 503) is sent again for a minute: it had
 * been accepted.
 *
 * GET /health is answered here where rank 0 does not within a second, because it hangs or is being
 * replaced: "degraded", or 503 where none has ever answered.
 *
 * A client that has closed its side, and so sends no more, still gets an answer that comes within
 * three seconds, but for completions, embeddings and waiting for examples: those end then, as they
 * do without a relay.
 *
 * Bounds: of http.h; a request's body is held until its answer has ended; BODY_MAX bytes of an
 * answer are held for a client that does not read; the journal of a stream takes about 50 bytes a
 * token.
 *
 * Thread: create, destroy: main; hzp_relay_answer: I/O threads.  "hzp-relay" owns the connections
 * to rank 0.
 */
#pragma once

#include "api/http/wire/http.h"

struct hzp_relay;

/* path: rank 0's socket; copied.  HZP_EINVAL: it is too long; HZP_EIO: no descriptor or thread. */
int hzp_relay_create(const char *path, struct hzp_relay **ret, struct hzp_err_text *reterr);
/* Every request that has no answer gets a 503, also those that come later.  Call it before the
 * server stops. */
void hzp_relay_stop(struct hzp_relay *relay);
/* After the server that forwards to it has stopped.  NULL: no effect. */
void hzp_relay_destroy(struct hzp_relay *relay);

/* What hzp_server_start_forwarding is given. */
struct hzp_forwarder hzp_relay_forward(struct hzp_relay *relay);
