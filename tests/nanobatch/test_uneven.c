/* SPDX-License-Identifier: Apache-2.0 */
/* tests/nanobatch/test_uneven.c - layers of different inner widths: logits, loss and gradients are
 * those of a model all of whose layers have the largest width, with zeros where the other has
 * nothing. */
#include "nanobatch/model/backward.h"
#include "nanobatch/model/forward.h"
#include "nanobatch/run/exec.h"
#include "tests/fixture/model.h"
#include "tests/fixture/must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, ROWS = 6, PAGE_ROWS = 8, VOCAB = 40, WIDEST = 160 };

static const struct hzp_model_config config = {
    .family = "llama",
    .layers = LAYERS,
    .width = 64,
    .inner = WIDEST,
    .vocab = VOCAB,
    .heads = {4, 2, 16},
    .positions = 32,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .tied = false,
    .disk_type = HZP_F32,
    .bos = -1,
};
/* config.inner is not the first layer's, and less than it elsewhere. */
static const int32_t inner[LAYERS] = {96, WIDEST, 32};
static const int32_t token[ROWS] = {3, 17, 5, 39, 0, 8};

static void open_model(struct fixture_model *f, const char *device, const int32_t *widths)
{
    struct fixture_config open = {.device = device,
                                  .threads = 2,
                                  .config = config,
                                  .inner = widths,
                                  .store = {.type = HZP_F32}};
    if (widths) /* what the configuration says counts for nothing */
        open.config.inner = 64;
    fixture_open(f, &open);
}

/* Of the even model's tensor, the row (gate_up) or column (down) that is number i of the uneven
 * one's. */
static int32_t place_in_even(int32_t i, int32_t width)
{
    return i < width ? i : WIDEST + i - width;
}

/* Element [row][col] of the uneven model's tensor, in the even one's. */
static float *in_even(const struct hzp_mat *even, const struct hzp_tensor *t, int32_t row,
                      int32_t col)
{
    if (t->role == HZP_GATE_UP)
        row = place_in_even(row, t->rows / 2);
    return (float *)even->ptr + (size_t)row * (size_t)even->stride + col;
}

/* Both models have the same parameters; what only the even one has is 0. */
static void publish(struct fixture_model *uneven, struct fixture_model *even)
{
    fixture_publish_random(uneven, 5, 0.3f);
    struct hzp_units from =
        *hzp_version_units(uneven->weights, hzp_weights_current(uneven->weights));
    struct hzp_version *draft = fixture_begin(even);
    struct hzp_units to = *hzp_version_units(even->weights, draft);
    for (int32_t u = 0; u < to.layout->units; u++) {
        struct hzp_unit_view view = hzp_unit_view(&to, u);
        memset(view.base, 0, view.elements * sizeof(float));
    }
    for (int32_t i = 0; i < uneven->layout.tensors; i++) {
        const struct hzp_tensor *t = &uneven->layout.tensor[i];
        struct hzp_mat a = hzp_units_mat(&from, t->role, t->layer);
        struct hzp_mat b = hzp_units_mat(&to, t->role, t->layer);
        for (int32_t r = 0; r < t->rows; r++)
            for (int32_t c = 0; c < t->cols; c++)
                *in_even(&b, t, r, c) = ((float *)a.ptr)[(size_t)r * (size_t)a.stride + (size_t)c];
    }
    fixture_publish(even, draft, 0);
}

static void run(struct fixture_model *f, struct hzp_plan *plan)
{
    struct hzp_exec *exec;
    struct hzp_exec_times times;
    struct hzp_err_text text;
    FIXTURE_MUST(hzp_exec_create(f->dev, &exec));
    if (hzp_plan_check(plan, &text) < 0)
        fail_msg("%s", text.text);
    FIXTURE_MUST(hzp_exec_run(exec, plan, NULL, &times));
    hzp_exec_destroy(exec);
}

/* Serves the tokens as one prompt: [ROWS][VOCAB] logits. */
static void serve(struct fixture_model *f, float *ret)
{
    struct hzp_batch_config max = {
        .rows_max = ROWS, .segs_max = 1, .page_stride = 1, .logits_max = ROWS, .edits_max = 1};
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_kv kv[LAYERS];
    struct hzp_plan plan;
    size_t page =
        (size_t)config.heads.kv_heads * PAGE_ROWS * (size_t)config.heads.dim * sizeof(float);
    FIXTURE_MUST(hzp_batch_create(f->dev, &max, &batch));
    FIXTURE_MUST(hzp_serve_space_create(f->model, ROWS, ROWS, &space));
    for (int32_t l = 0; l < LAYERS; l++) {
        kv[l] = (struct hzp_kv){NULL, NULL, 1, PAGE_ROWS, HZP_F32, NULL, NULL};
        FIXTURE_MUST(hzp_device_alloc(f->dev, HZP_MEM_DEVICE, page, &kv[l].k));
        FIXTURE_MUST(hzp_device_alloc(f->dev, HZP_MEM_DEVICE, page, &kv[l].v));
    }
    hzp_batch_add_segment(batch, 0, false)[0] = 0;
    for (int32_t r = 0; r < ROWS; r++)
        hzp_batch_add_logits(batch, hzp_batch_add_row(batch, token[r], r));
    hzp_plan_init(&plan);
    hzp_forward_build(&plan, f->model, hzp_weights_current(f->weights), batch, kv, space, NULL);
    plan.items--; /* sampling overwrites the logits */
    run(f, &plan);
    for (int32_t r = 0; r < ROWS; r++)
        memcpy(ret + (size_t)r * VOCAB,
               (float *)space->logits.ptr + (size_t)r * (size_t)space->logits.stride,
               VOCAB * sizeof(float));
    hzp_plan_fini(&plan);
    for (int32_t l = 0; l < LAYERS; l++) {
        hzp_device_free(f->dev, HZP_MEM_DEVICE, kv[l].k);
        hzp_device_free(f->dev, HZP_MEM_DEVICE, kv[l].v);
    }
    hzp_serve_space_destroy(space);
    hzp_batch_destroy(batch);
}

/* Forward, loss and, unless eval, backward of the tokens as one document: the sum of the losses;
 * ret [ROWS]: the losses. */
static struct hzp_train_space *learn(struct fixture_model *f, bool eval, float *ret)
{
    struct hzp_train_space_config size = {.rows_max = ROWS + 3,
                                          .head_rows = 4,
                                          .moment_type = HZP_F32,
                                          .forward_only = eval,
                                          .quantum_flops = 20000};
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_plan plan;
    uint8_t learned[ROWS];
    memset(learned, 1, sizeof(learned));
    FIXTURE_MUST(hzp_train_space_create(f->model, &size, &space));
    FIXTURE_MUST(hzp_micro_create(f->dev, ROWS + 3, &micro));
    FIXTURE_MUST(hzp_micro_add(micro, token, learned, ROWS));
    hzp_plan_init(&plan);
    if (eval)
        hzp_eval_build(&plan, f->model, hzp_weights_current(f->weights), micro, space);
    else
        hzp_micro_build(&plan, f->model, hzp_weights_current(f->weights), micro, space, true);
    run(f, &plan);
    memset(ret, 0, ROWS * sizeof(*ret));
    memcpy(ret, micro->loss.value, (size_t)micro->learned * sizeof(*ret));
    hzp_plan_fini(&plan);
    hzp_micro_destroy(micro);
    return space;
}

static void near(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 2e-4f * (1 + fabsf(b[i]))))
            fail_msg("number %zu is %g, with even layers %g", i, (double)a[i], (double)b[i]);
}

static void same_gradients(const struct fixture_model *uneven, const struct hzp_units *a,
                           const struct hzp_units *b)
{
    for (int32_t i = 0; i < uneven->layout.tensors; i++) {
        const struct hzp_tensor *t = &uneven->layout.tensor[i];
        struct hzp_mat from = hzp_units_mat(a, t->role, t->layer);
        struct hzp_mat even = hzp_units_mat(b, t->role, t->layer);
        for (int32_t r = 0; r < t->rows; r++)
            for (int32_t c = 0; c < t->cols; c++)
                near((float *)from.ptr + (size_t)r * (size_t)from.stride + c,
                     in_even(&even, t, r, c), 1);
    }
}

static void check(const char *device)
{
    struct fixture_model uneven, even;
    open_model(&uneven, device, inner);
    open_model(&even, device, NULL);
    float *a = calloc(2 * ROWS * VOCAB, sizeof(*a)), *b = a + ROWS * VOCAB;
    publish(&uneven, &even);
    serve(&uneven, a);
    serve(&even, b);
    near(a, b, ROWS * VOCAB);
    hzp_train_space_destroy(learn(&uneven, true, a));
    hzp_train_space_destroy(learn(&even, true, b));
    near(a, b, ROWS);
    struct hzp_train_space *mine = learn(&uneven, false, a), *other = learn(&even, false, b);
    near(a, b, ROWS);
    same_gradients(&uneven, hzp_train_space_grads(mine), hzp_train_space_grads(other));
    hzp_train_space_destroy(mine);
    hzp_train_space_destroy(other);
    free(a);
    fixture_close(&uneven);
    fixture_close(&even);
}

static void test_uneven(void **state)
{
    (void)state;
    check("ref");
    check("cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_uneven)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
