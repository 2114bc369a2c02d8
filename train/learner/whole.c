/* SPDX-License-Identifier: Apache-2.0 */
#include "train/learner/whole.h"

#include "weights/tensor_slice.h"

int hzp_whole_open(struct hzp_whole *ret, const struct hzp_model_config *config, int32_t ranks,
                   const struct hzp_model *model, const struct hzp_version *v,
                   const struct hzp_train_space *space)
{
    *ret = (struct hzp_whole){.ranks = ranks};
    ret->slice = hzp_xcalloc((size_t)ranks, sizeof(*ret->slice));
    hzp_layout_make(config, &ret->layout);
    for (int32_t r = 0; r < ranks; r++)
        hzp_layout_make_slice(config, (struct hzp_tensor_slice){r, ranks}, &ret->slice[r]);
    ret->unit = malloc(hzp_layout_largest(&ret->layout) * sizeof(float));
    if (!ret->unit)
        return HZP_ENOMEM;
    for (int p = 0; p < HZP_STATE_PARTS; p++) {
        const struct hzp_units *own = hzp_gather_units(model, v, space, (enum hzp_state_part)p);
        if (!own)
            continue;
        hzp_units_init(&ret->part[p], &ret->layout, own->type, NULL);
        for (int32_t u = 0; u < ret->layout.units; u++)
            hzp_units_place(&ret->part[p], u, ret->unit);
    }
    return HZP_OK;
}

void hzp_whole_close(struct hzp_whole *w)
{
    for (int p = 0; p < HZP_STATE_PARTS; p++)
        if (w->part[p].layout)
            hzp_units_free(&w->part[p]);
    for (int32_t r = 0; w->slice && r < w->ranks; r++)
        hzp_layout_free(&w->slice[r]);
    if (w->slice)
        hzp_layout_free(&w->layout);
    free(w->slice);
    free(w->unit);
}

int hzp_whole_join(struct hzp_whole *w, enum hzp_state_part part, int32_t u, int32_t rank,
                   const void *slice)
{
    size_t size = hzp_dtype_size(w->part[part].type);
    if (!rank)
        memset(w->unit, 0, w->layout.unit[u].elements * size);
    else if (!hzp_tensor_slice_agrees(&w->layout, &w->slice[rank], u, size, slice, w->unit))
        return HZP_EINVAL;
    hzp_tensor_slice_join(&w->layout, &w->slice[rank], u, size, slice, w->unit);
    return HZP_OK;
}
