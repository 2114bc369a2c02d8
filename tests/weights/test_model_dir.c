/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device/bf16.h"
#include "tests/fixture/units.h"
#include "weights/model_dir.h"
#include "weights/safetensors.h"

#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"

#include <math.h>

/* A model whose config.json is in scratch/name, and one version of it. */
struct model {
    struct hzp_layout layout;
    struct hzp_units units; /* in host memory */
};

static void model_make(int which, const char *name, enum hzp_dtype type, struct model *ret)
{
    struct hzp_model_config c;
    struct hzp_err_text err;
    mkdir(scratch_path("%s", name), 0777);
    scratch_write_text(scratch_path("%s/config.json", name), tiny_models[which]);
    if (hzp_config_read(scratch_path("%s", name), &c, &err) != HZP_OK)
        fail_msg("%s", err.text);
    hzp_layout_make(&c, &ret->layout);
    ret->units = fixture_units(&ret->layout, type);
    assert_int_equal(hzp_model_init(NULL, &ret->units, 7, 0.5f), HZP_OK);
}

static void model_free(struct model *m)
{
    fixture_units_free(&m->units);
    hzp_layout_free(&m->layout);
}

/* Element i of a tensor. */
static float value_at(const struct model *m, const struct hzp_tensor *t, size_t i)
{
    struct hzp_mat mat = hzp_units_mat(&m->units, t->role, t->layer);
    return mat.type == HZP_F32 ? ((const float *)mat.ptr)[i]
                               : hzp_bf16_to_f32(((const uint16_t *)mat.ptr)[i]);
}

static void save(const struct model *m, const char *dir, const char *source, size_t shard)
{
    struct hzp_err_text err;
    if (hzp_model_save_shards(scratch_path("%s", dir), NULL, &m->units, scratch_path("%s", source),
                              shard, &err) != HZP_OK)
        fail_msg("%s", err.text);
}

/* Loads dir and compares all of it with m, including padding. */
static void expect_same(const struct model *m, const char *dir)
{
    struct hzp_err_text err;
    struct hzp_units units = fixture_units(&m->layout, m->units.type);
    uint64_t checksum, expected;
    memset(units.base[0], 0xff, hzp_units_bytes(&m->layout, units.type));
    if (hzp_model_load(scratch_path("%s", dir), NULL, &units, &checksum, &err) != HZP_OK)
        fail_msg("%s", err.text);
    assert_true(fixture_units_same(NULL, &units, &m->units));
    assert_int_equal(hzp_units_checksum(NULL, &m->units, &expected), HZP_OK);
    assert_int_equal(checksum, expected);
    fixture_units_free(&units);
}

static void expect_bad(const struct model *m, const char *dir, int code, const char *word,
                       const char *other)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_units units = fixture_units(&m->layout, m->units.type);
    int r = hzp_model_load(scratch_path("%s", dir), NULL, &units, NULL, &err);
    if (r != code || !strstr(err.text, word) || !strstr(err.text, other))
        fail_msg("%d '%s' does not name '%s' and '%s'", r, err.text, word, other);
    assert_int_equal(hzp_model_load(scratch_path("%s", dir), NULL, &units, NULL, NULL), code);
    fixture_units_free(&units);
}

static void test_round_trip(void **state)
{
    for (int i = 0; i < HZP_COUNT(tiny_models); i++)
        for (int type = HZP_F32; type <= HZP_BF16; type++) {
            struct model m;
            struct hzp_model_config c;
            model_make(i, "source", (enum hzp_dtype)type, &m);
            save(&m, "one", "source", SIZE_MAX);
            expect_same(&m, "one");
            assert_true(scratch_exists(scratch_path("one/model.safetensors")));
            assert_int_equal(hzp_config_read(scratch_path("one"), &c, NULL), HZP_OK);
            assert_int_equal(c.disk_type, type);
            c.disk_type = m.layout.config.disk_type;
            assert_memory_equal(&c, &m.layout.config, sizeof(c));

            save(&m, "one", "source", 3000); /* over the single file */
            expect_same(&m, "one");
            assert_false(scratch_exists(scratch_path("one/model.safetensors")));
            assert_true(scratch_exists(scratch_path("one/model.safetensors.index.json")));
            save(&m, "one", "one", SIZE_MAX); /* back, and over its own source */
            expect_same(&m, "one");
            assert_false(scratch_exists(scratch_path("one/model.safetensors.index.json")));
            model_free(&m);
        }
}

static void test_copies(void **state)
{
    struct model m;
    char text[16] = "";
    model_make(0, "with", HZP_F32, &m);
    scratch_write_text(scratch_path("with/tokenizer.json"), "{tok}");
    scratch_write_text(scratch_path("with/generation_config.json"), "{\"eos_token_id\": [3, 4]}");
    scratch_write_text(scratch_path("with/optimizer.bin"), "no");
    save(&m, "copy", "with", SIZE_MAX);
    FILE *file = fopen(scratch_path("copy/tokenizer.json"), "r");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, 15, file), 5);
    fclose(file);
    assert_string_equal(text, "{tok}");
    struct hzp_model_config c;
    assert_int_equal(hzp_config_read(scratch_path("copy"), &c, NULL), HZP_OK);
    assert_int_equal(c.eos_count, 2);
    assert_false(scratch_exists(scratch_path("copy/optimizer.bin")));
    assert_false(scratch_exists(scratch_path("copy/config.json.tmp")));
    struct hzp_err_text err;
    assert_int_equal(
        hzp_model_save(scratch_path("no/where"), NULL, &m.units, scratch_path("with"), &err),
        HZP_EIO);
    assert_non_null(strstr(err.text, "no/where"));
    assert_int_equal(
        hzp_model_save(scratch_path("copy"), NULL, &m.units, scratch_path("absent"), &err),
        HZP_ENOENT);
    model_free(&m);
}

/* How a hand-written file differs from a correct one. */
struct change {
    const char *skip, *twist; /* left out; written with shape [2][..] */
    const char *extra;
    const char *gone; /* its data are in the file, its name is not */
    const char *odd;  /* element odd_at of this tensor is odd_value */
    size_t odd_at;
    double odd_value;
    enum hzp_disk_type type;
    bool head;       /* also lm_head.weight, equal to the embedding */
    bool other_head; /* also lm_head.weight, not equal */
};

static float sample(size_t i)
{
    return (float)((int)(i * 7919 % 2001) - 1000) / 512; /* exact in F16, not in BF16 */
}

static void write_element(enum hzp_disk_type type, char *at, size_t i, double wide)
{
    float x = (float)wide;
    if (type == HZP_DISK_F64)
        ((double *)at)[i] = wide;
    else if (type == HZP_DISK_F32)
        ((float *)at)[i] = x;
    else if (type == HZP_DISK_BF16)
        ((uint16_t *)at)[i] = hzp_bf16_from_f32(x);
    else { /* F16: normal numbers, zero, and non-finite values */
        uint32_t bits = hzp_f32_bits(x);
        ((uint16_t *)at)[i] =
            isnan(x)   ? 0x7e00
            : isinf(x) ? 0x7c00
            : x == 0   ? 0
                       : (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 |
                                  (bits >> 13 & 0x3ff));
    }
}

/* Overwrites a tensor's entry in the header with spaces; its data remain. */
static void remove_name(const char *path, const char *name)
{
    char quoted[128];
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    char *text = calloc(1, (size_t)st.st_size + 1);
    FILE *file = fopen(path, "r+");
    assert_int_equal(fread(text, 1, (size_t)st.st_size, file), st.st_size);
    snprintf(quoted, sizeof(quoted), "\"%s\"", name);
    char *begin = strstr(text + 8, quoted);
    assert_non_null(begin);
    char *end = strchr(begin, '}') + 1;
    if (*end == ',')
        end++;
    else
        begin = memrchr(text + 8, ',', (size_t)(begin - text - 8));
    memset(begin, ' ', (size_t)(end - begin));
    rewind(file);
    assert_int_equal(fwrite(text, 1, (size_t)st.st_size, file), st.st_size);
    fclose(file);
    free(text);
}

/* Writes dir/file with sample(0 ..) in every tensor, in any type of file. */
static void write_by_hand(const struct hzp_layout *l, const char *path, struct change change)
{
    struct hzp_st_writer *w;
    size_t size = hzp_disk_type_size(change.type == HZP_DISK_I32 ? HZP_DISK_F32 : change.type);
    char *data = calloc(37 * 24, 8);
    assert_int_equal(hzp_st_writer_open(path, &w, NULL), HZP_OK);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < l->disks; i++) {
            const struct hzp_disk_tensor *d = &l->disk[i];
            int64_t cols = d->vector ? 1 : l->tensor[d->tensor].cols, shape[] = {d->rows, cols};
            size_t n = (size_t)(shape[0] * cols);
            if (change.skip && !strcmp(d->name, change.skip))
                continue;
            if (change.twist && !strcmp(d->name, change.twist)) {
                shape[0] = cols;
                shape[1] = d->rows;
            }
            if (pass == 0) {
                hzp_st_writer_declare(w, d->name, change.type, d->vector ? 1 : 2, shape);
                continue;
            }
            for (size_t j = 0; j < n; j++)
                write_element(change.type, data, j, sample(j));
            if (change.odd && !strcmp(d->name, change.odd))
                write_element(change.type, data, change.odd_at, change.odd_value);
            hzp_st_writer_data(w, data, n * size, NULL);
        }
        int64_t n = change.head || change.other_head ? 37 * 24 : 0;
        if (pass == 0 && n)
            hzp_st_writer_declare(w, "lm_head.weight", change.type, 2, (int64_t[]){37, 24});
        for (int64_t j = 0; j < n; j++)
            write_element(change.type, data, (size_t)j,
                          sample((size_t)j) + (float)(change.other_head && j == n - 1));
        if (pass == 1)
            hzp_st_writer_data(w, data, (size_t)n * size, NULL);
        if (pass == 0 && change.extra)
            hzp_st_writer_declare(w, change.extra, change.type, 1, (int64_t[]){4});
        if (pass == 1 && change.extra)
            hzp_st_writer_data(w, data, 4 * size, NULL);
    }
    assert_int_equal(hzp_st_writer_finish(w, NULL), HZP_OK);
    free(data);
    if (change.gone)
        remove_name(path, change.gone);
}

static void test_types(void **state)
{
    static const enum hzp_disk_type types[] = {HZP_DISK_F64, HZP_DISK_F32, HZP_DISK_F16,
                                               HZP_DISK_BF16};
    for (int to = HZP_F32; to <= HZP_BF16; to++)
        for (int i = 0; i < HZP_COUNT(types); i++) {
            struct model m;
            struct hzp_err_text err;
            model_make(3, "typed", (enum hzp_dtype)to, &m);
            write_by_hand(&m.layout, scratch_path("typed/model.safetensors"),
                          (struct change){.type = types[i]});
            if (hzp_model_load(scratch_path("typed"), NULL, &m.units, NULL, &err) != HZP_OK)
                fail_msg("%s", err.text);
            for (int j = 0; j < m.layout.disks; j++) {
                const struct hzp_disk_tensor *d = &m.layout.disk[j];
                const struct hzp_tensor *t = &m.layout.tensor[d->tensor];
                size_t cols = d->vector ? 1 : (size_t)t->cols;
                for (size_t k = 0; k < (size_t)d->rows * cols; k++) {
                    float x = sample(k);
                    if (to == HZP_BF16 || types[i] == HZP_DISK_BF16)
                        x = hzp_bf16_to_f32(hzp_bf16_from_f32(x));
                    float got = value_at(&m, t, (size_t)d->row0 * cols + k);
                    if (got != x)
                        fail_msg("%s[%zu] is %g, not %g", d->name, k, (double)got, (double)x);
                }
            }
            model_free(&m);
        }
}

static void test_convert(void **state)
{
    /* halves: largest, smallest normal, subnormals, zeros, infinities, NaN */
    const uint16_t half[] = {0x7bff, 0x0400, 0x03ff, 0x0001, 0x8001, 0x0000,
                             0x8000, 0x7c00, 0xfc00, 0x7e00, 0x3555};
    const float want[] = {65504, 0x1p-14f, 1023 * 0x1p-24f, 0x1p-24f, -0x1p-24f,      0,
                          -0.0f, INFINITY, -INFINITY,       NAN,      1365 * 0x1p-12f};
    float got[HZP_COUNT(half)];
    hzp_convert(HZP_DISK_F16, half, HZP_F32, got, HZP_COUNT(half));
    for (int i = 0; i < HZP_COUNT(half); i++)
        assert_true(isnan(want[i]) ? isnan(got[i])
                                   : got[i] == want[i] && !signbit(got[i]) == !signbit(want[i]));
    /* a double just above a tie of BF16: rounded through F32 first, it would become the tie */
    const double wide[] = {1 + 0x1p-8 + 0x1p-40,
                           1 + 0x1p-8,
                           1 + 3 * 0x1p-8 - 0x1p-40,
                           1 + 3 * 0x1p-8,
                           -1 - 0x1p-8 - 0x1p-40,
                           1e300,
                           -1e-300,
                           NAN};
    const uint16_t narrow[] = {0x3f81, 0x3f80, 0x3f81, 0x3f82, 0xbf81, 0x7f80, 0x8000};
    uint16_t to[HZP_COUNT(wide)];
    hzp_convert(HZP_DISK_F64, wide, HZP_BF16, to, HZP_COUNT(wide));
    for (int i = 0; i < HZP_COUNT(narrow); i++)
        assert_int_equal(to[i], narrow[i]);
    assert_true(isnan(hzp_bf16_to_f32(to[7])));
}

static void test_wrong(void **state)
{
    static const struct {
        struct change change;
        const char *word;
    } bad[] = {
        {{.skip = "model.layers.1.mlp.up_proj.weight"},
         "model.layers.1.mlp.up_proj.weight is missing"},
        {{.skip = "model.norm.weight"}, "model.norm.weight is missing"},
        /* at the begin, in the middle and at the end of the file; the names next to them are
           present */
        {{.gone = "model.embed_tokens.weight"}, "tensor model.embed_tokens.weight is missing"},
        {{.gone = "model.layers.1.mlp.up_proj.weight"},
         "tensor model.layers.1.mlp.up_proj.weight is missing"},
        {{.gone = "model.norm.weight"}, "tensor model.norm.weight is missing"},
        {{.gone = "spare.inv_freq", .extra = "spare.inv_freq"}, "the tensors end at"},
        {{.twist = "model.layers.2.mlp.down_proj.weight"},
         "model.layers.2.mlp.down_proj.weight: shape [20, 24], expected [24, 20]"},
        {{.extra = "model.layers.3.input_layernorm.weight"}, "layers.3.input_layernorm.weight"},
        {{.extra = "model.layers.0.self_attn.q_proj.bias"}, "q_proj.bias"},
        {{.extra = "lm_head.weight"}, "lm_head.weight: shape [4], expected [37, 24]"},
        {{.type = HZP_DISK_I32}, "type I32"},
        {{.other_head = true}, "lm_head.weight: differs"},
        {{.extra = "a-name-that-is-longer-than-any-that-a-family-has-0123456789012345678901234567"
                   "8901234567890123456789"},
         "tensor a-name"},
    };
    struct model m;
    model_make(0, "wrong", HZP_F32, &m);
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        struct change change = bad[i].change;
        if (change.type == 0)
            change.type = HZP_DISK_F32;
        write_by_hand(&m.layout, scratch_path("wrong/model.safetensors"), change);
        expect_bad(&m, "wrong", HZP_EFORMAT, bad[i].word, "wrong/model.safetensors");
    }
    assert_int_equal(truncate(scratch_path("wrong/model.safetensors"), 5000), 0);
    expect_bad(&m, "wrong", HZP_EFORMAT, "truncated", "tensor");
    unlink(scratch_path("wrong/model.safetensors"));
    expect_bad(&m, "wrong", HZP_ENOENT, "neither", "wrong");
    model_free(&m);
}

/* A non-finite value is never loaded silently: any type on disk, any type in memory, anywhere in
   a tensor. */
static void test_not_finite(void **state)
{
    static const struct {
        enum hzp_disk_type type;
        double value;
        int to; /* -1: both */
        const char *told;
    } bad[] = {
        {HZP_DISK_F32, NAN, -1, "NaN"},
        {HZP_DISK_F32, INFINITY, -1, "infinite"},
        {HZP_DISK_F32, -INFINITY, -1, "infinite"},
        {HZP_DISK_BF16, NAN, -1, "NaN"},
        {HZP_DISK_BF16, -INFINITY, -1, "infinite"},
        {HZP_DISK_F16, NAN, -1, "NaN"},
        {HZP_DISK_F16, INFINITY, -1, "infinite"},
        {HZP_DISK_F64, NAN, -1, "NaN"},
        {HZP_DISK_F64, 1e300, -1, "too large"},
        {HZP_DISK_F32, 3.4e38, HZP_BF16, "too large"},
    };
    static const struct {
        const char *name;
        size_t at;
    } where[] = {{"model.embed_tokens.weight", 0},
                 {"model.embed_tokens.weight", 37 * 24 - 1},
                 {"model.layers.1.mlp.down_proj.weight", 255},
                 {"model.norm.weight", 23},
                 {"model.layers.2.self_attn.k_proj.weight", 256}};
    for (int to = HZP_F32; to <= HZP_BF16; to++)
        for (int i = 0; i < HZP_COUNT(bad); i++)
            for (int j = 0; j < HZP_COUNT(where); j++) {
                struct model m;
                char told[160];
                if (bad[i].to >= 0 && bad[i].to != to)
                    continue;
                model_make(3, "odd", (enum hzp_dtype)to, &m);
                write_by_hand(&m.layout, scratch_path("odd/model.safetensors"),
                              (struct change){.type = bad[i].type,
                                              .odd = where[j].name,
                                              .odd_at = where[j].at,
                                              .odd_value = bad[i].value});
                snprintf(told, sizeof(told), "odd/model.safetensors: tensor %s: element %zu is %s",
                         where[j].name, where[j].at, bad[i].told);
                expect_bad(&m, "odd", HZP_EFORMAT, told, "finite");
                model_free(&m);
            }
}

static void test_first_nonfinite(void **state)
{
    enum { N = 1000 };
    static float wide[N];
    static uint16_t narrow[N];
    for (int n = 0; n <= N; n += 125)
        for (int at = 0; at < n; at++) {
            for (int i = 0; i < N; i++) {
                wide[i] = i % 2 ? 3.4028234e38f : -0.0f;
                narrow[i] = i % 2 ? 0xff7f : 0x8000; /* the largest finite value */
            }
            assert_int_equal(hzp_first_nonfinite(HZP_F32, wide, (size_t)n), n);
            assert_int_equal(hzp_first_nonfinite(HZP_BF16, narrow, (size_t)n), n);
            wide[at] = at % 2 ? NAN : -INFINITY;
            narrow[at] = at % 2 ? 0x7f81 : 0xff80;
            assert_int_equal(hzp_first_nonfinite(HZP_F32, wide, (size_t)n), at);
            assert_int_equal(hzp_first_nonfinite(HZP_BF16, narrow, (size_t)n), at);
        }
}

static void test_leftovers(void **state)
{
    static const struct change good[] = {
        {.type = HZP_DISK_F32},
        {.type = HZP_DISK_F32, .extra = "model.layers.0.self_attn.rotary_emb.inv_freq"},
        {.type = HZP_DISK_F32, .head = true},
        {.type = HZP_DISK_F32, .head = true, .skip = "model.embed_tokens.weight"},
    };
    struct model m;
    model_make(0, "left", HZP_F32, &m);
    write_by_hand(&m.layout, scratch_path("left/model.safetensors"), good[0]);
    assert_int_equal(hzp_model_load(scratch_path("left"), NULL, &m.units, NULL, NULL), 0);
    for (int i = 0; i < HZP_COUNT(good); i++) {
        write_by_hand(&m.layout, scratch_path("left/model.safetensors"), good[i]);
        expect_same(&m, "left");
    }
    model_free(&m);
}

/* Writes source's tensors under the names that a vision model has, beside one of its own. */
static void wrap(const char *source, const char *path, const char *prefix, const char *other)
{
    struct hzp_safetensors *st;
    struct hzp_st_writer *w;
    char name[160], data[8192];
    assert_int_equal(hzp_safetensors_open(source, &st, NULL), HZP_OK);
    assert_int_equal(hzp_st_writer_open(path, &w, NULL), HZP_OK);
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < hzp_safetensors_count(st); i++) {
            const struct hzp_st_tensor *t = hzp_safetensors_at(st, i);
            assert_true((size_t)t->elements * 4 <= sizeof(data) && !strncmp(t->name, "model.", 6));
            snprintf(name, sizeof(name), "%s%s", prefix, t->name + 6);
            if (pass == 0)
                hzp_st_writer_declare(w, name, t->type, t->dims, t->shape);
            else
                assert_int_equal(hzp_safetensors_read(t, 0, t->elements, data, NULL), HZP_OK);
            if (pass == 1)
                hzp_st_writer_data(w, data, (size_t)t->elements * 4, NULL);
        }
        if (pass == 0)
            hzp_st_writer_declare(w, other, HZP_DISK_F32, 1, (int64_t[]){1});
        else
            hzp_st_writer_data(w, data, 4, NULL);
    }
    assert_int_equal(hzp_st_writer_finish(w, NULL), HZP_OK);
    hzp_safetensors_close(st);
}

static void read_file(const char *path, char *ret, size_t size, size_t *ret_size)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    *ret_size = fread(ret, 1, size, file);
    assert_true(*ret_size > 0 && *ret_size < size);
    fclose(file);
}

/* Of a vision model the text model is read, whatever transformers of the time calls its tensors,
 * and saved as a model of its own: the bytes of one that never was in another. */
static void test_wrapped(void **state)
{
    static const char *const prefix[] = {"language_model.model.", "model.language_model."};
    static const char *const other[] = {"vision_tower.x", "model.multi_modal_projector.x"};
    enum { SIZE = 1 << 17 };
    char *text = malloc(2 * SIZE), config[2048];
    size_t first, second;
    struct model m;
    int which = 0;
    while (!strstr(tiny_models[which], "gemma3_text"))
        which++;
    model_make(which, "text", HZP_F32, &m);
    save(&m, "flat", "text", SIZE_MAX);
    read_file(scratch_path("flat/model.safetensors"), text, SIZE, &first);
    mkdir(scratch_path("whole"), 0777);
    snprintf(config, sizeof(config), "{\"model_type\": \"gemma3\", \"text_config\": %s}",
             tiny_models[which]);
    scratch_write_text(scratch_path("whole/config.json"), config);
    for (int i = 0; i < 2; i++) {
        wrap(scratch_path("flat/model.safetensors"), scratch_path("whole/model.safetensors"),
             prefix[i], other[i]);
        expect_same(&m, "whole");
        save(&m, "again", "whole", SIZE_MAX);
        read_file(scratch_path("again/model.safetensors"), text + SIZE, SIZE, &second);
        assert_true(first == second && !memcmp(text, text + SIZE, first));
        read_file(scratch_path("again/config.json"), config, sizeof(config), &second);
        config[second] = '\0';
        assert_null(strstr(config, "text_config"));
        assert_non_null(strstr(config, "Gemma3ForCausalLM"));
        expect_same(&m, "again");
    }
    wrap(scratch_path("flat/model.safetensors"), scratch_path("whole/model.safetensors"), prefix[0],
         "audio_tower.x");
    expect_bad(&m, "whole", HZP_EFORMAT, "audio_tower.x", "no such tensor");
    wrap(scratch_path("flat/model.safetensors"), scratch_path("flat/model.safetensors"), "model.",
         other[0]); /* no wrapper */
    expect_bad(&m, "flat", HZP_EFORMAT, other[0], "no such tensor");
    free(text);
    model_free(&m);
}

static void test_bad_index(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *word;
    } bad[] = {
        {"{}", HZP_EFORMAT, "weight_map"},
        {"{\"weight_map\": []}", HZP_EFORMAT, "weight_map"},
        {"{\"weight_map\": {}}", HZP_EFORMAT, "weight_map"},
        {"{\"weight_map\": {\"a\": 3}}", HZP_EFORMAT, "tensor a"},
        {"{\"weight_map\": {\"a\": \"../x\"}}", HZP_EFORMAT, "../x"},
        {"{\"weight_map\": {\"a\": \"\"}}", HZP_EFORMAT, "tensor a"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", HZP_EFORMAT, "passwd"},
        {"{\"weight_map\": {\"a\": \"gone.safetensors\"}}", HZP_ENOENT, "gone.safetensors"},
        {"{\"weight_map\": {\"a\": \"config.json\"}}", HZP_EFORMAT, "config.json"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}", HZP_EFORMAT,
         "is in another file too"},
        {"{\"weight_map\": {\"a\": \"part.safetensors\"}}", HZP_EFORMAT,
         "model.norm.weight is missing"},
        {"{", HZP_EFORMAT, "line 1"},
    };
    struct model m;
    struct change whole = {.type = HZP_DISK_F32}, part = whole;
    part.skip = "model.norm.weight";
    model_make(0, "index", HZP_F32, &m);
    write_by_hand(&m.layout, scratch_path("index/one.safetensors"), whole);
    write_by_hand(&m.layout, scratch_path("index/two.safetensors"), whole);
    write_by_hand(&m.layout, scratch_path("index/part.safetensors"), part);
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        scratch_write_text(scratch_path("index/model.safetensors.index.json"), bad[i].text);
        expect_bad(&m, "index", bad[i].code, bad[i].word, "index");
    }
    model_free(&m);
}

static void test_init(void **state)
{
    struct model a, b, c;
    model_make(1, "init", HZP_F32, &a);
    model_make(1, "init", HZP_BF16, &b);
    model_make(1, "init", HZP_F32, &c);
    assert_true(fixture_units_same(NULL, &a.units, &c.units));
    for (int i = 0; i < a.layout.tensors; i++) {
        const struct hzp_tensor *t = &a.layout.tensor[i];
        for (size_t j = 0; j < (size_t)t->rows * (size_t)t->cols; j++) {
            float narrow = hzp_bf16_to_f32(hzp_bf16_from_f32(value_at(&a, t, j)));
            assert_true(value_at(&b, t, j) == narrow);
        }
    }
    assert_int_equal(hzp_model_init(NULL, &c.units, 8, 0.5f), HZP_OK);
    assert_false(fixture_units_same(NULL, &a.units, &c.units));
    for (int i = 0; i < a.layout.tensors; i++) {
        const struct hzp_tensor *t = &a.layout.tensor[i];
        const float *x = hzp_units_mat(&a.units, t->role, t->layer).ptr;
        size_t n = (size_t)t->rows * (size_t)t->cols;
        double sum = 0, squares = 0;
        for (size_t j = 0; j < n; j++) {
            sum += x[j];
            squares += x[j] * x[j];
        }
        if (t->rows == 1) {
            assert_float_equal(sum, (double)n, 0);
            continue;
        }
        double std = t->role == HZP_O || t->role == HZP_DOWN ? 0.5 / sqrt(6) : 0.5;
        /* five standard errors of each estimate */
        assert_true(fabs(sum / (double)n) < 5 * std / sqrt((double)n));
        assert_true(fabs(sqrt(squares / (double)n) / std - 1) < 5 / sqrt(2 * (double)n));
    }
    model_free(&a);
    model_free(&b);
    model_free(&c);
}

/* A model of the given number of parameters, as HZP_F32 and as HZP_BF16: finite values of a trained
 * model's size, the narrow ones the wide ones rounded. */
static void read_trained(const char *dir, int64_t parameters)
{
    struct hzp_model_config c;
    struct hzp_layout l;
    struct hzp_err_text err;
    if (hzp_config_read(dir, &c, &err) != HZP_OK)
        fail_msg("%s", err.text);
    assert_int_equal(hzp_config_parameters(&c), parameters);
    hzp_layout_make(&c, &l);
    struct hzp_units wide = fixture_units(&l, HZP_F32), narrow = fixture_units(&l, HZP_BF16);
    if (hzp_model_load(dir, NULL, &wide, NULL, &err) != HZP_OK)
        fail_msg("%s", err.text);
    assert_int_equal(hzp_model_load(dir, NULL, &narrow, NULL, NULL), HZP_OK);
    double squares = 0;
    for (int32_t u = 0; u < l.units; u++) {
        const float *x = hzp_unit_view(&wide, u).base;
        const uint16_t *y = hzp_unit_view(&narrow, u).base;
        for (size_t i = 0; i < l.unit[u].elements; i++) {
            assert_true(isfinite(x[i]));
            assert_int_equal(hzp_bf16_from_f32(x[i]), y[i]);
            squares += (double)x[i] * x[i];
        }
    }
    assert_true(squares / (double)parameters > 1e-4 && squares / (double)parameters < 1);
    fixture_units_free(&wide);
    fixture_units_free(&narrow);
    hzp_layout_free(&l);
}

static void test_bundled_model(void **state)
{
    const char *data = getenv("HZP_OWN_DATA");
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/../../models/world", data ? data : "tests/data");
    read_trained(dir, 1115264);
}

static void test_published_model(void **state)
{
    const char *data = getenv("HZP_TEST_DATA");
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/hf/stories260K", data ? data : "");
    if (!data || !scratch_exists(dir))
        skip();
    read_trained(dir, 260032);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),      cmocka_unit_test(test_copies),
        cmocka_unit_test(test_types),           cmocka_unit_test(test_convert),
        cmocka_unit_test(test_wrong),           cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_bad_index),       cmocka_unit_test(test_init),
        cmocka_unit_test(test_bundled_model),   cmocka_unit_test(test_published_model),
        cmocka_unit_test(test_wrapped),         cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_first_nonfinite),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
