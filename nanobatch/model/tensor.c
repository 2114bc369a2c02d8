/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/tensor.h"

#include "nanobatch/model/space.h"

bool hzp_tensor_adds(const struct hzp_model *model)
{
    HZP_ASSERT(model->tensor || model->layout->slice.ranks <= 1);
    return !model->tensor || model->layout->slice.rank == 0;
}

static int32_t part_of_vocab(const struct hzp_model *model)
{
    return model->config->vocab / HZP_MAX(model->layout->slice.ranks, 1);
}

int32_t hzp_tensor_vocab_first(const struct hzp_model *model)
{
    return model->layout->slice.rank * part_of_vocab(model);
}

static struct hzp_link *link_of(const struct hzp_plan *plan, const struct hzp_model *model)
{
    return plan->tenant == HZP_TENANT_TRAIN ? model->tensor_train : model->tensor;
}

static int32_t tag_of(const struct hzp_plan *plan, enum hzp_tensor_place place)
{
    return (plan->layer + 1) * HZP_TENSOR_PLACE_COUNT + (int32_t)place;
}

static void reduce(struct hzp_plan *plan, const struct hzp_model *model,
                   enum hzp_tensor_place place, struct hzp_mat mat, enum hzp_collective_part part)
{
    if (model->tensor)
        HZP_PLAN_NEXT(plan, collective, .link = link_of(plan, model), .recv = mat,
                      .kind = HZP_ALL_REDUCE, .tag = tag_of(plan, place), .part = (int32_t)part);
}

void hzp_tensor_reduce(struct hzp_plan *plan, const struct hzp_model *model,
                       enum hzp_tensor_place place, struct hzp_mat mat)
{
    reduce(plan, model, place, mat, HZP_COLLECTIVE_WHOLE);
}

void hzp_tensor_begin(struct hzp_plan *plan, const struct hzp_model *model,
                      enum hzp_tensor_place place, struct hzp_mat mat)
{
    reduce(plan, model, place, mat, HZP_COLLECTIVE_BEGIN);
}

void hzp_tensor_end(struct hzp_plan *plan, const struct hzp_model *model,
                    enum hzp_tensor_place place, struct hzp_mat mat)
{
    reduce(plan, model, place, mat, HZP_COLLECTIVE_END);
}

struct hzp_mat hzp_tensor_own_rows(const struct hzp_model *model, struct hzp_mat mat)
{
    int32_t rows = mat.rows / model->layout->slice.ranks;
    return hzp_mat_rows(mat, model->layout->slice.rank * rows, rows);
}

void hzp_tensor_scatter(struct hzp_plan *plan, const struct hzp_model *model,
                        enum hzp_tensor_place place, struct hzp_mat part, struct hzp_mat stream)
{
    HZP_PLAN_NEXT(plan, collective, .link = link_of(plan, model),
                  .recv = hzp_tensor_own_rows(model, stream), .send = part,
                  .kind = HZP_REDUCE_SCATTER, .accumulate = 1, .tag = tag_of(plan, place));
}

void hzp_tensor_gather_rows(struct hzp_plan *plan, const struct hzp_model *model,
                            enum hzp_tensor_place place, struct hzp_mat mat)
{
    HZP_PLAN_NEXT(plan, collective, .link = link_of(plan, model), .recv = mat,
                  .kind = HZP_ALL_GATHER, .tag = tag_of(plan, place));
}

void hzp_tensor_gather_state(struct hzp_plan *plan, const struct hzp_model *model,
                             struct hzp_mat own, void *at)
{
    HZP_PLAN_NEXT(plan, collective, .link = link_of(plan, model),
                  .recv = {at, model->layout->slice.ranks, own.cols, own.cols, own.type},
                  .send = own, .kind = HZP_ALL_GATHER, .tag = tag_of(plan, HZP_TENSOR_STATE));
}

void hzp_tensor_reduce_wide(struct hzp_plan *plan, const struct hzp_model *model,
                            enum hzp_wire wire, void *at, int32_t count)
{
    if (model->tensor)
        HZP_PLAN_NEXT(plan, collective, .link = link_of(plan, model),
                      .recv = {at, 1, 2 * count, 2 * count, HZP_F32}, .kind = HZP_ALL_REDUCE,
                      .wide = (int32_t)wire, .tag = tag_of(plan, HZP_TENSOR_UPDATE));
}

/* The unit, with its padding, as a row for each group. */
static struct hzp_mat data_rows(const struct hzp_model *model, const struct hzp_units *units,
                                int32_t u)
{
    size_t groups = (size_t)hzp_link_ranks(model->data), room = units->layout->unit[u].room;
    HZP_ASSERT(room % groups == 0 && room / groups <= INT32_MAX);
    int32_t cols = (int32_t)(room / groups);
    return (struct hzp_mat){units->base[u], (int32_t)groups, cols, cols, units->type};
}

/* In pieces, so that a step that also serves need not wait for all of a large unit. */
void hzp_data_reduce(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_units *sums, int32_t u)
{
    enum { PIECE = 1 << 20 };
    struct hzp_unit_view sum = hzp_unit_view(sums, u);
    for (size_t at = 0; at < sum.elements; at += PIECE)
        HZP_PLAN_NEXT(plan, collective, .link = model->data,
                      .recv = hzp_unit_piece(&sum, at, HZP_MIN(sum.elements - at, (size_t)PIECE)),
                      .kind = HZP_ALL_REDUCE, .tag = tag_of(plan, HZP_TENSOR_DATA));
}

void hzp_data_scatter(struct hzp_plan *plan, const struct hzp_model *model,
                      const struct hzp_units *fresh, const struct hzp_units *sums, int32_t u)
{
    struct hzp_mat own = hzp_mat_rows(data_rows(model, sums, u), hzp_link_rank(model->data), 1);
    HZP_PLAN_NEXT(plan, collective, .link = model->data, .recv = own,
                  .send = data_rows(model, fresh, u), .kind = HZP_REDUCE_SCATTER, .accumulate = 1,
                  .tag = (u + 1) * HZP_TENSOR_PLACE_COUNT + HZP_TENSOR_DATA);
}

void hzp_data_gather(struct hzp_plan *plan, const struct hzp_model *model,
                     const struct hzp_units *sums, int32_t u)
{
    HZP_PLAN_NEXT(plan, collective, .link = model->data, .recv = data_rows(model, sums, u),
                  .kind = HZP_ALL_GATHER, .tag = tag_of(plan, HZP_TENSOR_DATA));
}

struct hzp_mat hzp_tensor_own_logits(const struct hzp_model *model, struct hzp_mat gathered,
                                     struct hzp_mat logits)
{
    if (!model->tensor)
        return logits;
    return hzp_mat_rows(gathered, model->layout->slice.rank * logits.rows, logits.rows);
}

struct hzp_mat hzp_tensor_own_cols(const struct hzp_model *model, struct hzp_mat logits)
{
    return hzp_mat_cols(logits, hzp_tensor_vocab_first(model), part_of_vocab(model));
}

void hzp_tensor_gather_logits(struct hzp_plan *plan, const struct hzp_model *model,
                              struct hzp_mat gathered, struct hzp_mat logits)
{
    int32_t ranks = model->layout->slice.ranks, cols = part_of_vocab(model), rows = logits.rows;
    if (!model->tensor)
        return;
    HZP_PLAN_NEXT(plan, collective, .link = link_of(plan, model),
                  .recv = hzp_mat_rows(gathered, 0, ranks * rows), .kind = HZP_ALL_GATHER,
                  .tag = tag_of(plan, HZP_TENSOR_LOGITS));
    for (int32_t r = 0; r < ranks; r++)
        HZP_PLAN_NEXT(plan, cast, .x = hzp_mat_rows(gathered, r * rows, rows),
                      .y = hzp_mat_cols(logits, r * cols, cols));
}
