/* SPDX-License-Identifier: Apache-2.0 */
#include "train/learner/collectives_state.h"

#include "base/thread.h"

/* --- Creation --------------------------------------------------------------------------------- */

/* Nothing is in flight. */
static void forget(struct hzp_collectives *x)
{
    x->sent_entry = -1;
    for (int i = 0; i < HZP_COUNT(x->scatter); i++)
        x->scatter[i] = -1;
    for (int i = 0; i < HZP_COUNT(x->ring.gathered); i++)
        x->ring.gathered[i] = -1;
    for (int32_t u = 0; u < x->config.model->layout->units; u++)
        x->reduced[u] = x->refresh[u] = -1;
    x->updated = -1;
}

void hzp_collectives_empty_ring(struct hzp_collectives *x)
{
    for (int i = 0; i < HZP_COUNT(x->ring.unit); i++)
        x->ring.unit[i] = -1;
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
    return shards->stages > 1 ? hzp_collectives_open_pairs(x, reterr) : HZP_OK;
}

/* Tells the link which memory it will move. */
static int announce(struct hzp_collectives *x, struct hzp_err_text *reterr)
{
    const struct hzp_weights *w = x->config.model->weights;
    const struct hzp_train_space *s = x->config.space;
    void *memory;
    size_t bytes;
    for (int32_t i = 0; hzp_weights_memory(w, i, &memory, &bytes); i++)
        HZP_TRY(hzp_link_register(x->config.link, memory, bytes, reterr));
    return hzp_link_register(x->config.link, s->state[HZP_MEM_DEVICE],
                             s->state_bytes[HZP_MEM_DEVICE], reterr);
}

size_t hzp_collectives_stage_bytes(const struct hzp_layout *layout)
{
    return hzp_layout_largest_room(layout) * sizeof(float);
}

/* Memory for the largest unit: of a device at the start, of the host with the first gather. */
static int open_stage(struct hzp_collectives *x)
{
    struct hzp_device *dev = x->config.model->dev;
    if (hzp_device_host_memory(dev))
        return HZP_OK;
    return hzp_device_alloc(dev, HZP_MEM_DEVICE,
                            hzp_collectives_stage_bytes(x->config.model->layout), &x->stage);
}

static void reserve_stage(struct hzp_collectives *x)
{
    if (!x->stage)
        x->stage = hzp_xmalloc(hzp_collectives_stage_bytes(x->config.model->layout));
}

static void close_stage(struct hzp_collectives *x)
{
    struct hzp_device *dev = x->config.model->dev;
    if (hzp_device_host_memory(dev))
        free(x->stage);
    else
        hzp_device_free(dev, HZP_MEM_DEVICE, x->stage);
}

int hzp_collectives_create(const struct hzp_collectives_config *config,
                           struct hzp_collectives **ret, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    HZP_TRY(hzp_groups_check(&config->shards.groups, reterr));
    HZP_ASSERT(config->shards.groups.ranks == hzp_link_ranks(config->link));
    struct hzp_device *dev = config->model->dev;
    bool moves_device = !strcmp(hzp_link_backend(config->link), "nccl") ||
                        !strcmp(hzp_link_backend(config->link), "sim");
    if (!config->model->tensor && !moves_device && !hzp_device_host_memory(dev))
        return hzp_fail(reterr, HZP_EUNSUP, "link %s moves host memory, that of %s is its own",
                        hzp_link_backend(config->link), dev->label);
    if (config->shards.stages > 1 && !strcmp(hzp_link_backend(config->link), "nccl"))
        return hzp_fail(reterr, HZP_EUNSUP, "--shard stages: stages learn on CPUs only");
    struct hzp_collectives *x = hzp_xcalloc(1, sizeof(*x));
    size_t units = (size_t)config->model->layout->units;
    x->config = *config;
    hzp_transfers_init(&x->list);
    x->list.track = hzp_track_open("tickets", HZP_TRACK_FEW, true);
    hzp_plan_init(&x->audit.chain);
    x->reduced = hzp_xcalloc(units, sizeof(*x->reduced));
    x->refresh = hzp_xcalloc(units, sizeof(*x->refresh));
    x->audit.first = hzp_xcalloc(units, sizeof(*x->audit.first));
    x->results = hzp_xcalloc((size_t)config->shards.groups.ranks, sizeof(*x->results));
    x->all_filled = hzp_xcalloc((size_t)config->shards.groups.ranks, sizeof(*x->all_filled));
    forget(x);
    hzp_collectives_empty_ring(x);
    int r = open_groups(x, reterr);
    if (r >= 0 && !config->model->tensor) /* of a group, items of the chain move all memory */
        r = announce(x, reterr);
    if (r >= 0 && !config->model->tensor)
        r = open_stage(x);
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
    hzp_works_free(&x->follow);
    free(x->loss);
    free(x->losses);
    free(x->reduced);
    free(x->refresh);
    free(x->audit.first);
    hzp_plan_fini(&x->audit.chain);
    free(x->results);
    free(x->all_filled);
    close_stage(x);
    free(x);
}

int32_t hzp_collectives_ranks(const struct hzp_collectives *x)
{
    return x->config.shards.stages > 1 ? 1 : x->config.shards.groups.ranks;
}

int32_t hzp_collectives_position(const struct hzp_collectives *x)
{
    const struct hzp_shards *shards = &x->config.shards;
    return shards->stages > 1 ? 0
                              : hzp_groups_position(&shards->groups, HZP_LEVEL_RANKS, shards->rank);
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

void hzp_collectives_fail(struct hzp_collectives *x, const char *why)
{
    hzp_assert_engine_thread();
    if (!x->failed)
        hzp_fail(&x->error, HZP_EIO, "%s", why);
    x->failed = true;
}

bool hzp_collectives_quiet(const struct hzp_collectives *x)
{
    return x->audit.at == x->audit.to;
}

struct hzp_link *hzp_collectives_link(const struct hzp_collectives *x)
{
    return x->config.link;
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

void hzp_collectives_append(struct hzp_collectives *x)
{
    if (!hzp_transfers_done(&x->list))
        return;
    hzp_transfers_clear(&x->list);
    forget(x);
}

/* --- Work ------------------------------------------------------------------------------------- */

bool hzp_collectives_may_send(const struct hzp_collectives *x)
{
    return x->sent_entry < x->list.done || hzp_transfers_done(&x->list);
}

static int32_t add_broadcast(struct hzp_collectives *x, void *data, size_t bytes,
                             enum hzp_collectives_tag tag)
{
    struct hzp_transfer what = {.op = HZP_BROADCAST,
                                .type = HZP_WIRE_BYTE,
                                .count = bytes,
                                .recv = data,
                                .idle = tag == HZP_TAG_WORK,
                                .host = true,
                                .tag = hzp_collectives_tag(tag, 0)};
    return hzp_transfers_add(&x->list, &what, 0);
}

void hzp_collectives_send(struct hzp_collectives *x, const struct hzp_work *work,
                          const struct hzp_works *follow)
{
    hzp_assert_engine_thread();
    HZP_ASSERT(hzp_collectives_may_send(x)); /* the buffers are free */
    hzp_collectives_append(x);
    x->work = *work;
    x->work.micros = follow ? follow->count : 0;
    x->work.follow = follow ? (int64_t)follow->bytes : 0;
    hzp_works_receive(&x->follow, follow ? follow->data : NULL, (size_t)x->work.follow,
                      x->work.micros);
    hzp_work_write(&x->work, NULL, x->wire.head);
    x->wire.sum = hzp_work_sum(x->wire.head, sizeof(x->wire.head), x->follow.data, x->follow.bytes);
    x->sent_entry = add_broadcast(x, &x->wire, sizeof(x->wire), HZP_TAG_WORK);
    if (x->work.follow)
        x->sent_entry = add_broadcast(x, x->follow.data, x->follow.bytes, HZP_TAG_FOLLOW);
}

void hzp_collectives_listen(struct hzp_collectives *x)
{
    hzp_assert_engine_thread();
    hzp_collectives_append(x);
    add_broadcast(x, &x->wire, sizeof(x->wire), HZP_TAG_WORK);
}

/* The work and what follows it are complete. */
static int check_sum(const struct hzp_collectives *x, struct hzp_err_text *reterr)
{
    size_t follow = (size_t)x->work.follow;
    uint64_t sum = hzp_work_sum(x->wire.head, sizeof(x->wire.head), x->follow.data, follow);
    return sum == x->wire.sum
               ? HZP_OK
               : hzp_fail(reterr, HZP_EFORMAT, "the work that rank 0 has sent is damaged");
}

int hzp_collectives_hear(struct hzp_collectives *x, struct hzp_work *ret,
                         struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    HZP_TRY(hzp_work_read(x->wire.head, sizeof(x->wire.head), NULL, &x->work, NULL, reterr));
    *ret = x->work;
    return x->work.follow ? HZP_OK : check_sum(x, reterr);
}

void hzp_collectives_listen_follow(struct hzp_collectives *x)
{
    hzp_assert_engine_thread();
    hzp_collectives_append(x);
    hzp_works_reserve(&x->follow, (size_t)x->work.follow);
    add_broadcast(x, x->follow.data, (size_t)x->work.follow, HZP_TAG_FOLLOW);
}

int hzp_collectives_hear_follow(struct hzp_collectives *x, struct hzp_works *ret,
                                struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    HZP_TRY(check_sum(x, reterr));
    hzp_works_receive(ret, x->follow.data, (size_t)x->work.follow, x->work.micros);
    return HZP_OK;
}

/* --- A micro-batch ---------------------------------------------------------------------------- */

/* What scatters a unit's fresh gradients: adds them to the sums. */
static struct hzp_transfer scatter_of(struct hzp_collectives *x, int32_t u)
{
    struct hzp_train_space *s = x->config.space;
    const struct hzp_shards *shards = &x->config.shards;
    bool ordered = shards->ordered;
    enum hzp_level level = ordered ? HZP_LEVEL_RANKS : HZP_LEVEL_GRADS;
    size_t room = x->config.model->layout->unit[u].room;
    return (struct hzp_transfer){.op = HZP_REDUCE_SCATTER,
                                 .type = HZP_WIRE_F32,
                                 .group = x->group[ordered ? HZP_GROUP_RANKS : HZP_GROUP_GRADS],
                                 .count = room / (size_t)hzp_groups_shards(&shards->groups, level),
                                 .send = hzp_unit_base(&s->grads, u),
                                 .recv = hzp_unit_base(&s->sums, u),
                                 .onto = true,
                                 .tag = hzp_collectives_tag(HZP_TAG_SCATTER, u)};
}

/* Reduces a unit's sums, which are complete, to this rank's shard of the state. */
static void add_reduction(struct hzp_collectives *x, int32_t u, int32_t after)
{
    struct hzp_train_space *s = x->config.space;
    const struct hzp_shards *shards = &x->config.shards;
    size_t room = x->config.model->layout->unit[u].room;
    struct hzp_extent state =
        hzp_groups_extent(&shards->groups, HZP_LEVEL_STATE, shards->rank, room);
    struct hzp_transfer what = {.type = HZP_WIRE_F32, .tag = hzp_collectives_tag(HZP_TAG_SUM, u)};
    if (shards->ordered) {
        if (x->size[HZP_GROUP_COPIES] == 1)
            return;
        what.op = HZP_ALL_GATHER;
        what.group = x->group[HZP_GROUP_COPIES];
        what.count = room / (size_t)shards->groups.ranks;
        what.send = hzp_unit_base(&s->sums, u);
        what.recv = hzp_unit_base(&s->totals, u);
        x->reduced[u] = hzp_transfers_add(&x->list, &what, after);
        return;
    }
    size_t grads = (size_t)shards->groups.z2;
    char *sum = hzp_unit_base(s->sum, u), *mine = sum;
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
        what.tag = hzp_collectives_tag(HZP_TAG_COPIES, u);
        x->reduced[u] = hzp_transfers_add(&x->list, &what, after);
    }
}

static bool has_own_place(const struct hzp_collectives *x, int32_t u)
{
    return u == 0 && x->config.model->config->tied;
}

/* The place that unit u's parameters are gathered into. */
static int32_t ring_place(const struct hzp_collectives *x, int32_t u)
{
    return has_own_place(x, u) ? 3 : u % 3;
}

/* Gathers unit u's parameters into its place, posted after `after` items of the chain, the last
 * that read what the place holds.  No effect where the unit is there already. */
static void gather_unit(struct hzp_collectives *x, const struct hzp_version *v, int32_t u,
                        int32_t after)
{
    const struct hzp_weights *w = x->config.model->weights;
    const struct hzp_units *shard = hzp_version_units(w, v), *whole = hzp_weights_gathered(w);
    int32_t place = ring_place(x, u);
    if (u >= x->config.model->layout->units || x->ring.unit[place] == u)
        return;
    size_t count = x->config.model->layout->unit[u].room / (size_t)x->size[HZP_GROUP_PARAMS];
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_PARAMS],
                                .count = count * hzp_dtype_size(shard->type),
                                .send = hzp_unit_base(shard, u),
                                .recv = hzp_unit_base(whole, u),
                                .tag = hzp_collectives_tag(HZP_TAG_GATHER, u)};
    x->ring.unit[place] = u;
    x->ring.gathered[place] = hzp_transfers_add(&x->list, &what, after);
}

/* The next items read unit u's parameters. */
static void await_unit(struct hzp_collectives *x, const struct hzp_plan *chain, int32_t u)
{
    int32_t place = ring_place(x, u);
    HZP_ASSERT(x->ring.unit[place] == u);
    hzp_transfers_depend(&x->list, chain->items, x->ring.gathered[place]);
}

void hzp_collectives_gather_first(struct hzp_collectives *x, const struct hzp_version *v, int32_t u,
                                  int32_t after)
{
    if (u < 3 && hzp_weights_gathered(x->config.model->weights))
        gather_unit(x, v, u, after);
}

/* The unit that is read in turn i of a micro-batch: along its path, with the head as the last, and
 * back; -1: none, or in the last round nothing that the next one begins with. */
static int32_t unit_in_turn(const struct hzp_collectives *x, const struct hzp_micro *micro,
                            int32_t i, bool last)
{
    const struct hzp_model_config *c = x->config.model->config;
    int32_t head = hzp_micro_units(micro, c) - 1, at = i <= head ? i : 2 * head - i;
    return at > 0 || (at == 0 && (i == 0 || !last)) ? hzp_micro_unit(micro, c, at) : -1;
}

/* Turn i has read its unit: gathers the one that takes its place, or that of unit 3 where a tied
 * embedding has one of its own, and is read in the next turn that reads from there. */
static void gather_next(struct hzp_collectives *x, const struct hzp_plan *chain,
                        const struct hzp_version *v, const struct hzp_micro *micro, int32_t i,
                        bool last)
{
    int32_t u = unit_in_turn(x, micro, i, last), next;
    for (i++; (next = unit_in_turn(x, micro, i, last)) >= 0; i++)
        if (next % 3 == u % 3) {
            gather_unit(x, v, next, chain->items);
            return;
        }
}

/* Forward, unit by unit: as soon as a unit has been read, the one that takes its place is
 * gathered. */
static void forward_units(struct hzp_collectives *x, struct hzp_plan *chain,
                          const struct hzp_version *v, const struct hzp_micro *micro, bool last)
{
    const struct hzp_model *model = x->config.model;
    int32_t head = hzp_micro_units(micro, model->config) - 1;
    for (int32_t u = 0; u < 3; u++) /* the first two layers are on every path */
        hzp_collectives_gather_first(x, v, u, 0);
    for (int32_t i = 0; i < head; i++) {
        struct hzp_layer_range range = {HZP_MAX(i - 1, 0), i, i == 0, false};
        await_unit(x, chain, hzp_micro_unit(micro, model->config, i));
        if (micro->rows)
            hzp_micro_forward(chain, model, v, micro, x->config.space, &range);
        gather_next(x, chain, v, micro, i, last);
    }
}

/* The forward pass of whole units, some of which may still be on their way from the update before:
 * a unit is waited for where it is first read. */
static void forward_whole(struct hzp_collectives *x, struct hzp_plan *chain,
                          const struct hzp_version *v, const struct hzp_micro *micro)
{
    const struct hzp_model *model = x->config.model;
    struct hzp_layer_range all = hzp_micro_range(micro, model->config);
    int32_t u = 0, first = chain->items;
    hzp_micro_forward(chain, model, v, micro, x->config.space, &all);
    for (int32_t i = first; i < chain->items; i++)
        for (; u == 0 || u <= chain->item[i].layer + 1; u++)
            hzp_transfers_depend(&x->list, i, x->refresh[u]);
    HZP_ASSERT(u == model->layout->units - 1);
    hzp_transfers_depend(&x->list, chain->items, x->refresh[u]); /* the head is in backward */
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

/* Whether a tied embedding's gradient is scattered twice: what the head has added as soon as it
 * has, which is most of all that is sent, and at the end the rows that the embedding adds.  So the
 * transfer that an update waits for is short.  In rounds before the last one the next micro-batch
 * hides it; in the ordered mode the sum of both is formed first. */
static bool scatters_head_early(const struct hzp_collectives *x, bool last)
{
    return last && has_own_place(x, 0) && hzp_shards_fresh(&x->config.shards) &&
           !x->config.shards.ordered;
}

/* Part i of what a tied head has added to the embedding's gradient, one behind each layer's: in one
 * piece it would hold up the layers' gradients, which have few places. */
static void scatter_head(struct hzp_collectives *x, const struct hzp_plan *chain, int32_t i,
                         int32_t parts)
{
    struct hzp_transfer what = scatter_of(x, 0);
    size_t step = HZP_DIV_UP(what.count, (size_t)parts);
    size_t from = HZP_MIN((size_t)i * step, what.count);
    what.pitch = what.count;
    what.count = HZP_MIN(step, what.count - from);
    what.send = (const float *)what.send + from;
    what.recv = (float *)what.recv + from;
    if (what.count)
        *place_of(x, 0) = hzp_transfers_add(&x->list, &what, chain->items);
}

/* The fresh gradients of unit u, at place i of a path with so many layers, are complete. */
static void scatter_unit(struct hzp_collectives *x, const struct hzp_plan *chain, int32_t u,
                         int32_t i, int32_t layers, bool last)
{
    bool early = scatters_head_early(x, last);
    struct hzp_transfer what = scatter_of(x, u);
    if (u == 0 && !x->config.shards.ordered && (early || !has_own_place(x, u)))
        /* a micro-batch's rows: no others have a gradient, but by a tied head */
        what.nonzero = (size_t)x->config.micro_rows * (size_t)x->config.model->config->width;
    x->reduced[u] = *place_of(x, u) = hzp_transfers_add(&x->list, &what, chain->items);
    if (early && i > 0 && i <= layers)
        scatter_head(x, chain, layers - i, layers);
}

/* Backward, unit by unit.  When forward has ended, the last three units are in their places.  Fresh
 * gradients are scattered as soon as they are complete, and their place is free again when they
 * have been; the next unit's parameters are gathered before that, and behind those of the last unit
 * that is read the first of the next round's forward pass.  In the last round the sums are complete
 * then, and are reduced. */
static void backward_units(struct hzp_collectives *x, struct hzp_plan *chain,
                           const struct hzp_version *v, const struct hzp_micro *micro, bool last)
{
    const struct hzp_model *model = x->config.model;
    bool fresh = hzp_shards_fresh(&x->config.shards);
    bool gathers = hzp_weights_gathered(model->weights) != NULL;
    int32_t head = hzp_micro_units(micro, model->config) - 1;
    for (int32_t l = model->config->layers - 1; last && l >= 0; l--)
        if (!hzp_path_has(&micro->path, l)) /* its sums have been complete before */
            add_reduction(x, 1 + l, chain->items);
    for (int32_t i = head; i >= 0; i--) {
        int32_t u = hzp_micro_unit(micro, model->config, i);
        if (gathers && u > 0) /* the embedding's backward pass reads no parameters */
            await_unit(x, chain, u);
        if (fresh)
            await_place(x, chain, u);
        if (u == 0 && scatters_head_early(x, last)) {
            hzp_transfers_depend(&x->list, chain->items, *place_of(x, u));
            hzp_micro_zero_fresh(chain, x->config.space, u);
        }
        hzp_micro_backward_unit(chain, model, v, micro, x->config.space, i);
        if (gathers && i > 0)
            gather_next(x, chain, v, micro, 2 * head - i, last);
        if (fresh)
            scatter_unit(x, chain, u, i, head - 1, last);
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
    struct hzp_layer_range all = hzp_micro_range(micro, model->config);
    hzp_collectives_append(x);
    hzp_transfers_begin(&x->list);
    if (first) {
        x->rounds = 0;
        hzp_micro_zero_sums(chain, s);
    }
    if (hzp_weights_gathered(model->weights))
        forward_units(x, chain, v, micro, last);
    else if (micro->rows)
        forward_whole(x, chain, v, micro);
    if (hzp_shards_fresh(&x->config.shards) || last)
        backward_units(x, chain, v, micro, last);
    else if (micro->rows)
        hzp_micro_backward(chain, model, v, micro, s, &all);
}

void hzp_collectives_add_gates(struct hzp_collectives *x, const struct hzp_plan *chain)
{
    int32_t tag = -1;
    for (int32_t i = 0; i < chain->items; i++) {
        const struct hzp_collective_args *a = chain->item[i].args;
        if (chain->item[i].op != HZP_OP_collective || a->link != x->config.model->data ||
            a->tag == tag)
            continue;
        struct hzp_transfer nothing = {.op = HZP_ALL_GATHER,
                                       .group = x->group[HZP_GROUP_RANKS],
                                       .host = true,
                                       .tag = hzp_collectives_tag(HZP_TAG_READY, a->tag)};
        hzp_transfers_depend(&x->list, i, hzp_transfers_add(&x->list, &nothing, i));
        tag = a->tag;
    }
}

void hzp_collectives_group_micro(struct hzp_collectives *x, const struct hzp_plan *chain,
                                 bool first)
{
    hzp_assert_engine_thread();
    hzp_collectives_append(x);
    hzp_transfers_begin(&x->list);
    if (first)
        x->rounds = 0;
    hzp_collectives_add_gates(x, chain);
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
    int32_t ranks = hzp_collectives_ranks(x);
    HZP_ASSERT(bin / ranks < x->rounds);
    return x->losses[bin % ranks * x->rounds + bin / ranks];
}

/* --- The optimizer's state -------------------------------------------------------------------- */

const struct hzp_units *hzp_collectives_part(const struct hzp_collectives *x,
                                             enum hzp_state_part part, const struct hzp_version *v)
{
    return hzp_gather_units(x->config.model, v, x->config.space, part);
}

int32_t hzp_collectives_gathered(const struct hzp_collectives *x, int32_t u)
{
    const struct hzp_layout *layout = x->config.model->layout;
    size_t largest = hzp_layout_largest_room(layout), rooms = 0;
    int32_t n = 0;
    while (u + n < layout->units && n < HZP_LINK_TICKETS_MAX / 2 &&
           rooms + layout->unit[u + n].room <= largest)
        rooms += layout->unit[u + n++].room;
    return n;
}

/* Where unit u is in the stage. */
static char *place_in_stage(const struct hzp_collectives *x, const struct hzp_work *work, int32_t u)
{
    const struct hzp_units *units =
        hzp_collectives_part(x, work->gather.part, hzp_weights_current(x->config.model->weights));
    size_t before = 0;
    HZP_ASSERT(u >= work->gather.unit && u < work->gather.unit + work->units);
    for (int32_t i = work->gather.unit; i < u; i++)
        before += units->layout->unit[i].room;
    return (char *)x->stage + before * hzp_dtype_size(units->type);
}

/* Of stages: one of them has the unit, and sends it to all. */
static void send_of_state(struct hzp_collectives *x, const struct hzp_work *work, int32_t u)
{
    const struct hzp_model *model = x->config.model;
    struct hzp_shards at = x->config.shards;
    const struct hzp_units *units =
        hzp_collectives_part(x, work->gather.part, hzp_weights_current(model->weights));
    struct hzp_unit_view view = hzp_unit_view(units, u);
    void *staged = place_in_stage(x, work, u);
    for (at.rank = 0; at.rank < at.stages; at.rank++)
        if (hzp_stages_cut(&at, model->layout, NULL) == HZP_OK &&
            hzp_shards_hold(&at, model->layout->units, u))
            break;
    if (view.part.count &&
        hzp_device_copy(model->dev, staged, view.base, hzp_unit_bytes(&view)) < 0)
        hzp_collectives_fail(x, "the device failed");
    struct hzp_transfer what = {.op = HZP_BROADCAST,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[HZP_GROUP_RANKS],
                                .root = at.rank,
                                .count = view.elements * hzp_dtype_size(view.type),
                                .recv = staged,
                                .tag = hzp_collectives_tag(HZP_TAG_STATE, u)};
    if (at.rank) /* what rank 0 has, it need not be sent */
        hzp_transfers_add(&x->list, &what, 0);
}

static void gather_of_state(struct hzp_collectives *x, const struct hzp_work *work, int32_t u)
{
    const struct hzp_model *model = x->config.model;
    const struct hzp_groups *groups = &x->config.shards.groups;
    enum hzp_state_part part = work->gather.part;
    bool weights = part == HZP_STATE_WEIGHTS;
    const struct hzp_units *units =
        hzp_collectives_part(x, part, hzp_weights_current(model->weights));
    enum hzp_group group = weights ? HZP_GROUP_PARAMS : HZP_GROUP_STATE;
    size_t shards = (size_t)(weights ? groups->z3 : groups->z1);
    size_t bytes = units->layout->unit[u].room / shards * hzp_dtype_size(units->type);
    if (!bytes)
        return;
    if (x->size[group] == 1) {
        if (hzp_device_copy(model->dev, place_in_stage(x, work, u), hzp_unit_base(units, u),
                            bytes) < 0)
            hzp_collectives_fail(x, "the device failed");
        return;
    }
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .type = HZP_WIRE_BYTE,
                                .group = x->group[group],
                                .count = bytes,
                                .send = hzp_unit_base(units, u),
                                .recv = place_in_stage(x, work, u),
                                .tag = hzp_collectives_tag(HZP_TAG_STATE, u)};
    hzp_transfers_add(&x->list, &what, 0);
}

void hzp_collectives_gather_state(struct hzp_collectives *x, const struct hzp_work *work)
{
    hzp_assert_engine_thread();
    hzp_collectives_append(x);
    reserve_stage(x);
    for (int32_t u = work->gather.unit; u < work->gather.unit + work->units; u++)
        if (x->config.shards.stages > 1)
            send_of_state(x, work, u);
        else
            gather_of_state(x, work, u);
}

const void *hzp_collectives_state(const struct hzp_collectives *x, const struct hzp_work *work,
                                  int32_t u)
{
    return x->stage ? place_in_stage(x, work, u) : NULL;
}

void *hzp_collectives_stage(struct hzp_collectives *x)
{
    reserve_stage(x);
    return x->stage;
}
