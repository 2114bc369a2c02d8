/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of ranks that compute each product together: shapes with a lane for the network pass the
 * checker, and their exchanges run beside the products of other nano-batches. */
#include "nanobatch/search/simulate.h"
#include "paper.h"
#include "tests/serve/seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 64, DECODES = 16, UNIT = 100 };

static double undisturbed(void *ctx, int32_t i, const int32_t *others, int count)
{
    return 1;
}

/* How long the plan takes where each product and each exchange takes a unit, and everything else
 * next to nothing; *ret_all: one after another. */
static double duration(const struct hzp_plan *plan, double *ret_all)
{
    size_t n = (size_t)plan->items;
    struct hzp_task *task = calloc(n, sizeof(*task));
    double *begin = calloc(n, sizeof(*begin)), *end = calloc(n, sizeof(*end));
    int32_t *order = calloc(n, sizeof(*order));
    double busy[HZP_LANE_COUNT], last = 0;
    *ret_all = 0;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        bool counts = item->op == HZP_OP_matmul || item->op == HZP_OP_collective;
        task[i] = (struct hzp_task){.alone_ns = counts ? UNIT : 0.01,
                                    .wait0 = item->wait0,
                                    .waits = item->waits,
                                    .lane = item->lane};
        *ret_all += task[i].alone_ns;
    }
    struct hzp_events events = {
        .task = task, .wait = plan->wait, .tasks = plan->items, .rate = undisturbed};
    hzp_events_run(&events, begin, end, order, busy);
    for (int32_t i = 0; i < plan->items; i++)
        last = HZP_MAX(last, end[i]);
    free(task);
    free(begin);
    free(end);
    free(order);
    return last;
}

static double overlapped(struct paper *p, const struct hzp_plan_shape *shape, int32_t rows)
{
    struct hzp_plan plan;
    struct hzp_err_text text = {0};
    double all;
    hzp_plan_init(&plan);
    assert_int_equal(hzp_rig_serve(p->rig, 0, 0, rows, 0), HZP_OK);
    hzp_rig_build(p->rig, shape, 0, 0, &plan);
    if (hzp_plan_check(&plan, &text) < 0)
        fail_msg("%s", text.text);
    double took = duration(&plan, &all);
    hzp_plan_fini(&plan);
    return took / all;
}

/* A layer has 4 products and 2 exchanges of all rows, or 4 where they are divided. */
static void exchanges_overlap(void **state)
{
    struct paper p;
    paper_open_group(&p, "sim", "issue_ns=0");
    for (int reduce = 0; reduce < HZP_REDUCE_COUNT; reduce++)
        for (int nanos = 2; nanos <= 4; nanos++) {
            struct hzp_plan_shape shape = {.nanos = nanos,
                                           .weight = {1, 1, 1, 1},
                                           .order = HZP_ORDER_LAYERS,
                                           .network_lane = HZP_LANE_NETWORK};
            memset(shape.reduce, reduce, sizeof(shape.reduce));
            double beside = overlapped(&p, &shape, ROWS);
            shape.network_lane = HZP_LANE_COMPUTE;
            assert_true(overlapped(&p, &shape, ROWS) > 0.999);
            if (beside > (reduce == HZP_REDUCE_ALL ? 0.75 : 0.6))
                fail_msg("%d nano-batches, reduced in way %d: %.2f of all", nanos, reduce, beside);
        }
    paper_close(&p);
}

/* Whether item i can begin only behind item earlier: by lanes and waits. */
static bool behind(const struct hzp_plan *plan, int32_t i, int32_t earlier)
{
    bool *after = calloc((size_t)plan->items, sizeof(*after));
    int32_t last[HZP_LANE_COUNT];
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        last[l] = -1;
    for (int32_t k = 0; k <= i; k++) {
        const struct hzp_item *item = &plan->item[k];
        after[k] = k == earlier || (last[item->lane] >= 0 && after[last[item->lane]]);
        for (int32_t w = 0; w < item->waits; w++)
            after[k] |= after[plan->wait[item->wait0 + w]];
        last[item->lane] = k;
    }
    bool found = after[i];
    free(after);
    return found;
}

/* The items of a layer that are of this op, in issue order.  Returns how many; ret [8]. */
static int find(const struct hzp_plan *plan, enum hzp_op op, int layer, int32_t ret[8])
{
    int found = 0;
    for (int32_t i = 0; i < plan->items; i++)
        if (plan->item[i].op == op && plan->item[i].layer == layer) {
            assert_true(found < 8);
            ret[found++] = i;
        }
    return found;
}

/* Stages with cuts of their own: each has as many parts as the shape says, and they depend on each
 * other where their rows intersect. */
static void own_cuts(void **state)
{
    struct paper p;
    struct hzp_plan plan;
    struct hzp_err_text text = {0};
    int32_t rope[8], attn[8], sum[8];
    /* Attention on a lane of each part, so that only needs order it. */
    struct hzp_plan_shape shape = {
        .nanos = 4,
        .weight = {1, 1, 1, 1},
        .order = HZP_ORDER_LAYERS,
        .joined = {[HZP_STAGE_REST] = 5, [HZP_STAGE_EXCHANGE] = 7},
        .lane = {{[HZP_KIND_DECODE] = HZP_LANE_MEMORY}, {[HZP_KIND_DECODE] = HZP_LANE_COPY}},
        .network_lane = HZP_LANE_NETWORK};
    shape.cores[0][HZP_KIND_DECODE] = 3;
    shape.cores[2][HZP_KIND_PRODUCT] = 7; /* of nano-batches 2 and 3 where they are joined */
    shape.lane[2][HZP_KIND_DECODE] = HZP_LANE_TRAIN;
    shape.lane[3][HZP_KIND_DECODE] = HZP_LANE_TRAIN;
    paper_open_group(&p, "sim", "issue_ns=0");
    hzp_plan_init(&plan);
    assert_int_equal(hzp_rig_serve(p.rig, DECODES, 16, 0, 0), HZP_OK);
    hzp_rig_build(p.rig, &shape, 0, 0, &plan);
    if (hzp_plan_check(&plan, &text) < 0)
        fail_msg("%s", text.text);
    assert_int_equal(find(&plan, HZP_OP_rope, 0, rope), 4);
    assert_int_equal(find(&plan, HZP_OP_attn_decode, 0, attn), 4);
    assert_int_equal(find(&plan, HZP_OP_collective, 0, sum), 2); /* of O and of Down */
    assert_int_equal(plan.item[sum[0]].rows, DECODES);
    for (int32_t i = 0; i < plan.items; i++) {
        const struct hzp_item *item = &plan.item[i];
        bool own = item->op == HZP_OP_attn_decode && item->row0 == 0;
        bool late = item->op == HZP_OP_matmul && item->layer >= 0 && item->row0 == DECODES / 2;
        assert_int_equal(item->cores, own ? 3 : late ? 7 : 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(behind(&plan, attn[i], rope[i]));
        assert_true(behind(&plan, sum[0], attn[i]));
        for (int k = i + 1; k < 4; k++)
            assert_false(behind(&plan, attn[i], rope[k]));
    }
    int32_t product = attn[1] + 1; /* O of the first two: the next item of its rows */
    while (plan.item[product].op != HZP_OP_matmul || plan.item[product].row0 != 0 ||
           plan.item[product].rows != DECODES / 2)
        product++;
    assert_true(behind(&plan, product, attn[0]) && behind(&plan, product, attn[1]));
    assert_false(behind(&plan, product, attn[2]) || behind(&plan, product, attn[3]));
    hzp_plan_fini(&plan);
    paper_close(&p);
}

/* What a shape cannot join is refused, by name. */
static void impossible_joins(void **state)
{
    struct hzp_err_text text = {0};
    struct hzp_plan_shape shape = {.nanos = 2, .weight = {1, 1}};
    shape.joined[HZP_STAGE_ATTEND] = 1;
    assert_int_equal(hzp_plan_shape_check(&shape, &text), HZP_OK);
    assert_int_equal(hzp_plan_shape_parts(&shape, HZP_STAGE_ATTEND), 1);
    shape.joined[HZP_STAGE_ATTEND] = 2;
    assert_int_equal(hzp_plan_shape_check(&shape, &text), HZP_EINVAL);
    assert_non_null(strstr(text.text, "attention"));
    shape.joined[HZP_STAGE_ATTEND] = 0;
    shape.joined[HZP_STAGE_REST] = 1;
    assert_int_equal(hzp_plan_shape_check(&shape, &text), HZP_OK);
    shape.reduce[0] = shape.reduce[1] = HZP_REDUCE_SCATTERED;
    assert_int_equal(hzp_plan_shape_check(&shape, &text), HZP_EINVAL);
    assert_non_null(strstr(text.text, "nano-batch 0 or 1"));
    shape.joined[HZP_STAGE_QKV] = shape.joined[HZP_STAGE_EXCHANGE] = 1;
    assert_int_equal(hzp_plan_shape_check(&shape, &text), HZP_OK);
    shape.reduce[1] = HZP_REDUCE_ALL;
    assert_int_equal(hzp_plan_shape_check(&shape, &text), HZP_EINVAL);
    shape = hzp_plan_sequential;
    shape.cores[0][HZP_KIND_ROWS] = -1;
    assert_int_equal(hzp_plan_shape_check(&shape, &text), HZP_EINVAL);
}

/* Rows that the ranks cannot divide; fewer rows than nano-batches. */
static void odd_rows(void **state)
{
    struct paper p;
    paper_open_group(&p, "sim", "issue_ns=0");
    for (int32_t rows = 1; rows <= 17; rows++)
        for (int nanos = 1; nanos <= 4; nanos++)
            for (int order = 0; order < HZP_ORDER_COUNT; order++) {
                struct hzp_plan_shape shape = {.nanos = nanos,
                                               .weight = {2, 1, 3, 1},
                                               .order = (uint8_t)order,
                                               .network_lane = HZP_LANE_NETWORK};
                for (int i = 0; i < nanos; i++) /* some of them, others all */
                    shape.reduce[i] = (rows >> i & 1) ? HZP_REDUCE_SCATTERED : HZP_REDUCE_ALL;
                overlapped(&p, &shape, rows);
                for (int joined = 0; joined < 1 << (nanos - 1) && nanos < 4; joined++)
                    for (int k = 0; k < HZP_STAGE_COUNT; k++) {
                        struct hzp_plan_shape with = shape;
                        with.joined[k] = (uint8_t)joined;
                        if (hzp_plan_shape_check(&with, NULL) >= 0)
                            overlapped(&p, &with, rows);
                    }
            }
    paper_close(&p);
}

/* Random shapes: whatever lanes the ops have, the exchanges of a step have one order. */
static void any_lanes(void **state)
{
    struct paper p;
    uint64_t random = 5;
    int possible = 0;
    paper_open_group(&p, "sim", "issue_ns=0");
    for (int n = 0; n < 600; n++) {
        struct hzp_plan_shape s = {.nanos = 1 + (int32_t)seeded(&random, 4)};
        uint32_t lanes = 1 + seeded(&random, HZP_LANE_COUNT);
        for (int i = 0; i < s.nanos; i++) {
            s.weight[i] = 1 + (uint8_t)seeded(&random, 4);
            for (int k = 0; k < HZP_KIND_COUNT; k++)
                s.lane[i][k] = (uint8_t)seeded(&random, lanes);
            s.reduce[i] = (uint8_t)seeded(&random, HZP_REDUCE_COUNT);
        }
        s.order = (uint8_t)seeded(&random, HZP_ORDER_COUNT);
        s.network_lane = (uint8_t)seeded(&random, HZP_LANE_COUNT);
        for (int k = 0; k < HZP_STAGE_COUNT; k++)
            s.joined[k] = seeded(&random, 2) ? (uint8_t)seeded(&random, 1u << (s.nanos - 1)) : 0;
        if (hzp_plan_shape_check(&s, NULL) < 0)
            continue;
        possible++;
        overlapped(&p, &s, 1 + (int32_t)seeded(&random, 17));
    }
    assert_true(possible > 100);
    paper_close(&p);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_lanes),        cmocka_unit_test(exchanges_overlap),
        cmocka_unit_test(odd_rows),         cmocka_unit_test(own_cuts),
        cmocka_unit_test(impossible_joins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
