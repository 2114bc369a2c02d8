/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/transfer.h - one request at a time to a server that weights are fetched from or sent to.
 *
 * A request that the server is too busy for (429, 503, 409 with code "busy"), and one that only
 * reads and whose connection broke, is repeated some times.
 *
 * Thread: any; a call blocks.
 */
#pragma once

#include "api/client/http_client.h"

/* Takes over body, NULL: none.  *ret: the answer, the caller's, NULL after an error; ret NULL: it
 * is not wanted.  format: the route's.  HZP_EIO, or HZP_EINVAL with the server's text. */
int hzp_transfer_json(const struct hzp_http_host *server, const char *method, json_t *body,
                      json_t **ret, struct hzp_err_text *reterr, const char *format, ...)
    HZP_PRINTF(6, 7);
/* Reads at most max bytes. */
int hzp_transfer_get(const struct hzp_http_host *server, const char *route, void *ret, size_t max,
                     size_t *ret_bytes, struct hzp_err_text *reterr);
/* Sends n bytes, n > 0. */
int hzp_transfer_put(const struct hzp_http_host *server, const char *route, const void *data,
                     size_t n, struct hzp_err_text *reterr);
