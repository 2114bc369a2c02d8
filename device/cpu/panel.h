/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/panel.h - products of more than a few rows in bf16 or E4M3, where the CPU multiplies
 * pairs of bf16: E4M3 is widened while it is packed, and sums are scaled as they are stored.
 *
 * c is cut into slabs of rows and groups of panels of HZP_PANEL_COLS columns.  k is cut into
 * blocks: a thread takes a group, and for each block of k it packs one panel's part of w after
 * another, which stays in the first-level cache while the slab's rows go by; their part of x,
 * packed once, and the group's sums stay in the second.
 *
 * Invariant: an element's sum goes over k in the same order whatever c's shape and whoever runs it.
 *
 * Thread: engine; what the tasks call: any thread of the team.
 */
#ifndef HZP_DEVICE_CPU_PANEL_H
#define HZP_DEVICE_CPU_PANEL_H

#include "device/cpu/cpu.h"

enum {
    HZP_PANEL_COLS = 32,
    HZP_PANEL_ROWS = 12,   /* of one tile, at most */
    HZP_PANEL_K = 512,     /* of a block, at most */
    HZP_PANEL_SLAB = 512,  /* rows, at most */
    HZP_PANEL_SUMS = 2048, /* rows of all panels of a group, at most */
    HZP_PANEL_W_BYTES = HZP_PANEL_COLS * HZP_PANEL_K * 2,
    HZP_PANEL_OWN = HZP_PANEL_W_BYTES + HZP_PANEL_SUMS * HZP_PANEL_COLS * 4,
};

/* One slab: rows m0 .. m0+rows of c, in `blocks` of nearly the same height. */
struct hzp_panel {
    const struct hzp_matmul_args *args;
    uint32_t *x; /* [blocks of k][blocks of rows][pairs of k][rows of the block] */
    int m0, rows, blocks;
    int k_block; /* even */
};

/* Columns begin .. end-1 of c. */
struct hzp_panel_cols {
    int begin, end;
};

/* The first row of block b within the slab; of b = blocks: its end. */
static inline int hzp_panel_row(const struct hzp_panel *panel, int b)
{
    return (int)((int64_t)panel->rows * b / panel->blocks);
}

/* One instruction set's kernels.  run: some panels, their rows together at most HZP_PANEL_SUMS,
 * while it fetches the beginning of `next`; own: HZP_PANEL_OWN bytes of the thread.  pack: blocks
 * begin .. end-1 of x's rows. */
struct hzp_panel_kernels {
    void (*run)(const struct hzp_panel *panel, struct hzp_panel_cols now,
                struct hzp_panel_cols next, void *own);
    void (*pack)(const struct hzp_panel *panel, int begin, int end);
};

extern const struct hzp_panel_kernels hzp_cpu_panel_avx512_bf16;

/* c = x W^T (scaled if E4M3; + bias, + c), x and W both in bf16 or both in E4M3, whole.
 * HZP_ENOMEM. */
int hzp_cpu_panel_run(struct hzp_team *team, const struct hzp_matmul_args *args,
                      const struct hzp_panel_kernels *kernels);

#endif
