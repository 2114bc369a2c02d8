/* SPDX-License-Identifier: Apache-2.0 */
/* tests/nanobatch/test_path.c - micro-batches that leave layers out: losses and gradients have the
 * bits of a model that has only the layers on their path, in its order, and gradients of the others
 * are 0, whatever was in their memory; whatever is computed again, cut or ordered.  And the deck:
 * even shares, what is protected, neighbours that change places, the same from the same seed. */
#include "nanobatch/model/backward.h"
#include "nanobatch/run/exec.h"
#include "tests/fixture/model.h"
#include "tests/fixture/must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 7, ROWS = 40, VOCAB = 40 };

static const struct hzp_model_config config = {
    .family = "qwen3",
    .layers = LAYERS,
    .width = 64,
    .inner = 160,
    .vocab = VOCAB,
    .heads = {4, 2, 16},
    .positions = 64,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .tied = true,
    .qk_norm = true,
    .kind = {[1] = {.window = 5}},
    .layer_kind = {0, 1, 0, 1, 1, 0, 1},
    .disk_type = HZP_F32,
    .bos = -1,
};
static const int32_t inner[LAYERS] = {96, 160, 32, 64, 128, 160, 96};

/* The model, or what a path leaves of it, with the same weights. */
struct subject {
    struct fixture_model m;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_plan plan;
    struct hzp_exec *exec;
};

static void fill(struct hzp_micro *micro)
{
    static const int32_t rows[] = {7, 21, 12};
    int32_t token[ROWS + 1];
    uint8_t learn[ROWS + 1];
    for (int32_t i = 0; i <= ROWS; i++) {
        token[i] = (i * 7 + 3) % VOCAB;
        learn[i] = i % 5 != 2;
    }
    hzp_micro_clear(micro);
    for (int i = 0; i < HZP_COUNT(rows); i++)
        FIXTURE_MUST(hzp_micro_add(micro, token, learn, rows[i] + 1));
}

static void open_subject(struct subject *s, const char *device, enum hzp_dtype type,
                         const struct hzp_path *path, const struct hzp_train_space_config *size)
{
    struct fixture_config open = {
        .device = device, .threads = 2, .config = config, .store = {.type = type}};
    int32_t inners[LAYERS];
    open.config.layers = hzp_path_places(path, LAYERS);
    for (int32_t i = 0; i < open.config.layers; i++) {
        inners[i] = inner[hzp_path_layer(path, i)];
        open.config.layer_kind[i] = config.layer_kind[hzp_path_layer(path, i)];
    }
    open.inner = inners;
    fixture_open(&s->m, &open);
    FIXTURE_MUST(hzp_train_space_create(s->m.model, size, &s->space));
    FIXTURE_MUST(hzp_micro_create(s->m.dev, ROWS, &s->micro));
    FIXTURE_MUST(hzp_exec_create(s->m.dev, &s->exec));
    hzp_plan_init(&s->plan);
}

static void close_subject(struct subject *s)
{
    hzp_plan_fini(&s->plan);
    hzp_exec_destroy(s->exec);
    hzp_micro_destroy(s->micro);
    hzp_train_space_destroy(s->space);
    fixture_close(&s->m);
}

/* The unit of the whole model that unit u of the path's is. */
static int32_t unit_of(const struct hzp_path *path, int32_t u)
{
    int32_t places = hzp_path_places(path, LAYERS);
    return u == 0 ? 0 : u > places ? LAYERS + 1 : 1 + hzp_path_layer(path, u - 1);
}

/* The smaller model gets the weights of the larger one's layers. */
static void copy_weights(struct subject *whole, struct subject *part, const struct hzp_path *path)
{
    struct hzp_version *v = hzp_weights_current(whole->m.weights), *draft = fixture_begin(&part->m);
    for (int32_t u = 0; u < part->m.layout.units; u++) {
        struct hzp_unit_view from = hzp_version_unit(whole->m.weights, v, unit_of(path, u));
        struct hzp_unit_view to = hzp_version_unit(part->m.weights, draft, u);
        assert_int_equal(from.elements, to.elements);
        memcpy(to.base, from.base, to.elements * hzp_dtype_size(to.type));
    }
    fixture_publish(&part->m, draft, 0);
}

static void run(struct subject *s, const struct hzp_path *path, int32_t chunk_rows, bool first)
{
    struct hzp_exec_times times;
    struct hzp_err_text text;
    fill(s->micro);
    s->micro->path = *path;
    hzp_micro_cut(s->micro, chunk_rows);
    hzp_plan_clear(&s->plan);
    hzp_micro_build(&s->plan, s->m.model, hzp_weights_current(s->m.weights), s->micro, s->space,
                    first);
    if (hzp_plan_check(&s->plan, &text) < 0)
        fail_msg("%s", text.text);
    FIXTURE_MUST(hzp_exec_run(s->exec, &s->plan, NULL, &times));
}

static void check_zero(const struct subject *s, int32_t layer)
{
    struct hzp_unit_view grad = hzp_unit_view(hzp_train_space_grads(s->space), 1 + layer);
    static const float zero;
    for (size_t i = 0; i < grad.elements; i++)
        if (memcmp((const float *)grad.base + i, &zero, sizeof(zero)) != 0)
            fail_msg("layer %d is left out: its gradient is %g", layer,
                     (double)((const float *)grad.base)[i]);
}

static void compare(const struct subject *whole, const struct subject *part,
                    const struct hzp_path *path)
{
    const struct hzp_units *a = hzp_train_space_grads(whole->space);
    const struct hzp_units *b = hzp_train_space_grads(part->space);
    assert_memory_equal(whole->micro->loss.value, part->micro->loss.value,
                        (size_t)part->micro->learned * sizeof(float));
    for (int32_t u = 0; u < part->m.layout.units; u++) {
        struct hzp_unit_view x = hzp_unit_view(a, unit_of(path, u)), y = hzp_unit_view(b, u);
        bool any = false;
        if (memcmp(x.base, y.base, y.elements * sizeof(float)) != 0)
            fail_msg("unit %d of the path has other gradients", u);
        for (size_t i = 0; i < y.elements; i++)
            any |= ((const float *)y.base)[i] != 0;
        assert_true(any);
    }
    for (int32_t l = 0; l < LAYERS; l++)
        if (!hzp_path_has(path, l))
            check_zero(whole, l);
}

/* What an update of the whole model before has left is where gradients and activations go. */
static void check(const char *device, enum hzp_dtype type, enum hzp_recompute recompute,
                  int32_t chunk_rows, bool ordered, const struct hzp_path *path)
{
    struct hzp_train_space_config size = {.rows_max = ROWS,
                                          .head_rows = 16,
                                          .moment_type = HZP_F32,
                                          .recompute = recompute,
                                          .shards = {.ordered = ordered},
                                          .quantum_flops = 20000};
    const struct hzp_path all = {0};
    struct subject whole, part;
    open_subject(&whole, device, type, &all, &size);
    open_subject(&part, device, type, path, &size);
    fixture_publish_random(&whole.m, 5, 0.3f);
    copy_weights(&whole, &part, path);
    run(&whole, &all, chunk_rows, true);
    for (int i = 0; i < 2; i++) {
        run(&whole, path, chunk_rows, i == 0);
        run(&part, &all, chunk_rows, i == 0);
        compare(&whole, &part, path);
    }
    close_subject(&whole);
    close_subject(&part);
}

static void test_removed_layers(void **state)
{
    static const struct hzp_path path[] = {{0},
                                           {7, {0, 1, 2, 3, 4, 5, 6}},
                                           {5, {0, 1, 3, 5, 6}},
                                           {6, {0, 1, 4, 2, 5, 6}},
                                           {3, {0, 1, 6}}};
    (void)state;
    for (int i = 0; i < HZP_COUNT(path); i++) {
        check("ref", HZP_F32, HZP_RECOMPUTE_NONE, 0, false, &path[i]);
        for (int again = HZP_RECOMPUTE_NONE; again <= HZP_RECOMPUTE_LAYER; again++)
            for (int chunk_rows = 0; chunk_rows <= 9; chunk_rows += 9)
                check("cpu", again == HZP_RECOMPUTE_MLP ? HZP_BF16 : HZP_F32,
                      (enum hzp_recompute)again, chunk_rows, again == HZP_RECOMPUTE_NONE, &path[i]);
    }
}

/* Each layer's gradient is the sum of those micro-batches that went through it. */
static void test_sums(void **state)
{
    static const struct hzp_path all = {0}, one = {5, {0, 1, 3, 5, 6}},
                                 other = {5, {0, 1, 2, 3, 6}};
    struct hzp_train_space_config size = {.rows_max = ROWS, .head_rows = 16};
    struct subject s, t;
    (void)state;
    size.moment_type = HZP_F32;
    open_subject(&s, "cpu", HZP_F32, &all, &size);
    open_subject(&t, "cpu", HZP_F32, &all, &size);
    fixture_publish_random(&s.m, 5, 0.3f);
    fixture_publish_random(&t.m, 5, 0.3f);
    run(&s, &one, 0, true);
    run(&s, &other, 0, false);
    run(&t, &other, 0, true);
    const struct hzp_units *a = hzp_train_space_grads(s.space), *b = hzp_train_space_grads(t.space);
    struct hzp_unit_view x = hzp_unit_view(a, 1 + 2), y = hzp_unit_view(b, 1 + 2);
    assert_memory_equal(x.base, y.base, y.elements * sizeof(float));
    x = hzp_unit_view(a, 1 + 3), y = hzp_unit_view(b, 1 + 3);
    assert_memory_not_equal(x.base, y.base, y.elements * sizeof(float));
    check_zero(&s, 4);
    close_subject(&s);
    close_subject(&t);
}

/* --- The deck --------------------------------------------------------------------------------- */

static int64_t spread(const int64_t *count, int32_t layers)
{
    int64_t least = INT64_MAX, most = 0;
    for (int32_t l = 2; l < layers - 1; l++) {
        least = HZP_MIN(least, count[l]);
        most = HZP_MAX(most, count[l]);
    }
    return most - least;
}

/* Adds what an update's rounds leave out to count; each path is as it must be. */
static void deal_update(const struct hzp_deck *deck, int64_t update, int32_t rounds, int64_t *count)
{
    int64_t here[HZP_LAYERS_MAX] = {0};
    for (int32_t round = 0; round < rounds; round++) {
        struct hzp_path path, again;
        int32_t layers = deck->layers;
        hzp_deck_deal(deck, update, rounds, round, &path);
        hzp_deck_deal(deck, update, rounds, round, &again);
        assert_int_equal(path.count, layers - hzp_deck_skips(deck));
        assert_memory_equal(path.layer, again.layer, 4 * (size_t)path.count);
        assert_true(hzp_path_valid(&path, layers));
        assert_true(path.layer[0] == 0 && path.layer[1] == 1);
        assert_int_equal(path.layer[path.count - 1], layers - 1);
        for (int32_t i = 1, swaps = 0; i < path.count; i++)
            if (path.layer[i] < path.layer[i - 1]) {
                assert_true(deck->swap && ++swaps <= 2);
                assert_true(path.layer[i] > path.layer[i - 2]);
                assert_true(path.layer[i - 1] < path.layer[i + 1]);
            }
        for (int32_t l = 0; l < layers; l++)
            here[l] += !hzp_path_has(&path, l);
    }
    assert_true(spread(here, deck->layers) <= 1);
    for (int32_t l = 0; l < deck->layers; l++)
        count[l] += here[l];
}

static void test_shares(void **state)
{
    static const float skip[] = {0.1f, 0.25f, 0.33f, 0.5f};
    static const int32_t layers[] = {12, 30, 32, 61};
    (void)state;
    for (int s = 0; s < HZP_COUNT(skip); s++)
        for (int n = 0; n < HZP_COUNT(layers); n++)
            for (int32_t rounds = 1; rounds < 6; rounds++) {
                struct hzp_deck deck = {skip[s], rounds % 2, 11, layers[n]};
                int64_t count[HZP_LAYERS_MAX] = {0};
                FIXTURE_MUST(hzp_deck_check(&deck, NULL));
                for (int64_t update = 1; update <= 300; update++) {
                    deal_update(&deck, update, rounds, count);
                    assert_true(spread(count, layers[n]) <= 1);
                }
                assert_true(count[2] > 0);
            }
}

static void test_deals_differ(void **state)
{
    struct hzp_deck deck = {0.25f, false, 1, 30}, other = {0.25f, false, 2, 30};
    struct hzp_path a, b;
    int same = 0, swapped = 0;
    (void)state;
    for (int64_t update = 1; update <= 100; update++) {
        hzp_deck_deal(&deck, update, 1, 0, &a);
        hzp_deck_deal(&other, update, 1, 0, &b);
        same += !memcmp(a.layer, b.layer, 4 * (size_t)a.count);
        hzp_deck_deal(&deck, update + 1, 1, 0, &b);
        same += !memcmp(a.layer, b.layer, 4 * (size_t)a.count);
    }
    assert_true(same < 5);
    deck = (struct hzp_deck){0, false, 1, 30};
    hzp_deck_deal(&deck, 1, 1, 0, &a);
    assert_int_equal(a.count, 0); /* all, as they are */
    deck.swap = true;
    for (int64_t update = 1; update <= 100; update++) {
        hzp_deck_deal(&deck, update, 1, 0, &a);
        assert_int_equal(a.count, 30);
        for (int32_t l = 0; l < 30; l++)
            swapped += a.layer[l] != l;
    }
    assert_true(swapped >= 200 && swapped <= 400);
}

static void test_too_few_layers(void **state)
{
    struct hzp_err_text err;
    (void)state;
    assert_int_equal(hzp_deck_check(&(struct hzp_deck){0.5f, false, 1, 4}, &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "--skip"));
    assert_int_equal(hzp_deck_check(&(struct hzp_deck){0.01f, false, 1, 30}, &err), HZP_EINVAL);
    assert_int_equal(hzp_deck_check(&(struct hzp_deck){0.25f, false, 1, 4}, &err), HZP_OK);
    assert_int_equal(hzp_deck_check(&(struct hzp_deck){0, false, 1, 1}, &err), HZP_OK);
}

static void test_note(void **state)
{
    struct hzp_paths paths;
    (void)state;
    for (int round = 0; round < 2; round++)
        hzp_paths_note(&paths, &(struct hzp_path){4, {0, 1, 3 + round, 6}}, 7, round == 0);
    assert_string_equal(paths.left_out, "2,4,5/2,3,5");
    assert_int_equal(paths.layers, 4);
    for (int round = 0; round < 90; round++)
        hzp_paths_note(&paths, &(struct hzp_path){4, {0, 1, 2, 6}}, 7, round == 0);
    assert_true(strlen(paths.left_out) < sizeof(paths.left_out));
    assert_string_equal(paths.left_out + strlen(paths.left_out) - 3, "...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_layers), cmocka_unit_test(test_sums),
        cmocka_unit_test(test_shares),         cmocka_unit_test(test_deals_differ),
        cmocka_unit_test(test_too_few_layers), cmocka_unit_test(test_note)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
