/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming: whole characters only, and together the same as decoding at once. */
#include "tests/text/tokenizer_makes.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void random_streams(struct hzp_tokenizer *tok, bool text_alike)
{
    for (int turn = 0; turn < 3000; turn++) {
        int32_t ids[40];
        size_t n = make_random(40);
        bool skip = turn % 2;
        /* half of them mostly bytes, so that characters come together and break */
        for (size_t i = 0; i < n; i++) {
            ids[i] = (int32_t)make_random(320) - 2;
            if (text_alike && make_random(2))
                ids[i] = "\xE2\x82\xAC\xF0\x9F\x98\x80 \xC3\xA9"[make_random(10)] & 0xFF;
        }
        struct hzp_detokenizer detok;
        struct hzp_textbuf all = {0}, once = {0};
        hzp_detokenizer_init(&detok, tok, skip);
        for (size_t i = 0; i < n; i++) {
            size_t from = all.bytes;
            assert_int_equal(hzp_detokenizer_feed(&detok, ids[i], &all), 0);
            size_t more = all.bytes - from;
            if (more > 0)
                assert_int_equal(hzp_utf8_valid(all.data + from, more), more);
        }
        size_t from = all.bytes;
        assert_int_equal(hzp_detokenizer_flush(&detok, &all), 0);
        if (all.bytes > from)
            assert_int_equal(hzp_utf8_valid(all.data + from, all.bytes - from), all.bytes - from);
        assert_int_equal(hzp_tokenizer_decode(tok, ids, n, skip, &once), 0);
        assert_int_equal(all.bytes, once.bytes);
        if (once.bytes > 0)
            assert_memory_equal(all.data, once.data, once.bytes);
        hzp_textbuf_fini(&all);
        hzp_textbuf_fini(&once);
    }
}

static void never_half_a_character(void **state)
{
    make_byte_level(MAKE_GPT);
    struct hzp_tokenizer *tok = make_open();
    random_streams(tok, true);
    hzp_tokenizer_close(tok);
    make_sentencepiece();
    tok = make_open();
    random_streams(tok, false);
    hzp_tokenizer_close(tok);
}

/* Feeds ids one by one and compares what each returned, separated by "|", the flush last. */
static void stream(const struct hzp_tokenizer *tok, bool skip, const char *want, const int32_t *ids)
{
    struct hzp_detokenizer detok;
    struct hzp_textbuf out = {0};
    hzp_detokenizer_init(&detok, tok, skip);
    for (; *ids >= 0; ids++) {
        assert_int_equal(hzp_detokenizer_feed(&detok, *ids, &out), 0);
        assert_int_equal(hzp_textbuf_append(&out, "|", 1), 0);
    }
    assert_int_equal(hzp_detokenizer_flush(&detok, &out), 0);
    assert_int_equal(hzp_textbuf_append(&out, "", 1), 0);
    assert_string_equal(out.data, want);
    hzp_textbuf_fini(&out);
}

#define STREAM(tok, skip, want, ...) stream(tok, skip, want, (const int32_t[]){__VA_ARGS__})
#define BAD                          HZP_UTF8_REPLACEMENT

static void byte_level(void **state)
{
    make_byte_level(MAKE_GPT);
    struct hzp_tokenizer *tok = make_open();
    STREAM(tok, true, "hello| w|", 259, 262, -1);
    STREAM(tok, true, " w|", 262, -1);
    STREAM(tok, true, "|||\xF0\x9F\x98\x80|", 0xF0, 0x9F, 0x98, 0x80, -1);
    /* one replacement for each maximal broken part: E2 82 is one, the lone 80 another */
    STREAM(tok, true, "||" BAD "a|" BAD "|", 0xE2, 0x82, 'a', 0x80, -1);
    STREAM(tok, true, "|" BAD "|" BAD, 0xE2, 0xE2, -1);
    STREAM(tok, true, "||" BAD, 0xE2, 0x82, -1);
    STREAM(tok, true, "|" BAD BAD "|", 0xED, 0xA0, -1);    /* surrogates are invalid */
    STREAM(tok, true, "||\xC3\xA9|", 0xC3, 263, 0xA9, -1); /* a skipped token splits nothing */
    STREAM(tok, false, "<s>|hello|", 263, 259, -1);
    hzp_tokenizer_close(tok);
}

static void byte_fallback(void **state)
{
    make_sentencepiece();
    struct hzp_tokenizer *tok = make_open();
    STREAM(tok, true, "|he| he|", 1, 288, 288, -1);
    STREAM(tok, false, "<s>| he|", 1, 288, -1);
    STREAM(tok, true, "| he|", 259, 288, -1);
    STREAM(tok, true, "a||\xC3\xA9|", 260, 3 + 0xC3, 3 + 0xA9, -1);
    STREAM(tok, true, "||" BAD BAD "a|", 3 + 0xE2, 3 + 0x82, 260, -1);
    STREAM(tok, true, "||" BAD BAD, 3 + 0xE2, 3 + 0x82, -1);
    hzp_tokenizer_close(tok);
}

static void first_and_last(void **state)
{
    make_byte_level(", \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, "
                    "{\"type\": \"Strip\", \"content\": \"a\", \"start\": 0, \"stop\": 2}]}");
    struct hzp_tokenizer *tok = make_open();
    STREAM(tok, true, "|a|aab|he|", 260, 'a', 'b', 256, -1);
    STREAM(tok, true, "he||a|", 256, 260, 'a', -1);
    hzp_tokenizer_close(tok);
    /* Metaspace: removes the mark before the first token, which was not in the text */
    make_byte_level(", \"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"l\", "
                    "\"prepend_scheme\": \"always\"}");
    tok = make_open();
    STREAM(tok, true, "|he|he  |", 263, 258, 258, -1);
    hzp_tokenizer_close(tok);
    make_byte_level("");
    tok = make_open();
    STREAM(tok, true, "he| ll|", 256, 257, -1);
    hzp_tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_half_a_character),
        cmocka_unit_test(byte_level),
        cmocka_unit_test(byte_fallback),
        cmocka_unit_test(first_and_last),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
