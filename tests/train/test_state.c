/* SPDX-License-Identifier: Apache-2.0 */
/* The state that survives a server: log, journal and checkpoints, with the whole engine running
 * beside the file thread; the server is stopped, restarted, and killed at random moments. */
#include "tests/train/state_server.h"
#include "tests/train/samples.h"
#include "tests/train/newest.h"

#include "api/learn/state_tool.h"
#include "base/file.h"

static void test_stop_and_start(void **state)
{
    struct server s;
    struct hzp_state_stats stats;
    struct hzp_version_record record;
    open_server(&s, 0);
    uint64_t id = hzp_state_first_id(s.state);
    assert_int_equal(id, 1);
    for (int i = 0; i < 20; i++)
        accept(&s, i);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    hzp_weights_newest(s.weights, &record);
    assert_int_equal(record.learned_through, 40);
    struct hzp_units weights = fixture_units_read(s.dev, current_units(&s));
    int64_t step = record.optimizer_step;
    close_server(&s, true);

    open_server(&s, 0); /* continues with exactly the same numbers, and nothing is left to learn */
    assert_true(fixture_units_same(NULL, &weights, current_units(&s)));
    hzp_weights_newest(s.weights, &record);
    assert_int_equal(record.optimizer_step, step);
    assert_int_equal(record.learned_through, 40);
    assert_true(record.id > id);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.restored, 0);
    assert_int_equal(stats.trained_again, 0);
    assert_int_equal(hzp_loop_turn(s.loop), 0);
    /* Accepted, then lost without a checkpoint: it is learned again. */
    assert_int_equal(accept(&s, 77), 42);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    close_server(&s, false);
    open_server(&s, 0);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.restored, 2);
    assert_int_equal(stats.trained_again, 2);
    assert_int_equal(stats.last_sequence_number, 42);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    hzp_weights_newest(s.weights, &record);
    assert_int_equal(record.learned_through, 42);
    close_server(&s, true);
    fixture_units_free(&weights);
}

/* A restart lists the versions of the process before it, with their losses and what they learned
 * from, also when that process was killed or left no checkpoint. */
static void test_history_outlives(void **state)
{
    struct server s;
    struct hzp_version_record before[64], after[128];
    int64_t known = 0;
    for (int run = 0; run < 3; run++) {
        open_server(&s, 0);
        int32_t n = hzp_weights_list(s.weights, after, 128);
        assert_int_equal(n, known + 1);
        for (int32_t i = 1; i < n; i++) {
            assert_int_equal(after[i].id, before[i - 1].id);
            assert_int_equal(after[i].optimizer_step, before[i - 1].optimizer_step);
            assert_int_equal(after[i].checksum, before[i - 1].checksum);
            assert_int_equal(after[i].published_unix_ms, before[i - 1].published_unix_ms);
            assert_int_equal(after[i].learned_through, before[i - 1].learned_through);
            assert_memory_equal(&after[i].learned, &before[i - 1].learned,
                                sizeof(after[i].learned));
            assert_true(after[i].loss == before[i - 1].loss ||
                        (isnan(after[i].loss) && isnan(before[i - 1].loss)));
            assert_int_equal(after[i].state, HZP_VERSION_FREE);
        }
        for (int i = 0; i < 4; i++)
            accept(&s, run * 10 + i);
        while (hzp_loop_turn(s.loop) > 0)
            ;
        known = hzp_weights_list(s.weights, before, 64);
        assert_true(known > run * 4);
        close_server(&s, run != 1);
    }
}

/* Draws what an update would, and rejects it. */
static void reject(struct server *s, int64_t first, bool rejected)
{
    const struct hzp_sample *drawn[8];
    struct hzp_sample_queue *q = hzp_state_queue(s->state);
    assert_int_equal(hzp_sample_queue_draw(q, 9, drawn, 8), 2);
    assert_int_equal(drawn[0]->sequence_number, first);
    if (rejected)
        hzp_sample_queue_reject(q);
    else
        hzp_sample_queue_done(q);
}

static void check_through(struct server *s, int64_t learned, int64_t finished)
{
    int64_t none[1], count, through;
    through = hzp_weights_current(s->weights)->record.learned_through;
    assert_int_equal(hzp_state_finished_through(s->state, through), finished);
    assert_int_equal(hzp_state_learned_through(s->state, INT64_MAX), learned);
    hzp_state_marked(s->state, HZP_MARK_REJECTED, 1, 99, none, 0, &count);
    assert_int_equal(count, finished - learned);
}

/* Examples are rejected in another order than that of their numbers, and no version is published
 * since: what is learned ends before the first, what is finished does not stand still behind them.
 * It is the same after a restart. */
static void test_rejected_in_any_order(void **state)
{
    struct server s;
    open_server(&s, 0);
    accept(&s, 1);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    hzp_trainer_pause(s.trainer, true);
    for (int i = 2; i <= 3; i++)
        accept(&s, i);
    reject(&s, 3, false);
    reject(&s, 5, true);
    reject(&s, 3, true); /* in its second pass */
    check_through(&s, 2, 6);
    close_server(&s, true);
    for (int run = 0; run < 2; run++) {
        open_server(&s, 0);
        check_through(&s, 2, 6);
        close_server(&s, run);
    }
}

/* Turns until training has been said to starve so many times. */
static void starve(struct server *s, uint64_t times)
{
    struct hzp_state_stats stats = {0};
    while (stats.starved < times) {
        hzp_loop_turn(s->loop);
        usleep(1000);
        hzp_state_read_stats(s->state, &stats);
    }
    assert_int_equal(stats.starved, times);
}

/* Examples wait and nothing is learned: that is said once, and once more when it happens again. */
static void test_starving(void **state)
{
    struct server s;
    struct hzp_state_stats stats;
    open_server(&s, 0);
    for (uint64_t times = 1; times <= 2; times++) {
        hzp_trainer_pause(s.trainer, true);
        accept(&s, (int64_t)times);
        starve(&s, times);
        for (int i = 0; i < 500; i++) {
            hzp_loop_turn(s.loop);
            usleep(1000);
        }
        hzp_state_read_stats(s.state, &stats);
        assert_int_equal(stats.starved, times);
        hzp_trainer_pause(s.trainer, false);
        while (hzp_loop_turn(s.loop) > 0)
            ;
    }
    close_server(&s, false);
}

/* A checkpoint is served under the model's name and with its settings. */
static void test_checkpoint_options(void **state)
{
    struct server s;
    open_server(&s, 0);
    accept(&s, 1);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    close_server(&s, true);
    char path[64], line[64] = "";
    snprintf(path, sizeof(path), "state/checkpoint-%llu/serve.options",
             (unsigned long long)hzp_checkpoint_newest(scratch_path("state")));
    FILE *file = fopen(scratch_path("%s", path), "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    assert_string_equal(line, "--served-model-name a model\n");
}

static void make_checkpoint(uint64_t number, int64_t unix_s, bool tag)
{
    char name[64];
    struct timespec times[2] = {{.tv_sec = (time_t)unix_s}, {.tv_sec = (time_t)unix_s}};
    snprintf(name, sizeof(name), "kept/checkpoint-%llu", (unsigned long long)number);
    assert_int_equal(hzp_dir_make(scratch_path("%s", name), NULL, NULL), HZP_OK);
    snprintf(name, sizeof(name), "kept/checkpoint-%llu/trainer.safetensors",
             (unsigned long long)number);
    fclose(fopen(scratch_path("%s", name), "w"));
    assert_int_equal(utimensat(AT_FDCWD, scratch_path("%s", name), times, 0), 0);
    snprintf(name, sizeof(name), "kept/checkpoint-%llu/keep", (unsigned long long)number);
    if (tag)
        fclose(fopen(scratch_path("%s", name), "w"));
}

/* The newest few, one an hour, tagged ones and those of another name stay. */
static void test_prune(void **state)
{
    int64_t hour = (int64_t)time(NULL) / 3600 * 3600;
    static const struct {
        int hours, minute; /* before this hour's begin, in that hour */
        bool tag, kept;
    } of[] = {{40, 10, false, false}, {40, 20, true, true}, {30, 5, false, false},
              {5, 1, false, false},   {5, 59, false, true}, {4, 30, false, true},
              {1, 1, false, false},   {1, 2, true, true},   {1, 3, false, true},
              {0, 0, false, true},    {0, 0, false, true}};
    for (int i = 0; i < HZP_COUNT(of); i++)
        make_checkpoint((uint64_t)i + 1, hour - of[i].hours * 3600 + of[i].minute * 60, of[i].tag);
    assert_int_equal(hzp_dir_make(scratch_path("kept/checkpoint-2-good"), NULL, NULL), HZP_OK);
    assert_int_equal(hzp_dir_make(scratch_path("kept/checkpoint-3.tmp"), NULL, NULL), HZP_OK);
    struct hzp_retention policy = {.last = 2, .hourly = 24};
    hzp_checkpoint_prune(scratch_path("kept"), &policy, NULL, 0);
    for (int i = 0; i < HZP_COUNT(of); i++) {
        char name[64];
        snprintf(name, sizeof(name), "kept/checkpoint-%d", i + 1);
        if ((access(scratch_path("%s", name), F_OK) == 0) != of[i].kept)
            fail_msg("%s is %s", name, of[i].kept ? "gone" : "there");
    }
    assert_int_equal(access(scratch_path("kept/checkpoint-2-good"), F_OK), 0);
    assert_int_not_equal(access(scratch_path("kept/checkpoint-3.tmp"), F_OK), 0);
    const char *needed[] = {"checkpoint-6"};
    policy = (struct hzp_retention){.last = 1};
    hzp_checkpoint_prune(scratch_path("kept"), &policy, needed, 1);
    assert_int_equal(access(scratch_path("kept/checkpoint-6"), F_OK), 0);
    hzp_checkpoint_prune(scratch_path("kept"), &policy, NULL, 0); /* tagged ones and the newest */
    assert_int_not_equal(access(scratch_path("kept/checkpoint-6"), F_OK), 0);
    assert_int_equal(hzp_checkpoint_newest(scratch_path("kept")), HZP_COUNT(of));
    assert_int_equal(access(scratch_path("kept/checkpoint-2"), F_OK), 0);
    assert_int_not_equal(access(scratch_path("kept/checkpoint-10"), F_OK), 0);
}

static void test_periodic_checkpoints(void **state)
{
    struct server s;
    struct hzp_state_stats stats = {0};
    open_server(&s, 3);
    for (int i = 0; i < 200 || (stats.checkpoints < 3 && i < 1000000); i++) {
        if (i % 20 == 0 && i < 20000)
            accept(&s, i);
        if (hzp_loop_turn(s.loop) == 0)
            usleep(200);
        hzp_state_read_stats(s.state, &stats);
    }
    assert_true(stats.checkpoints >= 3);
    assert_int_equal(stats.checkpoint_failures, 0);
    close_server(&s, true);
    uint64_t newest = hzp_checkpoint_newest(scratch_path("state"));
    assert_true(newest > 0);
    int found = 0;
    for (uint64_t n = 1; n <= newest; n++) {
        char name[64];
        snprintf(name, sizeof(name), "state/checkpoint-%llu/trainer.safetensors",
                 (unsigned long long)n);
        found += access(scratch_path("%s", name), R_OK) == 0;
    }
    assert_int_equal(found, 2);
}

/* Turns until the condition holds. */
#define TURN_UNTIL(s, condition)                                                                   \
    while (!(condition))                                                                           \
    turn(s)

static void turn(struct server *s)
{
    if (hzp_loop_turn(s->loop) == 0)
        usleep(200);
}

static int64_t newest_step(struct server *s)
{
    struct hzp_version_record newest;
    hzp_weights_newest(s->weights, &newest);
    return newest.optimizer_step;
}

static struct hzp_state_stats read_stats(struct server *s)
{
    struct hzp_state_stats stats;
    hzp_state_read_stats(s->state, &stats);
    return stats;
}

/* While a checkpoint is on its way to a slow disk, updates go on and are published; the one that is
 * due meanwhile follows, and there is never more than one.  What is on disk in the end is what was
 * copied, whatever has changed since. */
static void test_slow_disk(void **state)
{
    struct server s;
    int number = 0;
    atomic_store(&saves_begun, 0);
    atomic_store(&disk_is_slow, 1);
    open_server(&s, 2);
    for (; number < 10; number++)
        accept(&s, number);
    TURN_UNTIL(&s, atomic_load(&saves_begun) == 1);
    int64_t then = newest_step(&s);
    for (; number < 100; number++)
        accept(&s, number);
    TURN_UNTIL(&s, newest_step(&s) >= then + 8 && read_stats(&s).checkpoints_late);
    assert_int_equal(atomic_load(&saves_begun), 1);
    assert_int_equal(read_stats(&s).checkpoints, 0);
    assert_int_equal(read_stats(&s).checkpoints_late, 1);
    assert_int_equal(hzp_checkpoint_newest(scratch_path("state")), 0);
    atomic_store(&disk_is_slow, 0);
    TURN_UNTIL(&s, read_stats(&s).checkpoints >= 2);
    assert_true(read_stats(&s).checkpoint_pause_seconds > 0);
    uint64_t first_saved =
        hzp_checkpoint_below(scratch_path("state"), hzp_checkpoint_newest(scratch_path("state")));
    close_server(&s, false);

    /* The copy of the older one: the checksums in it are compared when it is loaded. */
    struct hzp_err_text text = {{0}, {0}};
    int64_t damaged = -1;
    FILE *out = fopen("/dev/null", "w");
    assert_true(first_saved > 0);
    assert_int_equal(hzp_state_tool(scratch_path("state"), HZP_STATE_CHECK, out, &damaged, &text),
                     HZP_OK);
    fclose(out);
    assert_int_equal(damaged, 0);
    open_server(&s, 0);
    close_server(&s, false);
}

static void serve_until_killed(int fd)
{
    struct server s;
    open_server(&s, 2);
    for (int64_t i = 0;; i++) {
        struct hzp_sample_queue_stats queue;
        hzp_sample_queue_read_stats(hzp_state_queue(s.state), &queue);
        if (i % 8 == 0 && queue.samples < 100) {
            int64_t last = accept(&s, i);
            if (write(fd, &last, sizeof(last)) != sizeof(last))
                _exit(1);
        }
        hzp_loop_turn(s.loop);
    }
}

static void test_kill(void **state)
{
    int64_t acknowledged = 0;
    uint64_t first_id = 0;
    srand(3);
    /* On a slow machine the test takes more and longer rounds, until there was something to
       lose. */
    for (int round = 0, life_us = 120000;
         round < 25 || !acknowledged || !hzp_checkpoint_newest(scratch_path("state")); round++) {
        int fd[2], status;
        assert_int_equal(pipe(fd), 0);
        pid_t child = fork();
        if (!child) {
            close(fd[0]);
            serve_until_killed(fd[1]);
        }
        close(fd[1]);
        usleep((useconds_t)(20000 + rand() % life_us));
        if (round >= 25)
            life_us += 120000;
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        int64_t last;
        while (read(fd[0], &last, sizeof(last)) == sizeof(last))
            acknowledged = last;
        close(fd[0]);

        struct server s;
        struct hzp_state_stats stats;
        struct hzp_version_record record;
        open_server(&s, 2); /* would refuse a torn checkpoint, or one without its log */
        hzp_state_read_stats(s.state, &stats);
        hzp_weights_newest(s.weights, &record);
        assert_true(stats.last_sequence_number >= acknowledged);
        int64_t through = record.learned_through > 0 ? record.learned_through : 0;
        assert_int_equal(stats.restored, stats.last_sequence_number - through);
        assert_true(stats.trained_again <= stats.restored);
        assert_true(record.id > first_id); /* ids only grow */
        first_id = record.id;
        close_server(&s, false);
    }
    assert_true(acknowledged > 0);
    assert_true(hzp_checkpoint_newest(scratch_path("state")) > 0);
}

/* Two servers start at once in a new directory: the second must not remove the first one's log. */
static void test_two_at_once(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    int32_t token[] = {1, 2, 3};
    uint8_t learn[] = {1, 1, 1};
    int64_t first;
    struct hzp_sample *sample = hzp_sample_create(token, learn, 3);
    another_comes = true;
    int r = open_state(true, &text);
    another_comes = false;
    assert_int_equal(r, HZP_EBUSY);
    assert_true(is_there("state/samples.db"));
    MUST(hzp_sample_log_append(anothers, &sample, 1, &first, &text));
    hzp_sample_log_close(anothers);
    MUST(hzp_sample_log_open(scratch_path("state/samples.db"), log_fingerprint, &anothers, &text));
    hzp_sample_destroy(sample);
    assert_int_equal(hzp_sample_log_read(anothers, 0, 1, &sample, &text), 1);
    hzp_sample_destroy(sample);
    hzp_sample_log_close(anothers);
    /* Accepted samples stay even if the next server fails to start. */
    assert_int_equal(open_state(true, &text), HZP_OK);
    assert_true(is_there("state/samples.db"));
}

/* But a server that was alone and failed to start leaves nothing behind. */
static void test_provisional(void **state)
{
    struct hzp_err_text text = {{0}, {0}};
    assert_int_equal(open_state(true, &text), HZP_OK);
    assert_false(is_there("state"));
    assert_int_equal(open_state(false, &text), HZP_OK);
    assert_true(is_there("state/samples.db"));
}

/* A log with sound pages whose tokens are not in the model's vocabulary. */
static void test_strange_tokens(void **state)
{
    static const int32_t strange[] = {50, -1, INT32_MAX};
    for (int i = 0; i < HZP_COUNT(strange); i++) {
        struct hzp_err_text text = {{0}, {0}};
        int32_t token[] = {1, 2, strange[i], 3};
        uint8_t learn[] = {1, 1, 1, 1};
        int64_t first;
        struct hzp_sample_log *log;
        struct hzp_sample *sample = hzp_sample_create(token, learn, 4);
        remove(scratch_path("state/samples.db"));
        assert_int_equal(open_state(false, &text), HZP_OK);
        MUST(hzp_sample_log_open(scratch_path("state/samples.db"), log_fingerprint, &log, &text));
        MUST(hzp_sample_log_append(log, &sample, 1, &first, &text));
        hzp_sample_destroy(sample);
        hzp_sample_log_close(log);
        assert_int_equal(open_state(false, &text), HZP_EFORMAT);
        assert_non_null(strstr(text.text, "samples.db"));
        assert_non_null(strstr(text.text, "sample 1"));
    }
}

/* A file where the directory of a checkpoint must be created. */
static void block_checkpoints(bool block)
{
    for (int i = 1; i < 200; i++) {
        if (block)
            scratch_write_text(scratch_path("state/checkpoint-%d.tmp", i), "");
        else
            remove(scratch_path("state/checkpoint-%d.tmp", i));
    }
}

/* While the disk does not accept a checkpoint the server continues, and tries again with the
   last one. */
static void test_failed_checkpoint(void **state)
{
    struct server s;
    struct hzp_state_stats stats = {0};
    hzp_log_set_level(HZP_LOG_ERROR);
    open_server(&s, 1);
    block_checkpoints(true);
    accept(&s, 1);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    /* Runs until the thread has failed, and a while longer, so that it also fails with the
     * newest update. */
    for (int i = 0, more = 0; i < 1000000 && more < 100; i++) {
        if (hzp_loop_turn(s.loop) == 0)
            usleep(1000);
        hzp_state_read_stats(s.state, &stats);
        more += stats.checkpoint_failures > 0;
    }
    assert_true(stats.checkpoint_failures > 0);
    uint64_t id = hzp_weights_current(s.weights)->record.id;
    assert_int_equal(hzp_checkpoint_newest(scratch_path("state")), 0);
    block_checkpoints(false);
    close_server(&s, true);
    assert_true(hzp_checkpoint_newest(scratch_path("state")) >= id);
}

/* One that fails before the file thread has taken note of the thread that writes it. */
static void test_failed_at_once(void **state)
{
    struct server s;
    struct hzp_state_stats stats = {0};
    hzp_log_set_level(HZP_LOG_ERROR);
    open_server(&s, 1);
    block_checkpoints(true);
    atomic_store(&start_returns_late, 1);
    accept(&s, 1);
    while (stats.checkpoint_failures + stats.checkpoints == 0) {
        if (hzp_loop_turn(s.loop) == 0)
            usleep(1000);
        hzp_state_read_stats(s.state, &stats);
    }
    atomic_store(&start_returns_late, 0);
    assert_int_equal(stats.checkpoints, 0);
    block_checkpoints(false);
    close_server(&s, true);
    assert_true(hzp_checkpoint_newest(scratch_path("state")) > 0);
}

static void test_default_dir(void **state)
{
    char dir[512];
    struct hzp_err_text text = {{0}, {0}};
    setenv("XDG_DATA_HOME", "/data", 1);
    assert_int_equal(hzp_state_default_dir(scratch_dir, dir, sizeof(dir), &text), HZP_OK);
    assert_int_equal(strncmp(dir, "/data/hzpserve/hzp-test-", 24), 0);
    unsetenv("XDG_DATA_HOME");
    setenv("HOME", "/home/user", 1);
    assert_int_equal(hzp_state_default_dir(scratch_dir, dir, sizeof(dir), &text), HZP_OK);
    assert_int_equal(strncmp(dir, "/home/user/.local/share/hzpserve/", 33), 0);
    unsetenv("HOME");
    assert_int_equal(hzp_state_default_dir(scratch_dir, dir, sizeof(dir), &text), HZP_ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stop_and_start, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_history_outlives, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_rejected_in_any_order, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_starving, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_checkpoint_options, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_prune, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_periodic_checkpoints, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_slow_disk, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_kill, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_two_at_once, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_provisional, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_strange_tokens, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_failed_checkpoint, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_failed_at_once, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_default_dir, make_model, scratch_teardown),
    };
    return cmocka_run_group_tests_name("state", tests, NULL, NULL);
}
