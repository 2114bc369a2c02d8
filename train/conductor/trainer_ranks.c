/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_ranks.c - what the trainer of rank 0 tells the learners of the other
 * ranks. */
#include "train/conductor/trainer_state.h"

/* --- Work ---------------------------------------------------------------------------------------
 * */

bool hzp_trainer_may_tell(const struct hzp_trainer *t)
{
    const struct hzp_collectives *x = t->learner->collectives;
    return !x || hzp_collectives_may_send(x);
}

static void tell(struct hzp_trainer *t, const struct hzp_work *work, const struct hzp_works *follow)
{
    hzp_assert_engine_thread();
    if (t->learner->collectives)
        hzp_collectives_send(t->learner->collectives, work, follow);
}

void hzp_trainer_tell_deal(struct hzp_trainer *t)
{
    tell(t, &(struct hzp_work){.kind = HZP_WORK_DEAL}, &t->draw->works);
}

void hzp_trainer_tell_update(struct hzp_trainer *t, const struct hzp_work *work)
{
    tell(t, work, t->ahead ? &t->other->works : NULL);
}

void hzp_trainer_tell_verdict(struct hzp_trainer *t, bool passed)
{
    tell(t, &(struct hzp_work){.kind = passed ? HZP_WORK_PUBLISH : HZP_WORK_UNDO}, NULL);
}

/* --- The start and the end ----------------------------------------------------------------------
 * */

bool hzp_trainer_rests(const struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    return hzp_trainer_idle(t) && (!t->learner->collectives || hzp_trainer_listens(t));
}

void hzp_trainer_dismiss_ranks(struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    struct hzp_collectives *x = t->learner->collectives;
    /* hzp_trainer_stop_learning */
    bool stopped = t->stage == HZP_TRAINER_BROKEN && !t->learner->tail;
    bool listening = hzp_trainer_listens(t) || t->stage == HZP_TRAINER_PREPARE ||
                     (stopped && x && hzp_collectives_done(x));
    if (!x || !listening || hzp_collectives_wait(x) < 0)
        return;
    tell(t, &(struct hzp_work){.kind = HZP_WORK_END}, NULL);
    hzp_collectives_wait(x);
}

/* --- What is exchanged between updates -------------------------------------------------------- */

static void begin_exchange(struct hzp_trainer *t)
{
    struct hzp_collectives *x = t->learner->collectives;
    const struct hzp_work *work = &t->asked.work;
    tell(t, work, NULL);
    if (work->kind == HZP_WORK_READ)
        hzp_collectives_gather_state(x, work);
    else if (work->kind == HZP_WORK_WRITE)
        hzp_collectives_fill(x, work, hzp_weights_current(t->config.model->weights));
    else if (work->kind == HZP_WORK_ADOPT)
        hzp_collectives_compare(x, &t->asked.filled);
}

/* At a border: begins the exchange when the other ranks listen, and is done when it has ended. */
static int exchange_between_steps(void *trainer, const struct hzp_border *border)
{
    struct hzp_trainer *t = trainer;
    hzp_assert_engine_thread();
    bool began = t->gathering;
    t->gathering = false;
    if (t->stage == HZP_TRAINER_BROKEN || hzp_trainer_turn_ranks(t) < 0)
        return HZP_EIO;
    bool done = hzp_collectives_done(t->learner->collectives);
    if (began && done)
        return HZP_OK;
    if (!began && hzp_trainer_listens(t) && done) {
        begin_exchange(t);
        began = true;
    }
    t->gathering = began;
    return HZP_EBUSY;
}

/* The engine's thread, between chains.  What another thread has asked for may still be in
 * flight. */
static int exchange_now(struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    if (!hzp_trainer_listens(t) && t->stage != HZP_TRAINER_PREPARE) /* before the loop runs */
        return HZP_EIO;
    HZP_TRY(hzp_collectives_wait(t->learner->collectives));
    begin_exchange(t);
    return hzp_collectives_wait(t->learner->collectives);
}

static int exchange(struct hzp_trainer *t, const char *what, struct hzp_err_text *reterr)
{
    bool other = t->picture || t->suspended; /* the thread that did that, beside the loop */
    int r = other ? hzp_loop_call(t->loop, exchange_between_steps, t) : exchange_now(t);
    const char *why = hzp_collectives_error(t->learner->collectives);
    why = why[0] ? why : "training was interrupted";
    return r < 0 ? hzp_fail(reterr, HZP_EIO, "%s: %s", what, why) : HZP_OK;
}

/* The gathered unit in host memory: where it was gathered, or a copy of it until the next one. */
static int stage_on_host(struct hzp_trainer *t, int32_t u, struct hzp_unit_view *ret,
                         struct hzp_err_text *reterr)
{
    const struct hzp_model *model = t->config.model;
    const void *staged = hzp_collectives_state(t->learner->collectives, &t->asked.work, u);
    ret->base = (void *)(uintptr_t)staged;
    if (hzp_device_host_memory(model->dev))
        return HZP_OK;
    if (!t->gathered_unit)
        t->gathered_unit = hzp_xmalloc(hzp_collectives_stage_bytes(model->layout));
    ret->base = t->gathered_unit;
    int r = hzp_device_copy(model->dev, t->gathered_unit, staged, hzp_unit_bytes(ret));
    return r < 0 ? hzp_fail(reterr, r, "cannot read the state of all ranks: the device failed") : r;
}

int hzp_trainer_gather(struct hzp_trainer *t, enum hzp_state_part part, int32_t u,
                       struct hzp_unit_view *ret, struct hzp_err_text *reterr)
{
    struct hzp_work *w = &t->asked.work;
    bool frozen = t->picture; /* several units are gathered at once, and stay valid */
    ret->part = (struct hzp_extent){.first = 0, .count = ret->elements};
    if (!ret->elements) { /* 8-bit moments have none of the embedding */
        ret->base = w;
        return HZP_OK;
    }
    bool here = frozen && w->kind == HZP_WORK_READ && w->gather.part == part &&
                u > w->gather.unit && u < w->gather.unit + w->units;
    if (!here) {
        int32_t units = frozen ? hzp_collectives_gathered(t->learner->collectives, u) : 1;
        *w = (struct hzp_work){
            .kind = HZP_WORK_READ, .gather = {.part = part, .unit = u}, .units = units};
        int r = exchange(t, "cannot gather the state of all ranks", reterr);
        if (r < 0) {
            w->units = 0;
            return r;
        }
    }
    return stage_on_host(t, u, ret, reterr);
}

int hzp_trainer_exchange(struct hzp_trainer *t, const struct hzp_work *work,
                         struct hzp_err_text *reterr)
{
    t->asked.work = *work;
    return exchange(t, "cannot send the version to all ranks", reterr);
}

void hzp_trainer_set_loop(struct hzp_trainer *t, struct hzp_loop *loop)
{
    t->loop = loop;
    if (t->config.link)
        hzp_link_set_wake(t->config.link, loop ? hzp_loop_wake : NULL, loop);
}
