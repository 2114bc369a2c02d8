/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/thin.h"

enum {
    FOLD = 512,             /* elements of k: 16 rows of x so long leave room for W in the cache */
    TILE = 2048,            /* elements of k at once where there are few rows */
    SPREAD = 16,            /* rows from which each of four blocks fetches one row of W */
    AHEAD_BYTES = 12 << 10, /* W fetched ahead; 20000 bytes evict each other from the cache */
    AHEAD_PAIRS = 8 << 10,  /* the same where much of x goes through the cache meanwhile */
    SETS_BYTES = 4096,      /* addresses so far apart meet in one set of the first-level cache */
    TURN_BYTES = 16 << 10,  /* least part of W that a thread takes at once */
    ROUND = 16,             /* columns: whole lines of c, and HZP_THIN_ACROSS */
};

struct job {
    struct hzp_thin thin;
    const struct hzp_thin_kernels *kernels;
    struct hzp_team *team;
    struct hzp_deal deal;
};

static void run_task(void *ctx, int task, int thread)
{
    struct job *job = ctx;
    void *own = hzp_team_own(job->team, thread);
    struct hzp_stretch now = hzp_deal_take(&job->deal), next;

    if (now.begin == now.end)
        return;
    job->kernels->start(&job->thin, now, own);
    for (; now.begin < now.end; now = next) {
        next = hzp_deal_take(&job->deal);
        job->kernels->run(&job->thin, now, next, own);
    }
}

/* How x and W are cut. */
static void cut(struct hzp_thin *thin, const struct hzp_matmul_args *a)
{
    int inner = HZP_MAX(a->a.cols, 1), tile;

    thin->args = a;
    thin->blocks = HZP_DIV_UP(a->c.rows, HZP_THIN_ROWS);
    if (a->c.rows >= SPREAD)
        thin->blocks = HZP_MAX(thin->blocks, HZP_THIN_COLS);
    for (int b = 0; b <= thin->blocks; b++)
        thin->row[b] = a->c.rows * b / thin->blocks;

    thin->k_fold =
        HZP_ROUND_UP(HZP_DIV_UP(inner, HZP_MAX(inner / FOLD, 1)), HZP_THIN_COLS * HZP_THIN_LINE);
    thin->along = thin->blocks == 1;
    thin->k_tile = thin->k_fold * (thin->along ? HZP_MAX(TILE / thin->k_fold, 1) : 1);
    thin->k_tiles = HZP_DIV_UP(inner, thin->k_tile);
    thin->pairs = thin->blocks > HZP_THIN_COLS && (size_t)a->b.stride * 2 % SETS_BYTES != 0;
    tile = HZP_MIN(thin->k_tile, inner) * 2 * HZP_THIN_COLS;
    thin->ahead = HZP_DIV_UP(thin->pairs ? AHEAD_PAIRS : AHEAD_BYTES, tile);
    thin->ahead = HZP_MAX(thin->ahead, thin->pairs ? 2 : 1);
    thin->fetch = hzp_cpu_fetches_far() && a->c.rows > 1 ? HZP_THIN_FAR : HZP_THIN_NEAR;
    thin->across = hzp_cpu_fetches_far() && a->c.rows == 1 && a->c.cols >= HZP_THIN_ACROSS;
}

int hzp_cpu_thin_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                     const struct hzp_thin_kernels *kernels)
{
    struct job job = {.kernels = kernels, .team = team};
    size_t row_bytes = (size_t)HZP_ROUND_UP(HZP_MAX(a->a.cols, 1), HZP_THIN_LINE) * 2;

    HZP_ASSERT(a->c.rows >= 1 && a->c.rows <= HZP_THIN_ROWS_MAX);
    cut(&job.thin, a);
    job.thin.sums = (size_t)a->c.rows * row_bytes;
    job.deal =
        (struct hzp_deal){.cols = a->c.cols,
                          .threads = hzp_team_threads(team),
                          .least = (int)HZP_MAX(TURN_BYTES / row_bytes, (size_t)HZP_THIN_COLS),
                          .round = ROUND};
    HZP_TRY(hzp_team_reserve(team, 0,
                             job.thin.sums + (size_t)a->c.rows * HZP_THIN_STRIP * sizeof(float)));
    hzp_team_run(team, hzp_team_threads(team), run_task, &job);
    return HZP_OK;
}
