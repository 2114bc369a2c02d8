/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/routes.h - the answers of all routes, each in a file of this folder.  Which
 * method and path leads to which: the table in api/http/server.c.
 *
 * Thread: as struct hzp_route says, by the row of the table.
 */
#pragma once

#include "api/http/wire/http.h"

enum MHD_Result hzp_route_completions(struct hzp_exchange *x);
enum MHD_Result hzp_route_chat(struct hzp_exchange *x);
enum MHD_Result hzp_route_responses(struct hzp_exchange *x);
enum MHD_Result hzp_route_messages(struct hzp_exchange *x);
enum MHD_Result hzp_route_count_tokens(struct hzp_exchange *x);
enum MHD_Result hzp_route_embeddings(struct hzp_exchange *x);
enum MHD_Result hzp_route_feedback(struct hzp_exchange *x);
enum MHD_Result hzp_route_tokenize(struct hzp_exchange *x);
enum MHD_Result hzp_route_detokenize(struct hzp_exchange *x);
enum MHD_Result hzp_route_tokenizer_info(struct hzp_exchange *x);
enum MHD_Result hzp_route_load(struct hzp_exchange *x);
enum MHD_Result hzp_route_models(struct hzp_exchange *x);
enum MHD_Result hzp_route_model(struct hzp_exchange *x);
enum MHD_Result hzp_route_timeline(struct hzp_exchange *x);
enum MHD_Result hzp_route_health(struct hzp_exchange *x);
enum MHD_Result hzp_route_version(struct hzp_exchange *x);
enum MHD_Result hzp_route_root(struct hzp_exchange *x);
enum MHD_Result hzp_route_openapi(struct hzp_exchange *x);
enum MHD_Result hzp_route_metrics(struct hzp_exchange *x);
enum MHD_Result hzp_route_weights(struct hzp_exchange *x);
enum MHD_Result hzp_route_ranks(struct hzp_exchange *x);
enum MHD_Result hzp_route_rank_post(struct hzp_exchange *x);
enum MHD_Result hzp_route_policy(struct hzp_exchange *x);
enum MHD_Result hzp_route_policy_patch(struct hzp_exchange *x);
enum MHD_Result hzp_route_examples(struct hzp_exchange *x);
enum MHD_Result hzp_route_examples_list(struct hzp_exchange *x);
enum MHD_Result hzp_route_lessons(struct hzp_exchange *x);
enum MHD_Result hzp_route_lesson(struct hzp_exchange *x);
enum MHD_Result hzp_route_undo(struct hzp_exchange *x);
enum MHD_Result hzp_route_version_get(struct hzp_exchange *x);
enum MHD_Result hzp_route_version_post(struct hzp_exchange *x);
enum MHD_Result hzp_route_name_delete(struct hzp_exchange *x);
enum MHD_Result hzp_route_replication(struct hzp_exchange *x);
enum MHD_Result hzp_route_replication_get(struct hzp_exchange *x);
enum MHD_Result hzp_route_replication_begin(struct hzp_exchange *x);
enum MHD_Result hzp_route_replication_put(struct hzp_exchange *x);
enum MHD_Result hzp_route_replication_activate(struct hzp_exchange *x);
enum MHD_Result hzp_route_job(struct hzp_exchange *x);
enum MHD_Result hzp_route_example_get(struct hzp_exchange *x);
enum MHD_Result hzp_route_example_delete(struct hzp_exchange *x);
enum MHD_Result hzp_route_rollouts_post(struct hzp_exchange *x);
enum MHD_Result hzp_route_rollouts(struct hzp_exchange *x);
enum MHD_Result hzp_route_rollout(struct hzp_exchange *x);
enum MHD_Result hzp_route_rollout_delete(struct hzp_exchange *x);
enum MHD_Result hzp_route_sample_reward(struct hzp_exchange *x);
bool hzp_feed_examples(struct hzp_exchange *x);

struct hzp_page;
/* Writes the metrics of rollouts. */
void hzp_rollouts_metrics(struct hzp_page *page, const struct hzp_engine *engine);
