/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline of a step on several ranks, two threads as ranks: what limits it, by made-up times;
 * what is measured on both ranks; what is printed. */
#include "tests/links/links.h"
#include "nanobatch/search/pipeline.h"
#include "paper.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The longer of cores and link, each by the plan in which it took the least. */
static void what_limits(void **state)
{
    struct hzp_pipeline p = {.depth = 0};
    hzp_pipeline_limit(&p, (double[]){30, 10, 90}, (double[]){40, 20, 70});
    assert_int_equal(p.limit, HZP_BOUND_NETWORK);
    assert_true(p.limit_ns == 70 && p.compute_ns == 30 && p.memory_ns == 10);
    hzp_pipeline_limit(&p, (double[]){60, 20, 90}, (double[]){80, 30, 70});
    assert_int_equal(p.limit, HZP_BOUND_COMPUTE);
    assert_true(p.limit_ns == 80 && p.network_ns == 70);
    hzp_pipeline_limit(&p, (double[]){60, 90, 90}, (double[]){40, 80, 100});
    assert_int_equal(p.limit, HZP_BOUND_MEMORY);
    assert_true(p.limit_ns == 120 && p.memory_ns == 80 && p.network_ns == 90);
}

/* Without overlap the nano-batches and their sums stay, and nothing has a lane of its own. */
static void cut_only(void **state)
{
    struct hzp_plan_shape usual = hzp_pipeline_usual(), cut;
    usual.lane[1][HZP_KIND_DECODE] = HZP_LANE_MEMORY;
    usual.share[HZP_LANE_MEMORY] = 1;
    assert_true(hzp_pipeline_overlaps(&usual));
    cut = hzp_pipeline_cut(&usual);
    assert_false(hzp_pipeline_overlaps(&cut));
    assert_int_equal(cut.nanos, 2);
    assert_int_equal(cut.reduce[1], HZP_REDUCE_SCATTERED);
    assert_int_equal(hzp_plan_shape_lanes(&cut), 1 << HZP_LANE_COMPUTE);
    assert_int_equal(cut.share[HZP_LANE_MEMORY], 0);
}

struct rank {
    struct hzp_link *link;
    struct paper p;
    struct hzp_tables tables;
    struct hzp_measure *measure;
    struct hzp_crew *crew;
    int result;
};

static void open_rank(struct rank *r)
{
    struct hzp_err_text text = {0};
    paper_open_rank(&r->p, "cpu", r->link);
    hzp_tables_init(&r->tables);
    HZP_ASSERT(hzp_measure_create(r->p.rig, &r->tables, &r->measure, &text) == HZP_OK);
    struct hzp_crew_config config = {
        .rig = r->p.rig, .tables = &r->tables, .measure = r->measure, .link = r->link};
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
    close_rank(r);
    return NULL;
}

static char *printed(const struct hzp_pipeline *p, struct hzp_rig *rig)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    HZP_ASSERT(out);
    hzp_pipeline_print(p, rig, 2, out);
    fclose(out);
    return text;
}

static void check_measured(const struct hzp_pipeline *p)
{
    assert_in_range(p->turns, 3, 21);
    assert_true(p->gain[HZP_PLAN_SEQUENTIAL] == 1);
    for (int k = 0; k < HZP_PLAN_COUNT; k++)
        assert_true(p->ns[k] > 0 && p->gain[k] > 0);
    assert_true(p->compute_ns > 0 && p->network_ns > 0);
    /* a plan without overlap takes what cores and link take in it; medians may differ a little */
    assert_true(p->limit_ns < 1.5 * p->ns[HZP_PLAN_SEQUENTIAL]);
}

static void measured_and_printed(void **state)
{
    struct rank rank[2] = {0};
    struct hzp_link *link[2];
    struct hzp_err_text text = {0};
    pthread_t thread;
    assert_int_equal(hzp_link_open_local(2, 0, 1, link, &text), HZP_OK);
    for (int i = 0; i < 2; i++)
        rank[i].link = link[i];
    assert_int_equal(pthread_create(&thread, NULL, follow, &rank[1]), 0);
    open_rank(&rank[0]);
    struct hzp_pipeline p = {
        .shape = hzp_pipeline_usual(), .decode = 0, .depth = 16, .prefill = 63};
    p.shape.weight[0] =
        37; /* 36 rows, which the ranks divide, and the last 27, which they do not */
    p.shape.weight[1] = 26;
    assert_int_equal(hzp_pipeline_measure(&p, rank[0].crew, 0.05, &text), HZP_OK);
    check_measured(&p);
    char *out = printed(&p, rank[0].p.rig);
    assert_non_null(strstr(out, "nano-batch 0: rows 0 to 35, reduce-scatter"));
    assert_non_null(strstr(out, "2 ranks do not divide 27 rows"));
    free(out);
    p.prefill = 64;
    p.shape = hzp_pipeline_usual();
    p.shape.nanos = 4;
    p.shape.weight[2] = p.shape.weight[3] = 1;
    memset(p.shape.reduce, HZP_REDUCE_ALL, sizeof(p.shape.reduce));
    p.shape.joined[HZP_STAGE_REST] = 5;
    p.shape.joined[HZP_STAGE_EXCHANGE] = 5;
    assert_int_equal(hzp_pipeline_measure(&p, rank[0].crew, 0.05, &text), HZP_OK);
    check_measured(&p);
    out = printed(&p, rank[0].p.rig);
    assert_non_null(strstr(out, "nano-batches 2 to 3: rows 32 to 63, all-reduce"));
    assert_null(strstr(out, "sends 0.00 MB"));
    assert_non_null(strstr(out, "attention, parts 4, rows 0-15 16-31 32-47 48-63\n"));
    assert_non_null(strstr(out, "rest, parts 2, rows 0-31 32-63\n"));
    free(out);
    p.shape = hzp_pipeline_usual();
    p.shape.reduce[1] = HZP_REDUCE_ALL;
    out = printed(&p, rank[0].p.rig);
    const char *at = out;
    static const char *const line[] = {"pipeline on 2 ranks, 0 decode rows at 16, 64 prompt rows",
                                       "nano-batch 0: rows 0 to 31, reduce-scatter",
                                       "because a rank sends",
                                       "nano-batch 1: rows 32 to 63, all-reduce",
                                       "because one exchange",
                                       "layer by layer",
                                       "lane of their own",
                                       "measured in turns",
                                       "one operation at a time",
                                       "nano-batches, no overlap",
                                       "this pipeline",
                                       "limited by "};
    for (int i = 0; i < HZP_COUNT(line); i++) {
        at = strstr(at, line[i]);
        if (!at)
            print_error("missing: %s\nin: %s\n", line[i], out);
        assert_non_null(at);
    }
    free(out);
    assert_int_equal(hzp_pipeline_measure(&(struct hzp_pipeline){.shape = p.shape, .decode = 999},
                                          rank[0].crew, 0, &text),
                     HZP_EINVAL);
    assert_int_equal(hzp_crew_end(rank[0].crew, &text), HZP_OK);
    pthread_join(thread, NULL);
    assert_int_equal(rank[1].result, HZP_OK);
    close_rank(&rank[0]);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_limits),
        cmocka_unit_test(cut_only),
        cmocka_unit_test(measured_and_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
