/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/few.h"

enum {
    TURN_BYTES = 32 << 10, /* least part of W that a thread takes at once, with one row */
    STREAM_LEAST = 3,      /* least columns of a stream */
    SET_BYTES = 2048,      /* lines of W so far from each other share two sets of the first cache */
    X_BYTES_MAX = 128 << 10, /* transposed x stays in the second-level cache beside W */
};

struct job {
    struct hzp_few few;
    const struct hzp_few_kernels *kernels;
    struct hzp_team *team;
    struct hzp_deal deal;
    struct hzp_range *range; /* [threads] steps, if W is read as streams */
};

static size_t x_bytes(const struct hzp_matmul_args *a, const struct hzp_few *few, int lanes)
{
    size_t inner = (size_t)HZP_ROUND_UP(a->a.cols, 64);

    return inner * sizeof(float) * (size_t)(few->vectors ? few->vectors * lanes : 1);
}

static struct hzp_few few_of(const struct hzp_matmul_args *a, const struct hzp_few_kernels *kernels)
{
    int vectors = a->c.rows == 1 ? 0 : HZP_DIV_UP(a->c.rows, kernels->lanes);

    return (struct hzp_few){.args = a, .vectors = vectors};
}

bool hzp_cpu_few_takes(const struct hzp_matmul_args *a, const struct hzp_few_kernels *kernels)
{
    struct hzp_few few = few_of(a, kernels);
    int lanes = kernels->lanes;

    if (a->trans_a || !a->trans_b || a->a.type == HZP_E4M3 || a->a.cols == 0)
        return false;
    if (a->c.rows == 1)
        return a->c.cols >= 2 * lanes;
    if (few.vectors > HZP_FEW_VECTORS || kernels->least[few.vectors] == 0)
        return false;
    return a->c.rows >= kernels->least[few.vectors] && a->c.cols >= kernels->strip &&
           x_bytes(a, &few, lanes) <= X_BYTES_MAX;
}

static void run_deal(struct job *job, void *own)
{
    struct hzp_stretch now = hzp_deal_take(&job->deal), next;

    for (; now.begin < now.end; now = next) {
        next = hzp_deal_take(&job->deal);
        job->kernels->run(&job->few, now, next, own);
    }
}

static void run_task(void *ctx, int task, int thread)
{
    struct job *job = ctx;
    void *own = hzp_team_own(job->team, thread);

    if (!job->few.streams && hzp_deal_empty(&job->deal))
        return;
    job->kernels->start(&job->few, own);
    if (job->few.streams)
        job->kernels->run_streams(&job->few, &job->range[task], own);
    run_deal(job, own);
    while (job->few.streams && hzp_range_steal(job->range, job->deal.threads, task))
        job->kernels->run_streams(&job->few, &job->range[task], own);
}

/* Decides whether W is read as streams, and how long they are: all columns but a few, in equal
 * parts.  Each thread's streams have an odd number of columns, so that few of the lines that are
 * read at once belong to one set of the nearest cache; the first threads' have two more.  Returns
 * how many columns of c they are. */
static int cut_streams(struct hzp_few *few, int threads, int streams)
{
    const struct hzp_matmul_args *a = few->args;
    size_t apart = (size_t)a->b.stride * hzp_dtype_size(a->b.type);
    int all = a->c.cols / streams, cols = all / threads;

    cols -= cols % 2 == 0;
    if (apart % SET_BYTES == 0 || cols < STREAM_LEAST)
        return 0;
    few->streams = cols;
    few->longer = (all - cols * threads) / 2;
    return (cols * threads + 2 * few->longer) * streams;
}

int hzp_cpu_few_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                    const struct hzp_few_kernels *kernels, bool streams)
{
    struct job job = {.few = few_of(a, kernels), .kernels = kernels, .team = team};
    size_t w_row = (size_t)a->a.cols * hzp_dtype_size(a->b.type);
    int threads = hzp_team_threads(team);
    bool one = a->c.rows == 1;
    int taken = one && streams ? cut_streams(&job.few, threads, kernels->streams) : 0;

    job.deal = (struct hzp_deal){
        .cols = a->c.cols,
        .threads = threads,
        .least = one && !job.few.streams ? (int)HZP_MAX(TURN_BYTES / w_row, (size_t)1) : 1,
        .round = one ? 2 * kernels->lanes : kernels->strip,
        .taken = taken,
    };
    HZP_TRY(hzp_team_reserve(team, (size_t)threads * sizeof(*job.range),
                             x_bytes(a, &job.few, kernels->lanes)));
    job.range = hzp_team_shared(team);
    for (int t = 0; t < threads; t++)
        hzp_range_set(&job.range[t], hzp_few_step(&job.few, t), hzp_few_step(&job.few, t + 1));
    hzp_team_run(team, threads, run_task, &job);
    return HZP_OK;
}
