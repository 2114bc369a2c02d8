/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve weights ACTION [VERSION [NAME]]: what a running server's versions are, and which one
 * serves.
 *
 *     list                      the newest versions
 *     show VERSION              one of them: a number, a name, or current
 *     name VERSION NAME         gives it a name
 *     unname NAME               takes the name away
 *     activate VERSION          it serves again
 *     promote VERSION           its trial ends: it serves all requests
 *     drop VERSION              its trial ends: it serves none
 *     export VERSION DIRECTORY  a model directory on the server: STATE/export/DIRECTORY
 */
#include "api/client/http_client.h"
#include "api/cli/commands.h"

#include "base/json.h"
#include <string.h>
#include <time.h>

enum { PATIENCE_S = 3700, SHOWN = 20 };

struct client {
    const struct hzp_options *options;
    struct hzp_http_host server;
};

/* The answer; NULL: an error was printed. */
static json_t *ask(struct client *c, const char *method, const char *route, const json_t *body)
{
    struct hzp_err_text err = {.text = ""};
    json_t *json = hzp_http_ask(&c->server, method, route, body, PATIENCE_S, &err);
    if (!json)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return json;
}

static void print_json(const json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    printf("\n");
}

static json_int_t number_of(const json_t *json, const char *name)
{
    return json_integer_value(json_object_get(json, name));
}

static void print_version(const json_t *v)
{
    char when[32] = "", names[200] = "";
    time_t seconds = (time_t)(number_of(v, "published_unix_ms") / 1000);
    struct tm tm;
    size_t i, used = 0;
    const json_t *name;
    if (gmtime_r(&seconds, &tm))
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
    json_array_foreach(json_object_get(v, "names"), i, name)
    {
        int n = snprintf(names + used, sizeof(names) - used, " %s", json_string_value(name));
        used = HZP_MIN(used + (size_t)HZP_MAX(n, 0), sizeof(names) - 1);
    }
    printf("%8lld  %8lld  %8lld  %s  ", (long long)number_of(v, "id"),
           (long long)number_of(v, "parent"), (long long)number_of(v, "learned_through"), when);
    const json_t *loss = json_object_get(v, "loss");
    if (json_is_number(loss))
        printf("%8.4f", json_number_value(loss));
    else
        printf("%8s", "-");
    const char *state = json_string_value(json_object_get(v, "state"));
    printf("  %-8s %-4s %-4s%s\n", state ? state : "",
           json_is_true(json_object_get(v, "on_disk")) ? "disk" : "-",
           json_is_true(json_object_get(v, "in_slot")) ? "slot" : "-", names);
}

static int list(struct client *c)
{
    char route[64];
    size_t i;
    json_t *version;
    snprintf(route, sizeof(route), "/v1/weights?limit=%d", SHOWN);
    json_t *json = ask(c, "GET", route, NULL);
    if (!json)
        return 1;
    if (c->options->json) {
        print_json(json);
    } else {
        printf("%8s  %8s  %8s  %-19s  %8s  %-8s %s\n", "version", "parent", "learned",
               "published (UTC)", "loss", "state", "kept names");
        json_array_foreach(json_object_get(json, "data"), i, version) print_version(version);
    }
    json_decref(json);
    return 0;
}

static int show(struct client *c, const char *version)
{
    char route[300];
    snprintf(route, sizeof(route), "/v1/weights/%.200s", version);
    json_t *json = ask(c, "GET", route, NULL);
    if (json)
        print_json(json);
    json_decref(json);
    return json ? 0 : 1;
}

/* Runs a job and prints it. */
static int job(struct client *c, const char *version, const char *action, json_t *body)
{
    char route[300];
    snprintf(route, sizeof(route), "/v1/weights/%.200s/%s?timeout=3600", version, action);
    json_t *json = ask(c, "POST", route, body);
    if (json)
        print_json(json);
    json_decref(json);
    json_decref(body);
    return json ? 0 : 1;
}

static int unname(struct client *c, const char *name)
{
    char route[300];
    snprintf(route, sizeof(route), "/v1/weights/names/%.200s", name);
    json_t *json = ask(c, "DELETE", route, NULL);
    json_decref(json);
    return json ? 0 : 1;
}

static int run(struct client *c)
{
    const struct hzp_options *o = c->options;
    const struct hzp_weights_options *w = &o->weights;
    const char *action = o->words ? o->word[0] : "";
    if (!strcmp(action, "list") && o->words == 1)
        return list(c);
    if (!strcmp(action, "show") && o->words == 2)
        return show(c, o->word[1]);
    if (!strcmp(action, "name") && o->words == 3)
        return job(c, o->word[1], "name", json_pack("{s:s}", "name", o->word[2]));
    if (!strcmp(action, "unname") && o->words == 2)
        return unname(c, o->word[1]);
    if (!strcmp(action, "activate") && o->words == 2)
        return job(c, o->word[1], "activate",
                   json_pack("{s:s, s:s}", "lessons", w->lessons ? "replay" : "skip", "optimizer",
                             w->optimizer ? "reset" : "restore"));
    if (!strcmp(action, "export") && o->words == 3)
        return job(c, o->word[1], "export", json_pack("{s:s}", "directory", o->word[2]));
    if ((!strcmp(action, "promote") || !strcmp(action, "drop")) && o->words == 2)
        return job(c, o->word[1], action, json_object());
    fprintf(stderr,
            "hzpserve: usage: hzpserve weights list|show VERSION|name VERSION NAME|unname "
            "NAME|activate VERSION|promote VERSION|drop VERSION|export VERSION DIRECTORY\n");
    return 2;
}

int hzp_cmd_weights(const struct hzp_options *options)
{
    struct client c = {.options = options};
    struct hzp_err_text err = {.text = ""};
    int r = hzp_http_server(options->client.url, options->client.api_key, &c.server, &err);
    return r < 0 ? hzp_command_failed(r, &err) : run(&c);
}
