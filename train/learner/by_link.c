/* SPDX-License-Identifier: Apache-2.0 */
#include "train/learner/by_link.h"

#include "base/log.h"
#include "base/thread.h"
#include "train/state/state_file.h"

enum state {
    BEGIN,   /* nothing was heard yet */
    LISTEN,  /* for the next work */
    FOLLOW,  /* for the works that follow it */
    WAIT,    /* for a transfer that the work has begun, with no chain */
    CHAIN,   /* the chain of a work is in progress, or the tail of an update */
    PUBLISH, /* deliver() publishes, once the chain has ended, which is often empty */
    STOPPED,
    BROKEN,
};

struct hzp_learner_by_link {
    struct hzp_source source;
    struct hzp_learner *learner;

    /* engine thread */
    enum state state;
    struct hzp_work heard;         /* the newest */
    struct hzp_works follow;       /* what followed it */
    struct hzp_rank_filled filled; /* since the last work that cleared the state */
    bool open;           /* the draft is published, or given up, by a work that rank 0 sends */
    int64_t step_before; /* the optimizer step before the draft's first update */
    bool writes;         /* units of a version are received into the draft */
    bool first;          /* that is the version that the loop will begin with */

    /* under lock */
    struct hzp_lock lock;
    struct hzp_learner_by_link_stats stats;
};

/* --- Creation --------------------------------------------------------------------------------- */

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer);
static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome);
static bool busy(struct hzp_source *source);

int hzp_learner_by_link_create(const struct hzp_learner_config *config,
                               struct hzp_learner_by_link **ret, struct hzp_err_text *reterr)
{
    struct hzp_learner_by_link *b = hzp_xcalloc(1, sizeof(*b));
    b->source = (struct hzp_source){
        .name = "follow", .slices = true, .offer = offer, .deliver = deliver, .busy = busy};
    hzp_lock_init(&b->lock, HZP_LOCK_TRAINER);
    int r = hzp_learner_create(config, &b->learner, reterr);
    if (r < 0) {
        hzp_learner_by_link_destroy(b);
        return r;
    }
    *ret = b;
    return HZP_OK;
}

void hzp_learner_by_link_destroy(struct hzp_learner_by_link *b)
{
    if (!b)
        return;
    hzp_learner_destroy(b->learner);
    hzp_works_free(&b->follow);
    hzp_lock_fini(&b->lock);
    free(b);
}

struct hzp_source *hzp_learner_by_link_source(struct hzp_learner_by_link *b)
{
    return &b->source;
}

struct hzp_learner *hzp_learner_by_link_learner(struct hzp_learner_by_link *b)
{
    return b->learner;
}

int hzp_learner_by_link_load(struct hzp_learner_by_link *b, struct hzp_version *v, const char *dir,
                             bool same_recipe, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_learner *l = b->learner;
    struct hzp_trainer_numbers saved;
    HZP_TRY(hzp_state_load(l->config.model, &l->config.recipe, l->space, v, dir, same_recipe,
                           &saved, NULL, reterr));
    l->optimizer_step = saved.optimizer_step;
    return HZP_OK;
}

void hzp_learner_by_link_read_stats(struct hzp_learner_by_link *b,
                                    struct hzp_learner_by_link_stats *ret)
{
    HZP_LOCKED(&b->lock);
    *ret = b->stats;
}

static int give_up(struct hzp_learner_by_link *b, const char *why)
{
    b->state = BROKEN;
    hzp_log(HZP_LOG_ERROR, "train", "%s", why);
    HZP_LOCKED(&b->lock);
    snprintf(b->stats.failure, sizeof(b->stats.failure), "%.199s", why);
    return HZP_EIO;
}

/* --- Work ------------------------------------------------------------------------------------- */

static void listen(struct hzp_learner_by_link *b)
{
    b->state = LISTEN;
    hzp_collectives_listen(b->learner->collectives);
}

static void begin_deal(struct hzp_learner_by_link *b)
{
    struct hzp_err_text text;
    if (hzp_learner_deal(b->learner, &b->follow, &text) < 0)
        give_up(b, text.text);
    else
        b->state = CHAIN;
}

/* False: a request still reads the slot that the draft needs. */
static bool begin_update(struct hzp_learner_by_link *b)
{
    struct hzp_learner *l = b->learner;
    struct hzp_err_text text;
    if (b->heard.optimizer_step != l->optimizer_step + 1) {
        give_up(b, "this rank's state is of another optimizer step than rank 0's");
        return true;
    }
    if (b->heard.saves && !l->config.undoes) {
        give_up(b, "rank 0 may undo updates, this rank cannot");
        return true;
    }
    if (hzp_learner_check(l, &b->follow, &text) < 0) {
        give_up(b, text.text);
        return true;
    }
    if (hzp_learner_update(l, &b->heard, &b->follow) < 0)
        return false;
    b->open = b->heard.open;
    if (!l->unpublished)
        b->step_before = l->optimizer_step;
    b->state = CHAIN;
    return true;
}

static void begin_verdict(struct hzp_learner_by_link *b)
{
    struct hzp_learner *l = b->learner;
    if (!b->open || !l->unpublished) {
        give_up(b, "rank 0 has sent a verdict about no update");
        return;
    }
    if (b->heard.kind == HZP_WORK_UNDO) {
        hzp_learner_begin(l, &b->heard);
        b->state = CHAIN;
        return;
    }
    hzp_learner_begin_chain(l);
    b->state = PUBLISH;
}

/* --- Versions that are sent ------------------------------------------------------------------- */

/* The state is zero until it is filled.  False: a request still reads the slot that the version
 * needs. */
static bool begin_clear(struct hzp_learner_by_link *b)
{
    struct hzp_learner *l = b->learner;
    if (hzp_learner_take_draft(l) < 0)
        return false;
    b->filled = (struct hzp_rank_filled){0};
    b->open = false;
    b->writes = true;
    if (hzp_train_space_clear(l->space) < 0) {
        give_up(b, "cannot zero the optimizer's state");
        return true;
    }
    listen(b);
    return true;
}

static void begin_adopt(struct hzp_learner_by_link *b)
{
    const struct hzp_learner *l = b->learner;
    if (!b->writes)
        give_up(b, "rank 0 has sent no version that could be adopted");
    else if (b->first && !hzp_units_whole(hzp_version_units(l->config.model->weights, l->draft)) &&
             b->heard.optimizer_step != l->optimizer_step)
        give_up(b, "this rank has loaded the state of another optimizer step than rank 0");
    else {
        hzp_collectives_compare(l->collectives, &b->filled);
        b->state = WAIT;
    }
}

/* The units of a work are those of this model, and there is room for them. */
static bool has_units(const struct hzp_learner_by_link *b)
{
    const struct hzp_learner *l = b->learner;
    const struct hzp_work *work = &b->heard;
    enum hzp_dtype type;
    const struct hzp_layout *all = l->config.model->layout;
    const struct hzp_layout *layout = hzp_state_layout(
        all, l->config.model->act, l->config.recipe.moment_type, work->gather.part, &type);
    size_t elements = 0, rooms = 0;
    if (!layout || work->gather.unit + work->units > layout->units)
        return false;
    for (int32_t u = work->gather.unit; u < work->gather.unit + work->units; u++)
        elements += layout->unit[u].elements, rooms += layout->unit[u].room;
    return work->kind == HZP_WORK_READ ? rooms * sizeof(float) <= hzp_collectives_stage_bytes(all)
                                       : elements <= hzp_collectives_fill_elements(l->collectives);
}

static void begin_units(struct hzp_learner_by_link *b)
{
    if (!has_units(b)) {
        give_up(b, "rank 0 has named units that this rank has not");
    } else if (b->heard.kind == HZP_WORK_READ) {
        hzp_collectives_gather_state(b->learner->collectives, &b->heard);
        b->state = WAIT;
    } else if (!b->writes || !b->learner->draft) {
        give_up(b, "rank 0 has sent a unit of no version");
    } else {
        hzp_collectives_fill(b->learner->collectives, &b->heard, b->learner->draft);
        b->state = WAIT;
    }
}

/* All ranks have the version. */
static void end_adopt(struct hzp_learner_by_link *b)
{
    struct hzp_learner *l = b->learner;
    l->optimizer_step = b->heard.optimizer_step;
    l->draft->record.optimizer_step = b->heard.optimizer_step;
    l->draft->record.checksum = b->heard.checksum;
    b->writes = false;
    if (b->first) {
        b->state = BEGIN;
        return;
    }
    hzp_log(HZP_LOG_INFO, "train", "restored version=%" PRIu64 " optimizer_step=%" PRId64,
            b->heard.version, b->heard.optimizer_step);
    b->state = PUBLISH;
    /* fp8: its projections */
    hzp_update_end(hzp_learner_begin_chain(l), l->config.model, l->draft, l->space);
}

/* --- The table -------------------------------------------------------------------------------- */

/* What the work that was heard begins, with what follows it.  False: it cannot begin yet. */
static bool obey(struct hzp_learner_by_link *b)
{
    switch (b->heard.kind) {
    case HZP_WORK_DEAL:
        begin_deal(b);
        return true;
    case HZP_WORK_UPDATE:
        return begin_update(b);
    case HZP_WORK_PUBLISH:
    case HZP_WORK_UNDO:
        begin_verdict(b);
        return true;
    case HZP_WORK_CLEAR:
        return begin_clear(b);
    case HZP_WORK_READ:
    case HZP_WORK_WRITE:
        begin_units(b);
        return true;
    case HZP_WORK_ADOPT:
        begin_adopt(b);
        return true;
    case HZP_WORK_END:
        b->state = STOPPED;
        hzp_lock_take(&b->lock);
        b->stats.stopped = true;
        hzp_lock_release(&b->lock);
        return true;
    default:
        give_up(b, "rank 0 has sent work that is not for ranks that learn beside it");
        return true;
    }
}

/* The transfer that the work began has ended. */
static void end_wait(struct hzp_learner_by_link *b)
{
    struct hzp_learner *l = b->learner;
    if (b->heard.kind == HZP_WORK_ADOPT) {
        end_adopt(b);
        return;
    }
    if (b->heard.kind == HZP_WORK_WRITE)
        hzp_collectives_keep(l->collectives, &b->heard, l->draft, &b->filled);
    listen(b);
}

/* Work has arrived, or what follows it.  False: it cannot begin yet. */
static bool hear(struct hzp_learner_by_link *b)
{
    struct hzp_collectives *x = b->learner->collectives;
    struct hzp_err_text text;
    int r = b->state == FOLLOW ? hzp_collectives_hear_follow(x, &b->follow, &text)
                               : hzp_collectives_hear(x, &b->heard, &text);
    if (r < 0) {
        give_up(b, text.text);
        return true;
    }
    if (b->state == LISTEN && b->heard.follow) {
        hzp_collectives_listen_follow(x);
        b->state = FOLLOW;
        return true;
    }
    if (b->state == LISTEN)
        hzp_works_clear(&b->follow);
    return obey(b);
}

/* --- The source ------------------------------------------------------------------------------- */

static int turn(struct hzp_learner_by_link *b)
{
    if (b->state == STOPPED || b->state == BROKEN || hzp_learner_turn(b->learner) >= 0)
        return HZP_OK;
    char why[sizeof(b->stats.failure)];
    snprintf(why, sizeof(why), "the exchange with other ranks failed: %.150s",
             hzp_collectives_error(b->learner->collectives));
    return give_up(b, why);
}

/* Whether it waits for other ranks, with no chain to compute. */
static bool waits(const struct hzp_learner_by_link *b)
{
    return b->state == LISTEN || b->state == FOLLOW || b->state == WAIT;
}

/* Goes on as far as what has been received allows, up to a chain. */
static void advance(struct hzp_learner_by_link *b)
{
    struct hzp_learner *l = b->learner;
    if (b->state == BEGIN)
        listen(b);
    while (waits(b)) {
        if (turn(b) < 0 || !hzp_collectives_done(l->collectives) || l->tail)
            return;
        if (b->state == WAIT)
            end_wait(b);
        else if (!hear(b))
            return;
    }
}

static bool has_chain(const struct hzp_learner_by_link *b)
{
    return b->state == CHAIN || b->state == PUBLISH;
}

static bool whole(const struct hzp_learner_by_link *b)
{
    return b->state != BROKEN && hzp_learner_whole(b->learner);
}

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_learner_by_link *b = HZP_CONTAINER_OF(source, struct hzp_learner_by_link, source);
    struct hzp_learner *l = b->learner;
    bool was_busy = busy(source);
    advance(b);
    if (turn(b) >= 0 && whole(b) && !offer->keep_version)
        return true; /* deliver() goes on */
    if (l->tail && b->state != BROKEN) {
        const struct hzp_slice *audit =
            hzp_collectives_offer_audit(l->collectives, step, room, offer);
        if (audit)
            return audit->to > audit->from;
    }
    if (!has_chain(b) || turn(b) < 0)
        return was_busy && !busy(source); /* a step, so that the loop sees that it may end */
    if (hzp_learner_ended(l))             /* deliver() goes on */
        return b->state != PUBLISH || !offer->keep_version;
    int32_t limit = hzp_learner_limit(l);
    if (l->to == limit || !room->train_ns)
        return false;
    const struct hzp_slice *slice = hzp_learner_offer(l, step, room, offer, limit);
    return slice->to > slice->from;
}

static void count_rows(struct hzp_learner_by_link *b)
{
    HZP_LOCKED(&b->lock);
    b->stats.rows += (uint64_t)b->learner->micro->rows;
}

static void publish(struct hzp_learner_by_link *b, const struct hzp_step *step)
{
    hzp_learner_publish(b->learner, step->number);
    hzp_learner_let_go(b->learner, step->number);
    b->open = false;
    HZP_LOCKED(&b->lock);
    b->stats.optimizer_step = b->learner->optimizer_step;
}

static void end_chain(struct hzp_learner_by_link *b, const struct hzp_step *step)
{
    struct hzp_learner *l = b->learner;
    if (b->state == PUBLISH) {
        publish(b, step);
        listen(b);
        return;
    }
    if (l->work.kind == HZP_WORK_MICRO && hzp_learner_ends_micro(l))
        count_rows(b);
    if (hzp_learner_next(l, step->number))
        return;
    if (l->work.kind == HZP_WORK_UNDO) {
        hzp_learner_abandon(l);
        hzp_learner_let_go(l, step->number);
        l->optimizer_step = b->step_before;
        b->open = false;
    }
    listen(b);
}

static void end_tail(struct hzp_learner_by_link *b, const struct hzp_step *step)
{
    struct hzp_learner *l = b->learner;
    bool ahead = hzp_learner_runs_ahead(l);
    enum hzp_learned_as result = hzp_learner_end_tail(l);
    if (result == HZP_WEIGHTS_NOT_FINITE) {
        give_up(b, "the weights are not finite");
        return;
    }
    if (result == HZP_UPDATE_GOOD)
        hzp_learner_keep(l);
    else if (!l->unpublished)
        hzp_learner_abandon(l);
    if (result == HZP_UPDATE_GOOD && !b->open)
        publish(b, step);
    else
        hzp_learner_let_go(l, step->number);
    if (ahead)
        hzp_learner_hold(l);
    else
        listen(b);
}

static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    hzp_assert_engine_thread();
    struct hzp_learner_by_link *b = HZP_CONTAINER_OF(source, struct hzp_learner_by_link, source);
    if (outcome->status < 0) {
        give_up(b, b->learner->config.model->tensor ? "a step of its group has failed"
                                                    : "the device failed");
        return;
    }
    hzp_learner_deliver(b->learner, offer);
    if (turn(b) < 0)
        return;
    bool ended = has_chain(b) && hzp_learner_ended(b->learner);
    if (ended && (b->state != PUBLISH || !offer->keep_version))
        end_chain(b, step);
    if (whole(b) && !offer->keep_version)
        end_tail(b, step);
}

/* The loop runs until rank 0 has said that there is no more work. */
static bool busy(struct hzp_source *source)
{
    struct hzp_learner_by_link *b = HZP_CONTAINER_OF(source, struct hzp_learner_by_link, source);
    return b->state != STOPPED && b->state != BROKEN;
}

/* --- Before the loop runs --------------------------------------------------------------------- */

int hzp_learner_by_link_receive(struct hzp_learner_by_link *b, struct hzp_version *v,
                                struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_learner *l = b->learner;
    struct hzp_weights *w = l->config.model->weights;
    const struct hzp_units *units = hzp_version_units(w, v);
    if (!hzp_units_whole(units)) /* it has loaded its part */
        HZP_TRY(hzp_units_checksum(l->config.model->dev, units, &b->filled.weights));
    l->draft = v;
    b->first = b->writes = true;
    do
        advance(b);
    while (waits(b) && hzp_collectives_wait(l->collectives) >= 0);
    turn(b); /* notes why it failed */
    l->draft = NULL;
    b->first = false;
    if (b->state != BEGIN)
        return hzp_fail(reterr, HZP_EIO, "%s",
                        b->stats.failure[0] ? b->stats.failure : "rank 0 has sent no version");
    if (v->record.state == HZP_VERSION_DRAFT) /* it will have the id that it has on rank 0 */
        hzp_weights_set_first_id(w, b->heard.version);
    return HZP_OK;
}
