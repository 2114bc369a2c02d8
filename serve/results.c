/* SPDX-License-Identifier: Apache-2.0 */
/* serve/results.c - takes over a step's results for one sequence. */
#include "serve/scheduler_state.h"

/* Rounding may lift a log-probability a little above 0. */
static const float LOGPROB_MAX = 0.1f;

/* Copies logits `at` of the step to entry `n` of the three output arrays. */
static void read_output(const struct hzp_results *results, const struct hzp_seq *seq, int32_t at,
                        int32_t n, struct hzp_output *out, int32_t *top_token, float *top_logprob)
{
    const struct hzp_batch *batch = results->batch;
    int32_t tops = seq->rq->tops;
    out[n] = (struct hzp_output){.token = batch->token[at],
                                 .logprob = batch->logprob[at],
                                 .rank = batch->rank[at],
                                 .version = results->version,
                                 .prompt_version = seq->prompt_version,
                                 .at_ns = results->at_ns};
    if (tops) {
        size_t from = (size_t)at * HZP_TOPS_MAX, to = (size_t)n * (size_t)tops;
        memcpy(top_token + to, batch->top_token + from, (size_t)tops * sizeof(*top_token));
        memcpy(top_logprob + to, batch->top_logprob + from, (size_t)tops * sizeof(*top_logprob));
    }
}

static float hidden_value(const struct hzp_mat *hidden, int32_t row, int32_t col)
{
    size_t at = (size_t)row * (size_t)hidden->stride + (size_t)col;
    if (hidden->type == HZP_F32)
        return ((const float *)hidden->ptr)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)hidden->ptr)[at] << 16; /* BF16 */
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static bool stops(const struct hzp_scheduler *s, const struct hzp_request *rq, int32_t token)
{
    const struct hzp_model_config *model = s->model->config;
    for (int32_t i = 0; i < model->eos_count && !rq->ignore_eos; i++)
        if (model->eos[i] == token)
            return true;
    for (int32_t i = 0; i < rq->stop_ids; i++)
        if (rq->stop_id[i] == token)
            return true;
    return false;
}

/* Adds the hidden states of the part's rows.  False: they are not finite. */
static bool pool(const struct hzp_results *results, struct hzp_request *rq,
                 const struct hzp_part *part)
{
    const struct hzp_batch *batch = results->batch;
    int32_t h = part->hidden0;
    bool finite = true;
    if (!part->pos0 || rq->pooling == HZP_POOLING_LAST) { /* also when it is computed again */
        memset(rq->hidden, 0, (size_t)rq->hidden_cols * sizeof(*rq->hidden));
        rq->pooled = 0;
    }
    for (int32_t p = part->pos0; p < part->pos0 + part->rows; p++) {
        if (!hzp_request_pools(rq, p))
            continue;
        for (int32_t c = 0; c < rq->hidden_cols; c++)
            rq->hidden[c] += hidden_value(&batch->hidden, h, c);
        rq->pooled++;
        h++;
    }
    if (part->pos0 + part->rows < rq->prompt_count || !rq->pooled)
        return true;
    for (int32_t c = 0; c < rq->hidden_cols; c++) {
        rq->hidden[c] /= (float)rq->pooled;
        finite &= isfinite(rq->hidden[c]) != 0;
    }
    return finite;
}

/* Takes over the draw of logits `at`, which is output n. */
static enum hzp_request_state take_draw(struct hzp_scheduler *s, const struct hzp_results *results,
                                        const struct hzp_seq *seq, int32_t at, int32_t n)
{
    struct hzp_request *rq = seq->rq;
    read_output(results, seq, at, n, rq->out, rq->top_token, rq->top_logprob);
    /* The log-probability of a token is at most 0, whatever was drawn, unless one of its logits is
     * not finite.  No such token is shown. */
    if (!(rq->out[n].logprob <= LOGPROB_MAX)) {
        rq->not_finite = true;
        return HZP_REQUEST_FAILED;
    }
    int32_t token = rq->out[n].token;
    if (rq->trial && !rq->own)
        hzp_trials_note(
            s->config.trials, rq->trial, rq->on_trial,
            &(struct hzp_trial_side){.tokens = 1, .logprob = (double)rq->out[n].logprob});
    s->now.generated_tokens++;
    bool ends = stops(s, rq, token) && n + 1 > rq->min_tokens;
    enum hzp_edits_after after = hzp_edits_generated(rq->edits, token, ends);
    enum hzp_request_state state = HZP_REQUEST_RUNNING;
    if (ends || after == HZP_AFTER_ENDED) {
        rq->stop_token = token;
        state = HZP_REQUEST_STOPPED;
    } else if (after == HZP_AFTER_WHOLE) {
        state = HZP_REQUEST_STOPPED;
    } else if (n + 1 == rq->max_tokens || after == HZP_AFTER_STUCK) {
        state = HZP_REQUEST_LENGTH;
    }
    if (state != HZP_REQUEST_RUNNING)
        atomic_store(&rq->whole, true);
    /* release: a thread that sees the new count also sees the output */
    atomic_store_explicit(&rq->out_count, n + 1, memory_order_release);
    return state;
}

/* The draws of the part from this logit on: that of its last row, or of its guesses as far as they
 * are right.  The rows of wrong ones will be computed again with other tokens. */
static enum hzp_request_state take_draws(struct hzp_scheduler *s, const struct hzp_results *results,
                                         struct hzp_seq *seq, const struct hzp_part *part,
                                         int32_t logit)
{
    struct hzp_request *rq = seq->rq;
    int32_t guesses = seq->guesses, right = 0, first = part->pos0 + part->rows - guesses;
    int32_t n = first - rq->prompt_count;
    struct hzp_prefix_tokens tokens;
    HZP_DEBUG_ASSERT(logit + 1 + guesses == part->logit0 + part->logits);
    enum hzp_request_state state = take_draw(s, results, seq, logit, n);
    while (state == HZP_REQUEST_RUNNING && right < guesses &&
           rq->out[n + right].token == seq->guess[right]) {
        s->now.accepted[right++]++;
        state = take_draw(s, results, seq, logit + right, n + right);
    }
    if (s->config.guess_by_depth && seq->lookup)
        hzp_rounds_verified(&s->rounds, seq->lookup, guesses, right);
    seq->fed -= guesses - right;
    seq->guesses = 0;
    rq->computed = HZP_MAX(rq->computed, first + right);
    if (state != HZP_REQUEST_RUNNING)
        return state;
    tokens = hzp_request_tokens(rq);
    if (seq->lookup && !s->config.guess_by_depth)
        hzp_lookup_follow(seq->lookup, &tokens);
    hzp_add_news(s, rq);
    return state;
}

enum hzp_request_state hzp_take_results(struct hzp_scheduler *s, const struct hzp_results *results,
                                        struct hzp_seq *seq, const struct hzp_part *part)
{
    hzp_assert_engine_thread();
    struct hzp_request *rq = seq->rq;
    int32_t fed = part->pos0, end = fed + part->rows - seq->guesses, logit = part->logit0;
    if (seq->guessing) {
        seq->guess[seq->guessed++] = results->batch->token[logit];
        seq->guessing = false;
        return HZP_REQUEST_RUNNING;
    }
    /* A version was published while this step of a pinned one was in flight. */
    if (rq->pin && rq->demands.max_staleness >= 0 &&
        results->staleness > rq->demands.max_staleness) {
        if (rq->demands.mode != HZP_PINNED) {
            hzp_leave_trial(s, rq, seq);
            if (!rq->verdict)
                hzp_begin_again(s, seq); /* without this token */
            return HZP_REQUEST_RUNNING;
        }
        rq->changed = HZP_CHANGED_PIN;
        return HZP_REQUEST_CHANGED;
    }
    int32_t known = HZP_MAX(fed, rq->computed);
    rq->staleness = HZP_MAX(rq->staleness, results->staleness);
    s->now.prompt_tokens += (uint64_t)HZP_MAX(HZP_MIN(end, rq->prompt_count) - known, 0);
    s->now.recomputed_tokens += (uint64_t)(HZP_MIN(known, end) - fed);
    if (hzp_request_tells_prompt(rq))
        for (int32_t p = fed + 1; p < rq->prompt_count && p <= end; p++, logit++) {
            read_output(results, seq, logit, p, rq->prompt_out, rq->prompt_top_token,
                        rq->prompt_top_logprob);
            rq->not_finite |= !(rq->prompt_out[p].logprob <= LOGPROB_MAX);
        }
    rq->computed = HZP_MAX(rq->computed, end);
    if (rq->pooling && !pool(results, rq, part)) {
        rq->not_finite = true;
        return HZP_REQUEST_FAILED;
    }
    if (rq->not_finite)
        return HZP_REQUEST_FAILED;
    if (end < seq->prompt_end)
        return HZP_REQUEST_RUNNING;
    if (!rq->max_tokens) {
        rq->prompt_version = seq->prompt_version;
        return HZP_REQUEST_LENGTH;
    }

    return take_draws(s, results, seq, part, logit);
}

int64_t hzp_step_staleness(const struct hzp_scheduler *s, const struct hzp_step *step)
{
    hzp_assert_engine_thread();
    struct hzp_weights *w = s->model->weights;
    if (!w || !step->version)
        return 0;
    /* Newer versions may have been published since the step was formed. */
    int64_t behind =
        hzp_weights_current(w)->record.optimizer_step - step->version->record.optimizer_step;
    int64_t staleness = hzp_weights_staleness(w) + behind;
    return HZP_MAX(staleness, 0);
}
