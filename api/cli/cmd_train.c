/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve train: runs the server's trainer without a server.
 *
 * There is one slot of weights, so updates are written in place; the loop's only source is the
 * trainer.  Files written:
 *
 *     OUT/checkpoint-STEP/    model directory and trainer.safetensors, the newest ones
 *     OUT/train.jsonl         one line per update
 *     OUT itself              at the end, the trained model
 *
 * A run that was stopped and resumed draws the same samples in the same order and computes the same
 * numbers as an uninterrupted one. */
#include "api/cli/commands.h"
#include "api/cli/signals.h"
#include "api/engine/exclusions.h"
#include "api/engine/fill.h"
#include "api/engine/follow.h"
#include "api/learn/checkpoint.h"
#include "api/learn/examples.h"
#include "api/learn/train_log.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "train/checks/evaluate.h"
#include "weights/model_dir.h"

#include <signal.h>
#include <sys/stat.h>

static const float init_std = 0.02f;   /* for the weights of a model from scratch */
enum { COPIED_BYTES_MAX = 256 << 20 }; /* of a tokenizer's file */
enum { DRAW_MAX = 65536, DRAWS_COUNTED_MAX = 300000000 }; /* counting those takes a few seconds */
static const uint64_t slice_ns = 100000000;               /* interval of checks for signals */

struct data {
    struct hzp_sample **sample;
    int32_t count;
};

struct run {
    const struct hzp_train_settings *settings;
    const struct hzp_engine_settings *engine; /* its device, model, training and learning */
    struct hzp_link *link;                    /* with the other ranks; NULL: there are none */
    char source_dir[PATH_MAX];                /* config.json and tokenizer files */
    struct hzp_assembly parts;
    struct hzp_sample_queue *queue;
    struct hzp_evaluator *evaluator;
    struct hzp_train_log *log;
    struct data eval;
    struct data data;                    /* the queue's samples, until pairs have their reference */
    char note[HZP_TRAINER_NOTE_MAX + 1]; /* describes the data; saved in checkpoints */
    char *options;                       /* serve.options of what it writes; NULL: none */
    int64_t total, step, saved_step, eval_step;
    struct hzp_update_report report;
    struct hzp_retention keep;
    bool updated;
    bool stopped; /* by a signal, before the last update */
    bool early;   /* stopped since evaluations do not get better */
};

static volatile sig_atomic_t stop_asked;

static void on_signal(int number)
{
    stop_asked = number;
}

/* Only the first signal is caught: a second one has its default effect and ends the process. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);  /* what a launcher of several ranks passes on */
    if (!hzp_signal_is_ignored(SIGHUP)) /* the terminal has closed */
        sigaction(SIGHUP, &action, NULL);
}

static void on_update(void *ctx, const struct hzp_update_report *report)
{
    struct run *run = ctx;
    run->report = *report;
    run->updated = true;
}

/* --- Where the model comes from --------------------------------------------------------------- */

/* Copies from_dir/name if it exists: the reader of a required file reports that it is missing. */
static int copy_file(const char *from_dir, const char *to_dir, const char *name,
                     struct hzp_err_text *reterr)
{
    char from[PATH_MAX], to[PATH_MAX], *data;
    size_t bytes;
    struct hzp_err_text err;
    snprintf(from, sizeof(from), "%s/%s", from_dir, name);
    snprintf(to, sizeof(to), "%s/%s", to_dir, name);
    int r = hzp_file_read(from, COPIED_BYTES_MAX, &data, &bytes, &err);
    if (r < 0)
        return r == HZP_ENOENT ? HZP_OK : hzp_fail(reterr, r, "%s", err.text);
    r = hzp_file_put(to, data, bytes, reterr);
    free(data);
    return r;
}

/* The directory of config.json; path names the directory or the file itself. */
static int config_dir(const char *path, char *ret, size_t size, struct hzp_err_text *reterr)
{
    struct stat st;
    snprintf(ret, size, "%s", path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return HZP_OK;
    char *slash = strrchr(ret, '/');
    if (strcmp(slash ? slash + 1 : ret, "config.json"))
        return hzp_wrong(reterr, "--from-scratch", "%s: the file must be named config.json", path);
    if (slash == ret)
        slash++;
    if (slash)
        *slash = '\0';
    else
        snprintf(ret, size, ".");
    return HZP_OK;
}

static int check_eval(const struct run *run, struct hzp_err_text *reterr)
{
    const struct hzp_train_settings *o = run->settings;
    if (run->keep.best && !o->eval_data)
        return hzp_wrong(reterr, "--keep", "best needs --eval FILE, whose loss says which is best");
    if (o->patience && (!o->eval_data || !o->eval_every))
        return hzp_fail_param(reterr, HZP_EINVAL, "--eval-every",
                              "--eval-every patience needs --eval FILE and evaluations every N "
                              "updates: --eval-every N,patience=%" PRId64,
                              o->patience);
    return HZP_OK;
}

static int choose_source(struct run *run, struct hzp_err_text *reterr)
{
    const struct hzp_learning_settings *learning = &run->engine->learning;
    HZP_TRY(hzp_retention_parse(learning->keep, &run->keep, reterr));
    HZP_TRY(check_eval(run, reterr));
    static const char *const configuration[] = {"config.json", "generation_config.json"};
    static const char *const tokenizer[] = {"tokenizer.json",          "tokenizer_config.json",
                                            "special_tokens_map.json", "added_tokens.json",
                                            "tokenizer.model",         "chat_template.jinja"};
    const struct hzp_train_settings *o = run->settings;
    char dir[PATH_MAX];
    if (!o->from_scratch) {
        run->options = hzp_options_of_copy(run->engine->model.dir, NULL);
        snprintf(run->source_dir, sizeof(run->source_dir), "%s", run->engine->model.dir);
        return HZP_OK;
    }
    HZP_TRY(config_dir(o->from_scratch, dir, sizeof(dir), reterr));
    snprintf(run->source_dir, sizeof(run->source_dir), "%s", dir);
    bool follows = run->link && hzp_link_rank(run->link); /* it needs the configuration only */
    if (!o->tokenizer_dir || follows)
        return HZP_OK;
    /* Copied to the output directory, which becomes a model directory at the end. */
    for (int i = 0; i < HZP_COUNT(configuration); i++)
        HZP_TRY(copy_file(dir, o->out, configuration[i], reterr));
    for (int i = 0; i < HZP_COUNT(tokenizer); i++)
        HZP_TRY(copy_file(o->tokenizer_dir, o->out, tokenizer[i], reterr));
    snprintf(run->source_dir, sizeof(run->source_dir), "%s", o->out);
    return HZP_OK;
}

static int open_model(struct run *run, struct hzp_err_text *reterr)
{
    struct hzp_assembly_config config = {.device = &run->engine->device,
                                         .model = &run->engine->model,
                                         .training = &run->engine->training,
                                         .source_dir = run->source_dir,
                                         .tokenizer = true,
                                         .link = run->link,
                                         .ranks = &run->engine->ranks,
                                         .executors = 1}; /* an evaluator's */
    HZP_TRY(hzp_assembly_read(&config, &run->parts, reterr));
    return hzp_assembly_open(&run->parts, 1, reterr);
}

/* --- Data ------------------------------------------------------------------------------------- */

static uint64_t hash_words(uint64_t hash, const void *word, int32_t count)
{
    for (int32_t k = 0; k < count; k++) {
        uint32_t bits;
        memcpy(&bits, (const char *)word + 4 * (size_t)k, sizeof(bits));
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    return hash;
}

/* Describes the training data, so that a resumed run cannot continue with other data. */
static void describe_data(struct run *run, const struct data *data)
{
    int64_t tokens = 0;
    uint64_t hash = HZP_FNV;
    for (int32_t i = 0; i < data->count; i++) {
        const struct hzp_sample *s = data->sample[i];
        tokens += s->count;
        for (int32_t k = 0; k < s->count; k++)
            hash = (hash ^ ((uint64_t)(uint32_t)s->token[k] << 1 | s->learn[k])) * 0x100000001b3u;
        hash = hash_words(hash, s->weight, s->weight ? s->count : 0);
        hash = hash_words(hash, s->how, s->how ? HZP_ROW_LOSS_WORDS * s->count : 0);
        hash = hash_words(hash, s->soft, HZP_SOFT_WORDS * s->softs);
        hash = (hash ^ 0xffffffffffu) * 0x100000001b3u; /* marks the end of a sample */
    }
    snprintf(run->note, sizeof(run->note),
             "seed=%" PRId64 " samples=%d tokens=%" PRId64 " data=%016" PRIx64,
             run->engine->training.seed, data->count, tokens, hash);
}

static int open_queue(struct run *run, const struct data *data, struct hzp_err_text *reterr)
{
    const struct hzp_train_settings *o = run->settings;
    struct hzp_sample_queue_config config = {.samples_max = INT32_MAX,
                                             .tokens_max = INT64_MAX,
                                             .passes = run->engine->training.total_steps
                                                           ? INT32_MAX
                                                           : (int32_t)HZP_MIN(o->epochs, INT32_MAX),
                                             .shuffle = true,
                                             .seed = (uint64_t)run->engine->training.seed};
    run->total = run->engine->training.total_steps;
    if (!run->total && o->epochs > DRAWS_COUNTED_MAX / HZP_MAX(data->count, 1))
        return hzp_fail_param(reterr, HZP_EINVAL, "--epochs",
                              "--epochs %" PRId64 " of %d examples: more than %" PRId64
                              " in total; "
                              "set the number of updates with --total-steps",
                              o->epochs, data->count, (int64_t)DRAWS_COUNTED_MAX);
    if (!run->total) {
        HZP_FREED int32_t *count = hzp_xmalloc((size_t)data->count * sizeof(*count));
        for (int32_t i = 0; i < data->count; i++)
            count[i] = data->sample[i]->count;
        run->total = hzp_sample_queue_count_draws(&config, count, data->count,
                                                  run->parts.plan.recipe.update_tokens, DRAW_MAX);
    }
    if (hzp_sample_queue_create(&config, &run->queue) < 0)
        return hzp_fail(reterr, HZP_EINVAL, "--epochs %" PRId64 " is out of range", o->epochs);
    hzp_sample_queue_restore(run->queue, data->sample, data->count);
    return HZP_OK;
}

static int open_data(struct run *run, struct hzp_err_text *reterr)
{
    const struct hzp_train_settings *o = run->settings;
    struct hzp_examples examples;
    struct data data = {0};
    int32_t longest = hzp_recipe_rows(&run->parts.plan.recipe);
    int32_t rows = HZP_MIN(longest, run->parts.plan.positions);
    hzp_examples_init(&examples, run->parts.tok, &run->parts.config, rows + 1, 0);
    examples.piece_tokens = HZP_MIN(rows, run->parts.plan.recipe.micro_rows) + 1;
    examples.chat = run->parts.chat;
    examples.fields = o->fields;
    examples.too_long = (enum hzp_too_long)(1 + o->too_long);
    examples.pairs = true;
    int r =
        hzp_examples_load_option(&examples, o->data, "--data", &data.sample, &data.count, reterr);
    examples.pairs = false;
    examples.endless = true; /* as `hzpserve eval` counts them */
    if (r >= 0 && o->eval_data)
        r = hzp_examples_load_option(&examples, o->eval_data, "--eval", &run->eval.sample,
                                     &run->eval.count, reterr);
    hzp_examples_fini(&examples);
    if (r < 0) {
        hzp_examples_free(data.sample, data.count);
        return r;
    }
    describe_data(run, &data);
    r = open_queue(run, &data, reterr);
    if (r < 0)
        hzp_examples_free(data.sample, data.count);
    else
        run->data = data; /* the queue owns the samples now */
    return r;
}

/* --- Starting and resuming -------------------------------------------------------------------- */

static int open_trainer(struct run *run, struct hzp_err_text *reterr)
{
    struct hzp_recipe *recipe = &run->parts.plan.recipe;
    recipe->total_steps = recipe->schedule == HZP_LR_COSINE ? run->total : 0;
    recipe->publish_every = 1;
    HZP_TRY(hzp_assembly_open_trainer(&run->parts, run->queue, on_update, run, reterr));
    if (!run->eval.count)
        return HZP_OK;
    if (!hzp_shards_whole(&run->parts.shards))
        return hzp_wrong(reterr, "--eval",
                         "needs whole weights on each rank: use --shard z3=1,stages=1");
    int r = hzp_evaluator_create(run->parts.model, recipe->micro_rows, false, &run->evaluator);
    return r < 0 ? hzp_fail(reterr, r, "not enough memory for the evaluation") : HZP_OK;
}

/* Compares the notes; the error names the first word that differs. */
static int compare_notes(const char *dir, const char *then, const char *now,
                         struct hzp_err_text *reterr)
{
    while (*then || *now) {
        int a = (int)strcspn(then, " "), b = (int)strcspn(now, " ");
        if (a != b || memcmp(then, now, (size_t)a))
            return hzp_fail(reterr, HZP_EINVAL,
                            "%s: the run was started with other data or another order: %.*s, now "
                            "%.*s",
                            dir, a, then, b, now);
        then += a + (then[a] == ' ');
        now += b + (now[b] == ' ');
    }
    return HZP_OK;
}

static int resume(struct run *run, uint64_t number, struct hzp_version *draft,
                  struct hzp_err_text *reterr)
{
    char dir[PATH_MAX], note[HZP_TRAINER_NOTE_MAX + 1];
    struct hzp_model_config config;
    snprintf(dir, sizeof(dir), "%s/checkpoint-%" PRIu64, run->settings->out, number);
    HZP_TRY(hzp_config_read(dir, &config, reterr));
    if (config.disk_type != run->parts.plan.dtype)
        return hzp_fail_param(reterr, HZP_EINVAL, "--dtype",
                              "%s: the run was started with --dtype %s, now it is %s", dir,
                              config.disk_type == HZP_BF16 ? "bf16" : "f32",
                              run->parts.plan.dtype == HZP_BF16 ? "bf16" : "f32");
    HZP_TRY(hzp_fill_load(run->parts.weights, draft, dir, reterr));
    HZP_TRY(hzp_trainer_load(run->parts.trainer, draft, dir, true, note, reterr));
    HZP_TRY(compare_notes(dir, note, run->note, reterr));
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(run->parts.trainer, &stats);
    const struct hzp_sample **drawn = hzp_xcalloc(DRAW_MAX, sizeof(*drawn));
    int64_t draws = 0;
    while (draws < stats.draws &&
           hzp_sample_queue_draw(run->queue, run->parts.plan.recipe.update_tokens, drawn,
                                 DRAW_MAX) > 0) {
        hzp_sample_queue_done(run->queue);
        draws++;
    }
    free(drawn);
    if (draws < stats.draws)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s/trainer.safetensors: says that %" PRId64
                        " updates were drawn, but the data "
                        "have only %" PRId64,
                        dir, stats.draws, draws);
    run->step = run->saved_step = stats.optimizer_step;
    return HZP_OK;
}

/* Initializes the draft with random weights. */
static int init_weights(struct run *run, struct hzp_version *draft)
{
    return hzp_model_init(run->parts.dev, hzp_version_units(run->parts.weights, draft),
                          (uint64_t)run->engine->training.seed, init_std);
}

/* The weights that the run begins with, or began with. */
static int fill_first(struct run *run, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    if (!run->settings->from_scratch)
        return hzp_fill_load(run->parts.weights, draft, run->engine->model.dir, reterr);
    HZP_TRY(init_weights(run, draft));
    draft->record.loss = NAN;
    return HZP_OK;
}

/* Pairs are compared with the model that the run begins with, also when it is resumed. */
static int refer(struct run *run, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    struct hzp_evaluator *evaluator;
    struct hzp_sample **sample = run->data.sample;
    int32_t rows = 0;
    for (int32_t i = 0; i < run->data.count; i++)
        if (hzp_sample_first(sample[i]) < sample[i]->count)
            rows = HZP_MAX(rows, sample[i]->count);
    if (!rows)
        return HZP_OK;
    if (!hzp_shards_whole(&run->parts.shards))
        return hzp_fail_param(reterr, HZP_EINVAL, "--shard",
                              "pairs of answers need whole weights on each rank: use --shard "
                              "z3=1,stages=1");
    HZP_TRY(fill_first(run, draft, reterr));
    int r = hzp_evaluator_create(run->parts.model, rows, false, &evaluator);
    HZP_TRY(r);
    for (int32_t i = 0; i < run->data.count && r >= 0; i++)
        if (hzp_sample_first(sample[i]) < sample[i]->count)
            r = hzp_evaluator_refer(evaluator, draft, sample[i]);
    hzp_evaluator_destroy(evaluator);
    return r < 0 ? hzp_fail(reterr, r, "pairs could not be computed before they are learned") : r;
}

static int fill(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    struct run *run = ctx;
    const struct hzp_train_settings *o = run->settings;
    uint64_t newest = hzp_checkpoint_newest(o->out);
    if (o->resume && !newest)
        return hzp_fail_param(reterr, HZP_ENOENT, "--resume",
                              "%s: there is no checkpoint to resume from", o->out);
    if (newest && !o->resume)
        return hzp_fail_param(reterr, HZP_EINVAL, "--out",
                              "%s: holds checkpoint-%" PRIu64 " of another run; continue it with "
                              "--resume or choose another --out",
                              o->out, newest);
    HZP_TRY(refer(run, draft, reterr));
    return o->resume ? resume(run, newest, draft, reterr) : fill_first(run, draft, reterr);
}

/* The same on a rank other than 0, whose weights are sharded: from the same files. */
static int fill_shards(void *ctx, struct hzp_assembly *a, struct hzp_version *draft,
                       struct hzp_err_text *reterr)
{
    struct run *run = ctx;
    const struct hzp_train_settings *o = run->settings;
    char dir[PATH_MAX];
    if (o->resume) {
        snprintf(dir, sizeof(dir), "%s/checkpoint-%" PRIu64, o->out, hzp_checkpoint_newest(o->out));
        HZP_TRY(hzp_fill_load(a->weights, draft, dir, reterr));
        /* Rank 0 compares the recipe, whose last step it alone knows. */
        return hzp_learner_by_link_load(a->by_link, draft, dir, false, reterr);
    }
    if (!o->from_scratch)
        return hzp_fill_load(a->weights, draft, run->engine->model.dir, reterr);
    return hzp_model_init(a->dev, hzp_version_units(a->weights, draft),
                          (uint64_t)run->engine->training.seed, init_std);
}

/* A rank other than 0, from its start to its end. */
static int follow(struct run *run, struct hzp_err_text *reterr)
{
    struct hzp_follow_config config = {
        .settings = run->engine, .link = run->link, .fill = fill_shards, .ctx = run};
    HZP_TRY(choose_source(run, reterr));
    config.source_dir = run->source_dir;
    return hzp_follow(&config, reterr);
}

static int open_log(struct run *run, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    const struct hzp_train_settings *o = run->settings;
    snprintf(path, sizeof(path), "%s/train.jsonl", o->out);
    HZP_TRY(hzp_train_log_open(path, run->step, run->total, &run->log, reterr));
    struct hzp_assembly_loop loop = {.idle_ns = slice_ns};
    HZP_TRY(hzp_assembly_open_loop(&run->parts, &loop, reterr));
    fprintf(stderr,
            "training %s: %" PRId64 " parameters in %s on %s; %s; updates %" PRId64 " to %" PRId64
            "\n",
            run->source_dir, hzp_config_parameters(&run->parts.config),
            run->parts.plan.dtype == HZP_BF16 ? "bf16" : "f32", run->parts.dev->label, run->note,
            run->step + 1, run->total);
    return HZP_OK;
}

static int open_run(struct run *run, struct hzp_err_text *reterr)
{
    size_t existed;
    HZP_TRY(hzp_dir_make(run->settings->out, &existed, reterr));
    int r;
    HZP_TRY_GOTO(choose_source(run, reterr));
    HZP_TRY_GOTO(open_model(run, reterr));
    HZP_TRY_GOTO(open_data(run, reterr));
    HZP_TRY_GOTO(open_trainer(run, reterr));
    HZP_TRY_GOTO(hzp_assembly_fill(&run->parts, fill, run, reterr));
    HZP_TRY_GOTO(hzp_trainer_send_start_state(run->parts.trainer, reterr));
    HZP_TRY_GOTO(open_log(run, reterr));
    return HZP_OK;
out:
    hzp_dir_unmake(run->settings->out, existed);
    return r;
}

static void close_run(struct run *run)
{
    hzp_train_log_close(run->log);
    hzp_evaluator_destroy(run->evaluator);
    hzp_assembly_close_device(&run->parts);
    hzp_sample_queue_destroy(run->queue);
    hzp_examples_free(run->eval.sample, run->eval.count);
    free(run->data.sample);
    hzp_assembly_close(&run->parts);
}

/* --- Running ---------------------------------------------------------------------------------- */

/* One turn of the loop; where only other ranks can go on, it sleeps for a while.  0: there is
 * nothing to do. */
static int turn(struct run *run, struct hzp_err_text *reterr)
{
    struct hzp_trainer_stats stats;
    int r = hzp_loop_turn(run->parts.loop);
    if (r < 0)
        return hzp_fail(reterr, r, "the device failed");
    if (r > 0 || !run->link)
        return r;
    hzp_trainer_read_stats(run->parts.trainer, &stats);
    if (stats.failure[0])
        return hzp_fail(reterr, HZP_EIO, "%s; the newest checkpoint is of update %" PRId64,
                        stats.failure, run->saved_step);
    if (!hzp_trainer_awaits_ranks(run->parts.trainer))
        return 0;
    hzp_loop_sleep(run->parts.loop, slice_ns);
    return 1;
}

/* With several ranks the next update's micro-batches may be in progress: lets them end, without
 * beginning that update, so that the state may be saved. */
static int rest(struct run *run, struct hzp_err_text *reterr)
{
    int r = 1;
    struct hzp_border border = hzp_loop_border(run->parts.loop);
    hzp_trainer_freeze(run->parts.trainer, &border);
    while (r > 0 && !hzp_trainer_rests(run->parts.trainer))
        r = turn(run, reterr);
    border = hzp_loop_border(run->parts.loop);
    hzp_trainer_thaw(run->parts.trainer, &border);
    return HZP_MIN(r, 0);
}

static int save(struct run *run, struct hzp_err_text *reterr)
{
    if (run->step == run->saved_step)
        return HZP_OK;
    HZP_TRY(rest(run, reterr));
    struct hzp_train_state state;
    hzp_trainer_state(run->parts.trainer, hzp_weights_current(run->parts.weights), &state);
    HZP_TRY(hzp_checkpoint_write(run->settings->out, (uint64_t)run->step, &state, run->source_dir,
                                 run->options, run->note, reterr));
    char best[64];
    const char *needed = best;
    snprintf(best, sizeof(best), "checkpoint-%" PRId64, hzp_train_log_best(run->log).step);
    hzp_checkpoint_prune(run->settings->out, &run->keep, &needed, run->keep.best);
    run->saved_step = run->step;
    return HZP_OK;
}

static int evaluate(struct run *run, struct hzp_err_text *reterr)
{
    double loss;
    int64_t tokens;
    if (!run->evaluator || run->eval_step == run->step)
        return HZP_OK;
    int r = hzp_evaluator_run(run->evaluator, hzp_weights_current(run->parts.weights),
                              run->eval.sample, run->eval.count, &loss, &tokens);
    if (r < 0)
        return hzp_fail(reterr, r, "evaluation failed: %s", hzp_err_name(r));
    run->eval_step = run->step;
    hzp_train_log_eval(run->log, run->step, loss, tokens);
    struct hzp_train_best best = hzp_train_log_best(run->log);
    run->early = run->settings->patience && best.since >= run->settings->patience;
    return run->keep.best && run->step && best.step == run->step ? save(run, reterr) : HZP_OK;
}

static int after_update(struct run *run, struct hzp_err_text *reterr)
{
    const struct hzp_train_settings *o = run->settings;
    const struct hzp_update_report *report = &run->report;
    run->updated = false;
    hzp_train_log_update(run->log, report);
    if (report->broken)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "update %" PRId64 ": the weights are no longer finite; the newest "
                        "checkpoint in %s is of update %" PRId64,
                        report->optimizer_step, o->out, run->saved_step);
    if (report->skipped) {
        hzp_train_log_line(run->log);
        fprintf(stderr, "update %" PRId64 ": the gradients are not finite; %s\n",
                report->optimizer_step,
                report->dropped ? "these samples are skipped" : "retrying once");
        return HZP_OK;
    }
    run->step = report->optimizer_step;
    if (o->eval_every && run->step % o->eval_every == 0)
        HZP_TRY(evaluate(run, reterr));
    if (run->engine->learning.checkpoint_every &&
        run->step % run->engine->learning.checkpoint_every == 0)
        HZP_TRY(save(run, reterr));
    return HZP_OK;
}

static int train(struct run *run, struct hzp_err_text *reterr)
{
    if (!run->settings->resume) {
        run->eval_step = -1;
        HZP_TRY(evaluate(run, reterr));
    }
    int r = 1;
    while (run->step < run->total && r > 0 && !stop_asked && !run->early) {
        r = turn(run, reterr);
        HZP_TRY(r);
        if (run->updated)
            HZP_TRY(after_update(run, reterr));
    }
    while ((stop_asked || run->early) && !hzp_trainer_idle(run->parts.trainer)) {
        r = turn(run, reterr); /* lets an update that has begun finish */
        HZP_TRY(r);
        if (run->updated)
            HZP_TRY(after_update(run, reterr));
    }
    return HZP_OK;
}

/* Makes the checkpoint of the lowest evaluation loss the result. */
static int take_best(struct run *run, struct hzp_err_text *reterr)
{
    char dir[PATH_MAX];
    struct hzp_train_best best = hzp_train_log_best(run->log);
    if (!run->keep.best || !best.step)
        return HZP_OK;
    snprintf(dir, sizeof(dir), "%s/checkpoint-%" PRId64, run->settings->out, best.step);
    if (best.step != run->step)
        HZP_TRY(hzp_checkpoint_copy_weights(dir, run->settings->out, reterr));
    fprintf(stderr, "best: eval_loss=%.4f after update %" PRId64 ", whose weights are the result\n",
            best.loss, best.step);
    return HZP_OK;
}

static int finish(struct run *run, struct hzp_err_text *reterr)
{
    const struct hzp_train_settings *o = run->settings;
    bool stopped = run->stopped = stop_asked && run->step < run->total && !run->early;
    if (!stopped)
        HZP_TRY(evaluate(run, reterr));
    hzp_train_log_line(run->log);
    hzp_train_log_use(run->log);
    HZP_TRY(rest(run, reterr));
    HZP_TRY(save(run, reterr));
    if (stopped && run->step == 0) {
        fprintf(stderr, "stopped before the first update; nothing was saved\n");
        return HZP_OK;
    }
    if (stopped) {
        fprintf(stderr,
                "stopped after update %" PRId64 " of %" PRId64 ", saved in %s/checkpoint-%" PRId64
                "; continue with the same command and --resume\n",
                run->step, run->total, o->out, run->step);
        return HZP_OK;
    }
    struct hzp_train_state state;
    hzp_trainer_state(run->parts.trainer, hzp_weights_current(run->parts.weights), &state);
    HZP_TRY(hzp_checkpoint_save_model(o->out, &state.source, run->source_dir, run->options, NULL,
                                      reterr));
    if (run->early)
        fprintf(stderr,
                "stopped early: %" PRId64 " evaluations in a row have not lowered the loss\n",
                hzp_train_log_best(run->log).since);
    HZP_TRY(take_best(run, reterr));
    fprintf(stderr, "done: %" PRId64 " updates, the model is in %s\n", run->step, o->out);
    return HZP_OK;
}

/* Trains, on this rank, until the run ends or a rank is lost: the exit status, HZP_LAUNCH_LOST for
 * the latter. */
static int run_once(const struct hzp_train_settings *settings,
                    const struct hzp_engine_settings *engine, struct hzp_ranks *ranks)
{
    HZP_FREED struct run *run = hzp_xcalloc(1, sizeof(*run));
    struct hzp_err_text text = {{0}, {0}};
    run->settings = settings;
    run->engine = engine;
    run->link = ranks->link;
    bool leads = !run->link || hzp_link_rank(run->link) == 0;
    int r = leads ? open_run(run, &text) : follow(run, &text);
    if (r >= 0 && leads)
        r = train(run, &text);
    if (r >= 0 && leads)
        r = finish(run, &text);
    if (r >= 0 && leads)
        hzp_trainer_dismiss_ranks(run->parts.trainer);
    if (run->log)
        hzp_train_log_line(run->log);
    if (r < 0)
        fprintf(stderr, "hzpserve train: %s\n", text.text[0] ? text.text : hzp_err_name(r));
    close_run(run);
    bool stopped = r >= 0 && run->stopped;
    free(run->options);
    bool lost = r < 0 && hzp_ranks_lost(ranks);
    return lost                               ? HZP_LAUNCH_LOST
           : stopped                          ? 128 + (int)stop_asked
           : r == HZP_EINVAL && text.param[0] ? 2
                                              : r < 0;
}

/* Whether this rank is to end while it waits for others.  Rank 0 alone gets signals. */
static bool is_stopped(void *ctx)
{
    return stop_asked != 0;
}

/* The exit status of a run that was stopped while a rank was missing.  Its shards are missing, too,
 * so the newest checkpoint is what there is. */
static int stopped_waiting(const struct hzp_train_settings *settings)
{
    uint64_t newest = hzp_checkpoint_newest(settings->out);
    if (newest)
        fprintf(stderr,
                "stopped while a rank was missing; %s/checkpoint-%" PRIu64
                " stands; continue with the same command and --resume\n",
                settings->out, newest);
    else
        fprintf(stderr, "stopped while a rank was missing; nothing was saved\n");
    return 128 + (int)stop_asked;
}

/* The same, and again from the newest checkpoint when a rank was lost and another has taken its
 * place, which the launcher starts. */
static int run_on_ranks(const struct hzp_options *options, struct hzp_train_settings *settings,
                        struct hzp_ranks *ranks)
{
    struct hzp_engine_settings engine = options->engine;
    engine.device.threads = hzp_cmd_ranks_threads(options, ranks);
    bool again = hzp_launch_again();
    for (int64_t left = engine.ranks.restarts;; left--) {
        if (again && hzp_checkpoint_newest(settings->out))
            settings->resume = 1;
        int status = run_once(settings, &engine, ranks);
        if (status != HZP_LAUNCH_LOST || stop_asked || left <= 0 || !hzp_ranks_may_rejoin(ranks))
            return status;
        hzp_log(HZP_LOG_WARN, "ranks",
                "waiting rank=%d left=%" PRId64 ": for one in place of the lost", ranks->rank,
                left - 1);
        status = hzp_cmd_ranks_rejoin(options, is_stopped, NULL, ranks);
        if (status && stop_asked)
            return stopped_waiting(settings);
        if (status)
            return status;
        again = true;
    }
}

int hzp_cmd_train(const struct hzp_options *options)
{
    struct hzp_train_settings settings = options->train;
    const struct hzp_train_settings *o = &settings;
    const char *model = options->engine.model.dir;
    const char *wrong = !o->data  ? "no training data given; use --data FILE"
                        : !o->out ? "no output directory given; use --out DIR"
                        : !model && !o->from_scratch
                            ? "no model given; name a directory, or use --from-scratch config.json"
                        : model && o->from_scratch
                            ? "give either a model or --from-scratch, not both"
                            : NULL;
    struct hzp_options plain;
    hzp_options_defaults(HZP_COMMAND_TRAIN, &plain);
    if (!o->algo && options->words > 1) {
        fprintf(stderr, "hzpserve: train: \"%s\": a reward needs --algo NAME\n", options->word[1]);
        return 2;
    }
    if (!wrong && !o->algo &&
        (options->json || memcmp(&options->rollout, &plain.rollout, sizeof(plain.rollout)) != 0))
        wrong = "--n, --max-tokens, --extra-body and --json need --algo NAME";
    if (wrong) {
        fprintf(stderr, "hzpserve train: %s\n", wrong);
        return 2;
    }
    if (o->algo)
        return hzp_cmd_train_rollouts(options);
    struct hzp_ranks ranks;
    struct hzp_err_text text;
    int status = hzp_cmd_ranks_start(options, NULL);
    if (status >= 0)
        return status;
    catch_signals();
    status = hzp_cmd_ranks_open(options, NULL, is_stopped, NULL, &ranks);
    if (status)
        return stop_asked ? stopped_waiting(&settings) : status;
    if (ranks.rank) { /* rank 0 gets signals, too, and lets all end in order */
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
        signal(SIGUSR1, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
    }
    if (hzp_exclusions_check(&options->engine, ranks.ranks, &text) < 0) {
        fprintf(stderr, "hzpserve train: %s\n", text.text);
        status = 2;
    } else {
        status = run_on_ranks(options, &settings, &ranks);
    }
    hzp_ranks_close(&ranks);
    return status;
}
