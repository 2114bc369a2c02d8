/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of whole sequences in the trainer: DPO, IPO, GSPO. */
#include "tests/train/tiny.h"
#include "train/checks/evaluate.h"

/* The largest difference of the weights. */
static double distance(struct tiny *x, struct tiny *y)
{
    const struct hzp_units *a = tiny_units(x), *b = tiny_units(y);
    double most = 0;
    for (int32_t u = 0; u < a->layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(a, u);
        const float *p = view.base, *q = hzp_unit_view(b, u).base;
        for (size_t i = 0; i < view.elements; i++)
            most = fmax(most, fabs((double)p[i] - (double)q[i]));
    }
    return most;
}

enum { PAIR = 10, CUT = 5 };
static const int32_t pair_token[PAIR] = {1, 7, 3, 9, 4, HZP_PAIR_CUT, 1, 7, 8, 2};
static const uint8_t pair_learn[PAIR] = {0, 0, 1, 1, 1, 0, 0, 0, 1, 1};

static struct tiny *open_sequences(enum hzp_divide divide)
{
    struct tiny_config config = tiny_defaults();
    config.recipe.clip = 0;
    config.recipe.eps = 1;
    config.recipe.divide = divide;
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    return t;
}

/* An update from samples; of a plain one the tokens of both sequences have these weights. */
static void learn_sequences(struct tiny *t, const struct hzp_row_loss *how, int32_t count,
                            float chosen, float rejected)
{
    const float weight[] = {1, 1, chosen, chosen, chosen, 1, 1, 1, rejected, rejected};
    struct hzp_sample *sample[2];
    int32_t n = how ? 1 : count > CUT ? 2 : 1;
    sample[0] = hzp_sample_create_losses(pair_token, pair_learn, how ? NULL : weight, how,
                                         how ? count : CUT);
    sample[1] = hzp_sample_create_losses(pair_token + CUT + 1, pair_learn + CUT + 1,
                                         weight + CUT + 1, NULL, PAIR - CUT - 1);
    for (int32_t i = 0; i < 2; i++)
        sample[i]->sequence_number = i + 1;
    if (n == 1)
        hzp_sample_destroy(sample[1]);
    assert_int_equal(hzp_sample_queue_reserve(t->queue, n, n == 1 ? sample[0]->count : 9), HZP_OK);
    hzp_sample_queue_push(t->queue, sample, n);
    tiny_run(t);
    assert_int_equal(t->reports, 1);
}

/* What the weights that serve say of the learned tokens. */
static void read_lp(struct tiny *t, float lp[PAIR])
{
    struct hzp_evaluator *e;
    struct hzp_row_loss how[PAIR];
    for (int32_t i = 0; i < PAIR; i++)
        how[i] = (struct hzp_row_loss){.kind = HZP_LOSS_DPO, .inv_temperature = 1, .beta = 0.1f};
    struct hzp_sample *pair = hzp_sample_create_losses(pair_token, pair_learn, NULL, how, PAIR);
    assert_int_equal(hzp_evaluator_create(t->fixture.model, PAIR, false, &e), HZP_OK);
    assert_int_equal(hzp_evaluator_refer(e, hzp_weights_current(t->weights), pair), HZP_OK);
    for (int32_t i = 0; i < PAIR; i++)
        lp[i] = pair->how[i].reference;
    hzp_evaluator_destroy(e);
    hzp_sample_destroy(pair);
}

/* An update by a loss of sequences is one by cross-entropy with the weights that the papers'
 * formulas give, computed here from the log-probabilities; at first, when nothing was learned, the
 * loss of DPO is log 2 to the last bit. */
static void test_sequences(void **state)
{
    static const struct {
        int32_t kind;
        float beta, moved; /* moved: how far the reference, or old, is from lp */
        float advantage;
    } tries[] = {{HZP_LOSS_DPO, 0.1f, 0, 1},
                 {HZP_LOSS_DPO, 0.5f, 0.8f, 1},
                 {HZP_LOSS_IPO, 0.2f, 0.4f, 1},
                 {HZP_LOSS_GSPO, 0, 0, 1.5f},
                 {HZP_LOSS_GSPO, 0, -0.1f, -1.2f}};
    for (int i = 0; i < HZP_COUNT(tries); i++) {
        struct tiny *t = open_sequences(HZP_DIVIDE_WEIGHTS),
                    *plain = open_sequences(HZP_DIVIDE_NONE),
                    *other = open_sequences(HZP_DIVIDE_NONE);
        struct hzp_row_loss how[PAIR];
        float lp[PAIR], beta = tries[i].beta, adv = tries[i].advantage, moved = tries[i].moved;
        bool gspo = tries[i].kind == HZP_LOSS_GSPO, ipo = tries[i].kind == HZP_LOSS_IPO;
        read_lp(t, lp);
        for (int32_t k = 0; k < PAIR; k++)
            how[k] = (struct hzp_row_loss){.kind = tries[i].kind,
                                           .inv_temperature = 1,
                                           .old = lp[k] + moved,
                                           .advantage = k > CUT ? -1 : adv,
                                           .reference = lp[k] + (k > CUT ? 0 : moved),
                                           .low = 0.2f,
                                           .high = 0.2f,
                                           .beta = beta};
        /* the three chosen tokens are `moved` less likely than the reference says */
        float gap = ipo ? -moved : -3 * moved, slope = beta / (1 + expf(beta * gap));
        float off = gap - 1 / (2 * beta), chosen = ipo ? -2 * off / 3 : slope;
        float rejected = ipo ? 2 * off / 2 : -slope;
        if (gspo)
            chosen = expf(-moved) * adv / 3;
        learn_sequences(t, how, gspo ? CUT : PAIR, 0, 0);
        learn_sequences(plain, NULL, gspo ? CUT : PAIR, chosen, rejected);
        learn_sequences(other, NULL, gspo ? CUT : PAIR, 1.05f * chosen, rejected);
        assert_true(distance(t, plain) < 1e-6);
        assert_true(distance(t, other) > 1e-6);
        assert_true(t->report[0].divisor == 1);
        assert_true(t->report[0].learned_tokens == (gspo ? 3 : 5));
        if (!i)
            assert_true(t->report[0].loss == (double)(float)log(2));
        else if (gspo)
            assert_true(fabs(t->report[0].loss + (double)(expf(-moved) * adv)) < 1e-5);
        assert_int_equal(t->report[0].samples, 1);
        assert_int_equal(t->report[0].ratios.rows, gspo ? 3 : 0);
        tiny_close(t);
        tiny_close(plain);
        tiny_close(other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sequences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
