/* SPDX-License-Identifier: Apache-2.0 */
/* What answering has cost the server. */
#include "dev/bench/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATIENCE_S = 30 };

static double metric(const char *page, const char *name, const char *label)
{
    double sum = hzp_http_metric(page, name, label);
    return isnan(sum) ? 0 : sum;
}

void hzp_load_read_cost(const struct hzp_http_host *s, struct hzp_load_cost *ret)
{
    const struct hzp_http_call call = {
        .method = "GET", .route = "/metrics", .patience_s = PATIENCE_S};
    struct hzp_http_stream in;
    struct hzp_err_text err;
    memset(ret, 0, sizeof(*ret));
    hzp_http_stream_init(&in, NULL, NULL);
    if (hzp_http_call(s, &call, &in, &err) == HZP_OK && in.status == 200 && in.bytes) {
        ret->http_s = metric(in.body, "hzpserve_http_cpu_seconds_total", "");
        ret->resident = metric(in.body, "process_resident_memory_bytes", "");
        ret->deliver_s = metric(in.body, "hzpserve_host_seconds_total", "part=\"deliver\"");
    }
    hzp_http_stream_fini(&in);
}
