/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts that are reproducible, shared where the trace shares them, and shortened to fit a
   context. */
#include "dev/bench/workload.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct hzp_err_text err;
static int32_t a[2048], b[2048];

/* Three prompts of 1100, 1100 and 700 tokens: blocks 5 6 7, 5 6 9, and 5 with the rest
   unspecified. */
static struct hzp_workload shared(uint64_t seed)
{
    static const int64_t hash[] = {5, 6, 7, 5, 6, 9, 5};
    struct hzp_workload w;
    assert_int_equal(hzp_workload_equal(&w, 3, 1100, 10, &err), 0);
    w.trace.hash = malloc(sizeof(hash));
    memcpy(w.trace.hash, hash, sizeof(hash));
    w.trace.hashes = HZP_COUNT(hash);
    w.trace.request[0].hashes = w.trace.request[1].hashes = 3;
    w.trace.request[1].first_hash = 3;
    w.trace.request[2].first_hash = 6;
    w.trace.request[2].hashes = 1;
    w.trace.request[2].input = 700;
    w.seed = seed;
    w.vocab = 100;
    return w;
}

static int same(const int32_t *x, const int32_t *y, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += x[i] == y[i];
    return count;
}

static void prefixes(void **state)
{
    struct hzp_workload w = shared(1), other = shared(2);
    hzp_workload_prompt(&w, 0, a);
    for (int i = 0; i < 1100; i++)
        assert_in_range(a[i], 0, 99);
    hzp_workload_prompt(&w, 0, b);
    assert_int_equal(same(a, b, 1100), 1100);
    hzp_workload_prompt(&w, 1, b);
    assert_int_equal(same(a, b, 1024), 1024);
    assert_in_range(same(a + 1024, b + 1024, 76), 0, 10); /* by chance: one in a hundred */
    hzp_workload_prompt(&w, 2, b);
    assert_int_equal(same(a, b, 512), 512);
    assert_in_range(same(a + 512, b + 512, 188), 0, 15);
    hzp_workload_prompt(&other, 0, b);
    assert_in_range(same(a, b, 1100), 0, 50);
    hzp_workload_free(&w);
    hzp_workload_free(&other);
}

static void strangers(void **state)
{
    struct hzp_workload w;
    assert_int_equal(hzp_workload_equal(&w, 2, 600, 1, &err), 0);
    w.vocab = 50000;
    hzp_workload_prompt(&w, 0, a);
    hzp_workload_prompt(&w, 1, b);
    assert_in_range(same(a, b, 600), 0, 3);
    assert_in_range(same(a, a + 512, 88), 0, 2);
    hzp_workload_free(&w);
    assert_int_equal(hzp_workload_equal(&w, 0, 1, 1, &err), HZP_EINVAL);
    assert_int_equal(hzp_workload_equal(&w, (int64_t)HZP_TRACE_REQUESTS_MAX + 1, 1, 1, &err),
                     HZP_EINVAL);
}

/* A load of a quarter of the lengths: prompts share the same fraction of them. */
static void shrinking(void **state)
{
    struct hzp_workload w = shared(1);
    hzp_workload_shrink(&w, 4);
    assert_int_equal(w.trace.request[0].input, 275);
    assert_int_equal(w.trace.request[0].output, 3);
    hzp_workload_prompt(&w, 0, a);
    hzp_workload_prompt(&w, 1, b);
    assert_int_equal(same(a, b, 256), 256);
    assert_in_range(same(a + 256, b + 256, 19), 0, 5);
    hzp_workload_clip(&w, 200);
    assert_int_equal(w.trace.request[0].hashes, 2);
    hzp_workload_prompt(&w, 0, a);
    hzp_workload_prompt(&w, 2, b);
    assert_int_equal(same(a, b, 128), 128);
    assert_in_range(same(a + 128, b + 128, 47), 0, 8);
    hzp_workload_free(&w);
}

static void clipping(void **state)
{
    struct hzp_workload w = shared(1);
    w.trace.request[1].output = 5000;
    hzp_workload_clip(&w, 710);
    assert_int_equal(w.trace.request[0].input, 700); /* 1100 + 10: only the prompt is cut */
    assert_int_equal(w.trace.request[0].output, 10);
    assert_int_equal(w.trace.request[0].hashes, 2);
    assert_int_equal(w.trace.request[1].input, 355); /* half each */
    assert_int_equal(w.trace.request[1].output, 355);
    assert_int_equal(w.trace.request[2].input, 700); /* fits exactly */
    assert_int_equal(w.clipped, 2);
    assert_int_equal(w.clipped_in, 400 + 745);
    assert_int_equal(w.clipped_out, 4645);
    hzp_workload_clip(&w, 2);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(w.trace.request[i].input, 1);
        assert_int_equal(w.trace.request[i].output, 1);
    }
    hzp_workload_free(&w);
}

static void arrivals(void **state)
{
    struct hzp_workload w;
    assert_int_equal(hzp_workload_equal(&w, 20000, 1, 1, &err), 0);
    assert_false(hzp_workload_timed(&w));
    w.trace.request[1].at_s = 3;
    hzp_workload_arrivals(&w, 2, 0);
    assert_true(w.trace.request[1].at_s == 1.5);
    assert_false(hzp_workload_timed(&w));
    hzp_workload_arrivals(&w, 1, 50);
    assert_true(hzp_workload_timed(&w));
    assert_true(w.trace.request[0].at_s == 0);
    double squares = 0, end = w.trace.request[19999].at_s;
    for (int i = 1; i < 20000; i++) {
        double gap = w.trace.request[i].at_s - w.trace.request[i - 1].at_s;
        assert_true(gap >= 0 && gap < 1);
        squares += gap * gap;
    }
    assert_true(fabs(end / 400 - 1) < 0.03); /* 20000 at 50 a second */
    assert_true(fabs(squares / 20000 / (2 * 4e-4) - 1) <
                0.1); /* exponential: E[x^2] = 2 / rate^2 */
    hzp_workload_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prefixes), cmocka_unit_test(strangers),
                                       cmocka_unit_test(clipping), cmocka_unit_test(shrinking),
                                       cmocka_unit_test(arrivals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
