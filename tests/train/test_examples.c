/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/train/accept.h"
#include "api/learn/examples_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/text/tokenizer_makes.h"

static struct hzp_model_config config = {.vocab = 300, .eos = {264}, .eos_count = 1};
static struct hzp_tokenizer *tok;
static struct hzp_examples ex;

static int open_bytes(void **state)
{
    scratch_setup(state);
    make_byte_level(MAKE_GPT);
    tok = make_open();
    config.eos[0] = 264;
    hzp_examples_init(&ex, tok, &config, 33, 8);
    return 0;
}

static int open_pieces(void **state)
{
    scratch_setup(state);
    make_sentencepiece();
    tok = make_open();
    config.eos[0] = 2;
    hzp_examples_init(&ex, tok, &config, 33, 8);
    return 0;
}

static int close_all(void **state)
{
    hzp_examples_fini(&ex);
    hzp_tokenizer_close(tok);
    return scratch_teardown(state);
}

/* Checks the only sample of the body: its tokens are `want` (-1 ends), learned from `from` on. */
static void expect(const char *body, const int32_t *want, int32_t from)
{
    struct hzp_sample **sample;
    struct hzp_err_text err = {{0}, {0}};
    int32_t count = 0, n = 0;
    if (hzp_examples_parse(&ex, body, strlen(body), NULL, &sample, &count, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(count, 1);
    while (want[n] >= 0)
        n++;
    assert_int_equal(sample[0]->count, n);
    assert_memory_equal(sample[0]->token, want, (size_t)n * sizeof(*want));
    for (int32_t i = 1; i < n; i++)
        assert_int_equal(sample[0]->learn[i], i >= from);
    hzp_examples_free(sample, count);
}

static void refuse(const char *body, const char *param, const char *word)
{
    struct hzp_sample **sample = NULL;
    struct hzp_err_text err = {{0}, {0}};
    int32_t count = 0;
    assert_int_equal(hzp_examples_parse(&ex, body, strlen(body), NULL, &sample, &count, &err),
                     HZP_EINVAL);
    if (strcmp(err.param, param) || !strstr(err.text, word))
        fail_msg("\"%s\" (%s) does not say \"%s\" (%s)", err.text, err.param, word, param);
}

static void test_shapes(void **state)
{
    expect("{\"prompt\": \"hello\", \"completion\": \"ab\"}", (int32_t[]){259, 'a', 'b', 264, -1},
           1);
    expect("[{\"prompt\": \"\", \"completion\": \"ab\"}]", (int32_t[]){'a', 'b', 264, -1}, 0);
    expect("\n  {\"text\": \"hello\"}\r\n\n", (int32_t[]){259, 264, -1}, 1);
    expect("{\"tokens\": [5, 6, 7], \"learn\": [0, 0, 1]}", (int32_t[]){5, 6, 7, -1}, 2);
    expect("{\"tokens\": [5, 6, 7], \"learn\": [true, true, true]}", (int32_t[]){5, 6, 7, -1}, 0);
    expect("{\"tokens\": [5, 6, 7]}", (int32_t[]){5, 6, 7, -1}, 1);
    /* a column that is null is none */
    expect("{\"text\": \"hello\", \"prompt\": null, \"completion\": null, \"messages\": null, "
           "\"conversations\": null, \"score\": null}",
           (int32_t[]){259, 264, -1}, 1);
    expect("{\"tokens\": [5, 6, 7], \"learn\": null, \"logprobs\": null, \"loss\": null}",
           (int32_t[]){5, 6, 7, -1}, 1);
    expect("{\"prompt\": \"hello\", \"completion\": \"ab\", \"weights\": null}",
           (int32_t[]){259, 'a', 'b', 264, -1}, 1);
    /* An end token that is already there is not doubled, and special tokens in texts are
       recognized. */
    expect("{\"prompt\": \"x\", \"completion\": \"y</s>\"}", (int32_t[]){'x', 'y', 264, -1}, 1);
}

/* Answers are learned, each with an end token; a single one is tokenized as a completion is. */
static void test_forms(void **state)
{
    struct hzp_sample **sample;
    struct hzp_err_text err = {{0}, {0}};
    int32_t count = 0;
    static const char talk[] =
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": "
        "\"gpt\", \"value\": \"b\"}, {\"from\": \"human\", \"value\": \"c\"}, "
        "{\"from\": \"gpt\", \"value\": \"d\"}]}";
    ex.tokens_max = 100;
    assert_int_equal(hzp_examples_parse(&ex, talk, strlen(talk), NULL, &sample, &count, &err),
                     HZP_OK);
    assert_int_equal(count, 1);
    /* Of "user: a\nassistant:< b>\nuser: c\nassistant:< d>" the ends and two bytes before. */
    const struct hzp_sample *s = sample[0];
    int32_t ends = 0, learned = 0;
    for (int32_t i = 1; i < s->count; i++) {
        ends += s->token[i] == 264;
        learned += s->learn[i];
        if (s->token[i] == 264)
            assert_true(s->learn[i] && s->learn[i - 1] && !s->learn[i - 3]);
    }
    assert_int_equal(ends, 2);
    assert_int_equal(learned, 6);
    assert_int_equal(s->token[s->count - 1], 264);
    hzp_examples_free(sample, count);
    static const char heavy[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                                "{\"role\": \"assistant\", \"content\": \"b\", \"weight\": 2.5}]}";
    assert_int_equal(hzp_examples_parse(&ex, heavy, strlen(heavy), NULL, &sample, &count, &err),
                     HZP_OK);
    assert_int_equal(count, 1);
    assert_non_null(sample[0]->weight);
    for (int32_t i = 0; i < sample[0]->count; i++)
        assert_true(sample[0]->weight[i] == (sample[0]->learn[i] ? 2.5f : 1));
    hzp_examples_free(sample, count);
    ex.fields = (struct hzp_example_fields){"q", "a"};
    expect("{\"q\": \"hello\", \"a\": \"ab\"}", (int32_t[]){259, 'a', 'b', 264, -1}, 1);
    refuse("{\"q\": \"hello\"}", "lines[1].a", "missing");
    refuse("{\"q\": \"hello\", \"a\": \"\"}", "lines[1].completion", "no tokens");
    ex.fields = (struct hzp_example_fields){NULL, NULL};
    refuse("{\"messages\": [{\"role\": \"user\"}]}", "lines[1].messages[0].content", "string");
    refuse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}], \"text\": \"x\"}",
           "lines[1]", "two forms");
    refuse("PAR1 and more", "lines", "Parquet");
    ex.tokens_max = 12;
    refuse(talk, "lines[1]", "more than 12 tokens");
    ex.tokens_max = 33;
}

/* "hel" + "lo" would be one token together, so the completion is tokenized separately. */
static void test_boundary(void **state)
{
    expect("{\"prompt\": \"hel\", \"completion\": \"lo\"}",
           (int32_t[]){256, 'l', 'l', 'o', 264, -1}, 2);
    expect("{\"prompt\": \"a\", \"completion\": \" w\"}", (int32_t[]){'a', 262, 264, -1}, 1);
}

/* A SentencePiece tokenizer puts a mark before each text: a completion must not get one, and
 * only the prompt gets the begin token. */
static void test_boundary_pieces(void **state)
{
    expect("{\"prompt\": \"hell\", \"completion\": \"x hell\"}",
           (int32_t[]){1, 289, 260 + 'x' - 'a', 289, 2, -1}, 2);
    expect("{\"text\": \"hell\"}", (int32_t[]){1, 289, 2, -1}, 1);
}

/* Where every text gets a begin and an end token, an empty text is still refused as empty. */
static void test_refusals_pieces(void **state)
{
    refuse("{\"text\": \"hell\"}\n{\"text\": \"\"}", "lines[2].text", "has no tokens to learn");
    refuse("[{\"text\": \"\"}]", "lines[1].text", "has no tokens to learn");
    refuse("{\"prompt\": \"hell\", \"completion\": \"\"}", "lines[1].completion",
           "no tokens to learn");
    refuse("{\"prompt\": \"\", \"completion\": \"\"}", "lines[1].completion", "no tokens to learn");
    refuse("{\"tokens\": []}", "lines[1].tokens", "has no tokens to learn");
    refuse("{\"tokens\": [], \"learn\": []}", "lines[1].learn", "has no tokens to learn");
    refuse("{\"tokens\": [1, 289], \"learn\": [1, false]}", "lines[1].learn",
           "has no tokens to learn");
}

static void test_refusals(void **state)
{
    refuse("", "lines", "no example");
    refuse("{\"prompt\": \"a\", \"completion\": \"b\"}\n\n{\"prompt\": \"a\"}\n",
           "lines[3].completion", "line 3: completion: is missing");
    refuse("[{\"text\": \"ab\"}, {\"text\": 7}]", "lines[2].text", "must be a string");
    refuse("{\"text\": \"ab\"", "lines[1]", "not JSON");
    refuse("{\"text\": \"ab\"}\nnonsense", "lines[2]", "not JSON");
    refuse("{\"text\": \"ab\", \"text\": \"cd\"}", "lines[1]", "duplicate");
    refuse("7", "lines[1]", "must be an object");
    refuse("[{\"text\": \"ab\"}", "lines[1]", "does not end");
    refuse("[{\"text\": \"ab\"},]", "lines[2]", "not JSON");
    refuse("[,{\"text\": \"ab\"}]", "lines[1]", "not JSON");
    refuse("[{\"text\": \"ab\"} 3]", "lines[1]", "not JSON");
    refuse("[{\"text\": \"ab\"}] 3", "lines[2]", "behind the array");
    refuse("[]", "lines", "no example");
    refuse("{\"text\": \"ab\"}\n{\"text\": \"ab\", \"reward\": -1}", "lines[2].reward",
           "reward: is not a field");
    refuse("[7]", "lines[1]", "must be an object");
    refuse("{\"txt\": \"ab\"}", "lines[1]", "has the fields txt");
    refuse("{}", "lines[1]", "has no fields");
    refuse("{\"text\": null}", "lines[1]", "has no fields");
    refuse("{\"text\": \"ab\", \"prompt\": \"a\"}", "lines[1]", "give either");
    refuse("{\"text\": \"\"}", "lines[1].text", "has no tokens to learn");
    refuse("{\"prompt\": \"a\", \"completion\": \"\"}", "lines[1].completion",
           "has no tokens to learn");
    refuse("{\"tokens\": [1, 2], \"learn\": [1, 0]}", "lines[1].learn", "has no tokens to learn");
    refuse("{\"tokens\": [1]}", "lines[1].tokens", "has no tokens to learn");
    refuse("{\"tokens\": [1, 2, 3], \"learn\": [0, 1]}", "lines[1].learn", "2 entries");
    refuse("{\"tokens\": [1, 2], \"learn\": [0, 2]}", "lines[1].learn", "neither 0 nor 1");
    refuse("{\"tokens\": [1, 300]}", "lines[1].tokens", "0 to 299");
    refuse("{\"tokens\": [1, -1]}", "lines[1].tokens", "entry 1");
    refuse("{\"tokens\": [1, 1e3]}", "lines[1].tokens", "entry 1");
    refuse("{\"tokens\": \"12\"}", "lines[1].tokens", "array");
    refuse("{\"tokens\": [1, 18446744073709551616]}", "lines[1].tokens", "entry 1");
    refuse("1e400", "lines[1]", "must be an object");
    refuse("{\"text\": \"ab\", \"id\": 18446744073709551615}", "lines[1].id", "not a field");
    refuse("{\"text\": \"ab\", \"id\": NaN}", "lines[1]", "not JSON: NaN");
    refuse("{\"text\": \"\xff\xfe\"}", "lines[1]", "UTF-8");
    refuse("{\"text\": \"bcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbcbc\"}", "lines[1].text", "33");
    refuse("{\"prompt\": \"bcbcbcbcbcbcbcbcbcbcb\", \"completion\": \"bcbcbcbcbcbc\"}",
           "lines[1].completion", "33");
    refuse("{\"text\":\"ab\"}\n{\"text\":\"ab\"}\n{\"text\":\"ab\"}\n{\"text\":\"ab\"}\n"
           "{\"text\":\"ab\"}\n{\"text\":\"ab\"}\n{\"text\":\"ab\"}\n{\"text\":\"ab\"}\n"
           "{\"text\":\"ab\"}",
           "lines[9]", "more than 8");
    char deep[8000] = "{\"text\":";
    memset(deep + 8, '[', sizeof(deep) - 9);
    refuse(deep, "lines[1]", "not JSON");
}

/* Columns of a file that are not read may hold whatever Python or JavaScript writes. */
#define TOKENS "{\"tokens\": [5, 6, 7], \"learn\": [0, 0, 1], "

static void test_losses(void **state)
{
    static const char body[] = TOKENS
        "\"weights\": [null, null, -2.5], \"advantages\": 1.5, \"logprobs\": [0, null, -0.25],"
        " \"loss\": {\"kind\": \"ppo\", \"high\": 0.5, \"kl\": 0.125, \"temperature\": 0.5},"
        " \"reference_logprobs\": [null, null, -0.75]}";
    struct hzp_sample **sample;
    int32_t count;
    struct hzp_err_text err;
    assert_int_equal(hzp_examples_parse(&ex, body, strlen(body), NULL, &sample, &count, &err),
                     HZP_OK);
    assert_int_equal(count, 1);
    const struct hzp_row_loss want = {HZP_LOSS_PPO, 2,    -0.25f, 1.5f, -0.75f,
                                      0.125f,       0.2f, 0.5f,   0.1f};
    assert_true(sample[0]->weight[2] == -2.5f);
    assert_memory_equal(&sample[0]->how[2], &want, sizeof(want));
    hzp_examples_free(sample, count);
    refuse(TOKENS "\"logprobs\": -1}", "lines[1].logprobs", "with a loss only");
    refuse(TOKENS "\"loss\": {\"kind\": \"is\"}}", "lines[1].logprobs", "missing");
    refuse(TOKENS "\"loss\": {\"kind\": \"is\"}, \"logprobs\": [-1, -1]}", "lines[1].logprobs",
           "array of 3");
    refuse(TOKENS "\"loss\": {\"kind\": \"is\"}, \"logprobs\": 1, \"advantages\": 1}",
           "lines[1].logprobs", "range");
    refuse(TOKENS "\"loss\": {\"kind\": \"dpo\"}}", "lines[1].loss.kind", "xent, is, ppo");
    refuse(TOKENS "\"loss\": {\"kind\": \"xent\", \"lo\": 1}}", "lines[1].loss", "unknown");
    refuse(TOKENS "\"loss\": {\"kind\": \"ppo\", \"low\": -1}}", "lines[1].loss.low", "from 0");
    refuse(TOKENS "\"weights\": [1, 1, 0]}", "lines[1].weights", "range");
    refuse("{\"text\": \"a\", \"weights\": 2}", "lines[1].weights", "not a field");
}

static void test_targets(void **state)
{
    static const char body[] =
        "{\"tokens\": [5, 6, 7, 8], \"learn\": [0, 1, 0, 1], \"weights\": [0, 2, 0, 3],"
        " \"targets\": [null, null, null, [[3, 0.5], [null, 0.125], [8, 0.25]]]}";
    struct hzp_sample **sample;
    int32_t count;
    struct hzp_err_text err;
    assert_int_equal(hzp_examples_parse(&ex, body, strlen(body), NULL, &sample, &count, &err),
                     HZP_OK);
    assert_int_equal(count, 1);
    const struct hzp_soft want = {.count = 2, .token = {3, 8}, .p = {0.5f, 0.25f}, .rest = 0.125f};
    assert_int_equal(sample[0]->softs, 1);
    assert_memory_equal(sample[0]->soft, &want, sizeof(want));
    assert_int_equal(sample[0]->how[1].kind, HZP_LOSS_XENT);
    assert_int_equal(sample[0]->how[3].kind, HZP_LOSS_SOFT);
    assert_true(sample[0]->how[3].inv_temperature == 1 && sample[0]->weight[3] == 3);
    hzp_examples_free(sample, count);
    refuse(TOKENS "\"targets\": {}}", "lines[1].targets", "array of 3");
    refuse(TOKENS "\"targets\": [null, [[1, 1]]]}", "lines[1].targets", "array of 3");
    refuse(TOKENS "\"targets\": [null, [[1, 1]], null]}", "lines[1].targets",
           "entry 1 is of a token that is not learned");
    refuse(TOKENS "\"targets\": [null, null, []]}", "lines[1].targets", "entry 2 is not a list");
    refuse(TOKENS "\"targets\": [null, null, [[1]]]}", "lines[1].targets",
           "entry 2: pair 0 is not [token, p]");
    refuse(TOKENS "\"targets\": [null, null, [[1, \"1\"]]]}", "lines[1].targets", "pair 0");
    refuse(TOKENS "\"targets\": [null, null, [[1, 0.5], [-1, 0.5]]]}", "lines[1].targets",
           "entry 2: pair 1 has no token id");
    refuse(TOKENS "\"targets\": [null, null, [[1, 0.5], [1, 0.5]]]}", "lines[1].targets",
           "pair 1 names a token again");
    refuse(TOKENS "\"targets\": [null, null, [[1, 0.75], [2, 0.5]]]}", "lines[1].targets",
           "pair 1: probabilities");
    refuse(TOKENS "\"targets\": [null, null, [[1, -0.5]]]}", "lines[1].targets", "pair 0");
    refuse(TOKENS "\"targets\": [null, null, [[1, 0]]]}", "lines[1].targets", "probability");
    refuse(TOKENS "\"targets\": [null, null, [[null, 1]]]}", "lines[1].targets", "no token");
    refuse(TOKENS "\"targets\": [null, null, [[1, 1]]], \"loss\": {\"kind\": \"is\"}}",
           "lines[1].targets", "xent only");
    refuse("{\"text\": \"a\", \"targets\": []}", "lines[1].targets", "not a field");
    char many[600] = TOKENS "\"targets\": [null, null, [[0, 0]";
    for (int i = 1; i <= HZP_SOFT_MAX; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), ", [%d, 0.01]", i);
    strcat(many, "]]}");
    refuse(many, "lines[1].targets", "more than 20 tokens");
}

static void test_columns(void **state)
{
    ex.split = true;
    expect("{\"id\": 18446744073709551615, \"loss\": NaN, \"range\": [-Infinity, 1e400], "
           "\"a\\u0000b\": \"\\ud800\", \"text\": \"hell\"}",
           (int32_t[]){1, 289, 2, -1}, 1);
    ex.split = false;
}

/* The number of samples of a body fed in pieces of so many bytes; -1: refused. */
static int32_t feed(const char *body, size_t piece, const char *type, struct hzp_err_text *err)
{
    struct hzp_example_reader *reader = hzp_example_reader_create(&ex, type);
    size_t bytes = strlen(body), at = 0;
    int r;
    do {
        /* A copy, so that a sanitizer sees reads beyond the piece. */
        size_t n = HZP_MIN(piece, bytes - at);
        char *copy = malloc(n + 1);
        memcpy(copy, body + at, n);
        at += n;
        r = hzp_example_reader_feed(reader, copy, n, at == bytes, err);
        free(copy);
    } while (r >= 0 && at < bytes);
    int32_t count = r < 0 ? -1 : hzp_example_reader_count(reader);
    hzp_example_reader_destroy(reader);
    return count;
}

/* However a body is cut into pieces, it is read alike. */
static void test_pieces(void **state)
{
    static const char *const body[] = {
        "{\"text\": \"ab\"}\n\n{\"text\": \"c\\\"]}d\"}\r\n",
        "[]",
        "",
        " \n ",
        "[ ]",
        "\xef\xbb\xbf[ {\"text\": \"ab\"} , {\"tokens\": [5, 6]} ]\n",
        "{\"text\": \"ab\"}",
        "{\n \"text\":\n \"ab\"\n}\n{\"text\": \"ab\"}",
        "[{\"text\": \"a]}\\\\\"}]",
        "[7",
        "]",
        "}",
        "{\"text\": \"ab\"}\n{\"text\": \"",
        "[{\"text\": \"ab\"},",
        "{\"text\": \"ab\"}\n{}\n{\"text\": 3}",
    };
    static const char *const type[] = {NULL, "application/json", "application/x-ndjson"};
    for (int i = 0; i < HZP_COUNT(body); i++)
        for (int t = 0; t < HZP_COUNT(type); t++) {
            struct hzp_err_text whole = {{0}, {0}}, cut;
            int32_t want = feed(body[i], SIZE_MAX, type[t], &whole);
            for (size_t piece = 1; piece <= strlen(body[i]); piece++) {
                cut = (struct hzp_err_text){{0}, {0}};
                assert_int_equal(feed(body[i], piece, type[t], &cut), want);
                assert_string_equal(cut.text, whole.text);
                assert_string_equal(cut.param, whole.param);
            }
        }
    struct hzp_err_text err = {{0}, {0}};
    assert_int_equal(feed(body[0], 3, NULL, &err), 2);
    assert_int_equal(feed(body[5], 3, NULL, &err), 2);
    assert_int_equal(feed(body[7], 3, "application/json", &err), 2);
    assert_int_equal(feed(body[7], 3, NULL, &err), -1);
}

/* A body is read with memory for one example, and a longer one is refused. */
static void test_bound(void **state)
{
    struct hzp_err_text err = {{0}, {0}};
    char *text = malloc(1 << 20);
    memset(text, '[', 1 << 20);
    struct hzp_example_reader *reader = hzp_example_reader_create(&ex, NULL);
    size_t most = 0;
    int r = HZP_OK;
    for (int i = 0; i < 64 && r == HZP_OK; i++) {
        r = hzp_example_reader_feed(reader, text, 16 << 10, false, &err);
        size_t bytes = hzp_example_reader_bytes(reader);
        most = HZP_MAX(most, bytes);
    }
    assert_int_equal(r, HZP_EINVAL);
    assert_non_null(strstr(err.text, "more than 262144 bytes"));
    assert_string_equal(err.param, "lines[1]");
    assert_true(most < 1 << 20);
    hzp_example_reader_destroy(reader);
    free(text);
}

static void test_accept(void **state)
{
    struct hzp_sample_queue_config queue = {.samples_max = 3, .tokens_max = 100, .passes = 1};
    struct hzp_err_text err = {{0}, {0}};
    int64_t first = 0, last = 0;
    const char *two = "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n";
    const char *bad = "{\"text\": \"ab\"}\n{\"text\": \"\"}\n";
    const char *four = "[{\"text\":\"ab\"},{\"text\":\"ab\"},{\"text\":\"ab\"},{\"text\":\"ab\"}]";
    assert_int_equal(hzp_sample_queue_create(&queue, &ex.queue), HZP_OK);
    assert_int_equal(hzp_sample_log_open(scratch_path("log"), "m", &ex.log, &err), HZP_OK);
    assert_int_equal(accept_examples(&ex, bad, &first, &last, &err), HZP_EINVAL);
    assert_string_equal(err.param, "lines[2].text");
    assert_int_equal(accept_examples(&ex, four, &first, &last, &err), HZP_EINVAL);
    assert_int_equal(accept_examples(&ex, two, &first, &last, &err), HZP_OK);
    assert_int_equal(first, 1);
    assert_int_equal(last, 2);
    assert_int_equal(accept_examples(&ex, two, &first, &last, &err), HZP_EBUSY);
    assert_non_null(strstr(err.text, "2 of 3 examples"));
    const struct hzp_sample *draw[8];
    assert_int_equal(hzp_sample_queue_draw(ex.queue, 100, draw, 8), 2);
    assert_int_equal(draw[1]->sequence_number, 2);
    assert_int_equal(hzp_sample_queue_done(ex.queue), 2);
    assert_int_equal(accept_examples(&ex, two, &first, &last, &err), HZP_OK);
    assert_int_equal(first, 3); /* refused bodies have used no sequence number */
    hzp_sample_queue_destroy(ex.queue);
    hzp_sample_log_close(ex.log);
}

static void test_files(void **state)
{
    struct hzp_sample **sample;
    struct hzp_err_text err = {{0}, {0}};
    int32_t count = 0;
    char text[120];
    for (int i = 0; i < 100; i++)
        text[i] = (char)(i % 2 ? 'b' : 'c');
    strcpy(text + 100, "<|endoftext|> xyz\n");
    scratch_write_text(scratch_path("d.txt"), text);
    assert_int_equal(hzp_examples_load(&ex, scratch_path("d.txt"), &sample, &count, &err), HZP_OK);
    /* 101 tokens in pieces of 33 that share one, then "xyz" and the end token. */
    assert_int_equal(count, 5);
    int32_t predicted = 0;
    for (int32_t i = 0; i < count; i++) {
        assert_true(sample[i]->count <= 33);
        for (int32_t k = 1; k < sample[i]->count; k++)
            predicted += sample[i]->learn[k];
        if (i == 1 || i == 2)
            assert_int_equal(sample[i]->token[0], sample[i - 1]->token[32]);
    }
    assert_int_equal(predicted, 100 + 3);
    assert_int_equal(sample[4]->token[0], 'x');
    assert_int_equal(sample[4]->token[3], 264);
    hzp_examples_free(sample, count);

    scratch_write_text(scratch_path("d.jsonl"), "{\"text\": \"ab\"}\n{\"text\": 5}\n");
    assert_int_equal(hzp_examples_load(&ex, scratch_path("d.jsonl"), &sample, &count, &err),
                     HZP_EINVAL);
    assert_non_null(strstr(err.text, "d.jsonl: line 2: text"));
    assert_int_equal(hzp_examples_load(&ex, scratch_path("absent"), &sample, &count, &err),
                     HZP_ENOENT);
    assert_int_equal(hzp_examples_load(&ex, scratch_dir, &sample, &count, &err), HZP_EIO);
}

/* Loads a file; the result, and the error's text. */
static int load(const char *name, const char *text, struct hzp_sample ***ret, int32_t *ret_count,
                struct hzp_err_text *err)
{
    memset(err, 0, sizeof(*err));
    scratch_write_text(scratch_path("%s", name), text);
    return hzp_examples_load(&ex, scratch_path("%s", name), ret, ret_count, err);
}

static void expect_text(const struct hzp_err_text *err, const char *word)
{
    if (!strstr(err->text, word))
        fail_msg("\"%s\" does not say \"%s\"", err->text, word);
}

/* All errors of a file are counted, and the first are shown. */
static void test_all_errors(void **state)
{
    struct hzp_sample **sample = NULL;
    struct hzp_err_text err;
    int32_t count = 0;
    ex.too_long = HZP_TOO_LONG_FAIL;
    assert_int_equal(load("e.jsonl",
                          "{\"text\": 5}\n{\"text\": \"ab\"}\nnot\n{\"prompt\": \"a\"}\n"
                          "{\"question\": \"a\", \"answer\": \"b\"}\n{\"text\": \"\"}\n",
                          &sample, &count, &err),
                     HZP_EINVAL);
    expect_text(&err,
                "5 of 6 examples are wrong: line 1: text: must be a string; line 3: not JSON");
    expect_text(&err, "line 4: completion: is missing (--completion-field names it)");
    expect_text(&err, "and 2 more");
    assert_int_equal(load("e.jsonl", "{\"text\": 5}\n{\"text\": 6}\n", &sample, &count, &err),
                     HZP_EINVAL);
    expect_text(&err, "2 of 2 examples are wrong: lines 1, 2: text: must be a string");
    assert_int_equal(
        load("e.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n", &sample, &count, &err),
        HZP_EINVAL);
    expect_text(&err, "has the fields question, answer");
    expect_text(&err, "--prompt-field");
    ex.fields.prompt = "ask";
    assert_int_equal(
        load("e.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n", &sample, &count, &err),
        HZP_EINVAL);
    expect_text(&err, "ask: is missing (--prompt-field names it)");
    expect_text(&err, "question, answer");
    ex.fields.prompt = NULL;
    refuse("{\"question\": \"a\", \"answer\": \"b\"}", "lines[1]", "?prompt_field=");
}

static const char long_pair[] = "{\"prompt\": \"0123456789abcdefghijABCDEFGHIJ\", "
                                "\"completion\": \"xyzxyz\"}\n"
                                "{\"prompt\": \"a\", \"completion\": \"b\"}\n"
                                "{\"prompt\": \"a\", \"completion\": "
                                "\"0123456789abcdefghijABCDEFGHIJKLMNOP\"}\n";

/* A prompt is cut on the left, an answer never. */
static void test_too_long(void **state)
{
    struct hzp_sample **sample = NULL;
    struct hzp_err_text err;
    int32_t count = 0;
    ex.too_long = HZP_TOO_LONG_FAIL;
    assert_int_equal(load("l.jsonl", long_pair, &sample, &count, &err), HZP_EINVAL);
    expect_text(&err, "2 of 3 examples have more than the 33 tokens");
    expect_text(&err, "(lines 1, 3)");
    expect_text(&err, "--too-long");
    ex.too_long = HZP_TOO_LONG_SKIP;
    assert_int_equal(load("l.jsonl", long_pair, &sample, &count, &err), HZP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(sample[0]->count, 3);
    hzp_examples_free(sample, count);
    ex.too_long = HZP_TOO_LONG_CUT;
    assert_int_equal(load("l.jsonl", long_pair, &sample, &count, &err), HZP_OK);
    assert_int_equal(count, 2);
    assert_int_equal(sample[0]->count, 33);
    /* 30 of the prompt, 6 of the answer and the end token: the first four go */
    assert_int_equal(sample[0]->token[0], '4');
    for (int32_t i = 0; i < 33; i++)
        assert_int_equal(sample[0]->learn[i], i >= 33 - 7);
    assert_int_equal(sample[0]->token[32], 264);
    hzp_examples_free(sample, count);
    assert_int_equal(load("l.jsonl", strchr(long_pair, '\n') + 1, &sample, &count, &err), HZP_OK);
    assert_int_equal(count, 1);
    hzp_examples_free(sample, count);
}

/* What a body of pairs gives; HZP_EINVAL: it was refused. */
static int read_pairs(const char *body, struct hzp_sample ***ret, int32_t *ret_count,
                      struct hzp_err_text *err)
{
    struct hzp_parse p = {.ex = &ex, .pairs = true, .reterr = err};
    return hzp_parse_take(&p, hzp_parse_body(&p, body, strlen(body), NULL), ret, ret_count);
}

static void refuse_pair(const char *body, const char *param, const char *word)
{
    struct hzp_sample **sample;
    struct hzp_err_text err = {{0}, {0}};
    int32_t count;
    assert_int_equal(read_pairs(body, &sample, &count, &err), HZP_EINVAL);
    if (strcmp(err.param, param) || !strstr(err.text, word))
        fail_msg("\"%s\" (%s) does not say \"%s\" (%s)", err.text, err.param, word, param);
}

#define PAIR(more)      "{\"prompt\": \"hello\", \"chosen\": \"ab\", \"rejected\": \"c\"" more "}"
#define SAID(who, what) "{\"role\": \"" who "\", \"content\": \"" what "\"}"

/* A pair is one sample: both answers with their prompt, in the tokens that each has alone. */
static void test_pairs(void **state)
{
    static const int32_t want[] = {259, 'a', 'b', 264, HZP_PAIR_CUT, 259, 'c', 264};
    static const uint8_t learn[] = {0, 1, 1, 1, 0, 0, 1, 1};
    struct hzp_sample **sample;
    struct hzp_err_text err = {{0}, {0}};
    int32_t count;
    refuse(PAIR(""), "lines[1]", "measured nowhere");
    assert_int_equal(
        read_pairs(PAIR(", \"loss\": {\"kind\": \"ipo\", \"beta\": 0.5}"), &sample, &count, &err),
        HZP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(sample[0]->count, 8);
    assert_int_equal(hzp_sample_first(sample[0]), 4);
    assert_memory_equal(sample[0]->token, want, sizeof(want));
    assert_memory_equal(sample[0]->learn, learn, sizeof(learn));
    for (int32_t i = 0; i < 8; i++) {
        if (!learn[i])
            continue;
        assert_int_equal(sample[0]->how[i].kind, HZP_LOSS_IPO);
        assert_true(sample[0]->how[i].beta == 0.5f && sample[0]->weight[i] == 32);
        assert_true(sample[0]->how[i].advantage == (i < 4 ? 1 : -1));
    }
    hzp_examples_free(sample, count);
    /* TRL's conversations, with a prompt and without, and OpenAI's say the same */
    static const char *const same[] = {
        "{\"prompt\": [" SAID("user", "a") "], \"chosen\": [" SAID(
            "assistant", "b") "], "
                              "\"rejected\": [" SAID("assistant", "c") "]}",
        "{\"chosen\": [" SAID("user", "a") ", " SAID(
            "assistant", "b") "], "
                              "\"rejected\": [" SAID("user", "a") ", " SAID("assistant", "c") "]}",
        "{\"input\": {\"messages\": [" SAID("user", "a") "]}, \"preferred_output\": [" SAID(
            "assistant", "b") "], \"non_preferred_output\": [" SAID("assistant", "c") "]}"};
    ex.tokens_max = 100;
    struct hzp_sample *first = NULL;
    for (int i = 0; i < HZP_COUNT(same); i++) {
        if (read_pairs(same[i], &sample, &count, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(count, 1);
        assert_true(hzp_sample_first(sample[0]) < sample[0]->count);
        if (first) {
            assert_int_equal(sample[0]->count, first->count);
            assert_memory_equal(sample[0]->token, first->token, (size_t)first->count * 4);
            assert_memory_equal(sample[0]->learn, first->learn, (size_t)first->count);
            assert_memory_equal(sample[0]->how, first->how,
                                (size_t)first->count * sizeof(*first->how));
        } else {
            first = hzp_sample_create_losses(sample[0]->token, sample[0]->learn, NULL,
                                             sample[0]->how, sample[0]->count);
        }
        hzp_examples_free(sample, count);
    }
    hzp_sample_destroy(first);
}

static void test_pairs_refused(void **state)
{
    refuse_pair("{\"prompt\": \"a\", \"chosen\": \"b\"}", "lines[1].rejected",
                "chosen and rejected");
    refuse_pair(
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": [" SAID("assistant", "c") "]}",
        "lines[1].rejected", "texts, or lists");
    refuse_pair("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"\"}", "lines[1].rejected",
                "no tokens");
    refuse_pair(PAIR(", \"reward\": 1"), "lines[1].reward", "not a field");
    refuse_pair(PAIR(", \"text\": \"x\""), "lines[1]", "either");
    refuse_pair(PAIR(", \"loss\": {\"kind\": \"ppo\"}"), "lines[1].loss.kind", "dpo or ipo");
    refuse_pair(PAIR(", \"loss\": {\"kind\": \"dpo\", \"beta\": 0}"), "lines[1].loss.beta",
                "0.0001");
    refuse_pair(PAIR(", \"loss\": {\"kind\": \"dpo\", \"kl\": 1}"), "lines[1].loss", "not kl");
    refuse_pair("{\"input\": \"a\", \"preferred_output\": [], \"non_preferred_output\": []}",
                "lines[1].input", "messages");
    refuse_pair("{\"tokens\": [1, 2], \"loss\": {\"kind\": \"dpo\"}, \"logprobs\": 0, "
                "\"advantages\": 1}",
                "lines[1].loss.kind", "gspo");
    refuse_pair("{\"prompt\": \"0123456789\", \"chosen\": \"abcdefgh\", \"rejected\": "
                "\"ijklmnopq\"}",
                "lines[1]", "at least 40 tokens");
    /* eight fit into a body, a ninth does not */
    char body[1024] = "";
    for (int i = 0; i < 9; i++)
        strcat(body, PAIR("") "\n");
    refuse_pair(body, "lines[9]", "more than 8 examples");
}

/* Of both prompts of a file's pair as many tokens are cut. */
static void test_pairs_too_long(void **state)
{
    static const char body[] =
        "{\"prompt\": \"0123456789\", \"chosen\": \"abcdefgh\", \"rejected\": \"ijklmnopq\"}\n"
        "{\"prompt\": \"a\", \"chosen\": \"0123456789abcdefghij\", \"rejected\": "
        "\"0123456789abcdefghijABCDEFGHIJ\"}\n" PAIR("") "\n";
    struct hzp_sample **sample = NULL;
    struct hzp_err_text err;
    int32_t count = 0;
    ex.pairs = true;
    ex.too_long = HZP_TOO_LONG_FAIL;
    assert_int_equal(load("p.jsonl", body, &sample, &count, &err), HZP_EINVAL);
    expect_text(&err, "2 of 3 examples have more than the 33 tokens");
    ex.too_long = HZP_TOO_LONG_CUT;
    assert_int_equal(load("p.jsonl", body, &sample, &count, &err), HZP_OK);
    assert_int_equal(count, 2);
    assert_int_equal(sample[0]->count, 32); /* 40, less 4 of each prompt */
    assert_int_equal(hzp_sample_first(sample[0]), 6 + 9);
    assert_int_equal(sample[0]->token[0], '4');
    assert_int_equal(sample[0]->token[16], '4');
    hzp_examples_free(sample, count);
    ex.pairs = false;
}

/* With a token that every text begins with, that stays. */
static void test_too_long_pieces(void **state)
{
    struct hzp_sample **sample = NULL;
    struct hzp_err_text err;
    int32_t count = 0;
    ex.too_long = HZP_TOO_LONG_CUT;
    ex.tokens_max = 1000;
    assert_int_equal(load("l.jsonl", long_pair, &sample, &count, &err), HZP_OK);
    int32_t begin = sample[0]->token[0], whole = sample[0]->count, last[4];
    memcpy(last, sample[0]->token + whole - 4, sizeof(last));
    hzp_examples_free(sample, count);
    ex.tokens_max = whole - 3;
    assert_int_equal(load("l.jsonl", long_pair, &sample, &count, &err), HZP_OK);
    assert_int_equal(sample[0]->count, whole - 3);
    assert_int_equal(sample[0]->token[0], begin);
    assert_false(sample[0]->learn[0] || sample[0]->learn[1]);
    assert_memory_equal(sample[0]->token + whole - 7, last, sizeof(last));
    hzp_examples_free(sample, count);
}

/* Tables, by a mapping of their columns or with names that are known. */
static void test_csv(void **state)
{
    struct hzp_sample **sample = NULL;
    struct hzp_err_text err;
    int32_t count = 0;
    ex.too_long = HZP_TOO_LONG_FAIL;
    ex.fields = (struct hzp_example_fields){"question", "answer"};
    assert_int_equal(load("t.csv",
                          "\xef\xbb\xbfid,question,answer\r\n1,a,b\r\n\r\n"
                          "2,\"c,\"\"d\ne\",f\r\n",
                          &sample, &count, &err),
                     HZP_OK);
    assert_int_equal(count, 2);
    const int32_t want[] = {'c', ',', '"', 'd', '\n', 'e', 'f', 264};
    assert_int_equal(sample[1]->count, 8);
    assert_memory_equal(sample[1]->token, want, sizeof(want));
    assert_true(sample[1]->learn[6] && !sample[1]->learn[5]);
    hzp_examples_free(sample, count);
    ex.fields = (struct hzp_example_fields){NULL, NULL};
    assert_int_equal(load("t.TSV", "prompt\tcompletion\na,b\tc", &sample, &count, &err), HZP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(sample[0]->count, 5);
    hzp_examples_free(sample, count);
    assert_int_equal(load("t.csv", "prompt,completion\na,b\na,b,c\n", &sample, &count, &err),
                     HZP_EINVAL);
    expect_text(&err, "line 3: has 3 values, the first line 2 names");
    assert_int_equal(load("t.csv", "prompt,completion\na,\"b\n", &sample, &count, &err),
                     HZP_EINVAL);
    expect_text(&err, "line 2: a quote has no end");
    assert_int_equal(load("t.csv", "prompt,completion\na,\"b\"c\n", &sample, &count, &err),
                     HZP_EINVAL);
    expect_text(&err, "line 2");
    /* Lines may end with a carriage return alone. */
    assert_int_equal(load("t.csv", "prompt,completion\ra,b\rc,d\r", &sample, &count, &err), HZP_OK);
    assert_int_equal(count, 2);
    hzp_examples_free(sample, count);
    assert_int_equal(load("t.csv", "text,text\na,b\n", &sample, &count, &err), HZP_EINVAL);
    expect_text(&err, "same name");
    assert_int_equal(load("t.csv", "ask,answer\na,b\n", &sample, &count, &err), HZP_EINVAL);
    expect_text(&err, "--prompt-field");
    assert_int_equal(
        load("t.csv", "prompt,completion,system\na,b,\na,b,s\n", &sample, &count, &err),
        HZP_EINVAL);
    expect_text(&err, "line 3: system");
}

/* A body that is a table, by its type. */
static void test_csv_body(void **state)
{
    static const char body[] = "prompt,completion\r\na,\"b\nc\"\r\nd,e\r\n";
    struct hzp_err_text err = {{0}, {0}};
    for (size_t piece = 1; piece <= sizeof(body); piece++) {
        assert_int_equal(feed(body, piece, "text/csv; charset=utf-8", &err), 2);
        assert_int_equal(feed("text\tid\na\t1\n", piece, "text/tab-separated-values", &err), -1);
        assert_int_equal(feed("text\na,b\n", piece, "text/tab-separated-values", &err), 1);
    }
    assert_int_equal(feed("prompt,completion\na\n", 5, "text/csv", &err), -1);
    expect_text(&err, "line 2: has 1 values");
    assert_string_equal(err.param, "lines");
    assert_int_equal(feed("prompt,completion\na,b\n,\n", 5, "text/csv", &err), -1);
    expect_text(&err, "line 3: completion");
    assert_string_equal(err.param, "lines[3].completion");
    assert_int_equal(feed(body, 9, "text/csvx", &err), -1); /* JSON, which it is not */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_forms, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_shapes, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_pairs, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_pairs_refused, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_pairs_too_long, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_boundary, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_boundary_pieces, open_pieces, close_all),
        cmocka_unit_test_setup_teardown(test_refusals_pieces, open_pieces, close_all),
        cmocka_unit_test_setup_teardown(test_refusals, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_targets, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_losses, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_columns, open_pieces, close_all),
        cmocka_unit_test_setup_teardown(test_pieces, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_bound, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_accept, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_files, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_all_errors, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_too_long, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_too_long_pieces, open_pieces, close_all),
        cmocka_unit_test_setup_teardown(test_csv, open_bytes, close_all),
        cmocka_unit_test_setup_teardown(test_csv_body, open_bytes, close_all),
    };
    return cmocka_run_group_tests_name("examples", tests, NULL, NULL);
}
