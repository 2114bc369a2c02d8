/* SPDX-License-Identifier: Apache-2.0 */
#include "train/collectives.h"

#include "base/arena.h"
#include "base/thread.h"
#include "nanobatch/build/train_space_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The kinds of transfers, in the upper bits of their tags; the unit is in the lower ones. */
enum tag {
    TAG_COMMAND = 1,
    TAG_PAYLOAD,
    TAG_GATHER,
    TAG_SCATTER,
    TAG_LOSS,
    TAG_SUM,
    TAG_COPIES,
    TAG_SQUARES,
    TAG_REFRESH,
    TAG_RESULT,
    TAG_STATE,
    TAG_SHARE,
    TAG_AGREE,
};

/* What one rank found in its audit of the draft. */
struct result {
    double sumsq;
    uint64_t checksum;
    int64_t nonfinite;
};

struct hzp_collectives {
    struct hzp_collectives_config config;
    int group[HZP_GROUP_COUNT]; /* numbers on the link; of groups of one rank: not used */
    int32_t size[HZP_GROUP_COUNT];
    struct hzp_transfers list;
    struct hzp_rank_command command;
    void *payload;
    size_t payload_room;
    int32_t command_entry; /* the newest command's transfer in the list, or its payload's */
    double *loss, *losses; /* [rounds_room] of this rank's micro-batches; [ranks][rounds] of all */
    int32_t rounds, rounds_room;
    /* Transfers in the list, -1: done or none.  scatter: that frees each place of fresh gradients,
     * the last one a tied embedding's; reduced: after which a unit's sums are complete. */
    int32_t scatter[3], *reduced;    /* [units] */
    struct result mine, *results;    /* [ranks] in the order of HZP_GROUP_RANKS */
    const struct hzp_version *draft; /* of the update */
    void *state; /* one unit of the optimizer's state; NULL: none gathered yet */
    bool failed;
    struct hzp_err_text error;
};

/* --- Creation --------------------------------------------------------------------------------- */

/* Nothing is in flight. */
static void forget(struct hzp_collectives *x)
{
    x->command_entry = -1;
    for (int i = 0; i < HZP_COUNT(x->scatter); i++)
        x->scatter[i] = -1;
    for (int32_t u = 0; u < x->config.model->layout->units; u++)
        x->reduced[u] = -1;
}

static int open_groups(struct hzp_collectives *x, struct hzp_err_text *reterr)
{
    const struct hzp_shards *shards = &x->config.shards;
    int member[HZP_GROUP_RANKS_MAX];
    for (int g = 0; g < HZP_GROUP_COUNT; g++) {
        x->size[g] = hzp_groups_members(&shards->groups, (enum hzp_group)g, shards->rank, member);
        if (x->size[g] == 1)
            continue;
        x->group[g] = hzp_link_group(x->config.link, member, x->size[g], reterr);
        HZP_TRY(x->group[g]);
    }
    return HZP_OK;
}

int hzp_collectives_create(const struct hzp_collectives_config *config,
                           struct hzp_collectives **ret, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    HZP_TRY(hzp_groups_check(&config->shards.groups, reterr));
    HZP_ASSERT(config->shards.groups.ranks == hzp_link_ranks(config->link));
    bool simulated = !strcmp(hzp_link_backend(config->link), "sim");
    if (!simulated && !hzp_device_host_memory(config->model->dev))
        return hzp_fail(reterr, HZP_EUNSUP,
                        "ranks on %s are not supported yet: its memory is not the host's",
                        config->model->dev->label);
    struct hzp_collectives *x = hzp_xcalloc(1, sizeof(*x));
    size_t units = (size_t)config->model->layout->units;
    x->config = *config;
    hzp_transfers_init(&x->list);
    x->list.track = hzp_track_open("tickets", HZP_TRACK_FEW, true);
    x->reduced = hzp_xcalloc(units, sizeof(*x->reduced));
    x->results = hzp_xcalloc((size_t)config->shards.groups.ranks, sizeof(*x->results));
    forget(x);
    int r = open_groups(x, reterr);
    if (r < 0) {
        hzp_collectives_destroy(x);
        return r;
    }
    *ret = x;
    return HZP_OK;
}

void hzp_collectives_destroy(struct hzp_collectives *x)
{
    if (!x)
        return;
    hzp_transfers_fini(&x->list);
    free(x->payload);
    free(x->loss);
    free(x->losses);
    free(x->reduced);
    free(x->results);
    free(x->state);
    free(x);
}

int32_t hzp_collectives_ranks(const struct hzp_collectives *x)
{
    return x->config.shards.groups.ranks;
}

int32_t hzp_collectives_rank(const struct hzp_collectives *x)
{
    return x->config.shards.rank;
}

int32_t hzp_collectives_position(const struct hzp_collectives *x)
{
    const struct hzp_shards *shards = &x->config.shards;
    return hzp_groups_position(&shards->groups, HZP_LEVEL_RANKS, shards->rank);
}

/* --- The list --------------------------------------------------------------------------------- */

struct hzp_transfers *hzp_collectives_transfers(struct hzp_collectives *x)
{
    return &x->list;
}

bool hzp_collectives_done(const struct hzp_collectives *x)
{
    return hzp_transfers_done(&x->list);
}

const char *hzp_collectives_error(const struct hzp_collectives *x)
{
    return x->error.text;
}

int hzp_collectives_turn(struct hzp_collectives *x, int32_t ended)
{
    hzp_assert_engine_thread();
    if (x->failed)
        return HZP_EIO;
    int r = hzp_transfers_turn(&x->list, x->config.link, ended, &x->error);
    x->failed = r < 0;
    return r;
}

int hzp_collectives_wait(struct hzp_collectives *x)
{
    hzp_assert_engine_thread();
    while (!hzp_collectives_done(x)) {
        HZP_TRY(hzp_collectives_turn(x, INT32_MAX));
        if (x->list.posted > x->list.done)
            hzp_link_wait(x->config.link, x->list.entry[x->list.posted - 1].ticket, NULL);
    }
    return HZP_OK;
}

static uint64_t tag_of(enum tag tag, int32_t u)
{
    return (uint64_t)tag << 32 | (uint32_t)u;
}

/* The address of the resident part of unit u, which is resident. */
static void *base_of(const struct hzp_units *units, int32_t u)
{
    struct hzp_unit_view view = hzp_unit_view(units, u);
    HZP_ASSERT(view.base);
    return view.base;
}

static void append_to(struct hzp_collectives *x)
{
    if (!hzp_transfers_done(&x->list))
        return;
    hzp_transfers_clear(&x->list);
    forget(x);
}

/* --- Commands --------------------------------------------------------------------------------- */

bool hzp_collectives_may_send(const struct hzp_collectives *x)
{
    return x->command_entry < x->list.done || hzp_transfers_done(&x->list);
}

static int32_t add_broadcast(struct hzp_collectives *x, void *data, size_t bytes, enum tag tag)
{
    struct hzp_transfer what = {.op = HZP_BROADCAST,
                                .type = HZP_WIRE_BYTE,
                                .count = bytes,
                                .recv = data,
                                .idle = tag == TAG_COMMAND,
                                .tag = tag_of(tag, 0)};
    return hzp_transfers_add(&x->list, &what, 0);
}

static void reserve_payload(struct hzp_collectives *x, size_t bytes)
{
    if (bytes <= x->payload_room)
        return;
    x->payload_room = HZP_MAX(bytes, 2 * x->payload_room);
    x->payload = hzp_xrealloc(x->payload, x->payload_room);
}

void hzp_collectives_send(struct hzp_collectives *x, const struct hzp_rank_command *command,
                          const void *payload)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(hzp_collectives_may_send(x)); /* the buffers are free */
    append_to(x);
    x->command = *command;
    x->command_entry = add_broadcast(x, &x->command, sizeof(x->command), TAG_COMMAND);
    if (!payload)
        return;
    reserve_payload(x, (size_t)command->bytes);
    memcpy(x->payload, payload, (size_t)command->bytes);
    x->command_entry = add_broadcast(x, x->payload, (size_t)command->bytes, TAG_PAYLOAD);
}

void hzp_collectives_listen(struct hzp_collectives *x)
{
    hzp_assert_engine_thread();
    append_to(x);
    add_broadcast(x, &x->command, sizeof(x->command), TAG_COMMAND);
}

const struct hzp_rank_command *hzp_collectives_heard(const struct hzp_collectives *x)
{
    return &x->command;
}

void hzp_collectives_listen_payload(struct hzp_collectives *x)
{
    hzp_assert_engine_thread();
    append_to(x);
    reserve_payload(x, (size_t)x->command.bytes);
    add_broadcast(x, x->payload, (size_t)x->command.bytes, TAG_PAYLOAD);
}

const void *hzp_collectives_payload(const struct hzp_collectives *x)
{
    return x->payload;
}

/* --- The start -------------------------------------------------------------------------------- */

static int wait_for(struct hzp_collectives *x, struct hzp_err_text *reterr)
{
    int r = hzp_collectives_wait(x);
    return r < 0 ? hzp_fail(reterr, r, "%s", hzp_collectives_error(x)) : HZP_OK;
}

int hzp_collectives_broadcast(struct hzp_collectives *x, void *data, size_t bytes,
                              struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    append_to(x);
    add_broadcast(x, data, bytes, TAG_SHARE);
    return wait_for(x, reterr);
}

int hzp_collectives_agree(struct hzp_collectives *x, const void *mine, size_t bytes, void *all,
                          struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_RANKS],
                                .count = bytes,
                                .send = mine,
                                .recv = all,
                                .tag = tag_of(TAG_AGREE, 0)};
    append_to(x);
    hzp_transfers_add(&x->list, &what, 0);
    return wait_for(x, reterr);
}

/* --- A micro-batch ---------------------------------------------------------------------------- */

/* Scatters a unit's fresh gradients: adds them to the sums. */
static int32_t add_scatter(struct hzp_collectives *x, int32_t u, int32_t after)
{
    struct hzp_train_space *s = x->config.space;
    const struct hzp_shards *shards = &x->config.shards;
    bool ordered = shards->ordered;
    enum hzp_level level = ordered ? HZP_LEVEL_RANKS : HZP_LEVEL_GRADS;
    size_t room = x->config.model->layout->unit[u].room;
    struct hzp_transfer what = {.op = HZP_REDUCE_SCATTER,
                                .type = HZP_WIRE_F32,
                                .group = x->group[ordered ? HZP_GROUP_RANKS : HZP_GROUP_GRADS],
                                .count = room / (size_t)hzp_groups_shards(&shards->groups, level),
                                .send = base_of(&s->grads, u),
                                .recv = base_of(&s->sums, u),
                                .onto = true,
                                .tag = tag_of(TAG_SCATTER, u)};
    return hzp_transfers_add(&x->list, &what, after);
}

/* Reduces a unit's sums, which are complete, to this rank's shard of the state. */
static void add_reduction(struct hzp_collectives *x, int32_t u, int32_t after)
{
    struct hzp_train_space *s = x->config.space;
    const struct hzp_shards *shards = &x->config.shards;
    size_t room = x->config.model->layout->unit[u].room;
    struct hzp_extent state =
        hzp_groups_extent(&shards->groups, HZP_LEVEL_STATE, shards->rank, room);
    struct hzp_transfer what = {.type = HZP_WIRE_F32, .tag = tag_of(TAG_SUM, u)};
    if (shards->ordered) {
        if (x->size[HZP_GROUP_COPIES] == 1)
            return;
        what.op = HZP_ALL_GATHER;
        what.group = x->group[HZP_GROUP_COPIES];
        what.count = room / (size_t)shards->groups.ranks;
        what.send = base_of(&s->sums, u);
        what.recv = base_of(&s->totals, u);
        x->reduced[u] = hzp_transfers_add(&x->list, &what, after);
        return;
    }
    size_t grads = (size_t)shards->groups.z2;
    char *sum = base_of(s->sum, u), *mine = sum;
    if (x->size[HZP_GROUP_SUM] > 1) {
        int index = hzp_link_group_index(x->config.link, x->group[HZP_GROUP_SUM]);
        HZP_ASSERT(state.count * (size_t)x->size[HZP_GROUP_SUM] == room / grads);
        mine = sum + (size_t)index * state.count * sizeof(float);
        what.op = HZP_REDUCE_SCATTER;
        what.group = x->group[HZP_GROUP_SUM];
        what.count = state.count;
        what.send = sum;
        what.recv = mine;
        x->reduced[u] = hzp_transfers_add(&x->list, &what, after);
    }
    if (x->size[HZP_GROUP_COPIES] > 1) {
        what.op = HZP_ALL_REDUCE;
        what.group = x->group[HZP_GROUP_COPIES];
        what.count = state.count;
        what.send = what.recv = mine;
        what.tag = tag_of(TAG_COPIES, u);
        x->reduced[u] = hzp_transfers_add(&x->list, &what, after);
    }
}

/* The rings while a micro-batch's chain is built: the transfers that the places depend on. */
struct rings {
    const struct hzp_version *v;
    bool gathers;        /* parameters are gathered */
    int32_t gathered[3]; /* the gather into each place; -1: none yet */
    int32_t free[3];     /* items that must have ended before the next gather into each */
};

static struct rings rings_of(struct hzp_collectives *x, const struct hzp_version *v)
{
    bool gathers = hzp_weights_gathered(x->config.model->weights) != NULL;
    return (struct rings){v, gathers, {-1, -1, -1}, {0, 0, 0}};
}

static bool has_own_place(const struct hzp_collectives *x, int32_t u)
{
    return u == 0 && x->config.model->config->tied;
}

/* Gathers a unit's parameters, posted after `after` items. */
static int32_t add_gather(struct hzp_collectives *x, const struct hzp_version *v, int32_t u,
                          int32_t after)
{
    const struct hzp_weights *w = x->config.model->weights;
    const struct hzp_units *shard = hzp_version_units(w, v), *whole = hzp_weights_gathered(w);
    size_t count = x->config.model->layout->unit[u].room / (size_t)x->size[HZP_GROUP_PARAMS];
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_PARAMS],
                                .count = count * hzp_dtype_size(shard->type),
                                .send = base_of(shard, u),
                                .recv = base_of(whole, u),
                                .tag = tag_of(TAG_GATHER, u)};
    return hzp_transfers_add(&x->list, &what, after);
}

/* Gathers unit u into its place in the ring, whose last reader is known. */
static void gather_unit(struct hzp_collectives *x, struct rings *rings, int32_t u)
{
    if (rings->gathers && u >= 0 && u < x->config.model->layout->units && !has_own_place(x, u))
        rings->gathered[u % 3] = add_gather(x, rings->v, u, rings->free[u % 3]);
}

/* The next items read unit u's parameters. */
static void await_unit(struct hzp_collectives *x, const struct rings *rings,
                       const struct hzp_plan *chain, int32_t u)
{
    if (rings->gathers && !has_own_place(x, u))
        hzp_transfers_depend(&x->list, chain->items, rings->gathered[u % 3]);
}

/* Forward, unit by unit: as soon as a unit has been read, the one that takes its place is
 * gathered. */
static void forward_units(struct hzp_collectives *x, struct hzp_plan *chain, struct rings *rings,
                          const struct hzp_micro *micro)
{
    const struct hzp_model *model = x->config.model;
    int32_t units = model->layout->units;
    int32_t tied = -1;
    if (has_own_place(x, 0))
        tied = add_gather(x, rings->v, 0, 0);
    for (int32_t u = 0; u < 3; u++)
        gather_unit(x, rings, u);
    for (int32_t u = 0; u < units - 1; u++) {
        struct hzp_layer_range range = {u - 1, u, false, false};
        if (u == 0)
            range = (struct hzp_layer_range){0, 0, .embed = true};
        if (u == 0)
            hzp_transfers_depend(&x->list, chain->items, tied);
        await_unit(x, rings, chain, u);
        if (micro)
            hzp_micro_forward(chain, model, rings->v, micro, x->config.space, &range);
        rings->free[u % 3] = chain->items;
        gather_unit(x, rings, u + 3);
    }
}

/* The place of unit u among the fresh gradients. */
static int32_t *place_of(struct hzp_collectives *x, int32_t u)
{
    return &x->scatter[has_own_place(x, u) ? 2 : u % 2];
}

/* The next items zero unit u's fresh gradients, and with those of a head a tied embedding's. */
static void await_place(struct hzp_collectives *x, const struct hzp_plan *chain, int32_t u)
{
    if (!has_own_place(x, u))
        hzp_transfers_depend(&x->list, chain->items, *place_of(x, u));
    if (u == x->config.model->layout->units - 1 && has_own_place(x, 0))
        hzp_transfers_depend(&x->list, chain->items, *place_of(x, 0));
}

/* Backward, unit by unit.  When forward has ended, the last three units are in their places.  Fresh
 * gradients are scattered as soon as they are complete, and their place is free again when they
 * have been; the next unit's parameters are gathered before that.  In the last round the sums are
 * complete then, and are reduced. */
static void backward_units(struct hzp_collectives *x, struct hzp_plan *chain, struct rings *rings,
                           const struct hzp_micro *micro, bool last)
{
    const struct hzp_model *model = x->config.model;
    bool fresh = hzp_shards_fresh(&x->config.shards);
    for (int32_t u = model->layout->units - 1; u >= 0; u--) {
        if (u > 0) /* the embedding's backward pass reads no parameters */
            await_unit(x, rings, chain, u);
        if (fresh)
            await_place(x, chain, u);
        hzp_micro_backward_unit(chain, model, rings->v, micro, x->config.space, u);
        rings->free[u % 3] = chain->items;
        if (u > 3)
            gather_unit(x, rings, u - 3);
        if (fresh)
            x->reduced[u] = *place_of(x, u) = add_scatter(x, u, chain->items);
        if (last)
            add_reduction(x, u, chain->items);
    }
}

void hzp_collectives_micro(struct hzp_collectives *x, struct hzp_plan *chain,
                           const struct hzp_version *v, const struct hzp_micro *micro, bool first,
                           bool last)
{
    hzp_assert_engine_thread();
    const struct hzp_model *model = x->config.model;
    struct hzp_train_space *s = x->config.space;
    struct hzp_layer_range all = hzp_layer_range_all(model->config);
    struct rings rings = rings_of(x, v);
    append_to(x);
    hzp_transfers_begin(&x->list);
    if (first) {
        x->rounds = 0;
        hzp_micro_zero_sums(chain, s);
    }
    if (rings.gathers)
        forward_units(x, chain, &rings, micro);
    else if (micro)
        hzp_micro_forward(chain, model, v, micro, s, &all);
    if (hzp_shards_fresh(&x->config.shards) || last)
        backward_units(x, chain, &rings, micro, last);
    else if (micro)
        hzp_micro_backward(chain, model, v, micro, s, &all);
}

void hzp_collectives_note_loss(struct hzp_collectives *x, double loss)
{
    hzp_assert_engine_thread();
    if (x->rounds == x->rounds_room) {
        size_t ranks = (size_t)x->config.shards.groups.ranks;
        x->rounds_room = HZP_MAX(64, 2 * x->rounds_room);
        size_t room = (size_t)x->rounds_room;
        x->loss = hzp_xrealloc(x->loss, room * sizeof(*x->loss));
        x->losses = hzp_xrealloc(x->losses, ranks * room * sizeof(*x->losses));
    }
    x->loss[x->rounds++] = loss;
}

double hzp_collectives_loss(const struct hzp_collectives *x, int32_t bin)
{
    int32_t ranks = x->config.shards.groups.ranks;
    HZP_ASSERT(bin / ranks < x->rounds);
    return x->losses[bin % ranks * x->rounds + bin / ranks];
}

/* --- An update -------------------------------------------------------------------------------- */

static void add_losses(struct hzp_collectives *x)
{
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_RANKS],
                                .count = (size_t)x->rounds * sizeof(*x->loss),
                                .send = x->loss,
                                .recv = x->losses,
                                .tag = tag_of(TAG_LOSS, 0)};
    hzp_transfers_add(&x->list, &what, 0);
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
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_STATE],
                                .count = s->square_count * sizeof(double),
                                .send = s->square,
                                .recv = s->squares,
                                .tag = tag_of(TAG_SQUARES, 0)};
    int32_t index = hzp_transfers_add(&x->list, &what, after);
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
    char *base = base_of(units, u);
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_REFRESH],
                                .count = state.count * size,
                                .send = base + (state.first - all.first) * size,
                                .recv = base,
                                .tag = tag_of(TAG_REFRESH, u)};
    return hzp_transfers_add(&x->list, &what, after);
}

/* What the ranks that together hold one copy of the parameters found; copies are numbered 0 .. R /
 * z3 - 1.  The position of a rank's part of the parameters is the uppermost digit of its position.
 * */
static struct result result_of_copy(const struct hzp_collectives *x, int32_t copy)
{
    const struct hzp_groups *g = &x->config.shards.groups;
    int32_t copies = g->ranks / g->z3;
    struct result sum = {.sumsq = x->results[copy].sumsq};
    for (int32_t d3 = 0; d3 < g->z3; d3++) {
        const struct result *part = &x->results[d3 * copies + copy];
        if (part->sumsq != sum.sumsq) /* or not finite */
            sum.sumsq = NAN;
        sum.checksum += part->checksum;
        sum.nonfinite += part->nonfinite;
    }
    return sum;
}

/* All ranks are ready: compares what they found. */
static int compare_results(void *ctx, struct hzp_err_text *reterr)
{
    struct hzp_collectives *x = ctx;
    const struct hzp_groups *g = &x->config.shards.groups;
    struct hzp_update_result *ret = x->config.space->result;
    struct result first = result_of_copy(x, 0);
    for (int32_t i = 1; i < g->ranks / g->z3; i++) {
        struct result other = result_of_copy(x, i);
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
    return HZP_OK;
}

/* Audits this rank's part of a unit on the host: the op audits whole units. */
static void audit_part(struct hzp_collectives *x, const struct hzp_version *draft, int32_t u)
{
    struct hzp_unit_view part = hzp_version_unit(x->config.model->weights, draft, u);
    struct hzp_update_result *result = x->config.space->result;
    result->checksum += hzp_unit_checksum(&part);
    result->nonfinite += hzp_unit_nonfinite(&part);
}

/* The refresh of all units is done. */
static void audit_parts(void *ctx)
{
    struct hzp_collectives *x = ctx;
    for (int32_t u = 0; u < x->config.model->layout->units; u++)
        audit_part(x, x->draft, u);
}

static void add_result(struct hzp_collectives *x, int32_t after)
{
    HZP_ASSERT(sizeof(struct result) == sizeof(struct hzp_update_result));
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_RANKS],
                                .count = sizeof(struct result),
                                .send = x->config.space->result,
                                .recv = x->results,
                                .tag = tag_of(TAG_RESULT, 0)};
    hzp_transfers_add(&x->list, &what, after);
    struct hzp_transfers_entry *entry = hzp_transfers_newest(&x->list);
    entry->then = compare_results;
    entry->ctx = x;
    if (hzp_weights_gathered(x->config.model->weights)) {
        entry->behind = true; /* every refresh is done */
        entry->before = audit_parts;
    }
}

void hzp_collectives_update(struct hzp_collectives *x, struct hzp_plan *chain,
                            const struct hzp_version *v, struct hzp_version *draft,
                            const struct hzp_update_hyper *hyper)
{
    hzp_assert_engine_thread();
    const struct hzp_model *model = x->config.model;
    struct hzp_train_space *s = x->config.space;
    int32_t units = model->layout->units, *refresh = hzp_xcalloc((size_t)units, sizeof(*refresh));
    append_to(x);
    hzp_transfers_begin(&x->list);
    x->draft = draft;
    add_losses(x);
    hzp_update_begin(chain, s);
    for (int32_t i = 0; i < units; i++) {
        /* In the order in which sums are complete; but squares that are added at once, in the order
         * of one rank. */
        int32_t u = s->square ? units - 1 - i : i;
        hzp_transfers_depend(&x->list, chain->items, x->reduced[u]);
        hzp_update_norm(chain, s, u);
    }
    hzp_transfers_depend(&x->list, chain->items, gather_squares(x, chain->items));
    for (int32_t u = 0; u < units; u++) {
        hzp_update_adamw(chain, model, v, draft, hyper, s, u);
        refresh[u] = add_refresh(x, draft, u, chain->items);
    }
    bool whole = !hzp_weights_gathered(model->weights); /* else see audit_parts */
    for (int32_t u = 0; whole && u < units; u++) {
        hzp_transfers_depend(&x->list, chain->items, refresh[u]);
        hzp_update_audit(chain, model, draft, s, u);
    }
    hzp_update_end(chain, model, draft, s);
    add_result(x, chain->items);
    free(refresh);
}

/* --- The optimizer's state -------------------------------------------------------------------- */

/* Memory for the largest unit, taken at the first gather. */
static void reserve_state(struct hzp_collectives *x)
{
    const struct hzp_layout *layout = x->config.model->layout;
    size_t largest = 0;
    if (x->state)
        return;
    for (int32_t u = 0; u < layout->units; u++)
        largest = HZP_MAX(largest, layout->unit[u].room);
    x->state = hzp_xmalloc(largest * sizeof(float));
}

void hzp_collectives_gather_state(struct hzp_collectives *x, enum hzp_state_part part, int32_t u)
{
    hzp_assert_engine_thread();
    const struct hzp_model *model = x->config.model;
    struct hzp_train_space *s = x->config.space;
    const struct hzp_groups *groups = &x->config.shards.groups;
    bool weights = part == HZP_STATE_WEIGHTS;
    const struct hzp_units *of_state[] = {&s->m, &s->v, &s->residual};
    const struct hzp_units *units =
        weights ? hzp_version_units(model->weights, hzp_weights_current(model->weights))
                : of_state[part];
    enum hzp_group group = weights ? HZP_GROUP_PARAMS : HZP_GROUP_STATE;
    size_t shards = (size_t)(weights ? groups->z3 : groups->z1);
    size_t bytes = model->layout->unit[u].room / shards * hzp_dtype_size(units->type);
    append_to(x);
    reserve_state(x);
    if (x->size[group] == 1) {
        memcpy(x->state, base_of(units, u), bytes);
        return;
    }
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[group],
                                .count = bytes,
                                .send = base_of(units, u),
                                .recv = x->state,
                                .tag = tag_of(TAG_STATE, u)};
    hzp_transfers_add(&x->list, &what, 0);
}

const void *hzp_collectives_state(const struct hzp_collectives *x)
{
    return x->state;
}
