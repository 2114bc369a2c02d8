/* SPDX-License-Identifier: Apache-2.0 */
#include "device/fallback.h"

#include <inttypes.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/log.h"
#include "device/backend.h"

enum { SHAPES_MAX = 64 };

struct shape {
    enum hzp_fallback kind;
    int32_t m, n, k;
};

struct hzp_fallbacks {
    atomic_uint_fast64_t count[HZP_FALLBACK_COUNT];
    struct shape logged[SHAPES_MAX];
    int shapes;
};

static const struct {
    const char *name, *help;
} fallback[] = {
#define X(name, help) {#name, help},
    HZP_FALLBACKS(X)
#undef X
};

const char *hzp_fallback_name(enum hzp_fallback kind)
{
    return fallback[kind].name;
}

const char *hzp_fallback_help(enum hzp_fallback kind)
{
    return fallback[kind].help;
}

struct hzp_fallbacks *hzp_fallbacks_create(void)
{
    return hzp_xcalloc(1, sizeof(struct hzp_fallbacks));
}

/* Whether this shape is new and there is room to remember it. */
static bool remember(struct hzp_fallbacks *f, const struct shape *shape)
{
    for (int i = 0; i < f->shapes; i++)
        if (f->logged[i].kind == shape->kind && f->logged[i].m == shape->m &&
            f->logged[i].n == shape->n && f->logged[i].k == shape->k)
            return false;
    if (f->shapes == SHAPES_MAX)
        return false;
    f->logged[f->shapes++] = *shape;
    return true;
}

void hzp_device_fallback(struct hzp_device *dev, enum hzp_fallback kind, int32_t m, int32_t n,
                         int32_t k, const char *reason)
{
    struct hzp_fallbacks *f = dev->fallbacks;
    if (!f)
        return; /* the device is being opened or closed */
    atomic_fetch_add_explicit(&f->count[kind], 1, memory_order_relaxed);
    if (!remember(f, &(struct shape){kind, m, n, k}))
        return;
    hzp_log(HZP_LOG_WARN, dev->backend->name,
            "fallback kind=%s shape=%" PRId32 "x%" PRId32 "x%" PRId32 ": %s", fallback[kind].name,
            m, n, k, reason);
    if (f->shapes == SHAPES_MAX)
        hzp_log(HZP_LOG_WARN, dev->backend->name, "further fallbacks are counted and not logged");
}

uint64_t hzp_device_fallbacks(const struct hzp_device *dev, enum hzp_fallback kind)
{
    struct hzp_fallbacks *f = dev->fallbacks;
    return f ? atomic_load_explicit(&f->count[kind], memory_order_relaxed) : 0;
}
