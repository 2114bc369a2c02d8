/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/row_losses.c - what stands beside tokens in an example: weights, a loss, columns. */
#include <math.h>
#include <string.h>

#include "api/learn/examples_parts.h"
#include "base/words.h"
#include "text/chat/learned.h"

enum { ADVANTAGE_MAX = 1000, LOGPROB_MIN = -10000, BOUND_MAX = 1000000 };

static const char *const kind_name[HZP_LOSS_ALL] = {
    [HZP_LOSS_XENT] = "xent",   [HZP_LOSS_IS] = "is",     [HZP_LOSS_PPO] = "ppo",
    [HZP_LOSS_CISPO] = "cispo", [HZP_LOSS_DPPO] = "dppo", [HZP_LOSS_DRO] = "dro",
    [HZP_LOSS_DPO] = "dpo",     [HZP_LOSS_IPO] = "ipo",   [HZP_LOSS_GSPO] = "gspo"};

static bool is_weight(double v)
{
    return v != 0 && hzp_weight_valid(v);
}

static bool is_advantage(double v)
{
    return fabs(v) <= ADVANTAGE_MAX;
}

static bool is_logprob(double v)
{
    return v <= 0 && v >= LOGPROB_MIN;
}

/* A number for all tokens, or an array with one for each, null where nothing is learned.  The first
 * token's goes to `into`, the next ones' `stride` bytes apart. */
static int read_column(struct hzp_parse *p, const json_t *object, const char *name, size_t n,
                       bool (*valid)(double v), float *into, size_t stride)
{
    const json_t *column = json_object_get(object, name);
    bool one = json_is_number(column);
    if (!column)
        return hzp_parse_bad(p, name, "is missing: this loss needs it");
    if (!one && (!json_is_array(column) || json_array_size(column) != n))
        return hzp_parse_bad(p, name, "must be a number, or an array of %zu, one for each token",
                             n);
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = one ? column : json_array_get(column, i);
        if (!p->learn[i] || !i)
            continue; /* as it was */
        if (!json_is_number(entry) || !valid(json_number_value(entry)))
            return hzp_parse_bad(p, name, "entry %zu is not a number in range", i);
        float value = (float)json_number_value(entry);
        memcpy((char *)into + i * stride, &value, sizeof(value));
    }
    return HZP_OK;
}

/* One number of {"loss"}; absent: as it was. */
static int read_number(struct hzp_parse *p, const json_t *loss, const char *name, double low,
                       float *ret)
{
    const json_t *value = json_object_get(loss, name);
    double v = json_number_value(value);
    char field[32];
    snprintf(field, sizeof(field), "loss.%s", name);
    if (value && (!json_is_number(value) || !(v >= low && v <= BOUND_MAX)))
        return hzp_parse_bad(p, field, "must be a number from %g to %d", low, BOUND_MAX);
    if (value)
        *ret = (float)v;
    return HZP_OK;
}

/* pair: the loss is one of a pair of answers. */
static int read_kind(struct hzp_parse *p, const json_t *loss, bool pair, struct hzp_row_loss *ret)
{
    const char *name, *kind = json_string_value(json_object_get(loss, "kind"));
    float temperature = 1;
    json_t *value;
    if (!json_is_object(loss))
        return hzp_parse_bad(p, "loss", "must be an object with a kind");
    json_object_foreach((json_t *)loss, name, value)
    {
        if (!hzp_among("kind low high beta kl temperature", name))
            return hzp_parse_bad(p, "loss", "has an unknown field \"%.40s\"", name);
    }
    int32_t k = 0;
    while (k < HZP_LOSS_ALL && (!kind || strcmp(kind, kind_name[k])))
        k++;
    bool of_pair = k == HZP_LOSS_DPO || k == HZP_LOSS_IPO;
    if (k == HZP_LOSS_ALL || of_pair != pair)
        return hzp_parse_bad(p, "loss.kind",
                             pair ? "of a pair must be dpo or ipo"
                                  : "must be xent, is, ppo, cispo, dppo, dro or gspo");
    bool gspo = k == HZP_LOSS_GSPO, more = k == HZP_LOSS_PPO || k == HZP_LOSS_CISPO;
    *ret = (struct hzp_row_loss){.kind = k,
                                 .low = gspo ? 3e-4f : 0.2f,
                                 .high = gspo   ? 4e-4f
                                         : more ? 0.28f
                                                : 0.2f,
                                 .beta = k == HZP_LOSS_DPPO ? 1e-3f : 0.1f};
    for (int i = 0; pair && i < HZP_COUNT(known); i++)
        if (strcmp(known[i], "kind") && strcmp(known[i], "beta") && json_object_get(loss, known[i]))
            return hzp_parse_bad(p, "loss", "of a pair has kind and beta, not %s", known[i]);
    HZP_TRY(read_number(p, loss, "low", 0, &ret->low));
    HZP_TRY(read_number(p, loss, "high", 0, &ret->high));
    HZP_TRY(read_number(p, loss, "beta", pair ? 1e-4 : 0, &ret->beta));
    HZP_TRY(read_number(p, loss, "kl", 0, &ret->kl));
    HZP_TRY(read_number(p, loss, "temperature", 0.01, &temperature));
    ret->inv_temperature = 1 / temperature;
    return HZP_OK;
}

int hzp_parse_losses(struct hzp_parse *p, const json_t *object, size_t n, float **ret_weight)
{
    const json_t *loss = json_object_get(object, "loss");
    const size_t each = sizeof(*p->how);
    struct hzp_row_loss all;
    *ret_weight = NULL;
    if (json_object_get(object, "weights")) {
        for (size_t i = 0; i < n; i++)
            p->weight[i] = 1;
        HZP_TRY(read_column(p, object, "weights", n, is_weight, p->weight, sizeof(*p->weight)));
        *ret_weight = p->weight;
    }
    static const char *const columns[] = {"logprobs", "advantages", "reference_logprobs"};
    for (int i = 0; !loss && i < HZP_COUNT(columns); i++)
        if (json_object_get(object, columns[i]))
            return hzp_parse_bad(p, columns[i], "is read with a loss only");
    if (!loss)
        return HZP_OK;
    HZP_TRY(read_kind(p, loss, false, &all));
    if (hzp_text_grow((void **)&p->how, &p->how_room, HZP_MAX(n, 1), each) < 0)
        return hzp_parse_no_memory(p);
    for (size_t i = 0; i < n; i++)
        p->how[i] = all;
    p->losses = true;
    if (all.kind != HZP_LOSS_XENT) {
        HZP_TRY(read_column(p, object, "logprobs", n, is_logprob, &p->how->old, each));
        HZP_TRY(read_column(p, object, "advantages", n, is_advantage, &p->how->advantage, each));
    }
    if (all.kl == 0)
        return HZP_OK;
    return read_column(p, object, "reference_logprobs", n, is_logprob, &p->how->reference, each);
}

int hzp_parse_pair_loss(struct hzp_parse *p, const json_t *loss, struct hzp_row_loss *ret)
{
    *ret = (struct hzp_row_loss){.kind = HZP_LOSS_DPO, .inv_temperature = 1, .beta = 0.1f};
    return loss ? read_kind(p, loss, true, ret) : HZP_OK;
}
