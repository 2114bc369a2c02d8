/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the GPU design measurements, and their launchers.
 *
 * Decode attention is paged and split over the context: the whole batch's context is one line of
 * tiles of 32 tokens (sequence-major, then key/value head), cut into equal pieces, one piece a
 * warp. So any number of blocks gives an even load, which is what limiting the grid needs. Shape:
 * 32 query heads, 8 key/value heads, 128 wide, bf16 (Llama-3.1-8B).
 *
 * Thread: one host thread. Launchers return cudaGetLastError().
 */
#ifndef HZP_DEV_GPU_KERNELS_H
#define HZP_DEV_GPU_KERNELS_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LAB_HEADS = 32, LAB_KV = 8, LAB_DIM = 128, LAB_GROUP = 4, LAB_TILE = 32 };

/* A page holds [2: key, value][8 heads][page_tokens][128] bf16. Pointers are device memory,
 * borrowed. */
struct lab_attn {
    CUtensorMap map;      /* the pool as rows of one head's token: lab_attn_map */
    const uint16_t *q;    /* [batch][q_stride], heads first in a row */
    uint16_t *out;        /* [batch][32 * 128] */
    const uint16_t *pool; /* [pages] */
    const int32_t *pages; /* [batch][max_pages] */
    const int32_t *tiles; /* [batch + 1]: running sum of ceil(len / 32) */
    const int32_t *len;   /* [batch], tokens, each >= 1 */
    float *part;          /* [2 * workers][4][130]: partial sums, their maximum and weight */
    int q_stride;
    int batch;
    int max_pages;
    int page_shift; /* log2 of the tokens of a page, 4 or more */
};

struct lab_attn_variant {
    int warps;
    int slots;  /* of 8 KiB each, per warp */
    int smem;   /* bytes per block */
    int per_sm; /* blocks that fit on an SM */
};

/* Makes the tensor map of a->pool with `pages` pages for the copy engine; pool and page_shift
   must be set. */
CUresult lab_attn_map(struct lab_attn *a, int64_t pages);
int lab_attn_variants(void);
/* Sets the shared-memory limit and reads the occupancy of variant v. */
cudaError_t lab_attn_prepare(int v, struct lab_attn_variant *out);
/* out = softmax(q K^T / sqrt(128)) V per sequence and head, with `blocks` blocks; then the
   merge. */
cudaError_t lab_attn_launch(const struct lab_attn *a, int v, int blocks, cudaStream_t stream);

/* Fills with roughly normal values of standard deviation `scale`, which depend only on the index
   and the seed. */
cudaError_t lab_fill(uint16_t *p, size_t n, float scale, uint32_t seed, cudaStream_t stream);
/* Reads n bytes (a multiple of 16) with `blocks` blocks in a way that the compiler cannot
   remove. */
cudaError_t lab_read(const void *p, size_t bytes, int blocks, uint32_t *sink, cudaStream_t stream);
/* Copies n bytes (a multiple of 16) with `blocks` blocks. */
cudaError_t lab_copy(void *d, const void *s, size_t bytes, int blocks, cudaStream_t stream);
/* y = rmsnorm(x + r) with x updated to x + r; rows of 4096. */
cudaError_t lab_norm(uint16_t *y, uint16_t *x, const uint16_t *r, int rows, cudaStream_t stream);
/* y[row][i] = silu(g[row][i]) * g[row][14336 + i]. */
cudaError_t lab_silu(uint16_t *y, const uint16_t *g, int rows, cudaStream_t stream);
cudaError_t lab_empty(cudaStream_t stream);
/* Runs until *flag (mapped host memory) is not 0, or 300 ms. */
cudaError_t lab_gate(const volatile int *flag, cudaStream_t stream);
/* Marks in seen[] (256 bytes) every SM that ran one of `blocks` blocks of about 50 us each. */
cudaError_t lab_smids(unsigned char *seen, int blocks, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
