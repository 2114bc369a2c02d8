/* SPDX-License-Identifier: Apache-2.0 */
#include "train/learner/learner.h"

#include "base/thread.h"
#include "nanobatch/model/train_space_state.h"
#include "nanobatch/run/warm.h"

enum { LOGITS_MIN = 32 << 20 /* elements of the logits chunk: 128 MB */ };

/* --- Creation --------------------------------------------------------------------------------- */

struct hzp_train_space_config hzp_learner_space_config(const struct hzp_recipe *recipe,
                                                       const struct hzp_model_config *model,
                                                       uint64_t quantum_flops)
{
    /* Each chunk reads the head twice and its gradients once, and writes them; with few rows per
     * chunk that takes longer than the products.  A chunk of half as many rows as the head is wide
     * needs less memory than the head's gradients. */
    int32_t head_rows = HZP_MAX(LOGITS_MIN / HZP_MAX(model->vocab, 1), model->width / 2);
    return (struct hzp_train_space_config){
        .rows_max = recipe->micro_rows,
        .long_rows = recipe->long_rows,
        .recompute = recipe->recompute,
        .recompute_long = recipe->recompute_long,
        .head_rows = HZP_MIN(HZP_MAX(head_rows, 16), recipe->micro_rows),
        .moment_type = recipe->moment_type,
        .quantum_flops = quantum_flops,
        .muon = recipe->optimizer == HZP_MUON,
    };
}

static int open_collectives(struct hzp_learner *l, struct hzp_err_text *reterr)
{
    struct hzp_collectives_config config = {.link = l->config.link,
                                            .shards = l->config.shards,
                                            .model = l->config.model,
                                            .space = l->space,
                                            .micro_rows = hzp_recipe_rows(&l->config.recipe)};
    if (l->config.link && l->config.model->tensor) {
        config.shards.groups = (struct hzp_groups){hzp_link_ranks(l->config.link), 1, 1, 1};
        config.shards.rank = hzp_link_rank(l->config.link);
    }
    if (config.shards.stages > 1) {
        int32_t n = config.shards.stages;
        config.shards.groups = (struct hzp_groups){n, n, n, n};
    }
    if (!l->config.link)
        return HZP_OK;
    HZP_TRY(hzp_collectives_create(&config, &l->collectives, reterr));
    if (config.shards.stages > 1)
        l->stages = hzp_stages_create(l->collectives, l->space);
    return HZP_OK;
}

static int open_micros(struct hzp_learner *l)
{
    l->micros = hzp_xcalloc((size_t)l->space->slots, sizeof(struct hzp_micro *));
    for (int32_t i = 0; i < l->space->slots; i++)
        HZP_TRY(hzp_micro_create(l->config.model->dev, hzp_recipe_rows(&l->config.recipe),
                                 &l->micros[i]));
    l->micro = l->micros[0];
    return HZP_OK;
}

int hzp_learner_create(const struct hzp_learner_config *config, struct hzp_learner **ret,
                       struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_learner *l = hzp_xcalloc(1, sizeof(*l));
    struct hzp_model *model = config->model;
    struct hzp_train_space_config space =
        hzp_learner_space_config(&config->recipe, model->config, config->quantum_flops);
    space.ride_rows = config->ride_rows;
    space.unprepared = config->unprepared;
    space.shards = config->shards;
    space.backup = config->undoes;
    space.host_state = config->host_state;
    l->config = *config;
    hzp_plan_init(&l->chain);
    l->track = hzp_track_open("training", HZP_TRACK_FEW, false);
    int r;
    HZP_TRY_GOTO(hzp_train_space_create(model, &space, &l->space));
    HZP_TRY_GOTO(open_micros(l));
    HZP_TRY_GOTO(open_collectives(l, reterr));
    *ret = l;
    return HZP_OK;
out:
    hzp_learner_destroy(l);
    return r;
}

void hzp_learner_destroy(struct hzp_learner *l)
{
    if (!l)
        return;
    hzp_stages_destroy(l->stages);
    hzp_collectives_destroy(l->collectives);
    for (int32_t i = 0; l->micros && i < l->space->slots; i++)
        hzp_micro_destroy(l->micros[i]);
    free(l->micros);
    free(l->rows);
    free(l->paths);
    hzp_train_space_destroy(l->space);
    hzp_plan_fini(&l->chain);
    hzp_track_close(l->track);
    hzp_works_free(&l->deal);
    hzp_works_free(&l->ahead);
    hzp_works_free(&l->bytes);
    free(l);
}

int hzp_learner_products(struct hzp_learner *l, struct hzp_plan *chain)
{
    return hzp_warm_micros(chain, l->config.model, l->micro, l->config.recipe.micro_rows, l->space);
}

/* --- Chains ----------------------------------------------------------------------------------- */

struct hzp_version *hzp_learner_version(const struct hzp_learner *l)
{
    if (l->reads_draft)
        return l->draft;
    return l->held ? l->held : hzp_weights_current(l->config.model->weights);
}

void hzp_learner_hold(struct hzp_learner *l)
{
    if (!l->reads_draft && !l->held)
        l->held = hzp_weights_acquire(l->config.model->weights);
}

void hzp_learner_let_go(struct hzp_learner *l, uint64_t last_step)
{
    if (l->held)
        hzp_weights_release(l->config.model->weights, l->held, last_step);
    l->held = NULL;
}

struct hzp_plan *hzp_learner_begin_chain(struct hzp_learner *l)
{
    hzp_assert_engine_thread();
    hzp_plan_clear(&l->chain);
    l->chain.tenant = HZP_TENANT_TRAIN;
    l->chain.layer = -1;
    l->at = l->to = 0;
    l->work = (struct hzp_work){.kind = HZP_WORK_END};
    return &l->chain;
}

void hzp_learner_drop_chain(struct hzp_learner *l)
{
    HZP_ASSERT(l->at == l->to);
    hzp_learner_begin_chain(l);
}

/* Builds the chain of l->work, a micro-batch's or an evaluation's of l->micro. */
static void build(struct hzp_learner *l)
{
    const struct hzp_work *work = &l->work;
    struct hzp_version *v = hzp_learner_version(l);
    if (work->kind == HZP_WORK_EVAL)
        v = work->draft ? l->draft : hzp_weights_current(l->config.model->weights);
    hzp_plan_clear(&l->chain);
    l->at = l->to = 0;
    hzp_work_build(&l->chain, work, l->config.model, v, l->draft, l->micro, l->space);
    if (l->chain.items) /* the tensor group is told only of chains that have items */
        l->number++;
}

void hzp_learner_begin(struct hzp_learner *l, const struct hzp_work *work)
{
    hzp_assert_engine_thread();
    l->work = *work;
    if (l->config.model->tensor) {
        hzp_works_clear(&l->bytes);
        hzp_works_add(&l->bytes, work, l->micro);
    }
    build(l);
}

/* --- Micro-batches ---------------------------------------------------------------------------- */

static struct hzp_work_limits limits_of(const struct hzp_learner *l)
{
    const struct hzp_model *model = l->config.model;
    return (struct hzp_work_limits){model->config->vocab, model->positions, model->config->layers};
}

/* Halves pay where the sums of the forward pass take more than this part of a chain that is not
 * cut: products of half the rows are slower, which costs a few per cent of it. */
static const double halves_pay = 0.05;

/* Rank 0 of a group that computes each step together: whether to cut the micro-batch into halves,
 * so that the sums of each run beside products of the other, which are slower for that.  It is
 * where sums take long, by the times that items took before, and never where the device's streams
 * order transfers, because nothing is hidden there, nor in the ordered mode, where what is measured
 * decides nothing.  Builds the uncut chain to add up its times. */
static bool halves(struct hzp_learner *l)
{
    const struct hzp_model *model = l->config.model;
    double sums = 0, all = 0;
    if (!model->tensor || !l->op_times || l->micro->rows < 2 * l->config.half_rows ||
        l->config.shards.ordered || !hzp_device_host_memory(model->dev))
        return false;
    hzp_plan_clear(&l->chain);
    hzp_micro_build(&l->chain, model, hzp_learner_version(l), l->micro, l->space, false);
    for (int32_t i = 0; i < l->chain.items; i++) {
        const struct hzp_item *item = &l->chain.item[i];
        const struct hzp_collective_args *a = item->args;
        double ns = hzp_op_ns(l->op_times, item->op, item->args);
        all += ns;
        if (item->op == HZP_OP_collective && a->part == HZP_COLLECTIVE_WHOLE &&
            a->kind == HZP_ALL_REDUCE)
            sums += ns;
    }
    return sums > halves_pay * all;
}

/* Reads work i of those into *ret and l->micro. */
static int read_work(struct hzp_learner *l, const struct hzp_works *works, int32_t i,
                     struct hzp_work *ret, struct hzp_err_text *reterr)
{
    const char *data;
    size_t bytes;
    HZP_TRY(hzp_works_find(works, i, &data, &bytes, reterr));
    struct hzp_work_limits limits = limits_of(l);
    return hzp_work_read(data, bytes, &limits, ret, l->micro, reterr);
}

/* Cuts the micro-batch that was read. */
static void cut_micro(struct hzp_learner *l)
{
    bool rides = l->chunks && !l->micro->path.count;
    /* Cutting into chunks costs time and only pays off when training rides in serving's products,
     * so the forward pass is not cut while no request runs.  A long document is, so that no item
     * of its forward pass, attention's above all, is much longer than those of others. */
    bool longer = l->micro->rows > l->config.recipe.micro_rows;
    hzp_micro_cut(l->micro, longer  ? l->config.recipe.micro_rows
                            : rides ? l->config.chunk_rows
                                    : 0);
    l->work.halved = halves(l);
    if (l->work.halved)
        hzp_micro_halve(l->micro);
}

/* Builds the chain of this rank's micro-batch of the round.  If it has none, in the last round, it
 * takes part in what the others exchange along their path. */
static int build_micro(struct hzp_learner *l, struct hzp_err_text *reterr)
{
    struct hzp_collectives *x = l->collectives;
    int32_t bin = l->bin + (x ? hzp_collectives_position(x) : 0);
    bool any = bin < l->deal.count;
    HZP_TRY(read_work(l, &l->deal, any ? bin : l->bin, &l->work, reterr));
    if (any) {
        cut_micro(l);
    } else {
        struct hzp_path path = l->micro->path;
        hzp_micro_clear(l->micro);
        l->micro->path = path;
    }
    l->chain_ns = hzp_now_ns();
    struct hzp_work work = any ? l->work : (struct hzp_work){.kind = HZP_WORK_NONE};
    work.first = l->bin == 0;
    l->work.kind = HZP_WORK_MICRO;
    if (x && !l->config.model->tensor) {
        hzp_plan_clear(&l->chain);
        l->at = l->to = 0;
        hzp_collectives_micro(x, &l->chain, hzp_learner_version(l), l->micro, l->bin == 0,
                              l->bin + hzp_collectives_ranks(x) >= l->deal.count);
    } else {
        hzp_learner_begin(l, &work);
        if (x)
            hzp_collectives_group_micro(x, &l->chain, work.first);
    }
    l->rider = (struct hzp_rider){hzp_learner_version(l), l->micro, l->space};
    return HZP_OK;
}

/* Builds the chain of this stage's next task. */
static int build_task(struct hzp_learner *l, struct hzp_err_text *reterr)
{
    const struct hzp_stage_task *task = hzp_stages_task(l->stages);
    if (task) {
        l->bin = task->micro;
        l->micro = l->micros[task->visit % l->space->slots];
    }
    if (task && task->work == HZP_STAGE_FORWARD) {
        HZP_TRY(read_work(l, &l->deal, l->bin, &l->work, reterr));
        l->micro->path.count = 0; /* it has all of this stage's layers */
    }
    l->work = (struct hzp_work){.kind = HZP_WORK_MICRO};
    l->chain_ns = hzp_now_ns();
    hzp_plan_clear(&l->chain);
    l->at = l->to = 0;
    hzp_stages_build(l->stages, &l->chain, hzp_learner_version(l), l->micro);
    return HZP_OK;
}

/* Which stages the micro-batch that was read visits. */
static int stage_path(const struct hzp_learner *l, struct hzp_stage_path *ret)
{
    return hzp_stage_path_read(&l->micro->path, &l->config.shards, l->config.model->layout, ret);
}

/* Begins the first micro-batch of the deal. */
static int begin_micros(struct hzp_learner *l, struct hzp_err_text *reterr)
{
    l->bin = 0;
    if (!l->stages)
        return build_micro(l, reterr);
    l->rows = hzp_xgrow(l->rows, &l->rows_room, l->deal.count, sizeof(*l->rows));
    l->paths = hzp_xgrow(l->paths, &l->paths_room, l->deal.count, sizeof(*l->paths));
    for (int32_t i = 0; i < l->deal.count; i++) {
        HZP_TRY(read_work(l, &l->deal, i, &l->work, reterr));
        l->rows[i] = l->micro->rows;
        int r = stage_path(l, &l->paths[i]);
        HZP_ASSERT(r >= 0); /* hzp_learner_check */
    }
    hzp_stages_begin(l->stages, l->rows, l->paths, l->deal.count);
    return build_task(l, reterr);
}

int hzp_learner_check(struct hzp_learner *l, const struct hzp_works *works,
                      struct hzp_err_text *reterr)
{
    struct hzp_work work;
    struct hzp_stage_path path;
    for (int32_t i = 0; i < works->count; i++) {
        HZP_TRY(read_work(l, works, i, &work, reterr));
        if (l->stages && stage_path(l, &path) < 0)
            return hzp_fail(reterr, HZP_EFORMAT, "micro-batch %d: a path of parts of stages", i);
    }
    return HZP_OK;
}

int hzp_learner_deal(struct hzp_learner *l, const struct hzp_works *works,
                     struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    HZP_TRY(hzp_learner_check(l, works, reterr)); /* so that no later one fails */
    hzp_works_receive(&l->deal, works->data, works->bytes, works->count);
    l->loss_sum = 0;
    l->ratios = (struct hzp_ratio_stats){0};
    l->operations = (struct hzp_operations){0};
    hzp_learner_hold(l);
    return begin_micros(l, reterr);
}

/* The losses of the micro-batch, which are known. */
static double sum_losses(struct hzp_learner *l)
{
    double loss = 0;
    for (int32_t i = 0; i < l->micro->learned; i++)
        loss += (double)l->micro->loss.value[i];
    hzp_loss_ratios(&l->micro->loss, l->micro->learned, &l->ratios);
    return loss;
}

bool hzp_learner_ends_micro(const struct hzp_learner *l)
{
    const struct hzp_stage_task *task = l->stages ? hzp_stages_task(l->stages) : NULL;
    return !l->stages || (task && task->work == HZP_STAGE_BACKWARD);
}

/* The stage's task has ended; true: the next one has begun. */
static bool end_task(struct hzp_learner *l)
{
    const struct hzp_stage_task *task = hzp_stages_task(l->stages);
    static const char *const name[] = {"forward", "head", "backward"};
    if (task)
        hzp_track_add(l->track, name[task->work], l->chain_ns, hzp_now_ns(), (uint64_t)task->micro);
    hzp_operations_add(&l->operations, &l->chain);
    hzp_stages_end(l->stages, task && task->work == HZP_STAGE_HEAD ? sum_losses(l) : 0);
    if (!hzp_stages_task(l->stages))
        return false;
    int r = build_task(l, NULL);
    HZP_ASSERT(r >= 0); /* all of the deal was read before */
    return true;
}

/* The micro-batch's chain has ended; true: the next one has begun. */
static bool end_micro(struct hzp_learner *l)
{
    struct hzp_collectives *x = l->collectives;
    if (l->stages)
        return end_task(l);
    double loss = sum_losses(l);
    hzp_track_add(l->track, "micro-batch", l->chain_ns, hzp_now_ns(),
                  (uint64_t)(l->bin + (x ? hzp_collectives_position(x) : 0)));
    hzp_operations_add(&l->operations, &l->chain);
    if (x)
        hzp_collectives_note_loss(x, loss);
    else
        l->loss_sum += loss;
    l->bin += x ? hzp_collectives_ranks(x) : 1;
    if (l->bin >= l->deal.count)
        return false;
    int r = build_micro(l, NULL);
    HZP_ASSERT(r >= 0); /* all of the deal was read before */
    return true;
}

/* --- Updates ---------------------------------------------------------------------------------- */

int hzp_learner_take_draft(struct hzp_learner *l)
{
    hzp_assert_engine_thread();
    int r = l->draft ? HZP_OK : hzp_weights_begin(l->config.model->weights, &l->draft);
    if (r < 0)
        l->draft = NULL;
    return r;
}

int hzp_learner_update(struct hzp_learner *l, const struct hzp_work *work,
                       const struct hzp_works *ahead)
{
    struct hzp_version *v = hzp_learner_version(l); /* before the draft may become it */
    HZP_TRY(hzp_learner_take_draft(l));
    l->update_ns = hzp_now_ns();
    l->update_number = work->optimizer_step;
    hzp_works_clear(&l->ahead);
    if (!l->collectives || l->config.model->tensor) {
        hzp_learner_begin(l, work);
        if (l->collectives)
            hzp_collectives_group_update(l->collectives, &l->chain, l->draft);
        return HZP_OK;
    }
    l->work = *work;
    hzp_plan_clear(&l->chain);
    l->at = l->to = 0;
    if (ahead && ahead->count)
        hzp_works_receive(&l->ahead, ahead->data, ahead->bytes, ahead->count);
    if (work->saves)
        hzp_update_save(&l->chain, l->space);
    hzp_collectives_update(l->collectives, &l->chain, v, l->draft, &work->hyper,
                           l->ahead.count > 0);
    return HZP_OK;
}

static void track_update(const struct hzp_learner *l)
{
    hzp_track_add(l->track, "update", l->update_ns, hzp_now_ns(), (uint64_t)l->update_number);
}

/* The update's chain has ended.  The next micro-batches begin where they were dealt and the update
 * is not repeated: only a norm that is not finite makes one that is, and all ranks know it by
 * now. */
static void begin_tail(struct hzp_learner *l, uint64_t last_step)
{
    struct hzp_works none = l->deal;
    l->update_loss = 0;
    for (int32_t bin = 0; bin < l->deal.count; bin++)
        l->update_loss += hzp_collectives_loss(l->collectives, bin);
    l->tail = true;
    hzp_collectives_audit(l->collectives);
    if (!l->ahead.count || !isfinite(hzp_update_result(l->space)->sumsq))
        return;
    l->deal = l->ahead;
    l->ahead = none;
    hzp_works_clear(&l->ahead);
    hzp_learner_let_go(l, last_step);
    l->reads_draft = true;
    int r = begin_micros(l, NULL);
    HZP_ASSERT(r >= 0);
}

/* True: the update is in its tail. */
static bool end_update(struct hzp_learner *l, uint64_t last_step)
{
    l->update_ratios = l->ratios;
    l->update_operations = l->operations;
    if (l->collectives) {
        begin_tail(l, last_step);
        return true;
    }
    l->update_loss = l->loss_sum;
    track_update(l);
    return false;
}

bool hzp_learner_runs_ahead(const struct hzp_learner *l)
{
    return l->tail && l->work.kind != HZP_WORK_UPDATE;
}

enum hzp_learned_as hzp_learner_result(const struct hzp_learner *l)
{
    const struct hzp_update_result *result = hzp_update_result(l->space);
    if (!isfinite(result->sumsq))
        return HZP_UPDATE_NOT_FINITE;
    return result->nonfinite ? HZP_WEIGHTS_NOT_FINITE : HZP_UPDATE_GOOD;
}

enum hzp_learned_as hzp_learner_end_tail(struct hzp_learner *l)
{
    HZP_ASSERT(hzp_learner_whole(l));
    l->tail = false;
    track_update(l);
    return hzp_learner_result(l);
}

void hzp_learner_keep(struct hzp_learner *l)
{
    l->unpublished++;
    l->reads_draft = true;
    l->draft->record.optimizer_step = ++l->optimizer_step;
    l->draft->record.checksum = hzp_update_result(l->space)->checksum;
}

void hzp_learner_publish(struct hzp_learner *l, uint64_t last_step)
{
    hzp_assert_engine_thread();
    l->draft->fp8_made = true; /* by the last items of the chain that made it, which has ended */
    hzp_weights_publish(l->config.model->weights, l->draft, last_step);
    hzp_learner_leave_draft(l);
}

void hzp_learner_abandon(struct hzp_learner *l)
{
    hzp_assert_engine_thread();
    if (l->draft)
        hzp_weights_abandon(l->config.model->weights, l->draft);
    hzp_learner_leave_draft(l);
}

void hzp_learner_leave_draft(struct hzp_learner *l)
{
    l->draft = NULL;
    l->unpublished = 0;
    l->reads_draft = false;
}

void hzp_learner_part(struct hzp_learner *l)
{
    hzp_collectives_destroy(l->collectives);
    l->collectives = NULL;
    l->tail = false;
    hzp_learner_drop_chain(l);
}

/* --- Other ranks of a group ------------------------------------------------------------------- */

int hzp_learner_read(struct hzp_learner *l, const void *data, size_t bytes,
                     struct hzp_err_text *reterr)
{
    struct hzp_work_limits limits = limits_of(l);
    hzp_assert_engine_thread();
    return hzp_work_read(data, bytes, &limits, &l->work, l->micro, reterr);
}

void hzp_learner_begin_read(struct hzp_learner *l)
{
    hzp_assert_engine_thread();
    build(l);
}

/* --- Steps ------------------------------------------------------------------------------------ */

void hzp_learner_note_room(struct hzp_learner *l, const struct hzp_room *room)
{
    l->chunks = room->ride_rows > 0;
    l->op_times = room->op_times;
}

int32_t hzp_learner_limit(const struct hzp_learner *l)
{
    return l->collectives
               ? hzp_transfers_limit(hzp_collectives_transfers(l->collectives), l->chain.items)
               : l->chain.items;
}

/* Completes the slice for the ranks that compute each step together with this one: the number of
 * its chain and, with the first slice that has items, its work. */
static void tell(const struct hzp_learner *l, struct hzp_slice *slice)
{
    slice->number = l->number;
    if (slice->from == 0 && slice->to > 0) { /* a slice without items is not told to anyone */
        slice->work = l->bytes.data;
        slice->work_bytes = l->bytes.bytes;
    }
}

struct hzp_slice *hzp_learner_offer(struct hzp_learner *l, const struct hzp_step *step,
                                    const struct hzp_room *room, struct hzp_offer *offer,
                                    int32_t limit)
{
    hzp_assert_engine_thread();
    bool rides = l->config.rides && l->work.kind == HZP_WORK_MICRO;
    const struct hzp_rider *rider = rides ? &l->rider : NULL;
    struct hzp_slice *slice = hzp_offer_add(
        offer, &(struct hzp_slice){.chain = &l->chain, .from = l->to, .rider = rider});
    int32_t end = hzp_ride_cut(rider, step->version, room->op_times, &l->chain, l->to,
                               room->train_ns, room->item_ns, room->ride_rows);
    if (l->collectives) {
        struct hzp_transfers *list = hzp_collectives_transfers(l->collectives);
        int32_t cut = hzp_transfers_cut(list, l->to, hzp_learner_limit(l));
        limit = HZP_MIN(limit, cut);
    }
    slice->to = l->to = HZP_MIN(end, limit);
    if (l->config.model->tensor)
        tell(l, slice);
    return slice;
}

bool hzp_learner_deliver(struct hzp_learner *l, const struct hzp_offer *offer)
{
    const struct hzp_slice *slice = hzp_offer_slice(offer, &l->chain);
    bool ran = slice && slice->to > slice->from;
    if (ran)
        l->at = slice->to;
    if (l->collectives)
        hzp_collectives_deliver_audit(l->collectives, offer);
    return ran;
}

int hzp_learner_turn(struct hzp_learner *l)
{
    return l->collectives ? hzp_collectives_turn(l->collectives, l->at) : HZP_OK;
}

bool hzp_learner_ended(const struct hzp_learner *l)
{
    bool update = l->work.kind == HZP_WORK_UPDATE && l->collectives;
    bool known = !update || (!l->tail && hzp_collectives_updated(l->collectives));
    return l->at == l->chain.items && known;
}

bool hzp_learner_next(struct hzp_learner *l, uint64_t last_step)
{
    hzp_assert_engine_thread();
    if (l->work.kind == HZP_WORK_MICRO || l->work.kind == HZP_WORK_NONE)
        return end_micro(l);
    return l->work.kind == HZP_WORK_UPDATE && end_update(l, last_step);
}

bool hzp_learner_whole(const struct hzp_learner *l)
{
    return l->tail && hzp_collectives_whole(l->collectives);
}
