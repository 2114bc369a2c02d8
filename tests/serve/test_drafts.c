/* SPDX-License-Identifier: Apache-2.0 */
/* tests/serve/test_drafts.c - the scheduler with every kind of guesses on made-up servers, whose
 * guesses are right as often as the server says: the tokens are those without guesses, and take at
 * most 2 % longer, whatever a row and the host's part of a step cost, for one sequence or many; and
 * where most guesses are right they take clearly less.  Requests that are answered with fewer
 * layers guess, too; those that cannot guess, for which the step has no room for more edits, have
 * their row beside the others' rounds; and they come and end at any time.
 *
 * The loop is driven by hand on a clock of its own, one step ahead of the device unless a step's
 * results must be known, as nanobatch/loop.c does. */
#include "serve/scheduler.h"
#include "tests/serve/seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    POSITIONS = 512,
    PAGE_ROWS = 16,
    PROMPT = 32,
    TOKENS = 400,
    PERIOD = 60,
    WAVES = 3,
    EDITS = 64
};
enum kind { OFF, NGRAM, HISTORY, DEPTH, KINDS };
static const char *const kind_name[] = {"off", "ngram", "history", "depth"};

struct server {
    enum kind kind, text;          /* who guesses; for whose guesses the text is made */
    double row, host, cost, right; /* a step of n rows takes 1 + row n; guessing: cost of that */
    int32_t sequences;
    int32_t plain;  /* so many of them cannot guess */
    uint64_t mixed; /* random depths, lengths and arrivals; 0: all alike */
};

struct leg {
    struct hzp_batch *batch;
    struct hzp_step step;
    struct hzp_offer offer;
    double end, took;
};

struct rig {
    const struct server *is;
    struct hzp_device *dev;
    struct hzp_model_config config;
    struct hzp_model model;
    struct hzp_kvpool *pool;
    struct hzp_scheduler *s;
    struct hzp_source *source;
    struct hzp_version version;
    struct hzp_time time;
    struct leg leg[2];
    int32_t *kv;  /* the token in each slot */
    int32_t wave; /* every request is asked again in each */
    uint64_t steps;
    bool flying;          /* the newest step is */
    double now, free;     /* the host's time; when the device has nothing to do */
    uint64_t tokens_hash; /* of all answers */
};

static const double unit = 1e6; /* nanoseconds */

static void rig_open(struct rig *rig, const struct server *is)
{
    int32_t n = is->sequences, stride = POSITIONS / PAGE_ROWS;
    *rig = (struct rig){.is = is, .version.record.id = 1};
    assert_int_equal(hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &rig->dev, NULL),
                     0);
    rig->config = (struct hzp_model_config){
        .layers = 8, .width = 4, .vocab = 1 << 20, .heads = {.heads = 1, .kv_heads = 1, .dim = 4}};
    rig->model = (struct hzp_model){
        .dev = rig->dev, .config = &rig->config, .act = HZP_F32, .positions = POSITIONS};
    assert_int_equal(hzp_kvpool_create(&rig->model, (n + 1) * stride, PAGE_ROWS, &rig->pool), 0);
    hzp_time_init(&rig->time, 1, NULL, HZP_F32);
    struct hzp_scheduler_config config = {.running_max = n,
                                          .waiting_max = n,
                                          .waiting_tokens_max = 1 << 20,
                                          .edits_max = EDITS,
                                          .lookup_max = is->kind ? HZP_LOOKUP_MAX : 0,
                                          .guess_by_depth = is->kind == DEPTH,
                                          .history = is->kind == HISTORY};
    assert_int_equal(hzp_scheduler_create(&config, &rig->model, rig->pool, &rig->s), 0);
    rig->source = hzp_scheduler_source(rig->s);
    struct hzp_batch_config batch = {.rows_max = 256,
                                     .segs_max = n + HZP_MAX(n, HZP_LOOKUP_MAX),
                                     .page_stride = stride,
                                     .logits_max = n + HZP_MAX(n, HZP_LOOKUP_MAX),
                                     .edits_max = EDITS,
                                     .layers = rig->config.layers};
    for (int i = 0; i < 2; i++)
        assert_int_equal(hzp_batch_create(rig->dev, &batch, &rig->leg[i].batch), 0);
    rig->kv = hzp_xcalloc((size_t)hzp_kvpool_pages(rig->pool) * PAGE_ROWS, sizeof(*rig->kv));
}

static void rig_close(struct rig *rig)
{
    hzp_scheduler_destroy(rig->s);
    hzp_batch_destroy(rig->leg[0].batch);
    hzp_batch_destroy(rig->leg[1].batch);
    hzp_kvpool_destroy(rig->pool);
    hzp_device_close(rig->dev);
    free(rig->kv);
}

static bool happens(double often, int32_t id, int32_t position, int32_t salt)
{
    uint64_t seed = ((uint64_t)id << 40) + ((uint64_t)salt << 20) + (uint64_t)position;
    return seeded(&seed, 1000) < 1000 * often;
}

/* What stands at a position of the answer to prompt `id`: a text that repeats itself, or, for
 * earlier answers, one that does not, with other tokens where a guess is to be wrong. */
static int32_t token_of(const struct rig *rig, int32_t id, int32_t position)
{
    bool repeats = rig->is->text != HISTORY;
    int32_t salt = repeats ? 0 : rig->wave;
    int32_t token = 1000 * id + (repeats ? position % PERIOD : position);
    bool other = (repeats || rig->wave) && !happens(rig->is->right, id, position, salt);
    return other ? token + 500000 + 1000 * rig->wave : token;
}

static void execute(struct rig *rig, struct leg *leg)
{
    struct hzp_batch *b = leg->batch;
    for (int32_t r = 0; r < b->refs; r++)
        b->id[r] = b->from->token[b->ref[r]];
    for (int32_t r = 0; r < b->rows; r++)
        rig->kv[b->slot[r]] = b->id[r];
    for (int32_t n = 0, seg = 0; n < b->logits; n++) {
        while (b->row0[seg + 1] <= b->logit_row[n])
            seg++;
        int32_t id = rig->kv[b->page[seg * b->max.page_stride] * PAGE_ROWS];
        int32_t position = (int32_t)b->sample[n].position;
        bool wrong = b->path[seg] >= HZP_DEPTH_GUESS && !happens(rig->is->right, id, position, 7);
        b->token[n] = token_of(rig, id, position) + wrong;
        b->logprob[n] = -1;
        b->rank[n] = 1;
    }
    bool guesses = b->guesses == b->rows; /* none of its rows goes through all layers */
    assert_true(!b->guesses || rig->is->kind == DEPTH);
    leg->took = (1 + rig->is->row * b->rows) * (guesses ? rig->is->cost : 1);
}

static void deliver(struct rig *rig, struct leg *leg)
{
    rig->now = HZP_MAX(rig->now, leg->end);
    struct hzp_outcome outcome = {.end_ns = (uint64_t)(unit * rig->now),
                                  .ns = {[HZP_TENANT_SERVE] = (uint64_t)(unit * leg->took)}};
    if (!leg->batch->guesses)
        hzp_rows_learn(&rig->time.rows, leg->batch->rows, outcome.ns[HZP_TENANT_SERVE]);
    rig->source->deliver(rig->source, &leg->step, &leg->offer, &outcome);
}

static void turn(struct rig *rig)
{
    struct leg *before = &rig->leg[rig->steps % 2], *leg = &rig->leg[++rig->steps % 2];
    if (rig->flying && before->offer.settle) {
        deliver(rig, before);
        rig->flying = false;
    }
    hzp_batch_clear(leg->batch);
    leg->step = (struct hzp_step){.number = rig->steps,
                                  .begin_ns = (uint64_t)(unit * rig->now),
                                  .version = &rig->version,
                                  .in_flight = rig->flying ? before->batch : NULL};
    leg->offer = (struct hzp_offer){.batch = leg->batch};
    struct hzp_room room = {.rows = leg->batch->max.rows_max, .time = &rig->time};
    bool any = rig->source->offer(rig->source, &leg->step, &room, &leg->offer);
    rig->now += rig->is->host;
    if (any) {
        execute(rig, leg);
        leg->end = HZP_MAX(rig->free, rig->now) + leg->took;
        rig->free = leg->end;
    }
    if (rig->flying)
        deliver(rig, before);
    rig->flying = any;
}

static void wake(void *ctx, bool more)
{
    (void)ctx, (void)more;
}

/* Request q; *ret_start: when it comes. */
static struct hzp_request *ask(const struct rig *rig, int32_t q, double *ret_start)
{
    int32_t prompt[PROMPT], biases = EDITS / (rig->is->plain + 1) + 1;
    uint64_t random = rig->is->mixed + (uint64_t)(100 * rig->wave + q);
    bool mixed = rig->is->mixed > 0;
    struct hzp_request *rq;
    for (int32_t i = 0; i < PROMPT; i++) /* as long as a period: what repeats is known */
        prompt[i] = i ? 100000 + 1000 * q + i : q;
    int32_t tokens = mixed ? 1 + seeded(&random, TOKENS) : TOKENS;
    assert_int_equal(hzp_request_create(prompt, PROMPT, tokens, 0, false, &rq), 0);
    rq->id = (uint64_t)q + 1;
    rq->ignore_eos = true;
    rq->wake = wake;
    rq->demands.depth = mixed ? seeded(&random, HZP_DEPTH_PARTS) : 0;
    *ret_start = mixed ? rig->now + seeded(&random, TOKENS) : 0;
    for (; q < rig->is->plain && rq->biases < biases; rq->biases++)
        rq->bias_token[rq->biases] = rq->biases;
    return rq;
}

/* All requests; returns when the last one has ended. */
static void ask_all(struct rig *rig)
{
    struct hzp_request *rq[16];
    double start[16];
    int32_t n = rig->is->sequences, come = 0;
    for (int32_t q = 0; q < n; q++)
        rq[q] = ask(rig, q, &start[q]);
    while (come < n || rig->source->busy(rig->source)) {
        rig->now = rig->source->busy(rig->source) ? rig->now : rig->now + 1;
        for (int32_t q = 0; q < n; q++)
            if (start[q] >= 0 && start[q] <= rig->now) {
                assert_int_equal(hzp_scheduler_submit(rig->s, rq[q], NULL), HZP_OK);
                start[q] = -1;
                come++;
            }
        turn(rig);
    }
    for (int32_t q = 0; q < n; q++) {
        assert_int_equal(rq[q]->state, HZP_REQUEST_LENGTH);
        for (int32_t i = 0; i < rq[q]->max_tokens; i++) {
            int32_t token = rq[q]->out[i].token;
            assert_int_equal(token, token_of(rig, q, PROMPT + i));
            rig->tokens_hash = (rig->tokens_hash ^ (uint64_t)token) * 0x9E3779B97F4A7C15u;
        }
        hzp_request_destroy(rq[q]);
    }
}

struct took {
    double time;
    uint64_t tokens_hash, accepted;
};

static struct took run(const struct server *is)
{
    struct rig rig;
    struct hzp_scheduler_stats stats;
    struct took took = {0};
    rig_open(&rig, is);
    for (rig.wave = 0; rig.wave < WAVES; rig.wave++)
        ask_all(&rig);
    hzp_scheduler_read_stats(rig.s, &stats);
    for (int i = 0; i < HZP_LOOKUP_MAX; i++)
        took.accepted += stats.accepted[i];
    took.time = rig.now;
    took.tokens_hash = rig.tokens_hash;
    rig_close(&rig);
    return took;
}

static int failed;

static void compare(const struct server *is)
{
    struct server off = *is;
    off.kind = OFF;
    struct took with = run(is), without = run(&off);
    double faster = without.time / with.time;
    bool pays = is->right > 0.9 && is->row < 0.05 && is->cost < 0.5 && !is->plain;
    assert_true(with.tokens_hash == without.tokens_hash && !without.accepted);
    if (faster >= 0.98 && (!pays || faster >= 1.1))
        return;
    failed++;
    print_error("%s, %d sequences, row %g, host %g, cost %g, right %g: %.3f times as fast\n",
                kind_name[is->kind], is->sequences, is->row, is->host, is->cost, is->right, faster);
}

static void never_slower(void **state)
{
    static const double row[] = {0, 0.02, 0.1, 0.5, 2}, host[] = {0, 0.05},
                        cost[] = {0.3, 0.6, 1.2}, right[] = {0, 0.3, 0.6, 0.8, 0.95, 1};
    static const int32_t sequences[] = {1, 4, 16};
    (void)state;
    for (enum kind kind = NGRAM; kind < KINDS; kind++)
        for (int c = 0; c < (kind == DEPTH ? HZP_COUNT(cost) : 1); c++)
            for (int r = 0; r < HZP_COUNT(row); r++)
                for (int h = 0; h < HZP_COUNT(host); h++)
                    for (int p = 0; p < HZP_COUNT(right); p++)
                        for (int n = 0; n < HZP_COUNT(sequences); n++)
                            compare(&(struct server){.kind = kind,
                                                     .text = kind,
                                                     .row = row[r],
                                                     .host = host[h],
                                                     .cost = cost[c],
                                                     .right = right[p],
                                                     .sequences = sequences[n]});
    assert_int_equal(failed, 0);
}

/* One or two of four or more cannot guess. */
static void plain_beside(void **state)
{
    static const double row[] = {0, 0.1, 1}, cost[] = {0.3, 0.8}, right[] = {0, 0.8, 1};
    static const int32_t sequences[] = {4, 16};
    (void)state;
    for (int c = 0; c < HZP_COUNT(cost); c++)
        for (int r = 0; r < HZP_COUNT(row); r++)
            for (int p = 0; p < HZP_COUNT(right); p++)
                for (int n = 0; n < HZP_COUNT(sequences); n++)
                    for (int32_t plain = 1; plain <= 2; plain++)
                        compare(&(struct server){.kind = DEPTH,
                                                 .text = DEPTH,
                                                 .row = row[r],
                                                 .host = 0.05,
                                                 .cost = cost[c],
                                                 .right = right[p],
                                                 .sequences = sequences[n],
                                                 .plain = plain});
    assert_int_equal(failed, 0);
}

/* Requests of all depths come and end at any time; some cannot guess. */
static void random_schedules(void **state)
{
    uint64_t random = 11, accepted[2] = {0};
    (void)state;
    for (int i = 0; i < 300; i++) {
        struct server is = {.kind = NGRAM + (enum kind)seeded(&random, KINDS - NGRAM),
                            .row = seeded(&random, 50) * 0.01,
                            .host = seeded(&random, 2) * 0.05,
                            .cost = 0.2 + seeded(&random, 10) * 0.1,
                            .right = seeded(&random, 11) * 0.1,
                            .sequences = 1 + seeded(&random, 8),
                            .mixed = 1000000 * (uint64_t)(i + 1)};
        is.text = is.kind;
        is.plain = is.sequences > 2 ? (int32_t)seeded(&random, 3) : 0;
        struct server off = is;
        off.kind = OFF;
        struct took with = run(&is), without = run(&off);
        assert_true(with.tokens_hash == without.tokens_hash);
        accepted[is.plain > 0] += is.kind == DEPTH ? with.accepted : 0;
    }
    assert_true(accepted[0] > 1000 && accepted[1] > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(never_slower),
                                       cmocka_unit_test(plain_beside),
                                       cmocka_unit_test(random_schedules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
