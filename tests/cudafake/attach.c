/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/attach.c - makes any test program run on the CUDA backend without a device: linked with
 * --wrap=hzp_device_open, every CUDA device it opens stands on the recording runtime.  When the program
 * ends, mistakes and what is left over make it fail.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cudafake/ops.h"
#include "weights/fp8.h"

int __real_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr);
int __wrap_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr);

void __real_hzp_device_steady(struct hzp_device *dev);
void __wrap_hzp_device_steady(struct hzp_device *dev);

/* From a server's start on nothing may be made. */
void __wrap_hzp_device_steady(struct hzp_device *dev)
{
    __real_hzp_device_steady(dev);
    fake_steady(true);
}

int __real_hzp_version_quantize(struct hzp_weights *weights, struct hzp_version *draft);
int __wrap_hzp_version_quantize(struct hzp_weights *weights, struct hzp_version *draft);

/* With a lane of its own: for loading.  Tests that write versions by hand use it in between; in a server
 * an update's own items do that. */
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

int __wrap_hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                           struct hzp_err_text *reterr)
{
    static bool first = true;
    const char *seed = getenv("HZP_FAKE_SEED");
    fake_steady(false);
    int r = __real_hzp_device_open(config, ret, reterr);
    if (r < 0 || strcmp((*ret)->backend->name, "cuda") != 0)
        return r;
    if (first) {
        fake_reset(seed ? (unsigned)atoi(seed) : 1);
        atexit(check);
        first = false;
    }
    fake_attach(*ret);
    return r;
}
