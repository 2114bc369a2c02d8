/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learning.h"

#include "api/engine.h"
#include "base/arena.h"
#include "base/log.h"

#include <stdlib.h>

struct hzp_learning {
    struct hzp_engine *engine;
};

int hzp_learning_open(struct hzp_engine *engine, struct hzp_weights_config *config,
                      struct hzp_learning **ret, struct hzp_err_text *reterr)
{
    struct hzp_learning *l = hzp_xcalloc(1, sizeof(*l));
    l->engine = engine;
    *ret = l;
    return HZP_OK;
}

int hzp_learning_begin(struct hzp_learning *l, struct hzp_err_text *reterr)
{
    struct hzp_engine *e = l->engine;
    const struct hzp_options *options = e->config.options;
    HZP_TRY(hzp_engine_load(e->dev, e->weights, options->model, reterr));
    struct hzp_sample_queue_config queue = {.samples_max = (int32_t)HZP_MIN(options->queue_samples,
                                                                            INT32_MAX),
                                            .tokens_max = options->queue_tokens,
                                            .passes = (int32_t)options->passes,
                                            .replay_ratio = options->replay_ratio,
                                            .seed = (uint64_t)options->seed};
    HZP_TRY(hzp_sample_queue_create(&queue, &e->queue));
    HZP_TRY(hzp_recipe_check(&e->plan.recipe, reterr));
    struct hzp_trainer_config trainer = {.recipe = e->plan.recipe,
                                         .model = e->model,
                                         .queue = e->queue,
                                         .quantum_flops = (uint64_t)(options->quantum_gflop * 1e9),
                                         .on_update = e->config.on_update,
                                         .ctx = e->config.ctx};
    return hzp_trainer_create(&trainer, &e->trainer);
}

void hzp_learning_end(struct hzp_learning *l, int result)
{
}

void hzp_learning_close(struct hzp_learning *l)
{
    free(l);
}
