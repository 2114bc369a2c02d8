/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_access.c - the memory accesses and costs that ops declare. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "device/ops.h"

static float memory[4][1024];
static int32_t ids[64];

static struct hzp_mat mat(int which, int32_t rows, int32_t cols, int32_t stride)
{
    return (struct hzp_mat){memory[which], rows, cols, stride, HZP_F32};
}

static bool meet(const struct hzp_access *a, const struct hzp_access *b)
{
    return a->begin < b->end && b->begin < a->end;
}

static const struct hzp_access *writer(const struct hzp_access *list, int count)
{
    const struct hzp_access *found = NULL;
    for (int i = 0; i < count; i++)
        if (list[i].writes) {
            assert_null(found);
            found = &list[i];
        }
    assert_non_null(found);
    return found;
}

/* Neighbouring rows are disjoint ranges, with and without gaps; the same rows are not. */
static void test_rows_do_not_meet(void **state)
{
    for (int32_t stride = 8; stride <= 11; stride++) {
        struct hzp_rmsnorm_args a = {
            .x = mat(0, 10, 8, stride), .w = mat(1, 1, 8, 8), .y = mat(2, 10, 8, stride)};
        struct hzp_access upper[HZP_ACCESS_MAX], lower[HZP_ACCESS_MAX], both[HZP_ACCESS_MAX];
        struct hzp_rmsnorm_args u = a, l = a;
        u.x = hzp_mat_rows(a.x, 0, 4);
        u.y = hzp_mat_rows(a.y, 0, 4);
        l.x = hzp_mat_rows(a.x, 4, 6);
        l.y = hzp_mat_rows(a.y, 4, 6);
        int us = hzp_op_access(HZP_OP_rmsnorm, &u, upper);
        int ls = hzp_op_access(HZP_OP_rmsnorm, &l, lower);
        int bs = hzp_op_access(HZP_OP_rmsnorm, &a, both);
        assert_int_equal(us, 3);
        assert_false(meet(writer(upper, us), writer(lower, ls)));
        assert_true(meet(writer(both, bs), writer(lower, ls)));
        assert_int_equal(writer(both, bs)->begin, (uintptr_t)memory[2]);
        assert_int_equal(writer(both, bs)->end - writer(both, bs)->begin,
                         (size_t)(9 * stride + 8) * sizeof(float));
    }
}

static void test_absent_and_empty_are_left_out(void **state)
{
    struct hzp_access list[HZP_ACCESS_MAX];
    struct hzp_xent_args a = {.x = mat(0, 4, 8, 8), .target = ids, .loss = memory[1]};
    assert_int_equal(hzp_op_access(HZP_OP_xent, &a, list), 3);
    a.dx = mat(2, 4, 8, 8);
    assert_int_equal(hzp_op_access(HZP_OP_xent, &a, list), 4);
    a.weight = memory[3];
    assert_int_equal(hzp_op_access(HZP_OP_xent, &a, list), 5);
    a.x.rows = a.dx.rows = 0;
    assert_int_equal(hzp_op_access(HZP_OP_xent, &a, list), 0);
}

/* For every op: an operand that it adds to counts as written. */
static void test_accumulation_is_a_write(void **state)
{
    struct hzp_access list[HZP_ACCESS_MAX];
    struct hzp_embed_bwd_args e = {mat(0, 8, 4, 4), mat(1, 3, 4, 4), ids, 0};
    int count = hzp_op_access(HZP_OP_embed_bwd, &e, list);
    assert_int_equal(writer(list, count)->begin, (uintptr_t)memory[0]);

    double sum;
    struct hzp_sumsq_args s = {mat(0, 8, 4, 4), &sum};
    count = hzp_op_access(HZP_OP_sumsq, &s, list);
    assert_int_equal(writer(list, count)->begin, (uintptr_t)&sum);
    assert_int_equal(writer(list, count)->end - writer(list, count)->begin, sizeof(sum));
}

static void test_pages(void **state)
{
    struct hzp_access list[HZP_ACCESS_MAX];
    struct hzp_rope_args a = {.x = mat(0, 2, 12, 12),
                              .y = mat(0, 2, 12, 12),
                              .table = mat(3, 4, 2, 2),
                              .pos = ids,
                              .kv = {memory[1], memory[2], 3, 4, HZP_F32, NULL, NULL},
                              .slot = ids,
                              .heads = {2, 2, 2}};
    int count = hzp_op_access(HZP_OP_rope, &a, list), written = 0;
    for (int i = 0; i < count; i++)
        if (list[i].append) {
            written += list[i].writes;
            assert_int_equal(list[i].end - list[i].begin, 3 * 4 * 2 * 2 * sizeof(float));
        }
    assert_int_equal(written, 2);
    a.kv.k = a.kv.v = NULL; /* training's */
    count = hzp_op_access(HZP_OP_rope, &a, list);
    for (int i = 0; i < count; i++)
        assert_null(list[i].append);
}

static void test_cost(void **state)
{
    struct hzp_matmul_args m = {
        .a = mat(0, 3, 5, 8), .b = mat(1, 7, 5, 5), .c = mat(2, 3, 7, 7), .trans_b = 1};
    struct hzp_cost cost = hzp_op_cost(HZP_OP_matmul, &m);
    assert_int_equal(cost.flops, 2 * 3 * 5 * 7);
    assert_int_equal(cost.bytes, 4 * (3 * 5 + 7 * 5 + 3 * 7));
    m.accumulate = 1;
    assert_int_equal(hzp_op_cost(HZP_OP_matmul, &m).bytes, 4 * (3 * 5 + 7 * 5 + 2 * 3 * 7));
    m.from = mat(3, 3, 7, 7); /* read instead of c: no more bytes */
    assert_int_equal(hzp_op_cost(HZP_OP_matmul, &m).bytes, 4 * (3 * 5 + 7 * 5 + 2 * 3 * 7));
    struct hzp_access list[HZP_ACCESS_MAX];
    int operands = hzp_op_access(HZP_OP_matmul, &m, list);
    assert_int_equal(operands, 4);
    assert_true(list[3].begin == (uintptr_t)memory[3]);
    assert_ptr_equal(writer(list, operands), &list[2]);

    /* of a table only the rows that are picked count */
    struct hzp_embed_args e = {mat(0, 100, 8, 8), mat(1, 2, 8, 8), ids, 0};
    assert_int_equal(hzp_op_cost(HZP_OP_embed, &e).bytes, 2 * (8 * 4 * 2 + 4));

    /* decode reads each segment's keys and values once */
    struct hzp_attn_paged_args d = {.qkv = mat(0, 2, 16, 16),
                                    .out = mat(1, 2, 8, 8),
                                    .kv = {memory[2], memory[3], 10, 16, HZP_F32, NULL, NULL},
                                    .segs = {ids, ids, 2, 1, 50},
                                    .page = ids,
                                    .page_stride = 4,
                                    .heads = {2, 1, 4}};
    cost = hzp_op_cost(HZP_OP_attn_decode, &d);
    assert_int_equal(cost.bytes, 2 * 50 * 2 * 4 * 4 + 2 * (2 * 8 * 4));
    assert_int_equal(cost.flops, 4 * 2 * 50 * 2 * 4);

    /* of pages only the slots count, of the table only one row each */
    struct hzp_rope_args r = {.x = mat(0, 2, 12, 12),
                              .y = mat(0, 2, 12, 12),
                              .table = mat(3, 4, 2, 2),
                              .pos = ids,
                              .heads = {2, 2, 2}};
    uint64_t bare = hzp_op_cost(HZP_OP_rope, &r).bytes;
    assert_int_equal(bare, 2 * (2 * 12 * 4 + 2 * 4 + 4));
    r.kv = d.kv;
    r.slot = ids;
    assert_int_equal(hzp_op_cost(HZP_OP_rope, &r).bytes, bare + 2 * (2 * 2 * 2 * 4 + 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_do_not_meet),
        cmocka_unit_test(test_absent_and_empty_are_left_out),
        cmocka_unit_test(test_accumulation_is_a_write),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
