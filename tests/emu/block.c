/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/block.c - runs a grid: one block after another, the fibers of a block in turns. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tests/emu/block.h"

struct emu_block emu_block;
struct emu_fiber *emu_now;
struct emu_map emu_map;
bool emu_backwards;

enum { KERNELS = 1024 };

static struct {
    const void *kernel[KERNELS]; /* kernels seen so far */
    size_t room[KERNELS];        /* dynamic shared memory allowed for each */
    int kernels;
    uint64_t launches, busiest;
} seen;

/* Writes the kernel's address in the program to the file that tests/emu/coverage.py asked for. */
static void kernel_note(const void *kernel)
{
    const char *path = getenv("HZP_EMU_KERNELS");
    Dl_info info;
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    if (dladdr(kernel, &info))
        fprintf(file, "%zx\n", (size_t)((const char *)kernel - (const char *)info.dli_fbase));
    fclose(file);
}

static int kernel_index(const void *kernel)
{
    for (int i = 0; i < seen.kernels; i++)
        if (seen.kernel[i] == kernel)
            return i;
    HZP_ASSERT(seen.kernels < KERNELS);
    seen.kernel[seen.kernels] = kernel;
    seen.room[seen.kernels] = HZP_EMU_SHARED_DEFAULT;
    kernel_note(kernel);
    return seen.kernels++;
}

bool hzp_emu_set_shared(const void *kernel, size_t bytes)
{
    if (bytes > HZP_EMU_SHARED_MAX)
        return false;
    seen.room[kernel_index(kernel)] = bytes;
    return true;
}

void hzp_emu_counts(uint64_t *ret_launches, int *ret_kernels)
{
    *ret_launches = seen.launches;
    *ret_kernels = seen.kernels;
}

uint64_t hzp_emu_busiest(const void *ptr, size_t size)
{
    uint64_t ret = seen.busiest;
    seen.busiest = 0;
    emu_block.counted.from = (uintptr_t)ptr;
    emu_block.counted.size = size;
    return ret;
}

unsigned hzp_emu_index(int which)
{
    const struct hzp_emu_launch *launch = emu_block.launch;
    const struct hzp_emu_dim *dim = which < 3   ? &emu_now->at
                                    : which < 6 ? &emu_block.at
                                    : which < 9 ? &launch->block
                                                : &launch->grid;
    return which % 3 == 0 ? dim->x : which % 3 == 1 ? dim->y : dim->z;
}

void emu_wait(enum emu_state state)
{
    struct emu_fiber *me = emu_now;
    struct emu_warp *warp = me->warp;
    int first = warp->index * EMU_LANES, next = -1;
    me->state = state;
    warp->ready &= ~(1u << me->lane);
    if (warp->ready && !emu_faulted())
        next =
            first + (emu_backwards ? 31 - __builtin_clz(warp->ready) : __builtin_ctz(warp->ready));
    emu_now = next < 0 ? NULL : &emu_block.fiber[next];
    emu_fiber_leave(me->thread, next);
}

static void fiber_main(void)
{
    emu_block.launch->body(emu_block.launch->closure);
    emu_copies_end(emu_now);
    if (!emu_now->caught_up)
        emu_fault(HZP_EMU_EARLY, emu_block.launch->kernel,
                  "thread %d of a kernel started early never waited for what was before it",
                  emu_now->thread);
    emu_wait(EMU_ENDED);
}

void hzp_emu_wait_for_earlier(void)
{
    emu_now->caught_up = true;
}

struct hzp_emu_votes hzp_emu_barrier(bool predicate, const char *file, int line)
{
    emu_now->predicate = predicate;
    emu_now->file = file;
    emu_now->line = line;
    emu_wait(EMU_AT_BARRIER);
    return emu_block.votes;
}

static int count_of(enum emu_state state)
{
    int count = 0;
    for (int i = 0; i < emu_block.threads; i++)
        count += emu_block.fiber[i].state == state;
    return count;
}

static const struct emu_fiber *first_of(enum emu_state state)
{
    for (int i = 0; i < emu_block.threads; i++)
        if (emu_block.fiber[i].state == state)
            return &emu_block.fiber[i];
    return NULL;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* All live threads are at a barrier: it must be the same one, and no thread may have ended
   before. */
static void barrier_pass(void)
{
    struct emu_block *b = &emu_block;
    const struct emu_fiber *first = first_of(EMU_AT_BARRIER), *ended = first_of(EMU_ENDED);
    b->votes = (struct hzp_emu_votes){0, true};
    if (ended) {
        emu_fault(HZP_EMU_BARRIER, NULL,
                  "thread %d waits at the barrier of %s:%d, thread %d has ended", first->thread,
                  base_name(first->file), first->line, ended->thread);
        return;
    }
    for (int i = 0; i < b->threads; i++) {
        struct emu_fiber *fiber = &b->fiber[i];
        if (fiber->line != first->line || strcmp(fiber->file, first->file) != 0) {
            emu_fault(HZP_EMU_BARRIER, NULL,
                      "thread %d waits at the barrier of %s:%d, thread %d at that of %s:%d",
                      first->thread, base_name(first->file), first->line, i, base_name(fiber->file),
                      fiber->line);
            return;
        }
        b->votes.count += fiber->predicate;
        b->votes.all &= fiber->predicate;
        fiber->state = EMU_READY;
        fiber->warp->ready |= 1u << fiber->lane;
    }
    b->ticked = ++b->clock;
}

/* Reports a deadlock: a thread waits for a phase that will not end, or a lane in a warp instruction
 * for lanes that will not come. */
static void stuck(void)
{
    const struct emu_fiber *fiber = first_of(EMU_AT_PHASE);
    if (fiber) {
        emu_bulk_stuck(fiber);
        return;
    }
    fiber = first_of(EMU_IN_WARP);
    const struct emu_warp *warp = fiber->warp;
    uint32_t missing = warp->mask & ~warp->arrived;
    int lane = __builtin_ctz(missing), other = warp->index * EMU_LANES + lane;
    const char *why = other >= emu_block.threads                  ? "does not exist"
                      : emu_block.fiber[other].state == EMU_ENDED ? "has ended"
                                                                  : "waits at a barrier";
    emu_fault(HZP_EMU_WARP, NULL,
              "thread %d waits in an instruction of its warp (mask %08x): lane %d %s",
              fiber->thread, warp->mask, lane, why);
}

/* Runs the warp until all its lanes wait or have ended; lanes switch to each other directly. */
static bool warp_run(struct emu_warp *warp)
{
    int first = warp->index * EMU_LANES;
    if (!warp->ready)
        return false;
    emu_now = &emu_block.fiber[first + (emu_backwards ? 31 - __builtin_clz(warp->ready)
                                                      : __builtin_ctz(warp->ready))];
    emu_fiber_enter(emu_now->thread);
    emu_now = NULL;
    return true;
}

static void block_begin(struct hzp_emu_dim at)
{
    enum { CLOCK_MAX = 1 << 30 };
    struct emu_block *b = &emu_block;
    struct hzp_emu_dim size = b->launch->block;
    b->at = at;
    if (b->clock > CLOCK_MAX) {
        b->clock = 0;
        emu_shared_forget();
        emu_memory_forget();
        b->launched = 1; /* earlier accesses do not matter for this launch */
    }
    b->began = b->ticked = ++b->clock;
    emu_bulk_begin();
    for (int w = 0; w < b->warps; w++) {
        b->warp[w] = (struct emu_warp){.index = w, .ticked = b->clock};
    }
    for (int i = 0; i < b->threads; i++) {
        struct emu_fiber *fiber = &b->fiber[i];
        unsigned n = (unsigned)i;
        fiber->state = EMU_READY;
        b->warp[i / EMU_LANES].ready |= 1u << i % EMU_LANES;
        fiber->thread = i;
        fiber->lane = i % EMU_LANES;
        fiber->warp = &b->warp[i / EMU_LANES];
        fiber->at = (struct hzp_emu_dim){n % size.x, n / size.x % size.y, n / size.x / size.y};
        fiber->group = fiber->copies = 0;
        fiber->fenced = fiber->fenced_all = 0;
        fiber->waited = fiber->bulk_fence = 0;
        fiber->caught_up = !b->launch->early;
        emu_fiber_prepare(i, fiber_main);
    }
}

/* order: one of its bits gives the direction in which warps are run. */
static void block_run(struct hzp_emu_dim at, unsigned order)
{
    struct emu_block *b = &emu_block;
    block_begin(at);
    b->counted.touches = 0;
    while (!emu_faulted()) {
        bool any = false;
        for (int w = 0; w < b->warps && !emu_faulted(); w++)
            any |= warp_run(&b->warp[order & 1 ? b->warps - 1 - w : w]);
        if (emu_faulted())
            return;
        if (count_of(EMU_ENDED) == b->threads) {
            emu_bulk_end();
            return;
        }
        if (count_of(EMU_ENDED) + count_of(EMU_AT_BARRIER) == b->threads)
            barrier_pass();
        else if (!any)
            stuck();
    }
}

static bool launch_legal(const struct hzp_emu_launch *l)
{
    uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    size_t room = seen.room[kernel_index(l->kernel)];
    if (threads == 0 || threads > EMU_THREADS || l->grid.x == 0 || l->grid.y == 0 ||
        l->grid.z == 0 || l->grid.x > 0x7fffffff || l->grid.y > 65535 || l->grid.z > 65535 ||
        l->block.z > 64) {
        emu_fault(HZP_EMU_LAUNCH, l->kernel,
                  "no device supports a grid of %u x %u x %u blocks of "
                  "%u x %u x %u threads",
                  l->grid.x, l->grid.y, l->grid.z, l->block.x, l->block.y, l->block.z);
        return false;
    }
    if (l->shared > room) {
        emu_fault(HZP_EMU_LAUNCH, l->kernel, "%zu bytes of dynamic shared memory, allowed are %zu",
                  l->shared, room);
        return false;
    }
    return true;
}

bool hzp_emu_run(const struct hzp_emu_launch *launch)
{
    struct emu_block *b = &emu_block;
    uint64_t blocks = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
    unsigned order = (unsigned)(++seen.launches * 0x9e3779b97f4a7c15u >> 61);
    HZP_ASSERT(!emu_now);
    emu_memory_begin();
    emu_fault_begin();
    b->launch = launch;
    if (!launch_legal(launch))
        return false;
    b->threads = (int)(launch->block.x * launch->block.y * launch->block.z);
    b->warps = HZP_DIV_UP(b->threads, (int)EMU_LANES);
    emu_backwards = order & 2;
    emu_shared_layout(launch->shared);
    emu_order_begin();
    b->launched = ++b->clock;
    for (uint64_t i = 0; i < blocks && !emu_faulted(); i++) {
        uint64_t n = order & 4 ? blocks - 1 - i : i;
        struct hzp_emu_dim at = {(unsigned)(n % launch->grid.x),
                                 (unsigned)(n / launch->grid.x % launch->grid.y),
                                 (unsigned)(n / launch->grid.x / launch->grid.y)};
        block_run(at, order);
        seen.busiest = HZP_MAX(seen.busiest, b->counted.touches);
    }
    b->launch = NULL;
    emu_now = NULL;
    return !emu_faulted();
}
