/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/world.c - builds an engine from a seed, and takes it down again. */
#include "tests/sim/world.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS_MIN = 2 };

static const struct {
    const char *name, *invariants;
} sabotages[SIM_SABOTAGES] = {
    [SIM_SOUND] = {"sound", ""},
    [SIM_PAGE_EARLY] = {"page-early", "page"},
    [SIM_PAGE_LEAK] = {"page-leak", "pages"},
    [SIM_PUBLISH_INSIDE] = {"publish-inside", "version"},
    [SIM_TWO_VERSIONS] = {"two-versions", "step reads"},
    [SIM_WRITE_CURRENT] = {"write-current", "version written"},
    [SIM_CANCEL_IGNORED] = {"cancel-ignored", "cancel"},
    [SIM_STALE] = {"stale", "staleness"},
    [SIM_NAN_PUBLISHED] = {"nan-published", "not finite"},
    [SIM_GREEDY_TRAINER] = {"greedy-trainer", "share"},
    [SIM_LAZY_TRAINER] = {"lazy-trainer", "idle device"},
    [SIM_LONG_QUEUE] = {"long-queue", "queue"},
    [SIM_STARVED] = {"starved", "starved|prefill"},
    [SIM_PAGE_UNDER_WAY] = {"page-under-way", "page"},
    [SIM_VERSION_EARLY] = {"version-early", "version"},
    [SIM_WRONG_ID] = {"wrong-id", "sampled id"},
    [SIM_UNSETTLED] = {"unsettled", "settle"},
    [SIM_STALE_AHEAD] = {"stale-ahead", "staleness"},
    [SIM_TOKEN_EARLY] = {"token-early", "token kept"},
    [SIM_AFTER_STOP] = {"after-stop", "after the stop"},
    [SIM_NO_WAIT] = {"no-wait", "two steps"},
    [SIM_PUSH_FORGETS] = {"push-forgets", "output|row|page content"},
    [SIM_PUSH_CHANGES] = {"push-changes", "output"},
    [SIM_PUSH_HOARDED] = {"push-hoarded", "pages"},
    [SIM_RIDE_STALE] = {"ride-stale", "ride"},
    [SIM_MIXED_PROMPT] = {"mixed-prompt", "segment|prompt version"},
    [SIM_SWAP_STORM] = {"swap-storm", "restart"},
    /* the member's refusal reaches rank 0 as it runs a step, or as it ends one */
    [SIM_LATE_SWAP] = {"late-swap", "loop|member|failure"},
};

const char *sim_sabotage_name(enum sim_sabotage sabotage)
{
    return sabotages[sabotage].name;
}

const char *sim_sabotage_invariants(enum sim_sabotage sabotage)
{
    return sabotages[sabotage].invariants;
}

void sim_broken(struct sim_world *w, const char *invariant, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    printf("%s: %s, in turn %llu; again with: test_engine_sim --seed %llu%s%s\n", invariant, text,
           (unsigned long long)w->turn, (unsigned long long)w->seed,
           w->sabotage ? " --sabotage=" : "", w->sabotage ? sim_sabotage_name(w->sabotage) : "");
    fflush(stdout);
    _exit(1); /* skips the leak check: a broken engine may still hold memory */
}

/* --- Sizes ------------------------------------------------------------------------------------ */

static int32_t between(struct sim_world *w, int32_t low, int32_t high)
{
    return low + sim_random(w, high - low + 1);
}

static void choose_serving(struct sim_world *w)
{
    bool real = w->traffic == SIM_TRACE_CHAT || w->traffic == SIM_TRACE_AZURE;
    w->positions = real ? 2048 : w->traffic == SIM_LONG ? 1024 : 256;
    w->page_rows = 1 << between(w, 0, 5);
    int32_t running = between(w, 1, 24), longest = HZP_DIV_UP(w->positions, w->page_rows);
    w->pages = longest + between(w, 0, longest * running / 4);
    if (w->traffic == SIM_FOOLED)
        w->pages = longest + longest / 4;
    w->scheduler_config = (struct hzp_scheduler_config){
        .running_max = running,
        .waiting_max = between(w, 1, 60),
        .waiting_tokens_max = w->positions + between(w, 0, 20 * w->positions),
        .prefill_rows_max = w->seed % 5 < 3 ? 0 : between(w, 1, 64),
        .edits_max = between(w, 32, 200),
        .admission = w->seed / 3 % 4 ? HZP_ADMIT_PREDICTED : HZP_ADMIT_WORST_CASE,
    };
    w->batch_config = (struct hzp_batch_config){
        .rows_max = between(w, 1, real || w->traffic == SIM_LONG ? 256 : 64),
        .segs_max = between(w, 1, 24),
        .page_stride = longest,
        .logits_max = between(w, 1, 24),
        .edits_max = w->scheduler_config.edits_max,
    };
}

static void choose_training(struct sim_world *w)
{
    static const int32_t bounds[] = {0, 1, 2, 5};
    static const double shares[] = {0.05, 0.25, 1.0, 3.0};
    w->max_staleness = bounds[w->seed % 4];
    w->slots = between(w, SLOTS_MIN, 3);
    w->train_share = shares[between(w, 0, 3)];
    w->recipe = (struct hzp_recipe){
        .lr = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .clip = 1,
        .update_tokens = between(w, 16, 300),
        .micro_rows = between(w, 16, 64),
        .publish_every = w->seed / 4 % 2 ? 3 : 1,
        .moment_type = HZP_F32,
    };
    w->queue_config = (struct hzp_sample_queue_config){
        .samples_max = between(w, 8, 200),
        .tokens_max = between(w, 200, 4000),
        .passes = between(w, 1, 3),
        .seed = w->seed,
    };
    w->bodies_per_mille = between(w, 5, 200);
    w->nan_per_mille = w->seed % 3 == 0 ? 100 : 0;
    w->audit_per_mille = w->seed % 17 == 5 ? 20 : 0;
}

/* In a third of the worlds the device's ops take exactly what the engine's first estimate says:
 * there the share is checked to the item.  In the others the estimates are wrong, op by op. */
static void choose_device(struct sim_world *w)
{
    char rates[200];
    w->immediate = sim_random(w, 3) > 0;
    w->exact_prices = w->immediate && sim_random(w, 2);
    w->rate = w->exact_prices ? 1 : (double)(1 << between(w, 0, 8)) / 16;
    double flops = 6e10 * w->rate, bytes = 1.5e10 * w->rate, issue = 200 / w->rate;
    if (!w->exact_prices) {
        flops *= between(w, 1, 8);
        bytes *= between(w, 1, 8);
        issue = between(w, 0, 300);
    }
    snprintf(rates, sizeof(rates), "flops=%.6g,bytes=%.6g,copy=1e10,issue_ns=%.6g,mem=1e12", flops,
             bytes, issue);
    setenv("HZP_SIM", rates, 1);
    w->ahead = !w->immediate && sim_random(w, 5) > 0;
    w->shaped = !w->immediate && sim_random(w, 2);
    w->goals = w->immediate && w->seed % 3 == 1;
    w->fail_at = w->seed % 5 == 4 ? 1 + sim_random(w, 200000) : 0;
}

static uint8_t some_lane(struct sim_world *w)
{
    static const uint8_t lane[] = {HZP_LANE_COMPUTE, HZP_LANE_MEMORY, HZP_LANE_COPY};
    return lane[sim_random(w, HZP_COUNT(lane))];
}

/* Serving on several lanes, and training beside it on a lane of its own. */
static void choose_shapes(struct sim_world *w)
{
    w->shape = w->beside = hzp_plan_sequential;
    w->shape.nanos = between(w, 1, 3);
    w->shape.order = (uint8_t)sim_random(w, HZP_ORDER_COUNT);
    for (int i = 0; i < w->shape.nanos; i++) {
        w->shape.weight[i] = between(w, 1, 3);
        for (int k = 0; k < HZP_KIND_COUNT; k++)
            w->shape.lane[i][k] = some_lane(w);
    }
    if (sim_chance(w, 500))
        memcpy(&w->beside, &w->shape, sizeof(w->beside));
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        w->beside.train_lane[k] = HZP_LANE_TRAIN;
}

/* Training rides in serving's products, on any lanes. */
static void choose_riding(struct sim_world *w)
{
    w->rides = sim_chance(w, 400);
    if (!w->rides)
        return;
    w->beside = hzp_plan_sequential;
    w->beside.ride = between(w, 1, 40);
    for (int k = 0; k < HZP_KIND_COUNT && w->shaped; k++)
        w->beside.lane[0][k] = some_lane(w);
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        w->beside.train_lane[k] = w->beside.lane[0][sim_random(w, HZP_KIND_COUNT)];
}

/* --- Opening ---------------------------------------------------------------------------------- */

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0)                                                                             \
            sim_broken(w, "opening", "%s: %s", #call, hzp_err_name(must_));                        \
    } while (0)

struct hzp_model_config sim_model(const struct sim_world *w)
{
    return (struct hzp_model_config){
        .family = "llama",
        .layers = 2,
        .width = 64,
        .inner = 128,
        .vocab = SIM_VOCAB,
        .heads = {.heads = w->ranks ? 8 : 4, .kv_heads = w->ranks ? 8 : 2, .dim = 16},
        .positions = w->positions,
        .norm_eps = 1e-5f,
        .rope_theta = 10000,
        .tied = w->seed % 2,
        .disk_type = HZP_F32,
        .bos = -1,
        .eos = {SIM_EOS},
        .eos_count = 1};
}

static void open_weights(struct sim_world *w)
{
    struct hzp_model_config config = sim_model(w);
    struct hzp_weights_config store = {.type = w->seed % 3 || w->ranks ? HZP_F32 : HZP_BF16,
                                       .fp8 = w->seed % 4 == 2 && !w->ranks,
                                       .slots = w->slots,
                                       .max_staleness = w->max_staleness,
                                       .first_id = 1 + w->seed};
    if (w->ranks)
        hzp_layout_make_slice(&config, (struct hzp_tensor_slice){0, w->ranks}, &w->layout);
    else
        hzp_layout_make(&config, &w->layout);
    w->noting_slots = true;
    MUST(hzp_weights_create(w->dev, &w->layout, &store, &w->weights));
    w->noting_slots = false;
    MUST(hzp_model_create(w->dev, w->weights, w->positions, &w->model));
    struct hzp_version *draft;
    MUST(hzp_weights_begin(w->weights, &draft));
    MUST(hzp_version_quantize(w->weights, draft));
    hzp_weights_publish(w->weights, draft, 0);
    if (w->sabotage == SIM_STALE)
        hzp_weights_set_max_staleness(w->weights, w->max_staleness + 2);
}

static void open_engine(struct sim_world *w)
{
    struct hzp_scheduler_config scheduler = w->scheduler_config;
    scheduler.waiting_max += w->sabotage == SIM_LONG_QUEUE;
    MUST(hzp_kvpool_create(w->model, w->pages, w->page_rows, &w->pool));
    MUST(hzp_serve_space_create(w->model, w->batch_config.rows_max, w->batch_config.logits_max,
                                &w->space));
    MUST(hzp_batch_create(w->dev, &w->batch_config, &w->batch));
    MUST(hzp_scheduler_create(&scheduler, w->model, w->pool, &w->scheduler));
    MUST(hzp_sample_queue_create(&w->queue_config, &w->queue));
    struct hzp_trainer_config trainer = {.recipe = w->recipe,
                                         .model = w->model,
                                         .queue = w->queue,
                                         .quantum_flops = 100000,
                                         .chunk_rows = w->rides ? w->beside.ride : 0,
                                         .ride_rows = w->rides ? between(w, 0, 40) : 0,
                                         .on_update = sim_on_update,
                                         .ctx = w};
    MUST(hzp_trainer_create(&trainer, &w->trainer, NULL));
    sim_watch_loop(w);
    if (w->ranks)
        sim_group_open(w);
    struct hzp_loop_config loop = {
        .model = w->model,
        .space = w->space,
        .batch = w->batch,
        .run_ahead = w->ahead ? HZP_AHEAD_AUTO : HZP_AHEAD_NEVER,
        .source = {&w->first, hzp_scheduler_source(w->scheduler), &w->mid,
                   w->ranks ? &w->writer : hzp_trainer_source(w->trainer), &w->last},
        .sources = 5,
        .shape = w->shaped ? &w->shape : NULL,
        .beside = !w->ranks && (w->rides || (w->shaped && sim_chance(w, 600))) ? &w->beside : NULL,
        .policy = {.train_share = w->train_share * (w->sabotage == SIM_GREEDY_TRAINER ? 4 : 1),
                   .train_max = 1},
        .idle_ns = (uint64_t)between(w, 1, 400000),
        .check_plans = w->seed % 4 == 0,
        .group = w->records,
    };
    MUST(hzp_loop_create(&loop, &w->loop));
}

/* Every seventh world has 2, 4 or 8 ranks, and no training. */
static void choose_group(struct sim_world *w)
{
    if (w->sabotage == SIM_LATE_SWAP || (!w->sabotage && w->seed % 7 == 6))
        w->ranks = 2 << w->seed % 3;
    if (!w->ranks)
        return;
    w->rides = false;
    w->beside = hzp_plan_sequential;
    w->bodies_per_mille = 0;
    w->fail_at = 0;
    w->shape.network_lane = w->seed % 2 ? HZP_LANE_NETWORK : HZP_LANE_COMPUTE;
}

void sim_open(struct sim_world *w)
{
    struct hzp_err_text text = {{0}, {0}};
    w->random = w->seed * 2654435761u + 1;
    choose_serving(w);
    choose_training(w);
    choose_device(w);
    choose_shapes(w);
    choose_riding(w);
    choose_group(w);
    if (w->sabotage == SIM_SWAP_STORM) { /* updates are short and prompts take many steps */
        w->scheduler_config.prefill_rows_max = 1;
        w->recipe.update_tokens = w->recipe.micro_rows = 16;
        w->train_share = 3;
        w->bodies_per_mille = 200;
    }
    w->turns_max = 1500;
    w->cancel_per_mille = w->traffic == SIM_CANCELS ? 60 : 2;
    if (hzp_device_open(&(struct hzp_device_config){.name = "sim"}, &w->dev, &text) < 0)
        sim_broken(w, "opening", "%s", text.text);
    sim_watch_device(w);
    open_weights(w);
    open_engine(w);
    w->owner = hzp_xcalloc((size_t)w->pages, sizeof(*w->owner));
    w->touched = hzp_xcalloc((size_t)w->pages, sizeof(*w->touched));
    for (int i = 0; i < 2; i++)
        w->leg[i].token = hzp_xcalloc((size_t)w->batch_config.logits_max, sizeof(*w->leg[i].token));
    size_t rows = (size_t)w->pages * (size_t)w->page_rows;
    w->shadow = hzp_xcalloc(rows, sizeof(*w->shadow));
    w->shadow_version = hzp_xcalloc(rows, sizeof(*w->shadow_version));
}

void sim_close(struct sim_world *w)
{
    if (w->ranks)
        sim_group_end(w);
    hzp_loop_destroy(w->loop);
    hzp_trainer_destroy(w->trainer);
    hzp_scheduler_destroy(w->scheduler);
    sim_collect(w);
    SIM_CHECK(w, !w->lives, "requests", "%d are not final after the scheduler's end", w->lives);
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(w->pool, &kv);
    SIM_CHECK(w, !kv.taken, "pages", "%d taken at the end", kv.taken);
    hzp_sample_queue_destroy(w->queue);
    hzp_batch_destroy(w->batch);
    hzp_serve_space_destroy(w->space);
    hzp_kvpool_destroy(w->pool);
    if (w->ranks)
        sim_group_close(w);
    hzp_model_destroy(w->model);
    hzp_weights_destroy(w->weights);
    hzp_layout_free(&w->layout);
    hzp_backend_sim.fence_close(w->fence);
    hzp_device_close(w->dev);
    free(w->owner);
    free(w->touched);
    free(w->ghost);
    free(w->leg[0].token);
    free(w->leg[1].token);
    free(w->shadow);
    free(w->shadow_version);
    free(w->life);
}
