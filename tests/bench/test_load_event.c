/* SPDX-License-Identifier: Apache-2.0 */
/* Events of a streamed completion: those of one pass and those that the JSON library reads say the
 * same. */
#include "dev/bench/load_event.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEAD "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":17,\"choices\":"

static struct hzp_load_event read_event(const char *json)
{
    struct hzp_load_event e;
    size_t n = strlen(json);
    char *exact = malloc(n + !n); /* a read behind its end is seen by the sanitizer */
    assert_non_null(exact);
    memcpy(exact, json, n);
    if (hzp_load_event_read(exact, n, &e) < 0)
        fail_msg("refused: %s", json);
    free(exact);
    return e;
}

static void says(const char *json, bool choice, bool text, bool finished)
{
    struct hzp_load_event e = read_event(json);
    if (e.choice != choice || e.text != text || e.finished != finished || e.usage || e.error[0])
        fail_msg("choice %d, text %d, finished %d: %s", e.choice, e.text, e.finished, json);
}

static void texts(void **state)
{
    says(HEAD "[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}],\"usage\":null}", 1, 1, 0);
    says(HEAD "[{\"index\":0,\"text\":\"\",\"finish_reason\":null}]}", 1, 0, 0);
    says(HEAD "[ { \"text\" : \"\\\"}]\\\\\" , \"logprobs\" : null } ] } ", 1, 1, 0);
    says(HEAD "[{\"logprobs\":{\"tokens\":[\"}\",\"{\"],\"x\":[[1,-2.5e3],[]],\"y\":{}},"
              "\"text\":\"a\"}],\"more\":[true,{\"error\":1,\"usage\":{}}]}",
         1, 1, 0);
    says(HEAD "[{\"text\":\"\",\"finish_reason\":\"length\"}]}", 1, 0, 1);
    says(HEAD "[{\"text\":\"b\",\"finish_reason\":\"stop\"}]}", 1, 1, 1);
    says(HEAD "[{\"text\":\"b\"},{\"text\":\"\"}]}", 1, 1, 0);
    says(HEAD "[{\"delta\":{\"text\":\"b\"}}]}", 1, 0, 0);
    says(HEAD "[{\"text\":null}]}", 1, 0, 0);
    says(HEAD "[{\"\\u0074ext\":\"b\"}]}", 1, 1, 0);
    says(HEAD "[]}", 0, 0, 0);
    says("{\"text\":\"a\",\"finish_reason\":\"stop\"}", 0, 0, 0);
    says("{}", 0, 0, 0);
}

static void counts(void **state)
{
    struct hzp_load_event e =
        read_event(HEAD "[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":7}}");
    assert_true(e.usage && !e.choice && e.input == 3 && e.output == 7);
    e = read_event(HEAD "[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":3}}");
    assert_true(e.usage && e.text && e.input == 3 && e.output == 0);
}

static void errors(void **state)
{
    struct hzp_load_event e = read_event("{\"error\":{\"message\":\"the device failed\"}}");
    assert_string_equal(e.error, "the device failed");
    e = read_event(HEAD "[{\"text\":\"a\"}],\"error\":{\"code\":1}}");
    assert_string_equal(e.error, "an error without a message");
    e = read_event(HEAD "[{\"text\":\"a\"}],\"error\":null}");
    assert_true(e.text && !e.error[0]);
}

static void malformed(void **state)
{
    static const char *const bad[] = {
        "",
        "[1]",
        "\"x\"",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1}}",
        "{\"a\":1,}",
        "{\"a\":\"x}",
        "{\"a\":\"x\\",
        "{\"a\":\"x\\\"",
        "{\"a\":[1}",
        "{\"a\":{\"b\":1]}",
        "{\"choices\":[{\"text\":\"a\"}",
        "{\"choices\":[{\"text\":\"a\"}]",
        "{\"choices\":[{\"text\":\"a\"]}}",
        "{\"choices\":[{\"text\":\"a\"}]}{}",
        "{\"choices\":[{\"text\":\"a}]}",
    };
    struct hzp_load_event e;
    for (size_t i = 0; i < HZP_COUNT(bad); i++)
        if (hzp_load_event_read(bad[i], strlen(bad[i]), &e) != HZP_EFORMAT)
            fail_msg("accepted: %s", bad[i]);
    char deep[4096];
    memset(deep, '[', sizeof(deep));
    memcpy(deep, "{\"a\":", 5);
    assert_int_equal(hzp_load_event_read(deep, sizeof(deep), &e), HZP_EFORMAT);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(counts),
        cmocka_unit_test(errors),
        cmocka_unit_test(malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
