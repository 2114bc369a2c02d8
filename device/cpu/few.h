/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/few.h - products x W^T of few rows in F32 arithmetic: what the wide panels
 * (device/cpu/panel.h) compute, the same bits, without copying W.
 *
 *   one row    W is transposed in registers, a line of memory of each of its rows at a time: of
 *              neighbouring rows, or of rows in as many parts of W, whichever way the CPU fetches
 *              faster
 *   more rows  a vector is of x's rows, and W's elements are broadcast: x is copied transposed,
 *              which costs little, and W is read as it lies
 *
 * The threads get the columns of c in stretches (device/cpu/deal.h) and know their next one while
 * they compute, so that W is fetched across the border too.  Where W is read as streams, each
 * thread has as many of them and goes through them in steps (device/cpu/ranges.h).
 *
 * Invariant: every sum starts at 0 and goes up in k, one multiplication with addition a step.
 *
 * Thread: engine; what the tasks call: any thread of the team.
 */
#pragma once

#include "device/cpu/cpu.h"
#include "device/cpu/deal.h"
#include "device/cpu/ranges.h"

enum { HZP_FEW_VECTORS = 3 };

struct hzp_few {
    const struct hzp_matmul_args *args;
    int vectors; /* that hold all rows of x; of one row: 0 */
    /* Columns of each stream through W, of one row; 0: W is not read as streams.  Those of the
     * first `longer` threads have two more. */
    int streams, longer;
};

/* The first step (run_streams) of a thread's streams. */
static inline int hzp_few_step(const struct hzp_few *few, int thread)
{
    return thread * few->streams + 2 * HZP_MIN(thread, few->longer);
}

/* One instruction set's kernels.  start: copies x into the thread's own memory.  run: the columns
 * `now` of c, while it fetches the beginning of `next`. */
struct hzp_few_kernels {
    int lanes;   /* floats in a vector */
    int strip;   /* columns at a time, of more than one row */
    int streams; /* through W, of one thread */
    /* Rows, at least, by the number of vectors: lanes without a row cost as much as the others.
     * 0: never. */
    int least[HZP_FEW_VECTORS + 1];
    void (*start)(const struct hzp_few *few, void *own);
    void (*run)(const struct hzp_few *few, struct hzp_stretch now, struct hzp_stretch next,
                void *own);
    /* The steps of a range, all of them of the same thread's streams: one is a column of each. */
    void (*run_streams)(const struct hzp_few *few, struct hzp_range *range, const void *own);
};

extern const struct hzp_few_kernels hzp_cpu_few_base, hzp_cpu_few_avx2, hzp_cpu_few_avx512,
    hzp_cpu_few_avx512_bf16;

/* Whether c = x W^T (+ bias, + c), x and W F32 or BF16, is faster this way than by wide panels. */
bool hzp_cpu_few_takes(const struct hzp_matmul_args *args, const struct hzp_few_kernels *kernels);

/* The product; hzp_cpu_few_takes is true of it.  streams: of one row, W is read as several streams
 * where its rows allow it; the bits are the same.  HZP_ENOMEM. */
int hzp_cpu_few_run(struct hzp_team *team, const struct hzp_matmul_args *args,
                    const struct hzp_few_kernels *kernels, bool streams);
