/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank a request goes to, and what is remembered of prompts and sessions. */
#include "api/front/front_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4 };

static void idle(struct hzp_dispatch_rank rank[RANKS])
{
    for (int r = 0; r < RANKS; r++)
        rank[r] = (struct hzp_dispatch_rank){
            .takes = true, .running_max = 16, .kv_pages = 100, .page_rows = 16};
}

static void by_load(void **state)
{
    struct hzp_dispatch_rank rank[RANKS];
    struct hzp_dispatch_ask ask = {.prompt = 32, .expected = 32, .session = -1};
    idle(rank);
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), RANKS - 1); /* rank 0 has more to do */
    rank[3].requests = 2;
    rank[2].requests = 1;
    rank[0].requests = 1;
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 1);
    rank[1].kv_needed = 50; /* few requests, but its pages are taken */
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 2);
    rank[2].takes = rank[3].takes = false;
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 0);
    rank[0].takes = rank[1].takes = false;
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), -1);
}

static void by_pages(void **state)
{
    struct hzp_dispatch_ask ask = {.prompt = 33, .expected = 30, .session = -1};
    struct hzp_dispatch_rank rank = {.page_rows = 16};
    assert_int_equal(hzp_dispatch_pages(&ask, &rank), 4);
    rank.found = 32;
    assert_int_equal(hzp_dispatch_pages(&ask, &rank), 2);
    rank.found = 1000;
    assert_int_equal(hzp_dispatch_pages(&ask, &rank), 2);
}

static void by_prefix_and_session(void **state)
{
    struct hzp_dispatch_rank rank[RANKS];
    struct hzp_dispatch_ask ask = {.prompt = 64, .expected = 32, .session = -1};
    idle(rank);
    rank[1].found = 32;
    rank[1].requests = 3;
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 1);
    rank[2].found = 64;
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 2);
    ask.session = 0;
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 0);
    rank[0].requests = 5; /* not even any more */
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 2);
    rank[2].requests = 5;
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 1);
    rank[1].found = 31; /* less than half */
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 3);
    rank[3].takes = false;
    ask.session = 3; /* it is being drained; the others are even again */
    assert_int_equal(hzp_dispatch_choose(&ask, rank, RANKS), 2);
}

static void remembers(void **state)
{
    struct hzp_dispatch *d = hzp_dispatch_create();
    int32_t prompt[200], other[200], found[RANKS];
    for (int i = 0; i < 200; i++) {
        prompt[i] = i;
        other[i] = i < 100 ? i : -i;
    }
    hzp_dispatch_find(d, prompt, 200, RANKS, found);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(found[r], 0);
    hzp_dispatch_note(d, prompt, 200, 1);
    hzp_dispatch_note(d, prompt, 70, 2);
    hzp_dispatch_find(d, prompt, 200, RANKS, found);
    assert_int_equal(found[0], 0);
    assert_int_equal(found[1], 192);
    assert_int_equal(found[2], 64);
    hzp_dispatch_find(d, other, 200, RANKS, found);
    assert_int_equal(found[1], 96);
    hzp_dispatch_find(d, other, 20, RANKS, found);
    assert_int_equal(found[1], 0);
    hzp_dispatch_forget(d, 1);
    hzp_dispatch_find(d, prompt, 200, RANKS, found);
    assert_int_equal(found[1], 0);
    assert_int_equal(found[2], 64);

    assert_int_equal(hzp_dispatch_session(d, 0), -1);
    assert_int_equal(hzp_dispatch_session(d, 5), -1);
    hzp_dispatch_note_session(d, 5, 3);
    hzp_dispatch_note_session(d, 0, 3);
    assert_int_equal(hzp_dispatch_session(d, 5), 3);
    assert_int_equal(hzp_dispatch_session(d, 0), -1);

    assert_int_equal(hzp_dispatch_expected(d, 10), 10);
    for (int i = 0; i < 1000; i++)
        hzp_dispatch_ended(d, 20);
    assert_in_range(hzp_dispatch_expected(d, 1000), 19, 20);
    hzp_dispatch_destroy(d);
}

/* Requests that come and go on ranks that differ: no rank is left idle while another is full, and
 * the ranks' loads stay close together. */
static void stays_even(void **state)
{
    enum { STEPS = 20000, LIFE = 40 };
    struct hzp_dispatch_rank rank[RANKS];
    int8_t began[STEPS];
    idle(rank);
    rank[3].running_max = 8; /* a smaller one */
    rank[3].kv_pages = 50;
    for (int t = 0; t < STEPS; t++) {
        struct hzp_dispatch_ask ask = {.prompt = 16 + t % 7 * 8, .expected = 32, .session = -1};
        if (t >= LIFE)
            rank[began[t - LIFE]].requests--;
        int r = hzp_dispatch_choose(&ask, rank, RANKS);
        assert_in_range(r, 0, RANKS - 1);
        rank[r].requests++;
        began[t] = (int8_t)r;
    }
    assert_in_range(rank[3].requests, 4, 7);
    for (int r = 0; r < 3; r++)
        assert_in_range(rank[r].requests, 10, 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_load),    cmocka_unit_test(by_pages),
        cmocka_unit_test(remembers),  cmocka_unit_test(by_prefix_and_session),
        cmocka_unit_test(stays_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
