/* SPDX-License-Identifier: Apache-2.0 */
/* tests/rollout/test_judge.c - answers by a child process: bound, silence, death, rejection. */
#include "api/rollout/judge.h"
#include "base/base.h"
#include "base/thread.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const uint64_t hang_ns = 600u * 1000000000ull;

static void rest(void)
{
    const struct timespec time = {.tv_nsec = 1000000};
    nanosleep(&time, NULL);
}

static bool ask(struct hzp_judge *j, int64_t id, double seconds)
{
    json_t *question = json_pack("{s:s}", "text", "a\nb");
    bool ret = hzp_judge_ask(j, id, question, seconds);
    json_decref(question);
    return ret;
}

/* The reward in the next answer, which comes; NAN: there is none. */
static double next(struct hzp_judge *j, int64_t *ret_id)
{
    json_t *line = NULL;
    uint64_t end = hzp_now_ns() + hang_ns;
    while (!hzp_judge_next(j, ret_id, &line)) {
        assert_true(hzp_now_ns() < end);
        rest();
    }
    const json_t *reward = json_object_get(line, "reward");
    double ret = json_is_number(reward) ? json_number_value(reward) : (double)NAN;
    json_decref(line);
    return ret;
}

static void ask_when_it_runs(struct hzp_judge *j, int64_t id, double seconds)
{
    uint64_t end = hzp_now_ns() + hang_ns;
    while (!ask(j, id, seconds)) {
        assert_true(hzp_now_ns() < end);
        rest();
    }
}

/* Each question is answered once, also beside answers to questions that were not asked. */
static void rewards(void **state)
{
    struct hzp_judge *j = hzp_judge_create(
        "while read -r line; do id=${line#*\\\"id\\\":}; id=${id%%[,\\}]*}; "
        "echo '{\"id\":99999,\"reward\":1}'; case $id in 8) reward='\"1\"';; *) "
        "reward=$id.5;; esac; echo \"{\\\"id\\\":$id,\\\"reward\\\":$reward}\"; done",
        "reward");
    bool seen[10] = {false};
    int64_t id;
    struct hzp_err_text err = {.text = ""};
    for (int64_t i = 1; i < 10; i++)
        ask_when_it_runs(j, i, 600);
    for (int i = 1; i < 10; i++) {
        double reward = next(j, &id);
        assert_in_range(id, 1, 9);
        assert_false(seen[id]);
        seen[id] = true;
        if (id == 8)
            assert_true(isnan(reward));
        else
            assert_true(fabs(reward - ((double)id + 0.5)) < 1e-12);
    }
    assert_int_equal(hzp_judge_round(j), 1);
    assert_int_equal(hzp_judge_check(j, &err), HZP_OK);
    hzp_judge_destroy(j);
}

/* It takes so many questions at a time.  When it is silent for too long the first one is lost, and
 * the others belong to a round that is over. */
static void silence(void **state)
{
    struct hzp_judge *j = hzp_judge_create("exec sleep 600", "reward");
    int64_t id;
    ask_when_it_runs(j, 1, 0.2);
    for (int64_t i = 2; i <= HZP_JUDGE_OPEN; i++)
        assert_true(ask(j, i, 600));
    assert_false(ask(j, HZP_JUDGE_OPEN + 1, 600));
    assert_true(isnan(next(j, &id)));
    assert_int_equal(id, 1);
    assert_int_equal(hzp_judge_round(j), 2);
    ask_when_it_runs(j, 2, 600); /* there is room again */
    hzp_judge_destroy(j);
}

/* A command that ends, or is not there, loses one question each time, and has failed in the end. */
static void death(void **state)
{
    static const char *const command[][2] = {{"exit 3", "status 3"},
                                             {"kill -9 $$", "signal 9"},
                                             {"exec /no/such/program", "status 127"},
                                             {"read -r line; echo nonsense; sleep 600", "no JSON"},
                                             {"exec >&-; sleep 600", "closed its output"}};
    for (int i = 0; i < HZP_COUNT(command); i++) {
        struct hzp_judge *j = hzp_judge_create(command[i][0], "reward");
        struct hzp_err_text err = {.text = ""};
        int64_t id;
        for (int n = 1; n <= HZP_JUDGE_FAILURES; n++) {
            assert_int_equal(hzp_judge_check(j, &err), HZP_OK);
            ask_when_it_runs(j, n, 600);
            assert_true(isnan(next(j, &id)));
            assert_int_equal(id, n);
            assert_int_equal(hzp_judge_round(j), n + 1);
        }
        assert_int_equal(hzp_judge_check(j, &err), HZP_EIO);
        if (!strstr(err.text, command[i][1]))
            fail_msg("%s: %s", command[i][0], err.text);
        assert_int_equal(hzp_judge_check(j, &err), HZP_OK);
        hzp_judge_destroy(j);
    }
    hzp_judge_destroy(NULL);
}

/* An answer that is rejected ends the process, and loses no other question; so many in a row are a
 * failure. */
static void rejection(void **state)
{
    struct hzp_judge *j = hzp_judge_create("exec cat", "tool");
    struct hzp_err_text err = {.text = ""};
    int64_t id;
    ask_when_it_runs(j, 1, 600);
    assert_true(ask(j, 2, 600));
    assert_true(isnan(next(j, &id)));
    assert_int_equal(id, 1);
    hzp_judge_reject(j, "has said nonsense");
    ask_when_it_runs(j, 2, 600); /* as it has to be asked again, and is answered */
    assert_true(isnan(next(j, &id)));
    assert_int_equal(id, 2);
    for (int n = 3; n < 3 + HZP_JUDGE_FAILURES; n++) {
        assert_int_equal(hzp_judge_check(j, &err), HZP_OK);
        ask_when_it_runs(j, n, 600);
        next(j, &id);
        assert_int_equal(id, n);
        hzp_judge_reject(j, "has said nonsense");
    }
    assert_int_equal(hzp_judge_check(j, &err), HZP_EIO);
    assert_non_null(strstr(err.text, "the tool command has said nonsense, 5 times"));
    hzp_judge_destroy(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewards),
        cmocka_unit_test(silence),
        cmocka_unit_test(death),
        cmocka_unit_test(rejection),
    };
    signal(SIGPIPE, SIG_IGN); /* as the program does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
