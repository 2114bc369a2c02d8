/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/machine.cuh for the block emulator: takes the place of the real one when kernels are
 * compiled as C++.  Same names, same meaning; the instructions by their definition in the PTX ISA.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "device/cuda/cuda.h"
#include "device/fp8.h"

#define HZP_SHARED(type, name, ...)                                                                \
    using name##_is = type __VA_ARGS__;                                                            \
    static char name##_tag;                                                                        \
    name##_is &name =                                                                              \
        *static_cast<name##_is *>(hzp_emu_shared(&name##_tag, #name, sizeof(name##_is)))

#define HZP_SHARED_DYNAMIC(type, name)                                                             \
    type *name = static_cast<type *>(hzp_emu_shared_dynamic(#name))

template <class... P> struct hzp_emu_closure {
    void (*kernel)(P...);
    std::tuple<P...> args;
};

template <class... P> static void hzp_emu_body(const void *closure)
{
    const auto *c = static_cast<const hzp_emu_closure<P...> *>(closure);
    std::apply(c->kernel, c->args);
}

template <class... P, class... A>
static inline void hzp_emu_launch_as(bool early, struct hzp_lane *lane, dim3 grid, dim3 block,
                                     size_t shared, void (*kernel)(P...), const A &...args)
{
    hzp_emu_closure<P...> closure = {kernel, std::tuple<P...>(static_cast<P>(args)...)};
    struct hzp_emu_launch launch = {{grid.x, grid.y, grid.z},
                                    {block.x, block.y, block.z},
                                    shared,
                                    (const void *)kernel,
                                    hzp_emu_body<P...>,
                                    &closure,
                                    sizeof(closure),
                                    early};
    hzp_emu_start(&launch, lane ? hzp_cuda_lane(lane)->stream : nullptr);
}

template <class... P, class... A>
static inline void start(struct hzp_lane *lane, dim3 grid, dim3 block, size_t shared,
                         void (*kernel)(P...), const A &...args)
{
    hzp_emu_launch_as(false, lane, grid, block, shared, kernel, args...);
}

template <class... P, class... A>
static inline void start_early(struct hzp_lane *lane, dim3 grid, dim3 block, size_t shared,
                               void (*kernel)(P...), const A &...args)
{
    hzp_emu_launch_as(true, lane, grid, block, shared, kernel, args...);
}

static inline void wait_for_earlier(void)
{
    hzp_emu_wait_for_earlier();
}

static inline void let_next_begin(void)
{
}

static inline void fetch_ahead(const void *)
{
}

static inline uint32_t shared_at(const void *p)
{
    return hzp_emu_shared_at(p);
}

static inline void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                       uint32_t b0, uint32_t b1)
{
    uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    hzp_emu_mma(d, a, b);
}

static inline void mma_half(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                            uint32_t b0, uint32_t b1)
{
    uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    hzp_emu_mma_half(d, a, b);
}

static inline uint32_t e4m3_pair(float lo, float hi)
{
    return hzp_e4m3_from_f32(lo) | (uint32_t)hzp_e4m3_from_f32(hi) << 8;
}

static inline bool has_e4m3(void)
{
    return hzp_emu_has_e4m3();
}

static inline void half_of_e4m3(uint32_t four, uint32_t &lo, uint32_t &hi)
{
    hzp_emu_half_of_e4m3(four, &lo, &hi);
}

static inline uint32_t half_pair(float lo, float hi)
{
    return hzp_emu_half(lo) | (uint32_t)hzp_emu_half(hi) << 16;
}

/* A NaN's code counts as 480, as the device's arithmetic makes it. */
static inline void bf16_of_e4m3(uint32_t four, uint32_t &lo, uint32_t &hi)
{
    uint32_t word[4];
    for (int i = 0; i < 4; i++) {
        float x = hzp_e4m3_to_f32((uint8_t)(four >> (8 * i)));
        word[i] = hzp_f32_bits(isnan(x) ? copysignf(480, x) : x) >> 16;
    }
    lo = word[0] | word[1] << 16;
    hi = word[2] | word[3] << 16;
}

static inline void bf16_of_e4m3_turns(uint32_t four, uint32_t &even, uint32_t &odd)
{
    bf16_of_e4m3(__byte_perm(four, 0, 0x3120), even, odd);
}

static inline uint4 load_once(const void *p)
{
    return *(const uint4 *)p;
}

static inline void load_matrices(uint32_t (&r)[4], uint32_t at)
{
    hzp_emu_load_matrices(r, at, false);
}

static inline void load_transposed(uint32_t (&r)[4], uint32_t at)
{
    hzp_emu_load_matrices(r, at, true);
}

static inline void copy_async(uint32_t to, const void *from, bool there)
{
    hzp_emu_copy(to, from, there);
}

static inline void copy_commit(void)
{
    hzp_emu_copy_commit();
}

template <int N> static inline void copy_wait(void)
{
    hzp_emu_copy_wait(N);
}

static inline uint32_t transpose(uint32_t x)
{
    return hzp_emu_transpose(x);
}

struct row_map {
    const void *base;
    int64_t rows;
    int row_bytes;
};
enum { BOX_ROWS = 16 };

static inline bool row_map_make(struct row_map *ret, const void *base, int64_t rows, int row_bytes)
{
    *ret = {base, rows, row_bytes};
    return true;
}

static inline bool has_bulk(void)
{
    return true;
}

static inline void barrier_make(uint32_t barrier, int count)
{
    hzp_emu_barrier_make(barrier, count);
}

static inline void bulk_fence(void)
{
    hzp_emu_bulk_fence();
}

static inline void barrier_expect(uint32_t barrier, int bytes)
{
    hzp_emu_barrier_expect(barrier, bytes);
}

static inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
    hzp_emu_barrier_wait(barrier, parity);
}

static inline void copy_rows(uint32_t to, uint32_t barrier, const struct row_map *map, int row)
{
    hzp_emu_copy_rows(to, barrier, map->base, map->rows, map->row_bytes, row);
}

static inline void copy_bytes(uint32_t to, uint32_t barrier, const void *from, int bytes)
{
    hzp_emu_copy_bytes(to, barrier, from, bytes);
}

/* ex2.approx.ftz: denormals count as 0 on the way in and out. */
static inline float exp_2(float x)
{
    float y = exp2f(fabsf(x) < 0x1p-126f ? 0 : x);
    return y < 0x1p-126f ? 0 : y;
}
