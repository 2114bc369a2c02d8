/* SPDX-License-Identifier: Apache-2.0 */
/* GET /health: 200 while requests are taken, else 503. */
#include "api/http/http.h"

enum MHD_Result hzp_route_health(struct hzp_exchange *x)
{
    if (atomic_load(&x->server->state) != HZP_SERVER_UP)
        return hzp_reply_unavailable(x);
    return hzp_reply_json(x, MHD_HTTP_OK, json_pack("{s:s}", "status", "ok"));
}
