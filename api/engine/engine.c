/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/engine.h"

#include "api/engine/search_file.h"
#include "base/arena.h"
#include "base/log.h"
#include "base/thread.h"
#include "device/bf16.h"
#include "weights/fp8.h"
#include "weights/model_dir.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum phase { OPENING, RUNNING, ENDED };

struct hzp_engine_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* monotonic clock */
    /* under lock */
    enum phase phase;
    int result;
    bool close;
    struct hzp_err_text err;
};

enum hzp_dtype hzp_engine_dtype(const struct hzp_options *options,
                                const struct hzp_model_config *config)
{
    if (options->dtype == 1)
        return HZP_BF16;
    if (options->dtype == 2)
        return HZP_F32;
    return config->disk_type;
}

void hzp_engine_recipe(const struct hzp_options *options, struct hzp_recipe *ret)
{
    *ret = (struct hzp_recipe){
        .lr = (float)options->lr,
        .beta1 = (float)options->beta1,
        .beta2 = (float)options->beta2,
        .eps = (float)options->eps,
        .decay = (float)options->decay,
        .clip = (float)options->clip,
        .schedule = options->schedule ? HZP_LR_COSINE : HZP_LR_CONSTANT,
        .warmup_steps = (int32_t)HZP_MIN(options->warmup_steps, INT32_MAX),
        .total_steps = options->total_steps,
        .lr_floor = (float)options->lr_floor,
        .update_tokens = (int32_t)options->update_tokens,
        .micro_rows = (int32_t)options->micro_rows,
        .publish_every = (int32_t)options->publish_every,
        .moment_type = options->moment_type ? HZP_BF16 : HZP_F32,
    };
}

/* ---- opening and closing: engine thread ---- */

static bool is_norm(enum hzp_role role)
{
    return role == HZP_ATTN_NORM || role == HZP_MLP_NORM || role == HZP_FINAL_NORM ||
           role == HZP_Q_NORM || role == HZP_K_NORM;
}

int hzp_engine_noise(struct hzp_device *dev, struct hzp_weights *weights, struct hzp_version *draft)
{
    const struct hzp_layout *layout = hzp_weights_layout(weights);
    const size_t piece = 1 << 28;
    struct hzp_lane *lane = NULL;
    struct hzp_fence *fence = NULL;
    int r;
    HZP_TRY_GOTO(hzp_lane_open(dev, HZP_BOUND_MEMORY, &lane));
    HZP_TRY_GOTO(hzp_fence_open(dev, &fence));
    for (int32_t u = 0; u < layout->units; u++) {
        struct hzp_unit_view unit = hzp_version_unit(weights, draft, u);
        for (size_t at = 0; at < unit.elements; at += piece) {
            struct hzp_mat part = hzp_unit_piece(&unit, at, HZP_MIN(piece, unit.elements - at));
            struct hzp_noise_args args = {part, 1, layout->unit[u].before + at, 0.02f};
            HZP_TRY_GOTO(hzp_op_noise(lane, &args));
        }
    }
    for (int32_t i = 0; i < layout->tensors; i++) {
        const struct hzp_tensor *t = &layout->tensor[i];
        struct hzp_fill_args one = {hzp_version_mat(weights, draft, t->role, t->layer), 1};
        if (is_norm(t->role))
            HZP_TRY_GOTO(hzp_op_fill(lane, &one));
    }
    HZP_TRY_GOTO(hzp_fence_record(fence, lane));
    HZP_TRY_GOTO(hzp_fence_wait(fence));
    draft->record.loss = NAN;
    draft->record.learned_through = -1;
out:
    hzp_fence_close(fence);
    hzp_lane_close(lane);
    return r;
}

int hzp_engine_load(struct hzp_device *dev, struct hzp_weights *weights, struct hzp_version *draft,
                    const char *model_dir, struct hzp_err_text *reterr)
{
    const char *noise = getenv("HZP_NOISE");
    if (noise && *noise && strcmp(noise, "0") != 0)
        return hzp_engine_noise(dev, weights, draft);
    draft->record.loss = NAN;
    draft->record.learned_through = -1;
    return hzp_model_load(model_dir, dev, hzp_version_units(weights, draft),
                          &draft->record.checksum, reterr);
}

static int open_device(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = e->config.options;
    struct hzp_device_config device = {
        .name = options->device, .threads = (int)options->threads, .level = options->cpu_level};
    HZP_TRY(hzp_device_open(&device, &e->dev, reterr));
    if (options->train_units && options->no_train)
        return hzp_fail_param(reterr, HZP_EINVAL, "--train-units",
                              "--train-units %d, and --no-train: nothing would use them",
                              (int)options->train_units);
    if (options->train_units && options->train_units >= e->dev->threads)
        return hzp_fail_param(reterr, HZP_EINVAL, "--train-units",
                              "--train-units %d leaves none of %d cores to serving",
                              (int)options->train_units, e->dev->threads);
    if (options->ride && options->no_train)
        return hzp_fail_param(reterr, HZP_EINVAL, "--ride",
                              "--ride %d, and --no-train: nothing would ride", (int)options->ride);
    if (options->ride && options->quantization)
        return hzp_fail_param(reterr, HZP_EINVAL, "--ride",
                              "--ride %d, and --quantization fp8: serving multiplies by other "
                              "weights than training, so nothing could ride",
                              (int)options->ride);
    if (options->train_units && options->ride)
        return hzp_fail_param(reterr, HZP_EINVAL, "--ride",
                              "--ride, and --train-units: training either rides or has cores");
    HZP_TRY(hzp_search_plans(options, e->dev, &e->model_config,
                             hzp_engine_dtype(options, &e->model_config), &e->plans, &e->tables,
                             reterr));
    if (!options->no_train && !options->train_units && !options->quantization)
        e->chunk_rows = options->ride ? (int32_t)options->ride : hzp_plan_table_ride(&e->plans);
    HZP_TRY(hzp_memory_plan(options, &e->layout, e->dev->mem_total, hzp_exec_bytes(e->dev),
                            e->chunk_rows > 0, &e->plan, reterr));
    if (!e->config.quiet) {
        hzp_log(HZP_LOG_INFO, "engine",
                "device=\"%s\" parameters=%lld dtype=%s quantization=%s context=%d", e->dev->label,
                (long long)hzp_config_parameters(&e->model_config),
                e->plan.dtype == HZP_BF16 ? "bf16" : "f32", e->plan.fp8 ? "fp8" : "none",
                e->plan.positions);
        hzp_memory_plan_print(&e->plan, stderr);
    }
    return HZP_OK;
}

/* Engine thread, between two steps: an update has ended. */
static void on_update(void *ctx, const struct hzp_update_report *report)
{
    struct hzp_engine *e = ctx;
    hzp_state_update(e->state, report);
    if (e->config.on_update)
        e->config.on_update(e->config.ctx, report);
}

static int open_trainer(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = e->config.options;
    HZP_TRY(hzp_recipe_check(&e->plan.recipe, reterr));
    if (options->publish_every > options->max_staleness + 1)
        hzp_log(HZP_LOG_WARN, "engine",
                "--max-staleness %lld overrides --publish-every %lld: every %lld updates are "
                "published, or the server would trail further behind",
                (long long)options->max_staleness, (long long)options->publish_every,
                (long long)options->max_staleness + 1);
    struct hzp_trainer_config config = {.recipe = e->plan.recipe,
                                        .model = e->model,
                                        .queue = hzp_state_queue(e->state),
                                        .quantum_flops = e->plan.train.quantum_flops,
                                        .chunk_rows = e->chunk_rows,
                                        .ride_rows = e->plan.train.ride_rows,
                                        .on_update = on_update,
                                        .ctx = e};
    return hzp_trainer_create(&config, &e->trainer);
}

static int open_weights(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = e->config.options;
    struct hzp_weights_config config = {.type = e->plan.dtype,
                                        .fp8 = e->plan.fp8,
                                        .slots = e->plan.slots,
                                        .max_staleness = (int32_t)options->max_staleness,
                                        .first_id = e->state ? hzp_state_first_id(e->state) : 1};
    HZP_TRY(hzp_weights_create(e->dev, &e->layout, &config, &e->weights));
    HZP_TRY(hzp_model_create(e->dev, e->weights, e->plan.positions, &e->model));
    if (e->state)
        HZP_TRY(open_trainer(e, reterr));
    struct hzp_version *draft;
    HZP_TRY(hzp_weights_begin(e->weights, &draft));
    const char *from = e->state ? hzp_state_weights_dir(e->state) : options->model;
    int r = hzp_engine_load(e->dev, e->weights, draft, from, reterr);
    if (r == HZP_OK && e->state)
        r = hzp_state_restore(e->state, e->trainer, draft, reterr);
    if (r == HZP_OK)
        r = hzp_version_quantize(e->weights, draft);
    if (r < 0)
        hzp_weights_abandon(e->weights, draft);
    else
        hzp_weights_publish(e->weights, draft, 0);
    return r;
}

static int open_serving(struct hzp_engine *e)
{
    const struct hzp_options *options = e->config.options;
    const struct hzp_batch_config *batch = &e->plan.batch;
    HZP_TRY(hzp_kvpool_create(e->model, e->plan.kv_pages, (int32_t)options->page_rows, &e->pool));
    /* A size that was asked for is taken at once; of one that follows from the machine, what the
     * first request may need: the whole may take seconds. */
    bool asked = options->kv_tokens || options->kv_memory;
    HZP_TRY(hzp_kvpool_touch(e->pool, asked ? e->plan.kv_pages : batch->page_stride));
    HZP_TRY(hzp_serve_space_create(e->model, batch->rows_max, batch->logits_max, &e->space));
    HZP_TRY(hzp_batch_create(e->dev, batch, &e->batch));
    struct hzp_scheduler_config config = {.running_max = (int32_t)options->running_max,
                                          .waiting_max = (int32_t)options->waiting_max,
                                          .waiting_tokens_max = options->waiting_tokens,
                                          .prefill_rows_max = (int32_t)options->prefill_rows,
                                          .admission = options->admission ? HZP_ADMIT_WORST_CASE
                                                                          : HZP_ADMIT_PREDICTED,
                                          .edits_max = batch->edits_max};
    return hzp_scheduler_create(&config, e->model, e->pool, &e->scheduler);
}

/* Training beside requests: riding in their products, or on a lane of its own cores. */
static void open_beside(struct hzp_engine *e)
{
    e->beside = hzp_plan_sequential;
    e->beside.ride = (int32_t)e->config.options->ride;
    if (e->beside.ride)
        return;
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        e->beside.train_lane[k] = HZP_LANE_TRAIN;
    e->beside.units[HZP_LANE_TRAIN] = (int16_t)e->config.options->train_units;
    e->beside.units[HZP_LANE_COMPUTE] =
        (int16_t)(e->dev->threads - (int)e->config.options->train_units);
}

static int open_loop(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = e->config.options;
    struct hzp_loop_config config = {.model = e->model,
                                     .space = e->space,
                                     .batch = e->batch,
                                     .policy = e->policy,
                                     .idle_ns = (uint64_t)(options->idle_ms * 1e6),
                                     .run_ahead = (enum hzp_run_ahead)options->run_ahead,
                                     .check_plans = options->check_plans != 0};
    config.plans = e->plans.entries ? &e->plans : NULL;
    config.tables = e->tables.curves ? &e->tables : NULL;
    if (e->trainer && (options->train_units || options->ride)) {
        open_beside(e);
        config.beside = &e->beside;
    }
    if (e->config.first)
        config.source[config.sources++] = e->config.first;
    config.source[config.sources++] = hzp_scheduler_source(e->scheduler);
    if (e->trainer)
        config.source[config.sources++] = hzp_trainer_source(e->trainer);
    if (e->config.source)
        config.source[config.sources++] = e->config.source;
    HZP_TRY(hzp_loop_create(&config, &e->loop));
    HZP_TRY(hzp_loop_warm_up(e->loop, hzp_kvpool_layers(e->pool)));
    return e->state ? hzp_state_start(e->state, e->trainer, e->model, e->loop) : HZP_OK;
}

static int open_all(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    int r = open_device(e, reterr);
    if (r == HZP_OK)
        r = open_weights(e, reterr);
    if (r == HZP_OK)
        r = open_serving(e);
    if (r == HZP_OK)
        r = open_loop(e, reterr);
    if (r < 0 && reterr && !reterr->text[0])
        hzp_fail(reterr, r, "%s: cannot be opened: %s", e->config.options->model, hzp_err_name(r));
    return r;
}

static void close_all(struct hzp_engine *e)
{
    hzp_loop_destroy(e->loop);
    hzp_plan_table_fini(&e->plans);
    hzp_tables_fini(&e->tables);
    hzp_trainer_destroy(e->trainer);
    hzp_scheduler_destroy(e->scheduler);
    hzp_batch_destroy(e->batch);
    hzp_serve_space_destroy(e->space);
    hzp_kvpool_destroy(e->pool);
    hzp_model_destroy(e->model);
    hzp_weights_destroy(e->weights);
    hzp_device_close(e->dev);
}

static void enter(struct hzp_engine_thread *t, enum phase phase, int result)
{
    pthread_mutex_lock(&t->lock);
    t->phase = phase;
    t->result = result;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static void *engine_main(void *arg)
{
    struct hzp_engine *e = arg;
    struct hzp_engine_thread *t = e->thread;
    int r = open_all(e, &t->err);
    if (r == HZP_OK) {
        enter(t, RUNNING, HZP_OK);
        r = hzp_loop_run(e->loop);
        hzp_scheduler_abort(e->scheduler);
        if (e->state)
            hzp_state_stop(e->state, r == HZP_OK);
    }
    enter(t, ENDED, r);
    pthread_mutex_lock(&t->lock);
    while (!t->close)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    close_all(e);
    return NULL;
}

/* ---- the handle: its owner's thread ---- */

static void free_engine(struct hzp_engine *e)
{
    if (e->thread) {
        pthread_cond_destroy(&e->thread->changed);
        pthread_mutex_destroy(&e->thread->lock);
        free(e->thread);
    }
    hzp_state_close(e->state);
    if (e->layout_made)
        hzp_layout_free(&e->layout);
    hzp_tokenizer_close(e->tok);
    free(e);
}

/* What needs no device: configuration, tokenizer, the state of an earlier life. */
static int read_model(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = e->config.options;
    HZP_TRY(hzp_config_read(options->model, &e->model_config, reterr));
    HZP_TRY(hzp_tokenizer_open(options->model, &e->tok, reterr));
    int32_t vocab = hzp_tokenizer_vocab(e->tok);
    if (vocab > e->model_config.vocab)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s/tokenizer.json: has tokens up to %d, the model's vocabulary is %d",
                        options->model, vocab - 1, e->model_config.vocab);
    hzp_layout_make(&e->model_config, &e->layout);
    e->layout_made = true;
    if (options->no_train || options->command == HZP_COMMAND_COMPLETE)
        return HZP_OK;
    struct hzp_state_config state = {
        .state_dir = options->state_dir,
        .model_dir = options->model,
        .tok = e->tok,
        .layout = &e->layout,
        .queue = {.samples_max = (int32_t)HZP_MIN(options->queue_samples, INT32_MAX),
                  .tokens_max = options->queue_tokens,
                  .passes = (int32_t)options->passes,
                  .replay_ratio = options->replay ? options->replay_ratio : 0,
                  .seed = (uint64_t)options->seed},
        .replay = options->replay,
        .micro_rows = (int32_t)HZP_MIN(options->micro_rows, e->model_config.positions),
        .body_samples_max = (int32_t)HZP_MIN(options->queue_samples, 65536),
        .checkpoint_every = options->checkpoint_every,
        .keep_checkpoints = options->keep_checkpoints,
        .provisional = options->command == HZP_COMMAND_SERVE,
    };
    return hzp_state_open(&state, &e->state, reterr);
}

/* What the options say of the split between serving and training. */
static int read_policy(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = e->config.options;
    e->policy = (struct hzp_policy){.itl_stretch = options->itl_stretch,
                                    .train_share = options->train_share,
                                    .train_max = options->train_max,
                                    .train_min = options->train_min};
    const char *slo = options->command == HZP_COMMAND_BENCH ? options->load_slo : options->slo;
    if (slo)
        HZP_TRY(hzp_policy_parse_goals(slo, "--slo", &e->policy, reterr));
    if (options->command == HZP_COMMAND_COMPLETE)
        return HZP_OK; /* trains nothing, and has none of these */
    return hzp_policy_check(&e->policy, reterr);
}

int hzp_engine_start(const struct hzp_engine_config *config, struct hzp_engine **ret,
                     struct hzp_err_text *reterr)
{
    if (!config->options->model)
        return hzp_fail(reterr, HZP_EINVAL, "which model? Name a directory that holds config.json");
    struct hzp_engine *e = hzp_xcalloc(1, sizeof(*e));
    e->config = *config;
    int r = read_policy(e, reterr);
    if (r == HZP_OK)
        r = read_model(e, reterr);
    if (r < 0) {
        free_engine(e);
        return r;
    }
    struct hzp_engine_thread *t = e->thread = hzp_xcalloc(1, sizeof(*t));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, &attr);
    pthread_condattr_destroy(&attr);
    r = hzp_thread_start(&t->thread, "hzp-engine", engine_main, e);
    if (r < 0) {
        free_engine(e);
        return hzp_fail(reterr, r, "no thread to be had for the engine");
    }
    pthread_mutex_lock(&t->lock);
    while (t->phase == OPENING)
        pthread_cond_wait(&t->changed, &t->lock);
    bool runs = t->phase == RUNNING;
    pthread_mutex_unlock(&t->lock);
    if (!runs) {
        if (reterr)
            *reterr = t->err;
        return hzp_engine_finish(e);
    }
    *ret = e;
    return HZP_OK;
}

void hzp_engine_stop(struct hzp_engine *engine, bool hurry)
{
    hzp_scheduler_stop(engine->scheduler, hurry);
    if (engine->trainer)
        hzp_trainer_finish(engine->trainer);
    hzp_loop_stop(engine->loop, hurry);
}

bool hzp_engine_running(struct hzp_engine *engine)
{
    pthread_mutex_lock(&engine->thread->lock);
    bool runs = engine->thread->phase == RUNNING;
    pthread_mutex_unlock(&engine->thread->lock);
    return runs;
}

bool hzp_engine_wait(struct hzp_engine *engine, uint64_t wait_ns)
{
    struct hzp_engine_thread *t = engine->thread;
    uint64_t end = hzp_now_ns() + wait_ns;
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000u),
                             .tv_nsec = (long)(end % 1000000000u)};
    pthread_mutex_lock(&t->lock);
    int timed_out = 0;
    while (t->phase != ENDED && timed_out != ETIMEDOUT)
        timed_out = pthread_cond_timedwait(&t->changed, &t->lock, &until);
    bool ended = t->phase == ENDED;
    pthread_mutex_unlock(&t->lock);
    return ended;
}

int hzp_engine_finish(struct hzp_engine *engine)
{
    if (!engine)
        return HZP_OK;
    struct hzp_engine_thread *t = engine->thread;
    if (hzp_engine_running(engine))
        hzp_engine_stop(engine, true);
    pthread_mutex_lock(&t->lock);
    t->close = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    int r = t->result;
    free_engine(engine);
    return r;
}
