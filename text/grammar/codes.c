/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar/rules.h"

#include "base/chars.h"
#include "base/utf8.h"

static int by_lo(const void *pa, const void *pb)
{
    const struct hzp_code_range *a = pa, *b = pb;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

/* Sorts and joins the ranges. */
static void sort(struct hzp_codes *set)
{
    int32_t kept = 0;
    qsort(set->range, (size_t)set->count, sizeof(*set->range), by_lo);
    for (int32_t i = 0; i < set->count; i++) {
        struct hzp_code_range *last = kept ? &set->range[kept - 1] : NULL;
        if (last && set->range[i].lo <= last->hi + 1)
            last->hi = HZP_MAX(last->hi, set->range[i].hi);
        else
            set->range[kept++] = set->range[i];
    }
    set->count = kept;
}

void hzp_codes_add(struct hzp_codes *set, uint32_t lo, uint32_t hi)
{
    if (lo > hi || set->full)
        return;
    if (set->count == HZP_CODES_MAX)
        sort(set);
    if (set->count == HZP_CODES_MAX)
        set->full = true;
    else
        set->range[set->count++] = (struct hzp_code_range){lo, HZP_MIN(hi, HZP_CODE_LAST)};
}

void hzp_codes_invert(struct hzp_codes *set)
{
    struct hzp_codes out = {.full = set->full};
    uint32_t from = 0;
    sort(set);
    for (int32_t i = 0; i < set->count; i++) {
        if (set->range[i].lo > from)
            hzp_codes_add(&out, from, set->range[i].lo - 1);
        from = set->range[i].hi + 1;
    }
    if (from <= HZP_CODE_LAST)
        hzp_codes_add(&out, from, HZP_CODE_LAST);
    *set = out;
}

/* A code point below 0x20, a quote or a backslash. */
static void escaped_edge(struct hzp_rules *rules, int32_t from, uint32_t code, int32_t to)
{
    static const char short_of[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs */
    char text[8];
    size_t bytes = 0;
    for (size_t i = 0; i + 1 < sizeof(short_of) && !bytes; i += 2)
        if ((uint32_t)short_of[i] == code) {
            text[0] = '\\';
            text[1] = short_of[i + 1];
            bytes = 2;
        }
    if (!bytes) {
        static const char hex[] = "0123456789abcdef";
        memcpy(text, "\\u00", 4);
        text[4] = hex[code >> 4];
        text[5] = hex[code & 15];
        bytes = 6;
    }
    int32_t node = hzp_rules_text(rules, from, text, bytes - 1);
    hzp_rules_bytes(rules, node, (uint8_t)text[bytes - 1], (uint8_t)text[bytes - 1], to);
}

static void json_edges(struct hzp_rules *rules, int32_t from, struct hzp_code_range range,
                       int32_t to)
{
    static const struct hzp_code_range plain[] = {
        {0x20, 0x21}, {0x23, 0x5B}, {0x5D, HZP_CODE_LAST}};
    for (uint32_t c = range.lo; c < 0x20 && c <= range.hi; c++)
        escaped_edge(rules, from, c, to);
    if (range.lo <= '"' && range.hi >= '"')
        escaped_edge(rules, from, '"', to);
    if (range.lo <= '\\' && range.hi >= '\\')
        escaped_edge(rules, from, '\\', to);
    for (int i = 0; i < HZP_COUNT(plain); i++)
        hzp_rules_codes(rules, from, HZP_MAX(range.lo, plain[i].lo), HZP_MIN(range.hi, plain[i].hi),
                        to);
}

void hzp_codes_edges(struct hzp_rules *rules, int32_t from, struct hzp_codes *set,
                     enum hzp_spelling spelling, int32_t to)
{
    sort(set);
    rules->full |= set->full;
    for (int32_t i = 0; i < set->count; i++)
        if (spelling == HZP_SPELL_JSON)
            json_edges(rules, from, set->range[i], to);
        else
            hzp_rules_codes(rules, from, set->range[i].lo, set->range[i].hi, to);
}

uint32_t hzp_code_read(const char *text, size_t bytes, size_t *at)
{
    int step;
    if (!hzp_utf8_bytes(text + *at, text + bytes))
        return UINT32_MAX;
    uint32_t code = hzp_utf8_get(text + *at, &step);
    *at += (size_t)step;
    return code;
}

uint32_t hzp_code_hex(const char *text, size_t bytes, size_t at, int n)
{
    uint32_t value = 0;
    for (int i = 0; i < n; i++) {
        int digit = at + (size_t)i < bytes ? hzp_hex_digit(text[at + (size_t)i]) : -1;
        if (digit < 0)
            return UINT32_MAX;
        value = value << 4 | (uint32_t)digit;
    }
    return value;
}
