/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/ring.h"
#include "base/thread.h"
#include "nanobatch/split.h"
#include "serve/edits.h"
#include "serve/scheduler_state.h"

#include <stdlib.h>
#include <string.h>

/* With a goal for the gaps between tokens: prompts go on with at least so many rows a step, and
 * are taken to stand so deep when it is asked how many would do. */
enum { PROMPT_ROWS_MIN = 16, PROMPT_DEPTH = 256 };
/* While nobody leaves, what those who run will need looks the same for some steps. */
enum { LOOK_EVERY = 8 };

static bool offer(struct hzp_source *source, struct hzp_step *step);
static void deliver(struct hzp_source *source, const struct hzp_step *step, int status);
static bool busy(struct hzp_source *source);

int hzp_scheduler_create(const struct hzp_scheduler_config *config, const struct hzp_model *model,
                         struct hzp_kvpool *pool, struct hzp_scheduler **ret)
{
    HZP_ASSERT(config->running_max > 0 && config->waiting_max > 0);
    HZP_ASSERT(config->prefill_rows_max >= 0);
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
    s->wait_room = config->waiting_max + config->running_max;
    s->wait = hzp_xcalloc((size_t)s->wait_room, sizeof(struct hzp_request *));
    s->growth = hzp_xcalloc((size_t)config->running_max, sizeof(*s->growth));
    hzp_admission_create(config->admission, hzp_kvpool_pages(pool), s->page_rows, &s->admission);
    hzp_budget_init(&s->budget);
    pthread_mutex_init(&s->lock, NULL);
    *ret = s;
    return HZP_OK;
}

struct hzp_source *hzp_scheduler_source(struct hzp_scheduler *s)
{
    return &s->source;
}

/* ---- submitting: any thread ---- */

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
    struct hzp_request_limits limits = {.model = model,
                                        .positions = s->model->positions,
                                        .kv_pages = hzp_kvpool_pages(s->pool),
                                        .page_rows = s->page_rows,
                                        .prompt_max = s->config.waiting_tokens_max,
                                        .edits_max = s->config.edits_max};
    HZP_TRY(hzp_request_check(rq, &limits, reterr));
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

void hzp_scheduler_bound_rows(struct hzp_scheduler *s, int32_t rows)
{
    atomic_store_explicit(&s->rows_bound, rows, memory_order_relaxed); /* one number, no more */
}

const struct hzp_budget *hzp_scheduler_budget(const struct hzp_scheduler *s)
{
    return &s->budget;
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
    ret->waiting = s->waiting + s->pushed_back;
    ret->waiting_tokens = s->waiting_tokens;
    ret->refused = s->refused;
    pthread_mutex_unlock(&s->lock);
}

static bool busy(struct hzp_source *source)
{
    struct hzp_scheduler *s = HZP_CONTAINER_OF(source, struct hzp_scheduler, source);
    pthread_mutex_lock(&s->lock);
    bool any = s->waiting > 0 || s->pushed_back > 0 || s->running > 0;
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
    s->now.kv_taken = kv.taken;
    s->now.kv_peak = hzp_admission_peak(s->admission);
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

static void release_pages(struct hzp_scheduler *s, struct hzp_seq *seq)
{
    hzp_kvpool_release(s->pool, seq->page, seq->taken);
    seq->used = false;
}

/* The i-th oldest running sequence runs no more; its pages are free as soon as no step reads them. */
static struct hzp_request *leave_running(struct hzp_scheduler *s, int32_t i)
{
    struct hzp_seq *seq = &s->seq[s->order[i]];
    struct hzp_request *rq = seq->rq;
    s->running--;
    s->left = true;
    memmove(s->order + i, s->order + i + 1, (size_t)(s->running - i) * sizeof(*s->order));
    if (s->turn > i)
        s->turn--;
    seq->rq = NULL;
    if (seq->step <= s->ended)
        release_pages(s, seq);
    return rq;
}

static struct hzp_growth growth_of(const struct hzp_request *rq)
{
    int32_t drawn = atomic_load_explicit(&rq->out_count, memory_order_relaxed); /* our own */
    bool all = rq->ignore_eos && !rq->stop_ids;
    return (struct hzp_growth){.rows = rq->prompt_count + drawn,
                               .drawn = drawn,
                               .least = all ? rq->max_tokens : rq->min_tokens,
                               .most = rq->max_tokens};
}

static void end_running(struct hzp_scheduler *s, int32_t i, enum hzp_request_state state)
{
    struct hzp_request *rq = leave_running(s, i);
    struct hzp_growth growth = growth_of(rq);
    if (state != HZP_REQUEST_FAILED)
        hzp_admission_ended(s->admission, &growth, state == HZP_REQUEST_LENGTH);
    /* The pages are counted free before the client can see the end. */
    show_stats(s);
    end_request(s, rq, state);
}

/* The youngest that runs gives its pages up and waits before all who wait. */
static void push_back(struct hzp_scheduler *s)
{
    struct hzp_request *rq = leave_running(s, s->running - 1);
    HZP_ASSERT(s->wait_count < s->wait_room);
    s->wait_head = (s->wait_head + s->wait_room - 1) % s->wait_room;
    s->wait[s->wait_head] = rq;
    s->wait_count++;
    s->now.pushed_back++;
    rq->pushes++;
    rq->pushed_back = true;
    pthread_mutex_lock(&s->lock);
    s->pushed_back++;
    pthread_mutex_unlock(&s->lock);
    atomic_store(&rq->state, HZP_REQUEST_WAITING);
}

static struct hzp_request *wait_at(const struct hzp_scheduler *s, int32_t i)
{
    return s->wait[(s->wait_head + i) % s->wait_room];
}

/* Takes what was submitted into the queue that only this thread sees. */
static void absorb(struct hzp_scheduler *s)
{
    struct hzp_request *rq;
    while ((rq = hzp_ring_pop(s->submitted)) != NULL) {
        HZP_ASSERT(s->wait_count < s->wait_room);
        s->wait[(s->wait_head + s->wait_count++) % s->wait_room] = rq;
    }
}

static void leave_queue(struct hzp_scheduler *s, const struct hzp_request *rq)
{
    pthread_mutex_lock(&s->lock);
    if (rq->pushed_back) {
        s->pushed_back--;
    } else {
        s->waiting--;
        s->waiting_tokens -= rq->prompt_count;
    }
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
            s->wait[(s->wait_head + kept++) % s->wait_room] = rq;
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
    free(s->growth);
    hzp_admission_destroy(s->admission);
    free(s);
}

/* ---- filling a step ---- */

/* Looks at who runs, for admission: again only if the answer may have changed, or every so often. */
static void look_ahead(struct hzp_scheduler *s, uint64_t number)
{
    const struct hzp_request *head = s->wait_count ? wait_at(s, 0) : NULL;
    if (number < s->look_next && (!head || (head == s->looked_for && !s->left)))
        return;
    s->look_next = number + LOOK_EVERY;
    s->looked_for = head;
    s->left = false;
    for (int32_t i = 0; i < s->running; i++)
        s->growth[i] = growth_of(s->seq[s->order[i]].rq);
    hzp_admission_look(s->admission, s->growth, s->running);
}

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
        struct hzp_growth growth = growth_of(rq);
        if (!hzp_admission_fits(s->admission, &growth))
            return;
        hzp_admission_add(s->admission, &growth);
        s->wait_head = (s->wait_head + 1) % s->wait_room;
        s->wait_count--;
        struct hzp_seq *seq = &s->seq[i];
        *seq = (struct hzp_seq){
            .rq = rq, .used = true, .page = seq->page, .prompt_end = growth.rows};
        s->order[s->running++] = i;
        leave_queue(s, rq);
        if (!rq->pushed_back) {
            s->now.admitted++;
            rq->admitted_ns = s->clock_ns;
        }
        rq->pushed_back = false;
        atomic_store(&rq->state, HZP_REQUEST_RUNNING);
    }
}

/* Every token it may generate is drawn once the steps formed so far have ended. */
static bool complete(const struct hzp_seq *seq)
{
    return seq->fed >= seq->rq->prompt_count + HZP_MAX(seq->rq->max_tokens, 1) - 1;
}

/* True: pages come back when the steps under way end. */
static bool pages_to_come(const struct hzp_scheduler *s)
{
    for (int32_t i = 0; i < s->config.running_max; i++) {
        const struct hzp_seq *seq = &s->seq[i];
        if (seq->used && seq->taken && (!seq->rq || complete(seq)))
            return true;
    }
    return false;
}

static bool has_page(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    return seq->taken * s->page_rows > seq->fed;
}

/* Every sequence gets the page of its next row, oldest first, if need be from the youngest.  Those
 * that still lack one stand still: all older ones have theirs. */
static void secure_pages(struct hzp_scheduler *s)
{
    for (int32_t i = 0; i < s->running; i++) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
        if (complete(seq) || has_page(s, seq))
            continue;
        int32_t page = hzp_kvpool_take(s->pool);
        while (page < 0 && i < s->running - 1 && !pages_to_come(s)) {
            push_back(s);
            page = hzp_kvpool_take(s->pool);
        }
        if (page >= 0)
            seq->page[seq->taken++] = page;
    }
}

static bool decoding(const struct hzp_seq *seq)
{
    return seq->fed >= seq->prompt_end;
}

static struct hzp_part *part_of(struct hzp_seq *seq, uint64_t step)
{
    return &seq->part[step % 2];
}

/* Opens the sequence's segment for `rows` more rows and takes the pages they need. */
static struct hzp_part *open_segment(struct hzp_scheduler *s, struct hzp_step *step, struct hzp_seq *seq,
                                 int32_t rows, bool decode)
{
    struct hzp_part *part = part_of(seq, step->number);
    while (seq->taken * s->page_rows < seq->fed + rows)
        seq->page[seq->taken++] = hzp_kvpool_take(s->pool);
    int32_t *page = hzp_batch_add_segment(step->batch, seq->fed, decode);
    memcpy(page, seq->page, (size_t)seq->taken * sizeof(*page));
    *part = (struct hzp_part){.step = step->number, .pos0 = seq->fed, .rows = rows,
                          .logit0 = step->batch->logits};
    seq->fed += rows;
    seq->step = step->number;
    step->rows_left -= rows;
    /* Penalties count every token drawn so far: the next draw waits for this one. */
    if (hzp_edits_grow(seq->rq->edits) && decoding(seq))
        step->settle = HZP_MAX(step->settle, HZP_SETTLE_SERVING);
    return part;
}

static int32_t slot_of(const struct hzp_scheduler *s, const struct hzp_seq *seq, int32_t position)
{
    return seq->page[position / s->page_rows] * s->page_rows + position % s->page_rows;
}

/* Edits that a draw of this sequence adds to the step. */
static int32_t draw_edits(const struct hzp_seq *seq)
{
    return hzp_edits_count(seq->rq->edits);
}

/* The row's logits draw the token at `position`. */
static void want_draw(struct hzp_batch *batch, struct hzp_seq *seq, struct hzp_part *part, int32_t row,
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
static void want_given(struct hzp_batch *batch, struct hzp_part *part, int32_t tops, int32_t row,
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
        const struct hzp_seq *seq = &s->seq[s->order[i]];
        if (!decoding(seq) || complete(seq) || !has_page(s, seq))
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
static int32_t drawn_by(struct hzp_seq *seq, const struct hzp_step *step)
{
    if (!step->under_way)
        return -1;
    const struct hzp_part *part = part_of(seq, step->number - 1);
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
            struct hzp_seq *seq = &s->seq[s->chosen[k]];
            int32_t logit = seq->step == step->number ? 0 : drawn_by(seq, step), at = seq->fed, row;
            if (seq->step == step->number || (logit < 0) != known)
                continue;
            struct hzp_part *part = open_segment(s, step, seq, 1, true);
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

/* How many of the rows that come in pieces fit: at most `room` rows, the pages there are, and the
 * logits they want. */
static int32_t piece_rows(const struct hzp_scheduler *s, const struct hzp_batch *batch,
                          const struct hzp_seq *seq, int32_t room)
{
    const struct hzp_request *rq = seq->rq;
    int32_t left = seq->prompt_end - seq->fed;
    int32_t rows = HZP_MIN(left, room);
    int64_t stored = (int64_t)(seq->taken + hzp_kvpool_free_pages(s->pool)) * s->page_rows;
    rows = (int32_t)HZP_MIN(rows, stored - seq->fed);
    int32_t logits = batch->max.logits_max - batch->logits;
    if (rq->prompt_logprobs)
        rows = HZP_MIN(rows, logits);
    if (rows == left && rq->max_tokens > 0 &&
        (!logits || batch->edits + draw_edits(seq) > batch->max.edits_max))
        rows--; /* the last row wants to draw: another step */
    return rows;
}

static void add_piece(struct hzp_scheduler *s, struct hzp_step *step, struct hzp_seq *seq, int32_t rows)
{
    const struct hzp_request *rq = seq->rq;
    int32_t prompt = rq->prompt_count;
    struct hzp_part *part = open_segment(s, step, seq, rows, false);
    for (int32_t p = part->pos0; p < seq->fed; p++) {
        int32_t token = p < prompt ? rq->prompt[p] : rq->out[p - prompt].token;
        int32_t row = hzp_batch_add_row(step->batch, token, slot_of(s, seq, p));
        /* What was told of the prompt stays told, by the version that told it. */
        if (p + 1 < prompt && rq->prompt_logprobs && p >= rq->computed)
            want_given(step->batch, part, rq->tops, row, rq->prompt[p + 1]);
        if (p + 1 == seq->prompt_end && rq->max_tokens > 0)
            want_draw(step->batch, seq, part, row, p + 1);
    }
}

/* Rows of the whole step with which the gaps of those who decode stay within their goal; 0: there is
 * none, or nobody does. */
static int32_t rows_within_goal(const struct hzp_step *step, int32_t decodes)
{
    double reads = 0;
    for (int32_t r = 0; r < step->batch->rows; r++)
        reads += step->batch->pos[r] + 1;
    int32_t rows = hzp_split_rows_within(step->split, decodes, reads, PROMPT_DEPTH,
                                         PROMPT_ROWS_MIN);
    return rows == INT32_MAX ? 0 : decodes + rows;
}

/* Rows of prompts in this step: what the budget leaves beside `decodes`. */
static int32_t prompt_room(struct hzp_scheduler *s, const struct hzp_step *step, int32_t decodes)
{
    if (step->rows_left < 1)
        return 0;
    int32_t bound = decodes ? atomic_load_explicit(&s->rows_bound, memory_order_relaxed) : 0;
    int32_t goal = rows_within_goal(step, decodes);
    if (goal && (!bound || goal < bound))
        bound = goal;
    if (decodes && s->config.prefill_rows_max) {
        int32_t room = HZP_MIN(step->rows_left, s->config.prefill_rows_max);
        return bound ? HZP_MIN(room, HZP_MAX(bound - decodes, 1)) : room;
    }
    struct hzp_budget_load load = {
        .decodes = decodes,
        .pressure = s->wait_count ? 1 : (double)s->running / s->config.running_max,
        .rows_max = decodes + step->rows_left,
        .bound = bound};
    return hzp_budget_rows(&s->budget, &load) - decodes;
}

static void add_prefills(struct hzp_scheduler *s, struct hzp_step *step, int32_t decodes)
{
    struct hzp_batch *batch = step->batch;
    int32_t room = prompt_room(s, step, decodes);
    s->now.budget_rows = decodes + room;
    for (int32_t i = 0; i < s->running && room > 0; i++) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
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

static void tell_wait(struct hzp_waits *waits, const struct hzp_request *rq, int32_t left,
                      int32_t now)
{
    /* Who is computed anew has had its first token. */
    if (waits->count < HZP_WAITS_MAX &&
        !atomic_load_explicit(&rq->out_count, memory_order_relaxed)) /* our own */
        waits->of[waits->count++] = (struct hzp_wait){rq->submitted_ns, left, now};
}

/* Prompts that are not through, in the order in which they will be: the split leaves them time. */
static void tell_waits(const struct hzp_scheduler *s, struct hzp_step *step)
{
    struct hzp_waits *waits = &step->waits;
    waits->running = s->running;
    waits->places = s->config.running_max;
    for (int32_t i = 0; i < s->running; i++) {
        const struct hzp_seq *seq = &s->seq[s->order[i]];
        int32_t rows = seq->step == step->number ? seq->part[step->number % 2].rows : 0;
        if (seq->fed - rows < seq->prompt_end)
            tell_wait(waits, seq->rq, seq->prompt_end - (seq->fed - rows), rows);
    }
    for (int32_t i = 0; i < s->wait_count; i++)
        tell_wait(waits, wait_at(s, i), wait_at(s, i)->prompt_count, 0);
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
    look_ahead(s, step->number);
    admit(s);
    secure_pages(s);

    struct hzp_batch *batch = step->batch;
    if (s->running && step->version) {
        HZP_ASSERT(batch->max.page_stride >= s->page_stride);
        add_prefills(s, step, add_decodes(s, step));
        tell_waits(s, step);
        step->kv = hzp_kvpool_layers(s->pool);
        if (batch->rows)
            count_step(s, batch->rows);
    }
    show_stats(s);
    return s->running && batch->rows > 0;
}

/* ---- what a step brought ---- */

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
    if (status >= 0)
        hzp_budget_learn(&s->budget, step->batch ? step->batch->rows : 0, step->served_ns);
    int64_t staleness = hzp_step_staleness(s, step);
    for (int32_t i = 0; i < s->running;) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
        const struct hzp_part *part = part_of(seq, step->number);
        enum hzp_request_state state = HZP_REQUEST_RUNNING;
        if (part->step == step->number && part->rows)
            state = hzp_take_results(s, step, seq, part, staleness);
        if (state == HZP_REQUEST_RUNNING)
            i++;
        else
            end_running(s, i, state);
    }
    show_stats(s);
}
