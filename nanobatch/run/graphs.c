/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/run/graphs.h"

#include "device/fallback.h"

enum {
    ITEMS_MIN = 8,
    REFUSALS_MAX = 3, /* failed captures of a key; then it is not captured again */
    REFUSED_MAX = 64, /* keys with failed captures that are remembered */
    CREDIT_MAX = 4,   /* captures while requests wait, until steps earn more */
    CREDIT_STEPS = 16 /* steps that earn one */
};

struct refused {
    uint64_t hash; /* 0: free */
    int32_t times;
};

struct kept {
    struct hzp_graph *graph; /* NULL: free */
    uint64_t hash;
    uint64_t used; /* when the graph's set was last used */
    int32_t lead;  /* index of the first graph of its set, the graph and its variants */
    unsigned char *key;
    size_t size;
    int32_t pieces, nodes; /* graphs of the driver; nodes in all of them */
    size_t bytes;          /* bytes of the device's memory */
};

struct hzp_graphs {
    struct hzp_device *dev;
    struct kept *kept; /* [room_max] */
    uint64_t *seen;    /* [2 room_max] hashes of the latest keys that came once; 0: none */
    int32_t room_max;
    struct hzp_graphs_room limits;
    int32_t seen_next;          /* the oldest, overwritten next */
    hzp_graph_variant *variant; /* NULL: no variants */
    void *ctx;
    struct hzp_plan variant_plan;
    uint64_t clock;
    unsigned char *key; /* key of the current step */
    size_t size, room;
    struct hzp_plan_fences fences; /* between the lanes of a capture */
    struct refused refused[REFUSED_MAX];
    int32_t refused_next;  /* the oldest, overwritten next */
    bool steady;           /* captures are rationed */
    int32_t credit, steps; /* captures allowed; steps since one was earned */
    struct hzp_graphs_stats stats;
};

/* An op's arguments as captured: with the longest context there can be, padding zeroed. */
union args {
    struct hzp_attn_paged_args attn;
    struct hzp_embed_args embed;
    struct hzp_fill_args fill;
    struct hzp_swiglu_args swiglu;
    struct hzp_rope_args rope;
    struct hzp_rmsnorm_args norm;
    struct hzp_codes_args codes;
    struct hzp_cast_args cast;
    struct hzp_matmul_args matmul;
    struct hzp_project_args project;
    unsigned char bytes[320];
};

int hzp_plan_fences_assign(struct hzp_plan_fences *f, struct hzp_device *dev,
                           const struct hzp_plan *plan, int32_t from, int32_t to, int32_t more)
{
    int32_t used = 0;
    f->of = hzp_xgrow(f->of, &f->of_room, plan->items, sizeof(*f->of));
    for (int32_t i = from; i < to; i++) {
        f->of[i] = -1;
        for (int32_t k = 0; k < plan->item[i].waits; k++) {
            int32_t w = plan->wait[plan->item[i].wait0 + k];
            if (w >= from && plan->item[w].lane != plan->item[i].lane && f->of[w] < 0)
                f->of[w] = used++;
        }
    }
    int32_t wanted = used ? used + more : 0;
    f->fence = hzp_xgrow(f->fence, &f->room, wanted, sizeof(*f->fence));
    for (; f->opened < wanted; f->opened++)
        HZP_TRY(hzp_fence_open(dev, &f->fence[f->opened]));
    return HZP_OK;
}

void hzp_plan_fences_close(struct hzp_plan_fences *f)
{
    for (int32_t i = 0; i < f->opened; i++)
        hzp_fence_close(f->fence[i]);
    free(f->fence);
    free(f->of);
}

struct hzp_graphs *hzp_graphs_create(struct hzp_device *dev)
{
    const char *off = getenv("HZP_GRAPHS");
    if (!hzp_device_has_graphs(dev) || (off && strcmp(off, "0") == 0))
        return NULL;
    struct hzp_graphs *g = hzp_xcalloc(1, sizeof(*g));
    g->dev = dev;
    g->credit = CREDIT_MAX;
    hzp_plan_init(&g->variant_plan);
    hzp_graphs_prepare(g, NULL, NULL, &(struct hzp_graphs_room){0});
    return g;
}

void hzp_graphs_prepare(struct hzp_graphs *g, hzp_graph_variant *variant, void *ctx,
                        const struct hzp_graphs_room *room)
{
    if (!g)
        return;
    HZP_ASSERT(g->stats.captures == 0);
    g->variant = variant;
    g->ctx = ctx;
    g->limits = *room;
    g->room_max = HZP_MAX(HZP_MIN(room->count, (int32_t)HZP_GRAPHS_MAX), (int32_t)HZP_GRAPHS_MIN);
    free(g->kept);
    free(g->seen);
    g->kept = hzp_xcalloc((size_t)g->room_max, sizeof(*g->kept));
    g->seen = hzp_xcalloc(2 * (size_t)g->room_max, sizeof(*g->seen));
    g->seen_next = 0;
}

static void drop(struct hzp_graphs *g, struct kept *k)
{
    hzp_graph_close(g->dev, k->graph);
    g->stats.graphs -= (uint64_t)k->pieces;
    g->stats.nodes -= (uint64_t)k->nodes;
    g->stats.bytes -= k->bytes;
    free(k->key);
    memset(k, 0, sizeof(*k));
}

void hzp_graphs_steady(struct hzp_graphs *g)
{
    if (g)
        g->steady = true;
}

void hzp_graphs_destroy(struct hzp_graphs *g)
{
    if (!g)
        return;
    for (int32_t i = 0; i < g->room_max; i++)
        drop(g, &g->kept[i]);
    hzp_plan_fences_close(&g->fences);
    hzp_plan_fini(&g->variant_plan);
    free(g->kept);
    free(g->seen);
    free(g->key);
    free(g);
}

/* Whether the part is on several lanes. */
static bool spreads(const struct hzp_plan *plan, const struct hzp_graph_part *part)
{
    for (int32_t i = part->from; i < part->to; i++)
        if (plan->item[i].lane != plan->item[part->from].lane)
            return true;
    return false;
}

bool hzp_graphs_fit(const struct hzp_graphs *g, const struct hzp_plan *plan,
                    struct hzp_graph_part *ret)
{
    if (!g || !plan->items)
        return false;
    /* The pass over the rows begins with the embedding; a gather before it fetches tokens, a
     * scatter changes the table of pages. */
    struct hzp_graph_part part = {.from = 0};
    while (part.from < plan->items && (plan->item[part.from].op == HZP_OP_gather ||
                                       plan->item[part.from].op == HZP_OP_scatter))
        part.from++;
    for (part.to = part.from;
         part.to < plan->items && hzp_item_of(&plan->item[part.to], HZP_TENANT_SERVE); part.to++)
        if (plan->item[part.to].op == HZP_OP_attn_prefill || plan->item[part.to].rides ||
            plan->item[part.to].op == HZP_OP_collective)
            return false; /* the key would not repeat, or not in the same step on all ranks */
    *ret = part;
    return part.to - part.from >= ITEMS_MIN;
}

/* What a row of the page table has room for: what decode attention launches does not depend on the
 * contexts, so one graph serves all. */
static int32_t ctx_most(const struct hzp_attn_paged_args *a)
{
    int64_t most = (int64_t)a->page_stride * a->kv.page_rows;
    return (int32_t)HZP_MIN(most, (int64_t)INT32_MAX);
}

int32_t hzp_graphs_count(const struct hzp_batch_config *max, int32_t slots, int32_t batches,
                         int32_t shapes)
{
    int32_t most = hzp_batch_decodes_max(max);
    int64_t sizes = 0;
    for (int32_t rows = 1; rows <= most; rows = hzp_batch_bucket(rows) + 1)
        sizes++;
    return (int32_t)HZP_MIN(sizes * slots * batches * shapes, (int64_t)INT32_MAX);
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
        ret->attn.segs.ctx_max = ctx_most(&ret->attn);
        HOLE(&ret->attn.kv, type, offsetof(struct hzp_kv, k_scale));
        TAIL(&ret->attn.segs, ctx_max);
        TAIL(&ret->attn, window);
        break;
    case HZP_OP_rope:
        HOLE(&ret->rope.kv, type, offsetof(struct hzp_kv, k_scale));
        TAIL(&ret->rope, plus_one);
        break;
    case HZP_OP_embed:
        TAIL(&ret->embed, first);
        break;
    case HZP_OP_fill:
        TAIL(&ret->fill, value);
        break;
    case HZP_OP_swiglu:
        TAIL(&ret->swiglu, gelu);
        break;
    case HZP_OP_rmsnorm:
        TAIL(&ret->norm, centred);
        break;
    case HZP_OP_codes:
        TAIL(&ret->codes, eps);
        break;
    case HZP_OP_cast:
        TAIL(&ret->cast, cap);
        break;
    case HZP_OP_matmul:
        TAIL(&ret->matmul, accumulate);
        break;
    case HZP_OP_project:
        TAIL(&ret->project.product, accumulate);
        break;
    default: /* other ops of decode steps have no padding; with padding no key would match */
        break;
    }
}

static void put(struct hzp_graphs *g, const void *data, size_t size)
{
    size_t padded = HZP_ROUND_UP(size, (size_t)8);
    if (size == 0)
        return;
    if (g->room - g->size < padded) {
        g->room = 2 * g->room + padded + 4096;
        g->key = hzp_xrealloc(g->key, g->room);
    }
    memset(g->key + g->size + padded - 8, 0, 8);
    memcpy(g->key + g->size, data, size);
    g->size += padded;
}

/* Appends to the key the waits within the part, as indices relative to its first item. Waits for
 * items outside the part are not in the graph. */
static void put_waits(struct hzp_graphs *g, const struct hzp_plan *plan,
                      const struct hzp_item *item, int32_t from)
{
    for (int32_t k = 0; k < item->waits; k++) {
        int32_t wait = plan->wait[item->wait0 + k] - from;
        if (wait >= 0)
            put(g, &wait, sizeof(wait));
    }
}

static void key_make(struct hzp_graphs *g, const struct hzp_plan *plan,
                     const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                     const int shares[HZP_LANE_COUNT])
{
    union args args;
    g->size = 0;
    put(g, lane, HZP_LANE_COUNT * sizeof(lane[0]));
    put(g, shares, HZP_LANE_COUNT * sizeof(shares[0]));
    for (int32_t i = part->from; i < part->to; i++) {
        const struct hzp_item *item = &plan->item[i];
        int32_t head[2] = {(int32_t)item->op, item->lane | item->cores << 8};
        normal(item, &args);
        put(g, head, sizeof(head));
        put(g, args.bytes, hzp_op_args_size(item->op));
        put_waits(g, plan, item, part->from);
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
    for (int32_t i = 0; i < g->room_max; i++)
        if (g->kept[i].graph && g->kept[i].hash == h && g->kept[i].size == g->size &&
            memcmp(g->kept[i].key, g->key, g->size) == 0)
            return &g->kept[i];
    return NULL;
}

/* Whether the key came before; remembers it. A ring, not a table indexed by hash: two alternating
 * steps with the same index would evict each other each time. */
static bool came_before(struct hzp_graphs *g, uint64_t h)
{
    for (int32_t i = 0; i < 2 * g->room_max; i++)
        if (g->seen[i] == h)
            return true;
    g->seen[g->seen_next] = h;
    g->seen_next = (g->seen_next + 1) % (2 * g->room_max);
    return false;
}

/* Evicts the least recently used set of variants as a whole, because the rest of a set would be
 * captured again at the next change of versions; `spare`: not that one.  False: there is none. */
static bool evict(struct hzp_graphs *g, const struct kept *spare)
{
    int32_t oldest = -1;
    for (int32_t i = 0; i < g->room_max; i++)
        if (g->kept[i].graph && g->kept[i].lead == i && &g->kept[i] != spare &&
            (oldest < 0 || g->kept[i].used < g->kept[oldest].used))
            oldest = i;
    for (int32_t i = 0; oldest >= 0 && i < g->room_max; i++)
        if (g->kept[i].graph && g->kept[i].lead == oldest) {
            g->stats.evictions++;
            drop(g, &g->kept[i]);
        }
    return oldest >= 0;
}

static struct kept *free_place(struct hzp_graphs *g)
{
    for (int32_t i = 0; i < g->room_max; i++)
        if (!g->kept[i].graph)
            return &g->kept[i];
    return NULL;
}

/* A place for a graph of these bytes, of lead's set; others are evicted as needed.  NULL: the set
 * alone would take more than there is. */
static struct kept *place(struct hzp_graphs *g, size_t bytes, const struct kept *lead)
{
    const size_t most = g->limits.bytes;
    bool room = !most || bytes <= most;
    while (room && most && g->stats.bytes + bytes > most)
        room = evict(g, lead);
    while (room && !free_place(g))
        room = evict(g, lead);
    return room ? free_place(g) : NULL;
}

/* The lanes that a part uses, in the order of their first items; returns how many. */
static int lanes_of(const struct hzp_plan *plan, const struct hzp_graph_part *part,
                    struct hzp_lane *const lane[HZP_LANE_COUNT],
                    struct hzp_lane *ret[HZP_LANE_COUNT])
{
    bool seen[HZP_LANE_COUNT] = {false};
    int lanes = 0;
    for (int32_t i = part->from; i < part->to; i++)
        if (!seen[plan->item[i].lane]) {
            seen[plan->item[i].lane] = true;
            ret[lanes++] = lane[plan->item[i].lane];
        }
    return lanes;
}

/* The driver's graphs that a capture of this part makes (hzp_graph_is_cut). */
static int32_t count_pieces(const struct hzp_graphs *g, const struct hzp_plan *plan,
                            const struct hzp_graph_part *part,
                            struct hzp_lane *const lane[HZP_LANE_COUNT])
{
    struct hzp_lane *used[HZP_LANE_COUNT];
    bool begun[HZP_LANE_COUNT] = {false};
    int32_t pieces = 0;
    if (!hzp_graph_is_cut(used, lanes_of(plan, part, lane, used)))
        return 1;
    for (int32_t i = part->from; i < part->to; i++) {
        const struct hzp_item *item = &plan->item[i];
        for (int32_t k = 0; k < item->waits; k++) {
            int32_t w = plan->wait[item->wait0 + k];
            if (w >= part->from && plan->item[w].lane != item->lane)
                begun[item->lane] = false;
        }
        pieces += !begun[item->lane];
        begun[item->lane] = g->fences.of[i] < 0;
    }
    return pieces;
}

static int capture_item(struct hzp_graphs *g, const struct hzp_plan *plan, int32_t i, int32_t from,
                        struct hzp_lane *const lane[HZP_LANE_COUNT])
{
    const struct hzp_item *item = &plan->item[i];
    union args args;
    for (int32_t k = 0; k < item->waits; k++) {
        int32_t w = plan->wait[item->wait0 + k];
        if (w >= from &&
            plan->item[w].lane != item->lane) /* all lanes start after the items before the part */
            HZP_TRY(hzp_lane_wait(lane[item->lane], g->fences.fence[g->fences.of[w]]));
    }
    normal(item, &args);
    hzp_lane_limit(lane[item->lane], item->cores);
    HZP_TRY(hzp_lane_issue(lane[item->lane], item->op, args.bytes));
    return g->fences.of[i] < 0
               ? HZP_OK
               : hzp_fence_record(g->fences.fence[g->fences.of[i]], lane[item->lane]);
}

static int capture(struct hzp_graphs *g, const struct hzp_plan *plan,
                   const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                   struct hzp_graph **ret)
{
    struct hzp_lane *used[HZP_LANE_COUNT];
    int lanes = lanes_of(plan, part, lane, used);
    _Static_assert((int)HZP_LANE_COUNT <= (int)HZP_GRAPH_LANES_MAX, "a plan's lanes are a graph's");
    HZP_TRY(hzp_graph_begin(used, lanes));
    int r = HZP_OK;
    for (int32_t i = part->from; i < part->to && r >= 0; i++)
        r = capture_item(g, plan, i, part->from, lane);
    struct hzp_graph *graph = NULL;
    int ended = hzp_graph_end(used[0], &graph);
    if (r >= 0 && ended >= 0) {
        *ret = graph;
        return HZP_OK;
    }
    if (ended >= 0)
        hzp_graph_close(g->dev, graph);
    return r < 0 ? r : ended;
}

/* Whether captures of this key have failed too often. */
static bool is_refused(const struct hzp_graphs *g, uint64_t h)
{
    for (int32_t i = 0; i < REFUSED_MAX; i++)
        if (g->refused[i].hash == h)
            return g->refused[i].times >= REFUSALS_MAX;
    return false;
}

/* Remembers that so many captures of this key have failed. */
static void refuse(struct hzp_graphs *g, uint64_t h, int32_t times)
{
    int32_t i = 0;
    while (i < REFUSED_MAX && g->refused[i].hash != h)
        i++;
    if (i == REFUSED_MAX) {
        i = g->refused_next;
        g->refused_next = (i + 1) % REFUSED_MAX;
        g->refused[i] = (struct refused){h, 0};
    }
    g->refused[i].times += times;
}

/* Counts a step that is issued op by op because it has no graph. */
static void count_slow(struct hzp_graphs *g, const struct hzp_plan *plan,
                       const struct hzp_graph_part *part, const char *reason)
{
    hzp_device_fallback(g->dev, HZP_FALLBACK_graph, part->to - part->from, spreads(plan, part), 0,
                        reason);
}

/* Captures and keeps the graph of the step whose key is in g->key; NULL: it cannot be captured.
 * lead: the first of its set; NULL: this graph is the first. */
static struct kept *keep_one(struct hzp_graphs *g, uint64_t h, const struct hzp_plan *plan,
                             const struct hzp_graph_part *part,
                             struct hzp_lane *const lane[HZP_LANE_COUNT], const struct kept *lead)
{
    struct hzp_graph *graph = NULL;
    int32_t nodes = part->to - part->from;
    if (is_refused(g, h) ||
        hzp_plan_fences_assign(&g->fences, g->dev, plan, part->from, part->to, 0) < 0)
        return NULL;
    int32_t pieces = count_pieces(g, plan, part, lane);
    size_t bytes = (size_t)pieces * g->limits.graph + (size_t)nodes * g->limits.node;
    struct kept *k = place(g, bytes, lead); /* before the capture takes memory */
    if (!k) {
        if (!lead) { /* more than there is for all graphs: that does not change */
            refuse(g, h, REFUSALS_MAX);
            count_slow(g, plan, part, "no room in the driver's memory for its graph");
        }
        return NULL;
    }
    if (capture(g, plan, part, lane, &graph) < 0) {
        refuse(g, h, 1);
        g->stats.refusals[spreads(plan, part)]++;
        if (!lead) /* a variant is counted when its step comes; this step has its graph */
            count_slow(g, plan, part, "it could not be captured");
        return NULL;
    }
    k->graph = graph;
    k->pieces = pieces;
    k->nodes = nodes;
    k->bytes = bytes;
    g->stats.graphs += (uint64_t)pieces;
    g->stats.nodes += (uint64_t)nodes;
    g->stats.bytes += bytes;
    k->lead = (int32_t)((lead ? lead : k) - g->kept);
    k->hash = h;
    k->used = ++g->clock;
    k->size = g->size;
    k->key = memcpy(hzp_xmalloc(g->size), g->key, g->size);
    g->stats.captures++;
    return k;
}

/* The same for the step and all its variants. */
static struct kept *keep(struct hzp_graphs *g, uint64_t h, const struct hzp_plan *plan,
                         const struct hzp_graph_part *part,
                         struct hzp_lane *const lane[HZP_LANE_COUNT],
                         const int shares[HZP_LANE_COUNT])
{
    struct kept *k = keep_one(g, h, plan, part, lane, NULL);
    struct hzp_graph_part other;
    for (int32_t i = 0; k && g->variant && g->variant(g->ctx, plan, i, &g->variant_plan); i++) {
        if (!hzp_graphs_fit(g, &g->variant_plan, &other) || other.from != part->from ||
            other.to != part->to)
            continue;
        key_make(g, &g->variant_plan, &other, lane, shares);
        uint64_t variant = hash(g->key, g->size);
        if (!find(g, variant))
            keep_one(g, variant, &g->variant_plan, &other, lane, k);
    }
    return k;
}

int hzp_graphs_reserve(struct hzp_graphs *g, const struct hzp_plan *plan, int32_t more)
{
    return g ? hzp_plan_fences_assign(&g->fences, g->dev, plan, 0, plan->items, more) : HZP_OK;
}

void hzp_graphs_make(struct hzp_graphs *g, const struct hzp_plan *plan,
                     const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                     const int shares[HZP_LANE_COUNT])
{
    key_make(g, plan, part, lane, shares);
    uint64_t h = hash(g->key, g->size);
    if (!find(g, h))
        keep(g, h, plan, part, lane, shares);
}

/* Every CREDIT_STEPS steps earn a capture. */
static void earn(struct hzp_graphs *g)
{
    if (++g->steps < CREDIT_STEPS)
        return;
    g->steps = 0;
    g->credit = HZP_MIN(g->credit + 1, (int32_t)CREDIT_MAX);
}

int hzp_graphs_issue(struct hzp_graphs *g, const struct hzp_plan *plan,
                     const struct hzp_graph_part *part, struct hzp_lane *const lane[HZP_LANE_COUNT],
                     const int shares[HZP_LANE_COUNT], struct hzp_span *span)
{
    struct hzp_lane *first = lane[plan->item[part->from].lane];
    key_make(g, plan, part, lane, shares);
    uint64_t h = hash(g->key, g->size);
    struct kept *k = find(g, h);
    earn(g);
    if (!k && is_refused(g, h)) {
        count_slow(g, plan, part, "it is not captured any more");
        return 0;
    }
    if (!k) {
        if (!came_before(g, h) || (g->steady && g->credit == 0))
            return 0;
        g->credit -= g->steady;
        k = keep(g, h, plan, part, lane, shares);
        if (!k)
            return 0;
    }
    g->kept[k->lead].used = ++g->clock;
    g->stats.launches++;
    g->stats.pieces += (uint64_t)k->pieces;
    if (span)
        HZP_TRY(hzp_lane_time(first, span));
    HZP_TRY(hzp_graph_launch(k->graph, first));
    return 1;
}

struct hzp_graphs_stats hzp_graphs_read_stats(const struct hzp_graphs *g)
{
    return g ? g->stats : (struct hzp_graphs_stats){0};
}
