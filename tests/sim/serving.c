/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/serving.c - what must hold of requests, pages and queue in every step.
 *
 * A segment does not say whose it is.  Its first page does, once it has one; a sequence's first
 * segment belongs to the oldest request that runs, has no page and has this prompt. */
#include "tests/sim/world.h"

#include <string.h>

static bool decoding(const struct sim_life *life)
{
    return life->fed >= life->prompt_end;
}

static int32_t token_at(const struct sim_life *life, int32_t position)
{
    const struct hzp_request *rq = life->rq;
    return position < rq->prompt_count ? rq->prompt[position]
                                       : rq->out[position - rq->prompt_count].token;
}

static struct sim_life *whose(struct sim_world *w, int32_t seg)
{
    const struct hzp_batch *batch = w->batch;
    int32_t row0 = batch->row0[seg], rows = batch->row0[seg + 1] - row0;
    int32_t page = batch->page[seg * batch->max.page_stride];
    SIM_CHECK(w, page >= 0 && page < w->pages, "page", "%d of %d", page, w->pages);
    if (batch->pos0[seg] > 0) {
        SIM_CHECK(w, w->owner[page], "page", "%d is read, and nobody's", page);
        return w->owner[page];
    }
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        int32_t p = 0;
        if (atomic_load(&life->rq->state) != HZP_REQUEST_RUNNING || life->pages ||
            rows > life->prompt_end)
            continue;
        while (p < rows && batch->id[row0 + p] == token_at(life, p))
            p++;
        if (p == rows)
            return life;
    }
    sim_broken(w, "segment", "%d belongs to no request that runs", seg);
}

/* New pages were nobody's, old ones are where they were. */
static void check_pages(struct sim_world *w, struct sim_life *life, int32_t seg, int32_t end)
{
    const int32_t *page = w->batch->page + seg * w->batch->max.page_stride;
    int32_t pages = HZP_DIV_UP(end, w->page_rows);
    SIM_CHECK(w, pages <= life->worst, "page", "request %llu has %d, reserved are %d",
              (unsigned long long)life->number, pages, life->worst);
    for (int32_t k = 0; k < pages; k++) {
        SIM_CHECK(w, page[k] >= 0 && page[k] < w->pages, "page", "%d of %d", page[k], w->pages);
        struct sim_life *owner = w->owner[page[k]];
        SIM_CHECK(w, owner == (k < life->pages ? life : NULL), "page shared",
                  "%d of request %llu is that of %llu", page[k], (unsigned long long)life->number,
                  (unsigned long long)(owner ? owner->number : 0));
        SIM_CHECK(w, k >= life->pages || life->page[k] == page[k], "page", "number %d has moved", k);
        w->owner[page[k]] = life;
        life->page[k] = page[k];
    }
    life->pages = HZP_MAX(life->pages, pages);
}

static void check_rows(struct sim_world *w, struct sim_life *life, int32_t seg)
{
    const struct hzp_batch *batch = w->batch;
    int32_t row0 = batch->row0[seg], pos0 = batch->pos0[seg];
    for (int32_t r = row0; r < batch->row0[seg + 1]; r++) {
        int32_t p = pos0 + r - row0;
        int32_t slot = life->page[p / w->page_rows] * w->page_rows + p % w->page_rows;
        SIM_CHECK(w, batch->pos[r] == p && batch->slot[r] == slot, "row",
                  "%d is at %d in slot %d, not at %d in %d", r, batch->pos[r], batch->slot[r], p,
                  slot);
        SIM_CHECK(w, batch->id[r] == token_at(life, p), "row", "%d brings token %d, not %d", r,
                  batch->id[r], token_at(life, p));
        w->shadow[slot] = batch->id[r];
    }
}

/* What attention will read is what the sequence stored: all of a short one, samples of a long. */
static void check_stored(struct sim_world *w, struct sim_life *life, int32_t end)
{
    int32_t stride = HZP_MAX(1, end / 64);
    for (int32_t p = sim_random(w, stride); p < end; p += stride) {
        int32_t slot = life->page[p / w->page_rows] * w->page_rows + p % w->page_rows;
        SIM_CHECK(w, w->shadow[slot] == token_at(life, p), "page content",
                  "request %llu stored token %d at %d, there lies %d",
                  (unsigned long long)life->number, token_at(life, p), p, w->shadow[slot]);
    }
}

static void check_segment(struct sim_world *w, int32_t seg)
{
    const struct hzp_batch *batch = w->batch;
    struct sim_life *life = whose(w, seg);
    int32_t rows = batch->row0[seg + 1] - batch->row0[seg], pos0 = batch->pos0[seg];
    SIM_CHECK(w, !life->rows && rows > 0, "segment", "request %llu has two in a step",
              (unsigned long long)life->number);
    SIM_CHECK(w, !life->cancel, "cancel", "request %llu still has rows",
              (unsigned long long)life->number);
    SIM_CHECK(w, pos0 == life->fed, "segment", "begins at %d, fed are %d", pos0, life->fed);
    SIM_CHECK(w, (seg < batch->decode_segs) == decoding(life), "segment", "decode before prefill");
    SIM_CHECK(w, pos0 + rows <= HZP_MAX(life->prompt_end, life->fed + 1), "segment",
              "%d rows at %d", rows, pos0);
    check_pages(w, life, seg, pos0 + rows);
    check_rows(w, life, seg);
    life->rows = rows;
    life->row_turn = w->turn;
}

/* Who was pushed back has nothing but what he was told, and only who may be was. */
static void check_pushed(struct sim_world *w, struct sim_life *life, int32_t *freed)
{
    int32_t drawn = atomic_load(&life->rq->out_count);
    SIM_CHECK(w, w->scheduler_config.admission == HZP_ADMIT_PREDICTED, "pushed back",
              "request %llu, where the worst case was admitted", (unsigned long long)life->number);
    SIM_CHECK(w, drawn == life->seen, "pushed back", "request %llu lost tokens",
              (unsigned long long)life->number);
    *freed += life->held;
    for (int32_t k = 0; k < life->pages; k++)
        w->owner[life->page[k]] = NULL;
    life->pages = life->held = life->fed = 0;
    life->prompt_end = life->rq->prompt_count + drawn;
    life->pushed = true;
    w->pushes++;
}

static void check_pushes(struct sim_world *w)
{
    int32_t freed = 0;
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        if (life->held && atomic_load(&life->rq->state) == HZP_REQUEST_WAITING)
            check_pushed(w, life, &freed);
    }
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(w->pool, &kv);
    SIM_CHECK(w, !freed || kv.pages - kv.taken < freed, "pushed back",
              "%d pages came free, and %d are left over", freed, kv.pages - kv.taken);
}

/* What everybody holds: the pages of its rows and of its next one.  Only the youngest may lack that,
 * and only if none is free. */
static void check_held(struct sim_world *w)
{
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(w->pool, &kv);
    struct sim_life *youngest = NULL;
    int32_t held = 0;
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        if (atomic_load(&life->rq->state) != HZP_REQUEST_RUNNING)
            continue;
        life->held = HZP_MAX(life->pages, HZP_DIV_UP(life->fed + 1, w->page_rows));
        held += life->held;
        youngest = life;
    }
    if (youngest && kv.taken == held - 1 && kv.taken == kv.pages && !youngest->rows) {
        youngest->held--;
        youngest->row_turn = w->turn;
        w->stalls++;
        return;
    }
    SIM_CHECK(w, kv.taken == held, "pages", "%d are taken, those who run need %d", kv.taken, held);
}

/* First come, first served; whoever runs and decodes comes to his row in turn. */
static void check_order(struct sim_world *w)
{
    const struct hzp_batch_config *max = &w->batch->max;
    bool waits = false;
    int32_t running = 0, first = -1;
    int32_t room = HZP_MIN(max->rows_max, HZP_MIN(max->segs_max, max->logits_max));
    for (int32_t i = 0; i < w->lives; i++) {
        int32_t state = atomic_load(&w->life[i]->rq->state);
        waits |= state == HZP_REQUEST_WAITING;
        SIM_CHECK(w, !waits || state != HZP_REQUEST_RUNNING, "queue order", "request %llu overtook",
                  (unsigned long long)w->life[i]->number);
        running += state == HZP_REQUEST_RUNNING;
        if (state == HZP_REQUEST_RUNNING && first < 0 && !decoding(w->life[i]))
            first = i;
    }
    SIM_CHECK(w, running <= w->scheduler_config.running_max, "queue", "%d run", running);
    for (int32_t i = 0; i < w->lives; i++) {
        const struct sim_life *life = w->life[i];
        if (atomic_load(&life->rq->state) != HZP_REQUEST_RUNNING || !decoding(life))
            continue;
        /* Edits may leave fewer in a step than its room. */
        uint64_t gap = (uint64_t)(life->rq->edits ? running : HZP_DIV_UP(running, room)) + 2;
        for (int32_t k = 0; k < w->lives && !life->rq->edits; k++)
            gap = w->life[k]->rq->edits ? (uint64_t)running + 2 : gap;
        SIM_CHECK(w, w->turn - life->row_turn <= gap + (uint64_t)w->scheduler_config.running_max,
                  "starved", "request %llu decodes, and has had no row for %llu turns",
                  (unsigned long long)life->number, (unsigned long long)(w->turn - life->row_turn));
    }
    if (first < 0 || w->batch->segs == max->segs_max || w->batch->rows == max->rows_max)
        return;
    const struct sim_life *oldest = w->life[first];
    SIM_CHECK(w, oldest->rows || oldest->held < HZP_DIV_UP(oldest->fed + 1, w->page_rows) ||
                     w->batch->logits + 1 > max->logits_max ||
                     oldest->rq->edits || oldest->prompt_end - oldest->fed == 1,
              "prefill", "request %llu is the oldest, there is room, and it has no rows",
              (unsigned long long)oldest->number);
}

void sim_check_batch(struct sim_world *w)
{
    const struct hzp_batch *batch = w->batch;
    const struct hzp_batch_config *max = &batch->max;
    SIM_CHECK(w, batch->rows <= max->rows_max && batch->segs <= max->segs_max &&
                     batch->logits <= max->logits_max && batch->edits <= max->edits_max,
              "batch", "%d rows, %d segments, %d logits, %d edits", batch->rows, batch->segs,
              batch->logits, batch->edits);
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        life->rows = 0;
        SIM_CHECK(w, !life->cancel || hzp_request_final(life->rq), "cancel",
                  "request %llu goes on after it", (unsigned long long)life->number);
        /* Those that ended in this offer gave their pages back. */
        for (int32_t k = 0; k < life->pages && hzp_request_final(life->rq); k++)
            if (w->owner[life->page[k]] == life)
                w->owner[life->page[k]] = NULL;
    }
    check_pushes(w);
    for (int32_t s = 0; s < batch->segs; s++)
        check_segment(w, s);
    check_held(w);
    for (int32_t s = 0; s < batch->segs; s++) {
        struct sim_life *life = w->owner[batch->page[s * max->page_stride]];
        check_stored(w, life, batch->pos0[s] + life->rows);
    }
    check_order(w);
}

/* --- What a step brought ---------------------------------------------------------------------- */

static void check_outputs(struct sim_world *w, struct sim_life *life)
{
    const struct hzp_request *rq = life->rq;
    int32_t count = atomic_load(&rq->out_count);
    bool draws = life->rows && life->fed >= life->prompt_end && rq->max_tokens;
    SIM_CHECK(w, count - life->seen == draws, "output", "request %llu got %d tokens in a step",
              (unsigned long long)life->number, count - life->seen);
    for (; life->seen < count; life->seen++) {
        const struct hzp_output *out = &rq->out[life->seen];
        SIM_CHECK(w, out->version == w->serving_id, "version",
                  "an output names %llu, the step's is %llu", (unsigned long long)out->version,
                  (unsigned long long)w->serving_id);
        SIM_CHECK(w, !life->seen || (out[-1].version <= out->version && out[-1].at_ns <= out->at_ns),
                  "version", "request %llu goes back in time", (unsigned long long)life->number);
        SIM_CHECK(w, out->token >= 0 && out->token < SIM_VOCAB, "output", "token %d", out->token);
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
    SIM_CHECK(w, life->wakes > 0, "request", "%llu ended and nobody was told",
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
              "request %llu did not want it", (unsigned long long)life->number);
    SIM_CHECK(w, state != HZP_REQUEST_FAILED || w->failed, "request", "%llu failed for no reason",
              (unsigned long long)life->number);
}

void sim_check_results(struct sim_world *w, int status)
{
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        bool final = hzp_request_final(life->rq);
        if (status >= 0) {
            life->fed += life->rows;
            check_outputs(w, life);
        }
        life->rows = 0;
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

/* Pages, reservations and queue are what the requests that live add up to. */
void sim_check_pool(struct sim_world *w)
{
    int32_t taken = 0, worst = 0, running = 0, waiting = 0, fresh = 0;
    int64_t tokens = 0;
    for (int32_t i = 0; i < w->lives; i++) {
        const struct sim_life *life = w->life[i];
        int32_t state = atomic_load(&life->rq->state);
        if (state == HZP_REQUEST_RUNNING) {
            taken += life->held;
            worst += life->worst;
            running++;
        } else if (state == HZP_REQUEST_WAITING) {
            tokens += life->pushed ? 0 : life->rq->prompt_count;
            fresh += !life->pushed;
            waiting++;
        }
    }
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(w->pool, &kv);
    SIM_CHECK(w, kv.taken == taken, "pages", "%d taken, the %d running sequences hold %d", kv.taken,
              running, taken);
    SIM_CHECK(w, w->scheduler_config.admission == HZP_ADMIT_PREDICTED || worst <= w->pages, "pages",
              "the %d running sequences could need %d", running, worst);
    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(w->scheduler, &stats);
    SIM_CHECK(w, stats.running == running && stats.waiting == waiting &&
                     stats.waiting_tokens == tokens,
              "queue", "%d run and %d with %lld tokens wait, told were %d, %d and %lld", running,
              waiting, (long long)tokens, stats.running, stats.waiting,
              (long long)stats.waiting_tokens);
    SIM_CHECK(w, fresh <= w->scheduler_config.waiting_max &&
                     tokens <= w->scheduler_config.waiting_tokens_max,
              "queue", "%d requests with %lld tokens wait", waiting, (long long)tokens);
}
