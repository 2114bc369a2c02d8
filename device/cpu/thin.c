/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/thin.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    K_BLOCK = 512,
    AHEAD_BYTES = 8500, /* of W under way from memory */
    TAKE_BYTES = 16 << 10,  /* of W, at least, for one turn */
};

struct job {
    struct hzp_thin thin;
    const struct hzp_thin_kernels *kernels;
    struct hzp_team *team;
    int least; /* columns */
    _Atomic int taken;
};

static int env(const char *name, int other)
{
    const char *v = getenv(name);
    return v ? atoi(v) : other;
}

/* The next columns: a part of what is left, so that the turns grow shorter towards the end. */
static struct hzp_thin_cols take(struct job *job)
{
    int cols = job->thin.args->c.cols, threads = hzp_team_threads(job->team);
    int begin = atomic_load_explicit(&job->taken, memory_order_relaxed), end;

    do {
        int want = HZP_MAX((cols - begin) / (2 * threads), job->least);
        end = cols - begin <= want ? cols
                                   : begin + HZP_ROUND_UP(want, 16);
        end = HZP_MIN(end, cols);
    } while (!atomic_compare_exchange_weak_explicit(&job->taken, &begin, end, memory_order_relaxed,
                                                    memory_order_relaxed));
    return (struct hzp_thin_cols){begin, end};
}

static void run_task(void *ctx, int task, int thread)
{
    struct job *job = ctx;
    void *own = hzp_team_own(job->team, thread);
    struct hzp_thin_cols now = take(job), next;

    if (now.begin == now.end)
        return;
    job->kernels->start(&job->thin, now, own);
    for (; now.begin < now.end; now = next) {
        next = take(job);
        job->kernels->run(&job->thin, now, next, own);
    }
}

int hzp_cpu_thin_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                     const struct hzp_thin_kernels *kernels)
{
    struct job job = {.kernels = kernels, .team = team};
    struct hzp_thin *thin = &job.thin;
    int inner = a->a.cols, lines = HZP_MAX(HZP_DIV_UP(inner, HZP_THIN_LINE), 1);
    size_t x_bytes = (size_t)a->c.rows * (size_t)lines * HZP_THIN_LINE * 2, tile;

    thin->args = a;
    thin->blocks = HZP_DIV_UP(a->c.rows, HZP_THIN_ROWS);
    if (a->c.rows >= env("T_BLK", 16))
        thin->blocks = HZP_MAX(thin->blocks, 4);
    for (int b = 0; b <= thin->blocks; b++)
        thin->row[b] = a->c.rows * b / thin->blocks;
    thin->k_fold = HZP_DIV_UP(inner, HZP_MAX(inner / env("T_KB", K_BLOCK), 1));
    thin->k_fold = HZP_ROUND_UP(HZP_MAX(thin->k_fold, 1), HZP_THIN_COLS * HZP_THIN_LINE);
    thin->along = thin->blocks <= env("T_FEW", 1);
    thin->k_tile = thin->k_fold;
    if (thin->along)
        thin->k_tile *= HZP_MAX(env("T_TILE", 2048) / thin->k_fold, 1);
    thin->k_tiles = HZP_DIV_UP(HZP_MAX(inner, 1), thin->k_tile);
    tile = (size_t)HZP_MIN(thin->k_tile, HZP_MAX(inner, 1)) * 2 * HZP_THIN_COLS;
    thin->ahead = (int)HZP_DIV_UP((size_t)env("T_AHEAD", AHEAD_BYTES), tile);
    thin->sums = x_bytes;
    job.least = (int)HZP_MAX((size_t)env("T_TAKE", TAKE_BYTES) / ((size_t)lines * 64), HZP_THIN_COLS);
    HZP_TRY(hzp_team_reserve(team, 0,
                             x_bytes + (size_t)a->c.rows * HZP_THIN_STRIP * sizeof(float)));
    hzp_team_run(team, hzp_team_threads(team), run_task, &job);
    return HZP_OK;
}
