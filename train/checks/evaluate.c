/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checks/evaluate.h"

#include "base/thread.h"
#include "nanobatch/run/exec.h"
#include "train/learner/learner.h"

struct hzp_evaluator {
    struct hzp_model *model;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_exec *exec;
    struct hzp_plan plan;
    int32_t depth;
    double sum, weight;
    int64_t tokens;
};

int hzp_evaluator_create(struct hzp_model *model, int32_t rows_max, bool fp8,
                         struct hzp_evaluator **ret)
{
    struct hzp_evaluator *e = hzp_xcalloc(1, sizeof(*e));
    struct hzp_recipe recipe = {.micro_rows = rows_max, .moment_type = HZP_F32};
    struct hzp_train_space_config space = hzp_learner_space_config(&recipe, model->config, 0);
    int r;
    e->model = model;
    hzp_plan_init(&e->plan);
    space.forward_only = true;
    space.fp8 = fp8;
    HZP_TRY_GOTO(hzp_train_space_create(model, &space, &e->space));
    HZP_TRY_GOTO(hzp_micro_create(model->dev, rows_max, &e->micro));
    HZP_TRY_GOTO(hzp_exec_create(model->dev, &e->exec));
    *ret = e;
    return HZP_OK;
out:
    hzp_evaluator_destroy(e);
    return r;
}

void hzp_evaluator_destroy(struct hzp_evaluator *e)
{
    if (!e)
        return;
    hzp_exec_destroy(e->exec);
    hzp_micro_destroy(e->micro);
    hzp_train_space_destroy(e->space);
    hzp_plan_fini(&e->plan);
    free(e);
}

void hzp_evaluator_set_depth(struct hzp_evaluator *e, int32_t depth)
{
    e->depth = depth;
}

static void clear(struct hzp_evaluator *e)
{
    hzp_micro_clear(e->micro);
    if (e->depth)
        hzp_depth_path(e->depth, e->model->config->layers, &e->micro->path);
}

static int compute(struct hzp_evaluator *e, const struct hzp_version *v)
{
    struct hzp_exec_times times;
    if (e->micro->learned) {
        hzp_plan_clear(&e->plan);
        hzp_eval_build(&e->plan, e->model, v, e->micro, e->space);
        HZP_TRY(hzp_exec_run(e->exec, &e->plan, NULL, &times));
    }
    for (int32_t i = 0; i < e->micro->learned; i++)
        e->sum += (double)e->micro->loss.value[i];
    e->tokens += e->micro->learned;
    e->weight += e->micro->weight_sum;
    clear(e);
    return HZP_OK;
}

static int add(struct hzp_evaluator *e, const struct hzp_version *v, const struct hzp_sample *s)
{
    for (int32_t at = 0; at + 1 < s->count; at += e->micro->rows_max) {
        int32_t piece = HZP_MIN(s->count - at, e->micro->rows_max + 1);
        const float *weight = s->weight ? s->weight + at : NULL;
        while (hzp_micro_add_losses(e->micro, s->token + at, s->learn + at, weight, NULL, piece) ==
               HZP_EBUSY)
            HZP_TRY(compute(e, v));
    }
    return HZP_OK;
}

int hzp_evaluator_refer(struct hzp_evaluator *e, const struct hzp_version *v,
                        struct hzp_sample *pair)
{
    hzp_assert_engine_thread();
    clear(e);
    HZP_TRY(hzp_micro_add_losses(e->micro, pair->token, pair->learn, NULL, pair->how, pair->count));
    HZP_TRY(compute(e, v));
    for (int32_t i = 0, at = 0; i < pair->count; i++)
        if (pair->learn[i])
            pair->how[i].reference = e->micro->loss.lp[at++];
    return HZP_OK;
}

int hzp_evaluator_run(struct hzp_evaluator *e, const struct hzp_version *v,
                      struct hzp_sample *const *sample, int32_t count, double *ret_loss,
                      int64_t *ret_tokens)
{
    hzp_assert_engine_thread();
    e->sum = e->weight = 0;
    e->tokens = 0;
    clear(e);
    for (int32_t i = 0; i < count; i++)
        HZP_TRY(add(e, v, sample[i]));
    HZP_TRY(compute(e, v));
    *ret_loss = e->weight > 0 ? e->sum / e->weight : NAN;
    *ret_tokens = e->tokens;
    return HZP_OK;
}
