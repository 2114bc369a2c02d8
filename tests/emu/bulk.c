/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/bulk.c - mbarriers and the bulk copies whose bytes arrive at them.
 *
 * On a device a copy's bytes arrive at any time before its phase ends.  Here its destination is
 * closed when it is issued, and the bytes are stored when a thread has waited for the phase: what a
 * kernel touches too early, or never waits for, is a fault.  Only threads that have waited, or that
 * a barrier or __syncwarp orders behind one that has, may touch the bytes.  Stricter than the
 * device: the bytes of a phase must be expected before their copies are issued.
 *
 * A phase ends when all its arrivals have come and all expected bytes have been issued.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "tests/emu/block.h"

enum { BARRIERS = 512, COPIES = 1024, BOX_ROWS = 16, COLUMN = 16 };

struct barrier {
    uint32_t at, phase;
    int count, pending; /* arrivals of a phase; of this one, those still to come */
    int64_t bytes;      /* expected and not issued */
    uint32_t made;      /* clock */
    int maker;          /* thread */
};

struct bulk { /* a copy in flight */
    int barrier;
    uint32_t phase, to;
    const char *from;
    int64_t rows; /* of row_bytes each, that exist from `from` on; beyond: zeros */
    int row_bytes, bytes;
};

static struct {
    struct barrier barrier[BARRIERS];
    struct bulk copy[COPIES];
    int barriers, copies;
} bulk;

void emu_bulk_begin(void)
{
    bulk.barriers = bulk.copies = 0;
}

void emu_bulk_end(void)
{
    if (bulk.copies > 0)
        emu_fault(HZP_EMU_COPY, NULL, "a block ends with %d bulk copies that nothing waited for",
                  bulk.copies);
}

static struct barrier *barrier_find(uint32_t at, const void *pc)
{
    for (int i = 0; i < bulk.barriers; i++)
        if (bulk.barrier[i].at == at) {
            emu_shared_check(at, 8, false, pc);
            return &bulk.barrier[i];
        }
    emu_fault(HZP_EMU_UNWRITTEN, pc, "no mbarrier was made at shared %u", at);
    return NULL; /* not reached: a fault ends the launch */
}

void hzp_emu_barrier_make(uint32_t at, int count)
{
    const void *pc = __builtin_return_address(0);
    if (at % 8)
        emu_fault(HZP_EMU_MISALIGNED, pc, "an mbarrier at shared %u", at);
    if (count < 1)
        emu_fault(HZP_EMU_COPY, pc, "an mbarrier of %d arrivals", count);
    for (int i = 0; i < bulk.barriers; i++)
        if (bulk.barrier[i].at == at)
            emu_fault(HZP_EMU_COPY, pc, "there is an mbarrier at shared %u already", at);
    HZP_ASSERT(bulk.barriers < BARRIERS);
    emu_shared_check(at, 8, true, pc);
    bulk.barrier[bulk.barriers++] = (struct barrier){.at = at,
                                                     .count = count,
                                                     .pending = count,
                                                     .made = emu_block.clock,
                                                     .maker = emu_now->thread};
}

void hzp_emu_bulk_fence(void)
{
    emu_now->bulk_fence = ++emu_block.clock;
}

static void phase_end(struct barrier *b)
{
    if (b->pending > 0 || b->bytes > 0)
        return;
    b->phase++;
    b->pending = b->count;
    for (int i = 0; i < emu_block.threads; i++) {
        struct emu_fiber *fiber = &emu_block.fiber[i];
        if (fiber->state != EMU_AT_PHASE || fiber->phase_of != b - bulk.barrier)
            continue;
        fiber->state = EMU_READY;
        fiber->warp->ready |= 1u << fiber->lane;
    }
}

void hzp_emu_barrier_expect(uint32_t at, int bytes)
{
    struct barrier *b = barrier_find(at, __builtin_return_address(0));
    b->bytes += bytes;
    b->pending--;
    phase_end(b);
}

/* Stores what a copy has brought: rows as the tensor copy engine does (machine.cuh). */
static void land(const struct bulk *copy)
{
    char *to = emu_shared_ptr(copy->to);
    if (!copy->row_bytes)
        memcpy(to, copy->from, (size_t)copy->bytes);
    int wide = HZP_MIN(copy->row_bytes, 128);
    for (int r = 0; r < BOX_ROWS && copy->row_bytes; r++)
        for (int i = 0; i < copy->row_bytes; i += COLUMN) {
            int turn = wide == 128 ? r % 8 : r / 2 % 4;
            char *at = to + i / wide * BOX_ROWS * wide + r * wide;
            at += (i % wide / COLUMN ^ turn) * COLUMN;
            if (r < copy->rows)
                memcpy(at, copy->from + (size_t)r * (size_t)copy->row_bytes + i, COLUMN);
            else
                memset(at, 0, COLUMN);
        }
    emu_shared_land(copy->to, (size_t)copy->bytes);
}

void hzp_emu_barrier_wait(uint32_t at, uint32_t parity)
{
    struct barrier *b = barrier_find(at, __builtin_return_address(0));
    int left = 0;
    while ((b->phase & 1) == parity) {
        emu_now->phase_of = (int)(b - bulk.barrier);
        emu_wait(EMU_AT_PHASE);
    }
    for (int i = 0; i < bulk.copies; i++) {
        if (bulk.copy[i].barrier == b - bulk.barrier && bulk.copy[i].phase < b->phase)
            land(&bulk.copy[i]);
        else
            bulk.copy[left++] = bulk.copy[i];
    }
    bulk.copies = left;
    emu_now->waited = ++emu_block.clock;
}

void emu_bulk_stuck(const struct emu_fiber *fiber)
{
    const struct barrier *b = &bulk.barrier[fiber->phase_of];
    emu_fault(
        HZP_EMU_COPY, NULL,
        "thread %d waits for phase %u of an mbarrier that never ends: %d arrivals and %lld bytes "
        "are missing",
        fiber->thread, b->phase, b->pending, (long long)b->bytes);
}

static void issue(struct bulk copy, uint32_t at, const void *pc)
{
    struct barrier *b = barrier_find(at, pc);
    if (b->made >= emu_block.fiber[b->maker].bulk_fence)
        emu_fault(HZP_EMU_COPY, pc, "a bulk copy for an mbarrier with no fence since it was made");
    if (b->bytes < copy.bytes)
        emu_fault(HZP_EMU_COPY, pc, "a bulk copy of %d bytes, of which its mbarrier expects %lld",
                  copy.bytes, (long long)b->bytes);
    HZP_ASSERT(bulk.copies < COPIES);
    emu_shared_close(copy.to, (size_t)copy.bytes, pc);
    copy.barrier = (int)(b - bulk.barrier);
    copy.phase = b->phase;
    bulk.copy[bulk.copies++] = copy;
    b->bytes -= copy.bytes;
    phase_end(b);
}

void hzp_emu_copy_rows(uint32_t to, uint32_t barrier, const void *base, int64_t rows, int row_bytes,
                       int row)
{
    const void *pc = __builtin_return_address(0);
    const char *from = (const char *)base + (int64_t)row * row_bytes;
    int64_t there = HZP_MIN((int64_t)BOX_ROWS, rows - row);
    if (to % 1024 || (uintptr_t)base % 16 || row < 0)
        emu_fault(HZP_EMU_MISALIGNED, pc, "a bulk copy of rows from %d of %p on to shared %u", row,
                  base, to);
    if (there > 0)
        hzp_emu_touch(from, (size_t)there * (size_t)row_bytes, false);
    issue((struct bulk){.to = to,
                        .from = from,
                        .rows = there,
                        .row_bytes = row_bytes,
                        .bytes = BOX_ROWS * row_bytes},
          barrier, pc);
}

void hzp_emu_copy_bytes(uint32_t to, uint32_t barrier, const void *from, int bytes)
{
    const void *pc = __builtin_return_address(0);
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16 || bytes <= 0)
        emu_fault(HZP_EMU_MISALIGNED, pc, "a bulk copy of %d bytes from %p to shared %u", bytes,
                  from, to);
    hzp_emu_touch(from, (size_t)bytes, false);
    issue((struct bulk){.to = to, .from = from, .bytes = bytes}, barrier, pc);
}
