/* SPDX-License-Identifier: Apache-2.0 */
/* GET /debug/timeline: what the threads of all ranks did in the last seconds, as a Chrome trace. */
#include "api/http/routes/route.h"
#include "api/http/routes/routes.h"

enum MHD_Result hzp_route_timeline(struct hzp_exchange *x)
{
    struct hzp_err_text err = {0};
    size_t bytes = 0;
    char *text = NULL;
    int r = hzp_ranks_timeline(x->server->engine->config.ranks, hzp_query_number(x, "seconds"),
                               &text, &bytes, &err);
    if (r < 0)
        return hzp_reply_fail(x, r, &err);
    return hzp_reply_text(x, MHD_HTTP_OK, "application/json", text);
}
