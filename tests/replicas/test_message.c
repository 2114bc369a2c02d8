/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the front and replicas: what is written is read, and nothing that is cut or
 * changed does harm. */
#include "api/front/message.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 100, POSITIONS = 64 };
static const struct hzp_message_limits limits = {VOCAB, POSITIONS, 8};

static const struct hzp_sent_rules none = {.rules = {.bads = 0}};

/* Limits of all kinds; the grammar itself is not sent, only what it is made of. */
static const int32_t allowed[] = {3, 20, 21, 22, 99}, banned[] = {4, 5, 6}, bad_at[] = {0, 1, 3};
static const struct hzp_token_rules limited = {.allowed = allowed,
                                               .alloweds = 5,
                                               .bad = banned,
                                               .bad_at = bad_at,
                                               .bads = 2,
                                               .constraint = (struct hzp_constraint *)(uintptr_t)1,
                                               .source = "{\"regex\": \"a+\"}"};

static struct hzp_request *make(void)
{
    const int32_t prompt[] = {5, 6, 7, 8};
    struct hzp_request *rq;
    assert_int_equal(hzp_request_create(prompt, 4, 10, 2, false, &rq), HZP_OK);
    rq->min_tokens = 3;
    rq->priority = -4;
    rq->ignore_eos = true;
    rq->stop_id[rq->stop_ids++] = 9;
    rq->stop_id[rq->stop_ids++] = 99;
    rq->biases = 2;
    rq->bias_token[0] = 1;
    rq->bias_token[1] = 2;
    rq->bias[0] = 0.5f;
    rq->bias[1] = -INFINITY;
    rq->sampling = (struct hzp_sampling){.temperature = 0.7f,
                                         .top_p = 0.9f,
                                         .min_p = 0.1f,
                                         .repetition = 1.1f,
                                         .presence = 0.2f,
                                         .frequency = 0.3f,
                                         .top_k = 40,
                                         .seed = 0xdeadbeefcafe,
                                         .choice = 3};
    rq->tokens = &limited;
    rq->demands.mode = HZP_RECOMPUTE;
    rq->demands.min_version = 17;
    rq->demands.wait_ns = 5;
    for (int i = 0; i < 3; i++)
        rq->out[i].token = 20 + i;
    atomic_store(&rq->out_count, 3);
    return rq;
}

static void requests(void **state)
{
    struct hzp_request *rq = make(), *got = NULL;
    struct hzp_message m = {.data = NULL};
    struct hzp_sent_rules rules = none;
    uint64_t id = 0;
    hzp_request_write(&m, 42, rq, 17);
    assert_int_equal(hzp_request_read(m.data, m.bytes, &limits, &id, &got, &rules, NULL), HZP_OK);
    assert_int_equal(id, 42);
    assert_int_equal(got->prompt_count, 4);
    assert_memory_equal(got->prompt, rq->prompt, 4 * sizeof(int32_t));
    assert_int_equal(got->max_tokens, 10);
    assert_int_equal(got->min_tokens, 3);
    assert_int_equal(got->tops, 2);
    assert_int_equal(got->priority, -4);
    assert_true(got->ignore_eos);
    assert_int_equal(got->stop_ids, 2);
    assert_memory_equal(got->stop_id, rq->stop_id, 2 * sizeof(int32_t));
    assert_int_equal(got->biases, 2);
    assert_memory_equal(got->bias_token, rq->bias_token, 2 * sizeof(int32_t));
    assert_memory_equal(got->bias, rq->bias, 2 * sizeof(float));
    assert_int_equal(got->sampling.seed, rq->sampling.seed);
    assert_int_equal(got->sampling.choice, 3);
    assert_int_equal(got->sampling.top_k, 40);
    assert_memory_equal(&got->sampling.temperature, &rq->sampling.temperature, 6 * sizeof(float));
    assert_int_equal(got->demands.mode, HZP_RECOMPUTE);
    assert_int_equal(got->demands.min_version, 17);
    assert_int_equal(got->demands.wait_ns, 5);
    assert_int_equal(got->demands.max_staleness, -1);
    assert_int_equal(atomic_load(&got->out_count), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(got->out[i].token, 20 + i);
    assert_ptr_equal(got->tokens, &rules.rules);
    assert_null(got->tokens->constraint);
    assert_string_equal(got->tokens->source, limited.source);
    assert_int_equal(got->tokens->alloweds, 5);
    assert_memory_equal(got->tokens->allowed, allowed, sizeof(allowed));
    assert_int_equal(got->tokens->bads, 2);
    assert_memory_equal(got->tokens->bad_at, bad_at, sizeof(bad_at));
    assert_memory_equal(got->tokens->bad, banned, sizeof(banned));
    assert_false(got->prompt_logprobs);
    hzp_request_destroy(got);
    hzp_sent_rules_fini(&rules);
    hzp_request_destroy(rq);
    hzp_message_fini(&m);
}

/* Memory of exactly this size, so that reading beyond it is seen by ASan. */
static char *exactly(const struct hzp_message *m, size_t bytes)
{
    char *copy = hzp_xmalloc(HZP_MAX(bytes, 1));
    memcpy(copy, m->data, bytes);
    return copy;
}

static void cut_requests(void **state)
{
    struct hzp_request *rq = make(), *got;
    struct hzp_message m = {.data = NULL};
    struct hzp_sent_rules rules = none;
    uint64_t id;
    hzp_request_write(&m, 42, rq, 17);
    for (size_t n = 1; n < m.bytes; n++) {
        struct hzp_err_text err = {{0}, {0}};
        char *cut = exactly(&m, n);
        assert_int_equal(hzp_request_read(cut, n, &limits, &id, &got, &rules, &err), HZP_EFORMAT);
        assert_true(err.text[0]);
        assert_memory_equal(&rules, &none, sizeof(none));
        free(cut);
    }
    /* What follows the end is not ignored either. */
    char *more = hzp_xcalloc(1, m.bytes + 1);
    memcpy(more, m.data, m.bytes);
    assert_int_equal(hzp_request_read(more, m.bytes + 1, &limits, &id, &got, &rules, NULL),
                     HZP_EFORMAT);
    free(more);
    hzp_request_destroy(rq);
    hzp_message_fini(&m);
}

/* Every byte is changed in turn: the request is refused, or is one that could have been sent. */
static void changed_requests(void **state)
{
    struct hzp_request *rq = make(), *got;
    struct hzp_message m = {.data = NULL};
    struct hzp_sent_rules rules = none;
    uint64_t id;
    int refused = 0, taken = 0;
    hzp_request_write(&m, 42, rq, 17);
    for (size_t n = 1; n < m.bytes; n++)
        for (int bit = 0; bit < 8; bit++) {
            char *copy = exactly(&m, m.bytes);
            copy[n] = (char)(copy[n] ^ 1 << bit);
            if (hzp_request_read(copy, m.bytes, &limits, &id, &got, &rules, NULL) == HZP_OK) {
                taken++;
                assert_in_range(got->prompt_count, 1, POSITIONS);
                assert_in_range(got->max_tokens, 1, POSITIONS - got->prompt_count);
                assert_in_range(atomic_load(&got->out_count), 0, got->max_tokens - 1);
                for (int i = 0; i < got->prompt_count; i++)
                    assert_in_range(got->prompt[i], 0, VOCAB - 1);
                const struct hzp_token_rules *t = got->tokens;
                for (int32_t i = 0; t && i < t->alloweds; i++)
                    assert_in_range(t->allowed[i], 0, VOCAB - 1);
                for (int32_t i = 0; t && i < t->bads; i++)
                    assert_in_range(t->bad_at[i + 1] - t->bad_at[i], 1, HZP_BAD_TOKENS_MAX);
                for (int32_t i = 0; t && t->bads && i < t->bad_at[t->bads]; i++)
                    assert_in_range(t->bad[i], 0, VOCAB - 1);
                assert_true(!t || !t->source || strlen(t->source) <= HZP_SENT_SOURCE_MAX);
                hzp_request_destroy(got);
                hzp_sent_rules_fini(&rules);
            } else {
                assert_memory_equal(&rules, &none, sizeof(none));
                refused++;
            }
            free(copy);
        }
    assert_true(refused > 100 && taken > 100);
    hzp_request_destroy(rq);
    hzp_message_fini(&m);
}

/* A request of embeddings, and the numbers that it comes to. */
static void embeddings(void **state)
{
    static const int32_t prompt[] = {1, 2, 3};
    const struct hzp_message_limits narrow = {VOCAB, POSITIONS, 0};
    struct hzp_replica_load load = {.version = 3};
    struct hzp_message m = {.data = NULL};
    struct hzp_message_reader reader;
    struct hzp_request *rq, *got;
    struct hzp_sent_rules rules = none;
    struct hzp_news news = {.id = 7,
                            .state = HZP_REQUEST_LENGTH,
                            .stop_token = -1,
                            .hidden = 8,
                            .prompt_version = 3},
                    read;
    uint64_t id;
    float hidden[8];
    assert_int_equal(hzp_request_create(prompt, 3, 0, 0, false, &rq), HZP_OK);
    assert_false(hzp_message_fits(rq)); /* it is for nothing */
    assert_int_equal(hzp_request_pool(rq, HZP_POOLING_LAST, 8), HZP_OK);
    assert_true(hzp_message_fits(rq));
    hzp_request_write(&m, 7, rq, 0);
    assert_int_equal(hzp_request_read(m.data, m.bytes, &narrow, &id, &got, &rules, NULL),
                     HZP_EFORMAT);
    assert_int_equal(hzp_request_read(m.data, m.bytes, &limits, &id, &got, &rules, NULL), HZP_OK);
    assert_int_equal(got->max_tokens, 0);
    assert_int_equal(got->pooling, HZP_POOLING_LAST);
    assert_int_equal(got->hidden_cols, 8);
    for (int i = 0; i < 8; i++)
        rq->hidden[i] = 0.5f * (float)i;
    hzp_news_begin(&m, &load);
    hzp_news_add(&m, &news, rq);
    for (size_t cut = 0; cut < 2; cut++) {
        char *bytes = exactly(&m, m.bytes - cut);
        assert_int_equal(hzp_news_read(bytes, m.bytes - cut, &reader, &load, NULL), HZP_OK);
        if (cut) {
            assert_false(hzp_news_next(&reader, &read));
            assert_true(reader.bad);
        } else {
            assert_true(hzp_news_next(&reader, &read));
            assert_int_equal(read.hidden, 8);
            assert_int_equal(read.prompt_version, 3);
            assert_true(hzp_news_hidden(&reader, &read, hidden));
            assert_memory_equal(hidden, rq->hidden, sizeof(hidden));
            assert_false(hzp_news_next(&reader, &read));
            assert_false(reader.bad);
        }
        free(bytes);
    }
    hzp_request_destroy(got);
    hzp_request_destroy(rq);
    hzp_message_fini(&m);
}

/* What is known of a prompt's tokens comes with the first one drawn. */
static void prompts(void **state)
{
    static const int32_t prompt[] = {1, 2, 3};
    struct hzp_replica_load load = {.version = 3};
    struct hzp_message m = {.data = NULL};
    struct hzp_message_reader reader;
    struct hzp_sent_rules rules = none;
    struct hzp_request *rq, *got;
    struct hzp_news news = {.id = 7, .count = 1, .tops = 2, .prompts = 3, .prompt_version = 3},
                    read;
    struct hzp_output out;
    int32_t token[2];
    float logprob[2];
    uint64_t id;
    assert_int_equal(hzp_request_create(prompt, 3, 5, 2, true, &rq), HZP_OK);
    hzp_request_write(&m, 7, rq, 0);
    assert_int_equal(hzp_request_read(m.data, m.bytes, &limits, &id, &got, &rules, NULL), HZP_OK);
    assert_true(got->prompt_logprobs);
    for (int p = 1; p < 3; p++) {
        rq->prompt_out[p] = (struct hzp_output){.token = p + 1, .logprob = -0.5f, .rank = p};
        for (int t = 0; t < 2; t++) {
            rq->prompt_top_token[2 * p + t] = 10 * p + t;
            rq->prompt_top_logprob[2 * p + t] = -(float)t;
        }
    }
    hzp_news_begin(&m, &load);
    hzp_news_add(&m, &news, rq);
    for (size_t n = m.bytes; n + 50 > m.bytes; n--) {
        char *bytes = exactly(&m, n);
        assert_int_equal(hzp_news_read(bytes, n, &reader, &load, NULL), HZP_OK);
        bool whole = hzp_news_next(&reader, &read) &&
                     hzp_news_token(&reader, &read, VOCAB, &out, token, logprob) &&
                     hzp_news_hidden(&reader, &read, NULL) &&
                     hzp_news_prompt(&reader, &read, VOCAB, got);
        assert_int_equal(whole, n == m.bytes);
        if (whole) {
            assert_int_equal(read.prompts, 3);
            assert_false(hzp_news_next(&reader, &read) || reader.bad);
            assert_int_equal(got->prompt_out[2].token, 3);
            assert_int_equal(got->prompt_out[2].rank, 2);
            assert_memory_equal(got->prompt_top_token + 2, rq->prompt_top_token + 2, 16);
            assert_memory_equal(got->prompt_top_logprob + 2, rq->prompt_top_logprob + 2, 16);
        }
        free(bytes);
    }
    hzp_request_destroy(got);
    atomic_store(&rq->out_count, 1); /* they have come */
    hzp_request_write(&m, 7, rq, 0);
    assert_int_equal(hzp_request_read(m.data, m.bytes, &limits, &id, &got, &rules, NULL), HZP_OK);
    assert_false(got->prompt_logprobs);
    hzp_request_destroy(got);
    hzp_request_destroy(rq);
    hzp_message_fini(&m);
}

/* A replica reuses rows of older versions only for requests for which rank 0 would, too. */
static void fresh_rows(void **state)
{
    const struct hzp_demands plain = {.max_staleness = -1};
    struct hzp_demands asks[] = {plain, plain, plain, plain, plain};
    struct hzp_request *rq = make(), *got;
    struct hzp_message m = {.data = NULL};
    rq->tokens = NULL;
    asks[1].max_staleness = 1;
    asks[2].min_sequence = 3;
    asks[3].through = 3;
    asks[4].fresh = true;
    for (int i = 0; i < HZP_COUNT(asks); i++) {
        struct hzp_sent_rules rules = none;
        uint64_t id;
        rq->demands = asks[i];
        hzp_request_write(&m, 7, rq, 17);
        assert_int_equal(hzp_request_read(m.data, m.bytes, &limits, &id, &got, &rules, NULL),
                         HZP_OK);
        assert_int_equal(hzp_demands_oldest(&got->demands, 20), i ? 20 : 17);
        hzp_request_destroy(got);
    }
    hzp_request_destroy(rq);
    hzp_message_fini(&m);
}

static void policies(void **state)
{
    const struct hzp_policy policy = {.ttft_ns = 5,
                                      .itl_ns = 6,
                                      .itl_stretch = 1.5,
                                      .train_share = 0.25,
                                      .train_max = 0.75,
                                      .train_min = 0.125};
    struct hzp_policy got, bad = policy;
    struct hzp_message m = {.data = NULL};
    hzp_plain_write(&m, 'P', &policy, sizeof(policy));
    assert_int_equal(hzp_policy_read(m.data, m.bytes, &got), HZP_OK);
    assert_memory_equal(&got, &policy, sizeof(got));
    for (size_t n = 1; n < m.bytes; n++)
        assert_int_equal(hzp_policy_read(m.data, n, &got), HZP_EFORMAT);
    bad.train_max = NAN;
    hzp_plain_write(&m, 'P', &bad, sizeof(bad));
    assert_int_equal(hzp_policy_read(m.data, m.bytes, &got), HZP_EFORMAT);
    hzp_message_fini(&m);
}

static void fits(void **state)
{
    struct hzp_request *rq = make();
    struct hzp_token_rules rules = limited;
    assert_true(hzp_message_fits(rq));
    rq->demands.min_sequence = 3; /* the front says it by a version */
    assert_true(hzp_message_fits(rq));
    rq->tokens = &rules;
    rules.source = NULL;
    assert_false(hzp_message_fits(rq));
    char *longest = hzp_xcalloc(HZP_SENT_SOURCE_MAX + 2, 1);
    memset(longest, 'a', HZP_SENT_SOURCE_MAX);
    rules.source = longest;
    assert_true(hzp_message_fits(rq));
    longest[HZP_SENT_SOURCE_MAX] = 'a';
    assert_false(hzp_message_fits(rq));
    free(longest);
    rules = (struct hzp_token_rules){.bads = HZP_SENT_BADS_MAX + 1, .bad_at = bad_at};
    assert_false(hzp_message_fits(rq));
    rq->tokens = NULL;
    for (int mode = HZP_CONTINUE; mode <= HZP_PINNED; mode++)
        for (int32_t most = -1; most <= 2; most++) {
            rq->demands.mode = (enum hzp_consistency)mode;
            rq->demands.max_staleness = most;
            bool kept = most < 0 || (most > 0 && mode != HZP_PINNED);
            assert_int_equal(hzp_message_fits(rq), kept);
        }
    rq->demands.max_staleness = -1;
    rq->prompt_logprobs = true;
    assert_true(hzp_message_fits(rq));
    rq->max_tokens = 0;
    assert_true(hzp_message_fits(rq));
    rq->prompt_logprobs = false;
    assert_false(hzp_message_fits(rq));
    rq->max_tokens = 10;
    rq->pooling = HZP_POOLING_MEAN;
    assert_false(hzp_message_fits(rq));
    rq->pooling = HZP_POOLING_NONE;
    assert_true(hzp_message_fits(rq));
    hzp_request_destroy(rq);
}

/* A message with a first piece of one request, a refusal, and the end of another request. */
static void write_news(struct hzp_message *m, struct hzp_request *rq)
{
    const struct hzp_replica_load load = {.version = 4, .optimizer_step = 3, .running = 2};
    for (int n = 0; n < 4; n++) {
        rq->out[n] = (struct hzp_output){.token = 30 + n,
                                         .logprob = -0.25f * (float)n,
                                         .rank = n,
                                         .version = n < 2 ? 4 : 5,
                                         .prompt_version = 4};
        for (int t = 0; t < 2; t++) {
            rq->top_token[2 * n + t] = 40 + 2 * n + t;
            rq->top_logprob[2 * n + t] = -(float)t;
        }
    }
    hzp_news_begin(m, &load);
    hzp_news_add(m,
                 &(struct hzp_news){.id = 7,
                                    .from = 0,
                                    .count = 3,
                                    .tops = 2,
                                    .state = HZP_REQUEST_RUNNING,
                                    .cached = 2,
                                    .waited_ns = 99},
                 rq);
    hzp_news_add(m, &(struct hzp_news){.id = 8, .refused = HZP_EBUSY, .text = "full"}, NULL);
    hzp_news_add(m,
                 &(struct hzp_news){.id = 9,
                                    .from = 3,
                                    .count = 1,
                                    .tops = 2,
                                    .state = HZP_REQUEST_STOPPED,
                                    .stop_token = 33},
                 rq);
}

/* Reads all of it.  False: it is malformed. */
static bool read_news(const char *data, size_t bytes, struct hzp_news *one, int most,
                      int *ret_count, struct hzp_output *out)
{
    struct hzp_message_reader reader;
    struct hzp_replica_load load;
    struct hzp_news news;
    int32_t top[HZP_TOPS_MAX];
    float logprob[HZP_TOPS_MAX];
    *ret_count = 0;
    if (hzp_news_read(data, bytes, &reader, &load, NULL) < 0)
        return false;
    while (hzp_news_next(&reader, &news)) {
        struct hzp_output o = {.token = 0};
        for (int32_t n = 0; n < news.count; n++) {
            if (!hzp_news_token(&reader, &news, VOCAB, &o, top, logprob))
                return false;
            assert_in_range(o.token, 0, VOCAB - 1);
            if (news.from + n < 4)
                out[news.from + n] = o;
        }
        if (*ret_count < most)
            one[(*ret_count)++] = news;
    }
    return !reader.bad;
}

static void news(void **state)
{
    struct hzp_request *rq = make();
    struct hzp_message m = {.data = NULL};
    struct hzp_news one[8];
    struct hzp_output out[4];
    int count;
    write_news(&m, rq);
    assert_true(read_news(m.data, m.bytes, one, 8, &count, out));
    assert_int_equal(count, 3);
    assert_int_equal(one[0].id, 7);
    assert_int_equal(one[0].cached, 2);
    assert_int_equal(one[0].waited_ns, 99);
    assert_true(one[0].state < HZP_REQUEST_STOPPED);
    assert_int_equal(one[1].refused, HZP_EBUSY);
    assert_string_equal(one[1].text, "full");
    assert_int_equal(one[2].state, HZP_REQUEST_STOPPED);
    assert_int_equal(one[2].stop_token, 33);
    for (int n = 0; n < 4; n++) {
        assert_int_equal(out[n].token, 30 + n);
        assert_int_equal(out[n].rank, n);
        assert_int_equal(out[n].version, n < 2 ? 4 : 5);
        assert_int_equal(out[n].prompt_version, 4);
    }
    hzp_request_destroy(rq);
    hzp_message_fini(&m);
}

static void damaged_news(void **state)
{
    struct hzp_request *rq = make();
    struct hzp_message m = {.data = NULL};
    struct hzp_news one[8];
    struct hzp_output out[4];
    int count, bad = 0;
    write_news(&m, rq);
    for (size_t n = 1; n < m.bytes; n++) {
        char *cut = exactly(&m, n);
        bad += !read_news(cut, n, one, 8, &count, out);
        free(cut);
    }
    assert_true(bad > (int)m.bytes - 8); /* but where an entry ends */
    for (size_t n = 1; n < m.bytes; n++)
        for (int bit = 0; bit < 8; bit++) {
            char *copy = exactly(&m, m.bytes);
            copy[n] = (char)(copy[n] ^ 1 << bit);
            read_news(copy, m.bytes, one, 8, &count, out);
            free(copy);
        }
    hzp_request_destroy(rq);
    hzp_message_fini(&m);
}

static void hellos(void **state)
{
    const struct hzp_hello hello = {.rank = 1,
                                    .ranks = 2,
                                    .vocab = VOCAB,
                                    .positions = POSITIONS,
                                    .running_max = 4,
                                    .waiting_max = 8,
                                    .page_rows = 16,
                                    .kv_pages = 9,
                                    .version = 3,
                                    .optimizer_step = 2,
                                    .checksum = 12};
    struct hzp_message m = {.data = NULL};
    struct hzp_hello got;
    const char *record;
    hzp_hello_write(&m, &hello, "a 1\nb 2\n");
    assert_int_equal(hzp_hello_read(m.data, m.bytes, &got, &record, NULL), HZP_OK);
    assert_memory_equal(&got, &hello, sizeof(hello));
    assert_string_equal(record, "a 1\nb 2\n");
    for (size_t n = 1; n < m.bytes; n++) {
        struct hzp_err_text err = {{0}, {0}};
        char *cut = exactly(&m, n);
        assert_int_equal(hzp_hello_read(cut, n, &got, &record, &err), HZP_EFORMAT);
        assert_true(err.text[0]);
        free(cut);
    }
    hzp_message_fini(&m);
    uint64_t id;
    hzp_plain_write(&m, 'C', &(uint64_t){77}, sizeof(uint64_t));
    assert_int_equal(hzp_plain_read(m.data, m.bytes, &id, sizeof(id)), HZP_OK);
    assert_int_equal(id, 77);
    for (size_t n = 1; n < m.bytes; n++)
        assert_int_equal(hzp_plain_read(m.data, n, &id, sizeof(id)), HZP_EFORMAT);
    hzp_message_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests),
        cmocka_unit_test(cut_requests),
        cmocka_unit_test(changed_requests),
        cmocka_unit_test(fits),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(prompts),
        cmocka_unit_test(fresh_rows),
        cmocka_unit_test(policies),
        cmocka_unit_test(news),
        cmocka_unit_test(damaged_news),
        cmocka_unit_test(hellos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
