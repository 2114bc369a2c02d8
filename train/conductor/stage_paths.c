/* SPDX-License-Identifier: Apache-2.0 */
#include "train/conductor/stage_paths.h"

#include "base/log.h"
#include "mesh/paths/paths.h"

#define FLOPS   5e10
#define RATE    125e6
#define LATENCY 1e-3

enum { PLANS = 64 /* that are kept; updates mostly have about equally many micro-batches */ };

struct kept_plan {
    int32_t micros, turn; /* 0: none */
    int32_t length;       /* 0: there is no plan, and paths have all stages */
    uint8_t stage[HZP_PATHS_MICROS][HZP_PATHS_STAGES];
};

struct hzp_stage_paths {
    const struct hzp_layout *layout;
    struct hzp_shards shards;
    struct hzp_paths_problem problem;
    struct hzp_paths_plan plan;
    struct kept_plan kept[PLANS];
    int32_t length, newest;
};

static void fill_problem(struct hzp_stage_paths *p, const struct hzp_recipe *recipe, double rate,
                         double latency_s)
{
    struct hzp_paths_problem *q = &p->problem;
    struct hzp_shards at = p->shards;
    const struct hzp_model_config *c = &p->layout->config;
    double rows = recipe->micro_rows, bytes = rows * c->width * (double)sizeof(float);
    for (int32_t s = 0; s < q->stages; s++) {
        struct hzp_paths_node *node = &q->node[s];
        double flops = FLOPS / 100 * hzp_stage_speed(&p->shards, s);
        uint64_t elements = 0;
        at.rank = s;
        hzp_stages_cut(&at, p->layout, NULL);
        for (int32_t l = at.layer; l < at.layer_end; l++)
            elements += p->layout->unit[1 + l].elements;
        *node =
            (struct hzp_paths_node){s, hzp_stages_kept(&at), 2 * rows * (double)elements / flops,
                                    s ? 0 : 6 * rows * c->vocab * c->width / flops};
        for (int32_t to = 0; to < q->stages; to++)
            q->link[s][to] = (struct hzp_paths_link){rate > 0 ? latency_s : LATENCY,
                                                     bytes / (rate > 0 ? rate : RATE)};
    }
}

int hzp_stage_paths_create(const struct hzp_recipe *recipe, const struct hzp_shards *shards,
                           const struct hzp_layout *layout, double link_rate, double latency_s,
                           struct hzp_stage_paths **ret, struct hzp_err_text *reterr)
{
    int32_t stages = shards->stages;
    int32_t length = (int32_t)lround((1 - (double)recipe->skip) * stages);
    if (stages > HZP_PATHS_STAGES)
        return hzp_fail_param(reterr, HZP_EINVAL, "--skip",
                              "--skip: %d stages, and micro-batches choose among %d at most",
                              stages, HZP_PATHS_STAGES);
    if (length < 2 || (length == stages && recipe->skip > 0))
        return hzp_fail_param(reterr, HZP_EINVAL, "--skip",
                              "--skip %g leaves out %d of %d stages: 1 at least, %d at most",
                              (double)recipe->skip, stages - length, stages, stages - 2);
    struct hzp_stage_paths *p = hzp_xcalloc(1, sizeof(*p));
    p->layout = layout;
    p->shards = *shards;
    p->length = length;
    p->problem = (struct hzp_paths_problem){.stages = stages,
                                            .nodes = stages,
                                            .micros = 1,
                                            .swaps = recipe->swap ? HZP_PATHS_SWAPS : 0,
                                            .kept = 1,
                                            .skip = (double)recipe->skip};
    fill_problem(p, recipe, link_rate, latency_s);
    int r = hzp_paths_problem_check(&p->problem, reterr);
    if (r < 0) {
        hzp_stage_paths_destroy(p);
        return r;
    }
    *ret = p;
    return HZP_OK;
}

void hzp_stage_paths_destroy(struct hzp_stage_paths *p)
{
    free(p);
}

static const struct kept_plan *plan_of(struct hzp_stage_paths *p, int32_t micros, int32_t turn)
{
    struct hzp_err_text text = {{0}, {0}};
    for (int i = 0; i < PLANS; i++)
        if (p->kept[i].micros == micros && p->kept[i].turn == turn)
            return &p->kept[i];
    struct kept_plan *kept = &p->kept[p->newest++ % PLANS];
    *kept = (struct kept_plan){micros, turn, 0, {{0}}};
    p->problem.micros = micros;
    p->problem.turn = turn;
    if (hzp_paths_plan(&p->problem, &p->plan, &text) < 0) {
        hzp_log(HZP_LOG_WARN, "train", "micro-batches visit all stages: %s", text.text);
        return kept;
    }
    hzp_log(HZP_LOG_DEBUG, "train", "paths of %d micro-batches: %.3f s planned", micros,
            p->plan.seconds);
    kept->length = p->plan.length;
    for (int32_t m = 0; m < micros; m++)
        memcpy(kept->stage[m], p->plan.path[m], sizeof(kept->stage[m])); /* node s is stage s */
    return kept;
}

void hzp_stage_paths_deal(struct hzp_stage_paths *p, int64_t update, int32_t micros, int32_t micro,
                          struct hzp_path *ret)
{
    int32_t plans = HZP_DIV_UP(micros, HZP_PATHS_MICROS), each = HZP_DIV_UP(micros, plans);
    int32_t first = micro / each * each, others = p->problem.stages - 1;
    /* stages that were visited before, one after another */
    int64_t before = ((update - 1) % others * micros + first) * (p->length - 1) % others;
    const struct kept_plan *kept = plan_of(p, HZP_MIN(each, micros - first), 1 + (int32_t)before);
    struct hzp_stage_path path = {.count = kept->length};
    memcpy(path.stage, kept->stage[micro - first], sizeof(path.stage));
    hzp_stage_path_layers(&path, &p->shards, p->layout, ret);
}
