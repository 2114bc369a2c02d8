/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/attach.c - makes any test program run on the CUDA backend without a device:
 * when linked with --wrap=hzp_device_open, every CUDA device it opens runs on the recording
 * runtime.  At its end the program fails if mistakes or leaks were recorded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/trace.h"
#include "tests/cudafake/ops.h"
#include "weights/fp8.h"

int __real_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr);
int __wrap_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr);

void __real_hzp_device_steady(struct hzp_device *dev);
void __wrap_hzp_device_steady(struct hzp_device *dev);

/* Once a server has started, no memory, stream or event may be created. */
void __wrap_hzp_device_steady(struct hzp_device *dev)
{
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

static void check(void)
{
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
}

int __real_hzp_trace_open(struct hzp_device *inner, struct hzp_device **ret,
                          struct hzp_err_text *reterr);
int __wrap_hzp_trace_open(struct hzp_device *inner, struct hzp_device **ret,
                          struct hzp_err_text *reterr);

/* Inside a trace, the inner device runs on the recording runtime, and so is traced; the
 * reference device behind the runtime is not. */
int __wrap_hzp_trace_open(struct hzp_device *inner, struct hzp_device **ret,
                          struct hzp_err_text *reterr)
{
    if (strcmp(hzp_device_backend(inner), "ref") == 0) {
        *ret = inner;
        return HZP_OK;
    }
    attach(inner);
    return __real_hzp_trace_open(inner, ret, reterr);
}

int __wrap_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr)
{
    fake_steady(false);
    int r = __real_hzp_device_open(config, ret, reterr);
    if (r >= 0 && !hzp_trace_wanted())
        attach(*ret);
    return r;
}
