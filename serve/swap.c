/* SPDX-License-Identifier: Apache-2.0 */
/* serve/swap.c - the scheduler's part of consistency.h: requests that wait for weights, the
 * staleness bound they ask for, pins, swaps, and which version a step serves.
 *
 * Thread: engine. */
#include "serve/scheduler_state.h"

static int32_t drawn_of(const struct hzp_request *rq)
{
    /* relaxed: only the engine thread writes it */
    return atomic_load_explicit(&rq->out_count, memory_order_relaxed);
}

/* ---- requests that wait for weights ---- */

/* Steps that may have been formed before the request's bound applied have ended. */
static bool bound_applies(const struct hzp_scheduler *s, const struct hzp_request *rq)
{
    return rq->demands.max_staleness < 0 ||
           hzp_weights_ended(s->model->weights) + 1 >= rq->seen_step;
}

bool hzp_drawn(const struct hzp_scheduler *s, const struct hzp_request *rq)
{
    if (!s->trial || rq->preempted)
        return false;
    return rq->own ? rq->tries
                   : rq->max_tokens && hzp_trials_draws(s->config.trials, rq->demands.draw_key);
}

/* Another scheduler has drawn tokens of the request, all by one version; so must the rest be. */
static bool is_bound(const struct hzp_request *rq)
{
    bool one = rq->demands.mode == HZP_ABORT || rq->demands.mode == HZP_PINNED;
    return one && drawn_of(rq) && !rq->preempted;
}

bool hzp_may_wait(const struct hzp_request *rq)
{
    return hzp_demands_wait(&rq->demands) || is_bound(rq);
}

/* Whether v, the current version, may not go on with a request that another scheduler has
 * begun, and no later one may. */
static bool has_changed(const struct hzp_scheduler *s, const struct hzp_request *rq,
                        const struct hzp_version *v)
{
    if (!drawn_of(rq) || !v || v->record.id < rq->demands.min_version)
        return false;
    return (is_bound(rq) && v->record.id > rq->out[drawn_of(rq) - 1].version) ||
           hzp_demands_lost(&rq->demands, s->model->weights, v);
}

/* How the request goes on: RUNNING: it waits in the queue from now on; WAITING: beside it; or the
 * state in which it ends. */
static enum hzp_request_state look_at(struct hzp_scheduler *s, struct hzp_request *rq,
                                      const struct hzp_step *step)
{
    if (atomic_load_explicit(&rq->cancel, memory_order_relaxed)) /* publishes no other data */
        return HZP_REQUEST_CANCELED;
    const struct hzp_version *v =
        hzp_drawn(s, rq) ? hzp_weights_trial(s->model->weights) : step->version;
    enum hzp_met met = hzp_demands_met(&rq->demands, s->model->weights, v);
    if (has_changed(s, rq, v)) {
        rq->changed = HZP_CHANGED_SWAP;
        return HZP_REQUEST_CHANGED;
    }
    if (met == HZP_MET && is_bound(rq) && v->record.id != rq->out[drawn_of(rq) - 1].version)
        met = HZP_MET_NOT_YET; /* this rank is behind the other one */
    if (met == HZP_MET_NEVER) {
        rq->unmet = HZP_UNMET_UNLEARNED;
        return HZP_REQUEST_UNMET;
    }
    if (met == HZP_MET && bound_applies(s, rq))
        return HZP_REQUEST_RUNNING;
    if (s->clock_ns >= rq->wait_until_ns && drawn_of(rq)) { /* what it has is shown: it stays */
        rq->changed = HZP_CHANGED_SWAP;
        return HZP_REQUEST_CHANGED;
    }
    if (s->clock_ns >= rq->wait_until_ns) {
        rq->unmet = HZP_UNMET_TIME;
        return HZP_REQUEST_UNMET;
    }
    if (s->drains)
        return HZP_REQUEST_FAILED;
    if (hzp_take_place(s, rq, met != HZP_MET))
        return HZP_REQUEST_WAITING;
    rq->changed = drawn_of(rq) ? HZP_CHANGED_SWAP : HZP_CHANGED_NOT;
    rq->unmet = drawn_of(rq) ? HZP_UNMET_NOT : HZP_UNMET_FULL;
    return drawn_of(rq) ? HZP_REQUEST_CHANGED : HZP_REQUEST_UNMET;
}

/* True: the request is beside the queue no longer. */
static bool go_on(struct hzp_scheduler *s, struct hzp_request *rq, const struct hzp_step *step)
{
    enum hzp_request_state state = look_at(s, rq, step);
    if (state == HZP_REQUEST_WAITING)
        return false;
    if (state == HZP_REQUEST_RUNNING) {
        hzp_take_place(s, rq, false);
        hzp_wait_add(s, rq);
    } else {
        hzp_end_waiting(s, rq, state);
    }
    return true;
}

void hzp_later_add(struct hzp_scheduler *s, struct hzp_request *rq, const struct hzp_step *step)
{
    hzp_assert_engine_thread();
    rq->wait_until_ns = rq->demands.wait_ns > UINT64_MAX - s->clock_ns
                            ? UINT64_MAX
                            : s->clock_ns + rq->demands.wait_ns;
    rq->seen_step = step->number;
    if (go_on(s, rq, step))
        return;
    HZP_ASSERT(s->later_count < 2 * s->config.waiting_max);
    s->later[s->later_count++] = rq;
}

void hzp_later_turn(struct hzp_scheduler *s, const struct hzp_step *step)
{
    hzp_assert_engine_thread();
    int32_t kept = 0;
    for (int32_t i = 0; i < s->later_count; i++) {
        struct hzp_request *rq = s->later[i];
        if (!go_on(s, rq, step))
            s->later[kept++] = rq;
    }
    s->later_count = kept;
}

uint64_t hzp_later_due(const struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    uint64_t due = UINT64_MAX;
    for (int32_t i = 0; i < s->later_count; i++)
        due = HZP_MIN(due, s->later[i]->wait_until_ns);
    return due;
}

/* ---- the staleness bound ---- */

static void ask(int32_t *least, const struct hzp_request *rq)
{
    if (rq->demands.max_staleness >= 0)
        *least = HZP_MIN(*least, rq->demands.max_staleness);
}

void hzp_ask_staleness(struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    int32_t least = INT32_MAX;
    if (!s->model->weights || (!s->bounded && !s->asks))
        return;
    for (int32_t i = 0; i < s->running; i++)
        ask(&least, s->seq[s->order[i]].rq);
    for (int32_t i = 0; i < s->wait_count; i++)
        ask(&least, hzp_wait_at(s, i));
    for (int32_t i = 0; i < s->later_count; i++)
        ask(&least, s->later[i]);
    s->asks = least < INT32_MAX;
    hzp_weights_ask_staleness(s->model->weights, least);
}

/* ---- swaps ---- */

static enum hzp_at_swap decide(struct hzp_scheduler *s, struct hzp_request *rq,
                               const struct hzp_version *v)
{
    struct hzp_weights *w = s->model->weights;
    if (rq->pin)
        return HZP_SWAP_GO_ON;
    enum hzp_at_swap what = hzp_demands_at_swap(&rq->demands, w, v, drawn_of(rq));
    if (what == HZP_SWAP_END && drawn_of(rq)) {
        rq->changed = HZP_CHANGED_SWAP;
        rq->verdict = HZP_REQUEST_CHANGED;
    } else if (what == HZP_SWAP_END) {
        rq->unmet = HZP_UNMET_LOST;
        rq->verdict = HZP_REQUEST_UNMET;
    }
    return what;
}

static void recompute(struct hzp_scheduler *s, struct hzp_seq *seq)
{
    hzp_begin_again(s, seq);
    seq->rq->recomputes++;
    s->now.recomputes++;
}

/* Requests that have not begun, and that v does not give what they ask for, wait beside the queue
 * again. */
static void send_back(struct hzp_scheduler *s, const struct hzp_version *v)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < s->wait_count; i++) {
        struct hzp_request *rq = hzp_wait_at(s, i);
        bool lost = hzp_demands_lost(&rq->demands, s->model->weights, v);
        if (!rq->preempted && (lost || is_bound(rq)))
            s->later[s->later_count++] = rq;
        else
            s->wait[(s->wait_head + kept++) % s->wait_room] = rq;
    }
    s->wait_count = kept;
}

/* ---- pins ---- */

/* While a version is on trial, a request that begins and draws tokens is on one of its sides.  The
 * server's own count on neither. */
static void choose_side(const struct hzp_scheduler *s, struct hzp_request *rq)
{
    if (!s->trial || rq->preempted || (!rq->max_tokens && !rq->own))
        return;
    rq->trial = s->trial;
    rq->on_trial = hzp_drawn(s, rq);
    if (!rq->own)
        hzp_trials_note(s->config.trials, rq->trial, rq->on_trial,
                        &(struct hzp_trial_side){.requests = 1});
}

void hzp_pin(struct hzp_scheduler *s, struct hzp_request *rq)
{
    hzp_assert_engine_thread();
    if (rq->pin)
        return;
    if (rq->reference) {
        rq->pin = rq->reference;
        hzp_weights_hold(s->model->weights, rq->pin);
        s->now.pins++;
        return;
    }
    choose_side(s, rq);
    bool on_trial = rq->on_trial && rq->trial == s->trial && !rq->preempted;
    if (!on_trial && rq->demands.mode != HZP_PINNED)
        return;
    rq->pin = on_trial ? hzp_weights_acquire_trial(s->model->weights)
                       : hzp_weights_acquire(s->model->weights);
    rq->pin_until_ns = UINT64_MAX;
    s->now.pins++;
}

void hzp_unpin(struct hzp_scheduler *s, struct hzp_request *rq)
{
    hzp_assert_engine_thread();
    if (!rq->pin)
        return;
    /* The loop has noted the last step that reads the version. */
    hzp_weights_release(s->model->weights, rq->pin, 0);
    rq->pin = NULL;
    s->now.pins--;
}

void hzp_leave_trial(struct hzp_scheduler *s, struct hzp_request *rq, struct hzp_seq *seq)
{
    hzp_unpin(s, rq);
    if (seq && hzp_seq_complete(seq))
        return;
    enum hzp_at_swap what = decide(s, rq, hzp_weights_current(s->model->weights));
    if (!seq || what == HZP_SWAP_END)
        return;
    if (!hzp_seq_decodes(seq) && seq->fed) {
        hzp_begin_again(s, seq);
        s->now.prompt_restarts++;
    } else if (what == HZP_SWAP_RECOMPUTE && hzp_seq_decodes(seq)) {
        recompute(s, seq);
    }
}

/* Ends the request at the next turn if its version has been pinned for too long, or has fallen
 * further behind than the request allows. */
static void look_at_pin(struct hzp_scheduler *s, struct hzp_request *rq, struct hzp_seq *seq)
{
    struct hzp_weights *w = s->model->weights;
    if (!rq->pin || rq->pin->record.id == s->version || rq->pin->record.id == s->trial ||
        rq->verdict || rq->reference)
        return;
    if (rq->pin_until_ns == UINT64_MAX)
        rq->pin_until_ns = s->clock_ns + s->config.pin_ns;
    int64_t behind = hzp_weights_staleness(w) + hzp_weights_current(w)->record.optimizer_step -
                     rq->pin->record.optimizer_step;
    bool stale = rq->demands.max_staleness >= 0 && behind > rq->demands.max_staleness;
    if (s->clock_ns < rq->pin_until_ns && !stale)
        return;
    if (rq->demands.mode != HZP_PINNED) { /* a dropped trial answers it */
        hzp_leave_trial(s, rq, seq);
        return;
    }
    rq->changed = HZP_CHANGED_PIN;
    rq->verdict = HZP_REQUEST_CHANGED;
}

void hzp_look_at_pins(struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    if (!s->now.pins)
        return;
    for (int32_t i = 0; i < s->running; i++)
        look_at_pin(s, s->seq[s->order[i]].rq, &s->seq[s->order[i]]);
    for (int32_t i = 0; i < s->wait_count; i++) /* preempted */
        look_at_pin(s, hzp_wait_at(s, i), NULL);
}

void hzp_swap(struct hzp_scheduler *s, const struct hzp_version *v)
{
    hzp_assert_engine_thread();
    for (int32_t i = 0; i < s->running; i++) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
        if (hzp_seq_complete(seq)) /* its last token is drawn already */
            continue;
        if (decide(s, seq->rq, v) == HZP_SWAP_RECOMPUTE && hzp_seq_decodes(seq))
            recompute(s, seq);
    }
    send_back(s, v);
    for (int32_t i = 0; i < s->wait_count; i++)
        if (hzp_wait_at(s, i)->preempted)
            decide(s, hzp_wait_at(s, i), v);
}

/* ---- trials ---- */

/* The trial has become the current version: requests that it answered go on like those
 * that it answers from now on. */
static void join_current(struct hzp_scheduler *s, struct hzp_request *rq)
{
    if (rq->on_trial && rq->pin && rq->pin->record.id == s->version &&
        rq->demands.mode != HZP_PINNED)
        hzp_unpin(s, rq);
}

void hzp_trial_turn(struct hzp_scheduler *s, const struct hzp_step *step)
{
    hzp_assert_engine_thread();
    if (!s->config.trials || !step->version)
        return;
    const struct hzp_version *trial = hzp_weights_trial(s->model->weights);
    uint64_t before = s->trial;
    s->trial = trial ? trial->record.id : 0;
    if (!before || before == s->trial)
        return;
    for (int32_t i = 0; i < s->running; i++)
        join_current(s, s->seq[s->order[i]].rq);
    for (int32_t i = 0; i < s->wait_count; i++)
        join_current(s, hzp_wait_at(s, i));
    send_back(s, step->version);
}

/* ---- which version a step serves ---- */

/* Whether ordinary requests run, all decode and none waits, and the last step of theirs left rows:
 * then one step in many is for versions that only background requests need (fill.c). */
static bool may_part(const struct hzp_scheduler *s, const struct hzp_step *step)
{
    bool ret = s->ordinary > 0 && s->running > s->ordinary && s->spare > 0 &&
               step->number >= s->apart_next && !hzp_wait_ordinary(s);
    for (int32_t i = 0; i < s->ordinary; i++)
        ret &= hzp_seq_decodes(&s->seq[s->order[i]]);
    return ret;
}

/* A version with a sequence that is not complete: the one with the smallest id above `after`, or
 * else the smallest.  While ordinary requests run, a version that only background ones need gets no
 * step, but for the one that they part for. */
static struct hzp_version *next_version(struct hzp_scheduler *s, const struct hzp_step *step,
                                        uint64_t after)
{
    struct hzp_version *above = NULL, *least = NULL;
    bool all = !s->ordinary || s->apart_step == step->number;
    for (int32_t i = 0; i < (all ? s->running : s->ordinary); i++) {
        const struct hzp_seq *seq = &s->seq[s->order[i]];
        struct hzp_version *v = seq->rq->pin ? seq->rq->pin : step->version;
        if (hzp_seq_complete(seq))
            continue;
        if (!least || v->record.id < least->record.id)
            least = v;
        if (v->record.id > after && (!above || v->record.id < above->record.id))
            above = v;
    }
    return above ? above : least;
}

struct hzp_version *hzp_first_version(struct hzp_scheduler *s, const struct hzp_step *step)
{
    hzp_assert_engine_thread();
    struct hzp_version *v = NULL;
    if (s->now.pins && may_part(s, step)) {
        s->apart_step = step->number;
        for (int32_t i = s->ordinary; i < s->running && !v; i++)
            v = hzp_seq_complete(&s->seq[s->order[i]]) ? NULL : s->seq[s->order[i]].rq->reference;
    }
    v = v || !s->now.pins ? v : next_version(s, step, s->served);
    v = v ? v : step->version;
    s->serves = v->record.id;
    return v;
}

struct hzp_version *hzp_next_version(struct hzp_scheduler *s, const struct hzp_step *step,
                                     const struct hzp_version *first)
{
    hzp_assert_engine_thread();
    struct hzp_version *v = s->now.pins ? next_version(s, step, s->serves) : NULL;
    if (!v || v == first)
        return NULL;
    s->serves = v->record.id;
    return v;
}

void hzp_count_pins(struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    uint64_t seen[64];
    int32_t n = 0;
    for (int32_t i = 0; s->now.pins && i < s->running + s->wait_count; i++) {
        const struct hzp_request *rq =
            i < s->running ? s->seq[s->order[i]].rq : hzp_wait_at(s, i - s->running);
        int32_t k = 0;
        if (!rq->pin || rq->pin->record.id == s->version || rq->pin->record.id == s->trial)
            continue;
        while (k < n && seen[k] != rq->pin->record.id)
            k++;
        if (k == n && n < HZP_COUNT(seen))
            seen[n++] = rq->pin->record.id;
    }
    s->now.pinned_slots = n;
}
