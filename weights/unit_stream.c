/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/unit_stream.h"

int hzp_unit_stream(const struct hzp_unit_source *source, enum hzp_state_part part,
                    hzp_unit_take_fn *take, void *ctx, uint64_t *ret_checksum,
                    struct hzp_err_text *reterr)
{
    uint64_t sum = 0;
    for (int32_t u = 0; u < source->part[part]->layout->units; u++) {
        struct hzp_unit_view view;
        void *owned;
        HZP_TRY(source->read(source->ctx, part, u, &view, &owned, reterr));
        sum += ret_checksum ? hzp_unit_checksum(&view) : 0;
        int r = take ? take(ctx, part, u, &view, reterr) : HZP_OK;
        free(owned);
        HZP_TRY(r);
    }
    if (ret_checksum)
        *ret_checksum = sum;
    return HZP_OK;
}

static int read_unit(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                     void **ret_owned, struct hzp_err_text *reterr)
{
    const struct hzp_weights_source *from = ctx;
    *ret = hzp_unit_view(from->source.part[part], u);
    int r = hzp_unit_read(from->dev, ret, ret, ret_owned);
    return r < 0 ? hzp_fail(reterr, r, "cannot copy unit %d to host memory: %s", u, hzp_err_name(r))
                 : r;
}

const struct hzp_unit_source *hzp_weights_source(struct hzp_device *dev,
                                                 const struct hzp_units *units,
                                                 struct hzp_weights_source *ret)
{
    *ret = (struct hzp_weights_source){.dev = dev, .source = {.read = read_unit, .ctx = ret}};
    ret->source.part[HZP_STATE_WEIGHTS] = units;
    return &ret->source;
}
