/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/http.h"

#include "api/http/wire/target.h"
#include "base/log.h"

/* The only table from our error codes to HTTP status codes. */
int hzp_http_status(int code)
{
    static const int status[] = {[-HZP_OK] = 200,     [-HZP_EINVAL] = 400,   [-HZP_EFORMAT] = 400,
                                 [-HZP_EUNSUP] = 400, [-HZP_ENOENT] = 404,   [-HZP_EBUSY] = 429,
                                 [-HZP_ENOMEM] = 503, [-HZP_ECANCELED] = 503};
    bool known = code <= 0 && -code < HZP_COUNT(status) && status[-code];
    return known ? status[-code] : MHD_HTTP_INTERNAL_SERVER_ERROR;
}

static const char *error_type(int status)
{
    if (status == MHD_HTTP_UNAUTHORIZED)
        return "authentication_error";
    if (status == MHD_HTTP_FORBIDDEN)
        return "permission_error";
    if (status == MHD_HTTP_TOO_MANY_REQUESTS)
        return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

json_t *hzp_error_json(int status, const char *message, const char *param, const char *code)
{
    /* A text truncated to its buffer may end within a character. */
    size_t bytes = strlen(message);
    json_t *text = json_stringn(message, bytes);
    for (int cut = 0; !text && cut < 3 && bytes; cut++)
        text = json_stringn(message, --bytes);
    if (!text) /* what it quotes is not UTF-8, or was cut within a character */
        text = hzp_text_json(message, strlen(message));
    json_t *name = param && *param ? json_string(param) : NULL;
    /* The outer type is what Anthropic's clients look for; OpenAI's do not read it. */
    return json_pack("{s:s, s:{s:o, s:s, s:o, s:o}}", "type", "error", "error", "message", text,
                     "type", error_type(status), "param", name ? name : json_null(), "code",
                     code ? json_string(code) : json_null());
}

enum MHD_Result hzp_reply(struct hzp_exchange *x, int status, struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    HZP_ASSERT(!x->response);
    x->status = status;
    MHD_add_response_header(response, "x-request-id", x->info.id);
    if (x->version) {
        char number[24];
        snprintf(number, sizeof(number), "%llu", (unsigned long long)x->version);
        MHD_add_response_header(response, "x-hzpserve-weights-version", number);
        snprintf(number, sizeof(number), "%lld", (long long)x->staleness);
        MHD_add_response_header(response, "x-hzpserve-staleness", number);
        snprintf(number, sizeof(number), "%llu", (unsigned long long)x->stale_prefix);
        if (x->stale_prefix)
            MHD_add_response_header(response, "x-hzpserve-stale-prefix", number);
    }
    x->response = response;
    return MHD_YES;
}

/* A response with the text, which it takes over.  NULL: *ret is what to return. */
static struct MHD_Response *text_response(struct hzp_exchange *x, const char *type, char *text,
                                          enum MHD_Result *ret)
{
    struct MHD_Response *response = NULL;
    *ret = MHD_NO;
    if (text && !hzp_exchange_made(x, strlen(text)))
        *ret = hzp_reply_no_memory(x);
    else if (text)
        response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (response)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    else
        free(text);
    return response;
}

enum MHD_Result hzp_reply_text(struct hzp_exchange *x, int status, const char *type, char *text)
{
    enum MHD_Result ret;
    struct MHD_Response *response = text_response(x, type, text, &ret);
    return response ? hzp_reply(x, status, response) : ret;
}

enum MHD_Result hzp_reply_json_with(struct hzp_exchange *x, int status, json_t *json,
                                    const char *name, const char *value)
{
    json_t *error = status >= 400 ? json_object_get(json, "error") : NULL;
    if (error)
        json_object_set_new(error, "request_id", json_string(x->info.id));
    char *text = json ? hzp_json_dumps(json, HZP_JSON_FORM) : NULL;
    json_decref(json);
    enum MHD_Result ret;
    struct MHD_Response *response = text_response(x, "application/json", text, &ret);
    if (!response)
        return ret;
    if (value)
        MHD_add_response_header(response, name, value);
    if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE)
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    return hzp_reply(x, status, response);
}

enum MHD_Result hzp_reply_json(struct hzp_exchange *x, int status, json_t *json)
{
    return hzp_reply_json_with(x, status, json, NULL, NULL);
}

enum MHD_Result hzp_reply_pack(struct hzp_exchange *x, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    json_t *json = json_vpack_ex(NULL, 0, format, args);
    va_end(args);
    return hzp_reply_json(x, MHD_HTTP_OK, json);
}

enum MHD_Result hzp_reply_error(struct hzp_exchange *x, int status, const char *param,
                                const char *code, const char *message, ...)
{
    char text[640];
    va_list args;
    va_start(args, message);
    vsnprintf(text, sizeof(text), message, args);
    va_end(args);
    return hzp_reply_json(x, status, hzp_error_json(status, text, param, code));
}

const char *hzp_unavailable_code(int state)
{
    return state == HZP_SERVER_FAILED ? "failed" : "stopping";
}

enum MHD_Result hzp_reply_unavailable(struct hzp_exchange *x)
{
    int state = atomic_load(&x->server->state);
    if (state != HZP_SERVER_DRAINING && x->server->relayed)
        return MHD_NO; /* the engine has ended: the relay asks the next rank 0 */
    return hzp_reply_error(
        x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, hzp_unavailable_code(state), "the server is %s",
        state == HZP_SERVER_FAILED ? "out of service: the device failed" : "stopping");
}

enum MHD_Result hzp_reply_no_memory(struct hzp_exchange *x)
{
    return hzp_reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "overloaded",
                           "there is no memory for this request now");
}

enum MHD_Result hzp_reply_fail(struct hzp_exchange *x, int code, const struct hzp_err_text *err)
{
    int status = hzp_http_status(code);
    if (code == HZP_ENOMEM)
        return hzp_reply_no_memory(x);
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        return hzp_reply_unavailable(x);
    if (status >= 500) { /* its text may name files of this machine */
        hzp_log(HZP_LOG_ERROR, "http", "%s: %s, answering 500", hzp_err_name(code), err->text);
        return hzp_reply_error(x, status, NULL, NULL,
                               "the request failed in the server; its log says why");
    }
    const char *name = status == MHD_HTTP_TOO_MANY_REQUESTS ? "rate_limit_exceeded" : NULL;
    if (status == MHD_HTTP_BAD_REQUEST && strstr(err->text, "maximum context length"))
        name = "context_length_exceeded";
    return hzp_reply_error(x, status, err->param, name, "%s",
                           err->text[0] ? err->text : hzp_err_name(code));
}

const char *hzp_exchange_query(const struct hzp_exchange *x, const char *name)
{
    return hzp_target_argument(x->target, name);
}

const char *hzp_exchange_header(const struct hzp_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* About how much memory a JSON text takes as a tree of values, and what is made of its texts while
 * it is read: copies, a rendered prompt, tokens. */
static size_t tree_bytes(const char *text, size_t bytes)
{
    size_t objects = 0, arrays = 0, values = 1;
    for (size_t i = 0; i < bytes; i++) {
        objects += text[i] == '{';
        arrays += text[i] == '[';
        values += text[i] == ',' || text[i] == ':';
    }
    return 2 * bytes + objects * 256 + arrays * 128 + values * 64;
}

json_t *hzp_exchange_json(struct hzp_exchange *x, enum MHD_Result *ret_answered)
{
    struct hzp_json_error error;
    const char *text = x->body ? x->body + x->journal : "";
    size_t bytes = x->bytes - x->journal, need = tree_bytes(text, bytes);
    if (need > (size_t)x->server->settings->body_memory / 2) {
        *ret_answered = hzp_reply_error(x, MHD_HTTP_CONTENT_TOO_LARGE, NULL, NULL,
                                        "the body has too many values, or is too long");
        return NULL;
    }
    x->tree = need;
    if (!hzp_exchange_charge_beside(x, 0)) {
        *ret_answered = hzp_reply_no_memory(x);
        return NULL;
    }
    json_t *json = hzp_json_load(text, bytes, HZP_JSON_ANY | HZP_JSON_UNIQUE, NULL, &error);
    if (!json && error.no_memory)
        *ret_answered = hzp_reply_no_memory(x);
    else if (!json)
        *ret_answered = hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, NULL, NULL,
                                        "the body is not valid JSON: line %d column %d: %s",
                                        error.line, error.column, error.text);
    else if (!json_is_object(json))
        *ret_answered =
            hzp_reply_error(x, MHD_HTTP_BAD_REQUEST, NULL, NULL, "the body must be a JSON object");
    if (json_is_object(json))
        return json;
    json_decref(json);
    return NULL;
}

/* ---- routes ---- */

/* Whether the route has this path.  A route path that ends in "/" matches longer paths below it;
 * "/" only itself. */
static bool leads_to(const struct hzp_route *route, const char *path)
{
    size_t n = strlen(route->path);
    return n > 1 && route->path[n - 1] == '/' ? !strncmp(path, route->path, n) && path[n]
                                              : !strcmp(path, route->path);
}

/* The length of the longest route path that leads there: of two, the more specific one counts. */
static size_t closest(const struct hzp_route *routes, const char *path)
{
    size_t most = 0;
    for (const struct hzp_route *route = routes; route->path; route++) {
        size_t length = strlen(route->path);
        if (leads_to(route, path))
            most = HZP_MAX(most, length);
    }
    return most;
}

const struct hzp_route *hzp_route_find(const struct hzp_route *routes, const char *method,
                                       const char *path, const char **ret_tail)
{
    size_t most = closest(routes, path);
    for (const struct hzp_route *route = routes; route->path; route++) {
        if (!leads_to(route, path) || strlen(route->path) < most)
            continue;
        *ret_tail = path + strlen(route->path);
        if (!strcmp(method, route->method) ||
            (!strcmp(method, "HEAD") && !strcmp(route->method, "GET")))
            return route;
    }
    return NULL;
}

void hzp_route_methods(const struct hzp_route *routes, const char *path, char *ret, size_t size)
{
    size_t n = 0, most = closest(routes, path);
    ret[0] = 0;
    for (const struct hzp_route *route = routes; route->path && n < size; route++)
        if (leads_to(route, path) && strlen(route->path) == most)
            n += (size_t)snprintf(ret + n, size - n, "%s%s%s", n ? ", " : "", route->method,
                                  strcmp(route->method, "GET") ? "" : ", HEAD");
}
