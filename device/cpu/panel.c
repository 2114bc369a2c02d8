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

/* Panels next .. end-1, counted over all slabs. */
struct stretch {
    _Alignas(64) atomic_llong next;
    int64_t end;
};

struct job {
    struct hzp_panel panel; /* of slab 0; of all slabs where x is shared */
    const struct hzp_panel_kernels *kernels;
    struct hzp_team *team;
    int slab, slabs, panels; /* rows of a slab; slabs; panels of each */
    struct stretch *stretch; /* [stretches] */
    int stretches;
};

/* Some panels of one slab; none: slab is -1. */
struct group {
    int slab;
    struct hzp_panel_cols cols;
};

static void stretches_set(struct job *job, int count, int64_t begin, int64_t end)
{
    job->stretches = count;
    for (int i = 0; i < count; i++) {
        int64_t at = begin + (end - begin) * i / count;
        atomic_store_explicit(&job->stretch[i].next, at, memory_order_relaxed);
        job->stretch[i].end = begin + (end - begin) * (i + 1) / count;
    }
}

/* Groups become smaller towards the end, so that all threads end together. */
static int64_t take_some(const struct job *job, struct stretch *stretch, int64_t *count)
{
    long long at = atomic_load_explicit(&stretch->next, memory_order_relaxed);
    int64_t most = HZP_MIN(HZP_PANEL_SUMS / job->slab, GROUP_MAX);
    int takers = job->stretches == 1 ? hzp_team_threads(job->team) : 1;

    do {
        if (at >= stretch->end)
            return -1;
        *count = HZP_MIN(most, (stretch->end - at + 1) / (2 * takers));
        *count = HZP_MIN(HZP_MAX(*count, 1), job->panels - at % job->panels);
    } while (!atomic_compare_exchange_weak_explicit(&stretch->next, &at, at + *count,
                                                    memory_order_relaxed, memory_order_relaxed));
    return at;
}

/* From the thread's own stretch, then from the others'. */
static struct group take(const struct job *job, int thread)
{
    int64_t at = -1, count = 0;

    for (int i = 0; i < job->stretches && at < 0; i++)
        at = take_some(job, &job->stretch[(thread + i) % job->stretches], &count);
    if (at < 0)
        return (struct group){.slab = -1};
    int first = (int)(at % job->panels), cols = job->panel.args->c.cols;
    return (struct group){
        (int)(at / job->panels),
        {first * HZP_PANEL_COLS, HZP_MIN((first + (int)count) * HZP_PANEL_COLS, cols)}};
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
static void groups_run(const struct job *job, struct hzp_panel *panel, int packed, int thread)
{
    for (struct group now = take(job, thread), next; now.slab >= 0; now = next) {
        next = take(job, thread);
        if (packed != now.slab) {
            *panel = slab_of(job, now.slab, panel->x);
            job->kernels->pack(panel, 0, panel->blocks);
            packed = now.slab;
        }
        job->kernels->run(panel, now.cols, next.cols, hzp_team_own(job->team, thread));
    }
}

/* What another core has packed comes from its cache, line by line: where the cores share no cache
 * that cost a sixth of the product, packing it again a hundredth.  Of several slabs each thread
 * begins with its own. */
static void alone_task(void *ctx, int task, int thread)
{
    const struct job *job = ctx;
    struct hzp_panel mine = job->panel;

    mine.x = (uint32_t *)((char *)hzp_team_own(job->team, thread) + HZP_PANEL_OWN);
    groups_run(job, &mine, -1, thread);
}

static void pack_range(void *ctx, int begin, int end, int thread)
{
    const struct job *job = ctx;

    job->kernels->pack(&job->panel, begin, end);
}

static void shared_task(void *ctx, int task, int thread)
{
    const struct job *job = ctx;
    struct hzp_panel panel = job->panel;

    groups_run(job, &panel, panel.m0 / job->slab, thread);
}

int hzp_cpu_panel_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                      const struct hzp_panel_kernels *kernels)
{
    struct job job = {.panel.args = a, .kernels = kernels, .team = team};
    int inner = a->a.cols, slab = X_BYTES / (2 * HZP_MAX(inner, 1));
    int threads = hzp_team_threads(team);
    size_t x_bytes, stretch_bytes;

    slab = HZP_MIN(HZP_MAX(slab, SLAB_ROWS_MIN), HZP_PANEL_SLAB);
    job.slabs = HZP_DIV_UP(a->c.rows, slab);
    job.slab = HZP_DIV_UP(a->c.rows, job.slabs);
    job.panels = HZP_DIV_UP(a->c.cols, HZP_PANEL_COLS);
    job.panel.k_block = HZP_ROUND_UP(HZP_DIV_UP(inner, HZP_DIV_UP(inner, HZP_PANEL_K)), 32);
    x_bytes = (size_t)job.slab * (size_t)HZP_DIV_UP(inner, 2) * 4;
    stretch_bytes = (size_t)threads * sizeof(*job.stretch);
    if (a->c.cols / COLS_ALONE >= threads || job.slabs >= threads) {
        HZP_TRY(hzp_team_reserve(team, stretch_bytes, HZP_PANEL_OWN + x_bytes));
        job.stretch = hzp_team_shared(team);
        /* one slab: threads side by side read w better than each in a half of its own */
        stretches_set(&job, job.slabs >= threads ? threads : 1, 0, (int64_t)job.slabs * job.panels);
        hzp_team_run(team, threads, alone_task, &job);
        return HZP_OK;
    }
    HZP_TRY(hzp_team_reserve(team, stretch_bytes + x_bytes, HZP_PANEL_OWN));
    job.stretch = hzp_team_shared(team);
    for (int s = 0; s < job.slabs; s++) {
        job.panel = slab_of(&job, s, (uint32_t *)(void *)(job.stretch + threads));
        hzp_team_range(team, job.panel.blocks, (size_t)inner * 2 * HZP_PANEL_ROWS, pack_range,
                       &job);
        stretches_set(&job, 1, (int64_t)s * job.panels, (int64_t)(s + 1) * job.panels);
        hzp_team_run(team, threads, shared_task, &job);
    }
    return HZP_OK;
}
