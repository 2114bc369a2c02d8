/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/run/exec.h"

#include "base/thread.h"
#include "base/timeline.h"
#include "device/meter.h"

/* Writes what a plan's items did to the timeline (base/timeline.h), one track a lane.
 *
 * Short items are written together, up to a millisecond of one tenant's: a step of many short ops
 * then costs no more than one of few long ones, and a ring reaches back for seconds. */
struct record {
    struct hzp_track *lane[HZP_LANE_COUNT]; /* NULL: no item has run on the lane */
};

static const uint64_t short_ns = 50000, together_ns = 1000000;

/* Short items of one tenant and lane that follow each other. */
struct run {
    const char *name; /* NULL: none yet */
    uint64_t begin_ns, end_ns, items;
};

/* Closes the tracks; zeroed memory is an empty record. */
static void record_fini(struct record *r)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        hzp_track_close(r->lane[l]);
}

static void flush(struct hzp_track *track, struct run *run)
{
    if (run->name)
        hzp_track_add(track, run->name, run->begin_ns, run->end_ns, run->items);
    *run = (struct run){.name = NULL};
}

static const char *tenant_name(const struct hzp_item *item)
{
    return hzp_item_only(item, HZP_TENANT_TRAIN) ? "training"
           : item->rides                         ? "both"
           : hzp_item_of(item, HZP_TENANT_SERVE) ? "serving"
                                                 : "transfer";
}

static void add(struct hzp_track *track, struct run *run, const struct hzp_item *item,
                const struct hzp_span *span)
{
    const char *name = tenant_name(item);
    if (span->end_ns >= span->begin_ns + short_ns) {
        flush(track, run);
        hzp_track_add(track, hzp_op_name(item->op), span->begin_ns, span->end_ns, 1);
        return;
    }
    if (run->name != name || span->end_ns > run->begin_ns + together_ns)
        flush(track, run);
    if (!run->name)
        *run = (struct run){name, span->begin_ns, span->end_ns, 0};
    run->end_ns = span->end_ns;
    run->items++;
}

/* span[i]: when item i ran, by the clock of hzp_now_ns. */
static void record_run(struct record *r, const struct hzp_plan *plan, const struct hzp_span *span)
{
    struct run run[HZP_LANE_COUNT] = {0};
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        int l = item->lane;
        if (!r->lane[l])
            r->lane[l] =
                hzp_track_open(hzp_lane_name_text((enum hzp_lane_name)l), HZP_TRACK_OPS, false);
        add(r->lane[l], &run[l], item, &span[i]);
    }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        flush(r->lane[l], &run[l]);
}

struct hzp_flight {
    struct hzp_exec *exec;
    const struct hzp_plan *plan;
    struct hzp_plan_ends last;                               /* the plan's last items */
    struct hzp_fence *end[HZP_TENANT_COUNT][HZP_LANE_COUNT]; /* recorded behind those */
    struct hzp_plan_fences fences; /* for items that another lane waits for */
    struct hzp_span *span;         /* [items_room] */
    int32_t items_room;
    struct hzp_graph_part graphed; /* the items issued as one graph; from == to: none */
    struct hzp_span graph;         /* when the graph ran */
    bool ended;                    /* true: all items had ended when issuing returned */
    uint64_t begin_ns;             /* when issuing began */
};

struct hzp_exec {
    struct hzp_device *dev;
    struct hzp_lane *lane[HZP_LANE_COUNT]; /* NULL: no plan has used the lane */
    struct hzp_flight *own;                /* used by hzp_exec_run */
    struct hzp_graphs *graphs;             /* NULL: the device has no graphs, or they are off */
    int share[HZP_LANE_COUNT];             /* the newest plan's */
    bool timed;                            /* the device times single ops */
    bool alone;                            /* lanes queue their ops even without shares */
    uint64_t ended_ns[HZP_TENANT_COUNT]; /* when the tenant's newest item ended, as far as known */
    struct hzp_plan_ends landed;         /* last items of the newest landed plan */
    struct hzp_profile profile;
    struct record record;
    struct hzp_op_times prior; /* used if the caller passes no op times; it learns nothing */
};

static const enum hzp_bound use[HZP_LANE_COUNT] = {
    HZP_BOUND_COMPUTE, HZP_BOUND_MEMORY, HZP_BOUND_NETWORK, HZP_BOUND_COPY, HZP_BOUND_COMPUTE};

enum { ALWAYS = 1 << HZP_LANE_COMPUTE }; /* lanes that are always open */

size_t hzp_exec_bytes(struct hzp_device *dev, uint32_t lanes)
{
    size_t bytes = 0;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if ((lanes | ALWAYS) >> l & 1)
            bytes += hzp_lane_bytes(dev, use[l]);
    return bytes;
}

int hzp_exec_open_lanes(struct hzp_exec *e, uint32_t lanes)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if ((lanes >> l & 1) && !e->lane[l])
            HZP_TRY(hzp_lane_open(e->dev, use[l], &e->lane[l]));
    return HZP_OK;
}

int hzp_exec_create(struct hzp_device *dev, struct hzp_exec **ret)
{
    struct hzp_exec *e = hzp_xcalloc(1, sizeof(*e));
    struct hzp_rates rates = hzp_rates_of(dev->threads);
    hzp_op_times_init(&e->prior, &rates);
    e->dev = dev;
    e->timed = hzp_device_times_ops(dev) || !hzp_device_queues(dev);
    int r;
    HZP_TRY_GOTO(hzp_exec_open_lanes(e, ALWAYS));
    e->alone = !e->lane[HZP_LANE_COMPUTE]->inlined;
    e->graphs = hzp_graphs_create(dev);
    HZP_TRY_GOTO(hzp_flight_open(e, &e->own));
    *ret = e;
    return HZP_OK;
out:
    hzp_exec_destroy(e);
    return r;
}

void hzp_exec_destroy(struct hzp_exec *e)
{
    if (!e)
        return;
    hzp_flight_close(e->own);
    hzp_graphs_destroy(e->graphs);
    record_fini(&e->record);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        hzp_lane_close(e->lane[l]);
    free(e);
}

int hzp_flight_open(struct hzp_exec *exec, struct hzp_flight **ret)
{
    struct hzp_flight *f = hzp_xcalloc(1, sizeof(*f));
    int r = HZP_OK;
    f->exec = exec;
    for (int t = 0; t < HZP_TENANT_COUNT; t++)
        for (int l = 0; l < HZP_LANE_COUNT && r >= 0; l++)
            r = hzp_fence_open(exec->dev, &f->end[t][l]);
    if (r < 0) {
        hzp_flight_close(f);
        return r;
    }
    *ret = f;
    return HZP_OK;
}

void hzp_flight_close(struct hzp_flight *f)
{
    if (!f)
        return;
    hzp_plan_fences_close(&f->fences);
    for (int t = 0; t < HZP_TENANT_COUNT; t++)
        for (int l = 0; l < HZP_LANE_COUNT; l++)
            hzp_fence_close(f->end[t][l]);
    free(f->span);
    free(f);
}

const struct hzp_profile *hzp_exec_profile(const struct hzp_exec *exec)
{
    return &exec->profile;
}

/* The tenant's fraction of the item's duration, 0 .. 1. If an item has rows of both tenants,
 * serving's fraction is the time it would take without training's rows, over the item's time. */
static double part_of(const struct hzp_op_times *known, const struct hzp_item *item,
                      enum hzp_tenant tenant)
{
    if (!hzp_item_of(item, tenant))
        return 0;
    double serving = item->rides ? hzp_item_serving_part(known, item) : 1;
    return item->rides && tenant != HZP_TENANT_SERVE ? 1 - serving : serving;
}

static void profile_add(struct hzp_profile *profile, const struct hzp_op_times *known,
                        const struct hzp_item *item, uint64_t ns)
{
    struct hzp_cost cost = hzp_op_cost(item->op, item->args);
    for (int t = 0; t < HZP_TENANT_COUNT; t++) {
        struct hzp_profile_op *op = &profile->of[t][item->op];
        double part = part_of(known, item, (enum hzp_tenant)t);
        if (!hzp_item_of(item, (enum hzp_tenant)t))
            continue;
        op->runs++;
        op->ns += (uint64_t)((double)ns * part);
        op->flops += (uint64_t)((double)cost.flops * part);
        op->bytes += (uint64_t)((double)cost.bytes * part);
    }
}

/* --- Issuing ---------------------------------------------------------------------------------- */

/* What a plan does on a lane: nothing, collectives and ops on few rows between them, compute. */
enum { IDLE, EXCHANGES, COMPUTES };

/* Sets the role of each lane; returns how many lanes compute. */
static int lanes_used(const struct hzp_plan *plan, uint8_t role[HZP_LANE_COUNT],
                      int *ret_exchanging)
{
    int lanes = 0;
    uint32_t collective = 0, heavy = 0; /* a bit for each lane */
    *ret_exchanging = 0;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        role[l] = plan->computing >> l & 1 ? COMPUTES : IDLE;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        collective |= (uint32_t)(item->op == HZP_OP_collective) << item->lane;
        heavy |= (uint32_t)(hzp_op_kind(item->op) != HZP_KIND_ROWS) << item->lane;
        role[item->lane] = COMPUTES;
    }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if ((collective & ~heavy) >> l & 1)
            role[l] = EXCHANGES;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        lanes += role[l] == COMPUTES;
        *ret_exchanging += role[l] == EXCHANGES;
    }
    return lanes;
}

bool hzp_exec_alone(const struct hzp_exec *e)
{
    return e->alone;
}

bool hzp_exec_queues(const struct hzp_exec *e, const struct hzp_plan *plan)
{
    uint8_t role[HZP_LANE_COUNT];
    int exchanging, lanes = lanes_used(plan, role, &exchanging);
    bool several = e->dev->threads > 1 ? lanes + exchanging > 1 : lanes > 0 && exchanging > 0;
    return e->alone || (hzp_device_queues(e->dev) && several);
}

/* The number of cores (SMs) of a lane whose shape says `share`; 0: an equal part of `threads`. */
static int share_of(int threads, int share, int lanes)
{
    return share ? share : HZP_MAX(threads / HZP_MAX(lanes, 1), 1);
}

/* Opens the plan's lanes and sets their shares: if several lanes compute, each gets its own share;
 * a single one gets the whole device, or beside a lane that only exchanges what the shape says.
 * Such a lane mostly waits, and takes no part of the others' shares. */
static int share(struct hzp_exec *e, const struct hzp_plan *plan, bool *ret_inlined)
{
    uint8_t role[HZP_LANE_COUNT];
    int exchanging, lanes = lanes_used(plan, role, &exchanging);
    uint32_t used = 0;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        used |= (role[l] != IDLE) << l;
    HZP_TRY(hzp_exec_open_lanes(e, used));
    *ret_inlined = true;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        if (!e->lane[l])
            continue;
        e->share[l] = 0;
        if (role[l] == COMPUTES && lanes > 1)
            e->share[l] = share_of(e->dev->threads, plan->share[l], lanes);
        else if (role[l] == COMPUTES && exchanging && plan->share[l] < e->dev->threads)
            e->share[l] = plan->share[l];
        else if (role[l] == EXCHANGES && lanes > 0)
            e->share[l] = 1;
        HZP_TRY(hzp_lane_set_share(e->lane[l], e->share[l]));
        *ret_inlined &= role[l] == IDLE || e->lane[l]->inlined;
    }
    return HZP_OK;
}

/* Steps bring decode rows, prompt rows or both, with training or without. */
void hzp_exec_prepare(struct hzp_device *dev, const struct hzp_plan_shape *shape)
{
    enum { DECODES = 1, PROMPTS = 2, TRAINS = 4 };
    for (int with = 1; with < 8; with++) {
        bool used[HZP_LANE_COUNT] = {false};
        int shares[HZP_LANE_COUNT], lanes = 0, count = 0;
        if (!(with & (DECODES | PROMPTS)))
            continue;
        for (int kind = 0; kind < HZP_KIND_COUNT; kind++) {
            bool absent = (kind == HZP_KIND_DECODE && !(with & DECODES)) ||
                          (kind == HZP_KIND_PREFILL && !(with & PROMPTS));
            for (int32_t i = 0; i < shape->nanos && !absent; i++)
                used[shape->lane[i][kind]] |= shape->weight[i] > 0;
            used[shape->train_lane[kind]] |= (with & TRAINS) && kind != HZP_KIND_DECODE;
        }
        for (int l = 0; l < HZP_LANE_COUNT; l++)
            lanes += used[l];
        bool exchanging = shape->network_lane && !used[shape->network_lane];
        for (int l = 0; l < HZP_LANE_COUNT; l++)
            if (used[l] && lanes > 1)
                shares[count++] = share_of(dev->threads, shape->share[l], lanes);
            else if (used[l] && exchanging && shape->share[l] < dev->threads)
                shares[count++] = shape->share[l];
        if (exchanging)
            shares[count++] = 1;
        hzp_device_prepare_shares(dev, shares, count);
    }
}

int hzp_exec_open_shapes(struct hzp_exec *e, const struct hzp_plan_shapes *shapes)
{
    const struct hzp_plan_shape *shape;
    uint32_t lanes = 0;
    for (int32_t i = 0; hzp_plan_shapes_at(shapes, i, &shape) || i < 2; i++)
        lanes |= hzp_plan_shape_lanes(shape);
    HZP_TRY(hzp_exec_open_lanes(e, lanes));
    for (int32_t i = 0; hzp_plan_shapes_at(shapes, i, &shape) || i < 2; i++)
        if (shape)
            hzp_exec_prepare(e->dev, shape);
    return HZP_OK;
}

/* Runs the items one after another on the calling thread: the lanes have no queues. */
static int run_immediate(struct hzp_exec *e, const struct hzp_plan *plan, struct hzp_flight *f)
{
    uint64_t before = f->begin_ns;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        hzp_lane_limit(e->lane[item->lane], item->cores);
        HZP_TRY(hzp_lane_issue(e->lane[item->lane], item->op, item->args));
        uint64_t now = hzp_device_now_ns(e->dev);
        f->span[i] = (struct hzp_span){before, now};
        before = now;
    }
    return HZP_OK;
}

/* Makes a tenant's first item on a lane wait for the older plan, as hzp_plan_join describes. */
static int wait_for_older(struct hzp_exec *e, const struct hzp_item *item, enum hzp_tenant tenant,
                          const struct hzp_flight *older)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (l != item->lane && older->last.item[tenant][l] >= 0)
            HZP_TRY(hzp_lane_wait(e->lane[item->lane], older->end[tenant][l]));
    return HZP_OK;
}

static int issue_item(struct hzp_exec *e, const struct hzp_plan *plan, int32_t i,
                      struct hzp_flight *f)
{
    const struct hzp_item *item = &plan->item[i];
    struct hzp_lane *lane = e->lane[item->lane];
    for (int32_t k = 0; k < item->waits; k++) {
        int32_t w = plan->wait[item->wait0 + k];
        if (plan->item[w].lane != item->lane)
            HZP_TRY(hzp_lane_wait(lane, f->fences.fence[f->fences.of[w]]));
    }
    if (e->timed)
        HZP_TRY(hzp_lane_time(lane, &f->span[i]));
    hzp_lane_limit(lane, item->cores);
    HZP_TRY(hzp_lane_issue(lane, item->op, item->args));
    if (f->fences.of[i] >= 0)
        HZP_TRY(hzp_fence_record(f->fences.fence[f->fences.of[i]], lane));
    for (int t = 0; t < HZP_TENANT_COUNT; t++)
        if (f->last.item[t][item->lane] == i)
            HZP_TRY(hzp_fence_record(f->end[t][item->lane], lane));
    return HZP_OK;
}

/* Issues a decode step's items as one graph, on all their lanes. 1: done; 0: the items must be
 * issued one by one. */
static int issue_graph(struct hzp_exec *e, const struct hzp_plan *plan, struct hzp_flight *f,
                       const struct hzp_flight *older, const struct hzp_graph_part *part)
{
    const struct hzp_item *first = &plan->item[part->from];
    if (older && !older->ended) /* the part's other lanes start behind its first item */
        HZP_TRY(wait_for_older(e, first, HZP_TENANT_SERVE, older));
    for (int32_t i = part->from; i < part->to; i++)
        for (int32_t k = 0; k < plan->item[i].waits; k++) {
            int32_t w = plan->wait[plan->item[i].wait0 + k];
            if (w < part->from && plan->item[w].lane != first->lane)
                HZP_TRY(hzp_lane_wait(e->lane[first->lane], f->fences.fence[f->fences.of[w]]));
        }
    int r = hzp_graphs_issue(e->graphs, plan, part, e->lane, e->share, e->timed ? &f->graph : NULL);
    if (r <= 0)
        return r;
    f->graphed = *part;
    for (int32_t i = part->to; i < plan->items; i++)
        for (int32_t k = 0; k < plan->item[i].waits; k++) {
            int32_t w = plan->wait[plan->item[i].wait0 + k];
            if (w >= part->from && w < part->to && f->fences.of[w] >= 0)
                HZP_TRY(hzp_fence_record(f->fences.fence[f->fences.of[w]],
                                         e->lane[plan->item[w].lane]));
        }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (f->last.item[HZP_TENANT_SERVE][l] >= part->from)
            HZP_TRY(hzp_fence_record(f->end[HZP_TENANT_SERVE][l], e->lane[l]));
    return 1;
}

static int queue_up(struct hzp_exec *e, const struct hzp_plan *plan, struct hzp_flight *f,
                    const struct hzp_flight *older)
{
    struct hzp_plan_ends first;
    struct hzp_graph_part part;
    hzp_plan_firsts(plan, &first);
    HZP_TRY(hzp_plan_fences_assign(&f->fences, e->dev, plan, 0, plan->items, 0));
    bool fits = hzp_graphs_fit(e->graphs, plan, &part);
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        int done = fits && i == part.from ? issue_graph(e, plan, f, older, &part) : 0;
        HZP_TRY(done);
        if (done) {
            i = part.to - 1;
            continue;
        }
        for (int t = 0; t < HZP_TENANT_COUNT; t++)
            if (older && !older->ended && first.item[t][item->lane] == i)
                HZP_TRY(wait_for_older(e, item, (enum hzp_tenant)t, older));
        HZP_TRY(issue_item(e, plan, i, f));
    }
    return HZP_OK;
}

int hzp_flight_reserve(struct hzp_flight *f, const struct hzp_plan *plan, int32_t more)
{
    f->span = hzp_xgrow(f->span, &f->items_room, plan->items, sizeof(*f->span));
    HZP_TRY(hzp_plan_fences_assign(&f->fences, f->exec->dev, plan, 0, plan->items, more));
    return hzp_graphs_reserve(f->exec->graphs, plan, more);
}

void hzp_exec_prepare_graphs(struct hzp_exec *e, hzp_graph_variant *variant, void *ctx,
                             const struct hzp_graphs_room *room)
{
    hzp_graphs_prepare(e->graphs, variant, ctx, room);
}

void hzp_exec_steady(struct hzp_exec *e)
{
    hzp_graphs_steady(e->graphs);
}

int hzp_exec_capture(struct hzp_exec *e, const struct hzp_plan *plan)
{
    hzp_assert_engine_thread();
    struct hzp_graph_part part;
    bool inlined;
    if (!hzp_graphs_fit(e->graphs, plan, &part))
        return HZP_OK;
    HZP_TRY(share(e, plan, &inlined));
    hzp_graphs_make(e->graphs, plan, &part, e->lane, e->share);
    return HZP_OK;
}

struct hzp_graphs_stats hzp_exec_graphs(const struct hzp_exec *e)
{
    return hzp_graphs_read_stats(e->graphs);
}

int hzp_exec_issue(struct hzp_exec *e, const struct hzp_plan *plan, struct hzp_flight *f,
                   const struct hzp_flight *older)
{
    hzp_assert_engine_thread();
    f->span = hzp_xgrow(f->span, &f->items_room, plan->items, sizeof(*f->span));
    f->plan = plan;
    f->graphed = (struct hzp_graph_part){0, 0};
    hzp_plan_lasts(plan, &f->last);
    HZP_TRY(share(e, plan, &f->ended));
    f->begin_ns = hzp_device_now_ns(e->dev);
    return f->ended ? run_immediate(e, plan, f) : queue_up(e, plan, f, older);
}

/* --- Landing ---------------------------------------------------------------------------------- */

static int wait_for(struct hzp_flight *f, enum hzp_tenant tenant)
{
    for (int l = 0; l < HZP_LANE_COUNT && !f->ended; l++)
        if (f->last.item[tenant][l] >= 0)
            HZP_TRY(hzp_fence_wait(f->end[tenant][l]));
    return HZP_OK;
}

int hzp_exec_poll(struct hzp_flight *f)
{
    hzp_assert_engine_thread();
    for (int t = 0; t < HZP_TENANT_COUNT && !f->ended; t++)
        for (int l = 0; l < HZP_LANE_COUNT; l++) {
            int r = f->last.item[t][l] >= 0 ? hzp_fence_poll(f->end[t][l]) : 1;
            if (r != 1)
                return r;
        }
    return 1;
}

/* Divides the run's duration among tenants in the ratio of `of`; all > 0: the sum of `of`. ride:
 * the part of training's rows in items that are also serving's. */
static void divide_by(uint64_t took, const double of[HZP_TENANT_COUNT], double ride, double all,
                      struct hzp_exec_times *ret)
{
    ret->ns[HZP_TENANT_SERVE] = took;
    for (int t = 0; t < HZP_TENANT_COUNT && all > 0; t++)
        if (t != HZP_TENANT_SERVE) {
            ret->ns[t] = (uint64_t)((double)took * (of[t] / all));
            ret->ns[HZP_TENANT_SERVE] -= HZP_MIN(ret->ns[t], ret->ns[HZP_TENANT_SERVE]);
        }
    ret->ride_ns = all > 0 ? (uint64_t)((double)took * (ride / all)) : 0;
}

/* For devices that time only the whole run: divides its duration among the items in proportion to
 * their known times, and each op learns its part. Op times then have the device's scale, though not
 * each op's own speed.  learn NULL: nothing is learned. */
static void divide(const struct hzp_plan *plan, const struct hzp_op_times *known,
                   struct hzp_op_times *learn, uint64_t took, struct hzp_exec_times *ret)
{
    double of[HZP_TENANT_COUNT] = {0}, ride = 0, all = 0;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        double ns = hzp_op_ns(known, item->op, item->args);
        all += ns;
        for (int t = 0; t < HZP_TENANT_COUNT; t++)
            of[t] += ns * part_of(known, item, (enum hzp_tenant)t);
        ride += item->rides ? ns * part_of(known, item, HZP_TENANT_TRAIN) : 0;
    }
    if (all <= 0)
        return;
    divide_by(took, of, ride, all, ret);
    double factor = (double)took / all;
    for (int32_t i = 0; learn && i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        hzp_op_learn(learn, item->op, item->args, hzp_op_ns(learn, item->op, item->args) * factor);
    }
}

/* The span's length; 0 if the device's clock has stepped back in between. */
static uint64_t span_ns(const struct hzp_span *span)
{
    return span->end_ns > span->begin_ns ? span->end_ns - span->begin_ns : 0;
}

/* A graph is timed as a whole: on each lane the items are laid out one after another over the
 * graph's duration, each with a part in proportion to its known time. */
static void spread(struct hzp_flight *f, const struct hzp_op_times *known)
{
    double all[HZP_LANE_COUNT] = {0}, at[HZP_LANE_COUNT] = {0};
    double took = (double)span_ns(&f->graph);
    for (int turn = 0; turn < 2; turn++)
        for (int32_t i = f->graphed.from; i < f->graphed.to; i++) {
            const struct hzp_item *item = &f->plan->item[i];
            double ns = hzp_op_ns(known, item->op, item->args);
            int l = item->lane;
            if (turn == 0) {
                all[l] += ns;
                continue;
            }
            double part = all[l] > 0 ? took / all[l] : 0;
            f->span[i].begin_ns = f->graph.begin_ns + (uint64_t)(at[l] * part);
            at[l] += ns;
            f->span[i].end_ns = f->graph.begin_ns + (uint64_t)(at[l] * part);
        }
}

/* Divides the run's duration among the tenants by the time their items took, and adds the items to
 * the profile and, unless learn is NULL, to the op times. */
static void account(struct hzp_flight *f, const struct hzp_op_times *known,
                    struct hzp_op_times *learn, uint64_t took, struct hzp_exec_times *ret)
{
    const struct hzp_plan *plan = f->plan;
    double of[HZP_TENANT_COUNT] = {0}, ride = 0, all = 0;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        uint64_t ns = span_ns(&f->span[i]);
        all += (double)ns;
        for (int t = 0; t < HZP_TENANT_COUNT; t++)
            of[t] += (double)ns * part_of(known, item, (enum hzp_tenant)t);
        ride += item->rides ? (double)ns * part_of(known, item, HZP_TENANT_TRAIN) : 0;
        profile_add(&f->exec->profile, known, item, ns);
        if (learn)
            hzp_op_learn(learn, item->op, item->args, (double)ns);
        bool graphed = i >= f->graphed.from && i < f->graphed.to;
        if (learn && !graphed && hzp_item_only(item, HZP_TENANT_TRAIN))
            hzp_op_note_peak(learn, item->op, item->args, (double)ns);
    }
    divide_by(took, of, ride, all, ret);
}

/* The time from when the run could begin to end_ns: time in which earlier work ran does not
 * count. */
static uint64_t since(const struct hzp_flight *f, uint64_t end_ns, uint64_t before_ns)
{
    uint64_t begin = HZP_MAX(f->begin_ns, before_ns);
    return end_ns > begin ? end_ns - begin : 0;
}

/* Whether the tenant's items of the previous plan ran on a lane that this plan's serving uses. */
static bool serves_behind(const struct hzp_flight *f, enum hzp_tenant tenant)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (f->last.item[HZP_TENANT_SERVE][l] >= 0 && f->exec->landed.item[tenant][l] >= 0)
            return true;
    return false;
}

int hzp_exec_wait_serving(struct hzp_flight *f, uint64_t *ret_ns)
{
    hzp_assert_engine_thread();
    const struct hzp_exec *e = f->exec;
    uint64_t end = 0, before = e->ended_ns[HZP_TENANT_SERVE];
    HZP_TRY(wait_for(f, HZP_TENANT_SERVE));
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        int32_t i = f->last.item[HZP_TENANT_SERVE][l];
        if (i >= 0 && e->timed)
            end = HZP_MAX(end, i >= f->graphed.from && i < f->graphed.to ? f->graph.end_ns
                                                                         : f->span[i].end_ns);
        else if (i >= 0)
            end = hzp_device_now_ns(e->dev);
    }
    for (int t = 0; t < HZP_TENANT_COUNT; t++)
        if (serves_behind(f, (enum hzp_tenant)t))
            before = HZP_MAX(before, e->ended_ns[t]);
    *ret_ns = since(f, end, before);
    return HZP_OK;
}

/* Adds the ops of a plan without requests to the meters.  (Beside requests training has fewer
 * cores, which says nothing of the rank, nor does how long a collective waits for the others.) */
static void meter(const struct hzp_plan *plan, const struct hzp_profile_op before[HZP_OP_COUNT],
                  const struct hzp_profile_op now[HZP_OP_COUNT])
{
    for (int32_t i = 0; i < plan->items; i++)
        if (!hzp_item_only(&plan->item[i], HZP_TENANT_TRAIN))
            return;
    for (int op = 0; op < HZP_OP_COUNT; op++)
        if (op != HZP_OP_collective && now[op].ns > before[op].ns)
            hzp_meter_add(op, now[op].ns - before[op].ns,
                          now[op].flops + now[op].bytes - before[op].flops - before[op].bytes);
}

int hzp_exec_land(struct hzp_flight *f, struct hzp_op_times *times, struct hzp_exec_times *ret)
{
    hzp_assert_engine_thread();
    struct hzp_exec *e = f->exec;
    const struct hzp_op_times *known = times ? times : &e->prior;
    memset(ret, 0, sizeof(*ret));
    uint64_t end[HZP_TENANT_COUNT] = {0}, last = 0, before = 0;
    for (int t = 0; t < HZP_TENANT_COUNT; t++) {
        HZP_TRY(wait_for(f, (enum hzp_tenant)t));
        before = HZP_MAX(before, e->ended_ns[t]);
    }
    uint64_t now = hzp_device_now_ns(e->dev);
    e->landed = f->last;
    if (!e->timed) {
        divide(f->plan, known, times, since(f, now, before), ret);
        for (int t = 0; t < HZP_TENANT_COUNT; t++)
            e->ended_ns[t] = now;
        return HZP_OK;
    }
    spread(f, known);
    for (int32_t i = 0; i < f->plan->items; i++)
        for (int t = 0; t < HZP_TENANT_COUNT; t++)
            if (hzp_item_of(&f->plan->item[i], (enum hzp_tenant)t))
                end[t] = HZP_MAX(end[t], f->span[i].end_ns);
    for (int t = 0; t < HZP_TENANT_COUNT; t++) {
        ret->end_ns[t] = end[t] ? since(f, end[t], e->ended_ns[t]) : 0;
        e->ended_ns[t] = HZP_MAX(e->ended_ns[t], end[t]);
        last = HZP_MAX(last, end[t]);
    }
    if (end[HZP_TENANT_SERVE] && end[HZP_TENANT_TRAIN] > end[HZP_TENANT_SERVE])
        ret->late_ns = end[HZP_TENANT_TRAIN] - end[HZP_TENANT_SERVE];
    struct hzp_profile_op trained[HZP_OP_COUNT];
    memcpy(trained, e->profile.of[HZP_TENANT_TRAIN], sizeof(trained));
    account(f, known, times, since(f, last, before), ret);
    if (hzp_device_computes(e->dev)) { /* a simulated one has a clock of its own */
        record_run(&e->record, f->plan, f->span);
        meter(f->plan, trained, e->profile.of[HZP_TENANT_TRAIN]);
    }
    return HZP_OK;
}

int hzp_exec_run(struct hzp_exec *e, const struct hzp_plan *plan, struct hzp_op_times *times,
                 struct hzp_exec_times *ret)
{
    hzp_assert_engine_thread();
    HZP_TRY(hzp_exec_issue(e, plan, e->own, NULL));
    return hzp_exec_land(e->own, times, ret);
}

/* --- The last run ----------------------------------------------------------------------------- */

const struct hzp_span *hzp_exec_spans(const struct hzp_exec *e)
{
    return e->timed ? e->own->span : NULL;
}

int hzp_exec_write_trace(const struct hzp_exec *e, const struct hzp_plan *plan, FILE *out)
{
    const struct hzp_span *span = hzp_exec_spans(e);
    uint64_t begin = UINT64_MAX;
    if (!span)
        return HZP_EUNSUP;
    for (int32_t i = 0; i < plan->items; i++)
        begin = HZP_MIN(begin, span[i].begin_ns);
    struct hzp_chrome chrome;
    hzp_chrome_begin(&chrome, out);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        hzp_chrome_thread(&chrome, 0, l, hzp_lane_name_text((enum hzp_lane_name)l));
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        struct hzp_cost cost = hzp_op_cost(item->op, item->args);
        char args[200];
        snprintf(args, sizeof(args),
                 "\"item\":%d,\"layer\":%d,\"row\":%d,\"rows\":%d,\"bytes\":%llu,\"flops\":%llu", i,
                 item->layer, item->row0, item->rows, (unsigned long long)cost.bytes,
                 (unsigned long long)cost.flops);
        hzp_chrome_span(&chrome, &(struct hzp_chrome_span){
                                     .name = hzp_op_name(item->op),
                                     .category = hzp_item_tenants_text(item),
                                     .tid = item->lane,
                                     .begin_us = (double)(span[i].begin_ns - begin) / 1e3,
                                     .length_us = (double)span_ns(&span[i]) / 1e3,
                                     .args = args,
                                 });
    }
    hzp_chrome_end(&chrome);
    return HZP_OK;
}
