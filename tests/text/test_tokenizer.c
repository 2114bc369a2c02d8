/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding with tokenizers that the test writes itself. */
#include "base/thread.h"
#include "tests/text/tokenizer_makes.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <time.h>

#define ALL (HZP_TOKENIZER_ADD_SPECIAL | HZP_TOKENIZER_PARSE_SPECIAL)

/* Encodes and compares with a list that ends in -1. */
static void expect(struct hzp_tokenizer *tok, const char *text, unsigned flags, const int32_t *ids)
{
    struct hzp_tokens out = {0};
    struct hzp_err_text err = {.text = ""};
    assert_int_equal(hzp_tokenizer_encode(tok, text, strlen(text), flags, 1000, &out, &err), 0);
    size_t n = 0;
    while (ids[n] >= 0)
        n++;
    assert_int_equal(out.n, n);
    if (n > 0)
        assert_memory_equal(out.ids, ids, n * sizeof(*ids));
    hzp_tokens_fini(&out);
}

#define EXPECT(tok, text, flags, ...) expect(tok, text, flags, (const int32_t[]){__VA_ARGS__})

static void expect_text(struct hzp_tokenizer *tok, const int32_t *ids, bool skip, const char *text)
{
    struct hzp_textbuf out = {0};
    size_t n = 0;
    while (ids[n] >= 0)
        n++;
    assert_int_equal(hzp_tokenizer_decode(tok, ids, n, skip, &out), 0);
    assert_int_equal(out.bytes, strlen(text));
    if (out.bytes > 0)
        assert_memory_equal(out.data, text, out.bytes);
    hzp_textbuf_fini(&out);
}

#define EXPECT_TEXT(tok, skip, text, ...)                                                          \
    expect_text(tok, (const int32_t[]){__VA_ARGS__}, skip, text)

static void byte_level(void **state)
{
    make_byte_level(MAKE_GPT);
    struct hzp_tokenizer *tok = make_open();
    EXPECT(tok, "", 0, -1);
    EXPECT(tok, "hello", 0, 259, -1);
    EXPECT(tok, "hello w", 0, 259, 262, -1);
    EXPECT(tok, "aaaaaaa", 0, 261, 260, 'a', -1);
    EXPECT(tok, "\xC3\xA9", 0, 0xC3, 0xA9, -1);
    EXPECT(tok, "<s>hello", HZP_TOKENIZER_PARSE_SPECIAL, 263, 259, -1);
    EXPECT(tok, "<s>hello", 0, '<', 's', '>', 259, -1);
    /* a token that is not special is always recognized, and takes the blanks before it with it */
    EXPECT(tok, "hello \n<x> w", 0, 259, 265, 262, -1);
    EXPECT_TEXT(tok, false, "<s>hello w", 263, 259, 262, -1);
    EXPECT_TEXT(tok, true, "hello w", 263, 259, 262, 264, -1);
    EXPECT_TEXT(tok, true,
                "h\xEF\xBF\xBD"
                "e\xC3\xA9\xEF\xBF\xBD",
                'h', 0xC3, 'e', 0xC3, 0xA9, 0xE2, 0x82, -1);
    EXPECT_TEXT(tok, true, "he", 256, 100000, -1);
    assert_int_equal(hzp_tokenizer_vocab(tok), 266);
    size_t bytes;
    assert_memory_equal(hzp_tokenizer_token(tok, 262, &bytes), " w", 2);
    assert_int_equal(bytes, 2);
    assert_memory_equal(hzp_tokenizer_spelling(tok, 262, &bytes), "\xC4\xA0w", 3);
    assert_int_equal(bytes, 3);
    assert_null(hzp_tokenizer_token(tok, 266, &bytes));
    assert_null(hzp_tokenizer_token(tok, -1, &bytes));
    assert_true(hzp_tokenizer_is_special(tok, 263));
    assert_false(hzp_tokenizer_is_special(tok, 265));
    assert_int_equal(hzp_tokenizer_find(tok, "</s>", 4), 264);
    assert_int_equal(hzp_tokenizer_find(tok, "nothing", 7), -1);
    hzp_tokenizer_close(tok);
}

static void sentencepiece(void **state)
{
    make_sentencepiece();
    struct hzp_tokenizer *tok = make_open();
    EXPECT(tok, "", ALL, 1, -1);
    EXPECT(tok, "hello", ALL, 1, 289, 274, -1);
    EXPECT(tok, "a  he", 0, 259, 260, 259, 288, -1);
    EXPECT(tok, "a   b", 0, 259, 260, 290, 259, 261, -1);
    EXPECT(tok, "a\xC3\xA9", 0, 259, 260, 3 + 0xC3, 3 + 0xA9, -1);
    EXPECT(tok, "</s>a", HZP_TOKENIZER_PARSE_SPECIAL, 2, 259, 260, -1);
    EXPECT_TEXT(tok, true, "hello", 1, 289, 274, -1);
    EXPECT_TEXT(tok, false, "<s> hello", 1, 289, 274, -1);
    EXPECT_TEXT(tok, true, "a\xC3\xA9", 259, 260, 3 + 0xC3, 3 + 0xA9, -1);
    /* one replacement for each broken byte */
    EXPECT_TEXT(tok, true,
                "a\xEF\xBF\xBD\xEF\xBF\xBD"
                "b",
                259, 260, 3 + 0xE2, 3 + 0x82, 261, -1);
    size_t bytes;
    assert_memory_equal(hzp_tokenizer_token(tok, 3 + 0xC3, &bytes), "\xC3", 1);
    assert_int_equal(bytes, 1);
    assert_memory_equal(hzp_tokenizer_token(tok, 288, &bytes), " he", 3);
    hzp_tokenizer_close(tok);
}

static void configuration(void **state)
{
    /* the post-processor adds nothing, so the configuration decides; 10^30 as a length is
       accepted */
    make_byte_level(MAKE_GPT ", \"post_processor\": {\"type\": \"ByteLevel\"}");
    scratch_write_text(scratch_path("tokenizer_config.json"),
                       "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, "
                       "\"add_bos_token\": true, \"add_eos_token\": true, "
                       "\"model_max_length\": 1000000000000000019884624838656, "
                       "\"added_tokens_decoder\": {\"300\": {\"content\": \"<new>\", "
                       "\"special\": true, \"normalized\": false}}}");
    struct hzp_tokenizer *tok = make_open();
    assert_int_equal(hzp_tokenizer_eos(tok), 264);
    assert_int_equal(hzp_tokenizer_vocab(tok), 301);
    EXPECT(tok, "hello<new>", ALL, 263, 259, 300, 264, -1);
    EXPECT(tok, "hello", 0, 259, -1);
    EXPECT_TEXT(tok, true, "hello", 259, 299, 300, -1);
    hzp_tokenizer_close(tok);
    assert_int_equal(remove(scratch_path("tokenizer_config.json")), 0);
    tok = make_open();
    EXPECT(tok, "hello", ALL, 259, -1);
    hzp_tokenizer_close(tok);
}

static void refusals(void **state)
{
    make_byte_level(MAKE_GPT);
    struct hzp_tokenizer *tok = make_open();
    struct hzp_tokens out = {0};
    struct hzp_err_text err = {.text = ""};
    int32_t seven = 7;
    assert_int_equal(hzp_tokens_append(&out, &seven, 1), 0);
    assert_int_equal(hzp_tokenizer_encode(tok, "hello w", 7, 0, 2, &out, &err), HZP_EINVAL);
    assert_string_equal(err.text, "the text has more than 2 tokens");
    assert_int_equal(out.n, 1);
    assert_int_equal(hzp_tokenizer_encode(tok, "hello w", 7, 0, 3, &out, &err), 0);
    assert_int_equal(out.n, 3);
    static const char *const bad[] = {"a\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                      "\x80"};
    for (int i = 0; i < HZP_COUNT(bad); i++)
        assert_int_equal(hzp_tokenizer_encode(tok, bad[i], strlen(bad[i]), 0, 99, &out, &err),
                         HZP_EINVAL);
    assert_int_equal(hzp_tokenizer_encode(tok, "a\0b", 3, 0, 99, &out, &err), 0);
    assert_int_equal(out.n, 6);
    hzp_tokens_fini(&out);
    hzp_tokenizer_close(tok);
}

/* Random valid UTF-8 with many characters that the test tokenizers have merges for. */
static size_t random_text(char *text, size_t max)
{
    size_t n = 0;
    while (n + 4 < max) {
        uint32_t kind = make_random(8), code = "helowa  "[make_random(8)];
        if (kind == 0)
            code = make_random(0xD800);
        else if (kind == 1)
            code = 0xE000 + make_random(0x110000 - 0xE000);
        n += (size_t)hzp_utf8_put(text + n, code);
        if (make_random(200) == 0)
            break;
    }
    return n;
}

static void round_trips(void **state)
{
    for (int make = 0; make < 2; make++) {
        if (make == 0)
            make_byte_level(MAKE_GPT);
        else
            make_sentencepiece();
        struct hzp_tokenizer *tok = make_open();
        for (int turn = 0; turn < 2000; turn++) {
            char text[2048];
            size_t n = random_text(text, sizeof(text));
            struct hzp_tokens ids = {0};
            struct hzp_textbuf back = {0};
            /* the mark of a space is the only character that decodes to another one */
            if (make == 1 && memmem(text, n, "\xE2\x96\x81", 3) != NULL)
                continue;
            assert_int_equal(hzp_tokenizer_encode(tok, text, n, 0, 1 << 20, &ids, NULL), 0);
            assert_int_equal(hzp_tokenizer_decode(tok, ids.ids, ids.n, false, &back), 0);
            assert_int_equal(back.bytes, n);
            if (n > 0)
                assert_memory_equal(back.data, text, n);
            hzp_tokens_fini(&ids);
            hzp_textbuf_fini(&back);
        }
        hzp_tokenizer_close(tok);
    }
}

/* BPE by its definition, with the merges of make_byte_level: lowest rank first, then leftmost. */
static size_t plain_bpe(const char *text, size_t n, int32_t *ids)
{
    static const int32_t merges[][3] = {{'h', 'e', 256}, {'l', 'l', 257}, {256, 257, 258},
                                        {258, 'o', 259}, {'a', 'a', 260}, {260, 260, 261},
                                        {' ', 'w', 262}};
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint8_t)text[i];
    for (int rank = 0; rank < HZP_COUNT(merges); rank++)
        for (size_t i = 0; i + 1 < n; i++)
            if (ids[i] == merges[rank][0] && ids[i + 1] == merges[rank][1]) {
                ids[i] = merges[rank][2];
                memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof(*ids));
                n--;
                rank = -1;
                break;
            }
    return n;
}

static void as_defined(void **state)
{
    /* without use_regex the whole text is one piece, so that search, heap and cuts are all used */
    make_byte_level(", \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                    "\"use_regex\": false}, \"decoder\": {\"type\": \"ByteLevel\"}");
    struct hzp_tokenizer *tok = make_open();
    for (int turn = 0; turn < 1500; turn++) {
        char text[400];
        int32_t want[400];
        size_t n = make_random(turn % 3 == 0 ? 400 : 30);
        for (size_t i = 0; i < n; i++)
            text[i] = (turn % 2 ? "hello aw" : "aaaaaaab")[make_random(8)];
        size_t m = plain_bpe(text, n, want);
        struct hzp_tokens ids = {0};
        assert_int_equal(hzp_tokenizer_encode(tok, text, n, 0, 1 << 20, &ids, NULL), 0);
        assert_int_equal(ids.n, m);
        if (m > 0)
            assert_memory_equal(ids.ids, want, m * sizeof(*want));
        hzp_tokens_fini(&ids);
    }
    hzp_tokenizer_close(tok);
}

/* A megabyte of each difficult kind: anything quadratic would take minutes. */
/* Processor time of this thread for a text of n bytes and back, the minimum of several runs. */
static uint64_t time_of(struct hzp_tokenizer *tok, const char *text, size_t n)
{
    uint64_t least = UINT64_MAX;
    for (int turn = 0; turn < 2; turn++) {
        struct hzp_tokens ids = {0};
        struct hzp_textbuf back = {0};
        struct timespec begin, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        assert_int_equal(hzp_tokenizer_encode(tok, text, n, ALL, 1 << 30, &ids, NULL), 0);
        assert_int_equal(hzp_tokenizer_decode(tok, ids.ids, ids.n, true, &back), 0);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        int64_t ns = (end.tv_sec - begin.tv_sec) * 1000000000ll + end.tv_nsec - begin.tv_nsec;
        least = HZP_MIN(least, (uint64_t)ns);
        hzp_tokens_fini(&ids);
        hzp_textbuf_fini(&back);
    }
    return least;
}

/* A text eight times as long takes about eight times as long; quadratic would be 64 times. */
static void no_quadratic_case(void **state)
{
    static const char *const units[] = {"a",
                                        "hello",
                                        " ",
                                        "\xCC\x81\xCC\xA7",
                                        "<s",
                                        "<x> ",
                                        "\n ",
                                        "\xE4\xBD\xA0",
                                        "hel lo\xE1\x84\x80\xE1\x85\xA1",
                                        "'"};
    const uint64_t noise_ns = 20000000;
    size_t size = 1 << 20;
    char *text = malloc(size + 16);
    for (int make = 0; make < 2; make++) {
        if (make == 0)
            make_byte_level(MAKE_GPT ", \"normalizer\": {\"type\": \"NFC\"}");
        else
            make_sentencepiece();
        struct hzp_tokenizer *tok = make_open();
        for (int u = 0; u < HZP_COUNT(units); u++) {
            size_t m = strlen(units[u]), count = size / m;
            for (size_t i = 0; i < count; i++)
                memcpy(text + i * m, units[u], m);
            uint64_t part = time_of(tok, text, count / 8 * m),
                     whole = time_of(tok, text, count * m);
            if (whole > 32 * part + noise_ns)
                fail_msg("\"%s\" over and over: %zu bytes take %.3f s, an eighth of them %.3f s",
                         units[u], count * m, (double)whole * 1e-9, (double)part * 1e-9);
        }
        hzp_tokenizer_close(tok);
    }
    free(text);
}

static void *encode_often(void *arg)
{
    struct hzp_tokenizer *tok = arg;
    for (int turn = 0; turn < 300; turn++) {
        struct hzp_tokens ids = {0};
        int r = hzp_tokenizer_encode(tok, "hello w hello aaaa<x>", 21, ALL, 99, &ids, NULL);
        bool good = r == 0 && ids.n == 7 && ids.ids[0] == 259 && ids.ids[5] == 261;
        hzp_tokens_fini(&ids);
        if (!good)
            return arg;
    }
    return NULL;
}

static void many_threads(void **state)
{
    make_byte_level(MAKE_GPT);
    struct hzp_tokenizer *tok = make_open();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(hzp_thread_start(&threads[i], "encode", encode_often, tok), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        assert_int_equal(pthread_join(threads[i], &bad), 0);
        assert_null(bad);
    }
    hzp_tokenizer_close(tok);
}

/* Where each behaviour splits; the pieces show as tokens, since nothing merges across a cut. */
static void splits(void **state)
{
    static const struct {
        const char *pre;
        const char *text;
        int32_t ids[8];
    } cases[] = {
        {"{\"type\": \"Split\", \"pattern\": {\"String\": \"l\"}, \"behavior\": \"Isolated\"}",
         "hell",
         {256, 'l', 'l', -1}},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"l+\"}, \"behavior\": \"Removed\"}",
         "hello",
         {256, 'o', -1}},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"l+\"}, \"behavior\": \"Removed\", "
         "\"invert\": true}",
         "hello",
         {257, -1}},
        {"{\"type\": \"Split\", \"pattern\": {\"String\": \"l\"}, \"behavior\": \"Contiguous\"}",
         "hello",
         {256, 257, 'o', -1}},
        {"{\"type\": \"Split\", \"pattern\": {\"String\": \"e\"}, \"behavior\": "
         "\"MergedWithNext\"}",
         "hell",
         {'h', 'e', 257, -1}},
        {"{\"type\": \"Split\", \"pattern\": {\"String\": \"e\"}, \"behavior\": "
         "\"MergedWithPrevious\"}",
         "hell",
         {256, 257, -1}},
        {"{\"type\": \"Digits\", \"individual_digits\": true}", "aa1aa", {260, '1', 260, -1}},
        {"{\"type\": \"WhitespaceSplit\"}", " aa  w", {260, 'w', -1}},
        {"{\"type\": \"Whitespace\"}", "aa! w", {260, '!', 'w', -1}},
        {"{\"type\": \"Punctuation\"}", "aa.aa", {260, '.', 260, -1}},
    };
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        char rest[600];
        snprintf(rest, sizeof(rest),
                 ", \"pre_tokenizer\": {\"type\": \"Sequence\", "
                 "\"pretokenizers\": [%s, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                 "\"use_regex\": false}]}",
                 cases[i].pre);
        make_byte_level(rest);
        struct hzp_tokenizer *tok = make_open();
        expect(tok, cases[i].text, 0, cases[i].ids);
        hzp_tokenizer_close(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level),    cmocka_unit_test(sentencepiece),
        cmocka_unit_test(configuration), cmocka_unit_test(refusals),
        cmocka_unit_test(round_trips),   cmocka_unit_test(as_defined),
        cmocka_unit_test(splits),        cmocka_unit_test(no_quadratic_case),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
