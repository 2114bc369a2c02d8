/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/emu.h - the block emulator: kernels written for a GPU, compiled as C++, run on the CPU.
 *
 * Every thread of a block is a fiber; blocks run one after the other.  A fiber gives way only where
 * it waits: at a barrier, or in an instruction that the lanes of a warp do together.  The compiler
 * is asked to instrument the kernels for a race detector (-fsanitize=thread), but the detector it
 * then calls is ours (access.c), so each load and each store passes here and is judged:
 *   - global memory: only what was allocated, and under a watch only the bytes allowed;
 *   - alignment: an access of n bytes at a multiple of n;
 *   - shared memory: inside a variable, not read before it was written, not while an asynchronous
 *   copy
 *     is on its way, and ordered by a barrier with what other threads did there;
 *   - global memory within a launch: as shared memory in a block, between blocks ordered by atomic
 *     operations, with a fence before the one and behind the other.
 * A kernel that was started early has the results of the work before it only once it has waited for
 * them: each of its threads must, before it touches global memory.
 * Blocks, warps and lanes come in another order with every launch.
 *
 * A fault is final for its launch.  It is printed, and the process aborts, unless faults are kept
 * (hzp_emu_keep_faults): then the runtime reports a failed launch.
 *
 * Thread: one.  C17 and C++17.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hzp_emu_dim {
    unsigned x, y, z;
};

enum hzp_emu_fault {
    HZP_EMU_NONE,
    HZP_EMU_BOUNDS,     /* outside of what is allocated or allowed */
    HZP_EMU_MISALIGNED, /* an access of n bytes not at a multiple of n */
    HZP_EMU_UNWRITTEN,  /* shared memory read before it was written */
    HZP_EMU_RACE,       /* two threads access shared memory, one writes, no barrier between */
    HZP_EMU_BARRIER,    /* some threads at a barrier, others at another one or ended */
    HZP_EMU_WARP,       /* lanes of the mask do not all execute the same instruction */
    HZP_EMU_COPY,       /* asynchronous copies: data touched before the wait, or never waited for;
                         * a number of bytes that is not the expected one */
    HZP_EMU_EARLY,      /* a kernel started early: global memory before the wait, or no wait */
    HZP_EMU_LAUNCH,     /* a grid, block or amount of shared memory that no device supports */
};

/* ---- for tests ---- */

/* Keeps faults for hzp_emu_fault_take instead of aborting. */
void hzp_emu_keep_faults(bool keep);
/* Returns the fault since the last call, and its text in *ret_text (valid until the next fault). */
enum hzp_emu_fault hzp_emu_fault_take(const char **ret_text);

/* From here on, kernels may touch only the allowed parts of [ptr, ptr + size); after unwatch,
 * all of it again.  The range lies in one allocation. */
void hzp_emu_watch(const void *ptr, size_t size);
void hzp_emu_allow(const void *ptr, size_t size, bool write);
void hzp_emu_unwatch(const void *ptr, size_t size);

/* The number of launches so far, and of different kernels among them. */
void hzp_emu_counts(uint64_t *ret_launches, int *ret_kernels);
/* Returns the most accesses that one block has made to the counted range since the last call, and
 * from here on counts those to [ptr, ptr + size). */
uint64_t hzp_emu_busiest(const void *ptr, size_t size);

/* ---- memory (memory.c) ---- */

void *
hzp_emu_alloc(size_t size);   /* aligned to 4096, filled with bits that are NaN; NULL: no room */
bool hzp_emu_free(void *ptr); /* false: it was not allocated */
/* Whether the host may copy there; false for emulated memory outside of an allocation. */
bool hzp_emu_range(const void *ptr, size_t size);

/* ---- launching (block.c) ---- */

/* A launch: body(closure) is run for every thread of every block. */
struct hzp_emu_launch {
    struct hzp_emu_dim grid, block;
    size_t shared; /* dynamic */
    const void *kernel;
    void (*body)(const void *closure);
    const void *closure; /* with the arguments: kernels may read it */
    size_t closure_size;
    bool early; /* it may begin before the work in front of it has ended */
};
/* Returns false if the launch ended with a fault. */
bool hzp_emu_run(const struct hzp_emu_launch *launch);
/* Sets the most dynamic shared memory a kernel may use from now on; returns false if a block
   cannot have that much. */
bool hzp_emu_set_shared(const void *kernel, size_t bytes);
enum { HZP_EMU_SHARED_MAX = 232448, HZP_EMU_SHARED_DEFAULT = 49152 };

/* ---- what kernels call ---- */

/* The coordinate of the current thread.  Declared const, because it never changes while a kernel
   runs in a fiber. */
__attribute__((const)) unsigned hzp_emu_index(int which);
enum {
    HZP_EMU_THREAD_X,
    HZP_EMU_THREAD_Y,
    HZP_EMU_THREAD_Z,
    HZP_EMU_BLOCK_X,
    HZP_EMU_BLOCK_Y,
    HZP_EMU_BLOCK_Z,
    HZP_EMU_DIM_X,
    HZP_EMU_DIM_Y,
    HZP_EMU_DIM_Z,
    HZP_EMU_GRID_X,
    HZP_EMU_GRID_Y,
    HZP_EMU_GRID_Z
};

/* The block's variable with this tag; the launch lays out the dynamic one. */
void *hzp_emu_shared(const void *tag, const char *name, size_t size);
void *hzp_emu_shared_dynamic(const char *name);
uint32_t hzp_emu_shared_at(const void *ptr); /* the address that instructions use */

/* Barriers with a vote over all threads of the block. */
struct hzp_emu_votes {
    int count; /* of predicates that were true */
    bool all;
};
struct hzp_emu_votes hzp_emu_barrier(bool predicate, const char *file, int line);

/* Instructions of the lanes of a warp that the mask names. */
enum hzp_emu_shuffle { HZP_EMU_IDX, HZP_EMU_XOR, HZP_EMU_UP, HZP_EMU_DOWN };
uint64_t hzp_emu_shuffle(uint32_t mask, enum hzp_emu_shuffle how, uint64_t value, int arg,
                         int width);
uint32_t hzp_emu_ballot(uint32_t mask, bool predicate);
enum hzp_emu_reduce { HZP_EMU_ADD, HZP_EMU_MIN, HZP_EMU_MAX, HZP_EMU_AND, HZP_EMU_OR, HZP_EMU_EOR };
int64_t hzp_emu_reduce(uint32_t mask, enum hzp_emu_reduce how, int64_t value);
void hzp_emu_syncwarp(uint32_t mask);
void hzp_emu_fence(void);
void hzp_emu_wait_for_earlier(void); /* what a kernel does that was started early */
/* d += a b by m16n8k16, bf16, fragments as the PTX ISA says; the warp's lanes together. */
void hzp_emu_mma(float *d, const uint32_t *a, const uint32_t *b);
void hzp_emu_mma_half(float *d, const uint32_t *a, const uint32_t *b); /* of F16 */
bool hzp_emu_has_e4m3(void); /* not as sm_80, HZP_EMU_SM80=1 */
void hzp_emu_half_of_e4m3(uint32_t four, uint32_t *lo, uint32_t *hi);
uint16_t hzp_emu_half(float x); /* to F16, to nearest */
/* ldmatrix.x4, transposed or not. */
void hzp_emu_load_matrices(uint32_t *ret, uint32_t at, bool transposed);

/* cp.async of 16 bytes, or of zeros; the groups it is counted in. */
void hzp_emu_copy(uint32_t to, const void *from, bool there);
void hzp_emu_copy_commit(void);
void hzp_emu_copy_wait(int pending);

/* movmatrix.m8n8.trans; the warp's lanes together. */
uint32_t hzp_emu_transpose(uint32_t x);

/* Bulk copies and mbarriers (bulk.c): data arrives when a thread waits for a phase that has ended,
 * not before.  Bytes are expected before their copies are issued.  row: of rows of row_bytes from
 * base on, of which there are `rows`; those beyond are zeros. */
void hzp_emu_barrier_make(uint32_t at, int count);
void hzp_emu_bulk_fence(void);
void hzp_emu_barrier_expect(uint32_t at, int bytes);
void hzp_emu_barrier_wait(uint32_t at, uint32_t parity);
void hzp_emu_copy_rows(uint32_t to, uint32_t barrier, const void *base, int64_t rows, int row_bytes,
                       int row);
void hzp_emu_copy_bytes(uint32_t to, uint32_t barrier, const void *from, int bytes);

/* Checks an access that no instrumented load or store makes. */
void hzp_emu_touch(const void *ptr, size_t size, bool write);
/* Copies one vector: one access at each end, at multiples of its size. */
void hzp_emu_move(void *to, const void *from, size_t size);
/* Replacements of a kernel's memcpy, memmove and memset. */
void *hzp_emu_memcpy(void *to, const void *from, size_t size);
void *hzp_emu_memmove(void *to, const void *from, size_t size);
void *hzp_emu_memset(void *to, int byte, size_t size);
/* Atomic operations return the old value. */
enum hzp_emu_atomic {
    HZP_EMU_A_ADD,
    HZP_EMU_A_OR,
    HZP_EMU_A_AND,
    HZP_EMU_A_MIN,
    HZP_EMU_A_MAX,
    HZP_EMU_A_EXCH,
    HZP_EMU_A_CAS
};
uint32_t hzp_emu_atomic32(void *ptr, enum hzp_emu_atomic how, uint32_t value, uint32_t compare,
                          bool is_signed);
uint64_t hzp_emu_atomic64(void *ptr, enum hzp_emu_atomic how, uint64_t value, uint64_t compare,
                          bool is_signed);
float hzp_emu_atomic_float(float *ptr, float value);

#ifdef __cplusplus
}
#endif
