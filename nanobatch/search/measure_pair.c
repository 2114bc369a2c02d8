/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/measure.h"

#include "nanobatch/run/exec.h"

enum {
    LIST_MAX = 64,    /* the most different items of a side; they are repeated */
    ISSUED_MAX = 900, /* most items of a side in one run: both sides fit a lane's queue */
    ROUNDS = 3,
    ROUNDS_MIN = 2,
    DECODES = 32,
    PROMPT = 128,
    MICRO = 256, /* rows of the micro-batch the training items are taken from */
};

/* window_ns: how long both sides should run together in one round. rounds_ns: no further round
 * starts after this time, beyond the first ROUNDS_MIN. */
static const double window_ns = 25e6;
static const uint64_t rounds_ns = 500000000;

struct side {
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    const struct hzp_item *item[LIST_MAX];
    int32_t items;
    int32_t most; /* the most items to issue in one run; bounds the wall-clock time of slow items */
    int32_t issued;         /* items issued in the current run */
    double alone[LIST_MAX]; /* each item's time in nanoseconds while the other lane is idle */
    struct hzp_span span[ISSUED_MAX];
};

struct pair {
    struct hzp_device *dev;
    struct hzp_plan plan;
    struct side side[2];
};

static bool trains(enum hzp_class c)
{
    return c == HZP_CLASS_GRAD || c == HZP_CLASS_ATTN_BWD || c == HZP_CLASS_ROWS_BWD ||
           c == HZP_CLASS_UPDATE;
}

bool hzp_pair_possible(const struct hzp_rig *rig, enum hzp_class a, enum hzp_class b)
{
    const enum hzp_class both[] = {a, b};
    if (trains(a) && trains(b))
        return false; /* there is one chain, and its items run one after another */
    for (int i = 0; i < 2; i++)
        switch (both[i]) {
        case HZP_CLASS_NETWORK: /* all ranks take part: hzp_pair_exchange */
            return false;
        case HZP_CLASS_THIN:
        case HZP_CLASS_DECODE:
            if (rig->config.decode_max < 2)
                return false;
            break;
        case HZP_CLASS_WIDE:
        case HZP_CLASS_PREFILL:
        case HZP_CLASS_ROWS:
            if (rig->config.prefill_max < 2)
                return false;
            break;
        case HZP_CLASS_UPDATE:
            if (!rig->config.draft)
                return false; /* fall through */
        default:
            if (!rig->train)
                return false;
        }
    return true;
}

/* Builds the plan the items are taken from: two nano-batches of decode rows, two of prompt rows,
 * and a chain. */
static int build(struct pair *p, struct hzp_rig *rig, bool update)
{
    const struct hzp_rig_config *c = &rig->config;
    int32_t decode = HZP_MIN(c->decode_max, 2 * DECODES) / 2;
    int32_t prompt = HZP_MIN(c->prefill_max, 2 * PROMPT) / 2;
    struct hzp_plan_shape shape = hzp_plan_sequential;
    shape.nanos = 4;
    shape.weight[0] = shape.weight[1] = decode;
    shape.weight[2] = shape.weight[3] = prompt;
    HZP_TRY(hzp_rig_serve_shallow(rig, 2 * decode, HZP_MIN(c->depth_max, 512), 2 * prompt));
    if (update)
        HZP_TRY(hzp_rig_update(rig));
    else
        HZP_TRY(hzp_rig_train(rig, rig->train ? HZP_MIN(rig->micro->rows_max, MICRO) : 0));
    hzp_rig_build(rig, &shape, 0, rig->chain.items, &p->plan);
    return HZP_OK;
}

static bool appends(const struct hzp_item *item)
{
    return item->op == HZP_OP_rope && ((const struct hzp_rope_args *)item->args)->kv.k;
}

/* Collects items of the class that this side may run repeatedly: for serving, items of its own
 * nano-batch that belong to a layer; none whose output the other side may read. */
static void collect(struct pair *p, struct hzp_rig *rig, int which, enum hzp_class class)
{
    struct side *side = &p->side[which];
    int32_t decode = rig->batch->decode_segs / 2, prompt = (rig->batch->rows - 2 * decode) / 2;
    bool few = class == HZP_CLASS_THIN || class == HZP_CLASS_DECODE;
    int32_t row0 = few ? which * decode : 2 * decode + which * prompt;
    side->items = 0;
    for (int32_t i = 0; i < p->plan.items && side->items < LIST_MAX; i++) {
        const struct hzp_item *item = &p->plan.item[i];
        if (hzp_item_only(item, HZP_TENANT_TRAIN) != trains(class) || appends(item) ||
            item->op == HZP_OP_fill || item->op == HZP_OP_audit)
            continue;
        if (hzp_item_of(item, HZP_TENANT_SERVE) && (item->layer < 0 || item->row0 != row0))
            continue;
        enum hzp_class is = hzp_op_class(item->op, item->args);
        /* products count by their rows: decode THIN, prompt WIDE */
        if (few || class == HZP_CLASS_WIDE)
            is = is == HZP_CLASS_THIN || is == HZP_CLASS_WIDE
                     ? few ? HZP_CLASS_THIN : HZP_CLASS_WIDE
                     : is;
        if (is == class)
            side->item[side->items++] = item;
    }
}

static int issue(struct side *side, int32_t count)
{
    side->issued = count;
    for (int32_t i = 0; i < count; i++) {
        const struct hzp_item *item = side->item[i % side->items];
        HZP_TRY(hzp_lane_time(side->lane, &side->span[i]));
        HZP_TRY(hzp_lane_issue(side->lane, item->op, item->args));
    }
    return hzp_fence_record(side->fence, side->lane);
}

static double length(const struct hzp_span *span)
{
    return (double)(span->end_ns - span->begin_ns);
}

/* Keeps only as many of the side's items as fill the window once, and runs each of them, so that
 * their primitives exist. */
static int shorten(struct side *side)
{
    int32_t all = side->items, kept = 0;
    double sum = 0;
    const struct hzp_item *item[LIST_MAX];
    uint64_t begin = hzp_device_now_ns(side->lane->dev);
    memcpy(item, side->item, sizeof(item));
    while (kept < all && (kept < 4 || sum < window_ns)) {
        side->item[0] = item[kept++];
        side->items = 1;
        HZP_TRY(issue(side, 1));
        HZP_TRY(hzp_fence_wait(side->fence));
        sum += length(&side->span[0]);
    }
    memcpy(side->item, item, sizeof(item));
    side->items = kept;
    double each = (double)(hzp_device_now_ns(side->lane->dev) - begin) / HZP_MAX(kept, 1);
    side->most = (int32_t)HZP_MIN(HZP_MAX(4 * window_ns / HZP_MAX(each, 1.0), 4), ISSUED_MAX);
    return HZP_OK;
}

/* Measures how long each item takes while the other lane is idle; *ret_count is how many items fill
 * the window. */
static int alone(struct side *side, int32_t *ret_count)
{
    double all = 0, longest = 1;
    int32_t seen[LIST_MAX] = {0};
    /* the first round creates primitives and finds the count */
    for (int round = 0; round < 2; round++) {
        int32_t count = side->items;
        if (round)
            count = HZP_MIN(HZP_MAX(*ret_count, side->items), ISSUED_MAX);
        HZP_TRY(issue(side, count));
        HZP_TRY(hzp_fence_wait(side->fence));
        memset(side->alone, 0, sizeof(side->alone));
        all = 0;
        for (int32_t i = 0; i < count; i++) {
            double ns = length(&side->span[i]);
            side->alone[i % side->items] += ns;
            seen[i % side->items] += round;
            all += ns;
            longest = HZP_MAX(longest, ns);
        }
        double want = HZP_MAX(window_ns, 3 * longest) / HZP_MAX(all / count, 1);
        *ret_count = (int32_t)HZP_MIN(HZP_MAX(want, 4), side->most);
    }
    for (int32_t i = 0; i < side->items; i++)
        side->alone[i] /= HZP_MAX(seen[i], 1);
    return HZP_OK;
}

/* Sums, over the side's items that ran entirely while the other side ran, their time alone and
 * their time together with it. */
static void compare(const struct side *side, const struct side *other, double *ret_alone,
                    double *ret_together)
{
    uint64_t from = other->span[0].begin_ns, to = other->span[other->issued - 1].end_ns;
    for (int32_t i = 0; i < side->issued; i++)
        if (side->span[i].begin_ns >= from && side->span[i].end_ns <= to) {
            *ret_alone += side->alone[i % side->items];
            *ret_together += length(&side->span[i]);
        }
}

/* One round: each side alone, then both together. A side's rate is time alone / time together. */
static int measure_round(struct pair *p, double *ret_a, double *ret_b)
{
    int32_t count[2];
    double *ret[] = {ret_a, ret_b};
    for (int i = 0; i < 2; i++)
        HZP_TRY(alone(&p->side[i], &count[i]));
    for (int i = 1; i >= 0; i--)
        HZP_TRY(issue(&p->side[i], count[i]));
    for (int i = 0; i < 2; i++)
        HZP_TRY(hzp_fence_wait(p->side[i].fence));
    for (int i = 0; i < 2; i++) {
        double by_itself = 0, together = 0;
        compare(&p->side[i], &p->side[1 - i], &by_itself, &together);
        *ret[i] = together > 0 ? HZP_MIN(HZP_MAX(by_itself / together, 0.05), 1.1) : 1;
    }
    return HZP_OK;
}

/* Sets the pair's rates to the median of a few rounds. */
static int measure(struct pair *p, struct hzp_tables *t, enum hzp_class a, enum hzp_class b,
                   const int32_t cores[2], bool better)
{
    double rate[2][ROUNDS];
    for (int i = 0; i < 2; i++)
        HZP_TRY(hzp_lane_set_share(p->side[i].lane, cores[i]));
    if (p->side[0].lane->inlined || p->side[1].lane->inlined)
        return HZP_OK; /* ops run at issue, one after the other: there is no overlap to measure */
    for (int i = 0; i < 2; i++)
        HZP_TRY(shorten(&p->side[i]));
    int rounds = 0;
    uint64_t begin = hzp_device_now_ns(p->dev);
    while (rounds < ROUNDS_MIN ||
           (rounds < ROUNDS && hzp_device_now_ns(p->dev) - begin < rounds_ns)) {
        HZP_TRY(measure_round(p, &rate[0][rounds], &rate[1][rounds]));
        rounds++;
    }
    struct hzp_rate found = {(uint8_t)a,
                             (uint8_t)b,
                             (int16_t)cores[0],
                             (int16_t)cores[1],
                             hzp_median(rate[0], rounds),
                             hzp_median(rate[1], rounds)};
    if (a == b && cores[0] == cores[1])
        found.rate_a = found.rate_b = (found.rate_a + found.rate_b) / 2;
    if (better) {
        double rate_a = hzp_tables_rate(t, a, cores[0], b, cores[1]);
        double rate_b = hzp_tables_rate(t, b, cores[1], a, cores[0]);
        found.rate_a = HZP_MAX(found.rate_a, rate_a);
        found.rate_b = HZP_MAX(found.rate_b, rate_b);
    }
    hzp_tables_set_rate(t, &found);
    return HZP_OK;
}

static void close_pair(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        hzp_fence_close(p->side[i].fence);
        hzp_lane_close(p->side[i].lane);
    }
    hzp_plan_fini(&p->plan);
    free(p);
}

/* Each side's lane is one for what its class exhausts. */
static int open_pair(struct hzp_device *dev, enum hzp_class a, enum hzp_class b, struct pair **ret)
{
    enum hzp_bound use[] = {hzp_class_bound(a), hzp_class_bound(b)};
    struct pair *p = hzp_xcalloc(1, sizeof(*p));
    p->dev = dev;
    hzp_plan_init(&p->plan);
    *ret = p;
    for (int i = 0; i < 2; i++) {
        HZP_TRY(hzp_lane_open(dev, use[i], &p->side[i].lane));
        HZP_TRY(hzp_fence_open(dev, &p->side[i].fence));
    }
    return HZP_OK;
}

int hzp_pair_measure(struct hzp_rig *rig, struct hzp_tables *t, enum hzp_class a, enum hzp_class b,
                     bool better)
{
    struct pair *p;
    int r;
    HZP_TRY_GOTO(open_pair(rig->config.model->dev, a, b, &p));
    HZP_TRY_GOTO(build(p, rig, a == HZP_CLASS_UPDATE || b == HZP_CLASS_UPDATE));
    collect(p, rig, 0, a);
    collect(p, rig, 1, b);
    if (!p->side[0].items || !p->side[1].items)
        goto out; /* the model has no items of this class */
    for (int32_t s = 0; s < t->shares; s++) {
        bool shares = hzp_device_has_shares(p->dev);
        const int32_t cores[] = {shares ? t->cores[s] : t->threads,
                                 shares ? t->threads - t->cores[s] : t->threads};
        if (cores[1] > 0)
            HZP_TRY_GOTO(measure(p, t, a, b, cores, better));
    }
out:
    close_pair(p);
    return r;
}

/* ---- beside the link ---- */

/* As many items of the class as run about 1.5 times as long as `count` exchanges. */
static int32_t items_beside(const struct side *side, double exchanges_ns)
{
    double all = 0;
    for (int32_t i = 0; i < side->items; i++)
        all += side->alone[i];
    double want = 1.5 * exchanges_ns / HZP_MAX(all / side->items, 1.0);
    return (int32_t)HZP_MIN(HZP_MAX(want, 4), ISSUED_MAX);
}

static int beside_link(struct pair *p, struct hzp_tables *t, enum hzp_class c, int32_t count)
{
    double alone_ns[2] = {0, 0}, together_ns[2] = {0, 0};
    int32_t items = 0;
    HZP_TRY(hzp_lane_set_share(p->side[1].lane, 1));
    HZP_TRY(shorten(&p->side[0]));
    HZP_TRY(alone(&p->side[0], &items));
    for (int round = 0; round < ROUNDS_MIN; round++) {
        double all = 0;
        HZP_TRY(issue(&p->side[1], count));
        HZP_TRY(hzp_fence_wait(p->side[1].fence));
        for (int32_t i = 0; i < count; i++)
            all += length(&p->side[1].span[i]);
        p->side[1].alone[0] = all / count;
        /* the link first: on a device of one thread the others run while they are issued */
        HZP_TRY(issue(&p->side[1], count));
        HZP_TRY(issue(&p->side[0], items_beside(&p->side[0], all)));
        for (int i = 0; i < 2; i++)
            HZP_TRY(hzp_fence_wait(p->side[i].fence));
        for (int i = 0; i < 2; i++)
            compare(&p->side[i], &p->side[1 - i], &alone_ns[i], &together_ns[i]);
    }
    HZP_TRY(hzp_lane_set_share(p->side[1].lane, 0));
    double rate[2];
    for (int i = 0; i < 2; i++)
        rate[i] =
            together_ns[i] > 0 ? HZP_MIN(HZP_MAX(alone_ns[i] / together_ns[i], 0.05), 1.1) : 1;
    hzp_tables_set_rate(t, &(struct hzp_rate){(uint8_t)c, HZP_CLASS_NETWORK, (int16_t)t->threads, 1,
                                              rate[0], rate[1]});
    return HZP_OK;
}

int hzp_pair_exchange(struct hzp_rig *rig, struct hzp_tables *t, enum hzp_class c,
                      const struct hzp_collective_args *exchange, int32_t count)
{
    struct hzp_item item = {.op = HZP_OP_collective, .args = exchange};
    struct pair *p;
    int r;
    HZP_TRY_GOTO(open_pair(rig->config.model->dev, c, HZP_CLASS_NETWORK, &p));
    HZP_TRY_GOTO(build(p, rig, false));
    collect(p, rig, 0, c);
    p->side[1].item[0] = &item;
    p->side[1].items = 1;
    if (p->side[0].items) /* else the model has no items of this class, on all ranks */
        HZP_TRY_GOTO(beside_link(p, t, c, HZP_MIN(count, ISSUED_MAX)));
out:
    close_pair(p);
    return r;
}

/* ---- handover between lanes ---- */

/* Measures the time to issue an item (issue_ns), and whether the first lane starts only after the
 * issuing thread has issued everything (led). */
static int measure_issue(struct pair *p, struct hzp_rig *rig, struct hzp_tables *t)
{
    enum { COUNT = 200 };
    collect(p, rig, 0, HZP_CLASS_ROWS);
    collect(p, rig, 1, HZP_CLASS_ROWS);
    if (!p->side[0].items || !p->side[1].items)
        return HZP_OK;
    for (int i = 0; i < 2; i++)
        HZP_TRY(
            hzp_lane_set_share(p->side[i].lane, hzp_device_has_shares(p->dev) ? t->cores[0] : 0));
    uint64_t begin = hzp_device_now_ns(p->dev);
    for (int i = 0; i < 2; i++)
        HZP_TRY(issue(&p->side[i], COUNT));
    uint64_t end = hzp_device_now_ns(p->dev);
    for (int i = 0; i < 2; i++)
        HZP_TRY(hzp_fence_wait(p->side[i].fence));
    bool inlined = p->side[0].lane->inlined;
    t->issue_ns = inlined ? 0 : (double)(end - begin) / (2 * COUNT);
    t->led = inlined || (end > begin && p->side[0].span[0].begin_ns >= end);
    for (int i = 0; i < 2; i++)
        HZP_TRY(hzp_lane_set_share(p->side[i].lane, 0));
    return HZP_OK;
}

struct latencies {
    double ns[2][4096]; /* waits short enough to be polled; waits that slept */
    int32_t count[2];
};

/* Adds the latencies of items that had to wait for another lane: from the end of the last item
 * waited for to the item's own start. */
static void add_latencies(const struct hzp_plan *plan, const struct hzp_span *span,
                          struct latencies *all)
{
    uint64_t free_at[HZP_LANE_COUNT] = {0};
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        uint64_t end = 0, idle = free_at[item->lane];
        for (int32_t k = 0; k < item->waits; k++)
            end = HZP_MAX(end, span[plan->wait[item->wait0 + k]].end_ns);
        free_at[item->lane] = span[i].end_ns;
        if (!idle || end <= idle || span[i].begin_ns < end)
            continue;
        int slept = (double)(end - idle) > HZP_POLL_NS;
        if (all->count[slept] < HZP_COUNT(all->ns[0]))
            all->ns[slept][all->count[slept]++] = (double)(span[i].begin_ns - end);
    }
}

static int measure_latencies(struct hzp_rig *rig, struct hzp_plan *plan, struct hzp_tables *t)
{
    struct hzp_exec *exec = NULL;
    struct hzp_exec_times times;
    HZP_FREED struct latencies *all = hzp_xcalloc(1, sizeof(*all));
    struct hzp_plan_shape shape = hzp_plan_sequential;
    shape.order = HZP_ORDER_SKEWED;
    shape.weight[1] = 1;
    for (int i = 0; i < 2; i++)
        shape.lane[i][HZP_KIND_DECODE] = shape.lane[i][HZP_KIND_PREFILL] = HZP_LANE_MEMORY;
    if (rig->config.model->tensor)
        shape.network_lane = HZP_LANE_NETWORK;
    int r = hzp_exec_create(rig->config.model->dev, &exec);
    for (int run = 0; run < 6 && r == HZP_OK; run++) {
        shape.nanos = 1 + run % 2;
        hzp_rig_build(rig, &shape, 0, 0, plan);
        r = hzp_exec_run(exec, plan, NULL, &times);
        if (r == HZP_OK && run > 1 && hzp_exec_spans(exec))
            add_latencies(plan, hzp_exec_spans(exec), all);
    }
    if (r == HZP_OK) {
        t->handover_ns = all->count[0] ? hzp_median(all->ns[0], all->count[0]) : t->gap_ns;
        t->wakeup_ns = all->count[1] ? hzp_median(all->ns[1], all->count[1]) : t->handover_ns;
    }
    hzp_exec_destroy(exec);
    return r;
}

int hzp_pair_handover(struct hzp_rig *rig, struct hzp_tables *t)
{
    struct pair *p;
    int r;
    HZP_TRY_GOTO(open_pair(rig->config.model->dev, HZP_CLASS_ROWS, HZP_CLASS_ROWS, &p));
    HZP_TRY_GOTO(build(p, rig, false));
    HZP_TRY_GOTO(measure_issue(p, rig, t));
    HZP_TRY_GOTO(measure_latencies(rig, &p->plan, t));
out:
    close_pair(p);
    return r;
}
