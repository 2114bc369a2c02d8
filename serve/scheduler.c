/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/scheduler.h"

#include "base/arena.h"
#include "base/ring.h"
#include "base/thread.h"
#include "serve/edits.h"

#include <stdlib.h>
#include <string.h>

/* A sequence's rows in one step. */
struct part {
    uint64_t step;
    int32_t pos0, rows;     /* from this position on; 0: none */
    int32_t logit0, logits; /* its range of the step's logits */
};

/* A sequence that has KV pages.  `rq` is NULL once the request is final; the pages may have to
 * wait for their last step, and what that one brings is nobody's. */
struct seq {
    struct hzp_request *rq;
    bool used;
    int32_t *page; /* [page_stride], the first `taken` are ours */
    int32_t reserved, taken;
    int32_t fed;         /* positions whose keys and values are stored once the steps formed so far
                          * have ended */
    struct part part[2]; /* of step n: part[n % 2]; two may be under way */
    uint64_t step;       /* the last step that touches our pages */
};

struct hzp_scheduler {
    struct hzp_source source;

    /* fixed after create */
    struct hzp_scheduler_config config;
    const struct hzp_model *model;
    struct hzp_kvpool *pool;
    int32_t page_rows, page_stride;
    struct hzp_ring *submitted;

    /* engine thread only */
    struct seq *seq;       /* [running_max] */
    int32_t *page_memory;  /* [running_max][page_stride] */
    int32_t *order;        /* indices of running sequences, oldest first */
    int32_t *chosen;       /* [running_max] who decodes in the step that is formed */
    int32_t running;
    int32_t turn;          /* who of `order` decodes first: moves on when a step has no room for all */
    struct hzp_request **wait; /* a ring [waiting_max] */
    int32_t wait_head, wait_count;
    uint64_t ended;        /* newest step that has ended */
    uint64_t clock_ns;     /* of the newest step */
    struct hzp_scheduler_stats now;

    /* under lock; the lock is never held across anything that waits */
    pthread_mutex_t lock;
    bool stopping, hurry;
    int32_t waiting;        /* submitted or in `wait` */
    int64_t waiting_tokens;
    uint64_t refused;
    struct hzp_scheduler_stats shown;
};

static bool offer(struct hzp_source *source, struct hzp_step *step);
static void deliver(struct hzp_source *source, const struct hzp_step *step, int status);
static bool busy(struct hzp_source *source);

int hzp_scheduler_create(const struct hzp_scheduler_config *config, const struct hzp_model *model,
                         struct hzp_kvpool *pool, struct hzp_scheduler **ret)
{
    HZP_ASSERT(config->running_max > 0 && config->waiting_max > 0);
    HZP_ASSERT(config->prefill_rows_max > 0);
    struct hzp_scheduler *s = hzp_xcalloc(1, sizeof(*s));
    s->source = (struct hzp_source){
        .name = "serve", .offer = offer, .deliver = deliver, .busy = busy};
    s->config = *config;
    s->model = model;
    s->pool = pool;
    s->page_rows = hzp_kvpool_page_rows(pool);
    s->page_stride = HZP_DIV_UP(model->positions, s->page_rows);
    s->submitted = hzp_ring_create(config->waiting_max);
    s->seq = hzp_xcalloc((size_t)config->running_max, sizeof(*s->seq));
    s->page_memory = hzp_xcalloc((size_t)config->running_max * (size_t)s->page_stride,
                                 sizeof(*s->page_memory));
    for (int32_t i = 0; i < config->running_max; i++)
        s->seq[i].page = s->page_memory + (size_t)i * (size_t)s->page_stride;
    s->order = hzp_xcalloc((size_t)config->running_max, sizeof(*s->order));
    s->chosen = hzp_xcalloc((size_t)config->running_max, sizeof(*s->chosen));
    s->wait = hzp_xcalloc((size_t)config->waiting_max, sizeof(struct hzp_request *));
    pthread_mutex_init(&s->lock, NULL);
    *ret = s;
    return HZP_OK;
}

struct hzp_source *hzp_scheduler_source(struct hzp_scheduler *s)
{
    return &s->source;
}

/* ---- submitting: any thread ---- */

static int32_t pages_needed(const struct hzp_scheduler *s, const struct hzp_request *rq)
{
    /* The last token drawn is never fed back. */
    int32_t rows = rq->prompt_count + HZP_MAX(rq->max_tokens, 1) - 1;
    return HZP_DIV_UP(rows, s->page_rows);
}

static int check_request(const struct hzp_scheduler *s, const struct hzp_request *rq,
                         struct hzp_err_text *reterr)
{
    const struct hzp_model_config *model = s->model->config;
    if (rq->prompt_count < 1)
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt", "the prompt has no tokens");
    if ((int64_t)rq->prompt_count + rq->max_tokens > s->model->positions)
        return hzp_fail_param(reterr, HZP_EINVAL, "max_tokens",
                              "prompt of %d tokens and max_tokens %d exceed the context of %d",
                              rq->prompt_count, rq->max_tokens, s->model->positions);
    if (pages_needed(s, rq) > hzp_kvpool_pages(s->pool))
        return hzp_fail_param(reterr, HZP_EINVAL, "max_tokens",
                              "prompt of %d tokens and max_tokens %d need %d KV pages of %d tokens, "
                              "this server has %d",
                              rq->prompt_count, rq->max_tokens, pages_needed(s, rq), s->page_rows,
                              hzp_kvpool_pages(s->pool));
    if (rq->prompt_count > s->config.waiting_tokens_max)
        return hzp_fail_param(reterr, HZP_EINVAL, "prompt",
                              "prompt of %d tokens is longer than the whole queue may hold (%lld)",
                              rq->prompt_count, (long long)s->config.waiting_tokens_max);
    for (int32_t i = 0; i < rq->prompt_count; i++)
        if (rq->prompt[i] < 0 || rq->prompt[i] >= model->vocab)
            return hzp_fail_param(reterr, HZP_EINVAL, "prompt",
                                  "token %d is not in the vocabulary of %d", rq->prompt[i],
                                  model->vocab);
    for (int32_t i = 0; i < rq->biases; i++)
        if (rq->bias_token[i] < 0 || rq->bias_token[i] >= model->vocab)
            return hzp_fail_param(reterr, HZP_EINVAL, "logit_bias",
                                  "token %d is not in the vocabulary of %d", rq->bias_token[i],
                                  model->vocab);
    for (int32_t i = 0; i < rq->stop_ids; i++)
        if (rq->stop_id[i] < 0 || rq->stop_id[i] >= model->vocab)
            return hzp_fail_param(reterr, HZP_EINVAL, "stop_token_ids",
                                  "token %d is not in the vocabulary of %d", rq->stop_id[i],
                                  model->vocab);
    int32_t edits = hzp_edits_needed(rq, model->vocab, model->eos_count);
    if (edits > s->config.edits_max)
        return hzp_fail_param(reterr, HZP_EINVAL, "max_tokens",
                              "biases and penalties of this request could touch %d tokens, this "
                              "server keeps track of %d",
                              edits, s->config.edits_max);
    return HZP_OK;
}

/* Takes a place in the queue; under lock, so that stop and the bounds are exact. */
static int enqueue(struct hzp_scheduler *s, struct hzp_request *rq, struct hzp_err_text *reterr)
{
    if (s->stopping)
        return hzp_fail(reterr, HZP_ECANCELED, "the server is stopping");
    if (s->waiting >= s->config.waiting_max)
        return hzp_fail(reterr, HZP_EBUSY, "the queue is full: %d requests wait", s->waiting);
    if (s->waiting_tokens + rq->prompt_count > s->config.waiting_tokens_max)
        return hzp_fail(reterr, HZP_EBUSY, "the queue is full: %lld prompt tokens wait",
                        (long long)s->waiting_tokens);
    atomic_store(&rq->let_go, false);
    atomic_store(&rq->state, HZP_REQUEST_WAITING);
    s->waiting++;
    s->waiting_tokens += rq->prompt_count;
    int r = hzp_ring_push(s->submitted, rq);
    HZP_ASSERT(r == HZP_OK); /* as many slots as may wait */
    return HZP_OK;
}

int hzp_scheduler_submit(struct hzp_scheduler *s, struct hzp_request *rq,
                         struct hzp_err_text *reterr)
{
    const struct hzp_model_config *model = s->model->config;
    HZP_TRY(check_request(s, rq, reterr));
    int r = hzp_edits_create(rq, model->vocab, model->eos, model->eos_count, &rq->edits);
    if (r < 0)
        return hzp_fail(reterr, HZP_EBUSY, "no memory for this request now");
    if (!rq->submitted_ns)
        rq->submitted_ns = hzp_now_ns();
    pthread_mutex_lock(&s->lock);
    r = enqueue(s, rq, reterr);
    if (r == HZP_EBUSY)
        s->refused++;
    pthread_mutex_unlock(&s->lock);
    if (r < 0) {
        hzp_edits_destroy(rq->edits);
        rq->edits = NULL;
    }
    return r;
}

void hzp_scheduler_stop(struct hzp_scheduler *s, bool hurry)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    s->hurry |= hurry;
    pthread_mutex_unlock(&s->lock);
}

void hzp_scheduler_read_stats(struct hzp_scheduler *s, struct hzp_scheduler_stats *ret)
{
    pthread_mutex_lock(&s->lock);
    *ret = s->shown;
    ret->waiting = s->waiting;
    ret->waiting_tokens = s->waiting_tokens;
    ret->refused = s->refused;
    pthread_mutex_unlock(&s->lock);
}

static bool busy(struct hzp_source *source)
{
    struct hzp_scheduler *s = HZP_CONTAINER_OF(source, struct hzp_scheduler, source);
    pthread_mutex_lock(&s->lock);
    bool any = s->waiting > 0 || s->running > 0;
    pthread_mutex_unlock(&s->lock);
    return any;
}

/* ---- ends of requests: engine thread ---- */

static void show_stats(struct hzp_scheduler *s)
{
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(s->pool, &kv);
    s->now.running = s->running;
    s->now.kv_pages = kv.pages;
    s->now.kv_reserved = kv.reserved;
    s->now.kv_taken = kv.taken;
    pthread_mutex_lock(&s->lock);
    s->shown = s->now;
    pthread_mutex_unlock(&s->lock);
}

/* The request is final; it is the creator's again when let_go is up. */
static void end_request(struct hzp_scheduler *s, struct hzp_request *rq,
                        enum hzp_request_state state)
{
    s->now.finished[state]++;
    rq->finished_ns = s->clock_ns;
    atomic_store(&rq->state, state);
    if (rq->wake)
        rq->wake(rq->wake_ctx);
    atomic_store(&rq->let_go, true);
}

static void release_pages(struct hzp_scheduler *s, struct seq *seq)
{
    hzp_kvpool_release(s->pool, seq->reserved, seq->page, seq->taken);
    seq->used = false;
}

/* Ends the i-th oldest running sequence. */
static void end_running(struct hzp_scheduler *s, int32_t i, enum hzp_request_state state)
{
    struct seq *seq = &s->seq[s->order[i]];
    struct hzp_request *rq = seq->rq;
    s->running--;
    memmove(s->order + i, s->order + i + 1, (size_t)(s->running - i) * sizeof(*s->order));
    if (s->turn > i)
        s->turn--;
    seq->rq = NULL;
    if (seq->step <= s->ended)
        release_pages(s, seq);
    /* The pages are counted free before the client can see the end. */
    show_stats(s);
    end_request(s, rq, state);
}

static struct hzp_request *wait_at(const struct hzp_scheduler *s, int32_t i)
{
    return s->wait[(s->wait_head + i) % s->config.waiting_max];
}

/* Takes what was submitted into the queue that only this thread sees. */
static void absorb(struct hzp_scheduler *s)
{
    struct hzp_request *rq;
    while ((rq = hzp_ring_pop(s->submitted)) != NULL) {
        HZP_ASSERT(s->wait_count < s->config.waiting_max);
        s->wait[(s->wait_head + s->wait_count++) % s->config.waiting_max] = rq;
    }
}

static void leave_queue(struct hzp_scheduler *s, const struct hzp_request *rq)
{
    pthread_mutex_lock(&s->lock);
    s->waiting--;
    s->waiting_tokens -= rq->prompt_count;
    pthread_mutex_unlock(&s->lock);
}

/* Ends waiting requests: all, or those whose client has left. */
static void cull_waiting(struct hzp_scheduler *s, bool all, enum hzp_request_state state)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < s->wait_count; i++) {
        struct hzp_request *rq = wait_at(s, i);
        if (!all && !atomic_load_explicit(&rq->cancel, memory_order_relaxed)) {
            /* relaxed: the flag carries no data with it */
            s->wait[(s->wait_head + kept++) % s->config.waiting_max] = rq;
            continue;
        }
        leave_queue(s, rq);
        end_request(s, rq, state);
    }
    s->wait_count = kept;
}

static void cull_running(struct hzp_scheduler *s)
{
    for (int32_t i = s->running - 1; i >= 0; i--)
        if (atomic_load_explicit(&s->seq[s->order[i]].rq->cancel, memory_order_relaxed))
            end_running(s, i, HZP_REQUEST_CANCELED);
}

static void fail_all(struct hzp_scheduler *s)
{
    absorb(s);
    while (s->running)
        end_running(s, s->running - 1, HZP_REQUEST_FAILED);
    cull_waiting(s, true, HZP_REQUEST_FAILED);
}

void hzp_scheduler_abort(struct hzp_scheduler *s)
{
    hzp_scheduler_stop(s, true);
    s->ended = UINT64_MAX;
    fail_all(s);
    show_stats(s);
}

void hzp_scheduler_destroy(struct hzp_scheduler *s)
{
    if (!s)
        return;
    hzp_scheduler_abort(s);
    for (int32_t i = 0; i < s->config.running_max; i++)
        if (s->seq[i].used)
            release_pages(s, &s->seq[i]);
    hzp_ring_destroy(s->submitted);
    pthread_mutex_destroy(&s->lock);
    free(s->seq);
    free(s->page_memory);
    free(s->order);
    free(s->chosen);
    free(s->wait);
    free(s);
}

/* ---- filling a step ---- */

/* First come, first served: the head of the queue waits for its pages and nobody overtakes it. */
static void admit(struct hzp_scheduler *s)
{
    while (s->wait_count && s->running < s->config.running_max) {
        struct hzp_request *rq = wait_at(s, 0);
        int32_t i = 0;
        while (i < s->config.running_max && s->seq[i].used)
            i++;
        if (i == s->config.running_max)
            return; /* some wait for the end of their last step */
        int32_t pages = pages_needed(s, rq);
        if (hzp_kvpool_reserve(s->pool, pages) < 0)
            return;
        s->wait_head = (s->wait_head + 1) % s->config.waiting_max;
        s->wait_count--;
        struct seq *seq = &s->seq[i];
        *seq = (struct seq){.rq = rq, .used = true, .page = seq->page, .reserved = pages};
        s->order[s->running++] = i;
        s->now.admitted++;
        rq->admitted_ns = s->clock_ns;
        atomic_store(&rq->state, HZP_REQUEST_RUNNING);
        leave_queue(s, rq);
    }
}

static bool decoding(const struct seq *seq)
{
    return seq->fed >= seq->rq->prompt_count;
}

/* Every token it may generate is drawn once the steps formed so far have ended. */
static bool complete(const struct seq *seq)
{
    return seq->fed >= seq->rq->prompt_count + HZP_MAX(seq->rq->max_tokens, 1) - 1;
}

static struct part *part_of(struct seq *seq, uint64_t step)
{
    return &seq->part[step % 2];
}

/* Opens the sequence's segment for `rows` more rows and takes the pages they need. */
static struct part *open_segment(struct hzp_scheduler *s, struct hzp_step *step, struct seq *seq,
                                 int32_t rows, bool decode)
{
    struct part *part = part_of(seq, step->number);
    while (seq->taken * s->page_rows < seq->fed + rows)
        seq->page[seq->taken++] = hzp_kvpool_take(s->pool);
    int32_t *page = hzp_batch_add_segment(step->batch, seq->fed, decode);
    memcpy(page, seq->page, (size_t)seq->taken * sizeof(*page));
    *part = (struct part){.step = step->number, .pos0 = seq->fed, .rows = rows,
                          .logit0 = step->batch->logits};
    seq->fed += rows;
    seq->step = step->number;
    step->rows_left -= rows;
    /* Penalties count every token drawn so far: the next draw waits for this one. */
    if (hzp_edits_grow(seq->rq->edits) && decoding(seq))
        step->settle = HZP_MAX(step->settle, HZP_SETTLE_SERVING);
    return part;
}

static int32_t slot_of(const struct hzp_scheduler *s, const struct seq *seq, int32_t position)
{
    return seq->page[position / s->page_rows] * s->page_rows + position % s->page_rows;
}

/* Edits that a draw of this sequence adds to the step. */
static int32_t draw_edits(const struct seq *seq)
{
    return hzp_edits_count(seq->rq->edits);
}

/* The row's logits draw the token at `position`. */
static void want_draw(struct hzp_batch *batch, struct seq *seq, struct part *part, int32_t row,
                      int32_t position)
{
    const struct hzp_request *rq = seq->rq;
    int32_t drawn = position - rq->prompt_count;
    const struct hzp_sampling *how = &rq->sampling;
    struct hzp_sample_row *sample = &batch->sample[hzp_batch_add_logits(batch, row)];
    *sample = (struct hzp_sample_row){
        .temperature = how->temperature,
        .top_p = how->top_p,
        .min_p = how->min_p,
        .repetition = how->repetition,
        .presence = how->presence,
        .frequency = how->frequency,
        .top_k = how->top_k,
        .seed = how->seed,
        .choice = how->choice,
        .position = (uint32_t)position,
        .edit0 = batch->edits,
        .edits = draw_edits(seq),
        .given = -1,
        .tops = rq->tops,
    };
    hzp_edits_write(rq->edits, drawn < rq->min_tokens, batch->edit + batch->edits);
    batch->edits += sample->edits;
    batch->tops_wanted |= rq->tops > 0;
    part->logits++;
}

/* The row's logits tell how likely the prompt's next token was. */
static void want_given(struct hzp_batch *batch, struct part *part, int32_t tops, int32_t row,
                       int32_t token)
{
    batch->sample[hzp_batch_add_logits(batch, row)] = (struct hzp_sample_row){
        .top_p = 1, .repetition = 1, .edit0 = batch->edits, .given = token, .tops = tops};
    batch->tops_wanted |= tops > 0;
    part->logits++;
}

/* Chooses who decodes, as far as the step has room; who found none is first next time. */
static int32_t choose_decodes(struct hzp_scheduler *s, const struct hzp_step *step)
{
    const struct hzp_batch_config *max = &step->batch->max;
    int32_t chosen = 0, edits = step->batch->edits, first = s->running ? s->turn % s->running : 0;
    int32_t room = HZP_MIN(step->rows_left, HZP_MIN(max->segs_max, max->logits_max));
    bool left_out = false;
    for (int32_t k = 0; k < s->running; k++) {
        int32_t i = first + k < s->running ? first + k : first + k - s->running;
        const struct seq *seq = &s->seq[s->order[i]];
        if (!decoding(seq) || complete(seq))
            continue;
        if (chosen == room || edits + draw_edits(seq) > max->edits_max) {
            if (!left_out)
                s->turn = i;
            left_out = true;
            continue;
        }
        edits += draw_edits(seq);
        s->chosen[chosen++] = s->order[i];
    }
    if (!left_out)
        s->turn = 0;
    return chosen;
}

/* The logits of the step under way that draw the token the sequence feeds next; -1: it is known. */
static int32_t drawn_by(struct seq *seq, const struct hzp_step *step)
{
    if (!step->under_way)
        return -1;
    const struct part *part = part_of(seq, step->number - 1);
    bool drawn = part->step == step->number - 1 && part->rows > 0;
    return drawn ? part->logit0 + part->logits - 1 : -1;
}

/* Every chosen sequence's row: those whose token the step under way draws come first. */
static int32_t add_decodes(struct hzp_scheduler *s, struct hzp_step *step)
{
    struct hzp_batch *batch = step->batch;
    int32_t chosen = choose_decodes(s, step);
    for (int known = 0; known < 2; known++)
        for (int32_t k = 0; k < chosen; k++) {
            struct seq *seq = &s->seq[s->chosen[k]];
            int32_t logit = seq->step == step->number ? 0 : drawn_by(seq, step), at = seq->fed, row;
            if (seq->step == step->number || (logit < 0) != known)
                continue;
            struct part *part = open_segment(s, step, seq, 1, true);
            if (known)
                row = hzp_batch_add_row(batch, seq->rq->out[at - seq->rq->prompt_count].token,
                                        slot_of(s, seq, at));
            else
                row = hzp_batch_add_drawn(batch, step->under_way->batch, logit,
                                          slot_of(s, seq, at));
            want_draw(batch, seq, part, row, at + 1);
        }
    return chosen;
}

/* How many of the prompt's rows fit: at most `room` rows, and the logits they want.  A piece that
 * is not the last ends at a page's border where that costs little of the room. */
static int32_t piece_rows(const struct hzp_scheduler *s, const struct hzp_batch *batch,
                          const struct seq *seq, int32_t room)
{
    const struct hzp_request *rq = seq->rq;
    int32_t left = rq->prompt_count - seq->fed;
    int32_t rows = HZP_MIN(left, room);
    int32_t logits = batch->max.logits_max - batch->logits;
    if (rq->prompt_logprobs)
        rows = HZP_MIN(rows, logits);
    if (rows == left && rq->max_tokens > 0 &&
        (!logits || batch->edits + draw_edits(seq) > batch->max.edits_max))
        rows--; /* the last row wants to draw: another step */
    if (rows > 0 && rows < left) {
        int32_t whole = (seq->fed + rows) / s->page_rows * s->page_rows - seq->fed;
        if (whole >= rows - rows / 4 && whole > 0)
            rows = whole;
    }
    return rows;
}

static void add_piece(struct hzp_scheduler *s, struct hzp_step *step, struct seq *seq, int32_t rows)
{
    const struct hzp_request *rq = seq->rq;
    struct part *part = open_segment(s, step, seq, rows, false);
    for (int32_t p = part->pos0; p < seq->fed; p++) {
        int32_t row = hzp_batch_add_row(step->batch, rq->prompt[p], slot_of(s, seq, p));
        if (p + 1 < rq->prompt_count) {
            if (rq->prompt_logprobs)
                want_given(step->batch, part, rq->tops, row, rq->prompt[p + 1]);
        } else if (rq->max_tokens > 0) {
            want_draw(step->batch, seq, part, row, p + 1);
        }
    }
}

static void add_prefills(struct hzp_scheduler *s, struct hzp_step *step, int32_t decodes)
{
    struct hzp_batch *batch = step->batch;
    int32_t room = decodes ? HZP_MIN(step->rows_left, s->config.prefill_rows_max) : step->rows_left;
    for (int32_t i = 0; i < s->running && room > 0; i++) {
        struct seq *seq = &s->seq[s->order[i]];
        if (decoding(seq))
            continue;
        if (batch->segs == batch->max.segs_max)
            break;
        int32_t rows = piece_rows(s, batch, seq, room);
        if (rows < 1)
            break; /* the oldest goes first, or nobody does */
        add_piece(s, step, seq, rows);
        room -= rows;
    }
}

static void count_step(struct hzp_scheduler *s, int32_t rows)
{
    s->now.steps++;
    int class = rows > 1;
    for (int32_t top = 8; class && class < HZP_STEP_ROWS_CLASSES - 1 && rows > top; top *= 2)
        class ++;
    s->now.step_rows[class]++;
}

static bool offer(struct hzp_source *source, struct hzp_step *step)
{
    struct hzp_scheduler *s = HZP_CONTAINER_OF(source, struct hzp_scheduler, source);
    s->clock_ns = step->begin_ns;
    pthread_mutex_lock(&s->lock);
    bool hurry = s->hurry;
    pthread_mutex_unlock(&s->lock);
    if (hurry)
        fail_all(s);
    absorb(s);
    cull_waiting(s, false, HZP_REQUEST_CANCELED);
    cull_running(s);
    admit(s);

    struct hzp_batch *batch = step->batch;
    if (s->running && step->version) {
        HZP_ASSERT(batch->max.page_stride >= s->page_stride);
        add_prefills(s, step, add_decodes(s, step));
        step->kv = hzp_kvpool_layers(s->pool);
        if (batch->rows)
            count_step(s, batch->rows);
    }
    show_stats(s);
    return s->running && batch->rows > 0;
}

/* ---- what a step brought ---- */

/* Logits `at` of the step become entry `n` of the three arrays. */
static void read_output(const struct hzp_step *step, int32_t tops, int32_t at, int32_t n,
                        struct hzp_output *out, int32_t *top_token, float *top_logprob)
{
    const struct hzp_batch *batch = step->batch;
    out[n] = (struct hzp_output){.token = batch->token[at],
                                 .logprob = batch->logprob[at],
                                 .rank = batch->rank[at],
                                 .version = step->version->record.id,
                                 .at_ns = step->end_ns};
    if (tops) {
        size_t from = (size_t)at * HZP_TOPS_MAX, to = (size_t)n * (size_t)tops;
        memcpy(top_token + to, batch->top_token + from, (size_t)tops * sizeof(*top_token));
        memcpy(top_logprob + to, batch->top_logprob + from, (size_t)tops * sizeof(*top_logprob));
    }
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

/* Takes over the results of the sequence's rows.  RUNNING, or how it ended. */
static enum hzp_request_state take_results(struct hzp_scheduler *s, const struct hzp_step *step,
                                           const struct seq *seq, const struct part *part,
                                           int64_t staleness)
{
    struct hzp_request *rq = seq->rq;
    int32_t end = part->pos0 + part->rows, logit = part->logit0;
    rq->staleness = HZP_MAX(rq->staleness, staleness);
    if (part->pos0 < rq->prompt_count)
        s->now.prompt_tokens += (uint64_t)part->rows;
    if (rq->prompt_logprobs)
        for (int32_t p = part->pos0 + 1; p < rq->prompt_count && p <= end; p++, logit++)
            read_output(step, rq->tops, logit, p, rq->prompt_out, rq->prompt_top_token,
                        rq->prompt_top_logprob);
    if (end < rq->prompt_count)
        return HZP_REQUEST_RUNNING;
    if (!rq->max_tokens)
        return HZP_REQUEST_LENGTH;

    int32_t n = end - rq->prompt_count;
    read_output(step, rq->tops, logit, n, rq->out, rq->top_token, rq->top_logprob);
    HZP_DEBUG_ASSERT(logit + 1 == part->logit0 + part->logits);
    int32_t token = rq->out[n].token;
    s->now.generated_tokens++;
    hzp_edits_generated(rq->edits, token);
    enum hzp_request_state state = HZP_REQUEST_RUNNING;
    if (stops(s, rq, token) && n + 1 > rq->min_tokens) {
        rq->stop_token = token;
        state = HZP_REQUEST_STOPPED;
    } else if (n + 1 == rq->max_tokens) {
        state = HZP_REQUEST_LENGTH;
    }
    /* release: whoever sees the count sees the output before it */
    atomic_store_explicit(&rq->out_count, n + 1, memory_order_release);
    if (state == HZP_REQUEST_RUNNING && rq->wake)
        rq->wake(rq->wake_ctx);
    return state;
}

/* Optimizer steps by which the version of this step trails the newest finished one. */
static int64_t staleness_of(const struct hzp_scheduler *s, const struct hzp_step *step)
{
    struct hzp_weights *w = s->model->weights;
    if (!w || !step->version)
        return 0;
    int64_t behind = hzp_weights_current(w)->record.optimizer_step -
                     step->version->record.optimizer_step; /* published since it was formed */
    return HZP_MAX(hzp_weights_staleness(w) + behind, 0);
}

static void deliver(struct hzp_source *source, const struct hzp_step *step, int status)
{
    struct hzp_scheduler *s = HZP_CONTAINER_OF(source, struct hzp_scheduler, source);
    s->ended = step->number;
    s->clock_ns = step->end_ns;
    for (int32_t i = 0; i < s->config.running_max; i++)
        if (s->seq[i].used && !s->seq[i].rq && s->seq[i].step <= s->ended)
            release_pages(s, &s->seq[i]);
    if (status < 0) {
        /* Device failure is final: nobody may wait for an answer that cannot come. */
        hzp_scheduler_stop(s, true);
        fail_all(s);
    }
    int64_t staleness = staleness_of(s, step);
    for (int32_t i = 0; i < s->running;) {
        struct seq *seq = &s->seq[s->order[i]];
        const struct part *part = part_of(seq, step->number);
        enum hzp_request_state state = HZP_REQUEST_RUNNING;
        if (part->step == step->number && part->rows)
            state = take_results(s, step, seq, part, staleness);
        if (state == HZP_REQUEST_RUNNING)
            i++;
        else
            end_running(s, i, state);
    }
    show_stats(s);
}
