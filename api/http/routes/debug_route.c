/* SPDX-License-Identifier: Apache-2.0 */
/* GET /debug/timeline: what the threads of all ranks did in the last seconds, as a Chrome trace. */
#include "api/http/routes/routes.h"
#include "base/decimal.h"

static const double SECONDS_DEFAULT = 5, SECONDS_MAX = 60;

enum MHD_Result hzp_route_timeline(struct hzp_exchange *x)
{
    const char *asked = hzp_exchange_query(x, "seconds");
    double seconds = SECONDS_DEFAULT;
    const char *end = asked ? hzp_decimal(asked, &seconds) : "";
    if (!end || *end || !(seconds > 0 && seconds <= SECONDS_MAX))
        return hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, "seconds", NULL,
                               "seconds must be a number above 0 and at most %g, not \"%.40s\"",
                               SECONDS_MAX, asked);
    struct hzp_err_text err = {0};
    size_t bytes = 0;
    char *text = NULL;
    int r = hzp_ranks_timeline(x->server->engine->config.ranks, seconds, &text, &bytes, &err);
    if (r < 0)
        return hzp_reply_fail(x, r, &err);
    return hzp_reply_text(x, MHD_HTTP_OK, "application/json", text);
}
