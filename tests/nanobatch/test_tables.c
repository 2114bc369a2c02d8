/* SPDX-License-Identifier: Apache-2.0 */
/* Tables: keys and sizes of ops, interpolation by rows, context and cores, ops never measured,
 * pairs in both orders. */
#include "nanobatch/time/tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct hzp_op_key product = {HZP_OP_matmul, 2, 0, 0, 128, 64};

static void near(double is, double should)
{
    if (!(is > should * 0.999999 && is < should * 1.000001)) {
        print_error("%.9g is not %.9g\n", is, should);
        fail();
    }
}

static void set(struct hzp_tables *t, const struct hzp_op_key *key, double x, double y,
                int32_t share, double ns)
{
    struct hzp_op_size size = {x, y, 100 * x};
    hzp_tables_set(t, key, &size, share, ns);
}

static double ask(const struct hzp_tables *t, const struct hzp_op_key *key, double x, double y,
                  int32_t cores)
{
    struct hzp_op_size size = {x, y, 100 * x};
    return hzp_tables_ns(t, key, &size, cores);
}

static void open_tables(struct hzp_tables *t)
{
    hzp_tables_init(t);
    t->threads = 4;
    t->shares = 3;
    t->cores[0] = 1;
    t->cores[1] = 2;
    t->cores[2] = 4;
}

static void between_rows(void **state)
{
    struct hzp_tables t;
    open_tables(&t);
    set(&t, &product, 30, 0, 2, 400);
    set(&t, &product, 10, 0, 2, 100);
    set(&t, &product, 20, 0, 2, 300);
    near(ask(&t, &product, 10, 0, 4), 100);
    near(ask(&t, &product, 15, 0, 4), 200);
    near(ask(&t, &product, 25, 0, 4), 350);
    near(ask(&t, &product, 50, 0, 4), 600); /* extrapolates from the last two */
    near(ask(&t, &product, 9, 0, 4), 80);
    near(ask(&t, &product, 1, 0, 4), 25); /* bounded by a quarter of the nearest */
    set(&t, &product, 20, 0, 2, 200);     /* measured a second time */
    near(ask(&t, &product, 15, 0, 4), 150);
    assert_int_equal(t.curves, 1);
    assert_int_equal(t.curve[0].points, 3);
    hzp_tables_fini(&t);
}

static void between_depths(void **state)
{
    struct hzp_op_key attention = {HZP_OP_attn_decode, 0, 0, 0, 4 * 1024 + 2, 16};
    struct hzp_tables t;
    open_tables(&t);
    set(&t, &attention, 4, 100, 2, 1000);
    set(&t, &attention, 4, 300, 2, 3000);
    set(&t, &attention, 8, 100, 2, 2000);
    set(&t, &attention, 8, 300, 2, 6000);
    near(ask(&t, &attention, 4, 200, 4), 2000);
    near(ask(&t, &attention, 6, 200, 4), 3000);
    near(ask(&t, &attention, 6, 400, 4), 6000);
    near(ask(&t, &attention, 4, 200, 4), 2000);
    near(ask(&t, &attention, 4, 300, 4), 3000);
    hzp_tables_fini(&t);
}

static void between_shares(void **state)
{
    struct hzp_tables t;
    open_tables(&t);
    set(&t, &product, 10, 0, 0, 800);
    set(&t, &product, 10, 0, 1, 400);
    set(&t, &product, 10, 0, 2, 200);
    near(ask(&t, &product, 10, 0, 1), 800);
    near(ask(&t, &product, 10, 0, 3), 1 / (0.5 / 400 + 0.5 / 200)); /* speeds are interpolated */
    near(ask(&t, &product, 10, 0, 7), 200);
    t.items_ns = 100;
    t.plans_ns = 110;
    near(ask(&t, &product, 10, 0, 4), 220);
    hzp_tables_fini(&t);
}

static void never_measured(void **state)
{
    struct hzp_op_key other = product, again = product, unknown = {HZP_OP_rope, 0, 0, 0, 64, 0};
    struct hzp_tables t;
    open_tables(&t);
    set(&t, &product, 10, 0, 2, 200);
    other.a = 256;
    struct hzp_op_size twice = {10, 0, 2000}; /* the measured point's work is 1000 */
    near(hzp_tables_ns(&t, &other, &twice, 4), 400);
    again.again = 1;
    near(ask(&t, &again, 10, 0, 4), 200); /* equal to the first reading */
    set(&t, &again, 10, 0, 2, 50);
    near(ask(&t, &again, 10, 0, 4), 50);
    near(ask(&t, &product, 10, 0, 4), 200);
    assert_true(ask(&t, &unknown, 10, 0, 4) > 0); /* an estimate */
    hzp_tables_fini(&t);
}

static void pairs(void **state)
{
    struct hzp_tables t;
    open_tables(&t);
    hzp_tables_set_rate(&t, &(struct hzp_rate){HZP_CLASS_THIN, HZP_CLASS_GRAD, 1, 3, 0.5, 0.8});
    hzp_tables_set_rate(&t, &(struct hzp_rate){HZP_CLASS_THIN, HZP_CLASS_GRAD, 2, 2, 0.6, 0.7});
    near(hzp_tables_rate(&t, HZP_CLASS_THIN, 1, HZP_CLASS_GRAD, 3), 0.5);
    near(hzp_tables_rate(&t, HZP_CLASS_GRAD, 3, HZP_CLASS_THIN, 1), 0.8);
    near(hzp_tables_rate(&t, HZP_CLASS_GRAD, 2, HZP_CLASS_THIN, 2), 0.7);
    near(hzp_tables_rate(&t, HZP_CLASS_ROWS, 2, HZP_CLASS_THIN, 2), 1);
    hzp_tables_set_rate(&t, &(struct hzp_rate){HZP_CLASS_THIN, HZP_CLASS_GRAD, 2, 2, 0.4, 0.3});
    assert_int_equal(t.rates, 2);
    near(hzp_tables_rate(&t, HZP_CLASS_THIN, 2, HZP_CLASS_GRAD, 2), 0.4);
    hzp_tables_fini(&t);
}

static void keys_of_ops(void **state)
{
    float memory[64];
    struct hzp_mat x = {memory, 3, 4, 4, HZP_F32}, w = {memory, 5, 4, 4, HZP_F32};
    struct hzp_mat y = {memory, 3, 5, 5, HZP_F32};
    struct hzp_matmul_args forward = {.a = x, .b = w, .c = y, .trans_b = 1};
    struct hzp_matmul_args gradient = {.a = y, .b = x, .c = w, .trans_a = 1, .accumulate = 1};
    struct hzp_op_key key;
    struct hzp_op_size size;
    hzp_op_describe(HZP_OP_matmul, &forward, &key, &size);
    assert_int_equal(key.a, 5);
    assert_int_equal(key.b, 4);
    assert_int_equal(key.flags, 2);
    assert_true(size.x == 3);
    hzp_op_describe(HZP_OP_matmul, &gradient, &key, &size);
    assert_int_equal(key.a, 5);
    assert_int_equal(key.b, 4);
    assert_int_equal(key.flags, 5);
    assert_true(size.x == 3); /* its rows are the sum's */
    assert_int_equal(hzp_op_class(HZP_OP_matmul, &forward), HZP_CLASS_THIN);
    assert_int_equal(hzp_op_class(HZP_OP_matmul, &gradient), HZP_CLASS_GRAD);
    struct hzp_attn_paged_args attention = {
        .qkv = x, .segs = {.rows_max = 3, .ctx_max = 10}, .heads = {4, 2, 16}};
    hzp_op_describe(HZP_OP_attn_prefill, &attention, &key, &size);
    assert_true(size.y == 9); /* seven before, two of its own on average */
    /* Ops without a case of their own: rows of what they write, elements of parameters. */
    struct hzp_mat table = {memory, 9, 4, 4, HZP_BF16};
    struct hzp_embed_args embed = {.table = table, .y = x};
    hzp_op_describe(HZP_OP_embed, &embed, &key, &size);
    assert_true(size.x == 3 && key.a == 4 && key.type == HZP_F32 + 8 * HZP_BF16);
    struct hzp_sumsq_args sumsq = {.x = x};
    hzp_op_describe(HZP_OP_sumsq, &sumsq, &key, &size);
    assert_true(size.x == 12 && key.a == 0 && key.type == 9 * HZP_F32);
    struct hzp_sample_args sample = {.logits = y};
    hzp_op_describe(HZP_OP_sample, &sample, &key, &size);
    assert_true(size.x == 3 && key.a == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(between_rows),   cmocka_unit_test(between_depths),
        cmocka_unit_test(between_shares), cmocka_unit_test(never_measured),
        cmocka_unit_test(pairs),          cmocka_unit_test(keys_of_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
