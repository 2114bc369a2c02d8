/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/retention.h"

#include "base/decimal.h"

static const int64_t most = 1000000000;

static int bad_part(const char *part, int bytes, struct hzp_err_text *reterr)
{
    return hzp_wrong(
        reterr, "--keep",
        ": \"%.*s\" is none of last=N, hourly=N, every=N, bytes=SIZE, best and tagged, with N "
        "from 1 to %lld",
        bytes, part, (long long)most);
}

static int read_part(const char *part, int bytes, struct hzp_retention *ret,
                     struct hzp_err_text *reterr)
{
    const struct {
        const char *name;
        int64_t *value;
    } known[] = {{"last=", &ret->last}, {"hourly=", &ret->hourly}, {"every=", &ret->every}};
    if (bytes == 6 && !strncmp(part, "tagged", 6))
        return HZP_OK;
    if (bytes == 4 && !strncmp(part, "best", 4)) {
        ret->best = true;
        return HZP_OK;
    }
    if (bytes > 6 && bytes < 40 && !strncmp(part, "bytes=", 6)) {
        char size[40];
        snprintf(size, sizeof(size), "%.*s", bytes - 6, part + 6);
        ret->bytes = hzp_size_parse(size);
        return ret->bytes > 0 ? HZP_OK : bad_part(part, bytes, reterr);
    }
    for (int i = 0; i < HZP_COUNT(known); i++) {
        size_t n = strlen(known[i].name);
        if (strncmp(part, known[i].name, n) || part[n] < '0' || part[n] > '9')
            continue;
        char *end;
        errno = 0;
        long long value = strtoll(part + n, &end, 10);
        if (end != part + bytes || errno || value < 1 || value > most)
            break;
        *known[i].value = value;
        return HZP_OK;
    }
    return bad_part(part, bytes, reterr);
}

int hzp_retention_parse(const char *text, struct hzp_retention *ret, struct hzp_err_text *reterr)
{
    struct hzp_retention policy = {.last = 1};
    const char *part = text;
    for (;;) {
        size_t n = strcspn(part, ",");
        HZP_TRY(read_part(part, (int)HZP_MIN(n, (size_t)64), &policy, reterr));
        if (!part[n])
            break;
        part += n + 1;
    }
    *ret = policy;
    return HZP_OK;
}

void hzp_retention_decide(const struct hzp_retention *policy, int64_t now, struct hzp_kept_one *one,
                          int64_t count)
{
    int64_t hour = INT64_MAX;
    for (int64_t i = 0; i < count; i++) {
        bool newest_of_hour = one[i].hour < hour;
        hour = HZP_MIN(hour, one[i].hour);
        one[i].keep = one[i].tagged || i < HZP_MAX(policy->last, 1) ||
                      (newest_of_hour && one[i].hour > now - policy->hourly);
    }
    uint64_t every = (uint64_t)policy->every;
    for (int64_t i = 0; i < count && every; i++) {
        bool oldest =
            i + 1 == count || (one[i + 1].number - 1) / every < (one[i].number - 1) / every;
        one[i].keep = one[i].keep || oldest;
    }
    int64_t sum = 0;
    for (int64_t i = 0; i < count && policy->bytes; i++) {
        bool always = one[i].tagged || i < HZP_MAX(policy->last, 1);
        sum += one[i].keep ? one[i].bytes : 0;
        one[i].keep = one[i].keep && (always || sum <= policy->bytes);
    }
}
