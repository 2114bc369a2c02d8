/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/test_ranks_restore.c - an older version serves again on several ranks: the bytes of
 * weights, moments and residuals on every rank are those of one rank, and what is learned after
 * them is the same; what goes wrong tears no version. */
#include "tests/train/ranks.h"
#include "train/history/trainer_rejoin.h"
#include "train/history/trainer_suspend.h"
#include "tests/train/newest.h"

#include <stdio.h>
#include <unistd.h>

enum { SAMPLES = 60, SAVED = 4 /* updates */ };

static char dir[64];

static int make_dir(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/hzp-restore-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    unlink(path);
    return rmdir(dir);
}

static struct tiny_config defaults(enum hzp_dtype type, struct hzp_groups groups)
{
    struct tiny_config config = tiny_defaults();
    config.type = type;
    config.recipe.moment_type = type;
    config.recipe.update_tokens = 60;
    config.recipe.micro_rows = 14; /* several micro-batches an update, not a multiple of ranks */
    config.layers = 3;
    config.shards = (struct hzp_shards){.groups = groups, .ordered = true};
    return config;
}

/* --- One rank, which the others are compared with --------------------------------------------- */

/* Everything that learning goes on from, as one rank has it. */
struct copy {
    struct hzp_units weights, part[HZP_STATE_WEIGHTS]; /* layout NULL: there is none */
    uint64_t checksum;
    int64_t optimizer_step, learned_through;
};

static struct copy copy_of(struct tiny *t)
{
    struct hzp_train_space *space = hzp_trainer_space(t->trainer);
    const struct hzp_version_record *record = &hzp_weights_current(t->weights)->record;
    struct copy c = {.weights = fixture_units_read(t->fixture.dev, tiny_units(t)),
                     .checksum = record->checksum,
                     .optimizer_step = record->optimizer_step,
                     .learned_through = record->learned_through};
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (hzp_train_space_part(space, (enum hzp_state_part)p))
            c.part[p] = fixture_units_read(t->fixture.dev,
                                           hzp_train_space_part(space, (enum hzp_state_part)p));
    return c;
}

static void free_copy(struct copy *c)
{
    fixture_units_free(&c->weights);
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (c->part[p].layout)
            fixture_units_free(&c->part[p]);
}

/* One rank's run: the state after SAVED updates, which is in dir as well, and that at the end. */
struct one {
    struct copy saved, end;
    struct tiny *t; /* whose layout the copies have */
};

static struct one run_one(struct tiny_config config)
{
    struct hzp_err_text text = {{0}, {0}};
    struct one one;
    config.shards.groups = (struct hzp_groups){0};
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, SAMPLES);
    while (t->reports < SAVED)
        assert_int_equal(hzp_loop_turn(t->loop), 1);
    TINY_MUST(hzp_trainer_save(t->trainer, hzp_weights_current(t->weights), dir, "x", &text));
    one.saved = copy_of(t);
    tiny_run(t);
    assert_true(t->reports > SAVED + 3);
    one.end = copy_of(t);
    one.t = t;
    return one;
}

static void free_one(struct one *one)
{
    free_copy(&one->saved);
    free_copy(&one->end);
    tiny_close(one->t);
}

/* The resident part of each of `part`'s units has the bytes of that part of `whole`'s. */
static void assert_part(const struct hzp_units *whole, const struct hzp_units *part,
                        const char *what, int32_t rank)
{
    for (int32_t u = 0; u < whole->layout->units; u++) {
        struct hzp_unit_view x = hzp_unit_view(whole, u), y = hzp_unit_view(part, u);
        size_t size = hzp_dtype_size(y.type);
        if (memcmp((char *)x.base + y.part.first * size, y.base, hzp_unit_bytes(&y)))
            fail_msg("%s differ in unit %d on rank %d", what, u, rank);
    }
}

static void assert_rank(const struct copy *c, struct hzp_weights *w, struct hzp_train_space *space,
                        int32_t rank)
{
    const struct hzp_version *v = hzp_weights_current(w);
    assert_int_equal(v->record.optimizer_step, c->optimizer_step);
    assert_true(v->record.checksum == c->checksum);
    assert_part(&c->weights, hzp_version_units(w, v), "weights", rank);
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
        if (c->part[p].layout)
            assert_part(&c->part[p], hzp_train_space_part(space, (enum hzp_state_part)p),
                        hzp_state_part_name((enum hzp_state_part)p), rank);
}

/* --- Restoring, as the file thread does ------------------------------------------------------- */

struct restore {
    struct ranks *r;
    const struct copy *saved;
    bool reset; /* the optimizer */
    bool lies;  /* what is sent is not what rank 0 has */
    pthread_t thread;
    struct hzp_version *draft;
    uint64_t made;
    int result;
    struct hzp_err_text text;
    _Atomic bool done;
    char *unit; /* that lies */
};

static int read_saved(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                      void **ret_owned, struct hzp_err_text *reterr)
{
    struct restore *x = ctx;
    struct hzp_unit_view view = hzp_unit_view(&x->saved->weights, u);
    *ret = view;
    *ret_owned = NULL;
    if (!x->lies || u != 1)
        return HZP_OK;
    x->unit = realloc(x->unit, hzp_unit_bytes(&view));
    memcpy(x->unit, view.base, hzp_unit_bytes(&view));
    x->unit[5] ^= 1;
    ret->base = x->unit;
    return HZP_OK;
}

static int take_draft(void *ctx, const struct hzp_border *border)
{
    struct restore *x = ctx;
    return hzp_weights_begin(x->r->first->weights, &x->draft);
}

static struct hzp_version *fill_draft(struct restore *x, struct hzp_trainer_numbers *numbers)
{
    struct tiny *t = x->r->first;
    assert_int_equal(hzp_loop_call(t->loop, take_draft, x), HZP_OK);
    struct hzp_version *draft = x->draft;
    for (int32_t u = 0; u < x->saved->weights.layout->units; u++) {
        struct hzp_unit_view from = hzp_unit_view(&x->saved->weights, u);
        struct hzp_unit_view to = hzp_version_unit(t->weights, draft, u);
        memcpy(to.base, (char *)from.base + to.part.first * hzp_dtype_size(to.type),
               hzp_unit_bytes(&to));
    }
    x->result = hzp_trainer_read_numbers(dir, numbers, &x->text);
    if (x->reset)
        numbers->reset_step = numbers->optimizer_step;
    return draft;
}

static void requeue(struct restore *x)
{
    struct hzp_sample *sample[SAMPLES];
    int32_t n = 0;
    for (int64_t s = x->saved->learned_through + 1; s <= SAMPLES; s++)
        sample[n++] = tiny_sample(s);
    hzp_sample_queue_replace(x->r->first->queue, sample, n, x->saved->learned_through, SAMPLES);
}

static void *restore(void *arg)
{
    struct restore *x = arg;
    struct tiny *t = x->r->first;
    struct hzp_trainer_older older = {.trainer = t->trainer};
    struct hzp_trainer_numbers numbers;
    struct hzp_unit_source source = {
        .read = read_saved, .ctx = x, .part = {[HZP_STATE_WEIGHTS] = &x->saved->weights}};
    bool whole = x->r->first->config.shards.groups.z3 == 1 && !x->lies;
    assert_int_equal(hzp_loop_call(t->loop, hzp_trainer_suspend, t->trainer), HZP_OK);
    struct hzp_version *v = older.draft = fill_draft(x, &older.numbers);
    assert_int_equal(hzp_loop_call(t->loop, hzp_trainer_publish_older, &older), HZP_OK);
    x->made = older.published;
    if (x->result >= 0)
        x->result = x->reset ? hzp_trainer_clear_suspended(t->trainer)
                             : hzp_trainer_load_suspended(t->trainer, v, dir, &numbers, &x->text);
    if (x->result >= 0)
        x->result = hzp_trainer_restore_ranks(t->trainer, v, whole ? NULL : &source, &x->text);
    if (x->result >= 0)
        requeue(x);
    else
        hzp_trainer_stop_learning(t->trainer);
    x->done = true; /* suspended, so that the test can look at everything */
    return NULL;
}

/* Turns all ranks until the restore is done. */
static void run_restore(struct restore *x)
{
    assert_int_equal(hzp_thread_start(&x->thread, "restore", restore, x), HZP_OK);
    while (!x->done)
        ranks_turn(x->r);
    pthread_join(x->thread, NULL);
    free(x->unit);
}

static struct ranks *open_ranks(const struct tiny_config *config, bool threads)
{
    int lag = config->shards.ordered ? 2 : 1000;
    struct ranks *r = ranks_open(config, threads ? 0 : lag, threads);
    tiny_publish(r->first);
    tiny_push(r->first, 1, SAMPLES);
    return r;
}

static void turn_to(struct ranks *r, int32_t updates)
{
    while (r->first->reports < updates)
        ranks_turn(r);
}

static void assert_ranks(const struct copy *c, struct ranks *r)
{
    assert_rank(c, r->first->weights, hzp_trainer_space(r->first->trainer), 0);
    for (int32_t i = 1; i < r->count; i++)
        assert_rank(c, r->other[i].fixture.weights,
                    hzp_learner_by_link_learner(r->other[i].learner)->space, i);
}

static void go_on(struct ranks *r)
{
    tiny_border(r->first, hzp_trainer_resume);
}

static bool all_learned(struct ranks *r)
{
    struct hzp_version_record record;
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(r->first->trainer, &stats);
    if (stats.failure[0])
        fail_msg("%s", stats.failure);
    hzp_weights_newest(r->first->weights, &record);
    return record.learned_through == SAMPLES && hzp_trainer_idle(r->first->trainer);
}

/* --- What holds ------------------------------------------------------------------------------- */

/* Restored in the middle of learning, with micro-batches dealt that are given up, learned again to
 * the end, then the same once more from there. */
static void check(const struct one *one, const struct tiny_config *config, bool threads)
{
    struct ranks *r = open_ranks(config, threads);
    turn_to(r, SAVED + 2);
    for (int again = 0; again < 2; again++) {
        struct restore x = {.r = r, .saved = &one->saved};
        uint64_t before = hzp_weights_current(r->first->weights)->record.id;
        run_restore(&x);
        if (x.result < 0)
            fail_msg("%s", x.text.text);
        for (int i = 0; i < 1000 && !threads; i++)
            ranks_turn(r); /* the others publish */
        assert_true(x.made > before);
        if (!threads)
            assert_ranks(&one->saved, r);
        else
            assert_rank(&one->saved, r->first->weights, hzp_trainer_space(r->first->trainer), 0);
        go_on(r);
        while (!all_learned(r))
            ranks_turn(r);
        if (!threads)
            assert_ranks(&one->end, r);
        else
            assert_rank(&one->end, r->first->weights, hzp_trainer_space(r->first->trainer), 0);
    }
    ranks_close(r);
}

static void test_restored(void **state)
{
    int n = 0;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct tiny_config config = defaults(bf16 ? HZP_BF16 : HZP_F32, (struct hzp_groups){0});
        struct one one = run_one(config);
        for (int32_t ranks = 2; ranks <= 4; ranks += 2)
            for (int32_t z1 = 1; z1 <= ranks; z1++)
                for (int32_t z2 = 1; z2 <= z1; z2++)
                    for (int32_t z3 = 1; z3 <= z2; z3++) {
                        struct hzp_groups g = {ranks, z1, z2, z3};
                        if (hzp_groups_check(&g, NULL) < 0)
                            continue;
                        config.shards.groups = g;
                        check(&one, &config, n % 5 == 0);
                        n++;
                    }
        free_one(&one);
    }
    assert_int_equal(n, 2 * (4 + 10));
}

/* With the optimizer reset moments and residuals are zero on all ranks. */
static void check_reset(enum hzp_dtype moments)
{
    struct tiny_config config = defaults(HZP_BF16, (struct hzp_groups){2, 2, 1, 1});
    config.recipe.moment_type = moments;
    struct one one = run_one(config);
    struct ranks *r = open_ranks(&config, false);
    turn_to(r, SAVED + 2);
    struct restore x = {.r = r, .saved = &one.saved, .reset = true};
    run_restore(&x);
    if (x.result < 0)
        fail_msg("%s", x.text.text);
    for (int i = 0; i < 1000; i++)
        ranks_turn(r);
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++) {
        const struct hzp_units *part = &one.saved.part[p];
        for (int32_t u = 0; part->layout && u < part->layout->units; u++) {
            struct hzp_unit_view view = hzp_unit_view(part, u);
            memset(view.base, 0, hzp_unit_bytes(&view));
        }
    }
    assert_ranks(&one.saved, r);
    go_on(r);
    while (!all_learned(r))
        ranks_turn(r);
    ranks_close(r);
    free_one(&one);
}

static void test_reset(void **state)
{
    check_reset(HZP_BF16);
    check_reset(HZP_Q8);
}

/* Moments in 8 bits, of units that have several shards. */
static void test_codes(void **state)
{
    static const struct hzp_groups groups[] = {
        {2, 2, 1, 1}, {2, 2, 2, 2}, {4, 2, 1, 1}, {4, 4, 2, 1}};
    struct tiny_config config = defaults(HZP_BF16, (struct hzp_groups){0});
    config.recipe.moment_type = HZP_Q8;
    config.width = 48;
    struct one one = run_one(config);
    for (int i = 0; i < HZP_COUNT(groups); i++) {
        config.shards.groups = groups[i];
        check(&one, &config, i % 2);
    }
    free_one(&one);
}

/* Training is paused: what all ranks take part in ends all the same, and no more is learned
 * until it is resumed. */
static void test_paused(void **state)
{
    struct tiny_config config = defaults(HZP_F32, (struct hzp_groups){2, 2, 2, 1});
    struct one one = run_one(config);
    for (int turns = 0; turns < 40; turns += 4) {
        struct ranks *r = open_ranks(&config, false);
        turn_to(r, 1);
        for (int i = 0; i < turns; i++)
            ranks_turn(r);
        hzp_trainer_pause(r->first->trainer, true);
        struct restore x = {.r = r, .saved = &one.saved};
        run_restore(&x);
        if (x.result < 0)
            fail_msg("%s", x.text.text);
        go_on(r);
        for (int i = 0; i < 1000; i++)
            ranks_turn(r);
        assert_ranks(&one.saved, r);
        hzp_trainer_pause(r->first->trainer, false);
        while (!all_learned(r))
            ranks_turn(r);
        assert_ranks(&one.end, r);
        ranks_close(r);
    }
    free_one(&one);
}

/* The next update's micro-batches have ended while the draft that they read is not published yet:
 * they are given up after it was. */
static void test_in_tail(void **state)
{
    struct tiny_config config = defaults(HZP_F32, (struct hzp_groups){2, 2, 1, 1});
    struct one one = run_one(config);
    config.shards.ordered = false;
    config.recipe.update_tokens = 14;
    struct ranks *r = open_ranks(&config, false);
    struct hzp_trainer *t = r->first->trainer;
    while (!t->learner->tail || t->stage != HZP_TRAINER_WAIT)
        assert_true(ranks_turn(r));
    int32_t reports = r->first->reports;
    struct restore x = {.r = r, .saved = &one.saved};
    /* Tried at every border until restore's own call is: nothing may begin in between. */
    struct hzp_border_call suspend = {.fn = hzp_trainer_suspend, .ctx = t};
    hzp_loop_post(r->first->loop, &suspend);
    for (int i = 0; i < 3; i++)
        ranks_turn(r);
    int suspended;
    if (hzp_loop_ended(r->first->loop, &suspend, &suspended))
        assert_int_equal(r->first->reports, reports + 1);
    run_restore(&x);
    assert_true(hzp_loop_ended(r->first->loop, &suspend, &suspended));
    assert_int_equal(suspended, HZP_OK);
    if (x.result < 0)
        fail_msg("%s", x.text.text);
    for (int i = 0; i < 1000; i++)
        ranks_turn(r);
    assert_int_equal(r->first->reports, reports + 1);
    assert_ranks(&one.saved, r);
    go_on(r);
    while (!all_learned(r))
        ranks_turn(r);
    ranks_close(r);
    free_one(&one);
}

/* --- What goes wrong -------------------------------------------------------------------------- */

/* A unit that is not the one that rank 0 has is noticed, and nothing is learned from it. */
static void test_other_weights(void **state)
{
    struct tiny_config config = defaults(HZP_BF16, (struct hzp_groups){2, 2, 2, 1});
    struct one one = run_one(config);
    struct ranks *r = open_ranks(&config, false);
    turn_to(r, SAVED + 2);
    struct restore x = {.r = r, .saved = &one.saved, .lies = true};
    run_restore(&x);
    assert_int_equal(x.result, HZP_EIO);
    assert_non_null(strstr(x.text.text, "ranks hold different weights"));
    go_on(r);
    int32_t reports = r->first->reports;
    for (int i = 0; i < 1000; i++)
        ranks_turn(r);
    struct hzp_learner_by_link_stats other;
    hzp_learner_by_link_read_stats(r->other[1].learner, &other);
    assert_non_null(strstr(other.failure, "ranks hold different weights"));
    assert_int_equal(r->first->reports, reports);
    assert_true(hzp_trainer_stopped(r->first->trainer));
    ranks_close(r);
    free_one(&one);
}

/* A rank is lost at many instants before a restore: the older version serves on rank 0 all the
 * same, as often as it is asked for, and the restore says who is missing. */
static void test_rank_missing(void **state)
{
    struct tiny_config config = defaults(HZP_BF16, (struct hzp_groups){2, 2, 2, 1});
    struct one one = run_one(config);
    int32_t in_tail = 0, micros = 0;
    for (int instant = 0; instant < 30; instant++) {
        struct ranks *r = open_ranks(&config, false);
        struct hzp_trainer *t = r->first->trainer;
        turn_to(r, SAVED + 1);
        for (int i = 0; i < 2 * instant; i++)
            ranks_turn(r);
        hzp_link_abort(r->link[1], 1, "was pulled out");
        for (int i = 0; i < 20; i++)
            ranks_turn(r);
        in_tail += t->learner->tail;
        micros += t->learner->work.kind == HZP_WORK_MICRO;
        for (int again = 0; again < 3; again++) {
            struct restore x = {.r = r, .saved = &one.saved};
            run_restore(&x);
            assert_int_equal(x.result, HZP_EIO);
            assert_non_null(strstr(x.text.text, "rank 1: was pulled out"));
            go_on(r);
            for (int i = 0; i < 20; i++)
                ranks_turn(r);
            struct hzp_version *v = hzp_weights_current(r->first->weights);
            assert_int_equal(v->record.id, x.made);
            assert_part(&one.saved.weights, hzp_version_units(r->first->weights, v), "weights", 0);
            assert_true(hzp_trainer_stopped(t));
        }
        ranks_close(r);
    }
    assert_true(in_tail > 0 && micros > 0);
    free_one(&one);
}

/* A rank is lost at many instants of a restore: what serves on rank 0 is one of the two versions,
 * whole, and where the older one had not all arrived the restore fails. */
static void test_rank_lost(void **state)
{
    struct tiny_config config = defaults(HZP_BF16, (struct hzp_groups){2, 2, 2, 1});
    struct one one = run_one(config);
    int failed = 0, published = 0;
    for (int instant = 0; instant < 40; instant++) {
        struct ranks *r = open_ranks(&config, false);
        turn_to(r, SAVED + 2);
        struct restore x = {.r = r, .saved = &one.saved};
        assert_int_equal(hzp_thread_start(&x.thread, "restore", restore, &x), HZP_OK);
        struct hzp_link_state link;
        hzp_link_state(r->link[0], &link);
        uint64_t until = link.done + (uint64_t)instant * 2;
        while (!x.done && link.done < until) {
            ranks_turn(r);
            hzp_link_state(r->link[0], &link);
        }
        hzp_link_abort(r->link[1], 1, "was pulled out");
        while (!x.done)
            ranks_turn(r);
        pthread_join(x.thread, NULL);
        go_on(r);
        for (int i = 0; i < 200; i++)
            ranks_turn(r);
        uint64_t checksum;
        struct hzp_err_text text = {{0}, {0}};
        struct hzp_version *v = hzp_weights_current(r->first->weights);
        TINY_MUST(hzp_units_checksum(NULL, hzp_version_units(r->first->weights, v), &checksum));
        assert_true(checksum == v->record.checksum);
        if (x.result < 0) {
            assert_non_null(strstr(x.text.text, "rank 1: was pulled out"));
            assert_true(hzp_trainer_stopped(r->first->trainer));
            failed++;
        }
        if (v->record.id == x.made) {
            assert_true(checksum == one.saved.checksum);
            published++;
        }
        ranks_close(r);
    }
    assert_true(failed > 0 && published > 0);
    free_one(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_restored, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_reset, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_codes, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_paused, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_in_tail, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_other_weights, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_rank_missing, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_rank_lost, make_dir, drop_dir),
    };
    return cmocka_run_group_tests_name("ranks restore", tests, NULL, NULL);
}
