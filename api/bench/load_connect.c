/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to a server and asks which model it serves. */
#include "api/bench/http_client.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

/* Asks for a route and parses the body as JSON; NULL if it is not JSON or the status is not 200. */
static int ask(struct hzp_load_server *s, const char *route, json_t **ret,
               struct hzp_err_text *reterr)
{
    const struct hzp_http_call call = {.method = "GET", .route = route, .patience_s = 30};
    struct hzp_http_stream in;
    *ret = NULL;
    hzp_http_stream_init(&in, NULL, NULL);
    int r = hzp_http_call(s, &call, &in, reterr);
    if (r == HZP_OK && in.status == 200 && in.bytes)
        *ret = hzp_json_load(in.body, in.bytes, 0, NULL, NULL);
    hzp_http_stream_fini(&in);
    return r;
}

/* The sum of a metric's lines in a page of Prometheus text that have this label, or NULL: any. */
static double metric(const char *page, const char *name, const char *label)
{
    double sum = 0;
    size_t bytes = strlen(name);
    for (const char *line = page; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        size_t n = strcspn(line, "\n");
        const char *labels = memchr(line, '}', n);
        const char *wanted = label ? strstr(line, label) : line;
        if (strncmp(line, name, bytes) || !strchr("{ ", line[bytes]) || !wanted ||
            wanted > line + n)
            continue;
        sum += strtod(labels ? labels + 1 : line + bytes, NULL);
    }
    return sum;
}

void hzp_load_read_cost(struct hzp_load_server *s, struct hzp_load_cost *ret)
{
    const struct hzp_http_call call = {.method = "GET", .route = "/metrics", .patience_s = 30};
    struct hzp_http_stream in;
    struct hzp_err_text err;
    memset(ret, 0, sizeof(*ret));
    hzp_http_stream_init(&in, NULL, NULL);
    if (hzp_http_call(s, &call, &in, &err) == HZP_OK && in.status == 200 && in.bytes) {
        char *page = strndup(in.body, in.bytes);
        if (page) {
            ret->http_s = metric(page, "hzpserve_http_cpu_seconds_total", NULL);
            ret->resident = metric(page, "process_resident_memory_bytes", NULL);
            ret->deliver_s = metric(page, "hzpserve_host_seconds_total", "part=\"deliver\"");
        }
        free(page);
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
    json_t *models, *item;
    size_t i;
    HZP_TRY(hzp_http_server(url, key, ret, reterr));
    HZP_TRY(ask(ret, "/v1/models", &models, reterr));
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
        return hzp_fail(reterr, HZP_EIO, "%s:%s%s/v1/models lists no model%s%s", ret->host,
                        ret->port, ret->path, model ? " named " : "", model ? model : "");
    return HZP_OK;
}
