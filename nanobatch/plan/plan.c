/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/plan/plan.h"
#include "device/philox.h"

const struct hzp_needs hzp_needs_none = {{-1, -1, -1, -1, -1}};
_Static_assert(HZP_LANE_COUNT == 5, "an entry for each lane");

void hzp_plan_init(struct hzp_plan *plan)
{
    memset(plan, 0, sizeof(*plan));
    hzp_arena_init(&plan->arena);
    plan->reads_train = -1;
    plan->layer = -1;
    hzp_plan_after(plan, -1);
}

void hzp_plan_fini(struct hzp_plan *plan)
{
    hzp_arena_fini(&plan->arena);
    free(plan->item);
    free(plan->wait);
    memset(plan, 0, sizeof(*plan));
}

void hzp_plan_clear(struct hzp_plan *plan)
{
    hzp_arena_clear(&plan->arena);
    plan->items = plan->waits = 0;
    memset(plan->share, 0, sizeof(plan->share));
    plan->reads_train = -1;
    plan->computing = 0;
    plan->layer = -1;
    plan->tenant = HZP_TENANT_SERVE;
    plan->row0 = plan->rows = plan->rides = 0;
    plan->lane_of = NULL;
    plan->cores_of = NULL;
    plan->network_lane = HZP_LANE_COMPUTE;
    hzp_plan_after(plan, -1);
}

enum hzp_kind hzp_op_kind(enum hzp_op op)
{
    switch (hzp_op_class(op, NULL)) {
    case HZP_CLASS_THIN:
    case HZP_CLASS_WIDE:
    case HZP_CLASS_GRAD:
        return HZP_KIND_PRODUCT;
    case HZP_CLASS_DECODE:
        return HZP_KIND_DECODE;
    case HZP_CLASS_PREFILL:
    case HZP_CLASS_ATTN_BWD:
        return HZP_KIND_PREFILL;
    default:
        return HZP_KIND_ROWS;
    }
}

const char *hzp_lane_name_text(enum hzp_lane_name lane)
{
    static const char *const text[] = {"compute", "memory", "network", "copy", "train"};
    return lane < HZP_LANE_COUNT ? text[lane] : "?";
}

static struct hzp_item *new_item(struct hzp_plan *plan)
{
    plan->item = hzp_xgrow(plan->item, &plan->items_room, plan->items + 1, sizeof(*plan->item));
    struct hzp_item *item = &plan->item[plan->items++];
    memset(item, 0, sizeof(*item));
    item->wait0 = plan->waits;
    return item;
}

int32_t hzp_plan_add(struct hzp_plan *plan, enum hzp_op op, enum hzp_lane_name lane,
                     const void *args)
{
    struct hzp_item *item = new_item(plan);
    size_t size = hzp_op_args_size(op);
    item->op = op;
    item->lane = (uint8_t)lane;
    item->layer = plan->layer;
    if (plan->cores_of && op != HZP_OP_collective)
        item->cores = plan->cores_of[hzp_op_kind(op)];
    item->tenants = (uint8_t)(1 << plan->tenant | (plan->rides > 0) << HZP_TENANT_TRAIN);
    item->row0 = plan->row0;
    item->rows = plan->rows;
    item->rides = plan->rides;
    item->again = plan->again;
    item->args = memcpy(hzp_arena_alloc(&plan->arena, size), args, size);
    return plan->items - 1;
}

void hzp_plan_wait(struct hzp_plan *plan, int32_t earlier)
{
    HZP_ASSERT(plan->items > 0 && earlier >= 0 && earlier < plan->items - 1);
    plan->wait = hzp_xgrow(plan->wait, &plan->waits_room, plan->waits + 1, sizeof(*plan->wait));
    plan->wait[plan->waits++] = earlier;
    plan->item[plan->items - 1].waits++;
}

static enum hzp_lane_name lane_of(const struct hzp_plan *plan, enum hzp_op op)
{
    if (op == HZP_OP_collective) /* one lane for all, so that they have one order on all ranks */
        return (enum hzp_lane_name)plan->network_lane;
    return plan->lane_of ? (enum hzp_lane_name)plan->lane_of[hzp_op_kind(op)] : HZP_LANE_COMPUTE;
}

int32_t hzp_plan_next(struct hzp_plan *plan, enum hzp_op op, const void *args)
{
    return hzp_plan_next_on(plan, op, lane_of(plan, op), args);
}

int32_t hzp_plan_next_on(struct hzp_plan *plan, enum hzp_op op, enum hzp_lane_name lane,
                         const void *args)
{
    int32_t i = hzp_plan_add(plan, op, lane, args);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        hzp_plan_need(plan, plan->needs.item[l]);
    hzp_plan_after(plan, i);
    return i;
}

void hzp_plan_after(struct hzp_plan *plan, int32_t item)
{
    plan->needs = hzp_needs_none;
    hzp_plan_also(plan, item);
}

void hzp_plan_also(struct hzp_plan *plan, int32_t item)
{
    HZP_ASSERT(item < plan->items);
    if (item < 0)
        return;
    int32_t *newest = &plan->needs.item[plan->item[item].lane];
    *newest = HZP_MAX(*newest, item);
}

struct hzp_needs hzp_needs_join(struct hzp_needs a, struct hzp_needs b)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        a.item[l] = HZP_MAX(a.item[l], b.item[l]);
    return a;
}

int32_t hzp_needs_newest(const struct hzp_needs *needs)
{
    int32_t newest = -1;
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        newest = HZP_MAX(newest, needs->item[l]);
    return newest;
}

void hzp_plan_need(struct hzp_plan *plan, int32_t earlier)
{
    HZP_ASSERT(plan->items > 0 && earlier < plan->items - 1);
    if (earlier >= 0 && plan->item[earlier].lane != plan->item[plan->items - 1].lane)
        hzp_plan_wait(plan, earlier);
}

void hzp_plan_take(struct hzp_plan *plan, const struct hzp_plan *chain, int32_t from, int32_t to)
{
    HZP_ASSERT(0 <= from && from <= to && to <= chain->items);
    int32_t shift = plan->items - from;
    bool moves = plan->lane_of || plan->network_lane != HZP_LANE_COMPUTE;
    for (int32_t i = from; i < to; i++) {
        const struct hzp_item *src = &chain->item[i];
        struct hzp_item *item = new_item(plan);
        item->op = src->op;
        item->args = src->args;
        item->lane = moves ? (uint8_t)lane_of(plan, src->op) : src->lane;
        item->layer = src->layer;
        item->tenants = src->tenants;
        item->row0 = src->row0;
        item->rows = src->rows;
        item->again = src->again;
        for (int l = 0; l < HZP_LANE_COUNT && moves && i == from; l++)
            hzp_plan_need(plan, plan->needs.item[l]);
        if (moves && i > from)
            hzp_plan_need(plan, plan->items - 2);
        for (int32_t k = 0; k < src->waits; k++)
            if (chain->wait[src->wait0 + k] >= from)
                hzp_plan_wait(plan, chain->wait[src->wait0 + k] + shift);
    }
}

static void ends(const struct hzp_plan *plan, bool last, struct hzp_plan_ends *ret)
{
    for (int t = 0; t < HZP_TENANT_COUNT; t++)
        for (int l = 0; l < HZP_LANE_COUNT; l++)
            ret->item[t][l] = -1;
    for (int32_t i = 0; i < plan->items; i++)
        for (int t = 0; t < HZP_TENANT_COUNT; t++) {
            int32_t *end = &ret->item[t][plan->item[i].lane];
            if (hzp_item_of(&plan->item[i], (enum hzp_tenant)t) && (last || *end < 0))
                *end = i;
        }
}

void hzp_plan_firsts(const struct hzp_plan *plan, struct hzp_plan_ends *ret)
{
    ends(plan, false, ret);
}

void hzp_plan_lasts(const struct hzp_plan *plan, struct hzp_plan_ends *ret)
{
    ends(plan, true, ret);
    int32_t reads = plan->reads_train;
    if (reads < 0)
        return;
    int32_t *end = &ret->item[HZP_TENANT_TRAIN][plan->item[reads].lane];
    *end = HZP_MAX(*end, reads);
}

static void append(struct hzp_plan *plan, const struct hzp_plan *other, int32_t i, int32_t shift)
{
    const struct hzp_item *src = &other->item[i];
    struct hzp_item *item = new_item(plan);
    int32_t wait0 = item->wait0;
    *item = *src;
    item->wait0 = wait0;
    item->waits = 0;
    for (int32_t k = 0; k < src->waits; k++)
        hzp_plan_wait(plan, other->wait[src->wait0 + k] + shift);
}

void hzp_plan_join(struct hzp_plan *ret, const struct hzp_plan *older, const struct hzp_plan *newer)
{
    struct hzp_plan_ends first, last;
    int32_t begin = ret->items, shift = begin + older->items;
    hzp_plan_lasts(older, &last);
    hzp_plan_firsts(newer, &first);
    for (int32_t i = 0; i < older->items; i++)
        append(ret, older, i, begin);
    for (int32_t i = 0; i < newer->items; i++) {
        const struct hzp_item *item = &newer->item[i];
        append(ret, newer, i, shift);
        for (int t = 0; t < HZP_TENANT_COUNT; t++)
            for (int l = 0; l < HZP_LANE_COUNT && first.item[t][item->lane] == i; l++)
                if (l != item->lane && last.item[t][l] >= 0)
                    hzp_plan_wait(ret, last.item[t][l] + begin);
    }
}

/* For each lane, the newest item that is certain to have ended before item i begins. */
struct before {
    int32_t newest[HZP_LANE_COUNT];
};

static void join(struct before *into, const struct hzp_plan *plan, const struct before *of,
                 int32_t i)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        into->newest[l] = HZP_MAX(into->newest[l], of[i].newest[l]);
    int lane = plan->item[i].lane;
    into->newest[lane] = HZP_MAX(into->newest[lane], i);
}

/* Computes the order that lanes and waits imply: one vector clock per item. */
static int order(const struct hzp_plan *plan, struct before *of, struct hzp_err_text *reterr)
{
    int32_t last[HZP_LANE_COUNT];
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        last[l] = -1;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        for (int l = 0; l < HZP_LANE_COUNT; l++)
            of[i].newest[l] = -1;
        if (last[item->lane] >= 0)
            join(&of[i], plan, of, last[item->lane]);
        for (int32_t k = 0; k < item->waits; k++) {
            int32_t w = plan->wait[item->wait0 + k];
            if (w < 0 || w >= i)
                return hzp_fail(reterr, HZP_EINVAL,
                                "plan: item %d (%s) waits for item %d, which is not before it", i,
                                hzp_op_name(item->op), w);
            join(&of[i], plan, of, w);
        }
        last[item->lane] = i;
    }
    return HZP_OK;
}

static bool touch(const struct hzp_access *a, int as, const struct hzp_access *b, int bs)
{
    for (int i = 0; i < as; i++)
        for (int k = 0; k < bs; k++)
            if ((a[i].writes || b[k].writes) && hzp_access_meet(&a[i], &b[k]))
                return true;
    return false;
}

/* Whether the item is that part of a transfer of the link; a: whose memory it is, NULL: any. */
static bool is_part(const struct hzp_item *item, enum hzp_collective_part part,
                    const struct hzp_link *link, const struct hzp_collective_args *a)
{
    const struct hzp_collective_args *own = item->args;
    return item->op == HZP_OP_collective && own->part == (int32_t)part && own->link == link &&
           (!a || own->recv.ptr == a->recv.ptr);
}

static int touches(const struct hzp_plan *plan, int32_t i, int32_t part,
                   struct hzp_err_text *reterr)
{
    struct hzp_access moved[HZP_ACCESS_MAX], other[HZP_ACCESS_MAX];
    const struct hzp_item *item = &plan->item[i];
    int count = hzp_op_access(HZP_OP_collective, plan->item[part].args, moved) - 1; /* no link */
    if (!touch(moved, count, other, hzp_op_access(item->op, item->args, other)))
        return HZP_OK;
    return hzp_fail(reterr, HZP_EINVAL,
                    "plan: item %d (%s) touches what is exchanged from or until item %d", i,
                    hzp_op_name(item->op), part);
}

/* From the item that begins a transfer to the one that ends it no other touches its memory, and no
 * transfer that began later ends.  A slice of a chain may have only one of the two. */
static int check_begun(const struct hzp_plan *plan, int32_t begin, struct hzp_err_text *reterr)
{
    const struct hzp_collective_args *a = plan->item[begin].args;
    for (int32_t i = begin + 1; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        if (is_part(item, HZP_COLLECTIVE_END, a->link, a))
            return HZP_OK;
        for (int32_t k = begin + 1; k < i && is_part(item, HZP_COLLECTIVE_END, a->link, NULL); k++)
            if (is_part(&plan->item[k], HZP_COLLECTIVE_BEGIN, a->link, item->args))
                return hzp_fail(reterr, HZP_EINVAL,
                                "plan: item %d ends the transfer of item %d before that of %d", i,
                                k, begin);
        HZP_TRY(touches(plan, i, begin, reterr));
    }
    return HZP_OK;
}

/* The same before the end of a transfer that the plan does not begin. */
static int check_ended(const struct hzp_plan *plan, int32_t end, struct hzp_err_text *reterr)
{
    const struct hzp_collective_args *a = plan->item[end].args;
    for (int32_t i = end - 1; i >= 0; i--) {
        if (is_part(&plan->item[i], HZP_COLLECTIVE_BEGIN, a->link, a))
            return HZP_OK; /* check_begun has seen it */
        HZP_TRY(touches(plan, i, end, reterr));
    }
    return HZP_OK;
}

static int check_part(const struct hzp_plan *plan, int32_t i, struct hzp_err_text *reterr)
{
    const struct hzp_collective_args *a = plan->item[i].args;
    if (plan->item[i].op != HZP_OP_collective || a->part == HZP_COLLECTIVE_WHOLE)
        return HZP_OK;
    return a->part == HZP_COLLECTIVE_BEGIN ? check_begun(plan, i, reterr)
                                           : check_ended(plan, i, reterr);
}

int hzp_plan_check(const struct hzp_plan *plan, struct hzp_err_text *reterr)
{
    HZP_FREED struct before *of = hzp_xcalloc((size_t)plan->items, sizeof(*of));
    HZP_FREED struct hzp_access(*acc)[HZP_ACCESS_MAX] =
        hzp_xcalloc((size_t)plan->items, sizeof(*acc));
    HZP_FREED int *accs = hzp_xcalloc((size_t)plan->items, sizeof(*accs));
    HZP_TRY(order(plan, of, reterr));
    for (int32_t j = 0; j < plan->items; j++) {
        HZP_TRY(check_part(plan, j, reterr));
        accs[j] = hzp_op_access(plan->item[j].op, plan->item[j].args, acc[j]);
        for (int32_t i = 0; i < j; i++)
            if (of[j].newest[plan->item[i].lane] < i && touch(acc[i], accs[i], acc[j], accs[j]))
                return hzp_fail(reterr, HZP_EINVAL, "plan: items %d (%s) and %d (%s) race", i,
                                hzp_op_name(plan->item[i].op), j, hzp_op_name(plan->item[j].op));
    }
    return HZP_OK;
}

const char *hzp_item_tenants_text(const struct hzp_item *item)
{
    static const char *const text[] = {"-", "serve", "train", "serve+train"};
    HZP_ASSERT(item->tenants < HZP_COUNT(text));
    return text[item->tenants];
}

void hzp_plan_print(const struct hzp_plan *plan, FILE *out)
{
    fprintf(out, "%5s %-8s %5s %-16s %5s %11s %5s %5s %12s %12s  waits\n", "item", "lane", "cores",
            "op", "layer", "tenant", "row", "rows", "Mflop", "KiB");
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        struct hzp_cost cost = hzp_op_cost(item->op, item->args);
        char cores[8] = "all";
        if (item->cores)
            snprintf(cores, sizeof(cores), "%d", item->cores);
        fprintf(out, "%5d %-8s %5s %-16s %5d %11s %5d %5d %12.3f %12.1f ", i,
                hzp_lane_name_text((enum hzp_lane_name)item->lane), cores, hzp_op_name(item->op),
                item->layer, hzp_item_tenants_text(item), item->row0, item->rows + item->rides,
                (double)cost.flops * 1e-6, (double)cost.bytes / 1024);
        for (int32_t k = 0; k < item->waits; k++)
            fprintf(out, " %d", plan->wait[item->wait0 + k]);
        fputc('\n', out);
    }
}

uint64_t hzp_hash_numbers(uint64_t hash, const int32_t *number, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        hash = hzp_mix64(hash + 0x9e3779b97f4a7c15u + (uint32_t)number[i]);
    return hash;
}

/* What all ranks must exchange alike. */
static uint64_t hash_collective(uint64_t hash, const struct hzp_collective_args *a)
{
    const int32_t is[] = {a->kind,      a->wide,      a->accumulate,       a->tag, a->recv.rows,
                          a->recv.cols, a->recv.type, a->send.ptr != NULL, a->part};
    return hzp_hash_numbers(hash, is, HZP_COUNT(is));
}

uint64_t hzp_plan_hash(const struct hzp_plan *plan)
{
    uint64_t hash = 0;
    for (int32_t l = 0; l < HZP_LANE_COUNT; l++)
        hash = hzp_hash_numbers(hash, &(int32_t){plan->share[l]}, 1);
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        int32_t is[] = {(int32_t)item->op, item->lane, item->tenants, item->rides, item->layer,
                        item->row0,        item->rows, item->waits,   item->cores};
        hash = hzp_hash_numbers(hash, is, HZP_COUNT(is));
        if (item->op == HZP_OP_collective)
            hash = hash_collective(hash, item->args);
        if (item->waits)
            hash = hzp_hash_numbers(hash, plan->wait + item->wait0, item->waits);
    }
    return hash;
}
