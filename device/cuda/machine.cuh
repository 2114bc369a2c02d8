/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/machine.cuh - everything that C++ cannot express: launching a kernel, shared memory,
 * and the instructions for which CUDA has no function, each behind an inline function.
 *
 * The tests compile the kernels as plain C++ with a header of the same name in the place of this
 * one (tests/emu/include), so nothing else in a .cu file may use <<<>>>, __shared__ or asm.
 */
#pragma once

#include <cuda.h>
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

/* The same, but the kernel may begin while the one before it on the stream still runs.  Each of its
 * threads calls wait_for_earlier() before it touches global memory.  Works while a graph is
 * captured; behind anything other than a kernel it is start. */
template <class... P, class... A>
static inline void start_early(struct hzp_lane *lane, dim3 grid, dim3 block, size_t shared,
                               void (*kernel)(P...), const A &...args)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = hzp_cuda_lane(lane)->stream;
    config.attrs = &early;
    config.numAttrs = hzp_cuda_device(lane)->early ? 1 : 0;
    cudaLaunchKernelEx(&config, kernel, args...);
}

/* Waits until the kernels before this one on its stream have ended and their stores are seen. */
static __device__ __forceinline__ void wait_for_earlier(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/* Once each block has called it, a kernel behind this one that was started early may begin. */
static __device__ __forceinline__ void let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

/* Has 128 bytes of global memory fetched into the second-level cache.  Reads nothing: allowed
 * before wait_for_earlier. */
static __device__ __forceinline__ void fetch_ahead(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(__cvta_generic_to_global(p)));
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

/* Two floats to F16, to nearest; the second is the higher half. */
static __device__ __forceinline__ uint32_t half_pair(float lo, float hi)
{
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(both) : "f"(hi), "f"(lo));
    return both;
}

/* Four e4m3 to two pairs of BF16, exactly; a NaN becomes 480 of its sign.  With its bits below the
 * sign at those of a bf16, a code is 2^-120 of its value, subnormal ones too. */
static __device__ __forceinline__ void bf16_of_e4m3(uint32_t four, uint32_t &lo, uint32_t &hi)
{
    lo = __byte_perm(four, 0, 0x1404);
    hi = __byte_perm(four, 0, 0x3424);
    lo = (lo & 0x80008000u) | (lo >> 4 & 0x07f007f0u);
    hi = (hi & 0x80008000u) | (hi >> 4 & 0x07f007f0u);
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(lo) : "r"(lo), "r"(0x7b807b80u), "r"(0x80008000u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(hi) : "r"(hi), "r"(0x7b807b80u), "r"(0x80008000u));
}

/* The same: the even ones, the odd ones.  An instruction less for each pair, by bytes of signs
 * (8 + i of prmt); the kernels that use the other one need more registers with it. */
static __device__ __forceinline__ void bf16_of_e4m3_turns(uint32_t four, uint32_t &even,
                                                          uint32_t &odd)
{
    asm("prmt.b32 %0, %1, %1, 0xa280;\n" : "=r"(even) : "r"(four));
    asm("prmt.b32 %0, %1, %1, 0xb391;\n" : "=r"(odd) : "r"(four));
    even = even << 4 & 0x87f087f0u;
    odd = odd << 4 & 0x87f087f0u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n"
        : "=r"(even)
        : "r"(even), "r"(0x7b807b80u), "r"(0x80008000u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n"
        : "=r"(odd)
        : "r"(odd), "r"(0x7b807b80u), "r"(0x80008000u));
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

/* The transpose of an 8x8 matrix, of which each lane holds two neighbours. */
static __device__ __forceinline__ uint32_t transpose(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
    return y;
}

/* ---- bulk copies and the barriers that their bytes arrive at: from sm_90 on ---- */

/* Rows of 64, 128 or 256 bytes, one after the other in global memory, as the tensor copy engine
 * takes them: an argument of a kernel, declared __grid_constant__. */
struct row_map {
    CUtensorMap map;
};
enum { BOX_ROWS = 16 }; /* one copy's */

/* base is aligned to 16 bytes.  False: the driver cannot. */
static inline bool row_map_make(struct row_map *ret, const void *base, int64_t rows, int row_bytes)
{
    static decltype(&cuTensorMapEncodeTiled) encode;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (!encode &&
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess)
        cudaGetLastError();
    if (!encode)
        return false;
    const cuuint32_t wide = (cuuint32_t)(row_bytes < 128 ? row_bytes : 128);
    const cuuint64_t size[3] = {wide, (cuuint64_t)rows, (cuuint64_t)row_bytes / wide};
    const cuuint64_t apart[2] = {(cuuint64_t)row_bytes, wide};
    const cuuint32_t box[3] = {wide, BOX_ROWS, (cuuint32_t)row_bytes / wide}, ones[3] = {1, 1, 1};
    return encode(&ret->map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)base, size, apart, box, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  wide == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static __device__ __forceinline__ bool has_bulk(void)
{
#if __CUDA_ARCH__ >= 900
    return true;
#else
    return false;
#endif
}

/* A barrier, 8 bytes: a phase ends when `count` arrivals have come and all expected bytes. */
static __device__ __forceinline__ void barrier_make(uint32_t barrier, int count)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(count) : "memory");
#endif
}

/* Shows barriers and stores that this thread made in shared memory to the copies that follow. */
static __device__ __forceinline__ void bulk_fence(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;\n" ::
                     : "memory");
#endif
}

/* Arrives, and expects that many bytes more in this phase: before their copies are issued. */
static __device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
#endif
}

/* Waits until the phase of this parity has ended; phases count from 0. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni out;\n"
                 "bra.uni again;\n"
                 "out:\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}

/* Copies BOX_ROWS rows from `row` on.  In shared memory their first 128 bytes come first, then the
 * others; of 128 (64) bytes of row r, the 16 at column c lie at column c ^ r % 8 (c ^ r / 2 % 4).
 * `to` is aligned to 1024 bytes. */
static __device__ __forceinline__ void copy_rows(uint32_t to, uint32_t barrier,
                                                 const struct row_map *map, int row)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %2}], [%4];\n" ::"r"(to),
                 "l"(map), "r"(0), "r"(row), "r"(barrier)
                 : "memory");
#endif
}

/* Copies `bytes`; addresses and number are multiples of 16. */
static __device__ __forceinline__ void copy_bytes(uint32_t to, uint32_t barrier, const void *from,
                                                  int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];\n" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
#endif
}

static __device__ __forceinline__ float exp_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}
