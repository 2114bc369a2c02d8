/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/exclusions.h"

#include "base/words.h"

/* Whether all these facts are so.  ONE, SEVERAL: ranks; ALONE: neither replicas nor parts of one;
 * GROUPS: --ranks makes several tensor groups. */
static bool applies(const char *facts, const struct hzp_engine_settings *s, int ranks)
{
    const struct {
        const char *name;
        bool is;
    } fact[] = {
        {"ONE", ranks == 1},
        {"SEVERAL", ranks > 1},
        {"LEARNS", !s->no_train},
        {"SERVES_ONLY", s->no_train},
        {"TENSOR", s->ranks.tensor > 1},
        {"REPLICAS", s->ranks.replicas},
        {"ALONE", s->ranks.tensor <= 1 && !s->ranks.replicas},
        {"MPI", s->ranks.link == HZP_RANKS_MPI},
        {"FP8", s->model.fp8},
        {"KV_FP8", s->model.kv_fp8},
        {"SAME", s->device.same_arithmetic},
        {"DRAFT_FP8", s->serving.draft == HZP_DRAFT_FP8},
        {"PREFIX_FILE", s->serving.prefix_dir != NULL},
        {"PREFIX_HOST", s->serving.prefix_host},
        {"CANARY", s->canary.share > 0},
        {"GATE", s->learning.gate != NULL},
        {"RIDE", s->split.ride},
        {"SKIP", s->training.skip > 0 || s->training.swap},
        {"CORES", s->split.train_cores > 0},
        {"SLOTS_ONE", s->serving.slots < 2},
        {"SLOTS_MORE", s->serving.slots > 2},
        {"NEVER_BEHIND", s->training.max_staleness < 1},
        {"SELDOM", s->training.publish_every != 1},
        {"BY_LESSON", s->training.publish == HZP_PUBLISH_LESSON},
        {"BY_UPDATE", s->training.publish == HZP_PUBLISH_UPDATE},
        {"MAX_EFFECT", hzp_settings_bounds_effect(s)},
        {"MESH", s->mesh.url.count > 0},
        {"GROUPS", s->ranks.tensor > 1 && ranks > s->ranks.tensor},
        {"STAGES", s->training.stages > 1},
        {"WHOLE", s->training.stages <= 1},
        {"SPEEDS", s->training.speeds},
        {"MUON", s->training.optimizer == HZP_MUON},
        {"HOST_MOMENTS", s->training.moments_in},
        {"Q8", s->training.moment_type == 2},
        {"SHARDS", s->training.z1 || s->training.z2 || s->training.z3},
    };
    bool all = true;
    for (int i = 0; i < HZP_COUNT(fact); i++)
        all &= fact[i].is || !hzp_among(facts, fact[i].name);
    return all;
}

int hzp_exclusions_check(const struct hzp_engine_settings *s, int ranks,
                         struct hzp_err_text *reterr)
{
    for (int i = 0; i < hzp_exclusion_count; i++) {
        const struct hzp_exclusion *says = &hzp_exclusion_rows[i];
        if (!applies(says->facts, s, ranks))
            continue;
        char name[32]; /* without a value */
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(says->option, " "), says->option);
        return hzp_fail_param(reterr, HZP_EINVAL, name, "%s cannot be used with %s: %s",
                              says->option, says->with, says->why);
    }
    return HZP_OK;
}
