/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/metrics.h - counters of the HTTP side, and the metrics page, which shows the
 * counters of all modules as Prometheus text: vLLM's names beside our own.
 *
 * Thread: any; one short lock.
 */
#pragma once

#include "api/http/wire/request_log.h"
#include "train/conductor/trainer.h"

struct hzp_completion;
struct hzp_metrics;

struct hzp_metrics *hzp_metrics_create(void);
void hzp_metrics_destroy(struct hzp_metrics *m); /* NULL: no effect */

/* A completion has ended. */
void hzp_metrics_completed(struct hzp_metrics *m, const struct hzp_completion *c);
/* A completion was accepted: its n and max_tokens. */
void hzp_metrics_params(struct hzp_metrics *m, int32_t n, int32_t max_tokens);
/* A request was answered, or its client disconnected (status 0). */
void hzp_metrics_http(struct hzp_metrics *m, const struct hzp_request_info *info, int status);
/* An update has ended (engine thread). */
void hzp_metrics_update(struct hzp_metrics *m, const struct hzp_update_report *report);
