/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_checks.c - what a draft passes before it is published: a list of checks,
 * each of which may take several steps and says whether the next one follows.  That a draft is
 * finite was looked at before.  What the checks refuse is undone: moments and residuals are copied
 * back, the draft is given up. */
#include "train/conductor/trainer_state.h"

/* --- The gate --------------------------------------------------------------------------------- */

static bool gate_wanted(const struct hzp_trainer *t)
{
    return t->gate != NULL;
}

static void gate_begin(struct hzp_trainer *t)
{
    t->gate_device_ns = t->now.device_ns;
    t->stage = HZP_TRAINER_GATE;
    hzp_gate_begin(t->gate);
}

static void note_gate(struct hzp_trainer *t, const struct hzp_gate_finding *f, bool refused)
{
    struct hzp_sample_group judged = hzp_trainer_judged(t);
    t->now.gate_before = f->before;
    t->now.gate_after = f->after;
    t->now.gate_tag = f->tag;
    HZP_LOCKED(&t->lock);
    struct hzp_trainer_stats *s = &t->stats;
    s->gate_evaluations++;
    t->now.gate_ns = t->now.device_ns - t->gate_device_ns;
    s->gate_device_ns += t->now.gate_ns;
    s->gate_before = f->before;
    s->gate_after = f->after;
    if (refused) {
        s->gate_rejected++;
        s->rejection.optimizer_step = t->now.optimizer_step;
        s->rejection.first_sequence = judged.first;
        s->rejection.last_sequence = judged.last;
        s->rejection.unix_ms = hzp_unix_ms();
        s->rejection.tag = f->tag;
        s->rejection.before = f->was;
        s->rejection.after = f->is;
    }
}

void hzp_trainer_end_gate(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns)
{
    struct hzp_gate_finding found;
    enum hzp_gate_result result = hzp_gate_next(t->gate, &found);
    if (result == HZP_GATE_GOES_ON)
        return;
    bool passed = result == HZP_GATE_PASSED;
    note_gate(t, &found, !passed);
    if (passed)
        hzp_trainer_passed(t, step);
    else
        hzp_trainer_begin_undo(t);
}

/* --- The list --------------------------------------------------------------------------------- */

bool hzp_trainer_tries(const struct hzp_trainer *t)
{
    return t->config.trials &&
           hzp_trials_expects(t->config.trials, hzp_sample_queue_foresee(t->config.queue));
}

/* With several ranks only what they wait for is tried. */
static bool trial_wanted(const struct hzp_trainer *t)
{
    return (t->open || !t->learner->collectives) && hzp_trainer_tries(t);
}

static const struct check {
    bool (*wanted)(const struct hzp_trainer *t);
    /* Puts the trainer into the check's state; at its end it calls hzp_trainer_passed or
     * hzp_trainer_begin_undo. */
    void (*begin)(struct hzp_trainer *t);
} checks[] = {
    {gate_wanted, gate_begin},
    {trial_wanted, hzp_trainer_trial_begin},
};

/* The next check from number `at` on; the number of checks: there is none. */
static int next_check(const struct hzp_trainer *t, int at)
{
    while (at < HZP_COUNT(checks) && !checks[at].wanted(t))
        at++;
    return at;
}

static void go_on(struct hzp_trainer *t, const struct hzp_step *step)
{
    t->check = next_check(t, t->check);
    if (t->check < HZP_COUNT(checks)) {
        checks[t->check].begin(t);
        return;
    }
    hzp_trainer_keep_update(t, step);
    hzp_trainer_close_update(t, step);
}

void hzp_trainer_check(struct hzp_trainer *t, const struct hzp_step *step)
{
    t->check = 0;
    if (!hzp_trainer_merge(t))
        go_on(t, step);
}

void hzp_trainer_passed(struct hzp_trainer *t, const struct hzp_step *step)
{
    t->check++;
    go_on(t, step);
}

bool hzp_trainer_checks(const struct hzp_trainer *t)
{
    return t->config.gate || hzp_trials_undo(t->config.trials);
}

bool hzp_trainer_decides(const struct hzp_trainer *t)
{
    /* What is only observed may be tried, or not: that is not known yet. */
    bool last = !hzp_trials_undo(t->config.trials);
    return t->stage == HZP_TRAINER_GATE && last && hzp_gate_decides(t->gate);
}
