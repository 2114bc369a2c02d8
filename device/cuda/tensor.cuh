/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/tensor.cuh - tiles of 16-byte columns in shared memory that tensor cores and
 * asynchronous copies access without bank conflicts.
 *
 * Fragments of mma.m16n8k16, lane l, g = l / 4, q = l % 4 (PTX ISA, "Matrix Fragments for
 * mma.m16n8k16"): a[0..3] hold rows g, g+8, g, g+8 and columns 2q, 2q, 2q+8, 2q+8 (and the next);
 * b0, b1 rows 2q, 2q+8 (and the next) of column g; d[0..3] rows g, g, g+8, g+8, columns 2q, 2q+1.
 */
#pragma once

#include "device/cuda/kernel.cuh"

/* The sum over the four lanes that share a row of d. */
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

/* The byte offset of 16-byte column c of row r, in a tile of rows of D elements. */
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

/* b0, b1 of two neighbouring column blocks, if the tile's rows are the product's columns: rows row0
 * .. row0+15 of the tile, elements 16k .. 16k+15. */
template <int D>
static __device__ __forceinline__ void load_b_rows(uint32_t (&r)[4], uint32_t tile, int row0, int k)
{
    int lane = threadIdx.x % 32;
    load_matrices(r, tile + tile_at<D>(row0 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
}

/* b0, b1 of two neighbouring column blocks, if the tile's rows are the summed dimension: rows row0
 * .. row0+15 of the tile, elements 16n .. 16n+15. */
template <int D>
static __device__ __forceinline__ void load_b_cols(uint32_t (&r)[4], uint32_t tile, int row0, int n)
{
    int lane = threadIdx.x % 32;
    load_transposed(r, tile + tile_at<D>(row0 + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
}
