/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chars/unicode.h"

#include "base/err.h"
#include "base/utf8.h"

#include <utf8proc.h>

enum { PARTS = 32 }; /* a character has 18 in its decomposition at most */

static bool composes(enum hzp_unicode_form form)
{
    return form == HZP_UNICODE_NFC || form == HZP_UNICODE_NFKC;
}

static bool is_compat(enum hzp_unicode_form form)
{
    return form == HZP_UNICODE_NFKC || form == HZP_UNICODE_NFKD;
}

static bool is_mark(const utf8proc_property_t *property)
{
    return property->category == UTF8PROC_CATEGORY_MN ||
           property->category == UTF8PROC_CATEGORY_MC || property->category == UTF8PROC_CATEGORY_ME;
}

/* Writes the full decomposition of code to parts (at most room), returns how many there are. */
static size_t decompose(enum hzp_unicode_form form, uint32_t code, int32_t *parts, size_t room)
{
    int options = UTF8PROC_DECOMPOSE | (is_compat(form) ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose_char((int32_t)code, parts, (utf8proc_ssize_t)room,
                                                 (utf8proc_option_t)options, NULL);
    HZP_ASSERT(n > 0 && n <= PARTS);
    return (size_t)n;
}

static int ccc_of(int32_t code)
{
    return utf8proc_get_property(code)->combining_class;
}

/* Joins what composes; returns how many code points remain.  U+11A7 joins nothing, but the library
 * (2.8) would drop it behind a Hangul syllable, so it is kept from what is before it. */
static size_t compose(int32_t *codes, size_t n)
{
    size_t out = 0;
    for (size_t at = 0, end; at < n; at = end) {
        for (end = at + 1; end < n && codes[end] != 0x11A7;)
            end++;
        memmove(codes + out, codes + at, (end - at) * sizeof(*codes));
        out += (size_t)utf8proc_normalize_utf32(codes + out, (utf8proc_ssize_t)(end - at),
                                                UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    }
    return out;
}

/* Whether the form leaves the character as it is, whatever stands beside it.  Only marks and the
 * later letters of a Hangul syllable join what is before them. */
static bool is_fixed(enum hzp_unicode_form form, uint32_t code)
{
    const utf8proc_property_t *property = utf8proc_get_property((int32_t)code);
    int32_t parts[PARTS];
    if (is_mark(property) || property->combining_class || (code >= 0x1161 && code <= 0x11FF))
        return false;
    if (property->decomp_seqindex == UINT16_MAX && (code < 0xAC00 || code > 0xD7A3))
        return true;
    size_t n = decompose(form, code, parts, PARTS);
    if (n > 1 && composes(form))
        n = compose(parts, n);
    return n == 1 && parts[0] == (int32_t)code;
}

bool hzp_unicode_is_plain(enum hzp_unicode_form form, const char *text, size_t bytes)
{
    int step = 1;
    for (size_t at = 0; at < bytes; at += (size_t)step)
        if ((uint8_t)text[at] < 0x80) /* ASCII is in every form */
            step = 1;
        else if (!is_fixed(form, hzp_utf8_get(text + at, &step)))
            return false;
    return true;
}

/* Stable order by combining class of one run of non-starters.  Long runs are counted, so that a
 * megabyte of accents costs no more than a megabyte of anything; the library's order would take
 * quadratic time. */
static int order_run(int32_t *run, size_t n)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            int32_t code = run[i];
            size_t to = i;
            for (; to > 0 && ccc_of(run[to - 1]) > ccc_of(code); to--)
                run[to] = run[to - 1];
            run[to] = code;
        }
        return HZP_OK;
    }
    HZP_FREED int32_t *copy = malloc(n * sizeof(*copy));
    if (copy == NULL)
        return HZP_ENOMEM;
    memcpy(copy, run, n * sizeof(*copy));
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[ccc_of(copy[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++)
        run[start[ccc_of(copy[i])]++] = copy[i];
    return HZP_OK;
}

static int order(int32_t *codes, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t end = at;
        while (end < n && ccc_of(codes[end]) != 0)
            end++;
        if (end - at > 1)
            HZP_TRY(order_run(codes + at, end - at));
        at = end == at ? at + 1 : end;
    }
    return HZP_OK;
}

int hzp_unicode_normalize(enum hzp_unicode_form form, const char *text, size_t bytes,
                          struct hzp_textbuf *out)
{
    if (hzp_unicode_is_plain(form, text, bytes))
        return hzp_textbuf_append(out, text, bytes);
    HZP_FREED int32_t *codes = NULL; /* code points between decomposition and writing */
    size_t n = 0, room = 0;
    int step;
    for (size_t at = 0; at < bytes; at += (size_t)step) {
        if (room - n < PARTS)
            HZP_TRY(hzp_text_grow(&codes, &room, n + PARTS, sizeof(*codes)));
        n += decompose(form, hzp_utf8_get(text + at, &step), codes + n, room - n);
    }
    HZP_TRY(order(codes, n));
    if (composes(form))
        n = compose(codes, n);
    for (size_t i = 0; i < n; i++) {
        char put[4];
        size_t k = (size_t)hzp_utf8_put(put, (uint32_t)codes[i]);
        HZP_TRY(hzp_textbuf_append(out, put, k));
    }
    return HZP_OK;
}

int hzp_unicode_lower(const char *text, size_t bytes, struct hzp_textbuf *out)
{
    int step;
    for (size_t at = 0; at < bytes; at += (size_t)step) {
        uint32_t code = hzp_utf8_get(text + at, &step);
        char put[4];
        if (code == 0x130) /* the one capital whose lowercase is two characters */
            HZP_TRY(hzp_textbuf_append(out, "i\xCC\x87", 3));
        else
            HZP_TRY(hzp_textbuf_append(
                out, put, (size_t)hzp_utf8_put(put, (uint32_t)utf8proc_tolower((int32_t)code))));
    }
    return HZP_OK;
}

int hzp_unicode_strip_marks(const char *text, size_t bytes, struct hzp_textbuf *out)
{
    int step;
    for (size_t at = 0; at < bytes; at += (size_t)step)
        if (!is_mark(utf8proc_get_property((int32_t)hzp_utf8_get(text + at, &step))))
            HZP_TRY(hzp_textbuf_append(out, text + at, (size_t)step));
    return HZP_OK;
}
