/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed costs of launches, graphs, events and hops between lanes; and how a graph behaves
 * with green lanes. */
#include "lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 300, ROUNDS = 9 };

typedef void (*chain)(const struct lab_lane *a, const struct lab_lane *b, cudaEvent_t *e);

static void same_stream(const struct lab_lane *a, const struct lab_lane *b, cudaEvent_t *e)
{
    (void)b;
    (void)e;
    for (int i = 0; i < CALLS; i++)
        LAB_CUDA(lab_empty(a->stream));
}

static void hops(const struct lab_lane *a, const struct lab_lane *b, cudaEvent_t *e)
{
    for (int i = 0; i < CALLS; i++) {
        const struct lab_lane *from = i & 1 ? b : a;
        const struct lab_lane *to = i & 1 ? a : b;
        LAB_CUDA(lab_empty(from->stream));
        LAB_CUDA(cudaEventRecord(e[i], from->stream));
        LAB_CUDA(cudaStreamWaitEvent(to->stream, e[i], 0));
    }
}

static void records(const struct lab_lane *a, const struct lab_lane *b, cudaEvent_t *e)
{
    (void)b;
    for (int i = 0; i < CALLS; i++)
        LAB_CUDA(cudaEventRecord(e[i], a->stream));
}

static void products(const struct lab_lane *a, const struct lab_lane *b, cudaEvent_t *e)
{
    (void)b;
    (void)e;
    for (int i = 0; i < CALLS; i++)
        lab_gemm_shape(LAB_FORWARD, 64, 1, i, a);
}

/* Measures the host's and the device's microseconds per call (behind a gate, so that the device
   never waits for the host). */
static void measure(const char *what, chain run, const struct lab_lane *a, const struct lab_lane *b,
                    cudaEvent_t *e)
{
    static cudaEvent_t from, to;
    double host[ROUNDS], device[ROUNDS];
    float ms;

    if (!from) {
        LAB_CUDA(cudaEventCreate(&from));
        LAB_CUDA(cudaEventCreate(&to));
    }
    for (int r = 0; r < ROUNDS; r++) {
        *(volatile int *)lab.flag = 0;
        LAB_CUDA(lab_gate(lab.flag, lab.gate));
        LAB_CUDA(cudaEventRecord(from, lab.gate));
        LAB_CUDA(cudaStreamWaitEvent(a->stream, from, 0));
        double t = lab_now();
        run(a, b, e);
        host[r] = (lab_now() - t) * 1e6 / CALLS;
        LAB_CUDA(cudaEventRecord(to, a->stream));
        *(volatile int *)lab.flag = 1;
        LAB_CUDA(cudaDeviceSynchronize());
        LAB_CUDA(cudaEventElapsedTime(&ms, from, to));
        device[r] = ms * 1e3 / CALLS;
    }
    qsort(host, ROUNDS, sizeof *host, lab_compare);
    qsort(device, ROUNDS, sizeof *device, lab_compare);
    lab_record("overhead", "\"what\":\"%s\",\"host_us\":%.2f,\"device_us\":%.2f", what,
               host[ROUNDS / 2], device[ROUNDS / 2]);
}

static void graph_of(const char *what, chain run, const struct lab_lane *a,
                     const struct lab_lane *b, cudaEvent_t *e)
{
    cudaGraph_t g;
    cudaGraphExec_t x;
    double host[ROUNDS], wall[ROUNDS];

    LAB_CUDA(cudaStreamBeginCapture(a->stream, cudaStreamCaptureModeRelaxed));
    run(a, b, e);
    LAB_CUDA(cudaStreamEndCapture(a->stream, &g));
    LAB_CUDA(cudaGraphInstantiate(&x, g, 0));
    LAB_CUDA(cudaGraphUpload(x, a->stream));
    for (int r = 0; r < ROUNDS; r++) {
        LAB_CUDA(cudaDeviceSynchronize());
        double t = lab_now();
        LAB_CUDA(cudaGraphLaunch(x, a->stream));
        host[r] = (lab_now() - t) * 1e6;
        LAB_CUDA(cudaStreamSynchronize(a->stream));
        wall[r] = (lab_now() - t) * 1e6;
    }
    qsort(host, ROUNDS, sizeof *host, lab_compare);
    qsort(wall, ROUNDS, sizeof *wall, lab_compare);
    lab_record("overhead_graph",
               "\"what\":\"%s\",\"nodes\":%d,\"launch_host_us\":%.1f,\"launch_to_done_us\":%.1f,"
               "\"per_node_us\":%.3f",
               what, CALLS, host[ROUNDS / 2], wall[ROUNDS / 2], wall[ROUNDS / 2] / CALLS);
    LAB_CUDA(cudaGraphExecDestroy(x));
    LAB_CUDA(cudaGraphDestroy(g));
}

static int seen_count(const unsigned char *seen)
{
    unsigned char host[256];
    int n = 0;
    LAB_CUDA(cudaMemcpy(host, seen, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++)
        n += host[i];
    return n;
}

/* Checks whether a captured graph keeps its nodes on the SMs of the green lanes they were
   captured from. */
static void green_graph(const struct lab_lane *few, const struct lab_lane *rest, cudaEvent_t *e)
{
    unsigned char *seen[2];
    cudaGraph_t g;
    cudaGraphExec_t x = NULL;
    for (int i = 0; i < 2; i++) {
        seen[i] = lab_memory(256, 0);
        LAB_CUDA(cudaMemset(seen[i], 0, 256));
    }
    LAB_CUDA(cudaDeviceSynchronize());
    cudaError_t err = cudaStreamBeginCapture(few->stream, cudaStreamCaptureModeRelaxed);
    if (err == cudaSuccess) {
        bool fine = cudaEventRecord(e[0], few->stream) == cudaSuccess &&
                    cudaStreamWaitEvent(rest->stream, e[0], 0) == cudaSuccess &&
                    lab_smids(seen[0], 132 * 40, few->stream) == cudaSuccess &&
                    lab_smids(seen[1], 132 * 40, rest->stream) == cudaSuccess &&
                    cudaEventRecord(e[1], rest->stream) == cudaSuccess &&
                    cudaStreamWaitEvent(few->stream, e[1], 0) == cudaSuccess;
        err = cudaStreamEndCapture(few->stream, &g);
        if (!fine && err == cudaSuccess)
            err = cudaErrorStreamCaptureInvalidated;
    }
    if (err == cudaSuccess)
        err = cudaGraphInstantiate(&x, g, 0);
    const char *via[] = {"own lane", "a plain stream"};
    for (int i = 0; i < 2 && err == cudaSuccess; i++) {
        LAB_CUDA(cudaMemset(seen[0], 0, 256));
        LAB_CUDA(cudaMemset(seen[1], 0, 256));
        LAB_CUDA(cudaDeviceSynchronize());
        LAB_CUDA(cudaGraphLaunch(x, i ? lab.main.stream : few->stream));
        LAB_CUDA(cudaDeviceSynchronize());
        lab_record("green_graph",
                   "\"launched_on\":\"%s\",\"few\":%d,\"rest\":%d,\"few_seen\":%d,\"rest_seen\":%d",
                   via[i], few->sms, rest->sms, seen_count(seen[0]), seen_count(seen[1]));
    }
    if (err != cudaSuccess) {
        lab_record("green_graph", "\"error\":\"%s\"", cudaGetErrorString(err));
        cudaGetLastError();
    }
}

static void alone_latency(void)
{
    double wall[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        LAB_CUDA(cudaDeviceSynchronize());
        double t = lab_now();
        LAB_CUDA(lab_empty(lab.main.stream));
        LAB_CUDA(cudaStreamSynchronize(lab.main.stream));
        wall[r] = (lab_now() - t) * 1e6;
    }
    qsort(wall, ROUNDS, sizeof *wall, lab_compare);
    lab_record("overhead",
               "\"what\":\"launch one kernel and wait for it\",\"host_us\":%.2f,\"device_us\":0",
               wall[ROUNDS / 2]);
}

int lab_section_launch(void)
{
    static cudaEvent_t e[CALLS];
    struct lab_lane few, rest;
    for (int i = 0; i < CALLS; i++)
        LAB_CUDA(cudaEventCreateWithFlags(&e[i], cudaEventDisableTiming));
    lab_tensors_open(8, 64);
    lab_gemm_shape(LAB_FORWARD, 64, 1, 0, &lab.main);
    alone_latency();
    measure("kernel launch, one stream", same_stream, &lab.main, &lab.main, e);
    measure("event record", records, &lab.main, &lab.main, e);
    measure("kernel + record + wait, two streams in turn", hops, &lab.main, &lab.low, e);
    measure("matrix product 64 x 4096 x 4096", products, &lab.main, &lab.main, e);
    graph_of("300 kernels in a row", same_stream, &lab.main, &lab.main, e);
    graph_of("300 kernels, two streams in turn", hops, &lab.main, &lab.low, e);
    graph_of("300 products 64 x 4096 x 4096", products, &lab.main, &lab.main, e);
    if (lab_green_open(64, &few, &rest)) {
        measure("kernel launch, one green lane", same_stream, &few, &few, e);
        measure("kernel + record + wait, two green lanes in turn", hops, &few, &rest, e);
        measure("kernel + record + wait, plain and green in turn", hops, &lab.main, &rest, e);
        green_graph(&few, &rest, e);
        graph_of("300 kernels in a row, green", same_stream, &few, &few, e);
        graph_of("300 kernels, two green lanes in turn", hops, &few, &rest, e);
        lab_green_close(&few, &rest);
    }
    for (int i = 0; i < 5; i++)
        if (lab_green_open(64, &few, &rest))
            lab_green_close(&few, &rest);
    return 0;
}

/* Checks whether the library's products, which launch clusters of blocks, run on the SMs that a
   split leaves over. */
int lab_section_remainders(void)
{
    struct lab_lane few, rest;
    lab_tensors_open(1, 2048);
    for (int k = 96; k <= 128; k += 8) {
        if (!lab_green_open(k, &few, &rest))
            continue;
        int tried = 0;
        int failed = 0;
        for (int s = 0; s < LAB_LAYER_SHAPES; s++) {
            for (int i = 0; i < 2; i++) {
                int bad;
                tried += lab_gemm_survey(i ? LAB_WGRAD16 : LAB_FORWARD, 2048, s, &rest, &bad);
                failed += bad;
            }
        }
        lab_record("remainder", "\"left_over_sms\":%d,\"algorithms\":%d,\"failed\":%d", rest.sms,
                   tried, failed);
        lab_green_close(&few, &rest);
    }
    return 0;
}
