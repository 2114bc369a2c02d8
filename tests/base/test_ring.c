/* SPDX-License-Identifier: Apache-2.0 */
/* The ring: bounded, in order, nothing lost and nothing duplicated, also between threads. */
#include "base/ring.h"

#include "base/err.h"
#include "base/thread.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SLOTS = 3, PRODUCERS = 3, EACH = 20000 };

/* The pointers' targets do not matter: pointers are only compared. */
static int thing[1000];

static void a_full_ring_says_so(void **state)
{
    struct hzp_ring *ring = hzp_ring_create(SLOTS);
    assert_null(hzp_ring_pop(ring));
    for (int i = 0; i < SLOTS; i++)
        assert_int_equal(hzp_ring_push(ring, &thing[i]), HZP_OK);
    assert_int_equal(hzp_ring_push(ring, &thing[SLOTS]), HZP_EBUSY);
    for (int i = 0; i < SLOTS; i++)
        assert_ptr_equal(hzp_ring_pop(ring), &thing[i]); /* not the refused one */
    assert_null(hzp_ring_pop(ring));
    assert_null(hzp_ring_pop(ring));
    assert_int_equal(hzp_ring_push(ring, &thing[7]), HZP_OK);
    assert_ptr_equal(hzp_ring_pop(ring), &thing[7]);
    hzp_ring_destroy(ring);
    hzp_ring_destroy(NULL);
}

/* Every fill level at every position of the first slot, several times around. */
static void it_wraps_in_order(void **state)
{
    struct hzp_ring *ring = hzp_ring_create(SLOTS);
    int pushed = 0, popped = 0;
    for (int turn = 0; turn < 60; turn++) {
        for (int k = 0; k < 1 + turn % SLOTS; k++)
            if (hzp_ring_push(ring, &thing[pushed]) == HZP_OK)
                pushed++;
            else
                assert_int_equal(pushed - popped, SLOTS);
        for (int k = 0; k < 1 + turn % 2 && popped < pushed; k++)
            assert_ptr_equal(hzp_ring_pop(ring), &thing[popped++]);
    }
    assert_true(popped > 10 * SLOTS);
    while (popped < pushed)
        assert_ptr_equal(hzp_ring_pop(ring), &thing[popped++]);
    assert_null(hzp_ring_pop(ring));
    hzp_ring_destroy(ring);
}

struct producer {
    struct hzp_ring *ring;
    struct hzp_wake *wake;
    pthread_t thread;
    int refused;
    struct message {
        struct producer *from;
        int number;
    } message[EACH];
};

static void *produce(void *arg)
{
    struct producer *p = arg;
    for (int i = 0; i < EACH; i++) {
        p->message[i] = (struct message){p, i}; /* the reader must see this, too */
        while (hzp_ring_push(p->ring, &p->message[i]) == HZP_EBUSY) {
            p->refused++;
            sched_yield();
        }
        hzp_wake_poke(p->wake);
    }
    return NULL;
}

/* Several threads push while one pops: each thread's items arrive in order, all of them, once. */
static void threads_pass_it_on(void **state)
{
    struct producer *all = calloc(PRODUCERS, sizeof(*all));
    struct hzp_ring *ring = hzp_ring_create(SLOTS);
    struct hzp_wake wake;
    int next[PRODUCERS] = {0};
    assert_non_null(all);
    hzp_wake_init(&wake);
    for (int i = 0; i < PRODUCERS; i++) {
        all[i].ring = ring;
        all[i].wake = &wake;
        assert_int_equal(hzp_thread_start(&all[i].thread, "producer", produce, &all[i]), HZP_OK);
    }
    for (int popped = 0; popped < PRODUCERS * EACH;) {
        const struct message *m = hzp_ring_pop(ring);
        if (!m) {
            hzp_wake_wait(&wake, UINT64_MAX); /* would block forever if a wake-up could be lost */
            continue;
        }
        assert_int_equal(m->number, next[m->from - all]++);
        popped++;
    }
    for (int i = 0; i < PRODUCERS; i++) {
        pthread_join(all[i].thread, NULL);
        assert_int_equal(next[i], EACH);
    }
    assert_null(hzp_ring_pop(ring));
    /* the ring was full at times */
    assert_true(all[0].refused + all[1].refused + all[2].refused > 0);
    hzp_wake_fini(&wake);
    hzp_ring_destroy(ring);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_full_ring_says_so),
                                       cmocka_unit_test(it_wraps_in_order),
                                       cmocka_unit_test(threads_pass_it_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
