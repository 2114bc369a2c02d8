/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/order.c - which accesses are ordered before which.
 *
 * Blocks run one after another here, but in parallel on a device: data that one block leaves in
 * global memory may be used by another in the same launch only through an atomic operation, with
 * a __threadfence between the stores and that operation, and one between the other block's
 * operation and its loads. Blocks with such operations are listed by their clocks, which ascend.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "tests/emu/block.h"

struct release {
    uint32_t began, last; /* clocks of the block; last: of its last operation */
    uint32_t released;    /* the work of all its threads before this clock is released */
    int thread;           /* and the work of this thread before `last` */
};

static struct {
    struct release *release;
    uint32_t (*fenced)[EMU_THREADS]; /* [room] each thread's stores before this clock */
    int count, room;
} order;

void emu_order_begin(void)
{
    order.count = 0;
}

void emu_order_atomic(const struct emu_fiber *me)
{
    struct emu_block *b = &emu_block;
    if (order.count == 0 || order.release[order.count - 1].began != b->began) {
        if (order.count == order.room) {
            order.room = HZP_MAX(64, 2 * order.room);
            order.release = realloc(order.release, (size_t)order.room * sizeof(*order.release));
            order.fenced = realloc(order.fenced, (size_t)order.room * sizeof(*order.fenced));
            HZP_ASSERT(order.release && order.fenced);
        }
        order.release[order.count++].began = b->began;
    }
    struct release *release = &order.release[order.count - 1];
    release->last = ++b->clock;
    release->released = b->ticked;
    release->thread = me->thread;
    for (int i = 0; i < b->threads; i++) /* its own fence, or that of the releasing thread */
        order.fenced[order.count - 1][i] = HZP_MAX(b->fiber[i].fenced, me->fenced_all);
}

void hzp_emu_fence(void)
{
    struct emu_block *b = &emu_block;
    emu_now->fenced = ++b->clock;
    emu_now->fenced_all = b->ticked;
}

static unsigned warp_of(unsigned who)
{
    return who & EMU_OF_WARP ? who & ~(unsigned)EMU_OF_WARP : who / EMU_LANES;
}

bool emu_ordered(uint32_t when, unsigned who, const struct emu_fiber *me)
{
    if (when < emu_block.ticked || who == (unsigned)me->thread)
        return true;
    return who < EMU_BLOCKS && warp_of(who) == (unsigned)me->warp->index && when < me->warp->ticked;
}

/* Of this block's atomic operations, the last one is ordered before what its thread does. */
static bool ordered_atomic(uint32_t when, const struct emu_fiber *me)
{
    const struct release *own = order.count ? &order.release[order.count - 1] : NULL;
    return own && own->last == when && own->thread == me->thread;
}

/* Whether it, or the thread that made the block's last atomic operation and met it at a barrier,
 * has fenced since. */
static bool fenced_since(const struct release *own, const struct emu_fiber *me)
{
    uint32_t other = emu_block.fiber[own->thread].fenced;
    return me->fenced > own->last || (other > own->last && other < emu_block.ticked);
}

/* Whether an access of an earlier block of this launch is ordered: that block released it, and
   this block has acquired since. */
static bool ordered_block(uint32_t when, unsigned who, const struct emu_fiber *me, bool was_read)
{
    const struct release *own = order.count ? &order.release[order.count - 1] : NULL;
    if (!own || own->began != emu_block.began ||
        (own->last >= emu_block.ticked && own->thread != me->thread))
        return false;
    if (who == EMU_ATOMIC)
        return true;
    if (!was_read && !fenced_since(own, me))
        return false;
    for (int i = order.count - 2; i >= 0 && order.release[i].last >= when; i--)
        if (order.release[i].began <= when)
            return (when < order.release[i].released || who == (unsigned)order.release[i].thread) &&
                   (was_read || when < order.fenced[i][who]);
    return false;
}

/* A lane's load has ended before a later instruction of the whole warp that it took part in, so
 * it cannot see what another lane stores after that instruction. */
static bool ordered_global(uint32_t when, unsigned who, const struct emu_fiber *me, bool was_read)
{
    if (when < emu_block.launched)
        return true;
    if (who == EMU_BLOCKS)
        return false;
    if (when < emu_block.began)
        return ordered_block(when, who, me, was_read);
    return emu_ordered(when, who, me) || (who == EMU_ATOMIC && ordered_atomic(when, me)) ||
           (was_read && who < EMU_BLOCKS && warp_of(who) == (unsigned)me->warp->index &&
            when < me->warp->met);
}

void emu_mark_read(struct emu_mark *mark, const struct emu_fiber *me, bool ordered)
{
    if (mark->reader != me->thread && !ordered) {
        bool same = mark->reader < EMU_BLOCKS && mark->read >= emu_block.began &&
                    warp_of(mark->reader) == (unsigned)me->warp->index;
        mark->reader =
            (uint16_t)(same ? EMU_OF_WARP | (unsigned)me->warp->index
                       : mark->read >= emu_block.began && mark->reader != EMU_BLOCKS ? EMU_SEVERAL
                                                                                     : EMU_BLOCKS);
    } else {
        mark->reader = (uint16_t)me->thread;
    }
    mark->read = emu_block.clock;
}

const char *emu_global_mark(struct emu_mark *mark, const struct emu_fiber *me, bool write,
                            bool atomic, bool *ret_wrote)
{
    bool both = atomic && mark->writer == EMU_ATOMIC;
    *ret_wrote = true;
    if (!both && !ordered_global(mark->written, mark->writer, me, false))
        return emu_who(mark->writer);
    bool ordered = ordered_global(mark->read, mark->reader, me, true);
    if (!write) {
        bool earlier = mark->read < emu_block.began && mark->reader == me->thread;
        if (earlier && !ordered) /* the same thread number in another block */
            mark->reader = EMU_BLOCKS;
        emu_mark_read(mark, me, ordered);
        return NULL;
    }
    *ret_wrote = false;
    if (!ordered)
        return emu_who(mark->reader);
    mark->written = emu_block.clock;
    mark->writer = (uint16_t)(atomic ? EMU_ATOMIC : me->thread);
    return NULL;
}

const char *emu_who(unsigned who)
{
    static char text[64];
    if (who == EMU_ATOMIC)
        return "another thread's atomic operation";
    if (who == EMU_BLOCKS)
        return "other blocks";
    if (who == EMU_SEVERAL)
        return "other threads";
    if (who & EMU_OF_WARP)
        return "other lanes";
    snprintf(text, sizeof(text), "thread %u", who);
    return text;
}
