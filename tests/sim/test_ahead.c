/* SPDX-License-Identifier: Apache-2.0 */
/* Running ahead changes no visible result: the same requests on the CPU's lanes, one step ahead
 * and not, with real arithmetic, give the same tokens, log-probabilities and counts, bit for
 * bit: greedy and seeded draws, biases, penalties, min_tokens, stop ids, prompt
 * log-probabilities, requests that end while one of their steps is in flight.
 *
 * Where memory runs out while the loop is created, creation fails cleanly and leaves what it had
 * borrowed intact. */
#include "nanobatch/loop.h"
#include "serve/scheduler.h"
#include "tests/fixture/model.h"
#include "tests/serve/seeded.h"
#include "text/grammar/grammar.h"
#include "text/grammar/regular.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 48, POSITIONS = 64, PAGE_ROWS = 4, REQUESTS = 60 };

struct engine {
    struct fixture_model m;
    struct hzp_kvpool *pool;
    struct hzp_scheduler *scheduler;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_loop *loop;
};

static const struct hzp_model_config model_config = {.family = "llama",
                                                     .layers = 2,
                                                     .width = 32,
                                                     .inner = 48,
                                                     .vocab = VOCAB,
                                                     .heads = {2, 1, 16},
                                                     .positions = POSITIONS,
                                                     .norm_eps = 1e-5f,
                                                     .rope_theta = 10000,
                                                     .bos = -1,
                                                     .eos = {3, 8, 17, 30},
                                                     .eos_count = 4};

/* Two nano-batches on lanes of their own: only the head and the dependencies between steps make
 * the second one wait for the first. */
static const struct hzp_plan_shape two_lanes = {
    .nanos = 2,
    .weight = {3, 1},
    .lane = {{[HZP_KIND_DECODE] = HZP_LANE_COMPUTE},
             {HZP_LANE_COPY, HZP_LANE_COPY, HZP_LANE_COPY, HZP_LANE_COPY}},
};

static struct hzp_loop_config loop_config(const struct engine *e, enum hzp_run_ahead ahead)
{
    return (struct hzp_loop_config){.model = e->m.model,
                                    .space = e->space,
                                    .batch = e->batch,
                                    .source = {hzp_scheduler_source(e->scheduler)},
                                    .sources = 1,
                                    .shape = &two_lanes,
                                    .run_ahead = ahead,
                                    .check_plans = true};
}

static void open_engine(struct engine *e, enum hzp_run_ahead ahead)
{
    struct fixture_config fixture = {.device = "cpu",
                                     .threads = 2,
                                     .config = model_config,
                                     .store = {.type = HZP_F32},
                                     .positions = POSITIONS};
    struct hzp_scheduler_config scheduler = {.running_max = 8,
                                             .waiting_max = 64,
                                             .waiting_tokens_max = 1 << 20,
                                             .prefill_rows_max = 16,
                                             .edits_max = 400};
    struct hzp_batch_config max = {.rows_max = 32,
                                   .segs_max = 8,
                                   .page_stride = POSITIONS / PAGE_ROWS,
                                   .logits_max = 16,
                                   .edits_max = 400,
                                   .masks_max = 8,
                                   .mask_words = hzp_mask_words(VOCAB)};
    memset(e, 0, sizeof(*e));
    fixture_open(&e->m, &fixture);
    fixture_publish_random(&e->m, 7, 0.25f);
    assert_int_equal(hzp_kvpool_create(e->m.model, 100, PAGE_ROWS, &e->pool), 0);
    assert_int_equal(hzp_scheduler_create(&scheduler, e->m.model, e->pool, &e->scheduler), 0);
    assert_int_equal(hzp_batch_create(e->m.dev, &max, &e->batch), 0);
    assert_int_equal(hzp_serve_space_create(e->m.model, 32, 16, &e->space), 0);
    struct hzp_loop_config loop = loop_config(e, ahead);
    assert_int_equal(hzp_loop_create(&loop, &e->loop), 0);
}

static void close_engine(struct engine *e)
{
    hzp_loop_destroy(e->loop);
    hzp_serve_space_destroy(e->space);
    hzp_batch_destroy(e->batch);
    hzp_scheduler_destroy(e->scheduler);
    hzp_kvpool_destroy(e->pool);
    fixture_close(&e->m);
}

static struct hzp_request *make_request(int i)
{
    uint64_t seed = (uint64_t)i * 7919 + 1;
    int32_t prompt[POSITIONS], count = 1 + (int32_t)seeded(&seed, 20);
    int32_t tokens = (int32_t)seeded(&seed, 44);
    struct hzp_request *rq;
    for (int32_t k = 0; k < count; k++)
        prompt[k] = (int32_t)seeded(&seed, VOCAB);
    assert_int_equal(hzp_request_create(prompt, count, tokens, (int32_t)seeded(&seed, 4),
                                        seeded(&seed, 4) == 0, &rq),
                     0);
    rq->sampling = (struct hzp_sampling){.top_p = 1, .repetition = 1, .seed = (uint64_t)i};
    if (i % 2)
        rq->sampling.temperature = 0.9f;
    if (i % 7 == 3)
        rq->sampling.presence = 0.7f;
    if (i % 11 == 5)
        rq->sampling.repetition = 1.3f;
    if (i % 5 == 1) {
        rq->bias_token[0] = 9;
        rq->bias[rq->biases++] = 2;
    }
    rq->ignore_eos = i % 3 == 0;
    rq->min_tokens = i % 4 == 0 ? HZP_MIN(tokens, 5) : 0;
    if (i % 6 == 2)
        rq->stop_id[rq->stop_ids++] = (int32_t)seeded(&seed, VOCAB);
    return rq;
}

/* Which requests have penalties; SOME: about every fifth, as in make_request; GRAMMARS: none, and
 * every fourth has a grammar. */
enum penalties { NONE, SOME, ALL, GRAMMARS };

/* Tokens below HALF and others in turn, from the first one on. */
enum { HALF = VOCAB / 2 };
static struct hzp_lexicon *lexicon;
static struct hzp_token_rules in_turn;

static void open_grammar(void)
{
    static const char regex[] = "(?:[A-X][Y-p])+"; /* token t is the byte 'A' + t */
    static char byte[VOCAB];
    struct hzp_token_text text[VOCAB];
    int32_t to;
    for (int i = 0; i < VOCAB; i++) {
        byte[i] = (char)('A' + i);
        text[i] = (struct hzp_token_text){&byte[i], 1, false};
    }
    hzp_lexicon_create(text, VOCAB, &lexicon);
    struct hzp_rules *rules = hzp_rules_create();
    int32_t root = hzp_rules_add(rules, "root", 4);
    assert_int_equal(hzp_regex_rules(rules, rules->rule[root].first, regex, sizeof(regex) - 1,
                                     HZP_SPELL_PLAIN, false, &to, NULL),
                     0);
    hzp_rules_empty(rules, to, rules->rule[root].last);
    struct hzp_grammar *grammar;
    assert_int_equal(hzp_grammar_create(rules, root, lexicon, &grammar, NULL), 0);
    in_turn.constraint = hzp_grammar_constraint(grammar);
    hzp_rules_destroy(rules);
}

static void close_grammar(void)
{
    hzp_constraint_unref(in_turn.constraint);
    hzp_lexicon_destroy(lexicon);
}

static void check_in_turn(const struct hzp_request *rq)
{
    int32_t n = atomic_load(&rq->out_count);
    if (atomic_load(&rq->state) == HZP_REQUEST_STOPPED)
        n--; /* the stop id or the end */
    for (int32_t i = 0; i < n && rq->tokens; i++)
        assert_int_equal(rq->out[i].token >= HALF, i % 2);
}

/* Returns how many requests a token stopped. */
static int answer_all(enum hzp_run_ahead ahead, enum penalties penalties, struct hzp_request **rq,
                      struct hzp_loop_stats *ret, uint64_t *ret_generated)
{
    struct engine e;
    int sent = 0, ended = 0, stopped = 0;
    open_engine(&e, ahead);
    for (int turn = 0; ended < REQUESTS; turn++) {
        /* Requests arrive one at a time, independently of the turns of either loop. */
        for (; sent < REQUESTS && sent < ended + 6; sent++) {
            rq[sent] = make_request(sent);
            if (penalties == GRAMMARS && sent % 4 == 1)
                rq[sent]->tokens = &in_turn;
            if (penalties == NONE || penalties == GRAMMARS) {
                rq[sent]->sampling.presence = 0;
                rq[sent]->sampling.repetition = 1;
            } else if (penalties == ALL) {
                rq[sent]->sampling.frequency = 0.2f;
            }
            assert_int_equal(hzp_scheduler_submit(e.scheduler, rq[sent], NULL), 0);
        }
        assert_true(hzp_loop_turn(e.loop) >= 0 && turn < 100000);
        for (ended = stopped = 0; ended < sent && hzp_request_final(rq[ended]); ended++)
            stopped += atomic_load(&rq[ended]->state) == HZP_REQUEST_STOPPED;
    }
    while (hzp_loop_turn(e.loop) > 0) {
    }
    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(e.scheduler, &stats);
    assert_int_equal(stats.kv_taken, 0);
    *ret_generated = stats.generated_tokens;
    hzp_loop_read_stats(e.loop, ret);
    close_engine(&e);
    return stopped;
}

static void check_same(const struct hzp_request *a, const struct hzp_request *b)
{
    int32_t n = atomic_load(&a->out_count);
    assert_int_equal(atomic_load(&a->state), atomic_load(&b->state));
    assert_int_equal(n, atomic_load(&b->out_count));
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(a->out[i].token, b->out[i].token);
        assert_memory_equal(&a->out[i].logprob, &b->out[i].logprob, sizeof(float));
        assert_int_equal(a->out[i].rank, b->out[i].rank);
    }
    size_t tops = (size_t)n * (size_t)a->tops;
    assert_memory_equal(a->top_token, b->top_token, tops * sizeof(*a->top_token));
    assert_memory_equal(a->top_logprob, b->top_logprob, tops * sizeof(*a->top_logprob));
    for (int32_t i = 1; a->prompt_logprobs && i < a->prompt_count; i++)
        assert_memory_equal(&a->prompt_out[i].logprob, &b->prompt_out[i].logprob, sizeof(float));
}

static void compare(enum penalties penalties)
{
    struct hzp_request *with[REQUESTS], *without[REQUESTS];
    struct hzp_loop_stats stats;
    uint64_t generated, generated_without, shown = 0;
    int stopped = answer_all(HZP_AHEAD_ALWAYS, penalties, with, &stats, &generated);
    print_message("%d stopped, %llu of %llu steps ahead\n", stopped,
                  (unsigned long long)stats.ahead_steps, (unsigned long long)stats.steps);
    if (penalties != ALL) {
        assert_true(stopped >= 8); /* each of them had one more row in flight */
        assert_true(stats.ahead_steps > stats.steps / 2);
    } else { /* only behind steps that hold nothing but pieces of prompts */
        assert_true(stats.ahead_steps < stats.steps / 4);
    }
    answer_all(HZP_AHEAD_NEVER, penalties, without, &stats, &generated_without);
    assert_int_equal(stats.ahead_steps, 0);
    for (int i = 0; i < REQUESTS; i++) {
        check_same(with[i], without[i]);
        check_in_turn(with[i]);
        shown += (uint64_t)atomic_load(&with[i]->out_count);
        hzp_request_destroy(with[i]);
        hzp_request_destroy(without[i]);
    }
    /* Draws of rows that belong to ended requests must not be counted. */
    assert_int_equal(generated, shown);
    assert_int_equal(generated_without, shown);
}

static void the_same_tokens(void **state)
{
    compare(NONE);
}

static void the_same_with_penalties(void **state)
{
    compare(SOME);
    compare(ALL);
}

/* Only the rows that have a grammar wait for their tokens. */
static void the_same_with_grammars(void **state)
{
    open_grammar();
    compare(GRAMMARS);
    close_grammar();
}

/* Wrappers of the functions through which a loop takes memory, and of the one that must not free
   the batch it borrowed. */
int __real_hzp_batch_create(struct hzp_device *dev, const struct hzp_batch_config *max,
                            struct hzp_batch **ret);
int __wrap_hzp_batch_create(struct hzp_device *dev, const struct hzp_batch_config *max,
                            struct hzp_batch **ret);
int __real_hzp_fence_open(struct hzp_device *dev, struct hzp_fence **ret);
int __wrap_hzp_fence_open(struct hzp_device *dev, struct hzp_fence **ret);
void __real_hzp_batch_destroy(struct hzp_batch *batch);
void __wrap_hzp_batch_destroy(struct hzp_batch *batch);

static int until_none = -1; /* allocations that may still succeed; < 0: any number */
static const struct hzp_batch *borrowed;
static bool gave_back;

static bool none_left(void)
{
    return until_none >= 0 && until_none-- == 0;
}

int __wrap_hzp_batch_create(struct hzp_device *dev, const struct hzp_batch_config *max,
                            struct hzp_batch **ret)
{
    return none_left() ? HZP_ENOMEM : __real_hzp_batch_create(dev, max, ret);
}

int __wrap_hzp_fence_open(struct hzp_device *dev, struct hzp_fence **ret)
{
    return none_left() ? HZP_ENOMEM : __real_hzp_fence_open(dev, ret);
}

void __wrap_hzp_batch_destroy(struct hzp_batch *batch)
{
    gave_back |= batch && batch == borrowed;
    if (batch != borrowed)
        __real_hzp_batch_destroy(batch);
}

static void no_memory_for_a_loop(void **state)
{
    struct engine e;
    struct hzp_loop *loop = NULL;
    int fail_at = 0;
    open_engine(&e, HZP_AHEAD_NEVER);
    struct hzp_loop_config config = loop_config(&e, HZP_AHEAD_NEVER);
    borrowed = e.batch;
    for (;; fail_at++) {
        until_none = fail_at;
        int r = hzp_loop_create(&config, &loop);
        assert_false(gave_back);
        if (r == HZP_OK)
            break;
        assert_int_equal(r, HZP_ENOMEM);
        assert_null(loop);
    }
    until_none = -1;
    assert_true(fail_at > 10); /* a batch, and the fences of three flights */
    hzp_loop_destroy(loop);
    borrowed = NULL;
    close_engine(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_tokens), cmocka_unit_test(the_same_with_penalties),
        cmocka_unit_test(the_same_with_grammars), cmocka_unit_test(no_memory_for_a_loop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
