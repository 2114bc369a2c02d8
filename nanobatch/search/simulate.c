/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MEMOS = 4096, AGAIN_ITEMS = 24 };

/* Remembers an op's predicted time: plans repeat the same few dozen ops in every layer. */
struct memo {
    struct hzp_op_key key;
    struct hzp_op_size size;
    int32_t cores; /* cores (SMs) it ran on; 0: the entry is empty */
    double ns;
};

struct lane {
    int32_t *item;     /* [count] its items, in order */
    int32_t count, at; /* number of items; the next item to run, or the running one */
    int32_t cores;
    bool runs;
    double left;    /* remaining time of the running item, in nanoseconds it would take alone */
    double free_at; /* when the lane's previous item ended */
    enum hzp_class class;
};

struct hzp_simulator {
    const struct hzp_tables *tables;
    struct memo *memo;           /* [MEMOS] */
    double *begin, *end, *alone; /* [room] each, one entry per item */
    bool *again;
    int32_t *queue, room;
    struct lane lane[HZP_LANE_COUNT];
};

int hzp_simulator_create(const struct hzp_tables *tables, struct hzp_simulator **ret)
{
    struct hzp_simulator *s = hzp_xcalloc(1, sizeof(*s));
    s->tables = tables;
    s->memo = hzp_xcalloc(MEMOS, sizeof(*s->memo));
    *ret = s;
    return HZP_OK;
}

void hzp_simulator_destroy(struct hzp_simulator *s)
{
    if (!s)
        return;
    free(s->memo);
    free(s->begin);
    free(s->end);
    free(s->alone);
    free(s->again);
    free(s->queue);
    free(s);
}

void hzp_plan_find_again(const struct hzp_plan *plan, bool *again)
{
    const void *read[AGAIN_ITEMS] = {NULL}; /* what the most recent items read */
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        const struct hzp_matmul_args *m = item->args;
        bool product =
            item->op == HZP_OP_matmul && m->trans_b && hzp_item_of(item, HZP_TENANT_SERVE);
        again[i] = false;
        for (int k = 0; product && k < AGAIN_ITEMS; k++)
            again[i] |= read[k] == m->b.ptr;
        read[i % AGAIN_ITEMS] = product ? m->b.ptr : NULL;
    }
}

static uint32_t hash(const struct hzp_op_key *key, const struct hzp_op_size *size, int32_t cores)
{
    int64_t words[] = {key->op | key->flags << 8 | key->type << 16 | (int64_t)key->again << 24,
                       key->a,
                       key->b,
                       (int64_t)size->x,
                       (int64_t)(2 * size->y),
                       cores};
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < HZP_COUNT(words); i++) {
        h = (h ^ (uint64_t)words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (uint32_t)(h >> 20) % MEMOS;
}

static bool same(const struct memo *m, const struct hzp_op_key *key, const struct hzp_op_size *size,
                 int32_t cores)
{
    return m->cores == cores && m->key.op == key->op && m->key.flags == key->flags &&
           m->key.type == key->type && m->key.again == key->again && m->key.a == key->a &&
           m->key.b == key->b && m->size.x == size->x && m->size.y == size->y;
}

double hzp_simulator_alone_ns(struct hzp_simulator *s, const struct hzp_item *item, bool again,
                              int32_t cores)
{
    struct hzp_op_key key;
    struct hzp_op_size size;
    hzp_op_describe(item->op, item->args, &key, &size);
    key.again = again;
    struct memo *m = &s->memo[hash(&key, &size, cores)];
    if (!same(m, &key, &size, cores))
        *m = (struct memo){key, size, cores, hzp_tables_ns(s->tables, &key, &size, cores)};
    return m->ns;
}

static void make_room(struct hzp_simulator *s, int32_t items)
{
    if (items <= s->room)
        return;
    s->room = items;
    s->begin = hzp_xrealloc(s->begin, (size_t)items * sizeof(*s->begin));
    s->end = hzp_xrealloc(s->end, (size_t)items * sizeof(*s->end));
    s->alone = hzp_xrealloc(s->alone, (size_t)items * sizeof(*s->alone));
    s->again = hzp_xrealloc(s->again, (size_t)items * sizeof(*s->again));
    s->queue = hzp_xrealloc(s->queue, (size_t)items * sizeof(*s->queue));
}

/* Distributes the items over their lanes; returns the number of lanes used. */
static int deal(struct hzp_simulator *s, const struct hzp_plan *plan)
{
    int lanes = 0, at = 0;
    memset(s->lane, 0, sizeof(s->lane));
    for (int32_t i = 0; i < plan->items; i++)
        s->lane[plan->item[i].lane].count++;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        s->lane[l].item = s->queue + at;
        at += s->lane[l].count;
        lanes += s->lane[l].count > 0;
        s->lane[l].count = 0;
    }
    for (int32_t i = 0; i < plan->items; i++) {
        struct lane *lane = &s->lane[plan->item[i].lane];
        lane->item[lane->count++] = i;
    }
    int32_t threads = HZP_MAX(s->tables->threads, 1);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        s->lane[l].cores = lanes <= 1       ? threads
                           : plan->share[l] ? HZP_MIN(plan->share[l], threads)
                                            : HZP_MAX(threads / lanes, 1);
    return lanes;
}

/* When item i has entered its lane's queue. */
static double issued(const struct hzp_simulator *s, const struct hzp_plan *plan, int lanes, int l,
                     int32_t i)
{
    double each = s->tables->issue_ns;
    if (!s->tables->led || lanes <= 1)
        return lanes <= 1 && s->tables->led ? 0 : each * (i + 1);
    bool first = true;
    for (int k = 0; k < l; k++)
        first &= s->lane[k].count == 0;
    return each * (first ? plan->items : i + 1);
}

/* When the lane's next item may begin; INFINITY: an item it waits for has not ended yet. */
static double ready(const struct hzp_simulator *s, const struct hzp_plan *plan, int lanes, int l)
{
    const struct lane *lane = &s->lane[l];
    const struct hzp_tables *t = s->tables;
    int32_t i = lane->item[lane->at];
    double free_at = lane->free_at, at = free_at;
    if (lane->at > 0)
        at += lanes > 1 ? t->gap_ns : t->gap_inline_ns;
    at = HZP_MAX(at, issued(s, plan, lanes, l, i));
    for (int32_t k = 0; k < plan->item[i].waits; k++) {
        int32_t w = plan->wait[plan->item[i].wait0 + k];
        if (s->end[w] < 0)
            return INFINITY;
        if (plan->item[w].lane == l || s->end[w] <= free_at)
            continue;
        bool asleep = s->end[w] - free_at > HZP_POLL_NS;
        at = HZP_MAX(at, s->end[w] + (asleep ? t->wakeup_ns : t->handover_ns));
    }
    return at;
}

/* The rate at which the lane's item advances beside the other running items. */
static double speed(struct hzp_simulator *s, int l)
{
    double rate = 1;
    for (int k = 0; k < HZP_LANE_COUNT; k++)
        if (k != l && s->lane[k].runs)
            rate *= hzp_tables_rate(s->tables, s->lane[l].class, s->lane[l].cores, s->lane[k].class,
                                    s->lane[k].cores);
    return HZP_MAX(rate, 0.02);
}

static void end_item(struct hzp_simulator *s, struct lane *lane, double now)
{
    int32_t i = lane->item[lane->at++];
    s->end[i] = lane->free_at = now;
    lane->runs = false;
}

static void begin_item(struct hzp_simulator *s, const struct hzp_plan *plan, struct lane *lane,
                       double now)
{
    int32_t i = lane->item[lane->at];
    lane->runs = true;
    lane->left = s->alone[i];
    lane->class = hzp_op_class(plan->item[i].op, plan->item[i].args);
    s->begin[i] = now;
}

/* One event: starts the items that can start at `now`, then advances to the next event. False: all
 * items have ended. */
static bool advance(struct hzp_simulator *s, const struct hzp_plan *plan, int lanes, double *now,
                    struct hzp_simulated *ret)
{
    double next = INFINITY, rate[HZP_LANE_COUNT], ends[HZP_LANE_COUNT];
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        struct lane *lane = &s->lane[l];
        if (lane->runs || lane->at == lane->count)
            continue;
        double at = ready(s, plan, lanes, l);
        if (at <= *now)
            begin_item(s, plan, lane, *now);
        else
            next = HZP_MIN(next, at);
    }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (s->lane[l].runs) {
            rate[l] = speed(s, l);
            ends[l] = *now + s->lane[l].left / rate[l];
            next = HZP_MIN(next, ends[l]);
        }
    if (next == INFINITY)
        return false;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        struct lane *lane = &s->lane[l];
        if (!lane->runs)
            continue;
        ret->busy_ns[l] += next - *now;
        lane->left -= (next - *now) * rate[l];
        /* Compare end times, not only the remainder: beside large times the remainder may be too
         * small to advance the clock. */
        if (ends[l] <= next || lane->left <= 1e-6 * rate[l] + 1e-9)
            end_item(s, lane, next);
    }
    *now = next;
    return true;
}

void hzp_simulate(struct hzp_simulator *s, const struct hzp_plan *plan, struct hzp_simulated *ret)
{
    memset(ret, 0, sizeof(*ret));
    make_room(s, plan->items);
    int lanes = deal(s, plan);
    hzp_plan_find_again(plan, s->again);
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        s->end[i] = -1;
        s->alone[i] = hzp_simulator_alone_ns(s, item, s->again[i], s->lane[item->lane].cores);
        if (hzp_item_only(item, HZP_TENANT_TRAIN))
            ret->train_alone_ns +=
                hzp_simulator_alone_ns(s, item, s->again[i], HZP_MAX(s->tables->threads, 1));
    }
    double now = 0;
    while (advance(s, plan, lanes, &now, ret))
        ;
    for (int32_t i = 0; i < plan->items; i++) {
        bool trains = hzp_item_only(&plan->item[i], HZP_TENANT_TRAIN);
        double *end = trains ? &ret->train_end_ns : &ret->serve_end_ns;
        HZP_ASSERT(s->end[i] >= 0);
        if (trains)
            ret->train_ran_ns += s->end[i] - s->begin[i];
        *end = HZP_MAX(*end, s->end[i]);
        ret->ns = HZP_MAX(ret->ns, s->end[i]);
    }
}
