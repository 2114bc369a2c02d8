/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/warm.h"

int hzp_warm_up(struct hzp_loop *loop, struct hzp_kvpool *pool, struct hzp_learner *learner,
                const struct hzp_device *dev)
{
    struct hzp_plan products;
    bool learns = learner && hzp_device_has_graphs(dev);
    int r = HZP_OK;
    hzp_plan_init(&products);
    if (learns)
        r = hzp_learner_products(learner, &products);
    if (r == HZP_OK)
        r = hzp_loop_warm_up(loop, pool ? hzp_kvpool_layers(pool) : NULL,
                             learns ? &products : NULL);
    hzp_plan_fini(&products);
    return r;
}
