/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/fill.h"

#include "weights/model_dir.h"

static bool is_norm(enum hzp_role role)
{
    return role == HZP_ATTN_NORM || role == HZP_MLP_NORM || role == HZP_FINAL_NORM ||
           role == HZP_Q_NORM || role == HZP_K_NORM || role == HZP_ATTN_POST ||
           role == HZP_MLP_POST;
}

int hzp_fill_noise(struct hzp_weights *weights, struct hzp_version *draft)
{
    struct hzp_device *dev = hzp_weights_device(weights);
    const struct hzp_layout *layout = hzp_weights_layout(weights);
    const size_t piece = 1 << 28;
    struct hzp_lane *lane = NULL;
    struct hzp_fence *fence = NULL;
    int r;
    if (hzp_weights_gathered(weights))
        return HZP_EUNSUP; /* no rank has whole matrices */
    HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_MEMORY, &lane));
    HZP_TRY_GOTO(hzp_fence_open(dev, &fence));
    for (int32_t u = 0; u < layout->units; u++) {
        struct hzp_unit_view unit = hzp_version_unit(weights, draft, u);
        for (size_t at = 0; at < unit.elements; at += piece) {
            struct hzp_mat part = hzp_unit_piece(&unit, at, HZP_MIN(piece, unit.elements - at));
            struct hzp_noise_args args = {part, 1, layout->unit[u].before + at, 0.02f};
            HZP_TRY_GOTO(hzp_op_noise(lane, &args));
        }
    }
    for (int32_t i = 0; i < layout->tensors; i++) {
        const struct hzp_tensor *t = &layout->tensor[i];
        struct hzp_fill_args one = {hzp_version_mat(weights, draft, t->role, t->layer), 1};
        if (is_norm(t->role))
            HZP_TRY_GOTO(hzp_op_fill(lane, &one));
    }
    HZP_TRY_GOTO(hzp_fence_record(fence, lane));
    HZP_TRY_GOTO(hzp_fence_wait(fence));
    draft->record.loss = NAN;
    draft->record.learned_through = -1;
out:
    hzp_fence_close(fence);
    hzp_lane_close(lane);
    return r;
}

int hzp_fill_load(struct hzp_weights *weights, struct hzp_version *draft, const char *dir,
                  struct hzp_err_text *reterr)
{
    const char *noise = getenv("HZP_NOISE");
    if (noise && *noise && strcmp(noise, "0") != 0)
        return hzp_fill_noise(weights, draft);
    draft->record.loss = NAN;
    draft->record.learned_through = -1;
    return hzp_model_load(dir, hzp_weights_device(weights), hzp_version_units(weights, draft),
                          &draft->record.checksum, reterr);
}

int hzp_warm_up(struct hzp_loop *loop, struct hzp_kvpool *pool, struct hzp_learner *learner,
                const struct hzp_device *dev)
{
    HZP_ENDED(hzp_plan_fini) struct hzp_plan products;
    bool learns = learner && hzp_device_has_graphs(dev);
    hzp_plan_init(&products);
    if (learns)
        HZP_TRY(hzp_learner_products(learner, &products));
    return hzp_loop_warm_up(loop, pool ? hzp_kvpool_layers(pool) : NULL, learns ? &products : NULL);
}
