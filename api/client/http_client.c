/* SPDX-License-Identifier: Apache-2.0 */
#include "api/client/http_client.h"

#include <pthread.h>

/* ---- the server's URL ---- */

static void begin_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* Without /v1, which is part of the base URL for other clients, and slashes at the end. */
static bool trim_path(CURLU *u)
{
    char *path;
    if (curl_url_get(u, CURLUPART_PATH, &path, 0))
        return false;
    size_t n = strlen(path);
    while (n && path[n - 1] == '/')
        n--;
    if (n >= 3 && !strncmp(path + n - 3, "/v1", 3))
        n -= 3;
    path[n] = 0;
    bool good = !curl_url_set(u, CURLUPART_PATH, n ? path : "/", 0);
    curl_free(path);
    return good;
}

static bool has_part(CURLU *u, CURLUPart part)
{
    char *text = NULL;
    bool has = !curl_url_get(u, part, &text, 0);
    curl_free(text);
    return has;
}

bool hzp_http_is_url(const char *text)
{
    return !strncmp(text, "http://", 7) || !strncmp(text, "https://", 8);
}

static bool read_url(const char *url, char *ret, size_t size)
{
    CURLU *u = curl_url();
    char *whole = NULL;
    bool good = u && !curl_url_set(u, CURLUPART_URL, url, CURLU_GUESS_SCHEME) && trim_path(u) &&
                !has_part(u, CURLUPART_QUERY) && !has_part(u, CURLUPART_FRAGMENT) &&
                !has_part(u, CURLUPART_USER) && !curl_url_get(u, CURLUPART_URL, &whole, 0) &&
                strlen(whole) < size && hzp_http_is_url(whole);
    if (good)
        snprintf(ret, size, "%.*s", (int)strlen(whole) - (whole[strlen(whole) - 1] == '/'), whole);
    curl_free(whole);
    curl_url_cleanup(u);
    return good;
}

int hzp_http_server(const char *url, const char *key, struct hzp_http_host *ret,
                    struct hzp_err_text *reterr)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_curl);
    memset(ret, 0, sizeof(*ret));
    if (!read_url(url, ret->url, sizeof(ret->url)))
        return hzp_wrong(reterr, "--url", "takes http[s]://HOST[:PORT], not \"%.200s\"", url);
    if (key && (strlen(key) >= sizeof(ret->key) || strpbrk(key, "\r\n")))
        return hzp_wrong(reterr, "--api-key", ": the key is not valid");
    snprintf(ret->key, sizeof(ret->key), "%s", key ? key : "");
    return HZP_OK;
}

/* ---- the answer ---- */

void hzp_http_stream_init(struct hzp_http_stream *s, int (*event)(void *, const char *, size_t),
                          void *ctx)
{
    memset(s, 0, sizeof(*s));
    s->event = event;
    s->ctx = ctx;
    s->body_max = HZP_HTTP_BODY_MAX;
}

void hzp_http_stream_fini(struct hzp_http_stream *s)
{
    curl_easy_cleanup(s->easy);
    curl_slist_free_all(s->headers);
    free(s->body);
    memset(s, 0, sizeof(*s));
}

static int keep(struct hzp_http_stream *s, const char *bytes, size_t n)
{
    if (n > s->body_max - s->bytes)
        return HZP_EFORMAT;
    if (s->bytes + n + 1 > s->room) {
        size_t room = HZP_MAX(s->bytes + n + 1, HZP_MAX(s->room * 2, (size_t)1024));
        char *body = realloc(s->body, room);
        if (!body)
            return HZP_ENOMEM;
        s->body = body;
        s->room = room;
    }
    memcpy(s->body + s->bytes, bytes, n);
    s->bytes += n;
    s->body[s->bytes] = 0;
    return HZP_OK;
}

/* Handles a complete line of an event stream in s->body; only data lines matter. */
static int event_line(struct hzp_http_stream *s)
{
    char *text = s->body;
    size_t n = s->bytes;
    s->bytes = 0;
    if (n && text[n - 1] == '\r')
        text[--n] = 0;
    if (n < 5 || memcmp(text, "data:", 5))
        return HZP_OK;
    size_t skip = n > 5 && text[5] == ' ' ? 6 : 5;
    return s->event(s->ctx, text + skip, n - skip);
}

static int take(struct hzp_http_stream *s, const char *bytes, size_t n)
{
    if (!s->events)
        return keep(s, bytes, n);
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t part = end ? (size_t)(end - bytes) : n;
        HZP_TRY(keep(s, bytes, part));
        if (!end)
            break;
        HZP_TRY(event_line(s));
        bytes += part + 1;
        n -= part + 1;
    }
    return HZP_OK;
}

static void learn_status(struct hzp_http_stream *s)
{
    long status = 0;
    const char *type = NULL;
    curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(s->easy, CURLINFO_CONTENT_TYPE, &type);
    s->status = (int)status;
    s->events = status == 200 && s->event && type && !strncasecmp(type, "text/event-stream", 17);
}

static size_t on_bytes(char *bytes, size_t one, size_t n, void *ctx)
{
    struct hzp_http_stream *s = ctx;
    if (!s->status)
        learn_status(s);
    s->failed = take(s, bytes, n);
    return s->failed < 0 ? CURL_WRITEFUNC_ERROR : n;
}

/* ---- a request ---- */

static int on_progress(void *ctx, curl_off_t all, curl_off_t now, curl_off_t up, curl_off_t upped)
{
    return *(volatile sig_atomic_t *)ctx; /* not 0: the transfer ends */
}

static bool add_header(struct hzp_http_stream *s, const char *text)
{
    struct curl_slist *list = curl_slist_append(s->headers, text);
    s->headers = list ? list : s->headers;
    return list != NULL;
}

int hzp_http_prepare(const struct hzp_http_host *server, const struct hzp_http_call *call,
                     struct hzp_http_stream *s)
{
    char text[1024];
    CURL *e = s->easy = curl_easy_init();
    const char *body = call->data ? call->data : call->body;
    size_t bytes = call->data ? call->bytes : call->body ? strlen(call->body) : 0;
    if (!e || !add_header(s, "Expect:") ||
        (body && !add_header(s, call->data ? "Content-Type:" : "Content-Type: application/json")))
        return HZP_ENOMEM;
    snprintf(text, sizeof(text), "Authorization: Bearer %s", server->key);
    if (server->key[0] && !add_header(s, text))
        return HZP_ENOMEM;
    snprintf(text, sizeof(text), "%s%s", server->url, call->route);
    curl_easy_setopt(e, CURLOPT_URL, text);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_PROXY, "");
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, s->headers);
    if (body) {
        curl_easy_setopt(e, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
    }
    curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, call->method);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, s->why);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)call->patience_s);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)call->patience_s);
    if (call->stop) {
        curl_easy_setopt(e, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(e, CURLOPT_XFERINFODATA, call->stop);
        curl_easy_setopt(e, CURLOPT_NOPROGRESS, 0L);
    }
    return HZP_OK;
}

const char *hzp_http_reason(const struct hzp_http_stream *s, CURLcode code)
{
    return s->failed == HZP_EFORMAT  ? "the server sent more than fits in an answer or an event"
           : s->failed == HZP_ENOMEM ? "no memory for an answer"
                                     : curl_easy_strerror(code);
}

static int outcome(const struct hzp_http_host *server, const struct hzp_http_call *call,
                   const struct hzp_http_stream *s, CURLcode code, struct hzp_err_text *reterr)
{
    const char *why = !s->failed && s->why[0] ? s->why : hzp_http_reason(s, code);
    if (code == CURLE_OK && s->status == 401)
        return hzp_fail(reterr, HZP_EINVAL, "%s requires a key: --api-key", server->url);
    if (code == CURLE_OK)
        return HZP_OK;
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return HZP_ECANCELED;
    if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
        return hzp_fail(reterr, HZP_EIO, "no server at %s: %.200s", server->url, why);
    return hzp_fail(reterr, s->failed < 0 ? s->failed : HZP_EIO, "%s%.200s: %.200s", server->url,
                    call->route, why);
}

int hzp_http_call(const struct hzp_http_host *server, const struct hzp_http_call *call,
                  struct hzp_http_stream *in, struct hzp_err_text *reterr)
{
    if (hzp_http_prepare(server, call, in) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for a request");
    curl_easy_setopt(in->easy, CURLOPT_BUFFERSIZE, (long)CURL_MAX_READ_SIZE);
    curl_easy_setopt(in->easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)CURL_MAX_READ_SIZE);
    CURLcode code = curl_easy_perform(in->easy);
    learn_status(in);
    return outcome(server, call, in, code, reterr);
}

const char *hzp_http_error(const json_t *answer)
{
    return json_string_value(json_object_get(json_object_get(answer, "error"), "message"));
}

json_t *hzp_http_ask(const struct hzp_http_host *server, const char *method, const char *route,
                     json_t *body, int patience_s, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_http_stream_fini) struct hzp_http_stream in;
    HZP_FREED char *text = body ? hzp_json_dumps(body, JSON_COMPACT) : NULL;
    const struct hzp_http_call call = {
        .method = method, .route = route, .body = text, .patience_s = patience_s};
    json_decref(body);
    hzp_http_stream_init(&in, NULL, NULL);
    int r = hzp_http_call(server, &call, &in, reterr);
    json_auto_t *json =
        r == HZP_OK && in.bytes ? hzp_json_load(in.body, in.bytes, 0, NULL, NULL) : NULL;
    const char *why = hzp_http_error(json);
    if (r == HZP_OK && in.status < 300 && json)
        return json_incref(json);
    if (r == HZP_OK && why)
        hzp_fail(reterr, HZP_EIO, "%s", why);
    else if (r == HZP_OK)
        hzp_fail(reterr, HZP_EIO, "%s%.200s: an answer with status %d that is no JSON", server->url,
                 route, in.status);
    return NULL;
}

double hzp_http_metric(const char *page, const char *name, const char *label)
{
    double sum = NAN;
    size_t n = strlen(name);
    for (const char *at = page; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        if (strncmp(at, name, n) || (at[n] != '{' && at[n] != ' '))
            continue;
        const char *end = strchrnul(at, '\n'), *has = strstr(at, label), *value = end;
        while (value > at && value[-1] != ' ')
            value--;
        if (has && has < end)
            sum = (isnan(sum) ? 0 : sum) + strtod(value, NULL);
    }
    return sum;
}

/* --- Which model it serves ------------------------------------------------------------------ */

enum { CONNECT_S = 30 };

static int32_t whole(const json_t *value)
{
    json_int_t n = json_integer_value(value);
    return n > 0 && n <= INT32_MAX ? (int32_t)n : 0;
}

int hzp_http_connect(const char *url, const char *key, const char *model, struct hzp_http_host *ret,
                     struct hzp_err_text *reterr)
{
    json_t *item;
    size_t i;
    HZP_TRY(hzp_http_server(url, key, ret, reterr));
    json_auto_t *models = hzp_http_ask(ret, "GET", "/v1/models", NULL, CONNECT_S, reterr);
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
    if (!ret->model[0])
        return hzp_fail(reterr, HZP_EIO, "%s/v1/models lists no model%s%s", ret->url,
                        model ? " named " : "", model ? model : "");
    return HZP_OK;
}
