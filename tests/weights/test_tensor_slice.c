/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/fixture/units.h"
#include "weights/model_dir.h"
#include "weights/tensor_slice.h"

#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"

static struct hzp_err_text err;

/* The tiny model with numbers that 4 divides, saved in scratch/model. */
static void whole_make(int which, enum hzp_dtype type, struct hzp_model_config *c,
                       struct hzp_layout *layout, struct hzp_units *units)
{
    mkdir(scratch_path("model"), 0777);
    scratch_write_text(scratch_path("model/config.json"), tiny_models[which]);
    assert_int_equal(hzp_config_read(scratch_path("model"), c, &err), HZP_OK);
    c->vocab = 40;
    c->heads.kv_heads = 4;
    hzp_layout_make(c, layout);
    *units = fixture_units(layout, type);
    assert_int_equal(hzp_model_init(NULL, units, 7, 0.5f), HZP_OK);
    if (hzp_model_save(scratch_path("model"), NULL, units, scratch_path("model"), &err) < 0)
        fail_msg("%s", err.text);
}

/* Every number of the slice is where the layout of the whole model has it: row by row, by what the
 * header says and not by the disk tensors that the code goes by. */
static void check_slice(const struct hzp_units *whole, const struct hzp_units *slice)
{
    const struct hzp_layout *l = slice->layout;
    const struct hzp_model_config *c = &whole->layout->config;
    int32_t rank = l->slice.rank, ranks = l->slice.ranks, dim = c->heads.dim;
    size_t size = hzp_dtype_size(slice->type);
    for (int32_t i = 0; i < l->tensors; i++) {
        const struct hzp_tensor *t = &l->tensor[i];
        struct hzp_mat a = hzp_units_mat(slice, t->role, t->layer);
        struct hzp_mat b = hzp_units_mat(whole, t->role, t->layer);
        bool bias = t->role == HZP_QKV_BIAS;
        if (bias) {
            a = (struct hzp_mat){a.ptr, a.cols, 1, 1, a.type};
            b = (struct hzp_mat){b.ptr, b.cols, 1, 1, b.type};
        }
        for (int32_t r = 0; r < a.rows; r++) {
            int32_t row = r, col = 0, q = c->heads.heads / ranks * dim;
            int32_t kv = c->heads.kv_heads / ranks * dim, inner = c->inner / ranks;
            if (t->role == HZP_QKV || bias)
                row = r < q        ? rank * q + r
                      : r < q + kv ? ranks * q + rank * kv + r - q
                                   : ranks * (q + kv) + rank * kv + r - q - kv;
            if (t->role == HZP_GATE_UP)
                row = r < inner ? rank * inner + r : c->inner + rank * inner + r - inner;
            if (t->role == HZP_EMBED || t->role == HZP_HEAD)
                row = rank * (c->vocab / ranks) + r;
            if (t->role == HZP_O)
                col = rank * q;
            if (t->role == HZP_DOWN)
                col = rank * inner;
            assert_true(row < b.rows && col + a.cols <= b.cols);
            assert_memory_equal((char *)a.ptr + (size_t)r * (size_t)a.stride * size,
                                (char *)b.ptr +
                                    ((size_t)row * (size_t)b.stride + (size_t)col) * size,
                                (size_t)a.cols * size);
        }
    }
}

/* The slice read in pieces of an odd number of elements. */
static void check_pieces(const struct hzp_units *slice)
{
    struct hzp_model_reader *reader;
    size_t size = hzp_dtype_size(slice->type);
    if (hzp_model_open(scratch_path("model"), slice->layout, slice->type, &reader, &err) < 0)
        fail_msg("%s", err.text);
    for (int32_t u = 0; u < slice->layout->units; u++) {
        size_t all = slice->layout->unit[u].elements;
        char *got = malloc(all * size);
        for (size_t at = 0; at < all; at += 37)
            if (hzp_model_read(reader, u, at, HZP_MIN(all - at, (size_t)37), got + at * size,
                               &err) < 0)
                fail_msg("%s", err.text);
        assert_memory_equal(got, hzp_unit_view(slice, u).base, all * size);
        free(got);
    }
    hzp_model_close(reader);
}

/* Loads each rank's slice, compares it with the whole, and puts the whole together again. */
static void check_ranks(const struct hzp_model_config *c, const struct hzp_units *whole,
                        int32_t ranks)
{
    size_t size = hzp_dtype_size(whole->type), elements = 0;
    struct hzp_units again = fixture_units(whole->layout, whole->type);
    assert_int_equal(hzp_tensor_slice_check(c, ranks, &err), HZP_OK);
    for (int32_t r = 0; r < ranks; r++) {
        struct hzp_layout l;
        hzp_layout_make_slice(c, (struct hzp_tensor_slice){r, ranks}, &l);
        assert_int_equal(l.config.vocab, c->vocab);
        assert_int_equal(l.config.heads.heads * ranks, c->heads.heads);
        assert_int_equal(hzp_layout_inner_max(&l) * ranks, c->inner);
        struct hzp_units slice = fixture_units(&l, whole->type);
        memset(slice.base[0], 0xff, hzp_units_bytes(&l, whole->type));
        if (hzp_model_load(scratch_path("model"), NULL, &slice, NULL, &err) < 0)
            fail_msg("%s", err.text);
        check_slice(whole, &slice);
        check_pieces(&slice);
        for (int32_t u = 0; u < l.units; u++) {
            void *cut = malloc(l.unit[u].elements * size);
            const void *base = hzp_unit_view(&slice, u).base;
            hzp_tensor_slice_cut(whole->layout, &l, u, size, hzp_unit_view(whole, u).base, cut);
            assert_memory_equal(cut, base, l.unit[u].elements * size);
            hzp_tensor_slice_join(whole->layout, &l, u, size, base, hzp_unit_view(&again, u).base);
            free(cut);
        }
        elements += l.elements;
        fixture_units_free(&slice);
        hzp_layout_free(&l);
    }
    assert_true(fixture_units_same(NULL, whole, &again));
    assert_true(elements >= whole->layout->elements);
    fixture_units_free(&again);
}

static void test_slices(void **state)
{
    for (int i = 0; i < HZP_COUNT(tiny_models); i++)
        for (int type = HZP_F32; type <= HZP_BF16; type++) {
            struct hzp_model_config c;
            struct hzp_layout layout;
            struct hzp_units whole;
            whole_make(i, (enum hzp_dtype)type, &c, &layout, &whole);
            bool sums = c.norm_after || c.qk_norm_full; /* of all ranks, which norms read */
            assert_int_equal(hzp_tensor_slice_check(&c, 2, &err), sums ? HZP_EUNSUP : HZP_OK);
            for (int32_t ranks = 1; ranks <= (sums ? 1 : 4); ranks *= 2)
                check_ranks(&c, &whole, ranks);
            fixture_units_free(&whole);
            hzp_layout_free(&layout);
        }
}

/* Of a slice only what all ranks have is compared. */
static void test_agrees(void **state)
{
    for (int i = 0; i < HZP_COUNT(tiny_models); i++) {
        enum hzp_dtype type = i % 2 ? HZP_F32 : HZP_BF16;
        size_t size = hzp_dtype_size(type);
        struct hzp_model_config c;
        struct hzp_layout layout, l;
        struct hzp_units whole;
        whole_make(i, type, &c, &layout, &whole);
        hzp_layout_make_slice(&c, (struct hzp_tensor_slice){1, 2}, &l);
        for (int32_t k = 0; k < l.tensors; k++) {
            const struct hzp_tensor *t = &l.tensor[k];
            char *cut = malloc(l.unit[t->unit].elements * size);
            void *unit = hzp_unit_view(&whole, t->unit).base;
            hzp_tensor_slice_cut(&layout, &l, t->unit, size, unit, cut);
            assert_true(hzp_tensor_slice_agrees(&layout, &l, t->unit, size, cut, unit));
            cut[t->offset * size] ^= 1;
            bool common = t->rows == layout.tensor[k].rows && t->cols == layout.tensor[k].cols;
            assert_int_equal(hzp_tensor_slice_agrees(&layout, &l, t->unit, size, cut, unit),
                             !common);
            free(cut);
        }
        fixture_units_free(&whole);
        hzp_layout_free(&l);
        hzp_layout_free(&layout);
    }
}

static void refused(const struct hzp_model_config *c, int32_t ranks, const char *what,
                    const char *number)
{
    assert_int_equal(hzp_tensor_slice_check(c, ranks, &err), HZP_EINVAL);
    if (!strstr(err.text, what) || !strstr(err.text, number))
        fail_msg("'%s' does not name %s, %s", err.text, what, number);
}

static void test_refused(void **state)
{
    struct hzp_model_config c = {
        .inner = 36, .vocab = 42, .heads = {.heads = 12, .kv_heads = 6, .dim = 8}};
    assert_int_equal(hzp_tensor_slice_check(&c, 1, &err), HZP_OK);
    assert_int_equal(hzp_tensor_slice_check(&c, 6, &err), HZP_OK);
    refused(&c, 5, "attention heads", "12");
    refused(&c, 4, "key-value heads", "6");
    c.inner = 34;
    refused(&c, 3, "inner width", "34");
    c.inner = 36;
    c.vocab = 43;
    refused(&c, 2, "vocabulary", "43");
    refused(&c, 0, "ranks", "0");
}

/* An error names the tensor on disk and the place of the number there, not in the slice. */
static void test_not_finite(void **state)
{
    struct hzp_model_config c;
    struct hzp_layout layout, l;
    struct hzp_units whole;
    whole_make(1, HZP_F32, &c, &layout, &whole);
    struct hzp_mat down = hzp_units_mat(&whole, HZP_DOWN, 2);
    ((float *)down.ptr)[3 * down.cols + 11] = 1.0f / 0.0f;
    assert_int_equal(
        hzp_model_save(scratch_path("model"), NULL, &whole, scratch_path("model"), &err), HZP_OK);
    for (int32_t r = 0; r < 2; r++) {
        hzp_layout_make_slice(&c, (struct hzp_tensor_slice){r, 2}, &l);
        struct hzp_units slice = fixture_units(&l, HZP_F32);
        int code = hzp_model_load(scratch_path("model"), NULL, &slice, NULL, &err);
        assert_int_equal(code, r == 1 ? HZP_EFORMAT : HZP_OK); /* columns 10 to 19 */
        if (r == 1 && (!strstr(err.text, "layers.2.mlp.down_proj") || !strstr(err.text, " 71 ")))
            fail_msg("%s", err.text);
        fixture_units_free(&slice);
        hzp_layout_free(&l);
    }
    fixture_units_free(&whole);
    hzp_layout_free(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_agrees),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
