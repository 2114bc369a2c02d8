/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of ranks that compute each product together: shapes with a lane for the network pass the
 * checker, and their exchanges run beside the products of other nano-batches. */
#include "nanobatch/search/events.h"
#include "paper.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 64, UNIT = 100 };

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
            }
    paper_close(&p);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_overlap),
        cmocka_unit_test(odd_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
