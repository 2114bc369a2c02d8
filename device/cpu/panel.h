/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/panel.h - products of more than a few rows in bf16 or E4M3, where the CPU multiplies
 * pairs of bf16: E4M3 is widened while it is packed, and sums are scaled as they are stored.
 *
 * c is cut into slabs of rows, whose part of x is packed once and stays in the second-level cache,
 * and these into panels of HZP_PANEL_COLS columns; a thread packs a panel's part of w and runs down
 * the slab's rows with it.
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
    HZP_PANEL_ROWS = 12,     /* of one tile, at most */
    HZP_PANEL_K = 2048,      /* of w at a time */
    HZP_PANEL_SLAB = 512,    /* rows, at most */
    HZP_PANEL_W_BYTES = HZP_PANEL_COLS * HZP_PANEL_K * 2,
    HZP_PANEL_OWN = HZP_PANEL_W_BYTES + HZP_PANEL_SLAB * HZP_PANEL_COLS * 4,
};

/* One slab: rows m0 .. m0+rows of c, in `blocks` of nearly the same height. */
struct hzp_panel {
    const struct hzp_matmul_args *args;
    uint32_t *x; /* block after block: [pairs of k][rows of the block] */
    int m0, rows, blocks;
};

/* The first row of block b within the slab; of b = blocks: its end. */
static inline int hzp_panel_row(const struct hzp_panel *panel, int b)
{
    return (int)((int64_t)panel->rows * b / panel->blocks);
}

/* One instruction set's kernels.  run: the panel whose first column is n, while it fetches the one
 * at `next`; own: HZP_PANEL_OWN bytes of the thread.  pack: block b of x. */
struct hzp_panel_kernels {
    void (*run)(const struct hzp_panel *panel, int n, int next, void *own);
    void (*pack)(const struct hzp_panel *panel, int b);
};

extern const struct hzp_panel_kernels hzp_cpu_panel_avx512_bf16;

/* c = x W^T (scaled if E4M3; + bias, + c), x and W both in bf16 or both in E4M3, whole.
 * HZP_ENOMEM. */
int hzp_cpu_panel_run(struct hzp_team *team, const struct hzp_matmul_args *args,
                      const struct hzp_panel_kernels *kernels);

#endif
