/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/shards.h"

#include "base/log.h"
#include "mesh/peers/selftest.h"

/* What rank 0 tells the others. */
struct told {
    struct hzp_groups groups;
    int32_t ordered, stages, result;
    uint8_t speed[HZP_STAGE_SPEEDS_MAX];
    char text[200]; /* explains a result < 0 */
};

int hzp_shards_test(struct hzp_device *dev, struct hzp_link *link, enum hzp_dtype type,
                    const struct hzp_training_settings *training, uint8_t *ret_speed,
                    struct hzp_err_text *reterr)
{
    struct hzp_selftest all[HZP_STAGE_SPEEDS_MAX];
    int ranks = hzp_link_ranks(link);
    bool speeds = training->stages > 1 && training->speeds;
    if (speeds && ranks > HZP_STAGE_SPEEDS_MAX)
        return hzp_wrong(reterr, "--shard speeds", "=measured: of %d stages at most, not %d",
                         HZP_STAGE_SPEEDS_MAX, ranks);
    HZP_TRY(hzp_selftest_run(dev, link, type, training->slowness_max, speeds ? all : NULL, reterr));
    if (!speeds)
        return HZP_OK;
    hzp_selftest_speeds(all, ranks, ret_speed);
    for (int r = 0; r < ranks && hzp_link_rank(link) == 0; r++)
        hzp_log(HZP_LOG_INFO, "ranks", "stage=%d speed=%d%%", r, ret_speed[r]);
    return HZP_OK;
}

/* Bytes of one rank that do not depend on the groups: what a plan with everything sharded needs
 * beside the shards. */
static int rest_bytes(const struct hzp_memory_request *memory, const struct hzp_layout *layout,
                      const struct hzp_shards *shards, struct hzp_groups_model *model, size_t *ret,
                      struct hzp_err_text *reterr)
{
    struct hzp_memory_request whole = *memory;
    struct hzp_memory_plan plan;
    whole.shards = *shards;
    HZP_TRY(hzp_memory_plan(&whole, layout, &plan, reterr));
    *model = hzp_groups_model(shards, layout);
    model->type = plan.dtype;
    model->moment_type = plan.recipe.moment_type;
    model->slots = memory->slots;
    int64_t micros = HZP_DIV_UP(plan.recipe.update_tokens, HZP_MAX(plan.recipe.micro_rows, 1));
    model->micros = (int32_t)HZP_DIV_UP(micros, (int64_t)shards->groups.ranks);
    size_t kept = hzp_groups_bytes(&shards->groups, model).total;
    *ret = plan.total - HZP_MIN(plan.total, kept);
    return HZP_OK;
}

static int choose(const struct hzp_shards_request *request, const struct hzp_layout *layout,
                  struct hzp_groups *ret, struct hzp_err_text *reterr)
{
    const struct hzp_memory_request *memory = request->memory;
    const struct hzp_training_settings *t = memory->training;
    int32_t ranks = hzp_link_ranks(request->link);
    struct hzp_groups given = {ranks, (int32_t)t->z1, (int32_t)t->z2, (int32_t)t->z3};
    struct hzp_shards least = {.groups = {ranks, ranks, ranks, ranks}, .ordered = t->ordered != 0};
    struct hzp_groups_model model;
    size_t rest;
    if (request->serves && given.z3 > 1)
        return hzp_fail_param(
            reterr, HZP_EINVAL, "--shard z3",
            "--shard z3=%d: a server reads its weights in every step, so they are not "
            "sharded; use --shard z3=1",
            given.z3);
    if (request->serves)
        given.z3 = least.groups.z3 = 1;
    HZP_TRY(rest_bytes(memory, layout, &least, &model, &rest, reterr));
    HZP_TRY(hzp_groups_choose(&given, layout, &model, memory->limit - HZP_MIN(memory->limit, rest),
                              request->quiet ? NULL : stderr, reterr));
    *ret = given;
    return HZP_OK;
}

/* Whether the ranks can be stages. */
static int check_stages(const struct hzp_shards_request *request, const struct hzp_layout *layout,
                        const struct hzp_shards *shards, struct hzp_err_text *reterr)
{
    struct hzp_shards cut = *shards;
    if (request->serves)
        return hzp_fail_param(reterr, HZP_EINVAL, "--shard stages",
                              "--shard stages=%d: a server needs all layers on each rank; only "
                              "train has stages",
                              shards->stages);
    if (shards->stages != hzp_link_ranks(request->link))
        return hzp_fail_param(reterr, HZP_EINVAL, "--shard stages",
                              "--shard stages=%d: there are %d ranks, of which each is a stage",
                              shards->stages, hzp_link_ranks(request->link));
    return hzp_stages_cut(&cut, layout, reterr);
}

/* Broadcasts what rank 0 has chosen; all ranks return its error. */
static int tell(struct hzp_link *link, int result, struct hzp_shards *shards,
                struct hzp_err_text *reterr)
{
    struct told told = {.groups = shards->groups,
                        .ordered = shards->ordered,
                        .stages = shards->stages,
                        .result = result};
    memcpy(told.speed, shards->speed, sizeof(told.speed));
    if (result < 0 && reterr)
        memcpy(told.text, reterr->text, HZP_MIN(sizeof(told.text), sizeof(reterr->text)) - 1);
    HZP_TRY(
        hzp_link_broadcast(link, 0, &told, sizeof(told), UINT64_MAX, result < 0 ? NULL : reterr));
    if (told.result < 0)
        return shards->rank ? hzp_fail(reterr, told.result, "rank 0: %s", told.text) : result;
    shards->groups = told.groups;
    shards->ordered = told.ordered != 0;
    shards->stages = told.stages;
    memcpy(shards->speed, told.speed, sizeof(told.speed));
    return HZP_OK;
}

int hzp_shards_tell(struct hzp_link *link, const struct hzp_shards *shards,
                    struct hzp_err_text *reterr)
{
    struct hzp_shards same = *shards;
    return tell(link, HZP_OK, &same, reterr);
}

int hzp_shards_agree(const struct hzp_shards_request *request, struct hzp_layout *layout,
                     struct hzp_shards *ret, struct hzp_err_text *reterr)
{
    const struct hzp_training_settings *training = request->memory->training;
    *ret = (struct hzp_shards){.ordered = training && training->ordered};
    if (!request->link || !training)
        return HZP_OK;
    ret->rank = hzp_link_rank(request->link);
    ret->stages = ret->rank ? 0 : (int32_t)training->stages;
    memcpy(ret->speed, request->speed, sizeof(ret->speed));
    int r = ret->rank         ? HZP_OK
            : ret->stages > 1 ? check_stages(request, layout, ret, reterr)
                              : choose(request, layout, &ret->groups, reterr);
    HZP_TRY(tell(request->link, r, ret, reterr));
    if (ret->stages > 1)
        return hzp_stages_cut(ret, layout, reterr);
    hzp_layout_pad(layout, hzp_groups_granule(&ret->groups, ret->ordered));
    return HZP_OK;
}
