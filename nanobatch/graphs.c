/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum {
    KEPT = 128,
    SEEN = 256,       /* keys that came once */
    ITEMS_MIN = 8,
    CTX_MIN = 256,    /* shorter contexts are one bucket */
    REFUSALS_MAX = 3, /* then the device is not asked again */
};

struct kept {
    struct hzp_graph *graph; /* NULL: free */
    uint64_t hash, used;
    unsigned char *key;
    size_t size;
};

struct hzp_graphs {
    struct hzp_device *dev;
    struct kept kept[KEPT];
    uint64_t seen[SEEN]; /* by hash */
    uint64_t clock;
    unsigned char *key; /* of the step at hand */
    size_t size, room;
    struct hzp_graphs_stats stats;
};

/* An op's arguments as they are captured: contexts rounded, padding zero. */
union args {
    struct hzp_attn_paged_args attn;
    struct hzp_kv_append_args append;
    struct hzp_rmsnorm_args norm;
    struct hzp_matmul_args matmul;
    unsigned char bytes[320];
};

struct hzp_graphs *hzp_graphs_create(struct hzp_device *dev)
{
    const char *off = getenv("HZP_GRAPHS");
    if (!hzp_device_has_graphs(dev) || (off && strcmp(off, "0") == 0))
        return NULL;
    struct hzp_graphs *g = hzp_xcalloc(1, sizeof(*g));
    g->dev = dev;
    return g;
}

static void drop(struct hzp_graphs *g, struct kept *k)
{
    hzp_graph_close(g->dev, k->graph);
    free(k->key);
    memset(k, 0, sizeof(*k));
}

void hzp_graphs_destroy(struct hzp_graphs *g)
{
    if (!g)
        return;
    for (int i = 0; i < KEPT; i++)
        drop(g, &g->kept[i]);
    free(g->key);
    free(g);
}

int32_t hzp_graphs_fit(const struct hzp_graphs *g, const struct hzp_plan *plan)
{
    int32_t count = 0;
    if (!g || g->stats.refusals >= REFUSALS_MAX)
        return 0;
    for (; count < plan->items && !plan->item[count].train; count++) {
        const struct hzp_item *item = &plan->item[count];
        if (item->op == HZP_OP_attn_prefill || item->rides)
            return 0; /* no such step comes again as it was */
        if (item->lane != plan->item[0].lane)
            break;
    }
    if (count < ITEMS_MIN || (count < plan->items && !plan->item[count].train))
        return 0; /* serving on several lanes is not one graph */
    for (int32_t i = 0; i < plan->items; i++)
        for (int32_t k = 0; k < plan->item[i].waits; k++) {
            int32_t w = plan->wait[plan->item[i].wait0 + k];
            if (w < count - 1 && plan->item[w].lane != plan->item[i].lane)
                return 0;
        }
    return count;
}

/* 256, then two steps to each doubling; no more than the table of pages has room for. */
static int32_t ctx_round(const struct hzp_attn_paged_args *a)
{
    int64_t step = CTX_MIN, most = (int64_t)a->page_stride * a->kv.page_rows;
    while (step < a->segs.ctx_max)
        step = step + step / 2 >= a->segs.ctx_max ? step + step / 2 : 2 * step;
    return (int32_t)HZP_MAX(HZP_MIN(step, most), (int64_t)a->segs.ctx_max);
}

#define HOLE(struct_, member, end)                                                                 \
    memset((unsigned char *)(struct_) + offsetof(__typeof__(*(struct_)), member) +                 \
               sizeof((struct_)->member),                                                          \
           0, (end)-offsetof(__typeof__(*(struct_)), member) - sizeof((struct_)->member))
#define TAIL(struct_, member) HOLE(struct_, member, sizeof(*(struct_)))

static void normal(const struct hzp_item *item, union args *ret)
{
    HZP_ASSERT(hzp_op_args_size(item->op) <= sizeof(ret->bytes));
    memcpy(ret->bytes, item->args, hzp_op_args_size(item->op));
    switch (item->op) {
    case HZP_OP_attn_decode:
        ret->attn.segs.ctx_max = ctx_round(&ret->attn);
        TAIL(&ret->attn.kv, type);
        TAIL(&ret->attn.segs, ctx_max);
        TAIL(&ret->attn, scale);
        break;
    case HZP_OP_kv_append:
        TAIL(&ret->append.kv, type);
        TAIL(&ret->append, heads);
        break;
    case HZP_OP_rmsnorm:
        TAIL(&ret->norm, eps);
        break;
    case HZP_OP_matmul:
        TAIL(&ret->matmul, accumulate);
        break;
    default: /* no padding in the others that decode steps have; if there were: no graph, no harm */
        break;
    }
}

static void put(struct hzp_graphs *g, const void *data, size_t size)
{
    size_t padded = HZP_ROUND_UP(size, (size_t)8);
    if (g->room - g->size < padded) {
        g->room = 2 * g->room + padded + 4096;
        g->key = hzp_xrealloc(g->key, g->room);
    }
    memset(g->key + g->size + padded - 8, 0, 8);
    memcpy(g->key + g->size, data, size);
    g->size += padded;
}

static void key_make(struct hzp_graphs *g, const struct hzp_plan *plan, int32_t items,
                     const struct hzp_lane *lane, int units)
{
    union args args;
    int32_t head[4] = {items, units, 0, 0};
    g->size = 0;
    put(g, head, sizeof(head));
    put(g, &lane, sizeof(lane));
    for (int32_t i = 0; i < items; i++) {
        int32_t op = (int32_t)plan->item[i].op;
        normal(&plan->item[i], &args);
        put(g, &op, sizeof(op));
        put(g, args.bytes, hzp_op_args_size(plan->item[i].op));
    }
}

static uint64_t hash(const unsigned char *key, size_t size)
{
    uint64_t h = size + 1, word;
    for (size_t i = 0; i < size; i += 8) {
        memcpy(&word, key + i, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h ? h : 1;
}

static struct kept *find(struct hzp_graphs *g, uint64_t h)
{
    for (int i = 0; i < KEPT; i++)
        if (g->kept[i].graph && g->kept[i].hash == h && g->kept[i].size == g->size &&
            memcmp(g->kept[i].key, g->key, g->size) == 0)
            return &g->kept[i];
    return NULL;
}

static struct kept *place(struct hzp_graphs *g)
{
    struct kept *oldest = &g->kept[0];
    for (int i = 0; i < KEPT; i++) {
        if (!g->kept[i].graph)
            return &g->kept[i];
        if (g->kept[i].used < oldest->used)
            oldest = &g->kept[i];
    }
    g->stats.evictions++;
    drop(g, oldest);
    return oldest;
}

static int capture(struct hzp_graphs *g, const struct hzp_plan *plan, int32_t items,
                   struct hzp_lane *lane, struct hzp_graph **ret)
{
    union args args;
    HZP_TRY(hzp_graph_begin(lane));
    int r = HZP_OK;
    for (int32_t i = 0; i < items && r >= 0; i++) {
        normal(&plan->item[i], &args);
        r = hzp_lane_issue(lane, plan->item[i].op, args.bytes);
    }
    struct hzp_graph *graph = NULL;
    int ended = hzp_graph_end(lane, &graph);
    if (r >= 0 && ended >= 0) {
        *ret = graph;
        return HZP_OK;
    }
    if (ended >= 0)
        hzp_graph_close(g->dev, graph);
    return r < 0 ? r : ended;
}

int hzp_graphs_issue(struct hzp_graphs *g, const struct hzp_plan *plan, int32_t items,
                     struct hzp_lane *lane, int units, struct hzp_span *span)
{
    key_make(g, plan, items, lane, units);
    uint64_t h = hash(g->key, g->size);
    struct kept *k = find(g, h);
    if (!k) {
        uint64_t *seen = &g->seen[h % SEEN];
        struct hzp_graph *graph = NULL;
        if (*seen != h) {
            *seen = h;
            return 0;
        }
        if (capture(g, plan, items, lane, &graph) < 0) {
            if (++g->stats.refusals == REFUSALS_MAX)
                hzp_log(HZP_LOG_WARN, "exec", "steps do not become graphs: they are issued op by op");
            return 0;
        }
        k = place(g);
        k->graph = graph;
        k->hash = h;
        k->size = g->size;
        k->key = memcpy(hzp_xmalloc(g->size), g->key, g->size);
        g->stats.captures++;
    }
    k->used = ++g->clock;
    g->stats.launches++;
    if (span)
        HZP_TRY(hzp_lane_time(lane, span));
    HZP_TRY(hzp_graph_launch(k->graph, lane));
    return 1;
}

struct hzp_graphs_stats hzp_graphs_read_stats(const struct hzp_graphs *g)
{
    return g ? g->stats : (struct hzp_graphs_stats){0};
}
