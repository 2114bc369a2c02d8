/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/warm.h"

int hzp_warm_up(struct hzp_loop *loop, struct hzp_kvpool *pool, struct hzp_trainer *trainer,
                struct hzp_follower *follower, const struct hzp_device *dev)
{
    struct hzp_plan products;
    bool learns = (trainer || follower) && hzp_device_has_graphs(dev);
    int r = HZP_OK;
    hzp_plan_init(&products);
    if (learns)
        r = trainer ? hzp_trainer_products(trainer, &products)
                    : hzp_follower_products(follower, &products);
    if (r == HZP_OK)
        r = hzp_loop_warm_up(loop, pool ? hzp_kvpool_layers(pool) : NULL,
                             learns ? &products : NULL);
    hzp_plan_fini(&products);
    return r;
}
