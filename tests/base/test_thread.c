/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of builds with tests: lock ranks, and that only the engine thread uses what belongs
   to it. */
#include "base/thread.h"

#include "device/device.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Runs it in a process of its own; returns true if the process ended by abort(). */
static bool aborts(void (*run)(void))
{
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        run();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static struct hzp_lock outer, inner, inner2;

static void in_order(void)
{
    hzp_lock_take(&outer);
    hzp_lock_take(&inner);
    hzp_lock_release(&outer); /* released in any order */
    hzp_lock_release(&inner);
    hzp_lock_take(&outer);
    hzp_lock_release(&outer);
}

static void out_of_order(void)
{
    hzp_lock_take(&inner);
    hzp_lock_take(&outer);
}

static void of_one_rank(void)
{
    hzp_lock_take(&inner);
    hzp_lock_take(&inner2);
}

static void twice(void)
{
    hzp_lock_take(&inner);
    hzp_lock_take(&inner);
}

static void not_held(void)
{
    hzp_lock_take(&outer);
    hzp_lock_release(&inner);
}

static void locks_have_an_order(void **state)
{
    hzp_lock_init(&outer, HZP_LOCK_QUEUE);
    hzp_lock_init(&inner, HZP_LOCK_RING);
    hzp_lock_init(&inner2, HZP_LOCK_RING);
    assert_false(aborts(in_order));
    assert_true(aborts(out_of_order));
    assert_true(aborts(of_one_rank));
    assert_true(aborts(twice));
    assert_true(aborts(not_held));
    hzp_lock_fini(&outer);
    hzp_lock_fini(&inner);
    hzp_lock_fini(&inner2);
}

static bool other_may;

static void *ask(void *arg)
{
    other_may = hzp_thread_is_engine();
    return NULL;
}

static bool another_thread_may(void)
{
    pthread_t thread;
    assert_int_equal(hzp_thread_start(&thread, "other", ask, NULL), 0);
    pthread_join(thread, NULL);
    return other_may;
}

static void one_thread_is_the_engine(void **state)
{
    int engine;
    assert_true(hzp_thread_is_engine()); /* there is none */
    assert_true(another_thread_may());
    hzp_thread_own_engine(&engine);
    assert_true(hzp_thread_is_engine());
    assert_false(another_thread_may());
    hzp_thread_disown_engine(&engine);
    assert_true(another_thread_may());
}

static int shared_engine;
static atomic_int entered, may_leave;

/* Another thread is inside the loop until told to leave. */
static void *inside(void *arg)
{
    hzp_thread_enter_engine(&shared_engine);
    hzp_thread_enter_engine(&shared_engine); /* a turn of a running loop */
    hzp_thread_leave_engine(&shared_engine);
    other_may = hzp_thread_is_engine();
    atomic_store(&entered, 1);
    while (!atomic_load(&may_leave))
        sched_yield();
    hzp_thread_leave_engine(&shared_engine);
    return NULL;
}

static void an_engine_is_handed_over(void **state)
{
    pthread_t thread;
    hzp_thread_own_engine(&shared_engine);
    assert_int_equal(hzp_thread_start(&thread, "inside", inside, NULL), 0);
    while (!atomic_load(&entered))
        sched_yield();
    assert_true(other_may);
    assert_false(hzp_thread_is_engine()); /* the other thread's, while it is inside */
    atomic_store(&may_leave, 1);
    pthread_join(thread, NULL);
    assert_true(hzp_thread_is_engine()); /* this thread's again */
    hzp_thread_disown_engine(&shared_engine);
}

static void *own(void *arg)
{
    hzp_thread_own_engine(&shared_engine);
    return NULL;
}

/* A thread cannot take an engine while another is inside its loop. */
static void own_of_another(void)
{
    pthread_t thread;
    hzp_thread_enter_engine(&shared_engine);
    hzp_thread_start(&thread, "other", own, NULL);
    pthread_join(thread, NULL);
}

static void an_engine_has_one_owner(void **state)
{
    assert_true(aborts(own_of_another));
}

static struct hzp_lane *lane;

static void *issue(void *arg)
{
    float y[4];
    struct hzp_fill_args args = {
        .y = {.ptr = y, .type = HZP_F32, .rows = 1, .cols = 4, .stride = 4}};
    hzp_lane_issue(lane, HZP_OP_fill, &args);
    return NULL;
}

static void here(void)
{
    issue(NULL);
}

static void elsewhere(void)
{
    pthread_t thread;
    hzp_thread_start(&thread, "other", issue, NULL);
    pthread_join(thread, NULL);
}

static void bad_op(void)
{
    float y[4];
    struct hzp_fill_args args = {
        .y = {.ptr = y, .type = HZP_F32, .rows = 1, .cols = 4, .stride = 3}};
    hzp_lane_issue(lane, HZP_OP_fill, &args);
}

/* A device refuses ops of a thread that did not open it, and invalid ops from any thread. */
static void a_device_checks(void **state)
{
    struct hzp_device *dev;
    struct hzp_err_text err;
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &dev, &err), 0);
    assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane), 0);
    assert_false(aborts(here));
    assert_true(aborts(elsewhere));
    assert_true(aborts(bad_op));
    hzp_lane_close(lane);
    hzp_device_close(dev);
}

static int policy_of_caller(void)
{
    struct sched_param param;
    int policy = -1;
    assert_int_equal(pthread_getschedparam(pthread_self(), &policy, &param), 0);
    return policy;
}

static void *policy_of_thread(void *arg)
{
    *(int *)arg = policy_of_caller();
    return NULL;
}

/* A thread that yields does not preempt, what it starts does not either, and it is taken back. */
static void threads_that_yield(void **state)
{
    pthread_t thread;
    int policy = -1;
    if (policy_of_caller() != SCHED_OTHER)
        skip(); /* the tests run under a policy of somebody else */
    hzp_thread_yielding(true);
    assert_int_equal(policy_of_caller(), SCHED_BATCH);
    assert_int_equal(hzp_thread_start(&thread, "batch", policy_of_thread, &policy), 0);
    pthread_join(thread, NULL);
    assert_int_equal(policy, SCHED_BATCH);
    hzp_thread_yielding(false);
    assert_int_equal(policy_of_caller(), SCHED_OTHER);
}

struct attributes { /* the kernel's struct sched_attr */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static uint64_t slice_now(void)
{
    struct attributes now = {0};
    return syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) == 0 ? now.runtime : 0;
}

/* arg: the slices before and after; before 200 us: the kernel lets threads choose. */
static void *choose_slice(void *arg)
{
    uint64_t *slice = arg;
    struct attributes longer = {.size = sizeof(longer), .runtime = 200000};
    if (syscall(SYS_sched_setattr, 0, &longer, 0) == 0)
        slice[0] = slice_now();
    hzp_thread_prompt();
    slice[1] = slice_now();
    return NULL;
}

/* Where threads may choose their slices, a prompt one has the shortest. */
static void threads_that_are_prompt(void **state)
{
    pthread_t thread;
    uint64_t slice[2] = {0, 0};
    if (policy_of_caller() != SCHED_OTHER)
        skip();
    assert_int_equal(hzp_thread_start(&thread, "prompt", choose_slice, slice), 0);
    pthread_join(thread, NULL);
    if (slice[0] == 200000)
        assert_int_equal(slice[1], 100000);
    else
        assert_int_equal(slice[1], slice[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locks_have_an_order),      cmocka_unit_test(one_thread_is_the_engine),
        cmocka_unit_test(an_engine_is_handed_over), cmocka_unit_test(an_engine_has_one_owner),
        cmocka_unit_test(a_device_checks),          cmocka_unit_test(threads_that_yield),
        cmocka_unit_test(threads_that_are_prompt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
