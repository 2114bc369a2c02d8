/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings: compared with a plain search, for every division of the text into pieces. */
#include "text/tokenizer/stop.h"

#include "tests/text/tokenizer_makes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void init(struct hzp_stop *stop, const char *const *strings, int n, bool include)
{
    size_t bytes[HZP_STOP_MAX];
    for (int i = 0; i < n; i++)
        bytes[i] = strlen(strings[i]);
    assert_int_equal(hzp_stop_init(stop, strings, bytes, n, include, NULL), 0);
}

static void expect(struct hzp_stop *stop, const char *feed, int r, const char *gives)
{
    struct hzp_textbuf out = {0};
    assert_int_equal(hzp_stop_feed(stop, feed, strlen(feed), &out), r);
    assert_int_equal(out.bytes, strlen(gives));
    if (out.bytes > 0)
        assert_memory_equal(out.data, gives, out.bytes);
    hzp_textbuf_fini(&out);
}

static void holds_back(void **state)
{
    static const char *const strings[] = {"\n\nUser:", "END"};
    struct hzp_stop stop;
    init(&stop, strings, 2, false);
    expect(&stop, "one\n", 0, "one");
    expect(&stop, "\n", 0, "");
    expect(&stop, "\n", 0, "\n"); /* three line ends: the last two may begin the stop string */
    expect(&stop, "UseX E", 0, "\n\nUseX ");
    expect(&stop, "N", 0, "");
    expect(&stop, "D of", 1, "");
    assert_int_equal(stop.matched, 1);
    expect(&stop, "more", 1, "");
    hzp_stop_fini(&stop);

    init(&stop, strings, 2, true);
    expect(&stop, "aE", 0, "a");
    expect(&stop, "NDb", 1, "END");
    hzp_stop_fini(&stop);

    struct hzp_textbuf out = {0};
    init(&stop, strings, 2, false);
    expect(&stop, "aEN", 0, "a");
    assert_int_equal(hzp_stop_pass(&stop, "D", 1, &out), 0); /* too early to stop */
    assert_memory_equal(out.data, "END", 3);
    expect(&stop, "xE", 0, "x");
    out.bytes = 0;
    assert_int_equal(hzp_stop_flush(&stop, &out), 0);
    assert_int_equal(out.bytes, 1);
    hzp_textbuf_fini(&out);
    hzp_stop_fini(&stop);
}

static void refuses(void **state)
{
    static const char *const strings[HZP_STOP_MAX + 1] = {"a", ""};
    static const size_t bytes[HZP_STOP_MAX + 1] = {1, 0};
    static const size_t large[1] = {HZP_STOP_BYTES_MAX + 1};
    struct hzp_stop stop;
    struct hzp_err_text err;
    assert_int_equal(hzp_stop_init(&stop, strings, bytes, 2, false, &err), HZP_EINVAL);
    assert_string_equal(err.param, "stop");
    assert_int_equal(hzp_stop_init(&stop, strings, large, 1, false, &err), HZP_EINVAL);
    assert_int_equal(hzp_stop_init(&stop, strings, bytes, HZP_STOP_MAX + 1, false, &err),
                     HZP_EINVAL);
    assert_int_equal(hzp_stop_init(&stop, NULL, NULL, 0, false, &err), 0);
    expect(&stop, "anything", 0, "anything");
    hzp_stop_fini(&stop);
}

/* By definition: the string that ends first; of several that end there, the longest. */
static int plain_search(const char *text, size_t n, char strings[][8], int count, size_t *end)
{
    for (*end = 1; *end <= n; (*end)++) {
        int best = -1;
        for (int i = 0; i < count; i++) {
            size_t m = strlen(strings[i]);
            if (m <= *end && memcmp(text + *end - m, strings[i], m) == 0 &&
                (best < 0 || m > strlen(strings[best])))
                best = i;
        }
        if (best >= 0)
            return best;
    }
    *end = n;
    return -1;
}

static void as_defined(void **state)
{
    for (int turn = 0; turn < 20000; turn++) {
        char text[64], strings[4][8] = {{0}};
        const char *list[4];
        int count = 1 + (int)make_random(4);
        size_t n = make_random(64), end;
        bool include = turn % 2;
        for (int i = 0; i < count; i++) {
            size_t m = 1 + make_random(6);
            for (size_t k = 0; k < m; k++)
                strings[i][k] = "ab"[make_random(2)];
            list[i] = strings[i];
        }
        for (size_t i = 0; i < n; i++)
            text[i] = "ababcd"[make_random(turn % 3 ? 6 : 3)];
        int want = plain_search(text, n, strings, count, &end);
        size_t wanted = want < 0 ? n : include ? end : end - strlen(strings[want]);

        struct hzp_stop stop;
        struct hzp_textbuf out = {0};
        init(&stop, list, count, include);
        int r = 0;
        for (size_t at = 0; at < n && r == 0;) {
            size_t most = make_random(5), m = HZP_MIN(n - at, most);
            r = hzp_stop_feed(&stop, text + at, m, &out);
            at += m;
        }
        assert_int_equal(r, want >= 0);
        assert_int_equal(hzp_stop_flush(&stop, &out), 0);
        assert_int_equal(out.bytes, wanted);
        if (wanted > 0)
            assert_memory_equal(out.data, text, wanted);
        if (want >= 0)
            assert_int_equal(strlen(strings[stop.matched]), strlen(strings[want]));
        hzp_textbuf_fini(&out);
        hzp_stop_fini(&stop);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_back),
        cmocka_unit_test(refuses),
        cmocka_unit_test(as_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
