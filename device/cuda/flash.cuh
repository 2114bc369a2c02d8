/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/flash.cuh - loads tiles for attention over many rows.
 *
 * A tile is 64 rows of D elements in shared memory; rows past the end of a segment are zeros in the
 * tile and are never read from memory.
 */
#pragma once

#include "device/cuda/tensor.cuh"

enum { FLASH_TILE = 64, FLASH_THREADS = 128 };

/* Keys and values in pages; E: their type, uint8_t for E4M3, which have scales. */
template <class E> struct page_rows {
    static const bool CODES = sizeof(E) == 1;
    const E *key, *value;
    const float *key_scale, *value_scale;
    const int32_t *page;
    int per_page, kv_heads, kv_head, dim;
    __device__ __forceinline__ int64_t at(int p) const
    {
        int i = p / per_page;
        return ((int64_t)page[i] * kv_heads + kv_head) * per_page + p - i * per_page;
    }
    __device__ __forceinline__ const E *k(int p) const
    {
        return key + at(p) * dim;
    }
    __device__ __forceinline__ const E *v(int p) const
    {
        return value + at(p) * dim;
    }
    __device__ __forceinline__ float k_scale(int p) const
    {
        return CODES ? key_scale[at(p)] : 1;
    }
    __device__ __forceinline__ float v_scale(int p) const
    {
        return CODES ? value_scale[at(p)] : 1;
    }
};

/* The pages of a query head's sequence and kv head; A: arguments with pages. */
template <class E, class A>
static __device__ __forceinline__ page_rows<E> pages_for(const A &a, int seg, int head, int dim)
{
    return page_rows<E>{(const E *)a.kv.k,
                        (const E *)a.kv.v,
                        a.kv.k_scale,
                        a.kv.v_scale,
                        pages_of(a, seg),
                        a.kv.page_rows,
                        a.heads.kv_heads,
                        head / (a.heads.heads / a.heads.kv_heads),
                        dim};
}

/* Keys and values in the same rows as the queries. */
template <class E> struct packed_rows {
    static const bool CODES = false;
    const E *key, *value;
    int64_t stride;
    __device__ __forceinline__ const E *k(int p) const
    {
        return key + p * stride;
    }
    __device__ __forceinline__ const E *v(int p) const
    {
        return value + p * stride;
    }
    __device__ __forceinline__ float k_scale(int) const
    {
        return 1;
    }
    __device__ __forceinline__ float v_scale(int) const
    {
        return 1;
    }
};

/* Those of a query head, positions from row `row0` on. */
template <class E>
static __device__ __forceinline__ packed_rows<E>
rows_for(const struct hzp_mat &qkv, const struct hzp_heads &heads, int row0, int head, int dim)
{
    const E *k = row_of<E>(qkv, row0) + (heads.heads + head / (heads.heads / heads.kv_heads)) * dim;
    return packed_rows<E>{k, k + heads.kv_heads * dim, qkv.stride};
}

/* Copies ROWS rows row_at(0), row_at(1) ... into a tile, rows of codes one behind the other; those
 * from `there` on are zeros. */
template <int D, int ROWS, class F>
static __device__ __forceinline__ void tile_fetch(uint32_t tile, int there, F row_at)
{
    constexpr int SIZE = sizeof(*row_at(0)), COLS = D * SIZE / 16;
    static_assert(ROWS * COLS % FLASH_THREADS == 0, "whole rounds");
#pragma unroll
    for (int i = 0; i < ROWS * COLS / FLASH_THREADS; i++) {
        int at = i * FLASH_THREADS + threadIdx.x, r = at / COLS, c = at % COLS;
        bool is = r < there;
        copy_async(tile + (SIZE == 1 ? at * 16 : tile_at<D>(r, c)),
                   row_at(is ? r : 0) + c * (16 / SIZE), is);
    }
}

/* Makes a tile of rows of codes. */
template <int D, int ROWS>
static __device__ __forceinline__ void tile_widen(uint16_t *tile, const uint8_t *codes)
{
    constexpr int COLS = D / 8;
#pragma unroll
    for (int i = 0; i < ROWS * COLS / FLASH_THREADS; i++) {
        int at = i * FLASH_THREADS + threadIdx.x, r = at / COLS, c = at % COLS;
        uint2 x = *reinterpret_cast<const uint2 *>(codes + at * 8);
        uint4 v;
        bf16_of_e4m3(x.x, v.x, v.y);
        bf16_of_e4m3(x.y, v.z, v.w);
        *reinterpret_cast<uint4 *>(tile + tile_at<D>(r, c) / 2) = v;
    }
}

/* sum += c (16 by 8 N, rounded to bf16) times rows row0 .. row0+8N-1 of the tile. */
template <int D, int N>
static __device__ __forceinline__ void product_cols(float (&sum)[D / 8][4], const float (&c)[N][4],
                                                    uint32_t tile, int row0)
{
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        uint32_t a0 = pack(c[2 * k][0], c[2 * k][1]), a1 = pack(c[2 * k][2], c[2 * k][3]);
        uint32_t a2 = pack(c[2 * k + 1][0], c[2 * k + 1][1]);
        uint32_t a3 = pack(c[2 * k + 1][2], c[2 * k + 1][3]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t y[4];
            load_b_cols<D>(y, tile, row0 + 16 * k, n);
            mma(sum[2 * n], a0, a1, a2, a3, y[0], y[1]);
            mma(sum[2 * n + 1], a0, a1, a2, a3, y[2], y[3]);
        }
    }
}

/* Whether the fast kernels can handle a matrix: 16-byte columns and heads of a supported width. */
static inline bool flash_fits(const struct hzp_mat *m, int dim)
{
    return m->type == HZP_BF16 && (dim == 64 || dim == 128) && (uintptr_t)m->ptr % 16 == 0 &&
           m->stride % 8 == 0;
}

/* Allows a kernel `bytes` of dynamic shared memory. */
template <class K> static int flash_room(struct hzp_lane *lane, K kernel, size_t bytes)
{
    return hzp_cuda_check(
        hzp_cuda_device(lane),
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "attention");
}
