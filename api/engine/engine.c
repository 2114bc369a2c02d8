/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/engine.h"

#include "api/engine/fill.h"
#include "api/engine/group.h"
#include "api/engine/exclusions.h"
#include "api/learn/fingerprint.h"
#include "base/log.h"

enum phase { OPENING, RUNNING, ENDED };
enum { OBSERVED_NS = 500000000 }; /* a version waits no longer for what is measured of it */

struct hzp_engine_thread {
    pthread_t thread;
    struct hzp_lock lock;
    pthread_cond_t changed; /* monotonic clock */
    /* under lock */
    enum phase phase;
    int result;
    bool close;
    struct hzp_err_text err;
};

/* ---- opening and closing: engine thread ---- */

/* Called between two steps when an update has ended. */
static void on_update(void *ctx, const struct hzp_update_report *report)
{
    struct hzp_engine *e = ctx;
    hzp_state_update(e->state, report);
    if (e->config.on_update)
        e->config.on_update(e->config.ctx, report);
}

/* Fills the first version: from the newest checkpoint, with the trainer's state, or from the
 * model. */
static int fill(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    struct hzp_engine *e = ctx;
    const char *model = e->parts.source_dir;
    int r = hzp_fill_load(e->parts.weights, draft,
                          e->state ? hzp_state_weights_dir(e->state) : model, reterr);
    if (r >= 0 && e->state)
        r = hzp_state_restore(e->state, e->parts.trainer, draft, reterr);
    if (r == HZP_EFORMAT && e->state) /* the other ranks of a group begin with this start only */
        e->again = hzp_state_set_aside(e->state, reterr ? reterr->text : "") && !e->parts.is.group;
    return r;
}

/* Takes replicas in, which are compared with what this rank is. */
static int start_front(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    struct hzp_assembly *a = &e->parts;
    struct hzp_front_parts parts = {
        .scheduler = a->scheduler, .loop = a->loop, .weights = a->weights, .model = a->model};
    HZP_TRY(hzp_assembly_hello(a, &parts.own, reterr));
    int r = hzp_front_start(e->front, &parts);
    return r < 0 ? hzp_fail(reterr, r, "cannot start the thread of replicas: %s", hzp_err_name(r))
                 : r;
}

/* The other ranks of a group begin with the version that the state names. */
static int tell_members(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    struct hzp_group_start start = {.first_id = hzp_state_first_id(e->state),
                                    .learned = hzp_state_resumes(e->state)};
    const char *dir = hzp_state_weights_dir(e->state);
    if (!realpath(dir, start.dir)) /* which names no directory: the load says so */
        snprintf(start.dir, sizeof(start.dir), "%s", dir);
    return hzp_group_tell_start(e->parts.is.group, &start, reterr);
}

/* Listens for the other sites. */
static int open_sites(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_mesh_settings *m = &e->config.settings->mesh;
    struct hzp_assembly *a = &e->parts;
    const char *key = getenv("HZP_MESH_KEY");
    char shapes[HZP_FINGERPRINT_SIZE], model[HZP_FINGERPRINT_SIZE + 16];
    if (!m->url.count)
        return HZP_OK;
    hzp_fingerprint_shapes(&a->layout, a->tok, shapes);
    snprintf(model, sizeof(model), "%s %d", shapes, a->plan.dtype);
    struct hzp_sites_config config = {.url = m->url.item,
                                      .sites = m->url.count,
                                      .key = key && *key ? key : NULL,
                                      .share = m->part,
                                      .rounds = {.coding = m->send ? HZP_SITE_F32 : HZP_SITE_INT8,
                                                 .ema = m->rule,
                                                 .every = m->every,
                                                 .delay = m->delay,
                                                 .quorum = (int)m->quorum,
                                                 .join = (int32_t)m->join,
                                                 .limit_ns = (uint64_t)(m->limit * 1e9)},
                                      .model = model,
                                      .layout = &a->layout};
    return hzp_sites_open(&config, &e->sites, reterr);
}

static int open_parts(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    struct hzp_assembly *a = &e->parts;
    struct hzp_assembly_loop loop = {.policy = e->policy,
                                     .idle_ns = (uint64_t)(e->config.settings->split.idle_ms * 1e6),
                                     .first = e->config.first,
                                     .last = e->config.source};
    a->gate = e->state ? hzp_state_gate(e->state) : NULL;
    a->trials = e->trials ? e->trials : e->observed;
    if (a->is.group)
        HZP_TRY(hzp_group_agree_learning(a->is.group, a->is.training != NULL, reterr));
    if (a->is.group && e->state)
        HZP_TRY(tell_members(e, reterr));
    HZP_TRY(hzp_assembly_open(a, e->state ? hzp_state_first_id(e->state) : 1, reterr));
    HZP_TRY(open_sites(e, reterr));
    a->sites = e->sites;
    if (e->state)
        HZP_TRY(hzp_assembly_open_trainer(a, hzp_state_queue(e->state), on_update, e, reterr));
    HZP_TRY(hzp_assembly_fill(a, fill, e, reterr));
    if (e->state)
        HZP_TRY(hzp_trainer_send_start_state(a->trainer, reterr));
    HZP_TRY(hzp_assembly_open_serving(a, reterr));
    if (e->config.replicas) {
        HZP_TRY(hzp_front_create(e->config.replicas, &e->front, reterr));
        loop.elsewhere = hzp_front_source(e->front);
    }
    HZP_TRY(hzp_assembly_open_loop(a, &loop, reterr));
    if (e->front)
        HZP_TRY(start_front(e, reterr));
    if (!e->state)
        return HZP_OK;
    if (a->plan.copies)
        hzp_state_copy_checkpoints(e->state);
    int r = hzp_state_start(e->state, a->trainer, a->model, a->loop);
    if (r < 0)
        return hzp_fail(reterr, r, "cannot start the file thread: %s", hzp_err_name(r));
    r = hzp_trainer_start_sites(a->trainer, a->loop);
    return r < 0 ? hzp_fail(reterr, r, "cannot start the sites' thread: %s", hzp_err_name(r)) : r;
}

static void enter(struct hzp_engine_thread *t, enum phase phase, int result)
{
    HZP_LOCKED(&t->lock);
    t->phase = phase;
    t->result = result;
    pthread_cond_broadcast(&t->changed);
}

/* Whether other ranks are missing.  Their shards of the state are too, so there is no checkpoint at
 * the end: the newest one stands, and what was learned since is learned again. */
static bool ranks_failed(struct hzp_engine *e)
{
    struct hzp_trainer_stats trainer;
    struct hzp_state_stats state;
    hzp_trainer_read_stats(e->parts.trainer, &trainer);
    if (!trainer.failure[0] && !(e->config.ranks && hzp_ranks_lost(e->config.ranks)))
        return false;
    hzp_state_read_stats(e->state, &state);
    hzp_log(HZP_LOG_WARN, "engine",
            "no last checkpoint, because ranks are missing: checkpoint=%llu stands",
            (unsigned long long)state.checkpoint_id);
    return true;
}

static void *engine_main(void *arg)
{
    struct hzp_engine *e = arg;
    struct hzp_engine_thread *t = e->thread;
    int r = open_parts(e, &t->err);
    if (r == HZP_OK) {
        enter(t, RUNNING, HZP_OK);
        r = hzp_loop_run(e->parts.loop);
        hzp_front_finish(e->front);
        hzp_scheduler_abort(e->parts.scheduler);
        if (e->state) {
            hzp_trainer_end_sites(e->parts.trainer);
            bool failed = ranks_failed(e);
            int kept = hzp_state_stop(e->state, r == HZP_OK && !failed);
            if (kept == HZP_EIO && !failed && ranks_failed(e)) /* while it was being written */
                kept = HZP_OK;
            r = r < 0 ? r : kept;
            hzp_trainer_dismiss_ranks(e->parts.trainer);
        }
    }
    enter(t, ENDED, r);
    hzp_lock_take(&t->lock);
    while (!t->close)
        pthread_cond_wait(&t->changed, &t->lock.mutex);
    hzp_lock_release(&t->lock);
    hzp_front_destroy(e->front);
    hzp_assembly_close_device(&e->parts);
    return NULL;
}

/* ---- the handle: its owner's thread ---- */

static void free_engine(struct hzp_engine *e)
{
    if (e->thread) {
        pthread_cond_destroy(&e->thread->changed);
        hzp_lock_fini(&e->thread->lock);
        free(e->thread);
    }
    hzp_state_close(e->state);
    hzp_assembly_close(&e->parts);
    hzp_sites_close(e->sites);
    hzp_trials_destroy(e->trials);
    hzp_trials_destroy(e->observed);
    free(e);
}

static int open_state(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_learning_settings *l = &e->config.settings->learning;
    int64_t micro_rows = e->config.settings->training.micro_rows;
    struct hzp_state_config state = {
        .state_dir = l->state_dir,
        .model_dir = e->config.settings->model.dir,
        .tok = e->parts.tok,
        .chat = e->parts.chat,
        .layout = hzp_assembly_whole(&e->parts),
        .queue = {.samples_max = (int32_t)HZP_MIN(l->queue_samples, INT32_MAX),
                  .tokens_max = l->queue_tokens,
                  .passes = (int32_t)l->passes,
                  .by_lesson = e->by_lesson,
                  .replay_ratio = l->replay ? l->replay_ratio : 0,
                  .rehearse_ratio = l->rehearse_ratio,
                  .seed = (uint64_t)e->config.settings->training.seed},
        .replay = l->replay,
        .micro_rows = (int32_t)HZP_MIN(micro_rows, e->parts.config.positions),
        .sdft = l->sdft,
        .body_samples_max = (int32_t)HZP_MIN(l->queue_samples, 65536),
        .checkpoint_every = l->checkpoint_every,
        .gate = l->gate,
        .gate_max_rise = l->gate_max_rise,
        .keep = l->keep,
        .options = e->config.checkpoint_options,
        .log_updates = e->config.log_updates,
        .provisional = e->config.provisional,
    };
    return hzp_state_open(&state, &e->state, reterr);
}

static bool keeps_checkpoints(const struct hzp_engine_settings *s)
{
    const char *dir = s->learning.state_dir;
    return !s->no_train && !s->learning.no_checkpoint_copy && !(dir && !strcmp(dir, "none"));
}

/* What a lesson changes is measured before its last version is published, where that can be: where
 * rank 0 has the whole draft. */
static void open_observed(struct hzp_engine *e, int32_t slots, bool whole)
{
    const struct hzp_engine_settings *s = e->config.settings;
    const struct hzp_trials_config config = {
        .measured = true, .observes = true, .time_ns = OBSERVED_NS, .requests = 1};
    if (whole && slots > 1 && !s->no_train && e->config.effects && s->learning.effect > 0 &&
        s->training.publish_every == 1 && !s->mesh.url.count)
        e->observed = hzp_trials_create(&config);
}

/* whole: each rank has all of the weights. */
static int open_trials(struct hzp_engine *e, int32_t slots, bool whole, struct hzp_err_text *reterr)
{
    const struct hzp_engine_settings *s = e->config.settings;
    const struct hzp_canary_settings *canary = &s->canary;
    bool bounds = hzp_settings_bounds_effect(s), share = canary->share > 0;
    if (s->learning.max_effect > 0 && s->learning.max_effect < 1 && !s->learning.effect)
        return hzp_wrong(reterr, "--max-effect",
                         "needs --effect 1 or more: there is nothing to ask");
    if (s->no_train || (!share && !bounds)) {
        open_observed(e, slots, whole);
        return HZP_OK;
    }
    if (share && (slots < 3 || !(s->serving.pin_seconds > 0)))
        return hzp_wrong(reterr, "--canary", "needs --slots 3 or more (here %d), and --pin-seconds",
                         slots);
    if (share && canary->seconds >= s->serving.weights_timeout)
        hzp_log(HZP_LOG_WARN, "engine",
                "--canary seconds=%g is not below --weights-timeout %g: requests that wait for "
                "what was just taught may wait in vain",
                canary->seconds, s->serving.weights_timeout);
    struct hzp_trials_config config = {.share = canary->share,
                                       .measured = bounds,
                                       .time_ns =
                                           share ? (uint64_t)(canary->seconds * 1e9) : UINT64_MAX,
                                       .requests = canary->requests,
                                       .max_drop = canary->max_drop,
                                       .max_score_drop = canary->max_score_drop};
    e->trials = hzp_trials_create(&config);
    return HZP_OK;
}

/* Without a prefix cache the options of one would do nothing. */
static int check_prefix(const struct hzp_serving_settings *s, struct hzp_err_text *reterr)
{
    const char *option = s->reuse_stale   ? "--prefix-reuse-stale"
                         : s->rewarm      ? "--prefix-rewarm"
                         : s->prefix_host ? "--prefix-bytes host"
                         : s->prefix_dir  ? "--prefix-file"
                                          : NULL;
    if (!s->no_prefix_cache || !option)
        return HZP_OK;
    return hzp_wrong(reterr, option, "has no effect with --no-prefix-cache: leave out one of them");
}

/* Reads what needs no device: policy, configuration, tokenizer, and the state of an earlier run. */
static int read_host_parts(struct hzp_engine *e, struct hzp_err_text *reterr)
{
    const struct hzp_engine_settings *s = e->config.settings;
    int32_t slots = e->config.slots;
    if (!slots)
        slots = s->no_train ? 1 : (int32_t)s->serving.slots;
    bool replaced = slots > 1, pins = slots > 2 && s->serving.pin_seconds > 0;
    if (s->serving.consistency == HZP_PINNED && replaced && !pins)
        return hzp_wrong(reterr, "--consistency",
                         "pinned needs --slots 3 or more, and --pin-seconds");
    bool group = s->ranks.tensor > 1;
    int ranks = e->config.replicas ? e->config.replicas->ranks
                : e->config.link   ? hzp_link_ranks(e->config.link)
                                   : 1;
    e->by_lesson = !s->no_train && hzp_settings_by_lesson(s);
    struct hzp_assembly_config config = {.device = &s->device,
                                         .model = &s->model,
                                         .serving = &s->serving,
                                         .training = s->no_train ? NULL : &s->training,
                                         .split = &s->split,
                                         .tokenizer = true,
                                         .slots = slots,
                                         .max_staleness = (int32_t)s->training.max_staleness,
                                         .link = s->no_train || group ? NULL : e->config.link,
                                         .group = group ? e->config.link : NULL,
                                         .ranks = &s->ranks,
                                         .serves = true,
                                         .gated = e->by_lesson,
                                         .copies = keeps_checkpoints(s),
                                         .quiet = e->config.quiet};
    HZP_TRY(hzp_exclusions_check(s, ranks, reterr));
    HZP_TRY(check_prefix(&s->serving, reterr));
    HZP_TRY(open_trials(e, slots, !group, reterr));
    HZP_TRY(hzp_settings_policy(&s->split, &e->policy, reterr));
    HZP_TRY(hzp_assembly_read(&config, &e->parts, reterr));
    return s->no_train ? HZP_OK : open_state(e, reterr);
}

static void start_effects(struct hzp_engine *e)
{
    const struct hzp_learning_settings *l = &e->config.settings->learning;
    bool bounds = e->trials && hzp_trials_bounds(e->trials)->measured;
    struct hzp_effects_config config = {.others = (int32_t)l->effect,
                                        .trials = bounds ? e->trials : e->observed,
                                        .max_effect = l->max_effect,
                                        .state = e->state,
                                        .scheduler = e->parts.scheduler,
                                        .loop = e->parts.loop,
                                        .weights = e->parts.weights,
                                        .tok = e->parts.tok,
                                        .context = e->parts.plan.positions};
    if (e->config.effects && e->state && config.others > 0)
        e->effects = hzp_effects_start(&config);
    if (bounds && !e->effects)
        hzp_log(HZP_LOG_ERROR, "engine",
                "no thread measures what lessons change: nothing is published, because of "
                "--max-effect");
}

/* Why jobs of rollouts may not train; NULL: they may. */
static const char *untrained(const struct hzp_engine *e)
{
    return !e->state   ? "this server does not learn (--no-train)"
           : e->trials ? "rollouts do not train with --canary: a version on trial draws answers"
           : e->config.link || e->front ? "rollouts train on one rank only, so far"
           : e->config.settings->learning.passes > 1
               ? "rollouts need --passes 1: a later pass would be staler than they may be"
               : NULL;
}

/* NULL: the environment names none. */
static const char *named_command(const char *name)
{
    const char *command = getenv(name);
    return command && *command ? command : NULL;
}

static void start_rollouts(struct hzp_engine *e)
{
    struct hzp_rollouts_config config = {.state = e->state,
                                         .scheduler = e->parts.scheduler,
                                         .loop = e->parts.loop,
                                         .weights = e->parts.weights,
                                         .tok = e->parts.tok,
                                         .chat = e->parts.chat,
                                         .model = &e->parts.config,
                                         .trainer = e->parts.trainer,
                                         .update_tokens =
                                             (int32_t)e->config.settings->training.update_tokens,
                                         .bytes = e->config.settings->learning.rollout_bytes,
                                         .command = named_command("HZP_REWARD_COMMAND"),
                                         .tools = named_command("HZP_TOOL_COMMAND"),
                                         .untrained = untrained(e)};
    if (e->config.effects && e->parts.tok)
        e->rollouts = hzp_rollouts_start(&config);
}

/* *ret_again: a damaged checkpoint was set aside, and another start begins from an older one. */
static int start(const struct hzp_engine_config *config, struct hzp_engine **ret, bool *ret_again,
                 struct hzp_err_text *reterr)
{
    struct hzp_engine *e = hzp_xcalloc(1, sizeof(*e));
    e->config = *config;
    int r = read_host_parts(e, reterr);
    if (r < 0) {
        free_engine(e);
        return r;
    }
    struct hzp_engine_thread *t = e->thread = hzp_xcalloc(1, sizeof(*t));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    hzp_lock_init(&t->lock, HZP_LOCK_ENGINE);
    pthread_cond_init(&t->changed, &attr);
    pthread_condattr_destroy(&attr);
    r = hzp_thread_start(&t->thread, "hzp-engine", engine_main, e);
    if (r < 0) {
        free_engine(e);
        return hzp_fail(reterr, r, "cannot start the engine's thread: %s", hzp_err_name(r));
    }
    hzp_lock_take(&t->lock);
    while (t->phase == OPENING)
        pthread_cond_wait(&t->changed, &t->lock.mutex);
    bool runs = t->phase == RUNNING;
    hzp_lock_release(&t->lock);
    if (!runs) {
        if (reterr)
            *reterr = t->err;
        *ret_again = e->again;
        return hzp_engine_finish(e);
    }
    start_effects(e);
    start_rollouts(e);
    *ret = e;
    return HZP_OK;
}

int hzp_engine_start(const struct hzp_engine_config *config, struct hzp_engine **ret,
                     struct hzp_err_text *reterr)
{
    bool again;
    int r;
    if (!config->settings->model.dir)
        return hzp_fail(reterr, HZP_EINVAL,
                        "no model given; name a directory that holds config.json");
    do {
        again = false;
        r = start(config, ret, &again, reterr);
    } while (r < 0 && again);
    return r;
}

int hzp_engine_submit(struct hzp_engine *engine, struct hzp_request *const *rq, int32_t count,
                      struct hzp_err_text *reterr)
{
    HZP_TRY(engine->front ? hzp_front_submit(engine->front, rq, count, reterr)
                          : hzp_scheduler_submit_all(engine->parts.scheduler, rq, count, reterr));
    hzp_loop_poke(engine->parts.loop);
    return HZP_OK;
}

void hzp_engine_poke(struct hzp_engine *engine)
{
    hzp_loop_poke(engine->parts.loop);
    if (engine->front)
        hzp_front_poke(engine->front);
}

void hzp_engine_stop(struct hzp_engine *engine, bool hurry)
{
    hzp_rollouts_close(engine->rollouts);
    if (engine->front)
        hzp_front_stop(engine->front, hurry);
    hzp_scheduler_stop(engine->parts.scheduler, hurry);
    if (engine->parts.trainer)
        hzp_trainer_finish(engine->parts.trainer);
    hzp_loop_stop(engine->parts.loop, hurry);
}

bool hzp_engine_running(struct hzp_engine *engine)
{
    HZP_LOCKED(&engine->thread->lock);
    return engine->thread->phase == RUNNING;
}

bool hzp_engine_wait(struct hzp_engine *engine, uint64_t wait_ns)
{
    struct hzp_engine_thread *t = engine->thread;
    uint64_t end = hzp_now_ns() + wait_ns;
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000u),
                             .tv_nsec = (long)(end % 1000000000u)};
    HZP_LOCKED(&t->lock);
    int timed_out = 0;
    while (t->phase != ENDED && timed_out != ETIMEDOUT)
        timed_out = pthread_cond_timedwait(&t->changed, &t->lock.mutex, &until);
    return t->phase == ENDED;
}

int hzp_engine_finish(struct hzp_engine *engine)
{
    if (!engine)
        return HZP_OK;
    struct hzp_engine_thread *t = engine->thread;
    if (hzp_engine_running(engine))
        hzp_engine_stop(engine, true);
    hzp_effects_stop(engine->effects);
    hzp_rollouts_stop(engine->rollouts);
    hzp_lock_take(&t->lock);
    t->close = true;
    pthread_cond_broadcast(&t->changed);
    hzp_lock_release(&t->lock);
    pthread_join(t->thread, NULL);
    int r = t->result;
    free_engine(engine);
    return r;
}
