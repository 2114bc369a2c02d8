/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/test_collectives.c - the lists of transfers: when they are posted and what they hold
 * back; and, by the plan checker, that the dependencies of the trainer's lists leave no race
 * between transfers and the chain, and that each of them is needed. */
#include "tests/train/ranks.h"

#include "train/deal.h"
#include "train/trainer_state.h"

/* --- The list --------------------------------------------------------------------------------- */

static int calls;

static int count_call(void *ctx, struct hzp_err_text *reterr)
{
    calls++;
    return ctx ? hzp_fail(reterr, HZP_EIO, "told to") : HZP_OK;
}

static void test_list(void **state)
{
    struct hzp_link *link[2];
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_transfers a, b;
    char data[2][3] = {"x", "y"};
    TINY_MUST(hzp_link_open_local(2, 0, 1, link, &text));
    hzp_transfers_init(&a);
    hzp_transfers_init(&b);
    for (int i = 0; i < 3; i++) {
        struct hzp_transfer what = {
            .op = HZP_BROADCAST, .count = 2, .recv = data[0], .tag = (uint64_t)i};
        hzp_transfers_add(&a, &what, i * 5);
        hzp_transfers_newest(&a)->then = count_call;
        what.recv = data[1];
        hzp_transfers_add(&b, &what, 0);
    }
    hzp_transfers_depend(&a, 7, 0);
    hzp_transfers_depend(&a, 9, 1);
    hzp_transfers_depend(&a, 9, -1);
    calls = 0;
    assert_int_equal(hzp_transfers_limit(&a, 20), 7);
    assert_int_equal(hzp_transfers_cut(&a, 0, 20), 5);
    assert_int_equal(hzp_transfers_cut(&a, 0, 3), 3);
    assert_int_equal(hzp_transfers_cut(&a, 5, 20), 10);
    assert_int_equal(hzp_transfers_cut(&a, 10, 20), 20);
    TINY_MUST(hzp_transfers_turn(&a, link[0], 0, &text));
    assert_int_equal(a.posted, 1); /* the second one is for item 5 */
    assert_int_equal(hzp_transfers_limit(&a, 20), 7);
    TINY_MUST(hzp_transfers_turn(&b, link[1], 0, &text));
    assert_int_equal(b.posted, 3);
    TINY_MUST(hzp_transfers_turn(&a, link[0], 4, &text));
    assert_int_equal(calls, 1);
    assert_string_equal(data[1], "x");
    assert_int_equal(hzp_transfers_limit(&a, 20), 9);
    TINY_MUST(hzp_transfers_turn(&a, link[0], 5, &text));
    assert_int_equal(hzp_transfers_limit(&a, 20), 20);
    assert_false(hzp_transfers_done(&a));
    TINY_MUST(hzp_transfers_turn(&a, link[0], 10, &text));
    TINY_MUST(hzp_transfers_turn(&b, link[1], 10, &text));
    assert_true(hzp_transfers_done(&a) && hzp_transfers_done(&b));
    assert_int_equal(calls, 3);
    hzp_transfers_fini(&a);
    hzp_transfers_fini(&b);
    hzp_link_close(link[0]);
    hzp_link_close(link[1]);
}

/* A transfer `behind` is posted when those before it are done; a function that fails is an error.
 * */
static void test_behind(void **state)
{
    struct hzp_link *link[2];
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_transfers a, b;
    char data[2][2] = {"x", "y"};
    TINY_MUST(hzp_link_open_local(2, 0, 1, link, &text));
    hzp_transfers_init(&a);
    hzp_transfers_init(&b);
    struct hzp_transfer what = {.op = HZP_BROADCAST, .count = 2, .recv = data[0]};
    hzp_transfers_add(&a, &what, 0);
    hzp_transfers_add(&a, &what, 0);
    hzp_transfers_newest(&a)->behind = true;
    hzp_transfers_newest(&a)->then = count_call;
    hzp_transfers_newest(&a)->ctx = link;
    what.recv = data[1];
    hzp_transfers_add(&b, &what, 0);
    hzp_transfers_add(&b, &what, 0);
    TINY_MUST(hzp_transfers_turn(&a, link[0], 0, &text));
    assert_int_equal(a.posted, 1);
    TINY_MUST(hzp_transfers_turn(&b, link[1], 0, &text));
    assert_int_equal(hzp_transfers_turn(&a, link[0], 0, &text), HZP_EIO);
    assert_string_equal(text.text, "told to");
    assert_int_equal(a.posted, 2);
    hzp_transfers_fini(&a);
    hzp_transfers_fini(&b);
    hzp_link_close(link[0]);
    hzp_link_close(link[1]);
}

/* --- Documents -------------------------------------------------------------------------------- */

static void check_deal(const float *weight)
{
    const int32_t token[] = {5, 6, 7};
    const uint8_t learn[] = {0, 1, 1};
    struct hzp_sample *sample = hzp_sample_create_weighted(token, learn, weight, 3);
    size_t size = hzp_deal_bytes(3, weight != NULL);
    int32_t buffer[16];
    struct hzp_deal_doc doc;
    char *begin = (char *)buffer, *end = hzp_deal_put(begin, sample, 4);
    assert_int_equal(end - begin, size);
    assert_ptr_equal(hzp_deal_get(begin, end, 5, &doc), end);
    assert_int_equal(doc.count, 3);
    assert_int_equal(doc.bin, 4);
    assert_memory_equal(doc.token, token, sizeof(token));
    assert_memory_equal(doc.learn, learn, sizeof(learn));
    assert_int_equal(doc.weight != NULL, weight != NULL);
    if (weight)
        assert_memory_equal(doc.weight, weight, 3 * sizeof(*weight));
    assert_null(hzp_deal_get(begin, end, 4, &doc)); /* there is no such micro-batch */
    for (char *cut = begin; cut < end; cut++)
        assert_null(hzp_deal_get(begin, cut, 5, &doc));
    buffer[0] = 1;
    assert_null(hzp_deal_get(begin, end, 5, &doc));
    buffer[0] = -3;
    assert_null(hzp_deal_get(begin, end, 5, &doc));
    buffer[0] = 3;
    buffer[2] = 2; /* neither with weights nor without */
    assert_null(hzp_deal_get(begin, end, 5, &doc));
    hzp_sample_destroy(sample);
}

static void test_deal(void **state)
{
    check_deal(NULL);
    check_deal((const float[]){1, 2, 0.25f});
}

/* --- No race ---------------------------------------------------------------------------------- */

/* A transfer as an item that reads and writes the same memory. */
static int32_t add_transfer(struct hzp_plan *plan, const struct hzp_transfer *what, int32_t members)
{
    int32_t n = (int32_t)(what->count * hzp_wire_size(what->type));
    int32_t all = n * members, from = n, to = n;
    if (what->op == HZP_ALL_GATHER)
        to = all;
    if (what->op == HZP_REDUCE_SCATTER)
        from = all;
    const void *send = what->send ? what->send : what->recv;
    struct hzp_cast_args args = {.x = {(void *)(uintptr_t)send, 1, from / 2, from / 2, HZP_BF16},
                                 .y = {what->recv, 1, to / 2, to / 2, HZP_BF16}};
    return hzp_plan_add(plan, HZP_OP_cast, HZP_LANE_NETWORK, &args);
}

/* Chain and list as one plan: a transfer waits for the items it is posted after, and an item for
 * the transfers of its dependencies, except number `skip`. */
static void merge(struct hzp_plan *ret, const struct hzp_plan *chain, const struct hzp_transfers *t,
                  const int32_t *members, int32_t skip)
{
    int32_t item = 0, d = 0;
    int32_t *place = hzp_xcalloc((size_t)chain->items + 1, sizeof(*place));
    int32_t *of = hzp_xcalloc((size_t)t->entries + 1, sizeof(*of));
    for (int32_t k = 0; k <= t->entries; k++) {
        int32_t to = k < t->entries ? t->entry[k].after : chain->items;
        for (; item < to; item++) {
            place[item] =
                hzp_plan_add(ret, chain->item[item].op, HZP_LANE_COMPUTE, chain->item[item].args);
            for (; d < t->dependencies && t->dependency[d].item <= item; d++) {
                assert_true(t->dependency[d].transfer < k); /* otherwise it would never be posted */
                if (d != skip)
                    hzp_plan_wait(ret, of[t->dependency[d].transfer]);
            }
        }
        if (k == t->entries)
            break;
        of[k] = add_transfer(ret, &t->entry[k].what, members[t->entry[k].what.group]);
        if (t->entry[k].after > 0)
            hzp_plan_wait(ret, place[t->entry[k].after - 1]);
    }
    free(place);
    free(of);
}

/* Checks the list with all its dependencies, and without each of them in turn.  Returns how many
 * dependencies were needed. */
static int32_t prove(struct ranks *r, const struct hzp_plan *chain)
{
    struct hzp_transfers *t = hzp_collectives_transfers(r->first->trainer->collectives);
    int32_t members[HZP_LINK_GROUPS_MAX], needed = 0;
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_plan plan;
    for (int32_t i = 0; i < t->entries; i++)
        members[t->entry[i].what.group] = hzp_link_group_size(r->link[0], t->entry[i].what.group);
    hzp_plan_init(&plan);
    for (int32_t skip = -1; skip < t->dependencies; skip++) {
        hzp_plan_clear(&plan);
        merge(&plan, chain, t, members, skip);
        int found = hzp_plan_check(&plan, &text);
        if (skip < 0 && found < 0)
            fail_msg("%s", text.text);
        needed += found < 0;
    }
    hzp_plan_fini(&plan);
    return needed;
}

static struct ranks *open_with_micro(struct hzp_groups groups, bool ordered)
{
    struct tiny_config config = tiny_defaults();
    config.layers = 7; /* every place of the rings is used again */
    config.shards = (struct hzp_shards){.groups = groups, .ordered = ordered};
    struct ranks *r = ranks_open(&config, 0, false);
    tiny_publish(r->first);
    const int32_t token[] = {3, 1, 4, 1, 5};
    const uint8_t learn[] = {0, 1, 1, 1, 1};
    assert_int_equal(hzp_micro_add(r->first->trainer->micro, token, learn, 5), HZP_OK);
    return r;
}

static void test_no_race(void **state)
{
    static const struct {
        struct hzp_groups groups;
        bool ordered;
        int32_t micro, update; /* dependencies without which there is a race */
    } cases[] = {
        {{2, 2, 1, 1}, false, 0, 18}, /* gradients whole: nothing waits before the update */
        {{2, 2, 2, 1}, false, 6, 18}, {{2, 2, 2, 2}, false, 15, 9},
        {{4, 4, 2, 2}, true, 15, 9},  {{4, 2, 1, 1}, true, 6, 18},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct ranks *r = open_with_micro(cases[i].groups, cases[i].ordered);
        struct hzp_trainer *t = r->first->trainer;
        struct hzp_version *v = hzp_weights_current(r->first->weights);
        struct hzp_plan chain;
        hzp_plan_init(&chain);
        hzp_collectives_micro(t->collectives, &chain, v, t->micro, true, true);
        int32_t needed = prove(r, &chain);
        if (needed != cases[i].micro)
            fail_msg("case %d: %d dependencies of the micro-batch are needed, expected %d", i,
                     needed, cases[i].micro);
        hzp_collectives_note_loss(t->collectives, 1);
        hzp_plan_clear(&chain);
        struct hzp_version *draft;
        assert_int_equal(hzp_weights_begin(r->first->weights, &draft), HZP_OK);
        struct hzp_update_hyper hyper = {.lr = 1, .grad_scale = 1, .t = 1};
        hzp_collectives_update(t->collectives, &chain, hzp_weights_current(r->first->weights),
                               draft, &hyper);
        needed = prove(r, &chain);
        if (needed != cases[i].update)
            fail_msg("case %d: %d dependencies of the update are needed, expected %d", i, needed,
                     cases[i].update);
        ranks_close(r);
        hzp_plan_fini(&chain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_behind),
        cmocka_unit_test(test_deal),
        cmocka_unit_test(test_no_race),
    };
    return cmocka_run_group_tests_name("collectives", tests, NULL, NULL);
}
