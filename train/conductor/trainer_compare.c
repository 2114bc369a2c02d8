/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/trainer_compare.c - how far the log-probabilities that were served are from those
 * that training computes of the same tokens, with the version that served them. */
#include "train/conductor/trainer_state.h"

enum {
    SHARE = 50,     /* comparing takes 1 / SHARE of the time at most */
    TOKENS = 16384, /* with more, those so far count half */
};

bool hzp_trainer_compares(struct hzp_trainer *t)
{
    const struct hzp_trainer_config *c = &t->config;
    HZP_LOCKED(&t->lock);
    return !t->compare.sample && hzp_now_ns() >= t->compare.next_ns && !c->model->tensor &&
           hzp_shards_whole(&c->shards);
}

void hzp_trainer_compare(struct hzp_trainer *t, struct hzp_sample *served, uint64_t version)
{
    bool fits = served->count > 1 && served->count <= hzp_trainer_tokens_max(t);
    if (fits && hzp_trainer_compares(t)) {
        HZP_LOCKED(&t->lock);
        struct hzp_sample *before = t->compare.sample; /* another thread has put it there since */
        t->compare.sample = served;
        t->compare.version = version;
        served = before;
    }
    hzp_sample_destroy(served);
}

/* NULL: there is none that the serving version has answered. */
static struct hzp_sample *take(struct hzp_trainer *t)
{
    const struct hzp_version *v = hzp_weights_current(t->config.model->weights);
    HZP_LOCKED(&t->lock);
    struct hzp_sample *served = t->compare.sample;
    t->compare.sample = NULL;
    if (served && v && v->record.id == t->compare.version)
        return served;
    hzp_sample_destroy(served);
    return NULL;
}

bool hzp_trainer_compare_begin(struct hzp_trainer *t)
{
    struct hzp_learner *l = t->learner;
    if (t->freeze || t->suspend || l->unpublished || atomic_load(&t->finishing) ||
        !hzp_trainer_may_tell(t) || hzp_trainer_parting(t))
        return false;
    struct hzp_sample *s = take(t);
    if (!s)
        return false;
    hzp_learner_begin_chain(l);
    hzp_micro_clear(l->micro);
    int r = hzp_micro_add_losses(l->micro, s->token, s->learn, NULL, s->how, s->count);
    hzp_sample_destroy(s);
    if (r < 0 || !l->micro->learned)
        return false;
    hzp_micro_cut(l->micro, 0);
    hzp_learner_begin(l, &(struct hzp_work){.kind = HZP_WORK_EVAL});
    t->compare_device_ns = t->now.device_ns;
    t->stage = HZP_TRAINER_COMPARE;
    return true;
}

void hzp_trainer_end_compare(struct hzp_trainer *t, const struct hzp_step *step, uint64_t now_ns)
{
    struct hzp_micro *micro = t->learner->micro;
    uint64_t spent = t->now.device_ns - t->compare_device_ns;
    t->now.device_ns = t->compare_device_ns; /* it belongs to no update */
    t->stage = HZP_TRAINER_IDLE;
    HZP_LOCKED(&t->lock);
    struct hzp_ratio_stats *sum = &t->stats.served;
    if (sum->rows > TOKENS) {
        sum->rows /= 2;
        sum->k1 /= 2;
        sum->k3 /= 2;
    }
    hzp_loss_ratios(&micro->loss, micro->learned, sum);
    t->stats.compared += (uint64_t)micro->learned;
    t->compare.next_ns = now_ns + (SHARE - 1) * spent;
}
