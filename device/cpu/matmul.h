/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/matmul.h - matrix products on a team.
 *
 * Chosen by measurements in dev/kernels/matmul_lab.md:
 *   wide     F32, and where the CPU does not multiply pairs BF16 and E4M3: our own panels in F32
 *            arithmetic (device/cpu/panel.h), forward and gradients, any number of rows (of E4M3
 *            forward, and more than a few)
 *   few      what wide computes, the same bits, of one row and of some other small numbers of rows
 *            (device/cpu/few.h)
 *   thin     x W^T in bf16 pairs of few rows (device/cpu/thin.h): streams W at read bandwidth
 *   panels   x W^T in bf16 pairs of more rows (device/cpu/panel.h)
 *   dot      x W^T in E4M3 of few rows, and where the CPU does not multiply pairs in BF16 of few
 *            rows if W's lie a multiple of 4096 bytes apart: both contiguous along k
 *   library  oneDNN, one single-threaded primitive per block of c, run by the team's threads:
 *            gradients where the CPU multiplies pairs
 * Where the device is to compute a row alike in any company (hzp_device_same_rows), thin and dot
 * are not taken.
 * But for the library a value depends only on its two vectors along k and on the kind of kernel:
 * never on how many rows share the call.  F32 forward products are always wide or few.
 *
 * Thread: engine; what the tasks call: any thread of the team.
 */
#pragma once

#include "device/cpu/few.h"
#include "device/cpu/panel.h"
#include "device/cpu/thin.h"

/* Work memory of one dot task (partial sums where k is cut), bytes. */
enum {
    HZP_DOT_ROWS = 96,
    HZP_DOT_COLS = 32,
    HZP_DOT_WORK = HZP_DOT_ROWS * HZP_DOT_COLS * 64,
};

/* The rows x of a product x W^T of the dot kernel, as BF16 and cut along k: block i holds elements
 * i * k_block on of every row.  Rows do not lie a multiple of 4096 bytes apart, where they
 * would push each other and W out of the first-level cache. */
struct hzp_dot {
    const struct hzp_matmul_args *args;
    const char *x;
    size_t row_bytes, block_bytes; /* from one to the next */
    int k_block;
    bool streams; /* one row in one block is computed by four streams through W */
};

/* c[m0..m1)[n0..n1). */
typedef void hzp_dot_fn(const struct hzp_dot *dot, int m0, int m1, int n0, int n1, float *work);

/* One instruction set's kernels. */
struct hzp_cpu_product {
    hzp_dot_fn *dot;
    const struct hzp_thin_kernels *thin;   /* NULL: does not multiply pairs of bf16 */
    const struct hzp_panel_kernels *panel; /* NULL: likewise */
    const struct hzp_panel_kernels *wide;
    const struct hzp_few_kernels *few; /* what wide computes, of few rows */
    const struct hzp_few_kernels *one; /* the same, of one row */
    void (*widen)(const uint8_t *from, uint16_t *to, int count); /* E4M3 to BF16 */
};

extern const struct hzp_cpu_product hzp_cpu_product_base, hzp_cpu_product_avx2,
    hzp_cpu_product_avx512, hzp_cpu_product_avx512_bf16;

/* The lane's cache of library primitives.  HZP_ENOMEM. */
int hzp_cpu_matmul_open(struct hzp_cpu_matmul **ret);
void hzp_cpu_matmul_close(struct hzp_cpu_matmul *products); /* NULL: no effect */

/* Which oneDNN runs. */
const char *hzp_cpu_library_version(char text[32]);

/* Keeps the library to the calling thread; each thread that calls it says so first. */
void hzp_cpu_library_alone(void);

/* The beginning of the op: puts what the product is added to into c, if that lies elsewhere.  The
 * kernels read c alone. */
void hzp_cpu_matmul_take(struct hzp_lane *lane, const struct hzp_matmul_args *args);

/* The rest of the op, the fastest way. */
int hzp_cpu_matmul(struct hzp_lane *lane, const struct hzp_matmul_args *args,
                   const struct hzp_cpu_product *product);

/* The library's own answer for the whole of args, on the lane's team; HZP_EUNSUP: it has none. */
int hzp_cpu_matmul_library(struct hzp_lane *lane, const struct hzp_matmul_args *args);
