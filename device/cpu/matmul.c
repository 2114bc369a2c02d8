/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/matmul.h"

enum {
    DOT_ROWS_MAX = 48,   /* bf16: up to here the dot kernel beats the library */
    DOT_TASK_BYTES = 128 << 10,
    OUTER_ROWS = 96,
    OUTER_COLS = 192,
};

struct grid {
    const struct hzp_matmul_args *args;
    struct hzp_team *team;
    const struct hzp_cpu_product *product;
    int rows, cols, across;
};

static void dot_task(void *ctx, int task, int thread)
{
    const struct grid *grid = ctx;
    int m0 = task / grid->across * grid->rows, n0 = task % grid->across * grid->cols;
    int m1 = HZP_MIN(m0 + grid->rows, grid->args->c.rows);
    int n1 = HZP_MIN(n0 + grid->cols, grid->args->c.cols);

    for (int n = n0; n < n1; n += HZP_DOT_COLS)
        grid->product->dot(grid->args, m0, m1, n, HZP_MIN(n + HZP_DOT_COLS, n1),
                  hzp_team_own(grid->team, thread));
}

static void outer_task(void *ctx, int task, int thread)
{
    const struct grid *grid = ctx;
    int m0 = task / grid->across * grid->rows, n0 = task % grid->across * grid->cols;

    grid->product->outer(grid->args, m0, HZP_MIN(m0 + grid->rows, grid->args->c.rows), n0,
                HZP_MIN(n0 + grid->cols, grid->args->c.cols));
}

static int dot_run(struct grid *grid)
{
    const struct hzp_matmul_args *a = grid->args;
    size_t w_row = (size_t)a->a.cols * (a->a.type == HZP_F32 ? 4 : 2);
    int threads = hzp_team_threads(grid->team);
    int64_t cols = (int64_t)(DOT_TASK_BYTES / HZP_MAX(w_row, (size_t)1));

    HZP_TRY(hzp_team_reserve(grid->team, 0, HZP_DOT_WORK));
    cols = HZP_MIN(cols, HZP_DIV_UP(a->c.cols, threads * 4)); /* small: still some for each */
    grid->cols = (int)HZP_ROUND_UP(HZP_MAX(cols, 4), 4);
    if (a->c.rows > 16)
        grid->cols = HZP_ROUND_UP(grid->cols, HZP_DOT_COLS);
    grid->rows = HZP_DOT_ROWS;
    grid->across = HZP_DIV_UP(a->c.cols, grid->cols);
    hzp_team_run(grid->team, grid->across * HZP_DIV_UP(a->c.rows, grid->rows), dot_task, grid);
    return HZP_OK;
}

static int outer_run(struct grid *grid)
{
    const struct hzp_matmul_args *a = grid->args;

    grid->rows = OUTER_ROWS;
    grid->cols = OUTER_COLS;
    grid->across = HZP_DIV_UP(a->c.cols, grid->cols);
    hzp_team_run(grid->team, grid->across * HZP_DIV_UP(a->c.rows, grid->rows), outer_task, grid);
    return HZP_OK;
}

int hzp_cpu_matmul(struct hzp_lane *lane, const struct hzp_matmul_args *a,
                   const struct hzp_cpu_product *product)
{
    struct grid grid = {.args = a, .team = hzp_cpu_team(lane), .product = product};
    bool forward = !a->trans_a && a->trans_b, f32 = a->a.type == HZP_F32;
    int inner = a->trans_a ? a->a.rows : a->a.cols;

    if (a->c.rows == 0 || a->c.cols == 0)
        return HZP_OK;
    if (forward && (f32 || !product->pairs || a->c.rows <= DOT_ROWS_MAX))
        return dot_run(&grid);
    if (inner > 0 && (f32 || product->pairs)) {
        int r = hzp_cpu_matmul_library(lane, a);
        if (r != HZP_EUNSUP)
            return r;
    }
    return outer_run(&grid);
}
