/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/gather.h"

#include "nanobatch/model/train_space_state.h"

enum { MOST = 1 << 20 };

const struct hzp_units *hzp_gather_units(const struct hzp_model *model, const struct hzp_version *v,
                                         const struct hzp_train_space *space,
                                         enum hzp_state_part part)
{
    return part == HZP_STATE_WEIGHTS ? hzp_version_units(model->weights, v)
                                     : hzp_train_space_part(space, part);
}

int32_t hzp_gather_most(const struct hzp_model *model, const struct hzp_train_space *space)
{
    size_t ranks = (size_t)HZP_MAX(model->layout->slice.ranks, 1);
    return (int32_t)HZP_MIN(space->memory_bytes / (ranks * sizeof(float)), (size_t)MOST);
}

bool hzp_gather_valid(const struct hzp_model *model, const struct hzp_version *v,
                      const struct hzp_train_space *space, const struct hzp_gather *g)
{
    bool named = g->part >= HZP_STATE_M && g->part <= HZP_STATE_WEIGHTS && g->unit >= 0 &&
                 g->unit < model->layout->units;
    if (!named || !hzp_gather_units(model, v, space, g->part))
        return false;
    int64_t elements = (int64_t)model->layout->unit[g->unit].elements;
    return g->from >= 0 && g->count >= 1 && g->count <= hzp_gather_most(model, space) &&
           g->from <= elements - g->count;
}

void hzp_gather_build(struct hzp_plan *chain, const struct hzp_model *model,
                      const struct hzp_version *v, const struct hzp_train_space *space,
                      const struct hzp_gather *g)
{
    HZP_ASSERT(hzp_gather_valid(model, v, space, g));
    const struct hzp_units *units = hzp_gather_units(model, v, space, g->part);
    struct hzp_unit_view view = hzp_unit_view(units, g->unit);
    size_t size = hzp_dtype_size(view.type);
    /* Bits are carried, not numbers: residuals travel as another type of their size. */
    enum hzp_dtype type = size == sizeof(float) ? HZP_F32 : HZP_BF16;
    struct hzp_mat own = {(char *)view.base + (size_t)g->from * size, 1, g->count, g->count, type};
    hzp_tensor_gather_state(chain, model, own, space->memory);
}

const void *hzp_gather_data(const struct hzp_train_space *space)
{
    return space->memory;
}
