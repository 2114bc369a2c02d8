/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/demands.h - what a request asks of the weights that answer it
 * (serve/consistency.h): reads it from body and headers, refuses what can never be met, and says
 * why a request ended without.
 *
 *     body                header
 *     consistency         x-hzpserve-consistency
 *     min_version         x-hzpserve-min-version
 *     min_sequence        x-hzpserve-min-sequence
 *     after               x-hzpserve-after
 *     max_staleness       x-hzpserve-max-staleness
 *     weights_timeout     x-hzpserve-weights-timeout
 *     depth               x-hzpserve-depth
 *                         x-hzpserve-session
 *
 * Where both are given the field of the body counts.  min_sequence and after may both be given: the
 * newer example counts.
 *
 * Thread: pool.
 */
#pragma once

#include "api/http/wire/http.h"

/* HZP_EINVAL: text and param name the field or header.  may_shed: if it asks for no depth, it may
 * get a smaller one (--max-waiting shed-depth). */
int hzp_demands_read(struct hzp_exchange *x, const json_t *body, bool may_shed,
                     struct hzp_demands *ret, struct hzp_err_text *reterr);

/* True: this server can never meet them, and an error was answered. */
bool hzp_demands_refused(struct hzp_exchange *x, const struct hzp_demands *d, enum MHD_Result *ret);

/* The error of a request that ended as HZP_REQUEST_UNMET. */
json_t *hzp_unmet_json(const struct hzp_request *rq);

/* Sends an error; a 409 tells clients not to repeat the request. */
enum MHD_Result hzp_reply_unmet(struct hzp_exchange *x, int status, json_t *error);
