/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "weights/layout.h"

#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"

static void make(int i, struct hzp_layout *ret)
{
    struct hzp_model_config c;
    struct hzp_err_text err;
    scratch_write_text(scratch_path("config.json"), tiny_models[i]);
    if (hzp_config_read(scratch_dir, &c, &err) != HZP_OK)
        fail_msg("%s", err.text);
    hzp_layout_make(&c, ret);
}

/* Every element of every tensor of the unit is filled by exactly one disk tensor; tensors
 * neither overlap nor exceed the unit.  Returns the number of parameters. */
static int64_t check_unit(const struct hzp_layout *l, int32_t u)
{
    const struct hzp_unit *unit = &l->unit[u];
    unsigned char *seen = calloc(unit->elements, 1);
    int64_t parameters = 0;
    for (int i = 0; i < l->disks; i++) {
        const struct hzp_disk_tensor *d = &l->disk[i];
        const struct hzp_tensor *t = &l->tensor[d->tensor];
        size_t cols = d->vector ? 1 : (size_t)t->cols;
        assert_true(i == 0 || l->disk[i - 1].tensor <= d->tensor);
        assert_int_equal(d->vector, t->rows == 1);
        assert_true(d->row0 + d->rows <= (d->vector ? t->cols : t->rows));
        for (size_t j = 0; t->unit == u && j < (size_t)d->rows * cols; j++)
            seen[t->offset + (size_t)d->row0 * cols + j]++;
    }
    for (int i = unit->first; i < unit->first + unit->tensors; i++) {
        const struct hzp_tensor *t = &l->tensor[i];
        size_t n = (size_t)t->rows * (size_t)t->cols;
        assert_int_equal(t->unit, u);
        assert_int_equal(t->offset % HZP_UNIT_ALIGN, 0);
        assert_true(t->offset + n <= unit->elements);
        /* matrices in the decayed part, vectors after it */
        assert_int_equal(t->rows > 1, t->offset < unit->decayed);
        assert_ptr_equal(hzp_layout_find(l, t->role, t->layer), t);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(seen[t->offset + j], 1);
        parameters += (int64_t)n;
    }
    free(seen);
    return parameters;
}

static int64_t check_layout(const struct hzp_layout *l)
{
    size_t before = 0;
    int32_t tensors = 0;
    int64_t parameters = 0;
    assert_int_equal(l->units, l->config.layers + 2);
    for (int u = 0; u < l->units; u++) {
        const struct hzp_unit *unit = &l->unit[u];
        assert_int_equal(unit->before, before);
        assert_int_equal(unit->first, tensors);
        assert_int_equal(unit->elements % HZP_UNIT_ALIGN, 0);
        assert_true(unit->decayed <= unit->elements);
        before += unit->elements;
        tensors += unit->tensors;
        parameters += check_unit(l, u);
    }
    assert_int_equal(l->elements, before);
    assert_int_equal(l->tensors, tensors);
    for (int i = 0; i < l->disks; i++) /* runs of one tensor lie together, in its order */
        for (int k = 0; k < i; k++)
            if (strcmp(l->disk[k].name, l->disk[i].name) == 0)
                assert_true(hzp_layout_continues(l, i - 1) &&
                            l->disk[i].disk_row0 == l->disk[i - 1].disk_row0 + l->disk[i - 1].rows);
    return parameters;
}

static void test_covers(void **state)
{
    for (int m = 0; m < HZP_COUNT(tiny_models); m++) {
        struct hzp_layout l;
        make(m, &l);
        assert_int_equal(check_layout(&l), hzp_config_parameters(&l.config));
        hzp_layout_free(&l);
    }
}

/* Layers with different inner widths. */
static void test_layers_differ(void **state)
{
    const int32_t inner[] = {20, 72, 8};
    struct hzp_layout even, l;
    make(1, &even); /* llama, untied, three layers */
    assert_int_equal(even.config.layers, HZP_COUNT(inner));
    hzp_layout_make_inner(&even.config, inner, &l);
    check_layout(&l);
    for (int i = 0; i < HZP_COUNT(inner); i++) {
        assert_int_equal(hzp_layout_find(&l, HZP_GATE_UP, i)->rows, 2 * inner[i]);
        assert_int_equal(hzp_layout_find(&l, HZP_DOWN, i)->cols, inner[i]);
        assert_int_equal(hzp_layout_find(&l, HZP_QKV, i)->rows,
                         hzp_layout_find(&even, HZP_QKV, i)->rows);
    }
    assert_int_equal(l.unit[1].elements, even.unit[1].elements); /* 20, as the model has */
    assert_true(l.unit[2].elements > l.unit[1].elements);
    assert_true(l.unit[3].elements < l.unit[1].elements);
    hzp_layout_free(&even);
    hzp_layout_free(&l);
}

static void test_find(void **state)
{
    struct hzp_layout l;
    make(6, &l); /* qwen3, untied */
    assert_null(hzp_layout_find(&l, HZP_QKV_BIAS, 0));
    assert_ptr_not_equal(hzp_layout_find(&l, HZP_HEAD, -1), hzp_layout_find(&l, HZP_EMBED, -1));
    hzp_layout_free(&l);
    make(3, &l); /* qwen2, tied */
    assert_int_equal(hzp_layout_find(&l, HZP_QKV_BIAS, 2)->cols, 48);
    assert_null(hzp_layout_find(&l, HZP_Q_NORM, 0));
    assert_ptr_equal(hzp_layout_find(&l, HZP_HEAD, -1), hzp_layout_find(&l, HZP_EMBED, -1));
    hzp_layout_free(&l);
}

/* The names of two families, spelled out: a mapping that is wrong in the same way in both
 * directions would pass every round trip. */
static void test_names(void **state)
{
    static const struct {
        int model;
        const char *name;
        enum hzp_role role;
        int layer, row0, rows;
    } names[] = {
        {1, "model.embed_tokens.weight", HZP_EMBED, -1, 0, 37},
        {1, "lm_head.weight", HZP_HEAD, -1, 0, 37},
        {1, "model.norm.weight", HZP_FINAL_NORM, -1, 0, 24},
        {1, "model.layers.2.self_attn.q_proj.weight", HZP_QKV, 2, 0, 24},
        {1, "model.layers.0.self_attn.k_proj.weight", HZP_QKV, 0, 24, 12},
        {1, "model.layers.0.self_attn.v_proj.weight", HZP_QKV, 0, 36, 12},
        {1, "model.layers.1.self_attn.o_proj.weight", HZP_O, 1, 0, 24},
        {1, "model.layers.1.mlp.gate_proj.weight", HZP_GATE_UP, 1, 0, 20},
        {1, "model.layers.1.mlp.up_proj.weight", HZP_GATE_UP, 1, 20, 20},
        {1, "model.layers.1.mlp.down_proj.weight", HZP_DOWN, 1, 0, 24},
        {1, "model.layers.1.input_layernorm.weight", HZP_ATTN_NORM, 1, 0, 24},
        {1, "model.layers.1.post_attention_layernorm.weight", HZP_MLP_NORM, 1, 0, 24},
        {3, "model.layers.1.self_attn.q_proj.bias", HZP_QKV_BIAS, 1, 0, 24},
        {3, "model.layers.1.self_attn.k_proj.bias", HZP_QKV_BIAS, 1, 24, 12},
        {3, "model.layers.1.self_attn.v_proj.bias", HZP_QKV_BIAS, 1, 36, 12},
        {5, "model.layers.1.self_attn.q_norm.weight", HZP_Q_NORM, 1, 0, 10},
        {5, "model.layers.1.self_attn.k_norm.weight", HZP_K_NORM, 1, 0, 10},
    };
    for (int i = 0; i < HZP_COUNT(names); i++) {
        struct hzp_layout l;
        int found = 0;
        make(names[i].model, &l);
        for (int j = 0; j < l.disks; j++)
            if (!strcmp(l.disk[j].name, names[i].name)) {
                found++;
                assert_int_equal(l.tensor[l.disk[j].tensor].role, names[i].role);
                assert_int_equal(l.tensor[l.disk[j].tensor].layer, names[i].layer);
                assert_int_equal(l.disk[j].row0, names[i].row0);
                assert_int_equal(l.disk[j].rows, names[i].rows);
            }
        assert_int_equal(found, 1);
        hzp_layout_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_covers),
        cmocka_unit_test(test_layers_differ),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
