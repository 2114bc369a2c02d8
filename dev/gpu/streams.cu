/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

static __device__ __forceinline__ uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
}

static __global__ void fill(uint16_t *p, size_t n, float scale, uint32_t seed)
{
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint32_t h = mix((uint32_t)i * 2654435761U ^ mix((uint32_t)(i >> 32) + seed));
        uint32_t g = mix(h + 0x9e3779b9U);
        /* The sum of eight uniform bytes is close to normal, with variance 4 * 256^2 / 12 per
           word. */
        float s = (float)((h & 255) + ((h >> 8) & 255) + ((h >> 16) & 255) + (h >> 24)) +
                  (float)((g & 255) + ((g >> 8) & 255) + ((g >> 16) & 255) + (g >> 24)) - 1020.0f;
        __nv_bfloat16 b = __float2bfloat16(s * scale / 209.0f);
        p[i] = *reinterpret_cast<uint16_t *>(&b);
    }
}

static __global__ void __launch_bounds__(1024) read_all(const uint4 *p, size_t n, uint32_t *sink)
{
    uint32_t x = 0;
    size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __ldcs(p + i + j * stride);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += stride) {
        uint4 v = __ldcs(p + i);
        x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (x == 0x12345678U)
        *sink = x;
}

static __global__ void __launch_bounds__(1024) copy_all(uint4 *d, const uint4 *s, size_t n)
{
    size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = __ldcs(s + i + j * stride);
#pragma unroll
        for (int j = 0; j < 4; j++)
            __stcs(d + i + j * stride, v[j]);
    }
    for (; i < n; i += stride)
        d[i] = s[i];
}

static __device__ __forceinline__ float2 wide(uint32_t u)
{
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&u));
}

static __device__ __forceinline__ uint32_t narrow(float a, float b)
{
    __nv_bfloat162 p = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&p);
}

/* One block of 512 threads per row of 4096. */
static __global__ void norm(uint4 *y, uint4 *x, const uint4 *r)
{
    __shared__ float sums[16];
    size_t at = (size_t)blockIdx.x * 512 + threadIdx.x;
    uint4 u = x[at];
    uint4 w = r[at];
    uint32_t *a = reinterpret_cast<uint32_t *>(&u);
    uint32_t *b = reinterpret_cast<uint32_t *>(&w);
    float2 f[4];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 p = wide(a[i]);
        float2 q = wide(b[i]);
        f[i] = make_float2(p.x + q.x, p.y + q.y);
        sum += f[i].x * f[i].x + f[i].y * f[i].y;
    }
    for (int o = 16; o > 0; o >>= 1)
        sum += __shfl_xor_sync(~0u, sum, o);
    if ((threadIdx.x & 31) == 0)
        sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 16; i++)
        sum += sums[i];
    float inv = rsqrtf(sum / 4096.0f + 1e-5f);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        /* Half of the sum, so that a thousand steps over the same buffers stay finite. */
        a[i] = narrow(f[i].x * 0.5f, f[i].y * 0.5f);
        b[i] = narrow(f[i].x * inv, f[i].y * inv);
    }
    x[at] = u;
    y[at] = w;
}

static __device__ __forceinline__ float gate_up(float g, float u)
{
    return g / (1.0f + __expf(-g)) * u;
}

static __global__ void silu(uint4 *y, const uint4 *g, int rows)
{
    const int wide_row = 14336 / 8;
    size_t n = (size_t)rows * wide_row;
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        size_t row = i / wide_row;
        size_t col = i % wide_row;
        uint4 a = g[row * 2 * wide_row + col];
        uint4 b = g[row * 2 * wide_row + wide_row + col];
        uint32_t *p = reinterpret_cast<uint32_t *>(&a);
        uint32_t *q = reinterpret_cast<uint32_t *>(&b);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 s = wide(p[j]);
            float2 t = wide(q[j]);
            p[j] = narrow(gate_up(s.x, t.x), gate_up(s.y, t.y));
        }
        y[i] = a;
    }
}

static __global__ void empty(void)
{
}

static __global__ void gate(const volatile int *flag)
{
    unsigned long long from, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
    do {
        __nanosleep(200);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*flag == 0 && now - from < 300000000ULL);
}

static __global__ void smids(unsigned char *seen)
{
    unsigned sm;
    unsigned long long from, now;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0)
        seen[sm & 255] = 1;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - from < 50000);
}

extern "C" cudaError_t lab_fill(uint16_t *p, size_t n, float scale, uint32_t seed, cudaStream_t s)
{
    fill<<<132 * 16, 512, 0, s>>>(p, n, scale, seed);
    return cudaGetLastError();
}

extern "C" cudaError_t lab_read(const void *p, size_t bytes, int blocks, uint32_t *sink,
                                cudaStream_t s)
{
    read_all<<<blocks, 1024, 0, s>>>((const uint4 *)p, bytes / 16, sink);
    return cudaGetLastError();
}

extern "C" cudaError_t lab_copy(void *d, const void *src, size_t bytes, int blocks, cudaStream_t s)
{
    copy_all<<<blocks, 1024, 0, s>>>((uint4 *)d, (const uint4 *)src, bytes / 16);
    return cudaGetLastError();
}

extern "C" cudaError_t lab_norm(uint16_t *y, uint16_t *x, const uint16_t *r, int rows,
                                cudaStream_t s)
{
    norm<<<rows, 512, 0, s>>>((uint4 *)y, (uint4 *)x, (const uint4 *)r);
    return cudaGetLastError();
}

extern "C" cudaError_t lab_silu(uint16_t *y, const uint16_t *g, int rows, cudaStream_t s)
{
    silu<<<(rows * 14336 / 8 + 255) / 256, 256, 0, s>>>((uint4 *)y, (const uint4 *)g, rows);
    return cudaGetLastError();
}

extern "C" cudaError_t lab_empty(cudaStream_t s)
{
    empty<<<1, 32, 0, s>>>();
    return cudaGetLastError();
}

extern "C" cudaError_t lab_gate(const volatile int *flag, cudaStream_t s)
{
    gate<<<1, 1, 0, s>>>(flag);
    return cudaGetLastError();
}

extern "C" cudaError_t lab_smids(unsigned char *seen, int blocks, cudaStream_t s)
{
    smids<<<blocks, 32, 0, s>>>(seen);
    return cudaGetLastError();
}
