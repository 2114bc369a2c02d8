/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/matmul.h"

enum {
    E4M3_ROWS_MAX = 12, /* up to here the dot kernel beats the panels (matmul_lab.md); 16: equal */
    E4M3_ROWS_DOT = 3,  /* the same beside wide panels */
    DOT_TASK_BYTES = 128 << 10,
    STREAMS_TASK_BYTES = 512 << 10,
    DOT_SLAB = 4 * HZP_DOT_ROWS,
    APART_BYTES = 4096,
    TILE_ROWS = 6,
    TILE_BYTES = 16 << 10, /* a tile's rows of x: with W going by they fit 48 KiB */
};

struct grid {
    const struct hzp_matmul_args *args;
    struct hzp_team *team;
    const struct hzp_cpu_product *product;
    struct hzp_dot dot;
    int rows, cols, across;
};

static void dot_task(void *ctx, int task, int thread)
{
    const struct grid *grid = ctx;
    const struct hzp_matmul_args *a = grid->dot.args;
    int m0 = task / grid->across * grid->rows, n0 = task % grid->across * grid->cols;
    int m1 = HZP_MIN(m0 + grid->rows, a->c.rows), n1 = HZP_MIN(n0 + grid->cols, a->c.cols);
    int cols = grid->dot.streams ? grid->cols : HZP_DOT_COLS;

    for (int n = n0; n < n1; n += cols)
        grid->product->dot(&grid->dot, m0, m1, n, HZP_MIN(n + cols, n1),
                           hzp_team_own(grid->team, thread));
}

/* Copies rows of x, as BF16, into the blocks of grid->dot. */
static void dot_pack(void *ctx, int begin, int end, int thread)
{
    const struct grid *grid = ctx;
    const struct hzp_dot *dot = &grid->dot;
    const struct hzp_mat *x = &dot->args->a;

    for (int r = begin; r < end; r++)
        for (int b = 0; b * dot->k_block < x->cols; b++) {
            int k0 = b * dot->k_block, n = HZP_MIN(dot->k_block, x->cols - k0);
            char *to = (char *)dot->x + (size_t)b * dot->block_bytes + (size_t)r * dot->row_bytes;
            if (x->type == HZP_E4M3)
                grid->product->widen((const uint8_t *)hzp_cpu_row(x, r) + k0,
                                     (uint16_t *)(void *)to, n);
            else
                memcpy(to, (const uint16_t *)hzp_cpu_row(x, r) + k0, (size_t)n * 2);
        }
}

/* How x is cut: blocks of which a tile's rows stay cached. */
static int dot_cut(struct grid *grid, const struct hzp_matmul_args *a)
{
    size_t size = sizeof(uint16_t), blocks;
    struct hzp_dot *dot = &grid->dot;

    *dot = (struct hzp_dot){.args = a, .k_block = HZP_MAX(a->a.cols, 1)};
    blocks = HZP_DIV_UP((size_t)dot->k_block * size * (size_t)HZP_MIN(a->c.rows, TILE_ROWS),
                        (size_t)TILE_BYTES);
    dot->k_block = HZP_ROUND_UP(HZP_DIV_UP(dot->k_block, (int)blocks), 64);
    dot->row_bytes = (size_t)dot->k_block * size + 64;
    dot->block_bytes = dot->row_bytes * (size_t)a->c.rows;
    dot->streams = a->c.rows == 1 && blocks == 1 && !hzp_cpu_fetches_far();
    HZP_TRY(hzp_team_reserve(grid->team, dot->block_bytes * blocks, HZP_DOT_WORK));
    dot->x = hzp_team_shared(grid->team);
    hzp_team_range(grid->team, a->c.rows, (size_t)a->a.cols * size, dot_pack, grid);
    return HZP_OK;
}

static int dot_run(struct grid *grid)
{
    const struct hzp_matmul_args *all = grid->args;
    size_t w_row = (size_t)all->a.cols * hzp_dtype_size(all->b.type);
    int threads = hzp_team_threads(grid->team);
    bool streams = all->c.rows == 1 && !hzp_cpu_fetches_far();
    size_t task_bytes = streams ? STREAMS_TASK_BYTES : DOT_TASK_BYTES;
    int64_t cols = (int64_t)(task_bytes / HZP_MAX(w_row, (size_t)1));

    cols = HZP_MIN(cols, HZP_DIV_UP(all->c.cols, threads * 4)); /* small: still some for each */
    grid->cols = (int)HZP_ROUND_UP(HZP_MAX(cols, 4), 4);
    if (all->c.rows > 6)
        grid->cols = HZP_ROUND_UP(grid->cols, HZP_DOT_COLS);
    grid->rows = HZP_DOT_ROWS;
    grid->across = HZP_DIV_UP(all->c.cols, grid->cols);
    for (int r = 0; r < all->c.rows; r += DOT_SLAB) { /* bounds what is copied */
        struct hzp_matmul_args a = *all;
        a.a = hzp_mat_rows(all->a, r, HZP_MIN(DOT_SLAB, all->c.rows - r));
        a.c = hzp_mat_rows(all->c, r, HZP_MIN(DOT_SLAB, all->c.rows - r));
        if (all->scale_a)
            a.scale_a = all->scale_a + r;
        HZP_TRY(dot_cut(grid, &a));
        hzp_team_run(grid->team, grid->across * HZP_DIV_UP(a.c.rows, grid->rows), dot_task, grid);
    }
    return HZP_OK;
}

/* E4M3, forward as always. */
static int e4m3_run(struct hzp_team *team, const struct hzp_matmul_args *a,
                    const struct hzp_cpu_product *product)
{
    struct grid grid = {.args = a, .team = team, .product = product};

    if (a->c.rows <= (product->panel ? E4M3_ROWS_MAX : E4M3_ROWS_DOT) || a->a.cols == 0)
        return dot_run(&grid);
    return hzp_cpu_panel_run(team, a, product->panel ? product->panel : product->wide);
}

/* Few rows by W whose rows lie a multiple of 4096 bytes apart: of those the dot kernel reads four
 * at a time, the wide ones 16 or more, which push each other out of the nearest cache. */
static bool dot_better(const struct hzp_matmul_args *a)
{
    return a->a.type == HZP_BF16 && a->c.rows <= HZP_THIN_ROWS_MAX &&
           (size_t)a->b.stride * 2 % APART_BYTES == 0;
}

static void take_rows(void *ctx, int begin, int end, int thread)
{
    const struct hzp_matmul_args *a = ctx;
    size_t size = (size_t)a->c.cols * (a->c.type == HZP_F32 ? 4 : 2);

    for (int r = begin; r < end; r++)
        memcpy(hzp_cpu_row(&a->c, r), hzp_cpu_row(&a->from, r), size);
}

void hzp_cpu_matmul_take(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    if (a->from.ptr && a->c.rows > 0)
        hzp_team_range(hzp_cpu_team(lane), a->c.rows, 8 * (size_t)a->c.cols, take_rows, (void *)a);
}

int hzp_cpu_matmul(struct hzp_lane *lane, const struct hzp_matmul_args *a,
                   const struct hzp_cpu_product *product)
{
    struct hzp_team *team = hzp_cpu_team(lane);
    bool forward = !a->trans_a && a->trans_b, pairs = product->panel && a->a.type == HZP_BF16;
    int inner = a->trans_a ? a->a.rows : a->a.cols;
    const struct hzp_few_kernels *few;
    bool by_rows = !lane->dev->same_rows;

    if (a->c.rows == 0 || a->c.cols == 0)
        return HZP_OK;
    if (a->a.type == HZP_E4M3)
        return e4m3_run(team, a, product);
    if (forward && !pairs && by_rows && dot_better(a))
        return dot_run(&(struct grid){.args = a, .team = team, .product = product});
    if (forward && pairs && by_rows && a->c.rows <= HZP_THIN_ROWS_MAX)
        return hzp_cpu_thin_run(team, a, product->thin);
    if (forward && pairs && inner > 0)
        return hzp_cpu_panel_run(team, a, product->panel);
    if (!forward && product->panel && inner > 0) {
        int r = hzp_cpu_matmul_library(lane, a);
        if (r != HZP_EUNSUP)
            return r;
    }
    few = a->c.rows == 1 ? product->one : product->few;
    if (hzp_cpu_few_takes(a, few))
        return hzp_cpu_few_run(team, a, few, !hzp_cpu_fetches_far());
    return hzp_cpu_panel_run(team, a, product->wide);
}
