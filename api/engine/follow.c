/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/follow.h"

#include "api/engine/fill.h"
#include "api/engine/group.h"
#include "api/front/replica.h"
#include "base/log.h"
#include "nanobatch/member.h"
#include "train/learner/tensor_state.h"

static const uint64_t slice_ns = 100000000; /* the longest step */

struct follow {
    const struct hzp_follow_config *config;
    struct hzp_assembly parts;
    struct hzp_policy policy;         /* a replica's */
    struct hzp_replica_rank *replica; /* NULL: none */
    /* For the thread that makes grammars; NULL: none was asked for yet. */
    struct hzp_tokenizer *tok;
    struct hzp_structures *structures;
};

static int receive(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    struct follow *f = ctx;
    struct hzp_assembly *a = &f->parts;
    bool sharded = !hzp_shards_whole(&a->shards);
    if (sharded && !f->config->fill)
        return hzp_fail(reterr, HZP_EUNSUP,
                        "this command needs whole weights on each rank: use --shard z3=1");
    if (sharded)
        HZP_TRY(f->config->fill(f->config->ctx, a, draft, reterr));
    return hzp_learner_by_link_receive(a->by_link, draft, reterr);
}

/* Whether the learner has nothing more to do: the replica leaves then. */
static bool has_ended(void *ctx)
{
    struct follow *f = ctx;
    struct hzp_learner_by_link_stats stats;
    if (!f->parts.by_link)
        return false;
    hzp_learner_by_link_read_stats(f->parts.by_link, &stats);
    return stats.stopped || stats.failure[0];
}

/* The model's tokenizer, as rank 0 has it, is read with the first grammar. */
static int make_rules(void *ctx, const char *source, struct hzp_constraint **ret,
                      struct hzp_err_text *reterr)
{
    struct follow *f = ctx;
    if (!f->tok)
        HZP_TRY(hzp_tokenizer_open(f->parts.source_dir, &f->tok, reterr));
    if (!f->structures)
        hzp_structures_open(f->tok, f->parts.config.vocab, HZP_STRUCTURES_IN_USE, &f->structures);
    struct hzp_grammar *grammar = NULL;
    int r = hzp_structures_get_written(f->structures, source, &grammar, reterr);
    *ret = hzp_grammar_constraint(grammar);
    return r;
}

static int start_replica(struct follow *f, struct hzp_err_text *reterr)
{
    const struct hzp_follow_replica *is = f->config->replica;
    struct hzp_assembly *a = &f->parts;
    struct hzp_replica_config config = {.at = is->at,
                                        .record = is->record,
                                        .silent_s = is->silent_s,
                                        .meet_s = is->meet_s,
                                        .scheduler = a->scheduler,
                                        .loop = a->loop,
                                        .weights = a->weights,
                                        .split = hzp_loop_split(a->loop),
                                        .stays = a->is.training != NULL,
                                        .leaves = has_ended,
                                        .make_rules = make_rules,
                                        .ctx = f};
    HZP_TRY(hzp_assembly_hello(a, &config.hello, reterr));
    config.hello.rank = is->rank;
    config.hello.ranks = is->ranks;
    return hzp_replica_start(&config, &f->replica, reterr);
}

/* Runs until rank 0 has ended, or the training of this rank. */
static int run_replica(struct follow *f, struct hzp_err_text *reterr)
{
    HZP_TRY(start_replica(f, reterr));
    int r = hzp_loop_run(f->parts.loop);
    int left = hzp_replica_end(f->replica, reterr);
    hzp_scheduler_abort(f->parts.scheduler);
    hzp_replica_destroy(f->replica);
    hzp_structures_close(f->structures);
    hzp_tokenizer_close(f->tok);
    return left < 0 ? left : r < 0 ? hzp_fail(reterr, r, "the device failed") : HZP_OK;
}

/* The loop of a rank that only trains. */
static int run_learner(struct follow *f, struct hzp_err_text *reterr)
{
    hzp_loop_stop(f->parts.loop, false); /* it ends when the learner is no longer busy */
    int r = hzp_loop_run(f->parts.loop);
    return r < 0 ? hzp_fail(reterr, r, "the device failed") : HZP_OK;
}

static int run(struct follow *f, struct hzp_err_text *reterr)
{
    struct hzp_assembly *a = &f->parts;
    const struct hzp_engine_settings *s = f->config->settings;
    bool serves = f->config->replica != NULL;
    struct hzp_assembly_loop loop = {.policy = f->policy, .idle_ns = slice_ns};
    struct hzp_learner_by_link_stats stats = {.optimizer_step = 0};
    if (serves)
        loop.idle_ns = (uint64_t)(s->split.idle_ms * 1e6);
    HZP_TRY(hzp_assembly_open(a, 1, reterr));
    if (a->is.training)
        HZP_TRY(hzp_assembly_open_learner(a, reterr));
    HZP_TRY(hzp_assembly_fill(a, a->is.training ? receive : NULL, f, reterr));
    if (serves)
        HZP_TRY(hzp_assembly_open_serving(a, reterr));
    HZP_TRY(hzp_assembly_open_loop(a, &loop, reterr));
    if (!a->is.training)
        return run_replica(f, reterr);
    hzp_log(HZP_LOG_INFO, "train", "follows rank=%d ranks=%d optimizer_step=%" PRId64,
            hzp_link_rank(a->is.link), hzp_link_ranks(a->is.link),
            hzp_weights_current(a->weights)->record.optimizer_step);
    int r = serves ? run_replica(f, reterr) : run_learner(f, reterr);
    hzp_learner_by_link_read_stats(a->by_link, &stats);
    return stats.failure[0] ? hzp_fail(reterr, HZP_EIO, "%s", stats.failure) : r;
}

int hzp_follow(const struct hzp_follow_config *config, struct hzp_err_text *reterr)
{
    const struct hzp_engine_settings *s = config->settings;
    bool gated = s->learning.gate || hzp_settings_by_lesson(s);
    struct hzp_assembly_config parts = {.device = &s->device,
                                        .model = &s->model,
                                        .training = &s->training,
                                        .source_dir = config->source_dir,
                                        .link = config->link,
                                        .ranks = &s->ranks,
                                        .serves = config->serves,
                                        .untested = config->runs,
                                        .gated = gated,
                                        .slots = gated ? 2 : 1}; /* a draft may be rejected */
    struct follow f = {.config = config};
    if (config->replica) {
        parts.serving = &s->serving;
        parts.split = &s->split;
        parts.training = s->no_train ? NULL : &s->training;
        parts.slots = s->no_train ? 1 : (int32_t)s->serving.slots;
        parts.max_staleness = (int32_t)s->training.max_staleness;
    }
    int r = hzp_settings_policy(&s->split, &f.policy, reterr);
    if (r == HZP_OK)
        r = hzp_assembly_read(&parts, &f.parts, reterr);
    if (r == HZP_OK)
        r = run(&f, reterr);
    hzp_assembly_close(&f.parts);
    return r;
}

/* --- Ranks that compute each step together ---------------------------------------------------- */

struct joining {
    struct hzp_assembly *a;
    struct hzp_group_start start;
};

static int load_slice(struct hzp_assembly *a, struct hzp_version *draft, const char *dir,
                      struct hzp_err_text *reterr)
{
    struct hzp_learner *l = a->by_step ? hzp_learner_by_step_learner(a->by_step)
                                       : hzp_learner_by_link_learner(a->by_link);
    struct hzp_tensor_state state = {.model = a->model,
                                     .whole = &a->config,
                                     .space = l->space,
                                     .recipe = &a->plan.recipe,
                                     .link = a->axes.group};
    struct hzp_trainer_numbers numbers;
    HZP_TRY(hzp_tensor_state_load(&state, draft, dir, false, &numbers, NULL, reterr));
    l->optimizer_step = numbers.optimizer_step;
    return HZP_OK;
}

/* The first version is rank 0's: each rank reads its slice from the same directory, of the
 * optimizer's state, too. */
static int fill_slice(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    const struct joining *j = ctx;
    struct hzp_assembly *a = j->a;
    HZP_TRY(hzp_fill_load(a->weights, draft, j->start.dir, reterr));
    return j->start.learned ? load_slice(a, draft, j->start.dir, reterr) : HZP_OK;
}

static int create(struct hzp_assembly *a, struct hzp_member_config *config, struct hzp_member **ret)
{
    HZP_ENDED(hzp_plan_fini) struct hzp_plan products;
    hzp_plan_init(&products);
    if (a->by_step && hzp_device_has_graphs(a->dev)) {
        HZP_TRY(hzp_learner_products(hzp_learner_by_step_learner(a->by_step), &products));
        config->products = &products;
    }
    return hzp_member_create(config, ret);
}

/* The first rank of a group that learns beside rank 0's: its loop has steps of training only, of
 * which it tells the group as rank 0 does. */
static int lead(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    struct hzp_assembly_loop loop = {.idle_ns = slice_ns};
    struct hzp_learner_by_link_stats stats;
    HZP_TRY(hzp_settings_policy(a->is.split, &loop.policy, reterr));
    HZP_TRY(hzp_assembly_open_loop(a, &loop, reterr));
    hzp_log(HZP_LOG_INFO, "engine", "learns with rank=0 as rank=%d of ranks=%d, first of group=%d",
            hzp_link_rank(a->is.group), hzp_link_ranks(a->is.group), hzp_link_rank(a->link));
    hzp_loop_stop(a->loop, false); /* it ends when the learner is no longer busy */
    int r = hzp_loop_run(a->loop);
    hzp_learner_by_link_read_stats(a->by_link, &stats);
    hzp_log(HZP_LOG_INFO, "engine", "learned rank=%d rows=%" PRIu64 " optimizer_step=%" PRId64,
            hzp_link_rank(a->is.group), stats.rows, stats.optimizer_step);
    if (stats.failure[0])
        return hzp_fail(reterr, HZP_EIO, "%s", stats.failure);
    return r < 0 ? hzp_fail(reterr, r, "the steps of its group have failed") : HZP_OK;
}

static int compute(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    struct hzp_member *member;
    struct hzp_member_stats stats;
    int64_t ready = 1;
    struct hzp_member_config config = {.model = a->model,
                                       .space = a->space,
                                       .batch = a->batch,
                                       .kv = hzp_kvpool_layers(a->pool),
                                       .limits = hzp_assembly_step_limits(a),
                                       .shapes = {.plans = a->plans.entries ? &a->plans : NULL},
                                       .link = a->axes.steps,
                                       .check_plans = a->is.serving->check_plans != 0};
    if (a->by_step) {
        config.chain = hzp_learner_by_step_chain;
        config.ran = hzp_learner_by_step_ran;
        config.publish = hzp_learner_by_step_publish;
        config.ctx = a->by_step;
    }
    int r = create(a, &config, &member);
    if (r < 0)
        return hzp_fail(reterr, r, "cannot join the group: %s", hzp_err_name(r));
    r = hzp_group_least(a->is.group, &ready, reterr);
    if (r == HZP_OK) {
        hzp_log(HZP_LOG_INFO, "engine", "computes with rank=0 as rank=%d of ranks=%d",
                hzp_link_rank(a->is.group), hzp_link_ranks(a->is.group));
        r = hzp_member_run(member, reterr);
    }
    hzp_member_read_stats(member, &stats);
    struct hzp_learner_by_step_stats learner = {0};
    if (a->by_step)
        hzp_learner_by_step_read_stats(a->by_step, &learner);
    hzp_log(
        HZP_LOG_INFO, "engine",
        "computed rank=%d steps=%" PRIu64 " rows=%" PRIu64 " updates=%" PRIu64 " versions=%" PRIu64,
        hzp_link_rank(a->is.group), stats.steps, stats.rows, learner.updates, learner.publications);
    hzp_axes_close_steps(&a->axes); /* which may still write to what the member frees */
    hzp_member_destroy(member);
    return r;
}

static int run_joined(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    struct joining j = {.a = a, .start = {.first_id = 1}};
    HZP_TRY(hzp_group_agree_learning(a->is.group, a->is.training != NULL, reterr));
    if (a->is.training)
        HZP_TRY(hzp_group_tell_start(a->is.group, &j.start, reterr));
    HZP_TRY(hzp_assembly_open(a, j.start.first_id, reterr));
    if (a->is.training)
        HZP_TRY(hzp_assembly_open_learner(a, reterr));
    HZP_TRY(hzp_assembly_fill(a, a->is.training ? fill_slice : NULL, &j, reterr));
    HZP_TRY(hzp_assembly_open_serving(a, reterr));
    return a->by_link ? lead(a, reterr) : compute(a, reterr);
}

/* In a hurry rank 0 ends between two steps, whatever the groups behind its own have begun. */
static bool ended_with_first(struct hzp_link *link)
{
    struct hzp_link_state state;
    hzp_link_state(link, &state);
    return state.failed && state.left && state.failed_rank == 0;
}

int hzp_group_join(const struct hzp_engine_settings *settings, struct hzp_link *link,
                   struct hzp_err_text *reterr)
{
    struct hzp_assembly_config config = {
        .device = &settings->device,
        .model = &settings->model,
        .serving = &settings->serving,
        .split = &settings->split,
        .training = settings->no_train ? NULL : &settings->training,
        .slots = settings->no_train ? 1 : (int32_t)settings->serving.slots,
        .max_staleness = (int32_t)settings->training.max_staleness,
        .group = link,
        .ranks = &settings->ranks,
        .gated =
            !settings->no_train && (settings->learning.gate || hzp_settings_by_lesson(settings)),
        .member = true};
    struct hzp_assembly parts;
    int r = hzp_assembly_read(&config, &parts, reterr);
    if (r == HZP_OK)
        r = run_joined(&parts, reterr);
    if (r < 0 && ended_with_first(link)) {
        hzp_log(HZP_LOG_INFO, "engine", "rank=%d ends with rank=0", hzp_link_rank(link));
        r = HZP_OK;
    }
    hzp_assembly_close(&parts);
    return r;
}
