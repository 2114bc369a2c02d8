/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/metrics_state.h - the counters, shared by metrics.c (counts) and metrics_page.c
 * (formats).
 *
 * Thread: under the lock, the fields below it.
 */
#pragma once

#include "api/http/routes/metrics.h"

enum { HZP_BOUNDS_MAX = 24 };

struct hzp_histogram {
    const double
        *bound; /* [bounds] ascending upper bounds; values beyond the last have one more bucket */
    int bounds;
    uint64_t seen[HZP_BOUNDS_MAX + 1], count;
    double sum;
};

struct hzp_http_count {
    const char *handler, *method; /* in the table of routes */
    int status;                   /* 0: not answered, because the client disconnected */
    uint64_t count;
};

/* How long requests of one route took, from their head to the end of their answer. */
struct hzp_http_time {
    const char *handler, *method;
    struct hzp_histogram seconds;
};

struct hzp_reason_count {
    const char *name;
    uint64_t count;
};

struct hzp_metrics {
    struct hzp_lock lock;
    struct hzp_histogram ttft, itl, e2e, queue, inference, prefill, decode, prompt_tokens,
        generated, longest, n, max_tokens, per_token;
    struct hzp_reason_count reason[7];
    struct hzp_http_count http[128];
    int https;
    struct hzp_http_time time[32];
    int times;
    struct hzp_update_report update; /* the newest */
    double update_seconds;
};

/* Requests of the i-th route of `time` that were answered with a status of this class (2: 2xx).
 * Thread: under the lock, or on a copy. */
uint64_t hzp_metrics_http_class(const struct hzp_metrics *m, int i, int class);
