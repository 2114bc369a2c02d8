/* SPDX-License-Identifier: Apache-2.0 */
/* JSON from outside: what it may have and jansson's values cannot hold, and what is no JSON. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static json_t *load(const char *text, int flags)
{
    return hzp_json_load(text, strlen(text), flags, NULL, NULL);
}

/* Text is read, and written as the second text. */
static void check_written(const char *text, int flags, const char *want)
{
    struct hzp_json_error error;
    json_t *json = hzp_json_load(text, strlen(text), flags, NULL, &error);
    if (!json)
        fail_msg("%s: %s", text, error.text);
    json_t *copy = hzp_json_copy(json);
    assert_non_null(copy);
    char *written = hzp_json_dumps(copy, JSON_COMPACT);
    assert_non_null(written);
    assert_string_equal(written, want);
    free(written);
    json_decref(copy);
    json_decref(json);
}

static void numbers_keep_their_spelling(void **state)
{
    static const char *const as_is[] = {"0",
                                        "-7",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "9223372036854775808",
                                        "18446744073709551615",
                                        "18446744073709551616",
                                        "-9223372036854775809",
                                        "1e400",
                                        "-1e400",
                                        "1E+999",
                                        "123456789012345678901234567890.5e300",
                                        "0.5",
                                        "-2.5",
                                        "1000000000000000019884624838656"};
    for (int i = 0; i < HZP_COUNT(as_is); i++) {
        char text[128], want[128];
        check_written(as_is[i], HZP_JSON_ANY, as_is[i]);
        snprintf(text, sizeof(text), " [ {\"n\" : %s} , %s ] ", as_is[i], as_is[i]);
        snprintf(want, sizeof(want), "[{\"n\":%s},%s]", as_is[i], as_is[i]);
        check_written(text, 0, want);
    }
    check_written("[-0, 1e2, 2e1, 1e-400]", 0, "[0,100.0,20.0,0.0]");
}

static void spelled_numbers_have_a_value(void **state)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {{"7", 7},
                 {"18446744073709551616", 0x1p64},
                 {"1e400", INFINITY},
                 {"-1e400", -INFINITY},
                 {"-0.5", -0.5}};
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        json_t *json = load(cases[i].text, HZP_JSON_ANY);
        assert_true(hzp_json_is_number(json));
        assert_true(hzp_json_real(json) == cases[i].value);
        json_decref(json);
    }
    json_t *list = load("[{\"a\": 1}, \"1\", null, true, {}]", 0), *each;
    size_t i;
    json_array_foreach(list, i, each) assert_false(hzp_json_is_number(each));
    json_decref(list);
}

static void spelled_numbers_are_no_objects(void **state)
{
    json_t *list = load("[1e400, {\"a\": 18446744073709551616}, {}]", 0);
    json_t *number = json_array_get(list, 0), *object = json_array_get(list, 1), *each;
    const char *name;
    assert_false(json_is_object(number) || json_is_object(json_object_get(object, "a")));
    assert_true(json_is_object(object) && json_is_object(json_array_get(list, 2)));
    assert_int_equal(json_object_size(number), 0);
    assert_int_equal(json_object_size(object), 1);
    json_object_foreach(number, name, each) fail_msg("a number has the member %s", name);
    assert_false(json_is_object(NULL) || json_is_object(list));
    json_decref(list);
}

static void numbers_of_python(void **state)
{
    check_written("[NaN, Infinity, -Infinity]", HZP_JSON_PYTHON, "[NaN,Infinity,-Infinity]");
    assert_null(load("[NaN]", 0));
    assert_null(load("[Infinity]", 0));
    assert_null(load("[-Infinity]", 0));
    json_t *json = load("NaN", HZP_JSON_ANY | HZP_JSON_PYTHON);
    assert_true(isnan(hzp_json_real(json)));
    json_decref(json);
}

static void strings_keep_their_length(void **state)
{
    static const char text[] = "{\"a\\u0000b\": \"c\\u0000d\", \"e\": \"\\u0000\"}";
    check_written(text, 0, "{\"a\\u0000b\":\"c\\u0000d\",\"e\":\"\\u0000\"}");
    json_t *json = load(text, 0);
    assert_false(hzp_json_names_are_text(json));
    assert_null(json_object_get(json, "a"));
    assert_int_equal(json_string_length(json_object_getn(json, "a\0b", 3)), 3);
    assert_false(hzp_json_is_text(json_object_get(json, "e")));
    json_decref(json);
    json = load("[{\"a\": \"b\"}]", 0);
    assert_true(hzp_json_names_are_text(json));
    assert_true(hzp_json_is_text(json_object_get(json_array_get(json, 0), "a")));
    json_decref(json);
}

static void half_pairs_become_the_replacement(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {{"\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\""},
                 {"\"\\ud800\"", "\"\xEF\xBF\xBD\""},
                 {"\"\\udc00\\ud800\"", "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
                 {"\"\\ud83d pair\"", "\"\xEF\xBF\xBD pair\""},
                 {"\"\\ud83d\\u0041\"", "\"\xEF\xBF\xBD"
                                        "A\""},
                 {"\"\\ud83d\\ud83d\\ude00\"", "\"\xEF\xBF\xBD\xF0\x9F\x98\x80\""}};
    for (int i = 0; i < HZP_COUNT(cases); i++)
        check_written(cases[i].text, HZP_JSON_ANY, cases[i].want);
}

static void others_are_no_json(void **state)
{
    static const struct {
        const char *text;
        int line, column;
    } bad[] = {{"", 1, 1},
               {"{", 1, 2},
               {"[1,]", 1, 4},
               {"{\"a\" 1}", 1, 6},
               {"[01]", 1, 2},
               {"[1.]", 1, 2},
               {"[.5]", 1, 2},
               {"[+1]", 1, 2},
               {"[-]", 1, 2},
               {"[1e]", 1, 2},
               {"[tru]", 1, 2},
               {"{\n \"a\": x}", 2, 7},
               {"[\"\\x\"]", 1, 3},
               {"[\"\\u12\"]", 1, 3},
               {"[\"a", 1, 4},
               {"{} {}", 1, 4},
               {"[\"\t\"]", 1, 3},
               {"[\"\xFF\"]", 1, 3},
               {"[\"\xED\xA0\x80\"]", 1, 3},
               {"{a: 1}", 1, 2},
               {"1", 1, 1},
               {"'a'", 1, 1},
               {"{\"a\": 1,}", 1, 9}};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        struct hzp_json_error error = {0};
        assert_null(hzp_json_load(bad[i].text, strlen(bad[i].text), 0, NULL, &error));
        assert_true(error.text[0]);
        if (error.line != bad[i].line || error.column != bad[i].column)
            fail_msg("%s: line %d column %d", bad[i].text, error.line, error.column);
    }
    char *deep = calloc(1, 2 * HZP_JSON_DEPTH_MAX + 3);
    memset(deep, '[', HZP_JSON_DEPTH_MAX);
    memset(deep + HZP_JSON_DEPTH_MAX, ']', HZP_JSON_DEPTH_MAX);
    json_t *json = load(deep, 0);
    assert_non_null(json);
    json_decref(json);
    memset(deep, '[', HZP_JSON_DEPTH_MAX + 1);
    memset(deep + HZP_JSON_DEPTH_MAX + 1, ']', HZP_JSON_DEPTH_MAX + 1);
    assert_null(load(deep, 0));
    free(deep);
}

static void names_that_repeat(void **state)
{
    check_written("{\"a\": 1, \"a\": 2}", 0, "{\"a\":2}");
    assert_null(load("{\"a\": 1, \"a\": 2}", HZP_JSON_UNIQUE));
}

static void a_prefix_is_read(void **state)
{
    size_t used = 0;
    json_t *json = hzp_json_load("{\"n\": 1e400} rest", 17, HZP_JSON_PREFIX, &used, NULL);
    assert_non_null(json);
    assert_int_equal(used, 12);
    json_decref(json);
}

static void trees_are_written_with_their_form(void **state)
{
    json_t *json = load("{\"a\": [1, 1e400, {}], \"b\": {}}", 0);
    char *text = hzp_json_dumps(json, JSON_INDENT(2));
    assert_string_equal(text, "{\n  \"a\": [\n    1,\n    1e400,\n    {}\n  ],\n  \"b\": {}\n}");
    free(text);
    text = hzp_json_dumps(json, 0);
    assert_string_equal(text, "{\"a\": [1, 1e400, {}], \"b\": {}}");
    free(text);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_keep_their_spelling),
        cmocka_unit_test(spelled_numbers_have_a_value),
        cmocka_unit_test(spelled_numbers_are_no_objects),
        cmocka_unit_test(numbers_of_python),
        cmocka_unit_test(strings_keep_their_length),
        cmocka_unit_test(half_pairs_become_the_replacement),
        cmocka_unit_test(others_are_no_json),
        cmocka_unit_test(names_that_repeat),
        cmocka_unit_test(a_prefix_is_read),
        cmocka_unit_test(trees_are_written_with_their_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
