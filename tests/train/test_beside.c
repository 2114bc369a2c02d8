/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor-parallel groups that learn beside each other: the first ranks of two groups, whose chains
 * are built and never run.  An item that exchanges gradients between groups is not offered before
 * the other group has come so far, so no step waits for what another group computes; and a group
 * that has no micro-batch in a round takes part in the same exchanges. */
#include "tests/links/links.h"
#include "tests/fixture/model.h"
#include "train/learner/learner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { GROUPS = 2, VOCAB = 48, ROWS = 16 };

struct group {
    struct hzp_link *tensor[2];
    struct fixture_model m;
    struct hzp_learner *learner;
};

static struct hzp_link *work[GROUPS], *data[GROUPS];
static struct group group[GROUPS];
static struct hzp_err_text err;
static const struct hzp_path all = {0}, one_layer = {1, {1}};

static void open_group(struct group *g, int i, bool ordered)
{
    struct fixture_config fixture = {.device = "ref",
                                     .config = {.family = "llama",
                                                .layers = 2,
                                                .width = 32,
                                                .inner = 48,
                                                .vocab = VOCAB,
                                                .heads = {4, 2, 8},
                                                .positions = 64,
                                                .norm_eps = 1e-5f,
                                                .rope_theta = 10000,
                                                .tied = true,
                                                .disk_type = HZP_F32,
                                                .bos = -1}};
    assert_int_equal(hzp_link_open_local(2, 0, 1, g->tensor, &err), HZP_OK);
    fixture.tensor = g->tensor[0];
    fixture_open(&g->m, &fixture);
    hzp_model_set_data(g->m.model, data[i]);
    fixture_publish_random(&g->m, 7, 0.1f);
    struct hzp_learner_config config = {
        .recipe = {.micro_rows = ROWS}, .model = g->m.model, .link = work[i]};
    config.shards.ordered = ordered;
    assert_int_equal(hzp_learner_create(&config, &g->learner, &err), HZP_OK);
}

static void open_groups(bool ordered)
{
    assert_int_equal(hzp_link_open_local(GROUPS, 0, 1, work, &err), HZP_OK);
    assert_int_equal(hzp_link_open_local(GROUPS, 0, 1, data, &err), HZP_OK);
    for (int i = 0; i < GROUPS; i++)
        open_group(&group[i], i, ordered);
}

static void close_groups(void)
{
    for (int i = 0; i < GROUPS; i++) {
        hzp_learner_destroy(group[i].learner);
        fixture_close(&group[i].m);
        for (int k = 0; k < 2; k++)
            hzp_link_close(group[i].tensor[k]);
        hzp_link_close(work[i]);
        hzp_link_close(data[i]);
    }
}

/* So many micro-batches, of one document each, along a path. */
static void deal(int count, const struct hzp_path *path)
{
    struct hzp_works works = {0};
    struct hzp_micro *micro;
    const int32_t token[] = {5, 6, 7, 8};
    const uint8_t learn[] = {0, 1, 1, 1};
    assert_int_equal(hzp_micro_create(group[0].m.dev, ROWS, &micro), HZP_OK);
    for (int i = 0; i < count; i++) {
        hzp_micro_clear(micro);
        assert_int_equal(hzp_micro_add(micro, token, learn, HZP_COUNT(token)), HZP_OK);
        micro->path = *path;
        hzp_works_add(&works, &(struct hzp_work){.kind = HZP_WORK_MICRO, .first = i == 0}, micro);
    }
    for (int i = 0; i < GROUPS; i++)
        assert_int_equal(hzp_learner_deal(group[i].learner, &works, &err), HZP_OK);
    hzp_micro_destroy(micro);
    hzp_works_free(&works);
}

static bool exchanges(const struct hzp_learner *l, int32_t item)
{
    const struct hzp_collective_args *a = l->chain.item[item].args;
    return l->chain.item[item].op == HZP_OP_collective && a->link == l->config.model->data;
}

/* The items before the limit have run, as far as the learner knows. */
static int32_t reach(struct hzp_learner *l)
{
    assert_int_equal(hzp_learner_turn(l), HZP_OK);
    l->at = l->to = hzp_learner_limit(l);
    assert_int_equal(hzp_learner_turn(l), HZP_OK);
    return l->at;
}

/* Runs both chains to their ends, the second group always behind the first one: it comes to the
 * same exchanges, and the first one waits at each until then.  Returns how many there are. */
static int run_both(void)
{
    struct hzp_learner *first = group[0].learner, *second = group[1].learner;
    int waits = 0;
    for (int32_t at = reach(first); at < first->chain.items; at = reach(first), waits++) {
        assert_true(exchanges(first, at));
        assert_int_equal(reach(first), at); /* still: the other group has not come so far */
        int32_t other = reach(second);
        if (other < second->chain.items)
            assert_true(exchanges(second, other));
        assert_true(hzp_learner_limit(first) > at || reach(first) > at);
    }
    reach(second);
    assert_int_equal(second->at, second->chain.items);
    return waits;
}

static void next_both(void)
{
    for (int i = 0; i < GROUPS; i++)
        hzp_learner_next(group[i].learner, 1);
}

static int update_both(void)
{
    const struct hzp_work update = {
        .kind = HZP_WORK_UPDATE,
        .optimizer_step = 1,
        .hyper = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .t = 1}};
    assert_int_equal(hzp_learner_update(group[0].learner, &update, NULL), HZP_OK);
    assert_int_equal(reach(group[0].learner), reach(group[0].learner)); /* it has begun alone */
    assert_true(group[0].learner->at < group[0].learner->chain.items);
    assert_int_equal(hzp_learner_update(group[1].learner, &update, NULL), HZP_OK);
    return run_both();
}

/* Sums are exchanged once, at the update's begin. */
static void test_sums(void **state)
{
    open_groups(false);
    deal(3, &all); /* the second group has none in the second round */
    for (int round = 0; round < 2; round++) {
        assert_int_equal(group[1].learner->work.kind, round ? HZP_WORK_NONE : HZP_WORK_MICRO);
        assert_int_equal(group[1].learner->work.first, round == 0);
        assert_int_equal(run_both(), 0);
        next_both();
    }
    assert_int_equal(update_both(), 1);
    close_groups();
}

/* Ordered: each unit's gradients in each round, also of a group that has no micro-batch at all, and
 * the parts of the sums before the norm; but for a layer that is not on the round's path. */
static void test_ordered(void **state)
{
    for (int32_t left_out = 0; left_out < 2; left_out++) {
        open_groups(true);
        deal(1, left_out ? &one_layer : &all);
        assert_int_equal(group[1].learner->work.kind, HZP_WORK_NONE);
        assert_true(group[1].learner->work.first);
        assert_int_equal(run_both(), group[0].m.layout.units - left_out);
        next_both();
        assert_int_equal(update_both(), 1);
        close_groups();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_ordered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
