/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to a server and asks which model it serves. */
#include "api/bench/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATIENCE_S = 30 };

static double metric(const char *page, const char *name, const char *label)
{
    double sum = hzp_http_metric(page, name, label);
    return isnan(sum) ? 0 : sum;
}

void hzp_load_read_cost(const struct hzp_load_server *s, struct hzp_load_cost *ret)
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

static int32_t whole(const json_t *value)
{
    json_int_t n = json_integer_value(value);
    return n > 0 && n <= INT32_MAX ? (int32_t)n : 0;
}

int hzp_load_connect(const char *url, const char *key, const char *model,
                     struct hzp_load_server *ret, struct hzp_err_text *reterr)
{
    json_t *item;
    size_t i;
    HZP_TRY(hzp_http_server(url, key, ret, reterr));
    json_t *models = hzp_http_ask(ret, "GET", "/v1/models", NULL, PATIENCE_S, reterr);
    if (!models)
        return HZP_EIO;
    json_array_foreach(json_object_get(models, "data"), i, item)
    {
        const char *id = json_string_value(json_object_get(item, "id"));
        const json_t *meta = json_object_get(item, "meta"); /* llama.cpp's server has it */
        if (!id || strlen(id) >= sizeof(ret->model) || (model && strcmp(model, id)))
            continue;
        snprintf(ret->model, sizeof(ret->model), "%s", id);
        ret->context = whole(json_object_get(item, "max_model_len"));
        ret->vocab = whole(json_object_get(item, "vocab_size"));
        if (!ret->vocab)
            ret->vocab = whole(json_object_get(meta, "n_vocab"));
        break;
    }
    json_decref(models);
    if (!ret->model[0])
        return hzp_fail(reterr, HZP_EIO, "%s/v1/models lists no model%s%s", ret->url,
                        model ? " named " : "", model ? model : "");
    return HZP_OK;
}
