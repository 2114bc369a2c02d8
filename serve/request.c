/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/request.h"

#include "base/err.h"
#include "serve/edits.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* calloc of n * m things; n and m are not negative.  Nothing asked for is not a failure. */
static bool take(void *ret, int32_t n, int32_t m, size_t size)
{
    void *ptr = NULL;
    if (n && m) {
        ptr = calloc((size_t)n * (size_t)m, size);
        if (!ptr)
            return false;
    }
    memcpy(ret, &ptr, sizeof(ptr));
    return true;
}

int hzp_request_create(const int32_t *prompt, int32_t prompt_count, int32_t max_tokens,
                       int32_t tops, bool prompt_logprobs, struct hzp_request **ret)
{
    HZP_ASSERT(prompt_count >= 0 && max_tokens >= 0 && tops >= 0 && tops <= HZP_TOPS_MAX);
    struct hzp_request *rq = calloc(1, sizeof(*rq));
    if (!rq)
        return HZP_ENOMEM;
    rq->prompt_count = prompt_count;
    rq->max_tokens = max_tokens;
    rq->tops = tops;
    rq->prompt_logprobs = prompt_logprobs;
    rq->sampling = (struct hzp_sampling){.temperature = 1, .top_p = 1, .repetition = 1};
    rq->stop_token = -1;
    atomic_store(&rq->let_go, true);
    int32_t told = prompt_logprobs ? prompt_count : 0;
    if (!take(&rq->prompt, prompt_count, 1, sizeof(*rq->prompt)) ||
        !take(&rq->out, max_tokens, 1, sizeof(*rq->out)) ||
        !take(&rq->top_token, max_tokens, tops, sizeof(*rq->top_token)) ||
        !take(&rq->top_logprob, max_tokens, tops, sizeof(*rq->top_logprob)) ||
        !take(&rq->prompt_out, told, 1, sizeof(*rq->prompt_out)) ||
        !take(&rq->prompt_top_token, told, tops, sizeof(*rq->prompt_top_token)) ||
        !take(&rq->prompt_top_logprob, told, tops, sizeof(*rq->prompt_top_logprob))) {
        hzp_request_destroy(rq);
        return HZP_ENOMEM;
    }
    if (prompt_count)
        memcpy(rq->prompt, prompt, (size_t)prompt_count * sizeof(*prompt));
    *ret = rq;
    return HZP_OK;
}

void hzp_request_destroy(struct hzp_request *rq)
{
    if (!rq)
        return;
    /* The engine may stand between publishing the final state and returning from wake(). */
    while (!atomic_load(&rq->let_go))
        sched_yield();
    hzp_edits_destroy(rq->edits);
    free(rq->prompt);
    free(rq->out);
    free(rq->top_token);
    free(rq->top_logprob);
    free(rq->prompt_out);
    free(rq->prompt_top_token);
    free(rq->prompt_top_logprob);
    free(rq);
}

bool hzp_request_final(const struct hzp_request *rq)
{
    return atomic_load(&rq->state) >= HZP_REQUEST_STOPPED;
}
