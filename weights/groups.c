/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/groups.h"

#include "device/q8.h"

/* A rank's digits; see the header. */
struct digits {
    int32_t d0, d1, d2, d3;
};

static struct digits digits_of(const struct hzp_groups *g, int32_t rank)
{
    return (struct digits){.d3 = rank % g->z3,
                           .d2 = rank / g->z3 % (g->z2 / g->z3),
                           .d1 = rank / g->z2 % (g->z1 / g->z2),
                           .d0 = rank / g->z1};
}

struct hzp_shards hzp_shards_of(const struct hzp_shards *shards)
{
    struct hzp_shards s = *shards;
    if (!s.groups.ranks)
        s.groups = (struct hzp_groups){1, 1, 1, 1};
    return s;
}

int32_t hzp_stage_speed(const struct hzp_shards *shards, int32_t stage)
{
    bool given = stage < HZP_STAGE_SPEEDS_MAX && shards->speed[stage];
    return given ? shards->speed[stage] : 100;
}

/* The layer that stage s ends with, when the one before it has ended with `from`. */
static int32_t end_of_stage(const struct hzp_layout *layout, const struct hzp_shards *shards,
                            int32_t s, int32_t from)
{
    const struct hzp_model_config *c = &layout->config;
    int32_t layers = layout->units - 2, stages = shards->stages, end = from;
    size_t speeds = 0, so_far = 0;
    size_t head = (size_t)c->vocab * (size_t)c->width, all = head, before = head;
    for (int32_t l = 0; l < layers; l++)
        all += layout->unit[1 + l].elements;
    for (int32_t l = 0; l < from; l++)
        before += layout->unit[1 + l].elements;
    for (int32_t i = 0; i < stages; i++) {
        speeds += (size_t)hzp_stage_speed(shards, i);
        so_far += i <= s ? (size_t)hzp_stage_speed(shards, i) : 0;
    }
    size_t aim = all / speeds * so_far;
    while (end < layers && before + layout->unit[1 + end].elements / 2 <= aim)
        before += layout->unit[1 + end++].elements;
    return s == stages - 1 ? layers : HZP_MIN(HZP_MAX(end, from + 1), layers - (stages - 1 - s));
}

int hzp_stages_cut(struct hzp_shards *shards, const struct hzp_layout *layout,
                   struct hzp_err_text *reterr)
{
    int32_t layers = layout->units - 2;
    if (shards->stages > layers)
        return hzp_fail_param(reterr, HZP_EINVAL, "--shard stages",
                              "--shard stages=%d: the model has only %d layers", shards->stages,
                              layers);
    shards->groups = (struct hzp_groups){1, 1, 1, 1};
    shards->layer_end = 0;
    for (int32_t s = 0; s <= shards->rank; s++) {
        shards->layer = shards->layer_end;
        shards->layer_end = end_of_stage(layout, shards, s, shards->layer);
    }
    return HZP_OK;
}

bool hzp_shards_hold(const struct hzp_shards *shards, int32_t units, int32_t u)
{
    if (shards->stages <= 1)
        return true;
    if (u == 0 || u == units - 1)
        return shards->rank == 0;
    return u > shards->layer && u <= shards->layer_end;
}

bool hzp_shards_whole(const struct hzp_shards *shards)
{
    return shards->groups.z3 <= 1 && shards->stages <= 1;
}

bool hzp_shards_fresh(const struct hzp_shards *shards)
{
    return shards->ordered || shards->groups.z2 > 1;
}

int hzp_groups_check(const struct hzp_groups *g, struct hzp_err_text *reterr)
{
    const struct {
        const char *name, *of;
        int32_t size, above;
    } level[] = {{"--shard z1", "--ranks", g->z1, g->ranks},
                 {"--shard z2", "--shard z1", g->z2, g->z1},
                 {"--shard z3", "--shard z2", g->z3, g->z2}};
    if (g->ranks < 1 || g->ranks > HZP_GROUP_RANKS_MAX)
        return hzp_fail_param(reterr, HZP_EINVAL, "--ranks", "--ranks %d is not in 1 .. %d",
                              g->ranks, HZP_GROUP_RANKS_MAX);
    for (int i = 0; i < HZP_COUNT(level); i++)
        if (level[i].size < 1 || level[i].above % level[i].size)
            return hzp_fail_param(reterr, HZP_EINVAL, level[i].name, "%s %d does not divide %s %d",
                                  level[i].name, level[i].size, level[i].of, level[i].above);
    return HZP_OK;
}

size_t hzp_groups_granule(const struct hzp_groups *g, bool ordered)
{
    if (g->ranks == 1)
        return 1;
    return (size_t)(ordered ? g->ranks : g->z1) * HZP_BLOCK_ELEMENTS;
}

int32_t hzp_groups_shards(const struct hzp_groups *g, enum hzp_level level)
{
    const int32_t shards[HZP_LEVEL_COUNT] = {g->z3, g->z2, g->z1, g->ranks};
    return shards[level];
}

int32_t hzp_groups_position(const struct hzp_groups *g, enum hzp_level level, int32_t rank)
{
    struct digits d = digits_of(g, rank);
    int32_t at = d.d3;
    if (level >= HZP_LEVEL_GRADS)
        at = at * (g->z2 / g->z3) + d.d2;
    if (level >= HZP_LEVEL_STATE)
        at = at * (g->z1 / g->z2) + d.d1;
    if (level >= HZP_LEVEL_RANKS)
        at = at * (g->ranks / g->z1) + d.d0;
    return at;
}

struct hzp_extent hzp_groups_extent(const struct hzp_groups *g, enum hzp_level level, int32_t rank,
                                    size_t room)
{
    size_t shards = (size_t)hzp_groups_shards(g, level);
    HZP_ASSERT(room % shards == 0);
    return (struct hzp_extent){
        .first = room / shards * (size_t)hzp_groups_position(g, level, rank),
        .count = room / shards,
    };
}

/* Whether two ranks are in one group of this kind. */
static bool together(const struct hzp_groups *g, enum hzp_group group, int32_t rank, int32_t other)
{
    struct digits a = digits_of(g, rank), b = digits_of(g, other);
    switch (group) {
    case HZP_GROUP_PARAMS:
        return a.d2 == b.d2 && a.d1 == b.d1 && a.d0 == b.d0;
    case HZP_GROUP_GRADS:
        return a.d1 == b.d1 && a.d0 == b.d0;
    case HZP_GROUP_STATE:
        return a.d0 == b.d0;
    case HZP_GROUP_SUM:
        return a.d3 == b.d3 && a.d2 == b.d2 && a.d0 == b.d0;
    case HZP_GROUP_REFRESH:
        return a.d3 == b.d3 && a.d0 == b.d0;
    case HZP_GROUP_COPIES:
        return a.d3 == b.d3 && a.d2 == b.d2 && a.d1 == b.d1;
    default:
        return true;
    }
}

int32_t hzp_groups_members(const struct hzp_groups *g, enum hzp_group group, int32_t rank, int *ret)
{
    int32_t count = 0;
    for (int32_t other = 0; other < g->ranks; other++) {
        if (!together(g, group, rank, other))
            continue;
        /* Sorted by the finest position, by which all coarser ones are sorted too. */
        int32_t at = count++, position = hzp_groups_position(g, HZP_LEVEL_RANKS, other);
        while (at > 0 && hzp_groups_position(g, HZP_LEVEL_RANKS, ret[at - 1]) > position) {
            ret[at] = ret[at - 1];
            at--;
        }
        ret[at] = other;
    }
    return count;
}

/* --- Memory and wire -------------------------------------------------------------------------- */

struct hzp_groups_model hzp_groups_model(const struct hzp_shards *shards,
                                         const struct hzp_layout *layout)
{
    struct hzp_groups_model model = {.ordered = shards->ordered, .slots = 1, .micros = 1};
    size_t granule = hzp_groups_granule(&shards->groups, shards->ordered);
    for (int32_t u = 0; u < layout->units; u++) {
        if (!hzp_shards_hold(shards, layout->units, u))
            continue;
        size_t room = HZP_ROUND_UP(layout->unit[u].room, granule);
        model.elements += room;
        if (u == 0)
            model.embedding = room;
        if (u == 0 && layout->config.tied)
            model.tied = room;
        else
            model.largest = HZP_MAX(model.largest, room);
    }
    return model;
}

/* Of one moment of all elements. */
static size_t moment_bytes(const struct hzp_groups_model *m)
{
    size_t codes = m->elements - m->embedding;
    if (m->moment_type != HZP_Q8)
        return m->elements * hzp_dtype_size(m->moment_type);
    return codes + (HZP_DIV_UP(codes, (size_t)HZP_Q8_BLOCK) + m->embedding) * sizeof(float);
}

struct hzp_groups_bytes hzp_groups_bytes(const struct hzp_groups *g,
                                         const struct hzp_groups_model *m)
{
    size_t w = hzp_dtype_size(m->type), residual = m->type == HZP_BF16 ? sizeof(int16_t) : 0;
    struct hzp_groups_bytes b = {
        .weights = (size_t)m->slots * w * (m->elements / (size_t)g->z3),
        .grads = sizeof(float) * (m->elements / (size_t)(m->ordered ? g->ranks : g->z2)),
        .residuals = residual * (m->elements / (size_t)g->z1),
        .state = 2 * (moment_bytes(m) / (size_t)g->z1),
        .gathered = g->z3 > 1 ? w * (3 * m->largest + m->tied) : 0,
        .fresh = g->z2 > 1 || m->ordered ? sizeof(float) * (2 * m->largest + m->tied) : 0,
    };
    b.state += b.residuals;
    if (m->ordered && g->z1 < g->ranks)
        b.grads += sizeof(float) * (m->elements / (size_t)g->z1);
    b.total = b.weights + b.grads + b.state + b.gathered + b.fresh;
    return b;
}

/* What one of n ranks sends to gather or scatter so many bytes. */
static double ring(double bytes, int32_t n)
{
    return bytes * (n - 1) / n;
}

struct hzp_groups_wire hzp_groups_wire(const struct hzp_groups *g, const struct hzp_groups_model *m)
{
    double params = (double)m->elements * (double)hzp_dtype_size(m->type);
    double grads = (double)m->elements * sizeof(float);
    struct hzp_groups_wire wire = {.micro = 2 * ring(params, g->z3) +
                                            ring(grads, m->ordered ? g->ranks : g->z2)};
    double sum =
        m->ordered ? ring(grads / g->z1, g->ranks / g->z1)
                   : ring(grads / g->z2, g->z1 / g->z2) + 2 * ring(grads / g->z1, g->ranks / g->z1);
    wire.update = m->micros * wire.micro + sum + ring(params / g->z3, g->z1 / g->z3);
    return wire;
}

/* --- Choosing --------------------------------------------------------------------------------- */

/* One choice and what it costs. */
struct choice {
    struct hzp_groups groups;
    struct hzp_groups_bytes bytes;
    struct hzp_groups_wire wire;
};

static struct choice weigh(const struct hzp_groups *g, const struct hzp_layout *layout,
                           const struct hzp_groups_model *given)
{
    const struct hzp_shards shards = {.groups = *g, .ordered = given->ordered};
    struct hzp_groups_model model = *given, padded = hzp_groups_model(&shards, layout);
    model.elements = padded.elements;
    model.largest = padded.largest;
    model.tied = padded.tied;
    model.embedding = padded.embedding;
    return (struct choice){*g, hzp_groups_bytes(g, &model), hzp_groups_wire(g, &model)};
}

/* Whether a sends less than b or, if they send the same, has smaller groups. */
static bool better(const struct choice *a, const struct choice *b)
{
    if (a->wire.update != b->wire.update)
        return a->wire.update < b->wire.update;
    const struct hzp_groups *x = &a->groups, *y = &b->groups;
    return x->z3 != y->z3 ? x->z3 < y->z3 : x->z2 != y->z2 ? x->z2 < y->z2 : x->z1 < y->z1;
}

static void print_choice(FILE *out, const struct choice *c, const char *note)
{
    const double mb = 1024 * 1024;
    fprintf(out,
            "  z1 %d z2 %d z3 %d: %.1f MB a rank (weights %.1f, gradients %.1f, state %.1f, rings "
            "%.1f); sends %.1f MB a micro-batch, %.1f MB an update%s\n",
            c->groups.z1, c->groups.z2, c->groups.z3, (double)c->bytes.total / mb,
            (double)c->bytes.weights / mb, (double)c->bytes.grads / mb, (double)c->bytes.state / mb,
            (double)(c->bytes.gathered + c->bytes.fresh) / mb, c->wire.micro / mb,
            c->wire.update / mb, note);
}

/* Whether a candidate agrees with what the caller has fixed. */
static bool allowed(const struct hzp_groups *given, const struct hzp_groups *g)
{
    return (!given->z1 || given->z1 == g->z1) && (!given->z2 || given->z2 == g->z2) &&
           (!given->z3 || given->z3 == g->z3);
}

/* The next larger divisor of n after d; more than n: there is none. */
static int32_t next_divisor(int32_t n, int32_t d)
{
    do
        d++;
    while (d <= n && n % d);
    return d;
}

/* Goes on to the next valid triple; false: there is none. */
static bool next(struct hzp_groups *g)
{
    g->z3 = next_divisor(g->z2, g->z3);
    if (g->z3 <= g->z2)
        return true;
    g->z3 = 1;
    g->z2 = next_divisor(g->z1, g->z2);
    if (g->z2 <= g->z1)
        return true;
    g->z2 = 1;
    g->z1 = next_divisor(g->ranks, g->z1);
    return g->z1 <= g->ranks;
}

/* The best choice within the limit, and the one of fewest bytes.  False: nothing is allowed. */
static bool search(const struct hzp_groups *given, const struct hzp_layout *layout,
                   const struct hzp_groups_model *model, size_t limit, struct choice *ret_best,
                   struct choice *ret_least, bool *ret_fits)
{
    bool any = false;
    *ret_fits = false;
    struct hzp_groups g = {given->ranks, 1, 1, 1};
    do {
        if (!allowed(given, &g))
            continue;
        struct choice c = weigh(&g, layout, model);
        if (!any || c.bytes.total < ret_least->bytes.total)
            *ret_least = c;
        any = true;
        if (c.bytes.total <= limit && (!*ret_fits || better(&c, ret_best))) {
            *ret_best = c;
            *ret_fits = true;
        }
    } while (next(&g));
    return any;
}

/* Whether b is a neighbour of a: one level has another size. */
static bool neighbours(const struct hzp_groups *a, const struct hzp_groups *b)
{
    return (a->z1 != b->z1) + (a->z2 != b->z2) + (a->z3 != b->z3) <= 1;
}

static void print_choices(FILE *out, const struct hzp_groups *given, const struct choice *best,
                          const struct hzp_layout *layout, const struct hzp_groups_model *model,
                          size_t limit)
{
    struct hzp_groups g = {given->ranks, 1, 1, 1};
    fprintf(out, "groups of %d ranks, the least sent of what fits %.1f MB\n", given->ranks,
            (double)limit / (1024 * 1024));
    do {
        if (!allowed(given, &g) || !neighbours(&g, &best->groups))
            continue;
        struct choice c = weigh(&g, layout, model);
        bool chosen = !memcmp(&g, &best->groups, sizeof(g));
        print_choice(out, &c,
                     chosen                              ? "; chosen"
                     : c.bytes.total > limit             ? "; does not fit"
                     : better(&c, best)                  ? ""
                     : c.wire.update > best->wire.update ? "; sends more"
                                                         : "; larger groups");
    } while (next(&g));
}

/* Names the first given size that cannot be. */
static int check_given(const struct hzp_groups *given, struct hzp_err_text *reterr)
{
    const struct {
        const char *name;
        int32_t size;
    } level[] = {{"--shard z1", given->z1}, {"--shard z2", given->z2}, {"--shard z3", given->z3}};
    struct hzp_groups g = *given;
    for (int i = 0; i < HZP_COUNT(level); i++)
        if (level[i].size && given->ranks % level[i].size)
            return hzp_fail_param(reterr, HZP_EINVAL, level[i].name,
                                  "%s %d does not divide --ranks %d", level[i].name, level[i].size,
                                  given->ranks);
    g.z1 = g.z1 ? g.z1 : g.ranks;
    g.z2 = g.z2 ? g.z2 : g.z3 ? g.z3 : 1;
    g.z3 = g.z3 ? g.z3 : 1;
    return hzp_groups_check(&g, reterr);
}

int hzp_groups_choose(struct hzp_groups *groups, const struct hzp_layout *layout,
                      const struct hzp_groups_model *model, size_t limit, FILE *report,
                      struct hzp_err_text *reterr)
{
    struct choice best, least;
    bool fits;
    struct hzp_groups whole = {groups->ranks, 1, 1, 1};
    HZP_TRY(hzp_groups_check(&whole, reterr));
    if (!search(groups, layout, model, limit, &best, &least, &fits)) {
        HZP_TRY(check_given(groups, reterr));
        return hzp_fail(reterr, HZP_EINVAL, "--shard: no sizes fit those given and %d ranks",
                        groups->ranks);
    }
    if (!fits)
        return hzp_fail(reterr, HZP_ENOMEM,
                        "not enough memory for the shards: with --shard z1=%d,z2=%d,z3=%d a rank "
                        "needs %zu MB of %zu MB",
                        least.groups.z1, least.groups.z2, least.groups.z3, least.bytes.total >> 20,
                        limit >> 20);
    if (report)
        print_choices(report, groups, &best, layout, model, limit);
    *groups = best.groups;
    return HZP_OK;
}
