/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/few.h"

#include "device/cpu/pool.h"

enum {
    TURN_BYTES = 32 << 10,     /* of W, at least, for one turn of a thread, with one row */
    STREAMS_BYTES = 160 << 10, /* the same, of several streams */
    SET_BYTES = 2048, /* lines of W so far from each other share two sets of the first cache */
    X_BYTES_MAX = 128 << 10, /* of x transposed: it stays in the second-level cache beside W */
};

struct job {
    struct hzp_few few;
    const struct hzp_few_kernels *kernels;
    struct hzp_team *team;
    struct hzp_deal deal;
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

static void run_task(void *ctx, int task, int thread)
{
    struct job *job = ctx;
    void *own = hzp_team_own(job->team, thread);
    struct hzp_stretch now = hzp_deal_take(&job->deal), next;

    if (now.begin == now.end)
        return;
    job->kernels->start(&job->few, own);
    for (; now.begin < now.end; now = next) {
        next = hzp_deal_take(&job->deal);
        job->kernels->run(&job->few, now, next, own);
    }
}

/* Of one turn of a thread, with one row.  Streams pay off when they are long, but all threads need
 * a turn or two. */
static int least_cols(const struct hzp_matmul_args *a, bool streams, int threads)
{
    size_t w_row = (size_t)a->a.cols * hzp_dtype_size(a->b.type);
    int least = (int)HZP_MAX(TURN_BYTES / w_row, (size_t)1);

    if (streams)
        least = HZP_MAX(least, HZP_MIN((int)(STREAMS_BYTES / w_row), a->c.cols / (2 * threads)));
    return least;
}

int hzp_cpu_few_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                    const struct hzp_few_kernels *kernels, bool streams)
{
    struct job job = {.few = few_of(a, kernels), .kernels = kernels, .team = team};
    size_t apart = (size_t)a->b.stride * hzp_dtype_size(a->b.type);
    bool one = a->c.rows == 1;

    job.few.streams = one && streams && apart % SET_BYTES != 0;
    job.deal = (struct hzp_deal){
        .cols = a->c.cols,
        .threads = hzp_team_threads(team),
        .least = one ? least_cols(a, job.few.streams, hzp_team_threads(team)) : 1,
        .round = one ? 2 * kernels->lanes : kernels->strip,
        .odd = job.few.streams,
    };
    HZP_TRY(hzp_team_reserve(team, 0, x_bytes(a, &job.few, kernels->lanes)));
    hzp_team_run(team, job.deal.threads, run_task, &job);
    return HZP_OK;
}
