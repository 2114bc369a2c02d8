/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/request.h"

#include <sched.h>

/* Callocs n * m elements into *ret; n and m are not negative.  A size of 0 is not a failure. */
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
    rq->demands.max_staleness = -1;
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

int hzp_request_pool(struct hzp_request *rq, enum hzp_pooling pooling, int32_t cols)
{
    HZP_ASSERT(!rq->max_tokens && !rq->prompt_logprobs && !rq->hidden && cols > 0);
    rq->pooling = pooling;
    rq->hidden_cols = cols;
    return take(&rq->hidden, cols, 1, sizeof(*rq->hidden)) ? HZP_OK : HZP_ENOMEM;
}

void hzp_request_await_release(const struct hzp_request *rq)
{
    while (!atomic_load(&rq->let_go))
        sched_yield();
}

void hzp_request_destroy(struct hzp_request *rq)
{
    if (!rq)
        return;
    /* The final state can be visible before the engine has called wake(). */
    hzp_request_await_release(rq);
    hzp_edits_destroy(rq->edits);
    free(rq->prompt);
    free(rq->out);
    free(rq->top_token);
    free(rq->top_logprob);
    free(rq->prompt_out);
    free(rq->hidden);
    free(rq->prompt_top_token);
    free(rq->prompt_top_logprob);
    free(rq);
}

static int check_length(const struct hzp_request *rq, const struct hzp_request_limits *limits,
                        struct hzp_err_text *reterr)
{
    if (rq->prompt_count < 1)
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt", "the prompt has no tokens");
    if ((int64_t)rq->prompt_count + rq->max_tokens > limits->positions)
        return hzp_fail_param(reterr, HZP_EINVAL, "max_tokens",
                              "prompt of %d tokens and max_tokens %d exceed the context of %d",
                              rq->prompt_count, rq->max_tokens, limits->positions);
    /* The last token drawn is not fed back, so it needs no KV row. */
    int32_t pages =
        HZP_DIV_UP(rq->prompt_count + HZP_MAX(rq->max_tokens, 1) - 1, limits->page_rows);
    if (pages > limits->kv_pages)
        return hzp_fail_param(
            reterr, HZP_EINVAL, "max_tokens",
            "prompt of %d tokens and max_tokens %d need %d KV pages of %d tokens, "
            "this server has %d",
            rq->prompt_count, rq->max_tokens, pages, limits->page_rows, limits->kv_pages);
    if (rq->prompt_count > limits->prompt_max)
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt",
                              "prompt of %d tokens is longer than the whole queue may hold (%lld)",
                              rq->prompt_count, (long long)limits->prompt_max);
    return HZP_OK;
}

static int check_tokens(const char *param, const int32_t *token, int32_t count, int32_t vocab,
                        struct hzp_err_text *reterr)
{
    for (int32_t i = 0; i < count; i++)
        if (token[i] < 0 || token[i] >= vocab)
            return hzp_fail_param(reterr, HZP_EINVAL, param,
                                  "token %d is not in the vocabulary of %d", token[i], vocab);
    return HZP_OK;
}

int hzp_request_check(const struct hzp_request *rq, const struct hzp_request_limits *limits,
                      struct hzp_err_text *reterr)
{
    int32_t vocab = limits->model->vocab;
    HZP_TRY(check_length(rq, limits, reterr));
    HZP_TRY(check_tokens("prompt", rq->prompt, rq->prompt_count, vocab, reterr));
    HZP_TRY(check_tokens("logit_bias", rq->bias_token, rq->biases, vocab, reterr));
    HZP_TRY(check_tokens("stop_token_ids", rq->stop_id, rq->stop_ids, vocab, reterr));
    if (rq->tokens && rq->tokens->allowed)
        HZP_TRY(check_tokens("allowed_token_ids", rq->tokens->allowed, rq->tokens->alloweds, vocab,
                             reterr));
    struct hzp_edit_rules rules = hzp_request_edits(rq, limits->model);
    int32_t edits = hzp_edits_needed(&rules);
    if (edits > limits->edits_max)
        return hzp_fail_param(reterr, HZP_EINVAL, "max_tokens",
                              "biases and penalties of this request could touch %d tokens, this "
                              "server keeps track of %d",
                              edits, limits->edits_max);
    return HZP_OK;
}

struct hzp_edit_rules hzp_request_edits(const struct hzp_request *rq,
                                        const struct hzp_model_config *model)
{
    const struct hzp_sampling *s = &rq->sampling;
    bool bans = rq->min_tokens > 0;
    return (struct hzp_edit_rules){
        .vocab = model->vocab,
        .bias_token = rq->bias_token,
        .bias = rq->bias,
        .biases = rq->biases,
        .end = {rq->stop_id, model->eos},
        .ends = {rq->stop_ids, model->eos_count},
        .tokens = rq->tokens,
        .bans = {bans ? rq->stop_ids : 0, bans && !rq->ignore_eos ? model->eos_count : 0},
        .penalties = s->repetition != 1 || s->presence != 0 || s->frequency != 0,
        .prompt = rq->prompt,
        .prompt_count = rq->prompt_count,
        .max_tokens = rq->max_tokens,
    };
}

bool hzp_request_final(const struct hzp_request *rq)
{
    return atomic_load(&rq->state) >= HZP_REQUEST_STOPPED;
}
