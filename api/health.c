/* SPDX-License-Identifier: Apache-2.0 */
/* GET /health: 200 while requests are taken, else 503. */
#include "api/http.h"

enum MHD_Result hzp_route_health(struct hzp_exchange *x)
{
    static const char *const word[] = {"ok", "stopping", "failed"};
    int state = atomic_load(&x->server->state);
    if (state == HZP_SERVER_UP)
        return hzp_reply_json(x, MHD_HTTP_OK, json_pack("{s:s}", "status", word[state]));
    return hzp_reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, word[state], "the server is %s",
                           state == HZP_SERVER_DRAINING ? "stopping" : "out of order: the device failed");
}
