/* SPDX-License-Identifier: Apache-2.0 */
#include "paper.h"

#include <stdlib.h>
#include <string.h>

static const struct hzp_model_config config = {
    .family = "llama",
    .layers = 4,
    .width = 64,
    .inner = 160,
    .vocab = 256,
    .heads = {4, 2, 16},
    .positions = 256,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .tied = true,
    .disk_type = HZP_F32,
    .bos = -1,
};

#define MUST(call) HZP_ASSERT((call) == HZP_OK)

void paper_open(struct paper *p, const char *device, const char *sim, int32_t train)
{
    struct hzp_device_config open = {.name = device, .threads = 2};
    struct hzp_weights_config weights = {
        .type = HZP_F32, .slots = 2, .max_staleness = 1, .first_id = 1};
    struct hzp_train_space_config space = {.rows_max = train,
                                           .head_rows = 16,
                                           .moment_type = HZP_F32,
                                           .quantum_flops = 2000000,
                                           .ride_rows = 80};
    struct hzp_version *v, *draft;
    memset(p, 0, sizeof(*p));
    if (sim)
        setenv("HZP_SIM", sim, 1);
    MUST(hzp_device_open(&open, &p->dev, NULL));
    hzp_layout_make(&config, &p->layout);
    MUST(hzp_weights_create(p->dev, &p->layout, &weights, &p->weights));
    MUST(hzp_weights_begin(p->weights, &v));
    if (hzp_device_host_memory(p->dev))
        memset(v->base, 0, p->layout.elements * sizeof(float));
    hzp_weights_publish(p->weights, v, 0);
    MUST(hzp_weights_begin(p->weights, &draft));
    MUST(hzp_model_create(p->dev, p->weights, 256, &p->model));
    struct hzp_rig_config rig = {.model = p->model,
                                 .version = v,
                                 .draft = draft,
                                 .decode_max = 16,
                                 .prefill_max = 64,
                                 .depth_max = 128,
                                 .page_rows = 8,
                                 .train = train ? &space : NULL};
    MUST(hzp_rig_create(&rig, &p->rig));
}

void paper_close(struct paper *p)
{
    hzp_rig_destroy(p->rig);
    hzp_model_destroy(p->model);
    hzp_weights_destroy(p->weights);
    hzp_device_close(p->dev);
    hzp_layout_free(&p->layout);
}
