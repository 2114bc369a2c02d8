/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/machine.cuh - everything that C++ cannot express: launching a kernel, shared memory,
 * and the instructions for which CUDA has no function, each behind an inline function.
 *
 * The tests compile the kernels as plain C++ with a header of the same name in the place of this
 * one (tests/emu/include), so nothing else in a .cu file may use <<<>>>, __shared__ or asm.
 */
#ifndef HZP_DEVICE_CUDA_MACHINE_CUH
#define HZP_DEVICE_CUDA_MACHINE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "device/cuda/cuda.h"
#include "device/fp8.h"

/* HZP_SHARED(float, sums, [8][32]): a shared variable of the block, initially undefined. */
#define HZP_SHARED(type, name, ...) __shared__ type name __VA_ARGS__

/* The shared memory whose size is given at launch; one declaration per kernel. */
#define HZP_SHARED_DYNAMIC(type, name) extern __shared__ __align__(128) type name[]

/* Queues a kernel on the lane's stream; hzp_cuda_launched reports errors afterwards. */
template <class... P, class... A>
static inline void start(struct hzp_lane *lane, dim3 grid, dim3 block, size_t shared,
                         void (*kernel)(P...), const A &...args)
{
    kernel<<<grid, block, shared, hzp_cuda_lane(lane)->stream>>>(args...);
}

/* The address of shared memory as instructions use it. */
static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* d += a b, fragments as in tensor.cuh. */
static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same for F16. */
static __device__ __forceinline__ void mma_half(float (&d)[4], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Two floats to e4m3 as device/fp8.h says; the second is the higher byte. */
static __device__ __forceinline__ uint32_t e4m3_pair(float lo, float hi)
{
#if __CUDA_ARCH__ >= 890
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(both) : "f"(hi), "f"(lo));
    return both;
#else
    return hzp_e4m3_from_f32(lo) | (uint32_t)hzp_e4m3_from_f32(hi) << 8;
#endif
}

/* Whether there is an instruction from e4m3 to F16; it converts four elements to two pairs. */
static __device__ __forceinline__ bool has_e4m3(void)
{
#if __CUDA_ARCH__ >= 890
    return true;
#else
    return false;
#endif
}

static __device__ __forceinline__ void half_of_e4m3(uint32_t four, uint32_t &lo, uint32_t &hi)
{
#if __CUDA_ARCH__ >= 890
    asm("{\n"
        ".reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n"
        "}\n"
        : "=r"(lo), "=r"(hi)
        : "r"(four));
#endif
}

/* Four e4m3 (no NaN) to two pairs of BF16, exactly.  With its bits below the sign at those of a
 * bf16, a code is 2^-120 of its value, subnormal ones too. */
static __device__ __forceinline__ void bf16_of_e4m3(uint32_t four, uint32_t &lo, uint32_t &hi)
{
    lo = __byte_perm(four, 0, 0x1404);
    hi = __byte_perm(four, 0, 0x3424);
    lo = (lo & 0x80008000u) | (lo >> 4 & 0x07f007f0u);
    hi = (hi & 0x80008000u) | (hi >> 4 & 0x07f007f0u);
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(lo) : "r"(lo), "r"(0x7b807b80u), "r"(0x80008000u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(hi) : "r"(hi), "r"(0x7b807b80u), "r"(0x80008000u));
}

/* 16 bytes that are read once; the compiler must not delay the load. */
static __device__ __forceinline__ uint4 load_once(const void *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

/* Four 8x8 matrices; lanes 8i .. 8i+7 give the addresses of the rows of the i-th matrix. */
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Copies 16 bytes from global to shared memory, or zeros if !there. */
static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool there)
{
    int size = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(size)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits until at most N groups of copies are still in progress. */
template <int N> static __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

static __device__ __forceinline__ float exp_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

#endif
