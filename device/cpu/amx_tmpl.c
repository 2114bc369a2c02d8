/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/amx_tmpl.c - the kernels of tiles.h: compiled with the compiler's options for AMX, and
 * without them over an emulation of its instructions.
 *
 * -DHZP_TILES=NAME: the kernels are hzp_cpu_tiles_NAME.
 */
#include "device/cpu/tiles.h"

#define HZP_PASTE_(a, b) a##_##b
#define HZP_PASTE(a, b)  HZP_PASTE_(a, b)

enum { PAIRS = HZP_TILE_STEP / 2, ROW_BYTES = 64 };

/* ---- the interface: tiles 0 .. 7, numbers known when compiled; rows `stride` bytes apart ---- */

#ifdef __AMX_BF16__

#include <immintrin.h>

#define TILE_ZERO(t)             _tile_zero(t)
#define TILE_LOAD(t, p, stride)  _tile_loadd(t, p, stride)
#define TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define TILE_MULTIPLY(c, a, b)   _tile_dpbf16ps(c, a, b)

/* All tiles have 16 rows of 64 bytes.  The configuration is a constant: the compiler's intrinsic
 * names only its first 8 bytes as what it reads, so stores to the others would be left out. */
static const struct {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} config = {
    .palette = 1,
    .bytes = {ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES,
              ROW_BYTES},
    .rows = {HZP_TILE_ROWS, HZP_TILE_ROWS, HZP_TILE_ROWS, HZP_TILE_ROWS, HZP_TILE_ROWS,
             HZP_TILE_ROWS, HZP_TILE_ROWS, HZP_TILE_ROWS},
};

static void tiles_begin(void)
{
    _tile_loadconfig(&config);
}

static void tiles_end(void)
{
    _tile_release();
}

#else

#include "device/bf16.h"

static _Thread_local uint32_t tile[8][HZP_TILE_ROWS][PAIRS];
static _Thread_local bool ready;

static void tiles_begin(void)
{
    memset(tile, 0, sizeof(tile));
    ready = true;
}

static void tiles_end(void)
{
    ready = false;
}

static void tile_load(int t, const void *p, size_t stride)
{
    HZP_ASSERT(ready);
    for (int r = 0; r < HZP_TILE_ROWS; r++)
        memcpy(tile[t][r], (const char *)p + (size_t)r * stride, ROW_BYTES);
}

static void tile_store(int t, void *p, size_t stride)
{
    HZP_ASSERT(ready);
    for (int r = 0; r < HZP_TILE_ROWS; r++)
        memcpy((char *)p + (size_t)r * stride, tile[t][r], ROW_BYTES);
}

/* The instruction takes and gives zeros for denormal numbers. */
static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* TDPBF16PS: of each pair the even and the odd products are summed apart, then both are added. */
static void tile_multiply(int c, int a, int b)
{
    HZP_ASSERT(ready);
    for (int m = 0; m < HZP_TILE_ROWS; m++)
        for (int n = 0; n < HZP_TILE_ROWS; n++) {
            float sum[2] = {0, 0}, old;
            for (int k = 0; k < PAIRS; k++)
                for (int h = 0; h < 2; h++) {
                    float x = hzp_bf16_to_f32((uint16_t)(tile[a][m][k] >> (16 * h)));
                    float y = hzp_bf16_to_f32((uint16_t)(tile[b][k][n] >> (16 * h)));
                    sum[h] = flushed(fmaf(flushed(x), flushed(y), sum[h]));
                }
            memcpy(&old, &tile[c][m][n], sizeof(old));
            old = flushed(flushed(old) + flushed(sum[0] + sum[1]));
            memcpy(&tile[c][m][n], &old, sizeof(old));
        }
}

#define TILE_ZERO(t)             memset(tile[t], 0, sizeof(tile[t]))
#define TILE_LOAD(t, p, stride)  tile_load(t, p, stride)
#define TILE_STORE(t, p, stride) tile_store(t, p, stride)
#define TILE_MULTIPLY(c, a, b)   tile_multiply(c, a, b)

#endif

/* ---- the kernels ---- */

static void tiles_block(const uint32_t *x0, const uint32_t *x1, const uint32_t *w, int steps,
                        float sums[HZP_TILE_BLOCK * HZP_TILE_BLOCK])
{
    enum {
        WORDS = HZP_TILE_WORDS,
        ROW = HZP_TILE_BLOCK * 4,
        DOWN = HZP_TILE_ROWS * HZP_TILE_BLOCK
    };

    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int s = 0; s < steps; s++, x0 += WORDS, x1 += WORDS, w += 2 * WORDS) {
        TILE_LOAD(4, x0, ROW_BYTES);
        TILE_LOAD(6, w, ROW_BYTES);
        TILE_LOAD(5, x1, ROW_BYTES);
        TILE_LOAD(7, w + WORDS, ROW_BYTES);
        TILE_MULTIPLY(0, 4, 6);
        TILE_MULTIPLY(1, 4, 7);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, sums, ROW);
    TILE_STORE(1, sums + HZP_TILE_ROWS, ROW);
    TILE_STORE(2, sums + DOWN, ROW);
    TILE_STORE(3, sums + DOWN + HZP_TILE_ROWS, ROW);
}

static const uint16_t *at(const struct hzp_mat *mat, int row, int col)
{
    return (const uint16_t *)hzp_cpu_row(mat, row) + col;
}

/* 16 rows that go along k, from row on, those from end on as zeros. */
static void rows_along(const struct hzp_mat *mat, int row, int end, int k, int count,
                       uint16_t to[HZP_TILE_ROWS][HZP_TILE_STEP])
{
    memset(to, 0, HZP_TILE_WORDS * 4);
    for (int i = 0; i < HZP_MIN(end - row, HZP_TILE_ROWS); i++)
        memcpy(to[i], at(mat, row + i, k), (size_t)count * 2);
}

static void pack_x(const struct hzp_matmul_args *a, int m, int m1, uint32_t *to)
{
    int inner = hzp_tiles_inner(a), rows = HZP_MIN(m1 - m, HZP_TILE_ROWS);

    for (int k = 0; k < inner; k += HZP_TILE_STEP, to += HZP_TILE_WORDS) {
        int count = HZP_MIN(HZP_TILE_STEP, inner - k);
        uint16_t part[HZP_TILE_ROWS][HZP_TILE_STEP];
        if (!a->trans_a) {
            rows_along(&a->a, m, m1, k, count, part);
        } else {
            memset(part, 0, sizeof(part));
            for (int e = 0; e < count; e++) {
                const uint16_t *from = at(&a->a, k + e, m);
                for (int i = 0; i < rows; i++)
                    part[i][e] = from[i];
            }
        }
        memcpy(to, part, sizeof(part));
    }
}

/* A step of 16 columns from n on: pairs of k of each column. */
static void pack_pairs(const struct hzp_matmul_args *a, int n, int n1, int k, int count,
                       uint32_t *to)
{
    int cols = HZP_MIN(n1 - n, HZP_TILE_ROWS);

    if (a->trans_b) {
        uint16_t part[HZP_TILE_ROWS][HZP_TILE_STEP];
        uint32_t words[HZP_TILE_ROWS][PAIRS];
        rows_along(&a->b, n, n1, k, count, part);
        memcpy(words, part, sizeof(words));
        for (int p = 0; p < PAIRS; p++)
            for (int j = 0; j < HZP_TILE_ROWS; j++)
                to[p * HZP_TILE_ROWS + j] = words[j][p];
        return;
    }
    memset(to, 0, HZP_TILE_WORDS * 4);
    for (int e = 0; e < count; e++) {
        const uint16_t *from = at(&a->b, k + e, n);
        uint32_t *pair = to + e / 2 * HZP_TILE_ROWS;
        for (int j = 0; j < cols; j++)
            pair[j] |= (uint32_t)from[j] << (e % 2 * 16);
    }
}

static void pack_w(const struct hzp_matmul_args *a, int n, int n1, uint32_t *to)
{
    int inner = hzp_tiles_inner(a);

    for (int k = 0; k < inner; k += HZP_TILE_STEP)
        for (int h = 0; h < HZP_TILE_BLOCK; h += HZP_TILE_ROWS, to += HZP_TILE_WORDS) {
            if (n + h < n1)
                pack_pairs(a, n + h, n1, k, HZP_MIN(HZP_TILE_STEP, inner - k), to);
            else
                memset(to, 0, HZP_TILE_WORDS * 4);
        }
}

const struct hzp_tiles_kernels HZP_PASTE(hzp_cpu_tiles, HZP_TILES) = {
    .begin = tiles_begin,
    .end = tiles_end,
    .pack_x = pack_x,
    .pack_w = pack_w,
    .block = tiles_block,
};
