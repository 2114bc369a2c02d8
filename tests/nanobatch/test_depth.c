/* SPDX-License-Identifier: Apache-2.0 */
/* tests/nanobatch/test_depth.c - steps whose rows go through different layers: each row's token,
 * log-probability, keys and values have the bits that it has alone in a model of which the layers
 * that it leaves out were removed, nothing is appended to those, and the plan has no race, whatever
 * its shape.  And the paths: what is protected, even gaps, one number for each. */
#include "nanobatch/model/forward.h"
#include "nanobatch/run/exec.h"
#include "tests/fixture/model.h"
#include "tests/fixture/must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 9,
    VOCAB = 40,
    PAGE_ROWS = 4,
    STRIDE = 5,
    SEGS = 14,
    PAGES = SEGS * STRIDE,
    ROWS = 96
};

static const struct hzp_model_config config = {
    .family = "qwen3",
    .layers = LAYERS,
    .width = 64,
    .inner = 96,
    .vocab = VOCAB,
    .heads = {4, 2, 16},
    .positions = 64,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .tied = true,
    .qk_norm = true,
    .kind = {[1] = {.window = 5}},
    .layer_kind = {0, 1, 0, 1, 1, 0, 1, 0, 0},
    .disk_type = HZP_F32,
    .bos = -1,
};

struct subject {
    struct fixture_model m;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_exec *exec;
    struct hzp_plan plan;
};

static uint32_t seed = 3;

static int32_t draw(int32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int32_t)((seed >> 8) % (uint32_t)n);
}

static void open_subject(struct subject *s, const char *device, const struct hzp_path *path)
{
    struct fixture_config open = {
        .device = device, .threads = 2, .config = config, .store = {.type = HZP_F32}};
    open.config.layers = hzp_path_places(path, LAYERS);
    for (int32_t i = 0; i < open.config.layers; i++)
        open.config.layer_kind[i] = config.layer_kind[hzp_path_layer(path, i)];
    struct hzp_batch_config max = {.rows_max = ROWS,
                                   .segs_max = SEGS,
                                   .page_stride = STRIDE,
                                   .logits_max = SEGS,
                                   .edits_max = 1,
                                   .layers = open.config.layers};
    fixture_open(&s->m, &open);
    FIXTURE_MUST(hzp_batch_create(s->m.dev, &max, &s->batch));
    FIXTURE_MUST(hzp_serve_space_create(s->m.model, ROWS, SEGS, &s->space));
    FIXTURE_MUST(hzp_exec_create(s->m.dev, &s->exec));
    hzp_plan_init(&s->plan);
}

static void close_subject(struct subject *s)
{
    hzp_plan_fini(&s->plan);
    hzp_exec_destroy(s->exec);
    hzp_serve_space_destroy(s->space);
    hzp_batch_destroy(s->batch);
    fixture_close(&s->m);
}

/* The smaller model gets the weights of the larger one's layers. */
static void copy_weights(struct subject *whole, struct subject *part, const struct hzp_path *path)
{
    struct hzp_version *v = hzp_weights_current(whole->m.weights), *draft = fixture_begin(&part->m);
    int32_t units = part->m.layout.units, places = hzp_path_places(path, LAYERS);
    for (int32_t u = 0; u < units; u++) {
        int32_t of = u == 0 ? 0 : u > places ? LAYERS + 1 : 1 + hzp_path_layer(path, u - 1);
        struct hzp_unit_view from = hzp_version_unit(whole->m.weights, v, of);
        struct hzp_unit_view to = hzp_version_unit(part->m.weights, draft, u);
        assert_int_equal(from.elements, to.elements);
        memcpy(to.base, from.base, to.elements * hzp_dtype_size(to.type));
    }
    fixture_publish(&part->m, draft, 0);
}

/* ---- keys and values: [layers][2][PAGES * PAGE_ROWS rows] ---- */

static const size_t kv_bytes = sizeof(float) * 2 * 16 * PAGES * PAGE_ROWS;
static float *kv_memory, *kv_before;

static struct hzp_kv kv_of(int32_t layer)
{
    float *at = kv_memory + (size_t)layer * 2 * (kv_bytes / sizeof(float));
    return (struct hzp_kv){at,  at + kv_bytes / sizeof(float), PAGES, PAGE_ROWS, HZP_F32, NULL,
                           NULL};
}

static float *kv_copy(void)
{
    return memcpy(hzp_xmalloc(LAYERS * 2 * kv_bytes), kv_memory, LAYERS * 2 * kv_bytes);
}

/* Whether two pictures have the same bytes in this page of one layer's keys and values. */
static bool same_page(const float *a, const float *b, int32_t layer, int32_t page)
{
    size_t floats = kv_bytes / sizeof(float), rows = floats / PAGES;
    for (int k = 0; k < 2; k++) {
        size_t at = ((size_t)layer * 2 + (size_t)k) * floats + (size_t)page * rows;
        if (memcmp(a + at, b + at, rows * sizeof(float)) != 0)
            return false;
    }
    return true;
}

/* ---- segments ---- */

struct segment {
    int32_t pos0, rows, depth, first; /* its pages: first .. first + STRIDE - 1 */
    int32_t token[16];
};

/* Decode rows come first; paths in any order, as far as the batch takes it. */
static int32_t make_segments(struct segment *seg)
{
    int32_t decodes = draw(8), prompts = 1 + draw(6), count = HZP_MIN(decodes + prompts, SEGS),
            some = 1 + draw(HZP_DEPTHS);
    for (int32_t i = 0; i < count; i++) {
        int32_t rows = i < decodes ? 1 : 2 + draw(8);
        seg[i] = (struct segment){.pos0 = draw(STRIDE * PAGE_ROWS - rows),
                                  .rows = rows,
                                  .depth = draw(some),
                                  .first = i * STRIDE};
        if (i && draw(2) == 0)
            seg[i].depth = seg[i - 1].depth;
        for (int32_t k = 0; k < rows; k++)
            seg[i].token[k] = draw(VOCAB);
    }
    return count;
}

static void add(struct hzp_batch *b, const struct segment *s, int32_t depth)
{
    int32_t *page = hzp_batch_add_segment(b, s->pos0, s->rows == 1), row = 0;
    hzp_batch_set_path(b, depth);
    for (int32_t p = 0; p < STRIDE; p++)
        page[p] = s->first + p;
    for (int32_t k = 0; k < s->rows; k++)
        row = hzp_batch_add_row(b, s->token[k], s->first * PAGE_ROWS + s->pos0 + k);
    b->sample[hzp_batch_add_logits(b, row)] =
        (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = -1};
}

static void run(struct subject *s, const struct hzp_path *path, const struct hzp_plan_shape *shape)
{
    struct hzp_err_text text = {.text = ""};
    struct hzp_exec_times times;
    struct hzp_kv kv[LAYERS];
    for (int32_t i = 0; i < s->m.layout.config.layers; i++)
        kv[i] = kv_of(hzp_path_layer(path, i));
    memcpy(kv_memory, kv_before, LAYERS * 2 * kv_bytes);
    hzp_plan_clear(&s->plan);
    hzp_forward_build(&s->plan, s->m.model, hzp_weights_current(s->m.weights), s->batch, kv,
                      s->space, shape);
    if (hzp_plan_check(&s->plan, &text) < 0)
        fail_msg("%s", text.text);
    FIXTURE_MUST(hzp_exec_run(s->exec, &s->plan, NULL, &times));
}

static void random_shape(struct hzp_plan_shape *s)
{
    struct hzp_err_text text;
    int32_t lanes = 1 + draw(3);
    *s = (struct hzp_plan_shape){.nanos = 1 + draw(3), .order = (uint8_t)draw(HZP_ORDER_COUNT)};
    for (int32_t i = 0; i < s->nanos; i++) {
        s->weight[i] = 1 + draw(4);
        for (int k = 0; k < HZP_KIND_COUNT; k++)
            s->lane[i][k] = (uint8_t)draw(lanes);
    }
    FIXTURE_MUST(hzp_plan_shape_check(s, &text));
}

/* One step of all segments, then each alone in the model that its path leaves. */
static void check_step(struct subject *whole, struct subject *part, const struct hzp_path *path)
{
    static const struct hzp_path all;
    struct segment seg[SEGS];
    struct hzp_plan_shape shape;
    int32_t count = make_segments(seg), shallow = 0, token[SEGS];
    float logprob[SEGS];
    hzp_batch_clear(whole->batch);
    for (int32_t i = 0; i < count; i++) {
        add(whole->batch, &seg[i], seg[i].depth);
        shallow += seg[i].depth ? seg[i].rows : 0;
    }
    assert_int_equal(whole->batch->shallow, shallow);
    random_shape(&shape);
    run(whole, &all, draw(3) ? &shape : NULL);
    memcpy(token, whole->batch->token, sizeof(token));
    memcpy(logprob, whole->batch->logprob, sizeof(logprob));
    float *mixed = kv_copy();
    for (int32_t i = 0; i < count; i++) {
        int32_t d = seg[i].depth;
        hzp_batch_clear(part[d].batch);
        add(part[d].batch, &seg[i], 0);
        run(&part[d], &path[d], NULL);
        assert_int_equal(part[d].batch->token[0], token[i]);
        assert_memory_equal(&part[d].batch->logprob[0], &logprob[i], sizeof(float));
        for (int32_t l = 0; l < LAYERS; l++)
            for (int32_t p = 0; p < STRIDE; p++) {
                assert_true(same_page(mixed, kv_memory, l, seg[i].first + p));
                assert_true(hzp_path_has(&path[d], l) ||
                            same_page(mixed, kv_before, l, seg[i].first + p));
            }
    }
    free(mixed);
}

static void check_device(const char *device)
{
    struct subject whole, part[HZP_DEPTHS];
    struct hzp_path path[HZP_DEPTHS];
    kv_memory = hzp_xcalloc(LAYERS * 2, kv_bytes);
    kv_before = hzp_xcalloc(LAYERS * 2, kv_bytes);
    for (size_t i = 0; i < LAYERS * 2 * kv_bytes / sizeof(float); i++)
        kv_before[i] = (float)(draw(2001) - 1000) * 1e-3f;
    open_subject(&whole, device, &(struct hzp_path){0});
    fixture_publish_random(&whole.m, 5, 0.2f);
    for (int32_t d = 0; d < HZP_DEPTHS; d++) {
        hzp_depth_path(d, LAYERS, &path[d]);
        open_subject(&part[d], device, &path[d]);
        copy_weights(&whole, &part[d], &path[d]);
    }
    for (int32_t i = 0; i < 60; i++)
        check_step(&whole, part, path);
    for (int32_t d = 0; d < HZP_DEPTHS; d++)
        close_subject(&part[d]);
    close_subject(&whole);
    free(kv_memory);
    free(kv_before);
}

static void test_removed_layers(void **state)
{
    (void)state;
    check_device("ref");
    check_device("cpu");
}

static void test_paths(void **state)
{
    (void)state;
    for (int32_t layers = 1; layers < 70; layers++)
        for (int32_t d = 0; d < HZP_DEPTHS; d++) {
            struct hzp_path path;
            int32_t least = layers, most = 0, gap = 0;
            hzp_depth_path(d, layers, &path);
            assert_true(hzp_path_valid(&path, layers));
            assert_int_equal(hzp_path_places(&path, layers), hzp_depth_places(d, layers));
            assert_true(hzp_path_has(&path, 0) && hzp_path_has(&path, layers - 1));
            assert_true(hzp_path_has(&path, HZP_MIN(1, layers - 1)));
            for (int32_t l = 2; l < layers - 1 && d < HZP_DEPTH_GUESS; l++) {
                gap++; /* layers since the last one that is left out */
                if (hzp_path_has(&path, l))
                    continue;
                if (most || least < layers) {
                    least = HZP_MIN(least, gap);
                    most = HZP_MAX(most, gap);
                } else {
                    least = layers - 1;
                }
                gap = 0;
            }
            assert_true(most < 2 || least == layers - 1 || most - least <= 1);
        }
    for (int32_t l = 0; l < 9; l++) {
        struct hzp_path path;
        hzp_depth_path(HZP_DEPTH_GUESS, 9, &path);
        assert_int_equal(hzp_path_has(&path, l), l < 5 || l == 8);
        for (int32_t d = 1; d < HZP_DEPTH_PARTS; d++) {
            struct hzp_path whole;
            hzp_depth_path(d, 9, &whole);
            hzp_depth_path(HZP_DEPTH_GUESS + d, 9, &path);
            assert_int_equal(hzp_path_has(&path, l), hzp_path_has(&whole, l) && (l < 5 || l == 8));
        }
    }
}

static void test_numbers(void **state)
{
    (void)state;
    assert_int_equal(hzp_depth_of(0.75f, 30), 6);
    assert_int_equal(hzp_depth_places(6, 30), 23);
    assert_int_equal(hzp_depth_of(1, 30), 0);
    assert_int_equal(hzp_depth_of(0.95f, 30), 0);
    assert_int_equal(hzp_depth_of(1e-6f, 30), 1);
    assert_int_equal(hzp_depth_of(0.5f, 3), 0);
    assert_int_equal(hzp_depth_of(0.5f, 4), 1); /* three layers, whatever is asked for */
    assert_int_equal(hzp_depth_of(0.9f, 4), 0); /* 3.6 layers are 4 */
    for (int32_t layers = 1; layers < 70; layers++)
        for (int32_t d = 1; d < HZP_DEPTH_PARTS; d++) {
            int32_t number = hzp_depth_of((float)d / HZP_DEPTH_PARTS, layers);
            assert_int_equal(hzp_depth_places(number, layers), hzp_depth_places(d, layers));
            for (int32_t other = 0; other < number; other++)
                assert_true(hzp_depth_places(other, layers) != hzp_depth_places(number, layers));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_removed_layers),
                                       cmocka_unit_test(test_paths),
                                       cmocka_unit_test(test_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
