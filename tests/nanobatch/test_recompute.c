/* SPDX-License-Identifier: Apache-2.0 */
/* tests/nanobatch/test_recompute.c - activations that are computed again instead of kept: losses
 * and gradients have the same bits as without, for usual and for long micro-batches, cut or not,
 * and the memory is that much smaller. */
#include "nanobatch/model/backward.h"
#include "nanobatch/model/operations.h"
#include "nanobatch/run/exec.h"
#include "tests/fixture/model.h"
#include "tests/fixture/must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, ROWS = 40, VOCAB = 40, WIDEST = 160 };

static const struct hzp_model_config config = {
    .family = "qwen3",
    .layers = LAYERS,
    .width = 64,
    .inner = WIDEST,
    .vocab = VOCAB,
    .heads = {4, 2, 16},
    .positions = 64,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .tied = true,
    .qk_norm = true,
    .disk_type = HZP_F32,
    .bos = -1,
};
static const int32_t inner[LAYERS] = {96, WIDEST, 32};

struct result {
    float loss[ROWS];
    float *grads; /* [floats], unit after unit */
    size_t floats, memory;
    struct hzp_operations operations; /* of one micro-batch */
};

/* One document of ROWS rows, or three that have as many. */
static void fill(struct hzp_micro *micro, bool one)
{
    static const int32_t rows[] = {7, 21, 12};
    int32_t token[ROWS + 1];
    uint8_t learn[ROWS + 1];
    for (int32_t i = 0; i <= ROWS; i++) {
        token[i] = (i * 7 + 3) % VOCAB;
        learn[i] = i % 5 != 2;
    }
    if (one)
        FIXTURE_MUST(hzp_micro_add(micro, token, learn, ROWS + 1));
    for (int i = 0; !one && i < HZP_COUNT(rows); i++)
        FIXTURE_MUST(hzp_micro_add(micro, token, learn, rows[i] + 1));
}

/* Two micro-batches: the second adds to what the first has left. */
static struct result learn(struct fixture_model *f, const struct hzp_train_space_config *size,
                           int32_t chunk_rows, bool one)
{
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_plan plan;
    struct hzp_exec *exec;
    struct hzp_exec_times times;
    struct hzp_err_text text;
    struct result ret = {.memory =
                             hzp_train_space_bytes(&f->layout, hzp_weights_type(f->weights), size)};
    FIXTURE_MUST(hzp_train_space_create(f->model, size, &space));
    FIXTURE_MUST(hzp_micro_create(f->dev, ROWS, &micro));
    FIXTURE_MUST(hzp_exec_create(f->dev, &exec));
    hzp_plan_init(&plan);
    fill(micro, one);
    hzp_micro_cut(micro, chunk_rows);
    for (int i = 0; i < 2; i++) {
        hzp_plan_clear(&plan);
        hzp_micro_build(&plan, f->model, hzp_weights_current(f->weights), micro, space, i == 0);
        if (hzp_plan_check(&plan, &text) < 0)
            fail_msg("%s", text.text);
        FIXTURE_MUST(hzp_exec_run(exec, &plan, NULL, &times));
    }
    hzp_operations_add(&ret.operations, &plan);
    memcpy(ret.loss, micro->loss.value, (size_t)micro->learned * sizeof(float));
    const struct hzp_units *grads = hzp_train_space_grads(space);
    ret.grads = malloc(hzp_units_bytes(&f->layout, HZP_F32));
    for (int32_t u = 0; u < f->layout.units; u++) {
        struct hzp_unit_view view = hzp_unit_view(grads, u);
        memcpy(ret.grads + ret.floats, view.base, view.elements * sizeof(float));
        ret.floats += view.elements;
    }
    hzp_plan_fini(&plan);
    hzp_exec_destroy(exec);
    hzp_micro_destroy(micro);
    hzp_train_space_destroy(space);
    return ret;
}

static void same(const struct result *a, const struct result *b, const char *what)
{
    if (memcmp(a->loss, b->loss, sizeof(a->loss)))
        fail_msg("%s: other losses", what);
    if (memcmp(a->grads, b->grads, a->floats * sizeof(float)))
        fail_msg("%s: other gradients", what);
}

static uint64_t pairs(uint64_t rows, uint64_t window)
{
    uint64_t sum = 0;
    for (uint64_t r = 1; r <= rows; r++)
        sum += window ? HZP_MIN(r, window) : r;
    return sum;
}

/* Operations by the closed form: six for each weight of a product and row, twelve for each element
 * of a head and position seen; mlp, layer: what recompute repeats; more: the scores, and what the
 * norms behind products need, which is never kept. */
struct closed {
    uint64_t all, mlp, layer, more;
};

static struct closed closed_form(const struct hzp_model_config *c, bool one)
{
    uint64_t width = (uint64_t)c->width, attn = (uint64_t)(c->heads.heads * c->heads.dim);
    uint64_t kv = (uint64_t)(c->heads.kv_heads * c->heads.dim), learned = 0;
    struct closed ret = {0};
    for (int32_t i = 1; i <= ROWS; i++)
        learned += (i % 5 != 2) * (one ? 1 : (i <= 7) + (i <= 21) + (i <= 12));
    for (int l = 0; l < LAYERS; l++) {
        uint64_t window = (uint64_t)c->kind[c->layer_kind[l]].window;
        uint64_t seen =
            one ? pairs(ROWS, window) : pairs(7, window) + pairs(21, window) + pairs(12, window);
        uint64_t up = 2 * ROWS * width * 2 * (uint64_t)inner[l];
        uint64_t products = 2 * ROWS * (width * (2 * attn + 2 * kv)) + up + up / 2;
        ret.all += 3 * products + 12 * attn * seen;
        ret.mlp += up;
        ret.layer += products - up / 2 + 4 * attn * seen;
        ret.layer -= c->parallel ? 2 * ROWS * width * attn : 0; /* x_mid is not needed again */
        ret.more += 2 * attn * seen;
        ret.more += c->norm_after ? 2 * ROWS * width * (attn + (uint64_t)inner[l]) : 0;
    }
    ret.all += 6 * learned * (uint64_t)c->vocab * width;
    return ret;
}

static void check_operations(const struct result *r, const struct closed *c,
                             enum hzp_recompute recompute)
{
    uint64_t again[] = {0, c->mlp, c->layer};
    assert_int_equal(r->operations.model, c->all);
    assert_int_equal(r->operations.hardware, c->all + c->more + again[recompute]);
}

/* All kinds beside the one that keeps everything. */
static void compare(struct fixture_model *f, int32_t chunk_rows, bool one)
{
    struct hzp_train_space_config size = {
        .rows_max = ROWS, .head_rows = 16, .moment_type = HZP_F32, .quantum_flops = 20000};
    struct result kept = learn(f, &size, chunk_rows, one);
    const struct closed closed = closed_form(f->model->config, one);
    check_operations(&kept, &closed, HZP_RECOMPUTE_NONE);
    float largest = 0;
    for (size_t i = 0; i < kept.floats; i++)
        largest = HZP_MAX(largest, kept.grads[i]);
    assert_true(largest > 0);
    size_t memory = kept.memory;
    for (int mode = HZP_RECOMPUTE_MLP; mode <= HZP_RECOMPUTE_LAYER; mode++) {
        size.recompute = (enum hzp_recompute)mode;
        struct result again = learn(f, &size, chunk_rows, one);
        check_operations(&again, &closed, size.recompute);
        same(&kept, &again, mode == HZP_RECOMPUTE_MLP ? "mlp" : "layer");
        assert_true(again.memory < memory);
        memory = again.memory;
        free(again.grads);

        struct hzp_train_space_config longer = size;
        longer.recompute = HZP_RECOMPUTE_NONE;
        longer.recompute_long = size.recompute;
        longer.rows_max = ROWS / 4;
        longer.long_rows = ROWS;
        struct result rare = learn(f, &longer, chunk_rows, one);
        same(&kept, &rare, "long");
        assert_true(rare.memory <= memory);
        free(rare.grads);
    }
    free(kept.grads);
}

static void check(const char *device, enum hzp_dtype type, const struct hzp_model_config *model)
{
    struct fixture_model f;
    struct fixture_config open = {
        .device = device, .threads = 2, .config = *model, .inner = inner, .store = {.type = type}};
    fixture_open(&f, &open);
    fixture_publish_random(&f, 5, 0.3f);
    compare(&f, 0, true);
    compare(&f, 0, false);
    compare(&f, 9, true);
    compare(&f, 9, false);
    fixture_close(&f);
}

static void test_recompute(void **state)
{
    (void)state;
    check("ref", HZP_F32, &config);
    check("cpu", HZP_F32, &config);
    check("cpu", HZP_BF16, &config);
}

/* Norms behind products, windows, caps, parallel layers. */
static void test_kinds(void **state)
{
    (void)state;
    struct hzp_model_config c = config;
    c.kind[1].window = 5;
    c.layer_kind[0] = c.layer_kind[2] = 1;
    c.norm_after = true;
    c.qk_norm = false;
    c.qk_norm_full = c.no_norm_before = true;
    strcpy(c.family, "olmo3");
    check("cpu", HZP_F32, &c);
    check("cpu", HZP_BF16, &c);
    c.qk_norm = c.norm_plus_one = c.gelu = true;
    c.qk_norm_full = c.no_norm_before = false;
    c.score_cap = 3;
    c.logit_cap = 5;
    c.kind[1].local = true;
    c.rope_local_theta = 100;
    strcpy(c.family, "gemma3_text");
    check("cpu", HZP_F32, &c);
    check("cpu", HZP_BF16, &c);
    c.norm_after = c.qk_norm = c.norm_plus_one = c.gelu = c.kind[1].local = false;
    c.norm_centred = c.parallel = c.kind[0].no_rope = true;
    c.score_cap = c.logit_cap = 0;
    strcpy(c.family, "cohere2");
    check("cpu", HZP_F32, &c);
    check("cpu", HZP_BF16, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recompute),
                                       cmocka_unit_test(test_kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
