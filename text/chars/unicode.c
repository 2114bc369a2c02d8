/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chars/unicode.h"

#include "base/arena.h"
#include "base/err.h"
#include "text/chars/utf8.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CODES          0x110000u
#define PAGE           128u
#define HANGUL_S       0xAC00u
#define HANGUL_L       0x1100u
#define HANGUL_V       0x1161u
#define HANGUL_T       0x11A7u
#define HANGUL_L_COUNT 19u
#define HANGUL_V_COUNT 21u
#define HANGUL_T_COUNT 28u
#define HANGUL_S_COUNT (HANGUL_L_COUNT * HANGUL_V_COUNT * HANGUL_T_COUNT)

/* What is known of one code point; code points without anything share the first record. */
struct record {
    uint32_t values; /* where its one-step decomposition begins */
    uint8_t count;   /* code points in it; 0: none */
    bool compat;     /* it is a compatibility decomposition */
    uint8_t ccc;     /* canonical combining class */
    bool mark;
    uint8_t touched; /* bit f: form f may change text with this character in it */
    uint32_t lower;  /* 0: itself */
};

struct pair {
    uint32_t first, second, composed;
};

static struct {
    pthread_once_t once;
    uint16_t page[CODES / PAGE];
    struct record *records; /* page 0 is all nothing */
    size_t pages;
    uint32_t *values;
    struct pair *pairs; /* open addressing, 4096 slots */
} uni = {.once = PTHREAD_ONCE_INIT};

#define PAIRS 4096u

static uint32_t read_number(const char **at)
{
    uint32_t value = 0;
    for (int shift = 0;; shift += 5) {
        char c = *(*at)++;
        uint32_t digit = c >= 'A' && c <= 'Z'   ? (uint32_t)(c - 'A')
                         : c >= 'a' && c <= 'z' ? (uint32_t)(c - 'a' + 26)
                         : c >= '0' && c <= '9' ? (uint32_t)(c - '0' + 52)
                         : c == '+'             ? 62
                                                : 63;
        value |= (digit & 31) << shift;
        if (digit < 32)
            return value;
    }
}

static uint32_t read_signed(const char **at)
{
    uint32_t n = read_number(at);
    return n & 1 ? 0u - (n + 1) / 2 : n / 2;
}

static const struct record *record_of(uint32_t code)
{
    return &uni.records[uni.page[code / PAGE] * PAGE + code % PAGE];
}

static struct record *record_make(uint32_t code)
{
    uint16_t *page = &uni.page[code / PAGE];
    if (*page == 0) {
        uni.records = hzp_xrealloc(uni.records, (uni.pages + 1) * PAGE * sizeof(*uni.records));
        memset(uni.records + uni.pages * PAGE, 0, PAGE * sizeof(*uni.records));
        *page = (uint16_t)uni.pages++;
    }
    return &uni.records[*page * PAGE + code % PAGE];
}

static struct pair *pair_slot(uint32_t first, uint32_t second)
{
    uint32_t at = (first * 0x9E3779B1u ^ second * 0x85EBCA77u) >> 20;
    while (uni.pairs[at].composed != 0 &&
           (uni.pairs[at].first != first || uni.pairs[at].second != second))
        at = (at + 1) % PAIRS;
    return &uni.pairs[at];
}

#define FORM(f) (uint8_t)(1u << (f))

static void unpack_decompositions(void)
{
    const char *at = hzp_unicode_decompositions;
    uint32_t code = 0, last_first = 0, used = 0;
    uni.values = hzp_xmalloc((size_t)hzp_unicode_decompositions_count * 20 * sizeof(uint32_t));
    for (int i = 0; i < hzp_unicode_decompositions_count; i++) {
        code += read_number(&at);
        uint32_t head = read_number(&at), value = last_first;
        struct record *record = record_make(code);
        record->values = used;
        record->count = (uint8_t)(head >> 2);
        record->compat = head & 1;
        for (uint32_t k = 0; k < head >> 2; k++)
            uni.values[used++] = value += read_signed(&at);
        last_first = uni.values[record->values];
        bool excluded = head & 2;
        record->touched |= FORM(HZP_UNICODE_NFKD) | FORM(HZP_UNICODE_NFKC);
        if (!record->compat)
            record->touched |= FORM(HZP_UNICODE_NFD);
        if (excluded)
            record->touched |= FORM(HZP_UNICODE_NFC);
        if (record->compat || excluded || record->count != 2)
            continue;
        uint32_t first = uni.values[record->values], second = uni.values[record->values + 1];
        *pair_slot(first, second) = (struct pair){first, second, code};
        record_make(second)->touched |= FORM(HZP_UNICODE_NFC) | FORM(HZP_UNICODE_NFKC);
    }
}

static void unpack(void)
{
    uni.pages = 1;
    uni.records = hzp_xcalloc(PAGE, sizeof(*uni.records));
    uni.pairs = hzp_xcalloc(PAIRS, sizeof(*uni.pairs));
    unpack_decompositions();
    const char *at = hzp_unicode_classes;
    uint32_t code = 0;
    for (int i = 0; i < hzp_unicode_classes_count; i++) {
        code += read_number(&at);
        uint32_t length = read_number(&at), ccc = read_number(&at);
        for (; length > 0; length--, code++) {
            record_make(code)->ccc = (uint8_t)ccc;
            record_make(code)->touched = 15;
        }
    }
    at = hzp_unicode_marks;
    code = 0;
    for (int i = 0; i < hzp_unicode_marks_count; i++) {
        code += read_number(&at);
        uint32_t length = read_number(&at);
        (void)read_number(&at);
        for (; length > 0; length--, code++)
            record_make(code)->mark = true;
    }
    at = hzp_unicode_lowers;
    code = 0;
    for (int i = 0; i < hzp_unicode_lowers_count; i++) {
        code += read_number(&at);
        record_make(code)->lower = code + read_signed(&at);
    }
    for (code = HANGUL_S; code < HANGUL_S + HANGUL_S_COUNT; code++)
        record_make(code)->touched |= FORM(HZP_UNICODE_NFD) | FORM(HZP_UNICODE_NFKD);
    for (code = HANGUL_V; code < HANGUL_T + HANGUL_T_COUNT; code++)
        record_make(code)->touched |= FORM(HZP_UNICODE_NFC) | FORM(HZP_UNICODE_NFKC);
}

static void ready(void)
{
    pthread_once(&uni.once, unpack);
}

bool hzp_unicode_is_plain(enum hzp_unicode_form form, const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && (uint8_t)text[at] < 0x80) /* ASCII is in every form */
        at++;
    if (at == bytes)
        return true;
    ready();
    while (at < bytes) {
        int step;
        uint32_t code = hzp_utf8_get(text + at, &step);
        if (record_of(code)->touched & FORM(form))
            return false;
        at += (size_t)step;
    }
    return true;
}

/* Code points between decomposition and writing. */
struct codes {
    uint32_t *data;
    size_t n, cap;
};

static int codes_add(struct codes *codes, uint32_t code)
{
    if (codes->n == codes->cap) {
        void *array = codes->data;
        HZP_TRY(hzp_text_grow(&array, &codes->cap, codes->n + 1, sizeof(uint32_t)));
        codes->data = array;
    }
    codes->data[codes->n++] = code;
    return HZP_OK;
}

/* Appends the full decomposition of code. Recursion ends: the tables hold no cycle. */
static int decompose(struct codes *codes, uint32_t code, bool compat)
{
    if (code - HANGUL_S < HANGUL_S_COUNT) {
        uint32_t s = code - HANGUL_S, t = s % HANGUL_T_COUNT;
        HZP_TRY(codes_add(codes, HANGUL_L + s / (HANGUL_V_COUNT * HANGUL_T_COUNT)));
        HZP_TRY(codes_add(codes, HANGUL_V + s / HANGUL_T_COUNT % HANGUL_V_COUNT));
        return t != 0 ? codes_add(codes, HANGUL_T + t) : HZP_OK;
    }
    const struct record *record = record_of(code);
    if (record->count == 0 || (record->compat && !compat))
        return codes_add(codes, code);
    for (uint32_t i = 0; i < record->count; i++)
        HZP_TRY(decompose(codes, uni.values[record->values + i], compat));
    return HZP_OK;
}

/* Stable order by combining class of one run of non-starters. Long runs are counted, so that a
 * megabyte of accents costs no more than a megabyte of anything. */
static int order_run(uint32_t *run, size_t n)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            uint32_t code = run[i];
            size_t to = i;
            for (; to > 0 && record_of(run[to - 1])->ccc > record_of(code)->ccc; to--)
                run[to] = run[to - 1];
            run[to] = code;
        }
        return HZP_OK;
    }
    uint32_t *copy = malloc(n * sizeof(*copy));
    if (copy == NULL)
        return HZP_ENOMEM;
    memcpy(copy, run, n * sizeof(*copy));
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[record_of(copy[i])->ccc + 1]++;
    for (int c = 0; c < 256; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++)
        run[start[record_of(copy[i])->ccc]++] = copy[i];
    free(copy);
    return HZP_OK;
}

static int order(struct codes *codes)
{
    for (size_t at = 0; at < codes->n;) {
        size_t end = at;
        while (end < codes->n && record_of(codes->data[end])->ccc != 0)
            end++;
        if (end - at > 1)
            HZP_TRY(order_run(codes->data + at, end - at));
        at = end == at ? at + 1 : end;
    }
    return HZP_OK;
}

/* The primary composite of two code points, 0 if none. */
static uint32_t compose_pair(uint32_t first, uint32_t second)
{
    if (first - HANGUL_L < HANGUL_L_COUNT && second - HANGUL_V < HANGUL_V_COUNT)
        return HANGUL_S +
               ((first - HANGUL_L) * HANGUL_V_COUNT + (second - HANGUL_V)) * HANGUL_T_COUNT;
    if (first - HANGUL_S < HANGUL_S_COUNT && (first - HANGUL_S) % HANGUL_T_COUNT == 0 &&
        second - HANGUL_T - 1 < HANGUL_T_COUNT - 1)
        return first + (second - HANGUL_T);
    return pair_slot(first, second)->composed;
}

/* UAX 15, D117: each character joins the last starter unless something between blocks it. */
static void compose(struct codes *codes)
{
    size_t out = 0, starter = SIZE_MAX;
    int last_ccc = -1; /* class of what follows the starter in the output; -1: nothing does */
    for (size_t i = 0; i < codes->n; i++) {
        uint32_t code = codes->data[i];
        int ccc = record_of(code)->ccc;
        if (starter != SIZE_MAX && last_ccc < ccc) {
            uint32_t composed = compose_pair(codes->data[starter], code);
            if (composed != 0) {
                codes->data[starter] = composed;
                continue;
            }
        }
        if (ccc == 0) {
            starter = out;
            last_ccc = -1;
        } else {
            last_ccc = ccc;
        }
        codes->data[out++] = code;
    }
    codes->n = out;
}

int hzp_unicode_normalize(enum hzp_unicode_form form, const char *text, size_t bytes,
                          struct hzp_textbuf *out)
{
    if (hzp_unicode_is_plain(form, text, bytes))
        return hzp_textbuf_append(out, text, bytes);
    struct codes codes = {0};
    bool compat = form == HZP_UNICODE_NFKC || form == HZP_UNICODE_NFKD;
    int r = HZP_OK, step;
    for (size_t at = 0; at < bytes; at += (size_t)step)
        HZP_TRY_GOTO(decompose(&codes, hzp_utf8_get(text + at, &step), compat));
    HZP_TRY_GOTO(order(&codes));
    if (form == HZP_UNICODE_NFC || form == HZP_UNICODE_NFKC)
        compose(&codes);
    for (size_t i = 0; i < codes.n; i++) {
        char put[4];
        HZP_TRY_GOTO(hzp_textbuf_append(out, put, (size_t)hzp_utf8_put(put, codes.data[i])));
    }
out:
    free(codes.data);
    return r;
}

int hzp_unicode_lower(const char *text, size_t bytes, struct hzp_textbuf *out)
{
    ready();
    int step;
    for (size_t at = 0; at < bytes; at += (size_t)step) {
        uint32_t code = hzp_utf8_get(text + at, &step);
        const struct record *record = record_of(code);
        char put[4];
        size_t n = (size_t)hzp_utf8_put(put, record->lower != 0 ? record->lower : code);
        if (code == 0x130) /* the one capital whose lowercase is two characters */
            HZP_TRY(hzp_textbuf_append(out, "i\xCC\x87", 3));
        else
            HZP_TRY(hzp_textbuf_append(out, put, n));
    }
    return HZP_OK;
}

int hzp_unicode_strip_marks(const char *text, size_t bytes, struct hzp_textbuf *out)
{
    ready();
    int step;
    for (size_t at = 0; at < bytes; at += (size_t)step)
        if (!record_of(hzp_utf8_get(text + at, &step))->mark)
            HZP_TRY(hzp_textbuf_append(out, text + at, (size_t)step));
    return HZP_OK;
}
