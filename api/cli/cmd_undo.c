/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve lessons, hzpserve undo: what a running server was taught, and taking it back.
 *
 *     lessons              the newest lessons and what became of them
 *     lessons LESSON       one of them, with its texts, as JSON
 *     undo                 takes the newest back
 *     undo LESSON          that one, by its number
 *     undo VERSION         a version serves again: a name, "original", or v and its number
 */
#include "api/client/http_client.h"
#include "api/cli/commands.h"

#include "base/json.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PATIENCE_S = 3700 };

static long long number_of(const json_t *json, const char *name)
{
    return (long long)json_integer_value(json_object_get(json, name));
}

static json_t *ask(const struct hzp_options *options, const char *method, const char *route,
                   const json_t *body, int *ret_status)
{
    struct hzp_http_host server;
    struct hzp_err_text err = {.text = ""};
    int r = hzp_http_server(options->client.url, options->client.api_key, &server, &err);
    *ret_status = 1;
    if (r < 0) {
        *ret_status = hzp_command_failed(r, &err);
        return NULL;
    }
    json_t *json = hzp_http_ask(&server, method, route, body, PATIENCE_S, &err);
    if (!json)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return json;
}

static bool print_json(bool wanted, const json_t *json)
{
    if (wanted) {
        json_dumpf(json, stdout, JSON_INDENT(2));
        printf("\n");
    }
    return wanted;
}

static void print_lesson(const json_t *lesson)
{
    char when[32] = "-";
    time_t seconds = (time_t)(number_of(lesson, "taught_unix_ms") / 1000);
    struct tm tm;
    if (seconds && gmtime_r(&seconds, &tm))
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
    const char *session = json_string_value(json_object_get(lesson, "session"));
    const json_t *effect = json_object_get(lesson, "effect");
    char so[32] = "-", changed[32] = "-";
    if (effect)
        snprintf(so, sizeof(so), "%lld of %lld", number_of(effect, "answered_so"),
                 number_of(effect, "asked"));
    if (number_of(effect, "others"))
        snprintf(changed, sizeof(changed), "%lld of %lld", number_of(effect, "changed"),
                 number_of(effect, "others"));
    printf("%7lld  %-19s  %8lld  %8lld  %-9s  %-8s  %-9s  %s\n", number_of(lesson, "id"), when,
           number_of(lesson, "first"), number_of(lesson, "last"),
           json_string_value(json_object_get(lesson, "state")), so, changed,
           session ? session : "-");
}

int hzp_cmd_lessons(const struct hzp_options *options)
{
    int status;
    size_t i;
    const json_t *lesson;
    char route[128];
    snprintf(route, sizeof(route), "/v1/lessons%s%.100s", options->words ? "/" : "",
             options->words ? options->word[0] : "");
    json_t *json = ask(options, "GET", route, NULL, &status);
    if (!json)
        return status;
    if (!print_json(options->json || options->words, json)) {
        printf("%7s  %-19s  %8s  %8s  %-9s  %-8s  %-9s  %s\n", "lesson", "taught (UTC)", "first",
               "last", "state", "answered", "changed", "session");
        json_array_foreach(json_object_get(json, "data"), i, lesson) print_lesson(lesson);
    }
    json_decref(json);
    return 0;
}

/* What the word names: nothing, a lesson's number, or a version. */
static json_t *body_of(const char *word)
{
    if (!word)
        return json_object();
    const char *digits = word + (*word == 'v'), *kind = *word == 'v' ? "version" : "lesson";
    bool number = *digits && strspn(digits, "0123456789") == strlen(digits);
    return number ? json_pack("{s:I}", kind, (json_int_t)strtoll(digits, NULL, 10))
                  : json_pack("{s:s}", "version", word);
}

static void print_job(const json_t *job)
{
    const json_t *skipped = json_object_get(job, "skipped");
    const json_t *again = json_object_get(job, "learned_again");
    long long made = number_of(job, "weights_version");
    if (json_is_array(skipped))
        printf("examples %lld to %lld are not learned any more\n",
               (long long)json_integer_value(json_array_get(skipped, 0)),
               (long long)json_integer_value(json_array_get(skipped, 1)));
    if (made)
        printf("version %lld serves, with the weights of version %lld\n", made,
               number_of(job, "version"));
    if (json_is_array(again))
        printf("examples %lld to %lld are learned again\n",
               (long long)json_integer_value(json_array_get(again, 0)),
               (long long)json_integer_value(json_array_get(again, 1)));
}

int hzp_cmd_undo(const struct hzp_options *options)
{
    int status;
    json_t *body = body_of(options->words ? options->word[0] : NULL);
    json_t *json = ask(options, "POST", "/v1/undo?timeout=3600", body, &status);
    json_decref(body);
    if (!json)
        return status;
    if (!print_json(options->json, json))
        print_job(json);
    json_decref(json);
    return 0;
}
