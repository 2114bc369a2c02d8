/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/exclusions.h"

/* What settings say, each a bit; a row applies when all its bits are set.  ONE, SEVERAL: ranks;
 * ALONE: neither replicas nor parts of one; GROUPS: --ranks makes several tensor groups. */
#define FACTS(X)                                                                                   \
    X(ONE, ranks == 1)                                                                             \
    X(SEVERAL, ranks > 1)                                                                          \
    X(LEARNS, !s->no_train)                                                                        \
    X(SERVES_ONLY, s->no_train)                                                                    \
    X(TENSOR, s->ranks.tensor > 1)                                                                 \
    X(REPLICAS, s->ranks.replicas)                                                                 \
    X(ALONE, s->ranks.tensor <= 1 && !s->ranks.replicas)                                           \
    X(MPI, s->ranks.link == HZP_RANKS_MPI)                                                         \
    X(FP8, s->model.fp8)                                                                           \
    X(DRAFT_FP8, s->serving.draft == HZP_DRAFT_FP8)                                                \
    X(PREFIX_FILE, s->serving.prefix_dir != NULL)                                                  \
    X(PREFIX_HOST, s->serving.prefix_host)                                                         \
    X(CANARY, s->canary.share > 0)                                                                 \
    X(GATE, s->learning.gate != NULL)                                                              \
    X(RIDE, s->split.ride)                                                                         \
    X(SKIP, s->training.skip > 0 || s->training.swap)                                              \
    X(CORES, s->split.train_cores > 0)                                                             \
    X(SLOTS_ONE, s->serving.slots < 2)                                                             \
    X(SLOTS_MORE, s->serving.slots > 2)                                                            \
    X(NEVER_BEHIND, s->training.max_staleness < 1)                                                 \
    X(SELDOM, s->training.publish_every != 1)                                                      \
    X(BY_LESSON, s->training.publish == HZP_PUBLISH_LESSON)                                        \
    X(BY_UPDATE, s->training.publish == HZP_PUBLISH_UPDATE)                                        \
    X(MAX_EFFECT, hzp_settings_bounds_effect(s))                                                   \
    X(MESH, s->mesh.url.count > 0)                                                                 \
    X(GROUPS, s->ranks.tensor > 1 && ranks > s->ranks.tensor)                                      \
    X(STAGES, s->training.stages > 1)                                                              \
    X(SHARDS, s->training.z1 || s->training.z2 || s->training.z3)
#define NUMBER_OF(name, is) NUMBER_##name,
#define BIT_OF(name, is)    name = 1 << NUMBER_##name,
#define OR_BIT(name, is)    | ((is) ? (unsigned)name : 0)
enum { FACTS(NUMBER_OF) };
enum { FACTS(BIT_OF) };

static const struct {
    unsigned facts;
    struct hzp_exclusion says;
} row[] = {
    {TENSOR | REPLICAS, {"--replicas", "--tensor", "a rank is a replica or a part of one"}},
    {TENSOR | PREFIX_FILE,
     {"--prefix-file", "--tensor", "pages would be read back on rank 0 only"}},
    {TENSOR | PREFIX_HOST,
     {"--prefix-bytes host", "--tensor", "pages would be read back on rank 0 only"}},
    {TENSOR | LEARNS | CANARY, {"--canary", "--tensor", "steps read the current version only"}},
    {TENSOR | LEARNS | RIDE,
     {"--train-share ride", "--tensor", "training follows serving's rows in each step"}},
    {TENSOR | LEARNS | CORES,
     {"--train-share cores", "--tensor", "training follows serving's rows in each step"}},
    {TENSOR | LEARNS | SLOTS_MORE,
     {"--slots above 2", "--tensor", "steps read the current version only"}},
    {GROUPS | SERVES_ONLY,
     {"--no-train", "--ranks above --tensor",
      "the ranks behind the first --tensor ones only learn"}},
    {REPLICAS | ONE, {"--replicas", "one rank", "--ranks starts several"}},
    {REPLICAS | MPI, {"--replicas", "--link mpi", "requests travel between ranks by ZeroMQ"}},
    {REPLICAS | LEARNS | NEVER_BEHIND,
     {"--max-staleness 0", "--replicas",
      "each rank takes over a new version at its own next step"}},
    {REPLICAS | LEARNS | SELDOM,
     {"--publish every above 1", "--replicas", "ranks take over each update as a version"}},
    {REPLICAS | LEARNS | SLOTS_ONE,
     {"--slots 1", "--replicas", "requests go on while a rank takes over the next version"}},
    {SEVERAL | SERVES_ONLY | ALONE,
     {"--no-train", "--ranks alone",
      "several ranks share learning, or with --replicas requests, or with --tensor each step"}},
    {SEVERAL | LEARNS | CANARY, {"--canary", "--ranks", "a trial is known on one rank only"}},
    {LEARNS | CANARY | SELDOM,
     {"--canary", "--publish every above 1", "a version is checked before it is published"}},
    {LEARNS | GATE | SELDOM,
     {"--gate", "--publish every above 1", "a version is checked before it is published"}},
    {LEARNS | BY_LESSON | SELDOM,
     {"--publish lesson", "--publish every above 1", "a lesson is published as a whole"}},
    {LEARNS | MAX_EFFECT | SEVERAL,
     {"--max-effect", "--ranks", "a trial is known on one rank only"}},
    {LEARNS | MAX_EFFECT | BY_UPDATE,
     {"--max-effect", "--publish update", "it judges whole lessons"}},
    {LEARNS | MAX_EFFECT | SELDOM,
     {"--max-effect", "--publish every above 1", "it judges whole lessons"}},
    {STAGES | ONE, {"--shard stages", "one rank", "--ranks starts several"}},
    {STAGES | TENSOR, {"--shard stages", "--tensor", "a rank has whole layers or a slice of each"}},
    {STAGES | SHARDS,
     {"--shard stages", "--shard z1, z2 or z3", "a rank has whole layers or a part of each"}},
    {MESH | SERVES_ONLY, {"--mesh", "--no-train", "sites average what they learn"}},
    {MESH | SEVERAL, {"--mesh", "--ranks", "a site reads and writes whole weights on one rank"}},
    {MESH | MAX_EFFECT,
     {"--mesh", "--max-effect", "an average is no lesson whose effect is bounded"}},
    {SERVES_ONLY | CORES, {"--train-share cores", "--no-train", "it would have no effect"}},
    {SERVES_ONLY | RIDE, {"--train-share ride", "--no-train", "it would have no effect"}},
    {LEARNS | SKIP | RIDE,
     {"--skip", "--train-share ride", "training goes through other layers than serving's rows"}},
    {RIDE | FP8,
     {"--train-share ride", "--quantization fp8",
      "serving multiplies by other weights than training"}},
    {FP8 | DRAFT_FP8,
     {"--draft fp8", "--quantization fp8", "the weights that serve would guess for themselves"}},
    {RIDE | CORES,
     {"--train-share ride", "--train-share cores",
      "training either rides in serving's products or has cores of its own"}},
};

static unsigned facts_of(const struct hzp_engine_settings *s, int ranks)
{
    return 0 FACTS(OR_BIT);
}

const struct hzp_exclusion *hzp_exclusion(int i)
{
    return i >= 0 && i < HZP_COUNT(row) ? &row[i].says : NULL;
}

int hzp_exclusions_check(const struct hzp_engine_settings *s, int ranks,
                         struct hzp_err_text *reterr)
{
    unsigned facts = facts_of(s, ranks);
    for (int i = 0; i < HZP_COUNT(row); i++) {
        const struct hzp_exclusion *says = &row[i].says;
        if ((facts & row[i].facts) != row[i].facts)
            continue;
        char name[32]; /* without a value */
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(says->option, " "), says->option);
        return hzp_fail_param(reterr, HZP_EINVAL, name, "%s cannot be used with %s: %s",
                              says->option, says->with, says->why);
    }
    return HZP_OK;
}
