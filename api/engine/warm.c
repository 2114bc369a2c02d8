/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/warm.h"

int hzp_warm_up(struct hzp_loop *loop, struct hzp_kvpool *pool, struct hzp_trainer *trainer,
                const struct hzp_device *dev)
{
    struct hzp_plan products;
    bool trains = trainer && hzp_device_has_graphs(dev);
    int r = HZP_OK;
    hzp_plan_init(&products);
    if (trains)
        r = hzp_trainer_products(trainer, &products);
    if (r == HZP_OK)
        r = hzp_loop_warm_up(loop, hzp_kvpool_layers(pool), trains ? &products : NULL);
    hzp_plan_fini(&products);
    return r;
}
