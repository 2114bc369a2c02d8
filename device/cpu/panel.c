/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/panel.h"

#include "device/cpu/pool.h"

#include <stdatomic.h>

enum {
    X_BYTES = 4 << 20,   /* of packed x, of which a block of k at a time is in use */
    SLAB_ROWS_MIN = 256, /* fewer do not repay the packing of w */
    COLS_ALONE = 256,    /* of c for each thread: from here on each packs x for itself */
    GROUP_MAX = 8,       /* panels: more gain nothing */
};

struct job {
    struct hzp_panel panel; /* of slab 0 */
    const struct hzp_panel_kernels *kernels;
    struct hzp_team *team;
    int slab, slabs, panels; /* rows of a slab; slabs; panels of each */
    atomic_llong next;       /* panel, over all slabs */
};

/* Some panels of one slab; none: slab is -1. */
struct group {
    int slab;
    struct hzp_panel_cols cols;
};

/* Groups become smaller towards the end, so that all threads end together. */
static struct group take(struct job *job, int64_t end)
{
    int64_t at = atomic_load_explicit(&job->next, memory_order_relaxed), count;
    int most = HZP_MIN(HZP_PANEL_SUMS / job->slab, GROUP_MAX);

    do {
        if (at >= end)
            return (struct group){.slab = -1};
        count = HZP_MIN(most, (end - at) / (2 * hzp_team_threads(job->team)));
        count = HZP_MIN(HZP_MAX(count, 1), job->panels - at % job->panels);
    } while (!atomic_compare_exchange_weak_explicit(&job->next, &at, at + count,
                                                    memory_order_relaxed, memory_order_relaxed));
    int first = (int)(at % job->panels), cols = job->panel.args->c.cols;
    return (struct group){(int)(at / job->panels),
                          {first * HZP_PANEL_COLS,
                           HZP_MIN((first + (int)count) * HZP_PANEL_COLS, cols)}};
}

static struct hzp_panel slab_of(const struct job *job, int slab, uint32_t *x)
{
    struct hzp_panel panel = job->panel;

    panel.x = x;
    panel.m0 = slab * job->slab;
    panel.rows = HZP_MIN(job->slab, panel.args->c.rows - panel.m0);
    panel.blocks = HZP_DIV_UP(panel.rows, HZP_PANEL_ROWS);
    return panel;
}

/* Groups are taken one ahead, so that a thread knows what to fetch while it computes. */
static void groups_run(struct job *job, struct hzp_panel *panel, struct group now, int64_t end,
                       int thread, bool alone)
{
    int packed = alone ? -1 : now.slab;

    while (now.slab >= 0) {
        struct group next = take(job, end);
        if (packed != now.slab) {
            *panel = slab_of(job, now.slab, panel->x);
            for (int b = 0; b < panel->blocks; b++)
                job->kernels->pack(panel, b);
            packed = now.slab;
        }
        job->kernels->run(panel, now.cols, next.cols, hzp_team_own(job->team, thread));
        now = next;
    }
}

/* What another core has packed comes from its cache, line by line: where the cores share no cache
 * that cost a sixth of the product, packing it again a hundredth.  So a thread goes through all slabs
 * without waiting for the others. */
static void alone_task(void *ctx, int task, int thread)
{
    struct job *job = ctx;
    int64_t end = (int64_t)job->slabs * job->panels;
    struct hzp_panel mine = job->panel;

    mine.x = (uint32_t *)((char *)hzp_team_own(job->team, thread) + HZP_PANEL_OWN);
    groups_run(job, &mine, take(job, end), end, thread, true);
}

static void pack_range(void *ctx, int begin, int end, int thread)
{
    const struct job *job = ctx;

    for (int b = begin; b < end; b++)
        job->kernels->pack(&job->panel, b);
}

static void shared_task(void *ctx, int task, int thread)
{
    struct job *job = ctx;
    struct hzp_panel panel = job->panel;
    int64_t end = (panel.m0 / job->slab + 1) * (int64_t)job->panels;

    groups_run(job, &panel, take(job, end), end, thread, false);
}

int hzp_cpu_panel_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                      const struct hzp_panel_kernels *kernels)
{
    struct job job = {.panel.args = a, .kernels = kernels, .team = team};
    int inner = a->a.cols, slab = X_BYTES / (2 * HZP_MAX(inner, 1));
    int threads = hzp_team_threads(team);
    size_t x_bytes;

    slab = HZP_MIN(HZP_MAX(slab, SLAB_ROWS_MIN), HZP_PANEL_SLAB);
    job.slabs = HZP_DIV_UP(a->c.rows, slab);
    job.slab = HZP_DIV_UP(a->c.rows, job.slabs);
    job.panels = HZP_DIV_UP(a->c.cols, HZP_PANEL_COLS);
    job.panel.k_block = HZP_ROUND_UP(HZP_DIV_UP(inner, HZP_DIV_UP(inner, HZP_PANEL_K)), 32);
    x_bytes = (size_t)job.slab * (size_t)HZP_DIV_UP(inner, 2) * 4;
    if (a->c.cols / COLS_ALONE >= threads) {
        HZP_TRY(hzp_team_reserve(team, 0, HZP_PANEL_OWN + x_bytes));
        hzp_team_run(team, threads, alone_task, &job);
        return HZP_OK;
    }
    HZP_TRY(hzp_team_reserve(team, x_bytes, HZP_PANEL_OWN));
    for (int s = 0; s < job.slabs; s++) {
        job.panel = slab_of(&job, s, hzp_team_shared(team));
        hzp_team_range(team, job.panel.blocks, (size_t)inner * 2 * HZP_PANEL_ROWS, pack_range, &job);
        atomic_store_explicit(&job.next, (long long)s * job.panels, memory_order_relaxed);
        hzp_team_run(team, threads, shared_task, &job);
    }
    return HZP_OK;
}
