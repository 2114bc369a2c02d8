/* SPDX-License-Identifier: Apache-2.0 */
/* Border calls: each runs on the engine thread between two steps, in the order of posting, until
 * its function says it is done; and none waits for ever, whatever becomes of the loop. */
#include "nanobatch/loop.h"
#include "tests/nanobatch/paper.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CALLERS = 4, CALLS = 300 };

/* A model on the virtual clock, and a source that offers one item a step as long as it has
 * some. */
struct world {
    struct paper paper;
    struct hzp_plan chain;
    struct hzp_source source;
    struct hzp_loop *loop;
    float memory[1024];
    int left, offers; /* steps to come; how often it was asked */
    bool offering, keeps;
};

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer)
{
    struct world *w = HZP_CONTAINER_OF(source, struct world, source);
    w->offering = true;
    w->offers++;
    if (w->left > 0) {
        offer->keep_version = w->keeps;
        hzp_offer_add(offer, &(struct hzp_slice){.chain = &w->chain, .to = 1});
        w->left--;
    }
    bool any = offer->slices > 0;
    w->offering = false;
    return any;
}

static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
}

static struct world *open_world(void)
{
    struct world *w = calloc(1, sizeof(*w));
    paper_open(&w->paper, "sim", NULL, 0);
    hzp_plan_init(&w->chain);
    w->chain.tenant = HZP_TENANT_TRAIN;
    struct hzp_mat y = {w->memory, 16, 64, 64, HZP_F32};
    HZP_PLAN_ADD(&w->chain, fill, HZP_LANE_COMPUTE, .y = y, .value = 1);
    w->source =
        (struct hzp_source){.name = "source", .slices = true, .offer = offer, .deliver = deliver};
    struct hzp_loop_config config = {.model = w->paper.m.model,
                                     .source = {&w->source},
                                     .sources = 1,
                                     .idle_ns = 1000000000,
                                     .check_plans = true};
    assert_int_equal(hzp_loop_create(&config, &w->loop), HZP_OK);
    return w;
}

static void close_world(struct world *w)
{
    hzp_loop_destroy(w->loop);
    hzp_plan_fini(&w->chain);
    paper_close(&w->paper);
    free(w);
}

/* A call that is done at its try number `tries`. */
struct task {
    struct hzp_border_call call;
    struct world *world;
    int tries, tried;
    struct hzp_border border; /* as the last try was given it */
    int *order, place;        /* the how-manieth that ended; 0: it has not */
};

static int run_task(void *ctx, const struct hzp_border *border)
{
    struct task *t = ctx;
    assert_true(hzp_thread_is_engine());
    assert_false(t->world->offering);
    t->border = *border;
    if (++t->tried < t->tries)
        return HZP_EBUSY;
    t->place = ++*t->order;
    return 7;
}

static void post(struct world *w, struct task *t, int tries, int *order)
{
    *t = (struct task){.world = w, .tries = tries, .order = order};
    t->call = (struct hzp_border_call){.fn = run_task, .ctx = t};
    hzp_loop_post(w->loop, &t->call);
}

static bool ended(struct world *w, struct task *t)
{
    int result = 0;
    bool is = hzp_loop_ended(w->loop, &t->call, &result);
    assert_true(!is || result == 7);
    return is;
}

/* Turns until there is nothing to do. */
static void drain(struct world *w)
{
    int turns = 0;
    while (hzp_loop_turn(w->loop) > 0)
        assert_true(++turns < 100);
}

/* Calls run before the sources of the next step are asked, first come first served; one that waits
 * is tried once a border, and those behind it do not wait for it. */
static void test_order(void **state)
{
    struct world *w = open_world();
    struct task t[3];
    int order = 0;
    w->left = 4;
    w->keeps = true;
    post(w, &t[0], 1, &order);
    post(w, &t[1], 3, &order);
    post(w, &t[2], 1, &order);
    assert_false(ended(w, &t[0]));
    assert_int_equal(hzp_loop_turn(w->loop), 1);
    assert_true(ended(w, &t[0]) && !ended(w, &t[1]) && ended(w, &t[2]));
    assert_true(t[0].place == 1 && t[2].place == 2 && t[1].tried == 1);
    assert_true(t[0].border.last_step == 0 && !t[0].border.keep_version);
    assert_int_equal(hzp_loop_turn(w->loop), 1);
    assert_true(t[1].tried == 2 && t[1].border.last_step == 1 && t[1].border.keep_version);
    assert_int_equal(hzp_loop_turn(w->loop), 1);
    assert_true(ended(w, &t[1]) && t[1].tried == 3 && t[1].border.last_step == 2);
    drain(w);
    assert_true(t[0].tried == 1 && t[1].tried == 3 && t[2].tried == 1);
    close_world(w);
}

/* What the sources do although they have nothing to offer may be what a call waits for: it is
 * tried again before the loop sleeps, and nothing asks that a version be kept any more. */
static void test_idle(void **state)
{
    struct world *w = open_world();
    struct task t;
    int order = 0;
    w->left = 1;
    w->keeps = true;
    assert_int_equal(hzp_loop_turn(w->loop), 1);
    assert_true(hzp_loop_border(w->loop).keep_version);
    drain(w);
    post(w, &t, 2, &order);
    int offers = w->offers;
    assert_int_equal(hzp_loop_turn(w->loop), 1); /* so that the sources are asked again */
    assert_true(ended(w, &t) && w->offers == offers + 1 && !t.border.keep_version);
    assert_int_equal(hzp_loop_turn(w->loop), 0);
    close_world(w);
}

/* What a call does may let the loop end: the loop looks whether it may before it sleeps. */
static void test_may_end(void **state)
{
    struct world *w = open_world();
    struct task t;
    int order = 0;
    assert_int_equal(hzp_loop_turn(w->loop), 0);
    post(w, &t, 1, &order);
    assert_int_equal(hzp_loop_turn(w->loop), 1);
    assert_int_equal(hzp_loop_turn(w->loop), 0);
    close_world(w);
}

/* A call that was taken back is not tried again. */
static void test_cancel(void **state)
{
    struct world *w = open_world();
    struct task t[3];
    int order = 0;
    for (int i = 0; i < 3; i++)
        post(w, &t[i], i == 2 ? 1 : 1000, &order);
    assert_int_equal(hzp_loop_cancel(w->loop, &t[1].call), HZP_ECANCELED);
    hzp_loop_turn(w->loop);
    assert_true(t[0].tried && !t[1].tried && ended(w, &t[2]));
    assert_int_equal(hzp_loop_cancel(w->loop, &t[2].call), 7); /* too late */
    int tried = t[0].tried;
    assert_int_equal(hzp_loop_cancel(w->loop, &t[0].call), HZP_ECANCELED);
    hzp_loop_turn(w->loop);
    assert_int_equal(t[0].tried, tried);
    hzp_loop_post(w->loop, &t[0].call); /* it may be posted again */
    hzp_loop_turn(w->loop);
    assert_true(t[0].tried > tried);
    assert_int_equal(hzp_loop_cancel(w->loop, &t[0].call), HZP_ECANCELED);
    close_world(w);
}

/* --- Several threads -------------------------------------------------------------------------- */

struct caller {
    struct world *world;
    pthread_t thread;
    int *sum; /* shared by all callers; only the engine thread writes it */
    int next, tried;
    atomic_bool *stop;
    int result;
};

static int add(void *ctx, const struct hzp_border *border)
{
    struct caller *c = ctx;
    assert_true(hzp_thread_is_engine());
    if (c->tried++ % 3)
        return HZP_EBUSY;
    ++*c->sum; /* no lock */
    return ++c->next;
}

static void *call_often(void *arg)
{
    struct caller *c = arg;
    for (int i = 1; i <= CALLS; i++) {
        assert_false(hzp_thread_is_engine());
        assert_int_equal(hzp_loop_call(c->world->loop, add, c), i);
    }
    return NULL;
}

static void *poke_always(void *arg)
{
    struct caller *c = arg;
    while (!atomic_load(c->stop)) {
        hzp_loop_poke(c->world->loop);
        sched_yield();
    }
    return NULL;
}

/* Callers beside a thread that does nothing but wake the loop; the source has steps for a
 * while. */
static void test_many(void **state)
{
    struct world *w = open_world();
    struct caller caller[CALLERS + 1];
    atomic_bool stop = false;
    int sum = 0;
    w->left = CALLS;
    memset(caller, 0, sizeof(caller));
    for (int i = 0; i <= CALLERS; i++) {
        caller[i] = (struct caller){.world = w, .sum = &sum, .stop = &stop};
        assert_int_equal(hzp_thread_start(&caller[i].thread, "caller",
                                          i < CALLERS ? call_often : poke_always, &caller[i]),
                         HZP_OK);
    }
    while (sum < CALLERS * CALLS)
        if (hzp_loop_turn(w->loop) == 0)
            hzp_loop_sleep(w->loop, UINT64_MAX);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(caller[i].thread, NULL);
    atomic_store(&stop, true);
    pthread_join(caller[CALLERS].thread, NULL);
    assert_int_equal(sum, CALLERS * CALLS);
    close_world(w);
}

static int never(void *ctx, const struct hzp_border *border)
{
    struct caller *c = ctx;
    c->tried++;
    return HZP_EBUSY;
}

static void *call_in_vain(void *arg)
{
    struct caller *c = arg;
    c->result = hzp_loop_call(c->world->loop, never, c);
    return NULL;
}

/* Callers whose calls cannot be done; returns when each has been tried. */
static void wait_in_vain(struct world *w, struct caller caller[CALLERS])
{
    for (int i = 0; i < CALLERS; i++) {
        caller[i] = (struct caller){.world = w};
        assert_int_equal(hzp_thread_start(&caller[i].thread, "caller", call_in_vain, &caller[i]),
                         HZP_OK);
        while (!caller[i].tried)
            if (hzp_loop_turn(w->loop) == 0)
                hzp_loop_sleep(w->loop, 1000000);
    }
}

static void assert_results(struct caller caller[CALLERS], int result)
{
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(caller[i].thread, NULL);
        assert_int_equal(caller[i].result, result);
    }
}

/* The loop stops: it does not wait for calls, and they do not wait for it, now and later. */
static void test_stop(void **state)
{
    struct world *w = open_world();
    struct caller caller[CALLERS], late = {.world = w};
    wait_in_vain(w, caller);
    w->left = 3;
    hzp_loop_stop(w->loop, false);
    assert_int_equal(hzp_loop_run(w->loop), HZP_OK);
    assert_results(caller, HZP_ECANCELED);
    assert_int_equal(hzp_thread_start(&late.thread, "late", call_in_vain, &late), HZP_OK);
    pthread_join(late.thread, NULL);
    assert_true(late.result == HZP_ECANCELED && !late.tried);
    close_world(w);
}

/* Nothing turns the loop any more, which was never told to stop. */
static void test_close(void **state)
{
    struct world *w = open_world();
    struct caller caller[CALLERS];
    wait_in_vain(w, caller);
    hzp_loop_close_borders(w->loop);
    assert_results(caller, HZP_ECANCELED);
    close_world(w);
}

static int fails(struct hzp_lane *lane, const void *args)
{
    return HZP_EDEVICE;
}

static void test_device_failure(void **state)
{
    struct world *w = open_world();
    struct caller caller[CALLERS], late = {.world = w};
    wait_in_vain(w, caller);
    w->paper.m.dev->op[HZP_OP_fill] = fails;
    w->left = 1;
    while (hzp_loop_turn(w->loop) > 0)
        ;
    assert_results(caller, HZP_EDEVICE);
    assert_int_equal(hzp_thread_start(&late.thread, "late", call_in_vain, &late), HZP_OK);
    pthread_join(late.thread, NULL);
    assert_int_equal(late.result, HZP_EDEVICE);
    close_world(w);
}

/* --- While a function runs -------------------------------------------------------------------- */

struct slow {
    struct world *world;
    struct hzp_border_call call;
    atomic_bool runs, goes_on;
    int result, done; /* what it returns */
};

static int run_slowly(void *ctx, const struct hzp_border *border)
{
    struct slow *s = ctx;
    atomic_store(&s->runs, true);
    while (!atomic_load(&s->goes_on))
        sched_yield();
    return s->done;
}

static void *take_back(void *arg)
{
    struct slow *s = arg;
    while (!atomic_load(&s->runs))
        sched_yield();
    struct hzp_border_call next = {.fn = never, .ctx = &(struct caller){.tried = 0}};
    hzp_loop_post(s->world->loop, &next); /* beside it in the list */
    assert_int_equal(hzp_loop_cancel(s->world->loop, &next), HZP_ECANCELED);
    atomic_store(&s->goes_on, true);
    s->result = hzp_loop_cancel(s->world->loop, &s->call);
    return NULL;
}

/* A call is taken back while its function runs: its caller may free what it uses when cancel
 * returns, and gets the result if that was the last try. */
static void test_cancel_while_it_runs(void **state)
{
    for (int done = 0; done < 2; done++) {
        struct world *w = open_world();
        struct slow s = {.world = w, .done = done ? 5 : HZP_EBUSY};
        pthread_t thread;
        s.call = (struct hzp_border_call){.fn = run_slowly, .ctx = &s};
        hzp_loop_post(w->loop, &s.call);
        assert_int_equal(hzp_thread_start(&thread, "canceller", take_back, &s), HZP_OK);
        assert_true(hzp_loop_turn(w->loop) >= 0);
        pthread_join(thread, NULL);
        assert_int_equal(s.result, done ? 5 : HZP_ECANCELED);
        close_world(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_may_end),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_device_failure),
        cmocka_unit_test(test_cancel_while_it_runs),
    };
    return cmocka_run_group_tests_name("border", tests, NULL, NULL);
}
