/* SPDX-License-Identifier: Apache-2.0 */
/* base/ring.h - the bounded queues between threads.
 *
 * struct hzp_ring: many producers, one consumer, of pointers. A short lock, never held across
 * anything that can wait: a full ring answers HZP_EBUSY at once.
 *
 * The consumer may sleep on a struct hzp_wake (base/thread.h) that producers poke after a push.
 *
 * Thread: push any; pop the one consumer.
 */
#ifndef HZP_BASE_RING_H
#define HZP_BASE_RING_H

#include "base/base.h"

struct hzp_ring;

/* slots: the most pointers it holds, > 0. Memory is taken now, none later. */
struct hzp_ring *hzp_ring_create(int slots);
void hzp_ring_destroy(struct hzp_ring *ring); /* NULL: no effect; what is left is the caller's */

/* HZP_EBUSY: full; the caller still owns item. */
int hzp_ring_push(struct hzp_ring *ring, void *item);

/* The oldest item, now the caller's, or NULL. */
void *hzp_ring_pop(struct hzp_ring *ring);

int hzp_ring_count(struct hzp_ring *ring);

#endif
