/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/tensor.cuh - the tensor cores' instructions and asynchronous copies, wrapped, and tiles
 * of 16-byte columns in shared memory that both touch without bank conflicts.
 *
 * Fragments of mma.m16n8k16, lane l, g = l / 4, q = l % 4 (PTX ISA, "Matrix Fragments for
 * mma.m16n8k16"): a[0..3] hold rows g, g+8, g, g+8 and columns 2q, 2q, 2q+8, 2q+8 (and the next);
 * b0, b1 rows 2q, 2q+8 (and the next) of column g; d[0..3] rows g, g, g+8, g+8, columns 2q, 2q+1.
 */
#ifndef HZP_DEVICE_CUDA_TENSOR_CUH
#define HZP_DEVICE_CUDA_TENSOR_CUH

#include "device/cuda/kernel.cuh"

static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Four 8x8 matrices; lanes 8i .. 8i+7 give the addresses of the rows of the i-th. */
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

/* 16 bytes from global to shared memory, or zeros where !there. */
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

/* Waits until at most N groups are still on their way. */
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

/* Over the four lanes that share a row of d. */
static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

static __device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* A tile of rows of D elements: the byte at which 16-byte column c of row r lies. */
template <int D> static __device__ __forceinline__ uint32_t tile_at(int r, int c)
{
    return (uint32_t)(r * D * 2 + ((c ^ (r & 7)) << 4));
}

/* a of rows row0 .. row0+15 and elements 16k .. 16k+15. */
template <int D>
static __device__ __forceinline__ void load_a(uint32_t (&r)[4], uint32_t tile, int row0, int k)
{
    int lane = threadIdx.x % 32;
    load_matrices(r, tile + tile_at<D>(row0 + lane % 16, 2 * k + lane / 16));
}

/* b0, b1 of two neighbouring column blocks, where the tile's rows are the product's columns: rows
 * row0 .. row0+15 of the tile, elements 16k .. 16k+15. */
template <int D>
static __device__ __forceinline__ void load_b_rows(uint32_t (&r)[4], uint32_t tile, int row0, int k)
{
    int lane = threadIdx.x % 32;
    load_matrices(r, tile + tile_at<D>(row0 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
}

/* b0, b1 of two neighbouring column blocks, where the tile's rows are what is summed over: rows row0
 * .. row0+15 of the tile, elements 16n .. 16n+15. */
template <int D>
static __device__ __forceinline__ void load_b_cols(uint32_t (&r)[4], uint32_t tile, int row0, int n)
{
    int lane = threadIdx.x % 32;
    load_transposed(r, tile + tile_at<D>(row0 + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
}

#endif
