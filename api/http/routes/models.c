/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/models, GET /v1/models/{id}, GET /version. */
#include "api/http/routes/routes.h"
#include "base/version.h"

#include <string.h>

static json_t *model_json(const struct hzp_server *server)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:i, s:i}", "id", server->model, "object",
                     "model", "created", (json_int_t)server->created, "owned_by", "hzpserve",
                     "root", server->model, "parent", "max_model_len",
                     server->engine->parts.plan.positions, "vocab_size",
                     server->engine->parts.config.vocab);
}

enum MHD_Result hzp_route_models(struct hzp_exchange *x)
{
    return hzp_reply_json(
        x, MHD_HTTP_OK, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(x->server)));
}

enum MHD_Result hzp_route_model(struct hzp_exchange *x)
{
    if (!strcmp(x->tail, x->server->model))
        return hzp_reply_json(x, MHD_HTTP_OK, model_json(x->server));
    return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, "model", "model_not_found",
                           "The model `%.100s` does not exist; this server serves `%s`", x->tail,
                           x->server->model);
}

enum MHD_Result hzp_route_version(struct hzp_exchange *x)
{
    return hzp_reply_json(x, MHD_HTTP_OK, json_pack("{s:s}", "version", HZP_VERSION_TEXT));
}
