/* SPDX-License-Identifier: Apache-2.0 */
/* serve/fill.c - fills a step with rows: first the decode rows, then as many prompt rows as the
 * budget decides (budget.h), the oldest prompt first.
 *
 * Thread: engine. */
#include "serve/fill.h"

/* After a swap, sequences that compute their rows again in one step, so that it leaves room for the
 * prompts of new requests. */
enum { RECOMPUTES_MAX = 4 };

/* Rows of a step that computes a prefix again: few, because a request may arrive meanwhile. */
enum { WARM_ROWS = 64 };

/* Forming a step while none runs costs less than this share of a step. */
static const double SETTLE_GAIN = 0.1;

/* Where a goal leaves rows to background requests, each is assumed to attend to so many positions.
 */
enum { BEHIND_DEPTH = 256 };

/* Beside ordinary requests, a step of references comes after so many others at the earliest: so the
 * 99th percentile of their ITL stays what it is without. */
enum { APART_EVERY = 128 };

/* Its line of the table of pages: that of its running slot; behind those, that of the sequence
 * which computes a prefix again. */
static int32_t line_of(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    return seq == &s->warm.seq ? s->config.running_max : (int32_t)(seq - s->seq);
}

bool hzp_fill_pages_fit(const struct hzp_filling *f, const struct hzp_seq *seq, int32_t rows)
{
    hzp_assert_engine_thread();
    const struct hzp_scheduler *s = f->s;
    int32_t pages = HZP_DIV_UP(seq->fed + rows, s->page_rows);
    return hzp_batch_pages_fit(f->offer->batch, line_of(s, seq), seq->page, seq->taken,
                               HZP_MAX(pages - seq->taken, 0));
}

/* The path of its next row. */
static int32_t path_of(const struct hzp_seq *seq)
{
    return seq->rq->demands.depth + (seq->guessing ? HZP_DEPTH_GUESS : 0);
}

static void add_segment(const struct hzp_filling *f, const struct hzp_seq *seq, int32_t pos0,
                        bool decode)
{
    struct hzp_batch *batch = f->offer->batch;
    hzp_batch_add_segment(batch, pos0, decode);
    hzp_batch_set_path(batch, path_of(seq));
    hzp_batch_set_pages(batch, line_of(f->s, seq), seq->page, seq->taken);
}

/* Opens the sequence's segment for `rows` more rows and takes the KV pages they need. */
static struct hzp_part *open_segment(const struct hzp_filling *f, struct hzp_seq *seq, int32_t rows,
                                     bool decode)
{
    struct hzp_scheduler *s = f->s;
    struct hzp_batch *batch = f->offer->batch;
    uint64_t number = f->step->number;
    struct hzp_part *part = hzp_seq_part(seq, number);
    while (seq->taken * s->page_rows < seq->fed + rows)
        seq->page[seq->taken++] = hzp_prefix_take(s->prefix);
    add_segment(f, seq, seq->fed, decode);
    *part = (struct hzp_part){.step = number,
                              .pos0 = seq->fed,
                              .rows = rows,
                              .logit0 = batch->logits,
                              .hidden0 = batch->hiddens};
    if (!seq->fed)
        seq->prompt_version = s->serves;
    seq->mixed |= seq->prompt_version != s->serves;
    seq->fed += rows;
    seq->step = number;
    f->room->rows -= rows;
    return part;
}

/* Hands the sequence's pages whose rows are complete to the prefix cache. */
static void keep_pages(struct hzp_scheduler *s, struct hzp_seq *seq)
{
    if (seq->mixed || seq->alone || s->serves != s->version)
        return;
    struct hzp_prefix_tokens tokens = hzp_request_tokens(seq->rq);
    int32_t whole = HZP_MIN(seq->fed, tokens.count) / s->page_rows;
    while (seq->kept < whole && !seq->alone) {
        if (hzp_prefix_keep(s->prefix, &tokens, seq->page, seq->kept))
            seq->kept++;
        else
            seq->alone = true;
    }
}

static int32_t slot_of(const struct hzp_scheduler *s, const struct hzp_seq *seq, int32_t position)
{
    return seq->page[position / s->page_rows] * s->page_rows + position % s->page_rows;
}

/* Requests the row's logits, to draw the token at `position`. */
static void want_draw(struct hzp_batch *batch, struct hzp_seq *seq, struct hzp_part *part,
                      int32_t row, int32_t position)
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
        .edits = hzp_edits_count(seq->rq->edits),
        .given = -1,
        .tops = rq->tops,
    };
    const uint32_t *mask = hzp_edits_mask(rq->edits);
    if (mask)
        memcpy(hzp_batch_add_mask(batch, &sample->mask), mask,
               (size_t)batch->max.mask_words * sizeof(*mask));
    hzp_edits_write(rq->edits, drawn < rq->min_tokens, batch->edit + batch->edits);
    batch->edits += sample->edits;
    batch->tops_wanted |= rq->tops > 0;
    part->logits++;
}

/* Requests the row's logits, for the logprob of the next prompt token. */
static void want_given(struct hzp_batch *batch, struct hzp_part *part, int32_t tops, int32_t row,
                       int32_t token)
{
    batch->sample[hzp_batch_add_logits(batch, row)] = (struct hzp_sample_row){
        .top_p = 1, .repetition = 1, .edit0 = batch->edits, .given = token, .tops = tops};
    batch->tops_wanted |= tops > 0;
    part->logits++;
}

int32_t hzp_fill_drawn_by(struct hzp_seq *seq, const struct hzp_step *step)
{
    hzp_assert_engine_thread();
    if (!step->in_flight)
        return -1;
    const struct hzp_part *part = hzp_seq_part(seq, step->number - 1);
    bool drawn = part->step == step->number - 1 && part->rows > 0;
    return drawn ? part->logit0 + part->logits - 1 : -1;
}

/* Penalties count every token drawn so far, and a grammar's mask and guesses of what comes next
 * follow from them.  Such a sequence gets no row until the results of the in-flight step, which
 * draws its last token, are there: it decodes one step later, other sequences are not held up. */
static bool awaits_token(const struct hzp_scheduler *s, struct hzp_seq *seq,
                         const struct hzp_step *step)
{
    return (hzp_edits_grow(seq->rq->edits) || hzp_has_guesses(s, seq)) &&
           hzp_fill_drawn_by(seq, step) >= 0;
}

/* Where the choice of decoding sequences begins: where the step before left one out.  While steps
 * alternate between versions, at the one of this version that has waited longest. */
static int32_t first_choice(struct hzp_scheduler *s)
{
    if (!s->now.pins)
        return s->ordinary ? s->turn % s->ordinary : 0;
    int32_t first = 0;
    uint64_t least = UINT64_MAX;
    for (int32_t i = 0; i < s->ordinary; i++) {
        const struct hzp_seq *seq = &s->seq[s->order[i]];
        if (hzp_seq_version(s, seq) != s->serves || !hzp_seq_decodes(seq) || seq->step >= least)
            continue;
        least = seq->step;
        first = i;
    }
    return first;
}

/* Whether the masks that follow on this step's draws may take the sequence's, too: together they
 * take about as long as one dear one, however many grammars are dear. */
static bool take_work(int64_t *left, const struct hzp_seq *seq)
{
    int64_t work = hzp_edits_work(seq->rq->edits);
    bool fits = work <= *left || *left == HZP_CONSTRAINT_DEAR || work < HZP_CONSTRAINT_CHEAP;
    *left = fits ? HZP_MAX(*left - work, 0) : *left;
    return fits;
}

/* What the sequences chosen so far leave. */
struct choice {
    int32_t chosen, edits;
    int64_t work;
    double reads; /* positions that they attend to */
};

/* Chooses among order[from .. from + count), beginning with the one of index *turn, as far as
 * `room` sequences in all; *turn becomes that of the first one left out. */
static void choose_among(const struct hzp_filling *f, int32_t from, int32_t count, int32_t room,
                         int32_t *turn, struct choice *c)
{
    struct hzp_scheduler *s = f->s;
    const struct hzp_batch_config *max = &f->offer->batch->max;
    bool left_out = false;
    int32_t first = *turn;
    for (int32_t k = 0; k < count; k++) {
        int32_t i = first + k < count ? first + k : first + k - count;
        struct hzp_seq *seq = &s->seq[s->order[from + i]];
        if (hzp_seq_version(s, seq) != s->serves || !hzp_seq_decodes(seq) ||
            hzp_seq_complete(seq) || !hzp_seq_has_page(s, seq) || awaits_token(s, seq, f->step))
            continue;
        if (c->chosen >= room || c->edits + hzp_edits_count(seq->rq->edits) > max->edits_max ||
            !take_work(&c->work, seq)) {
            if (!left_out)
                *turn = i;
            left_out = true;
            continue;
        }
        c->edits += hzp_edits_count(seq->rq->edits);
        c->reads += seq->fed + 1;
        s->chosen[c->chosen++] = s->order[from + i];
    }
    if (!left_out)
        *turn = 0;
}

static bool prompt_runs(const struct hzp_scheduler *s);

/* The rows that background requests may have behind these decode rows of ordinary ones
 * (scheduler.h). */
static int32_t rows_behind(const struct hzp_filling *f, const struct choice *ordinary)
{
    struct hzp_scheduler *s = f->s;
    int32_t rows = ordinary->chosen, left = 0, goal = 0;
    if (s->running == s->ordinary || hzp_wait_ordinary(s) > 0 || prompt_runs(s))
        return 0;
    if (!s->ordinary)
        return f->room->rows;
    if (s->apart_step == f->step->number && !rows) {
        s->apart_next = f->step->number + APART_EVERY;
        return HZP_MIN(s->spare, f->room->rows);
    }
    if (rows > 0 && hzp_device_has_graphs(s->model->dev))
        left = hzp_batch_bucket(rows) - rows;
    if (rows > 0 && f->room->serve_max_ns > 0)
        goal = hzp_step_prompt_rows(&f->room->time->step, rows, ordinary->reads, BEHIND_DEPTH,
                                    f->room->serve_max_ns);
    s->spare = goal > 0 ? goal : left > 0 ? WARM_ROWS : 0;
    return HZP_MIN(HZP_MAX(left, goal), f->room->rows - rows);
}

/* Chooses the sequences that decode, as far as the step has room; the next step starts with the
 * first sequence left out. */
static int32_t choose_decodes(struct hzp_filling *f)
{
    struct hzp_scheduler *s = f->s;
    const struct hzp_batch_config *max = &f->offer->batch->max;
    struct choice c = {.edits = f->offer->batch->edits, .work = HZP_CONSTRAINT_DEAR};
    int32_t room = HZP_MIN(f->room->rows, HZP_MIN(max->segs_max, max->logits_max));
    s->turn = first_choice(s);
    choose_among(f, 0, s->ordinary, room, &s->turn, &c);
    int32_t ordinary = c.chosen, count = s->running - s->ordinary;
    f->behind = rows_behind(f, &c);
    if (f->behind > 0) {
        s->turn_behind %= count;
        choose_among(f, s->ordinary, count, HZP_MIN(room, ordinary + f->behind), &s->turn_behind,
                     &c);
        f->behind -= c.chosen - ordinary;
    }
    return c.chosen;
}

/* The sequence's next row and its guesses. */
static void add_guessed(const struct hzp_filling *f, struct hzp_seq *seq)
{
    struct hzp_scheduler *s = f->s;
    struct hzp_batch *batch = f->offer->batch;
    int32_t at = seq->fed, token = seq->rq->out[at - seq->rq->prompt_count].token;
    if (!hzp_fill_pages_fit(f, seq, 1 + seq->guesses)) /* others have changed the table since */
        seq->guesses = 0;
    /* As decode rows: the bits of a draw do not depend on whether its row was guessed.  A graph of
     * decode rows does not know that some are of one sequence. */
    bool decode = !hzp_device_has_graphs(s->model->dev);
    struct hzp_part *part = open_segment(f, seq, 1 + seq->guesses, decode);
    for (int32_t i = 0; i <= seq->guesses; i++) {
        if (i && decode)
            add_segment(f, seq, at + i, true);
        int32_t row = hzp_batch_add_row(batch, token, slot_of(s, seq, at + i));
        want_draw(batch, seq, part, row, at + i + 1);
        token = seq->guess[i < seq->guesses ? i : 0];
        if (i == seq->guesses || hzp_edits_guess(seq->rq->edits, token))
            continue;
        int32_t less = seq->guesses - i; /* nothing can follow on this guess, or it is forbidden */
        seq->fed -= less;
        part->rows -= less;
        f->room->rows += less;
        seq->guesses = i;
    }
    hzp_edits_back(seq->rq->edits);
    s->now.lookups += seq->guesses > 0;
    for (int32_t i = 0; i < seq->guesses; i++)
        s->now.guessed[i]++;
    keep_pages(s, seq);
}

/* The kinds of decode rows, in their order: their token is drawn by the in-flight step, is known,
 * or guesses stand behind it. */
enum decode_kind { DRAWN, KNOWN, GUESSED, DECODE_KINDS };

/* The sequence's next row, whose token logits `logit` of the in-flight step draw; -1: it is known.
 */
static void add_decode(const struct hzp_filling *f, struct hzp_seq *seq, int32_t logit)
{
    struct hzp_scheduler *s = f->s;
    struct hzp_batch *batch = f->offer->batch;
    int32_t at = seq->fed, row;
    struct hzp_part *part = open_segment(f, seq, 1, true);
    if (logit < 0)
        row = hzp_batch_add_row(batch, seq->rq->out[at - seq->rq->prompt_count].token,
                                slot_of(s, seq, at));
    else
        row = hzp_batch_add_drawn(batch, f->step->in_flight, logit, slot_of(s, seq, at));
    want_draw(batch, seq, part, row, at + 1);
    keep_pages(s, seq);
}

/* A row that only guesses, behind the rows that have guessed in this round. */
static void add_guessing(const struct hzp_filling *f, struct hzp_seq *seq)
{
    struct hzp_scheduler *s = f->s;
    struct hzp_batch *batch = f->offer->batch;
    int32_t at = seq->fed + seq->guessed, n = at - seq->rq->prompt_count;
    int32_t token = seq->guessed ? seq->guess[seq->guessed - 1] : seq->rq->out[n].token;
    struct hzp_part *part = hzp_seq_part(seq, f->step->number);
    while (seq->taken * s->page_rows <= at)
        seq->page[seq->taken++] = hzp_prefix_take(s->prefix);
    add_segment(f, seq, at, true);
    *part = (struct hzp_part){.step = f->step->number,
                              .pos0 = at,
                              .rows = 1,
                              .logit0 = batch->logits,
                              .hidden0 = batch->hiddens};
    seq->step = f->step->number;
    f->room->rows--;
    for (int32_t i = 0; i < seq->guessed; i++)
        if (!hzp_edits_guess(seq->rq->edits, seq->guess[i])) {
            hzp_edits_back(seq->rq->edits); /* it will be wrong */
            break;
        }
    want_draw(batch, seq, part, hzp_batch_add_row(batch, token, slot_of(s, seq, at)), at + 1);
    hzp_edits_back(seq->rq->edits);
}

/* Those of the chosen sequences whose row is of this kind and goes through these layers. */
static void add_kind(const struct hzp_filling *f, int32_t chosen, enum decode_kind kind,
                     int32_t depth)
{
    struct hzp_scheduler *s = f->s;
    for (int32_t k = 0; k < chosen; k++) {
        struct hzp_seq *seq = &s->seq[s->chosen[k]];
        if (seq->step == f->step->number || path_of(seq) != depth)
            continue;
        int32_t logit = hzp_fill_drawn_by(seq, f->step);
        enum decode_kind is = logit < 0 ? KNOWN : DRAWN;
        if ((seq->guesses ? GUESSED : is) != kind)
            continue;
        if (kind == GUESSED)
            add_guessed(f, seq);
        else if (seq->guessing)
            add_guessing(f, seq);
        else
            add_decode(f, seq, logit);
    }
}

/* Adds one row for each chosen sequence, kind by kind, and in each by depth: up, down, and up
 * again, so that rows of one path are neighbours more often. */
static int32_t add_decodes(struct hzp_filling *f)
{
    const struct hzp_scheduler *s = f->s;
    int32_t chosen = choose_decodes(f), guesses = hzp_add_guesses(f, chosen);
    uint32_t depths = 0;
    for (int32_t k = 0; k < chosen; k++)
        depths |= 1u << path_of(&s->seq[s->chosen[k]]);
    for (int kind = DRAWN; kind < DECODE_KINDS; kind++)
        for (int32_t i = 0; i < HZP_DEPTHS; i++) {
            int32_t depth = kind == KNOWN ? HZP_DEPTHS - 1 - i : i;
            if (depths >> depth & 1)
                add_kind(f, chosen, (enum decode_kind)kind, depth);
        }
    return chosen + guesses;
}

/* How many rows of a prompt (or of a recompute) fit: at most `room`, limited by the free pages and
 * by the logits they need. */
static int32_t piece_rows(const struct hzp_scheduler *s, const struct hzp_batch *batch,
                          const struct hzp_seq *seq, int32_t room)
{
    const struct hzp_request *rq = seq->rq;
    int32_t left = seq->prompt_end - seq->fed;
    int32_t rows = HZP_MIN(left, room);
    int64_t stored = (int64_t)(seq->taken + hzp_prefix_available(s->prefix)) * s->page_rows;
    rows = (int32_t)HZP_MIN(rows, stored - seq->fed);
    int32_t logits = batch->max.logits_max - batch->logits;
    if (rq->prompt_logprobs || rq->pooling == HZP_POOLING_MEAN)
        rows = HZP_MIN(rows, logits);
    if (rows == left && rq->pooling == HZP_POOLING_LAST && !logits)
        rows--;
    if (rows == left && rq->max_tokens > 0 &&
        (!logits || batch->edits + hzp_edits_count(seq->rq->edits) > batch->max.edits_max))
        rows--; /* no room for the last row's draw: it goes to another step */
    return rows;
}

static void add_piece(const struct hzp_filling *f, struct hzp_seq *seq, int32_t rows)
{
    const struct hzp_scheduler *s = f->s;
    struct hzp_batch *batch = f->offer->batch;
    const struct hzp_request *rq = seq->rq;
    int32_t prompt = rq->prompt_count;
    struct hzp_part *part = open_segment(f, seq, rows, false);
    for (int32_t p = part->pos0; p < seq->fed; p++) {
        int32_t token = p < prompt ? rq->prompt[p] : rq->out[p - prompt].token;
        int32_t row = hzp_batch_add_row(batch, token, slot_of(s, seq, p));
        /* Prompt outputs are final once the whole prompt has been computed. */
        if (p + 1 < prompt && hzp_request_tells_prompt(rq))
            want_given(batch, part, rq->tops, row, rq->prompt[p + 1]);
        if (hzp_request_pools(rq, p)) {
            want_given(batch, part, 0, row, token);
            hzp_batch_want_hidden(batch, batch->logits - 1);
        }
        if (p + 1 == seq->prompt_end && rq->max_tokens > 0)
            want_draw(batch, seq, part, row, p + 1);
    }
}

/* Whether the sequence has rows of its prompt to compute, in a step of this version. */
static bool has_prompt(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    return !hzp_seq_decodes(seq) && hzp_seq_version(s, seq) == s->serves &&
           !hzp_seq_fetches(s, seq);
}

/* Whether an ordinary request has. */
static bool prompt_runs(const struct hzp_scheduler *s)
{
    for (int32_t i = 0; i < s->ordinary; i++)
        if (has_prompt(s, &s->seq[s->order[i]]))
            return true;
    return false;
}

/* Prompt rows of this step, as budget.h decides. */
static int32_t prompt_rows(const struct hzp_filling *f, int32_t decodes)
{
    struct hzp_scheduler *s = f->s;
    const struct hzp_batch *batch = f->offer->batch;
    struct hzp_budget_load load = {
        .decode_rows = decodes,
        .rows_left = f->room->rows,
        .running = s->ordinary,
        .running_max = s->config.running_max,
        .waiting = hzp_wait_ordinary(s),
        .fixed = s->config.prefill_rows_max,
        .padded = hzp_device_has_graphs(s->model->dev),
        .serve_max_ns = f->room->serve_max_ns,
    };
    for (int32_t r = 0; r < batch->rows; r++)
        load.decode_reads += batch->pos[r] + 1;
    struct hzp_prompt_rows decided = hzp_budget_decide(&s->budget, &load, f->room->time);
    bool counts = load.rows_left > 0 && prompt_runs(s);
    if (decodes || load.rows_left > 0) /* a step kept for training has no rows at all */
        s->now.budget_rows = decodes + decided.rows;
    s->now.budget_reason[decided.reason] += counts;
    return decided.rows;
}

/* Whether a swap has made the sequence compute the rows of tokens it had drawn again. */
static bool recomputes(const struct hzp_seq *seq)
{
    return seq->restarted && seq->rq->recomputes > 0;
}

/* Prompts of order[from .. to), and what the step may still have of them. */
struct pieces {
    int32_t from, to, room, again;
};

/* Adds rows of those prompts that go through these layers. */
static void add_pieces_of(const struct hzp_filling *f, int32_t depth, struct pieces *p)
{
    struct hzp_scheduler *s = f->s;
    struct hzp_batch *batch = f->offer->batch;
    for (int32_t i = p->from; i < p->to && p->room > 0; i++) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
        if (seq->rq->demands.depth != depth || !has_prompt(s, seq) ||
            (recomputes(seq) && ++p->again > RECOMPUTES_MAX))
            continue;
        int32_t rows = piece_rows(s, batch, seq, p->room);
        /* No younger prompt overtakes the oldest, nor one that it can share rows with, which an
         * older prompt computes in this step. */
        if (batch->segs == batch->max.segs_max || rows < 1 || !hzp_fill_pages_fit(f, seq, rows) ||
            hzp_seek_prefix(s, seq, false)) {
            p->room = 0;
            return;
        }
        add_piece(f, seq, rows);
        keep_pages(s, seq);
        p->room -= rows;
    }
}

/* Adds rows of prompts of order[from .. to), `room` at most: those with the layers of the oldest
 * prompt, then those with the layers of the oldest one left. */
static void add_pieces(const struct hzp_filling *f, int32_t from, int32_t to, int32_t room)
{
    const struct hzp_scheduler *s = f->s;
    struct pieces p = {from, to, room, 0};
    uint32_t done = 0;
    for (int32_t i = from; i < to && p.room > 0; i++) {
        const struct hzp_seq *seq = &s->seq[s->order[i]];
        uint32_t depth = 1u << seq->rq->demands.depth;
        if (!has_prompt(s, seq) || done & depth)
            continue;
        done |= depth;
        add_pieces_of(f, seq->rq->demands.depth, &p);
    }
}

static void add_prefills(const struct hzp_filling *f, int32_t decodes)
{
    const struct hzp_scheduler *s = f->s;
    add_pieces(f, 0, s->ordinary, prompt_rows(f, decodes));
    add_pieces(f, s->ordinary, s->running, HZP_MIN(WARM_ROWS, HZP_MIN(f->behind, f->room->rows)));
}

static void tell_wait(struct hzp_waits *waits, const struct hzp_request *rq, int32_t left,
                      int32_t now)
{
    if (rq->own)
        return;
    /* A preempted request that is recomputed has had its first token already. */
    if (waits->count < HZP_WAITS_MAX &&
        !atomic_load_explicit(&rq->out_count, memory_order_relaxed)) /* written by this thread */
        waits->of[waits->count++] = (struct hzp_wait){rq->submitted_ns, left, now};
}

/* Reports the requests whose prompt is not fully computed, in the order in which it will be
 * computed, for TTFT predictions. */
static void tell_waits(const struct hzp_filling *f)
{
    const struct hzp_scheduler *s = f->s;
    uint64_t number = f->step->number;
    struct hzp_waits *waits = &f->offer->waits;
    waits->count = 0;
    waits->running = s->ordinary;
    waits->slots = s->config.running_max;
    for (int32_t i = 0; i < s->running; i++) {
        const struct hzp_seq *seq = &s->seq[s->order[i]];
        int32_t rows = seq->step == number ? seq->part[number % 2].rows : 0;
        if (seq->fed - rows < seq->prompt_end)
            tell_wait(waits, seq->rq, seq->prompt_end - (seq->fed - rows), rows);
    }
    for (int32_t i = 0; i < s->wait_count; i++)
        tell_wait(waits, hzp_wait_at(s, i), hzp_wait_at(s, i)->prompt_count, 0);
}

/* A sequence whose edits grow and that draws in this step cannot have a row in the next one, if
 * that is formed before the results are there: it decodes in every second step, and holds up no
 * other.  If all running sequences are of that kind, there is no other: the loop waits for the
 * results, and each decodes in every step.  The loop also waits where guesses are in flight, and
 * where the next step's guesses are expected to make up for the wait. */
static enum hzp_settle settle_for(const struct hzp_filling *f)
{
    const struct hzp_scheduler *s = f->s;
    bool draws = false, guesses = false;
    int32_t others = 0, keen = 0;
    for (int32_t i = 0; i < s->running; i++) {
        const struct hzp_seq *seq = &s->seq[s->order[i]];
        if (hzp_seq_complete(seq))
            continue;
        keen += hzp_has_guesses(s, seq);
        others += !hzp_has_guesses(s, seq) && !hzp_edits_grow(seq->rq->edits);
        guesses |= seq->guesses > 0;
        draws |= seq->step == f->step->number && hzp_seq_decodes(seq);
    }
    bool settles = keen >= others || guesses || hzp_gain_of_guesses(f) >= SETTLE_GAIN;
    return draws && settles ? HZP_SETTLE_SERVING : HZP_SETTLE_NOTHING;
}

/* True: a prompt that a swap has restarted is not finished, and gets rows in this step, or the step
 * has none for serving.  In a step of another version: and had rows in the newest of its own. */
static bool keeps_version(const struct hzp_filling *f, bool no_room)
{
    const struct hzp_scheduler *s = f->s;
    bool keeps = false;
    for (int32_t i = 0; i < s->running; i++) {
        struct hzp_seq *seq = &s->seq[s->order[i]];
        const struct hzp_part *part = hzp_seq_part(seq, f->step->number);
        bool rows = part->step == f->step->number && part->rows > 0;
        if (!seq->restarted || hzp_seq_decodes(seq))
            continue;
        if (!no_room && hzp_seq_version(s, seq) == s->serves)
            seq->passed_over = !rows;
        keeps |= no_room || !seq->passed_over;
    }
    return keeps;
}

static void count_step(struct hzp_scheduler *s, int32_t rows)
{
    s->now.steps++;
    int class = rows > 1;
    for (int32_t top = 8; class && class < HZP_STEP_ROWS_CLASSES - 1 && rows > top; top *= 2)
        class ++;
    s->now.step_rows[class]++;
}

void hzp_fill_warm(struct hzp_scheduler *s, const struct hzp_step *step, struct hzp_room *room,
                   struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_filling f = {.s = s, .step = step, .room = room, .offer = offer};
    s->serves = s->version;
    int32_t rows = piece_rows(s, offer->batch, &s->warm.seq, HZP_MIN(WARM_ROWS, room->rows));
    if (rows < 1)
        return;
    add_piece(&f, &s->warm.seq, rows);
    keep_pages(s, &s->warm.seq);
    s->served = s->serves;
    s->now.rewarmed_tokens += (uint64_t)rows;
    tell_waits(&f);
    offer->kv = hzp_kvpool_layers(s->pool);
    count_step(s, rows);
}

void hzp_fill_step(struct hzp_scheduler *s, const struct hzp_step *step, struct hzp_room *room,
                   struct hzp_offer *offer)
{
    hzp_assert_engine_thread();
    struct hzp_filling f = {.s = s, .step = step, .room = room, .offer = offer};
    bool no_room = !room->rows;
    HZP_ASSERT(offer->batch->max.page_stride >= s->page_stride);
    struct hzp_version *first = hzp_first_version(s, step), *version = first;
    add_prefills(&f, add_decodes(&f));
    while (!no_room && !offer->batch->rows) {
        struct hzp_version *next = hzp_next_version(s, step, first);
        if (!next)
            break;
        version = next;
        add_prefills(&f, add_decodes(&f));
    }
    if (offer->batch->rows) {
        s->served = s->serves;
        offer->version = version == step->version ? NULL : version;
    }
    tell_waits(&f);
    enum hzp_settle settle = settle_for(&f);
    offer->settle = HZP_MAX(offer->settle, settle);
    offer->keep_version |= keeps_version(&f, no_room);
    offer->kv = hzp_kvpool_layers(s->pool);
    if (offer->batch->rows)
        count_step(s, offer->batch->rows);
}
