/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/row_losses.c - what stands beside tokens in an example: weights, a loss, columns, soft
 * targets. */
#include "api/learn/examples_parts.h"
#include "base/words.h"
#include "text/chat/learned.h"

static const double sum_slack = 1e-3; /* a client may have rounded the probabilities */
enum { ADVANTAGE_MAX = 1000, LOGPROB_MIN = -10000, BOUND_MAX = 1000000 };

/* NULL: no example has it. */
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
        if (pair && !hzp_among("kind beta", name))
            return hzp_parse_bad(p, "loss", "of a pair has kind and beta, not %s", name);
    }
    int32_t k = 0;
    while (k < HZP_LOSS_ALL && (!kind || !kind_name[k] || strcmp(kind, kind_name[k])))
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
    HZP_TRY(read_number(p, loss, "low", 0, &ret->low));
    HZP_TRY(read_number(p, loss, "high", 0, &ret->high));
    HZP_TRY(read_number(p, loss, "beta", pair ? 1e-4 : 0, &ret->beta));
    HZP_TRY(read_number(p, loss, "kl", 0, &ret->kl));
    HZP_TRY(read_number(p, loss, "temperature", 0.01, &temperature));
    ret->inv_temperature = 1 / temperature;
    return HZP_OK;
}

/* [[token, p], ..] of token i; null instead of one token: all others together. */
static int read_soft(struct hzp_parse *p, const json_t *list, size_t i, struct hzp_soft *ret)
{
    size_t n = json_array_size(list);
    double sum = 0;
    *ret = (struct hzp_soft){.rest = 0};
    if (!n || n > HZP_SOFT_MAX + 1)
        return hzp_parse_bad(p, "targets", "entry %zu is not a list of 1 to %d pairs [token, p]", i,
                             HZP_SOFT_MAX);
    for (size_t k = 0; k < n; k++) {
        const json_t *pair = json_array_get(list, k), *id = json_array_get(pair, 0);
        double v = json_number_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || !json_is_number(json_array_get(pair, 1)))
            return hzp_parse_bad(p, "targets", "entry %zu: pair %zu is not [token, p]", i, k);
        bool known = json_is_integer(id) && json_integer_value(id) >= 0 &&
                     json_integer_value(id) < p->ex->vocab;
        if (!known && !json_is_null(id))
            return hzp_parse_bad(p, "targets", "entry %zu: pair %zu has no token id from 0 to %d",
                                 i, k, p->ex->vocab - 1);
        for (size_t j = 0; j < k; j++)
            if (json_equal(id, json_array_get(json_array_get(list, j), 0)))
                return hzp_parse_bad(p, "targets", "entry %zu: pair %zu names a token again", i, k);
        sum += v;
        if (!(v >= 0 && sum <= 1 + sum_slack))
            return hzp_parse_bad(p, "targets",
                                 "entry %zu: pair %zu: probabilities are from 0 to 1, and so is "
                                 "their sum",
                                 i, k);
        if (known && ret->count == HZP_SOFT_MAX)
            return hzp_parse_bad(p, "targets", "entry %zu has more than %d tokens", i,
                                 HZP_SOFT_MAX);
        *(known ? &ret->p[ret->count] : &ret->rest) = (float)v;
        if (known)
            ret->token[ret->count++] = (int32_t)json_integer_value(id);
    }
    return ret->count && sum > 0
               ? HZP_OK
               : hzp_parse_bad(p, "targets", "entry %zu has no token with a probability", i);
}

/* Soft targets of the tokens that have some; the others are learned as they are. */
static int read_targets(struct hzp_parse *p, const json_t *targets, size_t n)
{
    size_t softs = 0;
    if (!json_is_array(targets) || json_array_size(targets) != n)
        return hzp_parse_bad(p, "targets", "must be an array of %zu, one for each token", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *list = json_array_get(targets, i);
        if (json_is_null(list))
            continue;
        if (!i || !p->learn[i])
            return hzp_parse_bad(p, "targets", "entry %zu is of a token that is not learned", i);
        if (hzp_text_grow((void **)&p->soft, &p->soft_room, softs + 1, sizeof(*p->soft)) < 0)
            return hzp_parse_no_memory(p);
        HZP_TRY(read_soft(p, list, i, &p->soft[softs++]));
        p->how[i].kind = HZP_LOSS_SOFT;
    }
    return HZP_OK;
}

int hzp_parse_losses(struct hzp_parse *p, const json_t *object, size_t n, float **ret_weight)
{
    const json_t *loss = json_object_get(object, "loss");
    const json_t *targets = json_object_get(object, "targets");
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
    if (!loss && !targets)
        return HZP_OK;
    all = (struct hzp_row_loss){.kind = HZP_LOSS_XENT, .inv_temperature = 1};
    if (loss)
        HZP_TRY(read_kind(p, loss, false, &all));
    if (targets && all.kind != HZP_LOSS_XENT)
        return hzp_parse_bad(p, "targets", "are of the loss xent only");
    if (targets && all.kl != 0)
        return hzp_parse_bad(p, "targets", "cannot be given with loss.kl");
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
        return targets ? read_targets(p, targets, n) : HZP_OK;
    return read_column(p, object, "reference_logprobs", n, is_logprob, &p->how->reference, each);
}

int hzp_parse_pair_loss(struct hzp_parse *p, const json_t *loss, struct hzp_row_loss *ret)
{
    *ret = (struct hzp_row_loss){.kind = HZP_LOSS_DPO, .inv_temperature = 1, .beta = 0.1f};
    return loss ? read_kind(p, loss, true, ret) : HZP_OK;
}
