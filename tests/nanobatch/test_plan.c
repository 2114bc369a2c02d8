/* SPDX-License-Identifier: Apache-2.0 */
/* The race checker: random plans whose waits are computed from the declared accesses pass; with
 * any needed wait removed they fail; chains cut in two keep their inner waits. */
#include "nanobatch/model/product.h"
#include "nanobatch/plan/plan.h"

#include "base/err.h"
#include "tests/links/links.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BUFFERS = 6, COLS = 16, ITEMS_MAX = 24 };

static float memory[BUFFERS][COLS];

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static struct hzp_mat buffer(int i)
{
    return (struct hzp_mat){memory[i], 1, COLS, COLS, HZP_F32};
}

/* An op that reads one buffer and writes another, on a random lane. */
static void add_copy(struct hzp_plan *plan, uint32_t *seed)
{
    int from = (int)(next(seed) % BUFFERS), to = (int)(next(seed) % BUFFERS);
    if (from == to)
        to = (to + 1) % BUFFERS;
    HZP_PLAN_ADD(plan, cast, (enum hzp_lane_name)(next(seed) % HZP_LANE_COUNT), .x = buffer(from),
                 .y = buffer(to));
}

static bool conflict(const struct hzp_plan *plan, int32_t a, int32_t b)
{
    struct hzp_access x[HZP_ACCESS_MAX], y[HZP_ACCESS_MAX];
    int xs = hzp_op_access(plan->item[a].op, plan->item[a].args, x);
    int ys = hzp_op_access(plan->item[b].op, plan->item[b].args, y);
    for (int i = 0; i < xs; i++)
        for (int k = 0; k < ys; k++)
            if ((x[i].writes || y[k].writes) && x[i].begin < y[k].end && y[k].begin < x[i].end)
                return true;
    return false;
}

/* Appends n random items.  Each waits for every conflicting earlier item, except that the item
   at `at` does not wait for `omit`. */
static void build(struct hzp_plan *plan, uint32_t seed, int32_t n, int32_t at, int32_t omit)
{
    hzp_plan_clear(plan);
    for (int32_t i = 0; i < n; i++) {
        add_copy(plan, &seed);
        for (int32_t k = 0; k < i; k++)
            if (conflict(plan, k, i) && !(i == at && k == omit))
                hzp_plan_wait(plan, k);
    }
}

/* Whether k is ordered before i by something other than their own direct wait: breadth first. */
static bool ordered_without(const struct hzp_plan *plan, int32_t k, int32_t i)
{
    bool reached[ITEMS_MAX] = {false};
    reached[i] = true;
    for (int32_t at = i; at >= k; at--) {
        if (!reached[at])
            continue;
        if (at == k)
            return true;
        const struct hzp_item *item = &plan->item[at];
        for (int32_t w = 0; w < item->waits; w++)
            if (!(at == i && plan->wait[item->wait0 + w] == k))
                reached[plan->wait[item->wait0 + w]] = true;
        for (int32_t before = at - 1; before >= 0; before--)
            if (plan->item[before].lane == item->lane) {
                reached[before] = true;
                break;
            }
    }
    return false;
}

static void random_plans(void **state)
{
    struct hzp_plan plan;
    int planted = 0;
    hzp_plan_init(&plan);
    for (uint32_t seed = 1; seed <= 3000; seed++) {
        struct hzp_err_text text;
        build(&plan, seed, ITEMS_MAX, -1, -1);
        assert_int_equal(hzp_plan_check(&plan, &text), HZP_OK);
        /* Removes one wait that nothing else implies: the checker must name a race. */
        uint32_t pick = seed * 7;
        int32_t i = 1 + (int32_t)(next(&pick) % (ITEMS_MAX - 1));
        if (plan.item[i].waits == 0)
            continue;
        int32_t k =
            plan.wait[plan.item[i].wait0 + (int32_t)(next(&pick) % (uint32_t)plan.item[i].waits)];
        if (ordered_without(&plan, k, i))
            continue;
        build(&plan, seed, ITEMS_MAX, i, k);
        assert_int_equal(hzp_plan_check(&plan, &text), HZP_EINVAL);
        assert_non_null(strstr(text.text, "race"));
        planted++;
    }
    assert_true(planted > 500);
    hzp_plan_fini(&plan);
}

static void one_lane_needs_no_waits(void **state)
{
    struct hzp_plan plan;
    hzp_plan_init(&plan);
    for (int i = 0; i < 10; i++)
        HZP_PLAN_ADD(&plan, cast, HZP_LANE_COMPUTE, .x = buffer(i % 2), .y = buffer(1 - i % 2));
    assert_int_equal(hzp_plan_check(&plan, NULL), HZP_OK);
    plan.item[5].lane = HZP_LANE_MEMORY;
    assert_int_equal(hzp_plan_check(&plan, NULL), HZP_EINVAL);
    hzp_plan_fini(&plan);
}

static void taking_a_range(void **state)
{
    struct hzp_plan chain, plan;
    hzp_plan_init(&chain);
    hzp_plan_init(&plan);
    build(&chain, 11, ITEMS_MAX, -1, -1);
    for (int32_t from = 0; from < ITEMS_MAX; from += 5) {
        int32_t to = HZP_MIN(from + 5, ITEMS_MAX);
        hzp_plan_clear(&plan);
        HZP_PLAN_ADD(&plan, fill, HZP_LANE_COPY, .y = {0});
        hzp_plan_take(&plan, &chain, from, to);
        assert_int_equal(plan.items, 1 + to - from);
        assert_int_equal(hzp_plan_check(&plan, NULL), HZP_OK);
        for (int32_t i = 1; i < plan.items; i++)
            assert_ptr_equal(plan.item[i].args, chain.item[from + i - 1].args);
    }
    hzp_plan_fini(&chain);
    hzp_plan_fini(&plan);
}

/* Only the waits that connect one tenant's items of two plans order them. */
static void two_plans(void **state)
{
    struct hzp_plan older, newer, both, loose;
    int planted = 0;
    hzp_plan_init(&older);
    hzp_plan_init(&newer);
    hzp_plan_init(&both);
    hzp_plan_init(&loose);
    for (uint32_t seed = 1; seed <= 1000; seed++) {
        struct hzp_err_text text;
        build(&older, seed, ITEMS_MAX / 2, -1, -1);
        build(&newer, seed + 5000, ITEMS_MAX / 2, -1, -1);
        hzp_plan_clear(&both);
        hzp_plan_join(&both, &older, &newer);
        assert_int_equal(both.items, ITEMS_MAX / 2 * 2);
        assert_int_equal(hzp_plan_check(&both, &text), HZP_OK);
        /* With one of those waits removed the checker names a race, unless other waits imply it. */
        for (int32_t i = ITEMS_MAX / 2; i < both.items; i++)
            for (int32_t k = 0; k < both.item[i].waits; k++) {
                int32_t *wait = &both.wait[both.item[i].wait0 + k], was = *wait;
                if (was >= ITEMS_MAX / 2 || !conflict(&both, was, i) ||
                    ordered_without(&both, was, i))
                    continue;
                *wait = both.item[i].waits > 1 ? both.wait[both.item[i].wait0 + !k] : 0;
                if (!ordered_without(&both, was, i)) {
                    assert_int_equal(hzp_plan_check(&both, &text), HZP_EINVAL);
                    planted++;
                }
                *wait = was;
            }
        /* Plans of two tenants are not connected: an access that they share is a race. */
        for (int32_t i = 0; i < newer.items; i++)
            newer.item[i].tenants = 1 << HZP_TENANT_TRAIN;
        hzp_plan_clear(&loose);
        hzp_plan_join(&loose, &older, &newer);
        planted += hzp_plan_check(&loose, &text) == HZP_EINVAL;
    }
    assert_true(planted > 1000);
    hzp_plan_fini(&older);
    hzp_plan_fini(&newer);
    hzp_plan_fini(&both);
    hzp_plan_fini(&loose);
}

/* Two transfers in two parts each, and a cast between the begins and the ends: items 0 to 4. */
static void begin_and_end(struct hzp_plan *plan, struct hzp_link *link, int reads, int writes,
                          bool in_order)
{
    hzp_plan_clear(plan);
    for (int i = 0; i < 2; i++)
        HZP_PLAN_ADD(plan, collective, HZP_LANE_COMPUTE, .link = link, .recv = buffer(i),
                     .kind = HZP_ALL_REDUCE, .part = HZP_COLLECTIVE_BEGIN);
    HZP_PLAN_ADD(plan, cast, HZP_LANE_COMPUTE, .x = buffer(reads), .y = buffer(writes));
    for (int i = 0; i < 2; i++)
        HZP_PLAN_ADD(plan, collective, HZP_LANE_COMPUTE, .link = link,
                     .recv = buffer(in_order ? i : 1 - i), .kind = HZP_ALL_REDUCE,
                     .part = HZP_COLLECTIVE_END);
    HZP_PLAN_ADD(plan, cast, HZP_LANE_COMPUTE, .x = buffer(0), .y = buffer(1));
}

/* What a transfer moves is not touched until it ends, also in slices that have only one end. */
static void transfers_in_two_parts(void **state)
{
    struct hzp_link *link[2];
    struct hzp_plan plan, slice;
    struct hzp_err_text text;
    hzp_plan_init(&plan);
    hzp_plan_init(&slice);
    assert_int_equal(hzp_link_open_local(2, 0, 1, link, NULL), HZP_OK);
    begin_and_end(&plan, link[0], 2, 3, true);
    assert_int_equal(hzp_plan_check(&plan, &text), HZP_OK);
    for (int32_t from = 0; from < plan.items; from++)
        for (int32_t to = from; to <= plan.items; to++) {
            hzp_plan_clear(&slice);
            hzp_plan_take(&slice, &plan, from, to);
            assert_int_equal(hzp_plan_check(&slice, &text), HZP_OK);
        }
    for (int i = 0; i < 4; i++) { /* the cast reads or writes one of the two */
        begin_and_end(&plan, link[0], i < 2 ? i : 2, i < 2 ? 3 : i - 2, true);
        for (int32_t from = 0; from <= 2; from++)
            for (int32_t to = 3; to <= plan.items; to++) {
                bool seen = from <= i % 2 || to > 3 + i % 2;
                hzp_plan_clear(&slice);
                hzp_plan_take(&slice, &plan, from, to);
                assert_int_equal(hzp_plan_check(&slice, &text), seen ? HZP_EINVAL : HZP_OK);
                assert_true(!seen || strstr(text.text, "(cast) touches"));
            }
    }
    begin_and_end(&plan, link[0], 2, 3, false);
    assert_int_equal(hzp_plan_check(&plan, &text), HZP_EINVAL);
    assert_non_null(strstr(text.text, "before"));
    hzp_plan_fini(&plan);
    hzp_plan_fini(&slice);
    hzp_link_close(link[0]);
    hzp_link_close(link[1]);
}

/* c = a b by the product's own arguments, as one piece of a plan has them. */
static void multiply(const struct hzp_matmul_args *m)
{
    const float *a = m->a.ptr, *b = m->b.ptr;
    float *c = m->c.ptr;
    for (int32_t i = 0; i < m->c.rows; i++)
        for (int32_t j = 0; j < m->c.cols; j++) {
            float sum = m->accumulate ? c[i * m->c.stride + j] : 0;
            for (int32_t k = 0; k < m->a.cols; k++)
                sum += a[i * m->a.stride + k] * b[k * m->b.stride + j];
            c[i * m->c.stride + j] = sum;
        }
}

/* A product of few rows and columns, and of sums so long that 64 rows take more than the quantum,
 * is cut along its sums: no piece is much longer, and together they are the product. */
static void long_sums_are_cut(void **state)
{
    (void)state;
    enum { ROWS = 128, TERMS = 9000, COLUMNS = 4 };
    const uint64_t quantum = 2000000;
    float *a = hzp_xcalloc((size_t)ROWS * TERMS, sizeof(float));
    float *b = hzp_xcalloc((size_t)TERMS * COLUMNS, sizeof(float));
    float c[ROWS * COLUMNS];
    uint32_t seed = 5;
    struct hzp_plan plan;
    for (int32_t i = 0; i < ROWS * TERMS; i++) /* small integers: any order has the same sum */
        a[i] = (float)(next(&seed) % 7) - 3;
    for (int32_t i = 0; i < TERMS * COLUMNS; i++)
        b[i] = (float)(next(&seed) % 5) - 2;
    memset(c, 0x7f, sizeof(c)); /* is not added to */
    struct hzp_matmul_args all = {.a = {a, ROWS, TERMS, TERMS, HZP_F32},
                                  .b = {b, TERMS, COLUMNS, COLUMNS, HZP_F32},
                                  .c = {c, ROWS, COLUMNS, COLUMNS, HZP_F32}};
    hzp_plan_init(&plan);
    hzp_plan_add_matmul(&plan, quantum, &all);
    assert_int_equal(plan.items, 5); /* four of 2048 terms, one of the rest */
    for (int32_t i = 0; i < plan.items; i++) {
        assert_true(hzp_op_cost(HZP_OP_matmul, plan.item[i].args).flops < 2 * quantum);
        multiply(plan.item[i].args);
    }
    for (int32_t i = 0; i < ROWS; i++)
        for (int32_t j = 0; j < COLUMNS; j++) {
            float sum = 0;
            for (int32_t k = 0; k < TERMS; k++)
                sum += a[i * TERMS + k] * b[k * COLUMNS + j];
            assert_true(c[i * COLUMNS + j] == sum);
        }
    all.c.type = HZP_BF16; /* would be rounded between the pieces */
    hzp_plan_clear(&plan);
    hzp_plan_add_matmul(&plan, quantum, &all);
    for (int32_t i = 0; i < plan.items; i++)
        assert_int_equal(((const struct hzp_matmul_args *)plan.item[i].args)->a.cols, TERMS);
    hzp_plan_fini(&plan);
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans),           cmocka_unit_test(one_lane_needs_no_waits),
        cmocka_unit_test(taking_a_range),         cmocka_unit_test(two_plans),
        cmocka_unit_test(transfers_in_two_parts), cmocka_unit_test(long_sums_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
