/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/test_emu.c - the emulator reports every kind of bug as the right fault, and nothing
 * for correct kernels, whose results are those of CUDA's definitions. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "device/bf16.h"
#include "device/philox.h"
#include "tests/emu/planted.h"

enum { N = HZP_PLANTED_FLOATS };

static const struct {
    const char *name;
    enum hzp_emu_fault fault;
} planted[] = {
#define X(name, fault) {#name, fault},
    HZP_PLANTED(X)
#undef X
};

static float *floats_make(void)
{
    float *x = hzp_emu_alloc(N * sizeof(*x));
    assert_non_null(x);
    for (int i = 0; i < N; i++)
        x[i] = (float)(i * i % 311);
    return x;
}

/* Each twice, in sequence: a fault must leave nothing behind.  Launches differ in the order of
 * lanes and warps, so each kernel is seen in both orders. */
static void test_planted(void **state)
{
    float *in = floats_make(), *io = floats_make();
    const char *text;
    hzp_emu_keep_faults(true);
    for (int turn = 0; turn < 8; turn++)
        for (int i = 0; i < HZP_PLANTED_COUNT; i++) {
            hzp_planted_run((enum hzp_planted)i, true, in, io);
            enum hzp_emu_fault fault = hzp_emu_fault_take(&text);
            if (turn == 0)
                print_message("%-24s %s\n", planted[i].name, text);
            if (fault != planted[i].fault)
                fail_msg("%s: fault %d (%s), expected %d", planted[i].name, (int)fault, text,
                         (int)planted[i].fault);
            memset(io, 0xff, N * sizeof(*io));
            hzp_planted_run((enum hzp_planted)i, false, in, io);
            fault = hzp_emu_fault_take(&text);
            if (fault != HZP_EMU_NONE)
                fail_msg("%s's correct version: %s", planted[i].name, text);
            for (int k = 0; k < N; k++)
                if (io[k] != hzp_planted_result((enum hzp_planted)i, in, k))
                    fail_msg("%s's correct version: [%d] is %g", planted[i].name, k, (double)io[k]);
            for (int k = 0; k < N; k++) /* the bug may have run far enough to write */
                in[k] = (float)(k * k % 311);
            hzp_emu_free(io);
            io = floats_make();
        }
    assert_true(hzp_emu_free(in));
    assert_true(hzp_emu_free(io));
    assert_false(hzp_emu_free(io));
}

/* Small whole numbers: sums are exact in any order. */
static void test_product(void **state)
{
    uint16_t *a = hzp_emu_alloc(512), *b = hzp_emu_alloc(512);
    float *c = hzp_emu_alloc(256 * sizeof(*c));
    for (uint32_t i = 0; i < 256; i++) {
        a[i] = hzp_bf16_from_f32((float)(hzp_philox(1, i, 0, 0, 0) % 17) - 8);
        b[i] = hzp_bf16_from_f32((float)(hzp_philox(2, i, 0, 0, 0) % 17) - 8);
    }
    for (int b_rows = 0; b_rows < 2; b_rows++) {
        hzp_planted_product(a, b, b_rows, c);
        for (int r = 0; r < 16; r++)
            for (int col = 0; col < 16; col++) {
                float sum = 0;
                for (int k = 0; k < 16; k++)
                    sum += hzp_bf16_to_f32(a[16 * r + k]) *
                           hzp_bf16_to_f32(b_rows ? b[16 * col + k] : b[16 * k + col]);
                assert_true(c[16 * r + col] == sum);
            }
    }
    hzp_emu_free(a);
    hzp_emu_free(b);
    hzp_emu_free(c);
}

static void test_coordinates(void **state)
{
    uint32_t *seen = hzp_emu_alloc(HZP_PLANTED_COORDINATES * sizeof(*seen));
    hzp_planted_coordinates(seen);
    for (uint32_t i = 0; i < HZP_PLANTED_COORDINATES; i++)
        assert_int_equal(seen[i], i);
    hzp_emu_free(seen);
}

static void test_half(void **state)
{
    static const struct {
        float x;
        uint16_t half;
    } cases[] = {{0, 0},
                 {-0.0f, 0x8000},
                 {1, 0x3c00},
                 {-1.5f, 0xbe00},
                 {65504, 0x7bff},
                 {65519, 0x7bff},
                 {65520, 0x7c00},
                 {1e30f, 0x7c00},
                 {0x1p-14f, 1024},
                 {0x1p-24f, 1},
                 {0x1p-25f, 0},
                 {0x1.8p-24f, 2},
                 {2049, 0x6800},
                 {2051, 0x6802},
                 {-0x1.ff8p-15f, 0x83ff},
                 {4095.9f, 0x6c00},
                 {0.1f, 0x2e66},
                 {0x1.ffep-15f, 1024}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(hzp_emu_half(cases[i].x), cases[i].half);
}

static void test_lanes(void **state)
{
    uint32_t(*kind)[32] = hzp_emu_alloc(HZP_PLANTED_LANE_KINDS * sizeof(*kind)), thirds = 0;
    hzp_planted_lanes(kind[0]);
    for (uint32_t i = 0; i < 32; i += 3)
        thirds |= 1u << i;
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(kind[0][i], 5);
        assert_int_equal(kind[1][i], i / 8 * 8 + 3);
        assert_int_equal(kind[2][i], i ^ 3);
        assert_int_equal(kind[3][i], i == 0 ? 0 : i - 1);
        assert_int_equal(kind[4][i], i % 16 >= 14 ? i : i + 2);
        assert_int_equal(kind[5][i], thirds);
        assert_int_equal(kind[6][i], 1);
        assert_int_equal(kind[7][i], 0);
        assert_int_equal(kind[8][i], 31 * 32 / 2);
        assert_int_equal((int32_t)kind[9][i], -9);
        assert_int_equal(kind[10][i], 31);
        assert_int_equal(kind[11][i], 0x07040100u + (i & 0xff));
        assert_int_equal(kind[12][i], (i % 4 * 16 + i / 4) | (i % 4 * 16 + 8 + i / 4) << 16);
    }
    hzp_emu_free(kind);
}

/* Rows of a box as device/cuda/machine.cuh says; the last four are beyond the end. */
static void test_box(void **state)
{
    enum { ROWS = 20, ROW = 8, BOX = 16 };
    for (int bytes = 64; bytes <= 256; bytes *= 2) {
        size_t all = (size_t)ROWS * (size_t)bytes, wide = (size_t)(bytes < 128 ? bytes : 128);
        uint8_t *rows = hzp_emu_alloc(all), *ret = hzp_emu_alloc(BOX * 256);
        for (size_t i = 0; i < all; i++)
            rows[i] = (uint8_t)hzp_philox(5, (uint32_t)i, 0, 0, 0);
        hzp_planted_box(rows, ROWS, bytes, ROW, ret);
        for (size_t r = 0; r < BOX; r++)
            for (size_t i = 0; i < (size_t)bytes; i++) {
                size_t turn = wide == 128 ? r % 8 : r / 2 % 4, column = i % wide / 16 ^ turn;
                size_t at = i / wide * BOX * wide + r * wide + column * 16 + i % 16;
                int is = ROW + r < ROWS ? rows[(ROW + r) * (size_t)bytes + i] : 0;
                assert_int_equal(ret[at], is);
            }
        hzp_emu_free(rows);
        hzp_emu_free(ret);
    }
}

static void test_sums(void **state)
{
    enum { COUNT = 1000 };
    uint32_t *x = hzp_emu_alloc(COUNT * sizeof(*x)), *sum = hzp_emu_alloc(sizeof(*sum)), all = 5;
    for (uint32_t i = 0; i < COUNT; i++)
        all += x[i] = hzp_philox(3, i, 0, 0, 0);
    *sum = 5;
    hzp_planted_sums(x, sum, COUNT);
    assert_int_equal(*sum, all);
    hzp_emu_free(x);
    hzp_emu_free(sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted),     cmocka_unit_test(test_product),
        cmocka_unit_test(test_coordinates), cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_sums),        cmocka_unit_test(test_box),
        cmocka_unit_test(test_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
