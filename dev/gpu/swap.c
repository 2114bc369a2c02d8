/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a version swap: the switch itself, and moving the new version into place. */
#include "step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, CONTEXT = 1024, MAX_STEPS = 4000, VERSIONS = 2 };

enum copying { COPY_NONE, COPY_WHOLE, COPY_PIECES, COPY_KERNEL, COPY_HOST };

static const char *const copying_names[] = {
    "nothing",
    "16 GB device copy",
    "device copy, one layer a step",
    "own kernel on 8 SMs",
    "host to device without pause",
};

struct world {
    struct lab_step step;
    char *version[VERSIONS];
    char *draft;
    char *scratch; /* pinned_bytes of device memory */
    char *pinned;
    size_t pinned_bytes;
    cudaGraphExec_t graph[VERSIONS];
    cudaEvent_t done, copied;
};

static void run_graph(void *arg, const struct lab_lane *lane, int i)
{
    struct world *w = arg;
    (void)i;
    LAB_CUDA(cudaGraphLaunch(w->graph[0], lane->stream));
}

static void run_both(void *arg, const struct lab_lane *lane, int i)
{
    struct world *w = arg;
    LAB_CUDA(cudaGraphLaunch(w->graph[i & 1], lane->stream));
}

static void run_direct(void *arg, const struct lab_lane *lane, int i)
{
    struct world *w = arg;
    (void)i;
    lab_step_run(&w->step, (uint16_t *)w->version[0], lane, lane->sms);
}

static void run_d2d(void *arg, const struct lab_lane *lane, int i)
{
    struct world *w = arg;
    (void)i;
    LAB_CUDA(cudaMemcpyAsync(w->draft, w->version[1], lab_version_bytes(), cudaMemcpyDeviceToDevice,
                             lane->stream));
}

static void run_kernel(void *arg, const struct lab_lane *lane, int i)
{
    struct world *w = arg;
    (void)i;
    LAB_CUDA(lab_copy(w->draft, w->version[1], lab_version_bytes() & ~15UL, 16, lane->stream));
}

static void run_h2d(void *arg, const struct lab_lane *lane, int i)
{
    struct world *w = arg;
    (void)i;
    LAB_CUDA(cudaMemcpyAsync(w->scratch, w->pinned, w->pinned_bytes, cudaMemcpyHostToDevice,
                             lane->stream));
}

static void run_d2h(void *arg, const struct lab_lane *lane, int i)
{
    struct world *w = arg;
    (void)i;
    LAB_CUDA(cudaMemcpyAsync(w->pinned, w->scratch, w->pinned_bytes, cudaMemcpyDeviceToHost,
                             lane->stream));
}

static void alone(struct world *w)
{
    double bytes = (double)lab_version_bytes();
    double us = lab_time(run_d2d, w, &lab.main, 5);
    lab_record("swap_alone",
               "\"what\":\"16 GB device copy\",\"bytes\":%.0f,\"ms\":%.2f,\"gbs\":%.1f", bytes,
               us * 1e-3, 2e-3 * bytes / us);
    us = lab_time(run_kernel, w, &lab.main, 5);
    lab_record("swap_alone",
               "\"what\":\"own copy kernel on 8 SMs\",\"bytes\":%.0f,\"ms\":%.2f,\"gbs\":%.1f",
               bytes, us * 1e-3, 2e-3 * bytes / us);
    us = lab_time(run_h2d, w, &lab.main, 5);
    lab_record("swap_alone",
               "\"what\":\"host to device, pinned\",\"bytes\":%zu,\"ms\":%.2f,\"gbs\":%.2f",
               w->pinned_bytes, us * 1e-3, 1e-3 * (double)w->pinned_bytes / us);
    us = lab_time(run_d2h, w, &lab.main, 5);
    lab_record("swap_alone",
               "\"what\":\"device to host, pinned\",\"bytes\":%zu,\"ms\":%.2f,\"gbs\":%.2f",
               w->pinned_bytes, us * 1e-3, 1e-3 * (double)w->pinned_bytes / us);
    us = lab_time(run_graph, w, &lab.main, 60);
    lab_record("step_form", "\"what\":\"one graph\",\"us\":%.1f", us);
    us = lab_time(run_both, w, &lab.main, 60);
    lab_record("step_form", "\"what\":\"two graphs in turn, other version each step\",\"us\":%.1f",
               us);
    us = lab_time(run_direct, w, &lab.main, 60);
    lab_record("step_form", "\"what\":\"launched one by one\",\"us\":%.1f", us);
}

/* "Not ready" is not a failure, and must not remain as the last error. */
static bool ready(cudaEvent_t e)
{
    cudaError_t r = cudaEventQuery(e);
    if (r == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    LAB_CUDA(r);
    return true;
}

/* Starts to copy the next version into the slot that does not serve. */
static void begin_copy(struct world *w, enum copying how, int slot)
{
    size_t n = lab_version_bytes() & ~15UL;
    if (how == COPY_WHOLE)
        LAB_CUDA(cudaMemcpyAsync(w->version[slot], w->draft, n, cudaMemcpyDeviceToDevice,
                                 lab.low.stream));
    if (how == COPY_KERNEL)
        LAB_CUDA(lab_copy(w->version[slot], w->draft, n, 16, lab.low.stream));
    LAB_CUDA(cudaEventRecord(w->copied, lab.low.stream));
}

struct tally {
    double ms[MAX_STEPS], swap_ms[MAX_STEPS];
    int steps, swaps;
    double host_bytes;
};

static double at(double *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof *v, lab_compare);
    int i = (int)(q * n);
    return n == 0 ? 0 : v[i < n ? i : n - 1];
}

static void report(struct tally *t, const char *what, double per_second, double span)
{
    double sum = 0;
    for (int i = 0; i < t->steps; i++)
        sum += t->ms[i];
    lab_record(
        "swap_loop",
        "\"copying\":\"%s\",\"swaps_per_s\":%.0f,\"steps\":%d,\"swaps\":%d,\"mean_ms\":%.3f,"
        "\"p50_ms\":%.3f,\"p90_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f,\"swap_step_p50_ms\":%.3f,"
        "\"swap_step_max_ms\":%.3f,\"host_gbs\":%.2f",
        what, per_second, t->steps, t->swaps, sum / t->steps, at(t->ms, t->steps, .5),
        at(t->ms, t->steps, .9), at(t->ms, t->steps, .99), at(t->ms, t->steps, 1),
        at(t->swap_ms, t->swaps, .5), at(t->swap_ms, t->swaps, 1), t->host_bytes / span * 1e-9);
}

static void one_step(struct world *w, int current)
{
    LAB_CUDA(cudaGraphLaunch(w->graph[current], lab.high.stream));
    LAB_CUDA(cudaEventRecord(w->done, lab.high.stream));
    LAB_CUDA(cudaEventSynchronize(w->done));
}

/* A minimal engine loop: launch a step, wait for it, and swap between steps when a swap is due. */
static void loop(struct world *w, double seconds, double per_second, enum copying how)
{
    static struct tally t;
    int current = 0;
    int piece = -1;
    bool copying = false;
    size_t part = lab_layer_elements() * 2;

    memset(&t, 0, sizeof t);
    for (int i = 0; i < 10; i++)
        one_step(w, i & 1);
    double from = lab_now();
    double due = per_second > 0 ? from + 1 / per_second : 1e300;
    LAB_CUDA(cudaEventRecord(w->copied, lab.low.stream));
    while (lab_now() - from < seconds && t.steps < MAX_STEPS) {
        double begun = lab_now();
        bool flip = false;
        if (how == COPY_HOST && ready(w->copied)) {
            run_h2d(w, &lab.low, 0);
            LAB_CUDA(cudaEventRecord(w->copied, lab.low.stream));
            t.host_bytes += (double)w->pinned_bytes;
        }
        if (begun >= due && !copying) {
            due += 1 / per_second;
            copying = true;
            piece = how == COPY_PIECES ? 0 : -1;
            if (how != COPY_HOST && how != COPY_PIECES)
                begin_copy(w, how, !current);
        }
        if (copying && how == COPY_PIECES && piece >= 0) {
            size_t off = (size_t)piece * part;
            size_t n = lab_version_bytes() - off < part ? lab_version_bytes() - off : part;
            LAB_CUDA(cudaMemcpyAsync(w->version[!current] + off, w->draft + off, n,
                                     cudaMemcpyDeviceToDevice, lab.low.stream));
            piece = off + n < lab_version_bytes() ? piece + 1 : -1;
            LAB_CUDA(cudaEventRecord(w->copied, lab.low.stream));
        }
        if (copying && piece < 0 && (how == COPY_HOST || ready(w->copied))) {
            current = !current;
            copying = false;
            flip = true;
        }
        one_step(w, current);
        double ms = (lab_now() - begun) * 1e3;
        t.ms[t.steps++] = ms;
        if (flip)
            t.swap_ms[t.swaps++] = ms;
    }
    double span = lab_now() - from;
    LAB_CUDA(cudaDeviceSynchronize());
    report(&t, copying_names[how], per_second, span);
}

static void capture_cost(struct world *w)
{
    double v[3][5];
    cudaGraphExecUpdateResultInfo info;
    for (int i = 0; i < 5; i++) {
        cudaGraph_t g;
        cudaGraphExec_t x;
        double a = lab_now();
        LAB_CUDA(cudaStreamBeginCapture(lab.main.stream, cudaStreamCaptureModeRelaxed));
        lab_step_run(&w->step, (uint16_t *)w->version[1], &lab.main, lab.sms);
        LAB_CUDA(cudaStreamEndCapture(lab.main.stream, &g));
        double b = lab_now();
        LAB_CUDA(cudaGraphInstantiate(&x, g, 0));
        double c = lab_now();
        LAB_CUDA(cudaGraphExecUpdate(x, g, &info));
        v[0][i] = b - a;
        v[1][i] = c - b;
        v[2][i] = lab_now() - c;
        LAB_CUDA(cudaGraphExecDestroy(x));
        LAB_CUDA(cudaGraphDestroy(g));
    }
    lab_record("graph_cost", "\"capture_ms\":%.3f,\"instantiate_ms\":%.3f,\"update_ms\":%.3f",
               1e3 * at(v[0], 5, .5), 1e3 * at(v[1], 5, .5), 1e3 * at(v[2], 5, .5));
}

int lab_section_swap(void)
{
    static struct world w;
    struct lab_cache c;

    lab_cache_open(&c, (int64_t)STEP_LAYERS * BATCH * CONTEXT, 16);
    for (int i = 0; i < VERSIONS; i++)
        w.version[i] = lab_memory(lab_version_bytes(), 0.02f);
    w.draft = lab_memory(lab_version_bytes(), 0.02f);
    lab_t.x = lab_memory((size_t)BATCH * 14336 * 2, 1.0f); /* read by tuning */
    lab_t.y = lab_memory((size_t)BATCH * STEP_VOCABULARY * 2, 0);
    w.pinned_bytes = 1UL << 30;
    LAB_CUDA(cudaHostAlloc((void **)&w.pinned, w.pinned_bytes, cudaHostAllocDefault));
    w.scratch = lab_memory(w.pinned_bytes, 0.02f);
    run_d2h(&w, &lab.main, 0);
    LAB_CUDA(cudaDeviceSynchronize());
    lab_attn_choose(&c);
    LAB_CUDA(cudaEventCreateWithFlags(&w.copied, cudaEventDisableTiming));
    LAB_CUDA(cudaEventCreateWithFlags(&w.done, cudaEventDisableTiming));
    lab_step_open(&w.step, &c, BATCH, CONTEXT);
    lab_step_tune(&w.step, (uint16_t *)w.version[0], &lab.main);
    for (int i = 0; i < VERSIONS; i++)
        w.graph[i] = lab_step_graph(&w.step, (uint16_t *)w.version[i], &lab.high, lab.sms);
    alone(&w);
    capture_cost(&w);
    loop(&w, 6, 0, COPY_NONE);
    loop(&w, 6, 1, COPY_NONE);
    loop(&w, 4, 10, COPY_NONE);
    loop(&w, 6, 1, COPY_WHOLE);
    loop(&w, 4, 10, COPY_WHOLE);
    loop(&w, 6, 1, COPY_PIECES);
    loop(&w, 6, 1, COPY_KERNEL);
    loop(&w, 2.5, 0, COPY_HOST);
    return 0;
}
