/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/shared.c - the shared memory of the block that runs: its variables, the last
 * accesses to each place, and the asynchronous copies into it.
 *
 * Recorded per two bytes: the last writer and the last reader (or that there were several), and
 * when. Kernels have no smaller elements that two threads would write side by side.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "tests/emu/block.h"

enum { BEGIN = 1024, APART = 256, VARIABLES = 64 };

struct variable {
    const void *tag;
    const char *name;
    uint32_t at;
    size_t size;
};

static struct {
    char *base; /* [EMU_SHARED_ROOM] */
    struct emu_mark *cell;
    struct variable variable[VARIABLES]; /* the first is the dynamic one */
    int variables;
    uint32_t used, statics;
} shared;

void emu_shared_layout(size_t dynamic)
{
    if (!shared.base) {
        size_t cells = EMU_SHARED_ROOM / EMU_GRAIN * sizeof(struct emu_mark);
        char *both = mmap(NULL, EMU_SHARED_ROOM + cells, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        HZP_ASSERT(both != MAP_FAILED);
        shared.base = both;
        emu_map.shared = (uintptr_t)both;
        shared.cell = (struct emu_mark *)(both + EMU_SHARED_ROOM);
    }
    shared.variable[0] = (struct variable){NULL, "dynamic shared memory", BEGIN, dynamic};
    shared.variables = 1;
    shared.statics = 0;
    shared.used = (uint32_t)HZP_ROUND_UP(BEGIN + dynamic + APART, (size_t)APART);
}

void emu_shared_forget(void)
{
    memset(shared.cell, 0, EMU_SHARED_ROOM / EMU_GRAIN * sizeof(struct emu_mark));
}

void *hzp_emu_shared(const void *tag, const char *name, size_t size)
{
    for (int i = 1; i < shared.variables; i++)
        if (shared.variable[i].tag == tag)
            return shared.base + shared.variable[i].at;
    HZP_ASSERT(shared.variables < VARIABLES && shared.used + size + APART <= EMU_SHARED_ROOM);
    struct variable *v = &shared.variable[shared.variables++];
    *v = (struct variable){tag, name, shared.used, size};
    shared.statics += (uint32_t)size;
    shared.used = (uint32_t)HZP_ROUND_UP(shared.used + size + APART, (size_t)APART);
    if (shared.statics > HZP_EMU_SHARED_DEFAULT ||
        shared.statics + shared.variable[0].size > HZP_EMU_SHARED_MAX)
        emu_fault(HZP_EMU_LAUNCH, NULL,
                  "%u bytes of shared memory and %zu of it dynamic, more than a "
                  "block has",
                  shared.statics, shared.variable[0].size);
    return shared.base + v->at;
}

void *hzp_emu_shared_dynamic(const char *name)
{
    shared.variable[0].name = name;
    return shared.base + BEGIN;
}

uint32_t hzp_emu_shared_at(const void *ptr)
{
    if ((uintptr_t)ptr - emu_map.shared >= EMU_SHARED_ROOM)
        emu_fault(HZP_EMU_BOUNDS, __builtin_return_address(0), "%p is not in shared memory", ptr);
    return (uint32_t)((const char *)ptr - shared.base);
}

void *emu_shared_ptr(uint32_t at)
{
    return shared.base + at;
}

/* The variable that contains the whole range; NULL: none. */
static const struct variable *variable_of(uint32_t at, size_t size)
{
    for (int i = 0; i < shared.variables; i++) {
        const struct variable *v = &shared.variable[i];
        if (at >= v->at && at + size <= v->at + v->size)
            return v;
    }
    return NULL;
}

static void race(const struct emu_fiber *me, uint32_t at, bool write, unsigned who, bool by_write,
                 const void *pc)
{
    const struct variable *v = variable_of(at, 1);
    if (who == EMU_COPYING) {
        emu_fault(HZP_EMU_COPY, pc,
                  "thread %d %s shared %s, byte %u, while an asynchronous copy there is "
                  "in flight",
                  me->thread, write ? "writes" : "reads", v->name, at - v->at);
        return;
    }
    emu_fault(HZP_EMU_RACE, pc, "thread %d %s shared %s, byte %u, that %s %s: no barrier between",
              me->thread, write ? "writes" : "reads", v->name, at - v->at, emu_who(who),
              by_write ? "wrote" : "read");
}

/* The thread that wrote, or that first waited for what a bulk copy wrote. */
static unsigned writer_of(const struct emu_mark *cell)
{
    return cell->writer < EMU_OF_WARP ? cell->writer & ~(unsigned)EMU_LANDED : cell->writer;
}

static bool is_landed(const struct emu_mark *cell)
{
    return cell->writer < EMU_OF_WARP && cell->writer & EMU_LANDED;
}

/* Whether the last write is ordered before what the thread does.  A barrier does not complete a
 * copy. */
static bool write_ordered(const struct emu_mark *cell, const struct emu_fiber *me)
{
    if (cell->writer == EMU_COPYING)
        return false;
    return emu_ordered(cell->written, writer_of(cell), me) ||
           (is_landed(cell) && me->waited > cell->written);
}

static void cell_touch(const struct emu_fiber *me, uint32_t at, bool write, bool atomic,
                       const void *pc)
{
    struct emu_mark *cell = &shared.cell[at / EMU_GRAIN];
    bool there = cell->written >= emu_block.began;
    bool mine = write_ordered(cell, me);
    if (there && !mine && !(atomic && cell->writer == EMU_ATOMIC)) {
        race(me, at, write, writer_of(cell), true, pc);
        return;
    }
    if (!there && (!write || atomic)) {
        const struct variable *v = variable_of(at, 1);
        emu_fault(HZP_EMU_UNWRITTEN, pc,
                  "thread %d reads shared %s, byte %u, before it was written", me->thread, v->name,
                  at - v->at);
        return;
    }
    if (!write) {
        emu_mark_read(cell, me, emu_ordered(cell->read, cell->reader, me));
        return;
    }
    if (cell->read >= emu_block.began && !emu_ordered(cell->read, cell->reader, me)) {
        race(me, at, true, cell->reader, false, pc);
        return;
    }
    cell->written = emu_block.clock;
    cell->writer = (uint16_t)(atomic ? EMU_ATOMIC : me->thread);
}

static void touch(const struct emu_fiber *me, uint32_t at, size_t size, bool write, bool atomic,
                  const void *pc)
{
    if (!variable_of(at, size)) {
        const struct variable *near = &shared.variable[0];
        for (int i = 1; i < shared.variables; i++)
            if (shared.variable[i].at <= at && (shared.variable[i].at > near->at || near->at > at))
                near = &shared.variable[i];
        emu_fault(
            HZP_EMU_BOUNDS, pc, "%s of %zu bytes of shared memory at byte %d of %s, which has %zu",
            write ? "a store" : "a load", size, (int)at - (int)near->at, near->name, near->size);
        return;
    }
    for (uint32_t i = at / EMU_GRAIN * EMU_GRAIN; i < at + size && !emu_faulted(); i += EMU_GRAIN)
        cell_touch(me, HZP_MAX(i, at), write, atomic, pc);
}

void emu_shared_touch(uintptr_t at, size_t size, bool write, bool atomic, const void *pc)
{
    touch(emu_now, (uint32_t)(at - (uintptr_t)shared.base), size, write, atomic, pc);
}

void emu_shared_touch_by(const struct emu_fiber *by, uint32_t at, size_t size, const void *pc)
{
    touch(by, at, size, false, false, pc);
}

/* ---- asynchronous copies: complete at the wait, not accessible before ---- */

static void written_by(uint32_t at, size_t size, unsigned who)
{
    for (uint32_t i = at; i < at + size; i += EMU_GRAIN) {
        struct emu_mark *cell = &shared.cell[i / EMU_GRAIN];
        cell->written = emu_block.clock;
        cell->writer = (uint16_t)who;
    }
}

static void copying(uint32_t at, bool begins)
{
    written_by(at, 16, begins ? (unsigned)EMU_COPYING : (unsigned)emu_now->thread);
}

void emu_shared_check(uint32_t at, size_t size, bool write, const void *pc)
{
    touch(emu_now, at, size, write, false, pc);
}

void emu_shared_close(uint32_t at, size_t size, const void *pc)
{
    for (uint32_t i = at; variable_of(at, size) && i < at + size; i += EMU_GRAIN) {
        const struct emu_mark *cell = &shared.cell[i / EMU_GRAIN];
        if (cell->written >= emu_block.began && cell->writer < EMU_LANDED &&
            cell->written >= emu_block.fiber[cell->writer].bulk_fence) {
            emu_fault(
                HZP_EMU_COPY, pc,
                "a bulk copy to shared %s, byte %u, which thread %d wrote with no fence since",
                variable_of(i, 1)->name, i - variable_of(i, 1)->at, cell->writer);
            return;
        }
    }
    touch(emu_now, at, size, true, false, pc);
    written_by(at, size, EMU_COPYING);
}

void emu_shared_land(uint32_t at, size_t size)
{
    written_by(at, size, EMU_LANDED | (unsigned)emu_now->thread);
}

void hzp_emu_copy(uint32_t to, const void *from, bool there)
{
    const void *pc = __builtin_return_address(0);
    struct emu_fiber *me = emu_now;
    if (to % 16 || (there && (uintptr_t)from % 16))
        emu_fault(HZP_EMU_MISALIGNED, pc, "an asynchronous copy of 16 bytes from %p to shared %u",
                  from, to);
    if (there)
        hzp_emu_touch(from, 16, false);
    touch(me, to, 16, true, false, pc);
    copying(to, true);
    if (me->copies == EMU_COPIES)
        emu_fault(HZP_EMU_COPY, pc, "more than %d asynchronous copies of one thread", EMU_COPIES);
    me->copy[me->copies++] = (struct emu_copy){to, me->group, there ? from : NULL};
}

void hzp_emu_copy_commit(void)
{
    emu_now->group++;
}

void hzp_emu_copy_wait(int pending)
{
    struct emu_fiber *me = emu_now;
    int left = 0;
    for (int i = 0; i < me->copies; i++) {
        struct emu_copy *copy = &me->copy[i];
        if (copy->group >= me->group - pending) {
            me->copy[left++] = *copy;
            continue;
        }
        if (copy->from)
            memcpy(shared.base + copy->to, copy->from, 16);
        else
            memset(shared.base + copy->to, 0, 16);
        copying(copy->to, false);
    }
    me->copies = left;
}

void emu_copies_end(struct emu_fiber *fiber)
{
    if (fiber->copies > 0)
        emu_fault(HZP_EMU_COPY, NULL, "ended with %d asynchronous copies in flight", fiber->copies);
}
