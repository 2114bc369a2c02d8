/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/tiles.h"

#include "device/bf16.h"

enum {
    X_BYTES = 1 << 20, /* a slab of packed op(a) takes half of a core's second-level cache */
    SLAB_MIN = 4 * HZP_TILE_BLOCK,
    TILE_BYTES = HZP_TILE_WORDS * 4,
};

struct job {
    const struct hzp_matmul_args *args;
    const struct hzp_tiles_kernels *kernels;
    struct hzp_team *team;
    uint32_t *x;  /* [rows / 16][steps] tiles */
    int m0, rows; /* this slab's */
    int steps;
};

static uint32_t *x_at(const struct job *job, int tile)
{
    return job->x + (size_t)tile * (size_t)job->steps * HZP_TILE_WORDS;
}

static void pack_range(void *ctx, int begin, int end, int thread)
{
    const struct job *job = ctx;

    (void)thread;
    for (int i = begin; i < end; i++)
        job->kernels->pack_x(job->args, job->m0 + i * HZP_TILE_ROWS, job->m0 + job->rows,
                             x_at(job, i));
}

static float one_of(const struct hzp_mat *mat, int row, int col)
{
    const void *p = hzp_cpu_row(mat, row);
    return mat->type == HZP_F32 ? ((const float *)p)[col]
                                : hzp_bf16_to_f32(((const uint16_t *)p)[col]);
}

/* Rows m .. m1 and columns n .. n1 of c, at most a block. */
static void store(const struct hzp_matmul_args *a, int m, int m1, int n, int n1, const float *sums)
{
    for (int i = m; i < m1; i++, sums += HZP_TILE_BLOCK) {
        void *c = hzp_cpu_row(&a->c, i);
        for (int j = n; j < n1; j++) {
            float y = sums[j - n];
            if (a->bias.ptr)
                y += one_of(&a->bias, 0, j);
            if (a->accumulate)
                y += one_of(&a->c, i, j);
            if (a->c.type == HZP_F32)
                ((float *)c)[j] = y;
            else
                ((uint16_t *)c)[j] = hzp_bf16_from_f32(y);
        }
    }
}

static void panel_task(void *ctx, int task, int thread)
{
    const struct job *job = ctx;
    const struct hzp_matmul_args *a = job->args;
    uint32_t *w = hzp_team_own(job->team, thread);
    int n = task * HZP_TILE_BLOCK, n1 = HZP_MIN(n + HZP_TILE_BLOCK, a->c.cols);
    int tiles = HZP_DIV_UP(job->rows, HZP_TILE_ROWS);
    _Alignas(64) float sums[HZP_TILE_BLOCK * HZP_TILE_BLOCK];

    job->kernels->pack_w(a, n, n1, w);
    job->kernels->begin();
    for (int i = 0; i < tiles; i += 2) {
        int m = job->m0 + i * HZP_TILE_ROWS;
        job->kernels->block(x_at(job, i), x_at(job, HZP_MIN(i + 1, tiles - 1)), w, job->steps,
                            sums);
        store(a, m, HZP_MIN(m + HZP_TILE_BLOCK, job->m0 + job->rows), n, n1, sums);
    }
    job->kernels->end();
}

int hzp_cpu_tiles_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                      const struct hzp_tiles_kernels *kernels)
{
    struct job job = {.args = a, .kernels = kernels, .team = team};
    size_t row_bytes;
    int slab;

    job.steps = HZP_DIV_UP(hzp_tiles_inner(a), HZP_TILE_STEP);
    row_bytes = (size_t)job.steps * HZP_TILE_STEP * 2;
    slab = (int)HZP_MIN((size_t)a->c.rows, X_BYTES / HZP_MAX(row_bytes, (size_t)1));
    slab = HZP_ROUND_UP(HZP_MAX(slab, SLAB_MIN), HZP_TILE_BLOCK);
    slab = HZP_MIN(slab, HZP_ROUND_UP(a->c.rows, HZP_TILE_ROWS));
    HZP_TRY(hzp_team_reserve(team, (size_t)slab * row_bytes + TILE_BYTES,
                             HZP_TILE_BLOCK * row_bytes + TILE_BYTES));
    job.x = hzp_team_shared(team);
    for (int m = 0; m < a->c.rows; m += slab) {
        job.m0 = m;
        job.rows = HZP_MIN(slab, a->c.rows - m);
        hzp_team_range(team, HZP_DIV_UP(job.rows, HZP_TILE_ROWS), HZP_TILE_ROWS * 2 * row_bytes,
                       pack_range, &job);
        hzp_team_run(team, HZP_DIV_UP(a->c.cols, HZP_TILE_BLOCK), panel_task, &job);
    }
    return HZP_OK;
}
