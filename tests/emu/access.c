/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/access.c - the functions that code compiled with -fsanitize=thread calls before each
 * load and store, in place of that sanitizer's own: they check every access of a kernel.
 */
#include <elf.h>
#include <link.h>
#include <string.h>

#include "base/base.h"
#include "tests/emu/block.h"

/* The program's constant data: kernels may read tables there. */
static struct {
    uintptr_t begin[16], end[16];
    int count;
} constants;

static int constants_add(struct dl_phdr_info *info, size_t size, void *arg)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || p->p_flags & PF_W ||
            constants.count == HZP_COUNT(constants.begin))
            continue;
        constants.begin[constants.count] = info->dlpi_addr + p->p_vaddr;
        constants.end[constants.count++] = info->dlpi_addr + p->p_vaddr + p->p_memsz;
    }
    return 1; /* the program comes first, and its libraries hold no tables for kernels */
}

static bool constant(uintptr_t at)
{
    if (constants.count == 0)
        dl_iterate_phdr(constants_add, NULL);
    for (int i = 0; i < constants.count; i++)
        if (at >= constants.begin[i] && at < constants.end[i])
            return true;
    return false;
}

static void touch_elsewhere(uintptr_t at, size_t size, bool write, const void *pc)
{
    const struct hzp_emu_launch *launch = emu_block.launch;
    uintptr_t args = (uintptr_t)launch->closure;
    if (!write && ((at >= args && at + size <= args + launch->closure_size) || constant(at)))
        return;
    emu_fault(HZP_EMU_BOUNDS, pc, "%s of %zu bytes at %#lx, which is not device memory",
              write ? "a store" : "a load", size, (unsigned long)at);
}

static inline void touch(const void *ptr, size_t size, bool write, bool atomic, const void *pc)
{
    uintptr_t at = (uintptr_t)ptr, byte = at - emu_map.global;
    if (!emu_now)
        return;
    if (byte < EMU_GLOBAL_ROOM - EMU_PAGE) {
        emu_block.counted.touches += at - emu_block.counted.from < emu_block.counted.size;
        emu_global_touch(at, size, write, atomic, pc);
        return;
    }
    if (at - (emu_map.stacks + (uintptr_t)emu_now->thread * EMU_STACK) < EMU_STACK)
        return;
    if (at - emu_map.shared < EMU_SHARED_ROOM)
        emu_shared_touch(at, size, write, atomic, pc);
    else
        touch_elsewhere(at, size, write, pc);
}

static void touch_aligned(const void *ptr, size_t size, bool write, bool atomic, const void *pc)
{
    if ((uintptr_t)ptr % size && emu_now)
        emu_fault(HZP_EMU_MISALIGNED, pc, "%s of %zu bytes at %p", write ? "a store" : "a load",
                  size, ptr);
    touch(ptr, size, write, atomic, pc);
}

void hzp_emu_touch(const void *ptr, size_t size, bool write)
{
    touch(ptr, size, write, false, __builtin_return_address(0));
}

void hzp_emu_move(void *to, const void *from, size_t size)
{
    const void *pc = __builtin_return_address(0);
    touch_aligned(from, size, false, false, pc);
    touch_aligned(to, size, true, false, pc);
    memcpy(to, from, size);
}

static void *copy(void *to, const void *from, size_t size, const void *pc)
{
    if (size > 0) {
        touch(from, size, false, false, pc);
        touch(to, size, true, false, pc);
    }
    return memmove(to, from, size);
}

void *hzp_emu_memcpy(void *to, const void *from, size_t size)
{
    return copy(to, from, size, __builtin_return_address(0));
}

void *hzp_emu_memmove(void *to, const void *from, size_t size)
{
    return copy(to, from, size, __builtin_return_address(0));
}

void *hzp_emu_memset(void *to, int byte, size_t size)
{
    if (size > 0)
        touch(to, size, true, false, __builtin_return_address(0));
    return memset(to, byte, size);
}

/* ---- functions that the compiler calls ---- */

#define ACCESS(size)                                                                               \
    void __tsan_read##size(void *p);                                                               \
    void __tsan_write##size(void *p);                                                              \
    void __tsan_unaligned_read##size(void *p);                                                     \
    void __tsan_unaligned_write##size(void *p);                                                    \
    void __tsan_volatile_read##size(void *p);                                                      \
    void __tsan_volatile_write##size(void *p);                                                     \
    void __tsan_read##size(void *p)                                                                \
    {                                                                                              \
        touch_aligned(p, size, false, false, __builtin_return_address(0));                         \
    }                                                                                              \
    void __tsan_write##size(void *p)                                                               \
    {                                                                                              \
        touch_aligned(p, size, true, false, __builtin_return_address(0));                          \
    }                                                                                              \
    void __tsan_unaligned_read##size(void *p)                                                      \
    {                                                                                              \
        touch(p, size, false, false, __builtin_return_address(0));                                 \
    }                                                                                              \
    void __tsan_unaligned_write##size(void *p)                                                     \
    {                                                                                              \
        touch(p, size, true, false, __builtin_return_address(0));                                  \
    }                                                                                              \
    void __tsan_volatile_read##size(void *p)                                                       \
    {                                                                                              \
        touch_aligned(p, size, false, false, __builtin_return_address(0));                         \
    }                                                                                              \
    void __tsan_volatile_write##size(void *p)                                                      \
    {                                                                                              \
        touch_aligned(p, size, true, false, __builtin_return_address(0));                          \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_read_range(void *p, size_t size);
void __tsan_write_range(void *p, size_t size);
void __tsan_func_entry(void *pc);
void __tsan_func_exit(void);
void __tsan_init(void);
void __tsan_vptr_update(void **p, void *value);

void __tsan_read_range(void *p, size_t size)
{
    touch(p, size, false, false, __builtin_return_address(0));
}

void __tsan_write_range(void *p, size_t size)
{
    touch(p, size, true, false, __builtin_return_address(0));
}

void __tsan_func_entry(void *pc)
{
}

void __tsan_func_exit(void)
{
}

void __tsan_init(void)
{
}

/* ---- atomics: nothing else runs meanwhile ---- */

static uint64_t combine(enum hzp_emu_atomic how, uint64_t old, uint64_t x, uint64_t compare,
                        bool less)
{
    switch (how) {
    case HZP_EMU_A_ADD:
        return old + x;
    case HZP_EMU_A_OR:
        return old | x;
    case HZP_EMU_A_AND:
        return old & x;
    case HZP_EMU_A_MIN:
        return less ? old : x;
    case HZP_EMU_A_MAX:
        return less ? x : old;
    case HZP_EMU_A_EXCH:
        return x;
    default:
        return old == compare ? x : old;
    }
}

uint32_t hzp_emu_atomic32(void *ptr, enum hzp_emu_atomic how, uint32_t value, uint32_t compare,
                          bool is_signed)
{
    uint32_t old;
    touch_aligned(ptr, sizeof(old), true, true, __builtin_return_address(0));
    memcpy(&old, ptr, sizeof(old));
    bool less = is_signed ? (int32_t)old < (int32_t)value : old < value;
    uint32_t now = (uint32_t)combine(how, old, value, compare, less);
    memcpy(ptr, &now, sizeof(now));
    return old;
}

uint64_t hzp_emu_atomic64(void *ptr, enum hzp_emu_atomic how, uint64_t value, uint64_t compare,
                          bool is_signed)
{
    uint64_t old;
    touch_aligned(ptr, sizeof(old), true, true, __builtin_return_address(0));
    memcpy(&old, ptr, sizeof(old));
    bool less = is_signed ? (int64_t)old < (int64_t)value : old < value;
    uint64_t now = combine(how, old, value, compare, less);
    memcpy(ptr, &now, sizeof(now));
    return old;
}

float hzp_emu_atomic_float(float *ptr, float value)
{
    touch_aligned(ptr, sizeof(*ptr), true, true, __builtin_return_address(0));
    float old = *ptr;
    *ptr = old + value;
    return old;
}
