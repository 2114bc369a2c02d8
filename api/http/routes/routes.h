/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/routes.h - the answers of all routes, each in a file of this folder.  Which
 * method and path leads to which: fields.json, of which the build makes field_table.c.
 *
 * Thread: as struct hzp_route says, by the row of the table.
 */
#pragma once

#include "api/http/wire/http.h"

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
