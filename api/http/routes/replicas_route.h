/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/replicas_route.h - what is shown of ranks that serve (api/front/front.h).
 *
 * Thread: any.
 */
#pragma once

#include "api/http/wire/http.h"

#include <stdio.h>

/* The ranks as an array of objects; NULL: this process serves alone. */
json_t *hzp_replicas_json(const struct hzp_engine *engine);

/* The largest staleness of any rank that serves; at least `own`, rank 0's. */
int64_t hzp_replicas_staleness(const struct hzp_engine *engine, int64_t own);

/* The first rank that should serve and does not, and why; -1: none. */
int hzp_replicas_missing(const struct hzp_engine *engine, char *why, size_t size);

/* Writes the metrics of ranks, a line for each; labels: those that all metrics have. */
void hzp_replicas_metrics(const struct hzp_engine *engine, const char *labels, FILE *out);
