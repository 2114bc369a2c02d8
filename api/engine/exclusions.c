/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/exclusions.h"

#include <stdio.h>
#include <string.h>

/* What settings say, each a bit; a row applies when all its bits are set. */
enum {
    ONE = 1 << 0, /* rank */
    SEVERAL = 1 << 1,
    LEARNS = 1 << 2,
    SERVES_ONLY = 1 << 3,
    TENSOR = 1 << 4,
    REPLICAS = 1 << 5,
    ALONE = 1 << 6, /* neither of the two */
    MPI = 1 << 7,
    FP8 = 1 << 8,
    PREFIX_FILE = 1 << 9,
    PREFIX_HOST = 1 << 10,
    CANARY = 1 << 11,
    GATE = 1 << 12,
    RIDE = 1 << 13,
    CORES = 1 << 14,
    SLOTS_ONE = 1 << 15,
    SLOTS_MORE = 1 << 16,
    NEVER_BEHIND = 1 << 17,
    SELDOM = 1 << 18,
    BY_LESSON = 1 << 19,
    BY_UPDATE = 1 << 20,
    MAX_EFFECT = 1 << 21,
    SKIP = 1 << 23,
    DRAFT_FP8 = 1 << 24,
    MESH = 1 << 27,
    GROUPS = 1 << 22, /* --ranks makes several tensor groups */
    STAGES = 1 << 25,
    SHARDS = 1 << 26,
};

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
    {STAGES | SKIP, {"--shard stages", "--skip", "a micro-batch goes through all stages"}},
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
    const struct {
        bool is;
        unsigned fact;
    } fact[] = {
        {ranks == 1, ONE},
        {ranks > 1, SEVERAL},
        {!s->no_train, LEARNS},
        {s->no_train, SERVES_ONLY},
        {s->ranks.tensor > 1, TENSOR},
        {s->ranks.replicas, REPLICAS},
        {s->ranks.tensor <= 1 && !s->ranks.replicas, ALONE},
        {s->ranks.link == HZP_RANKS_MPI, MPI},
        {s->model.fp8, FP8},
        {s->serving.draft == HZP_DRAFT_FP8, DRAFT_FP8},
        {s->serving.prefix_dir, PREFIX_FILE},
        {s->serving.prefix_host, PREFIX_HOST},
        {s->canary.share > 0, CANARY},
        {s->learning.gate, GATE},
        {s->split.ride, RIDE},
        {s->training.skip > 0 || s->training.swap, SKIP},
        {s->split.train_cores > 0, CORES},
        {s->serving.slots < 2, SLOTS_ONE},
        {s->serving.slots > 2, SLOTS_MORE},
        {s->training.max_staleness < 1, NEVER_BEHIND},
        {s->training.publish_every != 1, SELDOM},
        {s->training.publish == HZP_PUBLISH_LESSON, BY_LESSON},
        {s->training.publish == HZP_PUBLISH_UPDATE, BY_UPDATE},
        {hzp_settings_bounds_effect(s), MAX_EFFECT},
        {s->mesh.url.count > 0, MESH},
        {s->ranks.tensor > 1 && ranks > s->ranks.tensor, GROUPS},
        {s->training.stages > 1, STAGES},
        {s->training.z1 || s->training.z2 || s->training.z3, SHARDS},
    };
    unsigned facts = 0;
    for (int i = 0; i < HZP_COUNT(fact); i++)
        facts |= fact[i].is ? fact[i].fact : 0;
    return facts;
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
