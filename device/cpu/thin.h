/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/thin.h - bf16 products of few rows, where the CPU multiplies pairs: W is read from
 * memory once, and that is most of what they cost.
 *
 * The columns of c are dealt out in stretches, large ones first, so that each thread walks through
 * W along one contiguous stream and both end together; a thread knows its next stretch while it is
 * still at work on one, and fetches W some tiles ahead across that border too.  Each thread keeps a
 * copy of x of its own, block by block of k in the order in which it is read.
 *
 * One row of x, on CPUs that fetch far better into the second cache, is multiplied by sixteen rows
 * of W at a time, a line of memory of each in turn, while the next sixteen are fetched: on Zen 4
 * that reads a tenth faster than tiles of four rows do.
 *
 * Invariant: an element's sum depends on its row of x and its row of W only: not on c's shape, on
 * how x is cut into blocks of rows, or on which thread computes it.
 *
 * Thread: engine; what the tasks call: any thread of the team.
 */
#pragma once

#include "device/cpu/cpu.h"
#include "device/cpu/deal.h"

enum {
    HZP_THIN_ROWS = 6,      /* a tile's, at most */
    HZP_THIN_COLS = 4,      /* a tile's */
    HZP_THIN_ACROSS = 16,   /* rows of W at a time with one row of x */
    HZP_THIN_LINE = 32,     /* elements of k in a vector */
    HZP_THIN_STRIP = 32,    /* columns whose sums are accumulated at once */
    HZP_THIN_ROWS_MAX = 48, /* for more rows of c panels are as fast or faster */
    HZP_THIN_BLOCKS = HZP_THIN_ROWS_MAX / HZP_THIN_ROWS,
};

/* How W is fetched ahead, which changes nothing in the sums: by prefetches into the first cache or
 * into the second. */
enum hzp_thin_fetch { HZP_THIN_NEAR, HZP_THIN_FAR };

struct hzp_thin {
    const struct hzp_matmul_args *args;
    int blocks;                   /* blocks of x's rows, nearly equal in height */
    int row[HZP_THIN_BLOCKS + 1]; /* the first of each block */
    int k_fold;          /* length of an independent partial sum along k; depends on k only */
    int k_tile, k_tiles; /* as they are walked through: a tile is one k_fold or several */
    bool along;          /* all of k for four columns; else one tile of k for a strip of columns */
    bool pairs;          /* a block of x goes by two tiles of W */
    int ahead;           /* tiles */
    enum hzp_thin_fetch fetch;
    bool across; /* one row of x by HZP_THIN_ACROSS rows of W at a time */
    size_t sums; /* where the sums begin in a thread's own memory: behind x */
};

/* One instruction set's kernels.  start: copies x into the thread's own memory while it fetches the
 * beginning of `first`.  run: the columns `now` of c, while it fetches the beginning of `next`. */
struct hzp_thin_kernels {
    void (*start)(const struct hzp_thin *thin, struct hzp_stretch first, void *own);
    void (*run)(const struct hzp_thin *thin, struct hzp_stretch now, struct hzp_stretch next,
                void *own);
};

extern const struct hzp_thin_kernels hzp_cpu_thin_avx512_bf16;

/* c = x W^T (+ bias, + c), x and W in bf16, at most HZP_THIN_ROWS_MAX rows.  HZP_ENOMEM. */
int hzp_cpu_thin_run(struct hzp_team *team, const struct hzp_matmul_args *args,
                     const struct hzp_thin_kernels *kernels);
