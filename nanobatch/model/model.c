/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/model.h"

#include "mesh/link.h"

int hzp_model_create(struct hzp_device *dev, struct hzp_weights *weights, int32_t positions,
                     struct hzp_model **ret)
{
    const struct hzp_layout *layout = hzp_weights_layout(weights);
    const struct hzp_model_config *config = &layout->config;
    int32_t dim = config->heads.dim;
    bool still = hzp_config_has_no_rope(config), local = hzp_config_has_local(config);
    size_t turns = (size_t)positions * (size_t)dim, rest = still ? (size_t)dim : 0;
    size_t bytes = (turns + rest + (local ? turns : 0)) * sizeof(float);
    void *table;
    HZP_TRY(hzp_device_alloc(dev, HZP_MEM_DEVICE, bytes, &table));

    struct hzp_model *m = hzp_xcalloc(1, sizeof(*m));
    m->dev = dev;
    m->weights = weights;
    m->layout = layout;
    m->config = config;
    m->act = hzp_weights_type(weights);
    m->rope = (struct hzp_mat){table, positions, dim, dim, HZP_F32};
    if (still)
        m->no_rope = (struct hzp_mat){(float *)table + turns, positions, dim, 0, HZP_F32};
    if (local)
        m->rope_local =
            (struct hzp_mat){(float *)table + turns + rest, positions, dim, dim, HZP_F32};
    m->positions = positions;

    HZP_FREED float *host = malloc(bytes);
    struct hzp_lane *lane = NULL;
    struct hzp_fence *fence = NULL;
    int r = host ? HZP_OK : HZP_ENOMEM;
    if (r < 0)
        goto out;
    hzp_rope_table(config, false, positions, host);
    if (local)
        hzp_rope_table(config, true, positions, host + turns + rest);
    for (int32_t j = 0; still && j < dim; j++) /* cosines and sines of 0 */
        host[turns + (size_t)j] = j < dim / 2;
    HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_COPY, &lane));
    HZP_TRY_GOTO(hzp_fence_open(dev, &fence));
    HZP_TRY_GOTO(hzp_lane_copy(lane, table, host, bytes));
    HZP_TRY_GOTO(hzp_fence_record(fence, lane));
    HZP_TRY_GOTO(hzp_fence_wait(fence));
    *ret = m;
    m = NULL;
out:
    hzp_fence_close(fence);
    hzp_lane_close(lane);
    hzp_model_destroy(m);
    return r;
}

static bool connects(const struct hzp_link *link, const struct hzp_tensor_slice *slice)
{
    return hzp_link_ranks(link) == slice->ranks && hzp_link_rank(link) == slice->rank;
}

void hzp_model_set_tensor(struct hzp_model *model, struct hzp_link *serve, struct hzp_link *train)
{
    const struct hzp_tensor_slice *slice = &model->layout->slice;
    HZP_ASSERT(connects(serve, slice) && connects(train, slice));
    model->tensor = slice->ranks > 1 ? serve : NULL;
    model->tensor_train = slice->ranks > 1 ? train : NULL;
}

void hzp_model_set_data(struct hzp_model *model, struct hzp_link *link)
{
    HZP_ASSERT(model->tensor);
    model->data = link;
}

void hzp_model_destroy(struct hzp_model *model)
{
    if (!model)
        return;
    hzp_device_free(model->dev, HZP_MEM_DEVICE, model->rope.ptr);
    free(model);
}
