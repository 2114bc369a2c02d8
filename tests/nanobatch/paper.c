/* SPDX-License-Identifier: Apache-2.0 */
#include "paper.h"

#include "tests/links/links.h"

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

static void open_paper(struct paper *p, const char *device, const char *sim, int32_t train)
{
    struct fixture_config fixture = {.device = device,
                                     .threads = 2,
                                     .config = config,
                                     .store = {.type = HZP_F32},
                                     .tensor = p->link[0]};
    struct hzp_train_space_config space = {.rows_max = train,
                                           .head_rows = 16,
                                           .moment_type = HZP_F32,
                                           .quantum_flops = 2000000,
                                           .ride_rows = 80};
    struct hzp_version *v, *draft;
    if (sim)
        setenv("HZP_SIM", sim, 1);
    fixture_open(&p->m, &fixture);
    v = fixture_begin(&p->m);
    if (hzp_device_host_memory(p->m.dev))
        fixture_units_random(p->m.dev, hzp_version_units(p->m.weights, v), 1, 0);
    fixture_publish(&p->m, v, 0);
    draft = fixture_begin(&p->m);
    struct hzp_rig_config rig = {.model = p->m.model,
                                 .version = v,
                                 .draft = draft,
                                 .decode_max = 16,
                                 .prefill_max = 64,
                                 .depth_max = 128,
                                 .page_rows = 8,
                                 .train = train ? &space : NULL};
    MUST(hzp_rig_create(&rig, &p->rig));
}

void paper_open(struct paper *p, const char *device, const char *sim, int32_t train)
{
    memset(p, 0, sizeof(*p));
    open_paper(p, device, sim, train);
}

void paper_open_group(struct paper *p, const char *device, const char *sim)
{
    memset(p, 0, sizeof(*p));
    MUST(hzp_link_open_local(2, 0, 1, p->link, NULL));
    open_paper(p, device, sim, 0);
}

void paper_open_rank(struct paper *p, const char *device, struct hzp_link *link)
{
    memset(p, 0, sizeof(*p));
    p->link[0] = link;
    open_paper(p, device, NULL, 0);
}

void paper_close(struct paper *p)
{
    hzp_rig_destroy(p->rig);
    fixture_close(&p->m);
    for (int r = 0; r < 2; r++)
        hzp_link_close(p->link[r]);
}
