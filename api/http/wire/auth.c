/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/auth.h"

#include "base/file.h"
#include "base/thread.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <strings.h>
#include <sys/socket.h>

enum { KEY_BYTES_MAX = 1024, NAME_BYTES_MAX = 256, KEY_NAME_MAX = 32, KEYS_MAX = 256 };

/* A key and its name. */
struct key {
    char *text;
    const char *name;
    bool admin;
};
struct keys {
    struct key key[KEYS_MAX];
    int count;
};

/* Names of keys, also of those that a reload has dropped: requests still have them. */
struct name {
    struct name *next;
    char text[KEY_NAME_MAX + 1];
};

struct hzp_auth {
    const struct hzp_http_settings *settings;
    bool has_api, has_admin;
    char own_name[NAME_BYTES_MAX];
    struct hzp_lock lock;
    /* under lock */
    struct keys keys;
    struct name *names;
};

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

static void HZP_PRINTF(4, 5)
    refuse(struct hzp_refusal *ret, int status, const char *code, const char *format, ...)
{
    va_list args;
    ret->status = status;
    ret->code = code;
    va_start(args, format);
    vsnprintf(ret->text, sizeof(ret->text), format, args);
    va_end(args);
}

/* ---- keys ---- */

static void free_keys(struct keys *keys)
{
    for (int i = 0; i < keys->count; i++)
        free(keys->key[i].text);
    keys->count = 0;
}

/* The name, which lives as long as auth. */
static const char *intern(struct hzp_auth *auth, const char *text, size_t bytes)
{
    HZP_LOCKED(&auth->lock);
    struct name *at = auth->names;
    while (at && (strlen(at->text) != bytes || memcmp(at->text, text, bytes)))
        at = at->next;
    if (!at) {
        at = hzp_xcalloc(1, sizeof(*at));
        memcpy(at->text, text, bytes);
        at->next = auth->names;
        auth->names = at;
    }
    return at->text;
}

/* The length of the name before a colon; 0: the line is a key without a name. */
static size_t name_length(const char *line)
{
    size_t n = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n <= KEY_NAME_MAX && line[n] == ':' && line[n + 1] ? n : 0;
}

static void add_key(struct keys *keys, const char *text, const char *name, bool admin)
{
    keys->key[keys->count++] =
        (struct key){.text = hzp_xstrdup(text), .name = name, .admin = admin};
}

/* One line of a file of keys. */
static int take_line(struct hzp_auth *auth, const char *option, const char *path, int number,
                     const char *line, bool admin, struct keys *keys, struct hzp_err_text *reterr)
{
    /* These names stand for keys without names, so no key may take one. */
    static const char *const own[] = {"api", "admin", "none"};
    size_t n = name_length(line);
    if (!*line)
        return number > 1 ? HZP_OK : hzp_wrong(reterr, option, "%s: its first line is empty", path);
    if (!n && number > 1)
        return hzp_wrong(reterr, option, "%s: line %d is not NAME:KEY, as each of several keys is",
                         path, number);
    for (int i = 0; n && i < HZP_COUNT(own); i++)
        if (strlen(own[i]) == n && !memcmp(own[i], line, n))
            return hzp_wrong(reterr, option, "%s: line %d: a key cannot be named %s", path, number,
                             own[i]);
    if (keys->count == KEYS_MAX)
        return hzp_wrong(reterr, option, "%s: more than %d keys", path, KEYS_MAX);
    add_key(keys, n ? line + n + 1 : line, n ? intern(auth, line, n) : own[admin], admin);
    return HZP_OK;
}

static int read_key_file(struct hzp_auth *auth, const char *option, const char *path, bool admin,
                         struct keys *keys, struct hzp_err_text *reterr)
{
    char line[KEY_BYTES_MAX + KEY_NAME_MAX + 3] = ""; /* what an empty file has */
    int number = 1;
    HZP_ENDED(hzp_file_end) FILE *file = fopen(path, "re");
    if (!file)
        return hzp_fail_param(reterr, HZP_EIO, option, "%s %s: %s", option, path, strerror(errno));
    bool named = true; /* after a key without a name the rest is not looked at */
    for (; named && (fgets(line, sizeof(line), file) || number == 1); number++) {
        line[strcspn(line, "\r\n")] = 0;
        named = !*line || name_length(line) || number > 1;
        HZP_TRY(take_line(auth, option, path, number, line, admin, keys, reterr));
    }
    return HZP_OK;
}

static int take_key(struct hzp_auth *auth, const char *variable, const char *key, const char *file,
                    bool admin, struct keys *keys, struct hzp_err_text *reterr)
{
    const char *set = getenv(variable), *option = admin ? "--admin-key" : "--api-key";
    if (key && file)
        return hzp_wrong(reterr, option, "and %s-file: give one of them", option);
    if (file) {
        char name[32];
        snprintf(name, sizeof(name), "%s-file", option);
        return read_key_file(auth, name, file, admin, keys, reterr);
    }
    /* An unset variable in a unit file must not open the server. */
    if ((key && !*key) || (!key && set && !*set))
        return hzp_fail_param(reterr, HZP_EINVAL, option,
                              "%s is empty: leave it out for a server without a key",
                              key ? option : variable);
    if (key && (strlen(key) > KEY_BYTES_MAX || strpbrk(key, "\r\n")))
        return hzp_wrong(reterr, option, ": one line of at most %d bytes", KEY_BYTES_MAX);
    if (key)
        add_key(keys, key, admin ? "admin" : "api", admin);
    return HZP_OK;
}

/* Compares in time that depends on the lengths alone. */
static bool same_key(const char *key, const char *given)
{
    size_t n = strlen(key), m = strlen(given);
    unsigned difference = n != m;
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned char)key[i] ^ (unsigned char)(m ? given[i % m] : 0);
    return difference == 0;
}

bool hzp_auth_has_key(const struct hzp_auth *auth)
{
    return auth->has_api || auth->has_admin;
}

bool hzp_auth_has_admin_key(const struct hzp_auth *auth)
{
    return auth->has_admin;
}

const char *hzp_auth_check_key(struct hzp_auth *auth, struct MHD_Connection *connection,
                               enum hzp_right right, struct hzp_refusal *ret)
{
    if (right == HZP_RIGHT_NONE || !hzp_auth_has_key(auth))
        return "none";
    const char *given = header(connection, MHD_HTTP_HEADER_AUTHORIZATION);
    given = given && !strncasecmp(given, "Bearer ", 7) ? given + 7 : NULL;
    if (!given) /* Anthropic's clients */
        given = header(connection, "x-api-key");
    given = given ? given : "";
    bool admin = false;
    const char *name = NULL;
    hzp_lock_take(&auth->lock);
    for (int i = 0; i < auth->keys.count; i++) {
        const struct key *key = &auth->keys.key[i];
        if (same_key(key->text, given) && !admin) { /* a key in both files is the admin's */
            name = key->name;
            admin = key->admin;
        }
    }
    hzp_lock_release(&auth->lock);
    if (!name)
        refuse(ret, MHD_HTTP_UNAUTHORIZED, "invalid_api_key",
               "Incorrect API key provided: send it as a bearer token");
    else if (right == HZP_RIGHT_TEACH && auth->has_admin && !admin)
        refuse(ret, MHD_HTTP_FORBIDDEN, "insufficient_permissions",
               "this key may complete; teaching and setting the policy require the admin key");
    return name ? name : "none";
}

/* ---- hosts and origins ---- */

/* Whether the list "a, b" has the word; "*" is every word. */
static bool listed(const char *list, const char *word, size_t bytes)
{
    while (list && *list) {
        list += strspn(list, ", ");
        size_t n = strcspn(list, ", ");
        if ((n == 1 && *list == '*') || (n && n == bytes && !strncasecmp(list, word, n)))
            return true;
        list += n;
    }
    return false;
}

/* The host of "name:port", "[address]:port" or "name", without brackets and port. */
static size_t host_part(const char *text, const char **ret)
{
    if (*text == '[') {
        *ret = text + 1;
        return strcspn(text + 1, "]");
    }
    *ret = text;
    size_t n = strcspn(text, ":");
    return n && text[n - 1] == '.' ? n - 1 : n;
}

static bool is_word(const char *text, size_t bytes, const char *word)
{
    return word && strlen(word) == bytes && !strncasecmp(text, word, bytes);
}

/* An address as 16 bytes.  False: the text is not a numeric address. */
static bool parse_address(const char *text, uint8_t ret[16])
{
    struct in_addr v4;
    memset(ret, 0, 16);
    if (inet_pton(AF_INET6, text, ret) == 1)
        return true;
    if (inet_pton(AF_INET, text, &v4) != 1)
        return false;
    ret[10] = ret[11] = 0xff;
    memcpy(ret + 12, &v4, 4);
    return true;
}

static bool is_loopback(const uint8_t address[16])
{
    static const uint8_t one[16] = {[15] = 1}, mapped[13] = {[10] = 0xff, [11] = 0xff, [12] = 127};
    return !memcmp(address, one, 16) || !memcmp(address, mapped, 13);
}

/* The address of this machine that the connection came to. */
static bool local_address(struct MHD_Connection *connection, uint8_t ret[16])
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct sockaddr_storage at;
    socklen_t bytes = sizeof(at);
    if (!info || getsockname(info->connect_fd, (struct sockaddr *)&at, &bytes))
        return false;
    memset(ret, 0, 16);
    if (at.ss_family == AF_INET6) {
        memcpy(ret, &((struct sockaddr_in6 *)&at)->sin6_addr, 16);
        return true;
    }
    ret[10] = ret[11] = 0xff;
    memcpy(ret + 12, &((struct sockaddr_in *)&at)->sin_addr, 4);
    return at.ss_family == AF_INET;
}

/* Whether a numeric address in Host is this machine's.  A page cannot get such a Host by a DNS
 * answer, so any loopback address will do. */
static bool is_own_address(struct MHD_Connection *connection, const char *text, size_t bytes)
{
    char word[INET6_ADDRSTRLEN + 1];
    uint8_t asked[16], local[16];
    snprintf(word, sizeof(word), "%.*s", (int)HZP_MIN(bytes, sizeof(word) - 1), text);
    if (!parse_address(word, asked))
        return false;
    return is_loopback(asked) ||
           (local_address(connection, local) && !memcmp(asked, local, sizeof(asked)));
}

static bool host_allowed(const struct hzp_auth *auth, struct MHD_Connection *connection,
                         const char *host)
{
    const char *text;
    size_t bytes = host_part(host, &text);
    return is_word(text, bytes, "localhost") || is_word(text, bytes, auth->settings->host) ||
           is_word(text, bytes, auth->own_name) ||
           listed(auth->settings->allow_host, text, bytes) ||
           is_own_address(connection, text, bytes);
}

/* Whether the origin is http://HOST or https://HOST with the request's own Host. */
static bool same_origin(const char *origin, const char *host)
{
    if (!strncasecmp(origin, "http://", 7))
        return !strcasecmp(origin + 7, host);
    return !strncasecmp(origin, "https://", 8) && !strcasecmp(origin + 8, host);
}

static bool origin_named(const struct hzp_auth *auth, const char *origin)
{
    return listed(auth->settings->allow_origin, origin, strlen(origin));
}

/* ---- types ---- */

/* Whether a Content-Type is this one, with or without parameters. */
static bool type_is(const char *type, const char *wanted)
{
    size_t n = strlen(wanted);
    return !strncasecmp(type, wanted, n) && (!type[n] || strchr("; \t", type[n]));
}

static bool is_browser(struct MHD_Connection *connection)
{
    return header(connection, "Origin") || header(connection, "Sec-Fetch-Site") ||
           header(connection, "Sec-Fetch-Mode") || header(connection, "Referer") ||
           header(connection, "Cookie");
}

static bool type_allowed(struct MHD_Connection *connection, const char *type)
{
    if (type && (type_is(type, "application/json") || type_is(type, "application/x-ndjson") ||
                 type_is(type, "application/jsonl") || type_is(type, "text/csv") ||
                 type_is(type, "text/tab-separated-values")))
        return true;
    return (!type || type_is(type, "application/x-www-form-urlencoded")) && !is_browser(connection);
}

void hzp_auth_check_host(const struct hzp_auth *auth, struct MHD_Connection *connection,
                         const char *host, struct hzp_refusal *ret)
{
    host = host ? host : header(connection, MHD_HTTP_HEADER_HOST);
    if (host && !host_allowed(auth, connection, host))
        refuse(ret, MHD_HTTP_FORBIDDEN, "host_not_allowed",
               "the Host \"%.100s\" is not a name of this server; --allow-host allows it", host);
}

void hzp_auth_check_origin(const struct hzp_auth *auth, struct MHD_Connection *connection,
                           const char *host, struct hzp_refusal *ret)
{
    host = host ? host : header(connection, MHD_HTTP_HEADER_HOST);
    const char *origin = header(connection, "Origin");
    const char *type = header(connection, MHD_HTTP_HEADER_CONTENT_TYPE);
    hzp_auth_check_host(auth, connection, host, ret);
    if (ret->status)
        return;
    if (origin && !origin_named(auth, origin) && !(host && same_origin(origin, host)))
        refuse(ret, MHD_HTTP_FORBIDDEN, "origin_not_allowed",
               "pages of %.100s may not do this; --allow-origin allows an origin", origin);
    else if (!type_allowed(connection, type))
        refuse(ret, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, NULL,
               "Content-Type must be application/json or application/x-ndjson, not %.60s",
               type ? type : "missing");
}

/* ---- CORS ---- */

bool hzp_auth_is_preflight(struct MHD_Connection *connection, const char *method)
{
    return !strcmp(method, "OPTIONS") && header(connection, "Origin") &&
           header(connection, "Access-Control-Request-Method");
}

bool hzp_auth_add_cors(const struct hzp_auth *auth, struct MHD_Connection *connection,
                       struct MHD_Response *response, bool preflight)
{
    const char *origin = header(connection, "Origin");
    if (!auth->settings->allow_origin || !*auth->settings->allow_origin)
        return false;
    MHD_add_response_header(response, "Vary", "Origin");
    if (!origin || !origin_named(auth, origin))
        return false;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    if (!preflight) {
        MHD_add_response_header(response, "Access-Control-Expose-Headers",
                                "x-hzpserve-weights-version, x-hzpserve-stale-prefix, "
                                "x-request-id, retry-after");
        return true;
    }
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE");
    /* What the page asks for: the headers are checked when they are used. */
    const char *asked = header(connection, "Access-Control-Request-Headers");
    MHD_add_response_header(response, "Access-Control-Allow-Headers",
                            asked ? asked : "authorization, content-type");
    MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    if (header(connection, "Access-Control-Request-Private-Network"))
        MHD_add_response_header(response, "Access-Control-Allow-Private-Network", "true");
    return true;
}

/* ---- settings ---- */

/* Whether an address to listen on can be reached from this machine only. */
static bool only_loopback(const char *host)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    uint8_t address[16];
    if (getaddrinfo(host, NULL, &hints, &list) || !list)
        return false;
    memset(address, 0, sizeof(address));
    if (list->ai_family == AF_INET6) {
        memcpy(address, &((struct sockaddr_in6 *)list->ai_addr)->sin6_addr, 16);
    } else {
        address[10] = address[11] = 0xff;
        memcpy(address + 12, &((struct sockaddr_in *)list->ai_addr)->sin_addr, 4);
    }
    freeaddrinfo(list);
    return is_loopback(address);
}

/* Reads all keys from where the settings say; the caller frees them. */
static int take_keys(struct hzp_auth *auth, struct keys *ret, struct hzp_err_text *reterr)
{
    const struct hzp_http_settings *settings = auth->settings;
    ret->count = 0;
    int r = take_key(auth, "HZP_API_KEY", settings->api_key, settings->api_key_file, false, ret,
                     reterr);
    if (r >= 0)
        r = take_key(auth, "HZP_ADMIN_KEY", settings->admin_key, settings->admin_key_file, true,
                     ret, reterr);
    if (r < 0)
        free_keys(ret);
    return r;
}

int hzp_auth_create(const struct hzp_http_settings *settings, struct hzp_auth **ret,
                    struct hzp_err_text *reterr)
{
    struct hzp_auth *auth = hzp_xcalloc(1, sizeof(*auth));
    int r;
    auth->settings = settings;
    hzp_lock_init(&auth->lock, HZP_LOCK_AUTH);
    if (gethostname(auth->own_name, sizeof(auth->own_name) - 1))
        auth->own_name[0] = 0;
    HZP_TRY_GOTO(take_keys(auth, &auth->keys, reterr));
    for (int i = 0; i < auth->keys.count; i++) {
        auth->has_api |= !auth->keys.key[i].admin;
        auth->has_admin |= auth->keys.key[i].admin;
    }
    if (!hzp_auth_has_key(auth) && !settings->no_auth && !only_loopback(settings->host)) {
        r = hzp_wrong(reterr, "--host",
                      "%s can be reached from other machines: give --api-key, or --no-auth to let "
                      "every client complete and teach",
                      settings->host);
        goto out;
    }
    *ret = auth;
    return HZP_OK;
out:
    hzp_auth_destroy(auth);
    return r;
}

int hzp_auth_reload(struct hzp_auth *auth, struct hzp_err_text *reterr)
{
    const struct hzp_http_settings *settings = auth->settings;
    struct keys keys, old;
    HZP_TRY(take_keys(auth, &keys, reterr));
    hzp_lock_take(&auth->lock);
    old = auth->keys;
    auth->keys = keys;
    hzp_lock_release(&auth->lock);
    free_keys(&old);
    return (settings->api_key_file != NULL) + (settings->admin_key_file != NULL);
}

void hzp_auth_destroy(struct hzp_auth *auth)
{
    if (!auth)
        return;
    hzp_lock_fini(&auth->lock);
    free_keys(&auth->keys);
    for (struct name *at = auth->names, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    free(auth);
}
