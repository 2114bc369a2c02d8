/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/tiny.h - a model of a few thousand random weights on the reference backend, with a
 * queue, a trainer and a loop.
 *
 * Thread: the test's.
 */
#pragma once

#include "nanobatch/loop.h"
#include "tests/fixture/model.h"
#include "nanobatch/model/train_space.h"
#include "train/conductor/trainer.h"
#include "tests/train/samples.h"
#include "weights/model_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TINY_VOCAB = 50, TINY_REPORTS = 512 };

struct tiny_config {
    enum hzp_dtype type;
    int32_t slots, max_staleness;
    struct hzp_recipe recipe;
    struct hzp_sample_queue_config queue;
    uint64_t idle_ns;         /* 1: one item a step */
    struct hzp_source *other; /* a source before the trainer, or NULL */
    bool untied, fp8;
    bool host_state;          /* moments and residuals are allocated apart */
    bool prepares;            /* the trainer's memory is prepared by slices, as a server's is */
    int32_t layers, width;    /* 0: 2, 16 */
    struct hzp_shards shards; /* ordered, and with ranks.h: the groups */
    struct hzp_link *link;
    const struct hzp_gate *gate;
    struct hzp_trials *trials;
};

struct tiny {
    struct tiny_config config;
    struct fixture_model fixture;
    struct hzp_weights *weights; /* the fixture's */
    struct hzp_sample_queue *queue;
    struct hzp_trainer *trainer;
    struct hzp_loop *loop;
    struct hzp_version *draft; /* until tiny_publish */
    struct hzp_update_report report[TINY_REPORTS];
    int32_t reports;
};

static inline struct tiny_config tiny_defaults(void)
{
    return (struct tiny_config){
        .type = HZP_F32,
        .slots = 2,
        .max_staleness = 1,
        .idle_ns = 1000000000,
        .recipe = {.lr = 1e-2f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .decay = 0.01f,
                   .clip = 1,
                   .schedule = HZP_LR_CONSTANT,
                   .update_tokens = 64,
                   .micro_rows = 32,
                   .publish_every = 1,
                   .moment_type = HZP_F32},
        .queue = {.samples_max = 1000, .tokens_max = 100000, .passes = 1, .seed = 5},
    };
}

static inline void tiny_on_update(void *ctx, const struct hzp_update_report *report)
{
    struct tiny *t = ctx;
    if (t->reports < TINY_REPORTS)
        t->report[t->reports++] = *report;
}

#define TINY_MUST(call)                                                                            \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0)                                                                             \
            fail_msg("%s: %s %s", #call, hzp_err_name(must_), text.text);                          \
    } while (0)

static inline struct fixture_config tiny_fixture(const struct tiny_config *config)
{
    struct hzp_model_config model = {.family = "llama",
                                     .layers = 2,
                                     .width = 16,
                                     .inner = 24,
                                     .vocab = TINY_VOCAB,
                                     .heads = {.heads = 4, .kv_heads = 2, .dim = 4},
                                     .positions = 64,
                                     .norm_eps = 1e-5f,
                                     .rope_theta = 10000,
                                     .tied = !config->untied,
                                     .disk_type = HZP_F32,
                                     .bos = -1};
    if (config->layers)
        model.layers = config->layers;
    if (config->width) {
        model.width = config->width;
        model.inner = 2 * config->width;
    }
    return (struct fixture_config){.device = "ref",
                                   .config = model,
                                   .store = {.type = config->type,
                                             .fp8 = config->fp8,
                                             .slots = config->slots,
                                             .max_staleness = config->max_staleness,
                                             .first_id = 1,
                                             .shards = config->shards}};
}

/* Creates everything except the first publication: the random weights are in t->draft. */
static inline struct tiny *tiny_open(const struct tiny_config *config)
{
    struct hzp_err_text text = {{0}, {0}};
    struct tiny *t = calloc(1, sizeof(*t));
    t->config = *config;
    struct fixture_config fixture = tiny_fixture(config);
    fixture_open(&t->fixture, &fixture);
    t->weights = t->fixture.weights;
    t->draft = fixture_begin(&t->fixture);
    TINY_MUST(hzp_model_init(NULL, hzp_version_units(t->weights, t->draft), 3, 0.1f));
    TINY_MUST(hzp_sample_queue_create(&config->queue, &t->queue));
    struct hzp_trainer_config trainer = {.recipe = config->recipe,
                                         .model = t->fixture.model,
                                         .queue = t->queue,
                                         .quantum_flops = 20000,
                                         .host_state = config->host_state,
                                         .prepare_behind = config->prepares,
                                         .shards = config->shards,
                                         .link = config->link,
                                         .gate = config->gate,
                                         .trials = config->trials,
                                         .on_update = tiny_on_update,
                                         .ctx = t};
    TINY_MUST(hzp_trainer_create(&trainer, &t->trainer, &text));
    struct hzp_loop_config loop = {.model = t->fixture.model,
                                   .idle_ns = config->idle_ns,
                                   .policy = {.train_share = 1, .train_max = 1},
                                   .check_plans = true};
    if (config->other)
        loop.source[loop.sources++] = config->other;
    loop.source[loop.sources++] = hzp_trainer_source(t->trainer);
    TINY_MUST(hzp_loop_create(&loop, &t->loop));
    return t;
}

static inline void tiny_publish(struct tiny *t)
{
    fixture_publish(&t->fixture, t->draft, 0);
    t->draft = NULL;
}

static inline void tiny_close(struct tiny *t)
{
    hzp_loop_destroy(t->loop);
    hzp_trainer_destroy(t->trainer);
    hzp_sample_queue_destroy(t->queue);
    fixture_close(&t->fixture);
    free(t);
}

/* Sample s: 3 .. 12 tokens that follow from its number; some are not learned. */
static inline struct hzp_sample *tiny_sample(int64_t s)
{
    int32_t token[12], count = 3 + (int32_t)(s * 7 % 10);
    uint8_t learn[12];
    for (int32_t i = 0; i < count; i++) {
        token[i] = (int32_t)((s * 13 + i * i * 5 + i) % (TINY_VOCAB - 1));
        learn[i] = i == count - 1 || (s + i) % 4 != 0;
    }
    struct hzp_sample *sample = hzp_sample_create(token, learn, count);
    sample->sequence_number = s;
    return sample;
}

/* Samples first .. first + n - 1. */
static inline void tiny_push(struct tiny *t, int64_t first, int32_t n)
{
    for (int64_t s = first; s < first + n; s++) {
        struct hzp_sample *sample = tiny_sample(s);
        assert_int_equal(hzp_sample_queue_reserve(t->queue, 1, sample->count), HZP_OK);
        hzp_sample_queue_push(t->queue, &sample, 1);
    }
}

/* Samples first .. first + n - 1 come in one body. */
static inline void tiny_teach(struct tiny *t, int64_t first, int32_t n)
{
    for (int64_t s = first; s < first + n; s++) {
        struct hzp_sample *sample = tiny_sample(s);
        sample->lesson = first;
        assert_int_equal(hzp_sample_queue_reserve(t->queue, 1, sample->count), HZP_OK);
        hzp_sample_queue_push(t->queue, &sample, 1);
    }
}

/* Turns until there is nothing left to do. */
static inline void tiny_run(struct tiny *t)
{
    int r, turns = 0;
    while ((r = hzp_loop_turn(t->loop)) > 0)
        assert_true(++turns < 1000000);
    assert_int_equal(r, 0);
}

/* What a border call of another thread would do here. */
static inline int tiny_border(struct tiny *t, hzp_border_fn *fn)
{
    struct hzp_border border = hzp_loop_border(t->loop);
    return fn(t->trainer, &border);
}

/* The current version's units. */
static inline const struct hzp_units *tiny_units(const struct tiny *t)
{
    return hzp_version_units(t->weights, hzp_weights_current(t->weights));
}

/* Asserts equal weights, moments and residuals, bit for bit. */
static inline void tiny_assert_same(struct tiny *a, struct tiny *b)
{
    struct hzp_train_space *x = hzp_trainer_space(a->trainer), *y = hzp_trainer_space(b->trainer);
    assert_true(fixture_units_same(NULL, tiny_units(a), tiny_units(b)));
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++) {
        const struct hzp_units *own = hzp_train_space_part(x, (enum hzp_state_part)p);
        const struct hzp_units *other = hzp_train_space_part(y, (enum hzp_state_part)p);
        assert_int_equal(own != NULL, other != NULL);
        if (own && !fixture_units_same(NULL, own, other))
            fail_msg("%s differs", hzp_state_part_name((enum hzp_state_part)p));
    }
}
