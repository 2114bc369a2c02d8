/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/memory.c - the device's memory: allocations with gaps between them, and which of it
 * a kernel may touch.
 *
 * A page is closed, open, or decided byte by byte: the last page of an allocation, and watched
 * pages.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "tests/emu/block.h"

enum { PAGE = EMU_PAGE, BLOCKS = 4096, APART = 4 /* pages between two allocations */ };
enum { MAY_READ = 1, MAY_WRITE = 2 };

static struct {
    uint8_t *base;         /* [EMU_GLOBAL_ROOM] */
    uint8_t *byte;         /* [EMU_GLOBAL_ROOM] access rights, where a page is decided by bytes */
    uint8_t *page;         /* [EMU_GLOBAL_ROOM / PAGE] */
    struct emu_mark *mark; /* [EMU_GLOBAL_ROOM / EMU_GRAIN] */
    struct {
        uint8_t *ptr;
        size_t size;
    } block[BLOCKS]; /* sorted by address */
    int blocks;
} memory;

static void *reserve(size_t size)
{
    void *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    HZP_ASSERT(ptr != MAP_FAILED);
    return ptr;
}

static size_t pages_of(size_t size)
{
    return HZP_DIV_UP(size, (size_t)PAGE);
}

/* Makes all of it readable and writable. */
static void open_up(const uint8_t *ptr, size_t size)
{
    size_t at = (size_t)(ptr - memory.base), end = at + size;
    for (; at < end; at += PAGE - at % PAGE) {
        size_t here = HZP_MIN(PAGE - at % PAGE, end - at);
        uint8_t *page = &memory.page[at / PAGE];
        if (here == PAGE) {
            *page = EMU_OPEN;
            continue;
        }
        if (*page == EMU_CLOSED)
            memset(memory.byte + at / PAGE * PAGE, 0, PAGE);
        if (*page != EMU_OPEN)
            *page = EMU_BYTES;
        memset(memory.byte + at, MAY_READ | MAY_WRITE, here);
    }
}

void emu_memory_begin(void)
{
    if (memory.base)
        return;
    memory.base = reserve(EMU_GLOBAL_ROOM);
    memory.byte = reserve(EMU_GLOBAL_ROOM);
    memory.page = reserve(EMU_GLOBAL_ROOM / PAGE);
    memory.mark = reserve(EMU_GLOBAL_ROOM / EMU_GRAIN * sizeof(*memory.mark));
    emu_map.global = (uintptr_t)memory.base;
}

void emu_memory_forget(void)
{
    HZP_ASSERT(madvise(memory.mark, EMU_GLOBAL_ROOM / EMU_GRAIN * sizeof(*memory.mark),
                       MADV_DONTNEED) == 0);
}

void *hzp_emu_alloc(size_t size)
{
    emu_memory_begin();
    size_t need = (pages_of(size) + APART) * PAGE, at = APART * PAGE;
    int i = 0;
    for (; i < memory.blocks; i++) { /* the first gap that is large enough */
        size_t next = (size_t)(memory.block[i].ptr - memory.base);
        if (next - at >= need)
            break;
        at = next + (pages_of(memory.block[i].size) + APART) * PAGE;
    }
    if (size == 0 || memory.blocks == BLOCKS || at + need > EMU_GLOBAL_ROOM)
        return NULL;
    memmove(&memory.block[i + 1], &memory.block[i],
            (size_t)(memory.blocks++ - i) * sizeof(memory.block[0]));
    memory.block[i].ptr = memory.base + at;
    memory.block[i].size = size;
    open_up(memory.base + at, size);
    if (size <= 1 << 20) /* filling more would only cost the host memory */
        memset(memory.base + at, 0xff, size);
    return memory.base + at;
}

static int block_find(const void *ptr)
{
    for (int i = 0; i < memory.blocks; i++)
        if ((const uint8_t *)ptr >= memory.block[i].ptr &&
            (const uint8_t *)ptr < memory.block[i].ptr + memory.block[i].size)
            return i;
    return -1;
}

bool hzp_emu_free(void *ptr)
{
    int i = block_find(ptr);
    if (i < 0 || memory.block[i].ptr != ptr)
        return false;
    size_t pages = pages_of(memory.block[i].size);
    memset(memory.page + (memory.block[i].ptr - memory.base) / PAGE, EMU_CLOSED, pages);
    HZP_ASSERT(madvise(ptr, pages * PAGE, MADV_DONTNEED) == 0);
    memmove(&memory.block[i], &memory.block[i + 1],
            (size_t)(--memory.blocks - i) * sizeof(memory.block[0]));
    return true;
}

bool hzp_emu_range(const void *ptr, size_t size)
{
    if (!memory.base || (uintptr_t)ptr - emu_map.global >= EMU_GLOBAL_ROOM)
        return true;
    int i = block_find(ptr);
    return i >= 0 &&
           size <= memory.block[i].size - (size_t)((const uint8_t *)ptr - memory.block[i].ptr);
}

void hzp_emu_watch(const void *ptr, size_t size)
{
    size_t first = (size_t)((const uint8_t *)ptr - memory.base) / PAGE;
    HZP_ASSERT(hzp_emu_range(ptr, size) && (uintptr_t)ptr % PAGE == 0);
    for (size_t i = first; i < first + pages_of(size); i++)
        memory.page[i] = EMU_BYTES;
    memset(memory.byte + first * PAGE, 0, pages_of(size) * PAGE);
}

void hzp_emu_allow(const void *ptr, size_t size, bool write)
{
    memset(memory.byte + ((const uint8_t *)ptr - memory.base),
           write ? MAY_READ | MAY_WRITE : MAY_READ, size);
}

void hzp_emu_unwatch(const void *ptr, size_t size)
{
    int i = block_find(ptr);
    size_t first = (size_t)((const uint8_t *)ptr - memory.base) / PAGE;
    HZP_ASSERT(i >= 0);
    memset(memory.page + first, EMU_CLOSED, pages_of(size));
    open_up(memory.block[i].ptr, memory.block[i].size);
}

/* Returns false if one of the bytes may not be touched. */
static bool allowed(size_t byte, size_t size, bool write, const void *pc)
{
    uint8_t need = write ? MAY_WRITE : MAY_READ;
    if (memory.page[byte / PAGE] == EMU_OPEN && memory.page[(byte + size - 1) / PAGE] == EMU_OPEN)
        return true;
    for (size_t i = byte; i < byte + size; i++) {
        uint8_t page = memory.page[i / PAGE];
        if (page == EMU_OPEN || (page == EMU_BYTES && memory.byte[i] & need))
            continue;
        int near = 0;
        while (near + 1 < memory.blocks && memory.block[near + 1].ptr <= memory.base + byte)
            near++;
        bool read_only = page == EMU_BYTES && memory.byte[i];
        emu_fault(HZP_EMU_BOUNDS, pc,
                  "%s of %zu bytes of global memory %s: byte %td of an allocation "
                  "of %zu",
                  write ? "a store" : "a load", size,
                  read_only ? "that may only be read" : "outside of what may be touched",
                  memory.blocks ? memory.base + byte - memory.block[near].ptr : 0,
                  memory.blocks ? memory.block[near].size : 0);
        return false;
    }
    return true;
}

void emu_global_touch(uintptr_t at, size_t size, bool write, bool atomic, const void *pc)
{
    size_t byte = at - (uintptr_t)memory.base;
    bool wrote;
    if (!allowed(byte, size, write, pc))
        return;
    if (!emu_now->caught_up) {
        emu_fault(HZP_EMU_EARLY, pc,
                  "%s of %zu bytes of global memory by a kernel started early, before its wait",
                  write ? "a store" : "a load", size);
        return;
    }
    if (size < EMU_GRAIN) /* its neighbour may belong to another thread */
        return;
    if (atomic)
        emu_order_atomic(emu_now);
    for (size_t i = byte / EMU_GRAIN; i <= (byte + size - 1) / EMU_GRAIN; i++) {
        const char *who = emu_global_mark(&memory.mark[i], emu_now, write, atomic, &wrote);
        if (!who)
            continue;
        int block = block_find((const void *)at);
        emu_fault(HZP_EMU_RACE, pc,
                  "%s of %zu bytes of global memory, byte %td of an allocation of %zu, "
                  "that %s %s: nothing orders the two",
                  write ? "a store" : "a load", size, (const uint8_t *)at - memory.block[block].ptr,
                  memory.block[block].size, who, wrote ? "wrote" : "read");
        return;
    }
}
