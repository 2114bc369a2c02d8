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

/* Every element of every tensor is filled by exactly one disk tensor; tensors neither overlap nor
 * leave their unit; units follow each other. */
static void test_covers(void **state)
{
    for (int m = 0; m < HZP_COUNT(tiny_models); m++) {
        struct hzp_layout l;
        make(m, &l);
        assert_int_equal(l.units, l.config.layers + 2);
        size_t at = 0;
        for (int u = 0; u < l.units; u++) {
            assert_int_equal(l.unit[u].offset, at);
            assert_int_equal(l.unit[u].elements % HZP_UNIT_ALIGN, 0);
            assert_true(l.unit[u].decayed <= l.unit[u].elements);
            at += l.unit[u].elements;
        }
        assert_int_equal(l.elements, at);
        unsigned char *seen = calloc(l.elements, 1);
        for (int i = 0; i < l.disks; i++) {
            const struct hzp_disk_tensor *d = &l.disk[i];
            const struct hzp_tensor *t = &l.tensor[d->tensor];
            size_t cols = d->vector ? 1 : (size_t)t->cols;
            size_t begin = t->offset + (size_t)d->row0 * cols;
            assert_int_equal(d->vector, t->rows == 1);
            assert_true(d->row0 + d->rows <= (d->vector ? t->cols : t->rows));
            for (size_t j = 0; j < (size_t)d->rows * cols; j++)
                seen[begin + j]++;
            for (int k = 0; k < i; k++)
                assert_string_not_equal(l.disk[k].name, d->name);
        }
        int64_t parameters = 0;
        for (int i = 0; i < l.tensors; i++) {
            const struct hzp_tensor *t = &l.tensor[i];
            const struct hzp_unit *u = &l.unit[t->unit];
            size_t n = (size_t)t->rows * (size_t)t->cols;
            assert_int_equal(t->offset % HZP_UNIT_ALIGN, 0);
            assert_true(t->offset >= u->offset && t->offset + n <= u->offset + u->elements);
            /* matrices in the decayed part, vectors after it */
            assert_int_equal(t->rows > 1, t->offset - u->offset < u->decayed);
            for (size_t j = 0; j < n; j++)
                assert_int_equal(seen[t->offset + j], 1);
            parameters += (int64_t)n;
        }
        assert_int_equal(parameters, hzp_config_parameters(&l.config));
        free(seen);
        hzp_layout_free(&l);
    }
}

static void test_mats(void **state)
{
    struct hzp_layout l;
    make(6, &l); /* qwen3, untied */
    char *base = malloc(l.elements * sizeof(float));
    for (int i = 0; i < l.tensors; i++) {
        const struct hzp_tensor *t = &l.tensor[i];
        for (int type = HZP_F32; type <= HZP_BF16; type++) {
            struct hzp_mat m = hzp_layout_mat(&l, base, (enum hzp_dtype)type, t->role, t->layer);
            assert_ptr_equal(m.ptr, base + t->offset * (type == HZP_F32 ? 4 : 2));
            assert_int_equal(m.rows, t->rows);
            assert_int_equal(m.cols, t->cols);
            assert_int_equal(m.stride, t->cols);
            assert_int_equal(m.type, type);
        }
    }
    assert_null(hzp_layout_mat(&l, base, HZP_F32, HZP_QKV_BIAS, 0).ptr);
    assert_ptr_not_equal(hzp_layout_mat(&l, base, HZP_F32, HZP_HEAD, -1).ptr,
                         hzp_layout_mat(&l, base, HZP_F32, HZP_EMBED, -1).ptr);
    hzp_layout_free(&l);
    free(base);
    make(3, &l); /* qwen2, tied */
    base = malloc(l.elements * sizeof(float));
    assert_int_equal(hzp_layout_mat(&l, base, HZP_F32, HZP_QKV_BIAS, 2).cols, 48);
    assert_null(hzp_layout_mat(&l, base, HZP_F32, HZP_Q_NORM, 0).ptr);
    assert_ptr_equal(hzp_layout_mat(&l, base, HZP_F32, HZP_HEAD, -1).ptr,
                     hzp_layout_mat(&l, base, HZP_F32, HZP_EMBED, -1).ptr);
    hzp_layout_free(&l);
    free(base);
}

/* The names of two families, spelled out: a mapping that is wrong everywhere alike would pass
 * every round trip. */
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
        cmocka_unit_test(test_mats),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
