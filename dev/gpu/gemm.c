/* SPDX-License-Identifier: Apache-2.0 */
#include "lab.h"

#include <stdio.h>
#include <string.h>

struct lab_tensors lab_t;

enum { MAX_PLANS = 4096, MAX_TRIES = 6 };

static struct plan {
    struct lab_gemm g;
    int sms;
    bool green;
} plans[MAX_PLANS];
static int plan_count;

const struct lab_shape lab_shapes[LAB_LAYER_SHAPES] = {
    {"qkv", 6144, 4096, 0},
    {"o", 4096, 4096, 6144UL * 4096},
    {"gate_up", 28672, 4096, 10240UL * 4096},
    {"down", 4096, 14336, 38912UL * 4096},
};

size_t lab_layer_elements(void)
{
    return 38912UL * 4096 + 4096UL * 14336;
}

void lab_tensors_open(int layers, int rows)
{
    lab_t.layers = layers;
    lab_t.weights = lab_memory((size_t)layers * lab_layer_elements() * 2, 0.02f);
    lab_t.x = lab_memory((size_t)rows * 28672 * 2, 1.0f);
    lab_t.dy = lab_memory((size_t)rows * 28672 * 2, 1.0f);
    lab_t.y = lab_memory((size_t)rows * 28672 * 2, 0);
    lab_t.dw = lab_memory((size_t)28672 * 4096 * 4, 0);
    LAB_CUDA(cudaMemset(lab_t.dw, 0, (size_t)28672 * 4096 * 4));
}

double lab_gemm_flops(int rows, int n, int k)
{
    return 2.0 * rows * n * k;
}

static void layout(cublasLtMatrixLayout_t *l, cudaDataType_t type, int rows, int cols)
{
    LAB_LT(cublasLtMatrixLayoutCreate(l, type, (uint64_t)rows, (uint64_t)cols, rows));
}

/* Row-major arrays are passed as their column-major transposes, so the weights or inputs come
   first. */
static void describe(struct lab_gemm *g)
{
    cublasOperation_t yes = CUBLAS_OP_T;
    cudaDataType_t out = g->op == LAB_WGRAD ? CUDA_R_32F : CUDA_R_16BF;
    LAB_LT(cublasLtMatmulDescCreate(&g->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    switch (g->op) {
    case LAB_FORWARD:
        LAB_LT(
            cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSA, &yes, sizeof yes));
        layout(&g->a, CUDA_R_16BF, g->k, g->n);
        layout(&g->b, CUDA_R_16BF, g->k, g->rows);
        layout(&g->c, out, g->n, g->rows);
        break;
    case LAB_DGRAD:
        layout(&g->a, CUDA_R_16BF, g->k, g->n);
        layout(&g->b, CUDA_R_16BF, g->n, g->rows);
        layout(&g->c, out, g->k, g->rows);
        break;
    case LAB_WGRAD:
    case LAB_WGRAD16:
        LAB_LT(
            cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSB, &yes, sizeof yes));
        layout(&g->a, CUDA_R_16BF, g->k, g->rows);
        layout(&g->b, CUDA_R_16BF, g->n, g->rows);
        layout(&g->c, out, g->k, g->n);
        break;
    }
    if (g->target) {
        int32_t target = g->target;
        LAB_LT(cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                              &target, sizeof target));
    }
}

void lab_gemm_run(const struct lab_gemm *g, const void *left, const void *right, void *out,
                  const struct lab_lane *lane)
{
    float one = 1.0f;
    float beta = g->op == LAB_WGRAD ? 1.0f : 0.0f;
    LAB_LT(cublasLtMatmul(lab.lt, g->desc, &one, left, g->a, right, g->b, &beta, out, g->c, out,
                          g->c, &g->algo, lane->space, LAB_SPACE, lane->stream));
}

/* Left and right operand in describe()'s order; the weights of layer l start at `w`. */
static void run_on(const struct lab_gemm *g, const uint16_t *w, const struct lab_lane *lane)
{
    switch (g->op) {
    case LAB_FORWARD:
        lab_gemm_run(g, w, lab_t.x, lab_t.y, lane);
        break;
    case LAB_DGRAD:
        lab_gemm_run(g, w, lab_t.dy, lab_t.y, lane);
        break;
    case LAB_WGRAD:
    case LAB_WGRAD16:
        lab_gemm_run(g, lab_t.x, lab_t.dy, lab_t.dw, lane);
        break;
    }
}

/* The kernel with the most blocks of those a call launches, read from a captured graph. */
static void inspect(struct lab_gemm *g, const struct lab_lane *lane)
{
    cudaGraph_t graph;
    cudaGraphNode_t nodes[16];
    size_t count = 16;
    struct lab_lane probe = *lane;

    if (lane->green)
        probe.stream = lab.main.stream;
    LAB_CUDA(cudaStreamBeginCapture(probe.stream, cudaStreamCaptureModeRelaxed));
    run_on(g, lab_t.weights, &probe);
    LAB_CUDA(cudaStreamEndCapture(probe.stream, &graph));
    LAB_CUDA(cudaGraphGetNodes(graph, nodes, &count));
    g->blocks = 0;
    for (size_t i = 0; i < count; i++) {
        CUDA_KERNEL_NODE_PARAMS p;
        const char *name = NULL;
        CUgraphNodeType type;
        if (cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS ||
            type != CU_GRAPH_NODE_TYPE_KERNEL ||
            cuGraphKernelNodeGetParams(nodes[i], &p) != CUDA_SUCCESS)
            continue;
        int blocks = (int)(p.gridDimX * p.gridDimY * p.gridDimZ);
        if (p.func)
            cuFuncGetName(&name, p.func);
        else if (p.kern)
            cuKernelGetName(&name, p.kern);
        if (blocks > g->blocks) {
            g->blocks = blocks;
            snprintf(g->kernel, sizeof g->kernel, "%s", name ? name : "?");
        }
    }
    LAB_CUDA(cudaGraphDestroy(graph));
    cudaGetLastError();
}

static double try_once(struct lab_gemm *g, const struct lab_lane *lane, cudaEvent_t *e)
{
    float ms;
    int reps = 3;
    size_t step = lab_layer_elements();
    for (int i = 0; i <= reps; i++) {
        if (i == 1)
            LAB_CUDA(cudaEventRecord(e[0], lane->stream));
        run_on(g, lab_t.weights + (size_t)(i % lab_t.layers) * step, lane);
    }
    LAB_CUDA(cudaEventRecord(e[1], lane->stream));
    LAB_CUDA(cudaEventSynchronize(e[1]));
    LAB_CUDA(cudaEventElapsedTime(&ms, e[0], e[1]));
    return ms * 1e3 / reps;
}

static void tune(struct lab_gemm *g, const struct lab_lane *lane)
{
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found[MAX_TRIES];
    cudaEvent_t e[2];
    size_t space = LAB_SPACE;
    int count = 0;
    double best = 1e30;
    int chosen = 0;

    describe(g);
    LAB_LT(cublasLtMatmulPreferenceCreate(&pref));
    LAB_LT(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                &space, sizeof space));
    LAB_LT(cublasLtMatmulAlgoGetHeuristic(lab.lt, g->desc, g->a, g->b, g->c, g->c, pref,
                                          g->target ? 4 : MAX_TRIES, found, &count));
    LAB_LT(cublasLtMatmulPreferenceDestroy(pref));
    if (count == 0)
        lab_die("no algorithm for a product of %d x %d x %d", g->rows, g->n, g->k);
    for (int i = 0; i < 2; i++)
        LAB_CUDA(cudaEventCreate(&e[i]));
    for (int i = 0; i < count; i++) {
        g->algo = found[i].algo;
        double us = try_once(g, lane, e);
        if (us < best) {
            best = us;
            chosen = i;
        }
    }
    g->algo = found[chosen].algo;
    g->us = best;
    for (int i = 0; i < 2; i++)
        LAB_CUDA(cudaEventDestroy(e[i]));
    inspect(g, lane);
}

const struct lab_gemm *lab_gemm(enum lab_op op, int rows, int n, int k, const struct lab_lane *lane)
{
    struct plan *p;
    for (int i = 0; i < plan_count; i++) {
        p = &plans[i];
        if (p->g.op == op && p->g.rows == rows && p->g.n == n && p->g.k == k &&
            p->g.target == lane->target && p->sms == lane->sms && p->green == (lane->green != NULL))
            return &p->g;
    }
    if (plan_count == MAX_PLANS)
        lab_die("more than %d matrix products planned", MAX_PLANS);
    p = &plans[plan_count++];
    memset(p, 0, sizeof *p);
    p->g.op = op;
    p->g.rows = rows;
    p->g.n = n;
    p->g.k = k;
    p->g.target = lane->target;
    p->sms = lane->sms;
    p->green = lane->green != NULL;
    tune(&p->g, lane);
    return &p->g;
}

void lab_gemm_shape(enum lab_op op, int rows, int s, int layer, const struct lab_lane *lane)
{
    const struct lab_shape *sh = &lab_shapes[s];
    const struct lab_gemm *g = lab_gemm(op, rows, sh->n, sh->k, lane);
    run_on(g, lab_t.weights + (size_t)(layer % lab_t.layers) * lab_layer_elements() + sh->offset,
           lane);
}

int lab_gemm_survey(enum lab_op op, int rows, int s, const struct lab_lane *lane, int *failed)
{
    struct lab_gemm g = {.op = op, .rows = rows, .n = lab_shapes[s].n, .k = lab_shapes[s].k};
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found[MAX_TRIES];
    size_t space = LAB_SPACE;
    float one = 1.0f;
    float zero = 0.0f;
    int count = 0;

    g.target = lane->target;
    describe(&g);
    LAB_LT(cublasLtMatmulPreferenceCreate(&pref));
    LAB_LT(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                &space, sizeof space));
    LAB_LT(cublasLtMatmulAlgoGetHeuristic(lab.lt, g.desc, g.a, g.b, g.c, g.c, pref, MAX_TRIES,
                                          found, &count));
    LAB_LT(cublasLtMatmulPreferenceDestroy(pref));
    *failed = 0;
    for (int i = 0; i < count; i++) {
        cublasStatus_t e =
            cublasLtMatmul(lab.lt, g.desc, &one, op == LAB_FORWARD ? lab_t.weights : lab_t.x, g.a,
                           op == LAB_FORWARD ? lab_t.x : lab_t.dy, g.b, &zero,
                           op == LAB_FORWARD ? (void *)lab_t.y : (void *)lab_t.dw, g.c,
                           op == LAB_FORWARD ? (void *)lab_t.y : (void *)lab_t.dw, g.c,
                           &found[i].algo, lane->space, LAB_SPACE, lane->stream);
        *failed += e != CUBLAS_STATUS_SUCCESS || cudaStreamSynchronize(lane->stream) != cudaSuccess;
        cudaGetLastError();
    }
    return count;
}
