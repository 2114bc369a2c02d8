/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every measurement shares: one open device, lanes, matrix products, timing, the record file.
 *
 * Invariant: every CUDA, driver and cuBLASLt call is checked; the first failure ends the program
 * with status 3, its place and its text, since a figure measured after a failure is worth nothing.
 * Thread: one host thread.
 */
#ifndef HZP_DEV_GPU_LAB_H
#define HZP_DEV_GPU_LAB_H

#include "kernels.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LAB_CUDA(call) lab_check_cuda((call), #call, __FILE__, __LINE__)
#define LAB_CU(call)   lab_check_cu((call), #call, __FILE__, __LINE__)
#define LAB_LT(call)   lab_check_lt((call), #call, __FILE__, __LINE__)

void lab_check_cuda(cudaError_t e, const char *what, const char *file, int line);
void lab_check_cu(CUresult e, const char *what, const char *file, int line);
void lab_check_lt(cublasStatus_t e, const char *what, const char *file, int line);
_Noreturn void lab_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A queue with a share of the SMs: a plain stream, or a stream of a green context. */
struct lab_lane {
    cudaStream_t stream;
    CUgreenCtx green; /* NULL: a plain stream */
    int sms;          /* SMs it may use */
    int target;       /* SM count passed to cuBLASLt; 0: none passed */
    void *space;      /* workspace of its matrix products */
};

enum { LAB_SPACE = 64 << 20 };

struct lab {
    int sms;
    cublasLtHandle_t lt;
    struct lab_lane main; /* plain, whole device, normal priority */
    struct lab_lane low;  /* plain, lowest priority */
    struct lab_lane high; /* plain, highest priority */
    void *spaces[2];      /* workspaces for the two sides of a pair */
    int *flag;            /* mapped host memory, for the gate */
    cudaStream_t gate;
};

extern struct lab lab;

/* Opens device 0 and the record file (JSON lines, appended). */
void lab_open(const char *records);
void lab_close(void);
/* Adds {"t":table, ...}; `format` prints the members. */
void lab_record(const char *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Allocates device memory; bf16 filled like lab_fill if scale is not 0, otherwise filled with
   0xff bytes. */
void *lab_memory(size_t bytes, float scale);

/*
 * Two green contexts: k SMs (rounded as the driver rounds) and the rest. False where the driver
 * refuses; the reason is recorded.
 */
bool lab_green_open(int k, struct lab_lane *few, struct lab_lane *rest);
void lab_green_close(struct lab_lane *few, struct lab_lane *rest);

/* ---- matrix products --------------------------------------------------------------------- */

enum lab_op {
    LAB_FORWARD, /* y[rows, n]  = x[rows, k] w[n, k]^T         bf16 */
    LAB_DGRAD,   /* dx[rows, k] = dy[rows, n] w[n, k]          bf16 */
    LAB_WGRAD,   /* dw[n, k]   += dy[rows, n]^T x[rows, k]     fp32 sum */
    LAB_WGRAD16, /* dw[n, k]    = dy[rows, n]^T x[rows, k]     bf16 */
};

struct lab_gemm {
    enum lab_op op;
    int rows, n, k, target;
    double us;  /* the tuned algorithm's time */
    int blocks; /* of its widest kernel */
    char kernel[96];
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

/* Buffers of the widest operand, shared by all products. */
struct lab_tensors {
    uint16_t *x;       /* [rows][28672] inputs */
    uint16_t *dy;      /* [rows][28672] */
    uint16_t *y;       /* [rows][28672] outputs */
    float *dw;         /* [28672][4096] */
    uint16_t *weights; /* layers of 4 matrices each */
    int layers;
};

extern struct lab_tensors lab_t;

enum { LAB_LAYER_SHAPES = 4 };
struct lab_shape {
    const char *name;
    int n, k;
    size_t offset; /* elements inside a layer */
};
extern const struct lab_shape lab_shapes[LAB_LAYER_SHAPES];
size_t lab_layer_elements(void);

/* Allocates `layers` layers of weights, and activations for up to `rows` rows. */
void lab_tensors_open(int layers, int rows);

/* Returns the tuned plan for this product on this lane (cached by everything but the stream). */
const struct lab_gemm *lab_gemm(enum lab_op op, int rows, int n, int k,
                                const struct lab_lane *lane);
/* Issues the product on lab_t's buffers with the weights of shape s of layer l. */
void lab_gemm_shape(enum lab_op op, int rows, int s, int layer, const struct lab_lane *lane);
void lab_gemm_run(const struct lab_gemm *g, const void *left, const void *right, void *out,
                  const struct lab_lane *lane);
/* Launches every algorithm offered for shape s on this lane; returns how many, and in *failed
   how many failed. */
int lab_gemm_survey(enum lab_op op, int rows, int s, const struct lab_lane *lane, int *failed);
double lab_gemm_flops(int rows, int n, int k);

/* ---- attention --------------------------------------------------------------------------- */

struct lab_cache {
    uint16_t *pool;
    int pages, page_tokens;
};

/* A pool of keys and values of one layer for `tokens` tokens. */
void lab_cache_open(struct lab_cache *c, int64_t tokens, int page_tokens);
/* Sequences of equal `context`, pages drawn at random from the pool; first = pages to skip. */
void lab_attn_open(struct lab_attn *a, const struct lab_cache *c, int batch, int context,
                   int first);
void lab_attn_close(struct lab_attn *a);
double lab_attn_bytes(int batch, int context);
/* The variant that all sections use: the fastest on a quarter of the SMs and on all, taken
   together. */
extern int lab_variant;
void lab_attn_choose(const struct lab_cache *c);
/* The number of blocks that fill `sms` SMs under variant v. */
int lab_attn_blocks(int v, int sms);

/* ---- timing ------------------------------------------------------------------------------ */

typedef void (*lab_run)(void *arg, const struct lab_lane *lane, int i);

/* Median microseconds of one call, by events, after warm-up; each of 7 samples takes at least
   `ms`. */
double lab_time(lab_run run, void *arg, const struct lab_lane *lane, double ms);

/* One side of a pair: call i runs piece i; its weight is its time alone on the whole device. */
struct lab_side {
    lab_run run;
    void *arg;
    const struct lab_lane *lane;
    const double *alone; /* [pieces] us */
    int pieces;
};

/*
 * Runs both sides together in steady state and sets p[i] to side i's rate over its rate alone: work
 * done inside the common window, in microseconds alone, over the window. Two sides of one stream
 * are issued in turn: time-slicing. Median of three.
 */
void lab_together(const struct lab_side *a, const struct lab_side *b, double window_ms,
                  double p[2]);

int lab_compare(const void *a, const void *b);
double lab_now(void); /* seconds, host */

/* ---- sections ---------------------------------------------------------------------------- */

int lab_section_check(void);
int lab_section_ceilings(void);
int lab_section_attention(void);
int lab_section_share(void);
int lab_section_nano(void);
int lab_section_swap(void);
int lab_section_quantum(void);
int lab_section_launch(void);
int lab_section_remainders(void);

#endif
