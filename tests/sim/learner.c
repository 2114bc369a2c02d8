/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/learner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHAINS = 3 }; /* of an update */

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "learner: %s: %s\n", #call, hzp_err_name(must_));                      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

void learner_open(struct learner *l, struct fixture_model *m)
{
    struct hzp_train_space_config space = {
        .rows_max = LEARNER_ROWS, .head_rows = 5, .moment_type = HZP_F32, .quantum_flops = 20000};
    memset(l, 0, sizeof(*l));
    l->m = m;
    l->lr = 0.01f;
    MUST(hzp_train_space_create(m->model, &space, &l->space));
    MUST(hzp_micro_create(m->dev, LEARNER_ROWS, &l->micro));
    hzp_plan_init(&l->chain);
    l->data = hzp_xcalloc(1, hzp_work_room(LEARNER_ROWS));
}

void learner_close(struct learner *l)
{
    if (!l->space)
        return;
    hzp_plan_fini(&l->chain);
    hzp_micro_destroy(l->micro);
    hzp_train_space_destroy(l->space);
    free(l->data);
}

int32_t learner_room(void)
{
    return (int32_t)hzp_work_room(LEARNER_ROWS);
}

/* Documents that follow from the number of the chain. */
static void fill(struct learner *l)
{
    hzp_micro_clear(l->micro);
    for (int32_t d = 0; d < 3; d++) {
        int32_t token[8], count = 4 + (int32_t)(l->number + (uint64_t)d) % 4;
        uint8_t learn[8];
        float weight[8];
        for (int32_t i = 0; i < count; i++) {
            token[i] = (i * 7 + d * 5 + (int32_t)(l->number % 5)) % l->m->layout.config.vocab;
            learn[i] = i > d % 2;
            weight[i] = l->number % 2 ? 1 : 0.5f;
        }
        MUST(hzp_micro_add_losses(l->micro, token, learn, weight, NULL, count));
    }
    hzp_micro_halve(l->micro); /* its sums go beside the products of the other half */
}

static enum hzp_collective_part part_of(const struct hzp_item *item)
{
    const struct hzp_collective_args *a = item->args;
    return item->op == HZP_OP_collective ? (enum hzp_collective_part)a->part : HZP_COLLECTIVE_WHOLE;
}

/* A product stands between the begin of each sum and its end, of an input's gradient that of the
 * weight's gradient; but for the last half's last sum of the forward pass. */
static void check_overlap(const struct hzp_plan *chain)
{
    int32_t begun = 0, idle = 0;
    for (int32_t i = 0; i < chain->items; i++) {
        const struct hzp_collective_args *a = chain->item[i].args;
        bool product = false, backward = false, forward = false;
        if (part_of(&chain->item[i]) != HZP_COLLECTIVE_BEGIN)
            continue;
        for (int32_t k = i + 1; k < chain->items; k++) {
            const struct hzp_collective_args *b = chain->item[k].args;
            const struct hzp_matmul_args *m = chain->item[k].args;
            if (part_of(&chain->item[k]) == HZP_COLLECTIVE_END && b->recv.ptr == a->recv.ptr)
                break;
            product |= chain->item[k].op == HZP_OP_matmul;
            backward |= chain->item[k].op == HZP_OP_matmul && m->trans_a;
            forward |= chain->item[k].op == HZP_OP_matmul && m->trans_b;
        }
        HZP_ASSERT(!product || backward != forward);
        begun++;
        idle += !product;
    }
    HZP_ASSERT(begun > 4 && idle == 1);
}

/* Makes the chain of l->work. */
static void build(struct learner *l)
{
    if (l->work.kind == HZP_WORK_UPDATE)
        l->draft = fixture_begin(l->m);
    hzp_plan_clear(&l->chain);
    hzp_work_build(&l->chain, &l->work, l->m->model, hzp_weights_current(l->m->weights), l->draft,
                   l->micro, l->space);
    if (l->m->model->tensor && l->work.kind == HZP_WORK_MICRO && l->micro->rows > 1)
        check_overlap(&l->chain);
    l->done = 0;
}

static bool has_slot(const struct learner *l)
{
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(l->m->weights, &stats);
    return stats.slots_free > 0;
}

static bool begin(struct learner *l)
{
    bool update = (l->number + 1) % CHAINS == 0;
    if (l->draft || (update && !has_slot(l)))
        return false;
    l->number++;
    l->work = (struct hzp_work){.kind = update ? HZP_WORK_UPDATE : HZP_WORK_MICRO,
                                .first = l->number % CHAINS == 1,
                                .halved = !update};
    if (update)
        l->work.hyper = (struct hzp_update_hyper){.lr = l->lr,
                                                  .beta1 = 0.9f,
                                                  .beta2 = 0.99f,
                                                  .eps = 1e-8f,
                                                  .decay = 0.01f,
                                                  .clip = 1,
                                                  .grad_scale = (float)(1 / l->weight),
                                                  .t = (int32_t)(l->number / CHAINS)};
    else
        fill(l);
    l->bytes = hzp_work_write(&l->work, l->micro, l->data);
    build(l);
    return true;
}

bool learner_offer(struct learner *l, int32_t items, struct hzp_slice *ret)
{
    bool first = l->done == l->chain.items;
    if (first && !begin(l))
        return false;
    *ret = (struct hzp_slice){.chain = &l->chain,
                              .from = l->done,
                              .to = HZP_MIN(l->done + items, l->chain.items),
                              .number = l->number,
                              .work = first ? l->data : NULL,
                              .work_bytes = first ? l->bytes : 0};
    return true;
}

int learner_chain(struct learner *l, const struct hzp_step_record *record,
                  const struct hzp_plan **ret, struct hzp_err_text *reterr)
{
    const struct hzp_step_training *t = &record->training;
    if (t->work_bytes) {
        const struct hzp_model_config *c = &l->m->layout.config;
        const struct hzp_work_limits limits = {c->vocab, LEARNER_ROWS, c->layers};
        HZP_TRY(hzp_work_read(t->work, t->work_bytes, &limits, &l->work, l->micro, reterr));
        l->number++;
        l->work.hyper.lr *= l->lr / 0.01f;
        if (l->cuts_short && l->work.kind == HZP_WORK_MICRO && l->number > CHAINS)
            l->micro->learned = 1;
        build(l);
    }
    if (t->chain != l->number || t->from != l->done)
        return hzp_fail(reterr, HZP_EINVAL, "is at another place of the chain");
    *ret = &l->chain;
    return HZP_OK;
}

void learner_ran(struct learner *l, int32_t to)
{
    l->done = to;
    if (to < l->chain.items)
        return;
    if (l->work.kind == HZP_WORK_MICRO) {
        for (int32_t i = 0; i < l->micro->learned; i++)
            l->loss += (double)l->micro->loss.value[i];
        l->weight += l->micro->weight_sum;
        return;
    }
    const struct hzp_update_result *result = hzp_update_result(l->space);
    if (l->updates < LEARNER_UPDATES) {
        l->told[l->updates] = l->loss / l->weight;
        l->sum[l->updates] = result->checksum;
    }
    l->updates++;
    l->loss = l->weight = 0;
    l->whole = result->nonfinite == 0;
}

bool learner_publish(struct learner *l, uint64_t last_step)
{
    if (!l->whole)
        return false;
    fixture_publish(l->m, l->draft, last_step);
    l->draft = NULL;
    l->whole = false;
    return true;
}
