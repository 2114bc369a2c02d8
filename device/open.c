/* SPDX-License-Identifier: Apache-2.0 */
/* device/open.c - the backends of this build: opens one, and says what each can compute on. */
#include "device/about.h"
#include "device/backend.h"
#include "device/trace.h"

#include "base/thread.h"

/* In order of preference. */
static const struct hzp_backend *const backends[] = {
    &hzp_backend_cuda,
    &hzp_backend_cpu,
    &hzp_backend_ref,
    &hzp_backend_sim,
};

/* Checks that a backend that opened implements every op. */
static int table_check(struct hzp_device *dev, struct hzp_err_text *reterr)
{
    char holes[256] = "";
    for (int op = 0; op < HZP_OP_COUNT; op++)
        if (!dev->op[op]) {
            size_t used = strlen(holes);
            snprintf(holes + used, sizeof(holes) - used, " %s", hzp_op_name((enum hzp_op)op));
        }
    if (holes[0])
        return hzp_fail(reterr, HZP_EUNSUP, "device %s: lacks ops:%s", dev->backend->name, holes);
    return HZP_OK;
}

static int backend_open(const struct hzp_backend *backend, const struct hzp_device_config *config,
                        struct hzp_device **ret, struct hzp_err_text *reterr)
{
    struct hzp_device *dev;
    HZP_TRY(backend->open(config, &dev, reterr));
    dev->fallbacks =
        hzp_fallbacks_create(backend->name, config->ordinal, backend->id ? backend->id(dev) : "");
    int r = table_check(dev, reterr);
    if (r >= 0 && hzp_trace_wanted())
        r = hzp_trace_open(dev, reterr);
    if (r < 0) {
        hzp_device_close(dev);
        return r;
    }
    *ret = dev;
    return HZP_OK;
}

/* Opens a backend by a name such as "cuda" or "cuda:1"; without a number it is device 0. */
static int named_open(const struct hzp_device_config *config, struct hzp_device **ret,
                      struct hzp_err_text *reterr)
{
    struct hzp_device_config one = *config;
    const char *colon = strchr(config->name, ':');
    size_t length = colon ? (size_t)(colon - config->name) : strlen(config->name);
    if (colon) {
        size_t digits = strspn(colon + 1, "0123456789");
        if (digits < 1 || digits > 3 || colon[1 + digits])
            return hzp_fail_param(
                reterr, HZP_EINVAL, "device",
                "device %s: after the colon comes the number of the device, as in cuda:1",
                config->name);
        one.ordinal = atoi(colon + 1);
    }
    for (int i = 0; i < HZP_COUNT(backends); i++) {
        if (strncmp(backends[i]->name, config->name, length) != 0 || backends[i]->name[length])
            continue;
        one.name = backends[i]->name;
        if (one.ordinal > 0 && backends[i] != &hzp_backend_cuda)
            return hzp_fail_param(reterr, HZP_EINVAL, "device",
                                  "device %s: only cuda has several devices", config->name);
        return backend_open(backends[i], &one, ret, reterr);
    }
    return hzp_fail_param(reterr, HZP_EINVAL, "device", "device %s: no such backend", config->name);
}

int hzp_device_open(const struct hzp_device_config *config, struct hzp_device **ret,
                    struct hzp_err_text *reterr)
{
    static const struct hzp_device_config defaults;
    int r;
    if (!config)
        config = &defaults;
    if (config->name) {
        r = named_open(config, ret, reterr);
    } else {
        r = backend_open(&hzp_backend_cuda, config, ret, reterr);
        if (r == HZP_EUNSUP)
            r = backend_open(&hzp_backend_cpu, config, ret, reterr);
    }
    if (r >= 0)
        hzp_thread_own_engine(*ret);
    return r;
}

const char *hzp_device_about(int i, struct hzp_about *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (i < 0 || i >= HZP_COUNT(backends))
        return NULL;
    if (backends[i]->about)
        backends[i]->about(ret);
    return backends[i]->name;
}

void hzp_device_id_text(const void *uuid, char ret[40])
{
    static const unsigned char none[16];
    for (int i = 0; i < 16; i++)
        snprintf(ret + (size_t)(2 * i), 3, "%02x", ((const unsigned char *)uuid)[i]);
    if (memcmp(uuid, none, sizeof(none)) == 0)
        ret[0] = 0;
}

void hzp_fact_add(struct hzp_fact *list, int *count, const char *name, const char *format, ...)
{
    va_list args;
    if (*count == HZP_ABOUT_FACTS_MAX)
        return;
    struct hzp_fact *fact = &list[(*count)++];
    snprintf(fact->name, sizeof(fact->name), "%s", name);
    va_start(args, format);
    vsnprintf(fact->value, sizeof(fact->value), format, args);
    va_end(args);
}

void hzp_device_close(struct hzp_device *dev)
{
    if (!dev)
        return;
    struct hzp_fallbacks *fallbacks = dev->fallbacks;
    hzp_thread_disown_engine(dev);
    dev->fallbacks = NULL;
    hzp_trace_close(dev->trace);
    dev->backend->close(dev);
    hzp_fallbacks_destroy(fallbacks);
}

void hzp_device_overhead(struct hzp_device *dev, struct hzp_overhead *ret)
{
    *ret = (struct hzp_overhead){0};
    if (dev->backend->overhead)
        dev->backend->overhead(dev, ret);
}
