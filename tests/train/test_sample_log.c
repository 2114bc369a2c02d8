/* SPDX-License-Identifier: Apache-2.0 */
#include "train/sample_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char model[] = "llama-64x5";

struct place {
    char dir[64], path[96];
};

static int make_place(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    snprintf(p->dir, sizeof(p->dir), "/tmp/hzp-log-XXXXXX");
    if (!mkdtemp(p->dir))
        return -1;
    snprintf(p->path, sizeof(p->path), "%s/samples.db", p->dir);
    *state = p;
    return 0;
}

static int drop_place(void **state)
{
    struct place *p = *state;
    const char *tail[] = {"", "-wal", "-shm", "-journal"};
    for (int i = 0; i < HZP_COUNT(tail); i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s%s", p->path, tail[i]);
        unlink(path);
    }
    rmdir(p->dir);
    free(p);
    return 0;
}

/* Sample number n of a body of `size` that begins at `first`; its content follows from these. */
static struct hzp_sample *make_sample(int64_t n, int64_t first, int32_t size)
{
    int32_t token[32];
    uint8_t learn[32];
    int32_t count = 3 + (int32_t)(n % 29);
    for (int32_t i = 0; i < count; i++) {
        token[i] = (int32_t)(n * 31 + i);
        learn[i] = (uint8_t)((n >> i % 8) & 1);
    }
    token[0] = (int32_t)n;
    token[1] = (int32_t)first;
    token[2] = size;
    return hzp_sample_create(token, learn, count);
}

static int append_body(struct hzp_sample_log *log, int64_t first, int32_t size, int64_t *ret_first)
{
    struct hzp_sample *sample[8];
    struct hzp_err_text text = {{0}, {0}};
    for (int32_t i = 0; i < size; i++)
        sample[i] = make_sample(first + i, first, size);
    int r = hzp_sample_log_append(log, sample, size, ret_first, &text);
    for (int32_t i = 0; i < size; i++) {
        if (r >= 0)
            assert_int_equal(sample[i]->sequence_number, first + i);
        hzp_sample_destroy(sample[i]);
    }
    return r;
}

/* Every sample is present once, in order, complete, in complete bodies. */
static void check_all(struct hzp_sample_log *log, int64_t last)
{
    struct hzp_sample *sample[16];
    int64_t next = 1, body_end = 0;
    int32_t n;
    while ((n = hzp_sample_log_read(log, next - 1, 16, sample, NULL)) > 0)
        for (int32_t i = 0; i < n; i++, next++) {
            struct hzp_sample *want = make_sample(next, sample[i]->token[1], sample[i]->token[2]);
            assert_int_equal(sample[i]->sequence_number, next);
            assert_int_equal(sample[i]->count, want->count);
            assert_memory_equal(sample[i]->token, want->token, (size_t)want->count * 4);
            assert_memory_equal(sample[i]->learn, want->learn, (size_t)want->count);
            if (sample[i]->token[1] == next) {
                assert_int_equal(body_end, next - 1);
                body_end = next - 1 + sample[i]->token[2];
            }
            hzp_sample_destroy(want);
            hzp_sample_destroy(sample[i]);
        }
    assert_int_equal(n, 0);
    assert_int_equal(next - 1, last);
    assert_int_equal(body_end, last);
}

static void test_append_and_reopen(void **state)
{
    struct place *p = *state;
    struct hzp_sample_log *log;
    struct hzp_sample_log_resume resume;
    struct hzp_err_text text;
    int64_t first = 0;
    assert_int_equal(hzp_sample_log_open(p->path, model, &log, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_resume(log, 0, &resume, &text), HZP_OK);
    assert_int_equal(resume.checkpoint_id, 0);
    assert_int_equal(resume.next_version_id, 1);
    assert_int_equal(resume.learned_through, -1);
    assert_int_equal(append_body(log, 1, 8, &first), HZP_OK);
    assert_int_equal(first, 1);
    assert_int_equal(append_body(log, 9, 1, &first), HZP_OK);
    assert_int_equal(first, 9);
    hzp_sample_log_close(log);
    assert_int_equal(hzp_sample_log_open(p->path, model, &log, &text), HZP_OK);
    assert_int_equal(append_body(log, 10, 3, &first), HZP_OK);
    assert_int_equal(first, 10);
    check_all(log, 12);
    hzp_sample_log_close(log);
}

static void learned(struct hzp_version_record *record, int32_t i, int64_t first, int64_t last)
{
    record->learned.first[i] = first;
    record->learned.last[i] = last;
    record->learned.ranges = HZP_MAX(record->learned.ranges, i + 1);
}

static void test_resume(void **state)
{
    struct place *p = *state;
    struct hzp_sample_log *log;
    struct hzp_sample_log_resume resume;
    struct hzp_err_text text;
    int64_t first;
    assert_int_equal(hzp_sample_log_open(p->path, model, &log, &text), HZP_OK);
    for (int64_t n = 1; n <= 40; n += 8)
        assert_int_equal(append_body(log, n, 8, &first), HZP_OK);
    struct hzp_version_record v = {
        .id = 3, .optimizer_step = 7, .loss = NAN, .checksum = 0xfedcba9876543210u};
    learned(&v, 0, 1, 12);
    assert_int_equal(hzp_sample_log_version(log, &v, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_version(log, &v, NULL), HZP_EIO); /* ids do not repeat */
    assert_int_equal(hzp_sample_log_checkpoint(log, 3, 10, "checkpoint-3", &text), HZP_OK);
    /* Versions after the checkpoint: 11..20 and 15..18, and 30; and one that learned nothing. */
    struct hzp_version_record w = {.id = 4, .loss = 1.5};
    learned(&w, 0, 5, 20);
    learned(&w, 1, 30, 30);
    assert_int_equal(hzp_sample_log_version(log, &w, &text), HZP_OK);
    struct hzp_version_record x = {.id = 9, .loss = 1.5};
    learned(&x, 0, 15, 18);
    assert_int_equal(hzp_sample_log_version(log, &x, &text), HZP_OK);
    hzp_sample_log_close(log);

    assert_int_equal(hzp_sample_log_open(p->path, model, &log, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_resume(log, 0, &resume, &text), HZP_OK);
    assert_int_equal(resume.checkpoint_id, 3);
    assert_string_equal(resume.checkpoint_name, "checkpoint-3");
    assert_int_equal(resume.learned_through, 10);
    assert_int_equal(resume.last_sequence_number, 40);
    assert_int_equal(resume.next_version_id, 10);
    assert_int_equal(resume.retrain_count, 11);
    hzp_sample_log_close(log);
}

static void expect_refused(const char *path, const char *fingerprint, int code, const char *word)
{
    struct hzp_sample_log *log = NULL;
    struct hzp_err_text text = {{0}, {0}};
    assert_int_equal(hzp_sample_log_open(path, fingerprint, &log, &text), code);
    assert_null(log);
    assert_non_null(strstr(text.text, path));
    if (!strstr(text.text, word))
        fail_msg("\"%s\" does not say \"%s\"", text.text, word);
}

static void write_at(const char *path, long at, size_t size, int byte)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    for (size_t i = 0; i < size; i++)
        fputc(byte, f);
    fclose(f);
}

static void test_refusals(void **state)
{
    struct place *p = *state;
    struct hzp_sample_log *log;
    int64_t first;
    assert_int_equal(hzp_sample_log_open(p->path, model, &log, NULL), HZP_OK);
    for (int64_t n = 1; n <= 400; n += 8)
        assert_int_equal(append_body(log, n, 8, &first), HZP_OK);
    expect_refused(p->path, model, HZP_EBUSY, "another process");
    hzp_sample_log_close(log);
    expect_refused(p->path, "qwen2-896x24", HZP_EINVAL, "another model");

    write_at(p->path, 60, 4, 9); /* the database's user_version field */
    expect_refused(p->path, model, HZP_EUNSUP, "schema version");
    write_at(p->path, 60, 3, 0);
    write_at(p->path, 63, 1, 1);
    write_at(p->path, 4096 * 6, 4096, 0x5a); /* a page of samples: the first five are roots */
    expect_refused(p->path, model, HZP_EFORMAT, "damaged");
    FILE *f = fopen(p->path, "wb");
    for (int i = 0; i < 3000; i++)
        fputs("no database ", f);
    fclose(f);
    expect_refused(p->path, model, HZP_EFORMAT, "damaged");
    expect_refused("/nonexistent/samples.db", model, HZP_ENOENT, "cannot open");
}

/* Appends until killed; reports each acknowledged number. */
static void append_for_ever(const char *path, int fd)
{
    struct hzp_sample_log *log;
    struct hzp_sample_log_resume resume;
    if (hzp_sample_log_open(path, model, &log, NULL) < 0 ||
        hzp_sample_log_resume(log, 0, &resume, NULL) < 0)
        _exit(1);
    for (int64_t next = resume.last_sequence_number + 1;;) {
        int64_t first;
        int32_t size = 1 + (int32_t)(next * 7 % 8);
        if (append_body(log, next, size, &first) < 0 || first != next)
            _exit(1);
        next += size;
        int64_t last = next - 1;
        if (write(fd, &last, sizeof(last)) != sizeof(last))
            _exit(1);
    }
}

static void test_kill(void **state)
{
    struct place *p = *state;
    struct hzp_sample_log *log;
    int64_t acknowledged = 0;
    srand(7);
    for (int round = 0; round < 40; round++) {
        int fd[2], status;
        assert_int_equal(pipe(fd), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            close(fd[0]);
            append_for_ever(p->path, fd[1]);
        }
        close(fd[1]);
        int64_t last;
        /* On a slow machine the other children may all be killed before they append anything. */
        if (round % 4 == 3 && read(fd[0], &last, sizeof(last)) == sizeof(last))
            acknowledged = last;
        usleep((useconds_t)(rand() % 20000));
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status)); /* it must not have ended by an error of its own */
        while (read(fd[0], &last, sizeof(last)) == sizeof(last))
            acknowledged = last;
        close(fd[0]);
        struct hzp_err_text text = {{0}, {0}};
        struct hzp_sample_log_resume resume;
        if (hzp_sample_log_open(p->path, model, &log, &text) < 0)
            fail_msg("%s", text.text);
        assert_int_equal(hzp_sample_log_resume(log, 0, &resume, &text), HZP_OK);
        assert_true(resume.last_sequence_number >= acknowledged);
        check_all(log, resume.last_sequence_number);
        hzp_sample_log_close(log);
    }
    assert_true(acknowledged > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_append_and_reopen, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_resume, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_refusals, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_kill, make_place, drop_place),
    };
    return cmocka_run_group_tests_name("sample_log", tests, NULL, NULL);
}
