/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/block.h - what the emulator's files share: the block that runs, its warps and fibers.
 *
 * Order of accesses: the clock ticks at each barrier and each __syncwarp.  What happened before the
 * block's last barrier is ordered before what happens now; of one warp also what happened before
 * the warp's last __syncwarp.  Of other blocks of the launch nothing is, but what a block did
 * before an atomic operation (with a barrier between, if others did it), to those who have done one
 * since.
 *
 * Thread: one.
 */
#ifndef HZP_TESTS_EMU_BLOCK_H
#define HZP_TESTS_EMU_BLOCK_H

#include "tests/emu/emu.h"

enum {
    EMU_LANES = 32,
    EMU_THREADS = 1024,
    EMU_WARPS = EMU_THREADS / EMU_LANES,
    EMU_COPIES = 256,
    EMU_STACK = 64 << 10
};

enum emu_state { EMU_READY, EMU_AT_BARRIER, EMU_IN_WARP, EMU_ENDED };

/* The instructions that lanes do together. */
enum emu_together {
    EMU_NOTHING,
    EMU_SHUFFLE,
    EMU_BALLOT,
    EMU_REDUCE,
    EMU_SYNCWARP,
    EMU_MMA,
    EMU_LOAD_MATRICES
};

struct emu_copy { /* an asynchronous one */
    uint32_t to;
    int group;
    const void *from; /* NULL: zeros */
};

/* Who touched two bytes of memory last, and when. */
enum { EMU_GRAIN = 2 };
struct emu_mark {
    uint32_t written, read;  /* clocks */
    uint16_t writer, reader; /* threads, or one of those below */
};
enum {
    EMU_SEVERAL = 0xffff,
    EMU_ATOMIC = 0xfffe,
    EMU_COPYING = 0xfffd,
    EMU_BLOCKS = 0xfffc,
    EMU_OF_WARP = 0x8000 /* | warp: several of its lanes */
};

struct emu_fiber {
    enum emu_state state;
    int thread, lane;
    struct emu_warp *warp;
    struct hzp_emu_dim at;
    bool predicate; /* at a barrier */
    const char *file;
    int line;
    uint32_t mask; /* in an instruction of the warp */
    void *data;    /* its operands; on the fiber's stack */
    uint32_t fenced,
        fenced_all;    /* clock of its last __threadfence, and of the barrier before that */
    int group, copies; /* the group that new copies join */
    struct emu_copy copy[EMU_COPIES];
};

struct emu_warp {
    int index;
    uint32_t ticked; /* clock of the last __syncwarp */
    uint32_t met;    /* clock of the last instruction all lanes did together */
    uint32_t ready;  /* lanes that can go on */
    uint32_t mask, arrived;
    enum emu_together what;
    int detail; /* of the instruction: must be the same in all lanes */
};

struct emu_block {
    const struct hzp_emu_launch *launch;
    struct hzp_emu_dim at;
    int threads, warps;
    uint32_t clock, launched, began, ticked; /* now, the start of the launch, of the block, the last
                                              * barrier */
    struct hzp_emu_votes votes;
    struct emu_warp warp[EMU_WARPS];
    struct emu_fiber fiber[EMU_THREADS];
};
extern struct emu_block emu_block;
extern bool emu_backwards;        /* through the lanes */
extern struct emu_fiber *emu_now; /* NULL: the host runs */

/* Where what kernels touch may lie: looked at with every access. */
enum { EMU_PAGE = 4096, EMU_SHARED_ROOM = 1 << 20 };
#define EMU_GLOBAL_ROOM ((uintptr_t)4 << 30)
enum emu_page { EMU_CLOSED, EMU_OPEN, EMU_BYTES };
extern struct emu_map {
    uintptr_t global, shared,
        stacks; /* begins of [EMU_GLOBAL_ROOM], [EMU_SHARED_ROOM], the stacks */
} emu_map;

/* ---- fiber.c: EMU_THREADS stacks ---- */

/* Sets fiber i up to run entry() on its own stack from the top. */
void emu_fiber_prepare(int i, void (*entry)(void));
void emu_fiber_enter(int i); /* from the scheduler; returns when one leaves */
/* From fiber i to fiber next, -1: to the scheduler; returns when i is entered again. */
void emu_fiber_leave(int i, int next);

/* Waits (state says for what) until the scheduler goes on with this fiber. */
void emu_wait(enum emu_state state);

/* ---- memory.c ---- */

void emu_memory_begin(void);
void emu_memory_forget(void); /* when the clock begins anew */
void emu_global_touch(uintptr_t at, size_t size, bool write, bool atomic, const void *pc);

/* ---- order.c ---- */

/* Whether what `who` of this block did at `when` is ordered before what `me` does now. */
bool emu_ordered(uint32_t when, unsigned who, const struct emu_fiber *me);
/* Notes a read; ordered: whether the one noted before is. */
void emu_mark_read(struct emu_mark *mark, const struct emu_fiber *me, bool ordered);
/* One grain of global memory.  Returns who is in the way, 0: nobody; *ret_wrote: by having
 * written. */
const char *emu_global_mark(struct emu_mark *mark, const struct emu_fiber *me, bool write,
                            bool atomic, bool *ret_wrote);
const char *emu_who(unsigned who);
void emu_order_begin(void);                        /* at a launch */
void emu_order_atomic(const struct emu_fiber *me); /* an atomic operation on global memory */

/* ---- shared.c ---- */

void emu_shared_layout(size_t dynamic); /* at a launch */
void emu_shared_forget(void);           /* when the clock begins anew */
void emu_shared_touch(uintptr_t at, size_t size, bool write, bool atomic, const void *pc);
/* By shared address, for instructions that other lanes take part in. */
void *emu_shared_ptr(uint32_t at);
void emu_shared_touch_by(const struct emu_fiber *by, uint32_t at, size_t size, const void *pc);
/* No thread may have copies on their way when it ends. */
void emu_copies_end(struct emu_fiber *fiber);

/* ---- report.c ---- */

/* Records the fault, or prints it and aborts.  In a kernel it does not return: the launch is
 * over. */
void emu_fault(enum hzp_emu_fault fault, const void *pc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool emu_faulted(void);
void emu_fault_begin(void); /* at a launch */

#endif
