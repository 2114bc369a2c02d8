/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/attach.c - makes any test program run on the CUDA backend without a device:
 * when linked with --wrap=hzp_device_open, every CUDA device it opens runs on the recording
 * runtime.  At its end the program fails if mistakes or leaks were recorded.
 *
 * HZP_FAKE_MEMORY="bytes context graph node loaded": the device's memory, what the driver takes of
 * it for a green context, a graph and a node (fake_set_driver), and for code from the first
 * product on.  The most that was used is printed at the end.  HZP_FAKE_SAY=1: says when the device
 * is steady.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/trace.h"
#include "mesh/link/backend.h"
#include "tests/cudafake/ops.h"
#include "weights/fp8.h"

int __real_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr);
int __wrap_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr);

void __real_hzp_device_steady(struct hzp_device *dev);
void __wrap_hzp_device_steady(struct hzp_device *dev);

/* Once a server has started, no memory, stream or event may be created; timing a product creates
 * events.  Says how many products have run by then, with HZP_FAKE_SAY. */
void __wrap_hzp_device_steady(struct hzp_device *dev)
{
    if (getenv("HZP_FAKE_SAY"))
        fprintf(stderr, "recorder: steady after %d products\n", fake_count(FAKE_PRODUCT));
    __real_hzp_device_steady(dev);
    fake_steady(
        !hzp_trace_wanted()); /* a trace's events and staging come with the ops it looks at */
}

int __real_hzp_version_quantize(struct hzp_weights *weights, struct hzp_version *draft);
int __wrap_hzp_version_quantize(struct hzp_weights *weights, struct hzp_version *draft);

/* Quantizing opens a lane of its own, as at loading.  Tests that write versions by hand also do
 * it later; in a server the items of an update do that work instead. */
int __wrap_hzp_version_quantize(struct hzp_weights *weights, struct hzp_version *draft)
{
    bool was = fake_steady(false);
    int r = __real_hzp_version_quantize(weights, draft);
    fake_steady(was);
    return r;
}

int __real_hzp_cuda_link_sum(const struct hzp_link_sum *sum, void *stream);
int __wrap_hzp_cuda_link_sum(const struct hzp_link_sum *sum, void *stream);

static void run_sum(const void *args)
{
    struct hzp_link_sum s;
    memcpy(&s, args, sizeof(s));
    const void *piece[HZP_LINK_RANKS_MAX];
    for (int m = 0; m < s.members; m++)
        piece[m] = m == s.index ? s.own : s.others + (size_t)m * s.stride;
    hzp_wire_sum(HZP_WIRE_F32, s.dst, piece, s.members, s.elements, s.onto);
}

/* Behind the kernel runs the sum of the links of host memory. */
int __wrap_hzp_cuda_link_sum(const struct hzp_link_sum *sum, void *stream)
{
    int r = __real_hzp_cuda_link_sum(sum, stream);
    size_t bytes = sum->elements * sizeof(float);
    uintptr_t dst = (uintptr_t)sum->dst, own = (uintptr_t)sum->own, all = (uintptr_t)sum->others;
    size_t others = (size_t)sum->members * sum->stride * sizeof(float);
    const struct fake_touch touch[] = {
        {.begin = dst, .end = dst + bytes, .writes = true, .name = "a sum of ranks"},
        {.begin = own, .end = own + bytes, .name = "a sum of ranks"},
        {.begin = all, .end = all + others, .name = "a sum of ranks"}};
    if (r == 0) {
        fake_touches(stream, touch, HZP_COUNT(touch), NULL);
        fake_then(stream, run_sum, sum, sizeof(*sum));
    }
    return r;
}

static size_t loaded; /* of HZP_FAKE_MEMORY */

/* Sets the device's memory before it is opened for the first time. */
static void set_memory(void)
{
    static bool done;
    size_t bytes, context, graph, node;
    const char *text = getenv("HZP_FAKE_MEMORY");
    if (done || !text)
        return;
    done = true;
    if (sscanf(text, "%zu %zu %zu %zu %zu", &bytes, &context, &graph, &node, &loaded) != 5)
        abort();
    fake_set_memory(bytes);
    fake_set_driver(context, graph, node, 1);
}

static void check(void)
{
    if (getenv("HZP_FAKE_MEMORY"))
        fprintf(stderr, "recorder: most used %zu bytes\n", fake_most_used());
    if (!fake_mistakes()[0] && !fake_leaks()[0])
        return;
    fprintf(stderr, "mistakes:\n%sleft over:\n%s", fake_mistakes(), fake_leaks());
    _exit(1);
}

static void attach(struct hzp_device *dev)
{
    static bool first = true;
    const char *seed = getenv("HZP_FAKE_SEED");
    if (strcmp(hzp_device_backend(dev), "cuda") != 0)
        return;
    if (first) {
        fake_reset(seed ? (unsigned)atoi(seed) : 1);
        atexit(check);
        first = false;
    }
    fake_attach(dev);
    fake_set_loaded(loaded);
}

int __real_hzp_trace_open(struct hzp_device *dev, struct hzp_err_text *reterr);
int __wrap_hzp_trace_open(struct hzp_device *dev, struct hzp_err_text *reterr);

/* The reference device behind the recording runtime is not traced. */
int __wrap_hzp_trace_open(struct hzp_device *dev, struct hzp_err_text *reterr)
{
    return strcmp(hzp_device_backend(dev), "ref") == 0 ? HZP_OK
                                                       : __real_hzp_trace_open(dev, reterr);
}

int __wrap_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr)
{
    fake_steady(false);
    set_memory();
    int r = __real_hzp_device_open(config, ret, reterr);
    if (r >= 0)
        attach(*ret);
    return r;
}
