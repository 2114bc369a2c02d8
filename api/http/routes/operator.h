/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/operator.h - what an operator has set over HTTP: the policy, ranks that are
 * drained.  The launcher of several ranks keeps it over the death of rank 0 (mesh/launch/life.h),
 * as one JSON object:
 *
 *     {"policy": a body of PATCH /v1/policy, "drained": [ranks]}
 *
 * Without such a launcher nothing is kept.
 *
 * Thread: keep: any, under the server's policy lock; restore: main, before requests come.
 */
#pragma once

#include "api/http/wire/http.h"

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
