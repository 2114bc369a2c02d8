/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/test_consistency.c - what requests ask of the weights, over thousands of small
 * simulated days.
 *
 *     test_consistency [--seeds FIRST..LAST] [--sabotage=NAME|all]
 *
 * The scheduler, the pool, the prefix cache and the store of versions are the real ones.  In place
 * of a model, a row's content in a KV page is a hash of its token, its version and the content of
 * the row before it, and a draw is a function of that hash.  So the oracle is exact:
 *
 *     pinned     every token is the one of a server that never swapped
 *     recompute  every token is the one of a fresh request, under the version that drew it, whose
 *                prompt is the prompt and the tokens before
 *     abort      as pinned, and the request ends at the swap
 *     continue   what its outputs say of versions is what its rows were computed by, but for rows
 *                of earlier versions on days that allow them, where the request tells that it has
 *                some
 *
 * On some days each draft is on trial first, and promoted, dropped or withdrawn.  Only requests
 * whose key is drawn may be answered by it, and what is counted of both sides is what was seen.
 *
 * In place of a trainer, updates begin, finish, are published, fail some examples for good, and now
 * and then put an earlier state back.  No token may come from a version that does not meet the
 * request's min_version and min_sequence, no staleness may exceed the request's max_staleness, no
 * step may read a slot that is free or rewritten, the trainer may not wait for a slot longer than
 * pins may last, and every request must end.
 *
 * Days have preemptions, cancellations, prompts that begin alike, and steps formed one ahead.
 * Sabotage replaces functions through the linker's --wrap, and must be noticed. */
#include "tests/sim/consistency.h"
#include "tests/sim/sabotage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const sabotage_name[SABOTAGES] = {
    "sound",         "no-recompute", "no-abort",    "always-met",    "unlearned", "not-pinned",
    "wrong-weights", "pins-last",    "stale-cache", "stale-for-all", "drawn-any", "trial-unheard"};

static struct day *today; /* for the wrappers */

void broken(const struct day *d, const char *rule, int64_t a, int64_t b)
{
    printf("%s: %lld, %lld, in step %llu; again with: test_consistency --seeds %llu..%llu%s%s\n",
           rule, (long long)a, (long long)b, (unsigned long long)d->steps,
           (unsigned long long)d->seed, (unsigned long long)d->seed,
           d->sabotage ? " --sabotage=" : "", d->sabotage ? sabotage_name[d->sabotage] : "");
    fflush(stdout);
    _exit(1);
}

/* --- What stands for the model ---------------------------------------------------------------- */

/* The token drawn from a row; one in 32 ends the answer.  repeats: mostly the one that follows on
 * the row's own in a circle, so that guesses of it are right. */
static int32_t draw(uint64_t row, int32_t token, bool repeats)
{
    enum { CIRCLE = 7, SELDOM = 12 };
    uint64_t seed = row;
    if (!seeded(&seed, 32))
        return EOS;
    return !repeats                ? (int32_t)seeded(&seed, EOS)
           : seeded(&seed, SELDOM) ? (token + 1) % CIRCLE
                                   : (int32_t)seeded(&seed, CIRCLE);
}

/* --- Sabotage --------------------------------------------------------------------------------- */

enum hzp_at_swap __real_hzp_demands_at_swap(const struct hzp_demands *d, struct hzp_weights *w,
                                            const struct hzp_version *v, int32_t drawn);
enum hzp_at_swap __wrap_hzp_demands_at_swap(const struct hzp_demands *d, struct hzp_weights *w,
                                            const struct hzp_version *v, int32_t drawn);
enum hzp_met __real_hzp_demands_met(const struct hzp_demands *d, struct hzp_weights *w,
                                    const struct hzp_version *v);
enum hzp_met __wrap_hzp_demands_met(const struct hzp_demands *d, struct hzp_weights *w,
                                    const struct hzp_version *v);
bool __real_hzp_weights_unlearned(const struct hzp_weights *w, int64_t number);
bool __wrap_hzp_weights_unlearned(const struct hzp_weights *w, int64_t number);
struct hzp_version *__real_hzp_weights_acquire(struct hzp_weights *w);
struct hzp_version *__wrap_hzp_weights_acquire(struct hzp_weights *w);
void __real_hzp_weights_release(struct hzp_weights *w, struct hzp_version *v, uint64_t last_step);
void __wrap_hzp_weights_release(struct hzp_weights *w, struct hzp_version *v, uint64_t last_step);
struct hzp_version *__real_hzp_first_version(struct hzp_scheduler *s, const struct hzp_step *step);
struct hzp_version *__wrap_hzp_first_version(struct hzp_scheduler *s, const struct hzp_step *step);
void __real_hzp_look_at_pins(struct hzp_scheduler *s);
void __wrap_hzp_look_at_pins(struct hzp_scheduler *s);
void __real_hzp_prefix_serve(struct hzp_prefix *prefix, uint64_t version, uint64_t parent);
void __wrap_hzp_prefix_serve(struct hzp_prefix *prefix, uint64_t version, uint64_t parent);
uint64_t __real_hzp_demands_oldest(const struct hzp_demands *d, uint64_t current);
uint64_t __wrap_hzp_demands_oldest(const struct hzp_demands *d, uint64_t current);
bool __real_hzp_trials_draws(const struct hzp_trials *t, uint64_t key);
bool __wrap_hzp_trials_draws(const struct hzp_trials *t, uint64_t key);
void __real_hzp_trial_turn(struct hzp_scheduler *s, const struct hzp_step *step);
void __wrap_hzp_trial_turn(struct hzp_scheduler *s, const struct hzp_step *step);

bool __wrap_hzp_trials_draws(const struct hzp_trials *t, uint64_t key)
{
    return today->sabotage == DRAWN_ANY || __real_hzp_trials_draws(t, key);
}

void __wrap_hzp_trial_turn(struct hzp_scheduler *s, const struct hzp_step *step)
{
    if (today->sabotage == TRIAL_UNHEARD && s->trial && !hzp_weights_trial(s->model->weights))
        s->trial = 0;
    else
        __real_hzp_trial_turn(s, step);
}

enum hzp_at_swap __wrap_hzp_demands_at_swap(const struct hzp_demands *d, struct hzp_weights *w,
                                            const struct hzp_version *v, int32_t drawn)
{
    enum hzp_at_swap what = __real_hzp_demands_at_swap(d, w, v, drawn);
    bool lies = (today->sabotage == NO_RECOMPUTE && what == HZP_SWAP_RECOMPUTE) ||
                (today->sabotage == NO_ABORT && what == HZP_SWAP_END);
    return lies ? HZP_SWAP_GO_ON : what;
}

enum hzp_met __wrap_hzp_demands_met(const struct hzp_demands *d, struct hzp_weights *w,
                                    const struct hzp_version *v)
{
    return today->sabotage == ALWAYS_MET ? HZP_MET : __real_hzp_demands_met(d, w, v);
}

bool __wrap_hzp_weights_unlearned(const struct hzp_weights *w, int64_t number)
{
    return today->sabotage != UNLEARNED && __real_hzp_weights_unlearned(w, number);
}

struct hzp_version *__wrap_hzp_weights_acquire(struct hzp_weights *w)
{
    struct hzp_version *v = __real_hzp_weights_acquire(w);
    if (today->sabotage == NOT_PINNED)
        __real_hzp_weights_release(w, v, 0);
    return v;
}

void __wrap_hzp_weights_release(struct hzp_weights *w, struct hzp_version *v, uint64_t last_step)
{
    if (today->sabotage != NOT_PINNED)
        __real_hzp_weights_release(w, v, last_step);
}

struct hzp_version *__wrap_hzp_first_version(struct hzp_scheduler *s, const struct hzp_step *step)
{
    struct hzp_version *v = __real_hzp_first_version(s, step);
    return today->sabotage == WRONG_WEIGHTS ? step->version : v;
}

void __wrap_hzp_prefix_serve(struct hzp_prefix *prefix, uint64_t version, uint64_t parent)
{
    if (today->sabotage != STALE_CACHE)
        __real_hzp_prefix_serve(prefix, version, parent);
}

uint64_t __wrap_hzp_demands_oldest(const struct hzp_demands *d, uint64_t current)
{
    return today->sabotage == STALE_FOR_ALL ? 0 : __real_hzp_demands_oldest(d, current);
}

void __wrap_hzp_look_at_pins(struct hzp_scheduler *s)
{
    if (today->sabotage != PINS_LAST)
        __real_hzp_look_at_pins(s);
}

/* --- A day ------------------------------------------------------------------------------------ */

static void open_store(struct day *d)
{
    struct fixture_config fixture = {
        .device = "ref",
        .config = {.family = "llama",
                   .layers = 1,
                   .width = 8,
                   .inner = 8,
                   .vocab = VOCAB,
                   .heads = {.heads = 1, .kv_heads = 1, .dim = 8},
                   .positions = POSITIONS,
                   .norm_eps = 1e-5f,
                   .rope_theta = 10000,
                   .bos = -1,
                   .eos = {EOS},
                   .eos_count = 1},
        .store = {.type = HZP_F32,
                  .slots = d->slots,
                  .max_staleness = d->operator_bound,
                  .first_id = 1},
    };
    fixture_open(&d->m, &fixture);
    d->learned_through = 0;
    publish(d, fixture_begin(&d->m), 0);
}

static void open_day(struct day *d)
{
    d->random = d->seed * 2654435761u + 29;
    d->ahead = seeded(&d->random, 2);
    d->page_rows = 1 << between(d, 0, 4);
    d->rows_max = between(d, 4, 64);
    d->lives = between(d, 10, LIVES_MAX);
    d->slots = between(d, 2, 5);
    d->operator_bound = between(d, 0, 4);
    d->swap_chance = between(d, 1, 30);
    int32_t longest = HZP_DIV_UP(POSITIONS, d->page_rows);
    d->pages = longest + between(d, 0, longest);
    d->config = (struct hzp_scheduler_config){
        .running_max = between(d, 1, 16),
        .waiting_max = LIVES_MAX,
        .waiting_tokens_max = 1 << 20,
        .prefill_rows_max = once_in(d, 2) ? 0 : between(d, 1, 32),
        .edits_max = 64 + 16 * VOCAB,
        .prefix_cache = seeded(&d->random, 4),
        .prefix_stale_max = once_in(d, 2) ? between(d, 1, 4) : 0,
        .rewarm_rows = once_in(d, 2) ? between(d, 1, 200) : 0,
        .lookup_max = once_in(d, 2) ? between(d, 1, HZP_LOOKUP_MAX) : 0,
        .guess_by_depth = d->seed % 3 == 0,
        .history = d->seed % 3 == 1,
        .guess_every = 2,
        .pin_ns = (uint64_t)between(d, 1, 120),
        .admission = seeded(&d->random, 4) ? HZP_ADMIT_PREDICTED : HZP_ADMIT_WORST_CASE};
    if (d->slots > 2 && once_in(d, 2)) {
        struct hzp_trials_config trials = {.share = between(d, 1, 9) / 10.0, .requests = 1};
        d->trials = d->config.trials = hzp_trials_create(&trials);
    }
    d->known = hzp_xcalloc(IDS_MAX, sizeof(*d->known));
    d->unlearned = hzp_xcalloc(SAMPLES_MAX + 4, sizeof(*d->unlearned));
    today = d;
    open_store(d);
    struct hzp_batch_config batch = {.rows_max = d->rows_max,
                                     .segs_max = d->config.running_max + d->config.lookup_max,
                                     .page_stride = longest,
                                     .logits_max = d->config.running_max + d->config.lookup_max,
                                     .edits_max = d->config.edits_max,
                                     .layers = 9};
    if (hzp_kvpool_create(d->m.model, d->pages, d->page_rows, &d->pool) < 0 ||
        hzp_scheduler_create(&d->config, d->m.model, d->pool, &d->s) < 0 ||
        hzp_batch_create(d->m.dev, &batch, &d->batch[0]) < 0 ||
        hzp_batch_create(d->m.dev, &batch, &d->batch[1]) < 0)
        broken(d, "opening", 1, 0);
    hzp_time_init(&d->time, 1, NULL, HZP_F32);
    d->kv = hzp_xcalloc((size_t)d->pages * (size_t)d->page_rows, sizeof(*d->kv));
}

static void close_day(struct day *d)
{
    struct hzp_scheduler_stats stats;
    struct hzp_weights_stats weights;
    hzp_scheduler_read_stats(d->s, &stats);
    check(d, stats.kv_taken == 0, "pages", stats.kv_taken, stats.kv_idle);
    check(d, !stats.pins && !stats.pinned_slots && !stats.waiting_weights, "pins", stats.pins,
          stats.waiting_weights);
    if (d->draft)
        hzp_weights_abandon(d->m.weights, d->draft);
    if (d->trial)
        hzp_weights_drop_trial(d->m.weights);
    hzp_weights_reclaim(d->m.weights, UINT64_MAX);
    hzp_weights_read_stats(d->m.weights, &weights);
    check(d, weights.slots_free == d->slots - 1, "slots", weights.slots_free, d->slots);
    check(d, weights.bound == d->operator_bound, "bound", weights.bound, d->operator_bound);
    hzp_scheduler_destroy(d->s);
    hzp_trials_destroy(d->trials);
    for (int32_t i = 0; i < d->submitted; i++)
        hzp_request_destroy(d->life[i].rq);
    hzp_batch_destroy(d->batch[0]);
    hzp_batch_destroy(d->batch[1]);
    hzp_kvpool_destroy(d->pool);
    fixture_close(&d->m);
    free(d->kv);
    free(d->known);
    free(d->unlearned);
    today = NULL;
}

/* A few beginnings, so that prompts share pages. */
static int32_t make_prompt(struct day *d, int32_t *prompt)
{
    int32_t n = 0, family = between(d, 1, 3), begin = between(d, 0, POSITIONS / 2);
    for (; n < begin; n++)
        prompt[n] = (int32_t)(content((uint64_t)n, family, 7) % EOS);
    for (int32_t more = between(d, 1, 12); more > 0; more--)
        prompt[n++] = (int32_t)seeded(&d->random, 3);
    return n;
}

static void ask(struct day *d, struct hzp_request *rq)
{
    struct hzp_demands *a = &rq->demands;
    a->mode = (enum hzp_consistency)between(d, HZP_CONTINUE, HZP_PINNED);
    a->wait_ns = (uint64_t)between(d, 0, 100);
    if (once_in(d, 6))
        a->min_version = d->newest + (uint64_t)between(d, 0, 2);
    int64_t near = d->learned_through + between(d, -3, 4);
    if (once_in(d, 4))
        a->min_sequence = HZP_MAX(1, near);
    if (once_in(d, 8))
        a->through = HZP_MAX(1, near);
    if (once_in(d, 6))
        a->max_staleness = between(d, 0, 3);
}

static void submit(struct day *d, struct totals *t)
{
    struct life *life = &d->life[d->submitted];
    int32_t prompt[POSITIONS], n = make_prompt(d, prompt);
    if (hzp_request_create(prompt, n, between(d, 0, POSITIONS - n), 0, false, &life->rq) < 0)
        broken(d, "opening", 2, 0);
    struct hzp_request *rq = life->rq;
    rq->id = (uint64_t)d->submitted;
    rq->submitted_ns = 1;
    rq->demands.draw_key = (uint64_t)between(d, 0, 40);
    ask(d, rq);
    rq->demands.depth = once_in(d, 3) ? between(d, 1, HZP_DEPTH_PARTS - 1) : 0;
    if (once_in(d, 6))
        rq->sampling.presence = 1; /* such a sequence waits for its token */
    int r = hzp_scheduler_submit(d->s, rq, NULL);
    if (rq->demands.mode == HZP_PINNED && d->slots < 3) {
        check(d, r == HZP_EINVAL, "pinned without slots", r, d->slots);
        rq->demands.mode = HZP_RECOMPUTE;
        r = hzp_scheduler_submit(d->s, rq, NULL);
    }
    if (r < 0)
        broken(d, "opening", 3, d->submitted);
    t->mode[rq->demands.mode]++;
    life->submitted = d->steps;
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
        int32_t at = begin / d->page_rows;
        if (seq->used && part->step == step && begin >= part->pos0 &&
            begin < part->pos0 + part->rows && seq->page[0] == page[0] && seq->page[at] == page[at])
            return seq;
    }
    return NULL;
}

/* Whether the sequence may attend to row p of version `of`, in a step of version `now`. */
static void check_stale(const struct day *d, const struct hzp_seq *seq, int32_t p, uint64_t of,
                        uint64_t now)
{
    const struct known *was = &d->known[of], *is = &d->known[now];
    check(d,
          of < now && is->swap - was->swap <= d->config.prefix_stale_max && is->line == was->line,
          "version of a prompt's row", (int64_t)of, (int64_t)now);
    check(d, seq != &d->s->warm.seq, "version of a row computed again", p, (int64_t)of);
    if (!seq || !seq->rq)
        return;
    const struct hzp_request *rq = seq->rq;
    const struct hzp_demands *a = &rq->demands;
    check(d,
          a->mode == HZP_CONTINUE && of >= a->min_version && !a->min_sequence && !a->through &&
              a->max_staleness < 0,
          "a stale row in spite of what was asked", p, (int64_t)of);
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

static void execute(struct day *d, struct hzp_batch *b, uint64_t step, uint64_t version)
{
    for (int32_t r = 0; r < b->refs; r++)
        b->id[r] = b->from->token[b->ref[r]];
    for (int32_t seg = 0, n = 0; seg < b->segs; seg++) {
        const int32_t *page = b->page + seg * b->max.page_stride;
        int32_t begin = b->pos0[seg], end = begin + b->row0[seg + 1] - b->row0[seg];
        for (int32_t p = begin; p < end; p++) {
            uint64_t before = p ? row_at(d, page, p - 1)->content : 0;
            int32_t token = b->id[b->row0[seg] + p - begin];
            /* other layers make other rows: of other depths, and where they only guess */
            uint64_t by = version + ((uint64_t)b->path[seg] << 32);
            *row_at(d, page, p) = (struct row){content(before, token, by), version};
        }
        const struct hzp_seq *seq = seq_of(d, step, page, begin);
        for (int32_t p = 0; p < end && seg >= b->decode_segs; p++)
            if (row_at(d, page, p)->version != version)
                check_stale(d, seq, p, row_at(d, page, p)->version, version);
        note_rows(d, seq, page, end);
        if (n < b->logits && b->logit_row[n] == b->row0[seg + 1] - 1) {
            b->token[n] = draw(row_at(d, page, end - 1)->content, b->id[b->row0[seg + 1] - 1],
                               d->config.lookup_max > 0);
            b->logprob[n] = -(float)(b->token[n] % 64) / 8; /* sums are exact */
            n++;
        }
    }
}

/* What the request must have drawn as token n. */
static int32_t alone(const struct day *d, const struct life *life, int32_t n)
{
    const struct hzp_request *rq = life->rq;
    bool one = rq->demands.mode != HZP_CONTINUE;
    int32_t again = rq->prompt_count + HZP_MIN(life->edge, n);
    uint64_t row = 0;
    int32_t last = 0;
    for (int32_t p = 0; p < rq->prompt_count + n; p++) {
        int32_t k = p - rq->prompt_count;
        int32_t token = k < 0 ? rq->prompt[p] : rq->out[k].token;
        uint64_t version = p < again ? rq->out[n].prompt_version : rq->out[k + 1].version;
        bool stale = !one && p < again && rq->stale_tokens;
        check(d, one || stale || life->by[p] == version, "version not told", p, n);
        version = one ? rq->out[n].version : life->by[p];
        row = content(row, token, version + ((uint64_t)rq->demands.depth << 32));
        last = token;
    }
    return draw(row, last, d->config.lookup_max > 0);
}

static void check_token(struct day *d, const struct life *life, int32_t n, int64_t i)
{
    const struct hzp_request *rq = life->rq;
    const struct hzp_demands *a = &rq->demands;
    uint64_t version = rq->out[n].version;
    int64_t through = a->through;
    while (through && d->unlearned[through])
        through--; /* no version will have learned it */
    check(d, rq->out[n].token == alone(d, life, n), "content", i, n);
    if (a->mode == HZP_PINNED || a->mode == HZP_ABORT)
        check(d, version == rq->out[0].version, "one version", i, n);
    if (a->mode != HZP_CONTINUE)
        check(d, version == rq->out[n].prompt_version, "version of the rows", i, n);
    check(d, version >= a->min_version, "min_version", i, (int64_t)version);
    check(d, d->known[version].learned_through >= HZP_MAX(a->min_sequence, through), "min_sequence",
          i, (int64_t)version);
    bool tried = rq->on_trial && version == rq->trial; /* it may have been dropped since */
    /* A pinned version that has learned the example keeps it, whatever a later line gives up. */
    tried |= n > 0 && a->mode == HZP_PINNED;
    check(d, !a->min_sequence || tried || !d->unlearned[a->min_sequence], "never learned", i,
          a->min_sequence);
    tried = rq->on_trial && version == rq->trial;
    check(d, tried || (!d->known[version].on_trial && !d->known[version].dropped),
          "answered by a trial", i, (int64_t)version);
    if (rq->trial)
        check(d, rq->on_trial == __real_hzp_trials_draws(d->trials, rq->demands.draw_key), "side",
              i, rq->on_trial);
}

/* A request that has ended did so for a reason. */
static void check_end(struct day *d, const struct life *life, int64_t i, struct totals *t)
{
    const struct hzp_request *rq = life->rq;
    const struct hzp_demands *a = &rq->demands;
    int32_t count = atomic_load(&rq->out_count);
    uint64_t last = count ? rq->out[count - 1].version : 0;
    if (rq->state == HZP_REQUEST_CHANGED && rq->changed == HZP_CHANGED_SWAP)
        check(d, a->mode != HZP_PINNED && (!count || last < d->newest || d->known[last].dropped),
              "ended by a swap", i, count);
    if (rq->state == HZP_REQUEST_CHANGED && rq->changed == HZP_CHANGED_PIN)
        check(d, a->mode == HZP_PINNED, "ended by its pin", i, count);
    if (rq->state == HZP_REQUEST_UNMET && rq->unmet == HZP_UNMET_TIME) {
        check(d, !count && d->steps >= life->submitted + a->wait_ns, "unmet in time", i, count);
        t->unmet_time++;
    }
    if (rq->state == HZP_REQUEST_UNMET && rq->unmet == HZP_UNMET_UNLEARNED) {
        check(d, !count && d->unlearned[a->min_sequence], "never learned", i, a->min_sequence);
        t->unmet_never++;
    }
    check(d, rq->state != HZP_REQUEST_FAILED, "failed", i, count);
    check(d, !rq->pin, "pin", i, count);
    if (a->max_staleness >= 0)
        check(d, rq->staleness <= a->max_staleness, "max_staleness", i, rq->staleness);
    t->recomputes += (uint64_t)rq->recomputes;
    t->left += count && rq->on_trial && last != rq->trial;
    t->waited += count && hzp_demands_wait(a) && rq->admitted_ns > life->submitted + 1;
}

static void look_at(struct day *d, int32_t i, struct totals *t)
{
    struct life *life = &d->life[i];
    int32_t count = atomic_load(&life->rq->out_count);
    for (; life->seen < count; life->seen++)
        check_token(d, life, life->seen, i);
    if (!life->ended && hzp_request_final(life->rq)) {
        life->ended = true;
        d->ended++;
        check_end(d, life, i, t);
    }
}

struct turn {
    struct hzp_step step;
    struct hzp_offer offer;
    uint64_t version;
    bool any;
};

/* Forms a step, as the loop does; in_flight: the one before it, not executed yet. */
static void form(struct day *d, struct turn *t, const struct hzp_batch *in_flight,
                 struct totals *totals)
{
    d->steps++;
    struct hzp_batch *batch = d->batch[d->steps % 2];
    struct hzp_room room = {.rows = once_in(d, 20) ? 0 : d->rows_max, .time = &d->time};
    hzp_batch_clear(batch);
    hzp_weights_reclaim(d->m.weights, d->landed);
    *t = (struct turn){.step = {.number = d->steps,
                                .begin_ns = d->steps,
                                .version = hzp_weights_current(d->m.weights),
                                .in_flight = in_flight},
                       .offer = {.batch = batch}};
    struct hzp_source *source = hzp_scheduler_source(d->s);
    t->any = source->offer(source, &t->step, &room, &t->offer);
    if (t->offer.version) {
        t->step.version = t->offer.version;
        totals->pinned_old++;
        totals->guessed_old += batch->guesses > 0;
    }
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(d->m.weights, &stats);
    if (stats.staleness > stats.bound || (stats.staleness + 1 > stats.bound && once_in(d, 4)))
        t->offer.settle = HZP_SETTLE_ALL;
    t->version = t->step.version->record.id;
    t->step.version->last_step = HZP_MAX(t->step.version->last_step, d->steps);
    for (int32_t i = 0; i < d->submitted; i++)
        if (d->life[i].rq->preemptions > d->life[i].pushes) {
            d->life[i].pushes = d->life[i].rq->preemptions;
            d->life[i].edge = atomic_load(&d->life[i].rq->out_count);
        }
}

/* flying: another step is in flight. */
static void finish(struct day *d, struct turn *t, bool flying, struct totals *totals)
{
    struct hzp_source *source = hzp_scheduler_source(d->s);
    struct hzp_outcome outcome = {.status = HZP_OK, .end_ns = t->step.number};
    const struct hzp_version_record *r = &t->step.version->record;
    check(d, r->id == t->version && r->state >= HZP_VERSION_CURRENT, "slot", (int64_t)r->id,
          (int64_t)t->version);
    execute(d, t->offer.batch, t->step.number, t->version);
    source->deliver(source, &t->step, &t->offer, &outcome);
    for (int32_t i = 0; i < d->submitted; i++)
        look_at(d, i, totals);
    d->landed = t->step.number;
    train(d, &t->offer, t->step.number, flying, totals);
}

static void live(struct day *d, struct totals *totals)
{
    struct turn turn[2], *flying = NULL;
    int idle = 0;
    while (d->ended < d->lives) {
        while (d->submitted < d->lives && once_in(d, 3))
            submit(d, totals);
        if (d->submitted && once_in(d, 40))
            atomic_store(&d->life[between(d, 0, d->submitted - 1)].rq->cancel, true);
        struct turn *t = &turn[d->steps % 2];
        form(d, t, flying ? flying->offer.batch : NULL, totals);
        if (flying)
            finish(d, flying, true, totals);
        flying = t;
        if (!d->ahead || t->offer.settle != HZP_SETTLE_NOTHING || !t->any) {
            finish(d, t, false, totals);
            flying = NULL;
        }
        for (int32_t i = 0; i < d->submitted; i++) /* ended while the step was formed */
            look_at(d, i, totals);
        idle = t->any || d->ended == d->submitted ? 0 : idle + 1;
        check(d, idle < PATIENCE, "deadlock", d->ended, d->submitted);
        check(d, d->steps < 100000, "a day without end", d->ended, d->lives);
    }
    if (flying)
        finish(d, flying, false, totals);
    d->swap_chance = 1 << 30; /* what is used most is computed again, then references are gone */
    do {
        form(d, &turn[0], NULL, totals);
        finish(d, &turn[0], false, totals);
    } while (turn[0].any || d->s->warm.rq);
}

static void run(uint64_t seed, enum sabotage sabotage, struct totals *t)
{
    struct day *d = hzp_xcalloc(1, sizeof(*d));
    d->seed = seed;
    d->sabotage = sabotage;
    open_day(d);
    live(d, t);
    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(d->s, &stats);
    t->days++;
    t->requests += (uint64_t)d->lives;
    t->aborted += stats.aborted;
    t->expired += stats.pins_ended;
    t->pushes += stats.preempted;
    t->hits += stats.prefix_hits;
    t->stale += stats.prefix_stale;
    t->rewarmed += stats.rewarmed_tokens;
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
    .kinds = SABOTAGES, .seeds = 200, .name = kind_name, .run = run_kind};

static void report(const struct totals *t)
{
    typedef unsigned long long u;
    printf("%llu days, %llu requests (%llu continue, %llu abort, %llu recompute, %llu pinned), "
           "%llu swaps, %llu of them to an earlier state; %llu sequences computed again, %llu "
           "ended by a swap, %llu by the bound on pins; %llu steps of a pinned version, %llu of "
           "them guess; %llu "
           "waited for weights, %llu in vain, %llu for an example given up; %llu preemptions, "
           "%llu canceled, %llu prompt tokens found, %llu of them stale; %llu computed again for "
           "later; trials: %llu promoted, %llu dropped, %llu withdrawn, %llu requests on their "
           "side, %llu that went on with other weights\n",
           (u)t->days, (u)t->requests, (u)t->mode[0], (u)t->mode[1], (u)t->mode[2], (u)t->mode[3],
           (u)t->swaps, (u)t->rollbacks, (u)t->recomputes, (u)t->aborted, (u)t->expired,
           (u)t->pinned_old, (u)t->guessed_old, (u)t->waited, (u)t->unmet_time, (u)t->unmet_never,
           (u)t->pushes, (u)t->canceled, (u)t->hits, (u)t->stale, (u)t->rewarmed, (u)t->promoted,
           (u)t->dropped, (u)t->withdrawn, (u)t->on_trial, (u)t->left);
}

int main(int argc, char **argv)
{
    unsigned long long first = 1, last = 6000;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--sabotage=", 11) && argc == 2)
            return sabotage_try(&sabotages, argv[i] + 11);
        if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
            sscanf(argv[++i], "%llu..%llu", &first, &last);
    }
    struct totals t = {0};
    for (uint64_t seed = first; seed <= last; seed++)
        run(seed, SOUND, &t);
    report(&t);
    bool all = t.swaps && t.rollbacks && t.recomputes && t.aborted && t.expired && t.pinned_old &&
               t.guessed_old && t.waited && t.unmet_time && t.unmet_never && t.pushes &&
               t.canceled && t.hits && t.stale && t.rewarmed && t.promoted && t.dropped &&
               t.withdrawn && t.on_trial && t.left;
    if (last - first > 100 && !all)
        puts("a case of the above never came up");
    return last - first > 100 && !all;
}
