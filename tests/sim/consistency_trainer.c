/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/consistency_trainer.c - what stands for the trainer in test_consistency: updates, that
 * are published, put on trial, or undone by going back to an earlier state. */
#include "tests/sim/consistency.h"

static void note_version(struct day *d)
{
    const struct hzp_version_record *r = &hzp_weights_current(d->m.weights)->record;
    const struct known *before = &d->known[d->newest];
    check(d, r->id < IDS_MAX, "ids", (int64_t)r->id, 0);
    bool follows = d->newest && r->parent == d->newest;
    d->known[r->id] = (struct known){.learned_through = r->learned_through,
                                     .step = r->optimizer_step,
                                     .swap = before->swap + 1,
                                     .line = follows ? before->line : (int32_t)r->id};
    d->newest = r->id;
}

void publish(struct day *d, struct hzp_version *v, uint64_t last_step)
{
    v->record.optimizer_step = d->step;
    v->record.learned_through = d->learned_through;
    hzp_weights_publish(d->m.weights, v, last_step);
    note_version(d);
}

/* An update ends: some of its examples were learned, some given up. */
static void learn(struct day *d)
{
    d->step++;
    for (int32_t n = between(d, 0, 3); n > 0 && d->learned_through + 1 < SAMPLES_MAX; n--) {
        d->learned_through++;
        if (content(d->seed, (int32_t)d->learned_through, 1) % 8) /* always the same ones */
            continue;
        d->unlearned[d->learned_through] = true;
        hzp_weights_add_unlearned(d->m.weights, d->learned_through);
    }
}

/* The draft, with the update that has just ended, is on trial from here on. */
static void begin_trial(struct day *d)
{
    struct hzp_version_record *r = &d->draft->record;
    const struct known *current = &d->known[d->newest];
    r->optimizer_step = d->step;
    r->learned_through = d->learned_through;
    hzp_weights_begin_trial(d->m.weights, d->draft);
    hzp_trials_begin(d->trials, r->id, r->parent, d->steps);
    check(d, r->id < IDS_MAX && r->parent == d->newest, "ids", (int64_t)r->id, (int64_t)r->parent);
    d->known[r->id] = (struct known){.learned_through = r->learned_through,
                                     .step = r->optimizer_step,
                                     .swap = current->swap + 1,
                                     .line = current->line,
                                     .on_trial = true};
    d->trial = d->draft;
    d->draft = NULL;
}

/* What was counted of the trial that runs is what its requests have drawn. */
static void check_sides(const struct day *d, struct totals *t)
{
    struct hzp_trials_stats stats;
    struct hzp_trial_side seen[2] = {{0}};
    hzp_trials_read(d->trials, &stats);
    for (int32_t i = 0; i < d->submitted; i++) {
        const struct hzp_request *rq = d->life[i].rq;
        struct hzp_trial_side *side = &seen[rq->on_trial];
        if (rq->trial != stats.newest.version)
            continue;
        int32_t count = atomic_load(&rq->out_count);
        side->requests++;
        side->tokens += count;
        side->ended += count && hzp_request_final(rq);
        side->cut += count && rq->state == HZP_REQUEST_LENGTH;
        for (int32_t n = 0; n < count; n++)
            side->logprob += (double)rq->out[n].logprob;
        t->on_trial += rq->on_trial;
    }
    for (int i = 0; i < 2; i++) {
        const struct hzp_trial_side *side = &stats.newest.side[i];
        check(d, side->requests == seen[i].requests, "requests of a side", i, side->requests);
        check(d, side->tokens == seen[i].tokens, "tokens of a side", i, side->tokens);
        check(d, side->ended == seen[i].ended, "ended requests of a side", i, side->ended);
        check(d, side->cut == seen[i].cut, "cut requests of a side", i, side->cut);
        check(d, side->logprob == seen[i].logprob, "log-probabilities of a side", i, 0);
    }
}

static void drop_trial(struct day *d, bool reject, struct totals *t)
{
    d->known[d->trial->record.id].dropped = true;
    d->known[d->trial->record.id].on_trial = false;
    hzp_trials_end(d->trials, reject ? HZP_TRIAL_DROPPED : HZP_TRIAL_WITHDRAWN, "");
    hzp_weights_drop_trial(d->m.weights);
    d->trial = NULL;
    d->step--;
    for (int64_t n = d->learned_before + 1; reject && n <= d->learned_through; n++) {
        d->unlearned[n] = true;
        hzp_weights_add_unlearned(d->m.weights, n);
    }
    if (!reject)
        d->learned_through = d->learned_before;
    t->dropped += reject;
    t->withdrawn += !reject;
}

/* While a version is on trial. */
static void turn_trial(struct day *d, bool may_publish, uint64_t number, struct totals *t)
{
    if (!once_in(d, 16))
        return;
    check_sides(d, t);
    if (seeded(&d->random, 2)) {
        drop_trial(d, seeded(&d->random, 2), t);
    } else if (may_publish) {
        hzp_trials_end(d->trials, HZP_TRIAL_PROMOTED, "");
        hzp_weights_publish(d->m.weights, d->trial, number);
        d->trial = NULL;
        note_version(d);
        t->promoted++;
        t->swaps++;
    }
}

/* A version that was current once. */
static uint64_t earlier(struct day *d)
{
    uint64_t id;
    do
        id = (uint64_t)between(d, 1, (int32_t)d->newest);
    while (d->known[id].dropped);
    return id;
}

void train(struct day *d, const struct hzp_offer *offer, uint64_t number, bool flying,
           struct totals *t)
{
    struct hzp_weights *w = d->m.weights;
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(w, &stats);
    bool over = stats.staleness > stats.bound, exceeds = stats.staleness + 1 > stats.bound;
    d->kept = offer->keep_version ? d->kept + 1 : 0;
    check(d, d->kept < 2000, "a version is kept for ever", d->kept, 0);
    if (d->trial) {
        turn_trial(d, !offer->keep_version && !(flying && exceeds), number, t);
        return;
    }
    if (!d->draft && hzp_weights_begin(w, &d->draft) < 0) {
        d->draft = NULL;
        d->starved++;
        check(d, d->starved <= (int32_t)d->config.pin_ns + 8, "training is starved", d->starved,
              (int64_t)d->config.pin_ns);
        return;
    }
    d->starved = 0;
    if (over && !flying) {
        publish(d, d->draft, number);
        d->draft = NULL;
        return;
    }
    if (offer->keep_version || (flying && exceeds) || !once_in(d, d->swap_chance))
        return; /* the trainer has the loop wait for results first (hzp_offer.settle) */
    if (!flying && once_in(d, 12)) { /* an earlier state is put back */
        uint64_t id = earlier(d);
        d->step = d->known[id].step;
        d->learned_through = d->known[id].learned_through;
        d->draft->record.parent = id;
        t->rollbacks++;
    } else {
        bool publishes = seeded(&d->random, 2);
        if (!hzp_weights_may_update(w, publishes))
            publishes = true;
        d->learned_before = d->learned_through;
        learn(d);
        if (d->trials) {
            begin_trial(d);
            return;
        }
        if (!publishes) {
            hzp_weights_finished(w, d->step);
            return;
        }
    }
    publish(d, d->draft, number);
    d->draft = NULL;
    t->swaps++;
}
