/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/assembly.h"

#include "api/engine/fill.h"
#include "api/engine/group.h"
#include "api/engine/shards.h"
#include "base/log.h"
#include "device/account.h"
#include "nanobatch/search/search_file.h"
#include "weights/fp8.h"

/* The model used without a directory: the shape of a common small model. */
static const struct hzp_model_config built_in = {
    .family = "llama",
    .layers = 30,
    .width = 576,
    .inner = 1536,
    .vocab = 49152,
    .heads = {9, 3, 64},
    .positions = 8192,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .tied = true,
    .disk_type = HZP_BF16,
    .bos = -1,
};

/* Sets the error text of a failed stage if the function that failed has not written one. */
static int explain(const struct hzp_assembly *a, int r, const char *what,
                   struct hzp_err_text *reterr)
{
    const char *model = a->source_dir ? a->source_dir : "the built-in model";
    if (r >= 0 || !reterr || reterr->text[0])
        return r;
    if (r == HZP_ENOMEM)
        return hzp_fail(reterr, r, "%s: not enough memory for %s", model, what);
    return hzp_fail(reterr, r, "%s: cannot open %s: %s", model, what, hzp_err_name(r));
}

/* ---- read ---- */

int hzp_assembly_model(const struct hzp_model_settings *settings, struct hzp_model_config *ret,
                       struct hzp_err_text *reterr)
{
    if (settings->dir)
        return hzp_config_read(settings->dir, ret, reterr);
    *ret = built_in;
    return HZP_OK;
}

static int open_tokenizer(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_tokenizer_open(a->source_dir, &a->tok, reterr));
    int32_t vocab = hzp_tokenizer_vocab(a->tok);
    if (a->is.serving && vocab > a->config.vocab)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s/tokenizer.json: has token ids up to %d, the model's vocabulary is %d",
                        a->source_dir, vocab - 1, a->config.vocab);
    hzp_structures_open(a->tok, a->config.vocab, HZP_STRUCTURES_IN_USE, &a->structures);
    return hzp_chat_open(a->source_dir, a->is.model->chat_template, &a->chat, reterr);
}

/* The layout of the model, or of this rank's slice of it. */
static int make_layout(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    if (!a->is.group) {
        hzp_layout_make(&a->config, &a->layout);
        return HZP_OK;
    }
    int ranks = a->is.ranks && !a->is.rig ? (int)a->is.ranks->tensor : hzp_link_ranks(a->is.group);
    struct hzp_tensor_slice slice = {hzp_link_rank(a->is.group) % ranks, ranks};
    HZP_TRY(hzp_tensor_slice_check(&a->config, slice.ranks, reterr));
    hzp_layout_make(&a->config, &a->whole);
    hzp_layout_make_slice(&a->config, slice, &a->layout);
    return HZP_OK;
}

const struct hzp_layout *hzp_assembly_whole(const struct hzp_assembly *a)
{
    return a->is.group ? &a->whole : &a->layout;
}

int hzp_assembly_read(const struct hzp_assembly_config *config, struct hzp_assembly *ret,
                      struct hzp_err_text *reterr)
{
    struct hzp_assembly *a = ret;
    memset(a, 0, sizeof(*a));
    a->is = *config;
    a->source_dir = config->source_dir ? config->source_dir : config->model->dir;
    const struct hzp_model_settings source = {.dir = a->source_dir};
    HZP_TRY(hzp_assembly_model(&source, &a->config, reterr));
    if (config->layers_max)
        a->config.layers = HZP_MIN(a->config.layers, config->layers_max);
    if (config->tokenizer)
        HZP_TRY(open_tokenizer(a, reterr));
    HZP_TRY(make_layout(a, reterr));
    a->layout_made = true;
    return HZP_OK;
}

/* ---- open ---- */

/* Chooses the cores of training beside requests.  Without a setting that is one of the two of a
 * CPU, where that was measured to yield more than taking turns, unless a plan file decides. */
static int choose_beside(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    int cores = (int)a->is.split->train_cores;
    bool two = a->dev->threads == 2 && hzp_device_host_memory(a->dev) &&
               hzp_device_has_shares(a->dev) && hzp_device_computes(a->dev);
    if (cores < 0)
        cores = two && a->is.serving && a->is.training && !a->is.group && !a->is.split->ride &&
                !a->plans.entries;
    a->train_cores = cores;
    if (cores && cores >= a->dev->threads)
        return hzp_wrong(reterr, "--train-share cores",
                         "%d leaves none of the %d cores for serving", cores, a->dev->threads);
    return HZP_OK;
}

/* A record of a step names its shape by its number in the table, so all ranks need the same one. */
static int agree_plans(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    const char *plans = a->is.serving->plans;
    int64_t hash = (int64_t)hzp_plan_table_hash(&a->plans), has[2];
    int64_t given = plans && strcmp(plans, "auto") ? -1 : 0; /* on any rank: all refuse */
    int rank;
    HZP_TRY(hzp_group_differs(a->is.group, hash, &rank, has, reterr));
    if (!rank)
        return HZP_OK;
    HZP_TRY(hzp_group_least(a->is.group, &given, reterr));
    if (given)
        return hzp_fail_param(reterr, HZP_EINVAL, "--plans",
                              "--plans: rank %d has other plans than rank 0 (hash %016" PRIx64
                              ", not %016" PRIx64 "): ranks that compute each step together need "
                              "the same",
                              rank, (uint64_t)has[1], (uint64_t)has[0]);
    hzp_log(HZP_LOG_WARN, "engine", "no plans: rank %d has other ones than rank 0", rank);
    hzp_plan_table_fini(&a->plans);
    hzp_tables_fini(&a->tables);
    return HZP_OK;
}

/* Reads the plan table, and decides from it and from --train-share whether training may ride in
 * serving's products. */
static int read_plans(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    int ranks = HZP_MAX(a->layout.slice.ranks, 1);
    HZP_TRY(hzp_search_plans(a->is.serving->plans, a->dev, &a->config,
                             hzp_settings_dtype(a->is.model, &a->config), a->is.model->fp8 != 0,
                             a->is.model->kv_fp8 != 0, ranks, &a->plans, &a->tables, reterr));
    HZP_TRY(choose_beside(a, reterr));
    if (a->is.group)
        return agree_plans(a, reterr);
    if (a->is.training && !a->train_cores && !a->is.model->fp8)
        a->chunk_rows =
            a->is.split->ride ? (int32_t)a->is.split->ride : hzp_plan_table_ride(&a->plans);
    return HZP_OK;
}

/* Bytes of the loop's lanes, and of the lanes of the caller's executors, which only use the default
 * lane. */
static size_t lane_bytes(const struct hzp_assembly *a)
{
    uint32_t lanes = hzp_plan_table_lanes(&a->plans);
    if (a->is.serving && a->is.training && a->train_cores)
        lanes |= 1u << HZP_LANE_TRAIN;
    return hzp_exec_bytes(a->dev, lanes) + hzp_exec_bytes(a->dev, 0) * (size_t)a->is.executors;
}

/* The plan shape of steps that serve and train: training rides in serving's products, or runs on a
 * lane with its own cores. */
static void shape_beside(struct hzp_assembly *a)
{
    int cores = a->train_cores;
    a->beside = hzp_plan_sequential;
    a->beside.ride = (int32_t)a->is.split->ride;
    if (a->beside.ride)
        return;
    for (int k = 0; k < HZP_KIND_COUNT; k++)
        a->beside.train_lane[k] = HZP_LANE_TRAIN;
    a->beside.share[HZP_LANE_TRAIN] = (int16_t)cores;
    a->beside.share[HZP_LANE_COMPUTE] = (int16_t)(a->dev->threads - cores);
}

/* The shape of steps that serve and train; NULL: as of those that serve. */
static const struct hzp_plan_shape *planned_beside(struct hzp_assembly *a)
{
    const struct hzp_split_settings *split = a->is.training ? a->is.split : NULL;
    if (!split || !(a->train_cores || split->ride))
        return NULL;
    shape_beside(a);
    return &a->beside;
}

/* Before anything is given out: prepares the partitions of the SMs, and measures what the driver
 * takes for them and for graphs. */
static int measure_driver(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    if (!a->is.serving)
        return HZP_OK;
    int r = hzp_driver_measure(a->dev, a->plans.entries ? &a->plans : NULL, planned_beside(a),
                               a->config.layers, &a->driver);
    return explain(a, r, "the driver's memory", reterr);
}

/* What there is for this process: ranks of a group on one machine have equal parts of it. */
static size_t memory_limit(const struct hzp_assembly *a)
{
    int64_t ranks = a->is.group && a->is.ranks ? a->is.ranks->on_machine : 1;
    return hzp_device_host_memory(a->dev) && ranks > 1 ? a->dev->mem_total / (size_t)ranks
                                                       : a->dev->mem_total;
}

/* Lets the device choose how it computes the attention of micro-batches. */
static void prepare_attention(struct hzp_assembly *a)
{
    const struct hzp_heads *heads = &a->config.heads;
    int64_t rows = a->is.training ? a->is.training->micro_rows : 0;
    if (hzp_settings_dtype(a->is.model, &a->config) != HZP_BF16)
        return;
    hzp_device_prepare_attention(
        a->dev,
        &(struct hzp_attention_use){.heads = *heads,
                                    .rows = (int32_t)HZP_MIN(rows, (int64_t)a->config.positions),
                                    .scale = (float)(1 / sqrt((double)heads->dim)),
                                    .repeats = a->is.training && a->is.training->ordered});
}

static int plan_memory(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    prepare_attention(a);
    HZP_TRY(measure_driver(a, reterr));
    struct hzp_plan_shapes each = {NULL, planned_beside(a), a->plans.entries ? &a->plans : NULL};
    struct hzp_memory_request request = {.model = a->is.model,
                                         .serving = a->is.serving,
                                         .training = a->is.training,
                                         .gate =
                                             a->gate || a->is.gated || hzp_trials_undo(a->trials),
                                         .slots = HZP_MAX(a->is.slots, 1),
                                         .limit = memory_limit(a),
                                         .lanes = lane_bytes(a),
                                         .driver = a->driver,
                                         .shapes = a->is.training ? hzp_plan_shapes_each(&each) : 1,
                                         .links = hzp_axes_count(&a->axes),
                                         .rides = a->chunk_rows > 0};
    struct hzp_shards_request shards = {
        .link = a->is.link, .memory = &request, .serves = a->is.serves, .quiet = a->is.quiet};
    /* Half of the memory that this process may use: others of a machine with a GPU need theirs. */
    size_t host = hzp_host_mem_total() / 2;
    if (!hzp_device_host_memory(a->dev))
        request.host_limit = HZP_MAX(host, (size_t)1);
    if (a->is.link)
        shards.link = a->link;
    memcpy(shards.speed, a->speed, sizeof(shards.speed));
    HZP_TRY(hzp_shards_agree(&shards, &a->layout, &a->shards, reterr));
    if (a->axes.data && a->shards.ordered) /* each group has a part of the sums */
        hzp_layout_pad(&a->layout, 64 * (size_t)hzp_link_ranks(a->axes.data));
    request.shards = a->shards;
    request.copies = a->is.copies;
    HZP_TRY(hzp_memory_plan(&request, &a->layout, &a->plan, reterr));
    if (a->is.quiet)
        return HZP_OK;
    if (a->is.serving)
        hzp_log(
            HZP_LOG_INFO, "engine",
            "device=\"%s\" parameters=%lld dtype=%s quantization=%s kv_cache_dtype=%s context=%d",
            a->dev->label, (long long)hzp_config_parameters(&a->config),
            a->plan.dtype == HZP_BF16 ? "bf16" : "f32", a->is.model->fp8 ? "fp8" : "none",
            a->plan.kv == HZP_E4M3 ? "fp8" : "auto", a->plan.positions);
    if (hzp_log_get_format() == HZP_LOG_JSON)
        hzp_memory_plan_log(&a->plan);
    else
        hzp_memory_plan_print(&a->plan, stderr);
    return HZP_OK;
}

/* The longest sequence: that of a rig's steps, or for other assemblies the configured number of
 * positions. */
static int plan_rows(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    const struct hzp_assembly_rig *rig = a->is.rig;
    a->plan.dtype = hzp_settings_dtype(a->is.model, &a->config);
    a->plan.fp8 = a->is.model->fp8 != 0;
    a->plan.slots = HZP_MAX(a->is.slots, rig && rig->updates ? 2 : 1);
    a->plan.positions = HZP_MIN(a->is.positions, a->config.positions);
    if (!rig)
        return HZP_OK;
    a->plan.positions = HZP_MAX(rig->depth + HZP_MAX(rig->prefill, 1), HZP_MAX(rig->train, 16));
    if (a->plan.positions > a->config.positions)
        return hzp_fail(reterr, HZP_EINVAL, "the step needs %d positions, the model has %d",
                        a->plan.positions, a->config.positions);
    return HZP_OK;
}

/* What ranks that compute each step together have in common: the largest step, and the pages. */
static int agree_group(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    const struct hzp_batch_config *b = &a->plan.batch;
    const struct hzp_group_number number[] = {
        {"layers", a->config.layers},
        {"a width of", a->config.width},
        {"a vocabulary of", a->config.vocab},
        {"--dtype", a->plan.dtype},
        {"--quantization (1: fp8)", a->is.model->fp8},
        {"--draft fp8", a->is.serving->draft == HZP_DRAFT_FP8},
        {"--context", a->plan.positions},
        {"--kv-cache-dtype", a->plan.kv},
        {"--page-rows", a->is.serving->page_rows},
        {"--max-running", a->is.serving->running_max},
        {"steps of rows", b->rows_max},
        {"steps of sequences", b->segs_max},
        {"steps of draws", b->logits_max},
        {"steps of edits", b->edits_max},
        {"steps of masks", b->masks_max},
        {"--check-plans", a->is.serving->check_plans},
        {"--slots", a->plan.slots},
        {"--micro-rows", a->is.training ? a->plan.recipe.micro_rows : 0},
        {"--moments (1: bf16, 2: q8)", a->is.training ? a->is.training->moment_type : 0},
        {"--ordered", a->is.training ? a->is.training->ordered : 0},
        {"pieces of training of operations",
         a->is.training ? (int64_t)a->plan.train.quantum_flops : 0},
    };
    /* Kernels of another instruction set round otherwise, so a rank would draw other tokens. */
    const char *level = strrchr(a->dev->label, ',');
    int64_t pages = a->plan.kv_pages;
    HZP_TRY(hzp_group_compare_word(a->is.group, "kernels of (--cpu-level)",
                                   level ? level + 2 : "another kind", reterr));
    HZP_TRY(hzp_group_compare(a->is.group, number, HZP_COUNT(number), reterr));
    HZP_TRY(hzp_group_least(a->is.group, &pages, reterr));
    a->plan.kv_pages = (int32_t)pages;
    return HZP_OK;
}

struct hzp_step_limits hzp_assembly_step_limits(const struct hzp_assembly *a)
{
    return (struct hzp_step_limits){
        .lines = (int32_t)a->is.serving->running_max + 1, /* and one for rewarming */
        .vocab = a->config.vocab,
        .pages = a->plan.kv_pages,
        .page_rows = (int32_t)a->is.serving->page_rows,
        .positions = a->plan.positions,
        .work_bytes = a->is.training ? hzp_learner_work_room(&a->plan.recipe) : 0};
}

static int open_weights(struct hzp_assembly *a, uint64_t first_id)
{
    int32_t staleness = a->is.rig ? 1 : a->is.max_staleness;
    struct hzp_weights_config config = {.type = a->plan.dtype,
                                        .fp8 = a->plan.fp8,
                                        .slots = a->plan.slots,
                                        .max_staleness = staleness,
                                        .first_id = first_id,
                                        .shards = a->shards};
    HZP_TRY(hzp_weights_create(a->dev, &a->layout, &config, &a->weights));
    HZP_TRY(hzp_model_create(a->dev, a->weights, a->plan.positions, &a->model));
    a->model->kv_e4m3 = a->is.model->kv_fp8 != 0;
    a->model->fp8_guesses = a->is.serving && a->is.serving->draft == HZP_DRAFT_FP8;
    if (a->is.group)
        hzp_model_set_tensor(a->model, a->axes.tensor, a->axes.tensor_train);
    if (a->axes.data)
        hzp_model_set_data(a->model, a->axes.data);
    return HZP_OK;
}

static int open_axes(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    struct hzp_axes_config config = {.all = a->is.group,
                                     .slice = a->layout.slice,
                                     .dev = a->dev,
                                     .ranks = a->is.ranks,
                                     .learns = a->is.training != NULL,
                                     .own_lane =
                                         hzp_plan_table_lanes(&a->plans) >> HZP_LANE_NETWORK & 1};
    HZP_TRY(hzp_axes_open(&config, &a->axes, reterr));
    a->link = a->axes.work;
    return HZP_OK;
}

/* The device, and with several ranks the link that moves its memory.  Ranks of a group that are
 * simulated, or that only time ops, compute on what the group itself moves. */
static int open_device(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    struct hzp_link *ranks = a->is.link ? a->is.link : a->is.rig ? NULL : a->is.group;
    int ordinal = 0;
    if (ranks)
        HZP_TRY(hzp_rank_device(ranks, a->is.device, a->is.untested, &ordinal, reterr));
    HZP_TRY(hzp_settings_device(a->is.device, ordinal, &a->dev, reterr));
    if (a->is.group && a->is.rig)
        a->axes = (struct hzp_axes){
            .all = a->is.group, .tensor = a->is.group, .tensor_train = a->is.group};
    if (a->is.group && a->is.rig && !strcmp(hzp_device_backend(a->dev), "cuda"))
        return hzp_wrong(reterr, "--tensor", ": ranks on GPUs are not timed together yet");
    return a->is.link ? hzp_rank_link_open(a->is.link, a->dev, a->is.ranks, a->is.untested,
                                           HZP_RANK_TRANSFERS, &a->link, reterr)
                      : HZP_OK;
}

int hzp_assembly_open(struct hzp_assembly *a, uint64_t first_id, struct hzp_err_text *reterr)
{
    HZP_TRY(open_device(a, reterr));
    if (a->link && a->is.training && !a->is.untested)
        HZP_TRY(hzp_shards_test(a->dev, a->link, hzp_settings_dtype(a->is.model, &a->config),
                                a->is.training, a->speed, reterr));
    if (a->is.serving)
        HZP_TRY(read_plans(a, reterr));
    if (a->is.group && !a->is.rig)
        HZP_TRY(open_axes(a, reterr));
    if (a->is.serving || a->is.training)
        HZP_TRY(plan_memory(a, reterr));
    else
        HZP_TRY(plan_rows(a, reterr));
    if (a->is.group && a->is.serving)
        HZP_TRY(agree_group(a, reterr));
    return explain(a, open_weights(a, first_id), "the model", reterr);
}

/* ---- trainer ---- */

int hzp_assembly_open_trainer(struct hzp_assembly *a, struct hzp_sample_queue *queue,
                              void (*on_update)(void *, const struct hzp_update_report *),
                              void *ctx, struct hzp_err_text *reterr)
{
    const struct hzp_training_settings *settings = a->is.training;
    HZP_TRY(hzp_recipe_check(&a->plan.recipe, reterr));
    if (a->is.serving && settings->publish_every > settings->max_staleness + 1)
        hzp_log(HZP_LOG_WARN, "engine",
                "--max-staleness %lld overrides --publish every=%lld: a version is published "
                "every %lld updates",
                (long long)settings->max_staleness, (long long)settings->publish_every,
                (long long)settings->max_staleness + 1);
    struct hzp_trainer_config config = {.recipe = a->plan.recipe,
                                        .model = a->model,
                                        .queue = queue,
                                        .chunk_rows = a->chunk_rows,
                                        .ride_rows = a->plan.train.ride_rows,
                                        .host_state = a->plan.train.host_state,
                                        .shards = a->shards,
                                        .link = a->link,
                                        .group = a->axes.group,
                                        .whole = a->is.group ? &a->config : NULL,
                                        .gate = a->gate,
                                        .trials = a->trials,
                                        .sites = a->sites,
                                        .on_update = on_update,
                                        .ctx = ctx};
    if (a->is.link && a->is.ranks) {
        config.link_rate = (double)a->is.ranks->link_rate;
        config.link_latency_s = a->is.ranks->link_latency_ms * 1e-3;
    }
    if (a->is.serving) { /* without requests steps need not be short, so work is not cut */
        config.quantum_flops = a->plan.train.quantum_flops;
        config.prepare_behind = !a->is.group; /* its chains would have to run on all ranks */
    }
    return explain(a, hzp_trainer_create(&config, &a->trainer, reterr), "training", reterr);
}

int hzp_assembly_open_learner(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    struct hzp_learner_config config = {.recipe = a->plan.recipe,
                                        .model = a->model,
                                        .shards = a->shards,
                                        .link = a->link,
                                        .undoes = a->is.gated};
    if (a->is.serving || a->is.group)
        config.quantum_flops = a->plan.train.quantum_flops;
    /* Rank 0 checks the recipe: it alone uses the schedule, and knows the last step of offline
     * training, which it counts in the data. */
    bool led = a->is.group && a->layout.slice.rank > 0;
    if (led)
        config.link = NULL;
    int r = led ? hzp_learner_by_step_create(&config, &a->by_step)
                : hzp_learner_by_link_create(&config, &a->by_link, reterr);
    return explain(a, r, "training", reterr);
}

/* What learns on this rank; NULL: nothing does. */
static struct hzp_learner *learner_of(const struct hzp_assembly *a)
{
    return a->trainer   ? hzp_trainer_learner(a->trainer)
           : a->by_link ? hzp_learner_by_link_learner(a->by_link)
                        : NULL;
}

/* ---- the first version ---- */

static int fill_from_dir(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    struct hzp_assembly *a = ctx;
    if (!a->is.model->dir)
        return hzp_fill_noise(a->weights, draft);
    return hzp_fill_load(a->weights, draft, a->is.model->dir, reterr);
}

static int fill_with_noise(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    struct hzp_assembly *a = ctx;
    return hzp_fill_noise(a->weights, draft);
}

int hzp_assembly_fill(struct hzp_assembly *a,
                      int (*fill)(void *ctx, struct hzp_version *draft,
                                  struct hzp_err_text *reterr),
                      void *ctx, struct hzp_err_text *reterr)
{
    struct hzp_version *draft;
    HZP_TRY(hzp_weights_begin(a->weights, &draft));
    int r = HZP_OK;
    if (hzp_device_computes(a->dev))
        r = fill ? fill(ctx, draft, reterr) : fill_from_dir(a, draft, reterr);
    if (r == HZP_OK)
        r = hzp_version_quantize(a->weights, draft);
    if (r < 0)
        hzp_weights_abandon(a->weights, draft);
    else
        hzp_weights_publish(a->weights, draft, 0);
    return explain(a, r, "the weights", reterr);
}

/* ---- serving, or a rig ---- */

/* Where pages go that fall out of the prefix cache. */
static int open_tier(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    const struct hzp_serving_settings *s = a->is.serving;
    bool host = hzp_device_host_memory(a->dev);
    struct hzp_tier_config config = {.pool = a->pool,
                                     .host_bytes = (size_t)s->prefix_host,
                                     .file_bytes = s->prefix_dir ? (size_t)s->prefix_file : 0,
                                     .dir = s->prefix_dir};
    if (s->prefix_host && host)
        return hzp_wrong(
            reterr, "--prefix-bytes",
            "host: this device's memory is host memory; give it to the cache itself (--kv-memory)");
    if (s->no_prefix_cache || (!config.host_bytes && !config.file_bytes))
        return HZP_OK;
    return hzp_tier_create(&config, &a->tier, reterr);
}

static int open_serving(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    const struct hzp_serving_settings *s = a->is.serving;
    const struct hzp_batch_config *batch = &a->plan.batch;
    HZP_TRY(hzp_kvpool_create_backed(a->model, a->plan.kv_pages, a->plan.kv_backs,
                                     (int32_t)s->page_rows, &a->pool));
    /* A KV cache of a configured size is touched completely at start.  Of a default size only the
     * pages that the first request may need are touched, because touching all of it may take
     * seconds. */
    bool asked = s->kv_tokens || s->kv_memory;
    HZP_TRY(hzp_kvpool_touch(a->pool, asked ? a->plan.kv_pages : batch->page_stride));
    HZP_TRY(hzp_serve_space_create(a->model, batch->rows_max, batch->logits_max, &a->space));
    if (a->plan.pages.lines)
        HZP_TRY(hzp_page_table_create(a->dev, &a->plan.pages, &a->pages));
    struct hzp_batch_config with_table = *batch;
    with_table.table = a->pages;
    with_table.backing = hzp_kvpool_backing(a->pool);
    with_table.page_rows = (int32_t)s->page_rows;
    HZP_TRY(hzp_batch_create(a->dev, &with_table, &a->batch));
    if (a->is.member)
        return HZP_OK;
    HZP_TRY(open_tier(a, reterr));
    struct hzp_scheduler_config config = {.running_max = (int32_t)s->running_max,
                                          .waiting_max = (int32_t)s->waiting_max,
                                          .waiting_tokens_max = s->waiting_tokens,
                                          .prefill_rows_max = (int32_t)s->prefill_rows,
                                          .prefix_cache = !s->no_prefix_cache,
                                          .prefix_stale_max = (int32_t)s->reuse_stale,
                                          .rewarm_rows = (int32_t)s->rewarm,
                                          .lookup_max = s->draft ? (int32_t)s->draft_max : 0,
                                          .guess_by_depth = s->draft >= HZP_DRAFT_FP8,
                                          .history = s->draft == HZP_DRAFT_HISTORY,
                                          .tier = a->tier,
                                          .trials = a->trials,
                                          .pin_ns = (uint64_t)(s->pin_seconds * 1e9),
                                          .admission = s->admission ? HZP_ADMIT_WORST_CASE
                                                                    : HZP_ADMIT_PREDICTED,
                                          .edits_max = batch->edits_max};
    return hzp_scheduler_create(&config, a->model, a->pool, &a->scheduler);
}

int hzp_assembly_open_serving(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    return explain(a, open_serving(a, reterr), "serving", reterr);
}

int hzp_assembly_hello(struct hzp_assembly *a, struct hzp_hello *ret, struct hzp_err_text *reterr)
{
    const struct hzp_serving_settings *s = a->is.serving;
    const struct hzp_version *v = hzp_weights_current(a->weights);
    *ret = (struct hzp_hello){.ranks = 1,
                              .vocab = a->config.vocab,
                              .positions = a->plan.positions,
                              .width = a->config.width,
                              .layers = a->config.layers,
                              .running_max = (int32_t)s->running_max,
                              .waiting_max = (int32_t)s->waiting_max,
                              .page_rows = (int32_t)s->page_rows,
                              .kv_pages = a->plan.kv_pages,
                              .version = v->record.id,
                              .optimizer_step = v->record.optimizer_step};
    int r = hzp_device_computes(a->dev)
                ? hzp_units_checksum(a->dev, hzp_version_units(a->weights, v), &ret->checksum)
                : HZP_OK;
    return explain(a, r, "the checksum of the weights", reterr);
}

static int make_rig(struct hzp_assembly *a)
{
    const struct hzp_assembly_rig *size = a->is.rig;
    struct hzp_version *draft = NULL;
    if (size->updates)
        HZP_TRY(hzp_weights_begin(a->weights, &draft));
    struct hzp_recipe recipe = {.micro_rows = size->train, .moment_type = size->moment_type};
    struct hzp_train_space_config train =
        hzp_learner_space_config(&recipe, &a->config, size->quantum_flops);
    train.host_state = size->host_state;
    if (size->rides)
        train.ride_rows = size->decode + size->prefill;
    struct hzp_rig_config rig = {.model = a->model,
                                 .version = hzp_weights_current(a->weights),
                                 .draft = draft,
                                 .decode_max = size->decode,
                                 .prefill_max = size->prefill,
                                 .depth_max = size->depth,
                                 .kv_tokens = size->kv_tokens,
                                 .page_rows = size->page_rows,
                                 .train = size->train ? &train : NULL};
    return hzp_rig_create(&rig, &a->rig);
}

int hzp_assembly_rig(const struct hzp_assembly_config *config, bool noise, struct hzp_assembly *ret,
                     struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_assembly_read(config, ret, reterr));
    HZP_TRY(hzp_assembly_open(ret, 1, reterr));
    HZP_TRY(hzp_assembly_fill(ret, noise ? fill_with_noise : NULL, ret, reterr));
    return explain(ret, make_rig(ret), "the step's rows", reterr);
}

/* ---- loop ---- */

/* All device memory is allocated now: it should be what the plan says. */
static void note_memory(const struct hzp_assembly *a)
{
    size_t own = 0;
    if (!hzp_device_host_memory(a->dev)) /* what links by NCCL hold */
        own = a->is.group ? (size_t)hzp_axes_count(&a->axes) * HZP_LINK_NCCL_BYTES
              : a->link   ? HZP_LINK_NCCL_BYTES
                          : 0;
    size_t allocated = hzp_account_bytes() + lane_bytes(a) + own;
    if (!a->is.quiet && a->plan.lines)
        hzp_log(HZP_LOG_INFO, "engine", "memory rank=%d allocated_bytes=%zu planned_bytes=%zu",
                a->is.group ? hzp_link_rank(a->is.group) : a->shards.rank, allocated,
                a->plan.total);
    struct hzp_graphs_stats kept = hzp_loop_graphs(a->loop);
    if (a->is.serving)
        hzp_driver_log(a->dev, &a->driver, &kept, a->plan.graphs, allocated);
}

/* What the loop tells the other ranks of the group with. */
static struct hzp_step_link *open_records(struct hzp_assembly *a)
{
    struct hzp_step_link_config config = {
        .link = a->axes.steps, .max = a->batch->max, .limits = hzp_assembly_step_limits(a)};
    a->records = hzp_step_link_create(&config);
    return a->records;
}

int hzp_assembly_open_loop(struct hzp_assembly *a, const struct hzp_assembly_loop *loop,
                           struct hzp_err_text *reterr)
{
    const struct hzp_serving_settings *s = a->is.serving;
    struct hzp_loop_config config = {
        .model = a->model,
        .space = a->space,
        .batch = a->batch,
        .policy = loop->policy,
        .idle_ns = loop->idle_ns,
        .trains = a->trainer || (a->is.group && a->by_link),
        .graphs = {.bytes = a->plan.graphs, .graph = a->driver.graph, .node = a->driver.node}};
    if (s) {
        config.run_ahead = (enum hzp_run_ahead)s->run_ahead;
        config.check_plans = s->check_plans != 0;
        config.plans = a->plans.entries ? &a->plans : NULL;
        config.tables = a->tables.curves ? &a->tables : NULL;
    }
    if (s && a->trainer && (a->train_cores || a->is.split->ride)) {
        shape_beside(a);
        config.beside = &a->beside;
    }
    if (loop->first)
        config.source[config.sources++] = loop->first;
    if (a->scheduler)
        config.source[config.sources++] = hzp_scheduler_source(a->scheduler);
    if (a->trainer)
        config.source[config.sources++] = hzp_trainer_source(a->trainer);
    if (a->by_link)
        config.source[config.sources++] = hzp_learner_by_link_source(a->by_link);
    if (loop->last)
        config.source[config.sources++] = loop->last;
    if (loop->elsewhere)
        config.source[config.sources++] = loop->elsewhere;
    if (a->is.group)
        config.group = open_records(a);
    int r = hzp_loop_create(&config, &a->loop);
    if (r == HZP_OK && a->is.group)
        hzp_link_set_wake(a->is.group, hzp_loop_wake, a->loop);
    if (r == HZP_OK && (a->link || a->is.group) && a->trainer)
        hzp_trainer_set_loop(a->trainer, a->loop);
    else if (r == HZP_OK && a->link)
        hzp_link_set_wake(a->link, hzp_loop_wake, a->loop);
    if (r == HZP_OK && a->tier)
        hzp_tier_set_wake(a->tier, hzp_loop_wake, a->loop);
    int64_t ready = 1;
    if (r == HZP_OK && a->is.group) /* all ranks run the steps of the warm-up */
        r = hzp_group_least(a->is.group, &ready, reterr);
    if (r == HZP_OK && (a->pool || learner_of(a)))
        r = hzp_warm_up(a->loop, a->pool, learner_of(a), a->dev);
    if (r == HZP_OK)
        note_memory(a);
    return explain(a, r, "the loop", reterr);
}

/* ---- closing ---- */

void hzp_assembly_close_device(struct hzp_assembly *a)
{
    if (a->trainer) /* its link may be another one by now */
        hzp_trainer_set_loop(a->trainer, NULL);
    else if (a->link)
        hzp_link_set_wake(a->link, NULL, NULL);
    if (a->is.group)
        hzp_link_set_wake(a->is.group, NULL, NULL);
    hzp_tier_stop(a->tier);
    hzp_axes_check(&a->axes);
    hzp_loop_destroy(a->loop);
    hzp_axes_close_steps(&a->axes);
    hzp_step_link_destroy(a->records);
    if (a->link != a->is.link && a->link != a->axes.work)
        hzp_link_close(a->link); /* ends what may still write to memory that is freed below */
    hzp_axes_close(&a->axes);
    hzp_plan_table_fini(&a->plans);
    hzp_tables_fini(&a->tables);
    hzp_rig_destroy(a->rig);
    hzp_trainer_destroy(a->trainer);
    hzp_learner_by_link_destroy(a->by_link);
    hzp_learner_by_step_destroy(a->by_step);
    hzp_scheduler_destroy(a->scheduler);
    hzp_tier_destroy(a->tier);
    hzp_batch_destroy(a->batch);
    hzp_page_table_destroy(a->pages);
    hzp_serve_space_destroy(a->space);
    hzp_kvpool_destroy(a->pool);
    hzp_model_destroy(a->model);
    hzp_weights_destroy(a->weights);
    hzp_device_close(a->dev);
    a->loop = NULL;
    a->records = NULL;
    a->rig = NULL;
    a->trainer = NULL;
    a->by_link = NULL;
    a->by_step = NULL;
    a->scheduler = NULL;
    a->tier = NULL;
    a->batch = NULL;
    a->pages = NULL;
    a->space = NULL;
    a->pool = NULL;
    a->model = NULL;
    a->weights = NULL;
    a->link = NULL;
    a->dev = NULL;
}

void hzp_assembly_close(struct hzp_assembly *a)
{
    hzp_assembly_close_device(a);
    if (a->layout_made)
        hzp_layout_free(&a->layout);
    if (a->layout_made && a->is.group)
        hzp_layout_free(&a->whole);
    hzp_structures_close(a->structures);
    hzp_tokenizer_close(a->tok);
    hzp_chat_close(a->chat);
    a->layout_made = false;
    a->structures = NULL;
    a->tok = NULL;
    a->chat = NULL;
}
