/* SPDX-License-Identifier: Apache-2.0 */
/* The normalization forms: known cases, and the properties that UAX 15 requires for all text. */
#include "text/chars/unicode.h"

#include "tests/text/tokenizer_makes.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void expect(enum hzp_unicode_form form, const char *text, const char *want)
{
    struct hzp_textbuf out = {0};
    assert_int_equal(hzp_unicode_normalize(form, text, strlen(text), &out), 0);
    assert_int_equal(hzp_textbuf_append(&out, "", 1), 0);
    assert_string_equal(out.data, want);
    hzp_textbuf_fini(&out);
}

static void known(void **state)
{
    expect(HZP_UNICODE_NFC, "plain", "plain");
    expect(HZP_UNICODE_NFC, "e\xCC\x81", "\xC3\xA9");
    expect(HZP_UNICODE_NFD, "\xC3\xA9", "e\xCC\x81");
    /* marks of different classes are reordered, those of one class are not */
    expect(HZP_UNICODE_NFC, "e\xCC\x81\xCC\xA7", "\xC8\xA9\xCC\x81");
    expect(HZP_UNICODE_NFD, "a\xCC\x88\xCC\x81", "a\xCC\x88\xCC\x81");
    expect(HZP_UNICODE_NFC, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"); /* Hangul */
    /* U+11A7 stands just before the letters that end a syllable, and is none of them */
    expect(HZP_UNICODE_NFC, "\xEA\xB0\x80\xE1\x86\xA7", "\xEA\xB0\x80\xE1\x86\xA7");
    expect(HZP_UNICODE_NFD, "\xEA\xB0\x81", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8");
    expect(HZP_UNICODE_NFC, "\xE0\xA5\x98",
           "\xE0\xA4\x95\xE0\xA4\xBC");                  /* excluded from composition */
    expect(HZP_UNICODE_NFC, "\xE2\x84\xAB", "\xC3\x85"); /* Angstrom */
    expect(HZP_UNICODE_NFC, "\xEF\xAC\x81", "\xEF\xAC\x81");
    expect(HZP_UNICODE_NFKC, "\xEF\xAC\x81\xEF\xBC\xA1", "fiA");
    expect(HZP_UNICODE_NFKD, "\xC2\xBD",
           "1\xE2\x81\x84"
           "2");
    struct hzp_textbuf out = {0};
    assert_int_equal(hzp_unicode_lower("\xC3\x89"
                                       "A\xC4\xB0",
                                       5, &out),
                     0);
    assert_memory_equal(out.data,
                        "\xC3\xA9"
                        "ai\xCC\x87",
                        6);
    out.bytes = 0;
    assert_int_equal(hzp_unicode_strip_marks("e\xCC\x81x", 4, &out), 0);
    assert_memory_equal(out.data, "ex", 2);
    assert_int_equal(out.bytes, 2);
    hzp_textbuf_fini(&out);
}

static void laws(void **state)
{
    for (int turn = 0; turn < 4000; turn++) {
        char text[256];
        size_t n = 0;
        while (n < 200 && make_random(40) != 0) {
            static const uint32_t from[] = {0,      0xC0,   0x300,  0x900,  0x1100,
                                            0xAC00, 0x1E00, 0xFB00, 0x1D100};
            n += (size_t)hzp_utf8_put(text + n, from[make_random(9)] + make_random(0xB0));
        }
        struct hzp_textbuf form[4] = {{0}}, twice = {0};
        for (int f = 0; f < 4; f++) {
            assert_int_equal(hzp_unicode_normalize((enum hzp_unicode_form)f, text, n, &form[f]), 0);
            assert_int_equal(hzp_utf8_valid(form[f].data, form[f].bytes), form[f].bytes);
        }
        /* toNFC(toNFD(x)) = toNFC(x), toNFD(toNFC(x)) = toNFD(x), likewise with K; each form is
         * a fixed point */
        static const int after[][3] = {{0, 1, 0}, {1, 0, 1}, {2, 3, 2}, {3, 2, 3}, {0, 0, 0},
                                       {1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {2, 0, 2}, {3, 1, 3}};
        for (int i = 0; i < HZP_COUNT(after); i++) {
            const struct hzp_textbuf *in = &form[after[i][1]], *want = &form[after[i][2]];
            twice.bytes = 0;
            assert_int_equal(hzp_unicode_normalize((enum hzp_unicode_form)after[i][0], in->data,
                                                   in->bytes, &twice),
                             0);
            assert_int_equal(twice.bytes, want->bytes);
            if (want->bytes > 0)
                assert_memory_equal(twice.data, want->data, want->bytes);
        }
        for (int f = 0; f < 4; f++)
            hzp_textbuf_fini(&form[f]);
        hzp_textbuf_fini(&twice);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known), cmocka_unit_test(laws)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
