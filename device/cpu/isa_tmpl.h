/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/isa_tmpl.h - what all kernels that are compiled once per instruction set share.
 *
 * Only *_tmpl.c files include it: they are compiled with -DHZP_ISA=... and export HZP_ISA_NAME(x)
 * for a name x.
 *
 * Thread: any.
 */
#pragma once

#include "device/bf16.h"
#include "device/cpu/cpu.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define HZP_PASTE_(a, b)   a##_##b
#define HZP_PASTE(a, b)    HZP_PASTE_(a, b)
#define HZP_ISA_NAME(name) HZP_PASTE(name, HZP_ISA)
#define INLINE             static inline __attribute__((always_inline))

/* Put it before a loop with a small constant number of iterations: unrolls it completely, so that
 * arrays of vectors stay in registers.  Neither compiler does that by itself everywhere it
 * matters. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Prefetches a line that will be written: another core may have it.  (x86-64 CPUs without the
 * instruction treat it as a no-op; the compiler's own form needs an option for it.) */
INLINE void fetch_to_write(const void *p)
{
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1, 3);
#endif
}
/* Prefetches a line into the first-level cache. */
INLINE void fetch_near(const void *p)
{
    __builtin_prefetch(p, 0, 3);
}

/* Prefetches it into the second. */
INLINE void fetch_far(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}
