/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_lane_graphs.c - decode steps over several lanes as graphs: as one graph, or
 * with graphs of each green lane, ordered by events.
 *
 * Besides running steps in many orders, the test reads the order off the recorder's calls: what is
 * behind what by streams, by events and by the edges inside graphs.  Every dependency of a plan
 * must be in it, and a step must be behind the one before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/backend.h"
#include "device/fallback.h"
#include "nanobatch/run/driver.h"
#include "tests/cudafake/ops.h"
#include "tests/cudafake/world.h"

enum {
    ITEMS_MAX = 256,
    ISSUES_MAX = 1 << 14,
    CALLS_MAX = 1 << 16,
    STREAMS_MAX = 32,
    WAITS_MAX = 256
};

/* ---- which calls an op has made ---- */

static struct issued {
    enum hzp_op op;
    uint64_t lane;
    int first, calls; /* of the recorder */
} issued[ISSUES_MAX];
static int issues;
static hzp_op_fn *inner[HZP_OP_COUNT];

static int note(struct hzp_lane *lane, enum hzp_op op, const void *args)
{
    struct issued *i = &issued[issues++];
    assert_true(issues <= ISSUES_MAX);
    *i = (struct issued){.op = op, .lane = hzp_cuda_lane(lane)->id, .first = fake_calls()};
    int r = inner[op](lane, args);
    i->calls = fake_calls() - i->first;
    return r;
}

#define X(name, class_)                                                                            \
    static int note_##name(struct hzp_lane *lane, const void *args)                                \
    {                                                                                              \
        return note(lane, HZP_OP_##name, args);                                                    \
    }
HZP_OPS(X)
#undef X

static struct hzp_device *open_noted(unsigned seed, const char *graphs)
{
    setenv("HZP_CUDA_GRAPHS", graphs, 1);
    struct hzp_device *dev = fake_open(seed, "green", NULL);
    unsetenv("HZP_CUDA_GRAPHS");
    memcpy(inner, dev->op, sizeof(inner));
#define X(name, class_) dev->op[HZP_OP_##name] = note_##name;
    HZP_OPS(X)
#undef X
    issues = 0;
    return dev;
}

/* ---- what is behind what ---- */

static uint64_t streams[STREAMS_MAX];
static int (*newest)[STREAMS_MAX]; /* [call]: of each stream, the newest call it is behind */
static int known;                  /* calls for which that was found */

static int index_of(uint64_t stream)
{
    int i = 0;
    while (streams[i] && streams[i] != stream)
        assert_true(++i < STREAMS_MAX);
    streams[i] = stream;
    return i;
}

/* The newest call before `at` in the same capture, or outside of captures: of the stream, or if
 * event is not NULL, the record of the event. -1: none. */
static int before_it(int at, uint64_t stream, cudaEvent_t event)
{
    const struct fake_call *call = fake_call_at(at), *old;
    for (int i = at - 1; i >= 0; i--) {
        old = fake_call_at(i);
        if (old->captured != call->captured || (call->captured && old->graph != call->graph))
            continue;
        if (event ? old->kind == FAKE_RECORD && old->event == event : old->stream == stream)
            return i;
    }
    return -1;
}

static void merge(int into, int from)
{
    for (int s = 0; s < STREAMS_MAX && from >= 0; s++)
        newest[into][s] = HZP_MAX(newest[into][s], newest[from][s]);
}

/* Reads the calls that were made since it was last called. */
static void read_order(void)
{
    if (!newest)
        newest = hzp_xmalloc(CALLS_MAX * sizeof(*newest));
    assert_true(fake_calls() < CALLS_MAX);
    for (; known < fake_calls(); known++) {
        const struct fake_call *call = fake_call_at(known);
        memset(newest[known], 0xff, sizeof(newest[known]));
        merge(known, before_it(known, call->stream, NULL));
        if (call->kind == FAKE_WAIT)
            merge(known, before_it(known, 0, call->event));
        newest[known][index_of(call->stream)] = known;
    }
}

static void forget_order(void)
{
    memset(streams, 0, sizeof(streams));
    free(newest);
    newest = NULL;
    known = 0;
}

static bool is_behind(int call, int older)
{
    return newest[call][index_of(fake_call_at(older)->stream)] >= older;
}

/* Where an item ran: by itself (launch = calls of its own), or in a graph that was launched. */
struct place {
    int launch;
    int first, last; /* the item's own calls */
    uint64_t lane;
};

/* The order that two items of one step or of two have. */
static bool item_behind(const struct place *item, const struct place *older)
{
    if (item->launch >= 0 && item->launch == older->launch)
        return is_behind(item->first, older->last);
    return is_behind(item->launch < 0 ? item->first : item->launch,
                     older->launch < 0 ? older->last : older->launch);
}

struct step {
    const struct hzp_plan *plan;
    struct place place[ITEMS_MAX];
    int calls, issues; /* so many there were before it */
    int launches;      /* of graphs */
};

static void step_begin(struct step *s, const struct hzp_plan *plan)
{
    *s = (struct step){.plan = plan, .calls = fake_calls(), .issues = issues};
}

/* The launch in this step of the graph that the issue is part of; -1: there is none. */
static int launch_of(const struct step *s, const struct issued *i)
{
    const struct fake_call *call = fake_call_at(i->first + i->calls - 1);
    for (int c = s->calls; call->captured && c < fake_calls(); c++)
        if (fake_call_at(c)->kind == FAKE_GRAPH && fake_call_at(c)->graph == call->graph)
            return c;
    return -1;
}

/* Finds where the step's items ran: op by op in the plan's order, those of graphs in the order of
 * their capture, which is the plan's, too. */
static void step_end(struct step *s)
{
    int at = 0, graphed = 0, before = s->issues;
    struct place part[ITEMS_MAX];
    enum hzp_op op[ITEMS_MAX];
    for (int i = 0; i < issues; i++) {
        int launch = launch_of(s, &issued[i]);
        if (launch >= 0) {
            op[graphed] = issued[i].op;
            part[graphed++] = (struct place){launch, issued[i].first,
                                             issued[i].first + issued[i].calls - 1, issued[i].lane};
        }
    }
    for (int c = s->calls; c < fake_calls(); c++)
        s->launches += fake_call_at(c)->kind == FAKE_GRAPH;
    for (; before < issues && !fake_call_at(issued[before].first)->captured && at < ITEMS_MAX;
         before++) {
        const struct issued *i = &issued[before];
        assert_int_equal(s->plan->item[at].op, i->op);
        s->place[at++] = (struct place){-1, i->first, i->first + i->calls - 1, i->lane};
    }
    for (int i = 0; i < graphed; i++) {
        assert_int_equal(s->plan->item[at].op, op[i]);
        s->place[at++] = part[i];
    }
    assert_int_equal(at, s->plan->items);
    read_order();
}

/* How many orders are missing: of the plan's waits, of each lane's items, and of all items behind
 * all of the step before (NULL: none). */
static int missing(const struct step *s, const struct step *older)
{
    int count = 0;
    for (int32_t i = 0; i < s->plan->items; i++) {
        const struct hzp_item *item = &s->plan->item[i];
        for (int32_t k = 0; k < item->waits; k++)
            count += !item_behind(&s->place[i], &s->place[s->plan->wait[item->wait0 + k]]);
        for (int32_t k = 0; k < i; k++)
            if (s->plan->item[k].lane == item->lane)
                count += !item_behind(&s->place[i], &s->place[k]);
        for (int32_t k = 0; older && k < older->plan->items; k++)
            count += !item_behind(&s->place[i], &older->place[k]);
    }
    return count;
}

/* ---- steps in flight ---- */

/* Three lanes; `which` of four divisions of the SMs.  With an odd one the second nano-batch begins
 * on another lane than the first. */
static struct hzp_plan_shape shape_of(int which)
{
    static const int16_t shares[4][3] = {{48, 48, 32}, {64, 32, 32}, {80, 24, 24}, {32, 64, 32}};
    struct hzp_plan_shape shape = {.nanos = 2, .weight = {2, 3}, .order = HZP_ORDER_SKEWED};
    shape.lane[0][HZP_KIND_DECODE] = HZP_LANE_MEMORY;
    shape.lane[1][HZP_KIND_DECODE] = HZP_LANE_NETWORK;
    shape.lane[1][HZP_KIND_ROWS] = which % 2 ? HZP_LANE_NETWORK : HZP_LANE_COMPUTE;
    shape.share[HZP_LANE_COMPUTE] = shares[which][0];
    shape.share[HZP_LANE_MEMORY] = shares[which][1];
    shape.share[HZP_LANE_NETWORK] = shares[which][2];
    return shape;
}

static const int32_t tokens[SEGS] = {1, 2, 3, 4, 5, 6};

struct flights {
    struct world w;
    struct hzp_plan plan[2]; /* the same step with two divisions of the SMs */
    struct hzp_flight *flight[2];
    struct step step[2];
    int number; /* of steps */
};

static void flights_open(struct flights *f, unsigned seed, const char *graphs)
{
    memset(f, 0, sizeof(*f));
    world_open(&f->w, open_noted(seed, graphs));
    for (int i = 0; i < 2; i++) {
        struct hzp_plan_shape shape = shape_of(i);
        assert_int_equal(hzp_flight_open(f->w.exec, &f->flight[i]), HZP_OK);
        world_build(&f->w, 1, 6, tokens, 0, &shape);
        f->plan[i] = f->w.plan;
        hzp_plan_init(&f->w.plan);
        for (int turn = 0; turn < 2; turn++) { /* op by op, then captured */
            struct hzp_exec_times times;
            step_begin(&f->step[0], &f->plan[i]);
            assert_int_equal(hzp_exec_run(f->w.exec, &f->plan[i], NULL, &times), HZP_OK);
            step_end(&f->step[0]);
            assert_int_equal(f->step[0].launches > 0, turn);
            assert_int_equal(missing(&f->step[0], NULL), 0);
        }
    }
}

static void flights_close(struct flights *f)
{
    struct hzp_device *dev = f->w.m.dev;
    for (int i = 0; i < 2; i++) {
        hzp_flight_close(f->flight[i]);
        hzp_plan_fini(&f->plan[i]);
    }
    world_close(&f->w);
    fake_close(dev);
    forget_order();
}

/* Issues a step behind the one before, which is still in flight; returns how many orders are
 * missing.  first: there is none before. */
static int fly(struct flights *f, int which, bool first)
{
    struct hzp_exec_times times;
    int at = f->number++ % 2;
    step_begin(&f->step[at], &f->plan[which]);
    assert_int_equal(
        hzp_exec_issue(f->w.exec, &f->plan[which], f->flight[at], first ? NULL : f->flight[!at]),
        HZP_OK);
    step_end(&f->step[at]);
    int count = missing(&f->step[at], first ? NULL : &f->step[!at]);
    if (!first)
        assert_int_equal(hzp_exec_land(f->flight[!at], NULL, &times), HZP_OK);
    return count;
}

static void land(struct flights *f)
{
    struct hzp_exec_times times;
    assert_int_equal(hzp_exec_land(f->flight[!(f->number % 2)], NULL, &times), HZP_OK);
}

/* Every dependency of the plan is in the order of streams, events and graphs, and every step is
 * behind the one in flight before it, also where the shares change in between. */
static void test_order(void **state)
{
    static const int which[] = {0, 0, 1, 1, 0, 1};
    for (int whole = 0; whole < 2; whole++) {
        struct flights f;
        flights_open(&f, 1, whole ? "whole" : "lanes");
        for (int i = 0; i < HZP_COUNT(which); i++) {
            assert_int_equal(fly(&f, which[i], i == 0), 0);
            int launches = f.step[i % 2].launches;
            assert_true(whole ? launches == 1 : launches > 4 * LAYERS);
        }
        land(&f);
        flights_close(&f);
    }
}

/* Lanes whose split of the SMs is refused have streams of their own: a step is one graph, and is
 * counted as one. */
static void test_refused_split(void **state)
{
    struct world w;
    struct hzp_plan_shape shape = shape_of(0);
    shape.share[HZP_LANE_COMPUTE] = 16;
    shape.share[HZP_LANE_MEMORY] = shape.share[HZP_LANE_NETWORK] = 12;
    fake_set_sms(40); /* too few for three green contexts */
    world_open(&w, open_noted(1, "lanes"));
    world_build(&w, 1, 6, tokens, 0, &shape);
    assert_int_equal(hzp_exec_capture(w.exec, &w.plan), HZP_OK);
    struct hzp_graphs_stats stats = hzp_exec_graphs(w.exec);
    assert_int_equal(stats.captures, 1);
    assert_int_equal(stats.graphs, 1);
    world_run(&w);
    assert_int_equal(fake_count(FAKE_GRAPH), 1);
    struct hzp_device *dev = w.m.dev;
    world_close(&w);
    fake_close(dev);
    fake_set_sms(132);
}

static void set(struct hzp_lane *lane, float *x)
{
    struct hzp_fill_args args = {.y = {x, 1, 1, 1, HZP_F32}};
    assert_int_equal(hzp_op_fill(lane, &args), HZP_OK);
}

/* A launch is behind all earlier and before all later work of each of its lanes. */
static void test_around(void **state)
{
    for (int whole = 0; whole < 2; whole++) {
        struct hzp_device *dev = open_noted(1, whole ? "whole" : "lanes");
        struct hzp_lane *lane[2];
        struct hzp_graph *graph;
        void *x;
        assert_int_equal(hzp_device_alloc(dev, HZP_MEM_DEVICE, 512, &x), HZP_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane[i]), HZP_OK);
            assert_int_equal(hzp_lane_set_share(lane[i], 64), HZP_OK);
        }
        float *y = (float *)x + 64;
        assert_int_equal(hzp_graph_begin(lane, 2), HZP_OK);
        set(lane[0], x);
        set(lane[1], y);
        assert_int_equal(hzp_graph_end(lane[0], &graph), HZP_OK);
        for (int turn = 0; turn < 2; turn++) {
            set(lane[0], y);
            set(lane[1], x);
            assert_int_equal(hzp_graph_launch(graph, lane[0]), HZP_OK);
        }
        set(lane[0], y);
        set(lane[1], x);
        assert_string_equal(fake_mistakes(), "");
        assert_int_equal(fake_count(FAKE_GRAPH), whole ? 2 : 4);
        hzp_graph_close(dev, graph);
        for (int i = 0; i < 2; i++)
            hzp_lane_close(lane[i]);
        hzp_device_free(dev, HZP_MEM_DEVICE, x);
        fake_close(dev);
    }
}

/* Of a step's waits each in turn is lost by the driver: without any of those between graphs an
 * order is missing, and where two items share memory the recorder reports the race. */
static void test_lost_wait(void **state)
{
    struct flights f;
    flights_open(&f, 2, "lanes");
    int inside[WAITS_MAX], waits = 0, graphs = 0, noticed = 0, between = 0;
    assert_int_equal(fly(&f, 0, true), 0); /* with the other step's shares before */
    land(&f);
    int begin = fake_calls();
    assert_int_equal(fly(&f, 0, true), 0);
    land(&f);
    for (int i = begin; i < fake_calls(); i++) {
        graphs += fake_call_at(i)->kind == FAKE_GRAPH;
        if (fake_call_at(i)->kind == FAKE_WAIT && waits < WAITS_MAX)
            inside[waits++] = graphs;
    }
    for (int k = 0; k < waits; k++) {
        fake_fail("cudaStreamWaitEvent", k, cudaSuccess);
        bool lost = fly(&f, 0, true) > 0;
        land(&f);
        between += inside[k] > 0 && inside[k] < graphs;
        noticed += lost && inside[k] > 0 && inside[k] < graphs;
    }
    assert_true(between > 2 * LAYERS);
    assert_int_equal(noticed, between);
    assert_non_null(strstr(fake_mistakes(), "a race"));
    fake_reset(1);
    flights_close(&f);
}

/* ---- bits ---- */

enum { STEPS = 12, SEEN_MAX = 2048 };

/* What a world's steps gave, and the calls of the last step's items. */
struct told {
    int32_t token[STEPS][SEGS];
    float logprob[STEPS][SEGS];
    struct fake_call call[SEEN_MAX];
    uint64_t lane[SEEN_MAX];
    int calls;
};

static void tell_calls(struct told *t, const struct step *s)
{
    for (int32_t i = 0; i < s->plan->items; i++)
        for (int c = s->place[i].first; c <= s->place[i].last; c++) {
            assert_true(t->calls < SEEN_MAX);
            t->lane[t->calls] = s->place[i].lane;
            t->call[t->calls++] = *fake_call_at(c);
        }
}

static void tell(struct told *t, const char *graphs)
{
    struct world w;
    struct step s;
    int32_t token[SEGS];
    memset(t, 0, sizeof(*t));
    setenv("HZP_GRAPHS", graphs ? "1" : "0", 1);
    world_open(&w, open_noted(3, graphs ? graphs : ""));
    unsetenv("HZP_GRAPHS");
    for (int i = 0; i < STEPS; i++) {
        struct hzp_plan_shape shape = shape_of(i / 3 % 2);
        world_build(&w, i, 6, token, 0, &shape);
        step_begin(&s, &w.plan);
        world_run(&w);
        memcpy(token, w.batch->token, sizeof(token));
        memcpy(t->token[i], w.batch->token, 6 * sizeof(*token));
        memcpy(t->logprob[i], w.batch->logprob, 6 * sizeof(float));
    }
    step_end(&s);
    assert_int_equal(s.launches > 0, graphs != NULL);
    tell_calls(t, &s);
    struct hzp_device *dev = w.m.dev;
    world_close(&w);
    fake_close(dev);
    forget_order();
}

/* As one graph and as graphs of lanes, steps have the bits of the ops one by one; and whichever
 * graphs they are in, ops have the same launches on the same lanes. */
static void test_bits(void **state)
{
    static struct told plain, whole, lanes;
    tell(&plain, NULL);
    tell(&whole, "whole");
    tell(&lanes, "lanes");
    assert_memory_equal(plain.token, whole.token, sizeof(plain.token));
    assert_memory_equal(plain.token, lanes.token, sizeof(plain.token));
    assert_memory_equal(plain.logprob, whole.logprob, sizeof(plain.logprob));
    assert_memory_equal(plain.logprob, lanes.logprob, sizeof(plain.logprob));
    assert_int_equal(whole.calls, lanes.calls);
    for (int i = 0; i < whole.calls; i++) {
        const struct fake_call *a = &whole.call[i], *b = &lanes.call[i];
        assert_int_equal(whole.lane[i], lanes.lane[i]);
        assert_int_equal(a->kind, b->kind);
        assert_string_equal(a->name, b->name);
        assert_memory_equal(&a->grid, &b->grid, sizeof(a->grid));
        assert_memory_equal(&a->block, &b->block, sizeof(a->block));
        assert_true(a->shared == b->shared && a->size == b->size && a->algo == b->algo &&
                    a->early == b->early && a->sm_from == b->sm_from && a->sm_to == b->sm_to);
    }
}

/* Shares that change every third step, in many orders: the same tokens as on the reference, and no
 * access that nothing orders. */
static void test_shares(void **state)
{
    for (unsigned seed = 0; seed < 8; seed++) {
        struct world real, plain;
        int32_t token[SEGS];
        world_open(&real, open_noted(seed, seed % 4 == 3 ? "whole" : "lanes"));
        world_open(&plain, world_reference());
        for (int i = 0; i < (seed < 2 ? 104 : 24); i++) {
            struct hzp_plan_shape shape = shape_of(i / 3 % 4);
            issues = 0;
            world_build(&plain, i, 6, token, 0, NULL);
            world_run(&plain);
            world_build(&real, i, 6, token, 0, &shape);
            world_run(&real);
            world_agree(&real, &plain, 6, token);
            assert_string_equal(fake_mistakes(), "");
        }
        struct hzp_graphs_stats stats = hzp_exec_graphs(real.exec);
        assert_int_equal(fake_count(FAKE_GRAPH), stats.pieces);
        assert_int_equal(stats.captures, 4);
        if (seed % 4 == 3)
            assert_int_equal(stats.pieces, stats.launches);
        else
            assert_true(stats.pieces > 4 * LAYERS * stats.launches);
        struct hzp_device *a = real.m.dev, *b = plain.m.dev;
        world_close(&plain);
        hzp_device_close(b);
        world_close(&real);
        fake_close(a);
    }
}

/* ---- memory ---- */

/* A step's graphs are counted as what the driver takes for all of them, kept as one and evicted as
 * one, and are no more than the memory plan expects of the shape. */
static void test_memory(void **state)
{
    enum { GRAPH = 20000, KEPT = 2 };
    struct world w;
    struct hzp_driver_memory driver = {.graph = GRAPH};
    struct hzp_plan_shape shape = shape_of(0);
    fake_set_driver(0, GRAPH, 0, 1);
    world_open(&w, open_noted(4, "lanes"));
    driver.cuts = hzp_plan_shape_runs(&shape, LAYERS) - 1;
    size_t least = hzp_driver_graphs(&driver, 1, 0);
    struct hzp_graphs_room room = {.graph = GRAPH, .bytes = KEPT * least};
    hzp_exec_prepare_graphs(w.exec, NULL, NULL, &room);
    world_build(&w, 1, 6, tokens, 0, &shape); /* opens its lanes */
    world_run(&w);
    size_t free_bytes = hzp_device_bytes_free(w.m.dev), one = 0;
    for (int i = 0; i < 8; i++) {
        shape = shape_of(i % 4);
        shape.lane[1][HZP_KIND_ROWS] = HZP_LANE_COMPUTE; /* all take as much */
        world_build(&w, 1, 6, tokens, 0, &shape);
        assert_int_equal(hzp_exec_capture(w.exec, &w.plan), HZP_OK);
        struct hzp_graphs_stats stats = hzp_exec_graphs(w.exec);
        if (i == 0)
            one = stats.bytes;
        assert_int_equal(free_bytes - hzp_device_bytes_free(w.m.dev), stats.bytes);
        assert_int_equal(stats.bytes, stats.graphs * GRAPH);
        assert_int_equal(stats.bytes, HZP_MIN(i + 1, KEPT) * one);
        assert_int_equal(stats.nodes, HZP_MIN(i + 1, KEPT) *
                                          (w.plan.items - (w.plan.item[0].op == HZP_OP_scatter)));
        assert_int_equal(stats.evictions, HZP_MAX(i + 1 - KEPT, 0));
    }
    assert_true(one > 4 * LAYERS * GRAPH && one <= least);
    struct hzp_device *dev = w.m.dev;
    world_close(&w);
    fake_close(dev);
    fake_set_driver(0, 0, 0, 1);
}

/* Of shapes drawn at random, no step has more graphs than the memory plan expects. */
static void test_most(void **state)
{
    uint32_t dice = 1;
    for (int turn = 0; turn < 40; turn++) {
        struct world w;
        struct hzp_plan_shape shape = {.nanos = 1 + turn % 4, .order = turn % HZP_ORDER_COUNT};
        for (int32_t i = 0; i < shape.nanos; i++) {
            shape.weight[i] = 1;
            for (int k = 0; k < HZP_KIND_COUNT; k++)
                shape.lane[i][k] = (uint8_t)((dice = dice * 1664525u + 1013904223u) >> 24) % 3;
        }
        world_fp8 = turn % 2;
        world_open(&w, open_noted((unsigned)turn, "lanes"));
        world_fp8 = false;
        world_build(&w, 1, 8, tokens, 0, &shape);
        assert_int_equal(hzp_exec_capture(w.exec, &w.plan), HZP_OK);
        struct hzp_graphs_stats stats = hzp_exec_graphs(w.exec);
        assert_int_equal(stats.captures, 1);
        assert_in_range(stats.graphs, 1, hzp_plan_shape_runs(&shape, LAYERS));
        struct hzp_device *dev = w.m.dev;
        world_close(&w);
        fake_close(dev);
    }
}

/* ---- refusals ---- */

/* One of a step's captures fails: the step goes op by op, nothing of it is kept, and after three
 * times it is not captured again; steps of another size are. */
static void test_refusals(void **state)
{
    static const char *const fails[] = {"cudaStreamBeginCapture", "cudaStreamEndCapture",
                                        "cudaGraphInstantiate", "cudaGraphUpload"};
    for (int i = 0; i < HZP_COUNT(fails); i++)
        for (int at = 0; at < 10; at += 4) { /* of ten pieces */
            struct world real, plain;
            int32_t token[SEGS];
            struct hzp_plan_shape shape = shape_of(0);
            fake_set_driver(0, 1000, 0, 1);
            world_open(&real, open_noted((unsigned)at, "lanes"));
            world_open(&plain, world_reference());
            for (int number = 0; number < 9; number++) {
                int segs = number < 7 ? 6 : 3;
                if (number > 1 && number < 6) /* the fourth is not asked for */
                    fake_fail(fails[i], at, cudaErrorNotSupported);
                world_build(&plain, number, segs, token, 0, NULL);
                world_run(&plain);
                world_build(&real, number, segs, token, 0, &shape);
                world_run(&real);
                fake_fail("", 0, 0);
                world_agree(&real, &plain, segs, token);
                struct hzp_graphs_stats stats = hzp_exec_graphs(real.exec);
                int times = HZP_MAX(HZP_MIN(number - 1, 3), 0);
                assert_int_equal(stats.refusals[1], times);
                assert_int_equal(hzp_device_fallbacks(real.m.dev, HZP_FALLBACK_graph),
                                 HZP_MAX(HZP_MIN(number, 6) - 1, 0)); /* of six rows, each */
                assert_int_equal(stats.captures, number == 8);
                assert_int_equal(stats.bytes, 0);
                assert_int_equal(fake_count(FAKE_GRAPH), stats.pieces);
                if (number == 6)
                    assert_null(strstr(fake_leaks(), "graph"));
            }
            assert_string_equal(fake_mistakes(), "");
            struct hzp_device *a = real.m.dev, *b = plain.m.dev;
            world_close(&plain);
            hzp_device_close(b);
            world_close(&real);
            fake_close(a);
            fake_set_driver(0, 0, 0, 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),         cmocka_unit_test(test_around),
        cmocka_unit_test(test_lost_wait),     cmocka_unit_test(test_bits),
        cmocka_unit_test(test_shares),        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_most),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refused_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
