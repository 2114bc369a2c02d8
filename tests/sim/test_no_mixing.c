/* SPDX-License-Identifier: Apache-2.0 */
/* No step ever reads two versions: a model whose layers reveal which version they belong to,
 * under load, swapped thousands of times.
 *
 * Version k carries a tag c(k).  The residual stream has a big constant in coordinate 0, which
 * keeps every norm the same; each unit adds its tag to coordinate 1 with a weight, and all
 * weights add up to zero:
 *
 *     embedding +1,  layer l  +-1 (alternating, the last one what is missing)  ->  sum 0
 *
 * so coordinate 1 is zero exactly when all units have one tag.  The head's token MIXED_UP has
 * the logit +K x1, MIXED_DOWN -K x1, token FINE + e a constant plus the tag of the head itself,
 * compared with coordinate 2, which carries the last layer's tag: greedy sampling yields a FINE
 * token if and only if nothing was mixed.  Every row of weights that is read has one nonzero
 * element, and so have the rows it is multiplied with: e4m3 keeps these values almost exactly,
 * so the same holds with fp8 projections ("fp8"), and with an fp8 KV cache as well ("fp8-kv").
 */
#include "nanobatch/loop.h"
#include "serve/scheduler.h"
#include "tests/fixture/model.h"
#include "weights/fp8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 5,
    WIDTH = 16,
    INNER = 8,
    VOCAB = 32,
    POSITIONS = 64,
    MIXED_UP = 0,
    MIXED_DOWN = 1,
    HEAD_UP = 2,
    HEAD_DOWN = 3,
    FINE = 4, /* this token and all above it */
};

static const float constant = 1000, inner_value = 1;

struct bench {
    struct fixture_model m;
    struct hzp_kvpool *pool;
    struct hzp_scheduler *scheduler;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_loop *loop;
    struct hzp_source writer;
    struct hzp_version *draft;
    struct hzp_units host; /* one version, in host memory */
    int32_t written;       /* units of the draft already written */
    int publish_every, plant_at;
    uint64_t publications, steps, captures;
    uint32_t seed;
};

static void fail(const char *what, int code)
{
    fprintf(stderr, "test_no_mixing: %s: %s\n", what, hzp_err_name(code));
    exit(1);
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0)                                                                             \
            fail(#call, must_);                                                                    \
    } while (0)

static uint32_t next(struct bench *b)
{
    b->seed = b->seed * 1664525u + 1013904223u;
    return b->seed >> 8;
}

static float tag_of(uint64_t version)
{
    return (float)(version % 8) - 3.5f; /* neighbours differ by at least 1 */
}

/* An element of the unit that is being written. */
static float *cell(struct bench *b, enum hzp_role role, int32_t layer, int32_t row, int32_t col)
{
    struct hzp_mat mat = hzp_units_mat(&b->host, role, layer);
    return (float *)mat.ptr + (size_t)row * (size_t)mat.stride + col;
}

static void ones(struct bench *b, enum hzp_role role, int32_t layer)
{
    for (int32_t i = 0; i < WIDTH; i++)
        *cell(b, role, layer, 0, i) = 1;
}

/* After a norm coordinate 0 is sqrt(WIDTH): the rest is small beside the constant. */
static void write_layer(struct bench *b, int32_t layer, float tag)
{
    /* Embedding +1, layers +1 -1 +1 ...: with the last one the sum is zero. */
    float weight = layer % 2 ? -1.0f : 1.0f;
    if (layer == LAYERS - 1)
        weight = LAYERS % 2 ? -1.0f : -2.0f;
    ones(b, HZP_ATTN_NORM, layer);
    ones(b, HZP_MLP_NORM, layer);
    /* gate = a with silu(a) known, up = 1: inner[0] = silu(a). */
    float root = sqrtf((float)WIDTH), a = inner_value;
    *cell(b, HZP_GATE_UP, layer, 0, 0) = a / root;
    *cell(b, HZP_GATE_UP, layer, INNER, 0) = 1 / root;
    float inner = a / (1 + expf(-a));
    *cell(b, HZP_DOWN, layer, 1, 0) = weight * tag / inner;
    *cell(b, HZP_DOWN, layer, 2, 0) = layer == LAYERS - 1 ? tag / inner : 0;
}

static void make_unit(struct bench *b, int32_t unit, float tag)
{
    struct hzp_unit_view view = hzp_unit_view(&b->host, unit);
    memset(view.base, 0, hzp_unit_bytes(&view));
    if (unit == 0) {
        for (int32_t t = 0; t < VOCAB; t++) {
            *cell(b, HZP_EMBED, -1, t, 0) = constant;
            *cell(b, HZP_EMBED, -1, t, 1) = tag;
        }
    } else if (unit <= LAYERS) {
        write_layer(b, unit - 1, tag);
    } else {
        /* The final norm divides by constant / sqrt(WIDTH); the head undoes it. */
        float undo = constant / sqrtf((float)WIDTH), one = 1 / sqrtf((float)WIDTH);
        ones(b, HZP_FINAL_NORM, -1);
        *cell(b, HZP_HEAD, -1, MIXED_UP, 1) = 10 * undo;
        *cell(b, HZP_HEAD, -1, MIXED_DOWN, 1) = -10 * undo;
        *cell(b, HZP_HEAD, -1, HEAD_UP, 2) = 10 * undo;
        *cell(b, HZP_HEAD, -1, HEAD_UP, 0) = -10 * tag * one;
        *cell(b, HZP_HEAD, -1, HEAD_DOWN, 2) = -10 * undo;
        *cell(b, HZP_HEAD, -1, HEAD_DOWN, 0) = 10 * tag * one;
        for (int32_t t = FINE; t < VOCAB; t++)
            *cell(b, HZP_HEAD, -1, t, 0) = 2 * one;
    }
}

static void write_unit(struct bench *b, const struct hzp_version *v, int32_t unit, float tag)
{
    struct hzp_unit_view from = hzp_unit_view(&b->host, unit);
    struct hzp_unit_view to = hzp_version_unit(b->m.weights, v, unit);
    make_unit(b, unit, tag);
    if (hzp_device_copy(b->m.dev, to.base, from.base, hzp_unit_bytes(&to)) < 0) {
        fprintf(stderr, "test_no_mixing: the device failed\n");
        exit(1);
    }
}

/* The test's trainer: writes the draft unit by unit, some in each step, while requests run, and
 * publishes it between two steps. */
static bool writer_offer(struct hzp_source *source, const struct hzp_step *step,
                         struct hzp_room *room, struct hzp_offer *offer)
{
    return false;
}

static void writer_deliver(struct hzp_source *source, const struct hzp_step *step,
                           const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct bench *b = HZP_CONTAINER_OF(source, struct bench, writer);
    b->steps++;
    if (!b->draft && hzp_weights_begin(b->m.weights, &b->draft) < 0)
        return;
    uint64_t id = b->publications + 1;
    int32_t units = 1 + (int32_t)(next(b) % (uint32_t)b->m.layout.units);
    for (; units > 0 && b->written < b->m.layout.units; units--)
        write_unit(b, b->draft, b->written++, tag_of(id));
    if (b->written < b->m.layout.units)
        return;
    fixture_publish(&b->m, b->draft, step->number);
    b->publications++;
    b->draft = NULL;
    b->written = 0;
    /* The planted error that the test must detect: the current version changes while steps read
       it. */
    if (b->plant_at && b->publications == (uint64_t)b->plant_at) {
        write_unit(b, hzp_weights_current(b->m.weights), 2, tag_of(id + 3));
        MUST(hzp_version_quantize(b->m.weights, hzp_weights_current(b->m.weights)));
    }
}

/* Three nano-batches, attention on a lane of its own. */
static const struct hzp_plan_shape overlapped = {
    .nanos = 3,
    .weight = {2, 1, 1},
    .lane = {{[HZP_KIND_DECODE] = HZP_LANE_MEMORY, [HZP_KIND_PREFILL] = HZP_LANE_MEMORY},
             {[HZP_KIND_DECODE] = HZP_LANE_MEMORY, [HZP_KIND_PREFILL] = HZP_LANE_MEMORY},
             {HZP_LANE_COPY, HZP_LANE_COPY, HZP_LANE_COPY, HZP_LANE_COPY}},
    .order = HZP_ORDER_SKEWED,
};
static const struct hzp_plan_shape *shape;
static struct hzp_plan_table plans;
static bool fp8, kv_fp8;

/* Shapes that change from step to step, some with the writer running beside serving. */
static void plan_steps(void)
{
    struct hzp_plan_entry one = {.decode = 2, .shape = hzp_plan_sequential};
    struct hzp_plan_entry some = {.decode = 6, .shape = overlapped};
    struct hzp_plan_entry beside = {.decode = 3, .train = 8, .shape = hzp_plan_sequential};
    struct hzp_plan_entry in_turn = {.decode = 6, .prefill = 8, .train = 8, .shape = overlapped};
    memset(beside.shape.train_lane, HZP_LANE_TRAIN, sizeof(beside.shape.train_lane));
    hzp_plan_table_set(&plans, &one, NULL);
    hzp_plan_table_set(&plans, &some, NULL);
    hzp_plan_table_set(&plans, &beside, NULL);
    hzp_plan_table_set(&plans, &in_turn, NULL);
    hzp_plan_table_index(&plans);
}

static void set_up(struct bench *b, const char *backend, uint32_t seed)
{
    struct hzp_model_config config = {.family = "llama",
                                      .layers = LAYERS,
                                      .width = WIDTH,
                                      .inner = INNER,
                                      .vocab = VOCAB,
                                      .heads = {2, 1, 8},
                                      .positions = POSITIONS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .bos = -1};
    struct fixture_config fixture = {
        .device = backend,
        .threads = 2,
        .config = config,
        .store = {.type = HZP_F32, .fp8 = fp8, .slots = 2, .max_staleness = 1, .first_id = 1}};
    struct hzp_scheduler_config scheduler = {
        .running_max = 8, .waiting_max = 64, .waiting_tokens_max = 1 << 20, .prefill_rows_max = 16};
    struct hzp_batch_config max = {.rows_max = 32,
                                   .segs_max = 8,
                                   .page_stride = POSITIONS / 4,
                                   .logits_max = 8,
                                   .edits_max = 64};
    memset(b, 0, sizeof(*b));
    b->seed = seed;
    fixture_open(&b->m, &fixture);
    b->host = fixture_units(&b->m.layout, HZP_F32);
    struct hzp_version *first = fixture_begin(&b->m);
    for (int32_t u = 0; u < b->m.layout.units; u++)
        write_unit(b, first, u, tag_of(1));
    fixture_publish(&b->m, first, 0);
    b->publications = 1;
    b->m.model->kv_e4m3 = kv_fp8;
    MUST(hzp_kvpool_create(b->m.model, 64, 4, &b->pool));
    MUST(hzp_scheduler_create(&scheduler, b->m.model, b->pool, &b->scheduler));
    MUST(hzp_batch_create(b->m.dev, &max, &b->batch));
    MUST(hzp_serve_space_create(b->m.model, 32, 8, &b->space));
    b->writer =
        (struct hzp_source){.name = "writer", .offer = writer_offer, .deliver = writer_deliver};
    struct hzp_loop_config loop = {
        .model = b->m.model,
        .space = b->space,
        .batch = b->batch,
        .source = {hzp_scheduler_source(b->scheduler), &b->writer},
        .sources = 2,
        .shape = shape,
        .run_ahead = shape || plans.entries ? HZP_AHEAD_ALWAYS : HZP_AHEAD_AUTO,
        .plans = plans.entries ? &plans : NULL,
        .check_plans = true,
    };
    MUST(hzp_loop_create(&loop, &b->loop));
    MUST(hzp_loop_warm_up(b->loop, hzp_kvpool_layers(b->pool), NULL));
    b->captures = hzp_loop_graphs(b->loop).captures;
}

/* Where steps become CUDA graphs, all are captured at the start, and no swap waits for one. */
static bool captured(const struct bench *b)
{
    struct hzp_graphs_stats stats = hzp_loop_graphs(b->loop);
    printf("%llu graphs at the start, %llu launches, %llu captures and %llu evictions since\n",
           (unsigned long long)b->captures, (unsigned long long)stats.launches,
           (unsigned long long)(stats.captures - b->captures), (unsigned long long)stats.evictions);
    return stats.captures > b->captures || stats.evictions || (b->captures && !stats.launches);
}

static void tear_down(struct bench *b)
{
    hzp_loop_destroy(b->loop);
    hzp_serve_space_destroy(b->space);
    hzp_batch_destroy(b->batch);
    hzp_scheduler_destroy(b->scheduler);
    hzp_kvpool_destroy(b->pool);
    fixture_units_free(&b->host);
    fixture_close(&b->m);
}

static void no_wake(void *ctx, bool more)
{
}

static struct hzp_request *submit(struct bench *b)
{
    int32_t prompt[24], count = 1 + (int32_t)(next(b) % 24);
    int32_t tokens = 1 + (int32_t)(next(b) % 40);
    struct hzp_request *rq;
    for (int32_t i = 0; i < count; i++)
        prompt[i] = (int32_t)(next(b) % VOCAB);
    MUST(hzp_request_create(prompt, count, tokens, 0, false, &rq));
    rq->sampling = (struct hzp_sampling){.top_p = 1, .repetition = 1};
    rq->wake = no_wake;
    MUST(hzp_scheduler_submit(b->scheduler, rq, NULL));
    return rq;
}

/* Destroys the finished requests of live[0 .. *lives).  Returns how many of their tokens reveal a
 * mixture; adds their tokens to *ret_tokens, and those that ran across a swap to *ret_swapped. */
static uint64_t drain(struct bench *b, struct hzp_request **live, int *lives, uint64_t *ret_tokens,
                      uint64_t *ret_swapped)
{
    uint64_t mixed = 0;
    for (int i = 0; i < *lives;) {
        struct hzp_request *rq = live[i];
        if (!hzp_request_final(rq)) {
            i++;
            continue;
        }
        int32_t n = atomic_load(&rq->out_count);
        for (int32_t k = 0; k < n; k++) {
            mixed += rq->out[k].token < FINE;
            if (k && rq->out[k].version < rq->out[k - 1].version)
                fail("versions went backwards", -1);
        }
        *ret_tokens += (uint64_t)n;
        *ret_swapped += n > 1 && rq->out[0].version != rq->out[n - 1].version;
        hzp_request_destroy(rq);
        live[i] = live[--*lives];
    }
    return mixed;
}

static uint64_t run(struct bench *b, uint64_t publications, uint64_t *ret_tokens,
                    uint64_t *ret_swapped)
{
    struct hzp_request *live[32];
    int lives = 0;
    uint64_t mixed = 0;
    while (b->publications < publications || lives > 0) {
        while (lives < 12 && b->publications < publications)
            live[lives++] = submit(b);
        MUST(hzp_loop_turn(b->loop));
        mixed += drain(b, live, &lives, ret_tokens, ret_swapped);
    }
    return mixed;
}

int main(int argc, char **argv)
{
    const char *backend = argc > 1 ? argv[1] : "ref";
    struct bench b;
    uint64_t tokens = 0, swapped = 0, mixed;
    uint64_t versions = argc > 3 ? strtoull(argv[3], NULL, 10) : 5000;
    kv_fp8 = argc > 4 && !strcmp(argv[4], "fp8-kv");
    fp8 = kv_fp8 || (argc > 4 && !strcmp(argv[4], "fp8"));
    shape = argc > 2 && !strcmp(argv[2], "overlapped") ? &overlapped : NULL;
    if (argc > 2 && !strcmp(argv[2], "planned"))
        plan_steps();
    set_up(&b, backend, 1);
    mixed = run(&b, versions, &tokens, &swapped);
    printf("%s: %llu versions, %llu steps, %llu tokens, %llu requests lived through a swap, "
           "%llu tokens from a mixture\n",
           backend, (unsigned long long)b.publications, (unsigned long long)b.steps,
           (unsigned long long)tokens, (unsigned long long)swapped, (unsigned long long)mixed);
    int bad = captured(&b) || mixed != 0 || swapped < versions / 5 || tokens < 2 * versions;
    tear_down(&b);

    /* The same with one published version broken on purpose: the test must detect it. */
    set_up(&b, backend, 2);
    b.plant_at = 50;
    mixed = run(&b, 200, &tokens, &swapped);
    tear_down(&b);
    printf("%s: a version broken on purpose gives %llu such tokens\n", backend,
           (unsigned long long)mixed);
    hzp_plan_table_fini(&plans);
    return bad || mixed == 0;
}
