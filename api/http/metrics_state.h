/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/metrics_state.h - the counters, shared by metrics.c (counts) and metrics_page.c
 * (formats).
 *
 * Thread: under the lock, the fields below it.
 */
#ifndef HZP_API_HTTP_METRICS_STATE_H
#define HZP_API_HTTP_METRICS_STATE_H

#include "api/http/metrics.h"
#include "base/thread.h"

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
    int status;
    uint64_t count;
};

struct hzp_reason_count {
    const char *name;
    uint64_t count;
};

struct hzp_metrics {
    struct hzp_lock lock;
    struct hzp_histogram ttft, itl, e2e, queue, inference, prefill, decode, prompt_tokens,
        generated, n, max_tokens;
    struct hzp_reason_count reason[3];
    struct hzp_http_count http[64];
    int https;
    struct hzp_update_report update; /* the newest */
    double update_seconds;
};

#endif
