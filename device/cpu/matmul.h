/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/matmul.h - matrix products on a team.
 *
 * Five ways, chosen by measurements in dev/kernels/matmul_lab.md:
 *   dot      x W^T (both operands contiguous along k): our own kernel, every F32 forward product,
 *   and
 *            BF16 where the CPU does not multiply pairs
 *   thin     x W^T in bf16 of few rows (device/cpu/thin.h): streams W at read bandwidth
 *   panels   x W^T in bf16 of more rows (device/cpu/panel.h)
 *   library  oneDNN, one single-threaded primitive per block of c, run by the team's threads:
 *            gradients
 *   outer    our own kernel for what the library cannot do at this instruction set
 * Within each of the first three a value depends only on its two rows: never on how many rows share
 * the call.
 *
 * Thread: engine; what the tasks call: any thread of the team.
 */
#ifndef HZP_DEVICE_CPU_MATMUL_H
#define HZP_DEVICE_CPU_MATMUL_H

#include "device/cpu/panel.h"
#include "device/cpu/thin.h"

/* Work memory of one dot task (partial sums where k is cut), bytes. */
enum { HZP_DOT_ROWS = 96, HZP_DOT_COLS = 32, HZP_DOT_WORK = HZP_DOT_ROWS * HZP_DOT_COLS * 64 };

/* The rows x of a product x W^T, cut along k: block i holds elements i * k_block on of every row;
 * those of E4M3 as BF16.  Copied so that rows do not lie a multiple of 4096 bytes apart, where they
 * would push each other and W out of the first-level cache. */
struct hzp_dot {
    const struct hzp_matmul_args *args;
    const char *x;
    size_t row_bytes, block_bytes; /* from one to the next */
    int k_block;
};

/* c[m0..m1)[n0..n1). */
typedef void hzp_dot_fn(const struct hzp_dot *dot, int m0, int m1, int n0, int n1, float *work);

/* The same for any flags. */
typedef void hzp_outer_fn(const struct hzp_matmul_args *args, int m0, int m1, int n0, int n1);

/* One instruction set's kernels. */
struct hzp_cpu_product {
    hzp_dot_fn *dot;
    hzp_outer_fn *outer;
    const struct hzp_thin_kernels *thin;   /* NULL: does not multiply bf16 without widening them */
    const struct hzp_panel_kernels *panel; /* NULL: likewise */
    void (*widen)(const uint8_t *from, uint16_t *to, int count); /* E4M3 to BF16 */
};

/* The lane's cache of library primitives.  HZP_ENOMEM. */
int hzp_cpu_matmul_open(struct hzp_cpu_matmul **ret);
void hzp_cpu_matmul_close(struct hzp_cpu_matmul *products); /* NULL: no effect */

/* Which oneDNN runs. */
const char *hzp_cpu_library_version(char text[32]);

/* Keeps the library to the calling thread; each thread that calls it says so first. */
void hzp_cpu_library_alone(void);

/* The op, the fastest way. */
int hzp_cpu_matmul(struct hzp_lane *lane, const struct hzp_matmul_args *args,
                   const struct hzp_cpu_product *product);

/* The library's own answer for the whole of args, on the lane's team; HZP_EUNSUP: it has none. */
int hzp_cpu_matmul_library(struct hzp_lane *lane, const struct hzp_matmul_args *args);

#endif
