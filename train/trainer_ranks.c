/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_ranks.c - what the trainer of rank 0 tells the followers of the other ranks. */
#include "base/arena.h"
#include "base/thread.h"
#include "nanobatch/loop.h"
#include "train/start_state.h"
#include "train/table/deal.h"
#include "train/trainer_state.h"

#include <stdlib.h>

struct length {
    int32_t bin, rows;
};

static int longest_first(const void *a, const void *b)
{
    const struct length *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows > y->rows ? -1 : 1;
    return x->bin < y->bin ? -1 : x->bin > y->bin;
}

/* Numbers the micro-batches by length, so that those of a round take about as long.  (In the
 * ordered mode their order is that of the sums, and stays.) */
static void sort_bins(struct hzp_draw *d)
{
    size_t bins = (size_t)d->bins;
    struct length *length = hzp_xcalloc(bins, sizeof(*length));
    int32_t *number = hzp_xcalloc(bins, sizeof(*number));
    for (int32_t b = 0; b < d->bins; b++)
        length[b] = (struct length){b, d->bin_rows[b]};
    qsort(length, bins, sizeof(*length), longest_first);
    for (int32_t b = 0; b < d->bins; b++) {
        number[length[b].bin] = b;
        d->bin_rows[b] = length[b].rows;
    }
    for (int32_t i = 0; i < d->count; i++)
        if (d->bin[i] >= 0)
            d->bin[i] = number[d->bin[i]];
    free(length);
    free(number);
}

/* Sends the command, and as its payload the draw's micro-batches, which get their numbers. */
static void send_draw(struct hzp_trainer *t, struct hzp_rank_command command, struct hzp_draw *d)
{
    if (!t->config.shards.ordered)
        sort_bins(d);
    command.bins = d->bins;
    for (int32_t i = 0; i < d->count; i++) {
        if (d->bin[i] < 0)
            continue;
        command.docs++;
        command.bytes += (int64_t)hzp_deal_bytes(d->sample[i]->count, d->sample[i]->weight != NULL);
    }
    char *payload = hzp_xmalloc((size_t)command.bytes), *at = payload;
    for (int32_t i = 0; i < d->count; i++)
        if (d->bin[i] >= 0)
            at = hzp_deal_put(at, d->sample[i], d->bin[i]);
    hzp_collectives_send(t->collectives, &command, payload);
    free(payload);
}

void hzp_trainer_deal(struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    send_draw(t, (struct hzp_rank_command){.kind = HZP_RANK_COMMAND_DEAL}, t->draw);
}

void hzp_trainer_tell_update(struct hzp_trainer *t, const struct hzp_update_hyper *hyper)
{
    hzp_assert_engine_thread();
    struct hzp_rank_command command = {.kind = HZP_RANK_COMMAND_UPDATE,
                                       .gated = t->gate != NULL,
                                       .optimizer_step = t->optimizer_step + 1,
                                       .hyper = *hyper};
    if (t->ahead)
        send_draw(t, command, t->other);
    else
        hzp_collectives_send(t->collectives, &command, NULL);
}

bool hzp_trainer_may_tell(const struct hzp_trainer *t)
{
    return !t->collectives || hzp_collectives_may_send(t->collectives);
}

void hzp_trainer_tell_verdict(struct hzp_trainer *t, bool passed)
{
    hzp_assert_engine_thread();
    struct hzp_rank_command command = {.kind = HZP_RANK_COMMAND_VERDICT, .passed = passed};
    if (t->collectives)
        hzp_collectives_send(t->collectives, &command, NULL);
}

/* Whether the other ranks wait for the next command, or soon will, and no version is
 * incomplete. */
static bool listens(const struct hzp_trainer *t)
{
    return !t->tail && (t->stage == HZP_TRAINER_IDLE || t->stage == HZP_TRAINER_WAIT);
}

bool hzp_trainer_rests(const struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    return hzp_trainer_idle(t) && (!t->collectives || listens(t));
}

void hzp_trainer_dismiss_ranks(struct hzp_trainer *t)
{
    hzp_assert_engine_thread();
    struct hzp_rank_command command = {.kind = HZP_RANK_COMMAND_STOP};
    bool stopped = t->stage == HZP_TRAINER_BROKEN && !t->tail; /* hzp_trainer_stop_learning */
    bool listening = listens(t) || t->stage == HZP_TRAINER_PREPARE ||
                     (stopped && t->collectives && hzp_collectives_done(t->collectives));
    if (!t->collectives || !listening || hzp_collectives_wait(t->collectives) < 0)
        return;
    hzp_collectives_send(t->collectives, &command, NULL);
    hzp_collectives_wait(t->collectives);
}

int hzp_trainer_send_start_state(struct hzp_trainer *t, struct hzp_err_text *reterr)
{
    hzp_assert_engine_thread();
    struct hzp_start_state state = {.collectives = t->collectives,
                                    .model = t->config.model,
                                    .space = t->space,
                                    .version = hzp_weights_current(t->config.model->weights),
                                    .optimizer_step = t->optimizer_step,
                                    .state_dir = t->loaded_dir};
    return t->collectives ? hzp_start_state_send(&state, reterr) : HZP_OK;
}

/* --- What is exchanged between updates
 * -------------------------------------------------------- */

static void begin_exchange(struct hzp_trainer *t)
{
    const struct hzp_rank_command *c = &t->asked.command;
    hzp_collectives_send(t->collectives, c, NULL);
    if (c->kind == HZP_RANK_COMMAND_STATE)
        hzp_collectives_gather_state(t->collectives, c);
    else if (c->kind == HZP_RANK_COMMAND_FILL)
        hzp_collectives_fill(t->collectives, c, t->asked.whole);
    else if (c->kind == HZP_RANK_COMMAND_ADOPT)
        hzp_collectives_compare(t->collectives, &t->asked.filled);
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
    bool done = hzp_collectives_done(t->collectives);
    if (began && done)
        return HZP_OK;
    if (!began && listens(t) && done) {
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
    if (!listens(t))
        return HZP_EIO;
    HZP_TRY(hzp_collectives_wait(t->collectives));
    begin_exchange(t);
    return hzp_collectives_wait(t->collectives);
}

static int exchange(struct hzp_trainer *t, const char *what, struct hzp_err_text *reterr)
{
    bool other = t->picture || t->suspended; /* the thread that did that, beside the loop */
    int r = other ? hzp_loop_call(t->loop, exchange_between_steps, t) : exchange_now(t);
    const char *why = hzp_collectives_error(t->collectives);
    why = why[0] ? why : "training was interrupted";
    return r < 0 ? hzp_fail(reterr, HZP_EIO, "%s: %s", what, why) : HZP_OK;
}

/* The gathered unit in host memory: where it was gathered, or a copy of it until the next one. */
static int stage_on_host(struct hzp_trainer *t, enum hzp_state_part part, int32_t u,
                         const void **ret, struct hzp_err_text *reterr)
{
    const struct hzp_model *model = t->config.model;
    enum hzp_dtype type = part == HZP_STATE_WEIGHTS    ? model->act
                          : part == HZP_STATE_RESIDUAL ? HZP_I16
                                                       : t->config.recipe.moment_type;
    size_t bytes = model->layout->unit[u].elements * hzp_dtype_size(type);
    const void *staged = hzp_collectives_state(t->collectives, &t->asked.command, u);
    *ret = staged;
    if (hzp_device_host_memory(model->dev))
        return HZP_OK;
    if (!t->gathered_unit)
        t->gathered_unit = hzp_xmalloc(hzp_collectives_stage_bytes(model->layout));
    *ret = t->gathered_unit;
    int r = hzp_device_copy(model->dev, t->gathered_unit, staged, bytes);
    return r < 0 ? hzp_fail(reterr, r, "cannot read the state of all ranks: the device failed") : r;
}

int hzp_trainer_gather(struct hzp_trainer *t, enum hzp_state_part part, int32_t u, const void **ret,
                       struct hzp_err_text *reterr)
{
    struct hzp_rank_command *c = &t->asked.command;
    bool frozen = t->picture; /* several units are gathered at once, and stay valid */
    bool here = frozen && c->kind == HZP_RANK_COMMAND_STATE && c->part == (int32_t)part &&
                u > c->unit && u < c->unit + c->units;
    if (!here) {
        *c = (struct hzp_rank_command){.kind = HZP_RANK_COMMAND_STATE,
                                       .part = part,
                                       .unit = u,
                                       .units = frozen ? hzp_collectives_gathered(t->collectives, u)
                                                       : 1};
        int r = exchange(t, "cannot gather the state of all ranks", reterr);
        if (r < 0) {
            c->units = 0;
            return r;
        }
    }
    return stage_on_host(t, part, u, ret, reterr);
}

int hzp_trainer_exchange(struct hzp_trainer *t, const struct hzp_rank_command *command,
                         const void *whole, struct hzp_err_text *reterr)
{
    t->asked.command = *command;
    t->asked.whole = whole;
    return exchange(t, "cannot send the version to all ranks", reterr);
}

int hzp_trainer_read_weights(void *trainer, int32_t u, const void **ret,
                             struct hzp_err_text *reterr)
{
    struct hzp_trainer *t = trainer;
    const struct hzp_state_whole *whole = hzp_trainer_whole(t);
    return whole ? whole->read(whole->ctx, HZP_STATE_WEIGHTS, u, ret, reterr)
                 : hzp_trainer_gather(t, HZP_STATE_WEIGHTS, u, ret, reterr);
}

void hzp_trainer_set_loop(struct hzp_trainer *t, struct hzp_loop *loop)
{
    t->loop = loop;
    if (t->config.link)
        hzp_link_set_wake(t->config.link, loop ? hzp_loop_wake : NULL, loop);
}
