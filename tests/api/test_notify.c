/* SPDX-License-Identifier: Apache-2.0 */
/* tests/api/test_notify.c - notes: none is lost, and those of a step are called together. */
#include "api/http/notify.h"
#include "base/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>

enum { NOTES = 300, ROUNDS = 200 };

static _Atomic int called, held, may_go;

static void count(void *ctx)
{
    atomic_fetch_add(&called, 1);
    sched_yield(); /* a waiting thread that returned too early would run now */
}

static void hold(void *ctx)
{
    atomic_store(&held, 1);
    while (!atomic_load(&may_go))
        sched_yield();
}

/* Who sees the first of a step's notes called, and settles, finds all of them called. */
static void a_step_is_called_together(void **state)
{
    static struct hzp_note note[NOTES];
    struct hzp_note first = {.call = hold};
    struct hzp_notify *n;
    assert_int_equal(hzp_notify_create(&n), HZP_OK);
    for (int i = 0; i < NOTES; i++)
        note[i] = (struct hzp_note){.call = count};
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&called, 0);
        atomic_store(&held, 0);
        atomic_store(&may_go, 0);
        hzp_notify_post(n, &first);
        while (!atomic_load(&held))
            sched_yield();
        for (int i = 0; i < NOTES; i++) /* the thread takes none of them before it has all */
            hzp_notify_add(n, &note[i]);
        hzp_notify_wake(n);
        atomic_store(&may_go, 1);
        while (!atomic_load(&called))
            sched_yield();
        hzp_notify_settle(n);
        assert_int_equal(atomic_load(&called), NOTES);
    }
    hzp_notify_destroy(n);
}

struct poster {
    struct hzp_notify *n;
    struct hzp_note *note;
};

static void *post_often(void *arg)
{
    struct poster *p = arg;
    for (int i = 0; i < 5000; i++)
        hzp_notify_post(p->n, p->note);
    return NULL;
}

/* Posted by several threads at once: it is called after the last post, and no more often than it
 * was posted. */
static void no_post_is_lost(void **state)
{
    struct hzp_note note = {.call = count};
    struct poster poster = {.note = &note};
    pthread_t thread[3];
    for (int round = 0; round < 20; round++) {
        atomic_store(&called, 0);
        assert_int_equal(hzp_notify_create(&poster.n), HZP_OK);
        for (int i = 0; i < HZP_COUNT(thread); i++)
            assert_int_equal(hzp_thread_start(&thread[i], "poster", post_often, &poster), HZP_OK);
        for (int i = 0; i < HZP_COUNT(thread); i++)
            pthread_join(thread[i], NULL);
        while (atomic_load(&note.posted)) /* the last post is seen */
            sched_yield();
        hzp_notify_destroy(poster.n);
        assert_true(atomic_load(&called) >= 1 && atomic_load(&called) <= 15000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_is_called_together),
                                       cmocka_unit_test(no_post_is_lost)};
    return cmocka_run_group_tests_name("notify", tests, NULL, NULL);
}
