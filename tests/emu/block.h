/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/block.h - what the emulator's files share: the block that runs, its warps and
 * fibers.
 *
 * Order of accesses: the clock ticks at each barrier and each __syncwarp.  Accesses before the
 * block's last barrier are ordered before those of now, and so are, within one warp, accesses
 * before the warp's last __syncwarp.  Accesses of another block of the launch are ordered only
 * if that block performed an atomic operation after them (with a barrier between if other
 * threads made them), and this block has performed one since.
 *
 * Thread: one.
 */
#pragma once

#include "tests/emu/emu.h"

enum {
    EMU_LANES = 32,
    EMU_THREADS = 1024,
    EMU_WARPS = EMU_THREADS / EMU_LANES,
    EMU_COPIES = 256,
    EMU_STACK = 64 << 10
};

enum emu_state {
    EMU_READY,
    EMU_AT_BARRIER,
    EMU_AT_PHASE, /* of an mbarrier */
    EMU_IN_WARP,
    EMU_ENDED
};

/* The instructions that the lanes of a warp execute together. */
enum emu_together {
    EMU_NOTHING,
    EMU_SHUFFLE,
    EMU_BALLOT,
    EMU_REDUCE,
    EMU_SYNCWARP,
    EMU_MMA,
    EMU_LOAD_MATRICES,
    EMU_TRANSPOSE
};

struct emu_copy { /* an asynchronous copy */
    uint32_t to;
    int group;
    const void *from; /* NULL: zeros */
};

/* The last threads to touch two bytes of memory, and when. */
enum { EMU_GRAIN = 2 };
struct emu_mark {
    uint32_t written, read;  /* clocks */
    uint16_t writer, reader; /* thread numbers, or one of the values below */
};
enum {
    EMU_SEVERAL = 0xffff,
    EMU_ATOMIC = 0xfffe,
    EMU_COPYING = 0xfffd,
    EMU_BLOCKS = 0xfffc,
    EMU_OF_WARP = 0x8000, /* | warp: several of its lanes */
    EMU_LANDED = 0x4000   /* | thread: a bulk copy's bytes, for which it was the first to wait */
};

struct emu_fiber {
    enum emu_state state;
    int thread, lane;
    struct emu_warp *warp;
    struct hzp_emu_dim at;
    bool caught_up; /* what came before the launch has ended, as far as it knows */
    bool predicate; /* its vote at a barrier */
    const char *file;
    int line;
    uint32_t mask; /* of the warp instruction */
    void *data;    /* its operands; on the fiber's stack */
    uint32_t fenced,
        fenced_all;      /* clock of its last __threadfence, and of the barrier before that */
    uint32_t waited;     /* clock of its last wait for an mbarrier that has ended */
    uint32_t bulk_fence; /* clock of its last fence between its stores and bulk copies */
    int phase_of;        /* AT_PHASE: the mbarrier */
    int group, copies;   /* the group that new copies join */
    struct emu_copy copy[EMU_COPIES];
};

struct emu_warp {
    int index;
    uint32_t ticked; /* clock of the last __syncwarp */
    uint32_t met;    /* clock of the last instruction all lanes did together */
    uint32_t ready;  /* lanes that can go on */
    uint32_t mask, arrived;
    enum emu_together what;
    int detail; /* of the instruction: must be equal in all lanes */
};

struct emu_block {
    const struct hzp_emu_launch *launch;
    struct hzp_emu_dim at;
    int threads, warps;
    uint32_t clock, launched, began, ticked; /* now, the start of the launch, of the block, the last
                                              * barrier */
    struct {
        uintptr_t from;
        size_t size;
        uint64_t touches; /* by this block */
    } counted;
    struct hzp_emu_votes votes;
    struct emu_warp warp[EMU_WARPS];
    struct emu_fiber fiber[EMU_THREADS];
};
extern struct emu_block emu_block;
extern bool emu_backwards;        /* order of the lanes */
extern struct emu_fiber *emu_now; /* NULL: the host is running */

/* Address ranges that kernels may touch; checked at every access. */
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
void emu_fiber_enter(int i); /* called by the scheduler; returns when one leaves */
/* Switches from fiber i to fiber next, or to the scheduler (-1); returns when i is entered
   again. */
void emu_fiber_leave(int i, int next);

/* Waits for what `state` names until the scheduler resumes this fiber. */
void emu_wait(enum emu_state state);

/* ---- memory.c ---- */

void emu_memory_begin(void);
void emu_memory_forget(void); /* when the clock restarts */
void emu_global_touch(uintptr_t at, size_t size, bool write, bool atomic, const void *pc);

/* ---- order.c ---- */

/* Whether what `who` of this block did at `when` is ordered before what `me` does now. */
bool emu_ordered(uint32_t when, unsigned who, const struct emu_fiber *me);
/* Notes a read; ordered: whether the read noted before is ordered before this one. */
void emu_mark_read(struct emu_mark *mark, const struct emu_fiber *me, bool ordered);
/* Checks and notes an access to one grain of global memory.  Returns a description of the
 * conflicting access, NULL if there is none; *ret_wrote: whether that access was a write. */
const char *emu_global_mark(struct emu_mark *mark, const struct emu_fiber *me, bool write,
                            bool atomic, bool *ret_wrote);
const char *emu_who(unsigned who);
void emu_order_begin(void);                        /* at a launch */
void emu_order_atomic(const struct emu_fiber *me); /* an atomic operation on global memory */

/* ---- shared.c ---- */

void emu_shared_layout(size_t dynamic); /* at a launch */
void emu_shared_forget(void);           /* when the clock restarts */
void emu_shared_touch(uintptr_t at, size_t size, bool write, bool atomic, const void *pc);
/* By shared address, for instructions in which other lanes take part. */
void *emu_shared_ptr(uint32_t at);
void emu_shared_touch_by(const struct emu_fiber *by, uint32_t at, size_t size, const void *pc);
/* Reports a fault if the thread has copies in flight when it ends. */
void emu_copies_end(struct emu_fiber *fiber);
/* Checks an access by shared address of the running thread. */
void emu_shared_check(uint32_t at, size_t size, bool write, const void *pc);
/* Checks the destination of a bulk copy, and closes it until emu_shared_land. */
void emu_shared_close(uint32_t at, size_t size, const void *pc);
void emu_shared_land(uint32_t at, size_t size);

/* ---- bulk.c ---- */

void emu_bulk_begin(void); /* at a block */
void emu_bulk_end(void);   /* of a block: reports copies that nothing waited for */
/* Reports why the phase that the thread waits for cannot end. */
void emu_bulk_stuck(const struct emu_fiber *fiber);

/* ---- report.c ---- */

/* Records the fault, or prints it and aborts.  In a kernel it does not return: the launch is
 * over. */
void emu_fault(enum hzp_emu_fault fault, const void *pc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool emu_faulted(void);
void emu_fault_begin(void); /* at a launch */
