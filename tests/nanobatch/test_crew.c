/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that compute each step together measure and search together: two threads as ranks.  What
 * rank 0 says is measured on both, the tables have the link and the rates beside it, shapes run on
 * both; an order that a rank cannot carry out fails the link. */
#include "tests/links/links.h"
#include "nanobatch/search/pipeline.h"
#include "nanobatch/search/search.h"
#include "paper.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct rank {
    struct hzp_link *link;
    struct paper p;
    struct hzp_tables tables;
    struct hzp_measure *measure;
    struct hzp_crew *crew;
    uint64_t processors;
    int result;
    char why[256];
};

static void open_rank(struct rank *r)
{
    struct hzp_err_text text = {0};
    paper_open_rank(&r->p, "cpu", r->link);
    hzp_tables_init(&r->tables);
    HZP_ASSERT(hzp_measure_create(r->p.rig, &r->tables, &r->measure, &text) == HZP_OK);
    struct hzp_crew_config config = {.rig = r->p.rig,
                                     .tables = &r->tables,
                                     .measure = r->measure,
                                     .link = r->link,
                                     .processors = r->processors};
    HZP_ASSERT(hzp_crew_create(&config, &r->crew) == HZP_OK);
}

static void close_rank(struct rank *r)
{
    hzp_crew_destroy(r->crew);
    hzp_measure_destroy(r->measure);
    hzp_tables_fini(&r->tables);
    paper_close(&r->p);
}

static void *follow(void *arg)
{
    struct rank *r = arg;
    struct hzp_err_text text = {0};
    open_rank(r);
    r->result = hzp_crew_follow(r->crew, &text);
    memcpy(r->why, text.text, sizeof(r->why));
    close_rank(r);
    return NULL;
}

static void measures_and_runs(void **state)
{
    struct rank rank[2] = {0};
    struct hzp_link *link[2];
    struct hzp_err_text text = {0};
    pthread_t thread;
    double rate, latency, ns = 0;
    assert_int_equal(hzp_link_open_local(2, 0, 1, link, &text), HZP_OK);
    for (int i = 0; i < 2; i++)
        rank[i].link = link[i];
    assert_int_equal(pthread_create(&thread, NULL, follow, &rank[1]), 0);
    open_rank(&rank[0]);
    struct hzp_tables *t = &rank[0].tables;
    for (int i = 0; i < 5; i++)
        assert_int_equal(hzp_crew_part(rank[0].crew, &text), HZP_OK);
    assert_int_equal(t->parts_done, 5);
    int32_t before = t->rates;
    assert_int_equal(hzp_crew_link(rank[0].crew, &text), HZP_OK);
    assert_int_equal(t->rates - before, 5);
    for (int32_t i = before; i < t->rates; i++)
        assert_true(t->rate[i].b == HZP_CLASS_NETWORK && t->rate[i].rate_a > 0);
    int kinds = 0;
    for (int32_t i = 0; i < t->curves; i++)
        kinds += t->curve[i].key.op == HZP_OP_collective;
    assert_int_equal(kinds, 3); /* and parts have measured none */
    hzp_tables_link(t, &rate, &latency);
    for (int shaped = 0; shaped < 3; shaped++) {
        struct hzp_plan_shape shape = hzp_plan_sequential;
        shape.nanos = 1 + (shaped > 0);
        shape.weight[1] = 1;
        shape.order = HZP_ORDER_LAYERS;
        shape.network_lane = shaped ? HZP_LANE_NETWORK : HZP_LANE_COMPUTE;
        shape.reduce[1] = shaped == 2 ? HZP_REDUCE_SCATTERED : HZP_REDUCE_ALL;
        ns = 0;
        assert_int_equal(hzp_crew_step(rank[0].crew, &shape, 8, 16, 8, &ns, &text), HZP_OK);
        assert_true(ns > 0);
    }
    /* What this rank's rig has no room for is not told the others. */
    assert_int_equal(hzp_crew_step(rank[0].crew, &hzp_plan_sequential, 999, 16, 0, &ns, &text),
                     HZP_EINVAL);
    /* A search runs what it found on all ranks. */
    struct hzp_search_config config = {
        .rig = rank[0].p.rig, .tables = t, .crew = rank[0].crew, .tries = 5, .seed = 1};
    struct hzp_search *s;
    struct hzp_plan_entry e;
    assert_int_equal(hzp_search_create(&config, &s), HZP_OK);
    assert_int_equal(hzp_search_step(s, 0, 16, 64, 0, &e), HZP_OK);
    e.shape.nanos = 2;
    e.shape.weight[1] = 1;
    e.shape.network_lane = HZP_LANE_NETWORK;
    assert_int_equal(hzp_search_confirm(s, NULL, 16, 0, &e), HZP_OK);
    assert_true(e.confirmed > 0);
    /* One that is cut too fine loses, and simpler ones are looked for. */
    e.shape = hzp_pipeline_usual();
    e.shape.nanos = 8;
    for (int i = 0; i < 8; i++)
        e.shape.weight[i] = 1;
    int64_t before_it = hzp_search_tried(s);
    assert_int_equal(hzp_search_confirm(s, NULL, 16, 0, &e), HZP_OK);
    assert_true(hzp_search_tried(s) - before_it > 20);
    assert_true(hzp_plan_shape_plain(&e.shape) || (e.confirmed >= 1.02 && e.shape.nanos <= 2));
    hzp_search_destroy(s);
    assert_int_equal(hzp_crew_end(rank[0].crew, &text), HZP_OK);
    pthread_join(thread, NULL);
    assert_int_equal(rank[1].result, HZP_OK);
    close_rank(&rank[0]);
}

/* What this process has taken, which is that of both ranks. */
static double own_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The time of ranks on the same processors is said, that of ranks on others is not. */
static void time_of_the_others(void **state)
{
    for (uint64_t apart = 0; apart < 2; apart++) {
        struct rank rank[2] = {{.processors = 7}, {.processors = 7 + apart}};
        struct hzp_link *link[2];
        struct hzp_err_text text = {0};
        pthread_t thread;
        double ns[2];
        assert_int_equal(hzp_link_open_local(2, 0, 1, link, &text), HZP_OK);
        for (int i = 0; i < 2; i++)
            rank[i].link = link[i];
        assert_int_equal(pthread_create(&thread, NULL, follow, &rank[1]), 0);
        open_rank(&rank[0]);
        double before = own_ns();
        for (int i = 0; i < 2; i++) {
            ns[i] = -1;
            assert_int_equal(hzp_crew_part(rank[0].crew, &text), HZP_OK);
            assert_int_equal(hzp_crew_spent(rank[0].crew, &ns[i], &text), HZP_OK);
        }
        if (apart)
            assert_true(ns[0] == 0 && ns[1] == 0);
        else
            assert_true(ns[0] > before && ns[1] > ns[0] && ns[1] < own_ns());
        assert_int_equal(hzp_crew_end(rank[0].crew, &text), HZP_OK);
        pthread_join(thread, NULL);
        close_rank(&rank[0]);
    }
}

/* A shape that is none: the other rank refuses it, and this one learns that it has gone. */
static void senseless_order(void **state)
{
    struct rank rank[2] = {0};
    struct hzp_link *link[2];
    struct hzp_err_text text = {0};
    pthread_t thread;
    double ns;
    assert_int_equal(hzp_link_open_local(2, 0, 1, link, &text), HZP_OK);
    for (int i = 0; i < 2; i++)
        rank[i].link = link[i];
    assert_int_equal(pthread_create(&thread, NULL, follow, &rank[1]), 0);
    open_rank(&rank[0]);
    struct hzp_plan_shape shape = hzp_plan_sequential;
    shape.reduce[0] = 7;
    assert_int_equal(hzp_crew_step(rank[0].crew, &shape, 4, 16, 0, &ns, &text), HZP_EIO);
    assert_non_null(strstr(text.text, "rank 1"));
    pthread_join(thread, NULL);
    assert_int_equal(rank[1].result, HZP_EFORMAT);
    assert_non_null(strstr(rank[1].why, "no sense"));
    close_rank(&rank[0]);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_and_runs),
        cmocka_unit_test(time_of_the_others),
        cmocka_unit_test(senseless_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
