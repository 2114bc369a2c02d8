/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/bench/load_stats.h"

#include "base/decimal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hzp_load_record_free(struct hzp_load_record *record)
{
    free(record->answer);
    free(record->itl);
    memset(record, 0, sizeof(*record));
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

double hzp_load_quantile(const float *sorted, int64_t n, double p)
{
    double at = p * (double)(n - 1);
    int64_t i = (int64_t)at;
    if (i >= n - 1)
        return sorted[n - 1];
    return sorted[i] + (at - (double)i) * ((double)sorted[i + 1] - sorted[i]);
}

/* Returns the array with room for at least `want` elements, or NULL: no memory (the old array stays
 * valid). */
static void *room_for(void *array, int64_t *room, int64_t want, size_t size)
{
    if (want <= *room)
        return array;
    int64_t n = HZP_MAX(want, *room * 2);
    void *now = realloc(array, (size_t)n * size);
    if (now)
        *room = n;
    return now;
}

static bool meets(const struct hzp_load_goals *g, const struct hzp_load_answer *a)
{
    double tpot = a->output > 1 ? (a->e2el_s - a->ttft_s) / (a->output - 1) : 0;
    return (g->ttft <= 0 || a->ttft_s <= g->ttft) && (g->tpot <= 0 || tpot <= g->tpot) &&
           (g->itl <= 0 || a->itl_p99_s <= g->itl) && (g->e2el <= 0 || a->e2el_s <= g->e2el);
}

int hzp_load_record_answer(struct hzp_load_record *record, const struct hzp_load_answer *answer,
                           float *itl, int64_t itls, struct hzp_err_text *reterr)
{
    struct hzp_load_answer *answers =
        room_for(record->answer, &record->answers_room, record->answers + 1, sizeof(*answers));
    if (!answers)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for the record of an answer");
    record->answer = answers;
    struct hzp_load_answer *a = &answers[record->answers];
    *a = *answer;
    if (itls > 0) {
        int64_t fit = HZP_MIN(itls, HZP_LOAD_ITLS_MAX - record->itls);
        float *all = room_for(record->itl, &record->itls_room, record->itls + fit, sizeof(*all));
        if (!all)
            return hzp_fail(reterr, HZP_ENOMEM, "no memory for the record of an answer");
        qsort(itl, (size_t)itls, sizeof(*itl), ascending);
        a->itl_p99_s = hzp_load_quantile(itl, itls, 0.99);
        memcpy(all + record->itls, itl, (size_t)fit * sizeof(*itl));
        record->itl = all;
        record->itls += fit;
    }
    a->good = meets(&record->goals, a);
    record->answers++;
    return HZP_OK;
}

struct hzp_load_spread hzp_load_spread_of(float *value, int64_t n)
{
    struct hzp_load_spread s = {.n = n};
    double sum = 0, squares = 0;
    if (n == 0)
        return s;
    for (int64_t i = 0; i < n; i++)
        sum += value[i];
    s.mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += (value[i] - s.mean) * (value[i] - s.mean);
    s.std = sqrt(squares / (double)n);
    qsort(value, (size_t)n, sizeof(*value), ascending);
    s.median = hzp_load_quantile(value, n, 0.5);
    s.p90 = hzp_load_quantile(value, n, 0.9);
    s.p99 = hzp_load_quantile(value, n, 0.99);
    s.max = value[n - 1];
    return s;
}

int hzp_load_summarise(struct hzp_load_record *record, struct hzp_load_summary *ret,
                       struct hzp_err_text *reterr)
{
    int64_t n = record->answers, k = 0;
    float *value = malloc((size_t)HZP_MAX(n, (int64_t)1) * sizeof(*value));
    if (!value)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for the summary of %lld answers",
                        (long long)n);
    memset(ret, 0, sizeof(*ret));
    ret->completed = n;
    ret->failed = record->failed;
    ret->duration_s = record->duration_s;
    for (int64_t i = 0; i < n; i++) {
        const struct hzp_load_answer *a = &record->answer[i];
        ret->good += a->good;
        ret->input_tokens += a->input;
        ret->output_tokens += a->output;
        value[i] = (float)a->ttft_s;
    }
    ret->ttft = hzp_load_spread_of(value, n);
    for (int64_t i = 0; i < n; i++)
        value[i] = (float)record->answer[i].e2el_s;
    ret->e2el = hzp_load_spread_of(value, n);
    for (int64_t i = 0; i < n; i++) {
        const struct hzp_load_answer *a = &record->answer[i];
        if (a->output > 1)
            value[k++] = (float)((a->e2el_s - a->ttft_s) / (a->output - 1));
    }
    ret->tpot = hzp_load_spread_of(value, k);
    free(value);
    ret->itl = hzp_load_spread_of(record->itl, record->itls);
    if (ret->duration_s > 0) {
        ret->request_rate = (double)n / ret->duration_s;
        ret->good_rate = (double)ret->good / ret->duration_s;
        ret->output_rate = (double)ret->output_tokens / ret->duration_s;
        ret->total_rate = (double)(ret->input_tokens + ret->output_tokens) / ret->duration_s;
    }
    return HZP_OK;
}

static int one_goal(const char *text, size_t n, struct hzp_load_goals *goals,
                    struct hzp_err_text *reterr)
{
    static const char *const names[] = {"ttft", "tpot", "itl", "e2el"};
    double *const field[] = {&goals->ttft, &goals->tpot, &goals->itl, &goals->e2el};
    char item[64], *equals;
    snprintf(item, sizeof(item), "%.*s", (int)HZP_MIN(n, sizeof(item) - 1), text);
    equals = strchr(item, '=');
    if (!equals)
        equals = strchr(item, ':'); /* name:value, as in vllm bench serve */
    for (int i = 0; equals && i < HZP_COUNT(names); i++) {
        if ((size_t)(equals - item) != strlen(names[i]) || memcmp(item, names[i], strlen(names[i])))
            continue;
        double value;
        const char *end = hzp_decimal(equals + 1, &value);
        double unit = !end ? 0 : !*end || !strcmp(end, "ms") ? 1e-3 : !strcmp(end, "s") ? 1 : 0;
        if (unit <= 0 || !(value > 0 && value < 1e9))
            break;
        *field[i] = value * unit;
        return HZP_OK;
    }
    return hzp_fail_param(reterr, HZP_EINVAL, "--slo",
                          "--slo takes a list like ttft=500ms,itl=50ms of ttft, tpot, itl and "
                          "e2el, not \"%s\"",
                          item);
}

int hzp_load_goals_parse(const char *text, struct hzp_load_goals *ret, struct hzp_err_text *reterr)
{
    memset(ret, 0, sizeof(*ret));
    for (;;) {
        size_t n = strcspn(text, ",");
        HZP_TRY(one_goal(text, n, ret, reterr));
        if (!text[n])
            return HZP_OK;
        text += n + 1;
    }
}
