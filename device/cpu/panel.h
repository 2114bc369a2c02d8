/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/panel.h - products of packed operands, in two kinds of kernels:
 *   pairs  of more than a few rows, bf16 or E4M3, where the CPU multiplies pairs of bf16; E4M3 is
 *          widened while it is packed, and sums are scaled as they are stored (panel_tmpl.c)
 *   wide   F32 or BF16 in F32 arithmetic, any number of rows, any transposition, and E4M3 as above
 *          (wide_tmpl.c)
 *
 * c is cut into slabs of rows and groups of panels of columns, the width of a tile.  k is cut into
 * blocks: a thread takes a group, and for each block of k it packs one panel's part of op(b) after
 * another, which stays in the first-level cache while the slab's rows go by; their part of op(a),
 * packed once, and the group's sums stay in the second.  Where all of a packed slab stays there, a
 * panel's blocks of k follow each other instead: op(b) is then read in the order of memory.
 *
 * In comments x is op(a) and w is op(b), transposed where trans_b is not set.
 *
 * Invariant: an element's sum goes over k in the same order for every shape of c
 * and on every thread.
 *
 * Thread: engine; what the tasks call: any thread of the team.
 */
#pragma once

#include "device/cpu/cpu.h"

/* One slab: rows m0 .. m0+rows of c, in `blocks` of nearly the same height. */
struct hzp_panel {
    const struct hzp_matmul_args *args;
    uint32_t *x; /* words: [blocks of k][blocks of rows][words of k][rows of the block] */
    int m0, rows, blocks;
    int height, higher; /* rows of each block, and how many of the first blocks have one more */
    int inner, k_block; /* elements of k in all, and in a block, where they are a multiple of 32 */
    size_t w_bytes;     /* a thread's own memory for a panel's part of w; sums follow it */
    bool along;         /* all blocks of k of one panel before the next */
};

/* Columns begin .. end-1 of c. */
struct hzp_panel_cols {
    int begin, end;
};

/* The first row of block b within the slab; of b = blocks: its end. */
static inline int hzp_panel_row(const struct hzp_panel *panel, int b)
{
    return b * panel->height + HZP_MIN(b, panel->higher);
}

/* One instruction set's kernels.  run: the columns `now`, whole panels but the last of c, while it
 * fetches the beginning of `next`; own: the thread's memory, w_bytes and a float for each element
 * of c in `now` (along: in one panel).  pack: blocks begin .. end-1 of x's rows. */
struct hzp_panel_kernels {
    int rows, cols; /* most rows of a tile; columns of a panel */
    int word;       /* elements of k in 4 packed bytes: a pair, or one float */
    int k, slab;    /* most k of a block and rows of a slab; 0: by the sizes of the caches */
    void (*run)(const struct hzp_panel *panel, struct hzp_panel_cols now,
                struct hzp_panel_cols next, void *own);
    void (*pack)(const struct hzp_panel *panel, int begin, int end);
};

extern const struct hzp_panel_kernels hzp_cpu_panel_avx512_bf16;
extern const struct hzp_panel_kernels hzp_cpu_wide_base, hzp_cpu_wide_avx2, hzp_cpu_wide_avx512,
    hzp_cpu_wide_avx512_bf16;

/* c = op(a) op(b) (+ bias, + c), whole, k at least 1.  Kernels of pairs: trans_b alone is set, a
 * and b both BF16 or both E4M3 (then scaled); wide ones: F32 or BF16.  HZP_ENOMEM. */
int hzp_cpu_panel_run(struct hzp_team *team, const struct hzp_matmul_args *args,
                      const struct hzp_panel_kernels *kernels);
