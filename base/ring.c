/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ring.h"

#include "base/err.h"
#include "base/thread.h"

struct hzp_ring {
    /* fixed after create */
    int slots;
    void **item; /* [slots] */
    /* under lock */
    struct hzp_lock lock;
    int head, count;
};

struct hzp_ring *hzp_ring_create(int slots)
{
    HZP_ASSERT(slots > 0);
    struct hzp_ring *ring = hzp_xcalloc(1, sizeof(*ring));
    ring->slots = slots;
    ring->item = hzp_xcalloc((size_t)slots, sizeof(*ring->item));
    hzp_lock_init(&ring->lock, HZP_LOCK_RING);
    return ring;
}

void hzp_ring_destroy(struct hzp_ring *ring)
{
    if (!ring)
        return;
    hzp_lock_fini(&ring->lock);
    free(ring->item);
    free(ring);
}

int hzp_ring_push(struct hzp_ring *ring, void *item)
{
    HZP_ASSERT(item);
    HZP_LOCKED(&ring->lock);
    if (ring->count == ring->slots)
        return HZP_EBUSY;
    ring->item[(ring->head + ring->count++) % ring->slots] = item;
    return HZP_OK;
}

void *hzp_ring_pop(struct hzp_ring *ring)
{
    void *item = NULL;
    HZP_LOCKED(&ring->lock);
    if (ring->count) {
        item = ring->item[ring->head];
        ring->head = (ring->head + 1) % ring->slots;
        ring->count--;
    }
    return item;
}
