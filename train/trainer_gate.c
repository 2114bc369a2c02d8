/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_gate.c - computes the loss of a draft on held-out samples before it is published.
 *
 * The evaluation uses the memory of a micro-batch, which the update has left free: forward and loss
 * of one micro-batch after the other, each with samples of one tag.  Before the first draft the
 * serving version is evaluated in the same way. */
#include "base/arena.h"
#include "base/thread.h"
#include "train/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Losses: of each tag, and [tags] of all. */
struct losses {
    double *sum, *weight; /* [tags + 1] */
};

struct hzp_trainer_gate {
    const struct hzp_gate *config;
    struct losses now;      /* the evaluation in progress */
    double *current, *best; /* [tags + 1] means, of the serving version; the lowest */
    bool known;             /* the serving version's are known */
    int32_t at;             /* samples before it are in micro-batches */
    int32_t tag;            /* the micro-batch in progress has this tag */
    uint64_t device_ns;     /* the update's, before the evaluation began */
};

int hzp_trainer_gate_create(const struct hzp_gate *config, struct hzp_trainer_gate **ret)
{
    struct hzp_trainer_gate *g = hzp_xcalloc(1, sizeof(*g));
    size_t n = (size_t)config->tags + 1;
    g->config = config;
    g->now.sum = hzp_xcalloc(n, sizeof(double));
    g->now.weight = hzp_xcalloc(n, sizeof(double));
    g->current = hzp_xcalloc(n, sizeof(double));
    g->best = hzp_xcalloc(n, sizeof(double));
    *ret = g;
    return HZP_OK;
}

void hzp_trainer_gate_destroy(struct hzp_trainer_gate *g)
{
    if (!g)
        return;
    free(g->now.sum);
    free(g->now.weight);
    free(g->current);
    free(g->best);
    free(g);
}

void hzp_trainer_gate_forget(struct hzp_trainer *t)
{
    if (t->gate)
        t->gate->known = false;
}

static double mean_of(const struct losses *l, int32_t tag)
{
    return l->weight[tag] > 0 ? l->sum[tag] / l->weight[tag] : 0;
}

/* Fills the micro-batch with the next samples, of one tag.  Those too long for it are left out. */
static bool fill(struct hzp_trainer *t)
{
    struct hzp_trainer_gate *g = t->gate;
    const struct hzp_gate *config = g->config;
    int32_t rows_max = HZP_MIN(t->micro->rows_max, t->config.model->positions);
    hzp_micro_clear(t->micro);
    for (; g->at < config->count; g->at++) {
        const struct hzp_sample *s = config->sample[g->at];
        if (s->count < 2 || s->count - 1 > rows_max)
            continue;
        if (t->micro->docs && config->tag[g->at] != g->tag)
            break;
        g->tag = config->tag[g->at];
        if (hzp_micro_add_weighted(t->micro, s->token, s->learn, s->weight, s->count) == HZP_EBUSY)
            break;
    }
    return t->micro->learned > 0;
}

/* Builds the chain of the next micro-batch; false: there is none. */
static bool build(struct hzp_trainer *t)
{
    const struct hzp_version *v = t->gate->known ? t->draft : t->held;
    hzp_plan_clear(&t->chain);
    t->at = t->to = 0;
    if (!fill(t))
        return false;
    hzp_micro_cut(t->micro, 0);
    hzp_eval_build(&t->chain, t->config.model, v, t->micro, t->space);
    hzp_trainer_note_work(
        t, &(struct hzp_chain_work){.kind = HZP_CHAIN_EVAL, .draft = t->gate->known});
    return true;
}

static void begin_evaluation(struct hzp_trainer *t)
{
    struct hzp_trainer_gate *g = t->gate;
    size_t bytes = ((size_t)g->config->tags + 1) * sizeof(double);
    memset(g->now.sum, 0, bytes);
    memset(g->now.weight, 0, bytes);
    g->at = 0;
}

void hzp_trainer_gate_begin(struct hzp_trainer *t)
{
    t->gate->device_ns = t->now.device_ns;
    t->stage = HZP_TRAINER_GATE;
    begin_evaluation(t);
    build(t);
}

bool hzp_trainer_gate_decides(const struct hzp_trainer *t)
{
    return t->gate->known && t->gate->at == t->gate->config->count;
}

static void take_losses(struct hzp_trainer *t)
{
    struct hzp_trainer_gate *g = t->gate;
    const int32_t to[] = {g->tag, g->config->tags};
    double sum = 0;
    if (!t->chain.items)
        return;
    for (int32_t i = 0; i < t->micro->learned; i++)
        sum += (double)t->micro->loss.value[i];
    for (int i = 0; i < HZP_COUNT(to); i++) {
        g->now.sum[to[i]] += sum;
        g->now.weight[to[i]] += t->micro->weight_sum;
    }
}

/* The tag whose loss has risen too much; tags: that of all; -1: none has. */
static int32_t risen(const struct hzp_trainer_gate *g)
{
    const struct hzp_gate *config = g->config;
    for (int32_t tag = config->tags; tag >= 0; tag--) {
        double rise = tag == config->tags ? config->max_rise : config->tag_rise[tag];
        double loss = mean_of(&g->now, tag);
        if (!isfinite(loss) || loss > g->best[tag] + rise)
            return tag;
    }
    return -1;
}

static void note_result(struct hzp_trainer *t, int32_t bad)
{
    const struct hzp_gate *config = t->gate->config;
    t->now.gate_before = t->gate->current[config->tags];
    t->now.gate_after = mean_of(&t->gate->now, config->tags);
    t->now.gate_tag = bad >= 0 && bad < config->tags ? config->name[bad] : NULL;
    hzp_lock_take(&t->lock);
    struct hzp_trainer_stats *s = &t->stats;
    s->gate_evaluations++;
    s->gate_device_ns += t->now.device_ns - t->gate->device_ns;
    s->gate_before = t->now.gate_before;
    s->gate_after = t->now.gate_after;
    if (bad >= 0) {
        s->gate_rejected++;
        s->rejection.optimizer_step = t->now.optimizer_step;
        s->rejection.first_sequence = t->now.first_sequence;
        s->rejection.last_sequence = t->now.last_sequence;
        s->rejection.unix_ms = hzp_unix_ms();
        s->rejection.tag = t->now.gate_tag;
        s->rejection.before = bad < config->tags ? t->gate->best[bad] : t->now.gate_before;
        s->rejection.after = mean_of(&t->gate->now, bad);
    }
    hzp_lock_release(&t->lock);
}

/* The losses of the evaluation become those of the serving version. */
static void take_over(struct hzp_trainer_gate *g, bool first)
{
    for (int32_t tag = 0; tag <= g->config->tags; tag++) {
        g->current[tag] = mean_of(&g->now, tag);
        g->best[tag] = first ? g->current[tag] : fmin(g->best[tag], g->current[tag]);
    }
    g->known = true;
}

void hzp_trainer_gate_accept(struct hzp_trainer *t)
{
    if (t->gate)
        take_over(t->gate, false);
}

enum hzp_gate_result hzp_trainer_gate_next(struct hzp_trainer *t)
{
    struct hzp_trainer_gate *g = t->gate;
    take_losses(t);
    if (build(t))
        return HZP_GATE_GOES_ON;
    if (!g->known) { /* it was the serving version's */
        take_over(g, true);
        begin_evaluation(t);
        if (build(t))
            return HZP_GATE_GOES_ON;
    }
    int32_t bad = risen(g);
    note_result(t, bad);
    return bad >= 0 ? HZP_GATE_REFUSED : HZP_GATE_PASSED;
}
