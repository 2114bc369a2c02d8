/* SPDX-License-Identifier: Apache-2.0 */
#include "train/table/sample_log.h"
#include "tests/train/samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <sqlite3.h>
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
    float weight[32]; /* of every third sample */
    for (int32_t i = 0; i < count; i++)
        weight[i] = 1.0f / (float)(n + i);
    struct hzp_row_loss how[32]; /* of every fifth */
    for (int32_t i = 0; i < count; i++)
        how[i] = (struct hzp_row_loss){.kind = (int32_t)((n + i) % HZP_LOSS_KINDS),
                                       .inv_temperature = 1.0f / (float)(1 + i),
                                       .old = -(float)(n % 7),
                                       .advantage = (float)i - 3};
    struct hzp_soft soft[32]; /* the tokens of kind SOFT have them */
    int32_t softs = 0;
    for (int32_t i = 1; i < count; i++)
        if (learn[i] && how[i].kind == HZP_LOSS_SOFT)
            soft[softs++] = (struct hzp_soft){
                .count = 2, .token = {i, 40 + i}, .p = {0.5f, 0.25f}, .rest = 0.1f};
    return hzp_sample_create_soft(token, learn, n % 3 ? NULL : weight, n % 5 ? NULL : how, soft,
                                  count);
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
            assert_int_equal(sample[i]->weight != NULL, want->weight != NULL);
            if (want->weight)
                assert_memory_equal(sample[i]->weight, want->weight, (size_t)want->count * 4);
            assert_int_equal(sample[i]->how != NULL, want->how != NULL);
            if (want->how)
                assert_memory_equal(sample[i]->how, want->how,
                                    (size_t)want->count * sizeof(*want->how));
            assert_int_equal(sample[i]->softs, want->softs);
            if (want->softs)
                assert_memory_equal(sample[i]->soft, want->soft,
                                    (size_t)want->softs * sizeof(*want->soft));
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
    assert_int_equal(hzp_sample_log_checkpoint(log, 3, 10, "checkpoint-3", NULL, 0, &text), HZP_OK);
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

/* Reads samples 11 .. 40 in pieces, with their passes. */
static void expect_passes(struct hzp_sample_log *log, int32_t (*expected)(int64_t number))
{
    struct hzp_sample *sample[7];
    struct hzp_err_text text;
    int64_t next = 11;
    int32_t n;
    while ((n = hzp_sample_log_read(log, next - 1, 7, sample, &text)) > 0)
        for (int32_t i = 0; i < n; i++, next++) {
            assert_int_equal(sample[i]->sequence_number, next);
            assert_int_equal(sample[i]->passes, expected(next));
            assert_int_equal(sample[i]->learned, expected(next) == 2);
            hzp_sample_destroy(sample[i]);
        }
    assert_int_equal(n, 0);
    assert_int_equal(next, 41);
}

static int32_t at_4(int64_t n)
{
    return n >= 11 && n <= 15 ? 2 : n == 20 ? 1 : 0;
}

static int32_t at_9(int64_t n)
{
    return n == 40 ? 2 : 0;
}

static int32_t at_none(int64_t n)
{
    return 0;
}

/* Passes belong to a checkpoint: they come and go with it, also when it serves again. */
static void test_passes(void **state)
{
    static const struct hzp_passes four[] = {{11, 15, 2, true}, {20, 20, 1, false}},
                                   nine[] = {{40, 40, 2, true}};
    struct place *p = *state;
    struct hzp_sample_log *log;
    struct hzp_err_text text;
    int64_t first;
    assert_int_equal(hzp_sample_log_open(p->path, model, &log, &text), HZP_OK);
    for (int64_t n = 1; n <= 40; n += 8)
        assert_int_equal(append_body(log, n, 8, &first), HZP_OK);
    expect_passes(log, at_none);
    assert_int_equal(hzp_sample_log_checkpoint(log, 4, 10, "checkpoint-4", four, 2, &text), HZP_OK);
    expect_passes(log, at_4);
    assert_int_equal(hzp_sample_log_checkpoint(log, 9, 10, "checkpoint-9", nine, 1, &text), HZP_OK);
    hzp_sample_log_close(log);
    assert_int_equal(hzp_sample_log_open(p->path, model, &log, &text), HZP_OK);
    expect_passes(log, at_9);
    struct hzp_activation a = {
        .id = 10, .of = 4, .learned_through = 10, .checkpoint = "checkpoint-4", .replay = true};
    assert_int_equal(hzp_sample_log_activate(log, &a, &text), HZP_OK);
    expect_passes(log, at_4);
    a.id = 11, a.of = 9, a.checkpoint = "checkpoint-11"; /* the same weights, written again */
    assert_int_equal(hzp_sample_log_activate(log, &a, &text), HZP_OK);
    expect_passes(log, at_9);
    assert_int_equal(hzp_sample_log_checkpoint(log, 12, 10, "checkpoint-12", NULL, 0, &text), 0);
    expect_passes(log, at_none);
    for (uint64_t id = 10; id <= 12; id++)
        assert_int_equal(hzp_sample_log_forget_checkpoint(log, id, &text), HZP_OK);
    expect_passes(log, at_9);
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

/* Runs SQL on the closed log, as a tool or a failing disk would. */
static void change(const struct place *p, const char *sql)
{
    sqlite3 *db;
    char *error = NULL;
    assert_int_equal(sqlite3_open(p->path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s: %s", sql, error);
    sqlite3_close(db);
}

static struct hzp_sample_log *open_log(const struct place *p)
{
    struct hzp_sample_log *log = NULL;
    struct hzp_err_text text = {{0}, {0}};
    if (hzp_sample_log_open(p->path, model, &log, &text) < 0)
        fail_msg("%s", text.text);
    return log;
}

/* A changed row, and one that took the place of another. */
static void test_damaged_row(void **state)
{
    static const char *const damage[] = {
        "UPDATE samples SET data = zeroblob(length(data)) WHERE sequence_number = 2",
        ("UPDATE samples SET (count, data, checksum) = (SELECT count, data, checksum FROM samples"
         " WHERE sequence_number = 3) WHERE sequence_number = 2"),
        "UPDATE samples SET checksum = checksum + 1 WHERE sequence_number = 2"};
    struct place *p = *state;
    for (int i = 0; i < HZP_COUNT(damage); i++) {
        struct hzp_sample *sample[8];
        struct hzp_err_text text = {{0}, {0}};
        int64_t first;
        unlink(p->path);
        struct hzp_sample_log *log = open_log(p);
        assert_int_equal(append_body(log, 1, 3, &first), HZP_OK);
        hzp_sample_log_close(log);
        change(p, damage[i]);
        log = open_log(p);
        assert_int_equal(hzp_sample_log_read(log, 0, 8, sample, &text), HZP_EFORMAT);
        assert_non_null(strstr(text.text, "sample 2 is damaged"));
        assert_int_equal(hzp_sample_log_read(log, 2, 8, sample, &text), 1);
        hzp_sample_destroy(sample[0]);
        hzp_sample_log_close(log);
    }
}

/* A log of an earlier build: read, added to, and refused unchanged if it is another model's. */
static void test_upgrade(void **state)
{
    struct place *p = *state;
    struct hzp_err_text text;
    int64_t first;
    struct hzp_sample_log *log = open_log(p), *other;
    assert_int_equal(append_body(log, 1, 3, &first), HZP_OK);
    hzp_sample_log_close(log);
    change(p,
           "ALTER TABLE samples DROP COLUMN checksum; DROP TABLE bodies; DROP TABLE failed;"
           "ALTER TABLE versions DROP COLUMN parent; ALTER TABLE versions DROP COLUMN gate_before;"
           "ALTER TABLE versions DROP COLUMN gate_after; DROP TABLE names; DROP TABLE marks;"
           "DROP TABLE sessions; DROP TABLE sources; DROP TABLE lessons;"
           "DROP TABLE passes; ALTER TABLE versions DROP COLUMN sites;"
           "ALTER TABLE samples DROP COLUMN softs;"
           "PRAGMA user_version = 1");
    assert_int_equal(hzp_sample_log_open(p->path, "another", &other, &text), HZP_EINVAL);
    change(p, "CREATE TABLE bodies (a); DROP TABLE bodies"); /* it was not upgraded */
    log = open_log(p);
    assert_int_equal(append_body(log, 4, 2, &first), HZP_OK);
    check_all(log, 5);
    hzp_sample_log_close(log);
    log = open_log(p);
    check_all(log, 5);
    /* What it held is one lesson. */
    struct hzp_logged_lesson lesson[3];
    assert_int_equal(hzp_sample_log_lessons(log, INT64_MAX, 3, lesson, &text), 2);
    assert_true(lesson[0].id == 2 && lesson[0].first == 4 && lesson[0].last == 5);
    assert_true(lesson[0].unix_ms > 0);
    assert_true(lesson[1].id == 1 && lesson[1].first == 1 && lesson[1].last == 3);
    assert_int_equal(lesson[1].unix_ms, 0);
    hzp_sample_log_close(log);
}

/* A body is a lesson, with its session and its note; samples that are skipped are still there to be
 * taught again, those that are deleted are not. */
static void test_lessons(void **state)
{
    struct place *p = *state;
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_body_key key = {.session = "anna", .note = "a", .note_text = "{}"};
    struct hzp_sample *sample[2] = {make_sample(1, 1, 2), make_sample(2, 1, 2)};
    struct hzp_sample *read[4];
    struct hzp_logged_lesson lesson[4];
    int64_t first = 0;
    struct hzp_sample_log *log = open_log(p);
    assert_int_equal(hzp_sample_log_lessons(log, INT64_MAX, 4, lesson, &text), 0);
    assert_int_equal(append_body(log, 1, 3, &first), HZP_OK);
    assert_int_equal(hzp_sample_log_append_once(log, sample, 2, &key, &first, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_lesson(log, 2, &lesson[0], &text), HZP_OK);
    assert_true(lesson[0].first == 4 && lesson[0].last == 5);
    assert_string_equal(lesson[0].session, "anna");
    char *note = hzp_sample_log_whole_note(log, "a");
    assert_string_equal(note, "{}4");
    free(note);
    assert_int_equal(hzp_sample_log_set_note(log, "a", NULL, &text), HZP_OK);
    assert_null(hzp_sample_log_whole_note(log, "a"));
    assert_int_equal(hzp_sample_log_lesson(log, 3, &lesson[0], &text), HZP_ENOENT);
    assert_int_equal(hzp_sample_log_lessons(log, 2, 4, lesson, &text), 1);
    assert_int_equal(lesson[0].id, 1);
    assert_int_equal(hzp_sample_log_skip(log, 2, 4, 7, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_delete(log, 5, 7, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_read(log, 0, 4, read, &text), 1);
    hzp_sample_destroy(read[0]);
    assert_int_equal(hzp_sample_log_read_range(log, 4, 5, 4, read, &text), 1);
    assert_int_equal(read[0]->sequence_number, 4);
    hzp_sample_destroy(read[0]);
    hzp_sample_destroy(sample[0]);
    hzp_sample_destroy(sample[1]);
    hzp_sample_log_close(log);
}

/* A body with a key is appended once, also after a restart; the key names no other body. */
static void test_body_once(void **state)
{
    struct place *p = *state;
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_body_key key = {.key = "one", .digest = 77}, other = {.key = "two", .digest = 77};
    struct hzp_body_key wrong = {.key = "one", .digest = 78};
    struct hzp_sample *sample[2] = {make_sample(1, 1, 2), make_sample(2, 1, 2)};
    int64_t first = 0, count = 0;
    struct hzp_sample_log *log = open_log(p);
    assert_int_equal(hzp_sample_log_find_body(log, &key, &first, &count, &text), 0);
    assert_int_equal(hzp_sample_log_append_once(log, sample, 2, &key, &first, &text), HZP_OK);
    assert_int_equal(first, 1);
    for (int life = 0; life < 2; life++) {
        first = count = 0;
        assert_int_equal(hzp_sample_log_append_once(log, sample, 2, &key, &first, &text), 1);
        assert_int_equal(first, 1);
        assert_int_equal(hzp_sample_log_find_body(log, &key, &first, &count, &text), 1);
        assert_int_equal(count, 2);
        assert_int_equal(hzp_sample_log_append_once(log, sample, 2, &wrong, &first, &text),
                         HZP_EINVAL);
        assert_non_null(strstr(text.text, "\"one\""));
        check_all(log, 2);
        hzp_sample_log_close(log);
        log = open_log(p);
    }
    assert_int_equal(hzp_sample_log_append_once(log, sample, 2, &other, &first, &text), HZP_OK);
    assert_int_equal(first, 3);
    hzp_sample_log_close(log);
    /* A day later it is forgotten, with the next body that has a key. */
    change(p, "UPDATE bodies SET unix_ms = unix_ms - 90000000");
    log = open_log(p);
    assert_int_equal(hzp_sample_log_append_once(log, sample, 1,
                                                &(struct hzp_body_key){.key = "three", .digest = 1},
                                                &first, &text),
                     HZP_OK);
    assert_int_equal(hzp_sample_log_find_body(log, &wrong, &first, &count, &text), 0);
    hzp_sample_log_close(log);
    hzp_sample_destroy(sample[0]);
    hzp_sample_destroy(sample[1]);
}

/* A session is kept with the samples that it taught, in one transaction; one that had to make room
 * counts as having taught what all those have. */
static void test_sessions(void **state)
{
    enum { MORE = 3 };
    struct place *p = *state;
    struct hzp_err_text text;
    struct hzp_session *got = calloc(HZP_SESSIONS_MAX, sizeof(*got));
    struct hzp_body_key none = {.session = "mine"};
    struct hzp_body_key key = {.key = "one", .digest = 77, .session = "mine"};
    struct hzp_sample *sample[2] = {make_sample(1, 1, 2), make_sample(2, 1, 2)};
    int64_t first, forgotten = -1;
    char name[32];
    struct hzp_sample_log *log = open_log(p);
    assert_int_equal(hzp_sample_log_sessions(log, got, HZP_SESSIONS_MAX, &forgotten, &text), 0);
    assert_int_equal(forgotten, 0);
    for (int again = 0; again < 2; again++)
        assert_int_equal(hzp_sample_log_append_once(log, sample, 2, &key, &first, &text), again);
    hzp_sample_log_close(log);
    log = open_log(p);
    assert_int_equal(hzp_sample_log_sessions(log, got, HZP_SESSIONS_MAX, &forgotten, &text), 1);
    assert_string_equal(got[0].name, "mine");
    assert_int_equal(got[0].newest, 2);
    assert_int_equal(hzp_sample_log_append_once(log, sample, 1, &none, &first, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_note_session(log, "mine", 1, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_sessions(log, got, HZP_SESSIONS_MAX, &forgotten, &text), 1);
    assert_int_equal(got[0].newest, 3);
    hzp_sample_log_close(log);

    change(p, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4095)"
              " INSERT INTO sessions SELECT 'session ' || i, 100 + i FROM n");
    log = open_log(p);
    for (int i = 0; i < MORE; i++) {
        snprintf(name, sizeof(name), "more %d", i);
        assert_int_equal(hzp_sample_log_note_session(log, name, 9000 + i, &text), HZP_OK);
    }
    hzp_sample_log_close(log);
    log = open_log(p);
    assert_int_equal(hzp_sample_log_sessions(log, got, HZP_SESSIONS_MAX, &forgotten, &text),
                     HZP_SESSIONS_MAX);
    assert_int_equal(got[0].newest, 9000 + MORE - 1);
    assert_int_equal(forgotten, 100 + MORE - 1); /* "mine" and two more made room */
    assert_int_equal(hzp_sample_log_note_session(log, "mine", 5, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_sessions(log, got, HZP_SESSIONS_MAX, &forgotten, &text),
                     HZP_SESSIONS_MAX);
    for (int i = 0; i < HZP_SESSIONS_MAX; i++) /* it was the oldest, and is forgotten again */
        assert_true(strcmp(got[i].name, "mine") && got[i].newest > forgotten);
    hzp_sample_log_close(log);
    hzp_sample_destroy(sample[0]);
    hzp_sample_destroy(sample[1]);
    free(got);
}

static void test_pins_and_failures(void **state)
{
    struct place *p = *state;
    struct hzp_err_text text = {{0}, {0}};
    int64_t failed[] = {7, 3, 12}, got[4], count;
    struct hzp_sample_log *log = open_log(p);
    assert_int_equal(hzp_sample_log_pin(log, "weights", "model", "abc", &text), HZP_OK);
    assert_int_equal(hzp_sample_log_fail(log, failed, 3, 5, &text), HZP_OK);
    hzp_sample_log_close(log);
    log = open_log(p);
    assert_int_equal(hzp_sample_log_pin(log, "weights", "model", "abc", &text), HZP_OK);
    assert_int_equal(hzp_sample_log_pin(log, "weights", "model", "abd", &text), HZP_EINVAL);
    assert_non_null(strstr(text.text, "another model (abc, now abd)"));
    assert_int_equal(hzp_sample_log_failed(log, 1, INT64_MAX, got, 2, &count, &text), 2);
    assert_true(got[0] == 3 && got[1] == 7 && count == 3);
    assert_int_equal(hzp_sample_log_failed(log, 4, 11, got, 4, NULL, &text), 1);
    assert_int_equal(got[0], 7);
    assert_int_equal(hzp_sample_log_failed(log, 8, 11, got, 4, &count, &text), 0);
    assert_int_equal(count, 0);
    hzp_sample_log_close(log);
}

/* A log that is in memory until its file can be made: what it pinned is in the file then. */
static void test_made_later(void **state)
{
    struct place *p = *state;
    struct hzp_sample_log *log;
    struct hzp_sample_log_resume resume;
    struct hzp_err_text text, why = {.text = "no space here"};
    int64_t first;
    assert_int_equal(hzp_sample_log_open_later(p->path, model, &why, &log, &text), HZP_OK);
    assert_int_not_equal(access(p->path, F_OK), 0);
    assert_int_equal(hzp_sample_log_resume(log, 0, &resume, &text), HZP_OK);
    assert_true(resume.unmarked && resume.next_version_id == 1 && !resume.checkpoint_id);
    assert_string_equal(resume.why.text, "no space here");
    assert_int_equal(hzp_sample_log_pin(log, "weights", "model", "abc", &text), HZP_OK);
    assert_int_equal(hzp_sample_log_mark(log, &text), HZP_OK);
    assert_int_equal(access(p->path, F_OK), 0);
    assert_int_equal(append_body(log, 1, 8, &first), HZP_OK);
    assert_int_equal(hzp_sample_log_mark(log, &text), HZP_OK);
    hzp_sample_log_close(log);

    log = open_log(p);
    check_all(log, 8);
    assert_int_equal(hzp_sample_log_pin(log, "weights", "model", "abd", &text), HZP_EINVAL);
    assert_int_equal(hzp_sample_log_resume(log, 0, &resume, &text), HZP_OK);
    assert_false(resume.unmarked);
    hzp_sample_log_close(log);

    /* One that another run has begun meanwhile is not taken. */
    assert_int_equal(hzp_sample_log_open_later(p->path, model, &why, &log, &text), HZP_OK);
    assert_int_equal(hzp_sample_log_mark(log, &text), HZP_EBUSY);
    assert_int_equal(hzp_sample_log_resume(log, 0, &resume, &text), HZP_OK);
    assert_true(resume.unmarked);
    hzp_sample_log_close(log);
    log = open_log(p);
    check_all(log, 8);
    hzp_sample_log_close(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_append_and_reopen, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_resume, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_passes, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_refusals, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_damaged_row, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_upgrade, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_lessons, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_sessions, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_body_once, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_pins_and_failures, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_made_later, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_kill, make_place, drop_place),
    };
    return cmocka_run_group_tests_name("sample_log", tests, NULL, NULL);
}
