/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checks/gate.h"

/* Losses: of each tag, and [tags] of all. */
struct losses {
    double *sum, *weight; /* [tags + 1] */
};

struct hzp_gate_check {
    const struct hzp_gate *config;
    struct hzp_learner *learner;
    struct losses now;      /* the evaluation in progress */
    double *current, *best; /* [tags + 1] means, of the serving version; the lowest */
    bool known;             /* the serving version's are known */
    int32_t at;             /* samples before it are in micro-batches */
    int32_t tag;            /* the micro-batch in progress has this tag */
};

struct hzp_gate_check *hzp_gate_create(const struct hzp_gate *config, struct hzp_learner *learner)
{
    struct hzp_gate_check *g = hzp_xcalloc(1, sizeof(*g));
    size_t n = (size_t)config->tags + 1;
    g->config = config;
    g->learner = learner;
    g->now.sum = hzp_xcalloc(n, sizeof(double));
    g->now.weight = hzp_xcalloc(n, sizeof(double));
    g->current = hzp_xcalloc(n, sizeof(double));
    g->best = hzp_xcalloc(n, sizeof(double));
    return g;
}

void hzp_gate_destroy(struct hzp_gate_check *g)
{
    if (!g)
        return;
    free(g->now.sum);
    free(g->now.weight);
    free(g->current);
    free(g->best);
    free(g);
}

void hzp_gate_forget(struct hzp_gate_check *g)
{
    g->known = false;
}

static double mean_of(const struct losses *l, int32_t tag)
{
    return l->weight[tag] > 0 ? l->sum[tag] / l->weight[tag] : 0;
}

/* Fills the micro-batch with the next samples, of one tag.  Those too long for it are left out. */
static bool fill(struct hzp_gate_check *g)
{
    const struct hzp_gate *config = g->config;
    struct hzp_micro *micro = g->learner->micro;
    int32_t rows_max = HZP_MIN(micro->rows_max, g->learner->config.model->positions);
    int32_t packed = g->learner->config.recipe.micro_rows;
    hzp_micro_clear(micro);
    for (; g->at < config->count; g->at++) {
        const struct hzp_sample *s = config->sample[g->at];
        if (s->count < 2 || s->count - 1 > rows_max)
            continue;
        if (micro->docs && (config->tag[g->at] != g->tag || micro->rows + s->count - 1 > packed))
            break;
        g->tag = config->tag[g->at];
        if (hzp_micro_add_losses(micro, s->token, s->learn, s->weight, NULL, s->count) == HZP_EBUSY)
            break;
    }
    return micro->learned > 0;
}

/* Begins the chain of the next micro-batch; false: there is none. */
static bool begin_micro(struct hzp_gate_check *g)
{
    hzp_learner_begin_chain(g->learner);
    if (!fill(g))
        return false;
    hzp_micro_cut(g->learner->micro, 0);
    hzp_learner_begin(g->learner, &(struct hzp_work){.kind = HZP_WORK_EVAL, .draft = g->known});
    return true;
}

static void begin_evaluation(struct hzp_gate_check *g)
{
    size_t bytes = ((size_t)g->config->tags + 1) * sizeof(double);
    memset(g->now.sum, 0, bytes);
    memset(g->now.weight, 0, bytes);
    g->at = 0;
}

void hzp_gate_begin(struct hzp_gate_check *g)
{
    begin_evaluation(g);
    begin_micro(g);
}

bool hzp_gate_decides(const struct hzp_gate_check *g)
{
    return g->known && g->at == g->config->count;
}

static void take_losses(struct hzp_gate_check *g)
{
    const struct hzp_micro *micro = g->learner->micro;
    const int32_t to[] = {g->tag, g->config->tags};
    double sum = 0;
    if (!g->learner->chain.items)
        return;
    for (int32_t i = 0; i < micro->learned; i++)
        sum += (double)micro->loss.value[i];
    for (int i = 0; i < HZP_COUNT(to); i++) {
        g->now.sum[to[i]] += sum;
        g->now.weight[to[i]] += micro->weight_sum;
    }
}

/* The tag whose loss has risen too much; tags: that of all; -1: none has. */
static int32_t risen(const struct hzp_gate_check *g)
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

static void find(const struct hzp_gate_check *g, int32_t bad, struct hzp_gate_finding *ret)
{
    int32_t all = g->config->tags;
    *ret = (struct hzp_gate_finding){.before = g->current[all], .after = mean_of(&g->now, all)};
    if (bad < 0)
        return;
    ret->tag = bad < all ? g->config->name[bad] : NULL;
    ret->was = bad < all ? g->best[bad] : ret->before;
    ret->is = mean_of(&g->now, bad);
}

/* The losses of the evaluation become those of the serving version. */
static void take_over(struct hzp_gate_check *g, bool first)
{
    for (int32_t tag = 0; tag <= g->config->tags; tag++) {
        g->current[tag] = mean_of(&g->now, tag);
        g->best[tag] = first ? g->current[tag] : fmin(g->best[tag], g->current[tag]);
    }
    g->known = true;
}

void hzp_gate_accept(struct hzp_gate_check *g)
{
    take_over(g, false);
}

enum hzp_gate_result hzp_gate_next(struct hzp_gate_check *g, struct hzp_gate_finding *ret)
{
    take_losses(g);
    if (begin_micro(g))
        return HZP_GATE_GOES_ON;
    if (!g->known) { /* it was the serving version's */
        take_over(g, true);
        begin_evaluation(g);
        if (begin_micro(g))
            return HZP_GATE_GOES_ON;
    }
    int32_t bad = risen(g);
    find(g, bad, ret);
    return bad >= 0 ? HZP_GATE_REFUSED : HZP_GATE_PASSED;
}
