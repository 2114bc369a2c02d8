/* SPDX-License-Identifier: Apache-2.0 */
/* tests/nanobatch/test_update.c - the update's chain against its ops issued by hand, one unit at a
 * time, on a layout whose layers differ; with pieces and without. */
#include "device/bf16.h"
#include "nanobatch/model/train_space_state.h"
#include "nanobatch/model/update.h"
#include "nanobatch/run/exec.h"
#include "tests/fixture/model.h"
#include "tests/fixture/must.h"
#include "tests/nanobatch/muon.h"
#include "weights/fp8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

static const struct hzp_model_config config = {
    .family = "llama",
    .layers = 3,
    .width = 64,
    .inner = 2048,
    .vocab = 40,
    .heads = {4, 2, 16},
    .positions = 32,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .tied = false,
    .disk_type = HZP_F32,
    .bos = -1,
};
/* The second layer is larger than the smallest piece, the third smaller than the first. */
static const int32_t inner[] = {96, 2048, 8};

static const struct hzp_update_hyper hyper = {.lr = 1e-2f,
                                              .beta1 = 0.9f,
                                              .beta2 = 0.95f,
                                              .eps = 1e-8f,
                                              .decay = 0.1f,
                                              .clip = 1,
                                              .grad_scale = 0.25f,
                                              .t = 3};

/* What an update reads and writes, in host memory. */
struct state {
    struct hzp_units weights, grads, m, v, residual, m_scale, v_scale;
    struct hzp_update_result result;
};

static struct hzp_unit_view unit_or_none(const struct hzp_units *units, int32_t u)
{
    return units->layout ? hzp_unit_view(units, u) : (struct hzp_unit_view){0};
}

static void adamw_by_hand(struct hzp_lane *lane, struct state *s, int32_t u, size_t begin,
                          size_t end, float decay)
{
    struct hzp_unit_view w = hzp_unit_view(&s->weights, u), grad = hzp_unit_view(&s->grads, u);
    struct hzp_unit_view m = hzp_unit_view(&s->m, u), v = hzp_unit_view(&s->v, u);
    struct hzp_unit_view residual = unit_or_none(&s->residual, u);
    struct hzp_adamw_args args = {.from = hzp_unit_piece(&w, begin, end - begin),
                                  .to = hzp_unit_piece(&w, begin, end - begin),
                                  .grad = hzp_unit_piece(&grad, begin, end - begin),
                                  .m = hzp_unit_piece(&m, begin, end - begin),
                                  .v = hzp_unit_piece(&v, begin, end - begin),
                                  .sumsq = &s->result.sumsq,
                                  .grad_scale = hyper.grad_scale,
                                  .clip = hyper.clip,
                                  .lr = hyper.lr,
                                  .beta1 = hyper.beta1,
                                  .beta2 = hyper.beta2,
                                  .eps = hyper.eps,
                                  .decay = decay,
                                  .t = hyper.t};
    if (residual.base)
        args.residual = hzp_unit_piece(&residual, begin, end - begin);
    FIXTURE_MUST(hzp_op_adamw(lane, &args));
}

/* A whole unit with 8-bit moments; the embedding's are F32, where others have scales. */
static void codes_by_hand(struct hzp_lane *lane, const struct state *s, int32_t u)
{
    const struct hzp_unit *unit = &s->weights.layout->unit[u];
    struct state one = *s;
    if (u == 0) {
        one.m = s->m_scale;
        one.v = s->v_scale;
        adamw_by_hand(lane, &one, u, 0, unit->decayed, hyper.decay);
        assert_int_equal(unit->decayed, unit->elements);
        return;
    }
    struct hzp_unit_view w = hzp_unit_view(&s->weights, u), grad = hzp_unit_view(&s->grads, u);
    struct hzp_unit_view m = hzp_unit_view(&s->m, u), v = hzp_unit_view(&s->v, u);
    struct hzp_unit_view residual = unit_or_none(&s->residual, u);
    struct hzp_adamw_args args = {.from = hzp_unit_piece(&w, 0, w.elements),
                                  .to = hzp_unit_piece(&w, 0, w.elements),
                                  .grad = hzp_unit_piece(&grad, 0, w.elements),
                                  .m = hzp_unit_piece(&m, 0, w.elements),
                                  .v = hzp_unit_piece(&v, 0, w.elements),
                                  .m_scale = hzp_unit_view(&s->m_scale, u).base,
                                  .v_scale = hzp_unit_view(&s->v_scale, u).base,
                                  .decayed = (int32_t)unit->decayed,
                                  .sumsq = &s->result.sumsq,
                                  .grad_scale = hyper.grad_scale,
                                  .clip = hyper.clip,
                                  .lr = hyper.lr,
                                  .beta1 = hyper.beta1,
                                  .beta2 = hyper.beta2,
                                  .eps = hyper.eps,
                                  .decay = hyper.decay,
                                  .t = hyper.t};
    if (residual.base)
        args.residual = hzp_unit_piece(&residual, 0, w.elements);
    FIXTURE_MUST(hzp_op_adamw(lane, &args));
}

static void update_by_hand(struct hzp_lane *lane, struct state *s)
{
    const struct hzp_layout *l = s->weights.layout;
    for (int32_t u = 0; u < l->units; u++) {
        struct hzp_unit_view grad = hzp_unit_view(&s->grads, u);
        struct hzp_sumsq_args args = {hzp_unit_piece(&grad, 0, grad.elements), &s->result.sumsq};
        FIXTURE_MUST(hzp_op_sumsq(lane, &args));
    }
    for (int32_t u = 0; u < l->units; u++) {
        if (s->m.type == HZP_Q8) {
            codes_by_hand(lane, s, u);
            continue;
        }
        adamw_by_hand(lane, s, u, 0, l->unit[u].decayed, hyper.decay);
        adamw_by_hand(lane, s, u, l->unit[u].decayed, l->unit[u].elements, 0);
    }
}

static void fill_state(struct hzp_device *dev, const struct hzp_train_space *space)
{
    const struct hzp_units *scale = hzp_train_space_part(space, HZP_STATE_V_SCALE);
    struct hzp_units positive = scale ? *scale : *hzp_train_space_v(space);
    fixture_units_random(dev, hzp_train_space_grads(space), 21, 1);
    fixture_units_random(
        dev, scale ? hzp_train_space_part(space, HZP_STATE_M_SCALE) : hzp_train_space_m(space), 22,
        0.1f);
    fixture_units_random(dev, &positive, 23, 0.1f);
    for (int32_t u = 0; scale && u < config.layers + 2; u++) {
        struct hzp_unit_view m = hzp_unit_view(hzp_train_space_m(space), u), v = m;
        v.base = hzp_unit_view(hzp_train_space_v(space), u).base;
        for (size_t i = 0; i < m.elements; i++) {
            ((uint8_t *)m.base)[i] = (uint8_t)(i * 37 % 255 + 129); /* all but -128 */
            ((uint8_t *)v.base)[i] = (uint8_t)(i * 101 % 256);
        }
    }
    for (int32_t u = 0; u < positive.layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(&positive, u);
        for (size_t i = 0; i < view.elements; i++)
            ((float *)view.base)[i] = fabsf(((float *)view.base)[i]);
    }
}

static void check_codes(struct hzp_lane *lane, const struct hzp_weights *w,
                        const struct hzp_version *draft)
{
    for (int32_t l = 0; l < config.layers; l++)
        for (int i = 0; i < HZP_FP8_ROLES; i++) {
            float *scale;
            struct hzp_mat y = hzp_version_fp8(w, draft, hzp_fp8_role[i], l, &scale);
            size_t codes = (size_t)y.rows * (size_t)y.cols, scales = (size_t)y.rows * sizeof(float);
            struct hzp_quantize_args args = {.x = hzp_version_mat(w, draft, hzp_fp8_role[i], l),
                                             .y = y};
            args.y.ptr = malloc(codes);
            args.scale = malloc(scales);
            FIXTURE_MUST(hzp_op_quantize(lane, &args));
            assert_memory_equal(args.y.ptr, y.ptr, codes);
            assert_memory_equal(args.scale, scale, scales);
            free(args.y.ptr);
            free(args.scale);
        }
}

/* Chains zero all of the state's memory; none what the state of a checkpoint will fill. */
static void check_prepared(struct hzp_exec *exec, struct hzp_plan *plan,
                           struct hzp_train_space *space)
{
    struct hzp_exec_times times;
    size_t at = 0, bytes = space->state_bytes[HZP_MEM_HOST], from = 0;
    char *moments = space->state[HZP_MEM_HOST];
    assert_true(bytes >= 2 * space->copied_floats * sizeof(float));
    assert_ptr_equal(space->copied, moments);
    memset(moments, 1, bytes);
    while (hzp_train_space_prepare(space, plan, &at, 2)) {
        assert_true(at > from);
        from = at;
        FIXTURE_MUST(hzp_exec_run(exec, plan, NULL, &times));
        hzp_plan_clear(plan);
    }
    assert_int_equal(at, bytes + space->state_bytes[HZP_MEM_DEVICE] + space->memory_bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(moments[i], 0);
    memset(moments, 1, bytes);
    FIXTURE_MUST(hzp_train_space_restore(space));
    assert_int_equal(space->zeroed_bytes[HZP_MEM_HOST], 0);
    memset(moments, 0, bytes);
}

/* Where updates can be taken back: one that is, in front of the one that counts. */
static void run(struct hzp_exec *exec, struct hzp_plan *plan, const struct hzp_model *model,
                const struct hzp_version *v, struct hzp_version *draft,
                struct hzp_train_space *space)
{
    struct hzp_exec_times times;
    hzp_plan_clear(plan);
    if (space->config.backup) {
        hzp_update_save(plan, space);
        hzp_update_build(plan, model, v, draft, &hyper, space);
        hzp_update_restore(plan, space);
    }
    hzp_update_build(plan, model, v, draft, &hyper, space);
    FIXTURE_MUST(hzp_plan_check(plan, NULL));
    FIXTURE_MUST(hzp_exec_run(exec, plan, NULL, &times));
}

/* host: the state is allocated apart, in host memory; and zeroed by chains, saved and brought
 * back. */
static void check(enum hzp_dtype type, enum hzp_dtype moments, bool fp8, uint64_t quantum,
                  bool host)
{
    struct fixture_model f;
    struct fixture_config open = {
        .device = "ref",
        .config = config,
        .inner = inner,
        .store = {.type = type, .fp8 = fp8, .slots = 2, .max_staleness = 1, .first_id = 1}};
    struct hzp_train_space_config space_config = {.rows_max = 4,
                                                  .head_rows = 4,
                                                  .moment_type = moments,
                                                  .quantum_flops = quantum,
                                                  .host_state = host,
                                                  .backup = host,
                                                  .unprepared = host};
    struct hzp_train_space *space;
    struct hzp_exec *exec;
    struct hzp_lane *lane;
    struct hzp_plan plan;
    fixture_open(&f, &open);
    FIXTURE_MUST(hzp_train_space_create(f.model, &space_config, &space));
    FIXTURE_MUST(hzp_exec_create(f.dev, &exec));
    FIXTURE_MUST(hzp_lane_open(f.dev, HZP_BOUND_MEMORY, &lane));
    struct hzp_version *v = fixture_publish_random(&f, 20, 0.5f), *draft = fixture_begin(&f);
    hzp_plan_init(&plan);
    if (host)
        check_prepared(exec, &plan, space);
    fill_state(f.dev, space);
    const struct hzp_units *residual = hzp_train_space_residual(space);
    assert_int_equal(residual != NULL, type == HZP_BF16);
    struct state hand = {
        .weights = fixture_units_read(f.dev, hzp_version_units(f.weights, v)),
        .grads = fixture_units_read(f.dev, hzp_train_space_grads(space)),
        .m = fixture_units_read(f.dev, hzp_train_space_m(space)),
        .v = fixture_units_read(f.dev, hzp_train_space_v(space)),
    };
    if (residual)
        hand.residual = fixture_units_read(f.dev, residual);
    const struct hzp_units *m_scale = hzp_train_space_part(space, HZP_STATE_M_SCALE);
    const struct hzp_units *v_scale = hzp_train_space_part(space, HZP_STATE_V_SCALE);
    assert_int_equal(m_scale != NULL, moments == HZP_Q8);
    if (m_scale) {
        hand.m_scale = fixture_units_read(f.dev, m_scale);
        hand.v_scale = fixture_units_read(f.dev, v_scale);
    }

    run(exec, &plan, f.model, v, draft, space);
    update_by_hand(lane, &hand);
    const struct hzp_update_result *result = hzp_update_result(space);
    uint64_t checksum;
    FIXTURE_MUST(hzp_units_checksum(NULL, &hand.weights, &checksum));
    assert_true(fabs(result->sumsq / hand.result.sumsq - 1) < 1e-12);
    assert_true(fixture_units_same(NULL, &hand.weights, hzp_version_units(f.weights, draft)));
    assert_true(fixture_units_same(NULL, &hand.m, hzp_train_space_m(space)));
    assert_true(fixture_units_same(NULL, &hand.v, hzp_train_space_v(space)));
    if (residual)
        assert_true(fixture_units_same(NULL, &hand.residual, residual));
    if (m_scale) {
        assert_true(fixture_units_same(NULL, &hand.m_scale, m_scale));
        assert_true(fixture_units_same(NULL, &hand.v_scale, v_scale));
        fixture_units_free(&hand.m_scale);
        fixture_units_free(&hand.v_scale);
    }
    assert_int_equal(result->checksum, checksum);
    assert_int_equal(result->nonfinite, 0);
    /* the version that was read is unchanged, and the draft differs from it */
    assert_false(fixture_units_same(NULL, hzp_version_units(f.weights, v),
                                    hzp_version_units(f.weights, draft)));
    if (fp8)
        check_codes(lane, f.weights, draft);

    hzp_plan_fini(&plan);
    fixture_units_free(&hand.weights);
    fixture_units_free(&hand.grads);
    fixture_units_free(&hand.m);
    fixture_units_free(&hand.v);
    fixture_units_free(&hand.residual);
    hzp_lane_close(lane);
    hzp_exec_destroy(exec);
    hzp_train_space_destroy(space);
    fixture_close(&f);
}

static void test_update(void **state)
{
    for (int host = 0; host < 2; host++) {
        check(HZP_F32, HZP_F32, false, 0, host);
        check(HZP_F32, HZP_F32, true, 1, host); /* the smallest pieces */
        check(HZP_BF16, HZP_F32, false, 1, host);
        check(HZP_BF16, HZP_F32, true, 0, host);
        check(HZP_F32, HZP_Q8, false, 0, host);
        check(HZP_F32, HZP_Q8, false, 1, host);
        check(HZP_BF16, HZP_Q8, false, 1, host);
    }
}

/* The formula of dev/muon.py. */
static double number(size_t i, uint64_t salt)
{
    uint64_t n = 7919 * (uint64_t)i * i + (104729 * salt + 31) * (uint64_t)i;
    return ((double)(n % 2003) - 1001) / 1001;
}

static void fill_layers(const struct hzp_units *units, uint64_t salt, uint64_t by, double scale)
{
    for (int32_t u = 1; u <= config.layers; u++) {
        struct hzp_unit_view view = hzp_unit_view(units, u);
        for (size_t i = 0; i < view.elements; i++) {
            float x = (float)(number(i, salt + by * (uint64_t)(u - 1)) * scale);
            if (view.type == HZP_F32)
                ((float *)view.base)[i] = x;
            else
                ((uint16_t *)view.base)[i] = hzp_bf16_from_f32(x);
        }
    }
}

/* What element i is, from the version or, if a residual is given, exactly. */
static double master(const struct hzp_units *units, const struct hzp_units *residual, int32_t u,
                     size_t i)
{
    struct hzp_unit_view view = hzp_unit_view(units, u);
    if (view.type == HZP_F32)
        return (double)((float *)view.base)[i];
    const int16_t *low = residual ? hzp_unit_view(residual, u).base : NULL;
    return (double)hzp_master_join(((uint16_t *)view.base)[i], low ? low[i] : 0);
}

/* Every matrix of the layers has moved as PyTorch's has, but for this part. */
static void compare_moved(const struct hzp_units *from, const struct hzp_units *to,
                          const struct hzp_units *residual, double part)
{
    for (int32_t u = 1; u <= config.layers; u++) {
        int32_t width = config.width, of = inner[u - 1];
        const int32_t size[7] = {64 * width, 32 * width, 32 * width, 64 * width,
                                 of * width, of * width, of * width};
        size_t at = 0;
        for (int k = 0; k < 7; k++) {
            double sum[2] = {0, 0}, squares = 0;
            const double *due = muon_moved[u - 1][k];
            for (size_t end = at + (size_t)size[k]; at < end; at++) {
                double d = master(to, residual, u, at) - master(from, NULL, u, at);
                for (uint64_t j = 0; j < 2; j++)
                    sum[j] += number(at, 500 + j) > 0 ? d : -d;
                squares += d * d;
            }
            if (fabs(sqrt(squares) - due[2]) > part * due[2] ||
                fabs(sum[0] - due[0]) > 4 * part * due[2] ||
                fabs(sum[1] - due[1]) > 4 * part * due[2])
                fail_msg("layer %d, matrix %d: moved by %.9g %.9g %.9g, not %.9g %.9g %.9g", u - 1,
                         k, sum[0], sum[1], sqrt(squares), due[0], due[1], due[2]);
        }
    }
}

/* Two updates by Muon, the second in place; then one whose gradients are not finite. */
static void check_muon(const char *device, enum hzp_dtype type, enum hzp_dtype moments,
                       uint64_t quantum, double part)
{
    struct fixture_model f;
    struct fixture_config open = {
        .device = device,
        .config = config,
        .inner = inner,
        .store = {.type = type, .slots = 2, .max_staleness = 1, .first_id = 1}};
    struct hzp_train_space_config space_config = {.rows_max = 4,
                                                  .head_rows = 4,
                                                  .moment_type = moments,
                                                  .quantum_flops = quantum,
                                                  .muon = true};
    struct hzp_train_space *space;
    struct hzp_exec *exec;
    struct hzp_plan plan;
    struct hzp_exec_times times;
    struct hzp_update_hyper h = hyper;
    fixture_open(&f, &open);
    FIXTURE_MUST(hzp_train_space_create(f.model, &space_config, &space));
    FIXTURE_MUST(hzp_exec_create(f.dev, &exec));
    struct hzp_version *draft = fixture_begin(&f);
    fixture_units_random(f.dev, hzp_version_units(f.weights, draft), 20, 0.5f);
    fill_layers(hzp_version_units(f.weights, draft), 900, 1, 0.125);
    fixture_publish(&f, draft, 0);
    struct hzp_version *v = draft;
    draft = fixture_begin(&f);
    const struct hzp_units *residual = hzp_train_space_residual(space);
    h.momentum = 0.95f;
    h.clip = 0;
    hzp_plan_init(&plan);
    for (h.t = 1; h.t <= 3; h.t++) {
        fixture_units_random(f.dev, hzp_train_space_grads(space), 21, 1);
        fill_layers(hzp_train_space_grads(space), (uint64_t)h.t, 10, 1);
        if (h.t == 3)
            *(float *)hzp_unit_view(hzp_train_space_grads(space), 2).base = NAN;
        hzp_plan_clear(&plan);
        hzp_update_build(&plan, f.model, h.t == 1 ? v : draft, draft, &h, space);
        FIXTURE_MUST(hzp_plan_check(&plan, NULL));
        FIXTURE_MUST(hzp_exec_run(exec, &plan, NULL, &times));
        if (h.t > 1) /* the third has changed nothing */
            compare_moved(hzp_version_units(f.weights, v), hzp_version_units(f.weights, draft),
                          residual, part);
        assert_int_equal(hzp_update_result(space)->nonfinite, 0);
    }
    hzp_plan_fini(&plan);
    hzp_exec_destroy(exec);
    hzp_train_space_destroy(space);
    fixture_close(&f);
}

static void test_muon(void **state)
{
    check_muon("ref", HZP_F32, HZP_F32, 0, 1e-4);
    check_muon("ref", HZP_F32, HZP_BF16, 1, 1e-2); /* the smallest pieces */
    check_muon("cpu", HZP_F32, HZP_F32, 1, 1e-4);
    check_muon("cpu", HZP_BF16, HZP_F32, 0, 5e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_update), cmocka_unit_test(test_muon)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
