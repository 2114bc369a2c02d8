/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/join.h"

#include "api/engine/fill.h"
#include "api/engine/group.h"
#include "base/log.h"
#include "nanobatch/member.h"
#include "train/learner/tensor_state.h"

#include <inttypes.h>

static const uint64_t slice_ns = 100000000; /* the longest step of a group that only learns */

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
static int fill(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    const struct joining *j = ctx;
    struct hzp_assembly *a = j->a;
    HZP_TRY(hzp_fill_load(a->weights, draft, j->start.dir, reterr));
    return j->start.learned ? load_slice(a, draft, j->start.dir, reterr) : HZP_OK;
}

static int create(struct hzp_assembly *a, struct hzp_member_config *config, struct hzp_member **ret)
{
    struct hzp_plan products;
    int r = HZP_OK;
    hzp_plan_init(&products);
    if (a->by_step && hzp_device_has_graphs(a->dev)) {
        r = hzp_learner_products(hzp_learner_by_step_learner(a->by_step), &products);
        config->products = &products;
    }
    if (r == HZP_OK)
        r = hzp_member_create(config, ret);
    hzp_plan_fini(&products);
    return r;
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

static int run(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    struct joining j = {.a = a, .start = {.first_id = 1}};
    HZP_TRY(hzp_group_agree_learning(a->is.group, a->is.training != NULL, reterr));
    if (a->is.training)
        HZP_TRY(hzp_group_tell_start(a->is.group, &j.start, reterr));
    HZP_TRY(hzp_assembly_open(a, j.start.first_id, reterr));
    if (a->is.training)
        HZP_TRY(hzp_assembly_open_learner(a, reterr));
    HZP_TRY(hzp_assembly_fill(a, a->is.training ? fill : NULL, &j, reterr));
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
        r = run(&parts, reterr);
    if (r < 0 && ended_with_first(link)) {
        hzp_log(HZP_LOG_INFO, "engine", "rank=%d ends with rank=0", hzp_link_rank(link));
        r = HZP_OK;
    }
    hzp_assembly_close(&parts);
    return r;
}
