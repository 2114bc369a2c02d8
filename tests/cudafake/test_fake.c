/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_fake.c - tests the recorder itself: every mistake it detects, made on
   purpose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <cublasLt.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudafake/fake.h"

struct ground {
    cudaStream_t a, b;
    cudaEvent_t event, timed;
    float *x, *y;
};

enum { N = 1024 };

static int set_up(void **state)
{
    static struct ground g;
    fake_reset(1);
    cudaStreamCreateWithPriority(&g.a, cudaStreamNonBlocking, 0);
    cudaStreamCreateWithPriority(&g.b, cudaStreamNonBlocking, 0);
    cudaEventCreateWithFlags(&g.event, cudaEventDisableTiming);
    cudaEventCreate(&g.timed);
    cudaMalloc((void **)&g.x, N * sizeof(float));
    cudaMalloc((void **)&g.y, N * sizeof(float));
    *state = &g;
    return 0;
}

static int tear_down(void **state)
{
    struct ground *g = *state;
    cudaStreamDestroy(g->a);
    cudaStreamDestroy(g->b);
    cudaEventDestroy(g->event);
    cudaEventDestroy(g->timed);
    cudaFree(g->x);
    cudaFree(g->y);
    return fake_leaks()[0] != 0;
}

static void said(const char *what)
{
    if (!strstr(fake_mistakes(), what))
        fail_msg("not noticed: %s; noticed: %s", what, fake_mistakes());
}

static void test_nothing(void **state)
{
    struct ground *g = *state;
    float host[N] = {3};
    assert_int_equal(cudaMemcpyAsync(g->x, host, sizeof(host), cudaMemcpyDefault, g->a),
                     cudaSuccess);
    assert_int_equal(cudaEventRecord(g->event, g->a), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(g->b, g->event, 0), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(g->y, g->x, sizeof(host), cudaMemcpyDefault, g->b),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(g->b), cudaSuccess);
    float back[N] = {0};
    fake_peek(back, g->y, sizeof(back));
    assert_memory_equal(back, host, sizeof(host));
    assert_string_equal(fake_mistakes(), "");
    assert_int_equal(fake_calls(), 4);
    assert_int_equal(fake_call_at(2)->kind, FAKE_WAIT);
    assert_true(fake_call_at(2)->event == g->event);
}

/* Without the event the second stream reads too early in some orders; the race is reported in
   all of them. */
static void test_race(void **state)
{
    struct ground *g = *state;
    float host[N], back[N];
    int early = 0;
    memset(host, 7, sizeof(host));
    for (unsigned seed = 0; seed < 20; seed++) {
        fake_reset(seed);
        cudaMemsetAsync(g->x, 0, sizeof(host), g->a);
        cudaStreamSynchronize(g->a);
        cudaMemcpyAsync(g->x, host, sizeof(host), cudaMemcpyDefault, g->a);
        cudaMemcpyAsync(g->y, g->x, sizeof(host), cudaMemcpyDefault, g->b);
        said("a race: a copy and then a copy");
        cudaStreamSynchronize(g->b);
        cudaStreamSynchronize(g->a);
        fake_peek(back, g->y, sizeof(back));
        early += memcmp(back, host, sizeof(host)) != 0;
    }
    assert_in_range(early, 1, 19);
}

static void test_order(void **state)
{
    struct ground *g = *state;
    cudaStreamWaitEvent(g->b, g->event, 0);
    said("never recorded");
    fake_reset(1);
    cudaEventSynchronize(g->event);
    said("never recorded");
    fake_reset(1);
    cudaStream_t gone;
    cudaStreamCreateWithPriority(&gone, cudaStreamNonBlocking, 0);
    cudaStreamDestroy(gone);
    assert_int_not_equal(cudaEventRecord(g->event, gone), cudaSuccess);
    said("never given out, or is gone");
    fake_reset(1);
    assert_int_not_equal(cudaEventRecord(g->event, NULL), cudaSuccess);
    said("null stream");
}

static void test_memory(void **state)
{
    struct ground *g = *state;
    float host[N] = {0}, *p;
    assert_int_not_equal(cudaMemcpyAsync(g->x + 1, host, sizeof(host), cudaMemcpyDefault, g->a),
                         cudaSuccess);
    said("leave their allocation");
    fake_reset(1);
    cudaMalloc((void **)&p, sizeof(host));
    cudaFree(p);
    assert_int_not_equal(cudaMemcpyAsync(p, host, sizeof(host), cudaMemcpyDefault, g->a),
                         cudaSuccess);
    said("leave their allocation");
    fake_reset(1);
    assert_int_not_equal(cudaFree(p), cudaSuccess);
    said("or is gone");
    fake_reset(1);
    cudaMemcpyAsync(g->x, g->y, 4, cudaMemcpyHostToDevice, g->a);
    said("direction");
    cudaMalloc((void **)&p, 100);
    assert_non_null(strstr(fake_leaks(), "100 bytes of device memory"));
    cudaFree(p);
    fake_fail("cudaMalloc", 0, cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc((void **)&p, 100), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

/* A graph runs after the memory that it copies from was freed. */
static void test_use_after_free(void **state)
{
    struct ground *g = *state;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float *p;
    cudaMalloc((void **)&p, 4096);
    cudaStreamBeginCapture(g->a, cudaStreamCaptureModeThreadLocal);
    cudaMemcpyAsync(g->x, p, 64, cudaMemcpyDefault, g->a);
    cudaStreamEndCapture(g->a, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    cudaGraphLaunch(exec, g->a);
    cudaStreamSynchronize(g->a);
    assert_string_equal(fake_mistakes(), "");
    cudaFree(p);
    cudaGraphLaunch(exec, g->a);
    cudaStreamSynchronize(g->a);
    said("after its memory was freed");
    cudaGraphExecDestroy(exec);
}

static void test_host_touches(void **state)
{
    struct ground *g = *state;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit((int)*(volatile float *)g->x & 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void test_times(void **state)
{
    struct ground *g = *state;
    float ms;
    cudaEventRecord(g->event, g->a);
    cudaEventRecord(g->timed, g->a);
    assert_int_equal(cudaEventElapsedTime(&ms, g->timed, g->timed), cudaErrorNotReady);
    said("has not ended");
    fake_reset(1);
    cudaStreamSynchronize(g->a);
    assert_int_not_equal(cudaEventElapsedTime(&ms, g->event, g->timed), cudaSuccess);
    said("without a time");
}

static void begin(struct ground *g)
{
    fake_reset(1);
    assert_int_equal(cudaStreamBeginCapture(g->a, cudaStreamCaptureModeThreadLocal), cudaSuccess);
}

static void broken(struct ground *g)
{
    cudaGraph_t graph;
    assert_int_equal(cudaStreamEndCapture(g->a, &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
}

static void test_capture(void **state)
{
    struct ground *g = *state;
    void *p;
    begin(g);
    assert_int_not_equal(cudaMalloc(&p, 16), cudaSuccess);
    said("cudaMalloc: while a graph is captured");
    broken(g);
    begin(g);
    assert_int_not_equal(cudaStreamSynchronize(g->b), cudaSuccess);
    said("cudaStreamSynchronize: while a graph is captured");
    broken(g);
    cudaEventRecord(g->event, g->b);
    begin(g);
    assert_int_not_equal(cudaStreamWaitEvent(g->a, g->event, 0), cudaSuccess);
    said("edge of a capture");
    broken(g);
    cudaGraph_t graph;
    begin(g); /* of two captures of a thread, one has ended */
    assert_int_equal(cudaStreamBeginCapture(g->b, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(g->b, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    assert_int_not_equal(cudaMalloc(&p, 16), cudaSuccess);
    said("cudaMalloc: while a graph is captured");
    broken(g);
    assert_int_not_equal(cudaStreamEndCapture(g->a, &graph), cudaSuccess);
    said("no capture was begun");
    fake_reset(1);
    cudaStreamBeginCapture(g->a, cudaStreamCaptureModeGlobal);
    said("other threads");
    cudaStreamEndCapture(g->a, &graph);
    cudaGraphDestroy(graph);
}

static cudaGraphExec_t ended(struct ground *g)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    assert_int_equal(cudaStreamEndCapture(g->a, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
    return exec;
}

static void follow(struct ground *g, cudaStream_t before, cudaStream_t after)
{
    assert_int_equal(cudaEventRecord(g->event, before), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(after, g->event, 0), cudaSuccess);
}

/* Two streams in one capture: a becomes ordered behind b's work, but only behind what it waited
   for. */
static void test_capture_of_two(void **state)
{
    struct ground *g = *state;
    cudaGraph_t graph;
    for (unsigned seed = 0; seed < 20; seed++) {
        float one[16], back[16];
        fake_reset(seed);
        cudaMemsetAsync(g->x, 0, sizeof(one), g->a);
        cudaStreamSynchronize(g->a);
        cudaStreamBeginCapture(g->a, cudaStreamCaptureModeThreadLocal);
        follow(g, g->a, g->b);
        cudaMemsetAsync(g->x, 1, sizeof(one), g->b);
        cudaMemsetAsync(g->y, 2, sizeof(one), g->a);
        follow(g, g->b, g->a);
        cudaMemcpyAsync(g->y, g->x, sizeof(one), cudaMemcpyDefault, g->a);
        cudaGraphExec_t exec = ended(g);
        cudaGraphLaunch(exec, g->b);
        cudaStreamSynchronize(g->b);
        fake_peek(back, g->y, sizeof(back));
        memset(one, 1, sizeof(one));
        assert_string_equal(fake_mistakes(), "");
        assert_memory_equal(back, one, sizeof(one));
        cudaGraphLaunch(exec, g->b);
        cudaMemsetAsync(g->x, 0, 4, g->a); /* unordered with the launch */
        said("a race: a copy and then a set");
        cudaGraphExecDestroy(exec);
        cudaStreamSynchronize(g->a);
        cudaStreamSynchronize(g->b);
    }
    fake_reset(1);
    begin(g);
    follow(g, g->a, g->b);
    cudaMemsetAsync(g->x, 1, 4, g->b);
    follow(g, g->b, g->a);
    cudaMemsetAsync(g->x, 1, 4, g->b); /* after the join */
    assert_int_equal(cudaStreamEndCapture(g->a, &graph), cudaErrorStreamCaptureUnjoined);
    said("has not come back");
    fake_reset(1);
    begin(g);
    follow(g, g->a, g->b);
    assert_int_equal(cudaStreamEndCapture(g->b, &graph), cudaErrorStreamCaptureUnmatched);
    said("not the stream that began it");
    broken(g);
    begin(g);
    follow(g, g->a, g->b);
    cudaMemsetAsync(g->x, 1, 4, g->a);
    cudaMemsetAsync(g->x, 1, 4, g->b);
    said("a race: a set and then a set");
    follow(g, g->b, g->a);
    cudaGraphExecDestroy(ended(g));
    fake_reset(1);
    begin(g);
    cudaEventRecord(g->event, g->a);
    cudaGraphExecDestroy(ended(g));
    assert_int_not_equal(cudaStreamWaitEvent(g->b, g->event, 0), cudaSuccess);
    said("edge of a capture");
    fake_reset(1);
}

/* Captured work does not run at capture, and runs once per launch. */
static void test_graph_runs(void **state)
{
    struct ground *g = *state;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float *host, back = 0;
    cudaHostAlloc((void **)&host, 4096, 0);
    *host = 1;
    cudaMemsetAsync(g->x, 0, 64, g->a);
    begin(g);
    cudaMemcpyAsync(g->x, host, sizeof(*host), cudaMemcpyDefault, g->a);
    cudaStreamEndCapture(g->a, &graph);
    cudaStreamSynchronize(g->a);
    fake_peek(&back, g->x, sizeof(back));
    assert_true(back == 0);
    cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 2; i < 5; i++) {
        *host = (float)i;
        cudaGraphLaunch(exec, g->b);
        cudaStreamSynchronize(g->b);
        fake_peek(&back, g->x, sizeof(back));
        assert_true(back == (float)i);
    }
    cudaGraphDestroy(graph);
    cudaGraphExecDestroy(exec);
    cudaFreeHost(host);
    assert_string_equal(fake_mistakes(), "");
}

/* ---- products ---- */

struct lt {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t result;
    void *space;
};

enum { M = 4, K = 6, L = 5, SPACE = 4096 };

static int advise(struct lt *t)
{
    int found = 0;
    cublasLtMatmulAlgoGetHeuristic(t->handle, t->desc, t->a, t->b, t->c, t->c, t->wish, 1,
                                   &t->result, &found);
    return found;
}

static cublasStatus_t multiply(struct lt *t, struct ground *g, void *space, cudaStream_t stream)
{
    float one = 1, zero = 0;
    return cublasLtMatmul(t->handle, t->desc, &one, g->x, t->a, g->x, t->b, &zero, g->y, t->c, g->y,
                          t->c, &t->result.algo, space, SPACE, stream);
}

static void lt_open(struct lt *t)
{
    size_t space = SPACE;
    uint32_t align = 4;
    cublasLtCreate(&t->handle);
    cublasLtMatmulDescCreate(&t->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&t->a, CUDA_R_32F, M, K, M);
    cublasLtMatrixLayoutCreate(&t->b, CUDA_R_32F, K, L, K);
    cublasLtMatrixLayoutCreate(&t->c, CUDA_R_32F, M, L, M);
    cublasLtMatmulPreferenceCreate(&t->wish);
    cublasLtMatmulPreferenceSetAttribute(t->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space,
                                         sizeof(space));
    for (int i = 0; i < 4; i++)
        cublasLtMatmulPreferenceSetAttribute(
            t->wish,
            (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            &align, sizeof(align));
    cudaMalloc(&t->space, SPACE);
}

static void lt_close(struct lt *t)
{
    cublasLtMatmulPreferenceDestroy(t->wish);
    cublasLtMatrixLayoutDestroy(t->a);
    cublasLtMatrixLayoutDestroy(t->b);
    cublasLtMatrixLayoutDestroy(t->c);
    cublasLtMatmulDescDestroy(t->desc);
    cublasLtDestroy(t->handle);
    cudaFree(t->space);
}

static void test_products(void **state)
{
    struct ground *g = *state;
    struct lt t = {0};
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    lt_open(&t);
    assert_int_equal(advise(&t), 0); /* parts of sums in the type of the output */
    said("parts of a sum");
    fake_reset(1);
    cublasLtMatmulPreferenceSetAttribute(t.wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums,
                                         sizeof(sums));
    assert_int_equal(advise(&t), 1);
    assert_int_equal(multiply(&t, g, t.space, g->a), CUBLAS_STATUS_SUCCESS);
    assert_string_equal(fake_mistakes(), "");
    assert_int_equal(multiply(&t, g, t.space, g->b), CUBLAS_STATUS_SUCCESS);
    said("a race: a product's workspace");
    cudaStreamSynchronize(g->a);
    cudaStreamSynchronize(g->b);
    fake_reset(1);
    multiply(&t, g, (char *)t.space + 16, g->a);
    said("a workspace of");
    fake_reset(1);
    cublasLtMatrixLayoutDestroy(t.b);
    cublasLtMatrixLayoutCreate(&t.b, CUDA_R_32F, K, L, K - 1); /* wrong leading dimension */
    said("leading dimension");
    fake_reset(1);
    assert_int_not_equal(multiply(&t, g, t.space, g->a), CUBLAS_STATUS_SUCCESS);
    said("advised for something else");
    fake_reset(1);
    cublasLtMatrixLayoutDestroy(t.b);
    cublasLtMatrixLayoutCreate(&t.b, CUDA_R_32F, K + 1, L, K + 1);
    assert_int_equal(advise(&t), 0);
    said("a product of");
    fake_reset(1);
    cublasLtMatrixLayoutDestroy(t.b);
    cublasLtMatrixLayoutCreate(&t.b, CUDA_R_32F, K, L, N); /* beyond its memory */
    assert_int_equal(advise(&t), 1);
    multiply(&t, g, t.space, g->a);
    said("b leaves its allocation");
    assert_non_null(strstr(fake_leaks(), "layout"));
    fake_reset(1);
    lt_close(&t);
    cublasLtMatmulDescDestroy(t.desc);
    said("cublasLtMatmulDescDestroy");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_nothing),        T(test_race),         T(test_order),    T(test_memory),
        T(test_use_after_free), T(test_host_touches), T(test_times),    T(test_capture),
        T(test_capture_of_two), T(test_graph_runs),   T(test_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
