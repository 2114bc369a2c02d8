/* SPDX-License-Identifier: Apache-2.0 */
/* Trials: a draft that passed every other check serves beside the current version until the
 * verdict; dropped or withdrawn, it leaves moments, residuals and versions as they were, bit for
 * bit. */
#include "tests/train/ranks.h"
#include "train/history/trainer_rejoin.h"
#include "train/history/trainer_suspend.h"
#include "tests/train/newest.h"

static const struct hzp_trials_config bounds = {
    .share = 0.25, .time_ns = UINT64_MAX, .requests = 2, .max_drop = 0.5, .max_score_drop = 0.25};
static const struct hzp_trials_config looks = {
    .measured = true, .observes = true, .time_ns = UINT64_MAX, .requests = 1};

/* The sides of one request each draw so many tokens of this log-probability. */
static void note(struct hzp_trials *trials, uint64_t version, bool trial, int32_t tokens,
                 double logprob)
{
    hzp_trials_note(trials, version, trial, &(struct hzp_trial_side){.requests = 1});
    for (int32_t i = 0; i < tokens; i++)
        hzp_trials_note(trials, version, trial,
                        &(struct hzp_trial_side){.tokens = 1, .logprob = logprob});
    hzp_trials_note(trials, version, trial, &(struct hzp_trial_side){.ended = 1});
}

/* --- The verdict ------------------------------------------------------------------------------ */

static struct hzp_trial newest(struct hzp_trials *trials)
{
    struct hzp_trials_stats stats;
    hzp_trials_read(trials, &stats);
    return stats.newest;
}

static void test_verdict(void **state)
{
    struct hzp_trials_config config = bounds;
    config.time_ns = 100;
    struct hzp_trials *t = hzp_trials_create(&config);
    assert_int_equal(hzp_trials_verdict(t, 5), HZP_VERDICT_NONE);
    assert_true(hzp_trials_due_ns(t) == UINT64_MAX && !hzp_trials_running(t));

    /* enough on both sides, and at most 0.5 less */
    hzp_trials_begin(t, 7, 6, 1000);
    assert_true(hzp_trials_due_ns(t) == 1100 && hzp_trials_running(t) == 7);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hzp_trials_verdict(t, 1099), HZP_VERDICT_NONE);
        note(t, 7, false, 4, -1);
        note(t, 7, true, 3, -1.5);
        note(t, 5, true, 3, -100); /* of an earlier trial */
    }
    assert_int_equal(hzp_trials_verdict(t, 1000), HZP_VERDICT_PROMOTE);
    assert_int_equal(newest(t).side[0].tokens, 8);
    assert_int_equal(newest(t).side[1].tokens, 6);
    assert_int_equal(newest(t).side[1].ended, 2);
    note(t, 7, true, 1, -2); /* now more than that */
    assert_int_equal(hzp_trials_verdict(t, 1000), HZP_VERDICT_DROP);
    hzp_trials_end(t, HZP_TRIAL_DROPPED, NULL);
    assert_non_null(strstr(newest(t).reason, "fell too far"));
    note(t, 7, true, 1, -2);
    assert_int_equal(newest(t).side[1].tokens, 7); /* it has ended */
    assert_false(hzp_trials_running(t));

    /* too few */
    hzp_trials_begin(t, 8, 6, 2000);
    note(t, 8, false, 1, -1);
    note(t, 8, true, 1, -1);
    note(t, 8, true, 1, -1);
    assert_int_equal(hzp_trials_verdict(t, 2099), HZP_VERDICT_NONE);
    assert_int_equal(hzp_trials_verdict(t, 2100), HZP_VERDICT_DROP);
    hzp_trials_end(t, HZP_TRIAL_DROPPED, NULL);
    assert_non_null(strstr(newest(t).reason, "too few"));

    /* one that failed, at once */
    hzp_trials_begin(t, 9, 6, 2000);
    const struct hzp_trial_side failed = {.failed = 1};
    hzp_trials_note(t, 9, true, &(struct hzp_trial_side){.requests = 1});
    hzp_trials_note(t, 9, true, &failed);
    assert_int_equal(hzp_trials_verdict(t, 2000), HZP_VERDICT_DROP);
    hzp_trials_note(t, 9, false, &failed); /* on the other side, too */
    assert_int_equal(hzp_trials_verdict(t, 2000), HZP_VERDICT_NONE);
    hzp_trials_end(t, HZP_TRIAL_WITHDRAWN, "why");
    assert_string_equal(newest(t).reason, "why");
    hzp_trials_destroy(t);
}

static void test_scores(void **state)
{
    struct hzp_trials *t = hzp_trials_create(&bounds);
    hzp_trials_begin(t, 7, 6, 0);
    for (int i = 0; i < 2; i++) {
        note(t, 7, false, 1, -1);
        note(t, 7, true, 1, -1);
    }
    hzp_trials_note(t, 7, true, &(struct hzp_trial_side){.scores = 1, .score = -1});
    assert_int_equal(hzp_trials_verdict(t, 0), HZP_VERDICT_PROMOTE); /* nothing to compare with */
    hzp_trials_note(t, 7, false, &(struct hzp_trial_side){.scores = 1});
    assert_int_equal(hzp_trials_verdict(t, 0), HZP_VERDICT_DROP);
    hzp_trials_note(t, 7, true, &(struct hzp_trial_side){.score = 0.75}); /* another opinion */
    assert_int_equal(hzp_trials_verdict(t, 0), HZP_VERDICT_PROMOTE);
    assert_int_equal(newest(t).side[1].scores, 1);
    /* not of this trial */
    hzp_trials_note(t, 6, true, &(struct hzp_trial_side){.scores = 1, .score = -1});
    assert_int_equal(newest(t).side[1].scores, 1);

    struct hzp_err_text text;
    assert_int_equal(hzp_trials_ask(t, 6, true, &text), HZP_ENOENT);
    assert_int_equal(hzp_trials_ask(t, 7, false, &text), HZP_OK);
    assert_int_equal(hzp_trials_verdict(t, 0), HZP_VERDICT_DROP);
    assert_int_equal(hzp_trials_ask(t, 7, true, &text), HZP_OK);
    assert_int_equal(hzp_trials_verdict(t, 0), HZP_VERDICT_PROMOTE);
    hzp_trials_destroy(t);
}

/* What else is found about the version comes before the figures of its requests, or instead. */
static void test_measured(void **state)
{
    struct hzp_wake wake;
    hzp_wake_init(&wake);
    for (double share = 0; share < 0.5; share += 0.25) {
        struct hzp_trials_config config = bounds;
        config.share = share;
        config.measured = true;
        struct hzp_trials *t = hzp_trials_create(&config);
        assert_true(share > 0 || !hzp_trials_draws(t, 7));
        hzp_trials_set_wake(t, &wake);
        assert_true(hzp_wake_wait(&wake, 0));
        for (uint64_t id = 7; id < 10; id++) {
            hzp_trials_begin(t, id, 6, 0);
            assert_true(hzp_wake_wait(&wake, 0));
            hzp_trials_found(t, id - 1, true, "another");
            assert_int_equal(hzp_trials_verdict(t, 0), HZP_VERDICT_NONE);
            hzp_trials_found(t, id, id != 8, "found");
            bool waits = share > 0 && id != 8; /* for requests */
            if (waits) {
                assert_int_equal(hzp_trials_verdict(t, 0), HZP_VERDICT_NONE);
                for (int i = 0; i < 2; i++) {
                    note(t, id, false, 1, -1);
                    note(t, id, true, 1, -1);
                }
            }
            enum hzp_verdict verdict = id == 8 ? HZP_VERDICT_DROP : HZP_VERDICT_PROMOTE;
            assert_int_equal(hzp_trials_verdict(t, 0), verdict);
            hzp_trials_end(t, id == 8 ? HZP_TRIAL_DROPPED : HZP_TRIAL_PROMOTED, NULL);
            if (!waits)
                assert_string_equal(newest(t).reason, "found");
        }
        hzp_trials_set_wake(t, NULL);
        hzp_trials_destroy(t);
    }
    hzp_wake_fini(&wake);
}

/* One that is only looked at is promoted whatever is found or asked for, and not kept waiting. */
static void test_observes(void **state)
{
    struct hzp_trials_config config = looks;
    config.time_ns = 100;
    struct hzp_trials *t = hzp_trials_create(&config);
    assert_false(hzp_trials_expects(t, INT64_MAX));
    hzp_trials_expect(t, 4);
    assert_true(!hzp_trials_expects(t, 3) && hzp_trials_expects(t, 4) && hzp_trials_expects(t, 5));
    hzp_trials_expect(t, 0);
    assert_false(hzp_trials_expects(t, 5));
    for (int found = 0; found < 3; found++) {
        hzp_trials_begin(t, 7 + (uint64_t)found, 6, 1000);
        assert_int_equal(hzp_trials_due_ns(t), 1100);
        note(t, 7 + (uint64_t)found, true, 1, -100);
        hzp_trials_note(t, 7, true, &(struct hzp_trial_side){.failed = 1});
        assert_int_equal(hzp_trials_ask(t, 7, false, NULL), HZP_ENOENT);
        assert_int_equal(hzp_trials_verdict(t, 1099), HZP_VERDICT_NONE);
        if (found)
            hzp_trials_found(t, 7 + (uint64_t)found, found == 1, "");
        assert_int_equal(hzp_trials_verdict(t, found ? 1000 : 1100), HZP_VERDICT_PROMOTE);
        assert_true(hzp_trials_end(t, HZP_TRIAL_PROMOTED, NULL));
    }
    hzp_trials_destroy(t);
    t = hzp_trials_create(&bounds); /* others try every draft */
    assert_true(hzp_trials_expects(t, -1));
    hzp_trials_destroy(t);
}

/* Keys that differ in few bits are drawn in the share that was asked for. */
static void test_share(void **state)
{
    for (double share = 0.1; share < 1; share += 0.2) {
        struct hzp_trials_config config = bounds;
        config.share = share;
        struct hzp_trials *t = hzp_trials_create(&config);
        int drawn = 0;
        for (uint64_t key = 0; key < 20000; key++) {
            drawn += hzp_trials_draws(t, key);
            assert_true(hzp_trials_draws(t, key) == hzp_trials_draws(t, key));
        }
        assert_true(fabs(drawn / 20000.0 - share) < 0.02);
        hzp_trials_destroy(t);
    }
}

/* --- The trainer ------------------------------------------------------------------------------ */

/* Turns until nothing is left to do, or a version is on trial. */
static uint64_t run_to_trial(struct tiny *t)
{
    struct hzp_trainer_stats stats;
    tiny_run(t);
    hzp_trainer_read_stats(t->trainer, &stats);
    uint64_t id = hzp_trials_running(t->config.trials);
    assert_true(stats.on_trial == (id != 0));
    assert_true(!id || !hzp_trainer_idle(t->trainer));
    return id;
}

/* Every trial is promoted: the numbers are those without trials, and no version serves before. */
static void check_promoted(enum hzp_dtype type, bool fp8)
{
    struct tiny_config config = tiny_defaults();
    struct hzp_version_record record;
    config.type = type;
    config.fp8 = fp8;
    config.slots = 3;
    struct tiny *plain = tiny_open(&config);
    config.trials = hzp_trials_create(&bounds);
    struct tiny *tried = tiny_open(&config);
    tiny_publish(plain);
    tiny_publish(tried);
    tiny_push(plain, 1, 20);
    tiny_push(tried, 1, 20);
    tiny_run(plain);
    uint64_t id, last = 1;
    int trials = 0;
    while ((id = run_to_trial(tried))) {
        const struct hzp_version *trial = hzp_weights_trial(tried->weights);
        hzp_weights_newest(tried->weights, &record);
        assert_true(id == last + 1 && record.id == last && trial->record.parent == last);
        assert_int_equal(hzp_weights_current(tried->weights)->record.id, last);
        assert_int_equal(trial->record.optimizer_step, record.optimizer_step + 1);
        assert_true(trial->record.learned_through >= record.learned_through);
        assert_int_equal(hzp_weights_staleness(tried->weights), 0);
        int64_t through = trial->record.learned_through;
        uint64_t sum = trial->record.checksum;
        assert_int_equal(hzp_trials_ask(config.trials, id, true, NULL), HZP_OK);
        assert_int_equal(hzp_loop_turn(tried->loop), 1);
        hzp_weights_newest(tried->weights, &record);
        assert_int_equal(record.id, id);
        assert_int_equal(record.state, HZP_VERSION_CURRENT);
        assert_int_equal(record.learned_through, through);
        assert_true(record.checksum == sum && record.learned.ranges > 0);
        last = id;
        trials++;
    }
    tiny_assert_same(plain, tried);
    assert_true(trials > 2 && trials == tried->reports);
    assert_int_equal(record.learned_through, 20);
    tiny_close(plain);
    tiny_close(tried);
    hzp_trials_destroy(config.trials);
}

static void test_promoted(void **state)
{
    check_promoted(HZP_F32, false);
    check_promoted(HZP_BF16, true);
}

/* Only the draft that ends what is expected is looked at; it keeps its number when it is published,
 * and all is as without.  Two slots and no copy of moments suffice. */
static void check_observed(bool by_lesson)
{
    struct tiny_config config = tiny_defaults();
    struct hzp_version_record record;
    config.queue.passes = 3;
    config.queue.by_lesson = by_lesson;
    config.slots = 2;
    struct tiny *plain = tiny_open(&config);
    config.trials = hzp_trials_create(&looks);
    struct tiny *t = tiny_open(&config);
    tiny_publish(plain);
    tiny_publish(t);
    for (int64_t first = 1; first < 30; first += 10) {
        int64_t last = first + 9, wanted = first == 11 ? 0 : last;
        hzp_trials_expect(config.trials, wanted);
        tiny_teach(plain, first, 10);
        tiny_teach(t, first, 10);
        tiny_run(plain);
        int trials = 0;
        for (uint64_t id; (id = run_to_trial(t)); trials++) {
            const struct hzp_version_record *trial = &hzp_weights_trial(t->weights)->record;
            uint64_t sum = trial->checksum;
            assert_true(trial->learned_through == last && trial->id == id);
            assert_int_equal(hzp_weights_staleness(t->weights), 0);
            assert_int_equal(tiny_border(t, hzp_trainer_freeze), HZP_EBUSY); /* in no checkpoint */
            tiny_border(t, hzp_trainer_thaw);
            assert_int_equal(run_to_trial(t), id);
            hzp_trials_found(config.trials, id, false, "whatever");
            assert_int_equal(hzp_loop_turn(t->loop), 1);
            hzp_weights_newest(t->weights, &record);
            assert_true(record.id == id && record.checksum == sum);
            assert_int_equal(record.learned_through, last);
        }
        assert_int_equal(trials, wanted != 0);
        tiny_assert_same(plain, t);
        assert_int_equal(hzp_weights_current(plain->weights)->record.id,
                         hzp_weights_current(t->weights)->record.id);
    }
    tiny_close(plain);
    tiny_close(t);
    hzp_trials_destroy(config.trials);
}

static void test_observed(void **state)
{
    check_observed(false);
    check_observed(true);
}

/* A stop, and what suspends learning, publish what is only looked at, also while training is
 * paused; nothing is learned twice. */
static void check_observed_end(bool stops, bool by_lesson)
{
    struct tiny_config config = tiny_defaults();
    config.queue.by_lesson = by_lesson;
    struct tiny *plain = tiny_open(&config);
    config.trials = hzp_trials_create(&looks);
    struct tiny *t = tiny_open(&config);
    tiny_publish(plain);
    tiny_publish(t);
    hzp_trials_expect(config.trials, 3);
    tiny_teach(plain, 1, 3);
    tiny_teach(t, 1, 3);
    tiny_run(plain);
    uint64_t id = run_to_trial(t);
    assert_true(id);
    hzp_trainer_pause(t->trainer, true);
    hzp_trials_found(config.trials, id, true, "");
    assert_int_equal(run_to_trial(t), id); /* paused */
    if (stops)
        hzp_trainer_finish(t->trainer);
    else
        assert_int_equal(tiny_border(t, hzp_trainer_suspend), HZP_EBUSY);
    assert_int_equal(run_to_trial(t), 0);
    if (!stops)
        assert_int_equal(tiny_border(t, hzp_trainer_suspend), HZP_OK);
    assert_int_equal(hzp_weights_current(t->weights)->record.id, id);
    assert_int_equal(hzp_weights_current(t->weights)->record.learned_through, 3);
    tiny_assert_same(plain, t);
    tiny_close(plain);
    tiny_close(t);
    hzp_trials_destroy(config.trials);
}

static void test_observed_end(void **state)
{
    for (int i = 0; i < 4; i++)
        check_observed_end(i & 1, i & 2);
}

/* A trial that is dropped leaves everything as if its samples had never been there, and its id is
 * not given to another version. */
static void check_dropped(enum hzp_dtype type, enum hzp_dtype moments)
{
    struct tiny_config config = tiny_defaults();
    struct hzp_version_record record[16];
    struct hzp_trainer_stats stats;
    int64_t number[8];
    config.type = type;
    config.slots = 3;
    config.recipe.moment_type = moments;
    config.recipe.update_tokens = 1; /* one sample an update */
    struct tiny *plain = tiny_open(&config);
    config.trials = hzp_trials_create(&bounds);
    struct tiny *tried = tiny_open(&config);
    tiny_publish(plain);
    tiny_publish(tried);
    tiny_push(plain, 1, 2);
    tiny_run(plain);
    tiny_push(tried, 1, 3);
    for (uint64_t id = 2; id <= 4; id++) {
        assert_int_equal(run_to_trial(tried), id);
        assert_int_equal(hzp_trials_ask(config.trials, id, id < 4, NULL), HZP_OK);
    }
    assert_int_equal(run_to_trial(tried), 0);
    tiny_assert_same(plain, tried);
    assert_false(hzp_weights_resident(tried->weights, 4)); /* it cannot serve again */
    assert_int_equal(hzp_weights_list(tried->weights, record, 16), 4);
    assert_int_equal(record[0].id, 4);
    assert_int_equal(record[0].state, HZP_VERSION_DROPPED);
    assert_int_equal(hzp_weights_list_after(tried->weights, 2, record, 16), 1); /* nor is it kept */
    assert_int_equal(record[0].id, 3);
    hzp_trainer_read_stats(tried->trainer, &stats);
    assert_int_equal(stats.optimizer_step, 2);
    assert_int_equal(stats.skipped, 0);
    assert_int_equal(hzp_sample_queue_rejected(tried->queue, 0, number, 8), 1);
    assert_int_equal(number[0], 3);
    assert_true(hzp_weights_unlearned(tried->weights, 3));
    const struct hzp_update_report *report = &tried->report[tried->reports - 1];
    assert_true(report->rejected && report->trial == 4 && !report->withdrawn);

    tiny_push(plain, 4, 2);
    tiny_run(plain);
    tiny_push(tried, 4, 2);
    for (uint64_t id = 5; id <= 6; id++) {
        assert_int_equal(run_to_trial(tried), id);
        assert_int_equal(hzp_trials_ask(config.trials, id, true, NULL), HZP_OK);
    }
    assert_int_equal(run_to_trial(tried), 0);
    tiny_assert_same(plain, tried);
    hzp_weights_newest(tried->weights, &record[0]);
    assert_true(record[0].id == 6 && record[0].parent == 5 && record[0].learned_through == 5);
    assert_int_equal(record[0].optimizer_step, 4);
    tiny_close(plain);
    tiny_close(tried);
    hzp_trials_destroy(config.trials);
}

static void test_dropped(void **state)
{
    check_dropped(HZP_F32, HZP_F32);
    check_dropped(HZP_BF16, HZP_F32);
    check_dropped(HZP_BF16, HZP_BF16);
}

/* Slots of a dropped trial are free when nobody holds it. */
static void test_held(void **state)
{
    struct tiny_config config = tiny_defaults();
    struct hzp_weights_stats stats;
    config.slots = 3;
    config.trials = hzp_trials_create(&bounds);
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 1);
    assert_int_equal(run_to_trial(t), 2);
    struct hzp_version *v = hzp_weights_acquire_trial(t->weights);
    assert_int_equal(hzp_trials_ask(config.trials, 2, false, NULL), HZP_OK);
    tiny_run(t);
    assert_true(v->record.id == 2 && v->record.state == HZP_VERSION_DROPPED);
    hzp_weights_reclaim(t->weights, UINT64_MAX);
    hzp_weights_read_stats(t->weights, &stats);
    assert_true(stats.slots_free == 1 && !stats.trial_id && stats.next_id == 3);
    hzp_weights_release(t->weights, v, 0);
    hzp_weights_reclaim(t->weights, UINT64_MAX);
    hzp_weights_read_stats(t->weights, &stats);
    assert_int_equal(stats.slots_free, 2);
    struct hzp_version *none;
    assert_int_equal(hzp_weights_revive(t->weights, 2, &none), HZP_ENOENT);
    tiny_close(t);
    hzp_trials_destroy(config.trials);
}

/* Turns all ranks until nothing changes; the version on trial, which no other rank has. */
static uint64_t turn_to_trial(struct ranks *r)
{
    struct hzp_trials *trials = r->first->config.trials;
    for (int idle = 0; idle < 50; idle = ranks_turn(r) ? 0 : idle + 1)
        ;
    uint64_t id = hzp_trials_running(trials);
    for (int32_t i = 1; i < r->count && id; i++)
        assert_true(hzp_weights_current(r->other[i].fixture.weights)->record.id < id);
    return id;
}

/* Several ranks: the others publish what is looked at when rank 0 does, and all have one rank's
 * bytes. */
static void check_observed_ranks(struct hzp_groups groups, bool by_lesson)
{
    struct tiny_config config = tiny_defaults();
    config.queue.passes = 3;
    config.queue.by_lesson = by_lesson;
    config.slots = 2;
    config.shards.ordered = true;
    struct tiny *plain = tiny_open(&config);
    config.trials = hzp_trials_create(&looks);
    config.shards.groups = groups;
    struct ranks *r = ranks_open(&config, 2, false);
    tiny_publish(plain);
    tiny_publish(r->first);
    for (int64_t first = 1; first < 30; first += 10) {
        uint64_t id, trials = 0;
        hzp_trials_expect(config.trials, first == 11 ? 0 : first + 9);
        tiny_teach(plain, first, 10);
        tiny_teach(r->first, first, 10);
        tiny_run(plain);
        for (; (id = turn_to_trial(r)); trials++) {
            assert_int_equal(hzp_weights_trial(r->first->weights)->record.learned_through,
                             first + 9);
            hzp_trials_found(config.trials, id, true, "");
        }
        assert_int_equal(trials, first != 11);
        assert_true(hzp_trainer_idle(r->first->trainer));
        ranks_assert_same(plain, r);
    }
    ranks_close(r);
    tiny_close(plain);
    hzp_trials_destroy(config.trials);
}

/* A rank is lost while a draft is looked at: nothing comes of the draft. */
static void check_observed_loss(bool by_lesson)
{
    struct tiny_config config = tiny_defaults();
    struct hzp_trainer_stats stats;
    config.queue.by_lesson = by_lesson;
    config.slots = 2;
    config.shards.groups = (struct hzp_groups){2, 1, 1, 1};
    config.trials = hzp_trials_create(&looks);
    struct ranks *r = ranks_open(&config, 2, false);
    tiny_publish(r->first);
    uint64_t before = hzp_weights_current(r->first->weights)->record.id;
    hzp_trials_expect(config.trials, 3);
    tiny_teach(r->first, 1, 3);
    assert_true(turn_to_trial(r));
    hzp_link_abort(r->link[1], 1, "was pulled out");
    r->first->trainer->rejoins = true;
    while (tiny_border(r->first, hzp_trainer_part) == HZP_EBUSY)
        hzp_loop_turn(r->first->loop);
    hzp_trainer_read_stats(r->first->trainer, &stats);
    assert_false(stats.on_trial);
    assert_int_equal(hzp_trials_running(config.trials), 0);
    assert_null(hzp_weights_trial(r->first->weights));
    assert_int_equal(hzp_weights_current(r->first->weights)->record.id, before);
    tiny_border(r->first, hzp_trainer_link_closed);
    assert_true(hzp_trainer_idle(r->first->trainer));
    assert_true(
        hzp_sample_queue_ready(r->first->queue)); /* it is learned when the ranks are back */
    ranks_close(r);
    hzp_trials_destroy(config.trials);
}

static void test_observed_ranks(void **state)
{
    static const struct hzp_groups groups[] = {{2, 1, 1, 1}, {2, 2, 2, 1}, {4, 2, 1, 1}};
    for (int i = 0; i < HZP_COUNT(groups); i++) {
        check_observed_ranks(groups[i], false);
        check_observed_ranks(groups[i], true);
    }
    check_observed_loss(false);
    check_observed_loss(true);
}

/* A stop, and what suspends learning, withdraw the trial also while training is paused: its samples
 * are learned later. */
static void check_withdrawn(bool stops)
{
    struct tiny_config config = tiny_defaults();
    config.slots = 3;
    config.type = HZP_BF16;
    struct tiny *plain = tiny_open(&config);
    config.trials = hzp_trials_create(&bounds);
    struct tiny *t = tiny_open(&config);
    struct hzp_sample_queue_stats queue;
    tiny_publish(plain);
    tiny_publish(t);
    tiny_push(t, 1, 3);
    assert_int_equal(run_to_trial(t), 2);
    assert_int_equal(tiny_border(t, hzp_trainer_freeze), HZP_EBUSY);
    assert_int_equal(run_to_trial(t), 2);
    assert_int_equal(tiny_border(t, hzp_trainer_freeze), HZP_EBUSY); /* no checkpoint contains it */
    tiny_border(t, hzp_trainer_thaw);
    hzp_trainer_pause(t->trainer, true);
    assert_int_equal(hzp_trials_ask(config.trials, 2, true, NULL), HZP_OK);
    assert_int_equal(run_to_trial(t), 2); /* paused */
    if (stops)
        hzp_trainer_finish(t->trainer);
    else
        assert_int_equal(tiny_border(t, hzp_trainer_suspend), HZP_EBUSY);
    assert_int_equal(run_to_trial(t), 0);
    if (!stops)
        assert_int_equal(tiny_border(t, hzp_trainer_suspend), HZP_OK);
    assert_true(hzp_trainer_idle(t->trainer));
    tiny_assert_same(plain, t);
    assert_true(t->report[0].withdrawn && !t->report[0].rejected && t->report[0].trial == 2);
    hzp_sample_queue_read_stats(t->queue, &queue);
    assert_true(queue.samples == 3 && queue.learned_through < 1 && queue.touched_through < 1);
    if (!stops) {
        tiny_border(t, hzp_trainer_resume);
        hzp_trainer_pause(t->trainer, false);
        assert_int_equal(run_to_trial(t), 3);
        assert_int_equal(hzp_trials_ask(config.trials, 3, true, NULL), HZP_OK);
        run_to_trial(t);
        tiny_push(plain, 1, 3);
        tiny_run(plain);
        tiny_assert_same(plain, t);
    }
    tiny_close(plain);
    tiny_close(t);
    hzp_trials_destroy(config.trials);
}

static void test_withdrawn(void **state)
{
    check_withdrawn(true);
    check_withdrawn(false);
}

/* With run-ahead a step is delivered while the next one, which has the verdict, is in flight: the
 * version is published when that one has ended, or its answers would exceed the staleness bound. */
static void test_run_ahead(void **state)
{
    struct tiny_config config = tiny_defaults();
    config.slots = 3;
    config.trials = hzp_trials_create(&bounds);
    struct tiny *t = tiny_open(&config);
    struct hzp_source *source = hzp_trainer_source(t->trainer);
    tiny_publish(t);
    tiny_push(t, 1, 1);
    assert_int_equal(run_to_trial(t), 2);
    assert_int_equal(hzp_trials_ask(config.trials, 2, true, NULL), HZP_OK);
    uint64_t now = hzp_device_now_ns(t->fixture.model->dev);
    struct hzp_step before = {.number = 1000, .begin_ns = now};
    struct hzp_step step = {.number = 1001, .begin_ns = now};
    struct hzp_room room = {.train_ns = 0};
    struct hzp_offer none = {.slices = 0}, offer = none;
    struct hzp_outcome outcome = {.status = HZP_OK};
    assert_true(source->offer(source, &step, &room, &offer));
    source->deliver(source, &before, &none, &outcome);
    assert_int_equal(hzp_trials_running(config.trials), 2);
    source->deliver(source, &step, &offer, &outcome);
    assert_int_equal(hzp_trials_running(config.trials), 0);
    assert_int_equal(hzp_weights_current(t->weights)->record.id, 2);
    tiny_close(t);
    hzp_trials_destroy(config.trials);
}

/* A drop that is asked for when the verdict is known, and the version not published yet, counts. */
static void test_late_drop(void **state)
{
    struct tiny_config config = tiny_defaults();
    config.slots = 3;
    config.trials = hzp_trials_create(&bounds);
    struct tiny *t = tiny_open(&config);
    struct hzp_source *source = hzp_trainer_source(t->trainer);
    tiny_publish(t);
    tiny_push(t, 1, 1);
    assert_int_equal(run_to_trial(t), 2);
    assert_int_equal(hzp_trials_ask(config.trials, 2, true, NULL), HZP_OK);
    struct hzp_step step = {.number = 1000, .begin_ns = hzp_device_now_ns(t->fixture.model->dev)};
    struct hzp_room room = {.train_ns = 0};
    struct hzp_offer offer = {.slices = 0};
    struct hzp_outcome outcome = {.status = HZP_OK};
    assert_true(source->offer(source, &step, &room, &offer));
    assert_int_equal(hzp_trials_ask(config.trials, 2, false, NULL), HZP_OK);
    source->deliver(source, &step, &offer, &outcome);
    assert_int_equal(hzp_weights_current(t->weights)->record.id, 1);
    assert_int_equal(hzp_trials_running(config.trials), 2);
    assert_int_equal(run_to_trial(t), 0);
    assert_int_equal(newest(config.trials).end, HZP_TRIAL_DROPPED);
    assert_true(t->reports == 1 && t->report[0].rejected);
    assert_int_equal(hzp_weights_current(t->weights)->record.id, 1);
    assert_int_equal(hzp_trials_ask(config.trials, 2, true, NULL), HZP_ENOENT);
    tiny_close(t);
    hzp_trials_destroy(config.trials);
}

/* Time alone ends a trial: the source says when the loop must look again. */
static void test_time(void **state)
{
    struct tiny_config config = tiny_defaults();
    struct hzp_trials_config soon = bounds;
    soon.time_ns = 0;
    config.slots = 3;
    config.trials = hzp_trials_create(&soon);
    struct tiny *t = tiny_open(&config);
    struct hzp_source *source = hzp_trainer_source(t->trainer);
    tiny_publish(t);
    assert_true(source->due_ns(source) == UINT64_MAX);
    tiny_push(t, 1, 1);
    while (!t->reports) {
        assert_int_equal(hzp_loop_turn(t->loop), 1);
        if (hzp_trials_running(config.trials))
            assert_true(source->due_ns(source) <= hzp_device_now_ns(t->fixture.model->dev));
    }
    assert_true(t->report[0].rejected);
    assert_true(source->due_ns(source) == UINT64_MAX);
    tiny_close(t);
    hzp_trials_destroy(config.trials);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdict),        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_scores),         cmocka_unit_test(test_share),
        cmocka_unit_test(test_promoted),       cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_held),           cmocka_unit_test(test_withdrawn),
        cmocka_unit_test(test_run_ahead),      cmocka_unit_test(test_late_drop),
        cmocka_unit_test(test_time),           cmocka_unit_test(test_observes),
        cmocka_unit_test(test_observed_ranks), cmocka_unit_test(test_observed),
        cmocka_unit_test(test_observed_end),
    };
    return cmocka_run_group_tests_name("trial", tests, NULL, NULL);
}
