/* SPDX-License-Identifier: Apache-2.0 */
/* Older versions serve again, and examples are forgotten: with the whole engine beside the file
 * thread, on disk and across restarts and kills. */
#include "api/learn/versions.h"
#include "tests/train/state_server.h"
#include "tests/train/newest.h"

/* Accepts 2 n examples and learns them. */
static void teach(struct server *s, int n, int64_t number)
{
    for (int i = 0; i < n; i++)
        accept(s, number + i);
    while (hzp_loop_turn(s->loop) > 0)
        ;
}

static struct hzp_version_job ask(struct server *s, const struct hzp_version_job *asked)
{
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_version_job job = {.state = HZP_JOB_WAITS};
    uint64_t id;
    MUST(hzp_state_ask(s->state, asked, &id, &text));
    while (job.state != HZP_JOB_DONE && job.state != HZP_JOB_FAILED) {
        if (hzp_loop_turn(s->loop) == 0)
            usleep(200);
        assert_true(hzp_state_job(s->state, id, &job));
    }
    return job;
}

/* Names the serving version, which writes it to disk; returns its id. */
static uint64_t name_current(struct server *s, const char *name)
{
    struct hzp_version_job job = {.kind = HZP_JOB_NAME,
                                  .version = hzp_weights_current(s->weights)->record.id};
    snprintf(job.name, sizeof(job.name), "%s", name);
    struct hzp_version_job done = ask(s, &job);
    if (done.state != HZP_JOB_DONE)
        fail_msg("%s", done.error);
    return job.version;
}

static struct hzp_version_job activate(struct server *s, uint64_t version, bool replay, bool reset)
{
    struct hzp_version_job job = {
        .kind = HZP_JOB_ACTIVATE, .version = version, .replay = replay, .reset = reset};
    return ask(s, &job);
}

/* A copy of everything that learning goes on from. */
struct copy {
    struct hzp_units weights, m, v, residual;
};

static struct copy copy_of(struct server *s)
{
    struct hzp_train_space *space = hzp_trainer_space(s->trainer);
    return (struct copy){fixture_units_read(s->dev, current_units(s)),
                         fixture_units_read(s->dev, hzp_train_space_m(space)),
                         fixture_units_read(s->dev, hzp_train_space_v(space)),
                         fixture_units_read(s->dev, hzp_train_space_residual(space))};
}

static void free_copy(struct copy *c)
{
    fixture_units_free(&c->weights);
    fixture_units_free(&c->m);
    fixture_units_free(&c->v);
    fixture_units_free(&c->residual);
}

static bool same(struct server *s, const struct copy *c)
{
    struct hzp_train_space *space = hzp_trainer_space(s->trainer);
    return fixture_units_same(NULL, &c->weights, current_units(s)) &&
           fixture_units_same(NULL, &c->m, hzp_train_space_m(space)) &&
           fixture_units_same(NULL, &c->v, hzp_train_space_v(space)) &&
           fixture_units_same(NULL, &c->residual, hzp_train_space_residual(space));
}

static int64_t through(struct server *s)
{
    struct hzp_version_record record;
    hzp_weights_newest(s->weights, &record);
    return record.learned_through;
}

static enum hzp_example_state lesson(struct server *s, int64_t n)
{
    return hzp_state_learned(s->state, n, through(s));
}

/* From disk: weights, moments and residuals of then, bit for bit; later lessons are skipped, and
 * what comes after is learned.  A restart continues from there. */
static void test_activate(void **state)
{
    struct server s;
    struct hzp_version_record record;
    open_server(&s, 0);
    teach(&s, 5, 0);
    uint64_t a = name_current(&s, "a");
    struct copy then = copy_of(&s);
    teach(&s, 5, 100);
    assert_false(same(&s, &then));
    uint64_t last = hzp_weights_current(s.weights)->record.id;
    name_current(&s, "b"); /* a newer checkpoint, which a restart must not begin with */

    struct hzp_version_job job = activate(&s, a, false, false);
    assert_int_equal(job.state, HZP_JOB_DONE);
    assert_int_equal(job.made, last + 1);
    assert_int_equal(job.skipped_from, 11);
    assert_int_equal(job.skipped_to, 20);
    hzp_weights_newest(s.weights, &record);
    assert_int_equal(record.id, last + 1);
    assert_int_equal(record.parent, a);
    assert_int_equal(record.learned_through, 10);
    assert_true(same(&s, &then));
    assert_int_equal(lesson(&s, 10), HZP_EXAMPLE_LEARNED);
    assert_int_equal(lesson(&s, 11), HZP_EXAMPLE_NEVER);
    close_server(&s, false);

    open_server(&s, 0);
    assert_true(same(&s, &then));
    hzp_weights_newest(s.weights, &record);
    assert_int_equal(record.parent, last + 1);
    assert_int_equal(lesson(&s, 20), HZP_EXAMPLE_NEVER);
    assert_int_equal(hzp_loop_turn(s.loop), 0); /* nothing waits */
    teach(&s, 1, 200);
    assert_int_equal(through(&s), 22);
    assert_int_equal(lesson(&s, 21), HZP_EXAMPLE_LEARNED);
    assert_int_equal(lesson(&s, 20), HZP_EXAMPLE_NEVER);
    close_server(&s, true);
    free_copy(&then);
}

/* Checks that the serving version contains so many passes of each sample 1 .. last, by the versions
 * that it descends from, and no more of the one that was taken out (0: none was). */
static void check_passes(struct server *s, int passes, int64_t last, int64_t out)
{
    enum { MOST = 512 };
    static struct hzp_version_record record[MOST];
    int had[64] = {0};
    int32_t n = hzp_weights_list(s->weights, record, MOST);
    uint64_t next = record[0].id;
    assert_true(n < MOST && last < HZP_COUNT(had));
    for (int32_t i = 0; i < n; i++) {
        const struct hzp_learned *learned = &record[i].learned;
        if (record[i].id != next)
            continue;
        next = record[i].parent;
        for (int32_t k = 0; k < learned->ranges; k++)
            for (int64_t x = learned->first[k]; x <= learned->last[k]; x++)
                had[x]++;
    }
    for (int64_t x = 1; x <= last; x++)
        if (x == out ? had[x] > passes : had[x] != passes)
            fail_msg("sample %d has had %d passes", (int)x, had[x]);
}

/* Learns until the update of that step, and no further. */
static void learn_until(struct server *s, int64_t step)
{
    hzp_trainer_pause(s->trainer, false);
    while (hzp_weights_current(s->weights)->record.optimizer_step < step)
        assert_true(hzp_loop_turn(s->loop) > 0);
    hzp_trainer_pause(s->trainer, true);
}

/* A checkpoint between passes: a restart, and an activation that has later lessons learned again,
 * continue with the passes that it does not contain; also where samples are taken out meanwhile. */
static void test_passes_in_part(void **state)
{
    struct server s;
    for (int64_t step = 1; step <= 4; step++) { /* of 6 */
        open_server(&s, 0);
        hzp_trainer_pause(s.trainer, true);
        for (int i = 0; i < 12; i++)
            accept(&s, i);
        learn_until(&s, step);
        uint64_t middle = name_current(&s, "middle");
        learn_until(&s, step + 2);
        close_server(&s, false); /* killed: two updates are lost */

        open_server(&s, 0);
        hzp_trainer_pause(s.trainer, true);
        struct hzp_version_job forget = {.kind = HZP_JOB_FORGET, .example = 24};
        if (step == 1) /* later checkpoints have learned from it */
            assert_int_equal(ask(&s, &forget).state, HZP_JOB_DONE);
        learn_until(&s, step + 1);
        name_current(&s, "later");
        assert_int_equal(activate(&s, middle, true, step == 3).state, HZP_JOB_DONE);
        close_server(&s, false);

        open_server(&s, 0);
        hzp_trainer_pause(s.trainer, false);
        while (hzp_loop_turn(s.loop) > 0)
            ;
        check_passes(&s, 2, 24, step == 1 ? 24 : 0);
        close_server(&s, true);
        scratch_teardown(NULL);
        make_model(NULL);
    }
}

/* Later lessons are learned again. */
static void test_replay(void **state)
{
    struct server s;
    struct hzp_state_stats stats;
    open_server(&s, 0);
    teach(&s, 3, 0);
    uint64_t a = name_current(&s, "a");
    teach(&s, 3, 100);
    struct copy then = copy_of(&s);
    struct hzp_version_job job = activate(&s, a, false, false);
    assert_int_equal(job.state, HZP_JOB_DONE);
    assert_int_equal(lesson(&s, 7), HZP_EXAMPLE_NEVER);
    teach(&s, 1, 300);
    job = activate(&s, a, false, false); /* once more: what was skipped stays so */
    assert_int_equal(job.state, HZP_JOB_DONE);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.skipped, 8);
    assert_int_equal(lesson(&s, 7), HZP_EXAMPLE_NEVER);
    assert_int_equal(lesson(&s, 13), HZP_EXAMPLE_NEVER);
    job = activate(&s, a, true, false); /* what was skipped before comes back, too */
    assert_int_equal(job.state, HZP_JOB_DONE);
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.skipped, 0);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_int_equal(through(&s), 14);
    assert_int_equal(lesson(&s, 7), HZP_EXAMPLE_LEARNED);
    /* The newer version, which has learned 7 .. 12 and not 13 and 14, can come back as well. */
    name_current(&s, "c");
    close_server(&s, false);
    open_server(&s, 0);
    assert_int_equal(through(&s), 14);
    close_server(&s, true);
    free_copy(&then);
}

/* A job that has not ended, or that somebody waits for, is not forgotten however many follow. */
static void test_many_jobs(void **state)
{
    struct server s;
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_version_job job = {.state = HZP_JOB_WAITS}, done;
    uint64_t learns, named = 0, id;
    open_server(&s, 0);
    teach(&s, 3, 0);
    uint64_t a = name_current(&s, "a");
    teach(&s, 20, 100);
    MUST(hzp_state_ask(s.state, &(struct hzp_version_job){.kind = HZP_JOB_FORGET, .example = 7},
                       &learns, &text));
    while (job.state != HZP_JOB_LEARNS) { /* at most one update is made before it is seen */
        bool all = through(&s) == 6 || through(&s) == 46;
        if (!all || hzp_loop_turn(s.loop) == 0)
            usleep(200);
        assert_true(hzp_state_job(s.state, learns, &job));
    }
    for (int i = 0; i < 2 * HZP_JOBS_KEPT; i++) { /* nothing is learned meanwhile */
        struct hzp_version_job name = {.kind = HZP_JOB_NAME, .version = a};
        snprintf(name.name, sizeof(name.name), "n%d", i);
        MUST(hzp_state_ask(s.state, &name, &id, &text));
        if (i == 0)
            hzp_state_hold_job(s.state, named = id, true);
        do {
            usleep(200);
            assert_true(hzp_state_job(s.state, id, &done));
        } while (done.state != HZP_JOB_DONE);
        assert_true(hzp_state_job(s.state, learns, &job));
        assert_true(hzp_state_job(s.state, named, &done));
    }
    assert_int_equal(job.state, HZP_JOB_LEARNS);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_true(hzp_state_job(s.state, learns, &job));
    assert_int_equal(job.state, HZP_JOB_DONE);
    hzp_state_hold_job(s.state, named, false);
    name_current(&s, "b"); /* in the place of the one that has learned */
    name_current(&s, "c");
    assert_false(hzp_state_job(s.state, named, &done));
    close_server(&s, true);
}

/* A version that only a slot holds serves again, with the optimizer reset. */
static void test_slot(void **state)
{
    struct server s;
    struct hzp_version_record record[2];
    open_server(&s, 0);
    teach(&s, 2, 0);
    struct copy then = copy_of(&s);
    uint64_t before = hzp_weights_current(s.weights)->record.id;
    accept(&s, 77);
    while (hzp_weights_current(s.weights)->record.id == before)
        hzp_loop_turn(s.loop);
    hzp_trainer_pause(s.trainer, true); /* before the next update takes the slot */
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_true(hzp_weights_resident(s.weights, before));
    struct hzp_version_job job = activate(&s, before, false, false);
    assert_int_equal(job.state, HZP_JOB_FAILED);
    assert_non_null(strstr(job.error, "reset"));
    job = activate(&s, before, false, true);
    if (job.state != HZP_JOB_DONE)
        fail_msg("%s", job.error);
    assert_true(fixture_units_same(NULL, &then.weights, current_units(&s)));
    hzp_weights_list(s.weights, record, 1);
    assert_int_equal(record[0].parent, before);
    struct copy now = copy_of(&s);
    const struct hzp_units *m = &now.m;
    for (size_t i = 0; i < m->layout->unit[0].elements * sizeof(float); i++)
        assert_int_equal(((const char *)m->base[0])[i], 0);
    hzp_trainer_pause(s.trainer, false);
    close_server(&s, false);
    open_server(&s, 0); /* it is on disk, with the moments at zero */
    assert_true(same(&s, &now));
    teach(&s, 1, 5);
    close_server(&s, true);
    free_copy(&then);
    free_copy(&now);
}

/* The version serves already when its checkpoint cannot be written: what is on disk serves again,
 * and learning goes on, with the lesson that came since. */
static void test_cannot_be_kept(void **state)
{
    struct server s;
    struct hzp_weights_stats stats;
    char path[PATH_MAX];
    open_server(&s, 0);
    teach(&s, 2, 0);
    uint64_t kept = name_current(&s, "kept");
    teach(&s, 1, 7);
    hzp_weights_read_stats(s.weights, &stats);
    const char *place = scratch_path("state/checkpoint-%llu", (unsigned long long)stats.next_id);
    assert_int_equal(mkdir(place, 0700), 0);
    snprintf(path, sizeof(path), "%s/in", place);
    assert_int_equal(mkdir(path, 0700), 0);
    struct hzp_version_job job = activate(&s, kept, false, true);
    assert_int_equal(job.state, HZP_JOB_FAILED);
    if (!strstr(job.error, "serves again"))
        fail_msg("%s", job.error);
    uint64_t last = hzp_weights_current(s.weights)->record.id;
    teach(&s, 1, 9);
    assert_true(hzp_weights_current(s.weights)->record.id > last);
    for (int64_t n = 1; n <= 4; n++)
        assert_int_equal(lesson(&s, n), HZP_EXAMPLE_LEARNED);
    close_server(&s, false);
    open_server(&s, 0);
    for (int64_t n = 1; n <= 4; n++)
        while (lesson(&s, n) == HZP_EXAMPLE_WAITS)
            hzp_loop_turn(s.loop);
    assert_int_equal(lesson(&s, 4), HZP_EXAMPLE_LEARNED);
    close_server(&s, true);
}

/* An example is forgotten: learned again without it, from the checkpoint before. */
static void test_forget(void **state)
{
    struct server s;
    open_server(&s, 0);
    teach(&s, 1, 0);
    name_current(&s, "before");
    teach(&s, 2, 50);
    assert_int_equal(through(&s), 6);
    struct hzp_version_job job = {.kind = HZP_JOB_FORGET, .example = 4};
    struct hzp_version_job done = ask(&s, &job);
    if (done.state != HZP_JOB_DONE)
        fail_msg("%s", done.error);
    assert_int_equal(done.learn_from, 3);
    assert_int_equal(done.learn_to, 6);
    assert_int_equal(through(&s), 6);
    assert_int_equal(lesson(&s, 4), HZP_EXAMPLE_NEVER);
    assert_int_equal(lesson(&s, 5), HZP_EXAMPLE_LEARNED);
    /* The versions that had learned it do not come back. */
    struct hzp_version_record all[64];
    int32_t n = hzp_weights_list(s.weights, all, 64);
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < all[i].learned.ranges && all[i].id > done.made; k++)
            assert_false(all[i].learned.first[k] <= 4 && all[i].learned.last[k] >= 4);
    /* One that no version has learned goes without more ado. */
    hzp_trainer_pause(s.trainer, true);
    accept(&s, 99);
    uint64_t serving = hzp_weights_current(s.weights)->record.id;
    job.example = 8;
    done = ask(&s, &job);
    assert_int_equal(done.state, HZP_JOB_DONE);
    assert_int_equal(hzp_weights_current(s.weights)->record.id, serving);
    hzp_trainer_pause(s.trainer, false);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    assert_int_equal(lesson(&s, 7), HZP_EXAMPLE_LEARNED);
    assert_int_equal(lesson(&s, 8), HZP_EXAMPLE_NEVER);
    /* The last one: nothing is left to be learned again. */
    job.example = 7;
    done = ask(&s, &job);
    if (done.state != HZP_JOB_DONE)
        fail_msg("%s", done.error);
    assert_int_equal(done.learn_to, 6);
    name_current(&s, "six");
    accept(&s, 100);
    while (hzp_loop_turn(s.loop) > 0)
        ;
    for (job.example = 10; job.example >= 9; job.example--) {
        done = ask(&s, &job);
        if (done.state != HZP_JOB_DONE)
            fail_msg("%s", done.error);
        assert_int_equal(done.learn_to, job.example == 10 ? 9 : 0);
    }
    /* No checkpoint is from before it, and the model's directory holds other weights than this
     * server was started with: nothing changes. */
    job.example = 1;
    done = ask(&s, &job);
    assert_int_equal(done.state, HZP_JOB_FAILED);
    if (!strstr(done.error, "the weights that this server was started with"))
        fail_msg("%s", done.error);
    teach(&s, 1, 60);
    assert_int_equal(through(&s), 12);
    close_server(&s, true);
    open_server(&s, 0);
    assert_int_equal(lesson(&s, 4), HZP_EXAMPLE_NEVER);
    assert_int_equal(lesson(&s, 8), HZP_EXAMPLE_NEVER);
    close_server(&s, true);
}

/* A lesson that no version has learned yet leaves the queue; one that was learned is taken back
 * with all its examples, and those beside it are learned again. */
static void test_undo(void **state)
{
    struct server s;
    open_server(&s, 0);
    teach(&s, 1, 0);
    name_current(&s, "two");
    hzp_trainer_pause(s.trainer, true);
    accept(&s, 20);
    uint64_t serving = hzp_weights_current(s.weights)->record.id;
    struct hzp_version_job job = {.kind = HZP_JOB_UNDO, .example = 3, .example_last = 4};
    struct hzp_version_job done = ask(&s, &job);
    if (done.state != HZP_JOB_DONE)
        fail_msg("%s", done.error);
    assert_true(done.skipped_from == 3 && done.skipped_to == 4 && !done.made);
    assert_int_equal(hzp_weights_current(s.weights)->record.id, serving);
    hzp_trainer_pause(s.trainer, false);
    teach(&s, 1, 40);
    assert_int_equal(lesson(&s, 3), HZP_EXAMPLE_NEVER);
    assert_int_equal(lesson(&s, 6), HZP_EXAMPLE_LEARNED);
    teach(&s, 1, 60);
    job.example = 5;
    job.example_last = 6;
    done = ask(&s, &job);
    if (done.state != HZP_JOB_DONE)
        fail_msg("%s", done.error);
    assert_true(done.skipped_from == 5 && done.skipped_to == 6);
    assert_true(done.learn_from == 7 && done.learn_to == 8);
    assert_int_equal(lesson(&s, 2), HZP_EXAMPLE_LEARNED);
    assert_int_equal(lesson(&s, 5), HZP_EXAMPLE_NEVER);
    assert_int_equal(lesson(&s, 8), HZP_EXAMPLE_LEARNED);
    close_server(&s, true);
}

/* `original` is found from a version that serves and is not in the log yet. */
static void test_original_is_found_at_once(void **state)
{
    struct server s;
    struct hzp_err_text text = {{0}, {0}};
    uint64_t first, found = 0;
    open_server(&s, 0);
    first = hzp_weights_current(s.weights)->record.id;
    teach(&s, 1, 0);
    name_current(&s, "one"); /* the log has them so far */
    atomic_store(&journal_waits, 1);
    teach(&s, 3, 10);
    assert_true(hzp_weights_current(s.weights)->record.id > first + 1);
    MUST(hzp_state_find(s.state, "original", &found, &text));
    atomic_store(&journal_waits, 0);
    assert_int_equal(found, first);
    close_server(&s, true);
}

static void test_errors(void **state)
{
    struct server s;
    struct hzp_err_text text;
    uint64_t id;
    open_server(&s, 0);
    teach(&s, 1, 0);
    struct hzp_version_job job = activate(&s, 12345, false, false);
    assert_int_equal(job.state, HZP_JOB_FAILED);
    assert_int_equal(job.code, HZP_ENOENT);
    job = activate(&s, hzp_weights_current(s.weights)->record.id, false, false);
    assert_int_equal(job.state, HZP_JOB_FAILED);
    assert_int_equal(hzp_state_find(s.state, "unnamed", &id, &text), HZP_ENOENT);
    uint64_t a = name_current(&s, "prod");
    assert_int_equal(hzp_state_find(s.state, "prod", &id, &text), HZP_OK);
    assert_int_equal(id, a);
    assert_int_equal(hzp_state_unname(s.state, "prod", &text), HZP_OK);
    assert_int_equal(hzp_state_unname(s.state, "prod", &text), HZP_ENOENT);
    assert_false(hzp_version_name_valid("../x"));
    assert_false(hzp_version_name_valid("7up"));
    assert_false(hzp_version_name_valid("-x"));
    assert_true(hzp_version_name_valid("v1.2_x-y"));
    /* A damaged checkpoint: the serving version and its moments stay as they are. */
    teach(&s, 1, 9);
    struct copy then = copy_of(&s);
    int fd = open(scratch_path("state/checkpoint-%llu/trainer.safetensors", (unsigned long long)a),
                  O_RDWR);
    assert_true(fd >= 0);
    assert_true(lseek(fd, -3, SEEK_END) > 0);
    assert_int_equal(write(fd, "\x55\x55\x55", 3), 3);
    close(fd);
    job = activate(&s, a, false, false);
    assert_int_equal(job.state, HZP_JOB_FAILED);
    assert_non_null(strstr(job.error, "damaged"));
    assert_true(same(&s, &then));
    teach(&s, 1, 19);
    assert_int_equal(through(&s), 6);
    close_server(&s, true);
    free_copy(&then);
}

/* --- Killed while versions are activated ------------------------------------------------------ */

struct told {
    uint64_t made;
    int which;
};

/* Activates one version after the other until it is killed; what is done is told. */
static void swap_forever(const uint64_t of[2], int fd)
{
    struct server s;
    open_server(&s, 0);
    for (int which = 0;; which = !which) {
        struct hzp_version_job job = activate(&s, of[which], false, false);
        struct told told = {job.made, which};
        if (job.state == HZP_JOB_DONE && write(fd, &told, sizeof(told)) != sizeof(told))
            _exit(1);
        if (job.state != HZP_JOB_DONE && !strstr(job.error, "serves already")) {
            fprintf(stderr, "%s\n", job.error);
            _exit(1);
        }
    }
}

static void test_killed(void **state)
{
    struct server s;
    struct copy copy[2];
    uint64_t of[2];
    open_server(&s, 0);
    teach(&s, 2, 0);
    of[0] = name_current(&s, "a");
    copy[0] = copy_of(&s);
    teach(&s, 2, 50);
    of[1] = name_current(&s, "b");
    copy[1] = copy_of(&s);
    close_server(&s, true);
    int activations = 0;
    for (int round = 0; round < 40 && (round < 8 || activations < 4); round++) {
        int ends[2], status;
        struct told told, last = {0};
        assert_int_equal(pipe(ends), 0);
        fflush(stdout);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            close(ends[0]);
            swap_forever(of, ends[1]);
        }
        close(ends[1]);
        /* After the first answer, so that a busy machine kills within activations, too. */
        if (round % 2 && read(ends[0], &told, sizeof(told)) == (ssize_t)sizeof(told)) {
            last = told;
            activations++;
        }
        usleep((useconds_t)(round * 7919 % 15000));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        while (read(ends[0], &told, sizeof(told)) == (ssize_t)sizeof(told)) {
            last = told;
            activations++;
        }
        close(ends[0]);

        open_server(&s, 0); /* one of them whole, and the one that was told if it is the newest */
        struct hzp_version_record record;
        hzp_weights_newest(s.weights, &record);
        bool is[2] = {same(&s, &copy[0]), same(&s, &copy[1])};
        assert_true(is[0] != is[1]);
        assert_true(record.parent >= last.made);
        if (last.made && record.parent == last.made)
            assert_true(is[last.which]);
        assert_int_equal(record.learned_through, is[0] ? 4 : 8);
        assert_int_equal(lesson(&s, 5), is[0] ? HZP_EXAMPLE_NEVER : HZP_EXAMPLE_LEARNED);
        assert_int_equal(hzp_loop_turn(s.loop), 0); /* 5 .. 8 are skipped, or learned */
        close_server(&s, false);
    }
    assert_true(activations >= 4);
    free_copy(&copy[0]);
    free_copy(&copy[1]);
}

/* Training has stopped because an update failed: the version that serves can be exported, on a
 * server that does nothing else, too, and cannot be kept, because the moments are not its own. */
static void test_stopped(void **state)
{
    struct server s;
    struct hzp_state_stats stats;
    open_server(&s, 0);
    teach(&s, 1, 0);
    fail_audits(&s, NULL);
    teach(&s, 1, 2);
    assert_true(is_broken(&s));
    struct hzp_version_job job = {.kind = HZP_JOB_EXPORT,
                                  .version = hzp_weights_current(s.weights)->record.id,
                                  .name = "weights"};
    assert_int_equal(ask(&s, &job).state, HZP_JOB_DONE);
    assert_true(is_there("state/export/weights/model.safetensors"));
    job.kind = HZP_JOB_NAME;
    job = ask(&s, &job);
    assert_int_equal(job.state, HZP_JOB_FAILED);
    assert_non_null(strstr(job.error, "its moments cannot be kept"));
    hzp_state_read_stats(s.state, &stats);
    assert_int_equal(stats.checkpoints + stats.checkpoint_failures, 0);
    assert_int_equal(close_server(&s, true), HZP_OK);
    assert_int_equal(hzp_checkpoint_newest(scratch_path("state")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_activate, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_passes_in_part, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_replay, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_many_jobs, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_slot, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_cannot_be_kept, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_forget, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_undo, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_original_is_found_at_once, make_model,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_errors, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_stopped, make_model, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_killed, make_model, scratch_teardown),
    };
    return cmocka_run_group_tests_name("rollback", tests, NULL, NULL);
}
