/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/panel.h"

enum {
    X_BYTES = 4 << 20,      /* packed x; one block of k at a time is in use */
    SLAB_ROWS_MIN = 256,    /* fewer do not repay the packing of w */
    COLS_ALONE = 256,       /* columns of c per thread from which on each packs x for itself */
    WORDS_ALONE = 16 << 10, /* words of x up to which each packs x for itself, too */
    GROUP_MAX = 8,          /* panels: more gain nothing */
    SUMS = 2048,            /* rows of all panels of a group, at most */
    L1_BYTES = 32 << 10,    /* where the system does not tell */
    L2_BYTES = 256 << 10,
};

/* Panels next .. end-1, counted over all slabs. */
struct stretch {
    _Alignas(64) atomic_llong next;
    int64_t end;
};

struct job {
    struct hzp_panel panel; /* describes slab 0, or all slabs where x is shared */
    const struct hzp_panel_kernels *kernels;
    struct hzp_team *team;
    int slab, slabs, panels; /* rows of a slab; slabs; panels of each */
    int most;                /* panels of a group */
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
    int takers = job->stretches == 1 ? hzp_team_threads(job->team) : 1;

    do {
        if (at >= stretch->end)
            return -1;
        *count = HZP_MIN(job->most, (stretch->end - at + 1) / (2 * takers));
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
    int64_t first = at % job->panels, width = job->kernels->cols;
    int64_t end = HZP_MIN((first + count) * width, job->panel.args->c.cols);
    return (struct group){(int)(at / job->panels), {(int)(first * width), (int)end}};
}

static struct hzp_panel slab_of(const struct job *job, int slab, uint32_t *x)
{
    struct hzp_panel panel = job->panel;

    panel.x = x;
    panel.m0 = slab * job->slab;
    panel.rows = HZP_MIN(job->slab, panel.args->c.rows - panel.m0);
    panel.blocks = HZP_DIV_UP(panel.rows, job->kernels->rows);
    panel.height = panel.rows / panel.blocks;
    panel.higher = panel.rows % panel.blocks;
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

/* Bytes of a thread's own memory in front of an x of its own. */
static size_t own_bytes(const struct job *job)
{
    size_t rows = job->panel.along ? (size_t)job->slab : SUMS;

    return job->panel.w_bytes + rows * (size_t)job->kernels->cols * sizeof(float);
}

/* What another core has packed comes from its cache, line by line: where the cores share no cache
 * that cost a sixth of the product, packing it again a hundredth.  Of several slabs each thread
 * begins with its own. */
static void alone_task(void *ctx, int task, int thread)
{
    const struct job *job = ctx;
    struct hzp_panel mine = job->panel;

    mine.x = (uint32_t *)(void *)((char *)hzp_team_own(job->team, thread) + own_bytes(job));
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

/* Bytes of a core's caches. */
struct caches {
    int first, second;
};

static struct caches caches_find(void)
{
    static _Atomic int first, second; /* the system is asked once, or by two threads the same */
    struct caches ret = {atomic_load(&first), atomic_load(&second)};

    if (ret.second > 0)
        return ret;
    ret = (struct caches){L1_BYTES, L2_BYTES};
#if defined(_SC_LEVEL1_DCACHE_SIZE) && defined(_SC_LEVEL2_CACHE_SIZE)
    long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (l1 >= L1_BYTES / 2 && l2 >= 4 * l1 && l2 <= 64 << 20)
        ret = (struct caches){(int)l1, (int)l2};
#endif
    atomic_store(&first, ret.first);
    atomic_store(&second, ret.second);
    return ret;
}

/* How c and k are cut: half of the first cache for a panel's part of w, half of the second for a
 * slab's part of x. */
static void cut(struct job *job, const struct hzp_panel_kernels *kernels)
{
    const struct hzp_matmul_args *a = job->panel.args;
    struct caches caches = caches_find();
    int inner = HZP_MAX(job->panel.inner, 1), words = HZP_DIV_UP(inner, kernels->word);
    int k = kernels->k, slab = kernels->slab;

    if (!k)
        k = HZP_MAX(caches.first / 2 / (kernels->cols * 4) / 32 * 32, 64);
    job->panel.k_block = HZP_ROUND_UP(HZP_DIV_UP(inner, HZP_DIV_UP(inner, k)), 32);
    job->panel.w_bytes = (size_t)kernels->cols * (size_t)(k / kernels->word) * 4;
    if (slab)
        slab = HZP_MIN(HZP_MAX(X_BYTES / (words * 4), SLAB_ROWS_MIN), slab);
    else
        slab = HZP_MIN(HZP_MAX(caches.second / 2 / (job->panel.k_block * 4), 64), SUMS / 4);
    job->slabs = HZP_DIV_UP(a->c.rows, slab);
    job->slab = HZP_DIV_UP(a->c.rows, job->slabs);
    job->panels = HZP_DIV_UP(a->c.cols, kernels->cols);
    job->most = HZP_MIN(SUMS / job->slab, GROUP_MAX);
    if (!kernels->slab && (int64_t)job->slab * words * 4 <= caches.second / 4) {
        job->panel.along = true;
        job->most = job->panels;
    }
}

int hzp_cpu_panel_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                      const struct hzp_panel_kernels *kernels)
{
    int inner = a->trans_a ? a->a.rows : a->a.cols, threads = hzp_team_threads(team);
    struct job job = {.panel = {.args = a, .inner = inner}, .kernels = kernels, .team = team};
    size_t words, stretch_bytes = (size_t)threads * sizeof(*job.stretch);

    cut(&job, kernels);
    words = (size_t)job.slab * (size_t)HZP_DIV_UP(inner, kernels->word);
    if (a->c.cols / COLS_ALONE >= threads || job.slabs >= threads || words <= WORDS_ALONE) {
        HZP_TRY(hzp_team_reserve(team, stretch_bytes, own_bytes(&job) + words * 4));
        job.stretch = hzp_team_shared(team);
        /* one slab: threads side by side read w better than each in a half of its own */
        stretches_set(&job, job.slabs >= threads ? threads : 1, 0, (int64_t)job.slabs * job.panels);
        hzp_team_run(team, threads, alone_task, &job);
        return HZP_OK;
    }
    HZP_TRY(hzp_team_reserve(team, stretch_bytes + words * 4, own_bytes(&job)));
    job.stretch = hzp_team_shared(team);
    for (int s = 0; s < job.slabs; s++) {
        job.panel = slab_of(&job, s, (uint32_t *)(void *)(job.stretch + threads));
        hzp_team_range(team, job.panel.blocks, (size_t)inner * 2 * (size_t)kernels->rows,
                       pack_range, &job);
        stretches_set(&job, 1, (int64_t)s * job.panels, (int64_t)(s + 1) * job.panels);
        hzp_team_run(team, threads, shared_task, &job);
    }
    return HZP_OK;
}
