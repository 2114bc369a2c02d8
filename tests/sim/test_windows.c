/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/test_windows.c - random servers whose model has layers with windows, and backing pages
 * for these (serve/kvpool.h).
 *
 * In place of the model stand two layers of hashes: one over all tokens of a sequence, read from
 * pages, and one over its window, read from backing pages.  A token follows from both, so one row
 * that is read from the wrong place, or is not there any more, changes the answer, which is known
 * beforehand.  Each step is executed behind the forming of the next one, and then every backing
 * page that backs nothing is poisoned.  A row reads no rows of other layers than its own, which
 * guesses by half of the layers leave behind.  Requests share beginnings, are several to a prompt,
 * guess, are background ones, are canceled, are preempted, and compute their rows again at swaps;
 * the accounts are compared after each step and end at nothing.
 *
 *     test_windows [--seed=N] [--worlds=N]
 */
#include "serve/scheduler.h"
#include "tests/serve/seeded.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 40, LIVES = 48, PROMPTS = 6, POISON = -77, POSITIONS_MAX = 1100 };

struct life {
    struct hzp_request *rq;
    bool canceled;
};

struct leg {
    struct hzp_batch *batch;
    struct hzp_step step;
    struct hzp_offer offer;
};

struct world {
    uint64_t seed, random;
    struct hzp_device *dev;
    struct hzp_model_config config;
    struct hzp_model model;
    struct hzp_kvpool *pool;
    struct hzp_scheduler *s;
    struct hzp_source *source;
    struct hzp_version version;
    struct hzp_time time;
    struct leg leg[2];
    int32_t positions, page_rows, pages, backs, window;
    int32_t *rows, *window_rows; /* the token in each slot of pages, of backing pages */
    int8_t *tag, *window_tag;    /* the path of its row */
    bool by_depth;               /* rounds of guesses (serve/depth.h) */
    int32_t eos, often, swaps;
    uint64_t clock; /* the device's, in nanoseconds */
    int32_t prompt[PROMPTS][POSITIONS_MAX];
    struct life life[LIVES];
    int32_t begun;
    uint64_t steps;
    bool flying;
    /* seen in all worlds */
    uint64_t *preempted, *found, *beyond, *restarts, *accepted;
};

static void fail(const struct world *w, const char *what, int64_t is, int64_t want)
{
    fprintf(stderr, "seed %llu, step %llu: %s: %lld, not %lld\n", (unsigned long long)w->seed,
            (unsigned long long)w->steps, what, (long long)is, (long long)want);
    abort();
}

static int32_t between(struct world *w, int32_t low, int32_t high)
{
    return low + (int32_t)seeded(&w->random, (uint32_t)(high - low + 1));
}

static uint32_t mix(uint32_t hash, int32_t token)
{
    return (hash ^ (uint32_t)token) * 16777619u + 12345;
}

/* Texts that repeat themselves now and then, so that guesses may be right. */
static int32_t token_after(uint32_t all, uint32_t window)
{
    uint32_t mixed = mix(all, (int32_t)window);
    return (int32_t)(mixed >> 9) % 4 ? (int32_t)(window >> 8) % 3 : (int32_t)(mixed >> 8) % VOCAB;
}

/* ---- the stand-in model ---- */

static void poison(struct world *w)
{
    const int32_t *backing = hzp_kvpool_backing(w->pool);
    bool backs[4096] = {false};
    for (int32_t p = 0; p < w->pages; p++)
        if (backing[p] >= 0) {
            if (backs[backing[p]])
                fail(w, "a backing page backs two", backing[p], -1);
            backs[backing[p]] = true;
        }
    for (int32_t b = 0; b < w->backs; b++)
        for (int32_t i = 0; i < w->page_rows && !backs[b]; i++)
            w->window_rows[b * w->page_rows + i] = POISON;
}

static int32_t draw(struct world *w, const struct hzp_batch *b, int32_t seg, int32_t pos)
{
    const int32_t *page = b->page + seg * b->max.page_stride,
                  *back = b->back + seg * b->max.page_stride;
    int32_t first = hzp_attn_first(w->window, pos);
    uint32_t all = 0, window = 0;
    int8_t path = b->path[seg];
    bool guess = path >= HZP_DEPTH_GUESS;
    for (int32_t p = 0; p <= pos; p++) {
        int32_t slot = page[p / w->page_rows] * w->page_rows + p % w->page_rows;
        all = mix(all, w->rows[slot]);
        if (!guess && w->tag[slot] != path)
            fail(w, "row of another path", w->tag[slot], path);
    }
    for (int32_t p = first / HZP_ATTN_BLOCK * HZP_ATTN_BLOCK; p <= pos; p++) {
        if (back[p / w->page_rows] < 0)
            fail(w, "a page that is read is not backed, at position", p, pos);
        int32_t slot = back[p / w->page_rows] * w->page_rows + p % w->page_rows;
        if (p >= first) {
            window = mix(window, w->window_rows[slot]);
            if (!guess && w->window_tag[slot] != path)
                fail(w, "window row of another path", w->window_tag[slot], path);
        }
    }
    if (guess && !between(w, 0, 3))
        return between(w, 0, VOCAB - 1);
    return token_after(all, window);
}

static void execute(struct world *w, struct hzp_batch *b)
{
    for (int32_t r = 0; r < b->refs; r++)
        b->id[r] = b->from->token[b->ref[r]];
    for (int32_t r = 0, seg = 0; r < b->rows; r++) {
        while (b->row0[seg + 1] <= r)
            seg++;
        w->tag[b->slot[r]] = b->path[seg];
        w->window_tag[b->back_slot[r]] = b->path[seg];
        w->rows[b->slot[r]] = b->id[r];
        w->window_rows[b->back_slot[r]] = b->id[r];
    }
    for (int32_t n = 0, seg = 0; n < b->logits; n++) {
        while (b->row0[seg + 1] <= b->logit_row[n])
            seg++;
        if (b->sample[n].given >= 0) {
            b->logprob[n] = -1;
            b->token[n] = b->sample[n].given;
            continue;
        }
        b->token[n] = draw(w, b, seg, b->pos[b->logit_row[n]]);
        b->logprob[n] = -1;
        b->rank[n] = 1;
    }
}

/* ---- requests ---- */

static void wake(void *ctx, bool more)
{
    (void)ctx, (void)more;
}

static void begin(struct world *w)
{
    int32_t *prompt = w->prompt[between(w, 0, PROMPTS - 1)], other = between(w, 0, 3);
    int32_t most = HZP_MIN(w->positions, w->pages * w->page_rows) - 1;
    int32_t count = between(w, 1, between(w, 1, most)), tokens = between(w, 1, most + 1 - count);
    int32_t same = between(w, 1, 3);
    for (int32_t i = 0; i < same && w->begun < LIVES; i++) {
        struct hzp_request *rq;
        if (hzp_request_create(prompt, count, HZP_MIN(tokens, 300), 0, !between(w, 0, 7), &rq) < 0)
            fail(w, "no memory", 0, 0);
        if (!other) /* it is like the others up to here */
            rq->prompt[between(w, 0, count - 1)] = VOCAB;
        rq->ignore_eos = between(w, 0, 3) > w->eos; /* else the length is a guess */
        rq->demands.mode = between(w, 0, 2) ? HZP_CONTINUE : HZP_RECOMPUTE;
        rq->demands.max_staleness = -1;
        rq->wake = wake;
        rq->demands.depth = between(w, 0, 2) ? 0 : between(w, 2, 7);
        if (w->by_depth && !between(w, 0, 5))
            rq->background = rq->own = true;
        if (rq->background)
            rq->demands.mode = HZP_CONTINUE;
        rq->priority = between(w, -3, 3);
        if (hzp_scheduler_submit(w->s, rq, NULL) < 0) {
            if (!rq->background)
                fail(w, "a request is refused", count, tokens);
            hzp_request_destroy(rq);
            continue;
        }
        w->life[w->begun++].rq = rq;
    }
}

static void verify(struct world *w, const struct life *life)
{
    const struct hzp_request *rq = life->rq;
    int32_t *token = hzp_xcalloc((size_t)(rq->prompt_count + rq->max_tokens), sizeof(*token));
    uint32_t all = 0;
    int32_t done = 0;
    memcpy(token, rq->prompt, (size_t)rq->prompt_count * sizeof(*token));
    if (!life->canceled && (rq->state != HZP_REQUEST_LENGTH || rq->out_count != rq->max_tokens))
        fail(w, "a request ends in state", rq->state, HZP_REQUEST_LENGTH);
    for (int32_t i = 0; i < rq->out_count; i++) {
        int32_t pos = rq->prompt_count + i - 1;
        uint32_t window = 0;
        while (done <= pos)
            all = mix(all, token[done++]);
        for (int32_t p = hzp_attn_first(w->window, pos); p <= pos; p++)
            window = mix(window, token[p]);
        token[pos + 1] = rq->out[i].token;
        if (rq->out[i].token != token_after(all, window))
            fail(w, "a token differs, at position", pos + 1, rq->prompt_count);
    }
    *w->beyond += rq->prompt_count + rq->out_count > 2 * (w->window + HZP_ATTN_BLOCK);
    free(token);
}

/* ---- steps ---- */

static void check_accounts(struct world *w)
{
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(w->pool, &kv);
    int32_t backed = 0;
    for (int32_t p = 0; p < w->pages; p++)
        backed += hzp_kvpool_backed(w->pool, p);
    if (backed != kv.backs_held + kv.backs_spare || kv.backs_held < 0 || kv.backs_spare < 0)
        fail(w, "backed pages", backed, kv.backs_held + kv.backs_spare);
}

static void land(struct world *w, struct leg *leg)
{
    w->clock += leg->batch->guesses ? 300 + leg->batch->rows : 1000 + 3 * leg->batch->rows;
    struct hzp_outcome outcome = {.end_ns = w->clock, .ns = {[HZP_TENANT_SERVE] = 1000}};
    poison(w);
    execute(w, leg->batch);
    w->source->deliver(w->source, &leg->step, &leg->offer, &outcome);
    w->flying = false;
    check_accounts(w);
}

static void turn(struct world *w)
{
    struct leg *before = &w->leg[w->steps % 2], *leg = &w->leg[++w->steps % 2];
    if (w->flying && (before->offer.settle || !between(w, 0, 9)))
        land(w, before);
    hzp_batch_clear(leg->batch);
    if (!between(w, 0, w->swaps)) {
        w->version.record.parent = w->version.record.id;
        w->version.record.id++;
    }
    leg->step = (struct hzp_step){.number = w->steps,
                                  .begin_ns = w->clock,
                                  .version = &w->version,
                                  .in_flight = w->flying ? before->batch : NULL};
    leg->offer = (struct hzp_offer){.batch = leg->batch};
    struct hzp_room room = {.rows = leg->batch->max.rows_max, .time = &w->time};
    bool flew = w->flying, any = w->source->offer(w->source, &leg->step, &room, &leg->offer);
    if (flew)
        land(w, before);
    w->flying = any;
    if (!any)
        leg->batch->rows = 0;
}

/* ---- worlds ---- */

static void open_world(struct world *w)
{
    w->page_rows = 1 << between(w, 0, 7);
    w->window = between(w, 0, 2)   ? between(w, 1, 150)
                : between(w, 0, 1) ? w->page_rows
                                   : 64 * between(w, 1, 2) + between(w, -1, 1);
    w->eos = between(w, 0, 3);
    int32_t each = hzp_kvpool_window_pages(w->window, w->page_rows);
    w->positions = between(w, 300, POSITIONS_MAX);
    int32_t longest = HZP_DIV_UP(w->positions, w->page_rows);
    int32_t rows = between(w, 8, 200), running = between(w, 1, 10);
    w->pages = longest + between(w, 0, 3 * longest);
    int32_t more = 2 * each + HZP_DIV_UP(rows, w->page_rows);
    int32_t backs = each + between(w, 0, between(w, 0, 1) * more);
    w->backs = HZP_MIN(w->pages, backs);
    w->config = (struct hzp_model_config){.layers = 8,
                                          .width = 4,
                                          .vocab = VOCAB + 1,
                                          .heads = {.heads = 1, .kv_heads = 1, .dim = 4},
                                          .kind = {{0}, {.window = w->window}},
                                          .layer_kind = {0, 1, 1, 0, 1, 1, 0, 1}};
    w->by_depth = between(w, 0, 1);
    w->often = between(w, 0, 1) ? 0 : between(w, 0, 20);
    w->swaps = between(w, 0, 1) ? 400 : between(w, 3, 60);
    w->model = (struct hzp_model){
        .dev = w->dev, .config = &w->config, .act = HZP_F32, .positions = w->positions};
    if (hzp_kvpool_create_backed(&w->model, w->pages, w->backs, w->page_rows, &w->pool) < 0)
        fail(w, "no pool", 0, 0);
    struct hzp_scheduler_config config = {.running_max = running,
                                          .waiting_max = LIVES,
                                          .waiting_tokens_max = 1 << 24,
                                          .admission = (enum hzp_admission_rule)between(w, 0, 1),
                                          .prefix_cache = between(w, 0, 4) > 0,
                                          .prefix_stale_max = between(w, 0, 2),
                                          .rewarm_rows = between(w, 0, 1) * 256,
                                          .lookup_max = between(w, 0, 3) ? 4 : 0,
                                          .guess_by_depth = w->by_depth,
                                          .guess_every = 16,
                                          .history = between(w, 0, 1),
                                          .edits_max = 64};
    hzp_scheduler_create(&config, &w->model, w->pool, &w->s);
    w->source = hzp_scheduler_source(w->s);
    struct hzp_batch_config batch = {.rows_max = rows,
                                     .segs_max = 2 * running,
                                     .page_stride = longest,
                                     .logits_max = 2 * running,
                                     .edits_max = 64,
                                     .layers = 8,
                                     .backing = hzp_kvpool_backing(w->pool),
                                     .page_rows = w->page_rows};
    for (int i = 0; i < 2; i++)
        if (hzp_batch_create(w->dev, &batch, &w->leg[i].batch) < 0)
            fail(w, "no batch", 0, 0);
    w->rows = hzp_xcalloc((size_t)w->pages * (size_t)w->page_rows, sizeof(*w->rows));
    w->window_rows = hzp_xcalloc((size_t)w->backs * (size_t)w->page_rows, sizeof(*w->window_rows));
    w->tag = hzp_xcalloc((size_t)w->pages * (size_t)w->page_rows, 1);
    w->window_tag = hzp_xcalloc((size_t)w->backs * (size_t)w->page_rows, 1);
    hzp_time_init(&w->time, 1, NULL, HZP_F32);
    w->version.record.id = 1;
    for (int i = 0; i < PROMPTS; i++) { /* some share a beginning */
        int32_t same = i ? between(w, 0, POSITIONS_MAX) : 0;
        memcpy(w->prompt[i], w->prompt[0], (size_t)same * sizeof(**w->prompt));
        for (int32_t p = same; p < POSITIONS_MAX; p++)
            w->prompt[i][p] = between(w, 0, VOCAB - 1);
    }
}

static void close_world(struct world *w)
{
    struct hzp_scheduler_stats stats;
    struct hzp_kvpool_stats kv;
    hzp_scheduler_read_stats(w->s, &stats);
    *w->preempted += stats.preempted;
    *w->found += stats.found_tokens;
    *w->restarts += stats.recomputes + stats.prompt_restarts;
    for (int i = 0; i < HZP_LOOKUP_MAX; i++)
        *w->accepted += stats.accepted[i];
    hzp_scheduler_destroy(w->s);
    hzp_kvpool_read_stats(w->pool, &kv);
    if (kv.taken || kv.backs_held || kv.backs_spare)
        fail(w, "pages that are not given back", kv.taken, kv.backs_held + kv.backs_spare);
    for (int32_t i = 0; i < w->begun; i++)
        hzp_request_destroy(w->life[i].rq);
    for (int i = 0; i < 2; i++)
        hzp_batch_destroy(w->leg[i].batch);
    hzp_kvpool_destroy(w->pool);
    free(w->rows);
    free(w->tag);
    free(w->window_tag);
    free(w->window_rows);
}

static void run_world(struct world *w)
{
    uint64_t last = 0;
    open_world(w);
    while (w->begun < LIVES || w->flying || w->source->busy(w->source)) {
        if (w->begun < LIVES && !between(w, 0, w->often))
            begin(w);
        if (w->begun && !between(w, 0, 200)) {
            struct life *life = &w->life[between(w, 0, w->begun - 1)];
            life->canceled = true;
            atomic_store(&life->rq->cancel, true);
        }
        turn(w);
        last = w->flying || !w->source->busy(w->source) ? w->steps : last;
        if (w->steps > last + 100)
            fail(w, "requests that get no row", (int64_t)w->steps, (int64_t)last);
    }
    for (int32_t i = 0; i < w->begun; i++)
        verify(w, &w->life[i]);
    close_world(w);
}

int main(int argc, char **argv)
{
    uint64_t seed = 1, worlds = 150, preempted = 0, found = 0, beyond = 0, restarts = 0,
             accepted = 0;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--seed=", 7))
            seed = strtoull(argv[i] + 7, NULL, 10), worlds = 1;
        if (!strncmp(argv[i], "--worlds=", 9))
            worlds = strtoull(argv[i] + 9, NULL, 10);
    }
    struct hzp_device *dev;
    if (hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &dev, NULL) < 0)
        return 1;
    struct world *w = hzp_xcalloc(1, sizeof(*w));
    for (uint64_t i = 0; i < worlds; i++) {
        *w = (struct world){.seed = seed + i,
                            .random = 7919 * (seed + i),
                            .dev = dev,
                            .preempted = &preempted,
                            .found = &found,
                            .beyond = &beyond,
                            .restarts = &restarts,
                            .accepted = &accepted};
        run_world(w);
    }
    free(w);
    hzp_device_close(dev);
    printf(
        "%llu worlds: %llu requests longer than two windows; %llu preemptions, %llu tokens found, "
        "%llu begun again, %llu guesses right\n",
        (unsigned long long)worlds, (unsigned long long)beyond, (unsigned long long)preempted,
        (unsigned long long)found, (unsigned long long)restarts, (unsigned long long)accepted);
    bool all = preempted && found && beyond && restarts && accepted;
    return worlds == 1 || all ? 0 : 1;
}
