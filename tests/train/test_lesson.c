/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that are published lesson by lesson: none is served before the whole lesson has passed;
 * one that fails, or is interrupted, leaves weights, moments, residuals, counts and the draws of
 * replay samples as they were, bit for bit. */
#include "tests/train/ranks.h"
#include "train/history/trainer_suspend.h"
#include "tests/train/samples.h"
#include "tests/train/newest.h"

enum { PASSES = 16, HELD = 4 };

static struct hzp_sample *held[HELD];
static const int32_t no_tag[HELD];
static const char *const no_name[] = {""};
static const double no_rise[] = {INFINITY};

static struct hzp_gate make_gate(void)
{
    for (int32_t i = 0; i < HELD; i++)
        held[i] = tiny_sample(100 + i);
    return (struct hzp_gate){.sample = held,
                             .tag = no_tag,
                             .count = HELD,
                             .tags = 1,
                             .name = no_name,
                             .tag_rise = no_rise,
                             .max_rise = 1000};
}

static void free_gate(void)
{
    for (int32_t i = 0; i < HELD; i++)
        hzp_sample_destroy(held[i]);
}

static struct tiny_config lessons(enum hzp_dtype type)
{
    struct tiny_config config = tiny_defaults();
    config.type = type;
    config.recipe.moment_type = type;
    config.recipe.optimizer = type == HZP_BF16 ? HZP_NADAM : HZP_ADAMW;
    config.recipe.update_tokens = 40;
    config.queue.by_lesson = true;
    config.queue.passes = PASSES;
    config.queue.replay_ratio = 0.7;
    return config;
}

/* Begins with replay samples, of which no two updates draw the same. */
static void begin(struct tiny *t)
{
    struct hzp_sample *replay[5];
    for (int32_t i = 0; i < HZP_COUNT(replay); i++) {
        replay[i] = tiny_sample(200 + i);
        replay[i]->sequence_number = 0;
    }
    hzp_sample_queue_set_replay(t->queue, replay, HZP_COUNT(replay));
    tiny_publish(t);
}

static struct tiny *open_tiny(const struct tiny_config *config)
{
    struct tiny *t = tiny_open(config);
    begin(t);
    return t;
}

static uint64_t serving(const struct tiny *t)
{
    return hzp_weights_current(t->weights)->record.id;
}

/* Learns all that waits; no version serves before the last update of its lesson has ended, and
 * none is behind. */
static int32_t run_watched(struct tiny *t)
{
    int32_t versions = 0;
    uint64_t before = serving(t);
    while (hzp_loop_turn(t->loop) > 0) {
        assert_int_equal(hzp_weights_staleness(t->weights), 0);
        if (serving(t) == before)
            continue;
        before = serving(t);
        versions++;
        assert_int_equal(t->report[t->reports - 1].version, before);
    }
    assert_true(hzp_trainer_idle(t->trainer));
    return versions;
}

static void assert_same_counts(struct tiny *a, struct tiny *b)
{
    struct hzp_trainer_stats x, y;
    struct hzp_sample_queue_stats q, p;
    hzp_trainer_read_stats(a->trainer, &x);
    hzp_trainer_read_stats(b->trainer, &y);
    assert_int_equal(x.optimizer_step, y.optimizer_step);
    assert_int_equal(x.draws, y.draws);
    assert_int_equal(x.updates, y.updates);
    assert_int_equal(x.learned_tokens, y.learned_tokens);
    hzp_sample_queue_read_stats(a->queue, &q);
    hzp_sample_queue_read_stats(b->queue, &p);
    assert_int_equal(q.samples, p.samples);
    assert_int_equal(q.tokens, p.tokens);
    assert_true(q.rows == p.rows);
    tiny_assert_same(a, b);
}

/* A lesson gives one version, with the bits that its updates have one by one. */
static void test_one_version(void **state)
{
    struct tiny_config config = lessons(HZP_F32);
    struct hzp_version_record record;
    for (int32_t staleness = 0; staleness < 2; staleness++) {
        config.idle_ns = 1; /* steps of one item */
        config.max_staleness = staleness;
        config.queue.by_lesson = true;
        struct tiny *t = open_tiny(&config);
        config.queue.by_lesson = false;
        struct tiny *plain = open_tiny(&config);
        tiny_teach(t, 1, 20);
        assert_int_equal(run_watched(t), 1);
        tiny_push(plain, 1, 20);
        tiny_run(plain);
        assert_same_counts(t, plain);
        assert_true(t->reports == plain->reports && t->reports > PASSES);
        hzp_weights_newest(t->weights, &record);
        assert_true(record.id == 2 && record.parent == 1 && record.learned_through == 20);
        assert_int_equal(record.optimizer_step, t->reports);
        assert_true(record.learned.ranges == 1 && record.learned.last[0] == 20);
        tiny_close(t);
        tiny_close(plain);
    }
}

/* How far the loss on the gate's samples rises with the first update of the lesson, and with all:
 * a bound between the two. */
static double bound_between(const struct tiny_config *plan, int64_t first, int32_t n)
{
    struct hzp_gate gate = *plan->gate;
    struct tiny_config config = *plan;
    struct hzp_version_record record;
    double after[2];
    gate.max_rise = 1000;
    config.gate = &gate;
    config.queue.by_lesson = false;
    struct tiny *t = open_tiny(&config);
    tiny_push(t, first, n);
    tiny_run(t);
    hzp_weights_newest(t->weights, &record);
    after[1] = record.gate_after - t->report[0].gate_before;
    after[0] = t->report[0].gate_after - t->report[0].gate_before;
    assert_int_equal(t->reports, PASSES);
    assert_true(after[1] > HZP_MAX(after[0], 0));
    tiny_close(t);
    return (HZP_MAX(after[0], 0) + after[1]) / 2;
}

/* The gate fails only at the end of a lesson of 16 updates, all of which are taken back. */
static void check_rejected(enum hzp_dtype type)
{
    struct hzp_gate gate = make_gate();
    struct tiny_config config = lessons(type);
    struct hzp_trainer_stats stats;
    struct hzp_version_record record;
    int64_t number[8];
    config.recipe.lr = 0.1f;
    config.gate = &gate;
    gate.max_rise = bound_between(&config, 1, 3);
    struct tiny *t = open_tiny(&config), *plain = open_tiny(&config);
    config.queue.by_lesson = false;
    struct tiny *piecemeal = open_tiny(&config); /* what the bound lets pass update by update */
    tiny_push(piecemeal, 1, 3);
    tiny_run(piecemeal);
    assert_true(piecemeal->report[0].version && piecemeal->report[piecemeal->reports - 1].rejected);

    tiny_teach(t, 1, 3);
    assert_int_equal(run_watched(t), 0);
    assert_int_equal(serving(t), 1);
    assert_same_counts(t, plain);
    assert_int_equal(t->reports, PASSES);
    const struct hzp_update_report *report = &t->report[t->reports - 1];
    assert_true(report->rejected && report->samples == 3);
    assert_true(report->first_sequence == 1 && report->last_sequence == 3);
    assert_true(report->gate_after > report->gate_before + gate.max_rise);
    assert_int_equal(hzp_sample_queue_rejected(t->queue, 0, number, 8), 3);
    assert_int_equal(hzp_sample_queue_failed(t->queue, 0, number, 8), 0);
    assert_true(hzp_weights_unlearned(t->weights, 1) && hzp_weights_unlearned(t->weights, 3));
    hzp_trainer_read_stats(t->trainer, &stats);
    assert_true(stats.gate_rejected == 1 && stats.gate_evaluations == 1);
    assert_true(stats.rejection.first_sequence == 1 && stats.rejection.last_sequence == 3);

    gate.max_rise = 1000; /* the next lesson is learned as if that one had never come */
    tiny_teach(t, 4, 5);
    tiny_teach(plain, 4, 5);
    assert_int_equal(run_watched(t), run_watched(plain));
    assert_same_counts(t, plain);
    hzp_weights_newest(t->weights, &record);
    assert_true(record.id == 2 && record.learned_through == 8);
    assert_int_equal(record.learned.first[0], 4);
    tiny_close(t);
    tiny_close(plain);
    tiny_close(piecemeal);
    free_gate();
}

static void test_rejected(void **state)
{
    check_rejected(HZP_F32);
    check_rejected(HZP_BF16);
}

/* Small lessons that wait together are one group; the verdict is about all of it. */
static void test_groups(void **state)
{
    struct hzp_gate gate = make_gate();
    struct tiny_config config = lessons(HZP_F32);
    int64_t number[64];
    config.gate = &gate;
    config.queue.passes = 2;
    struct tiny *t = open_tiny(&config), *plain = open_tiny(&config);
    int64_t first = 0, tokens = 0; /* the first lesson that does not fit in one update */
    while (tokens <= 40) {
        struct hzp_sample *sample = tiny_sample(++first);
        tokens += sample->count;
        hzp_sample_destroy(sample);
    }
    for (int64_t s = 1; s <= 12; s++)
        tiny_teach(t, s, 1);
    while (!t->reports || !t->report[t->reports - 1].version)
        assert_true(hzp_loop_turn(t->loop) > 0);
    assert_int_equal(hzp_weights_current(t->weights)->record.learned_through, first - 1);
    gate.max_rise = -1000;
    while (!t->report[t->reports - 1].rejected)
        assert_true(hzp_loop_turn(t->loop) > 0);
    int32_t n = hzp_sample_queue_rejected(t->queue, 0, number, 64);
    const struct hzp_update_report *report = &t->report[t->reports - 1];
    assert_true(n > 1 && n == report->samples && number[0] == first);
    assert_true(report->first_sequence == first && report->last_sequence == first + n - 1);
    gate.max_rise = 1000;
    run_watched(t);
    for (int64_t s = 1; s <= 12; s++) /* the same groups without the one that was rejected */
        if (s < first || s >= first + n)
            tiny_teach(plain, s, 1);
    run_watched(plain);
    assert_same_counts(t, plain);
    tiny_close(t);
    tiny_close(plain);
    free_gate();
}

/* A large lesson is a group of its own, also if small ones wait before and behind it. */
static void test_large(void **state)
{
    struct tiny_config config = lessons(HZP_F32);
    struct hzp_version_record record[8];
    config.queue.passes = 3;
    struct tiny *t = open_tiny(&config);
    tiny_teach(t, 1, 1);
    tiny_teach(t, 2, 30);
    tiny_teach(t, 32, 1);
    tiny_teach(t, 33, 1);
    assert_int_equal(run_watched(t), 3);
    assert_int_equal(hzp_weights_list(t->weights, record, 8), 4);
    assert_int_equal(record[2].learned_through, 1);
    assert_int_equal(record[1].learned_through, 31);
    assert_int_equal(record[0].learned_through, 33);
    tiny_close(t);
}

/* Interrupted at any step, also while training is paused, by a stop or a suspension: either the
 * lesson has been published or it has left no trace, and it is learned later as ever. */
static void check_interrupted(int32_t turns, bool stops, bool pauses)
{
    struct tiny_config config = lessons(HZP_BF16);
    struct hzp_sample_queue_stats queue;
    struct hzp_passes *passes;
    config.idle_ns = 1;
    config.queue.passes = 3;
    config.recipe.update_tokens = 20;
    struct tiny *t = open_tiny(&config), *plain = open_tiny(&config);
    tiny_teach(t, 1, 4);
    tiny_teach(plain, 1, 4);
    for (int32_t i = 0; i < turns; i++)
        hzp_loop_turn(t->loop);
    uint64_t before = serving(t);
    hzp_trainer_pause(t->trainer, pauses);
    if (stops)
        hzp_trainer_finish(t->trainer);
    bool suspended = false;
    for (int32_t i = 0; i < 20000 && (i < 100 || !hzp_trainer_idle(t->trainer)); i++) {
        if (!stops && !suspended)
            suspended = tiny_border(t, hzp_trainer_suspend) == HZP_OK;
        hzp_loop_turn(t->loop);
        if (pauses)
            assert_true(i < 19999 || t->reports < 1); /* an update that has begun stands still */
    }
    hzp_sample_queue_read_stats(t->queue, &queue);
    if (hzp_trainer_idle(t->trainer) && serving(t) == 1) {
        assert_true(queue.samples == 4 && queue.learned_through < 1 && !queue.touched_through);
        assert_int_equal(hzp_sample_queue_passes(t->queue, &passes), 0);
        free(passes);
        struct tiny *untouched = open_tiny(&config);
        tiny_assert_same(t, untouched);
        tiny_close(untouched);
    } else if (!pauses) {
        assert_true(before == serving(t) || serving(t) == 2);
    }
    if (!stops && suspended) {
        tiny_border(t, hzp_trainer_resume);
        hzp_trainer_pause(t->trainer, false);
        tiny_run(t);
        tiny_run(plain);
        assert_same_counts(t, plain);
    }
    tiny_close(t);
    tiny_close(plain);
}

static void test_interrupted(void **state)
{
    for (int32_t turns = 1; turns < 1600; turns += 67) {
        check_interrupted(turns, true, false);
        check_interrupted(turns, false, false);
        check_interrupted(turns, turns % 2, true);
    }
}

/* A checkpoint waits for the end of the lesson. */
static void test_freeze(void **state)
{
    struct tiny_config config = lessons(HZP_F32);
    struct tiny *t = open_tiny(&config);
    tiny_teach(t, 1, 3);
    tiny_teach(t, 4, 9);
    while (!t->reports)
        assert_true(hzp_loop_turn(t->loop) > 0);
    while (tiny_border(t, hzp_trainer_freeze) == HZP_EBUSY) {
        assert_int_equal(serving(t), 1);
        assert_true(hzp_loop_turn(t->loop) > 0);
    }
    assert_true(serving(t) == 2 && hzp_trainer_frozen(t->trainer)->record.id == 2);
    int32_t reports = t->reports;
    for (int i = 0; i < 100; i++)
        hzp_loop_turn(t->loop);
    assert_int_equal(t->reports, reports);
    tiny_border(t, hzp_trainer_thaw);
    tiny_run(t);
    assert_int_equal(hzp_weights_current(t->weights)->record.learned_through, 12);
    tiny_close(t);
}

/* One trial for all updates of a lesson. */
static void test_trial(void **state)
{
    struct hzp_trials_config bounds = {
        .share = 0.25, .time_ns = UINT64_MAX, .requests = 2, .max_drop = 1, .max_score_drop = 1};
    struct tiny_config config = lessons(HZP_BF16);
    config.slots = 3;
    struct tiny *plain = open_tiny(&config);
    config.trials = hzp_trials_create(&bounds);
    struct tiny *t = open_tiny(&config);
    for (int32_t i = 0; i < 2; i++) {
        bool promote = i == 1;
        tiny_teach(t, 1 + 4 * i, 4);
        tiny_run(t);
        const struct hzp_version *trial = hzp_weights_trial(t->weights);
        assert_true(trial && trial->record.id == (uint64_t)i + 2 && serving(t) == 1);
        assert_int_equal(trial->record.optimizer_step, PASSES);
        assert_int_equal(trial->record.learned_through, 4 + 4 * i);
        assert_int_equal(trial->record.learned.first[0], 1 + 4 * i);
        assert_int_equal(hzp_trials_ask(config.trials, trial->record.id, promote, NULL), HZP_OK);
        tiny_run(t);
        assert_int_equal(serving(t), promote ? 3 : 1);
        assert_true(t->report[t->reports - 1].rejected == !promote);
        if (promote) {
            tiny_teach(plain, 5, 4);
            tiny_run(plain);
        }
        assert_same_counts(t, plain);
    }
    tiny_teach(t, 9, 4); /* withdrawn */
    tiny_run(t);
    assert_int_equal(tiny_border(t, hzp_trainer_suspend), HZP_EBUSY);
    tiny_run(t);
    assert_int_equal(tiny_border(t, hzp_trainer_suspend), HZP_OK);
    tiny_assert_same(t, plain);
    tiny_border(t, hzp_trainer_resume);
    tiny_run(t);
    assert_int_equal(hzp_trials_ask(config.trials, 5, true, NULL), HZP_OK);
    tiny_run(t);
    tiny_teach(plain, 9, 4);
    tiny_run(plain);
    assert_same_counts(t, plain);
    tiny_close(t);
    tiny_close(plain);
    hzp_trials_destroy(config.trials);
}

/* --- Several ranks ---------------------------------------------------------------------------- */

/* A lesson of several updates gives one version on all ranks, with the bytes that one rank has. One
 * that the gate rejects at its end, or that a suspension interrupts, leaves no trace on any. */
static void check_ranks(enum hzp_dtype type, struct hzp_groups groups, int32_t tokens)
{
    struct hzp_gate gate = make_gate();
    struct tiny_config config = lessons(type);
    struct hzp_version_record record;
    config.queue.passes = 3;
    config.recipe.update_tokens = tokens;
    config.recipe.micro_rows = 14;
    config.shards.ordered = true;
    config.gate = groups.z3 == 1 ? &gate : NULL; /* which reads whole weights */
    struct tiny *plain = open_tiny(&config);
    config.shards.groups = groups;
    struct ranks *r = ranks_open(&config, 2, false);
    struct tiny *t = r->first;
    begin(t);
    for (int32_t i = 0; i < 4; i++) {
        bool rejects = config.gate && i == 1, interrupted = i == 2;
        gate.max_rise = rejects ? -1000 : 1000;
        tiny_teach(t, 1 + 20 * i, 20);
        int32_t before = t->reports;
        while (interrupted && t->reports < before + 2)
            ranks_turn(r);
        while (interrupted && tiny_border(t, hzp_trainer_suspend) == HZP_EBUSY)
            ranks_turn(r);
        if (interrupted) {
            ranks_assert_same(plain, r);
            tiny_border(t, hzp_trainer_resume);
        }
        ranks_finish(r);
        assert_true(t->report[t->reports - 1].rejected == rejects && t->reports > before + 3);
        if (!rejects) {
            tiny_teach(plain, 1 + 20 * i, 20);
            tiny_run(plain);
        }
        ranks_assert_same(plain, r);
    }
    int64_t updates = hzp_weights_current(plain->weights)->record.optimizer_step;
    for (int32_t i = 0; i < r->count; i++) {
        hzp_weights_newest(i ? r->other[i].fixture.weights : t->weights, &record);
        assert_int_equal(record.optimizer_step, updates);
    }
    ranks_close(r);
    tiny_close(plain);
    free_gate();
}

static void test_ranks(void **state)
{
    static const struct hzp_groups groups[] = {{2, 1, 1, 1}, {2, 2, 1, 1}, {2, 2, 2, 2},
                                               {4, 2, 2, 1}, {4, 4, 2, 1}, {4, 4, 4, 4}};
    for (int i = 0; i < HZP_COUNT(groups); i++)
        check_ranks(i % 2 ? HZP_F32 : HZP_BF16, groups[i], i % 3 ? 60 : 20);
}

/* --- Edges ------------------------------------------------------------------------------------ */

/* Samples without anything to learn at the end of a lesson, and alone. */
static void test_nothing_to_learn(void **state)
{
    struct tiny_config config = lessons(HZP_F32);
    config.queue.passes = 2;
    config.recipe.update_tokens = 1;
    struct tiny *t = open_tiny(&config);
    for (int64_t s = 1; s <= 3; s++) {
        int32_t token[3] = {1, 2, 3};
        uint8_t learn[3] = {0, 0, s == 1};
        struct hzp_sample *sample = hzp_sample_create(token, learn, 3);
        sample->sequence_number = s;
        sample->lesson = HZP_MIN(s, 2) == 1 || s == 2 ? 1 : 3;
        assert_int_equal(hzp_sample_queue_reserve(t->queue, 1, 3), HZP_OK);
        hzp_sample_queue_push(t->queue, &sample, 1);
    }
    assert_true(run_watched(t) >= 1);
    struct hzp_sample_queue_stats queue;
    int64_t number[4];
    hzp_sample_queue_read_stats(t->queue, &queue);
    assert_true(queue.samples == 0 && queue.learned_through == 3);
    assert_int_equal(hzp_sample_queue_failed(t->queue, 0, number, 4), 2);
    tiny_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_version), cmocka_unit_test(test_rejected),
        cmocka_unit_test(test_groups),      cmocka_unit_test(test_large),
        cmocka_unit_test(test_interrupted), cmocka_unit_test(test_freeze),
        cmocka_unit_test(test_trial),       cmocka_unit_test(test_nothing_to_learn),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests_name("lesson", tests, NULL, NULL);
}
