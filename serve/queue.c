/* SPDX-License-Identifier: Apache-2.0 */
/* serve/queue.c - waiting and running requests: admission, KV pages, preemption, and ending
 * requests.
 *
 * Thread: engine. */
#include "base/ring.h"
#include "serve/scheduler_state.h"

/* While no sequence ends, the prediction for the running sequences changes little from step to
 * step, so it is recomputed only every LOOK_EVERY steps. */
enum { LOOK_EVERY = 8 };

void hzp_show_stats(struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(s->pool, &kv);
    s->now.kv_backs = kv.backs;
    s->now.kv_backs_held = kv.backs_held;
    s->now.kv_backs_spare = kv.backs_spare;
    s->now.running = s->running;
    s->now.background = s->running - s->ordinary;
    struct hzp_prefix_stats prefix;
    hzp_prefix_read_stats(s->prefix, &prefix);
    s->now.kv_pages = kv.pages;
    s->now.kv_taken = kv.taken - prefix.idle;
    s->now.kv_idle = prefix.idle;
    s->now.kv_peak = hzp_admission_peak(s->admission);
    s->now.waiting_weights = s->later_count;
    s->now.awaiting = s->awaiting;
    s->now.awaiting_tokens = s->awaiting_tokens;
    if (s->config.tier)
        hzp_tier_read_stats(s->config.tier, &s->now.tier);
    hzp_count_pins(s);
    HZP_LOCKED(&s->lock);
    s->shown = s->now;
}

void hzp_tell_news(struct hzp_scheduler *s)
{
    int32_t last = s->news_count - 1;
    while (last >= 0 && !s->news[last]->wake)
        last--;
    for (int32_t i = 0; i < s->news_count; i++) {
        struct hzp_request *rq = s->news[i];
        if (rq->wake) /* the last one's call says nothing to those who are called otherwise */
            rq->wake(rq->wake_ctx, i < last && rq->wake == s->news[last]->wake);
        if (hzp_request_final(rq))
            atomic_store(&rq->let_go, true);
    }
    s->news_count = 0;
}

void hzp_add_news(struct hzp_scheduler *s, struct hzp_request *rq)
{
    if (s->news_count == s->config.running_max)
        hzp_tell_news(s);
    s->news[s->news_count++] = rq;
}

/* Makes the request final; its creator owns it again once let_go is set. */
/* Which random numbers it is drawn with, for the history. */
static uint64_t draws_of(const struct hzp_request *rq)
{
    return rq->sampling.seed * 0x9E3779B97F4A7C15u + rq->sampling.choice;
}

static void end_request(struct hzp_scheduler *s, struct hzp_request *rq,
                        enum hzp_request_state state)
{
    struct hzp_prefix_tokens tokens = hzp_request_tokens(rq);
    if (s->history && state != HZP_REQUEST_FAILED)
        hzp_history_keep(s->history, &tokens, draws_of(rq));
    s->now.finished[state] += !rq->own;
    s->now.aborted += !rq->own && rq->changed == HZP_CHANGED_SWAP;
    s->now.pins_ended += rq->changed == HZP_CHANGED_PIN;
    s->bounded -= rq->demands.max_staleness >= 0;
    hzp_unpin(s, rq);
    if (!rq->on_trial && rq->not_finite)
        s->now.not_finite++;
    else if (state == HZP_REQUEST_STOPPED || state == HZP_REQUEST_LENGTH)
        s->now.not_finite = 0;
    if (rq->trial && !rq->own && (rq->not_finite || atomic_load(&rq->out_count)))
        hzp_trials_note(s->config.trials, rq->trial, rq->on_trial,
                        &(struct hzp_trial_side){.ended = !rq->not_finite,
                                                 .failed = rq->not_finite,
                                                 .cut = state == HZP_REQUEST_LENGTH});
    atomic_store(&rq->state, state);
    hzp_add_news(s, rq);
}

void hzp_pass_pages(struct hzp_scheduler *s, struct hzp_seq *seq, int32_t position)
{
    int32_t first = hzp_kvpool_first(s->pool, position);
    for (; seq->passed < HZP_MIN(first, seq->taken); seq->passed++)
        hzp_kvpool_pass(s->pool, seq->page[seq->passed], seq->passed < seq->kept);
}

/* The position of its next row, when the results of all steps formed so far are known. */
static int32_t next_position(const struct hzp_seq *seq)
{
    return seq->fed - seq->guesses;
}

void hzp_pass_ended(struct hzp_scheduler *s, struct hzp_seq *seq)
{
    hzp_assert_engine_thread();
    int32_t position = next_position(seq);
    for (int i = 0; i < HZP_COUNT(seq->part); i++)
        if (seq->part[i].step > s->ended && seq->part[i].rows)
            position = HZP_MIN(position, seq->part[i].pos0);
    hzp_pass_pages(s, seq, position);
}

/* It holds none of the pages that it has from the cache. */
static void pass_kept(struct hzp_scheduler *s, struct hzp_seq *seq)
{
    for (; seq->passed < seq->kept; seq->passed++)
        hzp_kvpool_pass(s->pool, seq->page[seq->passed], true);
}

void hzp_release_pages(struct hzp_scheduler *s, struct hzp_seq *seq)
{
    hzp_assert_engine_thread();
    pass_kept(s, seq);
    hzp_prefix_release(s->prefix, seq->page, seq->kept, seq->step);
    hzp_kvpool_release(s->pool, seq->page + seq->kept, seq->taken - seq->kept);
    seq->used = false;
}

/* Removes the i-th oldest running sequence; its pages are released once no in-flight step reads
 * them. */
static struct hzp_request *leave_running(struct hzp_scheduler *s, int32_t i)
{
    struct hzp_seq *seq = &s->seq[s->order[i]];
    struct hzp_request *rq = seq->rq;
    s->running--;
    s->ordinary -= !rq->background;
    s->left = true;
    memmove(s->order + i, s->order + i + 1, (size_t)(s->running - i) * sizeof(*s->order));
    if (s->turn > i)
        s->turn--;
    seq->rq = NULL;
    if (seq->step <= s->ended)
        hzp_release_pages(s, seq);
    return rq;
}

static struct hzp_growth growth_of(const struct hzp_request *rq)
{
    /* relaxed: only this thread writes it */
    int32_t drawn = atomic_load_explicit(&rq->out_count, memory_order_relaxed);
    bool all = rq->ignore_eos && !rq->stop_ids && !rq->tokens;
    return (struct hzp_growth){.rows = rq->prompt_count + drawn,
                               .drawn = drawn,
                               .least = all ? rq->max_tokens : rq->min_tokens,
                               .most = rq->max_tokens};
}

void hzp_end_running(struct hzp_scheduler *s, int32_t i, enum hzp_request_state state)
{
    hzp_assert_engine_thread();
    struct hzp_request *rq = leave_running(s, i);
    struct hzp_growth growth = growth_of(rq);
    bool cut = state == HZP_REQUEST_LENGTH || state == HZP_REQUEST_CHANGED;
    if (state != HZP_REQUEST_FAILED && !rq->background) { /* others' lengths are not like theirs */
        hzp_admission_ended(s->admission, &growth, cut);
        if (s->windows)
            hzp_admission_ended(s->windows, &growth, cut);
    }
    /* Update the statistics first, so that a client that sees the end also sees the pages free. */
    hzp_show_stats(s);
    end_request(s, rq, state);
}

struct hzp_request *hzp_wait_at(const struct hzp_scheduler *s, int32_t i)
{
    return s->wait[(s->wait_head + i) % s->wait_room];
}

int32_t hzp_wait_ordinary(const struct hzp_scheduler *s)
{
    int32_t n = s->wait_count;
    while (n > 0 && hzp_wait_at(s, n - 1)->background)
        n--;
    return n;
}

static void swap_waiting(struct hzp_scheduler *s, int32_t i, int32_t j)
{
    struct hzp_request *first = hzp_wait_at(s, i);
    s->wait[(s->wait_head + i) % s->wait_room] = hzp_wait_at(s, j);
    s->wait[(s->wait_head + j) % s->wait_room] = first;
}

/* The youngest running request, or background request, releases its pages and moves to the front of
 * the queue, or of its background requests. */
static void preempt(struct hzp_scheduler *s)
{
    struct hzp_request *rq = leave_running(s, s->running - 1);
    HZP_ASSERT(s->wait_count < s->wait_room);
    s->wait_head = (s->wait_head + s->wait_room - 1) % s->wait_room;
    s->wait[s->wait_head] = rq;
    s->wait_count++;
    for (int32_t i = 1; rq->background && i < s->wait_count && !hzp_wait_at(s, i)->background; i++)
        swap_waiting(s, i - 1, i);
    s->now.preempted++;
    rq->preemptions++;
    rq->preempted = true;
    hzp_lock_take(&s->lock);
    s->preempted += !rq->background;
    s->background += rq->background;
    hzp_lock_release(&s->lock);
    atomic_store(&rq->state, HZP_REQUEST_WAITING);
}

/* When a request would have been submitted, had it no priority. */
static int64_t due(const struct hzp_request *rq)
{
    int64_t units = HZP_MAX(-HZP_PRIORITY_UNITS, HZP_MIN(rq->priority, HZP_PRIORITY_UNITS));
    return (int64_t)rq->submitted_ns + units * 1000000000;
}

/* Whether a request that arrives goes before one that waits.  Preempted requests stay in front. */
static bool overtakes(const struct hzp_request *rq, const struct hzp_request *waits)
{
    if (rq->background || waits->background)
        return !rq->background;
    return rq->priority < waits->priority && due(rq) < due(waits) && !waits->preempted;
}

void hzp_wait_add(struct hzp_scheduler *s, struct hzp_request *rq)
{
    HZP_ASSERT(s->wait_count < s->wait_room);
    int32_t i = s->wait_count++;
    for (; i > 0 && overtakes(rq, hzp_wait_at(s, i - 1)); i--)
        s->wait[(s->wait_head + i) % s->wait_room] = hzp_wait_at(s, i - 1);
    s->wait[(s->wait_head + i) % s->wait_room] = rq;
}

/* Moves submitted requests into the waiting queue, which only the engine thread accesses, or beside
 * it.  step NULL: none will run any more. */
static void absorb(struct hzp_scheduler *s, const struct hzp_step *step)
{
    struct hzp_request *rq;
    while ((rq = hzp_ring_pop(s->submitted)) != NULL) {
        s->bounded += rq->demands.max_staleness >= 0;
        if (step && !rq->background && hzp_may_wait(rq))
            hzp_later_add(s, rq, step);
        else
            hzp_wait_add(s, rq);
    }
}

bool hzp_take_place(struct hzp_scheduler *s, struct hzp_request *rq, bool awaits)
{
    hzp_assert_engine_thread();
    int32_t one = awaits ? 1 : -1;
    int64_t tokens = awaits ? rq->prompt_count : -rq->prompt_count;
    if (rq->awaits == awaits)
        return true;
    if (awaits && (s->awaiting == s->config.waiting_max ||
                   s->awaiting_tokens + tokens > s->config.waiting_tokens_max))
        return false;
    rq->awaits = awaits;
    s->awaiting += one;
    s->awaiting_tokens += tokens;
    HZP_LOCKED(&s->lock);
    s->waiting -= one;
    s->waiting_tokens -= tokens;
    return true;
}

static void leave_queue(struct hzp_scheduler *s, struct hzp_request *rq)
{
    if (!rq->preempted)
        hzp_take_place(s, rq, false);
    HZP_LOCKED(&s->lock);
    if (rq->background) {
        s->background--;
    } else if (rq->preempted) {
        s->preempted--;
    } else {
        s->waiting--;
        s->waiting_tokens -= rq->prompt_count;
    }
}

void hzp_end_waiting(struct hzp_scheduler *s, struct hzp_request *rq, enum hzp_request_state state)
{
    leave_queue(s, rq);
    end_request(s, rq, state);
}

/* The state in which the request ends now; NEW: it does not. */
static enum hzp_request_state end_of(const struct hzp_request *rq)
{
    /* relaxed: the flag publishes no other data */
    bool canceled = atomic_load_explicit(&rq->cancel, memory_order_relaxed);
    return canceled ? HZP_REQUEST_CANCELED : rq->verdict;
}

/* Ends requests that are canceled or have their verdict. */
static void cull_waiting(struct hzp_scheduler *s)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < s->wait_count; i++) {
        struct hzp_request *rq = hzp_wait_at(s, i);
        if (end_of(rq))
            hzp_end_waiting(s, rq, end_of(rq));
        else
            s->wait[(s->wait_head + kept++) % s->wait_room] = rq;
    }
    s->wait_count = kept;
}

static void cull_running(struct hzp_scheduler *s)
{
    for (int32_t i = s->running - 1; i >= 0; i--) {
        enum hzp_request_state end = end_of(s->seq[s->order[i]].rq);
        if (end)
            hzp_end_running(s, i, end);
    }
}

void hzp_fail_all(struct hzp_scheduler *s)
{
    hzp_assert_engine_thread();
    absorb(s, NULL);
    while (s->running)
        hzp_end_running(s, s->running - 1, HZP_REQUEST_FAILED);
    for (int32_t i = 0; i < s->wait_count; i++)
        hzp_end_waiting(s, hzp_wait_at(s, i), HZP_REQUEST_FAILED);
    for (int32_t i = 0; i < s->later_count; i++)
        hzp_end_waiting(s, s->later[i], HZP_REQUEST_FAILED);
    s->wait_count = s->later_count = 0;
}

/* Recomputes the admission prediction if a sequence has left, the queue's head has changed, or
 * LOOK_EVERY steps have passed. */
static void look_ahead(struct hzp_scheduler *s, uint64_t number)
{
    const struct hzp_request *head = s->wait_count ? hzp_wait_at(s, 0) : NULL;
    if (number < s->look_next && (!head || (head == s->looked_for && !s->left)))
        return;
    s->look_next = number + LOOK_EVERY;
    s->looked_for = head;
    s->left = false;
    for (int32_t i = 0; i < s->running; i++)
        s->growth[i] = growth_of(s->seq[s->order[i]].rq);
    if (s->windows)
        hzp_admission_look(s->windows, s->growth, s->running);
    for (int32_t i = 0; i < s->running; i++)
        s->growth[i].rows -= s->seq[s->order[i]].spared * s->page_rows;
    hzp_admission_look(s->admission, s->growth, s->running);
}

/* Its tokens, and whose rows it may take over.  An embedding does not say that rows are stale. */
static struct hzp_prefix_tokens sought_tokens(const struct hzp_scheduler *s,
                                              const struct hzp_request *rq)
{
    struct hzp_prefix_tokens tokens = hzp_request_tokens(rq);
    tokens.oldest = rq->pooling ? s->version : hzp_demands_oldest(&rq->demands, s->version);
    return tokens;
}

/* Whole pages in which the rows before the last one lie: the last one is computed in any case.  The
 * cache has no pages that a request of another version could use. */
static int32_t pages_sought(const struct hzp_scheduler *s, const struct hzp_request *rq)
{
    bool all = hzp_request_tells_prompt(rq) || rq->pooling == HZP_POOLING_MEAN ||
               (rq->pin && rq->pin->record.id != s->version);
    return all ? 0 : (hzp_request_tokens(rq).count - 1) / s->page_rows;
}

/* Notes that the sequence has rows of an older version. */
static bool note_stale(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    uint64_t oldest = seq->kept ? hzp_prefix_oldest(s->prefix, seq->page[seq->kept - 1]) : 0;
    struct hzp_request *rq = seq->rq;
    if (!seq->kept || oldest >= s->version)
        return false;
    /* relaxed: an output published later shows them, and only this thread writes them */
    int32_t before = atomic_load_explicit(&rq->stale_tokens, memory_order_relaxed);
    int32_t tokens = HZP_MIN(seq->kept * s->page_rows, rq->prompt_count);
    if (!before || oldest < atomic_load_explicit(&rq->stale_version, memory_order_relaxed))
        atomic_store(&rq->stale_version, oldest);
    atomic_store(&rq->stale_tokens, HZP_MAX(before, tokens));
    return true;
}

/* Pages that the request would share with running sequences. */
static int32_t spared_pages(const struct hzp_scheduler *s, const struct hzp_request *rq)
{
    struct hzp_prefix_tokens tokens = sought_tokens(s, rq);
    int32_t used;
    if (!rq->pin && hzp_drawn(s, rq))
        return 0; /* its rows will be another version's */
    hzp_prefix_peek(s->prefix, &tokens, 0, pages_sought(s, rq), NULL, &used);
    return used;
}

/* The sequence takes the kept pages in place of its own, which hold no rows yet. */
static void take_prefix(struct hzp_scheduler *s, struct hzp_seq *seq)
{
    struct hzp_request *rq = seq->rq;
    struct hzp_prefix_tokens tokens = sought_tokens(s, rq);
    int32_t used, kept = seq->kept;
    hzp_kvpool_release(s->pool, seq->page + seq->kept, seq->taken - seq->kept);
    seq->kept =
        hzp_prefix_match(s->prefix, &tokens, seq->kept, pages_sought(s, rq), seq->page, &used);
    hzp_prefix_count(s->prefix, seq->page + kept, seq->kept - kept, 1);
    seq->taken = seq->kept;
    seq->spared += used;
    seq->fed = seq->kept * s->page_rows;
    hzp_pass_pages(s, seq, seq->fed);
    seq->prompt_version = s->version;
    int32_t found = HZP_MIN(seq->fed, rq->prompt_count), known = HZP_MIN(rq->computed, found);
    bool stale = note_stale(s, seq);
    if (!rq->preemptions && !seq->restarted) {
        s->now.prefix_hits += (uint64_t)(found - rq->cached);
        s->now.prefix_stale += stale ? (uint64_t)(found - rq->cached) : 0;
        rq->cached = found;
    }
    s->now.prompt_tokens += (uint64_t)(found - known);
    s->now.found_tokens += (uint64_t)(found - known);
    rq->computed = HZP_MAX(rq->computed, seq->fed);
}

bool hzp_seek_prefix(struct hzp_scheduler *s, struct hzp_seq *seq, bool take)
{
    hzp_assert_engine_thread();
    if (seq->fed != seq->kept * s->page_rows || hzp_seq_decodes(seq) || seq->step > s->ended ||
        seq->sought == hzp_prefix_additions(s->prefix))
        return false;
    struct hzp_prefix_tokens tokens = sought_tokens(s, seq->rq);
    int32_t used, most = pages_sought(s, seq->rq);
    if (hzp_prefix_peek(s->prefix, &tokens, seq->kept, most, seq->page, &used) == seq->kept) {
        seq->sought = hzp_prefix_additions(s->prefix);
        if (take)
            seq->fetch =
                hzp_prefix_fetch(s->prefix, &tokens, seq->kept, most, seq->page, s->row_ns);
        return false;
    }
    if (take)
        take_prefix(s, seq);
    return true;
}

/* An ordinary request waits for something that a background one may have: it is given up. */
static bool clear_background(struct hzp_scheduler *s, const struct hzp_request *rq, uint64_t number)
{
    if (rq->background || s->running == s->ordinary)
        return false;
    preempt(s);
    look_ahead(s, number);
    return true;
}

/* In the order of the queue: no request overtakes its head while that waits for pages. */
static void admit(struct hzp_scheduler *s, uint64_t number)
{
    while (s->wait_count) {
        struct hzp_request *rq = hzp_wait_at(s, 0);
        int32_t i = 0;
        if (s->running == s->config.running_max && !clear_background(s, rq, number))
            return;
        while (i < s->config.running_max && s->seq[i].used)
            i++;
        if (i == s->config.running_max)
            return; /* ended sequences still hold slots: their last steps are in flight */
        struct hzp_growth growth = growth_of(rq), predicted = growth;
        predicted.rows -= spared_pages(s, rq) * s->page_rows;
        if (!hzp_admission_fits(s->admission, &predicted) ||
            (s->windows && !hzp_admission_fits(s->windows, &growth))) {
            if (!clear_background(s, rq, number))
                return;
            continue;
        }
        hzp_admission_add(s->admission, &predicted);
        if (s->windows)
            hzp_admission_add(s->windows, &growth);
        s->wait_head = (s->wait_head + 1) % s->wait_room;
        s->wait_count--;
        struct hzp_seq *seq = &s->seq[i];
        *seq =
            (struct hzp_seq){.rq = rq, .used = true, .page = seq->page, .prompt_end = growth.rows};
        if (s->lookup && rq->max_tokens > 1) {
            seq->lookup = &s->lookup[i];
            hzp_lookup_begin(seq->lookup, s->history, draws_of(rq));
            if (s->config.guess_by_depth)
                seq->lookup->trust = s->rounds.trust;
        }
        int32_t at = rq->background ? s->running : s->ordinary;
        memmove(s->order + at + 1, s->order + at, (size_t)(s->running - at) * sizeof(*s->order));
        s->order[at] = i;
        s->running++;
        s->ordinary += !rq->background;
        leave_queue(s, rq);
        hzp_pin(s, rq);
        if (!rq->preempted) {
            s->now.admitted++;
            s->now.prefix_queries += (uint64_t)rq->prompt_count;
            rq->admitted_ns = s->clock_ns;
        }
        rq->preempted = false;
        atomic_store(&rq->state, HZP_REQUEST_RUNNING);
    }
}

/* True: pages will be released when the in-flight steps end. */
static bool pages_to_come(const struct hzp_scheduler *s)
{
    for (int32_t i = 0; i < s->config.running_max; i++) {
        const struct hzp_seq *seq = &s->seq[i];
        if (seq->used && seq->taken && (!seq->rq || hzp_seq_complete(seq)))
            return true;
    }
    /* Only the backing pages are missing: running sequences have passed some. */
    if (hzp_kvpool_backs_left(s->pool) <= 0) {
        for (int32_t i = 0; i < s->running; i++) {
            const struct hzp_seq *seq = &s->seq[s->order[i]];
            if (hzp_kvpool_first(s->pool, next_position(seq)) > seq->passed)
                return true;
        }
        return s->warm.leaving;
    }
    /* No idle page can be given out now, so these are read by an in-flight step, or are copied to
     * or from a tier. */
    struct hzp_prefix_stats prefix;
    hzp_prefix_read_stats(s->prefix, &prefix);
    return prefix.idle > 0 || s->warm.leaving;
}

/* Gives every sequence the page of its next row, oldest first, preempting the youngest if
 * necessary.  A sequence left without a page gets no row in this step; older ones have theirs. */
static void secure_pages(struct hzp_scheduler *s)
{
    for (int32_t i = 0; i < s->running; i++) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
        if (hzp_seq_complete(seq) || hzp_seq_has_page(s, seq))
            continue;
        int32_t page = hzp_prefix_take(s->prefix);
        while (page < 0 && i < s->running - 1 && !pages_to_come(s)) {
            preempt(s);
            page = hzp_prefix_take(s->prefix);
        }
        if (page >= 0)
            seq->page[seq->taken++] = page;
    }
}

void hzp_begin_again(struct hzp_scheduler *s, struct hzp_seq *seq)
{
    /* Its own pages that are not backed any more could not take its first rows. */
    int32_t left = HZP_MAX(seq->kept, seq->passed);
    pass_kept(s, seq);
    hzp_prefix_release(s->prefix, seq->page, seq->kept, seq->step);
    hzp_kvpool_release(s->pool, seq->page + seq->kept, left - seq->kept);
    seq->taken -= left;
    memmove(seq->page, seq->page + left, (size_t)seq->taken * sizeof(*seq->page));
    seq->fed = seq->kept = seq->spared = seq->passed = 0;
    if (!atomic_load_explicit(&seq->rq->out_count, memory_order_relaxed)) /* nothing is shown */
        atomic_store(&seq->rq->stale_tokens, 0);
    seq->prompt_end = hzp_request_tokens(seq->rq).count;
    seq->part[0].rows = seq->part[1].rows = 0;
    seq->guesses = seq->guessed = seq->left = 0;
    seq->guessing = false;
    seq->restarted = true;
    seq->mixed = seq->alone = seq->passed_over = false;
    seq->sought = seq->fetch = 0;
}

void hzp_queue_restart(struct hzp_scheduler *s, uint64_t version)
{
    hzp_assert_engine_thread();
    for (int32_t i = 0; i < s->running; i++) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
        if (!seq->fed || hzp_seq_decodes(seq) || seq->prompt_version == version || seq->rq->pin)
            continue;
        hzp_begin_again(s, seq);
        s->now.prompt_restarts++;
    }
}

void hzp_queue_turn(struct hzp_scheduler *s, const struct hzp_step *step)
{
    hzp_assert_engine_thread();
    absorb(s, step);
    hzp_later_turn(s, step);
    hzp_look_at_pins(s);
    cull_waiting(s);
    cull_running(s);
    hzp_ask_staleness(s);
    look_ahead(s, step->number);
    if (s->running || s->wait_count || s->drains)
        hzp_rewarm_stop(s);
    admit(s, step->number);
    for (int32_t i = 0; s->version && i < s->running; i++)
        hzp_seek_prefix(s, &s->seq[s->order[i]], true);
    secure_pages(s);
}
