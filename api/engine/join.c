/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/join.h"

#include "api/engine/fill.h"
#include "api/engine/group.h"
#include "base/log.h"
#include "nanobatch/member.h"
#include "train/learner/tensor_state.h"

#include <inttypes.h>

struct joining {
    struct hzp_assembly *a;
    struct hzp_group_start start;
};

/* The first version is rank 0's: each rank reads its slice from the same directory, and gets its
 * slice of the optimizer's state from rank 0. */
static int fill(void *ctx, struct hzp_version *draft, struct hzp_err_text *reterr)
{
    const struct joining *j = ctx;
    struct hzp_assembly *a = j->a;
    struct hzp_tensor_state state = {.model = a->model,
                                     .whole = &a->config,
                                     .space = hzp_learner_by_step_learner(a->by_step)->space,
                                     .recipe = &a->plan.recipe,
                                     .link = a->is.group};
    struct hzp_trainer_numbers numbers;
    HZP_TRY(hzp_fill_load(a->weights, draft, j->start.dir, reterr));
    return j->start.learned
               ? hzp_tensor_state_load(&state, draft, j->start.dir, false, &numbers, NULL, reterr)
               : HZP_OK;
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

static int run(struct hzp_assembly *a, struct hzp_err_text *reterr)
{
    struct hzp_member *member;
    struct hzp_member_stats stats;
    struct joining j = {.a = a, .start = {.first_id = 1}};
    int64_t ready = 1;
    HZP_TRY(hzp_group_agree_learning(a->is.group, a->is.training != NULL, reterr));
    if (a->is.training)
        HZP_TRY(hzp_group_tell_start(a->is.group, &j.start, reterr));
    HZP_TRY(hzp_assembly_open(a, j.start.first_id, reterr));
    if (a->is.training)
        HZP_TRY(hzp_assembly_open_learner(a, reterr));
    HZP_TRY(hzp_assembly_fill(a, a->is.training ? fill : NULL, &j, reterr));
    HZP_TRY(hzp_assembly_open_serving(a, reterr));
    struct hzp_member_config config = {.model = a->model,
                                       .space = a->space,
                                       .batch = a->batch,
                                       .kv = hzp_kvpool_layers(a->pool),
                                       .limits = hzp_assembly_step_limits(a),
                                       .shapes = {.plans = a->plans.entries ? &a->plans : NULL},
                                       .link = a->steps,
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
    hzp_assembly_close_step_links(a); /* which may still write to what the member frees */
    hzp_member_destroy(member);
    return r;
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
        .gated = !settings->no_train && (settings->learning.gate ||
                                         hzp_settings_by_lesson(settings, settings->ranks.tensor)),
        .member = true};
    struct hzp_assembly parts;
    int r = hzp_assembly_read(&config, &parts, reterr);
    if (r == HZP_OK)
        r = run(&parts, reterr);
    hzp_assembly_close(&parts);
    return r;
}
