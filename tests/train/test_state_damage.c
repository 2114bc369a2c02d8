/* SPDX-License-Identifier: Apache-2.0 */
/* State that was damaged, lost, or begun with another model; full disks; bodies that come again. */
#include "tests/train/state_server.h"
#include "nanobatch/loop_state.h"
#include "train/conductor/trainer_state.h"
#include "tests/train/newest.h"

#include <sqlite3.h>

/* A server that learns something and leaves a checkpoint. */
static uint64_t live_and_save(int64_t number)
{
    struct server s;
    open_server(&s, 0);
    accept(&s, number);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_int_equal(close_server(&s, true), HZP_OK);
    return hzp_checkpoint_newest(scratch_path("state"));
}

static const char *in_checkpoint(uint64_t id, const char *name)
{
    return scratch_path("state/checkpoint-%llu%s", (unsigned long long)id, name);
}

/* Without the log it is not known which examples the checkpoints have learned, and new versions
 * would take their numbers: nothing is touched. */
static void test_lost_log(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    uint64_t first = live_and_save(1), second = live_and_save(2);
    assert_true(first && second > first);
    assert_int_equal(remove(scratch_path("state/samples.db")), 0);
    assert_int_equal(open_state(true, &text), HZP_EFORMAT);
    assert_non_null(strstr(text.text, "samples.db"));
    assert_non_null(strstr(text.text, "checkpoint-"));
    assert_false(is_there("state/samples.db"));
    assert_int_equal(access(in_checkpoint(first, "/trainer.safetensors"), F_OK), 0);
    assert_int_equal(access(in_checkpoint(second, "/trainer.safetensors"), F_OK), 0);
}

/* Directories with larger numbers than the log knows (put there by hand): new versions get still
 * larger ones, and the checkpoint that the log names is never pruned. */
static void test_foreign_checkpoints(void **state)
{
    live_and_save(1);
    assert_int_equal(mkdir(scratch_path("state/checkpoint-70000"), 0777), 0);
    assert_int_equal(mkdir(scratch_path("state/checkpoint-70001"), 0777), 0);
    uint64_t id = live_and_save(2);
    assert_true(id > 70001);
    assert_int_equal(access(in_checkpoint(id, "/trainer.safetensors"), F_OK), 0);
    struct hzp_retention newest = {.last = 1};
    const char *needed = "checkpoint-70001";
    hzp_checkpoint_prune(scratch_path("state"), &newest, &needed, 1);
    assert_int_equal(access(in_checkpoint(id, ""), F_OK), 0);
    assert_int_equal(access(in_checkpoint(70001, ""), F_OK), 0);
    assert_int_equal(access(in_checkpoint(70000, ""), F_OK), -1);
}

/* The newest checkpoint is cut off: the server begins with the one before it. */
static void test_damaged_checkpoint(void **state)
{
    struct server s;
    struct hzp_state_stats stats;
    struct hzp_err_text text = {{0}, {0}};
    uint64_t first = live_and_save(1), second = live_and_save(2);
    assert_int_equal(truncate(in_checkpoint(second, "/model.safetensors"), 600), 0);
    open_server(&s, 0);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.checkpoint_id, first);
    assert_int_equal(stats.restored, 2); /* what the damaged one had learned */
    assert_true(hzp_state_first_id(s.state) > second);
    assert_int_equal(access(in_checkpoint(second, ".damaged/trainer.safetensors"), F_OK), 0);
    close_server(&s, false);
    /* If none is whole, all stay as they are. */
    assert_int_equal(remove(in_checkpoint(first, "/trainer.safetensors")), 0);
    assert_true(open_state(false, &text) < 0);
    assert_non_null(strstr(text.text, "no checkpoint"));
    assert_int_equal(access(in_checkpoint(first, "/config.json"), F_OK), 0);
}

/* Changes the log behind the server's back. */
static void change_log(const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(scratch_path("state/samples.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* The log says that the checkpoint has learned more than it has: no example is lost by that. */
static void test_damaged_number(void **state)
{
    struct server s;
    struct hzp_state_stats stats;
    live_and_save(1);
    open_server(&s, 0);
    assert_int_equal(accept(&s, 2), 4); /* and not learned */
    close_server(&s, false);
    change_log("UPDATE checkpoints SET learned_through = 4");
    open_server(&s, 0);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.restored, 2);
    close_server(&s, true);
}

static int32_t logged_checkpoints(void)
{
    struct hzp_sample_log *log;
    struct hzp_logged_checkpoint all[16];
    struct hzp_err_text text;
    MUST(hzp_sample_log_open(scratch_path("state/samples.db"), NULL, &log, &text));
    int32_t n = hzp_sample_log_checkpoints(log, all, 16, &text);
    hzp_sample_log_close(log);
    return n;
}

/* A checkpoint that is removed leaves the log; one that was moved elsewhere stays in it. */
static void test_removed_checkpoints(void **state)
{
    uint64_t first = live_and_save(1);
    live_and_save(2);
    assert_int_equal(logged_checkpoints(), 2);
    assert_int_equal(rename(in_checkpoint(first, ""), scratch_path("elsewhere")), 0);
    live_and_save(3);
    assert_int_equal(logged_checkpoints(), 3);
    live_and_save(4);
    live_and_save(5);
    assert_int_equal(logged_checkpoints(), 3); /* the one that is elsewhere, and the newest two */
}

/* A line of the audit log that was cut off spoils no other. */
static void test_cut_audit_line(void **state)
{
    struct server s;
    char bytes[64] = "";
    live_and_save(1);
    scratch_write_text(scratch_path("state/audit.jsonl"), "{\"time\"");
    open_server(&s, 0);
    close_server(&s, false);
    FILE *file = fopen(scratch_path("state/audit.jsonl"), "r");
    assert_true(fread(bytes, 1, sizeof(bytes) - 1, file) > 0);
    fclose(file);
    assert_string_equal(bytes, "{\"time\"\n");
}

/* A bit of the residuals, which come last. */
static void flip_bit_of_state(uint64_t checkpoint)
{
    FILE *file = fopen(in_checkpoint(checkpoint, "/trainer.safetensors"), "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1000, SEEK_END), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, -1000, SEEK_END), 0);
    fputc(byte ^ 4, file);
    fclose(file);
}

static void turn_or_wait(struct server *s)
{
    if (hzp_loop_turn(s->loop) == 0)
        usleep(1000);
}

/* The same where the state is read while the server answers: the checkpoint before serves again,
 * and what was learned since is learned again. */
static void test_flipped_bit_behind(void **state)
{
    struct server s;
    struct hzp_version_record newest;
    uint64_t first = live_and_save(1), second = live_and_save(2);
    behind = true;
    flip_bit_of_state(second);
    open_server(&s, 0);
    hzp_weights_newest(s.weights, &newest);
    assert_int_equal(newest.parent, second); /* it serves with these weights */
    uint64_t begun = newest.id;
    do {
        turn_or_wait(&s);
        hzp_weights_newest(s.weights, &newest);
    } while (newest.id == begun);
    assert_int_equal(newest.id, begun + 1);
    assert_int_equal(newest.parent, first);
    assert_int_equal(access(in_checkpoint(second, ".damaged/trainer.safetensors"), F_OK), 0);
    while (newest.learned_through < 4) { /* the damaged one's lesson, again */
        turn_or_wait(&s);
        hzp_weights_newest(s.weights, &newest);
    }
    assert_false(is_broken(&s));
    int64_t last = accept(&s, 3);
    while (newest.learned_through < last) {
        turn_or_wait(&s);
        hzp_weights_newest(s.weights, &newest);
    }
    assert_int_equal(close_server(&s, true), HZP_OK);
    assert_true(hzp_checkpoint_newest(scratch_path("state")) > begun);
    open_server(&s, 0); /* a whole one: read behind, and learned from */
    accept(&s, 4);
    uint64_t id = hzp_weights_current(s.weights)->record.id;
    do {
        turn_or_wait(&s);
        hzp_weights_newest(s.weights, &newest);
    } while (newest.id == id);
    assert_int_equal(close_server(&s, true), HZP_OK);
    behind = false;
}

/* None before is whole: it serves, learns nothing, and says so. */
static void test_flipped_bit_of_the_only(void **state)
{
    struct server s;
    struct hzp_version_record begun, newest;
    uint64_t only = live_and_save(1);
    behind = true;
    flip_bit_of_state(only);
    open_server(&s, 0);
    accept(&s, 2);
    hzp_weights_newest(s.weights, &begun);
    assert_int_equal(begun.parent, only);
    while (!is_broken(&s))
        turn_or_wait(&s);
    for (int i = 0; i < 20; i++)
        hzp_loop_turn(s.loop);
    hzp_weights_newest(s.weights, &newest);
    assert_int_equal(newest.id, begun.id);
    assert_int_equal(close_server(&s, true), HZP_OK); /* there is nothing to save */
    assert_int_equal(access(in_checkpoint(only, "/trainer.safetensors"), F_OK), 0);
    behind = false;
}

/* A bit of the residuals is flipped: found when they are loaded. */
static void test_flipped_bit(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    struct server s = {0};
    uint64_t first = live_and_save(1), second = live_and_save(2);
    flip_bit_of_state(second);
    /* As far as the engine comes: everything but the loop. */
    MUST(hzp_config_read(scratch_dir, &s.config, &text));
    struct fixture_model model;
    fixture_open(
        &model,
        &(struct fixture_config){
            .device = "ref",
            .config = s.config,
            .store = {.type = HZP_BF16, .slots = 2, .max_staleness = 1, .first_id = 1000000}});
    struct hzp_state_config config = state_config(&model.layout, 0);
    MUST(hzp_state_open(&config, &s.state, &text));
    struct hzp_trainer_config trainer = {.recipe = {.update_tokens = 40,
                                                    .micro_rows = 32,
                                                    .publish_every = 1,
                                                    .moment_type = HZP_F32},
                                         .model = model.model,
                                         .queue = hzp_state_queue(s.state)};
    MUST(hzp_trainer_create(&trainer, &s.trainer, NULL));
    struct hzp_version *draft = fixture_begin(&model);
    MUST(hzp_model_load(hzp_state_weights_dir(s.state), model.dev,
                        hzp_version_units(model.weights, draft), NULL, &text));
    assert_int_equal(hzp_state_restore(s.state, s.trainer, draft, &text), HZP_EFORMAT);
    assert_non_null(strstr(text.text, "is damaged"));
    assert_true(hzp_state_set_aside(s.state, text.text));
    fixture_publish(&model, draft, 0);
    hzp_trainer_destroy(s.trainer);
    hzp_state_close(s.state);
    fixture_close(&model);

    open_server(&s, 0);
    struct hzp_state_stats stats;
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.checkpoint_id, first);
    assert_false(hzp_state_set_aside(s.state, "there is none older"));
    close_server(&s, false);
}

/* Versions that could not be journalled are journalled later, in order. */
static void test_full_disk(void **state)
{
    struct server s;
    struct hzp_version_record newest;
    atomic_store(&refused_versions, 0);
    atomic_store(&disk_is_full, 1);
    open_server(&s, 0);
    for (int i = 0; i < 10; i++)
        accept(&s, i);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    while (!atomic_load(&refused_versions))
        usleep(1000);
    hzp_weights_newest(s.weights, &newest);
    assert_true(newest.id > 2);
    atomic_store(&disk_is_full, 0);
    while (atomic_load(&journalled) < newest.id) /* with no further update */
        usleep(1000);
    assert_int_equal(close_server(&s, true), HZP_OK);
}

/* Files can be at most so long: what lies behind cannot be written, as on a full disk. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A server that starts on a full disk has the newest weights and learns nothing, until the disk can
 * be written; then it learns what waited, and no version takes another's number. */
static void test_start_on_full_disk(void **state)
{
    struct server s;
    struct hzp_version_record first, newest;
    uint64_t saved = live_and_save(1);
    open_server(&s, 0);
    int64_t last = accept(&s, 2); /* learned by the next server */
    close_server(&s, false);
    for (int turn = 0; turn < 2; turn++) { /* the second time after a crash, or nearly so */
        limit_files(0);
        open_server(&s, 0);
        assert_true(hzp_state_read_only(s.state));
        hzp_weights_newest(s.weights, &first);
        for (int i = 0; i < 20; i++)
            hzp_loop_turn(s.loop);
        hzp_weights_newest(s.weights, &newest);
        assert_int_equal(newest.id, first.id);
        assert_int_equal(newest.optimizer_step, first.optimizer_step);
        assert_true(newest.id > saved);
        if (turn == 0)
            assert_int_equal(close_server(&s, true), HZP_OK); /* there is nothing to save */
        limit_files(RLIM_INFINITY);
    }
    while (hzp_state_read_only(s.state))
        usleep(1000);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    hzp_weights_newest(s.weights, &newest);
    assert_true(newest.id > first.id);
    assert_int_equal(newest.learned_through, last);
    assert_int_equal(close_server(&s, true), HZP_OK);
    assert_int_equal(hzp_checkpoint_newest(scratch_path("state")), newest.id);
}

static void test_stop_says_so(void **state)
{
    struct server s;
    open_server(&s, 0);
    for (int i = 1; i < 200; i++) /* a file where the directory must be created */
        scratch_write_text(scratch_path("state/checkpoint-%d.tmp", i), "");
    accept(&s, 1);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_int_equal(close_server(&s, true), HZP_EIO);
}

/* Lets the file thread read the whole model, which it does once in a state's life. */
static void read_contents(void)
{
    struct server s;
    char path[4096];
    int64_t found = 0;
    open_server(&s, 0);
    snprintf(path, sizeof(path), "%s", scratch_path("state/samples.db-wal"));
    for (int i = 0; i < 100000 && !found; i++) { /* the log is locked: look for the note's name */
        char text[65536];
        FILE *file = fopen(path, "rb");
        size_t n = file ? fread(text, 1, sizeof(text), file) : 0;
        if (file)
            fclose(file);
        found = n && memmem(text, n, "weights_files", 13);
        usleep(1000);
    }
    assert_true(found);
    close_server(&s, false);
}

/* One byte changed anywhere in the model, in a file of the same size. */
static void test_one_byte(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    live_and_save(1);
    read_contents();
    FILE *file = fopen(scratch_path("model.safetensors"), "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, -333, SEEK_END), 0);
    int byte = fgetc(file);
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(fseek(file, -333, SEEK_END), 0);
        fputc(turn ? byte : byte ^ 1, file);
        fflush(file);
        const struct timespec times[] = {{.tv_sec = turn + 1}, {.tv_sec = turn + 1}};
        assert_int_equal(futimens(fileno(file), times), 0);
        assert_int_equal(open_state(false, &text), turn ? HZP_OK : HZP_EINVAL);
    }
    assert_non_null(strstr(text.text, "another model"));
    fclose(file);
}

/* Weights of the same shapes, but others. */
static void test_another_model(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    live_and_save(1);
    fixture_write_dir(scratch_dir, HZP_BF16, 10, 0.1f);
    assert_int_equal(open_state(false, &text), HZP_EINVAL);
    assert_non_null(strstr(text.text, "another model"));
    assert_non_null(strstr(text.text, "--state"));
    fixture_write_dir(scratch_dir, HZP_BF16, 9, 0.1f);
    assert_int_equal(open_state(false, &text), HZP_OK);
    scratch_write_text(scratch_path("tokenizer.json"), "{}");
    assert_int_equal(open_state(false, &text), HZP_OK); /* there was none */
    scratch_write_text(scratch_path("tokenizer.json"), "{ }");
    assert_int_equal(open_state(false, &text), HZP_EINVAL);
    assert_non_null(strstr(text.text, "another tokenizer"));
    remove(scratch_path("model.safetensors")); /* the checkpoint has what is needed */
    scratch_write_text(scratch_path("tokenizer.json"), "{}");
    assert_int_equal(open_state(false, &text), HZP_OK);
}

static int64_t accept_once(struct server *s, const char *key, const char *body, int want)
{
    struct hzp_err_text text = {{0}, {0}};
    int64_t first = 0, last = 0;
    assert_int_equal(accept_body(s->state, body, strlen(body), key, &first, &last, &text), want);
    return last;
}

/* A client that did not get its answer sends the body again, also to the next server. */
static void test_again(void **state)
{
    static const char body[] = "{\"tokens\": [1, 2, 7]}\n{\"tokens\": [1, 4]}\n";
    struct server s;
    struct hzp_state_stats stats;
    open_server(&s, 0);
    assert_int_equal(accept_once(&s, "a", body, HZP_OK), 2);
    assert_int_equal(accept_once(&s, "a", body, HZP_OK), 2);
    assert_int_equal(accept_once(&s, "b", body, HZP_OK), 4);
    assert_int_equal(accept_once(&s, NULL, body, HZP_OK), 6);
    accept_once(&s, "a", "{\"tokens\": [1, 3]}", HZP_EINVAL);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.accepted, 6);
    assert_int_equal(stats.repeated, 1);
    close_server(&s, false);
    open_server(&s, 0);
    assert_int_equal(accept_once(&s, "b", body, HZP_OK), 4);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.last_sequence_number, 6);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_int_equal(hzp_weights_current(s.weights)->record.learned_through, 6);
    close_server(&s, false);
}

static hzp_op_fn *real_xent;

/* The gradient of rows that should predict token 49 is not finite. */
static int poisoned_xent(struct hzp_lane *lane, const void *args)
{
    const struct hzp_xent_args *a = args;
    int r = real_xent(lane, args);
    for (int32_t i = 0; i < a->x.rows; i++)
        if (a->target[i] == 49 && a->dx.ptr)
            ((uint16_t *)a->dx.ptr)[(size_t)i * (size_t)a->dx.stride] = 0x7fc0; /* BF16 NaN */
    return r;
}

/* An example that no update can learn is given up, marked, and never counted as learned; the next
 * server knows it and does not try again. */
static void test_failed_example(void **state)
{
    static const char bad[] = "{\"tokens\": [1, 2, 49]}";
    struct server s;
    struct hzp_state_stats stats;
    struct hzp_version_record record;
    int64_t failed[64], count;
    open_server(&s, 0);
    real_xent = s.dev->op[HZP_OP_xent];
    s.dev->op[HZP_OP_xent] = poisoned_xent;
    accept(&s, 1);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_int_equal(accept_once(&s, NULL, bad, HZP_OK), 3);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_int_equal(hzp_state_failed(s.state, 1, 100, failed, 64, &count), 1);
    assert_true(failed[0] == 3 && count == 1);
    assert_int_equal(hzp_state_failed(s.state, 1, 2, failed, 64, &count), 0);
    accept(&s, 5);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    hzp_weights_newest(s.weights, &record);
    assert_int_equal(record.learned_through, 5); /* where a checkpoint of it ends */
    assert_int_equal(hzp_state_learned_through(s.state, record.learned_through), 2);
    assert_int_equal(hzp_state_learned_through(s.state, 1), 1);
    assert_int_equal(hzp_state_learned_through(s.state, -1), -1);
    for (int32_t i = 0; i < record.learned.ranges; i++)
        assert_true(record.learned.last[i] < 3 || record.learned.first[i] > 3);
    close_server(&s, false); /* without a checkpoint: everything but it is learned again */
    open_server(&s, 0);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.failed, 1);
    assert_int_equal(stats.restored, 4);
    assert_int_equal(hzp_state_failed(s.state, 3, 3, failed, 64, &count), 1);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_int_equal(hzp_state_learned_through(s.state, 5), 2);
    close_server(&s, true);
}

static struct server *failing;

/* The update has begun to write: the file thread, which waited with its journal, asks for a
 * freeze. */
static void wait_for_freeze(void)
{
    atomic_store(&journal_waits, 0);
    while (!hzp_borders_wait(&failing->loop->borders))
        usleep(500);
}

/* A checkpoint is due while an update fails that has already changed moments and residuals: none is
 * written, and what was learned since the model is learned again after a restart. */
static void test_due_after_failure(void **state)
{
    struct server s;
    struct hzp_state_stats stats;
    open_server(&s, 1);
    while (!atomic_load(&journalled))
        usleep(500);
    atomic_store(&journal_waits, 1); /* nothing becomes due before the second update */
    accept(&s, 1);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    uint64_t good = hzp_weights_current(s.weights)->record.id;
    failing = &s;
    fail_audits(&s, wait_for_freeze);
    accept(&s, 2);
    while (!is_broken(&s))
        turn_or_wait(&s);
    while (hzp_borders_wait(&s.loop->borders) ||
           s.trainer->freeze) /* until the file thread has looked at it */
        turn_or_wait(&s);
    assert_int_equal(hzp_weights_current(s.weights)->record.id, good);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.checkpoints + stats.checkpoint_failures, 0);
    assert_int_equal(close_server(&s, true), HZP_OK);
    assert_int_equal(hzp_checkpoint_newest(scratch_path("state")), 0);
    open_server(&s, 0);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.restored, 4);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_false(is_broken(&s));
    assert_int_equal(close_server(&s, true), HZP_OK);
    assert_true(hzp_checkpoint_newest(scratch_path("state")) > good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lost_log, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_foreign_checkpoints, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_damaged_checkpoint, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_damaged_number, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_removed_checkpoints, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_cut_audit_line, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_flipped_bit_behind, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_flipped_bit_of_the_only, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_flipped_bit, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_start_on_full_disk, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_stop_says_so, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_one_byte, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_another_model, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_again, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_failed_example, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_due_after_failure, make_model, scratch_teardown),
    };
    return cmocka_run_group_tests_name("state_damage", tests, NULL, NULL);
}
