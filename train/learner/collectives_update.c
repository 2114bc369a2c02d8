/* SPDX-License-Identifier: Apache-2.0 */
/* train/learner/collectives_update.c - an update of several ranks, its tail, which is the
 * audit of the draft, and the restoring of an older version. */
#include "base/thread.h"
#include "nanobatch/model/ride.h"
#include "train/learner/collectives_state.h"

/* --- An update -------------------------------------------------------------------------------- */

/* Returns the transfer. */
static int32_t add_losses(struct hzp_collectives *x)
{
    return hzp_transfers_gather(&x->list, x->group[HZP_GROUP_RANKS], x->loss,
                                (size_t)x->rounds * sizeof(*x->loss), x->losses,
                                hzp_collectives_tag(HZP_TAG_LOSS, 0), 0);
}

static int add_squares(void *ctx, struct hzp_err_text *reterr)
{
    struct hzp_collectives *x = ctx;
    hzp_update_add_squares(x->config.space);
    return HZP_OK;
}

/* Gathers the sums of squares.  Returns the transfer; -1: none, this rank has the whole state. */
static int32_t gather_squares(struct hzp_collectives *x, int32_t after)
{
    struct hzp_train_space *s = x->config.space;
    if (!s->square)
        return -1;
    int32_t index = hzp_transfers_gather(&x->list, x->group[HZP_GROUP_STATE], s->square,
                                         s->square_count * sizeof(double), s->squares,
                                         hzp_collectives_tag(HZP_TAG_SQUARES, 0), after);
    struct hzp_transfers_entry *entry = hzp_transfers_newest(&x->list);
    entry->then = add_squares;
    entry->ctx = x;
    return index;
}

/* Gathers a unit of the draft from the shards of the state that its resident part consists of. */
static int32_t add_refresh(struct hzp_collectives *x, const struct hzp_version *draft, int32_t u,
                           int32_t after)
{
    const struct hzp_model *model = x->config.model;
    const struct hzp_shards *shards = &x->config.shards;
    const struct hzp_units *units = hzp_version_units(model->weights, draft);
    size_t room = model->layout->unit[u].room;
    if (x->size[HZP_GROUP_REFRESH] == 1)
        return -1;
    struct hzp_extent state =
        hzp_groups_extent(&shards->groups, HZP_LEVEL_STATE, shards->rank, room);
    struct hzp_extent all =
        hzp_groups_extent(&shards->groups, HZP_LEVEL_PARAMS, shards->rank, room);
    size_t size = hzp_dtype_size(units->type);
    char *base = hzp_unit_base(units, u);
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_REFRESH],
                                .count = state.count * size,
                                .send = base + (state.first - all.first) * size,
                                .recv = base,
                                .tag = hzp_collectives_tag(HZP_TAG_REFRESH, u)};
    return hzp_transfers_add(&x->list, &what, after);
}

/* What the ranks that together hold one copy of the parameters found; copies are numbered 0 .. R /
 * z3 - 1.  The position of a rank's part of the parameters is the uppermost digit of its position.
 * */
static struct hzp_rank_result result_of_copy(const struct hzp_collectives *x, int32_t copy)
{
    const struct hzp_groups *g = &x->config.shards.groups;
    int32_t copies = g->ranks / g->z3;
    struct hzp_rank_result sum = {.sumsq = x->results[copy].sumsq};
    for (int32_t d3 = 0; d3 < g->z3; d3++) {
        const struct hzp_rank_result *part = &x->results[d3 * copies + copy];
        if (part->sumsq != sum.sumsq) /* or not finite */
            sum.sumsq = NAN;
        sum.checksum += part->checksum;
        sum.nonfinite += part->nonfinite;
    }
    return sum;
}

/* Each rank decides by its own norm whether the update counts, so all must have the same. */
static int compare_norms(const struct hzp_collectives *x, struct hzp_err_text *reterr)
{
    double first = x->results[0].sumsq;
    for (int32_t i = 1; i < x->config.shards.groups.ranks; i++) {
        double other = x->results[i].sumsq;
        if (isfinite(first) ? other != first : isfinite(other))
            return hzp_fail(reterr, HZP_EIO,
                            "ranks have computed different norms of the gradients (sum of squares "
                            "%.17g at position %d, %.17g at position 0)",
                            other, i, first);
    }
    return HZP_OK;
}

/* All ranks are ready: compares what they found. */
static int compare_results(void *ctx, struct hzp_err_text *reterr)
{
    struct hzp_collectives *x = ctx;
    const struct hzp_groups *g = &x->config.shards.groups;
    struct hzp_update_result *ret = x->config.space->result;
    HZP_TRY(compare_norms(x, reterr));
    struct hzp_rank_result first = result_of_copy(x, 0);
    for (int32_t i = 1; i < g->ranks / g->z3; i++) {
        struct hzp_rank_result other = result_of_copy(x, i);
        bool same = isfinite(first.sumsq) ? first.sumsq == other.sumsq : !isfinite(other.sumsq);
        if (!same || first.checksum != other.checksum)
            return hzp_fail(reterr, HZP_EIO,
                            "ranks have computed different versions (checksum %016" PRIx64
                            " in copy %d, %016" PRIx64 " in copy 0)",
                            other.checksum, i, first.checksum);
    }
    ret->sumsq = first.sumsq;
    ret->checksum = first.checksum;
    ret->nonfinite = first.nonfinite;
    x->audit.compared = true;
    return HZP_OK;
}

/* Audits this rank's part of a unit on the host, of a device's memory a copy: the op audits whole
 * units. */
static int audit_part(struct hzp_collectives *x, const struct hzp_version *draft, int32_t u)
{
    struct hzp_unit_view part = hzp_version_unit(x->config.model->weights, draft, u);
    struct hzp_update_result *result = x->config.space->result;
    void *owned;
    HZP_TRY(hzp_unit_read(x->config.model->dev, &part, &part, &owned));
    result->checksum += hzp_unit_checksum(&part);
    result->nonfinite += hzp_unit_nonfinite(&part);
    free(owned);
    return HZP_OK;
}

/* The refresh of all units is done. */
static int audit_parts(void *ctx, struct hzp_err_text *reterr)
{
    struct hzp_collectives *x = ctx;
    for (int32_t u = 0; u < x->config.model->layout->units; u++) {
        int r = audit_part(x, x->draft, u);
        if (r < 0)
            return hzp_fail(reterr, r, "cannot read the new version: %s", hzp_err_name(r));
    }
    return HZP_OK;
}

/* Whether this rank has audited its draft, so that the results may be exchanged. */
static bool has_audited(void *ctx)
{
    const struct hzp_collectives *x = ctx;
    return x->audit.built && x->audit.at == x->audit.chain.items;
}

static void add_result(struct hzp_collectives *x)
{
    HZP_ASSERT(sizeof(struct hzp_rank_result) == offsetof(struct hzp_update_result, elsewhere));
    hzp_transfers_gather(&x->list, x->group[HZP_GROUP_RANKS], x->config.space->result,
                         sizeof(struct hzp_rank_result), x->results,
                         hzp_collectives_tag(HZP_TAG_RESULT, 0), 0);
    struct hzp_transfers_entry *entry = hzp_transfers_newest(&x->list);
    entry->ready = has_audited;
    entry->then = compare_results;
    entry->ctx = x;
    if (hzp_weights_gathered(x->config.model->weights)) {
        entry->behind = true; /* every refresh is done */
        entry->before = audit_parts;
    }
}

static void begin_update(struct hzp_collectives *x, const struct hzp_version *draft)
{
    hzp_assert_engine_thread();
    hzp_collectives_append(x);
    hzp_transfers_begin(&x->list);
    x->draft = draft;
    x->audit.built = x->audit.compared = false;
    x->audit.at = x->audit.to = 0;
    hzp_collectives_empty_ring(x);
    x->updated = add_losses(x);
}

void hzp_collectives_group_update(struct hzp_collectives *x, const struct hzp_plan *chain,
                                  const struct hzp_version *draft)
{
    begin_update(x, draft);
    hzp_collectives_add_gates(x, chain);
    add_result(x);
}

/* The sum of squares goes through the stages, in the order of units on one rank: from rank 0, which
 * has the embedding, to the last stage, and back to rank 0, which has the head and tells all. */
static void add_stage_norms(struct hzp_collectives *x, struct hzp_plan *chain)
{
    struct hzp_train_space *s = x->config.space;
    int32_t rank = x->config.shards.rank, head = x->config.model->layout->units - 1;
    double *sum = &s->result->sumsq;
    uint64_t tag = hzp_collectives_tag(HZP_TAG_SQUARES, 0);
    int32_t stages = x->config.shards.stages, before = (rank + stages - 1) % stages;
    struct hzp_transfer from = hzp_collectives_pass(x, before, false, sum, sizeof(*sum), tag);
    struct hzp_transfer to =
        hzp_collectives_pass(x, (rank + 1) % stages, true, sum, sizeof(*sum), tag);
    if (rank > 0)
        hzp_transfers_depend(&x->list, chain->items,
                             hzp_transfers_add(&x->list, &from, chain->items));
    for (int32_t u = 0; u < head; u++)
        hzp_update_norm(chain, s, u);
    int32_t sent = hzp_transfers_add(&x->list, &to, chain->items);
    if (rank == 0) {
        int32_t back = hzp_transfers_add(&x->list, &from, chain->items);
        hzp_transfers_newest(&x->list)->behind = true; /* it is the same memory */
        hzp_transfers_depend(&x->list, chain->items, HZP_MAX(sent, back));
        hzp_update_norm(chain, s, head);
    }
    struct hzp_transfer all = {.op = HZP_BROADCAST,
                               .type = HZP_WIRE_BYTE,
                               .group = x->group[HZP_GROUP_RANKS],
                               .count = sizeof(*sum),
                               .recv = sum,
                               .host = true,
                               .tag = hzp_collectives_tag(HZP_TAG_SQUARES, 1)};
    x->updated = hzp_transfers_add(&x->list, &all, chain->items);
    hzp_transfers_newest(&x->list)->behind = true;
}

void hzp_collectives_update(struct hzp_collectives *x, struct hzp_plan *chain,
                            const struct hzp_version *v, struct hzp_version *draft,
                            const struct hzp_update_hyper *hyper, bool ahead)
{
    const struct hzp_model *model = x->config.model;
    struct hzp_train_space *s = x->config.space;
    int32_t units = model->layout->units;
    begin_update(x, draft);
    hzp_update_begin(chain, s);
    for (int32_t i = 0; i < units && x->config.shards.stages <= 1; i++) {
        /* In the order in which sums are complete; but squares that are added at once, in the order
         * of one rank. */
        int32_t u = s->square ? units - 1 - i : i;
        hzp_transfers_depend(&x->list, chain->items, x->reduced[u]);
        hzp_update_norm(chain, s, u);
    }
    if (x->config.shards.stages > 1)
        add_stage_norms(x, chain);
    int32_t gathered = gather_squares(x, chain->items);
    x->updated = HZP_MAX(gathered, x->updated);
    hzp_transfers_depend(&x->list, chain->items, x->updated);
    for (int32_t u = 0; u < units; u++) {
        hzp_update_adamw(chain, model, v, draft, hyper, s, u);
        x->refresh[u] = add_refresh(x, draft, u, chain->items);
        if (ahead)
            hzp_collectives_gather_first(x, draft, u, chain->items);
    }
    add_result(x);
}

bool hzp_collectives_updated(const struct hzp_collectives *x)
{
    return x->updated < x->list.done;
}

/* --- The audit -------------------------------------------------------------------------------- */

void hzp_collectives_audit(struct hzp_collectives *x)
{
    hzp_assert_engine_thread();
    const struct hzp_model *model = x->config.model;
    struct hzp_train_space *s = x->config.space;
    struct hzp_plan *chain = &x->audit.chain;
    bool whole = !hzp_weights_gathered(model->weights); /* else see audit_parts */
    HZP_ASSERT(x->draft && !x->audit.built);
    hzp_plan_clear(chain);
    x->audit.built = true;
    if (model->tensor) /* the update's chain has audited it */
        return;
    chain->tenant = HZP_TENANT_TRAIN;
    chain->layer = -1;
    for (int32_t u = 0; u < model->layout->units; u++) {
        x->audit.first[u] = chain->items;
        if (whole)
            hzp_update_audit(chain, model, x->draft, s, u);
    }
    hzp_update_end(chain, model, x->draft, s);
}

int32_t hzp_collectives_audit_limit(const struct hzp_collectives *x)
{
    for (int32_t u = 0; u < x->config.model->layout->units; u++)
        if (x->refresh[u] >= x->list.done)
            return x->audit.first[u];
    return x->audit.chain.items;
}

const struct hzp_slice *hzp_collectives_offer_audit(struct hzp_collectives *x,
                                                    const struct hzp_step *step,
                                                    const struct hzp_room *room,
                                                    struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_draft_audit *a = &x->audit;
    int32_t limit = hzp_collectives_audit_limit(x);
    if (!a->built || a->to == limit)
        return NULL;
    struct hzp_slice *slice =
        hzp_offer_add(offer, &(struct hzp_slice){.chain = &a->chain, .from = a->to});
    int32_t end = hzp_ride_cut(NULL, step->version, room->op_times, &a->chain, a->to,
                               room->train_ns, room->item_ns, 0);
    slice->to = a->to = HZP_MIN(end, limit);
    return slice;
}

void hzp_collectives_deliver_audit(struct hzp_collectives *x, const struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    const struct hzp_slice *slice = hzp_offer_slice(offer, &x->audit.chain);
    if (slice && slice->to > slice->from)
        x->audit.at = slice->to;
}

bool hzp_collectives_whole(const struct hzp_collectives *x)
{
    return x->audit.compared;
}

/* --- A version -----------------------------------------------------------------------------------
 * It and the optimizer's state that belongs to it come to all ranks: rank 0 sends whole units, each
 * rank keeps its part of them. */

size_t hzp_collectives_fill_elements(const struct hzp_collectives *x)
{
    return hzp_layout_largest(x->config.model->layout);
}

void hzp_collectives_fill(struct hzp_collectives *x, const struct hzp_work *work,
                          const struct hzp_version *v)
{
    hzp_assert_engine_thread();
    const struct hzp_units *units = hzp_collectives_part(x, work->gather.part, v);
    size_t elements = 0;
    for (int32_t u = work->gather.unit; u < work->gather.unit + work->units; u++)
        elements += units->layout->unit[u].elements;
    HZP_ASSERT(elements <= hzp_collectives_fill_elements(x));
    hzp_collectives_append(x);
    struct hzp_transfer what = {.op = HZP_BROADCAST,
                                .type = HZP_WIRE_BYTE,
                                .count = elements * hzp_dtype_size(units->type),
                                .recv = hzp_collectives_stage(x),
                                .tag = hzp_collectives_tag(HZP_TAG_FILL, work->gather.unit)};
    hzp_transfers_add(&x->list, &what, 0);
}

void hzp_collectives_keep(struct hzp_collectives *x, const struct hzp_work *work,
                          const struct hzp_version *draft, struct hzp_rank_filled *filled)
{
    hzp_assert_engine_thread();
    enum hzp_state_part part = work->gather.part;
    struct hzp_device *dev = x->config.model->dev;
    char *at = hzp_collectives_stage(x);
    for (int32_t u = work->gather.unit; u < work->gather.unit + work->units; u++) {
        struct hzp_unit_view mine = hzp_unit_view(hzp_collectives_part(x, part, draft), u);
        struct hzp_unit_view whole = mine;
        size_t size = hzp_dtype_size(mine.type);
        void *owned = NULL;
        whole.base = at;
        whole.part = (struct hzp_extent){.first = 0, .count = whole.elements};
        if (hzp_device_copy(dev, mine.base, at + mine.part.first * size, hzp_unit_bytes(&mine)) <
                0 ||
            hzp_unit_read(dev, &whole, &whole, &owned) < 0) {
            hzp_collectives_fail(x, "the device failed");
            return;
        }
        filled->received += hzp_unit_checksum(&whole);
        mine.base = (char *)whole.base + mine.part.first * size;
        if (part == HZP_STATE_WEIGHTS)
            filled->weights += hzp_unit_checksum(&mine);
        free(owned);
        at += whole.elements * size;
    }
}

/* Copies of the parameters are numbered as in result_of_copy. */
static uint64_t weights_of_copy(const struct hzp_collectives *x, int32_t copy)
{
    const struct hzp_groups *g = &x->config.shards.groups;
    uint64_t sum = 0;
    for (int32_t d3 = 0; d3 < g->z3; d3++)
        sum += x->all_filled[d3 * (g->ranks / g->z3) + copy].weights;
    return sum;
}

/* All ranks are ready, and all come to the same result. */
static int compare(void *ctx, struct hzp_err_text *reterr)
{
    struct hzp_collectives *x = ctx;
    const struct hzp_groups *g = &x->config.shards.groups;
    uint64_t sum = x->work.checksum ? x->work.checksum : weights_of_copy(x, 0);
    for (int32_t i = 1; i < g->ranks; i++)
        if (x->all_filled[i].received != x->all_filled[0].received)
            return hzp_fail(reterr, HZP_EIO,
                            "ranks have received different versions (checksum %016" PRIx64
                            " on rank %" PRId64 ", %016" PRIx64 " on rank %" PRId64 ")",
                            x->all_filled[i].received, x->all_filled[i].rank,
                            x->all_filled[0].received, x->all_filled[0].rank);
    for (int32_t i = 0; i < g->ranks / g->z3; i++)
        if (weights_of_copy(x, i) != sum)
            return hzp_fail(reterr, HZP_EIO,
                            "ranks hold different weights (checksum %016" PRIx64
                            " in copy %d, rank %" PRId64 " among its ranks; %016" PRIx64
                            " were sent)",
                            weights_of_copy(x, i), i, x->all_filled[i].rank, sum);
    return HZP_OK;
}

void hzp_collectives_compare(struct hzp_collectives *x, const struct hzp_rank_filled *mine)
{
    hzp_assert_engine_thread();
    hzp_collectives_append(x);
    hzp_collectives_empty_ring(x);
    x->filled = *mine;
    x->filled.rank = x->config.shards.rank;
    hzp_transfers_gather(&x->list, x->group[HZP_GROUP_RANKS], &x->filled, sizeof(x->filled),
                         x->all_filled, hzp_collectives_tag(HZP_TAG_COMPARE, 0), 0);
    struct hzp_transfers_entry *entry = hzp_transfers_newest(&x->list);
    entry->then = compare;
    entry->ctx = x;
}
