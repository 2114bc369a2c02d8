/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of teaching answers, and sessions: what is forgotten is never weaker than what was
 * taught. */
#include "api/http/routes/taught.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_tokens(void **state)
{
    struct hzp_taught *t = hzp_taught_create("one model", 0), *u = hzp_taught_create("another", 0);
    static const int64_t number[] = {1, 41, INT64_MAX};
    char text[HZP_AFTER_BYTES], cut[HZP_AFTER_BYTES];
    struct hzp_err_text err;
    int64_t n;
    for (int i = 0; i < 3; i++) {
        hzp_after_text(t, number[i], text);
        assert_int_equal(hzp_after_read(t, text, &n, &err), HZP_OK);
        assert_int_equal(n, number[i]);
        assert_int_equal(hzp_after_read(u, text, &n, &err), HZP_EINVAL);
        assert_string_equal(err.param, "after");
        for (size_t bytes = 0; bytes < strlen(text); bytes++) {
            snprintf(cut, sizeof(cut), "%.*s", (int)bytes, text);
            assert_int_equal(hzp_after_read(t, cut, &n, &err), HZP_EINVAL);
        }
    }
    static const char *const bad[] = {
        "",           "-", "41", "0-00000000", "-1-00000000", "x", "99999999999999999999-00000000",
        "41-9F3C2A1B"};
    for (int i = 0; i < 8; i++)
        assert_int_equal(hzp_after_read(t, bad[i], &n, &err), HZP_EINVAL);
    hzp_taught_destroy(t);
    hzp_taught_destroy(u);
}

/* Sessions of an earlier run keep what they taught, also where that is less than what forgotten
 * ones may have. */
static void test_restored(void **state)
{
    struct hzp_taught *t = hzp_taught_create("one model", 20);
    static const struct hzp_session before[] = {{"new", 30}, {"old", 5}};
    for (int i = 0; i < 2; i++)
        hzp_session_restore(t, &before[i]);
    assert_int_equal(hzp_session_newest(t, "new"), 30);
    assert_int_equal(hzp_session_newest(t, "old"), 5);
    assert_int_equal(hzp_session_newest(t, "unknown"), 20);
    hzp_session_note(t, "old", 31);
    assert_int_equal(hzp_session_newest(t, "old"), 31);
    hzp_taught_destroy(t);
}

static void test_sessions(void **state)
{
    struct hzp_taught *t = hzp_taught_create("one model", 7);
    char name[HZP_SESSION_BYTES + 2];
    struct hzp_err_text err;
    assert_int_equal(hzp_session_newest(t, "unknown"), 7); /* it may have taught before the start */
    hzp_session_note(t, "a", 9);
    hzp_session_note(t, "a", 8);
    assert_int_equal(hzp_session_newest(t, "a"), 9);
    assert_int_equal(hzp_session_newest(t, "unknown"), 7);
    for (int i = 0; i < 2 * HZP_SESSIONS_MAX; i++) {
        snprintf(name, sizeof(name), "session %d", i);
        hzp_session_note(t, name, 100 + i);
        assert_int_equal(hzp_session_newest(t, "a"), 9); /* in use: it is not forgotten */
    }
    for (int i = 0; i < 2 * HZP_SESSIONS_MAX; i++) {
        snprintf(name, sizeof(name), "session %d", i);
        assert_true(hzp_session_newest(t, name) >= 100 + i);
    }
    assert_int_equal(hzp_session_newest(t, name), 100 + 2 * HZP_SESSIONS_MAX - 1);
    assert_in_range(hzp_session_newest(t, "unknown"), 100 + HZP_SESSIONS_MAX - 2,
                    100 + HZP_SESSIONS_MAX);
    hzp_taught_destroy(t);

    memset(name, 'n', sizeof(name));
    name[HZP_SESSION_BYTES] = 0;
    assert_int_equal(hzp_session_check(name, &err), HZP_OK);
    name[HZP_SESSION_BYTES] = 'n';
    name[HZP_SESSION_BYTES + 1] = 0;
    assert_int_equal(hzp_session_check(name, &err), HZP_EINVAL);
    assert_int_equal(hzp_session_check("", &err), HZP_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
