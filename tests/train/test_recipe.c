/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fixture/must.h"
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

/* Five updates of four numbers are those of torch.optim.NAdam (2.x, float64, decoupled decay). */
static void test_nadam(void **state)
{
    static const double expected[5][4] = {
        {0.488935482, -1.23818548, 1.98743548, 0.0105645073},
        {0.478888869, -1.24594528, 1.98016883, 0.0207327054},
        {0.468927439, -1.25494476, 1.97401403, 0.0311230977},
        {0.45877495, -1.26412056, 1.96824149, 0.0418880694},
        {0.448350194, -1.2734702, 1.96262844, 0.0530487525},
    };
    struct hzp_device *dev;
    struct hzp_lane *lane;
    float p[4] = {0.5f, -1.25f, 2, 0}, g[4], m[4] = {0}, v[4] = {0};
    double sumsq = 1, product = 0;
    int64_t done = 0;
    FIXTURE_MUST(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &dev, NULL));
    FIXTURE_MUST(hzp_lane_open(dev, HZP_BOUND_MEMORY, &lane));
    for (int t = 1; t <= 5; t++) {
        const float now[4] = {0.3f * (float)t, -0.2f + 0.15f * (float)t, 0.5f / (float)t,
                              -0.01f * (float)(t * t)};
        struct hzp_adamw_args args = {.from = {p, 1, 4, 4, HZP_F32},
                                      .to = {p, 1, 4, 4, HZP_F32},
                                      .grad = {g, 1, 4, 4, HZP_F32},
                                      .m = {m, 1, 4, 4, HZP_F32},
                                      .v = {v, 1, 4, 4, HZP_F32},
                                      .sumsq = &sumsq,
                                      .grad_scale = 1,
                                      .lr = 0.01f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.95f,
                                      .eps = 1e-8f,
                                      .decay = 0.1f,
                                      .t = t};
        for (int i = 0; i < 4; i++)
            g[i] = now[i];
        if (t == 4) /* as after a restart: the product is computed again */
            product = 0;
        hzp_recipe_nadam(0.9f, t, &product, &done, &args.part_m, &args.part_g);
        FIXTURE_MUST(hzp_op_adamw(lane, &args));
        for (int i = 0; i < 4; i++)
            if (fabs((double)p[i] - expected[t - 1][i]) > 1e-5)
                fail_msg("update %d: %d is %.9g, not %.9g", t, i, (double)p[i], expected[t - 1][i]);
    }
    hzp_lane_close(lane);
    hzp_device_close(dev);
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
        cmocka_unit_test(test_nadam),
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_divisor),
    };
    return cmocka_run_group_tests_name("recipe", tests, NULL, NULL);
}
