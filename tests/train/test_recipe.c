/* SPDX-License-Identifier: Apache-2.0 */
#include "train/conductor/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static struct hzp_recipe recipe(void)
{
    return (struct hzp_recipe){
        .lr = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .decay = 0.1f,
        .clip = 1,
        .schedule = HZP_LR_CONSTANT,
        .warmup_steps = 10,
        .total_steps = 110,
        .lr_floor = 0.1f,
        .update_tokens = 64,
        .micro_rows = 32,
        .publish_every = 1,
        .moment_type = HZP_F32,
    };
}

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-6 * fabs(b) + 1e-12)
        fail_msg("%.9g is not %.9g", a, b);
}

static void test_warmup_then_constant(void **state)
{
    struct hzp_recipe r = recipe();
    assert_near((double)hzp_recipe_lr(&r, 1), 1e-4);
    assert_near((double)hzp_recipe_lr(&r, 5), 5e-4);
    assert_near((double)hzp_recipe_lr(&r, 10), 1e-3);
    assert_near((double)hzp_recipe_lr(&r, 1000000), 1e-3);
    r.warmup_steps = 0;
    assert_near((double)hzp_recipe_lr(&r, 1), 1e-3);
}

static void test_cosine(void **state)
{
    struct hzp_recipe r = recipe();
    r.schedule = HZP_LR_COSINE;
    assert_near((double)hzp_recipe_lr(&r, 10), 1e-3);
    assert_near((double)hzp_recipe_lr(&r, 60), 0.55e-3); /* halfway: between lr and lr / 10 */
    assert_near((double)hzp_recipe_lr(&r, 110), 1e-4);
    assert_near((double)hzp_recipe_lr(&r, 999), 1e-4);
    for (int64_t t = 11; t <= 110; t++)
        assert_true(hzp_recipe_lr(&r, t) < hzp_recipe_lr(&r, t - 1));
    r.total_steps = 4; /* shorter than the warm-up */
    assert_near((double)hzp_recipe_lr(&r, 4), 4e-4);
    assert_near((double)hzp_recipe_lr(&r, 11), 1e-4);
}

static void test_check(void **state)
{
    struct hzp_err_text text;
    struct hzp_recipe r = recipe();
    assert_int_equal(hzp_recipe_check(&r, &text), HZP_OK);
    r.lr = NAN;
    assert_int_equal(hzp_recipe_check(&r, &text), HZP_EINVAL);
    assert_string_equal(text.param, "lr");
    r = recipe();
    r.micro_rows = 0;
    assert_int_equal(hzp_recipe_check(&r, &text), HZP_EINVAL);
    assert_string_equal(text.param, "micro_rows");
    r = recipe();
    r.schedule = HZP_LR_COSINE;
    r.total_steps = 0;
    assert_int_equal(hzp_recipe_check(&r, &text), HZP_EINVAL);
}

static void test_divisor(void **state)
{
    struct hzp_err_text text;
    struct hzp_recipe r = recipe();
    static const double want[] = {12.5, 6, 2, 40, 1};
    r.divide_by = 40;
    for (int i = 0; i < HZP_COUNT(want); i++) {
        r.divide = (enum hzp_divide)i;
        assert_int_equal(hzp_recipe_check(&r, &text), HZP_OK);
        assert_near(hzp_recipe_divisor(&r, 12.5, 6, 2), want[i]);
    }
    r.divide = HZP_DIVIDE_CONSTANT;
    r.divide_by = 0;
    assert_int_equal(hzp_recipe_check(&r, &text), HZP_EINVAL);
    assert_string_equal(text.param, "divide");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup_then_constant),
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_divisor),
    };
    return cmocka_run_group_tests_name("recipe", tests, NULL, NULL);
}
