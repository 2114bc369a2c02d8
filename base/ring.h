/* SPDX-License-Identifier: Apache-2.0 */
/* base/ring.h - the bounded queues between threads.
 *
 * struct hzp_ring: a queue of pointers with many producers and one consumer. Its lock is held for a
 * few instructions only; a push to a full ring returns HZP_EBUSY at once.
 *
 * The consumer may sleep on a struct hzp_wake (base/thread.h) that producers poke after a push.
 *
 * Thread: push any; pop the one consumer.
 */
#pragma once

#include "base/base.h"

struct hzp_ring;

/* slots: the capacity in pointers, > 0. All memory is allocated here. */
struct hzp_ring *hzp_ring_create(int slots);
void hzp_ring_destroy(
    struct hzp_ring *ring); /* NULL: no effect; items left in it stay the caller's */

/* HZP_EBUSY: full; the caller still owns item. */
int hzp_ring_push(struct hzp_ring *ring, void *item);

/* Removes the oldest item and returns it to the caller; NULL: the ring is empty. */
void *hzp_ring_pop(struct hzp_ring *ring);
