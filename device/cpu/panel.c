/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/panel.h"

#include "device/cpu/pool.h"

#include <stdatomic.h>

enum {
    SLAB_BYTES = 512 << 10, /* of packed x: stays in the second-level cache beside a panel of w */
    SLAB_ROWS_MIN = 256,    /* fewer do not repay the packing of w */
    COLS_ALONE = 256,       /* of c for each thread: from here on each packs x for itself */
};

struct job {
    struct hzp_panel panel;
    const struct hzp_panel_kernels *kernels;
    struct hzp_team *team;
    bool alone;      /* each thread has an x of its own */
    atomic_int next; /* panel */
};

static void pack_range(void *ctx, int begin, int end, int thread)
{
    const struct job *job = ctx;

    for (int b = begin; b < end; b++)
        job->kernels->pack(&job->panel, b);
}

static int take(struct job *job)
{
    return atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
}

/* What another core has packed comes from its cache, line by line: where the cores share no cache
 * that cost a sixth of the product, packing it again a hundredth. */
static void pack_alone(struct hzp_panel *mine, const struct job *job, int thread)
{
    mine->x = (uint32_t *)((char *)hzp_team_own(job->team, thread) + HZP_PANEL_OWN);
    for (int b = 0; b < mine->blocks; b++)
        job->kernels->pack(mine, b);
}

/* Panels are taken one ahead, so that a thread knows which to fetch while it computes. */
static void run_task(void *ctx, int task, int thread)
{
    struct job *job = ctx;
    struct hzp_panel mine = job->panel;
    int panels = HZP_DIV_UP(mine.args->c.cols, HZP_PANEL_COLS), i = take(job);

    if (job->alone && i < panels)
        pack_alone(&mine, job, thread);
    for (int next; i < panels; i = next) {
        next = take(job);
        job->kernels->run(&mine, i * HZP_PANEL_COLS, HZP_MIN(next, panels) * HZP_PANEL_COLS,
                          hzp_team_own(job->team, thread));
    }
}

int hzp_cpu_panel_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                      const struct hzp_panel_kernels *kernels)
{
    struct job job = {.kernels = kernels, .team = team};
    int inner = a->a.cols, slab = SLAB_BYTES / (2 * HZP_MAX(inner, 1));
    size_t x_bytes;

    slab = HZP_MIN(HZP_MAX(slab, SLAB_ROWS_MIN), HZP_PANEL_SLAB);
    slab = HZP_DIV_UP(a->c.rows, HZP_DIV_UP(a->c.rows, slab));
    x_bytes = (size_t)slab * (size_t)HZP_DIV_UP(inner, 2) * 4;
    job.alone = a->c.cols / COLS_ALONE >= hzp_team_threads(team);
    if (job.alone)
        HZP_TRY(hzp_team_reserve(team, 0, HZP_PANEL_OWN + x_bytes));
    else
        HZP_TRY(hzp_team_reserve(team, x_bytes, HZP_PANEL_OWN));
    for (int m = 0; m < a->c.rows; m += slab) {
        int rows = HZP_MIN(slab, a->c.rows - m), blocks = HZP_DIV_UP(rows, HZP_PANEL_ROWS);
        job.panel = (struct hzp_panel){a, hzp_team_shared(team), m, rows, blocks};
        atomic_store_explicit(&job.next, 0, memory_order_relaxed);
        if (!job.alone)
            hzp_team_range(team, blocks, (size_t)inner * 2 * HZP_PANEL_ROWS, pack_range, &job);
        hzp_team_run(team, hzp_team_threads(team), run_task, &job);
    }
    return HZP_OK;
}
