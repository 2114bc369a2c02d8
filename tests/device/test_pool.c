/* SPDX-License-Identifier: Apache-2.0 */
/* A team of threads: every task runs once, none is lost between runs, and idle threads sleep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cpu/pool.h"
#include "device/cpu/ranges.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TASKS_MAX = 5000, RUNS = 20000 };

struct count {
    struct hzp_team *team;
    int threads;
    _Atomic int task[TASKS_MAX];
    _Atomic int bad;
};

static void task_count(void *ctx, int task, int thread)
{
    struct count *count = ctx;

    atomic_fetch_add(&count->task[task], 1);
    if (thread < 0 || thread >= count->threads)
        atomic_fetch_add(&count->bad, 1);
}

static void range_count(void *ctx, int begin, int end, int thread)
{
    for (int i = begin; i < end; i++)
        task_count(ctx, i, thread);
}

/* Half of the longest range, its end, goes to the one that asks. */
static void a_range_is_halved(void **state)
{
    struct hzp_range range[3];

    hzp_range_set(&range[0], 0, 3);
    hzp_range_set(&range[1], 3, 3);
    hzp_range_set(&range[2], 3, 10);
    assert_int_equal(hzp_range_next(&range[1]), -1);
    assert_true(hzp_range_steal(range, 3, 1));
    for (int i = 6; i < 10; i++)
        assert_int_equal(hzp_range_next(&range[1]), i);
    assert_int_equal(hzp_range_next(&range[1]), -1);
    assert_int_equal(hzp_range_next(&range[2]), 3);
    assert_true(hzp_range_steal(range, 3, 1)); /* of the first, which now is the longest */
    assert_int_equal(hzp_range_next(&range[1]), 1);
    for (int i = 4; i < 6; i++)
        assert_int_equal(hzp_range_next(&range[2]), i);
    assert_int_equal(hzp_range_next(&range[2]), -1);
    assert_true(hzp_range_steal(range, 3, 2)); /* the last step of a range, too */
    assert_int_equal(hzp_range_next(&range[0]), -1);
    assert_int_equal(hzp_range_next(&range[2]), 0);
    assert_int_equal(hzp_range_next(&range[1]), 2);
    assert_false(hzp_range_steal(range, 3, 0));
}

struct steps {
    struct hzp_range range[5];
    int threads;
    _Atomic int done[TASKS_MAX];
};

static void steps_run(void *ctx, int task, int thread)
{
    struct steps *steps = ctx;

    do {
        for (int i; (i = hzp_range_next(&steps->range[task])) >= 0;)
            atomic_fetch_add(&steps->done[i], 1);
    } while (hzp_range_steal(steps->range, steps->threads, task));
}

static void every_step_runs_once(void **state)
{
    static struct steps steps;

    for (int threads = 1; threads <= 5; threads++) {
        struct hzp_team *team;
        steps.threads = threads;
        assert_int_equal(hzp_team_open(threads, threads, &team), 0);
        for (int run = 0; run < 200; run++) {
            memset(steps.done, 0, sizeof(steps.done));
            for (int t = 0; t < threads; t++) /* the last has all but one each */
                hzp_range_set(&steps.range[t], t, t == threads - 1 ? TASKS_MAX : t + 1);
            hzp_team_run(team, threads, steps_run, &steps);
            for (int i = 0; i < TASKS_MAX; i++)
                assert_int_equal(steps.done[i], 1);
        }
        hzp_team_close(team);
    }
}

static void every_task_runs_once(void **state)
{
    static struct count count;

    for (int threads = 1; threads <= 5; threads++) {
        struct hzp_team *team;
        assert_int_equal(hzp_team_open(threads, threads, &team), 0);
        assert_int_equal(hzp_team_threads(team), threads);
        memset(&count, 0, sizeof(count));
        count.threads = threads;
        hzp_team_run(team, 0, task_count, &count);
        assert_int_equal(count.task[0], 0);
        hzp_team_run(team, TASKS_MAX, task_count, &count);
        hzp_team_range(team, TASKS_MAX, 4096, range_count, &count);
        hzp_team_range(team, 0, 4096, range_count, &count);
        for (int i = 0; i < TASKS_MAX; i++)
            assert_int_equal(count.task[i], 2);
        assert_int_equal(count.bad, 0);
        hzp_team_close(team);
    }
}

struct sum {
    int64_t part[7];
    int64_t add;
};

static void task_add(void *ctx, int task, int thread)
{
    struct sum *sum = ctx;
    sum->part[task] += sum->add * (task + 1);
}

/* Jobs come and go faster than workers wake up: a late worker must not touch the next job's
   tasks. */
static void runs_follow_each_other(void **state)
{
    struct hzp_team *team;
    struct sum sum[2] = {{.add = 1}, {.add = 3}};

    assert_int_equal(hzp_team_open(3, 3, &team), 0);
    for (int i = 0; i < RUNS; i++)
        hzp_team_run(team, 1 + i % 7, task_add, &sum[i & 1]);
    for (int task = 0; task < 7; task++) {
        int64_t want = 0;
        for (int i = 0; i < RUNS; i++)
            want += (1 + i % 7 > task) ? (int64_t)(i & 1 ? 3 : 1) * (task + 1) : 0;
        assert_int_equal(sum[0].part[task] + sum[1].part[task], want);
    }
    hzp_team_close(team);
}

static void memory_grows_and_is_per_thread(void **state)
{
    struct hzp_team *team;

    assert_int_equal(hzp_team_open(2, 2, &team), 0);
    assert_int_equal(hzp_team_reserve(team, 1000, 100), 0);
    assert_int_equal((uintptr_t)hzp_team_shared(team) % 64, 0);
    assert_int_equal((uintptr_t)hzp_team_own(team, 1) % 64, 0);
    assert_ptr_not_equal(hzp_team_own(team, 0), hzp_team_own(team, 1));
    void *before = hzp_team_shared(team);
    assert_int_equal(hzp_team_reserve(team, 500, 50), 0); /* smaller: the reservation stays */
    assert_ptr_equal(hzp_team_shared(team), before);
    assert_int_equal(hzp_team_reserve(team, 1 << 20, 1 << 16), 0);
    memset(hzp_team_shared(team), 1, 1 << 20);
    memset(hzp_team_own(team, 1), 1, 1 << 16);
    hzp_team_close(team);
    hzp_team_close(NULL);
}

/* A limit between runs: threads beyond it run no task, and without it they do again. */
static void limited_team(void **state)
{
    static struct count count;
    struct hzp_team *team;
    static const int limit[] = {1, 3, 2, 0, 9, 1, 4};

    assert_int_equal(hzp_team_open(4, 8, &team), 0);
    for (int round = 0; round < 500; round++) {
        int most = limit[round % HZP_COUNT(limit)];
        hzp_team_limit(team, most);
        memset(&count, 0, sizeof(count));
        count.threads = most ? HZP_MIN(most, 4) : 4;
        assert_int_equal(hzp_team_threads(team), count.threads);
        assert_int_equal(hzp_team_reserve(team, 64, 64), 0);
        hzp_team_run(team, 50, task_count, &count);
        for (int i = 0; i < 50; i++)
            assert_int_equal(count.task[i], 1);
        assert_int_equal(count.bad, 0);
    }
    hzp_team_limit(team, 1);
    assert_int_equal(hzp_team_resize(team, 6, NULL), 0);
    assert_int_equal(hzp_team_threads(team), 6);
    hzp_team_close(team);
}

static void idle_team_uses_no_cpu(void **state)
{
    struct hzp_team *team;
    static struct count count;
    struct timespec t0, t1;

    count.threads = 4;
    assert_int_equal(hzp_team_open(4, 4, &team), 0);
    hzp_team_run(team, 100, task_count, &count);
    usleep(50000); /* time to fall asleep */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
    usleep(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
    int64_t used = (t1.tv_sec - t0.tv_sec) * 1000000000LL + t1.tv_nsec - t0.tv_nsec;
    assert_true(used < 20000000);
    hzp_team_close(team);
}

struct held_up {
    atomic_bool begun;
};

/* The worker begins its task, then is held up; the caller's task ends as soon as that has begun. */
static void task_held_up(void *ctx, int task, int thread)
{
    struct held_up *h = ctx;
    if (thread) {
        atomic_store(&h->begun, true);
        usleep(400000);
        return;
    }
    while (!atomic_load(&h->begun))
        usleep(1000);
}

static void caller_sleeps_while_a_worker_is_held_up(void **state)
{
    struct hzp_team *team;
    struct timespec t0, t1;
    int64_t used = 0;

    assert_int_equal(hzp_team_open(2, 2, &team), 0);
    for (int i = 0; i < 2; i++) {
        struct held_up h = {false};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
        hzp_team_run(team, 2, task_held_up, &h);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
        used += (t1.tv_sec - t0.tv_sec) * 1000000000LL + t1.tv_nsec - t0.tv_nsec;
    }
    assert_true(used < 200000000); /* of 800 ms */
    hzp_team_close(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_halved),
        cmocka_unit_test(every_step_runs_once),
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(runs_follow_each_other),
        cmocka_unit_test(memory_grows_and_is_per_thread),
        cmocka_unit_test(limited_team),
        cmocka_unit_test(idle_team_uses_no_cpu),
        cmocka_unit_test(caller_sleeps_while_a_worker_is_held_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
