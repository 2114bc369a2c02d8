/* SPDX-License-Identifier: Apache-2.0 */
/* Sources that offer several slices in one step: each joins the step's plan, training's in the
 * order of the offer, transfers on the lanes of their chain, and every source gets the time of its
 * tenant. */
#include "nanobatch/loop.h"
#include "tests/nanobatch/paper.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS_MAX = 4 };

/* A source that offers its slices step by step, as a table says. */
struct script {
    struct hzp_source source;
    struct hzp_slice slice[STEPS_MAX][HZP_SLICES_MAX]; /* chain NULL: no more slices in that step */
    uint64_t room_ns[STEPS_MAX];                       /* training's time, as the source found it */
    struct hzp_outcome outcome[STEPS_MAX];
    int offered, delivered;
};

static bool script_offer(struct hzp_source *source, const struct hzp_step *step,
                         struct hzp_room *room, struct hzp_offer *offer)
{
    struct script *s = HZP_CONTAINER_OF(source, struct script, source);
    bool any = false;
    if (s->offered == STEPS_MAX)
        return false;
    s->room_ns[s->offered] = room->train_ns;
    for (int i = 0; i < HZP_SLICES_MAX && s->slice[s->offered][i].chain; i++) {
        hzp_offer_add(offer, &s->slice[s->offered][i]);
        any = true;
    }
    s->offered += any;
    return any;
}

static void script_deliver(struct hzp_source *source, const struct hzp_step *step,
                           const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct script *s = HZP_CONTAINER_OF(source, struct script, source);
    assert_int_equal(outcome->status, HZP_OK);
    assert_true(s->delivered < s->offered);
    for (int i = 0; i < HZP_SLICES_MAX && s->slice[s->delivered][i].chain; i++)
        assert_non_null(hzp_offer_slice(offer, s->slice[s->delivered][i].chain));
    s->outcome[s->delivered++] = *outcome;
}

static struct script script_open(void)
{
    return (struct script){
        .source = {
            .name = "script", .slices = true, .offer = script_offer, .deliver = script_deliver}};
}

static struct hzp_loop *open_loop(struct paper *p, struct script *a, struct script *b)
{
    struct hzp_loop *loop;
    struct hzp_loop_config config = {.model = p->m.model,
                                     .source = {&a->source, b ? &b->source : NULL},
                                     .sources = b ? 2 : 1,
                                     .idle_ns = 1000000000,
                                     .check_plans = true};
    assert_int_equal(hzp_loop_create(&config, &loop), HZP_OK);
    return loop;
}

static void add_fill(struct hzp_plan *chain, enum hzp_lane_name lane, float *to, float value)
{
    struct hzp_mat y = {to, 16, 64, 64, HZP_F32};
    HZP_PLAN_ADD(chain, fill, lane, .y = y, .value = value);
}

static struct hzp_slice slice_of(const struct hzp_plan *chain, int32_t from, int32_t to)
{
    return (struct hzp_slice){.chain = chain, .from = from, .to = to};
}

/* Two chains are two slices of one step, and continue in the next. */
static void two_chains_in_a_step(void **state)
{
    static float x[1024], y[1024], z[1024];
    struct paper p;
    struct hzp_plan train, other;
    paper_open(&p, "cpu", NULL, 0);
    hzp_plan_init(&train);
    hzp_plan_init(&other);
    train.tenant = other.tenant = HZP_TENANT_TRAIN;
    for (int i = 1; i <= 3; i++)
        add_fill(&train, HZP_LANE_COMPUTE, x, (float)i);
    add_fill(&other, HZP_LANE_COMPUTE, y, 10);
    add_fill(&other, HZP_LANE_COMPUTE, y, 20);
    add_fill(&other, HZP_LANE_COMPUTE, z, 30);
    struct script s = script_open();
    s.slice[0][0] = slice_of(&train, 0, 1);
    s.slice[0][1] = slice_of(&other, 0, 2);
    s.slice[1][0] = slice_of(&other, 2, 3);
    s.slice[2][0] = slice_of(&train, 1, 3);
    struct hzp_loop *loop = open_loop(&p, &s, NULL);
    assert_int_equal(hzp_loop_turn(loop), 1);
    assert_int_equal(s.delivered, 1);
    assert_true(x[1023] == 1 && y[1023] == 20 && z[1023] == 0);
    assert_true(s.outcome[0].ns[HZP_TENANT_TRAIN] > 0);
    assert_int_equal(s.outcome[0].ns[HZP_TENANT_SERVE], 0);
    assert_int_equal(hzp_loop_turn(loop), 1);
    assert_true(x[1023] == 1 && z[1023] == 30);
    assert_int_equal(hzp_loop_turn(loop), 1);
    assert_true(x[1023] == 3);
    assert_int_equal(hzp_loop_turn(loop), 0);
    struct hzp_loop_stats stats;
    hzp_loop_read_stats(loop, &stats);
    assert_int_equal(stats.steps, 3);
    assert_int_equal(stats.train_steps, 3);
    hzp_loop_destroy(loop);
    hzp_plan_fini(&train);
    hzp_plan_fini(&other);
    paper_close(&p);
}

/* Slices of several sources: they run in the sources' order, and the time one source takes is no
   longer offered to the next. */
static void sources_share_the_room(void **state)
{
    static float x[1024], y[1024];
    struct paper p;
    struct hzp_plan first, second;
    paper_open(&p, "cpu", NULL, 0);
    hzp_plan_init(&first);
    hzp_plan_init(&second);
    first.tenant = second.tenant = HZP_TENANT_TRAIN;
    add_fill(&first, HZP_LANE_COMPUTE, x, 5);
    add_fill(&first, HZP_LANE_COMPUTE, y, 6);
    add_fill(&second, HZP_LANE_COMPUTE, x, 7); /* after the first one's */
    struct script a = script_open(), b = script_open();
    a.slice[0][0] = slice_of(&first, 0, 1);
    a.slice[1][0] = slice_of(&first, 1, 2);
    b.slice[0][0] = slice_of(&second, 0, 1);
    struct hzp_loop *loop = open_loop(&p, &a, &b);
    assert_int_equal(hzp_loop_turn(loop), 1);
    assert_true(x[1023] == 7 && y[1023] == 0);
    assert_int_equal(a.room_ns[0], 1000000000);
    assert_true(b.room_ns[0] < a.room_ns[0]);
    hzp_loop_destroy(loop);
    hzp_plan_fini(&first);
    hzp_plan_fini(&second);
    paper_close(&p);
}

/* A source of serving: one decode row in every step. */
struct serving {
    struct hzp_source source;
    const struct hzp_rig *rig;
};

static bool serving_offer(struct hzp_source *source, const struct hzp_step *step,
                          struct hzp_room *room, struct hzp_offer *offer)
{
    struct serving *s = HZP_CONTAINER_OF(source, struct serving, source);
    struct hzp_batch *batch = offer->batch;
    if (!room->rows)
        return false;
    *hzp_batch_add_segment(batch, 0, true) = 0;
    batch->sample[hzp_batch_add_logits(batch, hzp_batch_add_row(batch, 1, 0))] =
        (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = -1};
    room->rows--;
    offer->kv = s->rig->kv;
    return true;
}

static void serving_deliver(struct hzp_source *source, const struct hzp_step *step,
                            const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    assert_int_equal(outcome->status, HZP_OK);
}

/* The loop has counted one step, of one decode row. */
static void check_rows(const struct hzp_loop *loop)
{
    struct hzp_loop_rows rows;
    hzp_loop_read_rows(loop, &rows);
    for (int d = 0; d < HZP_LOOP_ROWS; d++)
        for (int p = 0; p < HZP_LOOP_ROWS; p++) {
            assert_int_equal(rows.steps[d][p], d == 1 && p == 0);
            assert_int_equal(rows.ns[d][p] > 0, d == 1 && p == 0);
        }
}

/* 0, 1, 2-3, 4-7 ... and all above. */
static void rows_have_kinds(void **state)
{
    static const int32_t rows[] = {0, 1, 2, 3, 4, 7, 8, 1023, 1024, 1 << 30};
    static const int kinds[] = {0, 1, 2, 2, 3, 3, 4, 10, 11, 11};
    for (int i = 0; i < HZP_COUNT(rows); i++)
        assert_int_equal(hzp_loop_rows_of(rows[i]), kinds[i]);
}

/* The time that training has left behind serving's source, in a loop's first step: with or without
 * a slice of a source before serving's. */
static uint64_t room_behind_serving(bool early)
{
    static float x[1024], y[1024];
    struct paper p;
    struct hzp_plan first, second;
    struct hzp_loop *loop;
    paper_open(&p, "cpu", NULL, 0);
    hzp_plan_init(&first);
    hzp_plan_init(&second);
    first.tenant = second.tenant = HZP_TENANT_TRAIN;
    for (int i = 0; i < 100; i++)
        add_fill(&first, HZP_LANE_COMPUTE, x, 5);
    add_fill(&second, HZP_LANE_COMPUTE, y, 6);
    struct script a = script_open(), b = script_open();
    struct serving s = {
        .source = {.name = "serving", .offer = serving_offer, .deliver = serving_deliver},
        .rig = p.rig};
    if (early)
        a.slice[0][0] = slice_of(&first, 0, 100);
    else
        a.source.deliver = serving_deliver; /* it offers nothing */
    b.slice[0][0] = slice_of(&second, 0, 1);
    struct hzp_loop_config config = {.model = p.m.model,
                                     .space = p.rig->space,
                                     .batch = p.rig->batch,
                                     .policy = {.train_share = INFINITY, .train_max = 1},
                                     .source = {&a.source, &s.source, &b.source},
                                     .sources = 3,
                                     .idle_ns = 1000000000};
    assert_int_equal(hzp_loop_create(&config, &loop), HZP_OK);
    assert_int_equal(hzp_loop_turn(loop), 1);
    assert_int_equal(a.offered, early);
    assert_int_equal(b.offered, 1);
    check_rows(loop);
    hzp_loop_destroy(loop);
    hzp_plan_fini(&first);
    hzp_plan_fini(&second);
    paper_close(&p);
    return b.room_ns[0];
}

/* Serving's rows set the room anew; what training was offered before them stays subtracted. */
static void serving_keeps_what_was_offered(void **state)
{
    uint64_t all = room_behind_serving(false), left = room_behind_serving(true);
    assert_true(all > 0 && left < all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_chains_in_a_step),
        cmocka_unit_test(sources_share_the_room),
        cmocka_unit_test(serving_keeps_what_was_offered),
        cmocka_unit_test(rows_have_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
