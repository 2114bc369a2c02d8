/* SPDX-License-Identifier: Apache-2.0 */
/* Renders templates for dev/check_templates.py: each line of standard input is an object
 * {"name", "template", "vars", "now", "repeat"}, each line of output {"text"}, {"error"} or
 * {"refused"}. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Nanoseconds of one rendering, the mean of as many. */
static json_t *measure(const struct hzp_jinja *jinja, const json_t *vars, int64_t times)
{
    struct hzp_jinja_output out = {0};
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int64_t i = 0; i < times; i++)
        hzp_jinja_render(jinja, vars, &hzp_jinja_limits, 1, &out, NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);
    hzp_jinja_output_fini(&out);
    double ns = (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
    return json_real(ns / (double)times);
}

static json_t *render(const json_t *in)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_jinja *jinja = NULL;
    struct hzp_jinja_output out = {0};
    const json_t *source = json_object_get(in, "template");
    json_t *answer;
    if (hzp_jinja_compile(json_string_value(json_object_get(in, "name")), json_string_value(source),
                          json_string_length(source), &jinja, &err) < 0)
        return json_pack("{s:s}", "refused", err.text);
    if (hzp_jinja_render(jinja, json_object_get(in, "vars"), &hzp_jinja_limits,
                         json_integer_value(json_object_get(in, "now")), &out, &err) < 0)
        answer = json_pack("{s:o}", "error", json_stringn_nocheck(err.text, strlen(err.text)));
    else
        answer = json_pack("{s:o}", "text",
                           json_stringn(out.text.bytes ? out.text.data : "", out.text.bytes));
    int64_t repeat = json_integer_value(json_object_get(in, "repeat"));
    if (repeat > 0)
        json_object_set_new(answer, "ns", measure(jinja, json_object_get(in, "vars"), repeat));
    hzp_jinja_output_fini(&out);
    hzp_jinja_free(jinja);
    return answer;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, stdin)) > 0) {
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        json_t *answer = in ? render(in) : NULL;
        char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
        if (!text) {
            fprintf(stderr, "a line is not valid\n");
            return 1;
        }
        puts(text);
        free(text);
        json_decref(answer);
        json_decref(in);
    }
    free(line);
    return 0;
}
