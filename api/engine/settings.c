/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/settings.h"

enum { ROWS = 256 };

int hzp_settings_device(const struct hzp_device_settings *settings, int ordinal,
                        struct hzp_device **ret, struct hzp_err_text *reterr)
{
    struct hzp_device_config config = {.name = settings->name,
                                       .ordinal = ordinal,
                                       .threads = (int)settings->threads,
                                       .level = settings->cpu_level,
                                       .same_rows = settings->same_arithmetic != 0};
    HZP_TRY(hzp_device_open(&config, ret, reterr));
    if (!config.same_rows || hzp_device_same_rows(*ret))
        return HZP_OK;
    hzp_fail_param(reterr, HZP_EUNSUP, "--same-arithmetic",
                   "--same-arithmetic: %s chooses kernels by the number of rows; only CPUs have it",
                   hzp_device_backend(*ret));
    hzp_device_close(*ret);
    *ret = NULL;
    return HZP_EUNSUP;
}

enum hzp_dtype hzp_settings_dtype(const struct hzp_model_settings *settings,
                                  const struct hzp_model_config *config)
{
    if (settings->dtype == HZP_DTYPE_ON_DISK)
        return config->disk_type;
    return settings->dtype == HZP_DTYPE_BF16 ? HZP_BF16 : HZP_F32;
}

int32_t hzp_settings_rows(const struct hzp_serving_settings *settings)
{
    int64_t rows = settings->step_rows ? settings->step_rows
                                       : HZP_MAX((int64_t)ROWS, 2 * settings->running_max);
    return (int32_t)HZP_MAX(rows, settings->running_max);
}

enum hzp_dtype hzp_settings_moments(const struct hzp_training_settings *settings)
{
    static const enum hzp_dtype type[] = {HZP_F32, HZP_BF16, HZP_Q8};
    return type[settings->moment_type];
}

uint64_t hzp_settings_quantum(const struct hzp_training_settings *settings)
{
    return (uint64_t)(settings->quantum_gflop * 1e9);
}

struct hzp_recipe hzp_settings_recipe(const struct hzp_training_settings *settings,
                                      const struct hzp_model_config *config)
{
    return (struct hzp_recipe){
        .lr = (float)settings->lr,
        .beta1 = (float)settings->beta1,
        .beta2 = (float)settings->beta2,
        .eps = (float)settings->eps,
        .decay = (float)settings->decay,
        .clip = (float)settings->clip,
        .optimizer = (enum hzp_optimizer)settings->optimizer,
        .momentum = (float)settings->momentum,
        .schedule = settings->schedule ? HZP_LR_COSINE : HZP_LR_CONSTANT,
        .warmup_steps = (int32_t)HZP_MIN(settings->warmup_steps, INT32_MAX),
        .total_steps = settings->total_steps,
        .lr_floor = (float)settings->lr_floor,
        .update_tokens = (int32_t)settings->update_tokens,
        .micro_rows = (int32_t)HZP_MIN(settings->micro_rows, config->positions),
        .recompute = (enum hzp_recompute)HZP_MAX(settings->recompute - 1, 0),
        .publish_every = (int32_t)settings->publish_every,
        .moment_type = hzp_settings_moments(settings),
        .divide = (enum hzp_divide)settings->divide,
        .divide_by = (float)settings->divide_by,
        .skip = (float)settings->skip,
        .swap = (int32_t)settings->swap,
        .seed = (uint64_t)settings->seed,
    };
}

int hzp_settings_policy(const struct hzp_split_settings *settings, struct hzp_policy *ret,
                        struct hzp_err_text *reterr)
{
    *ret = (struct hzp_policy){.itl_stretch = settings->itl_stretch,
                               .train_share = settings->train_share,
                               .train_max = settings->train_max,
                               .train_min = settings->train_min};
    if (settings->goals)
        HZP_TRY(hzp_policy_parse_goals(settings->goals, "--slo", ret, reterr));
    return hzp_policy_check(ret, reterr);
}

bool hzp_settings_bounds_effect(const struct hzp_engine_settings *s)
{
    return s->learning.effect > 0 && s->learning.max_effect < 1;
}

bool hzp_settings_by_lesson(const struct hzp_engine_settings *s)
{
    bool judged = s->learning.gate || s->canary.share > 0 || hzp_settings_bounds_effect(s);
    bool automatic = judged && s->training.publish_every == 1;
    return s->training.publish == HZP_PUBLISH_LESSON ||
           (s->training.publish == HZP_PUBLISH_AUTO && automatic);
}
