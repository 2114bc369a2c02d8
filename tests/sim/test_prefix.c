/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/test_prefix.c - the prefix cache over thousands of small simulated days.
 *
 *     test_prefix [--seeds FIRST..LAST] [--sabotage=NAME|all]
 *
 * The scheduler, the pool and the cache are the real ones.  In place of a model, a row's content in
 * a KV page is a hash of its token, its version and the content of the row before it, and a draw is
 * a function of that hash.  So every token tells which rows it was drawn from: it is compared with
 * the one that a request alone, without pages, would draw from the versions that its outputs name.
 *
 * Prompts begin alike by whole and by parts of pages, repeat, and go on from earlier answers.
 * Versions change at any step, pools are small, clients leave, and half of the days run one step
 * ahead.  Besides, whenever rows of a prompt are computed, every row that they attend to must be of
 * the step's own version; or, on days that allow stale rows, of one that served at most so many
 * swaps ago, in one line, and the request must say so.  On some days the most used beginnings are
 * computed again after a swap: such rows are all of the step's version, and only in steps while no
 * request is there.
 *
 * On half of the days pages that fall out of the cache go to a tier, a small one in host memory, a
 * file, or both, whose jobs are done late.  What stands for a page's memory are its rows, which the
 * tier copies.
 *
 * On half of the days requests have depths: such a row's content says which layers it went through.
 *
 * Sabotage replaces functions of the cache, through the linker's --wrap, and must be noticed. */
#include "serve/prefix.h"
#include "serve/scheduler.h"
#include "serve/scheduler_state.h"
#include "tests/serve/seeded.h"
#include "tests/sim/sabotage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    VOCAB = 1 << 20,
    EOS = VOCAB - 1,
    POSITIONS = 160,
    LIVES_MAX = 80,
    VERSIONS_MAX = 4096,
    LAYERS = 9
};

enum sabotage {
    SOUND,
    STALE,
    WRONG_TOKENS,
    RELEASED_EARLY,
    UNSAID,
    OTHER_LINE,
    TIER_KEEPS,
    ANY_DEPTH,
    SABOTAGES
};
static const char *const sabotage_name[SABOTAGES] = {"sound",          "stale",    "wrong-tokens",
                                                     "released-early", "unsaid",   "other-line",
                                                     "tier-keeps",     "any-depth"};

struct row {
    uint64_t content;
    uint64_t version; /* that computed it; 0: nothing stored yet */
};

struct life {
    struct hzp_request *rq;
    int32_t seen, pushes;
    int32_t edge; /* tokens generated before the last preemption: their rows were computed again */
    uint64_t by[POSITIONS]; /* the version of each row of its sequence, as stored */
    bool ended;
};

struct day {
    uint64_t seed, random;
    uint32_t swap_chance; /* one in so many */
    enum sabotage sabotage;
    bool ahead, done; /* done: sabotage has been at work */
    int32_t depths;   /* requests have depths up to this one; 0: all layers */
    int32_t pages, page_rows, rows_max, lives, submitted, ended;
    struct hzp_scheduler_config config;
    struct hzp_device *dev;
    struct hzp_model_config model_config;
    struct hzp_model model;
    struct hzp_kvpool *pool;
    struct hzp_tier *tier; /* NULL: none */
    struct hzp_time time;
    struct hzp_scheduler *s;
    struct hzp_batch *batch[2];
    struct hzp_version version[VERSIONS_MAX];
    int32_t current;            /* index of the version that the next step serves from */
    int32_t line[VERSIONS_MAX]; /* the first version that each one descends from without a break */
    struct row *kv;
    struct life life[LIVES_MAX];
    uint64_t steps;
};

struct totals {
    uint64_t days, requests, hits, queries, swaps, restarts, pushes, canceled, stale, rewarmed,
        drafted, written, read;
};

static struct day *today; /* for the wrappers */

HZP_NORETURN static void broken(const struct day *d, const char *rule, int64_t a, int64_t b)
{
    printf("%s: %lld, %lld, in step %llu; again with: test_prefix --seeds %llu..%llu%s%s\n", rule,
           (long long)a, (long long)b, (unsigned long long)d->steps, (unsigned long long)d->seed,
           (unsigned long long)d->seed, d->sabotage ? " --sabotage=" : "",
           d->sabotage ? sabotage_name[d->sabotage] : "");
    fflush(stdout);
    _exit(1);
}

static void check(const struct day *d, bool holds, const char *rule, int64_t a, int64_t b)
{
    if (!holds)
        broken(d, rule, a, b);
}

static int32_t between(struct day *d, int32_t low, int32_t high)
{
    return low + (int32_t)seeded(&d->random, (uint32_t)(high - low + 1));
}

/* --- What stands for the model ---------------------------------------------------------------- */

static uint64_t content(uint64_t before, int32_t token, uint64_t version)
{
    uint64_t z = before * 0x9e3779b97f4a7c15u + (uint64_t)token * 0xbf58476d1ce4e5b9u + version;
    z = (z ^ z >> 31) * 0x94d049bb133111ebu;
    return z ^ z >> 29;
}

/* A version whose rows go through these layers only: rows of another depth are not like them. */
static uint64_t through(uint64_t version, int32_t depth)
{
    return version + ((uint64_t)depth << 32);
}

/* The token drawn from a row; one in 24 ends the answer.  repeats: mostly the one that follows on
 * the row's own in a circle, so that guesses of it are right. */
static int32_t draw(uint64_t row, int32_t token, bool repeats)
{
    enum { CIRCLE = 7, SELDOM = 12 };
    uint64_t seed = row;
    if (!seeded(&seed, 24))
        return EOS;
    return !repeats                ? (int32_t)seeded(&seed, EOS)
           : seeded(&seed, SELDOM) ? (token + 1) % CIRCLE
                                   : (int32_t)seeded(&seed, CIRCLE);
}

/* --- Sabotage --------------------------------------------------------------------------------- */

void __real_hzp_prefix_serve(struct hzp_prefix *prefix, uint64_t version, uint64_t parent);
void __wrap_hzp_prefix_serve(struct hzp_prefix *prefix, uint64_t version, uint64_t parent);
uint64_t __real_hzp_prefix_oldest(const struct hzp_prefix *prefix, int32_t page);
uint64_t __wrap_hzp_prefix_oldest(const struct hzp_prefix *prefix, int32_t page);
bool __real_hzp_prefix_keep(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                            const int32_t *page, int32_t index);
bool __wrap_hzp_prefix_keep(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                            const int32_t *page, int32_t index);
void __real_hzp_prefix_release(struct hzp_prefix *prefix, const int32_t *page, int32_t count,
                               uint64_t step);
void __wrap_hzp_prefix_release(struct hzp_prefix *prefix, const int32_t *page, int32_t count,
                               uint64_t step);
int32_t __real_hzp_prefix_match(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                                int32_t from, int32_t most, int32_t *page, int32_t *ret_used);
int32_t __wrap_hzp_prefix_match(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                                int32_t from, int32_t most, int32_t *page, int32_t *ret_used);

void __real_hzp_tier_forget(struct hzp_tier *tier, uint64_t oldest);
void __wrap_hzp_tier_forget(struct hzp_tier *tier, uint64_t oldest);
int32_t __real_hzp_tier_find(const struct hzp_tier *tier, const struct hzp_tier_page *what,
                             uint64_t *ret_id, uint64_t *ret_oldest);
int32_t __wrap_hzp_tier_find(const struct hzp_tier *tier, const struct hzp_tier_page *what,
                             uint64_t *ret_id, uint64_t *ret_oldest);
int __wrap_hzp_kvpool_read_page(const struct hzp_kvpool *pool, int32_t page, void *host);
int __wrap_hzp_kvpool_write_page(const struct hzp_kvpool *pool, int32_t page, const void *host);

/* TIER_KEEPS: the tier does not hear of swaps, and what it has seems to be of the newest
 * version. */
void __wrap_hzp_tier_forget(struct hzp_tier *tier, uint64_t oldest)
{
    if (today->sabotage != TIER_KEEPS)
        __real_hzp_tier_forget(tier, oldest);
}

int32_t __wrap_hzp_tier_find(const struct hzp_tier *tier, const struct hzp_tier_page *what,
                             uint64_t *ret_id, uint64_t *ret_oldest)
{
    int32_t found = __real_hzp_tier_find(tier, what, ret_id, ret_oldest);
    if (today->sabotage == TIER_KEEPS && found >= 0)
        *ret_oldest = today->version[today->current].record.id;
    return found;
}

int __wrap_hzp_kvpool_read_page(const struct hzp_kvpool *pool, int32_t page, void *host)
{
    size_t bytes = (size_t)today->page_rows * sizeof(struct row);
    check(today, bytes <= hzp_kvpool_page_bytes(pool), "a page's size", (int64_t)bytes, 0);
    memset(host, 0, hzp_kvpool_page_bytes(pool));
    memcpy(host, today->kv + (size_t)page * (size_t)today->page_rows, bytes);
    return HZP_OK;
}

int __wrap_hzp_kvpool_write_page(const struct hzp_kvpool *pool, int32_t page, const void *host)
{
    memcpy(today->kv + (size_t)page * (size_t)today->page_rows, host,
           (size_t)today->page_rows * sizeof(struct row));
    return HZP_OK;
}

/* STALE: the cache does not hear of swaps.  OTHER_LINE: each version seems made from the last. */
void __wrap_hzp_prefix_serve(struct hzp_prefix *prefix, uint64_t version, uint64_t parent)
{
    parent = today->sabotage == OTHER_LINE ? version - 1 : parent;
    if (today->sabotage != STALE || version == today->version[0].record.id)
        __real_hzp_prefix_serve(prefix, version, parent);
}

/* UNSAID: requests do not hear that rows are stale. */
uint64_t __wrap_hzp_prefix_oldest(const struct hzp_prefix *prefix, int32_t page)
{
    return today->sabotage == UNSAID ? UINT64_MAX : __real_hzp_prefix_oldest(prefix, page);
}

/* WRONG_TOKENS: a page is kept under the tokens of the page behind it; ANY_DEPTH: as if its rows
 * went through all layers. */
bool __wrap_hzp_prefix_keep(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                            const int32_t *page, int32_t index)
{
    struct hzp_prefix_tokens wrong = *tokens;
    if (today->sabotage == ANY_DEPTH) {
        wrong.depth = 0;
        return __real_hzp_prefix_keep(prefix, &wrong, page, index);
    }
    wrong.prompt += today->page_rows;
    wrong.prompt_count -= today->page_rows;
    wrong.count -= today->page_rows;
    bool can = (index + 1) * today->page_rows <= wrong.prompt_count;
    return __real_hzp_prefix_keep(prefix, today->sabotage == WRONG_TOKENS && can ? &wrong : tokens,
                                  page, index);
}

static int32_t matched = -1;

int32_t __wrap_hzp_prefix_match(struct hzp_prefix *prefix, const struct hzp_prefix_tokens *tokens,
                                int32_t from, int32_t most, int32_t *page, int32_t *ret_used)
{
    int32_t n = __real_hzp_prefix_match(prefix, tokens, from, most, page, ret_used);
    /* RELEASED_EARLY: a page is given out again while this sequence uses it */
    if (today->sabotage == RELEASED_EARLY && n > from && !*ret_used && !today->done) {
        today->done = true;
        matched = page[n - 1];
        __real_hzp_prefix_release(prefix, &page[n - 1], 1, 0);
    }
    return n;
}

void __wrap_hzp_prefix_release(struct hzp_prefix *prefix, const int32_t *page, int32_t count,
                               uint64_t step)
{
    if (today->sabotage == RELEASED_EARLY && count && page[count - 1] == matched) {
        matched = -1;
        count--; /* it was released already */
    }
    __real_hzp_prefix_release(prefix, page, count, step);
}

/* --- A day ------------------------------------------------------------------------------------ */

static void open_tier(struct day *d)
{
    struct hzp_err_text err = {0};
    size_t page = hzp_kvpool_page_bytes(d->pool);
    int32_t where = between(d, 0, 5), most = 2 * d->pages; /* 0 to 2: none */
    struct hzp_tier_config tier = {.pool = d->pool,
                                   .host_bytes = where % 2 ? (size_t)between(d, 1, most) * page : 0,
                                   .file_bytes = where > 3 ? (size_t)between(d, 1, most) * page : 0,
                                   .dir = "/tmp",
                                   .threadless = true};
    if (where < 3)
        return;
    if (hzp_tier_create(&tier, &d->tier, &err) < 0) {
        printf("%s\n", err.text);
        broken(d, "opening", 5, 0);
    }
}

static void open_day(struct day *d)
{
    struct hzp_err_text err;
    d->random = d->seed * 2654435761u + 11;
    d->ahead = seeded(&d->random, 2);
    d->swap_chance = seeded(&d->random, 2) ? 12 : 300;
    d->depths = d->seed % 2 ? between(d, 1, HZP_DEPTH_PARTS - 1) : 0;
    d->page_rows = 1 << between(d, 0, 4);
    d->rows_max = between(d, 4, 64);
    d->lives = between(d, 20, LIVES_MAX);
    int32_t longest = HZP_DIV_UP(POSITIONS, d->page_rows);
    d->pages = longest + between(d, 0, 4 * longest);
    d->config = (struct hzp_scheduler_config){
        .running_max = between(d, 1, 16),
        .waiting_max = LIVES_MAX,
        .waiting_tokens_max = 1 << 20,
        .prefill_rows_max = seeded(&d->random, 2) ? 0 : between(d, 1, 32),
        .edits_max = 64,
        .prefix_cache = true,
        .prefix_stale_max = seeded(&d->random, 2) ? between(d, 1, 3) : 0,
        .rewarm_rows = seeded(&d->random, 2) ? between(d, 1, 200) : 0,
        .lookup_max = seeded(&d->random, 2) ? between(d, 1, HZP_LOOKUP_MAX) : 0,
        .guess_by_depth = d->seed % 3 == 0,
        .history = d->seed % 3 == 1,
        .guess_every = 2,
        .admission = seeded(&d->random, 4) ? HZP_ADMIT_PREDICTED : HZP_ADMIT_WORST_CASE};
    if (hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &d->dev, &err) < 0)
        broken(d, "opening", 0, 0);
    d->model_config = (struct hzp_model_config){.layers = LAYERS,
                                                .width = 1,
                                                .vocab = VOCAB,
                                                .heads = {.heads = 1, .kv_heads = 1, .dim = 2},
                                                .eos = {EOS},
                                                .eos_count = 1};
    d->model = (struct hzp_model){
        .dev = d->dev, .config = &d->model_config, .act = HZP_F32, .positions = POSITIONS};
    struct hzp_batch_config batch = {.rows_max = d->rows_max,
                                     .segs_max = d->config.running_max + d->config.lookup_max,
                                     .page_stride = longest,
                                     .logits_max = d->config.running_max + d->config.lookup_max,
                                     .edits_max = d->config.edits_max,
                                     .layers = LAYERS};
    today = d;
    for (int32_t i = 0; i < VERSIONS_MAX; i++)
        d->version[i].record.id = 100 + (uint64_t)i;
    d->version[0].record.parent = 50;
    if (hzp_kvpool_create(&d->model, d->pages, d->page_rows, &d->pool) < 0)
        broken(d, "opening", 4, 0);
    open_tier(d);
    d->config.tier = d->tier;
    if (hzp_scheduler_create(&d->config, &d->model, d->pool, &d->s) < 0 ||
        hzp_batch_create(d->dev, &batch, &d->batch[0]) < 0 ||
        hzp_batch_create(d->dev, &batch, &d->batch[1]) < 0)
        broken(d, "opening", 1, 0);
    hzp_time_init(&d->time, 1, NULL, HZP_F32);
    d->kv = hzp_xcalloc((size_t)d->pages * (size_t)d->page_rows, sizeof(*d->kv));
}

static void close_day(struct day *d)
{
    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(d->s, &stats);
    check(d, stats.kv_taken == 0, "pages", stats.kv_taken, stats.kv_idle);
    while (d->tier && hzp_tier_work(d->tier) && seeded(&d->random, 2))
        continue; /* some jobs are never done */
    hzp_scheduler_destroy(d->s);
    hzp_tier_destroy(d->tier);
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(d->pool, &kv);
    check(d, kv.taken == 0, "pages", kv.taken, kv.pages);
    for (int32_t i = 0; i < d->submitted; i++)
        hzp_request_destroy(d->life[i].rq);
    hzp_batch_destroy(d->batch[0]);
    hzp_batch_destroy(d->batch[1]);
    hzp_kvpool_destroy(d->pool);
    hzp_device_close(d->dev);
    free(d->kv);
    today = NULL;
}

/* One of a few beginnings; a third of the prompts go on from an earlier request and its answer. */
static int32_t make_prompt(struct day *d, int32_t *prompt)
{
    int32_t n = 0, most = POSITIONS * 2 / 3;
    if (d->submitted && !seeded(&d->random, 3)) {
        const struct hzp_request *rq = d->life[between(d, 0, d->submitted - 1)].rq;
        int32_t count = atomic_load(&rq->out_count);
        for (int32_t i = 0; i < rq->prompt_count && n < most; i++)
            prompt[n++] = rq->prompt[i];
        for (int32_t i = 0; i < count && n < most; i++)
            prompt[n++] = rq->out[i].token;
    } else {
        int32_t family = between(d, 1, 3), begin = between(d, 0, most - 1);
        for (; n < begin; n++)
            prompt[n] = (int32_t)(content((uint64_t)n, family, 7) % EOS);
    }
    int32_t more = seeded(&d->random, 4) ? between(d, 0, 20) : 0;
    for (int32_t i = 0; (i < more && n < most) || !n; i++)
        prompt[n++] = (int32_t)seeded(&d->random, 3); /* few tokens: these repeat, too */
    return n;
}

static void submit(struct day *d)
{
    struct life *life = &d->life[d->submitted];
    int32_t prompt[POSITIONS], n = make_prompt(d, prompt);
    if (hzp_request_create(prompt, n, between(d, 1, POSITIONS - n), 0, false, &life->rq) < 0)
        broken(d, "opening", 2, 0);
    life->rq->id = (uint64_t)d->submitted;
    life->rq->submitted_ns = 1;
    life->rq->demands.depth = d->depths ? between(d, 0, d->depths) : 0;
    if (hzp_scheduler_submit(d->s, life->rq, NULL) < 0)
        broken(d, "opening", 3, d->submitted);
    d->submitted++;
}

/* --- A step ----------------------------------------------------------------------------------- */

static struct row *row_at(const struct day *d, const int32_t *page, int32_t position)
{
    return &d->kv[page[position / d->page_rows] * d->page_rows + position % d->page_rows];
}

/* The sequence of a segment; it may have no request any more. */
static const struct hzp_seq *seq_of(const struct day *d, uint64_t step, const int32_t *page,
                                    int32_t begin)
{
    for (int32_t i = 0; i <= d->config.running_max; i++) {
        struct hzp_seq *seq = i < d->config.running_max ? &d->s->seq[i] : &d->s->warm.seq;
        const struct hzp_part *part = hzp_seq_part(seq, step);
        if (seq->used && part->step == step && begin >= part->pos0 &&
            begin < part->pos0 + part->rows && seq->page[0] == page[0] &&
            seq->page[begin / d->page_rows] == page[begin / d->page_rows])
            return seq;
    }
    return NULL;
}

/* Whether the sequence may attend to row p of this version, in a step of another one. */
static void check_stale(const struct day *d, const struct hzp_seq *seq, int32_t p, uint64_t of,
                        uint64_t now)
{
    int64_t swaps = (int64_t)(now - of);
    check(d, seq != &d->s->warm.seq, "version of a row computed again", p, (int64_t)of);
    check(d, of < now && swaps <= d->config.prefix_stale_max, "version", (int64_t)of, (int64_t)now);
    check(d, d->line[of - 100] == d->line[now - 100], "a row of another line", (int64_t)of,
          (int64_t)now);
    if (!seq || !seq->rq)
        return;
    const struct hzp_request *rq = seq->rq;
    check(d, rq->stale_tokens > HZP_MIN(p, rq->prompt_count - 1) && rq->stale_version <= of,
          "a stale row that the request does not tell", p, rq->stale_tokens);
}

/* Copies the versions of the sequence's rows to its life. */
static void note_rows(struct day *d, const struct hzp_seq *seq, const int32_t *page, int32_t end)
{
    for (int32_t i = 0; seq && seq->rq && i < d->submitted; i++)
        for (int32_t p = 0; d->life[i].rq == seq->rq && p < end; p++)
            d->life[i].by[p] = row_at(d, page, p)->version;
}

static void execute(struct day *d, struct hzp_batch *b, const struct hzp_step *step)
{
    const struct hzp_version *version = step->version;
    for (int32_t r = 0; r < b->refs; r++)
        b->id[r] = b->from->token[b->ref[r]];
    for (int32_t seg = 0, n = 0; seg < b->segs; seg++) {
        const int32_t *page = b->page + seg * b->max.page_stride;
        int32_t begin = b->pos0[seg], end = begin + b->row0[seg + 1] - b->row0[seg];
        for (int32_t p = begin; p < end; p++) {
            uint64_t before = p ? row_at(d, page, p - 1)->content : 0;
            int32_t token = b->id[b->row0[seg] + p - begin];
            *row_at(d, page, p) =
                (struct row){content(before, token, through(version->record.id, b->path[seg])),
                             version->record.id};
        }
        const struct hzp_seq *seq = seq_of(d, step->number, page, begin);
        for (int32_t p = 0; p < end && seg >= b->decode_segs; p++)
            if (row_at(d, page, p)->version != version->record.id)
                check_stale(d, seq, p, row_at(d, page, p)->version, version->record.id);
        note_rows(d, seq, page, end);
        if (n < b->logits && b->logit_row[n] == b->row0[seg + 1] - 1)
            b->token[n++] = draw(row_at(d, page, end - 1)->content, b->id[b->row0[seg + 1] - 1],
                                 d->config.lookup_max > 0);
    }
}

/* What the request must have drawn as token n, by the versions that its outputs name, but for stale
 * rows. */
static int32_t alone(const struct day *d, const struct life *life, int32_t n)
{
    const struct hzp_request *rq = life->rq;
    int32_t again = rq->prompt_count + HZP_MIN(life->edge, n);
    uint64_t row = 0;
    int32_t last = 0;
    for (int32_t p = 0; p < rq->prompt_count + n; p++) {
        int32_t k = p - rq->prompt_count;
        int32_t token = k < 0 ? rq->prompt[p] : rq->out[k].token;
        uint64_t told = p < again ? rq->out[n].prompt_version : rq->out[k + 1].version;
        check(d, life->by[p] == told || (p < again && rq->stale_tokens), "version not told", p, n);
        row = content(row, token, through(life->by[p], rq->demands.depth));
        last = token;
    }
    return draw(row, last, d->config.lookup_max > 0);
}

static void look_at(struct day *d, int32_t i)
{
    struct life *life = &d->life[i];
    int32_t count = atomic_load(&life->rq->out_count);
    for (; life->seen < count; life->seen++)
        check(d, life->rq->out[life->seen].token == alone(d, life, life->seen), "content", i,
              life->seen);
    if (!life->ended && hzp_request_final(life->rq)) {
        life->ended = true;
        d->ended++;
    }
}

struct turn {
    struct hzp_step step;
    struct hzp_offer offer;
    bool any;
};

/* Forms a step; in_flight: the one before it, not executed yet. */
static void form(struct day *d, struct turn *t, const struct hzp_batch *in_flight)
{
    d->steps++;
    struct hzp_batch *batch = d->batch[d->steps % 2];
    struct hzp_room room = {.rows = d->rows_max, .time = &d->time};
    hzp_batch_clear(batch);
    *t = (struct turn){.step = {.number = d->steps,
                                .begin_ns = d->steps,
                                .version = &d->version[d->current],
                                .in_flight = in_flight},
                       .offer = {.batch = batch}};
    struct hzp_source *source = hzp_scheduler_source(d->s);
    t->any = source->offer(source, &t->step, &room, &t->offer);
    for (int32_t i = 0; i < d->submitted; i++)
        if (d->life[i].rq->preemptions > d->life[i].pushes) {
            d->life[i].pushes = d->life[i].rq->preemptions;
            d->life[i].edge = atomic_load(&d->life[i].rq->out_count);
        }
    check(d, !d->s->warm.rq || (!d->s->running && !d->s->wait_count),
          "computed again beside requests", d->s->running, d->s->wait_count);
    if (!t->offer.keep_version && !seeded(&d->random, d->swap_chance) &&
        d->current + 1 < VERSIONS_MAX) {
        bool breaks = !seeded(&d->random, 6);
        d->current++;
        d->line[d->current] = breaks ? d->current : d->line[d->current - 1];
        d->version[d->current].record.parent = breaks ? 50 : d->version[d->current - 1].record.id;
    }
}

static void finish(struct day *d, struct turn *t)
{
    struct hzp_source *source = hzp_scheduler_source(d->s);
    struct hzp_outcome outcome = {.status = HZP_OK, .end_ns = t->step.number};
    execute(d, t->offer.batch, &t->step);
    source->deliver(source, &t->step, &t->offer, &outcome);
    for (int32_t i = 0; i < d->submitted; i++)
        look_at(d, i);
}

static void live(struct day *d)
{
    struct turn turn[2], *flying = NULL;
    int idle = 0;
    while (d->ended < d->lives) {
        bool copied = false;
        while (d->tier && !seeded(&d->random, 3) && hzp_tier_work(d->tier))
            copied = true;
        while (d->submitted < d->lives && !seeded(&d->random, 3))
            submit(d);
        if (d->submitted && !seeded(&d->random, 40))
            atomic_store(&d->life[between(d, 0, d->submitted - 1)].rq->cancel, true);
        struct turn *t = &turn[d->steps % 2];
        form(d, t, flying ? flying->offer.batch : NULL);
        if (flying)
            finish(d, flying);
        flying = t;
        if (!d->ahead || t->offer.settle != HZP_SETTLE_NOTHING || !t->any) {
            finish(d, t);
            flying = NULL;
        }
        bool waits = d->tier && hzp_tier_room(d->tier) < HZP_TIER_JOBS;
        idle = t->any || copied || waits || d->ended == d->submitted ? 0 : idle + 1;
        check(d, idle < 4 && d->steps < 1000000, "deadlock", d->ended, d->submitted);
    }
    if (flying)
        finish(d, flying);
    do { /* until the last references are gone, and what is used most is computed again */
        form(d, &turn[0], NULL);
        finish(d, &turn[0]);
    } while (turn[0].any || d->s->warm.rq);
}

static void run(uint64_t seed, enum sabotage sabotage, struct totals *t)
{
    struct day *d = hzp_xcalloc(1, sizeof(*d));
    d->seed = seed;
    d->sabotage = sabotage;
    open_day(d);
    live(d);
    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(d->s, &stats);
    check(d, stats.prefix_hits <= stats.prefix_queries, "counters", (int64_t)stats.prefix_hits,
          (int64_t)stats.prefix_queries);
    t->days++;
    t->requests += (uint64_t)d->lives;
    t->hits += stats.prefix_hits;
    t->queries += stats.prefix_queries;
    t->swaps += (uint64_t)d->current;
    t->restarts += stats.prompt_restarts;
    t->stale += stats.prefix_stale;
    t->written += stats.tier.written;
    t->read += stats.tier.read;
    check(d, !stats.tier.failed, "a page was not copied", (int64_t)stats.tier.failed, 0);
    t->rewarmed += stats.rewarmed_tokens;
    t->drafted += stats.accepted[0];
    t->pushes += stats.preempted;
    t->canceled += stats.finished[HZP_REQUEST_CANCELED];
    close_day(d);
    free(d);
}

/* --- The command ------------------------------------------------------------------------------ */

static const char *kind_name(int kind)
{
    return sabotage_name[kind];
}

static void run_kind(uint64_t seed, int kind)
{
    struct totals totals = {0};
    run(seed, (enum sabotage)kind, &totals);
}

static const struct sabotage_test sabotages = {
    .kinds = SABOTAGES, .seeds = 2000, .name = kind_name, .run = run_kind};

int main(int argc, char **argv)
{
    unsigned long long first = 1, last = 1500;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--sabotage=", 11) && argc == 2)
            return sabotage_try(&sabotages, argv[i] + 11);
        if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
            sscanf(argv[++i], "%llu..%llu", &first, &last);
    }
    struct totals t = {0};
    for (uint64_t seed = first; seed <= last; seed++)
        run(seed, SOUND, &t);
    printf("%llu days, %llu requests; %llu of %llu prompt tokens found, %llu of them stale; %llu "
           "computed again after a swap; %llu pages to a tier, %llu from there; %llu swaps, %llu "
           "restarts, %llu preemptions, %llu canceled, %llu drafts with right guesses\n",
           (unsigned long long)t.days, (unsigned long long)t.requests, (unsigned long long)t.hits,
           (unsigned long long)t.queries, (unsigned long long)t.stale,
           (unsigned long long)t.rewarmed, (unsigned long long)t.written,
           (unsigned long long)t.read, (unsigned long long)t.swaps, (unsigned long long)t.restarts,
           (unsigned long long)t.pushes, (unsigned long long)t.canceled,
           (unsigned long long)t.drafted);
    bool all = t.hits && t.stale && t.rewarmed && t.written && t.read && t.swaps && t.restarts &&
               t.pushes && t.canceled && t.drafted;
    if (last - first > 100 && !all)
        puts("a case of the above never came up");
    return last - first > 100 && !all;
}
