/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_runtime.h of the block emulator: what CUDA adds to C++, as C++.
 *
 * Vectors have copies of their own, so that a 16-byte access can be told from four of 4 bytes: the
 * compiler takes a plain struct apart.  threadIdx and its like are empty objects whose members ask
 * the emulator.
 *
 * Thread: one.  C++17.
 */
#pragma once

#include <math.h>
#include <string.h>

#include <tuple>
#include <type_traits>

#include <cuda_runtime_api.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __restrict__ __restrict

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};

/* ---- vectors ---- */

#define HZP_EMU_VECTOR2(name, elem)                                                                \
    struct alignas(2 * sizeof(elem)) name {                                                        \
        elem x, y;                                                                                 \
        name() = default;                                                                          \
        name(elem x, elem y) : x(x), y(y)                                                          \
        {                                                                                          \
        }                                                                                          \
        name(const name &o)                                                                        \
        {                                                                                          \
            *this = o;                                                                             \
        }                                                                                          \
        name &operator=(const name &o)                                                             \
        {                                                                                          \
            hzp_emu_move(this, &o, sizeof(o));                                                     \
            return *this;                                                                          \
        }                                                                                          \
    };                                                                                             \
    static inline name make_##name(elem x, elem y)                                                 \
    {                                                                                              \
        return name(x, y);                                                                         \
    }

#define HZP_EMU_VECTOR4(name, elem)                                                                \
    struct alignas(4 * sizeof(elem)) name {                                                        \
        elem x, y, z, w;                                                                           \
        name() = default;                                                                          \
        name(elem x, elem y, elem z, elem w) : x(x), y(y), z(z), w(w)                              \
        {                                                                                          \
        }                                                                                          \
        name(const name &o)                                                                        \
        {                                                                                          \
            *this = o;                                                                             \
        }                                                                                          \
        name &operator=(const name &o)                                                             \
        {                                                                                          \
            hzp_emu_move(this, &o, sizeof(o));                                                     \
            return *this;                                                                          \
        }                                                                                          \
    };                                                                                             \
    static inline name make_##name(elem x, elem y, elem z, elem w)                                 \
    {                                                                                              \
        return name(x, y, z, w);                                                                   \
    }

HZP_EMU_VECTOR2(float2, float)
HZP_EMU_VECTOR2(int2, int)
HZP_EMU_VECTOR2(uint2, unsigned)
HZP_EMU_VECTOR2(double2, double)
HZP_EMU_VECTOR4(float4, float)
HZP_EMU_VECTOR4(int4, int)
HZP_EMU_VECTOR4(uint4, unsigned)

/* ---- coordinates of a thread ---- */

template <int WHICH> struct hzp_emu_coordinate {
    operator unsigned() const
    {
        return hzp_emu_index(WHICH);
    }
};
template <int FIRST> struct hzp_emu_place {
    hzp_emu_coordinate<FIRST> x;
    hzp_emu_coordinate<FIRST + 1> y;
    hzp_emu_coordinate<FIRST + 2> z;
};
static const hzp_emu_place<HZP_EMU_THREAD_X> threadIdx = {};
static const hzp_emu_place<HZP_EMU_BLOCK_X> blockIdx = {};
static const hzp_emu_place<HZP_EMU_DIM_X> blockDim = {};
static const hzp_emu_place<HZP_EMU_GRID_X> gridDim = {};
enum { warpSize = 32 };

/* ---- barriers and fences ---- */

static inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    hzp_emu_barrier(false, file, line);
}

static inline int __syncthreads_or(int predicate, const char *file = __builtin_FILE(),
                                   int line = __builtin_LINE())
{
    return hzp_emu_barrier(predicate != 0, file, line).count > 0;
}

static inline int __syncthreads_and(int predicate, const char *file = __builtin_FILE(),
                                    int line = __builtin_LINE())
{
    return hzp_emu_barrier(predicate != 0, file, line).all;
}

static inline int __syncthreads_count(int predicate, const char *file = __builtin_FILE(),
                                      int line = __builtin_LINE())
{
    return hzp_emu_barrier(predicate != 0, file, line).count;
}

static inline void __syncwarp(unsigned mask = ~0u)
{
    hzp_emu_syncwarp(mask);
}

static inline void __threadfence_block(void)
{
}
static inline void __threadfence(void)
{
    hzp_emu_fence();
}
static inline void __threadfence_system(void)
{
    hzp_emu_fence();
}

/* ---- instructions of a warp ---- */

template <class T>
static inline T hzp_emu_shuffle_of(unsigned mask, enum hzp_emu_shuffle how, T value, int arg,
                                   int width)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what a register holds");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = hzp_emu_shuffle(mask, how, bits, arg, width);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    return hzp_emu_shuffle_of(mask, HZP_EMU_IDX, value, lane, width);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    return hzp_emu_shuffle_of(mask, HZP_EMU_XOR, value, lanes, width);
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    return hzp_emu_shuffle_of(mask, HZP_EMU_UP, value, (int)by, width);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    return hzp_emu_shuffle_of(mask, HZP_EMU_DOWN, value, (int)by, width);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    return hzp_emu_ballot(mask, predicate != 0);
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return hzp_emu_ballot(mask, predicate != 0) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return hzp_emu_ballot(mask, predicate != 0) == mask;
}

#define HZP_EMU_REDUCE(name, how, type)                                                            \
    static inline type name(unsigned mask, type value)                                             \
    {                                                                                              \
        return (type)hzp_emu_reduce(mask, how, (int64_t)value);                                    \
    }
HZP_EMU_REDUCE(__reduce_add_sync, HZP_EMU_ADD, int)
HZP_EMU_REDUCE(__reduce_add_sync, HZP_EMU_ADD, unsigned)
HZP_EMU_REDUCE(__reduce_min_sync, HZP_EMU_MIN, int)
HZP_EMU_REDUCE(__reduce_min_sync, HZP_EMU_MIN, unsigned)
HZP_EMU_REDUCE(__reduce_max_sync, HZP_EMU_MAX, int)
HZP_EMU_REDUCE(__reduce_max_sync, HZP_EMU_MAX, unsigned)
HZP_EMU_REDUCE(__reduce_and_sync, HZP_EMU_AND, unsigned)
HZP_EMU_REDUCE(__reduce_or_sync, HZP_EMU_OR, unsigned)
HZP_EMU_REDUCE(__reduce_xor_sync, HZP_EMU_EOR, unsigned)

/* ---- atomics ---- */

#define HZP_EMU_ATOMIC(name, how)                                                                  \
    static inline int name(int *p, int x)                                                          \
    {                                                                                              \
        return (int)hzp_emu_atomic32(p, how, (uint32_t)x, 0, true);                                \
    }                                                                                              \
    static inline unsigned name(unsigned *p, unsigned x)                                           \
    {                                                                                              \
        return hzp_emu_atomic32(p, how, x, 0, false);                                              \
    }                                                                                              \
    static inline unsigned long long name(unsigned long long *p, unsigned long long x)             \
    {                                                                                              \
        return hzp_emu_atomic64(p, how, x, 0, false);                                              \
    }
HZP_EMU_ATOMIC(atomicAdd, HZP_EMU_A_ADD)
HZP_EMU_ATOMIC(atomicOr, HZP_EMU_A_OR)
HZP_EMU_ATOMIC(atomicAnd, HZP_EMU_A_AND)
HZP_EMU_ATOMIC(atomicMin, HZP_EMU_A_MIN)
HZP_EMU_ATOMIC(atomicMax, HZP_EMU_A_MAX)
HZP_EMU_ATOMIC(atomicExch, HZP_EMU_A_EXCH)

static inline float atomicAdd(float *p, float x)
{
    return hzp_emu_atomic_float(p, x);
}

static inline unsigned atomicCAS(unsigned *p, unsigned compare, unsigned x)
{
    return hzp_emu_atomic32(p, HZP_EMU_A_CAS, x, compare, false);
}

static inline int atomicCAS(int *p, int compare, int x)
{
    return (int)hzp_emu_atomic32(p, HZP_EMU_A_CAS, (uint32_t)x, (uint32_t)compare, true);
}

/* ---- loads with hints, bits, numbers ---- */

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}

template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <class T> static inline void __stcs(T *p, T x)
{
    *p = x;
}

static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}

static inline float __int_as_float(int bits)
{
    return __uint_as_float((unsigned)bits);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}

static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}

static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned take)
{
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned ret = 0;
    for (int i = 0; i < 4; i++)
        ret |= (unsigned)(both >> (8 * (take >> (4 * i) & 7)) & 0xff) << (8 * i);
    return ret;
}

#define HZP_EMU_MIN_MAX(type)                                                                      \
    static inline type min(type a, type b)                                                         \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    static inline type max(type a, type b)                                                         \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }
HZP_EMU_MIN_MAX(int)
HZP_EMU_MIN_MAX(unsigned)
HZP_EMU_MIN_MAX(long)
HZP_EMU_MIN_MAX(long long)
HZP_EMU_MIN_MAX(unsigned long long)
HZP_EMU_MIN_MAX(float)
HZP_EMU_MIN_MAX(double)

/* the C library has hidden functions with these names */
#define __expf(x) expf(x)
#define __logf(x) logf(x)

static inline float __frcp_rn(float x)
{
    return 1 / x;
}

static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

/* ---- a kernel's attributes ---- */

template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), enum cudaFuncAttribute which,
                                               int value)
{
    return hzp_emu_func_set((const void *)kernel, which, value);
}

template <class... P>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *ret,
                                                void (*kernel)(P...))
{
    return hzp_emu_func_get(ret, (const void *)kernel);
}
