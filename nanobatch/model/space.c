/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/space.h"

#include "nanobatch/plan/plan.h"

struct hzp_mat hzp_mat_cols(struct hzp_mat mat, int32_t col0, int32_t cols)
{
    mat.ptr = (char *)mat.ptr + (size_t)col0 * hzp_dtype_size(mat.type);
    mat.cols = cols;
    return mat;
}

struct hzp_mat hzp_mat_cut(char *base, size_t *at, int32_t rows, int32_t cols, enum hzp_dtype type)
{
    struct hzp_mat mat = {base ? base + *at : NULL, rows, cols, cols, type};
    *at += HZP_ROUND_UP((size_t)rows * (size_t)cols * hzp_dtype_size(type), (size_t)256);
    return mat;
}

struct hzp_mat hzp_narrow_cut(char *base, size_t *at, const struct hzp_layout *layout, int32_t rows,
                              float **ret_scale)
{
    const struct hzp_model_config *c = &layout->config;
    int32_t inner = hzp_layout_inner_max(layout);
    int32_t deepest = HZP_MAX(HZP_MAX(c->width, c->heads.heads * c->heads.dim), inner);
    struct hzp_mat mat =
        hzp_mat_cut(base, at, rows, HZP_ROUND_UP(deepest, (int32_t)HZP_UNIT_ALIGN), HZP_E4M3);
    *ret_scale = hzp_mat_cut(base, at, 1, rows + 4 * (HZP_STRANDS_MAX + 1), HZP_F32).ptr;
    return mat;
}

struct hzp_mat hzp_wide_cut(char *base, size_t *at, const struct hzp_layout *layout, int32_t rows)
{
    const struct hzp_model_config *c = &layout->config;
    if (!c->norm_after && !c->qk_norm_full)
        return (struct hzp_mat){0};
    int32_t cols = HZP_MAX(c->width, c->heads.heads * c->heads.dim);
    return hzp_mat_cut(base, at, rows, HZP_ROUND_UP(cols, 8), HZP_F32);
}

struct hzp_mat hzp_gathered_cut(char *base, size_t *at, const struct hzp_layout *layout,
                                int32_t rows)
{
    int32_t ranks = layout->slice.ranks;
    if (ranks <= 1)
        return (struct hzp_mat){0};
    return hzp_mat_cut(base, at, ranks * rows, layout->config.vocab / ranks, HZP_F32);
}
