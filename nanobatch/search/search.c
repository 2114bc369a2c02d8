/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/search.h"

#include "nanobatch/model/train_space_state.h"
#include "nanobatch/search/pipeline.h"
#include "nanobatch/split/deadline.h"

enum { BEST = 4, RUNS_MIN = 3, RUNS_MAX = 21, SLICES = 5 };

/* A shape is kept only if it beats the sequential plan by this factor, in simulation and when run;
 * in simulation the margin is about the accuracy of the tables. */
static const double margin = 1.02;

/* How long the runs of one shape may take together, beyond the first RUNS_MIN. */
static const double runs_ns = 500e6;

/* A step with items [from, to) of the chain, and what such a step is on average over many steps: in
 * the average, training repays an item that ran longer than allowed, or spends the time that it
 * saved. */
struct slice {
    int32_t from, to;
    int32_t chunk_rows; /* chunk size of the chain that the items are taken from */
    double ns, serve_ns;
    double trained_ns; /* training done in the step: its time alone on the whole device */
    double part; /* duration of the average step / duration of the one with items [from, to) */
};

struct candidate {
    struct hzp_plan_shape shape;
    double score;               /* higher is better */
    double ns, serve_ns;        /* the step's; with training, the mean over slices */
    struct slice slice[SLICES]; /* without training only the first is used, with no items */
};

struct hzp_search {
    struct hzp_search_config config;
    struct hzp_simulator *sim;
    struct hzp_plan plan;
    struct candidate best[BEST]; /* the current step's, best first */
    int32_t bests;
    /* With several ranks: the best of the current step with one nano-batch, and with two that have
     * a lane for exchanges; nanos 0: none. */
    struct candidate simple[2];
    struct candidate several; /* the best of the current step with several; nanos 0: none */
    int32_t decode, depth, prefill;
    bool trains;
    double goal_ns;
    double usual_ns; /* duration of a sequential step with the same decode rows and nothing else */
    int32_t slices;
    int32_t train; /* rows of the micro-batch */
    int32_t
        /* where the slices begin in the chain; the first `forward` of them lie in the forward
         * pass */
        from[SLICES];
    int32_t forward;
    struct {
        int32_t rows; /* rows of a chunk; 0: `worth` is not known yet */
        double worth; /* time of the forward pass without chunks / with chunks */
    } chunked;
    int64_t tried;
    struct hzp_vary vary;
};

int hzp_search_create(const struct hzp_search_config *config, struct hzp_search **ret)
{
    struct hzp_search *s = hzp_xcalloc(1, sizeof(*s));
    s->config = *config;
    s->vary.seed = config->seed;
    hzp_plan_init(&s->plan);
    hzp_simulator_create(config->tables, &s->sim);
    *ret = s;
    return HZP_OK;
}

void hzp_search_destroy(struct hzp_search *s)
{
    if (!s)
        return;
    hzp_simulator_destroy(s->sim);
    hzp_plan_fini(&s->plan);
    free(s);
}

int64_t hzp_search_tried(const struct hzp_search *s)
{
    return s->tried;
}

/* ---- one shape ---- */

static void simulate(struct hzp_search *s, const struct hzp_plan_shape *shape, int32_t from,
                     int32_t to, struct hzp_simulated *ret)
{
    hzp_rig_build(s->config.rig, shape, from, HZP_MAX(to, from), &s->plan);
    hzp_simulate(s->sim, &s->plan, ret);
}

/* How long training may run in a step of this shape, by the rules of deadline.h.  With a goal: the
 * time that serving leaves.  Without one: a share of a usual step, or, for training on lanes of its
 * own, the serving time of such a step.  with: the simulated step, with training or without. */
static double allowed_ns(const struct hzp_search *s, bool beside, const struct hzp_simulated *with)
{
    double goal = s->config.goal_ns, serve = with->serve_end_ns;
    if (goal > 0)
        return beside ? hzp_deadline_ease(goal, serve) * goal
                      : hzp_deadline_slice(goal, 0, serve, true);
    if (!beside)
        return s->config.train_share * s->usual_ns;
    return s->config.train_share > 0 ? s->prefill ? s->usual_ns : serve : 0;
}

/* Returns the slice's end as hzp_slice_end does: as many items as fit, but at least one; with a
 * goal, not even one unless it fits. *ret_priced: the predicted time of those items. */
static int32_t cut(struct hzp_search *s, const struct hzp_plan_shape *shape, int32_t from,
                   double allowed, double *ret_priced)
{
    const struct hzp_plan *chain = &s->config.rig->chain;
    int32_t to = from;
    *ret_priced = 0;
    while (to < chain->items && *ret_priced < allowed) {
        const struct hzp_item *item = &chain->item[to];
        int32_t cores = shape->share[shape->train_lane[hzp_op_kind(item->op)]];
        double ns = hzp_simulator_alone_ns(s->sim, item, false,
                                           cores ? cores : HZP_MAX(s->config.tables->threads, 1));
        if (*ret_priced + ns > allowed && (to > from || s->config.goal_ns > 0))
            break;
        *ret_priced += ns;
        to++;
    }
    return to;
}

/* ---- riding ---- */

static const int32_t chunk_sizes[] = {64, 128, 256};

/* From here on the rig's chain is cut into chunks of chunk_rows rows, or not cut if that is 0. */
static void use_chain(struct hzp_search *s, int32_t chunk_rows)
{
    struct hzp_rig *rig = s->config.rig;
    if (rig->chunk_rows == chunk_rows)
        return;
    hzp_rig_chunks(rig, chunk_rows);
    hzp_rig_train(rig, s->train); /* the same number of rows as before */
}

/* The time of items [from, to) of the rig's chain, run one after another on the whole device. */
static double alone_ns(struct hzp_search *s, int32_t from, int32_t to)
{
    double ns = 0;
    for (int32_t i = from; i < to; i++)
        ns += hzp_simulator_alone_ns(s->sim, &s->config.rig->chain.item[i], false,
                                     HZP_MAX(s->config.tables->threads, 1));
    return ns;
}

/* The first item behind `at` that begins a layer of the forward pass, or the pass' end. */
static int32_t next_layer(const struct hzp_rig *rig, int32_t at)
{
    const struct hzp_item *item = rig->chain.item;
    int32_t end = rig->train->forward_end, i = at + 1;
    while (i < end && (item[i].layer < 0 ||
                       (item[i].layer == item[i - 1].layer && item[i].row0 == item[i - 1].row0)))
        i++;
    return HZP_MIN(i, end);
}

/* Fills slice `which` of those in the forward pass when training rides: as many whole layers as the
 * split would allow, at least one (with a goal, not even one unless it fits). */
static void fill_riding(struct hzp_search *s, const struct hzp_plan_shape *shape, int32_t which,
                        const struct hzp_simulated *without, struct slice *ret)
{
    struct hzp_rig *rig = s->config.rig;
    if (s->chunked.rows != shape->ride) {
        use_chain(s, 0);
        double whole = alone_ns(s, 0, rig->train->forward_end);
        use_chain(s, shape->ride);
        s->chunked.rows = shape->ride;
        double chunked = alone_ns(s, 0, rig->train->forward_end);
        s->chunked.worth = whole / HZP_MAX(chunked, 1);
    }
    use_chain(s, shape->ride);
    double allowed = allowed_ns(s, false, without), ran = 0;
    int32_t first = next_layer(rig, 0), end = rig->train->forward_end;
    int32_t from = next_layer(rig, first + (end - first) * which / s->forward - 1), to = from;
    struct hzp_simulated with = *without;
    for (int32_t next = next_layer(rig, from); to < end; next = next_layer(rig, next)) {
        struct hzp_simulated result;
        simulate(s, shape, from, next, &result);
        double took = result.ns - without->ns;
        if (took > allowed && (to > from || s->config.goal_ns > 0))
            break;
        with = result;
        ran = took;
        to = next;
    }
    double times = s->config.goal_ns <= 0 && ran > 0 ? allowed / ran : 1;
    *ret = (struct slice){.from = from,
                          .to = to,
                          .chunk_rows = shape->ride,
                          .ns = without->ns + times * (with.ns - without->ns),
                          .serve_ns = with.serve_end_ns,
                          .trained_ns = times * s->chunked.worth * alone_ns(s, from, to)};
    ret->part = with.ns > 0 ? ret->ns / with.ns : 1;
}

/* ---- a slice after serving, or beside it ---- */

/* Fills the slice that begins at `from`. The split prices items by their measured times, so a slice
 * that runs beside serving is cut again by the slower times predicted for it there. */
static void fill(struct hzp_search *s, const struct hzp_plan_shape *shape, int32_t from,
                 const struct hzp_simulated *without, struct slice *ret)
{
    bool beside = hzp_plan_shape_beside(shape), soft = s->config.goal_ns <= 0;
    double allowed = allowed_ns(s, beside, without), slowed = 1, priced, ran = 0;
    struct hzp_simulated with = *without;
    int32_t to = from, before = -1;
    for (int i = 0; i < (beside ? 4 : 1); i++) {
        to = cut(s, shape, from, allowed / slowed, &priced);
        if (to == before)
            break;
        simulate(s, shape, from, to, &with);
        before = to;
        ran = with.train_ran_ns;
        slowed = priced > 0 ? HZP_MAX(ran / priced, 1.0) : 1;
        if (beside)
            allowed = allowed_ns(s, true, &with);
    }
    double times = 1; /* average number of such slices in a step */
    if (soft && !beside && ran > 0)
        times = to < s->config.rig->chain.items ? allowed / ran : HZP_MIN(allowed / ran, 1.0);
    *ret = (struct slice){.from = from,
                          .to = to,
                          .ns = without->ns + times * (with.ns - without->ns),
                          .serve_ns = with.serve_end_ns,
                          .trained_ns = times * with.train_alone_ns};
    ret->part = with.ns > 0 ? ret->ns / with.ns : 1;
}

/* Fills every slice with as much training as the split allows; the score is taken over all
 * slices. */
static void fill_with_training(struct hzp_search *s, struct candidate *c)
{
    double trained = 0, ns = 0, serve = 0, longest = 0;
    struct hzp_simulated without;
    use_chain(s, 0);
    simulate(s, &c->shape, 0, 0, &without);
    for (int32_t i = 0; i < s->slices; i++) {
        struct slice *slice = &c->slice[i];
        if (c->shape.ride && i < s->forward) {
            fill_riding(s, &c->shape, i, &without, slice);
        } else {
            use_chain(s, 0);
            fill(s, &c->shape, s->from[i], &without, slice);
        }
        trained += slice->trained_ns;
        ns += slice->ns;
        serve += slice->serve_ns;
        longest = HZP_MAX(longest, slice->ns);
    }
    c->ns = ns / HZP_MAX(s->slices, 1);
    c->serve_ns = serve / HZP_MAX(s->slices, 1);
    c->score = ns > 0 ? trained / ns : 0;
    if ((s->config.goal_ns > 0 ? longest : c->ns) > 1.01 * s->goal_ns)
        c->score = -c->ns; /* the step misses the goal */
}

/* Inserts the candidate into the list of the best if it belongs there. */
static void keep(struct hzp_search *s, const struct candidate *c)
{
    int32_t at = s->bests;
    while (at > 0 && s->best[at - 1].score < c->score)
        at--;
    if (at == BEST)
        return;
    int32_t moved = HZP_MIN(s->bests, BEST - 1) - at;
    memmove(s->best + at + 1, s->best + at, (size_t)HZP_MAX(moved, 0) * sizeof(*c));
    s->best[at] = *c;
    s->bests = HZP_MIN(s->bests + 1, BEST);
}

static struct candidate try_shape(struct hzp_search *s, const struct hzp_plan_shape *shape)
{
    struct candidate c = {.shape = *shape};
    s->tried++;
    if (s->trains) {
        fill_with_training(s, &c);
        return c;
    }
    struct hzp_simulated result;
    simulate(s, shape, 0, 0, &result);
    c.ns = result.ns;
    c.serve_ns = result.serve_end_ns;
    c.slice[0] = (struct slice){.ns = c.ns, .serve_ns = c.serve_ns, .part = 1};
    c.score = -c.ns;
    return c;
}

/* ---- the lanes that a shape uses ---- */

/* Whether lanes can share cores: those of a CPU can, the SMs of partitions cannot. */
static bool shares_cores(const struct hzp_search *s)
{
    const struct hzp_tables *t = s->config.tables;
    return t->led && t->shares > 1 && t->threads > 1;
}

/* Sets each used lane's share; false: the device has too few cores (SMs). */
static bool shares_fit(const struct hzp_search *s, struct hzp_plan_shape *shape)
{
    uint32_t used = hzp_plan_shape_serves(shape) | (s->trains ? hzp_plan_shape_trains(shape) : 0);
    int32_t lanes = __builtin_popcount(used), sum = 0, threads = s->config.tables->threads;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (!(used >> l & 1))
            shape->share[l] = 0;
    if (lanes <= 1 || s->config.tables->shares < 2) { /* one lane, or a device without shares */
        int16_t own = shape->share[HZP_LANE_COMPUTE];
        memset(shape->share, 0, sizeof(shape->share));
        if (shape->network_lane && lanes <= 1 && own < threads)
            shape->share[HZP_LANE_COMPUTE] = own; /* the link's threads have the rest */
        return lanes <= 1 || !s->config.tables->led;
    }
    if (lanes > threads)
        return false;
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        if (used >> l & 1 && shape->share[l] == 0)
            shape->share[l] = (int16_t)HZP_MAX(threads / lanes, 1);
        if (shape->share[l] > threads)
            return false;
        sum += shape->share[l];
    }
    /* where lanes can share cores, their items' limits keep them apart, as far as that is best */
    return sum <= threads || s->vary.overlap;
}

static bool of_group(const struct hzp_search *s)
{
    return s->config.rig->config.model->tensor != NULL;
}

/* The candidate's score; -INFINITY: the device has too few cores (SMs) for it. */
static double consider_one(struct hzp_search *s, const struct hzp_plan_shape *shape)
{
    struct hzp_plan_shape fitted = *shape;
    if (!shares_fit(s, &fitted))
        return -INFINITY;
    struct candidate c = try_shape(s, &fitted);
    int which = c.shape.nanos == 1 ? 0 : c.shape.nanos == 2 && c.shape.network_lane ? 1 : -1;
    if (which >= 0 && !hzp_plan_shape_plain(&c.shape) &&
        (!s->simple[which].shape.nanos || c.score > s->simple[which].score))
        s->simple[which] = c;
    if (c.shape.nanos > 1 && (!s->several.shape.nanos || c.score > s->several.score))
        s->several = c;
    keep(s, &c);
    return c.score;
}

/* With several ranks: sums on the lane of rows and on a lane of their own, which the products leave
 * a core or not.  Returns the best score. */
static double consider_lanes(struct hzp_search *s, const struct hzp_plan_shape *shape)
{
    struct hzp_plan_shape with = *shape;
    int32_t threads = s->config.tables->threads;
    with.network_lane = HZP_LANE_COMPUTE;
    double best = consider_one(s, &with);
    with.network_lane = HZP_LANE_NETWORK;
    best = fmax(best, consider_one(s, &with));
    if (threads < 2 || with.share[HZP_LANE_COMPUTE])
        return best;
    with.share[HZP_LANE_COMPUTE] = (int16_t)(threads - 1);
    return fmax(best, consider_one(s, &with));
}

/* With several ranks also how nano-batches add up: all in one way or in the other, then from the
 * better of these each nano-batch in the other way, which stays if it helps.  So the work grows
 * with the number of nano-batches, and not with the number of their combinations. */
static void consider(struct hzp_search *s, const struct hzp_plan_shape *shape)
{
    struct hzp_plan_shape with = *shape, divided = *shape;
    if (!of_group(s)) {
        consider_one(s, shape);
        return;
    }
    memset(with.reduce, HZP_REDUCE_ALL, sizeof(with.reduce));
    for (int32_t i = 0; i < shape->nanos; i++)
        divided.reduce[i] = HZP_REDUCE_SCATTERED;
    double best = consider_lanes(s, &with), other = consider_lanes(s, &divided);
    if (other > best) {
        with = divided;
        best = other;
    }
    for (int32_t i = 0; i < shape->nanos && shape->nanos > 1; i++) {
        with.reduce[i] ^= HZP_REDUCE_ALL ^ HZP_REDUCE_SCATTERED;
        other = consider_lanes(s, &with);
        if (other > best)
            best = other;
        else
            with.reduce[i] ^= HZP_REDUCE_ALL ^ HZP_REDUCE_SCATTERED;
    }
}

/* ---- the initial list of shapes ---- */

enum { ALL_ONE, ATTENTION_APART, DECODE_APART, NANOS_APART, PATTERNS };

static void set_lanes(struct hzp_plan_shape *shape, int pattern)
{
    memset(shape->lane, HZP_LANE_COMPUTE, sizeof(shape->lane));
    for (int32_t i = 0; i < shape->nanos; i++) {
        if (pattern == ATTENTION_APART || pattern == DECODE_APART)
            shape->lane[i][HZP_KIND_DECODE] = HZP_LANE_MEMORY;
        if (pattern == ATTENTION_APART)
            shape->lane[i][HZP_KIND_PREFILL] = HZP_LANE_MEMORY;
        if (pattern == NANOS_APART)
            memset(shape->lane[i], i % 2 ? HZP_LANE_MEMORY : HZP_LANE_COMPUTE,
                   sizeof(shape->lane[i]));
    }
}

/* Tries every division of the device between the lanes that the shape uses. */
static void divide(struct hzp_search *s, struct hzp_plan_shape *shape, int pattern)
{
    const struct hzp_tables *t = s->config.tables;
    static const enum hzp_lane_name train_lane[] = {HZP_LANE_COMPUTE, HZP_LANE_TRAIN,
                                                    HZP_LANE_MEMORY};
    for (int where = 0; where < (s->trains ? HZP_COUNT(train_lane) : 1); where++) {
        memset(shape->train_lane, train_lane[where], sizeof(shape->train_lane));
        bool beside = train_lane[where] == HZP_LANE_TRAIN;
        if (train_lane[where] == HZP_LANE_MEMORY && pattern == ALL_ONE)
            continue; /* the same as training on HZP_LANE_TRAIN */
        memset(shape->share, 0, sizeof(shape->share));
        if (pattern == ALL_ONE && !beside) {
            consider(s, shape);
            continue;
        }
        for (int32_t i = 0; i < t->shares; i++) {
            int32_t cores = t->cores[i], rest = t->threads - cores;
            if (rest < 1 && t->shares > 1)
                continue;
            memset(shape->share, 0, sizeof(shape->share));
            shape->share[HZP_LANE_COMPUTE] = (int16_t)cores;
            if (pattern == ALL_ONE) {
                shape->share[HZP_LANE_TRAIN] = (int16_t)rest;
            } else if (beside) {
                shape->share[HZP_LANE_MEMORY] = (int16_t)HZP_MAX(rest / 2, 1);
                shape->share[HZP_LANE_TRAIN] = (int16_t)(rest - rest / 2);
            } else {
                shape->share[HZP_LANE_MEMORY] = (int16_t)rest;
            }
            consider(s, shape);
        }
    }
}

static void with_orders(struct hzp_search *s, struct hzp_plan_shape *shape)
{
    for (int order = 0; order < (shape->nanos > 1 ? HZP_ORDER_COUNT : 1); order++)
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            if (pattern == NANOS_APART && shape->nanos == 1)
                continue;
            shape->order = (uint8_t)order;
            set_lanes(shape, pattern);
            divide(s, shape, pattern);
        }
}

/* Tries shapes in which training rides in serving's products: one nano-batch on one lane. */
static void try_riding(struct hzp_search *s)
{
    const struct hzp_train_space *space = s->config.rig->train;
    for (int i = 0; s->trains && i < HZP_COUNT(chunk_sizes); i++) {
        struct hzp_plan_shape shape = hzp_plan_sequential;
        shape.ride = chunk_sizes[i];
        if (shape.ride <= s->train && s->decode + s->prefill <= space->config.ride_rows)
            consider(s, &shape);
    }
}

static void enumerate(struct hzp_search *s)
{
    static const int32_t weights[][4] = {{1},    {1, 1},    {1, 2},    {2, 1},    {1, 3},
                                         {3, 1}, {1, 1, 1}, {2, 1, 1}, {1, 1, 2}, {1, 1, 1, 1}};
    int32_t d = s->decode, p = s->prefill, rows = d + p;
    const int32_t border[][4] = {{d, p}, {d / 2, d - d / 2, p}, {d, p / 2, p - p / 2}};
    for (int i = 0; i < HZP_COUNT(weights) + (d && p ? HZP_COUNT(border) : 0); i++) {
        const int32_t *w = i < HZP_COUNT(weights) ? weights[i] : border[i - HZP_COUNT(weights)];
        struct hzp_plan_shape shape = hzp_plan_sequential;
        shape.nanos = 0;
        while (shape.nanos < 4 && w[shape.nanos] > 0) {
            shape.weight[shape.nanos] = w[shape.nanos];
            shape.nanos++;
        }
        if (shape.nanos > 0 && shape.nanos <= rows && (s->trains ? shape.nanos <= 2 : true))
            with_orders(s, &shape);
    }
}

/* ---- small changes ---- */

/* The best so far, their stages cut in ways of their own, or their lanes sharing cores; also the
 * best of those with several nano-batches, which may win only so. */
static void try_cuts(struct hzp_search *s)
{
    struct hzp_plan_shape best[BEST + 1], cut[HZP_VARY_CUTS];
    int32_t bests = s->bests;
    for (int32_t i = 0; i < bests; i++)
        best[i] = s->best[i].shape;
    if (s->several.shape.nanos)
        best[bests++] = s->several.shape;
    for (int32_t i = 0; i < bests; i++) {
        int cuts = best[i].ride ? 0 : hzp_vary_cuts(&s->vary, &best[i], cut);
        for (int c = 0; c < cuts; c++)
            consider_one(s, &cut[c]);
        for (int k = 0; k < HZP_KIND_COUNT && s->vary.overlap; k++)
            if (hzp_vary_shared(&s->vary, &best[i], (enum hzp_kind)k, &cut[0]))
                consider_one(s, &cut[0]);
    }
}

static void climb(struct hzp_search *s)
{
    for (int32_t which = 0; which < s->bests; which++) {
        struct candidate at = s->best[which];
        for (int32_t i = 0; i < s->config.tries; i++) {
            struct hzp_plan_shape shape = at.shape;
            for (int32_t n = 1 + hzp_vary_draw(&s->vary, 2); n > 0; n--)
                hzp_vary_change(&s->vary, &shape);
            if (!shares_fit(s, &shape) || hzp_plan_shape_check(&shape, NULL) < 0)
                continue;
            struct candidate c = try_shape(s, &shape);
            if (c.score > at.score)
                at = c;
        }
        if (at.score > s->best[0].score)
            s->best[0] = at;
    }
}

/* ---- one step ---- */

/* Sets where slices begin: at the middles of SLICES parts of the chain that take equal time. */
static void find_slices(struct hzp_search *s)
{
    const struct hzp_plan *chain = &s->config.rig->chain;
    int32_t threads = HZP_MAX(s->config.tables->threads, 1);
    double all = 0, done = 0;
    for (int32_t i = 0; i < chain->items; i++)
        all += hzp_simulator_alone_ns(s->sim, &chain->item[i], false, threads);
    s->slices = s->forward = 0;
    for (int32_t i = 0; i < chain->items && s->slices < SLICES; i++) {
        int32_t seen = s->slices;
        if (done >= all * (2 * s->slices + 1) / (2 * SLICES))
            s->from[s->slices++] = i;
        s->forward += s->slices > seen && i < s->config.rig->train->forward_end;
        done += hzp_simulator_alone_ns(s->sim, &chain->item[i], false, threads);
    }
}

/* Scores are rates (> 0), or negated durations. */
static bool better(const struct candidate *c, const struct candidate *plain)
{
    return plain->score > 0 ? c->score > margin * plain->score : c->score > plain->score / margin;
}

/* Sets the current step: its rows, where its slices begin, and its goal; tries the sequential
 * plan. */
static int take_up(struct hzp_search *s, int32_t decode, int32_t depth, int32_t prefill,
                   int32_t train, struct candidate *ret_plain)
{
    struct hzp_simulated usual;
    s->decode = decode;
    s->depth = depth;
    s->prefill = prefill;
    s->bests = 0;
    s->several.shape.nanos = 0;
    s->vary.overlap = 0;
    s->slices = 0;
    s->trains = false;
    s->train = train;
    s->chunked.rows = 0;
    hzp_rig_chunks(s->config.rig, 0);
    HZP_TRY(hzp_rig_train(s->config.rig, train));
    HZP_TRY(hzp_rig_serve(
        s->config.rig, HZP_MIN(HZP_MAX(decode, 1), s->config.rig->config.decode_max), depth, 0, 0));
    simulate(s, &hzp_plan_sequential, 0, 0, &usual);
    s->usual_ns = usual.ns;
    HZP_TRY(hzp_rig_serve(s->config.rig, decode, depth, prefill, 0));
    *ret_plain = try_shape(s, &hzp_plan_sequential);
    if (train) {
        s->trains = true;
        find_slices(s);
        s->goal_ns = s->config.goal_ns > 0 ? s->config.goal_ns
                                           : ret_plain->ns + s->config.train_share * s->usual_ns;
        *ret_plain = try_shape(s, &hzp_plan_sequential);
    }
    return HZP_OK;
}

int hzp_search_step(struct hzp_search *s, int32_t decode, int32_t depth, int32_t prefill,
                    int32_t train, struct hzp_plan_entry *ret)
{
    struct candidate plain;
    HZP_TRY(take_up(s, decode, depth, prefill, train, &plain));
    enumerate(s);
    try_riding(s);
    s->vary.trains = s->trains;
    s->vary.group = of_group(s);
    s->vary.rows = decode + prefill;
    s->vary.overlap = shares_cores(s) ? s->config.tables->threads : 0;
    try_cuts(s);
    climb(s);
    struct candidate *best = s->bests && better(&s->best[0], &plain) ? &s->best[0] : &plain;
    *ret = (struct hzp_plan_entry){.decode = decode,
                                   .prefill = prefill,
                                   .train = train,
                                   .shape = best->shape,
                                   .ns = best->ns,
                                   .plain_ns = plain.ns,
                                   .serve_ns = best->serve_ns,
                                   .plain_serve_ns = plain.serve_ns,
                                   .rate = s->trains ? HZP_MAX(best->score, 0) : 0,
                                   .plain_rate = s->trains ? HZP_MAX(plain.score, 0) : 0,
                                   .goal_ns = s->trains ? s->goal_ns : 0};
    return HZP_OK;
}

/* ---- running the shapes found ---- */

/* Runs the candidate once with each of its slices. Returns how long that took and the training
 * done, both scaled to the average step. */
static int run(struct hzp_search *s, struct hzp_exec *exec, const struct candidate *c,
               double *ret_ns, double *ret_trained)
{
    struct hzp_device *dev = s->config.rig->config.model->dev;
    *ret_ns = *ret_trained = 0;
    if (s->config.crew)
        return hzp_crew_step(s->config.crew, &c->shape, s->decode, s->depth, s->prefill, ret_ns,
                             NULL);
    for (int32_t i = 0; i < HZP_MAX(s->slices, 1); i++) {
        struct hzp_exec_times times;
        if (s->slices)
            use_chain(s, c->slice[i].chunk_rows);
        hzp_rig_build(s->config.rig, &c->shape, c->slice[i].from, c->slice[i].to, &s->plan);
        uint64_t begin = hzp_device_now_ns(dev);
        HZP_TRY(hzp_exec_run(exec, &s->plan, NULL, &times));
        *ret_ns += (double)(hzp_device_now_ns(dev) - begin) * c->slice[i].part;
        *ret_trained += c->slice[i].trained_ns;
    }
    return HZP_OK;
}

/* One run of each plan. *ret_gain: by what factor c was better than the plain plan. *ret_late: c's
 * duration over the goal, or over the plain plan's duration if that is longer. *ret_ns: how long
 * both runs took. */
static int turn(struct hzp_search *s, struct hzp_exec *exec, const struct candidate *plain,
                const struct candidate *c, double *ret_gain, double *ret_late, double *ret_ns)
{
    double ns[2], trained[2];
    uint64_t begin = hzp_device_now_ns(s->config.rig->config.model->dev);
    HZP_TRY(run(s, exec, plain, &ns[0], &trained[0]));
    HZP_TRY(run(s, exec, c, &ns[1], &trained[1]));
    *ret_ns = (double)(hzp_device_now_ns(s->config.rig->config.model->dev) - begin);
    *ret_gain = ns[0] / HZP_MAX(ns[1], 1);
    if (s->trains)
        *ret_gain *= trained[1] / HZP_MAX(trained[0], 1);
    *ret_late = s->trains ? ns[1] / HZP_MAX(s->goal_ns * s->slices, ns[0]) : 0;
    return HZP_OK;
}

/* Runs both plans alternately and returns the medians. *ret_gain is 0 if RUNS_MIN turns would take
 * longer than most_ns. */
static int compare(struct hzp_search *s, struct hzp_exec *exec, const struct candidate *plain,
                   const struct candidate *c, double most_ns, double *ret_gain, double *ret_late)
{
    double gain[RUNS_MAX], late[RUNS_MAX], ns;
    int32_t runs = RUNS_MIN;
    *ret_gain = *ret_late = 0;
    HZP_TRY(turn(s, exec, plain, c, &gain[0], &late[0], &ns)); /* not counted: creates primitives */
    if (most_ns > 0 && RUNS_MIN * ns > most_ns)
        return HZP_OK;
    for (int32_t i = 0; i < runs; i++) {
        HZP_TRY(turn(s, exec, plain, c, &gain[i], &late[i], &ns));
        if (i == 0)
            runs = (int32_t)HZP_MIN(HZP_MAX(runs_ns / HZP_MAX(ns, 1), RUNS_MIN), RUNS_MAX);
    }
    *ret_gain = hzp_median(gain, runs);
    *ret_late = hzp_median(late, runs);
    return HZP_OK;
}

/* On ranks whose threads share cores the more a shape is cut the longer its exchanges wait for a
 * core, which pairs of ops do not show: the shape with the best prediction is often cut too fine.
 * So, if it does not win, simpler ones that are predicted to win are run too.  Sets *c, *gain and
 * *late to the best of all that were run. */
static int run_simpler(struct hzp_search *s, struct hzp_exec *exec, const struct candidate *plain,
                       double most_ns, struct candidate *c, double *gain, double *late)
{
    struct hzp_plan_shape first = c->shape, even = hzp_pipeline_usual();
    memset(s->simple, 0, sizeof(s->simple));
    enumerate(s);
    const struct candidate other[] = {s->simple[0], s->simple[1], try_shape(s, &even)};
    for (int i = 0; i < HZP_COUNT(other); i++) {
        double other_gain, other_late;
        if (!other[i].shape.nanos || other[i].shape.nanos > s->decode + s->prefill ||
            !memcmp(&other[i].shape, &first, sizeof(first)) || other[i].score <= plain->score)
            continue;
        HZP_TRY(compare(s, exec, plain, &other[i], most_ns, &other_gain, &other_late));
        if (other_gain <= *gain)
            continue;
        *c = other[i];
        *gain = other_gain;
        *late = other_late;
    }
    return HZP_OK;
}

int hzp_search_confirm(struct hzp_search *s, struct hzp_exec *exec, int32_t depth, double most_ns,
                       struct hzp_plan_entry *entry)
{
    struct candidate plain, c;
    double late, gain, each = of_group(s) ? most_ns / 4 : most_ns;
    HZP_TRY(take_up(s, entry->decode, depth, entry->prefill, entry->train, &plain));
    c = try_shape(s, &entry->shape);
    HZP_TRY(compare(s, exec, &plain, &c, each, &gain, &late));
    if (s->config.crew && gain > 0 && gain < margin)
        HZP_TRY(run_simpler(s, exec, &plain, each, &c, &gain, &late));
    entry->confirmed = gain;
    if (gain >= margin && late <= 1.03 &&
        memcmp(&c.shape, &entry->shape, sizeof(c.shape)) != 0) { /* predicted for other layers */
        entry->shape = c.shape;
        entry->ns = entry->plain_ns * c.ns / HZP_MAX(plain.ns, 1);
        entry->serve_ns = entry->plain_serve_ns * c.serve_ns / HZP_MAX(plain.serve_ns, 1);
    }
    if (!(gain > 0) || (gain >= margin && late <= 1.03))
        return HZP_OK;
    entry->shape = hzp_plan_sequential;
    entry->ns = entry->plain_ns;
    entry->serve_ns = entry->plain_serve_ns;
    entry->rate = entry->plain_rate;
    return HZP_OK;
}
