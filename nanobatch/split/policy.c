/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split/policy.h"

#include "base/decimal.h"

static const double ns_max = 3600e9;

const struct hzp_policy hzp_policy_default = {
    .itl_stretch = 1.2, .train_share = 0.5, .train_max = 1, .train_min = 0.02};

int hzp_policy_check(const struct hzp_policy *policy, struct hzp_err_text *reterr)
{
    if (policy->itl_stretch != 0 && !(policy->itl_stretch >= 1 && policy->itl_stretch <= 100))
        return hzp_fail_param(reterr, HZP_EINVAL, "itl_stretch",
                              "itl_stretch %g is neither 0 nor between 1 and 100",
                              policy->itl_stretch);
    if (!(policy->train_share >= 0 && policy->train_share <= 100))
        return hzp_fail_param(reterr, HZP_EINVAL, "train_share",
                              "train_share %g is not between 0 and 100", policy->train_share);
    if (!(policy->train_max >= 0 && policy->train_max <= 1))
        return hzp_fail_param(reterr, HZP_EINVAL, "train_max",
                              "train_max %g is not between 0 and 1", policy->train_max);
    if (!(policy->train_min >= 0 && policy->train_min <= 1))
        return hzp_fail_param(reterr, HZP_EINVAL, "train_min",
                              "train_min %g is not between 0 and 1", policy->train_min);
    return HZP_OK;
}

/* `500ms` at *at, which moves behind it. */
static int parse_time(const char **at, const char *whole, const char *param, uint64_t *ret,
                      struct hzp_err_text *reterr)
{
    static const struct {
        const char *name;
        double ns;
    } unit[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    double value;
    const char *end = hzp_decimal(*at, &value);
    if (!end)
        return hzp_fail_param(reterr, HZP_EINVAL, param,
                              "%s %.80s: a time such as 50ms is wanted "
                              "at \"%.20s\"",
                              param, whole, *at);
    for (int i = 0; i < HZP_COUNT(unit); i++) {
        size_t n = strlen(unit[i].name);
        if (strncmp(end, unit[i].name, n) || (end[n] && end[n] != ','))
            continue;
        value *= unit[i].ns;
        if (value < 1e3 || value > ns_max)
            return hzp_fail_param(reterr, HZP_EINVAL, param,
                                  "%s %.80s: a goal is between 1us and "
                                  "3600s",
                                  param, whole);
        *ret = (uint64_t)value;
        *at = end + n;
        return HZP_OK;
    }
    return hzp_fail_param(reterr, HZP_EINVAL, param, "%s %.80s: the unit of a time is us, ms or s",
                          param, whole);
}

int hzp_policy_parse_goals(const char *text, const char *param, struct hzp_policy *ret,
                           struct hzp_err_text *reterr)
{
    static const char *const name[] = {"ttft=", "itl="};
    uint64_t ns[2] = {0, 0};
    const char *at = strcmp(text, "none") ? text : "";
    while (*at) {
        int which = !strncmp(at, name[0], 5) ? 0 : !strncmp(at, name[1], 4) ? 1 : -1;
        if (which < 0)
            return hzp_fail_param(reterr, HZP_EINVAL, param,
                                  "%s %.80s: goals are ttft=TIME and "
                                  "itl=TIME, with a comma between",
                                  param, text);
        if (ns[which])
            return hzp_fail_param(reterr, HZP_EINVAL, param, "%s %.80s: %s is given twice", param,
                                  text, name[which]);
        at += strlen(name[which]);
        HZP_TRY(parse_time(&at, text, param, &ns[which], reterr));
        if (*at == ',' && !*++at)
            return hzp_fail_param(reterr, HZP_EINVAL, param, "%s %.80s: nothing follows the comma",
                                  param, text);
    }
    ret->ttft_ns = ns[0];
    ret->itl_ns = ns[1];
    return HZP_OK;
}
