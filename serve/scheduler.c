/* SPDX-License-Identifier: Apache-2.0 */
/* serve/scheduler.c - creates and destroys the scheduler, accepts submitted requests from any
 * thread, and implements the loop's source: steps are filled in queue.c and fill.c, results are
 * handed on in results.c. */
#include "base/ring.h"
#include "serve/scheduler_state.h"

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer);
static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome);
static bool busy(struct hzp_source *source);
static uint64_t due_ns(struct hzp_source *source);

int hzp_scheduler_create(const struct hzp_scheduler_config *config, const struct hzp_model *model,
                         struct hzp_kvpool *pool, struct hzp_scheduler **ret)
{
    HZP_ASSERT(config->running_max > 0 && config->waiting_max > 0);
    HZP_ASSERT(config->prefill_rows_max >= 0);
    struct hzp_scheduler *s = hzp_xcalloc(1, sizeof(*s));
    s->source = (struct hzp_source){
        .name = "serve", .offer = offer, .deliver = deliver, .busy = busy, .due_ns = due_ns};
    s->config = *config;
    s->model = model;
    s->pool = pool;
    s->page_rows = hzp_kvpool_page_rows(pool);
    s->page_stride = HZP_DIV_UP(model->positions, s->page_rows);
    s->submitted = hzp_ring_create(config->waiting_max + config->running_max);
    s->seq = hzp_xcalloc((size_t)config->running_max, sizeof(*s->seq));
    s->page_memory =
        hzp_xcalloc((size_t)config->running_max * (size_t)s->page_stride, sizeof(*s->page_memory));
    for (int32_t i = 0; i < config->running_max; i++)
        s->seq[i].page = s->page_memory + (size_t)i * (size_t)s->page_stride;
    s->order = hzp_xcalloc((size_t)config->running_max, sizeof(*s->order));
    if (config->lookup_max)
        s->lookup = hzp_xcalloc((size_t)config->running_max, sizeof(*s->lookup));
    if (config->history)
        s->history = hzp_xcalloc(1, sizeof(*s->history));
    s->chosen = hzp_xcalloc((size_t)config->running_max, sizeof(*s->chosen));
    s->news = hzp_xcalloc((size_t)config->running_max, sizeof(struct hzp_request *));
    s->wait_room = 2 * config->waiting_max + 3 * config->running_max;
    s->wait = hzp_xcalloc((size_t)s->wait_room, sizeof(struct hzp_request *));
    s->later = hzp_xcalloc(2 * (size_t)config->waiting_max, sizeof(struct hzp_request *));
    s->growth = hzp_xcalloc((size_t)config->running_max, sizeof(*s->growth));
    hzp_admission_create(config->admission, hzp_kvpool_pages(pool), s->page_rows, &s->admission);
    if (hzp_kvpool_backing(pool)) {
        struct hzp_kvpool_stats kv;
        hzp_kvpool_read_stats(pool, &kv);
        hzp_admission_create(config->admission, kv.backs, s->page_rows, &s->windows);
        hzp_admission_bound(
            s->windows, hzp_kvpool_window_pages(hzp_kvpool_window(model->config), s->page_rows));
    }
    s->warm.seq.page = hzp_xcalloc((size_t)s->page_stride, sizeof(*s->warm.seq.page));
    hzp_prefix_create(pool, config->prefix_cache, config->prefix_stale_max, &s->prefix);
    hzp_prefix_use_tier(s->prefix, config->tier);
    hzp_budget_init(&s->budget);
    hzp_rounds_init(&s->rounds);
    s->config.guess_every = config->guess_every ? config->guess_every : 256;
    hzp_lock_init(&s->lock, HZP_LOCK_SCHEDULER);
    *ret = s;
    return HZP_OK;
}

struct hzp_source *hzp_scheduler_source(struct hzp_scheduler *s)
{
    return &s->source;
}

/* ---- submitting: any thread ---- */

/* Whether the queue has room for all of them; under the lock, so that stop and the bounds are
 * exact. */
static int check_room(const struct hzp_scheduler *s, struct hzp_request *const *rq, int32_t count,
                      struct hzp_err_text *reterr)
{
    int64_t tokens = s->waiting_tokens;
    int32_t ordinary = 0;
    for (int32_t i = 0; i < count; i++)
        ordinary += !rq[i]->background;
    for (int32_t i = 0; i < count; i++)
        tokens += rq[i]->background ? 0 : rq[i]->prompt_count;
    for (int32_t i = 0; i < count; i++)
        if (s->hurry || (s->stopping && !rq[i]->again))
            return hzp_fail(reterr, HZP_ECANCELED, "the server is stopping");
    if (ordinary < count && s->background > s->config.running_max - (count - ordinary))
        return hzp_fail(reterr, HZP_EBUSY, "%d background requests wait", s->background);
    if (s->waiting > s->config.waiting_max - ordinary)
        return hzp_fail(reterr, HZP_EBUSY, "the queue is full: %d requests wait", s->waiting);
    if (tokens > s->config.waiting_tokens_max)
        return hzp_fail(reterr, HZP_EBUSY, "the queue is full: %lld prompt tokens wait",
                        (long long)s->waiting_tokens);
    return HZP_OK;
}

/* Under the lock. */
static void enqueue(struct hzp_scheduler *s, struct hzp_request *rq)
{
    atomic_store(&rq->let_go, false);
    atomic_store(&rq->state, HZP_REQUEST_WAITING);
    s->background += rq->background;
    s->waiting += !rq->background;
    s->waiting_tokens += rq->background ? 0 : rq->prompt_count;
    int r = hzp_ring_push(s->submitted, rq);
    HZP_ASSERT(r == HZP_OK); /* the ring has places for as many as check_room admits */
}

int hzp_scheduler_check(const struct hzp_scheduler *s, const struct hzp_request *rq,
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
    return hzp_demands_check(&rq->demands, s->model->weights, s->config.pin_ns, reterr);
}

static int prepare(const struct hzp_scheduler *s, struct hzp_request *rq,
                   struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_scheduler_check(s, rq, reterr));
    struct hzp_edit_rules rules = hzp_request_edits(rq, s->model->config);
    int r = hzp_edits_create(&rules, &rq->edits);
    if (r == HZP_EINVAL)
        return hzp_fail(reterr, r, "no token of the vocabulary may begin the answer");
    if (r < 0)
        return hzp_fail(reterr, HZP_EBUSY, "no memory for this request now");
    int32_t drawn = atomic_load(&rq->out_count); /* by another scheduler */
    for (int32_t i = 0; i < drawn; i++)
        hzp_edits_generated(rq->edits, rq->out[i].token, false);
    if (!rq->submitted_ns)
        rq->submitted_ns = hzp_now_ns();
    return HZP_OK;
}

int hzp_scheduler_submit_all(struct hzp_scheduler *s, struct hzp_request *const *rq, int32_t count,
                             struct hzp_err_text *reterr)
{
    int r = HZP_OK;
    for (int32_t i = 0; i < count && r == HZP_OK; i++)
        r = prepare(s, rq[i], reterr);
    if (r == HZP_OK) {
        hzp_lock_take(&s->lock);
        r = check_room(s, rq, count, reterr);
        for (int32_t i = 0; i < count && r == HZP_OK; i++)
            enqueue(s, rq[i]);
        if (r == HZP_EBUSY && !rq[0]->again && !rq[0]->background) /* else tried again later */
            s->refused += (uint64_t)count;
        hzp_lock_release(&s->lock);
    }
    for (int32_t i = 0; i < count && r < 0; i++) {
        hzp_edits_destroy(rq[i]->edits);
        rq[i]->edits = NULL;
    }
    return r;
}

int hzp_scheduler_submit(struct hzp_scheduler *s, struct hzp_request *rq,
                         struct hzp_err_text *reterr)
{
    return hzp_scheduler_submit_all(s, &rq, 1, reterr);
}

void hzp_scheduler_stop(struct hzp_scheduler *s, bool hurry)
{
    HZP_LOCKED(&s->lock);
    s->stopping = true;
    s->hurry |= hurry;
}

void hzp_scheduler_read_stats(struct hzp_scheduler *s, struct hzp_scheduler_stats *ret)
{
    HZP_LOCKED(&s->lock);
    *ret = s->shown;
    ret->waiting = s->waiting + s->preempted + s->shown.awaiting;
    ret->waiting_tokens = s->waiting_tokens;
    ret->refused = s->refused;
    ret->background_waiting = s->background;
}

static bool busy(struct hzp_source *source)
{
    struct hzp_scheduler *s = HZP_CONTAINER_OF(source, struct hzp_scheduler, source);
    HZP_LOCKED(&s->lock);
    return s->waiting > 0 || s->preempted > 0 || s->running > 0 || s->awaiting > 0 ||
           s->background > 0;
}

static uint64_t due_ns(struct hzp_source *source)
{
    return hzp_later_due(HZP_CONTAINER_OF(source, struct hzp_scheduler, source));
}

void hzp_scheduler_abort(struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    hzp_scheduler_stop(s, true);
    s->ended = UINT64_MAX;
    hzp_prefix_ended(s->prefix, s->ended);
    hzp_fail_all(s);
    hzp_tell_news(s);
    hzp_show_stats(s);
}

void hzp_scheduler_destroy(struct hzp_scheduler *s)
{
    if (!s)
        return;
    hzp_scheduler_abort(s);
    for (int32_t i = 0; i < s->config.running_max; i++)
        if (s->seq[i].used)
            hzp_release_pages(s, &s->seq[i]);
    hzp_rewarm_free(s);
    hzp_prefix_destroy(s->prefix);
    hzp_ring_destroy(s->submitted);
    hzp_lock_fini(&s->lock);
    free(s->seq);
    free(s->page_memory);
    free(s->order);
    free(s->lookup);
    free(s->history);
    free(s->chosen);
    free(s->news);
    free(s->wait);
    free(s->later);
    free(s->growth);
    hzp_admission_destroy(s->admission);
    hzp_admission_destroy(s->windows);
    free(s);
}

/* ---- steps ---- */

/* How long a row takes in a step of many. */
static double prompt_row_ns(const struct hzp_room *room)
{
    enum { ROWS = 128 };
    struct hzp_rows_curve curve;
    hzp_rows_curve_of(&room->time->rows, &curve);
    return hzp_rows_curve_ns(&curve, ROWS) / ROWS;
}

static bool offer(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                  struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_scheduler *s = HZP_CONTAINER_OF(source, struct hzp_scheduler, source);
    s->clock_ns = step->begin_ns;
    hzp_lock_take(&s->lock);
    bool hurry = s->hurry;
    s->drains = s->stopping;
    hzp_lock_release(&s->lock);
    if (hurry)
        hzp_fail_all(s);
    if (step->version && step->version->record.id != s->version) {
        s->version = step->version->record.id;
        hzp_rewarm_plan(s);
        hzp_prefix_serve(s->prefix, s->version, step->version->record.parent);
        hzp_queue_restart(s, s->version);
        hzp_swap(s, step->version);
    }
    hzp_trial_turn(s, step);
    s->row_ns = prompt_row_ns(room);
    hzp_prefix_turn(s->prefix);
    hzp_queue_turn(s, step);
    hzp_tell_news(s);
    if (s->running && step->version)
        hzp_fill_step(s, step, room, offer);
    else if (step->version)
        hzp_rewarm_step(s, step, room, offer);
    hzp_show_stats(s);
    return offer->batch->rows > 0;
}

static void deliver(struct hzp_source *source, const struct hzp_step *step,
                    const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    hzp_assert_engine_thread();
    struct hzp_scheduler *s = HZP_CONTAINER_OF(source, struct hzp_scheduler, source);
    s->ended = step->number;
    hzp_prefix_ended(s->prefix, s->ended);
    s->clock_ns = outcome->end_ns;
    hzp_rewarm_ended(s);
    for (int32_t i = 0; i < s->config.running_max; i++)
        if (s->seq[i].used && !s->seq[i].rq && s->seq[i].step <= s->ended)
            hzp_release_pages(s, &s->seq[i]);
    if (outcome->status < 0) {
        /* A device failure is final: all requests fail, because no result can arrive any more. */
        hzp_scheduler_stop(s, true);
        hzp_fail_all(s);
    }
    hzp_rounds_ended(&s->rounds, step->number, offer->batch->rows, outcome->end_ns);
    struct hzp_results results = {.batch = offer->batch,
                                  .version = step->version ? step->version->record.id : 0,
                                  .at_ns = outcome->end_ns,
                                  .staleness = hzp_step_staleness(s, step)};
    for (int32_t i = 0; i < s->running;) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
        const struct hzp_part *part = hzp_seq_part(seq, step->number);
        enum hzp_request_state state = HZP_REQUEST_RUNNING;
        if (part->step == step->number && part->rows)
            state = hzp_take_results(s, &results, seq, part);
        if (state != HZP_REQUEST_RUNNING) {
            hzp_end_running(s, i, state);
            continue;
        }
        hzp_pass_ended(s, seq);
        i++;
    }
    hzp_tell_news(s);
    hzp_show_stats(s);
}
