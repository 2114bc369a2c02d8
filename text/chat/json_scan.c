/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/reply.h"

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool begin_list(struct hzp_json_scan *s, bool object)
{
    if (s->depth == HZP_SCAN_DEPTH_MAX)
        return false;
    uint64_t bit = (uint64_t)1 << s->depth % 64, *word = &s->object[s->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    s->depth++;
    s->state = object ? HZP_SCAN_FIRST : HZP_SCAN_ITEM;
    return true;
}

static bool in_object(const struct hzp_json_scan *s)
{
    return s->object[(s->depth - 1) / 64] >> (s->depth - 1) % 64 & 1;
}

static void end_value(struct hzp_json_scan *s)
{
    s->state = s->depth ? HZP_SCAN_BEHIND : HZP_SCAN_DONE;
}

static bool end_list(struct hzp_json_scan *s, bool object)
{
    if (in_object(s) != object)
        return false;
    s->depth--;
    end_value(s);
    return true;
}

static bool begin_string(struct hzp_json_scan *s, bool name)
{
    s->state = HZP_SCAN_STRING;
    s->name = name;
    return true;
}

static bool begin_value(struct hzp_json_scan *s, char c)
{
    switch (c) {
    case '{':
    case '[':
        return begin_list(s, c == '{');
    case '"':
        return begin_string(s, false);
    case '-':
        s->state = HZP_SCAN_MINUS;
        return true;
    case 't':
    case 'f':
    case 'n':
        s->word = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
        s->state = HZP_SCAN_WORD;
        return true;
    default:
        s->state = c == '0' ? HZP_SCAN_ZERO : HZP_SCAN_WHOLE;
        return digit(c);
    }
}

/* Behind a value. */
static bool behind(struct hzp_json_scan *s, char c)
{
    if (hzp_is_blank(c))
        return true;
    if (s->state == HZP_SCAN_DONE)
        return false;
    if (c == '}' || c == ']')
        return end_list(s, c == '}');
    s->state = in_object(s) ? HZP_SCAN_NAME : HZP_SCAN_VALUE;
    return c == ',';
}

static bool in_string(struct hzp_json_scan *s, char c)
{
    switch (s->state) {
    case HZP_SCAN_ESCAPE:
        s->state = c == 'u' ? HZP_SCAN_HEX : HZP_SCAN_STRING;
        s->hex = 0;
        return c && strchr("\"\\/bfnrtu", c);
    case HZP_SCAN_HEX:
        s->state = ++s->hex == 4 ? HZP_SCAN_STRING : HZP_SCAN_HEX;
        return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    default:
        if (c == '"' && s->name)
            s->state = HZP_SCAN_COLON;
        else if (c == '"')
            end_value(s);
        else if (c == '\\')
            s->state = HZP_SCAN_ESCAPE;
        return (unsigned char)c >= ' ' || s->controls;
    }
}

/* A number goes on, or ends in front of the byte. */
static bool in_number(struct hzp_json_scan *s, char c)
{
    enum hzp_scan_state state = s->state;
    bool whole = state == HZP_SCAN_ZERO || state == HZP_SCAN_WHOLE;
    if (state == HZP_SCAN_MINUS) {
        s->state = c == '0' ? HZP_SCAN_ZERO : HZP_SCAN_WHOLE;
        return digit(c);
    }
    if (state == HZP_SCAN_DOT || state == HZP_SCAN_SIGN) {
        s->state = state == HZP_SCAN_DOT ? HZP_SCAN_FRACTION : HZP_SCAN_EXPONENT;
        return digit(c);
    }
    if (state == HZP_SCAN_E) {
        s->state = digit(c) ? HZP_SCAN_EXPONENT : HZP_SCAN_SIGN;
        return digit(c) || c == '+' || c == '-';
    }
    if (digit(c))
        return state != HZP_SCAN_ZERO;
    if (whole && c == '.') {
        s->state = HZP_SCAN_DOT;
        return true;
    }
    if ((whole || state == HZP_SCAN_FRACTION) && (c == 'e' || c == 'E')) {
        s->state = HZP_SCAN_E;
        return true;
    }
    end_value(s);
    return behind(s, c);
}

bool hzp_json_scan(struct hzp_json_scan *s, char c)
{
    bool blank = hzp_is_blank(c);
    switch (s->state) {
    case HZP_SCAN_VALUE:
        return blank || begin_value(s, c);
    case HZP_SCAN_ITEM:
        return blank || (c == ']' ? end_list(s, false) : begin_value(s, c));
    case HZP_SCAN_FIRST:
        return blank || (c == '}' ? end_list(s, true) : c == '"' && begin_string(s, true));
    case HZP_SCAN_NAME:
        return blank || (c == '"' && begin_string(s, true));
    case HZP_SCAN_COLON:
        if (!blank)
            s->state = HZP_SCAN_VALUE;
        return blank || c == ':';
    case HZP_SCAN_BEHIND:
    case HZP_SCAN_DONE:
        return behind(s, c);
    case HZP_SCAN_STRING:
    case HZP_SCAN_ESCAPE:
    case HZP_SCAN_HEX:
        return in_string(s, c);
    case HZP_SCAN_WORD:
        if (c != *s->word)
            return false;
        if (!*++s->word)
            end_value(s);
        return true;
    default:
        return in_number(s, c);
    }
}

bool hzp_json_is(const char *text, size_t bytes, bool controls, bool object)
{
    struct hzp_json_scan s = {.controls = controls};
    size_t i = hzp_blanks(text, bytes);
    if (object && (i == bytes || text[i] != '{'))
        return false;
    for (; i < bytes; i++)
        if (!hzp_json_scan(&s, text[i]))
            return false;
    return hzp_json_scan(&s, ' ') && s.state == HZP_SCAN_DONE; /* a number ends there */
}
