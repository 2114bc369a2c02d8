/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/workbench.h"

#include "api/engine/engine.h"
#include "base/arena.h"
#include "weights/fp8.h"
#include "weights/model_dir.h"

#include <stdlib.h>
#include <string.h>

static const struct hzp_model_config built_in = {
    .family = "llama",
    .layers = 30,
    .width = 576,
    .inner = 1536,
    .vocab = 49152,
    .heads = {9, 3, 64},
    .positions = 8192,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .tied = true,
    .disk_type = HZP_BF16,
    .bos = -1,
};

int hzp_workbench_config(const struct hzp_options *options, struct hzp_model_config *ret,
                         struct hzp_err_text *reterr)
{
    if (options->model)
        return hzp_config_read(options->model, ret, reterr);
    *ret = built_in;
    return HZP_OK;
}

static int open_weights(struct hzp_workbench *b, const struct hzp_options *o,
                        const struct hzp_workbench_size *size, struct hzp_version **ret_draft,
                        struct hzp_err_text *reterr)
{
    struct hzp_weights_config weights = {.type = hzp_engine_dtype(o, &b->config),
                                         .fp8 = o->quantization != 0,
                                         .slots = size->updates ? 2 : 1,
                                         .max_staleness = 1,
                                         .first_id = 1};
    struct hzp_version *draft;
    HZP_TRY(hzp_weights_create(b->dev, &b->layout, &weights, &b->weights));
    HZP_TRY(hzp_weights_begin(b->weights, &draft));
    if (hzp_device_computes(b->dev)) {
        if (size->load && o->model)
            HZP_TRY(hzp_engine_load(b->dev, b->weights, draft, o->model, reterr));
        else
            HZP_TRY(hzp_engine_noise(b->dev, b->weights, draft));
    }
    HZP_TRY(hzp_version_quantize(b->weights, draft));
    hzp_weights_publish(b->weights, draft, 0);
    *ret_draft = NULL;
    return size->updates ? hzp_weights_begin(b->weights, ret_draft) : HZP_OK;
}

static int open_rig(struct hzp_workbench *b, const struct hzp_options *o,
                    const struct hzp_workbench_size *size, struct hzp_version *draft,
                    struct hzp_err_text *reterr)
{
    int32_t positions = HZP_MAX(size->depth + HZP_MAX(size->prefill, 1), HZP_MAX(size->train, 16));
    if (positions > b->config.positions)
        return hzp_fail(reterr, HZP_EINVAL, "the model has %d positions, this needs %d",
                        b->config.positions, positions);
    HZP_TRY(hzp_model_create(b->dev, b->weights, positions, &b->model));
    struct hzp_recipe recipe = {.micro_rows = size->train,
                                .moment_type = o->moment_type ? HZP_BF16 : HZP_F32};
    struct hzp_train_space_config train =
        hzp_trainer_space_config(&recipe, &b->config, (uint64_t)(o->quantum_gflop * 1e9));
    if (size->rides)
        train.ride_rows = size->decode + size->prefill;
    struct hzp_rig_config rig = {.model = b->model,
                                 .version = hzp_weights_current(b->weights),
                                 .draft = draft,
                                 .decode_max = size->decode,
                                 .prefill_max = size->prefill,
                                 .depth_max = size->depth,
                                 .kv_tokens = size->kv_tokens,
                                 .page_rows = (int32_t)o->page_rows,
                                 .train = size->train ? &train : NULL};
    return hzp_rig_create(&rig, &b->rig);
}

int hzp_workbench_open(const struct hzp_options *options, const struct hzp_workbench_size *size,
                       struct hzp_workbench **ret, struct hzp_err_text *reterr)
{
    struct hzp_workbench *b = hzp_xcalloc(1, sizeof(*b));
    struct hzp_device_config device = {.name = size->device ? size->device : options->device,
                                       .threads = (int)options->threads,
                                       .level = options->cpu_level};
    struct hzp_version *draft;
    int r;
    HZP_TRY_GOTO(hzp_workbench_config(options, &b->config, reterr));
    if (size->layers_max)
        b->config.layers = HZP_MIN(b->config.layers, size->layers_max);
    hzp_layout_make(&b->config, &b->layout);
    b->layout_made = true;
    HZP_TRY_GOTO(hzp_device_open(&device, &b->dev, reterr));
    HZP_TRY_GOTO(open_weights(b, options, size, &draft, reterr));
    HZP_TRY_GOTO(open_rig(b, options, size, draft, reterr));
    *ret = b;
    return HZP_OK;
out:
    if (r == HZP_ENOMEM)
        hzp_fail(reterr, r, "not enough memory for the model and the rows");
    hzp_workbench_close(b);
    return r;
}

void hzp_workbench_close(struct hzp_workbench *b)
{
    if (!b)
        return;
    hzp_rig_destroy(b->rig);
    hzp_model_destroy(b->model);
    hzp_weights_destroy(b->weights);
    hzp_device_close(b->dev);
    if (b->layout_made)
        hzp_layout_free(&b->layout);
    free(b);
}
