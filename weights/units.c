/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/units.h"

#include "base/thread.h"
#include "device/philox.h"

enum { FILLERS_MAX = 15 }; /* threads beside the caller's: more do not read faster */

size_t hzp_units_bytes(const struct hzp_layout *layout, enum hzp_dtype type)
{
    size_t room = 0;
    for (int32_t u = 0; u < layout->units; u++)
        room += layout->unit[u].room;
    return room * hzp_dtype_size(type);
}

void hzp_units_init(struct hzp_units *units, const struct hzp_layout *layout, enum hzp_dtype type,
                    void *memory)
{
    char *at = memory;
    units->layout = layout;
    units->type = type;
    units->part = NULL;
    units->base = hzp_xcalloc((size_t)layout->units, sizeof(*units->base));
    for (int32_t u = 0; at && u < layout->units; u++) {
        units->base[u] = at;
        at += layout->unit[u].room * hzp_dtype_size(type);
    }
}

size_t hzp_units_shard_bytes(const struct hzp_layout *layout, enum hzp_dtype type,
                             const struct hzp_shards *shards, enum hzp_level level)
{
    size_t room = 0;
    for (int32_t u = 0; u < layout->units; u++)
        room += hzp_shards_hold(shards, layout->units, u) ? layout->unit[u].room : 0;
    return room / (size_t)hzp_groups_shards(&shards->groups, level) * hzp_dtype_size(type);
}

void hzp_units_init_shards(struct hzp_units *units, const struct hzp_layout *layout,
                           enum hzp_dtype type, void *memory, const struct hzp_shards *shards,
                           enum hzp_level level)
{
    char *at = memory;
    bool one = hzp_groups_shards(&shards->groups, level) == 1;
    hzp_units_init(units, layout, type, NULL);
    units->part = hzp_xcalloc((size_t)layout->units, sizeof(*units->part));
    for (int32_t u = 0; u < layout->units; u++) {
        const struct hzp_unit *unit = &layout->unit[u];
        struct hzp_extent span = {0, unit->room};
        if (!one)
            span = hzp_groups_extent(&shards->groups, level, shards->rank, unit->room);
        if (!hzp_shards_hold(shards, layout->units, u))
            span.count = 0;
        units->base[u] = at;
        at += span.count * hzp_dtype_size(type);
        span.first = HZP_MIN(span.first, unit->elements);
        span.count = HZP_MIN(span.count, unit->elements - span.first);
        units->part[u] = span;
    }
}

void hzp_units_place(struct hzp_units *units, int32_t u, void *memory)
{
    HZP_ASSERT(u >= 0 && u < units->layout->units);
    units->base[u] = memory;
}

void hzp_units_free(struct hzp_units *units)
{
    free(units->base);
    free(units->part);
    memset(units, 0, sizeof(*units));
}

bool hzp_units_whole(const struct hzp_units *units)
{
    return !units->part;
}

struct hzp_unit_view hzp_unit_view(const struct hzp_units *units, int32_t u)
{
    HZP_ASSERT(u >= 0 && u < units->layout->units);
    const struct hzp_unit *unit = &units->layout->unit[u];
    struct hzp_extent all = {0, unit->elements};
    return (struct hzp_unit_view){units->base[u], units->type, unit->elements, unit->decayed,
                                  units->part ? units->part[u] : all};
}

size_t hzp_unit_bytes(const struct hzp_unit_view *view)
{
    return view->part.count * hzp_dtype_size(view->type);
}

struct hzp_mat hzp_unit_piece(const struct hzp_unit_view *view, size_t at, size_t n)
{
    HZP_ASSERT(view->base && at >= view->part.first && at - view->part.first <= view->part.count);
    at -= view->part.first;
    HZP_ASSERT(n <= view->part.count - at && n <= INT32_MAX);
    return (struct hzp_mat){(char *)view->base + at * hzp_dtype_size(view->type), 1, (int32_t)n,
                            (int32_t)n, view->type};
}

struct hzp_mat hzp_units_mat(const struct hzp_units *units, enum hzp_role role, int32_t layer)
{
    const struct hzp_tensor *t = hzp_layout_find(units->layout, role, layer);
    if (!t)
        return (struct hzp_mat){.type = units->type};
    HZP_ASSERT(units->base[t->unit]);
    HZP_ASSERT(!units->part || units->part[t->unit].count == units->layout->unit[t->unit].elements);
    char *at = (char *)units->base[t->unit] + t->offset * hzp_dtype_size(units->type);
    return (struct hzp_mat){at, t->rows, t->cols, t->cols, units->type};
}

int hzp_unit_read(struct hzp_device *dev, const struct hzp_unit_view *view,
                  struct hzp_unit_view *ret, void **ret_owned)
{
    const void *data = view->base;
    HZP_ASSERT(view->base);
    *ret_owned = NULL;
    if (dev)
        HZP_TRY(hzp_device_view(dev, view->base, hzp_unit_bytes(view), &data, ret_owned));
    *ret = *view;
    ret->base = (void *)(uintptr_t)data;
    return HZP_OK;
}

static int alloc_host(struct hzp_device *dev, size_t bytes, void **ret)
{
    if (dev)
        return hzp_device_alloc(dev, HZP_MEM_HOST, bytes, ret);
    *ret = malloc(bytes);
    return *ret ? HZP_OK : HZP_ENOMEM;
}

static void free_host(struct hzp_device *dev, void *memory)
{
    if (dev)
        hzp_device_free(dev, HZP_MEM_HOST, memory);
    else
        free(memory);
}

/* Copies the resident part of the unit from a whole one in host memory. */
static int copy_part(struct hzp_device *dev, const struct hzp_unit_view *view, const void *whole)
{
    const char *from = (const char *)whole + view->part.first * hzp_dtype_size(view->type);
    if (dev)
        return hzp_device_copy(dev, view->base, from, hzp_unit_bytes(view));
    memcpy(view->base, from, hzp_unit_bytes(view));
    return HZP_OK;
}

int hzp_units_fill(struct hzp_device *dev, const struct hzp_units *units, hzp_unit_fill_fn *fill,
                   void *ctx)
{
    bool direct = (!dev || hzp_device_host_memory(dev)) && !units->part;
    void *buffer = NULL;
    int r = HZP_OK;
    if (!direct) {
        size_t largest = hzp_layout_largest(units->layout) * hzp_dtype_size(units->type);
        HZP_TRY(alloc_host(dev, largest, &buffer));
    }
    for (int32_t u = 0; u < units->layout->units && r >= 0; u++) {
        struct hzp_unit_view view = hzp_unit_view(units, u), host = view;
        HZP_ASSERT(view.base);
        if (!direct) {
            host.base = buffer;
            host.part = (struct hzp_extent){0, host.elements};
        }
        r = fill(ctx, u, &host);
        if (r >= 0 && !direct)
            r = copy_part(dev, &view, buffer);
    }
    free_host(dev, buffer);
    return r;
}

/* What threads that fill units side by side share. */
struct filling {
    const struct hzp_units *units;
    hzp_unit_fill_fn *fill;
    void *ctx;
    _Atomic int32_t next;
    _Atomic int result;
};

static void *fill_some(void *arg)
{
    struct filling *f = arg;
    int32_t u;
    while (atomic_load(&f->result) >= 0 &&
           (u = atomic_fetch_add(&f->next, 1)) < f->units->layout->units) {
        struct hzp_unit_view view = hzp_unit_view(f->units, u);
        int r = f->fill(f->ctx, u, &view), none = HZP_OK;
        if (r < 0)
            atomic_compare_exchange_strong(&f->result, &none, r);
    }
    return NULL;
}

int hzp_units_fill_by(struct hzp_device *dev, const struct hzp_units *units, hzp_unit_fill_fn *fill,
                      void *ctx, int threads)
{
    struct filling f = {.units = units, .fill = fill, .ctx = ctx};
    pthread_t helper[FILLERS_MAX];
    int helpers = 0;
    if (units->part || (dev && !hzp_device_host_memory(dev)))
        return hzp_units_fill(dev, units, fill, ctx);
    /* This thread is one; without further ones it does all. */
    while (helpers < HZP_MIN(threads - 1, FILLERS_MAX) &&
           hzp_thread_start(&helper[helpers], "hzp-read", fill_some, &f) == HZP_OK)
        helpers++;
    fill_some(&f);
    while (helpers > 0)
        pthread_join(helper[--helpers], NULL);
    return atomic_load(&f.result);
}

uint64_t hzp_unit_checksum(const struct hzp_unit_view *host)
{
    const char *at = host->base;
    uint64_t sum = 0, words = hzp_unit_bytes(host) / sizeof(uint64_t);
    uint64_t first = host->part.first * hzp_dtype_size(host->type) / sizeof(uint64_t);
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, at + i * sizeof(word), sizeof(word));
        sum += hzp_audit_mix(first + i, word);
    }
    return sum;
}

int64_t hzp_unit_nonfinite(const struct hzp_unit_view *host)
{
    const uint32_t *f32 = host->base;
    const uint16_t *bf16 = host->base;
    int64_t count = 0;
    HZP_ASSERT(host->type == HZP_F32 || host->type == HZP_BF16);
    for (size_t i = 0; i < host->part.count; i++)
        count += host->type == HZP_F32 ? (f32[i] & 0x7f800000u) == 0x7f800000u
                                       : (bf16[i] & 0x7f80u) == 0x7f80u;
    return count;
}

int hzp_units_checksum(struct hzp_device *dev, const struct hzp_units *units, uint64_t *ret)
{
    *ret = 0;
    for (int32_t u = 0; u < units->layout->units; u++) {
        void *owned;
        struct hzp_unit_view view = hzp_unit_view(units, u);
        HZP_TRY(hzp_unit_read(dev, &view, &view, &owned));
        *ret += hzp_unit_checksum(&view);
        free(owned);
    }
    return HZP_OK;
}
