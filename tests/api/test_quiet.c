/* SPDX-License-Identifier: Apache-2.0 */
/* How much of the processors' time others took, by the counters of the system. */
#include "api/cli/quiet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void counters_of_our_cpus(void **state)
{
    static const char text[] = "cpu  1000 1000 1000 1000 1000 1000 1000 1000 0 0\n"
                               "cpu0 1 2 4 1000 1000 8 16 32 999 999\n"
                               "cpu1 100 0 0 5 5 0 0 0 0 0\n"
                               "cpu12 200 0 0 5 5 0 0 0 0 0\n"
                               "intr 1 2 3\n";
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    assert_true(hzp_quiet_busy(text, &cpus) < 0);
    CPU_SET(0, &cpus);
    assert_true(hzp_quiet_busy(text, &cpus) == 63);
    CPU_SET(12, &cpus);
    assert_true(hzp_quiet_busy(text, &cpus) == 263);
    CPU_ZERO(&cpus);
    CPU_SET(3, &cpus);
    assert_true(hzp_quiet_busy(text, &cpus) < 0);
    assert_true(hzp_quiet_busy("", &cpus) < 0);
    assert_true(hzp_quiet_busy("cpu3 1 2 3\n", &cpus) < 0);
}

/* A child that uses a second of processor time is another's; what this process uses is not.  The
 * system counts in ticks of a hundredth of a second. */
static void others_are_seen(void **state)
{
    struct hzp_quiet q;
    struct timespec now;
    double watched = 0, others = 0;
    hzp_quiet_begin(&q);
    if (!q.known)
        skip();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        do
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        while (now.tv_sec < 1);
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    hzp_quiet_end(&q, &watched, &others);
    assert_true(watched >= 1e9);
    assert_true(others >= 0.9e9 && others <= watched * 1.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(counters_of_our_cpus),
                                       cmocka_unit_test(others_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
