/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/test_collectives.c - the lists of transfers: when they are posted and what they hold
 * back; and, by the plan checker, that the dependencies of the trainer's lists leave no race
 * between transfers and the chain, and that each of them is needed. */
#include "tests/train/ranks.h"

#include "train/learner/collectives_state.h"
#include "train/conductor/trainer_state.h"
#include "tests/links/links.h"

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

/* What is proved to have no race: a chain with the transfers from entry `first` on, and perhaps an
 * audit beside the chain, on a lane of its own. */
struct proof {
    const struct hzp_plan *chain;
    const struct hzp_transfers *list;
    int32_t first;
    const struct hzp_collectives *audited; /* NULL: no audit */
};

/* Dependencies of the chain's items, then those of the audit of each unit. */
static int32_t dependencies_of(const struct proof *p)
{
    int32_t units = p->audited ? p->audited->config.model->layout->units : 0;
    return p->list->dependencies + units;
}

static enum hzp_collectives_tag tag_of_entry(const struct hzp_transfers_entry *e)
{
    return (enum hzp_collectives_tag)(e->what.tag >> 32);
}

/* The audit's items, each behind the transfer that brings its unit, except that of dependency
 * `skip`.  Returns the last; -1: it has none. */
static int32_t merge_audit(struct hzp_plan *ret, const struct proof *p, const int32_t *of,
                           int32_t skip)
{
    const struct hzp_collectives *x = p->audited;
    const struct hzp_plan *audit = &x->audit.chain;
    int32_t u = -1, last = -1, units = x->config.model->layout->units;
    for (int32_t i = 0; i < audit->items; i++) {
        last = hzp_plan_add(ret, audit->item[i].op, HZP_LANE_MEMORY, audit->item[i].args);
        for (; u + 1 < units && x->audit.first[u + 1] <= i; u++)
            if (x->refresh[u + 1] >= 0 && skip != p->list->dependencies + u + 1)
                hzp_plan_wait(ret, of[x->refresh[u + 1]]);
    }
    return last;
}

/* Chain and list as one plan: a transfer waits for the items it is posted after, and an item for
 * the transfers it depends on, except dependency `skip`. */
static void merge(struct hzp_plan *ret, const struct proof *p, const int32_t *members, int32_t skip)
{
    const struct hzp_plan *chain = p->chain;
    const struct hzp_transfers *t = p->list;
    int32_t item = 0, next = 0;
    int32_t *place = hzp_xcalloc((size_t)chain->items + 1, sizeof(*place));
    int32_t *of = hzp_xcalloc((size_t)t->entries + 1, sizeof(*of));
    for (int32_t k = p->first; k <= t->entries; k++) {
        int32_t to = k < t->entries ? t->entry[k].after : chain->items;
        for (; item < to; item++) {
            place[item] =
                hzp_plan_add(ret, chain->item[item].op, HZP_LANE_COMPUTE, chain->item[item].args);
            for (; next < t->dependencies && t->dependency[next].item <= item; next++) {
                int32_t needs = t->dependency[next].transfer;
                assert_true(needs < k); /* otherwise it would never be posted */
                if (next != skip && needs >= p->first)
                    hzp_plan_wait(ret, of[needs]);
            }
        }
        if (k == t->entries)
            break;
        bool results = tag_of_entry(&t->entry[k]) == HZP_TAG_RESULT;
        int32_t audited = results && p->audited ? merge_audit(ret, p, of, skip) : -1;
        of[k] = add_transfer(ret, &t->entry[k].what, members[t->entry[k].what.group]);
        if (t->entry[k].after > 0)
            hzp_plan_wait(ret, place[t->entry[k].after - 1]);
        if (audited >= 0) /* it is posted when the audit has ended */
            hzp_plan_wait(ret, audited);
    }
    free(place);
    free(of);
}

/* Checks it with all its dependencies, and without each of them in turn.  Returns how many were
 * needed. */
static int32_t prove(struct ranks *r, const struct proof *p)
{
    const struct hzp_transfers *t = p->list;
    int32_t members[HZP_LINK_GROUPS_MAX], needed = 0;
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_plan plan;
    for (int32_t i = 0; i < t->entries; i++)
        members[t->entry[i].what.group] = hzp_link_group_size(r->link[0], t->entry[i].what.group);
    hzp_plan_init(&plan);
    for (int32_t skip = -1; skip < dependencies_of(p); skip++) {
        hzp_plan_clear(&plan);
        merge(&plan, p, members, skip);
        int found = hzp_plan_check(&plan, &text);
        if (skip < 0 && found < 0)
            fail_msg("%s", text.text);
        needed += found < 0;
    }
    hzp_plan_fini(&plan);
    return needed;
}

static struct ranks *open_with_micro(struct hzp_groups groups, bool ordered, bool untied)
{
    struct tiny_config config = tiny_defaults();
    config.layers = 7; /* every place of the rings is used again */
    config.untied = untied;
    config.shards = (struct hzp_shards){.groups = groups, .ordered = ordered};
    struct ranks *r = ranks_open(&config, 0, false);
    tiny_publish(r->first);
    const int32_t token[] = {3, 1, 4, 1, 5};
    const uint8_t learn[] = {0, 1, 1, 1, 1};
    assert_int_equal(hzp_micro_add(r->first->trainer->learner->micro, token, learn, 5), HZP_OK);
    return r;
}

static void assert_needed(int32_t found, int32_t expected, int i, const char *what)
{
    if (found != expected)
        fail_msg("case %d: %d dependencies of %s are needed, expected %d", i, found, what,
                 expected);
}

/* A micro-batch; the update behind it; its tail with the next micro-batch, which reads the draft
 * while it arrives. */
static void test_no_race(void **state)
{
    static const struct {
        struct hzp_groups groups;
        bool ordered;
        int32_t micro, update, tail; /* dependencies without which there is a race */
    } cases[] = {
        {{2, 2, 1, 1}, false, 0, 9, 18}, /* gradients whole: nothing waits before the update */
        {{2, 2, 2, 1}, false, 6, 9, 24}, {{2, 2, 2, 2}, false, 15, 9, 15},
        {{4, 4, 2, 2}, true, 15, 9, 15}, {{4, 2, 1, 1}, true, 6, 9, 24},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct ranks *r = open_with_micro(cases[i].groups, cases[i].ordered, false);
        struct hzp_trainer *t = r->first->trainer;
        struct hzp_collectives *x = t->learner->collectives;
        struct hzp_version *v = hzp_weights_current(r->first->weights), *draft;
        struct hzp_plan chain;
        struct proof proof = {.chain = &chain, .list = hzp_collectives_transfers(x)};
        hzp_plan_init(&chain);
        hzp_collectives_micro(x, &chain, v, t->learner->micro, true, true);
        assert_needed(prove(r, &proof), cases[i].micro, i, "the micro-batch");
        hzp_collectives_note_loss(x, 1);
        hzp_plan_clear(&chain);
        assert_int_equal(hzp_weights_begin(r->first->weights, &draft), HZP_OK);
        struct hzp_update_hyper hyper = {.lr = 1, .grad_scale = 1, .t = 1};
        hzp_collectives_update(x, &chain, v, draft, &hyper, true);
        assert_needed(prove(r, &proof), cases[i].update, i, "the update");
        /* the update's own transfers, up to its norm, are done when its chain has ended */
        proof.first = x->updated + 1;
        proof.audited = x;
        hzp_collectives_audit(x);
        hzp_plan_clear(&chain);
        hzp_collectives_micro(x, &chain, draft, t->learner->micro, true, true);
        assert_needed(prove(r, &proof), cases[i].tail, i, "the tail");
        ranks_close(r);
        hzp_plan_fini(&chain);
    }
}

/* The entry's unit, if it is a transfer of this kind; else -1. */
static int32_t unit_of(const struct hzp_transfers_entry *e, enum hzp_collectives_tag tag)
{
    return tag_of_entry(e) == tag ? (int32_t)(uint32_t)e->what.tag : -1;
}

/* With paths: there is no race either, along the next one neither, and nothing is exchanged of what
 * is not on them, but sums in the last round. */
static void test_paths(void **state)
{
    static const struct hzp_path path[] = {{4, {0, 1, 4, 6}}, {5, {0, 1, 5, 3, 6}}};
    static const struct {
        struct hzp_groups groups;
        bool ordered, untied;
    } cases[] = {{{2, 2, 1, 1}, false, false}, {{2, 2, 2, 1}, false, true},
                 {{2, 2, 2, 2}, false, false}, {{2, 2, 2, 2}, false, true},
                 {{4, 4, 2, 2}, true, false},  {{4, 4, 4, 2}, false, true}};
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct ranks *r = open_with_micro(cases[i].groups, cases[i].ordered, cases[i].untied);
        struct hzp_trainer *t = r->first->trainer;
        struct hzp_collectives *x = t->learner->collectives;
        struct hzp_plan chain;
        struct proof proof = {.chain = &chain, .list = hzp_collectives_transfers(x)};
        hzp_plan_init(&chain);
        for (int round = 0; round < 4; round++) {
            t->learner->micro->path = path[round % 2];
            proof.first = proof.list->entries;
            hzp_plan_clear(&chain);
            hzp_collectives_micro(x, &chain, hzp_weights_current(r->first->weights),
                                  t->learner->micro, round == 0, round == 3);
            prove(r, &proof);
            for (int32_t k = proof.first; k < proof.list->entries; k++)
                for (int32_t tag = HZP_TAG_GATHER; tag <= HZP_TAG_SCATTER; tag++) {
                    int32_t u = unit_of(&proof.list->entry[k], (enum hzp_collectives_tag)tag);
                    if (u > 0 && u <= 7 && !hzp_path_has(&path[round % 2], u - 1))
                        fail_msg("case %d: layer %d is left out and exchanged", i, u - 1);
                }
        }
        hzp_plan_fini(&chain);
        ranks_close(r);
    }
}

/* --- Order ------------------------------------------------------------------------------------ */

/* How many transfers of the kind may be posted when items [0, ended) have ended, and not be done:
 * no item that has ended depended on them or on one behind them. */
static int32_t most_posted(const struct hzp_transfers *list, int32_t ended,
                           enum hzp_collectives_tag tag)
{
    int32_t done = 0, posted = 0;
    for (int32_t d = 0; d < list->dependencies; d++)
        if (list->dependency[d].item < ended)
            done = HZP_MAX(done, list->dependency[d].transfer + 1);
    for (int32_t k = done; k < list->entries && list->entry[k].after <= ended; k++)
        posted += unit_of(&list->entry[k], tag) >= 0;
    return posted;
}

/* The list of a micro-batch that needs all kinds: a unit's gradients are reduced behind the gather
 * of the unit that is needed next; never more than three gathers are posted, nor more reductions
 * than fresh gradients have places, of which the link carries out one at a time. */
static void test_order(void **state)
{
    struct ranks *r = open_with_micro((struct hzp_groups){2, 2, 2, 2}, false, true);
    struct hzp_trainer *t = r->first->trainer;
    struct hzp_collectives *x = t->learner->collectives;
    const struct hzp_transfers *list = hzp_collectives_transfers(x);
    int32_t units = x->config.model->layout->units, gathers = 0, scatters = 0;
    int32_t most_gathers = 0, most_scatters = 0;
    struct hzp_plan chain;
    hzp_plan_init(&chain);
    hzp_collectives_micro(x, &chain, hzp_weights_current(r->first->weights), t->learner->micro,
                          true, false);
    for (int32_t k = 0; k < list->entries; k++) {
        int32_t u = unit_of(&list->entry[k], HZP_TAG_SCATTER);
        gathers += unit_of(&list->entry[k], HZP_TAG_GATHER) >= 0;
        if (u < 0)
            continue;
        assert_int_equal(u, units - 1 - scatters++);
        if (u >= 3) /* unit 0 is the first of the next round */
            assert_int_equal(unit_of(&list->entry[k - 1], HZP_TAG_GATHER), u - 3);
    }
    assert_int_equal(scatters, units);
    assert_int_equal(gathers, units + units - 3); /* forward; then all but what is still there */
    for (int32_t ended = 0; ended <= chain.items; ended++) {
        int32_t now_gathers = most_posted(list, ended, HZP_TAG_GATHER);
        int32_t now_scatters = most_posted(list, ended, HZP_TAG_SCATTER);
        most_gathers = HZP_MAX(most_gathers, now_gathers);
        most_scatters = HZP_MAX(most_scatters, now_scatters);
    }
    assert_int_equal(most_gathers, 3);
    assert_int_equal(most_scatters, 2);
    hzp_plan_fini(&chain);
    ranks_close(r);
}

/* The transfers that an update waits for: what a tied head adds to the embedding's gradient goes
 * early, in parts, and the embedding's rows last; in the ordered mode and in earlier rounds all of
 * it is one transfer. */
static void test_last_is_short(void **state)
{
    for (int32_t i = 0; i < 3; i++) {
        bool ordered = i == 1, last = i != 2;
        struct ranks *r = open_with_micro((struct hzp_groups){2, 2, 2, 1}, ordered, false);
        struct hzp_trainer *t = r->first->trainer;
        struct hzp_collectives *x = t->learner->collectives;
        const struct hzp_transfers *list = hzp_collectives_transfers(x);
        const struct hzp_transfer *at_end = NULL;
        size_t early = 0;
        struct hzp_plan chain;
        assert_true(x->config.model->config->tied);
        hzp_plan_init(&chain);
        hzp_collectives_micro(x, &chain, hzp_weights_current(r->first->weights), t->learner->micro,
                              true, last);
        for (int32_t k = 0; k < list->entries; k++)
            if (unit_of(&list->entry[k], HZP_TAG_SCATTER) == 0) {
                early += at_end ? at_end->count : 0; /* of the one before */
                at_end = &list->entry[k].what;
            }
        assert_non_null(at_end);
        assert_int_equal(at_end->pitch, 0);
        assert_int_equal(early, last && !ordered ? at_end->count : 0);
        assert_int_equal(at_end->nonzero,
                         early ? x->config.micro_rows * x->config.model->config->width : 0);
        hzp_plan_fini(&chain);
        ranks_close(r);
    }
}

/* What the next round of the same version finds in its places is not gathered again. */
static void test_ring_stays(void **state)
{
    struct ranks *r = open_with_micro((struct hzp_groups){2, 2, 2, 2}, false, true);
    struct hzp_trainer *t = r->first->trainer;
    struct hzp_collectives *x = t->learner->collectives;
    const struct hzp_transfers *list = hzp_collectives_transfers(x);
    struct hzp_version *v = hzp_weights_current(r->first->weights);
    struct hzp_plan chain;
    hzp_plan_init(&chain);
    hzp_collectives_micro(x, &chain, v, t->learner->micro, true, false);
    int32_t before = list->entries, gathers = 0;
    hzp_plan_clear(&chain);
    hzp_collectives_micro(x, &chain, v, t->learner->micro, false, true);
    for (int32_t k = before; k < list->entries; k++) {
        int32_t u = unit_of(&list->entry[k], HZP_TAG_GATHER);
        if (u >= 0 && gathers++ == 0)
            assert_int_equal(u, 3);
    }
    int32_t units = x->config.model->layout->units;
    assert_int_equal(gathers, 2 * (units - 3) - 1); /* the last round gathers none for the next */
    hzp_plan_fini(&chain);
    ranks_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),       cmocka_unit_test(test_behind),
        cmocka_unit_test(test_no_race),    cmocka_unit_test(test_order),
        cmocka_unit_test(test_ring_stays), cmocka_unit_test(test_last_is_short),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests_name("collectives", tests, NULL, NULL);
}
