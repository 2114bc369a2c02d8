/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/tiles.h - products of bf16 on matrix tiles (AMX), any transposition.
 *
 * A tile has 16 rows of 64 bytes: 16 x 32 of op(a), 32 x 16 of op(b) as pairs of k, or 16 x 16 sums
 * in F32.  c is cut into blocks of 32 x 32: two tiles of op(a) by two of op(b) for each step of k,
 * and four of sums, which is all eight.  Both operands are copied into whole tiles, zeros where c
 * or k ends: a slab of op(a) once, shared by the threads; of op(b) 32 columns by each thread that
 * takes them.
 *
 * The tile instructions (load, zero, multiply, store) are those of the CPU or an emulation in plain
 * C (tests/device, opcheck --tiles): amx_tmpl.c is compiled for either.
 *
 * Invariant: an element's sum goes over k in the same order for every shape of c and on every
 * thread.
 *
 * Thread: engine; what the tasks call: any thread of the team.
 */
#pragma once

#include "device/cpu/cpu.h"

enum {
    HZP_TILE_ROWS = 16,
    HZP_TILE_STEP = 32,                             /* elements of k of a tile */
    HZP_TILE_WORDS = HZP_TILE_ROWS * HZP_TILE_ROWS, /* 4 bytes each */
    HZP_TILE_BLOCK = 2 * HZP_TILE_ROWS,             /* rows and columns of a block */
};

/* The kernels for one kind of tiles.
 *   begin, end   around a thread's calls of block
 *   pack_x       rows m .. m+16 of op(a), those from m1 on as zeros, as steps tiles
 *   pack_w       columns n .. n+32 of op(b), those from n1 on as zeros, as two tiles a step
 *   block        sums[32][32] = x w over `steps`; x: two rows of tiles, x1 may be x0 */
struct hzp_tiles_kernels {
    void (*begin)(void);
    void (*end)(void);
    void (*pack_x)(const struct hzp_matmul_args *args, int m, int m1, uint32_t *to);
    void (*pack_w)(const struct hzp_matmul_args *args, int n, int n1, uint32_t *to);
    void (*block)(const uint32_t *x0, const uint32_t *x1, const uint32_t *w, int steps,
                  float sums[HZP_TILE_BLOCK * HZP_TILE_BLOCK]);
};

extern const struct hzp_tiles_kernels hzp_cpu_tiles_amx, hzp_cpu_tiles_emulated;

/* Elements of k. */
static inline int hzp_tiles_inner(const struct hzp_matmul_args *args)
{
    return args->trans_a ? args->a.rows : args->a.cols;
}

/* c = op(a) op(b) (+ bias, + c), a and b in BF16.  HZP_ENOMEM. */
int hzp_cpu_tiles_run(struct hzp_team *team, const struct hzp_matmul_args *args,
                      const struct hzp_tiles_kernels *kernels);

/* Asks the kernel for the use of tiles; false: there are none, or it is refused.  (amx.c) */
bool hzp_cpu_amx_allowed(void);

/* Lays products that choose among tiles, panels and the library over those of avx512_bf16. */
void hzp_cpu_fill_matmul_amx(hzp_op_fn *op[HZP_OP_COUNT]);
