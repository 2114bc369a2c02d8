/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/test_rejoin.c - a rank is lost at many instants of an update; the trainer lets go of
 * the link, new ranks get the serving version and the state of a checkpoint, and the trainer learns
 * what it would have learned without the loss, to the bit. */
#include "tests/train/ranks.h"
#include "train/history/trainer_suspend.h"
#include "train/history/trainer_rejoin.h"
#include "tests/links/links.h"

#include <unistd.h>

enum { SAVED = 2, END = 5 }; /* updates: at the checkpoint, at the end */

static char dir[64];

static int make_dir(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/hzp-rejoin-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    unlink(path);
    return rmdir(dir);
}

static char *read_file(size_t *ret_size)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *ret_size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*ret_size);
    assert_int_equal(fread(data, *ret_size, 1, file), 1);
    fclose(file);
    return data;
}

static struct tiny_config config_of(struct hzp_groups groups, enum hzp_dtype type)
{
    struct tiny_config config = tiny_defaults();
    config.type = config.recipe.moment_type = type;
    config.recipe.update_tokens = 90;
    config.recipe.micro_rows = 14;
    config.queue.passes = 30;
    config.idle_ns = 3000; /* many turns an update */
    config.layers = 3;
    config.shards = (struct hzp_shards){.groups = groups, .ordered = true};
    return config;
}

/* The state of rank 0 and of all others, as it is saved. */
static char *save(struct tiny *first, size_t *ret_size)
{
    struct hzp_err_text text = {{0}, {0}};
    TINY_MUST(
        hzp_trainer_save(first->trainer, hzp_weights_current(first->weights), dir, "x", &text));
    return read_file(ret_size);
}

static char *save_ranks(struct ranks *r, size_t *ret_size)
{
    ranks_rest(r->first);
    return save(r->first, ret_size);
}

static void learn_to(struct ranks *r, int32_t reports)
{
    struct hzp_trainer_stats stats;
    while (r->first->reports < reports) {
        ranks_turn(r);
        hzp_trainer_read_stats(r->first->trainer, &stats);
        if (stats.failure[0])
            fail_msg("%s", stats.failure);
    }
}

/* --- After the loss --------------------------------------------------------------------------- */

/* A new process in place of a lost rank, or one that has survived and begins again. */
static void *come_again(void *arg)
{
    struct other *o = arg;
    struct hzp_err_text text = {{0}, {0}};
    hzp_thread_own_engine(o->fixture.dev);
    TINY_MUST(
        hzp_learner_by_link_receive(o->learner, hzp_weights_current(o->fixture.weights), &text));
    return ranks_run(o);
}

/* What the file thread of rank 0 does. */
struct rejoin {
    struct hzp_trainer *trainer;
    struct hzp_loop *loop;
    const struct hzp_version *serving;
    struct hzp_link *link;
    const char *from; /* the checkpoint; NULL: there is none */
    int result;
    struct hzp_err_text text;
    atomic_bool done;
};

static void *rejoin(void *arg)
{
    struct rejoin *j = arg;
    struct hzp_trainer_numbers numbers;
    assert_int_equal(hzp_loop_call(j->loop, hzp_trainer_link_closed, j->trainer), HZP_OK);
    assert_int_equal(hzp_loop_call(j->loop, hzp_trainer_suspend, j->trainer), HZP_OK);
    j->result = hzp_trainer_join(j->trainer, j->link, &j->text);
    if (j->result >= 0)
        j->result = j->from ? hzp_trainer_load_suspended(j->trainer, j->serving, j->from, &numbers,
                                                         &j->text)
                            : hzp_trainer_clear_suspended(j->trainer);
    if (j->result >= 0)
        j->result = hzp_trainer_restore_ranks(j->trainer, j->serving, NULL, &j->text);
    if (j->result >= 0)
        hzp_loop_call(j->loop, hzp_trainer_resume, j->trainer);
    atomic_store(&j->done, true);
    hzp_loop_poke(j->loop);
    return NULL;
}

/* Rank 0 lets go of the link. */
static void let_go(struct ranks *r)
{
    for (int turns = 0; tiny_border(r->first, hzp_trainer_part) == HZP_EBUSY; turns++) {
        assert_true(turns < 100000);
        if (hzp_loop_turn(r->first->loop) <= 0)
            hzp_loop_sleep(r->first->loop, 1000000);
    }
}

/* The link is closed then; the other ranks end. */
static void part(struct ranks *r)
{
    let_go(r);
    for (int32_t i = 1; i < r->count; i++) {
        pthread_join(r->other[i].thread, NULL);
        hzp_thread_own_engine(r->other[i].fixture.dev);
        other_close(&r->other[i], r->link[i]);
        memset(&r->other[i], 0, sizeof(r->other[i]));
    }
    for (int32_t i = 0; i < r->count; i++)
        hzp_link_close(r->link[i]);
}

enum lost { NOT_LOST, LOST_AT_ONCE, LOST_LATER };

/* The ranks meet again; rank 0's loop goes on turning.  lost: and are lost again, before rank 0 has
 * taken over the link, or while it sends. */
static void meet_again(struct ranks *r, const struct tiny_config *config, const char *from,
                       enum lost lost)
{
    struct hzp_err_text text = {{0}, {0}};
    struct rejoin job = {.trainer = r->first->trainer,
                         .loop = r->first->loop,
                         .serving = hzp_weights_current(r->first->weights),
                         .from = from};
    pthread_t thread;
    TINY_MUST(hzp_link_open_local(r->count, 0, 12, r->link, &text));
    job.link = r->link[0];
    for (int32_t i = 1; i < r->count; i++)
        other_open(&r->other[i], config, r->link[i]);
    if (lost == LOST_AT_ONCE)
        hzp_link_abort(r->link[1], 1, "was pulled out again");
    for (int32_t i = 1; i < r->count && !lost; i++)
        assert_int_equal(hzp_thread_start(&r->other[i].thread, "learner", come_again, &r->other[i]),
                         HZP_OK);
    assert_int_equal(hzp_thread_start(&thread, "rejoin", rejoin, &job), HZP_OK);
    for (bool sends = false; !atomic_load(&job.done);) {
        if (hzp_loop_turn(r->first->loop) <= 0)
            hzp_loop_sleep(r->first->loop, 1000000);
        if (lost == LOST_LATER && !sends && r->first->trainer->gathering) {
            sends = true; /* the others do not listen, so it has not ended */
            hzp_link_abort(r->link[1], 1, "was pulled out again");
        }
    }
    pthread_join(thread, NULL);
    if (!lost && job.result < 0)
        fail_msg("%s", job.text.text);
    if (!lost)
        return;
    assert_int_equal(job.result, HZP_EIO);
    assert_non_null(strstr(job.text.text, "was pulled out again"));
    let_go(r);
    for (int32_t i = 1; i < r->count; i++)
        other_close(&r->other[i], r->link[i]);
    for (int32_t i = 0; i < r->count; i++)
        hzp_link_close(r->link[i]);
}

/* --- Tests ------------------------------------------------------------------------------------ */

/* What one rank has learned after END updates. */
static char *undisturbed(struct tiny_config config, size_t *ret_size)
{
    config.shards.groups = (struct hzp_groups){0};
    struct tiny *one = tiny_open(&config);
    tiny_publish(one);
    tiny_push(one, 1, 40);
    while (one->reports < END)
        hzp_loop_turn(one->loop);
    char *bytes = save(one, ret_size);
    tiny_close(one);
    return bytes;
}

/* A rank is lost some turns after the checkpoint.  False: the next version was published before. */
static bool lose_after(int32_t turns, const struct tiny_config *config, const char *bytes,
                       size_t size)
{
    struct ranks *r = ranks_open(config, 0, true);
    size_t again;
    tiny_publish(r->first);
    tiny_push(r->first, 1, 40);
    learn_to(r, SAVED);
    free(save_ranks(r, &again));
    for (int32_t i = 0; i < turns && r->first->reports == SAVED; i++)
        ranks_turn(r);
    bool early = r->first->reports == SAVED;
    if (early) {
        uint64_t serving = hzp_weights_current(r->first->weights)->record.id;
        hzp_link_abort(r->link[1], 1, "was pulled out");
        part(r);
        assert_int_equal(hzp_weights_current(r->first->weights)->record.id, serving);
        meet_again(r, config, dir, LOST_AT_ONCE);
        meet_again(r, config, dir, LOST_LATER);
        meet_again(r, config, dir, NOT_LOST);
        learn_to(r, END);
        char *others = save_ranks(r, &again);
        assert_int_equal(size, again);
        assert_memory_equal(bytes, others, size);
        free(others);
    }
    ranks_close(r);
    return early;
}

static void any_time(struct hzp_groups groups, enum hzp_dtype type, int32_t step)
{
    struct tiny_config config = config_of(groups, type);
    size_t size;
    char *bytes = undisturbed(config, &size);
    int32_t turns = 0;
    while (turns < 400 && lose_after(turns, &config, bytes, size))
        turns += step;
    assert_true(turns > 2 * step);
    free(bytes);
}

static void test_any_time(void **state)
{
    any_time((struct hzp_groups){2, 2, 1, 1}, HZP_F32, 2);
    any_time((struct hzp_groups){3, 3, 3, 1}, HZP_BF16, 3);
}

/* --- Lessons ---------------------------------------------------------------------------------- */

/* Turns until the sample is learned. */
static void learn_through(struct ranks *r, int64_t number)
{
    while (hzp_weights_current(r->first->weights)->record.learned_through < number)
        ranks_turn(r);
}

/* A rank is lost some turns after the second lesson has come: it leaves no trace, and is learned
 * again.  False: its version was published before. */
static bool lose_in_lesson(int32_t turns, const struct tiny_config *config, const char *bytes,
                           size_t size)
{
    struct ranks *r = ranks_open(config, 0, true);
    size_t again;
    tiny_publish(r->first);
    tiny_teach(r->first, 1, 20);
    learn_through(r, 20);
    free(save_ranks(r, &again));
    uint64_t serving = hzp_weights_current(r->first->weights)->record.id;
    tiny_teach(r->first, 21, 20);
    for (int32_t i = 0; i < turns; i++)
        ranks_turn(r);
    bool early = hzp_weights_current(r->first->weights)->record.id == serving;
    if (early) {
        hzp_link_abort(r->link[1], 1, "was pulled out");
        part(r);
        meet_again(r, config, dir, NOT_LOST);
        assert_int_equal(hzp_weights_current(r->first->weights)->record.id, serving);
        learn_through(r, 40);
        char *others = save_ranks(r, &again);
        assert_int_equal(size, again);
        assert_memory_equal(bytes, others, size);
        free(others);
    }
    ranks_close(r);
    return early;
}

static void test_lesson(void **state)
{
    struct tiny_config config = config_of((struct hzp_groups){0}, HZP_BF16);
    config.queue.by_lesson = true;
    config.queue.passes = 3;
    size_t size;
    struct tiny *one = tiny_open(&config);
    tiny_publish(one);
    tiny_teach(one, 1, 20);
    tiny_run(one);
    tiny_teach(one, 21, 20);
    tiny_run(one);
    assert_true(one->reports > 8); /* a lesson has several updates */
    char *bytes = save(one, &size);
    tiny_close(one);
    config.shards.groups = (struct hzp_groups){2, 2, 1, 1};
    int32_t turns = 0;
    while (turns < 4000 && lose_in_lesson(turns, &config, bytes, size))
        turns += 37;
    assert_true(turns > 4 * 37);
    free(bytes);
}

/* Nothing was being learned, and nothing was saved: the new ranks begin with zeros.  pauses: memory
 * was not even prepared, because training is paused. */
static void check_idle(bool pauses)
{
    struct tiny_config config = config_of((struct hzp_groups){2, 2, 2, 1}, HZP_F32);
    struct hzp_trainer_stats stats;
    size_t size, again;
    char *bytes = undisturbed(config, &size);
    config.prepares = pauses;
    struct ranks *r = ranks_open(&config, 0, true);
    tiny_publish(r->first);
    hzp_trainer_pause(r->first->trainer, pauses);
    tiny_run(r->first);
    assert_true((r->first->trainer->stage == HZP_TRAINER_PREPARE) == pauses);
    hzp_trainer_set_rejoins(r->first->trainer, true);
    hzp_link_abort(r->link[1], 1, "was pulled out");
    part(r);
    hzp_trainer_read_stats(r->first->trainer, &stats);
    assert_true(stats.failure[0] && !stats.broken); /* they come back */
    hzp_trainer_set_rejoins(r->first->trainer, false);
    hzp_trainer_read_stats(r->first->trainer, &stats);
    assert_true(stats.broken);
    meet_again(r, &config, NULL, NOT_LOST);
    hzp_trainer_read_stats(r->first->trainer, &stats);
    assert_true(!stats.failure[0] && !stats.broken);
    hzp_trainer_pause(r->first->trainer, false);
    tiny_push(r->first, 1, 40);
    learn_to(r, END);
    char *others = save_ranks(r, &again);
    assert_int_equal(size, again);
    assert_memory_equal(bytes, others, size);
    free(others);
    free(bytes);
    ranks_close(r);
}

static void test_idle(void **state)
{
    check_idle(false);
    check_idle(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_any_time, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_lesson, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_idle, make_dir, drop_dir),
    };
    return cmocka_run_group_tests_name("rejoin", tests, NULL, NULL);
}
