/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: what jinja2 makes of tests/data/jinja (written by dev/check_templates.py), the
 * bounds of a rendering, and what is refused with its line. */
#include "base/json.h"
#include "text/jinja/jinja.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static json_t *load(const char *name)
{
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof(path), "%s/jinja/%s", getenv("HZP_OWN_DATA"), name);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!json)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return json;
}

static char *read_text(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/jinja/%s", getenv("HZP_OWN_DATA"), name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 65536);
    assert_true(fread(text, 1, 65535, file) > 0);
    fclose(file);
    return text;
}

/* Compares one rendering; want JSON null: it must fail, at compilation or afterwards. */
static void expect(const char *title, const char *source, size_t bytes, const json_t *vars,
                   int64_t now, const json_t *want)
{
    struct hzp_jinja *jinja = NULL;
    struct hzp_jinja_output out = {0};
    struct hzp_err_text err = {.text = ""};
    int r = hzp_jinja_compile(title, source, bytes, &jinja, &err);
    if (r == HZP_OK)
        r = hzp_jinja_render(jinja, vars, &hzp_jinja_limits, now, &out, &err);
    if (json_is_null(want)) {
        if (r == HZP_OK)
            fail_msg("%s: %s: no error", title, source);
        assert_true(err.text[0] != 0 && !strchr(err.text, '\n'));
    } else {
        if (r != HZP_OK)
            fail_msg("%s: %s: %s", title, source, err.text);
        size_t n = json_string_length(want);
        if (out.text.bytes != n || (n && memcmp(out.text.data, json_string_value(want), n)))
            fail_msg("%s: %s\n  gives %.*s\n  not   %s", title, source, (int)out.text.bytes,
                     out.text.data, json_string_value(want));
    }
    hzp_jinja_output_fini(&out);
    hzp_jinja_free(jinja);
}

/* Numbers that neither int nor float holds are printed as they came, and are numbers. */
static void spelled_numbers(void **state)
{
    static const char *const cases[][2] = {
        {"{{ n }} {{ n | tojson }} {{ n is integer }} {{ n is float }} {{ n is number }}",
         "18446744073709551615 18446744073709551615 True False True"},
        {"{{ r }} {{ [r] | tojson }} {{ r is integer }} {{ r is float }} {{ r is string }}",
         "1e400 [1e400] False True False"},
        {"{{ n == n }} {{ n == m }} {{ n > 5 }} {{ n is mapping }} {{ r > n }} {{ n | int }}",
         "True False True False True 18446744073709551615"},
        {"{{ {'a': n} }} {{ d | tojson }} {{ n | abs }} {{ -1 * r }} {{ 'x' ~ n }}",
         "{'a': 18446744073709551615} {\"a\\u0000b\": [NaN]} 18446744073709551615 -inf "
         "x18446744073709551615"},
    };
    static const char text[] = "{\"n\": 18446744073709551615, \"m\": 18446744073709551616, "
                               "\"r\": 1e400, \"d\": {\"a\\u0000b\": [NaN]}}";
    json_t *vars = hzp_json_load(text, sizeof(text) - 1, HZP_JSON_PYTHON, NULL, NULL);
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        json_t *want = json_string(cases[i][1]);
        expect("spelled", cases[i][0], strlen(cases[i][0]), vars, 0, want);
        json_decref(want);
    }
    json_decref(vars);
}

static void as_jinja2(void **state)
{
    json_t *cases = load("cases.json"), *vars = json_object_get(cases, "vars"), *pair;
    int64_t now = json_integer_value(json_object_get(cases, "now"));
    size_t i;
    json_array_foreach(json_object_get(cases, "snippets"), i, pair)
    {
        const json_t *source = json_array_get(pair, 0);
        expect("snippet", json_string_value(source), json_string_length(source), vars, now,
               json_array_get(pair, 1));
    }
    assert_true(i > 400);
    const char *file, *title;
    json_t *texts, *want;
    json_object_foreach(json_object_get(cases, "files"), file, texts)
    {
        char *source = read_text(file);
        json_object_foreach(texts, title, want)
            expect(title, source, strlen(source),
                   json_object_get(json_object_get(cases, "conversations"), title), now, want);
        free(source);
    }
    json_decref(cases);
}

static int render(const char *source, const struct hzp_jinja_limits *limits,
                  struct hzp_jinja_output *out, struct hzp_err_text *err)
{
    struct hzp_jinja *jinja = NULL;
    int r = hzp_jinja_compile("t", source, strlen(source), &jinja, err);
    if (r == HZP_OK)
        r = hzp_jinja_render(jinja, NULL, limits, 0, out, err);
    hzp_jinja_free(jinja);
    return r;
}

static void generation_spans(void **state)
{
    struct hzp_jinja_output out = {0};
    assert_int_equal(render("a{% generation %}bc{% endgeneration %}d{% for i in [1, 2] %}"
                            "{% generation %}{{ i }}{% endgeneration %}{% endfor %}",
                            &hzp_jinja_limits, &out, NULL),
                     HZP_OK);
    assert_int_equal(out.spans, 3);
    assert_true(out.span[0].from == 1 && out.span[0].to == 3);
    assert_true(out.span[2].from == 5 && out.span[2].to == 6);
    hzp_jinja_output_fini(&out);
}

/* Each of these reaches a bound; none takes long or much memory on the way. */
static void bounds(void **state)
{
    static const struct {
        const char *source, *says;
    } cases[] = {
        {"{% set n = range(10000) %}{% for a in n %}{% for b in n %}{% endfor %}{% endfor %}",
         "steps"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply"},
        {"{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}"
         "{% set ns.x = ns.x + ns.x %}{% endfor %}",
         "more than"},
        {"{{ 'a' * 10 ** 15 }}", "more than"},
        {"{{ '%1000000000d' % 1 }}", "more than"},
        {"{{ 'x'.center(10 ** 12) }}", "more than"},
        {"{{ 'x'|indent(10 ** 12, true) }}", "more than"},
        {"{{ [0] * 10 ** 12 }}", "more than"},
        {"{% for a in range(100000) %}{{ "
         "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' "
         "* 100 }}{% endfor %}",
         "more than"},
        {"{{ 10 ** 30 }}", "too large"},
        {"{{ 9223372036854775807 + 1 }}", "too large"},
        {"{% for i in range(100001) %}{% endfor %}", "MAX_RANGE"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}{{ ns.x }}",
         "nested too deeply"},
    };
    const struct hzp_jinja_limits limits = {3000000, (size_t)32 << 20, (size_t)1 << 20};
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct hzp_jinja_output out = {0};
        struct hzp_err_text err = {.text = ""};
        assert_int_equal(render(cases[i].source, &limits, &out, &err), HZP_EINVAL);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: %s", cases[i].source, err.text);
        hzp_jinja_output_fini(&out);
    }
}

static void refusals(void **state)
{
    static const struct {
        const char *source, *says;
        int code;
    } cases[] = {
        {"a\n{% include 'x' %}", "t, line 2: the tag include is not supported", HZP_EUNSUP},
        {"\n\n{{ x | urlize }}", "t, line 3: the filter urlize is not supported", HZP_EUNSUP},
        {"{% if a %}\n{{ x | urlize }}{% endif %}", "t, line 2: the filter urlize", HZP_EUNSUP},
        {"{{ x is odder }}", "t, line 1: the test odder is not supported", HZP_EUNSUP},
        {"{{ x.encode() }}", "the method encode is not supported", HZP_EUNSUP},
        {"{{ cycler(1) }}", "the function cycler is not supported", HZP_EUNSUP},
        {"{% for x in y %}\n\n", "t, line 2: the template ends, else is missing", HZP_EFORMAT},
        {"{{ 'a' }", "t, line 1:", HZP_EFORMAT},
        {"\xFF", "not valid UTF-8", HZP_EFORMAT},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct hzp_jinja_output out = {0};
        struct hzp_err_text err = {.text = ""};
        assert_int_equal(render(cases[i].source, &hzp_jinja_limits, &out, &err), cases[i].code);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: %s", cases[i].source, err.text);
        hzp_jinja_output_fini(&out);
    }
    char *deep = malloc(20001);
    memset(deep, '(', 20000);
    memcpy(deep, "{{", 2);
    deep[20000] = 0;
    struct hzp_err_text err = {.text = ""};
    struct hzp_jinja_output out = {0};
    assert_true(render(deep, &hzp_jinja_limits, &out, &err) < 0);
    free(deep);
}

/* The deepest recursion that the bound allows fits the stack of a connection's thread. */
static void *recurse(void *arg)
{
    struct hzp_jinja_output out = {0};
    struct hzp_err_text err = {.text = ""};
    int r = render("{% macro m(x) %}{% for i in [x] if i %}{% call(z) m([[x]]|map('first')|list)"
                   " %}{% if x %}{{ ((x ~ z) | upper | trim)[1:] }}{% endif %}{% endcall %}"
                   "{% endfor %}{{ caller(1) }}{% endmacro %}{{ m(1) }}",
                   &hzp_jinja_limits, &out, &err);
    hzp_jinja_output_fini(&out);
    return r == HZP_EINVAL && strstr(err.text, "nested too deeply") ? arg : NULL;
}

static void deep_recursion_fits_the_stack(void **state)
{
    pthread_attr_t attr;
    pthread_t thread;
    void *ret = NULL;
    int mark;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 512 * 1024);
    assert_int_equal(pthread_create(&thread, &attr, recurse, &mark), 0);
    pthread_join(thread, &ret);
    pthread_attr_destroy(&attr);
    assert_ptr_equal(ret, &mark);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_jinja2),        cmocka_unit_test(spelled_numbers),
        cmocka_unit_test(generation_spans), cmocka_unit_test(bounds),
        cmocka_unit_test(refusals),         cmocka_unit_test(deep_recursion_fits_the_stack),
    };
    setenv("TZ", "UTC", 1);
    tzset();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
