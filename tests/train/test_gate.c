/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: drafts whose loss on held-out samples rises are discarded, with moments and residuals
 * as before, bit for bit; the file that the samples come from; and what was served, evaluated. */
#include "api/learn/gate_file.h"
#include "tests/train/ranks.h"
#include "tests/weights/scratch.h"
#include "train/checks/evaluate.h"
#include "tests/links/links.h"
#include "tests/train/samples.h"
#include "tests/train/newest.h"

enum { HELD = 6 };

/* Held-out samples in two tags, and the bounds. */
struct gate {
    struct hzp_sample *sample[HELD];
    int32_t tag[HELD];
    double rise[2];
    struct hzp_gate gate;
};

static const char *const names[] = {"", "code"};

static void make_gate(struct gate *g, double max_rise, double code_rise)
{
    for (int32_t i = 0; i < HELD; i++) {
        int32_t token[9];
        uint8_t learn[9];
        for (int32_t k = 0; k < 9; k++) {
            token[k] = (i * 11 + k * k * 3 + 1) % (TINY_VOCAB - 1);
            learn[k] = 1;
        }
        g->sample[i] = hzp_sample_create(token, learn, 9);
        g->tag[i] = i >= HELD / 2;
    }
    g->rise[0] = INFINITY;
    g->rise[1] = code_rise;
    g->gate = (struct hzp_gate){.sample = g->sample,
                                .tag = g->tag,
                                .count = HELD,
                                .tags = 2,
                                .name = names,
                                .tag_rise = g->rise,
                                .max_rise = max_rise};
}

static void free_gate(struct gate *g)
{
    for (int32_t i = 0; i < HELD; i++)
        hzp_sample_destroy(g->sample[i]);
}

static double loss_of(struct tiny *t, const struct gate *g)
{
    struct hzp_evaluator *e;
    double loss;
    int64_t tokens;
    assert_int_equal(hzp_evaluator_create(t->fixture.model, 32, false, &e), HZP_OK);
    assert_int_equal(
        hzp_evaluator_run(e, hzp_weights_current(t->weights), g->sample, HELD, &loss, &tokens),
        HZP_OK);
    hzp_evaluator_destroy(e);
    return loss;
}

/* With a bound that is never reached the numbers are those without a gate, and each version has the
 * losses that an evaluation of it gives. */
static void test_passes(void **state)
{
    struct gate g;
    struct hzp_version_record record[64];
    struct tiny_config config = tiny_defaults();
    make_gate(&g, 1000, INFINITY);
    struct tiny *plain = tiny_open(&config);
    config.gate = &g.gate;
    struct tiny *gated = tiny_open(&config);
    tiny_publish(plain);
    tiny_publish(gated);
    double before = loss_of(gated, &g);
    tiny_push(plain, 1, 20);
    tiny_push(gated, 1, 20);
    tiny_run(plain);
    tiny_run(gated);
    tiny_assert_same(plain, gated);
    int32_t n = hzp_weights_list(gated->weights, record, 64);
    assert_true(n > 2);
    assert_true(fabs(record[0].gate_after - loss_of(gated, &g)) < 1e-6);
    assert_true(fabs(record[n - 2].gate_before - before) < 1e-6);
    for (int32_t i = 0; i + 2 < n; i++)
        assert_true(record[i].gate_before == record[i + 1].gate_after);
    assert_true(isnan(record[n - 1].gate_after)); /* loaded, not gated */
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(gated->trainer, &stats);
    assert_int_equal(stats.gate_evaluations, n - 1);
    assert_int_equal(stats.gate_rejected, 0);
    tiny_close(plain);
    tiny_close(gated);
    free_gate(&g);
}

/* A draft that fails leaves weights, moments and residuals as they were, and learning goes on as if
 * it had never been: the same numbers as without its samples. */
static void check_rejected(enum hzp_dtype type, enum hzp_dtype moments, bool by_tag)
{
    struct gate g;
    struct tiny_config config = tiny_defaults();
    config.type = type;
    config.recipe.moment_type = moments;
    config.recipe.update_tokens = 1; /* one sample an update */
    make_gate(&g, 1000, by_tag ? 1000 : INFINITY);
    struct tiny *plain = tiny_open(&config);
    config.gate = &g.gate;
    config.host_state = by_tag; /* no other numbers, either */
    struct tiny *gated = tiny_open(&config);
    tiny_publish(plain);
    tiny_publish(gated);
    tiny_push(plain, 1, 3);
    tiny_push(gated, 1, 3);
    tiny_run(plain);
    tiny_run(gated);
    if (by_tag)
        g.rise[1] = -1000; /* nothing passes */
    else
        g.gate.max_rise = -1000;
    tiny_push(gated, 4, 2);
    tiny_run(gated);
    tiny_assert_same(plain, gated);
    struct hzp_trainer_stats stats;
    struct hzp_version_record record;
    int64_t number[8];
    hzp_trainer_read_stats(gated->trainer, &stats);
    assert_int_equal(stats.gate_rejected, 2);
    assert_int_equal(stats.optimizer_step, 3);
    assert_int_equal(stats.rejection.last_sequence, 5);
    if (by_tag)
        assert_string_equal(stats.rejection.tag, "code");
    else
        assert_null(stats.rejection.tag);
    assert_int_equal(hzp_sample_queue_rejected(gated->queue, 0, number, 8), 2);
    assert_int_equal(number[0], 4);
    assert_int_equal(number[1], 5);
    assert_int_equal(hzp_weights_staleness(gated->weights), 0);
    assert_true(gated->report[gated->reports - 1].rejected);

    g.rise[1] = INFINITY;
    g.gate.max_rise = 1000;
    tiny_push(gated, 6, 4);
    tiny_push(plain, 6, 4);
    tiny_run(gated);
    tiny_run(plain);
    tiny_assert_same(plain, gated);
    hzp_weights_newest(gated->weights, &record);
    assert_int_equal(record.learned_through, 9);
    assert_int_equal(record.optimizer_step, 7);
    tiny_close(plain);
    tiny_close(gated);
    free_gate(&g);
}

static void test_rejected(void **state)
{
    check_rejected(HZP_F32, HZP_F32, false);
    check_rejected(HZP_BF16, HZP_F32, true);
    check_rejected(HZP_BF16, HZP_BF16, false);
    check_rejected(HZP_F32, HZP_Q8, false);
    check_rejected(HZP_BF16, HZP_Q8, true);
}

/* --- Several ranks ---------------------------------------------------------------------------- */

/* As check_rejected, with updates of several micro-batches dealt to all ranks. */
static void check_ranks(enum hzp_dtype type, struct hzp_groups groups, int32_t tokens)
{
    struct gate g;
    struct tiny_config config = tiny_defaults();
    config.type = type;
    config.recipe.moment_type = type;
    config.recipe.update_tokens = tokens;
    config.recipe.micro_rows = 14;
    config.shards.ordered = true;
    make_gate(&g, 1000, INFINITY);
    struct tiny *plain = tiny_open(&config);
    config.gate = &g.gate;
    config.shards.groups = groups;
    struct ranks *r = ranks_open(&config, 2, false);
    struct tiny *gated = r->first;
    tiny_publish(plain);
    tiny_publish(gated);
    for (int32_t i = 0; i < 3; i++) {
        bool rejects = i == 1;
        g.gate.max_rise = rejects ? -1000 : 1000;
        int32_t before = plain->reports;
        tiny_push(gated, 1 + 20 * i, 20);
        ranks_finish(r);
        if (rejects)
            continue;
        tiny_push(plain, 1 + 20 * i, 20);
        tiny_run(plain);
        assert_true(plain->reports > before);
        ranks_assert_same(plain, r);
    }
    struct hzp_trainer_stats stats, alone;
    hzp_trainer_read_stats(gated->trainer, &stats);
    hzp_trainer_read_stats(plain->trainer, &alone);
    assert_true(stats.gate_rejected > 0);
    assert_true(stats.gate_evaluations == stats.gate_rejected + (uint64_t)plain->reports);
    assert_int_equal(stats.optimizer_step, alone.optimizer_step);
    struct hzp_version_record record;
    hzp_weights_newest(gated->weights, &record);
    assert_true(fabs(record.gate_after - loss_of(gated, &g)) < 1e-6);
    ranks_close(r);
    tiny_close(plain);
    free_gate(&g);
}

static void test_ranks(void **state)
{
    static const struct hzp_groups groups[] = {{2, 1, 1, 1}, {2, 2, 1, 1}, {2, 2, 2, 1},
                                               {4, 1, 1, 1}, {4, 2, 1, 1}, {4, 2, 2, 1},
                                               {4, 4, 1, 1}, {4, 4, 2, 1}, {4, 4, 4, 1}};
    for (int i = 0; i < HZP_COUNT(groups); i++) {
        check_ranks(HZP_F32, groups[i], 60);
        check_ranks(HZP_BF16, groups[i], i % 2 ? 60 : 1);
    }
}

/* Weights of which rank 0 has only a shard cannot be evaluated by it. */
static void test_sharded(void **state)
{
    struct gate g;
    struct hzp_err_text text = {{0}, {0}};
    struct tiny_config config = tiny_defaults();
    struct hzp_link *link[2];
    struct hzp_trainer *trainer;
    make_gate(&g, 1000, INFINITY);
    config.shards.groups = (struct hzp_groups){2, 2, 2, 2};
    TINY_MUST(hzp_link_open_local(2, 0, 1, link, &text));
    struct fixture_config fixture = tiny_fixture(&config);
    struct fixture_model model;
    fixture_open(&model, &fixture);
    struct hzp_trainer_config trainer_config = {.recipe = config.recipe,
                                                .model = model.model,
                                                .shards = config.shards,
                                                .link = link[0],
                                                .gate = &g.gate};
    assert_int_equal(hzp_trainer_create(&trainer_config, &trainer, &text), HZP_EUNSUP);
    assert_non_null(strstr(text.text, "--shard z3=1"));
    fixture_close(&model);
    hzp_link_close(link[0]);
    hzp_link_close(link[1]);
    free_gate(&g);
}

/* In steps of one item, with no update allowed to be behind. */
static void test_bound(void **state)
{
    struct gate g;
    struct tiny_config config = tiny_defaults();
    config.max_staleness = 0;
    config.idle_ns = 1;
    make_gate(&g, 1000, 1000);
    config.gate = &g.gate;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 6);
    while (hzp_loop_turn(t->loop) > 0)
        assert_int_equal(hzp_weights_staleness(t->weights), 0);
    assert_true(t->reports > 0);
    tiny_close(t);
    free_gate(&g);
}

/* --- The file --------------------------------------------------------------------------------- */

static int open_file(const char *text, const char *rises, struct hzp_gate_file **ret,
                     struct hzp_err_text *reterr)
{
    struct hzp_model_config model = {.vocab = 50};
    struct hzp_examples ex;
    scratch_write_text(scratch_path("gate.jsonl"), text);
    hzp_examples_init(&ex, NULL, &model, 32, 0);
    int r = hzp_gate_file_open(&ex, scratch_path("gate.jsonl"), rises, ret, reterr);
    hzp_examples_fini(&ex);
    return r;
}

static void test_file(void **state)
{
    struct hzp_gate_file *file;
    struct hzp_err_text text = {{0}, {0}};
    const char *good = "{\"tokens\": [1, 2, 3], \"tag\": \"code\"}\n\n{\"tokens\": [4, 5]}\n"
                       "{\"tokens\": [6, 7], \"tag\": \"code\"}";
    assert_int_equal(open_file(good, "0.5,code=0", &file, &text), HZP_OK);
    const struct hzp_gate *gate = hzp_gate_file_gate(file);
    assert_int_equal(gate->count, 3);
    assert_int_equal(gate->tags, 2);
    assert_true(gate->max_rise == 0.5);
    for (int32_t i = 0; i < 3; i++) {
        bool code = gate->sample[i]->token[0] != 4;
        assert_string_equal(gate->name[gate->tag[i]], code ? "code" : "");
        assert_true(code ? gate->tag_rise[gate->tag[i]] == 0 : isinf(gate->tag_rise[gate->tag[i]]));
        assert_true(i == 0 || gate->tag[i] >= gate->tag[i - 1]);
    }
    hzp_gate_file_close(file);
    static const char *const rises[] = {"", "x", "0.1,", "-1", "nan", "poems=1", "=1", "code=x"};
    for (int i = 0; i < HZP_COUNT(rises); i++) {
        assert_int_equal(open_file(good, rises[i], &file, &text), HZP_EINVAL);
        assert_string_equal(text.param, "--gate-max-rise");
    }
    static const char *const bad[] = {"",
                                      "[]",
                                      "{\"tokens\": [1, 99]}",
                                      "{\"tokens\": [1, 2], \"tag\": 1}",
                                      "{\"tokens\": [1, 2], \"tag\": \"a,b\"}",
                                      "{\"tokens\": [1, 2"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        assert_int_equal(open_file(bad[i], "0.1", &file, &text), HZP_EINVAL);
        assert_string_equal(text.param, "--gate");
    }
}

/* Waits until an answer would be taken, gives one whose two learned tokens were served with these
 * log-probabilities, and turns. */
static void compare(struct tiny *t, const float old[2], uint64_t version)
{
    const int32_t token[] = {1, 7, 3, 9};
    const uint8_t learn[] = {0, 0, 1, 1};
    struct hzp_row_loss how[4] = {{0}};
    for (int i = 0; i < 2; i++)
        how[2 + i] =
            (struct hzp_row_loss){.kind = HZP_LOSS_IS, .inv_temperature = 1, .old = old[i]};
    while (!hzp_trainer_compares(t->trainer))
        sched_yield();
    hzp_trainer_compare(t->trainer, hzp_sample_create_losses(token, learn, NULL, how, 4), version);
    assert_false(hzp_trainer_compares(t->trainer)); /* one waits */
    tiny_run(t);
}

/* What was served is compared with the trainer's own log-probabilities, by the version that served
 * it: what is added to one of them is seen, and learning does not change. */
static void test_compare(void **state)
{
    struct tiny_config config = tiny_defaults();
    struct tiny *t = tiny_open(&config), *without = tiny_open(&config);
    struct hzp_trainer_stats stats;
    double loss;
    int64_t tokens;
    tiny_publish(t);
    tiny_publish(without);
    for (int round = 0; round < 2; round++) {
        const struct hzp_version *v = hzp_weights_current(t->weights);
        const uint8_t first[] = {0, 0, 1, 0}, second[] = {0, 0, 0, 1};
        const int32_t token[] = {1, 7, 3, 9};
        struct hzp_sample *one[] = {hzp_sample_create(token, first, 4),
                                    hzp_sample_create(token, second, 4)};
        struct hzp_evaluator *e;
        float lp[2];
        assert_int_equal(hzp_evaluator_create(t->fixture.model, 32, false, &e), HZP_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(hzp_evaluator_run(e, v, &one[i], 1, &loss, &tokens), HZP_OK);
            lp[i] = (float)-loss;
            hzp_sample_destroy(one[i]);
        }
        hzp_evaluator_destroy(e);
        hzp_trainer_read_stats(t->trainer, &stats);
        struct hzp_ratio_stats before = stats.served;
        compare(t, lp, v->record.id);
        hzp_trainer_read_stats(t->trainer, &stats);
        assert_int_equal(stats.served.rows, before.rows + 2);
        assert_true(fabs(stats.served.k1 - before.k1) < 1e-6 &&
                    fabs(stats.served.k3 - before.k3) < 1e-9);
        lp[1] -= 0.01f;
        before = stats.served;
        compare(t, lp, v->record.id);
        hzp_trainer_read_stats(t->trainer, &stats);
        assert_true(fabs(stats.served.k1 - before.k1 + 0.01) < 1e-5);
        assert_true(fabs(stats.served.k3 - before.k3 - 5e-5) < 1e-6);
        compare(t, lp, v->record.id + 1); /* another version has served it */
        hzp_trainer_read_stats(t->trainer, &stats);
        assert_int_equal(stats.compared, 4 * (round + 1));
        tiny_push(t, 1 + 30 * round, 30);
        tiny_push(without, 1 + 30 * round, 30);
        tiny_run(t);
        tiny_run(without);
    }
    assert_true(t->reports > 2 && t->reports == without->reports);
    tiny_assert_same(t, without);
    tiny_close(t);
    tiny_close(without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_rejected),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_bound),
        cmocka_unit_test_setup_teardown(test_file, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests_name("gate", tests, NULL, NULL);
}
