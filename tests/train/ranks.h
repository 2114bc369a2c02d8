/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/ranks.h - ranks in one process: rank 0 is a tiny model with its trainer (tiny.h), the
 * others have learners with loops of their own, on threads or turned by the test, and all are
 * connected by the local link.
 *
 * Thread: the test's.
 */
#pragma once

#include "tests/train/tiny.h"
#include "train/learner/by_link.h"
#include "train/conductor/trainer_state.h"

#include "base/thread.h"
#include "tests/links/links.h"

enum { RANKS_MAX = 8 };

struct other {
    struct fixture_model fixture;
    struct hzp_learner_by_link *learner;
    struct hzp_loop *loop;
    pthread_t thread;
};

struct ranks {
    struct tiny *first;            /* rank 0 */
    struct other other[RANKS_MAX]; /* from 1 */
    struct hzp_link *link[RANKS_MAX];
    int32_t count;
    bool threads;
};

/* Rank i's shards: of stages the layers, too. */
static inline struct hzp_shards ranks_shards(const struct tiny_config *config, int32_t i)
{
    struct hzp_shards shards = config->shards;
    struct hzp_layout layout;
    shards.rank = i;
    if (shards.stages <= 1)
        return shards;
    const struct fixture_config fixture = tiny_fixture(config);
    hzp_layout_make(&fixture.config, &layout);
    assert_int_equal(hzp_stages_cut(&shards, &layout, NULL), HZP_OK);
    hzp_layout_free(&layout);
    return shards;
}

/* Opens the rank of this link, with the weights that tiny_open makes. */
static inline void other_open(struct other *o, const struct tiny_config *config,
                              struct hzp_link *link)
{
    struct hzp_err_text text = {{0}, {0}};
    int32_t i = hzp_link_rank(link);
    struct tiny_config mine = *config;
    bool undoes = config->gate || config->queue.by_lesson;
    mine.slots = undoes ? 2 : 1;
    mine.shards = ranks_shards(config, i);
    struct fixture_config fixture = tiny_fixture(&mine);
    fixture_open(&o->fixture, &fixture);
    struct hzp_version *draft = fixture_begin(&o->fixture);
    TINY_MUST(hzp_model_init(NULL, hzp_version_units(o->fixture.weights, draft), 3, 0.1f));
    struct hzp_learner_config learner = {
        .recipe = config->recipe, .model = o->fixture.model, .shards = mine.shards, .link = link};
    learner.undoes = undoes;
    TINY_MUST(hzp_learner_by_link_create(&learner, &o->learner, &text));
    fixture_publish(&o->fixture, draft, 0);
    struct hzp_loop_config loop = {.model = o->fixture.model,
                                   .idle_ns = config->idle_ns,
                                   .policy = {.train_share = 1, .train_max = 1},
                                   .check_plans = true};
    loop.source[loop.sources++] = hzp_learner_by_link_source(o->learner);
    TINY_MUST(hzp_loop_create(&loop, &o->loop));
    hzp_link_set_wake(link, hzp_loop_wake, o->loop);
}

static inline void other_close(struct other *o, struct hzp_link *link)
{
    hzp_link_set_wake(link, NULL, NULL);
    hzp_loop_destroy(o->loop);
    hzp_learner_by_link_destroy(o->learner);
    fixture_close(&o->fixture);
}

static inline void *ranks_run(void *arg)
{
    struct other *o = arg;
    hzp_loop_stop(o->loop, false); /* ends when the learner is dismissed */
    assert_int_equal(hzp_loop_run(o->loop), HZP_OK);
    return NULL;
}

/* lag: of the local link.  threads: the others run on their own; otherwise ranks_turn turns them.
 * Rank 0's first version is in first->draft, as tiny_open leaves it. */
static inline struct ranks *ranks_open(const struct tiny_config *config, int lag, bool threads)
{
    struct hzp_err_text text = {{0}, {0}};
    struct ranks *r = calloc(1, sizeof(*r));
    struct tiny_config mine = *config;
    r->count = HZP_MAX(config->shards.groups.ranks, config->shards.stages);
    r->threads = threads;
    TINY_MUST(hzp_link_open_local(r->count, lag, 11, r->link, &text));
    mine.shards = ranks_shards(config, 0);
    mine.link = r->link[0];
    r->first = tiny_open(&mine);
    hzp_trainer_set_loop(r->first->trainer, r->first->loop);
    for (int32_t i = 1; i < r->count; i++)
        other_open(&r->other[i], config, r->link[i]);
    for (int32_t i = 1; threads && i < r->count; i++)
        assert_int_equal(hzp_thread_start(&r->other[i].thread, "learner", ranks_run, &r->other[i]),
                         HZP_OK);
    return r;
}

/* One turn of all ranks.  False: none has anything to do. */
static inline bool ranks_turn(struct ranks *r)
{
    bool any = hzp_loop_turn(r->first->loop) > 0;
    any = any || hzp_trainer_awaits_ranks(r->first->trainer);
    if (r->threads && !any)
        return false;
    if (r->threads)
        hzp_loop_sleep(r->first->loop, 100000);
    for (int32_t i = 1; !r->threads && i < r->count; i++)
        any = hzp_loop_turn(r->other[i].loop) > 0 || any;
    return any;
}

/* Turns until `updates` are done. */
static inline void ranks_run_to(struct ranks *r, int32_t updates)
{
    int64_t turns = 0;
    struct hzp_trainer_stats stats;
    while (r->first->reports < updates) {
        ranks_turn(r);
        hzp_trainer_read_stats(r->first->trainer, &stats);
        if (stats.failure[0])
            fail_msg("%s", stats.failure);
        if (++turns > 20000000)
            fail_msg("no end after %d updates", r->first->reports);
    }
    while (!hzp_trainer_idle(r->first->trainer) || ranks_turn(r))
        ranks_turn(r);
}

/* The resident part of each of b's units has the bytes of that part of a's, which are whole. */
static inline void ranks_assert_part(const struct hzp_units *a, const struct hzp_units *b,
                                     int32_t rank)
{
    for (int32_t u = 0; u < a->layout->units; u++) {
        struct hzp_unit_view x = hzp_unit_view(a, u), y = hzp_unit_view(b, u);
        size_t size = hzp_dtype_size(y.type);
        if (memcmp((char *)x.base + y.part.first * size, y.base, hzp_unit_bytes(&y)))
            fail_msg("unit %d differs on rank %d", u, rank);
    }
}

/* All ranks have the version and the state of the one rank. */
static inline void ranks_assert_same(struct tiny *one, struct ranks *r)
{
    struct hzp_train_space *whole = hzp_trainer_space(one->trainer);
    for (int32_t i = 0; i < r->count; i++) {
        struct hzp_learner *learner = i ? hzp_learner_by_link_learner(r->other[i].learner) : NULL;
        struct hzp_weights *w = i ? r->other[i].fixture.weights : r->first->weights;
        struct hzp_train_space *space = i ? learner->space : hzp_trainer_space(r->first->trainer);
        ranks_assert_part(tiny_units(one), hzp_version_units(w, hzp_weights_current(w)), i);
        ranks_assert_part(hzp_train_space_m(whole), hzp_train_space_m(space), i);
        ranks_assert_part(hzp_train_space_v(whole), hzp_train_space_v(space), i);
        if (hzp_train_space_residual(space))
            ranks_assert_part(hzp_train_space_residual(whole), hzp_train_space_residual(space), i);
    }
}

/* Turns all ranks until nothing is left to learn. */
static inline void ranks_finish(struct ranks *r)
{
    for (int idle = 0; idle < 50; idle = ranks_turn(r) ? 0 : idle + 1)
        ;
    assert_true(hzp_trainer_idle(r->first->trainer));
}

/* Turns rank 0 until its trainer rests, or has failed.  The other ranks run elsewhere. */
static inline void ranks_rest(struct tiny *first)
{
    tiny_border(first, hzp_trainer_freeze); /* no update begins */
    while (!hzp_trainer_rests(first->trainer) && first->trainer->stage != HZP_TRAINER_BROKEN)
        if (hzp_loop_turn(first->loop) <= 0)
            hzp_loop_sleep(first->loop, 1000000);
    tiny_border(first, hzp_trainer_thaw);
}

static inline void ranks_close(struct ranks *r)
{
    if (r->threads)
        ranks_rest(r->first);
    if (r->threads)
        hzp_trainer_dismiss_ranks(r->first->trainer);
    for (int32_t i = 1; i < r->count; i++) {
        struct other *o = &r->other[i];
        if (r->threads)
            pthread_join(o->thread, NULL);
        other_close(o, r->link[i]);
    }
    hzp_trainer_set_loop(r->first->trainer, NULL);
    tiny_close(r->first);
    for (int32_t i = 0; i < r->count; i++)
        hzp_link_close(r->link[i]);
    free(r);
}
