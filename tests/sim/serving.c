/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/serving.c - what must hold of requests, pages and queue in every step.
 *
 * A segment does not name its sequence.  The test recognizes the sequence by the segment's first
 * page; a sequence's first segment belongs to the oldest running request that has no page yet
 * and has this prompt. */
#include "tests/sim/world.h"

#include <string.h>

static struct sim_part *part_of(struct sim_life *life, uint64_t step)
{
    struct sim_part *part = &life->part[step % 2];
    if (part->step != step)
        *part = (struct sim_part){.step = step};
    return part;
}

/* Its rows in the step that is being formed. */
static int32_t rows_now(struct sim_world *w, struct sim_life *life)
{
    return part_of(life, w->step->number)->rows;
}

/* Whether the request decoded before the step that is being formed. */
static bool decoding(struct sim_world *w, struct sim_life *life)
{
    return life->fed - rows_now(w, life) >= life->prompt_end;
}

/* Whether all its tokens are drawn once the steps formed so far have ended. */
static bool complete(struct sim_world *w, struct sim_life *life)
{
    const struct hzp_request *rq = life->rq;
    return life->fed - rows_now(w, life) >= rq->prompt_count + HZP_MAX(rq->max_tokens, 1) - 1;
}

static bool known(const struct sim_life *life, int32_t position)
{
    return position - life->rq->prompt_count < atomic_load(&life->rq->out_count);
}

static int32_t token_at(struct sim_world *w, const struct sim_life *life, int32_t position)
{
    const struct hzp_request *rq = life->rq;
    SIM_CHECK(w, known(life, position), "token kept",
              "request %llu reads the one at %d, but only %d were drawn",
              (unsigned long long)life->number, position, atomic_load(&rq->out_count));
    return position < rq->prompt_count ? rq->prompt[position]
                                       : rq->out[position - rq->prompt_count].token;
}

static struct sim_life *whose(struct sim_world *w, int32_t seg)
{
    const struct hzp_batch *batch = w->offer->batch;
    int32_t row0 = batch->row0[seg], rows = batch->row0[seg + 1] - row0;
    int32_t page = batch->page[seg * batch->max.page_stride];
    SIM_CHECK(w, page >= 0 && page < w->pages, "page", "%d of %d", page, w->pages);
    if (batch->pos0[seg] > 0 || w->owner[page]) {
        SIM_CHECK(w, w->owner[page], "page", "%d is read, but has no owner", page);
        return w->owner[page];
    }
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        int32_t p = 0;
        if (atomic_load(&life->rq->state) != HZP_REQUEST_RUNNING || life->pages ||
            rows > life->prompt_end)
            continue;
        while (p < rows && batch->id[row0 + p] == token_at(w, life, p))
            p++;
        if (p == rows)
            return life;
    }
    sim_broken(w, "segment", "%d belongs to no request that runs", seg);
}

/* New pages must have been free, and old ones must be where they were. */
static void check_pages(struct sim_world *w, struct sim_life *life, int32_t seg, int32_t end)
{
    const int32_t *page = w->offer->batch->page + seg * w->batch->max.page_stride;
    int32_t pages = HZP_DIV_UP(end, w->page_rows);
    SIM_CHECK(w, pages <= life->worst, "page", "request %llu has %d, reserved are %d",
              (unsigned long long)life->number, pages, life->worst);
    for (int32_t k = 0; k < pages; k++) {
        SIM_CHECK(w, page[k] >= 0 && page[k] < w->pages, "page", "%d of %d", page[k], w->pages);
        struct sim_life *owner = w->owner[page[k]];
        SIM_CHECK(w, owner == (k < life->pages ? life : NULL), "page shared",
                  "%d of request %llu is that of %llu", page[k], (unsigned long long)life->number,
                  (unsigned long long)(owner ? owner->number : 0));
        SIM_CHECK(w, k >= life->pages || life->page[k] == page[k], "page", "number %d has moved",
                  k);
        SIM_CHECK(w, k < life->pages || w->touched[page[k]] <= w->served,
                  "page of a step under way",
                  "%d is that of request %llu, step %llu, which has not ended, touches it", page[k],
                  (unsigned long long)life->number, (unsigned long long)w->touched[page[k]]);
        w->owner[page[k]] = life;
        w->touched[page[k]] = w->step->number;
        life->page[k] = page[k];
    }
    life->pages = HZP_MAX(life->pages, pages);
}

/* A row whose token the in-flight step draws must name the logits of its own last row there. */
static void check_drawn(struct sim_world *w, struct sim_life *life, int32_t row)
{
    const struct hzp_batch *batch = w->offer->batch;
    uint64_t before = w->step->number - 1;
    const struct sim_part *part = part_of(life, before);
    const struct hzp_batch *from = sim_leg_of(w, before)->offer->batch;
    SIM_CHECK(w,
              row < batch->refs && !sim_leg_of(w, before)->served && part->rows > 0 &&
                  batch->from == from,
              "sampled id", "row %d of request %llu has no token, and nothing draws it", row,
              (unsigned long long)life->number);
    SIM_CHECK(w, from->logit_row[batch->ref[row]] == part->row0 + part->rows - 1, "sampled id",
              "row %d of request %llu takes another row's token", row,
              (unsigned long long)life->number);
    SIM_CHECK(w, life->rq->sampling.presence == 0, "settle",
              "request %llu has penalties and does not know its last token",
              (unsigned long long)life->number);
    part_of(life, w->step->number)->drawn = true;
    w->refs++;
}

static void check_rows(struct sim_world *w, struct sim_life *life, int32_t seg)
{
    const struct hzp_batch *batch = w->offer->batch;
    int32_t row0 = batch->row0[seg], pos0 = batch->pos0[seg];
    for (int32_t r = row0; r < batch->row0[seg + 1]; r++) {
        int32_t p = pos0 + r - row0;
        int32_t slot = life->page[p / w->page_rows] * w->page_rows + p % w->page_rows;
        SIM_CHECK(w, batch->pos[r] == p && batch->slot[r] == slot, "row",
                  "%d is at %d in slot %d, not at %d in %d", r, batch->pos[r], batch->slot[r], p,
                  slot);
        if (batch->id[r] < 0) {
            check_drawn(w, life, r);
            w->shadow_version[slot] = w->step->version->record.id;
            continue;
        }
        SIM_CHECK(w, batch->id[r] == token_at(w, life, p), "row", "%d has token %d, not %d", r,
                  batch->id[r], token_at(w, life, p));
        w->shadow[slot] = batch->id[r];
        w->shadow_version[slot] = w->step->version->record.id;
    }
}

/* What attention will read must be what the sequence stored.  Short sequences are checked in
   full, long ones by samples. */
static void check_stored(struct sim_world *w, struct sim_life *life, int32_t end)
{
    int32_t stride = HZP_MAX(1, end / 64);
    for (int32_t p = sim_random(w, stride); p < end && known(life, p); p += stride) {
        int32_t slot = life->page[p / w->page_rows] * w->page_rows + p % w->page_rows;
        SIM_CHECK(w, w->shadow[slot] == token_at(w, life, p), "page content",
                  "request %llu stored token %d at %d, there lies %d",
                  (unsigned long long)life->number, token_at(w, life, p), p, w->shadow[slot]);
        SIM_CHECK(w, p >= life->prompt_end || w->shadow_version[slot] == life->prompt_version,
                  "prompt version", "request %llu: version %llu computed row %d, %llu the others",
                  (unsigned long long)life->number, (unsigned long long)w->shadow_version[slot], p,
                  (unsigned long long)life->prompt_version);
    }
}

static void check_segment(struct sim_world *w, int32_t seg)
{
    const struct hzp_batch *batch = w->offer->batch;
    struct sim_life *life = whose(w, seg);
    struct sim_part *part = part_of(life, w->step->number);
    int32_t rows = batch->row0[seg + 1] - batch->row0[seg], pos0 = batch->pos0[seg];
    SIM_CHECK(w, !part->rows && rows > 0, "segment", "request %llu has two in a step",
              (unsigned long long)life->number);
    SIM_CHECK(w, !life->cancel, "cancel", "request %llu still has rows",
              (unsigned long long)life->number);
    SIM_CHECK(w, pos0 == life->fed, "segment", "begins at %d, fed are %d", pos0, life->fed);
    SIM_CHECK(w, (seg < batch->decode_segs) == decoding(w, life), "segment",
              "decode before prefill");
    SIM_CHECK(w, pos0 + rows <= HZP_MAX(life->prompt_end, life->fed + 1), "segment",
              "%d rows at %d", rows, pos0);
    SIM_CHECK(w, !complete(w, life), "segment", "request %llu has all its tokens",
              (unsigned long long)life->number);
    if (!pos0)
        life->prompt_version = w->step->version->record.id;
    check_pages(w, life, seg, pos0 + rows);
    check_rows(w, life, seg);
    part->pos0 = pos0;
    part->rows = rows;
    part->row0 = batch->row0[seg];
    life->fed += rows;
    life->last_step = w->step->number;
    life->row_turn = w->turn;
}

/* A preempted request keeps only the tokens already shown to the client, and only a request that
   may be preempted is. */
static void check_pushed(struct sim_world *w, struct sim_life *life, int32_t *freed)
{
    int32_t drawn = atomic_load(&life->rq->out_count);
    SIM_CHECK(w, w->scheduler_config.admission == HZP_ADMIT_PREDICTED, "preempted",
              "request %llu, where the worst case was admitted", (unsigned long long)life->number);
    SIM_CHECK(w, drawn == life->seen, "preempted", "request %llu lost tokens",
              (unsigned long long)life->number);
    if (life->last_step > w->served)
        sim_haunt(w, life);
    else
        *freed += life->held;
    life->part[0].rows = life->part[1].rows = 0; /* the results of its in-flight rows are dropped */
    life->last_step = 0;
    for (int32_t k = 0; k < life->pages; k++)
        w->owner[life->page[k]] = NULL;
    life->pages = life->held = life->fed = life->kept = life->restarts = 0;
    life->prompt_end = life->rq->prompt_count + drawn;
    life->pushed = true;
    life->pushes = life->rq->preemptions;
    w->pushes++;
}

/* A swap that finds a prompt begun and not finished makes it begin again; no other version may come
 * until it is finished, or a step has no row for it. */
static void expect_restarts(struct sim_world *w)
{
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        if (atomic_load(&life->rq->state) != HZP_REQUEST_RUNNING || !life->fed ||
            life->fed >= life->prompt_end || life->prompt_version == w->step->version->record.id)
            continue;
        life->part[0].rows = life->part[1].rows = 0; /* results of its in-flight rows are dropped */
        life->fed = 0;
        life->kept = life->held;
        SIM_CHECK(w, !life->restarts || life->passed_over, "restart",
                  "the prompt of request %llu begins again twice",
                  (unsigned long long)life->number);
        life->passed_over = false;
        life->restarts++;
        w->restarts++;
    }
}

static void note_passed_over(struct sim_world *w)
{
    for (int32_t i = 0; i < w->lives && w->has_room; i++)
        if (!rows_now(w, w->life[i]))
            w->life[i]->passed_over = true;
}

static void check_pushes(struct sim_world *w)
{
    int32_t freed = 0;
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        /* It may have got no page before. */
        if (life->pushes != life->rq->preemptions)
            check_pushed(w, life, &freed);
    }
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(w->pool, &kv);
    SIM_CHECK(w, !freed || kv.pages - kv.taken < freed, "preempted",
              "%d pages came free, and %d are left over", freed, kv.pages - kv.taken);
}

/* Pages that a sequence must have: for its rows, and for its next row unless there is none. */
static int32_t should_hold(struct sim_world *w, struct sim_life *life)
{
    int32_t next = life->fed - rows_now(w, life) + !complete(w, life);
    return HZP_MAX(HZP_MAX(life->pages, life->kept), HZP_DIV_UP(next, w->page_rows));
}

/* Counts the pages that all sequences hold.  A sequence without rows in this step may lack the
 * page of its next row if no page is left; older sequences get theirs first. */
static void check_held(struct sim_world *w)
{
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(w->pool, &kv);
    int32_t lack = -kv.taken;
    for (int32_t i = 0; i < w->ghosts; i++)
        lack += w->ghost[i].until > w->served ? w->ghost[i].held : 0;
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        if (atomic_load(&life->rq->state) == HZP_REQUEST_RUNNING)
            lack += should_hold(w, life);
        else if (life->last_step > w->served)
            lack += life->held;
    }
    SIM_CHECK(w, lack <= 0 || kv.taken == kv.pages, "pages", "%d are missing, and some are left",
              lack);
    for (int32_t i = w->lives - 1; i >= 0; i--) {
        struct sim_life *life = w->life[i];
        if (atomic_load(&life->rq->state) != HZP_REQUEST_RUNNING)
            continue;
        int32_t hold = should_hold(w, life);
        bool stalls = lack > 0 && !rows_now(w, life) && life->held < hold;
        life->held = hold - stalls;
        life->row_turn = stalls ? w->turn : life->row_turn;
        w->stalls += stalls;
        lack -= stalls;
    }
    SIM_CHECK(w, !lack, "pages", "%d more are taken than the running requests need", -lack);
}

/* Prompts are served first come, first served; every running sequence that decodes gets a row in
   turn. */
static void check_order(struct sim_world *w)
{
    const struct hzp_batch_config *max = &w->offer->batch->max;
    bool waits = false;
    int32_t running = 0, first = -1;
    int32_t room = HZP_MIN(max->rows_max, HZP_MIN(max->segs_max, max->logits_max));
    for (int32_t i = 0; i < w->lives; i++) {
        int32_t state = atomic_load(&w->life[i]->rq->state);
        waits |= state == HZP_REQUEST_WAITING;
        SIM_CHECK(w, !waits || state != HZP_REQUEST_RUNNING, "queue order", "request %llu overtook",
                  (unsigned long long)w->life[i]->number);
        running += state == HZP_REQUEST_RUNNING;
        if (state == HZP_REQUEST_RUNNING && first < 0 && !decoding(w, w->life[i]))
            first = i;
    }
    SIM_CHECK(w, running <= w->scheduler_config.running_max, "queue", "%d run", running);
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        if (atomic_load(&life->rq->state) != HZP_REQUEST_RUNNING || !decoding(w, life) ||
            complete(w, life))
            continue;
        /* Edits may limit a step to fewer rows than its room. */
        uint64_t gap = (uint64_t)(life->rq->edits ? running : HZP_DIV_UP(running, room)) + 2;
        for (int32_t k = 0; k < w->lives && !life->rq->edits; k++)
            gap = w->life[k]->rq->edits ? (uint64_t)running + 2 : gap;
        SIM_CHECK(w, w->turn - life->row_turn <= gap + (uint64_t)w->scheduler_config.running_max,
                  "starved", "request %llu decodes, and has had no row for %llu turns",
                  (unsigned long long)life->number, (unsigned long long)(w->turn - life->row_turn));
    }
    if (first < 0 || w->offer->batch->segs == max->segs_max || w->batch->rows == max->rows_max)
        return;
    struct sim_life *oldest = w->life[first];
    int32_t fed = oldest->fed - rows_now(w, oldest);
    SIM_CHECK(w,
              rows_now(w, oldest) || oldest->held < HZP_DIV_UP(fed + 1, w->page_rows) ||
                  w->offer->batch->logits + 1 > max->logits_max || oldest->rq->edits ||
                  oldest->prompt_end - fed == 1,
              "prefill", "request %llu is the oldest, there is room, and it has no rows",
              (unsigned long long)oldest->number);
}

void sim_check_batch(struct sim_world *w)
{
    const struct hzp_batch *batch = w->offer->batch;
    const struct hzp_batch_config *max = &batch->max;
    SIM_CHECK(w,
              batch->rows <= max->rows_max && batch->segs <= max->segs_max &&
                  batch->logits <= max->logits_max && batch->edits <= max->edits_max,
              "batch", "%d rows, %d segments, %d logits, %d edits", batch->rows, batch->segs,
              batch->logits, batch->edits);
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        SIM_CHECK(w, !life->cancel || hzp_request_final(life->rq), "cancel",
                  "request %llu goes on after it", (unsigned long long)life->number);
        /* Requests that ended during this offer have returned their pages. */
        for (int32_t k = 0; k < life->pages && hzp_request_final(life->rq); k++)
            if (w->owner[life->page[k]] == life)
                w->owner[life->page[k]] = NULL;
    }
    check_pushes(w);
    expect_restarts(w);
    w->kept_steps += w->offer->keep_version;
    for (int32_t s = 0; s < batch->segs; s++)
        check_segment(w, s);
    note_passed_over(w);
    check_held(w);
    for (int32_t s = 0; s < batch->segs; s++) {
        struct sim_life *life = w->owner[batch->page[s * max->page_stride]];
        check_stored(w, life, life->fed);
    }
    check_order(w);
}

/* --- Results of a step ------------------------------------------------------------------------ */

static bool ends(const struct sim_life *life, int32_t n)
{
    const struct hzp_request *rq = life->rq;
    int32_t token = rq->out[n].token;
    bool stop = token == SIM_EOS && !life->ignores_eos;
    for (int32_t i = 0; i < rq->stop_ids; i++)
        stop |= rq->stop_id[i] == token;
    return stop && n + 1 > rq->min_tokens;
}

/* The in-flight step behind this one must have been given the same token. */
static void check_next(struct sim_world *w, struct sim_life *life, const struct hzp_step *step,
                       int32_t token)
{
    const struct sim_part *next = &life->part[(step->number + 1) % 2];
    if (next->step != step->number + 1 || !next->rows || !next->drawn)
        return;
    const struct hzp_batch *batch = sim_leg_of(w, next->step)->offer->batch;
    SIM_CHECK(w, batch->id[next->row0] == token, "sampled id",
              "request %llu drew %d, the step behind embeds %d", (unsigned long long)life->number,
              token, batch->id[next->row0]);
    w->shadow[batch->slot[next->row0]] = token;
}

static void check_outputs(struct sim_world *w, struct sim_life *life, const struct hzp_step *step)
{
    const struct hzp_request *rq = life->rq;
    const struct sim_part *part = part_of(life, step->number);
    int32_t count = atomic_load(&rq->out_count);
    bool draws = part->rows && part->pos0 + part->rows >= life->prompt_end && rq->max_tokens &&
                 atomic_load(&rq->state) != HZP_REQUEST_CANCELED;
    uint64_t version = sim_leg_of(w, step->number)->version_id;
    SIM_CHECK(w, count - life->seen == draws, "output", "request %llu got %d tokens in a step",
              (unsigned long long)life->number, count - life->seen);
    for (; life->seen < count; life->seen++) {
        const struct hzp_output *out = &rq->out[life->seen];
        SIM_CHECK(w, out->version == version, "version", "an output names %llu, the step's is %llu",
                  (unsigned long long)out->version, (unsigned long long)version);
        SIM_CHECK(w, out->prompt_version == life->prompt_version, "prompt version",
                  "an output of request %llu names %llu, it is %llu",
                  (unsigned long long)life->number, (unsigned long long)out->prompt_version,
                  (unsigned long long)life->prompt_version);
        SIM_CHECK(w,
                  !life->seen || (out[-1].version <= out->version && out[-1].at_ns <= out->at_ns),
                  "version", "request %llu: versions or times decrease",
                  (unsigned long long)life->number);
        SIM_CHECK(w, out->token >= 0 && out->token < SIM_VOCAB, "output", "token %d", out->token);
        SIM_CHECK(w, !life->seen || !ends(life, life->seen - 1), "after the stop",
                  "request %llu shows another token", (unsigned long long)life->number);
        check_next(w, life, step, out->token);
        life->told[life->seen] = out->token;
        w->swapped += life->seen && out[-1].version != out->version;
        w->tokens++;
    }
    SIM_CHECK(w, count <= rq->max_tokens, "output", "%d tokens of %d", count, rq->max_tokens);
    SIM_CHECK(w, rq->staleness <= w->max_staleness, "staleness", "request %llu saw %lld",
              (unsigned long long)life->number, (long long)rq->staleness);
}

static void check_end(struct sim_world *w, struct sim_life *life)
{
    const struct hzp_request *rq = life->rq;
    int32_t state = atomic_load(&rq->state), count = atomic_load(&rq->out_count);
    SIM_CHECK(w, life->wakes > 0, "request", "%llu ended without a wake-up",
              (unsigned long long)life->number);
    SIM_CHECK(w, state != HZP_REQUEST_LENGTH || count == rq->max_tokens, "request",
              "%llu ended for length with %d of %d", (unsigned long long)life->number, count,
              rq->max_tokens);
    SIM_CHECK(w, state != HZP_REQUEST_STOPPED || rq->out[count - 1].token == rq->stop_token,
              "request", "%llu stopped at another token", (unsigned long long)life->number);
    for (int32_t i = 0; i < life->seen; i++)
        SIM_CHECK(w, rq->out[i].token == life->told[i], "output",
                  "number %d of request %llu was %d, and became %d", i,
                  (unsigned long long)life->number, life->told[i], rq->out[i].token);
    SIM_CHECK(w, state != HZP_REQUEST_CANCELED || life->cancel, "cancel",
              "request %llu was not canceled", (unsigned long long)life->number);
    SIM_CHECK(w, state != HZP_REQUEST_FAILED || w->failed, "request", "%llu failed for no reason",
              (unsigned long long)life->number);
}

void sim_check_results(struct sim_world *w, const struct hzp_step *step, int status)
{
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        bool final = hzp_request_final(life->rq);
        if (status >= 0)
            check_outputs(w, life, step);
        SIM_CHECK(w, status >= 0 || final, "failure", "request %llu goes on after it",
                  (unsigned long long)life->number);
        SIM_CHECK(w, final || w->turn <= life->deadline, "starved",
                  "request %llu should have ended by turn %llu", (unsigned long long)life->number,
                  (unsigned long long)life->deadline);
        if (!final)
            continue;
        check_end(w, life);
        for (int32_t k = 0; k < life->pages; k++)
            if (w->owner[life->page[k]] == life)
                w->owner[life->page[k]] = NULL;
        life->pages = 0;
    }
}

/* Pages, reservations and queue must equal the sum over the requests: the live ones, and those
 * that are gone while one of their steps is in flight. */
void sim_check_pool(struct sim_world *w)
{
    int32_t taken = 0, worst = 0, running = 0, waiting = 0, fresh = 0;
    int64_t tokens = 0;
    for (int32_t i = 0; i < w->lives; i++) {
        const struct sim_life *life = w->life[i];
        int32_t state = atomic_load(&life->rq->state);
        if (state == HZP_REQUEST_RUNNING || life->last_step > w->served)
            taken += life->held;
        if (state == HZP_REQUEST_RUNNING) {
            worst += life->worst;
            running++;
        } else if (state == HZP_REQUEST_WAITING) {
            tokens += life->pushed ? 0 : life->rq->prompt_count;
            fresh += !life->pushed;
            waiting++;
        }
    }
    for (int32_t i = 0; i < w->ghosts; i++)
        if (w->ghost[i].until > w->served)
            taken += w->ghost[i].held;
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(w->pool, &kv);
    SIM_CHECK(w, kv.taken == taken, "pages",
              "%d taken, the %d running sequences and the ghosts hold %d", kv.taken, running,
              taken);
    SIM_CHECK(w, w->scheduler_config.admission == HZP_ADMIT_PREDICTED || worst <= w->pages, "pages",
              "the %d running sequences could need %d", running, worst);
    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(w->scheduler, &stats);
    SIM_CHECK(
        w, stats.running == running && stats.waiting == waiting && stats.waiting_tokens == tokens,
        "queue", "%d run and %d with %lld tokens wait, told were %d, %d and %lld", running, waiting,
        (long long)tokens, stats.running, stats.waiting, (long long)stats.waiting_tokens);
    SIM_CHECK(w,
              fresh <= w->scheduler_config.waiting_max &&
                  tokens <= w->scheduler_config.waiting_tokens_max,
              "queue", "%d requests with %lld tokens wait", waiting, (long long)tokens);
}
