/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/transfer.h"

enum { PATIENCE_S = 3700, TRIES = 10, ANSWER_BYTES_MAX = 64 << 20 };

/* Whether the answer says that the same request may succeed later. */
static bool is_busy(const struct hzp_http_stream *in, const json_t *json)
{
    const char *code = json_string_value(json_object_get(json_object_get(json, "error"), "code"));
    return in->status == 429 || in->status == 503 ||
           (in->status == 409 && code && !strcmp(code, "busy"));
}

static int fail_status(const struct hzp_http_stream *in, const char *route, const json_t *json,
                       struct hzp_err_text *reterr)
{
    const char *why = hzp_http_error(json);
    if (why)
        return hzp_fail(reterr, HZP_EINVAL, "%s", why);
    return hzp_fail(reterr, HZP_EINVAL, "%.200s: the server answered with status %d", route,
                    in->status);
}

/* One attempt; *ret_again: another one may succeed.  The caller ends in. */
static int attempt(const struct hzp_http_host *server, const struct hzp_http_call *call,
                   struct hzp_http_stream *in, bool *ret_again, struct hzp_err_text *reterr)
{
    hzp_http_stream_init(in, NULL, NULL);
    in->body_max = ANSWER_BYTES_MAX;
    int r = hzp_http_call(server, call, in, reterr);
    *ret_again = r == HZP_EIO && !strcmp(call->method, "GET");
    if (r < 0 || in->status < 300)
        return r;
    json_auto_t *json = in->bytes ? hzp_json_load(in->body, in->bytes, 0, NULL, NULL) : NULL;
    *ret_again = is_busy(in, json);
    return fail_status(in, call->route, json, reterr);
}

static int ask(const struct hzp_http_host *server, const struct hzp_http_call *call,
               struct hzp_http_stream *in, struct hzp_err_text *reterr)
{
    bool again = true;
    int r = HZP_EIO;
    for (int i = 0; again && i < TRIES; i++) {
        if (i) {
            sleep(1);
            hzp_http_stream_fini(in);
        }
        r = attempt(server, call, in, &again, reterr);
        again = again && r < 0;
    }
    return r;
}

int hzp_transfer_json(const struct hzp_http_host *server, const char *method, json_t *body,
                      json_t **ret, struct hzp_err_text *reterr, const char *format, ...)
{
    HZP_ENDED(hzp_http_stream_fini) struct hzp_http_stream in;
    HZP_FREED char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    char route[300];
    va_list args;
    va_start(args, format);
    vsnprintf(route, sizeof(route), format, args);
    va_end(args);
    json_decref(body);
    const struct hzp_http_call call = {
        .method = method, .route = route, .body = text, .patience_s = PATIENCE_S};
    if (ret)
        *ret = NULL;
    HZP_TRY(ask(server, &call, &in, reterr));
    json_auto_t *json = in.bytes ? hzp_json_load(in.body, in.bytes, 0, NULL, NULL) : NULL;
    if (!json)
        return hzp_fail(reterr, HZP_EIO, "%.200s: the answer is no JSON", route);
    if (ret)
        *ret = json_incref(json);
    return HZP_OK;
}

int hzp_transfer_get(const struct hzp_http_host *server, const char *route, void *ret, size_t max,
                     size_t *ret_bytes, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_http_stream_fini) struct hzp_http_stream in;
    const struct hzp_http_call call = {.method = "GET", .route = route, .patience_s = PATIENCE_S};
    int r = ask(server, &call, &in, reterr);
    if (r >= 0 && in.bytes > max)
        r = hzp_fail(reterr, HZP_EIO, "%.200s: the answer has %zu bytes, not at most %zu", route,
                     in.bytes, max);
    *ret_bytes = r >= 0 ? in.bytes : 0;
    if (*ret_bytes)
        memcpy(ret, in.body, *ret_bytes);
    return r;
}

int hzp_transfer_put(const struct hzp_http_host *server, const char *route, const void *data,
                     size_t n, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_http_stream_fini) struct hzp_http_stream in;
    const struct hzp_http_call call = {
        .method = "PUT", .route = route, .data = data, .bytes = n, .patience_s = PATIENCE_S};
    return ask(server, &call, &in, reterr);
}
