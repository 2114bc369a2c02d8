/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/test_trainer_fp8.c - training under --quantization fp8: every version that a step
 * can read has e4m3 projections computed from its own weights, and the weights learned are bit
 * for bit those without fp8. */
#include "tests/train/tiny.h"

#include "device/fp8.h"

/* A source that checks the current version before every step. */
struct looker {
    struct hzp_source source;
    struct tiny *t;
    uint64_t versions, last_id;
    int64_t wrong;
};

/* The number of codes that do not match the version's weights. */
static int64_t wrong_codes(struct tiny *t, const struct hzp_version *v)
{
    int64_t wrong = 0;
    for (int32_t l = 0; l < t->fixture.layout.config.layers; l++)
        for (int i = 0; i < HZP_FP8_ROLES; i++) {
            float *scale;
            struct hzp_mat x = hzp_version_mat(t->weights, v, hzp_fp8_role[i], l);
            struct hzp_mat y = hzp_version_fp8(t->weights, v, hzp_fp8_role[i], l, &scale);
            for (int32_t r = 0; r < x.rows; r++) {
                const float *row = (const float *)x.ptr + (size_t)r * (size_t)x.stride;
                const uint8_t *code = (const uint8_t *)y.ptr + (size_t)r * (size_t)y.stride;
                float most = 0;
                for (int32_t c = 0; c < x.cols; c++)
                    most = fmaxf(most, fabsf(row[c]));
                wrong += scale[r] != fmaxf(most / 448, 0x1p-126f);
                for (int32_t c = 0; c < x.cols; c++)
                    wrong += code[c] != hzp_e4m3_from_f32(row[c] / scale[r]);
            }
        }
    return wrong;
}

static bool looker_offer(struct hzp_source *source, const struct hzp_step *step,
                         struct hzp_room *room, struct hzp_offer *offer)
{
    struct looker *k = HZP_CONTAINER_OF(source, struct looker, source);
    struct hzp_version *v = hzp_weights_current(k->t->weights);
    assert_true(v->fp8_made);
    if (v->record.id != k->last_id) {
        k->wrong += wrong_codes(k->t, v);
        k->versions++;
    }
    k->last_id = v->record.id;
    return false;
}

static void looker_deliver(struct hzp_source *source, const struct hzp_step *step,
                           const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    assert_true(outcome->status >= 0);
}

static struct tiny *run(bool fp8, int publish_every, struct looker *looker)
{
    struct tiny_config config = tiny_defaults();
    config.fp8 = fp8;
    config.queue.passes = 4;
    config.max_staleness = 3;
    config.recipe.publish_every = publish_every;
    config.idle_ns = 1; /* an item per step: versions are checked all through the chain */
    *looker = (struct looker){
        .source = {.name = "looker", .offer = looker_offer, .deliver = looker_deliver}};
    if (fp8)
        config.other = &looker->source;
    struct tiny *t = tiny_open(&config);
    looker->t = t;
    tiny_publish(t);
    tiny_push(t, 1, 12);
    tiny_run(t);
    return t;
}

static void test_versions(void **state)
{
    for (int every = 1; every <= 3; every += 2) {
        struct looker looker, none;
        struct tiny *with = run(true, every, &looker), *without = run(false, every, &none);
        assert_true(looker.versions >= 3);
        assert_int_equal(looker.wrong, 0);
        assert_int_equal(with->reports, without->reports);
        assert_true(fixture_units_same(NULL, tiny_units(with), tiny_units(without)));
        /* proves that the check can fail */
        struct hzp_version *v = hzp_weights_current(with->weights);
        float *scale;
        ((uint8_t *)hzp_version_fp8(with->weights, v, HZP_QKV, 0, &scale).ptr)[3] ^= 1;
        assert_int_equal(wrong_codes(with, v), 1);
        tiny_close(with);
        tiny_close(without);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_versions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
