/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve weights, hzpserve lessons, hzpserve undo: a running server's versions, which one serves,
 * what it was taught, and taking that back.
 *
 *     weights list                      those with names, those on disk, the last of each lesson
 *     weights show VERSION              one of them: a number, a name, or current
 *     weights name VERSION NAME         gives it a name
 *     weights unname NAME               takes the name away
 *     weights activate VERSION          it serves again
 *     weights promote VERSION           its trial ends: it serves all requests
 *     weights drop VERSION              its trial ends: it serves none
 *     weights export VERSION DIRECTORY  a model directory on the server: STATE/export/DIRECTORY
 *
 *     lessons              the newest 2048 lessons and what became of them
 *     lessons LESSON       one of them, with its texts, as JSON
 *
 *     undo                 takes the newest back
 *     undo LESSON          that one, by its number
 *     undo LESSON redo     it is taught once more, as a new lesson
 *     undo VERSION         a version serves again: a name, "original", or v and its number
 */
#include "api/cli/commands.h"
#include "api/client/http_client.h"

enum {
    PATIENCE_S = 3700,
    SHOWN = 20,
    LOOKED_AT = 2048 /* lessons, or versions: with all that each can have, within
                      * HZP_HTTP_BODY_MAX */
};

static long long number_of(const json_t *json, const char *name)
{
    return (long long)json_integer_value(json_object_get(json, name));
}

/* A time in milliseconds as text; "-": none. */
static const char *when(const json_t *json, const char *name, char ret[32])
{
    time_t seconds = (time_t)(number_of(json, name) / 1000);
    struct tm tm;
    strcpy(ret, "-");
    if (seconds && gmtime_r(&seconds, &tm))
        strftime(ret, 32, "%Y-%m-%d %H:%M:%S", &tm);
    return ret;
}

/* Asks the server; takes over body, NULL: none.  Returns the exit status; *ret: its answer, which
 * the caller owns, or NULL. */
static int fetch(const struct hzp_options *options, const char *method, const char *route,
                 json_t *body, json_t **ret)
{
    struct hzp_http_host server;
    struct hzp_err_text err = {.text = ""};
    int r = hzp_http_server(options->client.url, options->client.api_key, &server, &err);
    *ret = r < 0 ? NULL : hzp_http_ask(&server, method, route, body, PATIENCE_S, &err);
    if (r < 0)
        json_decref(body);
    if (r < 0)
        return hzp_command_failed(r, &err);
    if (!*ret)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    return *ret ? 0 : 1;
}

static void show(const struct hzp_options *options, const json_t *json,
                 void (*print)(const json_t *json))
{
    if (print && !options->json) {
        print(json);
    } else {
        json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        printf("\n");
    }
}

/* Asks the server and prints its answer by print, NULL or --json: as JSON; takes over body, NULL:
 * none.  Returns the exit status. */
static int ask(const struct hzp_options *options, const char *method, json_t *body,
               void (*print)(const json_t *json), const char *format, ...) HZP_PRINTF(5, 6);

static int ask(const struct hzp_options *options, const char *method, json_t *body,
               void (*print)(const json_t *json), const char *format, ...)
{
    char route[300];
    json_auto_t *json = NULL;
    va_list args;
    va_start(args, format);
    vsnprintf(route, sizeof(route), format, args);
    va_end(args);
    int r = fetch(options, method, route, body, &json);
    if (!r)
        show(options, json, print);
    return r;
}

/* ---- versions ---- */

/* The lesson that the version's newest example is of, among `lessons`; 0: of none of them. */
static long long lesson_of(const json_t *v, const json_t *lessons)
{
    const json_t *ranges = json_object_get(v, "learned"), *lesson;
    size_t i, n = json_array_size(ranges);
    if (!n)
        return 0;
    json_int_t last = json_integer_value(json_array_get(json_array_get(ranges, n - 1), 1));
    json_array_foreach(json_object_get(lessons, "data"), i, lesson)
    {
        if (number_of(lesson, "first") <= last && last <= number_of(lesson, "last"))
            return number_of(lesson, "id");
    }
    return 0;
}

static void print_version(const json_t *v, long long lesson)
{
    char published[32], names[200] = "", of[24] = "-", loss[16] = "-";
    const char *state = json_string_value(json_object_get(v, "state"));
    long long through = number_of(v, "finished_through");
    size_t i, used = 0;
    const json_t *name;
    json_array_foreach(json_object_get(v, "names"), i, name)
    {
        int n = snprintf(names + used, sizeof(names) - used, " %s", json_string_value(name));
        used = HZP_MIN(used + (size_t)HZP_MAX(n, 0), sizeof(names) - 1);
    }
    if (lesson)
        snprintf(of, sizeof(of), "%lld", lesson);
    if (json_is_number(json_object_get(v, "loss")))
        snprintf(loss, sizeof(loss), "%.4f", json_number_value(json_object_get(v, "loss")));
    printf("%8lld  %8lld  %8s  %8lld  %-19s  %8s  %-8s %-4s %-4s%s\n", number_of(v, "id"),
           number_of(v, "parent"), of, HZP_MAX(through, 0), when(v, "published_unix_ms", published),
           loss, state ? state : "", json_is_true(json_object_get(v, "on_disk")) ? "disk" : "-",
           json_is_true(json_object_get(v, "in_slot")) ? "slot" : "-", names);
}

/* Versions with names first, then those on disk, then the last one of each lesson, newest first
 * each; at most SHOWN of the second and of the third kind. */
static void print_versions(const json_t *json, const json_t *lessons)
{
    enum { NAMED, KEPT, OTHERS, CLASSES };
    printf("%8s  %8s  %8s  %8s  %-19s  %8s  %-8s %s\n", "version", "parent", "lesson", "through",
           "published (UTC)", "loss", "state", "kept names");
    for (int class = NAMED; class < CLASSES; class ++) {
        size_t i;
        json_t *v;
        int shown = 0;
        long long before = 0; /* the lesson of the version after this one */
        json_array_foreach(json_object_get(json, "data"), i, v)
        {
            long long lesson = lesson_of(v, lessons);
            bool last = !lesson || lesson != before;
            int own = json_array_size(json_object_get(v, "names"))  ? NAMED
                      : json_is_true(json_object_get(v, "on_disk")) ? KEPT
                                                                    : OTHERS;
            before = lesson;
            if (own != class || (class == OTHERS && !last) || (class != NAMED && shown >= SHOWN))
                continue;
            print_version(v, lesson);
            shown += class != NAMED;
        }
    }
}

static int list_versions(const struct hzp_options *o)
{
    json_auto_t *versions = NULL, *lessons = NULL;
    if (o->json)
        return ask(o, "GET", NULL, NULL, "/v1/weights?limit=%d", SHOWN);
    char route[40];
    snprintf(route, sizeof(route), "/v1/weights?limit=%d", LOOKED_AT);
    int r = fetch(o, "GET", route, NULL, &versions);
    if (!r && !json_is_null(json_object_get(versions, "finished_through")))
        r = fetch(o, "GET", "/v1/lessons?limit=100", NULL, &lessons);
    if (!r)
        print_versions(versions, lessons);
    return r;
}

static void print_nothing(const json_t *json)
{
}

/* A job, which is waited for. */
static int job(const struct hzp_options *o, json_t *body)
{
    return ask(o, "POST", body, NULL, "/v1/weights/%.200s/%.20s?timeout=3600", o->word[1],
               o->word[0]);
}

int hzp_cmd_weights(const struct hzp_options *o)
{
    const struct hzp_weights_options *w = &o->weights;
    const char *action = o->words ? o->word[0] : "";
    if (!strcmp(action, "list") && o->words == 1)
        return list_versions(o);
    if (!strcmp(action, "show") && o->words == 2)
        return ask(o, "GET", NULL, NULL, "/v1/weights/%.200s", o->word[1]);
    if (!strcmp(action, "name") && o->words == 3)
        return job(o, json_pack("{s:s}", "name", o->word[2]));
    if (!strcmp(action, "unname") && o->words == 2)
        return ask(o, "DELETE", NULL, print_nothing, "/v1/weights/names/%.200s", o->word[1]);
    if (!strcmp(action, "activate") && o->words == 2)
        return job(o, json_pack("{s:s, s:s}", "lessons", w->lessons ? "replay" : "skip",
                                "optimizer", w->optimizer ? "reset" : "restore"));
    if (!strcmp(action, "export") && o->words == 3)
        return job(o, json_pack("{s:s}", "directory", o->word[2]));
    if ((!strcmp(action, "promote") || !strcmp(action, "drop")) && o->words == 2)
        return job(o, json_object());
    return hzp_command_usage("weights list|show VERSION|name VERSION NAME|unname NAME|activate "
                             "VERSION|promote VERSION|drop VERSION|export VERSION DIRECTORY");
}

/* ---- lessons ---- */

static void print_lesson(const json_t *lesson)
{
    char taught[32];
    const char *session = json_string_value(json_object_get(lesson, "session"));
    const json_t *effect = json_object_get(lesson, "effect");
    char so[32] = "-", changed[32] = "-", loss[32] = "-";
    if (number_of(effect, "asked"))
        snprintf(so, sizeof(so), "%lld of %lld", number_of(effect, "answered_so"),
                 number_of(effect, "asked"));
    if (number_of(effect, "others"))
        snprintf(changed, sizeof(changed), "%lld of %lld", number_of(effect, "changed"),
                 number_of(effect, "others"));
    const json_t *before = json_object_get(effect, "others_loss_before");
    const json_t *after = json_object_get(effect, "others_loss_after");
    if (json_is_number(before) && json_is_number(after))
        snprintf(loss, sizeof(loss), "%.3f %+.3f", json_number_value(before),
                 json_number_value(after) - json_number_value(before));
    printf("%7lld  %-19s  %8lld  %8lld  %-9s  %-8s  %-9s  %-12s  %s\n", number_of(lesson, "id"),
           when(lesson, "taught_unix_ms", taught), number_of(lesson, "first"),
           number_of(lesson, "last"), json_string_value(json_object_get(lesson, "state")), so,
           changed, loss, session ? session : "-");
}

static void print_lessons(const json_t *json)
{
    size_t i;
    const json_t *lesson;
    printf("%7s  %-19s  %8s  %8s  %-9s  %-8s  %-9s  %-12s  %s\n", "lesson", "taught (UTC)", "first",
           "last", "state", "answered", "changed", "others' loss", "session");
    json_array_foreach(json_object_get(json, "data"), i, lesson) print_lesson(lesson);
    if (json_is_true(json_object_get(json, "has_more")))
        printf("older ones: GET /v1/lessons?before=%lld\n", number_of(json, "next_before"));
}

/* All pages as one list. */
static int list_lessons(const struct hzp_options *options)
{
    json_auto_t *all = NULL;
    char route[80] = "/v1/lessons?limit=100";
    for (bool more = true; more;) {
        json_auto_t *page = NULL;
        int r = fetch(options, "GET", route, NULL, &page);
        if (r)
            return r;
        json_t *data = json_object_get(page, "data");
        if (all)
            json_array_extend(json_object_get(all, "data"), data);
        else
            all = json_incref(page);
        json_object_set(all, "has_more", json_object_get(page, "has_more"));
        json_object_set(all, "next_before", json_object_get(page, "next_before"));
        more = json_is_true(json_object_get(page, "has_more")) &&
               json_array_size(json_object_get(all, "data")) < LOOKED_AT;
        snprintf(route, sizeof(route), "/v1/lessons?limit=100&before=%lld",
                 number_of(page, "next_before"));
    }
    show(options, all, print_lessons);
    return 0;
}

int hzp_cmd_lessons(const struct hzp_options *options)
{
    if (options->words)
        return ask(options, "GET", NULL, NULL, "/v1/lessons/%.100s", options->word[0]);
    return list_lessons(options);
}

json_t *hzp_undo_body(const char *word)
{
    if (!word)
        return json_object();
    const char *digits = word + (*word == 'v'), *kind = *word == 'v' ? "version" : "lesson";
    bool number = *digits && strspn(digits, "0123456789") == strlen(digits);
    return number ? json_pack("{s:I}", kind, (json_int_t)strtoll(digits, NULL, 10))
                  : json_pack("{s:s}", "version", word);
}

static void print_range(const json_t *range, const char *what)
{
    long long first = json_integer_value(json_array_get(range, 0));
    long long last = json_integer_value(json_array_get(range, 1));
    if (first && first == last)
        printf("example %lld is %s\n", first, what);
    else if (first)
        printf("examples %lld to %lld are %s\n", first, last, what);
}

static void print_job(const json_t *job)
{
    const json_t *skipped = json_object_get(job, "skipped");
    const json_t *again = json_object_get(job, "learned_again");
    long long made = number_of(job, "weights_version");
    print_range(skipped, "not learned any more");
    if (made)
        printf("version %lld serves, with the weights of version %lld\n", made,
               number_of(job, "version"));
    print_range(again, "learned again");
    if (json_object_get(job, "taught_unix_ms"))
        printf("taught once more, as lesson %lld\n", number_of(job, "id"));
}

int hzp_cmd_undo(const struct hzp_options *options)
{
    json_t *body = hzp_undo_body(options->words ? options->word[0] : NULL);
    if (options->words > 1 && strcmp(options->word[1], "redo")) {
        json_decref(body);
        return hzp_command_usage("undo [LESSON|VERSION] [redo]");
    }
    if (options->words > 1)
        json_object_set_new(body, "redo", json_true());
    return ask(options, "POST", body, print_job, "/v1/undo?timeout=3600");
}
