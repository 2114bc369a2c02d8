/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 on matrix tiles (device/cpu/tiles.h), by the emulation of the tile instructions:
 * near the sums in double for every transposition and for shapes that end within a tile, the same
 * bits however c's rows are split into calls and whatever the number of threads.  And the choice
 * among ways of computing a product (device/cpu/choice.h): the fastest of each class, kept in a
 * file that counts only as it was written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/bf16.h"
#include "device/cpu/choice.h"
#include "device/cpu/tiles.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAD = 5, GUARD = 16 };

struct shape {
    int m, n, k;
};

static const struct shape shapes[] = {{1, 1, 1},    {16, 16, 32}, {17, 33, 31}, {32, 32, 64},
                                      {33, 65, 33}, {50, 20, 95}, {200, 40, 7}, {3, 70, 129}};

struct product {
    struct hzp_matmul_args args;
    uint16_t *a, *b, *bias;
    float *c, *before;
    size_t c_count;
};

static uint32_t seed = 7;

static float draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8 & 0xffff) / 32768.f - 1.f;
}

static uint16_t *fill(size_t count)
{
    uint16_t *p = malloc(count * sizeof(*p));
    assert_non_null(p);
    for (size_t i = 0; i < count; i++)
        p[i] = hzp_bf16_from_f32(draw());
    return p;
}

static struct product product_make(struct shape s, int trans, bool add)
{
    struct product p = {0};
    int ta = trans >> 1, tb = trans & 1;
    struct hzp_mat a = {NULL, ta ? s.k : s.m, ta ? s.m : s.k, (ta ? s.m : s.k) + PAD, HZP_BF16};
    struct hzp_mat b = {NULL, tb ? s.n : s.k, tb ? s.k : s.n, (tb ? s.k : s.n) + PAD, HZP_BF16};

    a.ptr = p.a = fill((size_t)a.rows * (size_t)a.stride);
    b.ptr = p.b = fill((size_t)b.rows * (size_t)b.stride);
    p.bias = fill((size_t)s.n);
    p.c_count = (size_t)s.m * (size_t)(s.n + PAD) + 2 * GUARD;
    p.c = malloc(p.c_count * sizeof(*p.c));
    p.before = malloc(p.c_count * sizeof(*p.c));
    assert_true(p.c && p.before);
    for (size_t i = 0; i < p.c_count; i++)
        p.c[i] = p.before[i] = draw();
    p.args = (struct hzp_matmul_args){.a = a,
                                      .b = b,
                                      .c = {p.c + GUARD, s.m, s.n, s.n + PAD, HZP_F32},
                                      .trans_a = ta,
                                      .trans_b = tb,
                                      .accumulate = add};
    if (add)
        p.args.bias = (struct hzp_mat){p.bias, 1, s.n, s.n, HZP_BF16};
    return p;
}

static void product_drop(struct product *p)
{
    free(p->a);
    free(p->b);
    free(p->bias);
    free(p->c);
    free(p->before);
}

static double at(const struct hzp_mat *mat, int row, int col)
{
    size_t i = (size_t)row * (size_t)mat->stride + (size_t)col;
    return (double)hzp_bf16_to_f32(((uint16_t *)mat->ptr)[i]);
}

/* All elements are near their sums, and memory beside c is unchanged. */
static void near_the_sums(const struct product *p, int k)
{
    const struct hzp_matmul_args *a = &p->args;

    for (size_t i = 0; i < p->c_count; i++) {
        size_t in = i - GUARD, row = in / (size_t)a->c.stride, col = in % (size_t)a->c.stride;
        if (i < GUARD || row >= (size_t)a->c.rows || col >= (size_t)a->c.cols) {
            assert_memory_equal(&p->c[i], &p->before[i], sizeof(*p->c));
            continue;
        }
        int m = (int)row, n = (int)col;
        double sum = a->accumulate ? (double)p->before[i] + at(&a->bias, 0, n) : 0;
        for (int e = 0; e < k; e++)
            sum += (a->trans_a ? at(&a->a, e, m) : at(&a->a, m, e)) *
                   (a->trans_b ? at(&a->b, n, e) : at(&a->b, e, n));
        assert_true(fabs((double)p->c[i] - sum) <= 1e-5 * (sqrt(k) + 2));
    }
}

static void near_the_sums_in_every_shape(void **state)
{
    struct hzp_team *team;

    assert_int_equal(hzp_team_open(2, 2, &team), HZP_OK);
    for (int s = 0; s < HZP_COUNT(shapes); s++)
        for (int way = 0; way < 8; way++) {
            struct product p = product_make(shapes[s], way & 3, way & 4);
            assert_int_equal(hzp_cpu_tiles_run(team, &p.args, &hzp_cpu_tiles_emulated), HZP_OK);
            near_the_sums(&p, shapes[s].k);
            product_drop(&p);
        }
    hzp_team_close(team);
}

/* Rows 0 .. cut and cut .. m in two calls, by another number of threads. */
static void rows_cut_any_way(void **state)
{
    static const int cuts[] = {1, 16, 23};
    struct hzp_team *team, *other;
    struct product p = product_make((struct shape){50, 70, 90}, 1, false);
    size_t bytes = p.c_count * sizeof(*p.c);
    float *whole = malloc(bytes);

    assert_non_null(whole);
    assert_int_equal(hzp_team_open(1, 1, &team), HZP_OK);
    assert_int_equal(hzp_team_open(3, 3, &other), HZP_OK);
    assert_int_equal(hzp_cpu_tiles_run(team, &p.args, &hzp_cpu_tiles_emulated), HZP_OK);
    memcpy(whole, p.c, bytes);
    for (int i = 0; i < HZP_COUNT(cuts); i++) {
        memcpy(p.c, p.before, bytes);
        for (int part = 0; part < 2; part++) {
            struct hzp_matmul_args a = p.args;
            int r = part ? cuts[i] : 0, rows = part ? 50 - cuts[i] : cuts[i];
            a.a = hzp_mat_rows(p.args.a, r, rows);
            a.c = hzp_mat_rows(p.args.c, r, rows);
            assert_int_equal(hzp_cpu_tiles_run(other, &a, &hzp_cpu_tiles_emulated), HZP_OK);
        }
        assert_memory_equal(p.c, whole, bytes);
    }
    free(whole);
    hzp_team_close(team);
    hzp_team_close(other);
    product_drop(&p);
}

/* ---- the choice ---- */

struct times {
    double of[HZP_CHOICE_CLASSES][HZP_WAYS];
    int calls;
};

/* Every second measurement of a way is disturbed. */
static double time_of(void *ctx, int class, enum hzp_cpu_way way)
{
    struct times *times = ctx;
    bool disturbed = times->calls++ / HZP_WAYS % 2;
    double seconds = times->of[class][way];

    return seconds >= 0 && disturbed ? seconds * 100 : seconds;
}

static void the_fastest_is_chosen(void **state)
{
    struct times times = {
        .of = {{3, 2, 1}, {1, 2, 3}, {2, 1, 3}, {-1, 2, 1}, {-1, 5, -1}, {-1, -1, -1}}};
    static const uint8_t expected[] = {HZP_WAY_LIBRARY, HZP_WAY_PANELS, HZP_WAY_TILES,
                                       HZP_WAY_LIBRARY, HZP_WAY_TILES,  HZP_WAY_PANELS};
    struct hzp_cpu_choice choice = hzp_choice_measure(time_of, &times);

    assert_memory_equal(choice.way, expected, sizeof(expected));
}

static void classes(void **state)
{
    struct hzp_matmul_args a = {.c = {NULL, HZP_CHOICE_ROWS, 9, 9, HZP_F32}, .trans_b = 1};

    assert_int_equal(hzp_choice_class(&a), 0);
    a.c.rows++;
    assert_int_equal(hzp_choice_class(&a), 1);
    a.trans_b = 0;
    assert_int_equal(hzp_choice_class(&a), 3);
    a.trans_a = 1;
    assert_int_equal(hzp_choice_class(&a), 5);
}

static void file_change(const char *path, const char *text, const char *mode)
{
    FILE *file = fopen(path, mode);
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void kept_only_as_written(void **state)
{
    char folder[] = "/tmp/hzp-choice-XXXXXX", path[64];
    struct hzp_cpu_choice choice = {{2, 1, 0, 1, 2, 0}}, read = {{0}};

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/cpu.products", folder);
    assert_false(hzp_choice_read(path, "one CPU", &read));
    hzp_choice_write(path, "one CPU", &choice);
    assert_true(hzp_choice_read(path, "one CPU", &read));
    assert_memory_equal(&read, &choice, sizeof(choice));
    assert_false(hzp_choice_read(path, "another CPU", &read));

    file_change(path, "more", "a");
    assert_false(hzp_choice_read(path, "one CPU", &read));
    file_change(path, "hzpserve products 1\none CPU\nforward few: tiles\n", "w"); /* cut off */
    assert_false(hzp_choice_read(path, "one CPU", &read));
    hzp_choice_write(path, "one CPU", &choice); /* replaces it */
    assert_true(hzp_choice_read(path, "one CPU", &read));
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_sums_in_every_shape), cmocka_unit_test(rows_cut_any_way),
        cmocka_unit_test(the_fastest_is_chosen),        cmocka_unit_test(classes),
        cmocka_unit_test(kept_only_as_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
