/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/completion.h"

#include "base/utf8.h"

/* Engine thread: the request has new tokens or has ended. */
static void wake(void *ctx, bool more)
{
    struct hzp_choice *choice = ctx;
    struct hzp_completion *c = choice->of;
    struct hzp_notify *notify = c->listener.notify;
    if (!notify) {
        hzp_wake_poke(&c->wake);
        return;
    }
    bool final = hzp_request_final(choice->rq);
    if (final)
        atomic_store(&choice->told, true);
    /* Where a stop string may end the text, a token that waited would cost further steps. */
    if (final || (!c->ends_only && (!choice->begun || c->params.stops)))
        hzp_notify_add(notify, &c->note);
    else if (!c->ends_only)
        hzp_notify_join(notify, &c->next);
    choice->begun = true;
    if (!more)
        hzp_notify_step(notify);
}

static bool all_final(const struct hzp_completion *c)
{
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_request *rq = c->choice[i].rq;
        if (rq && atomic_load(&rq->state) != HZP_REQUEST_NEW && !hzp_request_final(rq))
            return false;
    }
    return true;
}

/* Whether the engine has told of the end of every request: a final state is visible earlier. */
static bool all_told(const struct hzp_completion *c)
{
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_choice *choice = &c->choice[i];
        if (choice->rq && atomic_load(&choice->rq->state) != HZP_REQUEST_NEW &&
            !atomic_load(&choice->told))
            return false;
    }
    return true;
}

static void free_completion(struct hzp_completion *c);

/* Notifying thread. */
static void on_news(void *ctx)
{
    struct hzp_completion *c = ctx;
    if (!atomic_load(&c->ending)) {
        c->listener.news(c->listener.ctx);
        return;
    }
    if (!all_told(c))
        return; /* wake() posts the note once more */
    /* The engine may still be inside the last wake(). */
    for (int32_t i = 0; i < c->choices; i++)
        if (c->choice[i].rq)
            hzp_request_await_release(c->choice[i].rq);
    if (atomic_load(&c->note.posted) || atomic_load(&c->next.posted))
        return;
    struct hzp_listener listener = c->listener;
    free_completion(c);
    listener.ended(listener.ctx);
}

/* Generated text continues the prompt, so the detokenizer skips what it does only at the beginning
 * of a text (stripping a leading space, for example). */
static int continue_prompt(struct hzp_completion *c, struct hzp_choice *choice,
                           struct hzp_err_text *reterr)
{
    const struct hzp_tokens *prompt = &c->params.prompt[choice->prompt];
    hzp_detokenizer_init(&choice->detok, c->engine->parts.tok, c->params.skip_special);
    choice->detok.keep = c->params.reply.mark;
    choice->detok.keeps = c->params.reply.marks;
    for (size_t i = 0; i < prompt->n; i++) {
        choice->piece.bytes = 0;
        if (hzp_detokenizer_feed(&choice->detok, prompt->ids[i], &choice->piece) < 0)
            return hzp_fail(reterr, HZP_ENOMEM, "no memory for this request now");
    }
    choice->piece.bytes = 0;
    return HZP_OK;
}

static int open_choice(struct hzp_completion *c, int32_t index, struct hzp_err_text *reterr)
{
    const struct hzp_completion_params *p = &c->params;
    struct hzp_choice *choice = &c->choice[index];
    choice->of = c;
    choice->index = index;
    choice->prompt = index / p->n;
    choice->stop_string = -1;
    choice->stop.matched = -1;
    const struct hzp_tokens *prompt = &p->prompt[choice->prompt];
    int32_t tops = HZP_MAX(HZP_MAX(p->logprobs, p->prompt_logprobs), 0);
    bool told = (p->echo && p->logprobs >= 0) || p->prompt_logprobs >= 0;
    int r =
        hzp_request_create(prompt->ids, (int32_t)prompt->n, p->max_tokens, tops, told, &choice->rq);
    if (r < 0)
        return hzp_fail(reterr, r, "no memory for this request now");
    choice->offset = calloc((size_t)HZP_MAX(p->max_tokens, 1), sizeof(*choice->offset));
    if (!choice->offset)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for this request now");
    HZP_TRY(hzp_stop_init(&choice->stop, (const char *const *)p->stop, p->stop_bytes, p->stops,
                          p->include_stop, reterr));
    HZP_TRY(continue_prompt(c, choice, reterr));
    if ((hzp_reply_rules_on(&p->reply) || p->form->reads) &&
        hzp_reply_create(&p->reply, &choice->reply) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for this request now");

    struct hzp_request *rq = choice->rq;
    rq->priority = p->priority;
    rq->affinity = p->affinity;
    if (p->pooling && hzp_request_pool(rq, p->pooling, c->engine->parts.config.width) < 0)
        return hzp_fail(reterr, HZP_ENOMEM, "no memory for this request now");
    rq->min_tokens = p->min_tokens;
    rq->ignore_eos = p->ignore_eos;
    rq->sampling = p->sampling;
    rq->demands = p->demands;
    rq->sampling.choice = (uint32_t)(index % p->n);
    rq->stop_ids = p->stop_ids;
    memcpy(rq->stop_id, p->stop_id, (size_t)p->stop_ids * sizeof(*p->stop_id));
    rq->biases = p->biases;
    memcpy(rq->bias_token, p->bias_token, (size_t)p->biases * sizeof(*p->bias_token));
    memcpy(rq->bias, p->bias, (size_t)p->biases * sizeof(*p->bias));
    rq->tokens = p->limited ? &p->tokens : NULL;
    rq->wake = wake;
    rq->wake_ctx = choice;
    return HZP_OK;
}

/* Refuses a completion that could never be queued whole before allocating anything for it. */
static int check_size(const struct hzp_engine *engine, const struct hzp_completion_params *p,
                      struct hzp_err_text *reterr)
{
    const struct hzp_serving_settings *settings = &engine->config.settings->serving;
    int64_t choices = (int64_t)p->prompts * p->n, tokens = 0;
    for (int32_t i = 0; i < p->prompts; i++)
        tokens += (int64_t)p->prompt[i].n * p->n;
    if (choices > settings->waiting_max)
        return hzp_fail_param(reterr, HZP_EINVAL, "n",
                              "%lld choices are asked for, this server queues at most %lld",
                              (long long)choices, (long long)settings->waiting_max);
    if (tokens > settings->waiting_tokens)
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt",
                              "%lld prompt tokens are sent, this server queues at most %lld",
                              (long long)tokens, (long long)settings->waiting_tokens);
    return HZP_OK;
}

enum { LOGPROB = 768 /* bytes of a token and its log-probability in an answer */ };

size_t hzp_completion_bytes(const struct hzp_completion_params *p)
{
    enum { TOKENS = 4096, CHOICE = 4096 };
    bool repeats = p->stream && p->form && p->form->events && p->logprobs >= 0;
    size_t tops = (size_t)HZP_MAX(HZP_MAX(p->logprobs, p->prompt_logprobs), 0) * 8, sum = CHOICE;
    size_t token = sizeof(struct hzp_output) + sizeof(int32_t);
    bool told = (p->echo && p->logprobs >= 0) || p->prompt_logprobs >= 0;
    size_t tokens = (size_t)(tops ? p->max_tokens : HZP_MIN(p->max_tokens, TOKENS));
    for (int32_t i = 0; i < p->prompts; i++) {
        size_t each = p->prompt[i].n * (sizeof(int32_t) + (told ? token + tops : 0));
        sum += p->prompt_text[i].cap + p->prompt[i].cap * sizeof(int32_t);
        sum += (size_t)p->n * (CHOICE + each + tokens * (token + tops));
    }
    /* A stream of blocks tells a block's log-probabilities again when it closes. */
    sum += repeats ? 2 * (size_t)p->max_tokens * (size_t)(1 + p->logprobs) * LOGPROB : 0;
    return sum + (p->structure ? strlen(p->structure) : 0);
}

size_t hzp_completion_answer_bytes(const struct hzp_completion *c)
{
    enum { TEXT_TIMES = 8, ID = 64, NUMBER = 64, CHOICE = 8192 };
    const struct hzp_completion_params *p = &c->params;
    size_t sum = 0;
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_choice *choice = &c->choice[i];
        size_t prompt = p->prompt[choice->prompt].n, shown = (size_t)choice->seen;
        size_t whole = shown + (p->echo ? prompt : 0);
        sum += CHOICE + TEXT_TIMES * choice->text.bytes;
        sum += p->echo ? TEXT_TIMES * p->prompt_text[choice->prompt].bytes : 0;
        sum += p->logprobs >= 0 ? whole * (size_t)(1 + p->logprobs) * LOGPROB : 0;
        if (p->prompt_logprobs >= 0 && p->form != &hzp_answer_score)
            sum += prompt * (size_t)(1 + p->prompt_logprobs) * LOGPROB;
        sum += p->return_ids ? (prompt + shown) * ID : 0;
        sum += (size_t)choice->rq->hidden_cols * NUMBER;
    }
    return sum;
}

int hzp_completion_make(struct hzp_engine *engine, struct hzp_completion_params *params,
                        const struct hzp_listener *listener, struct hzp_completion **ret,
                        struct hzp_err_text *reterr)
{
    struct hzp_completion *c = hzp_xcalloc(1, sizeof(*c));
    c->engine = engine;
    if (listener)
        c->listener = *listener;
    c->note = c->next = (struct hzp_note){.call = on_news, .ctx = c};
    /* Without stop strings nothing has to be looked at before the end, unless it streams. */
    c->ends_only = !params->stream && !params->stops;
    c->params = *params;
    memset(params, 0, sizeof(*params));
    hzp_wake_init(&c->wake);
    int r;
    HZP_TRY_GOTO(check_size(engine, &c->params, reterr));
    int32_t choices = c->params.prompts * c->params.n;
    c->choice = hzp_xcalloc((size_t)choices, sizeof(*c->choice));
    for (int32_t i = 0; i < choices; i++) {
        c->choices = i + 1;
        HZP_TRY_GOTO(open_choice(c, i, reterr));
    }
    c->open = choices;
    *ret = c;
    return HZP_OK;
out:
    hzp_completion_end(c);
    return r;
}

int hzp_completion_submit(struct hzp_completion *c, struct hzp_err_text *reterr)
{
    /* All or none: after an error nothing runs and the listener is not called.  Without one it may
     * end the completion before the call has returned. */
    struct hzp_engine *engine = c->engine;
    HZP_FREED struct hzp_request **rq =
        hzp_xcalloc((size_t)c->choices, sizeof(struct hzp_request *));
    int32_t count = 0;
    for (int32_t i = 0; i < c->choices; i++)
        if (c->choice[i].finish == HZP_FINISH_NONE)
            rq[count++] = c->choice[i].rq;
    int r = HZP_OK;
    if (count)
        r = hzp_engine_submit(engine, rq, count, reterr);
    else
        hzp_notify_post(c->listener.notify, &c->note); /* no engine will */
    return r;
}

void hzp_completion_wait(struct hzp_completion *c, uint64_t wait_ns)
{
    hzp_wake_wait(&c->wake, wait_ns);
}

/* ---- tokens to text ---- */

static void finish(struct hzp_completion *c, struct hzp_choice *choice, enum hzp_finish how)
{
    choice->finish = how;
    c->open--;
}

/* Passes new text through the stop strings.  True: one of them ended the text. */
static bool pass_piece(struct hzp_completion *c, struct hzp_choice *choice)
{
    int r;
    choice->codes += (int32_t)hzp_utf8_count(choice->piece.data, choice->piece.bytes);
    /* Until min_tokens is reached, stop strings are not looked for. */
    if (choice->seen <= c->params.min_tokens && c->params.min_tokens)
        r = hzp_stop_pass(&choice->stop, choice->piece.data, choice->piece.bytes, &choice->text);
    else
        r = hzp_stop_feed(&choice->stop, choice->piece.data, choice->piece.bytes, &choice->text);
    choice->piece.bytes = 0;
    if (r < 0) {
        finish(c, choice, HZP_FINISH_FAILED);
        return true;
    }
    if (r > 0) {
        choice->stop_string = choice->stop.matched;
        finish(c, choice, HZP_FINISH_STOP);
    }
    return r > 0;
}

static bool take_token(struct hzp_completion *c, struct hzp_choice *choice, int32_t n, bool silent)
{
    choice->offset[n] = choice->codes;
    choice->seen = n + 1;
    if (silent)
        return false;
    if (hzp_detokenizer_feed(&choice->detok, choice->rq->out[n].token, &choice->piece) < 0) {
        finish(c, choice, HZP_FINISH_FAILED);
        return true;
    }
    return choice->piece.bytes && pass_piece(c, choice);
}

/* The request is final and all its tokens have been turned into text. */
static void take_end(struct hzp_completion *c, struct hzp_choice *choice, int state)
{
    if (state == HZP_REQUEST_CANCELED || state == HZP_REQUEST_FAILED ||
        state == HZP_REQUEST_UNMET) {
        finish(c, choice, HZP_FINISH_FAILED);
        return;
    }
    if (hzp_detokenizer_flush(&choice->detok, &choice->piece) < 0) {
        finish(c, choice, HZP_FINISH_FAILED);
        return;
    }
    if (choice->piece.bytes && pass_piece(c, choice))
        return;
    if (hzp_stop_flush(&choice->stop, &choice->text) < 0) {
        finish(c, choice, HZP_FINISH_FAILED);
        return;
    }
    finish(c, choice,
           state == HZP_REQUEST_STOPPED   ? HZP_FINISH_STOP
           : state == HZP_REQUEST_CHANGED ? HZP_FINISH_CHANGED
                                          : HZP_FINISH_LENGTH);
}

static bool pump_choice(struct hzp_completion *c, struct hzp_choice *choice, int32_t most)
{
    if (choice->finish != HZP_FINISH_NONE)
        return false;
    struct hzp_request *rq = choice->rq;
    /* Reads the state before the count: if the state is final, so is the count. */
    int state = atomic_load(&rq->state);
    int32_t count = atomic_load_explicit(&rq->out_count, memory_order_acquire);
    /* The last token is shown with the state, which says whether it is text. */
    if (state < HZP_REQUEST_STOPPED && atomic_load(&rq->whole))
        count--;
    bool news = choice->seen < count;
    int32_t end = count - choice->seen > most ? choice->seen + most : count;
    for (int32_t n = choice->seen; n < end; n++) {
        /* without a stop token the last one is text */
        bool last = state == HZP_REQUEST_STOPPED && rq->stop_token >= 0 && n == count - 1;
        if (take_token(c, choice, n, last && !c->params.include_stop)) {
            atomic_store(&rq->cancel, true);
            hzp_engine_poke(c->engine);
            return true;
        }
    }
    if (state < HZP_REQUEST_STOPPED || end < count)
        return news;
    take_end(c, choice, state);
    return true;
}

bool hzp_completion_pump(struct hzp_completion *c, int32_t most)
{
    bool news = false;
    for (int32_t i = 0; i < c->choices; i++)
        news |= pump_choice(c, &c->choice[i], most);
    return news;
}

bool hzp_completion_joins(const struct hzp_completion *c)
{
    return atomic_load(&c->next.posted);
}

/* ---- ends ---- */

void hzp_completion_leave(struct hzp_completion *c)
{
    atomic_store(&c->left, true);
    for (int32_t i = 0; i < c->choices; i++)
        atomic_store(&c->choice[i].rq->cancel, true);
    hzp_engine_poke(c->engine);
    if (!c->listener.notify)
        hzp_wake_poke(&c->wake);
}

static void end_choice(struct hzp_choice *choice)
{
    hzp_request_destroy(choice->rq);
    hzp_stop_fini(&choice->stop);
    hzp_reply_destroy(choice->reply);
    hzp_textbuf_fini(&choice->text);
    hzp_textbuf_fini(&choice->piece);
    free(choice->offset);
}

/* No request runs any more. */
static void free_completion(struct hzp_completion *c)
{
    for (int32_t i = 0; i < c->choices; i++)
        end_choice(&c->choice[i]);
    hzp_completion_params_fini(&c->params);
    hzp_wake_fini(&c->wake);
    free(c->choice);
    free(c);
}

void hzp_completion_end(struct hzp_completion *c)
{
    if (!c)
        return;
    for (int32_t i = 0; i < c->choices; i++)
        if (c->choice[i].rq)
            atomic_store(&c->choice[i].rq->cancel, true);
    if (!all_final(c))
        hzp_engine_poke(c->engine);
    if (c->listener.notify) {
        /* From now on `on_news` frees it, at the latest when the last request ends. */
        atomic_store(&c->ending, true);
        hzp_notify_post(c->listener.notify, &c->note);
        return;
    }
    while (!all_final(c))
        hzp_wake_wait(&c->wake, 50 * 1000000ull);
    free_completion(c);
}
