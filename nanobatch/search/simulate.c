/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/simulate.h"

#include "base/hash.h"

enum { MEMOS = 4096, AGAIN_ITEMS = 24 };

/* Remembers an op's predicted time: plans repeat the same few dozen ops in every layer. */
struct memo {
    struct hzp_op_key key;
    struct hzp_op_size size;
    int32_t cores; /* cores (SMs) it ran on; 0: the entry is empty */
    double ns;
};

struct hzp_simulator {
    const struct hzp_tables *tables;
    struct memo *memo;   /* [MEMOS] */
    double *begin, *end; /* [room] each, one entry per item */
    struct hzp_task *task;
    bool *again;
    int32_t *order, room;
    /* the plan that is simulated: */
    const struct hzp_plan *plan;
    int32_t count[HZP_LANE_COUNT], cores[HZP_LANE_COUNT]; /* items and cores of each lane */
    int lanes;                                            /* that compute */
    bool linked;    /* exchanges between ranks have a lane of their own beside those */
    uint32_t links; /* such lanes, bit l for enum hzp_lane_name l: they take no core */
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
    free(s->task);
    free(s->again);
    free(s->order);
    free(s);
}

void hzp_plan_find_again(const struct hzp_plan *plan, bool *again)
{
    const void *read[AGAIN_ITEMS] = {NULL}; /* what the most recent items read */
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        const struct hzp_matmul_args *m =
            item->op == HZP_OP_project ? &((const struct hzp_project_args *)item->args)->product
                                       : item->args;
        bool product = (item->op == HZP_OP_matmul || item->op == HZP_OP_project) && m->trans_b &&
                       hzp_item_of(item, HZP_TENANT_SERVE);
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
    uint64_t h = HZP_FNV;
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
    s->task = hzp_xrealloc(s->task, (size_t)items * sizeof(*s->task));
    s->again = hzp_xrealloc(s->again, (size_t)items * sizeof(*s->again));
    s->order = hzp_xrealloc(s->order, (size_t)items * sizeof(*s->order));
}

/* The cores of a lane that computes. */
static int32_t cores_of(const struct hzp_simulator *s, int lane, int32_t threads)
{
    int32_t share = s->plan->share[lane];
    if (share && (s->lanes > 1 || s->linked))
        return HZP_MIN(share, threads);
    return s->lanes > 1 ? HZP_MAX(threads / s->lanes, 1) : threads;
}

/* Counts the items of each lane, and divides the cores among the lanes that compute, as exec.c
 * does: a lane with exchanges and what few rows need between them is the link's, and takes no
 * core. */
static void count_lanes(struct hzp_simulator *s)
{
    const struct hzp_plan *plan = s->plan;
    int32_t threads = HZP_MAX(s->tables->threads, 1);
    uint32_t exchanges = 0, heavy = 0;
    memset(s->count, 0, sizeof(s->count));
    s->lanes = 0;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        s->count[item->lane]++;
        exchanges |= (uint32_t)(item->op == HZP_OP_collective) << item->lane;
        heavy |= (uint32_t)(hzp_op_kind(item->op) != HZP_KIND_ROWS) << item->lane;
    }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        s->lanes += s->count[l] > 0 && !((exchanges & ~heavy) >> l & 1);
    s->links = exchanges & ~heavy;
    s->linked = s->links != 0 && s->lanes > 0;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        s->cores[l] = s->links >> l & 1 ? 1 : cores_of(s, l, threads);
}

static double issued(void *ctx, int32_t i)
{
    const struct hzp_simulator *s = ctx;
    double each = s->tables->issue_ns;
    if (!s->tables->led || s->lanes <= 1)
        return s->lanes <= 1 && s->tables->led ? 0 : each * (i + 1);
    bool first = true;
    for (int k = 0; k < s->plan->item[i].lane; k++)
        first &= s->count[k] == 0;
    return each * (first ? s->plan->items : i + 1);
}

/* The cores that an item uses: its lane's, or fewer by its own limit. */
static int32_t used_by(const struct hzp_simulator *s, const struct hzp_item *item)
{
    int32_t cores = s->cores[item->lane];
    return item->cores ? HZP_MIN(item->cores, cores) : cores;
}

/* The product of the class's rates beside each of the others; slower in proportion where together
 * they use more cores than there are. */
static double rate_beside(void *ctx, int32_t i, const int32_t *others, int count)
{
    const struct hzp_simulator *s = ctx;
    const struct hzp_item *item = &s->plan->item[i];
    enum hzp_class class = hzp_op_class(item->op, item->args);
    int32_t threads = HZP_MAX(s->tables->threads, 1), sum = 0;
    double rate = 1;
    if (!(s->links >> item->lane & 1))
        sum = used_by(s, item);
    for (int k = 0; k < count; k++) {
        const struct hzp_item *other = &s->plan->item[others[k]];
        rate *= hzp_tables_rate(s->tables, class, used_by(s, item),
                                hzp_op_class(other->op, other->args), used_by(s, other));
        if (!(s->links >> other->lane & 1))
            sum += used_by(s, other);
    }
    bool link = s->links >> item->lane & 1;
    return sum > threads && !link ? rate * threads / sum : rate;
}

void hzp_simulate(struct hzp_simulator *s, const struct hzp_plan *plan, struct hzp_simulated *ret)
{
    const struct hzp_tables *t = s->tables;
    memset(ret, 0, sizeof(*ret));
    make_room(s, plan->items);
    s->plan = plan;
    count_lanes(s);
    hzp_plan_find_again(plan, s->again);
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        s->task[i] = (struct hzp_task){
            .alone_ns = hzp_simulator_alone_ns(s, item, s->again[i], used_by(s, item)),
            .wait0 = item->wait0,
            .waits = item->waits,
            .lane = item->lane};
        if (hzp_item_only(item, HZP_TENANT_TRAIN))
            ret->train_alone_ns +=
                hzp_simulator_alone_ns(s, item, s->again[i], HZP_MAX(t->threads, 1));
    }
    struct hzp_events events = {.task = s->task,
                                .wait = plan->wait,
                                .tasks = plan->items,
                                .gap_ns = s->lanes > 1 ? t->gap_ns : t->gap_inline_ns,
                                .handover_ns = t->handover_ns,
                                .wakeup_ns = t->wakeup_ns,
                                .issued = issued,
                                .rate = rate_beside,
                                .ctx = s};
    hzp_events_run(&events, s->begin, s->end, s->order, ret->busy_ns);
    for (int32_t i = 0; i < plan->items; i++) {
        bool trains = hzp_item_only(&plan->item[i], HZP_TENANT_TRAIN);
        double *end = trains ? &ret->train_end_ns : &ret->serve_end_ns;
        if (trains)
            ret->train_ran_ns += s->end[i] - s->begin[i];
        *end = HZP_MAX(*end, s->end[i]);
        ret->ns = HZP_MAX(ret->ns, s->end[i]);
    }
}

struct lane {
    int32_t *task;     /* [count] its tasks, in order */
    int32_t count, at; /* number of tasks; the next task to run, or the running one */
    bool runs;
    double left;    /* nanoseconds that the rest of the running task would take alone */
    double free_at; /* when the lane's previous task ended */
};

struct run {
    const struct hzp_events *events;
    struct lane lane[HZP_LANE_COUNT];
    double *begin, *end, *busy_ns;
};

/* Distributes the tasks over their lanes. */
static void deal(struct run *r, int32_t *order)
{
    const struct hzp_events *e = r->events;
    int32_t at = 0;
    for (int32_t i = 0; i < e->tasks; i++)
        r->lane[e->task[i].lane].count++;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        r->lane[l].task = order + at;
        at += r->lane[l].count;
        r->lane[l].count = 0;
    }
    for (int32_t i = 0; i < e->tasks; i++) {
        struct lane *lane = &r->lane[e->task[i].lane];
        lane->task[lane->count++] = i;
    }
}

/* When the lane's next task may begin; INFINITY: a task it waits for has not ended yet. */
static double ready(const struct run *r, int l)
{
    const struct hzp_events *e = r->events;
    const struct lane *lane = &r->lane[l];
    int32_t i = lane->task[lane->at];
    double free_at = lane->free_at, at = free_at + (lane->at > 0 ? e->gap_ns : 0);
    double issued_at = e->issued ? e->issued(e->ctx, i) : at;
    at = HZP_MAX(at, issued_at);
    for (int32_t k = 0; k < e->task[i].waits; k++) {
        int32_t w = e->wait[e->task[i].wait0 + k];
        if (r->end[w] < 0)
            return INFINITY;
        if (e->task[w].lane == l || r->end[w] <= free_at)
            continue;
        bool asleep = r->end[w] - free_at > HZP_POLL_NS;
        at = HZP_MAX(at, r->end[w] + (asleep ? e->wakeup_ns : e->handover_ns));
    }
    return at;
}

/* The rate at which the lane's task advances. */
static double speed(const struct run *r, int l)
{
    int32_t others[HZP_LANE_COUNT];
    int count = 0;
    for (int k = 0; k < HZP_LANE_COUNT; k++)
        if (k != l && r->lane[k].runs)
            others[count++] = r->lane[k].task[r->lane[k].at];
    double rate = r->events->rate(r->events->ctx, r->lane[l].task[r->lane[l].at], others, count);
    return HZP_MAX(rate, 0.02);
}

/* One event: starts the tasks that can start at `now`, then advances to the next event. False: all
 * tasks have ended. */
static bool advance(struct run *r, double *now)
{
    double next = INFINITY, rate[HZP_LANE_COUNT], ends[HZP_LANE_COUNT];
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        struct lane *lane = &r->lane[l];
        if (lane->runs || lane->at == lane->count)
            continue;
        double at = ready(r, l);
        if (at <= *now) {
            int32_t i = lane->task[lane->at];
            lane->runs = true;
            lane->left = r->events->task[i].alone_ns;
            r->begin[i] = *now;
        } else {
            next = HZP_MIN(next, at);
        }
    }
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (r->lane[l].runs) {
            rate[l] = speed(r, l);
            ends[l] = *now + r->lane[l].left / rate[l];
            next = HZP_MIN(next, ends[l]);
        }
    if (next == INFINITY)
        return false;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        struct lane *lane = &r->lane[l];
        if (!lane->runs)
            continue;
        r->busy_ns[l] += next - *now;
        lane->left -= (next - *now) * rate[l];
        /* Compare end times, not only the remainder: beside large times the remainder may be too
         * small to advance the clock. */
        if (ends[l] <= next || lane->left <= 1e-6 * rate[l] + 1e-9) {
            r->end[lane->task[lane->at++]] = lane->free_at = next;
            lane->runs = false;
        }
    }
    *now = next;
    return true;
}

void hzp_events_run(const struct hzp_events *events, double *begin, double *end, int32_t *order,
                    double busy_ns[HZP_LANE_COUNT])
{
    struct run r = {.events = events, .begin = begin, .end = end, .busy_ns = busy_ns};
    double now = 0;
    memset(busy_ns, 0, sizeof(*busy_ns) * HZP_LANE_COUNT);
    for (int32_t i = 0; i < events->tasks; i++)
        end[i] = -1;
    deal(&r, order);
    while (advance(&r, &now))
        ;
    for (int32_t i = 0; i < events->tasks; i++)
        HZP_ASSERT(end[i] >= 0); /* waits point back */
}
