/* SPDX-License-Identifier: Apache-2.0 */
#include "train/follower.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/thread.h"
#include "nanobatch/model/ride.h"
#include "nanobatch/run/warm.h"
#include "train/collectives.h"
#include "train/start_state.h"
#include "train/table/deal.h"
#include "train/trainer_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum stage {
    BEGIN,   /* nothing was heard yet */
    LISTEN,  /* for the next command */
    PAYLOAD, /* for the documents that belong to the command */
    MICRO,   /* the chain of a micro-batch is in progress, or of a round without one */
    UPDATE,  /* the update's chain is in progress, or nothing but its tail */
    STATE,   /* a unit of the optimizer's state is being gathered */
    FILL,    /* a unit of an older version, or of its optimizer's state, is on its way */
    ADOPT,   /* what was sent is being compared */
    PUBLISH, /* deliver() publishes, once the chain has ended, which is often empty */
    UNDO,    /* the chain that copies the optimizer's state back is in progress */
    STOPPED,
    BROKEN,
};

struct hzp_follower {
    struct hzp_source source;
    struct hzp_follower_config config;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_collectives *collectives;

    /* engine thread */
    enum stage stage;
    struct hzp_plan chain;
    struct hzp_track *track;       /* micro-batches and updates */
    uint64_t chain_ns, update_ns;  /* when the micro-batch's chain was built, and the update's */
    int32_t at, to;                /* as in the trainer */
    int32_t bin;                   /* the first of the current round */
    struct hzp_rank_command deal;  /* for the update whose micro-batches are computed */
    struct hzp_rank_command next;  /* ahead: of the one after */
    struct hzp_version *version;   /* the draft, or in place the current version; NULL: none */
    struct hzp_rank_filled filled; /* since the last command RESTORE */
    bool gated;                    /* the update is published only by a verdict */
    bool ahead; /* the next update's micro-batches were dealt with the command to update */
    bool tail;  /* the update's chain has ended; its draft is gathered and audited */
    int64_t optimizer_step;

    /* under lock */
    struct hzp_lock lock;
    struct hzp_follower_stats stats;
};

/* --- Creation --------------------------------------------------------------------------------- */

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer);
static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome);
static bool busy(struct hzp_source *source);

int hzp_follower_create(const struct hzp_follower_config *config, struct hzp_follower **ret,
                        struct hzp_err_text *reterr)
{
    struct hzp_follower *f = hzp_xcalloc(1, sizeof(*f));
    struct hzp_train_space_config space =
        hzp_trainer_space_config(&config->recipe, config->model->config, config->quantum_flops);
    struct hzp_collectives_config collectives = {.link = config->link,
                                                 .shards = config->shards,
                                                 .model = config->model,
                                                 .micro_rows = config->recipe.micro_rows};
    f->config = *config;
    f->source = (struct hzp_source){
        .name = "follow", .slices = true, .offer = offer, .deliver = deliver, .busy = busy};
    space.shards = config->shards;
    space.backup = config->gate;
    hzp_plan_init(&f->chain);
    f->track = hzp_track_open("training", HZP_TRACK_FEW, false);
    hzp_lock_init(&f->lock, HZP_LOCK_TRAINER);
    int r;
    HZP_TRY_GOTO(hzp_train_space_create(config->model, &space, &f->space));
    HZP_TRY_GOTO(hzp_micro_create(config->model->dev, config->recipe.micro_rows, &f->micro));
    collectives.space = f->space;
    HZP_TRY_GOTO(hzp_collectives_create(&collectives, &f->collectives, reterr));
    *ret = f;
    return HZP_OK;
out:
    hzp_follower_destroy(f);
    return r;
}

void hzp_follower_destroy(struct hzp_follower *f)
{
    if (!f)
        return;
    hzp_collectives_destroy(f->collectives);
    hzp_micro_destroy(f->micro);
    hzp_train_space_destroy(f->space);
    hzp_plan_fini(&f->chain);
    hzp_track_close(f->track);
    hzp_lock_fini(&f->lock);
    free(f);
}

struct hzp_source *hzp_follower_source(struct hzp_follower *f)
{
    return &f->source;
}

struct hzp_train_space *hzp_follower_space(struct hzp_follower *f)
{
    return f->space;
}

int hzp_follower_products(struct hzp_follower *f, struct hzp_plan *chain)
{
    return hzp_warm_micros(chain, f->config.model, f->micro, f->space);
}

int hzp_follower_load(struct hzp_follower *f, struct hzp_version *v, const char *dir,
                      bool same_recipe, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_trainer_numbers saved;
    HZP_TRY(hzp_trainer_load_state(f->config.model, &f->config.recipe, f->space, v, dir,
                                   same_recipe, &saved, reterr));
    f->optimizer_step = saved.optimizer_step;
    return HZP_OK;
}

int hzp_follower_receive(struct hzp_follower *f, struct hzp_version *v, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_start_state state = {.collectives = f->collectives,
                                    .model = f->config.model,
                                    .space = f->space,
                                    .version = v,
                                    .optimizer_step = f->optimizer_step};
    HZP_TRY(hzp_start_state_receive(&state, reterr));
    f->optimizer_step = state.optimizer_step;
    if (v->record.state == HZP_VERSION_DRAFT) /* it will have the id that it has on rank 0 */
        hzp_weights_set_first_id(f->config.model->weights, state.version_id);
    return HZP_OK;
}

void hzp_follower_read_stats(struct hzp_follower *f, struct hzp_follower_stats *ret)
{
    hzp_lock_take(&f->lock);
    *ret = f->stats;
    hzp_lock_release(&f->lock);
}

static int give_up(struct hzp_follower *f, const char *why)
{
    f->stage = BROKEN;
    hzp_log(HZP_LOG_ERROR, "train", "%s", why);
    hzp_lock_take(&f->lock);
    snprintf(f->stats.failure, sizeof(f->stats.failure), "%s", why);
    hzp_lock_release(&f->lock);
    return HZP_EIO;
}

/* --- Commands --------------------------------------------------------------------------------- */

static void listen(struct hzp_follower *f)
{
    f->stage = LISTEN;
    hzp_collectives_listen(f->collectives);
}

/* The documents of micro-batch `bin`, into f->micro.  *ret_any: there are some. */
static int fill_micro(struct hzp_follower *f, int32_t bin, bool *ret_any)
{
    const char *at = hzp_collectives_payload(f->collectives), *end = at + f->deal.bytes;
    struct hzp_deal_doc doc;
    hzp_micro_clear(f->micro);
    for (int32_t i = 0; i < f->deal.docs; i++) {
        at = hzp_deal_get(at, end, f->deal.bins, &doc);
        if (!at)
            return give_up(f, "rank 0 has sent documents that cannot be read");
        if (doc.bin == bin &&
            hzp_micro_add_weighted(f->micro, doc.token, doc.learn, doc.weight, doc.count) < 0)
            return give_up(f, "rank 0 has sent a micro-batch that is too long: --micro-rows "
                              "differs between ranks");
    }
    *ret_any = f->micro->rows > 0;
    return HZP_OK;
}

static void begin_micro(struct hzp_follower *f)
{
    bool any;
    struct hzp_version *v = f->tail ? f->version : hzp_weights_current(f->config.model->weights);
    if (fill_micro(f, f->bin + hzp_collectives_position(f->collectives), &any) < 0)
        return;
    hzp_plan_clear(&f->chain);
    f->chain_ns = hzp_now_ns();
    hzp_collectives_micro(f->collectives, &f->chain, v, any ? f->micro : NULL, f->bin == 0,
                          f->bin + hzp_collectives_ranks(f->collectives) >= f->deal.bins);
    f->at = f->to = 0;
    f->stage = MICRO;
}

/* False: a request still reads the slot that the draft needs. */
static bool begin_update(struct hzp_follower *f)
{
    struct hzp_weights *w = f->config.model->weights;
    const struct hzp_rank_command *command = hzp_collectives_heard(f->collectives);
    struct hzp_update_hyper hyper = command->hyper;
    if (command->optimizer_step != f->optimizer_step + 1) {
        give_up(f, "this rank's state is of another optimizer step than rank 0's");
        return true;
    }
    if (command->gated && !f->config.gate) {
        give_up(f, "rank 0 has --gate, this rank has not");
        return true;
    }
    if (hzp_weights_begin(w, &f->version) < 0) {
        f->version = NULL;
        return false;
    }
    hzp_plan_clear(&f->chain);
    f->update_ns = hzp_now_ns();
    f->gated = command->gated;
    if (f->gated)
        hzp_update_save(&f->chain, f->space);
    f->ahead = command->bytes > 0;
    f->next = *command;
    hzp_collectives_update(f->collectives, &f->chain, hzp_weights_current(w), f->version, &hyper,
                           f->ahead);
    f->at = f->to = 0;
    f->stage = UPDATE;
    return true;
}

static void begin_deal(struct hzp_follower *f, const struct hzp_rank_command *deal)
{
    f->deal = *deal;
    f->bin = 0;
    begin_micro(f);
}

/* --- Verdicts, and older versions ------------------------------------------------------------- */

static void begin_chain(struct hzp_follower *f, enum stage stage)
{
    hzp_plan_clear(&f->chain);
    f->chain.tenant = HZP_TENANT_TRAIN;
    f->chain.layer = -1;
    f->at = f->to = 0;
    f->stage = stage;
}

static void begin_verdict(struct hzp_follower *f, bool passed)
{
    if (!f->gated || !f->version) {
        give_up(f, "rank 0 has sent a verdict about no update");
        return;
    }
    begin_chain(f, passed ? PUBLISH : UNDO);
    if (!passed)
        hzp_update_restore(&f->chain, f->space);
}

static int clear_unit(void *ctx, int32_t u, const struct hzp_unit_view *host)
{
    memset(host->base, 0, host->elements * hzp_dtype_size(host->type));
    return HZP_OK;
}

/* The state is zero until it is filled.  False: a request still reads the slot that the version
 * needs. */
static bool begin_restore(struct hzp_follower *f)
{
    struct hzp_device *dev = f->config.model->dev;
    const struct hzp_units *state[] = {hzp_train_space_m(f->space), hzp_train_space_v(f->space),
                                       hzp_train_space_residual(f->space)};
    if (!f->version && hzp_weights_begin(f->config.model->weights, &f->version) < 0) {
        f->version = NULL;
        return false;
    }
    f->filled = (struct hzp_rank_filled){0};
    f->gated = false;
    for (int i = 0; i < HZP_COUNT(state); i++)
        if (state[i] && hzp_units_fill(dev, state[i], clear_unit, NULL) < 0) {
            give_up(f, "cannot zero the optimizer's state");
            return true;
        }
    listen(f);
    return true;
}

static void begin_fill(struct hzp_follower *f, const struct hzp_rank_command *command)
{
    if (!f->version) {
        give_up(f, "rank 0 has sent a unit of no version");
        return;
    }
    f->stage = FILL;
    hzp_collectives_fill(f->collectives, command, NULL);
}

static void end_fill(struct hzp_follower *f)
{
    const struct hzp_rank_command *command = hzp_collectives_heard(f->collectives);
    hzp_collectives_keep(f->collectives, command, f->version, &f->filled);
    listen(f);
}

/* All ranks have the version. */
static void end_adopt(struct hzp_follower *f)
{
    const struct hzp_rank_command *command = hzp_collectives_heard(f->collectives);
    f->optimizer_step = command->optimizer_step;
    f->version->record.optimizer_step = command->optimizer_step;
    f->version->record.checksum = command->checksum;
    hzp_log(HZP_LOG_INFO, "train", "restored version=%" PRIu64 " optimizer_step=%" PRId64,
            command->version, command->optimizer_step);
    begin_chain(f, PUBLISH);
    hzp_update_end(&f->chain, f->config.model, f->version, f->space); /* fp8: its projections */
}

/* The command that was heard, with its payload.  False: it cannot be obeyed yet. */
static bool obey(struct hzp_follower *f)
{
    const struct hzp_rank_command *command = hzp_collectives_heard(f->collectives);
    switch (command->kind) {
    case HZP_RANK_COMMAND_DEAL:
        begin_deal(f, command);
        break;
    case HZP_RANK_COMMAND_UPDATE:
        return begin_update(f);
    case HZP_RANK_COMMAND_STATE:
        hzp_collectives_gather_state(f->collectives, command);
        f->stage = STATE;
        break;
    case HZP_RANK_COMMAND_VERDICT:
        begin_verdict(f, command->passed);
        break;
    case HZP_RANK_COMMAND_RESTORE:
        return begin_restore(f);
    case HZP_RANK_COMMAND_FILL:
        begin_fill(f, command);
        break;
    case HZP_RANK_COMMAND_ADOPT:
        f->stage = ADOPT;
        hzp_collectives_compare(f->collectives, &f->filled);
        break;
    case HZP_RANK_COMMAND_STOP:
        f->stage = STOPPED;
        hzp_lock_take(&f->lock);
        f->stats.stopped = true;
        hzp_lock_release(&f->lock);
        break;
    default:
        give_up(f, "rank 0 has sent an unknown command");
    }
    return true;
}

/* --- The source ------------------------------------------------------------------------------- */

static int turn(struct hzp_follower *f)
{
    if (f->stage == STOPPED || f->stage == BROKEN)
        return HZP_OK;
    if (hzp_collectives_turn(f->collectives, f->at) >= 0)
        return HZP_OK;
    char why[sizeof(f->stats.failure)];
    snprintf(why, sizeof(why), "the exchange with other ranks failed: %.150s",
             hzp_collectives_error(f->collectives));
    return give_up(f, why);
}

/* Whether it waits for other ranks, with no chain to compute. */
static bool waits(const struct hzp_follower *f)
{
    return f->stage == LISTEN || f->stage == PAYLOAD || f->stage == STATE || f->stage == FILL ||
           f->stage == ADOPT;
}

/* Goes on as far as what has been received allows, up to a chain. */
static void advance(struct hzp_follower *f)
{
    if (f->stage == BEGIN)
        listen(f);
    while (waits(f)) {
        if (turn(f) < 0 || !hzp_collectives_done(f->collectives) || f->tail)
            return;
        if (f->stage == LISTEN && hzp_collectives_heard(f->collectives)->bytes) {
            hzp_collectives_listen_payload(f->collectives);
            f->stage = PAYLOAD;
        } else if (f->stage == STATE) {
            listen(f);
        } else if (f->stage == FILL) {
            end_fill(f);
        } else if (f->stage == ADOPT) {
            end_adopt(f);
        } else if (!obey(f)) {
            return;
        }
    }
}

static bool has_chain(const struct hzp_follower *f)
{
    return f->stage == MICRO || f->stage == UPDATE || f->stage == PUBLISH || f->stage == UNDO;
}

static bool chain_ended(const struct hzp_follower *f)
{
    bool done = (has_chain(f) && f->stage != UPDATE) ||
                (f->stage == UPDATE && !f->tail && hzp_collectives_updated(f->collectives));
    return done && f->at == f->chain.items;
}

static bool tail_ended(const struct hzp_follower *f)
{
    return f->tail && f->stage != BROKEN && hzp_collectives_whole(f->collectives);
}

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_follower *f = HZP_CONTAINER_OF(source, struct hzp_follower, source);
    bool was_busy = busy(source);
    advance(f);
    if (turn(f) >= 0 && tail_ended(f) && !offer->keep_version)
        return true; /* deliver() goes on */
    if (f->tail && f->stage != BROKEN) {
        const struct hzp_slice *audit =
            hzp_collectives_offer_audit(f->collectives, step, room, offer);
        if (audit)
            return audit->to > audit->from;
    }
    if (!has_chain(f) || turn(f) < 0)
        return was_busy && !busy(source); /* a step, so that the loop sees that it may end */
    int32_t limit = hzp_transfers_limit(hzp_collectives_transfers(f->collectives), f->chain.items);
    if (chain_ended(f)) /* deliver() goes on */
        return f->stage != PUBLISH || !offer->keep_version;
    if (f->to == limit || !room->train_ns)
        return false;
    struct hzp_slice *slice =
        hzp_offer_add(offer, &(struct hzp_slice){.chain = &f->chain, .from = f->to});
    int32_t end = hzp_ride_cut(NULL, step->version, room->op_times, &f->chain, f->to,
                               room->train_ns, room->item_ns, 0);
    limit = hzp_transfers_cut(hzp_collectives_transfers(f->collectives), f->to, limit);
    slice->to = f->to = HZP_MIN(end, limit);
    return slice->to > slice->from;
}

static void end_micro(struct hzp_follower *f)
{
    hzp_track_add(f->track, "micro-batch", f->chain_ns, hzp_now_ns(),
                  (uint64_t)(f->bin + hzp_collectives_position(f->collectives)));
    hzp_lock_take(&f->lock);
    f->stats.rows += (uint64_t)f->micro->rows;
    hzp_lock_release(&f->lock);
    double loss = 0;
    for (int32_t i = 0; i < f->micro->learned; i++)
        loss += (double)f->micro->loss.value[i];
    hzp_collectives_note_loss(f->collectives, loss);
    f->bin += hzp_collectives_ranks(f->collectives);
    if (f->bin < f->deal.bins)
        begin_micro(f);
    else
        listen(f);
}

/* The update's chain has ended.  As on rank 0, the next micro-batches begin where they were dealt
 * and the update is not repeated. */
static void begin_tail(struct hzp_follower *f)
{
    f->tail = true;
    hzp_collectives_audit(f->collectives);
    if (f->ahead && isfinite(hzp_update_result(f->space)->sumsq))
        begin_deal(f, &f->next);
}

static void publish(struct hzp_follower *f, const struct hzp_step *step)
{
    f->version->fp8_made = true;
    f->version->record.optimizer_step = f->optimizer_step;
    hzp_weights_publish(f->config.model->weights, f->version, step->number);
    f->version = NULL;
    f->gated = false;
    hzp_lock_take(&f->lock);
    f->stats.optimizer_step = f->optimizer_step;
    hzp_lock_release(&f->lock);
}

static void drop_draft(struct hzp_follower *f)
{
    hzp_weights_abandon(f->config.model->weights, f->version);
    f->version = NULL;
    f->gated = false;
}

/* What a version is made of is here, and its chain has ended. */
static void end_version(struct hzp_follower *f, const struct hzp_step *step)
{
    if (f->stage == UNDO) {
        drop_draft(f);
    } else {
        f->optimizer_step += f->gated;
        publish(f, step);
    }
    listen(f);
}

static void end_tail(struct hzp_follower *f, const struct hzp_step *step)
{
    const struct hzp_update_result *result = hzp_update_result(f->space);
    hzp_track_add(f->track, "update", f->update_ns, hzp_now_ns(), (uint64_t)f->optimizer_step + 1);
    if (!isfinite(result->sumsq)) {
        drop_draft(f);
    } else if (result->nonfinite) {
        give_up(f, "the weights are not finite");
        return;
    } else {
        f->version->record.checksum = result->checksum;
        f->optimizer_step += !f->gated;
        if (!f->gated)
            publish(f, step);
    }
    f->tail = false;
    if (f->stage == UPDATE)
        listen(f);
}

static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    hzp_assert_engine_thread();
    struct hzp_follower *f = HZP_CONTAINER_OF(source, struct hzp_follower, source);
    const struct hzp_slice *slice = hzp_offer_slice(offer, &f->chain);
    if (outcome->status < 0) {
        give_up(f, "the device failed");
        return;
    }
    if (slice && slice->to > slice->from)
        f->at = slice->to;
    hzp_collectives_deliver_audit(f->collectives, offer);
    if (turn(f) < 0)
        return;
    if (chain_ended(f) && f->stage == MICRO)
        end_micro(f);
    else if (chain_ended(f) && f->stage == UPDATE)
        begin_tail(f);
    else if (chain_ended(f) && (f->stage != PUBLISH || !offer->keep_version))
        end_version(f, step);
    if (tail_ended(f) && !offer->keep_version)
        end_tail(f, step);
}

/* The loop runs until rank 0 has said that there is no more work. */
static bool busy(struct hzp_source *source)
{
    struct hzp_follower *f = HZP_CONTAINER_OF(source, struct hzp_follower, source);
    return f->stage != STOPPED && f->stage != BROKEN;
}
