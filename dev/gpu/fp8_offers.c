/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/fp8_offers.c - what cuBLASLt offers for products of e4m3 with a scale for each row of
 * both operands, as the backend asks for them (device/cuda/matmul.c): by shape, rows, output and
 * way of adding up, how many algorithms its heuristic has, and the time of the best of them.
 *
 *     fp8_offers [WIDTH QKV INNER ROWS...]     not given: 8B, 16 32 64 128 256 512 1024 2048 rows
 *
 * One JSON object a line: out bf16, f32, or "f32 +" (added to what is there); fast: its sums may
 * keep fewer bits; offers 0: the library refuses, and such a product takes the way by bf16, or is
 * our own kernel.  Each run begins with the second-level cache overwritten.  77: there is no GPU,
 * or the library is older than 12.9.
 */
#include "device/cuda/cuda.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "dev/gpu/open.h"

#define LT(X)                                                                                      \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(Matmul)                                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(GetVersion)

enum { OFFERS = 8, RUNS = 3, ROWS_MAX = 16, OUTPUTS = 3 };
static const size_t SPACE = (size_t)64 << 20; /* the workspace of a lane that computes */

struct lab {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    cudaEvent_t event[2];
    char *a, *b, *c, *scale, *space;
    size_t cold; /* bytes of space that are overwritten before each run */
#define X(name) __typeof__(&cublasLt##name) name;
    LT(X)
#undef X
};

struct product {
    int32_t m, n, k;
    bool f32, onto, fast;
};

#define GOOD(call)                                                                                 \
    do {                                                                                           \
        int good_ = (int)(call);                                                                   \
        if (good_ != 0) {                                                                          \
            fprintf(stderr, "fp8_offers: %s: %d\n", #call, good_);                                 \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

static void *memory(cudaStream_t stream, size_t size)
{
    void *ret;
    GOOD(cudaMalloc(&ret, size));
    GOOD(cudaMemsetAsync(ret, 0, size, stream));
    GOOD(cudaStreamSynchronize(stream));
    return ret;
}

/* Copies the host's bytes again and again until the memory is full. */
static void fill(cudaStream_t stream, char *to, size_t size, const void *from, size_t bytes)
{
    for (size_t at = 0; at < size; at += bytes)
        GOOD(cudaMemcpyAsync(to + at, from, HZP_MIN(bytes, size - at), cudaMemcpyHostToDevice,
                             stream));
    GOOD(cudaStreamSynchronize(stream));
}

/* Codes drawn at random, none of them a NaN, and scales of 1: power and clocks, and so times,
 * depend on the values. */
static void lab_fill(struct lab *l, size_t a, size_t b, int32_t rows)
{
    static unsigned char code[1 << 20];
    static float ones[1 << 12];
    uint32_t random = 1;
    for (int i = 0; i < HZP_COUNT(code); i++) {
        random = random * 1664525u + 1013904223u;
        code[i] = (unsigned char)(random >> 24);
        code[i] ^= (unsigned char)((code[i] & 0x7f) == 0x7f); /* S1111111 is a NaN */
    }
    for (int i = 0; i < HZP_COUNT(ones); i++)
        ones[i] = 1;
    fill(l->stream, l->a, a, code, sizeof(code));
    fill(l->stream, l->b, b, code, sizeof(code));
    fill(l->stream, l->scale, (size_t)rows * sizeof(float), ones, sizeof(ones));
}

static void skip(const char *why)
{
    printf("%s\n", why);
    exit(77);
}

static void lab_open(struct lab *l, size_t a, size_t b, size_t c, int32_t rows)
{
    int devices = 0;
    struct cudaDeviceProp prop;
    void *library = hzp_cuda_library_open();
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        skip("there is no GPU");
    if (!library)
        skip("there is no cuBLASLt");
#define X(name) *(void **)&l->name = dlsym(library, "cublasLt" #name);
    LT(X)
#undef X
    if (l->GetVersion() < 120900)
        skip("this cuBLASLt has no scales by row");
    GOOD(cudaGetDeviceProperties(&prop, 0));
    GOOD(l->Create(&l->handle));
    GOOD(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, 0));
    for (int i = 0; i < 2; i++)
        GOOD(cudaEventCreate(&l->event[i]));
    l->cold = HZP_MIN(2 * (size_t)prop.l2CacheSize, SPACE);
    l->a = memory(l->stream, a);
    l->b = memory(l->stream, b);
    l->c = memory(l->stream, c);
    l->scale = memory(l->stream, (size_t)rows * sizeof(float));
    l->space = memory(l->stream, SPACE);
    lab_fill(l, a, b, rows);
}

static void lab_close(struct lab *l)
{
    void *all[] = {l->a, l->b, l->c, l->scale, l->space};
    for (int i = 0; i < HZP_COUNT(all); i++)
        GOOD(cudaFree(all[i]));
    for (int i = 0; i < 2; i++)
        GOOD(cudaEventDestroy(l->event[i]));
    GOOD(cudaStreamDestroy(l->stream));
    GOOD(l->Destroy(l->handle));
}

static void set(struct lab *l, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                const void *value, size_t size)
{
    GOOD(l->MatmulDescSetAttribute(desc, what, value, size));
}

/* Describes it as device/cuda/matmul.c does: row-major, so the library's a are the weights. */
static cublasLtMatmulDesc_t describe(struct lab *l, const struct product *p,
                                     cublasLtMatrixLayout_t layout[3])
{
    cublasLtMatmulDesc_t desc;
    cublasOperation_t turned = CUBLAS_OP_T;
    int8_t fast = 1;
    GOOD(l->MatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(l, desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned));
#if CUBLAS_VERSION >= 120900
    int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    set(l, desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof(mode));
    set(l, desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof(mode));
#else
    skip("built with a cuBLASLt that has no scales by row");
#endif
    set(l, desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &l->scale, sizeof(l->scale));
    set(l, desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &l->scale, sizeof(l->scale));
    if (p->fast)
        set(l, desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
    uint64_t n = (uint64_t)p->n, m = (uint64_t)p->m, k = (uint64_t)p->k;
    GOOD(l->MatrixLayoutCreate(&layout[0], CUDA_R_8F_E4M3, k, n, p->k));
    GOOD(l->MatrixLayoutCreate(&layout[1], CUDA_R_8F_E4M3, k, m, p->k));
    GOOD(l->MatrixLayoutCreate(&layout[2], p->f32 ? CUDA_R_32F : CUDA_R_16BF, n, m, p->n));
    return desc;
}

/* Milliseconds of the quickest run after a first one; negative: it does not run. */
static float time_one(struct lab *l, const struct product *p, cublasLtMatmulDesc_t desc,
                      cublasLtMatrixLayout_t layout[3], const cublasLtMatmulAlgo_t *algo)
{
    static const float one = 1, zero = 0;
    float best = -1, ms;
    for (int i = 0; i <= RUNS; i++) {
        GOOD(cudaMemsetAsync(l->space, 0, l->cold, l->stream));
        GOOD(cudaEventRecord(l->event[0], l->stream));
        if (l->Matmul(l->handle, desc, &one, l->b, layout[0], l->a, layout[1],
                      p->onto ? &one : &zero, l->c, layout[2], l->c, layout[2], algo, l->space,
                      SPACE, l->stream) != CUBLAS_STATUS_SUCCESS)
            return -1;
        GOOD(cudaEventRecord(l->event[1], l->stream));
        GOOD(cudaEventSynchronize(l->event[1]));
        GOOD(cudaEventElapsedTime(&ms, l->event[0], l->event[1]));
        if (i == 1 || (i > 1 && ms < best))
            best = ms;
    }
    return best;
}

static void offers(struct lab *l, const char *name, const struct product *p)
{
    cublasLtMatrixLayout_t layout[3];
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t offer[OFFERS];
    cublasLtMatmulDesc_t desc = describe(l, p, layout);
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    static const uint32_t align = 16, sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int found = 0, usable = 0;
    float best = -1;
    GOOD(l->MatmulPreferenceCreate(&wish));
    GOOD(l->MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &SPACE,
                                         sizeof(SPACE)));
    GOOD(l->MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums,
                                         sizeof(sums)));
    for (int i = 0; i < HZP_COUNT(aligned); i++)
        GOOD(l->MatmulPreferenceSetAttribute(wish, aligned[i], &align, sizeof(align)));
    if (l->MatmulAlgoGetHeuristic(l->handle, desc, layout[0], layout[1], layout[2], layout[2], wish,
                                  OFFERS, offer, &found) != CUBLAS_STATUS_SUCCESS)
        found = 0;
    for (int i = 0; i < found; i++) {
        if (offer[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        float ms = time_one(l, p, desc, layout, &offer[i].algo);
        usable += ms >= 0;
        if (ms >= 0 && (best < 0 || ms < best))
            best = ms;
    }
    double tflops = best > 0 ? 2e-9 * p->m * (double)p->n * p->k / (double)best : 0;
    printf("{\"t\":\"offers\",\"product\":\"%s\",\"rows\":%d,\"out\":\"%s%s\",\"fast\":%d,"
           "\"offers\":%d,\"us\":%.1f,\"tflops\":%.1f}\n",
           name, p->m, p->f32 ? "f32" : "bf16", p->onto ? " +" : "", p->fast, usable,
           best < 0 ? 0 : (double)best * 1e3, tflops);
    fflush(stdout);
    l->MatmulPreferenceDestroy(wish);
    l->MatmulDescDestroy(desc);
    for (int i = 0; i < 3; i++)
        l->MatrixLayoutDestroy(layout[i]);
}

int main(int argc, char **argv)
{
    int32_t width = 4096, qkv = 6144, inner = 14336, rows[ROWS_MAX], sizes = 0, most = 0;
    struct lab l = {0};
    if (argc > 1 && (argc < 5 || argc - 4 > ROWS_MAX)) {
        fprintf(stderr, "usage: fp8_offers [WIDTH QKV INNER ROWS...]\n");
        return 2;
    }
    if (argc > 1) {
        width = gpu_number(argv[1]);
        qkv = gpu_number(argv[2]);
        inner = gpu_number(argv[3]);
    }
    for (int i = 4; i < argc; i++)
        rows[sizes++] = gpu_number(argv[i]);
    for (int32_t m = 16; argc == 1 && m <= 2048; m *= 2)
        rows[sizes++] = m;
    for (int32_t i = 0; i < sizes; i++)
        most = HZP_MAX(most, rows[i]);
    const struct {
        const char *name;
        int32_t n, k;
    } shape[] = {{"qkv", qkv, width},
                 {"o", width, width},
                 {"gate/up", 2 * inner, width},
                 {"down", width, inner}};
    size_t widest = (size_t)HZP_MAX(HZP_MAX(2 * inner, qkv), width),
           deepest = (size_t)HZP_MAX(inner, width);
    lab_open(&l, (size_t)most * deepest, widest * (size_t)width,
             (size_t)most * widest * sizeof(float), HZP_MAX((int32_t)widest, most));
    for (int s = 0; s < HZP_COUNT(shape); s++)
        for (int32_t i = 0; i < sizes; i++)
            for (int out = 0; out < OUTPUTS; out++)
                for (int fast = 0; fast < 2; fast++)
                    offers(&l, shape[s].name,
                           &(struct product){.m = rows[i],
                                             .n = shape[s].n,
                                             .k = shape[s].k,
                                             .f32 = out > 0,
                                             .onto = out == 2,
                                             .fast = fast});
    lab_close(&l);
    return 0;
}
