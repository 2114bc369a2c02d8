/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/metrics.h"

#include "api/http/routes/completion.h"
#include "api/http/routes/metrics_state.h"
#include "base/words.h"

const double hzp_ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                  1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const double hzp_itl_bounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                 .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const double hzp_e2e_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const double hzp_token_bounds[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                   500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const double hzp_n_bounds[] = {1, 2, 5, 10, 20};
const double hzp_http_bounds[] = {.1, .5, 1};

struct hzp_metrics *hzp_metrics_create(void)
{
    struct hzp_metrics *m = hzp_xcalloc(1, sizeof(*m));
    hzp_lock_init(&m->lock, HZP_LOCK_METRICS);
#define BOUNDS(table) .bound = (table), .bounds = HZP_COUNT(table)
    m->ttft = (struct hzp_histogram){BOUNDS(hzp_ttft_bounds)};
    m->itl = (struct hzp_histogram){BOUNDS(hzp_itl_bounds)};
    m->e2e = (struct hzp_histogram){BOUNDS(hzp_e2e_bounds)};
    m->queue = m->inference = m->prefill = m->decode = m->e2e;
    m->prompt_tokens = (struct hzp_histogram){BOUNDS(hzp_token_bounds)};
    m->generated = m->longest = m->max_tokens = m->prompt_tokens;
    m->per_token = m->itl;
    for (int i = 0; i < HZP_COUNT(m->time); i++)
        m->time[i].seconds = (struct hzp_histogram){BOUNDS(hzp_http_bounds)};
    m->n = (struct hzp_histogram){BOUNDS(hzp_n_bounds)};
#undef BOUNDS
    m->reason[0].name = "stop";
    m->reason[1].name = "length";
    m->reason[2].name = "abort";
    m->reason[3].name = "error";
    m->reason[4].name = "weights_changed";
    m->reason[5].name = "pin_expired";
    m->reason[6].name = "unmet";
    return m;
}

void hzp_metrics_destroy(struct hzp_metrics *m)
{
    if (!m)
        return;
    hzp_lock_fini(&m->lock);
    free(m);
}

static void observe(struct hzp_histogram *h, double value)
{
    int i = 0;
    while (i < h->bounds && value > h->bound[i])
        i++;
    h->seen[i]++;
    h->count++;
    h->sum += value;
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * 1e-9 : 0;
}

/* The times of a choice's tokens; of those that another process computed they are not known. */
static void count_tokens(struct hzp_metrics *m, const struct hzp_request *rq, int32_t generated,
                         bool aborted)
{
    uint64_t first = rq->out[0].at_ns, last = rq->out[generated - 1].at_ns;
    for (int32_t i = 1; i < generated; i++)
        if (rq->out[i - 1].at_ns)
            observe(&m->itl, seconds(rq->out[i - 1].at_ns, rq->out[i].at_ns));
    if (!first)
        return;
    observe(&m->ttft, seconds(rq->submitted_ns, first));
    if (aborted)
        return;
    observe(&m->e2e, seconds(rq->submitted_ns, last));
    observe(&m->inference, seconds(rq->admitted_ns, last));
    observe(&m->prefill, seconds(rq->admitted_ns, first));
    observe(&m->decode, seconds(first, last));
    if (generated > 1)
        observe(&m->per_token, seconds(first, last) / (generated - 1));
}

/* A choice has ended; under the lock. */
static void count_choice(struct hzp_metrics *m, const struct hzp_request *rq, int32_t generated,
                         const char *reason)
{
    bool aborted = hzp_among("abort error unmet", reason);
    for (int i = 0; i < HZP_COUNT(m->reason); i++)
        if (!strcmp(m->reason[i].name, reason))
            m->reason[i].count++;
    observe(&m->prompt_tokens, rq->prompt_count);
    observe(&m->generated, generated);
    if (!aborted && rq->admitted_ns)
        observe(&m->queue, seconds(rq->submitted_ns, rq->admitted_ns));
    if (generated)
        count_tokens(m, rq, generated, aborted);
}

void hzp_metrics_params(struct hzp_metrics *m, int32_t n, int32_t max_tokens)
{
    HZP_LOCKED(&m->lock);
    observe(&m->n, n);
    observe(&m->max_tokens, max_tokens);
}

void hzp_metrics_completed(struct hzp_metrics *m, const struct hzp_completion *c)
{
    int32_t longest = 0;
    HZP_LOCKED(&m->lock);
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_choice *choice = &c->choice[i];
        count_choice(m, choice->rq, choice->seen, hzp_choice_end(c, choice));
        longest = HZP_MAX(longest, choice->seen);
    }
    observe(&m->longest, longest);
}

/* Routes that monitors poll: vLLM leaves them out of the http_* metrics. */
static bool is_probe(const char *handler)
{
    return hzp_among("/health /metrics /version", handler);
}

static void count_time(struct hzp_metrics *m, const struct hzp_request_info *info)
{
    int i = 0;
    while (i < m->times &&
           (strcmp(m->time[i].handler, info->route) || strcmp(m->time[i].method, info->method)))
        i++;
    if (i == HZP_COUNT(m->time))
        return; /* more routes than there are: cannot be */
    m->times = HZP_MAX(m->times, i + 1);
    m->time[i].handler = info->route;
    m->time[i].method = info->method;
    observe(&m->time[i].seconds, seconds(info->begin_ns, hzp_now_ns()));
}

void hzp_metrics_http(struct hzp_metrics *m, const struct hzp_request_info *info, int status)
{
    HZP_LOCKED(&m->lock);
    int i = 0;
    while (i < m->https &&
           (m->http[i].status != status || strcmp(m->http[i].handler, info->route) ||
            strcmp(m->http[i].method, info->method)))
        i++;
    if (i == m->https && i < HZP_COUNT(m->http))
        m->http[m->https++] = (struct hzp_http_count){
            .handler = info->route, .method = info->method, .status = status};
    if (i < m->https)
        m->http[i].count++;
    if (status && !is_probe(info->route))
        count_time(m, info);
}

uint64_t hzp_metrics_http_class(const struct hzp_metrics *m, int i, int class)
{
    uint64_t count = 0;
    for (int k = 0; k < m->https; k++)
        if (m->http[k].status / 100 == class && !strcmp(m->http[k].handler, m->time[i].handler) &&
            !strcmp(m->http[k].method, m->time[i].method))
            count += m->http[k].count;
    return count;
}

void hzp_metrics_update(struct hzp_metrics *m, const struct hzp_update_report *report)
{
    HZP_LOCKED(&m->lock);
    m->update = *report;
    m->update_seconds += (double)report->wall_ns * 1e-9;
}
