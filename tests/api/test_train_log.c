/* SPDX-License-Identifier: Apache-2.0 */
/* The log of offline training: which lines a resumed run drops, and which files it must not
   touch. */
#include "api/learn/train_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/weights/scratch.h"

#include <fcntl.h>
#include <math.h>

static int begin(const char *path, int64_t step)
{
    struct hzp_train_log *log = NULL;
    struct hzp_err_text text = {{0}, {0}};
    int r = hzp_train_log_open(path, step, 100, &log, &text);
    hzp_train_log_close(log);
    return r;
}

static void check_lines(const char *path, const char *wanted)
{
    char text[256] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = 0;
    assert_string_equal(text, wanted);
}

static void test_later_lines(void **state)
{
    const char *path = scratch_path("train.jsonl");
    assert_int_equal(begin(path, 0), HZP_OK);
    check_lines(path, "");
    scratch_write_text(path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4,\"lo");
    assert_int_equal(begin(path, 2), HZP_OK);
    check_lines(path, "{\"step\":1}\n{\"step\":2}\n");
    assert_int_not_equal(access(scratch_path("train.jsonl.tmp"), F_OK), 0);
    assert_int_equal(begin(scratch_path("absent/train.jsonl"), 2), HZP_EIO);
}

/* Each evaluation is a line, and the lowest loss is known, also to the run that goes on. */
static void test_best(void **state)
{
    const char *path = scratch_path("train.jsonl");
    struct hzp_train_log *log = NULL;
    struct hzp_err_text text = {{0}, {0}};
    static const double loss[] = {1, 3, 2, 2.5, NAN};
    assert_int_equal(hzp_train_log_open(path, 0, 100, &log, &text), HZP_OK);
    assert_int_equal(hzp_train_log_best(log).step, 0);
    for (int i = 0; i < HZP_COUNT(loss); i++)
        hzp_train_log_eval(log, i * 10, loss[i], 5);
    assert_int_equal(hzp_train_log_best(log).step, 20); /* 0 is the model as it was given */
    assert_int_equal(hzp_train_log_best(log).since, 2);
    hzp_train_log_close(log);
    int64_t lines = 0;
    char line[200];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        lines += strstr(line, lines == 4 ? "\"eval_loss\":null" : "\"eval_loss\":") != NULL;
    fclose(file);
    assert_int_equal(lines, HZP_COUNT(loss));
    assert_int_equal(hzp_train_log_open(path, 30, 100, &log, &text), HZP_OK);
    assert_int_equal(hzp_train_log_best(log).step, 20);
    assert_int_equal(hzp_train_log_best(log).since, 1);
    assert_true(hzp_train_log_best(log).loss == 2);
    hzp_train_log_close(log);
}

/* A path that is not a regular file has no lines to drop, and must not be replaced: that would
   break /dev/null. */
static void test_no_file(void **state)
{
    struct stat st;
    const char *link = scratch_path("link"), *fifo = scratch_path("fifo");
    assert_int_equal(symlink("/dev/null", link), 0);
    assert_int_equal(begin(link, 0), HZP_OK);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(mkfifo(fifo, 0600), 0);
    int fd = open(fifo, O_RDWR);
    assert_true(fd >= 0);
    alarm(600); /* reading it would block forever */
    assert_int_equal(begin(fifo, 0), HZP_OK);
    alarm(0);
    close(fd);
    assert_int_equal(stat(fifo, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}

/* A symbolic link to a file elsewhere stays a link. */
static void test_link(void **state)
{
    struct stat st;
    const char *link = scratch_path("train.jsonl"), *file = scratch_path("elsewhere");
    scratch_write_text(file, "{\"step\":1}\n{\"step\":9}\n");
    assert_int_equal(symlink(file, link), 0);
    assert_int_equal(begin(link, 5), HZP_OK);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    check_lines(file, "{\"step\":1}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_later_lines, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_no_file, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_best, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_link, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests_name("train_log", tests, NULL, NULL);
}
