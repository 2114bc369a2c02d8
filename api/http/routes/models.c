/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/models, GET /v1/models/{id}, GET /version, GET /. */
#include "api/http/routes/routes.h"
#include "base/version.h"
#include "base/json_file.h"

enum { GENERATION_BYTES_MAX = 1 << 20 };

/* How the model's authors draw its tokens: what of its generation_config.json requests have fields
 * for; null: there is none.  Requests that do not say are drawn at temperature 1. */
static json_t *generation_json(const struct hzp_server *server)
{
    static const char *const used[] = {"do_sample", "temperature", "top_p",
                                       "top_k",     "min_p",       "repetition_penalty"};
    char path[PATH_MAX];
    json_auto_t *config = NULL;
    const char *dir = server->engine->parts.source_dir;
    snprintf(path, sizeof(path), "%s/generation_config.json", dir ? dir : "");
    if (!dir || hzp_json_read(path, GENERATION_BYTES_MAX, HZP_JSON_UNIQUE, &config, NULL) < 0)
        return json_null();
    json_t *ret = json_object();
    for (int i = 0; i < HZP_COUNT(used); i++)
        json_object_set(ret, used[i], json_object_get(config, used[i]));
    return ret;
}

static json_t *model_json(const struct hzp_server *server)
{
    return json_pack(
        "{s:s, s:s, s:I, s:s, s:s, s:n, s:i, s:i, s:o}", "id", server->model, "object", "model",
        "created", (json_int_t)server->created, "owned_by", "hzpserve", "root", server->model,
        "parent", "max_model_len", server->engine->parts.plan.positions, "vocab_size",
        server->engine->parts.config.vocab, "generation_config", generation_json(server));
}

int hzp_route_models(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return hzp_reply_pack(x, "{s:s, s:[o]}", "object", "list", "data", model_json(x->server));
}

int hzp_route_model(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    if (!strcmp(x->tail, x->server->model))
        return hzp_reply_json(x, MHD_HTTP_OK, model_json(x->server));
    return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, "model", "model_not_found",
                           "The model `%.100s` does not exist; this server serves `%s`", x->tail,
                           x->server->model);
}

int hzp_route_version(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return hzp_reply_pack(x, "{s:s}", "version", HZP_VERSION_TEXT);
}

int hzp_route_openapi(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return hzp_reply_text(x, MHD_HTTP_OK, "application/json", hzp_xstrdup(hzp_openapi));
}

/* Answers GET /, the URL that the server prints when it starts. */
int hzp_route_root(struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    return hzp_reply_text(x, MHD_HTTP_OK, "text/plain",
                          hzp_xstrdup("hzpserve " HZP_VERSION_TEXT
                                      ": POST /v1/chat/completions answers, POST "
                                      "/v1/fine_tuning/examples teaches, GET /openapi.json lists "
                                      "every route\n"));
}
